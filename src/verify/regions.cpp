#include "verify/regions.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/interruption.h"
#include "eval/eval.h"
#include "ir/walk.h"
#include "ir/window.h"
#include "verify/congruence.h"
#include "verify/definedness.h"
#include "verify/inputs.h"
#include "verify/interface.h"
#include "verify/reference.h"
#include "verify/signs.h"
#include "verify/static_test.h"
#include "verify/symmetry.h"
#include "verify/work.h"

namespace tessera {
namespace {

constexpr double kRegionErrorLog2 = 8;  // each of up to 2^8 regions has so much less of the error
constexpr size_t kMaxRegions = 256;
constexpr int kMaxFailures = 8;     // one after another, of targets that are only guesses,
constexpr int kMaxTries = 2;        // and of one of them
constexpr size_t kMaxResults = 16;  // of one layer in both programs that are tried with each other
constexpr int kMaxGuesses = 20'000;
constexpr double kWorkGrowth = 2;     // a region that failed is tried again with so much more work
constexpr double kNearlyWhole = 0.7;  // of the programs' work: they are better tested as they are

// --- which values to prove equal

// Outputs are equal if the operands of equal last operators are, and so on towards the inputs.
void follow_from_outputs(const Graph& spec, const Graph& candidate, const Congruence& known,
                         std::set<std::pair<TensorId, TensorId>>& pairs) {
  std::vector<std::pair<TensorId, TensorId>> todo;
  auto meet = [&](TensorId x, TensorId y) {
    interruption_point();
    if (known.equal(x, y) || !(spec.type(x) == candidate.type(y)) ||
        pairs.size() > size_t(kMaxGuesses) || !pairs.insert({x, y}).second)
      return;
    todo.emplace_back(x, y);
  };
  for (size_t k = 0; k < spec.outputs().size(); k++)
    meet(spec.outputs()[k], candidate.outputs()[k]);
  while (!todo.empty()) {
    const auto [x, y] = todo.back();
    todo.pop_back();
    const Op &a = spec.producer(x), &b = candidate.producer(y);
    if (!same_function(spec, a, candidate, b)) continue;
    if (x.index - a.result().index != y.index - b.result().index) continue;
    for (size_t i = 0; i < a.inputs.size(); i++) meet(a.inputs[i], b.inputs[i]);
  }
}

// Tensors by the set of inputs that they depend on, and their type. Layers have weights of their
// own, so that these are the layers.
struct Layer {
  std::vector<TensorId> all, results;  // those that others with other sets read
};
using Layers = std::map<std::pair<std::vector<bool>, std::string>, Layer>;
Layers layers_of(const Graph& g) {
  std::vector<std::vector<bool>> needs(g.tensors().size());
  std::vector<bool> leaves(g.tensors().size(), false);
  for (size_t k = 0; k < g.inputs().size(); k++) {
    needs[g.inputs()[k].index].assign(g.inputs().size(), false);
    needs[g.inputs()[k].index][k] = true;
  }
  for (const Op& op : g.ops()) {
    if (is_input(op.kind)) continue;
    std::vector<bool> all(g.inputs().size(), false);
    for (TensorId t : op.inputs)
      for (size_t k = 0; k < all.size(); k++)
        if (needs[t.index][k]) all[k] = true;
    for (TensorId t : op.inputs) leaves[t.index] = leaves[t.index] || needs[t.index] != all;
    for (uint32_t r = 0; r < op.num_results; r++) needs[op.result(r).index] = all;
  }
  Layers layers;
  for (const Op& op : g.ops())
    for (uint32_t r = 0; r < op.num_results && !is_input(op.kind); r++) {
      const TensorId t = op.result(r);
      Layer& layer = layers[{needs[t.index], g.type(t).str()}];
      layer.all.push_back(t);
      if (leaves[t.index]) layer.results.push_back(t);
    }
  return layers;
}

// The last tensors of a layer that are made by the same elementwise operator.
std::optional<std::pair<TensorId, TensorId>> last_alike(const Graph& spec, const Layer& a,
                                                        const Graph& candidate, const Layer& b) {
  for (size_t i = a.all.size(); i-- > 0;)
    for (size_t j = b.all.size(); j-- > 0;)
      if (has(spec.producer(a.all[i]).kind, algebra::Pointwise) &&
          same_function(spec, spec.producer(a.all[i]), candidate, candidate.producer(b.all[j])))
        return std::pair(a.all[i], b.all[j]);
  return std::nullopt;
}

// What is equal if the operands of these are: where two operators are the same function and all
// operands but one are the same, that one.
std::optional<std::pair<TensorId, TensorId>> operands_alike(const Graph& spec, TensorId x,
                                                            const Graph& candidate, TensorId y,
                                                            const Congruence& known) {
  const Op &a = spec.producer(x), &b = candidate.producer(y);
  if (!has(a.kind, algebra::Pointwise) || !same_function(spec, a, candidate, b))
    return std::nullopt;
  std::optional<std::pair<TensorId, TensorId>> found;
  for (size_t i = 0; i < a.inputs.size(); i++) {
    if (known.equal(a.inputs[i], b.inputs[i])) continue;
    if (found) return std::nullopt;
    found.emplace(a.inputs[i], b.inputs[i]);
  }
  return found && spec.type(found->first) == candidate.type(found->second) ? found : std::nullopt;
}

// In the original's order; the outputs are the last.
std::vector<ValuePair> guesses(const Graph& spec, const Graph& candidate, const Congruence& known) {
  std::set<std::pair<TensorId, TensorId>> pairs, alike;  // the latter come first
  follow_from_outputs(spec, candidate, known, pairs);
  const Layers a = layers_of(spec), b = layers_of(candidate);
  for (const auto& [key, layer] : a) {
    const auto found = b.find(key);
    if (found == b.end()) continue;
    // Before functions that only relate signs, polynomials need few draws.
    for (auto at = last_alike(spec, layer, candidate, found->second); at;
         at = operands_alike(spec, at->first, candidate, at->second, known))
      alike.insert(*at);
    const std::vector<TensorId>&xs = layer.results, &ys = found->second.results;
    if (xs.size() * ys.size() <= kMaxResults)
      for (TensorId x : xs)
        for (TensorId y : ys) pairs.insert({x, y});
    else
      for (size_t i = 0; i < std::min(xs.size(), ys.size()); i++) pairs.insert({xs[i], ys[i]});
  }
  std::vector<ValuePair> list;
  for (const auto& [x, y] : alike) list.push_back({x, y, {}});
  for (const auto& [x, y] : pairs)
    if (alike.count({x, y}) == 0) list.push_back({x, y, {}});
  std::erase_if(
      list, [&](const ValuePair& p) { return !is_float(spec.type(p.spec).dtype); });
  std::ranges::stable_sort(
      list, [](const ValuePair& x, const ValuePair& y) { return x.spec.index < y.spec.index; });
  for (size_t k = 0; k < spec.outputs().size(); k++) {
    const ValuePair output{spec.outputs()[k], candidate.outputs()[k], {}};
    std::erase(list, output);
    list.push_back(output);
  }
  return list;
}

// --- what may be cut

// What is known of a program's tensors by their form.
struct Forms {
  std::vector<bool> infinite;  // may be
  std::vector<bool> assumed;   // is not, if what is made of weights alone is not
  std::vector<bool> constant;  // made of no input
};

// Whether it may be no number of numbers, by its form; whoever adds an operator looks whether it
// may.
bool may_make_nan(OpKind kind) {
  static_assert(int(OpKind::Save) + 1 == 78);
  const bool plain = has(kind, algebra::Pointwise) || has(kind, algebra::Movement) ||
                     has(kind, algebra::Linear) || is_leaf(kind) || is_reduction(kind) ||
                     is_windowed(kind);
  return !plain || has(kind, algebra::Partial) ||
         is_one_of(kind, OpKind::Exp, OpKind::Expm1, OpKind::Custom);
}

bool is_nonzero_constant(const Graph& g, TensorId t) {
  const Rational* c = g.producer(t).constant();
  return c && !c->is_zero();
}

Forms forms_of(const Graph& g) {
  const std::vector<bool> none(g.tensors().size(), false);
  Forms f{none, none, none};
  // Depends on a weight, and on nothing that is none.
  std::vector<bool> weights = none, others = none;
  for (const Op& op : g.ops()) {
    bool any_infinite = false, assumed = false, weight = false, other = false;
    for (TensorId t : op.inputs) {
      any_infinite = any_infinite || f.infinite[t.index];
      assumed = assumed || f.assumed[t.index];
      weight = weight || weights[t.index];
      other = other || others[t.index];
    }
    bool partial = false;
    if (is_input(op.kind)) {
      weight = g.is_weight(op.result());
      other = !weight;
    } else if (const Rational* c = op.constant()) {
      any_infinite = !c->finite();
    } else if (const auto* a = std::get_if<PadAttrs>(&op.attrs)) {
      any_infinite = any_infinite || !a->value.finite();
    } else if (op.kind == OpKind::PoolMax) {
      any_infinite = any_infinite || is_infinite_in_padding(g, op);
    } else if (op.kind == OpKind::Pow) {
      const Rational& e = g.attrs<PowAttrs>(op).exponent;
      partial = e.negative() || !e.is_integer();
    } else if (op.kind == OpKind::Div && is_nonzero_constant(g, op.inputs[1])) {
      partial = false;
    } else {
      partial = may_make_nan(op.kind);
    }
    if (partial && weight && !other)
      assumed = true;
    else
      any_infinite = any_infinite || partial;
    for (uint32_t r = 0; r < op.num_results; r++) {
      const size_t t = op.result(r).index;
      f.infinite[t] = any_infinite;
      f.assumed[t] = assumed;
      f.constant[t] = !weight && !other;
      weights[t] = weight;
      others[t] = other;
    }
  }
  return f;
}

// The pairs that are the same in both programs and may become free inputs.
std::vector<ValuePair> shared_values(const Graph& candidate, const Congruence& known,
                                     const Graph& spec, const Forms& forms) {
  std::vector<ValuePair> list;
  for (const Op& op : candidate.ops())
    for (uint32_t r = 0; r < op.num_results; r++) {
      const TensorId y = op.result(r);
      const auto x = known.of_candidate(y);
      if (x && is_float(candidate.type(y).dtype) && !forms.constant[x->index] &&
          !is_input(op.kind) && !is_input(spec.producer(*x).kind))
        list.push_back({*x, y, {}});
    }
  return list;
}

bool depends_on_any(const Graph& g, TensorId t, const std::set<TensorId>& on) {
  const std::set<TensorId> all = made_of(g, g.producer(t).inputs, on);
  return std::ranges::any_of(on, [&](TensorId x) { return all.count(x) != 0; });
}

// --- one region

// The programs with one comparison of floats, in kernels too, that falls the other way where an
// operand is no number; of those that depend on some values, if given.
std::vector<Graph> others_at_nan(const Graph& g, const std::set<TensorId>* on) {
  std::vector<Graph> all;
  const auto rebuilt = [&](const Op& at, const Graph* body) {
    Graph out = g.level() == Level::Kernel  ? Graph(g.name())
                : g.level() == Level::Block ? Graph::block(g.grid(), g.loops())
                                            : Graph::thread();
    std::vector<TensorId> to(g.tensors().size());
    for (const Op& op : g.ops()) {
      copy_op(g, op, out, to, &op == &at && body ? std::optional<Graph>(*body) : std::nullopt);
      if (&op != &at || body) continue;
      const TensorId a = to[op.inputs[0].index], b = to[op.inputs[1].index];
      const TensorId none =
          out.add(OpKind::Or, {out.add(OpKind::Ne, {a, a}), out.add(OpKind::Ne, {b, b})});
      TensorId& result = to[op.result().index];
      result = out.add(OpKind::Ne, {result, none});
    }
    for (TensorId t : g.outputs()) out.add_output(to[t.index]);
    all.push_back(std::move(out));
  };
  for (const Op& op : g.ops()) {
    if (on && !depends_on_any(g, op.result(), *on)) continue;
    if (op.body.valid())
      for (const Graph& body : others_at_nan(g.body(op), nullptr)) rebuilt(op, &body);
    else if (is_comparison(op.kind) && is_float(g.type(op.inputs[0]).dtype))
      rebuilt(op, nullptr);
  }
  return all;
}

bool same_bits(const std::vector<NDArray>& a, const std::vector<NDArray>& b) {
  const auto same = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  for (size_t k = 0; k < a.size(); k++)
    if (a[k].ints != b[k].ints ||
        !std::equal(a[k].reals.begin(), a[k].reals.end(), b[k].reals.begin(), same))
      return false;
  return true;
}

// Cuts that may be infinite are made so here and there, each alone and several at once: where the
// original is a number all the same, so must the rewrite be. Of what cannot be seen in the results,
// whichever way a comparison with none falls, nothing is said: false.
bool same_at_infinities(const Graph& spec, const Graph& candidate,
                        const std::vector<size_t>& infinite, Rng rng, ThreadPool* pool) {
  if (infinite.empty()) return true;
  const EvalOptions exact{Precision::Exact, pool, {}};
  struct Unseen {
    bool of_spec;
    Graph otherwise;
    int left = 2;
  };
  std::vector<Unseen> unseen;
  for (const Graph* g : {&spec, &candidate}) {
    std::set<TensorId> on;
    for (size_t k : infinite) on.insert(g->inputs()[k]);
    for (Graph& other : others_at_nan(*g, &on)) unseen.push_back({g == &spec, std::move(other)});
  }
  const std::vector<IntRange> ranges = integer_ranges(spec, candidate, {-8, 8});
  constexpr size_t kTogether = 48, kAlone = 24, kMostAlone = 16;
  const size_t trials = kTogether + kAlone * std::min(infinite.size(), kMostAlone);
  const double work = count_work(spec) + count_work(candidate);
  const size_t most = trials + size_t(std::min(4000.0, 1e8 / work));
  for (size_t trial = 0; trial < (unseen.empty() ? trials : most); trial++) {
    interruption_point();
    const bool alone = trial >= kTogether, nan = trial % 2 == 1 || trial >= trials;
    const size_t only = infinite[(trial - (alone ? kTogether : 0)) / kAlone % infinite.size()];
    // What guards a pole is often zero there, or one of the constants.
    const char* families[] = {"normal", "zeros", "constants"};
    std::vector<NDArray> inputs = make_inputs(spec, families[trial / 2 % 3], rng(), ranges);
    for (size_t k : infinite) {
      if (alone ? k != only : rng.chance(0.5)) continue;
      std::vector<double>& x = inputs[k].reals;
      const size_t count = size_t(1) << (trial / 6 % 4);
      for (size_t i = 0; i < count && !x.empty(); i++)
        x[rng.below(x.size())] = nan ? NAN : rng.chance(0.5) ? INFINITY : -INFINITY;
    }
    const std::vector<NDArray> a = eval(spec, inputs, exact), b = eval(candidate, inputs, exact);
    for (size_t k = 0; k < a.size(); k++) {
      if (a[k].ints != b[k].ints) return false;
      double scale = 0;
      for (double x : a[k].reals)
        if (std::isfinite(x)) scale = std::max(scale, std::fabs(x));
      for (size_t i = 0; i < a[k].reals.size(); i++) {
        const double x = a[k].reals[i], y = b[k].reals[i];
        if (std::isfinite(x) && !(std::fabs(x - y) <= 1e-6 * scale)) return false;
      }
    }
    for (Unseen& u : unseen)
      if (nan && !same_bits(eval(u.otherwise, inputs, exact), u.of_spec ? a : b)) u.left--;
    std::erase_if(unseen, [](const Unseen& u) { return u.left <= 0; });
  }
  return unseen.empty();
}

using Proof = std::pair<ProofPart, Certificate>;  // of a region

class Regions {
 public:
  Regions(const Graph& spec, const Graph& candidate, const VerifyOptions& options, Rng seeds,
          ThreadPool* pool, int binding)
      : spec_(spec), candidate_(candidate), options_(options), seeds_(seeds), pool_(pool),
        binding_(binding), work_(count_work(spec) + count_work(candidate)), known_(spec, candidate),
        spec_forms_(forms_of(spec)), candidate_forms_(forms_of(candidate)) {
    options_.error_log2 -= kRegionErrorLog2;
    options_.minimise = false;
  }

