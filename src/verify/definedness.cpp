#include "verify/definedness.h"

#include <algorithm>

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
  SamePoles(const Graph& spec, const Graph& candidate)
      : spec_(spec), candidate_(candidate), components_(needed_components(spec)) {
    const std::vector<Components> others = needed_components(candidate);
    for (size_t k = 0; k < components_.size(); k++) components_[k] |= others[k] | 1;
  }

  bool in_draw(uint64_t seed, int number) const {
    FieldDrawRequest request;
    request.field = FieldSize::Bits61;
    request.seed = seed;
    request.redraws = 0;
    const FieldModel model(request.field, seed);
    const std::vector<FieldArray> inputs =
        drawn_inputs(spec_, candidate_, request, model, components_);
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
    // One of them, or many.
    DeemedPoles some;
    some.key = seed;
    if (number % 2 == 0)
      some.only = mine[Rng(seed).below(mine.size())];
    else
      some.halvings = number;
    const std::vector<FieldArray> s = at(spec_, some).outputs, c = at(candidate_, some).outputs;
    for (size_t k = 0; k < c.size(); k++)
      for (int64_t i = 0; i < c[k].size(); i++)
        if (c[k].flag(i) != 0 && s[k].flag(i) == 0) return false;
    return true;
  }

 private:
  const Graph &spec_, &candidate_;
  std::vector<Components> components_;
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
    if (!movable_.empty() && rng.chance(0.75)) {
      request.shift.input = movable_[rng.below(movable_.size())];
      const size_t pole = size_t(std::min_element(met_.begin(), met_.end()) - met_.begin());
      request.shift.by = to_zero(request, pole, rng());
    }
    const FieldModel model(FieldSize::Small, seed);
    const std::vector<FieldArray> now = at(request, model);
    for (size_t k = 0; k < now.size(); k++)
      for (int64_t i = 0; i < now[k].size(); i++) met_[k] += is_zero(now[k], i);
    return request;
  }
  // How often the one was that was met least.
  int64_t least() const { return met_.empty() ? 0 : *std::min_element(met_.begin(), met_.end()); }

 private:
  static bool is_zero(const FieldArray& a, int64_t i) {
    return a.flag(i) == 0 && a.word(0, i) == 0;
  }
  std::vector<FieldArray> at(const FieldDrawRequest& request, const FieldModel& model) const {
    std::vector<Components> components = needed_components(poles_);
    components[request.shift.input] |= 1;
    return eval_field(poles_, model, drawn_inputs(spec_, candidate_, request, model, components))
        .outputs;
  }
  // By how much to move the input: 0 where that does not help.
  uint64_t to_zero(FieldDrawRequest request, size_t pole, uint64_t choice) const {
    const FieldModel model(FieldSize::Small, request.seed);
    const uint64_t p = model.prime(0);
    uint64_t y[2] = {};
    for (uint64_t x : {0, 1}) {
      request.shift.by = x;
      const std::vector<FieldArray> values = at(request, model);
      if (values.empty() || values[pole].size() == 0) return 0;
      const int64_t i = int64_t(choice % uint64_t(values[pole].size()));
      if (values[pole].flag(i) != 0) return 0;
      y[x] = values[pole].value(model, 0, i);
    }
    const uint64_t slope = (y[1] + p - y[0]) % p;
    uint64_t inverse = 1;  // slope^(p − 2)
    for (uint64_t k = 0, e = p - 2, power = slope; e >> k != 0; k++, power = power * power % p)
      if (e >> k & 1) inverse = inverse * power % p;
    return (p - y[0]) % p * inverse % p;
  }

  const Graph &spec_, &candidate_, &poles_;
  std::vector<size_t> movable_;
  std::vector<int64_t> met_;
};

}  // namespace

DefinednessTest test_definedness(Reference& spec, const Graph& candidate, uint64_t seed,
                                 double work, const std::atomic<bool>* cancel) {
  constexpr double kWork = 5e7;
  constexpr int64_t kEnough = 64, kEach = 8;
  constexpr int kLeast = 8, kMost = 4096, kSame = 24;
  const int draws = int(std::clamp(kWork / std::max(1.0, work), double(kLeast), double(kMost)));
  DefinednessTest test;
  const SamePoles poles_of(spec.spec(), candidate);
  test.same_poles = true;
  for (int k = 0; test.same_poles && k < std::min(draws, kSame); k++)
    test.same_poles = poles_of.in_draw(Rng(seed).split(uint64_t(kMost + k))(), k);
  if (test.same_poles) return test;
  for (const Graph* g : {&spec.spec(), &candidate})
    if (divides_by_small_prime(*g)) {
      test.unsupported = "a mean over a multiple of a small prime of elements";
      return test;
    }
  const Poles poles(candidate);
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
  }
  if (outside) test.undefined = draw.least();
  return test;
}

}  // namespace tessera
