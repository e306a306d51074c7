// Programs as steps: regions of bounded size and the operators between them.
#include <algorithm>
#include <map>

#include "search/mugraph/region.h"

namespace tessera::mugraph {
namespace {

constexpr int kMaxContractions = 3;  // matmuls in a row within one region
constexpr int kMaxOperators = 32;    // of one region

}  // namespace

// Eras are separated by kept operators; an era is a sequence of regions of bounded size.
std::vector<Step> partition(const Graph& graph) {
  const size_t n = graph.ops().size();
  std::vector<bool> pure(n, false), skip(n, false);
  std::vector<int> era(n, 0);
  auto producer = [&](TensorId t) { return size_t(graph.tensor(t).producer.index); };
  int last = 0;
  for (size_t i = 0; i < n; ++i) {
    const Op& op = graph.ops()[i];
    skip[i] = is_given(op.kind);
    if (skip[i]) continue;
    pure[i] = transparent(graph, op);
    for (TensorId t : op.inputs) {
      const size_t p = producer(t);
      // What a kept operator reads is complete at the end of its era.
      if (!skip[p]) era[i] = std::max(era[i], era[p] + (pure[p] && !pure[i] ? 1 : 0));
    }
    last = std::max(last, era[i]);
  }
  // An operator that only later eras use moves there, so that nothing is stored for its sake.
  std::vector<int> latest(n, last + 1);
  std::vector<bool> result(n, false);
  for (TensorId t : graph.outputs()) result[producer(t)] = true;
  for (size_t i = n; i-- > 0;) {
    if (skip[i]) continue;
    if (pure[i] && !result[i] && latest[i] <= last) era[i] = std::max(era[i], latest[i]);
    for (TensorId t : graph.ops()[i].inputs) {
      int& of = latest[producer(t)];
      of = std::min(of, pure[i] ? era[i] : era[i] - 1);
    }
  }
  // Regions of an era, numbered so that no operator reads a later one.
  struct Place {
    int region = 0, chain = 0;  // chain: contractions in a row within the region
  };
  std::vector<Place> at(n);
  std::map<std::pair<int, int>, int> size;  // operators by era and region
  std::vector<int> regions(size_t(last) + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    if (!pure[i]) continue;
    Place p;
    for (TensorId t : graph.ops()[i].inputs) {
      const size_t from = producer(t);
      if (!pure[from] || era[from] != era[i]) continue;
      const Place& q = at[from];
      if (q.region > p.region)
        p = q;
      else if (q.region == p.region)
        p.chain = std::max(p.chain, q.chain);
    }
    if (is_product(graph.ops()[i].kind) && ++p.chain > kMaxContractions) {
      ++p.region;
      p.chain = 1;
    }
    while (size[{era[i], p.region}] >= kMaxOperators) {
      ++p.region;
      p.chain = is_product(graph.ops()[i].kind) ? 1 : 0;
    }
    ++size[{era[i], p.region}];
    at[i] = p;
    regions[size_t(era[i])] = std::max(regions[size_t(era[i])], p.region + 1);
  }
  // What leaves its region.
  auto same_region = [&](size_t p, size_t i) {
    return pure[p] && pure[i] && era[p] == era[i] && at[p].region == at[i].region;
  };
  std::vector<bool> leaves(graph.tensors().size(), false);
  for (size_t i = 0; i < n; ++i) {
    for (TensorId t : graph.ops()[i].inputs)
      if (pure[producer(t)] && !same_region(producer(t), i)) leaves[t.index] = true;
  }
  for (TensorId t : graph.outputs())
    if (pure[producer(t)]) leaves[t.index] = true;
  std::map<std::pair<int, int>, std::vector<TensorId>> outputs;
  for (size_t t = 0; t < graph.tensors().size(); ++t) {
    const size_t p = producer(TensorId(t));
    if (leaves[t]) outputs[{era[p], at[p].region}].push_back(TensorId(t));
  }
  std::vector<std::vector<size_t>> kept(size_t(last) + 1);
  for (size_t i = 0; i < n; ++i)
    if (!skip[i] && !pure[i] && graph.ops()[i].num_results > 0) kept[size_t(era[i])].push_back(i);
  std::vector<Step> steps;
  for (int e = 0; e <= last; ++e) {
    for (size_t i : kept[size_t(e)]) {  // kept operators open their era
      Step k;
      k.kept = OpId(i);
      steps.push_back(k);
    }
    for (int r = 0; r < regions[size_t(e)]; ++r) {
      auto it = outputs.find({e, r});
      if (it == outputs.end()) continue;
      Step region;
      region.outputs = it->second;
      steps.push_back(std::move(region));
    }
  }
  return steps;
}

}  // namespace tessera::mugraph
