#include "search/mugraph/lower.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <set>
#include <stdexcept>

#include "base/check.h"
#include "ir/build.h"

namespace tessera::mugraph {
namespace {

constexpr double kImpossible = 1e30;

// One order of all axes in which most tensors of the region already are, outputs first.
std::vector<int> axis_order(const Region& region) {
  const size_t n = region.axes.size();
  std::vector<std::vector<char>> before(n, std::vector<char>(n, 0));
  auto path = [&](int from, int to) {
    std::vector<int> todo{from};
    std::vector<char> seen(n, 0);
    while (!todo.empty()) {
      int a = todo.back();
      todo.pop_back();
      if (a == to) return true;
      if (seen[size_t(a)]) continue;
      seen[size_t(a)] = 1;
      for (size_t b = 0; b < n; ++b)
        if (before[size_t(a)][b]) todo.push_back(int(b));
    }
    return false;
  };
  auto take = [&](const std::vector<int>& dims) {
    int last = -1;
    for (int a : dims) {
      if (a < 0) continue;
      if (last >= 0 && !path(a, last)) before[size_t(last)][size_t(a)] = 1;
      last = a;
    }
  };
  for (uint32_t t : region.targets) take(region.nodes[t].dims);
  for (const View& v : region.views) take(v.dims);
  for (const Node& v : region.nodes) take(v.dims);
  std::vector<int> order;
  std::vector<char> placed(n, 0);
  while (order.size() < n) {
    for (size_t a = 0; a < n; ++a) {
      bool ready = !placed[a];
      for (size_t b = 0; b < n; ++b) ready = ready && (placed[b] || !before[b][a]);
      if (ready) {
        placed[a] = 1;
        order.push_back(int(a));
        break;
      }
    }
  }
  return order;
}

// A tensor of the block graph, or of the program around it: coef · value, its dimensions named by
// axes (-1: extent 1).
struct Real {
  TensorId tensor;
  std::vector<int> dims;
  Coef coef = 1;
  DType dtype = DType::F32;
};

class KernelLowering {
 public:
  KernelLowering(const Kernel& kernel, const Hypergraph& values, const Region& region,
                 const RegionForms& forms, const KernelSearch& kernels,
                 const std::vector<int>& order, const std::map<ValueId, Real>& stored,
                 const Graph& graph)
      : kernel_(kernel), values_(values), region_(region), forms_(forms), kernels_(kernels),
        phase_(kernels.phases(kernel)), stored_(stored), graph_(graph),
        block_(Graph::block({1}, {})) {
    position_.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) position_[size_t(order[i])] = int(i);
    std::vector<int64_t> grid, loops;
    for (const Kernel::GridDim& g : kernel.grid) grid.push_back(g.parts);
    if (grid.empty()) grid.push_back(1);
    if (kernel.loop >= 0) loops.assign(size_t(kernel.passes), kernel.loop_parts);
    if (kernel.nested) loops.push_back(kernel.nested_parts);
    empty_block_ = Graph::block(grid, loops);
  }

  struct Output {
    ValueId value;
    std::vector<int> dims;  // of the result
    Type type;
    bool internal = false;     // for later kernels only: dimensions as they come, `dims` is set
    std::optional<Coef> coef;  // required; none: whatever comes out
    std::string name;
  };

  // The cheapest single place for a scalar that would otherwise be applied at an output.
  void place_scalars(std::vector<Output>& outputs) {
    inject_.clear();
    double least = simulate(outputs);
    if (least == 0) return;
    std::vector<Coef> factors;
    for (const Coef& f : wanted_) {
      for (const Coef& g : {f, power(f, -1), f * f, power(f * f, -1)})
        if (!g.bad() && g.rational()) factors.push_back(g);
    }
    std::map<ValueId, Coef> best;
    std::vector<ValueId> places = kernel_.loads;
    for (uint32_t k : kernel_.edges) places.push_back(values_.edges[k].out);
    for (ValueId v : places) {
      for (const Coef& f : factors) {
        inject_ = {{v, f}};
        double cost = simulate(outputs);
        if (cost < least * (1 - 1e-9)) {
          least = cost;
          best = inject_;
        }
      }
    }
    inject_ = best;
  }

