#include <algorithm>
#include <limits>

#include "ir/block.h"
#include "ir/window.h"
#include "verify/bench/edit.h"
#include "verify/bench/mutations.h"
#include "verify/bench/structures.h"

namespace tessera {
namespace {

using Result = EditResult;

DType dtype_of(const Graph& g, TensorId t) { return g.type(t).dtype; }
bool is_const(const Graph& g, TensorId t) { return g.producer(t).kind == OpKind::Const; }
// Which axis of `small` meets axis `axis` of the broadcast result of rank `rank`; -1 if none.
int aligned(int axis, int rank, int small) { return axis - (rank - small); }

TensorId swap_last(Graph& g, TensorId x) {
  PermAttrs a;
  for (int d = 0; d < g.type(x).rank(); d++) a.perm.push_back(d);
  std::swap(a.perm[a.perm.size() - 1], a.perm[a.perm.size() - 2]);
  return g.add(OpKind::Transpose, {x}, a);
}

std::optional<Graph> commute(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (!has(op.kind, algebra::Commutative) || in[0] == in[1]) return std::nullopt;
        return one(out.add(op.kind, {in[1], in[0]}));
      });
}

std::optional<Graph> associate(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Add && op.kind != OpKind::Mul) return std::nullopt;
        const Op inner = out.producer(in[0]);
        if (inner.kind != op.kind) return std::nullopt;
        TensorId right = out.add(op.kind, {inner.inputs[1], in[1]});
        return one(out.add(op.kind, {inner.inputs[0], right}));
      });
}

std::optional<Graph> distribute(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Mul,
      [](const Graph&, Graph& out, const Op&, const Tensors& in) -> Result {
        for (size_t side : {0, 1}) {
          const Op sum = out.producer(in[side]);
          if (sum.kind != OpKind::Add && sum.kind != OpKind::Sub) continue;
          // Centred values stay together: x² − mx is the one-pass variance.
          if (sum.kind == OpKind::Sub && out.producer(sum.inputs[1]).kind == OpKind::Mean) continue;
          TensorId c = in[1 - side];
          TensorId left = out.add(OpKind::Mul, {sum.inputs[0], c});
          TensorId right = out.add(OpKind::Mul, {sum.inputs[1], c});
          return one(out.add(sum.kind, {left, right}));
        }
        return std::nullopt;
      });
}

std::optional<Graph> div_as_reciprocal(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Div,
      [&](const Graph&, Graph& out, const Op&, const Tensors& in) {
        TensorId inverse =
            rng.chance(0.5)
                ? out.add(OpKind::Pow, {in[1]}, PowAttrs{Rational(-1)})
                : out.add(OpKind::Div, {scalar(out, Rational(1), dtype_of(out, in[1])), in[1]});
        return one(out.add(OpKind::Mul, {in[0], inverse}));
      });
}

std::optional<Graph> matmul_associate(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [](const Graph&, Graph& out, const Op&, const Tensors& in) -> Result {
        const Op inner = out.producer(in[0]);
        if (inner.kind != OpKind::Matmul) return std::nullopt;
        TensorId right = out.add(OpKind::Matmul, {inner.inputs[1], in[1]});
        return one(out.add(OpKind::Matmul, {inner.inputs[0], right}));
      });
}

std::optional<Graph> transpose_of_product(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [](const Graph& home, Graph& out, const Op&, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel) return std::nullopt;
        TensorId t = out.add(OpKind::Matmul, {swap_last(out, in[1]), swap_last(out, in[0])});
        return one(swap_last(out, t));
      });
}

std::optional<Graph> scale_through_matmul(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [](const Graph&, Graph& out, const Op&, const Tensors& in) -> Result {
        for (size_t side : {0, 1}) {
          const Op scaled = out.producer(in[side]);
          if (scaled.kind != OpKind::Mul && scaled.kind != OpKind::Div) continue;
          TensorId c = scaled.inputs[1], x = scaled.inputs[0];
          // A scalar, or a column of factors, one per row of the left operand.
          const Shape& s = out.type(c).shape;
          const bool is_scalar = s.empty();
          const bool per_row = side == 0 && s.size() == 2 && s[1].is_one() &&
                               out.type(x).rank() == 2 && out.type(in[1]).rank() == 2;
          if (!is_scalar && !per_row) continue;
          if (!(out.type(x) == out.type(in[side]))) continue;
          Tensors operands = in;
          operands[side] = x;
          return one(out.add(scaled.kind, {out.add(OpKind::Matmul, operands), c}));
        }
        return std::nullopt;
      });
}

