#include "verify/symmetry.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"
#include "base/interruption.h"
#include "base/union_find.h"
#include "ir/axis_reads.h"

namespace tessera {

// Joins the axes that must be restricted together and fixes those that cannot be. At level 0 axes
// count as wholes: a class has as many tiles as all its members can be cut into. Level 1 is about
// the positions inside of such a tile, and so on: inside of what grid dimensions and loops cut, a
// block's tile is known.
class Symmetry::Builder {
 public:
  explicit Builder(Folds folds) : folds_(folds) {}
  // The next level, over the same nodes.
  Builder(Builder& above, int level)
      : folds_(above.folds_), level_(level), cuts_(above.cuts_), tiles_above_(above.tiles_above_) {
    tiles_above_.emplace_back();
    for (size_t n = 0; n < above.nodes(); n++) {
      tiles_above_.back().push_back(above.tiles(int(n)));
      nodes_.add();
      extent_.push_back(above.extent_[n] / tiles_above_.back()[n]);
    }
    tiles_ = extent_;
  }
  // Gives every axis of the graph and of its bodies a node.
  Scope enter(const Graph& g) {
    Scope s;
    s.graph = &g;
    for (const Tensor& t : g.tensors()) {
      s.first.push_back(int(nodes()));
      for (const Dim& d : t.type.shape) add_node(d.extent);
    }
    for (int64_t blocks : g.grid()) s.grid.push_back(add_node(blocks));
    for (int64_t iterations : g.loops()) s.loops.push_back(add_node(iterations));
    cuts_.resize(nodes(), false);
    for (const Op& op : g.ops()) {
      if (is_load(op.kind)) {
        const auto& a = g.attrs<IterAttrs>(op);
        find_cuts(s, g.type(op.inputs[0]).rank(), a.imap, a.fmap);
      } else if (is_store(op.kind)) {
        const auto& a = g.attrs<SaveAttrs>(op);
        find_cuts(s, g.type(op.result()).rank(), a.omap, a.fmap);
      }
    }
    for (const Graph& body : g.bodies()) s.inner.push_back(enter(body));
    return s;
  }
  void join(int a, int b) {
    const int64_t both = std::gcd(tiles(a), tiles(b));
    nodes_.join(size_t(a), size_t(b));
    tiles_[find(a)] = both;
  }
  void fix(int a) { tiles_[find(a)] = 1; }
  void fold(int a) {
    if (folds_ == Folds::Whole) fix(a);
  }
  size_t find(int a) const { return nodes_.find(size_t(a)); }
  int64_t tiles(int a) const { return tiles_[find(a)]; }
  size_t nodes() const { return nodes_.size(); }

  void read(const Scope& s) {
    for (const Op& op : s.graph->ops()) read(s, op);
  }

 private:
  // The nodes of the grid dimensions and loops that cut an axis, outermost first.
  static std::vector<int> cuts_of(const Scope& s, int axis, const GridMap& grid,
                                  const LoopMap& loops) {
    std::vector<int> cuts;
    for (size_t i = 0; i < s.grid.size(); i++)
      if (grid[i] == axis) cuts.push_back(s.grid[i]);
    for (size_t i = 0; i < s.loops.size(); i++)
      if (loops[i] == axis) cuts.push_back(s.loops[i]);
    return cuts;
  }
  void find_cuts(const Scope& s, int rank, const GridMap& grid, const LoopMap& loops) {
    for (int d = 0; d < rank; d++)
      for (int node : cuts_of(s, d, grid, loops)) cuts_[size_t(node)] = true;
  }
  int add_node(int64_t extent) {
    nodes_.add();
    tiles_.push_back(extent);
    extent_.push_back(extent);
    return int(nodes()) - 1;
  }

