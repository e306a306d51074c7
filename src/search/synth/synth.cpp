#include "search/synth/synth.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.h"
#include "base/wall_clock.h"
#include "search/rules/saturate.h"
#include "search/synth/explain.h"
#include "search/synth/extract.h"
#include "search/synth/inputs.h"
#include "search/synth/large.h"
#include "search/synth/lower.h"
#include "search/synth/reroll.h"
#include "search/synth/slices.h"
#include "search/synth/spec.h"
#include "search/synth/trials.h"
#include "search/synth/window.h"

namespace tessera {
namespace synth {
namespace {

bool is_swapped(const Node& a, const Node& b) {  // the same operation of its operands in turn
  return a.form == Form::Pointwise && b.form == a.form && a.kind == b.kind && a.arity == 2 &&
         a.arg[0] == b.arg[1] && a.arg[1] == b.arg[0];
}

class Search {
 public:
  // `elsewhere`: seconds of what the program is a part of, for the derivation.
  Search(const SynthOptions& options, const Graph& program, Context& context, const Budget& budget,
         CandidateSink& sink, double elsewhere = 0)
      : options_(options), program_(program), context_(context), budget_(budget), sink_(sink),
        elsewhere_(elsewhere) {}

  int64_t steps() const { return steps_; }

  SearchReport run() {
    if (stopped()) return finish(ended(), "");
    std::optional<Spec> spec = parse(program_);
    if (!spec) return finish(StopReason::Unsupported, "shapes are symbolic or of too many axes");
    World world(spec->table, spec->with_q, context_.seed);
    for (const Rational& c : spec->constants) world.constant(c);
    SampleStore store;
    const std::optional<std::vector<Sample>> values =
        evaluate(world, *spec, store, Inputs::Random, 0, options_.patience, stop_);
    if (!values && stopped()) return finish(ended(), "");
    if (!values)
      return finish(StopReason::Unsupported, "no inputs found for which every value is defined");
    EGraph graph(world, options_.rates);
    const Entered program = enter(graph, *spec, *values, unlike_values(world, *spec, *values));
    outputs_ = program.outputs;
    own_ = agreed_ = program.choice;
    for (ValueId v = 0; v < graph.size(); ++v) own_ways_.push_back(uint32_t(graph[v].nodes.size()));
    report_.original_cost = program.seconds + graph.loop_seconds(program.choice, program.outputs);
    set_grammar(*spec);
    make_trials_ = [&] {
      trials_.emplace(*spec, world, program.classes, context_.seed, options_.patience, stop_);
    };
    Choice choice = extract(graph);
    note_sharing(graph, choice);
    tell_equal(graph, choice);
    apply_rules(graph, choice);
    do {
      if (options_.windows) improve(graph, choice);
      finish_extraction(graph, choice);
    } while (learns_of_refusal(graph, choice));
    offer(graph, choice);
    return finish(ended(), "");
  }

 private:
  // Values of the program that only look like earlier ones.
  std::set<ValueId> unlike_values(World& world, const Spec& spec,
                                  const std::vector<Sample>& values) const {
    EGraph graph(world, options_.rates);
    const Entered program = enter(graph, spec, values);
    bool alike = false;
    for (ValueId v = 0; v < graph.size(); ++v) alike = alike || graph[v].nodes.size() > 1;
    if (!alike || !spec.with_roots) return {};  // else inputs have both signs
    return Trials(spec, world, program.classes, context_.seed, options_.patience, stop_).unlike();
  }

