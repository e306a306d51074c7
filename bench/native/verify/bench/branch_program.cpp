#include "verify/bench/branch_program.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "eval/eval.h"
#include "verify/bench/edit.h"
#include "verify/bench/random_program.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

BranchValue binary(OpKind kind, BranchValue a, BranchValue b) {
  return {a.in, a.in->graph().add(kind, {a.t, b.t})};
}
BranchValue binary(OpKind kind, BranchValue a, double b) {
  return binary(kind, a, a.in->constant(b, a.in->type(a).dtype));
}

}  // namespace

#define BINARY(name, kind)                                                                         \
  BranchValue name(BranchValue a, BranchValue b) { return binary(OpKind::kind, a, b); }
#define WITH_CONSTANT(name, kind)                                                                  \
  BINARY(name, kind)                                                                               \
  BranchValue name(BranchValue a, double b) { return binary(OpKind::kind, a, b); }
WITH_CONSTANT(operator+, Add)
WITH_CONSTANT(operator-, Sub)
WITH_CONSTANT(operator*, Mul)
BINARY(operator/, Div)
WITH_CONSTANT(operator<, Lt)
WITH_CONSTANT(operator<=, Le)
WITH_CONSTANT(operator>, Gt)
WITH_CONSTANT(operator>=, Ge)
WITH_CONSTANT(operator==, Eq)
WITH_CONSTANT(operator!=, Ne)
BINARY(operator&, And)
BINARY(operator|, Or)
WITH_CONSTANT(max, Max)
WITH_CONSTANT(min, Min)
#undef WITH_CONSTANT
#undef BINARY

BranchValue apply(OpKind kind, BranchValue a, Attrs attrs) {
  return {a.in, a.in->graph().add(kind, {a.t}, std::move(attrs))};
}
BranchValue operator-(BranchValue a) { return apply(OpKind::Neg, a); }
BranchValue operator!(BranchValue a) { return apply(OpKind::Not, a); }
BranchValue cast(BranchValue a, DType dtype) { return apply(OpKind::Cast, a, CastAttrs{dtype}); }
BranchValue where(BranchValue c, BranchValue a, BranchValue b) {
  return {a.in, a.in->graph().add(OpKind::Where, {c.t, a.t, b.t})};
}

Branch::Branch(Graph& g, TensorId of, const std::vector<TensorId>& given, uint64_t seed,
               bool is_changed, Witness* witness)
    : changed(is_changed), rng(seed), value{this, of}, at(0), g_(g), type_(g.type(of)),
      given_(given), witness_(witness) {
  at = int64_t(rng.below(uint64_t(size())));
}

int64_t Branch::rows() const {
  if (type_.rank() < 2) throw NoPlace{};
  return type_.shape[type_.shape.size() - 2].extent;
}
int64_t Branch::columns() const {
  if (type_.rank() < 1) throw NoPlace{};
  return type_.shape.back().extent;
}

BranchValue Branch::input(Type type) {
  return {this, g_.add_input(std::move(type), "b" + std::to_string(g_.inputs().size()))};
}
BranchValue Branch::operand() {
  std::vector<TensorId> fit;
  for (TensorId t : given_)
    if (g_.type(t) == type_) fit.push_back(t);
  if (fit.empty() || rng.chance(0.5)) return input(type_);
  const TensorId t = fit[rng.below(fit.size())];
  std::erase(given_, t);
  return {this, t};
}
BranchValue Branch::constant(double x, DType dtype) {
  return {this, g_.add_const(Rational::from_double(x), {dtype, {}})};
}
BranchValue Branch::iota(int axis_from_end, DType dtype) {
  if (type_.rank() < axis_from_end) throw NoPlace{};
  const int axis = type_.rank() - axis_from_end;
  return {this, g_.add(OpKind::Iota, {}, IotaAttrs{axis, {dtype, type_.shape}})};
}

