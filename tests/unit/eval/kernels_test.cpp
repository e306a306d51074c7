#include "eval/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

namespace tessera {
namespace {

template <class W> std::vector<W> random_words(const Modulus<W>& m, size_t n, uint64_t seed) {
  std::vector<W> x(n);
  UniformBelow uniform(m.p);
  for (size_t i = 0; i < n; ++i) x[i] = W(uniform.at(CounterRng{seed}, i));
  return x;
}

// a·b·R^-1 mod p by plain 128-bit remainders.
template <class W> W naive_mul(const Modulus<W>& m, uint64_t a, uint64_t b) {
  uint128 product = uint128(a) * b % m.p;
  for (int i = 0; i < Modulus<W>::kBits; ++i) {  // halve kBits times
    product = (product & 1) ? (product + m.p) >> 1 : product >> 1;
  }
  return W(product);
}

template <class W> class FieldKernels : public ::testing::Test {
 public:
  static uint64_t prime() { return sizeof(W) == 4 ? kPrimes31[0] : random_prime61(1); }
  static std::vector<uint64_t> primes() {
    uint64_t p = prime();
    // the largest moduli the word sizes allow are the hardest for lazy accumulation
    return {p, (p - 1) / 2, (p - 3) / 4, sizeof(W) == 4 ? 2147483647u : 2305843009213693951u, 167};
  }
};
using Words = ::testing::Types<uint32_t, uint64_t>;
TYPED_TEST_SUITE(FieldKernels, Words);

TYPED_TEST(FieldKernels, ElementwiseMatchesRemainders) {
  using W = TypeParam;
  for (uint64_t prime : this->primes()) {
    Modulus<W> m(prime);
    for (size_t n : {1u, 7u, 64u, 131u}) {
      std::vector<W> a = random_words(m, n, 1), b = random_words(m, n, 2), out(n);
      a[0] = b[0] = W(prime - 1);
      if (n > 2) a[1] = b[2] = 0;
      for (const Kernels* table : runnable_kernels()) {
        const FieldLoops<W>& f = table->field<W>();
        f.add(m, a.data(), b.data(), out.data(), int64_t(n));
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], W((uint128(a[i]) + b[i]) % prime));
        f.sub(m, a.data(), b.data(), out.data(), int64_t(n));
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], W((uint128(a[i]) + prime - b[i]) % prime));
        f.mul(m, a.data(), b.data(), out.data(), int64_t(n));
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], naive_mul(m, a[i], b[i]));
        f.scale(m, a.data(), b[0], out.data(), int64_t(n));
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], naive_mul(m, a[i], b[0]));
        for (uint64_t e : {uint64_t(0), uint64_t(1), uint64_t(2), m.root_exponent, prime - 1}) {
          f.pow(m, a.data(), e, out.data(), int64_t(n));
          for (size_t i = 0; i < n; ++i) {
            W expected = m.one;
            W base = a[i];
            for (uint64_t r = e; r != 0; r >>= 1) {
              if (r & 1) expected = naive_mul(m, expected, base);
              base = naive_mul(m, base, base);
            }
            ASSERT_EQ(out[i], expected) << table->isa << " e=" << e;
          }
        }
        uint128 total = 0;
        for (W x : a) total += x;
        ASSERT_EQ(f.sum(m, a.data(), int64_t(n)), W(total % prime)) << table->isa;
      }
    }
  }
}

template <class W>
std::vector<W> naive_matmul(const Modulus<W>& m, int64_t M, int64_t N, int64_t K, Matrix<const W> a,
                            Matrix<const W> b) {
  std::vector<W> c(size_t(M * N));
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t j = 0; j < N; ++j) {
      uint128 acc = 0;
      for (int64_t k = 0; k < K; ++k) {
        acc += uint128(a.data[i * a.row + k * a.col]) * b.data[k * b.row + j * b.col] % m.p;
      }
      c[size_t(i * N + j)] = naive_mul(m, uint64_t(acc % m.p), 1);
    }
  }
  return c;
}

TYPED_TEST(FieldKernels, MatmulMatchesRemainders) {
  using W = TypeParam;
  struct Case {
    int64_t m, n, k;
    bool transpose_a, transpose_b, worst;
  };
  const Case cases[] = {
      {1, 1, 1, false, false, true},      {1, 1, 0, false, false, false},
      {3, 5, 7, false, false, false},     {17, 33, 65, true, false, false},
      {8, 16, 256, false, false, true},   {9, 17, 257, false, true, true},
      {65, 130, 513, true, true, true},   {70, 300, 31, false, false, false},
      {2, 257, 1030, false, true, false},
  };
  for (uint64_t prime : this->primes()) {
    Modulus<W> m(prime);
    for (const Case& c : cases) {
      std::vector<W> a = random_words(m, size_t(c.m * c.k), 3),
                     b = random_words(m, size_t(c.k * c.n), 4);
      if (c.worst) {
        std::fill(a.begin(), a.end(), W(prime - 1));
        std::fill(b.begin(), b.end(), W(prime - 1));
      }
      Matrix<const W> ma{a.data(), c.transpose_a ? 1 : c.k, c.transpose_a ? c.m : 1};
      Matrix<const W> mb{b.data(), c.transpose_b ? 1 : c.n, c.transpose_b ? c.k : 1};
      std::vector<W> expected = naive_matmul(m, c.m, c.n, c.k, ma, mb);
      for (const Kernels* table : runnable_kernels()) {
        std::vector<W> out(size_t(c.m * c.n), W(1));
        field_matmul<W>(*table, m, c.m, c.n, c.k, ma, mb, {out.data(), c.n, 1});
        ASSERT_EQ(out, expected) << table->isa << " " << c.m << "x" << c.n << "x" << c.k
                                 << " p=" << prime;
        ThreadPool pool(3);
        std::vector<W> transposed(size_t(c.m * c.n), W(1));
        field_matmul<W>(*table, m, c.m, c.n, c.k, ma, mb, {transposed.data(), 1, c.m}, &pool);
        for (int64_t i = 0; i < c.m; ++i) {
          for (int64_t j = 0; j < c.n; ++j) {
            ASSERT_EQ(transposed[size_t(j * c.m + i)], expected[size_t(i * c.n + j)]);
          }
        }
      }
    }
  }
}

