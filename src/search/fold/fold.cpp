#include "search/fold/fold.h"

#include <algorithm>
#include <functional>
#include <set>

#include "ir/build.h"
#include "ir/weights.h"
#include "ir/window.h"

namespace tessera {
namespace {

// Builds the new value of one tensor; `to` has the new ids of everything before it.
using Build = std::function<TensorId(Graph&, const std::vector<TensorId>& to)>;

struct OpRewrite {
  OpId at;
  Build build;
  std::string rule;
};

// The program with the only result of one operator made another way.
Graph rebuilt(const Graph& g, const OpRewrite& rewrite) {
  Graph out(g.name());
  std::vector<TensorId> to(g.tensors().size());
  for (size_t i = 0; i < g.ops().size(); ++i) {
    const Op& op = g.ops()[i];
    if (OpId(i) == rewrite.at) {
      to[op.result().index] = rewrite.build(out, to);
      continue;
    }
    copy_op(g, op, out, to);
  }
  for (TensorId t : g.outputs()) out.add_output(to[t.index]);
  return without_dead_code(out);
}

// Whether a value of this shape varies along no axis but the one `back` from the end (1: the last)
// of what it is broadcast to.
bool only_along(const Shape& shape, size_t back) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (!shape[i].is_one() && shape.size() - i != back) return false;
  return true;
}

class Rules {
 public:
  explicit Rules(const Graph& g) : g_(g), fixed_(g.tensors().size(), false) {
    const std::vector<bool> once = computed_once(g);
    for (size_t i = 0; i < g.ops().size(); ++i) {
      const Op& op = g.ops()[i];
      const bool leaf = op.constant() || (is_input(op.kind) && g.is_weight(op.result()));
      for (uint32_t r = 0; r < op.num_results; ++r) fixed_[op.result(r).index] = leaf || once[i];
    }
  }

  std::vector<OpRewrite> all() const {
    std::vector<OpRewrite> found;
    for (size_t i = 0; i < g_.ops().size(); ++i) {
      const Op& op = g_.ops()[i];
      if (op.num_results != 1 || fixed_[op.result().index]) continue;
      if (op.kind == OpKind::Matmul) {
        for (const bool left : {false, true}) {
          scaled_operand(OpId(i), left, found);
          chain(OpId(i), left, found);
        }
        shifted_operand(OpId(i), found);
      }
      if (op.kind == OpKind::Conv) convolution(OpId(i), found);
      if (is_one_of(op.kind, OpKind::Sum, OpKind::Mean, OpKind::PoolSum)) total(OpId(i), found);
      if (op.kind == OpKind::Mul || op.kind == OpKind::Div) scaled_result(OpId(i), found);
      if (op.kind == OpKind::Add || op.kind == OpKind::Sub) sum(OpId(i), found);
    }
    return found;
  }

 private:
  bool fixed(TensorId t) const { return fixed_[t.index]; }
  const Shape& shape(TensorId t) const { return g_.type(t).shape; }

  // (x·g) W → x (g W), or W (g·x) → (W g) x.
  void scaled_operand(OpId at, bool left, std::vector<OpRewrite>& found) const {
    const Op& op = g_.op(at);
    const TensorId w = op.inputs[left ? 0 : 1], a = op.inputs[left ? 1 : 0];
    if (!fixed(w) || fixed(a)) return;
    const Op& scale = g_.producer(a);
    if (scale.kind != OpKind::Mul && scale.kind != OpKind::Div) return;
    for (size_t side = 0; side < 2; ++side) {
      if (scale.kind == OpKind::Div && side == 0) continue;  // g/x is no scaling of x
      const TensorId g = scale.inputs[side], x = scale.inputs[1 - side];
      if (!fixed(g) || !(shape(x) == shape(a)) || !only_along(shape(g), left ? 2 : 1)) continue;
      const OpKind kind = scale.kind;
      found.push_back({at,
                       [=, this](Graph& out, const std::vector<TensorId>& to) {
                         TensorId scaled = to[g.index];
                         if (const int64_t n = num_elements(shape(g)); n > 1) {
                           ShapeAttrs across;
                           across.shape = left ? Shape{1, n} : Shape{n, 1};
                           scaled = build::reshape(out, scaled, across);
                         } else if (!shape(g).empty()) {
                           scaled = build::reshape(out, scaled, {Shape{}});
                         }
                         scaled = out.add(kind, {to[w.index], scaled});
                         return left ? build::matmul(out, {scaled, to[x.index]})
                                     : build::matmul(out, {to[x.index], scaled});
                       },
                       left ? "W (g*x) = (W*g) x" : "(x*g) W = x (g*W)"});
    }
  }

