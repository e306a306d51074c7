#include "verify/opinion/elements.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "ir/block.h"
#include "ir/window.h"
#include "verify/decisions.h"

namespace tessera {
namespace {

constexpr int64_t kMaxTensorElements = 1 << 20;  // of one tensor

Elements make(std::vector<int64_t> shape, TermId fill = Terms::kZero) {
  Elements e;
  e.shape = std::move(shape);
  if (product_of(e.shape) > kMaxTensorElements) throw NoTerms{"a tensor has too many elements"};
  e.at.assign(size_t(product_of(e.shape)), fill);
  return e;
}

// Calls f(position) for every position of a shape, row-major.
template <class F> void each(const std::vector<int64_t>& shape, F f) {
  if (product_of(shape) == 0) return;
  std::vector<int64_t> at(shape.size(), 0);
  for (;;) {
    f(at);
    size_t d = shape.size();
    while (d-- > 0) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
    if (d == size_t(-1)) return;
  }
}

size_t offset(const std::vector<int64_t>& shape, const std::vector<int64_t>& at) {
  int64_t n = 0;
  for (size_t d = 0; d < shape.size(); ++d) n = n * shape[d] + at[d];
  return size_t(n);
}

// Elements that f gives by position.
template <class F> Elements each_of(const std::vector<int64_t>& shape, F f) {
  Elements out = make(shape);
  size_t i = 0;
  each(shape, [&](const std::vector<int64_t>& at) { out.at[i++] = f(at); });
  return out;
}

// Puts a part where it begins in a whole.
void place(Elements& whole, const Elements& part, const std::vector<int64_t>& begin) {
  size_t i = 0;
  each(part.shape, [&](std::vector<int64_t> at) {
    for (size_t d = 0; d < at.size(); ++d) at[d] += begin[d];
    whole.at[offset(whole.shape, at)] = part.at[i++];
  });
}

// The element that meets position `at` of a broadcast result.
TermId stretched(const Elements& x, const std::vector<int64_t>& at) {
  std::vector<int64_t> mine(x.shape.size());
  const size_t skip = at.size() - x.shape.size();
  for (size_t d = 0; d < mine.size(); ++d) mine[d] = x.shape[d] == 1 ? 0 : at[skip + d];
  return x.at[offset(x.shape, mine)];
}

std::vector<int64_t> broadcast_shape(const std::vector<const Elements*>& in) {
  size_t rank = most_of(size_t(0), in, [&](const Elements* x) { return x->shape.size(); });
  std::vector<int64_t> shape(rank, 1);
  for (const Elements* x : in)
    for (size_t back = 1; back <= x->shape.size(); ++back) {
      int64_t& extent = shape[rank - back];
      const int64_t mine = x->shape[x->shape.size() - back];
      if (extent == 1)
        extent = mine;
      else if (mine != 1 && mine != extent)
        throw NoTerms{"tiles of different sizes meet"};
    }
  return shape;
}

class Evaluation {
 public:
  Evaluation(Terms& terms, const Counts& counts, const Observer& observe)
      : n_(terms), counts_(counts), observe_(observe) {}

  std::vector<Elements> run(const Graph& g, const std::vector<Elements>& inputs,
                            const Graph& whole) {
    std::vector<Elements> values(g.tensors().size());
    for (size_t i = 0; i < inputs.size(); ++i) values[g.inputs()[i].index] = inputs[i];
    for (size_t i = 0; i < g.ops().size(); ++i) {
      const Op& op = g.ops()[i];
      if (is_input(op.kind)) continue;
      auto in = mapped(op.inputs, [&](TensorId t) -> const Elements* { return &values[t.index]; });
      if (is_kernel(op.kind)) {
        std::vector<Elements> results = kernel(g, op, in, whole.body(whole.ops()[i]));
        for (uint32_t r = 0; r < op.num_results; ++r)
          values[op.result(r).index] = std::move(results[r]);
      } else {
        values[op.result().index] = plain(g, op, in, whole, whole.ops()[i]);
      }
    }
    std::vector<Elements> outputs;
    for (TensorId t : g.outputs()) {
      Elements& e = outputs.emplace_back(values[t.index]);
      if (const DType d = g.type(t).dtype; is_integer(d))
        for (TermId& x : e.at) x = modulo(x, 8 * size_in_bytes(d));
    }
    return outputs;
  }

