#include "search/mutate/vocabulary.h"

#include <algorithm>

#include "ir/window.h"

namespace tessera::mutants {

double count(const Dims& d) { return product_of<double>(d); }

namespace {

constexpr int64_t kMostCopies = 5;  // of an image, when taps become channels
constexpr int64_t kMostMerged = 8;  // groups into one: so many times the arithmetic
constexpr int64_t kSmall = 3;       // taps of the windows that large ones are cut into

// Taps of windows as channels: of k = f·q taps along an axis, f blocks of q become channels, as the
// image becomes f overlapping copies of itself that lie q taps apart (EinNet, OSDI'23, calls it
// splitting a summation). `blocks`: f by axis of the window, 1: stays. With `flat`, an axis that is
// left with one tap joins the batch: frames of a film become images.
void add_split(const Graph& g, const Op& op, const Dims& blocks, bool flat, Vocabulary& v) {
  const std::vector<WindowAxis> axes = window_axes(g, op);
  const Dims x = extents(g.type(op.inputs[0]).shape), w = extents(g.type(op.inputs[1]).shape);
  const Dims y = extents(g.type(op.result()).shape);
  Rearrangement image, weights;
  image.low.assign(x.size(), 0);
  image.high = weights.low = weights.high = image.low;
  int left = -1;  // the axis that joins the batch
  for (size_t i = 0; i < axes.size(); i++) {
    const WindowAxis& axis = axes[i];
    const int at = int(i) + 2;
    const int64_t f = blocks[i], q = (axis.taps + f - 1) / f;
    const bool joins = flat && left < 0 && q == 1 && axis.stride == 1;
    if (f == 1 && !(joins && axis.low == 0 && axis.high == 0)) continue;
    if (f > 1) {
      Tiles t{at, 1, f, (axis.out - 1) * axis.stride + (q - 1) * axis.dilation + 1,
              q * axis.dilation};
      if (axis.low < 0) return;
      image.low[size_t(at)] = axis.low;
      image.high[size_t(at)] =
          std::max<int64_t>(0, (f - 1) * t.step + t.length - axis.low - axis.in);
      image.tiles.push_back(t);
      weights.high[size_t(at)] = f * q - axis.taps;
      weights.moves.push_back({at, false, f, 1, false});
    }
    if (joins) left = at;
  }
  if (flat) {
    if (left < 0) return;
    const int64_t length = y[size_t(left)];
    image.moves.push_back({left, false, length, 0, true});
    image.drop = weights.drop = left;
    Rearrangement back;
    back.insert = left;
    back.moves.push_back({0, true, length, left, false});
    Dims result = y;
    result[0] *= length;
    result.erase(result.begin() + left);
    v.returns.emplace_back(result, back);
  }
  if (!image.shape(x) || !weights.shape(w)) return;
  v.windows.emplace_back(x, std::move(image));
  v.windows.emplace_back(w, std::move(weights));
}

void add_windows(const Graph& g, const Op& op, Vocabulary& v) {
  if (g.attrs<ConvAttrs>(op).groups != 1) return;
  const std::vector<WindowAxis> axes = window_axes(g, op);
  const Dims whole(axes.size(), 1);
  // Films as images: code for images is what libraries and back ends have most of.
  const bool film = axes.size() == 3;
  if (film) add_split(g, op, whole, true, v);
  for (size_t i = 0; i < axes.size(); i++) {
    Dims blocks = whole;
    blocks[i] = axes[i].taps;
    if (blocks[i] == 1 || blocks[i] > kMostCopies) continue;
    add_split(g, op, blocks, false, v);
    if (film) add_split(g, op, blocks, true, v);
  }
  // All long axes into short ones.
  Dims blocks = whole;
  for (size_t i = 0; i < axes.size(); i++)
    if (axes[i].taps > kSmall) blocks[i] = (axes[i].taps + kSmall - 1) / kSmall;
  if (blocks != whole && int64_t(count(blocks)) <= kMostCopies) add_split(g, op, blocks, false, v);
}

}  // namespace

// Where windows start in the largest one: as far in front of its start as their zeros are fewer.
std::optional<Step> fitted(const Graph& g) {
  Step s;
  s.kind = StepKind::Fit;
  std::vector<int64_t> low;  // of the largest
  std::vector<const Op*> convs;
  for (const TensorId t : g.outputs()) {
    const Op& op = g.producer(t);
    if (op.kind != OpKind::Conv) return std::nullopt;
    const auto& a = g.attrs<ConvAttrs>(op);
    const auto& first = convs.empty() ? a : g.attrs<ConvAttrs>(*convs[0]);
    if (a.strides != first.strides || a.dilations != first.dilations) return std::nullopt;
    const Dims w = extents(g.type(op.inputs[1]).shape);
    convs.push_back(&op);
    s.shape.resize(w.size() - 2, 1);
    low.resize(w.size() - 2, 0);
    for (size_t d = 0; d + 2 < w.size(); d++) {
      s.shape[d] = std::max(s.shape[d], w[d + 2]);
      low[d] = std::max(low[d], a.low[d]);
    }
  }
  bool differ = false;
  for (const Op* op : convs) {
    const auto& a = g.attrs<ConvAttrs>(*op);
    const Dims w = extents(g.type(op->inputs[1]).shape);
    Dims before;
    for (size_t d = 0; d < low.size(); d++) {
      before.push_back((low[d] - a.low[d]) / a.dilations[d]);
      if ((low[d] - a.low[d]) % a.dilations[d] != 0 || before[d] + w[d + 2] > s.shape[d])
        return std::nullopt;
      differ = differ || w[d + 2] != s.shape[d];
    }
    s.lows.push_back(std::move(before));
  }
  if (!differ) return std::nullopt;
  return s;
}

Vocabulary vocabulary(const Graph& g) {
  Vocabulary v;
  std::set<int64_t> factors = {2};
  if (g.outputs().size() > 1) {
    v.groups.insert(int64_t(g.outputs().size()));
    v.fit = fitted(g);
  }
  std::vector<int> depth(g.tensors().size(), 0);
  std::set<std::pair<OpKind, int>> layers;
  for (const Op& op : g.ops()) {
    const Form form = *form_of(g, op);
    const Dims shape = extents(g.type(op.result()).shape);
    for (const TensorId t : op.inputs)
      depth[op.result().index] = std::max(depth[op.result().index], depth[t.index] + 1);
    v.targets.insert(shape);
    v.most = std::max(v.most, count(shape));
    if (is_arithmetic(form)) {
      layers.emplace(op.kind, depth[op.result().index]);
      v.least = std::min(v.least, count(shape));
    }
    if (form == Form::Input || form == Form::Const) continue;
    if (form == Form::Matmul) v.multiplies = true;
    if (form == Form::Conv) {
      v.convolves = true;
      const auto& a = g.attrs<ConvAttrs>(op);
      if (std::ranges::find(v.convs, a) == v.convs.end()) v.convs.push_back(a);
      for (const int64_t d : a.dilations)
        if (d > 1) factors.insert(d);
      for (const int64_t s : a.strides)
        if (s > 1) factors.insert(s);
      for (int64_t k = 2; k <= a.groups; k++)
        if (a.groups % k == 0) {
          v.groups.insert(k);
          if (k <= kMostMerged) v.merges.emplace(a.groups, k);
        }
      const Dims x = extents(g.type(op.inputs[0]).shape);
      if (x[0] > 1 && x[0] <= 16) factors.insert(x[0]);
      // Images that are larger than what most tiles are: also in four.
      if (x[2] >= 32) factors.insert(4);
      Dims low(x.size(), 0);
      std::ranges::copy(a.low, low.begin() + 2);
      const bool strided = std::ranges::any_of(a.strides, [](int64_t s) { return s > 1; });
      if (strided) v.lows.push_back(low);
      add_windows(g, op, v);
      continue;
    }
    if (form == Form::Matmul) continue;
    if (form == Form::Add || form == Form::Sub || form == Form::Mul) v.elementwise = true;
    Step s;
    s.op = op.kind;
    s.attrs = op.attrs;
    s.operands.assign(op.inputs.size(), 0);
    const auto same = [&](const Step& o) { return o.op == s.op && o.attrs == s.attrs; };
    if (op.inputs.size() <= 2 && std::ranges::none_of(v.own, same)) v.own.push_back(std::move(s));
  }
  v.factors.assign(factors.begin(), factors.end());
  v.arithmetic = int(layers.size());
  return v;
}

}  // namespace tessera::mutants
