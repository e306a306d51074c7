#include "search/mugraph/kernels.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/interruption.h"
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

// Demanded values by the number of passes that may come before: a value outside the loop must be
// there after so many, a value inside it in one of so many. Of several demands the least counts.
using Demands = std::array<Bits, kMaxPasses + 1>;

struct Key {
  Demands open;
  Bits loads;
  bool operator==(const Key& o) const {
    for (size_t q = 0; q < open.size(); ++q)
      if (open[q].words != o.open[q].words) return false;
    return loads.words == o.loads.words;
  }
};
struct KeyHash {
  size_t operator()(const Key& k) const {
    uint64_t h = 0;
    auto mix = [&](const Bits& b) {
      for (uint64_t w : b.words) h = (h ^ w) * 0x9e3779b97f4a7c15ull, h ^= h >> 29;
    };
    for (const Bits& b : k.open) mix(b);
    mix(k.loads);
    return h;
  }
};

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

// Passes as counted from the first one, which comes after nothing.
uint8_t pass_bit(int pass) { return uint8_t(1u << (pass - 1)); }

}  // namespace

// A partly built kernel: values still to be computed, from the highest rank downwards.
struct KernelSearch::State {
  Demands open;
  Bits loads;
  double compute = 0, compute_open = 0, traffic = 0;
  double floor = 0;  // least seconds of a kernel with one of the chosen operations
  // Least seconds of other kernels for the cuts: of the last operations, and of any one operation
  // on the way to them.
  double last = 0, way = 0;
  double elsewhere() const { return std::max(last, way); }
  double bound = 0;
  int32_t chain = -1;  // chosen edges, newest first
  int cuts = 0, operators = 0;
};

void KernelCounters::add(const KernelCounters& o) {
  expanded += o.expanded;
  graphs += o.graphs;
  tilings += o.tilings;
  for (const auto& [rule, n] : o.pruned) pruned[rule] += n;
}

KernelSearch::KernelSearch(const Hypergraph& graph, const Region& region, const RegionForms& forms,
                           const std::map<int, int64_t>& parts, const Machine& machine,
                           KernelOptions options, double resident_bytes)
    : graph_(graph), region_(region), forms_(forms), extents_(axis_extents(region)),
      machine_(machine), options_(options), resident_(resident_bytes) {
  for (const auto& [p, n] : parts) {
    const int a = region.whole[size_t(p)];
    splits_.push_back({bit(a), bit(p), region.axes[size_t(a)].extent});
    extents_[size_t(a)] = ceil_div(region.axes[size_t(a)].extent, n);
    extents_[size_t(p)] = n;
  }
  for (const Value& v : graph_.values) {
    double n = size_in_bytes(v.dtype);
    for (AxisMask m = v.axes; m; m &= m - 1) n *= double(extents_[size_t(lowest(m))]);
    for (const Split& s : splits_) {  // the last part may be shorter
      if (v.axes & s.inside) {
        n *= double(s.extent) /
             double(extents_[size_t(lowest(s.inside))] * extents_[size_t(lowest(s.parts))]);
      }
    }
    bytes_.push_back(n);
  }
  for (ValueId v = 0; v < graph_.values.size(); ++v) {
    bool outside = graph_.values[v].view >= 0;
    load_.push_back(v == kOne ? 0 : machine_.first_pass(bytes(v), outside ? resident_ : bytes(v)));
    store_.push_back(machine_.first_pass(bytes(v), bytes(v)));
  }
  only_sums_.assign(graph_.values.size(), 0);
  for (const Split& s : splits_) {
    for (ValueId v = 0; v < graph_.values.size(); ++v) {
      const std::vector<uint32_t>& from = graph_.producers[v];
      bool sums = !from.empty();
      for (uint32_t k : from) sums = sums && (graph_.edges[k].bits & s.inside);
      if (sums) only_sums_[v] = 1;
    }
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
  edge_floor_.assign(graph_.edges.size(), 0);
  floor_.assign(n, 0);
  for (ValueId v = 0; v < n && options_.bound_rule; ++v) {
    double last = INFINITY;
    for (uint32_t k : graph_.producers[v]) {
      const Edge& e = graph_.edges[k];
      edge_floor_[k] = edge_floor(k);
      double all = edge_floor_[k];
      for (int i = 0; i < e.arity; ++i) all = std::max(all, floor_[e.in[size_t(i)]]);
      floor_[v] = k == graph_.producers[v].front() ? all : std::min(floor_[v], all);
      last = std::min(last, edge_floor_[k]);
    }
    if (!graph_.producers[v].empty()) remote_[v] = std::max(remote_[v], last);
  }
}

double KernelSearch::remaining(const std::vector<ValueId>& pending) const {
  interruption_point();
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
  double least = machine_.bound(std::max(work, chain), traffic);
  for (ValueId v : pending) least = std::max(least, floor_[v]);
  return least;
}

bool KernelSearch::set_loop(Kernel& k, int loop) const {
  AxisMask common = ~AxisMask(0);
  k.parts = 0;
  for (ValueId v : k.outputs) {
    common &= graph_.values[v].axes;
    k.parts |= partial_axes(v);
  }
  if (k.parts & ~common) return false;
  k.loop = loop;
  k.varies = loop < 0 ? 0 : region_.bits(loop) & ~k.parts;
  k.folds = k.varies;
  for (const Split& s : splits_)
    if (k.varies & s.parts) k.folds &= ~s.inside;
  return true;
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
    for (uint32_t k : graph_.producers[v])
      for (int i = 0; i < graph_.edges[k].arity; ++i) todo.push_back(graph_.edges[k].in[size_t(i)]);
  }
  std::vector<int> out;
  for (; mask; mask &= mask - 1) {
    const int a = lowest(mask);
    const bool parts = !region_.whole.empty() && region_.whole[size_t(a)] >= 0;
    if (!parts && region_.axes[size_t(a)].extent >= 4) out.push_back(a);
  }
  return out;
}

