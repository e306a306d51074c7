#include "backend/cuda/cudnn_graph.h"

#include <utility>

#include "backend/values.h"
#include "base/error.h"

namespace tessera {

namespace cudnn {
namespace {

// Kinds of descriptors.
constexpr int kPointwise = 0, kConvolution = 1, kForward = 10, kBackwardData = 12,
              kOfPointwise = 13, kTensor = 17, kMatmul = 18, kOfMatmul = 19, kReduce = 21,
              kOfReduce = 22, kSoftmax = 45;
constexpr size_t kSoftmaxSince = 92100;
// Attributes.
constexpr int kPointwiseKind = 0, kPointwisePrecision = 1, kPointwiseAxis = 9;
constexpr int kComputeType = 100, kCorrelation = 101, kDilations = 102, kStrides = 103,
              kZerosBehind = 104, kZerosBefore = 105, kSpatialAxes = 106;
constexpr int kForwardAlpha = 700;   // then beta, convolution, w, x, y
constexpr int kBackwardAlpha = 706;  // then beta, convolution, w, dx, dy
constexpr int kOf = 750, kX = 751, kB = 752, kY = 753, kT = 758;  // of pointwise operations
constexpr int kAlignment = 900, kElements = 901, kExtents = 902, kPitches = 903, kId = 906,
              kVirtual = 907, kByValue = 908;
constexpr int kMatmulCompute = 1500, kLeft = 1520, kRight = 1521, kProduct = 1522, kMatmulOf = 1523;
constexpr int kReduceKind = 1600, kReduceCompute = 1601, kReduceX = 1610, kReduceY = 1611,
              kReduceOf = 1612, kSoftmaxX = 3100, kSoftmaxY = 3101;
// Data types.
constexpr int kF32 = 0, kF64 = 1, kF16 = 2, kI32 = 4, kBF16 = 9, kBool = 11;
// Pointwise modes and reductions.
constexpr int kAdd = 0, kMul = 1, kDiv = 6, kSub = 9, kExp = 13, kLog = 15, kRelu = 100,
              kGeluTanh = 107, kAtLeast = 303, kIndex = 501, kSelect = 601;
constexpr int kSum = 0, kMax = 3;

int type_of(DType t) {
  if (!is_float(t))
    throw Error(ErrorKind::Unsupported, std::string("cuDNN is not asked for calls of ") + name(t));
  constexpr int kTypes[] = {kF64, kF32, kF16, kBF16};  // in DType's order
  return kTypes[size_t(t)];
}

class Builder {
 public:
  Builder(const CudnnApi& api, const LibraryCall& call) : api_(api), call_(call) {}
  CudnnOperations finish() && { return std::move(all_); }

  void convolution() {
    const LibraryCall& c = call_;
    const int compute = c.dtype == DType::F64 ? kF64 : kF32;
    // One axis is two, of which the first has one place.
    std::vector<int64_t> dilations, strides, before, behind;
    std::vector<int64_t> x = {c.batch, c.depth}, y = {c.batch, c.columns};
    std::vector<int64_t> w = c.transposed ? std::vector<int64_t>{c.depth, c.columns / c.groups}
                                          : std::vector<int64_t>{c.columns, c.depth / c.groups};
    std::vector<WindowAxis> axes = c.axes;
    if (axes.size() == 1) axes.insert(axes.begin(), WindowAxis{});
    for (const WindowAxis& a : axes) {
      // The larger side has zeros around it; as many behind as before must give the same windows.
      const int64_t wide = c.transposed ? a.out : a.in, narrow = c.transposed ? a.in : a.out;
      if (a.low < 0 || (wide + 2 * a.low - a.dilation * (a.taps - 1) - 1) / a.stride + 1 != narrow)
        throw Error(ErrorKind::Unsupported, "cuDNN has no " + c.str());
      dilations.push_back(a.dilation);
      strides.push_back(a.stride);
      before.push_back(a.low);
      behind.push_back(a.low);
      x.push_back(a.in);
      w.push_back(a.taps);
      y.push_back(a.out);
    }
    void* image = tensor(c.left + 1, type_of(c.dtype), x, contiguous_strides(x));
    void* weights = tensor(c.right + 1, type_of(c.dtype), w, contiguous_strides(w));
    CudnnDescriptor& of = part(kConvolution);
    of.set_mode(kComputeType, kDataType, compute);
    of.set_mode(kCorrelation, kConvolutionMode, 1);
    of.set_number(kSpatialAxes, int64_t(axes.size()));
    of.set_numbers(kDilations, dilations);
    of.set_numbers(kStrides, strides);
    of.set_numbers(kZerosBefore, before);
    of.set_numbers(kZerosBehind, behind);
    done(of);
    const bool more = c.bias >= 0 || c.epilogue != LibraryCall::Epilogue::None;
    void* out = more ? between(compute, y) : result(y);
    CudnnDescriptor operation(api_, c.transposed ? kBackwardData : kForward);
    const int first = c.transposed ? kBackwardAlpha : kForwardAlpha;
    const double one = 1, zero = 0;
    const float short_one = 1, short_zero = 0;
    const int real = compute == kF64 ? kDouble : kFloat;
    operation.set(first, real, 1, compute == kF64 ? static_cast<const void*>(&one) : &short_one);
    operation.set(first + 1, real, 1,
                  compute == kF64 ? static_cast<const void*>(&zero) : &short_zero);
    refer(operation, first + 2, of.get());
    refer(operation, first + 3, weights);
    refer(operation, first + (c.transposed ? 5 : 4), image);
    refer(operation, first + (c.transposed ? 4 : 5), out);
    add(std::move(operation));
    if (c.bias >= 0) {
      std::vector<int64_t> b(y.size(), 1);
      b[1] = c.columns;
      void* bias = tensor(c.bias + 1, type_of(c.dtype), b, contiguous_strides(b));
      const bool last = c.epilogue == LibraryCall::Epilogue::None;
      void* sum = last ? result(y) : between(compute, y);
      pointwise(kAdd, compute, out, bias, sum);
      out = sum;
    }
    if (c.epilogue != LibraryCall::Epilogue::None)
      pointwise(c.epilogue == LibraryCall::Epilogue::Relu ? kRelu : kGeluTanh, compute, out,
                nullptr, result(y));
  }

