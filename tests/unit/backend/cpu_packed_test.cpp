// Products of operands that are no weights: tiles that the kernel packs into panels for itself.
// Against the interpreter, on sizes that divide nothing, and what the code consists of.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/emit.h"
#include "backend/cpu/operands.h"
#include "backend/testing.h"
#include "base/text.h"
#include "counting.h"
#include "ir/build.h"
#include "ir/validate.h"

namespace tessera {
namespace {

constexpr DType kStored[] = {DType::BF16, DType::F32, DType::F64};

// What runs on this machine and packs tiles for a product of so many rows.
std::vector<CpuIsa> packing(int64_t rows) {
  std::vector<CpuIsa> out;
  for (CpuIsa isa : runnable_isas())
    if (packs_tile(isa, DType::F32, DType::BF16, rows, 1)) out.push_back(isa);
  return out;
}

// Attention in one pass over the keys in `loops` parts; keys are (d, s), or (s, d) if `turned`.
// Queries are in `rows` parts; `groups` of them share keys and values, along an axis of their own.
struct Sizes {
  int64_t b, groups, m, d, s, e, rows, loops;
  bool turned = false;
  DType dtype = DType::BF16;
};
Graph packed_attention(const Sizes& p) {
  const auto type = [&](const Shape& shape) { return Type{p.dtype, shape}.str(); };
  const int64_t mt = (p.m + p.rows - 1) / p.rows, st = (p.s + p.loops - 1) / p.loops;
  const std::string q = type({p.b, p.groups, p.m, p.d}), o = type({p.b, p.groups, p.m, p.e}),
                    k = p.turned ? type({p.b, 1, p.s, p.d}) : type({p.b, 1, p.d, p.s}),
                    v = type({p.b, 1, p.s, p.e});
  std::string g = "graph attention {\nQ = input : " + q + "\nK = input : " + k +
                  "\nV = input : " + v + "\nO = kernel Q, K, V grid[x=" + num(p.b) +
                  ", y=" + num(p.rows) + "] loops[i=" + num(p.loops) + "] {\nQ = input : " + q +
                  "\nq = iter Q {imap={x:0, y:2}} : " + type({1, p.groups, mt, p.d}) +
                  "\nK = input : " + k;
  if (p.turned) {
    g += "\nkr = iter K {imap={x:0}, fmap={i:2}} : " + type({1, 1, st, p.d}) +
         "\nk = transpose kr {perm=[0,1,3,2]}";
  } else {
    g += "\nk = iter K {imap={x:0}, fmap={i:3}} : " + type({1, 1, p.d, st});
  }
  g += "\nV = input : " + v + "\nv = iter V {imap={x:0}, fmap={i:2}} : " + type({1, 1, st, p.e}) +
       R"(
s = matmul q, k
m = reduce_max s {axes=[3], keepdims=true}
z = sub s, m
e = exp z
r = sum e {axes=[3], keepdims=true}
R = accum_rescale r, m {loops=[0]}
p = matmul e, v
P = accum_rescale p, m {loops=[0]}
o = div P, R
O = save o {omap={x:0, y:2}} : )" +
       o + "\nreturn O\n} : " + o + "\nreturn O\n}\n";
  return parse(g);
}

TEST(CpuPacked, Attention) {
  for (DType t : kStored)
    for (bool turned : {false, true}) {
      expect_right_everywhere(packed_attention({2, 1, 64, 64, 256, 64, 1, 2, turned, t}));
      expect_right_everywhere(packed_attention({1, 1, 33, 32, 300, 128, 1, 1, turned, t}));
    }
}

TEST(CpuPacked, SizesThatDivideNothing) {
  for (DType t : kStored)
    for (bool turned : {false, true}) {
      expect_right_everywhere(
          packed_attention({1, 1, 37, 19, 77, 21, 1, 3, turned, t}));  // odd depths, tails
      expect_right_everywhere(
          packed_attention({1, 1, 41, 33, 601, 47, 1, 2, turned, t}));  // of every kind
      expect_right_everywhere(
          packed_attention({2, 1, 70, 20, 50, 40, 2, 7, turned, t}));  // short last parts
      expect_right_everywhere(packed_attention({1, 1, 35, 1, 34, 16, 1, 1, turned, t}));
    }
}

TEST(CpuPacked, GroupsOfQueriesShareATile) {
  const Graph g = packed_attention({2, 3, 34, 32, 64, 32, 1, 2, true});
  expect_right_everywhere(g);
  for (CpuIsa isa : packing(34)) {
    const std::string source = emit_source(g, isa);
    // Packed where the tile changes, not once more for each group.
    const size_t loop = source.find("for (long l0", source.find("void k0"));
    const size_t groups = source.find("for (long q1", loop);
    EXPECT_LT(source.find("pack_turned<", loop), groups) << source;
    EXPECT_LT(source.find("pack_pairs<", loop), groups) << source;
  }
}

// Blocks that come one after another and read the same keys pack them once, whatever blocks a
// thread gets; the first block of a call always packs.
TEST(CpuPacked, NeighbouringBlocksShareTiles) {
  for (bool turned : {false, true}) {
    const Graph g = packed_attention({3, 1, 150, 32, 70, 32, 4, 3, turned});
    for (CpuIsa isa : packing(38)) {
      const Program program = emit_program(g, isa);
      EXPECT_EQ(count(program.source, "of != block / 4"), 2) << program.source;
      EXPECT_EQ(program.steps[0].together, 4);
      for (int threads : {1, 2, 5}) {
        KernelPool pool(threads);
        expect_right(g, isa, &pool);
      }
    }
  }
  // Keys of 2 MB are too much to keep, those of 0.5 MB are not.
  for (CpuIsa isa : packing(64)) {
    const Graph large = packed_attention({2, 1, 256, 64, 16384, 16, 4, 16, false});
    EXPECT_EQ(count(emit_source(large, isa), "of != block / 4"), 1);
  }
}

// Few rows are left to kernels that read the tile in place, and so is what lies near.
TEST(CpuPacked, WhatIsWorthIt) {
  for (CpuIsa isa : runnable_isas()) {
    EXPECT_FALSE(packs_tile(isa, DType::F32, DType::BF16, 12, 1)) << to_string(isa);
    EXPECT_EQ(packs_tile(isa, DType::F32, DType::BF16, 13, 1), isa == CpuIsa::Amx);
    EXPECT_EQ(packs_tile(isa, DType::F32, DType::BF16, 33, 1), panels_take_bf16(isa));
    EXPECT_FALSE(packs_tile(isa, DType::F32, DType::F16, 33, 1)) << to_string(isa);
    for (DType t : {DType::F32, DType::F64}) {
      EXPECT_FALSE(packs_tile(isa, t, t, 7, 1)) << to_string(isa);
      EXPECT_TRUE(packs_tile(isa, t, t, 8, 1)) << to_string(isa);
      EXPECT_FALSE(packs_tile(isa, t, t, 32, 1024)) << to_string(isa);
      EXPECT_TRUE(packs_tile(isa, t, t, 33, 1024)) << to_string(isa);
      EXPECT_FALSE(packs_tile(isa, t, t, 33, 64)) << to_string(isa);
    }
  }
  for (DType t : kStored)
    for (int64_t m : {7, 8, 12, 13, 32, 33})
      for (bool turned : {false, true})
        expect_right_everywhere(packed_attention({1, 1, m, 32, 264, 32, 1, 2, turned, t}));
}

TEST(CpuPacked, InstructionsThatTheLevelHas) {
  const Graph g = packed_attention({2, 1, 64, 64, 256, 64, 1, 2, false});
  for (CpuIsa isa : runnable_isas()) {
    const std::string source = emit_source(g, isa);
    const bool packs = panels_take_bf16(isa), tiles = isa == CpuIsa::Amx;
    EXPECT_EQ(count(source, "  pack_pairs<"), packs ? 2 : 0) << to_string(isa);
    EXPECT_EQ(count(source, "  tiles_bf16<"), tiles ? 2 : 0) << to_string(isa);
    EXPECT_EQ(count(source, "vdpbf16ps") > 0, packs && !tiles) << to_string(isa);
    // The exponentials are rounded as they are computed, and not split into two bf16.
    EXPECT_EQ(count(source, "  t_round_bf16("), packs ? 1 : 0) << to_string(isa);
    EXPECT_EQ(count(source, "t_low("), 0) << to_string(isa);
    // Nothing is copied into panels in memory.
    for (const Step& s : emit_program(g, isa).steps) EXPECT_FALSE(s.symbol.empty());
  }
}

// One tile under two products that contract different axes of it, an element-by-element user of the
// same tile, and a left operand that is a product itself.
TEST(CpuPacked, OneTileManyUses) {
  expect_right_everywhere(parse(R"(graph g {
  X = input : bf16[40,48]
  W = input : bf16[48,70]
  Y = kernel X, W grid[x=1] {
    X = input : bf16[40,48]
    W = input : bf16[48,70]
    x = iter X {} : bf16[40,48]
    w = iter W {} : bf16[48,70]
    p = matmul x, w : bf16[40,70]
    t = transpose w {perm=[1,0]} : bf16[70,48]
    c = const {value=1/8} : bf16[]
    h = mul p, c : bf16[40,70]
    q = matmul h, t : bf16[40,48]
    v = matmul p, t : bf16[40,48]
    s = sqr w : bf16[48,70]
    n = sum s {axes=[1]} : bf16[48]
    z = add q, n : bf16[40,48]
    u = add z, v : bf16[40,48]
    o = save u {} : bf16[40,48]
    return o
  } : bf16[40,48]
  return Y
}
)"));
}

// A computed value that is the left operand of one product and the right one of another.
TEST(CpuPacked, LeftHereRightThere) {
  expect_right_everywhere(parse(R"(graph g {
  X = input : bf16[48,48]
  W = input : bf16[48,48]
  Y = kernel X, W grid[x=1] {
    X = input : bf16[48,48]
    W = input : bf16[48,48]
    x = iter X {} : bf16[48,48]
    w = iter W {} : bf16[48,48]
    e = sqr x : bf16[48,48]
    p = matmul e, w : bf16[48,48]
    q = matmul x, e : bf16[48,48]
    y = add p, q : bf16[48,48]
    o = save y {} : bf16[48,48]
    return o
  } : bf16[48,48]
  return Y
}
)"));
}

// An operand that is no weight, in the blocks and loops that a product without a kernel gets.
TEST(CpuPacked, ProductsOfTheirOwn) {
  for (DType t : kStored) {
    Graph g;
    for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
             {{150, 513}, {513, 512}}, {{64, 700}, {700, 256}}, {{3, 40, 41}, {3, 41, 270}}}) {
      const TensorId x = g.add_input({t, a}), y = g.add_input({t, b});
      g.add_output(g.add(OpKind::Matmul, {x, y}));
    }
    expect_right_everywhere(g);
    if (t != DType::BF16) {
      for (CpuIsa isa : runnable_isas()) EXPECT_GT(count(emit_source(g, isa), "  pack_rows<"), 1);
    } else {
      for (CpuIsa isa : packing(40)) EXPECT_EQ(count(emit_source(g, isa), "  pack_pairs<"), 3);
    }
  }
}

