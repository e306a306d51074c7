#include "search/mutate/cone.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace tessera::mutants {
namespace {

uint64_t residue(const Modulus<uint64_t>& field, const Rational& r) {
  const uint64_t value = field.mul(field.from_int(r.num()), field.inv(field.from_int(r.den())));
  const uint64_t scale = field.pow(field.from_int(2), uint64_t(std::abs(r.exp2())));
  return field.mul(value, r.exp2() < 0 ? field.inv(scale) : scale);
}

// The next of all taps of a window; false after the last.
bool next_taps(const std::vector<WindowAxis>& axes, Index& taps) {
  for (size_t i = axes.size(); i-- > 0;) {
    if (++taps[i] < axes[i].taps) return true;
    taps[i] = 0;
  }
  return false;
}

}  // namespace

ThinAxes thin_axes(const Graph& g) {
  ThinAxes thin(g.inputs().size(), -1);
  for (const Op& op : g.ops()) {
    if (op.kind != OpKind::Conv && op.kind != OpKind::Matmul) continue;
    const auto at = std::ranges::find(g.inputs(), op.inputs[1]);
    if (at != g.inputs().end())
      thin[size_t(at - g.inputs().begin())] =
          op.kind == OpKind::Conv ? 1 : g.type(op.inputs[1]).rank() - 2;
  }
  return thin;
}

Cone::Cone(const Graph& graph, uint64_t seed, ThinAxes thin)
    : graph_(graph), seed_(seed), thin_(std::move(thin)), field_(kPrime61) {}

std::vector<int64_t> Cone::support(TensorId t, size_t axis, int64_t n) const {
  const Node& x = nodes_[t.index];
  if (x.form == Form::Input && x.thin == int(axis)) return x.places;
  std::vector<int64_t> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i++) all[size_t(i)] = i;
  return all;
}

void Cone::forget(size_t tensors) {
  if (nodes_.size() > tensors) nodes_.resize(tensors);
}

void Cone::extend(size_t tensors) {
  for (size_t t = nodes_.size(); t < tensors; t++) {
    const Op& op = graph_.producer(TensorId(t));
    const auto form = form_of(graph_, op);
    CHECK(form) << name(op.kind) << " has no form";
    Node n;
    n.form = *form;
    n.shape = extents(graph_.type(TensorId(t)).shape);
    n.in = op.inputs;
    if (is_windowed(op.kind)) n.axes = window_axes(graph_, op);
    if (*form == Form::Input) {
      const auto& inputs = graph_.inputs();
      const size_t k = size_t(std::ranges::find(inputs, TensorId(t)) - inputs.begin());
      n.number = derive_key(seed_, k);
      if (k < thin_.size()) n.thin = thin_[k];
      if (n.thin >= 0) {
        constexpr uint64_t kPlaces = 3;
        const int64_t extent = n.shape[size_t(n.thin)];
        std::set<int64_t> places;
        for (uint64_t i = 0; i < kPlaces; i++)
          places.insert(int64_t(keyed_hash(n.number + 1, i) % uint64_t(extent)));
        n.places.assign(places.begin(), places.end());
      }
    } else if (*form == Form::Const) {
      n.number = residue(field_, *op.constant());
    } else if (*form == Form::Div) {
      n.number = field_.inv(nodes_[n.in[1].index].number);
    } else if (*form == Form::Mean) {
      int64_t terms = 1;
      for (int a : graph_.attrs<ReduceAttrs>(op).axes)
        terms *= graph_.type(op.inputs[0]).shape[size_t(a)].extent;
      n.number = field_.inv(field_.from_int(terms));
    }
    nodes_.push_back(std::move(n));
  }
}

uint64_t Cone::at(TensorId t, const Index& index) {
  extend(t.index + 1);
  Node& n = nodes_[t.index];
  if (n.form == Form::Input) {
    const uint64_t at = uint64_t(flat(index, n.shape));
    if (n.thin >= 0 && !std::ranges::binary_search(n.places, index[size_t(n.thin)])) return 0;
    return uint64_t((uint128(keyed_hash(n.number, at)) * field_.p) >> 64);
  }
  if (n.form == Form::Const) return n.number;
  if (!is_arithmetic(n.form)) return compute(t, index);
  const int64_t key = flat(index, n.shape);
  if (const auto known = n.memo.find(key); known != n.memo.end()) return known->second;
  const uint64_t value = compute(t, index);
  nodes_[t.index].memo.emplace(key, value);
  return value;
}

