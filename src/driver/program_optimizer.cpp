#include "driver/program_optimizer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/text.h"
#include "base/union_find.h"
#include "driver/linear_parts.h"
#include "ir/build.h"
#include "ir/weights.h"

namespace tessera {
namespace {

constexpr int kMutationRounds = 4;     // of mutants of mutants (PET §8.1: r = 4)
constexpr int64_t kSteps = 24'000;     // of the first round, half as many in the next
constexpr double kSearchShare = 0.5;   // of the time; the rest is for timing
constexpr size_t kKept = 3;            // of a round's mutants, which the next one mutates
constexpr size_t kTimed = 3;           // mutants of a subprogram that are timed, at most
constexpr double kRuledOut = 1.25;     // by the model: this much slower than the original
constexpr double kLeastGain = 0.95;    // of the original's time, to be offered
constexpr size_t kOffered = 2;         // mutants of a subprogram, at most
constexpr double kLeastWhole = 0.99;   // of the program's time, for a cover to be worth a proof
constexpr double kLeastShare = 0.005;  // of the program's time, for a subprogram to be looked at
constexpr size_t kMostViews = 4;       // of tensors with only element-by-element operators between

constexpr const char* kGainLost = "no gain found: what an alternative saves, copies around it cost";

std::string described_operators(const Graph& g) {
  std::string text;
  for (const Op& op : g.ops()) {
    if (is_given(op.kind)) continue;
    text += text.empty() ? "" : "; ";
    text += std::string(name(op.kind));
    for (const TensorId t : op.inputs) text += " " + g.type(t).str();
    if (const auto* a = std::get_if<ConvAttrs>(&op.attrs)) {
      auto all = [&](const char* what, const std::vector<int64_t>& v, int64_t usual) {
        if (std::ranges::all_of(v, [&](int64_t x) { return x == usual; })) return;
        text += std::string(" ") + what;
        for (const int64_t x : v) text += (&x == v.data() ? "=" : ",") + std::to_string(x);
      };
      all("strides", a->strides, 1);
      all("dilations", a->dilations, 1);
    }
  }
  return text;
}

// One matrix product, or a convolution that is one (windows of one element).
bool is_lone_product(const Graph& g) {
  size_t n = 0;
  bool product = true;
  for (const Op& op : g.ops()) {
    if (is_given(op.kind)) continue;
    n++;
    if (op.kind == OpKind::Matmul) continue;
    const auto* a = std::get_if<ConvAttrs>(&op.attrs);
    if (op.kind != OpKind::Conv || a->groups != 1) return false;
    const Shape& w = g.type(op.inputs[1]).shape;
    product =
        product && std::all_of(w.begin() + 2, w.end(), [](const Dim& d) { return d.is_one(); });
  }
  return product && n == 1;
}

}  // namespace

ProgramOptimizer::ProgramOptimizer(Session& session, const Graph& base, bool timed)
    : s_(session), base_(base), timed_(timed), costs_(session), seconds_(costs_.by_operator(base)),
      once_(computed_once(base, true)) {
  for (size_t i = 0; i < base.tensors().size(); i++)
    value_of(TensorId(i), Arrangement(base.type(TensorId(i)).shape));
}

size_t ProgramOptimizer::value_of(TensorId t, const Arrangement& view) {
  const auto [it, fresh] = numbers_.try_emplace({t.index, view.str()}, values_.size());
  if (fresh) values_.push_back({t, view});
  return it->second;
}

// What is left of a mutant without the rearrangements at its borders, which become views of what
// it reads and makes.
std::optional<ProgramOptimizer::Item> ProgramOptimizer::opened(const Item& original,
                                                               const Graph& mutant) {
  const std::vector<int> uses = use_counts(mutant);
  std::vector<std::vector<OpId>> readers(mutant.tensors().size());
  for (size_t i = 0; i < mutant.ops().size(); i++)
    for (const TensorId t : mutant.ops()[i].inputs) readers[t.index].push_back(OpId(i));
  std::vector<bool> skipped(mutant.ops().size(), false);
  Item item;
  item.subprogram = original.subprogram;
  std::vector<TensorId> made;  // by output: the tensor before its rearrangements
  for (size_t k = 0; k < mutant.outputs().size(); k++) {
    TensorId t = mutant.outputs()[k];
    std::vector<OpId> chain;
    while (uses[t.index] == 1 && rearranges(mutant.producer(t).kind)) {
      const OpId id = mutant.tensor(t).producer;
      const TensorId from = mutant.op(id).inputs[0];
      if (is_input(mutant.producer(from).kind)) break;
      chain.push_back(id);
      t = from;
    }
    // The longest end of the chain that is a view.
    for (;; chain.pop_back()) {
      const TensorId from = chain.empty() ? mutant.outputs()[k] : mutant.op(chain.back()).inputs[0];
      std::optional<Arrangement> view = Arrangement(mutant.type(from).shape);
      for (size_t i = chain.size(); i-- > 0 && view;)
        view = view->then(mutant, mutant.op(chain[i]));
      const Value& out = values_[original.outputs[k]];
      const auto all = view ? out.view.then(view->inverse()) : std::nullopt;
      if (!all && !chain.empty()) continue;
      if (!all) return std::nullopt;
      for (const OpId id : chain) skipped[id.index] = true;
      made.push_back(from);
      item.outputs.push_back(value_of(out.of, *all));
      break;
    }
  }
  Graph& g = item.graph = Graph(mutant.name());
  std::vector<TensorId> at(mutant.tensors().size());
  for (size_t i = 0; i < mutant.inputs().size(); i++) {
    TensorId t = mutant.inputs()[i];
    const Value in = values_[original.inputs[i]];
    Arrangement view = in.view;
    const bool weight = mutant.is_weight(t);
    while (!weight && uses[t.index] == 1 && readers[t.index].size() == 1) {
      const OpId id = readers[t.index][0];
      if (skipped[id.index] || !rearranges(mutant.op(id).kind)) break;
      const auto next = view.then(mutant, mutant.op(id));
      if (!next) break;
      skipped[id.index] = true;
      view = *next;
      t = mutant.op(id).result();
    }
    item.inputs.push_back(value_of(in.of, view));
    at[t.index] = g.add_input(mutant.type(t), mutant.tensor(mutant.inputs()[i]).name, weight);
  }
  for (size_t i = 0; i < mutant.ops().size(); i++)
    if (!skipped[i] && !is_input(mutant.ops()[i].kind)) copy_op(mutant, mutant.ops()[i], g, at);
  for (const TensorId t : made) g.add_output(at[t.index]);
  return item;
}

bool ProgramOptimizer::propose(double least, double most) {
  size_t subsets = 0;
  take(s_.options.settings, "mutate.subsets", subsets);
  std::vector<Part> parts = linear_parts(base_, 4, subsets);
  // Equal subprograms share what is found.
  std::vector<std::vector<const Part*>> groups;
  std::vector<double> cost;
  for (const Part& p : parts) {
    const auto same = std::ranges::find_if(
        groups, [&](const auto& g) { return g[0]->graph == p.graph; });
    double seconds = sum_of<double>(p.ops, [&](const OpId id) { return seconds_[id.index]; });
    if (same != groups.end()) {
      same->push_back(&p);
      cost[size_t(same - groups.begin())] += seconds;
    } else {
      groups.push_back({&p});
      cost.push_back(seconds);
    }
  }
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return cost[a] > cost[b]; });
  const double program = std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
  double left = 0, searched = 0;
  std::set<uint32_t> seen;
  for (const size_t i : order) {
    if (is_lone_product(groups[i][0]->graph)) continue;
    left += cost[i];
    for (const Part* p : groups[i])
      for (const OpId id : p->ops)
        if (seen.insert(id.index).second) searched += seconds_[id.index];
  }
  // The more of the program can be searched here, the less is there for other engines.
  const double until = least + (most - least) * searched / std::max(program, 1e-30);
  const double begin = s_.deadline.spent();
  const double search_until = begin + kSearchShare * (until - begin);
  bool finished = true;
  for (size_t n = 0; n < order.size(); n++) {
    const size_t i = order[n];
    const Graph& graph = groups[i][0]->graph;
    SubprogramReport& mine = s_.report.subprograms.emplace_back();
    mine.name = described_operators(graph);
    mine.times = int(groups[i].size());
    mine.original_s = cost[i] / double(groups[i].size());
    const double now = s_.deadline.spent();
    if (is_lone_product(graph)) {
      mine.verdict = "not searched: a product alone has no mutant with less work";
      continue;
    }
    if (cost[i] < kLeastShare * program) {
      mine.verdict = "not searched: a small part of the program's time";
    } else if (s_.deadline.cancelled() || now >= search_until) {
      mine.verdict = "not searched: no time was left";
      finished = false;
    } else {
      s_.tell("mutate", std::to_string(n + 1) + "/" + std::to_string(order.size()), 0, 0);
      // What is left over goes to those that come later.
      const double slot = std::max((search_until - now) * cost[i] / std::max(left, 1e-30),
                                   std::min(search_until - now, 0.3));
      explored_.push_back(
          explore(s_.report.subprograms.size() - 1, groups[i], std::min(search_until, now + slot)));
    }
    left -= cost[i];
  }
  // Compiling and timing take longer than searching: where most is to gain comes first.
  std::ranges::stable_sort(explored_, std::ranges::greater(), &Explored::expected_s);
  for (size_t n = 0; n < explored_.size(); n++) {
    s_.tell("time mutants", std::to_string(n + 1) + "/" + std::to_string(explored_.size()), 0, 0);
    finished = settle(explored_[n], until) && finished;
  }
  return finished;
}

