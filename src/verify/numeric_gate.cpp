#include "verify/numeric_gate.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <set>

#include "base/rng.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "verify/range_search.h"
#include "verify/work.h"

namespace tessera {
namespace {

double epsilon_of(DType dtype) { return std::ldexp(1.0, 1 - format_of(dtype).bits); }

bool same_special(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }

bool zeros_differ(double a, double b) {
  return a == 0 && b == 0 && std::signbit(a) != std::signbit(b);
}

bool is_cancelled(const GateOptions& o) { return o.cancel != nullptr && o.cancel->load(); }

int64_t exponentials(const Graph& g) {
  return std::ranges::count_if(
      g.ops(), [](const Op& op) { return op.kind == OpKind::Exp; });
}

// What both programs make of one set of inputs in f64.
struct Exact {
  std::vector<WithMagnitude> spec, candidate;
};

// Families of inputs of extreme magnitude, or at which the original itself loses digits: those that
// level `fast` lets be.
bool is_harsh(const std::string& family) {
  static const std::set<std::string> ordinary = {"normal",   "zeros",      "ties",      "equal",
                                                 "positive", "negative",   "whole",     "all_zero",
                                                 "integers", "neighbours", "constants", "rows"};
  return ordinary.count(family) == 0;
}

bool is_whole_family(const std::string& family) {
  return family == "whole" || family == "rows" || family == "integers" || family == "neighbours";
}

bool are_whole(const std::vector<NDArray>& inputs) {
  return std::ranges::all_of(
      inputs,
      [](const NDArray& a) {
        return std::ranges::all_of(
            a.reals, [](double x) { return x == std::floor(x); });
      });
}

// The element where two f64 results differ most beyond `allowed`.
struct Worst {
  double ratio = 0;  // > 1: a difference
  int output = -1;
  int64_t index = 0;
  double spec = 0, candidate = 0, allowed = 0;
  bool undefined = false;  // one side is not finite
};

class GateComparison {
 public:
  GateComparison(Reference& reference, const Graph& candidate, const GateOptions& options)
      : reference_(reference), spec_(reference.spec()), candidate_(candidate), o_(options) {
    const Graph& spec = spec_;
    length_ = std::sqrt(std::max(rounding_length(spec), rounding_length(candidate)));
    // Integers on their own are compared over their whole range; among floats they stay small.
    const bool floats =
        std::ranges::any_of(spec.tensors(), [](const Tensor& t) { return is_float(t.type.dtype); });
    const IntRange all{INT64_MIN, INT64_MAX};
    ranges_ = integer_ranges(spec, candidate, floats ? IntRange{-8, 8} : all);
    wide_ = integer_ranges(spec, candidate, all);
    whole_ = integer_ranges(spec, candidate, {-8, 255});
    work_ = count_work(spec) * 4 + count_work(candidate);
  }

  std::vector<NDArray> inputs(const std::string& family, uint64_t seed) const {
    return make_inputs(spec_, family, seed, ranges(family));
  }
  // Ordinary families, and what else is asked of floats and of integers.
  std::vector<std::string> families() const {
    std::vector<std::string> all = input_families();
    all.push_back("decades");   // positive numbers whose quotients are lost beside 1
    all.push_back("negative");  // where max(x, 0) is 0, sums that cancel are not
    if (std::ranges::any_of(spec_.inputs(),
                            [&](TensorId t) { return is_integer(spec_.type(t).dtype); }))
      all.insert(all.end(), {"integers", "neighbours"});  // of the whole range, which wrap; alike
    if (std::ranges::any_of(ranges_, [](const IntRange& r) { return !r.points.empty(); }))
      all.push_back("constants");  // of the programs, which compare with them
    if (exponentials(candidate_) > exponentials(spec_))
      all.push_back("opposed");  // where exp(x + y) is a number and exp(x) is none
    if (turns(spec_, false)) all.push_back("whole");  // where jumps are meant
    if (std::ranges::any_of(spec_.ops(), [](const Op& op) { return op.kind == OpKind::Div; }))
      all.insert(all.end(), 4, "ties");  // where denominators are zero, what clips them is not
    return all;
  }
  const std::vector<IntRange>& ranges(const std::string& family) const {
    return family == "integers" || family == "neighbours" ? wide_
           : is_whole_family(family)                      ? whole_
                                                          : ranges_;
  }
  // Whether two results of output `k` that are `off` apart can only be on two sides of a jump.
  bool jumps(size_t k, double magnitude, double off) const {
    const double unit =
        is_float(spec_.type(spec_.outputs()[k]).dtype) ? epsilon_of(rounded_[k]) : 0;
    return off > std::min(0x1p-6, 4096 * unit * length_) * magnitude;
  }
  // The first of many draws (half of small numbers) that tells a jump; one number in 10,000 does.
  uint64_t telling(const std::string& family, const Rng& seeds) const {
    int64_t compared = 0;
    const int draws = turns(spec_, false) ? int(std::min(4096.0, 1e8 / std::max(1.0, work_))) : 0;
    for (int n = 0; n < draws && compared < 1 << 17 && !is_cancelled(o_); n++) {
      const uint64_t seed = seeds.split(uint64_t(n))();
      const auto drawn = inputs(family, seed), s = native(spec_, drawn),
                 c = native(candidate_, drawn);
      for (size_t k = 0; k < s.size(); k++)
        for (size_t i = 0; i < size_t(s[k].size()); i++, compared++) {
          const double x = s[k].at(i), off = std::fabs(x - c[k].at(i));
          if (!jumps(k, std::fabs(x), off)) continue;
          const WithMagnitude& exact = run(family, seed).exact[k];
          if (s[k].reals.empty() || jumps(k, exact.magnitude.reals[i], off)) return seed;
        }
    }
    return seeds.split(0)();
  }
  const Graph& spec() const { return spec_; }
  double work() const { return work_; }
  double length() const { return length_; }
  DType rounding(size_t k) const { return rounded_[k]; }