  // (x A) B → x (A B), or A (B x) → (A B) x.
  void chain(OpId at, bool left, std::vector<OpRewrite>& found) const {
    const Op& op = g_.op(at);
    const TensorId outer = op.inputs[left ? 0 : 1], inner_result = op.inputs[left ? 1 : 0];
    const Op& inner = g_.producer(inner_result);
    if (!fixed(outer) || inner.kind != OpKind::Matmul) return;
    const TensorId w = inner.inputs[left ? 0 : 1], x = inner.inputs[left ? 1 : 0];
    if (!fixed(w) || fixed(x) || shape(w).size() != 2 || shape(outer).size() != 2) return;
    found.push_back({at,
                     [=](Graph& out, const std::vector<TensorId>& to) {
                       if (left) {
                         const TensorId both = build::matmul(out, {to[outer.index], to[w.index]});
                         return build::matmul(out, {both, to[x.index]});
                       }
                       const TensorId both = build::matmul(out, {to[w.index], to[outer.index]});
                       return build::matmul(out, {to[x.index], both});
                     },
                     left ? "A (B x) = (A B) x" : "(x A) B = x (A B)"});
  }

  // (x W)·c → x (W·c), or (W x)·c → (c·W) x.
  void scaled_result(OpId at, std::vector<OpRewrite>& found) const {
    const Op& op = g_.op(at);
    for (size_t side = 0; side < 2; ++side) {
      if (op.kind == OpKind::Div && side == 0) continue;
      const TensorId c = op.inputs[side], y = op.inputs[1 - side];
      const Op& product = g_.producer(y);
      if (!fixed(c) || product.kind != OpKind::Matmul || !(shape(y) == shape(op.result())))
        continue;
      for (const bool left : {false, true}) {
        const TensorId w = product.inputs[left ? 0 : 1], x = product.inputs[left ? 1 : 0];
        if (!fixed(w) || fixed(x) || !only_along(shape(c), left ? 2 : 1)) continue;
        if (shape(c).size() > shape(w).size()) continue;  // would give the weight more axes
        const OpKind kind = op.kind;
        found.push_back({at,
                         [=](Graph& out, const std::vector<TensorId>& to) {
                           const TensorId scaled = out.add(kind, {to[w.index], to[c.index]});
                           return left ? build::matmul(out, {scaled, to[x.index]})
                                       : build::matmul(out, {to[x.index], scaled});
                         },
                         left ? "(W x)*c = (c*W) x" : "(x W)*c = x (W*c)"});
        break;
      }
    }
  }

