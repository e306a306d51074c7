// The table of operators, and what is derived from it.
#include "ir/op.h"

#include <gtest/gtest.h>

#include "ir/axis_reads.h"

namespace tessera {
namespace {

TEST(Op, FoldsOfTwoOperandsAndOverAxesGoTogether) {
  int folds = 0;
  for (OpKind kind : all_op_kinds()) {
    const auto fold = fold_of(kind);
    if (!fold) continue;
    folds++;
    EXPECT_TRUE(kind == step_by(*fold) || kind == reduction_by(*fold)) << name(kind);
  }
  EXPECT_EQ(folds, 6);
}

TEST(Op, PropertiesDoNotContradictEachOther) {
  for (OpKind kind : all_op_kinds()) {
    const auto is = [&](algebra::Flags flag) { return has(kind, flag); };
    EXPECT_LE(is(algebra::Floats) + is(algebra::Numbers) + is(algebra::Bools), 1) << name(kind);
    // What jumps or decides is not analytic, and neither is what is modelled by unknown signs.
    EXPECT_FALSE(is(algebra::Analytic) && (is(algebra::Jumps) || is(algebra::Decides)))
        << name(kind);
    EXPECT_FALSE(is(algebra::InField) && is(algebra::Decides)) << name(kind);
    EXPECT_FALSE(is(algebra::Ring) && is(algebra::Partial)) << name(kind);
    EXPECT_TRUE(!is(algebra::Fills) || is(algebra::Movement)) << name(kind);
    EXPECT_FALSE(is(algebra::Division) && is(algebra::Call)) << name(kind);
  }
}

std::vector<int> axes(OpKind kind, const Attrs& attrs, int rank, int result_rank) {
  std::vector<int> found;
  const auto reads = axis_reads(kind, attrs, rank, result_rank);
  for (const AxisRead& r : *reads) found.push_back(r.axis);
  return found;
}

TEST(AxisReads, SayWhereAxesGo) {
  using Axes = std::vector<int>;
  EXPECT_EQ(axes(OpKind::Transpose, PermAttrs{{2, 0, 1}}, 3, 3), (Axes{1, 2, 0}));
  EXPECT_EQ(axes(OpKind::Unsqueeze, AxesAttrs{{0, 2}}, 2, 4), (Axes{1, 3}));
  EXPECT_EQ(axes(OpKind::Squeeze, AxesAttrs{{1}}, 3, 2), (Axes{0, -1, 1}));
  EXPECT_EQ(axes(OpKind::Broadcast, ShapeAttrs{}, 1, 3), (Axes{2}));
  EXPECT_FALSE(axis_reads(OpKind::Reshape, ShapeAttrs{}, 2, 3));
  EXPECT_FALSE(axis_reads(OpKind::Concat, AxisAttrs{}, 2, 2));
}

TEST(AxisReads, SayWhichPositionIsRead) {
  const auto slice = axis_reads(OpKind::Slice, SliceAttrs{{3}, {9}, {2}}, 1, 1);
  EXPECT_EQ((*slice)[0](2, 10), 7);
  const auto repeat = axis_reads(OpKind::Repeat, RepeatAttrs{{3}}, 1, 1);
  EXPECT_EQ((*repeat)[0](7, 5), 2);
  const auto stretched = axis_reads(OpKind::Broadcast, ShapeAttrs{}, 1, 1);
  EXPECT_EQ((*stretched)[0](4, 1), 0);
}

}  // namespace
}  // namespace tessera