  // Builds the block graph; the coefficient of each output is in `coefs` afterwards.
  Graph build(std::vector<Output>& outputs, std::vector<TensorId>& inputs,
              std::vector<Coef>& coefs) {
    emitting_ = true;
    run(outputs);
    inputs = inputs_;
    coefs = output_coefs_;
    return std::move(block_);
  }

  double simulate(std::vector<Output>& outputs) {
    emitting_ = false;
    run(outputs);
    return cost_;
  }

 private:
  void run(std::vector<Output>& outputs) {
    block_ = empty_block_;
    real_.clear();
    inputs_.clear();
    constants_.clear();
    wanted_.clear();
    output_coefs_.clear();
    cost_ = 0;
    for (ValueId v : kernel_.loads) in_passes(v, [&] { load(v); });
    try {
      for (uint32_t k : kernel_.edges)
        in_passes(
            values_.edges[k].out, [&] { apply(values_.edges[k]); });
    } catch (const std::out_of_range&) {  // an operand that no kernel before has computed
      cost_ = kImpossible;
      return;
    }
    std::vector<TensorId> results;
    for (Output& o : outputs) {
      const Placed at = phase_.count(o.value) ? phase_.at(o.value) : Placed{};
      pass_ = at.passes ? std::countr_zero(unsigned(at.passes)) : 0;
      const auto computed = real_.find(key(o.value));
      if (computed == real_.end()) {  // a constant, or computed by another kernel of the plan
        cost_ = kImpossible;
        return;
      }
      Real r = computed->second;
      if (o.coef && !(*o.coef / r.coef).one()) {
        wanted_.push_back(*o.coef / r.coef);
        r = scaled(o.value, *o.coef / r.coef);
      }
      output_coefs_.push_back(r.coef);
      if (o.internal) {
        o.dims = r.dims;
        o.type.shape.clear();
        for (int a : o.dims) o.type.shape.push_back(Dim(a < 0 ? int64_t(1) : extent(a)));
      }
      TensorId t = arranged(r, o.dims, o.dims.size());
      SaveAttrs save;
      save.type = o.type;
      for (size_t g = 0; g < kernel_.grid.size(); ++g)
        save.omap[g] = dim_of(o.dims, kernel_.grid[g].axes);
      if (kernel_.loop >= 0) save.fmap[size_t(pass_)] = dim_of(o.dims, kernel_.varies);
      if (kernel_.nested) save.fmap[1] = dim_of(o.dims, kernel_.nested);
      if (emitting_) results.push_back(build::save(block_, t, save, o.name));
    }
    if (emitting_) block_.set_outputs(results);
  }

  // The dimension with one of these axes.
  int8_t dim_of(const std::vector<int>& dims, AxisMask axes) const {
    for (size_t i = 0; i < dims.size(); ++i)
      if (dims[i] >= 0 && (region_.bits(dims[i]) & axes)) return int8_t(i);
    return -1;
  }

  int64_t extent(int axis) const {
    return region_.whole_of(axis) >= 0 ? kernels_.extent(axis) : region_.axes[size_t(axis)].extent;
  }

  double times(ValueId v) const {
    const Placed at = phase_.at(v);
    return at.phase == KernelPhase::Loop ? double(kernel_.loop_parts) * std::popcount(at.passes)
                                         : 1.0;
  }

  TensorId add(OpKind kind, std::vector<TensorId> in, Attrs attrs = NoAttrs{}) {
    return emitting_ ? block_.add(kind, std::move(in), std::move(attrs)) : TensorId();
  }

  // Values inside the loop exist once per pass that wants them.
  std::pair<ValueId, int> key(ValueId v) const {
    auto it = phase_.find(v);
    return {v, it != phase_.end() && it->second.phase == KernelPhase::Loop ? pass_ : 0};
  }
  Real& real(ValueId v) { return real_.at(key(v)); }

