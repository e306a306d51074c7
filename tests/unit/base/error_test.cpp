#include "base/error.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Error, PrintsItsPlaceFirst) {
  Error error(ErrorKind::BadInput, "expected ')'", SourceLocation{"a.ug", 3, 14});
  EXPECT_STREQ(error.what(), "a.ug:3:14: expected ')'");
  EXPECT_EQ(error.kind(), ErrorKind::BadInput);
  EXPECT_EQ(error.message(), "expected ')'");
  ASSERT_TRUE(error.location().has_value());
  EXPECT_EQ(error.location()->line, 3);
}

TEST(Error, LeavesOutWhatIsUnknown) {
  EXPECT_STREQ(Error(ErrorKind::Io, "disk full").what(), "disk full");
  EXPECT_STREQ(Error(ErrorKind::Io, "empty", SourceLocation{"a.ug", 0, 0}).what(), "a.ug: empty");
  EXPECT_STREQ(Error(ErrorKind::Io, "x", SourceLocation{"a.ug", 2, 0}).what(), "a.ug:2: x");
}

TEST(Error, KindsHaveDistinctNames) {
  EXPECT_STREQ(to_string(ErrorKind::Usage), "usage");
  EXPECT_STREQ(to_string(ErrorKind::Cancelled), "cancelled");
}

}  // namespace
}  // namespace tessera
