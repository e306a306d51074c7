// Operators: their kinds, attributes and table of facts. One Op struct serves all three levels.
//
// Meaning, in one line each (x, y operands; shapes follow NumPy unless said otherwise):
//   input         the graph's next argument                  const   a scalar splat over its type
//   iota          0,1,2,… along `axis`                        pow     x^e, e a constant rational
//   relu          max(x,0)          silu  x·sigmoid(x)        gelu    x·(1+erf(x/√2))/2
//   gelu_tanh     x·(1+tanh(√(2/π)(x+0.044715x³)))/2          sqr     x·x      rsqrt 1/√x
//   floor         to −∞             round   half to even        log1p   log(1+x)    expm1  eˣ−1
//   erf           2/√π ∫₀ˣ e^(−t²) dt                    erfc    1−erf(x)
//   power         x^y (pow: the exponent is constant)         atan2   the angle of the point (y, x)
//   mod           x − y·⌊x/y⌋, of y's sign; of integers by 0: 0
//   eq … ge       bool tensors; where  x ? y : z              cast    to `dtype` (C rules)
//   sum mean reduce_max reduce_min  over `axes` (kept with extent 1 when keepdims)
//   cumsum        inclusive running sum along `axis`
//   matmul        the innermost two axes contracted, leading axes broadcast; rank ≥ 2
//   concat_matmul (W‖X)(Y;Z) = W·Y + X·Z for operands W X Y Z (Mirage §8.1)
//   conv          x [N, G·C, i…] with w [G·F, C, k…], G `groups`: r[n, gF+f, o] = Σ over c and taps
//   t
//                 x[n, gC+c, o·stride + t·dilation − low] · w[gF+f, c, t]; outside x there are
//                 zeros
//   conv_transpose  x [N, G·C, i…] with w [G·C, F, k…]: r[n, gF+f, o] = Σ over c and those i, t
//   with
//                 o = i·stride + t·dilation − low of x[n, gC+c, i] · w[gC+c, f, t]
//   pool_sum pool_max  over windows of the innermost axes; outside x there are 0, −∞ (of integers
//                 the lowest)
//   repeat        the whole tensor copied repeats[d] times along each axis d (numpy.tile)
//   triu/tril     zero below/above the k-th diagonal of the innermost two axes
//   gather        elements of x along `axis` at integer indices y (numpy.take)
//   custom        a function that a user states, of x or of x and y (ir/custom.h)
//   opaque        a function known only by name and payload hash; same operands, same results
//   kernel        its body, a block graph, run once per block of the grid
//   thread        its body, a thread graph: a fused chain whose intermediates stay in registers
// Block graphs (Mirage §2): grid dimensions split tensors between blocks, loops between iterations.
//   iter          tile of argument x selected by imap (grid → axis) and fmap (loop → axis); an axis
//                 of extent E split n ways has tiles of ⌈E/n⌉, the last ones shorter or empty; grid
//                 dimensions split first, then loops, each in order
//   accum         folds x over `loops`: sum, max, min, or concat along `axis`
//   accum_rescale (v, m) ↦ Σᵢ vᵢ·exp(mᵢ − maxⱼ mⱼ) over the iterations of `loops`; m broadcasts to
//   v save          writes x to a result of type `type`: omap (grid → axis), fmap (loop → axis, for
//                 streaming stores from inside a loop)
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/rational.h"
#include "ir/types.h"

