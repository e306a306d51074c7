#include "search/mugraph/represent.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "ir/build.h"

namespace tessera::mugraph {
namespace {

// Σ coefficient · tensor, each tensor once and none with coefficient 0.
using Exponent = std::vector<std::pair<TensorId, Rational>>;

// v·e^m, where no v means 1. Tensors of v and m broadcast to the value's shape.
struct Carried {
  std::optional<TensorId> v;
  Exponent m;
  bool reduced = false;  // m holds maxima of a reduction: computing e^m would undo the protection
};

// How a value reaches other kernels: tensors of the kernel graph. No m: an ordinary tensor.
struct StoredValue {
  std::optional<TensorId> v, m;
  bool reduced = false;
};

// The least finite number: a maximum of nothing but -inf is raised to it, so that differences of
// exponents are never inf - inf and what is masked out weighs nothing. Values inside blocks are
// f32 where the program is 16-bit.
Rational least_finite(DType dtype) {
  return *Rational::parse(dtype == DType::F64 ? "-9007199254740991*2^971" : "-16777215*2^104");
}

Rational times(const Rational& a, const Rational& b) {
  if (auto r = Rational::mul(a, b)) return *r;
  throw Error(ErrorKind::Unsupported, "an exponent's coefficient is out of range");
}

// Operators that pass an exponent on to a sum behind them.
bool passes_exponent(OpKind kind) {
  return turns_axes(kind) ||
         is_one_of(kind, OpKind::Mul, OpKind::Div, OpKind::Sqr, OpKind::Sqrt, OpKind::Rsqrt,
                   OpKind::Neg, OpKind::Broadcast, OpKind::Add, OpKind::Sub, OpKind::Where);
}

uint8_t loops_of(const LoopMap& map) {
  unsigned bits = 0;
  for (size_t l = 0; l < map.size(); ++l) bits |= map[l] >= 0 ? 1u << l : 0;
  return uint8_t(bits);
}

uint8_t loops_of(const AccumAttrs& a) {
  unsigned bits = 0;
  for (int l : a.loops) bits |= 1u << l;
  return uint8_t(bits);
}

// x - m with m a maximum.
bool shifted_by_maximum(const Graph& g, TensorId x) {
  const Op& sub = g.producer(x);
  if (sub.kind != OpKind::Sub) return false;
  TensorId m = sub.inputs[1];
  for (;;) {
    const Op& op = g.producer(m);
    if (op.kind == OpKind::ReduceMax) return true;
    if (op.kind == OpKind::Accum) return g.attrs<AccumAttrs>(op).kind == AccumKind::Max;
    if (!has(op.kind, algebra::Movement) && op.kind != OpKind::Max) return false;
    m = op.inputs[0];
  }
}

// Writes one block graph again.
class BlockWriter {
 public:
  // `operands` says how each input of the old graph arrives; tensors are of `kernels`.
  BlockWriter(const Graph& old, const std::vector<StoredValue>& operands, const Graph& kernels)
      : old_(old), values_(old.tensors().size()), new_(Graph::block(old.grid(), old.loops())) {
    find_summed();
    size_t next = 0;
    std::vector<StoredValue> arrivals(old.tensors().size());  // in the new graph
    for (TensorId t : old.inputs()) {
      const StoredValue& s = operands[next++];
      StoredValue& a = arrivals[t.index];
      a.reduced = s.reduced;
      for (bool exponent : {false, true}) {
        const std::optional<TensorId>& from = exponent ? s.m : s.v;
        if (!from) continue;
        operands_.push_back(*from);
        const std::string& name = old.tensor(t).name;
        (exponent ? a.m : a.v) = new_.add_input(kernels.type(*from), exponent ? "" : name);
        note_loops(0);
      }
    }
    for (const Op& op : old.ops())
      if (is_load(op.kind))
        iterate(op, arrivals[op.inputs[0].index]);
      else if (!is_input(op.kind) && !is_store(op.kind))
        apply(op);
  }

