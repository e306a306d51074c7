// The domains a graph is evaluated over: how elements are kept in planes, loaded into vectors and
// multiplied as matrices. The meaning of operators is in pointwise.h and interpreter.h.
#pragma once
#include <bit>
#include <string>

#include "eval/eval.h"
#include "eval/field_vector.h"
#include "eval/kernels.h"
#include "eval/tensor.h"
#include "eval/vectors.h"

namespace tessera {

template <class V> struct ChunkOf {
  V f;
  IntVec i;
};

// --- integers: plane 0, and flags where the field cannot tell them
inline void begin_load(IntVec& x, const View& v, int n) {
  x.n = n;
  x.flagged = v.flagged();
}
template <class F> void each_plane(IntVec& x, const View& v, F f) {
  f(0, x.v);
  if (v.flagged()) f(kFlagPlane, x.flag);
}
inline void begin_store(IntVec& x, const View& v) {
  CHECK(!x.flagged || v.flagged()) << "no room for flags";
  if (v.flagged() && !x.flagged) std::memset(x.flag, 0, size_t(x.n));
}

// Substitutions; nearly all elements are told by a few bits to be none.
class Supposed {
 public:
  Supposed() = default;
  explicit Supposed(std::vector<Substitution> all) : all_(std::move(all)) {
    if (!all_.empty()) some_.resize(size_t(1) << kBits);
    for (Substitution& s : all_) {
      s.by = instead_of(s.by);  // once replaced, an element is copied as it is
      for (const double x : s.values)
        some_[key(x * (1 - 2e-11))] = some_[key(x * (1 + 2e-11))] = true;
    }
  }
  bool empty() const { return all_.empty(); }
  double instead_of(double x) const {
    if (!some_[key(x)]) return x;
    for (const Substitution& s : all_) {
      if (std::fabs(x) == std::fabs(s.by)) return x;
      if (s.holds(x)) return s.by;
      if (s.holds(-x)) return -s.by;
    }
    return x;
  }

