// A stand-in for cuDNN's backend interface: the functions that Tessera calls, on the devices of the
// stand-in for the driver (cuda_driver.cpp). It checks what is described as the library would,
// supports the patterns that its engines are known to fuse, and computes what the graph of
// operations says, step by step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "elements.h"
#include "stand_in.h"

namespace {

constexpr int kBadParam = 2000, kNotFinalized = 2004, kNotSupported = 3000, kBadPattern = 3001,
              kBadLayout = 3004, kBadPadding = 3011, kFailed = 5000;

struct Descriptor {
  int kind = 0;
  bool finished = false;
  struct Value {
    int type = 0;
    int64_t count = 0;
    std::vector<char> bytes;
  };
  std::map<int, Value> values;
  // Of engines' configurations.
  int engine = 0;
  const Descriptor* graph = nullptr;

  bool has(int name) const { return values.count(name) != 0; }
  template <class T> T one(int name, T otherwise = {}) const {
    const auto it = values.find(name);
    if (it == values.end() || it->second.bytes.size() < sizeof(T)) return otherwise;
    T v;
    std::memcpy(&v, it->second.bytes.data(), sizeof v);
    return v;
  }
  template <class T> std::vector<T> list(int name) const {
    std::vector<T> v;
    const auto it = values.find(name);
    if (it == values.end()) return v;
    v.resize(size_t(it->second.count));
    std::memcpy(v.data(), it->second.bytes.data(), v.size() * sizeof(T));
    return v;
  }
  const Descriptor* of(int name) const { return one<const Descriptor*>(name); }
};

int bytes_of(int attribute_type) {
  switch (attribute_type) {
  case 2: return 1;   // boolean
  case 0:             // handle
  case 3:             // int64
  case 5:             // double
  case 6:             // pointer
  case 15: return 8;  // descriptor
  default: return 4;  // enumerators, float
  }
}

// --- tensors -------------------------------------------------------------------------------------

std::vector<int64_t> extents(const Descriptor& t) { return t.list<int64_t>(902); }
std::vector<int64_t> pitches(const Descriptor& t) { return t.list<int64_t>(903); }
int type_of(const Descriptor& t) { return t.one<int>(901); }

const char* type_name(int type) {
  switch (type) {
  case 0: return "f32";
  case 1: return "f64";
  case 2: return "f16";
  case 4: return "i32";
  case 9: return "bf16";
  case 11: return "bool";
  default: return "?";
  }
}

std::string text(const std::vector<int64_t>& list) {
  std::string s;
  for (int64_t n : list) s += (s.empty() ? "" : ",") + std::to_string(n);
  return "[" + s + "]";
}
std::string text(const Descriptor& t) {
  return std::string(type_name(type_of(t))) + text(extents(t)) + text(pitches(t));
}

double rounded(int type, double x) {
  switch (type) {
  case 0: return float(x);
  case 2: return ts::to_float(ts::from_float<ts::f16>(float(x)));
  case 9: return ts::to_float(ts::from_float<ts::bf16>(float(x)));
  default: return x;
  }
}
// To 10 bits of fraction.
double tf32(double x) {
  uint32_t bits;
  const float f = float(x);
  std::memcpy(&bits, &f, 4);
  bits = (bits + 0x1000u) & ~0x1fffu;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

// --- a graph that runs ---------------------------------------------------------------------------

struct Run {
  const Descriptor* graph;
  std::vector<std::shared_ptr<Descriptor>> keep;  // everything that it refers to
  bool rounds_factors;
  std::map<int64_t, char*> arrays;
  std::map<int64_t, double> numbers;
  std::map<const Descriptor*, std::vector<double>> values;  // virtual ones, packed

  static int64_t packed(const std::vector<int64_t>& e, const std::vector<int64_t>& at) {
    int64_t i = 0;
    for (size_t d = 0; d < e.size(); ++d) i = i * e[d] + at[d];
    return i;
  }
  // An axis of extent 1 is used for all, and a group's operand for all of the group.
  double get(const Descriptor* t, const std::vector<int64_t>& at) {
    const auto e = extents(*t);
    const int64_t id = t->one<int64_t>(906);
    if (t->one<bool>(908)) return numbers.at(id);
    std::vector<int64_t> inside(e.size());
    for (size_t d = 0; d < e.size(); ++d) inside[d] = e[d] == 1 ? 0 : at[d];
    if (t->one<bool>(907)) return values.at(t)[size_t(packed(e, inside))];
    const auto p = pitches(*t);
    int64_t i = 0;
    for (size_t d = 0; d < e.size(); ++d) i += inside[d] * p[d];
    const double x = read(arrays.at(id), type_of(*t), i);
    return x;
  }
  double factor(const Descriptor* t, const std::vector<int64_t>& at) {
    const double x = get(t, at);
    return rounds_factors ? tf32(x) : x;
  }
  template <class F> void fill(const Descriptor* t, F value) {
    const auto e = extents(*t);
    const auto p = pitches(*t);
    std::vector<int64_t> at(e.size(), 0);
    int64_t n = 1;
    for (int64_t x : e) n *= x;
    const bool is_virtual = t->one<bool>(907);
    if (is_virtual) values[t].resize(size_t(n));
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i, where = 0;
      for (size_t d = e.size(); d-- > 0;) {
        at[d] = rest % e[d];
        rest /= e[d];
        where += at[d] * p[d];
      }
      const double x = value(at);
      if (is_virtual)
        values[t][size_t(i)] = rounded(type_of(*t), x);
      else
        write(arrays.at(t->one<int64_t>(906)), type_of(*t), where, x);
    }
  }

  void convolution(const Descriptor& op) {
    const bool back = op.kind == 12;
    const int first = back ? 706 : 700;
    const Descriptor &how = *op.of(first + 2), *w = op.of(first + 3),
                     *wide = op.of(first + 4),        // x, or dx
                         *narrow = op.of(first + 5);  // y, or dy
    const auto strides = how.list<int64_t>(103), dilations = how.list<int64_t>(102),
               before = how.list<int64_t>(105);
    const auto we = extents(*w), ie = extents(*wide), oe = extents(*narrow);
    const size_t axes = strides.size();
    const int64_t groups = ie[1] / we[1], per_in = we[1], per_out = we[0] / groups;
    // Every pair of a place of the narrow side and a tap.
    const auto each_tap = [&](auto&& visit) {
      std::vector<int64_t> tap(axes, 0);
      for (;;) {
        visit(tap);
        size_t d = axes;
        while (d-- > 0) {
          if (++tap[d] < we[d + 2]) break;
          tap[d] = 0;
          if (d == 0) return;
        }
      }
    };
    if (!back) {
      fill(narrow, [&](const std::vector<int64_t>& at) {
        double sum = 0;
        const int64_t g = at[1] / per_out;
        each_tap([&](const std::vector<int64_t>& tap) {
          std::vector<int64_t> x = at, k = {at[1], 0};
          for (size_t d = 0; d < axes; ++d) {
            x[d + 2] = at[d + 2] * strides[d] + tap[d] * dilations[d] - before[d];
            if (x[d + 2] < 0 || x[d + 2] >= ie[d + 2]) return;
          }
          k.insert(k.end(), tap.begin(), tap.end());
          for (int64_t c = 0; c < per_in; ++c) {
            x[1] = g * per_in + c;
            k[1] = c;
            sum += factor(wide, x) * factor(w, k);
          }
        });
        return sum;
      });
      return;
    }
    fill(wide, [&](const std::vector<int64_t>& at) {
      double sum = 0;
      const int64_t g = at[1] / per_in;
      each_tap([&](const std::vector<int64_t>& tap) {
        std::vector<int64_t> y = at, k = {0, at[1] % per_in};
        for (size_t d = 0; d < axes; ++d) {
          const int64_t place = at[d + 2] + before[d] - tap[d] * dilations[d];
          if (place < 0 || place % strides[d] != 0 || place / strides[d] >= oe[d + 2]) return;
          y[d + 2] = place / strides[d];
        }
        k.insert(k.end(), tap.begin(), tap.end());
        for (int64_t c = 0; c < per_out; ++c) {
          y[1] = k[0] = g * per_out + c;
          sum += factor(narrow, y) * factor(w, k);
        }
      });
      return sum;
    });
  }

  void pointwise(const Descriptor& op) {
    const Descriptor &how = *op.of(750), *x = op.of(751), *b = op.of(752), *t = op.of(758);
    const int mode = how.one<int>(0);
    const int64_t axis = how.one<int64_t>(9, -1);
    fill(op.of(753), [&](const std::vector<int64_t>& at) -> double {
      switch (mode) {
      case 0: return get(x, at) + get(b, at);
      case 1: return get(x, at) * get(b, at);
      case 6: return get(x, at) / get(b, at);
      case 9: return get(x, at) - get(b, at);
      case 13: return std::exp(get(x, at));
      case 15: return std::log(get(x, at));
      case 100: return std::max(get(x, at), 0.0);
      case 107: {
        const double v = get(x, at);
        return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
      }
      case 303: return get(x, at) >= get(b, at) ? 1 : 0;
      case 501: return double(at[size_t(axis)]);
      case 601: return get(t, at) != 0 ? get(x, at) : get(b, at);
      default: return NAN;
      }
    });
  }

  void matmul(const Descriptor& op) {
    const Descriptor *a = op.of(1520), *b = op.of(1521), *c = op.of(1522);
    const auto ae = extents(*a), be = extents(*b), ce = extents(*c);
    fill(c, [&](const std::vector<int64_t>& at) {
      double sum = 0;
      std::vector<int64_t> x = at, y = at;
      x[1] = at[1] * ae[1] / ce[1];
      y[1] = at[1] * be[1] / ce[1];
      for (int64_t k = 0; k < ae[3]; ++k) {
        x[3] = y[2] = k;
        sum += factor(a, x) * factor(b, y);
      }
      return sum;
    });
  }

  void reduce(const Descriptor& op) {
    const Descriptor &how = *op.of(1612), *x = op.of(1610);
    const int kind = how.one<int>(1600);
    const auto e = extents(*x);
    fill(op.of(1611), [&](const std::vector<int64_t>& at) {
      std::vector<int64_t> inside = at;
      double total = kind == 3 ? -INFINITY : 0;
      for (int64_t i = 0; i < e[3]; ++i) {
        inside[3] = i;
        const double v = get(x, inside);
        total = kind == 3 ? std::max(total, v) : total + v;
      }
      return total;
    });
  }

  void softmax(const Descriptor& op) {
    const Descriptor* x = op.of(3100);
    const auto e = extents(*x);
    fill(op.of(3101), [&](const std::vector<int64_t>& at) {
      std::vector<int64_t> inside = at;
      double most = -INFINITY, sum = 0;
      for (inside[3] = 0; inside[3] < e[3]; ++inside[3]) most = std::max(most, get(x, inside));
      for (inside[3] = 0; inside[3] < e[3]; ++inside[3]) sum += std::exp(get(x, inside) - most);
      return std::exp(get(x, at) - most) / sum;
    });
  }

  int run() {
    values.clear();
    for (const Descriptor* op : graph->list<const Descriptor*>(801)) {
      switch (op->kind) {
      case 10:
      case 12: convolution(*op); break;
      case 13: pointwise(*op); break;
      case 19: matmul(*op); break;
      case 22: reduce(*op); break;
      case 45: softmax(*op); break;
      default: return 1;
      }
    }
    return 0;
  }
};

// --- what is checked -----------------------------------------------------------------------------

std::mutex mutex;
std::map<const void*, std::shared_ptr<Descriptor>> all;  // that are not destroyed
std::string last_run;
size_t version = 90500;
constexpr size_t kSoftmaxSince = 92100;

bool ready(const Descriptor* d, int kind) { return d != nullptr && d->finished && d->kind == kind; }

int check_tensor(const Descriptor& t) {
  const auto e = extents(t), p = pitches(t);
  if (e.empty() || e.size() != p.size() || !t.has(901) || !t.has(906) || !t.has(900))
    return kBadParam;
  for (int64_t n : e)
    if (n < 1) return kBadParam;
  const bool in_memory = !t.one<bool>(907) && !t.one<bool>(908);
  // Engines that read 16 bytes at a time are told when they may.
  return in_memory && t.one<int64_t>(900) < 16 ? kBadParam : 0;
}

int check_convolution(const Descriptor& op) {
  const int first = op.kind == 12 ? 706 : 700;
  const Descriptor *how = op.of(first + 2), *w = op.of(first + 3), *wide = op.of(first + 4),
                   *narrow = op.of(first + 5);
  if (!ready(how, 1)) return kNotFinalized;
  for (const Descriptor* t : {w, wide, narrow})
    if (!ready(t, 17)) return kNotFinalized;
  const auto strides = how->list<int64_t>(103), dilations = how->list<int64_t>(102),
             before = how->list<int64_t>(105), behind = how->list<int64_t>(104);
  const auto we = extents(*w), ie = extents(*wide), oe = extents(*narrow);
  const size_t axes = size_t(how->one<int64_t>(106));
  if (how->one<int>(101, -1) != 1) return kBadParam;  // a convolution proper turns its window
  if (axes < 2 || strides.size() != axes || dilations.size() != axes || before.size() != axes ||
      behind.size() != axes || we.size() != axes + 2 || ie.size() != axes + 2 ||
      oe.size() != axes + 2)
    return kBadParam;
  if (ie[0] != oe[0] || ie[1] % we[1] != 0 || oe[1] != we[0] || we[0] % (ie[1] / we[1]) != 0)
    return kBadParam;
  const int type = type_of(*w), compute = how->one<int>(100);
  const bool wide_sums = type == 1;
  if (compute != (wide_sums ? 1 : 0)) return kBadParam;
  const int real = op.values.at(first).type;
  if (real != (wide_sums ? 5 : 4) || op.values.at(first + 1).type != real) return kBadParam;
  const double alpha = wide_sums ? op.one<double>(first) : double(op.one<float>(first));
  const double beta = wide_sums ? op.one<double>(first + 1) : double(op.one<float>(first + 1));
  if (alpha != 1 || beta != 0) return kNotSupported;
  for (size_t d = 0; d < axes; ++d) {
    if (before[d] < 0 || behind[d] < 0) return kBadParam;
    if (before[d] != behind[d]) return kBadPadding;
    const int64_t out =
        (ie[d + 2] + before[d] + behind[d] - dilations[d] * (we[d + 2] - 1) - 1) / strides[d] + 1;
    if (out != oe[d + 2]) return kBadParam;
  }
  return 0;
}

int check_pointwise(const Descriptor& op) {
  const Descriptor *how = op.of(750), *x = op.of(751), *b = op.of(752), *y = op.of(753),
                   *t = op.of(758);
  if (!ready(how, 0) || !ready(x, 17) || !ready(y, 17)) return kNotFinalized;
  const int mode = how->one<int>(0);
  const bool two = mode < 10 || mode == 303 || mode == 601;
  if (two != (b != nullptr) || (mode == 601) != (t != nullptr)) return kBadParam;
  const auto ye = extents(*y);
  for (const Descriptor* in : {x, b, t}) {
    if (in == nullptr) continue;
    if (!ready(in, 17)) return kNotFinalized;
    const auto e = extents(*in);
    if (e.size() != ye.size()) return kBadParam;
    for (size_t d = 0; d < e.size(); ++d)
      if (e[d] != ye[d] && e[d] != 1) return kBadParam;
  }
  if (mode == 501 && (!how->has(9) || type_of(*y) != 4)) return kBadParam;
  if (mode == 303 && (type_of(*y) != 11 || how->one<int>(1) != 11)) return kBadParam;
  return 0;
}

// What engines fuse: convolutions with pointwise operations behind them, convolutions backwards
// alone, and attention.
int check_graph(const Descriptor& graph) {
  if (!graph.has(800)) return kBadParam;
  const auto ops = graph.list<const Descriptor*>(801);
  std::string kinds;
  for (const Descriptor* op : ops) {
    if (op == nullptr || !op->finished) return kNotFinalized;
    kinds += std::to_string(op->kind);
    if (op->kind == 13) kinds += ":" + std::to_string(op->of(750)->one<int>(0));
    kinds += " ";
  }
  static const std::set<std::string> fused = {
      "10 ", "10 13:0 ", "10 13:100 ", "10 13:107 ", "10 13:0 13:100 ", "10 13:0 13:107 ", "12 "};
  // Version 9.28 knows flash attention by the one, 9.19 by the other.
  const std::string softmax =
      version >= kSoftmaxSince ? "45 19 " : "22 13:9 13:13 22 13:15 13:0 13:6 19 ";
  static const std::string mask = "13:501 13:501 13:303 13:601 ";
  if (fused.count(kinds)) return 0;
  if (kinds != "19 " + softmax && kinds != "19 13:1 " + softmax &&
      kinds != "19 " + mask + softmax && kinds != "19 13:1 " + mask + softmax)
    return kBadPattern;
  const Descriptor *q = ops.front()->of(1520), *k = ops.front()->of(1521),
                   *v = ops.back()->of(1521), *p = ops.back()->of(1520);
  if (type_of(*p) != type_of(*v)) return kBadParam;
  // Heads are contiguous: of keys, which are described as their transpose, the third axis.
  if (pitches(*q)[3] != 1 || pitches(*k)[2] != 1 || pitches(*v)[3] != 1) return kBadLayout;
  for (const int64_t d : {extents(*q)[3], extents(*v)[3]})
    if (d % 8 != 0 || d > 256) return kNotSupported;
  return type_of(*q) == 2 || type_of(*q) == 9 ? 0 : kNotSupported;
}

// Engines, best first: one of tensor cores, one by transforms, one of lanes.
struct Engine {
  int number;
  std::vector<int> notes;
  int64_t workspace;
};
const std::vector<Engine>& engines() {
  static const std::vector<Engine> list = {
      {1, {5}, 1024}, {2, {0}, 2048}, {3, {}, 1024}, {4, {0, 1}, 1024}};
  return list;
}

std::string describe(const Descriptor& graph, int engine) {
  std::string s;
  for (const Descriptor* op : graph.list<const Descriptor*>(801)) {
    if (op->kind == 10 || op->kind == 12) {
      const int first = op->kind == 12 ? 706 : 700;
      const Descriptor& how = *op->of(first + 2);
      s += std::string(op->kind == 12 ? "back " : "conv ") + text(*op->of(first + 4)) + " " +
           text(*op->of(first + 3)) + " -> " + text(*op->of(first + 5)) + " strides " +
           text(how.list<int64_t>(103)) + " dilations " + text(how.list<int64_t>(102)) + " zeros " +
           text(how.list<int64_t>(105)) + text(how.list<int64_t>(104)) + "; ";
    } else if (op->kind == 13) {
      s += "pointwise " + std::to_string(op->of(750)->one<int>(0)) +
           (op->of(752) != nullptr ? " " + text(*op->of(752)) : "") + "; ";
    } else if (op->kind == 19) {
      s += "matmul " + text(*op->of(1520)) + " " + text(*op->of(1521)) + "; ";
    } else if (op->kind == 45) {
      s += "softmax; ";
    } else {
      s += "reduce " + std::to_string(op->of(1612)->one<int>(1600)) + "; ";
    }
  }
  return s + "engine " + std::to_string(engine);
}

Descriptor& as(void* d) { return *static_cast<Descriptor*>(d); }

}  // namespace