  // Nothing if the programs could not be proved equal.
  std::optional<std::vector<Proof>> prove() {
    const std::vector<ValuePair> targets = guesses(spec_, candidate_, known_);
    const size_t first_output = targets.size() - spec_.outputs().size();
    for (size_t i = 0; i < targets.size(); i++) {
      if (known_.equal(targets[i])) continue;
      const bool guess = i < first_output;
      // One that has its counterpart already is of no more use.
      if (guess && (failures_ >= kMaxFailures || known_.shared(targets[i]))) continue;
      if (proofs_.size() >= kMaxRegions || !(prove(targets[i], guess) || guess))
        return std::nullopt;
    }
    std::vector<Proof> proofs = needed();
    if (jumps_behind(proofs)) {
      Reference whole(spec_, pool_);
      Certificate gate;
      if (test_rounding(whole, candidate_, options_, seeds_.split(2), gate)) return std::nullopt;
    }
    return proofs;
  }
  const Forms& forms() const { return spec_forms_; }
  // The value of the first question that was answered "no" since the last proof.
  const std::optional<ValuePair>& first_failure() const { return first_failure_; }

 private:
  // Whether a decision depends on what is equal but for rounding: then it may fall otherwise.
  bool jumps_behind(const std::vector<Proof>& proofs) const {
    std::set<TensorId> targets;
    for (const Proof& p : proofs) targets.insert(p.first.target.spec);
    return std::ranges::any_of(spec_.ops(), [&](const Op& op) {
      return jumps(spec_, op) && depends_on_any(spec_, op.result(), targets);
    });
  }

