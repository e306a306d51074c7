#include "verify/bench/mutations.h"

#include <algorithm>

#include "base/check.h"
#include "ir/window.h"
#include "verify/bench/edit.h"
#include "verify/bench/structures.h"

namespace tessera {
namespace {

using Result = EditResult;

// The same attributes, another kind.
template <OpKind From, OpKind To> std::optional<Graph> other_kind(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, From,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) {
        return one(out.add(To, in, op.attrs));
      });
}

template <OpKind Kind> std::optional<Graph> swap_operands(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, Kind,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (in[0] == in[1]) return std::nullopt;
        return one(out.add(Kind, {in[1], in[0]}, op.attrs));
      });
}

template <OpKind Kind> std::optional<Graph> drop(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, Kind, [](const Graph&, Graph&, const Op&, const Tensors& in) { return one(in[0]); });
}

std::optional<Graph> wrong_reduce_axis(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Sum && op.kind != OpKind::Mean && op.kind != OpKind::ReduceMax &&
            op.kind != OpKind::ReduceMin)
          return std::nullopt;
        ReduceAttrs a = home.attrs<ReduceAttrs>(op);
        const int rank = out.type(in[0]).rank();
        if (int(a.axes.size()) >= rank) return std::nullopt;
        std::vector<int> free;
        for (int d = 0; d < rank; d++)
          if (std::find(a.axes.begin(), a.axes.end(), d) == a.axes.end()) free.push_back(d);
        a.axes[rng.below(a.axes.size())] = free[rng.below(free.size())];
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> wrong_cumsum_axis(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Cumsum,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        AxisAttrs a = home.attrs<AxisAttrs>(op);
        const int rank = out.type(in[0]).rank();
        if (rank < 2) return std::nullopt;
        a.axis = (a.axis + 1) % rank;
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> exclusive_cumsum(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Cumsum,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) {
        return one(out.add(OpKind::Sub, {out.add(op.kind, in, op.attrs), in[0]}));
      });
}

// The window one element further, or its padding on the other side.
std::optional<Graph> shifted_window(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (!is_windowed(op.kind)) return std::nullopt;
        Attrs attrs = op.attrs;
        auto shift = [&](auto& a) {
          const size_t i = rng.below(a.low.size());
          if (a.low[i] == a.high[i])
            a.low[i]++, a.high[i]--;
          else
            std::swap(a.low[i], a.high[i]);
        };
        if (is_convolution(op.kind))
          shift(std::get<ConvAttrs>(attrs));
        else
          shift(std::get<WindowAttrs>(attrs));
        return one(out.add(op.kind, in, attrs));
      });
}

std::optional<Graph> wrong_perm(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Transpose,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        PermAttrs a = home.attrs<PermAttrs>(op);
        if (a.perm.size() < 2) return std::nullopt;
        const size_t i = rng.below(a.perm.size() - 1);
        std::swap(a.perm[i], a.perm[i + 1]);
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> missing_transpose(const Graph& g, Rng& rng) {
  return drop<OpKind::Transpose>(g, rng);
}

std::optional<Graph> reshape_for_transpose(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Transpose,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) {
        return one(out.add(OpKind::Reshape, in, ShapeAttrs{home.type(op.result()).shape}));
      });
}

std::optional<Graph> transposed_operand(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [&](const Graph&, Graph& out, const Op& op, Tensors in) -> Result {
        const size_t which = rng.below(2);
        const int rank = out.type(in[which]).rank();
        PermAttrs a;
        for (int d = 0; d < rank; d++) a.perm.push_back(d);
        std::swap(a.perm[size_t(rank) - 1], a.perm[size_t(rank) - 2]);
        in[which] = out.add(OpKind::Transpose, {in[which]}, a);
        return one(out.add(op.kind, in, op.attrs));
      });
}

std::optional<Graph> wrong_constant(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Const,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors&) -> Result {
        ConstAttrs a = home.attrs<ConstAttrs>(op);
        std::optional<Rational> v;
        if (is_float(a.type.dtype)) {
          if (rng.chance(0.5))
            v = Rational::mul(a.value, Rational(2));
          else
            v = Rational::add(a.value, Rational::ratio(1, 16));
        } else if (is_integer(a.type.dtype)) {
          v = Rational::add(a.value, Rational(-1));
          if (v->negative()) v = Rational(1);
        }
        if (!v) return std::nullopt;
        a.value = *v;
        return one(out.add(op.kind, {}, a));
      });
}

