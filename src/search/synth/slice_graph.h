// What passes over programs of slices share: attributes of slices, and a graph in the making.
#pragma once
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace tessera::synth {

inline SliceAttrs whole(const Shape& shape) {
  const std::vector<int64_t> e = extents(shape);
  return {std::vector<int64_t>(e.size(), 0), e, std::vector<int64_t>(e.size(), 1)};
}
inline int64_t count(const SliceAttrs& a, size_t axis) {
  return (a.stops[axis] - a.starts[axis] + a.steps[axis] - 1) / a.steps[axis];
}
inline void set(SliceAttrs& a, size_t axis, int64_t start, int64_t n, int64_t step) {
  a.starts[axis] = start;
  a.steps[axis] = n == 1 ? 1 : step;
  a.stops[axis] = start + (n - 1) * a.steps[axis] + 1;
}
inline bool same_along(const SliceAttrs& a, const SliceAttrs& b, size_t axis) {
  return a.starts[axis] == b.starts[axis] && a.stops[axis] == b.stops[axis] &&
         a.steps[axis] == b.steps[axis];
}
// `inner` of what `outer` selects.
inline SliceAttrs composed(const SliceAttrs& outer, const SliceAttrs& inner) {
  SliceAttrs r = outer;
  for (size_t i = 0; i < r.starts.size(); ++i)
    set(r, i, outer.starts[i] + inner.starts[i] * outer.steps[i], count(inner, i),
        outer.steps[i] * inner.steps[i]);
  return r;
}
// One entry in front of which others are: an axis of extent 1, or none.
inline void insert_one(SliceAttrs& a, size_t axis) {
  a.starts.insert(a.starts.begin() + long(axis), 0);
  a.stops.insert(a.stops.begin() + long(axis), 1);
  a.steps.insert(a.steps.begin() + long(axis), 1);
}
inline void erase(SliceAttrs& a, size_t axis) {
  a.starts.erase(a.starts.begin() + long(axis));
  a.stops.erase(a.stops.begin() + long(axis));
  a.steps.erase(a.steps.begin() + long(axis));
}
inline bool has_axis(const std::vector<int>& axes, size_t axis) {
  return std::ranges::find(axes, int(axis)) != axes.end();
}

// A graph in the making, in which equal operators on equal operands are one.
class Builder {
 public:
  explicit Builder(const Graph& from)
      : from_(from), out_(from.name()), to_(from.tensors().size()) {}

  TensorId make(OpKind kind, const std::vector<TensorId>& in, const Attrs& attrs = NoAttrs{}) {
    auto& same = made_[{kind, in}];
    for (const auto& [known, result] : same)
      if (known == attrs) return result;
    const TensorId r = out_.add(kind, in, attrs);
    same.push_back({attrs, r});
    return r;
  }
  TensorId slice(TensorId x, const SliceAttrs& at) {
    return at == whole(out_.type(x).shape) ? x : make(OpKind::Slice, {x}, at);
  }
  TensorId number(const Rational& value, DType dtype) {
    for (const auto& [v, d, t] : numbers_)
      if (v == value && d == dtype) return t;
    numbers_.push_back({value, dtype, out_.add_const(value, Type{dtype, {}})});
    return std::get<2>(numbers_.back());
  }
  void copy(const Op& op) {
    if (is_leaf(op.kind) || op.num_results != 1 || op.body.valid()) {
      copy_op(from_, op, out_, to_);
      return;
    }
    std::vector<TensorId> in = mapped(op.inputs, [&](TensorId t) { return to(t); });
    to_[op.result().index] = make(op.kind, in, op.attrs);
  }
  TensorId to(TensorId old) const { return to_[old.index]; }
  void set_to(TensorId old, TensorId now) { to_[old.index] = now; }
  const Type& type(TensorId now) const { return out_.type(now); }
  Graph finished() {
    for (TensorId t : from_.outputs()) out_.add_output(to(t));
    return without_dead_code(out_);
  }

 private:
  const Graph& from_;
  Graph out_;
  std::vector<TensorId> to_;
  std::map<std::pair<OpKind, std::vector<TensorId>>, std::vector<std::pair<Attrs, TensorId>>> made_;
  std::vector<std::tuple<Rational, DType, TensorId>> numbers_;
};

}  // namespace tessera::synth
