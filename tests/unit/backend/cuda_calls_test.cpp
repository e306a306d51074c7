// Programs of which libraries do a part: who decides, what is written, and that it runs. On
// stand-ins for the driver and for cuBLASLt.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "backend/cuda/emulate_program.h"
#include "backend/cuda/graph_clock.h"
#include "backend/cuda/library.h"
#include "backend/cuda_code.h"
#include "backend/testing.h"
#include "ir/text.h"
#include "places.h"

namespace tessera {
namespace {

// A product between operators that no library has.
const char* const kMixed = R"(graph mixed {
  x = input : f16[16,64]
  w = input : f16[64,32]
  a = exp x
  p = matmul a, w
  y = tanh p
  return y
}
)";

// One block that computes relu(x·w + b): so slow that any call is faster.
const char* const kFusedCalls = R"(graph fused {
  X = input : f16[64,2048]
  W = input : f16[2048,64]
  B = input : f16[64]
  O = kernel X, W, B grid[x=1] loops[i=32] {
    X = input : f16[64,2048]
    W = input : f16[2048,64]
    B = input : f16[64]
    x = iter X {fmap={i:1}}
    w = iter W {fmap={i:0}}
    p = matmul x, w
    a = accum p {loops=[0]}
    b = iter B {}
    c = add a, b
    r = relu c
    o = save r {} : f16[64,64]
    return o
  }
  return O
}
)";

class CudaCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen(stand_in_cuda(), RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto reset = reinterpret_cast<void (*)(int, int, int, int64_t, int64_t)>(
        dlsym(library, "stand_in_reset"));
    calls_ = reinterpret_cast<int (*)(const char*)>(dlsym(library, "stand_in_calls"));
    reset(1, 9, 0, 256 << 20, 227 << 10);
    CudaDriver::use_library(stand_in_cuda());
    use_cublaslt(stand_in_cublaslt());
  }
  void TearDown() override {
    use_cublaslt("");
    CudaDriver::use_library("");
  }

  static std::shared_ptr<CudaCode> code(const Graph& g, bool tf32 = false) {
    const auto context = CudaContext::of(0);
    const CudaArch arch = parse_arch(context->device().arch());
    Target target =
        fitted_target(find_target("h100", source_dir() + "/targets"), arch, &context->device());
    target.tf32 = tf32;
    return make_cuda_code(g, test_cache(), {arch, target, {}, context});
  }
  static void expect_right(const Graph& g, const CudaCode& made) {
    CheckReport report;
    check_compiled(
        g, [&](auto in, auto out) { made.module->run_on_host_arrays(in, out); }, {}, &report);
    EXPECT_TRUE(report.passed) << report.what;
  }

  int (*calls_)(const char*) = nullptr;
};

TEST_F(CudaCalls, AProductAmongKernels) {
  const Graph g = parse(kMixed);
  const auto made = code(g);
  ASSERT_EQ(made->program.kernels.size(), 3u);
  ASSERT_TRUE(made->program.kernels[1].call.has_value());
  EXPECT_EQ(made->program.kernels[1].call->str(), "matmul f16 1x16x32x64");
  EXPECT_FALSE(made->program.kernels[0].call || made->program.kernels[2].call);
  // Who reads or keeps the source is told.
  EXPECT_NE(made->program.source.find(
                "// No kernel: cuBLASLt does it, by one call (matmul f16 1x16x32x64)."),
            std::string::npos)
      << made->program.source;
  const int before = calls_("stand_in_enqueue");
  expect_right(g, *made);
  EXPECT_GT(calls_("stand_in_enqueue"), before);
}

TEST_F(CudaCalls, AFusedKernelWhereTheCallIsCheaper) {
  const Graph g = parse(kFusedCalls);
  const auto made = code(g);
  ASSERT_EQ(made->program.kernels.size(), 1u);
  ASSERT_TRUE(made->program.kernels[0].call.has_value());
  EXPECT_EQ(made->program.kernels[0].call->str(), "matmul f16 1x64x64x2048 bias relu");
  EXPECT_TRUE(made->image.empty());  // nothing is compiled
  expect_right(g, *made);
}

TEST_F(CudaCalls, KernelsWhereTheLibraryIsNot) {
  use_cublaslt("/nowhere/libcublasLt.so");
  const Graph g = parse(kMixed);
  const auto made = code(g);
  for (const CudaKernel& k : made->program.kernels) EXPECT_FALSE(k.call.has_value()) << k.name;
  expect_right(g, *made);
  EXPECT_EQ(calls_("stand_in_enqueue"), 0);
}