// x·c, x/c or a shift by a constant is left out.
std::optional<Graph> dropped_scale(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Mul && op.kind != OpKind::Div) return std::nullopt;
        if (out.producer(in[1]).kind != OpKind::Const) return std::nullopt;
        return one(in[0]);
      });
}

std::optional<Graph> dropped_term(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph&, Graph&, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Add && op.kind != OpKind::Sub) return std::nullopt;
        return one(in[op.kind == OpKind::Sub ? 0 : rng.below(2)]);
      });
}

int64_t reduced_count(const Graph& g, const Op& op, TensorId in) {
  int64_t n = 1;
  for (int a : g.attrs<ReduceAttrs>(op).axes) n *= g.type(in).shape[size_t(a)].extent;
  return n;
}

std::optional<Graph> n_minus_one(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Mean,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        const int64_t n = reduced_count(home, op, op.inputs[0]);
        if (n < 2) return std::nullopt;
        TensorId s = out.add(OpKind::Sum, in, op.attrs);
        return one(
            out.add(OpKind::Mul, {s, scalar(out, Rational::ratio(1, n - 1), out.type(s).dtype)}));
      });
}

std::optional<Graph> eps_outside_root(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Sqrt && op.kind != OpKind::Rsqrt) return std::nullopt;
        const Op sum = out.producer(in[0]);
        if (sum.kind != OpKind::Add || out.producer(sum.inputs[1]).kind != OpKind::Const)
          return std::nullopt;
        TensorId root = out.add(OpKind::Sqrt, {sum.inputs[0]});
        TensorId moved = out.add(OpKind::Add, {root, sum.inputs[1]});
        if (op.kind == OpKind::Sqrt) return one(moved);
        return one(out.add(OpKind::Pow, {moved}, PowAttrs{Rational(-1)}));
      });
}

std::optional<Graph> dropped_eps(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Sqrt && op.kind != OpKind::Rsqrt && op.kind != OpKind::Div &&
            op.kind != OpKind::Log)
          return std::nullopt;
        const Op sum = out.producer(in.back());
        if (sum.kind != OpKind::Add || out.producer(sum.inputs[1]).kind != OpKind::Const)
          return std::nullopt;
        Tensors changed = in;
        changed.back() = sum.inputs[0];
        return one(out.add(op.kind, changed, op.attrs));
      });
}

std::optional<Graph> shifted_slice(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Slice,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        SliceAttrs a = home.attrs<SliceAttrs>(op);
        if (a.starts.empty()) return std::nullopt;
        const size_t d = rng.below(a.starts.size());
        const int64_t by = a.starts[d] > 0 && rng.chance(0.5) ? -1 : 1;
        a.starts[d] += by;
        a.stops[d] += by;
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> swapped_concat(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if ((op.kind != OpKind::Concat && op.kind != OpKind::Stack) || in.size() < 2)
          return std::nullopt;
        Tensors changed = in;
        std::swap(changed[0], changed[1]);
        return one(out.add(op.kind, changed, op.attrs));
      });
}

std::optional<Graph> wrong_pad_value(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Pad,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) {
        PadAttrs a = home.attrs<PadAttrs>(op);
        a.value = a.value.is_zero() ? Rational(1) : Rational(0);
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> padded_other_side(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Pad,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) {
        PadAttrs a = home.attrs<PadAttrs>(op);
        std::swap(a.low, a.high);
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> diagonal_off_by_one(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Triu && op.kind != OpKind::Tril) return std::nullopt;
        DiagonalAttrs a = home.attrs<DiagonalAttrs>(op);
        a.k += rng.chance(0.5) ? 1 : -1;
        return one(out.add(op.kind, in, a));
      });
}

// One axis of an operand is rotated by one: every row is used, but the wrong one.
TensorId rotate(Graph& out, TensorId x, size_t axis) {
  const Shape& s = out.type(x).shape;
  SliceAttrs head, tail;
  for (const Dim& d : s) {
    head.starts.push_back(0);
    head.stops.push_back(d.extent);
    head.steps.push_back(1);
  }
  tail = head;
  head.stops[axis] = 1;
  tail.starts[axis] = 1;
  TensorId first = out.add(OpKind::Slice, {x}, head), rest = out.add(OpKind::Slice, {x}, tail);
  return out.add(OpKind::Concat, {rest, first}, AxisAttrs{int(axis)});
}