 private:
  using Values = std::vector<const Elements*>;

  // Whether it is 0 or 1.
  static bool is_truth(const Graph& g, TensorId t) {
    const Op& op = g.producer(t);
    return g.type(t).dtype == DType::Bool ||
           (op.kind == OpKind::Cast && g.type(op.inputs[0]).dtype == DType::Bool);
  }
  // Whether a result is known modulo 2^w where operand `k` is.
  static bool keeps_congruence(const Graph& g, const Op& op, size_t k) {
    if (op.kind == OpKind::Where) return k > 0;
    if (op.kind == OpKind::Gather) return k == 0;
    if (op.kind != OpKind::Cast)
      return has(op.kind, algebra::Ring) || has(op.kind, algebra::Movement);
    const DType from = g.type(op.inputs[0]).dtype, to = g.type(op.result()).dtype;
    return is_integer(to) && size_in_bytes(to) <= size_in_bytes(from);
  }
  // Whether integers that come of held ones are held.
  static bool keeps_held(const Graph& g, const Op& op) {
    if (op.kind == OpKind::Cast) return !keeps_congruence(g, op, 0);
    if (op.kind == OpKind::Sum)  // a count
      return is_truth(g, op.inputs[0]) && num_elements(g.type(op.inputs[0]).shape) <= INT8_MAX;
    return has(op.kind, algebra::Movement) || is_extremum(op.kind) || reduces_by_order(op.kind) ||
           is_one_of(op.kind, OpKind::Relu, OpKind::PoolMax, OpKind::Where, OpKind::Sign,
                     OpKind::Mod);
  }

  // Terms of integers are what they are modulo 2^w, under the laws of rings. What orders, divides
  // or widens them asks for the number that the type holds: an unknown function of that.
  Elements held(Elements x, DType d) {
    if (x.held || !is_integer(d)) return x;
    for (TermId& t : x.at) t = wrapped(t, d, 0);
    x.held = true;
    return x;
  }
  TermId wrapped(TermId t, DType d, int decided) {
    constexpr int kMostDecisions = 4;
    if (infinite(t)) throw NoTerms{"an integer that is the maximum of nothing"};
    const int bits = 8 * size_in_bytes(d);
    Terms& terms = n_.terms();
    if (const auto c = terms.as_constant(t); c && c->den == 1) {
      const __int128 low = d == DType::U8 ? 0 : -(__int128(1) << (bits - 1));
      if (c->num >= low && c->num < low + (__int128(1) << bits)) return t;
    }
    const Term sum = terms.term(t);
    if (const auto p = decided < kMostDecisions ? indicator_in(sum) : std::nullopt) {
      // p·a + b, where p is 0 or 1, is a + b or b.
      const TermId yes = wrapped(terms.decided(t, *p, true), d, decided + 1),
                   no = wrapped(terms.decided(t, *p, false), d, decided + 1);
      return n_.select(terms.of_atom(*p), yes, no);
    }
    if (sum.sum.size() == 1 && sum.sum[0].second == Fraction{1, 1}) {
      const std::vector<Factor>& factors = terms.monomial(sum.sum[0].first).factors;
      if (factors.size() == 1 && factors[0].power == 1)
        if (const auto e = wrapping(factors[0].atom);
            e && (*e == d || (*e == DType::U8 && bits > 8) ||
                  (d != DType::U8 && *e != DType::U8 && size_in_bytes(*e) <= size_in_bytes(d))))
          return t;
    }
    return terms.unknown(name(d), {modulo(t, bits)});
  }
  std::optional<uint32_t> indicator_in(const Term& t) {
    for (const auto& [m, c] : t.sum)
      for (const Factor& f : n_.terms().monomial(m).factors) {
        const AtomKind kind = n_.terms().atom(f.atom).kind;
        if (kind == AtomKind::Positive || kind == AtomKind::Zero) return f.atom;
      }
    return std::nullopt;
  }
  std::optional<DType> wrapping(uint32_t atom) {
    const Atom& a = n_.terms().atom(atom);
    return a.kind == AtomKind::Function ? dtype_from_name(a.name) : std::nullopt;
  }
  // An equal number modulo 2^bits, without what wraps at as many bits or more.
  TermId modulo(TermId t, int bits) {
    if (infinite(t)) throw NoTerms{"an integer that is the maximum of nothing"};
    Terms& terms = n_.terms();
    const Term sum = terms.term(t);
    std::vector<TermId> parts;
    for (const auto& [m, c] : sum.sum) {
      const Monomial whole = terms.monomial(m);
      TermId part = terms.mul(terms.number(c), terms.exp(whole.exponent));
      for (const Factor& f : whole.factors) {
        const auto d = f.power > 0 ? wrapping(f.atom) : std::nullopt;
        const bool looses = d && 8 * size_in_bytes(*d) >= bits;
        part = terms.mul(part, looses ? terms.power(terms.atom(f.atom).operands[0], f.power)
                                      : terms.of_atom(f.atom, f.power));
      }
      parts.push_back(part);
    }
    return terms.sum(parts);
  }

