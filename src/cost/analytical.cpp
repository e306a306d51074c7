#include "cost/analytical.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/check.h"
#include "ir/block_schedule.h"
#include "ir/window.h"

namespace tessera {
namespace {

constexpr double kHidden = 0.15;  // share of the shorter of compute and traffic that still shows
constexpr double kOpSeconds = 15e-9;  // entering one operator's loops
constexpr double kMaxCompute = 1e6;

double elements(const Type& t) {
  double n = 1;
  for (const Dim& d : t.shape) n *= d.symbolic() ? 64 : double(d.extent);
  return n;
}
double bytes(const Type& t) { return elements(t) * size_in_bytes(t.dtype); }

}  // namespace

Machine::Machine(Target target) : target_(std::move(target)) {
  for (OpKind k : all_op_kinds()) {
    weight_.resize(std::max(weight_.size(), size_t(k) + 1), 1.0);
    weight_[size_t(k)] = target_.weight(k);
  }
  for (int i = 0; i < kNumDTypes; ++i) {
    simple_[size_t(i)] = target_.pointwise_rate(DType(i));
    fma_[size_t(i)] = target_.matmul_rate(DType(i));
  }
  for (const MemoryLevel& l : target_.levels) {
    if (l.per_core) {
      core_bandwidth_ = l.bandwidth;
      core_capacity_ = l.capacity;
    }
  }
  if (core_bandwidth_ == 0) {
    core_bandwidth_ = target_.levels.back().bandwidth;
    core_capacity_ = target_.levels.back().capacity;
  }
}

double Machine::matmul(DType t, double batch, double m, double n, double k) const {
  const double lanes = std::max(1, target_.vector_bytes / size_in_bytes(t));
  const double rate = fma_[size_t(t)], simple = simple_[size_t(t)];
  auto shaped = [&](double rows, double cols) {
    double padded = std::ceil(cols / lanes) * lanes;
    // A loaded column tile is used once per row; with few rows loads, not multiply-adds, set the
    // pace (measured: 8 rows run at about 0.7 of the rate of 16).
    double efficiency = std::min(1.0, 0.2 + 0.065 * rows);
    return 2 * rows * padded * k / (rate * efficiency);
  };
  // The accumulator tile is read and written once per call, so short contractions do not pay.
  double seconds = std::min(shaped(m, n), shaped(n, m)) + 0.5 * m * n / simple;
  return std::min(batch * seconds + kOpSeconds, kMaxCompute);
}

double Machine::pointwise(OpKind kind, DType t, double n) const {
  return n * weight_[size_t(kind)] / simple_[size_t(t)] + kOpSeconds;
}
double Machine::reduce(DType t, double n) const { return n / simple_[size_t(t)] + kOpSeconds; }
double Machine::move(DType t, double n) const { return 2 * n / simple_[size_t(t)] + kOpSeconds; }

double Machine::shared_bandwidth(double bytes) const {
  const MemoryLevel* at = &target_.levels.front();
  for (const MemoryLevel& l : target_.levels) {
    if (!l.per_core && double(l.capacity) * 0.75 >= bytes) at = &l;
  }
  return at->bandwidth;
}

double Machine::first_pass(double tensor_bytes, double resident) const {
  return tensor_bytes / shared_bandwidth(std::max(tensor_bytes, resident));
}

void Machine::add_traffic(KernelWork& w, double tensor_bytes, double moved, double resident) const {
  w.core_traffic += moved / w.blocks / core_bandwidth_;
  // The first pass comes from where the working set lives, repeats from where the tensor fits.
  double pass = first_pass(tensor_bytes, resident);
  w.shared_traffic += pass;
  if (moved > tensor_bytes && tensor_bytes > double(core_capacity_) / 2) {
    w.shared_traffic += first_pass(tensor_bytes, tensor_bytes) * (moved / tensor_bytes - 1);
  }
}

void Machine::add_reread(KernelWork& w, double moved, double block_bytes) const {
  w.core_traffic += moved / w.blocks / core_bandwidth_;
  if (block_bytes <= double(core_capacity_) / 2) return;
  w.shared_traffic +=
      moved / shared_bandwidth(block_bytes * std::min<double>(w.blocks, target_.cores));
}

double Machine::line_waste(double tile, double extent, double element_bytes,
                           double tensor_bytes) const {
  if (tile >= extent) return 1;
  const double piece = tile * element_bytes;
  if (target_.kind == TargetKind::Gpu) return std::max(1.0, 32 / piece);
  const double waste = std::max(1.0, 64 / piece);
  if (tensor_bytes <= double(core_capacity_)) return waste;
  // Short pieces of rows also keep memory from streaming: measured with rows far apart, 128 bytes
  // at a time reach 46 % of the bandwidth, 512 bytes 81 %, 2048 bytes 90 %.
  return std::max(waste, 1 + 150 / piece);
}

double Machine::seconds(const KernelWork& w) const {
  double waves = std::ceil(w.blocks / target_.cores);
  // Uneven last waves cost less than a whole wave where blocks are many.
  double c = waves * (w.block_compute + target_.block_seconds +
                      (w.iterations > 1 ? w.iterations * target_.iteration_seconds : 0));
  double m = std::max(waves * w.core_traffic, w.shared_traffic);
  return target_.launch_seconds + std::max(c, m) + kHidden * std::min(c, m);
}

double Machine::bound(double compute, double shared_traffic) const {
  double c = compute / target_.cores, m = shared_traffic;
  return target_.launch_seconds + std::max(c, m) + kHidden * std::min(c, m);
}

double AnalyticalModel::block_op(const Graph& g, const Op& op) const {
  const OpInfo& row = info(op.kind);
  const Type& out = g.type(op.result());
  const Type& in = op.inputs.empty() ? out : g.type(op.inputs[0]);
  if (op.kind == OpKind::Matmul || op.kind == OpKind::ConcatMatmul) {
    double m = elements({out.dtype, {out.shape[out.shape.size() - 2]}});
    double n = elements({out.dtype, {out.shape.back()}});
    double batch = elements(out) / std::max(1.0, m * n), total = 0;
    for (size_t i = 0; i < op.inputs.size(); i += op.kind == OpKind::Matmul ? 2 : 1) {
      if (op.kind == OpKind::ConcatMatmul && i >= 2) break;
      const Type& a = g.type(op.inputs[i]);
      total += machine_.matmul(a.dtype, batch, m, n, elements({a.dtype, {a.shape.back()}}));
    }
    return total;
  }
  if (is_convolution(op.kind)) {
    const double batch = elements({out.dtype, {out.shape[0]}});
    const double m = elements({out.dtype, {out.shape[1]}});
    return machine_.matmul(out.dtype, batch, m, elements(out) / std::max(1.0, batch * m),
                           terms_of(g, op));
  }
  if (is_windowed(op.kind)) return machine_.reduce(in.dtype, elements(out) * terms_of(g, op));
  if (row.flags & algebra::Pointwise) return machine_.pointwise(op.kind, in.dtype, elements(out));
  if (row.flags & algebra::Movement) {
    bool view =
        op.kind == OpKind::Reshape || op.kind == OpKind::Unsqueeze || op.kind == OpKind::Squeeze;
    return view ? 0 : machine_.move(out.dtype, elements(out));
  }
  if (op.kind == OpKind::Accum || op.kind == OpKind::AccumRescale) {
    return machine_.pointwise(OpKind::Add, in.dtype, elements(in)) *
           (op.kind == OpKind::AccumRescale ? 3 : 1);
  }
  if (op.kind == OpKind::Input || op.kind == OpKind::Const || op.kind == OpKind::Iter ||
      op.kind == OpKind::Save) {
    return 0;
  }
  if (op.kind == OpKind::Thread) {
    double total = 0;
    for (const Op& o : g.body(op).ops()) total += block_op(g.body(op), o);
    return total;
  }
  return machine_.reduce(in.dtype, elements(in));
}

double AnalyticalModel::kernel_seconds(const Graph& g, const Op& op, double resident) const {
  KernelWork w;
  if (op.kind == OpKind::Kernel) {
    const Graph& b = g.body(op);
    w.blocks = double(b.num_blocks());
    const BlockSchedule schedule = block_schedule(b);
    w.iterations = total_iterations(b, schedule);
    // How often operators run; inside a nest also those that change with its inner loop alone do so
    // in every iteration of the outer one.
    std::vector<double> runs(b.ops().size(), 0);
    for (const LoopBody& body : schedule.bodies) {
      double times = 1;
      for (size_t l = 0; l < b.loops().size(); ++l)
        if (body.loops & (1u << l)) times *= double(b.loops()[l]);
      for (const LoopBody::Step& step : body.steps)
        if (step.body < 0) runs[step.op.index] += times;
    }
    std::vector<Phase> phase = phases(b);
    // Bytes that a block reads in loops for the first time, and that all read again: loops run one
    // after another where no value varies with both.
    double block_bytes = 0, again = 0;
    std::map<uint32_t, uint8_t> read_in;  // arguments: the loops they were read in
    for (const Op& o : b.ops()) {
      const bool folds = o.kind == OpKind::Accum || o.kind == OpKind::AccumRescale;
      TensorId t = o.kind == OpKind::Save || folds ? o.inputs[0] : o.result();
      const double times = runs[size_t(&o - b.ops().data())];
      w.block_compute += times * block_op(b, o);
      if (o.kind == OpKind::Iter || o.kind == OpKind::Save) {
        const Type whole =
            o.kind == OpKind::Iter ? b.type(o.inputs[0]) : std::get<SaveAttrs>(o.attrs).type;
        TensorId tile = o.kind == OpKind::Iter ? o.result() : o.inputs[0];
        double moved = elements(b.type(tile)) * size_in_bytes(whole.dtype) * times * w.blocks;
        if (!whole.shape.empty()) {
          moved *= machine_.line_waste(elements({whole.dtype, {b.type(tile).shape.back()}}),
                                       elements({whole.dtype, {whole.shape.back()}}),
                                       size_in_bytes(whole.dtype), bytes(whole));
        }
        const uint8_t loops = phase[t.index].varies;
        if (o.kind == OpKind::Iter && loops) {
          auto [it, first] = read_in.emplace(o.inputs[0].index, loops);
          if (!first && (it->second & loops) == 0) {
            again += moved;
            continue;
          }
        }
        if (loops) block_bytes += moved / w.blocks;
        machine_.add_traffic(w, bytes(whole), std::max(moved, bytes(whole)),
                             o.kind == OpKind::Iter ? resident : bytes(whole));
      }
    }
    if (again > 0) machine_.add_reread(w, again, block_bytes);
    return machine_.seconds(w);
  }
  bool view =
      op.kind == OpKind::Reshape || op.kind == OpKind::Unsqueeze || op.kind == OpKind::Squeeze;
  if (op.kind == OpKind::Input || op.kind == OpKind::Const || view) return 0;
  // A library operator: it keeps all cores busy and streams its operands once.
  w.blocks = machine_.target().cores;
  w.block_compute = block_op(g, op) / w.blocks;
  for (TensorId t : op.inputs) {  // a slice reads what it keeps
    const double n = bytes(g.type(op.kind == OpKind::Slice ? op.result() : t));
    machine_.add_traffic(w, n, n, resident);
  }
  for (uint32_t i = 0; i < op.num_results; ++i) {
    double n = bytes(g.type(op.result(i)));
    machine_.add_traffic(w, n, n, n);
  }
  return machine_.seconds(w);
}

Cost AnalyticalModel::cost(const Graph& graph, double limit) const {
  CHECK(graph.level() == Level::Kernel) << "only kernel graphs have a cost of their own";
  Cost c{0, name(), true};
  double resident = 0;
  for (TensorId t : graph.inputs()) resident += bytes(graph.type(t));
  for (const Op& op : graph.ops()) {
    c.seconds += kernel_seconds(graph, op, resident);
    if (c.seconds > limit) {
      c.complete = false;
      return c;
    }
  }
  return c;
}

}  // namespace tessera
