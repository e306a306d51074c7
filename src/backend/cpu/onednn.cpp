#include "backend/cpu/onednn.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/error.h"

namespace tessera {
namespace {

// Of oneDNN's C interface, version 3 (oneapi/dnnl/dnnl.h); the numbers are the same from 3.2
// to 3.9.
using Dims = std::array<int64_t, 12>;
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};
struct Argument {
  int which;
  void* memory;
};
// dnnl_alg_kind_t.
constexpr int kRelu = 0x20, kTanh = 0x21, kSquare = 0x23, kAbs = 0x24, kSqrt = 0x25, kLinear = 0x26,
              kLogistic = 0x29, kExp = 0x2a, kGeluTanh = 0x2b, kSwish = 0x2c, kLog = 0x2d,
              kGeluErf = 0x31;
constexpr int kAdd = 0x1fff0, kMul = 0x1fff1, kMax = 0x1fff2, kMin = 0x1fff3, kDiv = 0x1fff4,
              kSub = 0x1fff5;
constexpr int kCpu = 1, kF32 = 3, kAny = 1, kInference = 96, kDirect = 1, kUserScratchpad = 1;
constexpr int kWeights = 131, kScratchpad = 136;  // of dnnl_query_t
constexpr int kArgSource = 1, kArgResult = 17, kArgWeights = 33, kArgScratchpad = 80,
              kArgSecond = 2, kArgPostOp = 32768;
constexpr unsigned kInOrder = 1, kSequential = 1, kOpenMp = 2, kThreadPool = 8;  // runtimes

struct OneDnnApi {
  // Remembers where a function is to be put; null until it was found.
  template <class F> F named(F& function, const char* name) {
    functions.emplace_back(name, reinterpret_cast<void**>(&function));
    return nullptr;
  }
  std::vector<std::pair<std::string, void**>> functions;

