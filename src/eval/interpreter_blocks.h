// Bodies of Interpreter's members for graph-defined operators: block graphs, evaluated literally,
// and thread graphs; see interpreter.h.
#pragma once
#include "eval/interpreter.h"

namespace tessera {

// What is the same for all blocks of a block graph.
template <class D> struct Interpreter<D>::BlockPlan {
  const Graph& g;
  const Demand& demand;
  std::vector<Phase> phase;
  BlockSchedule schedule;

  BlockPlan(const Graph& graph, const Demand& d)
      : g(graph), demand(d), phase(phases(graph)), schedule(block_schedule(graph, phase)) {}
};

// One block in execution.
template <class D> struct Interpreter<D>::BlockState {
  const BlockPlan& plan;
  const std::vector<View>& arguments;
  const std::vector<View>& results;  // whole tensors, by output of the block graph
  std::vector<int64_t> block, iteration;
  std::vector<View> values;
  // What an accumulator holds so far: the folded value, or all operands to be folded at the end.
  struct Accumulator {
    bool started = false;
    View value;
    std::vector<View> parts, scales;
    std::vector<int> entries;  // of the trace: all folded operands
  };
  std::vector<Accumulator> accumulators;  // by result tensor
  Arena arena;                            // of the current iteration
  Arena kept;                             // of accumulators
  std::vector<View> in;                   // scratch
  BlockTrace* trace = nullptr;
};

// The blocks to evaluate, ascending; empty: all. Flags everything in `results` where some are left
// out: blocks clear the flags of what they save.
template <class D>
std::vector<int64_t> Interpreter<D>::sampled_blocks(const Graph& g, const Op& op,
                                                    const std::vector<View>& results) const {
  const int64_t blocks = g.body(op).num_blocks();
  if (!D::kIsField || sample_blocks_ <= 0 || blocks <= sample_blocks_) return {};
  for (const Op& reader : g.ops())
    for (TensorId t : reader.inputs)
      if (g.tensor(t).producer == g.tensor(op.result()).producer) return {};
  for (const View& r : results)
    if (r.flagged()) std::memset(r.plane[kFlagPlane], FieldArray::Undefined, size_t(r.size()));
  return mapped(sample_blocks_,
                [&](int i) { return i * (blocks - 1) / std::max(1, sample_blocks_ - 1); });
}

template <class D>
void Interpreter<D>::run_kernel(Arena& arena, const Graph& g, const Op& op, const Demand& demand,
                                std::vector<View>& values) {
  const Graph& body = g.body(op);
  const BlockPlan plan(body, demand.bodies[op.body.index]);
  std::vector<View> arguments, results;
  for (TensorId t : op.inputs) arguments.push_back(values[t.index]);
  for (uint32_t i = 0; i < op.num_results; ++i) {
    const TensorId t = op.result(i);
    if (demand.of(t) == 0) {
      results.emplace_back();
      continue;
    }
    const Type& type = g.type(t);
    // Blocks run concurrently, so flags need a place before anyone knows whether there are any.
    results.push_back(allocate(arena, type.dtype, type.rank(), to_array(extents(type.shape)),
                               demand.of(t), D::kIsField, false));
  }
  const std::vector<int64_t> chosen = sampled_blocks(g, op, results);
  const int64_t blocks = chosen.empty() ? body.num_blocks() : int64_t(chosen.size());
  const int64_t threads = pool_ == nullptr ? 1 : pool_->threads();
  const int64_t grain = std::max<int64_t>(1, blocks / (threads * 4));
  parallel_for(tracer_ ? nullptr : pool_, blocks, grain, [&](int64_t begin, int64_t end) {
    BlockState state{plan, arguments, results, {}, {}, {}, {}, {}, {}, {}, nullptr};
    state.values.resize(body.tensors().size());
    state.accumulators.resize(body.tensors().size());
    state.iteration.assign(body.loops().size(), 0);
    state.block.resize(body.grid().size());
    for (int64_t b = begin; b < end; ++b) {
      int64_t rest = chosen.empty() ? b : chosen[size_t(b)];
      for (size_t i = body.grid().size(); i-- > 0;) {
        state.block[i] = rest % body.grid()[i];
        rest /= body.grid()[i];
      }
      state.arena.release({});
      state.kept.release({});
      BlockTrace trace;
      if (tracer_) {
        trace.current.assign(body.tensors().size(), -1);
        state.trace = &trace;
      }
      run_body(state, 0);
      if (tracer_) tracer_(op, std::move(trace));
    }
  });
  for (uint32_t i = 0; i < op.num_results; ++i) {
    if (demand.of(op.result(i)) == 0) continue;
    domain_.round(results[i], Level::Kernel);
    drop_flags(results[i]);
    values[op.result(i).index] = results[i];
  }
}

// Runs a body of the schedule for the current iteration of the loops around it.
template <class D> void Interpreter<D>::run_body(BlockState& state, size_t body) const {
  const BlockPlan& plan = state.plan;
  for (const LoopBody::Step& step : plan.schedule.bodies[body].steps)
    if (step.body >= 0)
      run_loop(state, size_t(step.body));
    else if (plan.demand.any(plan.g.op(step.op)))
      run_block_op(state, plan.g.op(step.op));
}

// All iterations of the body's own loop.
template <class D> void Interpreter<D>::run_loop(BlockState& state, size_t index) const {
  const BlockPlan& plan = state.plan;
  const LoopBody& body = plan.schedule.bodies[index];
  const size_t loop = size_t(body.loop);
  std::vector<const Op*> accumulators;
  for (OpId id : body.accumulators)
    if (plan.demand.any(plan.g.op(id))) accumulators.push_back(&plan.g.op(id));
  for (const Op* op : accumulators) {
    auto& a = state.accumulators[op->result().index];
    a.started = false;
    a.parts.clear();
    a.scales.clear();
    a.entries.clear();
  }
  const auto mark = state.arena.mark();
  for (int64_t i = 0; i < plan.g.loops()[loop]; ++i) {
    state.iteration[loop] = i;
    run_body(state, index);
    state.arena.release(mark);
  }
  state.iteration[loop] = 0;
  for (const Op* op : accumulators) {
    finish_accumulator(state, *op);
    if (!state.trace) continue;
    const View& v = state.values[op->result().index];
    state.trace->current[op->result().index] =
        state.trace->add({&plan.g,
                          op,
                          state.accumulators[op->result().index].entries,
                          {v.shape.begin(), v.shape.begin() + v.rank},
                          {},
                          -1,
                          {},
                          {}});
  }
}

template <class D> void Interpreter<D>::run_block_op(BlockState& state, const Op& op) const {
  const Graph& g = state.plan.g;
  switch (op.kind) {
  case OpKind::Iter: {
    const auto& a = g.attrs<IterAttrs>(op);
    size_t argument = 0;
    while (g.inputs()[argument] != op.inputs[0]) ++argument;
    const View& whole = state.arguments[argument];
    std::vector<int64_t> shape(whole.shape.begin(), whole.shape.begin() + whole.rank);
    const auto intervals = tile(shape, a.imap, a.fmap, g, state.block, state.iteration);
    std::array<int64_t, kMaxRank> begin{}, size{};
    for (size_t i = 0; i < intervals.size(); ++i) {
      begin[i] = intervals[i].begin;
      size[i] = intervals[i].size();
    }
    state.values[op.result().index] = subview(whole, begin.data(), size.data(), D::kWord);
    if (state.trace) {
      state.trace->current[op.result().index] =
          state.trace->add({&g,
                            &op,
                            {},
                            {size.begin(), size.begin() + whole.rank},
                            {begin.begin(), begin.begin() + whole.rank},
                            int(argument),
                            {},
                            {}});
    }
    return;
  }
  case OpKind::Accum:
  case OpKind::AccumRescale: accumulate(state, op); return;
  case OpKind::Save: {
    const auto& a = g.attrs<SaveAttrs>(op);
    for (size_t i = 0; i < g.outputs().size(); ++i) {
      if (g.outputs()[i] != op.result()) continue;
      const View& whole = state.results[i];
      // A result nobody needs has no planes at all; one needed inside an exponent only lacks p.
      if (std::ranges::all_of(whole.plane, [](const auto* p) { return p == nullptr; })) continue;
      std::vector<int64_t> shape(whole.shape.begin(), whole.shape.begin() + whole.rank);
      const auto intervals = tile(shape, a.omap, a.fmap, g, state.block, state.iteration);
      const View& value = state.values[op.inputs[0].index];
      std::array<int64_t, kMaxRank> begin{}, size{};
      for (size_t d = 0; d < intervals.size(); ++d) {
        begin[d] = intervals[d].begin;
        size[d] = intervals[d].size();
        if (size[d] != value.shape[d]) {
          throw Error(ErrorKind::BadInput, "save: a block's value has extent " +
                                               std::to_string(value.shape[d]) + " on axis " +
                                               std::to_string(d) + ", its tile of the result " +
                                               std::to_string(size[d]));
        }
      }
      copy_view(subview(whole, begin.data(), size.data(), D::kWord), value, D::kWord);
      if (state.trace) {
        state.trace->add({&g,
                          &op,
                          {state.trace->current[op.inputs[0].index]},
                          {size.begin(), size.begin() + whole.rank},
                          {begin.begin(), begin.begin() + whole.rank},
                          int(i),
                          {},
                          {}});
      }
    }
    return;
  }
  case OpKind::Thread: run_thread(state, op); return;
  case OpKind::Input: return;
  default: break;
  }
  state.in.clear();
  for (TensorId t : op.inputs) state.in.push_back(state.values[t.index]);
  state.values[op.result().index] =
      apply(state.arena, g, op, state.in, state.plan.demand.of(op.result()), Level::Block, nullptr);
  if (state.trace) {
    state.trace->current[op.result().index] = record(*state.trace, g, op, state.trace->current,
                                                     state.in, state.values[op.result().index]);
  }
}

// Adds an operator to the trace; `current` maps the graph's tensors to entries.
template <class D>
int Interpreter<D>::record(BlockTrace& trace, const Graph& g, const Op& op,
                           const std::vector<int>& current, const std::vector<View>& in,
                           const View& out) const {
  BlockTrace::Entry e{&g, &op, {}, {out.shape.begin(), out.shape.begin() + out.rank},
                      {}, -1,  {}, {}};
  for (TensorId t : op.inputs) e.operands.push_back(current[t.index]);
  e.origin = origin_marks(op.kind, in, out);
  if (op.kind == OpKind::Gather) e.index = integers_of(in[1]);
  return trace.add(std::move(e));
}

template <class D> void Interpreter<D>::run_thread(BlockState& state, const Op& op) const {
  const Graph& body = state.plan.g.body(op);
  const Demand& inner = state.plan.demand.bodies[op.body.index];
  std::vector<View> local(body.tensors().size()), in;
  std::vector<int> current(body.tensors().size(), -1);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    local[body.inputs()[i].index] = state.values[op.inputs[i].index];
    if (state.trace) current[body.inputs()[i].index] = state.trace->current[op.inputs[i].index];
  }
  for (const Op& o : body.ops()) {
    if (is_input(o.kind) || !inner.any(o)) continue;
    in.clear();
    for (TensorId t : o.inputs) in.push_back(local[t.index]);
    View& out = local[o.result().index];
    out = apply(state.arena, body, o, in, inner.of(o.result()), Level::Thread, nullptr);
    if (state.trace) current[o.result().index] = record(*state.trace, body, o, current, in, out);
  }
  for (uint32_t i = 0; i < op.num_results; ++i) {
    state.values[op.result(i).index] = local[body.outputs()[i].index];
    if (state.trace) state.trace->current[op.result(i).index] = current[body.outputs()[i].index];
  }
}

