#include "search/mugraph/moments.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/check.h"
#include "ir/build.h"
#include "ir/types.h"

namespace tessera::mugraph {
namespace {

constexpr int64_t kCentreElements = 64;
constexpr int kExpand = 64;  // terms: shifted squares are multiplied out

// Subsets of the axes that a tensor is summed over, the smallest first: the fewer axes a centre is
// constant along, the nearer it is to what it is subtracted from.
std::vector<AxisMask> subsets(const std::vector<AxisMask>& axes) {
  std::vector<AxisMask> out;
  const size_t n = std::min<size_t>(axes.size(), 4);
  for (unsigned pick = 1; pick < 1u << n; ++pick) {
    AxisMask m = 0;
    for (size_t i = 0; i < n; ++i) m |= pick >> i & 1 ? axes[i] : 0;
    out.push_back(m);
  }
  std::ranges::stable_sort(out, [](AxisMask a, AxisMask b) { return count(a) < count(b); });
  return out;
}

}  // namespace

// Forms of values in terms of shifted tensors: x' stands for x - c, and x is x' + c.
class Moments::Algebra {
 public:
  Algebra(const Moments& m, const std::vector<Shift>& shifts)
      : m_(m), nf_(std::make_unique<NormalForms>(
                   axis_extents(m.region_), FormOptions{kExpand, m.nf_.options().keep_shifts})),
        shifted_(m.values_.values.size(), kNone), moved_(shifted_) {
    const Region& region = m.region_;
    const uint32_t views = uint32_t(region.views.size());
    for (size_t a = 0; a < region.part.size(); ++a) {
      lengths_.push_back(kNone);
      if (region.part[a] < 0) continue;
      nf_->split(int(a), region.part[a]);
      lengths_.back() = nf_->input(views + uint32_t(shifts.size() + a), bit(region.part[a]),
                                   "length" + std::to_string(a));
    }
    for (size_t f = 0; f < m.forms_.functions.size(); ++f)
      nf_->function(m.nf_.function_info(uint32_t(f)));
    shifted_[kOne] = moved_[kOne] = nf_->one();
    const auto& values = m.values_.values;
    for (ValueId v = 0; v < values.size(); ++v) {
      if (values[v].view < 0) continue;
      const uint32_t view = uint32_t(values[v].view);
      const std::string name = "t" + std::to_string(region.views[view].tensor.index);
      const auto s = std::ranges::find_if(shifts, [&](const Shift& shift) { return shift.x == v; });
      if (s == shifts.end()) {
        shifted_[v] = moved_[v] = nf_->input(view, values[v].axes, name);
        continue;
      }
      const uint32_t k = uint32_t(s - shifts.begin());
      shifted_[v] = nf_->input(view, values[v].axes, "(" + name + "-c" + std::to_string(k) + ")");
      centres_.push_back(nf_->input(views + k, values[v].axes & ~s->over, "c" + std::to_string(k)));
      moved_[v] = nf_->add(shifted_[v], centres_.back());
    }
    for (PolyId c : centres_) {
      const Mono& mono = nf_->mono(nf_->poly(c).terms[0].mono);
      atoms_.insert(mono.factors[0].atom);
    }
  }

  // Forms of an edge's result, where those of its operands are known.
  void apply(const Edge& e) {
    if (shifted_[e.out] != kNone) return;
    shifted_[e.out] = result(e, shifted_);
    moved_[e.out] = result(e, moved_);
  }

