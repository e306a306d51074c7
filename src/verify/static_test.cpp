#include "verify/static_test.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "eval/eval.h"
#include "verify/bound.h"
#include "verify/characters.h"
#include "verify/composition.h"
#include "verify/congruence.h"
#include "verify/coverage.h"
#include "verify/decisions.h"
#include "verify/definedness.h"
#include "verify/driven_inputs.h"
#include "verify/field_test.h"
#include "verify/integers.h"
#include "verify/interface.h"
#include "verify/numeric_gate.h"
#include "verify/rounded_decisions.h"
#include "verify/signs.h"
#include "verify/work.h"

namespace tessera {
namespace {

// Draws of one pair: many where elements are rarely all defined and evaluation is cheap.
int max_draws(double work) { return int(std::clamp(1e8 / std::max(1.0, work), 200.0, 2000.0)); }
constexpr int kTieDraws = 48;
constexpr int kIntegerDraws = 64;
// Proofs in parts: at most so many questions, each answered with an error so much smaller.
constexpr int kMaxPartTests = 256;
constexpr double kPartErrorLog2 = 8;
std::optional<Verdict> less_defined(const Graph& spec, const Graph& candidate,
                                    const std::vector<NDArray>& inputs, const std::string& why) {
  if (!is_defined_at(spec, inputs) || is_defined_at(candidate, inputs)) return std::nullopt;
  Counterexample c;
  c.kind = Difference::Definedness;
  c.what = "the original is defined and the rewrite is not: " + why;
  c.inputs = concrete(spec, inputs);
  c.position.resize(spec.type(spec.outputs()[0]).shape.size());
  return Refuted{std::move(c)};
}
bool is_cancelled(const VerifyOptions& o) { return o.cancel != nullptr && o.cancel->load(); }

// How certain the comparison of every output element is so far, as log2 of the probability that it
// agreed by chance. One number per output while all its elements were always compared.
class Coverage {
 public:
  explicit Coverage(const Graph& g) {
    for (TensorId t : g.outputs())
      outputs_.push_back({num_elements(g.type(t).shape), 0, 0, {}, {}});
  }
  void add(const FieldDrawResult& draw, double log2_miss) {
    for (size_t k = 0; k < outputs_.size(); k++) {
      Output& o = outputs_[k];
      if (draw.compared[k].empty()) {
        o.common += log2_miss;
        o.draws++;
        continue;
      }
      if (o.missed.empty()) {
        o.missed.assign(size_t(o.size), 0);
        o.missed_draws.assign(size_t(o.size), 0);
      }
      o.common += log2_miss;
      o.draws++;
      for (size_t i = 0; i < o.missed.size(); i++)
        if (!draw.compared[k][i]) o.missed[i] += log2_miss, o.missed_draws[i]++;
    }
  }
  double worst() const {  // of all elements
    double w = -1e9;
    for (const Output& o : outputs_) {
      double least = 0;
      for (double m : o.missed) least = std::min(least, m);
      w = std::max(w, o.common - least);
    }
    return w;
  }
  int min_draws() const {
    int n = INT32_MAX;
    for (const Output& o : outputs_) {
      int missed = most_of(0, o.missed_draws);
      n = std::min(n, o.draws - missed);
    }
    return n;
  }

 private:
  struct Output {
    int64_t size = 0;
    double common = 0;
    int draws = 0;
    std::vector<double> missed;
    std::vector<int> missed_draws;
  };
  std::vector<Output> outputs_;
};

class StaticTest {
 public:
  StaticTest(Reference& reference, const Graph& candidate, const VerifyOptions& o, Rng seeds,
             int binding, Certificate& certificate, WholePrograms whole,
             Signs signs = Signs::Character)
      : reference_(reference), spec_(reference.spec()), candidate_(candidate),
        whole_spec_(whole.spec ? *whole.spec : spec_),
        whole_candidate_(whole.candidate ? *whole.candidate : candidate), o_(o),
        region_(whole.region), signs_(signs), seeds_(seeds), binding_(binding),
        certificate_(certificate) {}

  std::optional<Verdict> run() {
    try {
      return test();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::BadInput) throw;
      return out_of_range(spec_, candidate_, seeds_, error);
    }
  }
  std::optional<Verdict> run_at_the_edges() { return at_the_edges(false); }

