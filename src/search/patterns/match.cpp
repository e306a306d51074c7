#include "search/patterns/match.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "eval/eval.h"

namespace tessera::patterns {
namespace {

constexpr size_t kMaxTrials = 2000, kMaxFound = 4;
constexpr double kClose = 1e-8;

// Largest difference, relative to the largest number; NaNs and infinities equal themselves.
double difference(const NDArray& a, const NDArray& b) {
  if (a.shape != b.shape || a.reals.size() != b.reals.size()) return HUGE_VAL;
  double most = 0, scale = 1e-30;
  for (size_t i = 0; i < a.reals.size(); i++) {
    const double x = a.reals[i], y = b.reals[i];
    if (std::isnan(x) && std::isnan(y)) continue;
    if (x == y) {
      if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
      continue;
    }
    if (!std::isfinite(x) || !std::isfinite(y)) return HUGE_VAL;
    most = std::max(most, std::abs(x - y));
    scale = std::max({scale, std::abs(x), std::abs(y)});
  }
  return most / scale;
}

class Matcher {
 public:
  Matcher(const Pattern& p, const Graph& region, const Graph& small, uint64_t seed)
      : p_(p), region_(region), small_(small),
        dtype_(region.tensor(region.outputs()[0]).type.dtype) {
    evaluate(seed);
  }

  Matches run() {
    Matches result;
    if (values_.empty()) {
      result.why = "its values cannot be computed";
      return result;
    }
    const Tensor& wanted = p_.def.tensor(p_.def.outputs()[0]);
    for (uint32_t i = uint32_t(region_.ops().size()); i-- > 0 && result.found.size() < kMaxFound;) {
      const Op& op = region_.op(OpId(i));
      const TensorId v = op.result();
      if (is_leaf(op.kind) || region_.tensor(v).type.rank() != wanted.type.rank() ||
          region_.tensor(v).type.dtype != dtype_)
        continue;
      if (!(v == region_.outputs()[0]) && (!p_.epilogue || !epilogue(region_, v))) continue;
      value_ = v;
      feeds_ = feeding(v);
      match_ = Match{std::vector<TensorId>(p_.def.inputs().size()),
                     std::vector<Rational>(p_.def.inputs().size()),
                     v,
                     {}};
      Bound bound;
      if (!unify(wanted.type.shape, v, bound)) continue;
      if (assign(0, bound)) result.found.push_back(match_);
    }
    if (result.found.empty()) result.why = why();
    return result;
  }

 private:
  struct Bound {
    Values whole, small;
  };

  void evaluate(uint64_t seed) {
    std::vector<NDArray> inputs;
    Rng rng(seed + 1);
    for (TensorId t : small_.inputs()) {
      const Type& type = small_.tensor(t).type;
      NDArray a = NDArray::zeros(type.dtype, extents(type.shape));
      // Some are negative; few are near zero.
      for (double& x : a.reals) x = round_to(type.dtype, 2.5 * rng.unit() - 1);
      inputs.push_back(std::move(a));
    }
    Graph all = small_;
    std::vector<TensorId> outputs;
    for (uint32_t i = 0; i < small_.tensors().size(); i++) outputs.push_back(TensorId(i));
    all.set_outputs(outputs);
    try {
      values_ = eval(all, inputs);
    } catch (const Error&) {
      values_.clear();
    }
  }

  // The values that v is made of.
  std::vector<bool> feeding(TensorId v) const {
    std::vector<bool> feeds(region_.tensors().size(), false);
    feeds[v.index] = true;
    for (uint32_t i = uint32_t(region_.ops().size()); i-- > 0;) {
      const Op& op = region_.op(OpId(i));
      if (feeds[op.result().index])
        for (TensorId t : op.inputs) feeds[t.index] = true;
    }
    feeds[v.index] = false;
    return feeds;
  }

  static bool unify(const Shape& pattern, const Shape& shape, Values& bound) {
    if (pattern.size() != shape.size()) return false;
    for (size_t i = 0; i < shape.size(); i++) {
      if (!pattern[i].symbolic()) {
        if (pattern[i].extent != shape[i].extent) return false;
      } else if (bound.emplace(pattern[i].symbol, shape[i].extent).first->second !=
                 shape[i].extent) {
        return false;
      }
    }
    return true;
  }
  bool unify(const Shape& pattern, TensorId t, Bound& bound) const {
    if (!unify(pattern, region_.tensor(t).type.shape, bound.whole)) return false;
    // Numbers of the pattern are sizes of the program, which are smaller here.
    Shape open = pattern;
    for (size_t i = 0; i < open.size(); i++)
      if (!open[i].symbolic()) open[i] = small_.tensor(t).type.shape[i];
    return unify(open, small_.tensor(t).type.shape, bound.small);
  }

