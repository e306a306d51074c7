#include "driver/partition.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "places.h"

namespace tessera {
namespace {

TEST(Partition, AProgramThatOnlyComputesIsOnePart) {
  Graph g = parse(
      "graph g { x = input : f32[4,8] w = input : f32[8,3] y = exp x z = matmul y, w return z }");
  auto parts = partition(g);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_TRUE(parts[0].graph == g) << print(parts[0].graph);
}

TEST(Partition, MovementCuts) {
  // The middle reshape merges axes; what follows it must wait, though it also uses y directly.
  Graph g = parse(R"(graph g {
    x = input : f32[4,8]
    c = const {value=2} : f32[]
    y = mul x, c
    e = exp y
    r = reshape e {shape=[32]}
    s = mul r, c
    t = exp s
    q = reshape t {shape=[4,8]}
    z = add q, y
    m = sum z {axes=[1]}
    return m })");
  auto parts = partition(g);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].outputs.size(), 2u);  // y and e
  for (const Part& p : parts) EXPECT_NO_THROW(validate(p.graph));
  std::vector<Graph> same;
  for (const Part& p : parts) same.push_back(p.graph);
  Graph back = splice(g, parts, same);
  EXPECT_NO_THROW(validate(back));
  EXPECT_EQ(back.inputs().size(), g.inputs().size());
  EXPECT_EQ(back.type(back.outputs()[0]), g.type(g.outputs()[0]));
}

TEST(Partition, ReplacementsTakeTheirPlace) {
  Graph g = parse(
      "graph g { x = input : f32[4,8] y = exp x z = log y r = reshape z {shape=[32]} return r }");
  auto parts = partition(g);
  ASSERT_EQ(parts.size(), 1u);
  Graph identity = parse("graph h { x = input : f32[4,8] return x }");
  Graph out = splice(g, parts, {identity});
  EXPECT_TRUE(out == parse("graph g { x = input : f32[4,8] r = reshape x {shape=[32]} return r }"))
      << print(out);
  Graph wrong = parse("graph h { x = input : f32[8,4] return x }");
  EXPECT_THROW(splice(g, parts, {wrong}), Error);
}

// Attention of two heads on [b,s,h·d], with its output projection.
const char* kHeads = R"(graph heads {
    q = input : f32[2,6,8]
    k = input : f32[2,6,8]
    v = input : f32[2,6,8]
    W = input {weight=true} : f32[8,5]
    qs = sqr q
    q4 = reshape qs {shape=[2,6,2,4]}
    k4 = reshape k {shape=[2,6,2,4]}
    v4 = reshape v {shape=[2,6,2,4]}
    qh = transpose q4 {perm=[0,2,1,3]}
    kh = transpose k4 {perm=[0,2,3,1]}
    vh = transpose v4 {perm=[0,2,1,3]}
    s = matmul qh, kh
    e = exp s
    d = sum e {axes=[3], keepdims=true}
    p = div e, d
    o = matmul p, vh
    t = transpose o {perm=[0,2,1,3]}
    r = reshape t {shape=[2,6,8]}
    O = matmul r, W
    return O })";

TEST(Partition, PartsAreJoinedAcrossReshapesThatMergeOrSplit) {
  const Graph g = parse(kHeads);
  // Between the reshapes: attention, and the projection. The square alone is no part.
  EXPECT_EQ(partition(g).size(), 2u);
  const auto parts = partition_across_reshapes(g);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_NO_THROW(validate(parts[0].graph));
  // Transposes of k and v, which the reshape of q alone had kept outside, as well.
  EXPECT_EQ(parts[0].ops.size(), 13u) << print(parts[0].graph);
  int reshapes = 0;
  for (const Op& op : parts[0].graph.ops()) reshapes += op.kind == OpKind::Reshape;
  EXPECT_EQ(reshapes, 2) << "those of inputs stay outside\n" << print(parts[0].graph);
  EXPECT_EQ(partition(parts[0].graph).size(), 2u);
  EXPECT_TRUE(splice(g, parts, {parts[0].graph}).ops().size() == g.ops().size());
}

TEST(Partition, ReshapesThatRegroupAndPartsThatWouldNotBeConvexStayApart) {
  // [4,6] to [8,3] regroups.
  const Graph regroups = parse(R"(graph g { x = input : f32[4,6]
    y = exp x a = sum y {axes=[1], keepdims=true} b = div y, a
    r = reshape b {shape=[8,3]}
    z = exp r c = sum z {axes=[1], keepdims=true} d = div z, c return d })");
  EXPECT_EQ(partition_across_reshapes(regroups).size(), 2u);
  // From before the reshape one path leads around it through an operator that no part takes.
  const Graph around = parse(R"(graph g { x = input : f32[4,6] w = input : f32[24]
    y = exp x a = sum y {axes=[1], keepdims=true} b = div y, a
    r = reshape b {shape=[24]}
    c = cumsum b {axis=1}
    f = slice c {starts=[0,0], stops=[1,1], steps=[1,1]}
    h = reshape f {shape=[1]}
    z = mul r, w u = add z, h return u })");
  const auto apart = partition_across_reshapes(around);
  EXPECT_EQ(apart.size(), 2u);
  std::vector<Graph> same;
  for (const Part& p : apart) same.push_back(p.graph);
  EXPECT_NO_THROW(validate(splice(around, apart, same)));
}

TEST(Partition, JoinedPartsStaySmall) {
  // Layers of operators with a merge and a split between them: neighbours join, not all of them.
  std::string text = "graph layers {\n x = input : f32[4,6]\n";
  std::string last = "x";
  for (int i = 0; i < 8; i++) {
    const std::string n = std::to_string(i);
    for (int k = 0; k < 10; k++) {
      const std::string next = "y" + n + "_" + std::to_string(k);
      text += " " + next + " = exp " + last + "\n";
      last = next;
    }
    text += " r" + n + " = reshape " + last + " {shape=[" + (i % 2 ? "4,6" : "24") + "]}\n";
    last = "r" + n;
  }
  const Graph g = parse(text + " return " + last + "\n}");
  EXPECT_EQ(partition(g).size(), 8u);
  const auto parts = partition_across_reshapes(g);
  EXPECT_LT(parts.size(), 8u);
  EXPECT_GT(parts.size(), 1u);
  for (const Part& p : parts) EXPECT_LE(p.ops.size(), 48u);
}

TEST(Partition, CorpusSplicesBackToValidPrograms) {
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/corpus")) {
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    Graph g = parse(text.str());
    for (const auto& parts : {partition(g), partition_across_reshapes(g)}) {
      std::vector<Graph> same;
      for (const Part& p : parts) same.push_back(p.graph);
      Graph back = splice(g, parts, same);
      EXPECT_NO_THROW(validate(back));
      EXPECT_EQ(back.ops().size(), g.ops().size()) << entry.path() << "\n" << print(back);
    }
  }
}

}  // namespace
}  // namespace tessera