std::optional<Graph> split_sum(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if ((op.kind != OpKind::Sum) || home.level() != Level::Kernel) return std::nullopt;
        const auto& a = home.attrs<ReduceAttrs>(op);
        const size_t axis = size_t(a.axes[rng.below(a.axes.size())]);
        const int64_t n = out.type(in[0]).shape[axis].extent;
        if (n < 2) return std::nullopt;
        const int64_t at = rng.between(1, n - 1);
        TensorId left = out.add(op.kind, {cut(out, in[0], axis, 0, at)}, a);
        TensorId right = out.add(op.kind, {cut(out, in[0], axis, at, n)}, a);
        return one(out.add(OpKind::Add, {left, right}));
      });
}

std::optional<Graph> split_k(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel) return std::nullopt;
        const size_t rx = out.type(in[0]).shape.size(), ry = out.type(in[1]).shape.size();
        const int64_t k = out.type(in[0]).shape[rx - 1].extent;
        if (k < 2) return std::nullopt;
        const int64_t at = rng.between(1, k - 1);
        TensorId left =
            out.add(op.kind, {cut(out, in[0], rx - 1, 0, at), cut(out, in[1], ry - 2, 0, at)});
        TensorId right =
            out.add(op.kind, {cut(out, in[0], rx - 1, at, k), cut(out, in[1], ry - 2, at, k)});
        return one(out.add(OpKind::Add, {left, right}));
      });
}

// A batched product over ⌈K/s⌉-sized slabs, summed: K padded with zeros where s does not divide.
std::optional<Graph> split_k_batched(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel || out.type(in[0]).rank() != 2 ||
            out.type(in[1]).rank() != 2)
          return std::nullopt;
        const int64_t m = out.type(in[0]).shape[0].extent;
        const int64_t k = out.type(in[0]).shape[1].extent;
        const int64_t n = out.type(in[1]).shape[1].extent;
        const int64_t s = rng.between(2, 3), slab = ceil_div(k, s), extra = slab * s - k;
        TensorId x = out.add(OpKind::Pad, {in[0]}, PadAttrs{{0, 0}, {0, extra}, {}});
        TensorId y = out.add(OpKind::Pad, {in[1]}, PadAttrs{{0, 0}, {extra, 0}, {}});
        x = out.add(OpKind::Reshape, {x}, ShapeAttrs{{Dim(m), Dim(s), Dim(slab)}});
        x = out.add(OpKind::Transpose, {x}, PermAttrs{{1, 0, 2}});
        y = out.add(OpKind::Reshape, {y}, ShapeAttrs{{Dim(s), Dim(slab), Dim(n)}});
        TensorId p = out.add(op.kind, {x, y});
        return one(out.add(OpKind::Sum, {p}, ReduceAttrs{{0}, false}));
      });
}

// exp(a+b) = exp a · exp b, where neither can overflow alone.
std::optional<Graph> exp_of_sum(const Graph& g, Rng& rng) {
  auto bounded = [](const Graph& h, TensorId t) {
    const OpKind kind = h.producer(t).kind;
    return kind == OpKind::Tanh || kind == OpKind::Sigmoid || kind == OpKind::Sin ||
           kind == OpKind::Cos || kind == OpKind::Erf || kind == OpKind::Sign ||
           kind == OpKind::Const;
  };
  return at_kind(
      g, rng, OpKind::Exp, [&](const Graph&, Graph& out, const Op&, const Tensors& in) -> Result {
        const Op sum = out.producer(in[0]);
        if (sum.kind == OpKind::Add && bounded(out, sum.inputs[0]) && bounded(out, sum.inputs[1]))
          return one(out.add(OpKind::Mul, {out.add(OpKind::Exp, {sum.inputs[0]}),
                                           out.add(OpKind::Exp, {sum.inputs[1]})}));
        if (!bounded(out, in[0])) return std::nullopt;
        // exp x = exp(x/2)²
        TensorId half =
            out.add(OpKind::Mul, {in[0], scalar(out, Rational::ratio(1, 2), dtype_of(out, in[0]))});
        return one(out.add(OpKind::Sqr, {out.add(OpKind::Exp, {half})}));
      });
}

