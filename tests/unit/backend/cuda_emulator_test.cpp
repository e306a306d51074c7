// Kernels written by hand with the device functions: right ones run clean and give the right
// numbers, and each kind of fault put into them is found.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/cuda/emulator.h"
#include "backend/cuda_kernels.cuh"
#include "base/rng.h"

namespace tessera {
namespace {

std::vector<float> random_floats(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(n);
  for (float& v : x) v = float(rng.unit() * 2 - 1);
  return x;
}

template <class T> EmulatedBuffer input(const std::vector<T>& x) {
  return {const_cast<T*>(x.data()), int64_t(x.size() * sizeof(T)), false, true};
}
template <class T> EmulatedBuffer output(std::vector<T>& x) {
  return {x.data(), int64_t(x.size() * sizeof(T)), true, false};
}

struct EmulatorOutcome {
  std::optional<KernelFault> fault;
  double error = 0;  // largest difference from what is right
};

EmulatorOutcome run_scale(Fault fault, uint64_t seed) {
  constexpr int n = 1000;
  const std::vector<float> x = random_floats(n, 1);
  std::vector<float> y(n, NAN);
  EmulatorOutcome r;
  r.fault = emulate({{4, 1, 1}, 64, 0, {output(y), input(x)}, seed},
                    [&] { scale(y.data(), x.data(), n, fault); });
  for (int i = 0; i < n; ++i)
    r.error = std::max(r.error, std::abs(double(y[size_t(i)]) - 2 * x[size_t(i)]));
  return r;
}

EmulatorOutcome run_row_sums(Fault fault, uint64_t seed) {
  constexpr int rows = 6, n = 300;
  const std::vector<float> x = random_floats(rows * n, 2);
  std::vector<float> y(rows, NAN);
  EmulatorOutcome r;
  r.fault = emulate({{rows / 2, 1, 1}, 128, 16, {output(y), input(x)}, seed},
                    [&] { row_sums(y.data(), x.data(), n, fault); });
  for (int row = 0; row < rows; ++row) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += x[size_t(row * n + i)];
    r.error = std::max(r.error, std::abs(sum - y[size_t(row)]));
  }
  return r;
}

EmulatorOutcome run_matmul(Fault fault, uint64_t seed) {
  constexpr int m = 80, n = 128, k = 96;
  std::vector<ts::f16> a(m * k), b(k * n);
  Rng rng(3);
  for (auto* x : {&a, &b})
    for (ts::f16& v : *x) v = ts::from_float<ts::f16>(float(rng.unit() * 2 - 1));
  std::vector<float> c(m * n, NAN);
  EmulatorOutcome r;
  r.fault =
      emulate({{n / kTile, 2, 1}, 128, 2 * kStageBytes, {output(c), input(a), input(b)}, seed},
              [&] { matmul(c.data(), a.data(), b.data(), m, n, k, fault); });
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l)
        sum += double(ts::to_float(a[size_t(i * k + l)])) * ts::to_float(b[size_t(l * n + j)]);
      const double difference = std::abs(sum - c[size_t(i * n + j)]);
      r.error = std::isnan(difference) ? INFINITY : std::max(r.error, difference);
    }
  return r;
}

EmulatorOutcome run_hand_over(Fault fault, uint64_t seed) {
  const std::vector<float> x = random_floats(96, 4);
  std::vector<float> y(96, NAN);
  EmulatorOutcome r;
  r.fault = emulate({{1, 1, 1}, 64, 256, {output(y), input(x)}, seed},
                    [&] { hand_over(y.data(), x.data(), fault); });
  for (size_t i = 0; i < 96; ++i)
    r.error = std::max(r.error, std::abs(double(x[i]) + x[i ^ 1] - y[i]));
  return r;
}

EmulatorOutcome run_matmul_wide(Fault fault, uint64_t seed) {
  constexpr int m = 80, n = 128, k = 256;
  std::vector<ts::f16> a(m * k), b(k * n);
  Rng rng(3);
  for (auto* x : {&a, &b})
    for (ts::f16& v : *x) v = ts::from_float<ts::f16>(float(rng.unit() * 2 - 1));
  std::vector<float> c(m * n, NAN);
  const auto map = [](auto& x, int rows, int columns, bool swizzled) {
    const int size = int(sizeof x[0]);
    return ts::host::tensor_map(x.data(), rows, columns, columns * size, size, 64, 64, swizzled);
  };
  const ts::TensorMap maps[] = {map(c, m, n, false), map(a, m, k, true), map(b, k, n, true)};
  EmulatorOutcome r;
  r.fault = emulate({{n / 64, 2, 1}, 128, kWideBytes, {output(c), input(a), input(b)}, seed},
                    [&] { matmul_wide(maps[0], maps[1], maps[2], k, fault); });
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l)
        sum += double(ts::to_float(a[size_t(i * k + l)])) * ts::to_float(b[size_t(l * n + j)]);
      const double difference = std::abs(sum - c[size_t(i * n + j)]);
      r.error = std::isnan(difference) ? INFINITY : std::max(r.error, difference);
    }
  return r;
}

