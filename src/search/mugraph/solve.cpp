#include "search/mugraph/solve.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ir/block.h"
#include "search/mugraph/stored_region.h"

namespace tessera::mugraph {
namespace {

// Whether exponents of the region may be shifted by a maximum, computed in it or before.
bool uses_max_shift(const Graph& program, const Region& region) {
  bool exp = false, max = false;
  for (const Node& n : region.nodes) exp = exp || n.kind == OpKind::Exp;
  for (const Op& op : program.ops()) max = max || op.kind == OpKind::ReduceMax;
  return exp && max;
}

class RegionSolver {
 public:
  explicit RegionSolver(Run& run) : run_(run) {}

  RegionResult solve(const std::vector<TensorId>& outputs, const std::vector<bool>& given) {
    RegionResult out;
    region_steps_ = 0;
    const Region region = make_region(run_.program, outputs, given);
    if (region.targets.empty()) {
      run_.detail = "more than 60 axes in one region";
      return out;
    }
    const bool max_shift = uses_max_shift(run_.program, region);
    std::vector<Formulation> formulations{{{2, false}, ""}, {{16, false}, ""}};
    if (max_shift) {
      for (Formulation& f : formulations) f.note = "drops the maximum shift of an exponent";
      formulations.push_back({{2, true}, ""});
      formulations.push_back({{16, true}, ""});
    }
    formulations.push_back({{2, max_shift}, "", true});
    // Slices differ in the first region alone.
    const bool sliced = run_.before_seconds == 0;
    for (const Formulation& f : formulations) {
      if (run_.interrupted()) break;
      if (sliced && !run_.budget.has_branch(&f - formulations.data())) continue;
      std::unique_ptr<World> world = make_world(region, f);
      if (!world) {
        run_.detail = "a constant of the program has no exact normal form";
        continue;
      }
      if (max_shift && !f.options.keep_shifts && logarithm_of_shift(*world, region)) {
        ++run_.report.pruned["logarithm of a dropped shift"];
        continue;
      }
      KernelCounters counters;
      if (!saturate_world(*world, counters)) {
        run_.merge(counters);
        run_.detail = "no derivation of the outputs";
        continue;
      }
      // Multiplied out too far; another formulation already has plans.
      if (world->graph.capped && !out.choices.empty()) {
        run_.merge(counters);
        ++run_.report.pruned["formulation too large"];
        continue;
      }
      if (World* same = same_as_before(out, *world)) {
        same->as_written = same->as_written || world->as_written;
        run_.merge(counters);
        continue;
      }
      World& w = *world;
      out.worlds.push_back(std::move(world));
      explore(out, w, out.worlds.size() - 1, {}, counters);
      run_.merge(counters);
    }
    if (run_.rule("split")) split_reductions(out);
    std::ranges::stable_sort(out.choices, {}, [](const Choice& x) { return x.plan.seconds; });
    return out;
  }

  // What an earlier run found; nothing where it does not fit the program, or time ran out.
  std::optional<RegionResult> restore(const StoredRegion& stored,
                                      const std::vector<TensorId>& outputs,
                                      const std::vector<bool>& given) {
    const SearchReport before = run_.report;
    RegionResult out;
    const Region region = make_region(run_.program, outputs, given);
    for (const StoredRegion::StoredWorld& w : stored.worlds) {
      Region split = region;
      if (w.split_axis >= int(region.axes.size())) return std::nullopt;
      if (w.split_axis >= 0) split.split(w.split_axis);
      std::unique_ptr<World> world =
          region.targets.empty() ? nullptr : make_world(split, w.formulation);
      KernelCounters counters;
      if (!world || !saturate_world(*world, counters) || run_.interrupted()) {
        run_.report = before;
        return std::nullopt;
      }
      world->as_written = w.as_written;
      out.worlds.push_back(std::move(world));
    }
    for (const Choice& c : stored.choices) {
      if (c.world >= out.worlds.size() || !fits(c.plan, *out.worlds[c.world])) {
        run_.report = before;
        return std::nullopt;
      }
      kernel_search(*out.worlds[c.world], c.plan.parts);
    }
    out.choices = stored.choices;
    run_.report = before;
    run_.report.add_counts(stored.counted);
    run_.limited = run_.limited || stored.limited;
    if (!stored.detail.empty()) run_.detail = stored.detail;
    return out;
  }