std::vector<Kernel> KernelSearch::enumerate(const Request& request,
                                            KernelCounters& counters) const {
  const std::vector<ValueId>& outputs = request.outputs;
  const int loop = request.loop;
  const double limit = request.limit;
  const bool cuts = request.cuts != Cuts::None;
  const size_t variants = size_t(std::max(1, request.variants));
  Bits loadable;
  for (ValueId v : request.loads) loadable.set(v);
  Bits is_output;
  for (ValueId v : outputs) is_output.set(v);
  // Partial results need a grid over their parts, which all outputs must have.
  Kernel start_kernel;
  start_kernel.outputs = outputs;
  if (!set_loop(start_kernel, loop)) return {};
  const AxisMask varies = start_kernel.varies, folds = start_kernel.folds,
                 parts = start_kernel.parts;
  AxisMask inner = 0;  // reductions over these alone leave partial results inside the loop
  for (const Split& s : splits_)
    if (varies & s.parts) inner |= s.inside;
  auto allowed = [&](const Edge& e) {
    if (e.bits & parts) return false;
    for (const Split& s : splits_) {
      if ((e.bits & s.inside) && !(e.bits & s.parts) && !((parts & s.parts) || (inner & s.inside)))
        return false;
      // A partial result that is a sum by itself accumulates at once.
      if ((inner & s.inside) && e.op == EdgeOp::Sum && e.bits == s.parts && only_sums_[e.in[0]])
        return false;
    }
    return true;
  };

  std::vector<State> states;
  std::vector<ChainNode> chain;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::unordered_map<Key, std::vector<double>, KeyHash> seen;  // dominance per open set and loads
  std::map<std::vector<ValueId>, std::vector<Kernel>> found;

  auto demand = [&](State& s, ValueId v, int after) {
    if (v == kOne) return;
    if (graph_.values[v].view >= 0) {
      if (!s.loads[v]) {
        s.loads.set(v);
        s.traffic += load_[v];
        ++s.operators;
      }
      return;
    }
    for (int q = 0; q <= kMaxPasses; ++q) {
      if (!s.open[size_t(q)][v]) continue;
      if (q <= after) return;
      s.open[size_t(q)].reset(v);
      s.open[size_t(after)].set(v);
      return;
    }
    s.compute_open += cuts && !is_output[v] ? 0 : work_[v];
    s.open[size_t(after)].set(v);
  };
  auto push = [&](State s) {
    interruption_point();
    const double roof = machine_.bound(s.compute + s.compute_open, s.traffic);
    s.bound = std::max(roof, s.floor) + s.elsewhere();
    if (options_.bound_rule && s.bound > limit) {
      ++counters.pruned["bound"];
      return;
    }
    if (options_.max_operators && s.operators > *options_.max_operators) {
      ++counters.pruned["operator limit"];
      return;
    }
    if (options_.dominance_rule) {
      std::vector<double>& costs = seen[{s.open, s.loads}];
      double cost = roof + s.elsewhere() + 1e-6 * s.compute;
      if (costs.size() >= variants && cost >= *std::ranges::max_element(costs)) {
        ++counters.pruned["dominated"];
        return;
      }
      if (costs.size() >= variants) {
        *std::ranges::max_element(costs) = cost;
      } else {
        costs.push_back(cost);
      }
    }
    queue.push({s.bound, int64_t(states.size()), uint32_t(states.size())});
    states.push_back(std::move(s));
  };

  auto keep = [&](std::vector<Kernel>& same, Kernel k) {
    same.push_back(std::move(k));
    std::ranges::stable_sort(
        same, [](const Kernel& a, const Kernel& b) { return a.seconds < b.seconds; });
    if (same.size() > variants) same.pop_back();
  };

  State start;
  for (ValueId v : outputs) {
    demand(start, v, request.passes);
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
    for (size_t w = s.loads.words.size(); w-- > 0;) {
      uint64_t open = 0;
      for (const Bits& b : s.open) open |= b.words[w];
      if (open) {
        v = ValueId(w * 64 + 63 - size_t(__builtin_clzll(open)));
        break;
      }
    }
    if (v == kOne) {
      Kernel k;
      k.outputs = outputs;
      for (ValueId u = 1; u < graph_.values.size(); ++u)
        if (s.loads[u]) k.loads.push_back(u);
      for (int32_t c = s.chain; c >= 0; c = chain[size_t(c)].previous)
        k.edges.push_back(chain[size_t(c)].edge);
      set_loop(k, loop);
      k.passes = passes_of(phases(k));
      if (request.passes > 1 && k.passes == 1) continue;  // found without them
      k.bound = s.bound;
      k.operators = s.operators;
      AxisMask loaded = 0;
      for (ValueId u : k.loads) loaded |= graph_.values[u].axes;
      if (k.loads.empty() || (varies && !(loaded & varies))) continue;  // nothing to iterate over
      if (request.cuts == Cuts::Given && k.loads != request.loads) continue;
      ++counters.graphs;
      std::vector<Kernel>& same = found[k.loads];
      ++complete;
      const bool full = same.size() >= variants;
      if (full && k.bound - s.elsewhere() >= same.back().seconds) {
        ++counters.pruned["bound"];
      } else if (choose_tiles(k, counters, 1, same.empty() ? nullptr : &same.front(),
                              full ? 1.2 * same.back().seconds : INFINITY)) {
        keep(same, std::move(k));
      } else {
        std::optional<Kernel> nested;
        if (is_tight(k)) nested = nest(k, counters);
        if (nested && (!full || nested->seconds < same.back().seconds))
          keep(same, std::move(*nested));
        else
          ++counters.pruned["memory"];
      }
      if (int(complete) >= options_.max_graphs) {
        ++counters.pruned["graph limit"];
        break;
      }
      continue;
    }
    int after = 0;
    while (!s.open[size_t(after)][v]) ++after;
    State base = s;
    base.open[size_t(after)].reset(v);
    if (!(cuts && !is_output[v])) base.compute_open -= work_[v];
    // Load it: another kernel stores it.
    if (cuts && !is_output[v] && s.cuts < options_.max_cuts && !(partial_axes(v) & varies) &&
        (request.cuts == Cuts::Any || loadable[v])) {
      State t = base;
      t.loads.set(v);
      t.traffic += load_[v];
      ++t.cuts;
      t.last += remote_[v];
      t.way = std::max(t.way, floor_[v]);
      ++t.operators;
      push(std::move(t));
    }
    for (uint32_t k : graph_.producers[v]) {
      const Edge& e = graph_.edges[k];
      if (!allowed(e)) continue;
      const bool over_loop = (e.bits & folds) != 0;
      if (over_loop && after == 0) continue;
      State t = base;
      const bool in_loop = (graph_.values[v].axes & varies) != 0;
      for (int i = 0; i < e.arity; ++i) {
        ValueId u = e.in[size_t(i)];
        if (u == kOne) continue;
        bool changes = (graph_.values[u].axes & varies) != 0;
        demand(t, u, !changes && (in_loop || over_loop) ? after - 1 : after);
      }
      t.compute += edge_work_[k];
      t.floor = std::max(t.floor, edge_floor_[k]);
      t.operators += 1 + (over_loop ? 1 : 0);
      chain.push_back({k, s.chain});
      t.chain = int32_t(chain.size()) - 1;
      push(std::move(t));
    }
  }
  // A kernel that needs more cuts than another and is no cheaper is never better.
  auto cut_set = [&](const std::vector<ValueId>& loads) {
    std::vector<ValueId> c;
    for (ValueId v : loads)
      if (graph_.values[v].view < 0) c.push_back(v);
    return c;
  };
  std::vector<Kernel> out;
  for (auto& [loads, kernels] : found) {
    if (kernels.empty()) continue;
    bool dominated = false;
    if (options_.dominance_rule && request.cuts == Cuts::Any) {
      std::vector<ValueId> mine = cut_set(loads);
      for (const auto& [other_loads, other] : found) {
        if (other.empty() || &other == &kernels) continue;
        std::vector<ValueId> theirs = cut_set(other_loads);
        if (theirs.size() < mine.size() && other[0].seconds <= kernels[0].seconds &&
            std::includes(mine.begin(), mine.end(), theirs.begin(), theirs.end()))
          dominated = true;
      }
    }
    if (dominated) {
      ++counters.pruned["more cuts, no cheaper"];
      continue;
    }
    for (Kernel& k : kernels) out.push_back(k);
  }
  std::ranges::stable_sort(out,
                           [](const Kernel& a, const Kernel& b) { return a.seconds < b.seconds; });
  return out;
}