  // One operator of a scope: its operands' and result's axes by number.
  struct View {
    const Scope& s;
    const Op& op;
    const Shape& shape(TensorId t) const { return s.graph->type(t).shape; }
    int rank(TensorId t) const { return int(shape(t).size()); }
    int64_t extent(TensorId t, int axis) const { return shape(t)[size_t(axis)].extent; }
    int node(TensorId t, int axis) const { return s.first[t.index] + axis; }
    TensorId in(size_t i) const { return op.inputs[i]; }
    TensorId out() const { return op.result(); }
  };
  void fix_all(const View& v, TensorId t) {
    for (int d = 0; d < v.rank(t); d++) fix(v.node(t, d));
  }
  // Position i of one axis goes with position i of the other; an extent of 1 goes with all.
  void same(const View& v, TensorId a, int axis_a, TensorId b, int axis_b) {
    const int64_t x = v.extent(a, axis_a), y = v.extent(b, axis_b);
    if (x == y && x != 1) join(v.node(a, axis_a), v.node(b, axis_b));
  }
  void fix_both(const View& v, TensorId x, int axis, int to) {
    fix(v.node(x, axis));
    fix(v.node(v.out(), to));
  }
  // The axes of an operand and of the result for which `alike` go together; the others are fixed.
  template <class F> void same_where(const View& v, TensorId x, F alike) {
    for (int d = 0; d < v.rank(v.out()); d++)
      alike(d) ? same(v, x, d, v.out(), d) : fix_both(v, x, d, d);
  }
  // NumPy broadcasting of the axes before the last `skip`.
  void broadcast(const View& v, TensorId from, TensorId to, int skip = 0) {
    for (int back = 1 + skip; back <= std::min(v.rank(from), v.rank(to)); back++)
      same(v, from, v.rank(from) - back, to, v.rank(to) - back);
  }
  void matmul(const View& v, TensorId a, TensorId b) {
    const TensorId r = v.out();
    broadcast(v, a, r, 2);
    broadcast(v, b, r, 2);
    same(v, a, v.rank(a) - 2, r, v.rank(r) - 2);
    same(v, b, v.rank(b) - 1, r, v.rank(r) - 1);
    same(v, a, v.rank(a) - 1, b, v.rank(b) - 2);
    fold(v.node(a, v.rank(a) - 1));
    fold(v.node(b, v.rank(b) - 2));
  }
  // Axes are joined by groups with the same number of elements. In a group of several axes the
  // outermost of both sides go together, as ranges of positions; the others are fixed.
  void reshape(const View& v, TensorId x, TensorId r) {
    int i = 0, j = 0;
    while (i < v.rank(x) || j < v.rank(r)) {
      while (i < v.rank(x) && v.extent(x, i) == 1) i++;
      while (j < v.rank(r) && v.extent(r, j) == 1) j++;
      if (i == v.rank(x) || j == v.rank(r)) return;
      int64_t left = v.extent(x, i), right = v.extent(r, j);
      if (left == right || level_ == 0) {
        join(v.node(x, i), v.node(r, j));
      } else {
        fix(v.node(x, i));
        fix(v.node(r, j));
      }
      i++, j++;
      while (left != right) {
        if (left < right) {
          fix_if_axis(v, x, i);
          left *= v.extent(x, i++);
        } else {
          fix_if_axis(v, r, j);
          right *= v.extent(r, j++);
        }
      }
    }
  }
  void fix_if_axis(const View& v, TensorId t, int axis) {
    CHECK(axis < v.rank(t)) << "a reshape keeps the number of elements";
    fix(v.node(t, axis));
  }
  void reduce(const View& v, const ReduceAttrs& a) {
    int to = 0;
    for (int d = 0; d < v.rank(v.in(0)); d++) {
      const bool gone = std::ranges::binary_search(a.axes, d);
      if (gone)
        fold(v.node(v.in(0), d));
      else
        same(v, v.in(0), d, v.out(), to);
      to += !gone || a.keepdims;
    }
  }
  // A kernel's whole tensor and its tile in a block. What cuts an axis at this level goes with it;
  // below all cuts the tile does, if the tiles above were exactly those of the cuts.
  void tiles(const View& v, TensorId whole, TensorId tile, const GridMap& grid,
             const LoopMap& loops) {
    for (int d = 0; d < v.rank(whole); d++) {
      const int all = v.node(whole, d), part = v.node(tile, d);
      const std::vector<int> cuts = cuts_of(v.s, d, grid, loops);
      const int depth = int(cuts.size());
      if (depth == 0) {
        same(v, whole, d, tile, d);
        continue;
      }
      // Which cut this level is inside of, after what the levels above took of the outer ones.
      int now = 0;
      int64_t left = count_of(v, cuts[0]);
      while (left == 1 && now < depth)
        if (++now < depth) left = count_of(v, cuts[size_t(now)]);
      bool exact = true;
      for (int k = 0; k < level_ && exact; k++) {
        const std::vector<int64_t>& taken = tiles_above_[size_t(k)];
        const int64_t tiles = taken[size_t(all)];
        for (int c = 0; c < depth; c++)
          exact = exact && taken[size_t(cuts[size_t(c)])] == (c == now ? tiles : 1);
        if (now == depth) continue;
        exact = exact && left % tiles == 0;
        left /= tiles;
        while (left == 1 && now < depth)
          if (++now < depth) left = count_of(v, cuts[size_t(now)]);
      }
      const bool here = exact && now < depth && extent_[size_t(all)] % left == 0;
      if (exact && now == depth) {
        join(all, part);
      } else {
        fix(part);
        if (here)
          join(all, cuts[size_t(now)]);
        else
          fix(all);
      }
      // What cuts an axis at another level must stay as it is at this one.
      for (int c = 0; c < depth; c++)
        if (!here || c != now) fix(cuts[size_t(c)]);
    }
  }
  // Blocks or iterations of a node.
  static int64_t count_of(const View& v, int node) {
    for (size_t i = 0; i < v.s.grid.size(); i++)
      if (v.s.grid[i] == node) return v.s.graph->grid()[i];
    for (size_t i = 0; i < v.s.loops.size(); i++)
      if (v.s.loops[i] == node) return v.s.graph->loops()[i];
    unreachable("neither a grid dimension nor a loop");
  }
  void body_of(const View& v) {
    const Scope& inner = v.s.inner[v.op.body.index];
    auto pair = [&](TensorId outside, TensorId inside) {
      for (int d = 0; d < v.rank(outside); d++)
        join(v.node(outside, d), inner.first[inside.index] + d);
    };
    for (size_t i = 0; i < v.op.inputs.size(); i++) pair(v.op.inputs[i], inner.graph->inputs()[i]);
    for (uint32_t r = 0; r < v.op.num_results; r++) pair(v.op.result(r), inner.graph->outputs()[r]);
    read(inner);
  }

