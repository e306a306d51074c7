#include "backend/lower.h"

#include <algorithm>

#include "base/error.h"
#include "ir/build.h"
#include "plan/strides.h"

namespace tessera {
namespace {

GridMap grid_on(int axis) {
  GridMap map = kNoGrid;
  map[0] = int8_t(axis);
  return map;
}

// How many blocks to cut an axis of `extent` into: each at least `least` long.
int64_t parts(int64_t extent, int64_t least) {
  return std::max<int64_t>(1, extent / std::max<int64_t>(1, least));
}

Graph lower_reduction(const Graph& graph, const Op& op, const Lowering& lowering) {
  const Type& x = graph.type(op.inputs[0]);
  const auto& a = std::get<ReduceAttrs>(op.attrs);
  // Merge neighbouring axes that are both kept or both reduced.
  std::vector<int64_t> shape;
  std::vector<bool> gone;
  const std::vector<int64_t> whole = extents(x.shape);
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] == 1) continue;
    const bool reduced = std::ranges::binary_search(a.axes, int(i));
    if (!shape.empty() && gone.back() == reduced) {
      shape.back() *= whole[i];
    } else {
      shape.push_back(whole[i]);
      gone.push_back(reduced);
    }
  }
  if (std::ranges::find(gone, true) == gone.end()) {  // only axes of extent 1
    shape.push_back(1);
    gone.push_back(true);
  }
  const int64_t total = product_of(shape);
  // Split the longest kept axis; the innermost one not below whole vectors.
  int axis = -1;
  for (size_t i = 0; i < shape.size(); ++i)
    if (!gone[i] && (axis < 0 || shape[i] > shape[size_t(axis)])) axis = int(i);
  int64_t blocks = 1;
  if (axis >= 0) {
    const int64_t n = shape[size_t(axis)];
    int64_t least = std::max<int64_t>(1, lowering.block_elements / std::max<int64_t>(1, total / n));
    if (axis + 1 == int(shape.size())) least = std::max<int64_t>(least, 64);
    blocks = parts(n, least);
  }
  Graph block = Graph::block({blocks}, {});
  const TensorId input = block.add_input({x.dtype, shape_of(shape)});
  IterAttrs iter;
  if (blocks > 1) iter.imap = grid_on(axis);
  ReduceAttrs reduce;
  std::vector<int64_t> result;
  SaveAttrs save;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (gone[i]) {
      reduce.axes.push_back(int(i));
    } else {
      if (blocks > 1 && int(i) == axis) save.omap = grid_on(int(result.size()));
      result.push_back(shape[i]);
    }
  }
  save.type = {x.dtype, shape_of(result)};
  const TensorId tile = build::iter(block, input, iter);
  const TensorId sum = block.add(op.kind, {tile}, reduce);
  block.add_output(build::save(block, sum, save));
  return block;
}

Graph lower_cumsum(const Graph& graph, const Op& op, const Lowering& lowering) {
  const Type& x = graph.type(op.inputs[0]);
  const int along = std::get<AxisAttrs>(op.attrs).axis;
  const std::vector<int64_t> whole = extents(x.shape);
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (int(i) < along) outer *= whole[i];
    if (int(i) > along) inner *= whole[i];
  }
  const int64_t n = whole[size_t(along)];
  const Type type{x.dtype, shape_of({outer, n, inner})};
  const bool by_outer = outer > 1;
  const int64_t blocks = by_outer
                             ? parts(outer, lowering.block_elements / (n * inner))
                             : parts(inner, std::max<int64_t>(64, lowering.block_elements / n));
  Graph block = Graph::block({blocks}, {});
  const TensorId input = block.add_input(type);
  IterAttrs iter;
  SaveAttrs save;
  save.type = type;
  if (blocks > 1) iter.imap = save.omap = grid_on(by_outer ? 0 : 2);
  const TensorId tile = build::iter(block, input, iter);
  const TensorId sum = block.add(OpKind::Cumsum, {tile}, AxisAttrs{1});
  block.add_output(build::save(block, sum, save));
  return block;
}

