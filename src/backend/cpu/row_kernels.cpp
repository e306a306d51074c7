#include "backend/cpu/row_kernels.h"

#include <algorithm>

#include "backend/cpu/tile_text.h"
#include "backend/nest.h"
#include "ir/block.h"

namespace tessera {
namespace {

std::string vector_type(DType dtype, int lanes) {
  return std::string("v_") + name(dtype) + "_" + num(lanes);
}

std::string type_definitions(CpuIsa isa, DType dtype, DType right, int lanes) {
  const std::string v = vector_type(dtype, lanes);
  if (is_sixteen(right))
    return widening_load(isa, right, "load_" + vector_type(right, lanes), v, lanes);
  const int bytes = size_in_bytes(dtype);
  return vector_typedef(storage_type(dtype), v, lanes * bytes, bytes);
}

// The type of the sums.
DType sums_of(DType left) { return left == DType::F64 ? DType::F64 : DType::F32; }

struct Kernel {
  CpuIsa isa;
  DType left, right;
  int64_t m;
  RegisterTile tile;
};

std::string step_of(const Kernel& kernel, int rows, const std::string& first) {
  const RegisterTile& tile = kernel.tile;
  const std::string v = vector_type(kernel.left, tile.lanes);
  const std::string load = is_sixteen(kernel.right)
                               ? "load_" + vector_type(kernel.right, tile.lanes)
                               : "*(const " + v + "*)";
  std::string out = declare_vectors("        const ", v, "b", tile.vectors, [&](int j) {
    return load + "(q + " + num(j * tile.lanes) + ")";
  });
  for (int i = 0; i < rows; ++i)
    out += multiply_row("       ", i, tile.vectors, "a[(" + first + num(i) + ") * ARS + k]");
  return out + "        q += LDB;\n";
}

std::string dot_step_of(const Kernel& kernel, int rows, const std::string& first) {
  // Two rows of b become pairs of neighbours along k, whole registers of 32 columns at a time.
  const RegisterTile& tile = kernel.tile;
  std::string out;
  for (int j = 0; j < tile.vectors; j += 2) {
    const bool both = j + 1 < tile.vectors;
    const std::string words = both ? "t_words32" : "t_words16", p = "q + " + num(j * tile.lanes);
    const int half = both ? 32 : 16;
    const std::string x = "x" + num(j), y = "y" + num(j);
    out += "        const " + words + " " + x + " = *(const " + words + "*)(" + p + ");\n";
    out += "        " + words + " " + y + " = {};\n";
    out += "        if (ROWS > 1) " + y + " = *(const " + words + "*)(" + p + " + LDB);\n";
    for (int part = 0; part < (both ? 2 : 1); ++part) {
      out += "        const t_words32 b" + num(j + part) + " = __builtin_shufflevector(" + x +
             ", " + y;
      for (int c = 0; c < 16; ++c)
        out += ", " + num(part * 16 + c) + ", " + num(half + part * 16 + c);
      out += ");\n";
    }
  }
  for (int i = 0; i < rows; ++i) {
    const std::string p = "a + (" + first + num(i) + ") * ARS + k";
    out += "        {\n          const t_pairs x = t_pairs{} + (ROWS > 1 ? *(const t_pair*)(" + p +
           ") : (int)*(" + p + "));\n";
    for (int j = 0; j < tile.vectors; ++j) {
      out += "          __asm__(\"vdpbf16ps %2, %1, %0\" : \"+v\"(" + sum_at(i, j) + ") : \"v\"(b" +
             num(j) + "), \"v\"(x));\n";
    }
    out += "        }\n";
  }
  return out + "        q += 2 * LDB;\n";
}

std::string text_of(SharedText& shared, const std::string& name, const Kernel& kernel) {
  const RegisterTile& tile = kernel.tile;
  const bool dot = kernel.left == DType::BF16;
  const DType sums = sums_of(kernel.left);
  const std::string type = storage_type(sums), from = storage_type(kernel.right);
  const std::string v = vector_type(sums, tile.lanes);
  shared.type(type_definitions(kernel.isa, sums, sums, tile.lanes));
  if (dot)
    shared.type(vector_typedef("unsigned short", "t_words16", 32, 2) +
                vector_typedef("unsigned short", "t_words32", 64, 2) +
                "typedef int t_pairs __attribute__((vector_size(64), may_alias));\n"
                "typedef int t_pair __attribute__((aligned(2), may_alias));\n");
  else if (kernel.right != sums)
    shared.type(type_definitions(kernel.isa, sums, kernel.right, tile.lanes));
  const int64_t groups = ceil_div(kernel.m, tile.rows);
  std::string out = "\ntemplate <long ARS, long LDB, long LDC, int ROWS>\n"
                    "static __attribute__((noinline)) void " +
                    name + "(const " + storage_type(kernel.left) + "* a, const " + from + "* b, " +
                    type + "* c, long n) {\n  for (; n > 0; n -= " + num(tile.columns()) + ") {\n";
  for (int64_t g = 0; g < groups; ++g) {
    const int rows = int(std::min<int64_t>(tile.rows, kernel.m - g * tile.rows));
    const std::string first = num(g * tile.rows) + " + ";
    out += "    {\n      const " + from + "* q = b;\n";
    out += declare_sums("      ", v, rows, tile.vectors);
    out +=
        "#pragma GCC unroll 1\n      for (int k = 0; k < ROWS; k += " + num(dot ? 2 : 1) + ") {\n";
    out += dot ? dot_step_of(kernel, rows, first) : step_of(kernel, rows, first);
    out += "      }\n";
    for (int i = 0; i < rows; ++i)
      out += each_vector("     ", tile.vectors, [&](int j) {
        return "*(" + v + "*)(c + (" + first + num(i) + ") * LDC + " + num(j * tile.lanes) +
               ") += " + sum_at(i, j) + ";";
      });
    out += "    }\n";
  }
  out += "    b += " + num(tile.columns()) + ";\n    c += " + num(tile.columns()) + ";\n  }\n}\n";
  return out;
}

}  // namespace

bool row_kernel_reads(CpuIsa isa, DType dtype, DType right) {
  if (right == dtype) return dtype == DType::F32 || dtype == DType::F64;
  if (dtype != DType::F32) return false;
  return right == DType::BF16 || (right == DType::F16 && isa != CpuIsa::Generic);
}

RowSchedule row_schedule(const RegisterTile& tile, int64_t m) {
  // Measured. The hardware fetches long rows best when it is not asked to. Every element of the
  // sums is read and written once for each `rows` rows, so that more sums want more rows; all of
  // them stay in the second-level cache.
  constexpr int64_t kSums = int64_t{1} << 16;
  const int64_t columns = tile.columns();
  return {.rows = m <= 4    ? 8
                  : m <= 16 ? 16
                            : 32,
          .width = std::max<int64_t>(kSums / m / columns, 1) * columns};
}

std::string row_kernel(SharedText& shared, CpuIsa isa, DType left, DType right, int64_t m,
                       const RegisterTile& tile) {
  const std::string name = std::string("rows_") + tessera::name(left) + "_" + tessera::name(right) +
                           "_" + num(m) + "_" + num(tile.rows) + "x" + num(tile.vectors);
  return shared.function(name, [&] { return text_of(shared, name, {isa, left, right, m, tile}); });
}

}  // namespace tessera