  void kernel(const View& v) {
    body_of(v);
    const Scope& inner = v.s.inner[v.op.body.index];
    for (const auto* nodes : {&inner.grid, &inner.loops})
      for (int n : *nodes)
        if (!cuts_[size_t(n)]) fix(n);
    // Blocks that differ in a dimension which a result does not know would all write the same.
    for (TensorId t : inner.graph->outputs()) {
      const auto& a = inner.graph->attrs<SaveAttrs>(inner.graph->producer(t));
      for (size_t i = 0; i < inner.grid.size(); i++)
        if (a.omap[i] < 0) fix(inner.grid[i]);
    }
  }
  void accumulate(const View& v, const AccumAttrs& a) {
    const bool joins = a.kind == AccumKind::Concat;
    for (int l : a.loops) joins ? fix(v.s.loops[size_t(l)]) : fold(v.s.loops[size_t(l)]);
    if (v.op.inputs.size() == 2) return broadcast_all(v);
    same_where(v, v.in(0), [&](int d) { return !joins || d != a.axis; });
  }
  // Channels are contracted as in a product; of groups, and along the window, every index counts.
  void convolution(const View& v, const ConvAttrs& a) {
    const bool grouped = a.groups != 1;
    const int in = v.op.kind == OpKind::Conv ? 1 : 0;  // axis of the weights
    same(v, v.in(0), 0, v.out(), 0);
    if (!grouped) {
      same(v, v.in(0), 1, v.in(1), in);
      same(v, v.in(1), 1 - in, v.out(), 1);
      fold(v.node(v.in(1), in));
    }
    for (TensorId t : {v.in(0), v.in(1), v.out()})
      for (int d = grouped && t != v.in(1) ? 1 : 2; d < v.rank(t); d++) fix(v.node(t, d));
    if (grouped)
      for (int d : {0, 1}) fix(v.node(v.in(1), d));
  }
  void gather(const View& v, int axis) {
    const int more = v.rank(v.in(1)) - 1;
    fix(v.node(v.in(0), axis));
    for (int d = 0; d < v.rank(v.in(0)); d++)
      if (d != axis) same(v, v.in(0), d, v.out(), d < axis ? d : d + more);
    for (int d = 0; d < v.rank(v.in(1)); d++) same(v, v.in(1), d, v.out(), axis + d);
  }
  void stack(const View& v, int axis) {
    fix(v.node(v.out(), axis));
    for (TensorId t : v.op.inputs)
      for (int d = 0; d < v.rank(t); d++) same(v, t, d, v.out(), d + (d >= axis));
  }
  void move(const View& v, const std::vector<AxisRead>& reads) {
    for (size_t d = 0; d < reads.size(); d++) {
      const AxisRead& r = reads[d];
      if (r.axis < 0) continue;
      const int64_t from = v.extent(v.in(0), int(d)), to = v.extent(v.out(), r.axis);
      if (from == to || (from == 1 && v.op.kind == OpKind::Broadcast))
        same(v, v.in(0), int(d), v.out(), r.axis);
      else
        fix_both(v, v.in(0), int(d), r.axis);
    }
  }
  void broadcast_all(const View& v) {
    for (TensorId t : v.op.inputs) broadcast(v, t, v.out());
  }

