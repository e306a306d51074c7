#include "backend/cuda/describe.h"

#include <algorithm>

#include "backend/cuda/block_emitter.h"
#include "backend/loop_work.h"
#include "plan/block_choice.h"

namespace tessera {

// Follows the generator's decisions: each value that has memory is a tile, each piece of code that
// makes one is a step, with the way in which that code shares elements among the threads.
class BlockDescriber {
 public:
  explicit BlockDescriber(const BlockEmitter& e) : e_(e), count_(int(e.kernel_.values.size())) {}

  DescribedBlock run() {
    out_.block.threads = e_.threads_;
    out_.value_of.assign(size_t(count_), -1);
    for (int i = 0; i < count_; ++i) add_value(i);
    bodies();
    made_.assign(size_t(count_), false);
    body(0, -1);
    leave_out_unread();
    return std::move(out_);
  }

 private:
  using Home = BlockEmitter::Home;
  struct Reads {
    std::vector<BlockAccess> all;
    void add(BlockAccess a) {
      for (const BlockAccess& b : all)
        if (b.value == a.value && b.axes == a.axes && b.anyhow == a.anyhow) return;
      all.push_back(std::move(a));
    }
  };

  const Value& value(int id) const { return e_.value(id); }
  bool has_memory(int id) const {
    return e_.needed_[size_t(id)] && (e_.home(id) == Home::Tile || e_.home(id) == Home::Shared);
  }
  int block_value(int id) const { return out_.value_of[size_t(id)]; }

  void add_value(int id) {
    if (!has_memory(id)) return;
    const Value& v = value(id);
    BlockValue b;
    b.name = "v" + std::to_string(id);
    b.dtype = v.memory.storage;
    for (size_t axis = 0; axis < v.extents.size(); ++axis) b.extents.push_back(e_.stored(id, axis));
    if (e_.home(id) == Home::Tile && !b.extents.empty()) {
      const int64_t piece = std::max(1, e_.piece_bytes(id) / size_in_bytes(v.dtype));
      b.extents.back() = ceil_div(b.extents.back(), piece) * piece;
    }
    // Loads move pieces of rows; the generator addresses matrices by their rows.
    if (e_.home(id) == Home::Tile || e_.fragment_[size_t(id)])
      b.innermost = int(b.extents.size()) - 1;
    out_.value_of[size_t(id)] = int(out_.block.values.size());
    out_.block.values.push_back(std::move(b));
  }

  // --- loops
  // Bodies are sets of loops, each inside the one without its last loop.
  void bodies() {
    std::set<uint8_t> masks;
    for (int i = 0; i < count_; ++i) {
      if (!e_.needed_[size_t(i)] || !e_.root(i)) continue;
      for (unsigned mask = update_loops(value(i)); mask != 0; mask &= ~(1u << last(mask)))
        masks.insert(uint8_t(mask));
    }
    masks_.assign(masks.begin(), masks.end());
    std::ranges::sort(masks_, [](uint8_t a, uint8_t b) {
      const int x = __builtin_popcount(a), y = __builtin_popcount(b);
      return x != y ? x < y : a < b;
    });
  }
  static int last(unsigned mask) { return 31 - __builtin_clz(mask); }
  static unsigned around(unsigned mask) { return mask & ~(1u << last(mask)); }
  // Where the value is computed: in the loops it varies with, or in the least body with these.
  unsigned body_of(int id) const {
    const unsigned varies = e_.root(id) ? update_loops(value(id)) : value(id).phase.varies;
    if (varies == 0) return 0;
    for (uint8_t m : masks_)
      if ((m & varies) == varies) return m;
    return 0;
  }

