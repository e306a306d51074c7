// A stand-in for oneDNN: the functions of its version 3 that Tessera calls, for convolutions and
// products of f32. It works only with one thread, and wants weights in an order of its own: from
// the last to the first.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int kMost = 12;
thread_local int threads = 4;  // of OpenMP, as this thread wants them
int some = 0;                  // what handles of nothing point to

struct Desc {
  int n = 0;
  int64_t dims[kMost] = {}, strides[kMost] = {};
  bool own = false;  // from the last to the first
  int64_t elements() const {
    int64_t count = 1;
    for (int i = 0; i < n; ++i) count *= dims[i];
    return count;
  }
  int64_t at(const int64_t* index) const {
    int64_t place = 0;
    for (int i = 0; i < n; ++i) place += own ? index[i] * row(i) : index[i] * strides[i];
    return own ? elements() - 1 - place : place;
  }
  int64_t row(int axis) const {
    int64_t step = 1;
    for (int i = axis + 1; i < n; ++i) step *= dims[i];
    return step;
  }
};
struct Post {  // what follows a product: binary of another operand, else a function
  int algorithm;
  float alpha, beta;
  bool binary;
};
struct Primitive {
  bool reorder = false;
  Desc source, weights, result, scratch;
  int64_t strides[kMost], dilations[kMost], low[kMost];
  bool product = false;
  std::vector<Post> after{};
};
struct Memory {
  Desc desc;
  float* data;
};
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu, gpu;
};
struct Argument {
  int which;
  Memory* memory;
};

