// What field evaluation and redrawing share: views of input arrays, checks, opaque functions, and
// the streams inputs are drawn from. Internal to eval/.
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

template <class W>
typename Interpreter<FieldDomain<W>>::Opaque opaque_function(const FieldModel& model) {
  const ChainTables<W>& chain = model.tables().get<W>();
  // A keyed function of all operands together; every result element has its own.
  return [&chain](const Op& op, const std::vector<View>& in, std::vector<View>& out) {
    const auto& a = std::get<OpaqueAttrs>(op.attrs);
    uint64_t hash = chain.function_key(Keyed::Opaque, 0);
    for (const std::string* text : {&a.function, &a.payload}) {
      for (unsigned char ch : *text) hash = keyed_hash(hash, ch);
      hash = keyed_hash(hash, 256);
    }
    bool defined = true;
    for (const View& v : in) {
      const int64_t n = v.size();
      Walker<1> walk(v, {&v});
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = walk.offset(0);
        hash = keyed_hash(hash, is_float(v.dtype) ? uint64_t(v.as<const W>(0)[at])
                                                  : uint64_t(v.as<const int64_t>(0)[at]));
        if (v.flagged() && v.as<const uint8_t>(kFlagPlane)[at] != 0) defined = false;
        if (i + 1 < n) walk.advance(1);
      }
      hash = keyed_hash(hash, uint64_t(n));
    }
    for (size_t r = 0; r < out.size(); ++r) {
      const View& v = out[r];
      for (int64_t i = 0; i < v.size(); ++i) {
        const uint64_t element = keyed_hash(derive_key(hash, r), uint64_t(i));
        if (!is_float(v.dtype)) v.as<int64_t>(0)[i] = wrap_to(v.dtype, int64_t(element));
        for (int c = 0; is_float(v.dtype) && c < 3; ++c) {
          if (v.plane[size_t(c)] == nullptr) continue;
          v.as<W>(c)[i] = chain.element(c, derive_key(element, uint64_t(c)));
        }
        v.as<uint8_t>(kFlagPlane)[i] = defined ? FieldArray::Defined : FieldArray::Undefined;
      }
    }
  };
}

extern template class Interpreter<FieldDomain<uint32_t>>;
extern template class Interpreter<FieldDomain<uint64_t>>;

}  // namespace tessera