  bool is_cancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }

  // Over the nearest shared values, then over others further back.
  bool prove(const ValuePair& target, bool guess) {
    interruption_point();
    std::vector<ValuePair> allowed = shared_values(candidate_, known_, spec_, spec_forms_);
    double failed = 0;
    int tries = 0;
    bool related = true;  // cuts that depend on other cuts are still allowed
    while (true) {
      const std::vector<ValuePair> cuts = frontier(spec_, candidate_, target, allowed);
      const auto programs = definitions_of({target, cuts}, spec_, candidate_, nullptr);
      if (!programs) return false;
      const double work = count_work(programs->spec) + count_work(programs->candidate);
      if (work > kNearlyWhole * work_ || is_cancelled()) return false;
      bool tried = false;
      if (related || work >= kWorkGrowth * failed) {
        Proof proof{{target, cuts}, {}};
        if (test(proof)) {
          failures_ = 0;
          first_failure_.reset();
          pairs_.push_back(target);
          proofs_.push_back(std::move(proof));
          known_ = Congruence(spec_, candidate_, pairs_);
          return true;
        }
        tried = true;
        if (!first_failure_) first_failure_ = target;
        failed = std::max(failed, work);
        if (guess && (++failures_ >= kMaxFailures || ++tries >= kMaxTries)) return false;
      }
      if (cuts.empty()) return false;
      std::set<TensorId> at;
      for (const ValuePair& p : cuts) at.insert(p.spec);
      const size_t before = allowed.size();
      if (related && tried)
        std::erase_if(allowed, [&](const ValuePair& p) {
          return at.count(p.spec) != 0 && depends_on_any(spec_, p.spec, at);
        });
      related = related && allowed.size() < before;
      if (!related)
        std::erase_if(allowed, [&](const ValuePair& p) { return at.count(p.spec) != 0; });
    }
  }

