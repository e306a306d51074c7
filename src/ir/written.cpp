#include "ir/written.h"

#include <algorithm>
#include <sstream>

namespace tessera {

std::string WrittenKernel::name() const {
  std::string text = "written " + pattern + " " + source;
  for (int t : operands) text += " " + std::to_string(t);
  return text + " : " + std::to_string(result) + (values.empty() ? "" : " : " + values);
}

std::optional<WrittenKernel> read_written(std::string_view name) {
  if (name.substr(0, 8) != "written ") return std::nullopt;
  std::istringstream in{std::string(name.substr(8))};
  WrittenKernel w;
  in >> w.pattern >> w.source;
  const auto number = [](const std::string& word) {
    const bool digits = !word.empty() && word.size() < 8 &&
                        word.find_first_not_of("0123456789") == std::string::npos;
    return digits ? std::stoi(word) : -1;
  };
  std::string word;
  while (in >> word && word != ":") w.operands.push_back(number(word));
  if (word == ":" && in >> word) w.result = number(word);
  if (in >> word && word == ":")
    while (in >> word) w.values += (w.values.empty() ? "" : " ") + word;
  if (w.name() != name) return std::nullopt;
  return w;
}

std::optional<WrittenKernel> written_kernel(const Graph& g, const Op& op) {
  if (!is_kernel(op.kind) || op.num_results != 1) return std::nullopt;
  const Graph& block = g.body(op);
  std::optional<WrittenKernel> w = read_written(block.name());
  if (!w) return w;
  const auto there = [&](int t) { return t >= 0 && size_t(t) < block.tensors().size(); };
  const bool fits = there(w->result) && block.num_blocks() == 1 && block.loops().empty() &&
                    std::ranges::all_of(w->operands, there);
  return fits ? w : std::nullopt;
}

Graph without_written(const Graph& g, const std::function<bool(const Op&)>& keep) {
  const auto goes = [&](const Op& op) { return written_kernel(g, op) && !(keep && keep(op)); };
  if (std::ranges::none_of(g.ops(), goes)) return g;
  return rewritten(g, [&](const Op& op, Graph& out, std::vector<TensorId>& map) {
    if (!goes(op)) return false;
    const Graph& block = g.body(op);
    std::vector<TensorId> inner(block.tensors().size());
    for (size_t i = 0; i < block.inputs().size(); i++)
      inner[block.inputs()[i].index] = map[op.inputs[i].index];
    for (const Op& o : block.ops())
      if (is_tile(o.kind))
        inner[o.result().index] = inner[o.inputs[0].index];
      else if (!is_input(o.kind))
        copy_op(block, o, out, inner);
    map[op.result().index] = inner[block.outputs()[0].index];
    return true;
  });
}

}  // namespace tessera
