#include "ir/window.h"

#include "base/check.h"
#include "base/error.h"

namespace tessera {
namespace {

template <class A> void take(std::vector<WindowAxis>& axes, const A& a) {
  for (size_t i = 0; i < axes.size(); i++) {
    axes[i].stride = a.strides[i];
    axes[i].dilation = a.dilations[i];
    axes[i].low = a.low[i];
    axes[i].high = a.high[i];
  }
}

}  // namespace

std::vector<WindowAxis> window_axes(const Graph& g, const Op& op) {
  CHECK(is_windowed(op.kind)) << name(op.kind);
  const Type& x = g.type(op.inputs[0]);
  const Type& r = g.type(op.result());
  std::vector<WindowAxis> axes;
  if (is_convolution(op.kind)) {
    axes.resize(size_t(x.rank()) - 2);
    for (size_t i = 0; i < axes.size(); i++)
      axes[i].taps = g.type(op.inputs[1]).shape[i + 2].extent;
    take(axes, g.attrs<ConvAttrs>(op));
  } else {
    const auto& a = g.attrs<WindowAttrs>(op);
    axes.resize(a.size.size());
    for (size_t i = 0; i < axes.size(); i++) axes[i].taps = a.size[i];
    take(axes, a);
  }
  const size_t lead = x.shape.size() - axes.size();
  for (size_t i = 0; i < axes.size(); i++) {
    axes[i].in = x.shape[lead + i].extent;
    axes[i].out = r.shape[lead + i].extent;
  }
  return axes;
}

void complete_window(const char* name, size_t n, std::vector<int64_t>& strides,
                     std::vector<int64_t>& dilations, std::vector<int64_t>& low,
                     std::vector<int64_t>& high) {
  auto fail = [&](const std::string& what) { bad_input(std::string(name) + ": " + what); };
  auto complete = [&](std::vector<int64_t>& list, int64_t value, const char* what) {
    if (list.empty()) list.assign(n, value);
    if (list.size() != n)
      fail(std::string(what) + " needs " + std::to_string(n) + " entries, one per axis of the " +
           "window, not " + std::to_string(list.size()));
    for (int64_t v : list)
      if (v > kMaxElements || v < -kMaxElements || (value == 1 && v < 1))
        fail(std::to_string(v) + " is no value for " + what);
  };
  complete(strides, 1, "strides");
  complete(dilations, 1, "dilations");
  complete(low, 0, "low");
  complete(high, 0, "high");
}

double terms_of(const Graph& g, const Op& op) {
  double n = 1;
  const auto extent = [&](size_t operand, int axis) {
    const Shape& s = g.type(op.inputs[operand]).shape;
    return double(s[axis < 0 ? s.size() - 1 : size_t(axis)].extent);
  };
  if (const auto* a = std::get_if<ReduceAttrs>(&op.attrs))
    for (int axis : a->axes) n *= extent(0, axis);
  if (const auto* a = std::get_if<AccumAttrs>(&op.attrs))
    for (int l : a->loops) n *= double(g.loops()[size_t(l)]);
  if (is_scan(op.kind)) return extent(0, g.attrs<AxisAttrs>(op).axis);
  if (is_product(op.kind))
    return op.inputs.size() == 4 ? extent(0, -1) + extent(1, -1) : extent(0, -1);
  if (!is_windowed(op.kind)) return n;
  for (const WindowAxis& a : window_axes(g, op)) n *= double(a.taps);
  if (const auto* a = std::get_if<ConvAttrs>(&op.attrs)) n *= extent(0, 1) / double(a->groups);
  return n;
}

bool may_transform(Transforms which, const std::vector<WindowAxis>& axes) {
  if (which != Transforms::Common) return which != Transforms::None;
  return axes.size() == 2 && axes[0].taps == axes[1].taps && axes[0].dilation == 1 &&
         axes[1].dilation == 1;
}

int transform_tile(const WindowAxis& a, int wanted) {
  if (a.stride != 1) return 0;
  if (a.taps == 1) return 1;
  // Beyond eight points errors are too large.
  return a.taps == 3 || (wanted == 2 && (a.taps == 5 || a.taps == 7)) ? wanted : 0;
}

}  // namespace tessera