  const Version* (*version)() = named(version, "dnnl_version");
  int (*engine_create)(void**, int, size_t) = named(engine_create, "dnnl_engine_create");
  int (*stream_create)(void**, void*, unsigned) = named(stream_create, "dnnl_stream_create");
  int (*stream_wait)(void*) = named(stream_wait, "dnnl_stream_wait");
  int (*stream_destroy)(void*) = named(stream_destroy, "dnnl_stream_destroy");
  int (*desc_with_strides)(void**, int, const int64_t*, int,
                           const int64_t*) = named(desc_with_strides,
                                                   "dnnl_memory_desc_create_with_strides");
  int (*desc_with_tag)(void**, int, const int64_t*, int,
                       int) = named(desc_with_tag, "dnnl_memory_desc_create_with_tag");
  int (*desc_destroy)(void*) = named(desc_destroy, "dnnl_memory_desc_destroy");
  size_t (*desc_size)(const void*) = named(desc_size, "dnnl_memory_desc_get_size");
  int (*attr_create)(void**) = named(attr_create, "dnnl_primitive_attr_create");
  int (*attr_scratchpad)(void*, int) = named(attr_scratchpad,
                                             "dnnl_primitive_attr_set_scratchpad_mode");
  int (*attr_destroy)(void*) = named(attr_destroy, "dnnl_primitive_attr_destroy");
  int (*convolution)(void**, void*, int, int, const void*, const void*, const void*, const void*,
                     const int64_t*, const int64_t*, const int64_t*, const int64_t*,
                     const void*) = named(convolution,
                                          "dnnl_convolution_forward_primitive_desc_create");
  int (*matmul)(void**, void*, const void*, const void*, const void*, const void*,
                const void*) = named(matmul, "dnnl_matmul_primitive_desc_create");
  int (*post_create)(void**) = named(post_create, "dnnl_post_ops_create");
  int (*post_destroy)(void*) = named(post_destroy, "dnnl_post_ops_destroy");
  int (*post_eltwise)(void*, int, float, float) = named(post_eltwise,
                                                        "dnnl_post_ops_append_eltwise");
  int (*post_binary)(void*, int, const void*) = named(post_binary, "dnnl_post_ops_append_binary");
  int (*attr_post)(void*, const void*) = named(attr_post, "dnnl_primitive_attr_set_post_ops");
  int (*reorder)(void**, const void*, void*, const void*, void*,
                 const void*) = named(reorder, "dnnl_reorder_primitive_desc_create");
  const void* (*query)(const void*, int, int) = named(query, "dnnl_primitive_desc_query_md");
  int (*primitive_desc_destroy)(void*) = named(primitive_desc_destroy,
                                               "dnnl_primitive_desc_destroy");
  int (*primitive_create)(void**, const void*) = named(primitive_create, "dnnl_primitive_create");
  int (*primitive_destroy)(void*) = named(primitive_destroy, "dnnl_primitive_destroy");
  int (*memory_create)(void**, const void*, void*, void*) = named(memory_create,
                                                                  "dnnl_memory_create");
  int (*memory_destroy)(void*) = named(memory_destroy, "dnnl_memory_destroy");
  int (*execute)(const void*, void*, int, const Argument*) = named(execute,
                                                                   "dnnl_primitive_execute");
  // Of OpenMP, where the library was built on it.
  int (*omp_threads)() = named(omp_threads, "omp_get_max_threads");
  void (*set_omp_threads)(int) = named(set_omp_threads, "omp_set_num_threads");
  void* engine = nullptr;
};

std::mutex onednn_mutex;  // of what follows
std::string onednn_path, onednn_folder;
bool looked_for_onednn = false;
std::shared_ptr<const OneDnnApi> loaded_onednn;
OneDnnState state;

std::string load_onednn(void* library, OneDnnApi& api) {
  const auto find = [&](const char* of) {  // all whose names begin so
    return std::ranges::all_of(api.functions, [&](const auto& f) {
      return !f.first.starts_with(of) || (*f.second = dlsym(library, f.first.c_str())) != nullptr;
    });
  };
  if (!find("dnnl_version")) return "this is not oneDNN";
  const Version& v = *api.version();
  if (v.major != 3) return "version " + std::to_string(v.major) + " is not read; 3 is";
  if (v.cpu_runtime != kSequential && v.cpu_runtime != kOpenMp && v.cpu_runtime != kThreadPool)
    return "this build starts threads that Tessera cannot bound (SYCL or TBB); one for OpenMP "
           "is the package onednn-cpu-gomp";
  const bool all = find("dnnl_") && (v.cpu_runtime != kOpenMp || find("omp_"));
  if (!all) return "this build lacks functions of version 3";
  if (api.engine_create(&api.engine, kCpu, 0) != 0) return "it knows no processor here";
  state.version =
      std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.patch);
  return "";
}

std::shared_ptr<const OneDnnApi> library() {
  std::lock_guard lock(onednn_mutex);
  if (looked_for_onednn) return loaded_onednn;
  looked_for_onednn = true;
  loaded_onednn = nullptr;
  state = {};
  std::vector<std::string> places;
  const char* path = std::getenv("TESSERA_ONEDNN");
  if (!onednn_path.empty()) {
    places.push_back(onednn_path);
  } else if (path != nullptr && *path != '\0') {
    places.emplace_back(path);
  } else {
    if (!onednn_folder.empty()) places.push_back(onednn_folder + "/libdnnl.so.3");
    places.emplace_back("libdnnl.so.3");
  }
  const bool told = !onednn_path.empty() || (path != nullptr && *path != '\0');
  state.problem = "not found (optional): pip install onednn-cpu-gomp, or set TESSERA_ONEDNN to "
                  "libdnnl.so";
  for (const std::string& place : places) {
    void* handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      // A file that is there lacks something else, or is none.
      const char* why = dlerror();
      std::error_code none;
      if (told || std::filesystem::exists(place, none)) state.problem = why;
      continue;
    }
    auto api = std::make_shared<OneDnnApi>();
    state.problem = load_onednn(handle, *api);
    if (!state.problem.empty()) continue;  // stays loaded: its threads may be at work
    loaded_onednn = std::move(api);
    break;
  }
  return loaded_onednn;
}

