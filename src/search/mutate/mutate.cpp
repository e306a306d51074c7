#include "search/mutate/mutate.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "cost/analytical.h"
#include "search/mutate/correct.h"
#include "search/mutate/generate.h"
#include "verify/funnel.h"

namespace tessera {
namespace mutants {
namespace {

constexpr size_t kPerWay = 3;         // mutants of one way to compute whose boxes are tested
constexpr size_t kMostTested = 6;     // of all ways, for each that may be returned
constexpr double kSearchShare = 0.5;  // of the time

// How a program computes: its operators with arithmetic, the types they work on, their attributes.
std::string way_of(const Graph& g) {
  std::vector<std::string> ops;
  for (const Op& op : g.ops()) {
    if (!is_arithmetic(*form_of(g, op))) continue;
    std::string s = name(op.kind);
    for (const TensorId t : op.inputs) s += " " + g.type(t).str();
    if (const auto* a = std::get_if<ConvAttrs>(&op.attrs))
      for (const auto* list : {&a->strides, &a->dilations, &a->low, &a->high}) {
        s += "|";
        for (const int64_t x : *list) s += std::to_string(x) + ",";
      }
    ops.push_back(std::move(s));
  }
  std::ranges::sort(ops);
  std::string all;
  for (const std::string& s : ops) all += s + ";";
  return all;
}

struct Mutant {
  Graph graph;
  const Recipe* recipe = nullptr;
  double cost = 0;
};

// A mutant that equals the original by its boxes.
struct Found {
  Graph graph;
  std::string derivation;       // its operators, one per line
  double equal;                 // share of output elements on which it is equal, before correction
  double cost;                  // seconds, corrected
  std::string correction = {};  // "": none needed
};

class Run {
 public:
  Run(const Graph& original, const MutateOptions& options, MutateReport& report)
      : original_(original), options_(options), report_(report) {}

  std::vector<Candidate> run() {
    report_.original_cost = options_.cost->cost(original_).seconds;
    const std::function<bool()> stopped = [&] { return ended(kSearchShare); };
    const Generated generated = generate(original_, options_, stopped);
    report_.stop = generated.stop;
    report_.tried = generated.tried;
    report_.mutants = generated.mutants;
    const auto chosen = choose(generated.recipes);
    for (const Mutant& m : chosen) {
      if (ended(kSearchShare + 0.2)) {
        report_.stop = StopReason::TimeBudget;
        break;
      }
      test(m);
    }
    return prove();
  }

 private:
  bool ended(double share) const {
    return clock_.seconds() > share * options_.seconds ||
           (options_.cancel && options_.cancel->load(std::memory_order_relaxed));
  }

  // The cheapest of every way to compute.
  std::vector<Mutant> choose(const std::vector<Recipe>& recipes) const {
    std::map<std::string, std::vector<Mutant>> ways;
    std::set<uint64_t> seen = {structural_hash(original_)};
    for (const Recipe& r : recipes) {
      auto g = realise(original_, r);
      if (!g || !seen.insert(structural_hash(*g)).second) continue;
      const double cost = options_.cost->cost(*g).seconds;
      if (cost > options_.bound) continue;
      ways[way_of(*g)].push_back({std::move(*g), &r, cost});
    }
    auto cheaper = [](const Mutant& a, const Mutant& b) {
      return std::pair(!a.recipe->likely, a.cost) < std::pair(!b.recipe->likely, b.cost);
    };
    std::vector<std::vector<Mutant>> ranks(kPerWay);
    for (auto& [way, all] : ways) {
      std::ranges::stable_sort(all, cheaper);
      for (size_t i = 0; i < std::min(kPerWay, all.size()); i++)
        ranks[i].push_back(std::move(all[i]));
    }
    // The best of every way first.
    std::vector<Mutant> chosen;
    for (auto& rank : ranks) {
      std::ranges::stable_sort(rank, cheaper);
      for (Mutant& m : rank)
        if (chosen.size() < kMostTested * size_t(options_.candidates))
          chosen.push_back(std::move(m));
    }
    return chosen;
  }

  void test(const Mutant& m) {
    const auto found = agreement(original_, m.graph, options_.seed);
    if (!found || found->share == 0) return;
    report_.partial++;
    if (found->whole()) {
      report_.equal++;
      found_.push_back({m.graph, m.recipe->str(), found->share, m.cost});
      return;
    }
    if (found->share < options_.least_equal) return;
    bool any = false;
    for (Corrected& c : corrections(original_, *m.recipe, m.graph, *found, options_)) {
      const double cost = options_.cost->cost(c.graph).seconds;
      if (cost > options_.bound) continue;
      found_.push_back({std::move(c.graph), m.recipe->str(), found->share, cost, c.how});
      any = true;
    }
    report_.corrected += any;
  }

