// Sizes of tiles: what a kernel costs with a grid and a loop, and the best of them.
#include <algorithm>
#include <bit>
#include <set>

#include "base/interruption.h"
#include "ir/block.h"
#include "search/mugraph/kernels.h"

namespace tessera::mugraph {
namespace {

// Elements of a tile along these axes.
double volume_of(AxisMask axes, const std::vector<int64_t>& tile) {
  double v = 1;
  for (; axes; axes &= axes - 1) v *= double(tile[size_t(lowest(axes))]);
  return v;
}

}  // namespace

// Compute of one edge on tiles of the given sizes, by axis.
double KernelSearch::edge_seconds(const Edge& e, const std::vector<int64_t>& tile) const {
  interruption_point();
  const auto volume = [&](AxisMask m) { return volume_of(m, tile); };
  const Value& a = graph_.values[e.in[0]];
  const Value& out = graph_.values[e.out];
  DType t = e.in[0] == kOne && e.arity > 1 ? graph_.values[e.in[1]].dtype : a.dtype;
  if (e.op == EdgeOp::Matmul) {
    const auto [row, col] = matrix_axes(e);
    return machine_.matmul(t, volume(out.axes & ~row & ~col), volume(row), volume(col),
                           volume(e.bits));
  }
  if (e.op == EdgeOp::Sum || (e.op == EdgeOp::Fn && e.bits))
    return machine_.reduce(t, volume(a.axes));
  return machine_.pointwise(op_kind(e, forms_), t, volume(out.axes));
}

std::pair<AxisMask, AxisMask> KernelSearch::matrix_axes(const Edge& e) const {
  const AxisMask a = graph_.values[e.in[0]].axes, b = graph_.values[e.in[1]].axes;
  auto last = [&](AxisMask own) {
    AxisMask axis = own ? AxisMask(1) << (63 - __builtin_clzll(own)) : 0;
    for (const Split& s : splits_)
      if (axis == s.parts) axis |= own & s.inside;
    return axis;
  };
  return {last(a & ~b), last(b & ~a)};
}

// Of a kernel that is one product of two whole tensors.
double KernelSearch::library_seconds(const Kernel& k) const {
  if (k.edges.size() != 1 || k.parts) return INFINITY;
  const Edge& e = graph_.edges[k.edges[0]];
  if (e.op != EdgeOp::Matmul || count(e.bits) != 1) return INFINITY;
  const Value &a = graph_.values[e.in[0]], &b = graph_.values[e.in[1]];
  const auto [row, col] = matrix_axes(e);
  if (count(row) != 1 || count(col) != 1) return INFINITY;
  LibraryCall call;
  call.dtype = a.dtype;
  call.rows = length(row);
  call.columns = length(col);
  call.depth = length(e.bits);
  const AxisMask batch = graph_.values[e.out].axes & ~row & ~col;
  for (AxisMask m = batch; m; m &= m - 1) call.batch *= extents_[size_t(lowest(m))];
  call.left_batched = (a.axes & batch) != 0;
  call.right_batched = (b.axes & batch) != 0;
  return machine_.library(call);
}

KernelSearch::Shape KernelSearch::shape_of(const Kernel& k) const {
  Shape s;
  const auto phase = phases(k);
  auto move = [&](ValueId v, bool load) {
    const Value& x = graph_.values[v];
    AxisMask inner = 0;
    if (x.view >= 0) {
      const std::vector<int>& dims = region_.views[size_t(x.view)].dims;
      if (!dims.empty() && dims.back() >= 0) inner = region_.bits(dims.back());
    }
    s.moved.push_back({x.axes, double(size_in_bytes(x.dtype)), bytes(v),
                       load && x.view >= 0 ? resident_ : bytes(v), phase.at(v), load, x.view >= 0,
                       inner, (x.axes & k.nested) != 0});
  };
  for (ValueId v : k.loads) move(v, true);
  for (ValueId v : k.outputs) move(v, false);
  std::set<ValueId> reused;
  for (uint32_t i : k.edges) {
    const Edge& e = graph_.edges[i];
    Shape::Step step{&e, graph_.values[e.out].axes, graph_.values[e.out].dtype};
    const Placed at = phase.at(e.out);
    step.over_loop = (e.bits & k.folds) != 0;
    step.in_loop = step.over_loop || at.phase == KernelPhase::Loop;
    step.post = at.phase == KernelPhase::Post && !step.over_loop;
    step.runs = std::max(1, std::popcount(at.passes));
    step.over_nested = (e.bits & k.nested) != 0;
    step.nested = step.over_nested || (graph_.values[e.out].axes & k.nested);
    if (!e.bits) {  // a pointwise result takes over the first computed operand of its size
      for (int j = 0; j < e.arity && !step.in_place; ++j) {
        ValueId u = e.in[size_t(j)];
        auto it = phase.find(u);
        step.in_place = it != phase.end() && it->second.phase == at.phase &&
                        graph_.values[u].axes == graph_.values[e.out].axes &&
                        !std::ranges::binary_search(k.loads, u) && reused.insert(u).second;
      }
    }
    s.steps.push_back(step);
  }
  s.library = library_seconds(k);
  return s;
}

// The kernel with the tiles of its grid and loop, and what a block keeps in memory.
KernelWork KernelSearch::work_of(Kernel& k, const Shape& shape, std::vector<int64_t>& tile) const {
  interruption_point();
  tile = extents_;
  KernelWork w;
  // Cuts what a tile has along some axes; the number of tiles that are not empty.
  auto cut = [&](AxisMask axes, int64_t n) {
    int64_t most = 1;
    for (const Split& s : splits_) {
      if ((axes & s.inside) && (axes & s.parts)) {  // the whole of a split axis
        int64_t& t = tile[size_t(lowest(s.inside))];
        t = ceil_div(s.extent, n);
        tile[size_t(lowest(s.parts))] = 1;
        most = std::max(most, ceil_div(s.extent, t));
        axes &= ~(s.inside | s.parts);
      }
    }
    for (; axes; axes &= axes - 1) {
      int64_t& t = tile[size_t(lowest(axes))];
      const int64_t all = t;
      t = ceil_div(all, n);
      most = std::max(most, ceil_div(all, t));
    }
    return double(most);
  };
  for (const Kernel::GridDim& g : k.grid) w.blocks *= cut(g.axes, g.parts);
  const double iterations = k.loop >= 0 ? cut(k.varies, k.loop_parts) : 1;
  // Whatever changes with the inner loop is there, or computed, in every iteration of both.
  const double nested = k.nested ? iterations * cut(k.nested, k.nested_parts) : iterations;
  w.iterations = iterations * k.passes + (k.nested ? nested : 0);
  w.restarts = k.passes - 1 + (k.nested ? iterations - 1 : 0);
  const auto volume = [&](AxisMask m) { return volume_of(m, tile); };
  // A GPU copies the next tile while it works on this one; a CPU reads the tensor in place.
  const bool twice = machine_.target().kind == TargetKind::Gpu && w.iterations > 1;
  double loop_bytes = 0, post_bytes = 0, again = 0, block_loads = 0;
  for (const Shape::Moved& m : shape.moved) {
    const bool in_loop = m.at.phase == KernelPhase::Loop;
    double n = volume(m.axes) * m.element;
    double total = n * (m.nested ? nested : in_loop ? iterations : 1.0) * w.blocks;
    if (m.inner)
      total *= machine_.line_waste(volume(m.inner), double(length(m.inner)), m.element, m.bytes);
    machine_.add_traffic(w, m.bytes, std::max(total, m.bytes), m.resident);
    if (in_loop) block_loads += total / w.blocks;
    if (!m.load) continue;
    if (in_loop) again += total * std::max(0, std::popcount(m.at.passes) - 1);
    loop_bytes += twice && in_loop ? 2 * n : n;
    if (twice && in_loop) w.iteration_bytes += n;
    if (m.at.phase == KernelPhase::Invariant) post_bytes += n;
  }
  if (again > 0) machine_.add_reread(w, again, block_loads);
  for (const Shape::Step& s : shape.steps) {
    const double times = s.nested ? nested : s.in_loop ? iterations * s.runs : 1.0;
    w.block_compute += times * edge_seconds(*s.edge, tile);
    // Thread graphs join elementwise operators, two or three of them as a rule.
    w.steps += times * (s.edge->op == EdgeOp::Matmul || s.edge->bits ? 1 : 0.4);
    double elements = volume(s.out);
    if (s.over_loop) w.accumulators += elements;
    if (s.over_loop || s.over_nested)
      w.block_compute +=
          (s.nested ? nested : iterations) * machine_.pointwise(OpKind::Add, s.dtype, elements);
    if (s.over_loop) {
      loop_bytes += 4 * elements;
      post_bytes += 4 * elements;
    } else if (!s.in_place) {
      (s.post ? post_bytes : loop_bytes) += 4 * elements;
    }
  }
  k.block_bytes = std::max(loop_bytes, post_bytes);
  w.other_bytes = std::max(0.0, k.block_bytes - 2 * w.iteration_bytes);
  return w;
}

// One block of the second for every tile of results that the first one's blocks share: those that
// differ in their parts alone.
bool KernelSearch::join(Kernel& second, const Kernel& first, KernelCounters& counters) const {
  if (!first.parts) return false;
  KernelJoin join;
  Kernel before = first, after = second;
  after.grid.clear();
  for (const Kernel::GridDim& g : first.grid) {
    if (g.axes & first.parts) {
      join.arrivals *= g.parts;
      continue;
    }
    for (ValueId v : first.outputs)
      if (std::ranges::binary_search(second.loads, v) && (graph_.values[v].axes & g.axes) != g.axes)
        return false;
    for (ValueId v : second.outputs)
      if ((graph_.values[v].axes & g.axes) != g.axes) return false;
    if (g.axes & (second.varies | second.nested)) return false;
    for (uint32_t i : second.edges)
      if (graph_.edges[i].bits & g.axes) return false;
    join.groups *= g.parts;
    after.grid.push_back(g);
  }
  if (join.arrivals < 2) return false;
  const Shape shape = shape_of(after);
  std::vector<int64_t> tile;
  const KernelWork work = work_of(before, shape_of(before), tile);
  const double limit = double(machine_.target().block_bytes()) * options_.memory_share;
  std::optional<Kernel> best;
  const int64_t most = after.loop < 0 ? 1 : length(after.varies);
  const auto attempt = [&] {
    for (int64_t n = after.loop < 0 ? 1 : 2; n <= most; n *= 2) {
      after.loop_parts = n;
      ++counters.tilings;
      after.seconds =
          machine_.joined_seconds(work, work_of(after, shape, tile), join) - first.seconds;
      if (options_.memory_rule && after.block_bytes > limit) continue;
      if (!best || after.seconds < best->seconds) best = after;
    }
  };
  // One block a group, or, for blocks that share the work, as many as there are, along one axis
  // more or two.
  AxisMask used = 0;
  for (const Kernel::GridDim& g : after.grid) used |= g.axes;
  std::vector<AxisMask> more = those(grid_axes(after), [&](AxisMask a) { return !(a & used); });
  const std::vector<Kernel::GridDim> kept = after.grid;
  const auto cut = [&](AxisMask axes, int64_t n) {
    const int64_t all = length(axes);
    if (n <= 1) return;
    after.grid.push_back({axes, ceil_div(all, ceil_div(all, n))});
    join.parts *= after.grid.back().parts;
  };
  attempt();
  for (size_t a = 0; a < more.size(); ++a)
    for (size_t b = a; b < more.size(); ++b)
      for (int64_t m = 2; m <= std::min({length(more[a]), join.arrivals, int64_t{16}}); m *= 2)
        for (int64_t n = 1; n * m <= std::min(join.arrivals, int64_t{16}); n *= 2) {
          if (n > (a == b ? 1 : length(more[b]))) break;
          after.grid = kept;
          join.parts = 1;
          cut(more[a], m);
          cut(more[b], n);
          if (after.grid.size() <= 3) attempt();
        }
  if (!best || best->seconds >= second.seconds) return false;
  second = std::move(*best);
  return true;
}

// Elements along an axis, or both parts of a split one; the longest of several axes.
int64_t KernelSearch::length(AxisMask axes) const {
  int64_t n = 1;
  for (const Split& s : splits_) {
    if ((axes & s.inside) && (axes & s.parts)) {
      n = std::max(n, s.extent);
      axes &= ~(s.inside | s.parts);
    }
  }
  for (; axes; axes &= axes - 1) n = std::max(n, extents_[size_t(lowest(axes))]);
  return n;
}

// What the grid may cut: axes that all outputs have and nothing reduces; outputs that have
// different axes may be cut along one of each together. At most three, by extent.
std::vector<AxisMask> KernelSearch::grid_axes(const Kernel& k) const {
  AxisMask common = ~AxisMask(0), some = 0, reduced = k.varies | k.nested;
  for (ValueId v : k.outputs) {
    common &= graph_.values[v].axes;
    some |= graph_.values[v].axes;
  }
  for (uint32_t i : k.edges) reduced |= graph_.edges[i].bits;
  std::vector<AxisMask> axes;
  auto take = [&](AxisMask m, std::vector<AxisMask>& out) {
    for (const Split& s : splits_) {
      const AxisMask both = s.inside | s.parts;
      if ((m & both) == both) out.push_back(both);
      if ((m & both) != s.parts) m &= ~both;  // partial results stay
    }
    for (; m; m &= m - 1) out.push_back(m & -m);
    std::ranges::stable_sort(out, [&](AxisMask a, AxisMask b) { return length(a) > length(b); });
  };
  take(common & ~reduced, axes);
  AxisMask joint = 0;
  for (ValueId v : k.outputs) {
    if (graph_.values[v].axes & joint) continue;
    std::vector<AxisMask> own;
    take(graph_.values[v].axes & ~common & ~reduced, own);
    if (own.empty()) {
      joint = 0;
      break;
    }
    joint |= own.front();
  }
  auto clash = [&](ValueId v) {  // a tensor with two of the axes would be cut along both
    AxisMask m = graph_.values[v].axes & joint;
    for (const Split& s : splits_)
      if (m & s.inside) m &= ~s.parts;
    return count(m) > 1;
  };
  for (ValueId v : k.loads) joint = clash(v) ? 0 : joint;
  for (uint32_t i : k.edges) joint = clash(graph_.edges[i].out) ? 0 : joint;
  if (joint) axes.push_back(joint);
  // Partial results come first: their grid is not a choice.
  std::ranges::stable_sort(axes, [&](AxisMask a, AxisMask b) {
    const bool pa = (a & k.parts) != 0, pb = (b & k.parts) != 0;
    return pa != pb ? pa : length(a) > length(b);
  });
  if (axes.size() > size_t(kMaxGridDims)) axes.resize(size_t(kMaxGridDims));
  std::ranges::sort(axes);
  return axes;
}

// Coordinate descent over the parts of each grid axis and of the loops. Tiles over the memory limit
// cost extra in proportion, so that the descent finds its way into the limit.
class KernelSearch::Tiling {
 public:
  Tiling(const KernelSearch& search, Kernel& k, const Shape& shape, KernelCounters& counters,
         double share)
      : search_(search), target_(search.machine_.target()), gpu_(target_.kind == TargetKind::Gpu),
        limit_(double(target_.block_bytes()) * share * search.options_.memory_share), k_(k),
        shape_(shape), counters_(counters) {}