  // x A ± x B → x (A ± B), or A x ± B x → (A ± B) x.
  void sum(OpId at, std::vector<OpRewrite>& found) const {
    const Op& op = g_.op(at);
    const Op &p = g_.producer(op.inputs[0]), &q = g_.producer(op.inputs[1]);
    if (p.kind != OpKind::Matmul || q.kind != OpKind::Matmul) return;
    for (const bool left : {false, true}) {
      const TensorId a = p.inputs[left ? 0 : 1], b = q.inputs[left ? 0 : 1];
      const TensorId x = p.inputs[left ? 1 : 0];
      if (x != q.inputs[left ? 1 : 0] || !fixed(a) || !fixed(b) || fixed(x)) continue;
      if (!(g_.type(a) == g_.type(b))) continue;
      const OpKind kind = op.kind;
      found.push_back({at,
                       [=](Graph& out, const std::vector<TensorId>& to) {
                         const TensorId both = out.add(kind, {to[a.index], to[b.index]});
                         return left ? build::matmul(out, {both, to[x.index]})
                                     : build::matmul(out, {to[x.index], both});
                       },
                       std::string(left ? "A x " : "x A ") + (kind == OpKind::Add ? "+" : "-") +
                           (left ? " B x = (A B summed) x" : " x B = x (A B summed)")});
    }
  }

  // (x A + b) B → x A B + b B.
  void shifted_operand(OpId at, std::vector<OpRewrite>& found) const {
    const TensorId w = g_.op(at).inputs[1];
    const auto [y, b, kind] = shifted(g_.op(at).inputs[0]);
    if (!fixed(w) || !y.valid() || !only_along(shape(b), 1) || shape(w).size() != 2 ||
        g_.producer(y).kind != OpKind::Matmul)
      return;
    found.push_back({at,
                     [=, this](Graph& out, const std::vector<TensorId>& to) {
                       const TensorId row = row_of(out, to[b.index], shape(w)[0]);
                       return out.add(kind, {build::matmul(out, {to[y.index], to[w.index]}),
                                             build::matmul(out, {row, to[w.index]})});
                     },
                     "(y + b) W = y W + b W"});
  }

  // (x * A) * B → x * (B A), where A or B has one tap; (y + b) * B → y * B + B b without padding.
  void convolution(OpId at, std::vector<OpRewrite>& found) const {
    const Op& outer = g_.op(at);
    const TensorId v = outer.inputs[0], b = outer.inputs[1];
    const auto& attrs = g_.attrs<ConvAttrs>(outer);
    const Op& inner = g_.producer(v);
    if (!fixed(b) || attrs.groups != 1) return;
    const int64_t results = shape(b)[0].extent, channels = shape(b)[1].extent;
    if (inner.kind == OpKind::Conv && fixed(inner.inputs[1]) && !fixed(inner.inputs[0]) &&
        g_.attrs<ConvAttrs>(inner).groups == 1 && (only_mixes(outer) || only_mixes(inner))) {
      const TensorId x = inner.inputs[0], a = inner.inputs[1];
      const bool last = only_mixes(outer);
      const ConvAttrs& windows = last ? g_.attrs<ConvAttrs>(inner) : attrs;
      found.push_back(
          {at,
           [=, this](Graph& out, const std::vector<TensorId>& to) {
             Shape taps = shape(last ? a : b);
             taps[0] = results, taps[1] = shape(a)[1];
             TensorId w;
             if (last) {
               const int64_t rest = num_elements(shape(a)) / channels;
               w = build::matmul(out, {build::reshape(out, to[b.index], {Shape{results, channels}}),
                                       build::reshape(out, to[a.index], {Shape{channels, rest}})});
             } else {
               std::vector<int> there = {0}, back = {0, int(taps.size()) - 1};
               for (int i = 2; i < int(taps.size()); ++i) there.push_back(i), back.push_back(i - 1);
               there.push_back(1);
               w = build::matmul(out,
                                 {build::transpose(out, to[b.index], {there}),
                                  build::reshape(out, to[a.index], {Shape{channels, taps[1]}})});
               w = build::transpose(out, w, {back});
             }
             return out.add(OpKind::Conv, {to[x.index], build::reshape(out, w, {taps})}, windows);
           },
           "(x * A) * B = x * (B A)"});
    }
    const auto [y, c, kind] = shifted(v);
    const size_t rank = shape(v).size();
    if (!y.valid() || !is_linear(y) || !only_along(shape(c), rank - 1) || pads(attrs)) return;
    found.push_back(
        {at,
         [=, this](Graph& out, const std::vector<TensorId>& to) {
           TensorId w = to[b.index];
           ReduceAttrs taps;
           for (int i = 2; i < int(rank); ++i) taps.axes.push_back(i);
           w = out.add(OpKind::Sum, {w}, taps);
           const TensorId row = row_of(out, to[c.index], channels);
           const TensorId of_c = build::matmul(out, {w, build::transpose(out, row, {{1, 0}})});
           Shape wide(rank - 1, 1);
           wide[0] = results;
           return out.add(kind, {out.add(OpKind::Conv, {to[y.index], to[b.index]}, attrs),
                                 build::reshape(out, of_c, {wide})});
         },
         "(y + b) * B = y * B + B b"});
  }
  static bool pads(const ConvAttrs& a) {
    const auto some = [](int64_t n) { return n != 0; };
    return std::ranges::any_of(a.low, some) || std::ranges::any_of(a.high, some);
  }
  // Whether a convolution has one tap, at every element.
  bool only_mixes(const Op& conv) const {
    const auto& a = g_.attrs<ConvAttrs>(conv);
    const Shape& w = shape(conv.inputs[1]);
    return !pads(a) && std::all_of(w.begin() + 2, w.end(), [](Dim d) { return d.is_one(); }) &&
           std::ranges::all_of(a.strides, [](int64_t n) { return n == 1; });
  }

