#include "places.h"

namespace tessera {

std::string source_dir() { return SOURCE_DIR; }
const char* stand_in_cuda() { return STAND_IN_CUDA; }
const char* stand_in_cublaslt() { return STAND_IN_CUBLASLT; }
const char* stand_in_cudnn() { return STAND_IN_CUDNN; }
const char* stand_in_dnnl() { return STAND_IN_DNNL; }

}  // namespace tessera