Graph lower_product(const Graph& graph, const Op& op, const Lowering& lowering) {
  const bool two = op.kind == OpKind::ConcatMatmul;
  const Type& x = graph.type(op.inputs[0]);
  const Type& result = graph.type(op.result());
  auto shapes = mapped(op.inputs, [&](TensorId t) { return extents(graph.type(t).shape); });
  std::vector<int64_t> out = extents(result.shape);
  const auto batch_of = [](const std::vector<int64_t>& s) {
    return std::vector<int64_t>(s.begin(), s.end() - 2);
  };
  // Leading axes: folded into the rows where the right operand has none, merged into one where
  // all agree, otherwise left for the block to walk through.
  const size_t lefts = two ? 2 : 1;
  bool right_shared = true, all_equal = true;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::vector<int64_t> b = batch_of(shapes[i]);
    if (i < lefts)
      right_shared = right_shared && product_of(b) == product_of(batch_of(out));
    else
      right_shared = right_shared && product_of(b) == 1;
    all_equal = all_equal && product_of(b) == product_of(batch_of(out));
  }
  if (right_shared) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      auto& s = shapes[i];
      s = {product_of(batch_of(s)) * s[s.size() - 2], s.back()};
    }
    out = {product_of(batch_of(out)) * out[out.size() - 2], out.back()};
  } else if (all_equal) {
    for (auto& s : shapes) s = {product_of(batch_of(s)), s[s.size() - 2], s.back()};
    out = {product_of(batch_of(out)), out[out.size() - 2], out.back()};
  }
  const bool batched = !right_shared && all_equal;
  const int rank = int(out.size());
  const int64_t m = out[out.size() - 2], n = out.back();
  const int64_t k = shapes[0].back();
  const int64_t batch = batched ? out[0] : 1;
  ProductTiles t = lowering.split(x.dtype, batch, m, n, k);
  if (two) t.iterations = 1;  // the two products may have different depths
  Graph block =
      Graph::block({batch, t.row_blocks, t.column_blocks},
                   t.iterations > 1 ? std::vector<int64_t>{t.iterations} : std::vector<int64_t>{});
  std::vector<TensorId> tiles, inputs;
  for (size_t i = 0; i < shapes.size(); ++i)
    inputs.push_back(block.add_input({x.dtype, shape_of(shapes[i])}));
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int r = int(shapes[i].size());
    IterAttrs iter;
    if (batched && batch > 1) iter.imap[0] = 0;
    const bool left = i < lefts;
    if (left && t.row_blocks > 1) iter.imap[1] = int8_t(r - 2);
    if (!left && t.column_blocks > 1) iter.imap[2] = int8_t(r - 1);
    if (t.iterations > 1) iter.fmap[0] = int8_t(left ? r - 1 : r - 2);
    tiles.push_back(build::iter(block, inputs[i], iter));
  }
  TensorId product = block.add(op.kind, tiles);
  if (t.iterations > 1) {
    AccumAttrs accum;
    accum.loops = {0};
    product = build::accum(block, product, accum);
  }
  SaveAttrs save;
  save.type = {result.dtype, shape_of(out)};
  if (batched && batch > 1) save.omap[0] = 0;
  if (t.row_blocks > 1) save.omap[1] = int8_t(rank - 2);
  if (t.column_blocks > 1) save.omap[2] = int8_t(rank - 1);
  block.add_output(build::save(block, product, save));
  return block;
}

}  // namespace

std::optional<Graph> lower_to_block(const Graph& graph, const Op& op, const Lowering& lowering) {
  if (is_reduction(op.kind)) return lower_reduction(graph, op, lowering);
  if (is_scan(op.kind)) return lower_cumsum(graph, op, lowering);
  if (is_product(op.kind)) return lower_product(graph, op, lowering);
  return std::nullopt;
}

void require_runnable(const Graph& graph) {
  if (graph.level() != Level::Kernel)
    bad_input(std::string("only kernel graphs can be run, not a ") + name(graph.level()) +
              " graph");
  for (const Tensor& t : graph.tensors())
    if (!is_static(t.type.shape))
      throw Error(ErrorKind::Unsupported, "code needs known extents, but a tensor is " +
                                              t.type.str() + "; bind its symbols first");
}

}  // namespace tessera
