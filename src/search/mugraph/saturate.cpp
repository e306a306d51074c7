#include "search/mugraph/saturate.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/interruption.h"

namespace tessera::mugraph {
namespace {

struct GoalEmbedding {
  uint32_t goal;
  Embedding at;
};

class Saturation {
 public:
  Saturation(const Region& region, NormalForms& nf, const RegionForms& rf,
             const SaturateOptions& options, std::map<std::string, int64_t>& pruned)
      : region_(region), nf_(nf), rf_(rf), options_(options), pruned_(pruned) {}

  Hypergraph run() {
    set_goals();
    one_ = create(nf_.one(), DType::F32);
    for (size_t v = 0; v < region_.views.size(); ++v) {
      PolyId f = nf_.input(uint32_t(v), region_.mask(region_.views[v].dims),
                           "t" + std::to_string(region_.views[v].tensor.index));
      values_[create(f, region_.views[v].dtype)].view = int(v);
    }
    for (size_t i = 0; i < region_.nodes.size(); ++i) force(i);
    for (ValueId v = 0; v < values_.size() && !options_.program_only; ++v) {
      if (options_.cancel && options_.cancel->load(std::memory_order_relaxed)) break;
      if (options_.out_of_time && options_.out_of_time()) break;
      if (capped_) break;  // what the program itself needs is there already
      if (v != one_) unary(v);
      sums(v);
      for (ValueId u = 0; u < v; ++u)
        if (u != one_ && v != one_) binary(u, v);
    }
    return finish();
  }

 private:
  void set_goals() {
    auto targets = mapped(region_.targets, [&](uint32_t t) { return rf_.of_node[t]; });
    std::vector<PolyId> all = nf_.goals(targets, options_.max_goals);
    for (const Node& n : region_.nodes) log_used_ = log_used_ || n.kind == OpKind::Log;
    // What functions are applied to, by form; exponents likewise.
    for (PolyId g : all) {
      for (const Term& t : std::vector<Term>(nf_.poly(g).terms)) {
        std::vector<Term> exponent;
        for (const Factor& f : nf_.mono(t.mono).factors) {
          const Atom& a = nf_.atom(f.atom);
          if (a.kind == AtomKind::Fn) functions_.insert(f.atom);
          if (a.kind == AtomKind::Exp) exponent.push_back({a.ref, f.exponent});
          if (a.kind == AtomKind::Sum) reducible_ |= a.bound;
        }
        if (!exponent.empty()) {
          PolyId p = nf_.from_terms(std::move(exponent));
          if (p != kNone) exponents_.insert(p);
        }
      }
    }
    for (AtomId f : functions_)
      for (PolyId p : nf_.atom(f).args) calls_[nf_.primitive(p).form].push_back(f);
    // A one-term goal that divides a term of another adds nothing.
    for (PolyId g : all) {
      bool covered = false;
      if (nf_.poly(g).terms.size() == 1) {
        MonoId m = nf_.poly(g).terms[0].mono;
        for (PolyId h : all) {
          if (h == g) continue;
          for (size_t i = 0; i < nf_.poly(h).terms.size() && !covered; ++i) {
            MonoId w = nf_.poly(h).terms[i].mono;
            covered = w != m && nf_.divide(w, m) != kNone;
            covered = covered || (w == m && nf_.poly(h).terms.size() > 1);
          }
          if (covered) break;
        }
      }
      if (!covered) goals_.push_back(g);
    }
    for (const Node& n : region_.nodes)
      max_volume_ = std::max(max_volume_, volume(region_.mask(n.dims)));
  }

  double volume(AxisMask m) const {  // a part counts as one element
    double v = 1;
    for (; m; m &= m - 1) v *= double(std::max<int64_t>(1, region_.axes[size_t(lowest(m))].extent));
    return v;
  }