  bool known(ValueId v) const { return moved_[v] != kNone && shifted_[v] != kNone; }
  // The value is the same of x - c as of x.
  bool invariant(ValueId v) const { return known(v) && moved_[v] == shifted_[v]; }
  // Whether the value contains x at all.
  bool depends(ValueId v, ValueId x) const {
    return !known(v) || contains(shifted_[v], shifted_[x], 0);
  }
  // The largest power of a centre among the value's terms.
  Q degree(ValueId v) const {
    Q most = 0;
    if (!known(v)) return most;
    for (const Term& t : nf_->poly(moved_[v]).terms)
      for (const Factor& f : nf_->mono(t.mono).factors)
        if (atoms_.count(f.atom) && most.value() < f.exponent.value()) most = f.exponent;
    return most;
  }
  // value(x) = value(x - c) + factor·c for one centre c.
  struct Lift {
    size_t centre;
    Coef factor;
  };
  std::optional<Lift> lift(ValueId v) const {
    if (!known(v)) return std::nullopt;
    const PolyId rest = nf_->add(moved_[v], nf_->scale(shifted_[v], -1));
    if (rest == kNone || nf_->poly(rest).terms.size() != 1) return std::nullopt;
    const Term& t = nf_->poly(rest).terms[0];
    if (!t.coef.rational()) return std::nullopt;
    for (size_t k = 0; k < centres_.size(); ++k)
      if (t.mono == nf_->poly(centres_[k]).terms[0].mono) return Lift{k, t.coef};
    return std::nullopt;
  }

  PolyId shifted(ValueId v) const { return shifted_[v]; }
  PolyId moved(ValueId v) const { return moved_[v]; }
  PolyId centre(size_t k) const { return centres_[k]; }
  std::unique_ptr<NormalForms> take() { return std::move(nf_); }

 private:
  PolyId result(const Edge& e, const std::vector<PolyId>& of) {
    std::vector<PolyId> x;
    for (size_t i = 0; i < e.arity; ++i) {
      if (of[e.in[i]] == kNone) return kNone;
      x.push_back(nf_->scale(of[e.in[i]], e.mult[i]));
      if (x.back() == kNone) return kNone;
    }
    PolyId out = kNone;
    switch (e.op) {
    case EdgeOp::Mul: out = nf_->mul(x[0], x[1]); break;
    case EdgeOp::Div: out = nf_->div(x[0], x[1]); break;
    case EdgeOp::Add: out = nf_->add(x[0], x[1]); break;
    case EdgeOp::Sqr: out = nf_->mul(x[0], x[0]); break;
    case EdgeOp::Sqrt: out = nf_->pow(x[0], Q::ratio(1, 2)); break;
    case EdgeOp::Rsqrt: out = nf_->pow(x[0], Q::ratio(-1, 2)); break;
    case EdgeOp::Exp: out = nf_->exp(x[0]); break;
    case EdgeOp::Log: out = nf_->log(x[0]); break;
    case EdgeOp::Fn: out = nf_->fn(e.fn, x, e.bits); break;
    case EdgeOp::Sum: out = sum(x[0], e.bits); break;
    case EdgeOp::Matmul: out = sum(nf_->mul(x[0], x[1]), e.bits); break;
    }
    return out == kNone ? kNone : nf_->scale(out, Coef(1) / e.scale);
  }

  // Of what does not vary inside the parts of a split axis, the sum inside is a multiple of the
  // part's length, and the lengths of all parts add up to the axis.
  PolyId sum(PolyId p, AxisMask bits) {
    if (p == kNone) return kNone;
    for (size_t a = 0; a < lengths_.size(); ++a) {
      if (lengths_[a] == kNone) continue;
      const AxisMask inside = bit(int(a)), part = bit(m_.region_.part[a]);
      const bool inner = (bits & inside) != 0, outer = (bits & part) != 0;
      if (inner == outer) continue;
      const MonoId length = nf_->poly(lengths_[a]).terms[0].mono;
      PolyId known = kNone;
      std::vector<Term> rest;
      for (const Term& t : std::vector<Term>(nf_->poly(p).terms)) {
        PolyId one = kNone;
        if (inner && !(nf_->mono(t.mono).axes & inside)) {
          one = nf_->mul(nf_->from_mono(t.mono, t.coef), lengths_[a]);
        } else if (outer) {
          const MonoId others = nf_->divide(t.mono, length);
          if (others != kNone && !(nf_->mono(others).axes & (inside | part)))
            one = nf_->from_mono(others, t.coef * Coef(m_.region_.axes[a].extent));
        }
        if (one == kNone)
          rest.push_back(t);
        else
          known = known == kNone ? one : nf_->add(known, one);
      }
      if (known == kNone) continue;
      if (rest.empty()) return known;
      const PolyId more = nf_->sum(nf_->from_terms(std::move(rest)), bits);
      return more == kNone ? kNone : nf_->add(known, more);
    }
    return nf_->sum(p, bits);
  }

