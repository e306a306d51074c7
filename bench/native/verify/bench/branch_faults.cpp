// Unsound edits in or around a branch. Each kind names inputs at which the two forms differ, so
// that nobody has to judge whether they do.
#include <algorithm>
#include <cmath>

#include "verify/bench/branch_program.h"

namespace tessera {
namespace {

// --- rare and joint conditions

BranchValue far_threshold(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.far();
  b.show(x, 2 * t);
  return b.only_where(x > t);
}
BranchValue narrow_window(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.real() ? b.representable(b.far() / 16) : b.far();
  const double width = b.real() ? t / 64 : 2;
  b.show(x, b.real() ? t + width / 2 : t + 1);
  return b.only_where((x > t) & (x < t + width));
}
BranchValue many_signs(Branch& b) {
  std::optional<BranchValue> all;
  for (int64_t i = b.rng.between(8, 20); i > 0; i--) {
    const BranchValue x = b.input(b.type());
    const bool positive = b.rng.chance(0.5) || b.type().dtype == DType::U8;
    b.show(x, positive ? 9 : -9);
    const BranchValue c = positive ? x > 2 : x < -2;
    all = all ? *all & c : c;
  }
  return b.only_where(*all);
}
BranchValue two_equalities(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), z = b.operand();
  const double offset = b.real() ? 5.5 : 5;
  b.show(x, 8), b.show(y, 8), b.show(z, 8 - offset);
  return b.only_where((x == y) & (y == z + offset));
}
BranchValue scaled_equalities(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), z = b.operand();
  const double offset = b.real() ? 3.25 : 3;
  b.show(x, 14), b.show(y, 7), b.show(z, 7 - offset);
  return b.only_where((x == y + y) & (z + offset == y));
}
BranchValue equality_with_constant(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.representable(b.far() / 2);
  b.show(x, t);
  return b.only_where(x == t);
}
BranchValue nested_thresholds(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const double s = b.far(), t = b.far();
  b.show(x, s * 1.5), b.show(y, t * 1.5);
  return b.changed ? b.value : where(x > s, where(y > t, b.other(), b.value), b.value);
}
BranchValue threshold_moved(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.real() ? b.representable(b.far()) : b.far();
  const double u = b.real() ? b.representable(t * 1.03125) : t + 3;
  b.show(x, b.real() ? b.representable((t + u) / 2) : t + 1);
  return b.choose(x > t, x > u);
}
BranchValue far_product(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const double t = std::sqrt(b.representable(b.far() / 4));
  b.show(x, 2 * t), b.show(y, 1.5 * t);
  return b.only_where(x * y > b.representable(t * t));
}
BranchValue small_disc(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const double u = b.fraction() + 11, v = b.fraction() - 17;
  b.show(x, u), b.show(y, v);
  const BranchValue dx = x - u, dy = y - v;
  return b.only_where(dx * dx + dy * dy < 1.0 / 4096);
}
BranchValue contradiction_only_in_general(Branch& b) {  // holds at ties only
  const BranchValue x = b.operand(), y = b.operand();
  b.show(x, b.fraction());
  BranchValue c = (x >= y) & (x <= y);
  const double u = b.fraction();
  b.show(x, u), b.show(y, u);
  return b.only_where(c);
}

// --- boundaries

