#include "verify/bench/structures.h"

#include <algorithm>

#include "ir/block.h"
#include "verify/bench/edit.h"

namespace tessera {
namespace {

constexpr GridMap kFirstAxis = {0, -1, -1};

// Into how many tiles, none of them empty, an extent is cut; the last one may be clipped.
int64_t split_count(int64_t extent, Rng& rng) {
  for (;;) {
    const int64_t n = rng.between(2, std::min<int64_t>(extent, 4));
    if ((n - 1) * ceil_div(extent, n) < extent) return n;
  }
}

GridMap on_axis(int axis) { return {int8_t(axis), -1, -1}; }

// --- a sum or product over an axis, split over the grid and combined

enum class SplitFault { None, LostSplit, DoubleCounted, WrongCombine };

template <SplitFault Fault> std::optional<Graph> split_reduction(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> EditResult {
        if (home.level() != Level::Kernel || in.empty() || out.type(in[0]).rank() != 2)
          return std::nullopt;
        const Shape& s = out.type(in[0]).shape;
        const DType dtype = out.type(in[0]).dtype;
        std::vector<int> split;  // by operand: the axis that is reduced
        Shape part;
        Graph b = Graph::block({1}, {});
        if (op.kind == OpKind::Matmul && out.type(in[1]).rank() == 2) {
          split = {1, 0};
          part = {s[0], out.type(in[1]).shape[1]};
        } else if (op.kind == OpKind::Sum && is_float(dtype) &&
                   home.attrs<ReduceAttrs>(op).axes.size() == 1) {
          split = {home.attrs<ReduceAttrs>(op).axes[0]};
          part = home.type(op.result()).shape;
        } else {
          return std::nullopt;
        }
        const int64_t extent = s[size_t(split[0])].extent;
        if (extent < 2) return std::nullopt;
        const int64_t n = split_count(extent, rng);
        b = Graph::block({n}, {});
        Tensors tiles;
        for (TensorId t : in) tiles.push_back(b.add_input(out.type(t)));
        for (size_t i = 0; i < tiles.size(); i++)
          tiles[i] = b.add(OpKind::Iter, {tiles[i]}, IterAttrs{on_axis(split[i]), kNoLoops});
        const TensorId v =
            b.add(OpKind::Unsqueeze, {b.add(op.kind, tiles, op.attrs)}, AxesAttrs{{0}});
        Shape all = part;
        all.insert(all.begin(), Dim(n));
        b.add_output(b.add(OpKind::Save, {v}, SaveAttrs{kFirstAxis, kNoLoops, {dtype, all}}));
        TensorId parts = out.op(out.add_graph_op(OpKind::Kernel, in, std::move(b))).result();
        if (Fault == SplitFault::LostSplit) parts = cut(out, parts, 0, 0, n - 1);
        if (Fault == SplitFault::DoubleCounted)
          parts = out.add(OpKind::Concat, {parts, cut(out, parts, 0, n - 1, n)}, AxisAttrs{0});
        const OpKind combine = Fault == SplitFault::WrongCombine ? OpKind::ReduceMax : OpKind::Sum;
        return one(out.add(combine, {parts}, ReduceAttrs{{0}, false}));
      });
}

// --- softmax's denominator as parts (v, m), each meaning v·eᵐ

enum class CarriedFault { None, ForgottenRescale, WrongMaxMerge, MissingShift };

template <CarriedFault Fault> std::optional<Graph> carried_softmax(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Div,
      [&](const Graph& home, Graph& out, const Op&, const Tensors& in) -> EditResult {
        if (home.level() != Level::Kernel) return std::nullopt;
        const Op sum = out.producer(in[1]), exp = out.producer(in[0]);
        if (sum.kind != OpKind::Sum || sum.inputs[0] != in[0] || exp.kind != OpKind::Exp)
          return std::nullopt;
        const Op shift = out.producer(exp.inputs[0]);
        if (shift.kind != OpKind::Sub) return std::nullopt;
        const Op top = out.producer(shift.inputs[1]);
        const TensorId x = shift.inputs[0];
        if (top.kind != OpKind::ReduceMax || top.inputs[0] != x || !(top.attrs == sum.attrs) ||
            out.type(x).rank() != 2)
          return std::nullopt;
        const Type type = out.type(x);
        const ReduceAttrs a = out.attrs<ReduceAttrs>(sum);
        if (a.axes.size() != 1 || !a.keepdims) return std::nullopt;
        const int axis = a.axes[0];
        const int64_t extent = type.shape[size_t(axis)].extent;
        if (extent < 2) return std::nullopt;
        const int64_t n = split_count(extent, rng);
        Graph b = Graph::block({n}, {});
        const TensorId t =
            b.add(OpKind::Iter, {b.add_input(type)}, IterAttrs{on_axis(axis), kNoLoops});
        const TensorId m = b.add(OpKind::ReduceMax, {t}, a);
        const TensorId e = b.add(
            OpKind::Exp, {Fault == CarriedFault::MissingShift ? t : b.add(OpKind::Sub, {t, m})});
        Type part = type;
        part.shape[size_t(axis)] = Dim(n);
        const SaveAttrs save{on_axis(axis), kNoLoops, part};
        b.add_output(b.add(OpKind::Save, {b.add(OpKind::Sum, {e}, a)}, save));
        b.add_output(b.add(OpKind::Save, {m}, save));
        const OpId kernel = out.add_graph_op(OpKind::Kernel, {x}, std::move(b));
        const TensorId v = out.op(kernel).result(0), maxima = out.op(kernel).result(1);
        const TensorId all =
            out.add(Fault == CarriedFault::WrongMaxMerge ? OpKind::ReduceMin : OpKind::ReduceMax,
                    {maxima}, a);
        // Every part shrinks by e^(m − max); any shift cancels if both sides of the quotient have
        // it.
        const TensorId scale = out.add(OpKind::Exp, {out.add(OpKind::Sub, {maxima, all})});
        const TensorId denominator = out.add(
            OpKind::Sum,
            {Fault == CarriedFault::ForgottenRescale ? v : out.add(OpKind::Mul, {v, scale})}, a);
        const TensorId numerator = Fault == CarriedFault::WrongMaxMerge
                                       ? in[0]
                                       : out.add(OpKind::Exp, {out.add(OpKind::Sub, {x, all})});
        return one(out.add(OpKind::Div, {numerator, denominator}));
      });
}

