// What two programs must share before anything is computed.
#pragma once
#include <optional>
#include <string>

#include "ir/graph.h"
#include "verify/verdict.h"

namespace tessera {

// Where inputs or outputs differ in number, order or type; names may differ.
std::optional<Counterexample> interface_difference(const Graph& a, const Graph& b);

// "X f32[16,1024]"
std::string describe(const Graph& g, TensorId t);

}  // namespace tessera
