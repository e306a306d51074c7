// Pieces of the text of kernels over register tiles, whose sums are variables: c<i>_<j> of row i
// and vector j.
#pragma once

#include <set>
#include <string>

#include "backend/cpu/matmul.h"
#include "base/text.h"

namespace tessera {

// Types and functions that the code of one translation unit shares, each written once.
class SharedText {
 public:
  void type(const std::string& text) {
    if (known_.insert(text).second) text_ += text;
  }
  // The name of a function, which `make` writes where there is none of that name.
  template <class F> std::string function(const std::string& name, F make) {
    if (known_.insert(name).second) text_ += make();
    return name;
  }
  const std::string& text() const { return text_; }

 private:
  std::set<std::string> known_;
  std::string text_;
};

inline std::string sum_at(int i, int j) { return "c" + num(i) + "_" + num(j); }

// A vector that may lie anywhere where an element may.
std::string vector_typedef(const std::string& type, const std::string& name, int bytes,
                           int aligned);

// Defines NAME(p), which reads `lanes` elements stored as `stored`, bf16 or f16, as an f32
// `vector`.
std::string widening_load(CpuIsa isa, DType stored, const std::string& name,
                          const std::string& vector, int lanes);

// One line with `statement(j)` for each vector.
template <class F> std::string each_vector(const std::string& indent, int vectors, F statement) {
  std::string line = indent;
  for (int j = 0; j < vectors; ++j) line += " " + statement(j);
  return line + "\n";
}

// Declares name<j> = value(j) for each vector.
template <class F>
std::string declare_vectors(const std::string& indent, const std::string& type,
                            const std::string& name, int vectors, F value) {
  std::string line = indent + type;
  for (int j = 0; j < vectors; ++j) line += (j > 0 ? ", " : " ") + name + num(j) + " = " + value(j);
  return line + ";\n";
}

// Declares the sums of a tile, which start from zero.
inline std::string declare_sums(const std::string& indent, const std::string& type, int rows,
                                int vectors) {
  std::string text;
  for (int i = 0; i < rows; ++i)
    text += declare_vectors(indent, type, "c" + num(i) + "_", vectors, [](int) { return "{}"; });
  return text;
}

// Adds x times the vectors b<j> to the sums of row i.
inline std::string multiply_row(const std::string& indent, int i, int vectors,
                                const std::string& x) {
  return each_vector(
      indent, vectors, [&](int j) { return sum_at(i, j) + " += " + x + " * b" + num(j) + ";"; });
}

// Writes the sums to c, or adds them where the template's parameter ACCUMULATE says so.
inline std::string keep_sums(const std::string& type, const RegisterTile& tile) {
  std::string text;
  for (int i = 0; i < tile.rows; ++i)
    text += each_vector(" ", tile.vectors, [&](int j) {
      const std::string at =
          "*(" + type + "*)(c + " + num(i) + " * LDC + " + num(j * tile.lanes) + ")";
      const std::string sum = sum_at(i, j);
      return at + " = ACCUMULATE ? " + at + " + " + sum + " : " + sum + ";";
    });
  return text;
}

}  // namespace tessera
