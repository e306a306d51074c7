// From choices of an e-graph back to programs.
#pragma once
#include "ir/graph.h"
#include "search/synth/egraph.h"

namespace tessera::synth {

// A program with the inputs of `program` and the values of `outputs`, computed as chosen.
Graph lower(const Graph& program, const EGraph& graph, const Choice& choice,
            const std::vector<ValueId>& outputs);

}  // namespace tessera::synth