// One search, its results opened.
void ProgramOptimizer::mutate(const Item& item, int number, double until,
                              std::vector<Item>& found) {
  CandidateSink sink;
  const SearchReport r =
      s_.mutants(item.graph, until - s_.deadline.spent(), sink, &costs_, kSteps >> item.round);
  SubprogramReport& report = s_.report.subprograms[size_t(item.subprogram)];
  report.search_s += r.seconds;
  report.tried += r.graphs;
  auto figure = [&](const char* name) {
    const auto it = r.figures.find(name);
    return it == r.figures.end() ? int64_t(0) : int64_t(it->second);
  };
  report.mutants += figure("mutants");
  report.partial += figure("partial");
  report.corrected += figure("corrected");
  report.rounds = std::max(report.rounds, item.round + 1);
  if (item.round == 0) report.stop = std::string(tessera::name(r.stop));
  if (item.round == 0 && !r.detail.empty()) report.stop += ": " + r.detail;
  for (const Candidate& c : sink.candidates) {
    std::optional<Item> core = opened(item, c.graph);
    if (!core) continue;
    core->round = item.round + 1;
    core->parent = number;
    core->whole = c.graph;
    core->seconds = costs_.cost(core->graph).seconds;
    const auto same = [&](const Item& other) {
      return other.graph == core->graph && other.inputs == core->inputs &&
             other.outputs == core->outputs;
    };
    if (same(item) || std::ranges::any_of(found, same)) continue;
    SubprogramReport::Alternative a;
    a.derivation = c.derivation;
    a.notes = c.notes;
    a.round = core->round;
    a.model_s = core->seconds;
    core->alternative = int(report.alternatives.size());
    report.alternatives.push_back(std::move(a));
    found.push_back(std::move(*core));
  }
}