  // --- the order of steps
  bool ready(int id, const std::set<int>& beside) const {
    const auto in_memory = [&](int d) { return e_.in_memory(d); };
    return std::ranges::all_of(dependencies(e_.kernel_, id, 0xff, in_memory), [&](int d) {
      return made_[size_t(d)] || !(has_memory(d) || e_.home(d) == Home::Fragment) ||
             beside.count(d) != 0;
    });
  }
  bool computes(int id) const {
    if (!e_.needed_[size_t(id)]) return false;
    const Home h = e_.home(id);
    return h == Home::Tile || h == Home::Shared || h == Home::Stored || h == Home::Fragment;
  }
  // What must be done inside the body or in loops of it.
  std::set<int> within(unsigned mask) const {
    std::set<int> out;
    for (int i = 0; i < count_; ++i)
      if (computes(i) && (body_of(i) & mask) == mask) out.insert(i);
    return out;
  }
  void body(unsigned mask, int loop) {
    std::vector<uint8_t> inner = those(masks_, [&](uint8_t m) { return around(m) == mask; });
    // Loads first: they run ahead.
    for (const bool loads : {true, false}) {
      for (bool progress = true; progress;) {
        progress = false;
        for (int i = 0; i < count_; ++i) {
          if (!computes(i) || made_[size_t(i)] || body_of(i) != mask ||
              (loads && e_.home(i) != Home::Tile) || !ready(i, {}))
            continue;
          step(i, loop);
          made_[size_t(i)] = progress = true;
        }
        if (loads || progress) continue;
        for (size_t k = 0; k < inner.size() && !progress; ++k) {
          const std::set<int> all = within(inner[k]);
          if (!std::ranges::all_of(all, [&](int i) { return ready(i, all); })) continue;
          run_loop(inner[k], loop);
          inner.erase(inner.begin() + long(k));
          progress = true;
        }
      }
    }
  }
  void run_loop(unsigned mask, int outer) {
    for (int i = 0; i < count_; ++i)
      if (computes(i) && is_accumulator(value(i).kind) && body_of(i) == mask) start(i, outer);
    const size_t first = out_.block.steps.size();
    const int loop = int(out_.block.loops.size());
    out_.block.loops.push_back({e_.kernel_.loops[size_t(last(mask))], outer});
    body(mask, loop);
    if (out_.block.steps.size() == first) out_.block.loops.pop_back();
    for (int i = 0; i < count_; ++i)
      if (computes(i) && is_accumulator(value(i).kind) && body_of(i) == mask) spill(i, outer);
  }

  // --- accesses
  // What is read to compute the value at the elements that `axes` of a step's space name.
  void reads(int id, const std::vector<int>& axes, bool known, Reads& found) const {
    const Value& v = value(id);
    if (has_memory(id)) {
      BlockAccess a{block_value(id), axes};
      a.anyhow = !known;
      if (known)
        for (size_t i = 0; i < axes.size(); ++i)
          if (v.extents[i].nominal == 1 && !e_.fragment_[size_t(id)]) a.axes[i] = -1;
      if (!known) a.axes.clear();
      found.add(std::move(a));
      return;
    }
    if (e_.home(id) != Home::Inline) return;
    for (size_t o = 0; o < v.inputs.size(); ++o) {
      const Value& x = value(v.inputs[o]);
      const size_t rank = x.extents.size();
      std::vector<int> to(rank, -1);
      bool good = known;
      if (!known) {
      } else if (has(v.kind, algebra::Pointwise) || v.kind == OpKind::Broadcast) {
        const size_t skip = axes.size() - std::min(axes.size(), rank);
        for (size_t i = 0; i < rank; ++i) to[i] = x.extents[i].nominal == 1 ? -1 : axes[skip + i];
      } else if (v.kind == OpKind::Transpose) {
        const auto& perm = std::get<PermAttrs>(v.attrs).perm;
        for (size_t i = 0; i < perm.size(); ++i) to[size_t(perm[i])] = axes[i];
      } else if (adds_or_drops_ones(v.kind)) {
        const auto& cut = std::get<AxesAttrs>(v.attrs).axes;
        const bool added = v.kind == OpKind::Unsqueeze;
        size_t from = 0;
        for (size_t i = 0; i < std::max(rank, axes.size()); ++i) {
          const bool gone = std::ranges::binary_search(cut, int(i));
          if (added && !gone) to[from++] = axes[i];
          if (!added && !gone) to[i] = axes[from++];
        }
      } else {
        good = false;
      }
      reads(v.inputs[o], to, good, found);
    }
  }
  static std::vector<int> all_axes(size_t rank) {
    std::vector<int> out(rank);
    for (size_t i = 0; i < rank; ++i) out[i] = int(i);
    return out;
  }
  BlockAccess whole_tile(int id) const {
    BlockAccess a{block_value(id), {}};
    for (size_t i = 0; i < value(id).extents.size(); ++i)
      a.axes.push_back(value(id).extents[i].nominal == 1 ? -1 : int(i));
    return a;
  }
  static Walk each(const std::vector<int64_t>& space, int width = 1) {
    Walk w;
    w.along = space.empty() ? -1 : int(space.size()) - 1;
    w.width = width;
    return w;
  }
  BlockStep& add(const std::string& what, int id, StepKind kind, int loop,
                 std::vector<int64_t> space, Walk walk) {
    BlockStep s;
    s.name = what + std::to_string(id);
    s.kind = kind;
    s.loop = loop;
    s.space = std::move(space);
    s.walk = walk;
    out_.block.steps.push_back(std::move(s));
    return out_.block.steps.back();
  }

