#include "search/mugraph/kernels.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "ir/block.h"

namespace tessera::mugraph {

namespace {

// A set of values.
struct Bits {
  std::array<uint64_t, kMaxValues / 64> words{};
  bool operator[](size_t i) const { return (words[i / 64] >> (i % 64)) & 1; }
  void set(size_t i) { words[i / 64] |= uint64_t(1) << (i % 64); }
  void reset(size_t i) { words[i / 64] &= ~(uint64_t(1) << (i % 64)); }
};

struct Key {
  Bits any, inv, loads;
  bool operator==(const Key& o) const {
    return any.words == o.any.words && inv.words == o.inv.words && loads.words == o.loads.words;
  }
};
struct KeyHash {
  size_t operator()(const Key& k) const {
    uint64_t h = 0;
    for (const Bits* b : {&k.any, &k.inv, &k.loads}) {
      for (uint64_t w : b->words) h = (h ^ w) * 0x9e3779b97f4a7c15ull, h ^= h >> 29;
    }
    return h;
  }
};

}  // namespace

// A partly built kernel: values still to be computed, from the highest rank downwards.
struct KernelSearch::State {
  Bits any, inv;  // demanded; `inv`: must not depend on a reduction over the loop
  Bits loads;
  double compute = 0, open = 0, traffic = 0;
  double elsewhere = 0;  // least seconds of other kernels for the cuts
  double bound = 0;
  int32_t chain = -1;  // chosen edges, newest first
  int cuts = 0, operators = 0;
};

namespace {
struct ChainNode {
  uint32_t edge;
  int32_t previous;
};
struct Entry {
  double bound;
  int64_t sequence;
  uint32_t state;
  bool operator>(const Entry& o) const {
    return bound != o.bound ? bound > o.bound : sequence > o.sequence;
  }
};
}  // namespace

void KernelCounters::add(const KernelCounters& o) {
  expanded += o.expanded;
  graphs += o.graphs;
  tilings += o.tilings;
  for (const auto& [rule, n] : o.pruned) pruned[rule] += n;
}

KernelSearch::KernelSearch(const Hypergraph& graph, const RegionForms& forms,
                           std::vector<int64_t> extents, const Machine& machine,
                           KernelOptions options, double resident_bytes)
    : graph_(graph), forms_(forms), extents_(std::move(extents)), machine_(machine),
      options_(options), resident_(resident_bytes) {
  for (ValueId v = 0; v < graph_.values.size(); ++v) {
    bool outside = graph_.values[v].view >= 0;
    load_.push_back(v == kOne ? 0 : machine_.first_pass(bytes(v), outside ? resident_ : bytes(v)));
    store_.push_back(machine_.first_pass(bytes(v), bytes(v)));
  }
  for (const Edge& e : graph_.edges) edge_work_.push_back(edge_seconds(e, extents_));
  const size_t n = graph_.values.size();
  work_.assign(n, 0);
  depth_work_.assign(n, 0);
  needs_.resize(n);
  for (ValueId v = 0; v < n; ++v) {  // ascending rank: operands come first
    if (graph_.values[v].view >= 0) needs_[v] = {v};
    bool first = true;
    for (uint32_t k : graph_.producers[v]) {
      const Edge& e = graph_.edges[k];
      double before = 0;
      std::vector<ValueId> all;
      for (int i = 0; i < e.arity; ++i) {
        ValueId u = e.in[size_t(i)];
        before = std::max(before, depth_work_[u]);
        std::vector<ValueId> both;
        std::set_union(all.begin(), all.end(), needs_[u].begin(), needs_[u].end(),
                       std::back_inserter(both));
        all = std::move(both);
      }
      if (first) {
        needs_[v] = all;
        work_[v] = edge_work_[k];
        depth_work_[v] = before + edge_work_[k];
      } else {
        std::vector<ValueId> common;
        std::set_intersection(all.begin(), all.end(), needs_[v].begin(), needs_[v].end(),
                              std::back_inserter(common));
        needs_[v] = std::move(common);
        work_[v] = std::min(work_[v], edge_work_[k]);
        depth_work_[v] = std::min(depth_work_[v], before + edge_work_[k]);
      }
      first = false;
    }
    remote_.push_back(machine_.bound(work_[v], store_[v]));
  }
}

double KernelSearch::remaining(const std::vector<ValueId>& pending) const {
  if (pending.empty()) return 0;
  double work = 0, chain = 0, traffic = 0;
  std::set<ValueId> loads;
  for (ValueId v : pending) {
    work += work_[v];
    chain = std::max(chain, depth_work_[v]);
    traffic += store_[v];
    loads.insert(needs_[v].begin(), needs_[v].end());
  }
  for (ValueId v : loads) traffic += load_[v];
  return machine_.bound(std::max(work, chain), traffic);
}

// Compute of one edge on tiles of the given sizes, by axis.
double KernelSearch::edge_seconds(const Edge& e, const std::vector<int64_t>& tile) const {
  auto volume = [&](AxisMask m) {
    double v = 1;
    for (; m; m &= m - 1) v *= double(tile[size_t(lowest(m))]);
    return v;
  };
  const Value& a = graph_.values[e.in[0]];
  const Value& out = graph_.values[e.out];
  DType t = e.in[0] == kOne && e.arity > 1 ? graph_.values[e.in[1]].dtype : a.dtype;
  switch (e.op) {
  case EdgeOp::Mul: return machine_.pointwise(OpKind::Mul, t, volume(out.axes));
  case EdgeOp::Div: return machine_.pointwise(OpKind::Div, t, volume(out.axes));
  case EdgeOp::Add: return machine_.pointwise(OpKind::Add, t, volume(out.axes));
  case EdgeOp::Sqr: return machine_.pointwise(OpKind::Sqr, t, volume(out.axes));
  case EdgeOp::Sqrt: return machine_.pointwise(OpKind::Sqrt, t, volume(out.axes));
  case EdgeOp::Rsqrt: return machine_.pointwise(OpKind::Rsqrt, t, volume(out.axes));
  case EdgeOp::Exp: return machine_.pointwise(OpKind::Exp, t, volume(out.axes));
  case EdgeOp::Log: return machine_.pointwise(OpKind::Log, t, volume(out.axes));
  case EdgeOp::Fn:
    if (e.bits) return machine_.reduce(t, volume(a.axes));
    return machine_.pointwise(forms_.functions[e.fn].kind, t, volume(out.axes));
  case EdgeOp::Sum: return machine_.reduce(t, volume(a.axes));
  case EdgeOp::Matmul: {
    const Value& b = graph_.values[e.in[1]];
    AxisMask m = a.axes & ~b.axes, n = b.axes & ~a.axes;
    // One private axis each forms the matrix; the others are batches.
    AxisMask row = m ? AxisMask(1) << (63 - __builtin_clzll(m)) : 0;
    AxisMask col = n ? AxisMask(1) << (63 - __builtin_clzll(n)) : 0;
    return machine_.matmul(t, volume(out.axes & ~row & ~col), volume(row), volume(col),
                           volume(e.bits));
  }
  }
  unreachable("EdgeOp");
}

std::vector<int> KernelSearch::loop_axes(const std::vector<ValueId>& outputs) const {
  // Axes of values from which the outputs can be computed.
  AxisMask mask = 0;
  std::vector<char> seen(graph_.values.size(), 0);
  std::vector<ValueId> todo(outputs.begin(), outputs.end());
  while (!todo.empty()) {
    ValueId v = todo.back();
    todo.pop_back();
    if (seen[v]) continue;
    seen[v] = 1;
    mask |= graph_.values[v].axes;
    for (uint32_t k : graph_.producers[v]) {
      for (int i = 0; i < graph_.edges[k].arity; ++i) todo.push_back(graph_.edges[k].in[size_t(i)]);
    }
  }
  std::vector<int> out;
  for (; mask; mask &= mask - 1) {
    if (extents_[size_t(lowest(mask))] >= 4) out.push_back(lowest(mask));
  }
  return out;
}

std::vector<Kernel> KernelSearch::enumerate(const std::vector<ValueId>& outputs, int loop,
                                            double limit, bool cuts,
                                            KernelCounters& counters) const {
  const AxisMask l = loop < 0 ? 0 : bit(loop);
  Bits is_output;
  for (ValueId v : outputs) is_output.set(v);

  std::vector<State> states;
  std::vector<ChainNode> chain;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::unordered_map<Key, std::vector<double>, KeyHash> seen;  // dominance per open set and loads
  std::map<std::vector<ValueId>, std::vector<Kernel>> found;

  auto demand = [&](State& s, ValueId v, bool invariant) {
    if (v == kOne) return;
    if (graph_.values[v].view >= 0) {
      if (!s.loads[v]) {
        s.loads.set(v);
        s.traffic += load_[v];
        ++s.operators;
      }
      return;
    }
    if (!s.any[v] && !s.inv[v]) s.open += cuts && !is_output[v] ? 0 : work_[v];
    (invariant ? s.inv : s.any).set(v);
  };
  auto push = [&](State s) {
    s.bound = machine_.bound(s.compute + s.open, s.traffic) + s.elsewhere;
    if (options_.bound_rule && s.bound > limit) {
      ++counters.pruned["bound"];
      return;
    }
    if (options_.max_operators && s.operators > *options_.max_operators) {
      ++counters.pruned["operator limit"];
      return;
    }
    if (options_.dominance_rule) {
      std::vector<double>& costs = seen[{s.any, s.inv, s.loads}];
      double cost = s.bound + 1e-6 * s.compute;
      if (int(costs.size()) >= options_.variants &&
          cost >= *std::max_element(costs.begin(), costs.end())) {
        ++counters.pruned["dominated"];
        return;
      }
      if (int(costs.size()) >= options_.variants) {
        *std::max_element(costs.begin(), costs.end()) = cost;
      } else {
        costs.push_back(cost);
      }
    }
    queue.push({s.bound, int64_t(states.size()), uint32_t(states.size())});
    states.push_back(std::move(s));
  };

  State start;
  for (ValueId v : outputs) {
    demand(start, v, false);
    start.traffic += store_[v];
    ++start.operators;
  }
  push(start);
  int64_t expansions = 0;
  size_t complete = 0;
  while (!queue.empty()) {
    const State s = states[queue.top().state];
    queue.pop();
    if (options_.bound_rule && s.bound > limit) break;
    ++counters.expanded;
    if (++expansions > options_.max_expansions) {
      ++counters.pruned["expansion limit"];
      break;
    }
    ValueId v = kOne;  // the open value of highest rank
    for (size_t w = s.any.words.size(); w-- > 0;) {
      uint64_t open = s.any.words[w] | s.inv.words[w];
      if (open) {
        v = ValueId(w * 64 + 63 - size_t(__builtin_clzll(open)));
        break;
      }
    }
    if (v == kOne) {
      Kernel k;
      k.outputs = outputs;
      for (ValueId u = 1; u < graph_.values.size(); ++u) {
        if (s.loads[u]) k.loads.push_back(u);
      }
      for (int32_t c = s.chain; c >= 0; c = chain[size_t(c)].previous) {
        k.edges.push_back(chain[size_t(c)].edge);
      }
      k.loop = loop;
      k.bound = s.bound;
      k.operators = s.operators;
      AxisMask loaded = 0;
      for (ValueId u : k.loads) loaded |= graph_.values[u].axes;
      if (k.loads.empty() || (l && !(loaded & l))) continue;  // a loop without anything to iterate
      ++counters.graphs;
      std::vector<Kernel>& same = found[k.loads];
      ++complete;
      if (int(same.size()) >= options_.variants && k.bound - s.elsewhere >= same.back().seconds) {
        ++counters.pruned["bound"];
      } else if (choose_tiles(k, counters)) {
        same.push_back(std::move(k));
        std::stable_sort(same.begin(), same.end(),
                         [](const Kernel& a, const Kernel& b) { return a.seconds < b.seconds; });
        if (int(same.size()) > options_.variants) same.pop_back();
      } else {
        ++counters.pruned["memory"];
      }
      if (int(complete) >= options_.max_graphs) {
        ++counters.pruned["graph limit"];
        break;
      }
      continue;
    }
    const bool must_be_invariant = s.inv[v];
    State base = s;
    base.any.reset(v);
    base.inv.reset(v);
    if (!(cuts && !is_output[v])) base.open -= work_[v];
    // Load it: another kernel stores it.
    if (cuts && !is_output[v] && s.cuts < options_.max_cuts) {
      State t = base;
      t.loads.set(v);
      t.traffic += load_[v];
      ++t.cuts;
      t.elsewhere += remote_[v];
      ++t.operators;
      push(std::move(t));
    }
    for (uint32_t k : graph_.producers[v]) {
      const Edge& e = graph_.edges[k];
      const bool over_loop = (e.bits & l) != 0;
      if (over_loop && must_be_invariant) continue;
      State t = base;
      const bool in_loop = (graph_.values[v].axes & l) != 0;
      for (int i = 0; i < e.arity; ++i) {
        ValueId u = e.in[size_t(i)];
        if (u == kOne) continue;
        bool varies = (graph_.values[u].axes & l) != 0;
        bool invariant = !varies && (in_loop || over_loop || must_be_invariant);
        demand(t, u, invariant);
      }
      t.compute += edge_work_[k];
      t.operators += 1 + (over_loop ? 1 : 0);
      chain.push_back({k, s.chain});
      t.chain = int32_t(chain.size()) - 1;
      push(std::move(t));
    }
  }
  // A kernel that needs more cuts than another and is no cheaper is never better.
  auto cut_set = [&](const std::vector<ValueId>& loads) {
    std::vector<ValueId> c;
    for (ValueId v : loads) {
      if (graph_.values[v].view < 0) c.push_back(v);
    }
    return c;
  };
  std::vector<Kernel> out;
  for (auto& [loads, kernels] : found) {
    if (kernels.empty()) continue;
    bool dominated = false;
    if (options_.dominance_rule && cuts) {
      std::vector<ValueId> mine = cut_set(loads);
      for (const auto& [other_loads, other] : found) {
        if (other.empty() || &other == &kernels) continue;
        std::vector<ValueId> theirs = cut_set(other_loads);
        if (theirs.size() < mine.size() && other[0].seconds <= kernels[0].seconds &&
            std::includes(mine.begin(), mine.end(), theirs.begin(), theirs.end())) {
          dominated = true;
        }
      }
    }
    if (dominated) {
      ++counters.pruned["more cuts, no cheaper"];
      continue;
    }
    for (Kernel& k : kernels) out.push_back(k);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Kernel& a, const Kernel& b) { return a.seconds < b.seconds; });
  return out;
}

