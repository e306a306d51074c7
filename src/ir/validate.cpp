#include "ir/validate.h"

#include <algorithm>

#include "base/error.h"
#include "ir/axis_reads.h"
#include "ir/block_schedule.h"

namespace tessera {

void bad_op(const Graph& g, const Op& op, const std::string& what) {
  std::string who = name(op.kind);
  if (op.num_results > 0)
    if (const std::string& n = g.tensor(op.result()).name; !n.empty()) who += " " + n;
  bad_input(who + ": " + what);
}

namespace {

// How tiles of one axis get shorter than their nominal size: empty when they never do, else the
// split that causes it. Axes that meet in one operator must be clipped alike.
using Clip = std::string;

Clip clip_of(int64_t extent, int axis, const GridMap& grid_map, const LoopMap& loop_map,
             const Graph& g) {
  Clip clip = std::to_string(extent);
  bool exact = true;
  int64_t n = extent;
  auto split = [&](char letter, size_t i, int64_t parts) {
    if (parts == 1) return;
    exact = exact && n % parts == 0;
    n = ceil_div(n, parts);
    clip += letter + std::to_string(i) + ":" + std::to_string(parts);
  };
  for (size_t i = 0; i < g.grid().size(); i++)
    if (grid_map[i] == axis) split('g', i, g.grid()[i]);
  for (size_t i = 0; i < g.loops().size(); i++)
    if (loop_map[i] == axis) split('l', i, g.loops()[i]);
  return exact ? Clip() : clip;
}

// What clipping of an operand's axes means for the result; throws where it would change meaning.
class ClipCheck {
 public:
  explicit ClipCheck(const Graph& g) : g_(g), clips_(g.tensors().size()) {}

  void run() {
    for (const Op& op : g_.ops()) {
      for (uint32_t i = 0; i < op.num_results; i++) {
        TensorId r = op.result(i);
        clips_[r.index].resize(g_.type(r).shape.size());
      }
      step(op, clips_[op.result().index]);
    }
  }

