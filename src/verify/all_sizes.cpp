#include "verify/all_sizes.h"

#include <algorithm>
#include <concepts>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"
#include "ir/axis_reads.h"
#include "ir/extent.h"
#include "verify/sums.h"

namespace tessera {
namespace {

constexpr int kInstances = 5;
constexpr int64_t kLargestCoefficient = 64, kLargestOffset = 4096;

using InstanceGraphs = std::vector<Graph>;
using Numbers64 = std::vector<int64_t>;  // one number in all instances

Numbers64 extents_at(const InstanceGraphs& all, TensorId t, size_t axis) {
  Numbers64 v;
  for (const Graph& g : all) v.push_back(g.type(t).shape[axis].extent);
  return v;
}
bool is_one_number(const Numbers64& v) {
  return std::ranges::all_of(
      v, [&](int64_t x) { return x == v[0]; });
}
// The number that added to `from` makes `v` in all instances, if there is one.
std::optional<int64_t> offset(const Numbers64& v, const Numbers64& from) {
  for (size_t k = 0; k < v.size(); ++k)
    if (v[k] - from[k] != v[0] - from[0]) return std::nullopt;
  return v[0] - from[0];
}

// Extents as terms of symbols.
class SymbolicExtents {
 public:
  explicit SymbolicExtents(Sums& sums) : sums_(sums), t_(sums.terms()) {}

  void add_symbol(const Numbers64& values, int64_t least) {
    symbols_.push_back({{values, sums_.extent(least)}, least});
    products_.clear();
    for (size_t i = 0; i < symbols_.size(); ++i) {
      products_.push_back(symbols_[i]);
      for (size_t j = 0; j <= i; ++j) {
        const Known two = product(symbols_[i], symbols_[j]);
        products_.push_back(two);
        for (size_t k = 0; k <= j; ++k) products_.push_back(product(two, symbols_[k]));
      }
    }
    std::ranges::stable_sort(
        products_, [&](const Known& a, const Known& b) { return degree(a.term) < degree(b.term); });
    read_.clear();
  }

  std::optional<TermId> read(const Numbers64& v) {
    if (const auto it = read_.find(v); it != read_.end()) return it->second;
    return read_[v] = look(v);
  }
  TermId operator()(const Numbers64& v) {
    if (const auto term = read(v)) return *term;
    throw NoTerms{"a number that depends on the sizes in an unknown way (" + std::to_string(v[0]) +
                  " at the first sizes)"};
  }

  struct Known {
    Numbers64 values;
    TermId term;
  };
  struct Symbol : Known {
    int64_t least;
  };
  const std::vector<Symbol>& symbols() const { return symbols_; }

 private:
  Known product(Known a, const Known& b) {
    for (size_t k = 0; k < a.values.size(); ++k) a.values[k] *= b.values[k];
    a.term = t_.mul(a.term, b.term);
    return a;
  }
  int degree(TermId a) const {
    return sum_of<int>(t_.monomial(t_.term(a).sum[0].first).factors, &Factor::power);
  }

  std::optional<TermId> look(const Numbers64& v) {
    if (is_one_number(v)) return t_.integer(v[0]);
    for (const Known& p : products_) {  // c·p + d
      size_t other = 1;
      while (p.values[other] == p.values[0]) ++other;
      const int64_t run = p.values[other] - p.values[0], rise = v[other] - v[0];
      if (rise % run != 0) continue;
      const int64_t c = rise / run, d = v[0] - c * p.values[0];
      if (std::abs(c) > kLargestCoefficient || std::abs(d) > kLargestOffset) continue;
      bool all = true;
      for (size_t k = 0; k < v.size(); ++k) all = all && v[k] == c * p.values[k] + d;
      if (all) return t_.add(t_.mul(t_.integer(c), p.term), t_.integer(d));
    }
    for (const Known& p : products_)  // p ± q + d
      for (const Known& q : products_)
        for (int64_t sign : {1, -1}) {
          const int64_t d = v[0] - p.values[0] - sign * q.values[0];
          bool all = std::abs(d) <= kLargestOffset;
          for (size_t k = 0; k < v.size(); ++k)
            all = all && v[k] == p.values[k] + sign * q.values[k] + d;
          if (all) return t_.sum({p.term, t_.mul(t_.integer(sign), q.term), t_.integer(d)});
        }
    return std::nullopt;
  }

