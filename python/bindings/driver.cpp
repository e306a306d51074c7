// driver/: optimize and search, with progress and Ctrl-C.
#include "driver/optimize.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "backend/written.h"
#include "base/entries.h"
#include "base/error.h"
#include "base/sha256.h"
#include "bindings.h"
#include "driver/code.h"
#include "driver/partition.h"
#include "driver/results.h"
#include "ir/text.h"
#include "long_call.h"
#include "verify/interface.h"

namespace tessera::python {
namespace {

nb::dict record(const SearchReport& r) {
  return dict_of("stop", name(r.stop), "detail", r.detail, "seconds", r.seconds, "values", r.values,
                 "edges", r.edges, "graphs", r.graphs, "tilings", r.tilings, "states", r.states(),
                 "candidates", r.candidates, "best_cost", r.best_cost, "original_cost",
                 r.original_cost, "pruned", r.pruned, "refused", r.refused, "figures", r.figures);
}

nb::dict record(const Outcome& o) {
  return dict_of("graph", o.graph, "origin", o.origin, "derivation", o.derivation, "notes", o.notes,
                 "part", o.part, "rank", o.rank, "model_s", o.model_seconds, "fate", name(o.fate),
                 "why", o.why, "seconds", o.seconds, "least_s", o.least_seconds, "spread", o.spread,
                 "warm_s", o.warm_seconds, "speedup", o.speedup);
}

nb::dict record(const SubprogramReport& r) {
  const auto alternative = [](const SubprogramReport::Alternative& a) {
    return dict_of("derivation", a.derivation, "notes", a.notes, "round", a.round, "model_s",
                   a.model_s, "measured_s", a.measured_s, "proven", a.proven, "why_not", a.why_not,
                   "chosen", a.chosen);
  };
  return dict_of("name", r.name, "times", r.times, "verdict", r.verdict, "chosen", r.chosen, "gain",
                 r.best_gain, "stop", r.stop, "rounds", r.rounds, "tried", r.tried, "mutants",
                 r.mutants, "partial", r.partial, "corrected", r.corrected, "proven",
                 std::ranges::count_if(r.alternatives, &SubprogramReport::Alternative::proven),
                 "search_s", r.search_s, "original_s", r.original_s, "measured_s", r.measured_s,
                 "alternatives", list_of(r.alternatives, alternative));
}

nb::dict record(const CoverReport& r) {
  return dict_of("values", r.values, "kernels", r.kernels, "offered", r.offered, "chosen", r.chosen,
                 "pieces", r.pieces, "variables", r.variables, "proved", r.proved, "solver",
                 r.solver, "seconds", r.seconds, "original_s", r.original_s, "expected_s",
                 r.expected_s);
}

nb::dict record(const Fit& m) {
  return dict_of("programs", m.rows, "rank", m.rank_before, "error", m.error_before, "fitted_rank",
                 m.rank, "fitted_error", m.error, "used", m.worthwhile(), "scales",
                 dict_of("launch", m.scales.launch, "latency", m.scales.latency, "memory",
                         m.scales.memory, "compute", m.scales.compute));
}

template <class T> nb::list records(const std::vector<T>& all) {
  return list_of(
      all, [](const T& x) { return record(x); });
}

template <class T> nb::object record(const std::optional<T>& x) {
  return x ? nb::object(record(*x)) : nb::none();
}

nb::dict record(const OptimizeReport& r) {
  return dict_of("searches", records(r.searches), "experts", records(r.experts), "synthesis",
                 record(r.synthesis), "subprograms", records(r.subprograms), "cover",
                 record(r.cover), "simplified", r.simplified, "parts", r.parts, "search_s",
                 r.search_s, "verify_s", r.verify_s, "compile_s", r.compile_s, "check_s", r.check_s,
                 "measure_s", r.measure_s, "total_s", r.total_s, "from_cache", r.from_cache,
                 "tuned", r.tuned, "original_failed", r.original_failed, "no_compiler",
                 r.no_compiler, "convolutions", r.convolutions, "cancelled", r.cancelled,
                 "unfinished", r.unfinished, "too_noisy", r.too_noisy, "resumable", r.resumable,
                 "resumed", r.resumed, "target", r.target, "not_measured", r.not_measured, "model",
                 record(r.model), "device", r.device, "threads", r.threads);
}

// Copies what a Progress borrows, so that Python can look at it later.
std::function<void(const Progress&)> publisher(LongCall& call) {
  return [&call](const Progress& p) {
    std::optional<SearchReport> search;
    if (p.search) search = *p.search;
    call.publish([p, search]() -> nb::object {
      return dict_of("stage", p.stage, "part", p.part, "done", p.done, "total", p.total,
                     "best_speedup", p.best_speedup, "t", p.seconds, "search", record(search));
    });
  };
}

// Sets a field of OptimizeOptions; Python's Options has the same ones (tessera/options.py).
using SetOption = std::function<void(OptimizeOptions&, nb::handle)>;
std::map<std::string, SetOption> with_fields(std::map<std::string, SetOption> all) { return all; }
template <class T, class... More>
std::map<std::string, SetOption> with_fields(std::map<std::string, SetOption> all, const char* name,
                                             T OptimizeOptions::*member, More... more) {
  all[name] = [member](OptimizeOptions& o, nb::handle x) { o.*member = nb::cast<T>(x); };
  return with_fields(std::move(all), more...);
}

std::vector<Proposal> proposals_from(nb::handle list) {
  std::vector<Proposal> all;
  for (const auto& fields : nb::cast<std::vector<std::map<std::string, std::string>>>(list)) {
    const auto text = [&](const char* name) {
      const auto it = fields.find(name);
      return it == fields.end() ? std::string() : it->second;
    };
    Proposal p;
    p.of = parse(text("of"), "<proposal>");
    p.between = text("between");
    p.candidate.graph = parse(text("graph"), "<proposal>");
    p.candidate.origin = text("origin");
    p.candidate.derivation = text("derivation");
    if (const auto difference = interface_difference(p.of, p.candidate.graph))
      throw Error(ErrorKind::BadInput, "a proposal has other inputs or outputs");
    all.push_back(std::move(p));
  }
  return all;
}

OptimizeOptions options_from(const nb::dict& fields) {
  using Options = OptimizeOptions;
  static const std::map<std::string, SetOption> known = with_fields(
      {
          {"settings",
           [](OptimizeOptions& o, nb::handle value) {
             o.settings = read_settings(nb::cast<std::vector<std::string>>(value));
           }},
          {"slice",
           [](OptimizeOptions& o, nb::handle value) {
             std::tie(o.slice, o.slices) = nb::cast<std::pair<int, int>>(value);
             if (o.slice < 0 || o.slice >= o.slices)
               throw Error(ErrorKind::Usage, "slice: (i, n) with 0 <= i < n");
           }},
          {"proposals",
           [](OptimizeOptions& o, nb::handle value) { o.proposals = proposals_from(value); }},
          {"level",
           [](OptimizeOptions& o, nb::handle value) {
             o.level = accuracy_named(nb::cast<std::string>(value));
           }},
      },
      "target", &Options::target, "target_directory", &Options::target_directory, "rule_folders",
      &Options::rule_folders, "pattern_folders", &Options::pattern_folders, "budget",
      &Options::budget_seconds, "threads", &Options::threads, "workers", &Options::workers, "seed",
      &Options::seed, "verify_seed", &Options::verify_seed, "special", &Options::special,
      "accept_tested", &Options::accept_tested, "candidates", &Options::candidates, "tune",
      &Options::tune, "tf32", &Options::tf32, "proved", &Options::proved, "may_lack_code",
      &Options::may_lack_code, "max_block_ops", &Options::max_block_ops, "disable",
      &Options::disable, "engine", &Options::engine, "cost", &Options::cost, "costs",
      &Options::costs, "cache", &Options::use_cache, "refresh", &Options::refresh, "resume",
      &Options::resume, "steps", &Options::steps, "bound", &Options::bound, "only_proposals",
      &Options::only_proposals, "searched", &Options::searched, "kept_budget",
      &Options::kept_budget, "compile_only", &Options::compile_only);
  OptimizeOptions options;
  for (auto [key, value] : fields) {
    const auto name = nb::cast<std::string>(key);
    const auto option = known.find(name);
    if (option == known.end()) throw Error(ErrorKind::Usage, "unknown option " + name);
    option->second(options, value);
  }
  return options;
}

nb::dict optimize_to_dict(const Graph& program, const nb::dict& fields, nb::object progress,
                          nb::object stop) {
  OptimizeOptions options = options_from(fields);
  LongCall call;
  call.stop = std::move(stop);
  auto tell = publisher(call);
  OptimizeResult result = call.run(
      [&] { return optimize(program, options, tell, &call.cancel, &call.abandon); }, progress);
  nb::dict report = record(result.report);
  const bool gpu = result.cuda() != nullptr;
  const std::string device =
      gpu ? place_of(options.target, options.target_directory).device() : std::string();
  Cache cache;
  report["bodies"] = trust_lines(result.graph(), cache, gpu, best_isa(), device);
  return dict_of(
      "original", result.original, "graph", result.graph(), "improved", result.improved(),
      "certificate", result.improved() ? nb::cast(*result.certificate()) : nb::none(), "module",
      result.module(), "cuda", result.cuda(), "original_s", result.original_s, "original_least_s",
      result.original_least_s, "original_spread", result.original_spread, "seconds", result.seconds,
      "speedup", result.speedup, "candidates", records(result.candidates), "report", report,
      "interrupted", call.interrupted);
}

nb::dict search_to_dict(const Graph& program, const nb::dict& fields, nb::object progress) {
  OptimizeOptions options = options_from(fields);
  LongCall call;
  auto tell = publisher(call);
  SearchOutcome outcome =
      call.run([&] { return search(program, options, tell, &call.cancel); }, progress);
  const auto candidate = [](const Candidate& c) {
    return dict_of("graph", c.graph, "model_s", c.cost, "origin", c.origin, "derivation",
                   c.derivation, "notes", c.notes);
  };
  return dict_of("candidates", list_of(outcome.candidates, candidate), "report",
                 record(outcome.report), "resumable", outcome.resumable, "resumed", outcome.resumed,
                 "interrupted", call.interrupted);
}

// The subprograms that an optimisation searches one by one, equal ones once.
std::vector<Graph> parts(const Graph& program) {
  std::vector<Graph> all;
  for (Part& p : partition_across_reshapes(program))
    if (std::ranges::find(all, p.graph) == all.end()) all.push_back(std::move(p.graph));
  return all;
}

// A program in which some of its parts are computed otherwise.
Graph with_parts(const Graph& program, const std::vector<std::pair<Graph, Graph>>& others) {
  const std::vector<Part> all = partition_across_reshapes(program);
  std::vector<Graph> now;
  for (const Part& p : all) {
    const auto known = std::ranges::find(others, p.graph, &std::pair<Graph, Graph>::first);
    now.push_back(known == others.end() ? p.graph : known->second);
  }
  return splice(program, all, now);
}

Graph unnamed(Graph g) {
  g.set_name("part");
  for (uint32_t t = 0; t < g.tensors().size(); ++t) g.set_tensor_name(TensorId(t), "");
  return g;
}

std::map<std::string, std::string> provenance_of(const Graph& program, const nb::dict& fields) {
  const OptimizeOptions options = options_from(fields);
  const EntryFields all = provenance(program, options, resolve_target(options));
  return {all.begin(), all.end()};
}

nb::dict read_entry(const std::string& text, const std::string& file) {
  nb::dict fields;
  for (const auto& [name, value] : parse_entry(text, file)) fields[name.c_str()] = value;
  return fields;
}

std::string write_entry(const nb::dict& fields) {
  EntryFields all;
  for (auto [name, value] : fields)
    all.emplace_back(nb::cast<std::string>(name), nb::cast<std::string>(value));
  return print_entry(all);
}

}  // namespace

void bind_driver(nb::module_& m) {
  m.def("optimize", &optimize_to_dict, nb::arg("program"), nb::arg("options"),
        nb::arg("progress") = nb::none(), nb::arg("stop") = nb::none());
  m.def("search", &search_to_dict, nb::arg("program"), nb::arg("options"),
        nb::arg("progress") = nb::none());
  m.def("parts", &parts);
  m.def("with_parts", &with_parts);
  m.def("entry_key", &provenance_of);
  m.def("read_entry", &read_entry, nb::arg("text"), nb::arg("file") = "<entry>");
  m.def("write_entry", &write_entry);
  m.def("canonical", &print_canonical);
  m.def("unnamed", &unnamed);
  m.def(
      "program_hash", [](const Graph& g) { return sha256_hex(print_canonical(g)); });
  m.def(
      "resolve_target",
      [](const nb::dict& options) { return resolve_target(options_from(options)).str(); });
  m.def("target_summary",
        [](const nb::dict& options) { return resolve_target(options_from(options)).summary(); });
}

}  // namespace tessera::python