  Elements plain(const Graph& g, const Op& op, Values in, const Graph& whole, const Op& same_op) {
    if (n_.terms().stopped()) throw NoTerms{"the time is up"};
    std::vector<Elements> asked(in.size());
    bool all_held = true;  // as far as the result is one of the operands
    for (size_t k = 0; k < in.size(); ++k) {
      if (!keeps_congruence(g, op, k)) {
        asked[k] = held(*in[k], g.type(op.inputs[k]).dtype);
        in[k] = &asked[k];
      }
      all_held = all_held && (in[k]->held || g.type(op.inputs[k]).dtype == DType::Bool);
    }
    Elements out = operate(g, op, in, whole, same_op);
    out.held = all_held && !in.empty() && keeps_held(g, op);
    if (observe_ && !has(op.kind, algebra::Movement)) observe_(out.at);
    return out;
  }

  static void refuse_unless_held(const Graph& g, const Op& op, const Rational& value) {
    const DType d = g.type(op.result()).dtype;
    if (!is_float(d) && !holds(d, value)) throw NoTerms{"a constant that its type does not hold"};
  }
  Elements operate(const Graph& g, const Op& op, const Values& in, const Graph& whole,
                   const Op& same_op) {
    if (op.kind == OpKind::Cast)
      return converted(*in[0], g.type(op.inputs[0]).dtype, g.type(op.result()).dtype);
    if (has(op.kind, algebra::Pointwise)) {
      std::vector<TermId> operands(in.size());
      return each_of(broadcast_shape(in), [&](const std::vector<int64_t>& at) {
        for (size_t k = 0; k < in.size(); ++k) operands[k] = stretched(*in[k], at);
        return apply_pointwise(n_, op, operands, is_integer(g.type(op.inputs[0]).dtype));
      });
    }
    if (has(op.kind, algebra::Movement)) return arranged(g, op, in);
    if (is_reduction(op.kind)) return reduce(g, op, *in[0], whole, same_op);
    const std::vector<int64_t> shape = extents(g.type(op.result()).shape);
    if (is_windowed(op.kind)) return windows(g, op, in, shape);
    if (const Rational* value = op.constant()) {
      refuse_unless_held(g, op, *value);
      for (const auto& [from, to] : counts_.constants)
        if (*value == from) return make(shape, number(to));
      return make(shape, number(*value));
    }
    if (const auto* a = std::get_if<IotaAttrs>(&op.attrs))
      return each_of(shape, [&](const std::vector<int64_t>& at) {
        return n_.terms().integer(at[size_t(a->axis)]);
      });
    if (is_scan(op.kind)) return cumulative(*in[0], size_t(g.attrs<AxisAttrs>(op).axis));
    if (is_product(op.kind)) {
      const size_t n = in.size() / 2;
      Elements sum = matmul(*in[0], *in[n]);
      for (size_t k = 1; k < n; ++k) {
        const Elements more = matmul(*in[k], *in[k + n]);
        for (size_t i = 0; i < sum.at.size(); ++i) sum.at[i] = n_.add(sum.at[i], more.at[i]);
      }
      return sum;
    }
    CHECK(is_opaque(op.kind)) << "not a plain operator";
    throw NoTerms{"an opaque operator"};
  }