 private:
  // Are all of the plan's values, operations and axes there?
  static bool fits(const Plan& plan, const World& world) {
    const size_t axes = world.region.axes.size();
    for (const auto& [axis, n] : plan.parts) {
      if (axis < 0 || size_t(axis) >= world.region.whole.size() || n < 1) return false;
      if (world.region.whole[size_t(axis)] < 0) return false;
    }
    for (const Kernel& k : plan.kernels) {
      if (k.loop < -1 || k.loop >= int(axes) || k.loop_parts < 1 || k.grid.size() > 3) return false;
      if (k.nested_parts < 1 || (k.nested >> axes) != 0) return false;
      for (const Kernel::GridDim& g : k.grid)
        if (g.parts < 1) return false;
      for (const std::vector<ValueId>* values : {&k.outputs, &k.loads}) {
        for (ValueId v : *values)
          if (v >= world.graph.values.size()) return false;
      }
      for (uint32_t e : k.edges)
        if (e >= world.graph.edges.size()) return false;
    }
    return true;
  }

  // Null where a constant of the program has no exact form.
  std::unique_ptr<World> make_world(const Region& region, const Formulation& f) {
    auto world = std::make_unique<World>();
    world->region = region;
    world->formulation = f;
    world->forms = std::make_unique<NormalForms>(axis_extents(region), f.options);
    for (size_t a = 0; a < region.part.size(); ++a)
      if (region.part[a] >= 0) world->forms->split(int(a), region.part[a]);
    world->region_forms = build_forms(region, *world->forms);
    if (world->region_forms.of_node.empty()) return nullptr;
    // A formulation that lets shifts cancel may be the same as one that keeps them.
    if (!f.note.empty() && differs_from_kept(*world, region, region.targets)) world->note = f.note;
    world->drops_shift = !f.options.keep_shifts;
    world->as_written = f.program_only;
    return world;
  }

  bool saturate_world(World& world, KernelCounters& counters) {
    SaturateOptions saturation;
    saturation.cancel = run_.context.cancel;
    saturation.out_of_time = [this] { return run_.out_of_time(); };
    saturation.program_only = world.formulation.program_only;
    saturation.volume_rule = run_.rule("volume");
    saturation.cancel_rule = run_.rule("cancels");
    saturation.reciprocals = run_.rule("reciprocals");
    world.graph =
        saturate(world.region, *world.forms, world.region_forms, saturation, counters.pruned);
    run_.report.values += int64_t(world.graph.saturated_values);
    run_.report.edges += int64_t(world.graph.saturated_edges);
    return !world.graph.targets.empty();
  }

