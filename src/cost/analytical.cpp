#include "cost/analytical.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
#include "base/interruption.h"
#include "cost/block_values.h"
#include "cost/library_call.h"
#include "cost/slices.h"
#include "ir/block.h"
#include "ir/block_schedule.h"
#include "ir/weights.h"
#include "ir/window.h"
#include "ir/written.h"

namespace tessera {
namespace {

double elements(const Type& t) {
  return product_of<double>(
      t.shape, [&](const Dim& d) { return d.symbolic() ? 64 : double(d.extent); });
}
double bytes(const Type& t) { return elements(t) * size_in_bytes(t.dtype); }

// By operator: does a block wait for its own threads before and after it? Copies and sums that go
// into a loop's accumulators do not make it wait, nor does what is computed element by element
// where it is read (block_values.h). Linear in operators and their uses.
std::vector<bool> waits(const Graph& b, const std::vector<Phase>& phase) {
  struct Uses {
    int count = 0;
    bool product = false, more = false, in_loop = false;
  };
  std::vector<Uses> uses(b.tensors().size());
  std::vector<bool> out(b.ops().size(), false);
  for (size_t i = b.ops().size(); i-- > 0;) {
    const Op& op = b.ops()[i];
    unsigned loops = 0;
    if (is_accumulator(op.kind))
      for (int l : std::get<AccumAttrs>(op.attrs).loops) loops |= 1u << l;
    // Operands of products are read through views.
    const bool view = turns_axes(op.kind);
    const bool product = is_product(op.kind) || (view && uses[op.result().index].product);
    for (TensorId t : op.inputs) {
      Uses& u = uses[t.index];
      ++u.count;
      u.product = u.product || product;
      if (op.num_results != 1 || is_store(op.kind)) continue;
      const TensorId r = op.result();
      u.more = u.more || elements(b.type(r)) > elements(b.type(t));
      u.in_loop = u.in_loop || ((phase[r.index].varies | loops) & ~phase[t.index].varies) != 0;
    }
    if (view) uses[op.result().index].product = false;
  }
  std::vector<int> work(b.tensors().size(), 0);
  for (size_t i = 0; i < b.ops().size(); ++i) {
    const Op& op = b.ops()[i];
    const bool waits_for_nobody = is_given(op.kind) || is_tile(op.kind) || op.kind == OpKind::Accum;
    if (waits_for_nobody) continue;
    const bool inside =
        is_thread(op.kind) || has(op.kind, algebra::Pointwise) || has(op.kind, algebra::Movement);
    out[i] = !inside || op.num_results != 1;
    if (out[i]) continue;
    int sum = element_work(op.kind);
    if (is_thread(op.kind))
      for (const Op& o : b.body(op).ops()) sum += element_work(o.kind);
    for (TensorId t : op.inputs) sum += work[t.index];
    const Uses& u = uses[op.result().index];
    out[i] = u.product || kept_in_memory(sum, u.count > 1 || u.more, u.in_loop);
    if (!out[i]) work[op.result().index] = sum;
  }
  return out;
}

// The most neighbours along axes that a reduction keeps.
double longest_kept(const Graph& g, const Op& op) {
  const Shape& shape = g.type(op.inputs[0]).shape;
  const auto& axes = std::get<ReduceAttrs>(op.attrs).axes;
  double longest = 1, run = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    run = std::ranges::binary_search(axes, int(i)) ? 1 : run * double(shape[i].extent);
    longest = std::max(longest, run);
  }
  return longest;
}

}  // namespace