  // False where a loop would have one iteration only: that is the kernel without it.
  bool set_choices() {
    for (AxisMask a : search_.grid_axes(k_)) add(a);
    loop_at_ = axes_.size();
    if (k_.loop >= 0) add(k_.varies);
    if (k_.nested) add(k_.nested);
    for (size_t i = loop_at_; i < axes_.size(); ++i) {
      choices_[i].erase(choices_[i].begin());
      if (choices_[i].empty()) return false;
    }
    return true;
  }

  // Whether the tiles of another kernel fit, and this one costs more with them.
  bool exceeds(const Kernel& like, double seconds) {
    k_.grid = like.grid;
    k_.loop_parts = like.loop_parts;
    k_.nested_parts = like.nested_parts;
    return price() > seconds && fits();
  }

  // Leaves the kernel with the best tiles; false where none fit.
  bool run() {
    start();
    double combinations = 1;
    for (const auto& c : choices_) combinations *= double(c.size());
    if (combinations <= 64)
      try_all(combinations);
    else
      for (int round = 0; round < 4; ++round)
        if (!try_axes() && !try_pairs()) break;
    k_.seconds = cost(best_);
    // Of kernels that a call replaces, those with good tiles come first: it may not be there.
    if (shape_.library < k_.seconds)
      k_.seconds = shape_.library + 1e-4 * (k_.seconds - shape_.library);
    return fits();
  }