  KernelSearch& kernel_search(World& world, const std::map<int, int64_t>& parts) {
    std::unique_ptr<KernelSearch>& k = world.kernels[parts];
    if (!k) {
      KernelOptions options;
      options.max_operators = run_.options.max_block_ops;
      options.bound_rule = run_.rule("bound");
      options.dominance_rule = run_.rule("dominated");
      options.memory_rule = run_.rule("memory");
      if (!run_.rule("passes")) options.max_passes = 1;
      options.nests = run_.rule("nests");
      options.memory_share = run_.memory_share;
      // Kernels that take little more than their launch differ little in their bounds.
      if (run_.machine.target().kind == TargetKind::Gpu) options.max_graphs = 32;
      k = std::make_unique<KernelSearch>(world.graph, world.region, world.region_forms, parts,
                                         run_.machine, options, run_.resident);
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
    double start = run_.program_seconds;
    if (run_.budget.bound > 0 && run_.regions == 1) start = std::min(start, run_.budget.bound);
    if (!out.choices.empty()) start = std::clamp(start, least(out) / 4, least(out));
    PlanOptions plan_options;
    plan_options.wanted = run_.budget.candidates;
    // On a GPU a launch is much of what a small program costs: nearly all plans are within one.
    if (run_.machine.target().kind == TargetKind::Gpu) plan_options.launches = 0.25;
    plan_options.per_structure = run_.options.variants;
    // Unrelated outputs may need kernels of their own.
    plan_options.max_kernels = run_.options.max_kernels + int(world.graph.targets.size()) - 1;
    // One formulation takes half of a region's steps at most, and all share them.
    const int64_t share = run_.budget.steps / run_.regions, before = counters.expanded;
    plan_options.max_steps =
        before + std::max<int64_t>(20'000, std::min(share / 2, share - region_steps_));
    plan_options.cancel = run_.context.cancel;
    plan_options.out_of_time = [this] { return run_.out_of_time(); };
    plan_options.improved = [&](double best) {
      if (run_.last_region) run_.report.best_cost = run_.before_seconds + best;
      run_.progress(counters);
    };
    PlanResult found = find_plans(world.graph, kernel_search(world, parts), start, plan_options,
                                  &run_.pool, counters);
    region_steps_ += counters.expanded - before;
    run_.stopped = run_.stopped || found.stopped;
    run_.limited = run_.limited || !found.complete;
    std::set<std::string> seen;
    for (const Plan& p : found.plans) seen.insert(identity(p));
    for (Plan& p : found.singles)
      if (seen.insert(identity(p)).second) found.plans.push_back(std::move(p));
    for (Plan& p : found.plans) {
      if (!parts.empty()) {
        if (!uses_parts(p, world)) continue;  // known without the split
        p.parts = parts;
        choose_parts(p, world, counters);
        if (std::optional<Plan> joined = in_one_launch(p, world, counters))
          out.choices.push_back({std::move(*joined), index});
      }
      out.choices.push_back({std::move(p), index});
    }
    run_.progress(counters);
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
      if (n > 4 * run_.machine.target().cores || 2 * n > extent) break;
      const int64_t used = ceil_div(extent, ceil_div(extent, n));
      if (out.empty() || used > out.back()) out.push_back(used);
    }
    return out;
  }

  // The number of parts is one for the whole plan; everything it touches is priced again.
  void choose_parts(Plan& plan, World& world, KernelCounters& counters) {
    for_each_count(
        plan, world, counters,
        [&](Plan other, const KernelSearch&) {
          for (const Kernel& k : other.kernels) other.seconds += k.seconds;
          if (other.seconds < plan.seconds * (1 - 1e-9)) plan = std::move(other);
        });
  }

  // `f(other, kernels)` for the plan with each other number of parts along each axis that has some,
  // where it fits. Kernels are priced, `other.seconds` is 0. What `f` makes of the plan counts.
  template <class F>
  void for_each_count(const Plan& plan, World& world, KernelCounters& counters, const F& f) {
    for (const auto& [axis, n] : std::map<int, int64_t>(plan.parts)) {
      const int whole = world.region.whole[size_t(axis)];
      for (int64_t count : part_counts(world.region.axes[size_t(whole)].extent)) {
        Plan other = plan;
        other.parts[axis] = count;
        other.seconds = 0;
        const KernelSearch& kernels = kernel_search(world, other.parts);
        if (std::ranges::all_of(other.kernels,
                                [&](Kernel& k) { return kernels.choose_tiles(k, counters); }))
          f(std::move(other), kernels);
      }
    }
  }

  // The plan with its last two kernels cut so that one launch does both, where that is faster: with
  // the number of parts that is best then, which is mostly smaller.
  std::optional<Plan> in_one_launch(const Plan& plan, World& world, KernelCounters& counters) {
    if (run_.machine.target().kind != TargetKind::Gpu || plan.kernels.size() < 2)
      return std::nullopt;
    std::optional<Plan> best;
    for_each_count(plan, world, counters, [&](Plan other, const KernelSearch& kernels) {
      const size_t last = other.kernels.size() - 1;
      if (!kernels.join(other.kernels[last], other.kernels[last - 1], counters)) return;
      for (const Kernel& k : other.kernels) other.seconds += k.seconds;
      if (other.seconds < (best ? best->seconds : plan.seconds)) best = std::move(other);
    });
    return best;
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
        if (run_.interrupted()) return;
        Region region = base.region;
        region.split(axis);
        std::unique_ptr<World> world = make_world(region, base.formulation);
        KernelCounters counters;
        if (!world || !saturate_world(*world, counters) || world->graph.capped) {
          run_.merge(counters);
          continue;
        }
        // Enough parts to keep nearly all cores busy, alone or together with the blocks there are;
        // plans choose among all numbers afterwards.
        const std::vector<int64_t> counts = part_counts(region.axes[size_t(axis)].extent);
        std::set<int64_t> enough;
        for (double with : {tiled_outputs(*world), blocks}) {
          auto at = std::ranges::find_if(counts, [&](int64_t n) {
            return double(n) * with >= 0.75 * run_.machine.target().cores;
          });
          enough.insert(at == counts.end() ? counts.back() : *at);
        }
        const int part = region.part[size_t(axis)];
        // Partial results in memory take two kernels at least; partial sums in a loop pay only
        // where several of them meet before they accumulate.
        std::vector<ValueId> targets;
        for (const Hypergraph::Target& t : world->graph.targets)
          if (t.value != kOne) targets.push_back(t.value);
        double bound = INFINITY;
        for (int64_t n : enough)
          bound = std::min(bound, run_.machine.launch() +
                                      kernel_search(*world, {{part, n}}).remaining(targets));
        if (bound >= best && !meets_in_parts(*world)) {
          ++counters.pruned["split bound"];
          run_.merge(counters);
          continue;
        }
        World& w2 = *world;
        out.worlds.push_back(std::move(world));
        for (int64_t n : enough) explore(out, w2, out.worlds.size() - 1, {{part, n}}, counters);
        run_.merge(counters);
      }
    }
  }

