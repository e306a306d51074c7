#include "search/fold/repeats.h"

#include <algorithm>

#include "ir/axis_reads.h"
#include "ir/build.h"
#include "ir/window.h"

namespace tessera {
namespace {

// Of weights: elements of a table that is computed once.
constexpr int64_t kMostTable = 1 << 22;
constexpr size_t kNoAxis = SIZE_MAX;

// A value as operators that only move elements make it of `x`; `axis` of it is that of the value.
struct Repeated {
  TensorId x;
  size_t axis;
  std::vector<std::pair<OpId, size_t>> moves{};  // the last first, with the axis behind it
};

class Later {
 public:
  explicit Later(const Graph& program)
      : g_(program), out_(program.name()), to_(program.tensors().size()) {}

  std::optional<Graph> run() {
    for (const Op& op : g_.ops()) {
      const std::optional<TensorId> sooner = op.num_results == 1 ? done(op) : std::nullopt;
      if (sooner)
        to_[op.result().index] = *sooner;
      else
        copy_op(g_, op, out_, to_);
      found_ |= sooner.has_value();
      fixed_.resize(out_.tensors().size(), false);
      for (size_t i = known_; i < out_.ops().size(); ++i) {
        const Op& made = out_.ops()[i];
        const bool given = made.constant() || (is_input(made.kind) && g_.is_weight(op.result()));
        for (uint32_t r = 0; r < made.num_results; ++r)
          fixed_[made.result(r).index] =
              given || (!is_input(made.kind) &&
                        std::ranges::all_of(made.inputs, [&](TensorId t) { return fixed(t); }));
      }
      known_ = out_.ops().size();
    }
    if (!found_) return std::nullopt;
    for (TensorId t : g_.outputs()) out_.add_output(to_[t.index]);
    return without_dead_code(out_);
  }

 private:
  bool fixed(TensorId t) const { return fixed_[t.index]; }
  const Shape& shape(TensorId t) const { return out_.type(t).shape; }

  // Which axis of the operand is this one of the result, element for element.
  std::optional<size_t> before(const Op& op, size_t p) const {
    const Shape &x = shape(op.inputs[0]), &y = shape(op.result());
    if (p == kNoAxis) return p;
    size_t q = x.size();
    if (op.kind == OpKind::Gather) {
      const auto axis = size_t(std::get<AxisAttrs>(op.attrs).axis);
      const size_t n = shape(op.inputs[1]).size();
      if (p < axis) q = p;
      if (p >= axis + n) q = p - n + 1;
    } else if (op.kind == OpKind::Reshape) {
      const int64_t behind = num_elements(Shape(y.begin() + long(p) + 1, y.end()));
      for (size_t i = 0; i < x.size(); ++i)
        if (x[i] == y[p] && num_elements(Shape(x.begin() + long(i) + 1, x.end())) == behind) q = i;
    } else {
      const auto reads = axis_reads(op.kind, op.attrs, int(x.size()), int(y.size()));
      for (size_t i = 0; i < x.size(); ++i)
        if ((*reads)[i].axis == int(p)) q = i;
    }
    return q < x.size() && x[q] == y[p] ? std::optional(q) : std::nullopt;
  }

  // The smallest value that t repeats and that keeps the axis in its place from the end, or from
  // the front of as many axes.
  std::optional<Repeated> repeated(TensorId t, size_t axis, bool same_rank) const {
    Repeated now{t, axis};
    std::optional<Repeated> best;
    int64_t least = num_elements(shape(t));
    for (;;) {
      const Op& op = out_.producer(now.x);
      const bool moves = is_one_of(op.kind, OpKind::Repeat, OpKind::Broadcast, OpKind::Transpose,
                                   OpKind::Gather) ||
                         is_reshape(op.kind);
      const std::optional<size_t> q = moves ? before(op, now.axis) : std::nullopt;
      if (!q) return best;
      now.moves.emplace_back(out_.tensor(now.x).producer, now.axis);
      now.x = op.inputs[0], now.axis = *q;
      const Shape& s = shape(now.x);
      const int64_t n = num_elements(s);
      const bool in_place =
          axis == kNoAxis || (same_rank ? s.size() == shape(t).size() && *q == axis
                                        : s.size() > 1 && s.size() - *q == shape(t).size() - axis);
      if (in_place && (n < least || (fixed(now.x) && n <= kMostTable && n > least)))
        best = now, least = n;
    }
  }

