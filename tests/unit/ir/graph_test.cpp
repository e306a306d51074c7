#include "ir/graph.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/block.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

std::string message(const std::string& statements) {
  try {
    parse("graph g {\n" + statements + "\n}");
  } catch (const Error& e) {
    return e.message();
  }
  return "accepted";
}

struct BadOp {
  const char* statements;
  const char* message;
};

const char* kGraphInputs =
    "x = input : f32[2,3]\n y = input : f32[3,4]\n h = input : f16[2,3]\n n = input : i64[2]\n"
    "b = input : bool[2]\n s = input : f32[N,3]\n v = input : f32[3]\n";

// One row per message of shape and dtype inference.
const BadOp kBadOps[] = {
    {"z = matmul x, v", "matmul: operands need rank 2 or more, got f32[2,3] and f32[3]"},
    {"z = matmul x, x", "matmul: inner dimensions differ: f32[2,3] and f32[2,3]"},
    {"z = add x, h",
     "add: operands must have one dtype, got f32[2,3] and f16[2,3] (insert a cast)"},
    {"z = add x, y", "add: shapes do not broadcast: f32[2,3] and f32[3,4]"},
    {"z = add b, b", "add: needs numbers, got bool[2] and bool[2]"},
    {"z = div n, n", "div: needs floating-point operands, got i64[2] and i64[2]"},
    {"z = exp n", "exp: needs floating-point operands, got i64[2]"},
    {"z = not x", "not: needs bool operands, got f32[2,3]"},
    {"z = where x, x, x", "where: the condition must be bool, got f32[2,3]"},
    {"z = sum x {axes=[2]}", "sum: axis 2 is out of range for rank 2"},
    {"z = sum x {axes=[0,-2]}", "sum: an axis is named twice"},
    {"z = sum x", "sum: names no axis to reduce"},
    {"z = transpose x {perm=[0]}", "transpose: perm needs one entry per axis of f32[2,3]"},
    {"z = transpose x {perm=[0,0]}", "transpose: an axis is named twice"},
    {"z = reshape x {shape=[4,2]}", "reshape: [2,3] does not have as many elements as [4,2]"},
    {"z = reshape s {shape=[6]}",
     "reshape: cannot tell whether [N,3] and [6] have as many elements"},
    {"z = broadcast x {shape=[3]}", "broadcast: f32[2,3] does not broadcast to [3]"},
    {"z = squeeze x {axes=[0]}", "squeeze: axis 0 of f32[2,3] is not 1"},
    {"z = concat x, y {axis=1}", "concat: operands differ outside axis 1: f32[2,3] and f32[3,4]"},
    {"z = concat x, v {axis=0}", "concat: operands must have one rank, got f32[2,3] and f32[3]"},
    {"z = stack x, y", "stack: operands must have one type, got f32[2,3] and f32[3,4]"},
    {"z = slice x {starts=[0,1], stops=[2,4]}", "slice: axis 1 of f32[2,3] has no elements 1:4:1"},
    {"z = slice s {starts=[0,0], stops=[2,3]}", "slice: axis 0 needs a known extent, not N"},
    {"z = pad x {low=[0,-1], high=[0,0]}", "pad: counts must be 0 or more"},
    {"z = repeat x {repeats=[1,0]}", "repeat: counts must be 1 or more"},
    {"z = gather x, v", "gather: indices must be i64 or i32, got f32[3]"},
    {"z = triu v", "triu: needs rank 2 or more, got f32[3]"},
    {"z = pow n {exponent=0.5}", "pow: integers need a non-negative integer exponent, not 0.5"},
    {"z = pow x {exponent=inf}", "pow: the exponent must be finite"},
    {"z = const {value=0.5} : i64[]", "const: 0.5 is not an integer"},
    {"z = const {value=2} : bool[]", "const: a bool constant is 0 or 1"},
    {"z = iota : bool[3]", "iota: bool has no range"},
    {"z = opaque x {function=\"f\"} : f32[0]",
     "type: zero-size dimension in f32[0]; tensors must not be empty"},
    {"z = concat_matmul x, x, y, x",
     "concat_matmul: inner dimensions differ: f32[2,3] and f32[2,3]"},
};

TEST(Infer, EveryMessage) {
  for (const BadOp& bad : kBadOps)
    EXPECT_EQ(message(std::string(kGraphInputs) + bad.statements + "\nreturn z"), bad.message);
}

