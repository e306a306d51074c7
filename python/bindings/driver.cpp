// driver/: optimize and search, with progress and Ctrl-C.
#include "driver/optimize.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

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

nb::dict record(const OptimizeReport& r) {
  nb::dict d;
  nb::list searches;
  for (const SearchReport& search : r.searches) searches.append(record(search));
  d["searches"] = searches;
  nb::list experts;
  for (const SearchReport& search : r.experts) experts.append(record(search));
  d["experts"] = experts;
  d["synthesis"] = r.synthesis ? nb::object(record(*r.synthesis)) : nb::object(nb::none());
  nb::list subprograms;
  for (const SubprogramReport& s : r.subprograms) subprograms.append(record(s));
  d["subprograms"] = subprograms;
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

// Fields of OptimizeOptions by name; Python's Options has the same ones
// (tessera/options.py).
OptimizeOptions options_from(const nb::dict& fields) {
  OptimizeOptions options;
  for (auto [key, value] : fields) {
    auto take = [&](auto& field) { field = nb::cast<std::decay_t<decltype(field)>>(value); };
    std::string name = nb::cast<std::string>(key);
    if (name == "target")
      take(options.target);
    else if (name == "target_directory")
      take(options.target_directory);
    else if (name == "rule_folders")
      take(options.rule_folders);
    else if (name == "pattern_folders")
      take(options.pattern_folders);
    else if (name == "budget")
      take(options.budget_seconds);
    else if (name == "threads")
      take(options.threads);
    else if (name == "seed")
      take(options.seed);
    else if (name == "verify_seed")
      take(options.verify_seed);
    else if (name == "level")
      options.level = accuracy_named(nb::cast<std::string>(value));
    else if (name == "special")
      take(options.special);
    else if (name == "accept_tested")
      take(options.accept_tested);
    else if (name == "candidates")
      take(options.candidates);
    else if (name == "tune")
      take(options.tune);
    else if (name == "exhaustive")
      take(options.exhaustive);
    else if (name == "tf32")
      take(options.tf32);
    else if (name == "proved")
      take(options.proved);
    else if (name == "max_block_ops")
      take(options.max_block_ops);
    else if (name == "disable")
      take(options.disable);
    else if (name == "engine")
      take(options.engine);
    else if (name == "cost")
      take(options.cost);
    else if (name == "costs")
      take(options.costs);
    else if (name == "cache")
      take(options.use_cache);
    else if (name == "refresh")
      take(options.refresh);
    else if (name == "resume")
      take(options.resume);
    else
      throw Error(ErrorKind::Usage, "unknown option " + name);
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
  nb::list candidates;
  for (const Outcome& outcome : result.candidates) candidates.append(record(outcome));
  d["candidates"] = candidates;
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
