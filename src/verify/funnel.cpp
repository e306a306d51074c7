#include "verify/funnel.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <random>

#include "base/check.h"
#include "base/deadline.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "eval/eval.h"
#include "ir/validate.h"
#include "verify/bound.h"
#include "verify/composition.h"
#include "verify/field_test.h"
#include "verify/integers.h"
#include "verify/numeric_gate.h"
#include "verify/symmetry.h"
#include "verify/work.h"

namespace tessera {
namespace {

// Draws of one pair: many where elements are rarely all defined and evaluation is cheap.
int max_draws(double work) { return int(std::clamp(1e6 / std::max(1.0, work), 200.0, 600.0)); }
constexpr int kTieDraws = 48;
// Proofs in parts: at most so many questions, each answered with an error so much smaller.
constexpr int kMaxPartTests = 256;
constexpr double kPartErrorLog2 = 8;
// Of a filter's evaluation: above it only representative tiles are evaluated.
constexpr double kFilterCost = 2e6;

// Whether results can depend on two numbers being exactly equal.
bool has_comparisons(const Graph& g) {
  for (const Op& op : g.ops()) {
    if (op.kind == OpKind::Eq || op.kind == OpKind::Ne || op.kind == OpKind::Lt ||
        op.kind == OpKind::Le || op.kind == OpKind::Gt || op.kind == OpKind::Ge ||
        op.kind == OpKind::Sign || op.kind == OpKind::Cast)
      return true;
    if (op.body.valid() && has_comparisons(g.body(op))) return true;
  }
  return false;
}

uint64_t seed_from_system() {
  std::random_device device;
  return (uint64_t(device()) << 32) ^ device();
}

std::string describe(const Graph& g, TensorId t) {
  const Tensor& x = g.tensor(t);
  return (x.name.empty() ? "" : x.name + " ") + x.type.str();
}

std::optional<Counterexample> interface_difference(const Graph& a, const Graph& b) {
  auto differ = [](const std::string& what) {
    Counterexample c;
    c.kind = Difference::Interface;
    c.what = what;
    return std::optional(c);
  };
  auto lists = [&](const std::vector<TensorId>& x, const std::vector<TensorId>& y,
                   const char* what) -> std::optional<Counterexample> {
    if (x.size() != y.size())
      return differ("the original has " + std::to_string(x.size()) + " " + what +
                    (x.size() == 1 ? "" : "s") + ", the rewrite " + std::to_string(y.size()));
    for (size_t i = 0; i < x.size(); i++)
      if (!(a.type(x[i]) == b.type(y[i])))
        return differ(std::string(what) + " " + std::to_string(i) + " is " + a.type(x[i]).str() +
                      " in the original and " + b.type(y[i]).str() + " in the rewrite");
    return std::nullopt;
  };
  if (auto d = lists(a.inputs(), b.inputs(), "input")) return d;
  return lists(a.outputs(), b.outputs(), "output");
}

void collect_symbols(const Graph& g, std::vector<std::string>& symbols) {
  for (const Tensor& t : g.tensors())
    for (const Dim& d : t.type.shape)
      if (d.symbolic() && std::find(symbols.begin(), symbols.end(), d.symbol) == symbols.end())
        symbols.push_back(d.symbol);
  for (const Graph& body : g.bodies()) collect_symbols(body, symbols);
}

bool is_cancelled(const VerifyOptions& o) { return o.cancel != nullptr && o.cancel->load(); }

std::string fixed(double x) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.1f", x);
  return buffer;
}

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
      int missed = 0;
      for (int m : o.missed_draws) missed = std::max(missed, m);
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

// Inputs of whole programs from those of representatives: zeros elsewhere, on which the elements
// that are shown do not depend. Kept as they are where whole inputs would be too large to show.
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
    for (size_t i = 0; i < to.size(); i++) {
      if (is_float(type.dtype))
        all.reals[size_t(to[i])] = part.reals[i];
      else
        all.ints[size_t(to[i])] = part.ints[i];
    }
    part = std::move(all);
  }
  for (size_t d = 0; d < c.position.size(); d++)
    if (const auto& kept = outputs[size_t(c.output)][d])
      c.position[d] = (*kept)[size_t(c.position[d])];
}