std::optional<Graph> wrong_row(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, Tensors in) -> Result {
        if (home.level() != Level::Kernel || in.size() < 2 || op.kind == OpKind::Gather ||
            op.kind == OpKind::Kernel)
          return std::nullopt;
        const size_t which = rng.below(in.size());
        const Shape& s = out.type(in[which]).shape;
        std::vector<size_t> axes;
        for (size_t d = 0; d < s.size(); d++)
          if (s[d].extent > 1) axes.push_back(d);
        if (axes.empty() || out.producer(in[which]).kind == OpKind::Const) return std::nullopt;
        in[which] = rotate(out, in[which], axes[rng.below(axes.size())]);
        return one(out.add(op.kind, in, op.attrs));
      });
}

std::optional<Graph> swapped_branches(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Where,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) {
        return one(out.add(op.kind, {in[0], in[2], in[1]}));
      });
}

// < for <= and so on: wrong only where the operands are equal.
std::optional<Graph> boundary_of_compare(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind == OpKind::Lt) return one(out.add(OpKind::Le, in));
        if (op.kind == OpKind::Le) return one(out.add(OpKind::Lt, in));
        if (op.kind == OpKind::Gt) return one(out.add(OpKind::Ge, in));
        if (op.kind == OpKind::Ge) return one(out.add(OpKind::Gt, in));
        return std::nullopt;
      });
}

std::optional<Graph> reversed_compare(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind == OpKind::Lt) return one(out.add(OpKind::Gt, in));
        if (op.kind == OpKind::Le) return one(out.add(OpKind::Ge, in));
        if (op.kind == OpKind::Gt) return one(out.add(OpKind::Lt, in));
        if (op.kind == OpKind::Ge) return one(out.add(OpKind::Le, in));
        if (op.kind == OpKind::Eq) return one(out.add(OpKind::Ne, in));
        return std::nullopt;
      });
}

// The last elements along one axis are lost before a reduction, matmul or kernel.
std::optional<Graph> dropped_tail(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, Tensors in) -> Result {
        if (home.level() != Level::Kernel) return std::nullopt;
        if (op.kind != OpKind::Sum && op.kind != OpKind::Mean && op.kind != OpKind::Matmul &&
            op.kind != OpKind::Kernel && op.kind != OpKind::ReduceMax && op.kind != OpKind::Cumsum)
          return std::nullopt;
        const size_t which = rng.below(in.size());
        const Shape& s = out.type(in[which]).shape;
        std::vector<size_t> axes;
        for (size_t d = 0; d < s.size(); d++)
          if (s[d].extent > 1) axes.push_back(d);
        if (axes.empty()) return std::nullopt;
        const size_t axis = axes[rng.below(axes.size())];
        const int64_t n = s[axis].extent;
        const int64_t lost = n % 2 == 1 && n > 2 ? n % 2 : 1 + int64_t(rng.below(uint64_t(n) / 2));
        SliceAttrs a;
        PadAttrs p;
        for (const Dim& d : s) {
          a.starts.push_back(0);
          a.stops.push_back(d.extent);
          a.steps.push_back(1);
          p.low.push_back(0);
          p.high.push_back(0);
        }
        a.stops[axis] -= lost;
        p.high[axis] = lost;
        in[which] = out.add(OpKind::Pad, {out.add(OpKind::Slice, {in[which]}, a)}, p);
        return copy_op(out, home, op, in);
      });
}

