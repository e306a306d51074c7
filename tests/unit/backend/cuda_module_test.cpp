// Programs for a GPU, loaded and launched through a stand-in for the driver, whose devices are host
// memory and whose kernels are run in the emulator.
#include "backend/cuda/cuda_module.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "backend/block_programs.h"
#include "backend/emulated.h"
#include "backend/host_kernels.h"
#include "backend/testing.h"
#include "backend/written.h"
#include "base/error.h"
#include "ir/text.h"
#include "places.h"
#include "plan/plain_plan.h"
#include "stand_in.h"

namespace tessera {
namespace {

// y = (x · (2 g)) + x: the product with 2 depends on weights alone.
const char* const kGraph = R"(graph two {
  x = input : f32[256]
  g = input {weight=true} : f32[256]
  h = add g, g
  p = mul x, h
  y = add p, x
  return y
}
)";

const char* const kKernelSource = R"(#include "device.cuh"

extern "C" __global__ void twice(const float* a, const float* b, float* y) {
  const int i = ts::block(0) * ts::threads() + ts::thread();
  ts::store_global(y + i, ts::load_global(a + i) + ts::load_global(b + i));
}

// Through shared memory, so that some is needed.
extern "C" __global__ void product(const float* a, const float* b, float* y) {
  const int i = ts::block(0) * ts::threads() + ts::thread();
  float* mine = reinterpret_cast<float*>(ts::shared());
  ts::store_shared(mine + ts::thread(), ts::load_global(a + i));
  ts::sync();
  ts::store_global(y + i, ts::load_shared(mine + ts::thread()) * ts::load_global(b + i));
}

extern "C" __global__ void beyond(const float* a, const float* b, float* y) {
  const int i = ts::block(0) * ts::threads() + ts::thread() + 64;
  ts::store_global(y + i, ts::load_global(a + i) + ts::load_global(b + i));
}
)";

class CudaModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen(stand_in_cuda(), RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, name));
      ASSERT_NE(f, nullptr) << name;
    };
    find(reset_, "stand_in_reset");
    find(version_, "stand_in_version");
    find(fail_, "stand_in_fail");
    find(calls_, "stand_in_calls");
    find(allocated_, "stand_in_allocated");
    find(contexts_, "stand_in_contexts");
    reset_(2, 9, 0, 64 << 20, 100 << 10);
    CudaDriver::use_library(stand_in_cuda());
  }
  void TearDown() override { CudaDriver::use_library(""); }

  static CudaProgram program(const Graph& g) {
    CudaProgram p;
    p.plan = plan_kernel_graph(g);
    p.source = kKernelSource;
    p.arch = parse_arch("sm_90a");
    for (const Task& t : p.plan.tasks) {
      CudaKernel k;
      k.name = g.op(t.op).kind == OpKind::Mul ? "product" : "twice";
      k.grid = {4, 1, 1};
      k.threads = 64;
      k.shared_bytes = k.name == "product" ? 64 * 4 : 0;
      k.arguments = t.reads;
      k.arguments.insert(k.arguments.end(), t.writes.begin(), t.writes.end());
      p.kernels.push_back(std::move(k));
    }
    return p;
  }
  static std::string image() {
    return host_kernels(kKernelSource, {"twice", "product", "beyond"}, test_cache());
  }
  static std::unique_ptr<CudaModule> load(const CudaProgram& p, int device = 0) {
    return std::make_unique<CudaModule>(parse(kGraph), p, image(), CudaContext::of(device));
  }
  static std::unique_ptr<CudaModule> load() { return load(program(parse(kGraph))); }

  // An array of the device, as another library would have made it.
  struct Array {
    explicit Array(float first, int device = 0)
        : memory(CudaContext::of(device), 1024, "a test's array") {
      std::vector<float> x(256);
      for (size_t i = 0; i < 256; ++i) x[i] = first + float(i);
      memory.fill(x.data(), nullptr);
    }
    std::vector<float> values() const {
      std::vector<float> x(256);
      memory.read(x.data(), nullptr);
      return x;
    }
    CudaAddress at() const { return memory.address(); }
    DeviceMemory memory;
  };

  template <class F> static std::string message(F f, ErrorKind kind) {
    try {
      f();
    } catch (const Error& e) {
      EXPECT_EQ(to_string(e.kind()), std::string(to_string(kind))) << e.message();
      return e.message();
    }
    return "none";
  }

  void (*reset_)(int, int, int, int64_t, int64_t) = nullptr;
  void (*version_)(int) = nullptr;
  void (*fail_)(const char*, int, int) = nullptr;
  int (*calls_)(const char*) = nullptr;
  int64_t (*allocated_)() = nullptr;
  int (*contexts_)() = nullptr;
};

