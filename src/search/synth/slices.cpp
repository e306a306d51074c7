#include "search/synth/slices.h"

#include "search/synth/large.h"
#include "search/synth/slice_graph.h"

namespace tessera::synth {
namespace {

// Takes slices of operands instead of slices of results, where no more elements are computed then;
// with `twice`, no more than two for one.
class Pusher {
 public:
  Pusher(const Graph& g, bool twice)
      : g_(g), build_(g), allowed_(g.tensors().size(), false), uses_(use_counts(g)) {
    std::vector<int64_t> taken(g.tensors().size(), 0);
    std::vector<int> slices(g.tensors().size(), 0);
    // From results to operands: what is taken of a value is taken of what it is made of.
    for (const Op& op : g.ops())
      if (op.kind == OpKind::Slice) {
        taken[op.inputs[0].index] += num_elements(g.type(op.result()).shape);
        ++slices[op.inputs[0].index];
      }
    for (size_t t = 0; t < taken.size(); ++t)
      allowed_[t] = slices[t] == uses_[t] &&
                    taken[t] <= num_elements(g.type(TensorId(t)).shape) * (twice ? 2 : 1);
  }

  std::optional<Graph> run() {
    for (const Op& op : g_.ops()) {
      if (op.kind == OpKind::Slice && allowed_[op.inputs[0].index]) {
        if (const auto r = cut(op.inputs[0], normal(g_.attrs<SliceAttrs>(op)))) {
          build_.set_to(op.result(), *r);
          ++pushed_;
          continue;
        }
      }
      build_.copy(op);
    }
    if (pushed_ == 0) return std::nullopt;
    return build_.finished();
  }

 private:
  // t[at], computed from slices of what t is made of; nothing where that is not possible.
  std::optional<TensorId> cut(TensorId t, const SliceAttrs& at) {
    if (at == whole(g_.type(t).shape)) return build_.to(t);
    const Op& op = g_.producer(t);
    if (op.num_results != 1 || op.body.valid() || op.inputs.empty()) return std::nullopt;
    if (op.kind == OpKind::Slice) {
      const SliceAttrs inner = composed(normal(g_.attrs<SliceAttrs>(op)), at);
      return sliced(op.inputs[0], inner);
    }
    if (has(op.kind, algebra::Pointwise)) {
      std::vector<TensorId> in;
      for (TensorId x : op.inputs) {
        const std::vector<int64_t> e = extents(g_.type(x).shape);
        SliceAttrs mine = whole(g_.type(x).shape);
        for (size_t i = 0; i < e.size(); ++i) {
          const size_t axis = at.starts.size() - e.size() + i;
          if (e[i] != 1) set(mine, i, at.starts[axis], count(at, axis), at.steps[axis]);
        }
        in.push_back(sliced(x, mine));
      }
      return build_.make(op.kind, in, op.attrs);
    }
    if (op.kind == OpKind::Transpose) {
      const std::vector<int>& perm = g_.attrs<PermAttrs>(op).perm;
      SliceAttrs mine = at;
      for (size_t i = 0; i < perm.size(); ++i)
        set(mine, size_t(perm[i]), at.starts[i], count(at, i), at.steps[i]);
      return build_.make(op.kind, {sliced(op.inputs[0], mine)}, op.attrs);
    }
    if (op.kind == OpKind::Unsqueeze) {
      SliceAttrs mine = at;
      const std::vector<int>& axes = g_.attrs<AxesAttrs>(op).axes;
      for (size_t i = axes.size(); i-- > 0;) erase(mine, size_t(axes[i]));
      return build_.make(op.kind, {sliced(op.inputs[0], mine)}, op.attrs);
    }
    if (const auto* a = std::get_if<ReduceAttrs>(&op.attrs)) {
      SliceAttrs mine = whole(g_.type(op.inputs[0]).shape);
      size_t from = 0;
      for (size_t i = 0; i < mine.starts.size(); ++i) {
        const bool reduced = has_axis(a->axes, i);
        if (!reduced) set(mine, i, at.starts[from], count(at, from), at.steps[from]);
        if (!reduced || a->keepdims) ++from;
      }
      return build_.make(op.kind, {sliced(op.inputs[0], mine)}, op.attrs);
    }
    if (op.kind == OpKind::Matmul && at.starts.size() == 2 && g_.type(op.inputs[0]).rank() == 2 &&
        g_.type(op.inputs[1]).rank() == 2) {
      SliceAttrs rows = whole(g_.type(op.inputs[0]).shape);
      SliceAttrs columns = whole(g_.type(op.inputs[1]).shape);
      set(rows, 0, at.starts[0], count(at, 0), at.steps[0]);
      set(columns, 1, at.starts[1], count(at, 1), at.steps[1]);
      return build_.make(op.kind, {sliced(op.inputs[0], rows), sliced(op.inputs[1], columns)});
    }
    if (is_scan(op.kind)) {  // of the first elements
      const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
      if (at.starts[axis] != 0 || at.steps[axis] != 1) return std::nullopt;
      return build_.make(op.kind, {sliced(op.inputs[0], at)}, op.attrs);
    }
    return std::nullopt;
  }
  // x[at], from slices of what x is made of if x is needed for nothing else.
  TensorId sliced(TensorId x, const SliceAttrs& at) {
    if (at == whole(g_.type(x).shape)) return build_.to(x);
    if (uses_[x.index] == 1)
      if (const auto r = cut(x, at)) return *r;
    return build_.slice(build_.to(x), at);
  }

  const Graph& g_;
  Builder build_;
  std::vector<bool> allowed_;
  const std::vector<int> uses_;
  int pushed_ = 0;
};

Graph pushed(const Graph& g, bool twice, bool& any) {
  Graph now = g;
  for (int i = 0; i < 4; ++i) {  // slices of slices of results
    std::optional<Graph> next = Pusher(now, twice).run();
    if (!next || *next == now) break;
    now = std::move(*next);
    any = true;
  }
  return now;
}

}  // namespace

std::vector<Retold> reslice(const Graph& program) {
  std::vector<Retold> result;
  bool slices = false;
  for (const Tensor& t : program.tensors())
    if (!is_static(t.type.shape)) return result;
  for (const Op& op : program.ops())
    slices = slices || op.kind == OpKind::Slice || op.kind == OpKind::Concat;
  if (!slices) return result;
  Graph once = united(program);
  std::string said;
  if (std::optional<Graph> merged = with_parts_merged(once)) {
    once = united(*merged);
    said = "slices that together are more are taken as one\n";
  }
  const std::string sooner = "slices are taken of operands instead of results\n";
  bool any = false;
  Graph least = pushed(once, false, any);
  if (any) said += sooner;
  if (!said.empty()) result.push_back({united(least), said});
  any = false;
  Graph most = pushed(least, true, any);
  if (any)
    result.push_back({united(most), said.find(sooner) == std::string::npos ? said + sooner : said});
  return result;
}

}  // namespace tessera::synth