int KernelSearch::passes_of(const std::map<ValueId, Placed>& placed) {
  unsigned all = 1;
  for (const auto& [v, at] : placed) all |= at.passes;
  return int(std::bit_width(all));
}

std::map<ValueId, Placed> KernelSearch::phases(const Kernel& k) const {
  std::map<ValueId, Placed> out;
  // Outside the loop: passes that come before; inside: the first pass it can be computed in.
  std::map<ValueId, int> ready;
  auto inside = [&](ValueId v) { return (graph_.values[v].axes & k.varies) != 0; };
  for (ValueId v : k.loads) {
    ready[v] = inside(v) ? 1 : 0;
    out[v] = {inside(v) ? KernelPhase::Loop : KernelPhase::Invariant, 0};
  }
  for (uint32_t i : k.edges) {
    const Edge& e = graph_.edges[i];
    const bool over_loop = (e.bits & k.folds) != 0, loop = inside(e.out) || over_loop;
    int at = loop ? 1 : 0;
    for (int j = 0; j < e.arity; ++j) {
      auto it = ready.find(e.in[size_t(j)]);
      if (it == ready.end()) continue;
      at = std::max(at, it->second + (loop && !inside(it->first) ? 1 : 0));
    }
    ready[e.out] = at;
    const KernelPhase p = inside(e.out) ? KernelPhase::Loop
                          : at > 0      ? KernelPhase::Post
                                        : KernelPhase::Invariant;
    out[e.out] = {p, over_loop && !inside(e.out) ? pass_bit(at) : uint8_t(0)};
  }
  for (ValueId v : k.outputs)
    if (inside(v) && ready.count(v)) out[v].passes |= pass_bit(ready[v]);
  for (size_t i = k.edges.size(); i-- > 0;) {
    const Edge& e = graph_.edges[k.edges[i]];
    for (int j = 0; j < e.arity; ++j) {
      auto it = out.find(e.in[size_t(j)]);
      if (it != out.end() && it->second.phase == KernelPhase::Loop)
        it->second.passes |= out[e.out].passes;
    }
  }
  return out;
}