 private:
  using Point = std::vector<size_t>;  // by axis, the number of a choice

  bool fits() const { return !search_.options_.memory_rule || k_.block_bytes <= limit_; }

  void add(AxisMask axes) {
    axes_.push_back(axes);
    choices_.push_back(parts_of(axes));
  }
  // All parts of a partial result at once; otherwise powers of two, and whole vectors that divide
  // the extent evenly.
  std::vector<int64_t> parts_of(AxisMask axes) const {
    // What sizes of tiles are multiples of: vectors, or the tensor cores' matrices.
    const int64_t lanes = gpu_ ? 16 : std::max(1, target_.vector_bytes / 4);
    const int64_t n = search_.length(axes);
    if (axes & k_.parts) return {n};
    std::set<int64_t> parts{1};
    for (int64_t t = 1; t < n; t *= 2) parts.insert(ceil_div(n, t));
    for (int64_t p : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128})
      if (p < n && n % p == 0 && (n / p) % lanes == 0) parts.insert(p);
    // One or two blocks for every multiprocessor.
    for (int64_t p : {int64_t{1}, int64_t{2}}) {
      const int64_t t = ceil_div(ceil_div(n, p * target_.cores), lanes) * lanes;
      if (gpu_ && t < n) parts.insert(ceil_div(n, t));
    }
    return {parts.begin(), parts.end()};
  }

