#include "verify/definedness.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "eval/field.h"
#include "ir/walk.h"
#include "verify/driven_inputs.h"
#include "verify/field_test.h"
#include "verify/signs.h"

namespace tessera {
namespace {

bool divides_by_small_prime(const Graph& g) {
  return any_op(
      g,
      [](const Graph& at, const Op& op) {
        if (op.kind != OpKind::Mean) return false;
        return std::ranges::any_of(
            kPrimesSmall,
            [&](uint64_t p) {
              return std::ranges::any_of(
                  at.attrs<ReduceAttrs>(op).axes,
                  [&](int axis) {
                    return at.type(op.inputs[0]).shape[size_t(axis)].extent % int64_t(p) == 0;
                  });
            });
      });
}

// What a program divides by at its own level, as a program.
struct Poles {
  Graph values;
  bool all = false;  // nothing else of it may be undefined
  explicit Poles(const Graph& g) : values(without_dead_code(g)) {
    Domains domains = domains_of(values);
    std::vector<TensorId> zeros = domains.poles;
    for (const Domains::Base& b : domains.bases) {
      if (!b.open) continue;
      const Rational shift = -int64_t(b.least);
      zeros.push_back(
          values.add(OpKind::Add,
                     {b.operand, values.add_const(shift, Type{values.type(b.operand).dtype, {}})}));
    }
    values.set_outputs(zeros);
    values = without_dead_code(values);
    all = domains.total;
  }
};

// Whether an element of the candidate's is undefined where the original's is defined.
bool is_alone(const std::vector<FieldArray>& candidate, const std::vector<FieldArray>& spec) {
  for (size_t k = 0; k < std::min(candidate.size(), spec.size()); k++)
    for (int64_t i = 0; i < candidate[k].size(); i++)
      if (candidate[k].flag(i) != 0 && spec[k].flag(i) == 0) return true;
  return false;
}

// Whether, by a number of draws, the original is undefined wherever the candidate is, whatever
// values of divisors and of operands of roots are poles: those of the candidate have to be values
// of the original's, in the same places.
class SamePoles {
 public:
  SamePoles(const Graph& spec, const Graph& candidate, const Graph& poles)
      : spec_(spec), candidate_(candidate), poles_(poles), components_(spec.inputs().size(), 7) {}

  int count() const { return int(poles_.outputs().size()); }  // of divisors
  bool in_draw(uint64_t seed, int number) const {
    FieldDrawRequest request;
    request.field = FieldSize::Bits61;
    request.seed = seed;
    request.redraws = 0;
    const FieldModel model(request.field, seed);
    std::vector<FieldArray> inputs = drawn_inputs(spec_, candidate_, request, model, components_);
    for (FieldArray& a : inputs) empty_rows(a, Rng(seed).split(3), number);
    const auto at = [&](const Graph& g, const DeemedPoles& poles) {
      FieldOptions options;
      options.deemed = &poles;
      options.outputs = 7;  // of constants, too, all that there is of inputs
      return eval_field(g, model, inputs, options);
    };
    const auto words = [&](const Graph& g) {
      std::vector<uint64_t> met;
      DeemedPoles none;
      none.met = &met;
      if (!at(g, none).ok()) met.clear();
      std::ranges::sort(met);
      met.erase(std::unique(met.begin(), met.end()), met.end());
      return met;
    };
    const std::vector<uint64_t> theirs = words(spec_), mine = words(candidate_);
    if (mine.empty() || !std::includes(theirs.begin(), theirs.end(), mine.begin(), mine.end()))
      return false;
    // An element of each divisor in turn, one of all, or many.
    DeemedPoles some;
    Rng rng = Rng(seed).split(2);
    some.key = seed;
    some.only[0] = mine[rng.below(mine.size())];
    if (number % 4 == 3) some.halvings = 1 + number / 4 % 12;
    if (const size_t n = poles_.outputs().size(); n > 0 && number % 2 == 0) {
      FieldOptions all;
      all.outputs = 7;
      const FieldResult r = eval_field(poles_, model, inputs, all);
      if (!r.ok()) return false;
      const FieldArray& a = r.outputs[size_t(number / 2) % n];
      const auto i = int64_t(rng.below(uint64_t(std::max<int64_t>(1, a.size()))));
      for (int k = 0; k < 3 && a.size() > 0; k++)
        some.only[size_t(k)] = DeemedPoles::key_of(DeemedPoles::Zero, a.word(k, i));
    }
    return !is_alone(at(candidate_, some).outputs, at(spec_, some).outputs);
  }

