#include "search/synth/large.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "ir/build.h"
#include "search/synth/spec.h"
#include "search/synth/world.h"

namespace tessera::synth {
namespace {

bool computes(const Op& op) { return !is_given(op.kind) && !has(op.kind, algebra::Movement); }
bool is_value(const Op& op) { return !is_given(op.kind); }

// For each operator, those that use its results.
std::vector<std::vector<uint32_t>> consumers_of(const Graph& g) {
  std::vector<std::vector<uint32_t>> r(g.ops().size());
  for (uint32_t i = 0; i < g.ops().size(); ++i) {
    for (TensorId t : g.ops()[i].inputs) {
      std::vector<uint32_t>& users = r[g.tensor(t).producer.index];
      if (users.empty() || users.back() != i) users.push_back(i);
    }
  }
  return r;
}

// Completes a set of operators, in order: the constants they use, what goes in and what comes out.
Part complete(const Graph& g, std::vector<uint32_t> ops) {
  std::ranges::sort(ops);
  std::vector<bool> inside(g.ops().size(), false);
  for (uint32_t i : ops) inside[i] = true;
  std::set<uint32_t> with_constants(ops.begin(), ops.end());
  Part part;
  std::set<uint32_t> inputs, outputs;
  for (uint32_t i : ops) {
    for (TensorId t : g.ops()[i].inputs) {
      const uint32_t from = g.tensor(t).producer.index;
      if (inside[from]) continue;
      if (g.ops()[from].constant())
        with_constants.insert(from);
      else
        inputs.insert(t.index);
    }
  }
  auto leaves = [&](TensorId t) {
    const uint32_t from = g.tensor(t).producer.index;
    if (inside[from]) outputs.insert(t.index);
  };
  for (uint32_t i = 0; i < g.ops().size(); ++i)
    if (!inside[i])
      for (TensorId t : g.ops()[i].inputs) leaves(t);
  for (TensorId t : g.outputs()) leaves(t);
  for (uint32_t i : with_constants) part.ops.push_back(OpId(i));
  for (uint32_t t : inputs) part.inputs.push_back(TensorId(t));
  for (uint32_t t : outputs) part.outputs.push_back(TensorId(t));
  return part;
}

// How much work an operator is, roughly: elements read and written, products as many as they are.
double weight(const Graph& g, const Op& op) {
  auto elements = [&](TensorId t) { return double(num_elements(g.type(t).shape)); };
  double total = 500;  // one call
  for (TensorId t : op.inputs) total += elements(t);
  for (uint32_t r = 0; r < op.num_results; ++r) total += elements(op.result(r));
  if (op.kind == OpKind::Matmul)
    total += elements(op.result()) * double(extents(g.type(op.inputs[0]).shape).back()) / 10;
  return total;
}

// Targets from the outputs up, so that whatever is computed by the last few operations before any
// operator lies in the part above some target.
std::vector<Part> parts_of(const Graph& g, int most, const std::function<bool()>& stopped) {
  constexpr int kDepth = 4;  // operations before a target that are to be in one part with it
  std::vector<bool> covered(g.ops().size(), false);
  std::vector<std::pair<double, Part>> found;
  for (size_t i = g.ops().size(); i-- > 0;) {
    const Op& op = g.ops()[i];
    if (covered[i] || !is_value(op) || op.body.valid()) continue;
    if (stopped()) break;
    Part part = part_above(g, OpId(uint32_t(i)), most);
    std::vector<bool> inside(g.ops().size(), false);
    for (OpId o : part.ops) inside[o.index] = true;
    // Operators down to which the part reaches, by how many operations deep.
    std::vector<int> depth(g.ops().size(), 0);
    for (OpId o : part.ops) {  // operands first
      if (!is_value(g.op(o))) continue;
      int least = kDepth;
      for (TensorId t : g.op(o).inputs) {
        const uint32_t from = g.tensor(t).producer.index;
        const Op& producer = g.ops()[from];
        if (!is_value(producer)) continue;
        least = std::min(least, inside[from] ? depth[from] + int(computes(g.op(o))) : 0);
      }
      depth[o.index] = least;
      if (least >= kDepth) covered[o.index] = true;
    }
    covered[i] = true;
    double work = 0;
    int count = 0;
    for (OpId o : part.ops) {
      work += weight(g, g.op(o));
      count += computes(g.op(o));
    }
    if (count > 1 || (count == 1 && !computes(op))) found.emplace_back(work, std::move(part));
  }
  std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Part> parts;
  for (auto& [work, part] : found) parts.push_back(std::move(part));
  return parts;
}

// Names of a part's inputs while it is searched: its steps are told in the words of the whole.
std::string token(size_t input) { return "\x01" + std::to_string(input) + "\x02"; }

class Improvement {
 public:
  Improvement(const Graph& program, const Rates& rates, Context& context, const Budget& budget,
              CandidateSink& sink, const SearchPart& search)
      : program_(program), rates_(rates), context_(context), budget_(budget), sink_(sink),
        search_(search), now_(program) {}