TensorId logistic(Graph& out, TensorId x) {  // 1 / (1 + exp(-x))
  TensorId one_ = scalar(out, Rational(1), dtype_of(out, x));
  TensorId e = out.add(OpKind::Exp, {out.add(OpKind::Neg, {x})});
  return out.add(OpKind::Div, {one_, out.add(OpKind::Add, {one_, e})});
}

std::optional<Graph> expand_silu(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Silu,
      [&](const Graph&, Graph& out, const Op&, const Tensors& in) {
        TensorId s = rng.chance(0.5) ? out.add(OpKind::Sigmoid, {in[0]}) : logistic(out, in[0]);
        return one(out.add(OpKind::Mul, {in[0], s}));
      });
}

std::optional<Graph> expand_sigmoid(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Sigmoid,
      [](const Graph&, Graph& out, const Op&, const Tensors& in) {
        return one(logistic(out, in[0]));
      });
}

std::optional<Graph> expand_gelu(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Gelu,
      [](const Graph&, Graph& out, const Op&, const Tensors& in) {
        const DType d = dtype_of(out, in[0]);
        // x·(1 + erf(x/√2))/2
        TensorId root = out.add(OpKind::Sqrt, {scalar(out, Rational(2), d)});
        TensorId e = out.add(OpKind::Erf, {out.add(OpKind::Div, {in[0], root})});
        TensorId half = out.add(OpKind::Mul, {in[0], scalar(out, Rational::ratio(1, 2), d)});
        return one(
            out.add(OpKind::Mul, {half, out.add(OpKind::Add, {e, scalar(out, Rational(1), d)})}));
      });
}

std::optional<Graph> expand_mod(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Mod,
      [](const Graph&, Graph& out, const Op&, const Tensors& in) -> Result {
        if (!is_float(dtype_of(out, in[0]))) return std::nullopt;
        TensorId q = out.add(OpKind::Floor, {out.add(OpKind::Div, {in[0], in[1]})});
        return one(out.add(OpKind::Sub, {in[0], out.add(OpKind::Mul, {in[1], q})}));
      });
}

std::optional<Graph> split_power(const Graph& g, Rng& rng) {  // x^y = (x^(y/2))² for x > 0
  return at_kind(
      g, rng, OpKind::Power,
      [](const Graph&, Graph& out, const Op&, const Tensors& in) -> Result {
        if (out.producer(in[0]).kind != OpKind::Exp) return std::nullopt;
        TensorId half = scalar(out, Rational::ratio(1, 2), dtype_of(out, in[1]));
        TensorId y = out.add(OpKind::Mul, {in[1], half});
        return one(out.add(OpKind::Sqr, {out.add(OpKind::Power, {in[0], y})}));
      });
}

std::optional<Graph> inverse_transposes(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel || op.num_results != 1) return std::nullopt;
        TensorId t = copy_op(out, home, op, in)[0];
        if (op.kind == OpKind::Input || out.type(t).rank() < 2) return std::nullopt;
        return one(swap_last(out, swap_last(out, t)));
      });
}

std::optional<Graph> inverse_reshapes(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel || op.num_results != 1 || op.kind == OpKind::Input)
          return std::nullopt;
        TensorId t = copy_op(out, home, op, in)[0];
        const Shape s = out.type(t).shape;
        TensorId flat = out.add(OpKind::Reshape, {t}, ShapeAttrs{{Dim(num_elements(s))}});
        return one(out.add(OpKind::Reshape, {flat}, ShapeAttrs{s}));
      });
}

std::optional<Graph> concat_of_slices(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel || op.num_results != 1 || op.kind == OpKind::Input)
          return std::nullopt;
        TensorId t = copy_op(out, home, op, in)[0];
        const Shape s = out.type(t).shape;
        for (size_t d = 0; d < s.size(); d++) {
          if (s[d].extent < 2) continue;
          const int64_t at = rng.between(1, s[d].extent - 1);
          return one(out.add(OpKind::Concat,
                             {cut(out, t, d, 0, at), cut(out, t, d, at, s[d].extent)},
                             AxisAttrs{int(d)}));
        }
        return std::nullopt;
      });
}

