#include "backend/cpu/stream_kernels.h"

#include <algorithm>

#include "backend/cpu/tile_text.h"
#include "ir/block.h"

namespace tessera {
namespace {

// Rows of each stream whose products are summed before they are added to the result: sums of short
// sums keep the rounding errors of long ones small. A multiple of every group.
constexpr int kRows = 64;

std::string sum_at(int s, int i, int j) { return "c" + num(s) + "_" + num(i) + "_" + num(j); }

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

std::string StreamKernels::Kernel::name() const {
  return std::string("streams_") + tessera::name(stored) + "_" + num(tile.tile.rows) + "x" +
         num(tile.tile.vectors);
}

std::string StreamKernels::use(CpuIsa isa, DType sums, DType stored, const StreamTile& tile) {
  const Kernel kernel{isa, sums, stored, tile};
  used_.insert(kernel);
  return kernel.name();
}

std::string StreamKernels::definitions(const Kernel& kernel) {
  const int lanes = kernel.tile.tile.lanes, size = size_in_bytes(kernel.sums);
  const std::string v = std::string("s_") + tessera::name(kernel.sums);
  std::string out =
      vector_typedef(kernel.sums == DType::F64 ? "double" : "float", v, lanes * size, size);
  if (kernel.stored == DType::BF16) out += vector_typedef("unsigned", "s_pairs", lanes * size, 2);
  if (kernel.stored == DType::F16)
    out += widening_load(kernel.isa, kernel.stored, "s_from_f16", v, lanes);
  return out;
}

std::string StreamKernels::text_of(const Kernel& kernel) {
  const RegisterTile& tile = kernel.tile.tile;
  const bool pairs = kernel.stored == DType::BF16, halves = kernel.stored == DType::F16;
  const std::string v = std::string("s_") + tessera::name(kernel.sums);
  const std::string sums = kernel.sums == DType::F64 ? "double" : "float";
  const std::string stored = pairs || halves ? "unsigned short" : sums;
  const std::string step = pairs ? "2" : "1";
  // One row of b (two of pairs) times a, in stream s; an odd last row of pairs stands alone.
  const auto products = [&](int s, bool odd_end) {
    const std::string a = "a" + num(s), b = "b" + num(s);
    const auto row = [&](const std::string& at) {
      std::string text;
      for (int i = 0; i < tile.rows; ++i) {
        const std::string x = a + "[" + num(i) + " * ARS" + at + "] * x";
        text += each_vector("       ", tile.vectors,
                            [&](int j) { return sum_at(s, i, j) + " += " + x + num(j) + ";"; });
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
        return "*(const s_pairs*)(" + b + " + " + num(int64_t{j} * tile.lanes * 2) + ")";
      });
      text += "        {\n";
      text += load(v, "x", [&](int j) { return "(" + v + ")(w" + num(j) + " << 16)"; });
      text += row("") + "        }\n";
      text += odd_end ? "        if (n > 1) {\n" : "        {\n";
      text += load(v, "x", [&](int j) { return "(" + v + ")(w" + num(j) + " & 0xffff0000u)"; });
      text += row(" + 1") + "        }\n";
    } else {
      text += load(v, "x", [&](int j) {
        const std::string at = b + " + " + num(int64_t{j} * tile.lanes);
        return halves ? "s_from_f16(" + at + ")" : "*(const " + v + "*)(" + at + ")";
      });
      text += row("");
    }
    return text + "        " + a + " += " + step + ";\n        " + b + " += " + step +
           " * P;\n      }\n";
  };
  // `rows` rows of each of the first `streams` streams, added to c unless `adds` is zero.
  const auto block = [&](int streams, const std::string& rows, const std::string& adds) {
    std::string text;
    for (int s = 0; s < streams; ++s) {
      const std::string skip = s == 0 ? "" : " + " + num(s) + " * depth";
      text += "    const " + sums + "* a" + num(s) + " = a" + skip + ";\n";
      text +=
          "    const " + stored + "* b" + num(s) + " = b" + (s == 0 ? "" : skip + " * P") + ";\n";
      for (int i = 0; i < tile.rows; ++i)
        text += declare_vectors("    ", v, "c" + num(s) + "_" + num(i) + "_", tile.vectors,
                                [](int) { return "{}"; });
    }
    text += "#pragma GCC unroll 1\n    for (long n = " + rows + "; n > 0; n -= " + step + ") {\n";
    for (int s = 0; s < streams; ++s) text += products(s, streams == 1);
    text += "    }\n";
    for (int i = 0; i < tile.rows; ++i) {
      for (int j = 0; j < tile.vectors; ++j) {
        for (int s = 1; s < streams; ++s)
          text += "    " + sum_at(0, i, j) + " += " + sum_at(s, i, j) + ";\n";
        const std::string at =
            "*(" + v + "*)(c + " + num(i) + " * LDC + " + num(int64_t{j} * tile.lanes) + ")";
        text += "    " + at + " = " + adds + " ? " + at + " + " + sum_at(0, i, j) + " : " +
                sum_at(0, i, j) + ";\n";
      }
    }
    return text;
  };
  const std::string rows = num(kRows), all = num(kernel.tile.streams);
  std::string out = "\ntemplate <long ARS, long P, long LDC, int ACCUMULATE>\n"
                    "static __attribute__((noinline)) void " +
                    kernel.name() + "(const " + sums + "* a, const " + stored + "* b, " + sums +
                    "* c, long k) {\n";
  out += "  const long depth = k / " + num(int64_t{kRows} * kernel.tile.streams) + " * " + rows +
         ";\n  long i = 0;\n";
  out += "  for (; i < depth; i += " + rows + ", a += " + rows + ", b += " + rows + " * P) {\n" +
         block(kernel.tile.streams, rows, "ACCUMULATE || i > 0") + "  }\n";
  out += "  k -= " + all + " * depth;\n  a += (" + all + " - 1) * depth;\n  b += (" + all +
         " - 1) * depth * P;\n";
  // What is left over; no rows at all make zeros.
  out += "  int adds = ACCUMULATE || depth > 0;\n";
  out += "  for (; k > 0 || !adds; k -= " + rows + ", a += " + rows + ", b += " + rows +
         " * P, adds = 1) {\n" + block(1, "k < " + rows + " ? k : " + rows, "adds") + "  }\n";
  return out + "}\n";
}

std::string StreamKernels::text() const {
  std::string out;
  std::set<std::string> defined;
  for (const Kernel& kernel : used_) {
    const std::string text = definitions(kernel);
    if (defined.insert(text).second) out += text;
  }
  for (const Kernel& kernel : used_) out += text_of(kernel);
  return out;
}

}  // namespace tessera