float expected(float x, float g) { return x * (2 * g) + x; }

TEST_F(CudaModuleTest, Runs) {
  const auto module = load();
  EXPECT_EQ(module->weights(), std::vector<size_t>{1});
  const Array x(1), g(3), y(0);
  module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, nullptr, nullptr);
  const std::vector<float> got = y.values();
  for (int i = 0; i < 256; ++i)
    ASSERT_EQ(got[size_t(i)], expected(1 + float(i), 3 + float(i))) << i;
}

TEST_F(CudaModuleTest, AgreesWithTheInterpreter) {
  const auto module = load();
  CheckReport report;
  check_compiled(
      parse(kGraph), [&](auto in, auto out) { module->run_on_host_arrays(in, out); }, {}, &report);
  EXPECT_TRUE(report.passed) << report.what;
}

TEST_F(CudaModuleTest, AfterTheFirstCallNothingIsAllocatedOrWaitedFor) {
  const auto module = load();
  const Array x(1), g(3), y(0);
  const auto weights = module->prepare(std::vector{x.at(), g.at()}, nullptr);
  EXPECT_EQ(weights->bytes(), 1024);
  const auto run = [&] {
    module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, weights.get(), nullptr);
  };
  run();
  const auto counts = [&] {
    return std::vector{calls_("cuMemAlloc_v2"), calls_("cuMemFree_v2"),
                       calls_("cuStreamSynchronize"), calls_("cuCtxSynchronize")};
  };
  const auto before = counts();
  const int launches = calls_("cuLaunchKernel");
  run();
  run();
  EXPECT_EQ(counts(), before);
  EXPECT_EQ(calls_("cuLaunchKernel"), launches + 4);  // what depends on weights alone ran once
  EXPECT_EQ(y.values()[7], expected(8, 10));
}

TEST_F(CudaModuleTest, StreamsHaveIntermediateMemoryOfTheirOwn) {
  const auto module = load();
  const auto context = CudaContext::of(0);
  const CudaApi& api = context->driver().api();
  const CudaContext::Current current(*context);
  CudaStream streams[2];
  for (CudaStream& s : streams) ASSERT_EQ(api.stream_create(&s, 1), 0);
  const Array x(1), x2(100), g(3), y(0), y2(0);
  const auto weights = module->prepare(std::vector{x.at(), g.at()}, nullptr);
  module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, weights.get(), nullptr);
  const int64_t before = allocated_();
  module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, weights.get(), streams[0]);
  module->run(std::vector{x2.at(), g.at()}, std::vector{y2.at()}, weights.get(), streams[1]);
  EXPECT_EQ(allocated_(), before + 2 * module->workspace_bytes());
  // Neither has run: work waits until somebody waits for it.
  for (int i : {1, 0}) ASSERT_EQ(api.stream_synchronize(streams[i]), 0);
  EXPECT_EQ(y.values()[7], expected(8, 10));
  EXPECT_EQ(y2.values()[7], expected(107, 10));
  for (CudaStream s : streams) ASSERT_EQ(api.stream_destroy(s), 0);
}

