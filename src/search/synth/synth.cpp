#include "search/synth/synth.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <set>

#include "search/synth/egraph.h"
#include "search/synth/explain.h"
#include "search/synth/inputs.h"
#include "search/synth/lower.h"
#include "search/synth/reroll.h"
#include "search/synth/spec.h"
#include "search/synth/trials.h"
#include "search/synth/window.h"

namespace tessera {
namespace {

using namespace synth;

class Search {
 public:
  Search(const SynthOptions& options, const Subprogram& sub, Context& context, const Budget& budget,
         CandidateSink& sink)
      : options_(options), program_(sub.graph), context_(context), budget_(budget), sink_(sink) {}

  SearchReport run() {
    std::optional<Spec> spec = parse(program_);
    if (!spec) return finish(StopReason::Unsupported, "shapes are symbolic or of too many axes");
    World world(spec->table, spec->with_q, context_.seed);
    for (const Rational& c : spec->constants) world.constant(c);
    SampleStore store;
    const std::optional<std::vector<Sample>> values = evaluate(world, *spec, store);
    if (!values)
      return finish(StopReason::Unsupported, "no inputs found for which every value is defined");
    EGraph graph(world, options_.rates);
    Choice choice = enter(*spec, *values, graph);
    set_grammar(*spec);
    trials_.emplace(*spec, world, classes_, context_.seed);
    choice = extract(graph);
    note_sharing(graph, choice);
    tell_equal(graph, choice);
    improve(graph, choice);
    offer(graph, choice);
    return finish(stopped()
                      ? (context_.cancelled() ? StopReason::Cancelled : StopReason::TimeBudget)
                  : steps_ >= budget_.steps ? StopReason::StepBudget
                                            : StopReason::Exhausted,
                  "");
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  bool stopped() const { return context_.cancelled() || seconds() > budget_.seconds; }

  // The program itself, equal values united.
  Choice enter(const Spec& spec, const std::vector<Sample>& values, EGraph& graph) {
    std::vector<ValueId> id(spec.nodes.size());
    std::vector<bool> used(spec.nodes.size(), false);
    for (ValueId v : spec.outputs) used[v] = true;
    for (size_t v = spec.nodes.size(); v-- > 0;) {
      if (!used[v]) continue;
      const Node& n = spec.nodes[v];
      for (int i = 0; i < n.arity; ++i) used[n.arg[size_t(i)]] = true;
      if (n.form == Form::Kept || n.form == Form::Stack)
        for (ValueId a : spec.kept[n.attr].args) used[a] = true;
    }
    Choice choice;
    for (ValueId v = 0; v < spec.nodes.size(); ++v) {
      Node node = spec.nodes[v];
      for (int i = 0; i < node.arity; ++i) node.arg[size_t(i)] = id[node.arg[size_t(i)]];
      if (node.form == Form::Kept || node.form == Form::Stack) {
        KeptOp op = spec.kept[node.attr];
        for (ValueId& a : op.args) a = id[a];
        node.attr = graph.world().kept(std::move(op));
      }
      const size_t before = graph.size();
      id[v] = graph.add(node, values[v]);
      choice.resize(graph.size(), kNone);
      if (graph.size() > before) choice[id[v]] = 0;
      // What it costs as it is written, equal values twice.
      if (used[v]) report_.original_cost += graph.node_seconds(node, values[v].dims);
    }
    for (ValueId v : spec.outputs) outputs_.push_back(id[v]);
    classes_ = id;
    for (ValueId v = 0; v < graph.size(); ++v) own_ways_.push_back(uint32_t(graph[v].nodes.size()));
    return choice;
  }

  void set_grammar(const Spec& spec) {
    Grammar& g = grammar_;
    g.roots = spec.with_roots;
    g.exponentials = spec.with_q;
    g.order = spec.with_order;
    std::set<Rational, bool (*)(const Rational&, const Rational&)> constants(
        [](const Rational& a, const Rational& b) { return a.to_double() < b.to_double(); });
    constants.insert(Rational(1));
    constants.insert(Rational(2));
    for (const Node& n : spec.nodes) {
      g.quotients |= n.kind == OpKind::Div || n.kind == OpKind::Rsqrt || n.kind == OpKind::Log ||
                     n.kind == OpKind::Sigmoid || n.kind == OpKind::Silu ||
                     (n.kind == OpKind::Pow && spec.constants[n.attr].negative());
      g.diagonals |= n.form == Form::Diagonal;
      g.triangles |= n.form == Form::Triangle;
      g.maxima |= n.form == Form::Reduce && n.kind == OpKind::ReduceMax;
      g.minima |= n.form == Form::Reduce && n.kind == OpKind::ReduceMin;
      if (n.form == Form::Const && constants.size() < 6) {
        const Rational& c = spec.constants[n.attr];
        if (!c.is_zero()) constants.insert(c);
      }
    }
    if (spec.with_order) constants.insert(Rational(0));  // max(x, 0); sums and products drop it
    for (const Node& n : spec.nodes) {
      if (n.form != Form::Reduce) continue;
      const Dims& d = spec.dims[n.arg[0]];
      // What a mean divides by.
      if (n.kind == OpKind::Mean) {
        uint64_t extent = 0;
        for (int a = d.rank; a-- > 0;)
          if ((n.attr >> a & 1) && d.axis[size_t(a)] != kOne)
            extent = extent << 8 | d.axis[size_t(a)];
        if (extent != 0) g.extents.insert(extent);
      }
    }
    g.max_rank = 1;
    for (const Dims& d : spec.dims) g.max_rank = std::max(g.max_rank, int(d.rank));
    g.constants.assign(constants.begin(), constants.end());
  }

  static bool constant(Form form) { return form == Form::Const || form == Form::Extent; }

  struct Cut {
    ValueId target;
    std::vector<ValueId> leaves;
    size_t cone = 0;     // classes computed between them
    double seconds = 0;  // of those
    double elements = 0;
  };

  // Sets of few values from which the target is computed, small ones first.
  std::vector<Cut> cuts(const EGraph& graph, const Choice& choice, ValueId target) const {
    constexpr size_t kMost = 24;
    auto args_of = [&](ValueId v) {
      std::vector<ValueId> args;
      graph.each_arg(graph[v].nodes[choice[v]], [&](ValueId a) {
        if (!constant(graph[a].nodes[choice[a]].form)) args.push_back(a);
      });
      return args;
    };
    auto leaf = [&](ValueId v) {
      const Form f = graph[v].nodes[choice[v]].form;
      return f == Form::Leaf || f == Form::Kept;
    };
    std::vector<std::vector<ValueId>> found;
    std::set<std::vector<ValueId>> seen;
    auto add = [&](std::vector<ValueId> set) {
      std::sort(set.begin(), set.end());
      set.erase(std::unique(set.begin(), set.end()), set.end());
      if (int(set.size()) <= options_.max_leaves && seen.insert(set).second) found.push_back(set);
    };
    add(args_of(target));
    for (size_t i = 0; i < found.size() && found.size() < kMost; ++i) {
      const std::vector<ValueId> set = found[i];
      for (ValueId v : set) {
        if (leaf(v)) continue;
        std::vector<ValueId> next = args_of(v);
        for (ValueId other : set)
          if (other != v) next.push_back(other);
        add(std::move(next));
      }
    }
    std::vector<Cut> result;
    for (std::vector<ValueId>& set : found) {
      Cut c{target, std::move(set), 0, 0, 0};
      if (measure_cone(graph, choice, c)) result.push_back(std::move(c));
    }
    return result;
  }

  // What is computed between a cut's leaves and its target; false where they are no cut (any more).
  bool measure_cone(const EGraph& graph, const Choice& choice, Cut& c) const {
    std::set<ValueId> seen(c.leaves.begin(), c.leaves.end());
    const DimTable& dims = graph.world().dims();
    c.cone = 0;
    c.seconds = c.elements = 0;
    for (ValueId v : c.leaves)
      c.elements = std::max(c.elements, double(dims.elements(graph[v].sample.dims)));
    std::vector<ValueId> open{c.target};
    while (!open.empty()) {
      const ValueId v = open.back();
      open.pop_back();
      if (!seen.insert(v).second) continue;
      const uint32_t n = choice[v];
      const Form form = graph[v].nodes[n].form;
      if (form == Form::Leaf || form == Form::Kept) return false;
      c.seconds += graph[v].seconds[n];
      c.elements = std::max(c.elements, double(dims.elements(graph[v].sample.dims)));
      if (!constant(form)) ++c.cone;
      graph.each_arg(graph[v].nodes[n], [&](ValueId a) { open.push_back(a); });
    }
    return c.cone > 0;
  }

  std::map<ValueId, std::string> input_names(const EGraph& graph) const {
    std::map<ValueId, std::string> names;
    for (ValueId v = 0; v < graph.size(); ++v) {
      const Node& n = graph[v].nodes.front();
      if (n.form != Form::Leaf) continue;
      const std::string& name = program_.tensor(program_.inputs()[n.attr]).name;
      names[v] = name.empty() ? "input " + std::to_string(n.attr) : name;
    }
    return names;
  }

  // The first step: values that are equal, whatever they look like, are computed once, the cheapest
  // way that the program itself has.
  void note_sharing(const EGraph& graph, const Choice& choice) {
    const double is = graph.seconds(choice, outputs_);
    if (!(is < report_.original_cost * (1 - 1e-9))) return;
    std::string programs;
    for (ValueId v : outputs_)
      programs += (programs.empty() ? "" : ", ") + expression(graph, choice, v, input_names(graph));
    char cost[64];
    std::snprintf(cost, sizeof cost, "  (%.2f us -> %.2f us)", report_.original_cost * 1e6,
                  is * 1e6);
    derivation_ += "equal values are computed once: " + programs + cost + "\n";
  }

  // What the program itself computes in several ways.
  void tell_equal(const EGraph& graph, const Choice& choice) const {
    for (ValueId v = 0; options_.discovered && v < graph.size(); ++v) {
      for (uint32_t way = 0; way < graph[v].nodes.size() && choice[v] != kNone; ++way) {
        if (way == choice[v]) continue;
        Choice other = choice;
        other[v] = way;
        options_.discovered(graph, other, choice, v, {});
      }
    }
  }

  // A step of the derivation, where a window made the program cheaper: its target before and after,
  // over the window's leaves.
  void note(const EGraph& graph, const Choice& before, const Choice& after, const Cut& cut) {
    const double was = graph.seconds(before, outputs_), is = graph.seconds(after, outputs_);
    if (!(is < was * (1 - 1e-9))) return;
    if (options_.discovered) options_.discovered(graph, before, after, cut.target, cut.leaves);
    const std::map<ValueId, std::string> inputs = input_names(graph);
    std::map<ValueId, std::string> names = inputs;
    std::string where;
    for (ValueId v : cut.leaves) {
      if (names.count(v)) continue;
      const std::string name = "t" + std::to_string(names.size() - inputs.size());
      where += (where.empty() ? "    where " : ", ") + name + " = " +
               expression(graph, before, v, inputs);
      names[v] = name;
    }
    char cost[64];
    std::snprintf(cost, sizeof cost, "  (%.2f us -> %.2f us)", was * 1e6, is * 1e6);
    const std::string left = expression(graph, before, cut.target, names);
    const std::string right = expression(graph, after, cut.target, names);
    if (left == right) return;
    derivation_ += left + "  =  " + right + cost + "\n" + (where.empty() ? "" : where + "\n");
  }

  // The value nearest below a wrong one that is not computed as in the program; kNone where nothing
  // else is left than the program itself.
  ValueId blame(const EGraph& graph, const Choice& choice, ValueId wrong) const {
    std::vector<ValueId> open{wrong};
    for (size_t i = 0; i < open.size(); ++i) {
      const ValueId v = open[i];
      if (v >= own_ways_.size() || choice[v] >= own_ways_[v]) return v;
      graph.each_arg(graph[v].nodes[choice[v]], [&](ValueId a) {
        if (std::find(open.begin(), open.end(), a) == open.end()) open.push_back(a);
      });
    }
    return own_ways_[wrong] > 1 ? wrong : kNone;  // values of the program that are not equal
  }

  // The cheapest program that other inputs do not tell from the original.
  Choice extract(EGraph& graph) {
    constexpr int kMost = 200;
    Choice choice = graph.extract(outputs_);
    for (int i = 0; i < kMost; ++i) {
      const ValueId v = trials_->wrong(graph, choice, graph.order(choice, outputs_));
      if (v == kNone) break;
      const ValueId blamed = blame(graph, choice, v);
      if (blamed == kNone) break;
      graph.forbid(blamed, choice[blamed]);
      ++report_.pruned["trial"];
      choice = graph.extract(outputs_);
    }
    return choice;
  }

  // Windows over the values of the program as it is now, those that cover most work first, until
  // there is none that was not looked through.
  void improve(EGraph& graph, Choice& choice) {
    using Key = std::pair<ValueId, std::vector<ValueId>>;
    std::set<Key> done;
    const std::function<bool()> stop = [&] { return stopped(); };
    while (!stopped() && steps_ < budget_.steps) {
      const std::vector<ValueId> order = graph.order(choice, outputs_);
      std::vector<bool> live(graph.size(), false);
      std::optional<Cut> best;
      for (ValueId v : order) {
        live[v] = true;
        const Form form = graph[v].nodes[choice[v]].form;
        if (form == Form::Leaf || constant(form) || form == Form::Kept) continue;
        for (Cut& c : cuts(graph, choice, v)) {
          if (done.count({c.target, c.leaves})) continue;
          if (!best || c.seconds > best->seconds * (1 + 1e-9)) best = std::move(c);
        }
      }
      if (!best) break;
      done.insert({best->target, best->leaves});
      WindowLimits limits;
      limits.max_size = options_.max_size;
      limits.seconds = best->seconds;
      limits.elements = best->elements;
      const int64_t left = budget_.steps - steps_;
      limits.evaluations = std::max<int64_t>(std::min<int64_t>(left / 4, 200'000), 2'000);
      const WindowReport r =
          search_window(graph, grammar_, best->leaves, best->target, live, limits, stop);
      steps_ += r.evaluations;
      report_.values += r.values;
      report_.edges += r.found;
      report_.graphs += 1;
      if (r.found == 0) continue;
      Choice next = extract(graph);
      note(graph, choice, next, *best);
      choice = std::move(next);
    }
  }

  void offer(const EGraph& graph, const Choice& choice) {
    struct Found {
      double seconds;
      Graph graph;
    };
    std::vector<Found> found;
    auto add = [&](const Choice& c) {
      const double s = graph.seconds(c, outputs_);
      if (!(s < 1e9)) return;
      if (trials_->wrong(graph, c, graph.order(c, outputs_)) != kNone) return;
      Graph g = lower(program_, graph, c, outputs_);
      for (const Found& f : found)
        if (f.graph == g) return;
      found.push_back({s, std::move(g)});
    };
    add(choice);
    // Runners-up: one class computed another way.
    for (ValueId v : graph.order(choice, outputs_)) {
      const uint32_t best = choice[v];
      for (uint32_t n = 0; n < graph[v].nodes.size(); ++n) {
        if (n == best) continue;
        Choice other = choice;
        other[v] = n;
        if (graph.seconds(other, outputs_) < 1.3 * report_.original_cost) add(other);
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Found& a, const Found& b) { return a.seconds < b.seconds; });
    for (Found& f : found) {
      if (report_.candidates >= budget_.candidates) break;
      if (f.graph == program_) continue;
      Candidate c;
      c.graph = std::move(f.graph);
      c.cost = f.seconds;
      c.origin = "synth";
      c.derivation = derivation_;
      if (report_.best_cost == 0) report_.best_cost = f.seconds;
      sink_.offer(std::move(c));
      ++report_.candidates;
    }
  }

  SearchReport finish(StopReason why, const std::string& detail) {
    report_.stop = why;
    report_.detail = detail;
    report_.seconds = seconds();
    return report_;
  }

  const SynthOptions& options_;
  const Graph& program_;
  Context& context_;
  const Budget& budget_;
  CandidateSink& sink_;
  Grammar grammar_;
  std::vector<ValueId> outputs_, classes_;  // classes of the outputs, of all values of the spec
  std::vector<uint32_t> own_ways_;  // of classes: how many of their first ways are the program's
  std::optional<Trials> trials_;
  std::string derivation_;
  int64_t steps_ = 0;
  SearchReport report_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

SearchReport Synth::run(const Subprogram& sub, Context& context, const Budget& budget,
                        CandidateSink& sink) {
  const std::optional<Rerolled> rolled = reroll(sub.graph);
  if (!rolled) return Search(options_, sub, context, budget, sink).run();
  // What synthesis makes of the program without its loops; at least that program itself.
  CollectingSink found;
  const Subprogram without{rolled->graph};
  SearchReport report = Search(options_, without, context, budget, found).run();
  found.candidates.push_back({rolled->graph, report.original_cost, "synth", "", {}, false});
  std::stable_sort(found.candidates.begin(), found.candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  for (Candidate& c : found.candidates) {
    c.derivation = rolled->derivation + c.derivation;
    sink.offer(std::move(c));
  }
  report.candidates = int64_t(found.candidates.size());
  return report;
}

}  // namespace tessera
