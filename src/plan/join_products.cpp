#include "plan/join_products.h"

#include <algorithm>

#include "ir/build.h"

namespace tessera {

namespace {

// Bytes of the result of joined products, beyond three of them (queries, keys and values).
constexpr int64_t kMostJoined = int64_t{16} << 20;

// A product with a weight, and the bias that alone reads it.
struct WeightProduct {
  OpId product, last;  // last: the bias' sum, or the product
  TensorId bias;       // may be none
  int64_t columns = 0;
};

class Joining {
 public:
  Joining(const Graph& graph, const FusionRules& rules)
      : graph_(graph), found_(graph, rules), to_(graph.name()), map_(graph.tensors().size()),
        output_(graph.tensors().size(), false) {
    for (TensorId t : graph.outputs()) output_[t.index] = true;
  }

  Graph run() {
    const std::map<OpId, std::vector<WeightProduct>> joined = chunks();
    if (joined.empty()) return graph_;
    // Weights first: then they are all there at the first product's place.
    for (const bool once : {true, false}) {
      for (size_t i = 0; i < graph_.ops().size(); ++i) {
        const Op& op = graph_.ops()[i];
        if ((is_input(op.kind) || found_.once(op.result())) != once) continue;
        if (const auto chunk = joined.find(OpId(i)); chunk != joined.end()) emit(chunk->second);
        if (!map_[op.result().index].valid()) copy_op(graph_, op, to_, map_);
      }
    }
    for (TensorId t : graph_.outputs()) to_.add_output(map_[t.index]);
    return without_dead_code(to_);
  }

 private:
  // Products that become one, by the first of them.
  std::map<OpId, std::vector<WeightProduct>> chunks() const {
    std::vector<std::vector<WeightProduct>> all;
    std::map<std::tuple<TensorId, int64_t, AxisParts, int64_t>, size_t> newest;  // by left operand
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const Op& op = graph_.ops()[i];
      if (op.kind != OpKind::Matmul || found_.once(op.result()) || found_.dots(op) ||
          found_.packs(op))
        continue;
      const TensorId right = op.inputs[1];
      const Extents out = found_.shape(op.result());
      const RowGroup* group = found_.of(OpId(i));
      if (!found_.once(right) || found_.shape(right).size() != 2 || out.size() != 2 ||
          (group != nullptr && group->products.size() > 1))
        continue;
      const Strided& view = found_.view(op.inputs[0]);
      const auto [at, first] =
          newest.try_emplace({view.root, view.offset, view.parts(), out[0]}, all.size());
      const WeightProduct linear = with_bias(OpId(i));
      int64_t columns = linear.columns;
      if (!first)
        for (const WeightProduct& x : all[at->second]) columns += x.columns;
      const int64_t bytes = columns * out[0] * size_in_bytes(graph_.type(op.result()).dtype);
      if (!first && (all[at->second].size() < 3 || bytes <= kMostJoined)) {
        all[at->second].push_back(linear);
      } else {
        at->second = all.size();
        all.push_back({linear});
      }
    }
    std::map<OpId, std::vector<WeightProduct>> joined;
    for (std::vector<WeightProduct>& chunk : all)
      if (chunk.size() > 1) joined[chunk[0].product] = std::move(chunk);
    return joined;
  }

  WeightProduct with_bias(OpId id) const {
    const TensorId result = graph_.op(id).result();
    const Extents out = found_.shape(result);
    const WeightProduct plain{id, id, TensorId(), out[1]};
    std::set<TensorId> same = {result};  // under other shapes
    std::vector<OpId> readers;
    for (size_t i = id.index + 1; i < graph_.ops().size(); ++i) {
      const Op& op = graph_.ops()[i];
      if (std::ranges::none_of(op.inputs, [&](TensorId t) { return same.count(t) != 0; })) continue;
      const Strided& view = found_.view(op.result());
      if (view.root == result && view.whole())
        same.insert(op.result());
      else
        readers.emplace_back(i);
    }
    for (TensorId t : same)
      if (output_[t.index]) return plain;
    if (readers.size() != 1 || graph_.op(readers[0]).kind != OpKind::Add) return plain;
    const Op& sum = graph_.op(readers[0]);
    const Extents shape = found_.shape(sum.result());
    for (size_t i = 0; i < 2; ++i) {
      const TensorId bias = sum.inputs[1 - i];
      if (same.count(sum.inputs[i]) == 0 || !found_.once(bias) ||
          product_of(found_.shape(bias)) != out[1])
        continue;
      if (restride(found_.view(bias).over(shape), out) == Extents{0, 1})
        return {id, readers[0], bias, out[1]};
    }
    return plain;
  }

  void emit(const std::vector<WeightProduct>& chunk) {
    std::vector<TensorId> rights, turned, biases;
    for (const WeightProduct& x : chunk) {
      const TensorId right = graph_.op(x.product).inputs[1];
      rights.push_back(map_[right.index]);
      if (graph_.producer(right).kind == OpKind::Transpose)
        turned.push_back(map_[graph_.producer(right).inputs[0].index]);
      if (x.bias.valid()) biases.push_back(x.bias);
    }
    TensorId weights;
    if (turned.size() == rights.size())
      weights = build::transpose(to_, build::concat(to_, turned, AxisAttrs{0}), PermAttrs{{1, 0}});
    else
      weights = build::concat(to_, rights, AxisAttrs{1});
    const TensorId left = map_[graph_.op(chunk[0].product).inputs[0].index];
    TensorId product = build::matmul(to_, {left, weights});
    if (!biases.empty()) product = to_.add(OpKind::Add, {product, joined_bias(chunk, product)});
    int64_t at = 0;
    for (const WeightProduct& x : chunk) {
      const TensorId result = graph_.op(x.product).result(), last = graph_.op(x.last).result();
      const SliceAttrs columns{{0, at}, {found_.shape(result)[0], at + x.columns}, {1, 1}};
      const TensorId part = build::slice(to_, product, columns);
      at += x.columns;
      for (uint32_t i = x.product.index; i < x.last.index; ++i)  // without readers but the sum
        if (found_.view(graph_.ops()[i].result()).root == result)
          map_[graph_.ops()[i].result().index] = part;
      map_[last.index] = part;
      if (graph_.type(last).rank() != 2)
        map_[last.index] = build::reshape(to_, part, ShapeAttrs{graph_.type(last).shape});
    }
  }

  TensorId joined_bias(const std::vector<WeightProduct>& chunk, TensorId product) {
    std::vector<TensorId> biases;
    for (const WeightProduct& x : chunk) {
      const Type type{to_.type(product).dtype, {Dim(x.columns)}};
      if (!x.bias.valid())
        biases.push_back(to_.add_const(Rational(0), type));
      else if (to_.type(map_[x.bias.index]).shape == type.shape)
        biases.push_back(map_[x.bias.index]);
      else
        biases.push_back(build::reshape(to_, map_[x.bias.index], ShapeAttrs{type.shape}));
    }
    return build::concat(to_, biases, AxisAttrs{0});
  }

  const Graph& graph_;
  const RowGroups found_;
  Graph to_;
  std::vector<TensorId> map_;
  std::vector<bool> output_;
};

}  // namespace

Graph join_products(const Graph& graph, const FusionRules& rules) {
  return rules.weights ? Joining(graph, rules).run() : graph;
}

}  // namespace tessera
