#include "search/mugraph/refine.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "ir/build.h"
#include "search/mugraph/region.h"

// An operator that is not named here is kept, with its operands as the program has them.

namespace tessera::mugraph {
namespace {

// Axes that a reshape merges or splits together: one dimension on one side, several on the other.
struct Group {
  bool merges = false;  // several of the operand become one of the result
  size_t one = 0;
  std::vector<size_t> parts;  // ascending, without extents of 1
};

// nullopt where the reshape does something else. Dimensions that stay are left out.
std::optional<std::vector<Group>> groups_of(const Shape& from, const Shape& to) {
  std::vector<Group> out;
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    std::vector<size_t> a, b;
    int64_t m = 1, n = 1;
    auto take = [](const Shape& s, size_t& k, std::vector<size_t>& into, int64_t& product) {
      if (!s[k].is_one()) into.push_back(k);
      product *= s[k++].extent;
    };
    while ((a.empty() && i < from.size()) || (b.empty() && j < to.size()) || m != n)
      if (i < from.size() && (m < n || (a.empty() && m <= n)))
        take(from, i, a, m);
      else if (j < to.size() && (n < m || b.empty()))
        take(to, j, b, n);
      else if (m != n)
        return std::nullopt;
      else
        break;
    if (a.size() == 1 && b.size() == 1) continue;
    if (a.empty() && b.empty()) continue;
    if (a.size() != 1 && b.size() != 1) return std::nullopt;
    const bool merges = b.size() == 1;
    out.push_back({merges, merges ? b[0] : a[0], merges ? a : b});
  }
  return out;
}

class Refinement {
 public:
  explicit Refinement(const Graph& g)
      : g_(g), classes_(axis_classes(g)), out_(g.name()), whole_(g.tensors().size()),
        fine_(whole_) {}

  std::optional<Graph> run() {
    if (!find_parts()) return std::nullopt;
    for (const Op& op : g_.ops()) rewrite(op);
    for (TensorId t : g_.outputs()) out_.add_output(whole(t));
    for (size_t i = 0; i < g_.outputs().size(); ++i) {
      const TensorId made = out_.outputs()[i];
      const std::string& name = g_.tensor(g_.outputs()[i]).name;
      if (out_.tensor(made).name.empty()) out_.set_tensor_name(made, name);
    }
    return without_dead_code(out_);
  }

 private:
  // --- which axes have parts ------------------------------------------------------------------

  // The extents that an axis is cut into, by class. False where nothing can be moved.
  bool find_parts() {
    std::map<int, std::vector<int64_t>> cut;
    std::map<int, std::vector<int>> parts;
    std::vector<int> refused;
    for (const Op& op : g_.ops()) {
      if (op.kind != OpKind::Reshape || !is_float(g_.type(op.result()).dtype)) continue;
      const TensorId from = op.inputs[0], to = op.result();
      const auto groups = groups_of(g_.type(from).shape, g_.type(to).shape);
      if (!groups) continue;
      for (const Group& group : *groups) {
        const TensorId one = group.merges ? to : from, several = group.merges ? from : to;
        const int cls = classes_[one.index][group.one];
        std::vector<int64_t> extents;
        std::vector<int> names;
        for (size_t d : group.parts) {
          extents.push_back(g_.type(several).shape[d].extent);
          names.push_back(classes_[several.index][d]);
        }
        auto [it, fresh] = cut.emplace(cls, extents);
        if (!fresh && it->second != extents) refused.push_back(cls);
        for (int n : names) parts[cls].push_back(n);
      }
    }
    for (int c : refused) cut.erase(c);
    // Parts are not cut again, and an axis is no part of itself.
    for (const auto& [cls, names] : parts) {
      for (int n : names)
        if (cut.count(n)) cut.erase(cls);
    }
    parts_ = std::move(cut);
    // Worth it where a reshape lies between two operators of the search.
    bool between = false;
    for (const Op& op : g_.ops()) {
      if (op.kind != OpKind::Reshape || !moves(op)) continue;
      bool used = false;
      for (const Op& user : g_.ops())
        for (TensorId t : user.inputs) used = used || (t == op.result() && transparent(g_, user));
      const Op& producer = g_.producer(op.inputs[0]);
      between = between || (used && !is_input(producer.kind) && transparent(g_, producer));
    }
    return between;
  }

  // A reshape that disappears: over finer axes it changes nothing but extents of 1.
  bool moves(const Op& op) const {
    const Shape &from = g_.type(op.inputs[0]).shape, &to = g_.type(op.result()).shape;
    const auto groups = groups_of(from, to);
    if (!groups || groups->empty()) return false;
    for (const Group& group : *groups) {
      const TensorId one = group.merges ? op.result() : op.inputs[0];
      if (!parts_.count(classes_[one.index][group.one])) return false;
    }
    return true;
  }

