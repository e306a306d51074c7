// backend/: modules that run arrays, emitted source, calibration, and what this machine has.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>

#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "arrays.h"
#include "backend/cache.h"
#include "backend/calibrate.h"
#include "backend/cpu/compile.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/module.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/runtime.h"
#include "backend/export_c.h"
#include "backend/measure.h"
#include "backend/probe.h"
#include "base/contents.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/thread_pool.h"
#include "bindings.h"
#include "long_call.h"

namespace tessera::python {
namespace {

void run_module(const Module& module, const nb::list& inputs, const nb::list& outputs,
                const PreparedWeights* prepared) {
  const std::vector<void*> in = memory_of(inputs, module.input_types(), false, "input");
  const std::vector<const void*> read(in.begin(), in.end());
  const std::vector<void*> write = memory_of(outputs, module.output_types(), true, "output");
  Released release;
  module.run(read, write, prepared);
}

// Where arrays lie that are exactly of the given types, row-major and with these flags; false,
// without an error, where one is not.
template <class List>
bool add_exact(const List& arrays, const std::vector<Type>& types, int flags,
               std::vector<void*>& pointers) {
  static const std::vector<PyObject*> dtypes = [] {
    const nb::object to_numpy = nb::module_::import_("tessera.types").attr("to_numpy");
    return mapped(kNumDTypes,
                  [&](int t) { return nb::object(to_numpy(name(DType(t)))).release().ptr(); });
  }();
  if (!arrays_known() || nb::len(arrays) != types.size()) return false;
  for (size_t i = 0; i < types.size(); ++i) {
    const nb::handle array = arrays[i];
    if (!is_plain_array(array.ptr())) return false;
    const ArrayHead& head = head_of(array.ptr());
    const Shape& shape = types[i].shape;
    if ((head.flags & flags) != flags || head.dtype != dtypes[size_t(types[i].dtype)] ||
        head.ndim != int(shape.size()))
      return false;
    for (size_t d = 0; d < shape.size(); ++d)
      if (head.shape[d] != shape[d].extent) return false;
    pointers.push_back(head.data);
  }
  return true;
}

// The same as run_module for arrays that need nothing done to them; false, having done nothing, for
// others.
bool run_exactly(const Module& module, nb::handle inputs, const nb::list& outputs,
                 const PreparedWeights* prepared) {
  const std::vector<Type>& types = module.input_types();
  constexpr int kReadable = kRowMajor | kAligned;
  std::vector<void*> read, write;
  const bool exact = nb::isinstance<nb::tuple>(inputs)
                         ? add_exact(nb::borrow<nb::tuple>(inputs), types, kReadable, read)
                         : nb::isinstance<nb::list>(inputs) &&
                               add_exact(nb::borrow<nb::list>(inputs), types, kReadable, read);
  if (!exact || !add_exact(outputs, module.output_types(), kReadable | kWriteable, write))
    return false;
  Released release;
  module.run({const_cast<const void* const*>(read.data()), read.size()}, write, prepared);
  return true;
}

// `inputs`: arrays where the module wants weights, None elsewhere.
// `others`: prepared from the same weights by other modules.
std::shared_ptr<PreparedWeights>
prepare_module(const Module& module, const nb::list& inputs,
               const std::vector<std::shared_ptr<PreparedWeights>>& others) {
  const std::vector<Type>& types = module.input_types();
  if (inputs.size() != types.size())
    throw Error(ErrorKind::BadInput, "expected " + std::to_string(types.size()) + " inputs, got " +
                                         std::to_string(inputs.size()));
  std::vector<const void*> read(types.size(), nullptr);
  for (size_t i : module.weights()) read[i] = memory_at(inputs[i], types[i], false, "weight", i);
  const std::vector<std::shared_ptr<const PreparedWeights>> given(others.begin(), others.end());
  Released release;
  return std::const_pointer_cast<PreparedWeights>(module.prepare(read, given));
}

nb::dict plan_facts(const Module& module) {
  const Plan& plan = module.plan();
  const auto count = [&](auto which) { return std::ranges::count_if(plan.tasks, which); };
  const auto runs = count([](const Task& task) { return !task.once; });
  const auto panels = count([](const Task& task) { return task.kind == TaskKind::Pack; });
  return dict_of("tasks", plan.tasks.size(), "run_tasks", runs, "barriers", plan.run.barriers(),
                 "least_barriers", plan.run.least_barriers, "arena_bytes", plan.arena.bytes,
                 "arena_bound", plan.arena.lower_bound, "in_place", plan.in_place, "packed", panels,
                 "kept_bytes", plan.kept.bytes);
}

CpuIsa isa_from(const std::string& text) {
  if (text.empty()) return best_isa();
  auto isa = cpu_isa_from(text);
  if (!isa) throw Error(ErrorKind::Usage, "unknown instruction set '" + text + "'");
  return *isa;
}

// Ranges of memory and what they held when this was made. Whoever asks keeps the memory alive.
class Contents {
 public:
  explicit Contents(const std::vector<std::pair<uintptr_t, size_t>>& ranges) {
    for (auto [address, bytes] : ranges)
      for (size_t at = 0; at < bytes; at += kPiece) {
        const auto* from = reinterpret_cast<const std::byte*>(address) + at;
        pieces_.push_back({{from, std::min(kPiece, bytes - at)}, {}});
      }
    each([](Piece& piece) {
      piece.held = fingerprint(piece.bytes);
      return true;
    });
  }
  bool same() {
    return each([](Piece& piece) { return piece.held == fingerprint(piece.bytes); });
  }