double Branch::representable(double x) const {
  return real() ? round_to(type_.dtype, x) : double(wrap_to(type_.dtype, int64_t(x)));
}
double Branch::fraction() {
  const double x = double(rng.between(-40, 40));
  return real() ? x / 8 : std::fabs(x);
}
double Branch::far() {
  switch (type_.dtype) {
  case DType::F64:
  case DType::F32:
  case DType::BF16: return representable(std::pow(10.0, double(rng.between(4, 18))));
  case DType::F16: return representable(double(rng.between(3000, 30000)));
  case DType::I64: return double(rng.between(100000, int64_t(1) << 50));
  case DType::I32: return double(rng.between(100000, 1 << 29));
  case DType::I8: return double(rng.between(50, 62));
  case DType::U8: return double(rng.between(90, 126));
  case DType::Bool: break;
  }
  throw NoPlace{};
}

BranchValue Branch::other() {
  if (!other_) other_ = value + value + 3.0;
  return *other_;
}

// Bools are reduced as numbers.
BranchValue Branch::all(BranchValue c) {
  return apply(OpKind::ReduceMin, cast(c, DType::I32), ReduceAttrs{{type(c).rank() - 1}, true}) ==
         1.0;
}
BranchValue Branch::any(BranchValue c) {
  return apply(OpKind::ReduceMax, cast(c, DType::I32), ReduceAttrs{{type(c).rank() - 1}, true}) ==
         1.0;
}
BranchValue Branch::count(BranchValue c) {
  return apply(OpKind::Sum, cast(c, DType::I64), ReduceAttrs{{type(c).rank() - 1}, true});
}

void Branch::show(BranchValue input, int64_t element, double x) {
  const auto& all = g_.inputs();
  const auto number = uint32_t(std::find(all.begin(), all.end(), input.t) - all.begin());
  if (witness_) (*witness_)[number][element] = x;
}
void Branch::show_all(BranchValue input, double x) {
  for (int64_t i = 0; i < num_elements(type(input).shape); i++) show(input, i, x);
}