  // The original at one family, with what is known of it already.
  Reference::Run& run(const std::string& family, uint64_t seed) const {
    Reference::Run& r = reference_.run({family, seed, ranges(family)});
    if (r.inputs.empty()) r = run_at(inputs(family, seed));
    return r;
  }
  Reference::Run run_at(std::vector<NDArray> made) const {
    Reference::Run r;
    r.exact = magnitudes(spec_, made);  // throws where an index is out of range
    r.inputs = std::move(made);
    return r;
  }
  std::vector<WithMagnitude> magnitudes(const Graph& g, const std::vector<NDArray>& inputs) const {
    return eval_with_magnitude(g, inputs, {Precision::Wide, reference_.pool(), {}});
  }
  Exact exact(const std::vector<NDArray>& inputs) const {
    return {magnitudes(spec_, inputs), magnitudes(candidate_, inputs)};
  }
  std::vector<NDArray> native(const Graph& g, const std::vector<NDArray>& inputs) const {
    return eval(g, inputs, {Precision::Native, reference_.pool(), {}});
  }
  // Both programs with every rounding upward, and downward.
  std::vector<std::vector<NDArray>> rounded(const std::vector<NDArray>& inputs) const {
    std::vector<std::vector<NDArray>> results;
    for (const Graph* g : {&spec_, &candidate_})
      for (const int direction : {FE_UPWARD, FE_DOWNWARD}) {
        std::fesetround(direction);
        results.push_back(eval(*g, inputs, {Precision::Native, nullptr, {}}));
        std::fesetround(FE_TONEAREST);
      }
    return results;
  }

  // How far the original's results move when every input moves by a few units in the last place of
  // its dtype (or of f64): at a jump or a root of zero, rounding alone explains such differences,
  // though Σ|terms| does not show it. Integers that flip count as infinite.
  using Sensitivity = Reference::Sensitivity;
  Sensitivity sensitivity(const Graph& g, const std::vector<NDArray>& inputs,
                          const std::vector<WithMagnitude>& at, bool f64) const {
    Sensitivity moved;
    for (const WithMagnitude& w : at)
      moved.emplace_back(std::max(w.value.reals.size(), w.value.ints.size()), 0.0);
    Rng rng(o_.seed ^ 0x9d2c5680u);
    for (int trial = 0; trial < 16; trial++) {
      std::vector<NDArray> near = inputs;
      for (NDArray& a : near) {
        const double step = 4 * (f64 ? 0x1p-52 : is_float(a.dtype) ? epsilon_of(a.dtype) : 0);
        for (double& x : a.reals) x *= 1 + step * double(rng.between(-2, 2)) / 2;
      }
      std::vector<NDArray> y;
      for (WithMagnitude& w : magnitudes(g, near)) y.push_back(std::move(w.value));
      for (size_t k = 0; k < y.size(); k++) {
        for (size_t i = 0; i < y[k].ints.size(); i++)
          if (y[k].ints[i] != at[k].value.ints[i]) moved[k][i] = INFINITY;
        for (size_t i = 0; i < y[k].reals.size(); i++) {
          if (!std::isfinite(y[k].reals[i]) && !std::isfinite(at[k].value.reals[i])) continue;
          const double d = std::fabs(y[k].reals[i] - at[k].value.reals[i]);
          moved[k][i] = std::isfinite(d) ? std::max(moved[k][i], d) : INFINITY;
        }
      }
    }
    return moved;
  }

