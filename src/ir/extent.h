// Extents that follow from symbols: sums of products with integer coefficients, such as
// batch*seq+1. A Dim holds one as its text, of which there is one for equal extents.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/types.h"

namespace tessera {

class SymbolicExtent {
 public:
  SymbolicExtent(int64_t n);   // NOLINT: a number is an extent
  SymbolicExtent(const Dim&);  // NOLINT: throws Error(BadInput) where its text is no extent
  static SymbolicExtent parse(std::string_view text);  // the same; terms and factors in any order

  Dim dim() const;
  bool known() const;                        // no symbol is left
  std::vector<std::string> symbols() const;  // in order, each once
  SymbolicExtent bound(const std::vector<std::pair<std::string, int64_t>>& values) const;
  // Throw Error(BadInput) where a coefficient or the number of terms becomes too large.
  friend SymbolicExtent operator+(const SymbolicExtent&, const SymbolicExtent&);
  friend SymbolicExtent operator*(const SymbolicExtent&, const SymbolicExtent&);
  friend bool operator==(const SymbolicExtent&, const SymbolicExtent&) = default;

 private:
  using Factors = std::vector<std::string>;  // sorted; none: the constant
  void add(const Factors&, int64_t coefficient);
  std::map<Factors, int64_t> terms_;  // coefficients are not 0
};

SymbolicExtent volume(const Shape&);  // the number of elements

}  // namespace tessera
