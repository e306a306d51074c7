#include "search/mugraph/plans.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <set>

namespace tessera::mugraph {
namespace {

using Pending = std::vector<ValueId>;  // ascending

struct PlanNode {
  Pending pending;
  double spent = 0;
  int32_t parent = -1;
  const std::vector<Kernel>* variants = nullptr;  // the kernel that led here from the parent
  int depth = 0;
};

struct Entry {
  double estimate;
  uint32_t node;
  bool operator>(const Entry& o) const {
    return estimate != o.estimate ? estimate > o.estimate : node > o.node;
  }
};

// Output sets for the next kernel: they contain the pending value of highest rank, so that no
// kernel ever waits for a later one.
std::vector<Pending> output_sets(const Pending& pending) {
  std::vector<Pending> out;
  const size_t n = pending.size() - 1;
  if (n <= 3) {
    for (size_t mask = 0; mask < (size_t(1) << n); ++mask) {
      Pending p;
      for (size_t i = 0; i < n; ++i) {
        if (mask & (size_t(1) << i)) p.push_back(pending[i]);
      }
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
    s += "l" + std::to_string(k.loop) + "]";
  }
  return s;
}

PlanResult find_plans(const Hypergraph& graph, const KernelSearch& kernels, double start,
                      const PlanOptions& options, ThreadPool* pool, KernelCounters& counters) {
  PlanResult result;
  Pending targets;
  for (const Hypergraph::Target& t : graph.targets) {
    if (t.value != kOne) targets.push_back(t.value);
  }
  std::sort(targets.begin(), targets.end());
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  if (targets.empty()) {  // nothing but constants
    result.plans.push_back({});
    return result;
  }

  auto remaining = [&](const Pending& p) { return kernels.remaining(p); };

  double best = start;
  auto worth = [&] { return best * options.slack + 2 * kernels.machine().target().launch_seconds; };
  // Kernels per outputs and loop axis, grouped by loads; the cheapest of a group leads.
  std::map<std::pair<Pending, int>, std::vector<std::vector<Kernel>>> memo;
  std::map<Pending, int> expanded_times;
  std::set<std::string> structures;
  std::vector<PlanNode> nodes;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  nodes.push_back(PlanNode{targets, 0, -1, nullptr, 0});
  queue.push({remaining(targets), 0});

  while (!queue.empty() && int(result.plans.size()) < options.wanted) {
    if ((options.cancel && options.cancel->load(std::memory_order_relaxed)) ||
        (options.out_of_time && options.out_of_time())) {
      result.stopped = true;
      result.complete = false;
      break;
    }
    Entry top = queue.top();
    queue.pop();
    if (top.estimate > worth()) break;
    const PlanNode node = nodes[top.node];
    if (node.pending.empty()) {
      Plan plan;
      std::vector<const std::vector<Kernel>*> variants;
      for (int32_t n = int32_t(top.node); nodes[size_t(n)].parent >= 0;
           n = nodes[size_t(n)].parent) {
        variants.push_back(nodes[size_t(n)].variants);
        plan.kernels.push_back(variants.back()->front());
      }
      plan.seconds = node.spent;
      if (!structures.insert(plan.structure()).second) continue;
      if (plan.seconds < best) {
        best = plan.seconds;
        if (options.improved) options.improved(best);
      }
      // The same plan with another variant of one kernel.
      std::vector<Plan> others;
      for (size_t i = 0; i < variants.size(); ++i) {
        for (size_t v = 1; v < variants[i]->size(); ++v) {
          Plan other = plan;
          other.kernels[i] = (*variants[i])[v];
          other.seconds += other.kernels[i].seconds - plan.kernels[i].seconds;
          others.push_back(std::move(other));
        }
      }
      std::stable_sort(others.begin(), others.end(),
                       [](const Plan& a, const Plan& b) { return a.seconds < b.seconds; });
      if (int(others.size()) > options.per_structure - 1)
        others.resize(size_t(options.per_structure) - 1);
      result.plans.push_back(std::move(plan));
      for (Plan& p : others) result.plans.push_back(std::move(p));
      continue;
    }
    if (node.depth >= options.max_kernels) continue;
    if (expanded_times[node.pending]++ >= options.revisits) continue;
    if (counters.expanded > options.max_steps) {
      result.complete = false;
      ++counters.pruned["step budget"];
      break;
    }
    for (const Pending& outputs : output_sets(node.pending)) {
      Pending rest;
      std::set_difference(node.pending.begin(), node.pending.end(), outputs.begin(), outputs.end(),
                          std::back_inserter(rest));
      std::vector<int> loops = kernels.loop_axes(outputs);
      loops.insert(loops.begin(), -1);
      // Missing kernel sets, one task per loop axis; merged in order. The first round of all finds
      // whole programs in one kernel, which bounds everything after it.
      const bool first = top.node == 0;
      for (int pass = first ? 0 : 1; pass < 2; ++pass) {
        const bool cuts = pass == 1 && node.depth + 1 < options.max_kernels;
        std::vector<int> todo;
        for (int l : loops) {
          if (pass == 0 || !memo.count({outputs, l})) todo.push_back(l);
        }
        // Whole programs in one kernel are wanted even where several kernels are much cheaper.
        const double limit = pass == 0 ? 4 * start : worth() - node.spent - remaining(rest);
        std::vector<std::vector<Kernel>> found(todo.size());
        std::vector<KernelCounters> counted(todo.size());
        auto work = [&](int64_t from, int64_t to) {
          for (int64_t i = from; i < to; ++i) {
            found[size_t(i)] =
                kernels.enumerate(outputs, todo[size_t(i)], limit, cuts, counted[size_t(i)]);
          }
        };
        if (pool && todo.size() > 1)
          pool->parallel_for(int64_t(todo.size()), 1, work);
        else
          work(0, int64_t(todo.size()));
        for (size_t i = 0; i < todo.size(); ++i) {
          counters.add(counted[i]);
          if (pass == 0) {
            if (!rest.empty()) continue;
            for (Kernel& k : found[i]) {
              best = std::min(best, k.seconds);
              Plan plan;
              plan.seconds = k.seconds;
              plan.kernels.push_back(std::move(k));
              result.singles.push_back(std::move(plan));
            }
          } else {
            std::map<std::vector<ValueId>, std::vector<Kernel>> groups;
            for (Kernel& k : found[i]) groups[k.loads].push_back(std::move(k));
            auto& list = memo[{outputs, todo[i]}];
            for (auto& [loads, kernels] : groups) list.push_back(std::move(kernels));
          }
        }
      }
      for (int l : loops) {
        for (const std::vector<Kernel>& group : memo[{outputs, l}]) {
          const Kernel& k = group.front();
          PlanNode next;
          next.pending = rest;
          for (ValueId v : k.loads) {
            if (graph.values[v].view < 0) next.pending.push_back(v);
          }
          std::sort(next.pending.begin(), next.pending.end());
          next.pending.erase(std::unique(next.pending.begin(), next.pending.end()),
                             next.pending.end());
          next.spent = node.spent + k.seconds;
          next.parent = int32_t(top.node);
          next.variants = &group;
          next.depth = node.depth + 1;
          double estimate = next.spent + remaining(next.pending);
          if (estimate > worth()) {
            ++counters.pruned["plan bound"];
            continue;
          }
          nodes.push_back(std::move(next));
          queue.push({estimate, uint32_t(nodes.size() - 1)});
        }
      }
    }
  }
  std::stable_sort(result.plans.begin(), result.plans.end(),
                   [](const Plan& a, const Plan& b) { return a.seconds < b.seconds; });
  return result;
}

}  // namespace tessera::mugraph
