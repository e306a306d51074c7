// CUDA made of block graphs, run by the emulator against the interpreter: every element, and no
// fault in any order of threads.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/arrays.h"
#include "backend/block_programs.h"
#include "backend/emulated.h"
#include "backend/written.h"
#include "base/rng.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

void expect_right_emitted(const std::vector<std::string>& texts,
                          const std::string& arch = "sm_80") {
  Graph all("together");
  for (const std::string& text : texts) {
    const Graph graph = parse(text);
    validate(graph);
    append(all, graph);
  }
  if (emulated_fault(all, arch).empty()) return;
  for (const std::string& text : texts) {
    const std::string what = emulated_fault(parse(text), arch);
    EXPECT_TRUE(what.empty()) << what << text;
  }
}

std::string kernel_level(const std::string& inputs, const std::string& rest) {
  return "graph g {\n" + inputs + rest + "}\n";
}

TEST(CudaEmit, RmsNormLinear) {
  expect_right_emitted({rms_norm_linear(5, 100, 77, 3, 7), rms_norm_linear(16, 64, 48, 2, 4),
                        rms_norm_linear(1, 31, 40, 3, 1)});
}

TEST(CudaEmit, RmsNormLinearInSixteenBits) {
  expect_right_emitted({rms_norm_linear(16, 128, 64, 2, 2, "f16"),
                        rms_norm_linear(5, 100, 77, 3, 7, "bf16"),
                        rms_norm_linear(1, 64, 24, 1, 4, "bf16")});
}

TEST(CudaEmit, Attention) {
  expect_right_emitted({attention({1, 5, 7, 37, 3, 1, 3}), attention({2, 8, 16, 32, 8, 2, 2, true}),
                        attention({1, 1, 1, 3, 1, 1, 2})});
}

TEST(CudaEmit, AttentionInSixteenBits) {
  expect_right_emitted({attention({2, 16, 16, 64, 32, 1, 2, true, "f16"}),
                        attention({1, 5, 40, 70, 24, 1, 3, false, "bf16"}),
                        attention({1, 17, 16, 40, 16, 2, 2, true, "bf16", true})});
}

// Plain operators: each becomes a kernel of its own.
TEST(CudaEmit, PlainOperators) {
  expect_right_emitted({
      kernel_level("A = input : f32[7,53]\nB = input : f32[53,41]\nc = input : f32[41]\n",
                   "p = matmul A, B\nq = mul p, c\nm = reduce_max q {axes=[0]}\n"
                   "O = sum q {axes=[1]}\nreturn O, m\n"),
      kernel_level("A = input : bf16[3,20,40]\nB = input : bf16[3,40,24]\n",
                   "p = matmul A, B\nq = silu p\nreturn q\n"),
      kernel_level("A = input : f32[6,50]\n",
                   "m = reduce_max A {axes=[1], keepdims=true}\nz = sub A, m\ne = exp z\n"
                   "s = sum e {axes=[1], keepdims=true}\ny = div e, s\nreturn y\n"),
      kernel_level("A = input : f32[4,6,5]\n",
                   "t = transpose A {perm=[2,0,1]}\nr = reshape t {shape=[10,12]}\n"
                   "c = cumsum r {axis=1}\nm = mean c {axes=[0]}\nreturn c, m\n"),
  });
}

// Elements side by side are read and written together, and alone where rows do not allow it.
TEST(CudaEmit, Vectors) {
  const std::vector<std::string> texts = {
      kernel_level("A = input : bf16[17,2056]\nb = input : bf16[2056]\nc = input : bf16[17,1]\n",
                   "p = mul A, b\nq = add p, c\nr = silu q\nreturn r\n"),
      kernel_level("A = input : f32[13,1312]\nB = input : f32[13,1312]\n",
                   "p = div A, B\nreturn p\n"),
      kernel_level("A = input : f16[7,1001]\n", "p = exp A\nreturn p\n"),
  };
  expect_right_emitted(texts);
  const auto source = [&](size_t i) {
    return emit_cuda(parse(texts[i]), parse_arch("sm_80"), {}, gpu()).source;
  };
  EXPECT_NE(source(0).find("float y[8];"), std::string::npos) << source(0);
  EXPECT_NE(source(1).find("float y[4];"), std::string::npos) << source(1);
  EXPECT_EQ(source(2).find("y["), std::string::npos) << source(2);
}

