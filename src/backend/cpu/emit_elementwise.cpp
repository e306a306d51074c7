// Kernel-level operators whose output elements are expressions of operands in memory.
#include <algorithm>
#include <optional>

#include "backend/cpu/emit_kernel.h"
#include "backend/nest.h"
#include "base/check.h"

namespace tessera {
namespace {

// Elements per unit of work: some microseconds, so that sharing them out costs little.
constexpr int64_t kUnitElements = 8192;

// Units start at multiples of this in the innermost axis, so that each writes cache lines of its
// own.
constexpr int64_t kLineElements = 64;

// At most `most` of `extent` at a time, in multiples of `unit`: as many equal slabs as some number
// of threads can share out evenly.
int64_t equal_slab(int64_t extent, int64_t most, int64_t unit) {
  const int64_t slabs = ceil_div(extent, most);
  if (slabs == 1) return most;
  const int64_t slab = ceil_div(extent, ceil_div(slabs, 8) * 8);
  return ceil_div(slab, unit) * unit;
}

// A transpose that exchanges the two innermost axes of 32-bit words: tiles instead of single
// elements. A unit is some rows of the result.
std::optional<ElementwiseText> emit_transpose(const std::string& name, const Graph& graph,
                                              const Op& op, UnitContext& unit) {
  const Type& type = graph.type(op.result());
  const auto& perm = std::get<PermAttrs>(op.attrs).perm;
  const size_t rank = perm.size();
  if (rank < 2 || size_in_bytes(type.dtype) != 4) return std::nullopt;
  for (size_t i = 0; i + 2 < rank; ++i) {
    if (perm[i] != static_cast<int>(i)) return std::nullopt;
  }
  if (perm[rank - 1] != static_cast<int>(rank) - 2) return std::nullopt;
  const std::vector<int64_t> shape = extents(type.shape);
  const int64_t rows = shape[rank - 2], columns = shape[rank - 1];
  if (rows < 8 || columns < 8) return std::nullopt;
  const int64_t matrices = num_elements(type.shape) / (rows * columns);
  const int64_t step = std::min(rows, std::max<int64_t>(8, kUnitElements / columns / 8 * 8));
  const int64_t slabs = ceil_div(rows, step);
  unit.prelude.insert("t_transpose");
  const auto n = [](int64_t i) { return std::to_string(i); };
  Code code;
  code.open("extern \"C\" __attribute__((visibility(\"default\"))) void " + name +
            "(void** args, long begin, long end, char*)");
  const std::string t = storage_type(type.dtype);
  code.line("const " + t + "* const a0 = (const " + t + "*)args[0];");
  code.line(t + "* const out = (" + t + "*)args[1];");
  code.open("for (long unit = begin; unit < end; ++unit)");
  code.line("const long matrix = unit / " + n(slabs) + " * " + n(rows * columns) +
            ", row = unit % " + n(slabs) + " * " + n(step) + ";");
  code.line("const long rows = row + " + n(step) + " < " + n(rows) + " ? " + n(step) + " : " +
            n(rows) + " - row;");
  code.line("t_transpose(a0 + matrix + row, " + n(rows) + ", out + matrix + row * " + n(columns) +
            ", " + n(columns) + ", rows, " + n(columns) + ");");
  code.close();
  code.close();
  return ElementwiseText{code.text(), matrices * slabs};
}

}  // namespace

bool reads_views(OpKind kind) {
  // The others take their operands as one run of elements, or by tiles.
  return kind != OpKind::Reshape && kind != OpKind::Squeeze && kind != OpKind::Unsqueeze &&
         kind != OpKind::Transpose;
}

ElementwiseText emit_elementwise(const std::string& name, const Graph& graph, const Op& op,
                                 UnitContext& unit, const std::vector<Layout>& layouts) {
  const auto view = [&](size_t i) { return i < layouts.size() && layouts[i].view(); };
  if (op.kind == OpKind::Transpose) {
    if (std::optional<ElementwiseText> text = emit_transpose(name, graph, op, unit)) return *text;
  }
  KernelValues kernel;
  std::vector<std::vector<int64_t>> shapes;
  for (TensorId t : op.inputs) shapes.push_back(extents(graph.type(t).shape));
  const Type& type = graph.type(op.result());
  shapes.push_back(extents(type.shape));
  Value result;
  result.kind = op.kind;
  result.attrs = op.attrs;
  result.dtype = type.dtype;
  bool views = false;
  for (size_t i = 0; i < op.inputs.size(); ++i) views = views || view(i);
  CHECK(!views || reads_views(op.kind));
  if (has(op.kind, algebra::Pointwise) && !views) {
    shapes = merged_axes(std::move(shapes));
  } else if (op.kind == OpKind::Reshape || op.kind == OpKind::Squeeze ||
             op.kind == OpKind::Unsqueeze) {
    shapes = {{num_elements(type.shape)}, {num_elements(type.shape)}};
    result.kind = OpKind::Reshape;
    result.attrs = ShapeAttrs{{Dim(num_elements(type.shape))}};
  }
  const auto set_extents = [](Value& v, const std::vector<int64_t>& shape) {
    for (int64_t n : shape) v.extents.push_back({n, "", 0});
  };
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    Value v;
    v.dtype = graph.type(op.inputs[i]).dtype;
    set_extents(v, shapes[i]);
    v.in_memory = true;
    v.memory = {"a" + std::to_string(i), v.dtype,
                view(i) ? layouts[i].strides : contiguous_strides(shapes[i])};
    result.inputs.push_back(static_cast<int>(i));
    kernel.values.push_back(std::move(v));
  }
  set_extents(result, shapes.back());
  kernel.values.push_back(std::move(result));

