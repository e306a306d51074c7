// Products of f32 by tensor cores, where rounding to tf32 was asked for, and slices that kernels
// read where they lie.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/block_programs.h"
#include "backend/cuda/cuda_module.h"
#include "backend/described.h"
#include "backend/emulated.h"
#include "backend/host_kernels.h"
#include "backend/testing.h"
#include "backend/written.h"
#include "base/rng.h"
#include "cost/analytical.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

Target rounding() {
  Target t = gpu();
  t.tf32 = true;
  return t;
}

std::vector<std::string> programs(const std::string& dtype) {
  const char* t = dtype.c_str();
  return {rms_norm_linear(16, 128, 64, 2, 2, dtype), rms_norm_linear(5, 100, 77, 3, 7, dtype),
          rms_norm_linear(1, 31, 40, 3, 1, dtype), rms_norm_linear(33, 80, 48, 2, 5, dtype),
          attention({1, 5, 7, 37, 3, 1, 3, false, t}), attention({2, 8, 16, 32, 8, 2, 2, true, t}),
          attention({1, 64, 64, 112, 64, 1, 2, true, t}),
          attention({1, 17, 16, 40, 16, 2, 2, true, t, true}),
          "graph g {\nA = input : " + dtype + "[3,20,40]\nB = input : " + dtype +
              "[3,40,24]\np = matmul A, B\nq = silu p\nreturn q\n}\n",
          // An operand that is added up first.
          "graph g {\nA = input : " + dtype + "[8,24]\nB = input : " + dtype +
              "[24,12]\nC = input : " + dtype +
              "[12,20]\np = matmul A, B\nq = matmul p, C\nreturn q\n}\n"};
}

TEST(CudaTf32, ProgramsAreRightWhereRoundingWasAskedFor) {
  CheckOptions options;
  options.least_unit = 0x1p-11;
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    Graph all("together");
    for (const std::string& text : programs("f32")) {
      const Graph graph = parse(text);
      validate(graph);
      append(all, graph);
      const std::string source = emit_cuda(graph, parse_arch(arch), {}, rounding()).source;
      EXPECT_NE(source.find("ts::tf32{}"), std::string::npos) << source;
      EXPECT_EQ(source.find("wgmma"), std::string::npos) << source;
    }
    EXPECT_EQ(emulated_fault(all, arch, options, rounding()), "") << arch;
  }
}

// The left operand of a second product stays in registers, whose columns come in another order; the
// first product's copy in shared memory is gone, and the plan knows how the other operand is read.
TEST(CudaTf32, OperandsStayInRegisters) {
  CheckOptions options;
  options.least_unit = 0x1p-11;
  for (const bool safe : {true, false}) {
    const Graph graph = parse(attention({1, 64, 24, 90, 20, 1, 2, safe}));
    for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
      const std::string source = emit_cuda(graph, parse_arch(arch), {}, rounding()).source;
      EXPECT_NE(source.find("stays in registers"), std::string::npos) << source;
      EXPECT_NE(source.find(".right_in_pairs("), std::string::npos) << source;
      EXPECT_EQ(emulated_fault(graph, arch, options, rounding()), "") << arch;
    }
    for (const DescribedBlock& d : describe_cuda(graph, parse_arch("sm_90a"), rounding()))
      EXPECT_EQ(std::count_if(d.block.steps.begin(), d.block.steps.end(),
                              [](const BlockStep& s) { return s.walk.in_pairs; }),
                1);
  }
}

TEST(CudaTf32, NothingIsRoundedUnasked) {
  for (const char* arch : {"sm_80", "sm_90a"}) {
    for (const std::string& text : programs("f32"))
      EXPECT_EQ(emit_cuda(parse(text), parse_arch(arch), {}, gpu()).source.find("tf32"),
                std::string::npos);
    for (const char* other : {"f16", "bf16"})  // nor does the option change anything else
      for (const std::string& text : programs(other))
        EXPECT_EQ(emit_cuda(parse(text), parse_arch(arch), {}, gpu()).source,
                  emit_cuda(parse(text), parse_arch(arch), {}, rounding()).source);
  }
}

