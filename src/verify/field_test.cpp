#include "verify/field_test.h"

#include <algorithm>

#include "base/counter_rng.h"
#include "base/rng.h"
#include "eval/demand.h"
#include "ir/walk.h"

namespace tessera {
namespace {

bool any_undefined(const std::vector<FieldArray>& outputs) {
  for (const FieldArray& a : outputs)
    for (int64_t i = 0; !a.flags.empty() && i < a.size(); i++)
      if (a.flag(i) & FieldArray::Undefined) return true;
  return false;
}

// Whether an element is undefined in the candidate only.
bool less_defined(const std::vector<FieldArray>& candidate, const std::vector<FieldArray>& spec) {
  for (size_t k = 0; k < candidate.size(); k++)
    for (int64_t i = 0; !candidate[k].flags.empty() && i < candidate[k].size(); i++)
      if ((candidate[k].flag(i) & FieldArray::Undefined) &&
          !(spec[k].flag(i) & FieldArray::Undefined))
        return true;
  return false;
}

}  // namespace

std::string field_name(FieldSize size, Signs signs) {
  return std::string(size == FieldSize::Small    ? "small"
                     : size == FieldSize::Bits31 ? "p31"
                                                 : "p61") +
         (signs == Signs::Unknown ? "u" : "");
}

std::optional<NamedField> field_named(const std::string& name) {
  for (FieldSize size : {FieldSize::Bits31, FieldSize::Bits61})
    for (Signs signs : {Signs::Character, Signs::Unknown})
      if (name == field_name(size, signs)) return NamedField{size, signs};
  return std::nullopt;
}

std::vector<NDArray> tie_inputs(const Graph& spec, const Graph& candidate, uint64_t seed) {
  std::vector<NDArray> inputs =
      make_inputs(spec, "ties", seed, integer_ranges(spec, candidate, {-3, 3}));
  if (seed & 1) return inputs;
  // What sums over an axis is zero itself only where all of a row or column is.
  Rng rng = Rng(seed).split(1);
  for (NDArray& a : inputs) {
    if (a.reals.empty() || a.shape.empty()) continue;
    const size_t axis = rng.below(a.shape.size());
    int64_t inner = 1;
    for (size_t d = axis + 1; d < a.shape.size(); d++) inner *= a.shape[d];
    std::vector<bool> zero = mapped(a.shape[axis], [&](int64_t) { return rng.chance(0.3); });
    for (size_t i = 0; i < a.reals.size(); i++)
      if (zero[i / size_t(inner) % zero.size()]) a.reals[i] = 0;
  }
  return inputs;
}

// Components are drawn apart, but a number is zero in all of them or in none.
void zero_together(std::vector<FieldArray>& inputs) {
  for (FieldArray& a : inputs) {
    const auto plane = [&](size_t k) { return a.components[k].as<uint32_t>(); };
    for (int64_t i = 0; i < a.size(); i++) {
      bool zero = false;
      for (size_t k = 0; k < 3; k++) zero = zero || (!a.components[k].empty() && plane(k)[i] == 0);
      for (size_t k = 0; zero && k < 3; k++)
        if (!a.components[k].empty()) plane(k)[i] = 0;
    }
  }
}

std::vector<IntRange> ranges_of(const Graph& spec, const Graph& candidate,
                                const FieldDrawRequest& request) {
  // Small integers meet one another and 0; where they wrap, large ones tell.
  const bool wrapping = !request.ties && (request.seed & 1) != 0;
  return integer_ranges(spec, candidate,
                        wrapping ? IntRange{INT64_MIN, INT64_MAX} : IntRange{-8, 8});
}

std::vector<FieldArray> drawn_inputs(const Graph& spec, const Graph& candidate,
                                     const FieldDrawRequest& request, const FieldModel& model,
                                     const std::vector<Components>& components, ThreadPool* pool) {
  std::vector<FieldArray> inputs = draw_inputs(spec, model, components, 2, pool);
  const std::vector<NDArray> integers =
      draw_integers(spec, request.seed ^ 0x5bd1e995u, ranges_of(spec, candidate, request));
  for (size_t k = 0; k < inputs.size(); k++)
    if (!integers[k].ints.empty()) inputs[k].ints = integers[k].ints;
  if (request.ties) {
    const std::vector<NDArray> small = tie_inputs(spec, candidate, request.seed);
    for (size_t k = 0; k < inputs.size(); k++) {
      inputs[k].ints = small[k].ints;
      if (small[k].reals.empty()) continue;
      inputs[k] = FieldArray::of_integers(
          model, small[k].dtype, small[k].shape,
          std::vector<int64_t>(small[k].reals.begin(), small[k].reals.end()));
    }
  }
  for (int k = 0; k < 3; k++) {
    const uint64_t by = request.shift.by[size_t(k)];
    if (by == 0) continue;
    FieldArray& a = inputs[request.shift.input];
    for (int64_t i = 0; (a.present() >> k & 1) != 0 && i < a.size(); i++)
      a.set_value(model, k, i, (a.value(model, k, i) + by) % model.prime(k));
  }
  if (request.field == FieldSize::Small) zero_together(inputs);
  return inputs;
}

// Draws the components in exponents anew below a bound.
void bound_exponents(const FieldDrawRequest& request, const FieldModel& model,
                     Reference::Draw& draw) {
  if (request.exponent_bound == 0) return;
  draw.epoch++;
  for (size_t k = 0; k < draw.inputs.size(); k++) {
    FieldArray& a = draw.inputs[k];
    if (!(a.present() & 2) || !a.ints.empty()) continue;
    const CounterRng words{derive_key(derive_key(request.seed, k), draw.epoch)};
    for (int64_t i = 0; i < a.size(); i++)
      a.set_value(model, 1, i,
                  uint64_t((uint128(words.at(uint64_t(i))) * request.exponent_bound) >> 64));
  }
}

void compare_outputs(const FieldResult& s, const FieldResult& c, FieldDrawResult& result) {
  for (size_t k = 0; k < s.outputs.size(); k++) {
    const FieldArray &x = s.outputs[k], &y = c.outputs[k];
    const auto undefined = [](const FieldArray& a, int64_t i) {
      return (a.flag(i) & FieldArray::Undefined) != 0;
    };
    const FieldComparison f = compare(x, y);
    result.record.elements += f.compared;
    result.record.undefined += f.skipped + f.undefined;
    result.candidate_undefined += f.undefined;
    if (f.different > 0 && result.equal) {
      result.equal = false;
      result.output = int(k);
      result.index = f.first_difference;
    }
    std::vector<uint8_t> compared;
    for (int64_t i = 0; f.skipped + f.undefined > 0 && i < x.size(); i++) {
      result.both_undefined += undefined(x, i) && undefined(y, i);
      compared.push_back(!undefined(x, i) && !undefined(y, i));
    }
    result.compared.push_back(std::move(compared));
  }
}

FieldDrawResult field_draw(Reference& reference, const Graph& candidate,
                           const FieldDrawRequest& request) {
  const Graph& spec = reference.spec();
  const FieldModel model(request.field, request.seed, request.signs);
  FieldDrawResult result;
  FieldDraw& record = result.record;
  record.field = field_name(request.field, request.signs);
  for (int c = 0; c < 3; c++) record.primes.push_back(model.prime(c));
  record.seed = request.seed;
  record.exponent_bound = request.exponent_bound;
  record.redraws = request.redraws;

  std::vector<Components> components = needed_components(spec);
  const std::vector<Components> more = needed_components(candidate);
  for (size_t i = 0; i < components.size(); i++) components[i] |= more[i];
  const std::vector<IntRange> ranges = ranges_of(spec, candidate, request);
  FieldOptions options{1, reference.pool()};
  options.cancel = request.cancel;
  // Moves inputs at which `g` is undefined, by roots only or by anything; says whether any moved.
  auto redraw = [&](const Graph& g, Reference::Draw& draw, bool roots_only, bool all = false) {
    if (request.ties || request.redraws == 0) return false;
    FieldOptions what = options;
    what.roots_only = roots_only;
    what.all_components = all;
    // Roots are cheap to look at, and one of two components is no residue in three draws of four:
    // thousands of rows that all must be defined take some 48 rounds.
    const int rounds = roots_only ? std::min(64, 8 * request.redraws) : request.redraws;
    const int64_t redrawn = redraw_inputs(g, model, draw.inputs, rounds, what).redrawn;
    if (redrawn > 0) bound_exponents(request, model, draw);
    return redrawn > 0;
  };
  // Then inputs are redrawn before the first evaluation, which rarely succeeds at once.
  const bool partial = any_op(spec, is_root);
  // A rewrite may look at a component that the original does not: at the size of exponents, where
  // it shifts them by a maximum. Its root of a product of norms is defined for all rows and columns
  // at once only if the norms have roots, for which it could not be drawn again one by one.
  const bool wider = components != needed_components(spec);
  auto evaluate_spec = [&](Reference::Draw& draw) {
    if (partial && wider) redraw(spec, draw, true, true);
    if (partial) redraw(spec, draw, true);
    draw.result = eval_field(spec, model, draw.inputs, options);
    if (draw.result.ok() && any_undefined(draw.result.outputs) && redraw(spec, draw, false))
      draw.result = eval_field(spec, model, draw.inputs, options);
  };

  Reference::Draw& shared = reference.draw({request.field,
                                            request.seed,
                                            request.exponent_bound,
                                            request.redraws,
                                            request.ties,
                                            request.signs,
                                            components,
                                            ranges,
                                            {request.shift.input, request.shift.by}});
  if (shared.result.outputs.empty() && shared.result.ok()) {
    shared.inputs = drawn_inputs(spec, candidate, request, model, components, reference.pool());
    bound_exponents(request, model, shared);
    evaluate_spec(shared);
    if (request.cancel != nullptr && request.cancel->load()) {
      shared = {};
      result.unsupported = "cancelled";
      return result;
    }
  }
  Reference::Draw moved;  // where only the candidate is undefined, inputs move for this pair alone
  const Reference::Draw* draw = &shared;
  FieldResult c;
  for (int round = 0; draw->result.ok(); round++) {
    c = eval_field(candidate, model, draw->inputs, options);
    if (!c.ok() || round == 5 || !less_defined(c.outputs, draw->result.outputs)) break;
    if (draw == &shared) {
      moved = shared;
      draw = &moved;
    }
    if (request.redraws == 0 || !redraw(candidate, moved, false)) break;
    evaluate_spec(moved);
  }
  const FieldResult& s = draw->result;
  if (!s.ok() || !c.ok()) {
    result.unsupported = s.ok() ? c.unsupported : s.unsupported;
    return result;
  }

  compare_outputs(s, c, result);
  return result;
}

}  // namespace tessera