BranchValue boundary(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const double u = b.fraction() + (b.real() ? 0.0625 : 0);
  b.show(x, u), b.show(y, u);
  return b.choose(x < y, x <= y);
}
BranchValue boundary_at_constant(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.representable(b.real() ? 100 * b.rng.unit() + 0.3 : b.far());
  b.show(x, t);
  return b.choose(x >= t, x > t);
}
BranchValue boundary_of_product(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), z = b.operand();
  const double u = b.real() ? 1.5 : 3, v = b.real() ? 2.75 : 5;
  b.show(x, u), b.show(y, v), b.show(z, u * v);
  return b.choose(x * y < z, x * y <= z);
}
BranchValue boundary_of_sum(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand(), z = b.operand();
  const double u = b.fraction(), v = b.fraction();
  b.show(x, u), b.show(y, v), b.show(z, u + v);
  return b.choose(z > x + y, z >= x + y);
}
BranchValue boundary_of_quotient(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  b.show(x, 6.25), b.show(y, 2.5);
  return b.choose(x / y > b.constant(2.5), x / y >= b.constant(2.5));
}
BranchValue product_is_zero(Branch& b) {  // on one of two lines
  const BranchValue x = b.operand(), y = b.operand();
  b.show(x, 5), b.show(y, 0);
  const BranchValue zero = b.constant(0) * x;
  return b.value + b.pick(where(x * y == 0.0, x, zero), zero);
}
BranchValue product_vanishes_at(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  b.show(x, 7), b.show(y, 4);
  return b.only_where(y * (x - 7.0) == 0.0);
}
BranchValue sign_at_zero(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, 0);
  const BranchValue s = apply(OpKind::Sign, x), one = b.constant(1) + x * 0.0;
  return b.value + b.pick(s, where(x > 0, one, -one));
}
BranchValue equal_magnitudes(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  b.show(x, -9), b.show(y, 9);
  return b.only_where(apply(OpKind::Abs, x) == y);
}
BranchValue square_difference(Branch& b) {  // (x − y)² ≤ 0 is x = y
  const BranchValue x = b.operand(), y = b.operand();
  const double u = b.fraction();
  b.show(x, u), b.show(y, u);
  return b.only_where((x - y) * (x - y) <= 0);
}

// --- what is not a number, poles, guards

BranchValue nan_side(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  b.show(x, -4);
  const BranchValue r = apply(OpKind::Sqrt, x);
  return b.choose(r > y, !(r <= y));
}
BranchValue nan_of_quotient(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  b.show(x, 3), b.show(y, 3);
  const BranchValue d = x - y, q = d / d;
  return b.choose(q >= 0.5, !(q < 0.5));
}
BranchValue new_pole(Branch& b) {
  const BranchValue y = b.operand();
  const double t = b.fraction() + 100;
  b.show(y, t);
  const BranchValue d = y - t;
  return b.pick(b.value, b.value * d / d);
}
BranchValue pole_beyond_threshold(Branch& b) {
  const BranchValue y = b.operand();
  const double t = b.far();
  b.show(y, 2 * t);
  const BranchValue d = max(b.constant(t) - y, 0.0);
  return b.pick(b.value, b.value * d / d);
}
BranchValue pole_behind_branch(Branch& b) {
  const BranchValue y = b.operand();
  const double t = b.far();
  b.show(y, 2 * t);
  const BranchValue one = b.constant(1) + y * 0.0;
  return b.pick(b.value, b.value / where(y > t, y * 0.0, one));
}
BranchValue pole_of_neighbour(Branch& b) {  // divides by what the original divides by elsewhere
  const BranchValue y = b.operand();
  const int64_t n = b.columns();
  if (n < 2) throw NoPlace{};
  const double t = b.fraction() + 100;
  b.show(y, b.at, t);
  const auto part = [&](BranchValue v, int64_t from, int64_t to) {
    SliceAttrs a;
    for (const Dim& d : b.type().shape)
      a.starts.push_back(0), a.stops.push_back(d.extent), a.steps.push_back(1);
    a.starts.back() = from, a.stops.back() = to;
    return apply(OpKind::Slice, v, a);
  };
  const BranchValue d = y - t, head = part(d, 0, n - 1), tail = part(d, n - 1, n);
  const BranchValue turned{
      &b, b.graph().add(OpKind::Concat, {tail.t, head.t}, AxisAttrs{b.type().rank() - 1})};
  return b.pick(b.value / d, b.value / d * turned / turned);
}
BranchValue count_guard_dropped(Branch& b) {
  Type bools = b.type();
  bools.dtype = DType::Bool;
  const BranchValue m = b.input(bools);
  b.show_all(m, 0);
  const BranchValue n = cast(b.count(m), b.type().dtype), zero = b.constant(0) * b.value;
  const BranchValue total =
      apply(OpKind::Sum, where(m, b.value, zero), ReduceAttrs{{b.type().rank() - 1}, true});
  return total / b.pick(max(n, 1.0), n) + zero;
}
BranchValue root_domain(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.far();
  b.show(x, -2 * t);
  const BranchValue r = apply(OpKind::Sqrt, b.pick(max(x + t, 0.0), x + t));
  return b.value + r * b.constant(b.real() && b.type().dtype == DType::F16 ? 0.01 : 1e-6);
}

