#include "backend/cpu/transposed_convolutions.h"

#include <algorithm>
#include <vector>

#include "ir/build.h"
#include "ir/window.h"

namespace tessera {
namespace {

using List = std::vector<int64_t>;

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

// An axis of the convolution: results q of phase r are element q·stride + r of what the transposed
// one makes before `low` elements are taken off.
struct Phases {
  int64_t taps, dilation, low, high, from, results;

  explicit Phases(const WindowAxis& a) {
    // Between the taps of a strided window there are zeros.
    const int64_t span = (a.taps - 1) * a.dilation;
    taps = a.stride == 1 ? a.taps : span / a.stride + 1;
    dilation = a.stride == 1 ? a.dilation : 1;
    const int64_t reach = (taps - 1) * dilation;
    from = std::min(floor_div(a.low, a.stride), reach);
    const int64_t to = std::max(floor_div(a.low + a.out - 1, a.stride) + 1, a.in);
    low = reach - from;
    high = to - a.in;
    results = to - from;
  }
};

class Rewriter {
 public:
  explicit Rewriter(const Graph& graph)
      : from_(graph), to_(graph.name()), at_(graph.tensors().size()) {}

  Graph run() {
    for (const Op& op : from_.ops())
      if (op.kind == OpKind::ConvTranspose)
        at_[op.result().index] = rewrite(op);
      else
        copy_op(from_, op, to_, at_);
    for (TensorId t : from_.outputs()) to_.add_output(at_[t.index]);
    return std::move(to_);
  }

 private:
  TensorId rewrite(const Op& op) {
    const std::vector<WindowAxis> axes = window_axes(from_, op);
    ConvAttrs conv;
    conv.groups = from_.attrs<ConvAttrs>(op).groups;
    std::vector<Phases> phases(axes.begin(), axes.end());
    for (const Phases& p : phases) {
      conv.strides.push_back(1);
      conv.dilations.push_back(p.dilation);
      conv.low.push_back(p.low);
      conv.high.push_back(p.high);
    }
    const TensorId w = weights(at_[op.inputs[1].index], conv.groups, axes, phases);
    const TensorId y = to_.add(OpKind::Conv, {at_[op.inputs[0].index], w}, conv);
    return cut(interleaved(y, axes), axes, phases);
  }

  // [G·C, F, k…] to [G·F·Πs, C, taps…]: of phase r taps r, r + s, …, the last one first.
  TensorId weights(TensorId w, int64_t groups, const std::vector<WindowAxis>& axes,
                   const std::vector<Phases>& phases) {
    List shape = extents(to_.type(w).shape);
    const int64_t channels = shape[0] / groups, filters = shape[1];
    const List windows(shape.begin() + 2, shape.end());
    w = reshape(w, joined({groups, channels, filters}, windows));
    w = transpose(w, joined({0, 2, 1}, counting(3, axes.size())));
    w = reshape(w, joined({groups * filters, channels}, windows));
    for (size_t i = 0; i < axes.size(); ++i)
      if (axes[i].stride > 1) w = filled(w, i + 2, axes[i], phases[i]);
    List split{groups * filters, channels}, order{0}, result{groups * filters, channels};
    for (size_t i = 0; i < axes.size(); ++i) {
      split.push_back(phases[i].taps);
      split.push_back(axes[i].stride);
      order.push_back(int64_t(3 + 2 * i));
      result[0] *= axes[i].stride;
      result.push_back(phases[i].taps);
    }
    order.push_back(1);
    for (size_t i = 0; i < axes.size(); ++i) order.push_back(int64_t(2 + 2 * i));
    w = reshape(w, split);
    for (size_t i = 0; i < axes.size(); ++i) w = reversed(w, 2 + 2 * i);
    return reshape(transpose(w, order), result);
  }