 private:
  std::optional<Verdict> test() {
    const double work = std::max(count_work(spec_), count_work(candidate_));
    if (work > double(o_.max_macs))
      return Unknown{UnknownReason::Budget,
                     "one evaluation takes about " + std::to_string(int64_t(work)) +
                         " multiply-adds, more than the limit of " + std::to_string(o_.max_macs)};
    if (auto v = reads_elsewhere()) return v;
    if (turns_infinities(spec_) || turns_infinities(candidate_))
      return Unknown{UnknownReason::Undefined,
                     "an infinity is multiplied by what is not positive by its form, or a product "
                     "of matrices sums it"};
    const bool of_integers = is_integer_program(spec_),
               integers = of_integers && is_integer_program(candidate_);
    if (of_integers && !integers)  // which floats may not hold
      if (auto all = exhaust(spec_, candidate_); all && all->counterexample)
        return Refuted{std::move(*all->counterexample)};
    const bool decides = integers || has_decisions(spec_) || has_decisions(candidate_);
    if (decides && on_every_branch()) return integers ? exactly(kIntegerDraws / 4) : at_the_edges();
    if (is_cancelled(o_)) return cancelled();
    if (integers) {
      if (auto test = exhaust(spec_, candidate_)) return exhausted(std::move(*test));
      if (auto v = exactly(kIntegerDraws)) return v;
      return by_laws() ? std::nullopt : tested();
    }
    const Certificate before = certificate_;
    std::optional<Verdict> drawn = whole_or_in_parts();
    if (drawn && (!decides || !drawn->unknown())) return drawn;
    const bool jumps = has_jumps(spec_) || has_jumps(candidate_);
    bool proved = !drawn && (!decides || (branches_met_ && !jumps));
    if (!proved) {
      if (is_cancelled(o_)) return cancelled();
      if (jumps)
        if (auto v = ties()) return v;
      Certificate with_draws = std::exchange(certificate_, before);
      proved = by_laws();
      if (!proved) certificate_ = std::move(with_draws);
      // Patterns of signs too many to be met: what was drawn is a test all the same.
      if (!proved && drawn && drawn->why_unknown().reason != UnknownReason::Bound) return drawn;
    }
    if (auto v = at_the_edges()) return v;
    return proved ? std::nullopt : tested();
  }

  // Indices of the rewrite that the original does not have are positions of nothing there.
  std::optional<Verdict> reads_elsewhere() {
    const auto indexes = [](const Graph&, const Op& op) { return op.kind == OpKind::Gather; };
    for (uint64_t i = 0; i < 8 && any_op(candidate_, indexes); i++) {
      const int64_t far = i % 2 == 0 ? INT64_MAX / 2 : 1000;
      const auto ranges = integer_ranges(spec_, spec_, {-far, far});
      if (auto v = less_defined(spec_, candidate_,
                                make_inputs(spec_, "ties", seeds_.split(41000 + i)(), ranges),
                                "an index is out of range"))
        return v;
    }
    return std::nullopt;
  }

  // What equality over the reals does not speak of: poles (`undefined`), decisions made by
  // rounding, and the range and precision of floats.
  std::optional<Verdict> at_the_edges(bool undefined = true) {
    const double work = count_work(spec_) + count_work(candidate_);
    if (!region_ && (has_decisions(spec_) || has_decisions(candidate_))) {
      tell("rare sides of comparisons");
      rare_ = rare_sides(spec_, candidate_, seeds_.split(76)(), work, reference_.pool());
    }
    if (undefined)
      if (auto v = definedness()) return v;
    if (has_jumps(spec_) || has_jumps(candidate_)) {
      tell("decisions made by rounding");
      if (auto c = decided_by_rounding(reference_, candidate_, has_jumps(spec_), seeds_.split(72)(),
                                       work, o_.cancel))
        return Refuted{std::move(*c)};
      if (is_cancelled(o_)) return cancelled();
    }
    if (auto c = jump_elsewhere({spec_, candidate_}, true)) return Refuted{std::move(*c)};
    if (auto v = gate()) return v;
    if (auto v = jumps_behind_values()) return v;
    if (o_.level != Accuracy::Fast) {
      std::optional<std::string>& errors = reference_.rounding_errors;
      if (!errors)
        errors = made_of_rounding(reference_, integer_ranges(spec_, candidate_, {-8, 8}),
                                  seeds_.split(79)());
      if (!errors->empty())
        return Unknown{UnknownReason::Rounding,
                       "\"" + *errors +
                           "\" computes with errors of rounding, which no rewrite "
                           "over the reals keeps; level fast takes them for what they approximate"};
    }
    return std::nullopt;
  }