  Sums& sums_;
  Terms& t_;
  std::vector<Symbol> symbols_;
  std::vector<Known> products_;
  std::map<Numbers64, std::optional<TermId>> read_;
};

// One of the two programs, by elements.
class ProgramElements {
 public:
  ProgramElements(Sums& sums, SymbolicExtents& extents, const InstanceGraphs& g)
      : s_(sums), t_(sums.terms()), extents_(extents), all_(g), g_(g[0]) {}

  using Index = std::vector<TermId>;

  std::vector<TermId> shape(TensorId t) {
    return mapped(
        g_.type(t).shape.size(), [&](size_t d) { return extents_(extents_at(all_, t, d)); });
  }

  TermId at(TensorId t, const Index& index) {
    auto& known = known_[t.index];
    if (const auto it = known.find(index); it != known.end()) return it->second;
    if (++steps_ > 20'000) throw NoTerms{"too many elements to look at"};
    const TermId r = compute(g_.producer(t), t, index);
    return known_[t.index][index] = r;
  }

 private:
  template <class F> Numbers64 numbers(F f) const {
    Numbers64 v;
    for (const Graph& g : all_) v.push_back(f(g));
    return v;
  }
  // A number among the attributes of an operator.
  template <class A, class F> TermId attribute(const Op& op, F f) {
    return extents_(numbers([&](const Graph& g) { return int64_t(f(std::get<A>(op_in(g, op)))); }));
  }
  const Attrs& op_in(const Graph& g, const Op& op) const {
    return g.ops()[size_t(&op - g_.ops().data())].attrs;
  }
  TermId finite(TermId a) { return s_.numbers().finite(a); }

  // The part of an index that an operand of a broadcasting operator sees.
  Index stretched(TensorId x, const Index& index) const {
    const Shape& shape = g_.type(x).shape;
    Index r(index.end() - long(shape.size()), index.end());
    for (size_t d = 0; d < r.size(); ++d)
      if (shape[d].is_one()) r[d] = Terms::kZero;
    return r;
  }

  // Integers are elements of ℤ here, so what depends on wrapping around is not asked.
  bool may_have_wrapped(TensorId t) const {
    const Op& op = g_.producer(t);
    if (is_leaf(op.kind) || is_counter(t)) return false;
    return !has(op.kind, algebra::Movement) ||
           std::ranges::any_of(op.inputs, [&](TensorId x) { return may_have_wrapped(x); });
  }
  // Of positions and small numbers, in integers that hold every extent.
  bool is_counter(TensorId t) const {
    const Op& op = g_.producer(t);
    const DType d = g_.type(t).dtype;
    if (d != DType::I64) return false;
    if (std::holds_alternative<IotaAttrs>(op.attrs)) return true;
    if (const Rational* v = op.constant())
      return v->is_integer() && std::abs(v->num()) < kMaxElements;
    const bool moves = only_moves(op.kind) || is_triangle(op.kind);
    return (moves || is_one_of(op.kind, OpKind::Add, OpKind::Sub)) &&
           std::ranges::all_of(op.inputs,
                               [&](TensorId x) { return g_.type(x).dtype == d && is_counter(x); });
  }
  void check_types(const Op& op) const {
    if (op.inputs.empty()) return;
    const DType to = g_.type(op.result()).dtype, from = g_.type(op.inputs.back()).dtype;
    if (op.kind == OpKind::Cast) {
      const bool exact = is_float(from)
                             ? is_float(to)
                             : from == DType::Bool || (!may_have_wrapped(op.inputs[0]) &&
                                                       (is_float(to) || to == DType::I64));
      if (!exact) throw NoTerms{"a cast to integers, or of integers that may wrap around"};
      return;
    }
    if (!is_integer(from)) return;
    if (has(op.kind, algebra::Ring) || is_one_of(op.kind, OpKind::Pow, OpKind::Where)) return;
    if (has(op.kind, algebra::Partial)) throw NoTerms{"a division of integers"};
    if (!has(op.kind, algebra::Movement) &&
        std::ranges::any_of(op.inputs, [&](TensorId x) { return may_have_wrapped(x); }))
      throw NoTerms{"the order of computed integers, which wrap around"};
  }

  TermId constant(const Op& op) {
    auto v = mapped(
        all_, [&](const Graph& g) { return std::get<ConstAttrs>(op_in(g, op)).value; });
    if (std::ranges::all_of(v, [&](const Rational& r) { return r == v[0]; })) {
      if (v[0].finite()) return t_.constant(v[0]);
      if (v[0].num() == 0) throw NoTerms{"a constant that is not a number"};
      return v[0].negative() ? kMinusInfinity : kPlusInfinity;
    }
    bool inverted = false;
    for (const Rational& r : v) inverted = inverted || !r.is_integer();
    Numbers64 whole;
    for (const Rational& r : v) {
      const auto x = inverted ? r.inverse() : std::optional(r);
      if (!x || !x->is_integer()) throw NoTerms{"a number that depends on the sizes"};
      whole.push_back(x->num());
    }
    const TermId n = extents_(whole);
    return inverted ? t_.inverse(n) : n;
  }

  TermId pointwise(const Op& op, const Index& index) {
    auto in = mapped(op.inputs, [&](TensorId x) { return at(x, stretched(x, index)); });
    if (is_comparison(op.kind) && !infinite(in[0]) && !infinite(in[1])) {
      const TermId above = t_.sub(in[0], in[1]), below = t_.sub(in[1], in[0]);
      if (s_.is_position(above)) {
        const Outcomes holds = outcomes(op.kind);
        if (holds.less != holds.greater) {
          const TermId by = holds.less ? below : above;
          return s_.at_least_zero(holds.equal ? by : t_.sub(by, Terms::kOne));
        }
        const TermId same = s_.is_zero(above);
        return holds.equal ? same : t_.sub(Terms::kOne, same);
      }
    }
    return apply_pointwise(s_.numbers(), op, in, is_integer(g_.type(op.inputs[0]).dtype));
  }

  TermId reduce(const Op& op, const Index& index) {
    const auto& a = g_.attrs<ReduceAttrs>(op);
    const std::vector<TermId> extents = shape(op.inputs[0]);
    Index from;
    std::vector<TermId> positions;
    TermId count = Terms::kOne;
    size_t next = 0;
    for (size_t d = 0; d < extents.size(); ++d) {
      const bool gone = std::ranges::binary_search(a.axes, int(d));
      if (gone) {
        from.push_back(extents[d] == Terms::kOne ? Terms::kZero : s_.position(extents[d]));
        if (from.back() != Terms::kZero) positions.push_back(from.back());
        count = t_.mul(count, extents[d]);
        next += a.keepdims;
      } else {
        from.push_back(index[next++]);
      }
    }
    const TermId body = finite(at(op.inputs[0], from));
    const auto fold = fold_of(op.kind);
    if (fold == AccumKind::Max) return s_.max(positions, body);
    if (fold == AccumKind::Min) return s_.min(positions, body);
    const TermId sum = s_.sum(positions, body);
    return op.kind == OpKind::Mean ? t_.mul(sum, t_.inverse(count)) : sum;
  }

  TermId matmul(TensorId x, TensorId y, const Index& index) {
    const TermId depth = shape(x).back();
    const TermId k = depth == Terms::kOne ? Terms::kZero : s_.position(depth);
    auto batch = [&](TensorId t, TermId row, TermId column) {
      const Shape& shape = g_.type(t).shape;
      const Index lead(index.begin(), index.end() - 2);
      Index r(lead.end() - long(shape.size() - 2), lead.end());
      for (size_t d = 0; d < r.size(); ++d)
        if (shape[d].is_one()) r[d] = Terms::kZero;
      r.push_back(row);
      r.push_back(column);
      return r;
    };
    const TermId product = t_.mul(finite(at(x, batch(x, index[index.size() - 2], k))),
                                  finite(at(y, batch(y, k, index.back()))));
    return k == Terms::kZero ? product : s_.sum({k}, product);
  }

  // Splits and merges of neighbouring axes.
  TermId reshaped(TensorId x, TensorId result, const Index& index) {
    const std::vector<TermId> from = shape(x), to = shape(result);
    Index source(from.size(), Terms::kZero);
    size_t i = 0, j = 0;
    while (i < from.size() || j < to.size()) {
      const size_t i0 = i, j0 = j;
      TermId left = Terms::kOne, right = Terms::kOne;
      auto take = [&](bool of_source) {
        if (of_source && i < from.size())
          left = t_.mul(left, from[i++]);
        else if (!of_source && j < to.size())
          right = t_.mul(right, to[j++]);
        else
          throw NoTerms{"a reshape that is no split or merge of axes"};
      };
      if (i < from.size()) take(true);
      if (j < to.size()) take(false);
      while (left != right) take(size(i0, i, x) < size(j0, j, result));
      TermId flat = Terms::kZero;
      for (size_t k = j0; k < j; ++k) flat = t_.add(t_.mul(flat, to[k]), index[k]);
      for (size_t k = i; k-- > i0;) {
        if (k == i0) {
          source[k] = flat;
          break;
        }
        std::tie(flat, source[k]) = s_.divided(flat, from[k]);
      }
    }
    return at(x, source);
  }
  int64_t size(size_t from, size_t to, TensorId t) const {
    int64_t n = 1;
    for (size_t d = from; d < to; ++d) n *= g_.type(t).shape[d].extent;
    return n;
  }

  TermId joined(const Op& op, Index index) {
    const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
    const bool stack = op.kind == OpKind::Stack;
    TermId start = Terms::kZero, r = Terms::kZero;
    const TermId position = index[axis];
    for (TensorId x : op.inputs) {
      const TermId extent = stack ? Terms::kOne : shape(x)[axis], here = t_.sub(position, start);
      const TermId bracket = stack ? s_.is_zero(here) : s_.inside(here, extent);
      Index from = index;
      if (stack)
        from.erase(from.begin() + long(axis));
      else
        from[axis] = here;
      if (bracket != Terms::kZero) r = t_.add(r, t_.mul(bracket, finite(at(x, from))));
      start = t_.add(start, extent);
    }
    return r;
  }

  TermId padded(const Op& op, const Index& index) {
    const std::vector<TermId> extents = shape(op.inputs[0]);
    TermId bracket = Terms::kOne;
    Index from;
    for (size_t d = 0; d < index.size(); ++d) {
      from.push_back(
          t_.sub(index[d], attribute<PadAttrs>(op, [&](const PadAttrs& a) { return a.low[d]; })));
      bracket = t_.mul(bracket, s_.inside(from[d], extents[d]));
    }
    const Rational& value = g_.attrs<PadAttrs>(op).value;
    if (!value.finite()) throw NoTerms{"a padding that is no number"};
    const TermId v = t_.constant(value);
    return t_.add(v, t_.mul(bracket, t_.sub(finite(at(op.inputs[0], from)), v)));
  }

  TermId compute(const Op& op, TensorId t, const Index& index) {
    check_types(op);
    for (TermId extent : shape(t))
      if (!s_.never_negative(t_.sub(extent, Terms::kOne))) throw NoTerms{"an extent that may be 0"};
    if (has(op.kind, algebra::Pointwise)) return pointwise(op, index);
    const TensorId x = op.inputs.empty() ? t : op.inputs[0];
    Index from = index;
    if (is_input(op.kind)) {
      const auto& in = g_.inputs();
      const auto k = std::ranges::find(in, t) - in.begin();
      const TermId element = t_.symbol("input " + std::to_string(k), index);
      return g_.type(t).dtype == DType::Bool ? t_.positive(element) : element;
    }
    if (op.constant()) return constant(op);
    if (const auto* a = std::get_if<IotaAttrs>(&op.attrs)) {
      if (size_in_bytes(a->type.dtype) < 4) throw NoTerms{"a range of narrow numbers"};
      return index[size_t(a->axis)];
    }
    if (is_reduction(op.kind)) return reduce(op, index);
    if (is_scan(op.kind)) {
      const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
      const TermId extent = shape(x)[axis], k = s_.position(extent);
      from[axis] = k;
      return s_.sum({k}, t_.mul(s_.at_least_zero(t_.sub(index[axis], k)), finite(at(x, from))));
    }
    if (is_product(op.kind)) {
      const size_t n = op.inputs.size() / 2;
      std::vector<TermId> terms;
      for (size_t i = 0; i < n; ++i) terms.push_back(matmul(op.inputs[i], op.inputs[i + n], index));
      return t_.sum(terms);
    }
    switch (op.kind) {
    case OpKind::Reshape: return reshaped(x, t, index);
    case OpKind::Slice:
      for (size_t d = 0; d < from.size(); ++d) {
        const TermId step = attribute<SliceAttrs>(
            op, [&](const auto& a) { return a.steps[d]; });
        const TermId start = attribute<SliceAttrs>(op, [&](const auto& a) { return a.starts[d]; });
        from[d] = t_.add(start, t_.mul(step, from[d]));
      }
      return at(x, from);
    case OpKind::Pad: return padded(op, index);
    case OpKind::Concat:
    case OpKind::Stack: return joined(op, index);
    case OpKind::Triu:
    case OpKind::Tril: {
      const TermId k = attribute<DiagonalAttrs>(op, [](const auto& a) { return a.k; });
      TermId right = t_.sub(t_.sub(index.back(), index[index.size() - 2]), k);
      if (op.kind == OpKind::Tril) right = t_.negative(right);
      const TermId bracket = s_.at_least_zero(right);
      return bracket == Terms::kZero ? bracket : t_.mul(bracket, finite(at(x, index)));
    }
    case OpKind::Gather: {
      const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
      const size_t rank = g_.type(op.inputs[1]).shape.size();
      const auto begin = index.begin() + long(axis), end = begin + long(rank);
      const TermId wanted = finite(at(op.inputs[1], Index(begin, end)));
      if (!s_.is_position(wanted) || s_.inside(wanted, shape(x)[axis]) != Terms::kOne)
        throw NoTerms{"an index that is computed from data"};
      from.assign(index.begin(), begin);
      from.push_back(wanted);
      from.insert(from.end(), end, index.end());
      return at(x, from);
    }
    default: break;
    }
    if (const auto reads = axis_reads(op.kind, op.attrs, g_.type(x).rank(), g_.type(t).rank())) {
      const std::vector<TermId> extents = shape(x), to = shape(t);
      from.assign(extents.size(), Terms::kZero);
      for (size_t d = 0; d < from.size(); ++d) {
        const int axis = (*reads)[d].axis;
        if (axis < 0 || extents[d] == Terms::kOne) continue;
        from[d] = index[size_t(axis)];
        if (!(extents[d] == to[size_t(axis)])) from[d] = s_.divided(from[d], extents[d]).second;
      }
      return at(x, from);
    }
    throw NoTerms{std::string("the operator ") + name(op.kind)};
  }

  Sums& s_;
  Terms& t_;
  SymbolicExtents& extents_;
  const InstanceGraphs& all_;
  const Graph& g_;
  std::map<uint32_t, std::map<Index, TermId>> known_;
  int steps_ = 0;
};

// The axes of inputs that are not one number, smaller ones first.
std::vector<Numbers64> varying_axes(const InstanceGraphs& all) {
  std::set<Numbers64> found;
  for (size_t i = 0; i < all[0].inputs().size(); ++i)
    for (size_t d = 0; d < all[0].type(all[0].inputs()[i]).shape.size(); ++d) {
      const Numbers64 v = extents_at(all, all[0].inputs()[i], d);
      if (!is_one_number(v)) found.insert(v);
    }
  return {found.begin(), found.end()};
}

// But for the numbers that Program reads in all instances.
bool same_attributes(const Op& a, const Op& b) {
  return std::visit(
      [&]<class A>(const A& x) {
        const A& y = std::get<A>(b.attrs);
        if constexpr (std::same_as<A, IotaAttrs>)
          return x.axis == y.axis;
        else if constexpr (std::same_as<A, PadAttrs>)
          return x.value == y.value;
        else
          return std::same_as<A, ConstAttrs> || std::same_as<A, ShapeAttrs> ||
                 std::same_as<A, SliceAttrs> || std::same_as<A, RepeatAttrs> ||
                 std::same_as<A, DiagonalAttrs> || x == y;
      },
      a.attrs);
}

bool alike(const Graph& a, const Graph& b) {
  if (a.ops().size() != b.ops().size() || a.tensors().size() != b.tensors().size() ||
      a.outputs() != b.outputs() || a.inputs() != b.inputs())
    return false;
  for (size_t k = 0; k < a.ops().size(); ++k)
    if (a.ops()[k].kind != b.ops()[k].kind || a.ops()[k].inputs != b.ops()[k].inputs ||
        !same_attributes(a.ops()[k], b.ops()[k]))
      return false;
  for (size_t k = 0; k < a.tensors().size(); ++k) {
    const Type &x = a.tensors()[k].type, &y = b.tensors()[k].type;
    if (x.dtype != y.dtype || x.rank() != y.rank()) return false;
    for (size_t d = 0; d < x.shape.size(); ++d)  // an extent of 1 broadcasts
      if (x.shape[d].is_one() != y.shape[d].is_one()) return false;
  }
  return true;
}

// From where on every extent is at least 1, for symbols that occur alone: N − 2 asks for N >= 3.
void raise(std::map<Numbers64, int64_t>& least, const InstanceGraphs& all) {
  for (size_t t = 0; t < all[0].tensors().size(); ++t)
    for (size_t d = 0; d < all[0].tensors()[t].type.shape.size(); ++d)
      for (auto& [values, low] : least)
        if (const auto off = offset(extents_at(all, TensorId(t), d), values);
            off && *off < 0 && *off > -kLargestOffset)
          low = std::max(low, 1 - *off);
}

std::string told(const InstanceGraphs& all, const SymbolicExtents& extents,
                 const SymbolNames& names) {
  static const char* const kNames[] = {"N", "M", "K", "L", "P", "Q", "R", "S"};
  std::vector<std::string> called;
  for (size_t k = 0; k < extents.symbols().size(); ++k) {
    called.push_back(k < std::size(kNames) ? kNames[k] : "N" + std::to_string(k));
    for (const auto& [name, values] : names)
      if (values == extents.symbols()[k].values) called[k] = name;
  }
  const auto axis = [&](const Numbers64& v) {
    for (size_t k = 0; k < called.size(); ++k)
      if (const auto off = offset(v, extents.symbols()[k].values))
        return called[k] + (*off > 0 ? "+" : "") + (*off != 0 ? std::to_string(*off) : "");
    return is_one_number(v) ? std::to_string(v[0]) : std::string("...");  // made of the others
  };
  std::string text;
  for (TensorId t : all[0].inputs()) {
    text += (text.empty() ? "" : " ") + all[0].tensor(t).name + "[";
    for (size_t d = 0; d < all[0].type(t).shape.size(); ++d)
      text += (d ? "," : "") + axis(extents_at(all, t, d));
    text += "]";
  }
  for (size_t k = 0; k < called.size(); ++k)
    text += (k ? ", " : " with ") + called[k] + " >= " + std::to_string(extents.symbols()[k].least);
  return text;
}

void add_symbols(const Graph& g, std::vector<std::string>& all) {
  for (const Tensor& t : g.tensors())
    for (const Dim& d : t.type.shape)
      if (d.symbolic())
        for (const std::string& s : SymbolicExtent(d).symbols())
          if (std::ranges::find(all, s) == all.end()) all.push_back(s);
  for (const Graph& body : g.bodies()) add_symbols(body, all);
}

}  // namespace

std::vector<std::string> symbols_of(const std::vector<const Graph*>& programs) {
  std::vector<std::string> all;
  for (const Graph* g : programs) add_symbols(*g, all);
  return all;
}

AllSizes equal_for_all_sizes(const InstanceGraphs& a, const InstanceGraphs& b,
                             const SymbolNames& names) {
  CHECK(a.size() == b.size() && a.size() >= 3) << "instances of a program of any sizes";
  try {
    for (size_t k = 1; k < a.size(); ++k)
      if (!alike(a[0], a[k]) || !alike(b[0], b[k]))
        throw NoTerms{"a program that is another one at other sizes"};
    const std::vector<Numbers64> axes = varying_axes(a);
    if (axes.empty()) return {false, kNoSizes};
    Sums sums(1);
    SymbolicExtents extents(sums);
    std::map<Numbers64, int64_t> least;
    for (const Numbers64& v : axes) least[v] = 1;
    raise(least, a);
    raise(least, b);
    for (const Numbers64& v : axes)
      if (!extents.read(v)) extents.add_symbol(v, least[v]);
    ProgramElements left(sums, extents, a), right(sums, extents, b);
    for (size_t k = 0; k < a[0].outputs().size(); ++k) {
      const TensorId ta = a[0].outputs()[k], tb = b[0].outputs()[k];
      ProgramElements::Index index;
      for (TermId extent : left.shape(ta))
        index.push_back(extent == Terms::kOne ? Terms::kZero : sums.position(extent));
      if (left.shape(ta) != right.shape(tb)) throw NoTerms{"results of different shapes"};
      const TermId x = left.at(ta, index), y = right.at(tb, index);
      if (x == y) continue;
      if (infinite(x) || infinite(y) || !sums.terms().equal(sums.resolved(x), sums.resolved(y)))
        throw NoTerms{"normal forms that differ"};
    }
    return {true, told(a, extents, names)};
  } catch (const NoTerms& e) {
    return {false, e.why};
  }
}

AllSizes equal_for_all_sizes(const Graph& a, const Graph& b, uint64_t seed) {
  SymbolNames names;
  for (const std::string& s : symbols_of({&a, &b})) names.emplace_back(s, Numbers64());
  Rng rng(seed);
  InstanceGraphs left, right;
  try {
    for (int k = 0; k < kInstances; ++k) {
      std::vector<std::pair<std::string, int64_t>> binding;
      for (auto& [name, values] : names) {
        values.push_back(rng.between(40, 400));
        binding.emplace_back(name, values.back());
      }
      left.push_back(bind_symbols(a, binding));
      right.push_back(bind_symbols(b, binding));
    }
  } catch (const Error& e) {
    return {false, e.message()};
  }
  return equal_for_all_sizes(left, right, names);
}

}  // namespace tessera
