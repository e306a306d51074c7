#include "search/synth/extract.h"

#include <algorithm>

#include "base/check.h"
#include "base/interruption.h"
#include "solve/ilp.h"

namespace tessera::synth {
namespace {

constexpr double kGain = 1e-9;  // relative; less is none

// Classes as bits.
class Set {
 public:
  explicit Set(size_t n, bool full = false) : words_((n + 63) / 64, full ? ~uint64_t(0) : 0) {
    if (full && n % 64 != 0) words_.back() = (uint64_t(1) << n % 64) - 1;
  }
  bool has(uint32_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  void insert(uint32_t i) { words_[i / 64] |= uint64_t(1) << i % 64; }
  void unite(const Set& o) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= o.words_[i];
  }
  void intersect(const Set& o) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= o.words_[i];
  }
  template <class F> void each(F f) const {
    for (size_t i = 0; i < words_.size(); ++i)
      for (uint64_t w = words_[i]; w != 0; w &= w - 1)
        f(uint32_t(i * 64) + uint32_t(__builtin_ctzll(w)));
  }
  friend bool operator==(const Set&, const Set&) = default;

 private:
  std::vector<uint64_t> words_;
};

// Marks the classes a choice uses, operands first in `order`; false where it is no program.
bool visit(const WayGraph& g, const Choice& choice, uint32_t c, std::vector<uint8_t>& state,
           std::vector<uint32_t>& order) {
  if (state[c] == 2) return true;
  if (state[c] == 1 || c >= choice.size() || choice[c] == kNone) return false;
  state[c] = 1;
  for (uint32_t a : g.classes[c][choice[c]].args)
    if (!visit(g, choice, a, state, order)) return false;
  state[c] = 2;
  order.push_back(c);
  return true;
}

class Extractor {
 public:
  Extractor(const WayGraph& graph, const Choice& start, const ExtractLimits& limits)
      : graph_(graph), limits_(limits), best_(start), best_cost_(graph.cost(start)) {
    CHECK(best_cost_ < kInfinite) << "the choice to start from is no program";
  }

  Extraction run() {
    Extraction r;
    collect();
    const bool possible = reduce();
    for (const auto& ways : classes_)
      if (ways.size() > 1) r.ways += ways.size();
    if (!possible)
      r.optimal = true;
    else if (r.ways <= limits_.ways && !stopped_)
      r.optimal = branch(r.nodes);
    r.choice = std::move(best_);
    r.cost = best_cost_;
    return r;
  }

 private:
  struct Way {
    double cost;
    std::vector<uint32_t> args;  // ascending, of those that cost something
    uint32_t index;              // in the graph's class
  };

  // What the outputs can need, with the ways that no other way of the same class makes useless.
  void collect() {
    std::vector<bool> known(graph_.classes.size(), false);
    std::vector<uint32_t> open = graph_.outputs;
    id_.assign(graph_.classes.size(), kNone);
    free_.assign(graph_.classes.size(), kNone);
    for (uint32_t c = 0; c < graph_.classes.size(); ++c) {
      for (uint32_t w = 0; w < graph_.classes[c].size(); ++w)
        if (graph_.classes[c][w].cost == 0 && graph_.classes[c][w].args.empty()) free_[c] = w;
    }
    while (!open.empty()) {
      const uint32_t c = open.back();
      open.pop_back();
      if (known[c] || free_[c] != kNone) continue;
      known[c] = true;
      for (const WayGraph::Way& w : graph_.classes[c])
        if (w.cost < kInfinite) open.insert(open.end(), w.args.begin(), w.args.end());
    }
    for (uint32_t c = 0; c < known.size(); ++c) {
      if (!known[c]) continue;
      id_[c] = uint32_t(original_.size());
      original_.push_back(c);
    }
    for (uint32_t c : original_) {
      std::vector<Way> ways;
      for (uint32_t w = 0; w < graph_.classes[c].size(); ++w) {
        Way way{graph_.classes[c][w].cost, {}, w};
        if (!(way.cost < kInfinite)) continue;
        for (uint32_t a : graph_.classes[c][w].args)
          if (free_[a] == kNone) way.args.push_back(id_[a]);
        std::ranges::sort(way.args);
        way.args.erase(std::unique(way.args.begin(), way.args.end()), way.args.end());
        ways.push_back(std::move(way));
      }
      std::ranges::stable_sort(ways, {}, &Way::cost);
      std::vector<Way> kept;
      for (Way& w : ways) {
        const bool useless = std::ranges::any_of(kept, [&](const Way& k) {
          return std::includes(w.args.begin(), w.args.end(), k.args.begin(), k.args.end());
        });
        if (!useless) kept.push_back(std::move(w));
      }
      classes_.push_back(std::move(kept));
    }
    for (uint32_t c : graph_.outputs)
      if (free_[c] == kNone) outputs_.push_back(id_[c]);
  }

