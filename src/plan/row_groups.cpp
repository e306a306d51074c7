#include "plan/row_groups.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "ir/weights.h"

namespace tessera {
namespace {

// Longer rows of a product are not kept in a block, so that nothing is computed from whole ones.
// Shorter ones are computed one by one, faster without what follows.
constexpr int64_t kMostColumns = 1024, kLeastKeptColumns = 8;
// Bytes of a product's right operand where every block of rows reads it whole: at all, of heads of
// any width and of second products, and for few rows.
constexpr int64_t kMostShared = int64_t{4} << 20, kMostOfHeads = int64_t{1} << 20;
constexpr int64_t kMostOfFewRows = int64_t{256} << 10, kFewRows = 16;
constexpr int64_t kLeastOfDots = 64;  // rows and columns of the matrix
// Rows with reductions are computed as wholes; longer ones are left to all threads together, and
// so are rows that are fewer than threads, but short ones.
constexpr int64_t kMostRow = int64_t{1} << 16, kShort = int64_t{1} << 15;  // elements
constexpr size_t kMostMembers = 1000;  // of a group: code generation recurses into operands

Extents without_last(const Extents& shape, size_t n = 1) {
  return Extents(shape.begin(), shape.end() - std::ptrdiff_t(std::min(n, shape.size())));
}

Extents joined(Extents a, const Extents& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Without extents of 1, of which one is left where there is nothing else.
Extents longer_axes(const Extents& shape) {
  Extents axes;
  for (int64_t d : shape)
    if (d > 1) axes.push_back(d);
  return axes.empty() ? Extents{1} : axes;
}

}  // namespace

RowGroups::RowGroups(const Graph& graph, const FusionRules& rules)
    : graph_(graph), rules_(rules), apart_(rules.apart(graph)),
      once_(graph.tensors().size(), false), views_(strided_views(graph, apart_)),
      home_(graph.ops().size(), -1) {
  const std::vector<bool> once =
      rules.weights ? computed_once(graph) : std::vector<bool>(graph.ops().size(), false);
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    const bool leaf = op.kind == OpKind::Const ||
                      (is_input(op.kind) && rules.weights && graph.is_weight(op.result()));
    for (uint32_t r = 0; r < op.num_results; ++r) once_[op.result(r).index] = once[i] || leaf;
    apart_[i] = apart_[i] || once[i] || op.num_results != 1 || is_strided_view(op.kind);
  }
  for (size_t i = 0; i < graph.ops().size(); ++i)
    if (!apart_[i]) place(OpId(i));
  for (RowGroup& g : groups_) read_in_order(g);
}

const RowGroup* RowGroups::of(OpId op) const {
  return home_[op.index] < 0 ? nullptr : &groups_[size_t(home_[op.index])];
}

// Rows of a product with the transpose of a matrix in memory.
std::optional<int64_t> RowGroups::rows_by_columns(const Op& op) const {
  if (op.kind != OpKind::Matmul) return std::nullopt;
  const TensorId right = op.inputs[1];
  const Extents b = shape(right);
  if (b.size() != 2 || std::min(b[0], b[1]) < kLeastOfDots) return std::nullopt;
  const auto strides = restride(view(right).over(b), b);
  if (!strides || (*strides)[0] != 1 || (*strides)[1] <= 1) return std::nullopt;
  return product_of(without_last(shape(op.result())));
}

bool RowGroups::dots(const Op& op) const {
  const std::optional<int64_t> rows = rows_by_columns(op);
  return rows && *rows <= rules_.few_rows(graph_.type(op.inputs[1]).dtype);
}

bool RowGroups::packs(const Op& op) const {
  const std::optional<int64_t> rows = rows_by_columns(op);
  if (!rows || dots(op) || !rules_.packs(graph_.type(op.inputs[1]).dtype, *rows)) return false;
  const TensorId matrix = view(op.inputs[1]).root;
  return !once(matrix) || (rules_.compared && graph_.is_weight(matrix));
}

// --- where operands are -------------------------------------------------------------------------

// The operand that, broadcast to the shape `over`, is read along `rows` and `last` axes.
std::optional<RowOperand> RowGroups::operand(const RowGroup& g, TensorId t, const Extents& over,
                                             const Extents& last, const Extents& rows) const {
  const Strided& view = views_[t.index];
  if (graph_.producer(view.root).kind == OpKind::Const)
    return RowOperand{RowOperand::Constant, view.root};
  const Extents target = joined(rows, last);
  if (g.makes(view.root)) {
    const auto strides = restride(view.over(over), target);
    const int64_t made = g.widths.at(view.root.index);
    if (!strides || last.size() != 1) return std::nullopt;
    Extents by_row = row_major_strides(rows);
    for (int64_t& s : by_row) s *= made;
    const int64_t step = strides->back(), width = step != 0 ? last[0] : 1;
    if (without_last(*strides) != by_row || (step != 0 && step != 1) || view.offset + width > made)
      return std::nullopt;
    return RowOperand{RowOperand::Inside, view.root, view.offset, width};
  }
  for (const Strided& v : {view, Strided::of(t, shape(t))}) {
    const auto strides = restride(v.over(over), target);
    if (strides && reading(product_of(shape(v.root)), target, *strides, v.offset))
      return RowOperand{RowOperand::Memory, v.root, v.offset, 1, *strides};
  }
  return std::nullopt;
}

// Of a member or of one that would like to be; nullopt where it cannot.
RowGroups::Operands RowGroups::operands(const RowGroup& g, const Op& op) const {
  std::vector<RowOperand> found;
  const Extents out = shape(op.result());
  const int64_t rows = product_of(g.rows);
  const auto add = [&](TensorId t, const Extents& over, int64_t width, bool constants) {
    const auto o = operand(g, t, over, {width}, g.rows);
    if (!o || (!constants && o->kind == RowOperand::Constant)) return false;
    found.push_back(*o);
    return true;
  };
  if (has(op.kind, algebra::Pointwise)) {
    for (TensorId t : op.inputs)
      if (!add(t, out, product_of(out) / rows, true)) return std::nullopt;
  } else if (is_reduction(op.kind)) {
    const Extents in = shape(op.inputs[0]);
    const std::vector<int>& axes = graph_.attrs<ReduceAttrs>(op).axes;
    const size_t lead = in.size() - axes.size();
    for (size_t i = 0; i < axes.size(); ++i)
      if (axes[i] != int(lead + i)) return std::nullopt;
    if (axes.empty() || product_of(without_last(in, axes.size())) != rows)
      return std::nullopt;  // it would end rows of another length
    if (!add(op.inputs[0], in, product_of(in) / rows, false)) return std::nullopt;
  } else if (op.kind == OpKind::Concat) {
    if (graph_.attrs<AxisAttrs>(op).axis + 1 != int(out.size()) ||
        product_of(without_last(out)) != rows)
      return std::nullopt;
    for (TensorId t : op.inputs)
      if (!add(t, shape(t), shape(t).back(), false)) return std::nullopt;
  } else if (op.kind == OpKind::Gather) {
    const TensorId table = op.inputs[0];
    if (graph_.attrs<AxisAttrs>(op).axis != 0 || shape(table).size() != 2 ||
        g.makes(views_[table.index].root))
      return std::nullopt;
    found.push_back({RowOperand::Memory, table});
    if (!add(op.inputs[1], shape(op.inputs[1]), 1, false)) return std::nullopt;
  } else if (op.kind == OpKind::Matmul) {
    return multiplied(g, op);
  } else {
    return std::nullopt;
  }
  return found;
}

RowGroups::Operands RowGroups::multiplied(const RowGroup& g, const Op& op) const {
  const TensorId left = op.inputs[0], right = op.inputs[1];
  const Extents b = shape(right), out = shape(op.result());
  if (shape(left).size() < 2 || b.size() < 2 || g.makes(right)) return std::nullopt;
  if (product_of(without_last(out)) != product_of(g.rows))
    return std::nullopt;  // a column of results is no single row
  const int64_t k = b[b.size() - 2], n = b.back();
  if (g.rows.size() == 1 && n < kLeastKeptColumns && !once(view(right).root)) return std::nullopt;
  const auto x = operand(g, left, joined(without_last(out), {k}), {k}, g.rows);
  const Extents lead = without_last(g.rows);
  auto y = operand(g, right, joined(without_last(out, 2), {k, n}), {k, n}, lead);
  if (!y && product_of(without_last(b, 2)) == 1) {  // all rows have one right operand
    const Extents ones(lead.size(), 1);
    y = operand(g, right, joined(ones, {k, n}), {k, n}, ones);
  }
  if (!x || !y || x->kind == RowOperand::Constant || y->kind != RowOperand::Memory)
    return std::nullopt;
  return std::vector<RowOperand>{*x, *y};
}

// --- growth -------------------------------------------------------------------------------------

int64_t RowGroups::matrix_bytes(TensorId right) const {
  const Extents b = shape(right);
  return b[b.size() - 2] * b.back() * size_in_bytes(graph_.type(right).dtype);
}

// Whether an operator computes each column of a product from that column alone.
bool RowGroups::plain(const RowGroup& g, const Op& op, int64_t width,
                      const std::vector<RowOperand>& found) const {
  const int64_t columns = shape(graph_.op(g.products[0]).result()).back();
  return has(op.kind, algebra::Pointwise) && width == columns &&
         std::ranges::all_of(found, [&](const RowOperand& o) {
           return o.kind != RowOperand::Inside || (o.width == columns && o.offset == 0);
         });
}

// Whether it may be attention: rows of several heads meet no weights.
bool RowGroups::attends(const RowGroup& g) const {
  const TensorId right = graph_.op(g.products[0]).inputs[1];
  return g.rows.size() > 1 && !once(view(right).root) && matrix_bytes(right) <= kMostOfHeads;
}

bool RowGroups::may_be_whole(const RowGroup& g) const {
  if (g.whole || g.products.empty()) return true;
  if (g.products.size() != 1) return false;
  const Op& op = graph_.op(g.products[0]);
  const int64_t columns = shape(op.result()).back();
  if (attends(g)) return true;
  const bool few = g.rows.size() == 1 && g.rows[0] < kFewRows;
  return matrix_bytes(op.inputs[1]) <= (few ? kMostOfFewRows : kMostShared) &&
         columns <= kMostColumns;
}

// Whether an operator with these operands may be a member, as far as sizes say.
bool RowGroups::fits(const RowGroup& g, const Op& op, const std::vector<RowOperand>& found,
                     int64_t width) const {
  if (op.kind == OpKind::Matmul) {
    if (found[0].kind == RowOperand::Inside)
      return !g.products.empty() && attends(g) && may_be_whole(g) &&
             matrix_bytes(op.inputs[1]) <= kMostOfHeads && !once(views_[op.inputs[1].index].root);
    if (g.products.empty()) return g.members.empty();
    return g.left == std::pair(found[0], shape(op.inputs[0]).back()) &&
           std::ranges::all_of(g.widths,
                               [&](const auto& w) { return w.second == width || w.second == 1; });
  }
  if (is_reduction(op.kind)) {
    const int64_t all = num_elements(graph_.type(op.inputs[0]).shape), rows = product_of(g.rows);
    if (all / rows > kMostRow || (rows < default_threads() && all > kShort)) return false;
  }
  if (g.products.empty()) return true;
  return (plain(g, op, width, found) && !g.whole) || may_be_whole(g);
}

// Makes an operator a member, if it can be one.
bool RowGroups::take(RowGroup& g, OpId id) const {
  const Op& op = graph_.op(id);
  const int64_t rows = product_of(g.rows), all = num_elements(graph_.type(op.result()).shape);
  if (all % rows != 0 || g.rows.size() > 4 || g.members.size() >= kMostMembers) return false;
  const Operands found = operands(g, op);
  if (!found || !fits(g, op, *found, all / rows)) return false;
  if (op.kind == OpKind::Matmul && (*found)[0].kind == RowOperand::Memory) {
    g.products.push_back(id);
    g.left = std::pair((*found)[0], shape(op.inputs[0]).back());
  } else if (!g.products.empty()) {
    g.whole = g.whole || !plain(g, op, all / rows, *found);
  }
  g.members.push_back(id);
  g.reads[id.index] = *found;
  g.widths[op.result().index] = all / rows;
  return true;
}

std::optional<RowGroup> RowGroups::over(const Extents& rows, std::vector<OpId> members) const {
  RowGroup made(rows);
  std::ranges::sort(members);
  for (OpId id : members)
    if (!take(made, id)) return std::nullopt;
  read_in_order(made);
  return made;
}

bool RowGroups::chooses_among_calls(const RowGroup& g) const {
  const auto any = [&](auto holds) {
    return std::ranges::any_of(
        g.members, [&](OpId id) { return holds(graph_.op(id)); });
  };
  return !any([](const Op& op) { return !has(op.kind, algebra::Pointwise); }) &&
         any([](const Op& op) { return has(op.kind, algebra::Call); }) &&
         any([&](const Op& op) { return graph_.type(op.result()).dtype == DType::Bool; });
}

void RowGroups::read_in_order(RowGroup& g) const {
  if (!chooses_among_calls(g)) return;
  for (OpId id : g.members) {
    const Op& op = graph_.op(id);
    const Extents target = joined(g.rows, {g.widths.at(op.result().index)});
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      RowOperand& o = g.reads[id.index][i];
      if (o.kind != RowOperand::Memory || target.back() == 1 || o.strides.back() <= 1) continue;
      const Strided own = Strided::of(op.inputs[i], shape(op.inputs[i]));
      const auto strides = restride(own.over(shape(op.result())), target);
      if (strides && strides->back() <= 1 &&
          reading(product_of(shape(own.root)), target, *strides, 0))
        o = {RowOperand::Memory, own.root, 0, 1, *strides};
    }
  }
}