std::optional<Graph> pad_and_cut(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel || op.num_results != 1 || op.kind == OpKind::Input)
          return std::nullopt;
        TensorId t = copy_op(out, home, op, in)[0];
        const Shape s = out.type(t).shape;
        if (s.empty() || dtype_of(out, t) == DType::Bool) return std::nullopt;
        const size_t d = rng.below(s.size());
        PadAttrs p{std::vector<int64_t>(s.size(), 0), std::vector<int64_t>(s.size(), 0),
                   Rational(7)};
        p.low[d] = 1;
        p.high[d] = 2;
        return one(cut(out, out.add(OpKind::Pad, {t}, p), d, 1, 1 + s[d].extent));
      });
}

// One operator written as others.
std::optional<Graph> expand(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (in.empty()) return std::nullopt;
        const DType d = dtype_of(out, in[0]);
        if (op.kind == OpKind::Sqr) return one(out.add(OpKind::Mul, {in[0], in[0]}));
        if (op.kind == OpKind::Rsqrt)
          return one(
              out.add(OpKind::Div, {scalar(out, Rational(1), d), out.add(OpKind::Sqrt, {in[0]})}));
        if (op.kind == OpKind::Sub)
          return one(out.add(OpKind::Add, {in[0], out.add(OpKind::Neg, {in[1]})}));
        if (op.kind == OpKind::Neg)
          return one(out.add(OpKind::Sub, {scalar(out, Rational(0), d), in[0]}));
        if (op.kind == OpKind::Relu)
          return one(out.add(OpKind::Max, {in[0], scalar(out, Rational(0), d)}));
        if (op.kind == OpKind::Abs && d != DType::U8)  // where -x wraps
          return one(out.add(OpKind::Max, {in[0], out.add(OpKind::Neg, {in[0]})}));
        if (op.kind == OpKind::Min && is_float(d)) {  // -x wraps for the smallest integer
          TensorId m =
              out.add(OpKind::Max, {out.add(OpKind::Neg, {in[0]}), out.add(OpKind::Neg, {in[1]})});
          return one(out.add(OpKind::Neg, {m}));
        }
        if (op.kind == OpKind::Mean) {
          int64_t n = 1;
          for (int a : home.attrs<ReduceAttrs>(op).axes)
            n *= out.type(in[0]).shape[size_t(a)].extent;
          TensorId s = out.add(OpKind::Sum, in, op.attrs);
          return one(rng.chance(0.5)
                         ? out.add(OpKind::Mul, {s, scalar(out, Rational::ratio(1, n), d)})
                         : out.add(OpKind::Div, {s, scalar(out, Rational(n), d)}));
        }
        if (op.kind == OpKind::ConcatMatmul) {
          TensorId left = out.add(OpKind::Matmul, {in[0], in[2]});
          return one(out.add(OpKind::Add, {left, out.add(OpKind::Matmul, {in[1], in[3]})}));
        }
        if (op.kind == OpKind::Pow) {
          const Rational& e = home.attrs<PowAttrs>(op).exponent;
          if (e == Rational(2)) return one(out.add(OpKind::Sqr, in));
          if (e == Rational(3)) return one(out.add(OpKind::Mul, {out.add(OpKind::Sqr, in), in[0]}));
          if (e == Rational::ratio(1, 2)) return one(out.add(OpKind::Sqrt, in));
          if (e == Rational::ratio(-1, 2)) return one(out.add(OpKind::Rsqrt, in));
          return std::nullopt;
        }
        if (op.kind == OpKind::Gt) return one(out.add(OpKind::Lt, {in[1], in[0]}));
        if (op.kind == OpKind::Le) return one(out.add(OpKind::Not, {out.add(OpKind::Gt, in)}));
        if (op.kind == OpKind::Where)
          return one(out.add(OpKind::Where, {out.add(OpKind::Not, {in[0]}), in[2], in[1]}));
        if (op.kind == OpKind::Matmul) {
          if (home.level() != Level::Kernel || out.type(in[0]).rank() != 2 ||
              out.type(in[1]).rank() != 2)
            return std::nullopt;
          TensorId x = out.add(OpKind::Unsqueeze, {in[0]}, AxesAttrs{{2}});
          TensorId y = out.add(OpKind::Unsqueeze, {in[1]}, AxesAttrs{{0}});
          return one(out.add(OpKind::Sum, {out.add(OpKind::Mul, {x, y})}, ReduceAttrs{{1}, false}));
        }
        if (op.kind == OpKind::Cumsum) {  // x times a triangle of ones
          const Shape s = out.type(in[0]).shape;
          if (home.level() != Level::Kernel || s.size() != 2 ||
              home.attrs<AxisAttrs>(op).axis != 1 || !is_float(d))
            return std::nullopt;
          TensorId ones = out.add_const(Rational(1), {d, {s[1], s[1]}});
          return one(out.add(OpKind::Matmul, {in[0], out.add(OpKind::Triu, {ones})}));
        }
        if (op.kind == OpKind::Tril) {
          TensorId upper =
              out.add(OpKind::Triu, in, DiagonalAttrs{home.attrs<DiagonalAttrs>(op).k + 1});
          return one(out.add(OpKind::Sub, {in[0], upper}));
        }
        if (op.kind == OpKind::Stack) {
          const auto& a = home.attrs<AxisAttrs>(op);
          Tensors parts;
          for (TensorId t : in)
            parts.push_back(out.add(OpKind::Unsqueeze, {t}, AxesAttrs{{a.axis}}));
          return one(out.add(OpKind::Concat, parts, a));
        }
        return std::nullopt;
      });
}

