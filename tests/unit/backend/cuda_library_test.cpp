// Products by cuBLASLt, on a stand-in for it and for the driver.
#include "backend/cuda/library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "places.h"

namespace tessera {
namespace {

class CudaLibrary : public ::testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen(stand_in_cuda(), RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    reinterpret_cast<void (*)(int, int, int, int64_t, int64_t)>(dlsym(library, "stand_in_reset"))(
        1, 9, 0, 64 << 20, 100 << 10);
    CudaDriver::use_library(stand_in_cuda());
    use_cublaslt(stand_in_cublaslt());
  }
  void TearDown() override {
    use_cublaslt("");
    CudaDriver::use_library("");
  }

  static std::vector<float> numbers(int64_t n, uint64_t seed) {
    Rng rng(seed);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& e : x) e = float(rng.unit() - 0.5);
    return x;
  }
  static DeviceMemory on_device(const std::vector<float>& x) {
    DeviceMemory memory(CudaContext::of(0), int64_t(4 * x.size()), "a test's array");
    memory.fill(x.data(), nullptr);
    return memory;
  }

  static void expect_right(const LibraryCall& p) {
    const auto context = CudaContext::of(0);
    const auto callable = make_library_callable(context, p, 1 << 20);
    const int64_t own_left = p.left_batched ? p.batch : 1,
                  own_right = p.right_batched ? p.batch : 1;
    const auto left = numbers(own_left * p.rows * p.depth, 1);
    const auto right = numbers(own_right * p.depth * p.columns, 2);
    const auto bias = numbers(p.columns, 3);
    std::vector<float> got(size_t(p.batch * p.rows * p.columns), 0);
    const DeviceMemory l = on_device(left), r = on_device(right), b = on_device(bias),
                       out = on_device(got),
                       work(context, callable->workspace_bytes(), "the workspace");
    const std::vector<CudaAddress> operands = {b.address(), r.address(), l.address()};
    callable->run(operands, out.address(), work.address(), nullptr);
    out.read(got.data(), nullptr);
    for (int64_t n = 0; n < p.batch; ++n)
      for (int64_t i = 0; i < p.rows; ++i)
        for (int64_t j = 0; j < p.columns; ++j) {
          double sum = p.bias >= 0 ? double(bias[size_t(j)]) : 0;
          for (int64_t k = 0; k < p.depth; ++k)
            sum += double(left[size_t(((p.left_batched ? n : 0) * p.rows + i) * p.depth + k)]) *
                   right[size_t(((p.right_batched ? n : 0) * p.depth + k) * p.columns + j)];
          if (p.epilogue == LibraryCall::Epilogue::Relu) sum = std::max(sum, 0.0);
          if (p.epilogue == LibraryCall::Epilogue::GeluTanh)
            sum = 0.5 * sum *
                  (1 + std::tanh(std::sqrt(2 / M_PI) * (sum + 0.044715 * sum * sum * sum)));
          ASSERT_NEAR(got[size_t((n * p.rows + i) * p.columns + j)], sum, 1e-5)
              << p.str() << " at " << n << "," << i << "," << j;
        }
  }
};

TEST_F(CudaLibrary, ProductsAreRowMajor) {
  LibraryCall p;
  p.dtype = DType::F32;
  p.left = 2;
  p.right = 1;
  p.rows = 3;
  p.columns = 5;
  p.depth = 7;
  expect_right(p);
  p.bias = 0;
  expect_right(p);
  p.epilogue = LibraryCall::Epilogue::Relu;
  expect_right(p);
  p.epilogue = LibraryCall::Epilogue::GeluTanh;
  expect_right(p);
  p.bias = -1;
  expect_right(p);
  p.batch = 2;
  p.left_batched = true;
  expect_right(p);
  p.right_batched = true;
  expect_right(p);
  p.tf32 = true;
  expect_right(p);
}

TEST_F(CudaLibrary, WhatItCannotDoIsToldApart) {
  const auto kind = [](const LibraryCall& p, int64_t workspace) {
    try {
      make_library_callable(CudaContext::of(0), p, workspace);
    } catch (const Error& e) {
      return std::string(to_string(e.kind())) + ": " + e.message();
    }
    return std::string("none");
  };
  LibraryCall p;
  EXPECT_EQ(kind(p, 1 << 20), "none");
  EXPECT_NE(kind(p, 10).find("unsupported: cuBLASLt 12.8 has no way for matmul f16 1x1x1x1"),
            std::string::npos)
      << kind(p, 10);
  p.dtype = DType::I8;
  EXPECT_NE(kind(p, 1 << 20).find("unsupported: "), std::string::npos);
  use_cublaslt("/nowhere/libcublasLt.so");
  p.dtype = DType::F16;
  EXPECT_NE(kind(p, 1 << 20).find("tool_missing: cuBLASLt is not found: pip install nvidia-cublas"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