  // Zeros between the taps along `axis`, and behind them up to all phases' taps.
  TensorId filled(TensorId w, size_t axis, const WindowAxis& a, const Phases& p) {
    List shape = extents(to_.type(w).shape);
    if (a.dilation > 1) {
      List apart = shape;
      apart.insert(apart.begin() + int64_t(axis) + 1, 1);
      w = pad(reshape(w, apart), axis + 1, a.dilation - 1);
      shape[axis] *= a.dilation;
      w = reshape(w, shape);
    }
    const int64_t wanted = p.taps * a.stride;
    if (shape[axis] < wanted) return pad(w, axis, wanted - shape[axis]);
    shape[axis] = wanted;
    return slice(w, List(shape.size(), 0), shape);
  }

  // [N, F·Πs, q…] to [N, F, q·s…].
  TensorId interleaved(TensorId y, const std::vector<WindowAxis>& axes) {
    const List shape = extents(to_.type(y).shape);
    List split{shape[0], shape[1]}, order{0, 1}, result = shape;
    for (const WindowAxis& a : axes) {
      split[1] /= a.stride;
      split.push_back(a.stride);
    }
    for (size_t i = 0; i < axes.size(); ++i) {
      split.push_back(shape[i + 2]);
      order.push_back(int64_t(2 + axes.size() + i));
      order.push_back(int64_t(2 + i));
      result[i + 2] *= axes[i].stride;
    }
    result[1] = split[1];
    return reshape(transpose(reshape(y, split), order), result);
  }

  TensorId cut(TensorId y, const std::vector<WindowAxis>& axes, const std::vector<Phases>& phases) {
    List starts(2 + axes.size(), 0), stops = extents(to_.type(y).shape);
    for (size_t i = 0; i < axes.size(); ++i) {
      starts[i + 2] = axes[i].low - phases[i].from * axes[i].stride;
      stops[i + 2] = starts[i + 2] + axes[i].out;
    }
    return slice(y, starts, stops);
  }

  TensorId reversed(TensorId x, size_t axis) {
    const int64_t n = to_.type(x).shape[axis].extent;
    if (n == 1) return x;
    const Type type{DType::I64, {Dim(n)}};
    const TensorId last = to_.add_const(n - 1, Type{DType::I64, {}});
    const TensorId index =
        to_.add(OpKind::Sub, {last, to_.add(OpKind::Iota, {}, IotaAttrs{0, type})});
    return to_.add(OpKind::Gather, {x, index}, AxisAttrs{int(axis)});
  }
  TensorId reshape(TensorId x, const List& shape) {
    return extents(to_.type(x).shape) == shape
               ? x
               : build::reshape(to_, x, {Shape(shape.begin(), shape.end())});
  }
  TensorId transpose(TensorId x, const List& order) {
    return std::is_sorted(order.begin(), order.end())
               ? x
               : build::transpose(to_, x, {{order.begin(), order.end()}});
  }
  TensorId pad(TensorId x, size_t axis, int64_t behind) {
    PadAttrs attrs;
    attrs.low.assign(to_.type(x).shape.size(), 0);
    attrs.high = attrs.low;
    attrs.high[axis] = behind;
    return build::pad(to_, x, attrs);
  }
  TensorId slice(TensorId x, const List& starts, const List& stops) {
    const bool whole = std::count(starts.begin(), starts.end(), 0) == int64_t(starts.size()) &&
                       stops == extents(to_.type(x).shape);
    return whole ? x : build::slice(to_, x, {starts, stops, {}});
  }
  static List joined(List a, const List& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static List counting(int64_t from, size_t count) {
    List list(count);
    for (int64_t& x : list) x = from++;
    return list;
  }

  const Graph& from_;
  Graph to_;
  std::vector<TensorId> at_;
};

}  // namespace

Graph without_transposed_convolutions(const Graph& graph) {
  const bool any = std::any_of(graph.ops().begin(), graph.ops().end(),
                               [](const Op& op) { return op.kind == OpKind::ConvTranspose; });
  return any ? Rewriter(graph).run() : graph;
}

}  // namespace tessera