 private:
  bool clipped(TensorId t) const {
    return std::ranges::any_of(
        clips_[t.index], [](const Clip& c) { return !c.empty(); });
  }
  // Merges an operand's axis into a result axis under broadcasting.
  void merge(const Op& op, Clip& into, TensorId t, size_t axis, bool first) {
    if (g_.type(t).shape[axis].is_one() && clips_[t.index][axis].empty()) return;
    const Clip& c = clips_[t.index][axis];
    if (!first && c != into)
      bad_op(g_, op, "its operands' tiles are cut differently at the tensor's edge");
    into = c;
  }
  void broadcast_like(const Op& op, std::vector<Clip>& out, size_t skip_last = 0) {
    for (size_t back = 1 + skip_last; back <= out.size(); back++) {
      bool first = true;
      for (TensorId t : op.inputs) {
        size_t rank = g_.type(t).shape.size();
        if (back > rank) continue;
        bool one = g_.type(t).shape[rank - back].is_one() && clips_[t.index][rank - back].empty();
        merge(op, out[out.size() - back], t, rank - back, first);
        first = first && one;
      }
    }
  }
  void step(const Op& op, std::vector<Clip>& out) {
    auto in = [&](size_t i) -> const std::vector<Clip>& { return clips_[op.inputs[i].index]; };
    switch (op.kind) {
    case OpKind::Opaque:
    case OpKind::Kernel: return;
    case OpKind::Iter: {
      const auto& a = g_.attrs<IterAttrs>(op);
      const Shape& shape = g_.type(op.inputs[0]).shape;
      for (size_t d = 0; d < shape.size(); d++)
        if (!shape[d].symbolic()) out[d] = clip_of(shape[d].extent, int(d), a.imap, a.fmap, g_);
      return;
    }
    case OpKind::Save: {
      const auto& a = g_.attrs<SaveAttrs>(op);
      for (size_t d = 0; d < out.size(); d++) {
        Clip want = a.type.shape[d].symbolic()
                        ? Clip()
                        : clip_of(a.type.shape[d].extent, int(d), a.omap, a.fmap, g_);
        if (want != in(0)[d])
          bad_op(g_, op,
                 "axis " + std::to_string(d) + " of the value is cut differently from " +
                     a.type.str());
      }
      return;
    }
    case OpKind::Accum: {
      out = in(0);
      const auto& a = g_.attrs<AccumAttrs>(op);
      bool concat = a.kind == AccumKind::Concat;
      for (size_t d = 0; d < out.size(); d++) {
        if (concat && int(d) == a.axis) {
          if (!out[d].empty()) bad_op(g_, op, "joins tiles that are cut at the tensor's edge");
        } else if (varies_with(out[d], a.loops)) {
          bad_op(g_, op, "folds tiles of different sizes");
        }
      }
      return;
    }
    case OpKind::AccumRescale: {
      out = in(0);
      for (const Clip& c : out)
        if (varies_with(c, g_.attrs<AccumAttrs>(op).loops))
          bad_op(g_, op, "folds tiles of different sizes");
      std::vector<Clip> merged(out.size());
      broadcast_like(op, merged);
      return;
    }
    case OpKind::Matmul: {
      const auto &x = in(0), &y = in(1);
      if (x.back() != y[y.size() - 2]) bad_op(g_, op, "the contracted axes are cut differently");
      broadcast_like(op, out, 2);
      out[out.size() - 2] = x[x.size() - 2];
      out.back() = y.back();
      return;
    }
    case OpKind::Thread: {
      // Pointwise chains: every result has the clips of its broadcast operands.
      for (uint32_t i = 0; i < op.num_results; i++) {
        auto& result = clips_[op.result(i).index];
        for (size_t back = 1; back <= result.size(); back++)
          for (TensorId t : op.inputs) {
            size_t rank = g_.type(t).shape.size();
            if (back > rank) continue;
            const Clip& c = clips_[t.index][rank - back];
            if (!c.empty()) result[result.size() - back] = c;
          }
      }
      return;
    }
    default: break;
    }
    if (is_leaf(op.kind)) return;
    if (has(op.kind, algebra::Pointwise)) return broadcast_like(op, out);
    if (const auto* a = std::get_if<ReduceAttrs>(&op.attrs)) {
      size_t o = 0;
      for (size_t d = 0; d < in(0).size(); d++) {
        bool gone = std::ranges::binary_search(a->axes, int(d));
        if (gone && op.kind == OpKind::Mean && !in(0)[d].empty())
          bad_op(g_, op, "the mean over a cut tile is not a part of the whole mean; sum and scale");
        if (!gone)
          out[o++] = in(0)[d];
        else if (a->keepdims)
          out[o++] = Clip();
      }
      return;
    }
    if (turns_axes(op.kind)) {
      const auto reads = axis_reads(op.kind, op.attrs, int(in(0).size()), int(out.size()));
      for (size_t d = 0; d < reads->size(); d++)
        if ((*reads)[d].axis >= 0) out[size_t((*reads)[d].axis)] = in(0)[d];
      return;
    }
    for (TensorId t : op.inputs)
      if (clipped(t)) bad_op(g_, op, "its operand's tile is cut at the tensor's edge");
  }
  static bool varies_with(const Clip& clip, const std::vector<int>& loops) {
    return std::ranges::any_of(
        loops, [&](int l) { return clip.find("l" + std::to_string(l) + ":") != Clip::npos; });
  }

  const Graph& g_;
  std::vector<std::vector<Clip>> clips_;
};

void check_names(const Graph& g) {
  for (TensorId t : g.outputs())
    if (t.index >= g.tensors().size())
      bad_input("graph " + g.name() + ": an output does not exist");
}

void validate_block(const Graph& g, const Op& op, const Graph& parent) {
  (void)block_schedule(g);
  ClipCheck(g).run();
  for (const Op& o : g.ops()) {
    for (TensorId t : o.inputs) {
      bool argument = is_input(g.producer(t).kind);
      if (argument != (is_load(o.kind)))
        bad_op(g, o,
               argument ? "reads an argument; take a tile of it with iter first"
                        : "iter takes an argument of the block graph");
      if (is_store(g.producer(t).kind)) bad_op(g, o, "reads a saved result");
    }
  }
  for (TensorId t : g.outputs())
    if (!is_store(g.producer(t).kind))
      bad_op(parent, op, "its body returns a value that is not saved");
}

}  // namespace

void validate_body(const Graph& g, const Op& op) {
  const Graph& body = g.body(op);
  if (is_kernel(op.kind)) validate_block(body, op, g);
  validate(body);
}

void validate(const Graph& g) {
  check_names(g);
  if (g.outputs().empty()) bad_input("graph " + g.name() + " returns nothing");
  for (const Op& op : g.ops()) {
    if (is_input(op.kind) && g.level() != Level::Kernel && g.is_weight(op.result()))
      bad_op(g, op, "only inputs of the whole program can be weights");
    if (op.body.valid()) validate_body(g, op);
  }
}

}  // namespace tessera
