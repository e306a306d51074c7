// The domain of terms: every element is the expression that computes it, kept as a keyed hash.
// Equal words (under two keys) are equal expressions up to what IEEE 754 guarantees bit for bit, so
// equal bits for all inputs; NaN counts as NaN, whatever its payload.
#pragma once
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "eval/tensor.h"
#include "ir/graph.h"

namespace tessera {

// Whether a pointwise operator on this dtype rounds exactly as IEEE 754 says, so that its bits hang
// on nothing but its operands' bits. Not so: functions of a library, extrema of floats (of zeros of
// both signs each library takes the one it likes), casts of floats to integers (which leave open
// what becomes of large ones).
bool rounds_exactly(const Graph& graph, const Op& op);

struct TermDomain {
  struct Vec {};  // terms are not computed in runs
  using Chunk = Vec;
  static constexpr size_t kWord = 8;
  static constexpr bool kIsField = false, kIsTerm = true;
  uint64_t key = 0;
  // By tensor of the kernel graph: how it lies in memory, as far as its order of axes and its
  // distances can be told: the order in which a library adds hangs on that.
  std::vector<uint64_t> layout;

  TermDomain(const Graph& graph, uint64_t key);

  static uint8_t value_planes(uint8_t) { return 1; }
  static bool may_flag(OpKind) { return false; }
  void set_scalar(const View& v, const Rational& c) const {
    *v.as<uint64_t>(0) = constant(v.dtype, c);
  }
  // Values of 16 bits that are not rounded to them are others.
  void round(const View& v, Level level) const;

  uint64_t input(size_t number, int64_t element) const;
  uint64_t constant(DType dtype, const Rational& c) const;
  // What an operator's bits hang on besides its operands' terms; 0: nothing.
  uint64_t context(const Graph& graph, const Op& op, Level level) const;
  // `in` has the shape of `out`.
  void pointwise(const Op& op, const View* in, int count, const View& out, uint64_t context,
                 ThreadPool* pool) const;
  // Result number `result` as an unknown function of the whole operands.
  void function(const Op& op, const std::vector<View>& in, const View& out, uint64_t context,
                uint32_t result = 0) const;

 private:
  uint64_t mix(uint64_t a, uint64_t b) const;
  uint64_t negated(uint64_t term) const;
  uint64_t apply(const Op& op, DType operand, DType result, const uint64_t* x, int count,
                 uint64_t context) const;
  uint64_t product(OpKind kind, DType dtype, uint64_t x, uint64_t y) const;
  uint64_t sum(DType dtype, uint64_t x, uint64_t y) const;
};

}  // namespace tessera