  // Over free inputs in place of what both programs compute alike (sums, maxima, norms), which of
  // drawn inputs are hardly ever such that a quotient is whole.
  std::optional<Verdict> jumps_behind_values() {
    if (!turns(spec_, false)) return std::nullopt;
    const Graph a = without_repetition(spec_), b = without_repetition(candidate_);
    const Congruence known(a, b);
    // Elements of one input are drawn often enough, and cuts there forget what they are.
    std::vector<TensorId> source(a.tensors().size());  // the last input that it is made of
    std::vector<bool> computed(source.size());         // of several, or folded
    for (const Op& op : a.ops()) {
      TensorId from = is_input(op.kind) ? op.result() : TensorId();
      bool rare = is_reduction(op.kind);
      for (TensorId t : op.inputs) {
        const TensorId of = source[t.index];
        rare = rare || computed[t.index] || (of.valid() && from.valid() && of != from);
        if (of.valid()) from = of;
      }
      for (uint32_t r = 0; r < op.num_results; r++) {
        source[op.result(r).index] = from;
        computed[op.result(r).index] = rare && from.valid();
      }
    }
    std::vector<ValuePair> alike;
    for (const Op& op : b.ops())
      for (uint32_t r = 0; r < op.num_results && !is_input(op.kind); r++)
        if (const auto x = known.of_candidate(op.result(r));
            x && is_float(a.type(*x).dtype) && computed[x->index] &&
            !has(a.producer(*x).kind, algebra::Movement))
          alike.push_back({*x, op.result(r), {}});
    for (size_t k = 0; k < a.outputs().size(); k++) {
      const ValuePair target{a.outputs()[k], b.outputs()[k], {}};
      const auto cuts = frontier(a, b, target, alike);
      if (cuts.empty() || known.equal(target)) continue;
      const auto programs = definitions_of({target, cuts}, a, b, nullptr, OpKind::Abs);
      if (programs && jump_elsewhere(*programs, false))
        return Unknown{UnknownReason::Rounding,
                       "rounding makes the rewrite decide otherwise at whole numbers of " +
                           describe(a, cuts[0].spec)};
    }
    return std::nullopt;
  }
  // Floors, casts and comparisons at many whole numbers, on small tiles.
  std::optional<Counterexample> jump_elsewhere(const PartPrograms& programs, bool shown) {
    constexpr double kSmall = 2e3;
    if (!turns(programs.spec, false)) return std::nullopt;
    tell("whole numbers");
    const Symmetry symmetry({&programs.spec, &programs.candidate});
    const auto kept = symmetry.choose(kSmall, 2, seeds_.split(77));
    const auto tiles = kept ? symmetry.restrict_both(*kept) : std::nullopt;
    const Graph &spec = tiles ? tiles->first : programs.spec,
                &candidate = tiles ? tiles->second : programs.candidate;
    if (count_work(spec) + count_work(candidate) > kMostWhole) return std::nullopt;
    Reference small(spec, reference_.pool());
    GateOptions g = gate_options();
    g.whole = true;
    g.special = g.scales = false;
    g.level = Accuracy::Fast;
    g.rare = nullptr;
    auto c = numeric_gate(small, candidate, g).counterexample;
    if (c && tiles && shown)
      expand(*c, spec_, symmetry.input_positions(*kept), symmetry.output_positions(*kept));
    return c;
  }

