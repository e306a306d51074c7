#include "search/mugraph/mugraph.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cost/analytical.h"
#include "ir/block.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/mugraph/exhaustive.h"
#include "search/mugraph/lower.h"
#include "search/mugraph/represent.h"
#include "search/mugraph/threads.h"

namespace tessera {
namespace {

using namespace mugraph;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// One way to see a region: a cap on multiplying out sums, and whether shifts by a maximum stay.
struct Formulation {
  FormOptions options;
  std::string note;
  bool program_only = false;  // the program's own operations, only fused: no algebra
};

// One plan of a region, with what is needed to lower it.
struct Choice {
  Plan plan;
  size_t world = 0;  // index into Search::worlds of the region
};

// A saturated formulation.
struct World {
  Region region;
  Formulation formulation;
  std::unique_ptr<NormalForms> forms;
  RegionForms region_forms;
  Hypergraph graph;
  std::string note;
  bool drops_shift = false;  // maxima in exponents cancelled: exponents are carried
  bool as_written = false;   // no algebra: safe wherever the program is
  // By the numbers of parts of split axes (plans choose them); one entry where nothing is split.
  std::map<std::map<int, int64_t>, std::unique_ptr<KernelSearch>> kernels;
};

struct RegionResult {
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<Choice> choices;  // cheapest first
};

bool uses_max_shift(const Graph& g) {
  bool exp = false, max = false;
  for (const Op& op : g.ops()) {
    exp = exp || op.kind == OpKind::Exp;
    max = max || op.kind == OpKind::ReduceMax;
  }
  return exp && max;
}

int block_operators(const Graph& g) {
  int most = 0;
  for (const Graph& b : g.bodies()) {
    int n = 0;
    for (const Op& op : b.ops()) n += op.kind != OpKind::Input && op.kind != OpKind::Const;
    most = std::max(most, n);
  }
  return most;
}

class Search {
 public:
  Search(const MugraphOptions& options, const Subprogram& sub, Context& context,
         const Budget& budget, CandidateSink& sink)
      : options_(options), program_(sub.graph), context_(context), budget_(budget), sink_(sink),
        machine_(*context.target), analytical_(*context.target),
        model_(context.cost ? *context.cost : analytical_), pool_(std::max(1, context.threads)) {}

  SearchReport run() {
    start_ = Clock::now();
    for (const Tensor& t : program_.tensors()) {
      if (!is_static(t.type.shape))
        return finish(StopReason::Unsupported, "symbolic shapes: bind them first");
    }
    for (TensorId t : program_.inputs()) resident_ += double(program_.type(t).bytes());
    steps_ = partition(program_);
    regions_ = 0;
    for (const Step& s : steps_) regions_ += s.kept.valid() ? 0 : 1;
    // Where nothing that fits comes out of lowering, tiles get less memory.
    for (memory_share_ = 1; memory_share_ > 0.1; memory_share_ *= 0.4) {
      if (std::optional<SearchReport> failed = solve_regions()) return *failed;
      combine();
      if (report_.candidates > 0 || stopped_ || !memory_failed_) break;
      results_.clear();
    }
    return finish(stopped_   ? stop_reason()
                  : limited_ ? StopReason::StepBudget
                             : StopReason::Exhausted,
                  detail_);
  }

