#include "verify/driven_inputs.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "eval/eval.h"
#include "ir/walk.h"
#include "verify/inputs.h"
#include "verify/work.h"

namespace tessera {
namespace {

using Inputs = std::vector<NDArray>;
using Line = std::vector<std::vector<double>>;

bool reads(const Graph& g, TensorId input) {
  return std::ranges::any_of(
      g.ops(),
      [&](const Op& op) { return std::ranges::find(op.inputs, input) != op.inputs.end(); });
}

// One input that the program reads, an element of one (often, for ties: whole numbers stay whole),
// some elements of all, or all of them away from zero.
Line direction(const Graph& g, const Inputs& start, bool ties, Rng& rng) {
  const uint64_t way = ties && rng.chance(0.5) ? 4 : rng.below(8);
  std::vector<size_t> movable;
  for (size_t i = 0; i < start.size(); i++)
    if (start[i].size() > 0 && start[i].dtype != DType::Bool && reads(g, g.inputs()[i]))
      movable.push_back(i);
  const size_t one = movable.empty() ? 0 : movable[rng.below(movable.size())];
  Line line;
  for (size_t i = 0; i < start.size(); i++) {
    line.push_back(start[i].reals);
    for (int64_t n : start[i].ints) line[i].push_back(double(n));
    for (double& x : line[i])
      if (way != 3) x = way == 2 ? double(rng.below(3)) - 1 : double(i == one && way != 4);
  }
  if (way == 4 && !movable.empty()) line[one][rng.below(line[one].size())] = 1;
  return line;
}

// start + by·line, of numbers that their dtypes hold; false where one would be infinite. Bools
// stay.
bool move(Inputs& inputs, const Inputs& start, const Line& line, double by) {
  bool finite = true;
  for (size_t i = 0; i < line.size(); i++) {
    NDArray& a = inputs[i];
    for (size_t j = 0; j < a.reals.size(); j++) {
      a.reals[j] = round_to(a.dtype, start[i].reals[j] + by * line[i][j]);
      finite = finite && std::isfinite(a.reals[j]);
    }
    if (a.dtype == DType::Bool || a.ints.empty()) continue;
    const IntRange all = range_of(a.dtype);
    for (size_t j = 0; j < a.ints.size(); j++) {
      const double x = double(start[i].ints[j]) + by * line[i][j];
      a.ints[j] = x <= double(all.low)    ? all.low
                  : x >= double(all.high) ? all.high
                                          : int64_t(std::llround(x));
    }
  }
  return finite;
}

bool is_out(const Threshold& t, double x) { return t.only_least ? x == t.least : x < t.least; }

}  // namespace

Thresholds::Thresholds(Graph graph, std::vector<Threshold> targets,
                       const std::vector<TensorId>& others, ThreadPool* pool)
    : targets_(std::move(targets)), met_(targets_.size(), 0), pool_(pool) {
  const auto add = [&](TensorId value) {
    graph.set_outputs({value});
    values_.push_back(without_dead_code(graph));
    costs_.push_back(std::max(5e3, count_work(values_.back())));  // small ones are not free
  };
  for (const Threshold& t : targets_) add(t.value);
  for (TensorId t : others) add(t);
}

size_t Thresholds::least_reached() const {
  return size_t(std::ranges::min_element(met_) - met_.begin());
}

std::vector<double> Thresholds::values(size_t k, const Inputs& inputs) const {
  try {
    return eval(values_[k], inputs, {Precision::Exact, pool_, {}})[0].reals;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::BadInput) throw;
    return {};
  }
}

bool Thresholds::look(size_t k, const Inputs& inputs) {
  const std::vector<double> all = values(k, inputs);
  const bool out = std::ranges::any_of(all, [&](double x) { return is_out(targets_[k], x); });
  met_[k] += out;
  return out;
}