std::map<ValueId, KernelPhase> KernelSearch::phases(const Kernel& k) const {
  const AxisMask l = k.loop < 0 ? 0 : bit(k.loop);
  std::map<ValueId, KernelPhase> out;
  for (ValueId v : k.loads) {
    out[v] = graph_.values[v].axes & l ? KernelPhase::Loop : KernelPhase::Invariant;
  }
  for (uint32_t i : k.edges) {
    const Edge& e = graph_.edges[i];
    KernelPhase p = KernelPhase::Invariant;
    if (graph_.values[e.out].axes & l) {
      p = KernelPhase::Loop;
    } else if (e.bits & l) {
      p = KernelPhase::Post;
    } else {
      for (int j = 0; j < e.arity; ++j) {
        auto it = out.find(e.in[size_t(j)]);
        if (it != out.end() && it->second == KernelPhase::Post) p = KernelPhase::Post;
      }
    }
    out[e.out] = p;
  }
  return out;
}

// What `evaluate` needs of a kernel, apart from tile sizes.
struct KernelSearch::Shape {
  struct Moved {
    AxisMask axes;
    double element, bytes, resident;
    KernelPhase phase;
    bool load;
  };
  struct Step {
    const Edge* edge;
    AxisMask out;
    DType dtype;
    bool in_loop, over_loop, post, in_place;
  };
  std::vector<Moved> moved;
  std::vector<Step> steps;
};