void RowGroups::place(OpId id) {
  const Op& op = graph_.op(id);
  std::set<int> near;
  for (TensorId t : op.inputs)
    near.insert(home_[graph_.tensor(views_[t.index].root).producer.index]);
  near.erase(-1);
  for (auto number = near.rbegin(); number != near.rend(); ++number) {
    if (!join(*number, id)) continue;
    for (auto other = near.rbegin(); other != near.rend(); ++other)
      if (*other != *number) merge(*number, *other);
    return;
  }
  open(id);
}

// A group of its own for an operator.
bool RowGroups::open(OpId id) {
  const Op& op = graph_.op(id);
  const Extents out = shape(op.result());
  if (std::ranges::all_of(op.inputs, [&](TensorId t) { return graph_.type(t).rank() == 0; }))
    return false;  // scalars are not worth a kernel of their own
  std::vector<Extents> tried = {longer_axes(without_last(out))};
  if (is_reduction(op.kind))
    tried = {
        longer_axes(without_last(shape(op.inputs[0]), graph_.attrs<ReduceAttrs>(op).axes.size()))};
  if (op.kind == OpKind::Matmul && out.size() > 1 && shape(op.inputs[1]).size() > 1) {
    // Heads that share keys and values: the axes that these are repeated along are apart.
    Strided batch = view(op.inputs[1]);
    batch.axes.resize(batch.axes.size() - 2);
    Extents rows;
    for (const auto& part : batch.over(without_last(out, 2))) rows.push_back(part.first);
    rows.push_back(out[out.size() - 2]);
    Extents plain = longer_axes(without_last(out, 2));
    if (plain == Extents{1}) plain.clear();
    plain.push_back(out[out.size() - 2]);
    tried = {rows, plain};
    if (product_of(without_last(shape(op.inputs[1]), 2)) == 1)
      tried.insert(tried.begin(), Extents{product_of(without_last(out))});
  }
  for (const Extents& rows : tried) {
    RowGroup group(rows);
    if (!take(group, id)) continue;
    home_[id.index] = int(groups_.size());
    groups_.push_back(std::move(group));
    return true;
  }
  return false;
}

