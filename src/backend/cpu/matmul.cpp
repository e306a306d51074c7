#include "backend/cpu/matmul.h"

#include <algorithm>

#include "ir/block.h"

namespace tessera {

int lanes_of(CpuIsa isa, DType dtype) { return vector_bytes(isa) / size_in_bytes(dtype); }

RegisterTile choose_tile(CpuIsa isa, DType dtype, int64_t m, int64_t n) {
  // Most rows per tile, and vectors per number of rows: measured to keep the FMA units busy while
  // leaving registers for one row of b and a broadcast.
  const bool wide = vector_registers(isa) == 32;
  const int most_rows = wide ? 8 : 6;
  const int64_t panels = ceil_div(m, most_rows);
  RegisterTile tile;
  tile.lanes = lanes_of(isa, dtype);
  tile.rows = int(ceil_div(m, panels));
  static constexpr int kWide[] = {0, 8, 8, 6, 4, 4, 4, 3, 2};
  static constexpr int kNarrow[] = {0, 8, 4, 3, 2, 2, 2};
  tile.vectors = wide ? kWide[tile.rows] : kNarrow[tile.rows];
  tile.vectors = int(std::min<int64_t>(tile.vectors, ceil_div(n, tile.lanes)));
  // Rather a narrower tile than a remainder column by column.
  for (int v = tile.vectors; v > std::max(1, tile.vectors / 2); --v) {
    if (n % (v * tile.lanes) == 0) {
      tile.vectors = v;
      break;
    }
  }
  return tile;
}

std::string MicroKernels::use(DType dtype, const RegisterTile& tile) {
  used_.insert({dtype, tile});
  return "mm_" + std::string(name(dtype)) + "_" + std::to_string(tile.rows) + "x" +
         std::to_string(tile.vectors);
}

std::string MicroKernels::use_steady(DType dtype, const RegisterTile& tile) {
  steady_.insert({dtype, tile});
  return "mp_" + std::string(name(dtype)) + "_" + std::to_string(tile.rows) + "x" +
         std::to_string(tile.vectors);
}

std::string MicroKernels::steady_text(DType dtype, const RegisterTile& tile) {
  const auto n = [](int i) { return std::to_string(i); };
  const std::string type = dtype == DType::F64 ? "double" : "float";
  const std::string v = std::string("v_") + name(dtype);
  const auto acc = [&](int i, int j) { return "c" + n(i) + "_" + n(j); };
  const int line = 64 / size_in_bytes(dtype);
  const int lines = ceil_div(tile.columns(), line) * kFetchSteps;  // the most that can be asked for
  std::string out = "\ntemplate <long ARS, long LDB, long LDC, int ACCUMULATE, int LINES>\n"
                    "static __attribute__((noinline)) void mp_" +
                    std::string(name(dtype)) + "_" + n(tile.rows) + "x" + n(tile.vectors) +
                    "(const " + type + "* a, const " + type + "* b, " + type + "* c, const " +
                    type + "* f, long k) {\n";
  for (int i = 0; i < tile.rows; ++i) {
    out += "  " + v;
    for (int j = 0; j < tile.vectors; ++j) out += (j > 0 ? ", " : " ") + acc(i, j) + " = {}";
    out += ";\n";
  }
  // Step number `step` of kFetchSteps; fetches stand between the rows, as in front they would hold
  // up the loads of what is there already.
  const auto one = [&](int step) {
    std::string text = "    {\n      const " + v;
    for (int j = 0; j < tile.vectors; ++j)
      text +=
          (j > 0 ? ", b" : " b") + n(j) + " = *(const " + v + "*)(b + " + n(j * tile.lanes) + ")";
    text += ";\n";
    int fetched = step < 0 ? lines : step;
    const int share = ceil_div(lines, kFetchSteps * tile.rows);
    for (int i = 0; i < tile.rows; ++i) {
      text += "     ";
      for (int j = 0; j < tile.vectors; ++j)
        text += " " + acc(i, j) + " += a[" + n(i) + " * ARS] * b" + n(j) + ";";
      text += "\n";
      for (int s = 0; s < share && fetched < lines; ++s, fetched += kFetchSteps)
        text += "      if (LINES > " + n(fetched) + ") __builtin_prefetch(f + " +
                n(fetched * line) + ", 0, 2);\n";
    }
    return text + "      ++a;\n      b += LDB;\n    }\n";
  };
  out += "  for (; k >= " + n(kFetchSteps) + "; k -= " + n(kFetchSteps) + ") {\n";
  for (int step = 0; step < kFetchSteps; ++step) out += one(step);
  out += "    f += LINES * " + n(line) + ";\n  }\n#pragma GCC unroll 1\n  for (; k > 0; --k) {\n" +
         one(-1) + "  }\n";
  for (int i = 0; i < tile.rows; ++i) {
    out += " ";
    for (int j = 0; j < tile.vectors; ++j) {
      const std::string at = "*(" + v + "*)(c + " + n(i) + " * LDC + " + n(j * tile.lanes) + ")";
      out += " " + at + " = ACCUMULATE ? " + at + " + " + acc(i, j) + " : " + acc(i, j) + ";";
    }
    out += "\n";
  }
  return out + "}\n";
}

std::string MicroKernels::text() const {
  std::string out;
  const auto n = [](int i) { return std::to_string(i); };
  std::set<std::pair<DType, int>> vectors;
  for (const auto& [dtype, tile] : used_) vectors.insert({dtype, tile.lanes});
  for (const auto& [dtype, tile] : steady_) vectors.insert({dtype, tile.lanes});
  for (const auto& [dtype, lanes] : vectors) {
    const std::string type = dtype == DType::F64 ? "double" : "float";
    const int bytes = size_in_bytes(dtype);
    out += "typedef " + type + " v_" + name(dtype) + " __attribute__((vector_size(" +
           n(lanes * bytes) + "), aligned(" + n(bytes) + "), may_alias));\n";
  }
  for (const auto& [dtype, tile] : used_) {
    const std::string type = dtype == DType::F64 ? "double" : "float";
    const std::string v = std::string("v_") + name(dtype);
    const auto acc = [&](int i, int j) { return "c" + n(i) + "_" + n(j); };
    const auto at = [&](const std::string& p, int j) {
      return "*(" + v + "*)(" + p + " + " + n(j * tile.lanes) + ")";
    };
    out += "\ntemplate <long ARS, long ACS, long LDB, long LDC, int ACCUMULATE, int PACK, long "
           "LDF, int LINES>\n"
           "static __attribute__((noinline)) void mm_" +
           std::string(name(dtype)) + "_" + n(tile.rows) + "x" + n(tile.vectors) + "(const " +
           type + "* a, const " + type + "* b, " + type + "* p, const " + type + "* f, " + type +
           "* c, long k) {\n";
    for (int i = 0; i < tile.rows; ++i) {
      out += "  " + v;
      for (int j = 0; j < tile.vectors; ++j) out += (j > 0 ? ", " : " ") + acc(i, j) + " = {}";
      out += ";\n";
    }
    out += "  for (; k > 0; --k) {\n";
    out += "    const " + v;
    for (int j = 0; j < tile.vectors; ++j)
      out += (j > 0 ? ", " : " ") + ("b" + n(j)) + " = " + at("b", j);
    out += ";\n    if (PACK) {\n     ";
    for (int j = 0; j < tile.vectors; ++j) out += " " + at("p", j) + " = b" + n(j) + ";";
    out += "\n      p += " + n(tile.columns()) + ";\n    }\n";
    // Fetches between the rows: in front they would hold up the loads of what is there already.
    const int line = 64 / size_in_bytes(dtype), lines = ceil_div(tile.columns(), line);
    int fetched = 0;
    for (int i = 0; i < tile.rows; ++i) {
      out += "   ";
      for (int j = 0; j < tile.vectors; ++j)
        out += " " + acc(i, j) + " += a[" + n(i) + " * ARS] * b" + n(j) + ";";
      out += "\n";
      for (; fetched * tile.rows < (i + 1) * lines; ++fetched) {
        out += "    if (LINES > " + n(fetched) + ") __builtin_prefetch(f + " + n(fetched * line) +
               ", 0, 2);\n";
      }
    }
    out += "    f += LDF;\n";
    out += "    a += ACS;\n    b += LDB;\n  }\n";
    // Sums start from zero and are added at the end: long sums are then sums of short ones, which
    // keeps their rounding errors small.
    out += "  if (ACCUMULATE) {\n";
    for (int i = 0; i < tile.rows; ++i) {
      out += "   ";
      for (int j = 0; j < tile.vectors; ++j)
        out += " " + acc(i, j) + " += " + at("c + " + n(i) + " * LDC", j) + ";";
      out += "\n";
    }
    out += "  }\n";
    for (int i = 0; i < tile.rows; ++i) {
      out += " ";
      for (int j = 0; j < tile.vectors; ++j)
        out += " " + at("c + " + n(i) + " * LDC", j) + " = " + acc(i, j) + ";";
      out += "\n";
    }
    out += "}\n";
  }
  for (const auto& [dtype, tile] : steady_) out += steady_text(dtype, tile);
  return out;
}

}  // namespace tessera
