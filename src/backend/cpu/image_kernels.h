// Register tiles of pixels times channels: what convolutions of channels-last images, and products
// of transformed ones, are made of. Each is defined once per translation unit.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"

namespace tessera {

// Channels of a result are cut into panels of whole vectors; weights of a panel lie side by side.
struct ChannelPanels {
  int lanes = 4;
  std::vector<int> vectors;  // of each panel
  int64_t width(size_t panel) const { return int64_t{vectors[panel]} * lanes; }
  int64_t begin(size_t panel) const;
  int64_t channels() const { return begin(vectors.size()); }  // with those that fill the last one
};
ChannelPanels channel_panels(CpuIsa isa, int64_t channels);

// Most pixels of a tile of so many vectors.
int most_pixels(CpuIsa isa, int vectors);

// The sizes of tiles that `count` pixels are cut into, at most `most` each: as equal as can be.
std::set<int> tile_sizes(int64_t count, int most);

// What a kernel's `ahead` is, in its pass `pass` over a panel of weights: the next panel, a vector
// of each of its rows at a time, so that memory is read while others compute.
std::string ahead(const std::string& weights, int64_t panel, int vectors);

class SharedText;

// Name of NAME(at, w, offsets, taps, k, sums, pitch, ahead):
//   sums[p·pitch + j] = Σ over taps t and i < k of at[p][offsets[t] + i] · w[(t·k + i)·columns + j]
// for `pixels` pixels p and the columns of `vectors` vectors. Fetches taps·k vectors from `ahead`
// on into the second-level cache: of a panel's weights, so many are read later.
std::string image_kernel(SharedText& shared, CpuIsa isa, int pixels, int vectors);

}  // namespace tessera
