#include "driver/partition.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "ir/text.h"
#include "ir/validate.h"

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

TEST(Partition, CorpusSplicesBackToValidPrograms) {
  for (const auto& entry :
       std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/tests/corpus")) {
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    Graph g = parse(text.str());
    auto parts = partition(g);
    std::vector<Graph> same;
    for (const Part& p : parts) same.push_back(p.graph);
    Graph back = splice(g, parts, same);
    EXPECT_NO_THROW(validate(back));
    EXPECT_EQ(back.ops().size(), g.ops().size()) << entry.path() << "\n" << print(back);
  }
}

}  // namespace
}  // namespace tessera
