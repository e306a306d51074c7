#include "verify/funnel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/deadline.h"
#include "base/error.h"
#include "base/interruption.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "eval/eval.h"
#include "ir/special.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "ir/walk.h"
#include "ir/written.h"
#include "verify/all_sizes.h"
#include "verify/any_functions.h"
#include "verify/bitwise.h"
#include "verify/inputs.h"
#include "verify/integers.h"
#include "verify/interface.h"
#include "verify/regions.h"
#include "verify/static_test.h"
#include "verify/symmetry.h"

namespace tessera {
namespace {

constexpr size_t kMostBeyond = 4;  // choices of extents beyond the programs' numbers
constexpr double kLongest = 300;

// Which elements representatives stand for: "O 192 of 14336 on axis 1".
std::string representatives(const Graph& g, const std::vector<TensorId>& tensors,
                            const std::vector<KeptPositions>& positions) {
  std::string text;
  for (size_t k = 0; k < tensors.size(); k++) {
    const Tensor& t = g.tensor(tensors[k]);
    for (size_t d = 0; d < positions[k].size(); d++)
      if (positions[k][d])
        text += (text.empty() ? "" : ", ") + (t.name.empty() ? "output" : t.name) + " " +
                std::to_string(positions[k][d]->size()) + " of " + t.type.shape[d].str() +
                " on axis " + std::to_string(d);
  }
  return text;
}

}  // namespace

struct Verifier::State {
  Graph spec;
  VerifyOptions options;
  uint64_t seed;
  std::optional<ThreadPool> threads;
  std::string step;      // what was told last
  std::string unproved;  // where programs that differ in regions first could not be proved equal
  // Originals that were evaluated: the spec, or representatives of it, by structural hash.
  struct Original {
    Graph graph;
    Reference reference;
    Original(Graph g, ThreadPool* pool) : graph(std::move(g)), reference(graph, pool) {}
  };
  std::map<uint64_t, std::unique_ptr<Original>> originals;

