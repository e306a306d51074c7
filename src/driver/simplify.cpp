#include "driver/simplify.h"

#include <algorithm>

#include "cost/analytical.h"

namespace tessera {

Graph simplified(Session& s, const Graph& program) {
  constexpr double kLeastGain = 0.9, kShare = 0.1, kMostSeconds = 0.25;
  constexpr size_t kTried = 4;
  if (s.options.disable.count("synth") || s.options.max_block_ops) return program;
  const AnalyticalModel model(s.target);
  const double before = model.cost(program).seconds;
  std::optional<Verifier> verifier;
  // Most of what is found is proved. Where nothing of it is, the search goes on around what was
  // refused.
  for (const bool proved : {false, true}) {
    CollectingSink sink;
    s.tell("simplify", "", 0, 0);
    SearchReport found =
        s.synthesize(program, std::min(kMostSeconds, kShare * s.deadline.seconds()), sink, proved);
    if (found.stop != StopReason::Unsupported) s.report.synthesis = std::move(found);
    bool refused = false;
    for (size_t i = 0; i < std::min(kTried, sink.candidates.size()); ++i) {
      Candidate& c = sink.candidates[i];
      if (model.cost(c.graph).seconds > kLeastGain * before) continue;
      Outcome o;
      o.graph = c.graph;
      o.origin = c.origin;
      if (!verifier) verifier.emplace(program, s.verify_options());
      if (!s.prove(*verifier, o)) {
        refused = true;
        continue;
      }
      s.report.simplified = c.derivation;
      return std::move(c.graph);
    }
    if (!refused || s.deadline.proofs_ended()) break;
  }
  return program;
}

}  // namespace tessera
