// The recipe: partition, search, compile, measure, prove, check, choose. The original program is
// always a contestant, so what comes back is never slower than it by choice.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "cost/fit.h"
#include "cost/target.h"
#include "driver/code.h"
#include "driver/settings.h"
#include "search/engine.h"
#include "verify/funnel.h"

namespace tessera {

// A program that was found elsewhere, and is believed as little as any other.
struct Proposal {
  Graph of;  // the program, or one of its parts
  Candidate candidate;
  std::string between;  // a program that a proof may go by, as text; or empty
};

struct OptimizeOptions {
  // "cpu" (this machine), "cuda" (its GPU), "cuda:sm_90a" (an architecture), or a description: name
  // or path.
  std::string target = "cpu";
  std::string target_directory;         // where descriptions by name are; empty: built-in ones only
  double budget_seconds = 30;           // of wall time for everything
  int threads = 0;                      // that the result runs on; 0: default_threads()
  int workers = 0;                      // threads of search and proof; 0: as many
  uint64_t seed = 0;                    // of search and measurement
  std::optional<uint64_t> verify_seed;  // none: from the operating system
  bool accept_tested = false;           // see VerifyOptions
  Accuracy level = Accuracy::Close;
  bool special = false;        // see VerifyOptions
  int candidates = 4096;       // of search() by the engine patterns, at most
  bool tune = false;           // time more candidates, and other tiles of the fastest
  bool tf32 = false;           // GPUs: f32 products may round their factors to 10 bits of fraction
  bool proved = false;         // with engine "synth": only programs that the verifier accepts
  bool may_lack_code = false;  // without a compiler: no error, report.original_failed says it
  std::optional<int> max_block_ops;  // none: no limit
  // Folders of rules that synthesis applies (search/rules/library.h): those of the first have to
  // be right, in others what is malformed is left out with a line on standard error.
  std::vector<std::string> rule_folders;
  // Folders of experts' kernels (search/patterns/warehouse.h), treated like those of rules; of two
  // patterns with one name the later one stands.
  std::vector<std::string> pattern_folders;
  // "mugraph", "mugraph:RULE" for one pruning rule, "mutate", "mutate:STEP", "cover" (other
  // engines' parts alone are replaced), "fold" (weights), "rules", "library" (calls of
  // cuBLASLt, cuDNN and oneDNN), "learnt" (kernels and failures of earlier searches), "plan:layout"
  // and the like (plan/plan.h)
  std::set<std::string> disable;
  Settings settings;
  // Of search(): "mugraph", "mutate", "patterns", or "synth" with the costs of NumPy's own
  // functions.
  std::string engine = "mugraph";
  // What synthesis minimises: "times" of calls (NumPy), "fused" loops (XLA, Inductor), or "flops";
  // `costs` are nanoseconds at amounts of work by kind of operation, as measured for the library
  // that is to run the result (search/synth/rates.h); kinds that are not there cost what NumPy's
  // do.
  std::string cost = "times";
  std::map<std::string, std::vector<std::pair<double, double>>> costs;
  bool use_cache = true;  // of results; machine code is always cached
  // Searches again in place of what is remembered: results, learnt kernels and failed searches.
  bool refresh = false;
  // Of search(): steps in place of the engine's own number (0), so that what is found does not
  // depend on the machine where `budget_seconds` suffice; and see Budget.
  int64_t steps = 0;
  int slice = 0, slices = 1;
  double bound = 0;
  // Race with what the engines find; `only_proposals`: in place of it, and what comes of it is
  // remembered as tuned results are, if the budget is the usual one at least. `searched`: they are
  // all that a finished search found, so that is remembered too if none is faster.
  std::vector<Proposal> proposals;
  bool only_proposals = false, searched = false;
  double kept_budget = 0;  // what the result is remembered for, in place of budget_seconds
  // Ends where races would begin: what they need is compiled then, and in the cache.
  bool compile_only = false;
  // Goes on where an unfinished search of the same program with the same options stopped.
  bool resume = false;
};

// Where the recipe is; sent now and then, from one thread at a time.
struct Progress {
  std::string stage;        // "simplify", "search", "verify", "compile", "measure", "done"
  std::string part;         // which part of the program, "1/3"; empty if it is one part
  int done = 0, total = 0;  // candidates of the stage
  const SearchReport* search = nullptr;  // during "search"
  double best_speedup = 1;               // measured so far
  double seconds = 0;                    // since the run began
};

enum class Fate {
  Proposed,     // not looked at: budget ended, or others were better
  Refuted,      // the verifier found inputs that tell it from the original
  Unknown,      // the verifier could not decide
  NotCompiled,  // the back end refused or failed
  CheckFailed,  // compiled code disagreed with the interpreter
  Measured,     // timed, and slower than the chosen one or the original: not proved
  Chosen,       // the fastest that is proved equal and whose code agrees with the interpreter
};
const char* name(Fate);

// One candidate and what became of it.
struct Outcome {
  Graph graph;
  std::string origin, derivation;
  std::vector<std::string> notes;
  bool as_written = false;
  int part = 0;
  int rank = 0;  // by cost model, from 1
  double model_seconds = 0;
  Fate fate = Fate::Proposed;
  std::string why;                       // verdict or error where it fell out
  double seconds = 0;                    // measured median; 0: not measured
  double least_seconds = 0, spread = 0;  // beside it: see Timing
  double warm_seconds = 0;  // of a GPU: with the arguments in its cache, `seconds` is without
  double speedup = 0;       // over the original, measured side by side
};

// A subprogram that the partially equivalent engine was given, and what came of it.
struct SubprogramReport {
  struct Alternative {
    std::string derivation;
    std::vector<std::string> notes;
    int round = 1;  // 1: a mutant, 2: a mutant of a mutant, …
    // Seconds without the rearrangements at its borders, which others may share or cancel; 0: not
    // timed.
    double model_s = 0, measured_s = 0;
    bool proven = false;  // by the verifier, which is asked about those that are chosen
    std::string why_not;
    bool chosen = false;
  };
  std::string name;  // its operators
  int times = 1;     // equal ones in the program
  int chosen = 0;    // of these: computed by an alternative in the end
  int rounds = 0;
  std::string stop;                                            // of the first search, and why
  int64_t tried = 0, mutants = 0, partial = 0, corrected = 0;  // see MutateReport
  double search_s = 0;
  double original_s = 0, measured_s = 0;  // of one: as costs go, and timed alone (0: not)
  bool measured = false;                  // some alternative was timed beside it
  double best_gain = 1;                   // original over the fastest alternative
  std::string verdict;                    // "chosen", "no gain found: why", …
  std::vector<Alternative> alternatives;  // equal by their boxes
};

// How the kernels of the whole program were chosen (plan/cover.h).
struct CoverReport {
  int64_t values = 0, kernels = 0, offered = 0, chosen = 0;
  int64_t pieces = 0, variables = 0;  // integer programs
  bool proved = false;                // none of what was offered costs less
  std::string solver;
  double seconds = 0;
  double original_s = 0, expected_s = 0;  // by the costs that decided
};

struct OptimizeReport {
  std::vector<SearchReport> searches;  // one per part
  std::vector<SearchReport> experts;   // what experts' kernels gave, one per part
  std::vector<SubprogramReport> subprograms;
  std::optional<CoverReport> cover;
  // Of the whole program, before it is cut into parts; nothing where it did not take place.
  std::optional<SearchReport> synthesis;
  std::string simplified;  // how, one step per line; empty where the program is searched as it is
  int parts = 0;
  double search_s = 0, verify_s = 0, compile_s = 0, check_s = 0, measure_s = 0, total_s = 0;
  bool from_cache = false;
  bool tuned = false;  // other tiles of the winner were tried, now or when it was remembered
  bool cancelled = false;
  // Something was cut short by the budget or the caller; `resumable`: and kept for --resume.
  bool unfinished = false, resumable = false;
  // Noise hid whether anything is faster than the original: it was kept, and is not remembered.
  bool too_noisy = false;
  std::string resumed;          // with `resume`: what it went on from, or why from the beginning
  std::string original_failed;  // empty, or why there is no code of the original
  bool no_compiler = false;     // which is why; with may_lack_code
  std::string target;
  // How each different convolution is computed, and what each algorithm took; one line each.
  std::vector<std::string> convolutions;
  std::string not_measured;  // empty, or why the cost model alone decided
  std::string device;        // a GPU that measured
  // What measurements on that GPU, of this run and of earlier ones, say about the model.
  std::optional<Fit> model;
  int threads = 0;
};

// What stands in for a program: proved equal to it, with code that is checked. It takes evidence of
// both, which only the verifier and the check make.
class Rewrite {
 public:
  Rewrite(Verified verified, CheckedCode code);
  const Graph& graph() const { return verified_.graph(); }
  const Certificate& certificate() const { return verified_.certificate(); }
  const CheckedCode& code() const { return code_; }

