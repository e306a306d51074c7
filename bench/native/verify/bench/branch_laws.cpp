// Equal programs with branches, by laws that hold whatever is decided, and by laws in which one
// decision implies another.
#include "verify/bench/branch_program.h"

namespace tessera {
namespace {

BranchValue relu(BranchValue x) { return apply(OpKind::Relu, x); }
BranchValue abs(BranchValue x) { return apply(OpKind::Abs, x); }
BranchValue number(Branch& b, BranchValue c) { return cast(c, b.type().dtype); }
BranchValue clipped(BranchValue x, double low, double high) { return min(max(x, low), high); }

// --- whatever is decided

BranchValue relu_of_relu(Branch& b) {
  const BranchValue x = b.value + b.operand();
  return b.pick(relu(relu(x)), relu(x));
}
BranchValue relu_by_where(Branch& b) {
  const BranchValue x = b.value - b.operand(), zero = b.constant(0);
  return b.pick(where(b.rng.chance(0.5) ? x > 0 : x >= 0, x, zero), relu(x));
}
BranchValue clip_either_way(Branch& b) {
  const BranchValue x = b.value + b.operand();
  return b.pick(min(max(x, 1), 3), max(min(x, 3), 1));
}
BranchValue nested_same_condition(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), c = x > y;
  return b.pick(where(c, where(c, b.other(), x), b.value), where(c, b.other(), b.value));
}
BranchValue de_morgan(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), p = x > 1, q = y <= 2;
  return where(b.pick(!(p & q), (!p) | (!q)), b.other(), b.value);
}
BranchValue max_of_max(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  return b.pick(max(max(b.value, x), max(x, y)), max(max(y, x), b.value));
}
BranchValue where_over_product(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), c = x > y;
  return b.pick(where(c, b.value, x) * y, where(c, b.value * y, x * y));
}
BranchValue where_over_sum(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), c = x <= y;
  return b.pick(where(c, b.value, x) + y, where(c, b.value + y, x + y));
}
BranchValue positive_factor(Branch& b) {
  const BranchValue x = b.operand();
  const double k = double(b.rng.between(2, 5)), t = double(b.rng.between(-3, 3));
  return where(b.pick(x * k > k * t, x > t), b.other(), b.value);
}
BranchValue negative_factor(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  return where(b.pick(-x<-y, x> y), b.other(), b.value);
}
BranchValue median_of_three(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), v = b.value;
  const auto median = [](BranchValue p, BranchValue q, BranchValue r) {
    return max(min(p, q), min(max(p, q), r));
  };
  return b.pick(median(v, x, y), median(y, v, x));
}
BranchValue abs_by_max(Branch& b) {
  const BranchValue x = b.value - b.operand();
  return b.pick(abs(x), max(x, -x));
}
BranchValue abs_by_sign(Branch& b) {
  const BranchValue x = b.operand() + b.value;
  return b.pick(apply(OpKind::Sign, x) * x, abs(x));
}
BranchValue distance_by_extrema(Branch& b) {
  const BranchValue x = b.operand(), v = b.value;
  return b.pick(abs(x - v), max(x, v) - min(x, v));
}
BranchValue mask_as_product(Branch& b) {
  const BranchValue x = b.operand(), c = x > 1;
  return b.pick(b.value * number(b, c), where(c, b.value, b.constant(0)));
}
BranchValue masks_multiply(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), p = x > 1, q = y < 2;
  return b.value + b.pick(number(b, p) * number(b, q), number(b, p & q));
}
BranchValue counts_complement(Branch& b) {
  const BranchValue x = b.operand();
  const BranchValue c = x > b.operand();
  const double n = double(b.columns());
  const BranchValue k = b.count(c), rest = b.count(!c);
  return b.value + number(b, b.pick(k, -(rest - n)));
}
BranchValue any_is_not_all_not(Branch& b) {
  const BranchValue c = b.operand() > b.operand();
  b.columns();
  return where(b.pick(b.any(c), !b.all(!c)), b.other(), b.value);
}
BranchValue swapped_sides(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  return b.pick(where(x < y, b.other(), b.value), where(x >= y, b.value, b.other()));
}
BranchValue min_by_max(Branch& b) {
  const BranchValue x = b.operand(), v = b.value;
  return b.pick(min(v, x), -max(-v, -x));
}
BranchValue extrema_shift(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), v = b.value;
  return b.pick(max(v, x) + y, max(v + y, x + y));
}
BranchValue extrema_sum(Branch& b) {
  const BranchValue x = b.operand(), v = b.value;
  return b.pick(max(x, v) + min(x, v), x + v);
}
BranchValue extrema_product(Branch& b) {
  const BranchValue x = b.operand(), v = b.value;
  return b.pick(max(x, v) * min(x, v), x * v);
}
BranchValue and_as_nest(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), p = x > 1, q = y > x;
  return b.pick(where(p & q, b.other(), b.value), where(p, where(q, b.other(), b.value), b.value));
}
BranchValue or_as_nest(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), p = x > 1, q = y > x;
  return b.pick(where(p | q, b.other(), b.value),
                where(p, b.other(), where(q, b.other(), b.value)));
}
BranchValue exclusive_or(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), p = x > 1, q = y > 2;
  return where(b.pick((p & (!q)) | ((!p) & q), (p | q) & !(p & q)), b.other(), b.value);
}
BranchValue leaky_relu(Branch& b) {
  const BranchValue x = b.value + b.operand();
  return b.pick(where(x > 0, x, x * 0.25), relu(x) + min(x, 0) * 0.25);
}
BranchValue squared_relu(Branch& b) {
  const BranchValue x = b.value;
  return b.pick(relu(x) * relu(x), where(x > 0, x * x, b.constant(0)));
}
BranchValue exp_of_choice(Branch& b) {
  const BranchValue x = min(b.operand(), 4), y = b.operand();
  return b.value + b.pick(apply(OpKind::Exp, where(y > 1, x, b.constant(0))),
                          where(y > 1, apply(OpKind::Exp, x), b.constant(1)));
}
BranchValue ramp_by_relus(Branch& b) {
  const BranchValue x = b.value;
  return b.pick(relu(x + 1) - relu(x - 1) - 1, clipped(x, -1, 1));
}
BranchValue causal_mask(Branch& b) {
  b.rows();
  return b.pick(where(b.iota(2) >= b.iota(1), b.value, b.constant(0)),
                apply(OpKind::Tril, b.value, DiagonalAttrs{0}));
}
BranchValue largest_of_shifted_row(Branch& b) {
  const BranchValue x = b.operand();
  const ReduceAttrs row{{b.type().rank() - 1}, true};
  b.columns();
  const BranchValue s = apply(OpKind::ReduceMax, x, row);
  return b.value + b.pick(apply(OpKind::ReduceMax, x * 2, row), s * 2);
}
BranchValue inequality_of_sum(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  return where(b.pick(x > y, x - y > 0), b.other(), b.value);
}