  // Does a form contain the only atom of `input`?
  bool contains(PolyId p, PolyId input, int depth) const {
    const AtomId atom = nf_->mono(nf_->poly(input).terms[0].mono).factors[0].atom;
    for (const Term& t : nf_->poly(p).terms)
      if (mono_contains(t.mono, atom, input, depth)) return true;
    return false;
  }
  bool mono_contains(MonoId m, AtomId atom, PolyId input, int depth) const {
    if (depth > 64) return true;
    for (const Factor& f : nf_->mono(m).factors) {
      if (f.atom == atom) return true;
      const Atom& a = nf_->atom(f.atom);
      switch (a.kind) {
      case AtomKind::Input: break;
      case AtomKind::Sum:
      case AtomKind::Exp:
        if (mono_contains(a.ref, atom, input, depth + 1)) return true;
        break;
      case AtomKind::Poly:
        if (contains(a.ref, input, depth + 1)) return true;
        break;
      case AtomKind::Fn:
        for (PolyId p : a.args)
          if (contains(p, input, depth + 1)) return true;
        break;
      }
    }
    return false;
  }

  const Moments& m_;
  std::unique_ptr<NormalForms> nf_;
  std::vector<PolyId> shifted_, moved_;  // by value: of x' alone, and of x' + c
  std::vector<PolyId> centres_;
  std::vector<PolyId> lengths_;  // by split axis: elements of each of its parts
  std::set<AtomId> atoms_;       // of the centres
};

Moments::Moments(const Hypergraph& values, const Region& region, const RegionForms& forms,
                 const NormalForms& nf)
    : values_(values), region_(region), forms_(forms), nf_(nf) {
  AxisMask reduced = 0;
  bool subtracts = false;
  for (const Edge& e : values.edges) {
    if (e.op == EdgeOp::Sum || e.op == EdgeOp::Matmul) reduced |= e.bits;
    subtracts = subtracts || e.op == EdgeOp::Add;
  }
  if (!subtracts || !reduced) return;
  std::vector<uint32_t> order(values.edges.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](uint32_t e) { return values.edges[e].out; });
  for (ValueId v = 0; v < values.values.size(); ++v) {
    const Value& x = values.values[v];
    if (x.view < 0 || !is_float(x.dtype)) continue;
    std::vector<AxisMask> axes;
    for (int a : region.views[size_t(x.view)].dims)
      if (a >= 0 && (region.bits(a) & reduced)) axes.push_back(region.bits(a));
    for (AxisMask over : subsets(axes)) {
      Shift s{v, over, {}, {}};
      Algebra algebra(*this, {s});
      for (uint32_t i : order) algebra.apply(values.edges[i]);
      for (uint32_t i = 0; i < values.edges.size(); ++i) {
        const Edge& e = values.edges[i];
        if ((e.op != EdgeOp::Add && !e.bits) || !algebra.invariant(e.out)) continue;
        double degree = 0;
        for (ValueId u : e.operands()) degree = std::max(degree, algebra.degree(u).value());
        // Squares that cancel, or anything that cancels inside a sum.
        if (degree >= (e.bits ? 1 : 2)) s.saves.push_back(i);
        if (degree >= 1) s.helps.push_back(i);
      }
      if (s.helps.empty()) continue;
      shifts_.push_back(std::move(s));
      break;
    }
  }
}

// Writes a plan's values again: as functions of x where that is wanted, of x - c where that is the
// same or needed for it.
class Moments::Writer {
 public:
  Writer(const Moments& m, std::vector<Shift> shifts, const Plan& plan, uint32_t first)
      : m_(m), shifts_(std::move(shifts)), plan_(plan), algebra_(m, shifts_), first_(first) {
    std::set<uint32_t> edges;
    for (const Kernel& k : plan.kernels) edges.insert(k.edges.begin(), k.edges.end());
    std::vector<uint32_t> order(edges.begin(), edges.end());
    std::ranges::stable_sort(order, {}, [&](uint32_t e) { return m.values_.edges[e].out; });
    for (uint32_t i : order) algebra_.apply(m.values_.edges[i]);
    for (ValueId v = 0; v < m.values_.values.size(); ++v) kinds_.push_back(classify(v));
  }

