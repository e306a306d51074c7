// What is done with products while they are in registers, for both kinds of matrix instructions,
// run by the emulator against the interpreter.
#include <gtest/gtest.h>

#include <array>

#include "backend/block_programs.h"
#include "backend/emulated.h"
#include "backend/written.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

// A kernel that adds up c = A·B over a loop, of `lines` that compute d of c (and of a bias v and
// the rows' sums), and saves d.
std::string epilogue(const std::string& dtype, std::array<int64_t, 3> mnk,
                     std::array<int64_t, 2> grid, int64_t loops, const std::string& lines) {
  const std::string text = R"(graph epilogue {
  A = input : T[M,K]
  B = input : T[K,N]
  C = input : T[K,N]
  V = input : T[N]
  O = kernel A, B, C, V grid[x=X, y=Y] loops[i=L] {
    A = input : T[M,K]
    B = input : T[K,N]
    C = input : T[K,N]
    V = input : T[N]
    a = iter A {imap={x:0}, fmap={i:1}} : T[Mt,Kt]
    b = iter B {imap={y:1}, fmap={i:0}} : T[Kt,Nt]
    b2 = iter C {imap={y:1}, fmap={i:0}} : T[Kt,Nt]
    v = iter V {imap={y:0}} : T[Nt]
    p = matmul a, b
    c = accum p {loops=[0]}
    p2 = matmul a, b2
    c2 = accum p2 {loops=[0]}
LINES    O = save d {omap={x:0, y:1}} : T[M,N]
    return O
  } : T[M,N]
  return O
}
)";
  return in_tiles(replaced(text, {{"LINES", lines}}), dtype, mnk, grid, loops);
}

const char* const kGated = "    s = silu c\n    d = mul s, c2\n";
const char* const kBias = "    w = add c, c2\n    d = add w, v\n";
const char* const kRows = "    q = sqr c\n    r = sum q {axes=[1], keepdims=true}\n"
                          "    w = add r, c2\n    d = div c, w\n";
const char* const kMaxima = "    r = reduce_max c {axes=[1], keepdims=true}\n"
                            "    t = reduce_min c2 {axes=[1], keepdims=true}\n"
                            "    w = sub c, r\n    d = mul w, t\n";

struct EpilogueCase {
  std::string text;
  std::string arch = "sm_80";
};

// No sum may be written to shared memory: it is kept, and what uses it says so.
void expect_held(const std::vector<EpilogueCase>& cases) {
  for (const std::string arch : {"sm_80", "sm_90a"}) {
    Graph all("together");
    for (const EpilogueCase& c : cases) {
      if (c.arch != arch) continue;
      const Graph graph = parse(c.text);
      validate(graph);
      append(all, graph);
      const std::string source = emit_cuda(graph, parse_arch(arch), {}, gpu()).source;
      EXPECT_NE(source.find("result 0, from registers"), std::string::npos) << source;
      EXPECT_EQ(source.find(": from registers"), std::string::npos) << source;
    }
    EXPECT_EQ(all.ops().empty() ? "" : emulated_fault(all, arch), "");
  }
}

TEST(CudaEpilogue, ActivationsAndProductsSideBySide) {
  expect_held({{epilogue("f16", {16, 64, 64}, {1, 1}, 2, kGated)},
               {epilogue("bf16", {5, 50, 33}, {1, 2}, 2, kBias)},
               {epilogue("f16", {40, 72, 32}, {2, 3}, 2, kBias)},
               {epilogue("f16", {16, 64, 64}, {1, 1}, 2, kGated), "sm_90a"},
               {epilogue("bf16", {64, 64, 64}, {1, 1}, 2, kBias), "sm_90a"},
               {epilogue("bf16", {5, 128, 64}, {1, 1}, 2, kBias), "sm_90a"}});
}

// Rows in one warp, over several warps, over the rows of a transposed product.
TEST(CudaEpilogue, RowsAreReducedInRegisters) {
  expect_held({{epilogue("f16", {16, 64, 32}, {1, 1}, 2, kRows)},
               {epilogue("bf16", {70, 20, 32}, {1, 1}, 2, kRows)},
               {epilogue("f16", {9, 13, 32}, {1, 1}, 2, kMaxima)},
               {epilogue("bf16", {33, 24, 32}, {2, 1}, 2, kMaxima)},
               {epilogue("f16", {5, 64, 64}, {1, 1}, 2, kRows), "sm_90a"},
               {epilogue("bf16", {16, 192, 64}, {1, 1}, 2, kMaxima), "sm_90a"},
               {epilogue("f16", {64, 40, 64}, {1, 1}, 2, kRows), "sm_90a"},
               {epilogue("f16", {128, 72, 32}, {1, 1}, 2, kMaxima), "sm_90a"}});
  const std::string source = emit_cuda(parse(epilogue("f16", {5, 64, 64}, {1, 1}, 2, kRows)),
                                       parse_arch("sm_90a"), {}, gpu())
                                 .source;
  EXPECT_NE(source.find("sum of rows in registers"), std::string::npos) << source;
}

// Scores of attention are never in shared memory; the mask is read where they are.
TEST(CudaEpilogue, ScoresStayInRegisters) {
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const std::string text = attention({1, 17, 64, 100, 64, 2, 2, true, "f16", true});
    const std::string source = emit_cuda(parse(text), parse_arch(arch), {}, gpu()).source;
    EXPECT_NE(source.find("reduce_max of rows in registers"), std::string::npos) << source;
    EXPECT_NE(source.find("exp, from registers"), std::string::npos) << source;
    EXPECT_EQ(emulated_fault(parse(text), arch), "");
  }
}

