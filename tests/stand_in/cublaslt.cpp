// A stand-in for cuBLASLt: the functions that Tessera calls, on the devices of the stand-in for the
// driver (cuda_driver.cpp). Matrices are counted by columns, as the library does it.
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cuda/driver_api.h"
#include "device.cuh"

namespace {

struct Product {
  int compute = 0, scale = 0, epilogue = 1;
  uint64_t bias = 0;
};
struct Layout {
  int type = 0;
  uint64_t rows = 0, columns = 0;
  int64_t pitch = 0;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct Preference {
  size_t workspace = 0;
};
struct Way {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
constexpr int kInvalidValue = 7, kNotSupported = 15;
constexpr uint64_t kMark = 42;
constexpr size_t kWorkspace = 1024;

double read(const char* data, int type, int64_t i) {
  switch (type) {
  case 0: return reinterpret_cast<const float*>(data)[i];
  case 1: return reinterpret_cast<const double*>(data)[i];
  case 2: return ts::to_float(reinterpret_cast<const ts::f16*>(data)[i]);
  default: return ts::to_float(reinterpret_cast<const ts::bf16*>(data)[i]);
  }
}

void write(char* data, int type, int64_t i, double x) {
  switch (type) {
  case 0: reinterpret_cast<float*>(data)[i] = float(x); break;
  case 1: reinterpret_cast<double*>(data)[i] = x; break;
  case 2: reinterpret_cast<ts::f16*>(data)[i] = ts::from_float<ts::f16>(float(x)); break;
  default: reinterpret_cast<ts::bf16*>(data)[i] = ts::from_float<ts::bf16>(float(x)); break;
  }
}

int width(int type) { return type == 0 ? 4 : type == 1 ? 8 : 2; }

}  // namespace

extern "C" {

int cublasLtCreate(void** handle) {
  *handle = new int;
  return 0;
}
int cublasLtDestroy(void* handle) {
  delete static_cast<int*>(handle);
  return 0;
}
size_t cublasLtGetVersion() { return 120804; }
int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  *made = new Product{compute, scale};
  return 0;
}
int cublasLtMatmulDescDestroy(void* p) {
  delete static_cast<Product*>(p);
  return 0;
}
int cublasLtMatmulDescSetAttribute(void* p, int which, const void* value, size_t bytes) {
  auto& product = *static_cast<Product*>(p);
  if (which == 7 && bytes == 4)
    std::memcpy(&product.epilogue, value, 4);
  else if (which == 8 && bytes == 8)
    std::memcpy(&product.bias, value, 8);
  else
    return kInvalidValue;
  return 0;
}
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns,
                               int64_t pitch) {
  if (pitch < int64_t(rows)) return kInvalidValue;
  *made = new Layout{type, rows, columns, pitch, 1, 0};
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* p) {
  delete static_cast<Layout*>(p);
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(void* p, int which, const void* value, size_t bytes) {
  auto& layout = *static_cast<Layout*>(p);
  if (which == 5 && bytes == 4)
    std::memcpy(&layout.batch, value, 4);
  else if (which == 6 && bytes == 8)
    std::memcpy(&layout.stride, value, 8);
  else
    return kInvalidValue;
  return 0;
}
int cublasLtMatmulPreferenceCreate(void** made) {
  *made = new Preference;
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void* p) {
  delete static_cast<Preference*>(p);
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(void* p, int which, const void* value, size_t bytes) {
  if (which != 1 || bytes != 8) return kInvalidValue;
  std::memcpy(&static_cast<Preference*>(p)->workspace, value, 8);
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void* product, void* a, void* b, void*, void* d,
                                   void* preference, int wanted, Way* ways, int* found) {
  const auto& p = *static_cast<Product*>(product);
  const auto &la = *static_cast<Layout*>(a), &lb = *static_cast<Layout*>(b),
             &ld = *static_cast<Layout*>(d);
  *found = 0;
  if (la.rows != ld.rows || lb.columns != ld.columns || la.columns != lb.rows || wanted < 1)
    return kInvalidValue;
  const bool wide = la.type == 1;
  if (wide ? p.compute != 70 || p.scale != 1
           : (p.compute != 68 && (p.compute != 77 || la.type != 0)) || p.scale != 0)
    return kNotSupported;
  if (static_cast<Preference*>(preference)->workspace < kWorkspace) return kNotSupported;
  *found = 1;
  *ways = Way{{kMark}, kWorkspace, 0, 1, {}};
  return 0;
}
int cublasLtMatmul(void*, void* product, const void* alpha, const void* a, void* la_, const void* b,
                   void* lb_, const void* beta, const void* c, void*, void* d, void* ld_,
                   const uint64_t* algorithm, void* workspace, size_t workspace_bytes, void*) {
  const auto p = *static_cast<Product*>(product);
  const auto la = *static_cast<Layout*>(la_), lb = *static_cast<Layout*>(lb_),
             ld = *static_cast<Layout*>(ld_);
  const double one =
      p.scale == 1 ? *static_cast<const double*>(alpha) : double(*static_cast<const float*>(alpha));
  const double zero =
      p.scale == 1 ? *static_cast<const double*>(beta) : double(*static_cast<const float*>(beta));
  if (algorithm[0] != kMark || workspace == nullptr || workspace_bytes < kWorkspace || one != 1 ||
      zero != 0 || c != d)
    return kInvalidValue;
  const int bytes = width(ld.type);
  for (int64_t n = 0; n < ld.batch; ++n) {
    const char* left = static_cast<const char*>(a) + n * la.stride * bytes;
    const char* right = static_cast<const char*>(b) + n * lb.stride * bytes;
    char* to = static_cast<char*>(d) + n * ld.stride * bytes;
    for (int64_t i = 0; i < int64_t(ld.rows); ++i)
      for (int64_t j = 0; j < int64_t(ld.columns); ++j) {
        double sum = 0;
        for (int64_t k = 0; k < int64_t(la.columns); ++k)
          sum += read(left, la.type, k * la.pitch + i) * read(right, lb.type, j * lb.pitch + k);
        if ((p.epilogue & 4) != 0) sum += read(reinterpret_cast<const char*>(p.bias), ld.type, i);
        if ((p.epilogue & 2) != 0) sum = sum > 0 ? sum : 0;
        if ((p.epilogue & 32) != 0)
          sum =
              0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        write(to, ld.type, j * ld.pitch + i, sum);
      }
  }
  return 0;
}

}  // extern "C"
