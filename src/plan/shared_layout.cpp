#include "plan/shared_layout.h"

#include "ir/block.h"

namespace tessera {
namespace {

// Elements from row to row of the innermost axis.
int64_t pitch(const SharedLayout& l, const std::vector<int64_t>& extents) {
  return extents[size_t(l.innermost(extents.size()))] + l.pad;
}

}  // namespace

int SharedLayout::axis(size_t i, size_t rank) const {
  return order.size() == rank ? order[i] : int(i);
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
  for (size_t i = 0; i + 1 < rank; ++i) n *= extents[size_t(l.axis(i, rank))];
  // Exchanged bits stay within aligned pieces; the last one is needed whole.
  return round_up(n * element_bytes, l.swizzle_bits > 0 ? int64_t{16} << l.swizzle_bits : 1);
}

std::vector<int64_t> shared_offsets(const SharedLayout& l, const std::vector<int64_t>& extents,
                                    int element_bytes) {
  const std::vector<int64_t> strides = shared_strides(l, extents, element_bytes);
  std::vector<int64_t> all = {0};
  for (size_t a = 0; a < extents.size(); ++a) {
    std::vector<int64_t> next;
    next.reserve(all.size() * size_t(extents[a]));
    for (int64_t at : all)
      for (int64_t i = 0; i < extents[a]; ++i) next.push_back(at + i * strides[a]);
    all = std::move(next);
  }
  for (int64_t& at : all) at = swizzled(l, at);
  return all;
}

int64_t shared_alignment(const SharedLayout& l) { return l.swizzle_bits == 0 ? 16 : 128; }

}  // namespace tessera