  double price() {
    ++counters_.tilings;
    return k_.seconds = search_.machine_.seconds(search_.work_of(k_, shape_, tile_));
  }
  double cost(const Point& at) {
    k_.grid.clear();
    for (size_t i = 0; i < loop_at_; ++i)
      if (choices_[i][at[i]] > 1) k_.grid.push_back({axes_[i], choices_[i][at[i]]});
    if (k_.loop >= 0) k_.loop_parts = choices_[loop_at_][at[loop_at_]];
    if (k_.nested) k_.nested_parts = choices_[loop_at_ + 1][at[loop_at_ + 1]];
    const double s = price();
    return fits() ? s : s * (1 + 4 * (k_.block_bytes / limit_));
  }
  bool attempt(const Point& at) {
    const double s = cost(at);
    if (s >= least_ * (1 - 1e-9)) return false;
    least_ = s;
    best_ = at;
    return true;
  }

  // About four blocks per core (one per multiprocessor), made from the last axes or from one axis
  // alone, and middle-sized iterations.
  void start() {
    const double enough = (gpu_ ? 1.0 : 4.0) * target_.cores;
    Point middle(choices_.size(), 0);
    for (size_t i = loop_at_; i < choices_.size(); ++i) {
      const auto& c = choices_[i];
      while (middle[i] + 1 < c.size() && ceil_div(search_.length(axes_[i]), c[middle[i]]) > 128)
        ++middle[i];
    }
    auto grow = [&](Point& at, size_t i, double& blocks) {
      while (at[i] + 1 < choices_[i].size() && blocks * double(choices_[i][at[i]]) < enough)
        ++at[i];
      blocks *= double(choices_[i][at[i]]);
    };
    best_ = middle;
    double blocks = 1;
    for (size_t i = loop_at_; i-- > 0;) grow(best_, i, blocks);
    least_ = cost(best_);
    for (size_t i = 0; i < loop_at_ && loop_at_ > 1; ++i) {
      Point at = middle;
      blocks = 1;
      grow(at, i, blocks);
      if (at != best_) attempt(at);
    }
  }
  void try_all(double combinations) {
    Point at(choices_.size(), 0);
    for (double i = 0; i < combinations; ++i) {
      attempt(at);
      for (size_t d = 0; d < at.size() && ++at[d] == choices_[d].size(); ++d) at[d] = 0;
    }
  }
  bool try_axes() {
    bool changed = false;
    for (size_t d = 0; d < choices_.size(); ++d) {
      Point at = best_;
      const size_t now = best_[d];
      for (size_t c = 0; c < choices_[d].size(); ++c) {
        at[d] = c;
        if (c != now && attempt(at)) changed = true;
      }
    }
    return changed;
  }
  // One axis cut finer, another coarser.
  bool try_pairs() {
    bool changed = false;
    for (size_t d = 0; d < choices_.size(); ++d) {
      for (size_t e = 0; e < choices_.size(); ++e) {
        Point at = best_;
        if (d == e || at[d] + 1 >= choices_[d].size() || at[e] == 0) continue;
        ++at[d];
        --at[e];
        if (attempt(at)) changed = true;
      }
    }
    return changed;
  }

