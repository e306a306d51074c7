// Bodies of Interpreter's members for convolutions and pooling; see interpreter.h. All of them look
// at their operand as windows: a view with the axes [leading…, result…, taps…] of a padded copy.
#pragma once
#include "eval/interpreter.h"

namespace tessera {

// Windows of conv and pooling, of which `axes` says where they lie.
template <class D>
View Interpreter<D>::windows(Arena& arena, const View& x, const std::vector<WindowAxis>& axes,
                             const Rational& outside, Components demand, ThreadPool* pool) const {
  const int n = int(axes.size()), lead = x.rank - n;
  View v = x;
  if (std::ranges::any_of(axes, [](const WindowAxis& a) { return a.low != 0 || a.high != 0; })) {
    std::array<int64_t, kMaxRank> begin{}, shape = x.shape;
    for (int i = 0; i < n; ++i) {
      begin[size_t(lead + i)] = axes[size_t(i)].low;
      shape[size_t(lead + i)] += axes[size_t(i)].low + axes[size_t(i)].high;
    }
    const View value = scalar(arena, x.dtype, outside, demand);
    v = allocate(arena, x.dtype, x.rank, shape, demand, x.flagged() || value.flagged(),
                 x.plane[kSetPlane] != nullptr);
    copy_view(v, stretched(value, v.rank, v.shape), D::kWord, pool);
    copy_view(subview(v, begin.data(), x.shape.data(), D::kWord), x, D::kWord, pool);
  }
  for (int i = 0; i < n; ++i) {
    const WindowAxis& a = axes[size_t(i)];
    const int64_t step = v.stride[size_t(lead + i)];
    v.shape[size_t(lead + i)] = a.out;
    v.stride[size_t(lead + i)] = step * a.stride;
    v.insert_axis(v.rank, a.taps, step * a.dilation);
  }
  return v;
}

// Products of windows [N, G·C, o…, t…] and weights [G·F, C, t…], contracted over channels and taps:
// for some rows of each group's result at a time the windows are written out as a matrix.
template <class D>
View Interpreter<D>::slide(Arena& arena, const View& x, const View& w, int64_t groups,
                           Components demand, ThreadPool* pool) const {
  constexpr int64_t kMostElements = int64_t(1) << 20;  // of the matrix
  const int n = w.rank - 2;
  const int64_t c = w.shape[1], f = w.shape[0] / groups;
  std::array<int64_t, kMaxRank> shape{};
  shape[0] = x.shape[0];
  shape[1] = w.shape[0];
  std::copy(x.shape.begin() + 2, x.shape.begin() + 2 + n, shape.begin() + 2);
  View out = allocate(arena, x.dtype, 2 + n, shape, demand, x.flagged() || w.flagged(), false);
  if (out.size() == 0) return out;
  int64_t depth = c, row = 1;  // rows of the matrix, and its columns per index of the first axis
  for (int i = 0; i < n; ++i) {
    depth *= w.shape[size_t(2 + i)];
    if (i > 0) row *= shape[size_t(2 + i)];
  }
  const int64_t step = std::clamp<int64_t>(kMostElements / (depth * row), 1, shape[2]);
  View weights = copy_of(arena, w, demand);
  CHECK(reshape_view(weights, 3, {groups, f, depth})) << "contiguous weights";
  Arena scratch;  // of one part
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t o = 0; o < shape[2]; o += step) {
        scratch.release({});
        const int64_t rows = std::min(step, shape[2] - o);
        // [C, o…, t…] of this part, as [C, t…, o…]
        std::array<int64_t, kMaxRank> begin{}, part = x.shape;
        begin[0] = b, part[0] = 1;
        begin[1] = g * c, part[1] = c;
        begin[2] = o, part[2] = rows;
        View from = subview(x, begin.data(), part.data(), D::kWord), turned = from;
        turned.erase_axis(0);
        for (int i = 0; i < n; ++i) {
          for (int k = 0; k < 2; ++k) {
            const size_t to = size_t(1 + i + (k == 0 ? n : 0)), at = size_t(2 + i + k * n);
            turned.shape[to] = from.shape[at];
            turned.stride[to] = from.stride[at];
          }
        }
        View matrix =
            allocate(scratch, x.dtype, turned.rank, turned.shape, demand, x.flagged(), false);
        copy_view(matrix, turned, D::kWord, pool);
        CHECK(reshape_view(matrix, 2, {depth, rows * row})) << "a contiguous matrix";
        begin = {g, 0, 0};
        part = {1, f, depth};
        View group = subview(weights, begin.data(), part.data(), D::kWord);
        group.erase_axis(0);
        View product = matmul(scratch, group, matrix, demand, pool);
        begin = {b, g * f, o};
        part = out.shape;
        part[0] = 1, part[1] = f, part[2] = rows;
        CHECK(reshape_view(product, out.rank, part)) << "a contiguous product";
        copy_view(subview(out, begin.data(), part.data(), D::kWord), product, D::kWord, pool);
      }
    }
  }
  return out;
}

