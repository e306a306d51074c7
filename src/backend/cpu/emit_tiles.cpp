// Tiles of arguments: extents, offsets, copies in and out.
#include "backend/cpu/emitter.h"
#include "backend/fmt.h"

#include <algorithm>

namespace tessera {

// A kernel that moves more than this leaves nothing in the caches for the next one to find.
constexpr int64_t kBeyondCaches = int64_t{32} << 20;

int64_t KernelEmitter::buffer_elements(const Value& v) const {
  int64_t n = 1;
  for (size_t i = 0; i < v.extents.size(); ++i)
    n = std::max(n, v.extents[i].nominal * v.memory.strides[i]);
  return n;
}

std::vector<Expr> KernelEmitter::all_loops(Nest& loops, const std::vector<Extent>& extents) const {
  return mapped(
      extents, [&](const Extent& e) { return loops.loop(e.expr()); });
}

void KernelEmitter::declare_extents(uint8_t loops, int last) {
  for (int id = 0; id < int(kernel_.values.size()); ++id) {
    const Value& v = value(id);
    if (!is_tile(v.kind)) continue;
    for (size_t axis = 0; axis < v.extents.size(); ++axis) {
      const Extent& e = v.extents[axis];
      const std::string stem = fmt("$0_$1", id, axis);
      if (e.actual != "n" + stem) continue;
      const bool here =
          last < 0 ? e.loops == 0 : (e.loops >> last & 1) != 0 && (e.loops & ~loops) == 0;
      if (!here) continue;
      // Begin and end of the part, clipped at every split.
      unit_.prelude.insert("t_least");
      const int64_t whole = kernel_.argument_extents[size_t(v.argument)][axis];
      const std::vector<KernelValues::Split> parts = kernel_.splits(v, axis);
      if (part_ == KernelPart::Once && parts.front().variable[0] == 'g')
        continue;  // of no block in particular
      std::string low = "0", high = std::to_string(whole);
      int step = 0;
      for (const KernelValues::Split& s : parts) {
        const std::string part = fmt("$0*$1", s.variable, s.size);
        const std::string from = low == "0" ? part : fmt("$0 + $1", low, part);
        const std::string k = fmt("$0_$1", stem, step++);
        code_.line(fmt("const long b$0 = t_least($1, $2), e$0 = t_least($1 + $3, $2);", k, from,
                       high, s.size));
        low = "b" + k;
        high = "e" + k;
      }
      code_.line(fmt("const long b$0 = $1, $2 = $3 - $1;", stem, low, e.actual, high));
    }
  }
}

std::string KernelEmitter::tile_offset(int id) const {
  const Value& v = value(id);
  const std::vector<int64_t> strides = kernel_.argument_pitch(v.argument);
  std::string offset;
  for (size_t axis = 0; axis < strides.size(); ++axis) {
    const std::vector<KernelValues::Split> parts = kernel_.splits(v, axis);
    if (parts.empty()) continue;
    std::string begin;
    if (v.extents[axis].exact()) {
      for (const KernelValues::Split& s : parts)
        begin += fmt("$0$1*$2", begin.empty() ? "" : " + ", s.variable, s.size);
      if (parts.size() > 1 && strides[axis] != 1) begin = fmt("($0)", begin);
    } else {
      begin = fmt("b$0_$1", id, axis);
    }
    if (const Layout* panels = kernel_.tiles_of(v.argument, axis)) {
      const std::string t = std::to_string(panels->tile);
      begin = fmt("($0)/$1*$2", begin, t, panel_columns(*panels, panels->tile));
    }
    if (strides[axis] != 1) begin += "*" + std::to_string(strides[axis]);
    offset += (offset.empty() ? "" : " + ") + begin;
  }
  return offset;
}

void KernelEmitter::tile(int id) {
  const Value& v = value(id);
  const size_t argument = size_t(v.argument);
  const std::string offset = tile_offset(id);
  const bool read = v.argument < kernel_.operands;
  code_.line(fmt("$0$1* const v$2 = a$3$4;", read ? "const " : "",
                 storage_type(kernel_.argument_dtypes[argument]), id, v.argument,
                 offset.empty() ? "" : " + " + offset));
}

void KernelEmitter::copy_tile(int id) {
  Value& v = kernel_.values[size_t(id)];
  const Memory copy{fmt("v$0c", id), compute_dtype(v.dtype), contiguous_strides(v.shape())};
  allocate(copy.pointer, copy.storage, v.elements());
  code_.line(fmt("// $0: $1 as $2", copy.pointer, v.memory.pointer, name(copy.storage)));
  v.memory.pointer = "v" + std::to_string(id);
  v.memory.storage = v.dtype;
  v.memory.strides = kernel_.argument_pitch(v.argument);
  Nest loops = nest();
  const std::vector<Expr> index = all_loops(loops, v.extents);
  const std::string x = loops.element(id, index);
  loops.statement(loops.depth() - 1,
                  store(copy, Nest::offset(index, copy.strides), x, unit_.prelude));
  emit(loops);
  v.memory = copy;
}

void KernelEmitter::save(int id) {
  const Value& v = value(id);
  code_.line("// store result " + std::to_string(v.argument - kernel_.operands));
  code_.open("");
  tile(id);
  const size_t argument = size_t(v.argument);
  const Memory memory{"v" + std::to_string(id), kernel_.argument_dtypes[argument],
                      contiguous_strides(kernel_.argument_extents[argument])};
  // The tile of the result may be shorter than the value, or the other way round.
  const Value& x = value(v.inputs[0]);
  Nest loops = nest();
  std::vector<Expr> index;
  for (size_t i = 0; i < v.extents.size(); ++i) {
    const Extent &to = v.extents[i], &from = x.extents[i];
    index.push_back(loops.loop(to.exact()     ? from.expr()
                               : from.exact() ? to.expr()
                                              : least(to.expr(), from.expr())));
  }
  const std::string element = loops.element(v.inputs[0], index);
  const Expr at = Nest::offset(index, memory.strides);
  const int lanes = streams(v.argument) ? row_lanes(v.extents.back(), memory.storage) : 0;
  if (lanes > 0 && memory.storage == compute_dtype(memory.storage)) {
    unit_.prelude.insert("t_stream");
    loops.statement(loops.depth() - 1, fmt("out[lane] = $0;", element));
    loops.set_lanes(lanes);
    loops.around_vectors(
        fmt("$0 out[$1] __attribute__((aligned(64)));", storage_type(memory.storage), lanes),
        fmt("t_stream($0 + $1, out, count);", memory.pointer, at));
    emit(loops);
    code_.line("t_streamed();");
    code_.close();
    return;
  }
  loops.statement(loops.depth() - 1, store(memory, at, element, unit_.prelude));
  emit(loops);
  code_.close();
}

bool KernelEmitter::streams(int argument) const {
  int64_t all = 0, own = 0;
  for (size_t i = 0; i < kernel_.argument_extents.size(); ++i) {
    const int64_t bytes =
        product_of(kernel_.argument_extents[i]) * size_in_bytes(kernel_.argument_dtypes[i]);
    all += bytes;
    if (int(i) == argument) own = bytes;
  }
  return all >= kBeyondCaches && own >= kBeyondCaches / 8;
}

void KernelEmitter::fill(const Memory& memory, const std::vector<Extent>& extents,
                         const std::string& x) {
  Nest loops = nest();
  std::vector<Expr> index = mapped(extents, [&](const Extent& e) { return loops.loop(e.nominal); });
  loops.statement(loops.depth() - 1,
                  fmt("$0[$1] = $2;", memory.pointer, Nest::offset(index, memory.strides), x));
  emit(loops);
}

}  // namespace tessera