  SearchReport run() {
    label(program_);
    report_.original_cost = cost_ = seconds_as_written(program_, rates_);
    if (Graph once = united(program_); once.ops().size() != program_.ops().size())
      take(std::move(once), "equal operations are computed once");
    // Known rules and equal values over wide parts; then enumeration, little everywhere before much
    // anywhere.
    constexpr struct {
      int most;
      Effort effort;
    } kPasses[] = {{40, {false, 0, 0, 0, 0, 40'000, 15'000, 0}},
                   {12, {true, 1, 3, 6, 800, 40'000, 15'000, 0}},
                   {12, {true, 2, 3, 8, 6'000, 80'000, 15'000, 0}},
                   {12, {true, 3, 4, 12, 20'000, 150'000, 15'000, 0}},
                   {10, {true, 4, 4, 12, 200'000, 300'000, 15'000, 0}}};
    for (const auto& pass : kPasses) {
      while (!over() && sweep(pass.most, pass.effort)) {
      }
    }
    offer();
    report_.stop = ended(context_, budget_, clock_.seconds(), steps_);
    if (searched_ > 0 && supported_ == 0 && history_.empty()) {
      report_.stop = StopReason::Unsupported;
      report_.detail = refused_;
    }
    report_.seconds = clock_.seconds();
    report_.figures["parts"] = double(searched_);
    return report_;
  }

 private:
  bool over() const {
    return ended(context_, budget_, clock_.seconds(), steps_) != StopReason::Exhausted;
  }

  // The program from here on, if it is cheaper.
  bool take(Graph next, const std::string& step) {
    const double cost = seconds_as_written(next, rates_);
    if (!(cost < cost_ * (1 - 1e-9))) return false;
    derivation_ += step;
    if (!step.empty() && step.back() != '\n')
      derivation_ +=
          "  (" + decimals(cost_ * 1e6, 2) + " us -> " + decimals(cost * 1e6, 2) + " us)\n";
    now_ = std::move(next);
    cost_ = cost;
    history_.push_back({now_, cost_, "synth", derivation_, {}, false});
    label(now_);
    return true;
  }
  // Values of the program keep their names as long as they are there.
  void label(const Graph& graph) {
    labels_.clear();
    for (uint32_t t = 0; t < graph.tensors().size(); ++t) {
      const std::string& name = graph.tensors()[t].name;
      labels_[t] = name.empty() ? "v" + std::to_string(t) : name;
    }
  }

  // Looks at each part once; whether one got cheaper, after which the parts are others.
  bool sweep(int most, const Effort& effort) {
    int64_t number = 0;
    for (const Part& part : parts_of(now_, most, [&] { return over(); })) {
      if (over()) return false;
      if (!budget_.has_branch(number++)) continue;
      if (improve(part, most, effort)) return true;
    }
    return false;
  }

  struct Known {
    Graph part;
    std::optional<Candidate> better;
  };

  bool improve(const Part& part, int most, Effort effort) {
    Graph g = as_graph(now_, part);
    const uint64_t key =
        derive_key(structural_hash(g), uint64_t(effort.max_size) * 64 + uint64_t(effort.windows));
    for (const Known& k : known_[key]) {
      if (!(k.part == g)) continue;
      return k.better && take(with_part(now_, part, k.better->graph),
                              "likewise for " + label(part.outputs.back()));
    }
    for (size_t i = 0; i < part.inputs.size(); ++i) g.set_tensor_name(g.inputs()[i], token(i));
    effort.steps = std::min(effort.steps, budget_.steps - steps_);
    effort.seconds = budget_.seconds - clock_.seconds();
    CandidateSink sink;
    const double own = seconds_as_written(g, rates_);
    const PartReport r = search_(g, effort, std::max(0.0, cost_ - own), sink);
    ++searched_;
    steps_ += r.steps;
    report_.add_counts(r.report);
    for (const auto& [name, value] : r.report.figures) report_.figures[name] += value;
    supported_ += r.report.stop != StopReason::Unsupported;
    if (r.report.stop == StopReason::Unsupported) {
      refused_ = r.report.detail;
      // Of too many axes, or never defined, as a whole: in halves.
      known_[key].push_back({std::move(g), std::nullopt});
      steps_ += kUnsupportedSteps;
      return halves(part, most, effort);
    }
    Known k{std::move(g), std::nullopt};
    bool gained =
        !sink.candidates.empty() && sink.candidates[0].cost < r.report.original_cost * (1 - 1e-6);
    if (gained) {
      k.better = std::move(sink.candidates[0]);
      gained = take(with_part(now_, part, k.better->graph), told(k.better->derivation, part));
    }
    known_[key].push_back(std::move(k));
    return gained;
  }
  // A failed try is not free: drawing inputs takes time.
  static constexpr int64_t kUnsupportedSteps = 1'000;

  bool halves(const Part& part, int most, const Effort& effort) {
    int count = 0;
    std::set<uint32_t> left;
    for (OpId o : part.ops) {
      count += computes(now_.op(o));
      if (is_value(now_.op(o))) left.insert(o.index);
    }
    const int half = std::min(most, count) / 2;
    if (half < 1) return false;
    while (!left.empty() && !over()) {
      const uint32_t target = *left.rbegin();
      const Part smaller = part_above(now_, OpId(target), half);
      left.erase(target);
      for (OpId o : smaller.ops) left.erase(o.index);
      if (smaller.ops.size() > 1 && improve(smaller, half, effort)) return true;
    }
    return false;
  }

  std::string label(TensorId t) const { return labels_.at(t.index); }
  std::string told(const std::string& derivation, const Part& part) const {
    std::string text;
    for (size_t at = 0; at < derivation.size(); ++at) {
      if (derivation[at] != '\x01') {
        text += derivation[at];
        continue;
      }
      const size_t end = derivation.find('\x02', at);
      CHECK(end != std::string::npos);
      text += label(part.inputs[std::stoul(derivation.substr(at + 1, end - at - 1))]);
      at = end;
    }
    return text;
  }

  void offer() {
    report_.best_cost = history_.empty() ? 0 : cost_;
    for (size_t n = history_.size(); n > 0 && report_.candidates < budget_.candidates; n /= 2) {
      sink_.offer(history_[n - 1]);
      ++report_.candidates;
    }
  }

  const Graph& program_;
  const Rates& rates_;
  Context& context_;
  const Budget& budget_;
  CandidateSink& sink_;
  const SearchPart& search_;
  Graph now_;
  double cost_ = 0;
  std::map<uint32_t, std::string> labels_;  // of tensors of now_
  std::vector<Candidate> history_;          // the program after each step
  std::map<uint64_t, std::vector<Known>> known_;
  std::string derivation_;
  std::string refused_;  // why the last part was not searched
  int64_t steps_ = 0, searched_ = 0, supported_ = 0;
  SearchReport report_;
  const WallClock clock_;
};

}  // namespace

int computing(const Graph& program) {
  return sum_of<int>(
      program.ops(), [&](const Op& op) { return computes(op); });
}

bool is_large(const Graph& program) {
  constexpr int kMost = 30;
  return computing(program) > kMost;
}

Part part_above(const Graph& g, OpId target, int most) {
  const std::vector<std::vector<uint32_t>> consumers = consumers_of(g);
  std::vector<bool> above(g.ops().size(), false);  // the target and what it is computed from
  above[target.index] = true;
  for (uint32_t i = target.index + 1; i-- > 0;) {
    if (!above[i]) continue;
    for (TensorId t : g.ops()[i].inputs) above[g.tensor(t).producer.index] = true;
  }
  // An operator may come in when all that use it above the target are in: so the part is convex.
  std::vector<int> depth(g.ops().size(), -1);
  depth[target.index] = 0;
  std::vector<uint32_t> members{target.index};
  int count = int(computes(g.op(target)));
  size_t moves = 0;
  while (count < most && moves < size_t(4 * most)) {
    uint32_t best = UINT32_MAX;
    int nearest = INT32_MAX;
    for (uint32_t m : members) {
      for (TensorId t : g.ops()[m].inputs) {
        const uint32_t from = g.tensor(t).producer.index;
        if (depth[from] >= 0 || !is_value(g.ops()[from]) || g.ops()[from].body.valid()) continue;
        int near = INT32_MAX;
        bool ready = true;
        for (uint32_t user : consumers[from]) {
          if (!above[user]) continue;
          ready = ready && depth[user] >= 0;
          if (depth[user] >= 0) near = std::min(near, depth[user] + 1);
        }
        if (ready && (near < nearest || (near == nearest && from > best))) {
          best = from;
          nearest = near;
        }
      }
    }
    if (best == UINT32_MAX) break;
    depth[best] = nearest;
    members.push_back(best);
    count += computes(g.ops()[best]);
    moves += !computes(g.ops()[best]);
  }
  return complete(g, std::move(members));
}

Graph as_graph(const Graph& g, const Part& part) {
  Graph r("part");
  std::vector<TensorId> to(g.tensors().size());
  for (TensorId t : part.inputs)
    to[t.index] = r.add_input(g.type(t), g.tensor(t).name, g.is_weight(t));
  for (OpId o : part.ops) copy_op(g, g.op(o), r, to);
  for (TensorId t : part.outputs) r.add_output(to[t.index]);
  return r;
}

Graph with_part(const Graph& g, const Part& part, const Graph& better) {
  std::vector<bool> inside(g.ops().size(), false), after(g.ops().size(), false);
  for (OpId o : part.ops) inside[o.index] = !g.op(o).constant();
  for (uint32_t i = 0; i < g.ops().size(); ++i) {
    for (TensorId t : g.ops()[i].inputs) {
      const uint32_t from = g.tensor(t).producer.index;
      if (inside[from] || after[from]) after[i] = true;
    }
  }
  Graph r(g.name());
  std::vector<TensorId> to(g.tensors().size());
  for (uint32_t i = 0; i < g.ops().size(); ++i)
    if (!inside[i] && !after[i]) copy_op(g, g.ops()[i], r, to);
  std::vector<TensorId> inputs = mapped(part.inputs, [&](TensorId t) { return to[t.index]; });
  const std::vector<TensorId> outputs = build::graph(r, better, inputs);
  for (size_t i = 0; i < part.outputs.size(); ++i) {
    const TensorId t = to[part.outputs[i].index] = outputs[i];
    const std::string& name = g.tensor(part.outputs[i]).name;
    if (!is_input(r.producer(t).kind) && r.tensor(t).name.empty()) r.set_tensor_name(t, name);
  }
  for (uint32_t i = 0; i < g.ops().size(); ++i)
    if (!inside[i] && after[i]) copy_op(g, g.ops()[i], r, to);
  for (TensorId t : g.outputs()) r.add_output(to[t.index]);
  return without_dead_code(r);
}

double seconds_as_written(const Graph& program, const Rates& rates) {
  constexpr size_t kChunk = 64;
  std::vector<uint32_t> ops;
  for (uint32_t i = 0; i < program.ops().size(); ++i)
    if (is_value(program.ops()[i])) ops.push_back(i);
  auto of = [&](const std::vector<uint32_t>& chunk) -> std::optional<double> {
    const std::optional<Spec> spec = parse(as_graph(program, complete(program, chunk)), true);
    if (!spec) return std::nullopt;
    World world(spec->table, false, 0);
    for (const Rational& c : spec->constants) world.constant(c);
    double total = 0;
    for (ValueId v = 0; v < spec->nodes.size(); ++v)
      total += rates.seconds(world, spec->nodes[v], spec->dims[v], [&](ValueId a) {
        return std::pair(&std::as_const(spec->dims[a]), spec->nodes[a].form);
      });
    return total;
  };
  double total = 0;
  for (size_t from = 0; from < ops.size(); from += kChunk) {
    const auto begin = ops.begin() + long(from);
    const std::vector<uint32_t> chunk(begin, begin + long(std::min(kChunk, ops.size() - from)));
    if (const auto s = of(chunk)) {
      total += *s;
      continue;
    }
    for (uint32_t op : chunk) total += of({op}).value_or(0);
  }
  return total;
}

SearchReport improve_large(const Graph& program, const Rates& rates, Context& context,
                           const Budget& budget, CandidateSink& sink, const SearchPart& search) {
  return Improvement(program, rates, context, budget, sink, search).run();
}

}  // namespace tessera::synth