// The loop stops one iteration early.
std::optional<Graph> short_loop(const Graph& g, Rng& rng) {
  for (size_t i = 0; i < g.ops().size(); i++) {
    const Op& kernel = g.ops()[i];
    if (kernel.kind != OpKind::Kernel) continue;
    const Graph& body = g.body(kernel);
    for (size_t loop = 0; loop < body.loops().size(); loop++) {
      const int64_t n = body.loops()[loop];
      if (n < 2) continue;
      // Arguments lose what the last iteration would have seen; the loop runs n-1 times.
      auto changed = edit_at(g, {-1, OpId(i)}, [&](Graph& out, const Op& op, Tensors in) -> Result {
        std::vector<int64_t> loops = body.loops();
        loops[loop] = n - 1;
        Graph b = Graph::block(body.grid(), loops);
        std::vector<TensorId> to(body.tensors().size());
        for (size_t a = 0; a < body.inputs().size(); a++)
          for (const Op& iter : body.ops()) {
            if (iter.kind != OpKind::Iter || iter.inputs[0] != body.inputs()[a]) continue;
            const int axis = body.attrs<IterAttrs>(iter).fmap[loop];
            if (axis < 0) continue;
            const Shape s = out.type(in[a]).shape;
            const int64_t extent = s[size_t(axis)].extent;
            const int64_t keep = (extent + n - 1) / n * (n - 1);
            if (keep >= extent) return std::nullopt;
            SliceAttrs cut;
            for (const Dim& d : s) {
              cut.starts.push_back(0);
              cut.stops.push_back(d.extent);
              cut.steps.push_back(1);
            }
            cut.stops[size_t(axis)] = keep;
            in[a] = out.add(OpKind::Slice, {in[a]}, cut);
            break;
          }
        size_t argument = 0;
        for (const Op& o : body.ops()) {
          Tensors operands;
          for (TensorId t : o.inputs) operands.push_back(to[t.index]);
          Tensors made;
          if (o.kind == OpKind::Input)
            made = {b.add_input(out.type(in[argument++]))};
          else
            made = copy_op(b, body, o, operands);
          for (uint32_t r = 0; r < o.num_results; r++) to[o.result(r).index] = made[r];
        }
        for (TensorId t : body.outputs()) b.add_output(to[t.index]);
        const TensorId first(out.tensors().size());
        OpId id = out.add_graph_op(OpKind::Kernel, in, std::move(b));
        (void)first;
        Tensors results;
        for (uint32_t r = 0; r < op.num_results; r++) results.push_back(out.op(id).result(r));
        return results;
      });
      if (changed && rng.chance(0.9)) return changed;
    }
  }
  return std::nullopt;
}

// The accumulator keeps the value of one iteration instead of folding all of them.
std::optional<Graph> stale_accumulator(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Accum,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        const auto& a = home.attrs<AccumAttrs>(op);
        if (a.kind == AccumKind::Concat || a.loops.size() != 1) return std::nullopt;
        const Shape s = out.type(in[0]).shape;
        const int64_t n = home.loops()[size_t(a.loops[0])];
        if (s.empty() || n < 2) return std::nullopt;
        const int axis = int(s.size()) - 1;
        TensorId all = out.add(OpKind::Accum, in, AccumAttrs{AccumKind::Concat, a.loops, axis});
        SliceAttrs cut;
        for (const Dim& d : s) {
          cut.starts.push_back(0);
          cut.stops.push_back(d.extent);
          cut.steps.push_back(1);
        }
        const int64_t which = rng.chance(0.5) ? 0 : n - 1;
        cut.starts.back() = which * s.back().extent;
        cut.stops.back() = (which + 1) * s.back().extent;
        return one(out.add(OpKind::Slice, {all}, cut));
      });
}

std::optional<Graph> accumulator_not_reset(const Graph& g, Rng& rng) {  // added up twice
  return at_kind(
      g, rng, OpKind::Accum,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) {
        TensorId acc = out.add(op.kind, in, op.attrs);
        return one(out.add(OpKind::Add, {acc, acc}));
      });
}

template <AccumKind From, AccumKind To>
std::optional<Graph> wrong_accumulator(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Accum,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        AccumAttrs a = home.attrs<AccumAttrs>(op);
        if (a.kind != From || home.loops()[size_t(a.loops[0])] < 2) return std::nullopt;
        a.kind = To;
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> unscaled_accumulator(const Graph& g, Rng& rng) {  // forgets exp(m - max)
  return at_kind(
      g, rng, OpKind::AccumRescale,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) {
        return one(out.add(OpKind::Accum, {in[0]}, op.attrs));
      });
}

template <class Map> bool swap_entries(Map& map, Rng& rng) {
  const size_t i = rng.below(map.size()), j = rng.below(map.size());
  if (map[i] == map[j]) return false;
  std::swap(map[i], map[j]);
  return true;
}