// Tests one pair of static programs; fills in the certificate. Nothing means: no objection.
class StaticTest {
 public:
  StaticTest(Reference& reference, const Graph& candidate, const VerifyOptions& o, Rng seeds,
             int binding, Certificate& certificate)
      : reference_(reference), spec_(reference.spec()), candidate_(candidate), o_(o), seeds_(seeds),
        binding_(binding), certificate_(certificate) {}

  // Representatives of larger programs are compared: their error bound is that of the whole.
  void stands_for(const Graph& spec, const Graph& candidate) {
    whole_spec_ = &spec;
    whole_candidate_ = &candidate;
  }

  std::optional<Verdict> run() {
    const double work = std::max(count_work(spec_), count_work(candidate_));
    if (work > double(o_.max_macs))
      return Unknown{UnknownReason::Budget,
                     "one evaluation takes about " + std::to_string(int64_t(work)) +
                         " multiply-adds, more than the limit of " + std::to_string(o_.max_macs)};
    if (is_integer_program(spec_) && is_integer_program(candidate_)) return integers();
    if (auto v = whole_or_in_parts()) return v;
    if (auto v = ties()) return v;
    return gate();
  }

 private:
  GateOptions gate_options() {
    GateOptions g;
    g.strict = o_.strict;
    g.seed = seeds_.split(1)();
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
      return field(reference_, candidate_, whole_spec_ ? *whole_spec_ : spec_,
                   whole_candidate_ ? *whole_candidate_ : candidate_, certificate_);
    };
    patient_ = false;
    std::optional<Verdict> whole = ask();
    if (!whole || !whole->unknown()) return whole;
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
    const Graph& whole_spec = whole_spec_ ? *whole_spec_ : spec_;
    const Graph& whole_candidate = whole_candidate_ ? *whole_candidate_ : candidate_;
    const std::vector<ValuePair> pairs =
        values_that_look_equal(spec_, candidate_, seeds_.split(20000)(), reference_.pool());
    const bool logarithms = std::any_of(spec_.ops().begin(), spec_.ops().end(),
                                        [](const Op& op) { return op.kind == OpKind::Log; });
    if (pairs.empty() && !logarithms) return false;
    std::vector<std::pair<ProofPart, Certificate>> proofs;
    uint64_t question = 0;
    auto equal = [&](const ProofPart& part) {
      if (is_cancelled(o_)) return false;
      const auto here = programs_of(part, spec_, candidate_),
                 whole = programs_of(part, whole_spec, whole_candidate);
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
    double error = 0;
    std::vector<std::string> bases;
    certificate_.min_draws = certificate_.min_draws == 0 ? INT32_MAX : certificate_.min_draws;
    for (const auto& [part, proof] : proofs) {
      if (std::find(parts->begin(), parts->end(), part) == parts->end()) continue;
      certificate_.parts.push_back({binding_, part.str()});
      for (FieldDraw d : proof.draws) {
        d.part = int(certificate_.parts.size()) - 1;
        certificate_.draws.push_back(d);
      }
      error += std::exp2(proof.error_log2);
      certificate_.min_draws = std::min(certificate_.min_draws, proof.min_draws);
      if (std::find(bases.begin(), bases.end(), proof.basis) == bases.end())
        bases.push_back(proof.basis);
    }
    std::string cuts;
    for (const ProofPart& part : *parts)
      if (&part != &parts->back())
        cuts += (cuts.empty() ? "" : ", ") + describe(spec_, part.target.spec);
    certificate_.notes.push_back("proved in " + std::to_string(parts->size()) +
                                 " parts, both programs cut at " + cuts);
    if (certificate_.bound.empty() || std::log2(error) > certificate_.error_log2) {
      certificate_.error_log2 = std::log2(error);
      certificate_.bound = "the sum of the bounds of " + std::to_string(parts->size()) + " parts";
      std::sort(bases.begin(), bases.end());
      certificate_.basis.clear();
      for (const std::string& b : bases)
        certificate_.basis += (certificate_.basis.empty() ? "" : "; ") + b;
    }
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
    const Degrees a = degrees(whole_spec), b = degrees(whole_candidate);
    const DrawBound small = draw_bound(a, b, 31), big = draw_bound(a, b, 61);
    Coverage coverage(spec);
    int64_t candidate_undefined = 0;
    int draws = 0, incomplete = 0, redraws = 12;
    auto one = [&](FieldSize size) -> std::optional<Verdict> {
      if (is_cancelled(o_)) return cancelled();
      const DrawBound& bound = size == FieldSize::Bits31 ? small : big;
      if (!part) tell("field draw " + std::to_string(draws + 1));
      FieldDrawResult r = field_draw(
          reference, candidate,
          {size, seeds.split(uint64_t(100 + draws))(), bound.exponent_bound, redraws, false});
      if (!r.unsupported.empty()) return Unknown{UnknownReason::Unsupported, r.unsupported};
      if (!r.equal && part) return Unknown{UnknownReason::Field, "a part differs"};
      if (!r.equal) return explain(r);
      r.record.binding = binding_;
      certificate.draws.push_back(r.record);
      coverage.add(r, bound.log2_miss);
      candidate_undefined = r.candidate_undefined;
      draws++;
      incomplete += r.record.undefined > 0;
      // Where redrawing does not help, many cheap draws beat few expensive ones.
      if (draws == 3 && incomplete == 3) redraws = 2;
      return std::nullopt;
    };
    for (FieldSize size : {FieldSize::Bits31, FieldSize::Bits31, FieldSize::Bits61})
      if (auto v = one(size)) return v;
    // Hundreds of draws may find the rest defined; parts are likely to be sooner.
    if ((part || !patient_) && coverage.min_draws() == 0) {
      gave_up_early_ = gave_up_early_ || !part;
      return Unknown{UnknownReason::Undefined, "some elements were undefined in every draw"};
    }
    // What is still missing comes from the field that buys certainty cheaper; 61 bits cost about
    // eight times as much.
    const FieldSize rest =
        8 * small.log2_miss < big.log2_miss ? FieldSize::Bits31 : FieldSize::Bits61;
    const int limit = max_draws(std::max(count_work(spec), count_work(candidate)));
    while (coverage.worst() > error_log2 && draws < limit) {
      // Hopeless at this rate (elements that are hardly ever defined): stop early.
      if (draws == 64 && coverage.worst() * limit / 64 > error_log2) break;
      if (auto v = one(rest)) return v;
    }
    if (coverage.min_draws() == 0 && coverage.worst() > error_log2) {
      if (part) return Unknown{UnknownReason::Undefined, "a part is never defined"};
      if (auto c = find_difference(reference_, candidate_, gate_options()))
        return Refuted{std::move(*c)};
      return Unknown{UnknownReason::Undefined,
                     candidate_undefined > 0
                         ? "some output elements of the rewrite were undefined in every draw"
                         : "some output elements of the original were undefined in every draw"};
    }
    if (coverage.worst() > error_log2)
      return Unknown{UnknownReason::Bound, "after " + std::to_string(draws) +
                                               " draws the error bound is only 2^" +
                                               fixed(coverage.worst()) + " (" + big.text + ")"};
    const DrawBound& told = rest == FieldSize::Bits31 && draws > 3 ? small : big;
    if (certificate.bound.empty() || coverage.worst() > certificate.error_log2) {
      certificate.error_log2 = coverage.worst();
      certificate.bound = told.text + "; per draw 2^" + fixed(small.log2_miss) + " in p31, 2^" +
                          fixed(big.log2_miss) + " in p61";
      certificate.basis = told.basis;
    }
    certificate.min_draws = certificate.min_draws == 0
                                ? coverage.min_draws()
                                : std::min(certificate.min_draws, coverage.min_draws());
    return std::nullopt;
  }