  // Does something in every pass in which the value is computed, or once outside the loop.
  template <class F> void in_passes(ValueId v, const F& f) {
    const unsigned passes = std::max(1u, unsigned(phase_.at(v).passes));
    for (pass_ = 0; passes >> pass_; ++pass_)
      if (passes >> pass_ & 1) f();
    pass_ = 0;
  }

  void load(ValueId v) {
    const Real& s = stored_.at(v);
    Real r = s;
    if (emitting_) {
      inputs_.push_back(s.tensor);
      TensorId in = block_.add_input(graph_.type(s.tensor), graph_.tensor(s.tensor).name);
      IterAttrs iter;
      for (size_t g = 0; g < kernel_.grid.size(); ++g)
        iter.imap[g] = dim_of(s.dims, kernel_.grid[g].axes);
      if (kernel_.loop >= 0) iter.fmap[size_t(pass_)] = dim_of(s.dims, kernel_.varies);
      if (kernel_.nested) iter.fmap[1] = dim_of(s.dims, kernel_.nested);
      r.tensor = add(OpKind::Iter, {in}, iter);
    }
    define(v, r);
  }

  // Records the value's tensor, multiplied by what place_scalars put here.
  void define(ValueId v, Real r) {
    real_[key(v)] = std::move(r);
    auto it = inject_.find(v);
    if (it != inject_.end()) real_[key(v)] = scaled(v, it->second);
  }

  TensorId constant(const Coef& c, DType dtype) {
    if (!emitting_) return TensorId();
    auto key = std::make_pair(c.q.rational().str() + "r" + std::to_string(c.root), dtype);
    auto it = constants_.find(key);
    if (it != constants_.end()) return it->second;
    TensorId t = block_.add_const(c.q.rational(), Type{dtype, {}});
    if (c.root != 1) {
      TensorId root = add(OpKind::Sqrt, {block_.add_const(Rational(c.root), Type{dtype, {}})});
      t = c.q == Q(1) ? root : add(OpKind::Mul, {root, t});
    }
    constants_.emplace(key, t);
    return t;
  }

  // factor · tensor
  Real scaled(ValueId v, const Coef& factor) {
    Real r = real(v);
    if (factor.bad()) {
      cost_ = kImpossible;
      return r;
    }
    if (factor.one()) return r;
    cost_ += values_.values[v].volume * times(v) + (factor.root != 1 ? 1e6 : 0) + 1;
    r.coef = r.coef * factor;
    if (factor == Coef(-1))
      r.tensor = add(OpKind::Neg, {r.tensor});
    else
      r.tensor = add(OpKind::Mul, {r.tensor, constant(factor, r.dtype)});
    return r;
  }

  // The tensor with dimensions as in `want`; leading 1s may be missing down to `min_rank`.
  TensorId arranged(const Real& r, std::vector<int> want, size_t min_rank) {
    size_t lead = 0;
    while (lead < want.size() && want[lead] < 0 && want.size() - lead > min_rank) ++lead;
    for (size_t drop = 0; drop <= lead; ++drop)
      if (std::equal(r.dims.begin(), r.dims.end(), want.begin() + long(drop), want.end()))
        return r.tensor;
    want.erase(want.begin(), want.begin() + long(lead));
    TensorId t = r.tensor;
    std::vector<int> axes, units;
    for (size_t i = 0; i < r.dims.size(); ++i)
      if (r.dims[i] < 0)
        units.push_back(int(i));
      else
        axes.push_back(r.dims[i]);
    if (!units.empty()) t = add(OpKind::Squeeze, {t}, AxesAttrs{units});
    std::vector<int> perm, missing;
    for (size_t i = 0; i < want.size(); ++i) {
      if (want[i] < 0) {
        missing.push_back(int(i));
        continue;
      }
      auto it = std::ranges::find(axes, want[i]);
      CHECK(it != axes.end()) << "axis " << want[i] << " is not in the tensor";
      perm.push_back(int(it - axes.begin()));
    }
    CHECK(perm.size() == axes.size()) << "arranging drops an axis";
    if (!std::ranges::is_sorted(perm)) t = add(OpKind::Transpose, {t}, PermAttrs{perm});
    if (!missing.empty()) t = add(OpKind::Unsqueeze, {t}, AxesAttrs{missing});
    return t;
  }

