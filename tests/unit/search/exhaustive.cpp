#include "search/exhaustive.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "search/mugraph/assemble.h"

namespace tessera::mugraph {
namespace {

class Enumeration {
 public:
  Enumeration(const Region& region, NormalForms& nf, const RegionForms& rf,
              const ExhaustiveOptions& options)
      : region_(region), nf_(nf), rf_(rf), options_(options) {}

  Enumerated run() {
    std::vector<PolyId> targets;
    for (uint32_t t : region_.targets) {
      PolyId f = rf_.of_node[t];
      if (nf_.poly(f).terms.empty()) return std::move(result_);
      targets.push_back(f);
    }
    goals_ = nf_.goals(targets, 400);
    for (PolyId g : goals_) {
      for (const Term& t : nf_.poly(g).terms) {
        for (const Factor& f : nf_.mono(t.mono).factors) {
          if (nf_.atom(f.atom).kind == AtomKind::Fn) functions_.insert(f.atom);
          if (nf_.atom(f.atom).kind == AtomKind::Sum) reducible_ |= nf_.atom(f.atom).bound;
        }
      }
    }
    value(nf_.one(), DType::F32);
    std::vector<ValueId> inputs;
    for (size_t v = 0; v < region_.views.size(); ++v) {
      ValueId id = value(nf_.input(uint32_t(v), region_.mask(region_.views[v].dims)),
                         region_.views[v].dtype);
      result_.graph.values[id].view = int(v);
      inputs.push_back(id);
    }
    for (uint32_t t : region_.targets) {
      NormalForms::Primitive p = nf_.primitive(rf_.of_node[t]);
      const DType dtype = region_.nodes[t].dtype;
      ValueId id = value(p.form, dtype);
      targets_.push_back(id);
      result_.graph.targets.push_back({t, id, p.coef});
    }
    std::sort(targets_.begin(), targets_.end());
    targets_.erase(std::unique(targets_.begin(), targets_.end()), targets_.end());
    AxisMask all = 0;
    for (const View& v : region_.views) all |= region_.mask(v.dims);
    loop_ = -1;
    search(inputs);
    for (AxisMask m = all; m; m &= m - 1) {
      loop_ = lowest(m);
      if (region_.axes[size_t(loop_)].extent >= 4) search(inputs);
    }
    result_.graph.producers.resize(result_.graph.values.size());
    for (size_t k = 0; k < result_.graph.edges.size(); ++k)
      result_.graph.producers[result_.graph.edges[k].out].push_back(uint32_t(k));
    return std::move(result_);
  }

 private:
  struct Item {
    ValueId value;
    KernelPhase phase;
    int uses = 0;
    int ready = 0;  // inside the loop: first pass it can be computed in; outside: passes before it
  };
  struct Offer {  // an operator on items, the newest of which is item `newest`
    uint32_t edge;
    int a, b;  // items; b = -1 for one operand
    KernelPhase phase;
    int ready;
  };

  ValueId value(PolyId form, DType dtype) {
    auto [it, fresh] = index_.emplace(form, ValueId(result_.graph.values.size()));
    if (fresh) {
      Value v;
      v.form = form;
      v.axes = nf_.poly(form).axes;
      v.rank = nf_.poly(form).size;
      v.dtype = dtype;
      for (AxisMask m = v.axes; m; m &= m - 1)
        v.volume *= double(region_.axes[size_t(lowest(m))].extent);
      result_.graph.values.push_back(v);
    }
    return it->second;
  }

  bool part_of_goal(PolyId p) {
    auto [it, fresh] = parts_.emplace(p, false);
    if (!fresh) return it->second;
    bool in = false;
    for (PolyId g : goals_) in = in || !nf_.embeddings(p, g).empty();
    parts_[p] = in;
    return in;
  }

  void search(const std::vector<ValueId>& inputs) {
    items_.clear();
    offers_.clear();
    chosen_.clear();
    operators_ = 0;
    for (ValueId v : inputs) {
      bool varies = loop_ >= 0 && (result_.graph.values[v].axes & bit(loop_));
      push({v, varies ? KernelPhase::Loop : KernelPhase::Invariant, 0, varies ? 1 : 0});
    }
    extend(0);
  }

  void push(Item item) {
    items_.push_back(item);
    offer_all(int(items_.size()) - 1);
  }

