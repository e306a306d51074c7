#include "ir/special.h"

#include "verify/programs.h"

namespace tessera {
namespace {

bool asks(const std::string& body) {
  return asks_for_nan(
      program("x = input : f32[4]; y = input : f32[4]; o = const {value=1} : f32[]; "
              "i = const {value=inf} : f32[]; m = const {value=-2} : f32[]; " +
              body));
}

TEST(Special, WhoAsksForNan) {
  EXPECT_TRUE(asks("z = ne x, x; return z"));
  EXPECT_TRUE(asks("z = eq x, x; return z"));
  EXPECT_FALSE(asks("z = ne x, y; return z"));
  EXPECT_TRUE(asks("z = ge x, x; return z"));
  EXPECT_FALSE(asks("z = lt x, x; return z"));
  EXPECT_TRUE(asks("a = abs x; z = eq a, i; return z"));
  EXPECT_TRUE(asks("a = abs x; b = broadcast i {shape=[4]}; z = lt a, b; return z"));
  EXPECT_FALSE(asks("z = max x, i; return z"));  // no question
  EXPECT_TRUE(asks("z = kernel x grid[x=2] {\n t0 = input : f32[4]\n t1 = iter t0 {imap={x:0}} : "
                   "f32[2]\n t2 = ne t1, t1 : bool[2]\n t3 = save t2 {omap={x:0}} : bool[4]\n "
                   "return t3\n } : bool[4]; return z"));
}

// arctan, arcsin and arccos have no cut where zeros meet.
TEST(Special, AnglesThatZerosDecide) {
  EXPECT_TRUE(asks("z = atan2 x, y; return z"));
  EXPECT_TRUE(asks("z = atan2 x, m; return z"));
  EXPECT_TRUE(asks("r = sqrt y; z = atan2 x, r; return z"));
  EXPECT_FALSE(asks("z = atan2 x, o; return z"));
  const std::string root = "a = sub o, x; b = add o, x; c = mul a, b; r = sqrt c; ";
  EXPECT_FALSE(asks(root + "z = atan2 x, r; return z"));
  EXPECT_FALSE(asks(root + "z = atan2 r, x; return z"));
  EXPECT_TRUE(asks(root + "z = atan2 r, y; return z"));
}

}  // namespace
}  // namespace tessera
