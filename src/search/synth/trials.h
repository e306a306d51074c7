// Second looks at what one world made equal: the same values in worlds of other inputs. Random ones
// take other branches; wild ones (zeros, equal numbers, large ones) ask only whether a program is
// still a number where the original is. What fails here would fail in verify/, which is slower.
#pragma once
#include <memory>
#include <vector>

#include "search/synth/egraph.h"
#include "search/synth/spec.h"

namespace tessera::synth {

class Trials {
 public:
  // `classes`: the class of each of the spec's values.
  Trials(const Spec& spec, const World& world, const std::vector<ValueId>& classes, uint64_t seed);
  ~Trials();

  // The first class, operands before results, at which the chosen program leaves the original;
  // kNone where it nowhere does.
  ValueId wrong(const EGraph& graph, const Choice& choice, const std::vector<ValueId>& order) const;

 private:
  struct Trial;
  std::vector<std::unique_ptr<Trial>> trials_;
};

}  // namespace tessera::synth
