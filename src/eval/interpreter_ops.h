// Bodies of Interpreter's members for operators that are not graph-defined; see interpreter.h.
#pragma once
#include "base/interruption.h"
#include "eval/interpreter.h"

namespace tessera {

// A scalar splat: one element, all strides 0.
template <class D>
View Interpreter<D>::scalar(Arena& arena, DType dtype, const Rational& value,
                            Components demand) const {
  const bool flags = D::kIsField && !value.finite();
  View v = allocate(arena, dtype, 0, {}, demand, flags, false);
  if (is_float(dtype))
    domain_.set_scalar(v, value);
  else
    *v.template as<int64_t>(0) = wrap_to(dtype, value.num());
  return v;
}

template <class D>
View Interpreter<D>::combine(Arena& arena, OpKind kind, const View& a, const View& b,
                             Components demand) const {
  Op op;
  op.kind = kind;
  const View in[2] = {a, b};
  const int rank = std::max(a.rank, b.rank);
  const std::array<int64_t, kMaxRank> shape = broadcast_extents(in, 2, rank);
  View out = allocate(arena, a.dtype, rank, shape, demand,
                      a.flagged() || b.flagged() || D::may_flag(kind), false);
  pointwise(op, in, 2, out, nullptr);
  return out;
}

inline bool any_plane(const std::vector<View>& in, int plane) {
  return std::ranges::any_of(
      in, [&](const View& v) { return v.plane[size_t(plane)] != nullptr; });
}

template <class D>
View Interpreter<D>::result_of(Arena& arena, const Type& type, const std::vector<View>& in,
                               Components demand) const {
  return allocate(arena, type.dtype, type.rank(), to_array(extents(type.shape)), demand,
                  any_plane(in, kFlagPlane), any_plane(in, kSetPlane));
}

template <class D>
View Interpreter<D>::elementwise(Arena& arena, const Graph& g, const Op& op,
                                 const std::vector<View>& in, Components demand, Level level,
                                 ThreadPool* pool) const {
  const DType dtype = g.type(op.result()).dtype;
  int rank = 0;
  for (const View& v : in) rank = std::max(rank, v.rank);
  const auto shape = broadcast_extents(in.data(), int(in.size()), rank);
  const bool keeps_sets = is_one_of(op.kind, OpKind::Where, OpKind::Neg, OpKind::Cast);
  const bool sets = D::kIsField && is_float(dtype) &&
                    (is_extremum(op.kind) || (keeps_sets && any_plane(in, kSetPlane)));
  View out = allocate(arena, dtype, rank, shape, demand,
                      D::kIsField && (any_plane(in, kFlagPlane) || D::may_flag(op.kind)), sets);
  uint64_t context = 0;
  if constexpr (D::kIsTerm) context = domain_.context(g, op, level);
  pointwise(op, in.data(), int(in.size()), out, pool, context);
  return out;
}

template <class D>
View Interpreter<D>::range(Arena& arena, const Type& type, size_t axis, Components demand,
                           Level level, ThreadPool* pool) const {
  const int64_t n = type.shape[axis].extent;
  const View line = allocate(arena, DType::I64, 1, {n}, 1, false, false);
  for (int64_t i = 0; i < n; ++i) line.template as<int64_t>(0)[i] = i;
  Op cast;
  cast.kind = OpKind::Cast;
  cast.attrs = CastAttrs{type.dtype};
  View out = allocate(arena, type.dtype, 1, {n}, demand, false, false);
  pointwise(cast, &line, 1, out, pool);
  domain_.round(out, level);
  out.rank = 0;
  for (size_t i = 0; i < type.shape.size(); ++i)
    out.insert_axis(int(i), type.shape[i].extent, i == axis ? 1 : 0);
  return out;
}

template <class D>
View Interpreter<D>::reshape(Arena& arena, const Type& type, const View& x,
                             Components demand) const {
  View v = x;
  const auto to = to_array(extents(type.shape));
  if (reshape_view(v, type.rank(), to)) return v;
  v = copy_of(arena, x, demand);
  CHECK(reshape_view(v, type.rank(), to)) << "reshape of a contiguous tensor";
  return v;
}

template <class D>
void Interpreter<D>::repeat(const View& out, const View& x,
                            const std::vector<int64_t>& repeats) const {
  // the result seen as [repeat, extent] pairs of axes, the operand stretched over the repeats
  std::array<int64_t, kMaxRank> tile = x.shape, begin{};
  std::vector<int64_t> index(repeats.size(), 0);
  for (;;) {
    for (size_t i = 0; i < repeats.size(); ++i) begin[i] = index[i] * tile[i];
    copy_view(subview(out, begin.data(), tile.data(), D::kWord), x, D::kWord);
    size_t i = repeats.size();
    while (i-- > 0 && ++index[i] == repeats[i]) index[i] = 0;
    if (i == size_t(-1)) return;
  }
}

template <class D>
void Interpreter<D>::join(const View& out, const std::vector<View>& in, int axis, bool stack,
                          ThreadPool* pool) const {
  std::array<int64_t, kMaxRank> begin{};
  for (View v : in) {
    if (stack) v.insert_axis(axis, 1, 0);
    copy_view(subview(out, begin.data(), v.shape.data(), D::kWord), v, D::kWord, pool);
    begin[size_t(axis)] += v.shape[size_t(axis)];
  }
  CHECK(begin[size_t(axis)] == out.shape[size_t(axis)]) << "concat does not fill its result";
}

template <class D>
View Interpreter<D>::pad(Arena& arena, const Type& type, const View& x, const PadAttrs& a,
                         Components demand, ThreadPool* pool) const {
  const View value = scalar(arena, type.dtype, a.value, demand);
  View out = result_of(arena, type, {x, value}, demand);
  copy_view(out, stretched(value, out.rank, out.shape), D::kWord, pool);
  std::array<int64_t, kMaxRank> begin{};
  std::ranges::copy(a.low, begin.begin());
  copy_view(subview(out, begin.data(), x.shape.data(), D::kWord), x, D::kWord, pool);
  return out;
}

// Another look at the same memory.
template <class D>
View Interpreter<D>::moved(const Type& type, const Shape& from, const View& x,
                           const std::vector<AxisRead>& reads) const {
  View v = x;
  v.rank = type.rank();
  v.shape = to_array(extents(type.shape));
  v.stride.fill(0);
  int64_t offset = 0;
  for (size_t d = 0; d < reads.size(); ++d) {
    const AxisRead& r = reads[d];
    offset += r.start * x.stride[d];
    if (r.axis < 0) continue;
    const auto to = size_t(r.axis);
    if (from[d] == type.shape[to]) v.shape[to] = x.shape[d];  // tiles may be clipped
    v.stride[to] = r.wraps && v.shape[to] != x.shape[d] ? 0 : x.stride[d] * r.step;
  }
  if (v.size() != 0) tessera::advance(v, offset, D::kWord);
  return v;
}

template <class D>
View Interpreter<D>::apply(Arena& arena, const Graph& g, const Op& op, const std::vector<View>& in,
                           Components demand, Level level, ThreadPool* pool) const {
  const Type& type = g.type(op.result());
  auto finish = [&](View v) {
    domain_.round(v, level);
    drop_flags(v);
    return v;
  };
  switch (op.kind) {
#define OP(...)
#define POINTWISE(kind, ...) case OpKind::kind:
#include "ir/ops.def"
    if constexpr (!D::kIsField && !D::kIsTerm)
      if (op.kind == OpKind::Cast && level != Level::Kernel && is_sixteen(in[0].dtype)) {
        View stored = copy_of(arena, in[0], demand);  // code rounds what another type is made of
        domain_.round(stored, Level::Kernel);
        return finish(elementwise(arena, g, op, {stored}, demand, level, pool));
      }
    return finish(elementwise(arena, g, op, in, demand, level, pool));
#define OP(...)
#define REDUCTION(kind, ...) case OpKind::kind:
#define WINDOWED REDUCTION
#include "ir/ops.def"
  case OpKind::Gather:
    if constexpr (D::kIsTerm) {
      View out =
          allocate(arena, type.dtype, type.rank(), to_array(extents(type.shape)), 1, false, false);
      domain_.function(op, in, out, domain_.context(g, op, level));
      return finish(out);
    } else {
      return finish(compute(arena, g, op, in, demand, pool));
    }
  case OpKind::Const: {
    View v = scalar(arena, type.dtype, g.attrs<ConstAttrs>(op).value, demand);
    domain_.round(v, level);
    return stretched(v, type.rank(), to_array(extents(type.shape)));
  }
  case OpKind::Iota:
    return range(arena, type, size_t(g.attrs<IotaAttrs>(op).axis), demand, level, pool);
  case OpKind::Reshape: return reshape(arena, type, in[0], demand);
  case OpKind::Repeat: {
    View out = result_of(arena, type, in, demand);
    repeat(out, in[0], g.attrs<RepeatAttrs>(op).repeats);
    return out;
  }
  case OpKind::Concat:
  case OpKind::Stack: {
    View out = result_of(arena, type, in, demand);
    join(out, in, g.attrs<AxisAttrs>(op).axis, op.kind == OpKind::Stack, pool);
    return out;
  }
  case OpKind::Pad: {
    View out = pad(arena, type, in[0], g.attrs<PadAttrs>(op), demand, pool);
    domain_.round(out, level);
    return out;
  }
  case OpKind::Triu:
  case OpKind::Tril: {
    View out = copy_of(arena, in[0], demand);
    zero_triangle(out, g.attrs<DiagonalAttrs>(op).k, op.kind == OpKind::Triu, D::kWord);
    return out;
  }
  default: break;
  }
  const auto reads = axis_reads(op.kind, op.attrs, in[0].rank, type.rank());
  CHECK(reads) << name(op.kind) << " is not a plain operator";
  return moved(type, g.type(op.inputs[0]).shape, in[0], *reads);
}

template <class D>
View Interpreter<D>::compute(Arena& arena, const Graph& g, const Op& op,
                             const std::vector<View>& in, Components demand,
                             ThreadPool* pool) const {
  using K = OpKind;
  const K k = op.kind;
  if (k == K::Cumsum) return cumsum(arena, in[0], g.attrs<AxisAttrs>(op).axis, demand);
  if (k == K::Matmul) return matmul(arena, in[0], in[1], demand, pool);
  if (k == K::ConcatMatmul) {
    View left = matmul(arena, in[0], in[2], demand, pool);
    View right = matmul(arena, in[1], in[3], demand, pool);
    return combine(arena, K::Add, left, right, demand);
  }
  if (k == K::Conv) return conv(arena, g, op, in[0], in[1], demand, pool);
  if (k == K::ConvTranspose) return conv_transpose(arena, g, op, in[0], in[1], demand, pool);
  if (k == K::PoolSum || k == K::PoolMax) return pooled(arena, g, op, in[0], demand, pool);
  if (k == K::Gather) return gather(arena, op, in[0], in[1], demand);
  if (is_reduction(k)) return reduce(arena, op, in[0], demand, pool);
  unreachable("not an operator that computes");
}

// --- reductions

template <class D>
View Interpreter<D>::reduce(Arena& arena, const Op& op, const View& x, Components demand,
                            ThreadPool* pool) const {
  const auto& a = std::get<ReduceAttrs>(op.attrs);
  View v = x, out;  // v: kept axes, then reduced ones
  int kept = 0, n = 0;
  int64_t count = 1;
  std::array<int64_t, kMaxRank> shape{};
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < x.rank; ++i) {
      const bool gone = std::ranges::binary_search(a.axes, i);
      if (gone != (pass == 1)) continue;
      v.shape[size_t(n)] = x.shape[size_t(i)];
      v.stride[size_t(n)] = x.stride[size_t(i)];
      ++n;
      if (gone)
        count *= x.shape[size_t(i)];
      else
        shape[size_t(kept++)] = x.shape[size_t(i)];
    }
  }
  const bool order = reduces_by_order(op.kind);
  const bool set = D::kIsField && order && is_float(x.dtype);
  out = allocate(arena, x.dtype, kept, shape, demand, x.flagged() || set, set);
  if (!is_float(x.dtype)) {
    reduce_into<IntVec>(
        op.kind, v, kept, out, [](auto& chunk) -> IntVec& { return chunk.i; }, pool);
  } else if constexpr (D::kIsField) {
    if (order)
      domain_.reduce_extremum(v, kept, out, fold_of(op.kind) == AccumKind::Min, pool);
    else
      reduce_into<Vec>(
          op.kind, v, kept, out, [](auto& chunk) -> Vec& { return chunk.f; }, pool);
  } else {
    reduce_into<Vec>(
        op.kind, v, kept, out, [](auto& chunk) -> Vec& { return chunk.f; }, pool);
  }
  if (op.kind == OpKind::Mean) {
    const View by = scalar(arena, x.dtype, Rational(count), demand);
    Op div;
    div.kind = OpKind::Div;
    const View in[2] = {out, by};
    View quotient = allocate(arena, x.dtype, kept, shape, demand,
                             out.flagged() || D::may_flag(OpKind::Div), false);
    pointwise(div, in, 2, quotient, pool);
    out = quotient;
  }
  if (a.keepdims) {
    for (int axis : a.axes) out.insert_axis(axis, 1, 0);
    out.set_contiguous_strides();
  }
  return out;
}