bool RowGroups::join(int number, OpId id) {
  if (waits({number}, {id})) return false;
  RowGroup& group = groups_[size_t(number)];
  if (!take(group, id)) {  // perhaps as rows in more axes, or as rows of another length
    const Op& op = graph_.op(id);
    const Extents rows =
        longer_axes(without_last(shape(is_reduction(op.kind) ? op.inputs[0] : op.result())));
    if (rows == group.rows ||
        (!group.products.empty() && product_of(rows) != product_of(group.rows)))
      return false;
    std::vector<OpId> members = group.members;
    members.push_back(id);
    std::optional<RowGroup> made = over(rows, std::move(members));
    if (!made) return false;
    group = std::move(*made);
  }
  home_[id.index] = number;
  return true;
}

// Makes one group of two, where no other lies between them.
void RowGroups::merge(int number, int other) {
  RowGroup &a = groups_[size_t(number)], &b = groups_[size_t(other)];
  std::vector<OpId> members = a.members;
  members.insert(members.end(), b.members.begin(), b.members.end());
  if (waits({number, other}, members)) return;
  for (const Extents& rows : {a.rows, b.rows}) {
    std::optional<RowGroup> made = over(rows, members);
    if (!made) continue;
    for (OpId id : b.members) home_[id.index] = number;
    a = std::move(*made);
    b = RowGroup();
    return;
  }
}

