// The host's part of a saved file: a function that launches a program's kernels in order.
#include <cctype>
#include <set>
#include <sstream>
#include <utility>

#include "backend/arrays.h"
#include "backend/cuda/emit.h"

namespace tessera {
namespace {

const char* const kWorkspace = "static_cast<char*>(workspace) + ";

}  // namespace

const char* const cuda_caller_runtime = R"(
#include <dlfcn.h>

__global__ void ts_fill(unsigned char* to, unsigned long long element, int bytes, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) to[i] = static_cast<unsigned char>(element >> i % bytes * 8);
}

// Work on a stream, until something fails.
struct ts_work {
  cudaStream_t stream;
  cudaError_t error = cudaSuccess;
  void then(cudaError_t e) {
    if (error == cudaSuccess) error = e;
  }
  void launch(const void* kernel, dim3 grid, int threads, int shared, int cluster, void** arguments) {
    then(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    if (cluster > 8)
      then(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    if (error == cudaSuccess)
      then(cudaLaunchKernel(kernel, grid, dim3(threads), arguments, shared, stream));
  }
  void fill(void* to, unsigned long long element, int bytes, long long n) {
    void* arguments[] = {&to, &element, &bytes, &n};
    launch(reinterpret_cast<const void*>(&ts_fill), dim3(unsigned((n + 255) / 256)), 256, 0, 1,
           arguments);
  }
  void zero(void* to, size_t bytes) { then(cudaMemsetAsync(to, 0, bytes, stream)); }
  void copy(void* to, const void* from, size_t bytes) {
    then(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
  }
  // cuTensorMapEncodeTiled; types and swizzles are numbered as there.
  ts::TensorMap boxes(void* from, int type, unsigned long long columns, unsigned long long rows,
                      unsigned long long pitch, unsigned box_columns, unsigned box_rows,
                      int swizzle) {
    using Encode = int (*)(ts::TensorMap*, int, unsigned, void*, const unsigned long long*,
                           const unsigned long long*, const unsigned*, const unsigned*, int, int,
                           int, int);
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    const auto encode =
        reinterpret_cast<Encode>(driver == nullptr ? nullptr : dlsym(driver, "cuTensorMapEncodeTiled"));
    const unsigned long long extents[2] = {columns, rows};
    const unsigned box[2] = {box_columns, box_rows}, steps[2] = {1, 1};
    ts::TensorMap map{};
    if (encode == nullptr)
      then(cudaErrorInsufficientDriver);
    else if (encode(&map, type, 2, from, extents, &pitch, box, steps, 0, swizzle, 3, 0) != 0)
      then(cudaErrorInvalidValue);
    return map;
  }
};
)";

std::string cuda_caller(const Graph& graph, const CudaProgram& program) {
  const Plan& plan = program.plan;
  std::set<int> needed;  // slots
  for (const CudaKernel& k : program.kernels) {
    if (k.call) return "\n// Libraries do parts of it: there is no function that runs all.\n";
    for (int s : k.arguments) needed.insert(plan.root(s));
  }
  for (const Plan::Copy& c : plan.copies) needed.insert(plan.root(int(c.from.index)));
  std::ostringstream about, parameters, places, work;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const TensorId t = graph.inputs()[i];
    parameters << "const void* in" << i << ", ";
    about << "//   in" << i << ": " << plan.slots[t.index].name << ", " << graph.type(t).str()
          << "\n";
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const TensorId t = graph.outputs()[i];
    parameters << "void* out" << i << ", ";
    about << "//   out" << i << ": " << plan.slots[t.index].name << ", " << graph.type(t).str()
          << "\n";
  }
  // The workspace: intermediate results, what depends on weights alone, constants, tickets.
  int64_t bytes = 0;
  const auto room = [&](int64_t n) { return std::exchange(bytes, bytes + (n + 255) / 256 * 256); };
  const int64_t arena = room(plan.arena.bytes), kept = room(plan.kept.bytes);
  for (int s : needed) {
    const Slot& slot = plan.slots[size_t(s)];
    places << "  void* p" << s << " = ";
    if (slot.place == Place::Input) {
      places << "const_cast<void*>(in" << slot.index << ")";
    } else if (slot.place == Place::Output) {
      places << "out" << slot.index;
    } else if (slot.place != Place::Constant) {
      places << kWorkspace << (slot.place == Place::Arena ? arena : kept) + slot.offset;
    } else {
      const Type& type = graph.type(TensorId(s));
      uint64_t element = 0;
      fill_constant({type.dtype, {}}, std::get<ConstAttrs>(graph.producer(TensorId(s)).attrs).value,
                    &element);
      places << kWorkspace << room(type.bytes());
      work << "  t.fill(p" << s << ", " << element << "ull, " << size_in_bytes(type.dtype) << ", "
           << type.bytes() << ");\n";
    }
    places << ";  // " << slot.name << "\n";
  }
  if (const int64_t tickets = program.ticket_bytes(); tickets > 0) {
    places << "  void* const tickets = " << kWorkspace << room(tickets) << ";\n";
    work << "  t.zero(tickets, " << tickets << ");\n";
  }
  const auto launch = [&](const CudaKernel& k) {
    std::string arguments;
    for (int s : k.arguments) arguments += "&p" + std::to_string(plan.root(s)) + ", ";
    work << "  {\n";
    if (k.tickets > 0) {
      work << "    unsigned* counters = static_cast<unsigned*>(tickets) + " << k.first_ticket
           << ";\n";
      arguments += "&counters, ";
    }
    for (size_t m = 0; m < k.maps.size(); ++m) {
      const TensorMapSpec& spec = k.maps[m];
      work << "    ts::TensorMap m" << m << " = t.boxes(static_cast<char*>(p"
           << plan.root(k.arguments[size_t(spec.argument)]) << ") + "
           << spec.offset * spec.element_bytes << ", " << spec.type() << ", " << spec.columns
           << ", " << spec.rows << ", " << spec.pitch * spec.element_bytes << ", "
           << spec.box_columns << ", " << spec.box_rows << ", " << spec.swizzle() << ");\n";
      arguments += "&m" + std::to_string(m) + ", ";
    }
    work << "    void* arguments[] = {" << arguments
         << "};\n    t.launch(reinterpret_cast<const void*>(&" << k.name << "), dim3(" << k.grid[0]
         << ", " << k.grid[1] << ", " << k.grid[2] << "), " << k.threads << ", " << k.shared_bytes
         << ", " << k.cluster << ", arguments);\n  }\n";
  };
  for (const Schedule* schedule : {&plan.once, &plan.run})
    for (const std::vector<int>& phase : schedule->phases)
      for (int task : phase) launch(program.kernels[size_t(task)]);
  for (const Plan::Copy& c : plan.copies)
    work << "  t.copy(out" << c.output << ", p" << plan.root(int(c.from.index)) << ", "
         << graph.type(c.from).bytes() << ");\n";
  std::string name = graph.name();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return "\n// Runs all of it. Arrays are row-major, on the device, at multiples of 16 bytes;\n"
         "// `workspace` is " +
         std::to_string(bytes) + " bytes there, for one call at a time.\n" + about.str() +
         "extern \"C\" cudaError_t run_" + name + "(" + parameters.str() +
         "void* workspace, cudaStream_t stream) {\n" + "  ts_work t{stream};\n" + places.str() +
         work.str() + "  return t.error;\n}\n";
}

}  // namespace tessera