// One thread for the library, on this thread; what the caller had comes back.
class OneThread {
 public:
  explicit OneThread(const OneDnnApi& api) : api_(api) {
    if (api_.omp_threads == nullptr) return;
    before_ = api_.omp_threads();
    if (before_ != 1) api_.set_omp_threads(1);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() {
    if (before_ > 1) api_.set_omp_threads(before_);
  }

 private:
  const OneDnnApi& api_;
  int before_ = 1;
};

using OneDnnHandle = std::unique_ptr<void, int (*)(void*)>;
// What `make` writes a handle of; null where it fails.
template <class F> OneDnnHandle made(F make, int (*destroy)(void*)) {
  void* handle = nullptr;
  if (make(&handle) != 0) handle = nullptr;
  return {handle, destroy};
}

struct Primitive {
  OneDnnHandle desc{nullptr, nullptr}, code{nullptr, nullptr};

  // `describe` writes the description. False where the library has no way.
  template <class F> bool make(const OneDnnApi& api, F describe) {
    desc = made(describe, api.primitive_desc_destroy);
    if (desc)
      code = made([&](void** c) { return api.primitive_create(c, desc.get()); },
                  api.primitive_destroy);
    return code != nullptr;
  }
};
int64_t scratch_of(const OneDnnApi& api, const Primitive& p) {
  return int64_t(api.desc_size(api.query(p.desc.get(), kScratchpad, 0)));
}
OneDnnHandle strided(const OneDnnApi& api, const std::vector<int64_t>& dims,
                     const std::vector<int64_t>& strides) {
  return made(
      [&](void** d) {
        return api.desc_with_strides(d, int(dims.size()), dims.data(), kF32, strides.data());
      },
      api.desc_destroy);
}

// Which argument, its description, and where it is.
struct At {
  int which;
  const void* desc;
  void* data;
};
void execute(const OneDnnApi& api, const Primitive& primitive, const std::vector<At>& memory) {
  const OneThread one(api);
  const OneDnnHandle stream = made(
      [&](void** s) { return api.stream_create(s, api.engine, kInOrder); }, api.stream_destroy);
  std::vector<OneDnnHandle> held;
  std::vector<Argument> arguments;
  for (const At& at : memory) {
    held.push_back(
        made([&](void** m) { return api.memory_create(m, at.desc, api.engine, at.data); },
             api.memory_destroy));
    arguments.push_back({at.which, held.back().get()});
  }
  const int status =
      api.execute(primitive.code.get(), stream.get(), int(arguments.size()), arguments.data());
  CHECK(status == 0 && api.stream_wait(stream.get()) == 0) << "oneDNN: status " << status;
}

// What is laid out once: as it lies, as the library likes it, and the way from one to the other.
struct Weights {
  OneDnnHandle plain{nullptr, nullptr}, any{nullptr, nullptr};
  const void* chosen = nullptr;  // belongs to the primitive that chose it
  Primitive reorder;

  bool describe(const OneDnnApi& api, const std::vector<int64_t>& dims,
                const std::vector<int64_t>& strides) {
    plain = strided(api, dims, strides);
    any = made(
        [&](void** d) { return api.desc_with_tag(d, int(dims.size()), dims.data(), kF32, kAny); },
        api.desc_destroy);
    return plain && any;
  }
  // All primitives read them as the first wants them.
  void choose(const OneDnnApi& api, const Primitive& first) {
    if (chosen == nullptr) chosen = api.query(first.desc.get(), kWeights, 0);
  }
  bool finish(const OneDnnApi& api) {
    return reorder.make(
        api,
        [&](void** d) {
          return api.reorder(d, plain.get(), api.engine, chosen, api.engine, nullptr);
        });
  }
  int64_t bytes(const OneDnnApi& api) const { return int64_t(api.desc_size(chosen)); }
  void pack(const OneDnnApi& api, const void* weights, void* packed) const {
    execute(api, reorder,
            {{kArgSource, plain.get(), const_cast<void*>(weights)}, {kArgResult, chosen, packed}});
  }
};

}  // namespace