  bool test(Proof& proof) {
    std::vector<std::pair<size_t, ValuePair>> cuts;
    auto whole = definitions_of(proof.first, spec_, candidate_, &cuts);
    if (!whole) return false;
    std::vector<size_t> infinite;
    for (const auto& [input, p] : cuts)
      if (spec_forms_.infinite[p.spec.index] || candidate_forms_.infinite[p.candidate.index])
        infinite.push_back(input);
    // Layers of equal shapes ask the same question.
    for (const Answer& a : answers_)
      if (a.programs.spec == whole->spec && a.programs.candidate == whole->candidate &&
          a.infinite == infinite) {
        proof.first.tiles = a.tiles;
        proof.second = a.certificate;
        return a.equal;
      }
    const bool equal = test(proof, *whole, infinite);
    answers_.push_back(
        {std::move(*whole), std::move(infinite), equal, proof.first.tiles, proof.second});
    return equal;
  }

  bool test(Proof& proof, const PartPrograms& whole, const std::vector<size_t>& infinite) {
    if (options_.progress)
      options_.progress("region " + std::to_string(proofs_.size() + 1) +
                        ", where the programs differ");
    const Rng seeds = seeds_.split(50000 + questions_++);
    proof.first.tiles.emplace();
    PartPrograms here = whole;
    if (std::max(evaluation_cost(whole.spec), evaluation_cost(whole.candidate)) >
        options_.whole_cost) {
      const Symmetry symmetry({&whole.spec, &whole.candidate});
      if (const auto kept = symmetry.choose(options_.whole_cost, 2, seeds.split(3))) {
        if (auto tiles = symmetry.restrict_both(*kept)) {
          proof.first.tiles = numbers_of(*kept);
          here = {std::move(tiles->first), std::move(tiles->second)};
        }
      }
    }
    Reference reference(here.spec, pool_);
    return !test_static(reference, here.candidate, options_, seeds, binding_, proof.second,
                        {&whole.spec, &whole.candidate, true}) &&
           same_at_infinities(here.spec, here.candidate, infinite, seeds.split(4), pool_) &&
           (is_total(here.spec) || !is_made_finite(spec_, {proof.first.target.spec}) ||
            is_undefined_alike(here, seeds));
  }
  // Whether the rewrite has the original's poles, and is infinite or none there as the original is.
  bool is_undefined_alike(const PartPrograms& here, const Rng& seeds) const {
    Reference rewrite(here.candidate, pool_);
    const double work = count_work(here.spec) + count_work(here.candidate);
    if (!test_definedness(rewrite, here.spec, seeds.split(5)(), work, options_.cancel).same_poles)
      return false;
    const EvalOptions exact{Precision::Exact, pool_, {}};
    const OutsideInputs outside =
        inputs_outside(here.spec, here.candidate, {}, seeds.split(6)(), work, pool_);
    for (const std::vector<NDArray>& inputs : outside.sets) {
      const std::vector<NDArray> a = eval(here.spec, inputs, exact),
                                 b = eval(here.candidate, inputs, exact);
      for (size_t k = 0; k < a.size(); k++)
        for (size_t i = 0; i < a[k].reals.size(); i++) {
          const double x = a[k].reals[i], y = b[k].reals[i];
          const bool none = std::isnan(x) && std::isnan(y);
          if (!(std::isfinite(x) && std::isfinite(y)) && x != y && !none) return false;
        }
    }
    return is_alike_outside(here.spec, here.candidate, true, {}, seeds.split(7)(), work, pool_);
  }

