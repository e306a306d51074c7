#include "verify/definedness.h"

#include <algorithm>
#include <set>

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

// Whether whatever the candidate divides by is, but for its place, what the original divides by.
bool are_divisors_of(const Graph& spec, const Poles& candidate, uint64_t seed) {
  if (!candidate.all) return false;
  const FieldModel model(FieldSize::Bits61, seed);
  std::set<uint64_t> known;
  const Poles of_spec(spec);
  for (const Poles* poles : {&of_spec, &candidate}) {
    const Graph& divisors = poles->values;
    std::vector<Components> components = needed_components(divisors);
    for (Components& c : components) c |= 1;
    const FieldResult r = eval_field(divisors, model, draw_inputs(divisors, model, components));
    if (!r.ok()) return false;
    for (const FieldArray& a : r.outputs)
      for (int64_t i = 0; i < a.size(); i++) {
        if (a.flag(i) != 0) return false;
        if (poles == &of_spec)
          known.insert(a.word(0, i));
        else if (known.count(a.word(0, i)) == 0)
          return false;
      }
  }
  return true;
}

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

// Whether results can be defined though a value they were chosen from is not.
bool leaves_aside(const Graph& g) {
  const OpKind drop[] = {OpKind::Where, OpKind::Gather, OpKind::Slice, OpKind::Triu, OpKind::Tril};
  for (const Op& op : g.ops()) {
    if (std::find(std::begin(drop), std::end(drop), op.kind) != std::end(drop)) return true;
    if (op.body.valid() && leaves_aside(g.body(op))) return true;
  }
  return false;
}

}  // namespace

DefinednessTest test_definedness(Reference& spec, const Graph& candidate, uint64_t seed,
                                 double work, const std::atomic<bool>* cancel) {
  constexpr double kWork = 5e7;
  constexpr int64_t kEnough = 64, kEach = 8;
  constexpr int kLeast = 8, kMost = 4096;
  DefinednessTest test;
  for (const Graph* g : {&spec.spec(), &candidate})
    if (divides_by_small_prime(*g)) {
      test.unsupported = "a mean over a multiple of a small prime of elements";
      return test;
    }
  const Poles poles(candidate);
  test.same_divisors = !leaves_aside(spec.spec()) && are_divisors_of(spec.spec(), poles, seed);
  // A zero denominator that a decision leaves aside is met there, too.
  PoleDraws draw(spec.spec(), candidate, poles);
  const bool outside = !poles.values.outputs().empty();
  const auto enough = [&] {
    return (!outside || draw.least() >= kEach) && (poles.all || test.undefined >= kEnough);
  };
  const int draws = int(std::clamp(kWork / std::max(1.0, work), double(kLeast), double(kMost)));
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
