#include "plan/block_actions.h"

#include <algorithm>
#include <climits>

namespace tessera {
namespace {

class ActionWriter {
 public:
  ActionWriter(const Block& block, const BlockPlan& plan, const BlockOrder& order,
               const std::vector<std::vector<PlacedAccess>>& accesses)
      : block_(block), plan_(plan), order_(order), accesses_(accesses) {
    of_step_.resize(block.steps.size());
    for (size_t v = 0; v < accesses.size(); ++v)
      for (size_t i = 0; i < accesses[v].size(); ++i)
        of_step_[index(accesses[v][i].step)].push_back({int(v), int(i)});
    waited_for_.assign(block.values.size(), true);
    group_.assign(block.values.size(), 0);
  }

  std::vector<Action> run() {
    body(-1, 0, order_.end);
    return std::move(actions_);
  }

 private:
  struct Item {
    int time, listed, step, loop;  // step or loop is -1
  };
  struct Ref {
    int value, access;
  };
  static size_t index(int i) { return size_t(i); }
  const PlacedAccess& at(const Ref& r) const { return accesses_[index(r.value)][index(r.access)]; }
  const BlockStep& step(int s) const { return block_.steps[index(s)]; }
  bool shared(int v) const { return plan_.values[index(v)].place == BlockPlace::Shared; }

  std::vector<Item> items(int loop) const {
    std::vector<Item> out;
    for (size_t s = 0; s < block_.steps.size(); ++s)
      if (block_.steps[s].loop == loop) out.push_back({order_.time[s], int(s), int(s), -1});
    for (size_t l = 0; l < block_.loops.size(); ++l) {
      if (block_.loops[l].around != loop) continue;
      int first = 0;
      while (!inside(block_, step(first).loop, int(l))) ++first;
      out.push_back({order_.begin[l], first, -1, int(l)});
    }
    // What runs ahead starts first, all at once: a group of copies.
    for (Item& item : out)
      if (item.step >= 0 && loop >= 0 && early(item.step, loop))
        item.listed -= int(block_.steps.size());
    std::ranges::sort(out, [](const Item& a, const Item& b) {
      return a.time != b.time ? a.time < b.time : a.listed < b.listed;
    });
    return out;
  }

  void body(int loop, int begin, int end) {
    int now = begin;
    for (const Item& item : items(loop)) {
      while (now < item.time) barrier(++now);
      if (item.step >= 0) {
        run_step(item.step);
        continue;
      }
      commit();
      wait_for_boxes(item.loop, loop);
      run_loop(item.loop);
      now = item.time + order_.barriers[index(item.loop)];
    }
    commit();
    while (now < end) barrier(++now);
  }

  void run_loop(int l) {
    const LoopPlan& p = plan_.loops[index(l)];
    for (int d = 0; d < p.ahead; ++d) {
      for (size_t s = 0; s < block_.steps.size(); ++s)
        if (early(int(s), l)) issue(int(s), d, d == 0);
      commit();
    }
    actions_.push_back({ActionKind::LoopBegin, -1, l});
    const int begin = order_.begin[index(l)], length = order_.barriers[index(l)];
    for (size_t v = 0; v < block_.values.size(); ++v)
      if (copy_of(int(v)) != nullptr && step(copy_of(int(v))->step).loop == l)
        waited_for_[v] = false;
    boxes_ready_.erase(std::remove(boxes_ready_.begin(), boxes_ready_.end(), l),
                       boxes_ready_.end());
    body(l, begin, begin + length);
    actions_.push_back({ActionKind::LoopEnd, -1, l});
  }

  // Loads of loop `l` that run ahead.
  bool early(int s, int l) const { return step(s).loop == l && plan_.steps[index(s)].ahead > 0; }
  void run_step(int s) {
    const int l = step(s).loop;
    if (step(s).kind != StepKind::Load || !copies(s)) commit();
    wait_for_boxes_of_step(s);
    wait_for_own_copies(s);
    if (l >= 0 && early(s, l))
      issue(s, plan_.loops[index(l)].ahead, false);
    else
      issue(s, 0, true);
  }
  // Whether the step starts copies that belong to a group.
  bool copies(int s) const {
    return step(s).kind == StepKind::Load &&
           plan_.steps[index(s)].writes[0].instruction == Instruction::AsyncCopy;
  }
  // `counts`: these are the copies that the first iteration (or the only one) reads.
  void issue(int s, int ahead, bool counts) {
    Action a{ActionKind::Step, s};
    a.ahead = ahead;
    actions_.push_back(a);
    if (!copies(s)) return;
    open_ = true;
    if (!counts) return;
    const int v = step(s).writes[0].value;
    group_[index(v)] = groups_;
    waited_for_[index(v)] = false;
  }
  void commit() {
    if (!open_) return;
    actions_.push_back({ActionKind::Commit});
    open_ = false;
    ++groups_;
  }

