#include <algorithm>
#include <optional>

#include "base/error.h"
#include "search/synth/slice_graph.h"
#include "search/synth/slices.h"

namespace tessera::synth {
namespace {

constexpr int64_t kLongest = 1 << 20;  // an axis whose elements are told apart one by one

// Every tensor as a slice of what the same operators make of whole tensors, so that x[:k]·y[:k] and
// x[k:]·y[k:] are seen as two parts of x·y; sums, maxima and matrix products over parts, and parts
// side by side, are then taken over their union.
class Merger {
 public:
  explicit Merger(const Graph& g)
      : g_(g), build_(g), uses_(use_counts(g)), views_(g.tensors().size()),
        inner_(g.tensors().size(), false) {
    for (const Op& op : g.ops())
      if (is_extremum(op.kind) || op.kind == OpKind::Add || op.kind == OpKind::Sub ||
          op.kind == OpKind::Neg || op.kind == OpKind::Sum)
        for (TensorId t : op.inputs)
          inner_[t.index] =
              uses_[t.index] == 1 && (op.kind == g.producer(t).kind || op.kind == OpKind::Sum ||
                                      (linear(op.kind) && linear(g.producer(t).kind)));
  }

  // The program, where anything was merged.
  std::optional<Graph> run() {
    for (const Op& op : g_.ops()) {
      build_.copy(op);
      if (op.num_results != 1 || op.body.valid()) continue;
      const TensorId t = op.result();
      views_[t.index] = {build_.to(t), whole(g_.type(t).shape)};
      if (op.kind == OpKind::Concat)
        concat(op);
      else if (!inner_[t.index] &&
               (linear(op.kind) || is_extremum(op.kind) || op.kind == OpKind::Mean))
        combine(op);
      if (auto v = hoisted(op)) views_[t.index] = std::move(*v);
    }
    if (merged_ == 0) return std::nullopt;
    return build_.finished();
  }

 private:
  struct View {
    TensorId base;  // of the new graph
    SliceAttrs at;
  };
  enum class Kind : uint8_t { Plain, Reduce, Matmul };
  struct Term {
    Kind kind = Kind::Plain;
    std::vector<TensorId> bases;  // of the new graph
    std::vector<SliceAttrs> at;
    std::vector<int> axes;  // reduced, or of the product's those that are dropped
    bool keepdims = false;
    Rational coefficient = Rational(1);
  };

  static bool linear(OpKind kind) {
    return kind == OpKind::Add || kind == OpKind::Sub || kind == OpKind::Neg || kind == OpKind::Sum;
  }
  bool is_whole(const View& v) const { return v.at == whole(build_.type(v.base).shape); }

  // --- views

  std::optional<View> hoisted(const Op& op) {
    const Shape& shape = g_.type(op.result()).shape;
    if (op.kind == OpKind::Slice) {
      const View& v = views_[op.inputs[0].index];
      return View{v.base, composed(v.at, g_.attrs<SliceAttrs>(op))};
    }
    if (op.inputs.empty() ||
        std::ranges::all_of(op.inputs, [&](TensorId t) { return is_whole(views_[t.index]); }))
      return std::nullopt;
    try {
      if (has(op.kind, algebra::Pointwise)) return pointwise(op, shape);
      const View& v = views_[op.inputs[0].index];
      View r{TensorId(), v.at};
      if (const auto* a = std::get_if<PermAttrs>(&op.attrs); a && op.kind == OpKind::Transpose) {
        for (size_t i = 0; i < a->perm.size(); ++i)
          set(r.at, i, v.at.starts[size_t(a->perm[i])], count(v.at, size_t(a->perm[i])),
              v.at.steps[size_t(a->perm[i])]);
      } else if (op.kind == OpKind::Unsqueeze) {
        for (int axis : g_.attrs<AxesAttrs>(op).axes) insert_one(r.at, size_t(axis));
      } else if (const auto* s = std::get_if<ReduceAttrs>(&op.attrs)) {
        const std::vector<int64_t> from = extents(build_.type(v.base).shape);
        for (size_t i = from.size(); i-- > 0;) {
          if (!has_axis(s->axes, i)) continue;
          if (count(v.at, i) != from[i]) return std::nullopt;
          erase(r.at, i);
          if (s->keepdims) insert_one(r.at, i);
        }
      } else if (op.kind == OpKind::Matmul) {
        return matmul(op);
      } else {
        return std::nullopt;
      }
      r.base = build_.make(op.kind, {v.base}, op.attrs);
      return r;
    } catch (const Error&) {  // shapes that only fit as slices
      return std::nullopt;
    }
  }