  void read(const Scope& s, const Op& op) {
    interruption_point();
    const Graph& g = *s.graph;
    const View v{s, op};
    if (has(op.kind, algebra::Pointwise)) return broadcast_all(v);
    const auto reads = op.inputs.empty()
                           ? std::nullopt
                           : axis_reads(op.kind, op.attrs, v.rank(v.in(0)), v.rank(v.out()));
    if (reads) return move(v, *reads);
    const auto innermost = [&](int n) {
      same_where(v, v.in(0), [&](int d) { return d < v.rank(v.out()) - n; });
    };
    if (const auto* a = std::get_if<ReduceAttrs>(&op.attrs)) return reduce(v, *a);
    if (const auto* a = std::get_if<WindowAttrs>(&op.attrs)) return innermost(int(a->size.size()));
    if (const auto* a = std::get_if<ConvAttrs>(&op.attrs)) return convolution(v, *a);
    if (const auto* a = std::get_if<AccumAttrs>(&op.attrs)) return accumulate(v, *a);
    if (const auto* a = std::get_if<IterAttrs>(&op.attrs))
      return tiles(v, v.in(0), v.out(), a->imap, a->fmap);
    if (const auto* a = std::get_if<SaveAttrs>(&op.attrs))
      return tiles(v, v.out(), v.in(0), a->omap, a->fmap);
    if (const auto* a = std::get_if<IotaAttrs>(&op.attrs)) return fix(v.node(v.out(), a->axis));
    if (const auto* a = std::get_if<PadAttrs>(&op.attrs))
      return same_where(v, v.in(0),
                        [&](int d) { return a->low[size_t(d)] == 0 && a->high[size_t(d)] == 0; });
    if (is_given(op.kind)) return;
    if (is_triangle(op.kind)) return innermost(2);
    if (is_thread(op.kind)) return body_of(v);
    if (is_kernel(op.kind)) return kernel(v);
    if (is_product(op.kind)) {
      const size_t n = op.inputs.size() / 2;
      for (size_t i = 0; i < n; i++) matmul(v, v.in(i), v.in(i + n));
      return;
    }
    if (is_scan(op.kind) || op.kind == OpKind::Concat) {
      for (TensorId t : op.inputs)
        same_where(v, t, [&](int d) { return d != g.attrs<AxisAttrs>(op).axis; });
      return;
    }
    if (op.kind == OpKind::Reshape) return reshape(v, v.in(0), v.out());
    if (op.kind == OpKind::Stack) return stack(v, g.attrs<AxisAttrs>(op).axis);
    if (op.kind == OpKind::Gather) return gather(v, g.attrs<AxisAttrs>(op).axis);
    CHECK(is_opaque(op.kind)) << name(op.kind) << " is an operator whose axes are not known";
    for (TensorId t : op.inputs) fix_all(v, t);
    for (uint32_t r = 0; r < op.num_results; r++) fix_all(v, op.result(r));
  }

