// Parts of an image step's code that several algorithms share, and those that go pixel by pixel:
// pooling, and convolutions of each channel by itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/emit_images.h"
#include "backend/cpu/image_finish.h"

namespace tessera {

// The head of a stage's function, and its first arguments by name.
void open_stage(Code& code, const std::string& name, const std::vector<std::string>& arguments);

// The smaller one of `from + step` and `end`, as an expression.
std::string clipped(const std::string& from, int64_t step, const std::string& end);

// For the panels of each width a piece of code that knows `column`, where panel number `panel`
// begins; `body` gets the first one of them.
void each_width(Code& code, const ChannelPanels& panels, const std::function<void(size_t)>& body);

// Calls the kernel for `rows` pixels, of any size that stretches of `chunk` out of `all` are cut
// into, with these arguments.
void call_kernel(Code& code, UnitContext& unit, int vectors, int64_t all, int64_t chunk,
                 const std::string& arguments);

enum class WindowFold { Products, Sum, Max };

// Channel by channel. Reads the image, for products the packed weights [taps…, C], and what follows
// needs. A unit is some tiles of neighbouring pixels.
ImageStage window_stage(const std::string& name, const ImageGeometry& g, WindowFold fold,
                        const Finish& finish, CpuIsa isa);

}  // namespace tessera
