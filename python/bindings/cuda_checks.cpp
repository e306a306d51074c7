// What `make gpu-test` asks of the core besides what users do: fragments of a device, random
// programs.
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "backend/cuda/fragments.h"
#include "bindings.h"
#include "verify/bench/random_program.h"

namespace tessera::python {
namespace {

using Fragment = std::tuple<std::string, int, int, bool, bool>;

std::vector<std::vector<uint32_t>> fragments(const std::string& source,
                                             const std::vector<Fragment>& kernels, int device) {
  std::vector<FragmentKernel> all;
  for (const auto& [name, threads, words, box, swizzled] : kernels)
    all.push_back({name, threads, words, box, swizzled});
  nb::gil_scoped_release release;
  Cache cache;
  return read_fragments(source, all, device, cache);
}

Graph random(uint64_t seed, const std::string& dtype, double kernel_chance, int64_t max_extent) {
  RandomProgramOptions options;
  options.dtype = dtype_from(dtype);
  options.kernel_chance = kernel_chance;
  options.max_extent = max_extent;
  return random_program(seed, options);
}

}  // namespace

void bind_cuda_checks(nb::module_& m) {
  m.def("read_fragments", &fragments, nb::arg("source"), nb::arg("kernels"), nb::arg("device") = 0);
  m.def("random_program", &random, nb::arg("seed"), nb::arg("dtype") = "f32",
        nb::arg("kernel_chance") = 0.35, nb::arg("max_extent") = 7);
}

}  // namespace tessera::python
