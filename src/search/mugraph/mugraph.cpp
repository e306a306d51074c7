#include "search/mugraph/mugraph.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "search/mugraph/assemble.h"
#include "search/mugraph/refine.h"
#include "search/mugraph/solve.h"

namespace tessera {
namespace mugraph {
namespace {

class Search {
 public:
  Search(const MugraphOptions& options, const Subprogram& sub, Context& context,
         const Budget& budget, CandidateSink& sink)
      : run_(options, sub.graph, context, budget), sink_(sink) {}

  SearchReport run() {
    for (const Tensor& t : run_.program.tensors())
      if (!is_static(t.type.shape))
        return finish(StopReason::Unsupported, "symbolic shapes: bind them first");
    double inputs = 0;
    for (TensorId t : run_.program.inputs()) inputs += double(run_.program.type(t).bytes());
    run_.resident = run_.machine.resident(inputs);
    run_.program_seconds = run_.analytical.cost(run_.program).seconds;
    steps_ = partition(run_.program);
    for (const Step& s : steps_) run_.regions += s.kept.valid() ? 0 : 1;
    // Where nothing that fits comes out of lowering, tiles get less memory.
    for (run_.memory_share = 1; run_.memory_share > 0.1; run_.memory_share *= 0.4) {
      if (std::optional<SearchReport> failed = solve_regions()) return *failed;
      const bool too_large = offer_programs(run_, steps_, results_, sink_);
      if (run_.report.candidates > 0 || run_.stopped || !too_large) break;
      results_.clear();
    }
    return finish(run_.stopped   ? stop_reason()
                  : run_.limited ? StopReason::StepBudget
                                 : StopReason::Exhausted,
                  run_.detail);
  }

 private:
  // The report, where there is nothing to combine.
  std::optional<SearchReport> solve_regions() {
    run_.before_seconds = 0;
    std::vector<bool> given(run_.program.tensors().size(), false);
    for (TensorId t : run_.program.inputs()) given[t.index] = true;
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (steps_[s].kept.valid()) {
        const Op& op = run_.program.op(steps_[s].kept);
        for (uint32_t i = 0; i < op.num_results; ++i) given[op.result(i).index] = true;
        continue;
      }
      run_.last_region = std::all_of(steps_.begin() + long(s) + 1, steps_.end(),
                                     [](const Step& later) { return later.kept.valid(); });
      results_[s] = solve_region(run_, steps_[s].outputs, given);
      if (results_[s].choices.empty() && !run_.stopped && steps_[s].outputs.size() > 1) {
        // Together they were too much; one by one, earlier outputs help with later ones.
        auto single = mapped(steps_[s].outputs, [&](TensorId t) { return Step{{t}, {}}; });
        steps_.erase(steps_.begin() + long(s));
        steps_.insert(steps_.begin() + long(s), single.begin(), single.end());
        --s;
        continue;
      }
      for (TensorId t : steps_[s].outputs) given[t.index] = true;
      if (!results_[s].choices.empty())
        run_.before_seconds += results_[s].choices.front().plan.seconds;
      if (run_.stopped) break;
    }
    if (run_.regions == 0)
      return finish(StopReason::Unsupported, "no operator that the normal form sees through");
    bool any = false;
    for (const auto& [s, r] : results_) any = any || !r.choices.empty();
    if (any) return std::nullopt;
    StopReason why = run_.stopped ? stop_reason() : StopReason::Unsupported;
    return finish(why, run_.stopped          ? ""
                       : run_.detail.empty() ? "no derivation of the outputs"
                                             : run_.detail);
  }

  StopReason stop_reason() const {
    return run_.context.cancelled() ? StopReason::Cancelled : StopReason::TimeBudget;
  }

  SearchReport finish(StopReason why, const std::string& detail) {
    run_.report.stop = why;
    run_.report.detail = detail;
    run_.report.seconds = run_.seconds();
    return run_.report;
  }

  Run run_;
  CandidateSink& sink_;
  std::vector<Step> steps_;
  std::map<size_t, RegionResult> results_;
};

// Adds what a second search of the same program counted.
void add(SearchReport& report, const SearchReport& more) {
  if (report.stop == StopReason::Exhausted || report.stop == StopReason::Unsupported)
    report.stop = more.stop == StopReason::Unsupported ? report.stop : more.stop;
  report.seconds += more.seconds;
  report.add_counts(more);
  if (more.best_cost > 0 && (report.best_cost == 0 || more.best_cost < report.best_cost))
    report.best_cost = more.best_cost;
}

}  // namespace
}  // namespace mugraph

const std::set<std::string>& ablations() {
  static const std::set<std::string> names = {
      "bound",           "cancels", "dominated",          "finer axes", "memory",
      "moments",         "nests",   "not part of a goal", "passes",     "reciprocals",
      "running maximum", "split",   "thread graphs",      "volume"};
  return names;
}

SearchReport Mugraph::run(const Subprogram& sub, Context& context, const Budget& budget,
                          CandidateSink& sink) {
  for (const std::string& name : options_.ablate) {
    if (ablations().count(name) != 0) continue;
    throw Error(ErrorKind::Usage,
                "mugraph has no rule '" + name + "' to disable; there are " +
                    joined(ablations(), ", ", [](const std::string& rule) { return rule; }));
  }
  const std::optional<Graph> fine =
      options_.ablate.count("finer axes") ? std::nullopt : mugraph::refine_axes(sub.graph);
  if (!fine) return mugraph::Search(options_, sub, context, budget, sink).run();
  // Reshapes cut the program into regions: once as it is, once over finer axes without them.
  CandidateSink found;
  SearchReport report = mugraph::Search(options_, sub, context, budget, found).run();
  Subprogram finer;
  finer.graph = *fine;
  Budget rest = budget;
  rest.seconds -= report.seconds;
  rest.steps /= 8;  // one region of everything grows fast and seldom wins
  if (context.cancelled())
    report.stop = StopReason::Cancelled;
  else if (rest.seconds <= 0)
    report.stop = StopReason::TimeBudget;
  else
    mugraph::add(report, mugraph::Search(options_, finer, context, rest, found).run());
  std::ranges::stable_sort(found.candidates, {}, &Candidate::cost);
  int64_t offered = 0;
  for (Candidate& c : found.candidates) {
    // The program as written always stands.
    if (offered >= budget.candidates && !c.as_written) continue;
    sink.offer(std::move(c));
    ++offered;
  }
  report.candidates = offered;
  return report;
}

}  // namespace tessera