 private:
  static constexpr size_t kPiece = size_t(1) << 18;
  static constexpr size_t kAlone = 4;  // as many are not worth waking other threads
  struct Piece {
    std::span<const std::byte> bytes;
    Fingerprint held;
  };
  template <class F> bool each(F work) {
    if (pieces_.size() <= kAlone) return std::ranges::all_of(pieces_, work);
    Released release;
    std::atomic<bool> all{true};
    KernelPool::shared().parallel_for(long(pieces_.size()), 1, [&](long begin, long end, int) {
      for (long i = begin; i < end && all; ++i)
        if (!work(pieces_[size_t(i)])) all = false;
    });
    return all;
  }
  std::vector<Piece> pieces_;
};

// Arrays (of the buffer protocol) and what they held; `fixed`: whose contents cannot change.
class ArrayContents {
 public:
  ArrayContents(const nb::list& arrays, const std::vector<bool>& fixed) {
    std::vector<std::pair<uintptr_t, size_t>> ranges;
    for (size_t i = 0; i < arrays.size(); ++i) {
      const auto range = describe(arrays[i], places_);
      if (!fixed.at(i)) ranges.push_back(range);
    }
    contents_.emplace(ranges);
  }
  // Whether these are the same arrays, as far as a program can tell, with the same contents.
  bool same(const nb::list& arrays) {
    std::vector<int64_t> places;
    places.reserve(places_.size());
    for (const nb::handle array : arrays) describe(array, places);
    return places == places_ && contents_->same();
  }

 private:
  // Adds where the elements lie and their type to `places`; the range of memory that they lie in.
  static std::pair<uintptr_t, size_t> describe(nb::handle array, std::vector<int64_t>& places) {
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0)
      throw nb::python_error();
    places.insert(places.end(), {reinterpret_cast<int64_t>(view.buf), view.itemsize, view.ndim});
    for (const char* c = view.format; *c != 0; ++c) places.push_back(*c);
    int64_t low = 0, high = view.itemsize;
    for (int d = 0; d < view.ndim; ++d) {
      places.insert(places.end(), {view.shape[d], view.strides[d]});
      (view.strides[d] < 0 ? low : high) += (view.shape[d] - 1) * view.strides[d];
    }
    if (view.len == 0) low = high = 0;
    const auto first = reinterpret_cast<uintptr_t>(view.buf) + uintptr_t(low);
    PyBuffer_Release(&view);
    return {first, size_t(high - low)};
  }
  std::vector<int64_t> places_;
  std::optional<Contents> contents_;
};

// What this machine can at most do right now, on the pool that modules run on.
class LimitProbe {
 public:
  explicit LimitProbe(int64_t bytes) : probe_(cache_), buffer_(size_t(bytes)) {}
  void read() const { probe_.read_all(KernelPool::shared(), buffer_, int64_t(buffer_.size())); }
  void fma(long rounds, const std::string& dtype) const {
    probe_.fma_all(KernelPool::shared(), rounds, dtype_from(dtype));
  }
  // FLOP of one round, all threads together.
  double flops(const std::string& dtype) const {
    return probe_.fma_flops(dtype_from(dtype)) * KernelPool::shared().threads();
  }

 private:
  Cache cache_;
  Probe probe_;
  AlignedBuffer buffer_;
};

// Code of a program. What can be told to `stop` is made by a thread of its own, which the compiler
// has its low priority from.
std::shared_ptr<Module> compile_module(const Graph& program, const std::set<std::string>& disable,
                                       bool exact, nb::object stop, bool compared) {
  Cache cache;
  ModuleOptions options;
  options.exact = exact;
  options.plan.compared = compared;
  for (const std::string& name : disable) disable_plan(options.plan, name);
  const auto work = [&] {
    return std::shared_ptr<Module>(Module::compile(program, cache, options));
  };
  if (stop.is_none()) {
    Released release;
    return work();
  }
  LongCall call;
  call.stop = std::move(stop);
  options.cancel = &call.abandon;
  KernelPool::shared();  // whose threads keep their priority
  return call.run([&] {  // 0 is the calling thread, on Linux
    setpriority(PRIO_PROCESS, 0, std::max(10, getpriority(PRIO_PROCESS, 0)));
    return work();
  });
}

nb::dict machine() {
  const OneDnnState library = onednn();
  const Cache cache;
  nb::dict d =
      dict_of("isa", to_string(best_isa()), "runnable",
              list_of(runnable_isas(), [](CpuIsa isa) { return to_string(isa); }), "threads",
              default_threads(), "last_level_cache_bytes", last_level_cache_bytes(), "onednn",
              library.version, "onednn_problem", library.problem, "cache_directory",
              readable(cache.directory()), "cache_problem", readable(cache.problem()));
  try {
    Compiler compiler = find_compiler();
    d["compiler"] = readable(compiler.path);
    d["compiler_version"] = compiler.version;
  } catch (const Error& error) {
    d["compiler"] = nb::none();
    d["compiler_version"] = readable(error.message());
  }
  return d;
}

}  // namespace

