// Subprograms for the partially equivalent engine: a program is split where operators are not
// linear (PET, OSDI'21, §6.1), and operators of several that do not depend on each other are also
// offered as one subprogram, since one operator may do the work of all.
#pragma once
#include <vector>

#include "driver/partition.h"

namespace tessera {

// Subprograms with convolutions or products, by their first operator. They overlap: each operator
// of a group of siblings (equal operators of one operand with weights of one window) is a
// subprogram of its own, or of the chain of linear operators that it belongs to, too. What works
// element by element separates subprograms even where it is linear (a bias, a residual sum): it
// follows rearrangements of its operands anyway. `most`: operators with arithmetic in one; all
// `subsets` of up to so many, of a chain or of siblings, are subprograms besides (PET, §6.2).
std::vector<Part> linear_parts(const Graph& program, size_t most = 4, size_t subsets = 0);

}  // namespace tessera
