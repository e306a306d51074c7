#include "eval/field.h"

#include <cstring>
#include <iterator>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "base/check.h"

namespace tessera {

template <class W> Modulus<W>::Modulus(uint64_t prime) : p(W(prime)) {
  CHECK(prime % 2 == 1 && prime > 2 && prime >> (sizeof(W) == 4 ? 31 : 61) == 0) << prime;
  inverse = p;  // Newton: doubles the number of correct low bits (3 to start with)
  for (int i = 0; i < 5; ++i) inverse = W(inverse * (W(2) - p * inverse));
  one = W((Double(1) << kBits) % p);
  square = W(Double(one) * one % p);
  residue_exponent = (prime - 1) / 2;
  root_exponent = (prime + 1) / 4;
}

template <class W> W Modulus<W>::pow(W x, uint64_t e) const {
  W result = one;
  for (; e != 0; e >>= 1) {
    if (e & 1) result = mul(result, x);
    x = mul(x, x);
  }
  return result;
}

template struct Modulus<uint32_t>;
template struct Modulus<uint64_t>;

namespace {

// Of numbers ≡ 3 (mod 4) below 2^61: Miller and Rabin's test, whose first twelve bases leave no
// composite below 2^64 (Sorenson and Webster, Math. Comp. 86, 2017).
bool is_prime(uint64_t n) {
  const Modulus<uint64_t> m(n);
  for (const int64_t base : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37}) {
    const uint64_t x = m.pow(m.from_int(base), m.residue_exponent);
    if (x != m.one && x != m.neg(m.one)) return false;
  }
  return true;
}

// Whether an odd prime is a residue modulo a number ≡ 7 (mod 8), of which its own residue is `n`.
bool is_residue(uint64_t prime, uint64_t n) {
  bool square = false;
  for (uint64_t x = 1; x < prime; ++x) square = square || x * x % prime == n;
  return square == (prime % 4 == 1);  // quadratic reciprocity
}

}  // namespace

uint64_t random_prime61(uint64_t seed) {
  constexpr uint64_t kLeast = uint64_t(1) << 57, kMost = kLeast << 2;  // of r
  Rng rng(seed);
  for (;;) {
    uint64_t r = 7, step = 8;
    for (const uint64_t prime : {3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43}) {
      uint64_t c = 0, p = 0, q = 0;
      do {
        c = rng.below(prime), q = (2 * c + 1) % prime, p = (4 * c + 3) % prime;
      } while (c == 0 || q == 0 || p == 0 || !is_residue(prime, p) ||
               (prime <= 7 && !is_residue(prime, q)));
      while (r % prime != c) r += step;
      step *= prime;
    }
    r += step * rng.below(kMost / step + 1);
    if (r < kLeast || r >= kMost) continue;
    if (is_prime(4 * r + 3) && is_prime(2 * r + 1) && is_prime(r)) return 4 * r + 3;
  }
}

template <class W>
PowerTable<W>::PowerTable(const Modulus<W>& m, W base_) : entries(sizeof(W) * 256), base(base_) {
  W step = base;
  for (size_t w = 0; w < sizeof(W); ++w) {
    W* row = &entries[w << 8];
    row[0] = m.one;
    for (int i = 1; i < 256; ++i) row[i] = m.mul(row[i - 1], step);
    step = m.mul(row[255], step);
  }
}

template <class W>
ChainTables<W>::ChainTables(uint64_t prime, uint64_t seed) : key(derive_key(seed, 0x6669656c64)) {
  for (size_t c = 0; c < 3; ++c) {
    modulus[c] = Modulus<W>(prime);
    prime = (prime - 1) / 2;
  }
  CounterRng rng{derive_key(key, 1)};
  for (size_t c = 0; c < 2; ++c) {
    const Modulus<W>& m = modulus[c];
    W g = 0;  // a square other than 0 and 1 generates the subgroup of prime order
    for (uint64_t i = 0; g == 0 || g == m.one; ++i) {
      W x = W(UniformBelow(m.p).at(rng, 16 * c + i));
      g = m.mul(x, x);
    }
    exp[c] = PowerTable<W>(m, g);
  }
}

template <class W>
std::optional<W> ChainTables<W>::constant(int component, const Rational& value) const {
  const Modulus<W>& m = modulus[size_t(component)];
  CHECK(value.finite()) << value.str();
  W den = m.from_int(value.den());
  if (den == 0) return std::nullopt;
  W result = m.mul(m.from_int(value.num()), m.inv(den));
  W two = m.from_int(2);
  int e = value.exp2();
  W scale = m.pow(e < 0 ? m.inv(two) : two, uint64_t(e < 0 ? -int64_t(e) : e));
  return m.mul(result, scale);
}

