// What of a buffer is written: runs of elements that repeat at strides, which grow as loops around
// them end. Internal to validate.cpp.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "kernel/ir.h"

namespace tessera::kernel {

// Whether an expression varies with one of these variables.
bool varies_with(const Expr& e, const std::set<std::string>& variables);
// The factor of a variable that it is linear in; nullopt where it is not.
std::optional<int64_t> factor_of(const Expr& e, const std::string& variable);

// Elements start + Σ strideᵢ·nᵢ + [0, length) with 0 ≤ nᵢ < countᵢ.
struct Region {
  int buffer = -1;
  Expr start;
  int64_t length = 1;
  struct Step {
    int64_t stride, count;
    friend bool operator==(const Step&, const Step&) = default;
  };
  std::vector<Step> steps;  // ascending strides, all longer than what is inside them

  // What is written by all iterations of a loop around it; nullopt: not known.
  std::optional<Region> after(const std::string& variable, const Range& range) const;
  bool covers(const Expr& offset) const;
  // Takes in another that adjoins or overlaps it.
  bool merge(const Region& other);

 private:
  void absorb();
};

// Adds a region to those that are known.
void add_region(std::vector<Region>& known, Region region);

}  // namespace tessera::kernel