void bind_backend(nb::module_& m) {
  // Where pip puts libraries that are not Python's.
  set_onednn_folder(nb::cast<std::string>(nb::module_::import_("sys").attr("prefix")) + "/lib");
  nb::class_<PreparedWeights>(m, "PreparedWeights").def_prop_ro("bytes", &PreparedWeights::bytes);

  nb::class_<Module>(m, "Module")
      .def("run", &run_module, nb::arg("inputs"), nb::arg("outputs"),
           nb::arg("prepared").none() = nb::none())
      .def("run_exactly", &run_exactly, nb::arg("inputs"), nb::arg("outputs"),
           nb::arg("prepared").none() = nb::none())
      .def("may_overwrite", &Module::may_overwrite, nb::arg("input"), nb::arg("output"))
      .def("prepare", &prepare_module, nb::arg("inputs"),
           nb::arg("others") = std::vector<std::shared_ptr<PreparedWeights>>())
      .def_prop_ro("weights", &Module::weights)
      .def_prop_ro("prepared_bytes", &Module::prepared_bytes)
      .def_prop_ro("input_types", [](const Module& s) { return to_python(s.input_types()); })
      .def_prop_ro("output_types", [](const Module& s) { return to_python(s.output_types()); })
      .def_prop_ro("graph", &Module::graph, nb::rv_policy::copy)
      .def_prop_ro("source", &Module::source)
      .def_prop_ro("host_calls",
                   [](const Module& s) {
                     return list_of(s.host_steps(), [](const HostStep& step) { return step.text; });
                   })
      .def_prop_ro("plan", &Module::plan_text)
      .def_prop_ro("plan_facts", &plan_facts);

  nb::class_<Contents>(m, "Contents")
      .def(nb::init<const std::vector<std::pair<uintptr_t, size_t>>&>(), nb::arg("ranges"))
      .def("same", &Contents::same);
  nb::class_<ArrayContents>(m, "ArrayContents")
      .def(nb::init<const nb::list&, const std::vector<bool>&>(), nb::arg("arrays"),
           nb::arg("fixed"))
      .def("same", &ArrayContents::same, nb::arg("arrays"));

  nb::class_<LimitProbe>(m, "LimitProbe")
      .def(nb::init<int64_t>(), nb::arg("bytes"))
      .def("read", &LimitProbe::read, nb::call_guard<Released>())
      .def("fma", &LimitProbe::fma, nb::arg("rounds"), nb::arg("dtype") = "f32",
           nb::call_guard<Released>())
      .def("flops", &LimitProbe::flops, nb::arg("dtype") = "f32");

  m.def("why_not_own", &why_not_own, nb::arg("folder"), nb::arg("alone"));
  m.def(
      "find_text",
      [](const std::string& key) -> nb::object {
        const auto text = Cache().find_text(key);
        if (!text) return nb::none();
        PyObject* made = PyUnicode_DecodeUTF8(text->data(), Py_ssize_t(text->size()), "strict");
        if (made != nullptr) return nb::steal(made);
        PyErr_Clear();  // no text: as good as absent
        return nb::none();
      },
      nb::arg("key"));
  m.def(
      "store_text",
      [](const std::string& key, const std::string& text) { Cache().store_text(key, text); },
      nb::arg("key"), nb::arg("text"));
  m.def("compile", &compile_module, nb::arg("program"),
        nb::arg("disable") = std::set<std::string>(), nb::arg("exact") = false,
        nb::arg("stop") = nb::none(), nb::arg("compared") = false);
  m.def(
      "emit_source",
      [](const Graph& program, const std::string& isa) {
        return emit_source(program, isa_from(isa));
      },
      nb::arg("program"), nb::arg("isa") = "");
  m.def(
      "export_c",
      [](const Graph& program, const std::vector<bool>& data, const std::string& name) {
        Released release;
        const CExport e = export_c(program, data, name);
        nb::gil_scoped_acquire hold;
        return dict_of("source", e.source.source, "header", e.source.header, "function", e.function,
                       "loops", e.loops, "offsets", e.offsets, "weights_bytes", e.weights_bytes,
                       "workspace_bytes", e.workspace_bytes, "compared", e.compared,
                       "compared_exactly", e.compared_exactly);
      },
      nb::arg("program"), nb::arg("data"), nb::arg("name"));
  m.def("calibrate", [] {
    Released release;
    Cache cache;
    return calibrate(cache, KernelPool::shared()).str();
  });
  m.def("default_threads", &default_threads);
  m.def("machine", &machine);
}

}  // namespace tessera::python
