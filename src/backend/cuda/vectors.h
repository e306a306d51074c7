// Elements side by side that a thread reads, computes and writes together: 16 bytes at a time where
// memory allows.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "backend/nest.h"
#include "backend/values.h"

namespace tessera {

// How many neighbours along the innermost axis can be written to `to` as one, while at least
// `least_threads` have work; 1 where none can.
int vector_width(const Memory& to, const std::vector<Extent>& extents, int64_t least_threads);

// Code that computes the `width` elements of value `root` from `index` on and writes them to `to`.
void write_vector(Code& code, const KernelValues& kernel, int root, const std::vector<Expr>& index,
                  const Memory& to, int width, std::set<std::string>& prelude,
                  std::vector<int>& touched);

// Declares an array of the `width` elements of each value in memory that `root` reads at its own
// index, and tells `nest` of them; `index` is that of the first, `e` counts.
void load_vectors(Code& code, Nest& nest, const KernelValues& kernel, int root,
                  const std::vector<Expr>& index, int width);

// The index of element `e` of a vector.
std::vector<Expr> in_vector(std::vector<Expr> index, int width);

}  // namespace tessera