// An element of a broadcast operand, for a place in a tensor of rank `rank`.
uint64_t Cone::operand(TensorId t, size_t rank, const Index& index) {
  const Node& n = nodes_[t.index];
  Index i{};
  const size_t lead = rank - n.shape.size();
  for (size_t d = 0; d < n.shape.size(); d++) i[d] = n.shape[d] == 1 ? 0 : index[lead + d];
  return at(t, i);
}

uint64_t Cone::conv(const Node& n, const Op& op, const Index& index) {
  const int64_t groups = graph_.attrs<ConvAttrs>(op).groups;
  const std::vector<int64_t> ws = nodes_[n.in[1].index].shape;
  const int64_t g = index[1] / (n.shape[1] / groups);
  const std::vector<int64_t> channels = support(n.in[1], 1, ws[1]);
  Index x{}, w{}, taps{};
  x[0] = index[0], w[0] = index[1];
  const size_t axes = n.axes.size();
  uint64_t sum = 0;
  while (true) {
    bool inside = true;
    for (size_t i = 0; i < axes; i++) {
      const WindowAxis& a = n.axes[i];
      x[2 + i] = index[2 + i] * a.stride + taps[i] * a.dilation - a.low;
      w[2 + i] = taps[i];
      inside = inside && x[2 + i] >= 0 && x[2 + i] < a.in;
    }
    for (const int64_t c : channels) {
      if (!inside) break;
      w[1] = c;
      x[1] = g * ws[1] + c;
      const uint64_t weight = at(n.in[1], w);
      if (weight == 0) continue;
      sum = field_.add(sum, field_.mul(weight, at(n.in[0], x)));
    }
    if (!next_taps(n.axes, taps)) return sum;
  }
}

uint64_t Cone::conv_transpose(const Node& n, const Op& op, const Index& index) {
  const int64_t groups = graph_.attrs<ConvAttrs>(op).groups;
  const std::vector<int64_t> ws = nodes_[n.in[1].index].shape;
  const int64_t g = index[1] / ws[1], channels = ws[0] / groups;
  Index x{}, w{}, taps{};
  x[0] = index[0], w[1] = index[1] % ws[1];
  const size_t axes = n.axes.size();
  uint64_t sum = 0;
  while (true) {
    bool inside = true;
    for (size_t i = 0; i < axes; i++) {
      const WindowAxis& a = n.axes[i];
      const int64_t spread = index[2 + i] + a.low - taps[i] * a.dilation;
      w[2 + i] = taps[i];
      x[2 + i] = spread / a.stride;
      inside = inside && spread >= 0 && spread % a.stride == 0 && x[2 + i] < a.in;
    }
    for (int64_t c = 0; inside && c < channels; c++) {
      x[1] = w[0] = g * channels + c;
      sum = field_.add(sum, field_.mul(at(n.in[1], w), at(n.in[0], x)));
    }
    if (!next_taps(n.axes, taps)) return sum;
  }
}

