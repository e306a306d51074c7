#include "cost/library_call.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "base/names.h"
#include "base/text.h"
#include "ir/written.h"

namespace tessera {
namespace {

// Sizes of left·right with result `out`; nothing where a broadcast is more than one operand for
// all.
std::optional<LibraryCall> product(const Type& left, const Type& right, const Type& out) {
  LibraryCall c;
  c.dtype = left.dtype;
  if (!is_float(c.dtype) || right.dtype != c.dtype || out.dtype != c.dtype) return std::nullopt;
  if (!is_static(left.shape) || !is_static(right.shape)) return std::nullopt;
  const size_t rank = out.shape.size();
  if (left.shape.size() < 2 || right.shape.size() < 2 || rank < 2) return std::nullopt;
  c.rows = left.shape[left.shape.size() - 2].extent;
  c.depth = left.shape.back().extent;
  c.columns = right.shape.back().extent;
  if (right.shape[right.shape.size() - 2].extent != c.depth) return std::nullopt;
  if (out.shape[rank - 2].extent != c.rows || out.shape[rank - 1].extent != c.columns)
    return std::nullopt;
  for (size_t d = 0; d + 2 < rank; ++d) c.batch *= out.shape[d].extent;
  // All batches, or none.
  auto batched = [&](const Type& t, bool& own) {
    int64_t n = 1;
    for (size_t d = 0; d + 2 < t.shape.size(); ++d) n *= t.shape[d].extent;
    own = n == c.batch && c.batch > 1;
    return n == c.batch || n == 1;
  };
  if (!batched(left, c.left_batched) || !batched(right, c.right_batched)) return std::nullopt;
  return c;
}

// A value of a block graph or of a thread graph in it.
struct Ref {
  const Graph* graph;
  const Op* thread;  // whose body the graph is, or null
  TensorId tensor;
};

// Follows a block's values into thread graphs and out of them.
class BlockValues {
 public:
  explicit BlockValues(const Graph& block) : block_(block) {}

  // The operator that computes the value, and where its operands are.
  struct Step {
    const Op* op;
    Ref at;
  };
  Step producer(Ref r) const {
    for (;;) {
      const Op& op = r.graph->producer(r.tensor);
      if (is_thread(op.kind)) {
        const Graph& body = r.graph->body(op);
        const size_t which = size_t(r.tensor.index - op.result(0).index);
        r = {&body, &op, body.outputs()[which]};
      } else if (is_input(op.kind) && r.thread) {
        const auto& in = r.graph->inputs();
        const size_t i = size_t(std::ranges::find(in, r.tensor) - in.begin());
        r = {&block_, nullptr, r.thread->inputs[i]};
      } else {
        return {&op, r};
      }
    }
  }
  Step producer(const Step& s, size_t operand) const {
    return producer(Ref{s.at.graph, s.at.thread, s.op->inputs[operand]});
  }
  // The argument of the kernel that an iterator reads.
  int argument(const Op& iter) const {
    const auto& in = block_.inputs();
    return int(std::ranges::find(in, iter.inputs[0]) - in.begin());
  }