  // --- steps
  void step(int id, int loop) {
    const Value& v = value(id);
    if (is_load(v.kind)) return load(id, loop);
    if (is_accumulator(v.kind)) return update(id, loop);
    if (is_product(v.kind)) return product(id, id, loop);
    if (is_reduction(v.kind)) return reduce(id, id, loop);
    const bool store = is_store(v.kind);
    const std::vector<int64_t> space = v.shape();
    BlockStep& s = add(store ? "save" : "v", id, store ? StepKind::Store : StepKind::Compute, loop,
                       space, held_walk(id, space));
    if (store && s.walk.kind == WalkKind::Linear)
      s.global_along = s.walk.along, s.global_bytes = size_in_bytes(v.dtype);
    Reads found;
    const bool kept = e_.home(id) == Home::Fragment;  // and no product
    if (store || is_scan(v.kind) || has_memory(id) || kept) {
      for (int input : v.inputs) {
        const bool same = has(v.kind, algebra::Pointwise) || store;
        reads(input, broadcast_axes(input, space), same, found);
      }
    }
    BlockStep& again = out_.block.steps.back();
    again.reads = std::move(found.all);
    if (!store && !kept) again.writes = {whole_tile(id)};
  }

  // The walk of a step that finds what it needs in registers is that of who put it there.
  Walk held_walk(int id, const std::vector<int64_t>& space) const {
    const auto held = e_.held_for_.find(id);
    if (held == e_.held_for_.end()) return each(space);
    const int product = e_.units_of_.at(held->second[0]);
    return product_walk(e_.units_.at(product), space.size(), false);
  }

  void load(int id, int loop) {
    const Value& v = value(id);
    const std::vector<int64_t>& space =
        out_.block.values[size_t(block_value(id))].extents;  // zeros around it too
    const int bytes = e_.piece_bytes(id);
    BlockStep& s = add("load v", id, StepKind::Load, loop, space,
                       each(space, std::max(1, bytes / size_in_bytes(v.dtype))));
    s.walk.whole = true;
    s.global_along = s.walk.along;
    s.global_bytes = bytes;
    s.writes = {{block_value(id), all_axes(space.size())}};
  }

  // Axes of an operand of a product with (…, m, n, k) as the space.
  std::vector<int> operand_axes(int operand, size_t rank, bool left) const {
    const size_t r = value(operand).extents.size();
    std::vector<int> axes(r, -1);
    for (size_t i = 0; i + 2 < r; ++i)
      axes[i] = value(operand).extents[i].nominal == 1 ? -1 : int(rank - r + i);
    axes[r - 2] = int(left ? rank - 2 : rank);
    axes[r - 1] = int(left ? rank : rank - 1);
    return axes;
  }
  void product(int id, int into, int loop) {
    const Value& v = value(id);
    const BlockEmitter::Units& u = e_.units_.at(id);
    const size_t rank = v.extents.size();
    int number = 0;
    for (const BlockEmitter::Pair& pair : e_.pairs(v)) {
      std::vector<int64_t> space = v.shape();
      const int64_t depth = value(pair.left).extents.back().nominal;
      space.push_back(depth);
      BlockStep& s = add(number++ > 0 ? "more of v" : "product v", id, StepKind::Compute, loop,
                         space, product_walk(u, rank, true));
      s.walk.in_pairs = u.tf32 && e_.home(pair.left) == BlockEmitter::Home::Fragment;
      Reads found;
      reads(pair.left, operand_axes(pair.left, rank, true), true, found);
      reads(pair.right, operand_axes(pair.right, rank, false), true, found);
      s.reads = std::move(found.all);
      if (u.registers) continue;  // sums stay in registers
      BlockAccess sums = whole_tile(into);
      if (into != id || number > 1) s.reads.push_back(sums);
      s.writes = {sums};
    }
  }
  Walk product_walk(const BlockEmitter::Units& u, size_t rank, bool deep) const {
    Walk w;
    w.n = int(rank) - 1;
    w.m = int(rank) - 2;
    w.k = deep ? int(rank) : -1;
    if (!u.tensor_cores) {
      w.along = w.n;
      w.m = w.n = -1;
      return w;
    }
    w.kind = WalkKind::Fragments;
    w.whole = !u.tf32;
    if (u.wide) {
      if (u.swapped) std::swap(w.m, w.n);
      w.warps_m = 4 * int(std::min<int64_t>(u.workers, u.row_units));
      w.warps_n = std::max(1, u.workers * 4 / w.warps_m);
      return w;
    }
    while (w.warps_n * 2 <= u.column_units && w.warps_n * 2 <= u.workers) w.warps_n *= 2;
    while (w.warps_m * 2 <= u.row_units && w.warps_n * w.warps_m * 2 <= u.workers) w.warps_m *= 2;
    return w;
  }

