#include "verify/definedness.h"

#include <algorithm>
#include <cmath>

#include "base/interruption.h"
#include "base/rng.h"
#include "eval/field.h"
#include "verify/field_test.h"
#include "verify/signs.h"

namespace tessera {
namespace {

bool divides_by_small_prime(const Graph& g) {
  for (const Op& op : g.ops()) {
    if (op.kind == OpKind::Mean)
      for (int axis : g.attrs<ReduceAttrs>(op).axes)
        for (uint64_t p : kPrimesSmall)
          if (g.type(op.inputs[0]).shape[size_t(axis)].extent % int64_t(p) == 0) return true;
    if (op.body.valid() && divides_by_small_prime(g.body(op))) return true;
  }
  return false;
}

// What a program divides by at its own level, as a program.
struct Poles {
  Graph values;
  bool all = false;  // nothing else of it may be undefined
  explicit Poles(const Graph& g) : values(without_dead_code(g)) {
    Domains domains = domains_of(values);
    values.set_outputs(domains.poles);
    values = without_dead_code(values);
    all = domains.total;
  }
};

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
      return eval_field(g, model, inputs, options);
    };
    const auto words = [&](const Graph& g) {
      std::vector<uint64_t> met;
      DeemedPoles none;
      none.met = &met;
      if (!at(g, none).ok()) met.clear();
      std::sort(met.begin(), met.end());
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
    const std::vector<FieldArray> s = at(spec_, some).outputs, c = at(candidate_, some).outputs;
    for (size_t k = 0; k < c.size(); k++)
      for (int64_t i = 0; i < c[k].size(); i++)
        if (c[k].flag(i) != 0 && s[k].flag(i) == 0) return false;
    return true;
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
    const size_t pole = size_t(std::min_element(met_.begin(), met_.end()) - met_.begin());
    if (!movable_.empty() && rng.chance(0.75)) {
      request.shift.input = movable_[rng.below(movable_.size())];
      request.shift.by = to_zero(request, pole, rng());
    }
    const FieldModel model(FieldSize::Small, seed);
    const std::vector<FieldArray> now = at(request, model);
    zero_.assign(met_.size(), false);
    for (size_t k = 0; k < now.size(); k++)
      for (int64_t i = 0; i < now[k].size(); i++) zero_[k] = zero_[k] || is_zero(now[k], i);
    return request;
  }
  // How the programs were at these inputs: zeros count where they reach a result.
  void judged(int64_t undefined) {
    for (size_t k = 0; undefined > 0 && k < met_.size(); k++) met_[k] += zero_[k];
  }
  // In how many draws the one was zero that was so least.
  int64_t least() const { return met_.empty() ? 0 : *std::min_element(met_.begin(), met_.end()); }

 private:
  // In all components: one inside an exponential is looked at in another than one outside.
  static bool is_zero(const FieldArray& a, int64_t i) {
    return a.flag(i) == 0 && a.word(0, i) == 0 && a.word(1, i) == 0 && a.word(2, i) == 0;
  }
  std::vector<FieldArray> at(const FieldDrawRequest& request, const FieldModel& model) const {
    FieldOptions all;
    all.outputs = 7;
    const std::vector<Components> components(spec_.inputs().size(), 7);
    return eval_field(poles_, model, drawn_inputs(spec_, candidate_, request, model, components),
                      all)
        .outputs;
  }
  // By how much to move the input, where that helps: the pole is a polynomial of that, of which
  // the first three values tell if its degree is at most 2.
  std::array<uint64_t, 3> to_zero(FieldDrawRequest request, size_t pole, uint64_t choice) const {
    const FieldModel model(FieldSize::Small, request.seed);
    std::array<uint64_t, 3> by{}, y[3];
    for (uint64_t x : {0, 1, 2}) {
      request.shift.by = {x, x, x};
      const std::vector<FieldArray> values = at(request, model);
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

}  // namespace

std::vector<std::vector<NDArray>> inputs_at_poles(const Graph& spec, const Graph& candidate,
                                                  uint64_t seed, double work, ThreadPool* pool) {
  const int tries = int(std::clamp(1e7 / std::max(1.0, work), 4.0, 48.0));
  const Poles of[] = {Poles(candidate), Poles(spec)};
  std::vector<size_t> movable;
  for (size_t k = 0; k < spec.inputs().size(); k++)
    if (is_float(spec.type(spec.inputs()[k]).dtype)) movable.push_back(k);
  std::vector<std::vector<NDArray>> found;
  if (movable.empty()) return found;
  for (int t = 0; t < tries; t++) {
    const Graph& poles = of[t % 2].values;
    const size_t n = poles.outputs().size();
    if (n == 0) continue;
    Rng rng = Rng(seed).split(uint64_t(t));
    // Equal numbers share a pole; unlike ones show it beside what is defined.
    const std::vector<NDArray> start =
        size_t(t / 2) / n % 2 == 0
            ? tie_inputs(spec, candidate, rng())
            : make_inputs(spec, "normal", rng(), integer_ranges(spec, candidate, {-3, 3}));
    const size_t input = movable[rng.below(movable.size())];
    const uint64_t choice = rng();
    std::vector<NDArray> at;
    const auto value = [&](double by) {
      at = start;
      for (double& x : at[input].reals) x = round_to(at[input].dtype, x + by);
      const NDArray y = eval(poles, at, {Precision::Exact, pool, {}})[size_t(t / 2) % n];
      return y.reals.empty() ? NAN : y.reals[choice % y.reals.size()];
    };
    const double low = value(0), slope = value(1) - low;
    if (std::isfinite(low / slope) && value(-low / slope) == 0) found.push_back(std::move(at));
  }
  return found;
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
    if (r.candidate_undefined > 0) {
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