// Sums (or compares) vectors: across the reduced axes when a result element has few of them or they
// lie close together, else along the kept axes.
template <class D>
template <class V, class Part>
void Interpreter<D>::reduce_into(OpKind kind, const View& x, int kept, const View& out, Part part,
                                 ThreadPool* pool) const {
  const auto fold = fold_of(kind);
  View outer = x, inner = x;
  outer.rank = kept;
  for (int i = 0; i < kept; ++i) inner.erase_axis(0);
  const int64_t results = outer.size(), terms = inner.size();
  auto accumulate = [&](V& to, const V& from) {
    if constexpr (D::kIsField && !std::is_same_v<V, IntVec>)
      to.accumulate(from);
    else if (fold == AccumKind::Max)
      to.accumulate_max(from);
    else if (fold == AccumKind::Min)
      to.accumulate_min(from);
    else
      to.accumulate(from);
  };
  // The neutral element of the reduction.
  Chunk neutral;
  {
    Rational value(0);
    if (reduces_by_order(kind)) {
      if constexpr (std::is_same_v<V, IntVec>) {
        // the extreme of the result's own dtype: that of i64 would wrap to 0 or -1 when stored
        const bool low = fold == AccumKind::Max;
        const int bits = 8 * size_in_bytes(out.dtype) - (out.dtype == DType::U8 ? 0 : 1);
        const int64_t high =
            bits == 63 ? std::numeric_limits<int64_t>::max() : (int64_t(1) << bits) - 1;
        const int64_t extreme = !low ? high : out.dtype == DType::U8 ? 0 : -high - 1;
        for (int i = 0; i < kRun; ++i) neutral.i.v[i] = extreme;
        neutral.i.n = kRun;
      } else if constexpr (!D::kIsField) {
        prepare(neutral.f);
        neutral.f.n = kRun;
        neutral.f = neutral.f.constant(Rational::infinity(fold == AccumKind::Max));
      }
    } else {
      if constexpr (!std::is_same_v<V, IntVec>) prepare(neutral.f);
      part(neutral).n = kRun;
      part(neutral) = part(neutral).constant(value);
    }
  }
  const bool along_inner =
      inner.rank > 0 &&
      ((inner.stride[size_t(inner.rank - 1)] == 1 && terms >= 16) || results < 16);
  if (along_inner) {
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, terms));
    parallel_for(pool, results, grain, [&](int64_t begin, int64_t end) {
      Walker<2> place(outer, {&outer, &out}, begin);
      Chunk total, chunk;
      for (int64_t r = begin; r < end; ++r) {
        View line = inner;
        advance(line, place.offset(0), D::kWord);
        const int width = int(std::min<int64_t>(kRun, std::max<int64_t>(terms, 1)));
        part(total) = part(neutral).slice(0, width);
        Walker<1> walk(line, {&line});
        for (int64_t at = 0; at < terms;) {
          const int n = int(std::min<int64_t>(kRun, terms - at));
          load_one(walk, n, 0, line, chunk);
          accumulate(part(total), part(chunk));
          walk_over(walk, n);
          at += n;
        }
        for (int n = width; n > 1;) {  // halves
          const int half = (n + 1) / 2;
          V upper = part(total).slice(half, n - half);
          part(total).n = half;
          accumulate(part(total), upper);
          n = half;
        }
        store(place, 1, 1, out, total);
        place.advance(1);
      }
    });
    return;
  }
  parallel_for(pool, results, kRun, [&](int64_t begin, int64_t end) {
    Chunk total, chunk;
    const int n = int(end - begin);
    part(total) = part(neutral).slice(0, n);
    Walker<1> term(inner, {&inner});
    for (int64_t t = 0; t < terms; ++t) {
      View slab = outer;
      advance(slab, term.offset(0), D::kWord);
      Walker<1> walk(slab, {&slab}, begin);
      load_one(walk, n, 0, slab, chunk);
      accumulate(part(total), part(chunk));
      if (t + 1 < terms) term.advance(1);
    }
    Walker<1> walk(out, {&out}, begin);
    store(walk, n, 0, out, total);
  });
}

