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

// One convolution, cut into slices along the outermost axis of each image, a unit each. Every slice
// is computed on the thread that asks for it: the library starts none of its own.
class OneDnnConvolution {
 public:
  // Slices are for `threads` threads. Null where there is no library, or it has no way.
  static std::unique_ptr<const OneDnnConvolution> make(const ImageGeometry& g, int threads);
  ~OneDnnConvolution();

  int64_t weight_bytes() const;   // in the library's layout
  int64_t scratch_bytes() const;  // of one call
  int64_t units() const;
  int64_t rows() const;  // of the outermost axis, of a slice; the last may have fewer
  // `weights` [F, C, taps…] into that layout.
  void pack(const void* weights, void* packed) const;
  // Slice `unit` of images [N, …, C] to that of results [N, …, F].
  void run(const float* images, const void* packed, float* results, int64_t unit,
           char* scratch) const;

 private:
  struct Impl;
  explicit OneDnnConvolution(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A product of matrices in f32 with what follows it element by element, cut into slices of rows, a
// unit each, which are computed like those of convolutions.
class OneDnnProduct {
 public:
  // `meaning`: a program of one matmul [M,K] x [K,N], whose second operand may be the transpose of
  // an input, and pointwise operators that the library knows, each of the value before it.
  // `packed`: the second operand comes in the library's layout. Throws Error(Unsupported) that says
  // why not.
  static std::unique_ptr<const OneDnnProduct> make(const Graph& meaning, bool packed, int threads);
  ~OneDnnProduct();

  size_t weights() const;  // which input of the program is the second operand
  int64_t weight_bytes() const;
  int64_t scratch_bytes() const;
  int64_t units() const;
  void pack(const void* weights, void* packed) const;
  // `inputs`: of the program, the second operand in the layout that was asked for; then the result.
  void run(void* const* inputs, int64_t unit, char* scratch) const;

 private:
  struct Impl;
  explicit OneDnnProduct(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