TEST_F(CudaModuleTest, CallsAreCapturedInAGraph) {
  const auto module = load();
  const auto context = CudaContext::of(0);
  const CudaApi& api = context->driver().api();
  const CudaContext::Current current(*context);
  CudaStream stream = nullptr;
  ASSERT_EQ(api.stream_create(&stream, 1), 0);
  const Array x(1), other(50), g(3), y(0);
  const auto run = [&](const CudaWeights* weights) {
    module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, weights, stream);
  };
  // What cannot be captured is refused, and what is captured is not spoilt.
  ASSERT_EQ(api.begin_capture(stream, 0), 0);
  EXPECT_NE(message([&] { run(nullptr); }, ErrorKind::Usage).find("call once"), std::string::npos);
  CudaHandle graph = nullptr;
  ASSERT_EQ(api.end_capture(stream, &graph), 0);
  ASSERT_EQ(api.graph_destroy(graph), 0);

  const auto weights = module->prepare(std::vector{x.at(), g.at()}, stream);
  const int64_t before = allocated_();
  ASSERT_EQ(api.begin_capture(stream, 0), 0);
  run(weights.get());
  run(weights.get());
  EXPECT_EQ(allocated_(), before + module->workspace_bytes());  // of the capture alone
  ASSERT_EQ(api.end_capture(stream, &graph), 0);
  CudaHandle exec = nullptr;
  ASSERT_EQ(api.graph_instantiate(&exec, graph, 0), 0);
  EXPECT_EQ(y.values()[7], 7);  // nothing has run
  // What other calls do in between is not in the graph's way.
  const Array elsewhere(0);
  module->run(std::vector{other.at(), g.at()}, std::vector{elsewhere.at()}, weights.get(), stream);
  for (int round = 0; round < 2; ++round) {
    std::vector<float> fresh(256, float(round + 4));
    DeviceMemory& memory = const_cast<Array&>(x).memory;
    memory.fill(fresh.data(), stream);
    ASSERT_EQ(api.graph_launch(exec, stream), 0);
    ASSERT_EQ(api.stream_synchronize(stream), 0);
    EXPECT_EQ(y.values()[7], expected(float(round + 4), 10));
  }
  EXPECT_EQ(elsewhere.values()[7], expected(57, 10));
  api.graph_destroy(graph);
  api.graph_exec_destroy(exec);
}

TEST_F(CudaModuleTest, TheContextOfTheCallerIsRestoredAndReleased) {
  {
    const auto other = CudaContext::of(1);
    const CudaApi& api = other->driver().api();
    const CudaContext::Current current(*other);
    const auto module = load();
    EXPECT_EQ(contexts_(), 2);
    const Array x(1), g(3), y(0);
    module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, nullptr, nullptr);
    // Where a call fails as well.
    fail_("cuLaunchKernel", 1, cuda_error::kOutOfResources);
    message(
        [&] {
          module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, nullptr, nullptr);
        },
        ErrorKind::Device);
    CudaHandle now = nullptr;
    ASSERT_EQ(api.context_current(&now), 0);
    EXPECT_EQ(now, other->handle());
  }
  EXPECT_EQ(contexts_(), 0);
  EXPECT_EQ(allocated_(), 0);
}

TEST_F(CudaModuleTest, WrongArraysAreRefused) {
  const auto module = load();
  const Array x(1), g(3), y(0), far(1, 1);
  const auto refusal = [&](CudaAddress a, CudaAddress to) {
    return message(
        [&] {
          module->run(std::vector{a, g.at()}, std::vector{to}, nullptr, nullptr);
        },
        ErrorKind::BadInput);
  };
  EXPECT_NE(refusal(far.at(), y.at())
                .find("input 0 is on cuda:1, and the program is loaded on "
                      "Stand-in 0 (cuda:0, compute capability 9.0)"),
            std::string::npos);
  EXPECT_NE(refusal(x.at() + 4, y.at()).find("no multiple of 16 bytes"), std::string::npos);
  float host[256];
  EXPECT_NE(refusal(x.at(), reinterpret_cast<CudaAddress>(host) & ~CudaAddress{15})
                .find("output 0 is not in memory that CUDA knows"),
            std::string::npos);
  EXPECT_NE(
      message([&] { module->run(std::vector{x.at()}, std::vector{y.at()}, nullptr, nullptr); },
              ErrorKind::BadInput)
          .find("takes 2 inputs"),
      std::string::npos);
}