  Centred write() {
    demand();
    Centred out;
    out.region = m_.region_;
    name_centres(out);
    number_values(out);
    out.plan = plan_;
    for (size_t k = 0; k < plan_.kernels.size(); ++k) write_kernel(out, k);
    for (const Hypergraph::Target& t : m_.values_.targets) {
      Hypergraph::Target target = t;
      target.value = t.value == kOne ? kOne : id_[t.value][resolved(t.value, Plain)];
      out.values.targets.push_back(target);
    }
    out.nf = algebra_.take();
    return out;
  }

 private:
  enum Version : size_t { Shifted, Plain };  // of x - c, of x
  enum class Kind : uint8_t {
    Free,       // does not contain a shifted tensor
    Invariant,  // the same of x - c as of x
    Lifted,     // of x: what it is of x - c, and a multiple of c
    Dependent,
  };
  using Wanted = std::array<bool, 2>;  // by version
  struct Demand {                      // of one kernel
    std::map<ValueId, Wanted> values, outputs;
    std::set<size_t> centres;
    std::set<ValueId> lifts, subtractions;
  };

  Kind classify(ValueId v) {
    if (v == kOne) return Kind::Free;
    if (shift_of(v) || !algebra_.known(v)) return Kind::Dependent;
    const bool contains =
        std::ranges::any_of(shifts_, [&](const Shift& s) { return algebra_.depends(v, s.x); });
    if (!contains) return Kind::Free;
    if (algebra_.invariant(v)) return Kind::Invariant;
    return algebra_.lift(v) ? Kind::Lifted : Kind::Dependent;
  }

  std::optional<size_t> shift_of(ValueId v) const {
    for (size_t k = 0; k < shifts_.size(); ++k)
      if (shifts_[k].x == v) return k;
    return std::nullopt;
  }

  Version resolved(ValueId v, Version wanted) const {
    switch (kinds_[v]) {
    case Kind::Free: return Plain;
    case Kind::Invariant: return Shifted;
    case Kind::Lifted:
    case Kind::Dependent: return wanted;
    }
    unreachable("Kind");
  }

  // Which versions every kernel computes, loads and stores; later kernels first.
  void demand() {
    demands_.resize(plan_.kernels.size());
    std::map<ValueId, Wanted> stored;
    for (const Hypergraph::Target& t : m_.values_.targets)
      if (t.value != kOne) stored[t.value][resolved(t.value, Plain)] = true;
    for (size_t k = plan_.kernels.size(); k-- > 0;) {
      const Kernel& kernel = plan_.kernels[k];
      Demand& d = demands_[k];
      for (ValueId v : kernel.outputs) d.values[v] = d.outputs[v] = stored[v];
      for (size_t i = kernel.edges.size(); i-- > 0;) {
        const Edge& e = m_.values_.edges[kernel.edges[i]];
        Wanted& wanted = d.values[e.out];
        if (wanted[Plain] && kinds_[e.out] == Kind::Lifted) {
          wanted[Shifted] = true;
          d.lifts.insert(e.out);
          d.centres.insert(algebra_.lift(e.out)->centre);
        }
        for (Version version : {Shifted, Plain}) {
          if (!wanted[version] || (version == Plain && d.lifts.count(e.out))) continue;
          for (size_t j = 0; j < e.arity; ++j)
            if (e.in[j] != kOne) d.values[e.in[j]][resolved(e.in[j], version)] = true;
        }
      }
      for (ValueId v : kernel.loads) {
        const Wanted& wanted = d.values[v];
        if (const auto shift = shift_of(v)) {
          if (!wanted[Shifted]) continue;
          d.subtractions.insert(v);
          d.centres.insert(*shift);
        } else if (m_.values_.values[v].view < 0) {
          for (Version version : {Shifted, Plain}) stored[v][version] |= wanted[version];
        }
      }
    }
  }

