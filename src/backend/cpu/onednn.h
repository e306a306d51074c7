// oneDNN, where it is installed: another way of computing convolutions of channels-last images, and
// products where a pattern asks for it.
// Loaded when it is first asked for; nothing of it is needed to build Tessera.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/cpu/image_finish.h"
#include "ir/graph.h"

namespace tessera {

// The library that is in use: its version, or why there is none.
struct OneDnnState {
  std::string version, problem;  // one of them is empty
};
OneDnnState onednn();
// Where to look for it before the system's folders: a folder of Python's packages.
void set_onednn_folder(const std::string& folder);
// A file to use from now on; "": what is found.
void use_onednn(const std::string& path);

// A call of the library, cut into slices, a unit each. Every slice is computed on the thread that
// asks for it: the library starts none of its own.
class OneDnnCall {
 public:
  // A convolution, cut along the outermost axis of each image; slices are for `threads` threads.
  // Its arguments are images [N, …, C], weights [F, C, taps…] and results [N, …, F]. Null where
  // there is no library, or it has no way.
  static std::unique_ptr<const OneDnnCall> convolution(const ImageGeometry& g, int threads);
  // A product of matrices in f32 with what follows it element by element, cut along its rows.
  // `meaning`: a program of one matmul [M,K] x [K,N], whose second operand may be the transpose of
  // an input, and pointwise operators that the library knows, each of the value before it. Its
  // arguments are those of the program, the second operand in the library's layout if `packed`;
  // then the result. Throws Error(Unsupported) that says why not.
  static std::unique_ptr<const OneDnnCall> product(const Graph& meaning, bool packed, int threads);
  virtual ~OneDnnCall() = default;

  int64_t units = 0, rows = 0;  // slices; rows of one, of which the last may have fewer
  int64_t weight_bytes = 0;     // in the library's layout
  int64_t scratch_bytes = 0;    // of a slice
  size_t weights = 1;           // which argument they are
  // Into that layout.
  virtual void pack(const void* weights, void* packed) const = 0;
  virtual void run(void* const* arguments, int64_t unit, char* scratch) const = 0;
};

}  // namespace tessera