  // What one reduction can run over, among `axes`: an axis, all of a split axis, the inside of its
  // parts, or the parts of partial results.
  std::vector<AxisMask> reductions(AxisMask axes) const {
    std::vector<AxisMask> out;
    for (AxisMask m = axes & reducible_; m; m &= m - 1) {
      const int a = lowest(m);
      const int whole = region_.whole_of(a);
      if (whole >= 0 && (axes & bit(whole))) continue;  // with its axis
      out.push_back(bit(a));
      if (region_.part_of(a) >= 0) out.push_back(region_.bits(a));
    }
    return out;
  }

  // Partial results meet neither whole tensors nor the place inside a part alone.
  bool mixes_parts(const Edge& e, AxisMask result) const {
    for (size_t a = 0; a < region_.part.size(); ++a) {
      if (region_.part[a] < 0) continue;
      const AxisMask inside = bit(int(a)), parts = bit(region_.part[a]);
      bool partial = false, whole = false;
      for (ValueId v : e.operands()) {
        const AxisMask m = values_[v].axes;
        partial = partial || ((m & parts) && !(m & inside));
        whole = whole || (m & inside);
      }
      if ((partial && whole) || ((result & inside) && !(result & parts))) return true;
    }
    return false;
  }

  const std::vector<GoalEmbedding>& embeddings(PolyId p) {
    auto it = embeddings_.find(p);
    if (it != embeddings_.end()) return it->second;
    std::vector<GoalEmbedding> out;
    for (uint32_t g = 0; g < goals_.size(); ++g)
      for (const Embedding& e : nf_.embeddings(p, goals_[g])) out.push_back({g, e});
    return embeddings_.emplace(p, std::move(out)).first->second;
  }

  bool part_of_goal(PolyId p) { return p != kNone && !embeddings(nf_.primitive(p).form).empty(); }

  ValueId create(PolyId form, DType dtype) {
    interruption_point();
    auto [it, fresh] = index_.emplace(form, ValueId(values_.size()));
    if (fresh) {
      Value v;
      v.form = form;
      v.axes = nf_.poly(form).axes;
      v.rank = nf_.poly(form).size;
      v.volume = volume(v.axes);
      v.dtype = dtype;
      values_.push_back(v);
    }
    return it->second;
  }

  // Adds op(mult·in) = exact, a form; the value is created if it can be part of a goal.
  void emit(Edge e, PolyId exact, bool force = false) {
    if (exact == kNone || nf_.poly(exact).terms.empty()) return;
    NormalForms::Primitive p = nf_.primitive(exact);
    AxisMask axes = 0;
    for (ValueId v : e.operands()) axes |= values_[v].axes;
    if ((axes & ~e.bits) != nf_.poly(p.form).axes) return reject("axes");
    if (mixes_parts(e, nf_.poly(p.form).axes)) return reject("parts");
    uint32_t below = most_of(uint32_t(0), e.operands(), [&](ValueId v) { return values_[v].rank; });
    if (!force && nf_.poly(p.form).size <= below) return reject("order");
    if (!force && index_.count(p.form) == 0) {
      if (embeddings(p.form).empty()) return reject("not part of a goal");
      if (options_.volume_rule && volume(nf_.poly(p.form).axes) > max_volume_)
        return reject("volume");
      if (values_.size() >= options_.max_values) {
        capped_ = true;
        return reject("value limit");
      }
    }
    DType dtype = DType::F32;
    for (int i = e.arity; i-- > 0;)
      if (e.in[size_t(i)] != one_) dtype = values_[e.in[size_t(i)]].dtype;
    if (e.op == EdgeOp::Fn && !rf_.functions[e.fn].same_dtype) dtype = rf_.functions[e.fn].result;
    e.out = create(p.form, dtype);
    e.scale = p.coef;
    // The program's first operation for a value sets its rank; operands are older, so no cycles.
    e.forced = force && values_[e.out].view < 0 && by_out_[e.out].empty();
    for (uint32_t k : by_out_[e.out]) {
      Edge& o = edges_[k];
      if (o.op == e.op && o.in == e.in && o.arity == e.arity && o.bits == e.bits && o.fn == e.fn)
        return;
    }
    by_out_[e.out].push_back(uint32_t(edges_.size()));
    edges_.push_back(e);
  }

