#include "backend/cpu/panel_kernels.h"

#include "backend/cpu/stream_kernels.h"
#include "backend/cpu/tile_text.h"
#include "backend/fmt.h"

namespace tessera {
namespace {

// A strip of one panel takes up to 32 rows: tiles 0 to 3 are the sums, 4 and 5 the left operand, 6
// and 7 the right one. Loading a shape clears all tiles.
constexpr const char* kTiles = R"text(
static void p_shape(long rows0, long rows1, long pairs) {
  struct {
    unsigned char palette, start, zero[14];
    unsigned short bytes[16];
    unsigned char rows[16];
  } s __attribute__((aligned(64))) = {};
  s.palette = 1;
  for (int i = 0; i < 8; ++i) {
    const long rows = i > 5 ? pairs : i == 2 || i == 3 || i == 5 ? rows1 : rows0;
    s.rows[i] = (unsigned char)rows;
    s.bytes[i] = (unsigned short)(rows == 0 ? 0 : i == 4 || i == 5 ? pairs * 4 : 64);
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(s));
}
#define P_TILE(t, p, pitch) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((long)(pitch)) : "memory")
#define P_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : : "memory")
#define P_KEEP(t, p, pitch) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"((long)(pitch)) : "memory")
#define P_FETCH(line) \
  if (AHEAD) \
    for (int i = line; i < line + 8; ++i) __builtin_prefetch(f + 64 * i, 0, 2)
#define P_CLEAR(t) __asm__ volatile("tilezero %%tmm" #t : : : "memory")
template <long ARS, long LDC, long LOW, int ACCUMULATE, long AHEAD, int TWO_ROWS, int TWO_COLUMNS>
static __attribute__((noinline)) void p_strip(const unsigned short* a, const unsigned short* b,
                                              float* c, long steps) {
  float* const d = c + 16 * LDC;
  if (ACCUMULATE) {
    P_TILE(0, c, LDC * 4);
    if (TWO_COLUMNS) P_TILE(1, c + 16, LDC * 4);
    if (TWO_ROWS) P_TILE(2, d, LDC * 4);
    if (TWO_ROWS && TWO_COLUMNS) P_TILE(3, d + 16, LDC * 4);
  } else {
    P_CLEAR(0);
    if (TWO_COLUMNS) P_CLEAR(1);
    if (TWO_ROWS) P_CLEAR(2);
    if (TWO_ROWS && TWO_COLUMNS) P_CLEAR(3);
  }
  for (; steps > 0; --steps) {
    const char* const f = (const char*)b + AHEAD;
    P_TILE(4, a, ARS * 2);
    P_TILE(6, b, 128);
    P_FETCH(0);
    if (TWO_COLUMNS) P_TILE(7, b + 32, 128);
    P_FETCH(8);
    P_DOT(0, 4, 6);
    P_FETCH(16);
    if (TWO_COLUMNS) P_DOT(1, 4, 7);
    P_FETCH(24);
    if (TWO_ROWS) {
      P_TILE(5, a + 16 * ARS, ARS * 2);
      P_DOT(2, 5, 6);
      if (TWO_COLUMNS) P_DOT(3, 5, 7);
    }
    if (LOW) {
      P_TILE(4, a + LOW, ARS * 2);
      P_DOT(0, 4, 6);
      if (TWO_COLUMNS) P_DOT(1, 4, 7);
      if (TWO_ROWS) {
        P_TILE(5, a + LOW + 16 * ARS, ARS * 2);
        P_DOT(2, 5, 6);
        if (TWO_COLUMNS) P_DOT(3, 5, 7);
      }
    }
    a += 32;
    b += 32 * 32;
  }
  P_KEEP(0, c, LDC * 4);
  if (TWO_COLUMNS) P_KEEP(1, c + 16, LDC * 4);
  if (TWO_ROWS) P_KEEP(2, d, LDC * 4);
  if (TWO_ROWS && TWO_COLUMNS) P_KEEP(3, d + 16, LDC * 4);
}
template <long ARS, long LDC, long PITCH, long LOW, int ACCUMULATE, long AHEAD>
static void p_strips(const unsigned short* a, const unsigned short* b, float* c, long rows, long n,
                     long steps) {
  for (long j = 0; j < n; j += 32) {
    const unsigned short* const p = b + j * PITCH;
    const bool two = n - j > 16;
    if (rows > 16) {
      (two ? p_strip<ARS, LDC, LOW, ACCUMULATE, AHEAD, 1, 1>
           : p_strip<ARS, LDC, LOW, ACCUMULATE, AHEAD, 1, 0>)(a, p, c + j, steps);
    } else {
      (two ? p_strip<ARS, LDC, LOW, ACCUMULATE, AHEAD, 0, 1>
           : p_strip<ARS, LDC, LOW, ACCUMULATE, AHEAD, 0, 0>)(a, p, c + j, steps);
    }
  }
}
template <long ARS, long LDC, long PITCH, long LOW, int ACCUMULATE, long AHEAD>
static void tiles_bf16(const unsigned short* a, const unsigned short* b, float* c, long m, long n,
                       long k) {
  const long steps = k / 32, rest = (k % 32 + 1) / 2;
  for (long i = 0; i < m; i += 32, a += 32 * ARS, c += 32 * LDC) {
    const long rows = m - i < 32 ? m - i : 32, rows0 = rows < 16 ? rows : 16;
    if (steps > 0 || rest == 0) {
      p_shape(rows0, rows - rows0, 16);
      if (i == 0)  // what is fetched for the first rows is there for all others
        p_strips<ARS, LDC, PITCH, LOW, ACCUMULATE, AHEAD>(a, b, c, rows, n, steps);
      else
        p_strips<ARS, LDC, PITCH, LOW, ACCUMULATE, 0>(a, b, c, rows, n, steps);
    }
    if (rest == 0) continue;
    p_shape(rows0, rows - rows0, rest);
    if (steps > 0)
      p_strips<ARS, LDC, PITCH, LOW, 1, 0>(a + steps * 32, b + steps * 32 * 32, c, rows, n, 1);
    else
      p_strips<ARS, LDC, PITCH, LOW, ACCUMULATE, 0>(a, b, c, rows, n, 1);
  }
  __asm__ volatile("tilerelease" : : : "memory");
}
)text";

// Later rows are asked for while one pair is woven.
constexpr const char* kPack = R"text(
template <long LD, long PITCH, long COLUMNS>
static __attribute__((noinline)) void pack_pairs(const unsigned short* from, unsigned short* to,
                                                 long k, long n) {
  typedef unsigned short halves __attribute__((vector_size(32), aligned(2), may_alias));
  typedef unsigned words __attribute__((vector_size(64), aligned(2), may_alias));
  constexpr long kAhead = LD < 512 ? 4096 / LD : 8;  // rows
  for (long i = 0; i < k; i += 2, from += 2 * LD, to += 2 * COLUMNS) {
    const bool pair = i + 1 < k;
    const unsigned short* const second = pair ? from + LD : from;
    const unsigned keep = pair ? 0xffffffffu : 0xffffu;
    long j = 0;
    for (; j + 16 <= n; j += 16) {
      __builtin_prefetch(from + kAhead * LD + j, 0, 2);
      __builtin_prefetch(from + (kAhead + 1) * LD + j, 0, 2);
      const words a = __builtin_convertvector(*(const halves*)(from + j), words),
                  b = __builtin_convertvector(*(const halves*)(second + j), words);
      *(words*)(to + j / COLUMNS * (PITCH * COLUMNS) + j % COLUMNS * 2) = (a | b << 16) & keep;
    }
    for (; j < n || j % COLUMNS != 0; ++j) {
      unsigned short* const t = to + j / COLUMNS * (PITCH * COLUMNS) + j % COLUMNS * 2;
      t[0] = j < n ? from[j] : 0;
      t[1] = j < n && pair ? second[j] : 0;
    }
  }
}
)text";
constexpr const char* kPackRows = R"text(
template <long LD, long PITCH, long COLUMNS, class T>
static __attribute__((noinline)) void pack_rows(const T* from, T* to, long k, long n) {
  for (long i = 0; i < k; ++i, from += LD, to += COLUMNS) {
    long j = 0;
    T* panel = to;
    for (; j + COLUMNS <= n; j += COLUMNS, panel += PITCH * COLUMNS)
      __builtin_memcpy(panel, from + j, COLUMNS * sizeof(T));
    for (long c = j; j < n && c < j + COLUMNS; ++c) panel[c - j] = c < n ? from[c] : 0;
  }
}
)text";
constexpr const char* kPackColumns = R"text(
template <long LD, long PITCH, long COLUMNS, class T>
static __attribute__((noinline)) void pack_columns(const T* from, T* to, long k, long n) {
  for (long j = 0; j < n; j += COLUMNS, from += COLUMNS * LD, to += PITCH * COLUMNS) {
    const long w = n - j < COLUMNS ? n - j : COLUMNS;
    t_transpose<T>(from, LD, to, COLUMNS, k, w);
    for (long p = 0; w < COLUMNS && p < k; ++p)
      for (long c = w; c < COLUMNS; ++c) to[p * COLUMNS + c] = 0;
  }
}
)text";
constexpr const char* kPackTurned = R"text(
template <long LD, long PITCH, long COLUMNS>
static __attribute__((noinline)) void pack_turned(const unsigned short* from, unsigned short* to,
                                                  long k, long n) {
  for (long j = 0; j < n; j += COLUMNS, from += COLUMNS * LD, to += PITCH * COLUMNS) {
    const long w = n - j < COLUMNS ? n - j : COLUMNS;
    long pairs = 0;
    if (LD % 2 == 0) {  // pairs lie side by side already
      pairs = k / 2;
      t_transpose<int>(from, LD / 2, to, COLUMNS, pairs, w);
    }
    for (long p = 0; p < (k + 1) / 2; ++p) {
      for (long c = p < pairs ? w : 0; c < COLUMNS; ++c) {
        unsigned short* const t = to + (p * COLUMNS + c) * 2;
        t[0] = c < w ? from[c * LD + 2 * p] : 0;
        t[1] = c < w && 2 * p + 1 < k ? from[c * LD + 2 * p + 1] : 0;
      }
    }
  }
}
)text";

}  // namespace