std::optional<Graph> wrong_imap(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Iter,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        IterAttrs a = home.attrs<IterAttrs>(op);
        const int rank = out.type(in[0]).rank();
        if (rng.chance(0.4)
                ? !swap_entries(a.imap, rng)
                : (a.imap[rng.below(home.grid().size())] = int8_t(rng.between(-1, rank - 1)),
                   false))
          return std::nullopt;
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> wrong_fmap(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Iter,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        IterAttrs a = home.attrs<IterAttrs>(op);
        if (home.loops().empty()) return std::nullopt;
        const int rank = out.type(in[0]).rank();
        a.fmap[rng.below(home.loops().size())] = int8_t(rng.between(-1, rank - 1));
        return one(out.add(op.kind, in, a));
      });
}

// Grid and loop change places on one tensor.
std::optional<Graph> imap_for_fmap(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Iter,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        IterAttrs a = home.attrs<IterAttrs>(op);
        if (home.loops().empty() || a.imap[0] == a.fmap[0]) return std::nullopt;
        std::swap(a.imap[0], a.fmap[0]);
        return one(out.add(op.kind, in, a));
      });
}

std::optional<Graph> wrong_omap(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Save,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        SaveAttrs a = home.attrs<SaveAttrs>(op);
        if (home.grid().size() >= 2)
          std::swap(a.omap[0], a.omap[1]);
        else if (!home.loops().empty())
          std::swap(a.omap[0], a.fmap[0]);
        return one(out.add(op.kind, in, a));
      });
}

// One channel with weights that are not turned round.
std::optional<Graph> conv_to_conv_transpose(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::ConvTranspose,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        const auto& a = home.attrs<ConvAttrs>(op);
        const int64_t k = home.type(op.inputs[1]).shape[2].extent;
        if (a.groups != 1 || a.strides[0] != 1 || k < 2) return std::nullopt;
        ConvAttrs b = a;
        b.low[0] = (k - 1) * a.dilations[0] - a.low[0];
        b.high[0] = (k - 1) * a.dilations[0] - a.high[0];
        TensorId w = out.add(OpKind::Transpose, {in[1]}, PermAttrs{{1, 0, 2}});
        return one(out.add(OpKind::Conv, {in[0], w}, b));
      });
}

std::optional<Graph> wrong_gather(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Gather,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        AxisAttrs a = home.attrs<AxisAttrs>(op);
        const Shape& s = out.type(in[0]).shape;
        if (rng.chance(0.5) && s.size() > 1) {  // another axis, if long enough
          const int axis = (a.axis + 1) % int(s.size());
          if (s[size_t(axis)].extent < s[size_t(a.axis)].extent) return std::nullopt;
          a.axis = axis;
          return one(out.add(op.kind, in, a));
        }
        // rotate the rows that the indices select from
        if (s[size_t(a.axis)].extent < 2) return std::nullopt;
        return one(out.add(op.kind, {rotate(out, in[0], size_t(a.axis)), in[1]}, a));
      });
}

std::optional<Graph> wrong_exponent(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Pow,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        auto e = Rational::add(home.attrs<PowAttrs>(op).exponent, Rational(1));
        if (!e) return std::nullopt;
        return one(out.add(op.kind, in, PowAttrs{*e}));
      });
}

std::optional<Graph> wrong_associativity(const Graph& g, Rng& rng) {  // (a-b)-c to a-(b-c)
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Sub && op.kind != OpKind::Div) return std::nullopt;
        const Op inner = out.producer(in[0]);
        if (inner.kind != op.kind) return std::nullopt;
        TensorId right = out.add(op.kind, {inner.inputs[1], in[1]});
        return one(out.add(op.kind, {inner.inputs[0], right}));
      });
}

std::optional<Graph> half_distributed(const Graph& g, Rng& rng) {  // (a+b)·c to a·c+b
  return at_kind(
      g, rng, OpKind::Mul,
      [](const Graph&, Graph& out, const Op&, const Tensors& in) -> Result {
        const Op sum = out.producer(in[0]);
        if (sum.kind != OpKind::Add && sum.kind != OpKind::Sub) return std::nullopt;
        TensorId left = out.add(OpKind::Mul, {sum.inputs[0], in[1]});
        return one(out.add(sum.kind, {left, sum.inputs[1]}));
      });
}