  void reject(const char* rule) { ++pruned_[rule]; }

  static Edge edge(EdgeOp op, std::initializer_list<ValueId> in, AxisMask bits = 0) {
    Edge e;
    e.op = op;
    for (ValueId v : in) e.in[e.arity++] = v;
    e.bits = bits;
    return e;
  }
  // Of operands in either order.
  static Edge product(EdgeOp op, ValueId a, ValueId b, AxisMask bits = 0) {
    return edge(op, {std::min(a, b), std::max(a, b)}, bits);
  }
  PolyId form(ValueId v) const { return values_[v].form; }
  // The value of a form, up to a scalar; kNone where there is none.
  ValueId find(PolyId exact) {
    if (exact == kNone || nf_.poly(exact).terms.empty()) return kNone;
    auto it = index_.find(nf_.primitive(exact).form);
    return it == index_.end() ? kNone : it->second;
  }

  // --- closure --------------------------------------------------------------------------------

  void unary(ValueId v) {
    PolyId f = form(v);
    emit(edge(EdgeOp::Sqr, {v}), nf_.mul(f, f));
    for (int sign : {1, -1}) {
      if (sign < 0 && nf_.poly(f).terms.size() < 2) break;
      PolyId g = nf_.scale(f, sign);
      for (int half : {1, -1}) {
        Edge e = edge(half > 0 ? EdgeOp::Sqrt : EdgeOp::Rsqrt, {v});
        e.mult[0] = sign;
        emit(e, nf_.pow(g, Q::ratio(half, 2)));
      }
    }
    if (options_.reciprocals) emit(edge(EdgeOp::Div, {one_, v}), nf_.pow(f, -1));
    for (PolyId x : exponents_) {
      for (const Embedding& at : nf_.embeddings(f, x)) {
        if (at.quotient != 0) continue;
        Edge e = edge(EdgeOp::Exp, {v});
        e.mult[0] = at.ratio;
        emit(e, nf_.exp(nf_.scale(f, at.ratio)));
      }
    }
    if (log_used_) emit(edge(EdgeOp::Log, {v}), nf_.log(f));
    for (AxisMask m : reductions(values_[v].axes)) emit(edge(EdgeOp::Sum, {v}, m), nf_.sum(f, m));
    auto it = calls_.find(f);
    if (it != calls_.end())
      for (AtomId a : it->second) call(a);
  }

  // Applies a function of a goal once all its arguments exist.
  void call(AtomId id, bool force = false) {
    const Atom a = nf_.atom(id);
    Edge e;
    e.op = EdgeOp::Fn;
    e.fn = a.ref;
    e.bits = a.bound;
    if (a.args.size() > 3) return;
    for (PolyId p : a.args) {
      NormalForms::Primitive x = nf_.primitive(p);
      size_t i = e.arity++;
      if (nf_.poly(p).terms.empty()) {
        e.in[i] = one_;
        e.mult[i] = 0;
        continue;
      }
      auto it = index_.find(x.form);
      if (it == index_.end()) return;
      e.in[i] = it->second;
      e.mult[i] = x.coef;
    }
    emit(e, nf_.from_mono(nf_.intern_mono({{id, 1}})), force);
  }

  void sums(ValueId v) {
    std::vector<GoalEmbedding> mine = embeddings(form(v));
    for (const GoalEmbedding& g : mine) {
      if (nf_.poly(goals_[g.goal]).terms.size() < 2) continue;
      auto& entries = addends_[{g.goal, g.at.quotient}];
      for (const auto& [u, at] : entries) {
        if (at.mask & g.at.mask) continue;
        Coef ratio = g.at.ratio / at.ratio;
        if (ratio.bad()) continue;
        Edge e = edge(EdgeOp::Add, {u, v});
        if (u == one_) e = edge(EdgeOp::Add, {v, u});
        e.mult[u == one_ ? 0 : 1] = ratio;
        emit(e, nf_.add(form(u), nf_.scale(form(v), ratio)));
      }
      entries.push_back({v, g.at});
    }
  }