  // < for <= differs only where operands are equal, which random draws never meet; so does s/v ≤ 0
  // from v/s ≤ 0, where v = 0. A difference at small integers counts only if f64 shows it too.
  std::optional<Verdict> ties() {
    if (!has_comparisons(spec_) && !has_comparisons(candidate_)) return std::nullopt;
    const double work = count_work(spec_) + count_work(candidate_);
    const int draws = int(std::clamp(2e8 / work, 4.0, double(kTieDraws)));
    const std::string note = "equal operands of comparisons were tested at small integers (" +
                             std::to_string(draws) + " draws); elsewhere they have measure zero";
    if (std::find(certificate_.notes.begin(), certificate_.notes.end(), note) ==
        certificate_.notes.end())
      certificate_.notes.push_back(note);
    for (int i = 0; i < draws; i++) {
      if (is_cancelled(o_)) return cancelled();
      if (i == 0) tell("equal operands of comparisons");
      const uint64_t seed = seeds_.split(uint64_t(10000 + i))();
      FieldDrawResult r = field_draw(reference_, candidate_, {FieldSize::Bits31, seed, 0, 0, true});
      if (!r.unsupported.empty() || (r.equal && r.candidate_undefined == 0)) continue;
      if (auto c = difference_at(reference_, candidate_, tie_inputs(spec_, candidate_, seed),
                                 gate_options()))
        return Refuted{std::move(*c)};
    }
    return std::nullopt;
  }