  std::vector<int64_t> parts_of(TensorId t, size_t dim) const {
    const Dim& d = g_.type(t).shape[dim];
    if (d.is_one()) return {1};
    auto it = parts_.find(classes_[t.index][dim]);
    return it == parts_.end() ? std::vector<int64_t>{d.extent} : it->second;
  }

  // --- shapes over finer axes -----------------------------------------------------------------

  Shape fine_shape(TensorId t) const {
    Shape s;
    for (size_t d = 0; d < g_.type(t).shape.size(); ++d)
      for (int64_t n : parts_of(t, d)) s.push_back(Dim(n));
    return s;
  }
  // Positions over finer axes of a dimension's parts.
  std::vector<int> positions(TensorId t, size_t dim) const {
    int at = 0;
    for (size_t d = 0; d < dim; ++d) at += int(parts_of(t, d).size());
    std::vector<int> out(parts_of(t, dim).size());
    std::iota(out.begin(), out.end(), at);
    return out;
  }

  TensorId reshaped(TensorId t, const Shape& shape) {
    if (out_.type(t).shape == shape) return t;
    return build::reshape(out_, t, {shape});
  }
  // As the program has it.
  TensorId whole(TensorId t) {
    TensorId& known = whole_[t.index];
    if (!known.valid()) known = reshaped(fine_[t.index], g_.type(t).shape);
    return known;
  }
  TensorId fine(TensorId t) {
    TensorId& known = fine_[t.index];
    if (!known.valid()) known = reshaped(whole_[t.index], fine_shape(t));
    return known;
  }
  // An operand with as many extents of 1 as the result's axes have parts; of a product, in its
  // batches.
  TensorId aligned(TensorId t, TensorId result, bool product = false) {
    Shape s;
    const Shape &own = g_.type(t).shape, &all = g_.type(result).shape;
    const size_t skip = all.size() - own.size();
    for (size_t d = 0; d < own.size(); ++d) {
      if (own[d].is_one() && (!product || d + 2 < own.size()))
        s.insert(s.end(), parts_of(result, skip + d).size(), Dim(1));
      else
        for (int64_t n : parts_of(t, d)) s.push_back(Dim(n));
    }
    return reshaped(fine(t), s);
  }

  // --- operators ------------------------------------------------------------------------------

  void keep(const Op& op) {
    for (TensorId t : op.inputs) whole(t);
    copy_op(g_, op, out_, whole_);
  }

  void rewrite(const Op& op) {
    const TensorId result = op.num_results > 0 ? op.result() : TensorId();
    if (op.kind == OpKind::Input) return keep(op);
    if (op.constant()) {
      whole_[result.index] = out_.add_const(std::get<ConstAttrs>(op.attrs).value, g_.type(result));
      return;
    }
    if (op.kind == OpKind::Reshape && moves(op)) {
      fine_[result.index] = reshaped(fine(op.inputs[0]), fine_shape(result));
      return;
    }
    if (!transparent(g_, op)) return keep(op);
    if (has(op.kind, algebra::Pointwise)) {
      std::vector<TensorId> in = mapped(op.inputs, [&](TensorId t) { return aligned(t, result); });
      fine_[result.index] = out_.add(op.kind, in, op.attrs);
      return;
    }
    if (op.kind == OpKind::Broadcast) {
      fine_[result.index] =
          out_.add(op.kind, {aligned(op.inputs[0], result)}, ShapeAttrs{fine_shape(result)});
    } else if (const auto* reduced = std::get_if<ReduceAttrs>(&op.attrs)) {
      ReduceAttrs a{{}, reduced->keepdims};
      for (int axis : reduced->axes)
        for (int p : positions(op.inputs[0], size_t(axis))) a.axes.push_back(p);
      fine_[result.index] =
          reshaped(out_.add(op.kind, {fine(op.inputs[0])}, a), fine_shape(result));
    } else if (const auto* turned = std::get_if<PermAttrs>(&op.attrs)) {
      PermAttrs perm;
      for (int p : turned->perm)
        for (int q : positions(op.inputs[0], size_t(p))) perm.perm.push_back(q);
      fine_[result.index] = out_.add(op.kind, {fine(op.inputs[0])}, perm);
    } else if (is_reshape(op.kind)) {
      fine_[result.index] = reshaped(fine(op.inputs[0]), fine_shape(result));
    } else if (op.kind == OpKind::Matmul) {
      matmul(op);
    } else {
      keep(op);
    }
  }

