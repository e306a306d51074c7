// Products whose two operands both lie along the contracted axis, as queries and keys do: tiles of
// dot products that are added up across lanes at the end, without transposing the right operand.
#pragma once

#include <string>

#include "backend/cpu/isa.h"
#include "ir/types.h"

namespace tessera {

// With more rows it pays to turn tiles of the right operand first: every dot product is added up
// across lanes, which costs as much as a few multiplications. Narrow elements are converted, too.
inline int64_t most_dot_rows(DType right) { return size_in_bytes(right) < 4 ? 12 : 7; }

// Rows of the left operand that one kernel takes at a time; it then takes lanes / rows columns.
inline constexpr int kDotRows[] = {8, 4, 2, 1};

class SharedText;

// f32 sums; the right operand may be bf16.
// Name of the kernel template: name<ARS, LDB, LDC, ACCUMULATE, AHEAD>(a, b, c, k) computes
// c[i*LDC + j] (+)= sum_k a[i*ARS + k] * b[j*LDB + k] over a tile of `rows` rows and lanes / rows
// columns. It asks for what lies AHEAD elements behind what it reads of b, unless that is 0.
std::string dot_kernel(SharedText& shared, CpuIsa isa, DType right, int rows);
// Name of a function (a, b, k) that returns one such sum.
std::string single_dot(SharedText& shared, CpuIsa isa, DType right);

}  // namespace tessera