  std::optional<Verdict> definedness() {
    if (is_total(spec_) && is_total(candidate_)) return std::nullopt;
    tell("definedness");
    const double work = count_work(spec_) + count_work(candidate_);
    const OutsideInputs outside =
        inputs_outside(spec_, candidate_, rare_, seeds_.split(74)(), work, reference_.pool());
    for (const std::vector<NDArray>& inputs : outside.sets)
      if (auto c = difference_at(reference_, candidate_, inputs, gate_options()))
        return Refuted{std::move(*c)};
    const bool hides = hides_undefined(spec_) || hides_undefined(candidate_);
    const Unknown unmet{UnknownReason::Undefined,
                        "what follows a quotient, root or logarithm may make numbers of what is "
                        "none, and no inputs were met at which each of them is undefined"};
    const bool inside =
        std::ranges::any_of(spec_.bodies(), [](const Graph& body) { return !is_total(body); });
    if (hides && inside)
      return Unknown{UnknownReason::Undefined,
                     "kernels of the original may make numbers of a quotient, root or logarithm "
                     "that is none, and are not looked into"};
    if (is_total(candidate_)) {
      if (hides && !outside.complete) return unmet;
      return std::nullopt;
    }
    const DefinednessTest test =
        test_definedness(reference_, candidate_, seeds_.split(73)(), work, o_.cancel);
    if (is_cancelled(o_)) return cancelled();
    if (test.differs) {
      if (!region_)
        if (auto c = find_difference(reference_, candidate_, gate_options()))
          return Refuted{std::move(*c)};
      return Unknown{
          UnknownReason::Undefined,
          "the rewrite may be undefined where the original is defined: it was in a field "
          "of a few thousand elements"};
    }
    if (!test.unsupported.empty()) return Unknown{UnknownReason::Undefined, test.unsupported};
    if (test.same_poles) {
      if (hides && !is_alike_outside(spec_, candidate_, false, rare_, seeds_.split(75)(), work,
                                     reference_.pool()))
        return Unknown{UnknownReason::Undefined,
                       "they make different numbers of a quotient, root or logarithm that is none"};
      return std::nullopt;
    }
    if (hides && !outside.complete) return unmet;
    if (test.undefined == 0)
      return Unknown{
          UnknownReason::Undefined,
          "no inputs were met at which the rewrite is undefined, so whether the original "
          "is undefined there, too, was not compared"};
    const std::string note =
        "definedness: where the rewrite was undefined in fields of a few thousand elements (" +
        std::to_string(test.undefined) + " elements met), so was the original";
    certificate_.notes.push_back(note);
    return std::nullopt;
  }

  // At all values of narrow integers.
  std::optional<Verdict> exhausted(IntegerTest test) {
    if (test.counterexample) {
      // Shown at the programs' own shapes where that is found again.
      if (auto v = exactly(kIntegerDraws)) return v;
      return Refuted{std::move(*test.counterexample)};
    }
    test.draws[0].binding = binding_;
    certificate_.draws.push_back(test.draws[0]);
    certificate_.min_draws = 1;
    certificate_.error_log2 = kCertain;
    certificate_.bound = "nothing was drawn: equal at all values of the inputs' elements";
    certificate_.basis = "proved";
    return std::nullopt;
  }

  // Asks the laws of the operators over symbolic elements (verify/opinion), which decide every
  // branch without drawing anything.
  bool by_laws() {
    tell("the operators' laws");
    SecondOpinionOptions how;
    how.proof = true;
    how.seconds = 2;
    how.seed = seeds_.split(71)();
    how.z3 = o_.z3;
    how.cancel = o_.cancel;
    const SecondOpinion opinion = second_opinion(spec_, candidate_, how);
    if (opinion.opinion != Opinion::Agrees) {
      unproved_ += "; by laws: " + opinion.what;
      return false;
    }
    FieldDraw d;
    d.field = "laws";
    d.seed = how.seed;
    d.binding = binding_;
    d.elements = opinion.elements;
    certificate_.draws.push_back(d);
    if (certificate_.bound.empty()) {
      certificate_.error_log2 = kCertain;
      certificate_.bound = "nothing was drawn: " + opinion.what;
      certificate_.basis = "proved";
      certificate_.min_draws = 1;
    }
    certificate_.notes.push_back("every branch: by the operators' laws over the real numbers, "
                                 "wherever both programs are defined");
    return true;
  }

  // Proves the programs equal for every outcome of every decision (verify/decisions.h).
  bool on_every_branch() {
    const Reference::Abstracted& spec = reference_.abstracted();
    const auto abstract = [](const Graph& whole, const Graph& part,
                             const std::variant<Graph, NotAbstracted>& known) {
      return &whole == &part ? known : abstract_decisions(whole);
    };
    const auto candidate = abstract_decisions(candidate_),
               whole_spec = abstract(whole_spec_, spec_, spec.program),
               whole_candidate = abstract(whole_candidate_, candidate_, candidate);
    for (const auto* g : {&spec.program, &candidate, &whole_spec, &whole_candidate})
      if (const auto* why = std::get_if<NotAbstracted>(g)) {
        unproved_ = why->why;
        return false;
      }
    Certificate proof = certificate_;
    StaticTest test(
        *spec.reference, std::get<Graph>(candidate), o_, seeds_.split(70), binding_, proof,
        {&std::get<Graph>(whole_spec), &std::get<Graph>(whole_candidate), region_}, Signs::Unknown);
    if (const auto v = test.whole_or_in_parts()) {
      unproved_ = v->unknown() ? v->why_unknown().what : "they differ";
      return false;
    }
    certificate_ = std::move(proof);
    add_once(certificate_.notes,
             "every branch: decisions are unknown functions of what they compare, so the programs "
             "are equal whatever they decide");
    return true;
  }

