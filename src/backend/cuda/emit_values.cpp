// Values computed element by element, and results.

#include "backend/cuda/block_emitter.h"
#include "backend/cuda/vectors.h"

namespace tessera {

// --- loops over elements -------------------------------------------------------------------------

std::string BlockEmitter::mapping_of(const std::vector<Extent>& extents, int width) const {
  std::string mapping = width == 1 ? "each" : n(width) + " each";
  for (const Extent& e : extents)
    if (e.nominal != 1) mapping += " " + n(e.nominal);
  return elements_of(extents) == 1 ? "first" : mapping;
}

std::vector<Expr> BlockEmitter::indices(const std::vector<Extent>& extents, const Expr& flat,
                                        int width) {
  int64_t below = elements_of(extents);
  const Expr place = flat.within(below);
  std::vector<Expr> index;
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    const int64_t extent = extents[axis].nominal;
    if (extent == 1) {
      index.emplace_back(0);
      continue;
    }
    below /= extent;
    const Expr at = place / below % extent * (axis + 1 == extents.size() ? width : 1);
    const std::string x = "x" + n(int64_t(axis));
    code_.line("const int " + x + " = " + at.text() + ";");
    index.push_back(Expr::variable(x, at.range()));
  }
  return index;
}

Condition BlockEmitter::guard(const std::vector<Extent>& extents,
                              const std::vector<Expr>& index) const {
  Condition inside;
  for (size_t axis = 0; axis < extents.size(); ++axis)
    if (!extents[axis].exact()) inside = inside && index[axis] < extents[axis].expr();
  return inside;
}

void BlockEmitter::open_each(int64_t elements) {
  if (elements <= threads_) {
    code_.open("if (ts::thread() < " + n(elements) + ")");
    code_.line("const int i = ts::thread();");
  } else {
    code_.open("for (int i = ts::thread(); i < " + n(elements) + "; i += " + n(threads_) + ")");
  }
}

std::vector<Expr> BlockEmitter::each(std::vector<Extent> extents, int width) {
  if (width > 1) extents.back().nominal /= width;
  const int64_t elements = elements_of(extents);
  open_each(elements);
  return indices(extents, Expr::variable("i", {0, elements - 1}), width);
}

std::string BlockEmitter::element(Nest& nest, int id, const std::vector<Expr>& index) {
  // The value itself counts as virtual while it is computed.
  const bool in_memory = value(id).in_memory;
  value(id).in_memory = false;
  const std::string x = nest.element(id, index);
  value(id).in_memory = in_memory;
  return x;
}

// --- element by element --------------------------------------------------------------------------

void BlockEmitter::elementwise(int id) {
  if (held_for_.count(id) != 0) return store_held(id);
  const Value& v = value(id);
  const Memory& m = v.memory;
  const std::string p = m.pointer;
  buffer(p, m.storage, memory_elements(id));
  begin(p + " " + shape_text(v) + ": " + name(v.kind));
  std::vector<Extent> extents = v.extents;
  const bool fragment = fragment_[size_t(id)];
  // What fills up fragments is zero, and so is an operand beyond the end of a shorter tile.
  for (size_t axis = 0; axis < extents.size(); ++axis) extents[axis].nominal = stored(id, axis);
  const bool padded = !extents.empty() && extents.back().nominal != v.extents.back().nominal;
  const bool tail = !v.extents.empty() && !v.extents.back().exact();
  const int width = padded || tail ? 1 : vector_width(m, extents, threads_);
  const std::vector<Expr> index = each(extents, width);
  std::vector<Expr> real = index;
  for (size_t axis = 0; axis < real.size(); ++axis)
    if (v.extents[axis].nominal == 1) real[axis] = 0;
  Condition inside = guard(v.extents, real);
  for (size_t axis = 0; axis < extents.size(); ++axis)
    if (extents[axis].nominal != v.extents[axis].nominal) {
      if (v.extents[axis].exact()) inside = inside && index[axis] < v.extents[axis].expr();
      real[axis] = real[axis].within(v.extents[axis].nominal);
    }
  const Expr at = Nest::offset(index, m.strides);
  code_.open_if(inside);
  if (width > 1) {
    value(id).in_memory = false;  // counts as virtual while it is computed
    write_vector(code_, kernel_, id, real, m, width, prelude_, touched_);
    value(id).in_memory = true;
  } else {
    Nest loops = nest();
    const std::string x = element(loops, id, real);
    loops.statement(loops.depth() - 1, store(m, at, x, prelude_));
    loops.emit(code_);
  }
  const bool zeros = !inside.always() && operand_[size_t(id)];
  if (!inside.always()) code_.close(zeros ? " else {" : "");
  if (zeros) {
    code_.set_indent(code_.indent() + 1);
    if (width > 1) {
      code_.line("const " + std::string(compute_type(m.storage)) + " out[" + n(width) + "] = {};");
      code_.line("ts::store_shared(" + element_address(m, at) + ", out);");
    } else {
      code_.line(store(m, at, "0", prelude_));
    }
    code_.close();
  }
  code_.close();
  const std::string mapping = fragment ? "" : mapping_of(v.extents, width);
  reads_touched(mapping, v.inputs, width);
  writes(p, mapping);
  finish();
}