  // Results that may stay pairs are stored as such.
  struct Result {
    int v = -1, m = -1;  // which results of the new graph
    bool reduced = false;
  };
  Graph finish(const std::vector<bool>& may_pair, std::vector<Result>& results,
               std::vector<std::string>& names) {
    std::vector<TensorId> outputs;
    for (size_t i = 0; i < old_.outputs().size(); ++i) {
      const Op& op = old_.producer(old_.outputs()[i]);
      SaveAttrs a = old_.attrs<SaveAttrs>(op);
      const std::string& name = old_.tensor(op.result()).name;
      const TensorId from = op.inputs[0];
      const Carried c = value(from);
      Result r;
      const auto save = [&](TensorId t, const SaveAttrs& attrs, const std::string& as) {
        outputs.push_back(build::save(new_, t, attrs, as));
        names.push_back(as);
        return int(outputs.size()) - 1;
      };
      if (may_pair[i] && !c.m.empty() && can_store_exponent(c, from, a)) {
        changed_ = true;
        r.reduced = c.reduced;
        if (is_float(a.type.dtype) && size_in_bytes(a.type.dtype) < 4) a.type.dtype = DType::F32;
        if (c.v) r.v = save(cast(full(*c.v, from), a.type.dtype), a, name);
        SaveAttrs ma = a;
        const TensorId m = exponent_tile(c, from, ma);
        r.m = save(cast(m, a.type.dtype), ma, c.v ? "" : name);
      } else {
        r.v = save(plain(from), a, name);
      }
      results.push_back(r);
    }
    new_.set_outputs(outputs);
    return without_dead_code(new_);
  }

  const std::vector<TensorId>& operands() const { return operands_; }
  // Whether anything is computed differently from the old graph.
  bool changed() const { return changed_; }

 private:
  struct Made {
    OpKind kind;
    std::vector<TensorId> in;
    Attrs attrs;
    TensorId out;
  };

  const Carried& value(TensorId t) const { return values_[t.index]; }
  const Type& type(TensorId t) const { return old_.type(t); }
  DType dtype(TensorId t) const { return old_.type(t).dtype; }
  size_t rank(TensorId t) const { return type(t).shape.size(); }

  void note_loops(uint8_t bits) {
    varies_.resize(new_.tensors().size(), 0);
    varies_.back() = bits;
  }

  // The same operation on the same operands is the same tensor, so that equal exponents cancel.
  TensorId add(OpKind kind, std::vector<TensorId> in, Attrs attrs = NoAttrs{}) {
    for (const Made& m : made_)
      if (m.kind == kind && m.in == in && m.attrs == attrs) return m.out;
    if (std::optional<TensorId> t = outside_unit_axes(kind, in, attrs)) return *t;
    unsigned loops = 0;
    for (TensorId t : in) loops |= varies_[t.index];
    if (is_load(kind)) loops = loops_of(std::get<IterAttrs>(attrs).fmap);
    if (is_accumulator(kind)) loops &= ~unsigned(loops_of(std::get<AccumAttrs>(attrs)));
    const TensorId out = new_.add(kind, in, attrs);
    note_loops(uint8_t(loops));
    made_.push_back({kind, std::move(in), std::move(attrs), out});
    return out;
  }
  // Axes of extent 1 are put in last and taken out first, so that equal exponents are equal tensors
  // whatever shape they are needed in: f(unsqueeze x) = unsqueeze f(x).
  std::optional<TensorId> outside_unit_axes(OpKind kind, const std::vector<TensorId>& in,
                                            const Attrs& attrs) {
    if (adds_or_drops_ones(kind)) {
      const Op& op = new_.producer(in[0]);
      if (op.kind == (kind == OpKind::Squeeze ? OpKind::Unsqueeze : OpKind::Squeeze) &&
          op.attrs == attrs)
        return op.inputs[0];
      return std::nullopt;
    }
    const bool folds = kind == OpKind::Accum && std::get<AccumAttrs>(attrs).kind == AccumKind::Max;
    if (!has(kind, algebra::Pointwise) && !folds && kind != OpKind::ReduceMax) return std::nullopt;
    std::optional<AxesAttrs> axes;
    size_t rank = 0;
    std::vector<TensorId> inner;
    for (TensorId t : in) {
      const Op& op = new_.producer(t);
      const Shape& shape = new_.type(t).shape;
      if (shape.empty()) {
        inner.push_back(t);
        continue;
      }
      if (op.kind != OpKind::Unsqueeze) return std::nullopt;
      const auto& a = new_.attrs<AxesAttrs>(op);
      if (axes && (!(*axes == a) || rank != shape.size())) return std::nullopt;
      axes = a;
      rank = shape.size();
      inner.push_back(op.inputs[0]);
    }
    if (!axes) return std::nullopt;
    Attrs below = attrs;
    if (kind == OpKind::ReduceMax) {
      auto& r = std::get<ReduceAttrs>(below);
      if (!r.keepdims) return std::nullopt;
      std::vector<int> mapped;
      for (int axis : r.axes) {
        if (std::ranges::binary_search(axes->axes, axis)) continue;
        mapped.push_back(axis -
                         int(std::ranges::lower_bound(axes->axes, axis) - axes->axes.begin()));
      }
      if (mapped.empty()) return std::nullopt;
      r.axes = mapped;
    }
    return add(OpKind::Unsqueeze, {add(kind, inner, below)}, *axes);
  }
  TensorId constant(const Rational& value, DType as) {
    return add(OpKind::Const, {}, ConstAttrs{value, Type{as, {}}});
  }
  TensorId cast(TensorId t, DType to) {
    return new_.type(t).dtype == to ? t : add(OpKind::Cast, {t}, CastAttrs{to});
  }