  void reduce(int id, int into, int loop) {
    const Value& v = value(id);
    const Value& x = value(v.inputs[0]);
    const auto& a = std::get<ReduceAttrs>(v.attrs);
    const std::vector<int64_t> space = x.shape();
    int64_t outputs = 1, terms = 1;
    std::vector<int> kept;
    for (size_t i = 0; i < space.size(); ++i) {
      const bool gone = std::ranges::binary_search(a.axes, int(i));
      (gone ? terms : outputs) *= space[i];
      if (!gone || a.keepdims) kept.push_back(gone ? -1 : int(i));
    }
    Walk w;
    w.kind = WalkKind::Rows;
    w.along = a.axes.back();
    w.lanes = 1;
    while (w.lanes < e_.threads_ && w.lanes < terms && outputs * w.lanes < e_.threads_)
      w.lanes *= 2;
    const bool one = a.axes.size() == 1 && e_.held_for_.count(id) == 0;
    if (!one) w.kind = WalkKind::Whole;
    BlockStep& s = add("reduce v", id, StepKind::Compute, loop, space, w);
    Reads found;
    reads(v.inputs[0], all_axes(space.size()), one, found);
    s.reads = std::move(found.all);
    BlockAccess r{block_value(into), kept, !one};
    if (!one) r.axes.clear();
    for (size_t i = 0; i < r.axes.size(); ++i)
      if (r.axes[i] >= 0 && space[size_t(r.axes[i])] == 1) r.axes[i] = -1;
    if (into != id) s.reads.push_back(r);
    s.writes = {r};
    if (w.lanes > 32) {
      s.scratch_bytes = outputs * (w.lanes / 32) * 8;
      s.barriers = 1;
    }
  }

  bool in_registers(int id) const {
    const int from = value(id).inputs[0];
    const auto u = e_.units_.find(from);
    return e_.fused_[size_t(from)] == id && u != e_.units_.end() && u->second.registers;
  }
  void start(int id, int loop) {
    if (in_registers(id)) return;
    const std::vector<int64_t> space = value(id).shape();
    add("start v", id, StepKind::Compute, loop, space, each(space)).writes = {whole_tile(id)};
  }
  // Which axis of the space each axis of an operand goes along, as broadcasting has it; -1: none.
  std::vector<int> broadcast_axes(int input, const std::vector<int64_t>& space) const {
    std::vector<int> axes(value(input).extents.size(), -1);
    const size_t skip = space.size() - std::min(space.size(), axes.size());
    for (size_t i = 0; i < axes.size(); ++i)
      if (value(input).extents[i].nominal != 1) axes[i] = int(skip + i);
    return axes;
  }

  void update(int id, int loop) {
    const Value& v = value(id);
    const int from = v.inputs[0];
    if (e_.fused_[size_t(from)] == id && is_product(value(from).kind))
      return product(from, id, loop);
    if (e_.fused_[size_t(from)] == id) return reduce(from, id, loop);
    const std::vector<int64_t> space = value(from).shape();
    BlockStep& s = add("update v", id, StepKind::Compute, loop, space, each(space));
    Reads found;
    for (int input : v.inputs) {
      const std::vector<int> axes = broadcast_axes(input, space);
      reads(input, axes, axes.size() <= space.size(), found);
    }
    BlockAccess sums = whole_tile(id);
    if (std::get<AccumAttrs>(v.attrs).kind == AccumKind::Concat) sums = {block_value(id), {}, true};
    found.add(sums);
    s.reads = std::move(found.all);
    s.writes = {sums};
  }
  // Sums leave the registers.
  void spill(int id, int loop) {
    if (!in_registers(id) || e_.home(id) == Home::Fragment) return;
    const Value& v = value(id);
    const std::vector<int64_t> space = v.shape();
    add("sums v", id, StepKind::Compute, loop, space,
        product_walk(e_.units_.at(v.inputs[0]), v.extents.size(), false))
        .writes = {whole_tile(id)};
  }