class CudaEmulator : public testing::Test {
 protected:
  void SetUp() override { ts::host::api = emulator_api(); }
};

using Runner = EmulatorOutcome (*)(Fault, uint64_t);

TEST_F(CudaEmulator, RightKernelsRunClean) {
  for (const Runner run :
       {&run_scale, &run_row_sums, &run_matmul, &run_hand_over, &run_matmul_wide})
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const EmulatorOutcome r = run(Fault::None, seed);
      EXPECT_FALSE(r.fault) << r.fault->str();
      EXPECT_LT(r.error, 1e-4);
    }
}

TEST_F(CudaEmulator, FindsEveryFault) {
  const std::vector<std::pair<Runner, Fault>> faults = {
      {&run_scale, Fault::NoTail},
      {&run_scale, Fault::UnevenRow},
      {&run_scale, Fault::SameElement},
      {&run_scale, Fault::ReadsOutput},
      {&run_scale, Fault::WritesInput},
      {&run_row_sums, Fault::ShuffleInBranch},
      {&run_row_sums, Fault::BeyondShared},
      {&run_row_sums, Fault::SyncInBranch},
      {&run_row_sums, Fault::NoSync},
      {&run_row_sums, Fault::NoSecondSync},
      {&run_matmul, Fault::NoTail},
      {&run_matmul, Fault::NoCommit},
      {&run_matmul, Fault::NoInitialization},
      {&run_matmul, Fault::WaitTooFew},
      {&run_matmul, Fault::NoWait},
      {&run_matmul, Fault::NoSync},
      {&run_matmul, Fault::WrongStage},
      {&run_matmul, Fault::WrongRow},
      {&run_matmul, Fault::WrongSwizzle},
      {&run_matmul, Fault::WrongTranspose},
      {&run_matmul, Fault::NoSecondSync},
      {&run_hand_over, Fault::NoArrival},
      {&run_hand_over, Fault::MeetingOfTooMany},
      {&run_hand_over, Fault::NoWarpSync},
      {&run_matmul_wide, Fault::NoFullWait},
      {&run_matmul_wide, Fault::NoEmptyWait},
      {&run_matmul_wide, Fault::WrongParity},
      {&run_matmul_wide, Fault::TooFewBytes},
      {&run_matmul_wide, Fault::TooManyBytes},
      {&run_matmul_wide, Fault::NoFence},
      {&run_matmul_wide, Fault::NoProductWait},
      {&run_matmul_wide, Fault::NoStoreWait},
      {&run_matmul_wide, Fault::NotAdded},
      {&run_matmul_wide, Fault::WrongStride},
      {&run_matmul_wide, Fault::NoBarrier},
  };
  for (size_t n = 0; n < faults.size(); ++n)
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const EmulatorOutcome r = faults[n].first(faults[n].second, seed);
      EXPECT_TRUE(r.fault || r.error > 1e-2) << "fault " << n << " went unseen, seed " << seed;
      if (r.fault) {
        EXPECT_GT(r.fault->line, 0) << r.fault->str();
      }
    }
}

TEST_F(CudaEmulator, NumbersOfSixteenBitsRoundToNearest) {
  for (unsigned n = 0; n < 0x7c00; ++n) {
    const ts::f16 x{static_cast<unsigned short>(n)};
    const float f = ts::to_float(x),
                next = ts::to_float(ts::f16{static_cast<unsigned short>(n + 1)});
    ASSERT_EQ(ts::from_float<ts::f16>(f).bits, n);
    ASSERT_EQ(ts::from_float<ts::f16>(-f).bits, n | 0x8000);
    if (n + 1 == 0x7c00) break;
    const float middle = (f + next) / 2;  // ties go to the even one
    ASSERT_EQ(ts::from_float<ts::f16>(middle).bits, n + (n & 1));
    ASSERT_EQ(ts::from_float<ts::f16>(std::nextafter(middle, next)).bits, n + 1);
    ASSERT_EQ(ts::from_float<ts::f16>(std::nextafter(middle, f)).bits, n);
  }
  EXPECT_EQ(ts::from_float<ts::f16>(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ts::from_float<ts::f16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ts::from_float<ts::bf16>(1.00390625f).bits, 0x3f80);  // a tie
  EXPECT_EQ(ts::from_float<ts::bf16>(1.01171875f).bits, 0x3f82);
}

}  // namespace
}  // namespace tessera