std::optional<Graph> sum_is_linear(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Sum && op.kind != OpKind::Mean) return std::nullopt;
        const Op inner = out.producer(in[0]);
        const Shape s = out.type(in[0]).shape;
        if (inner.kind == OpKind::Add || inner.kind == OpKind::Sub) {
          for (TensorId t : inner.inputs)
            if (!(out.type(t).shape == s)) return std::nullopt;
          return one(out.add(inner.kind, {out.add(op.kind, {inner.inputs[0]}, op.attrs),
                                          out.add(op.kind, {inner.inputs[1]}, op.attrs)}));
        }
        if ((inner.kind == OpKind::Mul || inner.kind == OpKind::Div) &&
            is_const(out, inner.inputs[1]) && out.type(inner.inputs[1]).shape.empty())
          return one(out.add(inner.kind,
                             {out.add(op.kind, {inner.inputs[0]}, op.attrs), inner.inputs[1]}));
        return std::nullopt;
      });
}

std::optional<Graph> sum_in_steps(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Sum && op.kind != OpKind::Mean) return std::nullopt;
        ReduceAttrs a = home.attrs<ReduceAttrs>(op);
        if (a.axes.size() < 2) return std::nullopt;
        const int last = a.axes.back();
        a.axes.pop_back();
        TensorId t = out.add(op.kind, in, ReduceAttrs{{last}, a.keepdims});
        return one(out.add(op.kind, {t}, a));
      });
}

std::optional<Graph> matmul_of_sum(const Graph& g, Rng& rng) {  // (A+B)C = AC + BC
  return at_kind(
      g, rng, OpKind::Matmul,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        for (size_t side : {0, 1}) {
          const Op sum = out.producer(in[side]);
          if (sum.kind != OpKind::Add && sum.kind != OpKind::Sub) continue;
          Tensors left = in, right = in;
          left[side] = sum.inputs[0];
          right[side] = sum.inputs[1];
          if (!(out.type(left[side]) == out.type(in[side])) ||
              !(out.type(right[side]) == out.type(in[side])))
            continue;
          return one(out.add(sum.kind, {out.add(op.kind, left), out.add(op.kind, right)}));
        }
        return std::nullopt;
      });
}

std::optional<Graph> double_negation(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.num_results != 1 || op.kind == OpKind::Input || op.kind == OpKind::Save ||
            home.type(op.result()).dtype == DType::Bool)
          return std::nullopt;
        TensorId t = copy_op(out, home, op, in)[0];
        return one(out.add(OpKind::Neg, {out.add(OpKind::Neg, {t})}));
      });
}

// --- kernels: a library operator becomes a loop nest, or a loop nest is cut differently