  // A tile may be loaded for code that reads nothing of it but its extents.
  void leave_out_unread() {
    std::vector<BlockStep>& steps = out_.block.steps;
    const auto unread = [&](const BlockStep& s) {
      if (s.kind != StepKind::Load) return false;
      for (const BlockStep& other : steps)
        for (const BlockAccess& a : other.reads)
          if (a.value == s.writes[0].value) return false;
      return true;
    };
    for (size_t i = steps.size(); i-- > 0;)
      if (unread(steps[i])) steps.erase(steps.begin() + long(i));
  }

  const BlockEmitter& e_;
  int count_;
  DescribedBlock out_;
  std::vector<uint8_t> masks_;  // bodies besides the block's own, outer ones first
  std::vector<bool> made_;      // by value
};

DescribedBlock BlockEmitter::describe() const { return BlockDescriber(*this).run(); }

// Order, padding and swizzling of all tiles, as the plan of the block has them.
void BlockEmitter::plan_layouts() {
  const DescribedBlock described = describe();
  BlockLimits limits;
  limits.shared_bytes = INT64_MAX / 2;  // what is too large is refused where memory is planned
  limits.matrix_stores = limits_.block.matrix_stores;
  const std::vector<std::optional<TileLayout>> layouts = tile_layouts(described.block, limits);
  planned_elements_.assign(kernel_.values.size(), 0);
  // Boxes are swizzled so that matrices never meet in a bank; elsewhere the plan's prices decide.
  std::map<int, Instruction> stored_by;
  for (const BlockStep& step : described.block.steps) {
    if (!limits.matrix_stores || step.writes.size() != 1 || step.writes[0].anyhow) continue;
    const int v = step.writes[0].value;
    if (!layouts[size_t(v)]) continue;
    const BlockValue& tile = described.block.values[size_t(v)];
    const SharedLayout& layout = layouts[size_t(v)]->layout;
    const auto plan =
        price_access(described.block, limits, step, step.walk, step.writes[0], true, layout,
                     shared_offsets(layout, tile.extents, size_in_bytes(tile.dtype)));
    if (plan) stored_by[v] = plan->instruction;
  }
  for (const auto& [id, holders] : held_for_) {
    const int v = described.value_of[size_t(id)];
    if (v < 0 || !fragment_[size_t(id)] || value(id).dtype == DType::F32) continue;
    if (box_width_[size_t(id)] > 0 || stored_by[v] == Instruction::MatrixStore)
      as_matrices_.insert(id);
  }
  for (size_t id = 0; id < described.value_of.size(); ++id) {
    const int v = described.value_of[id];
    if (v < 0) continue;
    const BlockValue& tile = described.block.values[size_t(v)];
    const int bytes = size_in_bytes(tile.dtype);
    const TileLayout o = layouts[size_t(v)].value_or(TileLayout{{}, tile.elements() * bytes});
    if (box_width_[id] > 0) {
      box_layout(int(id));
      continue;
    }
    Memory& m = kernel_.values[id].memory;
    m.strides.clear();
    for (int64_t stride : shared_strides(o.layout, tile.extents, bytes))
      m.strides.push_back(stride / bytes);
    m.swizzle_mask = m.swizzle_shift = 0;
    if (o.layout.swizzle_bits > 0) {
      // In elements: the bits of a 16-byte piece, changed by those that lie `shift` above.
      m.swizzle_shift = o.layout.swizzle_shift - 4;
      m.swizzle_mask = ((1 << o.layout.swizzle_bits) - 1) * (16 / bytes);
    }
    const int64_t aligned = std::max<int64_t>(shared_alignment(o.layout), 128);
    planned_elements_[id] = ceil_div(o.bytes, aligned) * aligned / bytes;
  }
}

}  // namespace tessera
