// What measurements say about the GPU model: how well it ranks, and the factors on its terms that
// fit best. Those go into a target description as `scale` lines.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cost/gpu_model.h"
#include "ir/graph.h"

namespace tessera {

// One program that was timed: its kernels by the model, with the target's scales all 1, and
// seconds.
struct MeasuredKernels {
  std::vector<GpuTimes> kernels;
  double seconds = 0;
  double modelled(const Scales&) const;
};

// The kernels of a program by the model without scales. `calls`: whether a library does what a
// call says.
std::vector<GpuTimes> modelled_kernels(const Graph& graph, const Target& target,
                                       const std::function<bool(const LibraryCall&)>& calls);

// Rows as text, a line each, and back; lines that do not read are left out.
std::string print_rows(const std::vector<MeasuredKernels>& rows);
std::vector<MeasuredKernels> read_rows(const std::string& text);

// Spearman's rank correlation, ties sharing their ranks: 1 where b grows with a, -1 where it falls,
// 0 where the order says nothing or there are fewer than two.
double rank_correlation(std::span<const double> a, std::span<const double> b);

struct Fit {
  Scales scales;
  double error_before = 0, error = 0;  // root mean square of modelled/measured - 1
  double rank_before = 0, rank = 0;    // rank_correlation of modelled and measured
  int rows = 0;
  // Enough was measured, and the factors make the model better by both figures.
  bool worthwhile() const { return rows >= 4 && error < error_before && rank >= rank_before; }
};

// Least squares of relative errors (Gauss-Newton on the terms that decide), drawn towards 1 a
// little so that what no measurement depends on stays; factors are kept within [0.2, 5]. Rows that
// are not positive and finite are left out.
Fit fit_scales(std::span<const MeasuredKernels> rows);

}  // namespace tessera
