// When operators of a block graph run: nested loops, loops one after another, and what no order of
// the loops can compute.
#include "ir/block_schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

Graph block_of(const std::string& loops, const std::string& statements) {
  const Graph g =
      parse("graph g {\n X = input : f32[6,20]\n O = kernel X grid[x=1] loops[" + loops +
            "] {\n X = input : f32[6,20]\n" + statements + "\n return o\n }\n return O\n}");
  return g.bodies()[0];
}

// Operators by name, loops in braces.
std::string order(const Graph& g, const BlockSchedule& s, size_t body = 0) {
  std::string text;
  for (const LoopBody::Step& step : s.bodies[body].steps) {
    text += text.empty() ? "" : " ";
    if (step.body < 0) {
      text += g.tensor(g.op(step.op).result()).name;
    } else {
      text += "loop" + std::to_string(s.bodies[size_t(step.body)].loop) + "{" +
              order(g, s, size_t(step.body)) + "}";
    }
  }
  return text;
}

TEST(BlockSchedule, LoopsOneAfterAnother) {
  const Graph g =
      block_of("i=4, j=5", "a = iter X {fmap={i:1}}\n s = sum a {axes=[1], keepdims=true}\n"
                           "S = accum s {loops=[0]}\n r = rsqrt S\n b = iter X {fmap={j:1}}\n"
                           "y = mul b, r\n o = save y {fmap={j:1}} : f32[6,20]");
  const BlockSchedule s = block_schedule(g);
  EXPECT_EQ(order(g, s), "loop0{a s S} r loop1{b y o}");
  ASSERT_EQ(s.bodies.size(), 3u);
  EXPECT_EQ(s.bodies[1].accumulators.size(), 1u);
  EXPECT_TRUE(s.bodies[2].accumulators.empty());
  EXPECT_EQ(total_iterations(g, s), 9);
}

// The order of execution follows the values, not the list of loops.
TEST(BlockSchedule, ALaterLoopMayRunFirst) {
  const Graph g =
      block_of("i=4, j=5", "a = iter X {fmap={j:1}}\n s = sum a {axes=[1], keepdims=true}\n"
                           "S = accum s {loops=[1]}\n b = iter X {fmap={i:1}}\n"
                           "y = mul b, S\n o = save y {fmap={i:1}} : f32[6,20]");
  EXPECT_EQ(order(g, block_schedule(g)), "loop1{a s S} loop0{b y o}");
}

TEST(BlockSchedule, NestedLoopsShareWhatOuterOnesCompute) {
  const Graph g =
      block_of("i=3, j=5", "a = iter X {fmap={i:0}}\n e = exp a\n"
                           "b = iter X {fmap={i:0, j:1}}\n m = reduce_max e {axes=[1], "
                           "keepdims=true}\n c = mul b, m\n s = sum c {axes=[1], keepdims=true}\n"
                           "S = accum s {loops=[1]}\n t = sum S {axes=[0], keepdims=true}\n"
                           "T = accum t {loops=[0]}\n o = save T : f32[1,1]");
  EXPECT_EQ(order(g, block_schedule(g)), "loop0{a e m loop1{b c s S} t T} o");
}

std::string refused(const std::string& loops, const std::string& statements) {
  try {
    block_schedule(block_of(loops, statements));
  } catch (const Error& e) {
    return e.message();
  }
  return "accepted";
}

TEST(BlockSchedule, WhatNoOrderComputes) {
  // Each loop needs what the other folds.
  EXPECT_EQ(refused("i=4, j=5",
                    "a = iter X {fmap={i:1}}\n s = sum a {axes=[1], keepdims=true}\n"
                    "S = accum s {loops=[0]}\n b = iter X {fmap={j:1}}\n"
                    "t = sum b {axes=[1], keepdims=true}\n T = accum t {loops=[1]}\n"
                    "c = sub a, T\n u = sum c {axes=[1], keepdims=true}\n U = accum u {loops=[0]}\n"
                    "d = sub b, S\n v = sum d {axes=[1], keepdims=true}\n V = accum v {loops=[1]}\n"
                    "z = add U, V\n o = save z : f32[6,1]"),
            "loop 0 needs a second pass over its iterations: give the block another loop for it");
  // Folded for every j, but used for every i and j.
  EXPECT_EQ(refused("i=3, j=2, k=5",
                    "a = iter X {fmap={j:0, k:1}}\n s = sum a {axes=[1], keepdims=true}\n"
                    "S = accum s {loops=[2]}\n p = sum S {axes=[0], keepdims=true}\n"
                    "b = iter X {fmap={i:1}}\n c = sum b {axes=[0, 1], keepdims=true}\n"
                    "d = mul c, p\n T = accum d {loops=[0, 1]}\n o = save T : f32[1,1]"),
            "accum S: is used inside a loop that it is folded outside of; list its loops first");
}

}  // namespace
}  // namespace tessera
