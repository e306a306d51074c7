// Elements of arrays as the stand-ins for libraries read and write them.
#pragma once
#include <cstdint>

#include "device.cuh"

// By NVIDIA's numbers of types (cudaDataType_t, cudnnDataType_t), which agree but for the last.
enum ElementType : int { kFloat = 0, kDouble = 1, kHalf = 2 };  // else bfloat16

inline int width(int type) { return type == kFloat ? 4 : type == kDouble ? 8 : 2; }

inline double read(const char* data, int type, int64_t i) {
  switch (type) {
  case kFloat: return reinterpret_cast<const float*>(data)[i];
  case kDouble: return reinterpret_cast<const double*>(data)[i];
  case kHalf: return ts::to_float(reinterpret_cast<const ts::f16*>(data)[i]);
  default: return ts::to_float(reinterpret_cast<const ts::bf16*>(data)[i]);
  }
}

inline void write(char* data, int type, int64_t i, double x) {
  switch (type) {
  case kFloat: reinterpret_cast<float*>(data)[i] = float(x); break;
  case kDouble: reinterpret_cast<double*>(data)[i] = x; break;
  case kHalf: reinterpret_cast<ts::f16*>(data)[i] = ts::from_float<ts::f16>(float(x)); break;
  default: reinterpret_cast<ts::bf16*>(data)[i] = ts::from_float<ts::bf16>(float(x)); break;
  }
}
