// What `tessera bench` and `make gpu-test` ask of their own C++: campaigns against the verifier and
// against the check of compiled code, random programs, fragments of a device, and what kernels take
// when they are compiled without a GPU. Not part of the package (see CMakeLists.txt).
#include <nanobind/nanobind.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "backend/cache.h"
#include "backend/cuda/nvrtc.h"
#include "backend/cuda_code.h"
#include "backend/fault_bench.h"
#include "backend/fragments.h"
#include "backend/written.h"
#include "base/thread_pool.h"
#include "bindings.h"
#include "driver/code.h"
#include "driver/optimize.h"
#include "long_call.h"
#include "verify/bench/bench.h"
#include "verify/bench/random_program.h"
#include "verify/filter.h"

namespace tessera::python {
namespace {

nb::dict record(const VerifyBenchRow& row) {
  nb::dict d;
  d["name"] = row.name;
  d["count"] = row.count;
  d["accepted"] = row.accepted;
  d["refuted"] = row.refuted;
  d["unknown"] = row.unknown;
  d["harmless"] = row.harmless;
  d["undecided"] = row.undecided;
  d["seconds"] = row.seconds;
  nb::dict kinds;
  for (const KindResult& kind : row.kinds) {
    nb::dict k;
    k["count"] = kind.count;
    k["equal"] = kind.equal;
    k["refuted"] = kind.refuted;
    k["unknown"] = kind.unknown;
    k["harmless"] = kind.harmless;
    kinds[kind.kind.c_str()] = k;
  }
  d["kinds"] = kinds;
  d["failures"] = row.failures;
  return d;
}

Graph random(uint64_t seed, const std::string& dtype, double kernel_chance, int64_t max_extent) {
  RandomProgramOptions options;
  options.dtype = dtype_from_name(dtype).value();
  options.kernel_chance = kernel_chance;
  options.max_extent = max_extent;
  return random_program(seed, options);
}

// Which candidates the cheap field filter lets pass, in order.
std::vector<bool> filtered(const Graph& spec, const std::vector<Graph>& candidates, uint64_t seed,
                           int threads) {
  nb::gil_scoped_release release;
  Filter filter(spec, seed, threads);
  std::vector<char> passed(candidates.size());
  ThreadPool pool(threads);
  pool.parallel_for(int64_t(candidates.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      passed[size_t(i)] = filter.may_equal(candidates[size_t(i)]);
  });
  return {passed.begin(), passed.end()};
}

using Fragment = std::tuple<std::string, int, int, int, bool>;

std::vector<std::vector<uint32_t>> fragments(const std::string& source,
                                             const std::vector<Fragment>& kernels, int device) {
  std::vector<FragmentKernel> all;
  for (const auto& [name, threads, words, box_columns, swizzled] : kernels)
    all.push_back({name, threads, words, box_columns, swizzled});
  nb::gil_scoped_release release;
  Cache cache;
  return read_fragments(source, all, device, cache);
}

// What each kernel takes of a multiprocessor, without some of the plan's decisions.
nb::list compiled(const Graph& graph, const std::string& target, const std::string& folder,
                  const std::set<std::string>& disable) {
  CudaProgram program;
  CudaObject object;
  {
    nb::gil_scoped_release release;
    const CodePlace place = place_of(target, folder);
    OptimizeOptions options;
    options.target = target;
    options.target_directory = folder;
    const Target described = resolve_target(options);
    PlanOptions plan;
    for (const std::string& decision : disable) disable_plan(plan, decision);
    program = emit_cuda(graph, place.arch, plan, described, {}, kernel_joins(graph, described));
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

}  // namespace
}  // namespace tessera::python

NB_MODULE(_bench, m) {
  using namespace tessera;          // NOLINT: a module has no name to put before its functions
  using namespace tessera::python;  // NOLINT
  m.def(
      "bench_verify",
      [](int injected, int equal, uint64_t seed, int threads, nb::object progress, int deep,
         int branches, const std::string& kind) {
        VerifyBenchOptions options;
        options.injected = injected;
        options.equal = equal;
        options.deep = deep;
        options.branches = branches;
        options.kind = kind;
        options.seed = seed;
        if (threads > 0) options.threads = threads;
        LongCall call;
        options.cancel = &call.cancel;
        options.progress = [&](const char* row, int done, int total) {
          call.publish([=]() -> nb::object { return nb::make_tuple(row, done, total); });
        };
        auto rows = call.run([&] { return bench_verify(options); }, progress);
        nb::list list;
        for (const VerifyBenchRow& row : rows) list.append(record(row));
        return nb::make_tuple(list, call.interrupted);
      },
      nb::arg("injected"), nb::arg("equal"), nb::arg("seed") = 1, nb::arg("threads") = 0,
      nb::arg("progress") = nb::none(), nb::arg("deep") = 0, nb::arg("branches") = 0,
      nb::arg("kind") = "");
  m.def(
      "bench_kernel_faults",
      [](int count, uint64_t seed, int threads) {
        FaultBenchOptions options;
        options.count = count;
        options.seed = seed;
        if (threads > 0) options.threads = threads;
        LongCall call;
        options.cancel = &call.cancel;
        FaultBenchRow row = call.run([&] {
          Cache cache;
          return bench_kernel_faults(cache, options);
        });
        nb::dict d;
        d["count"] = row.count;
        d["caught"] = row.caught;
        d["missed"] = row.missed;
        d["harmless"] = row.harmless;
        d["undecided"] = row.undecided;
        d["seconds"] = row.seconds;
        d["failures"] = row.failures;
        d["interrupted"] = call.interrupted;
        return d;
      },
      nb::arg("count"), nb::arg("seed") = 1, nb::arg("threads") = 0);
  m.def("filter", &filtered, nb::arg("spec"), nb::arg("candidates"), nb::arg("seed") = 1,
        nb::arg("threads") = 0);
  m.def("random_program", &tessera::python::random, nb::arg("seed"), nb::arg("dtype") = "f32",
        nb::arg("kernel_chance") = 0.35, nb::arg("max_extent") = 7);
  // Of this module's own copy of the library.
  m.def("set_cuda_folders", &set_cuda_folders, nb::arg("folders"));
  m.def("use_cuda_driver", &CudaDriver::use_library, nb::arg("path"));
  m.def("read_fragments", &fragments, nb::arg("source"), nb::arg("kernels"), nb::arg("device") = 0);
  m.def("cuda_compiled", &compiled, nb::arg("graph"), nb::arg("target"),
        nb::arg("target_directory"), nb::arg("disable") = std::set<std::string>());
}
