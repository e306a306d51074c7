// Signs of tensors by the form of what makes them, and whether operators stay in their domains.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace tessera {

// Of every element, wherever it is defined; weaker ones first.
enum class Sign : uint8_t { Any, NotNegative, Positive };
// Of all tensors, of inputs as the caller knows them (of none: anything).
std::vector<Sign> signs_of(const Graph& graph, const std::vector<Sign>& arguments = {});
bool is_nonnegative(const Graph& graph, TensorId t);

// Whether no operator of the program can leave its domain at finite inputs, over the reals:
// 1 / (1 + exp x), √(x² + ε).
bool is_total(const Graph& graph);

struct Domains {
  std::vector<TensorId> poles;  // denominators at the graph's own level that may be zero
  struct Base {
    TensorId operand;       // of a root, logarithm or power that may be
    double least = 0;       // below this,
    bool is_least = false;  // or, never below, equal to it where that is out of the domain, too
    bool open = false;      // whether that is
  };
  std::vector<Base> bases;
  bool total = true;  // nothing but denominators may be out of its domain
};
Domains domains_of(const Graph& graph);

}  // namespace tessera