ProgramOptimizer::Explored
ProgramOptimizer::explore(size_t subprogram, const std::vector<const Part*>& places, double until) {
  const Part& first = *places[0];
  Explored e;
  e.subprogram = subprogram;
  e.places = places;
  Item& original = e.original;
  original.graph = first.graph;
  original.subprogram = int(subprogram);
  for (const TensorId t : first.inputs) original.inputs.push_back(t.index);
  for (const TensorId t : first.outputs) original.outputs.push_back(t.index);
  original.seconds = costs_.cost(first.graph).seconds;

  // Rounds: the mutants of the best mutants, as far as time goes.
  std::vector<Item>& found = e.found;
  mutate(original, -1, until, found);
  size_t begin = 0;
  int rounds = kMutationRounds;
  size_t kept = kKept;
  take(s_.options.settings, "mutate.rounds", rounds);
  take(s_.options.settings, "mutate.keep", kept);
  for (int round = 1; round < rounds && begin < found.size(); round++) {
    std::vector<size_t> best;
    for (size_t i = begin; i < found.size(); i++)
      if (found[i].seconds < original.seconds) best.push_back(i);
    begin = found.size();
    std::ranges::stable_sort(best, {}, [&](size_t i) { return found[i].seconds; });
    best.resize(std::min(best.size(), kept));
    for (const size_t i : best) {
      if (s_.deadline.spent() >= until || s_.deadline.cancelled()) break;
      const Item item = found[i];
      mutate(item, int(i), until, found);
    }
  }
  double least = std::numeric_limits<double>::infinity();
  for (const Item& item : found) least = std::min(least, item.seconds);
  e.expected_s = double(places.size()) * (original.seconds - least);
  return e;
}