 private:
  const Graph& block_;
};

// The dimension, counted from the end, that a part of the grid or a loop cuts; 0: none.
int from_end(int dim, const Type& t) { return dim < 0 ? 0 : int(t.shape.size()) - dim; }

std::optional<LibraryCall> of_block(const Graph& g) {
  const Op* save = nullptr;
  for (const Op& op : g.ops()) {
    if (!is_store(op.kind)) continue;
    if (save) return std::nullopt;
    save = &op;
  }
  if (!save) return std::nullopt;
  const BlockValues block(g);
  const SaveAttrs& to = g.attrs<SaveAttrs>(*save);
  BlockValues::Step at = block.producer(Ref{&g, nullptr, save->inputs[0]});
  LibraryCall::Epilogue epilogue = LibraryCall::Epilogue::None;
  size_t operators = 0;  // of those below, to see that there are no others
  if (at.op->kind == OpKind::Relu || at.op->kind == OpKind::GeluTanh) {
    epilogue =
        at.op->kind == OpKind::Relu ? LibraryCall::Epilogue::Relu : LibraryCall::Epilogue::GeluTanh;
    at = block.producer(at, 0);
    ++operators;
  }
  const Op* bias = nullptr;
  if (at.op->kind == OpKind::Add) {
    const BlockValues::Step a = block.producer(at, 0), b = block.producer(at, 1);
    if ((is_load(a.op->kind)) == (is_load(b.op->kind))) return std::nullopt;
    bias = is_load(a.op->kind) ? a.op : b.op;
    at = is_load(a.op->kind) ? b : a;
    ++operators;
  }
  std::vector<int> folded;
  if (at.op->kind == OpKind::Accum) {
    const AccumAttrs& a = g.attrs<AccumAttrs>(*at.op);
    if (a.kind != AccumKind::Sum) return std::nullopt;
    folded = a.loops;
    at = block.producer(at, 0);
    ++operators;
  }
  if (at.op->kind != OpKind::Matmul) return std::nullopt;
  const Op *left = block.producer(at, 0).op, *right = block.producer(at, 1).op;
  if (!is_load(left->kind) || !is_load(right->kind)) return std::nullopt;
  size_t others = 0;
  for (const Op& op : g.ops()) {
    if (is_thread(op.kind))
      for (const Op& o : g.body(op).ops()) others += !is_input(o.kind);
    else
      others += !is_tile(op.kind) && !is_input(op.kind);
  }
  if (others != operators + 1) return std::nullopt;

  const Type &a = g.type(left->inputs[0]), &b = g.type(right->inputs[0]);
  std::optional<LibraryCall> call = product(a, b, to.type);
  if (!call) return std::nullopt;
  call->left = block.argument(*left);
  call->right = block.argument(*right);
  call->epilogue = epilogue;
  // Every part of the grid and every loop cuts rows, columns, batches or the contraction of all
  // three alike: then blocks are tiles of one product.
  const IterAttrs &ia = g.attrs<IterAttrs>(*left), &ib = g.attrs<IterAttrs>(*right);
  auto tiles = [&](int in_a, int in_b, int in_out, bool folds) {
    const int x = from_end(in_a, a), y = from_end(in_b, b), z = from_end(in_out, to.type);
    if (folds) return x == 1 && y == 2 && z == 0;
    if (z == 2) return x == 2 && y == 0;
    if (z == 1) return x == 0 && y == 1;
    return z > 2 && x == (call->left_batched ? z : 0) && y == (call->right_batched ? z : 0);
  };
  for (size_t d = 0; d < g.grid().size(); ++d)
    if (g.grid()[d] > 1 && !tiles(ia.imap[d], ib.imap[d], to.omap[d], false)) return std::nullopt;
  for (size_t l = 0; l < g.loops().size(); ++l) {
    const bool folds = std::ranges::find(folded, int(l)) != folded.end();
    if (!tiles(ia.fmap[l], ib.fmap[l], to.fmap[l], folds)) return std::nullopt;
  }
  if (bias) {
    const Type& t = g.type(bias->inputs[0]);
    if (t.dtype != call->dtype || t.shape.empty() || num_elements(t.shape) != call->columns ||
        t.shape.back().extent != call->columns)
      return std::nullopt;
    call->bias = block.argument(*bias);
  }
  return call;
}

std::optional<LibraryCall> convolution(const Graph& g, const Op& op) {
  LibraryCall c;
  c.kind = LibraryCall::Kind::Convolution;
  const Type &x = g.type(op.inputs[0]), &w = g.type(op.inputs[1]), &y = g.type(op.result());
  c.dtype = x.dtype;
  if (!is_float(c.dtype) || w.dtype != c.dtype || !is_static(x.shape) || !is_static(w.shape))
    return std::nullopt;
  c.axes = window_axes(g, op);
  c.batch = x.shape[0].extent;
  c.depth = x.shape[1].extent;
  c.columns = y.shape[1].extent;
  c.groups = g.attrs<ConvAttrs>(op).groups;
  c.transposed = op.kind == OpKind::ConvTranspose;
  if (num_elements(y.shape) == 0) return std::nullopt;
  return c;
}

}  // namespace

double LibraryCall::bytes() const {
  const double element = size_in_bytes(dtype), n = double(batch);
  switch (kind) {
  case Kind::Matmul: {
    const double a = double(rows) * double(depth) * double(left_batched ? batch : 1);
    const double b = double(depth) * double(columns) * double(right_batched ? batch : 1);
    const double c = double(rows) * double(columns) * n;
    return (a + b + c + (bias >= 0 ? double(columns) : 0)) * element;
  }
  case Kind::Convolution: {
    double in = 1, out = 1, taps = 1;
    for (const WindowAxis& a : axes) {
      in *= double(a.in);
      out *= double(a.out);
      taps *= double(a.taps);
    }
    const double weights = double(columns) * double(depth) / double(groups) * taps;
    return (n * (double(depth) * in + double(columns) * out) + weights +
            (bias >= 0 ? double(columns) : 0)) *
           element;
  }
  case Kind::Attention: {
    const double queries = double(group) * double(rows) * double(depth + value_depth);
    return n * (queries + double(columns) * double(depth + value_depth)) * element;
  }
  }
  unreachable("LibraryCall::Kind");
}

std::optional<LibraryCall> LibraryCall::after_padding() const {
  if (kind != Kind::Convolution || transposed || padded) return std::nullopt;
  // As many zeros behind as before change nothing where no further window fits.
  const bool alike = std::ranges::all_of(axes, [](const WindowAxis& a) {
    return (a.in + 2 * a.low - a.dilation * (a.taps - 1) - 1) / a.stride + 1 == a.out;
  });
  if (alike) return std::nullopt;
  LibraryCall after = *this;
  after.padded = true;
  for (WindowAxis& a : after.axes) {
    a.in += a.low + a.high;
    a.low = a.high = 0;
  }
  return after;
}

const char* LibraryCall::rate() const {
  return name_of<Kind::Attention>(kind, {"matmul", "convolution", "attention"});
}

std::string LibraryCall::str() const {
  const auto sizes = [](const std::vector<int64_t>& list) { return joined(list, "x"); };
  std::string s =
      std::string(kind == Kind::Convolution ? transposed ? "conv_transpose" : "conv" : rate()) +
      " " + std::string(name(dtype)) + " ";
  switch (kind) {
  case Kind::Matmul: s += sizes({batch, rows, columns, depth}); break;
  case Kind::Convolution: {
    std::string taps;
    s += sizes({batch, depth});
    for (const WindowAxis& a : axes) {
      s += "x" + std::to_string(a.in);
      taps += "x" + std::to_string(a.taps);
    }
    s += " by " + std::to_string(columns) + taps;
    const auto list = [&](const char* what, auto value, int64_t usual) {
      std::string text;
      bool told = false;
      for (const WindowAxis& a : axes) {
        text += (text.empty() ? " " + std::string(what) + " " : ",") + std::to_string(value(a));
        told = told || value(a) != usual;
      }
      if (told) s += text;
    };
    list(
        "strides", [](const WindowAxis& a) { return a.stride; }, 1);
    list(
        "dilations", [](const WindowAxis& a) { return a.dilation; }, 1);
    list(
        "low", [](const WindowAxis& a) { return a.low; }, 0);
    list(
        "high", [](const WindowAxis& a) { return a.high; }, 0);
    if (groups > 1) s += " groups " + std::to_string(groups);
    break;
  }
  case Kind::Attention:
    s += sizes({batch, group, rows, columns, depth});
    if (value_depth != depth) s += " values " + std::to_string(value_depth);
    if (keys_in_columns) s += " keys in columns";
    if (causal) s += " causal";
    if (scale != 1) {
      std::ostringstream number;
      number << " scale " << scale;
      s += number.str();
    }
    break;
  }
  if (bias >= 0) s += " bias";
  if (epilogue == Epilogue::Relu) s += " relu";
  if (epilogue == Epilogue::GeluTanh) s += " gelu_tanh";
  if (tf32) s += " tf32";
  return s;
}

std::optional<LibraryCall> library_call(const Graph& g, OpId id) {
  const Op& op = g.op(id);
  if (written_kernel(g, op)) return std::nullopt;
  if (is_kernel(op.kind)) return op.num_results == 1 ? of_block(g.body(op)) : std::nullopt;
  if (is_convolution(op.kind)) return convolution(g, op);
  if (op.kind != OpKind::Matmul) return std::nullopt;
  return product(g.type(op.inputs[0]), g.type(op.inputs[1]), g.type(op.result()));
}

}  // namespace tessera