  std::vector<Candidate> prove() {
    std::ranges::stable_sort(found_, {}, &Found::cost);
    VerifyOptions how;
    how.seed = options_.seed + 1;
    how.cancel = options_.cancel;
    how.seconds = std::max(1.0, options_.seconds - clock_.seconds());
    Verifier verifier(original_, how);
    std::vector<Candidate> proven;
    std::set<std::string> ways;
    for (Found& f : found_) {
      const std::string way = way_of(f.graph);
      if (proven.size() >= size_t(options_.candidates) || ended(1)) break;
      if (ways.contains(way)) continue;
      if (options_.prove) {
        if (!verifier.verify(f.graph).equal()) continue;
        report_.proven++;
      }
      ways.insert(way);
      Candidate c;
      c.cost = f.cost;
      c.origin = "mutate";
      c.derivation = f.derivation;
      if (!f.correction.empty()) c.derivation += "corrected: " + f.correction + "\n";
      c.notes.push_back(f.correction.empty() ? std::string("equal everywhere without a correction")
                                             : "equal on " + decimals(100 * f.equal, 1) +
                                                   " % without its correction, " + f.correction);
      c.graph = std::move(f.graph);
      proven.push_back(std::move(c));
    }
    if (!proven.empty()) report_.best_cost = proven[0].cost;
    return proven;
  }

  const Graph& original_;
  const MutateOptions& options_;
  MutateReport& report_;
  std::vector<Found> found_;
  const WallClock clock_;
};

}  // namespace
}  // namespace mutants

const std::vector<std::string>& mutate_passes() {
  static const std::vector<std::string> names = {"rearrange", "windows", "matmul", "bundles",
                                                 "spacer",    "halo",    "fuse",   "recompute"};
  return names;
}

std::vector<Candidate> mutate(const Graph& subprogram, const MutateOptions& options,
                              MutateReport* report) {
  CHECK(options.cost != nullptr) << "mutants are ordered by a cost model";
  for (const std::string& pass : options.disabled)
    if (std::ranges::find(mutate_passes(), pass) == mutate_passes().end())
      throw Error(ErrorKind::Usage, "there is no step mutate:" + pass);
  MutateReport own;
  MutateReport& told = report ? *report : own;
  told = {};
  told.detail = mutants::unsupported(subprogram);
  if (told.detail.empty() && subprogram.inputs().size() > 64)
    told.detail = "more than 64 inputs: split the program";
  if (!told.detail.empty()) {
    told.stop = StopReason::Unsupported;
    return {};
  }
  const WallClock clock;
  std::vector<Candidate> found = mutants::Run(subprogram, options, told).run();
  if (options.cancel && options.cancel->load(std::memory_order_relaxed))
    told.stop = StopReason::Cancelled;
  told.seconds = clock.seconds();
  return found;
}

SearchReport Mutate::run(const Subprogram& subprogram, Context& context, const Budget& budget,
                         CandidateSink& sink) {
  MutateOptions options = options_;
  const AnalyticalModel model(*context.target);
  if (!options.cost) options.cost = context.cost ? context.cost : &model;
  options.steps = std::min(options.steps, budget.steps);
  options.seconds = std::min(options.seconds, budget.seconds);
  options.candidates = std::min(options.candidates, budget.candidates);
  options.slice = budget.slice;
  options.slices = budget.slices;
  if (budget.bound > 0) options.bound = budget.bound;
  options.seed = context.seed;
  options.cancel = context.cancel;
  MutateReport told;
  std::vector<Candidate> found = mutate(subprogram.graph, options, &told);
  SearchReport report;
  report.stop = told.stop;
  report.detail = told.detail;
  report.seconds = told.seconds;
  report.graphs = told.tried;
  report.candidates = int64_t(found.size());
  report.figures = {{"mutants", double(told.mutants)},
                    {"partial", double(told.partial)},
                    {"equal", double(told.equal)},
                    {"corrected", double(told.corrected)},
                    {"proven", double(told.proven)}};
  report.original_cost = told.original_cost;
  report.best_cost = told.best_cost;
  for (Candidate& c : found) sink.offer(std::move(c));
  return report;
}

}  // namespace tessera