uint64_t Cone::compute(TensorId t, const Index& index) {
  const Node& n = nodes_[t.index];  // operands have smaller ids, so no node is added meanwhile
  const Op& op = graph_.producer(t);
  const size_t rank = n.shape.size();
  Index i = index;
  switch (n.form) {
  case Form::Input:
  case Form::Const: break;
  case Form::Neg: return field_.neg(at(n.in[0], index));
  case Form::Add: return field_.add(operand(n.in[0], rank, index), operand(n.in[1], rank, index));
  case Form::Sub: return field_.sub(operand(n.in[0], rank, index), operand(n.in[1], rank, index));
  case Form::Mul: return field_.mul(operand(n.in[0], rank, index), operand(n.in[1], rank, index));
  case Form::Div: return field_.mul(operand(n.in[0], rank, index), n.number);
  case Form::Sum:
  case Form::Mean: {
    const auto& a = graph_.attrs<ReduceAttrs>(op);
    const std::vector<int64_t>& xs = nodes_[n.in[0].index].shape;
    std::vector<int64_t> folded;
    for (int axis : a.axes) folded.push_back(xs[size_t(axis)]);
    int64_t terms = 1;
    for (int64_t e : folded) terms *= e;
    uint64_t sum = 0;
    for (int64_t k = 0; k < terms; k++) {
      const Index at_folded = unflat(k, folded);
      for (size_t d = 0, kept = 0, gone = 0; d < xs.size(); d++) {
        if (gone < a.axes.size() && size_t(a.axes[gone]) == d) {
          i[d] = at_folded[gone++];
          if (a.keepdims) kept++;
        } else {
          i[d] = index[kept++];
        }
      }
      sum = field_.add(sum, at(n.in[0], i));
    }
    return n.form == Form::Sum ? sum : field_.mul(sum, n.number);
  }
  case Form::Matmul: {
    const int64_t depth = nodes_[n.in[0].index].shape.back();
    uint64_t sum = 0;
    for (const int64_t k : support(n.in[1], nodes_[n.in[1].index].shape.size() - 2, depth)) {
      Index a = index, b = index;
      a[rank - 1] = k;
      b[rank - 2] = k;
      // The innermost two axes are never broadcast, though their extents may be 1.
      const uint64_t y = operand(n.in[1], rank, b);
      if (y != 0) sum = field_.add(sum, field_.mul(operand(n.in[0], rank, a), y));
    }
    return sum;
  }
  case Form::Conv: return conv(n, op, index);
  case Form::ConvTranspose: return conv_transpose(n, op, index);
  case Form::PoolSum: {
    const size_t axes = n.axes.size(), lead = rank - axes;
    std::vector<int64_t> size;
    int64_t taps = 1;
    for (const WindowAxis& a : n.axes) {
      size.push_back(a.taps);
      taps *= a.taps;
    }
    uint64_t sum = 0;
    for (int64_t k = 0; k < taps; k++) {
      const Index tap = unflat(k, size);
      bool inside = true;
      for (size_t d = 0; d < axes; d++) {
        const WindowAxis& a = n.axes[d];
        i[lead + d] = index[lead + d] * a.stride + tap[d] * a.dilation - a.low;
        inside = inside && i[lead + d] >= 0 && i[lead + d] < a.in;
      }
      if (inside) sum = field_.add(sum, at(n.in[0], i));
    }
    return sum;
  }
  case Form::Transpose: {
    const auto& perm = graph_.attrs<PermAttrs>(op).perm;
    for (size_t d = 0; d < rank; d++) i[size_t(perm[d])] = index[d];
    return at(n.in[0], i);
  }
  case Form::Reshape: return at(n.in[0], unflat(flat(index, n.shape), nodes_[n.in[0].index].shape));
  case Form::Broadcast: return operand(n.in[0], rank, index);
  case Form::Repeat:
    for (size_t d = 0; d < rank; d++) i[d] = index[d] % nodes_[n.in[0].index].shape[d];
    return at(n.in[0], i);
  case Form::Concat: {
    const size_t axis = size_t(graph_.attrs<AxisAttrs>(op).axis);
    for (const TensorId in : n.in) {
      const int64_t extent = nodes_[in.index].shape[axis];
      if (i[axis] < extent) return at(in, i);
      i[axis] -= extent;
    }
    break;
  }
  case Form::Stack: {
    const size_t axis = size_t(graph_.attrs<AxisAttrs>(op).axis);
    for (size_t d = axis; d + 1 < rank; d++) i[d] = index[d + 1];
    return at(n.in[size_t(index[axis])], i);
  }
  case Form::Slice: {
    const auto& a = graph_.attrs<SliceAttrs>(op);
    for (size_t d = 0; d < rank; d++) i[d] = a.starts[d] + index[d] * a.steps[d];
    return at(n.in[0], i);
  }
  case Form::Pad: {
    const auto& a = graph_.attrs<PadAttrs>(op);
    for (size_t d = 0; d < rank; d++) {
      i[d] = index[d] - a.low[d];
      if (i[d] < 0 || i[d] >= nodes_[n.in[0].index].shape[d]) return 0;
    }
    return at(n.in[0], i);
  }
  }
  unreachable("Form");
}

}  // namespace tessera::mutants