// Whether members of these groups, which are to be one, read what is made by way of others from
// what the groups make.
bool RowGroups::waits(const std::set<int>& groups, const std::vector<OpId>& members) const {
  size_t first = graph_.ops().size();  // nothing before depends on the groups
  for (int g : groups)
    for (OpId id : groups_[size_t(g)].members) first = std::min<size_t>(first, id.index);
  std::vector<bool> seen(graph_.ops().size(), false), entered(groups_.size(), false);
  std::vector<OpId> stack;
  const auto enter = [&](const std::vector<OpId>& ops, bool own) {
    for (OpId id : ops) {
      for (TensorId t : graph_.op(id).inputs) {
        OpId maker = graph_.tensor(t).producer;
        // A member reads the group's values where they are.
        if (own && groups.count(home_[graph_.tensor(views_[t.index].root).producer.index]) != 0)
          continue;
        if (seen[maker.index]) continue;
        seen[maker.index] = true;
        stack.push_back(maker);
      }
    }
  };
  enter(members, true);
  while (!stack.empty()) {
    const OpId id = stack.back();
    stack.pop_back();
    const int home = home_[id.index];
    if (home >= 0 && groups.count(home) != 0) return true;
    if (home >= 0 && !entered[size_t(home)]) {
      entered[size_t(home)] = true;
      enter(groups_[size_t(home)].members, false);
    } else if (home < 0 && id.index >= first) {
      enter({id}, false);
    }
  }
  return false;
}

}  // namespace tessera
