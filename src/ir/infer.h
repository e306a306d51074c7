// Result types of an operator from its operands' types and attributes. Also normalises
// attributes (negative axes, empty reduction axes), so that equal programs print equally.
#pragma once
#include "ir/graph.h"

namespace tessera {

// Throws Error(BadInput, "matmul: …") on wrong rank, dtype, shape or attribute. `graph` supplies
// grid and loops for block operators and, for kernel and thread, `body` the results.
std::vector<Type> infer_types(OpKind kind, const std::vector<Type>& operands, Attrs& attrs,
                              const Graph& graph, const Graph* body);
// Throws unless extents are positive, rank and element count within limits, symbols well-formed.
void check_type(const Type& type, const std::string& where);

}  // namespace tessera