  void binary(ValueId u, ValueId v) {
    interruption_point();
    PolyId a = form(u), b = form(v);
    if (options_.cancel_rule && nf_.cancels(a, b, false)) {
      reject("cancels");
    } else {
      PolyId p = nf_.mul(a, b);
      emit(edge(EdgeOp::Mul, {u, v}), p);
      AxisMask shared = values_[u].axes & values_[v].axes & reducible_;
      if (shared && values_[u].axes != values_[v].axes && part_of_goal(p))
        for (AxisMask m : reductions(shared)) emit(edge(EdgeOp::Matmul, {u, v}, m), nf_.sum(p, m));
    }
    quotient(u, v);
    quotient(v, u);
  }

  void quotient(ValueId u, ValueId v) {
    auto [it, fresh] = divisor_.emplace(v, 0);
    if (fresh) it->second = part_of_goal(nf_.pow(form(v), -1)) ? 1 : 0;
    if (!it->second) return;
    if (options_.cancel_rule && nf_.cancels(form(u), form(v), true)) return reject("cancels");
    emit(edge(EdgeOp::Div, {u, v}), nf_.div(form(u), form(v)));
  }

  // --- the program itself ---------------------------------------------------------------------

  // The value of a node and the scalar it carries; the node must have been forced.
  bool value_of(uint32_t node, ValueId& v, Coef& c) {
    PolyId f = rf_.of_node[node];
    if (f == kNone) return false;
    if (nf_.poly(f).terms.empty()) {
      v = one_;
      c = 0;
      return true;
    }
    v = find(f);
    if (v == kNone) return false;
    c = nf_.primitive(f).coef;
    return true;
  }

  // Adds the node's own operation, so that the program is always among the derivations.
  void force(size_t n) {
    interruption_point();
    const Node& node = region_.nodes[n];
    PolyId f = rf_.of_node[n];
    if (f == kNone || is_given(node.kind)) return;
    ValueId a = 0, b = 0;
    Coef ca = 1, cb = 1;
    bool ok = node.operands.empty() || value_of(node.operands[0], a, ca);
    if (node.operands.size() > 1) ok = ok && value_of(node.operands[1], b, cb);
    if (!ok) return;
    const PolyId fa = form(a);
    switch (node.kind) {
    case OpKind::Add: force_sum(a, ca, b, cb); break;
    case OpKind::Sub: force_sum(a, ca, b, -cb); break;
    case OpKind::Mul:
      if (a == b || (a != one_ && b != one_)) forced_product(a, b);
      break;
    case OpKind::Div:
      if (b != one_ && a != b) emit(edge(EdgeOp::Div, {a, b}), nf_.div(fa, form(b)), true);
      break;
    case OpKind::Sqr: forced_product(a, a); break;
    case OpKind::Sqrt:
    case OpKind::Rsqrt: {
      const bool root = node.kind == OpKind::Sqrt;
      Coef sign = ca.q.num < 0 ? -1 : 1;
      Edge e = edge(root ? EdgeOp::Sqrt : EdgeOp::Rsqrt, {a});
      e.mult[0] = sign;
      emit(e, nf_.pow(nf_.scale(fa, sign), Q::ratio(root ? 1 : -1, 2)), true);
      break;
    }
    case OpKind::Pow: {
      Q e = Q::from(std::get<PowAttrs>(node.attrs).exponent);
      if (!e.bad() && e.den <= 2 && e.num >= -16 && e.num <= 16 && a != one_) force_power(a, e);
      break;
    }
    case OpKind::Exp: {
      Edge e = edge(EdgeOp::Exp, {a});
      e.mult[0] = ca;
      PolyId x = nf_.exp(nf_.scale(fa, ca));
      if (const Factor* function = only_function(x))
        call(function->atom, true);
      else
        emit(e, x, true);
      break;
    }
    case OpKind::Log:
      if (ca.one()) emit(edge(EdgeOp::Log, {a}), nf_.log(fa), true);
      break;
    case OpKind::Sum:
    case OpKind::Mean: {
      std::vector<int> axes = node.reduced;
      std::ranges::sort(axes);
      force_reduction(a, axes);
      break;
    }
    case OpKind::Matmul: force_matmul(node, a, b); break;
    default: break;
    }
    // A function: its atom is the whole form (up to a positive scale of a maximum).
    const Factor* function = only_function(f);
    if (function && function->exponent == Q(1)) call(function->atom, true);
    if (node.kind == OpKind::ConcatMatmul) force_concat(node);
  }

