#include "layout_offset.h"
#include "plan/block_choice.h"

#include <gtest/gtest.h>

#include "block_random.h"
#include "plan/block_check.h"

namespace tessera {
namespace {

TEST(BlockChoice, NoLayoutCostsLess) {
  int compared = 0;
  for (uint64_t seed = 1000; seed < 1040; ++seed) {
    const Block b = RandomBlock(seed).make(3);
    const auto chosen = tile_layouts(b, {});
    for (size_t v = 0; v < b.values.size(); ++v) {
      if (!chosen[v]) continue;
      const auto cycles = [&](const TileLayout& tile) {
        return layout_cycles(b, {}, int(v), tile, kCyclesPerByte);
      };
      for (const TileLayout& other : possible_layouts(b, int(v)))
        EXPECT_LE(cycles(*chosen[v]), cycles(other))
            << "seed " << seed << ", " << text(other.layout);
      ++compared;
    }
  }
  EXPECT_GT(compared, 40);
}

// What is in registers has no layout.
TEST(BlockChoice, WithoutTilesThereIsNothingToChoose) {
  Block b = RandomBlock(1).make(2);
  for (BlockValue& v : b.values) v.registers = true;
  for (const auto& tile : tile_layouts(b, {})) EXPECT_FALSE(tile.has_value());
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
  for (const SharedLayout& l :
       {SharedLayout{}, SharedLayout{{1, 0}, 4, 0, 7}, SharedLayout{{}, 0, 3, 7},
        SharedLayout{{1, 0}, 0, 2, 8}, SharedLayout{{}, 8, 0, 7}}) {
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
  const SharedLayout l{{}, 0, 3, 7};
  for (int64_t r = 0; r < 16; ++r)
    for (int64_t c = 0; c < 8; ++c)
      EXPECT_EQ(shared_offset(l, {16, 64}, 2, {r, c * 8}), r * 128 + (c ^ r % 8) * 16);
}

}  // namespace
}  // namespace tessera
