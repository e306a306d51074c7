// How a tile lies in the shared memory of a thread block: the order of its axes, what is added to a
// row, and the exclusive-or of address bits that keeps columns off one bank.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// The address of an element is that of a row-major array in `order`, its rows (of the innermost
// axis) `pad` elements longer than they are. Then bits 4 to 4 + swizzle_bits - 1 of the offset in
// bytes are changed by as many bits from `swizzle_shift` on. (3, 7) with rows of 128 bytes is what
// tensor maps and wgmma call 128-byte swizzling.
struct SharedLayout {
  std::vector<int> order;  // axes from the outermost to the innermost; empty: as they come
  int64_t pad = 0;         // elements
  int swizzle_bits = 0;    // 0: none
  int swizzle_shift = 7;   // at least 4 + swizzle_bits

  int axis(size_t i, size_t rank) const;  // the axis at position i of the order
  int innermost(size_t rank) const { return rank == 0 ? -1 : axis(rank - 1, rank); }
  friend bool operator==(const SharedLayout&, const SharedLayout&) = default;
};

// Bytes that the tile takes, padding included.
int64_t shared_bytes(const SharedLayout& layout, const std::vector<int64_t>& extents,
                     int element_bytes);
// Distances in bytes between neighbours along each axis, before swizzling.
std::vector<int64_t> shared_strides(const SharedLayout& layout, const std::vector<int64_t>& extents,
                                    int element_bytes);
// `offset` with its bits exchanged.
int64_t swizzled(const SharedLayout& layout, int64_t offset);
// Where elements are, in bytes from the tile's beginning: all, in the row-major order of the
// extents as they come.
std::vector<int64_t> shared_offsets(const SharedLayout& layout, const std::vector<int64_t>& extents,
                                    int element_bytes);
// What the tile's beginning must be a multiple of, in bytes, so that vectors are in line and
// offsets meet the banks that were counted.
int64_t shared_alignment(const SharedLayout& layout);

}  // namespace tessera