TEST_F(CudaModuleTest, LimitsOfTheDeviceAreNamed) {
  CudaProgram p = program(parse(kGraph));
  p.arch = parse_arch("sm_80");
  EXPECT_NE(message([&] { load(p); }, ErrorKind::Unsupported)
                .find("compiled for sm_80, which Stand-in 0 (cuda:0, compute capability 9.0) does "
                      "not run; use target cuda:sm_90a"),
            std::string::npos);
  p = program(parse(kGraph));
  p.kernels[0].shared_bytes = 101 << 10;
  EXPECT_NE(message([&] { load(p); }, ErrorKind::Unsupported)
                .find("takes 101 KiB of shared memory, and a block on Stand-in 0"),
            std::string::npos);
  p = program(parse(kGraph));
  p.kernels[0].shared_bytes = 99 << 10;  // more than without asking
  EXPECT_NE(load(p), nullptr);
  EXPECT_NE(message([&] { load(program(parse(kGraph)), 2); }, ErrorKind::NotFound)
                .find("there is no device cuda:2; there are 2"),
            std::string::npos);
}

TEST_F(CudaModuleTest, OutOfMemoryTellsHowMuchThereIs) {
  const std::string said =
      message([&] { DeviceMemory(CudaContext::of(0), 65 << 20, "the intermediate results"); },
              ErrorKind::OutOfMemory);
  EXPECT_NE(said.find("the intermediate results take 65 MiB, and 64 MiB of 64 MiB are free"),
            std::string::npos)
      << said;
  // Nothing else has changed.
  const auto module = load();
  const Array x(1), g(3), y(0);
  fail_("cuMemAlloc_v2", 1, cuda_error::kOutOfMemory);
  const auto run = [&] {
    module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, nullptr, nullptr);
  };
  message(run, ErrorKind::OutOfMemory);
  run();
  EXPECT_EQ(y.values()[7], expected(8, 10));
}