template <class D>
View Interpreter<D>::cumsum(Arena& arena, const View& x, int axis, Components demand) const {
  View out = allocate(arena, x.dtype, x.rank, x.shape, demand, x.flagged(), false);
  const int64_t n = x.shape[size_t(axis)];
  std::array<int64_t, kMaxRank> begin{}, slab = x.shape;
  slab[size_t(axis)] = 1;
  Op add;
  add.kind = OpKind::Add;
  View previous;
  for (int64_t i = 0; i < n; ++i) {
    begin[size_t(axis)] = i;
    const View from = subview(x, begin.data(), slab.data(), D::kWord);
    const View to = subview(out, begin.data(), slab.data(), D::kWord);
    const View in[2] = {previous, from};
    if (i == 0)
      copy_view(to, from, D::kWord);
    else
      pointwise(add, in, 2, to, nullptr);
    previous = to;
  }
  return out;
}

// --- contractions

template <class D>
View Interpreter<D>::matmul(Arena& arena, const View& a, const View& b, Components demand,
                            ThreadPool* pool) const {
  const int rank = std::max(a.rank, b.rank), batch = rank - 2;
  std::array<int64_t, kMaxRank> shape{}, ones{};
  auto batch_extent = [&](const View& v, int i) {
    const int j = i - (rank - v.rank);
    return j < 0 ? int64_t(1) : v.shape[size_t(j)];
  };
  for (int i = 0; i < batch; ++i) {
    const int64_t x = batch_extent(a, i), y = batch_extent(b, i);
    shape[size_t(i)] = x == 1 ? y : x;
  }
  shape[size_t(rank - 2)] = a.shape[size_t(a.rank - 2)];
  shape[size_t(rank - 1)] = b.shape[size_t(b.rank - 1)];
  CHECK(a.shape[size_t(a.rank - 1)] == b.shape[size_t(b.rank - 2)]) << "contracted axes differ";
  View out = allocate(arena, a.dtype, rank, shape, demand, a.flagged() || b.flagged(), false);
  auto stretch_batch = [&](const View& v) {
    std::array<int64_t, kMaxRank> to = shape;
    to[size_t(rank - 2)] = v.shape[size_t(v.rank - 2)];
    to[size_t(rank - 1)] = v.shape[size_t(v.rank - 1)];
    return stretched(v, rank, to);
  };
  const View wide_a = stretch_batch(a), wide_b = stretch_batch(b);
  View batches = out;
  batches.rank = batch;
  const int64_t count = batches.size();
  auto matrix = [&](const View& v, int64_t offset) {
    View m = v;
    m.rank = 2;
    m.shape = ones;
    for (int i = 0; i < 2; ++i) {
      m.shape[size_t(i)] = v.shape[size_t(batch + i)];
      m.stride[size_t(i)] = v.stride[size_t(batch + i)];
    }
    tessera::advance(m, offset, D::kWord);
    return m;
  };
  auto product = [&](const View& x, const View& y, const View& z, ThreadPool* inner) {
    if (is_float(a.dtype)) {
      domain_.matmul(x, y, z, inner);
      return;
    }
    for (int64_t i = 0; i < z.shape[0]; ++i) {
      for (int64_t j = 0; j < z.shape[1]; ++j) {
        uint64_t total = 0;
        uint8_t flag = 0;
        for (int64_t k = 0; k < x.shape[1]; ++k) {
          const int64_t at_x = i * x.stride[0] + k * x.stride[1],
                        at_y = k * y.stride[0] + j * y.stride[1];
          total +=
              uint64_t(x.template as<int64_t>(0)[at_x]) * uint64_t(y.template as<int64_t>(0)[at_y]);
          if (x.flagged()) flag |= x.template as<uint8_t>(kFlagPlane)[at_x];
          if (y.flagged()) flag |= y.template as<uint8_t>(kFlagPlane)[at_y];
        }
        const int64_t at = i * z.stride[0] + j * z.stride[1];
        z.template as<int64_t>(0)[at] = wrap_to(a.dtype, int64_t(total));
        if (z.flagged()) z.template as<uint8_t>(kFlagPlane)[at] = flag;
      }
    }
  };
  auto each = [&](int64_t begin, int64_t end, ThreadPool* inner) {
    View va = wide_a, vb = wide_b;
    va.rank = vb.rank = batch;
    Walker<3> walk(batches, {&va, &vb, &batches}, begin);
    for (int64_t i = begin; i < end; ++i) {
      product(matrix(wide_a, walk.offset(0)), matrix(wide_b, walk.offset(1)),
              matrix(out, walk.offset(2)), inner);
      if (i + 1 < end) walk.advance(1);
    }
  };
  if (out.size() == 0) return out;
  if (count == 1 || pool == nullptr)
    each(0, count, pool);
  else
    parallel_for(pool, count, 1, [&](int64_t begin, int64_t end) { each(begin, end, nullptr); });
  return out;
}