  // Sums, means and sums of windows L of what is linear:
  //   L(y + b) → L(y) + L(b);  L(y·c) → L(y)·c for c that is not added up
  //   L(x W) → x L(W)          L along the columns
  //   L(conv(x, w)) → Σ(x) w   L over all of an image, Σ the sums of x that each element of w meets
  void total(OpId at, std::vector<OpRewrite>& found) const {
    const Op& op = g_.op(at);
    TensorId v = op.inputs[0];
    const size_t rank = shape(v).size();
    const auto* reduce = std::get_if<ReduceAttrs>(&op.attrs);
    const bool columns = reduce ? reduce->axes == std::vector<int>{int(rank) - 1} : in_rows(op);
    while (columns && is_reshape(g_.producer(v).kind) && !shape(g_.producer(v).inputs[0]).empty() &&
           shape(g_.producer(v).inputs[0]).back() == shape(v).back())
      v = g_.producer(v).inputs[0];
    const auto again = [&op](Graph& out, TensorId x) { return out.add(op.kind, {x}, op.attrs); };
    const Shape inner = shape(op.inputs[0]), outer = shape(op.result());
    if (const auto [y, b, kind] = shifted(v); y.valid() && is_linear(y)) {
      if (shape(b).size() > rank) return;
      if (columns ? !only_along(shape(b), 1) : !reduce || v != op.inputs[0]) return;
      found.push_back({at,
                       [=, this](Graph& out, const std::vector<TensorId>& to) {
                         Shape wide(rank, 1);  // b, as often as it is added up
                         for (size_t i = 0; i < rank; ++i) {
                           const size_t back = rank - i;
                           if (columns ? back == 1 : std::ranges::count(reduce->axes, int(i)) > 0)
                             wide[i] = inner[i];
                           else if (back <= shape(b).size())
                             wide[i] = shape(b)[shape(b).size() - back];
                         }
                         const TensorId all = build::broadcast(out, to[b.index], {wide});
                         const TensorId rest = shaped(out, to[y.index], inner);
                         return out.add(kind, {again(out, rest), again(out, all)});
                       },
                       "L(y + b) = L(y) + L(b)"});
    }
    const Op& made = g_.producer(v);
    if (is_one_of(made.kind, OpKind::Mul, OpKind::Div)) {
      for (size_t side = 0; side < 2; ++side) {
        const TensorId c = made.inputs[side], y = made.inputs[1 - side];
        const std::optional<Shape> left = fixed(c) ? behind(op, shape(c)) : std::nullopt;
        if ((made.kind == OpKind::Div && side == 0) || !left || !(shape(y) == shape(v)) ||
            !is_linear(y) || (v != op.inputs[0] && num_elements(*left) != 1))
          continue;
        const OpKind kind = made.kind;
        found.push_back({at,
                         [=](Graph& out, const std::vector<TensorId>& to) {
                           const TensorId factor = build::reshape(out, to[c.index], {*left});
                           const TensorId rest = shaped(out, to[y.index], inner);
                           return out.add(kind, {again(out, rest), factor});
                         },
                         "L(y*c) = L(y)*c"});
        break;
      }
    }
    if (columns && rank > 1 && made.kind == OpKind::Matmul && fixed(made.inputs[1]) &&
        shape(made.inputs[1]).size() == 2 && shape(made.inputs[0]).size() >= 2) {
      const TensorId x = made.inputs[0], w = made.inputs[1];
      found.push_back(
          {at,
           [=, this](Graph& out, const std::vector<TensorId>& to) {
             Shape high(rank, 1);
             high[0] = shape(w)[0], high[rank - 1] = inner.back();
             TensorId few = again(out, build::reshape(out, to[w.index], {high}));
             const int64_t left = num_elements(out.type(few).shape);
             few = build::reshape(out, few, {Shape{high[0], left / num_elements({high[0]})}});
             return build::reshape(out, build::matmul(out, {to[x.index], few}), {outer});
           },
           "L(x W) = x L(W)"});
    }
    if (reduce) total_of_image(at, v, found);
  }

