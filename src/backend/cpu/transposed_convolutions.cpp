#include "backend/cpu/transposed_convolutions.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "ir/build.h"
#include "ir/window.h"

namespace tessera {
namespace {

using List = std::vector<int64_t>;

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

// Phases of an axis that have alike taps: result q·stride + r of phase r, before `low` elements are
// taken off, is the sum over m of w[first + m·step] · x[q - shift - m·dilation]. No tap is made up:
// zeros in their place would make NaN of infinities.
struct Phases {
  List first;  // by phase
  int64_t step, taps, dilation, shift;
};

// In the order of their phases.
std::vector<Phases> phases_of(const WindowAxis& a) {
  const int64_t common = std::gcd(a.stride, a.dilation), step = a.stride / common;
  std::vector<Phases> found;
  for (int64_t r = 0; r < a.stride; ++r) {
    int64_t first = 0;  // the least tap that reaches it, if any
    while (first < step && (first * a.dilation - r) % a.stride != 0) ++first;
    const int64_t taps = first < step && first < a.taps ? (a.taps - 1 - first) / step + 1 : 0;
    const int64_t shift = taps > 0 ? (first * a.dilation - r) / a.stride : 0;
    if (found.empty() || found.back().taps != taps || found.back().shift != shift)
      found.push_back({{}, step, taps, a.dilation / common, shift});
    found.back().first.push_back(first);
  }
  return found;
}

// An axis: its phases, and the results q of each that are computed.
struct Axis {
  WindowAxis window;
  std::vector<Phases> phases;
  int64_t from, to;

  explicit Axis(const WindowAxis& a)
      : window(a), phases(phases_of(a)), from(floor_div(a.low, a.stride)),
        to(floor_div(a.low + a.out - 1, a.stride) + 1) {
    for (const Phases& p : phases) {
      if (p.taps == 0) continue;
      from = std::min(from, (p.taps - 1) * p.dilation + p.shift);
      to = std::max(to, a.in + p.shift);
    }
  }
};

class TransposedConvolutionRewriter {
 public:
  explicit TransposedConvolutionRewriter(const Graph& graph)
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
    axes_.clear();
    for (const WindowAxis& a : window_axes(from_, op)) axes_.emplace_back(a);
    image_ = at_[op.inputs[0].index];
    groups_ = from_.attrs<ConvAttrs>(op).groups;
    filters_ = filters(at_[op.inputs[1].index]);
    chosen_.assign(axes_.size(), nullptr);
    return cut(interleaved(of_phases(0)));
  }

  // [G·C, F, k…] to [G·F, C, k…].
  TensorId filters(TensorId w) {
    const List shape = extents(to_.type(w).shape);
    const List windows(shape.begin() + 2, shape.end());
    const int64_t channels = shape[0] / groups_;
    w = reshape(w, joined({groups_, channels, shape[1]}, windows));
    w = transpose(w, joined({0, 2, 1}, counting(3, axes_.size())));
    return reshape(w, joined({groups_ * shape[1], channels}, windows));
  }

  // [N, G·F, phases…, q…], those of the axes before `axis` as they are chosen.
  TensorId of_phases(size_t axis) {
    if (axis == axes_.size()) return convolution();
    std::vector<TensorId> parts;
    for (const Phases& p : axes_[axis].phases) {
      chosen_[axis] = &p;
      parts.push_back(of_phases(axis + 1));
    }
    return parts.size() == 1 ? parts[0] : build::concat(to_, parts, AxisAttrs{int(2 + axis)});
  }

  TensorId convolution() {
    List result{to_.type(image_).shape[0].extent, to_.type(filters_).shape[0].extent};
    for (const Phases* p : chosen_) result.push_back(int64_t(p->first.size()));
    for (const Axis& a : axes_) result.push_back(a.to - a.from);
    const DType dtype = to_.type(image_).dtype;
    ConvAttrs conv;
    conv.groups = groups_;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Phases& p = *chosen_[i];
      if (p.taps == 0) return to_.add_const(0, {dtype, Shape(result.begin(), result.end())});
      conv.strides.push_back(1);
      conv.dilations.push_back(p.dilation);
      conv.low.push_back((p.taps - 1) * p.dilation + p.shift - axes_[i].from);
      conv.high.push_back(axes_[i].to - axes_[i].window.in - p.shift);
    }
    return reshape(to_.add(OpKind::Conv, {image_, weights()}, conv), result);
  }

  // [G·F·phases…, C, taps…], the last tap first.
  TensorId weights() {
    TensorId w = filters_;
    const size_t n = axes_.size();
    for (size_t i = 0; i < n; ++i) {
      const Phases& p = *chosen_[i];
      std::vector<TensorId> parts;
      for (const int64_t first : p.first)
        parts.push_back(reversed(taps(w, 2 + 2 * i, first, p), 2 + 2 * i));
      w = build::stack(to_, parts, AxisAttrs{int(2 + i)});
    }
    const List shape = extents(to_.type(w).shape);
    List order{0}, result{shape[0], shape[1]};
    for (size_t i = 0; i < n; ++i) {
      order.push_back(int64_t(2 + i));
      result[0] *= shape[2 + i];
      result.push_back(shape[2 + n + i]);
    }
    order.push_back(1);
    return reshape(transpose(w, joined(order, counting(int64_t(2 + n), n))), result);
  }

  TensorId taps(TensorId w, size_t axis, int64_t first, const Phases& p) {
    SliceAttrs cut;
    cut.stops = extents(to_.type(w).shape);
    cut.starts.assign(cut.stops.size(), 0);
    cut.steps.assign(cut.stops.size(), 1);
    cut.starts[axis] = first;
    cut.stops[axis] = first + (p.taps - 1) * p.step + 1;
    cut.steps[axis] = p.step;
    return build::slice(to_, w, cut);
  }

  // [N, F, phases…, q…] to [N, F, q·s…].
  TensorId interleaved(TensorId y) {
    const List shape = extents(to_.type(y).shape);
    List order{0, 1}, result{shape[0], shape[1]};
    for (size_t i = 0; i < axes_.size(); ++i) {
      order.push_back(int64_t(2 + axes_.size() + i));
      order.push_back(int64_t(2 + i));
      result.push_back((axes_[i].to - axes_[i].from) * axes_[i].window.stride);
    }
    return reshape(transpose(y, order), result);
  }

  TensorId cut(TensorId y) {
    List starts{0, 0}, stops = extents(to_.type(y).shape);
    for (size_t i = 0; i < axes_.size(); ++i) {
      const WindowAxis& a = axes_[i].window;
      starts.push_back(a.low - axes_[i].from * a.stride);
      stops[i + 2] = starts[i + 2] + a.out;
    }
    const bool whole = std::ranges::count(starts, 0) == int64_t(starts.size()) &&
                       stops == extents(to_.type(y).shape);
    return whole ? y : build::slice(to_, y, SliceAttrs{starts, stops, {}});
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
    return std::ranges::is_sorted(order) ? x
                                         : build::transpose(to_, x, {{order.begin(), order.end()}});
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
  // Of the convolution at hand:
  std::vector<Axis> axes_;
  TensorId image_, filters_;
  int64_t groups_ = 1;
  std::vector<const Phases*> chosen_;  // by axis
};

}  // namespace

Graph without_transposed_convolutions(const Graph& graph) {
  const bool any = std::ranges::any_of(
      graph.ops(), [](const Op& op) { return op.kind == OpKind::ConvTranspose; });
  return any ? TransposedConvolutionRewriter(graph).run() : graph;
}

}  // namespace tessera