  bool assign(size_t input, const Bound& bound) {
    if (input == p_.def.inputs().size()) return equal(bound);
    const Type& type = p_.def.tensor(p_.def.inputs()[input]).type;
    if (p_.is_number(input)) {
      for (const Rational& r : numbers()) {
        if (trials_ >= kMaxTrials) return false;
        match_.numbers[input] = r;
        if (assign(input + 1, bound)) return true;
      }
      return false;
    }
    for (uint32_t t = 0; t < region_.tensors().size(); t++) {
      if (!feeds_[t] || trials_ >= kMaxTrials) continue;
      const Op& from = region_.op(region_.tensor(TensorId(t)).producer);
      if (from.constant() || region_.tensor(TensorId(t)).type.dtype != dtype_) continue;
      Bound more = bound;
      if (!unify(type.shape, TensorId(t), more)) continue;
      match_.inputs[input] = TensorId(t);
      if (assign(input + 1, more)) return true;
    }
    return false;
  }

  bool equal(const Bound& bound) {
    trials_++;
    match_.symbols = bound.whole;
    std::vector<NDArray> inputs;
    for (size_t i = 0; i < match_.inputs.size(); i++) {
      if (p_.is_number(i))
        inputs.push_back(NDArray::of(DType::F64, {}, {match_.numbers[i].to_double()}));
      else
        inputs.push_back(values_[match_.inputs[i].index]);
      inputs.back().dtype = dtype_;
    }
    double off = HUGE_VAL;
    try {
      off = difference(values_[value_.index], eval(meaning(bound.small), inputs)[0]);
    } catch (const Error&) {
      return false;
    }
    if (off < nearest_) {
      nearest_ = off;
      nearest_match_ = match_;
    }
    return off < kClose;
  }

  // What a number of the def may be: a constant that v is made of, its reciprocal (x / 8 for
  // x · 0.125), and what leaves things as they are.
  std::vector<Rational> numbers() const {
    std::vector<Rational> found;
    const auto add = [&](const Rational& r) {
      if (!std::ranges::count(found, r)) found.push_back(r);
    };
    for (const Op& op : region_.ops()) {
      if (!op.constant() || !feeds_[op.result().index]) continue;
      const Rational value = *op.constant();
      add(value);
      if (const auto inverse = value.is_zero() ? std::nullopt : value.inverse()) add(*inverse);
    }
    add(Rational(1));
    add(Rational(0));
    return found;
  }

  // The def at small sizes; mostly the same ones.
  const Graph& meaning(const Values& symbols) {
    const auto known = meanings_.find(symbols);
    if (known != meanings_.end()) return known->second;
    return meanings_.emplace(symbols, bound_def(p_, symbols, dtype_)).first->second;
  }

  std::string why() const {
    if (nearest_match_.inputs.empty())
      return trials_ == 0 ? "no values of it have the shapes of the pattern's inputs and result"
                          : "the pattern's meaning is undefined for its values";
    std::string text = "no values of it give the pattern's meaning; nearest is ";
    for (size_t i = 0; i < nearest_match_.inputs.size(); i++)
      text += (i ? ", " : "") + p_.def.tensor(p_.def.inputs()[i]).name + " = " +
              (p_.is_number(i) ? nearest_match_.numbers[i].str() : label(nearest_match_.inputs[i]));
    return text + ", where the pattern computes something else than " +
           label(nearest_match_.value) + " (off by " +
           (std::isfinite(nearest_) ? significant(nearest_, 1)
                                    : "infinity, or undefined in places") +
           " of its largest element)";
  }
  std::string label(TensorId t) const {
    const Op& from = region_.op(region_.tensor(t).producer);
    if (from.constant()) return from.constant()->str();
    const std::string& name = region_.tensor(t).name;
    return name.empty() ? std::string("the ") + tessera::name(from.kind) : name;
  }

  const Pattern& p_;
  const Graph &region_, &small_;
  DType dtype_;
  std::vector<NDArray> values_;  // by tensor, at small sizes
  TensorId value_;
  std::vector<bool> feeds_;
  Match match_, nearest_match_;
  double nearest_ = std::numeric_limits<double>::infinity();
  size_t trials_ = 0;
  std::map<Values, Graph> meanings_;
};

}  // namespace

std::optional<std::vector<OpId>> epilogue(const Graph& region, TensorId value) {
  const TensorId root = region.outputs()[0];
  std::vector<bool> depends(region.tensors().size(), false);
  depends[value.index] = true;
  std::vector<OpId> ops;
  for (uint32_t i = 0; i < region.ops().size(); i++) {
    const Op& op = region.op(OpId(i));
    const bool on = std::ranges::any_of(op.inputs, [&](TensorId t) { return depends[t.index]; });
    if (!on) continue;
    if (!has(op.kind, algebra::Pointwise) ||
        !(region.tensor(op.result()).type.shape == region.tensor(value).type.shape))
      return std::nullopt;
    depends[op.result().index] = true;
    ops.push_back(OpId(i));
  }
  if (!depends[root.index]) return std::nullopt;
  return ops;
}

Matches match(const Pattern& p, const Graph& region, const Graph& small, uint64_t seed) {
  return Matcher(p, region, small, seed).run();
}

}  // namespace tessera::patterns
