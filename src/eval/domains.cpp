#include "eval/domains.h"

namespace tessera {
namespace {

// A contiguous matrix of |plane| of a view.
template <class T> Buffer absolute(const View& v, int plane) {
  Buffer b(size_t(v.shape[0] * v.shape[1]) * sizeof(T));
  T* to = b.as<T>();
  for (int64_t i = 0; i < v.shape[0]; ++i)
    for (int64_t j = 0; j < v.shape[1]; ++j)
      *to++ = std::abs(v.as<const T>(plane)[i * v.stride[0] + j * v.stride[1]]);
  return b;
}

// How a view's magnitudes compare with the absolute values of its elements.
enum class MagnitudeOrder { Equal, NotBelow, Neither };

template <class T> MagnitudeOrder scales_of(const View& v) {
  bool equal = true;
  for (int64_t i = 0; i < v.shape[0]; ++i) {
    const T *x = v.as<const T>(0) + i * v.stride[0], *m = v.as<const T>(1) + i * v.stride[0];
    bool not_below = true;
    for (int64_t j = 0; j < v.shape[1]; ++j) {
      const T value = std::abs(x[j * v.stride[1]]), scale = m[j * v.stride[1]];
      not_below &= scale >= value;
      equal &= scale == value;
    }
    if (!not_below) return MagnitudeOrder::Neither;
  }
  return equal ? MagnitudeOrder::Equal : MagnitudeOrder::NotBelow;
}

void multiply(int64_t m, int64_t n, int64_t k, Matrix<const double> a, Matrix<const double> b,
              Matrix<double> c, ThreadPool* pool) {
  real_matmul<double>(kernels(), m, n, k, a, b, c, pool);
}
void multiply(int64_t m, int64_t n, int64_t k, Matrix<const long double> a,
              Matrix<const long double> b, Matrix<long double> c, ThreadPool* pool) {
  parallel_for(
      pool, m, 1,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            long double sum = 0;
            for (int64_t l = 0; l < k; ++l)
              sum += a.data[i * a.row + l * a.col] * b.data[l * b.row + j * b.col];
            c.data[i * c.row + j * c.col] = sum;
          }
        }
      });
}

// The union of the flags along an axis of a matrix: for each row (axis 1) or column (axis 0).
std::vector<uint8_t> flags_along(const View& m, size_t axis) {
  const size_t other = 1 - axis;
  std::vector<uint8_t> any(size_t(m.shape[other]), 0);
  if (!m.flagged()) return any;
  for (int64_t i = 0; i < m.shape[other]; ++i) {
    uint8_t all = 0;
    for (int64_t k = 0; k < m.shape[axis]; ++k)
      all |= m.as<const uint8_t>(kFlagPlane)[i * m.stride[other] + k * m.stride[axis]];
    any[size_t(i)] = all != 0;
  }
  return any;
}

// Distinct hashes of one reduction: a linear list, then an open-addressing table.
class HashSet {
 public:
  void reset(int64_t expected) {
    size_t slots = 16;
    while (slots < size_t(expected) * 2) slots *= 2;
    slots_.assign(slots, 0);
  }
  bool insert(uint64_t hash) {
    if (hash == 0) hash = 2;  // 0 marks a free slot
    size_t at = size_t(mix64(hash)) & (slots_.size() - 1);
    while (slots_[at] != 0) {
      if (slots_[at] == hash) return false;
      at = (at + 1) & (slots_.size() - 1);
    }
    slots_[at] = hash;
    return true;
  }

 private:
  std::vector<uint64_t> slots_;
};

}  // namespace

template <class T>
void MagnitudeDomain<T>::matmul(const View& a, const View& b, const View& c,
                                ThreadPool* pool) const {
  const int64_t m = a.shape[0], k = a.shape[1], n = b.shape[1];
  auto product = [&](Matrix<const T> x, Matrix<const T> y, Matrix<T> z) {
    multiply(m, n, k, x, y, z, pool);
  };
  auto plane = [](const View& v, int p) {
    return Matrix<const T>{v.as<const T>(p), v.stride[0], v.stride[1]};
  };
  const Matrix<T> values{c.as<T>(0), c.stride[0], c.stride[1]},
      magnitudes{c.as<T>(1), c.stride[0], c.stride[1]};
  product(plane(a, 0), plane(b, 0), values);
  // Magnitudes are never below the values: where those of one operand are its values, as of inputs
  // and weights, its product with the other's magnitudes is the larger one.
  const MagnitudeOrder left = scales_of<T>(a), right = scales_of<T>(b);
  if (left != MagnitudeOrder::Neither && right != MagnitudeOrder::Neither &&
      (left == MagnitudeOrder::Equal || right == MagnitudeOrder::Equal))
    return product(plane(a, 1), plane(b, 1), magnitudes);
  const Buffer abs_a = absolute<T>(a, 0), abs_b = absolute<T>(b, 0);
  Buffer other(size_t(m * n) * sizeof(T));
  product({abs_a.as<T>(), k, 1}, plane(b, 1), magnitudes);
  product(plane(a, 1), {abs_b.as<T>(), n, 1}, {other.as<T>(), n, 1});
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T& x = magnitudes.data[i * magnitudes.row + j * magnitudes.col];
      x = std::fmax(x, other.as<T>()[i * n + j]);
    }
  }
}

