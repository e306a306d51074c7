#include "plan/block_order.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace tessera {
namespace {

// A system of differences x[to] >= x[from] + least; solved by its longest paths.
class Differences {
 public:
  explicit Differences(size_t variables) : variables_(variables) {}
  void add(int from, int to, int least) { edges_.push_back({from, to, least}); }
  // The least solution from 0 on; nullopt if there is none.
  std::optional<std::vector<int>> solve() const {
    std::vector<int> x(variables_, 0);
    for (size_t round = 0; round <= variables_; ++round) {
      bool changed = false;
      for (const auto& [from, to, least] : edges_) {
        const int at = x[size_t(from)] + least;
        if (at <= x[size_t(to)]) continue;
        x[size_t(to)] = at;
        changed = true;
      }
      if (!changed) return x;
    }
    return std::nullopt;
  }

 private:
  struct Edge {
    int from, to, least;
  };
  size_t variables_;
  std::vector<Edge> edges_;
};

class Orderer {
 public:
  Orderer(const Block& block, const std::vector<OrderEdge>& edges, const OrderOptions& options)
      : block_(block), edges_(edges), options_(options), barriers_(block.loops.size(), 0) {}

  BlockOrder run() {
    // Inner loops come later in the list.
    for (int l = int(block_.loops.size()); l-- > 0;) {
      const int most = 2 * int(block_.steps.size()) + 2;
      int least = 0;
      for (size_t c = 0; c < block_.loops.size(); ++c)
        if (block_.loops[c].around == l) least += barriers_[c];
      barriers_[size_t(l)] = least;
      while (!system(l).solve())
        CHECK(++barriers_[size_t(l)] <= most + least) << "no order of a loop's steps";
    }
    const auto x = system(-1).solve();
    CHECK(x) << "no order of a block's steps";
    BlockOrder order;
    order.barriers = barriers_;
    order.time.assign(x->begin(), x->begin() + long(block_.steps.size()));
    order.begin.assign(x->begin() + long(block_.steps.size()),
                       x->begin() + long(block_.steps.size() + block_.loops.size()));
    for (size_t s = 0; s < block_.steps.size(); ++s) order.end = std::max(order.end, order.time[s]);
    for (size_t l = 0; l < block_.loops.size(); ++l)
      order.end = std::max(order.end, order.begin[l] + barriers_[l]);
    return order;
  }

 private:
  bool within(int step, int loop) const {
    return inside(block_, block_.steps[size_t(step)].loop, loop);
  }
  int loop_variable(int l) const { return int(block_.steps.size()) + l; }

  // The constraints among the steps inside `loop`.
  Differences system(int loop) const {
    const int steps = int(block_.steps.size());
    Differences d(block_.steps.size() + block_.loops.size());
    for (int l = 0; l < int(block_.loops.size()); ++l) {
      if (!inside(block_, l, loop)) continue;
      const int begin = loop_variable(l), length = barriers_[size_t(l)];
      bool before = true;
      for (int s = 0; s < steps; ++s) {
        if (!within(s, loop)) continue;
        if (within(s, l)) {
          before = false;
          d.add(begin, s, 0);
          d.add(s, begin, -length);
        } else if (before) {
          d.add(s, begin, 0);
        } else {
          d.add(begin, s, length);
        }
      }
      for (int m = 0; m < int(block_.loops.size()); ++m) {
        if (m == l || !inside(block_, m, loop)) continue;
        if (inside(block_, m, l)) {  // an inner one
          d.add(begin, loop_variable(m), 0);
          d.add(loop_variable(m), begin, barriers_[size_t(m)] - length);
        } else if (!inside(block_, l, m) && first_step(l) < first_step(m)) {
          d.add(begin, loop_variable(m), length);
        }
      }
    }
    for (const OrderEdge& e : edges_) {
      if (!within(e.from, loop) || !within(e.to, loop)) continue;
      const int to = e.before >= 0 ? loop_variable(e.before) : e.to;
      if (e.loop < 0) {
        CHECK(e.from < e.to) << "an edge goes back in the list";
        d.add(e.from, to, e.barriers);
      } else if (inside(block_, e.loop, loop)) {
        d.add(e.from, to, e.barriers - e.iterations * barriers_[size_t(e.loop)]);
      }
    }
    for (const auto& [s, l] : options_.not_first)
      if (inside(block_, l, loop)) d.add(loop_variable(l), s, 1);
    if (options_.serial) serialise(loop, d);
    return d;
  }
  // One step after the other.
  void serialise(int loop, Differences& d) const {
    int last = -1;
    for (int s = 0; s < int(block_.steps.size()); ++s) {
      if (!within(s, loop)) continue;
      if (tied(s)) continue;
      if (last >= 0) d.add(last, s, 1);
      last = s;
    }
    for (int l = 0; l < int(block_.loops.size()); ++l) {
      if (!inside(block_, l, loop)) continue;
      int first = -1, final = -1;
      for (int s = 0; s < int(block_.steps.size()); ++s) {
        if (!within(s, l) || tied(s)) continue;
        first = first < 0 ? s : first;
        final = s;
      }
      if (first >= 0 && first != final) d.add(final, first, 1 - barriers_[size_t(l)]);
    }
  }
  // Whether the step shares its interval with others whatever happens.
  bool tied(int s) const {
    return std::ranges::any_of(
        edges_,
        [&](const OrderEdge& e) {
          return (e.from == s || e.to == s) && e.loop >= 0 && e.iterations == 0;
        });
  }
  int first_step(int l) const {
    int s = 0;
    while (!within(s, l)) ++s;
    return s;
  }

  const Block& block_;
  const std::vector<OrderEdge>& edges_;
  const OrderOptions& options_;
  std::vector<int> barriers_;
};

}  // namespace

BlockOrder order_block(const Block& block, const std::vector<OrderEdge>& edges,
                       const OrderOptions& options) {
  return Orderer(block, edges, options).run();
}

}  // namespace tessera
