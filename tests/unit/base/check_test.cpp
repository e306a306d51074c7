#include "base/check.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Check, PassesInSilenceAndWithoutEvaluatingItsContext) {
  int evaluated = 0;
  CHECK(1 + 1 == 2) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
  if (evaluated == 0)
    CHECK(true);
  else
    FAIL() << "CHECK must not capture a dangling else";
}

TEST(CheckDeathTest, PrintsConditionPlaceAndContext) {
  EXPECT_DEATH(CHECK(1 == 2) << "sum was " << 3, "check_test.cpp:.*check failed: 1 == 2 sum was 3");
}

TEST(CheckDeathTest, UnreachableAborts) { EXPECT_DEATH(unreachable("here"), "unreachable: here"); }

}  // namespace
}  // namespace tessera