  void total_of_image(OpId at, TensorId v, std::vector<OpRewrite>& found) const {
    const Op &op = g_.op(at), &conv = g_.producer(v);
    const auto* attrs = std::get_if<ConvAttrs>(&conv.attrs);
    const size_t rank = shape(v).size();
    const auto& axes = std::get<ReduceAttrs>(op.attrs).axes;
    if (!attrs || attrs->groups != 1 || !fixed(conv.inputs[1]) || axes.size() != rank - 2 ||
        axes.front() != 2 || is_sixteen(g_.type(v).dtype))
      return;
    const TensorId x = conv.inputs[0], w = conv.inputs[1];
    const bool back = conv.kind == OpKind::ConvTranspose;
    found.push_back({at,
                     [=, this](Graph& out, const std::vector<TensorId>& to) {
                       TensorId sums = to[x.index], weights = to[w.index];
                       std::vector<int> turn = {0, 1, int(rank) - 1}, last;
                       for (int i = 2; i + 1 < int(rank); ++i) turn.push_back(i);
                       // The last axis of [N, C, ...] is added up and comes third.
                       for (size_t a = rank - 1; a >= 2; --a) {
                         add_up(out, sums, weights, a, shape(v)[a].extent, *attrs, back);
                         sums = build::transpose(out, sums, {turn});
                       }
                       const int results = back ? 1 : 0;  // that axis comes last
                       for (int i = 0; i < int(rank); ++i)
                         if (i != results) last.push_back(i);
                       last.push_back(results);
                       weights = build::transpose(out, weights, {last});
                       const Shape few = out.type(weights).shape;
                       const int64_t terms = num_elements(few) / few.back().extent;
                       weights = build::reshape(out, weights, {Shape{terms, few.back()}});
                       sums = build::reshape(out, sums, {Shape{shape(x)[0], terms}});
                       TensorId all = build::matmul(out, {sums, weights});
                       if (op.kind == OpKind::Mean) {
                         const Type& type = out.type(all);
                         const int64_t n = num_elements(shape(v)) / num_elements(type.shape);
                         all = out.add(OpKind::Div, {all, out.add_const(n, Type{type.dtype, {}})});
                       }
                       return build::reshape(out, all, {shape(op.result())});
                     },
                     "L(conv(x, w)) = (sums of x) w"});
  }

