// Programs too large to be looked at as a whole (many operations, or axes of which no world holds
// all): equal operations united, then parts of up to a dozen operations improved one after another,
// each in a world of its own, until no part gets cheaper. Parts overlap, so that what begins in one
// may go on in the next; a part that was seen before is not searched again.
#pragma once
#include <functional>

#include "search/engine.h"
#include "search/synth/rates.h"

namespace tessera::synth {

// Operators that compute: neither inputs nor constants nor moves of axes.
int computing(const Graph& program);
// Whether the parts of a program are looked at instead of the whole.
bool is_large(const Graph& program);

// How hard one part is searched.
struct Effort {
  bool windows = true;
  int max_size = 2, max_leaves = 3, max_cone = 6;
  int64_t window_steps = 0;  // of one window
  int64_t steps = 0;
  int64_t patience = 15'000;  // values tried until all of the part are defined
  double seconds = 0;         // what is left of the budget
};
struct PartReport {
  SearchReport report;
  int64_t steps = 0;  // of the budget
};
// Searches one part; `elsewhere`: seconds of the rest of the program.
using SearchPart =
    std::function<PartReport(const Graph& part, const Effort&, double elsewhere, CandidateSink&)>;

// Offers the program with all its parts improved, and that after half of the steps, a quarter, … in
// case a step is refuted. Deterministic as far as `search` is and the time suffices.
SearchReport improve_large(const Graph& program, const Rates& rates, Context& context,
                           const Budget& budget, CandidateSink& sink, const SearchPart& search);

// --- parts (for tests)

struct Part {
  std::vector<OpId> ops;                  // in order; with the constants they use
  std::vector<TensorId> inputs, outputs;  // of the whole
};
// The operators above `target` from which it is computed, the nearest first, at most `most` that
// compute. Convex: no path leaves it and comes back.
Part part_above(const Graph& program, OpId target, int most);
Graph as_graph(const Graph& program, const Part& part);
// The program in which the part is computed by `better` (inputs and outputs as as_graph's).
Graph with_part(const Graph& program, const Part& part, const Graph& better);
// Equal operators on equal operands once; without those that nothing uses.
inline Graph united(const Graph& program) { return without_repeats(program, true); }
// What the program costs as it is written, whatever its shapes.
double seconds_as_written(const Graph& program, const Rates& rates);

}  // namespace tessera::synth
