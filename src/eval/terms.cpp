#include "eval/terms.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/counter_rng.h"
#include "eval/ndarray.h"
#include "ir/hash.h"

namespace tessera {
namespace {

// How a tensor lies in memory: its order of axes, which NumPy's and PyTorch's elementwise results
// take over, and all of it with distances, which only views do.
struct TermLayout {
  uint64_t axes = 0, all = 0;
};

bool is_line(const Type& t) {
  return std::ranges::count_if(
             t.shape, [](const Dim& d) { return !d.is_one(); }) <= 1;
}

// Layouts of a kernel graph's tensors. What is not known to be laid out alike has another number.
class Layouts {
 public:
  explicit Layouts(const Graph& g) : g_(g), of_(g.tensors().size()) {
    for (size_t k = 0; k < g.inputs().size(); ++k) of_[g.inputs()[k].index] = made(1, {k});
    for (const Op& op : g.ops())
      for (uint32_t r = 0; !is_input(op.kind) && r < op.num_results; ++r)
        of_[op.result(r).index] = result(op, r);
    for (size_t i = 0; i < of_.size(); ++i)
      if (is_line(g.tensors()[i].type)) of_[i].axes = 0;
  }
  std::vector<uint64_t> all() const { return mapped(of_, &TermLayout::all); }

 private:
  static TermLayout made(uint64_t label, const std::vector<uint64_t>& parts) {
    uint64_t h = label;
    for (uint64_t p : parts) h = derive_key(h, p);
    return {h, derive_key(h, 1)};
  }
  TermLayout result(const Op& op, uint32_t r) const {
    std::vector<uint64_t> axes, all;
    for (TensorId t : op.inputs) axes.push_back(axes_of(t)), all.push_back(of_[t.index].all);
    const uint64_t what = derive_key(uint64_t(op.kind) + 100 * r, attributes_hash(op));
    if (has(op.kind, algebra::Pointwise)) return elementwise(op);
    TermLayout l = made(what, axes);
    if (!has(op.kind, algebra::Movement)) return l;
    l.all = made(what, all).axes;
    const auto* slice = std::get_if<SliceAttrs>(&op.attrs);
    const bool forwards =
        slice && std::ranges::all_of(slice->steps, [](int64_t s) { return s > 0; });
    if (forwards) l.axes = axes[0];
    if (op.kind == OpKind::Reshape) l.axes = l.all;
    return l;
  }
  uint64_t axes_of(TensorId t) const { return is_line(g_.type(t)) ? 0 : of_[t.index].axes; }
  TermLayout elementwise(const Op& op) const {
    std::vector<uint64_t> axes;
    bool whole = false;
    for (TensorId t : op.inputs) {
      if (is_line(g_.type(t))) continue;
      whole = whole || g_.type(t).shape == g_.type(op.result()).shape;
      if (std::ranges::find(axes, axes_of(t)) == axes.end()) axes.push_back(axes_of(t));
    }
    if (axes.size() == 1 && whole) return {axes[0], derive_key(axes[0], 2)};
    std::ranges::sort(axes);  // where they differ C's order wins, whoever has it
    const TermLayout mixed = made(2, axes);
    return {mixed.axes, derive_key(mixed.axes, 2)};
  }