  std::optional<View> pointwise(const Op& op, const Shape& shape) {
    const size_t rank = shape.size();
    std::vector<TensorId> bases;
    SliceAttrs at = whole(shape);
    std::vector<int64_t> base_extent(rank, 0);  // 0: no operand runs along this axis yet
    for (TensorId t : op.inputs) {
      const View& v = views_[t.index];
      const std::vector<int64_t> own = extents(g_.type(t).shape);
      const std::vector<int64_t> from = extents(build_.type(v.base).shape);
      for (size_t i = 0; i < own.size(); ++i) {
        const size_t axis = rank - own.size() + i;
        if (own[i] == 1) {
          if (from[i] != 1) return std::nullopt;  // one row of many, for all
          continue;
        }
        if (base_extent[axis] == 0) {
          base_extent[axis] = from[i];
          set(at, axis, v.at.starts[i], own[i], v.at.steps[i]);
        } else if (base_extent[axis] != from[i] || at.starts[axis] != v.at.starts[i] ||
                   at.steps[axis] != v.at.steps[i]) {
          return std::nullopt;
        }
      }
      bases.push_back(v.base);
    }
    return View{build_.make(op.kind, bases, op.attrs), at};
  }

  // Rows of the left operand are rows of the product, columns of the right one columns.
  std::optional<View> matmul(const Op& op) {
    const View &a = views_[op.inputs[0].index], &b = views_[op.inputs[1].index];
    if (a.at.starts.size() != 2 || b.at.starts.size() != 2) return std::nullopt;
    if (count(a.at, 1) != extents(build_.type(a.base).shape)[1] ||
        count(b.at, 0) != extents(build_.type(b.base).shape)[0])
      return std::nullopt;
    View r{build_.make(op.kind, {a.base, b.base}), a.at};
    set(r.at, 1, b.at.starts[1], count(b.at, 1), b.at.steps[1]);
    return r;
  }

  // --- side by side

  void concat(const Op& op) {
    const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
    std::vector<View> parts;
    for (TensorId t : op.inputs) {
      const View& v = views_[t.index];
      if (!parts.empty() && joined(parts.back(), v, axis)) continue;
      parts.push_back(v);
    }
    if (parts.size() == op.inputs.size()) return;
    auto in = mapped(parts, [&](const View& v) { return build_.slice(v.base, v.at); });
    build_.set_to(op.result(), in.size() == 1 ? in[0] : build_.make(OpKind::Concat, in, op.attrs));
    views_[op.result().index].base = build_.to(op.result());
    if (in.size() == 1) views_[op.result().index] = parts[0];
    ++merged_;
  }
  // Extends `a` by what follows it.
  static bool joined(View& a, const View& b, size_t axis) {
    if (a.base != b.base) return false;
    for (size_t i = 0; i < a.at.starts.size(); ++i)
      if (i != axis && !same_along(a.at, b.at, i)) return false;
    const int64_t n = count(a.at, axis), m = count(b.at, axis);
    const int64_t step = n > 1 ? a.at.steps[axis] : b.at.starts[axis] - a.at.starts[axis];
    if (step < 1 || b.at.starts[axis] != a.at.starts[axis] + n * step ||
        (m > 1 && b.at.steps[axis] != step))
      return false;
    set(a.at, axis, a.at.starts[axis], n + m, step);
    return true;
  }

  // --- sums of sums