// Times what the model does not rule out beside the original, and offers what gains. True where
// nothing was cut short.
bool ProgramOptimizer::settle(Explored& e, double until) {
  const Part& first = *e.places[0];
  std::vector<Item>& found = e.found;
  SubprogramReport& report = s_.report.subprograms[e.subprogram];
  std::vector<size_t> order(found.size());
  std::iota(order.begin(), order.end(), size_t(0));
  const auto time_of = [&](size_t i) { return found[i].seconds; };
  std::ranges::stable_sort(order, {}, time_of);
  std::vector<Graph> timed = {first.graph};
  std::vector<size_t> which;
  for (const size_t i : order) {
    if (found[i].seconds > kRuledOut * e.original.seconds || which.size() == kTimed) break;
    timed.push_back(found[i].graph);
    which.push_back(i);
  }
  const double own = e.original.seconds;
  std::vector<bool> measured(found.size(), false);
  const bool late = s_.deadline.spent() >= until || s_.deadline.cancelled();
  if (timed_ && !which.empty()) {
    const auto seconds = costs_.measured(timed, late ? 0 : until - s_.deadline.spent());
    if (seconds[0]) report.measured_s = *seconds[0];
    for (size_t k = 0; k < which.size(); k++) {
      if (!seconds[0] || !seconds[k + 1]) continue;
      measured[which[k]] = true;
      report.measured = true;
      report.alternatives[size_t(found[which[k]].alternative)].measured_s = *seconds[k + 1];
      // Other operators are modelled, so times count by their ratio.
      found[which[k]].seconds = own * *seconds[k + 1] / *seconds[0];
    }
    if (!report.measured) {
      const bool over = s_.deadline.spent() >= until || s_.deadline.cancelled();
      report.verdict = over ? "no gain found: no time was left to time mutants"
                            : "no gain found: neither it nor a mutant could be timed";
      return !over;
    }
  }
  double best = own;
  size_t placed = 0;
  std::ranges::stable_sort(order, {}, time_of);
  for (const size_t i : order) {
    const bool decides = measured[i] || !report.measured;
    if (!decides || found[i].seconds > kLeastGain * own || placed == kOffered) continue;
    best = std::min(best, found[i].seconds);
    placed++;
    for (const Part* here : e.places) place(found[i], first, *here);
  }
  report.best_gain = best > 0 ? own / best : 1;
  if (report.alternatives.empty())
    report.verdict = "no gain found: no mutant is equal";
  else if (best >= own)
    report.verdict = which.empty() ? "no gain found: the model expects no mutant to be faster"
                                   : "no gain found: no mutant was faster when timed";
  else
    report.verdict = kGainLost;  // unless it is chosen
  return true;
}