  // One entry per dimension: a split axis stands for itself and its parts.
  std::vector<int> sorted_axes(AxisMask m) const {
    std::vector<int> out;
    while (m) {
      out.push_back(lowest(m));
      m &= ~region_.bits(lowest(m));
    }
    std::ranges::sort(out, {}, [&](int a) { return position_[size_t(a)]; });
    return out;
  }

  // Operands with broadcasting-compatible dimensions, and the dimensions of the result.
  std::vector<TensorId> broadcast(const std::vector<Real>& in, std::vector<int>& dims) {
    AxisMask all = 0;
    for (const Real& r : in) all |= region_.mask(r.dims);
    // Where the operands already fit each other as they are, nothing moves.
    std::vector<int> natural;
    bool fits = true;
    for (const Real& r : in) {
      if (r.dims.size() > natural.size())
        natural.insert(natural.begin(), r.dims.size() - natural.size(), -1);
      size_t off = natural.size() - r.dims.size();
      for (size_t i = 0; i < r.dims.size(); ++i) {
        int& at = natural[off + i];
        if (r.dims[i] < 0) continue;
        if (at >= 0 && at != r.dims[i]) fits = false;
        at = r.dims[i];
      }
    }
    std::set<int> distinct;
    for (int a : natural) fits = fits && (a < 0 || distinct.insert(a).second);
    std::vector<TensorId> out;
    if (fits && distinct.size() == sorted_axes(all).size()) {
      dims = natural;
      for (const Real& r : in) out.push_back(r.tensor);
      return out;
    }
    std::vector<int> axes = sorted_axes(all);
    for (const Real& r : in) {
      AxisMask own = region_.mask(r.dims);
      std::vector<int> want = mapped(axes, [&](int a) { return own & bit(a) ? a : -1; });
      out.push_back(arranged(r, want, 0));
    }
    dims = axes;
    return out;
  }

  DType dtype_of(const Edge& e) const {
    for (ValueId u : e.operands())
      if (u != kOne) return values_.values[u].dtype;
    return values_.values[e.out].dtype;
  }

  void pointwise(const Edge& e, OpKind kind, const std::vector<Real>& in, const Coef& coef,
                 Attrs attrs = NoAttrs{}) {
    Real r;
    std::vector<TensorId> operands = broadcast(in, r.dims);
    r.tensor = add(kind, operands, std::move(attrs));
    r.coef = coef;
    r.dtype = values_.values[e.out].dtype;
    define(e.out, r);
  }

  Real constant_real(const Coef& c, DType dtype) {
    Real r;
    r.tensor = constant(c, dtype);
    r.dtype = dtype;
    return r;
  }

  void apply(const Edge& e) {
    auto in = [&](size_t i) -> const Real& { return real(e.in[i]); };
    switch (e.op) {
    case EdgeOp::Mul:
      pointwise(e, OpKind::Mul, {in(0), in(1)}, in(0).coef * in(1).coef * e.scale);
      return;
    case EdgeOp::Div:
      if (e.in[0] == kOne)
        pointwise(e, OpKind::Div, {constant_real(1, in(1).dtype), in(1)}, e.scale / in(1).coef);
      else
        pointwise(e, OpKind::Div, {in(0), in(1)}, in(0).coef / in(1).coef * e.scale);
      return;
    case EdgeOp::Sqr: pointwise(e, OpKind::Sqr, {in(0)}, in(0).coef * in(0).coef * e.scale); return;
    case EdgeOp::Add: add_edge(e); return;
    case EdgeOp::Sqrt:
    case EdgeOp::Rsqrt: {
      Real x = in(0);
      Coef c = x.coef / e.mult[0];
      const Q half = Q::ratio(e.op == EdgeOp::Sqrt ? 1 : -1, 2);
      if (power(c, half).bad()) {
        x = scaled(e.in[0], power(c, -1));
        c = 1;
      }
      pointwise(e, e.op == EdgeOp::Sqrt ? OpKind::Sqrt : OpKind::Rsqrt, {x},
                power(c, half) * e.scale);
      return;
    }
    case EdgeOp::Exp:
    case EdgeOp::Log: {
      Coef f = e.mult[0] / in(0).coef;
      pointwise(e, e.op == EdgeOp::Exp ? OpKind::Exp : OpKind::Log, {scaled(e.in[0], f)}, e.scale);
      return;
    }
    case EdgeOp::Fn: function(e); return;
    case EdgeOp::Sum: {
      Real r = in(0);
      reduce(e, OpKind::Sum, r, AccumKind::Sum);
      r.coef = r.coef * e.scale;
      define(e.out, r);
      return;
    }
    case EdgeOp::Matmul: matmul(e); return;
    }
  }

