#include "backend/cpu/stream_kernels.h"

#include <algorithm>

#include "backend/cpu/tile_text.h"
#include "backend/fmt.h"
#include "ir/block.h"

namespace tessera {
namespace {

// Rows of each stream whose products are summed before they are added to the result: sums of short
// sums keep the rounding errors of long ones small. A multiple of every group.
constexpr int kStreamRows = 64;

std::string sum_at(int s, int i, int j) { return fmt("c$0_$1_$2", s, i, j); }

std::string text_of(SharedText& shared, CpuIsa isa, DType sums_type, DType stored_type,
                    const StreamTile& streams) {
  const RegisterTile& tile = streams.tile;
  const bool pairs = stored_type == DType::BF16, halves = stored_type == DType::F16;
  const std::string v = std::string("s_") + name(sums_type);
  const std::string sums = storage_type(sums_type), stored = storage_type(stored_type);
  const std::string step = pairs ? "2" : "1";
  const int size = size_in_bytes(sums_type);
  shared.type(vector_typedef(sums, v, tile.lanes * size, size));
  if (pairs) shared.type(vector_typedef("unsigned", "s_pairs", tile.lanes * size, 2));
  if (halves) shared.type(widening_load(isa, stored_type, "s_from_f16", v, tile.lanes));
  // One row of b (two of pairs) times a, in stream s; an odd last row of pairs stands alone.
  const auto products = [&](int s, bool odd_end) {
    const std::string a = "a" + num(s), b = "b" + num(s);
    const auto row = [&](const std::string& at) {
      std::string text;
      for (int i = 0; i < tile.rows; ++i) {
        const std::string x = fmt("$0[$1 * ARS$2] * x", a, i, at);
        text += each_vector("       ", tile.vectors,
                            [&](int j) { return fmt("$0 += $1$2;", sum_at(s, i, j), x, j); });
      }
      return text;
    };
    const auto load = [&](const std::string& type, const std::string& name,
                          const auto& expression) {
      return declare_vectors("        const ", type, name, tile.vectors, expression);
    };
    std::string text = "      {\n";
    if (pairs) {
      text += load("s_pairs", "w", [&](int j) {
        return fmt("*(const s_pairs*)($0 + $1)", b, int64_t{j} * tile.lanes * 2);
      });
      text += "        {\n";
      text += load(v, "x", [&](int j) { return fmt("($0)(w$1 << 16)", v, j); });
      text += row("") + "        }\n";
      text += odd_end ? "        if (n > 1) {\n" : "        {\n";
      text += load(v, "x", [&](int j) { return fmt("($0)(w$1 & 0xffff0000u)", v, j); });
      text += row(" + 1") + "        }\n";
    } else {
      text += load(v, "x", [&](int j) {
        const std::string at = fmt("$0 + $1", b, int64_t{j} * tile.lanes);
        return halves ? fmt("s_from_f16($0)", at) : fmt("*(const $0*)($1)", v, at);
      });
      text += row("");
    }
    return fmt("$0        $1 += $2;\n        $3 += $2 * P;\n      }\n", text, a, step, b);
  };
  // `rows` rows of each of the first `streams` streams, added to c unless `adds` is zero.
  const auto block = [&](int streams, const std::string& rows, const std::string& adds) {
    std::string text;
    for (int s = 0; s < streams; ++s) {
      const std::string skip = s == 0 ? "" : fmt(" + $0 * depth", s);
      text += fmt("    const $0* a$1 = a$2;\n", sums, s, skip);
      text += fmt("    const $0* b$1 = b$2;\n", stored, s, s == 0 ? "" : skip + " * P");
      for (int i = 0; i < tile.rows; ++i)
        text += declare_vectors("    ", v, fmt("c$0_$1_", s, i), tile.vectors,
                                [](int) { return "{}"; });
    }
    text += fmt("#pragma GCC unroll 1\n    for (long n = $0; n > 0; n -= $1) {\n", rows, step);
    for (int s = 0; s < streams; ++s) text += products(s, streams == 1);
    text += "    }\n";
    for (int i = 0; i < tile.rows; ++i) {
      for (int j = 0; j < tile.vectors; ++j) {
        for (int s = 1; s < streams; ++s)
          text += fmt("    $0 += $1;\n", sum_at(0, i, j), sum_at(s, i, j));
        const std::string at = fmt("*($0*)(c + $1 * LDC + $2)", v, i, int64_t{j} * tile.lanes);
        text += fmt("    $0 = $1 ? $0 + $2 : $2;\n", at, adds, sum_at(0, i, j));
      }
    }
    return text;
  };
  const std::string rows = num(kStreamRows), all = num(streams.streams);
  std::string out =
      fmt("\ntemplate <long ARS, long P, long LDC, int ACCUMULATE>\nstatic "
          "__attribute__((noinline)) void $0(const $1* a, const $2* b, $1* c, long k) {\n",
          fmt("streams_$0_$1x$2", name(stored_type), tile.rows, tile.vectors), sums, stored);
  out += fmt("  const long depth = k / $0 * $1;\n  long i = 0;\n",
             int64_t{kStreamRows} * streams.streams, rows);
  out += fmt("  for (; i < depth; i += $0, a += $0, b += $0 * P) {\n$1  }\n", rows,
             block(streams.streams, rows, "ACCUMULATE || i > 0"));
  out += fmt("  k -= $0 * depth;\n  a += ($0 - 1) * depth;\n  b += ($0 - 1) * depth * P;\n", all);
  // What is left over; no rows at all make zeros.
  out += "  int adds = ACCUMULATE || depth > 0;\n";
  out += fmt("  for (; k > 0 || !adds; k -= $0, a += $0, b += $0 * P, adds = 1) {\n$1  }\n", rows,
             block(1, fmt("k < $0 ? k : $0", rows), "adds"));
  return out + "}\n";
}

}  // namespace

std::optional<StreamTile> stream_tile(CpuIsa isa, DType sums, DType stored, int64_t m, int64_t n) {
  const bool reads = stored == sums
                         ? sums == DType::F32 || sums == DType::F64
                         : sums == DType::F32 && (stored == DType::BF16 ||
                                                  (stored == DType::F16 && isa != CpuIsa::Generic));
  // Vectors and streams by rows; measured: four streams read 10 % more from memory than one that
  // is fetched ahead, two 5 %, eight no more than four.
  struct Shape {
    int vectors, streams;
  };
  static constexpr Shape kWide[] = {{0, 0}, {4, 4}, {4, 3}, {2, 4}, {2, 3}};
  static constexpr Shape kNarrow[] = {{0, 0}, {4, 3}, {2, 3}, {2, 2}};
  const bool wide = vector_registers(isa) == 32;
  if (!reads || m < 1 || m > (wide ? 4 : 3)) return std::nullopt;
  const Shape& shape = wide ? kWide[m] : kNarrow[m];
  StreamTile t;
  t.tile.rows = int(m);
  t.tile.lanes = lanes_of(isa, sums);
  t.tile.vectors = int(std::min<int64_t>(shape.vectors, ceil_div(n, int64_t{t.tile.lanes})));
  // Rather narrower panels than ones that are filled up with more.
  const auto columns = [&](int vectors) {
    const int64_t panel = int64_t{vectors} * t.tile.lanes;
    return ceil_div(n, panel) * panel;
  };
  for (int v = t.tile.vectors; v > shape.vectors / 2; --v)
    if (columns(v) < columns(t.tile.vectors)) t.tile.vectors = v;
  t.streams = shape.streams;
  return t;
}

std::string stream_kernel(SharedText& shared, CpuIsa isa, DType sums_type, DType stored_type,
                          const StreamTile& t) {
  return shared.function(
      fmt("streams_$0_$1x$2", name(stored_type), t.tile.rows, t.tile.vectors),
      [&] { return text_of(shared, isa, sums_type, stored_type, t); });
}

}  // namespace tessera