// Asks the verifier about a mutant and about those it is a mutant of.
bool ProgramOptimizer::prove(const Explored& e, int alternative) {
  const auto is_it = [&](const Item& item) { return item.alternative == alternative; };
  const Item& item = *std::ranges::find_if(e.found, is_it);
  auto& told = s_.report.subprograms[e.subprogram].alternatives[size_t(alternative)];
  if (told.proven) return true;
  const Item& parent = item.parent < 0 ? e.original : e.found[size_t(item.parent)];
  if (item.parent >= 0 && !prove(e, parent.alternative)) {
    told.why_not = "what it is a mutant of is not proved";
    return false;
  }
  Verifier verifier(parent.graph, s_.verify_options());
  Outcome o;
  o.graph = item.whole;
  told.proven = s_.prove(verifier, o).has_value();
  told.why_not = o.why;
  return told.proven;
}

void ProgramOptimizer::accept() {
  for (SubprogramReport& r : s_.report.subprograms)
    for (auto& a : r.alternatives) a.proven = a.proven || a.chosen;
}

// Offers an item of one subprogram at an equal one.
void ProgramOptimizer::place(const Item& item, const Part& first, const Part& here) {
  auto moved = [&](size_t v) {
    const Value value = values_[v];
    for (size_t i = 0; i < first.inputs.size(); i++)
      if (first.inputs[i] == value.of) return value_of(here.inputs[i], value.view);
    for (size_t i = 0; i < first.outputs.size(); i++)
      if (first.outputs[i] == value.of) return value_of(here.outputs[i], value.view);
    unreachable("a mutant's value is not at the border of its subprogram");
  };
  Kernel k;
  for (const size_t v : item.inputs) k.inputs.push_back(moved(v));
  for (const size_t v : item.outputs) k.outputs.push_back(moved(v));
  k.seconds = item.seconds;
  k.subprogram = item.subprogram;
  k.alternative = item.alternative;
  k.emit = [graph = item.graph](Graph& to, const std::vector<TensorId>& in) {
    return build::graph(to, graph, in);
  };
  offered_.push_back(std::move(k));
}

ProgramOptimizer::Kernel ProgramOptimizer::kernel_of(const Part& part,
                                                     const Replacement& replacement) const {
  Kernel k;
  for (const TensorId t : part.inputs) k.inputs.push_back(t.index);
  for (const TensorId t : part.outputs) k.outputs.push_back(t.index);
  for (const OpId id : part.ops) k.seconds += seconds_[id.index];
  k.seconds /= std::max(replacement.speedup, 1e-3);
  k.emit = [graph = replacement.graph](Graph& to, const std::vector<TensorId>& in) {
    return build::graph(to, graph, in);
  };
  return k;
}

std::vector<ProgramOptimizer::Kernel> ProgramOptimizer::own_kernels() {
  std::vector<Kernel> kernels;
  for (size_t i = 0; i < base_.ops().size(); i++) {
    const Op& op = base_.ops()[i];
    if (is_input(op.kind)) continue;
    Kernel k;
    for (const TensorId t : op.inputs) k.inputs.push_back(t.index);
    for (uint32_t r = 0; r < op.num_results; r++) k.outputs.push_back(op.result(r).index);
    k.seconds = once_[i] ? 0 : seconds_[i];
    k.emit = [this, i](Graph& to, const std::vector<TensorId>& in) {
      const Op& own = base_.ops()[i];
      std::vector<TensorId> at(base_.tensors().size());
      for (size_t j = 0; j < in.size(); j++) at[own.inputs[j].index] = in[j];
      copy_op(base_, own, to, at);
      return mapped(own.num_results, [&](uint32_t r) { return at[own.result(r).index]; });
    };
    kernels.push_back(std::move(k));
  }
  return kernels;
}