// --- one row, tile, element

BranchValue one_row(Branch& b) {
  const BranchValue x = b.operand();
  b.rows();
  const double t = b.rng.chance(0.5) ? 1 : b.far();
  b.show(x, 1.75 * t);
  return b.only_where((b.iota(2) == double(b.row())) & (x > t));
}
BranchValue one_element(Branch& b) { return b.only_where(b.iota(1) == double(b.column())); }
BranchValue one_tile(Branch& b) {
  const BranchValue x = b.operand();
  const int64_t from = b.column() / 2 * 2;
  const BranchValue i = b.iota(1);
  b.show(x, 50);
  return b.only_where((i >= double(from)) & (i < double(from + 2)) & (x > 40.0));
}
BranchValue swapped_in_one_row(Branch& b) {
  const BranchValue x = b.operand();
  b.rows();
  b.show(x, 30);
  const BranchValue low = min(b.value, x), high = max(b.value, x);
  return b.pick(low, where(b.iota(2) == double(b.row()), high, low));
}
BranchValue sign_of_one_weight(Branch& b) {
  const BranchValue x = b.operand(), one = b.constant(1) + b.value * 0.0;
  const BranchValue w = where(b.iota(1) == double(b.column()), -(one + one), one + one);
  b.show(x, 4);
  return b.choose(x > 0, x * w > 0);
}
BranchValue sorted_row(Branch& b) {
  Type long_row = b.type();
  b.columns();
  const int64_t n = b.rng.between(8, 24);
  long_row.shape.back() = Dim(n);
  const BranchValue x = b.input(long_row);
  SliceAttrs low, high;
  for (const Dim& d : long_row.shape)
    low.starts.push_back(0), low.stops.push_back(d.extent), low.steps.push_back(1);
  high = low;
  low.stops.back()--, high.starts.back()++;
  for (int64_t i = 0; i < num_elements(long_row.shape); i++) b.show(x, i, double(i % n));
  const BranchValue before = apply(OpKind::Slice, x, low), after = apply(OpKind::Slice, x, high);
  return b.only_where(b.all(after > before));
}
BranchValue equal_rows(Branch& b) {
  const BranchValue x = b.input(b.type()), y = b.input(b.type());
  b.columns();
  b.show_all(x, 6), b.show_all(y, 6);
  return b.only_where(b.all(x == y));
}
BranchValue triangle_off_by_one(Branch& b) {
  if (b.rows() < 2 || b.columns() < 2) throw NoPlace{};
  const int64_t k = b.rng.between(-1, 1);
  const OpKind kind = b.rng.chance(0.5) ? OpKind::Triu : OpKind::Tril;
  return b.pick(apply(kind, b.value, DiagonalAttrs{k}), apply(kind, b.value, DiagonalAttrs{k + 1}));
}
BranchValue causal_mask_off_by_one(Branch& b) {
  b.rows();
  const BranchValue i = b.iota(2), j = b.iota(1);
  return b.choose(i >= j, i > j);
}
BranchValue window_off_by_one(Branch& b) {
  b.rows();
  const BranchValue d = apply(OpKind::Abs, b.iota(2) - b.iota(1));
  const double w = double(b.rng.between(0, 2));
  return b.choose(d <= w, d < w + 2);
}
BranchValue argmax_ties(Branch& b) {
  const BranchValue x = b.input(b.type());
  const int64_t n = b.columns();
  if (n < 2) throw NoPlace{};
  b.show_all(x, 3);
  const int axis = b.type().rank() - 1;
  const BranchValue top = apply(OpKind::ReduceMax, x, ReduceAttrs{{axis}, true});
  const BranchValue i = b.iota(1), hit = x == top;
  const BranchValue first = apply(OpKind::ReduceMin, where(hit, i, i * 0.0 + double(n)),
                                  ReduceAttrs{{axis}, true}),
                    last = apply(OpKind::ReduceMax, where(hit, i, i * 0.0 - 1.0),
                                 ReduceAttrs{{axis}, true});
  return b.choose(i == first, i == last);
}
BranchValue clip_bound(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.representable(b.far());
  b.show(x, 2 * t);
  const BranchValue low = max(x, -t);
  const BranchValue small = b.constant(b.real() ? 1 / t : 1);
  return b.value + b.pick(min(low, t), b.rng.chance(0.5) ? low : min(low, 1.5 * t)) * small;
}
BranchValue clip_side(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.representable(b.far());
  b.show(x, -2 * t);
  const BranchValue high = min(x, t);
  return b.value + b.pick(max(high, -t), high) * b.constant(b.real() ? 1 / t : 1);
}
BranchValue relu_threshold(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.far();
  b.show(x, 1.5 * t);
  const BranchValue d = apply(OpKind::Relu, x - t) * b.constant(b.real() ? 16 / t : 1);
  return b.pick(b.value + d, b.value);
}

