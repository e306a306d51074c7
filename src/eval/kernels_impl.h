// The bodies of the kernel tables, templates over a tag per instruction set: each kernels_*.cpp
// instantiates them once with its own compiler flags, so no code of one set leaks into another.
// For that reason nothing here may call a non-template inline function of another header.
#pragma once
#include <cstdint>

#include "eval/kernels.h"

namespace tessera {

template <class Isa, class W> struct FieldImpl {
  using M = Modulus<W>;
  static void add(const M& modulus, const W* a, const W* b, W* out, int64_t n) {
    const M m = modulus;
    for (int64_t i = 0; i < n; ++i) {
      W s = W(a[i] + b[i]), t = W(s - m.p);
      out[i] = s < t ? s : t;  // unsigned: s − p wraps above s exactly when s < p
    }
  }
  static void sub(const M& modulus, const W* a, const W* b, W* out, int64_t n) {
    const M m = modulus;
    for (int64_t i = 0; i < n; ++i) {
      W d = W(a[i] - b[i]), t = W(d + m.p);
      out[i] = d < t ? d : t;
    }
  }
  static void mul(const M& modulus, const W* a, const W* b, W* out, int64_t n) {
    const M m = modulus;
    for (int64_t i = 0; i < n; ++i) out[i] = m.mul(a[i], b[i]);
  }
  static void scale(const M& modulus, const W* a, W factor, W* out, int64_t n) {
    const M m = modulus;
    for (int64_t i = 0; i < n; ++i) out[i] = m.mul(a[i], factor);
  }
  static void pow(const M& modulus, const W* x, uint64_t exponent, W* out, int64_t n) {
    const M m = modulus;
    constexpr int64_t kLanes = sizeof(W) == 4 ? 32 : 8;
    int top = 63;
    while (top > 0 && (exponent >> top & 1) == 0) --top;
    for (int64_t i = 0; i < n; i += kLanes) {
      W base[kLanes], r[kLanes];
      const int64_t count = n - i < kLanes ? n - i : kLanes;
      for (int64_t j = 0; j < kLanes; ++j) base[j] = r[j] = j < count ? x[i + j] : W(0);
      if (exponent == 0)
        for (int64_t j = 0; j < kLanes; ++j) r[j] = m.one;
      for (int bit = top - 1; bit >= 0; --bit) {
        for (int64_t j = 0; j < kLanes; ++j) r[j] = m.mul(r[j], r[j]);
        if (exponent >> bit & 1)
          for (int64_t j = 0; j < kLanes; ++j) r[j] = m.mul(r[j], base[j]);
      }
      for (int64_t j = 0; j < count; ++j) out[i + j] = r[j];
    }
  }
  static W sum(const M& modulus, const W* x, int64_t n) {
    const M m = modulus;
    if constexpr (sizeof(W) == 4) {
      uint64_t total = 0;  // 2^32 terms below 2^31 fit
      for (int64_t i = 0; i < n; ++i) total += x[i];
      return W(total % m.p);
    } else {
      uint64_t lanes[4] = {0, 0, 0, 0};
      int64_t i = 0;
      for (; i + 4 <= n; i += 4) {
        for (int j = 0; j < 4; ++j) {
          uint64_t s = lanes[j] + x[i + j], t = s - m.p;
          lanes[j] = s < t ? s : t;
        }
      }
      W total = m.add(m.add(lanes[0], lanes[1]), m.add(lanes[2], lanes[3]));
      for (; i < n; ++i) total = m.add(total, x[i]);
      return total;
    }
  }
};

// A blocked product. `Micro` says how operands are packed and multiplies one kMR × kNR tile:
//   Context      what the inner loop needs (a modulus, or nothing)
//   Element      operand and result;  Packed  words in panels;  kLimbs  words per element
//   pack(context, x, limbs, stride)   writes the limbs of one element `stride` words apart
//   tile(context, kc, a, b, out)      out[kMR][kNR] = the product of two panels
//   combine(context, c, t)            adds a partial result (for K > kGemmKC)
template <class Micro>
void gemm(const typename Micro::Context& context, int64_t m, int64_t n, int64_t k,
          Matrix<const typename Micro::Element> a, Matrix<const typename Micro::Element> b,
          Matrix<typename Micro::Element> c, void* scratch) {
  using E = typename Micro::Element;
  using P = typename Micro::Packed;
  constexpr int64_t MR = Micro::kMR, NR = Micro::kNR, L = Micro::kLimbs;
  P* packed_a = static_cast<P*>(scratch);
  const int64_t most =
      kGemmMC < m ? kGemmMC : m;  // rows of A at a time, packed as whole tiles of MR
  P* packed_b = packed_a + (most + MR - 1) / MR * MR * (k < kGemmKC ? k : kGemmKC) * L;
  alignas(64) E tile[MR * NR];
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c.data[i * c.row + j * c.col] = E(0);
  }
  for (int64_t j0 = 0; j0 < n; j0 += kGemmNC) {
    const int64_t nc = n - j0 < kGemmNC ? n - j0 : kGemmNC;
    for (int64_t k0 = 0; k0 < k; k0 += kGemmKC) {
      const int64_t kc = k - k0 < kGemmKC ? k - k0 : kGemmKC;
      for (int64_t jr = 0; jr < nc; jr += NR) {
        P* panel = packed_b + jr * kc * L;
        const int64_t nr = nc - jr < NR ? nc - jr : NR;
        for (int64_t kk = 0; kk < kc; ++kk) {
          const E* row = b.data + (k0 + kk) * b.row + (j0 + jr) * b.col;
          P* to = panel + kk * NR * L;
          if (nr == NR && b.col == 1)
            for (int64_t j = 0; j < NR; ++j) Micro::pack(row[j], to + j, NR);
          else
            for (int64_t j = 0; j < NR; ++j)
              Micro::pack(j < nr ? row[j * b.col] : E(0), to + j, NR);
        }
      }
      for (int64_t i0 = 0; i0 < m; i0 += kGemmMC) {
        const int64_t mc = m - i0 < kGemmMC ? m - i0 : kGemmMC;
        for (int64_t ir = 0; ir < mc; ir += MR) {
          P* panel = packed_a + ir * kc * L;
          for (int64_t i = 0; i < MR; ++i) {
            const E* from = a.data + (i0 + ir + i) * a.row + k0 * a.col;
            const bool inside = ir + i < mc;
            for (int64_t kk = 0; kk < kc; ++kk)
              Micro::pack(inside ? from[kk * a.col] : E(0), panel + kk * MR * L + i, MR);
          }
        }
        for (int64_t jr = 0; jr < nc; jr += NR) {
          const int64_t nr = nc - jr < NR ? nc - jr : NR;
          for (int64_t ir = 0; ir < mc; ir += MR) {
            const int64_t mr = mc - ir < MR ? mc - ir : MR;
            Micro::tile(context, kc, packed_a + ir * kc * L, packed_b + jr * kc * L, tile);
            E* to = c.data + (i0 + ir) * c.row + (j0 + jr) * c.col;
            for (int64_t i = 0; i < mr; ++i) {
              for (int64_t j = 0; j < nr; ++j) {
                E& target = to[i * c.row + j * c.col];
                target =
                    k0 == 0 ? tile[i * NR + j] : Micro::combine(context, target, tile[i * NR + j]);
              }
            }
          }
        }
      }
    }
  }
}

