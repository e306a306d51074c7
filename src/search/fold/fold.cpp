#include "search/fold/fold.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "ir/build.h"
#include "ir/weights.h"
#include "ir/window.h"
#include "search/fold/diagonal.h"
#include "search/fold/repeats.h"

namespace tessera {
namespace {

// Builds the new value of one tensor; `to` has the new ids of everything before it.
using Ids = std::vector<TensorId>;
using Build = std::function<TensorId(Graph&, const Ids& to)>;

struct OpRewrite {
  OpId at;
  std::string rule;
  Build build;
};

// The program with the only results of some operators made another way.
Graph rebuilt(const Graph& g, const std::vector<OpRewrite>& rewrites) {
  Graph out(g.name());
  Ids to(g.tensors().size());
  for (size_t i = 0; i < g.ops().size(); ++i) {
    const Op& op = g.ops()[i];
    const auto rewrite = std::ranges::find(rewrites, OpId(i), &OpRewrite::at);
    if (rewrite != rewrites.end())
      to[op.result().index] = rewrite->build(out, to);
    else
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
  explicit Rules(const Graph& g) : g_(g), fixed_(g.tensors().size(), false), uses_(use_counts(g)) {
    const std::vector<bool> once = computed_once(g);
    for (size_t i = 0; i < g.ops().size(); ++i) {
      const Op& op = g.ops()[i];
      const bool leaf = op.constant() || (is_input(op.kind) && g.is_weight(op.result()));
      for (uint32_t r = 0; r < op.num_results; ++r) fixed_[op.result(r).index] = leaf || once[i];
    }
  }

  // Steps, each of what can be made another way at once: all sums, or one operator.
  std::vector<std::vector<OpRewrite>> all() {
    std::vector<std::vector<OpRewrite>> steps;
    for (const bool wider : {true, false}) {
      std::vector<bool> within(g_.tensors().size(), false);
      for (size_t i = g_.ops().size(); i-- > 0;)
        if (const Op& op = g_.ops()[i]; op.num_results == 1 && !within[op.result().index])
          sum(OpId(i), wider, within);
      if (!found_.empty()) steps.push_back(std::exchange(found_, {}));
    }
    for (size_t i = 0; i < g_.ops().size(); ++i) {
      const Op& op = g_.ops()[i];
      if (op.num_results != 1 || fixed(op.result())) continue;
      if (const auto p = product(op.result())) {
        scaled_operand(OpId(i), *p);
        chain(OpId(i), *p);
        shifted_operand(OpId(i), *p);
      }
      if (is_one_of(op.kind, OpKind::Sum, OpKind::Mean, OpKind::PoolSum)) total(OpId(i));
    }
    for (OpRewrite& r : found_) steps.push_back({std::move(r)});
    return steps;
  }

 private:
  void offer(OpId at, std::string rule, Build build) {
    found_.push_back({at, std::move(rule), std::move(build)});
  }
  bool fixed(TensorId t) const { return fixed_[t.index]; }
  const Shape& shape(TensorId t) const { return g_.type(t).shape; }

  // A product or convolution of x with w, which is computed once. Axes are counted from the back:
  // `along` is that of x and that of the result for which w has `in` (0: not one for all) and
  // `out`.
  struct Product {
    TensorId x, w;
    bool left;
    size_t along, in, out;
  };
  std::optional<Product> product(TensorId v) const {
    const Op& op = g_.producer(v);
    const auto* conv = std::get_if<ConvAttrs>(&op.attrs);
    if (op.kind != OpKind::Matmul && !conv) return std::nullopt;
    const bool left = !conv && fixed(op.inputs[0]), back = op.kind == OpKind::ConvTranspose;
    const TensorId x = op.inputs[left], w = op.inputs[!left];
    const size_t rank = shape(w).size();
    if (fixed(x) || !fixed(w) || (back && conv->groups != 1)) return std::nullopt;
    if (left) return Product{x, w, true, 2, 1, 2};
    if (!conv) return Product{x, w, false, 1, 2, 1};
    if (back) return Product{x, w, false, rank - 1, rank, rank - 1};
    return Product{x, w, false, rank - 1, conv->groups == 1 ? rank - 1 : 0, rank};
  }
  static TensorId remade(Graph& out, const Op& op, const Product& p, TensorId x, TensorId w) {
    return out.add(op.kind, p.left ? Ids{w, x} : Ids{x, w}, op.attrs);
  }
  // w with its axis `back` from the back scaled by c, which varies along no other.
  static TensorId scaled(Graph& out, OpKind kind, TensorId w, TensorId c, size_t back) {
    const int64_t n = num_elements(out.type(c).shape);
    Shape wide(n > 1 ? back : 0, 1);
    if (n > 1) wide[0] = n;
    return out.add(kind, {w, shaped(out, c, wide)});
  }

  // (x·g) W → x (g W), or W (g·x) → (W g) x.
  void scaled_operand(OpId at, const Product& p) {
    const auto [x, g, kind] = scaled(p.x);
    if (p.in == 0 || !x.valid() || !only_along(shape(g), p.along)) return;
    offer(at, p.left ? "W (g*x) = (W*g) x" : "(x*g) W = x (g*W)",
          [=, this](Graph& out, const Ids& to) {
            const TensorId w = scaled(out, kind, to[p.w.index], to[g.index], p.in);
            return remade(out, g_.op(at), p, to[x.index], w);
          });
  }

  // (x A) B → x (A B), or A (B x) → (A B) x; of convolutions where one has one tap.
  void chain(OpId at, const Product& p) {
    const Op &outer = g_.op(at), &inner = g_.producer(p.x);
    const auto q = product(p.x);
    const bool conv = outer.kind == OpKind::Conv, last = !conv || mixes(outer);
    if (!q || outer.kind != inner.kind || p.left != q->left || p.in == 0 || q->in == 0 ||
        (conv ? !last && !mixes(inner)
              : outer.kind != OpKind::Matmul || shape(p.w).size() != 2 || shape(q->w).size() != 2))
      return;
    const char* const rule = conv ? "(x * A) * B = x * (B A)" : "(x A) B = x (A B)";
    offer(at, rule, [=, this](Graph& out, const Ids& to) {
      const Op& windows = last ? g_.producer(p.x) : g_.op(at);
      TensorId a = to[q->w.index], b = to[p.w.index];
      if (!conv) return remade(out, windows, p, to[q->x.index], remade(out, windows, p, a, b));
      Shape taps = shape(last ? q->w : p.w);
      const Dim results = taps[0] = shape(p.w)[0], from = taps[1] = shape(q->w)[1];
      const Dim channels = shape(p.w)[1];
      const int64_t count = num_elements(taps) / num_elements({results, from});
      if (last) {
        a = build::reshape(out, a, {Shape{channels, from.extent * count}});
        a = build::matmul(out, {build::reshape(out, b, {Shape{results, channels}}), a});
      } else {
        a = build::transpose(out, build::reshape(out, a, {Shape{channels, from}}), {{1, 0}});
        a = build::matmul(out, {a, build::reshape(out, b, {Shape{results, channels, count}})});
      }
      return remade(out, windows, p, to[q->x.index], build::reshape(out, a, {taps}));
    });
  }

  // (y + b) W → y W + b W.
  void shifted_operand(OpId at, const Product& p) {
    const auto [y, b, kind] = shifted(p.x);
    if (!y.valid() || !is_linear(y)) return;
    offer(at, "(y + b) W = y W + b W", [=, this](Graph& out, const Ids& to) {
      const Op& op = g_.op(at);
      const TensorId seen = met(out, to[b.index], op, shape(p.x), p.along), w = to[p.w.index];
      return out.add(kind, {remade(out, op, p, to[y.index], w), remade(out, op, p, seen, w)});
    });
  }
  // What a product, a sum or windows meet of b, which is added to the operand: along axis `along`
  // all of it; one window where all meet the same.
  TensorId met(Graph& out, TensorId b, const Op& op, const Shape& x, size_t along = 0) const {
    Shape seen = out.type(b).shape;
    seen.insert(seen.begin(), x.size() - seen.size(), 1);
    if (along > 0) seen[x.size() - along] = x[x.size() - along];
    if (const auto* sum = std::get_if<ReduceAttrs>(&op.attrs))
      for (int a : sum->axes) seen[size_t(a)] = x[size_t(a)];
    if (is_windowed(op.kind)) {
      const std::vector<WindowAxis> axes = window_axes(g_, op);
      for (size_t i = 0; i < axes.size(); ++i) {
        const WindowAxis& a = axes[i];
        Dim& d = seen[x.size() - axes.size() + i];
        const bool same =
            d.is_one() && a.low == 0 && a.high == 0 && op.kind != OpKind::ConvTranspose;
        d = same ? (a.taps - 1) * a.dilation + 1 : a.in;
      }
    }
    return build::broadcast(out, b, {seen});
  }

  // One of the values that add up to another, and what multiplies or divides it.
  struct Term {
    TensorId v;
    Shape shape;               // what it is reshaped to
    std::optional<Product> p;  // where nothing else reads it
    bool minus = false;
    std::vector<std::pair<OpKind, TensorId>> scales = {};
  };
  // A value as a sum, through values that nothing else reads, which `through` learns of.
  std::vector<Term> terms_of(TensorId v, int depth, Ids& through) const {
    constexpr int kDeepest = 100;
    const Op& op = g_.producer(v);
    const bool shared = depth > 0 && uses_[v.index] > 1;
    const std::vector<Term> whole = {{v, shape(v), shared ? std::nullopt : product(v)}};
    if (fixed(v) || shared || depth > kDeepest) return whole;
    const size_t before = through.size();
    through.push_back(v);
    std::vector<Term> terms;
    const auto append = [&](TensorId x, bool minus) {
      for (Term& t : terms_of(x, depth + 1, through)) {
        t.minus ^= minus;
        terms.push_back(std::move(t));
      }
    };
    if (is_one_of(op.kind, OpKind::Add, OpKind::Sub, OpKind::Neg)) {
      append(op.inputs[0], op.kind == OpKind::Neg);
      if (op.inputs.size() > 1) append(op.inputs[1], op.kind == OpKind::Sub);
    } else if (const auto [y, c, kind] = scaled(v); y.valid() && is_float(g_.type(v).dtype)) {
      append(y, false);
      size_t others = 0;  // of which at most one: more would be scaled in place of their sum
      for (Term& t : terms) {
        t.scales.emplace_back(kind, c);
        others += t.p ? 2 * size_t(!only_along(shape(c), t.p->along)) : size_t(!fixed(t.v));
      }
      if (others > 1) terms.clear();
    } else if (const Shape& from = is_reshape(op.kind) ? shape(op.inputs[0]) : Shape();
               !from.empty() && !shape(v).empty() && from.back() == shape(v).back()) {
      append(op.inputs[0], false);
      const bool rows = std::ranges::all_of(terms, [&](const Term& t) {
        return t.p ? t.p->along == 1 && t.shape == from : fixed(t.v) && only_along(t.shape, 1);
      });
      for (Term& t : terms) t.shape = t.p ? shape(v) : Shape{num_elements(t.shape)};
      if (!rows) terms.clear();
    }
    if (!terms.empty()) return terms;
    through.resize(before);
    return whole;
  }

  // x A ± x B → x (A ± B) and (x W)·c → x (W·c) in all that adds up to a value. The taps of
  // convolutions are put among those of wider ones, if that is wanted (digits may be lost beside
  // large ones); x is a convolution with one tap.
  void sum(OpId at, bool wider, std::vector<bool>& within) {
    Ids through;
    std::vector<Term> terms = terms_of(g_.op(at).result(), 0, through);
    for (TensorId t : through) within[t.index] = true;
    std::ranges::stable_sort(terms, std::greater(), [this](const Term& t) {
      return t.p ? num_elements(shape(t.p->w)) : fixed(t.v) ? -1 : 0;
    });
    if (!terms[0].p) return;
    std::vector<std::vector<Term>> groups;
    bool gains = false;
    for (Term& t : terms) {
      auto group = std::ranges::find_if(groups, [&](const auto& g) {
        return (fixed(t.v) && fixed(g[0].v)) || taps(g[0], t, wider);
      });
      gains = gains || group != groups.end() || (t.p && !t.scales.empty());
      if (group == groups.end()) group = groups.emplace(group);
      group->push_back(std::move(t));
    }
    if (!gains) return;
    offer(at, "x A*a + x B*b = x (A*a + B*b)", [=, this](Graph& out, const Ids& to) {
      TensorId all;
      for (const std::vector<Term>& group : groups)
        add_to(out, all, of_group(out, to, group), !group[0].p && group[0].minus);
      return all;
    });
  }
  static void add_to(Graph& out, TensorId& sum, TensorId x, bool minus) {
    if (sum.valid())
      sum = out.add(minus ? OpKind::Sub : OpKind::Add, {sum, x});
    else
      sum = minus ? out.add(OpKind::Neg, {x}) : x;
  }
  // The sum of terms that are one product, or computed once, in which case the first is added.
  TensorId of_group(Graph& out, const Ids& to, const std::vector<Term>& group) const {
    const auto& p = group[0].p;
    TensorId all;
    for (const Term& t : group) {
      TensorId x = t.p ? to[t.p->w.index]
                   : p ? unit(out, g_.type(p->w))
                       : shaped(out, to[t.v.index], t.shape);
      for (const auto& [kind, c] : t.scales)
        x = p ? scaled(out, kind, x, to[c.index], p->out) : out.add(kind, {x, to[c.index]});
      if (p && !(out.type(x).shape == shape(p->w)))
        x = build::pad(out, x, *taps(group[0], t, true));
      add_to(out, all, x, p ? t.minus : t.minus != group[0].minus);
    }
    if (!p) return all;
    all = remade(out, g_.producer(group[0].v), *p, to[p->x.index], all);
    return shaped(out, all, group[0].shape);
  }
  // Where the taps of a term are among those of another, with the same x.
  std::optional<PadAttrs> taps(const Term& wide, const Term& t, bool wider) const {
    if (!wide.p || !same(wide.p->x, t.p ? t.p->x : t.v) || !(g_.type(wide.v) == g_.type(t.v)) ||
        !(wide.shape == t.shape))
      return {};
    const Op &a = g_.producer(wide.v), &b = g_.producer(t.v);
    const Shape& w = shape(wide.p->w);
    if (t.p ? a.kind != b.kind || wide.p->left != t.p->left : a.kind != OpKind::Conv) return {};
    if (a.kind == OpKind::Matmul)
      return w == shape(t.p->w) ? std::optional(PadAttrs()) : std::nullopt;
    const auto& c = g_.attrs<ConvAttrs>(a);
    const size_t n = c.strides.size();
    ConvAttrs own{std::vector<int64_t>(n, 1), {}, std::vector<int64_t>(n, 0), {}, c.groups};
    if (t.p) own = g_.attrs<ConvAttrs>(b);
    if (own.strides != c.strides || own.groups != c.groups) return {};
    PadAttrs pad{{0, 0}, {0, 0}, 0};
    for (size_t i = 0; i < n; ++i) {
      const int64_t k = t.p ? shape(t.p->w)[i + 2].extent : 1, every = c.dilations[i];
      const int64_t from = c.low[i] - own.low[i], rest = w[i + 2].extent - k - from / every;
      if ((k > 1 && every != own.dilations[i]) || from < 0 || from % every != 0 || rest < 0 ||
          (!wider && w[i + 2].extent > k))
        return {};
      pad.low.push_back(from / every), pad.high.push_back(rest);
    }
    return pad;
  }
  // Whether two values are one, up to copies of its rearrangements.
  bool same(TensorId a, TensorId b) const {
    const Op &p = g_.producer(a), &q = g_.producer(b);
    return a == b || (rearranges(p.kind) && p.kind == q.kind && p.attrs == q.attrs &&
                      same(p.inputs[0], q.inputs[0]));
  }
  // The weights of a convolution with one tap that gives its operand, where others are `like` that.
  static TensorId unit(Graph& out, const Type& like) {
    const Shape channels(like.shape.begin(), like.shape.begin() + 2);
    const Type number{DType::I64, {}}, numbers{DType::I64, channels};
    const TensorId of_group = out.add_const(channels[1].extent, number);
    TensorId same =
        out.add(OpKind::Mod, {out.add(OpKind::Iota, {}, IotaAttrs{0, numbers}), of_group});
    same = out.add(OpKind::Eq, {same, out.add(OpKind::Iota, {}, IotaAttrs{1, numbers})});
    Shape wide = channels;
    wide.resize(like.shape.size(), 1);
    return build::reshape(out, build::cast(out, same, {like.dtype}), {wide});
  }

  bool mixes(const Op& conv) const {
    return only_mixes(g_.attrs<ConvAttrs>(conv), shape(conv.inputs[1]));
  }

  // Sums, means and sums of windows L of what is linear:
  //   L(y + b) → L(y) + L(b)
  //   L(x W) → x L(W)          L along the columns
  //   L(conv(x, w)) → Σ(x) w   L over all of an image, Σ the sums of x that each element of w meets
  void total(OpId at) {
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
      const bool within = v != op.inputs[0];
      if (within && !only_along(shape(b), 1)) return;
      offer(at, "L(y + b) = L(y) + L(b)", [=, this](Graph& out, const Ids& to) {
        TensorId all = to[b.index];
        if (within) all = build::reshape(out, all, {Shape{num_elements(shape(b))}});
        const TensorId rest = shaped(out, to[y.index], inner);
        return out.add(kind, {again(out, rest), again(out, met(out, all, op, inner))});
      });
    }
    const Op& made = g_.producer(v);
    const auto p = product(v);
    if (columns && rank > 1 && p && made.kind == OpKind::Matmul && !p->left &&
        shape(p->w).size() == 2)
      offer(at, "L(x W) = x L(W)", [=, this](Graph& out, const Ids& to) {
        Shape high(rank, 1);
        high[0] = shape(p->w)[0], high[rank - 1] = inner.back();
        TensorId few = again(out, build::reshape(out, to[p->w.index], {high}));
        const int64_t left = num_elements(out.type(few).shape);
        few = build::reshape(out, few, {Shape{high[0], left / num_elements({high[0]})}});
        return build::reshape(out, build::matmul(out, {to[p->x.index], few}), {outer});
      });
    // Pooling and the mixing of channels may change places.
    if (!reduce && p && made.kind == OpKind::Conv && mixes(made) && v == op.inputs[0] &&
        std::get<WindowAttrs>(op.attrs).size.size() + 2 == rank)
      offer(at, "L(conv(x, w)) = conv(L(x), w)", [=, this](Graph& out, const Ids& to) {
        return remade(out, g_.producer(v), *p, again(out, to[p->x.index]), to[p->w.index]);
      });
    if (reduce) total_of_image(at, v), total_of_stack(at);
  }

  // The sum over what is stacked → the sum of its parts.
  void total_of_stack(OpId at) {
    const Op& op = g_.op(at);
    const std::vector<int>& axes = g_.attrs<ReduceAttrs>(op).axes;
    const Op* stack = &g_.producer(op.inputs[0]);
    if (is_reshape(stack->kind)) stack = &g_.producer(stack->inputs[0]);
    if (!is_one_of(stack->kind, OpKind::Concat, OpKind::Stack) || axes.size() != 1 ||
        g_.attrs<AxisAttrs>(*stack).axis != axes[0])
      return;
    Shape one = shape(op.inputs[0]);
    one.erase(one.begin() + axes[0]);
    Ids parts = stack->inputs;
    for (TensorId& t : parts) {
      if (is_reshape(g_.producer(t).kind) && !(shape(t) == one)) t = g_.producer(t).inputs[0];
      if (!(shape(t) == one) || !is_linear(t)) return;
    }
    offer(at, "a sum over a stack is that of its parts", [=, this](Graph& out, const Ids& to) {
      TensorId all;
      for (TensorId t : parts) add_to(out, all, to[t.index], false);
      return shaped(out, averaged(out, all, g_.op(at), int64_t(parts.size())),
                    shape(g_.op(at).result()));
    });
  }
  // The sum of n as the reduction has it.
  static TensorId averaged(Graph& out, TensorId sum, const Op& op, int64_t n) {
    const Type number{out.type(sum).dtype, {}};
    return op.kind == OpKind::Mean ? out.add(OpKind::Div, {sum, out.add_const(n, number)}) : sum;
  }

  void total_of_image(OpId at, TensorId v) {
    const Op &op = g_.op(at), &conv = g_.producer(v);
    const auto* attrs = std::get_if<ConvAttrs>(&conv.attrs);
    const size_t rank = shape(v).size();
    const auto& axes = std::get<ReduceAttrs>(op.attrs).axes;
    if (!attrs || attrs->groups != 1 || !fixed(conv.inputs[1]) || axes.size() != rank - 2 ||
        axes.front() != 2 || is_sixteen(g_.type(v).dtype))
      return;
    const TensorId x = conv.inputs[0], w = conv.inputs[1];
    const bool back = conv.kind == OpKind::ConvTranspose;
    offer(at, "L(conv(x, w)) = (sums of x) w", [=, this](Graph& out, const Ids& to) {
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
      const TensorId all = build::matmul(out, {sums, weights});
      const int64_t n = num_elements(shape(v)) / num_elements(out.type(all).shape);
      return build::reshape(out, averaged(out, all, op, n), {shape(op.result())});
    });
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
  // A value as y ± b, or as y·b or y/b, with b computed once; else y is not valid.
  Shift shifted(TensorId v) const { return parted(v, OpKind::Add, OpKind::Sub); }
  Shift scaled(TensorId v) const { return parted(v, OpKind::Mul, OpKind::Div); }
  Shift parted(TensorId v, OpKind either, OpKind right) const {
    const Op& op = g_.producer(v);
    if (is_one_of(op.kind, either, right))
      for (size_t side : {1, 0})
        if (const TensorId b = op.inputs[side], y = op.inputs[1 - side];
            (side == 1 || op.kind == either) && fixed(b) && !fixed(y) && shape(y) == shape(v))
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

  const Graph& g_;
  std::vector<bool> fixed_;
  std::vector<int> uses_;
  std::vector<OpRewrite> found_;
};

}  // namespace

double work_per_call(const Graph& program) {
  const std::vector<bool> once = computed_once(program);
  double work = 0;
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const Op& op = program.ops()[i];
    if (once[i] || is_given(op.kind) || is_reshape(op.kind)) continue;
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
  if (program.level() != Level::Kernel ||
      !std::ranges::all_of(program.tensors(),
                           [](const Tensor& t) { return is_static(t.type.shape); }))
    return {};
  if (std::ranges::none_of(program.inputs(), [&](TensorId t) { return program.is_weight(t); }))
    depth = 0;
  std::vector<Folding> reached = {{program, ""}};
  if (auto g = repeated_later(program))
    reached.push_back({std::move(*g), "what is repeated is computed once\n"});
  if (auto g = with_diagonals(program))
    reached.push_back({std::move(*g), "a product with a diagonal matrix scales\n"});
  std::set<uint64_t> known;
  for (const Folding& f : reached) known.insert(structural_hash(f.graph));
  size_t from = 0;
  for (int step = 0; step < depth; ++step) {
    const size_t end = reached.size();
    for (; from < end; ++from) {
      const Graph g = reached[from].graph;  // `reached` grows
      Rules rules(g);                       // what it finds refers to it
      for (const std::vector<OpRewrite>& rewrites : rules.all()) {
        if (reached.size() >= kMostPrograms) break;
        Graph next = rebuilt(g, rewrites);
        if (!known.insert(structural_hash(next)).second) continue;
        // Types must not have changed on the way (mixed element types promote differently).
        bool same = true;
        for (size_t i = 0; i < g.outputs().size(); ++i)
          same = same && next.type(next.outputs()[i]) == g.type(g.outputs()[i]);
        if (!same) continue;
        reached.push_back({std::move(next), reached[from].derivation});
        for (const OpRewrite& r : rewrites) reached.back().derivation += r.rule + "\n";
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
  double last = 0;
  for (const auto& [work, i] : order) {
    if (out.size() >= most) break;
    if (std::exchange(last, work) == work) continue;  // the same per call, from other weights
    out.push_back(std::move(reached[i]));
  }
  return out;
}

}  // namespace tessera