  // Which values enter a sum, possibly after operators that pass the exponent on.
  void find_summed() {
    summed_.assign(old_.tensors().size(), false);
    for (size_t i = old_.ops().size(); i-- > 0;) {
      const Op& op = old_.ops()[i];
      bool here = is_sum(op.kind) || op.kind == OpKind::Matmul;
      if (op.kind == OpKind::Accum) here = old_.attrs<AccumAttrs>(op).kind == AccumKind::Sum;
      if (passes_exponent(op.kind)) here = summed_[op.result().index];
      if (!here) continue;
      for (TensorId t : op.inputs) summed_[t.index] = true;
    }
  }

  // --- exponents
  static void accumulate(Exponent& to, const Exponent& from, const Rational& factor) {
    for (const auto& [t, c] : from) {
      const Rational more = times(c, factor);
      auto it = std::ranges::find_if(to, [&](const auto& e) { return e.first == t; });
      if (it == to.end()) {
        to.push_back({t, more});
        continue;
      }
      const auto sum = Rational::add(it->second, more);
      if (!sum) throw Error(ErrorKind::Unsupported, "an exponent's coefficient is out of range");
      if (sum->is_zero())
        to.erase(it);
      else
        it->second = *sum;
    }
  }

  // The tensor Σ c·t; positive terms first.
  TensorId total(const Exponent& m, DType as) {
    std::optional<TensorId> sum;
    for (bool negative : {false, true}) {
      for (const auto& [t, c] : m) {
        if (c.negative() != negative) continue;
        const Rational size = negative ? -c : c;
        const TensorId term = size == Rational(1) ? t : add(OpKind::Mul, {t, constant(size, as)});
        if (!sum)
          sum = negative ? add(OpKind::Neg, {term}) : term;
        else
          sum = add(negative ? OpKind::Sub : OpKind::Add, {*sum, term});
      }
    }
    CHECK(sum) << "an empty exponent";
    return *sum;
  }

  // Broadcast to the shape of the old tensor.
  TensorId full(TensorId t, TensorId like) {
    const Shape& want = type(like).shape;
    return new_.type(t).shape == want ? t : add(OpKind::Broadcast, {t}, ShapeAttrs{want});
  }
  TensorId factor(TensorId t) { return value(t).v ? *value(t).v : constant(1, dtype(t)); }

  // The value as one tensor of its own shape.
  TensorId plain(TensorId t) {
    const Carried c = value(t);
    if (c.m.empty()) return full(factor(t), t);
    const TensorId e = add(OpKind::Exp, {total(c.m, dtype(t))});
    return full(c.v ? add(OpKind::Mul, {*c.v, e}) : e, t);
  }

  // With leading axes of extent 1, so that axes can be named by position.
  TensorId lifted(TensorId m, size_t to_rank) {
    const size_t have = new_.type(m).shape.size();
    if (have == to_rank) return m;
    AxesAttrs a;
    for (size_t i = 0; i < to_rank - have; ++i) a.axes.push_back(int(i));
    return add(OpKind::Unsqueeze, {m}, a);
  }

