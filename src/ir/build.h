// Operators that many parts of the source append to graphs, as functions.
#pragma once
#include "ir/graph.h"

namespace tessera::build {

// NAME(graph, operand, attributes, name of the result) appends an operator of that kind.
#define TESSERA_APPENDS(NAME, KIND, ATTRS)                                                         \
  inline TensorId NAME(Graph& g, TensorId x, ATTRS a, std::string result = "") {                   \
    return g.add(OpKind::KIND, {x}, std::move(a), std::move(result));                              \
  }
TESSERA_APPENDS(reshape, Reshape, ShapeAttrs)
TESSERA_APPENDS(transpose, Transpose, PermAttrs)
TESSERA_APPENDS(broadcast, Broadcast, ShapeAttrs)
TESSERA_APPENDS(unsqueeze, Unsqueeze, AxesAttrs)
TESSERA_APPENDS(squeeze, Squeeze, AxesAttrs)
TESSERA_APPENDS(slice, Slice, SliceAttrs)
TESSERA_APPENDS(pad, Pad, PadAttrs)
TESSERA_APPENDS(cast, Cast, CastAttrs)
TESSERA_APPENDS(iter, Iter, IterAttrs)
TESSERA_APPENDS(save, Save, SaveAttrs)
TESSERA_APPENDS(accum, Accum, AccumAttrs)
#undef TESSERA_APPENDS

inline TensorId concat(Graph& g, std::vector<TensorId> parts, AxisAttrs a) {
  return g.add(OpKind::Concat, std::move(parts), a);
}
inline TensorId stack(Graph& g, std::vector<TensorId> parts, AxisAttrs a) {
  return g.add(OpKind::Stack, std::move(parts), a);
}
inline TensorId matmul(Graph& g, std::vector<TensorId> operands) {
  return g.add(OpKind::Matmul, std::move(operands));
}
// The operators of `from` but its inputs, for which `inputs` stand: what its outputs have become.
inline std::vector<TensorId> graph(Graph& g, const Graph& from,
                                   const std::vector<TensorId>& inputs) {
  std::vector<TensorId> map(from.tensors().size()), outputs;
  for (size_t i = 0; i < inputs.size(); i++) map[from.inputs()[i].index] = inputs[i];
  copy_ops(from, g, map);
  for (TensorId t : from.outputs()) outputs.push_back(map[t.index]);
  return outputs;
}

}  // namespace tessera::build