OneDnnState onednn() {
  library();
  std::lock_guard lock(onednn_mutex);
  return state;
}

void set_onednn_folder(const std::string& where) {
  std::lock_guard lock(onednn_mutex);
  onednn_folder = where;
  looked_for_onednn = false;
}

void use_onednn(const std::string& path) {
  std::lock_guard lock(onednn_mutex);
  onednn_path = path;
  looked_for_onednn = false;
}

namespace {

// What calls have in common.
struct OneDnnCallBase : OneDnnCall {
  std::shared_ptr<const OneDnnApi> api = library();
  Weights laid_out;

  void keep_scratch(const Primitive& p) {
    scratch_bytes = std::max(scratch_bytes, scratch_of(*api, p));
  }
  bool finish() {
    if (!laid_out.finish(*api)) return false;
    weight_bytes = laid_out.bytes(*api);
    return true;
  }
  void pack(const void* from, void* packed) const override { laid_out.pack(*api, from, packed); }
};

struct OneDnnConvolution final : OneDnnCallBase {
  int64_t slices = 1;
  int64_t image_elements = 0, result_elements = 0;  // of one image
  int64_t image_row = 0, result_row = 0;            // elements, along the outermost axis
  struct Slice {
    const Primitive* primitive = nullptr;
    OneDnnHandle source, result;  // descriptions
    int64_t first_row = 0;        // of the image
  };
  std::vector<Slice> of;
  std::map<std::array<int64_t, 3>, Primitive> primitives;  // by rows of the image, zeros around

