// What follows a convolution or pooling element by element, as a function over sums that were just
// computed, and the sizes its code is written for.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/emit_kernel.h"
#include "ir/window.h"

namespace tessera {

struct ImageGeometry {
  std::vector<WindowAxis> axes;
  int64_t batch = 1, channels = 1, filters = 1;
  int64_t taps = 1, pixels = 1;  // of the window; of a result image
  int64_t groups = 1;            // of a convolution: each reads and makes channels of its own
  bool pads = false;
  std::vector<int64_t> padded;  // extents with the zeros around
  int64_t padded_pixels = 1;
  bool depthwise() const { return groups > 1 && groups == channels && groups == filters; }
};
ImageGeometry geometry_of(const Graph& graph, const ImageStep& step);

struct Finish {
  std::string name, text;
  int more = 0;  // operands other than the sums
  // Writes rows of results: `sums` has `pitch` elements per row; results begin at pixel `pixel` of
  // the whole batch and at `column`, and are `rows` neighbouring pixels of `columns` channels. The
  // code around has `out`, and the other operands in `more`.
  std::string call(const std::string& sums, const std::string& pitch, const std::string& pixel,
                   const std::string& column, const std::string& rows,
                   const std::string& columns) const {
    return name + "_finish(" + sums + ", " + pitch + ", out, more, " + pixel + ", " + column +
           ", " + rows + ", " + columns + ");";
  }
};
Finish make_finish(const std::string& name, const Graph& graph, const ImageStep& step,
                   UnitContext& unit);

}  // namespace tessera