 private:
  // Masks and counts of nothing, and of everything.
  static void empty_rows(FieldArray& a, Rng rng, int number) {
    const int64_t row = a.shape.empty() ? 1 : a.shape.back();
    bool change = false;
    for (size_t i = 0; i < a.ints.size() && number % 3 != 0; i++) {
      if (int64_t(i) % row == 0) change = rng.chance(0.5);
      if (change) a.ints[i] = number % 3 == 1 || a.dtype != DType::Bool ? 0 : 1;
    }
  }

  const Graph &spec_, &candidate_, &poles_;
  const std::vector<Components> components_;
};

// Draws at which poles are met: by chance once in some thousand looks, and by moving an input so
// that one of them is zero where it is linear in that.
class PoleDraws {
 public:
  PoleDraws(const Graph& spec, const Graph& candidate, const Poles& poles)
      : spec_(spec), candidate_(candidate), poles_(poles.values), met_(poles_.outputs().size(), 0) {
    for (size_t k = 0; k < spec.inputs().size(); k++)
      if (is_float(spec.type(spec.inputs()[k]).dtype)) movable_.push_back(k);
  }

  FieldDrawRequest next(uint64_t seed) {
    FieldDrawRequest request;
    request.field = FieldSize::Small;
    request.seed = seed;
    request.redraws = 0;
    if (met_.empty()) return request;
    Rng rng = Rng(seed).split(1);
    const size_t pole = size_t(std::ranges::min_element(met_) - met_.begin());
    if (!movable_.empty() && rng.chance(0.75)) {
      request.shift.input = movable_[rng.below(movable_.size())];
      request.shift.by = to_zero(request, pole, rng());
    }
    const FieldModel model(FieldSize::Small, seed);
    const std::vector<FieldArray> now = at(poles_, request, model);
    zero_.assign(met_.size(), false);
    for (size_t k = 0; k < now.size(); k++)
      for (int64_t i = 0; i < now[k].size(); i++) zero_[k] = zero_[k] || is_zero(now[k], i);
    return request;
  }
  // Whether divisors that are zero do so, whatever roots and logarithms are: many of the original's
  // are hardly ever defined all, and hide what else is not.
  bool differ_at_zeros(const FieldDrawRequest& request) const {
    const FieldModel model(FieldSize::Small, request.seed);
    DeemedPoles zeros;
    zeros.only[0] = DeemedPoles::key_of(DeemedPoles::Zero, 0);
    return is_alone(at(candidate_, request, model, &zeros), at(spec_, request, model, &zeros));
  }
  // How the programs were at these inputs: zeros count where they reach a result.
  void judged(int64_t undefined) {
    for (size_t k = 0; undefined > 0 && k < met_.size(); k++) met_[k] += zero_[k];
  }
  // In how many draws the one was zero that was so least.
  int64_t least() const { return met_.empty() ? 0 : *std::ranges::min_element(met_); }

 private:
  // In all components: one inside an exponential is looked at in another than one outside.
  static bool is_zero(const FieldArray& a, int64_t i) {
    return a.flag(i) == 0 && a.word(0, i) == 0 && a.word(1, i) == 0 && a.word(2, i) == 0;
  }
  std::vector<FieldArray> at(const Graph& g, const FieldDrawRequest& request,
                             const FieldModel& model, const DeemedPoles* deemed = nullptr) const {
    FieldOptions all;
    all.outputs = 7;
    all.deemed = deemed;
    const std::vector<Components> components(spec_.inputs().size(), 7);
    return eval_field(g, model, drawn_inputs(spec_, candidate_, request, model, components), all)
        .outputs;
  }
  // By how much to move the input, where that helps: the pole is a polynomial of that, of which
  // the first three values tell if its degree is at most 2.
  std::array<uint64_t, 3> to_zero(FieldDrawRequest request, size_t pole, uint64_t choice) const {
    const FieldModel model(FieldSize::Small, request.seed);
    std::array<uint64_t, 3> by{}, y[3];
    for (uint64_t x : {0, 1, 2}) {
      request.shift.by = {x, x, x};
      const std::vector<FieldArray> values = at(poles_, request, model);
      if (values.empty() || values[pole].size() == 0) return {};
      const int64_t i = int64_t(choice % uint64_t(values[pole].size()));
      if (values[pole].flag(i) != 0) return {};
      for (int k = 0; k < 3; k++) y[x][size_t(k)] = values[pole].value(model, k, i);
    }
    for (size_t k = 0; k < 3; k++) {
      const uint64_t p = model.prime(int(k)), half = (p + 1) / 2;
      const uint64_t a = (y[2][k] + y[0][k] + 2 * (p - y[1][k])) % p * half % p;
      const uint64_t b = (y[1][k] + 2 * p - y[0][k] - a) % p;
      for (uint64_t x = 0; x < p; x++)
        if ((a * x % p * x + b * x + y[0][k]) % p == 0) {
          by[k] = x;
          break;
        }
    }
    return by;
  }