 private:
  Verified verified_;
  CheckedCode code_;
};

struct OptimizeResult {
  Graph original;
  std::optional<Rewrite> rewrite;  // where one is faster
  // Where none is. Missing where there is no checked code of it either (report.original_failed says
  // why): then the original stays as it was.
  std::optional<CheckedCode> original_code;

  bool improved() const { return rewrite.has_value(); }
  const Graph& graph() const { return rewrite ? rewrite->graph() : original; }
  const Certificate* certificate() const { return rewrite ? &rewrite->certificate() : nullptr; }
  // Runs `graph`. Of a program for a GPU there is `cuda` instead of `module`, which runs where its
  // device is here, and was compiled and emulated at reduced size where it is not
  // (report.not_measured says why). Null where there is no checked code.
  std::shared_ptr<Module> module() const { return code().cpu; }
  std::shared_ptr<CudaCode> cuda() const { return code().cuda; }
  CompiledCode code() const;

  // Measured medians, interleaved, of the original as plain compilation makes it (fused operators
  // included) and of what is run; where report.not_measured, what the cost model expects. 0: the
  // original is kept, and there was no time to measure it.
  double original_s = 0, seconds = 0;
  double original_least_s = 0, original_spread = 0;  // see Timing; 0: remembered, or not measured
  double speedup = 1;
  std::vector<Outcome> candidates;  // ascending by part and rank
  OptimizeReport report;
};

// Throws Error on bad input; finding nothing faster is not an error. `cancel` asks for the best so
// far: the search ends, what it found is still raced and proved. `abandon` stops that as well.
OptimizeResult optimize(const Graph& program, const OptimizeOptions& options = {},
                        const std::function<void(const Progress&)>& progress = {},
                        const std::atomic<bool>* cancel = nullptr,
                        const std::atomic<bool>* abandon = nullptr);

// What `tessera search` shows: candidates by rank, nothing verified or run.
struct SearchOutcome {
  std::vector<Candidate> candidates;
  SearchReport report;
  bool resumable = false;  // unfinished, and kept for --resume
  std::string resumed;     // see OptimizeReport
};
SearchOutcome search(const Graph& program, const OptimizeOptions& options = {},
                     const std::function<void(const Progress&)>& progress = {},
                     const std::atomic<bool>* cancel = nullptr);

// The description that `options.target` names.
Target resolve_target(const OptimizeOptions& options);

}  // namespace tessera
