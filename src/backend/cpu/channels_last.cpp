#include "backend/cpu/channels_last.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "backend/cpu/matmul.h"
#include "backend/cpu/transposed_convolutions.h"
#include "base/check.h"
#include "ir/arrangement.h"
#include "ir/build.h"
#include "ir/window.h"

namespace tessera {

std::vector<int> to_last(size_t rank) {
  std::vector<int> perm{0};
  for (size_t i = 2; i < rank; ++i) perm.push_back(int(i));
  perm.push_back(1);
  return perm;
}
std::vector<int> to_first(size_t rank) {
  std::vector<int> perm{0, int(rank) - 1};
  for (size_t i = 1; i + 1 < rank; ++i) perm.push_back(int(i));
  return perm;
}

namespace {

bool is_permutation(const Graph& graph, const Op& op, const std::vector<int>& perm) {
  return op.kind == OpKind::Transpose && graph.attrs<PermAttrs>(op).perm == perm;
}

// Whether code over vectors of channels takes this operator.
bool takes(const Graph& graph, const Op& op, CpuIsa isa) {
  if (!is_windowed(op.kind)) return false;
  const Type& x = graph.type(op.inputs[0]);
  const Type& result = graph.type(op.result());
  const size_t rank = x.shape.size();
  if (x.dtype != DType::F32 || rank < 3 || rank > 5 || !is_static(x.shape)) return false;
  const int64_t lanes = lanes_of(isa, DType::F32);
  // Code for these has a place for each tap.
  constexpr int64_t kMostTaps = 65536;
  int64_t taps = 1;
  for (const WindowAxis& a : window_axes(graph, op)) taps *= a.taps;
  if (taps > kMostTaps) return false;
  if (op.kind == OpKind::Conv) {
    const auto& a = graph.attrs<ConvAttrs>(op);
    const bool adds = std::ranges::all_of(a.low, [](int64_t n) { return n >= 0; }) &&
                      std::ranges::all_of(a.high, [](int64_t n) { return n >= 0; });
    const int64_t filters = result.shape[1].extent;
    return filters * (a.groups == 1 ? 2 : 1) >= lanes && adds;
  }
  // Windows over all axes but batch and channels.
  return window_axes(graph, op).size() + 2 == rank && result.shape[1].extent >= lanes;
}

class ChannelsLastRewriter {
 public:
  ChannelsLastRewriter(const Graph& from, CpuIsa isa)
      : from_(from), isa_(isa), to_(from.name()), first_(from.tensors().size()),
        last_(from.tensors().size()) {}

  Graph run() {
    for (const Op& op : from_.ops()) {
      if (is_input(op.kind)) {
        // Inputs keep their places.
        first_[op.result().index] = to_.add_input(
            from_.type(op.result()), from_.tensor(op.result()).name, from_.is_weight(op.result()));
      } else if (!(takes(from_, op, isa_) ? window(op) : follow(op))) {
        copy(op);
      }
    }
    for (TensorId t : from_.outputs()) to_.add_output(first(t));
    return std::move(to_);
  }
  // By operator of the result: whether it turns an image.
  const std::vector<bool>& turns() const { return turns_; }

 private:
  bool only_last(TensorId t) const { return last_[t.index].valid() && !first_[t.index].valid(); }

  // A transpose that only moves axes of extent 1 is a reshape, which costs nothing.
  TensorId turned(TensorId t, const std::vector<int>& perm) {
    const Shape& shape = to_.type(t).shape;
    Shape result;
    std::vector<int> real;  // the other axes, in the order they come
    for (int p : perm) {
      result.push_back(shape[size_t(p)]);
      if (!result.back().is_one()) real.push_back(p);
    }
    if (std::ranges::is_sorted(real)) return build::reshape(to_, t, {result});
    const TensorId to = build::transpose(to_, t, {perm});
    turns_.resize(to_.ops().size(), false);
    turns_.back() = true;
    return to;
  }
  TensorId first(TensorId t) {
    TensorId& found = first_[t.index];
    if (!found.valid()) {
      CHECK(last_[t.index].valid());
      found = turned(last_[t.index], to_first(from_.type(t).shape.size()));
    }
    return found;
  }
  TensorId last(TensorId t) {
    TensorId& found = last_[t.index];
    if (!found.valid()) found = turned(first_[t.index], to_last(from_.type(t).shape.size()));
    return found;
  }

