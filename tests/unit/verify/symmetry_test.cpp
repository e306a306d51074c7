#include "verify/symmetry.h"

#include <cmath>

#include "eval/eval.h"
#include "ir/validate.h"
#include "verify/bench/random_program.h"
#include "verify/inputs.h"
#include "verify/programs.h"

namespace tessera {
namespace {

// Keeps random tiles of every class: at least one.
KeptTiles random_tiles(const Symmetry& s, Rng& rng) {
  KeptTiles kept;
  for (const AxisClass& c : s.classes()) {
    kept.emplace_back();
    for (int64_t t = 0; t < c.tiles; t++)
      if (rng.chance(0.6)) kept.back().push_back(t);
    if (kept.back().empty()) kept.back().push_back(rng.between(0, c.tiles - 1));
  }
  return kept;
}

// What the restricted program computes against the same elements of the whole one.
void expect_same_elements(const Graph& g, uint64_t seed) {
  const Symmetry symmetry({&g});
  Rng rng(seed);
  const KeptTiles kept = random_tiles(symmetry, rng);
  const auto small = symmetry.restrict(0, kept);
  ASSERT_TRUE(small) << print(g);
  validate(*small);
  const std::vector<NDArray> inputs = make_inputs(g, "normal", seed, integer_ranges(g, g, {-8, 8}));
  std::vector<NDArray> some;
  const auto in = symmetry.input_positions(kept), out = symmetry.output_positions(kept);
  for (size_t k = 0; k < inputs.size(); k++) some.push_back(select(inputs[k], in[k]));
  const std::vector<NDArray> all = eval(g, inputs), part = eval(*small, some);
  for (size_t k = 0; k < all.size(); k++) {
    const NDArray want = select(all[k], out[k]);
    ASSERT_EQ(want.shape, part[k].shape);
    EXPECT_EQ(want.ints, part[k].ints) << print(g) << print(*small);
    for (size_t i = 0; i < want.reals.size(); i++) {
      const double x = want.reals[i], y = part[k].reals[i];
      if (!std::isfinite(x)) continue;
      ASSERT_LE(std::fabs(x - y), 1e-9 * (1 + std::fabs(x))) << print(g) << print(*small);
    }
  }
}

// Positions of `whole` at which every element comes from the position of `part` that `map` says.
NDArray repeated(const NDArray& part, const Repeats& map) {
  KeptPositions positions;
  for (size_t d = 0; d < map.size(); d++) positions.push_back(map[d]);
  return select(part, positions);
}

TEST(Symmetry, RepeatedTilesAreComputedEverywhere) {
  int repeats = 0;
  for (uint64_t seed = 1; seed <= 800; seed++) {
    RandomProgramOptions options;
    options.kernel_chance = 0.5;
    options.max_extent = 12;
    const Graph g = random_program(seed, options);
    const Symmetry symmetry({&g});
    Rng rng(seed);
    const KeptTiles kept = random_tiles(symmetry, rng);
    const auto small = symmetry.restrict(0, kept);
    ASSERT_TRUE(small);
    const std::vector<NDArray> some =
        make_inputs(*small, "normal", seed, integer_ranges(g, g, {-8, 8}));
    const Symmetry::Spread spread = symmetry.spread(kept, rng);
    std::vector<NDArray> inputs;
    for (size_t k = 0; k < some.size(); k++) inputs.push_back(repeated(some[k], spread.inputs[k]));
    const std::vector<NDArray> all = eval(g, inputs), part = eval(*small, some);
    for (size_t k = 0; k < all.size(); k++) {
      const NDArray want = repeated(part[k], spread.outputs[k]);
      ASSERT_EQ(want.shape, all[k].shape);
      repeats += part[k].shape != all[k].shape;
      ASSERT_EQ(want.ints, all[k].ints) << print(g);
      for (size_t i = 0; i < want.reals.size(); i++)
        if (const double x = want.reals[i]; std::isfinite(x)) {
          ASSERT_LE(std::fabs(x - all[k].reals[i]), 1e-9 * (1 + std::fabs(x)))
              << "seed " << seed << "\n"
              << print(g) << print(*small);
        }
    }
  }
  EXPECT_GT(repeats, 300);
}

TEST(Symmetry, RestrictedProgramsComputeTheSameElements) {
  int restricted = 0, kernels = 0;
  for (uint64_t seed = 1; seed <= 1500; seed++) {
    RandomProgramOptions options;
    options.kernel_chance = 0.5;
    options.max_extent = 12;
    const Graph g = random_program(seed, options);
    expect_same_elements(g, seed);
    if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "seed " << seed;
    const bool any = !Symmetry({&g}).classes().empty();
    restricted += any;
    kernels += any && !g.bodies().empty();
  }
  EXPECT_GT(restricted, 700);
  EXPECT_GT(kernels, 100);
}

TEST(Symmetry, TilesOfGridsGoTogether) {
  const Graph plain = program(
      "x = input : f32[8,32]; w = input : f32[32,96]; y = matmul x, w : f32[8,96]; return y");
  EXPECT_EQ(Symmetry({&plain}).classes().size(), 2u);  // rows and columns
  const Graph tiled = parse(R"(graph p {
  x = input : f32[8,32]
  w = input : f32[32,96]
  y = kernel x, w grid[x=6] loops[i=4] {
    x = input : f32[8,32]
    w = input : f32[32,96]
    a = iter x {fmap={i:1}}
    b = iter w {imap={x:1}, fmap={i:0}}
    p = matmul a, b
    s = accum p
    o = save s {omap={x:1}} : f32[8,96]
    return o
  }
  return y
})",
                            "test");
  const Symmetry s({&plain, &tiled});
  std::vector<int64_t> tiles;
  for (const AxisClass& c : s.classes()) tiles.push_back(c.tiles);
  EXPECT_EQ(tiles, (std::vector<int64_t>{8, 6, 16}));  // rows, blocks, columns of a block
  const auto kept = s.choose(0, 2, Rng(1));
  ASSERT_TRUE(kept);
  const auto a = s.restrict(0, *kept), b = s.restrict(1, *kept);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->type(a->outputs()[0]).str(), "f32[2,4]");
  EXPECT_EQ(b->type(b->outputs()[0]).str(), "f32[2,4]");
  EXPECT_EQ(b->bodies()[0].grid()[0], 2);
}

