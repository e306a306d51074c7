#include "verify/bench/bench.h"

#include <chrono>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "verify/bench/branch_program.h"
#include "verify/bench/deep_program.h"
#include "verify/bench/mutations.h"
#include "verify/bench/random_program.h"
#include "verify/funnel.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

struct Trial {
  const char* kind = nullptr;
  Graph spec, changed;
  std::optional<Verdict> verdict;
  std::string error;  // an exception: counts as a failure
  Accuracy level = Accuracy::Close;
  bool witnessed = false;  // inputs are known at which the programs differ
  bool harmless = false;
  bool undecided = false;  // not even the original, or the rewrite, equals itself for the verifier
};

// Another argument than the verifier's that a mutant is an equal program: no field, no bound, only
// f64 on a dense set of inputs of the families where f64 neither saturates nor underflows, small
// integers (where it is exact) included. The scale of a difference is Σ|terms|, so that a sum which
// is identically zero shows as such.
bool equal_on_dense_set(const Graph& a, const Graph& b, uint64_t seed) {
  const std::vector<IntRange> ranges = integer_ranges(a, b, {-100, 100});
  int compared = 0;
  Rng rng(seed);
  for (uint64_t round = 0; round < 24; round++)
    for (const char* family :
         {"normal", "zeros", "ties", "equal", "positive", "tiny", "alternating"}) {
      const std::vector<NDArray> in = make_inputs(a, family, mix64(seed + round), ranges);
      const std::vector<WithMagnitude> x = eval_with_magnitude(a, in),
                                       y = eval_with_magnitude(b, in);
      // Elements that jump when inputs move by a rounding of f64 say nothing; looked at only where
      // there seems to be a difference.
      auto jumps = [&](size_t k, size_t i, double scale) {
        for (int trial = 0; trial < 24; trial++) {
          std::vector<NDArray> near = in;
          for (NDArray& t : near)
            for (double& v : t.reals) v *= 1 + 0x1p-48 * double(rng.between(-8, 8));
          const std::vector<NDArray> xn = eval(a, near), yn = eval(b, near);
          if (xn[k].ints.empty()
                  ? std::fabs(x[k].value.reals[i] - xn[k].reals[i]) > 1e-9 * scale ||
                        std::fabs(y[k].value.reals[i] - yn[k].reals[i]) > 1e-9 * scale
                  : x[k].value.ints[i] != xn[k].ints[i] || y[k].value.ints[i] != yn[k].ints[i])
            return true;
        }
        return false;
      };
      for (size_t k = 0; k < x.size(); k++) {
        for (size_t i = 0; i < x[k].value.ints.size(); i++)
          if (x[k].value.ints[i] == y[k].value.ints[i])
            compared++;
          else if (!jumps(k, i, 0))
            return false;
        for (size_t i = 0; i < x[k].value.reals.size(); i++) {
          const double u = x[k].value.reals[i], v = y[k].value.reals[i];
          const double scale = x[k].magnitude.reals[i] + y[k].magnitude.reals[i];
          if (!std::isfinite(u) || !std::isfinite(scale)) {
            compared += u == v;  // the maximum of no elements is -∞ whatever the program does first
            continue;
          }
          if (std::fabs(u - v) <= 1e-10 * scale)
            compared++;
          else if (!jumps(k, i, scale))
            return false;
        }
      }
    }
  return compared > 0;
}

Trial make_trial(const std::vector<ProgramEdit>& edits, size_t kind, uint64_t seed, bool unsound) {
  Trial t;
  t.kind = edits[kind].name;
  for (uint64_t i = 0; i < 2000; i++) {
    const uint64_t s = mix64(seed + i * 0x9e3779b97f4a7c15ull);
    RandomProgramOptions options;
    if (s % 16 == 0) options.dtype = DType::F64;
    t.spec = random_program(s, options);
    Rng rng(s ^ 0x7f4a7c15u);
    auto changed = edits[kind].apply(t.spec, rng);
    // Sound rewrites come in chains of up to three.
    for (int more = int(s % 3); !unsound && changed && more > 0; more--)
      if (auto again = edits[rng.below(edits.size())].apply(*changed, rng)) changed = again;
    if (!changed) continue;
    t.changed = std::move(*changed);
    return t;
  }
  t.error = "no random program has a place for this edit";
  return t;
}

// The same of a deep program, by the first edit in a random order that finds a place.
Trial make_deep_trial(const std::vector<ProgramEdit>& edits, uint64_t seed, bool unsound) {
  Trial t;
  for (uint64_t i = 0; i < 2000; i++) {
    const uint64_t s = mix64(seed + i * 0x9e3779b97f4a7c15ull);
    t.spec = deep_program(s);
    Rng rng(s ^ 0x2545f491u);
    const ProgramEdit& edit = edits[rng.below(edits.size())];
    auto changed = edit.apply(t.spec, rng);
    for (int more = int(s % 4); !unsound && changed && more > 0; more--)
      if (auto again = edits[rng.below(edits.size())].apply(*changed, rng)) changed = again;
    if (!changed) continue;
    t.kind = edit.name;
    t.changed = std::move(*changed);
    return t;
  }
  t.kind = edits[0].name;
  t.error = "no deep program has a place for these edits";
  return t;
}

