// What library.cpp chooses from: the libraries, one file each.
#pragma once
#include <memory>

#include "backend/cuda/library.h"

namespace tessera {

std::unique_ptr<const LibraryCallable> make_cublaslt_callable(std::shared_ptr<CudaContext> context,
                                                              const LibraryCall& call,
                                                              int64_t most_workspace);
std::unique_ptr<const LibraryCallable> make_cudnn_callable(std::shared_ptr<CudaContext> context,
                                                           const LibraryCall& call,
                                                           int64_t most_workspace);
// Another library has another answer.
void forget_library_calls();

}  // namespace tessera