// --- triangles as masks by position

enum class MaskFault { None, OffByOne, WrongSide };

template <MaskFault Fault> std::optional<Graph> mask_by_position(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> EditResult {
        if ((op.kind != OpKind::Tril && op.kind != OpKind::Triu) || home.level() != Level::Kernel ||
            !is_float(out.type(in[0]).dtype))
          return std::nullopt;
        const Shape& s = out.type(in[0]).shape;
        const Type positions{DType::I64, {s[s.size() - 2], s[s.size() - 1]}};
        const TensorId row = out.add(OpKind::Iota, {}, IotaAttrs{0, positions}),
                       column = out.add(OpKind::Iota, {}, IotaAttrs{1, positions});
        const TensorId diagonal =
            out.add_const(Rational(home.attrs<DiagonalAttrs>(op).k), {DType::I64, {}});
        const TensorId edge = out.add(OpKind::Add, {row, diagonal});
        const bool lower = (op.kind == OpKind::Tril) != (Fault == MaskFault::WrongSide);
        const OpKind strict = lower ? OpKind::Lt : OpKind::Gt,
                     loose = lower ? OpKind::Le : OpKind::Ge;
        const TensorId kept =
            out.add(Fault == MaskFault::OffByOne ? strict : loose, {column, edge});
        const TensorId nothing = scalar(out, Rational(0), out.type(in[0]).dtype);
        return one(out.add(OpKind::Where, {kept, in[0], nothing}));
      });
}

// --- a scale of rows moved into a weight: X·W = (X/vᵀ)·(v ⊙ W)

enum class FoldFault { None, Transposed, OneSided, WrongConstant };

template <FoldFault Fault> std::optional<Graph> folded_scale(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> EditResult {
        if (home.level() != Level::Kernel || out.type(in[0]).rank() != 2 ||
            out.type(in[1]).rank() != 2)
          return std::nullopt;
        const Type w = out.type(in[1]);
        if (Fault == FoldFault::Transposed &&
            (!(w.shape[0] == w.shape[1]) || w.shape[0].extent < 2))
          return std::nullopt;
        // v = 1 + its row's number, as exact as can be.
        const Type column{w.dtype, {w.shape[0], Dim(1)}};
        const TensorId v = out.add(OpKind::Add, {out.add(OpKind::Iota, {}, IotaAttrs{0, column}),
                                                 scalar(out, Rational(1), w.dtype)});
        const TensorId row = out.add(OpKind::Transpose, {v}, PermAttrs{{1, 0}});
        const TensorId x =
            Fault == FoldFault::OneSided ? in[0] : out.add(OpKind::Div, {in[0], row});
        TensorId scale = Fault == FoldFault::Transposed ? row : v;
        if (Fault == FoldFault::WrongConstant)
          scale = out.add(OpKind::Add, {v, scalar(out, Rational(1), w.dtype)});
        return one(out.add(op.kind, {x, out.add(OpKind::Mul, {in[1], scale})}));
      });
}