  void add_edge(const Edge& e) {
    const Real a = real(e.in[0]);
    if (e.in[1] == kOne) {  // λ = coef/mult leaves the tensor as it is
      Coef lambda = a.coef / e.mult[0];
      Coef c = lambda * e.mult[1];
      bool minus = c.q.num < 0;
      pointwise(e, minus ? OpKind::Sub : OpKind::Add, {a, constant_real(magnitude(c), a.dtype)},
                lambda * e.scale);
      if (c.bad()) cost_ = kImpossible;
      if (c.root != 1) cost_ += 1e6;
      return;
    }
    const Real b = real(e.in[1]);
    // Scale the operand for which that is cheaper.
    auto price = [&](ValueId v) { return values_.values[v].volume * times(v); };
    bool keep_first = price(e.in[1]) <= price(e.in[0]);
    size_t keep = keep_first ? 0 : 1, other = keep_first ? 1 : 0;
    const Real& k = keep_first ? a : b;
    const Real& o = keep_first ? b : a;
    Coef lambda = k.coef / e.mult[keep];
    Coef f = lambda * e.mult[other] / o.coef;
    if (f.bad()) {
      cost_ = kImpossible;
      f = 1;
    }
    bool minus = f.q.num < 0;
    if (minus) f = -f;
    Real s = scaled(e.in[other], f);
    pointwise(e, minus ? OpKind::Sub : OpKind::Add, {k, s}, lambda * e.scale);
  }

  void function(const Edge& e) {
    const FunctionInfo& info = forms_.functions[e.fn];
    if (e.bits) {  // a reduction; positive scalars pass through
      Real r = real(e.in[0]);
      Coef c = r.coef / e.mult[0];
      if (c.q.num < 0 || c.bad()) {
        r = scaled(e.in[0], power(c, -1));
        c = 1;
      }
      reduce(e, info.kind, r, *fold_of(info.kind));
      r.coef = c * e.scale;
      define(e.out, r);
      return;
    }
    DType dtype =
        info.result == DType::Bool || !info.same_dtype ? dtype_of(e) : values_.values[e.out].dtype;
    if (info.kind == OpKind::Where) dtype = info.result;
    std::vector<Real> in;
    for (size_t i = 0; i < e.arity; ++i)
      if (e.in[i] == kOne)
        in.push_back(constant_real(e.mult[i], dtype));
      else
        in.push_back(scaled(e.in[i], e.mult[i] / real(e.in[i]).coef));
    pointwise(e, info.kind, in, e.scale, info.attrs);
  }

  void accumulate(const Edge& e, Real& r, AccumKind kind) {
    if (!(e.bits & (kernel_.folds | kernel_.nested))) return;
    AccumAttrs attrs;
    attrs.kind = kind;
    if (e.bits & kernel_.folds) attrs.loops.push_back(pass_);
    if (e.bits & kernel_.nested) attrs.loops.push_back(1);
    r.tensor = add(OpKind::Accum, {r.tensor}, attrs);
  }

  void reduce(const Edge& e, OpKind kind, Real& r, AccumKind accum) {
    ReduceAttrs attrs;
    attrs.keepdims = true;
    for (size_t i = 0; i < r.dims.size(); ++i) {
      if (r.dims[i] >= 0 && (e.bits & bit(r.dims[i]))) {
        attrs.axes.push_back(int(i));
        r.dims[i] = parts_left(e.bits);
      }
    }
    // Partial results of a loop's iterations: a tile has one of them, and only accumulates.
    const bool single = (e.bits & kernel_.folds) && region_.whole_of(lowest(e.bits)) >= 0;
    if (!single) r.tensor = add(kind, {r.tensor}, attrs);
    accumulate(e, r, accum);
  }