  // Equal wherever it was tried: accepted, if at all, once both sides of every decision were met.
  std::optional<Verdict> tested() {
    const std::string not_proved =
        "equal where it was tried, but not proved on every branch (" + unproved_ + ")";
    if (!o_.accept_tested) return Unknown{UnknownReason::Branch, not_proved};
    BranchCoverage of_spec(spec_), of_candidate(candidate_);
    const double work = count_work(spec_) + count_work(candidate_);
    const int draws = int(std::clamp(1e9 / work, 8.0, 4.0 * kTieDraws));
    const auto& families = input_families();
    const std::vector<IntRange> ranges = integer_ranges(spec_, candidate_, {INT64_MIN, INT64_MAX});
    int tried = 0;
    while (tried < draws && !(tried >= 8 && of_spec.complete() && of_candidate.complete())) {
      if (is_cancelled(o_)) return cancelled();
      const uint64_t seed = seeds_.split(uint64_t(30000 + tried))();
      const std::vector<NDArray> inputs =
          tried % 2 == 0
              ? tie_inputs(spec_, candidate_, seed)
              : make_inputs(spec_, families[size_t(tried / 2) % families.size()], seed, ranges);
      tried++;
      if (!is_defined_at(spec_, inputs)) continue;
      if (auto c = difference_at(reference_, candidate_, inputs, gate_options()))
        return Refuted{std::move(*c)};
      of_spec.observe(inputs);
      of_candidate.observe(inputs);
    }
    for (const BranchCoverage* b : {&of_spec, &of_candidate})
      if (!b->complete())
        return Unknown{UnknownReason::Branch,
                       not_proved + "; branch never taken: " + b->first_unmet()};
    certificate_.error_log2 = 0;
    certificate_.bound = "none: " + std::to_string(of_spec.decisions()) + " and " +
                         std::to_string(of_candidate.decisions()) +
                         " decisions were met on both sides in " + std::to_string(tried) +
                         " sets of inputs";
    certificate_.basis = "tested: not proved on every branch (" + unproved_ + ")";
    return std::nullopt;
  }

  GateOptions gate_options() {
    GateOptions g;
    g.level = o_.level;
    g.special = o_.special;
    g.scales = o_.scales;
    g.rare = &rare_;
    g.seed = seeds_.split(1)();
    g.region = region_;
    g.minimise = o_.minimise;
    g.cancel = o_.cancel;
    g.progress = o_.progress;
    return g;
  }
  void tell(const std::string& step) const {
    if (o_.progress) o_.progress(step);
  }
  Unknown cancelled() const { return {UnknownReason::Cancelled, "cancelled by the caller"}; }

  // The field saw a difference: only real inputs refute.
  Verdict explain(const FieldDrawResult& draw) {
    if (region_) return Unknown{UnknownReason::Field, "a region differs"};
    if (signs_ == Signs::Unknown)
      return Unknown{UnknownReason::Field, "they differ where decisions are unknown functions"};
    if (auto c = find_difference(reference_, candidate_, gate_options()))
      return Refuted{std::move(*c)};
    if (is_cancelled(o_)) return cancelled();
    const std::string where = "output " + std::to_string(draw.output) + ", element " +
                              std::to_string(draw.index) + ", seed " +
                              std::to_string(draw.record.seed) + " of field " + draw.record.field;
    const bool modelled = has_modelled_operators(spec_) || has_modelled_operators(candidate_);
    return Unknown{UnknownReason::Field,
                   modelled ? "they differ in the field (" + where +
                                  "), where order, roots or unknown functions are only modelled, "
                                  "and no real inputs were found at which they differ"
                            : "they differ in the field (" + where +
                                  "), so they are different functions, but by so little that no "
                                  "real inputs were found that show it"};
  }

