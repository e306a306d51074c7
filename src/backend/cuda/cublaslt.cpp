// Products by cuBLASLt.
#include <mutex>

#include "backend/cuda/libraries.h"
#include "backend/cuda/nvrtc.h"
#include "base/error.h"
#include "base/shared_library.h"

namespace tessera {
namespace {

// A way of computing a product, as cublasLtMatmulAlgoGetHeuristic tells it.
struct Way {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Way) == 96);

// Of cuBLASLt's interface (docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API").
struct CublasLtApi {
  SharedLibrary library;
  int (*create)(void**) = library.need("cublasLtCreate");
  int (*destroy)(void*) = library.need("cublasLtDestroy");
  size_t (*version)() = library.need("cublasLtGetVersion");
  int (*product_create)(void**, int compute, int scale) = library.need("cublasLtMatmulDescCreate");
  int (*product_destroy)(void*) = library.need("cublasLtMatmulDescDestroy");
  int (*product_set)(void*, int, const void*,
                     size_t) = library.need("cublasLtMatmulDescSetAttribute");
  int (*layout_create)(void**, int type, uint64_t rows, uint64_t columns,
                       int64_t pitch) = library.need("cublasLtMatrixLayoutCreate");
  int (*layout_destroy)(void*) = library.need("cublasLtMatrixLayoutDestroy");
  int (*layout_set)(void*, int, const void*,
                    size_t) = library.need("cublasLtMatrixLayoutSetAttribute");
  int (*preference_create)(void**) = library.need("cublasLtMatmulPreferenceCreate");
  int (*preference_destroy)(void*) = library.need("cublasLtMatmulPreferenceDestroy");
  int (*preference_set)(void*, int, const void*,
                        size_t) = library.need("cublasLtMatmulPreferenceSetAttribute");
  int (*ways)(void*, void*, void*, void*, void*, void*, void*, int, Way*,
              int*) = library.need("cublasLtMatmulAlgoGetHeuristic");
  int (*run)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
             const void*, void*, void*, void*, const uint64_t*, void*, size_t,
             CudaStream) = library.need("cublasLtMatmul");
};

// Numbers of that interface.
constexpr int kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 14;  // cudaDataType_t
constexpr int kCompute32 = 68, kCompute64 = 70, kComputeTf32 = 77;       // computeType
constexpr int kEpilogue = 7, kBiasPointer = 8;                           // of products
constexpr int kBatchCount = 5, kBatchStride = 6;                         // of layouts
// Of preferences: bytes of workspace, and what addresses of left, right, bias and result are
// multiples of.
constexpr int kMostWorkspace = 1, kAlignments[4] = {5, 6, 7, 8};
constexpr uint32_t kOperandAlignment = 16;
constexpr int kPlainEpilogue = 1, kReluEpilogue = 2, kBiasEpilogue = 4,
              kGeluEpilogue = 32;  // epilogues
constexpr int kNotSupported = 15;  // a status

std::mutex mutex;  // of what follows
std::string cublaslt_path;
std::shared_ptr<const CublasLtApi> loaded_cublaslt;

std::shared_ptr<const CublasLtApi> cublaslt() {
  std::lock_guard lock(mutex);
  if (loaded_cublaslt) return loaded_cublaslt;
  loaded_cublaslt.reset(new CublasLtApi{
      SharedLibrary("cuBLASLt", "version 12 or later",
                    cuda_places(cublaslt_path, {"libcublasLt.so.13", "libcublasLt.so.12"}),
                    "cuBLASLt is not found: pip install nvidia-cublas")});
  return loaded_cublaslt;
}

void check(int status, const std::string& doing) {
  if (status == 0) return;
  throw Error(status == kNotSupported ? ErrorKind::Unsupported : ErrorKind::Device,
              "cannot " + doing + ": cuBLASLt's status " + std::to_string(status));
}

int type_of(const LibraryCall& p) {
  if (!is_float(p.dtype))
    throw Error(ErrorKind::Unsupported,
                std::string("cuBLASLt is not asked for products of ") + name(p.dtype));
  constexpr int kTypes[] = {kFloat64, kFloat32, kFloat16, kBFloat16};  // in DType's order
  return kTypes[size_t(p.dtype)];
}

int epilogue_of(const LibraryCall& p) {
  int e = p.bias >= 0 ? kBiasEpilogue : 0;
  if (p.epilogue == LibraryCall::Epilogue::Relu) e |= kReluEpilogue;
  if (p.epilogue == LibraryCall::Epilogue::GeluTanh) e |= kGeluEpilogue;
  return e == 0 ? kPlainEpilogue : e;
}

}  // namespace

std::string cublaslt_version() {
  const size_t v = cublaslt()->version();  // 10000 · major + 100 · minor + patch, before 13 as well
  return std::to_string(v / 10000) + "." + std::to_string(v % 10000 / 100);
}

bool has_cublaslt() {
  try {
    const bool stand_in = CudaDriver::get()->runs_host_code();
    cublaslt();
    const std::lock_guard lock(mutex);
    return stand_in == !cublaslt_path.empty();
  } catch (const Error&) {
    return false;
  }
}

void use_cublaslt(const std::string& where) {
  {
    std::lock_guard lock(mutex);
    cublaslt_path = where;
    loaded_cublaslt.reset();
  }
  forget_library_calls();
}

