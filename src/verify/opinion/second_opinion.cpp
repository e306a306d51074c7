#include "verify/opinion/second_opinion.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/names.h"
#include "base/rng.h"
#include "base/text.h"
#include "eval/eval.h"
#include "solve/smt.h"
#include "verify/opinion/elements.h"
#include "verify/opinion/smt_script.h"
#include "verify/symmetry.h"

namespace tessera {
namespace {

// Multiply-adds and input elements of a program that is looked at as it is, and of the smaller
// instance that stands for one that costs more.
constexpr double kWholeWork = 4e3, kInstanceWork = 1.5e3;
constexpr double kFewWork = 60;  // of a proof, which asks a solver about every element that is left
constexpr double kMostWork = 3e5;      // beyond it nothing is tried
constexpr size_t kMaxQuestions = 200;  // to the solver

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The programs themselves, or smaller instances of both: fewer positions along axes on which they
// do the same everywhere, folded axes included.
struct InstancePair {
  Graph spec, candidate;
  std::string shapes;  // empty: the programs themselves
};
InstancePair instances(const Graph& spec, const Graph& candidate,
                       const SecondOpinionOptions& options) {
  auto cost = [](const Graph& a, const Graph& b) {
    return std::max(evaluation_cost(a), evaluation_cost(b));
  };
  if (!options.proof && cost(spec, candidate) <= kWholeWork) return {spec, candidate, ""};
  const Symmetry symmetry({&spec, &candidate}, options.proof ? Folds::Whole : Folds::Restricted);
  if (const auto kept =
          symmetry.choose(options.proof ? kFewWork : kInstanceWork, 2, Rng(options.seed))) {
    const auto a = symmetry.restrict(0, *kept), b = symmetry.restrict(1, *kept);
    if (a && b && cost(*a, *b) <= kMostWork) {
      std::string shapes;
      for (TensorId t : a->inputs())
        shapes += (shapes.empty() ? "" : ", ") + a->tensor(t).name + " " + a->type(t).str();
      return {*a, *b, shapes};
    }
  }
  if (cost(spec, candidate) > (options.proof ? kWholeWork : kMostWork))
    throw NoTerms{"the programs are too large, and have no smaller instances of the same kind"};
  return {spec, candidate, ""};
}

// Numbers of elements that the programs fold, and what they are in the instances: a constant N or
// 1/N is taken for a count where that is unambiguous.
std::vector<std::pair<Rational, Rational>>
counts_of(const std::vector<std::pair<const Graph*, const Graph*>>& whole_and_instance) {
  std::map<int64_t, std::set<int64_t>> counts;
  auto gather = [&](auto&& self, const Graph& whole, const Graph& instance) -> void {
    for (size_t i = 0; i < whole.ops().size(); ++i) {
      const Op &a = whole.ops()[i], &b = instance.ops()[i];
      if (a.body.valid()) self(self, whole.body(a), instance.body(b));
      if (!is_sum(a.kind)) continue;
      int64_t n = 1, m = 1;
      for (int axis : whole.attrs<ReduceAttrs>(a).axes) {
        n *= whole.type(a.inputs[0]).shape[size_t(axis)].extent;
        m *= instance.type(b.inputs[0]).shape[size_t(axis)].extent;
      }
      counts[n].insert(m);
    }
  };
  for (const auto& [whole, instance] : whole_and_instance) gather(gather, *whole, *instance);
  std::vector<std::pair<Rational, Rational>> constants;
  for (const auto& [n, m] : counts) {
    if (m.size() != 1 || *m.begin() == n) continue;
    constants.emplace_back(Rational(n), Rational(*m.begin()));
    constants.emplace_back(Rational::ratio(1, n), Rational::ratio(1, *m.begin()));
  }
  return constants;
}

// The inputs of a point as arrays; nothing where integers are asked for, which points are not.
std::optional<std::vector<NDArray>> inputs_at(const Terms& terms, const Graph& g, int point) {
  std::vector<NDArray> inputs;
  int64_t next = 0;
  for (TensorId t : g.inputs()) {
    const Type& type = g.type(t);
    NDArray a = NDArray::zeros(type.dtype, extents(type.shape));
    if (!is_float(type.dtype) && type.dtype != DType::Bool) return std::nullopt;
    for (double& x : a.reals) x = terms.input_at(next++, point);
    for (int64_t& x : a.ints) x = terms.input_at(next++, point) > 0;
    inputs.push_back(std::move(a));
  }
  return inputs;
}

using Pair = std::pair<TermId, TermId>;

class ElementComparison {
 public:
  ElementComparison(const InstancePair& at, const Counts& spec, const Counts& candidate,
                    const SecondOpinionOptions& options)
      : options_(options), at_(at), terms_(options.seed) {
    result_.shapes = at_.shapes;
    terms_.stop_when([this] { return over(); });
    const Observer observe = [this](std::vector<TermId>& values) { this->observe(values); };
    const std::vector<Elements> inputs = variables(terms_, at_.spec);
    // What a solver proves of values on the way may settle what it cannot prove of the outputs.
    // Simple ones first, which make others simple.
    constexpr int kRounds = 6;
    size_t longest = size_t(1) << 16;
    for (int round = 0; round < kRounds; ++round) {
      result_.elements = result_.by_laws = 0;
      open_.clear();
      const auto x = evaluate(terms_, at_.spec, inputs, spec, observe),
                 y = evaluate(terms_, at_.candidate, inputs, candidate, observe);
      for (size_t k = 0; k < x.size(); ++k) compare(k, x[k], y[k]);
      if (round == 0) by_laws_ = result_.by_laws;
      if (open_.empty() || doubtful_ || !options_.solver || !(z3_ = find_z3(options_.z3))) break;
      std::vector<Pair> asked = alike_;  // simpler ones first
      asked.insert(asked.end(), open_.begin(), open_.end());
      const size_t known = united_.size();
      for (const auto& [a, b] : settle(asked, false, longest))
        united_.emplace(std::max(a, b), std::min(a, b));
      const bool none = united_.size() == known;
      if (open_.empty() || (none && longest == kLongestScript)) break;
      if (none) longest = kLongestScript;
      met_.clear(), known_.clear(), alike_.clear();
    }
  }