  Elements cumulative(Elements x, size_t axis) {
    size_t i = 0;
    each(x.shape, [&](std::vector<int64_t> at) {
      if (at[axis]-- > 0) x.at[i] = n_.add(x.at[offset(x.shape, at)], x.at[i]);
      ++i;
    });
    return x;
  }

  // The same elements in other places, some of them left out, repeated or joined by others.
  Elements arranged(const Graph& g, const Op& op, const Values& in) {
    const Elements& x = *in[0];
    // A result whose element at a position is the operand's at another one.
    const auto moved = [&](const std::vector<int64_t>& to, auto&& from) {
      return each_of(
          to, [&](const std::vector<int64_t>& at) { return x.at[offset(x.shape, from(at))]; });
    };
    switch (op.kind) {
    case OpKind::Transpose: {
      const auto& perm = g.attrs<PermAttrs>(op).perm;
      std::vector<int64_t> to = mapped(perm, [&](int p) { return x.shape[size_t(p)]; });
      return moved(to, [&](const std::vector<int64_t>& at) {
        std::vector<int64_t> from(at.size());
        for (size_t d = 0; d < at.size(); ++d) from[size_t(perm[d])] = at[d];
        return from;
      });
    }
    case OpKind::Reshape: {
      Elements out = x;
      out.shape = extents(g.type(op.result()).shape);
      if (product_of(out.shape) != int64_t(out.at.size()))
        throw NoTerms{"a reshape of a clipped tile"};
      return out;
    }
    case OpKind::Broadcast:
      return each_of(extents(g.type(op.result()).shape),
                     [&](const std::vector<int64_t>& at) { return stretched(x, at); });
    case OpKind::Unsqueeze: {
      Elements out = x;
      for (int axis : g.attrs<AxesAttrs>(op).axes) out.shape.insert(out.shape.begin() + axis, 1);
      return out;
    }
    case OpKind::Squeeze: {
      Elements out = x;
      const auto& axes = g.attrs<AxesAttrs>(op).axes;
      for (size_t i = axes.size(); i-- > 0;) out.shape.erase(out.shape.begin() + axes[i]);
      return out;
    }
    case OpKind::Repeat: {
      std::vector<int64_t> to = x.shape;
      for (size_t d = 0; d < to.size(); ++d) to[d] *= g.attrs<RepeatAttrs>(op).repeats[d];
      return moved(to, [&](std::vector<int64_t> at) {
        for (size_t d = 0; d < at.size(); ++d) at[d] %= x.shape[d];
        return at;
      });
    }
    case OpKind::Slice: {
      const auto& a = g.attrs<SliceAttrs>(op);
      std::vector<int64_t> to;
      for (size_t d = 0; d < a.starts.size(); ++d)
        to.push_back(ceil_div(a.stops[d] - a.starts[d], a.steps[d]));
      return moved(to, [&](std::vector<int64_t> at) {
        for (size_t d = 0; d < at.size(); ++d) at[d] = a.starts[d] + at[d] * a.steps[d];
        return at;
      });
    }
    case OpKind::Pad: {
      const auto& a = g.attrs<PadAttrs>(op);
      std::vector<int64_t> to = x.shape;
      for (size_t d = 0; d < to.size(); ++d) to[d] += a.low[d] + a.high[d];
      refuse_unless_held(g, op, a.value);
      Elements out = make(to, number(a.value));
      place(out, x, a.low);
      return out;
    }
    case OpKind::Triu:
    case OpKind::Tril: {
      const int64_t k = g.attrs<DiagonalAttrs>(op).k;
      return each_of(x.shape, [&](const std::vector<int64_t>& at) {
        const int64_t diagonal = at[at.size() - 1] - at[at.size() - 2];
        const bool zero = op.kind == OpKind::Triu ? diagonal < k : diagonal > k;
        return zero ? Terms::kZero : x.at[offset(x.shape, at)];
      });
    }
    case OpKind::Gather: return gather(x, *in[1], g.attrs<AxisAttrs>(op).axis);
    default: return join(op.kind == OpKind::Stack, g.attrs<AxisAttrs>(op).axis, in);
    }
  }