template <class W>
void FieldDomain<W>::matmul(const View& a, const View& b, const View& c, ThreadPool* pool) const {
  for (int p = 0; p < 3; ++p) {
    if (c.plane[size_t(p)] == nullptr) continue;
    field_matmul<W>(kernels(), shared.chain->modulus[size_t(p)], a.shape[0], b.shape[1], a.shape[1],
                    {a.as<const W>(p), a.stride[0], a.stride[1]},
                    {b.as<const W>(p), b.stride[0], b.stride[1]},
                    {c.as<W>(p), c.stride[0], c.stride[1]}, pool);
  }
  if (!c.flagged()) return;
  const std::vector<uint8_t> rows = flags_along(a, 1), columns = flags_along(b, 0);
  for (int64_t i = 0; i < c.shape[0]; ++i) {
    for (int64_t j = 0; j < c.shape[1]; ++j) {
      c.as<uint8_t>(kFlagPlane)[i * c.stride[0] + j * c.stride[1]] =
          rows[size_t(i)] | columns[size_t(j)];
    }
  }
}

template <class W>
void FieldDomain<W>::reduce_extremum(const View& x, int kept, const View& out, uint64_t minimum,
                                     ThreadPool* pool) const {
  View outer = x, inner = x;
  outer.rank = kept;
  for (int i = 0; i < kept; ++i) inner.erase_axis(0);
  const int64_t terms = inner.size();
  const uint8_t* flags = x.as<const uint8_t>(kFlagPlane);
  const uint64_t* sets = x.as<const uint64_t>(kSetPlane);
  const W* p = x.as<const W>(0);
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, terms));
  parallel_for(pool, outer.size(), grain, [&](int64_t begin, int64_t end) {
    HashSet seen;
    Walker<2> place(outer, {&outer, &out}, begin);
    for (int64_t r = begin; r < end; ++r) {
      seen.reset(terms);
      Walker<1> walk(inner, {&inner});
      uint64_t sum = 0;
      int64_t distinct = 0, member[2] = {0, 0};
      bool plain = true;
      uint8_t flag = 0;
      for (int64_t t = 0; t < terms; ++t) {
        const int64_t at = place.offset(0) + walk.offset(0);
        if (t + 1 < terms) walk.advance(1);
        if (flags != nullptr && flags[at] != 0) {
          const bool ignored = minimum == 0 && flags[at] == FieldArray::NegInf;
          if (!ignored) flag = FieldArray::Undefined;
          continue;
        }
        const bool atom = sets == nullptr || sets[at] == 0 || (sets[at] & 1) != minimum;
        const uint64_t hash = atom ? shared.atom(p[at], minimum) : sets[at] & ~uint64_t(1);
        if (!seen.insert(hash)) continue;
        if (distinct < 2) member[distinct] = at;
        ++distinct;
        plain = plain && atom;
        sum += hash;
      }
      if (distinct == 0 && flag == 0) flag = minimum ? FieldArray::Undefined : FieldArray::NegInf;
      int64_t pick = -1;
      const bool two = distinct == 2 && plain;
      const Modulus<W>& m = shared.chain->modulus[0];
      const W difference = two ? m.sub(p[member[0]], p[member[1]]) : W(0);
      if (two && !shared.unknown_signs) shared.ask(difference, 1, false);
      if (distinct <= 1)
        pick = member[0];
      else if (two && !shared.unknown_signs)
        pick = member[(m.legendre(difference) == 1) == (minimum == 0) ? 0 : 1];
      const int64_t to = place.offset(1);
      for (int k = 0; k < 3; ++k) {
        if (out.plane[size_t(k)] == nullptr) continue;
        const W* from = x.as<const W>(k);
        out.as<W>(k)[to] = distinct == 0 ? W(0)
                           : pick >= 0   ? from[pick]
                           : two
                               ? shared.chosen(k, from[member[minimum]], from[member[1 - minimum]],
                                               shared.unknown_sign(k, difference))
                               : shared.of_set(k, sum, minimum);
      }
      out.as<uint8_t>(kFlagPlane)[to] = flag;
      out.as<uint64_t>(kSetPlane)[to] = distinct > 1                       ? (sum | minimum)
                                        : distinct == 1 && sets != nullptr ? sets[pick]
                                                                           : 0;
      if (r + 1 < end) place.advance(1);
    }
  });
}

template struct MagnitudeDomain<double>;
template struct MagnitudeDomain<long double>;
template struct FieldDomain<uint32_t>;
template struct FieldDomain<uint64_t>;

}  // namespace tessera