  // As cuDNN's flash attention expects it: products with scale, mask and softmax between them.
  void attention() {
    const LibraryCall& c = call_;
    const int t = type_of(c.dtype);
    // Heads lie contiguous, also those of keys.
    if ((t != kF16 && t != kBF16) || c.keys_in_columns)
      throw Error(ErrorKind::Unsupported, "cuDNN has no " + c.str());
    const int64_t b = c.batch, g = c.group, m = c.rows, n = c.columns, d = c.depth;
    void* q = tensor(c.left + 1, t, {b, g, m, d}, contiguous_strides({b, g, m, d}));
    void* k = tensor(c.right + 1, t, {b, 1, d, n}, {n * d, n * d, 1, d});  // transposed
    const std::vector<int64_t> v_extents = {b, 1, n, c.value_depth};
    void* v = tensor(c.values + 1, t, v_extents, contiguous_strides(v_extents));
    const std::vector<int64_t> scores = {b, g, m, n}, rows = {b, g, m, 1};
    void* z = between(kF32, scores);
    matmul(q, k, z);
    if (c.scale != 1) {
      all_.scaled = true;
      all_.scale = float(c.scale);
      void* scaled = between(kF32, scores);
      pointwise(kMul, kF32, z, number(CudnnOperations::kScale), scaled);
      z = scaled;
    }
    if (c.causal) {
      all_.masked = true;
      void* row = between(kI32, scores);
      pointwise(kIndex, kF32, z, nullptr, row, nullptr, 2);
      void* column = between(kI32, scores);
      pointwise(kIndex, kF32, z, nullptr, column, nullptr, 3);
      void* seen = between(kBool, scores);
      pointwise(kAtLeast, kBool, row, column, seen);
      void* masked = between(kF32, scores);
      pointwise(kSelect, kF32, z, number(CudnnOperations::kMinusInfinity), masked, seen);
      z = masked;
    }
    void* p = between(t, scores);
    softmax(z, p, scores, rows);
    matmul(p, v, result({b, g, m, c.value_depth}));
  }

 private:
  CudnnDescriptor& part(int kind) {
    all_.parts.push_back(CudnnDescriptor(api_, kind));
    return all_.parts.back();
  }
  void done(CudnnDescriptor& d) {
    if (!d.finish()) throw Error(ErrorKind::Unsupported, "cuDNN does not support " + call_.str());
  }
  void add(CudnnDescriptor operation) {
    done(operation);
    all_.operations.push_back(std::move(operation));
  }
  static void refer(CudnnDescriptor& to, int name, void* what) {
    to.set(name, kDescriptor, 1, &what);
  }

  void* tensor(int64_t id, int type, const std::vector<int64_t>& extents,
               const std::vector<int64_t>& pitches, bool is_virtual = false,
               bool by_value = false) {
    CudnnDescriptor& t = part(kTensor);
    t.set_mode(kElements, kDataType, type);
    t.set_numbers(kExtents, extents);
    t.set_numbers(kPitches, pitches);
    t.set_number(kId, id);
    t.set_number(kAlignment, by_value ? 4 : 16);
    const bool yes = true;
    if (is_virtual) t.set(kVirtual, kBoolean, 1, &yes);
    if (by_value) t.set(kByValue, kBoolean, 1, &yes);
    done(t);
    if (id < CudnnOperations::kResult) all_.operands.push_back(id);
    return t.get();
  }
  void* between(int type, const std::vector<int64_t>& extents) {
    return tensor(next_++, type, extents, contiguous_strides(extents), true);
  }
  void* result(const std::vector<int64_t>& extents) {
    return tensor(CudnnOperations::kResult, type_of(call_.dtype), extents,
                  contiguous_strides(extents));
  }
  void* number(int64_t id) { return tensor(id, kF32, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true); }

