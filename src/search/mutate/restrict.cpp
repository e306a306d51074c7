#include "search/mutate/restrict.h"

#include <algorithm>

#include "base/check.h"
#include "ir/build.h"

namespace tessera::mutants {
namespace {

void grow(std::optional<Region>& a, const Region& b) {
  if (!a) a = b;
  for (size_t d = 0; d < b.size(); d++)
    (*a)[d] = {std::min((*a)[d].begin, b[d].begin), std::max((*a)[d].end, b[d].end)};
}

// Of a broadcast operand, for a region of the result.
Region broadcast_part(const std::vector<int64_t>& shape, const Region& of) {
  Region r;
  const size_t lead = of.size() - shape.size();
  for (size_t d = 0; d < shape.size(); d++) r.push_back(shape[d] == 1 ? Range{0, 1} : of[lead + d]);
  return r;
}

class Restriction {
 public:
  Restriction(Graph& to, const std::vector<TensorId>& inputs, const Graph& from)
      : to_(to), from_(from), inputs_(inputs), wanted_(from.tensors().size()),
        made_(from.tensors().size()) {}

  std::optional<TensorId> run(TensorId output, const Region& region) {
    wanted_[output.index] = region;
    for (size_t i = from_.ops().size(); i-- > 0;)
      if (wanted_[from_.ops()[i].result().index]) demand(from_.ops()[i]);
    for (const Op& op : from_.ops()) {
      if (!wanted_[op.result().index]) continue;
      if (!emit(op)) return std::nullopt;
    }
    return part(output, region);
  }

 private:
  struct Made {
    TensorId tensor;
    Region region;  // of the original's tensor
  };
  std::vector<int64_t> shape(TensorId t) const { return extents(from_.type(t).shape); }
  Region whole(TensorId t) const { return all_of(from_, t); }

  // Operators that are computed whole, whatever part of them is wanted.
  bool is_whole(const Op& op) const {
    const Form f = *form_of(from_, op);
    return f == Form::ConvTranspose || f == Form::Reshape || f == Form::Repeat || f == Form::Stack;
  }
  // The region an operator computes for what is wanted of it.
  Region computed(const Op& op) const {
    Region r = *wanted_[op.result().index];
    if (is_whole(op)) return whole(op.result());
    // Groups are not taken apart.
    if (op.kind == OpKind::Conv && from_.attrs<ConvAttrs>(op).groups > 1)
      r[1] = whole(op.result())[1];
    return r;
  }
  Region operand_region(const Op& op, size_t i) const {
    const Region r = computed(op);
    const TensorId x = op.inputs[i];
    const size_t rank = r.size();
    Region in = whole(x);
    switch (*form_of(from_, op)) {
    case Form::Neg:
    case Form::Add:
    case Form::Sub:
    case Form::Mul:
    case Form::Div:
    case Form::Broadcast: return broadcast_part(shape(x), r);
    case Form::Sum:
    case Form::Mean: {
      const auto& a = from_.attrs<ReduceAttrs>(op);
      for (size_t d = 0, kept = 0; d < in.size(); d++) {
        const bool gone = std::ranges::binary_search(a.axes, int(d));
        if (!gone) in[d] = r[kept];
        if (!gone || a.keepdims) kept++;
      }
      return in;
    }
    case Form::Matmul: {
      const size_t n = in.size();
      for (size_t d = 0; d + 2 < n; d++)
        if (in[d].size() > 1) in[d] = r[rank - n + d];
      if (i == 0)
        in[n - 2] = r[rank - 2];
      else
        in[n - 1] = r[rank - 1];
      return in;
    }
    case Form::Conv:
      if (i == 1) {
        in[0] = r[1];
        return in;
      }
      in[0] = r[0];
      for (size_t d = 0; const WindowAxis& a : window_axes(from_, op))
        in[2 + d] = reads(a, r[2 + d]).range, d++;
      return in;
    case Form::PoolSum: {
      const std::vector<WindowAxis> axes = window_axes(from_, op);
      const size_t lead = rank - axes.size();
      for (size_t d = 0; d < lead; d++) in[d] = r[d];
      for (size_t d = 0; d < axes.size(); d++) in[lead + d] = reads(axes[d], r[lead + d]).range;
      return in;
    }
    case Form::Transpose: {
      const auto& perm = from_.attrs<PermAttrs>(op).perm;
      for (size_t d = 0; d < rank; d++) in[size_t(perm[d])] = r[d];
      return in;
    }
    case Form::Concat: {
      const size_t axis = size_t(from_.attrs<AxisAttrs>(op).axis);
      int64_t at = 0;
      for (size_t k = 0; k < i; k++) at += shape(op.inputs[k])[axis];
      const int64_t n = in[axis].end;
      in = r;
      in[axis] = {std::clamp<int64_t>(r[axis].begin - at, 0, n),
                  std::clamp<int64_t>(r[axis].end - at, 0, n)};
      return in;
    }
    case Form::Slice: {
      const auto& a = from_.attrs<SliceAttrs>(op);
      for (size_t d = 0; d < rank; d++)
        in[d] = {a.starts[d] + r[d].begin * a.steps[d],
                 a.starts[d] + (r[d].end - 1) * a.steps[d] + 1};
      return in;
    }
    case Form::Pad: {
      const auto& a = from_.attrs<PadAttrs>(op);
      for (size_t d = 0; d < rank; d++)
        in[d] = {std::clamp<int64_t>(r[d].begin - a.low[d], 0, in[d].end),
                 std::clamp<int64_t>(r[d].end - a.low[d], 0, in[d].end)};
      return in;
    }
    case Form::Input:
    case Form::Const:
    case Form::ConvTranspose:
    case Form::Reshape:
    case Form::Repeat:
    case Form::Stack: return in;
    }
    unreachable("Form");
  }
  static bool empty(const Region& r) {
    return std::ranges::any_of(
        r, [](const Range& x) { return x.size() <= 0; });
  }