// --- whole numbers of floats

BranchValue floor_at_integers(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, double(b.rng.between(-20, 20)));
  const BranchValue below = apply(OpKind::Floor, x), ceiling = -apply(OpKind::Floor, -x);
  return b.value + b.pick(below, ceiling - 1.0);
}
BranchValue round_half(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, 2.5);
  return b.value + b.pick(apply(OpKind::Round, x), apply(OpKind::Floor, x + 0.5));
}
BranchValue cast_boundary(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, 7);
  return b.choose(cast(x, DType::I32) >= 7.0, x > 7.0);
}
BranchValue cast_of_negative(Branch& b) {  // truncates, far below 0 only
  const BranchValue x = b.operand();
  b.show(x, -6.5);
  const BranchValue t = cast(cast(x, DType::I32), b.type().dtype);
  const BranchValue r = apply(OpKind::Floor, x);
  return b.value + b.pick(where(x < -6.0, t, r), r);
}

// --- decided by rounding and range

BranchValue absorbed(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, b.type().dtype == DType::F16 ? 4096 : b.type().dtype == DType::F32 ? 1e9 : 1e17);
  return b.only_where(x + 1.0 == x);
}
BranchValue exponential_underflows(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, b.type().dtype == DType::F64 ? -800 : -200);
  return b.choose(apply(OpKind::Exp, x) > 0, (x == x) | (x > 0));
}
BranchValue square_underflows(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, b.type().dtype == DType::F64 ? 1e-170 : b.type().dtype == DType::F32 ? 1e-25 : 1e-5);
  return b.only_where((x * x <= 0) & (x > 0));
}
BranchValue factor_underflows(Branch& b) {
  const BranchValue x = b.operand();
  const double tiny = b.type().dtype == DType::F16 ? 0x1p-14 : 0x1p-120;
  if (b.type().dtype == DType::F64) throw NoPlace{};
  b.show(x, b.type().dtype == DType::F16 ? 0x1p-13 : 0x1p-40);
  return b.choose(x * tiny > 0, x > 0);
}

// --- bools and counts