std::optional<Graph> tile_matmul(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        const Type x = out.type(in[0]), y = out.type(in[1]);
        if (home.level() != Level::Kernel || x.rank() != 2 || y.rank() != 2) return std::nullopt;
        auto parts = [&](const Dim& d) { return rng.between(1, d.extent + 1); };
        Graph b = Graph::block({parts(x.shape[0]), parts(y.shape[1])}, {parts(x.shape[1])});
        TensorId bx = b.add_input(x), by = b.add_input(y);
        TensorId tx = b.add(OpKind::Iter, {bx}, IterAttrs{{0, -1, -1}, {1, -1, -1, -1}});
        TensorId ty = b.add(OpKind::Iter, {by}, IterAttrs{{-1, 1, -1}, {0, -1, -1, -1}});
        TensorId acc = b.add(OpKind::Accum, {b.add(OpKind::Matmul, {tx, ty})},
                             AccumAttrs{AccumKind::Sum, {0}});
        b.add_output(
            b.add(OpKind::Save, {acc}, SaveAttrs{{0, 1, -1}, kNoLoops, home.type(op.result())}));
        OpId id = out.add_graph_op(OpKind::Kernel, in, std::move(b));
        return one(out.op(id).result());
      });
}

std::optional<Graph> tile_sum(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (op.kind != OpKind::Sum && op.kind != OpKind::ReduceMax && op.kind != OpKind::ReduceMin)
          return std::nullopt;
        const Type x = out.type(in[0]);
        const auto& a = home.attrs<ReduceAttrs>(op);
        if (home.level() != Level::Kernel || x.rank() != 2 || a.axes.size() != 1 || !a.keepdims)
          return std::nullopt;
        const int axis = a.axes[0], other = 1 - axis;
        Graph b = Graph::block({rng.between(1, x.shape[size_t(other)].extent + 1)},
                               {rng.between(1, x.shape[size_t(axis)].extent + 1)});
        TensorId bx = b.add_input(x);
        TensorId t = b.add(OpKind::Iter, {bx},
                           IterAttrs{{int8_t(other), -1, -1}, {int8_t(axis), -1, -1, -1}});
        const AccumKind fold = op.kind == OpKind::Sum         ? AccumKind::Sum
                               : op.kind == OpKind::ReduceMax ? AccumKind::Max
                                                              : AccumKind::Min;
        TensorId acc = b.add(OpKind::Accum, {b.add(op.kind, {t}, a)}, AccumAttrs{fold, {0}});
        b.add_output(b.add(OpKind::Save, {acc},
                           SaveAttrs{{int8_t(other), -1, -1}, kNoLoops, home.type(op.result())}));
        OpId id = out.add_graph_op(OpKind::Kernel, in, std::move(b));
        return one(out.op(id).result());
      });
}

std::optional<Graph> tile_pointwise(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.level() != Level::Kernel || !has(op.kind, algebra::Pointwise) || in.empty())
          return std::nullopt;
        const Type r = home.type(op.result());
        if (r.rank() < 1) return std::nullopt;
        const int axis = int(rng.below(uint64_t(r.rank())));
        const int64_t n = r.shape[size_t(axis)].extent;
        const bool looped = rng.chance(0.5);
        Graph b =
            Graph::block({rng.between(1, n + 1)},
                         looped ? std::vector<int64_t>{rng.between(1, n)} : std::vector<int64_t>{});
        Tensors tiles;
        std::vector<TensorId> args;
        for (TensorId t : in) args.push_back(b.add_input(out.type(t)));
        for (size_t i = 0; i < in.size(); i++) {
          const Type& x = out.type(in[i]);
          const int mine = aligned(axis, r.rank(), x.rank());
          const bool split = mine >= 0 && !x.shape[size_t(mine)].is_one();
          const auto at = int8_t(split ? mine : -1);
          tiles.push_back(b.add(OpKind::Iter, {args[i]},
                                IterAttrs{{at, -1, -1}, {looped ? at : int8_t(-1), -1, -1, -1}}));
        }
        TensorId v = b.add(op.kind, tiles, op.attrs);
        const auto at = int8_t(axis);
        b.add_output(b.add(OpKind::Save, {v},
                           SaveAttrs{{at, -1, -1}, {looped ? at : int8_t(-1), -1, -1, -1}, r}));
        OpId id = out.add_graph_op(OpKind::Kernel, in, std::move(b));
        return one(out.op(id).result());
      });
}

