// Tiles of operands: which part of an array a block and iteration see, and how it comes to shared
// memory.
#include <algorithm>

#include "backend/cuda/block_emitter.h"

namespace tessera {

void BlockEmitter::declare_extent(int id, size_t axis, std::vector<std::string>& lines) const {
  const Value& v = value(id);
  const std::string stem = n(id) + "_" + n(int64_t(axis));
  const int64_t whole = kernel_.argument_extents[size_t(v.argument)][axis];
  std::string low = "0", high = n(whole);
  // Begin and end of the part, clipped at every split.
  const std::vector<KernelValues::Split> parts = kernel_.splits(v, axis);
  for (size_t k = 0; k < parts.size(); ++k) {
    const KernelValues::Split& s = parts[k];
    const std::string at = stem + (k + 1 == parts.size() ? "" : "_" + n(int64_t(k)));
    const std::string part = s.variable + "*" + n(s.size);
    const std::string from = low == "0" ? part : low + " + " + part;
    lines.push_back("const int b" + at + " = ts::least(" + from + ", " + high + "), e" + at +
                    " = ts::least(b" + at + " + " + n(s.size) + ", " + high + ");");
    low = "b" + at;
    high = "e" + at;
  }
  lines.push_back("const int " + v.extents[axis].actual + " = " + high + " - " + low + ";");
}

void BlockEmitter::declare_extents(uint8_t loops, int last, std::vector<std::string>& lines) const {
  for (int id = 0; id < int(kernel_.values.size()); ++id) {
    const Value& v = value(id);
    if (!is_tile(v.kind)) continue;
    for (size_t axis = 0; axis < v.extents.size(); ++axis) {
      const Extent& e = v.extents[axis];
      if (e.exact()) continue;
      const bool here =
          last < 0 ? e.loops == 0 : (e.loops >> last & 1) != 0 && (e.loops & ~loops) == 0;
      if (here) declare_extent(id, axis, lines);
    }
  }
}

std::string BlockEmitter::tile_offset(int id) const {
  const Value& v = value(id);
  const std::vector<int64_t>& whole = kernel_.argument_extents[size_t(v.argument)];
  const std::vector<int64_t> strides = kernel_.argument_pitch(v.argument);
  const int64_t first = kernel_.argument_offset(v.argument);
  int64_t last = first;
  for (size_t axis = 0; axis < whole.size(); ++axis) last += (whole[axis] - 1) * strides[axis];
  const std::string wide = last > 0x7ffffffe ? "LL" : "";
  std::string offset = first == 0 ? "" : n(first);
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    const std::vector<KernelValues::Split> parts = kernel_.splits(v, axis);
    if (parts.empty()) continue;
    std::string begin;
    if (v.extents[axis].exact()) {
      for (const KernelValues::Split& s : parts)
        begin += (begin.empty() ? "" : " + ") + s.variable + "*" + n(s.size);
      if (parts.size() > 1 && strides[axis] != 1) begin = "(" + begin + ")";
    } else {
      begin = "b" + n(id) + "_" + n(int64_t(axis));
    }
    if (strides[axis] != 1) begin += "*" + n(strides[axis]) + wide;
    offset += (offset.empty() ? "" : " + ") + begin;
  }
  return offset;
}

void BlockEmitter::direct_tile(int id) {
  const Value& v = value(id);
  begin("");
  const std::string offset = tile_offset(id);
  code_.line("const " + std::string(storage_type(v.dtype, Dialect::Cuda)) + "* const v" + n(id) +
             " = a" + n(v.argument) + (offset.empty() ? "" : " + " + offset) + ";");
  finish();
}

// Bytes that one copy moves: as many as the rows of the array allow.
int BlockEmitter::piece_bytes(int id) const {
  const Value& v = value(id);
  const int size = size_in_bytes(v.dtype);
  const std::vector<int64_t>& whole = kernel_.argument_extents[size_t(v.argument)];
  if (whole.empty()) return size;
  const std::vector<int64_t> pitch = kernel_.argument_pitch(v.argument);
  for (int bytes : {16, 8, 4}) {
    bool fits = bytes % size == 0 && whole.back() * size % bytes == 0 && pitch.back() == 1 &&
                kernel_.argument_offset(v.argument) * size % bytes == 0;
    for (size_t axis = 0; axis + 1 < whole.size(); ++axis)
      fits = fits && (whole[axis] == 1 || pitch[axis] * size % bytes == 0);
    for (const KernelValues::Split& s : kernel_.splits(v, whole.size() - 1))
      fits = fits && s.size * size % bytes == 0;
    if (fits) return bytes;
  }
  return size;
}