int KernelSearch::passes(const std::vector<ValueId>& outputs, int loop) const {
  if (loop < 0) return 1;
  Kernel k;
  k.outputs = outputs;
  if (!set_loop(k, loop)) return 1;
  std::vector<char> wanted(graph_.values.size(), 0);
  std::vector<ValueId> todo(outputs.begin(), outputs.end());
  while (!todo.empty()) {
    const ValueId v = todo.back();
    todo.pop_back();
    if (wanted[v]) continue;
    wanted[v] = 1;
    for (uint32_t i : graph_.producers[v]) {
      const Edge& e = graph_.edges[i];
      for (int j = 0; j < e.arity; ++j) todo.push_back(e.in[size_t(j)]);
    }
  }
  // The most passes that any derivation takes.
  std::vector<int> ready(graph_.values.size(), 0);
  int most = 1;
  for (ValueId v = 0; v < graph_.values.size(); ++v) {
    if (!wanted[v]) continue;
    const bool varies = (graph_.values[v].axes & k.varies) != 0;
    ready[v] = varies ? 1 : 0;
    for (uint32_t i : graph_.producers[v]) {
      const Edge& e = graph_.edges[i];
      const bool in_loop = varies || (e.bits & k.folds);
      for (int j = 0; j < e.arity; ++j) {
        const ValueId u = e.in[size_t(j)];
        const bool outside = !(graph_.values[u].axes & k.varies);
        ready[v] = std::max({ready[v], in_loop ? 1 : 0, ready[u] + (in_loop && outside ? 1 : 0)});
      }
    }
    most = std::max(most, ready[v]);
  }
  return std::min(most, options_.max_passes);
}

}  // namespace tessera::mugraph