  // The one factor of a form, if that is a function; else null.
  const Factor* only_function(PolyId f) const {
    if (f == kNone || nf_.poly(f).terms.size() != 1) return nullptr;
    const std::vector<Factor>& factors = nf_.mono(nf_.poly(f).terms[0].mono).factors;
    const bool is = factors.size() == 1 && nf_.atom(factors[0].atom).kind == AtomKind::Fn;
    return is ? &factors[0] : nullptr;
  }

  // Adds an operation of the program; kNone where its value is not what its operands vary with.
  ValueId forced(const Edge& e, PolyId exact) {
    emit(e, exact, true);
    return find(exact);
  }
  ValueId forced_product(ValueId a, ValueId b) {
    return forced(a == b ? edge(EdgeOp::Sqr, {a}) : product(EdgeOp::Mul, a, b),
                  nf_.mul(form(a), form(b)));
  }

  // The sum of scaled values; the constant comes last.
  void force_sum(ValueId a, Coef ca, ValueId b, Coef cb) {
    if (ca.zero() || cb.zero() || a == b) return;
    const PolyId sum = nf_.add(nf_.scale(form(a), ca), nf_.scale(form(b), cb));
    if (a == one_) std::swap(a, b), std::swap(ca, cb);
    Edge e = edge(EdgeOp::Add, {a, b});
    e.mult = {ca, cb, Coef(1)};
    emit(e, sum, true);
  }

  void force_reduction(ValueId from, const std::vector<int>& axes) {
    for (int a : axes) {
      if (a < 0 || !(values_[from].axes & bit(a))) continue;
      const PolyId p = nf_.sum(form(from), region_.bits(a));
      if (p == kNone || nf_.poly(p).terms.empty()) return;
      from = forced(edge(EdgeOp::Sum, {from}, region_.bits(a)), p);
      if (from == kNone) return;
    }
  }

  void force_matmul(const Node& node, ValueId a, ValueId b) {
    if (a == one_ || b == one_) return;
    const AxisMask k = node.reduced[0] < 0 ? 0 : region_.bits(node.reduced[0]);
    if (k && a != b && (values_[a].axes & values_[b].axes & k) &&
        values_[a].axes != values_[b].axes) {
      emit(product(EdgeOp::Matmul, a, b, k), nf_.sum(nf_.mul(form(a), form(b)), k), true);
      return;
    }
    const ValueId p = forced_product(a, b);
    if (k && p != kNone) force_reduction(p, node.reduced);
  }

  // v^e from squares, products, a root and a reciprocal.
  ValueId force_power(ValueId v, const Q& e) {
    if (v == kNone || e == Q(1)) return v;
    if (e.zero()) return one_;
    const PolyId f = form(v);
    if (e.num < 0) {
      ValueId u = force_power(v, -e);
      return u == kNone ? u : forced(edge(EdgeOp::Div, {one_, u}), nf_.pow(form(u), -1));
    }
    if (e == Q::ratio(1, 2)) return forced(edge(EdgeOp::Sqrt, {v}), nf_.pow(f, e));
    Q rest = e.den == 2 ? Q::ratio(1, 2) : e.num % 2 != 0 ? Q(1) : Q(0);
    if (rest.zero()) {
      ValueId u = force_power(v, e * Q::ratio(1, 2));
      return u == kNone ? u : forced_product(u, u);
    }
    ValueId a = force_power(v, e - rest), b = force_power(v, rest);
    return a == kNone || b == kNone ? kNone : forced_product(a, b);
  }

