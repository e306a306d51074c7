// Where the tests find the files of the source tree and the libraries built for them.
#pragma once

#include <string>

namespace tessera {

/// The root of the source tree.
std::string source_dir();

/// Libraries that stand in for NVIDIA's (tests/stand_in): the driver, cuBLASLt and cuDNN.
const char* stand_in_cuda();
const char* stand_in_cublaslt();
const char* stand_in_cudnn();
const char* stand_in_dnnl();

}  // namespace tessera