bool panels_take_bf16(CpuIsa isa) { return isa == CpuIsa::Amx || has_bf16_dot(isa); }

std::optional<PanelShape> panel_shape(CpuIsa isa, DType sums, DType stored, int64_t m, int64_t n) {
  if (const std::optional<StreamTile> t = stream_tile(isa, sums, stored, m, n))
    return PanelShape{t->tile, stored == DType::BF16 ? 2 : 1};
  if (sums == stored && (sums == DType::F32 || sums == DType::F64))
    return PanelShape{choose_tile(isa, sums, m, n), 1};
  if (sums != DType::F32) return std::nullopt;
  if (stored == DType::F16 && isa != CpuIsa::Generic)
    return PanelShape{choose_tile(isa, sums, m, n), 1};
  if (stored != DType::BF16) return std::nullopt;
  if (isa == CpuIsa::Amx) return PanelShape{{16, 2, 16}, 2};
  return PanelShape{choose_tile(isa, sums, m, n), 2};
}

namespace {

std::string text_of(SharedText& shared, const std::string& kernel, CpuIsa isa, DType left,
                    DType stored, const RegisterTile& tile) {
  const bool pairs = left == DType::BF16, halves = stored == DType::F16;
  const int lanes = tile.lanes;
  const std::string v = fmt("p_v$0", lanes);
  shared.type(vector_typedef("float", v, lanes * 4, 4));
  if (halves) {
    shared.type(widening_load(isa, stored, fmt("p_from_f16_$0", lanes), v, lanes));
  } else {
    shared.type(vector_typedef("unsigned", fmt("p_pairs$0", lanes), lanes * 4, 2));
    shared.type("typedef int p_pair __attribute__((aligned(2), may_alias));\n");
  }
  const int lines = (tile.columns() * (halves ? 2 : 4) + 63) / 64;
  std::string out = fmt("\ntemplate <long ARS, long P, long LDC, int ACCUMULATE, int "
                        "LINES>\nstatic __attribute__((noinline)) void $0(const $1* a, const "
                        "unsigned short* b, float* c, const char* f, long k) {\n",
                        kernel, pairs ? "unsigned short" : "float");
  out += declare_sums("  ", v, tile.rows, tile.vectors);
  out += "#pragma GCC unroll 1\n";
  out += halves ? "  for (; k > 0; --k) {\n" : "  for (; k > 0; k -= 2) {\n";
  // After row i: its share of the lines to fetch.
  int fetched = 0;
  const auto fetch = [&](int i) {
    std::string text;
    for (; fetched * tile.rows < (i + 1) * lines; ++fetched)
      text +=
          fmt("      if (LINES > $0) __builtin_prefetch(f + $1, 0, 2);\n", fetched, fetched * 64);
    return text;
  };
  // The rows of a, at column `at`, times one row of b.
  const auto row = [&](const std::string& at) {
    std::string text;
    for (int i = 0; i < tile.rows; ++i)
      text += multiply_row("     ", i, tile.vectors, fmt("a[$0 * ARS$1]", i, at)) + fetch(i);
    return text;
  };
  if (halves) {
    for (int j = 0; j < tile.vectors; ++j)
      out += fmt("    const $0 b$1 = p_from_f16_$2(b + $3);\n", v, j, lanes, j * tile.lanes);
    out += row("") + "    a += 1;\n    b += P;\n    f += LINES * 64;\n  }\n";
  } else {
    const std::string words = fmt("p_pairs$0", lanes);
    for (int j = 0; j < tile.vectors; ++j)
      out +=
          fmt("    const $0 w$1 = *(const $0*)(b + $2);\n", words, j, int64_t{j} * tile.lanes * 2);
    if (pairs) {
      for (int i = 0; i < tile.rows; ++i) {
        const std::string p = fmt("a + $0 * ARS", i);
        out += fmt("    {\n      const $0 x = $0{} + (unsigned)(k > 1 ? *(const p_pair*)($1) : "
                   "(int)*($1));\n",
                   words, p);
        for (int j = 0; j < tile.vectors; ++j) {
          out +=
              fmt("      __asm__(\"vdpbf16ps %2, %1, %0\" : \"+v\"($0) : \"v\"(w$1), \"v\"(x));\n",
                  sum_at(i, j), j);
        }
        out += "    }\n" + fetch(i);
      }
    } else {
      // Even rows are the lower halves of the words, odd ones the upper.
      out += "    {\n";
      for (int j = 0; j < tile.vectors; ++j)
        out += fmt("      const $0 b$1 = ($0)(w$1 << 16);\n", v, j);
      out += row("") + "    }\n    if (k > 1) {\n";
      for (int j = 0; j < tile.vectors; ++j)
        out += fmt("      const $0 b$1 = ($0)(w$1 & 0xffff0000u);\n", v, j);
      out += row(" + 1") + "    }\n";
    }
    out += "    a += 2;\n    b += 2 * P;\n    f += LINES * 64;\n  }\n";
  }
  return fmt("$0$1}\n", out, keep_sums(v, tile));
}

}  // namespace

std::string panel_kernel(SharedText& shared, CpuIsa isa, DType left, DType stored,
                         const RegisterTile& tile) {
  const std::string kernel =
      fmt("panel_$0_$1_$2x$3", name(left), name(stored), tile.rows, tile.vectors);
  return shared.function(kernel, [&] { return text_of(shared, kernel, isa, left, stored, tile); });
}

std::string amx_kernel(SharedText& shared) {
  return shared.function(
      "tiles_bf16", [] { return kTiles; });
}

std::string pack_kernel(SharedText& shared, DType dtype, bool turned) {
  const bool pairs = dtype == DType::BF16;
  const char* name = turned  ? (pairs ? "pack_turned" : "pack_columns")
                     : pairs ? "pack_pairs"
                             : "pack_rows";
  const char* text = turned ? (pairs ? kPackTurned : kPackColumns) : pairs ? kPack : kPackRows;
  return shared.function(name, [&] { return text; });
}

}  // namespace tessera