namespace {

// The random program around the branch.
Graph context(BranchKind::Domain domain, Rng& rng) {
  RandomProgramOptions o;
  const DType floats[] = {DType::F32, DType::F32, DType::F64, DType::F16, DType::F32};
  o.dtype = floats[rng.below(5)];
  o.kernel_chance = 0.2;
  o.min_ops = 1, o.max_ops = 5;
  o.max_extent = 5;
  const bool integers =
      domain == BranchKind::Integers || (domain == BranchKind::Any && rng.chance(0.3));
  for (;;) {
    Graph g = random_program(rng(), o);
    if (is_float(g.type(g.inputs()[0]).dtype) != integers) return g;
  }
}

Graph plant(const BranchKind& kind, const Graph& around, OpId site, uint64_t seed, bool changed,
            Branch::Witness* witness) {
  Graph out("branch");
  std::vector<TensorId> map(around.tensors().size());
  std::vector<TensorId> given;
  for (size_t i = 0; i < around.ops().size(); i++) {
    const Op& op = around.ops()[i];
    copy_op(around, op, out, map);
    if (op.kind == OpKind::Input) given.push_back(map[op.result().index]);
    if (OpId(i) == site) {
      Branch b(out, map[op.result().index], given, seed, changed, witness);
      const BranchValue made = kind.make(b);
      if (!(out.type(made.t) == around.type(op.result()))) throw NoPlace{};
      map[op.result().index] = made.t;
    }
  }
  for (TensorId t : around.outputs()) out.add_output(map[t.index]);
  return seed % 4 == 0 ? out : without_dead_code(out);  // some hold what they do not use
}

struct Planted {
  BranchPair pair;
  Branch::Witness witness;
};

std::optional<Planted> planted(const BranchKind& kind, uint64_t seed) {
  Rng rng(seed);
  const Graph around = context(kind.domain, rng);
  std::vector<OpId> sites;
  for (size_t i = 0; i < around.ops().size(); i++) {
    const Op& op = around.ops()[i];
    const Type& type = around.type(op.result());
    const bool fits = kind.domain == BranchKind::Any ||
                      is_float(type.dtype) == (kind.domain == BranchKind::Reals);
    if (fits && op.num_results == 1 && op.kind != OpKind::Const && op.kind != OpKind::Iota &&
        type.dtype != DType::Bool && num_elements(type.shape) > 0)
      sites.push_back(OpId(i));
  }
  if (sites.empty()) return std::nullopt;
  const OpId site = sites[rng.below(sites.size())];
  const uint64_t inside = rng();
  try {
    Planted p;
    p.pair.spec = plant(kind, around, site, inside, false, &p.witness);
    p.pair.changed = plant(kind, around, site, inside, true, nullptr);
    if (p.pair.spec == p.pair.changed || !fits(p.pair.spec, p.pair.changed)) return std::nullopt;
    return p;
  } catch (const NoPlace&) {
    return std::nullopt;
  } catch (const Error&) {  // does not type-check there
    return std::nullopt;
  }
}

std::optional<std::vector<NDArray>> outputs(const Graph& g, const std::vector<NDArray>& inputs,
                                            Precision precision) {
  EvalOptions o;
  o.precision = precision;
  try {
    return eval(g, inputs, o);
  } catch (const Error&) {  // an index out of range
    return std::nullopt;
  }
}

// Whether x is finite somewhere, where y is not, or is far from x beyond all rounding.
bool differ(const std::vector<NDArray>& x, const std::vector<NDArray>& y,
            const std::vector<WithMagnitude>& scale) {
  for (size_t k = 0; k < x.size(); k++) {
    if (x[k].ints != y[k].ints) return true;
    for (size_t i = 0; i < x[k].reals.size(); i++) {
      const double u = x[k].reals[i], v = y[k].reals[i], m = scale[k].magnitude.reals[i];
      if (!std::isfinite(u)) continue;
      if (!std::isfinite(v)) return true;
      if (std::fabs(u - v) > std::max({std::fabs(u), std::fabs(v), std::isfinite(m) ? m : 0}) / 32)
        return true;
    }
  }
  return false;
}

bool differ_at(const Graph& a, const Graph& b, const std::vector<NDArray>& inputs, bool rounding) {
  for (Precision p : {Precision::Native, Precision::Exact}) {
    if (rounding && p == Precision::Exact) break;
    const auto x = outputs(a, inputs, p);
    if (!x) return false;
    const auto y = outputs(b, inputs, p);
    if (y && !differ(*x, *y, eval_with_magnitude(a, inputs))) return false;
  }
  return true;
}

}  // namespace

std::optional<BranchPair> branch_law(const BranchKind& kind, uint64_t seed) {
  auto p = planted(kind, seed);
  if (!p) return std::nullopt;
  if (mix64(seed) & 1) std::swap(p->pair.spec, p->pair.changed);
  return std::move(p->pair);
}

std::optional<BranchFault> branch_fault(const BranchKind& kind, uint64_t seed) {
  auto p = planted(kind, seed);
  if (!p) return std::nullopt;
  const Graph &a = p->pair.spec, &b = p->pair.changed;
  const std::vector<IntRange> ranges = integer_ranges(a, a, {-8, 8});
  bool shown = false, both_ways = false;
  for (uint64_t n = 0; n < 4 && !shown; n++) {
    std::vector<NDArray> inputs = make_inputs(a, "normal", mix64(seed + n), ranges);
    for (const auto& [input, elements] : p->witness)
      for (const auto& [i, x] : elements) {
        NDArray& to = inputs[input];
        if (is_float(to.dtype))
          to.reals[size_t(i)] = round_to(to.dtype, x);
        else
          to.ints[size_t(i)] = wrap_to(to.dtype, int64_t(x));
      }
    shown = differ_at(a, b, inputs, kind.special);
    both_ways = shown && differ_at(b, a, inputs, kind.special);
  }
  if (both_ways && (mix64(seed) & 1)) std::swap(p->pair.spec, p->pair.changed);
  return BranchFault{std::move(p->pair), !shown};
}

}  // namespace tessera