KernelSearch::Shape KernelSearch::shape_of(const Kernel& k) const {
  Shape s;
  const auto phase = phases(k);
  auto move = [&](ValueId v, bool load) {
    const Value& x = graph_.values[v];
    s.moved.push_back({x.axes, double(size_in_bytes(x.dtype)), bytes(v),
                       load && x.view >= 0 ? resident_ : bytes(v), phase.at(v), load});
  };
  for (ValueId v : k.loads) move(v, true);
  for (ValueId v : k.outputs) move(v, false);
  std::set<ValueId> reused;
  for (uint32_t i : k.edges) {
    const Edge& e = graph_.edges[i];
    Shape::Step step{
        &e, graph_.values[e.out].axes, graph_.values[e.out].dtype, false, false, false, false};
    step.over_loop = k.loop >= 0 && (e.bits & bit(k.loop));
    step.in_loop = step.over_loop || phase.at(e.out) == KernelPhase::Loop;
    step.post = phase.at(e.out) == KernelPhase::Post && !step.over_loop;
    if (!e.bits) {  // a pointwise result takes over the first computed operand of its size
      for (int j = 0; j < e.arity && !step.in_place; ++j) {
        ValueId u = e.in[size_t(j)];
        auto it = phase.find(u);
        step.in_place = it != phase.end() && it->second == phase.at(e.out) &&
                        graph_.values[u].axes == graph_.values[e.out].axes &&
                        !std::binary_search(k.loads.begin(), k.loads.end(), u) &&
                        reused.insert(u).second;
      }
    }
    s.steps.push_back(step);
  }
  return s;
}

