#include "search/mugraph/plans.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <set>
#include <tuple>

namespace tessera::mugraph {
namespace {

using Pending = std::vector<ValueId>;  // ascending

struct PlanNode {
  Pending pending;
  double spent = 0, estimate = 0;
  int32_t parent = -1;
  const Kernel* kernel = nullptr;  // that led here from the parent
  int depth = 0;
  bool expanded = false;
};

using PlanEntry = std::pair<double, uint32_t>;  // estimate, number of the node

// Output sets for the next kernel: they contain the pending value of highest rank, so that no
// kernel ever waits for a later one.
std::vector<Pending> output_sets(const Pending& pending) {
  std::vector<Pending> out;
  const size_t n = pending.size() - 1;
  if (n <= 3) {
    for (size_t mask = 0; mask < (size_t(1) << n); ++mask) {
      Pending p;
      for (size_t i = 0; i < n; ++i)
        if (mask & (size_t(1) << i)) p.push_back(pending[i]);
      p.push_back(pending[n]);
      out.push_back(std::move(p));
    }
    return out;
  }
  out.push_back({pending[n]});
  for (size_t i = 0; i < n; ++i) out.push_back({pending[i], pending[n]});
  out.push_back(pending);
  return out;
}

}  // namespace

std::string Plan::structure() const {
  std::string s;
  for (const Kernel& k : kernels) {
    s += "[";
    for (ValueId v : k.loads) s += std::to_string(v) + ",";
    s += ">";
    for (ValueId v : k.outputs) s += std::to_string(v) + ",";
    s += "l" + std::to_string(k.loop) + "x" + std::to_string(k.passes);
    s += (k.nested ? "n" + std::to_string(lowest(k.nested)) : "") + "]";
  }
  return s;
}

namespace {

class PlanSearch {
 public:
  PlanSearch(const Hypergraph& graph, const KernelSearch& kernels, double start,
             const PlanOptions& options, ThreadPool* pool, KernelCounters& counters)
      : graph_(graph), kernels_(kernels), options_(options), pool_(pool), counters_(counters),
        best_(4 * start) {}

  PlanResult run(const Pending& targets) {
    singles(targets);
    nodes_.push_back(PlanNode{});
    nodes_[0].pending = targets;
    nodes_[0].estimate = kernels_.remaining(targets);
    queue_.push({nodes_[0].estimate, 0});
    dive();
    int64_t popped = 0, proven = 0;
    while (!queue_.empty() && int(result_.plans.size()) < options_.wanted) {
      if (stopped()) break;
      const auto [estimate, node] = queue_.top();
      queue_.pop();
      if (estimate > worth()) break;
      // Once the cheapest plan is known, a part of the effort so far may go into alternatives.
      ++popped;
      if (result_.plans.empty()) proven = popped;
      if (popped > proven + options_.alternatives + proven / 4) {
        ++counters_.pruned["alternatives"];
        break;
      }
      if (nodes_[node].pending.empty())
        complete(node);
      else if (!expand(node))
        break;
    }
    add_nests(result_.plans);
    add_nests(result_.singles);
    std::ranges::stable_sort(result_.plans, {}, &Plan::seconds);
    return std::move(result_);
  }

 private:
  double worth() const {
    return best_ * options_.slack + options_.launches * kernels_.machine().launch();
  }

  bool stopped() {
    if ((options_.cancel && options_.cancel->load(std::memory_order_relaxed)) ||
        (options_.out_of_time && options_.out_of_time())) {
      result_.stopped = true;
      result_.complete = false;
    }
    return result_.stopped;
  }

  void improve(double seconds) {
    if (seconds >= best_) return;
    best_ = seconds;
    if (options_.improved) options_.improved(best_);
  }

  // Requests in parallel; counted in order.
  std::vector<std::vector<Kernel>> enumerate(const std::vector<KernelSearch::Request>& requests) {
    std::vector<std::vector<Kernel>> found(requests.size());
    std::vector<KernelCounters> counted(requests.size());
    parallel_for(requests.size() > 1 ? pool_ : nullptr, int64_t(requests.size()), 1,
                 [&](int64_t from, int64_t to) {
                   for (int64_t i = from; i < to; ++i)
                     found[size_t(i)] = kernels_.enumerate(requests[size_t(i)], counted[size_t(i)]);
                 });
    for (const KernelCounters& c : counted) counters_.add(c);
    return found;
  }

  std::vector<int> loops(const Pending& outputs) const {
    std::vector<int> out = kernels_.loop_axes(outputs);
    out.insert(out.begin(), -1);
    return out;
  }