// Element by element, operators work on any view of their operands: where two kernels want the same
// view of tensors that only such operators lie between, all of these get it.
void ProgramOptimizer::follow_views() {
  UnionFind group(base_.tensors().size());
  auto computed = [&](TensorId t) {
    return !once_[base_.tensor(t).producer.index] && !base_.producer(t).constant() &&
           !base_.is_weight(t);
  };
  std::vector<bool> between(base_.tensors().size(), false);
  for (const Op& op : base_.ops()) {
    if (!has(op.kind, algebra::Pointwise) || op.num_results != 1) continue;
    for (const TensorId t : op.inputs)
      if (base_.type(t).shape == base_.type(op.result()).shape && computed(t)) {
        group.join(t.index, op.result().index);
        between[t.index] = between[op.result().index] = true;
      }
  }
  std::map<std::pair<size_t, std::string>, std::pair<size_t, Arrangement>> wanted;
  for (const Value& v : values_) {
    if (v.view.is_identity() || !between[v.of.index]) continue;
    auto [it, fresh] = wanted.try_emplace({group.find(v.of.index), v.view.str()}, 0, v.view);
    it->second.first++;
  }
  std::map<size_t, size_t> views;  // by group
  for (const auto& [key, view] : wanted) {
    if (view.first < 2 || ++views[key.first] > kMostViews) continue;
    for (uint32_t t = 0; t < base_.tensors().size(); t++)
      if (between[t] && group.find(t) == key.first) value_of(TensorId(t), view.second);
  }
}

void ProgramOptimizer::add_views(std::vector<Kernel>& kernels) {
  follow_views();
  std::map<uint32_t, std::vector<size_t>> of;  // values by tensor, that as it is first
  for (size_t v = 0; v < values_.size(); v++) of[values_[v].of.index].push_back(v);
  for (const auto& [tensor, all] : of) {
    if (all.size() < 2) continue;
    const Type& type = base_.type(TensorId(tensor));
    const Op& maker = base_.producer(TensorId(tensor));
    const bool free =
        once_[base_.tensor(TensorId(tensor)).producer.index] || base_.is_weight(TensorId(tensor));
    for (const size_t a : all)
      for (const size_t b : all) {
        const auto turn = a == b ? std::nullopt : values_[a].view.inverse().then(values_[b].view);
        if (!turn) continue;
        Kernel k;
        k.inputs = {a};
        k.outputs = {b};
        k.relay = true;
        k.seconds = free || turn->keeps_order() ? 0 : costs_.copy_seconds(type);
        k.emit = [view = *turn](Graph& to, const std::vector<TensorId>& in) {
          return std::vector<TensorId>{view.build(to, in[0])};
        };
        kernels.push_back(std::move(k));
      }
    if (!has(maker.kind, algebra::Pointwise) || maker.num_results != 1 || free) continue;
    for (const size_t v : all) {
      const Arrangement view = values_[v].view;
      if (view.is_identity()) continue;
      // How each operand is brought into the order of the result; nothing where it cannot be.
      struct Operand {
        bool turned = false, once = false;
        Shape spread;  // by channels: the shape in which it broadcasts
      };
      std::vector<Operand> operands;
      Kernel k;
      bool fits = true;
      for (const TensorId t : maker.inputs) {
        Operand o;
        const Shape& shape = base_.type(t).shape;
        const bool constant = base_.producer(t).constant() || base_.is_weight(t) ||
                              once_[base_.tensor(t).producer.index];
        size_t real = 0, axis = 0;
        for (size_t d = 0; d < shape.size(); d++)
          if (!shape[d].is_one()) {
            real++;
            axis = d + (type.shape.size() - shape.size());
          }
        std::optional<size_t> to;
        if (real == 1) to = view.axis_of(axis);
        if (shape == type.shape && !constant) {
          o.turned = true;
          const auto at = numbers_.find({t.index, view.str()});
          fits = fits && at != numbers_.end();
          k.inputs.push_back(fits ? at->second : 0);
        } else if (real == 0 || to) {
          o.spread.assign(view.shape().size(), Dim(1));
          if (to) o.spread[*to] = view.shape()[*to];
          k.inputs.push_back(t.index);
        } else if (constant) {
          o.once = true;
          k.inputs.push_back(t.index);
        } else {
          fits = false;
        }
        operands.push_back(std::move(o));
      }
      if (!fits) continue;
      k.outputs = {v};
      k.seconds = seconds_[base_.tensor(TensorId(tensor)).producer.index];
      k.emit = [this, operands, view, id = base_.tensor(TensorId(tensor)).producer](
                   Graph& to, const std::vector<TensorId>& in) {
        const Op& op = base_.op(id);
        std::vector<TensorId> args;
        for (size_t i = 0; i < in.size(); i++) {
          TensorId t = in[i];
          if (operands[i].once) {
            if (to.type(t).shape != view.source()) t = build::broadcast(to, t, {view.source()});
            t = view.build(to, t);
          } else if (!operands[i].turned && !to.type(t).shape.empty() &&
                     to.type(t).shape != operands[i].spread) {
            t = build::reshape(to, t, {operands[i].spread});
          }
          args.push_back(t);
        }
        return std::vector<TensorId>{to.add(op.kind, args, op.attrs)};
      };
      kernels.push_back(std::move(k));
    }
  }
}