  const Graph &spec_, &candidate_, &poles_;
  std::vector<size_t> movable_;
  std::vector<int64_t> met_;
  std::vector<bool> zero_;  // of the last draw
};

// Nothing where an index is out of range.
std::optional<std::vector<NDArray>>
eval_where_defined(const Graph& g, const std::vector<NDArray>& inputs, const EvalOptions& options) {
  try {
    return eval(g, inputs, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::BadInput) throw;
    return std::nullopt;
  }
}

// Whether it is an operator with a domain, of one of these operands.
bool is_partial(const Op& op, const std::vector<TensorId>& operands) {
  const auto reads = [&](TensorId t) { return std::ranges::find(op.inputs, t) != op.inputs.end(); };
  return has(op.kind, algebra::Partial) && std::ranges::any_of(operands, reads);
}

// The operands of a program's own operators that may be out of their domains, and the results of
// these operators.
class Operands {
 public:
  Operands(const Graph& g, ThreadPool* pool) : targets_(targets_of(g, pool, with_results_)) {}

  size_t count() const { return targets_.count(); }
  size_t with_results() const { return with_results_; }
  // Values that are; results are none, as those of 0 and 0 or multiplied with 0 are.
  std::vector<double> outside(size_t k) const {
    if (k >= count()) return {NAN};
    const auto [unused, least, only_least] = targets_[k];
    if (only_least) return {least};
    return {least, least - 1};
  }
  bool complete() const {
    for (size_t k = 0; k < count(); k++)
      if (!targets_.reached(k)) return false;
    return true;
  }
  std::vector<double> values(size_t k, const std::vector<NDArray>& inputs) const {
    return targets_.values(k, inputs);
  }
  // An element of the operand that was so least.
  bool leave_domain(std::vector<NDArray>& inputs, Rng rng, double& work) {
    return targets_.reach(targets_.least_reached(), inputs, rng, work);
  }

 private:
  static Thresholds targets_of(const Graph& graph, ThreadPool* pool, size_t& all) {
    Graph g = without_dead_code(graph);
    const Domains domains = domains_of(g);
    std::vector<TensorId> operands = domains.poles, results;
    auto targets = mapped(operands, [&](TensorId t) { return Threshold{t, 0, true}; });
    for (const Domains::Base& b : domains.bases) {
      operands.push_back(b.operand);
      targets.push_back({b.operand, b.least, b.is_least});
    }
    for (const Op& op : g.ops())
      if (is_partial(op, operands)) results.push_back(op.result());
    all = operands.size() + results.size();
    return {std::move(g), std::move(targets), results, pool};
  }

