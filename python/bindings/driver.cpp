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
  nb::dict d;
  d["stop"] = name(r.stop);
  d["detail"] = r.detail;
  d["seconds"] = r.seconds;
  d["values"] = r.values;
  d["edges"] = r.edges;
  d["graphs"] = r.graphs;
  d["tilings"] = r.tilings;
  d["states"] = r.states();
  d["candidates"] = r.candidates;
  d["best_cost"] = r.best_cost;
  d["original_cost"] = r.original_cost;
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
  nb::dict d;
  d["graph"] = o.graph;
  d["origin"] = o.origin;
  d["derivation"] = o.derivation;
  d["notes"] = o.notes;
  d["part"] = o.part;
  d["rank"] = o.rank;
  d["model_s"] = o.model_seconds;
  d["fate"] = name(o.fate);
  d["why"] = o.why;
  d["seconds"] = o.seconds;
  d["least_s"] = o.least_seconds;
  d["spread"] = o.spread;
  d["warm_s"] = o.warm_seconds;
  d["speedup"] = o.speedup;
  return d;
}

nb::dict record(const SubprogramReport& r) {
  nb::dict d;
  d["name"] = r.name;
  d["times"] = r.times;
  d["verdict"] = r.verdict;
  d["chosen"] = r.chosen;
  d["gain"] = r.best_gain;
  d["stop"] = r.stop;
  d["rounds"] = r.rounds;
  d["tried"] = r.tried;
  d["mutants"] = r.mutants;
  d["partial"] = r.partial;
  d["corrected"] = r.corrected;
  d["proven"] = std::count_if(r.alternatives.begin(), r.alternatives.end(),
                              [](const auto& a) { return a.proven; });
  d["search_s"] = r.search_s;
  d["original_s"] = r.original_s;
  d["measured_s"] = r.measured_s;
  nb::list alternatives;
  for (const SubprogramReport::Alternative& a : r.alternatives) {
    nb::dict one;
    one["derivation"] = a.derivation;
    one["notes"] = a.notes;
    one["round"] = a.round;
    one["model_s"] = a.model_s;
    one["measured_s"] = a.measured_s;
    one["proven"] = a.proven;
    one["why_not"] = a.why_not;
    one["chosen"] = a.chosen;
    alternatives.append(one);
  }
  d["alternatives"] = alternatives;
  return d;
}

nb::dict record(const CoverReport& r) {
  nb::dict d;
  d["values"] = r.values;
  d["kernels"] = r.kernels;
  d["offered"] = r.offered;
  d["chosen"] = r.chosen;
  d["pieces"] = r.pieces;
  d["variables"] = r.variables;
  d["proved"] = r.proved;
  d["solver"] = r.solver;
  d["seconds"] = r.seconds;
  d["original_s"] = r.original_s;
  d["expected_s"] = r.expected_s;
  return d;
}

template <class T> nb::list records(const std::vector<T>& all) {
  return list_of(
      all, [](const T& x) { return record(x); });
}

nb::dict record(const OptimizeReport& r) {
  nb::dict d;
  d["searches"] = records(r.searches);
  d["experts"] = records(r.experts);
  d["synthesis"] = r.synthesis ? nb::object(record(*r.synthesis)) : nb::object(nb::none());
  d["subprograms"] = records(r.subprograms);
  d["cover"] = r.cover ? nb::object(record(*r.cover)) : nb::object(nb::none());
  d["simplified"] = r.simplified;
  d["parts"] = r.parts;
  d["search_s"] = r.search_s;
  d["verify_s"] = r.verify_s;
  d["compile_s"] = r.compile_s;
  d["check_s"] = r.check_s;
  d["measure_s"] = r.measure_s;
  d["total_s"] = r.total_s;
  d["from_cache"] = r.from_cache;
  d["tuned"] = r.tuned;
  d["original_failed"] = r.original_failed;
  d["convolutions"] = r.convolutions;
  d["cancelled"] = r.cancelled;
  d["unfinished"] = r.unfinished;
  d["too_noisy"] = r.too_noisy;
  d["resumable"] = r.resumable;
  d["resumed"] = r.resumed;
  d["target"] = r.target;
  d["not_measured"] = r.not_measured;
  d["model"] = nb::none();
  if (r.model) {
    nb::dict m;
    m["programs"] = r.model->rows;
    m["rank"] = r.model->rank_before;
    m["error"] = r.model->error_before;
    m["fitted_rank"] = r.model->rank;
    m["fitted_error"] = r.model->error;
    m["used"] = r.model->worthwhile();
    nb::dict scales;
    scales["launch"] = r.model->scales.launch;
    scales["latency"] = r.model->scales.latency;
    scales["memory"] = r.model->scales.memory;
    scales["compute"] = r.model->scales.compute;
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
      nb::dict d;
      d["stage"] = p.stage;
      d["part"] = p.part;
      d["done"] = p.done;
      d["total"] = p.total;
      d["best_speedup"] = p.best_speedup;
      d["t"] = p.seconds;
      d["search"] = search ? nb::object(record(*search)) : nb::object(nb::none());
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
      {"exhaustive", field(&OptimizeOptions::exhaustive)},
      {"tf32", field(&OptimizeOptions::tf32)},
      {"proved", field(&OptimizeOptions::proved)},
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
  nb::dict d;
  d["original"] = result.original;
  d["graph"] = result.graph;
  d["improved"] = result.improved;
  d["certificate"] = result.certificate ? nb::cast(*result.certificate) : nb::object(nb::none());
  d["module"] = result.module ? nb::cast(result.module) : nb::object(nb::none());
  d["cuda"] = result.cuda ? nb::cast(result.cuda) : nb::object(nb::none());
  d["original_s"] = result.original_s;
  d["original_least_s"] = result.original_least_s;
  d["original_spread"] = result.original_spread;
  d["seconds"] = result.seconds;
  d["speedup"] = result.speedup;
  d["candidates"] = records(result.candidates);
  nb::dict report = record(result.report);
  Cache cache;
  const bool gpu = result.cuda != nullptr;
  report["bodies"] =
      trust_lines(result.graph, cache, gpu, best_isa(), gpu ? device_of(options) : std::string());
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
    nb::dict row;
    row["graph"] = c.graph;
    row["model_s"] = c.cost;
    row["origin"] = c.origin;
    row["derivation"] = c.derivation;
    row["notes"] = c.notes;
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