  Elements converted(Elements x, DType from, DType to) {
    for (TermId& t : x.at) {
      if (to == DType::Bool && from != to) t = n_.logical_not(n_.same(t, Terms::kZero));
      if (is_float(from) && is_integer(to))
        t = n_.terms().unknown(std::string("to ") + name(to), {n_.finite(t)});
    }
    return x;
  }

  // Sums, sums of products with weights, or maxima of what windows see.
  Elements windows(const Graph& g, const Op& op, const Values& in,
                   const std::vector<int64_t>& shape) {
    const std::vector<WindowAxis> axes = window_axes(g, op);
    const size_t lead = shape.size() - axes.size();
    const Elements& x = *in[0];
    const bool transposed = op.kind == OpKind::ConvTranspose;
    std::vector<int64_t> taps = mapped(axes, &WindowAxis::taps);
    return each_of(shape, [&](const std::vector<int64_t>& at) {
      std::vector<TermId> seen;
      each(taps, [&](const std::vector<int64_t>& tap) {
        std::vector<int64_t> from = at;
        for (size_t d = 0; d < axes.size(); ++d) {
          const WindowAxis& a = axes[d];
          int64_t& p = from[lead + d];
          p = transposed ? p + a.low - tap[d] * a.dilation
                         : p * a.stride + tap[d] * a.dilation - a.low;
          if (transposed && p % a.stride != 0) return;
          if (transposed) p /= a.stride;
          if (p < 0 || p >= a.in) return;
        }
        if (in.size() == 1) return seen.push_back(x.at[offset(x.shape, from)]);
        // Channels of the result's group: x [N, G·C, …], weights [G·F, C, …], transposed [G·C, F,
        // …].
        const int64_t groups = g.attrs<ConvAttrs>(op).groups, of_x = x.shape[1] / groups,
                      of_result = shape[1] / groups;
        for (int64_t k = 0; k < of_x; ++k) {
          from[1] = at[1] / of_result * of_x + k;
          std::vector<int64_t> weight{at[1], k};
          if (transposed) weight = {from[1], at[1] % of_result};
          weight.insert(weight.end(), tap.begin(), tap.end());
          seen.push_back(
              n_.mul(x.at[offset(x.shape, from)], in[1]->at[offset(in[1]->shape, weight)]));
        }
      });
      return decides(op) ? n_.max(seen) : n_.sum(seen);
    });
  }

  TermId number(const Rational& c) {
    if (c.finite()) return n_.terms().constant(c);
    if (c.num() == 0) throw NoTerms{"a constant that is not a number"};
    return c.negative() ? kMinusInfinity : kPlusInfinity;
  }

  Elements reduce(const Graph& g, const Op& op, const Elements& x, const Graph& whole,
                  const Op& same_op) {
    const auto& a = g.attrs<ReduceAttrs>(op);
    std::vector<int64_t> kept = x.shape;
    for (int axis : a.axes) kept[size_t(axis)] = 1;
    std::vector<std::vector<TermId>> groups(size_t(product_of(kept)));
    size_t i = 0;
    each(x.shape, [&](std::vector<int64_t> at) {
      for (int axis : a.axes) at[size_t(axis)] = 0;
      groups[offset(kept, at)].push_back(x.at[i++]);
    });
    TermId share = Terms::kOne;
    if (op.kind == OpKind::Mean) {
      int64_t n = 1;
      for (int axis : a.axes) {
        const auto d = size_t(axis);
        const int64_t nominal = g.type(op.inputs[0]).shape[d].extent;
        const int64_t full = whole.type(same_op.inputs[0]).shape[d].extent;
        n *= nominal == full ? x.shape[d] : full;  // of a smaller instance all tiles are full
      }
      if (n == 0) throw NoTerms{"the mean of nothing"};
      share = n_.terms().constant(Rational::ratio(1, n));
    }
    Elements out = make(kept);
    const auto fold = fold_of(op.kind);
    for (size_t k = 0; k < groups.size(); ++k)
      out.at[k] = fold == AccumKind::Max   ? n_.max(groups[k])
                  : fold == AccumKind::Min ? n_.min(groups[k])
                                           : n_.mul(n_.sum(groups[k]), share);
    if (!a.keepdims)
      for (size_t k = a.axes.size(); k-- > 0;) out.shape.erase(out.shape.begin() + a.axes[k]);
    return out;
  }

