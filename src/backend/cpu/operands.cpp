#include "backend/cpu/operands.h"

#include <set>

#include "backend/cpu/emitter.h"
#include "backend/cpu/row_kernels.h"
#include "ir/axis_reads.h"

namespace tessera {
namespace {

// The row pitch from which columns are so far apart that tiles are packed.
constexpr int64_t kFarApartBytes = 1024;

// 0 where all tiles of an axis begin at multiples of `unit`, else the size that all of them begin
// at multiples of; nullopt where tiles within tiles begin anywhere.
std::optional<int64_t> tile_size(const KernelValues& kernel, const Value& iter, int axis,
                                 int64_t unit) {
  const int64_t whole = kernel.argument_extents[size_t(iter.argument)][size_t(axis)];
  int64_t size = whole;
  bool units = true, even = true;
  for (const KernelValues::Split& part : kernel.splits(iter, size_t(axis))) {
    if (part.size == size) continue;
    units = units && part.size % unit == 0;
    even = even && (size == whole || size % part.size == 0);
    size = part.size;
  }
  if (units) return 0;
  return even ? std::optional<int64_t>(size) : std::nullopt;
}

}  // namespace

std::optional<RightOperand> right_operand(const KernelValues& kernel, int id) {
  const Value& top = kernel.values[size_t(id)];
  std::vector<int> axes(top.extents.size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = int(i);
  for (;;) {  // axes: of the value at hand, by axis of the topmost; -1: inserted on the way
    const Value& v = kernel.values[size_t(id)];
    if (is_load(v.kind)) break;
    if (!turns_axes(v.kind)) return std::nullopt;
    const auto reads =
        axis_reads(v.kind, v.attrs, kernel.values[size_t(v.inputs[0])].rank(), v.rank());
    std::vector<int> from(v.extents.size(), -1);
    for (size_t i = 0; i < reads->size(); ++i)
      if ((*reads)[i].axis >= 0) from[size_t((*reads)[i].axis)] = int(i);
    for (int& a : axes)
      if (a >= 0) a = from[size_t(a)];
    id = v.inputs[0];
  }
  const size_t r = axes.size();
  if (r < 2 || axes[r - 2] < 0 || axes[r - 1] < 0) return std::nullopt;
  return RightOperand{id, axes[r - 2], axes[r - 1]};
}

bool packs_tile(CpuIsa isa, DType sums, DType stored, int64_t m, int64_t pitch) {
  // Below, dot kernels or row kernels read the tile where it lies.
  if (sums == stored)
    return pitch == 1 ? m > most_dot_rows(stored)
                      : m > kMostKernelRows && pitch * size_in_bytes(stored) >= kFarApartBytes;
  if (sums != DType::F32 || stored != DType::BF16 || !panels_take_bf16(isa)) return false;
  return m > (isa == CpuIsa::Amx ? most_dot_rows(stored) : kMostKernelRows);
}

std::map<RightOperand, PanelShape> packed_tiles(const KernelValues& kernel, CpuIsa isa) {
  std::map<RightOperand, PanelShape> found;
  std::set<RightOperand> refused;
  for (const Value& v : kernel.values) {
    if (!is_tiled_product(v, isa)) continue;
    const int64_t m = v.extents[v.extents.size() - 2].nominal, n = v.extents.back().nominal;
    for (size_t i = v.inputs.size() / 2; i < v.inputs.size(); ++i) {
      const std::optional<RightOperand> at = right_operand(kernel, v.inputs[i]);
      if (!at) continue;
      const Value& iter = kernel.values[size_t(at->iter)];
      const Memory memory = kernel.argument_memory(iter.argument, "");
      const std::optional<PanelShape> shape =
          panel_shape(isa, compute_dtype(v.dtype), iter.dtype, m, n);
      const bool packs =
          shape && memory.panel == 0 &&
          (memory.strides[size_t(at->n)] == 1 || memory.strides[size_t(at->k)] == 1) &&
          packs_tile(isa, compute_dtype(v.dtype), iter.dtype, m, memory.strides[size_t(at->k)]);
      if (!packs) {
        refused.insert(*at);
        continue;
      }
      const auto [known, fresh] = found.emplace(*at, *shape);
      if (!fresh && known->second.tile.columns() != shape->tile.columns()) refused.insert(*at);
    }
  }
  for (const RightOperand& at : refused) found.erase(at);
  return found;
}

std::vector<PanelOperand> panel_operands(const KernelValues& kernel, CpuIsa isa) {
  std::vector<bool> possible(size_t(kernel.operands), true);
  std::map<int, PanelOperand> found;
  std::vector<bool> in_chain(kernel.values.size(), false);  // views between iterator and product
  for (const Value& v : kernel.values) {
    if (!is_tiled_product(v, isa)) continue;
    const size_t rank = v.extents.size();
    const DType dtype = compute_dtype(v.dtype);
    for (size_t i = v.inputs.size() / 2; i < v.inputs.size(); ++i) {
      const std::optional<RightOperand> at = right_operand(kernel, v.inputs[i]);
      if (!at) continue;
      const Value& iter = kernel.values[size_t(at->iter)];
      const size_t argument = size_t(iter.argument);
      const size_t axes = kernel.argument_extents[argument].size();
      const std::optional<PanelShape> shape = panel_shape(
          isa, dtype, iter.dtype, v.extents[rank - 2].nominal, v.extents[rank - 1].nominal);
      const bool dots = dtype == DType::F32 && at->k + 1 == int(axes) &&
                        (iter.dtype == DType::F32 || iter.dtype == DType::BF16) &&
                        v.extents[rank - 2].nominal <= most_dot_rows(iter.dtype);
      if (!shape || dots) {
        possible[argument] = false;
        continue;
      }
      const RegisterTile& tile = shape->tile;
      PanelOperand p;
      p.operand = iter.argument;
      for (size_t axis = 0; axis < axes; ++axis)
        if (int(axis) != at->k && int(axis) != at->n) p.layout.order.push_back(int(axis));
      p.layout.order.push_back(at->k);
      p.layout.order.push_back(at->n);
      p.layout.panel = tile.columns();
      p.layout.group = shape->group;
      p.copied = at->n + 1 != int(axes);
      p.rows = v.extents[rank - 2].nominal;
      p.packed = packs_tile(isa, dtype, iter.dtype, p.rows,
                            contiguous_strides(kernel.argument_extents[argument])[size_t(at->k)]);
      p.flops = 2.0 * double(v.elements()) * double(iter.extents[size_t(at->k)].nominal);
      for (int64_t g : kernel.grid) p.flops *= double(g);
      for (size_t l = 0; l < kernel.loops.size(); ++l)
        if ((v.phase.varies >> l & 1) != 0) p.flops *= double(kernel.loops[l]);
      const std::optional<int64_t> columns = tile_size(kernel, iter, at->n, tile.columns());
      if (columns) p.layout.tile = *columns;
      const auto known = found.find(p.operand);
      const bool agrees = known == found.end() || known->second.layout == p.layout;
      if (!agrees || !columns || tile_size(kernel, iter, at->k, shape->group) != 0) {
        possible[argument] = false;
        continue;
      }
      if (known != found.end())
        known->second.flops += p.flops;
      else
        found.emplace(p.operand, p);
      for (int id = v.inputs[i]; id != at->iter; id = kernel.values[size_t(id)].inputs[0])
        in_chain[size_t(id)] = true;
    }
  }
  // Anything else that reads the iterator, or a view of it, needs single elements.
  const std::vector<std::vector<int>> users = kernel.users();
  for (size_t id = 0; id < kernel.values.size(); ++id) {
    const Value& v = kernel.values[id];
    if (!is_load(v.kind) && !in_chain[id]) continue;
    int root = int(id);
    while (!is_load(kernel.values[size_t(root)].kind)) root = kernel.values[size_t(root)].inputs[0];
    const size_t argument = size_t(kernel.values[size_t(root)].argument);
    for (int user : users[id]) {
      const Value& u = kernel.values[size_t(user)];
      bool fine = in_chain[size_t(user)];
      if (is_tiled_product(u, isa)) {
        fine = true;
        for (size_t i = 0; i < u.inputs.size() / 2; ++i) fine = fine && u.inputs[i] != int(id);
      }
      if (!fine) possible[argument] = false;
    }
  }
  std::vector<PanelOperand> out;
  for (const auto& [operand, p] : found)
    if (possible[size_t(operand)]) out.push_back(p);
  return out;
}

}  // namespace tessera
