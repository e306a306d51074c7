// What `make gpu-test` and `tessera bench mirage --emulate` ask of the core besides what users do:
// fragments of a device, kernels that are emulated and compiled without a GPU.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "arrays.h"
#include "backend/cuda/emulate_program.h"
#include "backend/cuda/fragments.h"
#include "backend/cuda/nvrtc.h"
#include "backend/cuda_code.h"
#include "base/error.h"
#include "bindings.h"

namespace tessera::python {
namespace {

using Fragment = std::tuple<std::string, int, int, int, bool>;

std::vector<std::vector<uint32_t>> fragments(const std::string& source,
                                             const std::vector<Fragment>& kernels, int device) {
  std::vector<FragmentKernel> all;
  for (const auto& [name, threads, words, box_columns, swizzled] : kernels)
    all.push_back({name, threads, words, box_columns, swizzled});
  Released release;
  Cache cache;
  return read_fragments(source, all, device, cache);
}

// What each kernel takes of a multiprocessor.
nb::list compiled(const Graph& graph, const std::string& target, const std::string& folder,
                  const std::set<std::string>& disable) {
  CudaProgram program;
  CudaObject object;
  {
    Released release;
    program = cuda_program(graph, target, folder, disable);
    std::vector<std::string> names;
    for (const CudaKernel& k : program.kernels) names.push_back(k.name);
    object = compile_cuda_kernels(program.source, names, program.arch.str());
  }
  nb::list list;
  for (size_t i = 0; i < program.kernels.size(); ++i) {
    const CudaKernel& k = program.kernels[i];
    const CudaBinary& b = object.kernels[i];
    list.append(dict_of("name", k.name, "grid", nb::make_tuple(k.grid[0], k.grid[1], k.grid[2]),
                        "threads", k.threads, "barriers", k.barriers, "registers", b.registers,
                        "spilled_bytes", b.spilled_bytes, "serialized", b.serialized, "stack_bytes",
                        b.stack_bytes, "smem_bytes", k.shared_bytes + b.static_shared_bytes));
  }
  return list;
}

std::vector<void*> arrays_at(const nb::list& arrays, const Graph& graph,
                             const std::vector<TensorId>& tensors, const char* what, int flags) {
  std::vector<void*> memory;
  if (arrays.size() != tensors.size())
    throw Error(ErrorKind::BadInput, "expected " + std::to_string(tensors.size()) + " " + what +
                                         "s, got " + std::to_string(arrays.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyObject* array = arrays[i].ptr();
    const Type& type = graph.type(tensors[i]);
    if (!is_plain_array(array) || (head_of(array).flags & flags) != flags ||
        nb::cast<int64_t>(arrays[i].attr("nbytes")) != type.bytes())
      throw Error(ErrorKind::BadInput, std::string(what) + " " + std::to_string(i) +
                                           " must be a row-major NumPy array of " + type.str());
    memory.push_back(head_of(array).data);
  }
  return memory;
}

// The kernels' first fault in the emulator; none: `outputs` are filled.
std::optional<std::string> emulated(const Graph& graph, const nb::list& inputs,
                                    const nb::list& outputs, const std::string& target,
                                    const std::string& folder, uint64_t seed) {
  const auto in = arrays_at(inputs, graph, graph.inputs(), "input", kRowMajor | kAligned);
  const auto out =
      arrays_at(outputs, graph, graph.outputs(), "output", kRowMajor | kAligned | kWriteable);
  const std::vector<const void*> read(in.begin(), in.end());
  Released release;
  const EmulatedProgram program(graph, cuda_program(graph, target, folder));
  const auto fault = program.run(read, out, seed);
  return fault ? std::optional(fault->str()) : std::nullopt;
}

}  // namespace

void bind_cuda_checks(nb::module_& m) {
  m.def("read_fragments", &fragments, nb::arg("source"), nb::arg("kernels"), nb::arg("device") = 0);
  m.def("cuda_compiled", &compiled, nb::arg("graph"), nb::arg("target"),
        nb::arg("target_directory"), nb::arg("disable") = std::set<std::string>());
  m.def("cuda_emulated", &emulated, nb::arg("graph"), nb::arg("inputs"), nb::arg("outputs"),
        nb::arg("target"), nb::arg("target_directory"), nb::arg("seed") = 1);
}

}  // namespace tessera::python