// Copies the tile of the iteration that the loop variables name to `to`, zeros around it.
void BlockEmitter::copy_code(int id, Code& code) const {
  const Value& v = value(id);
  const Memory& m = v.memory;
  const std::string type = storage_type(v.dtype, Dialect::Cuda);
  const size_t rank = v.extents.size();
  const std::vector<int64_t> strides = kernel_.argument_pitch(v.argument);
  const std::string offset = tile_offset(id);
  code.line("const " + type + "* const from = a" + n(v.argument) +
            (offset.empty() ? "" : " + " + offset) + ";");
  const int size = size_in_bytes(v.dtype), bytes = piece_bytes(id);
  const int64_t piece = std::max(1, bytes / size);
  // Rows and columns in memory, with what fills them up; leading axes in between are whole.
  std::vector<int64_t> stored;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t e = this->stored(id, i);
    stored.push_back(i + 1 == rank ? ceil_div(e, piece) : e);
  }
  const int64_t pieces = product_of(stored);
  code.open("for (int i = ts::thread(); i < " + n(pieces) + "; i += " + n(threads_) + ")");
  int64_t below = pieces;
  const Expr place = Expr::variable("i", {0, pieces - 1});
  std::vector<Expr> index;
  Condition inside;
  for (size_t axis = 0; axis < rank; ++axis) {
    below /= stored[axis];
    const std::string x = "x" + n(int64_t(axis));
    const bool last = axis + 1 == rank;
    const Expr at = place / below % stored[axis] * (last ? piece : 1);
    code.line("const int " + x + " = " + at.text() + ";");
    index.push_back(Expr::variable(x, at.range()));
    const Extent& e = v.extents[axis];
    const int64_t covered = stored[axis] * (last ? piece : 1);
    if ((!last || piece == 1) && (!e.exact() || covered != e.nominal))
      inside = inside && index.back() < e.expr();
  }
  Memory tile = m;
  tile.pointer = "to";
  const std::string to = element_address(tile, Nest::offset(index, m.strides)),
                    where = "from + " + Nest::offset(index, strides).text();
  if (bytes >= 4) {
    const Extent& e = v.extents[rank == 0 ? 0 : rank - 1];
    const int64_t covered = rank == 0 ? 1 : stored[rank - 1] * piece;
    std::string read;
    if (rank > 0 && piece > 1 && (!e.exact() || covered != e.nominal))
      read = "ts::clamped((" + e.text() + " - x" + n(int64_t(rank) - 1) + ") * " + n(size) + ", " +
             n(bytes) + ")";
    if (!inside.always()) read = inside.text() + " ? " + (read.empty() ? n(bytes) : read) + " : 0";
    code.line("ts::copy_async<" + n(bytes) + ">(" + to + ", " + where +
              (read.empty() ? "" : ", " + read) + ");");
  } else {
    const std::string zero = is_sixteen(v.dtype) ? type + "{}" : "static_cast<" + type + ">(0)";
    const std::string x = "ts::load_global(" + where + ")";
    code.line("ts::store_shared(" + to + ", " +
              (inside.always() ? x : inside.text() + " ? " + x + " : " + zero) + ");");
  }
  code.close();
}

// Elements that a value takes in shared memory, with what fills it up.
int64_t BlockEmitter::memory_elements(int id) const { return planned_elements_[size_t(id)]; }

// A tile of an operand. How its copy is written depends on the plan (print_program.cpp): by a
// function of the iteration where it runs ahead.
void BlockEmitter::load_tile(int id) {
  const Value& v = value(id);
  const bool boxes = boxes_.count(id) != 0;
  buffer("v" + n(id), v.memory.storage, memory_elements(id));
  begin("");
  step_.tile = id;
  step_.instruction = boxes                  ? Instruction::Bulk
                      : piece_bytes(id) >= 4 ? Instruction::AsyncCopy
                                             : Instruction::Vector;
  writes("v" + n(id), "", boxes);
  finish();
}

}  // namespace tessera