  // The operator's edge, interned; kNone where the value is not admitted.
  uint32_t intern(Edge e, PolyId exact) {
    if (exact == kNone || nf_.poly(exact).terms.empty()) return kNone;
    NormalForms::Primitive p = nf_.primitive(exact);
    AxisMask axes = 0;
    for (int i = 0; i < e.arity; ++i) axes |= result_.graph.values[e.in[size_t(i)]].axes;
    if ((axes & ~e.bits) != nf_.poly(p.form).axes) return reject("axes");
    if (!part_of_goal(p.form)) return reject("not part of a goal");
    DType dtype = result_.graph.values[e.in[0]].dtype;
    if (e.in[0] == kOne && e.arity > 1) dtype = result_.graph.values[e.in[1]].dtype;
    if (e.op == EdgeOp::Fn && !rf_.functions[e.fn].same_dtype) dtype = rf_.functions[e.fn].result;
    e.out = value(p.form, dtype);
    e.scale = p.coef;
    std::string key = std::to_string(int(e.op)) + "," + std::to_string(e.bits) + "," +
                      std::to_string(e.fn) + "," + std::to_string(e.out);
    for (int i = 0; i < e.arity; ++i)
      key += "," + std::to_string(e.in[size_t(i)]) + ":" + e.mult[size_t(i)].q.rational().str();
    auto [it, fresh] = edges_.emplace(key, uint32_t(result_.graph.edges.size()));
    if (fresh) result_.graph.edges.push_back(e);
    return it->second;
  }
  uint32_t reject(const char* rule) {
    ++result_.pruned[rule];
    return kNone;
  }

  // Phase and pass of a result; false where it would need more passes than there may be.
  bool combine(const Edge& e, const Item& a, const Item& b, Offer& out) const {
    const bool over_loop = loop_ >= 0 && (e.bits & bit(loop_));
    const bool varies = a.phase == KernelPhase::Loop || b.phase == KernelPhase::Loop;
    out.ready = varies ? 1 : 0;
    for (const Item* x : {&a, &b}) {
      const bool outside = x->phase != KernelPhase::Loop;
      out.ready = std::max(out.ready, x->ready + (varies && outside ? 1 : 0));
    }
    out.phase = varies && !over_loop ? KernelPhase::Loop
                : out.ready > 0      ? KernelPhase::Post
                                     : KernelPhase::Invariant;
    return out.ready <= kMaxPasses;
  }

  void offer(const Edge& e, PolyId exact, int a, int b) {
    Offer o{0, a, b, KernelPhase::Invariant, 0};
    if (!combine(e, items_[size_t(a)], items_[size_t(b < 0 ? a : b)], o)) {
      reject("phase");
      return;
    }
    o.edge = intern(e, exact);
    if (o.edge != kNone) offers_.push_back(o);
  }

  static Edge edge(EdgeOp op, ValueId a, int b = -1, AxisMask bits = 0) {
    Edge e;
    e.op = op;
    e.in[e.arity++] = a;
    if (b >= 0) e.in[e.arity++] = ValueId(b);
    e.bits = bits;
    return e;
  }

  // Everything whose newest operand is item i.
  void offer_all(int i) {
    const ValueId v = items_[size_t(i)].value;
    const PolyId f = result_.graph.values[v].form;
    const AxisMask axes = result_.graph.values[v].axes;
    offer(edge(EdgeOp::Sqr, v), nf_.mul(f, f), i, -1);
    offer(edge(EdgeOp::Sqrt, v), nf_.pow(f, Q::ratio(1, 2)), i, -1);
    offer(edge(EdgeOp::Rsqrt, v), nf_.pow(f, Q::ratio(-1, 2)), i, -1);
    Edge reciprocal = edge(EdgeOp::Div, kOne, int(v));
    offer(reciprocal, nf_.pow(f, -1), i, -1);
    for (AxisMask m = axes & reducible_; m; m &= m - 1)
      offer(edge(EdgeOp::Sum, v, -1, m & -m), nf_.sum(f, m & -m), i, -1);
    for (PolyId g : goals_) {  // exponents the program takes
      for (const Embedding& at : nf_.embeddings(f, g)) {
        if (at.quotient != 0) continue;
        Edge e = edge(EdgeOp::Exp, v);
        e.mult[0] = at.ratio;
        PolyId x = nf_.exp(nf_.scale(f, at.ratio));
        if (x != kNone && part_of_goal(nf_.primitive(x).form)) offer(e, x, i, -1);
      }
    }
    for (AtomId a : functions_) {  // functions of one operand
      const Atom atom = nf_.atom(a);
      if (atom.args.size() != 1) continue;
      NormalForms::Primitive p = nf_.primitive(atom.args[0]);
      if (p.form != f) continue;
      Edge e = edge(EdgeOp::Fn, v, -1, atom.bound);
      e.fn = atom.ref;
      e.mult[0] = p.coef;
      offer(e, nf_.from_mono(nf_.intern_mono({{a, 1}})), i, -1);
    }
    add(kOne, v, i, -1);
    for (int j = 0; j < i; ++j) {
      const ValueId u = items_[size_t(j)].value;
      const PolyId h = result_.graph.values[u].form;
      if (u == v) continue;
      if (!nf_.cancels(f, h, false)) {
        PolyId p = nf_.mul(f, h);
        offer(edge(EdgeOp::Mul, std::min(u, v), int(std::max(u, v))), p, i, j);
        AxisMask other = result_.graph.values[u].axes;
        for (AxisMask m = axes & other & reducible_; m && axes != other; m &= m - 1) {
          offer(edge(EdgeOp::Matmul, std::min(u, v), int(std::max(u, v)), m & -m),
                nf_.sum(p, m & -m), i, j);
        }
      }
      if (!nf_.cancels(f, h, true)) {
        offer(edge(EdgeOp::Div, u, int(v)), nf_.div(h, f), i, j);
        offer(edge(EdgeOp::Div, v, int(u)), nf_.div(f, h), i, j);
      }
      add(u, v, i, j);
    }
  }

