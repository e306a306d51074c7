#include "search/mutate/cone.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace tessera::mutants {
namespace {

// Tells `add` of all taps of a window that read an element for place `index` of the result: the
// element's place, and the taps.
template <class F>
void each_tap(const std::vector<WindowAxis>& axes, size_t lead, bool transposed, const Index& index,
              F add) {
  Index taps{}, x = index;
  while (true) {
    bool inside = true;
    for (size_t d = 0; d < axes.size() && inside; d++) {
      const auto place = place_of_tap(axes[d], index[lead + d], taps[d], transposed);
      inside = place.has_value();
      x[lead + d] = place.value_or(0);
    }
    if (inside) add(x, taps);
    size_t i = axes.size();
    while (i > 0 && ++taps[i - 1] == axes[i - 1].taps) taps[--i] = 0;
    if (i == 0) return;
  }
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
    : graph_(graph), seed_(seed), thin_(std::move(thin)), model_(FieldSize::Bits61, seed),
      chain_(model_.tables().get<uint64_t>()), field_(chain_.modulus[0]) {}

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
      n.number = chain_.constant(0, *op.constant()).value_or(0);
    } else if (*form == Form::Div) {
      n.number = field_.inv(nodes_[op.inputs[1].index].number);
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

uint64_t Cone::operand(TensorId t, size_t rank, const Index& index) {
  const Node& n = nodes_[t.index];
  Index i{};
  const size_t lead = rank - n.shape.size();
  for (size_t d = 0; d < n.shape.size(); d++) i[d] = n.shape[d] == 1 ? 0 : index[lead + d];
  return at(t, i);
}

uint64_t Cone::reduction(const Op& op, const Index& index) {
  const auto& a = graph_.attrs<ReduceAttrs>(op);
  const std::vector<int64_t>& xs = nodes_[op.inputs[0].index].shape;
  std::vector<int64_t> folded;
  int64_t terms = 1;
  for (const int axis : a.axes) {
    folded.push_back(xs[size_t(axis)]);
    terms *= folded.back();
  }
  Index i{};
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
    sum = field_.add(sum, at(op.inputs[0], i));
  }
  return sum;
}

uint64_t Cone::product(const Node& n, const Op& op, const Index& index) {
  const size_t rank = n.shape.size();
  const TensorId x = op.inputs[0], y = op.inputs[1];
  uint64_t sum = 0;
  for (const int64_t k :
       support(y, nodes_[y.index].shape.size() - 2, nodes_[x.index].shape.back())) {
    Index a = index, b = index;
    a[rank - 1] = k;
    b[rank - 2] = k;
    // The innermost two axes are never broadcast, though their extents may be 1.
    const uint64_t factor = operand(y, rank, b);
    if (factor != 0) sum = field_.add(sum, field_.mul(operand(x, rank, a), factor));
  }
  return sum;
}

uint64_t Cone::convolution(const Node& n, const Op& op, const Index& index) {
  const bool transposed = n.form == Form::ConvTranspose;
  const int64_t groups = graph_.attrs<ConvAttrs>(op).groups;
  const int64_t each = n.shape[1] / groups, group = index[1] / each;
  const int64_t depth = nodes_[op.inputs[0].index].shape[1] / groups;
  const std::vector<int64_t> channels = support(op.inputs[1], transposed ? 0 : 1, depth);
  uint64_t sum = 0;
  each_tap(n.axes, 2, transposed, index, [&](Index& x, const Index& taps) {
    Index w{};
    std::copy_n(taps.begin(), n.axes.size(), w.begin() + 2);
    for (const int64_t c : channels) {
      x[1] = group * depth + c;
      w[0] = transposed ? x[1] : index[1];
      w[1] = transposed ? index[1] % each : c;
      const uint64_t weight = at(op.inputs[1], w);
      if (weight != 0) sum = field_.add(sum, field_.mul(weight, at(op.inputs[0], x)));
    }
  });
  return sum;
}

uint64_t Cone::pooling(const Node& n, const Op& op, const Index& index) {
  uint64_t sum = 0;
  each_tap(n.axes, n.shape.size() - n.axes.size(), false, index,
           [&](const Index& x, const Index&) { sum = field_.add(sum, at(op.inputs[0], x)); });
  return sum;
}

uint64_t Cone::compute(TensorId t, const Index& index) {
  const Node& n = nodes_[t.index];  // operands have smaller ids, so no node is added meanwhile
  const Op& op = graph_.producer(t);
  auto x = [&](size_t i) { return operand(op.inputs[i], n.shape.size(), index); };
  switch (n.form) {
  case Form::Input:
  case Form::Const: break;
  case Form::Neg: return field_.neg(x(0));
  case Form::Add: return field_.add(x(0), x(1));
  case Form::Sub: return field_.sub(x(0), x(1));
  case Form::Mul: return field_.mul(x(0), x(1));
  case Form::Div: return field_.mul(x(0), n.number);
  case Form::Sum: return reduction(op, index);
  case Form::Mean: return field_.mul(reduction(op, index), n.number);
  case Form::Matmul: return product(n, op, index);
  case Form::Conv:
  case Form::ConvTranspose: return convolution(n, op, index);
  case Form::PoolSum: return pooling(n, op, index);
  case Form::Transpose:
  case Form::Reshape:
  case Form::Broadcast:
  case Form::Repeat:
  case Form::Concat:
  case Form::Stack:
  case Form::Slice:
  case Form::Pad: {
    TensorId operand;
    Index from = index;
    const auto shape_of = [&](TensorId of) -> const std::vector<int64_t>& {
      return nodes_[of.index].shape;
    };
    return origin(op, n.form, shape_of, operand, from) ? at(operand, from) : 0;
  }
  }
  unreachable("Form");
}

}  // namespace tessera::mutants
