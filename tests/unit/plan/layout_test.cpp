#include "plan/layout.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "plan/layout_offset.h"

namespace tessera {
namespace {

TEST(Layout, FormulaOfPanels) {
  const Layout l{{}, 48, 1};
  const std::vector<int64_t> e = {100, 130};
  EXPECT_EQ(layout_elements(l, e), 100 * 144);
  for (int64_t k : {0, 7, 99})
    for (int64_t n : {0, 47, 48, 129})
      EXPECT_EQ(layout_offset(l, e, {k, n}), n / 48 * 100 * 48 + k * 48 + n % 48);
  EXPECT_EQ(l.str(), "panels of 48");
}

TEST(Layout, TransposedOrderReadsTheOtherAxisInPanels) {
  // A matrix stored as rows of outputs, read as (k, n) = (1, 0).
  const Layout l{{1, 0}, 4, 1};
  EXPECT_EQ(layout_offset(l, {6, 3}, {5, 2}), 5 / 4 * 3 * 4 + 2 * 4 + 5 % 4);
  EXPECT_EQ(l.str(), "[1,0] panels of 4");
}

TEST(Layout, EveryElementHasItsOwnPlace) {
  const std::vector<int64_t> e = {2, 5, 7};
  for (const Layout& l :
       {Layout{}, Layout{{2, 0, 1}}, Layout{{}, 3}, Layout{{0, 2, 1}, 4, 2},
        Layout{{1, 2, 0}, 2, 4}, Layout{{}, 2, 1, 3}, Layout{{0, 2, 1}, 4, 2, 2}}) {
    check_layout(l, 3);
    std::set<int64_t> seen;
    for (int64_t a = 0; a < e[0]; ++a)
      for (int64_t b = 0; b < e[1]; ++b)
        for (int64_t c = 0; c < e[2]; ++c) seen.insert(layout_offset(l, e, {a, b, c}));
    EXPECT_EQ(seen.size(), 70u) << l.str();
    EXPECT_LT(*seen.rbegin(), layout_elements(l, e)) << l.str();
  }
}

TEST(Layout, GroupsOfNeighboursAlongTheOtherAxis) {
  const Layout l{{}, 4, 2};
  EXPECT_EQ(layout_offset(l, {5, 8}, {3, 6}), 1 * 6 * 4 + 1 * 2 * 4 + 2 * 2 + 1);
  EXPECT_EQ(l.str(), "panels of 4 by 2");
}

TEST(Layout, TilesHavePanelsOfTheirOwn) {
  const Layout l{{}, 4, 1, 6};
  EXPECT_EQ(panel_columns(l, 13), 24);  // 6, 6 and 1 columns, 8 of panels each
  EXPECT_EQ(layout_elements(l, {5, 13}), 5 * 24);
  EXPECT_EQ(layout_offset(l, {5, 13}, {3, 11}), (8 + 4) * 5 + 3 * 4 + 1);
  EXPECT_EQ(l.str(), "panels of 4 in tiles of 6");
}

TEST(Layout, MistakesAreSaid) {
  EXPECT_THROW(check_layout({{0, 0}}, 2), Error);
  EXPECT_THROW(check_layout({{0}}, 2), Error);
  EXPECT_THROW(check_layout({{}, 8}, 1), Error);
  EXPECT_THROW(check_layout({{}, 0, 2}, 2), Error);
  EXPECT_THROW(check_layout({{}, 0, 1, 6}, 2), Error);
  EXPECT_TRUE((Layout{{0, 1}}).row_major());
  EXPECT_FALSE((Layout{{1, 0}}).row_major());
}

TEST(Layout, SlicesOfSlicesAreOneView) {
  Graph g;
  const TensorId x = g.add_input({DType::F32, {40, 50}});
  const TensorId a = g.add(OpKind::Slice, {x}, SliceAttrs{{3, 2}, {38, 47}, {2, 3}});
  const TensorId b = g.add(OpKind::Slice, {a}, SliceAttrs{{1, 5}, {18, 15}, {4, 2}});
  EXPECT_FALSE(slice_view(g, x));
  const std::optional<SliceView> view = slice_view(g, b);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->whole, x);
  // Row 3 + 2·(1 + 4·i), column 2 + 3·(5 + 2·j).
  EXPECT_EQ(view->layout.str(), "view at 267 by [400,6]");
  EXPECT_EQ(layout_offset(view->layout, extents(g.type(b).shape), {2, 1}), 21 * 50 + 23);
  EXPECT_FALSE(view->layout.row_major());
  Layout wrong = view->layout;
  EXPECT_THROW(check_layout(wrong, 3), Error);
  wrong.order = {0, 1};
  EXPECT_THROW(check_layout(wrong, 2), Error);
}

}  // namespace
}  // namespace tessera
