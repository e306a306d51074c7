#include "search/mutate/linear.h"

#include <map>
#include <set>

#include "search/mutate/mutate.h"

namespace tessera {

bool is_multilinear(const Graph& g, const Op& op) {
  const auto form = mutants::form_of(g, op);
  return form && *form != mutants::Form::Input;
}

namespace mutants {

std::optional<Form> form_of(const Graph& g, const Op& op) {
  static const std::map<OpKind, Form> forms = {
      {OpKind::Input, Form::Input},
      {OpKind::Const, Form::Const},
      {OpKind::Neg, Form::Neg},
      {OpKind::Add, Form::Add},
      {OpKind::Sub, Form::Sub},
      {OpKind::Mul, Form::Mul},
      {OpKind::Div, Form::Div},
      {OpKind::Sum, Form::Sum},
      {OpKind::Mean, Form::Mean},
      {OpKind::Matmul, Form::Matmul},
      {OpKind::Conv, Form::Conv},
      {OpKind::PoolSum, Form::PoolSum},
      {OpKind::ConvTranspose, Form::ConvTranspose},
      {OpKind::Transpose, Form::Transpose},
      {OpKind::Reshape, Form::Reshape},
      {OpKind::Unsqueeze, Form::Reshape},
      {OpKind::Squeeze, Form::Reshape},
      {OpKind::Broadcast, Form::Broadcast},
      {OpKind::Repeat, Form::Repeat},
      {OpKind::Concat, Form::Concat},
      {OpKind::Stack, Form::Stack},
      {OpKind::Slice, Form::Slice},
      {OpKind::Pad, Form::Pad},
  };
  const auto at = forms.find(op.kind);
  if (at == forms.end() || !is_float(g.type(op.result()).dtype)) return std::nullopt;
  if (op.kind == OpKind::Pad && !(g.attrs<PadAttrs>(op).value == Rational(0))) return std::nullopt;
  if (op.constant() && !op.constant()->finite()) return std::nullopt;
  if (op.kind == OpKind::Div) {
    const Op& by = g.producer(op.inputs[1]);
    if (!by.constant() || *by.constant() == Rational(0) || !by.constant()->finite())
      return std::nullopt;
  }
  return at->second;
}

bool is_arithmetic(Form form) { return form >= Form::Neg && form <= Form::PoolSum; }

std::string unsupported(const Graph& g) {
  if (g.level() != Level::Kernel) return "only kernel graphs are mutated";
  if (g.outputs().empty()) return "the program has no outputs";
  for (const Tensor& t : g.tensors()) {
    if (!is_static(t.type.shape)) return t.type.str() + " has open extents: bind them first";
    for (const Dim& d : t.type.shape)
      if (d.extent > (1 << 20)) return t.type.str() + " is too long for the boxes";
  }
  // By tensor: the inputs that its elements are linear in; a product of one with itself is not.
  std::vector<std::set<uint32_t>> reads(g.tensors().size());
  for (const Op& op : g.ops()) {
    const auto form = form_of(g, op);
    if (!form) return std::string(name(op.kind)) + " is not multi-linear: split the program there";
    std::set<uint32_t>& mine = reads[op.result().index];
    if (*form == Form::Input) mine.insert(op.result().index);
    const bool product = op.kind == OpKind::Mul || is_bilinear(op.kind);
    for (const TensorId t : op.inputs)
      for (const uint32_t input : reads[t.index])
        if (!mine.insert(input).second && product)
          return std::string(name(op.kind)) + " multiplies '" + g.tensors()[input].name +
                 "' with itself: not linear in it";
  }
  return {};
}

int64_t flat(const Index& index, const std::vector<int64_t>& shape) {
  int64_t at = 0;
  for (size_t i = 0; i < shape.size(); i++) at = at * shape[i] + index[i];
  return at;
}

Index unflat(int64_t position, const std::vector<int64_t>& shape) {
  Index index{};
  for (size_t i = shape.size(); i-- > 0;) {
    index[i] = position % shape[i];
    position /= shape[i];
  }
  return index;
}

}  // namespace mutants
}  // namespace tessera