  bool varies_along(TensorId m, const std::vector<int>& axes) const {
    return std::ranges::any_of(
        axes, [&](int a) { return !(new_.type(m).shape[size_t(a)] == Dim(1)); });
  }

  // A maximum that is finite unless it is +inf or NaN.
  TensorId raised(TensorId m, DType as) {
    if (raised_.count(m.index) != 0) return m;
    const TensorId out = add(OpKind::Max, {m, constant(least_finite(as), as)});
    raised_.insert(out.index);
    return out;
  }

  // The same value with m constant along `axes`: what varies there goes into v, relative to its
  // maximum. v has the value's full shape.
  Carried levelled(TensorId t, const std::vector<int>& axes) {
    const Carried c = value(t);
    Exponent varying;
    Carried out;
    out.reduced = c.reduced;
    for (const auto& [m, k] : c.m) {
      const TensorId l = lifted(m, rank(t));
      (varies_along(l, axes) ? varying : out.m).push_back({l, k});
    }
    if (varying.empty()) {
      out.v = full(factor(t), t);
      return out;
    }
    changed_ = true;
    const TensorId m = total(varying, dtype(t));
    const TensorId top = raised(add(OpKind::ReduceMax, {m}, ReduceAttrs{axes, true}), dtype(t));
    const TensorId p = add(OpKind::Exp, {add(OpKind::Sub, {m, top})});
    out.v = full(c.v ? add(OpKind::Mul, {*c.v, p}) : p, t);
    accumulate(out.m, {{top, Rational(1)}}, Rational(1));
    out.reduced = true;
    return out;
  }

  // Factors of several values under one exponent, the largest.
  Carried aligned(const std::vector<TensorId>& in, std::vector<TensorId>& factors) {
    Carried out;
    bool same = true;
    for (TensorId t : in) {
      same = same && value(t).m == value(in[0]).m;
      out.reduced = out.reduced || value(t).reduced;
    }
    if (same) {
      for (TensorId t : in) factors.push_back(factor(t));
      out.m = value(in[0]).m;
      return out;
    }
    changed_ = true;
    const DType as = dtype(in[0]);
    std::vector<TensorId> each;
    for (TensorId t : in)
      each.push_back(value(t).m.empty() ? constant(0, as) : total(value(t).m, as));
    TensorId top = each[0];
    for (size_t i = 1; i < each.size(); ++i) top = add(OpKind::Max, {top, each[i]});
    top = raised(top, as);
    for (size_t i = 0; i < in.size(); ++i) {
      const TensorId e = add(OpKind::Exp, {add(OpKind::Sub, {each[i], top})});
      factors.push_back(value(in[i]).v ? add(OpKind::Mul, {*value(in[i]).v, e}) : e);
    }
    out.m = {{top, Rational(1)}};
    return out;
  }

  // --- operators
  void define(const Op& op, Carried c) { values_[op.result().index] = std::move(c); }

  void iterate(const Op& op, const StoredValue& a) {
    const auto& attrs = old_.attrs<IterAttrs>(op);
    Carried c;
    c.reduced = a.reduced;
    if (a.v) c.v = cast(add(OpKind::Iter, {*a.v}, attrs), dtype(op.result()));
    if (a.m) {
      IterAttrs ma = attrs;
      const Shape& whole = new_.type(*a.m).shape;
      const auto one = [&](int axis) { return axis >= 0 && whole[size_t(axis)] == Dim(1); };
      // Where the value has extent 1 as well, the map stays as harmless as it was.
      for (auto& axis : ma.imap) axis = one(axis) ? int8_t(-1) : axis;
      for (auto& axis : ma.fmap) axis = one(axis) ? int8_t(-1) : axis;
      c.m = {{cast(add(OpKind::Iter, {*a.m}, ma), dtype(op.result())), Rational(1)}};
    }
    define(op, std::move(c));
  }

  bool is_zero(TensorId t) const {
    const Op& op = old_.producer(t);
    if (op.kind == OpKind::Broadcast) return is_zero(op.inputs[0]);
    return op.constant() && op.constant()->is_zero();
  }