  // Blocks besides the parts, in a kernel that computes as much as it can of the largest output: on
  // a GPU tiles of about 64 by 64, elsewhere parts alone keep the cores busy.
  double tiled_outputs(const World& world) const {
    if (run_.machine.target().kind == TargetKind::Cpu) return 1;
    double most = 1;
    for (const Hypergraph::Target& t : world.graph.targets) {
      double n = 1;
      for (AxisMask m = world.graph.values[t.value].axes; m; m &= m - 1)
        n *= double(ceil_div(world.region.axes[size_t(lowest(m))].extent, 64));
      most = std::max(most, n);
    }
    return most;
  }

  // Axes whose reductions may be split: the two longest that any operation reduces.
  std::vector<int> split_axes(const World& world) const {
    AxisMask reduced = 0;
    for (const Edge& e : world.graph.edges)
      if (e.op == EdgeOp::Sum || e.op == EdgeOp::Matmul) reduced |= e.bits;
    std::vector<int> axes;
    for (; reduced; reduced &= reduced - 1) {
      const int a = lowest(reduced);
      if (!part_counts(world.region.axes[size_t(a)].extent).empty()) axes.push_back(a);
    }
    std::ranges::stable_sort(axes, std::ranges::greater(),
                             [&](int a) { return world.region.axes[size_t(a)].extent; });
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

  static std::string identity(const Plan& p) {
    std::string s = p.structure();
    for (const Kernel& k : p.kernels)
      for (uint32_t e : k.edges) s += std::to_string(e) + ",";
    return s;
  }

  // log Σ exp(x − m) as log Σ exp x − m: the verifier knows logarithms as random functions of
  // their operands and cannot decide what follows from that.
  bool logarithm_of_shift(World& world, const Region& region) {
    std::vector<uint32_t> logarithms;
    for (uint32_t n = 0; n < region.nodes.size(); ++n)
      if (region.nodes[n].kind == OpKind::Log) logarithms.push_back(n);
    return !logarithms.empty() && differs_from_kept(world, region, logarithms);
  }

  bool differs_from_kept(World& world, const Region& region, const std::vector<uint32_t>& nodes) {
    NormalForms keep(axis_extents(region), {world.forms->options().cap, true});
    const RegionForms kept = build_forms(region, keep);
    if (kept.of_node.empty()) return true;
    auto text = [&](NormalForms& forms, PolyId p) { return p == kNone ? "" : forms.str(p); };
    return std::ranges::any_of(nodes, [&](uint32_t n) {
      return text(keep, kept.of_node[n]) != text(*world.forms, world.region_forms.of_node[n]);
    });
  }

  // The earlier formulation with the same values, or null.
  World* same_as_before(const RegionResult& r, const World& w) const {
    for (const auto& other : r.worlds) {
      if (other->graph.values.size() != w.graph.values.size() ||
          other->graph.edges.size() != w.graph.edges.size() || other->note != w.note)
        continue;
      bool same = true;
      for (size_t v = 0; v < w.graph.values.size() && same; ++v) {
        same =
            other->forms->str(other->graph.values[v].form) == w.forms->str(w.graph.values[v].form);
      }
      if (same) return other.get();
    }
    return nullptr;
  }

  Run& run_;
  int64_t region_steps_ = 0;  // expanded for the region at hand
};

}  // namespace

RegionResult solve_region(Run& run, const std::vector<TensorId>& outputs,
                          const std::vector<bool>& given) {
  RegionSolver solver(run);
  // Second attempts with less memory are not worth the space.
  SearchMemory* memory = run.memory_share < 1 ? nullptr : run.context.memory;
  if (!memory) return solver.solve(outputs, given);
  // One search may look at several forms of its program; what is kept belongs to one of them.
  std::string name = "region " + std::to_string(structural_hash(run.program)) + ":";
  for (TensorId t : outputs) name += " " + std::to_string(t.index);
  if (const auto text = memory->recall(name)) {
    if (const auto stored = read_region(*text)) {
      if (auto known = solver.restore(*stored, outputs, given)) return std::move(*known);
      if (run.stopped) return {};
    }
  }
  const SearchReport before = run.report;
  const bool limited = std::exchange(run.limited, false);
  const std::string detail = std::exchange(run.detail, "");
  RegionResult found = solver.solve(outputs, given);
  if (!run.stopped) {
    StoredRegion stored;
    for (const auto& w : found.worlds) {
      const std::vector<int>& part = w->region.part;
      const auto split = std::ranges::find_if(part, [](int p) { return p >= 0; });
      stored.worlds.push_back(
          {w->formulation, split == part.end() ? -1 : int(split - part.begin()), w->as_written});
    }
    stored.choices = found.choices;
    stored.counted.values = run.report.values - before.values;
    stored.counted.edges = run.report.edges - before.edges;
    stored.counted.graphs = run.report.graphs - before.graphs;
    stored.counted.tilings = run.report.tilings - before.tilings;
    for (const auto& [rule, n] : run.report.pruned) {
      const auto known = before.pruned.find(rule);
      const int64_t more = n - (known == before.pruned.end() ? 0 : known->second);
      if (more > 0) stored.counted.pruned[rule] = more;
    }
    stored.limited = run.limited;
    stored.detail = run.detail;
    memory->remember(name, print_region(stored));
  }
  run.limited = run.limited || limited;
  if (run.detail.empty()) run.detail = detail;
  return found;
}

}  // namespace tessera::mugraph
