// What an operation costs, from its kind and shapes: for choosing among equal programs before any
// of them is measured.
#pragma once
#include <string>

#include "search/synth/world.h"

namespace tessera::synth {

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

  // Seconds. `arg_forms` are the forms of the operands' cheapest programs.
  double seconds(const World& world, const Node& node, const Dims& result, const Dims* const* args,
                 const Form* arg_forms) const;
};

}  // namespace tessera::synth