  void force_concat(const Node& node) {
    std::array<ValueId, 2> part{};
    std::array<Coef, 2> coef{};
    for (size_t i = 0; i < 2; ++i) {
      ValueId a = 0, b = 0;
      Coef ca, cb;
      if (!value_of(node.operands[i], a, ca) || !value_of(node.operands[i + 2], b, cb)) return;
      AxisMask k = node.reduced[i] < 0 ? 0 : region_.bits(node.reduced[i]);
      PolyId p = nf_.sum(nf_.mul(form(a), form(b)), k);
      if (p == kNone || a == b || values_[a].axes == values_[b].axes) return;
      part[i] = forced(product(k ? EdgeOp::Matmul : EdgeOp::Mul, a, b, k), p);
      if (part[i] == kNone) return;
      coef[i] = nf_.primitive(p).coef * ca * cb;
    }
    Edge e = edge(EdgeOp::Add, {part[0], part[1]});
    e.mult = {coef[0], coef[1], Coef(1)};
    emit(e, nf_.add(nf_.scale(form(part[0]), coef[0]), nf_.scale(form(part[1]), coef[1])), true);
  }

  // --- the result -----------------------------------------------------------------------------

  Hypergraph finish() {
    Hypergraph out;
    out.saturated_values = values_.size();
    out.saturated_edges = edges_.size();
    out.capped = capped_;
    // Ranks: sizes, raised where the program's own operations need it.
    for (size_t round = 0; round < values_.size(); ++round) {
      bool changed = false;
      for (const Edge& e : edges_) {
        if (!e.forced || values_[e.out].view >= 0) continue;
        for (ValueId v : e.operands()) {
          if (values_[e.out].rank > values_[v].rank || e.out == v) continue;
          values_[e.out].rank = values_[v].rank + 1;
          changed = true;
        }
      }
      if (!changed) break;
    }
    auto ordered = [&](const Edge& e) {
      for (ValueId v : e.operands())
        if (v != one_ && values_[v].rank >= values_[e.out].rank) return false;
      return values_[e.out].view < 0 && e.out != one_;
    };
    std::vector<char> derivable(values_.size(), 0), live(values_.size(), 0);
    for (size_t v = 0; v < values_.size(); ++v) derivable[v] = v == one_ || values_[v].view >= 0;
    std::vector<char> usable(edges_.size(), 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t k = 0; k < edges_.size(); ++k) {
        if (usable[k] || !ordered(edges_[k])) continue;
        if (!std::ranges::all_of(edges_[k].operands(), [&](ValueId v) { return derivable[v]; }))
          continue;
        usable[k] = 1;
        changed = true;
        derivable[edges_[k].out] = 1;
      }
    }
    std::vector<ValueId> todo;
    for (uint32_t t : region_.targets) {
      ValueId v = 0;
      Coef c;
      if (!value_of(t, v, c) || !derivable[v]) return {};
      todo.push_back(v);
    }
    while (!todo.empty()) {
      ValueId v = todo.back();
      todo.pop_back();
      if (live[v]) continue;
      live[v] = 1;
      for (uint32_t k : by_out_[v]) {
        if (!usable[k]) continue;
        for (ValueId u : edges_[k].operands()) todo.push_back(u);
      }
    }
    live[one_] = 1;
    std::vector<ValueId> order;
    for (ValueId v = 0; v < values_.size(); ++v)
      if (live[v] && v != one_) order.push_back(v);
    std::ranges::stable_sort(order, {}, [&](ValueId v) { return values_[v].rank; });
    order.insert(order.begin(), one_);
    if (order.size() > kMaxValues) return {};
    std::vector<ValueId> renamed(values_.size(), 0);
    for (size_t i = 0; i < order.size(); ++i) {
      renamed[order[i]] = ValueId(i);
      out.values.push_back(values_[order[i]]);
    }
    out.producers.resize(out.values.size());
    for (size_t k = 0; k < edges_.size(); ++k) {
      if (!usable[k] || !live[edges_[k].out]) continue;
      Edge e = edges_[k];
      for (int i = 0; i < e.arity; ++i) e.in[size_t(i)] = renamed[e.in[size_t(i)]];
      e.out = renamed[e.out];
      out.producers[e.out].push_back(uint32_t(out.edges.size()));
      out.edges.push_back(e);
    }
    for (uint32_t t : region_.targets) {
      ValueId v = 0;
      Coef c;
      value_of(t, v, c);
      out.targets.push_back({t, renamed[v], c});
    }
    return out;
  }