  // In f64 either program may sit on a jump by an accident of rounding.
  Sensitivity sensitivity_of_both(const std::vector<NDArray>& inputs, const Exact& e) const {
    Sensitivity moved = sensitivity(spec_, inputs, e.spec, true);
    const Sensitivity more = sensitivity(candidate_, inputs, e.candidate, true);
    for (size_t k = 0; k < moved.size(); k++)
      for (size_t i = 0; i < moved[k].size(); i++) moved[k][i] = std::max(moved[k][i], more[k][i]);
    return moved;
  }

  // The worst difference in f64. Where the original is not finite nothing is compared, and what
  // `excuse` (if any) explains is no difference.
  Worst worst_exact(const Exact& e, const Sensitivity* excuse = nullptr) const {
    Worst worst;
    auto excused = [&](size_t k, size_t i, double difference) {
      return excuse != nullptr && 4 * (*excuse)[k][i] >= difference;
    };
    for (size_t k = 0; k < e.spec.size(); k++) {
      const NDArray &s = e.spec[k].value, &c = e.candidate[k].value;
      for (size_t i = 0; i < s.ints.size(); i++)
        if (s.ints[i] != c.ints[i] && worst.ratio < 1e300 && !excused(k, i, INFINITY))
          worst = {1e300, int(k), int64_t(i), double(s.ints[i]), double(c.ints[i]), 0, false};
      for (size_t i = 0; i < s.reals.size(); i++) {
        const double x = s.reals[i], y = c.reals[i];
        if (!std::isfinite(x) || x == y) continue;
        const double scale = e.spec[k].magnitude.reals[i] + e.candidate[k].magnitude.reals[i];
        if (!std::isfinite(y)) {
          // Not finite because of overflow of f64 itself is a matter of precision.
          if (std::isfinite(e.spec[k].magnitude.reals[i]) && worst.ratio < 1e200 &&
              !excused(k, i, std::fabs(x)))
            worst = {1e200, int(k), int64_t(i), x, y, 0, true};
          continue;
        }
        if (!std::isfinite(scale)) continue;  // a jump nearby: no telling
        const double allowed = 64 * 0x1p-52 * length_ * scale + 0x1p-1000;
        const double ratio = std::fabs(x - y) / allowed;
        if (ratio > worst.ratio && !(ratio > 1 && excused(k, i, std::fabs(x - y))))
          worst = {ratio, int(k), int64_t(i), x, y, allowed, false};
      }
    }
    return worst;
  }

  Counterexample counterexample(Difference kind, const std::string& what,
                                const std::vector<NDArray>& inputs, const Worst& w) const {
    Counterexample c;
    c.kind = kind;
    c.what = what;
    c.inputs = concrete(spec_, inputs);
    c.output = w.output;
    const Type& type = spec_.type(spec_.outputs()[size_t(w.output)]);
    c.position = position_of(extents(type.shape), w.index);
    c.spec = w.spec;
    c.candidate = w.candidate;
    c.allowed = w.allowed;
    return c;
  }