  void generic(const Op& op) {
    std::vector<TensorId> in = mapped(op.inputs, [&](TensorId t) { return plain(t); });
    if (op.num_results != 1 || op.body.valid()) {
      const OpId id = op.body.valid() ? new_.add_graph_op(op.kind, in, old_.body(op))
                                      : new_.add_op(op.kind, in, op.attrs);
      unsigned loops = 0;
      for (TensorId t : in) loops |= varies_[t.index];
      varies_.resize(new_.tensors().size(), uint8_t(loops));
      for (uint32_t i = 0; i < op.num_results; ++i)
        values_[op.result(i).index] = {new_.op(id).result(i), {}, false};
      return;
    }
    define(op, {add(op.kind, in, op.attrs), {}, false});
  }

  // f(v·e^m) = f(v)·e^(k·m)
  void power(const Op& op, const Rational& k) {
    const Carried c = value(op.inputs[0]);
    Carried out;
    out.reduced = c.reduced;
    accumulate(out.m, c.m, k);
    if (c.v) out.v = add(op.kind, {*c.v}, op.attrs);
    define(op, std::move(out));
  }

  void apply(const Op& op) {
    bool reduced = false;
    int how_many = 0;
    for (TensorId t : op.inputs) {
      reduced = reduced || value(t).reduced;
      how_many += !value(t).m.empty();
    }
    if (op.kind == OpKind::Exp && !shifted_by_maximum(old_, op.inputs[0])) {
      define(op, {std::nullopt, {{plain(op.inputs[0]), Rational(1)}}, false});
      return;
    }
    if (how_many == 0) return generic(op);
    const auto in = [&](size_t i) -> const Carried& { return value(op.inputs[i]); };
    if (op.kind == OpKind::Mul || op.kind == OpKind::Div) {
      Carried out;
      out.reduced = reduced;
      out.m = in(0).m;
      accumulate(out.m, in(1).m, op.kind == OpKind::Mul ? 1 : -1);
      if (!in(1).v)
        out.v = in(0).v;
      else if (!in(0).v && op.kind == OpKind::Mul)
        out.v = in(1).v;
      else
        out.v = add(op.kind, {factor(op.inputs[0]), factor(op.inputs[1])});
      return define(op, std::move(out));
    }
    if (op.kind == OpKind::Sqr) return power(op, 2);
    if (op.kind == OpKind::Sqrt) return power(op, Rational::ratio(1, 2));
    if (op.kind == OpKind::Rsqrt) return power(op, Rational::ratio(-1, 2));
    if (op.kind == OpKind::Pow) return power(op, old_.attrs<PowAttrs>(op).exponent);
    if (op.kind == OpKind::Neg) {
      Carried out = in(0);
      out.v = add(OpKind::Neg, {factor(op.inputs[0])});
      return define(op, std::move(out));
    }
    if (op.kind == OpKind::Broadcast) return define(op, in(0));
    if (turns_axes(op.kind)) {
      Carried out;
      out.reduced = reduced;
      const size_t r = rank(op.inputs[0]);
      if (in(0).v) out.v = add(op.kind, {lifted(*in(0).v, r)}, op.attrs);
      for (const auto& [m, k] : in(0).m)
        out.m.push_back({add(op.kind, {lifted(m, r)}, op.attrs), k});
      return define(op, std::move(out));
    }
    if (op.kind == OpKind::Log) {
      const Carried c = in(0);
      const TensorId m = total(c.m, dtype(op.inputs[0]));
      return define(op, {c.v ? add(OpKind::Add, {add(OpKind::Log, {*c.v}), m}) : m, {}, false});
    }
    if (is_sum(op.kind)) {
      const auto& a = old_.attrs<ReduceAttrs>(op);
      Carried out = levelled(op.inputs[0], a.axes);
      out.v = add(op.kind, {*out.v}, a);
      if (!a.keepdims)
        for (auto& [m, k] : out.m) m = add(OpKind::Squeeze, {m}, AxesAttrs{a.axes});
      return define(op, std::move(out));
    }
    if (op.kind == OpKind::Matmul) {
      Carried a = levelled(op.inputs[0], {int(rank(op.inputs[0])) - 1});
      Carried b = levelled(op.inputs[1], {int(rank(op.inputs[1])) - 2});
      Carried out;
      out.reduced = a.reduced || b.reduced;
      out.m = std::move(a.m);
      accumulate(out.m, b.m, 1);
      out.v = add(OpKind::Matmul, {*a.v, *b.v});
      return define(op, std::move(out));
    }
    if (op.kind == OpKind::Accum && old_.attrs<AccumAttrs>(op).kind == AccumKind::Sum)
      return accumulator(op);
    const bool summed = summed_[op.result().index];
    if ((op.kind == OpKind::Add || op.kind == OpKind::Sub) &&
        (reduced || (summed && how_many > 1))) {
      std::vector<TensorId> v;
      Carried out = aligned(op.inputs, v);
      out.v = add(op.kind, v);
      return define(op, std::move(out));
    }
    if (op.kind == OpKind::Where && in(0).m.empty() && (reduced || summed)) return where(op);
    generic(op);
  }