 private:
  // The report, where there is nothing to combine.
  std::optional<SearchReport> solve_regions() {
    std::vector<bool> given(program_.tensors().size(), false);
    for (TensorId t : program_.inputs()) given[t.index] = true;
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (steps_[s].kept.valid()) {
        const Op& op = program_.op(steps_[s].kept);
        for (uint32_t i = 0; i < op.num_results; ++i) given[op.result(i).index] = true;
        continue;
      }
      results_[s] = solve(steps_[s].outputs, given);
      if (results_[s].choices.empty() && !stopped_ && steps_[s].outputs.size() > 1) {
        // Together they were too much; one by one, earlier outputs help with later ones.
        std::vector<Step> single;
        for (TensorId t : steps_[s].outputs) single.push_back({{t}, {}});
        steps_.erase(steps_.begin() + long(s));
        steps_.insert(steps_.begin() + long(s), single.begin(), single.end());
        --s;
        continue;
      }
      for (TensorId t : steps_[s].outputs) given[t.index] = true;
      if (stopped_) break;
    }
    if (regions_ == 0)
      return finish(StopReason::Unsupported, "no operator that the normal form sees through");
    bool any = false;
    for (const auto& [s, r] : results_) any = any || !r.choices.empty();
    if (any) return std::nullopt;
    StopReason why = stopped_ ? stop_reason() : StopReason::Unsupported;
    return finish(why, stopped_ ? "" : detail_.empty() ? "no derivation of the outputs" : detail_);
  }

  bool out_of_time() const { return since(start_) > budget_.seconds; }
  StopReason stop_reason() const {
    return context_.cancelled() ? StopReason::Cancelled : StopReason::TimeBudget;
  }

  bool rule(const char* name) const { return options_.ablate.count(name) == 0; }

  RegionResult solve(const std::vector<TensorId>& outputs, const std::vector<bool>& given) {
    RegionResult out;
    region_steps_ = 0;
    const Region region = make_region(program_, outputs, given);
    if (region.targets.empty()) {
      detail_ = "more than 60 axes in one region";
      return out;
    }
    std::vector<Formulation> formulations{{{2, false}, ""}, {{16, false}, ""}};
    if (uses_max_shift(program_)) {
      for (Formulation& f : formulations) f.note = "drops the maximum shift of an exponent";
      formulations.push_back({{2, true}, ""});
      formulations.push_back({{16, true}, ""});
    }
    formulations.push_back({{2, uses_max_shift(program_)}, "", true});
    for (const Formulation& f : formulations) {
      if (interrupted()) break;
      if (f.program_only && options_.exhaustive) continue;
      std::unique_ptr<World> world = make_world(region, f);
      if (!world) {
        detail_ = "a constant of the program has no exact normal form";
        continue;
      }
      if (options_.exhaustive) {
        enumerate(out, std::move(world));
        continue;
      }
      KernelCounters counters;
      if (!saturate_world(*world, counters)) {
        merge(counters);
        detail_ = "no derivation of the outputs";
        continue;
      }
      // Multiplied out too far; another formulation already has plans.
      if (world->graph.capped && !out.choices.empty()) {
        merge(counters);
        ++report_.pruned["formulation too large"];
        continue;
      }
      if (World* same = same_as_before(out, *world)) {
        same->as_written = same->as_written || world->as_written;
        merge(counters);
        continue;
      }
      World& w = *world;
      out.worlds.push_back(std::move(world));
      explore(out, w, out.worlds.size() - 1, {}, counters);
      merge(counters);
    }
    if (!options_.exhaustive && rule("split")) split_reductions(out);
    std::stable_sort(out.choices.begin(), out.choices.end(), [](const Choice& a, const Choice& b) {
      return a.plan.seconds < b.plan.seconds;
    });
    return out;
  }

  bool interrupted() {
    if (context_.cancelled() || out_of_time()) stopped_ = true;
    return stopped_;
  }

  // Null where a constant of the program has no exact form.
  std::unique_ptr<World> make_world(const Region& region, const Formulation& f) {
    auto world = std::make_unique<World>();
    world->region = region;
    world->formulation = f;
    world->forms = std::make_unique<NormalForms>(axis_extents(region), f.options);
    for (size_t a = 0; a < region.part.size(); ++a) {
      if (region.part[a] >= 0) world->forms->split(int(a), region.part[a]);
    }
    world->region_forms = build_forms(region, *world->forms);
    if (world->region_forms.of_node.empty()) return nullptr;
    world->note = f.note.empty() || changed_by_shift(*world, region) ? f.note : "";
    world->drops_shift = !f.options.keep_shifts;
    world->as_written = f.program_only;
    return world;
  }