bool ProgramOptimizer::reject(const Outcome& whole) {
  std::string why = "not kept: the program with it was not " +
                    std::string(whole.fate == Fate::Proposed ? "timed" : "accepted: " + whole.why);
  if (whole.fate == Fate::Measured)
    why = "not kept: the whole program was " + decimals(whole.speedup, 2) +
          " times as fast with it" +
          (!whole.why.empty()  ? ", but that was not proved: "
           : whole.speedup > 1 ? ", too little to tell from noise"
                               : "") +
          whole.why;
  std::set<int> chosen;
  int most = -1;
  double saved = 0;
  std::set<std::pair<int, int>> wrong;  // subprograms and alternatives
  if (whole.fate == Fate::Refuted || whole.fate == Fate::Unknown)
    for (const Explored& e : explored_)
      for (size_t a = 0; a < s_.report.subprograms[e.subprogram].alternatives.size(); a++)
        if (s_.report.subprograms[e.subprogram].alternatives[a].chosen && !prove(e, int(a)))
          wrong.emplace(int(e.subprogram), int(a));
  std::erase_if(offered_, [&](const Kernel& k) {
    return wrong.count({k.subprogram, k.alternative}) != 0;
  });
  for (size_t i = 0; i < s_.report.subprograms.size(); i++) {
    SubprogramReport& r = s_.report.subprograms[i];
    if (r.chosen == 0) continue;
    chosen.insert(int(i));
    const double saves = double(r.chosen) * r.original_s * (1 - 1 / std::max(r.best_gain, 1.0));
    if (most < 0 || saves > saved) most = int(i), saved = saves;
    r.chosen = 0;
    r.verdict = why;
    for (auto& a : r.alternatives) a.chosen = false;
  }
  if (!wrong.empty()) return true;
  if (chosen.size() < 2 && rejections_ == 0) return false;
  if (rejections_ == 0) {
    rejected_ = chosen;
    rejected_.erase(most);
  } else {
    rejected_ = chosen;
  }
  return ++rejections_ <= 2;
}