// --- a reduction over slices of one size, of which the last is clipped

enum class ClipFault { None, Overlapping };

// Overlapping slices of a sum count elements twice.
template <OpKind Reduction, ClipFault Fault>
std::optional<Graph> sliced_reduction(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, Reduction,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> EditResult {
        const auto& a = home.attrs<ReduceAttrs>(op);
        if (home.level() != Level::Kernel || a.axes.size() != 1 || !is_float(out.type(in[0]).dtype))
          return std::nullopt;
        const auto axis = size_t(a.axes[0]);
        const int64_t n = out.type(in[0]).shape[axis].extent;
        if (n < 3) return std::nullopt;
        int64_t step = rng.between(2, n - 1);
        while (n % step == 0 && step > 1) step--;
        if (step < 2) step = n - 1;
        std::optional<TensorId> all;
        for (int64_t at = 0; at < n; at += step) {
          const int64_t stop = std::min(n, at + step);
          const int64_t start = Fault == ClipFault::Overlapping ? stop - step : at;
          const TensorId part = out.add(op.kind, {cut(out, in[0], axis, start, stop)}, a);
          all = all ? out.add(Reduction == OpKind::Sum ? OpKind::Add : OpKind::Max, {*all, part})
                    : part;
        }
        return one(*all);
      });
}

// --- outputs of one type

std::optional<Graph> swapped_outputs(const Graph& g, Rng&) {
  for (size_t i = 0; i < g.outputs().size(); i++)
    for (size_t j = i + 1; j < g.outputs().size(); j++) {
      if (!(g.type(g.outputs()[i]) == g.type(g.outputs()[j])) || g.outputs()[i] == g.outputs()[j])
        continue;
      Graph changed = g;
      std::vector<TensorId> outputs = g.outputs();
      std::swap(outputs[i], outputs[j]);
      changed.set_outputs(outputs);
      return changed;
    }
  return std::nullopt;
}

}  // namespace

const std::vector<ProgramEdit>& sound_structures() {
  static const std::vector<ProgramEdit> table = {
      {"grid_split_reduction", split_reduction<SplitFault::None>},
      {"carried_softmax", carried_softmax<CarriedFault::None>},
      {"mask_by_position", mask_by_position<MaskFault::None>},
      {"folded_scale", folded_scale<FoldFault::None>},
      {"sliced_sum", sliced_reduction<OpKind::Sum, ClipFault::None>},
      {"sliced_maximum", sliced_reduction<OpKind::ReduceMax, ClipFault::None>},
  };
  return table;
}

const std::vector<ProgramEdit>& faulty_structures() {
  static const std::vector<ProgramEdit> table = {
      {"lost_split", split_reduction<SplitFault::LostSplit>},
      {"double_counted_split", split_reduction<SplitFault::DoubleCounted>},
      {"wrong_combine", split_reduction<SplitFault::WrongCombine>},
      {"forgotten_rescale", carried_softmax<CarriedFault::ForgottenRescale>},
      {"wrong_max_merge", carried_softmax<CarriedFault::WrongMaxMerge>},
      {"missing_shift", carried_softmax<CarriedFault::MissingShift>},
      {"mask_off_by_one", mask_by_position<MaskFault::OffByOne>},
      {"mask_wrong_side", mask_by_position<MaskFault::WrongSide>},
      {"transposed_fold", folded_scale<FoldFault::Transposed>},
      {"one_sided_fold", folded_scale<FoldFault::OneSided>},
      {"wrong_fold_constant", folded_scale<FoldFault::WrongConstant>},
      {"double_counted_tail", sliced_reduction<OpKind::Sum, ClipFault::Overlapping>},
      {"swapped_outputs", swapped_outputs},
  };
  return table;
}

}  // namespace tessera