  Folds folds_;
  int level_ = 0;
  UnionFind nodes_;
  std::vector<int64_t> tiles_;   // of the root: a common divisor of all extents; 1 where fixed
  std::vector<int64_t> extent_;  // of a tile of the level above
  std::vector<bool> cuts_;       // grid dimensions and loops that cut some axis
  std::vector<std::vector<int64_t>> tiles_above_;  // by level above and node
};

Symmetry::Symmetry(std::vector<const Graph*> programs, Folds folds) {
  Builder first(folds);
  for (const Graph* g : programs) scopes_.push_back(first.enter(*g));
  auto read = [&](Builder& b) {
    for (const Scope& s : scopes_) b.read(s);
    const Scope& one = scopes_[0];
    for (const Scope& s : scopes_) {
      auto pair = [&](TensorId x, TensorId y) {
        for (size_t d = 0; d < one.graph->type(x).shape.size(); d++)
          b.join(one.first[x.index] + int(d), s.first[y.index] + int(d));
      };
      for (size_t i = 0; i < one.graph->inputs().size(); i++)
        pair(one.graph->inputs()[i], s.graph->inputs()[i]);
      for (size_t i = 0; i < one.graph->outputs().size(); i++)
        pair(one.graph->outputs()[i], s.graph->outputs()[i]);
    }
  };
  auto classes_of = [&](Builder& b, std::vector<int>& class_of) {
    std::map<size_t, int> index;
    class_of.assign(b.nodes(), -1);
    for (size_t n = 0; n < b.nodes(); n++) {
      if (b.tiles(int(n)) <= 1) continue;
      auto [it, fresh] = index.emplace(b.find(int(n)), int(classes_.size()));
      if (fresh) classes_.push_back({b.tiles(int(n)), 1});
      class_of[n] = it->second;
    }
    for (const Scope& s : scopes_) count_axes(s, class_of);
  };
  constexpr int kLevels = 4;
  for (int level = 0; level < kLevels; level++) {
    read(first);
    levels_.emplace_back();
    classes_of(first, levels_.back());
    Builder next(first, level + 1);
    first = std::move(next);
  }
}

void Symmetry::count_axes(const Scope& s, const std::vector<int>& class_of) {
  for (size_t t = 0; t < s.graph->tensors().size(); t++) {
    std::map<int, int64_t> axes;
    for (size_t d = 0; d < s.graph->tensors()[t].type.shape.size(); d++)
      if (const int c = class_of[size_t(s.first[t]) + d]; c >= 0)
        classes_[size_t(c)].most_axes = std::max(classes_[size_t(c)].most_axes, ++axes[c]);
  }
  for (const Scope& inner : s.inner) count_axes(inner, class_of);
}

}  // namespace tessera