  size_t with_results_ = 0;
  Thresholds targets_;
};

// Equal numbers share a pole; unlike ones show it beside what is defined.
std::vector<NDArray> small_inputs(const Graph& spec, const Graph& candidate, bool ties,
                                  uint64_t seed) {
  return ties ? tie_inputs(spec, candidate, seed)
              : make_inputs(spec, "normal", seed, integer_ranges(spec, candidate, {-3, 3}));
}

// Whether an operator leaves infinite or none what has an operand that is so.
bool passes_on(const Graph& g, const Op& op) {
  if (op.body.valid()) {
    const std::vector<Op>& ops = g.body(op).ops();
    return std::ranges::all_of(ops, [&](const Op& o) { return passes_on(g.body(op), o); });
  }
  if (op.kind == OpKind::Accum) return !decides(op);
  if (op.kind == OpKind::Cast)
    return is_float(g.type(op.result()).dtype) && is_float(g.type(op.inputs.back()).dtype);
  return has(op.kind, algebra::Movement) || has(op.kind, algebra::Ring) || is_leaf(op.kind) ||
         is_tile(op.kind) ||
         is_one_of(op.kind, OpKind::Abs, OpKind::Sqrt, OpKind::Log, OpKind::Log1p, OpKind::Mean);
}

}  // namespace

bool is_made_finite(const Graph& g, const std::vector<TensorId>& values) {
  std::vector<bool> follows(g.tensors().size());
  for (TensorId t : values) follows[t.index] = true;
  for (const Op& op : g.ops()) {
    const bool reads =
        std::ranges::any_of(op.inputs, [&](TensorId in) { return follows[in.index]; });
    if (reads && !passes_on(g, op)) return true;
    for (uint32_t r = 0; r < op.num_results; r++)
      follows[op.result(r).index] = follows[op.result(r).index] || reads;
  }
  return false;
}

bool hides_undefined(const Graph& g) {
  const Domains domains = domains_of(g);
  std::vector<TensorId> operands = domains.poles, results;
  for (const Domains::Base& b : domains.bases) operands.push_back(b.operand);
  for (const Op& op : g.ops()) {
    const bool own = is_partial(op, operands);
    const bool inside = op.body.valid() && !is_total(g) && !is_total(g.body(op));
    if (inside && hides_undefined(g.body(op))) return true;
    for (uint32_t r = 0; r < op.num_results && (own || inside); r++)
      results.push_back(op.result(r));
  }
  return is_made_finite(g, results);
}

OutsideInputs inputs_outside(const Graph& spec, const Graph& candidate,
                             const std::vector<std::vector<NDArray>>& starts, uint64_t seed,
                             double work, ThreadPool* pool) {
  const int tries = 48 + int(8 * starts.size());
  double left = std::max(2e7, 16 * work);
  Operands of[] = {{candidate, pool}, {spec, pool}};
  OutsideInputs found;
  for (int t = 0; t < tries && left > 0; t++) {
    Operands& operands = of[t % 2];
    if (operands.count() == 0) continue;
    Rng rng = Rng(seed).split(uint64_t(t));
    const auto n = size_t(t / 2);
    std::vector<NDArray> inputs =
        !starts.empty() && n % 2 == 1
            ? starts[n / 2 % starts.size()]
            : small_inputs(spec, candidate, n / operands.count() % 2 == 0, rng());
    if (operands.leave_domain(inputs, rng.split(1), left)) found.sets.push_back(std::move(inputs));
  }
  found.complete = of[0].complete() && of[1].complete();
  return found;
}

namespace {

// Both programs at the same inputs, with some elements always taken for others, and with more.
class SupposedRuns {
 public:
  SupposedRuns(const Graph& spec, const Graph& candidate, const std::vector<NDArray>& inputs,
               bool infinities, std::vector<Substitution> always, ThreadPool* pool)
      : spec_(spec), candidate_(candidate), inputs_(inputs), infinities_(infinities),
        always_(std::move(always)), pool_(pool), as_is_(at({})) {}

  // Whether the rewrite computes nothing else than before where the original is finite (or, of
  // `infinities`, anywhere).
  bool same(std::vector<Substitution> supposed) const {
    const Both both = at(std::move(supposed));
    if (!both.spec) return true;  // an index out of range
    if (!both.candidate) return false;
    for (size_t k = 0; k < both.spec->size(); k++) {
      const NDArray& a = (*both.spec)[k];
      double scale = 0;
      for (double x : a.reals)
        if (std::isfinite(x)) scale = std::max(scale, std::fabs(x));
      for (size_t i = 0; i < size_t(a.size()); i++)
        if (differ(both, k, i, scale) &&
            !(as_is_.spec && as_is_.candidate && differ(as_is_, k, i, scale)))
          return false;
    }
    return true;
  }