  // Whole programs in one kernel: wanted even where several kernels are much cheaper, and a bound
  // on everything after them.
  void singles(const Pending& targets) {
    std::vector<KernelSearch::Request> requests;
    for (int l : loops(targets)) {
      KernelSearch::Request r;
      r.outputs = targets;
      r.loop = l;
      r.limit = best_;
      r.variants = options_.per_structure;
      requests.push_back(std::move(r));
    }
    auto keep = [&](std::vector<std::vector<Kernel>> all) {
      for (std::vector<Kernel>& found : all) {
        for (Kernel& k : found) {
          improve(k.seconds);
          Plan plan;
          plan.seconds = k.seconds;
          plan.kernels.push_back(std::move(k));
          result_.singles.push_back(std::move(plan));
        }
      }
    };
    keep(enumerate(requests));
    // Several passes must beat what one pass can do.
    std::vector<KernelSearch::Request> more;
    for (KernelSearch::Request& r : requests) {
      r.passes = kernels_.passes(targets, r.loop);
      r.limit = best_;
      if (r.passes > 1) more.push_back(r);
    }
    keep(enumerate(more));
  }

  // The most promising child again and again: an early bound on what is worth looking at.
  void dive() {
    uint32_t at = 0;
    for (int depth = 0; depth < options_.max_kernels; ++depth) {
      const uint32_t first = uint32_t(nodes_.size());
      if (stopped() || !expand(at)) return;
      uint32_t next = first;
      for (uint32_t n = first; n < nodes_.size(); ++n) {
        const PlanNode &a = nodes_[n], &b = nodes_[next];
        if (std::pair(a.estimate, a.pending.size()) < std::pair(b.estimate, b.pending.size()))
          next = n;
      }
      if (next == nodes_.size()) return;
      at = next;
      if (nodes_[at].pending.empty()) return improve(nodes_[at].spent);
    }
  }

  // Plans again with a second loop in one of their kernels, where that is cheaper.
  void add_nests(std::vector<Plan>& plans) {
    for (size_t p = 0, n = plans.size(); p < n; ++p) {
      for (size_t i = 0; i < plans[p].kernels.size(); ++i) {
        const Kernel& k = plans[p].kernels[i];
        if (!kernels_.is_tight(k)) continue;
        const auto [it, fresh] = nests_.emplace(std::pair(k.loop, k.edges), std::nullopt);
        if (fresh) it->second = kernels_.nest(k, counters_);
        const std::optional<Kernel>& nested = it->second;
        if (!nested || nested->outputs != k.outputs || nested->loads != k.loads ||
            nested->seconds >= k.seconds * (1 - 1e-9))
          continue;
        Plan other = plans[p];
        other.seconds += nested->seconds - k.seconds;
        other.kernels[i] = *nested;
        plans.push_back(std::move(other));
      }
    }
  }

  using Asked = std::tuple<Pending, int, int, bool>;  // outputs, loop axis, passes, cuts
  // A kernel set: what was asked for and what was found.
  struct Known {
    double limit = 0;
    const std::vector<Kernel>* kernels = nullptr;
  };

  // Adds the plans that continue with one more kernel; false where the budget is spent.
  bool expand(uint32_t index) {
    const PlanNode node = nodes_[index];
    if (node.expanded || node.depth >= options_.max_kernels) return true;
    nodes_[index].expanded = true;
    if (expanded_times_[node.pending]++ >= options_.revisits) return true;
    if (counters_.expanded > options_.max_steps) {
      result_.complete = false;
      ++counters_.pruned["step budget"];
      return false;
    }
    const bool cuts = node.depth + 1 < options_.max_kernels;
    struct Step {
      Pending rest;
      Asked key;
    };
    std::vector<Step> steps;
    std::vector<KernelSearch::Request> requests;
    std::vector<Asked> asked;
    for (const Pending& outputs : output_sets(node.pending)) {
      Pending rest;
      std::set_difference(node.pending.begin(), node.pending.end(), outputs.begin(), outputs.end(),
                          std::back_inserter(rest));
      const double limit = worth() - node.spent - kernels_.remaining(rest);
      std::vector<std::pair<int, int>> ways;  // loop axis, passes
      for (int l : loops(outputs)) {
        ways.push_back({l, 1});
        if (const int n = kernels_.passes(outputs, l); n > 1) ways.push_back({l, n});
      }
      for (const auto& [l, passes] : ways) {
        steps.push_back({rest, {outputs, l, passes, cuts}});
        Known& known = known_[steps.back().key];
        if (known.kernels && limit <= known.limit * (1 + 1e-9)) continue;
        known.limit = limit;
        KernelSearch::Request r;
        r.outputs = outputs;
        r.loop = l;
        r.passes = passes;
        r.limit = limit;
        r.cuts = cuts ? KernelSearch::Cuts::Any : KernelSearch::Cuts::None;
        requests.push_back(std::move(r));
        asked.push_back(steps.back().key);
      }
    }
    std::vector<std::vector<Kernel>> found = enumerate(requests);
    for (size_t i = 0; i < found.size(); ++i) {
      kept_.push_back(std::move(found[i]));
      known_[asked[i]].kernels = &kept_.back();
    }
    for (const Step& step : steps) {
      for (const Kernel& k : *known_[step.key].kernels) {
        PlanNode next;
        next.pending = step.rest;
        for (ValueId v : k.loads)
          if (graph_.values[v].view < 0) next.pending.push_back(v);
        std::ranges::sort(next.pending);
        next.pending.erase(std::unique(next.pending.begin(), next.pending.end()),
                           next.pending.end());
        next.spent = node.spent + k.seconds;
        next.parent = int32_t(index);
        next.kernel = &k;
        next.depth = node.depth + 1;
        next.estimate = next.spent + kernels_.remaining(next.pending);
        if (next.estimate > worth()) {
          ++counters_.pruned["plan bound"];
          continue;
        }
        queue_.push({next.estimate, uint32_t(nodes_.size())});
        nodes_.push_back(std::move(next));
      }
    }
    return true;
  }