template <class D>
View Interpreter<D>::conv(Arena& arena, const Graph& g, const Op& op, const View& x, const View& w,
                          Components demand, ThreadPool* pool) const {
  const View v = windows(arena, x, window_axes(g, op), Rational(0), demand, pool);
  return slide(arena, v, w, g.attrs<ConvAttrs>(op).groups, demand, pool);
}

// A convolution of x, its elements `stride` apart among zeros, with the weights turned round.
template <class D>
View Interpreter<D>::conv_transpose(Arena& arena, const Graph& g, const Op& op, const View& x,
                                    const View& w, Components demand, ThreadPool* pool) const {
  const std::vector<WindowAxis> axes = window_axes(g, op);
  const int n = int(axes.size());
  const int64_t groups = g.attrs<ConvAttrs>(op).groups;
  // Element i of the spread axis is i·stride; behind and before it as many zeros as windows reach.
  std::array<int64_t, kMaxRank> begin{}, shape = x.shape, origin{}, kept = x.shape;
  std::vector<WindowAxis> windowed = axes;
  for (int i = 0; i < n; ++i) {
    WindowAxis& a = windowed[size_t(i)];
    const size_t d = size_t(2 + i);
    const int64_t reach = (a.taps - 1) * a.dilation, spread = (a.in - 1) * a.stride + 1;
    const int64_t before = reach - a.low, behind = reach - a.high;
    begin[d] = std::max<int64_t>(before, 0);
    shape[d] = begin[d] + spread + std::max<int64_t>(behind, 0);
    origin[d] = std::max<int64_t>(-before, 0);
    kept[d] = shape[d] - origin[d] - std::max<int64_t>(-behind, 0);
    a = {kept[d], a.taps, a.out, 1, a.dilation, 0, 0};
  }
  View zeros = allocate(arena, x.dtype, x.rank, shape, demand, x.flagged(), false);
  copy_view(zeros, stretched(scalar(arena, x.dtype, Rational(0), demand), zeros.rank, zeros.shape),
            D::kWord, pool);
  View spread = subview(zeros, begin.data(), x.shape.data(), D::kWord);
  for (int i = 0; i < n; ++i) spread.stride[size_t(2 + i)] *= axes[size_t(i)].stride;
  copy_view(spread, x, D::kWord, pool);
  // [G·C, F, t…] as [G, F, C, t…], taps from last to first
  View turned = w;
  const int64_t c = w.shape[0] / groups;
  turned.insert_axis(0, groups, c * w.stride[0]);
  turned.shape[1] = w.shape[1], turned.stride[1] = w.stride[1];
  turned.shape[2] = c, turned.stride[2] = w.stride[0];
  for (int i = 0; i < n; ++i) {
    const size_t d = size_t(3 + i);
    tessera::advance(turned, (turned.shape[d] - 1) * turned.stride[d], D::kWord);
    turned.stride[d] = -turned.stride[d];
  }
  View weights = copy_of(arena, turned, demand);
  std::array<int64_t, kMaxRank> merged{};
  merged[0] = groups * w.shape[1];
  std::copy(turned.shape.begin() + 2, turned.shape.begin() + turned.rank, merged.begin() + 1);
  CHECK(reshape_view(weights, w.rank, merged)) << "contiguous weights";
  const View v = windows(arena, subview(zeros, origin.data(), kept.data(), D::kWord), windowed,
                         Rational(0), demand, pool);
  return slide(arena, v, weights, groups, demand, pool);
}

template <class D>
View Interpreter<D>::pooled(Arena& arena, const Graph& g, const Op& op, const View& x,
                            Components demand, ThreadPool* pool) const {
  const std::vector<WindowAxis> axes = window_axes(g, op);
  const bool maximum = op.kind == OpKind::PoolMax;
  Rational outside(0);
  if (maximum && is_float(x.dtype))
    outside = Rational::infinity(true);
  else if (maximum && x.dtype != DType::U8)
    outside = Rational(std::numeric_limits<int64_t>::min() >> (64 - 8 * size_in_bytes(x.dtype)));
  const View v = windows(arena, x, axes, outside, demand, pool);
  Op over;
  over.kind = maximum ? OpKind::ReduceMax : OpKind::Sum;
  ReduceAttrs taps;
  for (int i = 0; i < int(axes.size()); ++i) taps.axes.push_back(x.rank + i);
  over.attrs = taps;
  return reduce(arena, over, v, demand, pool);
}

}  // namespace tessera