  bool saturate_world(World& world, KernelCounters& counters) {
    SaturateOptions saturation;
    saturation.cancel = context_.cancel;
    saturation.out_of_time = [this] { return out_of_time(); };
    saturation.program_only = world.formulation.program_only;
    saturation.volume_rule = rule("volume");
    saturation.cancel_rule = rule("cancels");
    saturation.reciprocals = rule("reciprocals");
    world.graph =
        saturate(world.region, *world.forms, world.region_forms, saturation, counters.pruned);
    report_.values += int64_t(world.graph.saturated_values);
    report_.edges += int64_t(world.graph.saturated_edges);
    return !world.graph.targets.empty();
  }

  KernelSearch& kernel_search(World& world, const std::map<int, int64_t>& parts) {
    std::unique_ptr<KernelSearch>& k = world.kernels[parts];
    if (!k) {
      KernelOptions options;
      options.max_operators = options_.max_block_ops;
      options.bound_rule = rule("bound");
      options.dominance_rule = rule("dominated");
      options.memory_rule = rule("memory");
      options.memory_share = memory_share_;
      k = std::make_unique<KernelSearch>(world.graph, world.region, world.region_forms, parts,
                                         machine_, options, resident_);
    }
    return *k;
  }

  static double least(const RegionResult& r) {
    double s = INFINITY;
    for (const Choice& c : r.choices) s = std::min(s, c.plan.seconds);
    return s;
  }

  // Plans of a saturated world, appended to the choices.
  void explore(RegionResult& out, World& world, size_t index, const std::map<int, int64_t>& parts,
               KernelCounters& counters) {
    // A program of library operators may be hard to match; one's own plans always compete.
    double start = analytical_.cost(program_).seconds;
    for (const Choice& c : out.choices) start = std::min(start, c.plan.seconds);
    if (!out.choices.empty()) start = std::max(start, least(out) / 4);
    PlanOptions plan_options;
    plan_options.wanted = budget_.candidates;
    plan_options.per_structure = options_.variants;
    // Unrelated outputs may need kernels of their own.
    plan_options.max_kernels = options_.max_kernels + int(world.graph.targets.size()) - 1;
    // One formulation takes half of a region's steps at most, and all share them.
    const int64_t share = budget_.steps / regions_, before = counters.expanded;
    plan_options.max_steps =
        before + std::max<int64_t>(20'000, std::min(share / 2, share - region_steps_));
    plan_options.cancel = context_.cancel;
    plan_options.out_of_time = [this] { return out_of_time(); };
    plan_options.improved = [&](double best) {
      report_.best_cost = best;
      progress(counters);
    };
    PlanResult found =
        find_plans(world.graph, kernel_search(world, parts), start, plan_options, &pool_, counters);
    region_steps_ += counters.expanded - before;
    stopped_ = stopped_ || found.stopped;
    limited_ = limited_ || !found.complete;
    std::set<std::string> seen;
    for (const Plan& p : found.plans) seen.insert(identity(p));
    for (Plan& p : found.singles) {
      if (seen.insert(identity(p)).second) found.plans.push_back(std::move(p));
    }
    for (Plan& p : found.plans) {
      if (!parts.empty()) {
        if (!uses_parts(p, world)) continue;  // known without the split
        p.parts = parts;
        choose_parts(p, world, counters);
      }
      out.choices.push_back({std::move(p), index});
    }
    progress(counters);
  }

  // --- reductions split over the grid, or into a loop's iterations -----------------------------

  // Does the plan compute partial results anywhere?
  static bool uses_parts(const Plan& p, const World& world) {
    for (const Kernel& k : p.kernels) {
      for (uint32_t i : k.edges) {
        const Edge& e = world.graph.edges[i];
        for (size_t a = 0; a < world.region.part.size(); ++a) {
          const int part = world.region.part[a];
          if (part >= 0 && (e.bits & bit(int(a))) && !(e.bits & bit(part))) return true;
        }
      }
    }
    return false;
  }

  // Numbers of parts worth trying: as many blocks as keep all cores busy a few times over.
  std::vector<int64_t> part_counts(int64_t extent) const {
    std::vector<int64_t> out;
    for (int64_t n : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}) {
      if (n > 4 * machine_.target().cores || 2 * n > extent) break;
      const int64_t used = ceil_div(extent, ceil_div(extent, n));
      if (out.empty() || used > out.back()) out.push_back(used);
    }
    return out;
  }