  // Sums with the ratio in which a goal contains both operands; without pruning also as they are.
  void add(ValueId u, ValueId v, int i, int j) {
    const PolyId h = result_.graph.values[u].form, f = result_.graph.values[v].form;
    std::vector<Coef> ratios;
    for (PolyId g : goals_) {
      if (nf_.poly(g).terms.size() < 2) continue;
      for (const Embedding& x : nf_.embeddings(h, g)) {
        for (const Embedding& y : nf_.embeddings(f, g)) {
          if (x.quotient != y.quotient || (x.mask & y.mask)) continue;
          Coef r = y.ratio / x.ratio;
          if (!r.bad() && std::find(ratios.begin(), ratios.end(), r) == ratios.end())
            ratios.push_back(r);
        }
      }
    }
    for (const Coef& r : ratios) {
      Edge e = u == kOne ? edge(EdgeOp::Add, v, int(u)) : edge(EdgeOp::Add, u, int(v));
      e.mult[u == kOne ? 0 : 1] = r;
      offer(e, nf_.add(h, nf_.scale(f, r)), i, j);
    }
  }

  int cost_of(const Edge& e) const {  // an accumulator is an operator of its own
    return 1 + (loop_ >= 0 && (e.bits & bit(loop_)) ? 1 : 0);
  }

  void extend(size_t cursor) {
    if (stopped()) return;
    int savers = int(targets_.size());
    int inputs = int(region_.views.size());
    int left = options_.max_operators - inputs - savers - operators_;
    complete();
    if (left <= 0) return;
    int unconsumed = 0;
    for (const Item& it : items_) unconsumed += it.uses == 0;
    // A binary operator consumes at most one more value than it makes.
    if (unconsumed - savers > left) {
      reject("sink bound");
      return;
    }
    for (size_t c = cursor; c < offers_.size(); ++c) {
      const Offer o = offers_[c];
      const Edge& e = result_.graph.edges[o.edge];
      const int cost = cost_of(e);
      if (cost > left) continue;
      bool duplicate = false;
      for (const Item& it : items_)
        duplicate = duplicate || (it.value == e.out && it.phase == o.phase);
      if (duplicate) {
        reject("same value");
        continue;
      }
      const size_t items = items_.size(), offers = offers_.size();
      ++result_.states;
      ++items_[size_t(o.a)].uses;
      if (o.b >= 0) ++items_[size_t(o.b)].uses;
      operators_ += cost;
      chosen_.push_back(o.edge);
      push({e.out, o.phase, 0, o.ready});
      extend(c + 1);
      chosen_.pop_back();
      operators_ -= cost;
      --items_[size_t(o.a)].uses;
      if (o.b >= 0) --items_[size_t(o.b)].uses;
      items_.resize(items);
      offers_.resize(offers);
    }
  }

  bool stopped() {
    if (result_.states > options_.max_states || result_.kernels.size() >= options_.keep)
      result_.complete = false;
    return !result_.complete;
  }

  // Every target is there and nothing else is left over.
  void complete() {
    Kernel k;
    for (const Item& it : items_) {
      bool target = std::binary_search(targets_.begin(), targets_.end(), it.value);
      if (it.uses == 0 && !target) return;
    }
    for (ValueId t : targets_) {
      int found = 0;
      for (const Item& it : items_) found += it.value == t;
      if (found != 1) return;
    }
    for (size_t i = 0; i < items_.size(); ++i) {  // a value in two phases is not expressible
      for (size_t j = 0; j < i; ++j)
        if (items_[i].value == items_[j].value) return;
    }
    AxisMask loaded = 0;
    for (size_t i = 0; i < region_.views.size(); ++i) {
      k.loads.push_back(items_[i].value);
      loaded |= result_.graph.values[items_[i].value].axes;
    }
    if (loop_ >= 0 && !(loaded & bit(loop_))) return;
    std::sort(k.loads.begin(), k.loads.end());
    k.outputs = targets_;
    k.edges = chosen_;
    k.loop = loop_;
    k.varies = k.folds = loop_ < 0 ? 0 : bit(loop_);
    for (const Item& it : items_) k.passes = std::max(k.passes, it.ready);
    k.operators = operators_ + int(k.loads.size() + k.outputs.size());
    result_.kernels.push_back(std::move(k));
  }

