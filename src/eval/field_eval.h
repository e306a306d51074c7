// What field evaluation and redrawing share: views of input arrays, checks, and the streams
// inputs are drawn from. Internal to eval/.
#pragma once
#include "eval/eval.h"
#include "eval/interpreter.h"

namespace tessera {

// Calls f(W()) for the word type of a model.
template <class F> auto with_word(FieldSize size, F f) {
  return size == FieldSize::Bits61 ? f(uint64_t()) : f(uint32_t());
}

// Why a graph has no meaning in the field; empty when it has one.
std::string unsupported_in(const Graph& g, const FieldModel& model);
// Throws Error(BadInput) unless the inputs fit the graph and hold what it demands.
void check_field_inputs(const Graph& g, const FieldModel& model,
                        const std::vector<FieldArray>& inputs, const Demand& demand);
// A view of an input array's planes, without copying.
View view_of(const FieldArray& a);
// One view per tensor, of which those of the inputs are set.
std::vector<View> input_views(const Graph& g, const std::vector<FieldArray>& inputs);

// Draws component c of element i of input k for the given round.
struct InputStream {
  uint64_t seed;
  CounterRng at(size_t k, int component, int round) const {
    return CounterRng{derive_key(derive_key(derive_key(seed, 0x696e707574), uint64_t(k)),
                                 uint64_t(round) * 4 + uint64_t(component))};
  }
};

extern template class Interpreter<FieldDomain<uint32_t>>;
extern template class Interpreter<FieldDomain<uint64_t>>;

}  // namespace tessera