// Neighbours of a row are stored together where rows are even, and alone where not.
TEST(CudaEpilogue, NeighboursAreStoredTogether) {
  const auto source = [](int64_t columns) {
    return emit_cuda(parse(epilogue("f16", {16, columns, 32}, {1, 1}, 2, kBias)),
                     parse_arch("sm_80"), {}, gpu())
        .source;
  };
  EXPECT_NE(source(48).find(", z);"), std::string::npos);
  EXPECT_EQ(source(47).find(", z);"), std::string::npos);
  expect_held({{epilogue("f16", {16, 47, 32}, {1, 1}, 2, kBias)}});
}

// Low-rank adapters by hand: x·W + (x·A)·B in one kernel, the second product after the loop, or in
// every iteration as one product of both halves (Mirage, OSDI'25, Fig. 9).
std::string lora(const std::string& dtype, int64_t rank, bool concatenated) {
  const char* const after = R"(    c = accum p {loops=[0]}
    d = accum q {loops=[0]}
    e = matmul d, b
    o = add c, e
)";
  const char* const inside = R"(    z = concat_matmul x, q, w, b
    o = accum z {loops=[0]}
)";
  return replaced(R"(graph lora {
  X = input : T[10,64]
  W = input : T[64,128]
  A = input : T[64,R]
  B = input : T[R,128]
  O = kernel X, W, A, B grid[x=2] loops[i=2] {
    X = input : T[10,64]
    W = input : T[64,128]
    A = input : T[64,R]
    B = input : T[R,128]
    x = iter X {fmap={i:1}} : T[10,32]
    w = iter W {imap={x:1}, fmap={i:0}} : T[32,64]
    a = iter A {fmap={i:0}} : T[32,R]
    b = iter B {imap={x:1}} : T[R,64]
FIRST    q = matmul x, a
REST    O = save o {omap={x:1}} : T[10,128]
    return O
  } : T[10,128]
  return O
}
)",
                  {{"FIRST", concatenated ? "" : "    p = matmul x, w\n"},
                   {"REST", concatenated ? inside : after},
                   {"T[", dtype + "["},
                   {"R]", std::to_string(rank) + "]"},
                   {"[R,", "[" + std::to_string(rank) + ","}});
}

TEST(CudaEpilogue, LowRankAdaptersInOneKernel) {
  for (const char* arch : {"sm_80", "sm_90a"}) {
    Graph all("together");
    for (const int64_t rank : {16, 8, 4})
      for (const bool concatenated : {false, true})
        append(all, parse(lora(rank == 8 ? "bf16" : "f16", rank, concatenated)));
    append(all, parse(lora("f32", 8, false)));
    append(all, parse(lora("f32", 8, true)));
    EXPECT_EQ(emulated_fault(all, arch), "");
  }
}

// What needs a sum in another order has it in shared memory, as before.
TEST(CudaEpilogue, OtherOrdersGoThroughMemory) {
  const std::string text = epilogue("f16", {16, 32, 32}, {1, 1}, 2,
                                    "    r = sum c {axes=[0], keepdims=true}\n    d = add c2, r\n");
  const std::string source = emit_cuda(parse(text), parse_arch("sm_80"), {}, gpu()).source;
  EXPECT_NE(source.find(": from registers"), std::string::npos) << source;
  EXPECT_EQ(emulated_fault(parse(text), "sm_80"), "");
}

// One row of weights, filled up with zeros for the tensor cores: these have places of their own.
TEST(CudaEpilogue, OneRowIsFilledUp) {
  const std::string text = R"(graph decode {
  Q = input : f16[2,32]
  K = input : f16[48,32]
  V = input : f16[48,32]
  O = kernel Q, K, V grid[x=2] loops[i=2] {
    Q = input : f16[2,32]
    K = input : f16[48,32]
    V = input : f16[48,32]
    q = iter Q {imap={x:0}, fmap={i:1}} : f16[1,16]
    k = iter K {fmap={i:1}} : f16[48,16]
    v = iter V {} : f16[48,32]
    t = transpose k {perm=[1,0]}
    p = matmul q, t
    s = accum p {loops=[0]}
    m = reduce_max s {axes=[1], keepdims=true}
    z = sub s, m
    e = exp z
    d = sum e {axes=[1], keepdims=true}
    w = matmul e, v
    r = div w, d
    O = save r {omap={x:0}} : f16[2,32]
    return O
  } : f16[2,32]
  return O
}
)";
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const std::string what = emulated_fault(parse(text), arch);
    EXPECT_TRUE(what.empty()) << what;
  }
}

// Of an operand with one row per matrix the other rows are addressed too: each must be in line.
TEST(CudaEpilogue, RowsThatFillUpMatricesAreAligned) {
  const std::string text = R"(graph rows {
  X = input : f16[8,8,32]
  W = input : f16[8,32,8]
  O = kernel X, W grid[x=4] loops[i=2] {
    X = input : f16[8,8,32]
    W = input : f16[8,32,8]
    x = iter X {imap={x:0}, fmap={i:1}} : f16[2,4,32]
    w = iter W {fmap={i:0}} : f16[4,32,8]
    q = sqr x
    s = sum q {axes=[2], keepdims=true}
    v = rsqrt s
    z = squeeze v {axes=[2]}
    u = unsqueeze z {axes=[1]}
    t = transpose x {perm=[1,0,2]}
    p = matmul t, w
    r = transpose p {perm=[1,0,2]}
    y = matmul u, r
    c = accum y {loops=[0]}
    d = squeeze c {axes=[1]}
    O = save d {omap={x:0}} : f16[8,8]
    return O
  } : f16[8,8]
  return O
}
)";
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const std::string what = emulated_fault(parse(text), arch);
    EXPECT_TRUE(what.empty()) << what;
  }
}

}  // namespace
}  // namespace tessera
