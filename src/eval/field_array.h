// Values of tensors over finite fields: one draw of the model (which primes, which generator, which
// keyed functions) and arrays with one plane per component p, q, r of a safe-prime chain.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/types.h"

namespace tessera {

// Uninitialised bytes, aligned to 64 or more; copying copies them. Large ones ask for huge pages,
// as first touching small ones costs more than most operators (4 µs a page on a busy virtual
// machine).
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  Buffer(const Buffer&);
  Buffer& operator=(const Buffer&);
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  size_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  template <class T> T* as() { return reinterpret_cast<T*>(data_.get()); }
  template <class T> const T* as() const { return reinterpret_cast<const T*>(data_.get()); }

 private:
  struct Free {
    size_t alignment;
    explicit Free(size_t a) : alignment(a) {}
    Free() : Free(64) {}
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

// Small: a few thousand elements, in which denominators are met at zero; proves nothing.
enum class FieldSize : uint8_t { Small, Bits31, Bits61 };

// What the sign of a field element is: its quadratic character, which is multiplicative and −1, 0
// or 1; or an odd function known by name only, whose values are field elements: then what is equal
// is equal for every outcome of every comparison (verify/decisions.h).
enum class Signs : uint8_t { Character, Unknown };

struct FieldTables;  // eval/field.h: moduli, generators, exponent tables, hash keys

// One draw of the model, determined by (size, seed, signs): the primes, the generators ω of the
// exponentials and the keys of the functions that the field knows by name only. Cheap to share, not
// to copy.
class FieldModel {
 public:
  FieldModel(FieldSize size, uint64_t seed, Signs signs = Signs::Character);
  ~FieldModel();
  FieldModel(FieldModel&&) noexcept;
  FieldModel& operator=(FieldModel&&) noexcept;

  FieldSize size() const { return size_; }
  uint64_t seed() const { return seed_; }
  Signs signs() const { return signs_; }
  // The prime of component 0, 1 or 2.
  uint64_t prime(int component) const;
  const FieldTables& tables() const { return *tables_; }

 private:
  FieldSize size_;
  uint64_t seed_;
  Signs signs_;
  std::unique_ptr<FieldTables> tables_;
};

// Words are Montgomery residues below the prime (u32 for 31 bits, u64 for 61): equality, hashing
// and random drawing need no conversion; `value` gives the plain residue.
struct FieldArray {
  DType dtype = DType::F32;
  FieldSize field = FieldSize::Bits61;
  std::vector<int64_t> shape;
  std::array<Buffer, 3> components;  // floats; empty where the component was not asked for
  Buffer flags;                      // u8 per element; empty when every element is defined
  std::vector<int64_t> ints;         // integers and bools

  // Flags of an element; NegInf is −∞, which only max, exp and data movement understand.
  enum Flag : uint8_t { Defined = 0, Undefined = 1, NegInf = 2 };

  int64_t size() const { return product_of(shape); }
  uint8_t present() const;  // mask of the components held
  uint8_t flag(int64_t i) const {
    return flags.empty() ? uint8_t(Defined) : flags.as<uint8_t>()[i];
  }
  uint64_t word(int component, int64_t i) const;
  // The residue in [0, prime) of a component, in plain (not Montgomery) form.
  uint64_t value(const FieldModel& model, int component, int64_t i) const;
  void set_value(const FieldModel& model, int component, int64_t i, uint64_t residue);
  // An array of the given values: exact images of integers in all three components.
  static FieldArray of_integers(const FieldModel& model, DType dtype, std::vector<int64_t> shape,
                                const std::vector<int64_t>& values);
};

}  // namespace tessera