TEST(Infer, SymbolicShapes) {
  Graph g = parse("graph g { x = input : f32[N,K] w = input : f32[K,4] y = matmul x, w : f32[N,4]\n"
                  "z = reshape y {shape=[4,N]} : f32[4,N] return z }");
  Graph bound = bind_symbols(g, {{"N", 5}, {"K", 7}});
  EXPECT_EQ(bound.type(bound.outputs()[0]).str(), "f32[4,5]");
  EXPECT_THROW(bind_symbols(g, {{"N", 0}}), Error);
}

std::string block(const std::string& statements, const std::string& result = "f32[6,10]") {
  return message(
      "X = input : f32[6,10]\nO = kernel X grid[x=2] loops[i=4] {\nX = input : f32[6,10]\n" +
      statements + "\n} : " + result + "\nreturn O");
}

// One row per message about block graphs: phases, tiles cut at the edge, structure.
TEST(Block, EveryMessage) {
  EXPECT_EQ(block("x = iter X {imap={x:0}}\no = save x {omap={x:0}} : f32[6,10]\nreturn o"),
            "accepted");
  EXPECT_EQ(block("x = iter X {imap={x:0}, fmap={i:1}}\no = save x {omap={x:0}, fmap={i:1}} : "
                  "f32[6,10]\nreturn o"),
            "accepted");
  EXPECT_EQ(
      block("x = iter X {imap={x:0}, fmap={i:1}}\no = save x {omap={x:0}} : f32[6,3]\nreturn o",
            "f32[6,3]"),
      "save o: stores a loop value; accumulate it first or map the loop to an axis (fmap)");
  EXPECT_EQ(
      block("x = iter X {imap={x:0}}\na = accum x\no = save a {omap={x:0}} : f32[6,10]\nreturn o"),
      "accum a: folds a loop that its operand does not vary with");
  EXPECT_EQ(block("x = iter X {imap={x:0}, fmap={i:1}}\na = accum x\no = save a {omap={x:0}} : "
                  "f32[6,3]\nreturn o",
                  "f32[6,3]"),
            "accum a: folds tiles of different sizes");
  EXPECT_EQ(
      block(
          "x = iter X {imap={x:0}, fmap={i:1}}\ns = sum x {axes=[1], keepdims=true}\na = accum s\n"
          "y = mul a, x\no = save y {omap={x:0}, fmap={i:1}} : f32[6,10]\nreturn o"),
      "mul y: mixes a value inside a loop with one folded over it");
  EXPECT_EQ(
      block(
          "x = iter X {imap={x:0}, fmap={i:1}}\ns = mean x {axes=[1], keepdims=true}\na = accum s\n"
          "o = save a {omap={x:0}} : f32[6,1]\nreturn o",
          "f32[6,1]"),
      "mean s: the mean over a cut tile is not a part of the whole mean; sum and scale");
  EXPECT_EQ(block("x = iter X {imap={x:0}}\no = save x {omap={x:0}} : f32[7,10]\nreturn o"),
            "save: a tile of f32[7,10] is [4,10], not f32[3,10]");
  EXPECT_EQ(block("x = iter X\no = save x : f32[6,10]\nreturn o"),
            "save: omap must map every grid dimension: blocks may not store the same elements");
  EXPECT_EQ(block("x = exp X\no = save x {omap={x:0}} : f32[12,10]\nreturn o", "f32[12,10]"),
            "exp x: reads an argument; take a tile of it with iter first");
  EXPECT_EQ(block("x = iter X {imap={x:0}}\nreturn x", "f32[3,10]"),
            "kernel O: its body returns a value that is not saved");
  EXPECT_EQ(block("x = iter X {imap={x:2}}\nreturn x"),
            "iter: imap names axis 2 of a tensor of rank 2");
  EXPECT_EQ(block("x = iter X {imap={y:0}}\nreturn x"),
            "iter: imap names a dimension that the block graph does not have");
}

TEST(Block, DifferentlyCutTilesDoNotMeet) {
  EXPECT_EQ(message("X = input : f32[10]\nY = input : f32[12]\nO = kernel X, Y grid[x=4] {\n"
                    "X = input : f32[10]\nY = input : f32[12]\nx = iter X {imap={x:0}}\n"
                    "y = iter Y {imap={x:0}}\nz = add x, y\no = save z {omap={x:0}} : f32[12]\n"
                    "return o }\nreturn O"),
            "add z: its operands' tiles are cut differently at the tensor's edge");
}