  void where(const Op& op) {
    const TensorId c = plain(op.inputs[0]);
    const DType as = dtype(op.result());
    for (size_t kept : {1, 2}) {
      const TensorId t = op.inputs[kept];
      if (value(t).m.empty() || !is_zero(op.inputs[3 - kept])) continue;
      // What is masked out has no say in the maximum either.
      const auto choose = [&](TensorId x, TensorId other) {
        return add(OpKind::Where, kept == 1 ? std::vector{c, x, other} : std::vector{c, other, x});
      };
      Carried out;
      out.reduced = value(t).reduced;
      out.v = choose(factor(t), constant(0, as));
      out.m = {{choose(total(value(t).m, as), constant(least_finite(as), as)), Rational(1)}};
      return define(op, std::move(out));
    }
    std::vector<TensorId> v;
    Carried out = aligned({op.inputs[1], op.inputs[2]}, v);
    out.v = add(OpKind::Where, {c, v[0], v[1]});
    define(op, std::move(out));
  }

  void accumulator(const Op& op) {
    const auto& a = old_.attrs<AccumAttrs>(op);
    const TensorId t = op.inputs[0];
    const Carried c = value(t);
    Exponent varying;
    Carried out;
    out.reduced = c.reduced;
    unsigned folded = 0;
    for (const auto& [m, k] : c.m) {
      const unsigned bits = varies_[m.index] & loops_of(a);
      folded |= bits;
      (bits ? varying : out.m).push_back({m, k});
    }
    TensorId v = full(factor(t), t);
    if (varying.empty()) {
      out.v = add(OpKind::Accum, {v}, a);
      return define(op, std::move(out));
    }
    changed_ = true;
    const TensorId exponent = total(varying, dtype(t)), m = raised(exponent, dtype(t));
    if (m != exponent) {  // v·e^exponent = v·e^(exponent - m)·e^m, also where nothing was reduced
      const TensorId e = add(OpKind::Exp, {add(OpKind::Sub, {exponent, m})});
      v = full(add(OpKind::Mul, {v, e}), t);
    }
    out.v = add(OpKind::AccumRescale, {v, m}, a);
    AccumAttrs top;
    top.kind = AccumKind::Max;
    for (int l = 0; l < int(old_.loops().size()); ++l)
      if (folded >> l & 1) top.loops.push_back(l);
    const TensorId most = add(OpKind::Accum, {m}, top);
    raised_.insert(most.index);
    accumulate(out.m, {{most, Rational(1)}}, 1);
    out.reduced = true;
    define(op, std::move(out));
  }

  // Whether the exponent of a result can be stored on its own: a loop that the saver streams over
  // must change it, and an axis along which it is repeated must be cut evenly.
  bool can_store_exponent(const Carried& c, TensorId of, const SaveAttrs& a) {
    const TensorId m = lifted(total(c.m, dtype(of)), rank(of));
    const Shape& tile = new_.type(m).shape;
    for (size_t l = 0; l < a.fmap.size(); ++l)
      if (a.fmap[l] >= 0 && !(varies_[m.index] >> l & 1)) return false;
    for (size_t d = 0; d < tile.size(); ++d) {
      int64_t parts = 1;
      for (size_t g = 0; g < old_.grid().size(); ++g)
        if (a.omap[g] == int(d)) parts *= old_.grid()[g];
      for (size_t l = 0; l < old_.loops().size(); ++l)
        if (a.fmap[l] == int(d)) parts *= old_.loops()[l];
      const int64_t whole = a.type.shape[d].extent;
      if (tile[d] == Dim(1) && !(type(of).shape[d] == Dim(1)) && whole % parts != 0) return false;
    }
    return true;
  }