TEST(Symmetry, WhatLooksAcrossAnAxisFixesIt) {
  for (const char* text : {
           "x = input : f32[8,4]; y = cumsum x {axis=0} : f32[8,4]; return y",
           "x = input : f32[8,4]; y = sum x {axes=[0]} : f32[4]; return y",
           "x = input : f32[8,4]; y = slice x {starts=[1,0], stops=[8,4], steps=[1,1]} : f32[7,4];"
           "return y",
           "x = input : f32[8,4]; y = concat x, x {axis=0} : f32[16,4]; return y",
           "x = input : f32[8,4]; y = pad x {low=[1,0], high=[0,0], value=0} : f32[9,4]; return y",
       }) {
    const Graph g = program(text);
    const Symmetry s({&g});
    ASSERT_EQ(s.classes().size(), 1u) << text;
    EXPECT_EQ(s.classes()[0].tiles, 4) << text;  // the columns only
  }
  const Graph triangle = program("x = input : f32[8,8]; y = tril x {k=0} : f32[8,8]; return y");
  EXPECT_TRUE(Symmetry({&triangle}).classes().empty());
}

// Channels are summed over: only batches and the channels of results are tiles.
TEST(Symmetry, ConvolutionsKeepWhatTheySumOver) {
  for (const char* text : {
           "x = input : f32[3,8,9]; w = input : f32[6,8,3]; y = conv x, w : f32[3,6,7]; return y",
           "x = input : f32[3,8,9]; w = input : f32[8,6,3]; y = conv_transpose x, w : f32[3,6,11];"
           "return y",
           // Channels between convolutions are summed over too.
           "x = input : f32[3,5,9,9]; u = input : f32[4,5,3,3]; v = input : f32[6,4,3,3];"
           "a = conv x, u {low=[2,2], high=[2,2], dilations=[2,2]} : f32[3,4,9,9];"
           "b = relu a : f32[3,4,9,9];"
           "y = conv b, v {low=[2,2], high=[2,2], dilations=[2,2]} : f32[3,6,9,9]; return y",
       }) {
    const Graph g = program(text);
    const Symmetry symmetry({&g});
    std::vector<int64_t> tiles;
    for (const AxisClass& c : symmetry.classes()) tiles.push_back(c.tiles);
    EXPECT_EQ(tiles, (std::vector<int64_t>{3, 6})) << text;
    for (uint64_t seed = 1; seed <= 5; seed++) expect_same_elements(g, seed);
    // Smaller instances have fewer.
    const size_t all = Symmetry({&g}, Folds::Restricted).classes().size();
    EXPECT_EQ(all, g.inputs().size() == 2 ? 3u : 4u) << text;
  }
  const Graph grouped = program("x = input : f32[3,8,9]; w = input : f32[6,4,3];"
                                "y = conv x, w {groups=2} : f32[3,6,7]; return y");
  EXPECT_EQ(Symmetry({&grouped}).classes().size(), 1u);
  expect_same_elements(grouped, 1);
}