// Calls f(index) for every index below `dims`.
template <class F> void each(const int64_t* dims, int n, const F& f) {
  int64_t index[kMost] = {}, count = 1;
  for (int i = 0; i < n; ++i) count *= dims[i];
  for (int64_t c = 0; c < count; ++c) {
    f(index);
    for (int i = n; i-- > 0 && ++index[i] == dims[i];) index[i] = 0;
  }
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API const Version* dnnl_version() {
  static const Version version{3, 0, 42, "stand-in", 2, 0};
  return &version;
}
API int omp_get_max_threads() { return threads; }
API void omp_set_num_threads(int n) { threads = n; }
API int dnnl_engine_create(void** to, int, size_t) { return *to = &some, 0; }
API int dnnl_stream_create(void** to, void*, unsigned) { return *to = &some, 0; }
API int dnnl_stream_wait(void*) { return 0; }
API int dnnl_stream_destroy(void*) { return 0; }
using Posts = std::vector<Post>;
API int dnnl_primitive_attr_create(Posts** to) { return *to = new Posts, 0; }
API int dnnl_primitive_attr_set_scratchpad_mode(void*, int) { return 0; }
API int dnnl_primitive_attr_destroy(Posts* a) { return delete a, 0; }
API int dnnl_post_ops_create(Posts** to) { return *to = new Posts, 0; }
API int dnnl_post_ops_destroy(Posts* p) { return delete p, 0; }
API int dnnl_post_ops_append_eltwise(Posts* p, int algorithm, float alpha, float beta) {
  if (algorithm != 0x20 && algorithm != 0x26 && algorithm != 0x2c) return 2;
  return p->push_back({algorithm, alpha, beta, false}), 0;
}
API int dnnl_memory_desc_create_with_strides(Desc** to, int n, const int64_t* dims, int,
                                             const int64_t* strides) {
  *to = new Desc;
  (*to)->n = n;
  std::memcpy((*to)->dims, dims, sizeof(int64_t) * size_t(n));
  std::memcpy((*to)->strides, strides, sizeof(int64_t) * size_t(n));
  return 0;
}
API int dnnl_memory_desc_create_with_tag(Desc** to, int n, const int64_t* dims, int type, int) {
  dnnl_memory_desc_create_with_strides(to, n, dims, type, dims);
  (*to)->own = true;
  return 0;
}
API int dnnl_memory_desc_destroy(Desc* d) { return delete d, 0; }
API size_t dnnl_memory_desc_get_size(const Desc* d) { return size_t(d->elements()) * 4; }
API int dnnl_convolution_forward_primitive_desc_create(Primitive** to, void*, int, int,
                                                       const Desc* source, const Desc* weights,
                                                       const void*, const Desc* result,
                                                       const int64_t* strides,
                                                       const int64_t* dilations, const int64_t* low,
                                                       const int64_t* high, const void*) {
  const int axes = source->n - 2;
  for (int i = 0; i < axes; ++i) {
    const int tap = weights->n - axes + i;
    const int64_t window = (weights->dims[tap] - 1) * (dilations[i] + 1) + 1;
    if (result->dims[i + 2] != (source->dims[i + 2] - window + low[i] + high[i]) / strides[i] + 1)
      return 2;
  }
  auto* p = *to = new Primitive{false, *source, *weights, *result, {}, {}, {}, {}};
  p->scratch.n = 1;
  p->scratch.dims[0] = 16;
  std::memcpy(p->strides, strides, sizeof(int64_t) * size_t(axes));
  std::memcpy(p->dilations, dilations, sizeof(int64_t) * size_t(axes));
  std::memcpy(p->low, low, sizeof(int64_t) * size_t(axes));
  return 0;
}
API int dnnl_post_ops_append_binary(Posts* p, int algorithm, const Desc*) {
  if (algorithm != 0x1fff0 && algorithm != 0x1fff1) return 2;
  return p->push_back({algorithm, 0, 0, true}), 0;
}
API int dnnl_primitive_attr_set_post_ops(Posts* a, const Posts* p) { return *a = *p, 0; }
API int dnnl_matmul_primitive_desc_create(Primitive** to, void*, const Desc* source,
                                          const Desc* weights, const void*, const Desc* result,
                                          const Posts* after) {
  if (source->dims[1] != weights->dims[0]) return 2;
  auto* p = *to = new Primitive{false, *source, *weights, *result, {}, {}, {}, {}, true, *after};
  p->scratch.n = 1;
  p->scratch.dims[0] = 16;
  return 0;
}
API int dnnl_reorder_primitive_desc_create(Primitive** to, const Desc* from, void*,
                                           const Desc* result, void*, const void*) {
  *to = new Primitive{true, *from, {}, *result, {}, {}, {}, {}};
  return 0;
}
API const Desc* dnnl_primitive_desc_query_md(const Primitive* p, int what, int) {
  return what == 131 ? &p->weights : &p->scratch;
}
API int dnnl_primitive_desc_destroy(Primitive* p) { return delete p, 0; }
API int dnnl_primitive_create(Primitive** to, const Primitive* desc) {
  return threads == 1 ? (*to = new Primitive(*desc), 0) : 1;
}
API int dnnl_primitive_destroy(Primitive* p) { return delete p, 0; }
API int dnnl_memory_create(Memory** to, const Desc* d, void*, void* data) {
  return *to = new Memory{*d, static_cast<float*>(data)}, 0;
}
API int dnnl_memory_destroy(Memory* m) { return delete m, 0; }
API int dnnl_primitive_execute(const Primitive* p, void*, int n, const Argument* arguments) {
  if (threads != 1) return 5;
  Memory *x = nullptr, *w = nullptr, *y = nullptr, *scratch = nullptr;
  for (int i = 0; i < n; ++i) {
    Memory* m = arguments[i].memory;
    if (arguments[i].which >= 32768) continue;
    (arguments[i].which == 1    ? x
     : arguments[i].which == 17 ? y
     : arguments[i].which == 33 ? w
                                : scratch) = m;
  }
  if (p->reorder) {
    each(x->desc.dims, x->desc.n,
         [&](const int64_t* i) { y->data[y->desc.at(i)] = x->data[x->desc.at(i)]; });
    return 0;
  }
  const Desc& d = y->desc;
  if (p->product) {
    each(d.dims, 2, [&](const int64_t* o) {
      double v = 0;
      for (int64_t k = 0; k < x->desc.dims[1]; ++k) {
        const int64_t left[] = {o[0], k}, right[] = {k, o[1]};
        v += double(x->data[x->desc.at(left)]) * double(w->data[w->desc.at(right)]);
      }
      for (size_t a = 0; a < p->after.size(); ++a) {
        const Post& post = p->after[a];
        for (int i = 0; post.binary && i < n; ++i) {
          if (arguments[i].which != (int(a + 1) * 32768 | 2)) continue;
          const Memory& more = *arguments[i].memory;
          const int64_t at[] = {more.desc.dims[0] > 1 ? o[0] : 0, more.desc.dims[1] > 1 ? o[1] : 0};
          const double other = double(more.data[more.desc.at(at)]);
          v = post.algorithm == 0x1fff0 ? v + other : v * other;
        }
        if (post.algorithm == 0x20) v = v > 0 ? v : 0;
        if (post.algorithm == 0x26) v = double(post.alpha) * v + double(post.beta);
        if (post.algorithm == 0x2c) v = v / (1 + std::exp(-double(post.alpha) * v));
      }
      y->data[d.at(o)] = float(v);
    });
    return 0;
  }
  for (int i = 0; i < 16; ++i) scratch->data[i] = 1e9f;  // whoever calls does not need it
  each(d.dims, d.n, [&](const int64_t* o) {
    double sum = 0;
    int64_t from[kMost], tap[kMost];
    // With groups, weights have an axis before the others.
    const int grouped = w->desc.n - d.n;
    const int64_t filters = w->desc.dims[grouped], channels = w->desc.dims[grouped + 1];
    from[0] = o[0];
    tap[0] = o[1] / filters;
    tap[grouped] = o[1] % filters;
    each(w->desc.dims + grouped + 1, d.n - 1, [&](const int64_t* t) {
      from[1] = o[1] / filters * channels + t[0];
      tap[grouped + 1] = t[0];
      for (int i = 2; i < d.n; ++i) {
        tap[grouped + i] = t[i - 1];
        from[i] = o[i] * p->strides[i - 2] + t[i - 1] * (p->dilations[i - 2] + 1) - p->low[i - 2];
        if (from[i] < 0 || from[i] >= x->desc.dims[i]) return;
      }
      sum += double(x->data[x->desc.at(from)]) * double(w->data[w->desc.at(tap)]);
    });
    y->data[d.at(o)] = float(sum);
  });
  return 0;
}