// Products of floats: GCC vectors of `Lanes` elements, one accumulator per tile row and vector.
template <class Isa, class T, int Lanes, int Rows, int Vectors> struct RealMicro {
  struct Context {};
  using Element = T;
  using Packed = T;
  static constexpr int64_t kMR = Rows, kNR = int64_t(Lanes) * Vectors, kLimbs = 1;
  typedef T Vec __attribute__((vector_size(Lanes * sizeof(T)), aligned(sizeof(T)), may_alias));
  static void pack(T x, T* to, int64_t) { *to = x; }
  static T combine(const Context&, T c, T t) { return c + t; }
  static void tile(const Context&, int64_t kc, const T* a, const T* b, T* out) {
    Vec acc[Rows][Vectors] = {};
    for (int64_t k = 0; k < kc; ++k) {
      Vec row[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v)
        row[v] = *reinterpret_cast<const Vec*>(b + k * kNR + v * Lanes);
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) acc[i][v] += a[k * Rows + i] * row[v];
      }
    }
    for (int i = 0; i < Rows; ++i)
      for (int v = 0; v < Vectors; ++v)
        *reinterpret_cast<Vec*>(out + i * kNR + v * Lanes) = acc[i][v];
  }
};

// Products modulo a 61-bit prime with 128-bit scalar accumulators. Terms are below 2^122 and the
// accumulator's high word is brought below p after each four, so it stays below 2^125 = p·2^64.
template <class Isa> struct WideMicro {
  using Context = Modulus<uint64_t>;
  using Element = uint64_t;
  using Packed = uint64_t;
  static constexpr int64_t kMR = 2, kNR = 4, kLimbs = 1;
  static void pack(uint64_t x, uint64_t* to, int64_t) { *to = x; }
  static uint64_t combine(const Context& m, uint64_t c, uint64_t t) { return m.add(c, t); }
  static void tile(const Context& modulus, int64_t kc, const uint64_t* a, const uint64_t* b,
                   uint64_t* out) {
    const Context m = modulus;
    for (int64_t i = 0; i < kMR; ++i) {
      for (int64_t j = 0; j < kNR; ++j) {
        uint128 acc = 0;
        int64_t k = 0;
        // 32 terms below 2^122 on top of p·2^64 < 2^125 stay below 2^128.
        for (; k < kc; k += 32) {
          const int64_t end = kc - k < 32 ? kc : k + 32;
          for (int64_t kk = k; kk < end; ++kk) acc += uint128(a[kk * kMR + i]) * b[kk * kNR + j];
          uint64_t high = uint64_t(acc >> 64);
          if (high >= m.p << 2) high -= m.p << 2;
          if (high >= m.p << 1) high -= m.p << 1;
          if (high >= m.p) high -= m.p;
          acc = (uint128(high) << 64) | uint64_t(acc);
        }
        out[i * kNR + j] = m.reduce(acc);
      }
    }
  }
};

