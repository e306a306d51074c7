// Reductions split over the grid: found where cores would idle, not where they are busy, for any
// extent, and right on ragged parts.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "eval/eval.h"
#include "ir/block.h"
#include "ir/text.h"
#include "places.h"
#include "search/mugraph/mugraph.h"

namespace tessera {
namespace {

Target h200() { return find_target("h200", source_dir() + "/targets"); }

std::vector<Candidate> search_split(const Graph& g, const Target& target) {
  Context context;
  context.target = &target;
  CollectingSink sink;
  SearchReport report = Mugraph().run({g}, context, Budget{}, sink);
  EXPECT_EQ(report.stop, StopReason::Exhausted) << report.detail;
  EXPECT_EQ(report.pruned["not valid"], 0);
  return std::move(sink.candidates);
}

std::string shape(std::initializer_list<int64_t> dims) {
  std::string s;
  for (int64_t d : dims) s += (s.empty() ? "" : ",") + std::to_string(d);
  return "[" + s + "]";
}

Graph split_attention(int64_t batch, int64_t rows, int64_t depth, int64_t keys, const char* dtype) {
  std::string d = dtype;
  return parse("graph attention {\n  Q = input : " + d + shape({batch, rows, depth}) +
               "\n  K = input : " + d + shape({batch, depth, keys}) + "\n  V = input : " + d +
               shape({batch, keys, depth}) +
               "\n  s = matmul Q, K\n  e = exp s\n  z = sum e {axes=[2], keepdims=true}\n"
               "  p = div e, z\n  O = matmul p, V\n  return O\n}");
}

Graph linear(int64_t rows, int64_t k, int64_t columns, const char* dtype) {
  std::string d = dtype;
  return parse("graph linear {\n  X = input : " + d + shape({rows, k}) + "\n  W = input : " + d +
               shape({k, columns}) + "\n  O = matmul X, W\n  return O\n}");
}

// Blocks of the kernel along partial results that it stores; 0 where it stores none.
int64_t parts(const Graph& body) {
  for (const Op& op : body.ops()) {
    if (op.kind != OpKind::Save) continue;
    const auto& save = body.attrs<SaveAttrs>(op);
    for (size_t d = 0; d < body.grid().size(); ++d) {
      if (save.omap[d] < 0) continue;
      // A dimension with one element per block, which no output of the program has.
      const Dim& dim = save.type.shape[size_t(save.omap[d])];
      bool own = dim.extent == body.grid()[d];
      for (const Op& in : body.ops()) {
        if (in.kind != OpKind::Iter || body.attrs<IterAttrs>(in).imap[d] < 0) continue;
        const Type& t = body.type(in.inputs[0]);
        own = own && t.shape[size_t(body.attrs<IterAttrs>(in).imap[d])].extent > dim.extent;
      }
      if (own) return body.grid()[d];
    }
  }
  return 0;
}

bool is_split(const Graph& g) {
  for (const Graph& b : g.bodies()) {
    if (parts(b) > 1) return true;
  }
  return false;
}

// Operators of a kind in a block graph and its thread graphs.
int times(const Graph& g, OpKind kind) {
  int n = 0;
  for (const Op& op : g.ops()) n += op.kind == kind;
  for (const Graph& body : g.bodies()) n += times(body, kind);
  return n;
}

// FlashDecoding: one kernel over parts of the keys stores both sums (and maxima), another one
// combines them.
bool is_flash_decoding(const Graph& g) {
  if (g.bodies().size() != 2) return false;
  const Graph &first = g.bodies()[0], &second = g.bodies()[1];
  return parts(first) > 1 && times(first, OpKind::Matmul) == 2 && times(first, OpKind::Exp) >= 1 &&
         times(first, OpKind::Save) >= 2 && times(second, OpKind::Matmul) == 0 &&
         times(second, OpKind::Div) == 1;
}

TEST(Split, FlashDecodingAtBatchOneNotAt512) {
  std::vector<Candidate> one = search_split(split_attention(1, 8, 128, 8192, "f16"), h200());
  ASSERT_FALSE(one.empty());
  EXPECT_TRUE(is_flash_decoding(one[0].graph)) << print(one[0].graph);
  std::vector<Candidate> many = search_split(split_attention(512, 8, 128, 8192, "f16"), h200());
  ASSERT_FALSE(many.empty());
  EXPECT_FALSE(is_split(many[0].graph)) << print(many[0].graph);
  EXPECT_EQ(many[0].graph.bodies().size(), 1u);
}

TEST(Split, OnTwoCoresToo) {
  std::vector<Candidate> one =
      search_split(split_attention(1, 8, 128, 8192, "f32"), default_cpu_target());
  ASSERT_FALSE(one.empty());
  EXPECT_TRUE(is_flash_decoding(one[0].graph)) << print(one[0].graph);
  std::vector<Candidate> many =
      search_split(split_attention(64, 8, 128, 8192, "f32"), default_cpu_target());
  ASSERT_FALSE(many.empty());
  EXPECT_FALSE(is_split(many[0].graph)) << print(many[0].graph);
}

TEST(Split, AnyExtentOfALongReduction) {
  for (int64_t k : {11008, 14336, 16384, 12289}) {
    std::vector<Candidate> found = search_split(linear(16, k, 64, "f16"), h200());
    ASSERT_FALSE(found.empty()) << k;
    EXPECT_TRUE(is_split(found[0].graph)) << k << "\n" << print(found[0].graph);
    double whole = INFINITY;
    for (const Candidate& c : found) {
      if (!is_split(c.graph)) whole = std::min(whole, c.cost);
    }
    EXPECT_LT(found[0].cost, whole) << k;
  }
  // Loops cut any extent too: none of these is a power of two.
  for (int64_t k : {768, 5120, 11008, 14336}) {
    std::set<int64_t> iterations;
    for (const Candidate& c : search_split(linear(16, k, 4096, "f32"), default_cpu_target())) {
      for (const Graph& b : c.graph.bodies()) {
        for (const Op& op : b.ops()) {
          if (op.kind == OpKind::Accum) iterations.insert(b.loops()[0]);
        }
      }
    }
    EXPECT_FALSE(iterations.empty()) << k;
    EXPECT_EQ(iterations.count(1), 0u) << k;
  }
}

TEST(Split, RaggedPartsAreRight) {
  // Little memory and free launches, so that small sizes are split; extents that no part divides.
  Target tiny = parse_target(
      "target tiny\nkind cpu\ncores 6\nvector_bytes 16\nlaunch 1ns\nblock 1ns\niteration 1ns\n"
      "level dram capacity 16G bandwidth 10G\nlevel l1 capacity 512 bandwidth 100G per_core\n"
      "matmul f32 1G\npointwise f32 1G\n");
  int split = 0;
  for (int64_t keys : {11, 13, 17, 23}) {
    Graph g = split_attention(1, 2, 3, keys, "f64");
    std::vector<NDArray> in;
    uint64_t state = 88172645463325252ull + uint64_t(keys);
    for (TensorId t : g.inputs()) {
      std::vector<double> data(size_t(num_elements(g.type(t).shape)));
      for (double& x : data) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        x = double(state % 2001) / 1000 - 1;
      }
      in.push_back(NDArray::of(DType::F64, extents(g.type(t).shape), data));
    }
    std::vector<NDArray> want = eval(g, in);
    for (const Candidate& c : search_split(g, tiny)) {
      split += is_split(c.graph);
      std::vector<NDArray> got = eval(c.graph, in);
      for (size_t i = 0; i < want[0].reals.size(); ++i) {
        ASSERT_NEAR(got[0].reals[i], want[0].reals[i], 1e-12) << print(c.graph);
      }
    }
  }
  EXPECT_GT(split, 20);
}

// Two contractions that are added need one accumulator when the second is applied to partial sums
// inside the loop (Mirage, OSDI'25, Fig. 10).
TEST(Split, LoraWithOneAccumulator) {
  Graph g = parse(R"(graph lora {
  X = input : f32[16,256]
  W = input : f32[256,4096]
  A = input : f32[256,16]
  B = input : f32[16,4096]
  w = matmul X, W
  a = matmul X, A
  b = matmul a, B
  O = add w, b
  return O
})");
  int found = 0;
  for (const Candidate& c : search_split(g, default_cpu_target())) {
    if (c.graph.bodies().size() != 1) continue;
    int matmuls = 0, accumulators = 0;
    for (const Op& op : c.graph.bodies()[0].ops()) {
      matmuls += op.kind == OpKind::Matmul;
      accumulators += op.kind == OpKind::Accum;
    }
    found += matmuls == 3 && accumulators == 1;
  }
  EXPECT_GT(found, 0);
}

TEST(Split, LoraMergesItsWeightsForLargeBatches) {
  Graph g = parse(R"(graph lora {
  X = input : f16[4096,4096]
  W = input : f16[4096,4096]
  A = input : f16[4096,16]
  B = input : f16[16,4096]
  w = matmul X, W
  a = matmul X, A
  b = matmul a, B
  O = add w, b
  return O
})");
  std::vector<Candidate> found = search_split(g, h200());
  ASSERT_FALSE(found.empty());
  // W + A·B first: the kernel that reads X has one matrix product.
  const Graph& last = found[0].graph.bodies().back();
  int matmuls = 0;
  for (const Op& op : last.ops()) matmuls += op.kind == OpKind::Matmul;
  EXPECT_EQ(found[0].graph.bodies().size(), 2u) << print(found[0].graph);
  EXPECT_EQ(matmuls, 1) << print(found[0].graph);
}

}  // namespace
}  // namespace tessera
