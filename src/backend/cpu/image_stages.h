// Parts of an image step's code that several algorithms share, and those that go pixel by pixel:
// pooling, and convolutions of each channel by itself.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/emit_images.h"
#include "backend/cpu/image_finish.h"

namespace tessera {

// The head of a stage's function, and its first arguments by name.
void open_stage(Code& code, const std::string& name, const std::vector<std::string>& arguments);

enum class WindowFold { Products, Sum, Max };

// Channel by channel. Reads the image, for products the packed weights [taps…, C], and what follows
// needs. A unit is some tiles of neighbouring pixels.
ImageStage window_stage(const std::string& name, const ImageGeometry& g, WindowFold fold,
                        const Finish& finish, CpuIsa isa);

}  // namespace tessera