// By the slope, or by bisection where the sign changes, if only equality counts; else as far as it
// gets nearer, and from there on along other lines.
bool Thresholds::reach(size_t k, Inputs& inputs, Rng rng, double& work) {
  constexpr int kLines = 96, kVain = 10, kHalvings = 60;
  constexpr double kFar = 4096;
  const bool only_least = targets_[k].only_least;
  const bool last = rng.chance(0.25);  // the end of what is counted
  const uint64_t choice = rng();
  const Inputs given = inputs;
  Inputs start = inputs;
  Line line = direction(values_[k], start, only_least, rng);
  const auto value = [&](double by) {
    work -= costs_[k];
    if (!move(inputs, start, line, by)) return double(NAN);
    const std::vector<double> all = values(k, inputs);
    return all.empty() ? NAN : all[last ? all.size() - 1 : choice % all.size()];
  };
  const auto found = [&](double by) {
    if (!is_out(targets_[k], value(by))) return false;
    met_[k]++;
    return true;
  };
  const auto elsewhere = [&] { return look(k, inputs = given); };  // in another element
  const double first = value(0);
  double slope = value(1) - first;
  for (int others = 6; slope == 0 && others > 0; others--) {
    line = direction(values_[k], start, only_least, rng);
    slope = value(1) - first;
  }
  if (is_out(targets_[k], first)) return found(0);
  if (only_least && std::isfinite(first / slope) && found(-first / slope)) return true;
  double nearest = first;
  for (int lines = 0, vain = 0; lines < kLines && vain < kVain && work > 0; lines++, vain++) {
    double best = 0;
    for (double far = only_least ? 1 : 1 / 64.0; far <= kFar && work > 0; far *= 4)
      for (double by : {far, -far}) {
        const double x = value(by);
        if (is_out(targets_[k], x)) return found(by);
        if (x < nearest) nearest = x, best = by, vain = 0;
        if (!only_least || !(x * first < 0)) continue;
        double low = 0, high = by;  // of unlike signs
        for (int i = 0; i < kHalvings && work > 0; i++) {
          const double middle = low + (high - low) / 2, y = value(middle);
          if (y == 0) return found(middle);
          (y * first < 0 ? high : low) = middle;
        }
        return elsewhere();
      }
    if (only_least) break;
    move(inputs, start, line, best);
    start = inputs;
    line = direction(values_[k], start, only_least, rng);
  }
  return elsewhere();
}

namespace {

// Of two scores that of `and`: what both lack, so that each may be made up for alone; or of `or`.
TensorId both(Graph& g, TensorId a, TensorId b, bool either) {
  const TensorId zero = g.add_const(0, Type{g.type(a).dtype, {}});
  const OpKind less = either ? OpKind::Max : OpKind::Min, more = either ? OpKind::Min : OpKind::Max;
  const TensorId lack = g.add(OpKind::Add, {g.add(less, {a, zero}), g.add(less, {b, zero})});
  return g.add(OpKind::Add, {lack, g.add(more, {g.add(less, {a, b}), zero})});
}

// Numbers that tell how decisions about floats fall: above 0 if they hold, below if they do not. Or
// what is 0 where operands of comparisons are equal.
std::vector<TensorId> scores_of(Graph& g, bool ties) {
  std::vector<std::optional<TensorId>> score(g.tensors().size());
  const std::vector<bool> varies = made_of_inputs(g);
  std::vector<TensorId> all;
  const size_t count = g.ops().size();
  for (size_t i = 0; i < count; i++) {
    const Op op = g.ops()[i];
    if (!varies[op.result().index] || op.body.valid() || op.inputs.empty()) continue;
    const auto in = [&](size_t n) { return op.inputs[n]; };
    std::optional<TensorId> made;
    if (is_float(g.type(in(0)).dtype)) {
      const Outcomes holds = is_comparison(op.kind) ? outcomes(op.kind) : Outcomes{};
      if (ties) {
        if (is_comparison(op.kind)) made = g.add(OpKind::Sub, {in(0), in(1)});
      } else if (holds.less != holds.greater || is_extremum(op.kind))
        made = g.add(OpKind::Sub, {in(holds.less ? 1 : 0), in(holds.less ? 0 : 1)});
      else if (decides_by_sign(op.kind))
        made = in(0);
    } else if (op.kind == OpKind::Not) {
      if (score[in(0).index]) made = g.add(OpKind::Neg, {*score[in(0).index]});
    } else if (op.kind == OpKind::And || op.kind == OpKind::Or) {
      const auto a = score[in(0).index], b = score[in(1).index];
      if (a && b && g.type(*a).dtype == g.type(*b).dtype)
        made = both(g, *a, *b, op.kind == OpKind::Or);
    }
    if (!made) continue;
    score[op.result().index] = made;
    all.push_back(*made);
  }
  return all;
}

Thresholds sides_of(const Graph& graph, bool ties, ThreadPool* pool) {
  Graph g = without_dead_code(graph);
  std::vector<Threshold> targets;
  for (TensorId score : scores_of(g, ties)) {
    targets.push_back({score, 0, ties});
    if (!ties) targets.push_back({g.add(OpKind::Neg, {score})});
  }
  return {std::move(g), std::move(targets), {}, pool};
}

// Every element of inputs of the target's size as at one that reaches it.
Inputs spread(const Thresholds& targets, size_t k, Inputs inputs) {
  const std::vector<double> all = targets.values(k, inputs);
  const auto one = std::ranges::find_if(all, [&](double x) { return is_out(targets[k], x); });
  for (NDArray& a : inputs)
    if (one != all.end() && a.reals.size() == all.size())
      a.reals.assign(all.size(), a.reals[size_t(one - all.begin())]);
  return inputs;
}

}  // namespace