  void copy(const Op& op) {
    for (TensorId t : op.inputs) first(t);
    copy_op(from_, op, to_, first_);
  }

  bool window(const Op& op) {
    const size_t rank = from_.type(op.inputs[0]).shape.size();
    std::vector<TensorId> inputs{build::transpose(to_, last(op.inputs[0]), {to_first(rank)})};
    for (size_t i = 1; i < op.inputs.size(); ++i) inputs.push_back(first(op.inputs[i]));
    const TensorId result = to_.add(op.kind, inputs, op.attrs, from_.tensor(op.result()).name);
    last_[op.result().index] = build::transpose(to_, result, {to_last(rank)});
    return true;
  }

  // Operators that do their work on images as they lie; false where this is not one.
  bool follow(const Op& op) {
    if (op.num_results != 1 || op.inputs.empty()) return false;
    const Type& type = from_.type(op.result());
    const auto lies_last = [&](TensorId t) {
      return only_last(t) && from_.type(t).shape.size() >= 3;
    };
    if (has(op.kind, algebra::Pointwise)) {
      const bool wanted = std::ranges::any_of(
          op.inputs, [&](TensorId t) { return lies_last(t) && from_.type(t).shape == type.shape; });
      if (!wanted) return false;
      std::vector<TensorId> inputs;
      for (TensorId t : op.inputs) inputs.push_back(broadcast_last(t, type.shape.size()));
      last_[op.result().index] = to_.add(op.kind, inputs, op.attrs, from_.tensor(op.result()).name);
      return true;
    }
    if (!lies_last(op.inputs[0])) return false;
    const size_t rank = from_.type(op.inputs[0]).shape.size();
    std::vector<int> place(rank);  // of each axis among those of an image that lies last
    const std::vector<int> perm = to_last(rank);
    for (size_t i = 0; i < rank; ++i) place[size_t(perm[i])] = int(i);
    if (op.kind == OpKind::Concat) {
      std::vector<TensorId> inputs = mapped(op.inputs, [&](TensorId t) { return last(t); });
      const int axis = from_.attrs<AxisAttrs>(op).axis;
      last_[op.result().index] =
          to_.add(op.kind, inputs, AxisAttrs{place[size_t(axis)]}, from_.tensor(op.result()).name);
      return true;
    }
    if (op.kind == OpKind::Pad || op.kind == OpKind::Slice) {
      const auto turn = [&](std::vector<int64_t>& list) {
        const std::vector<int64_t> before = list;
        for (size_t i = 0; i < rank; ++i) list[i] = before[size_t(perm[i])];
      };
      Attrs attrs = op.attrs;
      if (auto* pad = std::get_if<PadAttrs>(&attrs)) {
        turn(pad->low);
        turn(pad->high);
      } else {
        auto& slice = std::get<SliceAttrs>(attrs);
        for (auto* list : {&slice.starts, &slice.stops, &slice.steps})
          if (!list->empty()) turn(*list);
      }
      last_[op.result().index] =
          to_.add(op.kind, {last(op.inputs[0])}, attrs, from_.tensor(op.result()).name);
      return true;
    }
    const bool reduces = is_reduction(op.kind);
    if (!reduces) return false;
    ReduceAttrs a = from_.attrs<ReduceAttrs>(op);
    // Without its axes an image has no channels that could lie anywhere; batch and channels do.
    const bool spatial = a.axes.size() + 2 == rank && a.axes[0] == 2;
    if (!a.keepdims && !spatial) return false;
    for (int& axis : a.axes) axis = place[size_t(axis)];
    std::ranges::sort(a.axes);
    const TensorId result =
        to_.add(op.kind, {last(op.inputs[0])}, a, from_.tensor(op.result()).name);
    (a.keepdims ? last_ : first_)[op.result().index] = result;
    return true;
  }

  // An operand of an element-by-element operator whose result lies last.
  TensorId broadcast_last(TensorId t, size_t rank) {
    const Shape& shape = from_.type(t).shape;
    if (shape.size() == rank) return last(t);
    if (shape.empty()) return first(t);
    Shape whole(rank - shape.size(), Dim(1));
    whole.insert(whole.end(), shape.begin(), shape.end());
    return turned(build::reshape(to_, first(t), {whole}), to_last(rank));
  }

