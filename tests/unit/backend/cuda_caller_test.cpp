// The function of a saved file that launches all kernels: run on the host, with a runtime of our
// own that hands each launch to the emulator.
#include <gtest/gtest.h>

#include <map>

#include "backend/arrays.h"
#include "backend/block_programs.h"
#include "backend/cuda/nvrtc.h"
#include "backend/emulated.h"
#include "backend/host_kernels.h"
#include "backend/joined_programs.h"
#include "backend/testing.h"
#include "backend/written.h"
#include "base/rng.h"
#include "ir/text.h"

namespace tessera {
namespace {

// In place of cuda_caller_runtime, and of CUDA's own.
const char* const kRuntime = R"(
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
using cudaStream_t = void*;
using cudaError_t = int;
#define SEEN extern "C" __attribute__((visibility("default")))
SEEN void (*on_launch)(const void*, const int*, void**);
void (*on_launch)(const void*, const int*, void**) = nullptr;
struct ts_work {
  cudaStream_t stream;
  cudaError_t error = 0;
  void launch(const void* kernel, dim3 grid, int threads, int shared, int cluster, void** arguments) {
    const int numbers[] = {int(grid.x), int(grid.y), int(grid.z), threads, shared, cluster};
    on_launch(kernel, numbers, arguments);
  }
  void fill(void* to, unsigned long long element, int bytes, long long n) {
    for (long long i = 0; i < n; i += bytes) std::memcpy(static_cast<char*>(to) + i, &element, bytes);
  }
  void zero(void* to, unsigned long bytes) { std::memset(to, 0, bytes); }
  void copy(void* to, const void* from, unsigned long bytes) { std::memcpy(to, from, bytes); }
  ts::TensorMap boxes(void* from, int type, unsigned long long columns, unsigned long long rows,
                      unsigned long long pitch, unsigned box_columns, unsigned box_rows, int swizzle) {
    const int bytes = type == 2 ? 4 : type + 1, row = int(box_columns) * bytes;
    if (swizzle != 0 && row != 16 << swizzle) error = 1;
    return ts::host::tensor_map(static_cast<char*>(from), int(rows), int(columns), (long long)(pitch), bytes,
                                int(box_rows), int(box_columns), swizzle != 0);
  }
};
)";

struct Run {
  std::map<const void*, const HostKernel*> kernels;
  std::vector<EmulatedBuffer> buffers;
  size_t launches = 0;
  std::string wrong;
};
Run* current = nullptr;

void launched(const void* kernel, const int* numbers, void** arguments) {
  ++current->launches;
  EmulatedLaunch launch{
      {numbers[0], numbers[1], numbers[2]}, numbers[3], numbers[4], current->buffers, 3};
  const HostKernel& k = *current->kernels.at(kernel);
  if (const auto fault = emulate(launch, [&] { k.call(arguments); });
      fault && current->wrong.empty())
    current->wrong = fault->str();
}

struct CallMemory {
  explicit CallMemory(int64_t bytes)
      : data(static_cast<std::byte*>(::operator new (size_t(bytes), std::align_val_t{256}))) {
    std::fill_n(data, bytes, std::byte{0xff});
  }
  CallMemory(CallMemory&& m) : data(std::exchange(m.data, nullptr)) {}
  ~CallMemory() { ::operator delete (data, std::align_val_t{256}); }
  std::byte* data;
};

// What differs between the saved file's function and what a module does; empty if nothing.
std::string difference(const Graph& graph, const std::string& arch, bool join = false) {
  std::vector<KernelJoin> joins;
  for (const Op& op : graph.ops())
    if (const auto found = kernel_join(graph, graph.tensor(op.result()).producer); found && join)
      joins.push_back(*found);
  const CudaProgram program = emit_cuda(graph, parse_arch(arch), {}, gpu(), {}, joins);
  const std::string said = "// `workspace` is ";
  const size_t at = program.caller.find(said);
  if (at == std::string::npos) return program.caller;
  const int64_t bytes = std::atoll(program.caller.c_str() + at + said.size());

  std::string source =
      program.source + kRuntime + program.caller + "SEEN const void* const pointers[] = {";
  std::vector<std::string> names;
  for (const CudaKernel& k : program.kernels) {
    names.push_back(k.name);
    source += "reinterpret_cast<const void*>(&" + k.name + "), ";
  }
  std::vector<CallMemory> memory;
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<EmulatedBuffer> buffers;
  std::string call;
  Rng rng(3);
  for (TensorId t : graph.inputs()) {
    NDArray x = NDArray::zeros(graph.type(t).dtype, extents(graph.type(t).shape));
    for (double& r : x.reals) r = round_to(x.dtype, 2 * rng.unit() - 1);
    const std::vector<std::byte> data = to_memory(x);
    memory.emplace_back(int64_t(data.size()));
    std::copy(data.begin(), data.end(), memory.back().data);
    buffers.push_back({memory.back().data, int64_t(data.size()), false, true});
    call += "a[" + std::to_string(in.size()) + "], ";
    in.push_back(memory.back().data);
  }
  for (TensorId t : graph.outputs()) {
    memory.emplace_back(graph.type(t).bytes());
    buffers.push_back({memory.back().data, graph.type(t).bytes(), true, true});
    call += "a[" + std::to_string(in.size() + out.size()) + "], ";
    out.push_back(memory.back().data);
  }
  memory.emplace_back(bytes);
  buffers.push_back({memory.back().data, bytes, true, true});
  source += "};\nSEEN int run(void** a, void* w) { return run_" + graph.name() + "(" + call +
            "w, nullptr); }\n";

  const auto library = load_host_kernels(source, names, test_cache());
  reinterpret_cast<void (*)(const void*)>(library->symbol("tessera_bind"))(emulator_api());
  Run run;
  run.buffers = buffers;
  for (size_t i = 0; i < names.size(); ++i)
    run.kernels[static_cast<const void* const*>(library->symbol("pointers"))[i]] =
        static_cast<const HostKernel*>(library->symbol("tessera_entry_" + names[i]));
  *static_cast<decltype(&launched)*>(library->symbol("on_launch")) = launched;
  std::vector<void*> all;
  for (const void* p : in) all.push_back(const_cast<void*>(p));
  all.insert(all.end(), out.begin(), out.end());
  current = &run;
  for (int again = 0; again < 2 && run.wrong.empty(); ++again)
    if (reinterpret_cast<int (*)(void**, void*)>(library->symbol("run"))(all.data(),
                                                                         memory.back().data) != 0)
      run.wrong = "an error came back";
  current = nullptr;
  if (!run.wrong.empty()) return run.wrong + "\n" + program.caller;
  if (run.launches != 2 * program.kernels.size()) return "not every kernel was launched";

  std::vector<std::vector<std::byte>> right;
  std::vector<void*> expected;
  for (TensorId t : graph.outputs()) {
    right.emplace_back(size_t(graph.type(t).bytes()));
    expected.push_back(right.back().data());
  }
  if (const auto fault = EmulatedProgram(graph, program).run(in, expected)) return fault->str();
  for (size_t i = 0; i < right.size(); ++i)
    if (!std::equal(right[i].begin(), right[i].end(), static_cast<std::byte*>(out[i])))
      return "result " + std::to_string(i) + " differs\n" + program.caller;
  return "";
}

// Constants, weights that are prepared, results that are copies, intermediate arrays.
const char* const kSeveral = R"(graph several {
  X = input : f16[9,40]
  W = input {weight=true} : f16[24,40]
  half = const {value=1/2} : f16[]
  T = transpose W {perm=[1,0]}
  H = mul T, half
  p = matmul X, H
  m = reduce_max p {axes=[1], keepdims=true}
  O = sub p, m
  return O, O, X, m
}
)";