  Elements matmul(const Elements& x, const Elements& y) {
    const size_t rx = x.shape.size(), ry = y.shape.size();
    const int64_t depth = x.shape[rx - 1];
    if (depth != y.shape[ry - 2]) throw NoTerms{"tiles of different sizes meet"};
    Elements batch_x, batch_y;
    batch_x.shape.assign(x.shape.begin(), x.shape.end() - 2);
    batch_y.shape.assign(y.shape.begin(), y.shape.end() - 2);
    std::vector<int64_t> shape = broadcast_shape({&batch_x, &batch_y});
    const size_t batches = shape.size();
    shape.push_back(x.shape[rx - 2]);
    shape.push_back(y.shape[ry - 1]);
    return each_of(shape, [&](const std::vector<int64_t>& at) {
      std::vector<int64_t> ax(at.begin(), at.begin() + long(batches)), ay = ax;
      ax.push_back(at[batches]);
      ax.push_back(0);
      ay.push_back(0);
      ay.push_back(at[batches + 1]);
      std::vector<TermId> terms;
      // Aligned at the end, as broadcasting is.
      for (int64_t k = 0; k < depth; ++k) {
        ax.back() = k;
        ay[ay.size() - 2] = k;
        terms.push_back(n_.mul(stretched_exactly(x, ax), stretched_exactly(y, ay)));
      }
      return n_.sum(terms);
    });
  }
  // As stretched(), but the innermost two axes never repeat.
  static TermId stretched_exactly(const Elements& x, const std::vector<int64_t>& at) {
    std::vector<int64_t> mine(x.shape.size());
    const size_t skip = at.size() - x.shape.size();
    for (size_t d = 0; d < mine.size(); ++d)
      mine[d] = d + 2 < mine.size() && x.shape[d] == 1 ? 0 : at[skip + d];
    return x.at[offset(x.shape, mine)];
  }

  static Elements join(bool stack, int axis, const Values& in) {
    const auto along = size_t(axis);
    std::vector<Elements> parts;
    std::vector<int64_t> shape;
    for (const Elements* x : in) {
      parts.push_back(*x);
      if (stack) parts.back().shape.insert(parts.back().shape.begin() + axis, 1);
      if (shape.empty()) {
        shape = parts.back().shape;
        shape[along] = 0;
      }
      shape[along] += parts.back().shape[along];
    }
    Elements out = make(shape);
    std::vector<int64_t> begin(shape.size(), 0);
    for (const Elements& p : parts) {
      place(out, p, begin);
      begin[along] += p.shape[along];
    }
    return out;
  }

  // At an unknown index: Σ over all positions of [index = position]·x, indices being in range and
  // negative ones counting from the end.
  Elements gather(const Elements& x, const Elements& index, int axis) {
    const auto along = size_t(axis);
    const int64_t extent = x.shape[along];
    std::vector<int64_t> shape(x.shape.begin(), x.shape.begin() + axis);
    shape.insert(shape.end(), index.shape.begin(), index.shape.end());
    shape.insert(shape.end(), x.shape.begin() + axis + 1, x.shape.end());
    Terms& t = n_.terms();
    return each_of(shape, [&](const std::vector<int64_t>& at) {
      const std::vector<int64_t> which(at.begin() + axis,
                                       at.begin() + axis + long(index.shape.size()));
      std::vector<int64_t> from(at.begin(), at.begin() + axis);
      from.push_back(0);
      from.insert(from.end(), at.begin() + axis + long(index.shape.size()), at.end());
      auto element = [&](int64_t k) {
        from[along] = k;
        return x.at[offset(x.shape, from)];
      };
      const TermId wanted = index.at[offset(index.shape, which)];
      if (const auto c = t.as_constant(wanted); c && c->den == 1) {
        const auto k = int64_t(c->num < 0 ? c->num + extent : c->num);
        if (k < 0 || k >= extent) throw NoTerms{"an index out of range"};
        return element(k);
      }
      std::vector<TermId> parts;
      for (int64_t k = 0; k < extent; ++k) {
        const TermId here =
            t.add(n_.same(wanted, t.integer(k)), n_.same(wanted, t.integer(k - extent)));
        parts.push_back(n_.mul(here, element(k)));
      }
      return n_.sum(parts);
    });
  }

