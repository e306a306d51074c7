#include "layout_offset.h"
#include "plan/block_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "block_random.h"
#include "plan/block_check.h"

namespace tessera {
namespace {

using namespace testing;

// The least over all walks of all steps and all options of all values.
double least_of_all(const Block& block, const BlockPrices& prices) {
  BlockChoice c;
  c.option.assign(block.values.size(), -1);
  c.walk.assign(block.steps.size(), 0);
  std::vector<size_t> walks(block.steps.size(), 1);
  for (const PricedAccess& a : prices.accesses)
    if (!a.cycles.empty()) walks[size_t(a.step)] = a.cycles.size();
  std::vector<std::pair<int*, int>> digits;
  for (size_t s = 0; s < walks.size(); ++s) digits.emplace_back(&c.walk[s], int(walks[s]));
  for (size_t v = 0; v < block.values.size(); ++v) {
    if (prices.options[v].empty()) continue;
    c.option[v] = 0;
    digits.emplace_back(&c.option[v], int(prices.options[v].size()));
  }
  double least = INFINITY;
  for (;;) {
    least = std::min(least, choice_cycles(block, prices, c));
    size_t d = 0;
    while (d < digits.size() && ++*digits[d].first == digits[d].second) *digits[d++].first = 0;
    if (d == digits.size()) return least;
  }
}

TEST(BlockChoice, TheProgramFindsWhatTryingEverythingFinds) {
  int compared = 0;
  for (uint64_t seed = 1000; compared < 40 && seed < 1400; ++seed) {
    const Block b = RandomBlock(seed).make(3);
    const BlockPrices prices = price_block(b, {}, {});
    double combinations = 1;
    for (const auto& o : prices.options) combinations *= double(std::max<size_t>(1, o.size()));
    std::vector<double> walks(b.steps.size(), 1);
    for (const PricedAccess& a : prices.accesses)
      walks[size_t(a.step)] = std::max<double>(1, double(a.cycles.size()));
    for (double w : walks) combinations *= w;
    if (combinations > 60'000 || combinations < 30) continue;
    const BlockChoice chosen = choose_block(b, prices);
    const double least = least_of_all(b, prices);
    EXPECT_NEAR(chosen.cycles, least, 1e-6 * least) << "seed " << seed;
    EXPECT_TRUE(chosen.optimal);
    ++compared;
  }
  EXPECT_EQ(compared, 40);
}

// Nothing but values of registers, or nothing at all: the choice is empty, not impossible.
TEST(BlockChoice, WithoutTilesThereIsNothingToChoose) {
  Block b = RandomBlock(1).make(2);
  b.values.clear();
  b.steps.clear();
  b.loops.clear();
  const BlockChoice chosen = choose_block(b, price_block(b, {}, {}));
  EXPECT_TRUE(chosen.optimal);
  EXPECT_TRUE(chosen.option.empty());
  EXPECT_EQ(chosen.cycles, 0);
}

// One warp reads 32 words, each `stride` words after the one before it.
TEST(BlockChoice, WavefrontsAreThoseOfTheBanks) {
  const auto of = [](int64_t stride_bytes, int bytes, int lanes = 32) {
    std::vector<int64_t> at;
    for (int64_t l = 0; l < lanes; ++l) at.push_back(l * stride_bytes);
    const Wavefronts w = wavefronts(at, bytes, {});
    return std::pair<int64_t, int64_t>(w.taken, w.least);
  };
  using P = std::pair<int64_t, int64_t>;
  EXPECT_EQ(of(4, 4), P(1, 1));
  EXPECT_EQ(of(0, 4), P(1, 1));     // a broadcast
  EXPECT_EQ(of(2, 2), P(1, 1));     // two lanes share a word
  EXPECT_EQ(of(8, 4), P(2, 1));     // every other bank
  EXPECT_EQ(of(128, 4), P(32, 1));  // a column of rows of 128 bytes
  EXPECT_EQ(of(132, 4), P(1, 1));   // padded by a word
  EXPECT_EQ(of(16, 16), P(4, 4));   // four groups of eight lanes
  EXPECT_EQ(of(128, 16), P(32, 4));
  EXPECT_EQ(of(144, 16), P(4, 4));
  EXPECT_EQ(of(8, 8), P(2, 2));
  EXPECT_EQ(of(256, 4, 3), P(3, 1));
}

// Layouts have as many places as elements, and rows of 16 bytes stay together.
TEST(BlockChoice, LayoutsPlaceEveryElementOnce) {
  for (const SharedLayout& l : {SharedLayout{}, SharedLayout{{1, 0}, 4, 0, 0, 7},
                                SharedLayout{{}, 0, 0, 3, 7}, SharedLayout{{1, 0}, 0, 0, 2, 8},
                                SharedLayout{{}, 0, 64, 3, 7}, SharedLayout{{}, 8, 0, 0, 7}}) {
    for (const std::vector<int64_t>& extents :
         {std::vector<int64_t>{24, 128}, {64, 64}, {8, 192}}) {
      const std::vector<int64_t> at = shared_offsets(l, extents, 2);
      std::vector<bool> taken(size_t(shared_bytes(l, extents, 2)), false);
      for (int64_t i = 0; i < extents[0]; ++i) {
        for (int64_t j = 0; j < extents[1]; ++j) {
          const int64_t o = at[size_t(i * extents[1] + j)];
          ASSERT_EQ(o, shared_offset(l, extents, 2, {i, j}));
          ASSERT_LT(o + 1, int64_t(taken.size())) << text(l);
          EXPECT_FALSE(taken[size_t(o)]) << text(l);
          taken[size_t(o)] = true;
          if (l.order.empty() && l.pad % 8 == 0 && j % 8 != 0) {
            EXPECT_EQ(o, at[size_t(i * extents[1] + j - 1)] + 2);
          }
        }
      }
    }
  }
}

// PTX, 128-byte swizzling of tensor maps: 16-byte piece c of row r lies at c ^ (r % 8).
TEST(BlockChoice, SwizzleOf128BytesIsThatOfTensorMaps) {
  const SharedLayout l{{}, 0, 64, 3, 7};
  for (int64_t r = 0; r < 16; ++r)
    for (int64_t c = 0; c < 8; ++c)
      EXPECT_EQ(shared_offset(l, {16, 128}, 2, {r, c * 8 + 64}),
                16 * 128 + r * 128 + (c ^ r % 8) * 16);
}

}  // namespace
}  // namespace tessera
