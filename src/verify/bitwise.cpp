#include "verify/bitwise.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "eval/interpreter.h"
#include "verify/inputs.h"
#include "verify/numeric_gate.h"
#include "verify/static_test.h"
#include "verify/work.h"

namespace tessera {
namespace {

// The terms of all outputs, one after the other.
std::vector<std::vector<uint64_t>> terms(const Graph& g, uint64_t key, ThreadPool* pool) {
  const TermDomain domain(g, key);
  Interpreter<TermDomain> interpreter(domain, pool);
  std::vector<View> values(g.tensors().size());
  std::vector<Arena> arenas;
  Arena inputs;
  for (size_t k = 0; k < g.inputs().size(); ++k) {
    const Type& type = g.type(g.inputs()[k]);
    View v = interpreter.allocate(inputs, type.dtype, type.rank(), to_array(extents(type.shape)), 1,
                                  false, false);
    for (int64_t i = 0, n = v.size(); i < n; ++i) v.as<uint64_t>(0)[i] = domain.input(k, i);
    values[g.inputs()[k].index] = v;
  }
  interpreter.run(g, find_demand(g, Components(1)), values, arenas);
  std::vector<std::vector<uint64_t>> found;
  for (TensorId t : g.outputs()) {
    const View& v = values[t.index];
    std::vector<uint64_t>& to = found.emplace_back(size_t(v.size()));
    if (to.empty()) continue;
    Walker<1> walk(v, {&v});
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = v.as<const uint64_t>(0)[walk.offset(0)];
      if (i + 1 < to.size()) walk.advance(1);
    }
  }
  return found;
}

bool same_bits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

std::string inexact_in(const Graph& g) {
  for (const Op& op : g.ops()) {
    if (op.body.valid()) {
      if (std::string why = inexact_in(g.body(op)); !why.empty()) return why;
      continue;
    }
    for (uint32_t r = 0; r < op.num_results; ++r)
      if (const DType d = g.type(op.result(r)).dtype; is_sixteen(d))
        return std::string(name(d)) + " numbers are computed with more bits by compiled code";
    const bool moves = has(op.kind, algebra::Movement) || is_leaf(op.kind) || is_tile(op.kind);
    if (!moves && !rounds_exactly(g, op))
      return std::string("'") + name(op.kind) +
             "' has bits that are the library's own (its order of sums, its functions, its choice "
             "among zeros)";
  }
  return "";
}

// Inputs at which two programs of exactly rounded operators have other bits.
std::optional<Counterexample> other_bits(Reference& reference, const Graph& candidate,
                                         const VerifyOptions& o, Rng seeds) {
  const Graph& spec = reference.spec();
  const std::vector<IntRange> ranges = integer_ranges(spec, candidate, {-8, 8});
  std::vector<std::string> families = input_families();
  families.insert(families.end(), {"few_special", "extreme", "decades", "negative"});
  for (uint64_t round = 0; round < 8; ++round)
    for (const std::string& family : families) {
      if (o.cancel != nullptr && o.cancel->load()) return std::nullopt;
      const std::vector<NDArray> inputs =
          make_inputs(spec, family, seeds.split(80 + round)(), ranges);
      const EvalOptions native{Precision::Native, reference.pool(), {}};
      Counterexample c;
      c.inputs = concrete(spec, inputs);
      std::vector<NDArray> a, b;
      try {
        a = eval(spec, inputs, native);
        b = eval(candidate, inputs, native);
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::BadInput) throw;
        if (a.empty()) continue;  // where the original fails nothing is asked
        c.kind = Difference::Definedness;
        c.what = "the rewrite fails where the original does not: " + e.message();
        return c;
      }
      for (size_t k = 0; k < a.size(); ++k)
        for (int64_t i = 0; i < a[k].size(); ++i) {
          const double x = a[k].at(size_t(i)), y = b[k].at(size_t(i));
          if (same_bits(x, y)) continue;
          c.kind = Difference::Precision;
          c.what = "the rewrite rounds otherwise: other bits (inputs: " + family + ")";
          c.output = int(k);
          c.position = position_of(a[k].shape, i);
          c.spec = x;
          c.candidate = y;
          return c;
        }
    }
  return std::nullopt;
}

}  // namespace

TermTest compare_terms(const Graph& spec, const Graph& candidate, uint64_t seed, ThreadPool* pool) {
  TermTest test;
  for (uint64_t k = 0; k < 2; ++k) {
    const uint64_t key = Rng(seed).split(k)();
    const auto a = terms(spec, key, pool), b = terms(candidate, key, pool);
    test.elements = 0;
    for (size_t o = 0; o < a.size(); ++o) {
      test.elements += int64_t(a[o].size());
      const auto differ = std::mismatch(a[o].begin(), a[o].end(), b[o].begin());
      if (differ.first == a[o].end()) continue;
      test.output = int(o);
      test.index = differ.first - a[o].begin();
      return test;
    }
  }
  test.equal = true;
  test.error_log2 = 2 * std::log2(std::max(2.0, count_work(spec) + count_work(candidate))) - 129;
  return test;
}

std::string inexact_operator(const Graph& graph) { return inexact_in(graph); }

std::optional<Verdict> test_bitwise(Reference& reference, const Graph& candidate,
                                    const VerifyOptions& o, Rng seeds, int binding,
                                    Certificate& certificate) {
  const Graph& spec = reference.spec();
  if (std::max(count_work(spec), count_work(candidate)) > double(o.max_macs))
    return Unknown{UnknownReason::Budget, "one evaluation over terms is more than the limit"};
  if (o.progress) o.progress("terms");
  FieldDraw draw;
  draw.field = "terms";
  draw.seed = seeds.split(1)();
  draw.binding = binding;
  TermTest test;
  try {
    test = compare_terms(spec, candidate, draw.seed, reference.pool());
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::BadInput) throw;
    return Unknown{UnknownReason::Unsupported, e.message()};
  }
  if (test.equal) {
    draw.elements = test.elements;
    certificate.draws.push_back(draw);
    certificate.min_draws = 1;
    certificate.error_log2 = certificate.bound.empty()
                                 ? test.error_log2
                                 : std::max(certificate.error_log2, test.error_log2);
    certificate.bound = "different terms that have the same two hashes of 64 bits";
    certificate.basis = "proved";
    return std::nullopt;
  }
  const bool exact = inexact_operator(spec).empty() && inexact_operator(candidate).empty();
  GateOptions gate;
  gate.seed = seeds.split(2)();
  gate.minimise = o.minimise;
  gate.cancel = o.cancel;
  try {
    if (auto c = exact ? other_bits(reference, candidate, o, seeds)
                       : find_difference(reference, candidate, gate))
      return Refuted{std::move(*c)};
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::BadInput) throw;
    return out_of_range(spec, candidate, seeds, e);
  }
  if (o.cancel != nullptr && o.cancel->load())
    return Unknown{UnknownReason::Cancelled, "cancelled by the caller"};
  const std::vector<int64_t> at =
      position_of(extents(spec.type(spec.outputs()[size_t(test.output)]).shape), test.index);
  std::string place;
  for (int64_t i : at) place += (place.empty() ? "" : ", ") + std::to_string(i);
  return Unknown{UnknownReason::Rounding,
                 "level bitwise: element [" + place + "] of output " + std::to_string(test.output) +
                     " is computed by other operations, and no inputs were found at which its bits "
                     "are others"};
}

}  // namespace tessera