  std::optional<Verdict> integers() {
    // Equal over the integers implies equal modulo 2^w; a field decides the former.
    const auto spec = lifted_to_field(spec_), candidate = lifted_to_field(candidate_);
    bool proved = false;
    if (spec && candidate) {
      Certificate saved = certificate_;
      Reference lifted(*spec, reference_.pool());
      const auto v = field(lifted, *candidate, *spec, *candidate, certificate_);
      if (v && v->refuted()) return v;
      proved = !v;
      if (v)
        certificate_ = saved;  // still possible: equal modulo 2^w only
      else
        certificate_.notes.push_back("integer program: equal over the integers, so modulo 2^w");
    }
    IntegerTest test = test_integers(spec_, candidate_, seeds_.split(2)(), proved ? 16 : 64, o_);
    if (test.cancelled) return cancelled();
    if (test.counterexample) return Refuted{std::move(*test.counterexample)};
    for (FieldDraw& d : test.draws) {
      d.binding = binding_;
      certificate_.draws.push_back(d);
    }
    if (!proved) {
      certificate_.error_log2 = -double(test.draws.size());
      certificate_.bound = "integer program run as it is, on random and edge values";
      certificate_.basis = "assumes: a difference shows in one draw of two";
      certificate_.min_draws = int(test.draws.size());
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
    for (std::string& s : g.assumptions)
      if (std::find(certificate_.assumptions.begin(), certificate_.assumptions.end(), s) ==
          certificate_.assumptions.end())
        certificate_.assumptions.push_back(std::move(s));
    return std::nullopt;
  }

  Reference& reference_;
  const Graph &spec_, &candidate_;
  const Graph *whole_spec_ = nullptr, *whole_candidate_ = nullptr;
  const VerifyOptions& o_;
  bool patient_ = true, gave_up_early_ = false;  // of whole programs hardly ever defined
  Rng seeds_;
  int binding_;
  Certificate& certificate_;
};

}  // namespace

struct Verifier::State {
  Graph spec;
  VerifyOptions options;
  uint64_t seed;
  std::optional<ThreadPool> threads;
  std::string step;  // what was told last
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
  Verdict verify(const Graph& candidate);
  Verdict with_second_opinion(const Graph& candidate, Verdict first) const;
  std::optional<Verdict> compare(const Graph& candidate, const Rng& seeds, Certificate& c);
};

Verifier::Verifier(Graph spec, VerifyOptions options)
    : state_(std::make_unique<State>(std::move(spec), options)) {}
Verifier::~Verifier() = default;
Verifier::Verifier(Verifier&&) noexcept = default;
Verifier& Verifier::operator=(Verifier&&) noexcept = default;

Verdict Verifier::verify(const Graph& candidate) {
  State& s = *state_;
  const std::atomic<bool>* const callers = s.options.cancel;
  std::optional<Deadline> deadline;
  if (s.options.seconds) {
    deadline.emplace(*s.options.seconds, nullptr, callers);
    s.options.cancel = deadline->hard();
  }
  s.step = "the interface";
  Verdict verdict = s.verify(candidate);
  if (s.options.second_opinion && verdict.equal()) {
    s.options.progress("second opinion");
    verdict = s.with_second_opinion(candidate, std::move(verdict));
  }
  s.options.cancel = callers;
  if (!verdict.unknown() || verdict.why_unknown().reason != UnknownReason::Cancelled)
    return verdict;
  char allowed[40] = "";
  if (deadline) std::snprintf(allowed, sizeof allowed, "%g", *s.options.seconds);
  const bool late = deadline && !(callers != nullptr && callers->load());
  return Unknown{late ? UnknownReason::Time : UnknownReason::Cancelled,
                 (late ? std::string("the time allowed, ") + allowed + " s, was spent"
                       : std::string("cancelled by the caller")) +
                     "; under way: " + s.step};
}

