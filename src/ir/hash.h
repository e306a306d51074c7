// Hashes of parts of graphs; structural_hash (graph.h) is that of a whole one.
#pragma once
#include <cstdint>

#include "ir/op.h"

namespace tessera {

// Of an operator's attributes, whatever its operands and results are.
uint64_t attributes_hash(const Op& op);

}  // namespace tessera