TEST_F(CudaModuleTest, AKernelThatFailsIsToldByTheCallThatRanIt) {
  CudaProgram p = program(parse(kGraph));
  for (CudaKernel& k : p.kernels)
    if (k.name == "product") k.name = "beyond";
  const auto module = load(p);
  const Array x(1), g(3), y(0);
  const auto run = [&] {
    module->run(std::vector{x.at(), g.at()}, std::vector{y.at()}, nullptr, nullptr);
  };
  const std::string said = message(run, ErrorKind::Device);
  EXPECT_NE(said.find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << said;
  EXPECT_NE(said.find("line 19: out of bounds"), std::string::npos) << said;
  EXPECT_NE(said.find("restart it"), std::string::npos) << said;
  // From then on the same is said at once.
  const int launches = calls_("cuLaunchKernel");
  EXPECT_EQ(message(run, ErrorKind::Device), said);
  EXPECT_EQ(calls_("cuLaunchKernel"), launches);
}

TEST_F(CudaModuleTest, EveryCallOfTheDriverIsChecked) {
  for (const char* function :
       {"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuModuleLoadData",
        "cuModuleGetFunction", "cuFuncSetAttribute", "cuFuncGetAttribute", "cuMemAlloc_v2",
        "cuStreamGetCaptureInfo_v2", "cuLaunchKernel", "cuStreamSynchronize",
        "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"}) {
    reset_(1, 9, 0, 64 << 20, 100 << 10);
    CudaDriver::use_library(stand_in_cuda());
    image();
    fail_(function, 1, 999);
    const auto all = [&] {
      const auto module = load();
      const std::vector<float> x(256, 1), g(256, 1);
      std::vector<float> y(256);
      module->run_on_host_arrays(std::vector<const void*>{x.data(), g.data()},
                                 std::vector<void*>{y.data()});
    };
    EXPECT_THROW(all(), Error) << function;
  }
}

// A test's garbage may outlive its machine: it gives back that one's device, not the next one's.
TEST_F(CudaModuleTest, WhatIsLeftOfAnEarlierMachineSparesThisOne) {
  auto earlier = CudaContext::of(0);
  reset_(1, 9, 0, 64 << 20, 100 << 10);
  CudaDriver::use_library(stand_in_cuda());
  const auto context = CudaContext::of(0);
  EXPECT_THROW(CudaContext::Current{*earlier}, Error);
  earlier.reset();
  EXPECT_NO_THROW(CudaContext::Current{*context});
}

// The driver is told of the boxes of each array, anew where the array is another one.
TEST_F(CudaModuleTest, BoxesOfArraysAreDescribed) {
  reset_(1, 9, 0, 64 << 20, 227 << 10);
  CudaDriver::use_library(stand_in_cuda());
  const Graph graph = parse(rms_norm_linear(16, 128, 128, 2, 2, "f16"));
  const CudaProgram program = emit_cuda(graph, parse_arch("sm_90a"), {}, gpu());
  ASSERT_EQ(program.kernels.size(), 1u);
  ASSERT_EQ(program.kernels[0].maps.size(), 1u);
  const std::string image = host_kernels(program.source, {program.kernels[0].name}, test_cache());
  const CudaModule module(graph, program, image, CudaContext::of(0));
  const auto fault =
      check_compiled(graph, [&](auto in, auto out) { module.run_on_host_arrays(in, out); }, {});
  EXPECT_TRUE(fault);
  const int described = calls_("cuTensorMapEncodeTiled");
  EXPECT_GE(described, 1);
  // Boxes that the hardware does not copy are refused.
  CudaProgram wrong = program;
  wrong.kernels[0].maps[0].box_rows = 257;
  const CudaModule refused(graph, wrong, image, CudaContext::of(0));
  const std::string said = message(
      [&] {
        check_compiled(graph, [&](auto in, auto out) { refused.run_on_host_arrays(in, out); }, {});
      },
      ErrorKind::Device);
  EXPECT_NE(said.find("describe boxes of an array of 128 x 128 elements for k0"), std::string::npos)
      << said;
}

TEST_F(CudaModuleTest, DriversAreToldApart) {
  const auto driver = CudaDriver::get();
  EXPECT_TRUE(driver->runs_host_code());
  EXPECT_EQ(driver->version(), 13000);
  require_driver_for(*driver, 13, 5);
  version_(12040);
  CudaDriver::use_library(stand_in_cuda());
  const std::string said =
      message([&] { require_driver_for(*CudaDriver::get(), 13, 0); }, ErrorKind::ToolMissing);
  EXPECT_NE(said.find("for CUDA 12.4, and NVRTC is of CUDA 13.0"), std::string::npos) << said;
  EXPECT_NE(said.find("pip install nvidia-cuda-nvrtc-cu12"), std::string::npos) << said;
  ASSERT_EQ(cuda_devices().size(), 2u);
  EXPECT_EQ(cuda_devices()[1].arch(), "sm_90a");
  reset_(0, 9, 0, 0, 0);
  CudaDriver::use_library(stand_in_cuda());
  EXPECT_TRUE(cuda_devices().empty());
  EXPECT_NE(message([] { CudaContext::of(0); }, ErrorKind::NotFound).find("the driver sees none"),
            std::string::npos);
  CudaDriver::use_library("/nowhere/libcuda.so.1");
  EXPECT_NE(message([] { CudaDriver::get(); }, ErrorKind::ToolMissing).find("no CUDA driver"),
            std::string::npos);
  CudaDriver::use_library("libm.so.6");
  EXPECT_NE(message([] { CudaDriver::get(); }, ErrorKind::ToolMissing).find("has no cuInit"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