double AnalyticalModel::block_op(const Graph& g, const Op& op) const {
  const Type& out = g.type(op.result());
  const Type& in = op.inputs.empty() ? out : g.type(op.inputs[0]);
  if (is_product(op.kind)) {
    double m = elements({out.dtype, {out.shape[out.shape.size() - 2]}});
    double n = elements({out.dtype, {out.shape.back()}});
    double batch = elements(out) / std::max(1.0, m * n), total = 0;
    for (size_t i = 0; i < op.inputs.size(); i += op.kind == OpKind::Matmul ? 2 : 1) {
      if (op.kind == OpKind::ConcatMatmul && i >= 2) break;
      const Type& a = g.type(op.inputs[i]);
      total += machine_->matmul(a.dtype, batch, m, n, elements({a.dtype, {a.shape.back()}}));
    }
    return total;
  }
  if (is_convolution(op.kind)) {
    Machine::Convolution c;
    c.images = elements({out.dtype, {out.shape[0]}});
    c.filters = elements({out.dtype, {out.shape[1]}});
    for (size_t i = 2; i < out.shape.size(); ++i)
      c.pixels.push_back(elements({out.dtype, {out.shape[i]}}));
    c.taps =
        elements(g.type(op.inputs[1])) / (elements({out.dtype, {g.type(op.inputs[1]).shape[0]}}) *
                                          elements({out.dtype, {g.type(op.inputs[1]).shape[1]}}));
    c.channels = terms_of(g, op) / c.taps;
    if (op.kind == OpKind::Conv && is_static(in.shape)) {
      const auto& a = g.attrs<ConvAttrs>(op);
      c.groups = double(a.groups);
      if (a.groups == 1) c.windows = window_axes(g, op);
    }
    return machine_->convolution(out.dtype, c);
  }
  if (is_windowed(op.kind)) return machine_->reduce(in.dtype, elements(out) * terms_of(g, op));
  if (has(op.kind, algebra::Pointwise))
    return machine_->pointwise(op.kind, in.dtype, elements(out));
  if (has(op.kind, algebra::Movement)) {
    bool view = is_reshape(op.kind);
    return view ? 0 : machine_->move(out.dtype, elements(out));
  }
  if (is_accumulator(op.kind)) {
    return machine_->pointwise(OpKind::Add, in.dtype, elements(in)) *
           (op.kind == OpKind::AccumRescale ? 3 : 1);
  }
  if (is_given(op.kind) || is_tile(op.kind)) return 0;
  if (is_thread(op.kind))
    return sum_of<double>(g.body(op).ops(), [&](const Op& o) { return block_op(g.body(op), o); });
  return machine_->reduce(in.dtype, elements(in));
}

KernelWork AnalyticalModel::block_work(const Graph& g, const Op& kernel, double resident) const {
  const Graph& b = g.body(kernel);
  // What another kernel stored before is still in a cache that has room for it.
  std::map<uint32_t, double> resident_of;  // by argument
  for (size_t i = 0; i < b.inputs().size(); ++i) {
    const TensorId t = kernel.inputs[i];
    const bool stored = !is_input(g.producer(t).kind) && std::isinf(resident);
    resident_of[b.inputs()[i].index] = stored ? bytes(g.type(t)) : resident;
  }
  KernelWork w;
  w.blocks = double(b.num_blocks());
  const BlockSchedule schedule = block_schedule(b);
  w.iterations = total_iterations(b, schedule);
  // How often operators run; inside a nest also those that change with its inner loop alone do so
  // in every iteration of the outer one.
  std::vector<double> runs(b.ops().size(), 0);
  double loops_begun = 0;
  for (const LoopBody& body : schedule.bodies) {
    double times = 1, innermost = 1;
    for (size_t l = 0; l < b.loops().size(); ++l)
      if (body.loops & (1u << l)) times *= innermost = double(b.loops()[l]);
    if (body.loops) loops_begun += times / innermost;
    for (const LoopBody::Step& step : body.steps)
      if (step.body < 0) runs[step.op.index] += times;
  }
  w.restarts = std::max(0.0, loops_begun - 1);
  const std::vector<Phase> phase = phases(b);
  const std::vector<bool> steps = waits(b, phase);
  // Bytes that a block reads in loops for the first time, and that all read again: loops run one
  // after another where no value varies with both.
  double block_bytes = 0, again = 0;
  std::map<uint32_t, uint8_t> read_in;  // arguments: the loops they were read in
  for (const Op& o : b.ops()) {
    const bool folds = is_accumulator(o.kind);
    TensorId t = is_store(o.kind) || folds ? o.inputs[0] : o.result();
    const double times = runs[size_t(&o - b.ops().data())];
    w.block_compute += times * block_op(b, o);
    if (steps[size_t(&o - b.ops().data())]) w.steps += times;
    if (folds) w.accumulators += elements(b.type(o.result()));
    if (is_tile(o.kind)) {
      const Type whole = is_load(o.kind) ? b.type(o.inputs[0]) : std::get<SaveAttrs>(o.attrs).type;
      TensorId tile = is_load(o.kind) ? o.result() : o.inputs[0];
      double moved = elements(b.type(tile)) * size_in_bytes(whole.dtype) * times * w.blocks;
      if (!whole.shape.empty()) {
        moved *= machine_->line_waste(elements({whole.dtype, {b.type(tile).shape.back()}}),
                                      elements({whole.dtype, {whole.shape.back()}}),
                                      size_in_bytes(whole.dtype), bytes(whole));
      }
      const uint8_t loops = phase[t.index].varies;
      if (is_load(o.kind) && loops) {
        w.iteration_bytes += bytes(b.type(tile));
        auto [it, first] = read_in.emplace(o.inputs[0].index, loops);
        if (!first && (it->second & loops) == 0) {
          again += moved;
          continue;
        }
      }
      if (loops) block_bytes += moved / w.blocks;
      machine_->add_traffic(w, bytes(whole), std::max(moved, bytes(whole)),
                            is_load(o.kind) ? resident_of.at(o.inputs[0].index) : bytes(whole));
    }
  }
  if (again > 0) machine_->add_reread(w, again, block_bytes);
  // Accumulators are in registers, and of what the loop loads there are two copies.
  w.other_bytes = std::max(0.0, double(block_memory(b).peak()) - 2 * w.iteration_bytes);
  return w;
}