 private:
  struct Both {
    std::optional<std::vector<NDArray>> spec, candidate;
  };
  Both at(std::vector<Substitution> supposed) const {
    supposed.insert(supposed.end(), always_.begin(), always_.end());
    const EvalOptions how{Precision::Exact, pool_, {}, std::move(supposed)};
    return {eval_where_defined(spec_, inputs_, how), eval_where_defined(candidate_, inputs_, how)};
  }
  bool differ(const Both& both, size_t k, size_t i, double scale) const {
    const NDArray &a = (*both.spec)[k], &b = (*both.candidate)[k];
    if (!is_float(a.dtype)) return a.ints[i] != b.ints[i];
    const double x = a.reals[i], y = b.reals[i];
    if (!std::isfinite(x)) return infinities_ && x != y && !(std::isnan(x) && std::isnan(y));
    return !(std::fabs(x - y) <= 1e-6 * std::fabs(x) + 1e-9 * scale);
  }

  const Graph &spec_, &candidate_;
  const std::vector<NDArray>& inputs_;
  bool infinities_;
  std::vector<Substitution> always_;
  ThreadPool* pool_;
  Both as_is_;
};

// What a program compares, at its own level.
class Comparisons {
 public:
  Comparisons(const Graph& graph, ThreadPool* pool)
      : values_(without_dead_code(graph)), pool_(pool) {
    std::vector<TensorId> operands;
    for (const Op& op : values_.ops())
      if (is_comparison(op.kind) && is_float(values_.type(op.inputs[0]).dtype))
        operands.insert(operands.end(), {op.inputs[0], op.inputs[1]});
    values_.set_outputs(operands);
    values_ = without_dead_code(values_);
  }

  // Some of them, at one element or everywhere, taken to fall otherwise than most do there.
  std::vector<Substitution> forced(const std::vector<NDArray>& inputs, Rng rng) const {
    std::vector<Substitution> all;
    const auto operands = eval_where_defined(values_, inputs, {Precision::Exact, pool_, {}});
    for (size_t k = 0; operands && k < operands->size(); k += 2) {
      size_t of = k + size_t(rng.below(2));  // whichever is moved
      if ((*operands)[of].size() == 1) of ^= 1;
      std::vector<double> moved = (*operands)[of].reals;
      const std::vector<double>& others = (*operands)[of ^ 1].reals;
      if (moved.empty() || others.empty() || rng.chance(0.25)) continue;
      const double to = others[rng.below(others.size())], sizes[] = {0, 1e-3, 1, 50};
      const auto less = std::ranges::count_if(moved, [&](double x) { return x < to; });
      const double by = size_t(less) * 2 > moved.size() ? 1 : -1, off = by * sizes[rng.below(4)];
      if (rng.chance(0.25)) moved = {moved[rng.below(moved.size())]};
      std::erase_if(moved, [](double x) { return !std::isfinite(x); });
      std::ranges::sort(moved);
      all.push_back({std::move(moved), to + off});
    }
    return all;
  }