  // The same moves of y, whose axis has another extent.
  TensorId again(const Repeated& r, TensorId y) {
    const Dim n = r.axis == kNoAxis ? Dim(1) : shape(y)[r.axis];
    for (size_t i = r.moves.size(); i-- > 0;) {
      const auto& [id, axis] = r.moves[i];
      const Op op = out_.op(id);
      Attrs attrs = op.attrs;
      if (auto* a = std::get_if<ShapeAttrs>(&attrs); a && axis != kNoAxis) a->shape[axis] = n;
      std::vector<TensorId> in = op.inputs;
      in[0] = y;
      y = out_.add(op.kind, in, attrs);
    }
    return y;
  }

  std::optional<TensorId> done(const Op& op) {
    if (has(op.kind, algebra::Pointwise)) return pointwise(op);
    if (op.kind != OpKind::Conv && (op.inputs.size() != 2 || !is_product(op.kind)))
      return std::nullopt;
    const TensorId x = to_[op.inputs[0].index], w = to_[op.inputs[1].index];
    const bool conv = op.kind == OpKind::Conv;
    if (fixed(x) || (conv ? !only_mixes(std::get<ConvAttrs>(op.attrs), shape(w))
                          : shape(w).size() != 2 || shape(x).size() < 2))
      return std::nullopt;
    const auto r = repeated(x, conv ? 1 : shape(x).size() - 1, conv);
    if (!r) return std::nullopt;
    return again(*r, out_.add(op.kind, {r->x, w}, op.attrs));
  }

  // Of one large value, and others that vary along one axis at most.
  std::optional<TensorId> pointwise(const Op& op) {
    std::vector<TensorId> in;
    for (TensorId t : op.inputs) in.push_back(to_[t.index]);
    const Shape all = g_.type(op.result()).shape;
    size_t large = in.size(), axis = kNoAxis;
    for (size_t k = 0; k < in.size(); ++k) {
      const Shape& s = shape(in[k]);
      if (s == all && large == in.size() && !fixed(in[k])) {
        large = k;
        continue;
      }
      for (size_t i = 0; i < s.size(); ++i) {
        if (s[i].is_one()) continue;
        const size_t own = all.size() - s.size() + i;
        if (axis != kNoAxis && axis != own) return std::nullopt;
        axis = own;
      }
    }
    if (large == in.size()) return std::nullopt;
    const auto r = repeated(in[large], axis, false);
    if (!r) return std::nullopt;
    const size_t behind = axis == kNoAxis ? 0 : all.size() - axis;
    for (size_t k = 0; k < in.size(); ++k) {
      const Shape s = shape(in[k]);
      if (k == large) {
        in[k] = r->x;
      } else if (s.size() > behind || num_elements(s) == 1) {
        Shape few(num_elements(s) > 1 ? behind : 0, 1);
        if (!few.empty()) few[0] = num_elements(s);
        if (!(few == s)) in[k] = build::reshape(out_, in[k], {few});
      }
    }
    return again(*r, out_.add(op.kind, in, op.attrs));
  }

  const Graph& g_;
  Graph out_;
  std::vector<TensorId> to_;
  std::vector<bool> fixed_;  // by value of the new program: computed of weights and constants alone
  size_t known_ = 0;
  bool found_ = false;
};

}  // namespace

std::optional<Graph> repeated_later(const Graph& program) { return Later(program).run(); }

bool only_mixes(const ConvAttrs& a, const Shape& w) {
  const std::vector<int64_t> zeros(w.size() - 2, 0), ones(w.size() - 2, 1);
  return a.low == zeros && a.high == zeros && a.strides == ones &&
         num_elements(w) == num_elements({w[0], w[1]});
}

}  // namespace tessera