  const Graph& from_;
  const CpuIsa isa_;
  Graph to_;
  std::vector<TensorId> first_, last_;  // what a tensor has become, in either order
  std::vector<bool> turns_;
};

// Chains of reshapes and transposes that orders met in become one of each, so that they copy once;
// those at windows, which cost nothing, stay. `turned`: by operator, whether it turns an image.
Graph with_short_chains(const Graph& graph, CpuIsa isa, const std::vector<bool>& turned) {
  std::vector<bool> kept(graph.ops().size(), false);
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (takes(graph, op, isa)) kept[graph.tensor(op.inputs[0]).producer.index] = true;
    if (op.kind == OpKind::Transpose && takes(graph, graph.producer(op.inputs[0]), isa))
      kept[i] = true;
  }
  struct Chain {
    TensorId from;
    Arrangement map;
    int transposes = 0;
    bool turned = false;
  };
  Graph to(graph.name());
  std::vector<TensorId> at(graph.tensors().size());
  std::vector<std::optional<Chain>> chains(graph.tensors().size());
  const std::function<void(TensorId)> settle = [&](TensorId t) {
    if (at[t.index].valid()) return;
    const Op& op = graph.producer(t);
    const Chain& chain = *chains[t.index];
    if (chain.turned && chain.transposes > 1) {
      settle(chain.from);
      at[t.index] = chain.map.build(to, at[chain.from.index]);
    } else {
      settle(op.inputs[0]);
      copy_op(graph, op, to, at);
    }
  };
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    const bool view = rearranges(op.kind);
    if (view && !kept[i] && is_static(graph.type(op.inputs[0]).shape)) {
      const TensorId x = op.inputs[0];
      Chain chain =
          chains[x.index] ? *chains[x.index] : Chain{x, Arrangement(graph.type(x).shape), 0, false};
      if (auto map = chain.map.then(graph, op)) {
        chain.map = std::move(*map);
        chain.transposes += op.kind == OpKind::Transpose;
        chain.turned = chain.turned || (i < turned.size() && turned[i]);
        chains[op.result().index] = std::move(chain);
        continue;
      }
    }
    for (TensorId t : op.inputs) settle(t);
    copy_op(graph, op, to, at);
  }
  for (TensorId t : graph.outputs()) {
    settle(t);
    to.add_output(at[t.index]);
  }
  return without_dead_code(to);
}

}  // namespace

Graph channels_last(const Graph& given, CpuIsa isa) {
  const Graph graph = without_transposed_convolutions(given);
  const bool any =
      graph.level() == Level::Kernel &&
      std::ranges::any_of(graph.tensors(),
                          [](const Tensor& t) { return t.type.dtype == DType::F32; }) &&
      std::ranges::any_of(graph.ops(), [&](const Op& op) { return takes(graph, op, isa); });
  if (!any) return graph;
  ChannelsLastRewriter rewriter(graph, isa);
  const Graph laid_out = rewriter.run();
  return with_short_chains(laid_out, isa, rewriter.turns());
}

Meets meets(const Type& operand, const Type& result) {
  if (operand.dtype != DType::F32) return Meets::Otherwise;
  const std::vector<int64_t> x = extents(operand.shape), y = extents(result.shape);
  if (std::ranges::all_of(x, [](int64_t n) { return n == 1; })) return Meets::Scalar;
  if (x == y) return Meets::Elements;
  const bool ones = std::all_of(x.begin(), x.end() - 1, [](int64_t n) { return n == 1; });
  if (ones && x.back() == y.back()) return Meets::Channels;
  if (x.size() == y.size() && x.back() == 1 && std::equal(x.begin(), x.end() - 1, y.begin()))
    return Meets::Pixels;
  return Meets::Otherwise;
}

namespace {

// Who reads each tensor.
class Users {
 public:
  explicit Users(const Graph& graph) : of_(graph.tensors().size()), uses_(use_counts(graph)) {
    for (size_t i = 0; i < graph.ops().size(); ++i)
      for (TensorId t : graph.ops()[i].inputs) of_[t.index].push_back(OpId(i));
  }
  // The only one who wants a tensor, or none.
  OpId only(TensorId t) const {
    return uses_[t.index] == 1 && of_[t.index].size() == 1 ? of_[t.index][0] : OpId();
  }
  // Operators, one entry for each operand that is the tensor.
  const std::vector<OpId>& of(TensorId t) const { return of_[t.index]; }
  // Those, and the program's results.
  int count(TensorId t) const { return uses_[t.index]; }

