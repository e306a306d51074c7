// Replays a block's plan on pretended memory. Deliberately shares nothing with the planner: no
// times, no lives, no dependences; only which thread wrote which bytes last, in which execution of
// which step, and what has happened since.
#include "block_check.h"

#include <algorithm>
#include <map>

#include "plan/block_access.h"

namespace tessera {
namespace {

using Iteration = std::vector<int64_t>;  // of each loop; those not begun are 0
constexpr int kMany = -2;                // threads or warps
constexpr int kProxy = -3;               // as a warp: the asynchronous proxy

// What one access touches, in the order in which its threads do.
struct Touch {
  int thread;  // kMany: the lanes of a warp together, or whoever
  int warp;    // or kMany, or kProxy
  int64_t element;
};

// Executions are numbered in the order of a program without parallelism; it also tells which of
// them wrote what a step reads.
class Reference {
 public:
  Reference(const Block& block, const std::vector<int64_t>& extents,
            const std::vector<std::vector<std::vector<Touch>>>& reads,
            const std::vector<std::vector<std::vector<Touch>>>& writes)
      : block_(block), extents_(extents), reads_(reads), writes_(writes) {
    for (const BlockValue& v : block.values) state_.emplace_back(size_t(v.elements()), -1);
    now_.assign(block.loops.size(), 0);
  }

  std::string run() {
    size_t at = 0;
    return body(-1, at);
  }
  // -1: the step does not run in that iteration.
  int number(int step, const Iteration& i) const {
    const auto found = number_.find({step, of(step, i)});
    return found == number_.end() ? -1 : found->second;
  }
  // By the position in the access's list of touches.
  const std::vector<int>& seen(int execution, size_t read) const {
    return seen_[size_t(execution)][read];
  }
  int executions() const { return int(seen_.size()); }

 private:
  // The iterations of the loops around the step, others 0.
  Iteration of(int step, const Iteration& i) const {
    Iteration out(i.size(), 0);
    for (int l = block_.steps[size_t(step)].loop; l >= 0; l = block_.loops[size_t(l)].around)
      out[size_t(l)] = i[size_t(l)];
    return out;
  }
  std::string body(int loop, size_t& at) {
    while (at < block_.steps.size() && inside(block_, block_.steps[at].loop, loop)) {
      const int l = block_.steps[at].loop;
      if (l == loop) {
        if (std::string fault = execute(int(at)); !fault.empty()) return fault;
        ++at;
        continue;
      }
      int inner = l;  // the loop directly inside this body
      while (block_.loops[size_t(inner)].around != loop) inner = block_.loops[size_t(inner)].around;
      const size_t begin = at;
      for (int64_t i = 0; i < extents_[size_t(inner)]; ++i) {
        now_[size_t(inner)] = i;
        at = begin;
        if (std::string fault = body(inner, at); !fault.empty()) return fault;
      }
      now_[size_t(inner)] = 0;
    }
    return "";
  }
  std::string execute(int s) {
    const BlockStep& step = block_.steps[size_t(s)];
    const int id = executions();
    number_[{s, of(s, now_)}] = id;
    seen_.emplace_back();
    for (size_t r = 0; r < step.reads.size(); ++r) {
      const size_t v = size_t(step.reads[r].value);
      std::vector<int> seen;
      for (const Touch& t : reads_[size_t(s)][r]) {
        seen.push_back(state_[v][size_t(t.element)]);
        if (seen.back() < 0)
          return "step " + step.name + " reads of " + block_.values[v].name + " what nothing wrote";
      }
      seen_.back().push_back(std::move(seen));
    }
    for (size_t w = 0; w < step.writes.size(); ++w)
      for (const Touch& t : writes_[size_t(s)][w])
        state_[size_t(step.writes[w].value)][size_t(t.element)] = id;
    return "";
  }

  const Block& block_;
  const std::vector<int64_t>& extents_;
  const std::vector<std::vector<std::vector<Touch>>>&reads_, &writes_;
  std::vector<std::vector<int>> state_;  // by value and element: the execution that wrote it
  std::map<std::pair<int, Iteration>, int> number_;
  std::vector<std::vector<std::vector<int>>> seen_;  // by execution, read and touch
  Iteration now_;
};

// A piece of shared memory, as large as the smallest element.
struct Cell {
  int value = -1;  // -1: nothing; -2: scratch
  int64_t element = 0;
  int execution = -1;
  int thread = kMany, warp = kMany;                  // the writer
  bool proxy = false;                                // ... was the asynchronous proxy
  int group = -1;                                    // of copies under way; -1: complete
  bool box = false;                                  // under way by the asynchronous proxy
  int block_time = -1, warp_time = -1, fences = -1;  // when it was complete
  int reader = -1, reader_warp = -1;                 // since it was written
  int read_block_time = -1, read_warp_time = -1;
};

class Replay {
 public:
  Replay(const Block& block, const BlockLimits& limits, const BlockPlan& plan)
      : block_(block), limits_(limits), plan_(plan) {}

