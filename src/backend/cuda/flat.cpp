#include "backend/cuda/flat.h"

#include "backend/cuda/vectors.h"
#include "base/error.h"

namespace tessera {
namespace {

constexpr int kFlatThreads = 256;
// Below so many, threads matter more than long vectors.
constexpr int64_t kFewFlatThreads = 4096;

}  // namespace

BlockText emit_flat(const std::string& name, const Graph& graph, const Op& op,
                    std::set<std::string>& prelude, const std::vector<Layout>& views) {
  KernelValues kernel = operator_values(graph, op, views);
  std::string head = "extern \"C\" __global__ void __launch_bounds__(" +
                     std::to_string(kFlatThreads) + ") " + name + "(";
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    Value& v = kernel.values[i];
    v.memory.space = Space::Global;
    if (i < views.size() && views[i].view()) {
      v.memory.pointer = "(a" + std::to_string(i) + " + " + std::to_string(views[i].offset) + ")";
      while (views[i].offset * size_in_bytes(v.dtype) % v.memory.aligned != 0)
        v.memory.aligned /= 2;
    }
    head += std::string("const ") + storage_type(v.dtype, Dialect::Cuda) + "* __restrict__ a" +
            std::to_string(i) + ", ";
  }
  const DType dtype = kernel.values.back().dtype;
  head += std::string(storage_type(dtype, Dialect::Cuda)) + "* __restrict__ out)";
  const std::vector<int64_t> shape = kernel.values.back().shape();
  Memory to{"out", dtype, contiguous_strides(shape)};
  to.space = Space::Global;
  const int root = int(op.inputs.size());
  const int width = has(op.kind, algebra::Pointwise)
                        ? vector_width(to, kernel.values[size_t(root)].extents, kFewFlatThreads)
                        : 1;
  const int64_t vectors = product_of(shape) / width;
  if (vectors > 0x7fffffffLL)
    throw Error(ErrorKind::Unsupported, std::string(tessera::name(op.kind)) + " of " +
                                            std::to_string(vectors) + " elements in one kernel");
  // Offsets of what has more elements than an int counts.
  const std::string wide = vectors * width > 0x7fffffff - kFlatThreads ? "long long" : "int";

  Code code;
  code.open(head);
  code.line("const int i = ts::block(0) * " + std::to_string(kFlatThreads) + " + ts::thread();");
  code.line("if (i >= " + std::to_string(vectors) + ") return;");
  std::vector<Expr> index;
  int64_t below = vectors;
  const Expr flat = Expr::variable("i", {0, vectors - 1});
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool last = axis + 1 == shape.size();
    const int64_t n = last ? shape[axis] / width : shape[axis];
    if (n == 1) {
      index.emplace_back(0);
      continue;
    }
    below /= n;
    const Expr at = flat / below % n * (last ? width : 1);
    const std::string x = "x" + std::to_string(axis);
    code.line("const " + wide + " " + x + " = " +
              (wide == "int" ? at.text() : "static_cast<long long>(" + at.text() + ")") + ";");
    index.push_back(Expr::variable(x, at.range()));
  }
  std::vector<int> touched;
  if (width > 1) {
    write_vector(code, kernel, root, index, to, width, prelude, touched);
  } else {
    Nest nest(kernel, prelude, touched, Dialect::Cuda);
    const std::string x = nest.element(root, index);
    nest.statement(-1, store(to, Nest::offset(index, to.strides), x, prelude));
    nest.emit(code);
  }
  code.close();
  BlockText out;
  out.text = code.text();
  out.threads = kFlatThreads;
  out.grid[0] = int(ceil_div(vectors, kFlatThreads));
  return out;
}

}  // namespace tessera
