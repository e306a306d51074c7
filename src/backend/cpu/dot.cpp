#include "backend/cpu/dot.h"

#include <vector>

#include "backend/cpu/matmul.h"
#include "backend/cpu/tile_text.h"
#include "backend/fmt.h"

namespace tessera {
namespace {

// shuffle(x, y) that takes, in groups of `width` lanes, every other group starting with `first`,
// from x and y alternately within blocks of four groups (128 bits) or from all of x, then of y.
std::string pick(int lanes, const std::string& x, const std::string& y,
                 const std::vector<int>& index) {
  std::string s = fmt("__builtin_shufflevector($0, $1", x, y);
  for (int i = 0; i < lanes; ++i) s += ", " + num(index[size_t(i)]);
  return s + ")";
}

// One step of adding up: x and y become one vector in which each has half as many partial sums.
// Steps 0 and 1 stay within 128-bit lanes, later ones exchange those.
std::string halve(int lanes, int step, const std::string& x, const std::string& y) {
  std::vector<int> a, b;
  if (step == 0) {  // x0 y0 x1 y1 + x2 y2 x3 y3
    for (int l = 0; l < lanes; l += 4)
      for (int i : {0, lanes, 1, lanes + 1}) a.push_back(l + i), b.push_back(l + i + 2);
  } else if (step == 1) {  // x0 x1 y0 y1 + x2 x3 y2 y3
    for (int l = 0; l < lanes; l += 4)
      for (int i : {0, 1, lanes, lanes + 1}) a.push_back(l + i), b.push_back(l + i + 2);
  } else {  // whole 128-bit lanes: the even ones of x and y, plus the odd ones
    for (int from : {0, lanes}) {
      for (int l = 0; l < lanes; l += 8)
        for (int i = 0; i < 4; ++i) a.push_back(from + l + i), b.push_back(from + l + 4 + i);
    }
  }
  return fmt("$0 + $1", pick(lanes, x, y, a), pick(lanes, x, y, b));
}

// The right operand's elements.
struct Right {
  Right(SharedText& shared, CpuIsa isa, DType right)
      : right(right), lanes(lanes_of(isa, DType::F32)), type(storage_type(right)),
        v(fmt("dot_v$0", lanes)) {
    shared.type("\n" + vector_typedef("float", v, lanes * 4, 4));
    if (right == DType::BF16)
      shared.type(widening_load(CpuIsa::Generic, right, fmt("dot_from_bf16_$0", lanes), v, lanes));
  }
  std::string load(const std::string& at) const {
    return right == DType::BF16 ? fmt("dot_from_bf16_$0($1)", lanes, at)
                                : fmt("*(const $0*)($1)", v, at);
  }
  std::string element(const std::string& at) const {
    return fmt(right == DType::BF16 ? "t_from_bf16(b[$0])" : "b[$0]", at);
  }
  DType right;
  int lanes;
  std::string type, v;
};

std::string single_text(const Right& o) {
  return fmt("\nstatic float dot_$0(const float* a, const $1* b, long k) {\n  $2 s = {};\n  "
             "long i = 0;\n  for (; i + $3 <= k; i += $3) s += *(const $2*)(a + i) * $4;\n  "
             "float t = 0;\n  for (int l = 0; l < $3; ++l) t += s[l];\n  for (; i < k; ++i) t "
             "+= a[i] * $5;\n  return t;\n}\n",
             name(o.right), o.type, o.v, o.lanes, o.load("b + i"), o.element("i"));
}

std::string tile_text(const Right& o, int rows) {
  const std::string& v = o.v;
  const int columns = o.lanes / rows;
  const auto acc = [&](int i, int j) { return "s" + num(i * columns + j); };
  std::string out =
      fmt("\ntemplate <long ARS, long LDB, long LDC, int ACCUMULATE, long AHEAD>\nstatic "
          "__attribute__((noinline)) void dot_$0_$1x$2(const float* a, const $3* b, float* c, "
          "long k) {\n  $4",
          name(o.right), rows, columns, o.type, v);
  for (int i = 0; i < o.lanes; ++i) out += fmt("$0$1 = {}", i > 0 ? ", s" : " s", i);
  out += fmt(";\n  long i = 0;\n  for (; i + $0 <= k; i += $0) {\n", o.lanes);
  out += "    if (AHEAD) {\n";
  for (int j = 0; j < columns; ++j)
    out += fmt("      __builtin_prefetch(b + $0 * LDB + i + AHEAD, 0, 2);\n", j);
  out += "    }\n";
  if (rows == 1) {
    out += fmt("    const $0 x = *(const $0*)(a + i);\n", v);
    for (int j = 0; j < columns; ++j)
      out += fmt("    $0 += x * $1;\n", acc(0, j), o.load(fmt("b + $0 * LDB + i", j)));
  } else {
    for (int j = 0; j < columns; ++j)
      out += fmt("    const $0 y$1 = $2;\n", v, j, o.load(fmt("b + $0 * LDB + i", j)));
    for (int r = 0; r < rows; ++r) {
      out += fmt("    const $0 x$1 = *(const $0*)(a + $1 * ARS + i);\n   ", v, r);
      for (int j = 0; j < columns; ++j) out += fmt(" $0 += x$1 * y$2;", acc(r, j), r, j);
      out += "\n";
    }
  }
  out += "  }\n  // Lane i of the last vector is the sum of all lanes of s<i>.\n";
  std::vector<std::string> level = mapped(o.lanes, [&](int i) { return "s" + num(i); });
  for (int step = 0; level.size() > 1; ++step) {
    std::vector<std::string> next;
    for (size_t i = 0; i < level.size(); i += 2) {
      const std::string to = fmt("h$0_$1", step, int(i / 2));
      out += fmt("  const $0 $1 = $2;\n", v, to, halve(o.lanes, step, level[i], level[i + 1]));
      next.push_back(to);
    }
    level = next;
  }
  out += fmt("  float t[$0] __attribute__((aligned(64)));\n  *($1*)t = $2;\n  for (; i < k; ++i) "
             "{\n    for (int r = 0; r < $3; ++r) {\n      for (int j = 0; j < $4; ++j) t[r * $4 "
             "+ j] += a[r * ARS + i] * $5;\n    }\n  }\n",
             o.lanes, v, level[0], rows, columns, o.element("j * LDB + i"));
  out += fmt("  for (int r = 0; r < $0; ++r) {\n    for (int j = 0; j < $1; ++j) c[r * LDC + j] "
             "= ACCUMULATE ? c[r * LDC + j] + t[r * $1 + j] : t[r * $1 + j];\n  }\n}\n",
             rows, columns);
  return out;
}

}  // namespace

std::string dot_kernel(SharedText& shared, CpuIsa isa, DType right, int rows) {
  return shared.function(
      fmt("dot_$0_$1x$2", name(right), rows, lanes_of(isa, DType::F32) / rows),
      [&] { return tile_text(Right(shared, isa, right), rows); });
}

std::string single_dot(SharedText& shared, CpuIsa isa, DType right) {
  return shared.function(
      std::string("dot_") + name(right), [&] { return single_text(Right(shared, isa, right)); });
}

}  // namespace tessera
