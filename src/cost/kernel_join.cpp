#include "cost/kernel_join.h"

#include <algorithm>

#include "ir/written.h"

namespace tessera {
namespace {

// Whether nothing but grid dimension `d` cuts that axis.
bool alone(const GridMap& map, size_t d, size_t dims) {
  for (size_t other = 0; other < dims; ++other)
    if (other != d && map[other] == map[d]) return false;
  return true;
}

}  // namespace

std::optional<KernelJoin> kernel_join(const Graph& graph, OpId second) {
  const Op& b = graph.op(second);
  if (!is_kernel(b.kind)) return std::nullopt;
  KernelJoin join;
  join.second = second;
  for (TensorId t : b.inputs) {
    const OpId id = graph.tensor(t).producer;
    if (is_kernel(graph.op(id).kind) && (!join.first.valid() || join.first < id)) join.first = id;
  }
  if (!join.first.valid()) return std::nullopt;
  const Op& a = graph.op(join.first);
  if (written_kernel(graph, a) || written_kernel(graph, b)) return std::nullopt;
  // What lies between the two in the program may depend on the first.
  for (TensorId t : b.inputs)
    if (join.first < graph.tensor(t).producer) return std::nullopt;
  const Graph &before = graph.body(a), &after = graph.body(b);
  // Where both see a result of the first: how blocks cut it.
  struct Seen {
    GridMap stored, read;
  };
  std::vector<Seen> seen;
  for (const Op& o : after.ops()) {
    if (!is_load(o.kind)) continue;
    for (size_t i = 0; i < b.inputs.size(); ++i) {
      if (after.inputs()[i] != o.inputs[0]) continue;
      for (uint32_t r = 0; r < a.num_results; ++r) {
        if (a.result(r) != b.inputs[i]) continue;
        const Op& save = before.producer(before.outputs()[r]);
        if (!is_store(save.kind)) return std::nullopt;
        seen.push_back({before.attrs<SaveAttrs>(save).omap, after.attrs<IterAttrs>(o).imap});
      }
    }
  }
  if (seen.empty()) return std::nullopt;
  std::vector<bool> taken(before.grid().size(), false);
  for (size_t d = 0; d < after.grid().size(); ++d) {
    int found = -1;
    for (size_t e = 0; e < before.grid().size() && found < 0; ++e) {
      if (taken[e] || before.grid()[e] != after.grid()[d]) continue;
      if (std::ranges::all_of(seen, [&](const Seen& s) {
            return s.read[d] >= 0 && s.read[d] == s.stored[e] &&
                   alone(s.read, d, after.grid().size()) && alone(s.stored, e, taken.size());
          }))
        found = int(e);
    }
    if (found >= 0) taken[size_t(found)] = true;
    join.same.push_back(found);
    (found >= 0 ? join.groups : join.parts) *= after.grid()[d];
  }
  join.arrivals = before.num_blocks() / join.groups;
  if (join.arrivals < 2) return std::nullopt;
  return join;
}

}  // namespace tessera