void BlockEmitter::cumsum(int id) {
  const Value& v = value(id);
  const Memory& m = v.memory;
  buffer(m.pointer, m.storage, memory_elements(id));
  begin(m.pointer + " " + shape_text(v) + ": cumsum, a thread for each line");
  const size_t along = size_t(std::get<AxisAttrs>(v.attrs).axis);
  std::vector<Extent> lines = v.extents;
  lines[along] = {1, "", 0};
  std::vector<Expr> index = each(lines);
  const Condition inside = guard(lines, index);
  code_.open_if(inside);
  Nest loops = nest();
  const std::string type = compute_type(v.dtype);
  loops.statement(-1, type + " sum = 0;");
  index[along] = loops.loop(v.extents[along].expr());
  const std::string x = loops.element(v.inputs[0], index);
  loops.statement(loops.depth() - 1, "sum += " + x + ";");
  loops.statement(loops.depth() - 1, store(m, Nest::offset(index, m.strides), "sum", prelude_));
  loops.emit(code_);
  code_.close_if(inside);
  code_.close();
  reads_touched("");
  writes(m.pointer, "");
  finish();
}

// --- results -------------------------------------------------------------------------------------

Memory BlockEmitter::open_result(int id) {
  const int argument = value(id).argument;
  const DType dtype = kernel_.argument_dtypes[size_t(argument)];
  const std::string offset = tile_offset(id);
  code_.open("");
  code_.line(std::string(storage_type(dtype, Dialect::Cuda)) + "* const to = a" + n(argument) +
             (offset.empty() ? "" : " + " + offset) + ";");
  Memory memory{"to", dtype, contiguous_strides(kernel_.argument_extents[size_t(argument)])};
  memory.space = Space::Global;
  memory.aligned = piece_bytes(id);
  return memory;
}

void BlockEmitter::save(int id) {
  if (held_for_.count(id) != 0) return store_held(id);
  const Value& v = value(id);
  const Value& x = value(v.inputs[0]);
  begin("result " + n(v.argument - kernel_.operands));
  const Memory memory = open_result(id);
  // The tile of the result may be shorter than the value, or the other way round.
  const bool same = v.extents.empty() || v.extents.back().nominal == x.extents.back().nominal;
  const int width = same ? vector_width(memory, v.extents, threads_) : 1;
  const std::vector<Expr> index = each(v.extents, width);
  Condition inside = guard(v.extents, index) && guard(x.extents, index);
  std::vector<Expr> held = index;
  for (size_t axis = 0; axis < v.extents.size(); ++axis) {
    inside = inside && index[axis] < Expr(x.extents[axis].nominal);
    held[axis] = held[axis].within(x.extents[axis].nominal);
  }
  code_.open_if(inside);
  if (width > 1) {
    // Near the end of a shorter tile one by one.
    std::string end;
    for (const Extent* e : {&v.extents.back(), &x.extents.back()})
      if (!e->exact() && (end.empty() || end != e->actual))
        end = end.empty() ? e->actual : "ts::least(" + end + ", " + e->actual + ")";
    const std::string first = index.back().text();
    if (!end.empty()) code_.open("if (" + first + " + " + n(width) + " <= " + end + ")");
    write_vector(code_, kernel_, v.inputs[0], held, memory, width, prelude_, touched_);
    if (!end.empty()) {
      code_.otherwise();
      code_.open("for (int y = " + first + "; y < " + end + "; ++y)");
      std::vector<Expr> single = held;
      single.back() = Expr::variable("y", {0, x.extents.back().nominal - 1});
      store_element(v.inputs[0], single, memory);
      code_.close(2);
    }
  } else {
    store_element(v.inputs[0], held, memory);
  }
  code_.close_if(inside);
  code_.close(2);
  reads_touched(mapping_of(v.extents, width), v.inputs, width);
  finish();
}

void BlockEmitter::store_element(int id, const std::vector<Expr>& index, const Memory& to) {
  Nest loops = nest();
  const std::string x = loops.element(id, index);
  loops.statement(-1, store(to, Nest::offset(index, to.strides), x, prelude_));
  loops.emit(code_);
}

std::string BlockEmitter::shape_text(const Value& v) const {
  std::string text = "[";
  for (const Extent& e : v.extents) text += (text.size() > 1 ? ", " : "") + n(e.nominal);
  return text + "]";
}

}  // namespace tessera