namespace {

class CublasLtProduct : public LibraryCallable {
 public:
  CublasLtProduct(std::shared_ptr<CudaContext> context, const LibraryCall& product,
                  int64_t most_workspace);
  ~CublasLtProduct() override;
  int64_t workspace_bytes() const override;
  void run(std::span<const CudaAddress> operands, CudaAddress out, CudaAddress workspace,
           CudaStream stream) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct CublasLtProduct::Impl {
  std::shared_ptr<const CublasLtApi> api;
  std::shared_ptr<CudaContext> context;
  LibraryCall product;
  void *handle = nullptr, *matmul = nullptr, *preference = nullptr;
  void *left = nullptr, *right = nullptr, *out = nullptr;  // layouts
  Way way{};
  std::mutex mutex;  // of the bias' address in `matmul`

  ~Impl() {
    for (void* layout : {left, right, out})
      if (layout != nullptr) api->layout_destroy(layout);
    if (preference != nullptr) api->preference_destroy(preference);
    if (matmul != nullptr) api->product_destroy(matmul);
    if (handle != nullptr) api->destroy(handle);
  }

  // A row-major matrix is its transpose to the library, which counts by columns.
  void* layout(int64_t rows, int64_t columns, bool batched) const {
    void* made = nullptr;
    check(api->layout_create(&made, type_of(product), uint64_t(columns), uint64_t(rows), columns),
          "describe a matrix");
    const int32_t count = int32_t(product.batch);
    const int64_t stride = batched ? rows * columns : 0;
    check(api->layout_set(made, kBatchCount, &count, sizeof count), "describe a matrix");
    check(api->layout_set(made, kBatchStride, &stride, sizeof stride), "describe a matrix");
    return made;
  }
};

CublasLtProduct::CublasLtProduct(std::shared_ptr<CudaContext> context, const LibraryCall& product,
                                 int64_t most_workspace)
    : impl_(std::make_unique<Impl>()) {
  Impl& m = *impl_;
  m.api = cublaslt();
  m.context = std::move(context);
  m.product = product;
  const CudaContext::Current current(*m.context);
  const RelaxedCapture relaxed(m.context->driver());
  const bool wide = product.dtype == DType::F64;
  const int compute = wide ? kCompute64 : product.tf32 ? kComputeTf32 : kCompute32;
  check(m.api->create(&m.handle), "start cuBLASLt");
  check(m.api->product_create(&m.matmul, compute, wide ? kFloat64 : kFloat32),
        "describe " + product.str());
  const int epilogue = epilogue_of(product);
  check(m.api->product_set(m.matmul, kEpilogue, &epilogue, sizeof epilogue),
        "describe " + product.str());
  m.left = m.layout(product.rows, product.depth, product.left_batched);
  m.right = m.layout(product.depth, product.columns, product.right_batched);
  m.out = m.layout(product.rows, product.columns, product.batch > 1);
  check(m.api->preference_create(&m.preference), "describe " + product.str());
  const size_t most = size_t(most_workspace);
  check(m.api->preference_set(m.preference, kMostWorkspace, &most, sizeof most),
        "describe " + product.str());
  for (const int which : kAlignments)
    check(m.api->preference_set(m.preference, which, &kOperandAlignment, sizeof kOperandAlignment),
          "describe " + product.str());
  int found = 0;
  const int status = m.api->ways(m.handle, m.matmul, m.right, m.left, m.out, m.out, m.preference, 1,
                                 &m.way, &found);
  if (status == kNotSupported || (status == 0 && found == 0))
    throw Error(ErrorKind::Unsupported, "cuBLASLt " + cublaslt_version() + " has no way for " +
                                            product.str() + " on " + m.context->device().str());
  check(status, "choose a way for " + product.str());
}

CublasLtProduct::~CublasLtProduct() {
  const std::shared_ptr<CudaContext> context = impl_->context;  // outlives what is in it
  try {
    const CudaContext::Current current(*context);
    impl_.reset();
  } catch (const Error&) {  // the context is gone, and what is in it
    impl_.release();
  }
}

int64_t CublasLtProduct::workspace_bytes() const { return int64_t(impl_->way.workspace); }

void CublasLtProduct::run(std::span<const CudaAddress> operands, CudaAddress out,
                          CudaAddress workspace, CudaStream stream) const {
  Impl& m = *impl_;
  const CudaAddress left = operands[size_t(m.product.left)];
  const CudaAddress right = operands[size_t(m.product.right)];
  const CudaContext::Current current(*m.context);
  const std::lock_guard lock(m.mutex);
  if (m.product.bias >= 0)
    check(m.api->product_set(m.matmul, kBiasPointer, &operands[size_t(m.product.bias)],
                             sizeof(CudaAddress)),
          "give a bias");
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  const bool wide = m.product.dtype == DType::F64;
  const auto at = [](CudaAddress a) { return reinterpret_cast<void*>(a); };
  // out' = right'·left' of the transposes.
  check(m.api->run(m.handle, m.matmul, wide ? static_cast<const void*>(&wide_one) : &one, at(right),
                   m.right, at(left), m.left, wide ? static_cast<const void*>(&wide_zero) : &zero,
                   at(out), m.out, at(out), m.out, m.way.algorithm, at(workspace), m.way.workspace,
                   stream),
        "run " + m.product.str());
}

}  // namespace

std::unique_ptr<const LibraryCallable> make_cublaslt_callable(std::shared_ptr<CudaContext> context,
                                                              const LibraryCall& call,
                                                              int64_t most_workspace) {
  return std::make_unique<CublasLtProduct>(std::move(context), call, most_workspace);
}

}  // namespace tessera