  bool stopped() const { return context_.cancelled() || clock_.seconds() >= budget_.seconds; }
  StopReason ended() const { return tessera::ended(context_, budget_, clock_.seconds(), steps_); }

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
      g.quotients |= is_one_of(n.kind, OpKind::Div, OpKind::Rsqrt, OpKind::Log, OpKind::Sigmoid,
                               OpKind::Silu) ||
                     (n.kind == OpKind::Pow && spec.constants[n.attr].negative());
      g.diagonals |= n.form == Form::Diagonal;
      g.triangles |= n.form == Form::Triangle;
      g.maxima |= n.form == Form::Reduce && fold_of(n.kind) == AccumKind::Max;
      g.minima |= n.form == Form::Reduce && fold_of(n.kind) == AccumKind::Min;
      if (n.form == Form::Const && constants.size() < 6) {
        const Rational& c = spec.constants[n.attr];
        if (!c.is_zero()) constants.insert(c);
      }
    }
    if (spec.with_order) constants.insert(Rational(0));  // max(x, 0); sums and products drop it
    for (const Node& n : spec.nodes) {
      if (n.kind != OpKind::Mean) continue;
      const Dims& d = spec.dims[n.arg[0]];
      uint64_t extent = 0;  // what it divides by
      for (int a = d.rank; a-- > 0;)
        if ((n.attr >> a & 1) && d.axis[size_t(a)] != kOne)
          extent = extent << 8 | d.axis[size_t(a)];
      if (extent != 0) g.extents.insert(extent);
    }
    g.max_rank = 1;
    for (const Dims& d : spec.dims) g.max_rank = std::max(g.max_rank, int(d.rank));
    g.constants.assign(constants.begin(), constants.end());
  }

  static constexpr size_t kWideCone = 4;       // operations that a wide window replaces at least
  static constexpr double kNarrowShare = 0.6;  // of the steps, before wide windows have their turn

  static bool constant(Form form) { return form == Form::Const || form == Form::Extent; }

  struct Cut {
    ValueId target;
    std::vector<ValueId> leaves;
    size_t cone = 0;     // classes computed between them
    double seconds = 0;  // of those
    double elements = 0;
  };

  // Sets of at most so many values from which the target is computed, small ones first.
  std::vector<Cut> cuts(const EGraph& graph, const Choice& choice, ValueId target,
                        size_t most_leaves) const {
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
      std::ranges::sort(set);
      set.erase(std::unique(set.begin(), set.end()), set.end());
      if (set.size() <= most_leaves && seen.insert(set).second) found.push_back(set);
    };
    add(args_of(target));
    // Whatever lies between, the values that nothing computes.
    std::vector<ValueId> ends, open{target};
    std::set<ValueId> reached{target};
    while (!open.empty() && ends.size() <= most_leaves) {
      const ValueId v = open.back();
      open.pop_back();
      if (leaf(v)) {
        ends.push_back(v);
        continue;
      }
      for (ValueId a : args_of(v))
        if (reached.insert(a).second) open.push_back(a);
    }
    if (!ends.empty()) add(std::move(ends));
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
      if (measure_cone(graph, choice, c) && c.cone <= size_t(options_.max_cone))
        result.push_back(std::move(c));
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

  // Costs before and after a step, of the whole.
  std::string costs(double was, double is) const {
    return "  (" + decimals((was + elsewhere_) * 1e6, 2) + " us -> " +
           decimals((is + elsewhere_) * 1e6, 2) + " us)";
  }
  std::string programs(const EGraph& graph, const Choice& choice) const {
    return joined(
        outputs_, ", ",
        [&](ValueId v) { return expression(graph, choice, v, input_names(graph)); });
  }

  // The first step: values that are equal, whatever they look like, are computed once, the cheapest
  // way that the program itself has.
  void note_sharing(const EGraph& graph, const Choice& choice) {
    const double is = graph.seconds(choice, outputs_);
    if (!(is < report_.original_cost * (1 - 1e-9))) return;
    derivation_ += "equal values are computed once: " + programs(graph, choice) +
                   costs(report_.original_cost, is) + "\n";
  }

  // What the program itself computes in several ways.
  void tell_equal(const EGraph& graph, const Choice& choice) const {
    for (ValueId v = 0; options_.discovered && v < graph.size() && !stopped(); ++v) {
      for (uint32_t way = 0; way < graph[v].nodes.size() && choice[v] != kNone; ++way) {
        if (way == choice[v]) continue;
        Choice other = choice;
        other[v] = way;
        options_.discovered(graph, other, choice, v, {});
      }
    }
  }