  void pointwise(int mode, int compute, void* x, void* b, void* y, void* t = nullptr,
                 int64_t axis = -1) {
    CudnnDescriptor& of = part(kPointwise);
    of.set_mode(kPointwiseKind, kPointwiseMode, mode);
    of.set_mode(kPointwisePrecision, kDataType, compute);
    if (axis >= 0) of.set_number(kPointwiseAxis, axis);
    done(of);
    CudnnDescriptor operation(api_, kOfPointwise);
    refer(operation, kOf, of.get());
    refer(operation, kX, x);
    if (b != nullptr) refer(operation, kB, b);
    if (t != nullptr) refer(operation, kT, t);
    refer(operation, kY, y);
    add(std::move(operation));
  }
  void matmul(void* a, void* b, void* c) {
    CudnnDescriptor& of = part(kMatmul);
    of.set_mode(kMatmulCompute, kDataType, kF32);
    done(of);
    CudnnDescriptor operation(api_, kOfMatmul);
    refer(operation, kMatmulOf, of.get());
    refer(operation, kLeft, a);
    refer(operation, kRight, b);
    refer(operation, kProduct, c);
    add(std::move(operation));
  }
  // Newer versions know flash attention by an operation of its own, older ones by its steps.
  void softmax(void* z, void* p, const std::vector<int64_t>& scores,
               const std::vector<int64_t>& rows) {
    if (api_.version() >= kSoftmaxSince) {
      CudnnDescriptor operation(api_, kSoftmax);
      refer(operation, kSoftmaxX, z);
      refer(operation, kSoftmaxY, p);
      add(std::move(operation));
      return;
    }
    void* most = between(kF32, rows);
    reduce(kMax, z, most);
    void* shifted = between(kF32, scores);
    pointwise(kSub, kF32, z, most, shifted);
    void* e = between(kF32, scores);
    pointwise(kExp, kF32, shifted, nullptr, e);
    void* sum = between(kF32, rows);
    reduce(kSum, e, sum);
    // Flash attention is recognised by the logarithm of the sums, whoever reads it.
    void* log = between(kF32, rows);
    pointwise(kLog, kF32, sum, nullptr, log);
    pointwise(kAdd, kF32, most, log, between(kF32, rows));
    pointwise(kDiv, kF32, e, sum, p);
  }
  void reduce(int kind, void* x, void* y) {
    CudnnDescriptor& of = part(kReduce);
    of.set_mode(kReduceKind, kReduction, kind);
    of.set_mode(kReduceCompute, kDataType, kF32);
    done(of);
    CudnnDescriptor operation(api_, kOfReduce);
    refer(operation, kReduceOf, of.get());
    refer(operation, kReduceX, x);
    refer(operation, kReduceY, y);
    add(std::move(operation));
  }

  const CudnnApi& api_;
  const LibraryCall& call_;
  CudnnOperations all_;
  int64_t next_ = 1000;  // id of the next tensor that only operations see
};

}  // namespace
}  // namespace cudnn

void check_cudnn(const CudnnApi& api, int status, const std::string& doing) {
  if (status == 0) return;
  const bool unsupported = status >= kCudnnNotSupported && status < kCudnnInternal;
  throw Error(unsupported ? ErrorKind::Unsupported : ErrorKind::Device,
              "cannot " + doing + ": " + api.error_text(status) + " (" + std::to_string(status) +
                  ")");
}

CudnnDescriptor::CudnnDescriptor(const CudnnApi& api, int kind) : api_(&api) {
  check_cudnn(api, api.make(kind, &descriptor_), "describe a call for cuDNN");
}
CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : api_(other.api_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}
CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) api_->unmake(descriptor_);
}

void CudnnDescriptor::set(int name, int type, int64_t count, const void* values) {
  check_cudnn(*api_, api_->set(descriptor_, name, type, count, values),
              "set attribute " + std::to_string(name) + " for cuDNN");
}
void CudnnDescriptor::set(int name, const CudnnDescriptor& value) {
  void* d = value.get();
  set(name, cudnn::kDescriptor, 1, &d);
}
void CudnnDescriptor::set_number(int name, int64_t value) { set(name, cudnn::kInt64, 1, &value); }
void CudnnDescriptor::set_numbers(int name, const std::vector<int64_t>& values) {
  set(name, cudnn::kInt64, int64_t(values.size()), values.data());
}
void CudnnDescriptor::set_mode(int name, int type, int value) { set(name, type, 1, &value); }

bool CudnnDescriptor::finish() {
  const int status = api_->finish(descriptor_);
  if (status >= kCudnnNotSupported && status < kCudnnInternal) return false;
  check_cudnn(*api_, status, "describe a call for cuDNN");
  return true;
}

CudnnOperations cudnn_operations(const CudnnApi& api, const LibraryCall& call) {
  cudnn::Builder builder(api, call);
  switch (call.kind) {
  case LibraryCall::Kind::Matmul:
    throw Error(ErrorKind::Unsupported, "cuDNN is not asked for " + call.str());
  case LibraryCall::Kind::Convolution: builder.convolution(); break;
  case LibraryCall::Kind::Attention: builder.attention(); break;
  }
  return std::move(builder).finish();
}

}  // namespace tessera