  SecondOpinion conclude() {
    if (result_.opinion == Opinion::Disagrees) return result_;
    if (!open_.empty()) ask();
    if (open_.empty()) {
      result_.opinion = Opinion::Agrees;
      result_.by_laws = by_laws_;
      result_.by_solver = result_.elements - by_laws_;
      result_.what =
          std::to_string(result_.elements) + " elements are equal by the operators' laws";
      if (result_.by_solver > 0)
        result_.what +=
            ", " + std::to_string(result_.by_solver) + " of them proved by " + z3_version(*z3_);
    }
    return result_;
  }

 private:
  bool over() const {
    return since(start_) > options_.seconds / 2 || (options_.cancel && options_.cancel->load());
  }
  void compare(size_t output, const Elements& x, const Elements& y) {
    CHECK(x.shape == y.shape) << "outputs of different shapes";
    for (size_t i = 0; i < x.at.size(); ++i) {
      result_.elements++;
      const TermId a = x.at[i], b = y.at[i];
      const bool infinite = a >= kMinusInfinity || b >= kMinusInfinity;
      if (a == b || (!infinite && terms_.equal(a, b))) {
        result_.by_laws++;
        continue;
      }
      if (infinite) throw NoTerms{"an element is infinite in one of the programs"};
      if (const auto point = terms_.different_at(a, b)) {
        // Smaller instances may differ where the programs do not: in what depends on counts.
        if (at_.shapes.empty() && differ(output, i, *point)) return;
        doubtful_ = true;
      }
      open_.emplace_back(a, b);
    }
  }

  // Do the programs differ in f64 at the inputs of this point, at this element?
  bool differ(size_t output, size_t element, int point) {
    if (result_.opinion == Opinion::Disagrees) return true;
    constexpr int kLooks = 8;
    if (looked_++ >= kLooks) return false;
    const auto inputs = inputs_at(terms_, at_.spec, point);
    if (!inputs) return false;
    const WithMagnitude x = eval_with_magnitude(at_.spec, *inputs)[output],
                        y = eval_with_magnitude(at_.candidate, *inputs)[output];
    double a, b, scale;
    if (x.value.reals.empty()) {
      a = double(x.value.ints[element]);
      b = double(y.value.ints[element]);
      scale = 0;
    } else {
      a = x.value.reals[element];
      b = y.value.reals[element];
      scale = x.magnitude.reals[element] + y.magnitude.reals[element];
    }
    if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(scale)) return false;
    if (std::fabs(a - b) <= 1e-8 * scale) return false;
    result_.opinion = Opinion::Disagrees;
    result_.what = "output " + std::to_string(output) + ", element " + std::to_string(element) +
                   ": original " + significant(a, 6) + ", rewrite " + significant(b, 6) +
                   " at the inputs of point " + std::to_string(point) + " of seed " +
                   std::to_string(options_.seed);
    return true;
  }

