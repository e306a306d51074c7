#include "search/patterns/identify.h"

#include <algorithm>
#include <memory>
#include <set>
#include <unordered_map>

namespace tessera::patterns {
namespace {

constexpr size_t kMaxIdentifiedOps = 64;

using Ops = std::set<uint32_t>;

class Identifier {
 public:
  Identifier(const Graph& g, const std::vector<Pattern>& patterns, const Deadline* deadline)
      : g_(g), patterns_(patterns), deadline_(deadline), users_(g.tensors().size()),
        map_(g.tensors().size()) {
    for (uint32_t i = 0; i < g.ops().size(); i++)
      for (TensorId t : g.op(OpId(i)).inputs) users_[t.index].push_back(i);
  }

  // Algorithm 1.
  std::vector<Subgraph> run() {
    for (const bool skeletons : {true, false})
      for (uint32_t i = 0; i < g_.ops().size(); i++)
        if (!ended() && usable(i) && is_skeleton(g_.op(OpId(i))) == skeletons) {
          grow(i, false);
          if (skeletons) grow(i, true);
        }
    return std::move(found_);
  }

 private:
  bool ended() const { return deadline_ != nullptr && deadline_->ended(); }
  bool usable(uint32_t op) const {
    const Op& o = g_.op(OpId(op));
    return !is_leaf(o.kind) && has_loops(g_, o);
  }

  struct State {
    Fit fit = Fit::None;
    std::vector<size_t> patterns;
  };
  // Layers that are alike are asked once: by the operators as a program of their own.
  const State& match(const Ops& ops, bool by_keys) {
    Graph alone;
    std::set<uint32_t> inputs;
    for (uint32_t i : ops)
      for (TensorId t : g_.op(OpId(i)).inputs)
        if (!ops.count(g_.tensor(t).producer.index) && inputs.insert(t.index).second)
          map_[t.index] = alone.add_input(g_.tensor(t).type);
    for (uint32_t i : ops) copy_op(g_, g_.op(OpId(i)), alone, map_);
    auto& known = known_[by_keys][structural_hash(alone)];
    for (const auto& [graph, state] : known)
      if (graph == alone) return *state;
    State state = state_of(alone, by_keys);
    known.emplace_back(std::move(alone), std::make_unique<State>(std::move(state)));
    return *known.back().second;
  }
  State state_of(const Graph& alone, bool by_keys) const {
    const Derived d = derive(alone);
    State state;
    if (!d.ok()) return state;
    const std::vector<std::string> mine = keys(d.loops);
    for (size_t p = 0; p < patterns_.size(); p++) {
      const std::vector<std::string>& its = patterns_[p].keys;
      if (!std::includes(its.begin(), its.end(), mine.begin(), mine.end())) {
        // reduceAny stands for others.
        if (!std::ranges::count(its, "reduceAny")) continue;
      }
      Fit best = Fit::None;
      if (by_keys && its.size() > 1) best = mine == its ? Fit::Complete : Fit::Partial;
      if (!by_keys)
        for (const LoopGraph& loops : patterns_[p].loops)
          if (best != Fit::Complete) best = std::max(best, fit(loops, d.loops));
      if (best == Fit::Complete) state.patterns.push_back(p);
      state.fit = std::max(state.fit, best);
    }
    return state;
  }

  // With everything between its operators.
  Ops closed(Ops ops) const {
    const uint32_t first = *ops.begin(), last = *ops.rbegin();
    std::vector<bool> below(last + 1, false), above(last + 1, false);
    for (uint32_t i = first; i <= last; i++) {
      below[i] = ops.count(i) > 0;
      for (TensorId t : g_.op(OpId(i)).inputs) {
        const uint32_t from = g_.tensor(t).producer.index;
        below[i] = below[i] || (from >= first && below[from]);
      }
    }
    for (uint32_t i = last + 1; i-- > first;) {
      above[i] = above[i] || ops.count(i) > 0;
      if (!above[i]) continue;
      for (TensorId t : g_.op(OpId(i)).inputs) {
        const uint32_t from = g_.tensor(t).producer.index;
        if (from >= first) above[from] = true;
      }
    }
    for (uint32_t i = first; i <= last; i++)
      if (below[i] && above[i]) ops.insert(i);
    return ops;
  }

  std::vector<uint32_t> consumers(const Ops& ops) const {
    Ops next;
    for (uint32_t i : ops)
      for (uint32_t user : users_[g_.op(OpId(i)).result().index])
        if (!ops.count(user) && usable(user)) next.insert(user);
    return {next.begin(), next.end()};
  }
  std::vector<uint32_t> producers(const Ops& of, const Ops& ops) const {
    Ops next;
    for (uint32_t i : of)
      for (TensorId t : g_.op(OpId(i)).inputs) {
        const uint32_t from = g_.tensor(t).producer.index;
        if (!ops.count(from) && usable(from)) next.insert(from);
      }
    return {next.rbegin(), next.rend()};  // the nearest first
  }

  // Algorithm 2, with consumers first.
  void grow(uint32_t anchor, bool by_keys) {
    Ops ops = {anchor};
    State state = match(ops, by_keys);
    if (state.fit == Fit::None) return;
    archive(ops, state);
    std::set<uint32_t> rejected;
    Ops fused;  // epilogues, whose other producers are tried at once
    while (ops.size() < kMaxIdentifiedOps && !ended()) {
      std::vector<uint32_t> next = producers(fused, ops);
      for (uint32_t c : consumers(ops)) next.push_back(c);
      const size_t first_prologue = next.size();
      for (uint32_t p : producers(ops, ops)) next.push_back(p);
      bool grown = false;
      for (size_t n = 0; n < next.size() && !grown; n++) {
        if (rejected.count(next[n])) continue;
        Ops with = ops;
        with.insert(next[n]);
        with = closed(std::move(with));
        const bool legal =
            with.size() <= kMaxIdentifiedOps &&
            std::ranges::all_of(with, [&](uint32_t i) { return ops.count(i) > 0 || usable(i); });
        State mine = legal ? match(with, by_keys) : State();
        if (mine.fit == Fit::None) {
          rejected.insert(next[n]);
          continue;
        }
        if (n < first_prologue) fused.insert(next[n]);
        // What did not fit may fit now only where another value of it has come in.
        for (uint32_t user : users_[g_.op(OpId(next[n])).result().index]) rejected.erase(user);
        ops = std::move(with);
        archive(ops, mine);
        grown = true;
      }
      if (!grown) break;
    }
  }

  void archive(const Ops& ops, const State& state) {
    if (state.fit != Fit::Complete) return;
    Subgraph s{{}, state.patterns};
    for (uint32_t i : ops) s.ops.push_back(OpId(i));
    for (Subgraph& known : found_) {
      if (!(known.ops == s.ops)) continue;
      for (size_t p : s.patterns)
        if (!std::ranges::count(known.patterns, p)) known.patterns.push_back(p);
      return;
    }
    found_.push_back(std::move(s));
  }

  const Graph& g_;
  const std::vector<Pattern>& patterns_;
  const Deadline* deadline_;
  std::vector<std::vector<uint32_t>> users_;
  std::vector<TensorId> map_;  // of the program's tensors into the one being matched
  std::unordered_map<uint64_t, std::vector<std::pair<Graph, std::unique_ptr<State>>>> known_[2];
  std::vector<Subgraph> found_;
};

}  // namespace

std::vector<Subgraph> identify(const Graph& g, const std::vector<Pattern>& patterns,
                               const Deadline* deadline) {
  return Identifier(g, patterns, deadline).run();
}

}  // namespace tessera::patterns
