#include "plan/strides.h"

#include <algorithm>
#include <numeric>

namespace tessera {

Extents row_major_strides(const Extents& shape) {
  Extents strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0; step *= shape[i]) strides[i] = shape[i] > 1 ? step : 0;
  return strides;
}

AxisParts merged(const AxisParts& parts) {
  AxisParts out;
  for (const auto& [n, step] : parts)
    if (!out.empty() && out.back().second == n * step)
      out.back() = {out.back().first * n, step};
    else
      out.emplace_back(n, step);
  return out;
}

std::optional<std::vector<AxisParts>> regroup(const AxisParts& parts, const Extents& shape) {
  AxisParts left = merged(parts);
  std::ranges::reverse(left);
  std::vector<AxisParts> axes;
  for (int64_t d : shape) {
    AxisParts axis;
    while (d > 1) {
      if (left.empty()) return std::nullopt;
      const auto [n, step] = left.back();
      left.pop_back();
      const int64_t take = std::gcd(d, n);
      if (take != n && take != d) return std::nullopt;
      if (take != n) left.emplace_back(n / take, step);
      axis.emplace_back(take, step * (n / take));
      d /= take;
    }
    axes.push_back(merged(axis));
  }
  if (!left.empty()) return std::nullopt;
  return axes;
}

std::optional<Extents> restride(const AxisParts& parts, const Extents& shape) {
  const auto axes = regroup(parts, shape);
  if (!axes) return std::nullopt;
  Extents strides;
  for (const AxisParts& axis : *axes) {
    if (axis.size() > 1) return std::nullopt;
    strides.push_back(axis.empty() ? 0 : axis[0].second);
  }
  return strides;
}

Strided Strided::of(TensorId root, const Extents& shape) {
  Strided view{root, 0, {}};
  const Extents strides = row_major_strides(shape);
  for (size_t i = 0; i < shape.size(); ++i)
    view.axes.push_back(shape[i] > 1 ? AxisParts{{shape[i], strides[i]}} : AxisParts{});
  return view;
}

AxisParts Strided::parts() const {
  AxisParts all;
  for (const AxisParts& axis : axes) all.insert(all.end(), axis.begin(), axis.end());
  return all;
}

bool Strided::whole() const {
  const AxisParts all = merged(parts());
  return offset == 0 && (all.empty() || (all.size() == 1 && all[0].second == 1));
}

AxisParts Strided::over(const Extents& shape) const {
  AxisParts all;
  const size_t lead = shape.size() - axes.size();
  for (size_t i = 0; i < shape.size(); ++i)
    if (i >= lead && !axes[i - lead].empty())
      all.insert(all.end(), axes[i - lead].begin(), axes[i - lead].end());
    else if (shape[i] > 1)
      all.emplace_back(shape[i], 0);
  return all;
}

bool is_strided_view(OpKind kind) { return arranges(kind) || kind == OpKind::Slice; }

namespace {

std::optional<Strided> moved(const Graph& graph, const Op& op, const Strided& x) {
  const Extents shape = extents(graph.type(op.result()).shape);
  std::optional<std::vector<AxisParts>> axes;
  int64_t offset = x.offset;
  if (op.kind == OpKind::Transpose) {
    axes.emplace();
    for (int p : graph.attrs<PermAttrs>(op).perm) axes->push_back(x.axes[size_t(p)]);
  } else if (op.kind == OpKind::Broadcast) {
    axes = regroup(x.over(shape), shape);
  } else if (op.kind == OpKind::Slice) {
    const auto& a = graph.attrs<SliceAttrs>(op);
    axes = x.axes;
    for (size_t i = 0; i < shape.size(); ++i) {
      AxisParts& axis = (*axes)[i];
      if (axis.size() > 1 && shape[i] != num_elements({graph.type(op.inputs[0]).shape[i]}))
        return std::nullopt;
      if (axis.size() != 1) continue;
      const int64_t step = axis[0].second;
      offset += a.starts[i] * step;
      axis = shape[i] > 1 ? AxisParts{{shape[i], step * a.steps[i]}} : AxisParts{};
    }
  } else {
    axes = regroup(x.parts(), shape);
  }
  if (!axes) return std::nullopt;
  return Strided{x.root, offset, std::move(*axes)};
}

}  // namespace

std::vector<Strided> strided_views(const Graph& graph, const std::vector<bool>& apart) {
  std::vector<Strided> views(graph.tensors().size());
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    for (uint32_t r = 0; r < op.num_results; ++r) {
      const TensorId t = op.result(r);
      std::optional<Strided> view;
      if (is_strided_view(op.kind) && !apart[i]) view = moved(graph, op, views[op.inputs[0].index]);
      views[t.index] = view ? std::move(*view) : Strided::of(t, extents(graph.type(t).shape));
    }
  }
  return views;
}

bool Reading::cuts() const {
  return stops != shape || std::ranges::any_of(
                               starts, [](int64_t s) { return s; });
}

std::vector<int> Reading::perm() const {
  std::vector<int> order;
  for (int axis : axes)
    if (axis >= 0)
      order.push_back(int(std::ranges::count_if(axes, [&](int a) { return a >= 0 && a < axis; })));
  return order;
}

std::optional<Reading> reading(int64_t elements, const Extents& extents, const Extents& strides,
                               int64_t offset) {
  std::vector<int> order;
  for (size_t i = 0; i < strides.size(); ++i)
    if (strides[i] != 0) order.push_back(int(i));
  std::ranges::stable_sort(order,
                           [&](int a, int b) { return strides[size_t(a)] > strides[size_t(b)]; });
  Reading found;
  found.axes.assign(strides.size(), -1);
  // Appends an axis of steps `stride`, of which `n` are read; what is left is within one of them.
  const auto append = [&](int64_t stride, int64_t n) {
    if (stride <= 0 || elements % stride != 0) return false;
    const int64_t first = offset / stride, all = elements / stride;
    offset -= first * stride;
    elements = stride;
    found.shape.push_back(all);
    found.starts.push_back(first);
    found.stops.push_back(first + n);
    return first + n <= all;
  };
  for (int axis : order) {
    found.axes[size_t(axis)] = int(found.shape.size());
    if (!append(strides[size_t(axis)], extents[size_t(axis)])) return std::nullopt;
  }
  // The last axis may step over several elements; an operand without axes is one element.
  if (elements > 1 || order.empty()) {
    found.gone.push_back(int(found.shape.size()));
    if (!append(1, 1)) return std::nullopt;
  }
  return found;
}

}  // namespace tessera