BranchValue flags(Branch& b, int64_t n, bool value) {
  Type bools = b.type();
  b.columns();
  bools.dtype = DType::Bool;
  bools.shape.back() = Dim(n);
  const BranchValue m = b.input(bools);
  b.show_all(m, value);
  return m;
}
BranchValue all_of_many(Branch& b) {
  return b.only_where(b.all(flags(b, b.rng.between(30, 64), true)));
}
BranchValue none_of_many(Branch& b) {
  return b.only_where(!b.any(flags(b, b.rng.between(30, 64), false)));
}
BranchValue count_threshold(Branch& b) {
  const int64_t n = b.rng.between(40, 64);
  return b.only_where(b.count(flags(b, n, true)) >= double(n - 3));
}
BranchValue count_is_exact(Branch& b) {
  const int64_t n = b.rng.between(30, 64);
  const BranchValue m = flags(b, n, true);
  const int64_t rows = num_elements(b.type(m).shape) / n;
  for (int64_t r = 0; r < rows; r++) b.show(m, r * n, 0);
  return b.only_where(b.count(m) == double(n - 1));
}
BranchValue count_capped(Branch& b) {
  const int64_t n = b.rng.between(40, 64);
  const BranchValue c = b.count(flags(b, n, true));
  return b.value + cast(b.pick(min(c, double(n - 4)), c), b.type().dtype) + b.value * 0.0;
}
BranchValue count_in_bytes(Branch& b) {  // wraps from 128 on
  const BranchValue m = flags(b, 130, true);
  const int axis = b.type(m).rank() - 1;
  const BranchValue narrow =
      cast(apply(OpKind::Sum, cast(m, DType::I64), ReduceAttrs{{axis}, true}), DType::I8);
  return b.choose(b.count(m) > 0.0, (narrow > 0.0) | (cast(narrow, DType::I64) == 0.0));
}
BranchValue parity(Branch& b) {
  const BranchValue m = flags(b, 40, false);
  const int64_t rows = num_elements(b.type(m).shape) / 40;
  for (int64_t r = 0; r < rows; r++) b.show(m, r * 40 + 3, 1);
  return b.only_where((b.count(m) <= 1.0) & (b.count(m) > 0.0));
}

// --- indices

BranchValue index_equality(Branch& b) {
  Type one{b.rng.chance(0.5) ? DType::I64 : DType::I32, b.type().shape};
  const BranchValue i = b.input(one);
  b.columns();
  b.show_all(i, double(b.column()));
  return b.only_where((i == b.iota(1, one.dtype)) & (i >= 0.0));
}
BranchValue index_clipped(Branch& b, double low, double high, double shown, bool from_below) {
  Type one = b.type();
  one.dtype = DType::I64;
  const int64_t n = b.columns();
  one.shape = {Dim(n)};
  const BranchValue i = b.input(one);
  b.show_all(i, shown);
  const BranchValue inside = min(max(i, low), high);
  const BranchValue changed = from_below ? min(i, high) : max(i, low);
  return apply(
      OpKind::Neg,
      apply(OpKind::Neg, {&b, b.graph().add(OpKind::Gather, {b.value.t, b.pick(inside, changed).t},
                                            AxisAttrs{b.type().rank() - 1})}));
}
BranchValue index_past_the_end(Branch& b) {
  const auto n = double(b.columns());
  return index_clipped(b, 0, n - 1, n + 3, false);
}
BranchValue index_before_the_start(Branch& b) {
  const auto n = double(b.columns());
  return index_clipped(b, 0, n - 1, -1, true);
}

// --- integers that wrap, ranges, remainders