template <class Isa, class W, class Micro> FieldLoops<W> field_loops() {
  using F = FieldImpl<Isa, W>;
  return {&F::add, &F::sub, &F::mul, &F::scale, &F::pow, &F::sum, &gemm<Micro>};
}

template <class T, class Micro>
void real_gemm(int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b, Matrix<T> c,
               void* scratch) {
  gemm<Micro>(typename Micro::Context{}, m, n, k, a, b, c, scratch);
}

// What matrix products of words of 31 bits have in common, in tiles of so many rows and columns.
template <class Isa, int64_t rows, int64_t columns> struct Words31 {
  using Context = Modulus<uint32_t>;
  using Element = uint32_t;
  using Packed = uint32_t;
  static constexpr int64_t kMR = rows, kNR = columns, kLimbs = 1;
  static void pack(uint32_t x, uint32_t* to, int64_t) { *to = x; }
  static uint32_t combine(const Context& m, uint32_t c, uint32_t t) { return m.add(c, t); }
};

// Of tiles of kRows rows and two vectors, of kLanes floats each or half as many doubles.
template <class Isa, class Micro31, class Micro61, int kLanes, int kRows>
const Kernels* kernel_table(const char* name) {
  static const Kernels table = {
      name,
      field_loops<Isa, uint32_t, Micro31>(),
      field_loops<Isa, uint64_t, Micro61>(),
      {&real_gemm<float, RealMicro<Isa, float, kLanes, kRows, 2>>},
      {&real_gemm<double, RealMicro<Isa, double, kLanes / 2, kRows, 2>>},
  };
  return &table;
}

// One table per file; nullptr where the compiler target lacks the instruction set.
const Kernels* scalar_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace tessera