  // Makes inputs that show an f64 difference smaller: zeros, then ones and round numbers.
  std::vector<NDArray> minimise(std::vector<NDArray> inputs) const {
    int64_t elements = sum_of<int64_t>(inputs, &NDArray::size);
    int budget = int(std::clamp(2e7 / std::max(1.0, work_), 8.0, 600.0));
    auto still = [&](const std::vector<NDArray>& trial) {
      budget--;
      const Exact e = exact(trial);
      if (worst_exact(e).ratio <= 1e3) return false;
      const Sensitivity moved = sensitivity_of_both(trial, e);
      return worst_exact(e, &moved).ratio > 1e3;
    };
    if (!still(inputs)) return inputs;
    auto attempt = [&](auto change) {
      if (budget <= 0) return;
      std::vector<NDArray> trial = inputs;
      change(trial);
      if (still(trial)) inputs = std::move(trial);
    };
    for (size_t k = 0; k < inputs.size(); k++)
      attempt([&](std::vector<NDArray>& t) {
        std::ranges::fill(t[k].reals, 0.0);
        std::ranges::fill(t[k].ints, 0);
      });
    // Halves, quarters … down to elements.
    for (int64_t pieces = 2; pieces < 2 * elements && budget > 0; pieces *= 2)
      for (size_t k = 0; k < inputs.size(); k++) {
        const int64_t n = inputs[k].size(), size = (n + pieces - 1) / pieces;
        for (int64_t from = 0; from < n && budget > 0; from += size) {
          bool zero = true;
          for (int64_t i = from; i < std::min(n, from + size); i++)
            zero = zero && inputs[k].at(size_t(i)) == 0;
          if (zero) continue;
          attempt([&](std::vector<NDArray>& t) {
            for (int64_t i = from; i < std::min(n, from + size); i++)
              (t[k].ints.empty() ? t[k].reals[size_t(i)] = 0 : double(t[k].ints[size_t(i)] = 0));
          });
        }
      }
    for (size_t k = 0; k < inputs.size(); k++)
      for (size_t i = 0; i < inputs[k].reals.size() && budget > 0; i++) {
        const double x = inputs[k].reals[i];
        if (x == 0) continue;
        for (double y : {1.0, std::round(x), std::round(x * 8) / 8})
          if (y != 0 && y != inputs[k].reals[i])
            attempt([&](std::vector<NDArray>& t) { t[k].reals[i] = round_to(t[k].dtype, y); });
      }
    return inputs;
  }

  // A difference in f64 at these inputs, or nothing.
  std::optional<Counterexample> difference(const std::vector<NDArray>& inputs,
                                           const Exact& e) const {
    Worst w = worst_exact(e);
    if (w.ratio <= 1) return std::nullopt;
    const Sensitivity moved = sensitivity_of_both(inputs, e);
    w = worst_exact(e, &moved);
    if (w.ratio <= 1) return std::nullopt;
    if (!o_.minimise || w.ratio <= 1e3) return value_counterexample(inputs, w);
    std::vector<NDArray> small = minimise(inputs);
    Worst after = worst_exact(exact(small));
    if (after.ratio <= 1e3) after = w, small = inputs;
    return value_counterexample(small, after);
  }
  Counterexample value_counterexample(const std::vector<NDArray>& inputs, const Worst& w) const {
    return counterexample(w.undefined ? Difference::Definedness : Difference::Value,
                          w.undefined
                              ? "in f64 the original is finite and the rewrite is not"
                              : "the programs compute different values in exact f64 evaluation",
                          inputs, w);
  }

