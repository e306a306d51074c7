// Copying a program with one operator replaced: the tool that mutations and rewrites are made of.
// Every edit is type-checked and validated; one that does not fit gives nullopt.
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "ir/graph.h"

namespace tessera {

// An operator of the program: of the kernel graph (body < 0) or of the body of a `kernel` operator.
struct Site {
  int body = -1;  // BodyId
  OpId op;
};
std::vector<Site> all_sites(const Graph& g);
const Graph& graph_of(const Graph& g, const Site& site);
const Op& op_at(const Graph& g, const Site& site);

// Builds a replacement in `out` (a copy of the graph up to this operator) from the copied operands;
// returns the tensors that stand for its results, or nothing if it does not apply.
using Edit = std::function<std::optional<std::vector<TensorId>>(
    Graph& out, const Op& op, const std::vector<TensorId>& operands)>;
std::optional<Graph> edit_at(const Graph& g, const Site& site, const Edit& edit);

// Replaces the body of a kernel operator.
std::optional<Graph> replace_body(const Graph& g, int body, const Graph& new_body);

// Copies one operator (with its body, if any) into `out`.
std::vector<TensorId> copy_op(Graph& out, const Graph& from, const Op& op,
                              const std::vector<TensorId>& operands);

// The same interface, and valid.
bool fits(const Graph& original, const Graph& edited);

// --- what edits are written with

using Tensors = std::vector<TensorId>;
using EditResult = std::optional<Tensors>;
inline EditResult one(TensorId t) { return Tensors{t}; }
inline TensorId scalar(Graph& g, Rational value, DType dtype) {
  return g.add_const(value, {dtype, {}});
}
// Elements start … stop−1 of one axis.
TensorId cut(Graph& g, TensorId x, size_t axis, int64_t start, int64_t stop);

// Tries all sites in random order until the edit fits and changes something:
// edit(graph of the site, copy so far, operator, copied operands).
template <class F> std::optional<Graph> at_random_site(const Graph& g, Rng& rng, F edit) {
  std::vector<Site> sites = all_sites(g);
  std::shuffle(sites.begin(), sites.end(), rng);
  for (const Site& site : sites) {
    const Graph& home = graph_of(g, site);
    auto changed = edit_at(g, site, [&](Graph& out, const Op& op, const Tensors& in) -> EditResult {
      return edit(home, out, op, in);
    });
    if (changed && !(*changed == g)) return changed;
  }
  return std::nullopt;
}

// The same for one kind of operator.
template <class F> std::optional<Graph> at_kind(const Graph& g, Rng& rng, OpKind kind, F edit) {
  return at_random_site(
      g, rng,
      [&](const Graph& home, Graph& out, const Op& op, const Tensors& in) -> EditResult {
        if (op.kind != kind) return std::nullopt;
        return edit(home, out, op, in);
      });
}

}  // namespace tessera
