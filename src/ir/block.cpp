#include "ir/block.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/error.h"
#include "ir/validate.h"

namespace tessera {

Interval part(Interval whole, int64_t nominal, int64_t parts, int64_t index) {
  int64_t size = ceil_div(nominal, parts);
  Interval r{whole.begin + index * size, whole.begin + (index + 1) * size};
  r.begin = std::min(r.begin, whole.end);
  r.end = std::min(r.end, whole.end);
  return r;
}

std::vector<Interval> tile(const std::vector<int64_t>& extents, const GridMap& grid_map,
                           const LoopMap& loop_map, const Graph& g,
                           const std::vector<int64_t>& block,
                           const std::vector<int64_t>& iteration) {
  std::vector<Interval> result(extents.size());
  for (size_t d = 0; d < extents.size(); d++) {
    Interval now{0, extents[d]};
    int64_t nominal = extents[d];
    auto split = [&](int64_t parts, int64_t index) {
      now = part(now, nominal, parts, index);
      nominal = ceil_div(nominal, parts);
    };
    for (size_t i = 0; i < g.grid().size(); i++)
      if (grid_map[i] == int(d)) split(g.grid()[i], block[i]);
    for (size_t i = 0; i < g.loops().size(); i++)
      if (loop_map[i] == int(d)) split(g.loops()[i], iteration[i]);
    result[d] = now;
  }
  return result;
}

Shape nominal_tile(const Shape& shape, const GridMap& grid_map, const LoopMap& loop_map,
                   const Graph& g) {
  Shape result = shape;
  auto split = [&](int axis, int64_t parts) {
    if (axis < 0 || parts == 1) return;
    Dim& d = result[size_t(axis)];
    if (d.symbolic()) bad_input("a symbolic dimension (" + d.symbol + ") cannot be split");
    d = Dim(ceil_div(d.extent, parts));
  };
  for (size_t i = 0; i < g.grid().size(); i++) split(grid_map[i], g.grid()[i]);
  for (size_t i = 0; i < g.loops().size(); i++) split(loop_map[i], g.loops()[i]);
  return result;
}

namespace {

uint8_t mapped(const LoopMap& map) {
  uint8_t bits = 0;
  for (size_t i = 0; i < map.size(); i++)
    if (map[i] >= 0) bits = uint8_t(bits | (1u << i));
  return bits;
}

Phase phase_of(const Graph& g, const Op& op, Phase operands) {
  if (is_load(op.kind)) return {mapped(g.attrs<IterAttrs>(op).fmap), 0};
  if (is_accumulator(op.kind)) {
    uint8_t fold = 0;
    for (int l : g.attrs<AccumAttrs>(op).loops) fold = uint8_t(fold | (1u << l));
    if (fold & ~operands.varies) bad_op(g, op, "folds a loop that its operand does not vary with");
    auto rest = unsigned(operands.varies & ~fold);
    if (int(std::bit_width(rest)) > std::countr_zero(unsigned(fold)))
      bad_op(g, op, "folds a loop outside one that its operand still varies with");
    return {uint8_t(rest), uint8_t(operands.folded | fold)};
  }
  if (is_store(op.kind)) {
    uint8_t streams = mapped(g.attrs<SaveAttrs>(op).fmap);
    if (operands.varies & ~streams)
      bad_op(g, op, "stores a loop value; accumulate it first or map the loop to an axis (fmap)");
    if (streams & ~operands.varies)
      bad_op(g, op, "fmap names a loop that the value does not vary with");
  }
  return operands;  // every other operator computes in its operands' phase
}

bool is_in_place(OpKind kind) { return has(kind, algebra::Pointwise); }

}  // namespace

std::vector<Phase> phases(const Graph& g) {
  CHECK(g.level() == Level::Block) << "phases of a " << name(g.level()) << " graph";
  std::vector<Phase> result(g.tensors().size());
  for (const Op& op : g.ops()) {
    Phase all;
    for (TensorId t : op.inputs) {
      all.varies |= result[t.index].varies;
      all.folded |= result[t.index].folded;
    }
    if (all.varies & all.folded)
      bad_op(g, op, "mixes a value inside a loop with one folded over it");
    Phase p = phase_of(g, op, all);
    for (uint32_t i = 0; i < op.num_results; i++) result[op.result(i).index] = p;
  }
  return result;
}

BlockMemory block_memory(const Graph& g) {
  std::vector<Phase> phase = phases(g);
  std::vector<size_t> last_use(g.tensors().size(), 0);
  std::vector<int> uses = use_counts(g);
  for (size_t i = 0; i < g.ops().size(); i++)
    for (TensorId t : g.ops()[i].inputs) last_use[t.index] = i;
  auto outside = [](OpKind k) { return is_input(k) || is_store(k); };
  auto bytes = [&](TensorId t) { return is_static(g.type(t).shape) ? g.type(t).bytes() : 0; };

  BlockMemory memory;
  for (bool loop : {true, false}) {
    // Accumulators exist throughout the loop; invariants and post values while they are needed.
    int64_t live = 0, peak = 0;
    if (loop)
      for (const Op& op : g.ops())
        if (is_accumulator(op.kind)) live += bytes(op.result());
    for (size_t i = 0; i < g.ops().size(); i++) {
      const Op& op = g.ops()[i];
      if (outside(op.kind)) continue;
      bool accumulates = is_accumulator(op.kind);
      bool in_loop = phase[op.result().index].varies != 0;
      bool invariant = !in_loop && phase[op.result().index].folded == 0;
      if (accumulates ? loop : (in_loop != loop && !invariant)) continue;
      bool reuses = false;
      for (TensorId t : op.inputs)
        reuses = reuses || (is_in_place(op.kind) && last_use[t.index] == i && uses[t.index] == 1 &&
                            bytes(t) >= bytes(op.result()) && !outside(g.producer(t).kind));
      int64_t size = bytes(op.result());
      if (loop && is_load(op.kind) && in_loop) size *= 2;
      if (!reuses) live += size;
      peak = std::max(peak, live);
      for (TensorId t : op.inputs) {
        bool here = (phase[t.index].varies != 0) == loop && !outside(g.producer(t).kind) &&
                    !(loop && is_load(g.producer(t).kind));
        if (here && last_use[t.index] == i && !reuses) live -= bytes(t);
      }
    }
    (loop ? memory.loop_bytes : memory.post_bytes) = peak;
  }
  return memory;
}

}  // namespace tessera