template <class D>
View Interpreter<D>::gather(Arena& arena, const Op& op, const View& x, const View& index,
                            Components demand) const {
  const int axis = std::get<AxisAttrs>(op.attrs).axis;
  const int64_t extent = x.shape[size_t(axis)];
  std::array<int64_t, kMaxRank> shape{};
  int rank = 0;
  for (int i = 0; i < axis; ++i) shape[size_t(rank++)] = x.shape[size_t(i)];
  for (int i = 0; i < index.rank; ++i) shape[size_t(rank++)] = index.shape[size_t(i)];
  for (int i = axis + 1; i < x.rank; ++i) shape[size_t(rank++)] = x.shape[size_t(i)];
  View out =
      allocate(arena, x.dtype, rank, shape, demand, D::kIsField, x.plane[kSetPlane] != nullptr);
  // the result with all index axes walked as one
  View flat = out;
  flat.rank = axis;
  flat.insert_axis(axis, index.size(), 0);
  for (int i = axis + 1; i < x.rank; ++i) flat.insert_axis(i, x.shape[size_t(i)], 0);
  flat.set_contiguous_strides();
  std::array<int64_t, kMaxRank> begin{}, from{}, slab = flat.shape;
  slab[size_t(axis)] = 1;
  Walker<1> walk(index, {&index});
  const int64_t count = index.size();
  for (int64_t i = 0; i < count; ++i) {
    int64_t k = index.as<int64_t>(0)[walk.offset(0)];
    const bool unknown = index.flagged() && index.as<uint8_t>(kFlagPlane)[walk.offset(0)] != 0;
    if (k < 0) k += extent;  // as NumPy and ONNX count from the end
    begin[size_t(axis)] = i;
    const View to = subview(flat, begin.data(), slab.data(), D::kWord);
    if (k < 0 || k >= extent || unknown) {
      if (!D::kIsField) {
        throw Error(ErrorKind::BadInput, "gather: index " + std::to_string(k) +
                                             " is out of range for extent " +
                                             std::to_string(extent));
      }
      from[size_t(axis)] = 0;
      copy_view(to, subview(x, from.data(), slab.data(), D::kWord), D::kWord);
      View flags = to;
      flags.plane = {};
      flags.plane[0] = to.plane[kFlagPlane];
      Walker<1> at(flags, {&flags});
      for (int64_t j = 0, n = flags.size(); j < n; ++j) {
        flags.as<uint8_t>(0)[at.offset(0)] = FieldArray::Undefined;
        if (j + 1 < n) at.advance(1);
      }
    } else {
      from[size_t(axis)] = k;
      copy_view(to, subview(x, from.data(), slab.data(), D::kWord), D::kWord);
    }
    if (i + 1 < count) walk.advance(1);
  }
  return out;
}

