#include "eval/ndarray.h"

#include <bit>
#include <cmath>

#include "base/check.h"

namespace tessera {
namespace {

// Rounds to `bits` significant bits with exponents down to `min_exponent` (of the last place of the
// subnormals); ties to even through the current rounding mode of the addition trick.
double round_bits(double x, int bits, int min_exponent, double largest) {
  if (x == 0 || !std::isfinite(x)) return x;
  if (std::abs(x) > 2 * largest) return std::copysign(INFINITY, x);
  const int exponent = int(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff) - 1022;  // |x| < 2^exponent
  const int last = std::max(exponent - bits, min_exponent);
  // 1.5·2^(last+52): what is added to it loses all below 2^last.
  const double shift = std::bit_cast<double>(uint64_t(last + 52 + 1023) << 52 | uint64_t{1} << 51);
  const double rounded = std::copysign((x + shift) - shift, x);
  return std::abs(rounded) > largest ? std::copysign(INFINITY, x) : rounded;
}

}  // namespace

NDArray NDArray::zeros(DType dtype, std::vector<int64_t> shape) {
  NDArray a;
  a.dtype = dtype;
  a.shape = std::move(shape);
  if (is_float(dtype))
    a.reals.assign(size_t(a.size()), 0.0);
  else
    a.ints.assign(size_t(a.size()), 0);
  return a;
}

NDArray NDArray::of(DType dtype, std::vector<int64_t> shape, std::vector<double> values) {
  NDArray a;
  a.dtype = dtype;
  a.shape = std::move(shape);
  CHECK(a.size() == int64_t(values.size())) << values.size() << " values for " << a.size();
  if (is_float(dtype)) {
    for (double& x : values) x = round_to(dtype, x);
    a.reals = std::move(values);
  } else {
    for (double x : values) a.ints.push_back(wrap_to(dtype, int64_t(x)));
  }
  return a;
}

double round_to(DType dtype, double x) {
  switch (dtype) {
  case DType::F64: return x;
  case DType::F32: return double(float(x));
  case DType::F16: return round_bits(x, 11, -24, 65504.0);
  case DType::BF16: return round_bits(x, 8, -133, std::ldexp(255.0, 120));
  case DType::I64:
  case DType::I32:
  case DType::I8:
  case DType::U8:
  case DType::Bool: break;
  }
  unreachable("round_to an integer type");
}

int64_t wrap_to(DType dtype, int64_t x) {
  switch (dtype) {
  case DType::I64: return x;
  case DType::I32: return int32_t(uint32_t(uint64_t(x)));
  case DType::I8: return int8_t(uint8_t(uint64_t(x)));
  case DType::U8: return uint8_t(uint64_t(x));
  case DType::Bool: return x != 0;
  case DType::F64:
  case DType::F32:
  case DType::F16:
  case DType::BF16: break;
  }
  unreachable("wrap_to a float type");
}

}  // namespace tessera