// The same kernel with other grid sizes or loop counts.
std::optional<Graph> retile(const Graph& g, Rng& rng) {
  for (const Op& kernel : g.ops()) {
    if (kernel.kind != OpKind::Kernel) continue;
    const Graph& body = g.body(kernel);
    for (int tries = 0; tries < 8; tries++) {
      std::vector<int64_t> grid = body.grid(), loops = body.loops();
      if (loops.empty() || rng.chance(0.5))
        grid[rng.below(grid.size())] = rng.between(1, 6);
      else
        loops[rng.below(loops.size())] = rng.between(1, 6);
      try {
        Graph b = Graph::block(grid, loops);
        Tensors to(body.tensors().size());
        for (const Op& op : body.ops()) {
          Tensors in;
          for (TensorId t : op.inputs) in.push_back(to[t.index]);
          Tensors made = copy_op(b, body, op, in);
          for (uint32_t r = 0; r < op.num_results; r++) to[op.result(r).index] = made[r];
        }
        for (TensorId t : body.outputs()) b.add_output(to[t.index]);
        if (b == body) continue;
        if (auto changed = replace_body(g, int(kernel.body.index), b)) return changed;
      } catch (const std::exception&) {  // these sizes do not fit
      }
    }
  }
  return std::nullopt;
}

std::optional<Graph> split_accumulator(const Graph& g,
                                       Rng& rng) {  // accum(x+y) = accum x + accum y
  return at_kind(
      g, rng, OpKind::Accum,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (home.attrs<AccumAttrs>(op).kind != AccumKind::Sum) return std::nullopt;
        const Rational quarter = Rational::ratio(1, 4);
        TensorId part = out.add(OpKind::Mul, {in[0], scalar(out, quarter, dtype_of(out, in[0]))});
        TensorId rest =
            out.add(OpKind::Mul, {in[0], scalar(out, Rational::ratio(3, 4), dtype_of(out, in[0]))});
        return one(out.add(OpKind::Add, {out.add(OpKind::Accum, {part}, op.attrs),
                                         out.add(OpKind::Accum, {rest}, op.attrs)}));
      });
}

// x/rms·G·W: the division moves behind the product.
std::optional<Graph> divide_after_matmul(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Matmul,
      [](const Graph&, Graph& out, const Op& op, const Tensors& in) -> Result {
        const Op d = out.producer(in[0]);
        if (d.kind != OpKind::Div || out.type(in[1]).rank() != 2) return std::nullopt;
        const Shape& s = out.type(d.inputs[1]).shape;
        if (s.size() < 2 || !s.back().is_one() || !(out.type(d.inputs[0]) == out.type(in[0])))
          return std::nullopt;
        TensorId p = out.add(op.kind, {d.inputs[0], in[1]});
        return one(out.add(OpKind::Div, {p, d.inputs[1]}));
      });
}

std::optional<Graph> gather_as_slice(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::Gather,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        // Indices start + iota only, as random programs make them.
        int64_t start = 0;
        Op index = out.producer(in[1]);
        if (index.kind == OpKind::Add) {
          const Op c = out.producer(index.inputs[1]);
          if (c.kind != OpKind::Const) return std::nullopt;
          start = out.attrs<ConstAttrs>(c).value.num();
          index = out.producer(index.inputs[0]);
        }
        if (index.kind != OpKind::Iota || out.type(in[1]).rank() != 1) return std::nullopt;
        const int64_t n = out.type(in[1]).shape[0].extent;
        return one(cut(out, in[0], size_t(home.attrs<AxisAttrs>(op).axis), start, start + n));
      });
}

