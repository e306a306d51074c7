#include "backend/cuda/vectors.h"

#include <functional>

namespace tessera {
namespace {

// Whether `width` neighbours at a multiple of `width` along the innermost axis lie side by side,
// beginning at a multiple of their bytes (or of 16).
bool side_by_side(const Memory& m, const std::vector<Extent>& extents, int width) {
  const size_t rank = extents.size();
  if (rank == 0 || m.strides[rank - 1] != 1) return false;
  if (m.swizzle_mask != 0 && width * size_in_bytes(m.storage) > 16) return false;
  if (m.aligned % std::min(16, width * size_in_bytes(m.storage)) != 0) return false;
  for (size_t axis = 0; axis + 1 < rank; ++axis)
    if (extents[axis].nominal != 1 && m.strides[axis] % width != 0) return false;
  return true;
}

const char* accessor(const Memory& m, bool read) {
  if (m.space == Space::Global) return read ? "ts::load_global(" : "ts::store_global(";
  return read ? "ts::load_shared(" : "ts::store_shared(";
}

std::string address(const Memory& m, const std::vector<Expr>& index) {
  return element_address(m, Nest::offset(index, m.strides));
}

}  // namespace

int vector_width(const Memory& to, const std::vector<Extent>& extents, int64_t least_threads) {
  if (extents.empty()) return 1;
  const int size = size_in_bytes(to.storage);
  const int64_t elements = elements_of(extents);
  int width = 16 / size;
  while (width > 1 && (extents.back().nominal % width != 0 || !side_by_side(to, extents, width) ||
                       elements / width < least_threads))
    width /= 2;
  return width * size >= 4 ? width : 1;
}

std::vector<Expr> in_vector(std::vector<Expr> index, int width) {
  const Range first = index.back().range();
  index.back() += Expr::variable("e", {0, width - 1});
  index.back() = index.back().within(first.most / width * width + width);
  return index;
}

void load_vectors(Code& code, Nest& nest, const KernelValues& kernel, int root,
                  const std::vector<Expr>& index, int width) {
  const int64_t along = kernel.values[size_t(root)].extents.back().nominal;
  std::set<std::string> loaded;
  const std::function<void(int, const std::vector<Expr>&)> walk = [&](int id,
                                                                      const std::vector<Expr>& at) {
    const Value& v = kernel.values[size_t(id)];
    if (v.in_memory && id != root) {
      if (v.extents.empty() || v.extents.back().nominal != along ||
          v.memory.space == Space::Plain || !side_by_side(v.memory, v.extents, width))
        return;
      std::string key = std::to_string(id);
      for (const Expr& i : at) key += "," + i.text();
      if (!loaded.insert(key).second) return;
      const std::string name =
          "r" + std::to_string(id) + (loaded.size() > 1 ? "_" + std::to_string(loaded.size()) : "");
      code.line(std::string(compute_type(v.memory.storage)) + " " + name + "[" +
                std::to_string(width) + "];");
      code.line(accessor(v.memory, true) + name + ", " + address(v.memory, at) + ");");
      nest.known(id, in_vector(at, width), name + "[e]");
      return;
    }
    if (!has(v.kind, algebra::Pointwise)) return;
    for (int input : v.inputs) {
      const Value& x = kernel.values[size_t(input)];
      const size_t skip = at.size() - x.extents.size();
      std::vector<Expr> of;
      for (size_t i = 0; i < x.extents.size(); ++i) {
        const bool repeated = x.extents[i].nominal == 1 && v.extents[skip + i].nominal != 1;
        of.push_back(repeated ? Expr() : at[skip + i]);
      }
      if (x.extents.empty() || (x.extents.back().nominal == 1 && along != 1)) continue;
      walk(input, of);
    }
  };
  walk(root, index);
}

void write_vector(Code& code, const KernelValues& kernel, int root, const std::vector<Expr>& index,
                  const Memory& to, int width, std::set<std::string>& prelude,
                  std::vector<int>& touched) {
  Nest nest(kernel, prelude, touched, Dialect::Cuda);
  load_vectors(code, nest, kernel, root, index, width);
  const std::string x = nest.element(root, in_vector(index, width));
  nest.statement(-1, "y[e] = " + x + ";");
  code.line(std::string(compute_type(to.storage)) + " y[" + std::to_string(width) + "];");
  code.line("#pragma unroll");
  code.line("for (int e = 0; e < " + std::to_string(width) + "; ++e)");
  nest.emit(code);
  code.line(accessor(to, false) + address(to, index) + ", y);");
}

}  // namespace tessera
