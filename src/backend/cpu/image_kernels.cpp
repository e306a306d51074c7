#include "backend/cpu/image_kernels.h"

#include "backend/cpu/matmul.h"
#include "backend/cpu/tile_text.h"
#include "backend/fmt.h"
#include "ir/block.h"

namespace tessera {

int64_t ChannelPanels::begin(size_t panel) const {
  int64_t at = 0;
  for (size_t i = 0; i < panel; ++i) at += width(i);
  return at;
}

ChannelPanels channel_panels(CpuIsa isa, int64_t channels) {
  const int most = vector_registers(isa) == 32 ? 4 : 2;
  ChannelPanels panels;
  panels.lanes = lanes_of(isa, DType::F32);
  // Equal panels, as few as there can be.
  const int64_t vectors = ceil_div(channels, int64_t{panels.lanes});
  const int64_t count = ceil_div(vectors, int64_t{most});
  for (int64_t i = 0; i < count; ++i)
    panels.vectors.push_back(int(vectors / count + (i < vectors % count)));
  return panels;
}

int most_pixels(CpuIsa isa, int vectors) {
  // Sums, a row of weights and a broadcast pixel in registers; pixels have a pointer each.
  static constexpr int kWide[] = {0, 10, 10, 8, 6}, kNarrow[] = {0, 8, 6};
  return vector_registers(isa) == 32 ? kWide[vectors] : kNarrow[vectors];
}

std::set<int> tile_sizes(int64_t count, int most) {
  std::set<int> sizes;
  // As the loops of generated code do it: the rest is divided by the tiles that are left.
  for (int64_t tiles = ceil_div(count, int64_t{most}); tiles > 0; --tiles) {
    const int64_t size = ceil_div(count, tiles);
    sizes.insert(int(size));
    count -= size;
  }
  return sizes;
}

std::string ahead(const std::string& weights, int64_t panel, int vectors) {
  const std::string v = num(vectors), all = num(panel);
  return fmt("$0 + (pass < $1 ? $2 + pass * $3 : 0)", weights, v, all, panel / vectors);
}

namespace {

std::string text_of(SharedText& shared, int lanes, int pixels, int vectors) {
  shared.type(vector_typedef("float", "v_image", lanes * 4, 4));
  std::string out =
      fmt("static __attribute__((noinline)) void image_$0x$1(const float* const* at, const "
          "float* w, const long* offsets, long taps, long k, float* sums, long pitch, const "
          "float* ahead) {\n  v_image",
          pixels, vectors);
  for (int i = 0; i < pixels; ++i)
    for (int j = 0; j < vectors; ++j) out += fmt("$0$1 = {}", i + j > 0 ? ", " : " ", sum_at(i, j));
  out += ";\n  for (long t = 0; t < taps; ++t) {\n    const long o = offsets[t];\n";
  for (int i = 0; i < pixels; ++i) out += fmt("    const float* const x$0 = at[$0] + o;\n", i);
  out += fmt("    #pragma GCC unroll 2\n    for (long i = 0; i < k; ++i, w += $0, ahead += $1) "
             "{\n      __builtin_prefetch(ahead, 0, 2);\n",
             vectors * lanes, lanes);
  out += declare_vectors("      const ", "v_image", "b", vectors,
                         [&](int j) { return fmt("*(const v_image*)(w + $0)", j * lanes); });
  for (int i = 0; i < pixels; ++i) out += multiply_row("     ", i, vectors, fmt("x$0[i]", i));
  out += "    }\n  }\n";
  for (int i = 0; i < pixels; ++i)
    out += each_vector(" ", vectors, [&](int j) {
      return fmt("*(v_image*)(sums + $0 * pitch + $1) = $2;", i, j * lanes, sum_at(i, j));
    });
  out += "}\n";
  return out;
}

}  // namespace

std::string image_kernel(SharedText& shared, CpuIsa isa, int pixels, int vectors) {
  return shared.function(
      fmt("image_$0x$1", pixels, vectors),
      [&] { return text_of(shared, lanes_of(isa, DType::F32), pixels, vectors); });
}

}  // namespace tessera
