// Code for image steps (channels_last.h): convolutions by direct sums or by Winograd's transforms
// (Lavin & Gray, CVPR 2016), and pooling; what follows is computed on sums that are still in the
// cache.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/emit.h"
#include "backend/cpu/emit_kernel.h"
#include "backend/nest.h"
#include "plan/plan.h"

namespace tessera {

enum class ConvAlgorithm {
  Direct,     // every product
  Winograd2,  // tiles of 2×2 results: 2.25 times fewer products in 3×3 windows
  Winograd4,  // tiles of 4×4 results: 4 times fewer
  OneDnn,     // oneDNN's (onednn.h); only where it was measured to be the fastest
};
const char* name(ConvAlgorithm algorithm);
std::optional<ConvAlgorithm> conv_algorithm_from(std::string_view name);
// How much larger its errors are than those of sums, relative to the largest result; 0: they are
// sums.
double normwise(ConvAlgorithm algorithm);
// Everything that a convolution's time depends on, as text: shapes and attributes.
std::string signature(const Graph& graph, const ImageStep& step);

// The algorithms that a step's convolution can take, Direct first; none for pooling.
std::vector<ConvAlgorithm> algorithms_of(const Graph& graph, const ImageStep& step, CpuIsa isa);
// Whether `options` let a convolution of such axes have it.
bool may_use(ConvAlgorithm algorithm, const PlanOptions& options,
             const std::vector<WindowAxis>& axes);
// The one that `options` names for its signature, else what should be fastest by counting products,
// and bytes of transformed weights and images.
ConvAlgorithm choose_algorithm(const Graph& graph, const ImageStep& step, CpuIsa isa, int threads,
                               const PlanOptions& options);

// One function of a step. Its arguments are memory by number: the image, the weights (of a
// convolution), further operands in the step's order, the result, then workspaces in the order in
// which they are listed.
struct ImageStage {
  Code code;  // may be empty where `library` is all
  LibraryStage library;
  std::vector<int> reads;
  int writes = 0;
  int64_t units = 1, scratch_bytes = 0;
  bool of_weights = false;  // reads nothing but weights
};
struct ImageCode {
  std::vector<ImageStage> stages;
  std::vector<int64_t> workspace_bytes;
  int operands = 0;  // number of the result

  void add(ImageStage stage, std::vector<int> reads, int writes) {
    stage.reads = std::move(reads);
    stage.writes = writes;
    stages.push_back(std::move(stage));
  }
};
// Slices that a library computes are for `threads` threads.
ImageCode emit_image_step(const std::string& name, const Graph& graph, const ImageStep& step,
                          ConvAlgorithm algorithm, UnitContext& unit, int threads);

}  // namespace tessera