 private:
  std::vector<std::vector<OpId>> of_;
  std::vector<int> uses_;
};

// The element-by-element operators that follow `from` and are not `taken` yet, as far as one value
// comes out of them that others read: a chain, or branches that meet again, as in x·sigmoid(x).
std::vector<OpId> followers(const Graph& graph, const Users& users, TensorId from,
                            std::vector<bool>& taken,
                            const std::function<bool(TensorId, const Type&)>& simple) {
  std::vector<OpId> found;
  size_t whole = 0;  // of `found`, up to where one value was left
  std::set<TensorId> inside{from};
  std::map<TensorId, int> wanted{{from, users.count(from)}};  // by how many others yet
  std::set<OpId> next(users.of(from).begin(), users.of(from).end());
  // In the program's order: what an operand needs has been seen before.
  for (; !next.empty(); next.erase(next.begin())) {
    const Op& op = graph.op(*next.begin());
    if (!has(op.kind, algebra::Pointwise) || taken[next.begin()->index]) break;
    const Type& type = graph.type(op.result());
    if (type.dtype != DType::F32 || type.shape != graph.type(from).shape) break;
    if (!std::ranges::all_of(op.inputs,
                             [&](TensorId t) { return inside.count(t) != 0 || simple(t, type); }))
      break;
    for (TensorId t : op.inputs)
      if (inside.count(t) != 0 && --wanted[t] == 0) wanted.erase(t);
    inside.insert(op.result());
    wanted[op.result()] = users.count(op.result());
    next.insert(users.of(op.result()).begin(), users.of(op.result()).end());
    found.push_back(*next.begin());
    if (wanted.size() == 1) whole = found.size();
  }
  found.resize(whole);
  for (OpId id : found) taken[id.index] = true;
  return found;
}

}  // namespace

std::vector<ImageStep> image_steps(const Graph& graph, CpuIsa isa) {
  std::vector<ImageStep> steps;
  const Users users(graph);
  std::vector<bool> taken(graph.ops().size(), false);  // by an earlier step
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (!takes(graph, op, isa)) continue;
    const size_t rank = graph.type(op.result()).shape.size();
    const Op& turn = graph.producer(op.inputs[0]);
    const OpId back = users.only(op.result());
    if (!is_permutation(graph, turn, to_first(rank)) || users.only(op.inputs[0]) != OpId(i) ||
        !back.valid() || !is_permutation(graph, graph.op(back), to_last(rank)))
      continue;
    ImageStep step;
    step.window = OpId(i);
    step.before = graph.tensor(op.inputs[0]).producer;
    step.image = turn.inputs[0];
    step.after = {back};
    step.result = graph.op(back).result();
    std::set<TensorId> inside{step.result};
    for (OpId next : followers(graph, users, step.result, taken, [&](TensorId t, const Type&r) {
           return meets(graph.type(t), r) != Meets::Otherwise;
         })) {
      inside.insert(graph.op(next).result());
      for (TensorId t : graph.op(next).inputs)
        if (inside.count(t) == 0 && !graph.producer(t).constant() &&
            std::ranges::find(step.more, t) == step.more.end())
          step.more.push_back(t);
      step.after.push_back(next);
      step.result = graph.op(next).result();
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<bool> follows_image(const Graph& graph, CpuIsa isa) {
  std::vector<bool> taken(graph.ops().size(), false);
  const Users users(graph);
  for (const Op& op : graph.ops())
    if (takes(graph, op, isa))
      followers(graph, users, op.result(), taken, [&](TensorId t, const Type& result) {
        // What meets channels alone, or all elements, whatever their order.
        const Shape& shape = graph.type(t).shape;
        int64_t real = sum_of<int64_t>(shape, [&](const Dim& d) { return !d.is_one(); });
        const size_t rank = result.shape.size();
        const bool channels = real == 1 && shape.size() + 1 >= rank &&
                              shape[shape.size() - (rank - 1)].extent == result.shape[1].extent;
        return graph.type(t).dtype == DType::F32 &&
               (real == 0 || shape == result.shape || channels);
      });
  return taken;
}

}  // namespace tessera