  Reference& reference_;
  const Graph &spec_, &candidate_;
  const GateOptions& o_;
  double length_ = 1, work_ = 0;
  std::vector<IntRange> ranges_, wide_, whole_;
  std::vector<DType> rounded_ = coarsest_rounding(spec_);
};

// Operators of the original that are undefined somewhere, for the assumption's text.
std::string partial_operators(const Graph& g) {
  std::string list;
  int shown = 0;
  for (size_t i = 0; i < g.ops().size(); i++) {
    const Op& op = g.ops()[i];
    const bool partial = op.kind == OpKind::Div || op.kind == OpKind::Rsqrt ||
                         op.kind == OpKind::Sqrt || op.kind == OpKind::Log ||
                         (op.kind == OpKind::Pow && (g.attrs<PowAttrs>(op).exponent.negative() ||
                                                     !g.attrs<PowAttrs>(op).exponent.is_integer()));
    if (!partial || ++shown > 4) continue;
    list += (list.empty() ? "" : "; ") + print_op(g, OpId(i));
  }
  return list.empty() ? "its kernels" : list;
}

// Whether a program adds up terms: there infinities of both signs meet, or not, as a rewrite has
// it.
bool adds_up(const Graph& g) {
  return std::ranges::any_of(
      g.ops(), [](const Op& op) { return op.body.valid() || adds_up(op.kind); });
}

// Looks for the scales at which formats break; false if that ends the gate.
bool breaks_nowhere(const GateComparison& cmp, Reference& reference, const Graph& candidate,
                    const GateOptions& o, GateResult& result) {
  RangeOptions ranges;
  ranges.seed = Rng(o.seed).split(5000)();
  ranges.ranges = cmp.ranges("scales");
  ranges.c = o.c;
  ranges.max_work = o.max_work / 5;
  ranges.cancel = o.cancel;
  ranges.progress = o.progress;
  ranges.sensitivity = [&](Reference::Run& r) {
    r.moved = cmp.sensitivity(reference.spec(), r.inputs, r.exact, false);
  };
  RangeResult found = search_ranges(reference, candidate, ranges);
  result.cancelled = found.cancelled;
  result.families.push_back(found.family);
  if (found.fault) {
    const RangeFault& f = *found.fault;
    result.counterexample = cmp.counterexample(
        Difference::Precision,
        (f.undefined ? "the original is finite in its dtype and the rewrite is not ("
                     : "the rewrite loses digits that the original keeps (") +
            f.where + ")",
        f.inputs, {0, f.output, f.index, f.spec, f.candidate, f.allowed, f.undefined});
  }
  return !found.cancelled && !found.fault;
}

// Whether NaN or infinities turn a condition that falls one way at ordinary inputs.
bool asks_by_conditions(const GateComparison& cmp, const Graph& spec, const GateOptions& o) {
  std::vector<TensorId> conditions;
  for (const Op& op : spec.ops())
    if (spec.type(op.result()).dtype == DType::Bool && !op.inputs.empty())
      conditions.push_back(op.result());
  Graph g = spec;
  g.set_outputs(conditions);
  constexpr int kBoth = 3;
  std::vector<int> sides(conditions.size());
  const auto is_open = [](int side) { return side != kBoth; };
  const double draws = std::min(48.0, o.max_work / (8 * std::max(1.0, cmp.work())));
  for (const bool ordinary : {true, false})
    for (int n = 0; n < draws && std::ranges::any_of(sides, is_open); n++) {
      const char* const all[] = {"normal", "mixed", "all_zero", "huge", "tiny", "whole"};
      const char* const family = ordinary ? all[n % 6] : n % 2 ? "special" : "few_special";
      const auto values = cmp.native(g, cmp.inputs(family, Rng(o.seed).split(9000 + n)()));
      for (size_t k = 0; k < sides.size(); k++)
        for (const int64_t holds : values[k].ints) {
          const int now = sides[k] | (holds ? 1 : 2);
          if (!ordinary && is_open(sides[k]) && now == kBoth) return true;
          if (ordinary) sides[k] = now;
        }
    }
  return false;
}

// Both programs at one set of inputs, each in its own dtype against f64.
class AtInputs {
 public:
  // `keeps`: what is made of NaN and infinities counts; `elementwise`: neither program adds up.
  AtInputs(const GateComparison& cmp, const Graph& candidate, const GateOptions& o,
           Reference::Run& run, std::string family, uint64_t seed, bool keeps, bool elementwise)
      : cmp_(cmp), candidate_(candidate), o_(o), run_(run), keeps_(keeps),
        elementwise_(elementwise) {
    figures_.family = std::move(family);
    figures_.seed = seed;
    const std::string& f = figures_.family;
    special_ = f == "special" || f == "few_special" || f == "extreme";
    sought_ = f == "rare";
    whole_inputs_ = are_whole(run.inputs);
    whole_ = sought_ ? whole_inputs_ : is_whole_family(f);
    e_.spec = run.exact;
  }

  // What the gate refuses at these inputs; `cheap`: different numbers are looked for at once.
  std::optional<Counterexample> fault(bool cheap) {
    if (cheap && !special_) {
      e_.candidate = cmp_.magnitudes(candidate_, run_.inputs);
      if (auto difference = cmp_.difference(run_.inputs, e_)) return difference;
    }
    if (run_.native.empty()) run_.native = cmp_.native(cmp_.spec(), run_.inputs);
    results_ = cmp_.native(candidate_, run_.inputs);
    scan(nullptr);
    if (worst_.ratio > 1) {
      if (run_.moved.empty())
        run_.moved = cmp_.sensitivity(cmp_.spec(), run_.inputs, e_.spec, false);
      scan(&run_.moved);
    }
    if (worst_.ratio > 1) return imprecise();
    if (lost_infinity_)
      return undefined("the original is infinite and the rewrite is NaN", *lost_infinity_);
    if (keeps_ && differs_special_)
      return undefined("the programs differ where the original is not finite", *differs_special_);
    return std::nullopt;
  }
  const GateFamily& figures() const { return figures_; }
  bool larger_domain() const { return larger_domain_; }

 private:
  using Sensitivity = GateComparison::Sensitivity;