AnalyticalModel::KernelCost AnalyticalModel::own_cost(const Graph& g, OpId id,
                                                      double resident) const {
  interruption_point();
  KernelCost cost;
  cost.op = id;
  const Op& op = g.op(id);
  if (is_given(op.kind) || is_reshape(op.kind)) return cost;
  KernelWork& w = cost.work;
  const bool written = written_kernel(g, op).has_value();
  if (is_kernel(op.kind) && !written) {
    w = block_work(g, op, resident);
  } else {
    // It keeps all cores busy and streams its operands once; of code that a person wrote nothing
    // else is known.
    w.blocks = machine_->target().cores;
    if (machine_->target().kind == TargetKind::Gpu && is_reduction(op.kind))
      w.blocks = std::min(w.blocks, longest_kept(g, op));  // the axis that blocks cut
    if (written)
      for (const Op& o : g.body(op).ops()) w.block_compute += block_op(g.body(op), o) / w.blocks;
    else
      w.block_compute = block_op(g, op) / w.blocks;
    w.steps = 1;
    for (TensorId t : op.inputs) {  // a slice reads what it keeps
      const double n = bytes(g.type(op.kind == OpKind::Slice ? op.result() : t));
      const bool stored = !is_input(g.producer(t).kind) && std::isinf(resident);
      machine_->add_traffic(w, n, n, stored ? n : resident);
    }
    for (uint32_t i = 0; i < op.num_results; ++i) {
      double n = bytes(g.type(op.result(i)));
      machine_->add_traffic(w, n, n, n);
    }
  }
  cost.seconds = machine_->seconds(w);
  return cost;
}

AnalyticalModel::KernelCost AnalyticalModel::kernel_cost(const Graph& g, OpId id, double resident,
                                                         const Accepts& accepts) const {
  KernelCost cost = own_cost(g, id, resident);
  if (const auto call = library_call(g, id)) {
    const double seconds = machine_->library(*call);
    // A plain operator has no tiles that could be better than the library's.
    const bool plain = !is_kernel(g.op(id).kind) && std::isfinite(seconds);
    if ((plain || seconds < cost.seconds) && (!accepts || accepts(*call))) {
      cost.seconds = seconds;
      cost.call = call;
    }
  }
  return cost;
}