Verdict Verifier::State::with_second_opinion(const Graph& candidate, Verdict first) const {
  const Binding& binding = first.certificate().bindings.at(0);
  SecondOpinionOptions o;
  o.z3 = options.z3;
  o.seed = seed;
  o.cancel = options.cancel;
  return after(std::move(first),
               second_opinion(bind_symbols(spec, binding), bind_symbols(candidate, binding), o));
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

Acceptance Verifier::accept(Graph candidate) {
  Verdict v = verify(candidate);
  if (!v.equal()) return {std::move(v), std::nullopt};
  Certificate c = v.certificate();
  return {std::move(v), Verified(state_->spec, std::move(candidate), std::move(c))};
}

// Static programs: as they are, or representatives of them where they are expensive.
std::optional<Verdict> Verifier::State::compare(const Graph& candidate, const Rng& seeds,
                                                Certificate& c) {
  if (std::max(evaluation_cost(spec), evaluation_cost(candidate)) > options.whole_cost &&
      !is_integer_program(spec)) {
    const Symmetry symmetry({&spec, &candidate});
    if (const auto kept = symmetry.choose(options.whole_cost, 2, seeds.split(3))) {
      const auto a = symmetry.restrict(0, *kept), b = symmetry.restrict(1, *kept);
      if (a && b) {
        const auto inputs = symmetry.input_positions(*kept),
                   outputs = symmetry.output_positions(*kept);
        for (const auto& tiles : *kept) c.tiles.push_back(int64_t(tiles.size()));
        c.coverage = "representative tiles (" + representatives(spec, spec.outputs(), outputs) +
                     "); along these axes both programs do the same for every tile";
        StaticTest test(reference(*a), *b, options, seeds, 0, c);
        test.stands_for(spec, candidate);
        auto v = test.run();
        if (v && v->refuted()) {
          Counterexample shown = v->counterexample();
          expand(shown, spec, inputs, outputs);
          return Refuted{std::move(shown)};
        }
        return v;
      }
    }
  }
  return StaticTest(reference(spec), candidate, options, seeds, 0, c).run();
}

Verdict Verifier::State::verify(const Graph& candidate) {
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
  c.candidate_hash = structural_hash(candidate);
  c.seed = seed;
  c.strict = options.strict;
  for (TensorId t : spec.inputs()) c.inputs.push_back(describe(spec, t));
  for (TensorId t : spec.outputs()) c.outputs.push_back(describe(spec, t));
  c.coverage = "all elements of all outputs, full shapes";
  const Rng seeds(c.seed);

  std::vector<std::string> symbols;
  collect_symbols(spec, symbols);
  collect_symbols(candidate, symbols);
  if (symbols.empty()) {
    c.bindings.push_back({});
    if (auto v = compare(candidate, seeds, c)) return *v;
    return Equal{std::move(c)};
  }
  // Random extents, different for different symbols where there is room.
  Rng rng = seeds.split(7);
  std::string why;
  for (int attempt = 0; attempt < 50 && int(c.bindings.size()) < options.bindings; attempt++) {
    Binding binding;
    for (const std::string& s : symbols) {
      int64_t extent = 1;
      for (bool fresh = false; !fresh;) {
        extent = rng.between(attempt == 0 ? 2 : 1, 12 + int64_t(symbols.size()));
        fresh = std::none_of(binding.begin(), binding.end(),
                             [&](const auto& b) { return b.second == extent; });
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
    c.bindings.push_back(binding);
    const int index = int(c.bindings.size()) - 1;
    if (auto v = StaticTest(reference(*a), *b, options, seeds.split(uint64_t(50 + index)), index, c)
                     .run())
      return *v;
  }
  if (c.bindings.empty())
    return Unknown{UnknownReason::Unsupported,
                   "no extents of the symbols fit both programs: " + why};
  c.coverage = "all elements of all outputs, at the shapes bound above";
  c.notes.push_back("symbolic shapes: tested at " + std::to_string(c.bindings.size()) +
                    " bindings, not proved for all shapes");
  return Equal{std::move(c)};
}

Verdict verify(const Graph& spec, const Graph& candidate, const VerifyOptions& options) {
  return Verifier(spec, options).verify(candidate);
}

Acceptance accept(const Graph& spec, Graph candidate, const VerifyOptions& options) {
  return Verifier(spec, options).accept(std::move(candidate));
}

Recheck recheck(const Certificate& c, const Graph& spec, const Graph& candidate,
                const VerifyOptions& options) {
  if (structural_hash(spec) != c.spec_hash)
    return {false, "the certificate is about another original (its hash differs)"};
  if (structural_hash(candidate) != c.candidate_hash)
    return {false, "the certificate is about another rewrite (its hash differs)"};
  if (auto d = interface_difference(spec, candidate)) return {false, d->what};
  if (c.draws.empty() || c.bindings.empty()) return {false, "the certificate records no draw"};
  if (c.error_log2 > options.error_log2)
    return {false, "the certificate's error bound 2^" + fixed(c.error_log2) + " is too weak"};
  std::vector<ProofPart> parts;
  for (const CertificatePart& p : c.parts) {
    const auto part = ProofPart::parse(p.text);
    if (!part || p.binding < 0 || p.binding >= int(c.bindings.size()))
      return {false, "it does not say what part " + std::to_string(parts.size()) + " is"};
    parts.push_back(*part);
  }
  for (size_t b = 0; b < c.bindings.size(); b++) {
    std::vector<ProofPart> own;
    bool whole = false;
    for (size_t i = 0; i < parts.size(); i++)
      if (c.parts[i].binding == int(b)) own.push_back(parts[i]);
    for (const FieldDraw& d : c.draws) whole = whole || (d.part < 0 && d.binding == int(b));
    if (whole) continue;
    if (own.empty()) return {false, "it records no draw of binding " + std::to_string(b)};
    if (std::string what = missing_in(own, spec, candidate); !what.empty())
      return {false, "its parts prove too little: " + what};
  }
  for (size_t i = 0; i < parts.size(); i++)
    if (std::none_of(c.draws.begin(), c.draws.end(), [&](const FieldDraw& d) {
          return d.part == int(i) && d.binding == c.parts[i].binding;
        }))
      return {false, "it records no draw of part " + std::to_string(i)};
  std::optional<ThreadPool> threads;
  if (options.threads != 1) threads.emplace(options.threads);
  ThreadPool* pool = threads ? &*threads : nullptr;
  for (size_t i = 0; i < c.draws.size(); i++) {
    if (is_cancelled(options)) return {false, "cancelled by the caller"};
    const FieldDraw& d = c.draws[i];
    const std::string which = "draw " + std::to_string(i);
    if (d.binding < 0 || d.binding >= int(c.bindings.size()))
      return {false, which + " names no binding"};
    Graph a = bind_symbols(spec, c.bindings[size_t(d.binding)]);
    Graph b = bind_symbols(candidate, c.bindings[size_t(d.binding)]);
    if (!c.tiles.empty()) {
      const Symmetry symmetry({&a, &b});
      const auto kept = symmetry.first(c.tiles);
      auto small_a = kept ? symmetry.restrict(0, *kept) : std::nullopt;
      auto small_b = kept ? symmetry.restrict(1, *kept) : std::nullopt;
      if (!small_a || !small_b) return {false, "the programs have other tiles than it says"};
      for (size_t k = 0; k < c.tiles.size(); k++)
        if (const AxisClass& axes = symmetry.classes()[k];
            c.tiles[k] < std::min({axes.tiles, axes.most_axes}))
          return {false, "too few tiles for the conclusion"};
      a = std::move(*small_a);
      b = std::move(*small_b);
    }
    if (d.part >= int(parts.size())) return {false, which + " names no part"};
    if (d.part >= 0) {
      auto programs = programs_of(parts[size_t(d.part)], a, b);
      if (!programs) return {false, which + ": the programs have no such part"};
      a = std::move(programs->spec);
      b = std::move(programs->candidate);
    }
    if (d.field == "exact") {
      IntegerTest test = replay_integers(a, b, d);
      if (test.counterexample)
        return {false, which + ": the programs differ\n" + test.counterexample->str()};
      continue;
    }
    if (d.field != "p31" && d.field != "p61") return {false, which + " names an unknown field"};
    const bool lifted = is_integer_program(a);
    const auto la = lifted ? lifted_to_field(a) : std::optional(a);
    const auto lb = lifted ? lifted_to_field(b) : std::optional(b);
    if (!la || !lb) return {false, which + ": the programs have no meaning in a field"};
    const FieldSize size = d.field == "p31" ? FieldSize::Bits31 : FieldSize::Bits61;
    Reference reference(*la, pool);
    FieldDrawResult r =
        field_draw(reference, *lb, {size, d.seed, d.exponent_bound, d.redraws, false});
    if (!r.unsupported.empty()) return {false, which + ": " + r.unsupported};
    if (!r.equal) return {false, which + ": the programs differ"};
    r.record.binding = d.binding;
    r.record.part = d.part;
    if (!(r.record == d)) return {false, which + " gives other figures than the certificate says"};
  }
  // Recorded seeds could have been chosen; fresh ones could not.
  VerifyOptions fresh = options;
  fresh.seed = options.seed ? *options.seed : seed_from_system();
  fresh.strict = c.strict;
  const Verdict v = verify(spec, candidate, fresh);
  if (!v.equal()) return {false, "a fresh verification says: " + v.str()};
  return {true, std::to_string(c.draws.size()) + " recorded draws replayed, and " +
                    std::to_string(v.certificate().draws.size()) + " fresh ones from seed " +
                    std::to_string(*fresh.seed) + " agree"};
}

// --- the search's filter

struct Filter::State {
  Graph spec;
  FieldModel model;
  ThreadPool pool;
  // What the whole spec, or representatives of it, make of one draw, by structural hash.
  struct Original {
    Graph graph;
    std::vector<Components> components;
    std::vector<FieldArray> inputs;
    FieldResult outputs;
  };
  std::mutex mutex;  // of originals
  std::map<uint64_t, std::shared_ptr<const Original>> originals;

  State(Graph g, uint64_t seed, int threads)
      : spec(std::move(g)), model(FieldSize::Bits31, seed), pool(threads) {}
  std::shared_ptr<const Original> original(const Graph& g);
};

std::shared_ptr<const Filter::State::Original> Filter::State::original(const Graph& g) {
  std::lock_guard lock(mutex);
  auto& known = originals[structural_hash(g)];
  if (known && known->graph == g) return known;
  auto o = std::make_shared<Original>();
  o->graph = g;
  o->components = needed_components(g);
  o->inputs = draw_inputs(g, model, o->components, 2, &pool);
  const std::vector<IntRange> ranges = integer_ranges(g, g, {-8, 8});
  Rng rng(model.seed() ^ 0x5bd1e995u);
  for (size_t k = 0; k < o->inputs.size(); k++)
    for (int64_t& x : o->inputs[k].ints) x = rng.between(ranges[k].low, ranges[k].high);
  FieldOptions options;
  options.pool = &pool;
  options.roots_only = true;
  redraw_inputs(g, model, o->inputs, 64, options);
  o->outputs = eval_field(g, model, o->inputs, options);
  known = std::move(o);
  return known;
}

Filter::Filter(const Graph& spec, uint64_t seed, int threads)
    : state_(std::make_unique<State>(spec, seed, threads)) {}
Filter::~Filter() = default;
Filter::Filter(Filter&&) noexcept = default;
Filter& Filter::operator=(Filter&&) noexcept = default;

bool Filter::may_equal(const Graph& candidate) const {
  State& s = *state_;
  if (interface_difference(s.spec, candidate)) return false;
  std::optional<Graph> small_spec, small_candidate;
  if (std::max(evaluation_cost(s.spec), evaluation_cost(candidate)) > kFilterCost) {
    const Symmetry symmetry({&s.spec, &candidate});
    if (const auto kept = symmetry.choose(kFilterCost, 2, Rng(s.model.seed()))) {
      small_spec = symmetry.restrict(0, *kept);
      small_candidate = symmetry.restrict(1, *kept);
    }
  }
  const bool small = small_spec && small_candidate;
  const Graph& tested = small ? *small_candidate : candidate;
  const auto original = s.original(small ? *small_spec : s.spec);
  if (!original->outputs.ok()) return true;
  const std::vector<Components> needed = needed_components(tested);
  for (size_t k = 0; k < needed.size(); ++k)
    if (needed[k] & ~original->components[k])
      return true;  // reads what was not drawn: not for a filter
  // A few blocks of the last kernels tell as much as all of them, where no axis is special.
  FieldOptions options;
  options.sample_blocks = 3;
  const FieldResult c = eval_field(tested, s.model, original->inputs, options);
  if (!c.ok()) return true;
  for (size_t k = 0; k < c.outputs.size(); k++)
    if (compare(original->outputs.outputs[k], c.outputs[k]).different > 0) return false;
  return true;
}

}  // namespace tessera