// Elements at two different rows meet in x·xᵀ: one row would show the diagonal only.
TEST(Symmetry, TensorsWithAnAxisTwiceKeepTwoTiles) {
  const Graph g = program("x = input : f32[64,4]; t = transpose x {perm=[1,0]} : f32[4,64];"
                          "y = matmul x, t : f32[64,64]; return y");
  const Symmetry s({&g});
  ASSERT_EQ(s.classes().size(), 1u);
  EXPECT_EQ(s.classes()[0].most_axes, 2);
  const auto kept = s.choose(0, 1, Rng(1));
  ASSERT_TRUE(kept);
  EXPECT_EQ((*kept)[0].size(), 2u);
}

// Streaming stores: the loop is one more cut, inside the blocks'.
TEST(Symmetry, LoopsThatStreamAreTiles) {
  const Graph g = parse(R"(graph p {
  x = input : f32[8,96]
  y = kernel x grid[x=2] loops[i=6] {
    x = input : f32[8,96]
    a = iter x {imap={x:1}, fmap={i:1}}
    e = exp a
    o = save e {omap={x:1}, fmap={i:1}} : f32[8,96]
    return o
  }
  return y
})",
                        "test");
  const Symmetry s({&g});
  std::vector<int64_t> tiles;
  for (const AxisClass& c : s.classes()) tiles.push_back(c.tiles);
  EXPECT_EQ(tiles, (std::vector<int64_t>{8, 2, 6, 8}));  // rows, blocks, iterations, columns
  const auto kept = s.choose(0, 2, Rng(1));
  ASSERT_TRUE(kept);
  const auto part = s.restrict(0, *kept);
  ASSERT_TRUE(part);
  EXPECT_EQ(part->type(part->outputs()[0]).str(), "f32[2,8]");
  EXPECT_EQ(part->bodies()[0].loops()[0], 2);
}

TEST(Symmetry, BlocksThatDoNotDivideAnAxisKeepItWhole) {
  const Graph g = parse(R"(graph p {
  x = input : f32[10,32]
  y = kernel x grid[x=4] {
    x = input : f32[10,32]
    a = iter x {imap={x:0}}
    e = exp a
    o = save e {omap={x:0}} : f32[10,32]
    return o
  }
  return y
})",
                        "test");
  const Symmetry s({&g});
  ASSERT_EQ(s.classes().size(), 1u);
  EXPECT_EQ(s.classes()[0].tiles, 32);
}

// Choosing among many tiles takes time in proportion to them.
TEST(Symmetry, ManyTilesAreChosen) {
  const Graph g =
      parse("graph f {\n  a = input : f32[4000000]\n  b = exp a\n  return b\n}", "test");
  const Symmetry s({&g});
  ASSERT_EQ(s.classes().size(), 1u);
  const auto kept = s.choose(3e7, 2, Rng(1));
  ASSERT_TRUE(kept);
  const std::vector<int64_t>& tiles = kept->front();
  EXPECT_GT(tiles.size(), 200000u);
  EXPECT_EQ(std::adjacent_find(tiles.begin(), tiles.end(), std::greater_equal<>()), tiles.end());
  EXPECT_EQ(tiles.front(), 0);
  EXPECT_EQ(tiles.back(), 3999999);
}

}  // namespace
}  // namespace tessera