  // The number that an operand is everywhere, if it is one.
  std::optional<Rational> constant(TensorId t) const {
    const Op& op = g_.producer(t);
    if (!op.constant()) return std::nullopt;
    const Rational& value = std::get<ConstAttrs>(op.attrs).value;
    if (!value.finite() || value.is_zero()) return std::nullopt;
    return value;
  }

  // t times `c` as terms that `leaf` makes; false where a number gets too long.
  template <class Leaf> bool expand(TensorId t, Rational c, bool root, const Leaf& leaf) {
    const Op& op = g_.producer(t);
    const auto same = [&](TensorId u) { return g_.type(u) == g_.type(t); };
    const auto factor = [&](const std::optional<Rational>& f, TensorId u) -> std::optional<bool> {
      if (!f || !same(u)) return std::nullopt;
      const std::optional<Rational> next = Rational::mul(c, *f);
      return next && expand(u, *next, false, leaf);
    };
    if (root || uses_[t.index] == 1) {
      if ((op.kind == OpKind::Add || op.kind == OpKind::Sub) && same(op.inputs[0]) &&
          same(op.inputs[1]))
        return expand(op.inputs[0], c, false, leaf) &&
               expand(op.inputs[1], op.kind == OpKind::Sub ? -c : c, false, leaf);
      if (op.kind == OpKind::Neg) return expand(op.inputs[0], -c, false, leaf);
      if (op.kind == OpKind::Mul)
        for (size_t i = 0; i < 2; ++i)
          if (const auto done = factor(constant(op.inputs[i]), op.inputs[1 - i])) return *done;
      if (op.kind == OpKind::Div && is_float(g_.type(t).dtype))
        if (const auto value = constant(op.inputs[1]))
          if (const auto done = factor(value->inverse(), op.inputs[0])) return *done;
    }
    return leaf(t, c);
  }

  bool terms_of_sum(TensorId t, const Rational& c, std::vector<Term>& terms) {
    const Op& op = g_.producer(t);
    if (op.kind == OpKind::Sum || (op.kind == OpKind::Mean && is_float(g_.type(t).dtype))) {
      const auto& a = g_.attrs<ReduceAttrs>(op);
      std::optional<Rational> each = c;
      if (op.kind == OpKind::Mean)
        each = Rational::mul(c, Rational::ratio(1, num_elements(g_.type(op.inputs[0]).shape) /
                                                       num_elements(g_.type(t).shape)));
      return each && expand(op.inputs[0], *each, false, [&](TensorId u, const Rational& k) {
               const View& v = views_[u.index];
               terms.push_back({Kind::Reduce, {v.base}, {v.at}, a.axes, a.keepdims, k});
               return true;
             });
    }
    // Products of vectors have axes that are dropped again.
    const bool squeezed = op.kind == OpKind::Squeeze;
    const Op& product = squeezed ? g_.producer(op.inputs[0]) : op;
    if (product.kind == OpKind::Matmul && g_.type(product.inputs[0]).rank() == 2 &&
        g_.type(product.inputs[1]).rank() == 2) {
      const View &a = views_[product.inputs[0].index], &b = views_[product.inputs[1].index];
      if (a.at.starts[1] == b.at.starts[0] && a.at.steps[1] == b.at.steps[0] &&
          extents(build_.type(a.base).shape)[1] == extents(build_.type(b.base).shape)[0]) {
        terms.push_back({Kind::Matmul,
                         {a.base, b.base},
                         {a.at, b.at},
                         squeezed ? g_.attrs<AxesAttrs>(op).axes : std::vector<int>{},
                         false,
                         c});
        return true;
      }
    }
    terms.push_back({Kind::Plain, {build_.to(t)}, {}, {}, false, c});
    return true;
  }