  void name_centres(Centred& out) const {
    for (size_t k = 0; k < shifts_.size(); ++k) {
      const View& x = m_.region_.views[size_t(m_.values_.values[shifts_[k].x].view)];
      View c = x;
      Centre centre{x.tensor, TensorId(first_ + uint32_t(k)), {}};
      for (size_t d = 0; d < c.dims.size(); ++d) {
        if (c.dims[d] < 0 || !(m_.region_.bits(c.dims[d]) & shifts_[k].over)) continue;
        c.dims[d] = -1;
        centre.over.push_back(int(d));
      }
      c.tensor = centre.centre;
      out.region.views.push_back(std::move(c));
      out.centres.push_back(std::move(centre));
    }
  }

  ValueId add_value(Hypergraph& g, Value v, PolyId form) const {
    v.form = form;
    v.rank = uint32_t(g.values.size());
    g.values.push_back(v);
    g.producers.emplace_back();
    return v.rank;
  }

  // Operands before results: loaded values, centres, differences, and the others in their order.
  void number_values(Centred& out) {
    const auto& old = m_.values_.values;
    id_.assign(old.size(), {kNone, kNone});
    std::map<ValueId, Wanted> wanted;
    for (const Demand& d : demands_)
      for (const auto& [v, w] : d.values)
        for (Version version : {Shifted, Plain}) wanted[v][version] |= w[version];
    for (const Hypergraph::Target& t : m_.values_.targets)
      if (t.value != kOne) wanted[t.value][resolved(t.value, Plain)] = true;
    id_[kOne] = {kOne, kOne};
    add_value(out.values, old[kOne], algebra_.shifted(kOne));
    for (const auto& [v, w] : wanted)  // a difference needs what is loaded
      if (old[v].view >= 0) id_[v][Plain] = add_value(out.values, old[v], algebra_.moved(v));
    for (size_t k = 0; k < shifts_.size(); ++k) {
      Value c = old[shifts_[k].x];
      for (AxisMask m = c.axes & shifts_[k].over; m; m &= m - 1)
        c.volume /= double(std::max<int64_t>(1, m_.region_.axes[size_t(lowest(m))].extent));
      c.axes &= ~shifts_[k].over;
      c.view = int(m_.region_.views.size() + k);
      centre_.push_back(add_value(out.values, c, algebra_.centre(k)));
    }
    for (const auto& [v, w] : wanted) {
      if (old[v].view >= 0 && !(w[Shifted] && shift_of(v))) continue;
      Value x = old[v];
      x.view = -1;
      if (w[Shifted]) id_[v][Shifted] = add_value(out.values, x, algebra_.shifted(v));
      if (w[Plain] && old[v].view < 0) id_[v][Plain] = add_value(out.values, x, algebra_.moved(v));
    }
  }

  uint32_t add_edge(Hypergraph& g, const Edge& e) {
    for (uint32_t i : g.producers[e.out])
      if (g.edges[i].op == e.op && g.edges[i].in == e.in && g.edges[i].mult == e.mult) return i;
    g.edges.push_back(e);
    g.producers[e.out].push_back(uint32_t(g.edges.size()) - 1);
    return uint32_t(g.edges.size()) - 1;
  }

  // a + factor·c
  Edge sum_with_centre(ValueId a, size_t centre, const Coef& factor, ValueId out) const {
    Edge e;
    e.op = EdgeOp::Add;
    e.arity = 2;
    e.in = {a, centre_[centre], 0};
    e.mult = {Coef(1), factor, Coef(1)};
    e.out = out;
    return e;
  }