  std::optional<Verdict> whole_or_in_parts() {
    const Certificate before = certificate_;
    auto ask = [&] {
      return field(reference_, candidate_, whole_spec_, whole_candidate_, certificate_);
    };
    patient_ = false;
    std::optional<Verdict> whole = ask();
    if (!whole || !whole->unknown() || region_) return whole;
    const UnknownReason why = whole->why_unknown().reason;
    if (why != UnknownReason::Field && why != UnknownReason::Undefined &&
        why != UnknownReason::Bound)
      return whole;
    // Real inputs were looked for already where the field saw a difference.
    certificate_ = before;
    if (in_parts()) return std::nullopt;
    certificate_ = before;
    if (is_cancelled(o_)) return cancelled();
    if (!gave_up_early_) return whole;
    patient_ = true;
    return ask();
  }

  // Pairs of values that look equal are proved one by one and cut. The bound is the sum of the
  // parts' bounds.
  bool in_parts() {
    const std::vector<ValuePair> pairs =
        values_that_look_equal(spec_, candidate_, seeds_.split(20000)(), reference_.pool());
    const bool logarithms =
        std::ranges::any_of(spec_.ops(), [](const Op& op) { return op.kind == OpKind::Log; });
    if (pairs.empty() && !logarithms) return false;
    std::vector<std::pair<ProofPart, Certificate>> proofs;
    uint64_t question = 0;
    auto equal = [&](const ProofPart& part) {
      if (is_cancelled(o_)) return false;
      const auto here = programs_of(part, spec_, candidate_),
                 whole = programs_of(part, whole_spec_, whole_candidate_);
      if (!here || !whole) return false;
      tell("part " + std::to_string(proofs.size() + 1) + " of a proof in parts");
      Certificate c;
      const PartTest test{seeds_.split(20001 + question++), o_.error_log2 - kPartErrorLog2};
      Reference reference(here->spec, reference_.pool());
      if (field(reference, here->candidate, whole->spec, whole->candidate, c, &test)) return false;
      proofs.emplace_back(part, std::move(c));
      return true;
    };
    const auto parts = compose(spec_, candidate_, pairs, kMaxPartTests, equal);
    if (!parts) return false;
    std::erase_if(proofs, [&](const auto& proof) {
      return std::ranges::find(*parts, proof.first) == parts->end();
    });
    add_proofs(certificate_, binding_, proofs, "parts");
    std::string cuts;
    for (const ProofPart& part : *parts)
      if (&part != &parts->back())
        cuts += (cuts.empty() ? "" : ", ") + describe(spec_, part.target.spec);
    certificate_.notes.push_back("proved in " + std::to_string(parts->size()) +
                                 " parts, both programs cut at " + cuts);
    return true;
  }

