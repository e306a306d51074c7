// driver/: optimize and search, with progress and Ctrl-C.
#include "driver/optimize.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>

#include "backend/written.h"
#include "base/error.h"
#include "bindings.h"
#include "driver/code.h"
#include "long_call.h"

namespace tessera::python {
namespace {

nb::dict record(const SearchReport& r) {
  nb::dict d = dict_of("stop", name(r.stop), "detail", r.detail, "seconds", r.seconds, "values",
                       r.values, "edges", r.edges, "graphs", r.graphs, "tilings", r.tilings,
                       "states", r.states(), "candidates", r.candidates, "best_cost", r.best_cost,
                       "original_cost", r.original_cost);
  nb::dict pruned;
  for (const auto& [rule, count] : r.pruned) pruned[rule.c_str()] = count;
  d["pruned"] = pruned;
  d["refused"] = r.refused;
  nb::dict figures;
  for (const auto& [name, value] : r.figures) figures[name.c_str()] = value;
  d["figures"] = figures;
  return d;
}

nb::dict record(const Outcome& o) {
  nb::dict d = dict_of("graph", o.graph, "origin", o.origin, "derivation", o.derivation, "notes",
                       o.notes, "part", o.part, "rank", o.rank, "model_s", o.model_seconds, "fate",
                       name(o.fate), "why", o.why, "seconds", o.seconds, "least_s", o.least_seconds,
                       "spread", o.spread, "warm_s", o.warm_seconds, "speedup", o.speedup);
  return d;
}

nb::dict record(const SubprogramReport& r) {
  nb::dict d = dict_of("name", r.name, "times", r.times, "verdict", r.verdict, "chosen", r.chosen,
                       "gain", r.best_gain, "stop", r.stop, "rounds", r.rounds, "tried", r.tried,
                       "mutants", r.mutants, "partial", r.partial, "corrected", r.corrected);
  d["proven"] = std::ranges::count_if(r.alternatives, [](const auto& a) { return a.proven; });
  d["search_s"] = r.search_s;
  d["original_s"] = r.original_s;
  d["measured_s"] = r.measured_s;
  nb::list alternatives;
  for (const SubprogramReport::Alternative& a : r.alternatives) {
    nb::dict one = dict_of("derivation", a.derivation, "notes", a.notes, "round", a.round,
                           "model_s", a.model_s, "measured_s", a.measured_s, "proven", a.proven,
                           "why_not", a.why_not, "chosen", a.chosen);
    alternatives.append(one);
  }
  d["alternatives"] = alternatives;
  return d;
}

nb::dict record(const CoverReport& r) {
  nb::dict d =
      dict_of("values", r.values, "kernels", r.kernels, "offered", r.offered, "chosen", r.chosen,
              "pieces", r.pieces, "variables", r.variables, "proved", r.proved, "solver", r.solver,
              "seconds", r.seconds, "original_s", r.original_s, "expected_s", r.expected_s);
  return d;
}

template <class T> nb::list records(const std::vector<T>& all) {
  return list_of(
      all, [](const T& x) { return record(x); });
}

nb::dict record(const OptimizeReport& r) {
  nb::dict d = dict_of(
      "searches", records(r.searches), "experts", records(r.experts), "synthesis",
      r.synthesis ? nb::object(record(*r.synthesis)) : nb::object(nb::none()), "subprograms",
      records(r.subprograms), "cover",
      r.cover ? nb::object(record(*r.cover)) : nb::object(nb::none()), "simplified", r.simplified,
      "parts", r.parts, "search_s", r.search_s, "verify_s", r.verify_s, "compile_s", r.compile_s,
      "check_s", r.check_s, "measure_s", r.measure_s, "total_s", r.total_s, "from_cache",
      r.from_cache, "tuned", r.tuned, "original_failed", r.original_failed, "no_compiler",
      r.no_compiler, "convolutions", r.convolutions, "cancelled", r.cancelled, "unfinished",
      r.unfinished, "too_noisy", r.too_noisy, "resumable", r.resumable, "resumed", r.resumed,
      "target", r.target, "not_measured", r.not_measured, "model", nb::none());
  if (r.model) {
    nb::dict m = dict_of("programs", r.model->rows, "rank", r.model->rank_before, "error",
                         r.model->error_before, "fitted_rank", r.model->rank, "fitted_error",
                         r.model->error, "used", r.model->worthwhile());
    nb::dict scales = dict_of("launch", r.model->scales.launch, "latency", r.model->scales.latency,
                              "memory", r.model->scales.memory, "compute", r.model->scales.compute);
    m["scales"] = scales;
    d["model"] = m;
  }
  d["device"] = r.device;
  d["threads"] = r.threads;
  return d;
}

// Copies what a Progress borrows, so that Python can look at it later.
std::function<void(const Progress&)> publisher(LongCall& call) {
  return [&call](const Progress& p) {
    std::optional<SearchReport> search;
    if (p.search) search = *p.search;
    call.publish([p, search]() -> nb::object {
      nb::dict d = dict_of("stage", p.stage, "part", p.part, "done", p.done, "total", p.total,
                           "best_speedup", p.best_speedup, "t", p.seconds, "search",
                           search ? nb::object(record(*search)) : nb::object(nb::none()));
      return d;
    });
  };
}

// Sets a field of OptimizeOptions; Python's Options has the same ones (tessera/options.py).
using SetOption = std::function<void(OptimizeOptions&, nb::handle)>;
template <class T> SetOption field(T OptimizeOptions::*member) {
  return [member](OptimizeOptions& o, nb::handle value) { o.*member = nb::cast<T>(value); };
}

OptimizeOptions options_from(const nb::dict& fields) {
  static const std::map<std::string, SetOption> known = {
      {"target", field(&OptimizeOptions::target)},
      {"target_directory", field(&OptimizeOptions::target_directory)},
      {"rule_folders", field(&OptimizeOptions::rule_folders)},
      {"pattern_folders", field(&OptimizeOptions::pattern_folders)},
      {"budget", field(&OptimizeOptions::budget_seconds)},
      {"threads", field(&OptimizeOptions::threads)},
      {"seed", field(&OptimizeOptions::seed)},
      {"verify_seed", field(&OptimizeOptions::verify_seed)},
      {"special", field(&OptimizeOptions::special)},
      {"accept_tested", field(&OptimizeOptions::accept_tested)},
      {"candidates", field(&OptimizeOptions::candidates)},
      {"tune", field(&OptimizeOptions::tune)},
      {"tf32", field(&OptimizeOptions::tf32)},
      {"proved", field(&OptimizeOptions::proved)},
      {"may_lack_code", field(&OptimizeOptions::may_lack_code)},
      {"max_block_ops", field(&OptimizeOptions::max_block_ops)},
      {"disable", field(&OptimizeOptions::disable)},
      {"engine", field(&OptimizeOptions::engine)},
      {"cost", field(&OptimizeOptions::cost)},
      {"costs", field(&OptimizeOptions::costs)},
      {"cache", field(&OptimizeOptions::use_cache)},
      {"refresh", field(&OptimizeOptions::refresh)},
      {"resume", field(&OptimizeOptions::resume)},
      {"level", [](OptimizeOptions& o,
                   nb::handle value) { o.level = accuracy_named(nb::cast<std::string>(value)); }},
  };
  OptimizeOptions options;
  for (auto [key, value] : fields) {
    const auto name = nb::cast<std::string>(key);
    const auto option = known.find(name);
    if (option == known.end()) throw Error(ErrorKind::Usage, "unknown option " + name);
    option->second(options, value);
  }
  return options;
}

// The GPU that a program's code was made for, if it is here.
std::string device_of(const OptimizeOptions& options) {
  const CodePlace place = place_of(options.target, options.target_directory);
  return place.context ? place.context->device().str() : "";
}

nb::dict optimize_to_dict(const Graph& program, const nb::dict& fields, nb::object progress,
                          nb::object stop) {
  OptimizeOptions options = options_from(fields);
  LongCall call;
  call.stop = std::move(stop);
  auto tell = publisher(call);
  bool interrupted = false;
  OptimizeResult result =
      call.run([&] { return optimize(program, options, tell, &call.cancel, &call.abandon); },
               progress, interrupted);
  nb::dict d = dict_of(
      "original", result.original, "graph", result.graph(), "improved", result.improved(),
      "certificate", result.improved() ? nb::cast(*result.certificate()) : nb::object(nb::none()),
      "module", result.module() ? nb::cast(result.module()) : nb::object(nb::none()), "cuda",
      result.cuda() ? nb::cast(result.cuda()) : nb::object(nb::none()), "original_s",
      result.original_s, "original_least_s", result.original_least_s, "original_spread",
      result.original_spread, "seconds", result.seconds, "speedup", result.speedup, "candidates",
      records(result.candidates));
  nb::dict report = record(result.report);
  Cache cache;
  const bool gpu = result.cuda() != nullptr;
  report["bodies"] =
      trust_lines(result.graph(), cache, gpu, best_isa(), gpu ? device_of(options) : std::string());
  d["report"] = report;
  d["interrupted"] = interrupted;
  return d;
}

nb::dict search_to_dict(const Graph& program, const nb::dict& fields, nb::object progress) {
  OptimizeOptions options = options_from(fields);
  LongCall call;
  auto tell = publisher(call);
  bool interrupted = false;
  SearchOutcome outcome =
      call.run([&] { return search(program, options, tell, &call.cancel); }, progress, interrupted);
  nb::dict d;
  nb::list candidates;
  for (const Candidate& c : outcome.candidates) {
    nb::dict row = dict_of("graph", c.graph, "model_s", c.cost, "origin", c.origin, "derivation",
                           c.derivation, "notes", c.notes);
    candidates.append(row);
  }
  d["candidates"] = candidates;
  d["report"] = record(outcome.report);
  d["resumable"] = outcome.resumable;
  d["resumed"] = outcome.resumed;
  d["interrupted"] = interrupted;
  return d;
}

}  // namespace

void bind_driver(nb::module_& m) {
  m.def("optimize", &optimize_to_dict, nb::arg("program"), nb::arg("options"),
        nb::arg("progress") = nb::none(), nb::arg("stop") = nb::none());
  m.def("search", &search_to_dict, nb::arg("program"), nb::arg("options"),
        nb::arg("progress") = nb::none());
  m.def(
      "resolve_target",
      [](const nb::dict& options) { return resolve_target(options_from(options)).str(); });
  m.def("target_summary",
        [](const nb::dict& options) { return resolve_target(options_from(options)).summary(); });
}

}  // namespace tessera::python