// --- kernel graphs

// For each operator the operators whose storage is free after it: nothing reads it any more,
// directly or as a view.
inline std::vector<std::vector<uint32_t>> last_reads(const Graph& g) {
  const size_t n = g.ops().size();
  std::vector<std::vector<uint32_t>> storage(g.tensors().size());
  std::vector<size_t> last(n, 0);
  for (size_t i = 0; i < n; ++i) {
    interruption_point();
    const Op& op = g.ops()[i];
    std::vector<uint32_t> own = {uint32_t(i)};
    for (TensorId t : op.inputs) {
      for (uint32_t s : storage[t.index]) {
        last[s] = i;
        if (has(op.kind, algebra::Movement)) own.push_back(s);
      }
    }
    for (uint32_t r = 0; r < op.num_results; ++r) storage[op.result(r).index] = own;
  }
  for (TensorId t : g.outputs())
    for (uint32_t s : storage[t.index]) last[s] = n;
  std::vector<std::vector<uint32_t>> free_after(n + 1);
  for (size_t i = 0; i < n; ++i) free_after[std::max(last[i], i)].push_back(uint32_t(i));
  return free_after;
}

template <class D>
void Interpreter<D>::run(const Graph& g, const Demand& demand, std::vector<View>& values,
                         std::vector<Arena>& arenas, const Observer& observer) {
  const size_t n = g.ops().size();
  int64_t elements = 0;
  for (const Tensor& t : g.tensors()) elements += num_elements(t.type.shape);
  const bool keep = elements < 4096;  // small programs are evaluated thousands of times
  const auto free_after = keep ? std::vector<std::vector<uint32_t>>() : last_reads(g);
  arenas.resize(keep ? 1 : n);
  std::vector<View> in;
  for (size_t i = 0; i < n; ++i) {
    interruption_point();
    const Op& op = g.ops()[i];
    if (is_input(op.kind) || !demand.any(op)) continue;
    Arena& arena = arenas[keep ? 0 : i];
    if (is_kernel(op.kind)) {
      run_kernel(arena, g, op, demand, values);
    } else {
      in.clear();
      for (TensorId t : op.inputs) in.push_back(values[t.index]);
      if (is_opaque(op.kind)) {
        std::vector<View> out;
        for (uint32_t r = 0; r < op.num_results; ++r) {
          const Type& type = g.type(op.result(r));
          out.push_back(allocate(arena, type.dtype, type.rank(), to_array(extents(type.shape)),
                                 demand.of(op.result(r)), D::kIsField, false));
        }
        if (!opaque_) {
          throw Error(ErrorKind::Unsupported, "opaque operator " +
                                                  g.attrs<OpaqueAttrs>(op).function +
                                                  " has no meaning here");
        }
        opaque_(op, in, out);
        for (uint32_t r = 0; r < op.num_results; ++r) values[op.result(r).index] = out[r];
      } else {
        values[op.result().index] =
            apply(arena, g, op, in, demand.of(op.result()), Level::Kernel, pool_);
      }
    }
    if (observer) observer(op, values);
    if (!keep)
      for (uint32_t s : free_after[i]) arenas[s] = Arena();
  }
}

}  // namespace tessera