std::vector<AnalyticalModel::KernelCost> AnalyticalModel::kernels(const Graph& graph,
                                                                  const Accepts& accepts) const {
  double inputs = sum_of<double>(graph.inputs(), [&](TensorId t) { return bytes(graph.type(t)); });
  const double resident = machine_->resident(inputs);
  std::vector<KernelCost> out;
  for (size_t i = 0; i < graph.ops().size(); ++i)
    out.push_back(kernel_cost(graph, OpId(uint32_t(i)), resident, accepts));
  if (!machine_->target().libraries.empty()) {
    std::vector<bool> taken(out.size(), false);
    std::vector<int> uses;
    for (size_t i = out.size(); i-- > 0;) {
      if (taken[i] || out[i].seconds == 0) continue;
      if (uses.empty()) uses = use_counts(graph);
      for (const LibraryCall& call : library_regions(graph, OpId(uint32_t(i)), uses)) {
        const double seconds = machine_->library(call);
        double apart = out[i].seconds;
        for (OpId part : call.parts) apart += out[part.index].seconds;
        if (!(seconds < apart) || (accepts && !accepts(call))) continue;
        for (OpId part : call.parts) {
          taken[part.index] = true;
          out[part.index].seconds = 0;
        }
        out[i].seconds = seconds;
        out[i].call = call;
        break;
      }
    }
  }
  join_kernels(graph, out);
  read_in_place(graph, out);
  std::erase_if(out, [](const KernelCost& c) { return !(c.seconds > 0); });
  return out;
}

void AnalyticalModel::join_kernels(const Graph& graph, std::vector<KernelCost>& costs) const {
  if (machine_->target().kind != TargetKind::Gpu) return;
  const std::vector<bool> once = computed_once(graph);
  std::vector<bool> taken(costs.size(), false);  // calls, and kernels of a join
  for (size_t i = 0; i < costs.size(); ++i) taken[i] = costs[i].call || costs[i].seconds == 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (taken[i]) continue;
    const std::optional<KernelJoin> join = kernel_join(graph, OpId(i));
    if (!join || taken[join->first.index] || once[i] != once[join->first.index]) continue;
    KernelCost& first = costs[join->first.index];
    const double seconds = machine_->joined_seconds(first.work, costs[i].work, *join);
    if (seconds >= first.seconds + costs[i].seconds) continue;
    costs[i].seconds = seconds;
    costs[i].join = join;
    costs[i].first_work = first.work;
    first.seconds = 0;
    taken[i] = taken[join->first.index] = true;
  }
}

void AnalyticalModel::read_in_place(const Graph& graph, std::vector<KernelCost>& costs) const {
  const auto slice = [&](size_t i) { return graph.ops()[i].kind == OpKind::Slice; };
  std::vector<size_t> slices;
  for (size_t i = 0; i < costs.size(); ++i)
    if (slice(i)) slices.push_back(i);
  if (machine_->target().kind != TargetKind::Gpu || slices.empty()) return;
  const std::vector<bool> once = computed_once(graph);
  std::vector<bool> read(graph.tensors().size(), false);  // as an array
  for (TensorId t : graph.outputs()) read[t.index] = true;
  for (const KernelCost& c : costs)
    if (c.join)
      for (TensorId t : graph.op(c.join->first).inputs) read[t.index] = true;
  for (size_t i = costs.size(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    if (slice(i) && !once[i] && !read[op.result().index]) {
      costs[i].seconds = 0;
      continue;
    }
    // What costs nothing is done by a call, or nobody needs it.
    const bool own = costs[i].seconds > 0 && !costs[i].call && !costs[i].join;
    for (size_t k = 0; k < op.inputs.size(); ++k)
      if (!own || !reads_slice_in_place(graph, OpId(uint32_t(i)), k))
        read[op.inputs[k].index] = true;
  }
}

Cost AnalyticalModel::cost(const Graph& graph) const {
  CHECK(graph.level() == Level::Kernel) << "only kernel graphs have a cost of their own";
  Cost c;
  if (machine_->target().kind == TargetKind::Gpu) {
    for (const KernelCost& k : kernels(graph)) c.seconds += k.seconds;
    return c;
  }
  double resident = 0;
  for (TensorId t : graph.inputs()) resident += bytes(graph.type(t));
  resident = machine_->resident(resident);
  for (size_t i = 0; i < graph.ops().size(); ++i)
    c.seconds += own_cost(graph, OpId(uint32_t(i)), resident).seconds;
  return c;
}

}  // namespace tessera