  struct PartTest {
    Rng seeds;
    double error_log2;
  };
  // Fills in `certificate`. Of a part (not null) only whether it is equal matters: a difference may
  // be one of the cuts' making.
  std::optional<Verdict> field(Reference& reference, const Graph& candidate,
                               const Graph& whole_spec, const Graph& whole_candidate,
                               Certificate& certificate, const PartTest* part = nullptr) {
    const Rng seeds = part ? part->seeds : seeds_;
    const double error_log2 = part ? part->error_log2 : o_.error_log2;
    const Graph& spec = reference.spec();
    const Degrees a = degrees(whole_spec, signs_), b = degrees(whole_candidate, signs_);
    const DrawBound bound =
        draw_bound(a, b, characters(spec, candidate, signs_, seeds.split(99)()));
    Coverage coverage(spec);
    int64_t candidate_undefined = 0;
    int draws = 0, incomplete = 0, redraws = 12;
    auto one = [&](FieldSize size) -> std::optional<Verdict> {
      if (is_cancelled(o_)) return cancelled();
      if (!part) tell("field draw " + std::to_string(draws + 1));
      FieldDrawResult r = field_draw(reference, candidate,
                                     {size, seeds.split(uint64_t(100 + draws))(),
                                      bound.exponent_bound, redraws, false, signs_, o_.cancel});
      if (is_cancelled(o_)) return cancelled();
      if (!r.unsupported.empty()) return Unknown{UnknownReason::Unsupported, r.unsupported};
      if (!r.equal && part) return Unknown{UnknownReason::Field, "a part differs"};
      if (!r.equal) return explain(r);
      r.record.binding = binding_;
      certificate.draws.push_back(r.record);
      if (size == FieldSize::Bits61) coverage.add(r, bound.log2_miss);
      candidate_undefined = r.candidate_undefined;
      draws++;
      incomplete += r.record.undefined > 0;
      // Where redrawing does not help, many cheap draws beat few expensive ones.
      if (draws == 3 && incomplete == 3) redraws = 2;
      return std::nullopt;
    };
    // A known prime shows most differences, at an eighth of the cost, and proves nothing.
    for (FieldSize size : {FieldSize::Bits31, FieldSize::Bits61, FieldSize::Bits61})
      if (auto v = one(size)) return v;
    // Hundreds of draws may find the rest defined; parts are likely to be sooner.
    if ((part || !patient_) && coverage.min_draws() == 0) {
      gave_up_early_ = gave_up_early_ || !part;
      return Unknown{UnknownReason::Undefined, "some elements were undefined in every draw"};
    }
    const int limit = max_draws(std::max(count_work(spec), count_work(candidate)));
    while (coverage.worst() > error_log2 && draws < limit) {
      // Hopeless at this rate (elements that are hardly ever defined): stop early.
      if (draws == 64 && coverage.worst() * limit / 64 > error_log2) break;
      if (auto v = one(FieldSize::Bits61)) return v;
    }
    if (coverage.min_draws() == 0 && coverage.worst() > error_log2) {
      if (part || region_ || signs_ == Signs::Unknown)
        return Unknown{UnknownReason::Undefined, "a part is never defined"};
      if (auto c = find_difference(reference_, candidate_, gate_options()))
        return Refuted{std::move(*c)};
      return Unknown{UnknownReason::Undefined,
                     candidate_undefined > 0
                         ? "some output elements of the rewrite were undefined in every draw"
                         : kNeverDefined};
    }
    if (coverage.worst() > error_log2)
      return Unknown{UnknownReason::Bound,
                     "after " + std::to_string(draws) + " draws the error bound is only 2^" +
                         decimals(coverage.worst(), 1) + " (" + bound.text + ")"};
    branches_met_ = branches_met_ && bound.branches;
    if (certificate.bound.empty() || coverage.worst() > certificate.error_log2) {
      certificate.error_log2 = coverage.worst();
      certificate.bound = bound.text + "; per draw 2^" + decimals(bound.log2_miss, 1);
      certificate.basis = bound.basis;
    }
    certificate.min_draws = certificate.min_draws == 0
                                ? coverage.min_draws()
                                : std::min(certificate.min_draws, coverage.min_draws());
    return std::nullopt;
  }

  // < for <= differs only where operands are equal, which random draws never meet; so does s/v ≤ 0
  // from v/s ≤ 0, where v = 0. A difference at small integers counts only if f64 shows it too.
  std::optional<Verdict> ties() {
    const double work = count_work(spec_) + count_work(candidate_);
    const int draws = int(std::clamp(2e8 / work, 4.0, double(kTieDraws)));
    const std::vector<double> points = turning_points(spec_, candidate_);
    const bool fractions = std::ranges::any_of(points, [](double x) { return x != std::floor(x); });
    for (int i = 0; i < draws; i++) {
      if (is_cancelled(o_)) return cancelled();
      if (i == 0) tell("equal operands of comparisons");
      const uint64_t seed = seeds_.split(uint64_t(10000 + i))();
      FieldDrawResult r = field_draw(reference_, candidate_, {FieldSize::Bits31, seed, 0, 0, true});
      // The field knows only integers of the constants that are drawn.
      const bool told = r.unsupported.empty() && !(r.equal && r.candidate_undefined == 0);
      if (!told && !(fractions && i < 4)) continue;
      if (auto c = difference_at(reference_, candidate_, tie_inputs(spec_, candidate_, seed),
                                 gate_options()))
        return Refuted{std::move(*c)};
    }
    return std::nullopt;
  }

  // Runs programs of integers as they are.
  std::optional<Verdict> exactly(int draws) {
    IntegerTest test = test_integers(spec_, candidate_, seeds_.split(2)(), draws, o_);
    if (test.cancelled) return cancelled();
    if (test.counterexample) return Refuted{std::move(*test.counterexample)};
    for (FieldDraw& d : test.draws) {
      d.binding = binding_;
      certificate_.draws.push_back(d);
    }
    return std::nullopt;
  }

