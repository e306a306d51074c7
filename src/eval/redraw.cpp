// Drawing again the inputs that feed undefined elements, and no others: with 2^rows chances that
// all row norms are residues at once, nothing less selective would ever end.
#include <map>

#include "eval/field_eval.h"

namespace tessera {
namespace {

constexpr size_t kMaxTraceEntries = size_t(1) << 22;  // of one kernel; beyond that: see untraced

// Rounds without progress before shared inputs are drawn too. An element that needs two components
// to be residues stays undefined for this long with probability (3/4)^16, one percent.
constexpr int kPatience = 16;
// Of many elements that could move some do at once.
constexpr int kPatienceOfMany = 2;
constexpr int64_t kManyUndefined = 64;
constexpr double kProgress = 0.97;  // of the undefined elements, at most so many are left

// Keeps of `demand` what decides definedness: partial operators (or roots only) and their
// ancestors. Returns which inputs of the graph those read.
std::vector<bool> restrict_demand(const Graph& g, Demand& demand,
                                  const std::vector<bool>& needed_outputs, bool roots_only) {
  std::vector<bool> needed(g.tensors().size(), false);
  for (size_t i = 0; i < g.outputs().size(); ++i)
    if (needed_outputs[i]) needed[g.outputs()[i].index] = true;
  for (size_t n = g.ops().size(); n-- > 0;) {
    const Op& op = g.ops()[n];
    if (!demand.any(op)) continue;
    bool run = roots_only ? is_root(g, op) : is_partial(op.kind);
    for (uint32_t r = 0; r < op.num_results; ++r) run = run || needed[op.result(r).index];
    if (op.body.valid()) {
      std::vector<bool> results;
      for (uint32_t r = 0; r < op.num_results; ++r) results.push_back(needed[op.result(r).index]);
      Demand& inner = demand.bodies[op.body.index];
      const std::vector<bool> arguments = restrict_demand(g.body(op), inner, results, roots_only);
      run = run || inner.live;
      for (size_t i = 0; i < op.inputs.size(); ++i)
        if (arguments[i]) needed[op.inputs[i].index] = true;
    } else if (run) {
      for (TensorId t : op.inputs) needed[t.index] = true;
    }
    if (run) demand.live = true;
    for (uint32_t r = 0; r < op.num_results; ++r) {
      const bool keep = op.body.valid() ? needed[op.result(r).index] : run;
      if (!keep) demand.tensors[op.result(r).index] = 0;
    }
  }
  return mapped(g.inputs(), [&](TensorId t) -> bool { return needed[t.index]; });
}

// Marks of all kernel-level tensors, allocated when first asked for.
class GraphMarks {
 public:
  explicit GraphMarks(const Graph& g) : g_(g), marks_(g.tensors().size()) {}
  Marked of(TensorId t) {
    Marks& m = marks_[t.index];
    if (m.empty()) m.assign(size_t(num_elements(g_.type(t).shape)), 0);
    return {extents(g_.type(t).shape), &m};
  }
  // Without allocating: marks may be empty.
  Marked known(TensorId t) { return {extents(g_.type(t).shape), &marks_[t.index]}; }
  // Anything may feed anything.
  void untraced(const Op& op, uint8_t own) {
    uint8_t all = own;
    for (uint32_t r = 0; r < op.num_results; ++r)
      for (uint8_t m : marks_[op.result(r).index]) all |= m;
    for (TensorId t : op.inputs)
      for (uint8_t& m : *of(t).marks) m |= all;
  }