template struct ChainTables<uint32_t>;
template struct ChainTables<uint64_t>;

// --- field_array.h ----------------------------------------------------------------------------

namespace {
constexpr size_t kHugePage = size_t(2) << 20;
}

void Buffer::Free::operator()(std::byte* p) const {
  ::operator delete(p, std::align_val_t(alignment));
}

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* p = ::operator new(bytes, std::align_val_t(alignment));
#ifdef __linux__
  if (alignment == kHugePage) madvise(p, bytes, MADV_HUGEPAGE);  // a hint; refusal does not matter
#endif
  data_ = std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(p), Free(alignment));
}

Buffer::Buffer(const Buffer& other) : Buffer(other.bytes_) {
  if (bytes_ != 0) std::memcpy(data_.get(), other.data_.get(), bytes_);
}

Buffer& Buffer::operator=(const Buffer& other) {
  if (this != &other) *this = Buffer(other);
  return *this;
}

FieldModel::FieldModel(FieldSize size, uint64_t seed, Signs signs)
    : size_(size), seed_(seed), signs_(signs) {
  const uint64_t choice = derive_key(seed, 0x7072696d65);
  const auto of = [&](const auto& primes) { return primes[choice % std::size(primes)]; };
  if (size == FieldSize::Bits61)
    tables_ = std::make_unique<FieldTables>(
        FieldTables{ChainTables<uint64_t>(random_prime61(choice), seed)});
  else
    tables_ = std::make_unique<FieldTables>(FieldTables{
        ChainTables<uint32_t>(size == FieldSize::Small ? of(kPrimesSmall) : of(kPrimes31), seed)});
}

FieldModel::~FieldModel() = default;
FieldModel::FieldModel(FieldModel&&) noexcept = default;
FieldModel& FieldModel::operator=(FieldModel&&) noexcept = default;

uint64_t FieldModel::prime(int component) const {
  return std::visit(
      [&](const auto& chain) { return uint64_t(chain.modulus.at(size_t(component)).p); },
      tables_->chain);
}

uint8_t FieldArray::present() const {
  uint8_t mask = 0;
  for (size_t c = 0; c < 3; ++c) mask |= uint8_t(!components[c].empty()) << c;
  return mask;
}

uint64_t FieldArray::word(int component, int64_t i) const {
  const Buffer& plane = components.at(size_t(component));
  return field == FieldSize::Bits61 ? plane.as<uint64_t>()[i] : plane.as<uint32_t>()[i];
}

uint64_t FieldArray::value(const FieldModel& model, int component, int64_t i) const {
  CHECK(model.size() == field) << "value of another field";
  return std::visit(
      [&](const auto& chain) {
        const auto& m = chain.modulus.at(size_t(component));
        using W = typename std::decay_t<decltype(m)>::Word;
        return uint64_t(m.to_word(W(word(component, i))));
      },
      model.tables().chain);
}

void FieldArray::set_value(const FieldModel& model, int component, int64_t i, uint64_t residue) {
  CHECK(model.size() == field) << "value of another field";
  std::visit(
      [&](const auto& chain) {
        const auto& m = chain.modulus.at(size_t(component));
        using W = typename std::decay_t<decltype(m)>::Word;
        components.at(size_t(component)).template as<W>()[i] = m.from_word(residue);
      },
      model.tables().chain);
}

FieldArray FieldArray::of_integers(const FieldModel& model, DType dtype, std::vector<int64_t> shape,
                                   const std::vector<int64_t>& values) {
  FieldArray a;
  a.dtype = dtype;
  a.field = model.size();
  a.shape = std::move(shape);
  CHECK(a.size() == int64_t(values.size())) << a.size() << " elements, " << values.size();
  if (!is_float(dtype)) {
    a.ints = values;
    return a;
  }
  std::visit(
      [&](const auto& chain) {
        for (size_t c = 0; c < 3; ++c) {
          const auto& m = chain.modulus[c];
          using W = typename std::decay_t<decltype(m)>::Word;
          a.components[c] = Buffer(values.size() * sizeof(W));
          W* words = a.components[c].template as<W>();
          for (size_t i = 0; i < values.size(); ++i) words[i] = m.from_int(values[i]);
        }
      },
      model.tables().chain);
  return a;
}

}  // namespace tessera