  // The number of parts is one for the whole plan; everything it touches is priced again.
  void choose_parts(Plan& plan, World& world, KernelCounters& counters) {
    for (const auto& [axis, n] : std::map<int, int64_t>(plan.parts)) {
      const int whole = world.region.whole[size_t(axis)];
      for (int64_t count : part_counts(world.region.axes[size_t(whole)].extent)) {
        Plan other = plan;
        other.parts[axis] = count;
        other.seconds = 0;
        const KernelSearch& kernels = kernel_search(world, other.parts);
        bool fits = true;
        for (Kernel& k : other.kernels) {
          fits = fits && kernels.price(k, counters);
          other.seconds += k.seconds;
        }
        if (fits && other.seconds < plan.seconds * (1 - 1e-9)) plan = std::move(other);
      }
    }
  }

  void split_reductions(RegionResult& out) {
    const size_t unsplit = out.worlds.size();
    const double best = least(out);
    double blocks = 1;  // of the longest kernel of the best plan
    for (const Choice& c : out.choices) {
      if (c.plan.seconds > best) continue;
      double most = 0;
      for (const Kernel& k : c.plan.kernels) {
        double n = 1;
        for (const Kernel::GridDim& g : k.grid) n *= double(g.parts);
        if (k.seconds > most) blocks = n;
        most = std::max(most, k.seconds);
      }
    }
    for (size_t w = 0; w < unsplit; ++w) {
      const World& base = *out.worlds[w];
      if (base.formulation.program_only || base.graph.capped) continue;
      for (int axis : split_axes(base)) {
        if (interrupted()) return;
        Region region = base.region;
        region.split(axis);
        std::unique_ptr<World> world = make_world(region, base.formulation);
        KernelCounters counters;
        if (!world || !saturate_world(*world, counters) || world->graph.capped) {
          merge(counters);
          continue;
        }
        // Enough parts to keep all cores busy, alone or together with the blocks there are; plans
        // choose among all numbers afterwards.
        const std::vector<int64_t> counts = part_counts(region.axes[size_t(axis)].extent);
        std::set<int64_t> enough;
        for (double with : {1.0, blocks}) {
          auto at = std::find_if(counts.begin(), counts.end(), [&](int64_t n) {
            return double(n) * with >= machine_.target().cores;
          });
          enough.insert(at == counts.end() ? counts.back() : *at);
        }
        std::map<int, int64_t> parts;
        parts[region.part[size_t(axis)]] = *enough.begin();
        // Partial results in memory take two kernels at least; partial sums in a loop pay only
        // where several of them meet before they accumulate.
        std::vector<ValueId> targets;
        for (const Hypergraph::Target& t : world->graph.targets) {
          if (t.value != kOne) targets.push_back(t.value);
        }
        const double bound =
            machine_.target().launch_seconds + kernel_search(*world, parts).remaining(targets);
        if (bound >= best && !meets_in_parts(*world)) {
          ++counters.pruned["split bound"];
          merge(counters);
          continue;
        }
        World& w2 = *world;
        out.worlds.push_back(std::move(world));
        for (int64_t n : enough) {
          parts.begin()->second = n;
          explore(out, w2, out.worlds.size() - 1, parts, counters);
        }
        merge(counters);
      }
    }
  }