  // Only the proofs that the outputs rest on: without one of the others they follow all the same.
  std::vector<Proof> needed() {
    auto complete = [&](const std::vector<Proof>& proofs) {
      std::vector<ProofPart> parts = mapped(proofs, &Proof::first);
      return missing_in(parts, spec_, candidate_).empty();
    };
    for (size_t i = proofs_.size(); i-- > 0;) {
      std::vector<Proof> fewer = proofs_;
      fewer.erase(fewer.begin() + long(i));
      if (complete(fewer)) proofs_ = std::move(fewer);
    }
    return proofs_;
  }

  const Graph &spec_, &candidate_;
  VerifyOptions options_;
  Rng seeds_;
  ThreadPool* pool_;
  int binding_;
  double work_;
  Congruence known_;
  Forms spec_forms_, candidate_forms_;
  std::vector<ValuePair> pairs_;  // proved
  std::vector<Proof> proofs_;
  struct Answer {
    PartPrograms programs;
    std::vector<size_t> infinite;  // inputs that may be
    bool equal = false;
    std::optional<std::vector<int64_t>> tiles;
    Certificate certificate;
  };
  std::vector<Answer> answers_;
  uint64_t questions_ = 0;
  int failures_ = 0;  // since the last proof
  std::optional<ValuePair> first_failure_;
};

}  // namespace