TEST(RealKernels, MatmulMatchesPlainLoops) {
  struct Case {
    int64_t m, n, k;
  };
  // Rows above and below a block's 64, which is not a multiple of every table's tile.
  for (auto [M, N, K] : {Case{37, 75, 301}, {64, 9, 5}, {60, 33, 257}, {131, 260, 40}}) {
    std::vector<double> a(size_t(M * K)), b(size_t(K * N));
    for (size_t i = 0; i < a.size(); ++i) a[i] = CounterRng{5}.unit(i) - 0.5;
    for (size_t i = 0; i < b.size(); ++i) b[i] = CounterRng{6}.unit(i) - 0.5;
    std::vector<float> af(a.begin(), a.end()), bf(b.begin(), b.end());
    for (const Kernels* table : runnable_kernels()) {
      ThreadPool pool(2);
      std::vector<double> c(size_t(M * N));
      std::vector<float> cf(size_t(M * N));
      real_matmul<double>(*table, M, N, K, {a.data(), K, 1}, {b.data(), N, 1}, {c.data(), N, 1},
                          &pool);
      real_matmul<float>(*table, M, N, K, {af.data(), K, 1}, {bf.data(), N, 1}, {cf.data(), N, 1});
      for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
          double expected = 0, scale = 0;
          for (int64_t k = 0; k < K; ++k) {
            double term = a[size_t(i * K + k)] * b[size_t(k * N + j)];
            expected += term;
            scale += std::abs(term);
          }
          ASSERT_NEAR(c[size_t(i * N + j)], expected, scale * 1e-14) << table->isa << " " << M;
          ASSERT_NEAR(cf[size_t(i * N + j)], expected, scale * 1e-6) << table->isa << " " << M;
        }
      }
    }
  }
}

// Not a check but a measurement: run it with --gtest_also_run_disabled_tests.
TEST(KernelRates, DISABLED_Print) {
  auto seconds = [](auto&& body) {
    double best = 1e9;
    for (int i = 0; i < 15; ++i) {
      auto start = std::chrono::steady_clock::now();
      body();
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  for (const Kernels* table : runnable_kernels()) {
    for (auto shape : {std::array<int64_t, 3>{256, 256, 256}, {16, 4096, 1024}, {16, 32, 64}}) {
      const int64_t M = shape[0], N = shape[1], K = shape[2];
      Modulus<uint32_t> m31(kPrimes31[0]);
      Modulus<uint64_t> m61(random_prime61(1));
      std::vector<uint32_t> a(size_t(M * K), 12345), b(size_t(K * N), 54321), c(size_t(M * N));
      std::vector<uint64_t> a6(size_t(M * K), 12345), b6(size_t(K * N), 54321), c6(size_t(M * N));
      std::vector<float> af(size_t(M * K), 1.5f), bf(size_t(K * N), 2), cf(size_t(M * N));
      std::vector<double> ad(size_t(M * K), 1.5), bd(size_t(K * N), 2), cd(size_t(M * N));
      double macs = double(M * N * K) * 1e-9;
      double s31 = seconds([&] {
        field_matmul<uint32_t>(*table, m31, M, N, K, {a.data(), K, 1}, {b.data(), N, 1},
                               {c.data(), N, 1});
      });
      double s61 = seconds([&] {
        field_matmul<uint64_t>(*table, m61, M, N, K, {a6.data(), K, 1}, {b6.data(), N, 1},
                               {c6.data(), N, 1});
      });
      double s32 = seconds([&] {
        real_matmul<float>(*table, M, N, K, {af.data(), K, 1}, {bf.data(), N, 1},
                           {cf.data(), N, 1});
      });
      double s64 = seconds([&] {
        real_matmul<double>(*table, M, N, K, {ad.data(), K, 1}, {bd.data(), N, 1},
                            {cd.data(), N, 1});
      });
      std::cout << table->isa << " " << M << "x" << N << "x" << K << " Gmac/s: p31 " << macs / s31
                << "  p61 " << macs / s61 << "  f32 " << macs / s32 << "  f64 " << macs / s64
                << "\n";
    }
    Modulus<uint32_t> m31(kPrimes31[0]);
    Modulus<uint64_t> m61(random_prime61(1));
    const int64_t n = 4096;
    std::vector<uint32_t> x = random_words(m31, n, 1), y(n);
    std::vector<uint64_t> x6 = random_words(m61, n, 1), y6(n);
    auto ns = [&](double s) { return s / double(n) * 1e9; };
    std::cout
        << table->isa << " ns/element: mul31 "
        << ns(seconds([&] { table->field31.mul(m31, x.data(), x.data(), y.data(), n); }))
        << " mul61 "
        << ns(seconds([&] { table->field61.mul(m61, x6.data(), x6.data(), y6.data(), n); }))
        << " root31 "
        << ns(seconds([&] { table->field31.pow(m31, x.data(), m31.root_exponent, y.data(), n); }))
        << " root61 "
        << ns(seconds([&] { table->field61.pow(m61, x6.data(), m61.root_exponent, y6.data(), n); }))
        << "\n";
  }
}

}  // namespace
}  // namespace tessera