// --- one decision implies another

struct Thresholds {
  double low, high;
};
Thresholds thresholds(Branch& b) {
  const double low = double(b.rng.between(0, 5));
  return {low, low + double(b.rng.between(1, 5))};
}

BranchValue higher_inside_lower(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const auto [low, high] = thresholds(b);
  return b.pick(where(x > high, where(x > low, b.other(), y), b.value),
                where(x > high, b.other(), b.value));
}
BranchValue lower_outside_higher(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const auto [low, high] = thresholds(b);
  return b.pick(where(x > low, b.other(), where(x > high, y, b.value)),
                where(x > low, b.other(), b.value));
}
BranchValue conjunction_absorbed(Branch& b) {
  const BranchValue x = b.operand();
  const auto [low, high] = thresholds(b);
  return where(b.pick((x > high) & (x > low), x > high), b.other(), b.value);
}
BranchValue disjunction_absorbed(Branch& b) {
  const BranchValue x = b.operand();
  const auto [low, high] = thresholds(b);
  return where(b.pick((x > high) | (x > low), x > low), b.other(), b.value);
}
BranchValue equal_inside_at_least(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), z = b.operand();
  return b.pick(where(x == y, where(x >= y, b.other(), z), b.value),
                where(x == y, b.other(), b.value));
}
BranchValue contradiction(Branch& b) {
  const BranchValue x = b.operand();
  const auto [low, high] = thresholds(b);
  return b.pick(where((x > high) & (x < low), b.other(), b.value), b.value * 1);
}
BranchValue chain_from_either_end(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const auto [low, high] = thresholds(b);
  return b.pick(where(x > high, b.other(), where(x > low, y, b.value)),
                where(x <= low, b.value, where(x <= high, y, b.other())));
}
BranchValue max_inside_greater(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  return b.pick(where(x > y, max(x, y), b.value), where(x > y, x, b.value));
}
BranchValue abs_inside_positive(Branch& b) {
  const BranchValue x = b.operand();
  return b.pick(where(x > 0, abs(x), b.value), where(x > 0, x, b.value));
}
BranchValue relu_inside_threshold(Branch& b) {
  const BranchValue x = b.operand();
  const double t = double(b.rng.between(0, 4));
  return b.pick(where(x > t, relu(x), b.value), where(x > t, x, b.value));
}
BranchValue clip_inside_threshold(Branch& b) {
  const BranchValue x = b.operand();
  const auto [low, high] = thresholds(b);
  return b.pick(where(x > high, min(x, low), b.value), where(x > high, b.constant(low), b.value));
}
BranchValue trichotomy(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), z = b.operand();
  return b.pick(where(x < y, b.other(), where(x == y, z, where(x > y, b.value, x))),
                where(x < y, b.other(), where(x == y, z, b.value)));
}
BranchValue transitivity(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), z = b.operand();
  return where(b.pick((x > y) & (y > z) & (x > z), (x > y) & (y > z)), b.other(), b.value);
}
BranchValue antisymmetry(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  return where(b.pick((x <= y) & (x >= y), x == y), b.other(), b.value);
}
BranchValue clip_of_clip(Branch& b) {
  const BranchValue x = b.value;
  return b.pick(clipped(clipped(x, 1, 4), 0, 9), clipped(x, 1, 4));
}
BranchValue relu_of_sum_of_relu(Branch& b) {
  const BranchValue x = b.value;
  return b.pick(relu(relu(x) + 1), relu(x) + 1);
}
BranchValue max_is_at_least(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  return b.pick(where(max(x, y) >= x, b.value, b.other()), b.value * 1);
}
BranchValue intervals_meet(Branch& b) {
  const BranchValue x = b.operand();
  const auto [low, high] = thresholds(b);
  return where(
      b.pick(((x > low) & (x <= high)) | ((x > high) & (x < high + 3)), (x > low) & (x < high + 3)),
      b.other(), b.value);
}
BranchValue all_implies_any(Branch& b) {
  const BranchValue c = b.operand() > 1;
  if (b.columns() > 4) throw NoPlace{};
  return where(b.pick(b.all(c) & b.any(c), b.all(c)), b.other(), b.value);
}
BranchValue chain_of_relus(Branch& b) {
  const BranchValue x = b.value;
  return b.pick(relu(relu(relu(x) - 1) - 1), relu(x - 2));
}
BranchValue scaled_threshold_inside(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const auto [low, high] = thresholds(b);
  return b.pick(where(x * 2 > 2 * high, where(x > low, b.other(), y), b.value),
                where(x > high, b.other(), b.value));
}

}  // namespace

