// CUDA made of block graphs, run by the emulator against the interpreter: every element, and no
// fault in any order of threads.
#include <gtest/gtest.h>

#include "backend/block_programs.h"
#include "backend/check.h"
#include "backend/cuda/emit.h"
#include "backend/cuda/emulate_program.h"
#include "base/error.h"
#include "ir/text.h"
#include "ir/validate.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace tessera {
namespace {

const std::filesystem::path kRoot = TESSERA_SOURCE_DIR;

Target gpu() { return find_target("h200", (kRoot / "targets").string()); }

// What is wrong with the generated kernels; empty if nothing is.
std::string wrong(const Graph& graph, const std::string& arch) {
  const EmulatedProgram program(graph, emit_cuda(graph, parse_arch(arch), {}, gpu()));
  if (std::getenv("TESSERA_SHOW_CUDA") != nullptr) std::puts(program.program().source.c_str());
  std::string fault;
  uint64_t seed = 1;
  CheckReport report;
  const auto checked = check_compiled(
      graph,
      [&](auto in, auto out) {
        if (!fault.empty()) return;
        if (const auto found = program.run(in, out, seed++)) fault = found->str();
      },
      {}, &report);
  if (!fault.empty()) return fault + "\n" + program.program().source;
  return checked ? "" : report.what + "\n" + program.program().source;
}

void expect_right(const std::vector<std::string>& texts, const std::string& arch = "sm_80") {
  Graph all("together");
  for (const std::string& text : texts) {
    const Graph graph = parse(text);
    validate(graph);
    append(all, graph);
  }
  if (wrong(all, arch).empty()) return;
  for (const std::string& text : texts) EXPECT_EQ(wrong(parse(text), arch), "") << text;
}

std::string kernel_level(const std::string& inputs, const std::string& rest) {
  return "graph g {\n" + inputs + rest + "}\n";
}

TEST(CudaEmit, RmsNormLinear) {
  expect_right({rms_norm_linear(5, 100, 77, 3, 7), rms_norm_linear(16, 64, 48, 2, 4),
                rms_norm_linear(1, 31, 40, 3, 1)});
}

TEST(CudaEmit, RmsNormLinearInSixteenBits) {
  expect_right({rms_norm_linear(16, 128, 64, 2, 2, "f16"),
                rms_norm_linear(5, 100, 77, 3, 7, "bf16"),
                rms_norm_linear(1, 64, 24, 1, 4, "bf16")});
}

TEST(CudaEmit, Attention) {
  expect_right({attention({1, 5, 7, 37, 3, 1, 3}), attention({2, 8, 16, 32, 8, 2, 2, true}),
                attention({1, 1, 1, 3, 1, 1, 2})});
}

TEST(CudaEmit, AttentionInSixteenBits) {
  expect_right({attention({2, 16, 16, 64, 32, 1, 2, true, "f16"}),
                attention({1, 5, 40, 70, 24, 1, 3, false, "bf16"}),
                attention({1, 17, 16, 40, 16, 2, 2, true, "bf16", true})});
}

// Plain operators: each becomes a kernel of its own.
TEST(CudaEmit, PlainOperators) {
  expect_right({
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

}  // namespace
}  // namespace tessera