  // Sums of x, whose axis `a` is last: for each element of w along `a` over those that it meets;
  // one sum of each where all meet all.
  static void add_up(Graph& out, TensorId& x, TensorId& w, size_t a, int64_t results,
                     const ConvAttrs& c, bool back) {
    const int64_t n = out.type(x).shape.back().extent, m = out.type(w).shape[a].extent;
    const int64_t stride = c.strides[a - 2], low = c.low[a - 2], dilation = c.dilations[a - 2];
    // Elements i and j meet at i·x_step + j·w_step + from, a multiple of `every` up to `to`.
    const int64_t x_step = back ? stride : 1, w_step = back ? dilation : -dilation;
    const int64_t from = back ? -low : low, every = back ? 1 : stride, to = (results - 1) * every;
    const int64_t least = from + std::min<int64_t>(0, w_step * (m - 1));
    const int64_t most = from + x_step * (n - 1) + std::max<int64_t>(0, w_step * (m - 1));
    if (every == 1 && least >= 0 && most <= to) {
      x = out.add(OpKind::Sum, {x}, ReduceAttrs{{out.type(x).rank() - 1}, true});
      w = out.add(OpKind::Sum, {w}, ReduceAttrs{{int(a)}, true});
      return;
    }
    const auto number = [&](int64_t k) { return out.add_const(k, Type{DType::I64, {}}); };
    const auto axis = [&](int i, int64_t step) {
      const IotaAttrs along{i, Type{DType::I64, Shape{n, m}}};
      return out.add(OpKind::Mul, {out.add(OpKind::Iota, {}, along), number(step)});
    };
    TensorId at = out.add(OpKind::Add, {axis(0, x_step), axis(1, w_step)});
    at = out.add(OpKind::Add, {at, number(from)});
    TensorId met = out.add(
        OpKind::And, {out.add(OpKind::Ge, {at, number(0)}), out.add(OpKind::Le, {at, number(to)})});
    const TensorId rest = out.add(OpKind::Mod, {at, number(every)});
    if (every > 1) met = out.add(OpKind::And, {met, out.add(OpKind::Eq, {rest, number(0)})});
    x = build::matmul(out, {x, build::cast(out, met, {out.type(x).dtype})});
  }

  struct Shift {
    TensorId y, b;
    OpKind kind;
  };
  // A value as y ± b with b computed once; else y is not valid.
  Shift shifted(TensorId v) const {
    const Op& op = g_.producer(v);
    if (is_one_of(op.kind, OpKind::Add, OpKind::Sub))
      for (size_t side : {1, 0})
        if (const TensorId b = op.inputs[side], y = op.inputs[1 - side];
            (side == 1 || op.kind == OpKind::Add) && fixed(b) && !fixed(y) && shape(y) == shape(v))
          return {y, b, op.kind};
    return {{}, {}, op.kind};
  }
  // Whether products or convolutions are below a chain of shifts, scales and reshapes.
  bool is_linear(TensorId y) const {
    for (;;) {
      const Op& op = g_.producer(y);
      if (is_bilinear(op.kind)) return true;
      if (!is_reshape(op.kind) &&
          !is_one_of(op.kind, OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div))
        return false;
      y = op.inputs.size() > 1 && fixed(op.inputs[0]) ? op.inputs[1] : op.inputs[0];
    }
  }
  // The shape behind a sum of what is broadcast over all that is added up; none if it is not.
  std::optional<Shape> behind(const Op& sum, const Shape& c) const {
    const size_t rank = shape(sum.inputs[0]).size();
    const auto* reduce = std::get_if<ReduceAttrs>(&sum.attrs);
    if (num_elements(c) == 1) return Shape{};
    if (!reduce) return std::nullopt;
    Shape left;
    for (size_t i = 0; i < rank; ++i) {
      const Dim d = i + c.size() < rank ? Dim(1) : c[i + c.size() - rank];
      const bool added = std::ranges::count(reduce->axes, int(i)) > 0;
      if (added && !d.is_one()) return std::nullopt;
      if (!added || reduce->keepdims) left.push_back(d);
    }
    return left;
  }
  // Whether windows lie within rows.
  static bool in_rows(const Op& pool) {
    const auto& a = std::get<WindowAttrs>(pool.attrs);
    const size_t n = a.size.size();
    for (size_t i = 0; i + 1 < n; ++i)
      if (a.size[i] != 1 || a.strides[i] != 1 || a.low[i] != 0 || a.high[i] != 0) return false;
    return true;
  }
  static TensorId shaped(Graph& out, TensorId x, const Shape& to) {
    return out.type(x).shape == to ? x : build::reshape(out, x, {to});
  }
  // b as a row of so many columns.
  static TensorId row_of(Graph& out, TensorId b, Dim columns) {
    const int64_t n = num_elements(out.type(b).shape);
    const TensorId row = build::reshape(out, b, {Shape{1, n}});
    return n == 1 ? build::broadcast(out, row, {Shape{1, columns}}) : row;
  }