  // Those of the pairs that a solver proves equal, see smt_script(), which are open no longer.
  std::set<Pair> settle(std::vector<Pair> pairs, bool real, size_t longest = kLongestScript) {
    std::set<Pair> proved;
    if (pairs.size() > kMaxQuestions) pairs.resize(kMaxQuestions);
    const double seconds = (options_.seconds - since(start_)) / 3;  // time for another round
    if (pairs.empty() || seconds <= 0) return proved;
    const int each = std::max(20, int(1000 * seconds / double(pairs.size())));
    const std::vector<SmtStatus> answers = solve_smt(
        *z3_, smt_script(terms_, pairs, real, each, longest), {seconds, options_.megabytes});
    for (size_t i = 0; i < answers.size() && i < pairs.size(); ++i)
      if (answers[i] == SmtStatus::Unsat) proved.insert(pairs[i]);
    std::erase_if(open_, [&](const Pair& pair) { return proved.contains(pair); });
    return proved;
  }

  // Writes one term for values that are proved equal, and notes which others look alike, most
  // of them at the same place.
  void observe(std::vector<TermId>& values) {
    constexpr double kDigits = 1e-9;
    constexpr size_t kMostHere = 3;
    for (size_t i = 0; i < values.size(); ++i) {
      TermId& a = values[i];
      for (auto it = united_.find(a); it != united_.end(); it = united_.find(a)) a = it->second;
      if (infinite(a) || !met_.insert(a).second) continue;
      const TermValue& s = terms_.shadow(a, 0);
      if (!std::isfinite(s.value) || !std::isfinite(s.scale)) continue;
      size_t here = 0, alike = 0;
      const auto last = known_.upper_bound(s.value + kDigits * s.scale);
      for (auto it = known_.lower_bound(s.value - kDigits * s.scale); it != last; ++it) {
        const auto [other, place] = it->second;
        size_t& count = place == i ? here : alike;
        if (count < (place == i ? kMostHere : 1) && !terms_.different_at(a, other))
          alike_.emplace_back(a, other), ++count;
      }
      known_.emplace(s.value, std::pair(a, i));
    }
  }

  void ask() {
    const auto cannot_tell = [&](const std::string& more) {
      result_.what = std::to_string(open_.size()) + " of " + std::to_string(result_.elements) +
                     " elements are not settled by the operators' laws; " + more;
    };
    if (doubtful_)
      return cannot_tell(at_.shapes.empty()
                             ? "their values differ by more than rounding, but not in f64"
                             : "the values of smaller instances differ");
    if (!options_.solver) return cannot_tell("no solver was asked");
    if (!z3_) return cannot_tell(kInstallZ3);
    // One that stays open is enough.
    if (!settle({open_[0]}, true).empty()) settle(open_, true);
    if (!open_.empty()) cannot_tell(z3_version(*z3_) + " does not prove them");
  }

  const SecondOpinionOptions& options_;
  Clock::time_point start_ = Clock::now();
  const InstancePair& at_;
  Terms terms_;
  SecondOpinion result_;
  std::vector<Pair> open_, alike_;  // outputs that are not settled, values on the way
  int64_t by_laws_ = 0;             // without a solver
  bool doubtful_ = false;
  int looked_ = 0;
  std::optional<std::string> z3_;
  std::set<TermId> met_;                                    // values of both programs
  std::multimap<double, std::pair<TermId, size_t>> known_;  // with places, by what they are
  std::map<TermId, TermId> united_;
};

}  // namespace

const char* name(Opinion o) {
  return name_of<Opinion::Disagrees>(o, {"agrees", "cannot tell", "disagrees"});
}

std::string SecondOpinion::str() const {
  return std::string(name(opinion)) + ": " + what +
         (shapes.empty() ? "" : " (smaller instances: " + shapes + ")");
}

SecondOpinion second_opinion(const Graph& spec, const Graph& candidate,
                             const SecondOpinionOptions& options) {
  const Clock::time_point start = Clock::now();
  SecondOpinion result;
  try {
    const InstancePair at = instances(spec, candidate, options);
    if (at.shapes.empty()) {
      result = ElementComparison(at, {}, {}, options).conclude();
    } else {
      // Constants stay as they are and means divide by the original counts; or all counts,
      // constants that are one included, are those of the instances.
      result = ElementComparison(at, {&spec, {}}, {&candidate, {}}, options).conclude();
      if (result.opinion != Opinion::Agrees && !options.proof) {
        const Counts own{nullptr, counts_of({{&spec, &at.spec}, {&candidate, &at.candidate}})};
        const SecondOpinion again = ElementComparison(at, own, own, options).conclude();
        if (again.opinion == Opinion::Agrees) result = again;
      }
    }
  } catch (const NoTerms& e) {
    result.what = e.why;
  } catch (const Error& e) {
    result.what = e.what();
  }
  result.seconds = since(start);
  return result;
}

}  // namespace tessera