double most_of(Branch& b) {
  const DType d = b.type().dtype;
  if (d == DType::I64) throw NoPlace{};  // its largest number is no double
  return d == DType::I8 ? 127 : d == DType::U8 ? 255 : 2147483647.0;
}
BranchValue integer_range(Branch& b) {
  const BranchValue x = b.operand();
  const double t = double(int64_t(b.far() / 3));
  b.show(x, t);
  return b.only_where((x * 3.0 > 3 * t - 2) & (x * 3.0 < 3 * t + 2));
}
BranchValue successor_wraps(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, most_of(b));
  return b.choose(x + 1.0 > x, x == x);
}
BranchValue magnitude_wraps(Branch& b) {
  if (b.type().dtype == DType::U8) throw NoPlace{};
  const BranchValue x = b.operand();
  b.show(x, b.type().dtype == DType::I64 ? -9223372036854775808.0 : -most_of(b) - 1);
  return b.only_where(apply(OpKind::Abs, x) < 0.0);
}
BranchValue opposite_wraps(Branch& b) {
  const BranchValue x = b.operand();
  b.show(x, b.type().dtype == DType::I64  ? -9223372036854775808.0
            : b.type().dtype == DType::U8 ? 128
                                          : -most_of(b) - 1);
  return b.only_where((-x == x) & (x != 0.0));
}
BranchValue square_wraps(Branch& b) {
  if (b.type().dtype == DType::U8) throw NoPlace{};
  const BranchValue x = b.operand();
  b.show(x, b.type().dtype == DType::I64   ? 3037000500.0
            : b.type().dtype == DType::I32 ? 46341
                                           : 12);
  return b.only_where(x * x < 0.0);
}
BranchValue product_wraps_to_zero(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const double u = b.type().dtype == DType::I64   ? 4294967296.0
                   : b.type().dtype == DType::I32 ? 65536
                                                  : 16;
  b.show(x, u), b.show(y, u);
  return b.only_where((x * y == 0.0) & (x > 2.0) & (y > 2.0));
}
BranchValue shift_wraps(Branch& b) {
  const BranchValue x = b.operand(), y = b.operand();
  const double k = 16;
  const double top = b.type().dtype == DType::I64 ? 0x1p60 : (most_of(b) + 1) / 16;
  b.show(x, top), b.show(y, 1);
  return b.choose(x * k > y * k, x > y);
}
BranchValue remainder_hits(Branch& b) {
  const BranchValue x = b.operand();
  const double m = b.type().dtype == DType::I64 || b.type().dtype == DType::I32 ? 1000003 : 101;
  b.show(x, b.type().dtype == DType::I64 ? m * 7 + 5 : 5);
  const BranchValue r{&b, b.graph().add(OpKind::Mod, {x.t, b.constant(m).t})};
  return b.only_where((r == 5.0) & (x >= 5.0));
}
BranchValue remainder_of_negative(Branch& b) {  // rounds towards −∞, not 0
  if (b.type().dtype == DType::U8) throw NoPlace{};
  const BranchValue x = b.operand();
  const double m = double(b.rng.between(3, 9)), far = -b.far();
  b.show(x, far - 1);
  const auto mod = [&](BranchValue v) {
    return BranchValue{&b, b.graph().add(OpKind::Mod, {v.t, b.constant(m).t})};
  };
  const BranchValue r = mod(x);
  return b.value + b.pick(r, where(x < far, -mod(-x), r));
}
BranchValue narrowed(Branch& b) {
  if (b.type().dtype != DType::I64 && b.type().dtype != DType::I32) throw NoPlace{};
  const BranchValue x = b.operand();
  b.show(x, 200);
  const BranchValue y = min(max(x, -10.0), 200.0);
  return b.value + b.pick(y, cast(cast(y, DType::I8), b.type().dtype));
}
BranchValue integer_saturates(Branch& b) {
  const BranchValue x = b.operand();
  const double t = b.far();
  b.show(x, t + 1);
  return b.value + b.pick(min(x, t), x);
}
BranchValue largest_of_row(Branch& b) {
  const BranchValue x = b.input(b.type());
  const double t = b.representable(b.far());
  b.columns();
  b.show(x, t);
  const BranchValue top = apply(OpKind::ReduceMax, x, ReduceAttrs{{b.type().rank() - 1}, true});
  return b.only_where(top == t);
}
BranchValue sum_of_row(Branch& b) {
  const BranchValue x = b.input(b.type());
  const double n = double(b.columns()), t = b.real() ? 64.5 : 20;
  b.show_all(x, t);
  const BranchValue total = apply(OpKind::Sum, x, ReduceAttrs{{b.type().rank() - 1}, true});
  return b.only_where(total == b.representable(t * n));
}

}  // namespace