extern "C" {

// What ran last, for tests.
const char* stand_in_cudnn_last() { return last_run.c_str(); }
int stand_in_cudnn_descriptors() {
  const std::lock_guard lock(mutex);
  return int(all.size());
}

size_t cudnnGetVersion() { return version; }
void stand_in_cudnn_version(int to) { version = size_t(to); }
size_t cudnnGetCudartVersion() { return 12060; }
const char* cudnnGetErrorString(int status) {
  return status >= 3000 && status < 4000 ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
int cudnnCreate(void** handle) {
  *handle = new void*(nullptr);
  return 0;
}
int cudnnDestroy(void* handle) {
  delete static_cast<void**>(handle);
  return 0;
}
int cudnnSetStream(void* handle, void* stream) {
  *static_cast<void**>(handle) = stream;
  return 0;
}

int cudnnBackendCreateDescriptor(int kind, void** made) {
  if (kind == 45 && version < kSoftmaxSince) return kBadParam;
  auto d = std::make_shared<Descriptor>();
  d->kind = kind;
  *made = d.get();
  const std::lock_guard lock(mutex);
  all[d.get()] = std::move(d);
  return 0;
}
int cudnnBackendDestroyDescriptor(void* d) {
  const std::lock_guard lock(mutex);
  return all.erase(d) == 1 ? 0 : kBadParam;
}
int cudnnBackendSetAttribute(void* to, int name, int type, int64_t count, const void* values) {
  Descriptor& d = as(to);
  if (d.finished || count < 1) return kBadParam;
  Descriptor::Value& v = d.values[name];
  v.type = type;
  v.count = count;
  const auto* bytes = static_cast<const char*>(values);
  v.bytes.assign(bytes, bytes + count * bytes_of(type));
  return 0;
}
int cudnnBackendFinalize(void* of) {
  Descriptor& d = as(of);
  int status = 0;
  switch (d.kind) {
  case 17: status = check_tensor(d); break;
  case 10:
  case 12: status = check_convolution(d); break;
  case 13: status = check_pointwise(d); break;
  case 15: status = check_graph(d); break;
  case 4: status = ready(d.of(201), 15) && d.has(200) ? 0 : kNotFinalized; break;
  case 5:
    status = d.has(400) && d.of(401) != nullptr && d.of(401)->engine != 0 ? 0 : kBadParam;
    break;
  default: break;
  }
  d.finished = status == 0;
  return status;
}
int cudnnBackendGetAttribute(const void* from, int name, int type, int64_t wanted, int64_t* count,
                             void* values) {
  const Descriptor& d = *static_cast<const Descriptor*>(from);
  if (d.kind == 4 && name == 202) {  // ways, ranked
    const int mode = d.one<int>(200);
    if (mode != 3 && mode != 2) return kBadParam;
    *count = 0;
    for (const Engine& e : engines()) {
      if (mode == 2 && e.number != 3) continue;
      if (*count == wanted) break;
      Descriptor& config = as(static_cast<void**>(values)[(*count)++]);
      config.engine = e.number;
      config.graph = d.of(201);
      config.finished = true;
    }
    return 0;
  }
  if (d.kind == 3 && name == 300 && type == 15) {
    as(*static_cast<void**>(values)).engine = d.engine;
    *count = 1;
    return 0;
  }
  if (d.kind == 2 && name == 1303 && type == 11) {
    const std::vector<int>& notes = engines()[size_t(d.engine - 1)].notes;
    *count = int64_t(notes.size());
    std::copy_n(notes.begin(), std::min<int64_t>(wanted, *count), static_cast<int*>(values));
    return 0;
  }
  if (d.kind == 5 && name == 402 && type == 3) {
    *static_cast<int64_t*>(values) = engines()[size_t(d.of(401)->engine - 1)].workspace;
    *count = 1;
    return 0;
  }
  return kBadParam;
}
int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  const Descriptor &p = as(plan), &given = as(pack);
  if (!p.finished || !given.finished) return kNotFinalized;
  const Descriptor& config = *p.of(401);
  const Descriptor* graph = config.graph;
  auto run = std::make_unique<Run>();
  run->graph = graph;
  const auto ids = given.list<int64_t>(1000);
  const auto pointers = given.list<char*>(1001);
  if (ids.size() != pointers.size() || given.one<void*>(1003) == nullptr) return kBadParam;
  std::map<int64_t, char*> by_id;
  for (size_t i = 0; i < ids.size(); ++i) by_id[ids[i]] = pointers[i];
  bool narrow = true;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [at, d] : all) run->keep.push_back(d);
  }
  for (const Descriptor* op : graph->list<const Descriptor*>(801))
    for (const auto& [name, value] : op->values) {
      if (value.type != 15) continue;
      const Descriptor* t = op->of(name);
      if (t->kind != 17 || t->one<bool>(907)) continue;
      const int64_t id = t->one<int64_t>(906);
      if (by_id.count(id) == 0 || by_id[id] == nullptr) return kBadParam;
      if (t->one<bool>(908)) {  // on the host, read now
        run->numbers[id] = double(*reinterpret_cast<const float*>(by_id[id]));
        continue;
      }
      if (reinterpret_cast<uintptr_t>(by_id[id]) % 16 != 0) return kBadParam;
      narrow = narrow && type_of(*t) == 0;
      run->arrays[id] = by_id[id];
    }
  run->rounds_factors = narrow && config.engine == 2;
  last_run = describe(*graph, config.engine);
  const auto work = [](void* data) { return static_cast<Run*>(data)->run(); };
  const auto release = [](void* data) { delete static_cast<Run*>(data); };
  void* stream = *static_cast<void**>(handle);
  return stand_in_enqueue(stream, work, release, run.release()) == 0 ? 0 : kFailed;
}

}  // extern "C"
