#include "driver/tiles.h"

#include <algorithm>

#include "base/error.h"
#include "ir/validate.h"
#include "ir/written.h"

namespace tessera {
namespace {

// Appends the operators of `from` to `to`, whose inputs are of the types given; throws Error where
// shapes do not fit.
void rebuild(const Graph& from, const std::vector<Type>& input_types, Graph& to) {
  std::vector<TensorId> map(from.tensors().size());
  size_t next_input = 0;
  for (const Op& op : from.ops()) {
    if (is_input(op.kind)) {
      map[op.result().index] =
          to.add_input(input_types[next_input++], from.tensor(op.result()).name);
      continue;
    }
    std::optional<Graph> body;
    if (op.body.valid()) {
      auto types = mapped(op.inputs, [&](TensorId t) { return to.type(map[t.index]); });
      rebuild(from.body(op), types, body.emplace(Graph::thread()));
    }
    copy_op(from, op, to, map, std::move(body));
  }
  for (TensorId t : from.outputs()) to.add_output(map[t.index]);
}

// Largest sensible number of parts per grid dimension and loop: the smallest axis that it splits.
void most_parts(const Graph& body, std::vector<int64_t>& grid, std::vector<int64_t>& loops) {
  grid.assign(body.grid().size(), 0);
  loops.assign(body.loops().size(), 0);
  auto see = [](int64_t& most, const Shape& shape, int axis) {
    if (axis < 0) return;
    const int64_t extent = extents(shape)[size_t(axis)];
    most = most == 0 ? extent : std::min(most, extent);
  };
  for (const Op& op : body.ops()) {
    if (!is_load(op.kind)) continue;
    const IterAttrs& a = body.attrs<IterAttrs>(op);
    const Shape& shape = body.type(op.inputs[0]).shape;
    for (size_t d = 0; d < grid.size(); d++) see(grid[d], shape, a.imap[d]);
    for (size_t d = 0; d < loops.size(); d++) see(loops[d], shape, a.fmap[d]);
  }
}

}  // namespace

std::optional<Graph> retile(const Graph& program, OpId kernel, const std::vector<int64_t>& grid,
                            const std::vector<int64_t>& loops) {
  try {
    const Graph out = map_kernels(program, [&](const Op& op) {
      if (&op != &program.op(kernel)) return program.body(op);
      std::vector<Type> types = mapped(op.inputs, [&](TensorId t) { return program.type(t); });
      Graph other = Graph::block(grid, loops);
      rebuild(program.body(op), types, other);
      return other;
    });
    validate(out);
    return out;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<Graph> retilings(const Graph& program) {
  std::vector<Graph> out;
  for (size_t i = 0; i < program.ops().size(); i++) {
    const Op& op = program.ops()[i];
    if (!is_kernel(op.kind) || written_kernel(program, op)) continue;
    const Graph& body = program.body(op);
    std::vector<int64_t> most_grid, most_loops;
    most_parts(body, most_grid, most_loops);
    auto vary = [&](std::vector<int64_t> grid, std::vector<int64_t> loops, bool of_grid, size_t d,
                    int64_t value) {
      const int64_t now = of_grid ? grid[d] : loops[d];
      const int64_t most = of_grid ? most_grid[d] : most_loops[d];
      value = std::min(value, std::max<int64_t>(most, 1));
      if (value < 1 || value == now) return;
      (of_grid ? grid : loops)[d] = value;
      if (auto g = retile(program, OpId(uint32_t(i)), grid, loops)) out.push_back(std::move(*g));
    };
    for (bool of_grid : {true, false}) {
      const std::vector<int64_t>& extent = of_grid ? body.grid() : body.loops();
      for (size_t d = 0; d < extent.size(); d++) {
        vary(body.grid(), body.loops(), of_grid, d, extent[d] * 2);
        vary(body.grid(), body.loops(), of_grid, d, extent[d] / 2);
      }
    }
  }
  return out;
}

}  // namespace tessera