  std::optional<Verdict> gate() {
    GateResult g = numeric_gate(reference_, candidate_, gate_options());
    if (g.cancelled) return cancelled();
    if (g.counterexample) return Refuted{std::move(*g.counterexample)};
    for (GateFamily& f : g.families) {
      f.binding = binding_;
      certificate_.gate.push_back(f);
      if (f.special_differ > 0)
        certificate_.notes.push_back("at inputs \"" + f.family + "\" " +
                                     std::to_string(f.special_differ) +
                                     " elements differ where the original is not finite");
    }
    for (const std::string& s : g.assumptions) add_once(certificate_.assumptions, s);
    return std::nullopt;
  }

  Reference& reference_;
  const Graph &spec_, &candidate_, &whole_spec_, &whole_candidate_;
  const VerifyOptions& o_;
  const bool region_;
  const Signs signs_;
  bool branches_met_ = true;  // no integers were sampled that may not have met what they decide
  std::vector<std::vector<NDArray>> rare_;  // inputs at which comparisons fall as hardly ever
  std::string unproved_ = "its decisions are not comparable";  // why not on every branch
  bool patient_ = true, gave_up_early_ = false;  // of whole programs hardly ever defined
  Rng seeds_;
  int binding_;
  Certificate& certificate_;
};

}  // namespace

std::optional<Verdict> test_static(Reference& reference, const Graph& candidate,
                                   const VerifyOptions& options, Rng seeds, int binding,
                                   Certificate& certificate, WholePrograms whole) {
  return StaticTest(reference, candidate, options, seeds, binding, certificate, whole).run();
}

std::optional<Verdict> test_rounding(Reference& reference, const Graph& candidate,
                                     const VerifyOptions& options, Rng seeds,
                                     Certificate& certificate) {
  // Of expensive programs few inputs can be looked at; of representative tiles many.
  const Symmetry symmetry({&reference.spec(), &candidate});
  const auto kept = symmetry.choose(options.whole_cost, 2, seeds.split(77));
  const auto tiles = kept ? symmetry.restrict_both(*kept) : std::nullopt;
  std::optional<Reference> small;
  if (tiles) small.emplace(tiles->first, reference.pool());
  return StaticTest(small ? *small : reference, tiles ? tiles->second : candidate, options, seeds,
                    0, certificate, {})
      .run_at_the_edges();
}

Verdict out_of_range(const Graph& spec, const Graph& candidate, Rng seeds, const Error& error) {
  for (uint64_t i = 0; i < kTieDraws; i++)
    if (auto v = less_defined(spec, candidate,
                              tie_inputs(spec, candidate, seeds.split(40000 + i)()), error.what()))
      return *std::move(v);
  return Unknown{UnknownReason::Undefined, error.what()};
}

void expand(Counterexample& c, const Graph& whole, const std::vector<KeptPositions>& inputs,
            const std::vector<KeptPositions>& outputs) {
  int64_t elements = 0;
  for (TensorId t : whole.inputs()) elements += num_elements(whole.type(t).shape);
  if (elements > (int64_t(1) << 22)) {
    c.what += "; shown on representative tiles of the programs";
    return;
  }
  for (size_t k = 0; k < c.inputs.size(); k++) {
    ConcreteTensor& part = c.inputs[k];
    const Type& type = whole.type(whole.inputs()[k]);
    NDArray numbers = NDArray::zeros(DType::I64, extents(type.shape));
    for (size_t i = 0; i < numbers.ints.size(); i++) numbers.ints[i] = int64_t(i);
    const std::vector<int64_t> to = select(numbers, inputs[k]).ints;
    ConcreteTensor all{part.name, type, {}, {}};
    if (is_float(type.dtype))
      all.reals.assign(numbers.ints.size(), 0);
    else
      all.ints.assign(numbers.ints.size(), 0);
    for (size_t i = 0; i < to.size(); i++)
      if (is_float(type.dtype))
        all.reals[size_t(to[i])] = part.reals[i];
      else
        all.ints[size_t(to[i])] = part.ints[i];
    part = std::move(all);
  }
  for (size_t d = 0; d < c.position.size(); d++)
    if (const auto& kept = outputs[size_t(c.output)][d])
      c.position[d] = (*kept)[size_t(c.position[d])];
}

}  // namespace tessera