  // The axis that takes the place of a reduced one: of parts where these stay, else none.
  int parts_left(AxisMask reduced) const {
    const int p = region_.part_of(lowest(reduced));
    return p >= 0 && !(reduced & bit(p)) ? p : -1;
  }

  void matmul(const Edge& e) {
    Real a = real(e.in[0]), b = real(e.in[1]);
    AxisMask ma = region_.mask(a.dims), mb = region_.mask(b.dims);
    const int k = lowest(e.bits);
    auto last_private = [&](AxisMask own, AxisMask other) {
      std::vector<int> axes = sorted_axes(own & ~other);
      return axes.empty() ? -1 : axes.back();
    };
    int m = last_private(ma, mb), n = last_private(mb, ma);
    bool swap = m >= 0 && n >= 0 ? position_[size_t(n)] < position_[size_t(m)]
                                 : n < 0;  // a lone private axis becomes the columns
    if (swap) {
      std::swap(a, b);
      std::swap(ma, mb);
      std::swap(m, n);
    }
    const int parts = parts_left(e.bits);
    AxisMask rest = (ma | mb) & ~e.bits;
    if (parts >= 0) rest &= ~bit(parts);
    if (m >= 0) rest &= ~region_.bits(m);
    if (n >= 0) rest &= ~region_.bits(n);
    std::vector<int> batch = sorted_axes(rest), left, right, dims = batch;
    for (int x : batch) {
      left.push_back(ma & bit(x) ? x : -1);
      right.push_back(mb & bit(x) ? x : -1);
    }
    left.push_back(m);
    left.push_back(k);
    right.push_back(k);
    right.push_back(n);
    dims.push_back(m);
    dims.push_back(n);
    Real r;
    r.tensor = add(OpKind::Matmul, {arranged(a, left, 2), arranged(b, right, 2)});
    r.dims = dims;
    r.coef = a.coef * b.coef * e.scale;
    r.dtype = values_.values[e.out].dtype;
    accumulate(e, r, AccumKind::Sum);
    if (parts >= 0) {
      r.dims.insert(r.dims.begin(), parts);
      r.tensor = add(OpKind::Unsqueeze, {r.tensor}, AxesAttrs{{0}});
    }
    define(e.out, r);
  }

  const Kernel& kernel_;
  const Hypergraph& values_;
  const Region& region_;
  const RegionForms& forms_;
  const KernelSearch& kernels_;
  std::map<ValueId, Placed> phase_;
  const std::map<ValueId, Real>& stored_;
  const Graph& graph_;
  std::vector<int> position_;
  Graph empty_block_, block_;
  bool emitting_ = false;
  double cost_ = 0;  // elements multiplied by scalars
  std::map<ValueId, Coef> inject_;
  std::vector<Coef> wanted_, output_coefs_;
  int pass_ = 0;  // of the loop, from 0, in which operators are being built
  std::map<std::pair<ValueId, int>, Real> real_;
  std::vector<TensorId> inputs_;
  std::map<std::pair<std::string, DType>, TensorId> constants_;
};

}  // namespace

