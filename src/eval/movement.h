// Data movement between views, plane by plane: what never looks at a value.
#pragma once
#include "base/thread_pool.h"
#include "eval/tensor.h"

namespace tessera {

// Copies src to dst (one shape). Planes that only dst has are filled with 0 when they are flags or
// sets; planes that only src has are dropped.
void copy_view(const View& dst, const View& src, size_t word, ThreadPool* pool = nullptr);
// Sets a plane of a view to 0.
void zero_plane(const View& dst, int plane, size_t word);
// The view with new extents, or false when that needs a copy.
bool reshape_view(View& v, int rank, const std::array<int64_t, kMaxRank>& extents);
// Zeros above (keep_upper = false) or below the k-th diagonal of the innermost two axes.
void zero_triangle(const View& v, int64_t k, bool keep_upper, size_t word);

}  // namespace tessera
