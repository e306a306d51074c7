// Winograd's minimal filtering for windows without strides (Lavin & Gray, CVPR 2016, §4): tiles of
// the image and the weights are transformed, products are summed over channels for each place of a
// tile, and m×m results come back from a transform. Windows of 3 (m = 2 or 4), 5 and 7 (m = 2)
// elements along the two innermost axes, or along one where the other's windows are one element
// wide; the frames of films are further terms of the sums. Dilated windows are the same on the
// pixels of one residue.
#pragma once

#include "backend/cpu/emit_images.h"
#include "backend/cpu/image_finish.h"

namespace tessera {

bool winograd_applies(const ImageGeometry& g, int m, CpuIsa isa);
// In multiply-adds of the direct algorithm.
double winograd_cost(const ImageGeometry& g, int m, int threads);
// Adds the stages of F(m×m, …) and their workspaces to `code`.
void emit_winograd(const std::string& name, const ImageGeometry& g, int m,
                   const ChannelPanels& panels, const Finish& finish, UnitContext& unit,
                   ImageCode& code);

}  // namespace tessera