 private:
  static constexpr int kBits = 16;
  static size_t key(double x) {  // of the exponent and 22 bits behind it
    return size_t((std::bit_cast<uint64_t>(std::fabs(x)) >> 30) * 0x9E3779B97F4A7C15 >>
                  (64 - kBits));
  }
  std::vector<Substitution> all_;
  std::vector<bool> some_;
};

// --- floats; T is the type computed in
template <class T> struct RealDomain {
  using Vec = RealVec<T>;
  using Chunk = ChunkOf<Vec>;
  static constexpr size_t kWord = sizeof(T);
  static constexpr bool kIsField = false, kIsTerm = false;
  Precision precision = Precision::Exact;
  Supposed supposed;

  uint8_t value_planes(Components) const { return 1; }
  static bool may_flag(OpKind) { return false; }
  void begin_load(Vec& x, const View&, int n) const { x.n = n; }
  template <class F> void each_plane(Vec& x, const View&, F f) const { f(0, x.v); }
  void begin_store(Vec&, const View&) const {}
  void set_scalar(const View& v, const Rational& c) const { *v.as<T>(0) = T(c.to_double()); }
  // Rounds a value to what a tensor of this dtype holds at this level.
  void round(const View& v, Level level) const {
    if (!supposed.empty() && is_float(v.dtype)) suppose(v);
    if (precision == Precision::Exact || !is_float(v.dtype)) return;
    DType to = v.dtype;
    if (level != Level::Kernel && (to == DType::F16 || to == DType::BF16)) to = DType::F32;
    if (to == DType::F64 || (to == DType::F32 && sizeof(T) == 4)) return;
    T* x = v.as<T>(0);
    for (int64_t i = 0, n = v.size(); i < n; ++i) {
      double y = round_to(to, double(x[i]));
      if (precision == Precision::Unbounded && std::isinf(y) && std::isfinite(x[i])) {
        int exponent = 0;
        y = std::frexp(double(x[i]), &exponent);
        y = std::ldexp(round_to(to, y), exponent);
      }
      x[i] = T(y);
    }
  }
  void suppose(const View& v) const {
    T* x = v.as<T>(0);
    for (int64_t i = 0, n = v.size(); i < n; ++i) x[i] = T(supposed.instead_of(double(x[i])));
  }
  void matmul(const View& a, const View& b, const View& c, ThreadPool* pool) const {
    real_matmul<T>(
        kernels(), a.shape[0], b.shape[1], a.shape[1], {a.as<const T>(0), a.stride[0], a.stride[1]},
        {b.as<const T>(0), b.stride[0], b.stride[1]}, {c.as<T>(0), c.stride[0], c.stride[1]}, pool);
  }
};

// T is the type computed in.
template <class T> struct MagnitudeDomain {
  using Vec = MagnitudeVec<T>;
  using Chunk = ChunkOf<Vec>;
  static constexpr size_t kWord = sizeof(T);
  static constexpr bool kIsField = false, kIsTerm = false;

  uint8_t value_planes(Components) const { return 3; }
  static bool may_flag(OpKind) { return false; }
  void begin_load(Vec& x, const View&, int n) const { x.n = n; }
  template <class F> void each_plane(Vec& x, const View&, F f) const {
    f(0, x.v);
    f(1, x.m);
  }
  void begin_store(Vec&, const View&) const {}
  void set_scalar(const View& v, const Rational& c) const {
    *v.as<T>(0) = T(c.to_double());
    *v.as<T>(1) = T(std::abs(c.to_double()));
  }
  void round(const View&, Level) const {}
  // Magnitudes as Vec's operator* and accumulate() would sum them, up to a factor of 2:
  // max(|A|·M_B, M_A·|B|) instead of the sum of maxima.
  void matmul(const View& a, const View& b, const View& c, ThreadPool* pool) const;
};

template <class W> struct FieldDomain {
  using Vec = FieldVec<W>;
  using Chunk = ChunkOf<Vec>;
  static constexpr size_t kWord = sizeof(W);
  static constexpr bool kIsField = true, kIsTerm = false;
  FieldShared<W> shared;

  explicit FieldDomain(const FieldModel& model)
      : shared{&model.tables().get<W>(), &kernels().field<W>(),
               model.tables().get<W>().function_key(Keyed::Atom, 0),
               model.signs() == Signs::Unknown, model.size() == FieldSize::Small} {
    for (size_t k = 0; k < 3; ++k) {
      const Modulus<W>& m = shared.chain->modulus[k];
      shared.halves[k] = m.inv(m.from_int(2));
    }
  }

  uint8_t value_planes(Components m) const { return m; }
  static bool may_flag(OpKind kind) {
    return has(kind, algebra::Partial) || has(kind, algebra::FieldPartial) ||
           kind == OpKind::Custom;
  }
  void begin_load(Vec& x, const View& v, int n) const {
    x.shared = &shared;
    x.n = n;
    x.components = 0;
    for (int k = 0; k < 3; ++k) x.components |= uint8_t(v.plane[size_t(k)] != nullptr) << k;
    x.flagged = v.flagged();
    x.has_set = v.plane[kSetPlane] != nullptr;
  }
  template <class F> void each_plane(Vec& x, const View& v, F f) const {
    for (int k = 0; k < 3; ++k)
      if (v.plane[size_t(k)] != nullptr) f(k, x.c[k]);
    if (v.flagged()) f(kFlagPlane, x.flag);
    if (v.plane[kSetPlane] != nullptr) f(kSetPlane, x.set);
  }
  void begin_store(Vec& x, const View& v) const {
    for (int k = 0; k < 3; ++k) {
      CHECK(v.plane[size_t(k)] == nullptr || x.holds(k))
          << "component " << k << " was not computed";
    }
    CHECK(!x.flagged || v.flagged()) << "no room for flags";
    if (v.flagged()) {
      if (!x.flagged)
        std::memset(x.flag, 0, size_t(x.n));
      else
        for (int i = 0; i < x.n; ++i) x.flag[i] = x.flag[i] & 1 ? uint8_t(1) : x.flag[i];
    }
    if (v.plane[kSetPlane] != nullptr && !x.has_set) std::memset(x.set, 0, size_t(x.n) * 8);
  }
  void set_scalar(const View& v, const Rational& c) const {
    const bool infinite = !c.finite();
    CHECK(!infinite || (c.negative() && v.flagged())) << "no field meaning for " << c.str();
    if (v.flagged())
      *v.as<uint8_t>(kFlagPlane) = infinite ? FieldArray::NegInf : FieldArray::Defined;
    for (int k = 0; k < 3; ++k) {
      if (v.plane[size_t(k)] == nullptr) continue;
      const auto word = shared.chain->constant(k, infinite ? Rational(0) : c);
      CHECK(word) << "a constant's denominator is divisible by the prime";
      *v.as<W>(k) = *word;
    }
  }
  void round(const View&, Level) const {}
  void matmul(const View& a, const View& b, const View& c, ThreadPool* pool) const;
  // Maximum (0) or minimum (1) over the axes of x from `kept` on.
  void reduce_extremum(const View& x, int kept, const View& out, uint64_t minimum,
                       ThreadPool* pool) const;
};

}  // namespace tessera