  const KernelSearch& search_;
  const Target& target_;
  const bool gpu_;
  const double limit_;
  Kernel& k_;
  const Shape& shape_;
  KernelCounters& counters_;
  std::vector<AxisMask> axes_;  // of the grid, then of the loops
  std::vector<std::vector<int64_t>> choices_;
  size_t loop_at_ = 0;
  Point best_;
  double least_ = 0;
  std::vector<int64_t> tile_;
};

bool KernelSearch::choose_tiles(Kernel& k, KernelCounters& counters, double share,
                                const Kernel* like, double limit_seconds) const {
  return choose_tiles(k, shape_of(k), counters, share, like, limit_seconds);
}

bool KernelSearch::choose_tiles(Kernel& k, const Shape& shape, KernelCounters& counters,
                                double share, const Kernel* like, double limit_seconds) const {
  Tiling tiling(*this, k, shape, counters, share);
  return tiling.set_choices() && !(like && tiling.exceeds(*like, limit_seconds)) && tiling.run();
}

bool KernelSearch::is_tight(const Kernel& k) const {
  return options_.nests && options_.memory_rule && k.loop >= 0 && k.passes == 1 && !k.nested &&
         k.block_bytes > 0.5 * double(machine_.target().block_bytes()) * options_.memory_share;
}