  std::string run() {
    if (std::string fault = shape(); !fault.empty()) return fault;
    // What matters shows within a few turns of all copies.
    for (size_t l = 0; l < block_.loops.size(); ++l) {
      int64_t turns = plan_.loops[l].ahead + 1;
      for (const ValuePlan& p : plan_.values) turns = std::max<int64_t>(turns, p.copies);
      extents_.push_back(std::min(block_.loops[l].extent, turns + 3));
    }
    touches();
    Reference reference(block_, extents_, reads_, writes_);
    if (std::string fault = reference.run(); !fault.empty()) return fault;
    reference_ = &reference;
    ran_.assign(size_t(reference.executions()), 0);
    now_.assign(block_.loops.size(), 0);
    begun_.assign(block_.loops.size(), false);
    cells_.assign(size_t(plan_.shared_bytes / granule_ + 1), {});
    kept_.resize(block_.values.size());
    for (size_t v = 0; v < block_.values.size(); ++v)
      kept_[v].assign(size_t(block_.values[v].elements()), {});
    size_t at = 0;
    if (std::string fault = actions(at, -1); !fault.empty()) return fault;
    for (size_t s = 0; s < block_.steps.size(); ++s)
      if (std::string fault = all_ran(int(s)); !fault.empty()) return fault;
    return "";
  }

 private:
  struct Kept {
    int execution = -1, thread = kMany;
  };
  static size_t index(int64_t i) { return size_t(i); }
  const BlockStep& step(int s) const { return block_.steps[index(s)]; }
  const std::string& value_name(int v) const { return block_.values[index(v)].name; }
  bool shared(int v) const { return plan_.values[index(v)].place == BlockPlace::Shared; }