// An operand is replaced by another value of the same type.
std::optional<Graph> wrong_operand(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, Tensors in) -> Result {
        if (in.empty() || op.kind == OpKind::Iter || op.kind == OpKind::Save) return std::nullopt;
        const size_t which = rng.below(in.size());
        Tensors others;
        for (size_t t = 0; t < out.tensors().size(); t++) {
          const TensorId id(t);
          const OpKind made_by = out.producer(id).kind;
          if (id == in[which] || !(out.type(id) == out.type(in[which]))) continue;
          if (home.level() == Level::Block && (made_by == OpKind::Input || made_by == OpKind::Save))
            continue;
          others.push_back(id);
        }
        if (others.empty()) return std::nullopt;
        in[which] = others[rng.below(others.size())];
        return copy_op(out, home, op, in);
      });
}

std::optional<Graph> repeat_interleaved(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Repeat,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        const auto& a = home.attrs<RepeatAttrs>(op);
        const Shape s = out.type(in[0]).shape;
        for (size_t d = 0; d < s.size(); d++) {
          if (a.repeats[d] < 2 || s[d].extent < 2) continue;
          Shape wide = s;
          wide.insert(wide.begin() + long(d) + 1, Dim(a.repeats[d]));
          Shape merged = s;
          merged[d] = Dim(s[d].extent * a.repeats[d]);
          TensorId t = out.add(OpKind::Unsqueeze, in, AxesAttrs{{int(d) + 1}});
          t = out.add(OpKind::Broadcast, {t}, ShapeAttrs{wide});
          t = out.add(OpKind::Reshape, {t}, ShapeAttrs{merged});
          RepeatAttrs rest = a;
          rest.repeats[d] = 1;
          return one(out.add(OpKind::Repeat, {t}, rest));
        }
        return std::nullopt;
      });
}

// An intermediate value loses its fraction, or half of its precision.
std::optional<Graph> lost_precision(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel || op.num_results != 1 || op.kind == OpKind::Const)
          return std::nullopt;
        const DType dtype = home.type(op.result()).dtype;
        if (dtype != DType::F32 && dtype != DType::F64) return std::nullopt;
        TensorId t = copy_op(out, home, op, in)[0];
        if (op.kind == OpKind::Input || op.kind == OpKind::Kernel) return std::nullopt;
        TensorId low = out.add(OpKind::Cast, {t}, CastAttrs{DType::BF16});
        return one(out.add(OpKind::Cast, {low}, CastAttrs{dtype}));
      });
}

std::optional<Graph> wrong_index(const Graph& g, Rng& rng) {  // iota along another axis, from 1
  return at_kind(
      g, rng, OpKind::Iota,
      [](const Graph& home, Graph& out, const Op& op, const Tensors&) -> Result {
        IotaAttrs a = home.attrs<IotaAttrs>(op);
        if (!is_float(a.type.dtype)) return std::nullopt;
        TensorId t = out.add(op.kind, {}, a);
        return one(out.add(OpKind::Add, {t, scalar(out, Rational(1), a.type.dtype)}));
      });
}

// exp(x - max) without the shift: equal over the reals, overflows in floats.
std::optional<Graph> unshifted_softmax(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Exp,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        const Op shift = out.producer(in[0]);
        if (shift.kind != OpKind::Sub || out.producer(shift.inputs[1]).kind != OpKind::ReduceMax)
          return std::nullopt;
        return one(out.add(op.kind, {shift.inputs[0]}));
      });
}

}  // namespace