// A window as the sum (or maximum) of shifted, strided slices of the padded operand, one per tap;
// of a convolution each times its tap's weights.
std::optional<Graph> window_by_taps(const Graph& g, Rng& rng) {
  return at_random_site(
      g, rng,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        if (!is_windowed(op.kind) || op.kind == OpKind::ConvTranspose) return std::nullopt;
        const std::vector<WindowAxis> axes = window_axes(home, op);
        if (axes.size() != 1) return std::nullopt;
        const WindowAxis& a = axes[0];
        const bool products = op.kind == OpKind::Conv;
        if (products && home.attrs<ConvAttrs>(op).groups != 1) return std::nullopt;
        const DType dtype = out.type(in[0]).dtype;
        const size_t rank = out.type(in[0]).shape.size();
        PadAttrs pad;
        pad.low.assign(rank, 0), pad.high.assign(rank, 0);
        pad.low.back() = a.low, pad.high.back() = a.high;
        if (op.kind == OpKind::PoolMax)
          pad.value = is_float(dtype) ? Rational::infinity(true)
                                      : Rational(std::numeric_limits<int32_t>::min());
        TensorId x = in[0];
        if (a.low + a.high > 0) x = out.add(OpKind::Pad, {x}, pad);
        std::optional<TensorId> sum;
        for (int64_t t = 0; t < a.taps; t++) {
          SliceAttrs s;
          for (const Dim& d : out.type(x).shape)
            s.starts.push_back(0), s.stops.push_back(d.extent), s.steps.push_back(1);
          s.starts.back() = t * a.dilation;
          s.stops.back() = t * a.dilation + (a.out - 1) * a.stride + 1;
          s.steps.back() = a.stride;
          TensorId term = out.add(OpKind::Slice, {x}, s);
          if (products) {
            TensorId w = out.add(OpKind::Squeeze, {cut(out, in[1], 2, t, t + 1)}, AxesAttrs{{2}});
            term = out.add(OpKind::Matmul, {w, term});
          }
          const OpKind fold = op.kind == OpKind::PoolMax ? OpKind::Max : OpKind::Add;
          sum = sum ? out.add(fold, {*sum, term}) : term;
        }
        return one(*sum);
      });
}

// A transposed convolution of stride 1 as a convolution with its weights gathered backwards.
std::optional<Graph> conv_transpose_as_conv(const Graph& g, Rng& rng) {
  return at_kind(
      g, rng, OpKind::ConvTranspose,
      [](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> Result {
        ConvAttrs a = home.attrs<ConvAttrs>(op);
        const Shape w = home.type(op.inputs[1]).shape;
        if (a.groups != 1 || a.strides.size() != 1 || a.strides[0] != 1) return std::nullopt;
        const int64_t reach = (w[2].extent - 1) * a.dilations[0];
        a.low[0] = reach - a.low[0], a.high[0] = reach - a.high[0];
        const Type line{DType::I64, {w[2]}};
        TensorId back = out.add(OpKind::Sub, {out.add_const(Rational(w[2].extent - 1), line),
                                              out.add(OpKind::Iota, {}, IotaAttrs{0, line})});
        TensorId turned = out.add(OpKind::Gather, {in[1], back}, AxisAttrs{2});
        turned = out.add(OpKind::Transpose, {turned}, PermAttrs{{1, 0, 2}});
        return one(out.add(OpKind::Conv, {in[0], turned}, a));
      });
}

}  // namespace

const std::vector<ProgramEdit>& rewrites() {
  static const std::vector<ProgramEdit> table = [] {
    std::vector<ProgramEdit> all = {
        {"commute", commute},
        {"associate", associate},
        {"distribute", distribute},
        {"div_as_reciprocal", div_as_reciprocal},
        {"matmul_associate", matmul_associate},
        {"transpose_of_product", transpose_of_product},
        {"scale_through_matmul", scale_through_matmul},
        {"divide_after_matmul", divide_after_matmul},
        {"matmul_of_sum", matmul_of_sum},
        {"split_sum", split_sum},
        {"sum_is_linear", sum_is_linear},
        {"sum_in_steps", sum_in_steps},
        {"split_k", split_k},
        {"split_k_batched", split_k_batched},
        {"exp_of_sum", exp_of_sum},
        {"expand_silu", expand_silu},
        {"expand_sigmoid", expand_sigmoid},
        {"expand_gelu", expand_gelu},
        {"expand_mod", expand_mod},
        {"split_power", split_power},
        {"expand", expand},
        {"double_negation", double_negation},
        {"inverse_transposes", inverse_transposes},
        {"inverse_reshapes", inverse_reshapes},
        {"concat_of_slices", concat_of_slices},
        {"pad_and_cut", pad_and_cut},
        {"gather_as_slice", gather_as_slice},
        {"window_by_taps", window_by_taps},
        {"conv_transpose_as_conv", conv_transpose_as_conv},
        {"tile_matmul", tile_matmul},
        {"tile_sum", tile_sum},
        {"tile_pointwise", tile_pointwise},
        {"retile", retile},
        {"split_accumulator", split_accumulator},
    };
    const std::vector<ProgramEdit>& more = sound_structures();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return table;
}

}  // namespace tessera