// One kernel of what is computed from tiles a and b of two arrays.
std::string fused_chain(const std::string& t, const std::string& ops, const std::string& result) {
  return "graph g {\n  A = input : " + t + "[64,64]\n  B = input : " + t +
         "[64,64]\n  O = kernel A, B grid[x=4] {\n    A = input : " + t +
         "[64,64]\n    B = input : " + t + "[64,64]\n    a = iter A {imap={x:0}} : " + t +
         "[16,64]\n    b = iter B {imap={x:0}} : " + t + "[16,64]\n" + ops +
         "    O = save o {omap={x:0}} : " + result + "[64,64]\n    return O\n  } : " + result +
         "[64,64]\n  return O\n}\n";
}

// nvcc makes one operation of a product and a sum unless it is told not to, and so a pixel one
// less.
TEST(CudaEmit, NothingIsFusedBeforeAJump) {
  const auto source = [](const std::string& ops, const std::string& result) {
    const Graph graph = parse(fused_chain("f32", ops, result));
    validate(graph);
    return emit_cuda(graph, parse_arch("sm_80"), {}, gpu()).source;
  };
  const std::string smooth = source("    p = mul a, b\n    o = add p, a\n", "f32");
  EXPECT_EQ(smooth.find("ts::product("), std::string::npos) << smooth;
  for (const char* made : {"p = mul a, b", "p = sqr b", "p = pow b {exponent=3}"}) {
    const std::string jumps = source(
        "    " + std::string(made) + "\n    s = add p, a\n    o = cast s {dtype=u8}\n", "u8");
    EXPECT_NE(jumps.find("= ts::product("), std::string::npos) << jumps;
    EXPECT_EQ(jumps.find(" * t"), std::string::npos) << jumps;
  }
}

// NVRTC takes it that signed integers do not overflow.
TEST(CudaEmit, IntegersWrapAround) {
  for (const char* type : {"i32", "i64"}) {
    const std::string zero = "    z = const {value=0} : " + std::string(type) + "[]\n";
    expect_right_emitted(
        {fused_chain(type, zero + "    s = sqr a\n    o = max s, z\n", type),
         fused_chain(type, "    s = add a, b\n    o = lt s, a\n", "bool"),
         fused_chain(type, zero + "    s = abs a\n    o = min s, z\n", type),
         fused_chain(type,
                     zero + "    r = relu a\n    s = sum r {axes=[1], keepdims=true}\n"
                            "    m = min s, z\n    o = add m, b\n",
                     type)});
  }
}

// What comes from memory is asked for so far ahead that latency does not show: at least 48 KB on
// their way to a multiprocessor of Hopper, and no more than that takes.
TEST(CudaEmit, EnoughBytesInFlight) {
  for (const int64_t rows : {1, 16}) {
    const CudaProgram p = emit_cuda(parse(kernel_level("A = input : bf16[" + std::to_string(rows) +
                                                           ",4096]\nB = input : bf16[4096,4096]\n",
                                                       "p = matmul A, B\nreturn p\n")),
                                    parse_arch("sm_90a"), {}, gpu());
    EXPECT_GE(p.kernels[0].shared_bytes, 56 << 10) << p.source;
    EXPECT_LE(p.kernels[0].shared_bytes, 80 << 10) << p.source;
  }
  const std::string sums = emit_cuda(parse(kernel_level("A = input : f32[64,4,96]\n",
                                                        "p = sum A {axes=[0]}\nreturn p\n")),
                                     parse_arch("sm_90a"), {}, gpu())
                               .source;
  EXPECT_NE(sums.find("#pragma unroll 8"), std::string::npos) << sums;
}

}  // namespace
}  // namespace tessera
