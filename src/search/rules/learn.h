// Learning: programs are searched, what the search discovers is generalised, checked, and kept
// unless it follows from what is known.
#pragma once
#include "ir/graph.h"
#include "search/rules/check.h"
#include "search/synth/egraph.h"
#include "search/synth/synth.h"

namespace tessera::rules {

// A discovery of the search as a rule of fixed shapes: a value as it was computed and as it is now,
// from `leaves`. Nothing where it contains operators that synthesis does not look into.
std::optional<Rule> discovery(const synth::EGraph&, const synth::Choice& before,
                              const synth::Choice& after, synth::ValueId target,
                              const std::vector<synth::ValueId>& leaves);

struct LearnOptions : CheckOptions {  // and how each rule is checked
  LearnOptions() : CheckOptions{.instances = 64, .seed = 0} {}
  int64_t steps = 200'000;  // of the search, per program
  double seconds = 2;       // likewise; wall time
};

class Learner {
 public:
  explicit Learner(LearnOptions options = {}, std::vector<Rule> known = {});

  // The rules a program teaches beside those known, by name of where they come from.
  std::vector<Rule> learn(const Graph& program, const std::string& source);
  // Of a raw rule: what a search discovered, or, without a source, what people state under a name.
  std::vector<Rule> learn(const Rule& raw, const std::string& source);

  const std::vector<Rule>& known() const { return known_; }
  struct Counts {
    int programs = 0, discoveries = 0, candidates = 0, refused = 0, derived = 0, kept = 0;
  };
  const Counts& counts() const { return counts_; }
  // Why candidates were refused, newest last.
  const std::vector<std::string>& refusals() const { return refusals_; }

 private:
  LearnOptions options_;
  std::vector<Rule> known_;
  Counts counts_;
  std::vector<std::string> refusals_;
};

// Small programs to learn from, the same for the same seed: a few operations on f32 matrices and
// vectors, which use values twice more often than people do.
Graph exercise(uint64_t seed);

}  // namespace tessera::rules