TEST(Block, TilesCoverATensorOnce) {
  for (int64_t extent : {1, 5, 7, 10, 16, 1024})
    for (int64_t grid : {1, 2, 3, 7})
      for (int64_t loop : {1, 2, 4, 5}) {
        Graph g = Graph::block({grid}, {loop});
        int64_t next = 0;
        for (int64_t b = 0; b < grid; b++)
          for (int64_t i = 0; i < loop; i++) {
            Interval t = tile({extent}, {0, -1, -1}, {0, -1, -1, -1}, g, {b}, {i})[0];
            if (t.size() == 0) continue;
            EXPECT_EQ(t.begin, next);
            next = t.end;
          }
        EXPECT_EQ(next, extent);
      }
}

TEST(Block, Memory) {
  const std::string text =
      "graph g { X = input : f32[6,10] O = kernel X grid[x=2] loops[i=5] {\nX = input : f32[6,10]\n"
      "x = iter X {imap={x:0}, fmap={i:1}}\ny = exp x\na = accum y {kind=concat, axis=1}\n"
      "o = save a {omap={x:0}} : f32[6,10]\nreturn o }\nreturn O }";
  Graph g = parse(text);
  EXPECT_NO_THROW(validate(g));
  const Graph& body = g.bodies()[0];
  EXPECT_EQ(block_memory(body).loop_bytes, 2 * 3 * 2 * 4 + 3 * 10 * 4);
}

TEST(Graph, RollbackRestoresTheValue) {
  Graph g = parse(std::string("graph g {\n") + kGraphInputs + "z = matmul x, y\nreturn z }");
  Graph before = g;
  Graph::Mark m = g.mark();
  TensorId t = g.add(OpKind::Exp, {TensorId(0)});
  g.add_output(t);
  EXPECT_FALSE(g == before);
  EXPECT_NE(structural_hash(g), structural_hash(before));
  g.rollback(m);
  EXPECT_TRUE(g == before);
  EXPECT_EQ(structural_hash(g), structural_hash(before));
}

TEST(Graph, DeadCodeGoes) {
  Graph g = parse(std::string("graph g {\n") + kGraphInputs +
                  "a = exp x\nz = matmul x, y\nc = exp a\nreturn z }");
  Graph clean = without_dead_code(g);
  EXPECT_EQ(clean.ops().size(), g.ops().size() - 2);
  EXPECT_EQ(clean.inputs().size(), g.inputs().size());
  EXPECT_NO_THROW(validate(clean));
}

TEST(Graph, KernelsAreMappedAndTheRestIsCopied) {
  const Graph g = parse(R"(graph g {
    X = input : f32[4,8]
    W = input {weight=true} : f32[4,8]
    y = add X, W
    a, b = kernel y grid[x=2] { y = input : f32[4,8] t = iter y {imap={x:0}} e = exp t
      a = save e {omap={x:0}} : f32[4,8] b = save t {omap={x:0}} : f32[4,8] return a, b }
    z = mul a, b
    return z, a })");
  EXPECT_TRUE(map_kernels(g, [&](const Op& op) { return g.body(op); }) == g);
  const Graph other = parse(R"(graph g {
    X = input : f32[4,8]
    Y, Z = kernel X grid[x=4] { y = input : f32[4,8] t = iter y {imap={x:0}}
      a = save t {omap={x:0}} : f32[4,8] b = save t {omap={x:0}} : f32[4,8] return a, b }
    return Y })");
  int kernels = 0;
  const Graph mapped = map_kernels(g, [&](const Op& op) {
    ++kernels;
    EXPECT_EQ(op.kind, OpKind::Kernel);
    return other.bodies()[0];
  });
  EXPECT_EQ(kernels, 1);
  EXPECT_FALSE(mapped == g);
  EXPECT_TRUE(mapped.bodies()[0] == other.bodies()[0]);
  EXPECT_TRUE(mapped.is_weight(mapped.inputs()[1]));
  EXPECT_FALSE(mapped.is_weight(mapped.inputs()[0]));
  for (size_t t = 0; t < g.tensors().size(); ++t)
    EXPECT_EQ(mapped.tensor(TensorId(t)).name, g.tensor(TensorId(t)).name);
}

TEST(Ops, EveryRowIsConsistent) {
  for (OpKind kind : all_op_kinds()) {
    EXPECT_EQ(op_from_name(name(kind)), kind);
    EXPECT_NE(info(kind).levels, 0u) << name(kind);
    EXPECT_TRUE(info(kind).max_arity == -1 || info(kind).max_arity >= info(kind).min_arity);
  }
}

}  // namespace
}  // namespace tessera
