#include "plan/block_plan.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "plan/block_actions.h"
#include "plan/block_choice.h"
#include "plan/block_order.h"
#include "plan/memory.h"

namespace tessera {
namespace {

// In cycles, to weigh plans of the same layouts against each other.
constexpr double kBarrier = 30;
constexpr double kLatency = 600;  // of global memory, in an iteration in which nothing ran ahead
constexpr int64_t kSystemBytes = 1024;  // of shared memory that each block costs besides its own

// How loops are run: what differs between the plans that are tried.
struct Manner {
  int stages = 1;
  bool doubled = false;  // tiles made in a loop have two copies where that saves a barrier
  bool serial = false;
};

class BlockPlanner {
 public:
  BlockPlanner(const Block& block, const std::vector<FlowTile>& tiles,
               const std::vector<FlowAccess>& accesses, const BlockLimits& limits)
      : block_(block), tiles_(tiles), limits_(limits), accesses_(tiles.size()) {
    base_.values.resize(tiles.size());
    base_.steps.resize(block.steps.size());
    for (size_t s = 0; s < block.steps.size(); ++s)
      if (block.steps[s].kind == StepKind::Load) base_.steps[s].writes.resize(1);
    for (const FlowAccess& a : accesses) {
      accesses_[index(a.tile)].push_back({a.step, a.write, a.mapping, a.proxy, a.instruction});
      if (a.write && step(a.step).kind == StepKind::Load)
        base_.steps[index(a.step)].writes[0].instruction = a.instruction;
    }
    for (size_t v = 0; v < tiles.size(); ++v) {
      std::ranges::stable_sort(accesses_[v], {}, &PlacedAccess::step);
      ValuePlan& value = base_.values[v];
      value.place = tiles[v].bytes == 0 ? BlockPlace::Registers : BlockPlace::Shared;
      value.bytes = tiles[v].bytes;
      value.loop = home_.emplace_back(home(int(v)));
    }
  }

  BlockPlan run() {
    if (std::optional<BlockPlan> best = cheapest()) return *best;
    throw Error(ErrorKind::Unsupported,
                "a block needs " + std::to_string(least_seen_) + " bytes of shared memory, but " +
                    std::to_string(limits_.shared_bytes) + " is the limit; use smaller tiles");
  }

 private:
  size_t index(int i) const { return size_t(i); }
  const BlockStep& step(int s) const { return block_.steps[index(s)]; }

  // The loop in whose every iteration the value is made anew and used up; -1: none.
  int home(int v) const {
    const std::vector<PlacedAccess>& all = accesses_[index(v)];
    if (all.empty() || !all[0].write) return -1;
    const int loop = step(all[0].step).loop;
    for (const PlacedAccess& a : all) {
      if (!inside(block_, step(a.step).loop, loop)) return -1;
      if (a.step == all[0].step && !a.write) return -1;
    }
    return loop;
  }
  // Written by one load alone, asynchronously.
  bool runs_ahead(int v) const {
    const std::vector<PlacedAccess>& all = accesses_[index(v)];
    if (base_.values[index(v)].place != BlockPlace::Shared || home_[index(v)] < 0) return false;
    // All such loads of a body start together, so none may stand behind a loop.
    for (size_t t = 0; t < index(all[0].step); ++t)
      if (step(int(t)).loop != home_[index(v)] &&
          inside(block_, step(int(t)).loop, home_[index(v)]))
        return false;
    return std::ranges::count_if(all, [](const PlacedAccess& a) { return a.write; }) == 1 &&
           step(all[0].step).kind == StepKind::Load && all[0].instruction != Instruction::Vector;
  }

  std::optional<BlockPlan> cheapest() {
    std::optional<BlockPlan> best;
    double least = 0;
    int64_t longest = most_of(int64_t(1), block_.loops, &BlockLoop::extent);
    int stages = limits_.most_stages;
    while (stages > 4 && stages - 2 >= longest) stages -= 2;
    // Of equal plans the one that takes least memory.
    for (; stages >= 1; stages -= stages > 4 ? 2 : 1) {
      for (const bool doubled : {true, false}) {
        for (const bool serial : {true, false}) {
          if ((doubled && serial) || !(serial || limits_.schedule)) continue;
          std::optional<BlockPlan> plan = attempt({stages, doubled, serial});
          if (!plan) continue;
          const double cost = price(*plan);
          if (best && cost > least) continue;
          best = plan;
          least = cost;
        }
      }
    }
    return best;
  }