  // A finished plan, and the same plan with another variant of one kernel.
  void complete(uint32_t index) {
    Plan plan;
    for (int32_t n = int32_t(index); nodes_[size_t(n)].parent >= 0; n = nodes_[size_t(n)].parent)
      plan.kernels.push_back(*nodes_[size_t(n)].kernel);
    plan.seconds = nodes_[index].spent;
    if (!structures_.insert(plan.structure()).second) return;
    improve(plan.seconds);
    std::vector<Plan> others;
    for (size_t i = 0; i < plan.kernels.size() && options_.per_structure > 1; ++i) {
      const Kernel k = plan.kernels[i];
      Plan single;
      single.kernels.push_back(k);
      auto [it, fresh] = variants_.emplace(single.structure(), std::vector<Kernel>{});
      if (fresh) {
        KernelSearch::Request r;
        r.outputs = k.outputs;
        r.loop = k.loop;
        r.passes = k.passes;
        r.limit = 2 * k.seconds;
        r.cuts = KernelSearch::Cuts::Given;
        r.loads = k.loads;
        r.variants = options_.per_structure;
        it->second = kernels_.enumerate(r, counters_);
      }
      for (const Kernel& v : it->second) {
        if (v.edges == k.edges) continue;
        Plan other = plan;
        other.kernels[i] = v;
        other.seconds += v.seconds - k.seconds;
        others.push_back(std::move(other));
      }
    }
    std::ranges::stable_sort(others, {}, &Plan::seconds);
    if (int(others.size()) > options_.per_structure - 1)
      others.resize(size_t(options_.per_structure) - 1);
    result_.plans.push_back(std::move(plan));
    for (Plan& p : others) result_.plans.push_back(std::move(p));
  }

  const Hypergraph& graph_;
  const KernelSearch& kernels_;
  const PlanOptions& options_;
  ThreadPool* pool_;
  KernelCounters& counters_;
  PlanResult result_;
  double best_;
  std::deque<std::vector<Kernel>> kept_;  // nodes point into these
  std::map<Asked, Known> known_;
  std::map<std::string, std::vector<Kernel>> variants_;
  std::map<std::pair<int, std::vector<uint32_t>>, std::optional<Kernel>> nests_;  // by loop, edges
  std::map<Pending, int> expanded_times_;
  std::set<std::string> structures_;
  std::vector<PlanNode> nodes_;
  std::priority_queue<PlanEntry, std::vector<PlanEntry>, std::greater<>> queue_;
};

}  // namespace

PlanResult find_plans(const Hypergraph& graph, const KernelSearch& kernels, double start,
                      const PlanOptions& options, ThreadPool* pool, KernelCounters& counters) {
  Pending targets;
  for (const Hypergraph::Target& t : graph.targets)
    if (t.value != kOne) targets.push_back(t.value);
  std::ranges::sort(targets);
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  if (targets.empty()) {  // nothing but constants
    PlanResult result;
    result.plans.push_back({});
    return result;
  }
  return PlanSearch(graph, kernels, start, options, pool, counters).run(targets);
}

}  // namespace tessera::mugraph