 private:
  Graph values_;
  ThreadPool* pool_;
};

}  // namespace

bool is_alike_outside(const Graph& spec, const Graph& candidate, bool infinities,
                      const std::vector<std::vector<NDArray>>& others, uint64_t seed, double work,
                      ThreadPool* pool) {
  const Operands of[] = {{spec, pool}, {candidate, pool}};
  std::vector<std::pair<const Operands*, size_t>> all;
  for (size_t k = 0; k < of[0].with_results(); k++) all.emplace_back(&of[0], k);
  for (size_t k = 0; k < of[1].count(); k++) all.emplace_back(&of[1], k);
  std::set<double> constants{0, 0.5, 1, 2};
  for (double x : turning_points(spec, candidate)) constants.insert(std::fabs(x));
  // Elements are told by their values; of too many, some would be taken for others.
  constexpr size_t kUnlike = 61, kMostUnlike = 512;
  const int draws = int(std::clamp(1e7 / std::max(1.0, work * double(all.size())), 2.0, 16.0));
  const Comparisons comparisons(spec, pool);
  for (int t = 0; t < 2 * draws + int(others.size()); t++) {
    Rng rng = Rng(seed).split(uint64_t(t));
    std::vector<NDArray> inputs = t < 2 * draws
                                      ? make_inputs(spec, t % 2 == 0 ? "normal" : "constants",
                                                    rng(), integer_ranges(spec, candidate, {-3, 3}))
                                      : others[size_t(t - 2 * draws)];
    for (NDArray& a : inputs)  // beside constants, so that no two numbers are equal by chance
      for (size_t i = 0; i < a.reals.size(); i++) {
        a.reals[i] *= 1 + 1e-2 * (rng.unit() - 0.5);
        if (t < 2 * draws && i >= kUnlike) a.reals[i] = a.reals[i - kUnlike];
      }
    std::vector<Substitution> forced;
    if (t >= draws) forced = comparisons.forced(inputs, rng.split(1));
    const SupposedRuns runs(spec, candidate, inputs, infinities, std::move(forced), pool);
    // An element, all of them, and an element beside one of another operand or its neighbour.
    const uint64_t choice = rng();
    std::vector<Substitution> together;
    for (const auto& [operands, k] : all) {
      const std::vector<double> outside = operands->outside(k);
      std::vector<double> values = operands->values(k, inputs);
      if (values.empty()) continue;
      for (double& x : values)  // of no input: constants stay what they are
        if (constants.count(std::fabs(x)) != 0) x = NAN;
      const double one = values[choice % values.size()],
                   next = values[(choice + rng.below(2)) % values.size()];
      const bool is_operand = k < operands->count();
      std::erase_if(values, [](double x) { return std::isnan(x); });
      std::ranges::sort(values);
      values.erase(std::unique(values.begin(), values.end()), values.end());
      if (const size_t n = values.size() / kMostUnlike; n > 1)
        std::erase_if(values, [&, i = size_t(0)](double) mutable { return i++ % n != 0; });
      for (double by : outside)
        if (!runs.same({Substitution{{one}, by}}) ||
            (is_operand && !runs.same({Substitution{values, by}})))
          return false;
      if (is_operand)  // a result would hide what its operands make
        together.push_back(
            {{std::min(one, next), std::max(one, next)}, outside[rng.below(outside.size())]});
    }
    if (together.size() > 1 && !runs.same(together)) return false;
    for (Substitution& s : together)
      if (!runs.same({s})) return false;
  }
  return true;
}

DefinednessTest test_definedness(Reference& spec, const Graph& candidate, uint64_t seed,
                                 double work, const std::atomic<bool>* cancel) {
  constexpr double kWork = 5e7;
  constexpr int64_t kEnough = 64, kEach = 8;
  constexpr int kLeast = 8, kMost = 4096, kSame = 24;
  const int draws = int(std::clamp(kWork / std::max(1.0, work), double(kLeast), double(kMost)));
  DefinednessTest test;
  const Poles poles(candidate);
  const SamePoles same(spec.spec(), candidate, poles.values);
  test.same_poles = true;
  for (int k = 0; test.same_poles && k < std::min(draws, kSame + 16 * same.count()); k++)
    test.same_poles = same.in_draw(Rng(seed).split(uint64_t(kMost + k))(), k);
  if (test.same_poles) return test;
  for (const Graph* g : {&spec.spec(), &candidate})
    if (divides_by_small_prime(*g)) {
      test.unsupported = "a mean over a multiple of a small prime of elements";
      return test;
    }
  // A zero denominator that a decision leaves aside is met there, too.
  PoleDraws draw(spec.spec(), candidate, poles);
  const bool outside = !poles.values.outputs().empty();
  const auto enough = [&] {
    return (!outside || draw.least() >= kEach) && (poles.all || test.undefined >= kEnough);
  };
  while (test.draws < draws && (test.draws < kLeast || !enough())) {
    if (cancel != nullptr && cancel->load()) return test;
    FieldDrawRequest request = draw.next(Rng(seed).split(uint64_t(test.draws))());
    request.cancel = cancel;
    const FieldDrawResult r = field_draw(spec, candidate, request);
    if (!r.unsupported.empty()) {
      test.unsupported = r.unsupported;
      return test;
    }
    test.draws++;
    if (r.candidate_undefined > 0 || (r.both_undefined > 0 && draw.differ_at_zeros(request))) {
      test.differs = true;
      return test;
    }
    test.undefined += r.both_undefined;
    draw.judged(r.both_undefined);
  }
  if (outside) test.undefined = draw.least();
  return test;
}

}  // namespace tessera
