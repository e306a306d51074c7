#include "plan/strides.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Strides, AxesAreRegroupedWhereNoPartIsTorn) {
  const Strided whole = Strided::of(TensorId(0), {4, 6});
  EXPECT_TRUE(whole.whole());
  using Axes = std::vector<AxisParts>;
  EXPECT_EQ(regroup(whole.parts(), {2, 12}), (Axes{{{2, 12}}, {{12, 1}}}));
  const Strided turned{TensorId(0), 0, {{{6, 1}}, {{4, 6}}}};
  EXPECT_FALSE(turned.whole());
  EXPECT_EQ(restride(turned.parts(), {24}), std::nullopt);
  EXPECT_EQ(regroup(turned.parts(), {24}), (Axes{{{6, 1}, {4, 6}}}));
  EXPECT_EQ(restride(turned.parts(), {2, 3, 4}), (Extents{3, 1, 6}));
  EXPECT_EQ(restride(whole.parts(), {5, 5}), std::nullopt);
}

TEST(Strides, ReadingsArePartsOfTheRoot) {
  struct Case {
    Extents extents, strides;
    int64_t offset;
    Extents shape, starts;
  };
  for (const Case& c : {Case{{4, 2}, {6, 1}, 2, {4, 6}, {0, 2}},        // columns 2 and 3
                        Case{{4, 3}, {6, 2}, 1, {4, 3, 2}, {0, 0, 1}},  // every other one
                        Case{{6, 4}, {1, 6}, 0, {4, 6}, {0, 0}},        // transposed
                        Case{{1}, {0}, 5, {24}, {5}}}) {                // one element
    const auto found = reading(24, c.extents, c.strides, c.offset);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->shape, c.shape);
    EXPECT_EQ(found->starts, c.starts);
  }
}

TEST(Strides, ReadingsThatOverlapOrLeaveTheRootAreNone) {
  EXPECT_FALSE(reading(24, {4, 4}, {1, 1}, 0));
  EXPECT_FALSE(reading(24, {4, 6}, {6, 1}, 3));
}

}  // namespace
}  // namespace tessera
