// Thread graphs by fusion rules (Mirage, OSDI'25, §4.2): chains of pointwise operators of a block
// graph become graph-defined operators of the thread level, whose intermediates stay in registers.
#pragma once
#include "ir/graph.h"

namespace tessera::mugraph {

// The same program with every maximal tree of two or more pointwise operators of one shape and one
// phase as a thread graph; what it broadcasts arrives as an operand, constants are its own.
// Maxima and minima stay outside: the proof has to see which reduction they extend.
Graph form_thread_graphs(const Graph& graph);

}  // namespace tessera::mugraph
