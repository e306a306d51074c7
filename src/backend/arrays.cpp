#include "backend/arrays.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tessera {
namespace {

template <class T, class V> void put(std::vector<std::byte>& bytes, const std::vector<V>& values) {
  bytes.resize(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T x = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof(T));
  }
}

template <class T, class V> void get(std::vector<V>& values, const void* data) {
  for (size_t i = 0; i < values.size(); ++i) {
    T x;
    std::memcpy(&x, static_cast<const std::byte*>(data) + i * sizeof(T), sizeof(T));
    values[i] = static_cast<V>(x);
  }
}

// The values are representable, so these conversions are exact.
uint16_t to_bits16(DType dtype, double x) {
  uint32_t b;
  const float f = float(x);
  std::memcpy(&b, &f, 4);
  if (dtype == DType::BF16) return uint16_t(b >> 16 | (std::isnan(x) ? 0x40 : 0));
  const uint32_t sign = b >> 16 & 0x8000;
  if (std::isnan(x)) return uint16_t(sign | 0x7e00);
  if (std::isinf(x)) return uint16_t(sign | 0x7c00);
  const double a = std::fabs(x);
  if (a < 0x1p-14) return uint16_t(sign | uint32_t(a * 0x1p24));
  return uint16_t(sign | ((b & 0x7fffffff) - 0x38000000) >> 13);
}

double from_bits16(DType dtype, uint16_t h) {
  if (dtype == DType::BF16) {
    const uint32_t b = uint32_t(h) << 16;
    float f;
    std::memcpy(&f, &b, 4);
    return f;
  }
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double sign = (h & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * mantissa * 0x1p-24;
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

}  // namespace

std::vector<std::byte> to_memory(const NDArray& x) {
  std::vector<std::byte> bytes;
  switch (x.dtype) {
  case DType::F64: put<double>(bytes, x.reals); break;
  case DType::F32: put<float>(bytes, x.reals); break;
  case DType::F16:
  case DType::BF16:
    bytes.resize(x.reals.size() * 2);
    for (size_t i = 0; i < x.reals.size(); ++i) {
      const uint16_t h = to_bits16(x.dtype, x.reals[i]);
      std::memcpy(bytes.data() + 2 * i, &h, 2);
    }
    break;
  case DType::I64: put<int64_t>(bytes, x.ints); break;
  case DType::I32: put<int32_t>(bytes, x.ints); break;
  case DType::I8: put<int8_t>(bytes, x.ints); break;
  case DType::U8:
  case DType::Bool: put<uint8_t>(bytes, x.ints); break;
  }
  return bytes;
}

NDArray from_memory(const Type& type, const void* data) {
  NDArray x = NDArray::zeros(type.dtype, extents(type.shape));
  switch (type.dtype) {
  case DType::F64: get<double>(x.reals, data); break;
  case DType::F32: get<float>(x.reals, data); break;
  case DType::F16:
  case DType::BF16:
    for (size_t i = 0; i < x.reals.size(); ++i) {
      uint16_t h;
      std::memcpy(&h, static_cast<const std::byte*>(data) + 2 * i, 2);
      x.reals[i] = from_bits16(type.dtype, h);
    }
    break;
  case DType::I64: get<int64_t>(x.ints, data); break;
  case DType::I32: get<int32_t>(x.ints, data); break;
  case DType::I8: get<int8_t>(x.ints, data); break;
  case DType::U8:
  case DType::Bool: get<uint8_t>(x.ints, data); break;
  }
  return x;
}

void fill_constant(const Type& type, const Rational& value, void* to) {
  NDArray one = NDArray::zeros(type.dtype, {1});
  if (is_float(type.dtype))
    one.reals[0] = round_to(type.dtype, value.to_double());
  else
    one.ints[0] = type.dtype == DType::Bool ? !value.is_zero() : value.num();
  const std::vector<std::byte> element = to_memory(one);
  for (int64_t at = 0; at < type.bytes(); at += int64_t(element.size()))
    std::memcpy(static_cast<std::byte*>(to) + at, element.data(), element.size());
}

}  // namespace tessera