  State(Graph g, VerifyOptions o)
      : spec(std::move(g)), options(o), seed(o.seed ? *o.seed : seed_from_system()) {
    validate(spec);
    options.special |= asks_for_nan(spec);
    options.progress = [this, tell = std::move(options.progress)](const std::string& now) {
      step = now;
      if (tell) tell(now);
    };
    if (options.threads != 1) threads.emplace(options.threads);
  }
  ThreadPool* pool() { return threads ? &*threads : nullptr; }
  Reference& reference(const Graph& g) {
    if (originals.size() > 8) originals.clear();  // what they hold can be large
    auto& o = originals[structural_hash(g)];
    if (!o || !(o->graph == g)) o = std::make_unique<Original>(g, pool());
    return o->reference;
  }
  Verdict verify(const Graph& candidate, const Graph* between);
  // Rewrites that one search finds fail alike: inputs that refuted one are tried first.
  std::optional<Counterexample> last;
  std::optional<Verdict> fails_alike(const Graph& candidate);
  static constexpr int kHopeless = 3;
  int undefined = 0;  // rewrites that were not compared as a whole, see kNeverDefined
  Verdict interruptibly(const Graph& candidate, const Graph* between);
  Verdict with_second_opinion(const Graph& candidate, Verdict first) const;
  // Of integers equal values are equal bits.
  bool by_terms(const Graph& candidate) const {
    return options.level == Accuracy::Bitwise &&
           !(is_integer_program(spec) && is_integer_program(candidate));
  }
  bool prove_each(const Graph& candidate, Rng seeds, Certificate& c);
  bool in_regions(const Graph& a, const Graph& b, Rng seeds, int binding, Certificate& c);
  bool by_way_of(const Graph& between, const Graph& candidate, const Rng& seeds, Certificate& c);
  std::optional<Verdict> compare(const Graph& candidate, const Rng& seeds, Certificate& c);
  std::optional<Verdict> with_functions(const Graph& candidate, const Certificate& about) const;
};

Verifier::Verifier(Graph spec, VerifyOptions options)
    : state_(std::make_unique<State>(std::move(spec), options)) {}
Verifier::~Verifier() = default;
Verifier::Verifier(Verifier&&) noexcept = default;
Verifier& Verifier::operator=(Verifier&&) noexcept = default;

Verdict Verifier::verify(const Graph& candidate, const Graph* between) {
  State& s = *state_;
  const std::atomic<bool>* const callers = s.options.cancel;
  std::optional<Deadline> deadline;
  if (s.options.seconds) {
    deadline.emplace(*s.options.seconds, nullptr, callers);
    s.options.cancel = deadline->hard();
  }
  s.step = "the interface";
  s.unproved.clear();
  Verdict verdict = s.interruptibly(candidate, between);
  if (verdict.refuted() && verdict.counterexample().kind == Difference::Precision)
    s.last = verdict.counterexample();
  if (verdict.unknown() && !s.unproved.empty())
    verdict = Unknown{verdict.why_unknown().reason,
                      verdict.why_unknown().what + "; the first value that could not be proved " +
                          "equal is " + s.unproved};
  if (s.options.second_opinion && verdict.equal()) {
    s.options.progress("second opinion");
    verdict = s.with_second_opinion(candidate, std::move(verdict));
  }
  s.options.cancel = callers;
  if (!verdict.unknown() || verdict.why_unknown().reason != UnknownReason::Cancelled)
    return verdict;
  const bool late = deadline && !(callers != nullptr && callers->load());
  return Unknown{late ? UnknownReason::Time : UnknownReason::Cancelled,
                 (late ? "the time allowed, " + significant(*s.options.seconds, 6) + " s, was spent"
                       : std::string("cancelled by the caller")) +
                     "; under way: " + s.step};
}

// Polls are not everywhere where it takes long.
Verdict Verifier::State::interruptibly(const Graph& candidate, const Graph* between) {
  try {
    const Interruptible scope(options.cancel);
    if (auto v = fails_alike(candidate)) return *v;
    return verify(candidate, between);
  } catch (const Interrupted&) {
    originals.clear();  // what was under way
    return Unknown{UnknownReason::Cancelled, "cancelled by the caller"};
  } catch (const Error& error) {  // of an operator that has no meaning in numbers
    if (error.kind() != ErrorKind::Unsupported) throw;
    return Unknown{UnknownReason::Unsupported, error.message()};
  }
}

std::optional<Verdict> Verifier::State::fails_alike(const Graph& candidate) {
  constexpr double kPlainly = 8;  // so many times what is allowed, which hangs on the rewrite
  if (!last || !std::isfinite(last->spec) || !symbols_of({&spec, &candidate}).empty()) return {};
  validate(candidate);
  if (interface_difference(spec, candidate)) return {};
  std::vector<NDArray> inputs;
  for (const ConcreteTensor& t : last->inputs) {
    if (!(t.type == spec.type(spec.inputs()[inputs.size()])))
      return {};  // of tiles of the programs
    inputs.push_back({t.type.dtype, extents(t.type.shape), t.reals, t.ints});
  }
  const NDArray y = eval(candidate, inputs, {Precision::Native, pool(), {}})[size_t(last->output)];
  size_t at = 0;
  for (size_t d = 0; d < y.shape.size(); d++)
    at = at * size_t(y.shape[d]) + size_t(last->position[d]);
  if (y.reals.empty() || std::fabs(y.reals[at] - last->spec) <= kPlainly * last->allowed) return {};
  last->candidate = y.reals[at];
  return Refuted{*last};
}

Verdict Verifier::State::with_second_opinion(const Graph& candidate, Verdict first) const {
  const Binding& binding = first.certificate().bindings.at(0);
  SecondOpinionOptions o;
  o.z3 = options.z3;
  o.seed = seed;
  o.cancel = options.cancel;
  const auto cut = with_any_functions(spec, candidate);
  const Graph &a = cut ? cut->spec : spec, &b = cut ? cut->candidate : candidate;
  return after(std::move(first),
               second_opinion(bind_symbols(a, binding), bind_symbols(b, binding), o));
}

// Of programs that hold operators which are not looked into; `about` them.
std::optional<Verdict> Verifier::State::with_functions(const Graph& candidate,
                                                       const Certificate& about) const {
  const auto cut = with_any_functions(spec, candidate);
  if (!cut && !calls_any_functions(spec) && !calls_any_functions(candidate)) return std::nullopt;
  if (!cut)
    return Unknown{UnknownReason::Unsupported,
                   "the programs hold other operators that are not looked into, or more of them"};
  VerifyOptions o = options;
  o.seed = seed;
  o.seconds = std::nullopt;
  o.second_opinion = false;
  const bool bits = o.level == Accuracy::Bitwise;
  o.special |= !bits && !cut->follow_alike();  // results may be infinite or none
  const Verdict verdict = Verifier(cut->spec, o).verify(cut->candidate);
  if (verdict.refuted())
    return Unknown{UnknownReason::Unsupported,
                   "what operators that are not looked into are given, or what follows from their "
                   "results, is not the same: " +
                       verdict.counterexample().what};
  if (!verdict.equal()) return verdict;
  if (!bits && !Verifier(cut->operands(cut->candidate), o).verify(cut->operands(cut->spec)).equal())
    return Unknown{UnknownReason::Undefined,
                   "what operators that are not looked into are given may be undefined in the "
                   "original alone, and they may make a number of it"};
  Certificate c = verdict.certificate();
  c.spec_hash = about.spec_hash;
  c.candidate_hash = about.candidate_hash;
  c.inputs = about.inputs;
  c.outputs = about.outputs;
  c.notes.insert(c.notes.begin(), about.notes.begin(), about.notes.end());
  c.notes.emplace_back(kAnyFunctions);
  for (const std::string& text : about.assumptions) add_once(c.assumptions, text);
  return Equal{std::move(c)};
}

Verdict after(Verdict equal, const SecondOpinion& opinion) {
  if (opinion.opinion == Opinion::Disagrees)
    return Unknown{UnknownReason::SecondOpinion,
                   "the verifier found the programs equal, a second opinion " + opinion.str() +
                       "; one of the two is wrong, please report it"};
  Certificate c = equal.certificate();
  c.second_opinion = opinion.str();
  return Equal{std::move(c)};
}

Acceptance Verifier::accept(Graph candidate, const Graph* between) {
  Verdict v = verify(candidate, between);
  if (!v.equal()) return {std::move(v), std::nullopt};
  Certificate c = v.certificate();
  return {std::move(v), Verified(state_->spec, std::move(candidate), std::move(c))};
}

// Cheap programs that could not be compared as a whole: only where they differ.
bool Verifier::State::prove_each(const Graph& candidate, Rng seeds, Certificate& c) {
  return std::max(evaluation_cost(spec), evaluation_cost(candidate)) <= options.whole_cost &&
         prove_regions(spec, candidate, options, seeds.split(62), pool(), 0, c);
}

// Expensive programs: only where they differ.
bool Verifier::State::in_regions(const Graph& a, const Graph& b, Rng seeds, int binding,
                                 Certificate& c) {
  return std::max(evaluation_cost(a), evaluation_cost(b)) > options.whole_cost &&
         !is_integer_program(a) &&
         prove_regions(a, b, options, seeds, pool(), binding, c, &unproved);
}

// Static programs: both are equal to a third one, in regions each. Else says nothing.
bool Verifier::State::by_way_of(const Graph& between, const Graph& candidate, const Rng& seeds,
                                Certificate& c) {
  validate(between);
  if (interface_difference(spec, between)) return false;
  VerifyOptions half = options;
  half.error_log2 -= 1;
  Certificate both = c, second;
  if (!prove_regions(spec, between, half, seeds.split(60), pool(), 0, both) ||
      !prove_regions(between, candidate, half, seeds.split(61), pool(), 0, second))
    return false;
  both.between = print(between);
  const int first = int(both.parts.size());
  for (CertificatePart& p : second.parts) both.parts.push_back({p.binding, p.text, true});
  for (FieldDraw& d : second.draws) both.draws.push_back(d), both.draws.back().part += first;
  for (GateFamily& g : second.gate) both.gate.push_back(g), both.gate.back().part += first;
  for (const std::string& s : second.assumptions) add_once(both.assumptions, s);
  for (const std::string& s : second.notes) add_once(both.notes, s);
  if (first == 0 || (!second.parts.empty() && second.min_draws < both.min_draws))
    both.min_draws = second.min_draws;
  both.coverage += "; from there on: " + second.coverage;
  both.error_log2 = std::log2(std::exp2(both.error_log2) + std::exp2(second.error_log2));
  both.bound = "the sum of the bounds of " + std::to_string(both.parts.size()) + " regions";
  if (both.basis == "proved" || both.basis.empty())
    both.basis = second.basis;
  else if (second.basis != "proved" && second.basis != both.basis)
    both.basis += "; " + second.basis;
  c = std::move(both);
  return true;
}

// Static programs: as they are, or representatives of them where they are expensive.
std::optional<Verdict> Verifier::State::compare(const Graph& candidate, const Rng& seeds,
                                                Certificate& c) {
  if (std::max(evaluation_cost(spec), evaluation_cost(candidate)) > options.whole_cost &&
      !is_integer_program(spec)) {
    const Symmetry symmetry({&spec, &candidate});
    if (const auto kept = symmetry.choose(options.whole_cost, 2, seeds.split(3))) {
      if (const auto tiles = symmetry.restrict_both(*kept)) {
        const auto inputs = symmetry.input_positions(*kept),
                   outputs = symmetry.output_positions(*kept);
        c.tiles = numbers_of(*kept);
        c.coverage = "representative tiles (" + representatives(spec, spec.outputs(), outputs) +
                     "); along these axes both programs do the same for every tile";
        auto v = test_static(reference(tiles->first), tiles->second, options, seeds, 0, c,
                             {&spec, &candidate});
        if (v && v->refuted()) {
          Counterexample shown = v->counterexample();
          expand(shown, spec, inputs, outputs);
          return Refuted{std::move(shown)};
        }
        return v;
      }
    }
  }
  return test_static(reference(spec), candidate, options, seeds, 0, c);
}

Verdict Verifier::State::verify(const Graph& candidate, const Graph* between) {
  validate(candidate);
  if (auto d = interface_difference(spec, candidate)) return Refuted{std::move(*d)};
  Certificate c;
  c.spec_name = spec.name();
  c.candidate_name = candidate.name();
  c.spec_hash = structural_hash(spec);
  std::string weights;
  for (TensorId t : spec.inputs())
    if (spec.is_weight(t)) weights += (weights.empty() ? "" : ", ") + spec.tensor(t).name;
  if (!weights.empty())
    c.notes.push_back("weights, the same in every call: " + weights +
                      "; what depends on them alone is computed once per set of arrays");
  for (const Op& op : candidate.ops())
    if (const auto a = written_kernel(candidate, op))
      c.notes.push_back("proved up to the body of pattern " + a->pattern + " (" +
                        a->source.substr(0, 12) +
                        "): a person wrote its code, which was run against its meaning by "
                        "`patterns check` and is not proved");
  const std::array<const Graph*, 2> both = {&spec, &candidate};
  for (const Graph* g : both)
    any_op(*g, [&](const Graph&, const Op& op) {
      if (const auto* a = std::get_if<CustomAttrs>(&op.attrs); a != nullptr && !a->law.empty())
        add_once(c.assumptions, "operator " + a->name + " = " + a->value + " is " + a->law +
                                    ", as it says of itself; numbers of many sizes agree");
      return false;
    });
  c.candidate_hash = structural_hash(candidate);
  c.seed = seed;
  c.level = options.level;
  for (TensorId t : spec.inputs()) c.inputs.push_back(describe(spec, t));
  for (TensorId t : spec.outputs()) c.outputs.push_back(describe(spec, t));
  if (auto v = with_functions(candidate, c)) return *v;
  c.coverage = kWhole;
  const Rng seeds(c.seed);

  const std::vector<std::string> symbols = symbols_of({&spec, &candidate});
  if (symbols.empty()) {
    c.bindings.push_back({});
    if (by_terms(candidate)) {
      if (auto v = test_bitwise(reference(spec), candidate, options, seeds, 0, c)) return *v;
      return Equal{std::move(c)};
    }
    if (between && !is_integer_program(spec) && by_way_of(*between, candidate, seeds, c))
      return Equal{std::move(c)};
    if (in_regions(spec, candidate, seeds, 0, c)) return Equal{std::move(c)};
    if (undefined >= kHopeless) return Unknown{UnknownReason::Undefined, kNeverDefined};
    const Certificate before = c;
    const auto v = compare(candidate, seeds, c);
    if (!v) return Equal{std::move(c)};
    undefined += v->unknown() && v->why_unknown().what == kNeverDefined;
    // What is decided in one place is seen best where the rest is a free input.
    if (Certificate parts = before; v->unknown() && prove_each(candidate, seeds, parts))
      return Equal{std::move(parts)};
    return *v;
  }
  // Random extents, different for different symbols where there is room; each symbol also has one
  // beyond what the programs' numbers may stand for.
  Rng rng = seeds.split(7);
  std::string why;
  std::set<double> numbers;
  for (const Graph* g : both) {
    constants_of(*g, numbers);
    for (const Tensor& t : g->tensors())
      if (const DType d = t.type.dtype; d == DType::I8 || d == DType::U8 || d == DType::BF16)
        numbers.insert(256);  // beyond which they count no further
  }
  std::vector<Binding> beyond;
  for (auto n = numbers.rbegin(); n != numbers.rend(); ++n)
    for (const std::string& s : symbols)
      if (*n > 11 && *n < kLongest && *n == std::floor(*n) && beyond.size() < kMostBeyond)
        beyond.push_back({{s, int64_t(*n) + 1}});
  for (int attempt = 0; attempt < 50; attempt++) {
    Binding binding;
    if (int(c.bindings.size()) >= options.bindings) {
      if (beyond.empty()) break;
      binding = beyond.back();
      beyond.pop_back();
    }
    const std::string far = binding.empty() ? "" : binding[0].first;
    for (const std::string& s : symbols) {
      if (s == far) continue;
      int64_t extent = 1;
      for (bool fresh = false; !fresh;) {
        extent = rng.between(attempt == 0 ? 2 : 1, 12 + int64_t(symbols.size()));
        fresh = std::ranges::none_of(binding, [&](const auto& b) { return b.second == extent; });
      }
      binding.emplace_back(s, extent);
    }
    std::optional<Graph> a, b;
    try {
      a = bind_symbols(spec, binding);
      b = bind_symbols(candidate, binding);
      tessera::validate(*a);
      tessera::validate(*b);
    } catch (const Error& e) {
      why = e.message();
      continue;
    }
    // Of what is beyond, that which is cheap.
    if (!far.empty() && std::max(evaluation_cost(*a), evaluation_cost(*b)) > options.whole_cost)
      continue;
    c.bindings.push_back(binding);
    const int index = int(c.bindings.size()) - 1;
    const Rng own = seeds.split(uint64_t(50 + index));
    if (by_terms(*b)) {
      if (auto v = test_bitwise(reference(*a), *b, options, own, index, c)) return *v;
      continue;
    }
    if (in_regions(*a, *b, own, index, c)) continue;
    if (auto v = test_static(reference(*a), *b, options, own, index, c)) return *v;
  }
  if (c.bindings.empty())
    return Unknown{UnknownReason::Unsupported,
                   "no extents of the symbols fit both programs: " + why};
  c.coverage = "all elements of all outputs, at the shapes bound above";
  AllSizes all{false, "normal forms say nothing of bits"};
  if (!by_terms(candidate)) all = equal_for_all_sizes(spec, candidate, c.seed);
  if (all.proved)
    c.all_sizes = all.what;
  else
    c.notes.push_back("symbolic shapes: tested at " + std::to_string(c.bindings.size()) +
                      " bindings, not proved for all shapes: " + all.what);
  return Equal{std::move(c)};
}

Verdict verify(const Graph& spec, const Graph& candidate, const VerifyOptions& options) {
  return Verifier(spec, options).verify(candidate);
}

Acceptance accept(const Graph& spec, Graph candidate, const VerifyOptions& options) {
  return Verifier(spec, options).accept(std::move(candidate));
}

}  // namespace tessera
