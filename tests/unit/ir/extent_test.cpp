#include "ir/extent.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/text.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

std::string canonical(std::string_view text) {
  try {
    return SymbolicExtent::parse(text).dim().str();
  } catch (const Error& e) {
    return e.message();
  }
}

TEST(Extent, EqualOnesHaveOneText) {
  EXPECT_EQ(canonical("seq*2*batch+seq+3"), "batch*seq*2+seq+3");
  EXPECT_EQ(canonical("seq*batch*2+3+seq+past*-1"), "batch*seq*2+past*-1+seq+3");
  EXPECT_EQ(canonical("a+1+a*-1"), "1");
  EXPECT_EQ(canonical("seq*-1-3"), "seq*-1-3");
  EXPECT_EQ(canonical("seq-1"), "seq-1");
  for (const char* text : {"", "a+", "a*", "2a", "a-b", "a--1", "a b", "a*9223372036854775807*2"})
    EXPECT_NE(canonical(text).find("is no extent"), std::string::npos) << text;
  const auto n = [](const char* text) { return SymbolicExtent::parse(text); };
  EXPECT_EQ((n("a+1") * n("a-1")).dim().str(), "a*a-1");
  EXPECT_EQ((n("a+1") + n("a*-1")).dim(), Dim(1));
  EXPECT_EQ((n("a*b+b") * SymbolicExtent(4)).bound({{"a", 3}, {"b", 5}}).dim(), Dim(80));
  EXPECT_EQ(n("a*b+b").bound({{"b", 2}}).dim().str(), "a*2+2");
  std::string sum = "s0";
  for (int i = 1; i < 64; i++) sum += "+s" + std::to_string(i);
  EXPECT_EQ(canonical(sum + "+t"), "an extent has too many terms");
}

const char* kMerged = R"(graph g {
  x = input : f32[batch,seq,4]
  p = input : f32[batch,past,4]
  y = concat p, x {axis=1}
  rows = reshape y {shape=[batch*past+batch*seq,4]}
  e = exp rows
  z = reshape e {shape=[batch,past+seq,4]}
  return z
})";

TEST(Extent, AreExtentsOfPrograms) {
  const Graph g = parse(kMerged);
  EXPECT_EQ(g.type(g.outputs()[0]).str(), "f32[batch,past+seq,4]");
  EXPECT_EQ(parse(print(g)), g);
  const Graph b = bind_symbols(g, {{"batch", 2}, {"past", 3}, {"seq", 5}});
  EXPECT_EQ(b.type(b.outputs()[0]).str(), "f32[2,8,4]");
  const auto refused = [](const std::string& shape) {
    try {
      parse("graph g {\n x = input : f32[a,b]\n y = reshape x {shape=" + shape + "}\n return y\n}");
    } catch (const Error& e) {
      return e.message();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("[b*a]"), "accepted");
  for (const char* shape : {"[a+b]", "[a]", "[2]", "[a*b*2]"})
    EXPECT_NE(refused(shape).find("cannot tell whether"), std::string::npos) << shape;
  EXPECT_THROW(Graph("g").add_input({DType::F32, {Dim("b*a")}}, "x"), Error);
}

TEST(Extent, ProgramsOfThemAreCompared) {
  const Graph g = parse(kMerged);
  const Graph same = parse(R"(graph g {
  x = input : f32[batch,seq,4]
  p = input : f32[batch,past,4]
  y = concat p, x {axis=1}
  z = exp y
  return z
})");
  EXPECT_TRUE(Verifier(g).verify(same).equal());
  EXPECT_FALSE(Verifier(same).verify(bind_symbols(g, {{"batch", 2}})).equal());
  const Graph other =
      parse("graph g {\n x = input : f32[batch,seq,4]\n p = input : f32[batch,past,4]"
            "\n y = concat p, x {axis=1}\n z = relu y\n return z\n}");
  EXPECT_TRUE(Verifier(g).verify(other).refuted());
  const std::string flat = "graph g {\n x = input : f32[a*b]\n";
  const Graph minus = parse(flat + "y = neg x\n z = neg y\n return z\n}");
  EXPECT_TRUE(Verifier(minus).verify(parse(flat + "return x\n}")).equal());
}

}  // namespace
}  // namespace tessera