// Seconds of the kernel with the tiles of its grid and loop, and what a block keeps in memory.
double KernelSearch::evaluate(Kernel& k, const Shape& shape, std::vector<int64_t>& tile) const {
  tile = extents_;
  KernelWork w;
  for (const Kernel::GridDim& g : k.grid) {
    tile[size_t(g.axis)] = ceil_div(extents_[size_t(g.axis)], g.parts);
    w.blocks *= double(ceil_div(extents_[size_t(g.axis)], tile[size_t(g.axis)]));
  }
  if (k.loop >= 0) {
    int64_t& t = tile[size_t(k.loop)];
    t = ceil_div(extents_[size_t(k.loop)], k.loop_parts);
    w.iterations = double(ceil_div(extents_[size_t(k.loop)], t));
  }
  auto volume = [&](AxisMask m) {
    double v = 1;
    for (; m; m &= m - 1) v *= double(tile[size_t(lowest(m))]);
    return v;
  };
  // A GPU copies the next tile while it works on this one; a CPU reads the tensor in place.
  const bool twice = machine_.target().kind == TargetKind::Gpu && w.iterations > 1;
  double loop_bytes = 0, post_bytes = 0;
  for (const Shape::Moved& m : shape.moved) {
    const bool in_loop = m.phase == KernelPhase::Loop;
    double n = volume(m.axes) * m.element;
    double total = n * (in_loop ? w.iterations : 1.0) * w.blocks;
    machine_.add_traffic(w, m.bytes, std::max(total, m.bytes), m.resident);
    if (!m.load) continue;
    loop_bytes += twice && in_loop ? 2 * n : n;
    if (m.phase == KernelPhase::Invariant) post_bytes += n;
  }
  for (const Shape::Step& s : shape.steps) {
    w.block_compute += (s.in_loop ? w.iterations : 1.0) * edge_seconds(*s.edge, tile);
    double elements = volume(s.out);
    if (s.over_loop) {
      w.block_compute += w.iterations * machine_.pointwise(OpKind::Add, s.dtype, elements);
      loop_bytes += 4 * elements;
      post_bytes += 4 * elements;
    } else if (!s.in_place) {
      (s.post ? post_bytes : loop_bytes) += 4 * elements;
    }
  }
  k.block_bytes = std::max(loop_bytes, post_bytes);
  return machine_.seconds(w);
}

