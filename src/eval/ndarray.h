// Tensors at run time: contiguous, row-major arrays with a dtype. Floats of every dtype are kept as
// f64 (which holds all of them exactly), integers and bools as int64.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/types.h"

namespace tessera {

struct NDArray {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::vector<double> reals;  // filled when is_float(dtype)
  std::vector<int64_t> ints;  // filled otherwise; bools are 0 and 1

  int64_t size() const { return product_of(shape); }
  double at(size_t i) const { return ints.empty() ? reals[i] : double(ints[i]); }
  // A zero-filled array.
  static NDArray zeros(DType dtype, std::vector<int64_t> shape);
  // Takes `values`, rounding them to `dtype`.
  static NDArray of(DType dtype, std::vector<int64_t> shape, std::vector<double> values);
};

// `x` rounded to the nearest value of a float dtype (ties to even; overflow gives infinity).
double round_to(DType dtype, double x);
// `x` wrapped into an integer dtype (Z/2^w), or to 0 and 1 for bool.
int64_t wrap_to(DType dtype, int64_t x);

}  // namespace tessera