  // Numbers that fit the block and its limits.
  std::string shape() {
    if (plan_.values.size() != block_.values.size() || plan_.steps.size() != block_.steps.size() ||
        plan_.loops.size() != block_.loops.size() ||
        plan_.scratch_offsets.size() != block_.steps.size())
      return "the plan is of another block";
    if (plan_.shared_bytes > limits_.shared_bytes) return "more shared memory than there is";
    for (size_t v = 0; v < block_.values.size(); ++v) {
      const ValuePlan& p = plan_.values[v];
      const BlockValue& value = block_.values[v];
      const int bytes = size_in_bytes(value.dtype);
      granule_ = std::min(granule_, bytes);
      if (p.place != BlockPlace::Shared) continue;
      if (p.copies < 1 || (p.copies > 1 && p.loop < 0)) return value.name + " has no copies";
      // Values that no step touches have no memory.
      if (p.pitch == 0 && p.copies == 1) continue;
      if (p.offset < 0 ||
          p.offset + p.pitch * (p.copies - 1) + shared_bytes(p.layout, value.extents, bytes) >
              plan_.shared_bytes)
        return value.name + " leaves the shared memory";
    }
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      const BlockStep& st = block_.steps[s];
      const StepPlan& p = plan_.steps[s];
      if (p.reads.size() != st.reads.size() || p.writes.size() != st.writes.size())
        return "step " + st.name + " is not planned";
    }
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      const BlockStep& st = block_.steps[s];
      if (st.kind != StepKind::Load || plan_.steps[s].writes[0].instruction != Instruction::Bulk)
        continue;
      const bool outside = st.loop < 0;
      const std::string f =
          box_barriers(outside ? plan_.bulk_offset : plan_.loops[index(st.loop)].bulk_offset,
                       outside ? 1 : plan_.loops[index(st.loop)].stages);
      if (!f.empty()) return "step " + st.name + f;
    }
    return "";
  }
  // The barriers that boxes are told to have memory of their own, all the time.
  std::string box_barriers(int64_t offset, int64_t stages) const {
    if (offset < 0 || offset % 8 != 0 || offset + 8 * stages > plan_.shared_bytes)
      return " has no barriers for its boxes";
    for (size_t v = 0; v < block_.values.size(); ++v) {
      const ValuePlan& p = plan_.values[v];
      if (p.place == BlockPlace::Shared && p.pitch > 0 && offset < p.offset + p.pitch * p.copies &&
          p.offset < offset + 8 * stages)
        return " has the barriers for its boxes where " + value_name(int(v)) + " lies";
    }
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      const int64_t at = plan_.scratch_offsets[s];
      if (at >= 0 && offset < at + block_.steps[s].scratch_bytes && at < offset + 8 * stages)
        return " has the barriers for its boxes in another step's memory";
    }
    return "";
  }

  void touches() {
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      const BlockStep& st = block_.steps[s];
      const Walk& w = st.walk;
      for (const bool write : {false, true}) {
        std::vector<std::vector<Touch>> all;
        for (const BlockAccess& a : write ? st.writes : st.reads) {
          std::vector<Touch> one;
          const AccessKind kind = access_kind(st, w, a);
          if (kind == AccessKind::Operand || kind == AccessKind::Bulk ||
              kind == AccessKind::Anyhow) {
            for (int64_t e = 0; e < block_.values[index(a.value)].elements(); ++e)
              one.push_back({kMany, kind == AccessKind::Anyhow ? kMany : kProxy, e});
          } else {
            for_each_round(block_, st, w, a, write, [&](int warp, const Round& round) {
              for (int lane = 0; lane < 32; ++lane)
                for (int i = 0; i < round[index(lane)].count; ++i)
                  one.push_back({kind == AccessKind::Lanes ? warp * 32 + lane : kMany, warp,
                                 round[index(lane)].first + i * round[index(lane)].stride});
            });
          }
          all.push_back(std::move(one));
        }
        (write ? writes_ : reads_).push_back(std::move(all));
      }
    }
    for (size_t v = 0; v < block_.values.size(); ++v)
      offsets_.push_back(shared(int(v))
                             ? shared_offsets(plan_.values[v].layout, block_.values[v].extents,
                                              size_in_bytes(block_.values[v].dtype))
                             : std::vector<int64_t>{});
  }

  std::string actions(size_t& at, int loop) {
    for (; at < plan_.actions.size(); ++at) {
      const Action& a = plan_.actions[at];
      switch (a.kind) {
      case ActionKind::LoopEnd:
        return loop == a.loop ? "" : "loops end in another order than they begin";
      case ActionKind::LoopBegin: {
        if (a.loop < 0 || block_.loops[index(a.loop)].around != loop)
          return "a loop begins in another body than its own";
        const size_t begin = at + 1;
        begun_[index(a.loop)] = true;
        for (int64_t i = 0; i < extents_[index(a.loop)]; ++i) {
          now_[index(a.loop)] = i;
          at = begin;
          if (std::string fault = actions(at, a.loop); !fault.empty()) return fault;
          if (at == plan_.actions.size()) return "a loop does not end";
        }
        now_[index(a.loop)] = 0;
        begun_[index(a.loop)] = false;
        break;
      }
      case ActionKind::Barrier:
        ++block_time_;
        ++warp_time_;
        fenced_ = fences_;
        break;
      case ActionKind::Fence: ++fences_; break;
      case ActionKind::Commit: ++groups_; break;
      case ActionKind::Wait: complete(groups_ - a.pending); break;
      case ActionKind::WaitBulk: boxes_complete(a.loop); break;
      case ActionKind::Step:
        if (std::string fault = run_step(a, loop); !fault.empty())
          return "step " + step(a.step).name + fault;
        break;
      }
    }
    return loop < 0 ? "" : "a loop does not end";
  }

  // Copies of groups below `group` are there, for the threads that started them.
  void complete(int group) {
    for (auto& [of, cells] : under_way_) {
      if (of >= group) continue;
      for (size_t c : cells) finish(cells_[c]);
      cells.clear();
    }
  }
  void boxes_complete(int loop) {
    const int64_t i = loop < 0 ? 0 : now_[index(loop)];
    for (size_t c : boxes_[{loop, i}]) finish(cells_[c]);
    boxes_.erase({loop, i});
  }
  void finish(Cell& c) {
    c.group = -1;
    c.box = false;
    c.block_time = block_time_;
    c.warp_time = warp_time_;
    c.fences = fences_;
  }

  std::string all_ran(int s) const {
    Iteration i(block_.loops.size(), 0);
    for (;;) {
      const int id = reference_->number(s, i);
      if (id >= 0 && ran_[index(id)] != 1)
        return "step " + step(s).name + " does not run exactly once per iteration";
      size_t l = 0;
      while (l < i.size() && ++i[l] == extents_[l]) i[l++] = 0;
      if (l == i.size()) return "";
    }
  }

  std::string run_step(const Action& a, int loop) {
    const BlockStep& st = step(a.step);
    Iteration i = now_;
    if (st.loop != loop) {
      // Only the loads that run ahead of a loop stand before it.
      if (st.loop < 0 || begun_[index(st.loop)] || st.kind != StepKind::Load ||
          block_.loops[index(st.loop)].around != loop)
        return " runs in a loop that is not its own";
      i[index(st.loop)] = 0;
    }
    if (a.ahead != 0) {
      if (st.kind != StepKind::Load || st.loop < 0) return " cannot run ahead";
      i[index(st.loop)] += a.ahead;
      if (i[index(st.loop)] >= extents_[index(st.loop)]) return "";
    }
    const int id = reference_->number(a.step, i);
    if (id < 0) return " does not run in this iteration";
    ++ran_[index(id)];
    for (size_t r = 0; r < st.reads.size(); ++r)
      if (std::string f = access(a.step, st.reads[r], plan_.steps[index(a.step)].reads[r],
                                 reads_[index(a.step)][r], &reference_->seen(id, r), id, i);
          !f.empty())
        return f;
    if (std::string f = scratch(a.step, id); !f.empty()) return f;
    block_time_ += st.barriers;
    warp_time_ += st.barriers;
    if (st.barriers > 0) fenced_ = fences_;
    for (size_t w = 0; w < st.writes.size(); ++w)
      if (std::string f = access(a.step, st.writes[w], plan_.steps[index(a.step)].writes[w],
                                 writes_[index(a.step)][w], nullptr, id, i);
          !f.empty())
        return f;
    return "";
  }

  // `seen`: which executions wrote what is read; null for a write.
  std::string access(int s, const BlockAccess& a, const AccessPlan& p,
                     const std::vector<Touch>& all, const std::vector<int>* seen, int id,
                     const Iteration& i) {
    const std::string where =
        std::string(seen ? " reads " : " writes ") + value_name(a.value) + " ";
    const ValuePlan& value = plan_.values[index(a.value)];
    if (value.place == BlockPlace::Registers) return in_registers(a, all, seen, id, where);
    if (std::string f = possible(s, a, p, seen == nullptr, value, i); !f.empty()) return where + f;
    const int64_t copy = value.copies == 1 ? 0 : i[index(value.loop)] % value.copies;
    const int64_t base = value.offset + copy * value.pitch;
    const int bytes = size_in_bytes(block_.values[index(a.value)].dtype);
    for (size_t t = 0; t < all.size(); ++t) {
      const int64_t at = base + offsets_[index(a.value)][index(all[t].element)];
      for (int64_t b = at; b < at + bytes; b += granule_) {
        Cell& c = cells_[index(b / granule_)];
        const std::string f = seen ? read(c, a.value, all[t], (*seen)[t])
                                   : write(c, a.value, all[t], id, p.instruction, s, i, b);
        if (!f.empty()) return where + f;
      }
    }
    return "";
  }

  std::string in_registers(const BlockAccess& a, const std::vector<Touch>& all,
                           const std::vector<int>* seen, int id, const std::string& where) {
    const bool anyhow = block_.values[index(a.value)].registers;
    for (size_t t = 0; t < all.size(); ++t) {
      Kept& k = kept_[index(a.value)][index(all[t].element)];
      if (seen == nullptr) {
        // Two threads that write one element would each have their own.
        if (!anyhow && k.execution == id && k.thread != all[t].thread)
          return where + "in registers of two threads";
        k = {id, all[t].thread};
        continue;
      }
      if (k.execution != (*seen)[t]) return where + "of another execution in registers";
      if (!anyhow && (k.thread != all[t].thread || k.thread < 0))
        return where + "in another thread's registers";
    }
    return "";
  }

  // Whether the instruction can move these bytes from and to where they lie.
  std::string possible(int s, const BlockAccess& a, const AccessPlan& p, bool write,
                       const ValuePlan& value, const Iteration& i) const {
    const BlockValue& v = block_.values[index(a.value)];
    const Walk& w = step(s).walk;
    const std::vector<int64_t>& offsets = offsets_[index(a.value)];
    const int bytes = size_in_bytes(v.dtype);
    const int64_t base =
        value.offset + (value.copies == 1 ? 0 : i[index(value.loop)] % value.copies) * value.pitch;
    const AccessKind kind = access_kind(step(s), w, a);
    const bool by_proxy = kind == AccessKind::Operand || kind == AccessKind::Bulk;
    if (kind == AccessKind::Anyhow)
      return p.instruction == Instruction::Vector && p.bytes == bytes && base % bytes == 0
                 ? ""
                 : "in pieces of more than an element";
    switch (p.instruction) {
    case Instruction::None: return "by no instruction";
    case Instruction::Bulk:
    case Instruction::Operand: {
      if (p.instruction != (kind == AccessKind::Bulk ? Instruction::Bulk : Instruction::Operand) ||
          !by_proxy)
        return "by an instruction that is not its walk's";
      return base % 128 == 0 ? "" : "where the hardware finds other bits";
    }
    case Instruction::MatrixRows:
    case Instruction::MatrixRowsTransposed:
    case Instruction::MatrixStore: {
      const bool stored = p.instruction == Instruction::MatrixStore;
      if (stored ? kind != AccessKind::Lanes || w.kind != WalkKind::Fragments || w.k >= 0 ||
                       !write || !limits_.matrix_stores
                 : kind == AccessKind::Lanes || by_proxy || write)
        return "as matrices that it is not";
      if (bytes != 2) return "as matrices of other elements";
      const Walk by_matrix = stored ? stored_as_matrices(w) : w;
      const int inner = value.layout.innermost(v.extents.size());
      const int by = a.axes[index(inner)];
      const bool rows = by == by_matrix.k;
      if ((!stored && rows != (p.instruction == Instruction::MatrixRows)) ||
          (!rows && by != (stored || kind == AccessKind::Left ? w.m : w.n)))
        return "as matrices of the other axis";
      int64_t below = 1;
      for (size_t x = index(inner) + 1; x < v.extents.size(); ++x) below *= v.extents[x];
      bool good = true;
      for_each_matrix(block_, step(s), by_matrix, a, inner,
                      [&](int, const std::array<int64_t, 8>& matrix) {
                        for (int64_t row : matrix) {
                          if (row < 0) continue;
                          const int64_t at = offsets[index(row)];
                          good = good && (base + at) % 16 == 0;
                          for (int64_t e = 1; e < 8; ++e)
                            good = good && offsets[index(row + e * below)] == at + 2 * e;
                        }
                      });
      return good ? "" : "as matrices whose rows are not together or not in line";
    }
    case Instruction::AsyncCopy:
      if (step(s).kind != StepKind::Load || p.bytes < 4)
        return "by an asynchronous copy that cannot be";
      [[fallthrough]];
    case Instruction::Vector: break;
    }
    if (by_proxy) return "by threads, not the asynchronous proxy";
    if (step(s).kind != StepKind::Compute && p.bytes > bytes &&
        (p.bytes > step(s).global_bytes || w.along != step(s).global_along))
      return "in pieces that are none in global memory";
    if (p.bytes < bytes || p.bytes > 16 || p.bytes % bytes != 0) return "in impossible pieces";
    const int per = p.bytes / bytes;
    bool good = true;
    for_each_round(block_, step(s), w, a, write, [&](int, const Round& round) {
      for (const LaneRun& run : round) {
        good = good && run.count % per == 0;
        for (int e = 0; good && e < run.count; ++e) {
          const int64_t first = offsets[index(run.first + (e / per * per) * run.stride)];
          good = (base + first) % p.bytes == 0 &&
                 offsets[index(run.first + e * run.stride)] == first + e % per * bytes;
        }
      }
    });
    return good ? "" : "in pieces that are not together or not in line";
  }

  // Whether what a thread (or a warp, or the proxy) did at that time comes before now for `t`.
  bool ordered(int thread, int warp, int at_block, int at_warp, const Touch& t) const {
    if (at_block < block_time_) return true;
    if (thread >= 0 && thread == t.thread) return true;
    return warp >= 0 && warp == t.warp && at_warp < warp_time_;
  }

  std::string read(Cell& c, int value, const Touch& t, int wanted) {
    if (c.group >= 0 || c.box) return "before its copy is complete";
    if (c.value != value || c.element != t.element)
      return c.value == -1 ? "where nothing was written" : "where something else lies by now";
    if (c.execution != wanted) return "of another iteration";
    const bool proxy = t.warp == kProxy;
    // Boxes are complete for all who have waited.
    if (!c.proxy && !ordered(c.thread, c.warp, c.block_time, c.warp_time, t))
      return "without a barrier after it was written";
    if (proxy && !c.proxy && c.fences >= fenced_)
      return "by the asynchronous proxy without a fence";
    // Of several readers since the last barrier only that there were several matters.
    // What the lanes of one warp did before they met is ordered for that warp, and for others only
    // the last matters.
    if (c.read_block_time < block_time_ ||
        (c.reader_warp == t.warp && t.warp >= 0 && c.read_warp_time < warp_time_))
      c.reader = c.reader_warp = -1;
    c.reader = c.reader == -1 || c.reader == t.thread ? t.thread : kMany;
    c.reader_warp = c.reader_warp == -1 || c.reader_warp == t.warp ? t.warp : kMany;
    c.read_block_time = block_time_;
    c.read_warp_time = warp_time_;
    return "";
  }

  std::string may_overwrite(const Cell& c, const Touch& t) const {
    if (c.group >= 0 || c.box) return "where a copy is under way";
    if (c.value == -1) return "";
    if (c.read_block_time >= 0 &&
        !ordered(c.reader, c.reader_warp, c.read_block_time, c.read_warp_time, t))
      return "while others may still read there";
    // Nobody has looked at it; it must not come afterwards.
    if (!ordered(c.thread, c.warp, c.block_time, c.warp_time, t) && !(c.proxy && t.warp == kProxy))
      return "while others may still write there";
    return "";
  }

  std::string write(Cell& c, int value, const Touch& t, int id, Instruction by, int s,
                    const Iteration& i, int64_t at) {
    if (c.value == value && c.execution == id && c.element == t.element && t.thread == c.thread)
      return "";
    if (c.value >= 0 && c.execution == id) return "where the same step writes something else";
    if (std::string f = may_overwrite(c, t); !f.empty()) return f;
    if (by == Instruction::Bulk && c.value != -1 && !c.proxy && c.fences >= fenced_)
      return "by the asynchronous proxy without a fence";
    Cell next;
    next.value = value;
    next.element = t.element;
    next.execution = id;
    next.thread = t.thread;
    next.warp = t.warp;
    next.proxy = by == Instruction::Bulk;
    next.block_time = block_time_;
    next.warp_time = warp_time_;
    next.fences = fences_;
    if (by == Instruction::AsyncCopy) {
      next.group = groups_;
      under_way_[groups_].push_back(index(at / granule_));
    } else if (by == Instruction::Bulk) {
      next.box = true;
      const int l = step(s).loop;
      boxes_[{l, l < 0 ? 0 : i[index(l)]}].push_back(index(at / granule_));
    }
    c = next;
    return "";
  }

  // A step's own memory is written and read by all threads.
  std::string scratch(int s, int id) {
    const int64_t bytes = step(s).scratch_bytes, from = plan_.scratch_offsets[index(s)];
    if (bytes == 0) return "";
    if (from < 0 || from + bytes > plan_.shared_bytes) return " has no memory of its own";
    for (int64_t b = from; b < from + bytes; b += granule_) {
      Cell& c = cells_[index(b / granule_)];
      if (std::string f = may_overwrite(c, {kMany, kMany, 0}); !f.empty())
        return " uses its own memory " + f;
      c = {};
      c.value = -2;
      c.execution = id;
      c.block_time = c.read_block_time = block_time_ + step(s).barriers;
      c.warp_time = c.read_warp_time = warp_time_ + step(s).barriers;
      c.reader = c.reader_warp = kMany;
      c.fences = fences_;
    }
    return "";
  }

  const Block& block_;
  const BlockLimits& limits_;
  const BlockPlan& plan_;
  int granule_ = 8;
  std::vector<int64_t> extents_;
  std::vector<std::vector<std::vector<Touch>>> reads_, writes_;  // by step and access
  std::vector<std::vector<int64_t>> offsets_;                    // by value
  const Reference* reference_ = nullptr;
  std::vector<int> ran_;  // by execution
  Iteration now_;
  std::vector<bool> begun_;
  std::vector<Cell> cells_;
  std::vector<std::vector<Kept>> kept_;  // by value and element
  int block_time_ = 0, warp_time_ = 0, fences_ = 0, fenced_ = 0, groups_ = 0;
  std::map<int, std::vector<size_t>> under_way_;                  // by group
  std::map<std::pair<int, int64_t>, std::vector<size_t>> boxes_;  // by loop and iteration
};

}  // namespace

std::string block_fault(const Block& block, const BlockLimits& limits, const BlockPlan& plan) {
  return Replay(block, limits, plan).run();
}

}  // namespace tessera