template <class D> void Interpreter<D>::accumulate(BlockState& state, const Op& op) const {
  const Graph& g = state.plan.g;
  const auto& a = g.attrs<AccumAttrs>(op);
  auto& acc = state.accumulators[op.result().index];
  const View& x = state.values[op.inputs[0].index];
  if (state.trace)
    for (TensorId t : op.inputs) acc.entries.push_back(state.trace->current[t.index]);
  const Components demand = state.plan.demand.of(op.result());
  const bool order = a.kind == AccumKind::Max || a.kind == AccumKind::Min;
  if (op.kind == OpKind::AccumRescale || a.kind == AccumKind::Concat) {
    acc.parts.push_back(copy_of(state.kept, x, demand));
    if (op.kind == OpKind::AccumRescale) {
      acc.scales.push_back(copy_of(state.kept, state.values[op.inputs[1].index],
                                   state.plan.demand.of(op.inputs[1])));
    }
    return;
  }
  if (!acc.started) {
    acc.value =
        copy_of(state.kept, x, demand, D::kIsField, D::kIsField && order && is_float(x.dtype));
    acc.started = true;
    return;
  }
  Op fold;
  fold.kind = step_by(a.kind);
  const View in[2] = {acc.value, x};
  pointwise(fold, in, 2, acc.value, nullptr);
}