TEST(CudaCaller, RunsWhatAModuleRuns) {
  for (const char* arch : {"sm_80", "sm_90a"}) {
    EXPECT_EQ(difference(parse(kSeveral), arch), "") << arch;
    EXPECT_EQ(difference(parse(rms_norm_linear(16, 256, 256, 2, 2, "bf16")), arch), "") << arch;
    EXPECT_EQ(difference(parse(split_attention(2, 4, 64, 16, 4, 2, "f16")), arch, true), "")
        << arch;
  }
}

TEST(CudaCaller, DescribesBoxesAndClusters) {
  const Graph wide = parse(rms_norm_linear(16, 256, 256, 2, 2, "bf16"));
  EXPECT_NE(emit_cuda(wide, parse_arch("sm_90a"), {}, gpu()).caller.find("t.boxes("),
            std::string::npos);
  const Graph split = parse(split_attention(4, 8, 1024, 128, 16, 1, "bf16"));
  const auto join = kernel_join(split, split.tensor(split.outputs()[0]).producer);
  ASSERT_TRUE(join);
  const auto caller = [&](const char* arch) {
    return emit_cuda(split, parse_arch(arch), {}, gpu(), {}, {*join}).caller;
  };
  EXPECT_NE(caller("sm_90a").find(", 16, arguments);"), std::string::npos);
  EXPECT_NE(caller("sm_80").find("t.zero(tickets"), std::string::npos);
}

}  // namespace
}  // namespace tessera
