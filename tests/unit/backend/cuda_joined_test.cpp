// Two kernels in one launch: right in the emulator whatever block comes last, compiled for every
// architecture, and every fault of their meeting found.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "backend/arrays.h"
#include "backend/cuda/cuda_module.h"
#include "backend/cuda/nvrtc.h"
#include "backend/cuda_code.h"
#include "backend/emulated.h"
#include "backend/host_kernels.h"
#include "backend/joined_programs.h"
#include "backend/testing.h"
#include "backend/written.h"
#include "base/error.h"
#include "base/rng.h"
#include "cost/analytical.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "stand_in.h"

namespace tessera {
namespace {

CudaProgram joined_code(const Graph& graph, const std::string& arch, const Target& target = gpu()) {
  const auto join = kernel_join(graph, graph.tensor(graph.outputs()[0]).producer);
  EXPECT_TRUE(join) << print(graph);
  return emit_cuda(graph, parse_arch(arch), {}, target, {}, {*join});
}

// What is wrong with the launch, in two orders of blocks; empty if nothing is.
std::string fault_of(const Graph& graph, CudaProgram made) {
  const EmulatedProgram program(graph, std::move(made));
  Rng rng(5);
  std::vector<NDArray> inputs;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<const void*> in;
  for (TensorId t : graph.inputs()) {
    inputs.push_back(NDArray::zeros(graph.type(t).dtype, extents(graph.type(t).shape)));
    for (double& x : inputs.back().reals) x = round_to(inputs.back().dtype, 2 * rng.unit() - 1);
    bytes.push_back(to_memory(inputs.back()));
  }
  for (const auto& b : bytes) in.push_back(b.data());
  const NDArray exact = eval(graph, inputs)[0];
  const Type& type = graph.type(graph.outputs()[0]);
  for (const uint64_t seed : {1, 2}) {
    std::vector<std::byte> out(size_t(type.bytes()));
    void* to[] = {out.data()};
    if (const auto fault = program.run(in, to, seed)) return fault->str();
    const NDArray ours = from_memory(type, out.data());
    for (size_t i = 0; i < exact.reals.size(); ++i)
      if (!(std::abs(ours.reals[i] - exact.reals[i]) < 0.02))
        return std::to_string(ours.reals[i]) + " for " + std::to_string(exact.reals[i]);
  }
  return "";
}

TEST(CudaJoined, OneLaunchDoesBoth) {
  const struct {
    std::string text;
    const char* arch;
    int tickets;
  } cases[] = {{split_product(20, 48, 50, 2, 4, 3, 2, "f32"), "sm_80", 2},
               {split_attention(2, 8, 64, 64, 4, 8, "f16"), "sm_90a", 0}};
  for (const auto& c : cases) {
    const Graph graph = parse(c.text);
    CudaProgram program = joined_code(graph, c.arch);
    ASSERT_EQ(program.kernels.size(), 1u);
    EXPECT_EQ(program.kernels[0].tickets, c.tickets);
    const std::string source = program.source;
    EXPECT_EQ(source.find("__cluster_dims__(1, 4, 1)") != std::string::npos, c.tickets == 0);
    EXPECT_EQ(fault_of(graph, std::move(program)), "") << source;
  }
}

// A group is what agrees in the dimensions that cut what both see alike; nothing that is computed
// in between may be needed.
TEST(CudaJoined, GroupsFollowTheGrid) {
  const auto join = [](const std::string& text) {
    const Graph g = parse(text);
    return kernel_join(g, g.tensor(g.outputs()[0]).producer);
  };
  const auto rows = join(split_product(32, 64, 96, 2, 3, 4, 2, "f16"));
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->same, (std::vector<int>{0, -1}));
  EXPECT_EQ(rows->groups, 2);
  EXPECT_EQ(rows->arrivals, 12);
  EXPECT_EQ(rows->parts, 2);
  const auto both = join(split_product(32, 64, 96, 2, 3, 4, 4, "f16"));
  EXPECT_EQ(both->same, (std::vector<int>{0, 2}));
  EXPECT_EQ(both->arrivals, 3);
  EXPECT_FALSE(join(split_product(32, 64, 96, 2, 1, 4, 4, "f16"))) << "nobody to wait for";
  std::string between = split_product(32, 64, 96, 1, 3, 1, 1, "f32");
  between.replace(between.find("  O = kernel P"), 14, "  Q = relu P\n  O = kernel Q");
  EXPECT_FALSE(join(between)) << "another operator lies between";
}

// The model joins where a launch costs more than one multiprocessor takes for a group's results.
TEST(CudaJoined, TheModelJoinsWhatIsShort) {
  const Graph small = parse(split_attention(4, 8, 1024, 128, 16, 1, "f16"));
  const auto joins = kernel_joins(small, gpu());
  ASSERT_EQ(joins.size(), 1u);
  Target t = gpu();
  t.libraries.clear();
  const AnalyticalModel model(t);
  const auto kernels = model.kernels(small);
  ASSERT_EQ(kernels.size(), 1u);
  const Machine& m = model.machine();
  EXPECT_LT(kernels[0].seconds, m.seconds(kernels[0].first_work) + m.seconds(kernels[0].work));
  EXPECT_GT(kernels[0].seconds, m.seconds(kernels[0].first_work) + t.sm.l2_latency);
  // Without clusters there are a fence and a ticket instead.
  t.sm.cluster = 8;  // of 16 that would have to meet
  EXPECT_GT(AnalyticalModel(t).kernels(small)[0].seconds, kernels[0].seconds + t.sm.l2_latency);
  // One block would put together 16 MB.
  EXPECT_TRUE(
      kernel_joins(parse(split_product(1024, 1024, 64, 1, 4, 64, 128, "f32")), gpu()).empty());
}

// One limit for model and generator: the architecture's, and what the description says.
TEST(CudaJoined, ClustersAreWithinTheLimit) {
  const struct {
    const char* arch;
    int described, limit;
  } cases[] = {{"sm_80", 16, 1},    {"sm_90a", 16, 16}, {"sm_90a", 8, 8},  {"sm_90a", 1, 1},
               {"sm_100a", 16, 16}, {"sm_103a", 16, 8}, {"sm_120", 16, 8}, {"sm_121", 16, 8}};
  for (const auto& c : cases) {
    Target described = gpu();
    described.sm.cluster = c.described;
    const CudaArch arch = parse_arch(c.arch);
    const Target fitted = fitted_target(described, arch, nullptr);
    EXPECT_EQ(fitted.sm.cluster, c.limit) << c.arch;
    EXPECT_EQ(fitted.sm.shared, arch.shared_bytes() + (1 << 10)) << c.arch;
    for (const int parts : {8, 16, 32}) {
      const Graph graph = parse(split_attention(1, 4, 64, 16, parts, 1, "f16"));
      for (const Target& target : {described, fitted}) {
        const CudaKernel kernel = joined_code(graph, c.arch, target).kernels.at(0);
        EXPECT_EQ(kernel.cluster, parts <= c.limit ? parts : 1) << c.arch << " " << parts;
        EXPECT_EQ(kernel.tickets > 0, parts > c.limit) << c.arch << " " << parts;
      }
    }
  }
}

// Calls after one another: tickets are zero again each time, and clusters meet.
TEST(CudaJoined, RunsAgainAndAgainOnADevice) {
  void* library = dlopen(stand_in_cuda(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto reset =
      reinterpret_cast<void (*)(int, int, int, int64_t, int64_t)>(dlsym(library, "stand_in_reset"));
  for (const int major : {8, 9}) {
    reset(1, major, 0, 64 << 20, 160 << 10);
    CudaDriver::use_library(stand_in_cuda());
    const Graph graph = parse(split_product(20, 48, 48, 2, 4, 1, 1, "f32"));
    const CudaProgram program = joined_code(graph, major == 8 ? "sm_80" : "sm_90a");
    EXPECT_EQ(program.ticket_bytes() > 0, major == 8);
    const CudaModule module(graph, program,
                            host_kernels(program.source, {program.kernels[0].name}, test_cache()),
                            CudaContext::of(0));
    const std::vector<float> a(20 * 48, 1), b(48 * 48, 0.5f);
    const void* in[] = {a.data(), b.data()};
    for (int call = 0; call < 3; ++call) {
      std::vector<float> o(20 * 48, -1);
      void* out[] = {o.data()};
      module.run_on_host_arrays(in, out);
      EXPECT_EQ(o, std::vector<float>(20 * 48, 24)) << "call " << call;
    }
  }
  CudaDriver::use_library("");
}

// Where the device has no room for a cluster, which it is asked before anything is launched, code
// without one takes its place.
TEST(CudaJoined, NoRoomForClusters) {
  void* library = dlopen(stand_in_cuda(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto reset =
      reinterpret_cast<void (*)(int, int, int, int64_t, int64_t)>(dlsym(library, "stand_in_reset"));
  const auto clusters = reinterpret_cast<void (*)(int)>(dlsym(library, "stand_in_clusters"));
  const auto calls = reinterpret_cast<int (*)(const char*)>(dlsym(library, "stand_in_calls"));
  const Graph graph = parse(split_attention(4, 8, 1024, 128, 16, 1, "f16"));
  Target target = gpu();
  target.libraries.clear();
  const auto fail =
      reinterpret_cast<void (*)(const char*, int, int)>(dlsym(library, "stand_in_fail"));
  enum class Answer { Room, None, WrongSize };
  for (const Answer answer : {Answer::Room, Answer::None, Answer::WrongSize}) {
    const bool room = answer == Answer::Room;
    reset(1, 9, 0, 64 << 20, 227 << 10);
    clusters(answer == Answer::None ? 0 : 1);
    if (answer == Answer::WrongSize) fail("cuOccupancyMaxActiveClusters", 1, 912);
    CudaDriver::use_library(stand_in_cuda());
    CudaCodeOptions options;
    options.arch = parse_arch("sm_90a");
    options.target = target;
    options.context = CudaContext::of(0);
    const auto code = make_cuda_code(graph, test_cache(), options);
    ASSERT_EQ(code->program.kernels.size(), 1u);
    EXPECT_EQ(code->program.kernels[0].cluster, room ? 16 : 1);
    EXPECT_EQ(calls("cuLaunchKernel"), 0);
    // Shared memory of each module's kernel, and more than 8 blocks in a cluster.
    EXPECT_EQ(calls("cuFuncSetAttribute"), room ? 2 : 3);
    clusters(0);
    const CudaProgram program = joined_code(graph, "sm_90a");
    try {
      const CudaModule module(graph, program,
                              host_kernels(program.source, {program.kernels[0].name}, test_cache()),
                              CudaContext::of(0));
      FAIL() << "there is no room";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::Unsupported);
      EXPECT_NE(e.message().find("k0 meets in clusters of 16 blocks, of 37 KiB of shared memory"),
                std::string::npos)
          << e.message();
    }
  }
  CudaDriver::use_library("");
}

TEST(CudaJoined, CompilesForEveryArchitecture) {
  if (!have_nvrtc()) GTEST_SKIP() << "needs NVRTC (pip install nvidia-cuda-nvrtc)";
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    const Graph graph = parse(split_attention(4, 8, 1024, 128, 16, 1, "bf16"));
    const CudaProgram program = joined_code(graph, arch);
    const CudaObject object = compile_cuda_kernels(program.source, {program.kernels[0].name}, arch);
    EXPECT_EQ(object.kernels[0].spilled_bytes, 0) << arch;
    EXPECT_LE(program.kernels[0].shared_bytes, 163 << 10) << arch;
  }
}

}  // namespace
}  // namespace tessera
