#include "ir/arrangement.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ir/build.h"

namespace tessera {

Arrangement::Arrangement(const Shape& shape) : source_(shape), shape_(shape) {
  CHECK(is_static(shape)) << "views are of static shapes";
  factors_ = {{1, num_elements(shape)}};
  merge();
}

void Arrangement::merge() {
  std::vector<Factor> merged;
  for (const Factor& f : factors_) {
    if (f.extent == 1) continue;
    if (!merged.empty() && merged.back().stride == f.stride * f.extent)
      merged.back() = {f.stride, merged.back().extent * f.extent};
    else
      merged.push_back(f);
  }
  factors_ = std::move(merged);
}

std::optional<Arrangement> Arrangement::reshaped(const Shape& to) const {
  if (!is_static(to) || num_elements(to) != num_elements(shape_)) return std::nullopt;
  Arrangement v = *this;
  v.shape_ = to;
  return v;
}

std::optional<Arrangement> Arrangement::transposed(const std::vector<int>& perm) const {
  // Factors are cut where axes of the result begin.
  std::vector<std::vector<Factor>> axes;
  std::vector<Factor> left(factors_.rbegin(), factors_.rend());  // outermost last
  for (const Dim& d : shape_) {
    std::vector<Factor> axis;
    int64_t extent = d.extent;
    while (extent > 1) {
      Factor& f = left.back();
      if (extent % f.extent == 0) {
        extent /= f.extent;
        axis.push_back(f);
        left.pop_back();
      } else if (f.extent % extent == 0) {
        const int64_t inner = f.extent / extent;
        axis.push_back({f.stride * inner, extent});
        f.extent = inner;
        extent = 1;
      } else {
        return std::nullopt;
      }
    }
    axes.push_back(std::move(axis));
  }
  Arrangement v = *this;
  v.factors_.clear();
  v.shape_.clear();
  for (const int from : perm) {
    v.shape_.push_back(shape_[size_t(from)]);
    v.factors_.insert(v.factors_.end(), axes[size_t(from)].begin(), axes[size_t(from)].end());
  }
  v.merge();
  if (v.factors_.size() > size_t(kMaxRank)) return std::nullopt;  // no tensor has such a shape
  return v;
}

std::optional<Arrangement> Arrangement::then(const Graph& g, const Op& op) const {
  if (is_reshape(op.kind)) return reshaped(g.type(op.result()).shape);
  if (op.kind == OpKind::Transpose) return transposed(g.attrs<PermAttrs>(op).perm);
  return std::nullopt;
}

std::optional<Arrangement> Arrangement::then(const Arrangement& next) const {
  CHECK(next.source_ == shape_) << "a view of another shape";
  Graph g;
  const TensorId end = next.build(g, g.add_input({DType::F32, shape_}));
  Arrangement v = *this;
  for (const Op& op : g.ops()) {
    if (is_input(op.kind)) continue;
    const auto more = v.then(g, op);
    if (!more) return std::nullopt;
    v = *more;
  }
  CHECK(v.shape_ == g.type(end).shape);
  return v;
}

Arrangement Arrangement::inverse() const {
  // Where each factor of the source lies in the result.
  std::vector<std::pair<Factor, int64_t>> in_source;
  int64_t stride = 1;
  for (size_t i = factors_.size(); i-- > 0;) {
    in_source.emplace_back(factors_[i], stride);
    stride *= factors_[i].extent;
  }
  std::ranges::sort(in_source,
                    [](const auto& a, const auto& b) { return a.first.stride > b.first.stride; });
  Arrangement v = *this;
  std::swap(v.source_, v.shape_);
  v.factors_.clear();
  for (const auto& [f, at] : in_source) v.factors_.push_back({at, f.extent});
  v.merge();
  return v;
}

std::optional<size_t> Arrangement::axis_of(size_t axis) const {
  int64_t stride = 1;
  for (size_t d = source_.size(); d-- > axis + 1;) stride *= source_[d].extent;
  const int64_t extent = source_[axis].extent;
  if (extent == 1) return std::nullopt;
  int64_t inner = num_elements(shape_);
  std::vector<std::pair<Factor, int64_t>> placed;  // with elements of the result inside of it
  for (const Factor& f : factors_) {
    inner /= f.extent;
    placed.emplace_back(f, inner);
  }
  int64_t within = num_elements(shape_);
  for (size_t d = 0; d < shape_.size(); d++) {
    within /= shape_[d].extent;
    if (shape_[d].extent != extent) continue;
    for (const auto& [f, at] : placed) {
      // The axis may be a part of a longer factor.
      if (f.stride > stride || stride % f.stride != 0) continue;
      const int64_t below = stride / f.stride;
      if (below * extent <= f.extent && f.extent % (below * extent) == 0 && at * below == within)
        return d;
    }
  }
  return std::nullopt;
}

TensorId Arrangement::build(Graph& g, TensorId x) const {
  CHECK(g.type(x).shape == source_) << "a view of another shape";
  if (!keeps_order()) {
    std::vector<int> order(factors_.size());  // of the factors in the source
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](int a, int b) {
      return factors_[size_t(a)].stride > factors_[size_t(b)].stride;
    });
    Shape split;
    std::vector<int> perm(factors_.size());
    for (size_t i = 0; i < order.size(); i++) {
      split.push_back(factors_[size_t(order[i])].extent);
      perm[size_t(order[i])] = int(i);
    }
    if (split != source_) x = build::reshape(g, x, {split});
    x = build::transpose(g, x, {perm});
  }
  if (g.type(x).shape != shape_) x = build::reshape(g, x, {shape_});
  return x;
}

std::string Arrangement::str() const {
  std::string s = tessera::str(source_) + " as";
  for (const Factor& f : factors_)
    s += " " + std::to_string(f.extent) + " by " + std::to_string(f.stride);
  return s + ": " + tessera::str(shape_);
}

}  // namespace tessera