  const Graph& g_;
  std::vector<bool> fixed_;
};

}  // namespace

double work_per_call(const Graph& program) {
  const std::vector<bool> once = computed_once(program);
  double work = 0;
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const Op& op = program.ops()[i];
    if (once[i] || is_given(op.kind)) continue;
    if (is_reshape(op.kind)) continue;
    double elements = double(num_elements(program.type(op.result()).shape));
    if (op.kind == OpKind::Matmul) {
      elements *= double(program.type(op.inputs[0]).shape.back().extent);
    } else if (is_convolution(op.kind)) {
      const Shape &x = program.type(op.inputs[0]).shape, &w = program.type(op.inputs[1]).shape;
      const bool back = op.kind == OpKind::ConvTranspose;  // each element of x meets w
      elements = double(num_elements(back ? x : program.type(op.result()).shape)) *
                 double(num_elements(w)) / double(w[0].extent);
    }
    work += elements;
  }
  return work;
}

std::vector<Folding> fold_weights(const Graph& program, int depth, size_t most) {
  constexpr size_t kMostPrograms = 200;
  bool any = false;
  for (TensorId t : program.inputs()) any = any || program.is_weight(t);
  for (const Tensor& t : program.tensors()) any = any && is_static(t.type.shape);
  if (!any || program.level() != Level::Kernel) return {};
  std::vector<Folding> reached = {{program, ""}};
  std::set<uint64_t> known = {structural_hash(program)};
  size_t from = 0;
  for (int step = 0; step < depth; ++step) {
    const size_t end = reached.size();
    for (; from < end; ++from) {
      const Graph g = reached[from].graph;  // `reached` grows
      const Rules rules(g);                 // what it finds refers to it
      for (const OpRewrite& r : rules.all()) {
        if (reached.size() >= kMostPrograms) break;
        Graph next = rebuilt(g, r);
        if (!known.insert(structural_hash(next)).second) continue;
        // Types must not have changed on the way (mixed element types promote differently).
        bool same = true;
        for (size_t i = 0; i < g.outputs().size(); ++i)
          same = same && next.type(next.outputs()[i]) == g.type(g.outputs()[i]);
        if (same) reached.push_back({std::move(next), reached[from].derivation + r.rule + "\n"});
      }
    }
  }
  const double before = work_per_call(program);
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 1; i < reached.size(); ++i) {
    const double work = work_per_call(reached[i].graph);
    if (work < before) order.emplace_back(work, i);
  }
  std::ranges::stable_sort(order, {}, [](const auto& x) { return x.first; });
  std::vector<Folding> out;
  for (const auto& [work, i] : order) {
    if (out.size() >= most) break;
    out.push_back(std::move(reached[i]));
  }
  return out;
}

}  // namespace tessera