// To 10 bits of fraction, ties away from zero.
float rounded(float x) {
  int exponent;
  const double fraction = std::frexp(double(x), &exponent);
  return float(std::ldexp(std::round(fraction * 2048), exponent - 11));
}

// The result is the product of the rounded factors, not of others within the tolerance.
TEST(CudaTf32, FactorsAreRoundedToNearest) {
  constexpr int kM = 20, kK = 40, kN = 24;
  const Graph graph = parse(
      "graph g {\nA = input : f32[20,40]\nB = input : f32[40,24]\np = matmul A, B\nreturn p\n}\n");
  const EmulatedProgram program(graph, emit_cuda(graph, parse_arch("sm_80"), {}, rounding()));
  std::vector<float> a(kM * kK), b(kK * kN), c(kM * kN);
  Rng rng(3);
  for (std::vector<float>* x : {&a, &b})
    for (float& e : *x) e = float(2 * rng.unit() - 1);
  a[0] = 1 + 0x1p-11f;  // a tie
  const void* in[] = {a.data(), b.data()};
  void* out[] = {c.data()};
  const auto fault = program.run(in, out, 1);
  ASSERT_FALSE(fault) << fault->str();
  double unrounded = 0;
  for (int i = 0; i < kM; ++i)
    for (int j = 0; j < kN; ++j) {
      double sum = 0, exact = 0;
      for (int k = 0; k < kK; ++k) {
        sum += double(rounded(a[size_t(i * kK + k)])) * double(rounded(b[size_t(k * kN + j)]));
        exact += double(a[size_t(i * kK + k)]) * double(b[size_t(k * kN + j)]);
      }
      EXPECT_NEAR(c[size_t(i * kN + j)], sum, 4e-6);
      unrounded = std::max(unrounded, std::fabs(sum - exact));
    }
  EXPECT_GT(unrounded, 1e-4);
}

// What reads slices: the number of kernels, of which none only copies, and nothing wrong.
void expect_in_place(const std::string& lines, size_t kernels) {
  const Graph graph = parse("graph g {\n" + lines + "}\n");
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const CudaProgram program = emit_cuda(graph, parse_arch(arch), {}, gpu());
    EXPECT_EQ(program.kernels.size(), kernels) << program.source;
    EXPECT_EQ(emulated_fault(graph, arch), "") << arch;
  }
}

TEST(CudaSlices, AreReadWhereTheyLie) {
  const std::string x = "x = input : f16[40,96]\nw = input : f16[48,32]\n";
  // Heads of a projection, a slice of a slice, with steps, misaligned.
  expect_in_place(x + "a = slice x {starts=[8,16], stops=[28,64]}\np = matmul a, w\nreturn p\n", 1);
  expect_in_place(x + "a = slice x {starts=[8,16], stops=[40,96]}\n"
                      "b = slice a {starts=[3,0], stops=[20,48]}\np = matmul b, w\nreturn p\n",
                  1);
  expect_in_place(x + "a = slice x {starts=[0,5], stops=[40,95], steps=[1,3]}\n"
                      "b = slice x {starts=[0,1], stops=[40,31]}\np = mul a, b\nreturn p\n",
                  1);
  expect_in_place(x + "a = slice x {starts=[0,8], stops=[40,40]}\nb = slice x {starts=[0,40], "
                      "stops=[40,72]}\np = silu a\nq = mul p, b\nreturn q\n",
                  2);
  // A product of rows that are out of line takes a copy, and so does what is also a result.
  expect_in_place(x + "a = slice x {starts=[8,15], stops=[28,63]}\np = matmul a, w\nreturn p\n", 2);
  expect_in_place(x + "a = slice x {starts=[8,16], stops=[28,64]}\np = matmul a, w\nreturn p, a\n",
                  2);
}

