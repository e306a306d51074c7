// A stand-in for cuBLASLt: the functions that Tessera calls, on the devices of the stand-in for the
// driver (cuda_driver.cpp). Matrices are counted by columns, as the library does it.
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cuda/driver_api.h"
#include "elements.h"
#include "stand_in.h"

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
  uint32_t alignment[4] = {256, 256, 256, 256};
};
struct Way {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
constexpr int kInvalidValue = 7, kExecutionFailed = 13, kNotSupported = 15;
constexpr uint64_t kMark = 42;
constexpr size_t kWorkspace = 1024;

// A product as it was asked for, to be done when the stream comes to it.
struct Call {
  Product product;
  Layout left, right, out;
  const char *a, *b;
  char* d;

  int run() const {
    const int bytes = width(out.type);
    for (int64_t n = 0; n < out.batch; ++n) {
      const char* x = a + n * left.stride * bytes;
      const char* y = b + n * right.stride * bytes;
      char* to = d + n * out.stride * bytes;
      for (int64_t i = 0; i < int64_t(out.rows); ++i)
        for (int64_t j = 0; j < int64_t(out.columns); ++j) {
          double sum = 0;
          for (int64_t k = 0; k < int64_t(left.columns); ++k)
            sum +=
                read(x, left.type, k * left.pitch + i) * read(y, right.type, j * right.pitch + k);
          write(to, out.type, j * out.pitch + i, epilogue(sum, i));
        }
    }
    return 0;
  }
  double epilogue(double x, int64_t i) const {
    if ((product.epilogue & 4) != 0)
      x += read(reinterpret_cast<const char*>(product.bias), out.type, i);
    if ((product.epilogue & 2) != 0) x = x > 0 ? x : 0;
    if ((product.epilogue & 32) != 0)
      x = 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return x;
  }
};

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
  auto& preference = *static_cast<Preference*>(p);
  if (which == 1 && bytes == 8)
    std::memcpy(&preference.workspace, value, 8);
  else if (which >= 5 && which <= 8 && bytes == 4)
    std::memcpy(&preference.alignment[which - 5], value, 4);
  else
    return kInvalidValue;
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
  if (wide && p.epilogue != 1) return kNotSupported;  // as the library itself
  const auto& wish = *static_cast<Preference*>(preference);
  if (wish.workspace < kWorkspace) return kNotSupported;
  // Ways for arrays that begin at multiples of 256 fail on others; there are none of these here.
  for (const uint32_t alignment : wish.alignment)
    if (alignment > 16) return kNotSupported;
  *found = 1;
  *ways = Way{{kMark}, kWorkspace, 0, 1, {}};
  return 0;
}
int cublasLtMatmul(void*, void* product, const void* alpha, const void* a, void* la, const void* b,
                   void* lb, const void* beta, const void* c, void*, void* d, void* ld,
                   const uint64_t* algorithm, void* workspace, size_t workspace_bytes,
                   void* stream) {
  const auto number = [&](const void* x) {
    return static_cast<Product*>(product)->scale == 1 ? *static_cast<const double*>(x)
                                                      : double(*static_cast<const float*>(x));
  };
  if (algorithm[0] != kMark || workspace == nullptr || workspace_bytes < kWorkspace ||
      number(alpha) != 1 || number(beta) != 0 || c != d)
    return kInvalidValue;
  auto* call = new Call{*static_cast<Product*>(product),
                        *static_cast<Layout*>(la),
                        *static_cast<Layout*>(lb),
                        *static_cast<Layout*>(ld),
                        static_cast<const char*>(a),
                        static_cast<const char*>(b),
                        static_cast<char*>(d)};
  const auto run = [](void* data) { return static_cast<Call*>(data)->run(); };
  const auto release = [](void* data) { delete static_cast<Call*>(data); };
  return stand_in_enqueue(stream, run, release, call) == 0 ? 0 : kExecutionFailed;
}

}  // extern "C"
