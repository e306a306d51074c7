// The one face of every search engine: a subprogram goes in, candidates come out of a sink, and a
// report says why the engine stopped. Engines propose; whether a candidate is equal is for verify/.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "cost/target.h"
#include "ir/graph.h"

namespace tessera {

struct Subprogram {
  Graph graph;  // kernel level: what is to be computed
};

struct Candidate {
  Graph graph;                     // kernel level, same inputs and outputs as the subprogram
  double cost = 0;                 // seconds, by the engine's cost model
  std::string origin;              // engine that proposed it: "mugraph"
  std::string derivation;          // how it came about, one step per line
  std::vector<std::string> notes;  // what a later stage should know ("drops the max shift", …)
  bool as_written = false;         // the program's own operations, only fused: no algebra
};

enum class StopReason : uint8_t {
  Exhausted,    // the whole space was searched
  StepBudget,   // the budget's steps ran out
  TimeBudget,   // the budget's wall time ran out
  Cancelled,    // the caller asked to stop
  Unsupported,  // the subprogram cannot be handled; `detail` says why
};
const char* name(StopReason);

struct SearchReport {
  StopReason stop = StopReason::Exhausted;
  std::string detail;
  double seconds = 0;
  int64_t values = 0, edges = 0, graphs = 0, tilings = 0;  // `states` is their sum
  int64_t candidates = 0;
  std::map<std::string, int64_t> pruned;  // by rule
  std::vector<std::string> refused;       // equalities that the verifier did not accept
  std::map<std::string, double> figures;  // what an engine counts or times besides, by name
  double best_cost = 0;                   // seconds; 0: none
  double original_cost = 0;               // of the subprogram as it is; 0: not told
  int64_t states() const { return values + edges + graphs + tilings; }
  // Counts what another search counted, too.
  void add_counts(const SearchReport& more);
};

struct Budget {
  int64_t steps = 600'000;  // deterministic unit: one expanded search state
  double seconds = 30;      // wall limit; hitting it makes results depend on the machine
  int candidates = 32;      // at most this many are offered
  // One of several searches that together look at all that one without slices does: each takes
  // every `slices`-th branch of the engine's outermost choice, with steps of its own.
  int slice = 0, slices = 1;
  double bound = 0;  // seconds; what costs more is of no use. 0: there is no bound
  bool has_branch(int64_t number) const { return number % slices == slice; }
};

// Texts by name that outlive a run. An engine keeps finished pieces of its work here, and takes
// them up again when the same subprogram is searched with the same options for the same target.
// Nothing that comes back is trusted: what does not read well is as good as absent.
class SearchMemory {
 public:
  virtual ~SearchMemory() = default;
  virtual std::optional<std::string> recall(const std::string& name) = 0;
  virtual void remember(const std::string& name, const std::string& text) = 0;
};

// What an engine may use and must respect.
struct Context {
  const Target* target = nullptr;   // required
  const CostModel* cost = nullptr;  // null: the analytical model of the target
  uint64_t seed = 0;
  int threads = 2;
  const std::atomic<bool>* cancel = nullptr;
  SearchMemory* memory = nullptr;                     // null: nothing is kept
  std::function<void(const SearchReport&)> progress;  // now and then, from one thread at a time

  bool cancelled() const { return cancel && cancel->load(std::memory_order_relaxed); }
};
// Why a search ends that has taken so much of its budget.
StopReason ended(const Context& context, const Budget& budget, double seconds, int64_t steps = 0);

// Receives candidates in ascending order of cost, and keeps them.
struct CollectingSink {
  std::vector<Candidate> candidates;
  void offer(Candidate candidate) { candidates.push_back(std::move(candidate)); }
};
using CandidateSink = CollectingSink;

class Engine {
 public:
  virtual ~Engine() = default;
  virtual SearchReport run(const Subprogram&, Context&, const Budget&, CandidateSink&) = 0;
};

}  // namespace tessera