  // Values whose copies are to be complete: waits for the newest of their groups.
  void wait(const std::vector<int>& values) {
    if (values.empty()) return;
    commit();
    int newest = most_of(0, values, [&](int v) { return group_[index(v)]; });
    Action a{ActionKind::Wait};
    a.pending = groups_ - newest - 1;
    actions_.push_back(a);
    for (size_t v = 0; v < block_.values.size(); ++v)
      if (group_[v] <= newest) waited_for_[v] = true;
  }
  const PlacedAccess* copy_of(int v) const {
    for (const PlacedAccess& a : accesses_[index(v)])
      if (a.write && copies(a.step)) return &a;
    return nullptr;
  }
  // The barrier before which copies of the value are waited for; INT_MAX: none.
  int barrier_of(int v) const {
    int time = INT_MAX;
    const PlacedAccess* copy = copy_of(v);
    if (copy == nullptr) return time;
    for (const PlacedAccess& a : accesses_[index(v)])
      if (a.step != copy->step && !copy->meets_itself(a))
        time = std::min(time, order_.time[index(a.step)]);
    return time;
  }
  void wait_for_own_copies(int s) {
    std::vector<int> values;
    for (const Ref& r : of_step_[index(s)])
      if (!waited_for_[index(r.value)] && copy_of(r.value) != nullptr &&
          copy_of(r.value)->step != s)
        values.push_back(r.value);
    wait(values);
  }

  void barrier(int time) {
    std::vector<int> values;
    for (size_t v = 0; v < block_.values.size(); ++v)
      if (!waited_for_[v] && barrier_of(int(v)) == time) values.push_back(int(v));
    wait(values);
    commit();
    if (fenced(time)) actions_.push_back({ActionKind::Fence});
    actions_.push_back({ActionKind::Barrier});
  }

  // Whether what threads have written must be fenced at this barrier: the asynchronous proxy meets
  // it in the interval that begins.
  bool fenced(int time) const {
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      for (const Ref& r : of_step_[s]) {
        const PlacedAccess& a = at(r);
        if (!a.proxy || !shared(r.value)) continue;
        if (!a.write && order_.time[s] == time && written_by_threads(r.value)) return true;
        if (!a.write) continue;
        const int l = block_.steps[s].loop;
        const bool first = l >= 0 && early(int(s), l) && order_.begin[index(l)] == time;
        if ((first || order_.time[s] == time) && after_threads(r.value)) return true;
      }
    }
    return false;
  }
  bool written_by_threads(int v) const {
    return std::ranges::any_of(
        accesses_[index(v)], [](const PlacedAccess& a) { return a.write && !a.proxy; });
  }
  // Whether threads write any of the bytes of the value, as another one or as scratch.
  bool after_threads(int v) const {
    const auto meets = [&](int64_t offset, int64_t bytes) {
      const ValuePlan& p = plan_.values[index(v)];
      return offset < p.offset + p.pitch * p.copies && p.offset < offset + bytes;
    };
    for (size_t o = 0; o < block_.values.size(); ++o) {
      const ValuePlan& p = plan_.values[o];
      if (shared(int(o)) && written_by_threads(int(o)) && meets(p.offset, p.pitch * p.copies))
        return true;
    }
    for (size_t s = 0; s < block_.steps.size(); ++s)
      if (plan_.scratch_offsets[s] >= 0 &&
          meets(plan_.scratch_offsets[s], block_.steps[s].scratch_bytes))
        return true;
    return false;
  }

  // Boxes loaded in body `loop` that the step reads there.
  void wait_for_boxes_of_step(int s) {
    const int loop = step(s).loop;
    for (const Ref& r : of_step_[index(s)])
      if (reads_box(r, loop)) return wait_for_bulk(loop);
  }
  // ... or that some step inside loop `inner` does.
  void wait_for_boxes(int inner, int loop) {
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      if (!inside(block_, block_.steps[s].loop, inner)) continue;
      for (const Ref& r : of_step_[s])
        if (reads_box(r, loop)) return wait_for_bulk(loop);
    }
  }
  bool reads_box(const Ref& r, int loop) const {
    if (at(r).write && at(r).instruction == Instruction::Bulk) return false;
    for (const PlacedAccess& a : accesses_[index(r.value)])
      if (a.write && a.instruction == Instruction::Bulk && step(a.step).loop == loop &&
          a.step != at(r).step)
        return true;
    return false;
  }
  void wait_for_bulk(int loop) {
    if (std::ranges::find(boxes_ready_, loop) != boxes_ready_.end()) return;
    actions_.push_back({ActionKind::WaitBulk, -1, loop});
    boxes_ready_.push_back(loop);
  }

  const Block& block_;
  const BlockPlan& plan_;
  const BlockOrder& order_;
  const std::vector<std::vector<PlacedAccess>>& accesses_;
  std::vector<std::vector<Ref>> of_step_;
  std::vector<Action> actions_;
  bool open_ = false;             // copies have been started that belong to no group yet
  int groups_ = 0;                // committed, every loop run once
  std::vector<int> group_;        // by value: that of its (first) copies
  std::vector<bool> waited_for_;  // by value: nothing of it is under way
  std::vector<int> boxes_ready_;  // loops whose boxes have been waited for
};

}  // namespace

std::vector<Action> block_actions(const Block& block, const BlockPlan& plan,
                                  const BlockOrder& order,
                                  const std::vector<std::vector<PlacedAccess>>& accesses) {
  return ActionWriter(block, plan, order, accesses).run();
}

}  // namespace tessera