  // Axes whose reductions may be split: the two longest that any operation reduces.
  std::vector<int> split_axes(const World& world) const {
    AxisMask reduced = 0;
    for (const Edge& e : world.graph.edges) {
      if (e.op == EdgeOp::Sum || e.op == EdgeOp::Matmul) reduced |= e.bits;
    }
    std::vector<int> axes;
    for (; reduced; reduced &= reduced - 1) {
      const int a = lowest(reduced);
      if (!part_counts(world.region.axes[size_t(a)].extent).empty()) axes.push_back(a);
    }
    std::stable_sort(axes.begin(), axes.end(), [&](int a, int b) {
      return world.region.axes[size_t(a)].extent > world.region.axes[size_t(b)].extent;
    });
    if (axes.size() > 2) axes.resize(2);
    return axes;
  }

  // Is a sum of partial results among the operations?
  static bool meets_in_parts(const World& world) {
    for (const Edge& e : world.graph.edges) {
      if (e.op != EdgeOp::Add) continue;
      const AxisMask m = world.graph.values[e.out].axes;
      for (size_t a = 0; a < world.region.part.size(); ++a) {
        const int part = world.region.part[a];
        if (part >= 0 && (m & bit(part)) && !(m & bit(int(a)))) return true;
      }
    }
    return false;
  }

  // Algorithm 1: every block graph of the whole region, priced; the cheapest are kept.
  void enumerate(RegionResult& out, std::unique_ptr<World> world) {
    ExhaustiveOptions options;
    options.max_operators = options_.max_block_ops.value_or(10);
    options.prune_values = rule("not part of a goal");
    options.sink_bound = rule("sink bound");
    options.max_states = budget_.steps;
    options.cancel = context_.cancel;
    options.out_of_time = [this] { return out_of_time(); };
    ExhaustiveResult found =
        enumerate_blocks(world->region, *world->forms, world->region_forms, options);
    stopped_ = stopped_ || context_.cancelled() || out_of_time();
    limited_ = limited_ || !found.complete;
    KernelCounters counters;
    counters.pruned = found.pruned;
    counters.graphs = int64_t(found.kernels.size());
    report_.values += int64_t(found.graph.values.size());
    report_.edges += found.states;
    world->graph = std::move(found.graph);
    KernelSearch& kernels = kernel_search(*world, {});
    std::vector<Plan> plans;
    for (Kernel& k : found.kernels) {
      if (!kernels.price(k, counters)) continue;
      Plan p;
      p.seconds = k.seconds;
      p.kernels.push_back(std::move(k));
      plans.push_back(std::move(p));
    }
    merge(counters);
    std::stable_sort(plans.begin(), plans.end(),
                     [](const Plan& a, const Plan& b) { return a.seconds < b.seconds; });
    if (plans.size() > size_t(budget_.candidates)) plans.resize(size_t(budget_.candidates));
    if (plans.empty() && detail_.empty()) detail_ = "no graph within the limit on operators";
    for (Plan& p : plans) out.choices.push_back({std::move(p), out.worlds.size()});
    out.worlds.push_back(std::move(world));
  }

  static std::string identity(const Plan& p) {
    std::string s = p.structure();
    for (const Kernel& k : p.kernels) {
      for (uint32_t e : k.edges) s += std::to_string(e) + ",";
    }
    return s;
  }

  // Whether a formulation that lets shifts cancel differs from one that keeps them.
  bool changed_by_shift(World& world, const Region& region) {
    NormalForms keep(axis_extents(region), {world.forms->options().cap, true});
    RegionForms kept = build_forms(region, keep);
    if (kept.of_node.empty()) return true;
    for (uint32_t t : region.targets) {
      if (keep.str(kept.of_node[t]) != world.forms->str(world.region_forms.of_node[t])) return true;
    }
    return false;
  }