// A fused kernel of which two operands are parts of one array.
TEST(CudaSlices, OfFusedKernels) {
  std::string text = attention({2, 16, 32, 64, 32, 1, 2, true, "f16"});
  const std::string heads =
      "A = input : f16[2,80,96]\nQ = slice A {starts=[0,0,0], stops=[2,16,32]}\n"
      "K = slice A {starts=[0,8,32], stops=[2,72,64]}\n"
      "V = slice A {starts=[0,16,64], stops=[2,80,96]}\n";
  const size_t begin = text.find("Q = input"), end = text.find("O = kernel");
  text.replace(begin, end - begin, heads);
  const Graph graph = parse(text);
  validate(graph);
  for (const char* arch : {"sm_80", "sm_90a"}) {
    EXPECT_EQ(emit_cuda(graph, parse_arch(arch), {}, gpu()).kernels.size(), 1u);
    EXPECT_EQ(emulated_fault(graph, arch), "");
  }
  // The model counts what the generator makes.
  EXPECT_EQ(AnalyticalModel(gpu()).kernels(graph).size(), 1u);
  // Keys and values come as boxes of the array that they lie in.
  const CudaProgram program = emit_cuda(graph, parse_arch("sm_90a"), {}, gpu());
  ASSERT_EQ(program.kernels[0].maps.size(), 2u);
  const TensorMapSpec& keys = program.kernels[0].maps[0];
  EXPECT_EQ(keys.offset, 8 * 96 + 32);
  EXPECT_EQ(keys.pitch, 96);
  EXPECT_EQ(keys.rows, 80 + 64);
  EXPECT_EQ(keys.columns, 32);
}

// Boxes show zeros where a slice ends, not what lies beside it; in the emulator and, described by
// the driver's function, on the stand-in for it.
TEST(CudaSlices, ComeAsBoxes) {
  const struct {
    std::string lines;
    size_t maps;
  } cases[] = {
      // Ends of rows and of columns, within the array.
      {"x = input : f16[72,256]\nw = input : f16[480,200]\n"
       "a = slice x {starts=[2,16], stops=[32,240]}\n"
       "b = slice w {starts=[20,32], stops=[468,52], steps=[2,1]}\np = matmul a, b\nreturn p\n",
       2},
      // Parts of three matrices each.
      {"x = input : f16[3,64,384]\ny = input : f16[3,140,192]\n"
       "q = slice x {starts=[0,0,0], stops=[3,64,128]}\n"
       "k = slice y {starts=[0,8,64], stops=[3,136,128]}\np = matmul q, k\nreturn p\n",
       2},
      // Every other matrix.
      {"x = input : bf16[6,64,128]\nw = input : bf16[3,128,64]\n"
       "a = slice x {starts=[1,0,0], stops=[6,64,128], steps=[2,1,1]}\np = matmul a, w\nreturn p\n",
       2},
  };
  void* library = dlopen(stand_in_cuda(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  reinterpret_cast<void (*)(int, int, int, int64_t, int64_t)>(dlsym(library, "stand_in_reset"))(
      1, 9, 0, 64 << 20, 227 << 10);
  CudaDriver::use_library(stand_in_cuda());
  for (const auto& c : cases) {
    const Graph graph = parse("graph g {\n" + c.lines + "}\n");
    const CudaProgram program = emit_cuda(graph, parse_arch("sm_90a"), {}, gpu());
    ASSERT_EQ(program.kernels.size(), 1u) << program.source;
    EXPECT_EQ(program.kernels[0].maps.size(), c.maps) << program.source;
    EXPECT_EQ(emulated_fault(graph, "sm_90a"), "");
    const CudaModule module(graph, program, host_kernels(program.source, {"k0"}, test_cache()),
                            CudaContext::of(0));
    CheckReport report;
    check_compiled(
        graph, [&](auto in, auto out) { module.run_on_host_arrays(in, out); }, {}, &report);
    EXPECT_TRUE(report.passed) << report.what;
  }
  CudaDriver::use_library("");
}

}  // namespace
}  // namespace tessera