bool lower_plan(const Plan& plan, const Hypergraph& values, const Region& region,
                const RegionForms& forms, const KernelSearch& kernels, const Graph& program,
                Graph& graph, std::vector<TensorId>& tensors) {
  const std::vector<int> order = axis_order(region);
  std::map<ValueId, Real> stored;
  for (ValueId v = 0; v < values.values.size(); ++v) {
    if (values.values[v].view < 0) continue;
    const View& view = region.views[size_t(values.values[v].view)];
    stored[v] = {tensors[view.tensor.index], view.dims, 1, values.values[v].dtype};
  }
  for (const Hypergraph::Target& t : values.targets) {
    if (t.value != kOne) continue;
    const Node& node = region.nodes[t.node];
    const Type& type = program.type(node.tensor);
    TensorId c = graph.add_const(t.coef.q.rational(), type);
    if (t.coef.root != 1) {
      TensorId root = graph.add(OpKind::Sqrt, {graph.add_const(Rational(t.coef.root), type)});
      c = graph.add(OpKind::Mul, {root, c});
    }
    tensors[node.tensor.index] = c;
  }
  std::set<ValueId> loaded;
  for (const Kernel& k : plan.kernels) loaded.insert(k.loads.begin(), k.loads.end());
  std::set<uint32_t> done;  // targets
  for (const Kernel& k : plan.kernels) {
    using Output = KernelLowering::Output;
    std::vector<Output> outputs;
    std::vector<const Hypergraph::Target*> targets;
    for (ValueId v : k.outputs) {
      bool saved = values.values[v].view >= 0;
      for (const Hypergraph::Target& t : values.targets) {
        if (t.value != v || done.count(t.node)) continue;
        const Node& node = region.nodes[t.node];
        Output o;
        o.value = v;
        o.coef = t.coef;
        o.type = program.type(node.tensor);
        o.name = program.tensor(node.tensor).name;
        for (size_t d = 0; d < node.dims.size(); ++d) {
          bool has = node.dims[d] >= 0 && (values.values[v].axes & bit(node.dims[d]));
          o.dims.push_back(has ? node.dims[d] : -1);
          if (!has) o.type.shape[d] = Dim(1);
        }
        outputs.push_back(std::move(o));
        targets.push_back(&t);
        done.insert(t.node);
        saved = true;
      }
      if (saved) continue;
      Output o;
      o.value = v;
      o.internal = true;
      o.type.dtype = values.values[v].dtype;
      outputs.push_back(std::move(o));
      targets.push_back(nullptr);
    }
    if (outputs.empty()) continue;
    KernelLowering lowering(k, values, region, forms, kernels, order, stored, graph);
    lowering.place_scalars(outputs);
    if (lowering.simulate(outputs) >= kImpossible) return false;
    std::vector<TensorId> inputs;
    std::vector<Coef> coefs;
    std::vector<std::string> names = mapped(outputs, &Output::name);
    Graph body = lowering.build(outputs, inputs, coefs);
    OpId op = graph.add_graph_op(OpKind::Kernel, inputs, std::move(body), names);
    for (size_t i = 0; i < outputs.size(); ++i) {
      TensorId t = graph.op(op).result(uint32_t(i));
      const ValueId v = outputs[i].value;
      stored[v] = {t, outputs[i].dims, coefs[i], values.values[v].dtype};
      if (!targets[i]) continue;
      const Node& node = region.nodes[targets[i]->node];
      const Type& type = program.type(node.tensor);
      if (graph.type(t).shape != type.shape) t = build::broadcast(graph, t, {type.shape});
      tensors[node.tensor.index] = t;
    }
  }
  return true;
}

std::string describe(const Plan& plan, const Hypergraph& values, const Region& region,
                     const NormalForms& nf, const RegionForms& forms) {
  std::string s;
  for (const Kernel& k : plan.kernels) {
    s += "kernel";
    for (const Kernel::GridDim& g : k.grid) {
      std::string names;
      for (AxisMask m = g.axes; m; m &= ~region.bits(lowest(m)))
        names += (names.empty() ? "" : "+") + region.axes[size_t(lowest(m))].name;
      s += " grid " + names + "/" + std::to_string(g.parts);
    }
    if (k.loop >= 0) {
      s += " loop " + region.axes[size_t(k.loop)].name + "/" + std::to_string(k.loop_parts);
      if (k.passes > 1) s += " in " + std::to_string(k.passes) + " passes";
      if (k.nested)
        s += ", inside " + region.axes[size_t(lowest(k.nested))].name + "/" +
             std::to_string(k.nested_parts);
    }
    s += "\n";
    for (uint32_t e : k.edges) s += "  " + str(values.edges[e], values, nf, forms) + "\n";
  }
  return s;
}

}  // namespace tessera::mugraph