  bool terms_of_order(TensorId t, OpKind kind, bool root, std::vector<Term>& terms) {
    const Op& op = g_.producer(t);
    if (op.kind == kind && (root || uses_[t.index] == 1) &&
        g_.type(op.inputs[0]) == g_.type(op.inputs[1]))
      return terms_of_order(op.inputs[0], kind, false, terms) &&
             terms_of_order(op.inputs[1], kind, false, terms);
    if (op.kind == reduction_by(*fold_of(kind))) {
      const auto& a = g_.attrs<ReduceAttrs>(op);
      const View& v = views_[op.inputs[0].index];
      terms.push_back({Kind::Reduce, {v.base}, {v.at}, a.axes, a.keepdims});
    } else {
      terms.push_back({Kind::Plain, {build_.to(t)}, {}, {}, false});
    }
    return true;
  }

  void combine(const Op& op) {
    const TensorId t = op.result();
    const bool order = is_extremum(op.kind);
    std::vector<Term> terms;
    const bool fits = order ? terms_of_order(t, op.kind, true, terms)
                            : expand(t, Rational(1), true, [&](TensorId u, const Rational& c) {
                                return terms_of_sum(u, c, terms);
                              });
    if (!fits || terms.size() < 2 || terms.size() > 64) return;
    std::vector<Term> rest;
    bool changed = false;
    for (size_t i = 0; i < terms.size(); ++i) {
      std::vector<Term> group{terms[i]};
      for (size_t j = i + 1; j < terms.size();) {
        if (!alike(terms[i], terms[j])) {
          ++j;
          continue;
        }
        group.push_back(terms[j]);
        terms.erase(terms.begin() + long(j));
      }
      std::optional<std::vector<Term>> fewer;
      if (group.size() > 1) fewer = united_terms(group, order);
      changed = changed || fewer.has_value();
      for (Term& term : fewer ? *fewer : group) rest.push_back(std::move(term));
    }
    if (!changed) return;
    build_.set_to(t, order ? extremum(rest, op.kind) : total(rest, g_.type(t)));
    views_[t.index].base = build_.to(t);
    ++merged_;
  }

  static bool alike(const Term& a, const Term& b) {
    return a.kind != Kind::Plain && a.kind == b.kind && a.bases == b.bases && a.axes == b.axes &&
           a.keepdims == b.keepdims;
  }

  // The axis (of the first operand) along which terms differ, all others being reduced or equal.
  static std::optional<size_t> axis_of(const std::vector<Term>& group) {
    const Term& first = group[0];
    std::optional<size_t> axis;
    for (const Term& term : group)
      for (size_t k = 0; k < term.at.size(); ++k)
        for (size_t i = 0; i < term.at[k].starts.size(); ++i) {
          const bool along = first.kind == Kind::Matmul ? i == 1 - k : has_axis(first.axes, i);
          const size_t name = first.kind == Kind::Matmul ? 1 : i;
          if (along && !axis) axis = name;
          if (same_along(term.at[k], first.at[k], i)) continue;
          if (!along) return std::nullopt;
          if (name != *axis) {
            // Another one had been taken although terms agree along it.
            for (const Term& other : group)
              if (!same_along(other.at[0], first.at[0], *axis)) return std::nullopt;
            axis = name;
          }
        }
    return axis;
  }

