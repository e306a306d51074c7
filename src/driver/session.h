// What the stages of one optimisation share: options, the clock, tools that prove, compile and
// check, and what is reported at the end.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/check.h"
#include "base/deadline.h"
#include "base/thread_pool.h"
#include "base/wall_clock.h"
#include "driver/code.h"
#include "driver/learnt.h"
#include "driver/optimize.h"
#include "driver/race.h"
#include "driver/saved_search.h"
#include "search/mutate/mutate.h"
#include "search/patterns/pattern.h"
#include "search/rules/match.h"
#include "verify/filter.h"

namespace tessera {

// Adds the time a scope takes to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total) {}
  ~Stopwatch() { total_ += clock_.seconds(); }

 private:
  double& total_;
  WallClock clock_;
};

class Session {
 public:
  Session(const OptimizeOptions& options, const std::function<void(const Progress&)>& progress,
          const std::atomic<bool>* cancel, const std::atomic<bool>* abandon);

  // What the engine proposes for a program, within `seconds`.
  SearchReport search(const Graph& graph, const std::string& part, double seconds,
                      SearchMemory* memory, CandidateSink& sink);
  // The rules that synthesis applies; read when they are first asked for.
  const rules::RuleSet* rules();
  // What synthesis proposes for a program, within `seconds`, at costs of NumPy's functions.
  // `proved`: the verifier is asked before a program is offered, and what it refuses is searched
  // around (search/synth's Accepts). Programs that are refused are few, and proofs take time.
  SearchReport synthesize(const Graph& graph, double seconds, CandidateSink& sink,
                          bool proved = false);
  // Times the algorithms of convolutions that are not known yet, for up to a quarter of the time
  // left, and says in the report what they take; or for up to `seconds`, without a word in the
  // report. Nothing on a GPU.
  void measure_convolutions(const Graph& graph, std::optional<double> seconds = {});
  // Of a program of one convolution: what its fastest algorithm took, where that is known.
  std::optional<double> known_seconds(const Graph& convolution);
  // What times belong to: the processor, its instructions and the number of threads.
  std::string machine_key() const;
  // By operator: whether the back end computes it together with a convolution or pooling, so that
  // engines have nothing to gain there. Empty on a GPU.
  std::vector<bool> computed_with_images(const Graph& graph) const;
  // Mutants of a program of multi-linear operators (search/mutate), all of them proved; or in order
  // of `cost`, within `steps`, and not proved: equal by their boxes.
  SearchReport mutants(const Graph& graph, double seconds, CandidateSink& sink,
                       const CostModel* cost = nullptr, int64_t steps = 0);
  // What experts' kernels give (search/patterns). `proved`: each is proved in its place first.
  SearchReport experts(const Graph& graph, double seconds, CandidateSink& sink,
                       bool proved = false);
  // Throws Error: Cancelled where the deadline ended it, others as Module::compile and
  // make_cuda_code.
  // Candidates and the original alike: what is better than plain compilation has to beat all of
  // it, fused operators included (plan/fuse.h).
  CompiledCode compiled(const Graph& graph);
  // Code for candidates, compiled side by side on up to `threads` threads; none where the back end
  // refuses or fails, or the deadline ended it.
  std::vector<CompiledCode> codes_for(const std::vector<Outcome*>& outcomes);
  CompiledCode code_for(Outcome& outcome) { return std::move(codes_for({&outcome}).front()); }
  // Runs compiled code beside the interpreter of its own graph; where they differ, or time ran out,
  // `why` says so. Code for a GPU that is not here is emulated, at reduced size. `before`: SHA-256
  // of source that agreed with the interpreter before, which is not run again.
  std::optional<CheckedCode> check(const Graph& graph, CompiledCode code, std::string& why,
                                   const std::string& before = "");
  // As race(); code that cannot run here races by what the cost model expects.
  std::vector<Timing> race(const std::vector<CompiledCode>& codes, const RaceInputs& inputs,
                           double seconds, double limit_seconds);
  // These three change the candidate's fate where it falls out. What the deadline ended stays
  // Proposed.
  bool passes_filter(const Filter& filter, Outcome& outcome);
  // `between`: see Verifier::verify.
  std::optional<Verified> prove(Verifier& verifier, Outcome& outcome,
                                const Graph* between = nullptr);
  std::optional<CheckedCode> check(Outcome& outcome, const CompiledCode& code,
                                   const std::string& before = "");

  VerifyOptions verify_options() const;
  void tell(const std::string& stage, const std::string& part, int done, int total,
            const SearchReport* search = nullptr);

  const OptimizeOptions& options;
  Deadline deadline;
  CodePlace place;
  // As the description and the device have it: for limits and for keys. `target` is that as
  // measurements on the device have corrected it: for costs.
  Target described, target;
  int threads, workers;  // see OptimizeOptions
  ThreadPool eval_pool;
  Cache cache;
  LearntKernels learnt;
  OptimizeReport report;
  std::vector<Outcome> outcomes;
  double best_speedup = 1;

 private:
  CompiledCode compile(const Graph& graph);
  std::string check_failure(const Graph& graph, const CompiledCode& code);
  std::string emulated_failure(const Graph& graph);
  // Has the model learn from what was just measured.
  void learn(const std::vector<CompiledCode>& codes, const std::vector<Timing>& timings);
  void fit_model();
  // Whether NaN, infinities and zeros are to stay where they are.
  Context context(const CostModel* cost = nullptr) const;               // of a search
  Budget budget(double seconds, int64_t steps = Budget{}.steps) const;  // unless the options say
  bool keeps_special() const { return options.level == Accuracy::Bitwise || options.special; }
  PlanOptions plan_options() const;
  // An engine's run; one that does not end by itself soon after `seconds` is interrupted, and what
  // it has offered by then counts.
  SearchReport within(double seconds, const std::function<SearchReport()>& run);

  const std::function<void(const Progress&)>& progress_;
  const std::atomic<bool>* cancel_;
  std::optional<rules::RuleSet> rules_;
  std::optional<std::vector<patterns::Pattern>> patterns_;  // read when they are first needed
  std::vector<MeasuredKernels> measured_;                   // on the device, the latest last
};

// What a race tells of a candidate.
void keep_times(Outcome& outcome, const Timing& timing);

}  // namespace tessera
