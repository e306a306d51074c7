#include "plan/fuse.h"

#include <algorithm>

#include "plan/join_products.h"
#include "plan/layout.h"
#include "plan/row_kernel.h"

namespace tessera {
namespace {

// Emits a graph's operators into another, groups as kernels, and only what is wanted.
class Fusion {
 public:
  Fusion(const Graph& graph, const FusionRules& rules)
      : graph_(graph), rules_(rules), found_(graph, rules), output_(graph.tensors().size(), false) {
    for (TensorId t : graph.outputs()) output_[t.index] = true;
    for (const RowGroup& g : found_.groups()) kernel_.push_back(worth(g));
  }

  Graph run() {
    while (!emitted()) {  // until all groups that are left can be kernels
    }
    if (results_.empty() && cuts_.empty()) return graph_;
    for (TensorId t : graph_.outputs()) to_->graph.add_output(to_->map[t.index]);
    return std::move(to_->graph);
  }

 private:
  // Whether a kernel beats the operators: several of them, or operands that lie elsewise and are no
  // slices, which operators read where they lie.
  bool worth(const RowGroup& g) const {
    if (g.members.size() != 1) return !g.members.empty();
    const Op& only = graph_.op(g.members[0]);
    if (found_.dots(only) || found_.packs(only)) return true;
    std::vector<TensorId> inputs = graph_.op(g.members[0]).inputs;
    // Blocks of rows of one product would each arrange its right operand.
    if (!g.products.empty() && g.rows.size() == 1) inputs.pop_back();
    return std::ranges::any_of(inputs, [&](TensorId t) {
      const Strided& view = found_.view(t);
      const auto slice = slice_view(graph_, t);
      return !view.whole() && !found_.once(view.root) && !(slice && slice->whole == view.root);
    });
  }

  // A group that becomes a kernel, or an operator.
  struct Unit {
    const RowGroup* group = nullptr;
    OpId op;
    friend auto operator<=>(const Unit&, const Unit&) = default;
  };

  const RowGroup* kernel_of(OpId op) const {
    const RowGroup* g = found_.of(op);
    return g != nullptr && kernel_[number(*g)] ? g : nullptr;
  }
  size_t number(const RowGroup& g) const { return size_t(&g - found_.groups().data()); }

  bool emitted() {
    to_.emplace(graph_);
    results_.clear();
    cuts_.clear();
    for (TensorId t : graph_.inputs()) copy_op(graph_, graph_.producer(t), to_->graph, to_->map);
    for (const Unit& unit : order()) {
      if (emit(unit)) continue;
      kernel_[number(*unit.group)] = false;
      return false;
    }
    return true;
  }

  // Units in an order in which they can be emitted: operands first.
  std::vector<Unit> order() {
    std::vector<Unit> order;
    std::set<Unit> seen;
    std::vector<std::pair<Unit, bool>> stack;
    const auto want = [&](TensorId t) {
      const OpId maker = graph_.tensor(t).producer;
      if (is_input(graph_.op(maker).kind)) return;
      Unit unit{saves(t), maker};
      if (unit.group != nullptr) {
        unit.op = OpId();
        std::vector<TensorId>& results = results_[unit.group];
        if (std::ranges::find(results, t) == results.end()) results.push_back(t);
      } else if (auto cut = cut_of(t)) {
        cuts_[maker.index] = *cut;
      }
      stack.emplace_back(unit, false);
    };
    for (size_t i = graph_.outputs().size(); i-- > 0;) want(graph_.outputs()[i]);
    while (!stack.empty()) {
      const auto [unit, done] = stack.back();
      stack.pop_back();
      if (done) {
        order.push_back(unit);
      } else if (seen.insert(unit).second) {
        stack.emplace_back(unit, true);
        for (TensorId t : reads(unit)) want(t);
      }
    }
    return order;
  }

  // The group that writes a tensor: its maker's, or that of what it is a rearrangement of.
  const RowGroup* saves(TensorId t) const {
    const OpId maker = graph_.tensor(t).producer;
    if (const RowGroup* g = kernel_of(maker)) return g;
    const Strided& view = found_.view(t);
    if (view.root == t || (view.whole() && !output_[t.index])) return nullptr;
    const RowGroup* g = kernel_of(graph_.tensor(view.root).producer);
    if (g == nullptr || !arranged(found_, *g, t)) return nullptr;
    const auto strides = restride(view.over(found_.shape(t)), found_.shape(t));
    const bool in_order = strides && (strides->empty() || strides->back() <= 1);
    return in_order || !found_.chooses_among_calls(*g) ? g : nullptr;
  }

  // How a part of what a kernel makes is read, without what lies between: a step of a transposed
  // value is no reason to transpose all of it. So is what was transposed and back.
  std::optional<Reading> cut_of(TensorId t) const {
    const Op& op = graph_.producer(t);
    const Strided& view = found_.view(t);
    if (view.root == t || found_.view(op.inputs[0]).whole()) return std::nullopt;
    const Extents shape = found_.shape(t);
    const auto strides = restride(view.over(shape), shape);
    if (!strides) return std::nullopt;
    for (size_t i = 0; i < shape.size(); ++i)
      if ((*strides)[i] == 0 && shape[i] > 1) return std::nullopt;
    const int64_t all = product_of(found_.shape(view.root));
    const bool back = product_of(shape) == all;
    if (back ? !view.whole() || op.kind != OpKind::Transpose
             : kernel_of(graph_.tensor(view.root).producer) == nullptr)
      return std::nullopt;
    return reading(all, shape, *strides, view.offset);
  }

  std::vector<TensorId> reads(const Unit& unit) const {
    if (unit.group != nullptr) return operands_in_memory(*unit.group);
    const Op& op = graph_.op(unit.op);
    if (cuts_.count(unit.op.index) != 0) return {found_.view(op.result()).root};
    return op.inputs;
  }

  bool emit(const Unit& unit) {
    if (unit.group != nullptr)
      return emit_kernel(found_, rules_, *unit.group, results_[unit.group], *to_);
    const Op& op = graph_.op(unit.op);
    if (const auto cut = cuts_.find(unit.op.index); cut != cuts_.end()) {
      const TensorId root = to_->map[found_.view(op.result()).root.index];
      to_->map[op.result().index] =
          to_->reshaped(permuted(to_->graph, to_->part(root, cut->second), cut->second),
                        graph_.type(op.result()).shape);
    } else if ((op.kind == OpKind::Reshape || op.kind == OpKind::Broadcast) &&
               graph_.type(op.inputs[0]) == graph_.type(op.result())) {
      to_->map[op.result().index] = to_->map[op.inputs[0].index];
    } else {
      copy_op(graph_, op, to_->graph, to_->map);
    }
    return true;
  }

  const Graph& graph_;
  const FusionRules& rules_;
  const RowGroups found_;
  std::vector<bool> output_, kernel_;                         // by tensor, by group
  std::map<const RowGroup*, std::vector<TensorId>> results_;  // wanted elsewhere
  std::map<uint32_t, Reading> cuts_;                          // by operator that needs no copy
  std::optional<FusedProgram> to_;
};

}  // namespace

Graph fused(const Graph& given, const FusionRules& rules) {
  const Graph graph = join_products(without_repeats(given), rules);
  return Fusion(graph, rules).run();
}

}  // namespace tessera