// The inner loop runs only inside the outer one, once per iteration: nothing in it uses what it has
// folded, what changes with it is not left over from the outer loop, and what it folds or stores
// changes with both.
bool KernelSearch::can_nest(const Kernel& k, int axis) const {
  const AxisMask in = bit(axis);
  for (const Split& s : splits_)
    if (in & (s.inside | s.parts)) return false;
  if (k.loop < 0 || k.passes > 1 || k.nested || (in & (k.varies | k.parts))) return false;
  const std::map<ValueId, Placed> outer = phases(k);
  auto has = [&](ValueId v, AxisMask m) { return (graph_.values[v].axes & m) != 0; };
  auto both = [&](ValueId v) { return has(v, in) && has(v, k.varies); };
  bool loads = false, together = false;
  for (ValueId v : k.loads) {
    loads = loads || has(v, in);
    together = together || both(v);
  }
  std::set<ValueId> folded;  // over the inner loop
  for (uint32_t i : k.edges) {
    const Edge& e = graph_.edges[i];
    bool after = false, in_outer = false;
    for (ValueId u : e.operands()) {
      after = after || folded.count(u);
      in_outer = in_outer || has(u, k.varies);
    }
    const bool folds = (e.bits & in) != 0;
    if (after && (folds || has(e.out, in))) return false;
    if (has(e.out, in) && outer.at(e.out).phase == KernelPhase::Post) return false;
    if (folds && !in_outer) return false;
    if (folds || after) folded.insert(e.out);
    together = together || both(e.out);
  }
  for (ValueId v : k.outputs)
    if (has(v, in) && !both(v)) return false;
  return loads && together;
}

std::optional<Kernel> KernelSearch::nest(const Kernel& kernel, KernelCounters& counters) const {
  AxisMask axes = 0;
  for (ValueId v : kernel.loads) axes |= graph_.values[v].axes;
  std::optional<Kernel> best;
  for (; axes; axes &= axes - 1) {
    const int a = lowest(axes);
    if (extents_[size_t(a)] < 4 || !can_nest(kernel, a)) continue;
    Kernel k = kernel;
    k.nested = bit(a);
    if (choose_tiles(k, counters) && (!best || k.seconds < best->seconds)) best = std::move(k);
  }
  return best;
}

// A kernel with nothing but this operation, whose computed operands and result cost no traffic.
double KernelSearch::edge_floor(uint32_t index) const {
  const Edge& e = graph_.edges[index];
  if (e.op != EdgeOp::Matmul) return machine_.launch();
  Kernel k;
  k.outputs = {e.out};
  k.loads.assign(e.operands().begin(), e.operands().end());
  std::ranges::sort(k.loads);
  k.edges = {index};
  double least = INFINITY;
  std::vector<int> loops{-1};
  for (AxisMask m = graph_.values[e.in[0]].axes | graph_.values[e.in[1]].axes; m; m &= m - 1)
    if (const int a = lowest(m); region_.whole_of(a) < 0) loops.push_back(a);
  KernelCounters counters;
  for (int loop : loops) {
    if (!set_loop(k, loop)) continue;
    Shape shape = shape_of(k);
    std::erase_if(shape.moved, [&](const Shape::Moved& m) { return !m.load || !m.view; });
    // Where tiles do not fit even so, nothing is known.
    least = std::min(least, choose_tiles(k, shape, counters, 1, nullptr, 0) ? k.seconds : 0);
  }
  // The descent may miss the best tiles by a little.
  return std::max(0.98 * least, machine_.launch());
}

}  // namespace tessera::mugraph