 private:
  const Graph& g_;
  std::vector<Marks> marks_;
};

// The blocks of one kernel, or only whether anything in them was undefined.
struct KernelTrace {
  std::vector<BlockTrace> blocks;
  size_t entries = 0;
  uint8_t origin = 0;
};

// One evaluation, and from its undefined elements back to the inputs.
template <class W> class RedrawRound {
 public:
  RedrawRound(const Graph& g, const FieldModel& model, const std::vector<FieldArray>& inputs,
              const FieldOptions& options, const Demand& demand)
      : g_(g), demand_(demand), marks_(g), indices_(g.ops().size()) {
    Interpreter<FieldDomain<W>> interpreter(FieldDomain<W>(model), options.pool);
    std::vector<View> values = input_views(g, inputs);
    std::vector<Arena> arenas;
    interpreter.set_tracer([&](const Op& op, BlockTrace&& block) {
      KernelTrace& k = kernels_[&op];
      for (const auto& e : block.entries) k.origin |= count(e.origin);
      k.entries += block.entries.size();
      if (k.entries <= kMaxTraceEntries)
        k.blocks.push_back(std::move(block));
      else
        k.blocks.clear();
    });
    interpreter.run(g, demand, values, arenas, [&](const Op& op, const std::vector<View>& all) {
      if (!is_partial(op.kind)) return;
      std::vector<View> in = mapped(op.inputs, [&](TensorId t) { return all[t.index]; });
      if (op.kind == OpKind::Gather) indices_[size_t(&op - g.ops().data())] = integers_of(in[1]);
      Marks& m = *marks_.of(op.result()).marks;
      m = origin_marks(op.kind, in, all[op.result().index]);
      count(m);
    });
  }
  int64_t undefined() const { return undefined_; }

  // The marks of the inputs, one for each.
  std::vector<const Marks*> mark_inputs() {
    for (size_t n = g_.ops().size(); n-- > 0;) {
      const Op& op = g_.ops()[n];
      if (!op.inputs.empty() && demand_.any(op)) mark(op, indices_[n]);
    }
    return mapped(g_.inputs(), [&](TensorId t) -> const Marks* { return marks_.known(t).marks; });
  }

 private:
  uint8_t count(const Marks& m) {
    uint8_t all = 0;
    for (uint8_t x : m) {
      all |= x;
      undefined_ += x == kFeedsBad;
    }
    return all;
  }
  void mark(const Op& op, const NDArray& indices) {
    const bool kernel = is_kernel(op.kind);
    if (!kernel && marks_.known(op.result()).marks->empty() && op.num_results == 1) return;
    if (kernel && kernels_[&op].entries > kMaxTraceEntries)
      return marks_.untraced(op, kernels_[&op].origin);
    std::vector<Marked> operands, results;
    for (TensorId t : op.inputs) operands.push_back(marks_.of(t));
    if (!kernel) return mark_operands(g_, op, operands, marks_.of(op.result()), indices);
    for (uint32_t r = 0; r < op.num_results; ++r) results.push_back(marks_.known(op.result(r)));
    for (const BlockTrace& block : kernels_[&op].blocks) mark_block(block, operands, results);
  }

  const Graph& g_;
  const Demand& demand_;
  GraphMarks marks_;
  std::vector<NDArray> indices_;
  std::map<const Op*, KernelTrace> kernels_;
  int64_t undefined_ = 0;
};

// Draws again what feeds undefined elements, or only what feeds no others; says how many.
template <class W>
int64_t draw_again(const FieldModel& model, std::vector<FieldArray>& inputs,
                   const std::vector<const Marks*>& marks, int round, bool everything) {
  int64_t redrawn = 0;
  for (size_t k = 0; k < inputs.size(); ++k) {
    FieldArray& a = inputs[k];
    const Marks& m = *marks[k];
    for (int c = 0; is_float(a.dtype) && c < 3; ++c) {
      if (a.components[size_t(c)].empty()) continue;
      const CounterRng rng = InputStream{model.seed()}.at(k, c, round);
      const UniformBelow uniform(model.prime(c));
      W* words = a.components[size_t(c)].template as<W>();
      for (size_t i = 0; i < m.size(); ++i) {
        if (everything ? (m[i] & kFeedsBad) == 0 : m[i] != kFeedsBad) continue;
        words[i] = W(uniform.at(rng, i));
        ++redrawn;
      }
    }
  }
  return redrawn;
}

template <class W>
RedrawReport redraw(const Graph& g, const FieldModel& model, std::vector<FieldArray>& inputs,
                    int rounds, const FieldOptions& options, const Demand& demand) {
  RedrawReport report;
  int64_t best = INT64_MAX;
  int best_round = 0;
  bool everything = false;
  for (report.rounds = 1;; ++report.rounds) {
    RedrawRound<W> round(g, model, inputs, options, demand);
    report.still_undefined = round.undefined();
    if (report.still_undefined == 0 || report.rounds > rounds) return report;
    if (options.cancel != nullptr && options.cancel->load()) return report;
    const std::vector<const Marks*> marks = round.mark_inputs();
    // First what feeds undefined elements only. When there is nothing of the kind, or no progress
    // for long (some undefined element may be fed by shared inputs alone), all that feeds them, for
    // as long as that helps.
    const int patience = everything                                ? 1
                         : report.still_undefined > kManyUndefined ? kPatienceOfMany
                                                                   : kPatience;
    if (double(report.still_undefined) < kProgress * double(best)) {
      best = report.still_undefined;
      best_round = report.rounds;
    } else if (report.rounds - best_round >= patience) {
      everything = !everything;
      best = everything ? report.still_undefined : INT64_MAX;
      best_round = report.rounds;
    }
    int64_t redrawn = draw_again<W>(model, inputs, marks, report.rounds, everything);
    if (redrawn == 0 && !everything)
      redrawn = draw_again<W>(model, inputs, marks, report.rounds, true);
    report.redrawn += redrawn;
    if (redrawn == 0) return report;
  }
}

}  // namespace

RedrawReport redraw_inputs(const Graph& graph, const FieldModel& model,
                           std::vector<FieldArray>& inputs, int rounds,
                           const FieldOptions& options) {
  RedrawReport report;
  report.unsupported = unsupported_in(graph, model);
  if (!report.unsupported.empty()) return report;
  Demand demand = find_demand(graph, options.outputs);
  if (options.all_components) {
    auto present = mapped(inputs, [&](const FieldArray& a) { return a.present(); });
    demand_roots(graph, present, demand);
  }
  check_field_inputs(graph, model, inputs, demand);
  restrict_demand(graph, demand, std::vector<bool>(graph.outputs().size(), false),
                  options.roots_only);
  return with_word(model.size(), [&](auto word) {
    return redraw<decltype(word)>(graph, model, inputs, rounds, options, demand);
  });
}

}  // namespace tessera