  // Barriers, and the latency that nothing hides.
  double price(const BlockPlan& plan) const {
    double cost = kBarrier * double(plan.barriers);
    const int64_t resident = std::max<int64_t>(
        1, std::min<int64_t>(limits_.blocks_per_sm,
                             limits_.shared_bytes_sm / (plan.shared_bytes + kSystemBytes)));
    for (size_t l = 0; l < block_.loops.size(); ++l) {
      double bytes = 0;
      int64_t times = 1;
      for (size_t s = 0; s < block_.steps.size(); ++s) {
        const BlockStep& st = block_.steps[s];
        if (st.kind != StepKind::Load || st.loop != int(l)) continue;
        times = executions(block_, st);
        bytes += double(block_.values[index(st.writes[0].value)].elements()) *
                 size_in_bytes(block_.values[index(st.writes[0].value)].dtype);
      }
      if (bytes == 0) continue;
      const double ahead = std::min<double>(plan.loops[l].ahead == 0 ? 0.5 : plan.loops[l].ahead,
                                            double(block_.loops[l].extent));
      const double flying = bytes * ahead * double(resident);
      const double wanted = std::min(double(limits_.bytes_in_flight),
                                     bytes * double(block_.loops[l].extent) * double(resident));
      cost += kLatency * double(times) * std::max(0.0, 1 - flying / wanted);
    }
    return cost;
  }

  std::optional<BlockPlan> attempt(const Manner& manner) {
    BlockPlan plan = base_;
    plan.loops.assign(block_.loops.size(), {});
    ahead_.assign(block_.values.size(), 0);
    for (size_t v = 0; v < block_.values.size(); ++v) {
      if (!runs_ahead(int(v))) continue;
      const size_t l = index(home_[v]);
      const int ahead = int(std::min<int64_t>(manner.stages - 1, block_.loops[l].extent - 1));
      ahead_[v] = ahead;
      plan.values[v].copies = ahead + 1;
      plan.steps[index(accesses_[v][0].step)].ahead = ahead;
      plan.loops[l].ahead = ahead;
      plan.loops[l].stages = ahead + 1;
    }
    OrderOptions how;
    how.serial = manner.serial;
    BlockOrder order = order_block(block_, edges(plan, how), how);
    if (manner.doubled && !double_copies(plan, how, order)) return std::nullopt;
    return finish(std::move(plan), order);
  }

  // Gives tiles that are made in a loop a second copy, those whose copy saves barriers; false if
  // none does.
  bool double_copies(BlockPlan& plan, OrderOptions& how, BlockOrder& order) {
    const std::vector<int> single = order.barriers;
    std::vector<size_t> doubled;
    for (size_t v = 0; v < block_.values.size(); ++v) {
      if (plan.values[v].place != BlockPlace::Shared || plan.values[v].copies > 1 || home_[v] < 0 ||
          block_.loops[index(home_[v])].extent < 2)
        continue;
      plan.values[v].copies = 2;
      doubled.push_back(v);
    }
    const auto again = [&] { return order_block(block_, edges(plan, how), how); };
    order = again();
    if (order.barriers == single) return false;
    for (size_t v : doubled) {
      plan.values[v].copies = 1;
      const BlockOrder without = again();
      if (without.barriers == order.barriers && without.end <= order.end)
        order = without;
      else
        plan.values[v].copies = 2;
    }
    return true;
  }

  // What must come after what. `how` learns which steps need a barrier of their own iteration.
  std::vector<OrderEdge> edges(const BlockPlan& plan, OrderOptions& how) const {
    std::vector<OrderEdge> all;
    how.not_first.clear();
    for (size_t v = 0; v < block_.values.size(); ++v) {
      const std::vector<PlacedAccess>& accesses = accesses_[v];
      for (const PlacedAccess& a : accesses)
        for (const PlacedAccess& b : accesses)
          if (a.write || b.write) relate(plan, int(v), a, b, all, how);
    }
    together(all);
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      if (block_.steps[s].scratch_bytes == 0) continue;
      for (int l = block_.steps[s].loop; l >= 0; l = block_.loops[index(l)].around)
        all.push_back({int(s), int(s), 1, l, 1});
    }
    return all;
  }

