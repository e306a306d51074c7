// Second looks at what one world made equal: the same values in worlds of other inputs and of
// other, larger sizes. Random ones are compared exactly, on other branches. The others compare real
// numbers where the original is one: zeros, equal numbers and large ones ask whether the program
// still is one, signed ones of all sizes go down branches that random ones miss, and shifted ones
// ask whether rounding spoils more than it spoils in the original. What fails here would fail in
// verify/, which is slower.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "search/synth/egraph.h"
#include "search/synth/inputs.h"
#include "search/synth/spec.h"

namespace tessera::synth {

class Trials {
 public:
  // `classes`: the class of each of the spec's values. Stopped, it makes no more trials.
  Trials(const Spec& spec, const World& world, const std::vector<ValueId>& classes, uint64_t seed,
         int64_t patience = kPatience, const std::function<bool()>& stopped = {});
  ~Trials();

  // Values that earlier ones of their classes are not, at inputs of other signs.
  const std::set<ValueId>& unlike() const { return unlike_; }
  // Were all trials made?
  bool complete() const { return complete_; }

  // The first class, operands before results, at which the chosen program leaves the original;
  // kNone where it nowhere does.
  ValueId wrong(const EGraph& graph, const Choice& choice, const std::vector<ValueId>& order) const;

 private:
  struct Trial;
  std::vector<std::unique_ptr<Trial>> trials_;
  std::set<ValueId> unlike_;
  bool complete_ = true;
};

}  // namespace tessera::synth
