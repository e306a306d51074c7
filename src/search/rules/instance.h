// Rules at concrete sizes: programs that a verifier, an interpreter or a matcher can be given.
#pragma once
#include <map>

#include "base/rng.h"
#include "ir/graph.h"
#include "search/rules/rule.h"

namespace tessera::rules {

// What the names of a rule stand for.
struct Assignment {
  std::map<std::string, int64_t> dims;
  std::map<std::string, std::vector<int64_t>> leading;  // named ones
  std::vector<std::vector<int64_t>> shapes;             // of the variables
  std::vector<std::optional<Rational>> numbers;         // constants that are variables
};

// What random assignments are like.
enum class Sizes : uint8_t {
  Unlike,  // different extents, all above 1, one axis for "..."
  Mixed,   // extents from 1 on, any number of axes for "...", which broadcast
  Bare,    // unlike extents, no axes for "..."
  Any,     // from so many that no two are alike by chance, two axes for "..."
  AnyBare,
  One,  // a single element
};
Assignment draw(const Rule&, Sizes, Rng&);

// A program with the rule's variables as inputs and the values as outputs. Nothing where the types
// do not fit, or a constant has no value. Variables that a `where` condition restricts are made of
// inputs that make it true: exp(x) > 0, x·x >= 0.
std::optional<Graph> build(const Rule&, const std::vector<synth::ValueId>& values,
                           const Assignment&, DType);

// numpy.matmul of tensors of a graph, vectors included.
TensorId add_dot(Graph&, TensorId a, TensorId b);

// The types of all nodes; nothing where they do not fit.
std::optional<std::vector<Type>> types(const Rule&, const Assignment&, DType);

}  // namespace tessera::rules
