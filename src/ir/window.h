// The geometry of operators that slide a window over the innermost axes of their operand:
// convolutions and pooling.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace tessera {

// One axis. Element i of the operand meets tap t in result element o where
//   conv, pooling:   i = o·stride + t·dilation − low
//   conv_transpose:  o = i·stride + t·dilation − low
struct WindowAxis {
  int64_t in = 1, taps = 1, out = 1;  // extents of the operand, the window and the result
  int64_t stride = 1, dilation = 1, low = 0, high = 0;
  friend bool operator==(const WindowAxis&, const WindowAxis&) = default;
};

// The axes of an operator with static shapes, outermost first.
std::vector<WindowAxis> window_axes(const Graph& graph, const Op& op);
// Fills in attributes that were left out and throws Error(BadInput) where they do not fit `n` axes.
void complete_window(const char* name, size_t n, std::vector<int64_t>& strides,
                     std::vector<int64_t>& dilations, std::vector<int64_t>& low,
                     std::vector<int64_t>& high);
// Results of a tile along an axis in minimal filtering (Winograd, Lavin & Gray, CVPR 2016):
// `wanted` where windows have usable transforms, 1 where they are one element wide, else 0.
int transform_tile(const WindowAxis& axis, int wanted);
// Which convolutions may be computed by transforms (Winograd): Common are those that libraries have
// transforms for, square windows of images without dilation; Small those with tiles of 2 results
// along an axis, which lose few digits.
enum class Transforms : uint8_t { None, Small, Common, All };
bool may_transform(Transforms which, const std::vector<WindowAxis>& axes);
// Elements of a tile of all axes, at most: larger ones round too much.
inline constexpr int kMostTransformed = 36;

inline bool is_windowed(OpKind kind) {
  return kind == OpKind::Conv || kind == OpKind::ConvTranspose || kind == OpKind::PoolSum ||
         kind == OpKind::PoolMax;
}
inline bool is_convolution(OpKind kind) {
  return kind == OpKind::Conv || kind == OpKind::ConvTranspose;
}
// How many operand elements (or products) a result element of any operator takes together, at most.
double terms_of(const Graph& graph, const Op& op);

}  // namespace tessera