  // The last parts of rows, columns and the contracted axis form the matrices; all other parts are
  // batches, and those of the contracted axis are summed afterwards.
  void matmul(const Op& op) {
    const TensorId a = op.inputs[0], b = op.inputs[1], result = op.result();
    const size_t ra = g_.type(a).shape.size(), rb = g_.type(b).shape.size(),
                 r = g_.type(result).shape.size();
    const auto m = parts_of(a, ra - 2), k = parts_of(a, ra - 1), n = parts_of(b, rb - 1);
    if (m.size() + k.size() + n.size() == 3) {
      fine_[result.index] =
          build::matmul(out_, {aligned(a, result, true), aligned(b, result, true)});
      return;
    }
    // Dimensions of both operands: batches, other parts of m, of n, of k, then the matrix.
    std::vector<int64_t> batch;
    for (size_t d = 0; d + 2 < r; ++d)
      for (int64_t x : parts_of(result, d)) batch.push_back(x);
    const size_t more_m = m.size() - 1, more_n = n.size() - 1, more_k = k.size() - 1;
    auto arrange = [&](TensorId t, const std::vector<int64_t>& rows,
                       const std::vector<int64_t>& cols, bool left) {
      const Shape& own = g_.type(t).shape;
      const size_t rank = own.size();
      Shape s;  // the operand with one dimension for every batch
      for (size_t d = 0; d + 2 < r; ++d) {
        const size_t parts = parts_of(result, d).size(), skip = r - rank;
        const bool here = d >= skip && !own[d - skip].is_one();
        if (here)
          for (int64_t x : parts_of(t, d - skip)) s.push_back(Dim(x));
        else
          s.insert(s.end(), parts, Dim(1));
      }
      for (int64_t x : rows) s.push_back(Dim(x));
      for (int64_t x : cols) s.push_back(Dim(x));
      TensorId v = reshaped(fine(t), s);
      PermAttrs perm;
      const int first = int(batch.size()), second = first + int(rows.size());
      for (int i = 0; i < first; ++i) perm.perm.push_back(i);
      for (int i = first; i + 1 < second; ++i) perm.perm.push_back(i);
      for (int i = second; i + 1 < int(s.size()); ++i) perm.perm.push_back(i);
      // Left: (m…)(k…), right: (k…)(n…); both end up as m, n, k.
      if (!left)
        std::rotate(perm.perm.begin() + first, perm.perm.begin() + second - 1, perm.perm.end());
      perm.perm.push_back(second - 1);
      perm.perm.push_back(int(s.size()) - 1);
      if (!std::ranges::is_sorted(perm.perm)) v = build::transpose(out_, v, perm);
      const Shape now = out_.type(v).shape;
      Shape full(now.begin(), now.begin() + first);
      auto append = [&](size_t from, size_t count, bool here) {
        for (size_t i = 0; i < count; ++i)
          full.push_back(here ? now[size_t(first) + from + i] : Dim(1));
      };
      append(0, more_m, left);
      append(0, more_n, !left);
      append(left ? more_m : more_n, more_k, true);
      full.push_back(now[now.size() - 2]);
      full.push_back(now[now.size() - 1]);
      return reshaped(v, full);
    };
    TensorId v = build::matmul(out_, {arrange(a, m, k, true), arrange(b, k, n, false)});
    const int first = int(batch.size());
    if (more_k > 0) {
      ReduceAttrs sum;
      for (size_t i = 0; i < more_k; ++i) sum.axes.push_back(first + int(more_m + more_n + i));
      v = out_.add(OpKind::Sum, {v}, sum);
    }
    // batch, m…, n…, m, n becomes batch, (m…, m), (n…, n).
    PermAttrs perm;
    const int rest = first + int(more_m + more_n);
    for (int i = 0; i < first + int(more_m); ++i) perm.perm.push_back(i);
    perm.perm.push_back(rest);
    for (int i = first + int(more_m); i < rest; ++i) perm.perm.push_back(i);
    perm.perm.push_back(rest + 1);
    if (!std::ranges::is_sorted(perm.perm)) v = build::transpose(out_, v, perm);
    fine_[result.index] = reshaped(v, fine_shape(result));
  }

  const Graph& g_;
  const std::vector<std::vector<int>> classes_;
  std::map<int, std::vector<int64_t>> parts_;
  Graph out_;
  std::vector<TensorId> whole_, fine_;  // by tensor, where there is one
};

}  // namespace

bool merges_or_splits(const Shape& from, const Shape& to) {
  const auto groups = groups_of(from, to);
  return groups && !groups->empty();
}

std::optional<Graph> refine_axes(const Graph& graph) {
  if (graph.level() != Level::Kernel) return std::nullopt;
  for (const Tensor& t : graph.tensors())
    if (!is_static(t.type.shape)) return std::nullopt;
  try {
    return Refinement(graph).run();
  } catch (const Error&) {  // more dimensions than a tensor may have
    return std::nullopt;
  }
}

}  // namespace tessera::mugraph