TEST_F(CudaCalls, KernelsWhereTheLibraryHasNoWay) {
  // Doubles have no epilogues there: the fused kernel stays one's own.
  std::string wide = kFusedCalls;
  for (size_t at; (at = wide.find("f16")) != std::string::npos;) wide.replace(at, 3, "f64");
  const Graph g = parse(wide);
  const auto made = code(g);
  ASSERT_EQ(made->program.kernels.size(), 1u);
  EXPECT_FALSE(made->program.kernels[0].call.has_value());
  expect_right(g, *made);
  // Of a chain the product alone is a call.
  const std::string chain = "graph g {\nX = input : f64[4,8]\nW = input : f64[8,6]\n"
                            "B = input : f64[6]\np = matmul X, W\nc = add p, B\nr = relu c\n"
                            "return r\n}";
  const auto some = code(parse(chain));
  ASSERT_EQ(some->program.kernels.size(), 3u);
  EXPECT_TRUE(some->program.kernels[0].call.has_value());
  expect_right(parse(chain), *some);
}

TEST_F(CudaCalls, AChainOfOperatorsIsOneCall) {
  const Graph g = parse("graph g {\nX = input : f16[4,8]\nW = input : f16[8,6]\n"
                        "B = input : f16[6]\np = matmul X, W\nc = add B, p\nr = gelu_tanh c\n"
                        "return r\n}");
  const auto made = code(g);
  ASSERT_EQ(made->program.kernels.size(), 1u);
  EXPECT_EQ(made->program.kernels[0].call->str(), "matmul f16 1x4x6x8 bias gelu_tanh");
  expect_right(g, *made);
}

TEST_F(CudaCalls, AreCapturedInGraphs) {
  const Graph g = parse(kMixed);
  const auto made = code(g);
  const auto context = CudaContext::of(0);
  CudaGraphClock clock(context);
  std::vector<DeviceMemory> memory;
  std::vector<CudaAddress> in, out;
  for (const Type& t : made->module->input_types()) {
    memory.emplace_back(context, t.bytes(), "a test's array");
    memory.back().fill(std::vector<char>(size_t(t.bytes()), 0).data(), clock.stream());
    in.push_back(memory.back().address());
  }
  const Type& result = made->module->output_types()[0];
  memory.emplace_back(context, result.bytes(), "a test's array");
  out.push_back(memory.back().address());
  const auto sample =
      clock.timed([&](int) { made->module->run(in, out, nullptr, clock.stream()); }, 2);
  // Replayed, with nothing launched anew: tanh(exp(0)·0) once more over what is written between.
  std::vector<uint16_t> y(size_t(result.bytes() / 2), 0x3c00);
  memory.back().fill(y.data(), clock.stream());
  const int launches = calls_("cuLaunchKernel"), products = calls_("stand_in_enqueue");
  EXPECT_GT(sample(), 0);
  memory.back().read(y.data(), clock.stream());
  for (uint16_t v : y) ASSERT_EQ(v, 0);
  EXPECT_EQ(calls_("cuLaunchKernel"), launches);
  EXPECT_EQ(calls_("stand_in_enqueue"), products);
}

TEST_F(CudaCalls, TheEmulatorHasTheInterpreterDoThem) {
  for (const char* text : {kMixed, kFusedCalls}) {
    const Graph g = parse(text);
    const auto made = code(g);
    const EmulatedProgram program(g, made->program);
    CheckReport report;
    std::optional<KernelFault> fault;
    check_compiled(
        g, [&](auto in, auto out) { fault = program.run(in, out); }, {}, &report);
    EXPECT_FALSE(fault.has_value()) << fault->str();
    EXPECT_TRUE(report.passed) << report.what;
  }
}

TEST_F(CudaCalls, WorkspaceIsPartOfWhatAModuleTakes) {
  const auto made = code(parse(kMixed));
  EXPECT_EQ(made->module->workspace_bytes(), made->program.plan.arena.bytes + 1024);
}

TEST_F(CudaCalls, Tf32OnlyWhereAskedFor) {
  const Graph g = parse("graph g {\nA = input : f32[16,32]\nB = input : f32[32,16]\n"
                        "C = matmul A, B\nreturn C\n}");
  const auto call = [](const CudaCode& made) { return made.program.kernels[0].call->str(); };
  EXPECT_EQ(call(*code(g)), "matmul f32 1x16x16x32");
  EXPECT_EQ(call(*code(g, true)), "matmul f32 1x16x16x32 tf32");
  EXPECT_EQ(call(*code(parse(kFusedCalls), true)), "matmul f16 1x64x64x2048 bias relu");
}

}  // namespace
}  // namespace tessera