  // A choice that computes a value: this one, or how everything was found first, which refers only
  // to what was there before.
  static Choice complete(const EGraph& graph, const Choice& choice, ValueId value) {
    return std::isfinite(graph.seconds(choice, {value})) ? choice : Choice(graph.size(), 0);
  }

  // A step of the derivation: what computes `target` before and after, over `leaves`.
  void note(const EGraph& graph, const Choice& before, const Choice& after, ValueId target,
            const std::vector<ValueId>& leaves, const std::string& end) {
    const std::map<ValueId, std::string> inputs = input_names(graph);
    std::map<ValueId, std::string> names = inputs;
    std::string where;
    for (ValueId v : leaves) {
      const Form form = graph[v].nodes.front().form;
      if (names.count(v) || form == Form::Const) continue;
      const std::string name = "t" + std::to_string(names.size() - inputs.size());
      where += (where.empty() ? "    where " : ", ") + name + " = " +
               expression(graph, complete(graph, before, v), v, inputs);
      names[v] = name;
    }
    const std::string left = expression(graph, before, target, names);
    const std::string right = expression(graph, after, target, names);
    if (left == right) return;
    derivation_ += left + "  =  " + right + end + "\n" + (where.empty() ? "" : where + "\n");
  }

  // Everything that follows by rules that are known, before anything is looked for.
  void apply_rules(EGraph& graph, Choice& choice) {
    if (!options_.rules || options_.rules->empty()) return;
    rules::SaturateLimits limits;
    limits.elements = 0;
    for (ValueId v : graph.order(choice, outputs_))
      limits.elements =
          std::max(limits.elements, double(graph.world().dims().elements(graph[v].sample.dims)));
    const rules::Saturation found = saturate(graph, *options_.rules, limits, stop_);
    Choice next = found.applications.empty() ? choice : extract(graph);
    steps_ += found.evaluations;
    report_.figures["rules_fired"] = double(found.applications.size());
    if (!(graph.seconds(next, outputs_) < graph.seconds(choice, outputs_) * (1 - 1e-9))) return;
    Choice now = choice;
    now.resize(graph.size(), kNone);
    for (uint32_t i : needed(found, graph, next, outputs_)) {
      const rules::Application& a = found.applications[i];
      Choice left = now;
      for (const rules::Way& w : a.left) left[w.id] = w.way;
      const double was = graph.seconds(now, outputs_);
      for (const rules::Way& w : a.right) now[w.id] = w.way;
      const double is = graph.seconds(now, outputs_);
      note(graph, left, now, a.root, a.variables,
           "  [rule " + options_.rules->rules()[a.rule].name + "]" +
               (is < 1e9 && was < 1e9 ? costs(was, is) : ""));
    }
    choice = std::move(next);
  }

  // The cheapest of all programs that the e-graph holds: what single changes do not reach.
  void finish_extraction(EGraph& graph, Choice& choice) {
    constexpr int kMost = 20;
    if (!(graph.seconds(choice, outputs_) < 1e9)) return;  // its own values were refuted
    for (int i = 0; i < kMost && !stopped(); ++i) {
      ExtractLimits limits;
      limits.stopped = stop_;
      Extraction least = extract_least(ways_of(graph, outputs_), choice, limits);
      const double was = graph.seconds(choice, outputs_);
      if (!(least.cost < was * (1 - 1e-9))) break;
      const ValueId v = wrong(graph, least.choice, graph.order(least.choice, outputs_));
      if (!trials_->complete()) break;
      if (v != kNone) {
        const ValueId blamed = blame(graph, least.choice, v);
        if (blamed == kNone) break;
        graph.forbid(blamed, least.choice[blamed]);
        ++report_.pruned["trial"];
        continue;
      }
      derivation_ +=
          "of all programs found, the one of least cost: " + programs(graph, least.choice) +
          costs(was, least.cost) + "\n";
      choice = std::move(least.choice);
      break;
    }
  }

