#include "verify/field_test.h"

#include <algorithm>

#include "base/check.h"
#include "base/counter_rng.h"
#include "base/rng.h"

namespace tessera {
namespace {

bool any_undefined(const std::vector<FieldArray>& outputs) {
  for (const FieldArray& a : outputs)
    for (int64_t i = 0; !a.flags.empty() && i < a.size(); i++)
      if (a.flag(i) & FieldArray::Undefined) return true;
  return false;
}

// Has operators that are undefined for some operands: then inputs are redrawn before the first
// evaluation, which rarely succeeds at once.
bool is_partial(const Graph& g) {
  for (const Op& op : g.ops()) {
    if (op.kind == OpKind::Sqrt || op.kind == OpKind::Rsqrt) return true;
    if (op.kind == OpKind::Pow && !g.attrs<PowAttrs>(op).exponent.is_integer()) return true;
    if (op.body.valid() && is_partial(g.body(op))) return true;
  }
  return false;
}

}  // namespace

const char* field_name(FieldSize size) {
  switch (size) {
  case FieldSize::Bits31: return "p31";
  case FieldSize::Bits61: return "p61";
  }
  unreachable("FieldSize");
}

std::vector<NDArray> tie_inputs(const Graph& spec, const Graph& candidate, uint64_t seed) {
  std::vector<NDArray> inputs =
      make_inputs(spec, "ties", seed, integer_ranges(spec, candidate, {-3, 3}));
  return inputs;
}

FieldDrawResult field_draw(const Graph& spec, const Graph& candidate,
                           const FieldDrawRequest& request, ThreadPool* pool) {
  const FieldModel model(request.field, request.seed);
  FieldDrawResult result;
  FieldDraw& record = result.record;
  record.field = field_name(request.field);
  for (int c = 0; c < 3; c++) record.primes.push_back(model.prime(c));
  record.seed = request.seed;
  record.exponent_bound = request.exponent_bound;
  record.redraws = request.redraws;

  std::vector<Components> components = needed_components(spec);
  const std::vector<Components> more = needed_components(candidate);
  for (size_t i = 0; i < components.size(); i++) components[i] |= more[i];
  std::vector<FieldArray> inputs = draw_inputs(spec, model, components, 2, pool);
  const std::vector<IntRange> ranges = integer_ranges(spec, candidate, {-8, 8});
  Rng rng(request.seed ^ 0x5bd1e995u);
  for (size_t k = 0; k < inputs.size(); k++)
    for (int64_t& x : inputs[k].ints) x = rng.between(ranges[k].low, ranges[k].high);
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
  uint64_t epoch = 0;
  auto bound_exponents = [&] {
    if (request.exponent_bound == 0) return;
    epoch++;
    for (size_t k = 0; k < inputs.size(); k++) {
      FieldArray& a = inputs[k];
      if (!(a.present() & 2) || !a.ints.empty()) continue;
      const CounterRng words{derive_key(derive_key(request.seed, k), epoch)};
      for (int64_t i = 0; i < a.size(); i++)
        a.set_value(model, 1, i,
                    uint64_t((uint128(words.at(uint64_t(i))) * request.exponent_bound) >> 64));
    }
  };
  bound_exponents();

  const FieldOptions options{1, pool};
  FieldResult s, c;
  const bool partial = !request.ties && is_partial(spec);
  auto redraw = [&](const Graph& g) {
    if (request.ties) return int64_t(0);
    const int64_t redrawn = redraw_inputs(g, model, inputs, request.redraws, options).redrawn;
    if (redrawn > 0) bound_exponents();
    return redrawn;
  };
  for (int round = 0; round < 6; round++) {
    if (partial) redraw(spec);
    s = eval_field(spec, model, inputs, options);
    if (!s.ok()) break;
    if (!partial && any_undefined(s.outputs) && redraw(spec) > 0)
      s = eval_field(spec, model, inputs, options);
    c = eval_field(candidate, model, inputs, options);
    if (!c.ok() || round == 5 || !any_undefined(c.outputs)) break;
    // Where only the candidate is undefined, inputs move again; the next round evaluates both.
    if (redraw(candidate) == 0) break;
  }
  if (!s.ok() || !c.ok()) {
    result.unsupported = s.ok() ? c.unsupported : s.unsupported;
    return result;
  }

  for (size_t k = 0; k < s.outputs.size(); k++) {
    const FieldArray &x = s.outputs[k], &y = c.outputs[k];
    const FieldComparison f = compare(x, y);
    record.elements += f.compared;
    record.undefined += f.skipped + f.undefined;
    result.candidate_undefined += f.undefined;
    if (f.different > 0 && result.equal) {
      result.equal = false;
      result.output = int(k);
      result.index = f.first_difference;
    }
    std::vector<uint8_t> compared;
    if (f.skipped + f.undefined > 0) {
      compared.resize(size_t(x.size()));
      for (int64_t i = 0; i < x.size(); i++)
        compared[size_t(i)] =
            !(x.flag(i) & FieldArray::Undefined) && !(y.flag(i) & FieldArray::Undefined);
    }
    result.compared.push_back(std::move(compared));
  }
  return result;
}

}  // namespace tessera