  // The earlier formulation with the same values, or null.
  World* same_as_before(const RegionResult& r, const World& w) const {
    for (const auto& other : r.worlds) {
      if (other->graph.values.size() != w.graph.values.size() ||
          other->graph.edges.size() != w.graph.edges.size() || other->note != w.note) {
        continue;
      }
      bool same = true;
      for (size_t v = 0; v < w.graph.values.size() && same; ++v) {
        same =
            other->forms->str(other->graph.values[v].form) == w.forms->str(w.graph.values[v].form);
      }
      if (same) return other.get();
    }
    return nullptr;
  }

  void merge(const KernelCounters& c) {
    report_.graphs += c.graphs;
    report_.tilings += c.tilings;
    for (const auto& [name, n] : c.pruned) report_.pruned[name] += n;
  }

  void progress(const KernelCounters& running) {
    if (!context_.progress) return;
    SearchReport r = report_;
    r.seconds = since(start_);
    r.graphs += running.graphs;
    r.tilings += running.tilings;
    for (const auto& [name, n] : running.pruned) r.pruned[name] += n;
    context_.progress(r);
  }

  // Whole programs: the best choice everywhere, then one region at a time with its next choices.
  void combine() {
    std::map<size_t, size_t> best;
    for (const auto& [s, r] : results_) {
      if (!r.choices.empty()) best[s] = 0;
    }
    std::vector<std::pair<Candidate, std::string>> found;
    auto offer = [&](const std::map<size_t, size_t>& pick) {
      // The estimate of a block's memory leaves out what lowering adds (transposes, scaled copies);
      // where that matters, tiles are chosen again with less.
      std::optional<Candidate> c;
      for (double share : {1.0, 0.7, 0.45}) {
        too_large_ = false;
        c = assemble(pick, share);
        if (!too_large_) break;
      }
      memory_failed_ = memory_failed_ || too_large_;
      if (too_large_) ++report_.pruned["memory of the lowered kernel"];
      if (!c) return;
      std::string structure;
      bool one = true;
      for (const auto& [s, i] : pick) {
        const Choice& ch = results_.at(s).choices[i];
        one = one && ch.plan.kernels.size() == 1;
        structure += std::to_string(ch.world) + ch.plan.structure() + "|";
      }
      found.push_back({std::move(*c), (one ? "1" : "n") + structure});
    };
    // Many regions have too many combinations to write them all down.
    const size_t most = regions_ == 1 ? SIZE_MAX : 4 * size_t(std::max(1, budget_.candidates));
    offer(best);
    // The program as written, fused only: where rounding forbids the algebra this one still stands.
    std::map<size_t, size_t> written;
    for (const auto& [s, r] : results_) {
      for (size_t i = 0; i < r.choices.size(); ++i) {
        if (r.worlds[r.choices[i].world]->as_written) {
          written[s] = i;
          break;
        }
      }
    }
    const size_t before = written == best ? 0 : found.size();
    if (!written.empty() && written != best) offer(written);
    if (!written.empty() && found.size() > before) found.back().first.as_written = true;
    // One region at a time with its next choices, in turns.
    size_t longest = 0;
    for (const auto& [s, first] : best) longest = std::max(longest, results_.at(s).choices.size());
    for (size_t i = 1; i < longest; ++i) {
      for (const auto& [s, first] : best) {
        if (i >= results_.at(s).choices.size()) continue;
        if (context_.cancelled() || out_of_time() || found.size() >= most) break;
        std::map<size_t, size_t> pick = best;
        pick[s] = i;
        offer(pick);
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first.cost < b.first.cost; });
    std::vector<Candidate> candidates;
    std::vector<std::string> structure_of;
    std::vector<char> single;
    for (auto& [c, s] : found) {
      candidates.push_back(std::move(c));
      single.push_back(s[0] == '1');
      structure_of.push_back(std::move(s));
    }
    // Different structures first, then variants; half of the room at most for candidates with
    // notes, since a program that asks for a shift must find candidates that keep it.
    const size_t room = size_t(std::max(1, budget_.candidates));
    std::vector<size_t> picked;
    std::vector<char> taken(candidates.size(), 0);
    size_t noted = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!candidates[i].as_written) continue;
      taken[i] = 1;
      picked.push_back(i);
    }
    // Everything in one kernel comes with all its variants.
    for (size_t i = 0; i < candidates.size() && picked.size() < room / 2; ++i) {
      if (!single[i] || taken[i] || !candidates[i].notes.empty()) continue;
      taken[i] = 1;
      picked.push_back(i);
    }
    for (int copies = 1; copies <= options_.variants && picked.size() < room; ++copies) {
      std::map<std::string, int> structures;
      for (size_t i = 0; i < candidates.size() && picked.size() < room; ++i) {
        int n = ++structures[structure_of[i] + (candidates[i].notes.empty() ? "" : "!")];
        if (taken[i] || n > copies) continue;
        if (!candidates[i].notes.empty() && ++noted > (room + 1) / 2) continue;
        taken[i] = 1;
        picked.push_back(i);
      }
    }
    std::sort(picked.begin(), picked.end());
    std::vector<Candidate> chosen;
    for (size_t i : picked) chosen.push_back(std::move(candidates[i]));
    for (Candidate& c : chosen) {
      if (report_.candidates++ == 0) report_.best_cost = c.cost;
      sink_.offer(std::move(c));
    }
  }

  std::optional<Candidate> assemble(const std::map<size_t, size_t>& pick, double share) {
    Graph g(program_.name());
    std::vector<TensorId> tensors(program_.tensors().size());
    Candidate c;
    c.origin = "mugraph";
    bool carry = false, over_limit = false;
    try {
      for (TensorId t : program_.inputs()) {
        tensors[t.index] =
            g.add_input(program_.type(t), program_.tensor(t).name, program_.is_weight(t));
      }
      auto mapped = [&](TensorId t) {
        if (!tensors[t.index].valid()) {
          const Op& op = program_.producer(t);
          if (op.kind != OpKind::Const) return TensorId();
          tensors[t.index] = g.add_const(std::get<ConstAttrs>(op.attrs).value, program_.type(t));
        }
        return tensors[t.index];
      };
      for (size_t s = 0; s < steps_.size(); ++s) {
        auto choice = pick.find(s);
        if (steps_[s].kept.valid()) {
          copy(program_.op(steps_[s].kept), g, tensors, mapped);
        } else if (choice == pick.end()) {  // not searched: as the program has it
          for (TensorId t : steps_[s].outputs) copy_tree(t, g, tensors, mapped);
        } else {
          const RegionResult& r = results_.at(s);
          const Choice& ch = r.choices[choice->second];
          const World& w = *r.worlds[ch.world];
          Plan plan = ch.plan;
          if (share < 1) {
            KernelCounters counters;
            for (Kernel& k : plan.kernels) w.kernels.at(plan.parts)->price(k, counters, share);
            merge(counters);
          }
          if (!lower_plan(plan, w.graph, w.region, w.region_forms, *w.kernels.at(plan.parts),
                          program_, g, tensors)) {
            ++report_.pruned["cannot be lowered"];
            return std::nullopt;
          }
          c.derivation += describe(plan, w.graph, w.region, *w.forms, w.region_forms);
          if (!w.note.empty()) c.notes.push_back(w.note);
          carry = carry || w.drops_shift;
        }
      }
      std::vector<TensorId> outputs;
      for (TensorId t : program_.outputs()) outputs.push_back(mapped(t));
      g.set_outputs(outputs);
      // The limit is on what is searched: how values are represented comes afterwards.
      over_limit = options_.max_block_ops && block_operators(g) > *options_.max_block_ops;
      if (carry && rule("running maximum")) carry_running_maxima(g, c);
      if (rule("thread graphs")) g = form_thread_graphs(g);
      ValidateOptions limits;
      if (context_.target->kind == TargetKind::Gpu)
        limits.block_bytes = context_.target->block_bytes();
      for (const Graph& b : g.bodies()) {
        too_large_ = too_large_ || block_memory(b).peak() > limits.block_bytes;
      }
      if (too_large_) return std::nullopt;
      validate(g, limits);
    } catch (const Error& e) {
      ++report_.pruned["not valid"];
      if (context_.log) context_.log("mugraph: candidate is not valid: " + e.message());
      return std::nullopt;
    }
    if (over_limit) {
      ++report_.pruned["operator limit"];
      return std::nullopt;
    }
    uint64_t hash = structural_hash(g);
    if (!seen_.insert(hash).second) {
      ++report_.pruned["duplicate"];
      return std::nullopt;
    }
    c.cost = model_.cost(g).seconds;
    c.graph = std::move(g);
    return c;
  }

  // Exponentials that enter sums get running maxima, unless that cannot be expressed.
  void carry_running_maxima(Graph& g, Candidate& c) {
    try {
      Graph carried = carry_exponents(g);
      validate(carried);
      if (exponents_are_shifted(g)) c.notes.clear();
      if (structural_hash(carried) == structural_hash(g)) return;
      g = std::move(carried);
      c.notes.clear();
      c.derivation += "exponentials that enter sums are carried with running maxima\n";
    } catch (const Error&) {  // ragged tiles cannot be broadcast
      ++report_.pruned["running maximum not expressible"];
    }
  }

  template <class Map>
  void copy(const Op& op, Graph& g, std::vector<TensorId>& tensors, const Map& mapped) {
    std::vector<TensorId> in;
    std::vector<std::string> names;
    for (TensorId t : op.inputs) in.push_back(mapped(t));
    for (uint32_t i = 0; i < op.num_results; ++i)
      names.push_back(program_.tensor(op.result(i)).name);
    OpId id = op.body.valid() ? g.add_graph_op(op.kind, in, program_.body(op), names)
                              : g.add_op(op.kind, in, op.attrs, names);
    for (uint32_t i = 0; i < op.num_results; ++i) tensors[op.result(i).index] = g.op(id).result(i);
  }

  template <class Map>
  void copy_tree(TensorId t, Graph& g, std::vector<TensorId>& tensors, const Map& mapped) {
    if (mapped(t).valid()) return;
    const Op& op = program_.producer(t);
    for (TensorId u : op.inputs) copy_tree(u, g, tensors, mapped);
    copy(op, g, tensors, mapped);
  }

  SearchReport finish(StopReason why, const std::string& detail) {
    report_.stop = why;
    report_.detail = detail;
    report_.seconds = since(start_);
    return report_;
  }

  const MugraphOptions& options_;
  const Graph& program_;
  Context& context_;
  const Budget& budget_;
  CandidateSink& sink_;
  Machine machine_;
  AnalyticalModel analytical_;
  const CostModel& model_;
  ThreadPool pool_;
  Clock::time_point start_;
  double resident_ = 0;
  bool stopped_ = false, limited_ = false;
  bool too_large_ =
      false;  // the candidate just assembled needs more memory per block than there is
  bool memory_failed_ = false;  // that happened to some candidate
  double memory_share_ = 1;
  std::string detail_;
  std::vector<Step> steps_;
  int64_t regions_ = 0;
  int64_t region_steps_ = 0;  // expanded for the region at hand
  std::map<size_t, RegionResult> results_;
  std::set<uint64_t> seen_;
  SearchReport report_;
};

}  // namespace

SearchReport Mugraph::run(const Subprogram& sub, Context& context, const Budget& budget,
                          CandidateSink& sink) {
  return Search(options_, sub, context, budget, sink).run();
}

}  // namespace tessera