  // A jump that was found may be made to tie: of values that are rounded, rounding decides; the
  // rewrite's alone excuses nothing at whole numbers at which the original is right.
  bool is_meant(size_t k, size_t i) {
    if (sought_ && rounded_.empty()) rounded_ = cmp_.rounded(run_.inputs);
    const double own = run_.native[k].at(i), right = run_.exact[k].value.at(i);
    const bool exact = whole_inputs_ && !cmp_.jumps(k, std::fabs(own), std::fabs(own - right));
    for (size_t up = 0; up < rounded_.size(); up += 2) {
      const double x = rounded_[up][k].at(i), y = rounded_[up + 1][k].at(i);
      if (cmp_.jumps(k, std::fabs(x), std::fabs(x - y))) return up > 0 && exact;
    }
    return true;
  }

  // Every output but for what `excuse` (if any) explains.
  void scan(const Sensitivity* excuse) {
    GateFamily blank;
    blank.family = figures_.family;
    blank.seed = figures_.seed;
    figures_ = std::move(blank);
    worst_ = {};
    counted_ = 0;
    for (size_t k = 0; k < run_.native.size(); k++) {
      if (!is_float(run_.native[k].dtype)) {
        scan_integers(k);
        continue;
      }
      const double spec_error = measure(k, excuse);
      figures_.spec_error = std::max(figures_.spec_error, spec_error);
      for (size_t i = 0; i < run_.native[k].reals.size(); i++)
        is_usable(k, i) ? judge(k, i, spec_error, excuse) : judge_special(k, i);
    }
  }

  // Compared in f64; what rounding flips is reported.
  void scan_integers(size_t k) {
    const NDArray &s = run_.native[k], &c = results_[k];
    for (size_t i = 0; i < s.ints.size(); i++) {
      if (c.ints[i] == s.ints[i]) continue;
      const Worst flip{2, int(k), int64_t(i), s.at(i), c.at(i), 0, special_};
      if (whole_ && is_meant(k, i)) worst_ = flip;
      if (!special_) continue;
      figures_.special_differ++;
      if (!differs_special_) differs_special_ = flip;
    }
    figures_.elements += int64_t(s.ints.size());
  }

  bool is_usable(size_t k, size_t i) const {
    return !special_ && std::isfinite(e_.spec[k].value.reals[i]) &&
           std::isfinite(run_.native[k].reals[i]);
  }
  double off(size_t k, size_t i, double x) const { return e_.spec[k].error(i, x); }
  // The error that rounding explains, as a part of Σ|terms|.
  double explained(size_t k) const { return o_.c * epsilon_of(cmp_.rounding(k)) * cmp_.length(); }

  // The original's largest error beside Σ|terms|; notes both programs' errors.
  double measure(size_t k, const Sensitivity* excuse) {
    double largest = 0;
    const std::vector<double>& magnitude = e_.spec[k].magnitude.reals;
    for (size_t i = 0; i < magnitude.size(); i++) {
      const double scale = magnitude[i];
      if (!is_usable(k, i) || !std::isfinite(scale) || scale <= 0 ||
          (excuse && (*excuse)[k][i] > 0.01 * scale))
        continue;
      const double own = off(k, i, run_.native[k].reals[i]) / scale;
      const double other = off(k, i, results_[k].reals[i]) / scale;
      largest = std::max(largest, own);
      if (!std::isfinite(other)) continue;  // judged below
      figures_.candidate_error = std::max(figures_.candidate_error, other);
      counted_++;
      figures_.spec_mean += (own - figures_.spec_mean) / double(counted_);
      figures_.candidate_mean += (other - figures_.candidate_mean) / double(counted_);
    }
    return largest;
  }

  // An element that the original does not make a number, or of inputs that are none.
  void judge_special(size_t k, size_t i) {
    const double x = run_.native[k].reals[i], y = results_[k].reals[i];
    const double right = e_.spec[k].value.reals[i], scale = e_.spec[k].magnitude.reals[i];
    figures_.not_finite++;
    // What is made of NaN and infinities by programs that ask for them.
    const double near = std::isfinite(scale)
                            ? explained(k) * scale + 4 * smallest_of(run_.native[k].dtype)
                            : 0x1p-6 * std::max(std::fabs(x), std::fabs(y));
    const bool differ =
        special_ && std::isfinite(x) && std::isfinite(y)
            ? keeps_ && (zeros_differ(x, y) || std::fabs(x - y) > std::max(near, 2 * off(k, i, x)))
            : !same_special(x, y);
    if (!differ) return;
    const Worst here{2, int(k), int64_t(i), x, y, 0, true};
    figures_.special_differ++;
    if (!differs_special_) differs_special_ = here;
    if (special_) return;
    if (!std::isfinite(right) && std::isfinite(y)) larger_domain_ = true;
    // Infinity has a sign and an order, NaN has none: that is less, not more.
    if (elementwise_ && std::isinf(right) && right == x && std::isnan(y) && !lost_infinity_)
      lost_infinity_ = here;
  }