  const Region& region_;
  NormalForms& nf_;
  const RegionForms& rf_;
  const SaturateOptions& options_;
  std::map<std::string, int64_t>& pruned_;
  std::vector<PolyId> goals_;
  std::set<PolyId> exponents_;
  std::set<AtomId> functions_;
  std::map<PolyId, std::vector<AtomId>> calls_;
  AxisMask reducible_ = 0;
  bool log_used_ = false, capped_ = false;
  double max_volume_ = 1;
  ValueId one_ = 0;
  std::vector<Value> values_;
  std::vector<Edge> edges_;
  std::unordered_map<PolyId, ValueId> index_;
  std::unordered_map<ValueId, std::vector<uint32_t>> by_out_;
  std::unordered_map<PolyId, std::vector<GoalEmbedding>> embeddings_;
  std::unordered_map<ValueId, char> divisor_;
  std::map<std::pair<uint32_t, MonoId>, std::vector<std::pair<ValueId, Embedding>>> addends_;
};

}  // namespace

OpKind op_kind(const Edge& e, const RegionForms& forms) {
  switch (e.op) {
  case EdgeOp::Mul: return OpKind::Mul;
  case EdgeOp::Div: return OpKind::Div;
  case EdgeOp::Add: return OpKind::Add;
  case EdgeOp::Sqr: return OpKind::Sqr;
  case EdgeOp::Sqrt: return OpKind::Sqrt;
  case EdgeOp::Rsqrt: return OpKind::Rsqrt;
  case EdgeOp::Exp: return OpKind::Exp;
  case EdgeOp::Log: return OpKind::Log;
  case EdgeOp::Fn: return forms.functions[e.fn].kind;
  case EdgeOp::Sum: return OpKind::Sum;
  case EdgeOp::Matmul: return OpKind::Matmul;
  }
  unreachable("EdgeOp");
}

Hypergraph saturate(const Region& region, NormalForms& forms, const RegionForms& region_forms,
                    const SaturateOptions& options, std::map<std::string, int64_t>& pruned) {
  return Saturation(region, forms, region_forms, options, pruned).run();
}

std::string str(const Edge& e, const Hypergraph& g, const NormalForms& nf, const RegionForms& rf) {
  std::string s = nf.str(g.values[e.out].form) + " <- ";
  s += name(op_kind(e, rf));
  if (e.bits) {
    s += "{";
    for (AxisMask m = e.bits; m; m &= m - 1) s += std::to_string(lowest(m));
    s += "}";
  }
  s += "(";
  for (int i = 0; i < e.arity; ++i) {
    size_t k = size_t(i);
    s += (i ? ", " : "") + (e.mult[k].one() ? "" : e.mult[k].q.rational().str() + "·") +
         nf.str(g.values[e.in[k]].form);
  }
  return s + ")";
}

}  // namespace tessera::mugraph