// Coordinate descent over the parts of each grid axis and of the loop. Tiles over the memory limit
// cost extra in proportion, so that the descent finds its way into the limit; true if it did.
bool KernelSearch::choose_tiles(Kernel& k, KernelCounters& counters, double share) const {
  const Shape shape = shape_of(k);
  const Target& target = machine_.target();
  AxisMask free = ~AxisMask(0);
  for (ValueId v : k.outputs) free &= graph_.values[v].axes;
  for (uint32_t i : k.edges) free &= ~graph_.edges[i].bits;
  if (k.loop >= 0) free &= ~bit(k.loop);
  std::vector<int> axes;
  for (AxisMask m = free; m; m &= m - 1) axes.push_back(lowest(m));
  std::stable_sort(axes.begin(), axes.end(),
                   [&](int a, int b) { return extents_[size_t(a)] > extents_[size_t(b)]; });
  if (axes.size() > size_t(kMaxGridDims)) axes.resize(size_t(kMaxGridDims));
  std::sort(axes.begin(), axes.end());

  const int64_t lanes = std::max(1, target.vector_bytes / 4);
  auto options = [&](int axis) {
    // Tile sizes: powers of two, and whole vectors that divide the extent evenly.
    const int64_t n = extents_[size_t(axis)];
    std::set<int64_t> parts{1};
    for (int64_t t = 1; t < n; t *= 2) parts.insert(ceil_div(n, t));
    for (int64_t p : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
      if (p < n && n % p == 0 && (n / p) % lanes == 0) parts.insert(p);
    }
    return std::vector<int64_t>(parts.begin(), parts.end());
  };
  std::vector<std::vector<int64_t>> choices;
  for (int a : axes) choices.push_back(options(a));
  if (k.loop >= 0) {
    std::vector<int64_t> c = options(k.loop);
    c.erase(c.begin());  // one iteration is the kernel without a loop
    if (c.empty()) return false;
    choices.push_back(std::move(c));
  }
  const double limit = double(target.block_bytes()) * share;
  std::vector<int64_t> tile;
  auto cost = [&](const std::vector<size_t>& at) {
    k.grid.clear();
    for (size_t i = 0; i < axes.size(); ++i) {
      if (choices[i][at[i]] > 1) k.grid.push_back({axes[i], choices[i][at[i]]});
    }
    if (k.loop >= 0) k.loop_parts = choices.back()[at.back()];
    ++counters.tilings;
    double s = evaluate(k, shape, tile);
    if (options_.memory_rule && k.block_bytes > limit) s *= 1 + 4 * (k.block_bytes / limit);
    return s;
  };
  std::vector<size_t> best(choices.size(), 0);
  // Start near one block per core and middle-sized iterations.
  double blocks = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    while (best[i] + 1 < choices[i].size() &&
           blocks * double(choices[i][best[i]]) < 4 * target.cores) {
      ++best[i];
    }
    blocks *= double(choices[i][best[i]]);
  }
  if (k.loop >= 0) {
    auto& c = choices.back();
    while (best.back() + 1 < c.size() && ceil_div(extents_[size_t(k.loop)], c[best.back()]) > 128) {
      ++best.back();
    }
  }
  double least = cost(best);
  for (int round = 0; round < 3; ++round) {
    bool changed = false;
    for (size_t d = 0; d < choices.size(); ++d) {
      std::vector<size_t> at = best;
      for (size_t c = 0; c < choices[d].size(); ++c) {
        at[d] = c;
        if (c == best[d]) continue;
        double s = cost(at);
        if (s < least * (1 - 1e-9)) {
          least = s;
          best = at;
          changed = true;
        }
      }
    }
    if (!changed) break;
  }
  k.seconds = cost(best);
  return !options_.memory_rule || k.block_bytes <= limit;
}

}  // namespace tessera::mugraph