  const Graph& g_;
  std::vector<TermLayout> of_;
};

}  // namespace

bool rounds_exactly(const Graph& g, const Op& op) {
  const DType operand = op.inputs.empty() ? g.type(op.result()).dtype : g.type(op.inputs[0]).dtype;
  const bool real = is_float(operand), to_real = is_float(g.type(op.result()).dtype);
  using K = OpKind;
  static const std::set<K> exact = {K::Neg, K::Abs, K::Sqr, K::Sqrt, K::Floor, K::Round, K::Not,
                                    K::Add, K::Sub, K::Mul, K::Div,  K::And,   K::Or,    K::Eq,
                                    K::Ne,  K::Lt,  K::Le,  K::Gt,   K::Ge,    K::Where};
  if (op.kind == K::Max || op.kind == K::Min) return !real;
  if (op.kind == K::Cast) return !real || to_real || g.type(op.result()).dtype == DType::Bool;
  return exact.count(op.kind) > 0;
}

TermDomain::TermDomain(const Graph& graph, uint64_t k) : key(k), layout(Layouts(graph).all()) {}

uint64_t TermDomain::mix(uint64_t a, uint64_t b) const { return keyed_hash(key, derive_key(a, b)); }
// Its own inverse.
uint64_t TermDomain::negated(uint64_t term) const { return term ^ keyed_hash(key, 3); }

uint64_t TermDomain::input(size_t number, int64_t element) const {
  return mix(mix(4, number), uint64_t(element));
}

uint64_t TermDomain::constant(DType dtype, const Rational& c) const {
  if (!is_float(dtype)) return uint64_t(wrap_to(dtype, c.num()));
  if (c.negative()) return negated(constant(dtype, -c));
  const double x = round_to(dtype, c.to_double());
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return mix(mix(5, uint64_t(dtype)), bits);
}

uint64_t TermDomain::context(const Graph& graph, const Op& op, Level level) const {
  if (has(op.kind, algebra::Pointwise) && rounds_exactly(graph, op)) return 0;
  uint64_t h = mix(mix(6, uint64_t(level)), attributes_hash(op));
  if (op.kind == OpKind::Gather) return h;  // only moves
  for (TensorId t : op.inputs)
    h = mix(h, level == Level::Kernel ? layout[t.index] : uint64_t(t.index));
  return h;
}

void TermDomain::round(const View& v, Level level) const {
  if (!is_sixteen(v.dtype) || level == Level::Kernel) return;
  uint64_t* x = v.as<uint64_t>(0);
  for (int64_t i = 0, n = v.size(); i < n; ++i) x[i] = mix(7, x[i]);
}

// The sign of a product is that of its factors, and rounding is the same for both signs.
uint64_t TermDomain::product(OpKind kind, DType dtype, uint64_t x, uint64_t y) const {
  const auto unsigned_of = [&](uint64_t t) { return std::min(t, negated(t)); };
  const uint64_t a = unsigned_of(x), b = unsigned_of(y), one = constant(dtype, Rational(1));
  const bool minus = (a != x) != (b != y), one_minus = one != unsigned_of(one);
  const auto with = [&](uint64_t t, bool negative) { return negative ? negated(t) : t; };
  if (b == unsigned_of(one)) return with(a, minus != one_minus);
  if (kind == OpKind::Mul && a == unsigned_of(one)) return with(b, minus != one_minus);
  const bool swap = kind == OpKind::Mul && b < a;
  return with(mix(mix(mix(8, uint64_t(kind)), uint64_t(dtype)), swap ? mix(b, a) : mix(a, b)),
              minus);
}

// x + x is 2x, and only -0 is neutral among floats: 0 + -0 is 0.
uint64_t TermDomain::sum(DType dtype, uint64_t x, uint64_t y) const {
  const uint64_t zero = constant(dtype, Rational(0));
  const uint64_t neutral = is_float(dtype) ? negated(zero) : zero;
  if (y == neutral) return x;
  if (x == neutral) return y;
  if (x == y && dtype != DType::Bool)
    return product(OpKind::Mul, dtype, x, constant(dtype, Rational(2)));
  return mix(mix(9, uint64_t(dtype)), x < y ? mix(x, y) : mix(y, x));
}

uint64_t TermDomain::apply(const Op& op, DType dtype, DType result, const uint64_t* x, int count,
                           uint64_t context) const {
  const auto named = [&](OpKind kind, uint64_t a, uint64_t b) {
    return mix(mix(mix(10, uint64_t(kind)), uint64_t(dtype)), mix(a, b));
  };
  const auto [low, high] = std::minmax(x[0], x[count > 1 ? 1 : 0]);
  using K = OpKind;
  const K k = op.kind;
  if (k == K::Neg || k == K::Not) return negated(x[0]);
  if (k == K::Abs) return dtype == DType::U8 ? x[0] : named(k, std::min(x[0], negated(x[0])), 0);
  if (k == K::Sqr) return product(K::Mul, dtype, x[0], x[0]);
  if (k == K::Mul || k == K::Div) return product(k, dtype, x[0], x[1]);
  if (k == K::Add) return sum(dtype, x[0], x[1]);
  if (k == K::Sub) return sum(dtype, x[0], negated(x[1]));
  if ((k == K::And || k == K::Or) && x[0] == x[1]) return x[0];
  if (k == K::And || k == K::Or || k == K::Eq) return named(k, low, high);
  if (k == K::Ne) return negated(named(K::Eq, low, high));
  if (k == K::Lt || k == K::Le) return named(k, x[0], x[1]);
  if (k == K::Gt) return named(K::Lt, x[1], x[0]);
  if (k == K::Ge) return named(K::Le, x[1], x[0]);
  if (k == K::Where && x[1] == x[2]) return x[1];
  if (k == K::Where) {
    const bool as_is = x[0] < negated(x[0]);
    return named(k, as_is ? x[0] : negated(x[0]), mix(x[as_is ? 1 : 2], x[as_is ? 2 : 1]));
  }
  if ((k == K::Max || k == K::Min) && !is_float(dtype)) return named(k, low, high);
  if (k == K::Cast && dtype == result) return x[0];
  uint64_t h = mix(mix(11, uint64_t(op.kind)), context);
  h = mix(mix(h, uint64_t(dtype)), uint64_t(result));
  for (int i = 0; i < count; ++i) h = mix(h, x[i]);
  return h;
}

void TermDomain::pointwise(const Op& op, const View* in, int count, const View& out,
                           uint64_t context, ThreadPool* pool) const {
  const DType operand = in[first_value(op.kind)].dtype;
  parallel_for(pool, out.size(), 4096, [&](int64_t begin, int64_t end) {
    const auto at = [&](int i) { return &in[std::min(i, count - 1)]; };
    Walker<4> walk(out, {at(0), at(1), at(2), &out}, begin);
    for (int64_t i = begin; i < end; ++i) {
      uint64_t x[3];
      for (int k = 0; k < 3; ++k) x[k] = at(k)->as<const uint64_t>(0)[walk.offset(k)];
      out.as<uint64_t>(0)[walk.offset(3)] = apply(op, operand, out.dtype, x, count, context);
      if (i + 1 < end) walk.advance(1);
    }
  });
}

void TermDomain::function(const Op& op, const std::vector<View>& in, const View& out,
                          uint64_t context, uint32_t result) const {
  uint64_t h = mix(mix(12, uint64_t(op.kind)), mix(context, result));
  for (const View& v : in) {
    h = mix(h, uint64_t(v.dtype));
    for (int d = 0; d < v.rank; ++d) h = mix(h, uint64_t(v.shape[size_t(d)]));
    if (v.size() == 0) continue;
    Walker<1> walk(v, {&v});
    for (int64_t i = 0, n = v.size(); i < n; ++i) {
      h = mix(h, v.as<const uint64_t>(0)[walk.offset(0)]);
      if (i + 1 < n) walk.advance(1);
    }
  }
  uint64_t* to = out.as<uint64_t>(0);
  for (int64_t i = 0, n = out.size(); i < n; ++i) to[i] = mix(h, uint64_t(i));
}

}  // namespace tessera