// A linear layer whose weight is compared in every call packs it in every call, and keeps nothing.
TEST(CpuPacked, WeightsThatAreCompared) {
  for (DType t : {DType::F32, DType::F64})
    for (int64_t rows : {8, 40, 130}) {
      Graph g;
      const TensorId x = g.add_input({t, {rows, 270}}), w = g.add_input({t, {200, 270}}, "w", true),
                     b = g.add_input({t, {200}}, "b", true);
      const TensorId y = build::matmul(g, {x, build::transpose(g, w, {{1, 0}})});
      g.add_output(g.add(OpKind::Add, {y, b}));
      for (CpuIsa isa : runnable_isas()) {
        ModuleOptions options;
        options.isa = isa;
        options.plan.compared = true;
        const auto module = Module::compile(g, test_cache(), options);
        EXPECT_GT(count(module->source(), "  pack_columns<"), 0) << module->source();
        EXPECT_EQ(module->prepared_bytes(), 0) << module->source();
        EXPECT_TRUE(run_check(g, isa, nullptr, options.plan).passed);
      }
    }
}

// Rounding keeps what is special: scores of infinity and NaN reach the result as in f64.
TEST(CpuPacked, InfinityAndNaN) {
  const Graph g = parse(R"(graph g {
  X = input : bf16[48,32]
  W = input : bf16[32,32]
  Y = kernel X, W grid[x=1] {
    X = input : bf16[48,32]
    W = input : bf16[32,32]
    x = iter X {} : bf16[48,32]
    w = iter W {} : bf16[32,32]
    h = abs x : bf16[48,32]
    p = matmul h, w : bf16[48,32]
    o = save p {} : bf16[48,32]
    return o
  } : bf16[48,32]
  return Y
}
)");
  for (CpuIsa isa : runnable_isas()) {
    ModuleOptions options;
    options.isa = isa;
    const auto module = Module::compile(g, test_cache(), options);
    std::vector<uint16_t> x(48 * 32, float_bits16(DType::BF16, 0.5f)),
        w(32 * 32, float_bits16(DType::BF16, 0.25f)), y(48 * 32);
    x[0] = float_bits16(DType::BF16, -std::numeric_limits<float>::infinity());
    x[32] = 0x7fff;  // a NaN of ones
    const std::vector<const void*> in = {x.data(), w.data()};
    const std::vector<void*> out = {y.data()};
    module->run(in, out);
    for (size_t j = 0; j < 32; ++j) {
      EXPECT_EQ(y[j], 0x7f80) << to_string(isa);
      EXPECT_GT(y[32 + j] & 0x7fff, 0x7f80) << to_string(isa);
      EXPECT_EQ(y[64 + j], float_bits16(DType::BF16, 4)) << to_string(isa);
    }
  }
}

}  // namespace
}  // namespace tessera