  // A unit is a slab [lo, hi) of axis `split`, whole in the axes after it.
  const std::vector<int64_t>& shape = shapes.back();
  size_t split = shape.size();
  int64_t inner = 1;
  while (split > 0 && inner * shape[split - 1] <= kUnitElements) inner *= shape[--split];
  ElementwiseText out;
  int64_t slab = 0, slabs = 1;
  if (split > 0) {
    slab = std::max<int64_t>(1, kUnitElements / inner);
    slab = equal_slab(shape[split - 1], slab, inner == 1 ? kLineElements : 1);
    slabs = ceil_div(shape[split - 1], slab);
    out.units = slabs;
    for (size_t i = 0; i + 1 < split; ++i) out.units *= shape[i];
  }

  Code code;
  code.open("extern \"C\" __attribute__((visibility(\"default\"))) void " + name +
            "(void** args, long begin, long end, char*)");
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const std::string t = storage_type(graph.type(op.inputs[i]).dtype);
    code.line("const " + t + "* const a" + std::to_string(i) + " = (const " + t + "*)args[" +
              std::to_string(i) + "]" +
              (view(i) ? " + " + std::to_string(layouts[i].offset) : "") + ";");
  }
  const std::string t = storage_type(type.dtype);
  code.line(t + "* const out = (" + t + "*)args[" + std::to_string(op.inputs.size()) + "];");
  code.open("for (long unit = begin; unit < end; ++unit)");
  std::vector<int> touched;
  Nest nest(kernel, unit.prelude, touched);
  std::vector<Index> index;
  for (size_t i = 0; i + 1 < split; ++i) {
    int64_t stride = slabs;
    for (size_t j = i + 1; j + 1 < split; ++j) stride *= shape[j];
    const std::string variable = "u" + std::to_string(i);
    code.line("const long " + variable + " = unit / " + std::to_string(stride) + " % " +
              std::to_string(shape[i]) + ";");
    index.push_back({variable, -1});
  }
  if (split > 0) {
    const std::string n = std::to_string(shape[split - 1]), step = std::to_string(slab);
    code.line("const long lo = unit % " + std::to_string(slabs) + " * " + step + ";");
    code.line("const long hi = lo + " + step + " < " + n + " ? lo + " + step + " : " + n + ";");
    index.push_back(nest.loop("hi", "lo"));
  }
  for (size_t i = split; i < shape.size(); ++i)
    index.push_back(nest.loop(std::to_string(shape[i])));
  const std::string x = nest.element(static_cast<int>(op.inputs.size()), index);
  const Memory to{"out", type.dtype, contiguous_strides(shape)};
  nest.statement(nest.depth() - 1,
                 store(to, Nest::offset(index, to.strides).text, x, unit.prelude));
  nest.emit(code);
  code.close();
  code.close();
  out.text = code.text();
  return out;
}

}  // namespace tessera