  // The loads of a loop that run ahead are one group of copies in each iteration; boxes that do not
  // are waited for together.
  void together(std::vector<OrderEdge>& all) const {
    std::vector<int> last(block_.loops.size(), -1);
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      const BlockStep& st = block_.steps[s];
      if (st.kind != StepKind::Load) continue;
      const int v = st.writes[0].value;
      if (ahead_[index(v)] > 0) {
        int& other = last[index(st.loop)];
        if (other >= 0) {
          all.push_back({other, int(s), 0, st.loop, 0});
          all.push_back({int(s), other, 0, st.loop, 0});
        }
        other = int(s);
      } else if (base_.steps[s].writes[0].instruction == Instruction::Bulk) {
        for (size_t r = 0; r < block_.steps.size(); ++r)
          if (reads_boxes(int(r), st.loop)) {
            if (r < s)
              throw Error(ErrorKind::Unsupported, "step " + st.name +
                                                      " loads boxes after others of its loop are "
                                                      "read; list loads first");
            all.push_back({int(s), int(r), 0, -1, 0});
          }
      }
    }
  }
  bool reads_boxes(int s, int loop) const {
    for (const std::vector<PlacedAccess>& all : accesses_)
      for (const PlacedAccess& a : all)
        for (const PlacedAccess& b : all)
          if (b.step == s && !b.write && a.write && a.instruction == Instruction::Bulk &&
              step(a.step).loop == loop)
            return true;
    return false;
  }

  void relate(const BlockPlan& plan, int v, const PlacedAccess& a, const PlacedAccess& b,
              std::vector<OrderEdge>& all, OrderOptions& how) const {
    const ValuePlan& value = plan.values[index(v)];
    int barriers = 0;
    if (value.place == BlockPlace::Shared && !a.meets_itself(b)) barriers = 1;
    // Barriers in shared memory tell everybody that a box is complete.
    if (a.instruction == Instruction::Bulk && a.write) barriers = 0;
    const int ahead = ahead_[index(v)];
    const bool load = a.write && step(a.step).kind == StepKind::Load;
    const bool early = ahead > 0 && (load || (b.write && step(b.step).kind == StepKind::Load));
    if (a.step < b.step && !early) all.push_back({a.step, b.step, barriers, -1, 0});
    for (int l = 0; l < int(block_.loops.size()); ++l) {
      if (!inside(block_, step(a.step).loop, l) || !inside(block_, step(b.step).loop, l)) continue;
      int apart = l == home_[index(v)] ? value.copies : 1;
      if (early && l == home_[index(v)]) {
        if (a.step == b.step) continue;
        apart = load ? ahead : value.copies - ahead;
        if (load && barriers > 0) how.not_first.emplace_back(b.step, l);
      }
      all.push_back({a.step, b.step, barriers, l, apart});
      // The first loads of a loop stand before it.
      if (early && !load && l != home_[index(v)])
        all.push_back({a.step, b.step, barriers, l, 1, home_[index(v)]});
    }
    // What the asynchronous proxy reads has been fenced before a barrier of the same iteration.
    if (a.write && !b.write && b.proxy && a.instruction != Instruction::Bulk)
      for (int l = step(b.step).loop; l >= 0; l = block_.loops[index(l)].around)
        if (inside(block_, step(a.step).loop, l)) how.not_first.emplace_back(b.step, l);
  }

  // Offsets, actions and totals.
  std::optional<BlockPlan> finish(BlockPlan plan, const BlockOrder& order) {
    place(plan, order);
    least_seen_ = least_seen_ == 0 ? plan.shared_bytes : std::min(least_seen_, plan.shared_bytes);
    if (plan.shared_bytes > limits_.shared_bytes) return std::nullopt;
    for (size_t l = 0; l < block_.loops.size(); ++l) {
      plan.loops[l].barriers = order.barriers[l];
      for (size_t c = 0; c < block_.loops.size(); ++c)
        if (block_.loops[c].around == int(l)) plan.loops[l].barriers -= order.barriers[c];
    }
    plan.actions = block_actions(block_, plan, order, accesses_);
    total(plan);
    return plan;
  }

