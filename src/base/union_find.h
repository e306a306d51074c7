// Disjoint sets of 0, 1, …, each known by its least member.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/interruption.h"

namespace tessera {

class UnionFind {
 public:
  explicit UnionFind(size_t n = 0) {
    while (size() < n) add();
  }
  size_t size() const { return parent_.size(); }
  // A set of its own.
  void add() { parent_.push_back(size()); }
  size_t find(size_t i) const {
    interruption_point();
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(size_t a, size_t b) {
    a = find(a);
    b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  mutable std::vector<size_t> parent_;
};

}  // namespace tessera