  void write_kernel(Centred& out, size_t index) {
    const Kernel& old = plan_.kernels[index];
    const Demand& d = demands_[index];
    Kernel& k = out.plan.kernels[index];
    k.outputs.clear();
    k.loads.clear();
    k.edges.clear();
    const auto wanted = [&](ValueId v, Version version) {
      const auto it = d.values.find(v);
      return it != d.values.end() && it->second[version];
    };
    for (ValueId v : old.outputs)
      for (Version version : {Shifted, Plain})
        if (d.outputs.at(v)[version]) k.outputs.push_back(id_[v][version]);
    for (ValueId v : old.loads) {
      if (wanted(v, Plain) || d.subtractions.count(v)) k.loads.push_back(id_[v][Plain]);
      if (wanted(v, Shifted) && !d.subtractions.count(v)) k.loads.push_back(id_[v][Shifted]);
    }
    for (size_t c : d.centres) k.loads.push_back(centre_[c]);
    for (ValueId v : d.subtractions)
      k.edges.push_back(add_edge(
          out.values, sum_with_centre(id_[v][Plain], *shift_of(v), Coef(-1), id_[v][Shifted])));
    for (uint32_t i : old.edges) {
      const Edge& e = m_.values_.edges[i];
      for (Version version : {Shifted, Plain}) {
        if (!wanted(e.out, version)) continue;
        if (version == Plain && d.lifts.count(e.out)) {
          const Algebra::Lift lift = *algebra_.lift(e.out);
          k.edges.push_back(add_edge(out.values, sum_with_centre(id_[e.out][Shifted], lift.centre,
                                                                 lift.factor, id_[e.out][Plain])));
          continue;
        }
        Edge copy = e;
        copy.out = id_[e.out][version];
        for (size_t j = 0; j < e.arity; ++j)
          copy.in[j] = id_[e.in[j]][e.in[j] == kOne ? Plain : resolved(e.in[j], version)];
        k.edges.push_back(add_edge(out.values, copy));
      }
    }
    std::ranges::sort(k.outputs);
    std::ranges::sort(k.loads);
    std::ranges::stable_sort(k.edges, {}, [&](uint32_t e) { return out.values.edges[e].out; });
    out.added = std::max(out.added, operators(k, out.values) - operators(old, m_.values_));
  }

  static int operators(const Kernel& k, const Hypergraph& g) {
    int n = int(k.loads.size() + k.outputs.size() + k.edges.size());
    for (uint32_t e : k.edges) n += (g.edges[e].bits & k.folds) != 0;
    return n;
  }

  const Moments& m_;
  const std::vector<Shift> shifts_;
  const Plan& plan_;
  Algebra algebra_;
  const uint32_t first_;
  std::vector<Kind> kinds_;                 // by value
  std::vector<Demand> demands_;             // by kernel
  std::vector<std::array<ValueId, 2>> id_;  // by value and version: its new number
  std::vector<ValueId> centre_;             // by shift
};

std::optional<Moments::Centred> Moments::centred(const Plan& plan, uint32_t first) const {
  const auto in_plan = [&](const std::vector<uint32_t>& edges) {
    return std::ranges::any_of(
        plan.kernels,
        [&](const Kernel& k) {
          return std::ranges::any_of(
              k.edges, [&](uint32_t e) { return std::ranges::binary_search(edges, e); });
        });
  };
  const bool needed = std::ranges::any_of(
      shifts_, [&](const Shift& s) { return in_plan(s.saves); });
  std::vector<Shift> used =
      those(shifts_, [&](const Shift& s) { return needed && in_plan(s.helps); });
  if (used.empty()) return std::nullopt;
  return Writer(*this, std::move(used), plan, first).write();
}

TensorId add_centre(Graph& graph, TensorId x, const std::vector<int>& over) {
  const Shape shape = graph.type(x).shape;
  SliceAttrs cut{std::vector<int64_t>(shape.size(), 0), extents(shape),
                 std::vector<int64_t>(shape.size(), 1)};
  // The innermost axes first: what lies together is read together.
  int64_t left = kCentreElements;
  for (size_t i = over.size(); i-- > 0;) {
    int64_t& stop = cut.stops[size_t(over[i])];
    stop = std::min(stop, left);
    left = std::max<int64_t>(1, left / stop);
  }
  if (cut.stops != extents(shape)) x = build::slice(graph, x, cut);
  return graph.add(OpKind::Mean, {x}, ReduceAttrs{over, true});
}

}  // namespace tessera::mugraph
