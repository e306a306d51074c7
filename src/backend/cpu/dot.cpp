#include "backend/cpu/dot.h"

#include <vector>

#include "backend/cpu/matmul.h"
#include "backend/cpu/tile_text.h"

namespace tessera {
namespace {

std::string n(int i) { return std::to_string(i); }

// shuffle(x, y) that takes, in groups of `width` lanes, every other group starting with `first`,
// from x and y alternately within blocks of four groups (128 bits) or from all of x, then of y.
std::string pick(int lanes, const std::string& x, const std::string& y,
                 const std::vector<int>& index) {
  std::string s = "__builtin_shufflevector(" + x + ", " + y;
  for (int i = 0; i < lanes; ++i) s += ", " + n(index[size_t(i)]);
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
  return pick(lanes, x, y, a) + " + " + pick(lanes, x, y, b);
}

std::string load(DType dtype, int lanes, const std::string& at) {
  if (dtype == DType::BF16) return "dot_from_bf16_" + n(lanes) + "(" + at + ")";
  return "*(const dot_v" + n(lanes) + "*)(" + at + ")";
}

}  // namespace

std::string DotKernels::use(CpuIsa isa, DType right, int rows) {
  const int lanes = lanes_of(isa, DType::F32);
  used_.insert({right, lanes, rows});
  return "dot_" + std::string(name(right)) + "_" + n(rows) + "x" + n(lanes / rows);
}

std::string DotKernels::use_single(CpuIsa isa, DType right) {
  used_.insert({right, lanes_of(isa, DType::F32), 0});
  return "dot_" + std::string(name(right));
}

std::string DotKernels::text() const {
  std::string out;
  std::set<int> all_lanes, bf16_lanes;
  for (const Kernel& k : used_) {
    all_lanes.insert(k.lanes);
    if (k.right == DType::BF16) bf16_lanes.insert(k.lanes);
  }
  for (int l : all_lanes) out += "\n" + vector_typedef("float", "dot_v" + n(l), l * 4, 4);
  for (int l : bf16_lanes)
    out += widening_load(CpuIsa::Generic, DType::BF16, "dot_from_bf16_" + n(l), "dot_v" + n(l), l);
  for (const Kernel& kernel : used_) {
    const std::string type = kernel.right == DType::BF16 ? "unsigned short" : "float";
    const std::string v = "dot_v" + n(kernel.lanes);
    const std::string lanes = n(kernel.lanes);
    const std::string one = kernel.right == DType::BF16 ? "t_from_bf16(b[%])" : "b[%]";
    const auto element = [&](const std::string& at) {
      std::string e = one;
      return e.replace(e.find('%'), 1, at);
    };
    if (kernel.rows == 0) {
      out += "\nstatic float dot_" + std::string(name(kernel.right)) + "(const float* a, const " +
             type + "* b, long k) {\n  " + v + " s = {};\n  long i = 0;\n  for (; i + " + lanes +
             " <= k; i += " + lanes + ") s += *(const " + v + "*)(a + i) * " +
             load(kernel.right, kernel.lanes, "b + i") +
             ";\n  float t = 0;\n  for (int l = 0; l < " + lanes +
             "; ++l) t += s[l];\n  for (; i < k; ++i) t += a[i] * " + element("i") +
             ";\n  return t;\n}\n";
      continue;
    }
    const int columns = kernel.lanes / kernel.rows;
    const auto acc = [&](int i, int j) { return "s" + n(i * columns + j); };
    out += "\ntemplate <long ARS, long LDB, long LDC, int ACCUMULATE, long AHEAD>\n"
           "static __attribute__((noinline)) void dot_" +
           std::string(name(kernel.right)) + "_" + n(kernel.rows) + "x" + n(columns) +
           "(const float* a, const " + type + "* b, float* c, long k) {\n  " + v;
    for (int i = 0; i < kernel.lanes; ++i) out += (i > 0 ? ", s" : " s") + n(i) + " = {}";
    out += ";\n  long i = 0;\n  for (; i + " + lanes + " <= k; i += " + lanes + ") {\n";
    out += "    if (AHEAD) {\n";
    for (int j = 0; j < columns; ++j)
      out += "      __builtin_prefetch(b + " + n(j) + " * LDB + i + AHEAD, 0, 2);\n";
    out += "    }\n";
    if (kernel.rows == 1) {
      out += "    const " + v + " x = *(const " + v + "*)(a + i);\n";
      for (int j = 0; j < columns; ++j) {
        out += "    " + acc(0, j) + " += x * " +
               load(kernel.right, kernel.lanes, "b + " + n(j) + " * LDB + i") + ";\n";
      }
    } else {
      for (int j = 0; j < columns; ++j) {
        out += "    const " + v + " y" + n(j) + " = " +
               load(kernel.right, kernel.lanes, "b + " + n(j) + " * LDB + i") + ";\n";
      }
      for (int r = 0; r < kernel.rows; ++r) {
        out += "    const " + v + " x" + n(r) + " = *(const " + v + "*)(a + " + n(r) +
               " * ARS + i);\n   ";
        for (int j = 0; j < columns; ++j)
          out += " " + acc(r, j) + " += x" + n(r) + " * y" + n(j) + ";";
        out += "\n";
      }
    }
    out += "  }\n  // Lane i of the last vector is the sum of all lanes of s<i>.\n";
    std::vector<std::string> level;
    for (int i = 0; i < kernel.lanes; ++i) level.push_back("s" + n(i));
    for (int step = 0; level.size() > 1; ++step) {
      std::vector<std::string> next;
      for (size_t i = 0; i < level.size(); i += 2) {
        const std::string to = "h" + n(step) + "_" + n(int(i / 2));
        out += "  const " + v + " " + to + " = " +
               halve(kernel.lanes, step, level[i], level[i + 1]) + ";\n";
        next.push_back(to);
      }
      level = next;
    }
    out += "  float t[" + lanes + "] __attribute__((aligned(64)));\n  *(" + v +
           "*)t = " + level[0] + ";\n  for (; i < k; ++i) {\n    for (int r = 0; r < " +
           n(kernel.rows) + "; ++r) {\n      for (int j = 0; j < " + n(columns) + "; ++j) t[r * " +
           n(columns) + " + j] += a[r * ARS + i] * " + element("j * LDB + i") + ";\n    }\n  }\n";
    out += "  for (int r = 0; r < " + n(kernel.rows) + "; ++r) {\n    for (int j = 0; j < " +
           n(columns) + "; ++j) c[r * LDC + j] = ACCUMULATE ? c[r * LDC + j] + t[r * " +
           n(columns) + " + j] : t[r * " + n(columns) + " + j];\n  }\n}\n";
  }
  return out;
}

}  // namespace tessera
