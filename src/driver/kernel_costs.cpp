#include "driver/kernel_costs.h"

#include <algorithm>

#include "backend/cpu/channels_last.h"
#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"
#include "ir/build.h"
#include "ir/text.h"
#include "ir/weights.h"
#include "ir/window.h"

namespace tessera {
namespace {

// A program as it is among others: images come from neighbours and go to others with their channels
// last, so that turning them is not part of what a program costs, unless it looks at them
// otherwise.
Graph among_others(const Graph& g) {
  if (std::ranges::none_of(g.ops(), [](const Op& op) { return is_windowed(op.kind); })) return g;
  const auto image = [&](TensorId t) {
    return !g.is_weight(t) && g.type(t).rank() >= 3 && g.type(t).rank() <= 5;
  };
  Graph to(g.name());
  std::vector<TensorId> at(g.tensors().size());
  for (const TensorId t : g.inputs()) {
    const size_t rank = size_t(g.type(t).rank());
    if (!image(t)) {
      at[t.index] = to.add_input(g.type(t), g.tensor(t).name, g.is_weight(t));
      continue;
    }
    Type last = g.type(t);
    for (size_t i = 0; i < rank; i++) last.shape[i] = g.type(t).shape[size_t(to_last(rank)[i])];
    at[t.index] = build::transpose(to, to.add_input(last, g.tensor(t).name), {to_first(rank)});
  }
  copy_ops(g, to, at);
  for (const TensorId t : g.outputs())
    to.add_output(image(t) ? build::transpose(to, at[t.index], {to_last(size_t(g.type(t).rank()))})
                           : at[t.index]);
  return to;
}

}  // namespace

Cost KernelCosts::cost(const Graph& graph) const {
  Cost c;
  for (const double s : by_operator(graph)) c.seconds += s;
  return c;
}

std::vector<double> KernelCosts::by_operator(const Graph& graph) const {
  std::vector<double> seconds(graph.ops().size(), 0);
  const std::vector<bool> once = computed_once(graph);
  const std::vector<bool> follows = s_.computed_with_images(graph);
  for (const AnalyticalModel::KernelCost& k : model_.kernels(graph)) {
    if (once[k.op.index] || (!follows.empty() && follows[k.op.index])) continue;
    seconds[k.op.index] = k.seconds;
    const Op& op = graph.op(k.op);
    if (op.kind != OpKind::Conv) continue;
    Graph alone;
    std::vector<TensorId> at(graph.tensors().size());
    for (const TensorId t : op.inputs)
      if (!at[t.index].valid()) at[t.index] = alone.add_input(graph.type(t));
    copy_op(graph, op, alone, at);
    alone.add_output(at[op.result().index]);
    alone.set_tensor_name(at[op.result().index], "");
    auto [it, fresh] = convolutions_.try_emplace(print(alone));
    if (fresh || !it->second) it->second = s_.known_seconds(alone);
    if (it->second) seconds[k.op.index] = *it->second;
  }
  return seconds;
}

double KernelCosts::copy_seconds(const Type& type) const {
  if (type.shape.size() < 2) return 0;
  Graph g;
  std::vector<int> perm(type.shape.size());
  for (size_t i = 0; i < perm.size(); i++) perm[i] = int(perm.size() - 1 - i);
  g.add_output(build::transpose(g, g.add_input(type), {perm}));
  return model_.cost(g).seconds;
}

std::vector<std::optional<double>> KernelCosts::measured(const std::vector<Graph>& alone,
                                                         double seconds) {
  std::vector<Graph> programs = mapped(alone, [&](const Graph& g) { return among_others(g); });
  std::vector<std::optional<double>> found(programs.size());
  if (s_.place.gpu) return found;
  auto key = [&](const Graph& g) {
    Graph plain = g;
    plain.set_name("g");
    for (size_t i = 0; i < plain.tensors().size(); i++) plain.set_tensor_name(TensorId(i), "");
    std::string weights;
    for (const TensorId t : g.inputs()) weights += g.is_weight(t) ? "w" : "x";
    return sha256_hex("program 2 " + s_.machine_key() + weights + print(plain));
  };
  bool all = true;
  for (size_t i = 0; i < programs.size(); i++) {
    const auto text = s_.cache.find_text(key(programs[i]));
    if (text && std::atof(text->c_str()) > 0) found[i] = std::atof(text->c_str());
    all = all && found[i];
  }
  if (all || seconds <= 0) return found;
  const double until = s_.deadline.spent() + seconds;
  std::vector<std::shared_ptr<Module>> modules;
  std::vector<RaceInputs> inputs;
  std::vector<size_t> which;
  inputs.reserve(programs.size());
  for (size_t i = 0; i < programs.size(); i++) {
    if (s_.deadline.ended()) return found;
    const double left = until - s_.deadline.spent();
    if (left <= 0) break;  // those that are cheapest by the model come first
    try {
      s_.measure_convolutions(programs[i], 0.25 * left);
      modules.push_back(s_.compiled(programs[i]).cpu);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::ToolMissing || e.kind() == ErrorKind::Io) throw;
      continue;
    }
    inputs.emplace_back(programs[i], s_.options.seed);
    which.push_back(i);
  }
  std::vector<const RaceInputs*> of = mapped(inputs, [&](const RaceInputs& x) { return &x; });
  if (modules.empty()) return found;
  Stopwatch watch(s_.report.measure_s);
  const auto timings = race(modules, of, std::min(0.1 * double(modules.size()), seconds), seconds);
  for (size_t i = 0; i < timings.size(); i++) {
    if (timings[i].rounds == 0) continue;
    found[which[i]] = timings[i].min_s;
    s_.cache.store_text(key(programs[which[i]]), significant(timings[i].min_s, 9));
  }
  return found;
}

}  // namespace tessera
