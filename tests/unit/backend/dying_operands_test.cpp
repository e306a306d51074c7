// Inside a kernel an element-by-element result takes over the memory of an operand that nobody
// reads afterwards, and only then. Exponentials of what is left below a maximum are accurate.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "backend/testing.h"
#include "ir/validate.h"

namespace tessera {
namespace {

// Exponentials `e` of scores `s`, with what else is computed before and after them.
Graph scores(const std::string& before, const std::string& after) {
  std::string g = R"(graph scores {
  A = input : f32[2,20,24]
  B = input : f32[2,24,20]
  O, P = kernel A, B grid[x=2] loops[i=2] {
    A = input : f32[2,20,24]
    B = input : f32[2,24,20]
    a = iter A {imap={x:0}} : f32[1,20,24]
    b = iter B {imap={x:0}, fmap={i:2}} : f32[1,24,10]
    bt = transpose b {perm=[0,2,1]}
    h = const {value=1/16} : f32[]
    ah = mul a, h
    s = matmul ah, b
    BEFORE
    z = neg s
    e = exp z
    AFTER
    p = matmul e, bt
    o = accum p {kind=sum, loops=[0]}
    q = accum u {kind=sum, loops=[0]}
    O = save o {omap={x:0}} : f32[2,20,24]
    P = save q {omap={x:0}} : f32[2,20,24]
    return O, P
  } : f32[2,20,24], f32[2,20,24]
  return O, P
})";
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"BEFORE", before}, {"AFTER", after}})
    g.replace(g.find(from), from.size(), to);
  const Graph graph = parse(g);
  validate(graph);
  return graph;
}

bool in_place(const Graph& graph) {
  return emit_source(graph, best_isa()).find("is written over") != std::string::npos;
}

const char* const kMaximum = "k = reduce_max s {axes=[2], keepdims=true}\n";
const char* const kUse = "ez = mul e, k\nu = matmul ez, bt\n";

TEST(DyingOperands, AreWrittenOver) {
  const Graph graph = scores(kMaximum, kUse);
  EXPECT_TRUE(in_place(graph));
  for (CpuIsa isa : runnable_isas()) expect_right(graph, isa);
}

TEST(DyingOperands, ButNotWhereTheyAreReadLater) {
  const Graph graph = scores("", std::string(kMaximum) + kUse);
  EXPECT_FALSE(in_place(graph));
  for (CpuIsa isa : runnable_isas()) expect_right(graph, isa);
}

// A value less its transpose, of `rows` rows: the transpose is read out of order from that value
// itself where its rows are short, and from a tile of its own where they are not.
Graph less_transposed(int rows) {
  std::string g = R"(graph square {
  A = input : f32[2,ROWS,24]
  O = kernel A grid[x=2] {
    A = input : f32[2,ROWS,24]
    a = iter A {imap={x:0}} : f32[1,ROWS,24]
    at = transpose a {perm=[0,2,1]}
    h = const {value=1/16} : f32[]
    ah = mul a, h
    m = matmul ah, at
    w = const {value=1/8} : f32[]
    n = reduce_max m {axes=[1], keepdims=true}
    s = mul n, w
    r = sub m, s
    s2 = matmul r, m
    t = transpose s2 {perm=[0,2,1]}
    z = sub s2, t
    zz = mul z, w
    zzz = mul zz, w
    e = tanh zzz
    o = matmul e, a
    O = save o {omap={x:0}} : f32[2,ROWS,24]
    return O
  } : f32[2,ROWS,24]
  return O
})";
  const std::string rows_text = std::to_string(rows);
  for (size_t at; (at = g.find("ROWS")) != std::string::npos;) g.replace(at, 4, rows_text);
  const Graph graph = parse(g);
  validate(graph);
  return graph;
}

TEST(DyingOperands, NorWhereElementsAreReadOutOfOrder) {
  const Graph graph = less_transposed(7);
  EXPECT_FALSE(in_place(graph));
  for (CpuIsa isa : runnable_isas()) expect_right(graph, isa);
}

TEST(DyingOperands, AlsoWhereTheirTransposeHasATileOfItsOwn) {
  const Graph graph = less_transposed(20);
  EXPECT_TRUE(in_place(graph));
  for (CpuIsa isa : runnable_isas()) expect_right(graph, isa);
}

// exp(x - max x): below the maximum the shorter polynomial of the rescaled sums is used.
TEST(ExpDown, IsAccurateAndNeverNegative) {
  constexpr int64_t kColumns = 4096;
  const Graph graph = parse(R"(graph down {
  X = input : f32[4,4096]
  O = kernel X grid[x=4] {
    X = input : f32[4,4096]
    x = iter X {imap={x:0}} : f32[1,4096]
    m = reduce_max x {axes=[1], keepdims=true}
    z = sub x, m
    e = exp z
    O = save e {omap={x:0}} : f32[4,4096]
    return O
  } : f32[4,4096]
  return O
})");
  std::vector<float> in(4 * kColumns), out(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    const double part = double(i % kColumns) / (kColumns - 1);
    const double span[] = {100, 2, 88.5, 1e-3};
    in[i] = float(-part * span[i / kColumns]);
  }
  in[7] = -INFINITY;
  in[8] = -FLT_MAX;
  for (CpuIsa isa : runnable_isas()) {
    ModuleOptions options;
    options.isa = isa;
    const auto module = Module::compile(graph, test_cache(), options);
    ASSERT_NE(module->source().find("t_exp_down("), std::string::npos);
    std::vector<const void*> inputs{in.data()};
    std::vector<void*> outputs{out.data()};
    module->run(inputs, outputs);
    for (size_t i = 0; i < in.size(); ++i) {
      const double want = std::exp(double(in[i]));
      ASSERT_GE(out[i], 0.0f);
      ASSERT_NEAR(out[i], want, want * 1.3 * FLT_EPSILON * 0.75 + FLT_MIN)
          << to_string(isa) << " at " << in[i];
    }
    EXPECT_EQ(out[7], 0.0f);
    EXPECT_EQ(out[8], 0.0f);
    std::vector<float> nan = in;
    nan[kColumns + 3] = NAN;
    inputs[0] = nan.data();
    module->run(inputs, outputs);
    for (int64_t i = kColumns; i < 2 * kColumns; ++i)
      ASSERT_TRUE(std::isnan(out[size_t(i)])) << to_string(isa) << " at " << i;
  }
}

}  // namespace
}  // namespace tessera