template <class D> void Interpreter<D>::finish_accumulator(BlockState& state, const Op& op) const {
  const Graph& g = state.plan.g;
  auto& acc = state.accumulators[op.result().index];
  const Components demand = state.plan.demand.of(op.result());
  View& result = state.values[op.result().index];
  if (op.kind == OpKind::AccumRescale) {
    const Components inside = state.plan.demand.of(op.inputs[1]);
    View top = acc.scales[0];
    auto more = [&](OpKind kind, const View& p, const View& q, Components c) {
      return combine(state.arena, kind, p, q, c);
    };
    for (size_t i = 1; i < acc.scales.size(); ++i) {
      if constexpr (D::kIsField) {  // keeps the set of arguments
        View next = copy_of(state.arena, top, inside, true, true);
        Op max_op;
        max_op.kind = OpKind::Max;
        const View in[2] = {next, acc.scales[i]};
        pointwise(max_op, in, 2, next, nullptr);
        top = next;
      } else {
        top = more(OpKind::Max, top, acc.scales[i], inside);
      }
    }
    for (size_t i = 0; i < acc.parts.size(); ++i) {
      View shift = more(OpKind::Sub, acc.scales[i], top, inside);
      Op exp_op;
      exp_op.kind = OpKind::Exp;
      View weight = allocate(state.arena, shift.dtype, shift.rank, shift.shape, demand,
                             shift.flagged(), false);
      pointwise(exp_op, &shift, 1, weight, nullptr);
      View term = more(OpKind::Mul, acc.parts[i], weight, demand);
      result = i == 0 ? term : more(OpKind::Add, result, term, demand);
    }
    drop_flags(result);
    return;
  }
  const auto& a = g.attrs<AccumAttrs>(op);
  if (a.kind == AccumKind::Concat) {
    const size_t axis = size_t(a.axis);
    std::array<int64_t, kMaxRank> shape = acc.parts[0].shape, begin{};
    shape[axis] = 0;
    bool flags = false, sets = false;
    for (const View& v : acc.parts) {
      shape[axis] += v.shape[axis];
      flags = flags || v.flagged();
      sets = sets || v.plane[kSetPlane] != nullptr;
    }
    result =
        allocate(state.arena, acc.parts[0].dtype, acc.parts[0].rank, shape, demand, flags, sets);
    for (const View& v : acc.parts) {
      copy_view(subview(result, begin.data(), v.shape.data(), D::kWord), v, D::kWord);
      begin[axis] += v.shape[axis];
    }
    return;
  }
  CHECK(acc.started) << "an accumulator without a loop";
  domain_.round(acc.value, Level::Block);
  drop_flags(acc.value);
  result = acc.value;
}

}  // namespace tessera
