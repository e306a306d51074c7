#include "ir/block_schedule.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "base/check.h"
#include "base/error.h"

namespace tessera {
namespace {

// The outermost of the loops in `inner` that are not around `outer`, or -1 where `inner` does not
// begin with `outer`.
int next_loop(uint8_t inner, uint8_t outer) {
  if ((inner & outer) != outer || inner == outer) return -1;
  const int next = std::countr_zero(unsigned(inner & ~outer));
  return int(std::bit_width(unsigned(outer))) <= next ? next : -1;
}

class Scheduler {
 public:
  Scheduler(const Graph& g, const std::vector<Phase>& phase) : g_(g), phase_(phase) {
    for (const Op& op : g.ops()) {
      uint8_t loops = 0;
      for (TensorId t : op.inputs) loops |= phase[t.index].varies;
      if (is_load(op.kind)) loops = phase[op.result().index].varies;
      loops_.push_back(loops);
    }
  }

  BlockSchedule run() {
    body(-1, 0);
    return std::move(result_);
  }

 private:
  bool root(uint32_t op) const {
    return is_accumulator(g_.ops()[op].kind) || is_store(g_.ops()[op].kind);
  }
  uint32_t producer(TensorId t) const { return g_.tensor(t).producer.index; }

  // Adds the body of `loop` inside `outer` and all bodies inside it; what it takes from outside.
  std::set<uint32_t> body(int loop, uint8_t outer) {
    const uint8_t loops = loop < 0 ? 0 : uint8_t(outer | 1u << loop);
    const size_t index = result_.bodies.size();
    result_.bodies.emplace_back();
    result_.bodies[index].loop = loop;
    result_.bodies[index].loops = loops;
    std::set<int> inner;
    std::vector<uint32_t> todo;
    for (uint32_t i = 0; i < loops_.size(); ++i) {
      if (!root(i)) continue;
      if (loops_[i] == loops) todo.push_back(i);
      if (int l = next_loop(loops_[i], loops); l >= 0) inner.insert(l);
    }
    struct Inner {
      int body;
      std::set<uint32_t> takes;
    };
    std::vector<Inner> inners;
    std::map<uint32_t, size_t> folded_by;  // accumulators of inner bodies
    for (int l : inner) {
      const int at = int(result_.bodies.size());
      std::set<uint32_t> takes = body(l, loops);
      for (uint32_t i = 0; i < loops_.size(); ++i) {
        const Op& op = g_.ops()[i];
        if (!is_accumulator(op.kind) || next_loop(loops_[i], loops) != l) continue;
        if (phase_[op.result().index].varies != loops) continue;
        folded_by[i] = inners.size();
        result_.bodies[size_t(at)].accumulators.push_back(OpId(i));
      }
      for (uint32_t i : takes) todo.push_back(i);
      inners.push_back({at, std::move(takes)});
    }
    // What runs here, and what comes from further out.
    std::set<uint32_t> here, outside;
    while (!todo.empty()) {
      const uint32_t i = todo.back();
      todo.pop_back();
      const Op& op = g_.ops()[i];
      if (is_input(op.kind) || here.count(i) || folded_by.count(i)) continue;
      const bool accumulated = is_accumulator(op.kind) && loops_[i] != loops;
      const uint8_t varies = accumulated ? phase_[op.result().index].varies : loops_[i];
      if (loop >= 0 && !(varies >> loop & 1)) {
        outside.insert(i);
        continue;
      }
      if (accumulated) {
        bad_input(who(op) + ": is used inside a loop that it is folded "
                            "outside of; list its loops first");
      }
      here.insert(i);
      for (TensorId t : op.inputs) todo.push_back(producer(t));
    }
    order(index, here, folded_by, inners);
    return outside;
  }

  // Operators as listed, inner loops as soon as all that they take is there.
  template <class Inners>
  void order(size_t index, const std::set<uint32_t>& here,
             const std::map<uint32_t, size_t>& folded_by, const Inners& inners) {
    std::set<uint32_t> done;
    std::vector<char> ran(inners.size(), 0);
    auto there = [&](uint32_t i) {
      if (auto it = folded_by.find(i); it != folded_by.end()) return ran[it->second] != 0;
      return here.count(i) == 0 || done.count(i) != 0;
    };
    std::vector<LoopBody::Step>& steps = result_.bodies[index].steps;
    for (bool progress = true; progress;) {
      progress = false;
      for (uint32_t i : here) {
        const Op& op = g_.ops()[i];
        if (done.count(i) ||
            !std::ranges::all_of(op.inputs, [&](TensorId t) { return there(producer(t)); }))
          continue;
        done.insert(i);
        steps.push_back({OpId(i), -1});
        progress = true;
      }
      for (size_t k = 0; k < inners.size() && !progress; ++k) {
        if (ran[k] || !std::ranges::all_of(inners[k].takes, there)) continue;
        ran[k] = 1;
        steps.push_back({OpId(), inners[k].body});
        progress = true;
      }
    }
    for (size_t k = 0; k < inners.size(); ++k) {
      if (ran[k]) continue;
      const int l = result_.bodies[size_t(inners[k].body)].loop;
      bad_input("loop " + std::to_string(l) +
                " needs a second pass over its iterations: give the "
                "block another loop for it");
    }
    CHECK(done.size() == here.size()) << "an operator of a loop body cannot be scheduled";
  }

  std::string who(const Op& op) const {
    std::string s = name(op.kind);
    if (const std::string& n = g_.tensor(op.result()).name; !n.empty()) s += " " + n;
    return s;
  }

  const Graph& g_;
  const std::vector<Phase>& phase_;
  std::vector<uint8_t> loops_;  // by operator: the loops in whose body it runs
  BlockSchedule result_;
};

}  // namespace

BlockSchedule block_schedule(const Graph& g, const std::vector<Phase>& phases) {
  CHECK(g.level() == Level::Block) << "schedule of a " << name(g.level()) << " graph";
  return Scheduler(g, phases).run();
}

double total_iterations(const Graph& g, const BlockSchedule& schedule) {
  double total = 0;
  std::vector<bool> leaf(schedule.bodies.size(), true);
  for (size_t b = 0; b < schedule.bodies.size(); ++b) {
    for (const LoopBody::Step& s : schedule.bodies[b].steps)
      if (s.body >= 0) leaf[b] = false;
  }
  for (size_t b = 1; b < schedule.bodies.size(); ++b) {
    if (!leaf[b]) continue;
    double n = 1;
    for (size_t l = 0; l < g.loops().size(); ++l)
      if (schedule.bodies[b].loops >> l & 1) n *= double(g.loops()[l]);
    total += n;
  }
  return std::max(1.0, total);
}

}  // namespace tessera