  void judge(size_t k, size_t i, double spec_error, const Sensitivity* excuse) {
    const double x = run_.native[k].reals[i], y = results_[k].reals[i];
    const double right = e_.spec[k].value.reals[i], scale = e_.spec[k].magnitude.reals[i];
    figures_.elements += std::isfinite(scale);
    const double error = std::isfinite(y) ? off(k, i, y) : INFINITY;
    const bool far = whole_ && cmp_.jumps(k, scale, std::fabs(x - y));
    // What is finite beyond a pole (by clip) has the pole's sign. Where neither program rounds,
    // denominators are not zero by accident.
    const bool exact =
        x == right && (e_.candidate.empty() ? whole_inputs_ : y == e_.candidate[k].value.reals[i]);
    const bool pole = exact && std::isinf(scale) &&
                      std::fabs(x - y) > 0x1p-6 * std::fmax(std::fabs(x), std::fabs(y));
    const bool jump = pole || (far && is_meant(k, i));
    if (!jump && (error == 0 || error <= 2 * off(k, i, x))) return;
    if (excuse && !jump && !(whole_ && !far && x == right) &&
        4 * (*excuse)[k][i] >= std::min(error, std::fabs(x) + 1e-30))
      return;
    if (jump && worst_.ratio < 2) worst_ = {2, int(k), int64_t(i), x, y, 0, false};
    if (std::isinf(error)) {
      if (worst_.ratio < 1e300) worst_ = {1e300, int(k), int64_t(i), x, y, 0, true};
      return;
    }
    if (!std::isfinite(scale)) return;
    const double floor = 4 * smallest_of(run_.native[k].dtype) * cmp_.length();
    const double allowed = std::max(2 * spec_error, explained(k)) * scale + floor;
    figures_.worst_ratio = std::max(figures_.worst_ratio, error / allowed);
    if (error / allowed > worst_.ratio)
      worst_ = {error / allowed, int(k), int64_t(i), x, y, allowed, false};
  }

  // Different numbers, or equal numbers computed badly? f64 tells.
  Counterexample imprecise() {
    if (e_.candidate.empty()) {
      e_.candidate = cmp_.magnitudes(candidate_, run_.inputs);
      if (auto difference = cmp_.difference(run_.inputs, e_)) return *std::move(difference);
    }
    const std::string what =
        worst_.undefined
            ? "the original is finite in its dtype and the rewrite is not"
            : "the rewrite's error is larger than the original's and than rounding explains";
    return cmp_.counterexample(Difference::Precision, what + at(), run_.inputs, worst_);
  }
  Counterexample undefined(const std::string& what, const Worst& w) const {
    return cmp_.counterexample(Difference::Definedness, what + at(), run_.inputs, w);
  }
  std::string at() const { return " (inputs: " + figures_.family + ")"; }

