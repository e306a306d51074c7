// What a program means: evaluation of a graph over floats, over finite fields, and with running
// magnitudes. Every operator has one reference meaning (eval/pointwise.h, eval/interpreter*.h), and
// all evaluations below instantiate it over their own domain.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "eval/field_array.h"
#include "eval/ndarray.h"
#include "ir/graph.h"

namespace tessera {

// --- floats -----------------------------------------------------------------------------------

enum class Precision {
  Exact,   // every float tensor in f64, nothing rounded: the reference
  Wide,    // with magnitudes only: programs that hold f64 in long double (at least 11 more bits of
           // significand and 4 of exponent), as they cannot be their own reference; else Exact
  Native,  // as the program says: kernel-level tensors round to their dtype, block- and
           // thread-level values of 16-bit programs are f32 until they are cast, f32 arithmetic in
           // f32
  Unbounded,  // rounded to as many digits, but of numbers up to f64's largest: nothing overflows
};

// Gives an opaque operator its meaning: results of the types in its attributes.
using OpaqueFunction = std::function<std::vector<NDArray>(const Op&, const std::vector<NDArray>&)>;

// Elements that are taken for others wherever they are computed, what follows included: what is
// within 1e-11 of one of `values`, which ascend, for `by`, and of its negative for -by.
struct Substitution {
  std::vector<double> values;
  double by = 0;

  bool holds(double x) const {
    if (!std::isfinite(x)) return false;
    const double near = 1e-11 * std::abs(x);
    const auto above = std::ranges::lower_bound(values, x - near);
    return above != values.end() && *above <= x + near;
  }
};

struct EvalOptions {
  Precision precision = Precision::Exact;
  ThreadPool* pool = nullptr;  // null: the calling thread only; results never depend on it
  OpaqueFunction opaque;       // empty: opaque operators throw Error(Unsupported)
  std::vector<Substitution> supposed{};  // the first that holds counts
};

// The outputs of a kernel graph with static shapes. Throws Error(BadInput) when `inputs` do not
// have the types of the graph's inputs.
std::vector<NDArray> eval(const Graph& graph, const std::vector<NDArray>& inputs,
                          const EvalOptions& options = {});

// A value and the first-order scale of its rounding error: Σ|terms| for sums of products, carried
// through the other operators by their derivatives (|x| at the inputs; for exp e^x·max(1, scale)).
struct WithMagnitude {
  NDArray value, magnitude;
  std::vector<double> rest;  // what `value` lacks of a wide result; else empty

  double error(size_t i, double x) const {
    const double off = x - value.reals[i];
    return std::fabs(rest.empty() ? off : off - rest[i]);
  }
};
std::vector<WithMagnitude> eval_with_magnitude(const Graph& graph,
                                               const std::vector<NDArray>& inputs,
                                               const EvalOptions& options = {});

// --- finite fields ----------------------------------------------------------------------------

// Component sets are bit masks: 1 = p, 2 = q (inside one exp), 4 = r (inside two).
using Components = uint8_t;

// Which components of each input are needed for these components of the outputs.
std::vector<Components> needed_components(const Graph& graph, Components outputs = 1);

// Uniformly random inputs; element i of input k depends on (model, k, i, component, round 0) only,
// so two graphs with the same inputs get the same values. Integer inputs are uniform in
// [0, int_bound), bools are fair coins. `components` is usually the union over both programs.
std::vector<FieldArray> draw_inputs(const Graph& graph, const FieldModel& model,
                                    const std::vector<Components>& components,
                                    int64_t int_bound = 2, ThreadPool* pool = nullptr);

struct DeemedPoles;  // eval/field.h

// A quadratic character that was asked for, by a sign test or by a root.
struct FieldCharacter {
  uint64_t word = 0;  // of what
  int value = 0;      // −1, 0 or 1
  bool is_root = false;
};
using FieldCharacters = std::vector<FieldCharacter>;

struct FieldOptions {
  Components outputs = 1;  // of float outputs
  ThreadPool* pool = nullptr;
  // Not 0: of a kernel whose results no operator reads, only this many blocks are evaluated (the
  // first, the last and some between); what the others would save is undefined.
  int sample_blocks = 0;
  // Redrawing only: looks at roots and what they need, half of which are undefined; a denominator
  // hardly ever is zero, and to find out takes an evaluation of nearly everything.
  bool roots_only = false;
  // Redrawing only: roots are to be defined in every component the inputs hold, not only where the
  // outputs need them.
  bool all_components = false;
  // Redrawing only: set from elsewhere, it ends that before its next round.
  const std::atomic<bool>* cancel = nullptr;
  const DeemedPoles* deemed = nullptr;    // in place of all else that is undefined
  FieldCharacters* characters = nullptr;  // not null: is given all, without a pool
};

struct FieldResult {
  std::string unsupported;  // not empty: why the graph has no field meaning; no outputs then
  std::vector<FieldArray> outputs;
  bool ok() const { return unsupported.empty(); }
};
// Inputs must hold at least needed_components(graph, options.outputs).
FieldResult eval_field(const Graph& graph, const FieldModel& model,
                       const std::vector<FieldArray>& inputs, const FieldOptions& options = {});

// Draws again the input elements that feed undefined elements (zero denominators, roots of
// non-residues) and no defined ones; where that leaves nothing, all that feed undefined ones.
// Repeats until everything the outputs need is defined, at most `rounds` times.
struct RedrawReport {
  std::string unsupported;
  int rounds = 0;               // evaluations done
  int64_t redrawn = 0;          // input elements replaced, over all rounds
  int64_t still_undefined = 0;  // undefined intermediate elements left at the end
  bool ok() const { return unsupported.empty() && still_undefined == 0; }
};
RedrawReport redraw_inputs(const Graph& graph, const FieldModel& model,
                           std::vector<FieldArray>& inputs, int rounds = 64,
                           const FieldOptions& options = {});

// Compares a candidate's output with the original's: elements where the original is undefined do
// not count, and where it is defined the candidate must be too.
struct FieldComparison {
  int64_t compared = 0;
  int64_t different = 0;
  int64_t undefined = 0;  // original defined, candidate not
  int64_t skipped = 0;    // original undefined
  int64_t first_difference = -1;
  bool equal() const { return different == 0 && undefined == 0; }
};
FieldComparison compare(const FieldArray& original, const FieldArray& candidate);

// True when the graph uses operators that are only modelled in the field (order, roots, keyed
// functions, more than two nested exponentials), so that a mismatch there does not refute equality.
bool has_modelled_operators(const Graph& graph);

}  // namespace tessera
