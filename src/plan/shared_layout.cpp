#include "plan/shared_layout.h"

#include <algorithm>

namespace tessera {
namespace {

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Elements from row to row of the innermost axis.
int64_t pitch(const SharedLayout& l, const std::vector<int64_t>& extents) {
  if (l.block > 0) return l.block + l.pad;
  return extents[size_t(l.innermost(extents.size()))] + l.pad;
}

}  // namespace

int SharedLayout::axis(size_t i, size_t rank) const {
  return order.size() == rank ? order[i] : int(i);
}

int64_t block_stride(const SharedLayout& l, const std::vector<int64_t>& extents,
                     int element_bytes) {
  if (l.block == 0) return 0;
  const size_t rank = extents.size();
  return pitch(l, extents) * extents[size_t(l.axis(rank - 2, rank))] * element_bytes;
}

std::vector<int64_t> shared_strides(const SharedLayout& l, const std::vector<int64_t>& extents,
                                    int element_bytes) {
  const size_t rank = extents.size();
  std::vector<int64_t> strides(rank, element_bytes);
  if (rank < 2) return strides;
  int64_t below = pitch(l, extents) * element_bytes;
  for (size_t i = rank - 1; i-- > 0;) {
    const size_t a = size_t(l.axis(i, rank));
    strides[a] = below;
    below *= extents[a];
    if (i + 2 == rank && l.block > 0) {
      const int64_t columns = extents[size_t(l.innermost(rank))];
      below *= up(columns, l.block) / l.block;
    }
  }
  return strides;
}

int64_t swizzled(const SharedLayout& l, int64_t offset) {
  const int64_t mask = (int64_t{1} << l.swizzle_bits) - 1;
  return offset ^ ((offset >> l.swizzle_shift & mask) << 4);
}

int64_t shared_bytes(const SharedLayout& l, const std::vector<int64_t>& extents,
                     int element_bytes) {
  const size_t rank = extents.size();
  if (rank == 0) return element_bytes;
  int64_t n = pitch(l, extents);
  if (l.block > 0) n *= up(extents[size_t(l.innermost(rank))], l.block) / l.block;
  for (size_t i = 0; i + 1 < rank; ++i) n *= extents[size_t(l.axis(i, rank))];
  // Exchanged bits stay within aligned pieces; the last one is needed whole.
  return up(n * element_bytes, l.swizzle_bits > 0 ? int64_t{16} << l.swizzle_bits : 1);
}

std::vector<int64_t> shared_offsets(const SharedLayout& l, const std::vector<int64_t>& extents,
                                    int element_bytes) {
  const std::vector<int64_t> strides = shared_strides(l, extents, element_bytes);
  const int64_t between = block_stride(l, extents, element_bytes);
  const int inner = l.innermost(extents.size());
  std::vector<int64_t> all = {0};
  for (size_t a = 0; a < extents.size(); ++a) {
    std::vector<int64_t> next;
    next.reserve(all.size() * size_t(extents[a]));
    const bool columns = l.block > 0 && int(a) == inner;
    for (int64_t at : all)
      for (int64_t i = 0; i < extents[a]; ++i)
        next.push_back(
            at + (columns ? i / l.block * between + i % l.block * element_bytes : i * strides[a]));
    all = std::move(next);
  }
  for (int64_t& at : all) at = swizzled(l, at);
  return all;
}

int64_t shared_alignment(const SharedLayout& l, bool by_hardware) {
  if (by_hardware)
    return l.swizzle_bits == 0 ? 128 : int64_t{1} << (l.swizzle_shift + l.swizzle_bits);
  return l.swizzle_bits == 0 ? 16 : 128;
}

}  // namespace tessera