  // The first class at which a choice leaves the program for other inputs; trials are made when
  // they are needed first.
  ValueId wrong(const EGraph& graph, const Choice& choice, const std::vector<ValueId>& order) {
    if (!trials_) make_trials_();
    return trials_->wrong(graph, choice, order);
  }

  // The value nearest below a wrong one that is not computed as in the program, nor as in a choice
  // that was found right; kNone where nothing else is left than the program itself.
  ValueId blame(const EGraph& graph, const Choice& choice, ValueId wrong) const {
    std::vector<ValueId> open{wrong};
    ValueId suspect = kNone;
    for (size_t i = 0; i < open.size(); ++i) {
      const ValueId v = open[i];
      if (v >= own_ways_.size() || choice[v] >= own_ways_[v]) {
        if (!trusted_.count({v, choice[v]})) return v;
        if (suspect == kNone) suspect = v;
      }
      graph.each_arg(graph[v].nodes[choice[v]], [&](ValueId a) {
        if (std::ranges::find(open, a) == open.end()) open.push_back(a);
      });
    }
    if (suspect != kNone) return suspect;
    return own_ways_[wrong] > 1 ? wrong : kNone;  // values of the program that are not equal
  }

  // The cheapest program that other inputs do not tell from the original; stopped, the one before.
  Choice extract(EGraph& graph) {
    constexpr int kMost = 200;
    Choice choice = graph.extract(outputs_, stop_);
    own_.resize(graph.size(), kNone);
    if (choice == own_ && !trials_) return choice;
    for (int i = 0; i < kMost; ++i) {
      const std::vector<ValueId> order = graph.order(choice, outputs_);
      const ValueId v = wrong(graph, choice, order);
      if (v == kNone && trials_->complete()) {
        for (ValueId u : order) trusted_.insert({u, choice[u]});
        break;
      }
      if (stopped()) {  // what no trial has seen to the end is not taken
        agreed_.resize(graph.size(), kNone);
        return agreed_;
      }
      const ValueId blamed = blame(graph, choice, v);
      if (blamed == kNone) break;
      graph.forbid(blamed, choice[blamed]);
      ++report_.pruned["trial"];
      choice = graph.extract(outputs_, stop_);
    }
    // Least trees may share less than the program does.
    if (graph.seconds(own_, outputs_) < graph.seconds(choice, outputs_) &&
        wrong(graph, own_, graph.order(own_, outputs_)) == kNone)
      choice = own_;
    return agreed_ = choice;
  }

