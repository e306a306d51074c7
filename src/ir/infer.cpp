#include "ir/infer.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "ir/block.h"
#include "ir/custom.h"
#include "ir/extent.h"
#include "ir/window.h"

namespace tessera {
namespace {

// The operands of one operator while its result is inferred, with the checks rows share.
class Inference {
 public:
  Inference(OpKind kind, const std::vector<Type>& operands) : kind_(kind), operands_(operands) {}

  [[noreturn]] void fail(const std::string& what) const {
    bad_input(std::string(name(kind_)) + ": " + what);
  }
  const Type& operand(size_t i = 0) const { return operands_[i]; }
  std::string types() const {
    std::string s;
    for (const Type& t : operands_) s += (s.empty() ? "" : " and ") + t.str();
    return s;
  }
  void require_number() const {
    for (const Type& t : operands_)
      if (t.dtype == DType::Bool) fail("needs numbers, got " + types());
  }
  // What the table of operators says.
  void require_operands() const {
    const bool floats = has(kind_, algebra::Floats), bools = has(kind_, algebra::Bools),
               numbers = has(kind_, algebra::Numbers);
    for (const Type& t : operands_)
      if (floats && !is_float(t.dtype)) fail("needs floating-point operands, got " + types());
    for (const Type& t : operands_)
      if (bools && t.dtype != DType::Bool) fail("needs bool operands, got " + types());
    if (numbers) require_number();
    if (floats || bools || numbers || is_comparison(kind_)) require_same_dtype();
  }
  void require_same_dtype(size_t from = 0) const {
    for (size_t i = from + 1; i < operands_.size(); i++)
      if (operands_[i].dtype != operands_[from].dtype)
        fail("operands must have one dtype, got " + types() + " (insert a cast)");
  }
  Shape broadcast_all() const {
    Shape shape = operands_[0].shape;
    for (size_t i = 1; i < operands_.size(); i++) {
      auto next = broadcast(shape, operands_[i].shape);
      if (!next) fail("shapes do not broadcast: " + types());
      shape = *next;
    }
    return shape;
  }
  // Normalises an axis of a tensor of rank `rank` to 0 … rank-1.
  int axis(int a, int rank) const {
    if (a < -rank || a >= rank)
      fail("axis " + std::to_string(a) + " is out of range for rank " + std::to_string(rank));
    return a < 0 ? a + rank : a;
  }
  std::vector<int> axes(std::vector<int> list, int rank) const {
    for (int& a : list) a = axis(a, rank);
    std::ranges::sort(list);
    if (std::adjacent_find(list.begin(), list.end()) != list.end()) fail("an axis is named twice");
    return list;
  }
  int64_t extent(const Dim& d, const std::string& what) const {
    if (d.symbolic()) fail(what + " needs a known extent, not " + d.str());
    return d.extent;
  }