  const GateComparison& cmp_;
  const Graph& candidate_;
  const GateOptions& o_;
  Reference::Run& run_;
  bool keeps_, elementwise_, special_, sought_, whole_inputs_, whole_;
  Exact e_;
  std::vector<NDArray> results_;               // the rewrite's
  std::vector<std::vector<NDArray>> rounded_;  // of both, upward and downward
  GateFamily figures_;
  int64_t counted_ = 0;  // elements in the means
  Worst worst_;
  std::optional<Worst> differs_special_, lost_infinity_;
  bool larger_domain_ = false;
};

// Families of inputs that always run: the first ("mixed") holds a row of nearly every other one,
// these are like no other. The rest run while affordable.
bool is_unlike_others(const std::string& family) {
  return family == "integers" || family == "neighbours" || family == "constants" ||
         family == "opposed";
}

}  // namespace

GateResult numeric_gate(Reference& reference, const Graph& candidate, const GateOptions& o) {
  GateResult result;
  const Graph& spec = reference.spec();
  const GateComparison cmp(reference, candidate, o);
  double spent = 0;
  bool larger_domain = false;
  const bool elementwise = !adds_up(spec) && !adds_up(candidate);
  std::vector<std::string> families =
      o.whole ? std::vector<std::string>{"whole", "rows"} : cmp.families();
  size_t rare = 0;  // of these, so many were looked at
  if (o.rare != nullptr) families.insert(families.end(), o.rare->size(), "rare");
  if (o.level == Accuracy::Fast) std::erase_if(families, is_harsh);
  // Dense special inputs soon make everything NaN, where nothing can differ.
  const bool keeps = o.special || (o.level == Accuracy::Close && asks_by_conditions(cmp, spec, o));
  if (keeps) {
    families.insert(families.end(), 48, "few_special");
    families.insert(families.end(), 24, "extreme");
  }
  const bool cheap = cmp.work() * double(families.size()) <= o.max_work;
  for (const std::string& family : families) {
    if (is_cancelled(o)) {
      result.cancelled = true;
      return result;
    }
    if (family != families.front() && !is_unlike_others(family) && spent + cmp.work() > o.max_work)
      continue;
    if (o.progress) o.progress("real inputs: " + family);
    spent += cmp.work();
    // At whole numbers no jump is an accident: the rewrite jumps where the original does.
    const Rng seeds = Rng(o.seed).split(result.families.size());
    const bool sought = o.whole || family != "whole" || cmp.work() > kMostWhole;
    const uint64_t seed =
        is_whole_family(family) && sought ? cmp.telling(family, seeds) : Rng(seeds)();
    Reference::Run own;
    if (family == "rare") own = cmp.run_at((*o.rare)[rare++]);
    Reference::Run& run = family == "rare" ? own : cmp.run(family, seed);
    AtInputs here(cmp, candidate, o, run, family, seed, keeps, elementwise);
    result.counterexample = here.fault(cheap);
    if (result.counterexample) return result;
    larger_domain = larger_domain || here.larger_domain();
    if (family != "rare") result.families.push_back(here.figures());  // others find other ones
  }
  if (o.scales && o.level != Accuracy::Fast &&
      !breaks_nowhere(cmp, reference, candidate, o, result))
    return result;
  if (larger_domain)
    result.assumptions.push_back(kLargerDomain +
                                 std::string("; they are equal where the original is: ") +
                                 partial_operators(spec));
  return result;
}

std::optional<Counterexample> difference_at(Reference& spec, const Graph& candidate,
                                            const std::vector<NDArray>& inputs,
                                            const GateOptions& o) {
  const GateComparison cmp(spec, candidate, o);
  Exact at = cmp.exact(inputs);
  // At a pole Σ|terms| is infinite as where f64 overflows; beside a pole it is not.
  std::vector<NDArray> near = inputs;
  Rng rng(o.seed);
  for (NDArray& a : near)
    for (double& x : a.reals) x += 0x1p-12 * (1 + std::fabs(x)) * (1 + rng.unit());
  const Exact beside = cmp.exact(near);
  for (size_t k = 0; k < at.spec.size(); k++)
    for (size_t i = 0; i < at.spec[k].magnitude.reals.size(); i++)
      if (!std::isfinite(at.spec[k].magnitude.reals[i]) &&
          std::isfinite(beside.candidate[k].magnitude.reals[i]))
        at.spec[k].magnitude.reals[i] = beside.spec[k].magnitude.reals[i];
  const Worst w = cmp.worst_exact(at);
  if (w.ratio <= 1e6) return std::nullopt;
  return cmp.counterexample(w.undefined ? Difference::Definedness : Difference::Value,
                            "the programs compute different values where operands are equal or a "
                            "denominator is zero",
                            inputs, w);
}

std::optional<Counterexample> find_difference(Reference& spec, const Graph& candidate,
                                              const GateOptions& o) {
  const GateComparison cmp(spec, candidate, o);
  double spent = 0;
  for (uint64_t round = 0; round < 6; round++)
    for (const std::string& family : cmp.families()) {
      if (family == "special") continue;
      if (is_cancelled(o)) return std::nullopt;
      if (spent > 4 * o.max_work) return std::nullopt;
      if (o.progress) o.progress("looking for inputs that show a difference: " + family);
      spent += cmp.work();
      const std::vector<NDArray> inputs = cmp.inputs(family, Rng(o.seed).split(1000 + round)());
      if (auto d = cmp.difference(inputs, cmp.exact(inputs))) return d;
    }
  return std::nullopt;
}

}  // namespace tessera
