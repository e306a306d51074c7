// The synthesis engine (STENSO, CGO'26): NumPy-level programs with less work in them, found by
// enumeration over values instead of by computer algebra. Every part of the program is a target for
// programs over a few of the values below it; what is found lies side by side in an e-graph, out of
// which the cheapest whole program is taken, until nothing gets cheaper. Rules that are known are
// applied first. Large programs are improved part by part (large.h).
#pragma once
#include <functional>

#include "search/engine.h"
#include "search/synth/egraph.h"
#include "search/synth/rates.h"

namespace tessera {

// Told of what a window made cheaper, and of what a program computes in several ways: `target` as
// it was computed from `leaves` (or inputs), and as it is now.
using Discovered = std::function<void(const synth::EGraph&, const synth::Choice& before,
                                      const synth::Choice& after, synth::ValueId target,
                                      const std::vector<synth::ValueId>& leaves)>;

// Whether a program is equal to the original: the verifier's word. What it refuses is narrowed down
// to one equality, which is not used again, and the search goes on without it.
using Accepts = std::function<bool(const Graph& original, const Graph& found)>;

namespace rules {
class RuleSet;
}

struct SynthOptions {
  synth::Rates rates;  // what operations cost where the result is to run
  int max_size = 4;    // operations in one discovery, found bottom-up
  int max_leaves = 4;  // values that a discovery may start from
  bool holes = true;   // top-down steps too: off for comparison only
  bool bound = true;   // nothing dearer than the best known is kept: off for comparison only
  int64_t probes =
      1'000'000;            // look-ups of sketches of two levels and more, in one window; 0: none
  int max_wide_leaves = 8;  // of windows in which little is enumerated and sketches do the rest
  int wide_windows = 6;     // of those in one program
  Discovered discovered;
  int max_cone = 1'000;                   // operations that it may replace
  int64_t window_steps = 200'000;         // values tried for one target over one set of leaves
  const rules::RuleSet* rules = nullptr;  // applied before anything is enumerated; null: none
  int64_t patience = 120'000;             // values tried until all of a program are defined
  bool windows = true;                    // false: by rules and equal values alone
  Accepts accepts;                        // asked before a program is offered; empty: nobody is
};

class Synth : public Engine {
 public:
  explicit Synth(SynthOptions options = {}) : options_(std::move(options)) {}
  SearchReport run(const Subprogram&, Context&, const Budget&, CandidateSink&) override;

 private:
  SynthOptions options_;
};

}  // namespace tessera
