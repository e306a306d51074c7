#include "backend/cuda/flat.h"

#include <algorithm>

#include "backend/cuda/vectors.h"
#include "base/error.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
// Below so many, threads matter more than long vectors.
constexpr int64_t kFewThreads = 4096;

}  // namespace

BlockText emit_flat(const std::string& name, const Graph& graph, const Op& op,
                    std::set<std::string>& prelude, const std::vector<Layout>& views) {
  KernelValues kernel;
  const Type& type = graph.type(op.result());
  std::vector<std::vector<int64_t>> shapes;
  for (TensorId t : op.inputs) shapes.push_back(extents(graph.type(t).shape));
  shapes.push_back(extents(type.shape));
  Value result;
  result.kind = op.kind;
  result.attrs = op.attrs;
  result.dtype = type.dtype;
  if (is_reshape(op.kind)) {
    shapes = {{num_elements(type.shape)}, {num_elements(type.shape)}};
    result.kind = OpKind::Reshape;
    result.attrs = ShapeAttrs{{Dim(num_elements(type.shape))}};
  } else if (has(op.kind, algebra::Pointwise) &&
             std::ranges::none_of(views, [](const Layout& l) { return l.view(); })) {
    shapes = merged_axes(std::move(shapes));
  }
  std::string head = "extern \"C\" __global__ void __launch_bounds__(" + std::to_string(kThreads) +
                     ") " + name + "(";
  const auto set_extents = [](Value& v, const std::vector<int64_t>& shape) {
    for (int64_t n : shape) v.extents.push_back({n, "", 0});
  };
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    Value v;
    v.dtype = graph.type(op.inputs[i]).dtype;
    set_extents(v, shapes[i]);
    v.in_memory = true;
    v.memory = {"a" + std::to_string(i), v.dtype, contiguous_strides(shapes[i])};
    v.memory.space = Space::Global;
    if (i < views.size() && views[i].view()) {
      v.memory.strides = views[i].strides;
      v.memory.pointer = "(a" + std::to_string(i) + " + " + std::to_string(views[i].offset) + ")";
      while (views[i].offset * size_in_bytes(v.dtype) % v.memory.aligned != 0)
        v.memory.aligned /= 2;
    }
    head += std::string("const ") + storage_type(v.dtype, Dialect::Cuda) + "* __restrict__ a" +
            std::to_string(i) + ", ";
    result.inputs.push_back(int(i));
    kernel.values.push_back(std::move(v));
  }
  head += std::string(storage_type(type.dtype, Dialect::Cuda)) + "* __restrict__ out)";
  set_extents(result, shapes.back());
  kernel.values.push_back(std::move(result));
  const std::vector<int64_t>& shape = shapes.back();
  Memory to{"out", type.dtype, contiguous_strides(shape)};
  to.space = Space::Global;
  const int root = int(op.inputs.size());
  const int width = has(op.kind, algebra::Pointwise)
                        ? vector_width(to, kernel.values[size_t(root)].extents, kFewThreads)
                        : 1;
  int64_t vectors = 1;
  for (int64_t n : shape) vectors *= n;
  vectors /= width;
  if (vectors > 0x7fffffffLL)
    throw Error(ErrorKind::Unsupported, std::string(tessera::name(op.kind)) + " of " +
                                            std::to_string(vectors) + " elements in one kernel");
  // Offsets of what has more elements than an int counts.
  const std::string wide = vectors * width > 0x7fffffff - kThreads ? "long long" : "int";

  Code code;
  code.open(head);
  code.line("const int i = ts::block(0) * " + std::to_string(kThreads) + " + ts::thread();");
  code.line("if (i >= " + std::to_string(vectors) + ") return;");
  std::vector<Index> index;
  int64_t below = vectors;
  bool first = true;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool last = axis + 1 == shape.size();
    const int64_t n = last ? shape[axis] / width : shape[axis];
    if (n == 1) {
      index.push_back({});
      continue;
    }
    below /= n;
    std::string text = below == 1 ? "i" : "i / " + std::to_string(below);
    if (!first) text += " % " + std::to_string(n);
    if (last && width > 1) text = (first ? text : "(" + text + ")") + " * " + std::to_string(width);
    if (wide != "int") text = "static_cast<long long>(" + text + ")";
    first = false;
    const std::string x = "x" + std::to_string(axis);
    code.line("const " + wide + " " + x + " = " + text + ";");
    index.push_back({x, -1});
  }
  std::vector<int> touched;
  if (width > 1) {
    write_vector(code, kernel, root, index, to, width, prelude, touched);
  } else {
    Nest nest(kernel, prelude, touched, Dialect::Cuda);
    const std::string x = nest.element(root, index);
    nest.statement(-1, store(to, Nest::offset(index, to.strides).text, x, prelude));
    nest.emit(code);
  }
  code.close();
  BlockText out;
  out.text = code.text();
  out.threads = kThreads;
  out.grid[0] = int(ceil_div(vectors, kThreads));
  return out;
}

}  // namespace tessera
