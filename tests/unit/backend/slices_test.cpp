// Slices are read where they lie: no copies of them, and the same results.
#include <gtest/gtest.h>

#include "backend/cpu/emit.h"
#include "backend/testing.h"
#include "base/error.h"
#include "ir/validate.h"

namespace tessera {
namespace {

// Right on every instruction set, with as many slices copied as expected; without layouts all are.
void expect_copies(const std::string& text, int expected, int slices) {
  const Graph graph = parse("graph g {\n" + text + "}");
  validate(graph);
  for (CpuIsa isa : runnable_isas()) expect_right(graph, isa);
  PlanOptions plain;
  plain.layout = false;
  for (const auto& [options, count] : {std::pair{PlanOptions{}, expected}, {plain, slices}}) {
    int copied = 0;
    for (const Task& t : emit_program(graph, best_isa(), options).plan.tasks)
      copied += t.kind == TaskKind::Code && graph.op(t.op).kind == OpKind::Slice ? 1 : 0;
    EXPECT_EQ(copied, count) << text;
  }
}

TEST(Slices, StencilReadsItsArrayInPlace) {
  expect_copies(R"(
    u = input : f32[19,23]
    n = slice u {starts=[0,1], stops=[17,22], steps=[1,1]}
    s = slice u {starts=[2,1], stops=[19,22], steps=[1,1]}
    w = slice u {starts=[1,0], stops=[18,21], steps=[1,1]}
    y = kernel n, s, w grid[x=2] {
      n = input : f32[17,21]
      a = iter n {imap={x:0}}
      s = input : f32[17,21]
      b = iter s {imap={x:0}}
      w = input : f32[17,21]
      c = iter w {imap={x:0}}
      ab = add a, b
      y = sub ab, c
      o = save y {omap={x:0}} : f32[17,21]
      return o
    } : f32[17,21]
    return y
  )",
                0, 3);
}

TEST(Slices, OfSlicesWithStepsAndOfIntermediates) {
  expect_copies(R"(
    x = input : f32[40,50]
    y = input : f32[10,9]
    e = exp x
    a = slice e {starts=[3,2], stops=[38,47], steps=[2,1]}
    b = slice a {starts=[2,5], stops=[12,41], steps=[1,4]}
    z = add b, y
    q = sum b {axes=[1], keepdims=false}
    return z, q
  )",
                0, 2);
}

TEST(Slices, ThatAreOutputsAreCopiedOnce) {
  expect_copies(R"(
    x = input : f32[12,30]
    a = slice x {starts=[0,0], stops=[12,15], steps=[1,1]}
    b = slice x {starts=[0,15], stops=[12,30], steps=[1,1]}
    z = mul a, b
    return z, b
  )",
                1, 2);
}

TEST(Slices, RowsForProductsAreReadInPlaceAndColumnsApartAreCopied) {
  const auto product = [](const std::string& step, const std::string& stop) {
    return R"(
    x = input : f32[20,200]
    w = input : f32[64,48]
    a = slice x {starts=[1,3], stops=[20,)" +
           stop + R"(], steps=[1,)" + step + R"(]}
    b = slice w {starts=[0,0], stops=[64,48], steps=[2,1]}
    y = matmul a, b
    return y
  )";
  };
  expect_copies(product("1", "35"), 0, 2);
  expect_copies(product("2", "67"), 1, 2);
}

TEST(Slices, TimesANumberInMemory) {
  expect_copies(R"(
    x = input : f32[70]
    k = input : f32[3]
    first = slice k {starts=[0], stops=[1], steps=[1]}
    scale = squeeze first {axes=[0]}
    near = slice x {starts=[0], stops=[68], steps=[1]}
    last = slice x {starts=[2], stops=[70], steps=[1]}
    y = mul scale, near
    z = div last, scale
    return y, z
  )",
                1, 3);
}

TEST(Slices, SeenInAnotherShapeAreCopied) {
  expect_copies(R"(
    x = input : f32[8,30]
    a = slice x {starts=[0,4], stops=[8,20], steps=[1,1]}
    r = reshape a {shape=[16,8]}
    y = exp r
    t = transpose a {perm=[1,0]}
    return y, t
  )",
                1, 1);
}

TEST(Slices, TakenOverMemoryIsNotTheirs) {
  // The product of equal shapes could be written over an operand, but not over a part of it that
  // another reads.
  expect_copies(R"(
    x = input : f32[16,16]
    e = exp x
    a = slice e {starts=[0,0], stops=[16,16], steps=[1,1]}
    b = slice e {starts=[1,0], stops=[16,16], steps=[1,1]}
    c = neg a
    d = neg b
    return c, d
  )",
                0, 2);
}

TEST(Slices, AreConcatenatedWhereTheyLie) {
  expect_copies(R"(
    x = input : f32[4,6,40]
    y = input : f32[4,6,32]
    a = slice x {starts=[0,0,3], stops=[4,6,20], steps=[1,1,1]}
    b = slice y {starts=[0,0,0], stops=[4,6,32], steps=[1,1,2]}
    c = slice x {starts=[0,1,0], stops=[4,5,40], steps=[1,1,1]}
    d = slice y {starts=[0,2,0], stops=[4,6,32], steps=[1,1,1]}
    ay = concat a, y {axis=2}
    by = concat b, y {axis=2}
    cd = concat c, d {axis=2}
    aa = concat a, a {axis=0}
    return ay, by, cd, aa
  )",
                0, 4);
}

}  // namespace
}  // namespace tessera
