// Tensors that only look at another's memory, as offset and strides, and how kernels read them.
// Static shapes only.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace tessera {

using Extents = std::vector<int64_t>;
// Extents and strides of what one axis goes through, the outermost first.
using AxisParts = std::vector<std::pair<int64_t, int64_t>>;

inline Shape shape_of(const Extents& extents) { return Shape(extents.begin(), extents.end()); }
// Strides of a row-major array; 0 along axes of extent 1.
Extents row_major_strides(const Extents& shape);
// Axes of a shape of the same elements in the same order; nullopt where a part would be torn.
std::optional<std::vector<AxisParts>> regroup(const AxisParts& parts, const Extents& shape);
// Parts that go on where the one within them ends are one.
AxisParts merged(const AxisParts& parts);
// One stride for each axis of a shape (0 for extent 1); nullopt where that cannot be.
std::optional<Extents> restride(const AxisParts& parts, const Extents& shape);

// Elements of the row-major tensor `root`, from `offset` on. An axis may consist of several (heads
// and their columns, seen as one).
struct Strided {
  TensorId root;
  int64_t offset = 0;
  std::vector<AxisParts> axes;

  // A tensor's own memory.
  static Strided of(TensorId root, const Extents& shape);
  // All axes one after the other, without those of extent 1.
  AxisParts parts() const;
  // Whether it is the root's memory from its start, in order and without gaps.
  bool whole() const;
  // Broadcast to a shape.
  AxisParts over(const Extents& shape) const;
};

// Operators that compute nothing, where strides can say so.
bool is_strided_view(OpKind kind);
// What each tensor of a graph looks at: itself, where it has memory of its own, as results of the
// operators `apart` have.
std::vector<Strided> strided_views(const Graph& graph, const std::vector<bool>& apart);

// How a kernel reads a strided operand: a part of the root, seen in another shape.
struct Reading {
  Extents shape, starts, stops;
  std::vector<int> gone;  // axes of that shape that are none of the operand's
  std::vector<int> axes;  // by axis of the operand: the axis of that shape, or -1

  bool cuts() const;              // whether it is not all of the root
  std::vector<int> perm() const;  // the order of what is left of that shape in the operand
};
// Of a root of so many elements; nullopt where strides do not nest, or run backwards.
std::optional<Reading> reading(int64_t elements, const Extents& extents, const Extents& strides,
                               int64_t offset);

}  // namespace tessera