std::vector<Inputs> rare_sides(const Graph& spec, const Graph& candidate, uint64_t seed,
                               double work, ThreadPool* pool) {
  constexpr int kOrdinary = 12, kStarts = 3, kTies = 64;
  constexpr size_t kMost = 16;
  const std::vector<IntRange> ranges = integer_ranges(spec, candidate, {-3, 3});
  const auto drawn = [&](int n) {
    static const char* const families[] = {"normal", "mixed", "constants"};
    return make_inputs(spec, families[n % 3], Rng(seed).split(uint64_t(n))(), ranges);
  };
  std::vector<Inputs> found;
  const auto keep = [&](Inputs inputs) {  // indices may be made of floats
    if (is_defined_at(spec, inputs)) found.push_back(std::move(inputs));
  };
  for (const Graph* g : {&spec, &candidate}) {
    Thresholds ties = sides_of(*g, true, pool), sides = sides_of(*g, false, pool);
    const int wanted = int(std::clamp(1e6 / std::max(1.0, work), 8.0, double(kTies)));
    for (int n = 0; n < wanted && ties.count() > 0; n++) {
      Rng rng = Rng(seed).split(1000 + uint64_t(n));
      Inputs inputs = make_inputs(spec, n % 2 == 0 ? "whole" : "ties", rng(), ranges);
      double some = std::max(1e6, 4 * work);
      if (ties.reach(ties.least_reached(), inputs, rng.split(1), some)) keep(std::move(inputs));
    }
    const size_t most = found.size() + kMost;
    if (sides.count() == 0) continue;
    for (int n = 0; n < kOrdinary; n++) {
      const Inputs ordinary = drawn(n);
      for (size_t k = 0; k < sides.count(); k++) sides.look(k, ordinary);
    }
    double left = std::max(2e7, 16 * work);
    for (size_t k = 0; k < sides.count() && left > 0 && found.size() < most; k++)
      for (int n = 0; n < kStarts && left > 0 && !sides.reached(k); n++) {
        Inputs inputs = drawn(3 * n);
        double some = std::min(left, std::max(7.5e6, 16 * work));
        left -= some;
        if (sides.reach(k, inputs, Rng(seed).split(100 + 8 * k + uint64_t(n)), some)) {
          keep(spread(sides, k, inputs));
          keep(std::move(inputs));
        }
        left += std::max(0.0, some);
      }
  }
  return found;
}

}  // namespace tessera