  // The exponent of a result to be stored, as one tensor; `a` becomes its saver.
  TensorId exponent_tile(const Carried& c, TensorId of, SaveAttrs& a) {
    TensorId m = lifted(total(c.m, dtype(of)), rank(of));
    // Whole where the value is cut, or where no factor tells the value's shape.
    Shape tile = new_.type(m).shape;
    std::vector<bool> cut(rank(of), !c.v);
    for (int axis : a.omap)
      if (axis >= 0) cut[size_t(axis)] = true;
    for (int axis : a.fmap)
      if (axis >= 0) cut[size_t(axis)] = true;
    for (size_t d = 0; d < tile.size(); ++d)
      if (cut[d])
        tile[d] = type(of).shape[d];
      else if (tile[d] == Dim(1))
        a.type.shape[d] = Dim(1);
    return new_.type(m).shape == tile ? m : add(OpKind::Broadcast, {m}, ShapeAttrs{tile});
  }

  const Graph& old_;
  std::vector<Carried> values_;  // by tensor of the old graph
  std::vector<bool> summed_;     // by tensor of the old graph
  Graph new_;
  std::vector<uint8_t> varies_;  // loops, by tensor of the new graph
  std::vector<Made> made_;
  std::set<uint32_t> raised_;  // tensors of the new graph that are never -inf
  std::vector<TensorId> operands_;
  bool changed_ = false;
};

}  // namespace

Graph carry_exponents(const Graph& old) {
  bool changed = false;
  Graph g(old.name());
  std::vector<TensorId> plain(old.tensors().size());  // of `stored`, what is no pair
  std::vector<StoredValue> stored(old.tensors().size());
  std::vector<bool> kernels_only(old.tensors().size(), true);
  for (const Op& op : old.ops()) {
    if (is_kernel(op.kind)) continue;
    for (TensorId t : op.inputs) kernels_only[t.index] = false;
  }
  for (TensorId t : old.outputs()) kernels_only[t.index] = false;
  for (const Op& op : old.ops()) {
    if (op.kind != OpKind::Kernel) {
      copy_op(old, op, g, plain);
      for (uint32_t i = 0; i < op.num_results; ++i)
        stored[op.result(i).index].v = plain[op.result(i).index];
      continue;
    }
    std::vector<StoredValue> operands;
    std::vector<bool> may_pair;
    for (TensorId t : op.inputs) operands.push_back(stored[t.index]);
    for (uint32_t i = 0; i < op.num_results; ++i)
      may_pair.push_back(kernels_only[op.result(i).index]);
    BlockWriter writer(old.body(op), operands, g);
    std::vector<BlockWriter::Result> results;
    std::vector<std::string> new_names;
    Graph body = writer.finish(may_pair, results, new_names);
    changed = changed || writer.changed();
    const OpId id = g.add_graph_op(OpKind::Kernel, writer.operands(), std::move(body), new_names);
    for (uint32_t i = 0; i < op.num_results; ++i) {
      const BlockWriter::Result& r = results[i];
      StoredValue& s = stored[op.result(i).index];
      s.reduced = r.reduced;
      if (r.v >= 0) s.v = plain[op.result(i).index] = g.op(id).result(uint32_t(r.v));
      if (r.m >= 0) s.m = g.op(id).result(uint32_t(r.m));
    }
  }
  for (TensorId t : old.outputs()) g.add_output(*stored[t.index].v);
  return changed ? g : old;
}

bool exponents_are_shifted(const Graph& g) {
  for (const Op& op : g.ops())
    if (op.kind == OpKind::Exp && !shifted_by_maximum(g, op.inputs[0])) return false;
  return std::ranges::all_of(g.bodies(), exponents_are_shifted);
}

}  // namespace tessera::mugraph