  bool stopped() {
    stopped_ = stopped_ || (limits_.stopped && limits_.stopped());
    return stopped_;
  }
  double least(uint32_t c) const { return classes_[c].empty() ? kInfinite : classes_[c][0].cost; }

  // Every class's indispensable classes: those that all its derivations compute, itself included.
  // The greatest solution of need(c) = {c} ∪ ⋂ over ways ⋃ over operands need(a); all classes where
  // there is no derivation.
  void find_needs() {
    const size_t n = classes_.size();
    need_.assign(n, Set(n, true));
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t c = 0; c < n; ++c) {
        if (stopped()) return;
        Set common(n, true);
        for (const Way& w : classes_[c]) common.intersect(need_of(w));
        common.insert(c);
        if (common == need_[c]) continue;
        need_[c] = std::move(common);
        changed = true;
      }
    }
  }
  Set need_of(const Way& w) const {
    interruption_point();
    Set all(classes_.size());
    for (uint32_t a : w.args) all.unite(need_[a]);
    return all;
  }

  // Drops ways that are in no program cheaper than the best; false where there is no such program.
  // Stopped, what it has found says nothing.
  bool reduce() {
    const size_t n = classes_.size();
    for (bool changed = true; changed;) {
      changed = false;
      find_needs();
      if (stopped_) return true;
      Set must(n);
      for (uint32_t c : outputs_) must.unite(need_[c]);
      if (!(bound(must) < best_cost_ * (1 - kGain))) return false;
      for (uint32_t c = 0; c < n; ++c) {
        if (stopped()) return true;
        const size_t before = classes_[c].size();
        std::erase_if(classes_[c], [&](const Way& w) {
          Set all = need_of(w);
          if (all.has(c)) return true;  // needs what it is to compute
          all.unite(must);
          all.insert(c);
          return !(bound(all) - least(c) + w.cost < best_cost_ * (1 - kGain));
        });
        changed = changed || classes_[c].size() != before;
      }
    }
    return true;
  }
  double bound(const Set& needed) const {
    double total = 0;
    needed.each([&](uint32_t c) { total += least(c); });
    return total;
  }

  // The integer program: one variable per way; whether the best was proved to be the best.
  bool branch(int64_t& nodes) {
    interruption_point();
    Ilp ilp;
    std::vector<std::vector<int>> variable(classes_.size());
    const double unit = best_cost_;
    std::vector<bool> live(classes_.size(), false);
    std::vector<uint32_t> open = outputs_;
    while (!open.empty()) {
      const uint32_t c = open.back();
      open.pop_back();
      if (live[c]) continue;
      live[c] = true;
      for (const Way& w : classes_[c]) open.insert(open.end(), w.args.begin(), w.args.end());
    }
    std::vector<std::pair<int, double>> objective;
    for (uint32_t c = 0; c < classes_.size(); ++c) {
      if (!live[c]) continue;
      for (const Way& w : classes_[c]) {
        variable[c].push_back(ilp.add_variable(w.cost / unit));
        objective.emplace_back(variable[c].back(), w.cost / unit);
      }
    }
    Set must(classes_.size());
    for (uint32_t c : outputs_) must.unite(need_[c]);
    auto all_of = [&](uint32_t c, double coefficient) {
      std::vector<std::pair<int, double>> terms;
      for (int v : variable[c]) terms.emplace_back(v, coefficient);
      return terms;
    };
    for (uint32_t c = 0; c < classes_.size(); ++c) {
      if (!live[c]) continue;
      ilp.add(all_of(c, 1), must.has(c) ? Relation::Equal : Relation::LessEqual, 1);
      for (size_t w = 0; w < classes_[c].size(); ++w) {
        for (uint32_t a : classes_[c][w].args) {
          if (must.has(a)) continue;
          auto terms = all_of(a, -1);
          terms.emplace_back(variable[c][w], 1);
          ilp.add(std::move(terms), Relation::LessEqual, 0);
        }
      }
    }
    ilp.add(objective, Relation::LessEqual, 1 - kGain);
    IlpOptions options;
    options.stopped = limits_.stopped;
    for (int round = 0; round < limits_.rounds; ++round) {
      options.max_nodes = limits_.nodes - nodes;
      if (options.max_nodes <= 0 || stopped()) return false;
      const IlpResult solved = solve_ilp(ilp, options);
      nodes += solved.nodes;
      if (solved.status == IlpStatus::Infeasible) return true;
      if (solved.x.empty()) return false;
      // Forbids each cycle of the choice; a choice without any is a program.
      Choice choice(graph_.classes.size(), kNone);
      for (uint32_t c = 0; c < classes_.size(); ++c) {
        for (size_t w = 0; w < variable[c].size(); ++w)
          if (solved.x[size_t(variable[c][w])]) choice[original_[c]] = classes_[c][w].index;
      }
      for (uint32_t c = 0; c < free_.size(); ++c)
        if (free_[c] != kNone) choice[c] = free_[c];
      const double cost = graph_.cost(choice);
      if (cost < best_cost_) {
        best_cost_ = cost;
        best_ = std::move(choice);
        return solved.status == IlpStatus::Optimal;
      }
      if (cost < kInfinite) return solved.status == IlpStatus::Optimal;  // as good, to rounding
      if (forbid_cycles(choice, variable, ilp) == 0) return false;
    }
    return false;
  }

  int forbid_cycles(const Choice& choice, const std::vector<std::vector<int>>& variable, Ilp& ilp) {
    const size_t n = classes_.size();
    std::vector<uint8_t> state(n, 0);
    std::vector<uint32_t> path;
    int found = 0;
    auto chosen = [&](uint32_t c) -> const Way* {
      for (const Way& w : classes_[c])
        if (choice[original_[c]] == w.index) return &w;
      return nullptr;
    };
    auto walk = [&](auto& self, uint32_t c) -> void {
      if (state[c] == 2) return;
      if (state[c] == 1) {
        // Some way on the cycle has to leave it: any way of a class that needs the next counts.
        std::vector<std::pair<int, double>> terms;
        const auto from = std::ranges::find(path, c);
        const size_t length = size_t(path.end() - from);
        for (auto at = from; at != path.end(); ++at) {
          const uint32_t next = at + 1 == path.end() ? c : *(at + 1);
          for (size_t w = 0; w < classes_[*at].size(); ++w) {
            const auto& args = classes_[*at][w].args;
            if (std::ranges::binary_search(args, next)) terms.emplace_back(variable[*at][w], 1);
          }
        }
        ilp.add(std::move(terms), Relation::LessEqual, double(length) - 1);
        ++found;
        return;
      }
      const Way* way = chosen(c);
      if (!way) return;
      state[c] = 1;
      path.push_back(c);
      for (uint32_t a : way->args) self(self, a);
      path.pop_back();
      state[c] = 2;
    };
    for (uint32_t c : outputs_) walk(walk, c);
    return found;
  }

  const WayGraph& graph_;
  const ExtractLimits& limits_;
  Choice best_;
  double best_cost_;
  std::vector<uint32_t> id_, original_, outputs_;
  std::vector<uint32_t> free_;             // the way that costs nothing and needs nothing, or kNone
  std::vector<std::vector<Way>> classes_;  // ways by ascending cost
  std::vector<Set> need_;
  bool stopped_ = false;
};

}  // namespace

double WayGraph::cost(const Choice& choice) const {
  std::vector<uint8_t> state(classes.size(), 0);
  std::vector<uint32_t> order;
  for (uint32_t c : outputs)
    if (!visit(*this, choice, c, state, order)) return kInfinite;
  return sum_of<double>(order, [&](uint32_t c) { return classes[c][choice[c]].cost; });
}

WayGraph ways_of(const EGraph& graph, const std::vector<ValueId>& outputs) {
  WayGraph r;
  r.outputs = outputs;
  for (ValueId v = 0; v < graph.size(); ++v) {
    std::vector<WayGraph::Way> ways;
    for (size_t n = 0; n < graph[v].nodes.size(); ++n) {
      ways.push_back({graph[v].seconds[n], {}});
      graph.each_arg(graph[v].nodes[n], [&](ValueId a) { ways.back().args.push_back(a); });
    }
    r.classes.push_back(std::move(ways));
  }
  return r;
}

Extraction extract_least(const WayGraph& graph, const Choice& start, const ExtractLimits& limits) {
  return Extractor(graph, start, limits).run();
}

}  // namespace tessera::synth
