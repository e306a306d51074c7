// Rules found in programs: left sides matched against the classes of an e-graph (e-matching by
// backtracking, operands of commutative operations in either order), rules indexed by the operation
// at the root, so that a class is held only against rules that begin as it does.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/rules/rule.h"
#include "search/synth/egraph.h"

namespace tessera::rules {

using synth::DimId;
using synth::EGraph;
using synth::ValueId;

// A way to compute a class, by which a pattern was met.
struct Way {
  ValueId id;
  uint32_t way;
  friend bool operator==(const Way&, const Way&) = default;
};

// What a left side was met by.
struct Match {
  uint32_t rule = 0;  // of the set
  ValueId root = 0;
  DType dtype = DType::F32;      // of the rule's numbers
  std::vector<ValueId> classes;  // by node of the rule; kNone: not on the left
  std::vector<std::optional<Rational>> constants;
  std::vector<DimId> dims;                                 // by name of the rule's extents
  std::vector<std::optional<std::vector<DimId>>> leading;  // by name of its leading axes
  std::vector<Way> ways;                                   // of the left side's operations
};

// Whether the operands of an operation may change places.
bool commutes(const synth::Node& node);

// What elements a way computes with: of its class, of a comparison's operands.
DType number_type(const EGraph& graph, Way way);

// Rules made ready to be matched.
class RuleSet {
 public:
  RuleSet() = default;
  explicit RuleSet(std::vector<Rule> rules);

  const std::vector<Rule>& rules() const { return rules_; }
  bool empty() const { return rules_.empty(); }
  // Rules whose left side may begin with this node.
  const std::vector<uint32_t>& starting_with(const synth::Node& node) const;

  // Calls `found` with each match of a rule whose root is computed by this way, until it returns
  // false. The match is valid during the call.
  void match(const EGraph& graph, uint32_t rule, Way root,
             const std::function<bool(const Match&)>& found) const;
  // What the right side's node computes, as a node whose operands are nodes of the rule, and its
  // shape where the node needs one (Broadcast). Nothing where the match does not say, or the rule's
  // operation does not exist in the e-graph's world. `dims` are the shapes of its operands.
  struct Instance {
    synth::Node node;
    std::optional<synth::Dims> shape;
  };
  std::optional<Instance> instantiate(const Match& match, synth::World& world, ValueId node,
                                      const synth::Dims* const* dims) const;
  // Nodes of the right side that are not on the left, operands first.
  const std::vector<ValueId>& right_nodes(uint32_t rule) const { return compiled_[rule].right; }

 private:
  friend class Matcher;
  struct Compiled {
    std::vector<std::string> dims, leading;         // names
    std::vector<std::vector<uint32_t>> shape_dims;  // by variable, then by shape: indices into dims
    std::vector<std::optional<uint32_t>> shape_leading;
    std::vector<ValueId> right;
  };
  std::vector<Rule> rules_;
  std::vector<Compiled> compiled_;
  std::vector<std::vector<uint32_t>> by_root_;  // by form and kind
};

}  // namespace tessera::rules
