// Equality saturation: every match of every rule adds the rule's right side to the class of its
// left, round after round until nothing is new or a limit is reached (TENSAT, MLSys'21, §4). The
// right side is evaluated before it is added: where it is not the class it should be, the match is
// dropped, so that a rule which is wrong, or wrong here, does no harm.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "search/rules/match.h"

namespace tessera::rules {

struct SaturateLimits {
  int rounds = 8;
  size_t classes = 4'000;        // of the e-graph, beyond which nothing is added
  int64_t evaluations = 30'000;  // of right sides' operations
  size_t matches = 256;          // of a rule in a round; one with more sits out 1, 2, 4 … rounds,
                                 // and may then have 2, 4, 8 … times as many
  double elements = 1e18;        // larger values are not added
};

// A rule that was applied: the ways by which its left side was met, and those of its right side.
struct Application {
  uint32_t rule = 0;
  ValueId root = 0;
  std::vector<ValueId> variables;  // classes
  std::vector<Way> left, right;
  std::vector<Way> added;  // those of the right side that were new
};

struct Saturation {
  enum class Stop : uint8_t { Saturated, Rounds, Classes, Evaluations, Stopped };
  Stop stop = Stop::Saturated;
  int rounds = 0;
  int64_t matches = 0, evaluations = 0;
  int64_t dropped = 0;                    // right sides that were another value, or none
  int64_t conditional = 0;                // matches whose condition is not known to hold
  int64_t backed_off = 0;                 // rounds that rules sat out, over all rules
  std::vector<Application> applications;  // those that added something
};

Saturation saturate(EGraph& graph, const RuleSet& rules, const SaturateLimits& limits,
                    const std::function<bool()>& stopped);

// The applications, in order, without which the choice would not be there.
std::vector<uint32_t> needed(const Saturation& saturation, const EGraph& graph,
                             const synth::Choice& choice, const std::vector<ValueId>& outputs);

}  // namespace tessera::rules