const std::vector<BranchKind>& branch_laws() {
#define LAW(name, domain)                                                                          \
  { #name, BranchKind::domain, name, false }
#define IMPLIED(name, domain)                                                                      \
  { #name, BranchKind::domain, name, true }
  static const std::vector<BranchKind> kinds = {LAW(relu_of_relu, Reals),
                                                LAW(relu_by_where, Reals),
                                                LAW(clip_either_way, Reals),
                                                LAW(nested_same_condition, Any),
                                                LAW(de_morgan, Any),
                                                LAW(max_of_max, Reals),
                                                LAW(where_over_product, Any),
                                                LAW(where_over_sum, Any),
                                                LAW(positive_factor, Reals),
                                                LAW(negative_factor, Reals),
                                                LAW(median_of_three, Reals),
                                                LAW(abs_by_max, Reals),
                                                LAW(abs_by_sign, Reals),
                                                LAW(distance_by_extrema, Reals),
                                                LAW(mask_as_product, Any),
                                                LAW(masks_multiply, Any),
                                                LAW(counts_complement, Any),
                                                LAW(any_is_not_all_not, Any),
                                                LAW(swapped_sides, Any),
                                                LAW(min_by_max, Reals),
                                                LAW(extrema_shift, Reals),
                                                LAW(extrema_sum, Reals),
                                                LAW(extrema_product, Reals),
                                                LAW(and_as_nest, Any),
                                                LAW(or_as_nest, Any),
                                                LAW(exclusive_or, Any),
                                                LAW(leaky_relu, Reals),
                                                LAW(squared_relu, Reals),
                                                LAW(exp_of_choice, Reals),
                                                LAW(ramp_by_relus, Reals),
                                                LAW(causal_mask, Any),
                                                LAW(largest_of_shifted_row, Reals),
                                                LAW(inequality_of_sum, Reals),
                                                IMPLIED(higher_inside_lower, Any),
                                                IMPLIED(lower_outside_higher, Any),
                                                IMPLIED(conjunction_absorbed, Any),
                                                IMPLIED(disjunction_absorbed, Any),
                                                IMPLIED(equal_inside_at_least, Any),
                                                IMPLIED(contradiction, Any),
                                                IMPLIED(chain_from_either_end, Any),
                                                IMPLIED(max_inside_greater, Any),
                                                IMPLIED(abs_inside_positive, Reals),
                                                IMPLIED(relu_inside_threshold, Reals),
                                                IMPLIED(clip_inside_threshold, Reals),
                                                IMPLIED(trichotomy, Any),
                                                IMPLIED(transitivity, Any),
                                                IMPLIED(antisymmetry, Any),
                                                IMPLIED(clip_of_clip, Reals),
                                                IMPLIED(relu_of_sum_of_relu, Reals),
                                                IMPLIED(max_is_at_least, Any),
                                                IMPLIED(intervals_meet, Any),
                                                IMPLIED(all_implies_any, Any),
                                                IMPLIED(chain_of_relus, Reals),
                                                IMPLIED(scaled_threshold_inside, Reals)};
#undef LAW
#undef IMPLIED
  return kinds;
}

}  // namespace tessera
