// Equal programs side by side: classes of values that agree in the world, each with every way found
// to compute it from other classes (an e-graph whose congruence is observational equivalence: nodes
// fall into one class because they evaluate to the same numbers, not because a rule said so).
#pragma once
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "search/synth/hash_index.h"
#include "search/synth/rates.h"
#include "search/synth/spec.h"
#include "search/synth/world.h"

namespace tessera::synth {

// The cost of what cannot be computed.
inline constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Class {
  Sample sample;
  std::vector<Node> nodes;      // arguments are classes; the first is how it was found first
  std::vector<double> seconds;  // of each node alone
};

// Which node computes each class; kNone where nothing does yet.
using Choice = std::vector<uint32_t>;

class EGraph {
 public:
  EGraph(World& world, const Rates& rates) : world_(world), rates_(rates) {}

  World& world() { return world_; }
  const World& world() const { return world_; }
  const Rates& rates() const { return rates_; }
  size_t size() const { return classes_.size(); }
  const Class& operator[](ValueId id) const { return classes_[id]; }
  ValueId find(uint64_t hash) const { return by_hash_.find(hash); }

  // The class of an operation on classes: known, or new. kNone where it has no value.
  ValueId add(const Node& node, const Dims* shape = nullptr);
  // A class of its own value (Leaf, Stack, Kept).
  ValueId add(const Node& node, const Sample& value);
  // Another way to compute a class, whose value it is known to have.
  bool add_way(ValueId id, const Node& node);

  // Never chooses this way again.
  void forbid(ValueId id, uint32_t way);

  double node_seconds(const Node& node, const Dims& result) const;
  // Operands of a node, as Kept and Stack have many.
  void each_arg(const Node& node, const std::function<void(ValueId)>& f) const;

  // Seconds of a choice for these outputs, values that are used twice computed once; infinity where
  // it is cyclic or incomplete.
  double seconds(const Choice& choice, const std::vector<ValueId>& outputs) const;
  // Of those, the loops that a compiler makes of what is elementwise, one for each value written.
  double loop_seconds(const Choice& choice, const std::vector<ValueId>& outputs) const;
  // The classes that a choice computes for the outputs, operands first.
  std::vector<ValueId> order(const Choice& choice, const std::vector<ValueId>& outputs) const;
  // A cheap choice, found fast: trees of least cost, then single changes as long as they gain. The
  // cheapest is extract.h's. Stopped, it makes no more changes.
  Choice extract(const std::vector<ValueId>& outputs,
                 const std::function<bool()>& stopped = {}) const;
  // Improves a choice by single changes.
  void improve(Choice& choice, const std::vector<ValueId>& outputs,
               const std::function<bool()>& stopped = {}) const;

 private:
  World& world_;
  const Rates& rates_;
  SampleStore store_;
  std::vector<Class> classes_;
  HashIndex by_hash_;
};

// Whether two values are equal at the world's inputs; those that are kept apart are, too.
inline bool same_numbers(const Sample& a, const Sample& b) {
  return a.hash == b.hash || (a.dims == b.dims && a.dims.dtype != DType::Bool && a.n == b.n &&
                              std::equal(a.p, a.p + a.n, b.p));
}

// A program in an e-graph, equal values united but for those of `apart`, which are only alike at
// the world's inputs (x and √x² at positive ones).
struct Entered {
  Choice choice;                 // the program's own ways
  std::vector<ValueId> classes;  // of the spec's values
  std::vector<ValueId> outputs;  // of the spec's outputs
  double seconds = 0;            // as it is written: equal values as often as they stand there
};
Entered enter(EGraph& graph, const Spec& spec, const std::vector<Sample>& values,
              const std::set<ValueId>& apart = {});

}  // namespace tessera::synth