std::optional<Graph> ProgramOptimizer::choose(const std::vector<Part>& parts,
                                              const std::vector<Replacement>& replacements) {
  std::vector<Kernel> kernels = own_kernels();
  const size_t own = kernels.size();
  for (const Kernel& k : offered_)
    if (!rejected_.count(k.subprogram)) kernels.push_back(k);
  for (size_t i = 0; i < parts.size(); i++)
    if (!(replacements[i].graph == parts[i].graph))
      kernels.push_back(kernel_of(parts[i], replacements[i]));
  add_views(kernels);
  CoverProblem problem;
  problem.values = values_.size();
  for (const TensorId t : base_.inputs()) problem.given.push_back(t.index);
  for (const TensorId t : base_.outputs()) problem.wanted.push_back(t.index);
  for (const Kernel& k : kernels)
    problem.kernels.push_back({k.inputs, k.outputs, k.seconds, k.relay});
  std::vector<size_t> maker(base_.tensors().size());  // the program's own kernel
  for (size_t i = 0; i < own; i++)
    for (const size_t v : kernels[i].outputs) maker[v] = i;
  std::vector<size_t> known(own);
  std::iota(known.begin(), known.end(), size_t(0));
  CoverOptions options;
  options.ilp.stopped = [this] { return s_.deadline.cancelled() || s_.deadline.ended(); };
  const double start = s_.deadline.spent();
  const Cover cover = choose_cover(problem, known, options);
  CoverReport& report = s_.report.cover.emplace();
  report.values = int64_t(values_.size());
  report.kernels = int64_t(kernels.size());
  report.offered = int64_t(offered_.size() + parts.size());
  report.pieces = int64_t(cover.pieces);
  report.variables = int64_t(cover.variables);
  report.proved = cover.proved;
  report.solver = cover.solver;
  report.seconds = s_.deadline.spent() - start;
  report.original_s = std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
  report.expected_s = cover.seconds;

  for (size_t i = 0; i < s_.report.subprograms.size(); i++) {
    SubprogramReport& r = s_.report.subprograms[i];
    r.chosen = 0;
    for (auto& a : r.alternatives) a.chosen = false;
    if (r.verdict == "chosen") r.verdict = kGainLost;
  }
  const bool any =
      std::ranges::any_of(cover.kernels, [&](size_t k) { return kernels[k].subprogram >= 0; });
  if (!any || cover.seconds > kLeastWhole * report.original_s) return std::nullopt;
  Graph g(base_.name()), places(base_.name());
  std::vector<TensorId> at(values_.size()), place(base_.tensors().size());
  for (const TensorId t : base_.inputs()) {
    at[t.index] = g.add_input(base_.type(t), base_.tensor(t).name, base_.is_weight(t));
    place[t.index] = places.add_input(base_.type(t), base_.tensor(t).name, base_.is_weight(t));
  }
  const auto put_in_place = [&](const Kernel& k) {
    std::vector<TensorId> in;
    for (const size_t v : k.inputs)
      in.push_back(values_[v].view.build(places, place[values_[v].of.index]));
    const std::vector<TensorId> out = k.emit(places, in);
    for (size_t r = 0; r < out.size(); r++) {
      const Value& v = values_[k.outputs[r]];
      if (!place[v.of.index].valid()) place[v.of.index] = v.view.inverse().build(places, out[r]);
    }
  };
  for (const size_t i : cover.kernels) {
    const Kernel& k = kernels[i];
    std::vector<TensorId> in = mapped(k.inputs, [&](const size_t v) { return at[v]; });
    const std::vector<TensorId> out = k.emit(g, in);
    for (size_t r = 0; r < out.size(); r++)
      if (!at[k.outputs[r]].valid()) at[k.outputs[r]] = out[r];
    // An operator of the program on another view is itself there.
    const Value& made = values_[k.outputs[0]];
    const bool other_view = k.subprogram < 0 && !made.view.is_identity();
    const bool fresh = std::ranges::any_of(
        k.outputs, [&](size_t v) { return !place[values_[v].of.index].valid(); });
    if (!k.relay && fresh) put_in_place(other_view ? kernels[maker[made.of.index]] : k);
    if (i >= own && !k.relay) report.chosen++;
    if (k.subprogram < 0) continue;
    SubprogramReport& s = s_.report.subprograms[size_t(k.subprogram)];
    s.chosen++;
    s.alternatives[size_t(k.alternative)].chosen = true;
    s.verdict = "chosen";
  }
  for (const TensorId t : base_.outputs()) {
    g.add_output(at[t.index]);
    places.add_output(place[t.index]);
  }
  in_place_ = without_dead_code(places);
  return without_dead_code(g);
}

}  // namespace tessera
