#include "backend/cpu/image_kernels.h"

#include "backend/cpu/matmul.h"
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
  const std::string v = std::to_string(vectors), all = std::to_string(panel);
  return weights + " + (pass < " + v + " ? " + all + " + pass * " +
         std::to_string(panel / vectors) + " : 0)";
}

std::string ImageKernels::use(CpuIsa isa, int pixels, int vectors) {
  lanes_ = lanes_of(isa, DType::F32);
  used_.insert({pixels, vectors});
  return "image_" + std::to_string(pixels) + "x" + std::to_string(vectors);
}

std::string ImageKernels::text() const {
  if (used_.empty()) return "";
  const auto n = [](int i) { return std::to_string(i); };
  std::string out = "typedef float v_image __attribute__((vector_size(" + n(lanes_ * 4) +
                    "), aligned(4), may_alias));\n";
  for (const auto& [pixels, vectors] : used_) {
    const auto acc = [](int i, int j) { return "c" + std::to_string(i) + "_" + std::to_string(j); };
    out += "static __attribute__((noinline)) void image_" + n(pixels) + "x" + n(vectors) +
           "(const float* const* at, const float* w, const long* offsets, long taps, long k, "
           "float* sums, long pitch, const float* ahead) {\n  v_image";
    for (int i = 0; i < pixels; ++i)
      for (int j = 0; j < vectors; ++j) out += (i + j > 0 ? ", " : " ") + acc(i, j) + " = {}";
    out += ";\n  for (long t = 0; t < taps; ++t) {\n    const long o = offsets[t];\n";
    for (int i = 0; i < pixels; ++i)
      out += "    const float* const x" + n(i) + " = at[" + n(i) + "] + o;\n";
    out +=
        "    #pragma GCC unroll 2\n    for (long i = 0; i < k; ++i, w += " + n(vectors * lanes_) +
        ", ahead += " + n(lanes_) +
        ") {\n      __builtin_prefetch(ahead, 0, 2);\n      const v_image";
    for (int j = 0; j < vectors; ++j)
      out += (j > 0 ? ", b" : " b") + n(j) + " = *(const v_image*)(w + " + n(j * lanes_) + ")";
    out += ";\n";
    for (int i = 0; i < pixels; ++i) {
      out += "     ";
      for (int j = 0; j < vectors; ++j)
        out += " " + acc(i, j) + " += x" + n(i) + "[i] * b" + n(j) + ";";
      out += "\n";
    }
    out += "    }\n  }\n";
    for (int i = 0; i < pixels; ++i) {
      out += " ";
      for (int j = 0; j < vectors; ++j)
        out += " *(v_image*)(sums + " + n(i) + " * pitch + " + n(j * lanes_) + ") = " + acc(i, j) +
               ";";
      out += "\n";
    }
    out += "}\n";
  }
  return out;
}

}  // namespace tessera