const std::vector<ProgramEdit>& mutations() {
  using enum OpKind;
  static const std::vector<ProgramEdit> table = [] {
    std::vector<ProgramEdit> all = {
        {"swap_div_operands", swap_operands<Div>},
        {"swap_sub_operands", swap_operands<Sub>},
        {"swap_matmul_operands", swap_operands<Matmul>},
        {"wrong_reduce_axis", wrong_reduce_axis},
        {"wrong_cumsum_axis", wrong_cumsum_axis},
        {"exclusive_cumsum", exclusive_cumsum},
        {"wrong_perm", wrong_perm},
        {"missing_transpose", missing_transpose},
        {"reshape_for_transpose", reshape_for_transpose},
        {"transposed_operand", transposed_operand},
        {"wrong_constant", wrong_constant},
        {"dropped_scale", dropped_scale},
        {"dropped_term", dropped_term},
        {"sum_to_mean", other_kind<Sum, Mean>},
        {"mean_to_sum", other_kind<Mean, Sum>},
        {"n_minus_one", n_minus_one},
        {"reduce_max_to_sum", other_kind<ReduceMax, Sum>},
        {"reduce_max_to_min", other_kind<ReduceMax, ReduceMin>},
        {"eps_outside_root", eps_outside_root},
        {"dropped_eps", dropped_eps},
        {"exp_dropped", drop<Exp>},
        {"neg_dropped", drop<Neg>},
        {"abs_dropped", drop<Abs>},
        {"relu_dropped", drop<Relu>},
        {"sqrt_dropped", drop<Sqrt>},
        {"mask_dropped", drop<Tril>},
        {"relu_to_abs", other_kind<Relu, Abs>},
        {"sigmoid_to_tanh", other_kind<Sigmoid, Tanh>},
        {"silu_to_gelu", other_kind<Silu, Gelu>},
        {"gelu_to_gelu_tanh", other_kind<Gelu, GeluTanh>},
        {"gelu_tanh_to_gelu", other_kind<GeluTanh, Gelu>},
        {"erf_to_tanh", other_kind<Erf, Tanh>},
        {"sin_to_cos", other_kind<Sin, Cos>},
        {"floor_to_round", other_kind<Floor, Round>},
        {"log1p_to_log", other_kind<Log1p, Log>},
        {"expm1_to_exp", other_kind<Expm1, Exp>},
        {"power_to_mul", other_kind<Power, Mul>},
        {"mod_to_sub", other_kind<Mod, Sub>},
        {"atan2_to_div", other_kind<Atan2, Div>},
        {"sqrt_to_rsqrt", other_kind<Sqrt, Rsqrt>},
        {"rsqrt_to_sqrt", other_kind<Rsqrt, Sqrt>},
        {"sqr_to_abs", other_kind<Sqr, Abs>},
        {"add_to_sub", other_kind<Add, Sub>},
        {"sub_to_add", other_kind<Sub, Add>},
        {"mul_to_div", other_kind<Mul, Div>},
        {"div_to_mul", other_kind<Div, Mul>},
        {"max_to_min", other_kind<Max, Min>},
        {"and_to_or", other_kind<And, Or>},
        {"triu_to_tril", other_kind<Triu, Tril>},
        {"shifted_window", shifted_window},
        {"conv_to_conv_transpose", conv_to_conv_transpose},
        {"pool_sum_to_max", other_kind<PoolSum, PoolMax>},
        {"shifted_slice", shifted_slice},
        {"swapped_concat", swapped_concat},
        {"wrong_pad_value", wrong_pad_value},
        {"padded_other_side", padded_other_side},
        {"diagonal_off_by_one", diagonal_off_by_one},
        {"wrong_row", wrong_row},
        {"swapped_branches", swapped_branches},
        {"boundary_of_compare", boundary_of_compare},
        {"reversed_compare", reversed_compare},
        {"dropped_tail", dropped_tail},
        {"short_loop", short_loop},
        {"stale_accumulator", stale_accumulator},
        {"accumulator_not_reset", accumulator_not_reset},
        {"accum_max_to_sum", wrong_accumulator<AccumKind::Max, AccumKind::Sum>},
        {"accum_sum_to_max", wrong_accumulator<AccumKind::Sum, AccumKind::Max>},
        {"unscaled_accumulator", unscaled_accumulator},
        {"wrong_imap", wrong_imap},
        {"wrong_fmap", wrong_fmap},
        {"imap_for_fmap", imap_for_fmap},
        {"wrong_omap", wrong_omap},
        {"wrong_gather", wrong_gather},
        {"wrong_exponent", wrong_exponent},
        {"wrong_associativity", wrong_associativity},
        {"half_distributed", half_distributed},
        {"wrong_operand", wrong_operand},
        {"repeat_interleaved", repeat_interleaved},
        {"wrong_index", wrong_index},
        {"lost_precision", lost_precision},
        {"unshifted_softmax", unshifted_softmax},
    };
    const std::vector<ProgramEdit>& more = faulty_structures();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return table;
}

}  // namespace tessera
