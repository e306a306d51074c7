#include "ir/axis_reads.h"

#include <algorithm>

namespace tessera {

std::optional<std::vector<AxisRead>> axis_reads(OpKind kind, const Attrs& attrs, int rank,
                                                int result_rank) {
  std::vector<AxisRead> reads(static_cast<size_t>(rank));
  for (int d = 0; d < rank; ++d) reads[size_t(d)].axis = result_rank - rank + d;
  if (const auto* a = std::get_if<PermAttrs>(&attrs)) {
    for (int d = 0; d < rank; ++d) reads[size_t(a->perm[size_t(d)])].axis = d;
  } else if (const auto* s = std::get_if<SliceAttrs>(&attrs)) {
    for (size_t d = 0; d < reads.size(); ++d)
      reads[d].start = s->starts[d], reads[d].step = s->steps[d];
  } else if (const auto* axes = std::get_if<AxesAttrs>(&attrs)) {
    // Of the longer of both lists of axes.
    const auto named = [&](int d) { return std::ranges::binary_search(axes->axes, d); };
    int to = 0;
    for (int d = 0; d < rank; ++d) {
      AxisRead& r = reads[size_t(d)];
      if (rank > result_rank && named(d)) {
        r.axis = -1;
        continue;
      }
      while (rank < result_rank && named(to)) ++to;
      r.axis = to++;
    }
  } else if (kind == OpKind::Broadcast || kind == OpKind::Repeat) {
    for (AxisRead& r : reads) r.wraps = true;
  } else {
    return std::nullopt;
  }
  return reads;
}

}  // namespace tessera
