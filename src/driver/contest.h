// One part of a program: candidates race, and the fastest that is proved and whose code passes its
// check wins. The part as it is always takes part.
#pragma once
#include <optional>
#include <string>

#include "driver/session.h"

namespace tessera {

// When its stages end, in seconds on the session's clock.
struct Timetable {
  double search_until = 0, race_until = 0, end = 0;
};

struct PartResult {
  std::optional<Rewrite> rewrite;  // where one is faster
  CompiledCode original;           // what the candidates raced: the part compiled as it is
  Timing original_timing;
  double seconds = 0, speedup = 1;
  bool finished = false;   // nothing was cut short
  bool too_noisy = false;  // to tell whether anything is faster
};

// Which candidates race: `order` lists outcomes by rank, and the first `wanted` − 1 of them will
// take part beside the program as written. Neighbours in rank are often much alike; where the
// model's costs tell more than `wanted` candidates less than 2% from the first, those that take
// part are spread over all of these. Candidates with notes are not moved, nor what comes after
// them.
void spread(std::vector<size_t>& order, const std::vector<Outcome>& outcomes, size_t wanted);

// Puts the best of experts' kernels into the first wave of `wanted`, if none is there: the model
// tells kernels of one kind apart by a percent, and not what an expert knows better.
void heed_experts(std::vector<size_t>& order, const std::vector<Outcome>& outcomes, size_t wanted);

// Adds its candidates to the session's outcomes. `label`: "2/5", or empty for a whole program.
// `memory` (may be null) is this part's own. `also` (may be null) takes part as well, before all
// that the engines propose.
PartResult improve(Session& session, const Graph& part, int index, const std::string& label,
                   const Timetable& times, SearchMemory* memory, const Candidate* also = nullptr);

}  // namespace tessera