  // The same as fewer terms or terms of fewer elements: each element with the sum of its factors
  // in runs of equal ones.
  std::optional<std::vector<Term>> united_terms(const std::vector<Term>& group, bool order) {
    const std::optional<size_t> axis = axis_of(group);
    if (!axis) return std::nullopt;
    const int64_t n = extents(build_.type(group[0].bases[0]).shape)[*axis];
    if (n > kLongest) return std::nullopt;
    std::vector<Rational> factor(size_t(n), Rational(0));
    int64_t work = 0;
    std::vector<int64_t> periods{1};
    for (const Term& term : group) {
      const SliceAttrs& at = term.at[0];
      work += count(at, *axis);
      if (at.steps[*axis] > 1 && at.steps[*axis] <= 16) periods.push_back(at.steps[*axis]);
      for (int64_t i = at.starts[*axis]; i < at.stops[*axis]; i += at.steps[*axis]) {
        // Elements that are in two maxima are beyond the verifier's model of order.
        if (order && !factor[size_t(i)].is_zero()) return std::nullopt;
        const auto sum = Rational::add(factor[size_t(i)], term.coefficient);
        if (!sum) return std::nullopt;
        factor[size_t(i)] = *sum;
      }
    }
    for (int64_t period : periods) {
      std::vector<Term> runs;
      int64_t left = 0;
      for (int64_t from = 0; from < period && runs.size() <= group.size() + 2; ++from)
        for (int64_t i = from; i < n && runs.size() <= group.size() + 2;) {
          int64_t end = i + period;
          while (end < n && factor[size_t(end)] == factor[size_t(i)]) end += period;
          if (!factor[size_t(i)].is_zero()) {
            Term run = group[0];
            run.coefficient = factor[size_t(i)];
            for (size_t k = 0; k < run.at.size(); ++k)
              set(run.at[k], run.kind == Kind::Matmul ? 1 - k : *axis, i, (end - i) / period,
                  period);
            left += (end - i) / period;
            runs.push_back(std::move(run));
          }
          i = end;
        }
      if ((runs.size() < group.size() && left <= work) ||
          (runs.size() <= group.size() + 2 && 4 * left <= 3 * work))
        return runs;
    }
    return std::nullopt;
  }

  // The value of a term without its coefficient.
  TensorId value(const Term& term, OpKind reduce) {
    if (term.kind == Kind::Plain) return term.bases[0];
    std::vector<TensorId> in;
    for (size_t k = 0; k < term.bases.size(); ++k)
      in.push_back(build_.slice(term.bases[k], term.at[k]));
    if (term.kind == Kind::Matmul) {
      const TensorId product = build_.make(OpKind::Matmul, in);
      return term.axes.empty() ? product
                               : build_.make(OpKind::Squeeze, {product}, AxesAttrs{term.axes});
    }
    const std::vector<int64_t> e = extents(build_.type(in[0]).shape);
    if (!term.keepdims &&
        std::ranges::all_of(term.axes, [&](int axis) { return e[size_t(axis)] == 1; }))
      return build_.make(OpKind::Squeeze, in, AxesAttrs{term.axes});
    return build_.make(reduce, in, ReduceAttrs{term.axes, term.keepdims});
  }

  TensorId extremum(const std::vector<Term>& terms, OpKind kind) {
    const OpKind reduce = reduction_by(*fold_of(kind));
    TensorId r = value(terms[0], reduce);
    for (size_t i = 1; i < terms.size(); ++i) r = build_.make(kind, {r, value(terms[i], reduce)});
    return r;
  }

  TensorId total(std::vector<Term> terms, const Type& type) {
    std::stable_partition(terms.begin(), terms.end(),
                          [](const Term& t) { return !t.coefficient.negative(); });
    std::optional<TensorId> r;
    for (const Term& term : terms) {
      TensorId v = value(term, OpKind::Sum);
      const bool less = term.coefficient.negative();
      const Rational size = less ? -term.coefficient : term.coefficient;
      if (!(size == Rational(1)))
        v = build_.make(OpKind::Mul, {build_.number(size, type.dtype), v});
      if (!r)
        r = less ? build_.make(OpKind::Neg, {v}) : v;
      else
        r = build_.make(less ? OpKind::Sub : OpKind::Add, {*r, v});
    }
    if (r) return *r;
    const TensorId zero = build_.number(Rational(0), type.dtype);
    return type.rank() == 0 ? zero : build_.make(OpKind::Broadcast, {zero}, ShapeAttrs{type.shape});
  }

  const Graph& g_;
  Builder build_;
  std::vector<int> uses_;
  std::vector<View> views_;  // of old tensors
  std::vector<bool> inner_;  // part of a sum (maximum, …) that is looked at as a whole
  int merged_ = 0;
};

}  // namespace

std::optional<Graph> with_parts_merged(const Graph& program) { return Merger(program).run(); }

}  // namespace tessera::synth
