#include "plan/block_layouts.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "solve/ilp.h"

namespace tessera {
namespace {

constexpr int kBankBytes = 4;
constexpr double kSwizzle = 0.05;  // of a pass over a tile: computing permuted addresses

class Chooser {
 public:
  Chooser(const Graph& g, const Target& target)
      : g_(g), target_(target), variables_(g.tensors().size()) {
    bandwidth_ = target.levels.back().bandwidth;
  }

  TileLayouts run() {
    for (size_t i = 0; i < g_.tensors().size(); ++i) declare(i);
    for (const Op& op : g_.ops()) terms(op);
    const IlpResult solved = solve_ilp(ilp_);
    CHECK(!solved.x.empty()) << "row-major everywhere is always possible, but: "
                             << name(solved.status);
    TileLayouts out;
    out.seconds = solved.value;
    out.optimal = solved.status == IlpStatus::Optimal;
    out.gap = solved.gap();
    for (const std::vector<Option>& options : variables_) {
      TileLayout chosen;
      for (const Option& o : options)
        if (solved.x[static_cast<size_t>(o.variable)]) chosen = o.layout;
      out.layouts.push_back(chosen);
    }
    return out;
  }

 private:
  struct Option {
    TileLayout layout;
    int variable;
  };
  // B[t,l] of a tile: which of the last two axes is innermost (what matrix units can read), and
  // whether rows are swizzled, where there are banks to conflict.
  void declare(size_t t) {
    const TensorId id(t);
    const int rank = g_.type(id).rank();
    const OpKind made_by = g_.producer(id).kind;
    const bool outside = made_by == OpKind::Input || made_by == OpKind::Save;
    std::vector<std::pair<int, double>> one;
    for (int a = rank - 1; a >= std::max(0, rank - (outside ? 1 : 2)); --a) {
      for (const bool swizzled : {false, true}) {
        if (swizzled && (outside || target_.banks == 0 || rank < 2)) continue;
        const int v = ilp_.add_variable(swizzled ? kSwizzle * pass(id) : 0);
        variables_[t].push_back({{a, swizzled}, v});
        one.emplace_back(v, 1);
      }
    }
    if (!one.empty()) ilp_.add(std::move(one), Relation::Equal, 1);
  }

  double pass(TensorId t) const { return static_cast<double>(g_.type(t).bytes()) / bandwidth_; }
  int64_t extent(TensorId t, int axis) const {
    return g_.type(t).shape[static_cast<size_t>(axis)].extent;
  }
  // A column of a tile meets few banks when rows are a multiple of all banks apart.
  bool conflicts(TensorId t, const TileLayout& l) const {
    if (target_.banks == 0 || l.swizzled || g_.type(t).rank() < 2) return false;
    const int64_t row = extent(t, l.innermost) * size_in_bytes(g_.type(t).dtype);
    return row % (int64_t{target_.banks} * kBankBytes) == 0;
  }
  void charge(TensorId t, const std::function<double(const TileLayout&)>& seconds) {
    for (const Option& o : variables_[t.index])
      ilp_.cost[static_cast<size_t>(o.variable)] += seconds(o.layout);
  }
  // Operand and result walked together: strided unless their innermost axes agree.
  void together(TensorId x, TensorId y, const std::vector<int>& axis_of_y) {
    if (variables_[x.index].empty() || variables_[y.index].empty()) return;
    const int z = ilp_.add_variable((target_.strided_operand - 1 + 0.5) * pass(x));
    for (const Option& o : variables_[x.index]) {
      // B[x,l] without an agreeing B[y,·] costs z.
      std::vector<std::pair<int, double>> row = {{o.variable, 1}, {z, -1}};
      for (const Option& p : variables_[y.index])
        if (axis_of_y[static_cast<size_t>(p.layout.innermost)] == o.layout.innermost)
          row.emplace_back(p.variable, -1);
      ilp_.add(std::move(row), Relation::LessEqual, 0);
    }
  }

  void terms(const Op& op) {
    const TensorId y = op.result();
    if (op.kind == OpKind::Iter) {
      // From row-major memory: in bulk where neighbours stay neighbours and pieces are whole.
      const int last = g_.type(y).rank() - 1;
      const int bytes = size_in_bytes(g_.type(y).dtype);
      charge(y, [&](const TileLayout& l) {
        const bool kept = l.innermost == last;
        if (!kept) return target_.copied_operand * pass(y);
        if (target_.bulk_bytes == 0 || extent(y, last) * bytes % target_.bulk_bytes == 0)
          return 0.0;
        return (static_cast<double>(target_.bulk_bytes) / bytes - 1) * pass(y);
      });
      return;
    }
    if (op.kind == OpKind::Matmul || op.kind == OpKind::ConcatMatmul) {
      const size_t lefts = op.inputs.size() / 2;
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        const TensorId x = op.inputs[i];
        const int rank = g_.type(x).rank();
        charge(x, [&](const TileLayout& l) {
          double s = conflicts(x, l) ? std::min(8, target_.banks) * pass(x) : 0;
          // On a CPU vectors run along the columns of the right operand.
          if (target_.kind == TargetKind::Cpu && i >= lefts && l.innermost != rank - 1)
            s += target_.copied_operand * pass(x);
          return s;
        });
      }
      charge(y, [&](const TileLayout& l) {
        return l.innermost == g_.type(y).rank() - 1 ? 0 : target_.strided_operand * pass(y);
      });
      return;
    }
    // Views change which axis is which, nothing else walks; everything else walks its result.
    for (TensorId x : op.inputs) {
      const int rank = g_.type(x).rank(), to = g_.type(y).rank();
      std::vector<int> axis(static_cast<size_t>(std::max(to, 1)), -1);
      if (op.kind == OpKind::Transpose) {
        const auto& perm = std::get<PermAttrs>(op.attrs).perm;
        for (size_t i = 0; i < perm.size(); ++i) axis[i] = perm[i];
      } else if (op.kind == OpKind::Save || op.kind == OpKind::Accum ||
                 has(op.kind, algebra::Pointwise)) {
        for (int i = 0; i < to; ++i) axis[static_cast<size_t>(i)] = i - (to - rank);
      } else {
        continue;
      }
      if (extent_one(x)) continue;
      together(x, y, axis);
    }
  }
  bool extent_one(TensorId t) const { return num_elements(g_.type(t).shape) == 1; }

  const Graph& g_;
  const Target& target_;
  double bandwidth_;
  Ilp ilp_;
  std::vector<std::vector<Option>> variables_;  // by tensor
};

}  // namespace

TileLayouts choose_tile_layouts(const Graph& block_graph, const Target& target) {
  CHECK(block_graph.level() == Level::Block) << "tiles are in block graphs";
  return Chooser(block_graph, target).run();
}

std::string TileLayouts::str(const Graph& block_graph) const {
  std::string out;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string& name = block_graph.tensors()[i].name;
    out += (name.empty() ? "t" + std::to_string(i) : name) + " innermost " +
           std::to_string(layouts[i].innermost) + (layouts[i].swizzled ? " swizzled" : "") + "\n";
  }
  return out + (optimal ? "optimal\n" : "gap " + std::to_string(gap) + " s\n");
}

}  // namespace tessera
