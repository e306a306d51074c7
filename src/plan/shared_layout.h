// How a tile lies in the shared memory of a thread block: the order of its axes, what is added to a
// row, blocks of columns, and the exclusive-or of address bits that keeps columns off one bank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// The address of an element is that of a row-major array in `order`, its rows (of the innermost
// axis) `pad` elements longer than they are; with `block` > 0 the innermost axis is cut into blocks
// of that many elements, each with all rows of the second innermost axis. Then bits 4 to 4 +
// swizzle_bits - 1 of the offset in bytes are changed by as many bits from `swizzle_shift` on.
// (3, 7) with blocks of 128 bytes is what tensor maps and wgmma call 128-byte swizzling.
struct SharedLayout {
  std::vector<int> order;  // axes from the outermost to the innermost; empty: as they come
  int64_t pad = 0;         // elements
  int64_t block = 0;       // elements; 0: whole rows
  int swizzle_bits = 0;    // 0: none
  int swizzle_shift = 7;   // at least 4 + swizzle_bits

  int axis(size_t i, size_t rank) const;  // the axis at position i of the order
  int innermost(size_t rank) const { return rank == 0 ? -1 : axis(rank - 1, rank); }
  bool plain() const { return pad == 0 && block == 0 && swizzle_bits == 0; }
  friend bool operator==(const SharedLayout&, const SharedLayout&) = default;
};

// Bytes that the tile takes, padding included.
int64_t shared_bytes(const SharedLayout& layout, const std::vector<int64_t>& extents,
                     int element_bytes);
// Distances in bytes between neighbours along each axis, before swizzling; along the innermost axis
// within a block. Blocks are `rows * block` elements apart.
std::vector<int64_t> shared_strides(const SharedLayout& layout, const std::vector<int64_t>& extents,
                                    int element_bytes);
// Bytes between blocks of columns; 0 where there are none.
int64_t block_stride(const SharedLayout& layout, const std::vector<int64_t>& extents,
                     int element_bytes);
// `offset` with its bits exchanged.
int64_t swizzled(const SharedLayout& layout, int64_t offset);
// Where elements are, in bytes from the tile's beginning: all, in the row-major order of the
// extents as they come.
std::vector<int64_t> shared_offsets(const SharedLayout& layout, const std::vector<int64_t>& extents,
                                    int element_bytes);
// What the tile's beginning must be a multiple of, in bytes, so that vectors are in line and
// offsets meet the banks that were counted. Where hardware exchanges the bits (`by_hardware`), it
// does so on addresses.
int64_t shared_alignment(const SharedLayout& layout, bool by_hardware = false);

}  // namespace tessera
