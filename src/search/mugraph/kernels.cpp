#include "search/mugraph/kernels.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/interruption.h"
#include "ir/block.h"

namespace tessera::mugraph {

// A set of values.
struct Bits {
  std::array<uint64_t, kMaxValues / 64> words{};
  bool operator[](size_t i) const { return (words[i / 64] >> (i % 64)) & 1; }
  void set(size_t i) { words[i / 64] |= uint64_t(1) << (i % 64); }
  void reset(size_t i) { words[i / 64] &= ~(uint64_t(1) << (i % 64)); }
  friend bool operator==(const Bits&, const Bits&) = default;
};

// Demanded values by the number of passes that may come before: a value outside the loop must be
// there after so many, a value inside it in one of so many. Of several demands the least counts.
using Demands = std::array<Bits, kMaxPasses + 1>;

struct DemandKey {
  Demands open;
  Bits loads;
  friend bool operator==(const DemandKey&, const DemandKey&) = default;
};
struct DemandKeyHash {
  size_t operator()(const DemandKey& k) const {
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
using ChainEntry = std::pair<double, uint32_t>;  // bound, number of the state

// Passes as counted from the first one, which comes after nothing.
static uint8_t pass_bit(int pass) { return uint8_t(1u << (pass - 1)); }

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
      for (ValueId u : e.operands()) {
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
      double all = most_of(edge_floor_[k], e.operands(), [&](ValueId u) { return floor_[u]; });
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

std::vector<char> KernelSearch::derive(const std::vector<ValueId>& outputs) const {
  std::vector<char> from(graph_.values.size(), 0);
  std::vector<ValueId> todo(outputs.begin(), outputs.end());
  while (!todo.empty()) {
    const ValueId v = todo.back();
    todo.pop_back();
    if (from[v]) continue;
    from[v] = 1;
    for (uint32_t k : graph_.producers[v])
      for (ValueId u : graph_.edges[k].operands()) todo.push_back(u);
  }
  return from;
}

std::vector<int> KernelSearch::loop_axes(const std::vector<ValueId>& outputs) const {
  AxisMask mask = 0;
  const std::vector<char> from = derive(outputs);
  for (ValueId v = 0; v < from.size(); ++v)
    if (from[v]) mask |= graph_.values[v].axes;
  std::vector<int> out;
  for (; mask; mask &= mask - 1) {
    const int a = lowest(mask);
    if (region_.whole_of(a) < 0 && region_.axes[size_t(a)].extent >= 4) out.push_back(a);
  }
  return out;
}

// Best first: from the outputs backwards, one value at a time, until all are loaded.
class KernelSearch::Enumeration {
 public:
  Enumeration(const KernelSearch& search, const Request& request, KernelCounters& counters)
      : search_(search), graph_(search.graph_), options_(search.options_), request_(request),
        counters_(counters), cuts_(request.cuts != Cuts::None),
        variants_(size_t(std::max(1, request.variants))) {
    for (ValueId v : request.loads) loadable_.set(v);
    for (ValueId v : request.outputs) is_output_.set(v);
  }

  std::vector<Kernel> run() {
    // Partial results need a grid over their parts, which all outputs must have.
    frame_.outputs = request_.outputs;
    if (!search_.set_loop(frame_, request_.loop)) return {};
    for (const Split& s : search_.splits_)
      if (frame_.varies & s.parts) inner_ |= s.inside;
    State start;
    for (ValueId v : request_.outputs) {
      demand(start, v, request_.passes);
      start.traffic += search_.store_[v];
      ++start.operators;
    }
    push(start);
    int64_t expansions = 0;
    while (!queue_.empty()) {
      const State s = states_[queue_.top().second];
      queue_.pop();
      if (options_.bound_rule && s.bound > request_.limit) break;
      ++counters_.expanded;
      if (++expansions > options_.max_expansions) {
        ++counters_.pruned["expansion limit"];
        break;
      }
      const ValueId v = highest_open(s);
      if (v != kOne) {
        expand(s, v);
        continue;
      }
      finish(s);
      if (complete_ >= options_.max_graphs) {
        ++counters_.pruned["graph limit"];
        break;
      }
    }
    return best();
  }

 private:
  bool allowed(const Edge& e) const {
    const AxisMask parts = frame_.parts;
    if (e.bits & parts) return false;
    for (const Split& s : search_.splits_) {
      if ((e.bits & s.inside) && !(e.bits & s.parts) && !((parts & s.parts) || (inner_ & s.inside)))
        return false;
      // A partial result that is a sum by itself accumulates at once.
      if ((inner_ & s.inside) && e.op == EdgeOp::Sum && e.bits == s.parts &&
          search_.only_sums_[e.in[0]])
        return false;
    }
    return true;
  }
  bool changes(ValueId v) const { return (graph_.values[v].axes & frame_.varies) != 0; }
  // Another kernel may store it.
  bool may_cut(ValueId v) const { return cuts_ && !is_output_[v]; }

  void demand(State& s, ValueId v, int after) const {
    if (v == kOne) return;
    if (graph_.values[v].view >= 0) {
      if (!s.loads[v]) {
        s.loads.set(v);
        s.traffic += search_.load_[v];
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
    s.compute_open += may_cut(v) ? 0 : search_.work_[v];
    s.open[size_t(after)].set(v);
  }

  void push(State s) {
    interruption_point();
    const double roof = search_.machine_.bound(s.compute + s.compute_open, s.traffic);
    s.bound = std::max(roof, s.floor) + s.elsewhere();
    if (options_.bound_rule && s.bound > request_.limit) {
      ++counters_.pruned["bound"];
      return;
    }
    if (options_.max_operators && s.operators > *options_.max_operators) {
      ++counters_.pruned["operator limit"];
      return;
    }
    if (options_.dominance_rule) {
      std::vector<double>& costs = seen_[{s.open, s.loads}];
      double cost = roof + s.elsewhere() + 1e-6 * s.compute;
      if (costs.size() >= variants_ && cost >= *std::ranges::max_element(costs)) {
        ++counters_.pruned["dominated"];
        return;
      }
      if (costs.size() >= variants_)
        *std::ranges::max_element(costs) = cost;
      else
        costs.push_back(cost);
    }
    queue_.push({s.bound, uint32_t(states_.size())});
    states_.push_back(std::move(s));
  }

  static ValueId highest_open(const State& s) {
    for (size_t w = s.loads.words.size(); w-- > 0;) {
      uint64_t open = 0;
      for (const Bits& b : s.open) open |= b.words[w];
      if (open) return ValueId(w * 64 + 63 - size_t(__builtin_clzll(open)));
    }
    return kOne;
  }

  // Computes the open value, in every way.
  void expand(const State& s, ValueId v) {
    int after = 0;
    while (!s.open[size_t(after)][v]) ++after;
    State base = s;
    base.open[size_t(after)].reset(v);
    if (!may_cut(v)) base.compute_open -= search_.work_[v];
    if (may_cut(v) && s.cuts < options_.max_cuts && !(search_.partial_axes(v) & frame_.varies) &&
        (request_.cuts == Cuts::Any || loadable_[v])) {
      State t = base;
      t.loads.set(v);
      t.traffic += search_.load_[v];
      ++t.cuts;
      t.last += search_.remote_[v];
      t.way = std::max(t.way, search_.floor_[v]);
      ++t.operators;
      push(std::move(t));
    }
    for (uint32_t k : graph_.producers[v]) {
      const Edge& e = graph_.edges[k];
      if (!allowed(e)) continue;
      const bool over_loop = (e.bits & frame_.folds) != 0;
      if (over_loop && after == 0) continue;
      State t = base;
      for (ValueId u : e.operands())
        demand(t, u, !changes(u) && (changes(v) || over_loop) ? after - 1 : after);
      t.compute += search_.edge_work_[k];
      t.floor = std::max(t.floor, search_.edge_floor_[k]);
      t.operators += 1 + (over_loop ? 1 : 0);
      chain_.push_back({k, s.chain});
      t.chain = int32_t(chain_.size()) - 1;
      push(std::move(t));
    }
  }

  // All is loaded: chooses tiles and keeps the kernel if it is one of the cheapest with its loads.
  void finish(const State& s) {
    Kernel k = frame_;
    for (ValueId u = 1; u < graph_.values.size(); ++u)
      if (s.loads[u]) k.loads.push_back(u);
    for (int32_t c = s.chain; c >= 0; c = chain_[size_t(c)].previous)
      k.edges.push_back(chain_[size_t(c)].edge);
    k.passes = passes_of(search_.phases(k));
    if (request_.passes > 1 && k.passes == 1) return;  // found without them
    k.bound = s.bound;
    k.operators = s.operators;
    const bool iterates = std::ranges::any_of(k.loads, [&](ValueId v) { return changes(v); });
    if (k.loads.empty() || (k.varies && !iterates)) return;  // nothing to iterate over
    if (request_.cuts == Cuts::Given && k.loads != request_.loads) return;
    ++counters_.graphs;
    ++complete_;
    std::vector<Kernel>& same = found_[k.loads];
    const bool full = same.size() >= variants_;
    if (full && k.bound - s.elsewhere() >= same.back().seconds) {
      ++counters_.pruned["bound"];
    } else if (search_.choose_tiles(k, counters_, 1, same.empty() ? nullptr : &same.front(),
                                    full ? 1.2 * same.back().seconds : INFINITY)) {
      keep(same, std::move(k));
    } else {
      std::optional<Kernel> nested;
      if (search_.is_tight(k)) nested = search_.nest(k, counters_);
      if (nested && (!full || nested->seconds < same.back().seconds))
        keep(same, std::move(*nested));
      else
        ++counters_.pruned["memory"];
    }
  }

  static void sort(std::vector<Kernel>& kernels) {
    std::ranges::stable_sort(kernels, {}, &Kernel::seconds);
  }
  void keep(std::vector<Kernel>& same, Kernel k) const {
    same.push_back(std::move(k));
    sort(same);
    if (same.size() > variants_) same.pop_back();
  }

  // A kernel that needs more cuts than another and is no cheaper is never better.
  bool is_dominated(const std::vector<ValueId>& loads, const Kernel& kernel) const {
    auto cut_set = [&](const std::vector<ValueId>& all) {
      return those(all, [&](ValueId v) { return graph_.values[v].view < 0; });
    };
    const std::vector<ValueId> mine = cut_set(loads);
    return std::ranges::any_of(found_, [&](const auto& other) {
      const std::vector<ValueId> theirs = cut_set(other.first);
      return theirs.size() < mine.size() && !other.second.empty() &&
             other.second[0].seconds <= kernel.seconds && std::ranges::includes(mine, theirs);
    });
  }

  std::vector<Kernel> best() const {
    std::vector<Kernel> out;
    for (const auto& [loads, kernels] : found_) {
      if (options_.dominance_rule && request_.cuts == Cuts::Any && !kernels.empty() &&
          is_dominated(loads, kernels[0])) {
        ++counters_.pruned["more cuts, no cheaper"];
        continue;
      }
      out.insert(out.end(), kernels.begin(), kernels.end());
    }
    sort(out);
    return out;
  }

  const KernelSearch& search_;
  const Hypergraph& graph_;
  const KernelOptions& options_;
  const Request& request_;
  KernelCounters& counters_;
  const bool cuts_;
  const size_t variants_;
  Bits loadable_, is_output_;
  Kernel frame_;        // without loads and operations
  AxisMask inner_ = 0;  // reductions over these alone leave partial results inside the loop
  std::vector<State> states_;
  std::vector<ChainNode> chain_;
  std::priority_queue<ChainEntry, std::vector<ChainEntry>, std::greater<>> queue_;
  std::unordered_map<DemandKey, std::vector<double>, DemandKeyHash>
      seen_;  // dominance, per open set and loads
  std::map<std::vector<ValueId>, std::vector<Kernel>> found_;
  int complete_ = 0;
};

std::vector<Kernel> KernelSearch::enumerate(const Request& request,
                                            KernelCounters& counters) const {
  return Enumeration(*this, request, counters).run();
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
    for (ValueId u : e.operands()) {
      auto it = ready.find(u);
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
    for (ValueId u : e.operands()) {
      auto it = out.find(u);
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
  const std::vector<char> wanted = derive(outputs);
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
      for (ValueId u : e.operands()) {
        const bool outside = !(graph_.values[u].axes & k.varies);
        ready[v] = std::max({ready[v], in_loop ? 1 : 0, ready[u] + (in_loop && outside ? 1 : 0)});
      }
    }
    most = std::max(most, ready[v]);
  }
  return std::min(most, options_.max_passes);
}

}  // namespace tessera::mugraph