  const Region& region_;
  NormalForms& nf_;
  const RegionForms& rf_;
  const ExhaustiveOptions& options_;
  Enumerated result_;
  std::vector<PolyId> goals_;
  std::set<AtomId> functions_;
  AxisMask reducible_ = 0;
  std::vector<ValueId> targets_;
  std::unordered_map<PolyId, ValueId> index_;
  std::unordered_map<PolyId, bool> parts_;
  std::unordered_map<std::string, uint32_t> edges_;
  int loop_ = -1, operators_ = 0;
  std::vector<Item> items_;
  std::vector<Offer> offers_;
  std::vector<uint32_t> chosen_;
};

}  // namespace

Enumerated enumerate_blocks(const Region& region, NormalForms& forms,
                            const RegionForms& region_forms, const ExhaustiveOptions& options) {
  return Enumeration(region, forms, region_forms, options).run();
}

namespace {

// The region's graphs under one formulation, priced; the cheapest are kept.
void list_choices(Run& run, const Region& region, const FormOptions& form,
                  const ExhaustiveOptions& options, RegionResult& out) {
  auto world = std::make_unique<World>();
  world->region = region;
  world->formulation.options = form;
  world->drops_shift = !form.keep_shifts;
  world->forms = std::make_unique<NormalForms>(axis_extents(region), form);
  world->region_forms = build_forms(region, *world->forms);
  if (world->region_forms.of_node.empty()) return;
  Enumerated found = enumerate_blocks(region, *world->forms, world->region_forms, options);
  run.limited = run.limited || !found.complete;
  KernelCounters counters;
  counters.graphs = int64_t(found.kernels.size());
  run.report.edges += found.states;
  world->graph = std::move(found.graph);
  KernelOptions kernel_options;
  kernel_options.memory_share = run.memory_share;
  const std::map<int, int64_t> no_parts;
  auto& kernels = world->kernels[no_parts] =
      std::make_unique<KernelSearch>(world->graph, world->region, world->region_forms, no_parts,
                                     run.machine, kernel_options, run.resident);
  std::vector<Plan> plans;
  for (Kernel& k : found.kernels) {
    if (!kernels->choose_tiles(k, counters)) continue;
    Plan p;
    p.seconds = k.seconds;
    p.kernels.push_back(std::move(k));
    plans.push_back(std::move(p));
  }
  run.merge(counters);
  std::ranges::stable_sort(plans,
                           [](const Plan& a, const Plan& b) { return a.seconds < b.seconds; });
  if (plans.size() > size_t(run.budget.candidates)) plans.resize(size_t(run.budget.candidates));
  for (Plan& p : plans) out.choices.push_back({std::move(p), out.worlds.size()});
  out.worlds.push_back(std::move(world));
}

}  // namespace

SearchReport Exhaustive::run(const Subprogram& sub, Context& context, const Budget& budget,
                             CandidateSink& sink) {
  const MugraphOptions engine_options;
  Run run(engine_options, sub.graph, context, budget);
  double inputs = 0;
  std::vector<bool> given(sub.graph.tensors().size(), false);
  for (TensorId t : sub.graph.inputs()) {
    inputs += double(sub.graph.type(t).bytes());
    given[t.index] = true;
  }
  run.resident = run.machine.resident(inputs);
  run.regions = 1;
  const std::vector<Step> steps = partition(sub.graph);
  run.report.stop = StopReason::Unsupported;
  if (steps.size() != 1 || steps[0].kept.valid()) return run.report;
  const Region region = make_region(sub.graph, steps[0].outputs, given);
  const auto has_kind = [&](OpKind kind) {
    return std::ranges::any_of(sub.graph.ops(), [&](const Op& op) { return op.kind == kind; });
  };
  const bool shifts = has_kind(OpKind::Exp) && has_kind(OpKind::ReduceMax);
  for (run.memory_share = 1; run.memory_share > 0.1; run.memory_share *= 0.4) {
    std::map<size_t, RegionResult> results;
    for (const bool keep_shifts : {false, true})
      for (const int cap : {2, 16})
        if (shifts || !keep_shifts)
          list_choices(run, region, {cap, keep_shifts}, options_, results[0]);
    std::ranges::stable_sort(results[0].choices, [](const Choice& a, const Choice& b) {
      return a.plan.seconds < b.plan.seconds;
    });
    if (results[0].choices.empty()) return run.report;
    const bool too_large = offer_programs(run, steps, results, sink);
    if (run.report.candidates > 0 || !too_large) break;
  }
  run.report.stop = run.limited ? StopReason::StepBudget : StopReason::Exhausted;
  return run.report;
}

}  // namespace tessera::mugraph