  // --- kernels: every value of a block as a function of the iteration, computed when asked for

  struct Block {
    const Graph& g;
    const Graph& whole;
    const Values& arguments;
    std::vector<Phase> phase;
    std::vector<int64_t> index;
    // By tensor and the iteration of the loops it varies with.
    std::map<std::pair<uint32_t, std::vector<int64_t>>, Elements> known;
  };

  // Calls f(iteration) for all iterations of the loops in `mask`, the others being as in `fixed`.
  template <class F>
  static void iterations(const Graph& g, uint8_t mask, const std::vector<int64_t>& fixed, F f) {
    std::vector<int64_t> counts;
    for (size_t l = 0; l < g.loops().size(); ++l)
      counts.push_back(mask >> l & 1 ? g.loops()[l] : 1);
    each(counts, [&](const std::vector<int64_t>& at) {
      std::vector<int64_t> now = fixed;
      for (size_t l = 0; l < at.size(); ++l)
        if (mask >> l & 1) now[l] = at[l];
      f(now);
    });
  }

  std::vector<Elements> kernel(const Graph& outer, const Op& op, const Values& in,
                               const Graph& whole) {
    const Graph& g = outer.body(op);
    std::vector<Elements> results;
    for (uint32_t r = 0; r < op.num_results; ++r)
      results.push_back(make(extents(outer.type(op.result(r)).shape), kUnwritten));
    for (Elements& r : results) r.held = true;  // unless a tile is not
    Block b{g, whole, in, phases(g), {}, {}};
    each(g.grid(), [&](const std::vector<int64_t>& index) {
      b.index = index;
      b.known.clear();
      for (size_t r = 0; r < results.size(); ++r) {
        const Op& save = g.producer(g.outputs()[r]);
        const auto& a = g.attrs<SaveAttrs>(save);
        const std::vector<int64_t> none(g.loops().size(), 0);
        iterations(g, b.phase[save.inputs[0].index].varies, none,
                   [&](const std::vector<int64_t>& now) {
                     const Elements& v = value(b, save.inputs[0], now);
                     store(results[r], v, tile(results[r].shape, a.omap, a.fmap, g, b.index, now));
                   });
      }
    });
    for (const Elements& r : results)
      if (std::ranges::find(r.at, kUnwritten) != r.at.end())
        throw NoTerms{"a kernel does not write all of its result"};
    return results;
  }

  static void store(Elements& to, const Elements& v, const std::vector<Interval>& where) {
    std::vector<int64_t> begin;
    for (size_t d = 0; d < where.size(); ++d) {
      if (where[d].size() != v.shape[d]) throw NoTerms{"a saved tile of another size"};
      begin.push_back(where[d].begin);
    }
    place(to, v, begin);
    to.held = to.held && v.held;
  }

  const Elements& value(Block& b, TensorId t, std::vector<int64_t> now) {
    const uint8_t varies = b.phase[t.index].varies;
    for (size_t l = 0; l < now.size(); ++l)
      if (!(varies >> l & 1)) now[l] = 0;
    const auto key = std::pair(uint32_t(t.index), now);
    if (auto it = b.known.find(key); it != b.known.end()) return it->second;
    const Op& op = b.g.producer(t);
    Elements v = compute(b, op, uint32_t(t.index - op.first_result.index), now);
    return b.known.emplace(key, std::move(v)).first->second;
  }