  bool make(const ImageGeometry& g, int threads);
  void run(void* const* arguments, int64_t unit, char* scratch) const override;
};

bool OneDnnConvolution::make(const ImageGeometry& g, int threads) {
  const OneThread one(*api);
  const size_t rank = g.axes.size();
  const auto image = [&](int64_t channels, const std::vector<int64_t>& extents) {
    std::vector<int64_t> dims{1, channels}, strides(rank + 2, 1);
    int64_t step = channels;
    for (size_t i = rank; i-- > 0;) {
      strides[i + 2] = step;
      step *= extents[i];
    }
    strides[0] = step;
    dims.insert(dims.end(), extents.begin(), extents.end());
    return strided(*api, dims, strides);
  };
  // Groups are an axis of weights before the others.
  std::vector<int64_t> weight_dims{g.filters, g.channels};
  if (g.groups > 1) weight_dims = {g.groups, g.filters / g.groups, g.channels / g.groups};
  Dims steps{}, dilations{}, low{}, high{};
  std::vector<int64_t> in, out;
  for (size_t i = 0; i < rank; ++i) {
    const WindowAxis& a = g.axes[i];
    weight_dims.push_back(a.taps);
    steps[i] = a.stride;
    dilations[i] = a.dilation - 1;
    low[i] = a.low;
    high[i] = a.high;
    in.push_back(a.in);
    out.push_back(a.out);
  }
  const OneDnnHandle attr = made(api->attr_create, api->attr_destroy);
  if (!laid_out.describe(*api, weight_dims, contiguous_strides(weight_dims)) || !attr ||
      api->attr_scratchpad(attr.get(), kUserScratchpad) != 0)
    return false;
  const WindowAxis& outer = g.axes[0];
  image_row = g.channels, result_row = g.filters;
  for (size_t i = 1; i < rank; ++i) {
    image_row *= g.axes[i].in;
    result_row *= g.axes[i].out;
  }
  image_elements = image_row * outer.in;
  result_elements = result_row * outer.out;
  rows = ceil_div(outer.out, std::max<int64_t>(1, ceil_div(threads, g.batch)));
  slices = ceil_div(outer.out, rows);
  units = g.batch * slices;
  for (int64_t first = 0; first < outer.out; first += rows) {
    const int64_t last = std::min(first + rows, outer.out);
    const int64_t from = first * outer.stride - outer.low;
    const int64_t to =
        (last - 1) * outer.stride - outer.low + (outer.taps - 1) * outer.dilation + 1;
    low[0] = std::max<int64_t>(0, -from);
    high[0] = std::max<int64_t>(0, to - outer.in);
    in[0] = std::min(to, outer.in) - std::max<int64_t>(0, from);
    out[0] = last - first;
    if (in[0] <= 0) return false;  // nothing but zeros
    Slice slice{nullptr, image(g.channels, in), image(g.filters, out), std::max<int64_t>(0, from)};
    if (!slice.source || !slice.result) return false;
    const std::array<int64_t, 3> key{in[0], low[0], high[0]};
    auto it = primitives.find(key);
    if (it == primitives.end()) {
      Primitive p;
      if (!p.make(*api, [&](void** d) {
            return api->convolution(d, api->engine, kInference, kDirect, slice.source.get(),
                                    laid_out.chosen != nullptr ? laid_out.chosen
                                                               : laid_out.any.get(),
                                    nullptr, slice.result.get(), steps.data(), dilations.data(),
                                    low.data(), high.data(), attr.get());
          }))
        return false;
      laid_out.choose(*api, p);
      keep_scratch(p);
      it = primitives.emplace(key, std::move(p)).first;
    }
    slice.primitive = &it->second;
    of.push_back(std::move(slice));
  }
  return finish();
}

void OneDnnConvolution::run(void* const* arguments, int64_t unit, char* scratch) const {
  const int64_t image = unit / slices, at = unit % slices;
  const Slice& slice = of[size_t(at)];
  float* from =
      static_cast<float*>(arguments[0]) + image * image_elements + slice.first_row * image_row;
  float* to = static_cast<float*>(arguments[2]) + image * result_elements + at * rows * result_row;
  const void* scratchpad = api->query(slice.primitive->desc.get(), kScratchpad, 0);
  execute(*api, *slice.primitive,
          {{kArgSource, slice.source.get(), from},
           {kArgWeights, laid_out.chosen, arguments[1]},
           {kArgResult, slice.result.get(), to},
           {kArgScratchpad, scratchpad, scratch}});
}

// --- products -----------------------------------------------------------------------------------

// What the library does with a value and perhaps another operand: an input of the program.
struct After {
  int algorithm = 0;
  float alpha = 0, beta = 0;  // of functions of the value alone
  size_t input = 0;
  bool binary = false;
  bool rows = false, columns = false;  // whether the operand differs along them
};

// What is done with the value alone, or with it and an operand, in this order.
struct PostOpAlgorithm {
  OpKind kind;
  int algorithm;
  float alpha = 0;
};
constexpr PostOpAlgorithm kEltwise[] = {
    {OpKind::Relu, kRelu},    {OpKind::Tanh, kTanh},      {OpKind::Sqr, kSquare},
    {OpKind::Abs, kAbs},      {OpKind::Sqrt, kSqrt},      {OpKind::Sigmoid, kLogistic},
    {OpKind::Exp, kExp},      {OpKind::Log, kLog},        {OpKind::GeluTanh, kGeluTanh},
    {OpKind::Gelu, kGeluErf}, {OpKind::Neg, kLinear, -1}, {OpKind::Silu, kSwish, 1}};
constexpr PostOpAlgorithm kBinary[] = {{OpKind::Add, kAdd}, {OpKind::Mul, kMul},
                                       {OpKind::Max, kMax}, {OpKind::Min, kMin},
                                       {OpKind::Sub, kSub}, {OpKind::Div, kDiv}};
template <size_t n> const PostOpAlgorithm* find(const PostOpAlgorithm (&all)[n], OpKind kind) {
  const PostOpAlgorithm* const at =
      std::find_if(all, all + n, [&](const PostOpAlgorithm& one) { return one.kind == kind; });
  return at == all + n ? nullptr : at;
}

[[noreturn]] void no(const std::string& why) {
  throw Error(ErrorKind::Unsupported, "oneDNN: " + why);
}

struct OneDnnProduct final : OneDnnCallBase {
  size_t source = 0, result = 0;  // inputs of the program; how many there are
  bool turned = false;
  int64_t m = 0, k = 0, n = 0;
  std::vector<After> after;
  struct Slice {
    Primitive primitive;
    OneDnnHandle source{nullptr, nullptr}, result{nullptr, nullptr};
    std::vector<OneDnnHandle> operands;
  };
  Slice whole, rest;  // the last slice may have fewer rows

