// One field draw of two programs: common inputs, redrawn where something is undefined, and the
// outputs compared element by element. The funnel decides how many draws and over which field.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "eval/eval.h"
#include "verify/certificate.h"
#include "verify/inputs.h"
#include "verify/reference.h"

namespace tessera {

// All numbers of an input moved by the same residue, in each component by its own.
struct FieldShift {
  size_t input = 0;
  std::array<uint64_t, 3> by{};
  friend auto operator<=>(const FieldShift&, const FieldShift&) = default;
};

struct FieldDrawRequest {
  FieldSize field = FieldSize::Bits61;
  uint64_t seed = 0;
  uint64_t exponent_bound = 0;  // see FieldDraw
  int redraws = 12;             // see FieldDraw
  bool ties = false;            // small integers in all components: comparisons meet equal operands
  Signs signs = Signs::Character;
  // Once it is set, nothing may be concluded from the result, and nothing of the draw is kept.
  const std::atomic<bool>* cancel = nullptr;
  FieldShift shift = {};  // of small fields
};

struct FieldDrawResult {
  std::string unsupported;  // not empty: the field gives (one of) the programs no meaning
  FieldDraw record;
  bool equal = true;
  int output = 0;      // of the first difference
  int64_t index = -1;  // its element; -1 when only definedness differs
  // Per output: which elements were compared; empty when all were.
  std::vector<std::vector<uint8_t>> compared;
  int64_t candidate_undefined = 0;  // elements where only the candidate is undefined
  int64_t both_undefined = 0;
};

// Both graphs have static shapes and the same interface. The result depends on the request only;
// what the original contributes is taken from `spec` where it is there already.
FieldDrawResult field_draw(Reference& spec, const Graph& candidate,
                           const FieldDrawRequest& request);

// What is drawn at first, of these components.
std::vector<FieldArray> drawn_inputs(const Graph& spec, const Graph& candidate,
                                     const FieldDrawRequest& request, const FieldModel& model,
                                     const std::vector<Components>& components,
                                     ThreadPool* pool = nullptr);

// The inputs of a draw with `ties`, as real numbers.
std::vector<NDArray> tie_inputs(const Graph& spec, const Graph& candidate, uint64_t seed);

// "small", "p31", "p61"; with unknown signs "p31u", "p61u".
std::string field_name(FieldSize, Signs);
struct NamedField {
  FieldSize size = FieldSize::Bits61;
  Signs signs = Signs::Character;
};
std::optional<NamedField> field_named(const std::string& name);

}  // namespace tessera