  // The times during which the memory of `v` is not to be touched by others.
  std::pair<int, int> life(const BlockPlan& plan, size_t v, const BlockOrder& order) const {
    int birth = order.end, death = 0;
    const auto extend = [&](int from, int to) {
      birth = std::min(birth, from);
      death = std::max(death, to);
    };
    for (const PlacedAccess& a : accesses_[v]) {
      extend(order.time[index(a.step)], order.time[index(a.step)]);
      for (int l = step(a.step).loop; l >= 0; l = block_.loops[index(l)].around) {
        const bool at_home = home_[v] >= 0 && inside(block_, home_[v], l);
        if (!at_home || (l == home_[v] && plan.values[v].copies > 1))
          extend(order.begin[index(l)], order.begin[index(l)] + order.barriers[index(l)]);
      }
    }
    wrap(order, birth, death, home_[v]);
    return {birth, death};
  }
  // The last interval of an iteration is the first one of the next.
  void wrap(const BlockOrder& order, int& birth, int& death, int loop) const {
    for (int l = loop; l >= 0; l = block_.loops[index(l)].around) {
      const int begin = order.begin[index(l)], end = begin + order.barriers[index(l)];
      if (birth == begin || death == end) {
        birth = std::min(birth, begin);
        death = std::max(death, end);
      }
    }
  }

  void place(BlockPlan& plan, const BlockOrder& order) const {
    std::vector<MemoryRequest> requests;
    std::vector<int64_t*> offsets;
    int64_t alignment = 16;
    for (size_t v = 0; v < plan.values.size(); ++v) {
      ValuePlan& p = plan.values[v];
      if (p.place != BlockPlace::Shared || accesses_[v].empty()) continue;
      const int64_t aligned = tiles_[v].alignment;
      alignment = std::max(alignment, aligned);
      p.pitch = (p.bytes + aligned - 1) / aligned * aligned;
      const auto [birth, death] = life(plan, v, order);
      requests.push_back({block_.values[v].name, p.pitch * p.copies, birth, death});
      offsets.push_back(&p.offset);
    }
    plan.scratch_offsets.assign(block_.steps.size(), -1);
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      if (block_.steps[s].scratch_bytes == 0) continue;
      int birth = order.time[s], death = order.time[s];
      wrap(order, birth, death, block_.steps[s].loop);
      requests.push_back(
          {block_.steps[s].name + " scratch", block_.steps[s].scratch_bytes, birth, death});
      offsets.push_back(&plan.scratch_offsets[s]);
    }
    for (size_t l = 0; l <= plan.loops.size(); ++l) {
      const bool outside = l == plan.loops.size();
      if (!bulk(plan, outside ? -1 : int(l))) continue;
      requests.push_back({"barriers", outside ? 8 : 8 * plan.loops[l].stages, 0, order.end});
      offsets.push_back(outside ? &plan.bulk_offset : &plan.loops[l].bulk_offset);
    }
    // With one alignment for all: what is small is not worth one of its own.
    if (!limits_.memory)
      for (MemoryRequest& r : requests) r.birth = 0, r.death = order.end;
    const MemoryPlan memory = plan_memory(requests, alignment);
    for (size_t i = 0; i < offsets.size(); ++i) *offsets[i] = memory.offsets[i];
    plan.shared_bytes = memory.bytes;
  }
  bool bulk(const BlockPlan& plan, int loop) const {
    for (size_t s = 0; s < block_.steps.size(); ++s)
      if (block_.steps[s].kind == StepKind::Load && block_.steps[s].loop == loop &&
          plan.steps[s].writes[0].instruction == Instruction::Bulk)
        return true;
    return false;
  }

  void total(BlockPlan& plan) const {
    int64_t times = 1;
    std::vector<int> open;
    for (const Action& a : plan.actions)
      if (a.kind == ActionKind::LoopBegin)
        times *= block_.loops[index(a.loop)].extent;
      else if (a.kind == ActionKind::LoopEnd)
        times /= block_.loops[index(a.loop)].extent;
      else if (a.kind == ActionKind::Barrier)
        plan.barriers += times;
    for (const BlockStep& s : block_.steps) plan.barriers += executions(block_, s) * s.barriers;
  }

  const Block& block_;
  const std::vector<FlowTile>& tiles_;
  const BlockLimits& limits_;
  BlockPlan base_;
  std::vector<std::vector<PlacedAccess>> accesses_;  // by value, in the order of steps
  std::vector<int> home_;                            // by value
  std::vector<int> ahead_;  // by value: iterations that its load runs ahead
  int64_t least_seen_ = 0;
};

}  // namespace

BlockPlan plan_flow(const Block& block, const std::vector<FlowTile>& tiles,
                    const std::vector<FlowAccess>& accesses, const BlockLimits& limits) {
  return BlockPlanner(block, tiles, accesses, limits).run();
}

}  // namespace tessera