const std::vector<BranchKind>& branch_faults() {
#define KIND(name, domain)                                                                         \
  { #name, BranchKind::domain, name }
#define ROUNDED(name)                                                                              \
  { #name, BranchKind::Reals, name, true }
  static const std::vector<BranchKind> kinds = {KIND(far_threshold, Any),
                                                KIND(narrow_window, Any),
                                                KIND(many_signs, Any),
                                                KIND(two_equalities, Any),
                                                KIND(scaled_equalities, Any),
                                                KIND(equality_with_constant, Any),
                                                KIND(nested_thresholds, Any),
                                                KIND(threshold_moved, Any),
                                                KIND(far_product, Reals),
                                                KIND(small_disc, Reals),
                                                KIND(contradiction_only_in_general, Any),
                                                KIND(boundary, Any),
                                                KIND(boundary_at_constant, Any),
                                                KIND(boundary_of_product, Any),
                                                KIND(boundary_of_sum, Any),
                                                KIND(boundary_of_quotient, Reals),
                                                KIND(product_is_zero, Any),
                                                KIND(product_vanishes_at, Any),
                                                KIND(sign_at_zero, Reals),
                                                KIND(equal_magnitudes, Any),
                                                KIND(square_difference, Reals),
                                                KIND(nan_side, Reals),
                                                KIND(nan_of_quotient, Reals),
                                                KIND(new_pole, Reals),
                                                KIND(pole_beyond_threshold, Reals),
                                                KIND(pole_behind_branch, Reals),
                                                KIND(pole_of_neighbour, Reals),
                                                KIND(count_guard_dropped, Reals),
                                                KIND(root_domain, Reals),
                                                KIND(one_row, Any),
                                                KIND(one_element, Any),
                                                KIND(one_tile, Any),
                                                KIND(swapped_in_one_row, Any),
                                                KIND(sign_of_one_weight, Reals),
                                                KIND(sorted_row, Any),
                                                KIND(equal_rows, Any),
                                                KIND(triangle_off_by_one, Any),
                                                KIND(causal_mask_off_by_one, Any),
                                                KIND(window_off_by_one, Any),
                                                KIND(argmax_ties, Any),
                                                KIND(clip_bound, Any),
                                                KIND(clip_side, Reals),
                                                KIND(relu_threshold, Any),
                                                KIND(floor_at_integers, Reals),
                                                KIND(round_half, Reals),
                                                KIND(cast_boundary, Reals),
                                                KIND(cast_of_negative, Reals),
                                                ROUNDED(absorbed),
                                                ROUNDED(exponential_underflows),
                                                ROUNDED(square_underflows),
                                                ROUNDED(factor_underflows),
                                                KIND(all_of_many, Any),
                                                KIND(none_of_many, Any),
                                                KIND(count_threshold, Any),
                                                KIND(count_is_exact, Any),
                                                KIND(count_capped, Any),
                                                KIND(count_in_bytes, Any),
                                                KIND(parity, Any),
                                                KIND(index_equality, Any),
                                                KIND(index_past_the_end, Any),
                                                KIND(index_before_the_start, Any),
                                                KIND(integer_range, Integers),
                                                KIND(successor_wraps, Integers),
                                                KIND(magnitude_wraps, Integers),
                                                KIND(opposite_wraps, Integers),
                                                KIND(square_wraps, Integers),
                                                KIND(product_wraps_to_zero, Integers),
                                                KIND(shift_wraps, Integers),
                                                KIND(remainder_hits, Integers),
                                                KIND(remainder_of_negative, Integers),
                                                KIND(narrowed, Integers),
                                                KIND(integer_saturates, Integers),
                                                KIND(largest_of_row, Any),
                                                KIND(sum_of_row, Any)};
#undef KIND
#undef ROUNDED
  return kinds;
}

}  // namespace tessera