  void read(const Graph& g);
  void make(Slice& slice, int64_t rows, bool packed);
  void run(void* const* arguments, int64_t unit, char* scratch) const override;
};

void OneDnnProduct::read(const Graph& g) {
  const auto input = [&](TensorId t) {
    const auto at = std::ranges::find(g.inputs(), t);
    if (at == g.inputs().end()) no("an operand that is computed");
    return size_t(at - g.inputs().begin());
  };
  result = g.inputs().size();
  TensorId value;
  for (const Op& op : g.ops()) {
    if (is_given(op.kind) || op.kind == OpKind::Transpose) continue;
    if (op.num_results != 1 || g.type(op.result()).dtype != DType::F32)
      no("it is called for f32 alone");
    if (!value.valid()) {
      if (op.kind != OpKind::Matmul || g.type(op.inputs[0]).rank() != 2 ||
          g.type(op.inputs[1]).rank() != 2)
        no("the def does not begin with a product of matrices");
      source = input(op.inputs[0]);
      const Op& by = g.producer(op.inputs[1]);
      turned = by.kind == OpKind::Transpose;
      weights = input(turned ? by.inputs[0] : op.inputs[1]);
      const std::vector<int64_t> a = extents(g.type(op.inputs[0]).shape);
      m = a[0], k = a[1], n = g.type(op.result()).shape[1].extent;
    } else if (op.inputs.size() == 1 && op.inputs[0] == value && find(kEltwise, op.kind)) {
      const PostOpAlgorithm& f = *find(kEltwise, op.kind);
      after.push_back({f.algorithm, f.alpha});
    } else if (op.inputs.size() == 2 && find(kBinary, op.kind) &&
               (op.inputs[0] == value || has(op.kind, algebra::Commutative)) &&
               (op.inputs[0] == value) != (op.inputs[1] == value)) {
      const TensorId other = op.inputs[op.inputs[0] == value ? 1 : 0];
      After a{find(kBinary, op.kind)->algorithm};
      if (g.producer(other).constant() && g.type(other).rank() == 0 && !is_extremum(op.kind)) {
        const auto c = float(g.attrs<ConstAttrs>(g.producer(other)).value.to_double());
        const bool sum = op.kind == OpKind::Add || op.kind == OpKind::Sub;
        a = {kLinear,
             op.kind == OpKind::Mul   ? c
             : op.kind == OpKind::Div ? 1 / c
                                      : 1,
             sum ? (op.kind == OpKind::Add ? c : -c) : 0};
      } else {
        const Shape& shape = g.type(other).shape;
        a.input = input(other);
        a.binary = true;
        a.columns = !shape.empty() && !shape.back().is_one();
        a.rows = shape.size() == 2 && !shape[0].is_one();
      }
      after.push_back(a);
    } else {
      no(std::string(name(op.kind)) + " cannot follow its product");
    }
    value = op.result();
  }
  if (!value.valid() || g.outputs().size() != 1 || !(g.outputs()[0] == value))
    no("the def is no product and what follows it");
}

void OneDnnProduct::make(Slice& slice, int64_t height, bool packed) {
  slice.source = strided(*api, {height, k}, {k, 1});
  slice.result = strided(*api, {height, n}, {n, 1});
  const OneDnnHandle attr = made(api->attr_create, api->attr_destroy);
  const OneDnnHandle post = made(api->post_create, api->post_destroy);
  bool right = slice.source && slice.result && attr && post &&
               api->attr_scratchpad(attr.get(), kUserScratchpad) == 0;
  for (const After& a : after) {
    slice.operands.push_back(
        strided(*api, {a.rows ? height : 1, a.columns ? n : 1}, {a.columns ? n : 1, 1}));
    right = right && slice.operands.back() &&
            (a.binary ? api->post_binary(post.get(), a.algorithm, slice.operands.back().get())
                      : api->post_eltwise(post.get(), a.algorithm, a.alpha, a.beta)) == 0;
  }
  right = right && api->attr_post(attr.get(), post.get()) == 0;
  if (laid_out.chosen == nullptr && !packed) laid_out.chosen = laid_out.plain.get();
  const void* const layout = laid_out.chosen != nullptr ? laid_out.chosen : laid_out.any.get();
  if (!right || !slice.primitive.make(*api, [&](void** d) {
        return api->matmul(d, api->engine, slice.source.get(), layout, nullptr, slice.result.get(),
                           attr.get());
      }))
    no("it has no way to compute this");
  laid_out.choose(*api, slice.primitive);
  keep_scratch(slice.primitive);
}

void OneDnnProduct::run(void* const* arguments, int64_t unit, char* scratch) const {
  const int64_t first = unit * rows;
  const Slice& slice = first + rows <= m ? whole : rest;
  const auto from = [&](size_t argument, int64_t elements) {
    return static_cast<float*>(arguments[argument]) + elements;
  };
  std::vector<At> memory{
      {kArgSource, slice.source.get(), from(source, first * k)},
      {kArgWeights, laid_out.chosen, arguments[weights]},
      {kArgResult, slice.result.get(), from(result, first * n)},
      {kArgScratchpad, api->query(slice.primitive.desc.get(), kScratchpad, 0), scratch}};
  for (size_t i = 0; i < after.size(); ++i) {
    const After& a = after[i];
    if (!a.binary) continue;
    memory.push_back({(int(i) + 1) * kArgPostOp | kArgSecond, slice.operands[i].get(),
                      from(a.input, a.rows ? first * (a.columns ? n : 1) : 0)});
  }
  execute(*api, slice.primitive, memory);
}

}  // namespace

std::unique_ptr<const OneDnnCall> OneDnnCall::convolution(const ImageGeometry& g, int threads) {
  auto call = std::make_unique<OneDnnConvolution>();
  if (call->api == nullptr || !call->make(g, threads)) return nullptr;
  return call;
}

std::unique_ptr<const OneDnnCall> OneDnnCall::product(const Graph& meaning, bool packed,
                                                      int threads) {
  auto call = std::make_unique<OneDnnProduct>();
  OneDnnProduct& p = *call;
  if (p.api == nullptr) no(onednn().problem);
  p.read(meaning);
  const OneThread one(*p.api);
  p.rows = ceil_div(p.m, std::max(1, threads));
  p.units = ceil_div(p.m, p.rows);
  const std::vector<int64_t> strides =
      p.turned ? std::vector{int64_t(1), p.k} : std::vector{p.n, int64_t(1)};
  if (!p.laid_out.describe(*p.api, {p.k, p.n}, strides)) no("it has no such matrix");
  p.make(p.whole, p.rows, packed);
  if (p.m % p.rows != 0) p.make(p.rest, p.m % p.rows, packed);
  if (!p.finish()) no("it cannot lay out the second operand");
  return call;
}

}  // namespace tessera