 private:
  OpKind kind_;
  const std::vector<Type>& operands_;
};

Type reduce(const Inference& in, ReduceAttrs& a) {
  const Type& x = in.operand();
  a.axes = in.axes(a.axes, x.rank());
  if (a.axes.empty()) in.fail("names no axis to reduce");
  Type r{x.dtype, {}};
  for (int i = 0; i < x.rank(); i++) {
    bool gone = std::ranges::binary_search(a.axes, i);
    if (!gone)
      r.shape.push_back(x.shape[size_t(i)]);
    else if (a.keepdims)
      r.shape.push_back(Dim(1));
  }
  return r;
}

Shape matmul_shape(const Inference& in, const Type& x, const Type& y) {
  if (x.rank() < 2 || y.rank() < 2) in.fail("operands need rank 2 or more, got " + in.types());
  size_t m = x.shape.size(), n = y.shape.size();
  if (!(x.shape[m - 1] == y.shape[n - 2]))
    in.fail("inner dimensions differ: " + x.str() + " and " + y.str());
  auto batch = broadcast(Shape(x.shape.begin(), x.shape.end() - 2),
                         Shape(y.shape.begin(), y.shape.end() - 2));
  if (!batch) in.fail("batch dimensions do not broadcast: " + in.types());
  batch->push_back(x.shape[m - 2]);
  batch->push_back(y.shape[n - 1]);
  return *batch;
}

Shape reshaped(const Inference& in, const Shape& from, Shape to) {
  const bool known = is_static(from) && is_static(to);
  if (known ? num_elements(from) == num_elements(to) : volume(from) == volume(to)) return to;
  if (!known)
    in.fail("cannot tell whether " + str(from) + " and " + str(to) + " have as many elements");
  in.fail(str(from) + " does not have as many elements as " + str(to));
}

template <class V> void require_rank(const Inference& in, const V& list, const char* what) {
  if (int(list.size()) != in.operand().rank())
    in.fail(std::string(what) + " needs one entry per axis of " + in.operand().str());
}

Type slice(const Inference& in, SliceAttrs& a) {
  Type r = in.operand();
  require_rank(in, a.starts, "starts");
  require_rank(in, a.stops, "stops");
  if (a.steps.empty()) a.steps.assign(a.starts.size(), 1);
  require_rank(in, a.steps, "steps");
  for (size_t i = 0; i < a.starts.size(); i++) {
    Dim& d = r.shape[i];
    if (d.symbolic() && a.starts[i] == 0 && a.stops[i] == -1 && a.steps[i] == 1) continue;
    int64_t n = in.extent(d, "axis " + std::to_string(i));
    if (a.stops[i] == -1) a.stops[i] = n;
    if (a.starts[i] < 0 || a.stops[i] > n || a.starts[i] >= a.stops[i] || a.steps[i] < 1)
      in.fail("axis " + std::to_string(i) + " of " + in.operand().str() + " has no elements " +
              std::to_string(a.starts[i]) + ":" + std::to_string(a.stops[i]) + ":" +
              std::to_string(a.steps[i]));
    d = Dim(ceil_div(a.stops[i] - a.starts[i], a.steps[i]));
  }
  return r;
}

Type pad(const Inference& in, const PadAttrs& a) {
  Type r = in.operand();
  require_rank(in, a.low, "low");
  require_rank(in, a.high, "high");
  for (size_t i = 0; i < a.low.size(); i++) {
    if (a.low[i] < 0 || a.high[i] < 0 || a.low[i] > kMaxElements || a.high[i] > kMaxElements)
      in.fail("counts must be 0 or more");
    if (a.low[i] + a.high[i] == 0) continue;
    r.shape[i] = Dim(in.extent(r.shape[i], "axis " + std::to_string(i)) + a.low[i] + a.high[i]);
  }
  return r;
}

Type concat(const Inference& in, const std::vector<Type>& operands, AxisAttrs& a) {
  Type r = in.operand();
  a.axis = in.axis(a.axis, r.rank());
  size_t axis = size_t(a.axis);
  if (operands.size() > 1) {
    int64_t known = 0;
    SymbolicExtent open(0);
    for (const Type& t : operands) {
      if (t.rank() != r.rank()) in.fail("operands must have one rank, got " + in.types());
      for (size_t i = 0; i < t.shape.size(); i++)
        if (i != axis && !(t.shape[i] == r.shape[i]))
          in.fail("operands differ outside axis " + std::to_string(axis) + ": " + in.types());
      if (const Dim& d = t.shape[axis]; d.symbolic())
        open = open + d;
      else
        known += d.extent;
    }
    r.shape[axis] = open.known() ? Dim(known) : (open + SymbolicExtent(known)).dim();
  }
  return r;
}

Type stack(const Inference& in, const std::vector<Type>& operands, AxisAttrs& a) {
  Type r = in.operand();
  for (const Type& t : operands)
    if (!(t == r)) in.fail("operands must have one type, got " + in.types());
  a.axis = in.axis(a.axis, r.rank() + 1);
  r.shape.insert(r.shape.begin() + a.axis, Dim(int64_t(operands.size())));
  return r;
}

Type gather(const Inference& in, AxisAttrs& a) {
  const Type &x = in.operand(0), &index = in.operand(1);
  if (index.dtype != DType::I64 && index.dtype != DType::I32)
    in.fail("indices must be i64 or i32, got " + index.str());
  a.axis = in.axis(a.axis, x.rank());
  Type r{x.dtype, Shape(x.shape.begin(), x.shape.begin() + a.axis)};
  r.shape.insert(r.shape.end(), index.shape.begin(), index.shape.end());
  r.shape.insert(r.shape.end(), x.shape.begin() + a.axis + 1, x.shape.end());
  return r;
}

// The extent of a result axis, of which the window needs at least one.
Dim slide(const Inference& in, const Dim& extent, const Dim& taps, int64_t stride, int64_t dilation,
          int64_t low, int64_t high, bool transposed) {
  const int64_t n = in.extent(extent, "an axis the window slides over");
  const int64_t k = in.extent(taps, "the window");
  // Extents are checked before they are multiplied.
  if (k < 1 || n > kMaxElements || dilation > kMaxElements / k || stride > kMaxElements / n)
    in.fail("a window of " + std::to_string(k) + " elements with dilation " +
            std::to_string(dilation) + " and stride " + std::to_string(stride) +
            " does not fit an axis of " + std::to_string(n));
  const int64_t span = (k - 1) * dilation + 1;
  const int64_t r = transposed              ? (n - 1) * stride + span - low - high
                    : n + low + high < span ? 0
                                            : (n + low + high - span) / stride + 1;
  if (r < 1)
    in.fail("a window that spans " + std::to_string(span) + " elements does not fit an axis of " +
            std::to_string(n) + " with " + std::to_string(low) + " and " + std::to_string(high) +
            (transposed ? " taken off" : " added"));
  return Dim(r);
}

Type convolution(const Inference& in, OpKind kind, ConvAttrs& a) {
  const Type &x = in.operand(0), &w = in.operand(1);
  if (x.rank() < 3 || x.rank() > 5 || w.rank() != x.rank())
    in.fail("needs [batch, channels, 1 to 3 axes…] and weights of the same rank, got " +
            in.types());
  const bool transposed = kind == OpKind::ConvTranspose;
  complete_window(name(kind), x.shape.size() - 2, a.strides, a.dilations, a.low, a.high);
  const int64_t channels = in.extent(x.shape[1], "the number of channels");
  const int64_t first = in.extent(w.shape[0], "the weights");
  const int64_t second = in.extent(w.shape[1], "the weights");
  if (a.groups < 1 || channels % a.groups != 0 || first % a.groups != 0)
    in.fail(std::to_string(a.groups) + " groups do not divide the channels of " + in.types());
  if (transposed ? first != channels : second != channels / a.groups)
    in.fail("weights " + w.str() + " do not fit " + std::to_string(channels) + " channels in " +
            std::to_string(a.groups) + " groups");
  if (second > kMaxElements / a.groups) in.fail("the result has too many channels");
  Type r{x.dtype, {x.shape[0], Dim(transposed ? second * a.groups : first)}};
  for (size_t i = 0; i < a.strides.size(); i++) {
    if (!transposed && (a.low[i] < 0 || a.high[i] < 0)) in.fail("low and high must be 0 or more");
    r.shape.push_back(slide(in, x.shape[i + 2], w.shape[i + 2], a.strides[i], a.dilations[i],
                            a.low[i], a.high[i], transposed));
  }
  return r;
}

Type pooling(const Inference& in, OpKind kind, WindowAttrs& a) {
  Type r = in.operand();
  const size_t n = a.size.size();
  if (n < 1 || n > 3 || int(n) > r.rank())
    in.fail("size needs an entry for each of 1 to 3 innermost axes of " + r.str());
  complete_window(name(kind), n, a.strides, a.dilations, a.low, a.high);
  if (2 * n + (r.shape.size() - n) > size_t(kMaxRank)) in.fail(r.str() + " has too many axes");
  for (size_t i = 0; i < n; i++) {
    if (a.low[i] < 0 || a.high[i] < 0) in.fail("low and high must be 0 or more");
    if (a.size[i] < 1 || a.size[i] > kMaxElements)
      in.fail(std::to_string(a.size[i]) + " is no size of a window");
    Dim& d = r.shape[r.shape.size() - n + i];
    d = slide(in, d, Dim(a.size[i]), a.strides[i], a.dilations[i], a.low[i], a.high[i], false);
  }
  return r;
}

Type constant(const Inference& in, const ConstAttrs& a) {
  if (is_integer(a.type.dtype) && !a.value.is_integer())
    in.fail(a.value.str() + " is not an integer");
  if (a.type.dtype == DType::Bool && !(a.value == Rational(0)) && !(a.value == Rational(1)))
    in.fail("a bool constant is 0 or 1");
  return a.type;
}

Type power(const Inference& in, const PowAttrs& a) {
  if (!a.exponent.finite()) in.fail("the exponent must be finite");
  if (!is_float(in.operand().dtype) && !(a.exponent.is_integer() && !a.exponent.negative()))
    in.fail("integers need a non-negative integer exponent, not " + a.exponent.str());
  return in.operand();
}

Type transpose(const Inference& in, PermAttrs& a) {
  const Type& x = in.operand();
  require_rank(in, a.perm, "perm");
  for (int& p : a.perm) p = in.axis(p, x.rank());
  (void)in.axes(a.perm, x.rank());
  Type r{x.dtype, {}};
  for (int p : a.perm) r.shape.push_back(x.shape[size_t(p)]);
  return r;
}

Type with_ones(const Inference& in, AxesAttrs& a) {
  Type r = in.operand();
  a.axes = in.axes(a.axes, r.rank() + int(a.axes.size()));
  for (int axis : a.axes) r.shape.insert(r.shape.begin() + axis, Dim(1));
  return r;
}

Type without_ones(const Inference& in, AxesAttrs& a) {
  Type r = in.operand();
  a.axes = in.axes(a.axes, r.rank());
  for (size_t i = a.axes.size(); i-- > 0;) {
    if (!r.shape[size_t(a.axes[i])].is_one())
      in.fail("axis " + std::to_string(a.axes[i]) + " of " + in.operand().str() + " is not 1");
    r.shape.erase(r.shape.begin() + a.axes[i]);
  }
  return r;
}

Type repeat(const Inference& in, const RepeatAttrs& a) {
  Type r = in.operand();
  require_rank(in, a.repeats, "repeats");
  for (size_t i = 0; i < a.repeats.size(); i++) {
    if (a.repeats[i] < 1 || a.repeats[i] > kMaxElements) in.fail("counts must be 1 or more");
    if (a.repeats[i] == 1) continue;
    int64_t n = in.extent(r.shape[i], "axis " + std::to_string(i));
    if (n > kMaxElements / a.repeats[i]) in.fail("the result has too many elements");
    r.shape[i] = Dim(n * a.repeats[i]);
  }
  return r;
}

std::vector<Type> results_of(const Inference& in, const std::vector<Type>& operands,
                             const Graph* body) {
  CHECK(body != nullptr) << "graph-defined operator without a body";
  if (operands.size() != body->inputs().size())
    in.fail("its body has " + std::to_string(body->inputs().size()) + " inputs, not " +
            std::to_string(operands.size()));
  for (size_t i = 0; i < operands.size(); i++)
    if (!(body->type(body->inputs()[i]) == operands[i]))
      in.fail("operand " + std::to_string(i) + " is " + operands[i].str() +
              ", but its body expects " + body->type(body->inputs()[i]).str());
  if (body->outputs().empty()) in.fail("its body returns nothing");
  return mapped(body->outputs(), [&](TensorId t) { return body->type(t); });
}

// Maps must name axes of the tensor, and only dimensions the block graph has.
template <class Map>
void check_map(const Inference& in, const Map& map, size_t dims, int rank, const char* what) {
  for (size_t i = 0; i < map.size(); i++) {
    if (map[i] < -1 || map[i] >= rank)
      in.fail(std::string(what) + " names axis " + std::to_string(map[i]) +
              " of a tensor of rank " + std::to_string(rank));
    if (map[i] >= 0 && i >= dims)
      in.fail(std::string(what) + " names a dimension that the block graph does not have");
  }
}

Type save(const Inference& in, const SaveAttrs& a, const Graph& graph) {
  const Type& x = in.operand();
  check_type(a.type, "save");
  check_map(in, a.omap, graph.grid().size(), a.type.rank(), "omap");
  check_map(in, a.fmap, graph.loops().size(), a.type.rank(), "fmap");
  for (size_t i = 0; i < graph.grid().size(); i++)
    if (graph.grid()[i] > 1 && a.omap[i] < 0)
      in.fail("omap must map every grid dimension: blocks may not store the same elements");
  if (!(nominal_tile(a.type.shape, a.omap, a.fmap, graph) == x.shape))
    in.fail("a tile of " + a.type.str() + " is " +
            str(nominal_tile(a.type.shape, a.omap, a.fmap, graph)) + ", not " + x.str());
  return a.type;
}

Type accum(const Inference& in, OpKind kind, AccumAttrs& a, const Graph& graph) {
  Type r = in.operand();
  if (a.loops.empty())
    for (size_t i = 0; i < graph.loops().size(); i++) a.loops.push_back(int(i));
  std::ranges::sort(a.loops);
  if (a.loops.empty()) in.fail("the block graph has no loop to fold");
  if (std::adjacent_find(a.loops.begin(), a.loops.end()) != a.loops.end() || a.loops[0] < 0 ||
      a.loops.back() >= int(graph.loops().size()))
    in.fail("loops must be distinct loops of the block graph");
  if (a.kind != AccumKind::Concat) {
    a.axis = -1;
    if (kind == OpKind::Accum) in.require_number();
    return r;
  }
  if (kind == OpKind::AccumRescale) in.fail("a rescaling accumulator sums");
  a.axis = in.axis(a.axis, r.rank());
  if (a.loops.size() != 1) in.fail("concat folds one loop");
  Dim& d = r.shape[size_t(a.axis)];
  d = Dim(in.extent(d, "the joined axis") * graph.loops()[size_t(a.loops[0])]);
  return r;
}

}  // namespace

void check_type(const Type& type, const std::string& where) {
  auto fail = [&](const std::string& what) { bad_input(where + ": " + what); };
  if (type.rank() > kMaxRank)
    fail("rank " + std::to_string(type.rank()) + " exceeds the limit of " +
         std::to_string(kMaxRank));
  int64_t n = 1;
  for (const Dim& d : type.shape) {
    if (d.symbolic()) {
      if (const Dim known = SymbolicExtent(d).dim(); !(known == d))
        fail("the extent " + d.symbol + " is written " + known.str());
      continue;
    }
    if (d.extent == 0) fail("zero-size dimension in " + type.str() + "; tensors must not be empty");
    if (d.extent < 0) fail("negative dimension in " + type.str());
    if (d.extent > kMaxElements / n) fail(type.str() + " has too many elements");
    n *= d.extent;
  }
}

std::vector<Type> infer_types(OpKind kind, const std::vector<Type>& operands, Attrs& attrs,
                              const Graph& graph, const Graph* body) {
  Inference in(kind, operands);
  auto one = [&](Type t) {
    check_type(t, name(kind));
    return std::vector<Type>{std::move(t)};
  };
  in.require_operands();
  switch (kind) {
  case OpKind::Const: return one(constant(in, std::get<ConstAttrs>(attrs)));
  case OpKind::Iota: {
    auto& a = std::get<IotaAttrs>(attrs);
    a.axis = in.axis(a.axis, a.type.rank());
    if (a.type.dtype == DType::Bool) in.fail("bool has no range");
    return one(a.type);
  }
  case OpKind::Pow: return one(power(in, std::get<PowAttrs>(attrs)));
  case OpKind::Custom:
    if (size_t(custom_function(std::get<CustomAttrs>(attrs)).arity()) != operands.size())
      in.fail("its expression has another number of operands");
    break;
  case OpKind::Cast: return one({std::get<CastAttrs>(attrs).dtype, in.operand().shape});
  case OpKind::Where:
    if (in.operand().dtype != DType::Bool)
      in.fail("the condition must be bool, got " + in.operand().str());
    in.require_same_dtype(1);
    return one({in.operand(1).dtype, in.broadcast_all()});
  case OpKind::Cumsum: {
    auto& a = std::get<AxisAttrs>(attrs);
    a.axis = in.axis(a.axis, in.operand().rank());
    return one(in.operand());
  }
  case OpKind::Matmul:
    return one({in.operand().dtype, matmul_shape(in, in.operand(0), in.operand(1))});
  case OpKind::ConcatMatmul: {
    Shape left = matmul_shape(in, in.operand(0), in.operand(2));
    Shape right = matmul_shape(in, in.operand(1), in.operand(3));
    if (!(left == right)) in.fail("W·Y and X·Z have different shapes: " + in.types());
    return one({in.operand().dtype, left});
  }
  case OpKind::Conv:
  case OpKind::ConvTranspose: return one(convolution(in, kind, std::get<ConvAttrs>(attrs)));
  case OpKind::PoolSum:
  case OpKind::PoolMax: return one(pooling(in, kind, std::get<WindowAttrs>(attrs)));
  case OpKind::Transpose: return one(transpose(in, std::get<PermAttrs>(attrs)));
  case OpKind::Reshape: {
    const auto& shape = std::get<ShapeAttrs>(attrs).shape;
    check_type({in.operand().dtype, shape}, "reshape");
    return one({in.operand().dtype, reshaped(in, in.operand().shape, shape)});
  }
  case OpKind::Broadcast: {
    const auto& shape = std::get<ShapeAttrs>(attrs).shape;
    auto fit = broadcast(in.operand().shape, shape);
    if (!fit || !(*fit == shape))
      in.fail(in.operand().str() + " does not broadcast to " + str(shape));
    return one({in.operand().dtype, shape});
  }
  case OpKind::Unsqueeze: return one(with_ones(in, std::get<AxesAttrs>(attrs)));
  case OpKind::Squeeze: return one(without_ones(in, std::get<AxesAttrs>(attrs)));
  case OpKind::Repeat: return one(repeat(in, std::get<RepeatAttrs>(attrs)));
  case OpKind::Concat:
    in.require_same_dtype();
    return one(concat(in, operands, std::get<AxisAttrs>(attrs)));
  case OpKind::Stack: return one(stack(in, operands, std::get<AxisAttrs>(attrs)));
  case OpKind::Slice: return one(slice(in, std::get<SliceAttrs>(attrs)));
  case OpKind::Pad: return one(pad(in, std::get<PadAttrs>(attrs)));
  case OpKind::Triu:
  case OpKind::Tril:
    if (in.operand().rank() < 2) in.fail("needs rank 2 or more, got " + in.types());
    return one(in.operand());
  case OpKind::Gather: return one(gather(in, std::get<AxisAttrs>(attrs)));
  case OpKind::Opaque: {
    const auto& a = std::get<OpaqueAttrs>(attrs);
    if (a.results.empty()) in.fail("an opaque operator states its result types");
    for (const Type& t : a.results) check_type(t, "opaque");
    return a.results;
  }
  case OpKind::Kernel:
  case OpKind::Thread: return results_of(in, operands, body);
  case OpKind::Iter: {
    const auto& a = std::get<IterAttrs>(attrs);
    const Type& x = in.operand();
    check_map(in, a.imap, graph.grid().size(), x.rank(), "imap");
    check_map(in, a.fmap, graph.loops().size(), x.rank(), "fmap");
    return one({x.dtype, nominal_tile(x.shape, a.imap, a.fmap, graph)});
  }
  case OpKind::Accum: return one(accum(in, kind, std::get<AccumAttrs>(attrs), graph));
  case OpKind::AccumRescale: {
    Type r = accum(in, kind, std::get<AccumAttrs>(attrs), graph);
    auto fit = broadcast(r.shape, in.operand(1).shape);
    if (!fit || !(*fit == r.shape)) in.fail("the maxima do not broadcast: " + in.types());
    return one(r);
  }
  case OpKind::Save: return one(save(in, std::get<SaveAttrs>(attrs), graph));
  default: break;
  }
  if (auto* a = std::get_if<ReduceAttrs>(&attrs)) return one(reduce(in, *a));
  CHECK(has(kind, algebra::Pointwise)) << name(kind) << " has no type";
  return one({is_comparison(kind) ? DType::Bool : in.operand().dtype, in.broadcast_all()});
}

}  // namespace tessera