// A random program with a branch that differs at inputs that are known, or nowhere.
Trial make_branch_trial(const BranchKind& kind, uint64_t seed, bool unsound) {
  Trial t;
  t.kind = kind.name;
  t.witnessed = unsound;
  // Laws of the reals: many lose digits where numbers are tiny, which level `close` refuses
  // rightly.
  if (!unsound) t.level = Accuracy::Fast;
  for (uint64_t i = 0; i < 500; i++) {
    const uint64_t s = mix64(seed + i * 0x9e3779b97f4a7c15ull);
    std::optional<BranchPair> pair;
    if (!unsound)
      pair = branch_law(kind, s);
    else if (auto fault = branch_fault(kind, s); fault && !fault->harmless)
      pair = std::move(fault->pair);
    if (!pair) continue;
    t.spec = std::move(pair->spec);
    t.changed = std::move(pair->changed);
    return t;
  }
  t.error = "no random program has a place for this branch";
  return t;
}

// Makes the pair of an index with a seed.
using Maker = std::function<Trial(size_t index, uint64_t seed)>;

void judge(Trial& t, uint64_t seed, bool unsound, const std::atomic<bool>* cancel) {
  if (!t.error.empty()) return;
  VerifyOptions options;
  options.seed = seed;
  options.level = t.level;
  options.cancel = cancel;
  // The programs are small; half of them are compared on representative tiles all the same.
  if (seed % 2 == 0) options.whole_cost = 0;
  try {
    t.verdict = verify(t.spec, t.changed, options);
    if (unsound && !t.witnessed && t.verdict->equal())
      t.harmless = equal_on_dense_set(t.spec, t.changed, seed);
    // A fair question? Some programs cannot even be compared with themselves.
    if (!unsound && t.verdict->unknown())
      t.undecided = !verify(t.spec, t.spec, options).equal() ||
                    !verify(t.changed, t.changed, options).equal();
  } catch (const Error& e) {
    t.error = e.what();
  }
}

std::string report(const Trial& t) {
  return std::string(t.kind) + "\n" + print(t.spec) + print(t.changed) +
         (t.verdict ? t.verdict->str() : "") + t.error + "\n";
}

VerifyBenchRow run(const char* name, const Maker& make, int count, bool unsound,
                   const VerifyBenchOptions& o, ThreadPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  VerifyBenchRow row;
  row.name = name;
  std::map<std::string, KindResult> kinds;
  // In batches, so that memory stays small; results are merged in order.
  const int batch = 256;
  int asked = 0;
  for (uint64_t next = 0; asked < count && !(o.cancel && o.cancel->load());) {
    const int n = std::min(batch, count - asked);
    std::vector<Trial> trials(static_cast<size_t>(n));
    const uint64_t first = next;
    pool.parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const uint64_t index = first + uint64_t(i);
        const uint64_t seed = mix64(o.seed * 0x9e3779b97f4a7c15ull + index) ^ uint64_t(unsound);
        Trial& t = trials[size_t(i)];
        t = make(size_t(index), seed);
        judge(t, seed, unsound, o.cancel);
      }
    });
    next += uint64_t(n);
    if (o.progress) o.progress(name, asked, count);
    for (const Trial& t : trials) {
      KindResult& k = kinds[t.kind];
      k.kind = t.kind;
      if (t.undecided) {
        row.undecided++;
        continue;
      }
      if (t.harmless) {
        row.harmless++;
        k.harmless++;
        continue;  // replaced by another trial: `count` mutants are unsound
      }
      asked++;
      row.count++;
      k.count++;
      const bool equal = t.verdict && t.verdict->equal();
      if (equal)
        row.accepted++, k.equal++;
      else if (t.verdict && t.verdict->refuted())
        row.refuted++, k.refuted++;
      else
        row.unknown++, k.unknown++;
      if ((unsound == equal || !t.verdict) && row.failures.size() < 200)
        row.failures.push_back(report(t));
    }
  }
  for (auto& [unused, k] : kinds) row.kinds.push_back(k);
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return row;
}

}  // namespace

std::vector<VerifyBenchRow> bench_verify(const VerifyBenchOptions& o) {
  ThreadPool pool(o.threads);
  std::vector<VerifyBenchRow> rows;
  const auto chosen = [&](const auto& all) {
    auto some = all;
    std::erase_if(some, [&](const auto& e) { return !o.kind.empty() && o.kind != e.name; });
    return some;
  };
  for (const bool unsound : {true, false}) {
    const auto edits = chosen(unsound ? mutations() : rewrites());
    if (edits.empty()) continue;
    const Maker shallow = [&](size_t index, uint64_t seed) {
      return make_trial(edits, index % edits.size(), seed, unsound);
    };
    rows.push_back(run(unsound ? "injected" : "equal", shallow, unsound ? o.injected : o.equal,
                       unsound, o, pool));
  }
  for (const bool unsound : {true, false}) {
    const auto edits = chosen(unsound ? mutations() : rewrites());
    if (edits.empty() || o.deep == 0) continue;
    const Maker deep = [&](size_t, uint64_t seed) { return make_deep_trial(edits, seed, unsound); };
    rows.push_back(run(unsound ? "injected_deep" : "equal_deep", deep, o.deep, unsound, o, pool));
  }
  for (const bool unsound : {true, false}) {
    const auto kinds = chosen(unsound ? branch_faults() : branch_laws());
    if (kinds.empty() || o.branches == 0) continue;
    const Maker branch = [&](size_t index, uint64_t seed) {
      return make_branch_trial(kinds[index % kinds.size()], seed, unsound);
    };
    rows.push_back(
        run(unsound ? "branch_faults" : "branch_laws", branch, o.branches, unsound, o, pool));
  }
  return rows;
}

}  // namespace tessera