namespace tessera {

enum class OpKind : uint8_t {
#define OP(kind, ...) kind,
#include "ir/ops.def"
};

enum class Level : uint8_t { Kernel, Block, Thread };
const char* name(Level);

// --- attributes -------------------------------------------------------------------------------
// Each struct lists its fields once, in `fields`; printer, parser, bindings and hash all use it.

inline constexpr int kMaxGridDims = 3;
inline constexpr int kMaxLoops = 4;
// Which tensor axis each grid dimension (or loop) splits; -1 where it does not (Mirage's φ).
using GridMap = std::array<int8_t, kMaxGridDims>;
using LoopMap = std::array<int8_t, kMaxLoops>;
inline constexpr GridMap kNoGrid = {-1, -1, -1};
inline constexpr LoopMap kNoLoops = {-1, -1, -1, -1};

enum class AccumKind : uint8_t { Sum, Max, Min, Concat };
const char* name(AccumKind);

#define TESSERA_EQUAL(T) friend bool operator==(const T&, const T&) = default

struct NoAttrs {
  template <class S, class F> static void fields(S&, F&&) {}
  TESSERA_EQUAL(NoAttrs);
};
struct InputAttrs {
  // Constant from call to call: what depends on weights alone may be computed once
  // (ir/weights.h).
  bool weight = false;
  template <class S, class F> static void fields(S& s, F&& f) { f("weight", s.weight); }
  TESSERA_EQUAL(InputAttrs);
};
struct ConstAttrs {
  Rational value;
  Type type;  // printed as the result type
  template <class S, class F> static void fields(S& s, F&& f) { f("value", s.value); }
  TESSERA_EQUAL(ConstAttrs);
};
struct IotaAttrs {
  int axis = 0;
  Type type;  // printed as the result type
  template <class S, class F> static void fields(S& s, F&& f) { f("axis", s.axis); }
  TESSERA_EQUAL(IotaAttrs);
};
struct PowAttrs {
  Rational exponent;
  template <class S, class F> static void fields(S& s, F&& f) { f("exponent", s.exponent); }
  TESSERA_EQUAL(PowAttrs);
};
struct CustomAttrs {          // see ir/custom.h
  std::string name = "same";  // as its user calls it
  std::string value = "x";    // an expression of C, of x or of x and y
  std::string law;            // "", "odd", "even" or "commutative"
  template <class S, class F> static void fields(S& s, F&& f) {
    f("name", s.name), f("value", s.value), f("law", s.law);
  }
  TESSERA_EQUAL(CustomAttrs);
};
struct CastAttrs {
  DType dtype = DType::F32;
  template <class S, class F> static void fields(S& s, F&& f) { f("dtype", s.dtype); }
  TESSERA_EQUAL(CastAttrs);
};
struct ReduceAttrs {
  std::vector<int> axes;  // sorted, distinct, non-negative
  bool keepdims = false;
  template <class S, class F> static void fields(S& s, F&& f) {
    f("axes", s.axes), f("keepdims", s.keepdims);
  }
  TESSERA_EQUAL(ReduceAttrs);
};
struct AxisAttrs {
  int axis = 0;
  template <class S, class F> static void fields(S& s, F&& f) { f("axis", s.axis); }
  TESSERA_EQUAL(AxisAttrs);
};
struct AxesAttrs {  // unsqueeze: positions in the result; squeeze: positions in the operand
  std::vector<int> axes;
  template <class S, class F> static void fields(S& s, F&& f) { f("axes", s.axes); }
  TESSERA_EQUAL(AxesAttrs);
};
struct PermAttrs {  // result axis i is operand axis perm[i]
  std::vector<int> perm;
  template <class S, class F> static void fields(S& s, F&& f) { f("perm", s.perm); }
  TESSERA_EQUAL(PermAttrs);
};
struct ShapeAttrs {
  Shape shape;
  template <class S, class F> static void fields(S& s, F&& f) { f("shape", s.shape); }
  TESSERA_EQUAL(ShapeAttrs);
};
struct RepeatAttrs {
  std::vector<int64_t> repeats;  // one per axis
  template <class S, class F> static void fields(S& s, F&& f) { f("repeats", s.repeats); }
  TESSERA_EQUAL(RepeatAttrs);
};
struct SliceAttrs {  // 0 <= start < stop <= extent, step >= 1; one entry per axis
  std::vector<int64_t> starts, stops, steps;
  template <class S, class F> static void fields(S& s, F&& f) {
    f("starts", s.starts), f("stops", s.stops), f("steps", s.steps);
  }
  TESSERA_EQUAL(SliceAttrs);
};
struct PadAttrs {  // counts >= 0, one per axis
  std::vector<int64_t> low, high;
  Rational value;
  template <class S, class F> static void fields(S& s, F&& f) {
    f("low", s.low), f("high", s.high), f("value", s.value);
  }
  TESSERA_EQUAL(PadAttrs);
};
// One entry per axis the window slides over; left out: strides and dilations 1, counts 0. `low` and
// `high` elements are added before and behind x; of conv_transpose they are taken off the result,
// where negative ones add zeros.
struct ConvAttrs {
  std::vector<int64_t> strides, dilations, low, high;
  int64_t groups = 1;
  template <class S, class F> static void fields(S& s, F&& f) {
    f("strides", s.strides), f("dilations", s.dilations), f("low", s.low), f("high", s.high),
        f("groups", s.groups);
  }
  TESSERA_EQUAL(ConvAttrs);
};
struct WindowAttrs {
  std::vector<int64_t> size, strides, dilations, low, high;  // as many as `size` has, see ConvAttrs
  template <class S, class F> static void fields(S& s, F&& f) {
    f("size", s.size), f("strides", s.strides), f("dilations", s.dilations), f("low", s.low),
        f("high", s.high);
  }
  TESSERA_EQUAL(WindowAttrs);
};
struct DiagonalAttrs {
  int64_t k = 0;
  template <class S, class F> static void fields(S& s, F&& f) { f("k", s.k); }
  TESSERA_EQUAL(DiagonalAttrs);
};
struct OpaqueAttrs {
  std::string function;  // e.g. "onnx.NonMaxSuppression"
  std::string payload;   // hash of everything else that determines the function
  std::vector<Type> results;
  template <class S, class F> static void fields(S& s, F&& f) {
    f("function", s.function), f("payload", s.payload);
  }
  TESSERA_EQUAL(OpaqueAttrs);
};
struct IterAttrs {
  GridMap imap = kNoGrid;
  LoopMap fmap = kNoLoops;
  template <class S, class F> static void fields(S& s, F&& f) {
    f("imap", s.imap), f("fmap", s.fmap);
  }
  TESSERA_EQUAL(IterAttrs);
};
struct AccumAttrs {
  AccumKind kind = AccumKind::Sum;
  std::vector<int> loops;  // which loops it folds, ascending; e.g. [0]
  int axis = -1;           // concat only
  template <class S, class F> static void fields(S& s, F&& f) {
    f("kind", s.kind), f("loops", s.loops), f("axis", s.axis);
  }
  TESSERA_EQUAL(AccumAttrs);
};
struct SaveAttrs {
  GridMap omap = kNoGrid;
  LoopMap fmap = kNoLoops;
  Type type;  // of the whole result; printed as the result type
  template <class S, class F> static void fields(S& s, F&& f) {
    f("omap", s.omap), f("fmap", s.fmap);
  }
  TESSERA_EQUAL(SaveAttrs);
};
#undef TESSERA_EQUAL

using Attrs = std::variant<NoAttrs, InputAttrs, ConstAttrs, IotaAttrs, PowAttrs, CustomAttrs,
                           CastAttrs, ReduceAttrs, AxisAttrs, AxesAttrs, PermAttrs, ShapeAttrs,
                           RepeatAttrs, SliceAttrs, PadAttrs, ConvAttrs, WindowAttrs, DiagonalAttrs,
                           OpaqueAttrs, IterAttrs, AccumAttrs, SaveAttrs>;

// --- the table --------------------------------------------------------------------------------

namespace algebra {
enum Flags : unsigned {
  None = 0,
  Pointwise = 1 << 0,
  Commutative = 1 << 1,
  Associative = 1 << 2,
  Linear = 1 << 3,  // in every operand taken alone
  // What it takes: floats, any numbers, or bools, all of one type. None of these: see ir/infer.h.
  Floats = 1 << 4,
  Numbers = 1 << 5,
  Bools = 1 << 6,
  // Over the reals. Partial: not defined for all operands. Jumps: not continuous. Decides: by the
  // order of numbers. Analytic: meromorphic in every operand.
  Partial = 1 << 7,
  Jumps = 1 << 8,
  Decides = 1 << 9,
  Analytic = 1 << 10,
  Positive = 1 << 11,     // whatever it is of
  NotNegative = 1 << 12,  // likewise; positive of what is positive
  Gate = 1 << 13,         // x times a function of x
  // In finite fields. InField: computed there as it is, not modelled. FieldPartial: its form there
  // is not defined everywhere, though it is over the reals.
  InField = 1 << 14,
  FieldPartial = 1 << 15,
  Exponential = 1 << 16 | InField | Analytic,  // rational in powers of e
  Ring = 1 << 17 | InField | Analytic,         // sums and products: of integers, modulo 2^w, too
  Movement = 1 << 18 | InField | Analytic,     // copies elements without computing
  Fills = 1 << 19,                             // movement: writes elements of its own, too
  // What an element costs: a division or root, or the call of a function.
  Division = 1 << 20,
  Call = 1 << 21,
  Comparison = 1 << 22 | Pointwise | Jumps,
};
}

struct OpInfo {
  const char* name;
  int min_arity;
  int max_arity;        // -1: any number
  unsigned levels;      // bit per Level
  unsigned flags;       // of algebra::Flags
  Attrs default_attrs;  // also tells which alternative the operator uses
};

const OpInfo& info(OpKind);
inline const char* name(OpKind kind) { return info(kind).name; }
std::optional<OpKind> op_from_name(std::string_view);
inline bool has(OpKind kind, algebra::Flags flag) { return (info(kind).flags & flag) == flag; }
template <class... K> constexpr bool is_one_of(OpKind kind, K... some) {
  return ((kind == some) || ...);
}
inline bool is_comparison(OpKind kind) { return has(kind, algebra::Comparison); }
// The orders of two numbers for which a comparison of them is true.
struct Outcomes {
  bool less = false, equal = false, greater = false;
  bool of(double a, double b) const { return a < b ? less : a > b ? greater : equal; }
};
Outcomes outcomes(OpKind comparison);
// How it is written between its operands, in C as in NumPy; null: as a call.
const char* symbol(OpKind kind);
inline bool is_input(OpKind kind) { return kind == OpKind::Input; }
// Known without any operand: a constant or a range.
inline bool is_literal(OpKind kind) { return is_one_of(kind, OpKind::Const, OpKind::Iota); }
inline bool is_leaf(OpKind kind) { return is_input(kind) || is_literal(kind); }
// Arrives with the call or is known before it: an input or a constant.
inline bool is_given(OpKind kind) { return is_input(kind) || kind == OpKind::Const; }
inline bool is_opaque(OpKind kind) { return kind == OpKind::Opaque; }
inline bool is_kernel(OpKind kind) { return kind == OpKind::Kernel; }
inline bool is_thread(OpKind kind) { return kind == OpKind::Thread; }
// The operand that a pointwise result is of the kind of: of where(c, x, y) it is x.
inline size_t first_value(OpKind kind) { return kind == OpKind::Where ? 1 : 0; }
inline bool is_reduction(OpKind kind) {
  return is_one_of(kind, OpKind::Sum, OpKind::Mean, OpKind::ReduceMax, OpKind::ReduceMin);
}
inline bool is_sum(OpKind kind) { return is_one_of(kind, OpKind::Sum, OpKind::Mean); }
inline bool is_product(OpKind kind) {
  return is_one_of(kind, OpKind::Matmul, OpKind::ConcatMatmul);
}
// Folds along an axis and keeps every step.
inline bool is_scan(OpKind kind) { return kind == OpKind::Cumsum; }
inline bool is_accumulator(OpKind kind) {
  return is_one_of(kind, OpKind::Accum, OpKind::AccumRescale);
}
// Takes a tile of an argument, or puts one into a result.
inline bool is_load(OpKind kind) { return kind == OpKind::Iter; }
inline bool is_store(OpKind kind) { return kind == OpKind::Save; }
inline bool is_tile(OpKind kind) { return is_load(kind) || is_store(kind); }
// A sum of products of elements of two operands, as products and convolutions are.
inline bool is_bilinear(OpKind kind) {
  return has(kind, algebra::Linear) && !has(kind, algebra::Pointwise) && info(kind).max_arity == 2;
}
// Takes sums of many terms.
inline bool adds_up(OpKind kind) {
  return (has(kind, algebra::Ring) && !has(kind, algebra::Pointwise)) || kind == OpKind::Mean;
}
// Takes another course where its one operand passes 0.
inline bool decides_by_sign(OpKind kind) {
  return has(kind, algebra::Decides) && has(kind, algebra::Pointwise) && info(kind).max_arity == 1;
}
inline bool is_extremum(OpKind kind) { return is_one_of(kind, OpKind::Max, OpKind::Min); }
inline bool adds_or_drops_ones(OpKind kind) {
  return is_one_of(kind, OpKind::Unsqueeze, OpKind::Squeeze);
}
// Leaves all elements in their order.
inline bool is_reshape(OpKind kind) { return kind == OpKind::Reshape || adds_or_drops_ones(kind); }
// Has all the operand's elements once, perhaps in another order.
inline bool rearranges(OpKind kind) { return is_reshape(kind) || kind == OpKind::Transpose; }
// Leaves all elements where they are, under other indices.
inline bool turns_axes(OpKind kind) {
  return kind == OpKind::Transpose || adds_or_drops_ones(kind);
}
inline bool is_triangle(OpKind kind) { return is_one_of(kind, OpKind::Triu, OpKind::Tril); }
// Every element of the result is one of an operand's.
inline bool only_moves(OpKind kind) {
  return has(kind, algebra::Movement) && !has(kind, algebra::Fills);
}
// Has all the operand's elements in another arrangement, some of them perhaps repeated.
inline bool arranges(OpKind kind) { return rearranges(kind) || kind == OpKind::Broadcast; }
// What a sum, maximum or minimum folds by, be it of two operands or over axes; nothing of others.
std::optional<AccumKind> fold_of(OpKind kind);
// The operators that fold two operands, and over axes.
OpKind step_by(AccumKind fold);
OpKind reduction_by(AccumKind fold);
inline bool reduces_by_order(OpKind kind) { return is_reduction(kind) && !is_sum(kind); }
inline bool allowed_at(OpKind kind, Level level) {
  return (info(kind).levels & (1u << unsigned(level))) != 0;
}
const std::vector<OpKind>& all_op_kinds();

struct Op {
  OpKind kind = OpKind::Input;
  Attrs attrs;
  std::vector<TensorId> inputs;
  TensorId first_result;  // results are consecutive tensors
  uint32_t num_results = 1;
  BodyId body;  // kernel and thread only

  TensorId result(uint32_t i = 0) const { return TensorId(first_result.index + i); }
  // The value of a constant, else null.
  const Rational* constant() const {
    const auto* a = std::get_if<ConstAttrs>(&attrs);
    return a ? &a->value : nullptr;
  }
};

// Whether it takes decisions by the order of numbers.
inline bool decides(const Op& op) {
  const auto* a = std::get_if<AccumAttrs>(&op.attrs);
  return has(op.kind, algebra::Decides) ||
         (a && (a->kind == AccumKind::Max || a->kind == AccumKind::Min));
}

}  // namespace tessera
