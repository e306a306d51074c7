// What an operation costs, from its kind and shapes: for choosing among equal programs before any
// of them is measured.
#pragma once
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "search/synth/world.h"

namespace tessera::synth {

// Kinds of operations whose times are measured apart; names are those of timed_name().
enum class Timed : uint8_t {
  Simple,  // add, subtract, multiply, divide, maximum, square root
  Square,  // a product with itself
  Compare,
  Select,         // where
  Exponential,    // exp and log
  Trigonometric,  // sin, cos, tanh, erf
  Power,          // with a general exponent
  ReduceLast,     // along the innermost axis
  ReduceOther,
  MatrixVector,
  MatrixProduct,
  Stack,
  Triangle,
};
inline constexpr size_t kNumTimed = 13;
const char* timed_name(Timed);

// Nanoseconds of an operation at amounts of work, ascending: elements of the largest operand or the
// result, of a matrix product multiplications; both for f32. Empty: not measured.
using TimeCurve = std::vector<std::pair<double, double>>;

// What the search minimises.
enum class CostKind : uint8_t {
  Times,  // of calls one after the other, as NumPy runs them
  Fused,  // of loops that a compiler makes of all that is elementwise (XLA, Inductor)
  Flops,  // operations on numbers, wherever they are
};

// Of a machine and a library. Nanoseconds per element are for f32 in cache; other floats scale with
// their size. Defaults: NumPy 2.4 on 2 cores of an Intel Xeon (Granite Rapids), measured.
struct Rates {
  double call_ns = 250;    // one call
  double view_ns = 100;    // one call that copies nothing
  double scalar_ns = 200;  // more, where an operand is a Python number
  double simple = 0.15;    // add, subtract, multiply, divide, maximum, square root
  double compare = 0.07;
  double select = 0.5;  // where
  double transcendental = 0.33;
  double power = 0.8;        // with a general exponent
  double strided = 0.2;      // more, per element, where an operand is read across its rows
  double reduce_last = 0.2;  // along the innermost axis
  double reduce_other = 0.12;
  double triangle = 0.7;
  double copy = 0.1;
  double flop = 1.0 / 200;      // of a matrix product
  double matrix_vector = 0.05;  // per element of the matrix
  double cache_bytes = 1 << 20;
  double byte = 1.0 / 25;  // of what does not fit in cache

  CostKind kind = CostKind::Times;
  std::array<TimeCurve, kNumTimed> measured;  // in place of the figures above, where there are any
  double call_floor = 0;  // the least of these: what a call takes that does nothing

  // Takes curves by name. Throws Error{Usage} for names and numbers that make no sense.
  void set(const std::map<std::string, TimeCurve>& curves);

  // Seconds that a value costs because a loop of its own writes it: for fused loops, what its
  // operations do not say. 0 for the other kinds.
  double loop_seconds(const World& world, const Dims& result) const;
  // Whether a compiler computes this where it is used, without a loop of its own.
  static bool fuses(Form form);

  // Seconds. `arg_forms` are the forms of the operands' cheapest programs.
  double seconds(const World& world, const Node& node, const Dims& result, const Dims* const* args,
                 const Form* arg_forms) const;
  // `of` tells an operand's shape, as a pointer, and its form.
  template <class Of>
  double seconds(const World& world, const Node& node, const Dims& result, Of of) const {
    const Dims* dims[3] = {};
    Form forms[3] = {};
    for (size_t i = 0; i < node.arity; ++i) std::tie(dims[i], forms[i]) = of(node.arg[i]);
    return seconds(world, node, result, dims, forms);
  }

 private:
  double flops(const World& world, const Node& node, const Dims& result,
               const Dims* const* args) const;
  // Nanoseconds of what was measured, for fused loops without the call; a negative number where
  // nothing was.
  double nanoseconds(Timed what, double work) const;
  double of_a_call(Timed what, double work) const;
};

}  // namespace tessera::synth