  Elements compute(Block& b, const Op& op, uint32_t result, const std::vector<int64_t>& now) {
    const size_t number = size_t(&op - b.g.ops().data());
    if (is_load(op.kind)) {
      size_t argument = 0;
      while (b.g.inputs()[argument] != op.inputs[0]) ++argument;
      const Elements& x = *b.arguments[argument];
      const auto& a = b.g.attrs<IterAttrs>(op);
      const auto where = tile(x.shape, a.imap, a.fmap, b.g, b.index, now);
      std::vector<int64_t> shape = mapped(where, [&](const Interval& i) { return i.size(); });
      Elements out = each_of(shape, [&](std::vector<int64_t> at) {
        for (size_t d = 0; d < at.size(); ++d) at[d] += where[d].begin;
        return x.at[offset(x.shape, at)];
      });
      out.held = x.held;
      return out;
    }
    if (is_accumulator(op.kind)) return fold(b, op, now);
    std::vector<Elements> own;
    own.reserve(op.inputs.size());
    for (TensorId t : op.inputs) own.push_back(value(b, t, now));
    Values in;
    for (const Elements& e : own) in.push_back(&e);
    if (!is_thread(op.kind)) return plain(b.g, op, in, b.whole, b.whole.ops()[number]);
    const Graph& body = b.g.body(op);
    const Graph& whole = b.whole.body(b.whole.ops()[number]);
    std::vector<Elements> values(body.tensors().size());
    for (size_t i = 0; i < own.size(); ++i) values[body.inputs()[i].index] = own[i];
    for (size_t k = 0; k < body.ops().size(); ++k) {
      const Op& o = body.ops()[k];
      if (is_input(o.kind)) continue;
      Values operands;
      for (TensorId t : o.inputs) operands.push_back(&values[t.index]);
      values[o.result().index] = plain(body, o, operands, whole, whole.ops()[k]);
    }
    return values[body.outputs()[result].index];
  }

  Elements fold(Block& b, const Op& op, const std::vector<int64_t>& now) {
    const auto& a = b.g.attrs<AccumAttrs>(op);
    uint8_t loops = 0, varies = 0;
    for (int l : a.loops) loops |= uint8_t(1u << l);
    for (TensorId t : op.inputs) varies |= b.phase[t.index].varies;
    const bool rescales = op.inputs.size() == 2;
    std::vector<Elements> parts, scales;
    iterations(b.g, loops & varies, now, [&](const std::vector<int64_t>& at) {
      parts.push_back(value(b, op.inputs[0], at));
      if (rescales) scales.push_back(value(b, op.inputs[1], at));
    });
    if (!rescales && a.kind == AccumKind::Concat) {
      Values in;
      for (const Elements& p : parts) in.push_back(&p);
      return join(false, a.axis, in);
    }
    const bool ordered = a.kind == AccumKind::Max || a.kind == AccumKind::Min;
    if (!rescales && ordered)
      for (Elements& p : parts) p = held(std::move(p), b.g.type(op.inputs[0]).dtype);
    Elements out = parts[0];
    out.held = ordered;
    for (const Elements& p : parts)
      if (p.shape != out.shape) throw NoTerms{"an accumulator of tiles of different sizes"};
    size_t i = 0;
    each(out.shape, [&](const std::vector<int64_t>& position) {
      std::vector<TermId> terms, tops;
      for (const Elements& p : parts) terms.push_back(p.at[i]);
      if (rescales) {
        for (const Elements& s : scales) tops.push_back(stretched(s, position));
        const TermId top = n_.max(tops);
        if (infinite(top)) throw NoTerms{"rescaling by ∞"};
        for (size_t k = 0; k < terms.size(); ++k)
          terms[k] = tops[k] == kMinusInfinity
                         ? Terms::kZero
                         : n_.mul(terms[k], n_.exp(n_.add(tops[k], n_.negative(top))));
      }
      out.at[i++] = rescales || a.kind == AccumKind::Sum ? n_.sum(terms)
                    : a.kind == AccumKind::Max           ? n_.max(terms)
                                                         : n_.min(terms);
    });
    return out;
  }

  static constexpr TermId kUnwritten = UINT32_MAX - 3;
  Numbers n_;
  const Counts& counts_;
  const Observer& observe_;
};

}  // namespace

std::vector<Elements> variables(Terms& terms, const Graph& g) {
  std::vector<Elements> inputs;
  int64_t next = 0;
  for (TensorId t : g.inputs()) {
    Elements e = make(extents(g.type(t).shape));
    e.held = true;
    for (TermId& x : e.at) {
      x = terms.variable(next++);
      if (g.type(t).dtype == DType::Bool) x = terms.positive(x);
    }
    inputs.push_back(std::move(e));
  }
  return inputs;
}

std::vector<Elements> evaluate(Terms& terms, const Graph& g, const std::vector<Elements>& inputs,
                               const Counts& counts, const Observer& observe) {
  return Evaluation(terms, counts, observe).run(g, inputs, counts.whole ? *counts.whole : g);
}

}  // namespace tessera