  // Windows over the values of the program as it is now, those that cover most work first, until
  // there is none that was not looked through; then, over more values, those where sketches of
  // several levels reach what no window found.
  void improve(EGraph& graph, Choice& choice) {
    std::set<std::pair<ValueId, std::vector<ValueId>>> done;
    int wide = 0;
    while (!stopped() && steps_ < budget_.steps) {
      std::optional<Cut> best;
      const bool may_widen = options_.holes && wide < options_.wide_windows;
      const bool late = double(steps_) > kNarrowShare * double(budget_.steps);
      if (!(late && may_widen))
        best = next_cut(graph, choice, size_t(options_.max_leaves), 1, done);
      const bool narrow = best.has_value();
      if (!narrow && may_widen) {
        ++wide;
        best = next_cut(graph, choice, size_t(options_.max_wide_leaves), kWideCone, done);
        if (!best) wide = options_.wide_windows;
        if (!best && late) continue;
      }
      if (!best) break;
      done.insert({best->target, best->leaves});
      if (!budget_.has_branch(windows_++)) continue;
      WindowLimits limits;
      limits.max_size = narrow ? options_.max_size : std::min(options_.max_size, 2);
      limits.holes = options_.holes;
      limits.bound = options_.bound;
      if (limits.bound) limits.seconds = best->seconds;
      limits.elements = best->elements;
      limits.operations = int(best->cone);
      limits.probes = options_.probes;
      const int64_t left = budget_.steps - steps_;
      limits.evaluations = std::min(std::max<int64_t>(left / 4, 2'000),
                                    narrow ? options_.window_steps : options_.window_steps / 10);
      std::vector<bool> live(graph.size(), false);
      for (ValueId v : graph.order(choice, outputs_)) live[v] = true;
      const WindowReport r =
          search_window(graph, grammar_, best->leaves, best->target, live, limits, stop_);
      steps_ += r.evaluations;
      report_.values += r.values;
      report_.edges += r.found;
      report_.graphs += 1;
      if (r.found == 0) continue;
      Choice next = extract(graph);
      const double was = graph.seconds(choice, outputs_), is = graph.seconds(next, outputs_);
      if (is < was * (1 - 1e-9)) {
        if (options_.discovered)
          options_.discovered(graph, choice, next, best->target, best->leaves);
        note(graph, choice, next, best->target, best->leaves, costs(was, is));
      }
      choice = std::move(next);
    }
  }

  // The cut that covers most work of those with so many leaves and operations that are not done.
  std::optional<Cut>
  next_cut(const EGraph& graph, const Choice& choice, size_t most_leaves, size_t least_cone,
           const std::set<std::pair<ValueId, std::vector<ValueId>>>& done) const {
    std::optional<Cut> best;
    for (ValueId v : graph.order(choice, outputs_)) {
      const Form form = graph[v].nodes[choice[v]].form;
      if (form == Form::Leaf || constant(form) || form == Form::Kept) continue;
      for (Cut& c : cuts(graph, choice, v, most_leaves)) {
        if (c.cone < least_cone || done.count({c.target, c.leaves})) continue;
        if (!best || c.seconds > best->seconds * (1 + 1e-9)) best = std::move(c);
      }
    }
    return best;
  }

  bool accepted(const EGraph& graph, const Choice& choice) {
    if (!(graph.seconds(choice, outputs_) < 1e9)) return false;  // no program: it goes in circles
    Graph g = lower(program_, graph, choice, outputs_);
    for (const auto& [known, verdict] : asked_)
      if (known == g) return verdict;
    const bool verdict = options_.accepts(program_, g);
    asked_.push_back({std::move(g), verdict});
    return verdict;
  }

  // Where the program found is refused: forbids the way that is to blame, takes the next best and
  // asks again. Whether the search should go on: what was refused may have kept it from others.
  bool learns_of_refusal(EGraph& graph, Choice& choice) {
    constexpr size_t kMost = 12;
    bool learnt = false;
    while (options_.accepts && !stopped() && report_.refused.size() < kMost) {
      own_.resize(graph.size(), kNone);
      if (choice == own_ || accepted(graph, choice)) break;
      if (!accepted(graph, own_))
        break;  // nothing will be proved of it, or its equal values are not
      const ValueId v = refused_value(graph, choice);
      if (v == kNone) break;
      const std::map<ValueId, std::string> names = input_names(graph);
      report_.refused.push_back(expression(graph, own_, v, names) + "  =  " +
                                expression(graph, choice, v, names));
      derivation_ += "not proved, and not used: " + report_.refused.back() + "\n";
      const double was = graph.seconds(choice, outputs_);
      graph.forbid(v, choice[v]);
      choice = extract(graph);
      derivation_ += "without it: " + programs(graph, choice) +
                     costs(was, graph.seconds(choice, outputs_)) + "\n";
      learnt = true;
    }
    return learnt && !stopped() && steps_ < budget_.steps;
  }

  // The first value of the program, operands before results, whose new way is refused while those
  // below it are not; kNone where no value is to blame alone. By bisection.
  ValueId refused_value(const EGraph& graph, const Choice& choice) {
    std::vector<ValueId> changed;
    for (ValueId v : graph.order(choice, outputs_))
      if (v < own_ways_.size() && choice[v] != own_[v]) changed.push_back(v);
    auto first = [&](size_t n) {  // the program with the first n of these
      Choice some = choice;
      for (ValueId v = 0; v < own_ways_.size(); ++v) some[v] = own_[v];
      for (size_t i = 0; i < n; ++i) some[changed[i]] = choice[changed[i]];
      return some;
    };
    size_t good = 0, bad = changed.size();
    while (bad - good > 1 && !stopped()) {
      // Half of the old ways and half of the new may go in circles: the next that does not.
      size_t at = (good + bad) / 2;
      while (at < bad && !(graph.seconds(first(at), outputs_) < 1e9)) ++at;
      if (at == bad) break;
      (accepted(graph, first(at)) ? good : bad) = at;
    }
    return bad == 0 || stopped() ? kNone : changed[bad - 1];
  }

  void offer(const EGraph& graph, const Choice& choice) {
    if (options_.accepts && !accepted(graph, choice)) return;
    const double most = budget_.bound > 0 ? std::min(budget_.bound, 1e9) : 1e9;
    std::vector<Candidate> found;
    auto add = [&](const Choice& c) {
      const double s = graph.seconds(c, outputs_);
      if (!(s <= most)) return;
      if (wrong(graph, c, graph.order(c, outputs_)) != kNone) return;
      Graph g = lower(program_, graph, c, outputs_);
      for (const Candidate& f : found)
        if (f.graph == g) return;
      found.push_back({std::move(g), s, "synth", derivation_, {}, false});
    };
    add(choice);
    // Runners-up: one class computed another way.
    const std::vector<ValueId> order = budget_.candidates > 1 && !options_.accepts
                                           ? graph.order(choice, outputs_)
                                           : std::vector<ValueId>();
    for (ValueId v : order) {
      if (stopped()) break;
      const uint32_t best = choice[v];
      for (uint32_t n = 0; n < graph[v].nodes.size(); ++n) {
        if (n == best || is_swapped(graph[v].nodes[n], graph[v].nodes[best])) continue;
        Choice other = choice;
        other[v] = n;
        if (graph.seconds(other, outputs_) < 1.3 * report_.original_cost) add(other);
      }
    }
    std::ranges::stable_sort(found, {}, &Candidate::cost);
    for (Candidate& c : found) {
      if (report_.candidates >= budget_.candidates) break;
      if (c.graph == program_) continue;
      if (report_.best_cost == 0) report_.best_cost = c.cost;
      sink_.offer(std::move(c));
      ++report_.candidates;
    }
  }

  SearchReport finish(StopReason why, const std::string& detail) {
    report_.stop = why;
    report_.detail = detail;
    report_.seconds = clock_.seconds();
    return report_;
  }

  const SynthOptions& options_;
  const Graph& program_;
  Context& context_;
  const Budget& budget_;
  CandidateSink& sink_;
  Grammar grammar_;
  std::vector<uint32_t> own_ways_;  // of classes: how many of their first ways are the program's
  double elsewhere_;
  Choice own_;                                      // the program's own ways
  Choice agreed_;                                   // what extract() gave last
  std::set<std::pair<ValueId, uint32_t>> trusted_;  // ways of choices that were found right
  std::vector<ValueId> outputs_;                    // classes
  std::function<void()> make_trials_;
  std::optional<Trials> trials_;
  std::vector<std::pair<Graph, bool>> asked_;  // of the verifier, and what it said
  std::string derivation_;
  int64_t steps_ = 0, windows_ = 0;
  SearchReport report_;
  const WallClock clock_;
  const std::function<bool()> stop_ = [this] { return stopped(); };
};

// What is left of a budget since the clock was started.
Budget left_of(Budget budget, const WallClock& clock) {
  budget.seconds -= clock.seconds();
  return budget;
}

// One world, or parts of the program in worlds of their own.
SearchReport improved(const SynthOptions& options, const Graph& program, Context& context,
                      const Budget& budget, CandidateSink& sink) {
  const WallClock clock;
  const bool symbolic = std::ranges::any_of(
      program.tensors(), [](const Tensor& t) { return !is_static(t.type.shape); });
  if (!is_large(program) || symbolic) {
    SearchReport report = Search(options, program, context, budget, sink).run();
    if (report.stop != StopReason::Unsupported || symbolic || computing(program) < 2) return report;
  }
  const Budget rest = left_of(budget, clock);
  return improve_large(
      program, options.rates, context, rest, sink,
      [&](const Graph& part, const Effort& effort, double elsewhere, CandidateSink& found) {
        SynthOptions its = options;
        its.windows = effort.windows;
        its.max_size = std::min(options.max_size, effort.max_size);
        its.max_leaves = std::min(options.max_leaves, effort.max_leaves);
        if (its.max_leaves < options.max_leaves) its.wide_windows = 0;
        its.max_cone = std::min(options.max_cone, effort.max_cone);
        its.patience = std::min(options.patience, effort.patience);
        its.window_steps = std::min(options.window_steps, effort.window_steps);
        its.probes = std::min(options.probes, 5 * its.window_steps);
        const Budget share{.steps = effort.steps, .seconds = effort.seconds, .candidates = 1};
        Search search(its, part, context, share, found, elsewhere);
        SearchReport report = search.run();
        return PartReport{std::move(report), search.steps()};
      });
}

}  // namespace
}  // namespace synth