bool prove_regions(const Graph& spec, const Graph& candidate, const VerifyOptions& options,
                   Rng seeds, ThreadPool* pool, int binding, Certificate& certificate,
                   std::string* failed) {
  Regions regions(spec, candidate, options, seeds, pool, binding);
  const auto proofs = regions.prove();
  if (!proofs && failed != nullptr && regions.first_failure())
    *failed = describe(spec, regions.first_failure()->spec);
  if (!proofs) return false;
  Certificate& c = certificate;
  add_proofs(c, binding, *proofs, "regions");
  std::string where;
  for (const auto& [region, proof] : *proofs) {
    for (const ValuePair& cut : region.cuts)
      if (regions.forms().assumed[cut.spec.index])
        add_once(c.assumptions, "what is computed from weights alone is finite");
    where += (where.empty() ? "" : ", ") + describe(spec, region.target.spec);
  }
  const std::string count = std::to_string(proofs->size());
  c.coverage = proofs->empty()
                   ? "the programs are the same operators of the same operands"
                   : kInRegions + count + (proofs->size() == 1 ? " region" : " regions") +
                         " over free inputs, up to " + where + "; elsewhere they are the same";
  return true;
}

std::optional<PartPrograms> region_programs(const ProofPart& region, const Graph& spec,
                                            const Graph& candidate) {
  auto whole = definitions_of(region, spec, candidate, nullptr);
  if (!whole || !region.tiles || region.tiles->empty()) return whole;
  const Symmetry symmetry({&whole->spec, &whole->candidate});
  const auto kept = symmetry.first(*region.tiles);
  auto tiles = kept ? symmetry.restrict_both(*kept) : std::nullopt;
  if (!tiles || !symmetry.are_enough(*region.tiles)) return std::nullopt;
  return PartPrograms{std::move(tiles->first), std::move(tiles->second)};
}

bool may_be_infinite(const Graph& g, TensorId t, bool& weights) {
  const Forms f = forms_of(g);
  weights = f.assumed[t.index];
  return f.infinite[t.index];
}

}  // namespace tessera