  void demand(const Op& op) {
    for (size_t i = 0; i < op.inputs.size(); i++) {
      const Region r = operand_region(op, i);
      if (!empty(r)) grow(wanted_[op.inputs[i].index], r);
    }
  }

  // A region of a tensor out of what was made of it.
  TensorId part(TensorId t, const Region& r) {
    const Made& m = made_[t.index];
    Region inside;
    for (size_t d = 0; d < r.size(); d++)
      inside.push_back({r[d].begin - m.region[d].begin, r[d].end - m.region[d].begin});
    return slice_of(to_, m.tensor, inside);
  }

  bool emit(const Op& op) {
    Made& made = made_[op.result().index];
    const Form form = *form_of(from_, op);
    if (form == Form::Input) {
      const auto& inputs = from_.inputs();
      const size_t k = size_t(std::ranges::find(inputs, op.result()) - inputs.begin());
      made = {inputs_[k], whole(op.result())};
      return true;
    }
    const Region r = form == Form::Const ? whole(op.result()) : computed(op);
    if (form == Form::Const) {
      const auto& a = from_.attrs<ConstAttrs>(op);
      made = {to_.add_const(a.value, a.type), r};
      return true;
    }
    Attrs attrs = op.attrs;
    std::vector<TensorId> in;
    for (size_t i = 0; i < op.inputs.size(); i++) {
      const Region part_of = operand_region(op, i);
      if (!empty(part_of))
        in.push_back(part(op.inputs[i], part_of));
      else if (form != Form::Concat)
        return false;
    }
    if (form == Form::Conv || form == Form::PoolSum) {
      const std::vector<WindowAxis> axes = window_axes(from_, op);
      const size_t lead = r.size() - axes.size();
      for (size_t d = 0; d < axes.size(); d++) {
        const Reads reading = reads(axes[d], r[lead + d]);
        if (auto* a = std::get_if<ConvAttrs>(&attrs)) {
          a->low[d] = reading.low;
          a->high[d] = reading.high;
        } else {
          std::get<WindowAttrs>(attrs).low[d] = reading.low;
          std::get<WindowAttrs>(attrs).high[d] = reading.high;
        }
      }
    }
    if (auto* a = std::get_if<PadAttrs>(&attrs)) {
      const std::vector<int64_t> source = shape(op.inputs[0]);
      for (size_t d = 0; d < r.size(); d++) {
        const int64_t low = a->low[d];
        a->low[d] = std::max<int64_t>(0, low - r[d].begin);
        a->high[d] = std::max<int64_t>(0, r[d].end - low - source[d]);
      }
    }
    if (auto* a = std::get_if<SliceAttrs>(&attrs)) {
      for (size_t d = 0; d < r.size(); d++) {
        a->starts[d] = 0;
        a->stops[d] = (r[d].size() - 1) * a->steps[d] + 1;
      }
    }
    if (form == Form::Broadcast) {
      ShapeAttrs a;
      for (const Range& x : r) a.shape.push_back(x.size());
      attrs = a;
    }
    made = {to_.add(op.kind, in, attrs), r};
    return true;
  }

  Graph& to_;
  const Graph& from_;
  const std::vector<TensorId>& inputs_;
  std::vector<std::optional<Region>> wanted_;  // by tensor; a scalar's region has no axes
  std::vector<Made> made_;
};

}  // namespace

Reads reads(const WindowAxis& a, const Range& out) {
  const int64_t begin = out.begin * a.stride - a.low;
  const int64_t end = (out.end - 1) * a.stride + (a.taps - 1) * a.dilation - a.low + 1;
  return {{std::clamp<int64_t>(begin, 0, a.in), std::clamp<int64_t>(end, 0, a.in)},
          std::max<int64_t>(0, -begin),
          std::max<int64_t>(0, end - a.in)};
}

Region all_of(const Graph& g, TensorId x) {
  Region r;
  for (const int64_t n : extents(g.type(x).shape)) r.push_back({0, n});
  return r;
}

TensorId slice_of(Graph& g, TensorId x, const Region& r) {
  if (r == all_of(g, x)) return x;
  SliceAttrs a;
  for (const Range& d : r) {
    a.starts.push_back(d.begin);
    a.stops.push_back(d.end);
  }
  return build::slice(g, x, a);
}

std::optional<TensorId> compute_region(Graph& g, const std::vector<TensorId>& inputs,
                                       const Graph& original, size_t output, const Region& r) {
  CHECK(output < original.outputs().size());
  return Restriction(g, inputs, original).run(original.outputs()[output], r);
}

}  // namespace tessera::mutants