SearchReport Synth::run(const Subprogram& sub, Context& context, const Budget& budget,
                        CandidateSink& sink) {
  const WallClock clock;
  const std::optional<synth::Retold> rolled = synth::reroll(sub.graph);
  // The program without loops and, unless slices say it better, as it is.
  struct Form {
    const Graph* graph;
    std::string derivation;
  };
  const Graph& plain = rolled ? rolled->graph : sub.graph;
  const std::vector<synth::Retold> others = synth::reslice(plain);
  if (!rolled && others.empty())
    return synth::improved(options_, sub.graph, context, synth::left_of(budget, clock), sink);
  const std::string looped = rolled ? rolled->derivation : "";
  std::vector<Form> forms;
  for (const synth::Retold& r : others) forms.push_back({&r.graph, looped + r.derivation});
  const double cost = synth::seconds_as_written(plain, options_.rates);
  if (others.empty() || !(synth::seconds_as_written(others[0].graph, options_.rates) < cost))
    forms.insert(forms.begin(), {&plain, looped});
  // What synthesis makes of each; at least the program itself, if it is another.
  CollectingSink found;
  std::optional<SearchReport> report;
  for (size_t i = 0; i < forms.size(); ++i) {
    Budget share = synth::left_of(budget, clock);
    share.seconds /= double(forms.size() - i);
    CollectingSink its;
    SearchReport one = synth::improved(options_, *forms[i].graph, context, share, its);
    if (one.original_cost == 0)
      one.original_cost = synth::seconds_as_written(*forms[i].graph, options_.rates);
    if (forms[i].graph != &sub.graph)
      its.candidates.push_back({*forms[i].graph, one.original_cost, "synth", "", {}, false});
    for (Candidate& c : its.candidates) {
      c.derivation = forms[i].derivation + c.derivation;
      found.candidates.push_back(std::move(c));
    }
    if (!report) {
      report = std::move(one);
    } else {
      report->seconds += one.seconds;
      report->add_counts(one);
      if (one.best_cost > 0 && (report->best_cost == 0 || one.best_cost < report->best_cost))
        report->best_cost = one.best_cost;
    }
  }
  std::ranges::stable_sort(found.candidates, {}, &Candidate::cost);
  for (Candidate& c : found.candidates) sink.offer(std::move(c));
  report->candidates = int64_t(found.candidates.size());
  if (!rolled) report->original_cost = cost;
  return std::move(*report);
}

}  // namespace tessera
