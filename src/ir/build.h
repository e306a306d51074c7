// Operators that many parts of the source append to graphs, as functions.
#pragma once
#include "ir/graph.h"

namespace tessera::build {

inline TensorId reshape(Graph& g, TensorId x, ShapeAttrs a, std::string name = "") {
  return g.add(OpKind::Reshape, {x}, std::move(a), std::move(name));
}
inline TensorId transpose(Graph& g, TensorId x, PermAttrs a, std::string name = "") {
  return g.add(OpKind::Transpose, {x}, std::move(a), std::move(name));
}
inline TensorId broadcast(Graph& g, TensorId x, ShapeAttrs a, std::string name = "") {
  return g.add(OpKind::Broadcast, {x}, std::move(a), std::move(name));
}
inline TensorId unsqueeze(Graph& g, TensorId x, AxesAttrs a, std::string name = "") {
  return g.add(OpKind::Unsqueeze, {x}, std::move(a), std::move(name));
}
inline TensorId squeeze(Graph& g, TensorId x, AxesAttrs a, std::string name = "") {
  return g.add(OpKind::Squeeze, {x}, std::move(a), std::move(name));
}
inline TensorId slice(Graph& g, TensorId x, SliceAttrs a, std::string name = "") {
  return g.add(OpKind::Slice, {x}, std::move(a), std::move(name));
}
inline TensorId pad(Graph& g, TensorId x, PadAttrs a, std::string name = "") {
  return g.add(OpKind::Pad, {x}, std::move(a), std::move(name));
}
inline TensorId cast(Graph& g, TensorId x, CastAttrs a, std::string name = "") {
  return g.add(OpKind::Cast, {x}, a, std::move(name));
}
inline TensorId concat(Graph& g, std::vector<TensorId> parts, AxisAttrs a) {
  return g.add(OpKind::Concat, std::move(parts), a);
}
inline TensorId stack(Graph& g, std::vector<TensorId> parts, AxisAttrs a) {
  return g.add(OpKind::Stack, std::move(parts), a);
}
inline TensorId matmul(Graph& g, std::vector<TensorId> operands) {
  return g.add(OpKind::Matmul, std::move(operands));
}
inline TensorId iter(Graph& g, TensorId x, IterAttrs a, std::string name = "") {
  return g.add(OpKind::Iter, {x}, a, std::move(name));
}
inline TensorId save(Graph& g, TensorId x, SaveAttrs a, std::string name = "") {
  return g.add(OpKind::Save, {x}, std::move(a), std::move(name));
}
inline TensorId accum(Graph& g, TensorId x, AccumAttrs a, std::string name = "") {
  return g.add(OpKind::Accum, {x}, std::move(a), std::move(name));
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
