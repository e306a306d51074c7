#include "plan/choose_layouts.h"

#include "base/check.h"
#include "solve/ilp.h"

namespace tessera {

LayoutChoice choose_layouts(const Graph& graph, const PlanBuilder& plan,
                            const std::vector<LayoutDemand>& demands, const Target& target,
                            bool compared) {
  constexpr double kMostKept = 8e9;  // bytes that copies of weights may take
  // y[d][o]: demand d reads option o. x[t, l]: tensor t has a copy in layout l, which costs its
  // making in every call, or for what is constant its memory. Every y needs its x.
  Ilp ilp;
  std::vector<std::vector<int>> reads(demands.size());
  struct Copy {
    TensorId tensor;
    Layout layout;
    int variable;
    double bytes;
  };
  std::vector<Copy> copies;
  const auto copy_of = [&](TensorId t, const Layout& layout) {
    for (const Copy& c : copies)
      if (c.tensor == t && c.layout == layout) return c.variable;
    const Type& type = graph.type(t);
    const double bytes =
        double(layout_elements(layout, extents(type.shape))) * size_in_bytes(type.dtype);
    // Kept copies cost nothing in a call, or what it takes to read their originals (at half the
    // bandwidth); of equally fast choices the one with less memory wins.
    const double per_byte = 1 / target.levels[0].bandwidth;
    const bool read = compared && graph.is_weight(t);
    const double cost = plan.constant(t) ? (read ? 2 : 1e-6) * bytes * per_byte
                                         : 2 * bytes * per_byte + target.launch_seconds;
    copies.push_back({t, layout, ilp.add_variable(cost), plan.constant(t) ? bytes : 0});
    return copies.back().variable;
  };
  for (size_t d = 0; d < demands.size(); ++d) {
    std::vector<std::pair<int, double>> one;
    for (const LayoutOption& o : demands[d].options) {
      const int y = ilp.add_variable(o.seconds);
      reads[d].push_back(y);
      one.emplace_back(y, 1);
      if (o.layout.row_major()) continue;
      const int x = copy_of(demands[d].tensor, o.layout);
      ilp.add({{y, 1}, {x, -1}}, Relation::LessEqual, 0);
    }
    ilp.add(std::move(one), Relation::Equal, 1);
  }
  std::vector<std::pair<int, double>> memory;
  for (const Copy& c : copies)
    if (c.bytes > 0) memory.emplace_back(c.variable, c.bytes);
  if (!memory.empty()) ilp.add(memory, Relation::LessEqual, kMostKept);

  LayoutChoice choice;
  if (demands.empty()) return choice;
  const IlpResult solved = solve_ilp(ilp);
  CHECK(solved.status == IlpStatus::Optimal || solved.status == IlpStatus::Feasible)
      << "row-major everywhere is always possible, but: " << name(solved.status);
  for (size_t d = 0; d < demands.size(); ++d)
    for (size_t o = 0; o < reads[d].size(); ++o)
      if (solved.x[size_t(reads[d][o])]) choice.layouts.push_back(demands[d].options[o].layout);
  CHECK(choice.layouts.size() == demands.size()) << "an operand without a layout";
  return choice;
}

}  // namespace tessera
