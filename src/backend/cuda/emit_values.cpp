// Values computed element by element, reductions and results.
#include <algorithm>

#include "backend/cuda/block_emitter.h"
#include "backend/cuda/vectors.h"
#include "base/check.h"

namespace tessera {

// --- loops over elements -------------------------------------------------------------------------

std::string BlockEmitter::mapping_of(const std::vector<Extent>& extents, int width) const {
  int64_t elements = 1;
  std::string mapping = width == 1 ? "each" : n(width) + " each";
  for (const Extent& e : extents) {
    if (e.nominal != 1) mapping += " " + n(e.nominal);
    elements *= e.nominal;
  }
  return elements == 1 ? "first" : mapping;
}

std::vector<Index> BlockEmitter::indices(const std::vector<Extent>& extents,
                                         const std::string& flat, int width) {
  int64_t below = 1;
  for (const Extent& e : extents) below *= e.nominal;
  std::vector<Index> index;
  bool first = true;
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    const int64_t extent = extents[axis].nominal;
    if (extent == 1) {
      index.push_back({});
      continue;
    }
    below /= extent;
    std::string text = below == 1 ? flat : flat + " / " + n(below);
    if (!first) text += " % " + n(extent);
    if (width > 1 && axis + 1 == extents.size())
      text = (first ? text : "(" + text + ")") + " * " + n(width);
    first = false;
    const std::string x = "x" + n(int64_t(axis));
    code_.line("const int " + x + " = " + text + ";");
    index.push_back({x, -1});
  }
  return index;
}

std::string BlockEmitter::guard(const std::vector<Extent>& extents,
                                const std::vector<Index>& index) const {
  std::string inside;
  for (size_t axis = 0; axis < extents.size(); ++axis)
    if (!extents[axis].exact())
      inside += (inside.empty() ? "" : " && ") + index[axis].text + " < " + extents[axis].actual;
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

std::vector<Index> BlockEmitter::each(std::vector<Extent> extents, int width) {
  if (width > 1) extents.back().nominal /= width;
  int64_t elements = 1;
  for (const Extent& e : extents) elements *= e.nominal;
  open_each(elements);
  return indices(extents, "i", width);
}

std::string BlockEmitter::element(Nest& nest, int id, const std::vector<Index>& index) {
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
  const std::vector<Index> index = each(extents, width);
  std::vector<Index> real = index;
  for (size_t axis = 0; axis < real.size(); ++axis)
    if (v.extents[axis].nominal == 1) real[axis] = {};
  std::string inside = guard(v.extents, real);
  for (size_t axis = 0; axis < extents.size(); ++axis)
    if (v.extents[axis].exact() && extents[axis].nominal != v.extents[axis].nominal)
      inside += (inside.empty() ? "" : " && ") + index[axis].text + " < " + v.extents[axis].text();
  const std::string at = Nest::offset(index, m.strides).text;
  if (!inside.empty()) code_.open("if (" + inside + ")");
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
  const bool zeros = !inside.empty() && operand_[size_t(id)];
  if (!inside.empty()) code_.close(zeros ? " else {" : "");
  if (zeros) {
    code_.set_indent(code_.indent() + 1);
    if (width > 1) {
      code_.line("const " + std::string(compute_type(m.storage)) + " out[" + n(width) + "] = {};");
      code_.line("ts::store_shared(" + m.pointer + " + " + element_place(m, at) + ", out);");
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
  std::vector<Index> index = each(lines);
  const std::string inside = guard(lines, index);
  if (!inside.empty()) code_.open("if (" + inside + ")");
  Nest loops = nest();
  const std::string type = compute_type(v.dtype);
  loops.statement(-1, type + " sum = 0;");
  index[along] = loops.loop(v.extents[along].text());
  const std::string x = loops.element(v.inputs[0], index);
  loops.statement(loops.depth() - 1, "sum += " + x + ";");
  loops.statement(loops.depth() - 1,
                  store(m, Nest::offset(index, m.strides).text, "sum", prelude_));
  loops.emit(code_);
  if (!inside.empty()) code_.close();
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
  const std::vector<Index> index = each(v.extents, width);
  std::string inside = guard(v.extents, index);
  const std::string also = guard(x.extents, index);
  if (!also.empty() && also != inside) inside += (inside.empty() ? "" : " && ") + also;
  for (size_t axis = 0; axis < v.extents.size(); ++axis)
    if (x.extents[axis].nominal < v.extents[axis].nominal)
      inside +=
          (inside.empty() ? "" : " && ") + index[axis].text + " < " + n(x.extents[axis].nominal);
  if (!inside.empty()) code_.open("if (" + inside + ")");
  if (width > 1) {
    // Near the end of a shorter tile one by one.
    std::string end;
    for (const Extent* e : {&v.extents.back(), &x.extents.back()})
      if (!e->exact() && (end.empty() || end != e->actual))
        end = end.empty() ? e->actual : "ts::least(" + end + ", " + e->actual + ")";
    const std::string first = index.back().text;
    if (!end.empty()) code_.open("if (" + first + " + " + n(width) + " <= " + end + ")");
    write_vector(code_, kernel_, v.inputs[0], index, memory, width, prelude_, touched_);
    if (!end.empty()) {
      code_.close(" else {");
      code_.set_indent(code_.indent() + 1);
      code_.open("for (int y = " + first + "; y < " + end + "; ++y)");
      std::vector<Index> single = index;
      single.back() = {"y", -1};
      store_element(v.inputs[0], single, memory);
      code_.close(2);
    }
  } else {
    store_element(v.inputs[0], index, memory);
  }
  if (!inside.empty()) code_.close();
  code_.close(2);
  reads_touched(mapping_of(v.extents, width), v.inputs, width);
  finish();
}

void BlockEmitter::store_element(int id, const std::vector<Index>& index, const Memory& to) {
  Nest loops = nest();
  const std::string x = loops.element(id, index);
  loops.statement(-1, store(to, Nest::offset(index, to.strides).text, x, prelude_));
  loops.emit(code_);
}

// --- reductions ----------------------------------------------------------------------------------

// Lanes side by side share a result; where there are few results, whole warps do, and meet in
// shared memory.
void BlockEmitter::reduce(int id, int into) {
  if (held_for_.count(id) != 0) return reduce_held(id, into);
  const Value& v = value(id);
  const Value& x = value(v.inputs[0]);
  const Memory& m = value(into).memory;
  const auto& a = std::get<ReduceAttrs>(v.attrs);
  const bool sum = is_sum(v.kind);
  std::vector<Extent> kept, gone;
  std::vector<bool> reduced;
  for (size_t i = 0; i < x.extents.size(); ++i) {
    reduced.push_back(std::ranges::binary_search(a.axes, int(i)));
    (reduced.back() ? gone : kept).push_back(x.extents[i]);
  }
  int64_t outputs = 1, terms = 1;
  for (const Extent& e : kept) outputs *= e.nominal;
  for (const Extent& e : gone) terms *= e.nominal;
  int64_t lanes = 1;
  while (lanes < threads_ && lanes < terms && outputs * lanes < threads_) lanes *= 2;
  const int64_t warps = std::max<int64_t>(1, lanes / 32);  // that share a result
  const std::string type = compute_type(v.dtype);
  const bool real = is_float(v.dtype);
  const bool narrow = v.dtype != DType::I64;
  const std::string as = real  ? ""
                         : sum ? (narrow ? "(unsigned)" : "(unsigned long)")  // it wraps around
                               : (narrow ? "(int)" : "");
  std::string start = "0";
  if (!sum) {
    prelude_.insert("t_max");
    start = fold_of(v.kind) == AccumKind::Max ? lowest(v.dtype, Dialect::Cuda)
                                              : highest(v.dtype, Dialect::Cuda);
  }
  const auto folded = [&](const std::string& p, const std::string& q) {
    if (sum) return as + p + " + " + as + q;
    return std::string(fold_of(v.kind) == AccumKind::Max ? "t_max(" : "t_min(") + as + p + ", " +
           as + q + ")";
  };
  const bool accumulates = into != id;
  if (!accumulates) buffer(m.pointer, m.storage, memory_elements(into));
  const std::string parts = m.pointer + "p";
  if (warps > 1) buffer(parts, compute_dtype(v.dtype), outputs * warps);

  begin(m.pointer + (accumulates ? " folds " : " " + shape_text(v) + ": ") + name(v.kind) + " of " +
        n(terms) + ", " + n(lanes) + " threads each");
  const int64_t at_once = threads_ / lanes;
  const bool once = outputs <= at_once;
  if (once)
    code_.open("");
  else
    code_.open("for (int first = 0; first < " + n(outputs) + "; first += " + n(at_once) + ")");
  const std::string thread = lanes == 1 ? "ts::thread()" : "ts::thread() / " + n(lanes);
  code_.line("const int o = " + std::string(once ? "" : "first + ") + thread + ";");
  const std::vector<Index> of_output = indices(kept, "o");
  std::string inside = outputs % at_once == 0 ? "" : "o < " + n(outputs);
  const std::string also = guard(kept, of_output);
  if (!also.empty()) inside += (inside.empty() ? "" : " && ") + also;
  code_.line(type + " r = " + start + ";");
  if (!inside.empty()) code_.open("if (" + inside + ")");
  {
    Nest loops = nest();
    const std::string by = n(lanes), from = lanes == 1 ? "0" : "ts::thread() % " + by;
    std::vector<Index> index;
    const bool one = gone.size() == 1;
    const Index along = loops.loop(one ? gone[0].text() : n(terms), from, by);
    int64_t below = terms;
    size_t next = 0;
    std::string within;
    for (size_t i = 0; i < x.extents.size(); ++i) {
      if (!reduced[i]) {
        index.push_back(of_output[next++]);
        continue;
      }
      if (one) {
        index.push_back(along);
        continue;
      }
      below /= x.extents[i].nominal;
      const std::string at = "(" + along.text + (below == 1 ? "" : " / " + n(below)) + " % " +
                             n(x.extents[i].nominal) + ")";
      index.push_back(x.extents[i].nominal == 1 ? Index{} : Index{at, along.level});
      if (!x.extents[i].exact())
        within += (within.empty() ? "" : " && ") + at + " < " + x.extents[i].actual;
    }
    const int inner = loops.depth() - 1;
    if (!within.empty()) loops.statement(inner, "if (!(" + within + ")) continue;");
    const std::string e = loops.element(v.inputs[0], index);
    loops.statement(inner, "r = " + folded("r", e) + ";");
    // Many loads from global memory on their way at once, not one after the other.
    if (terms >= 4 * lanes &&
        std::ranges::any_of(touched_, [&](int t) { return home(t) == Home::Direct; }))
      loops.unroll(8);
    loops.emit(code_);
  }
  if (!inside.empty()) code_.close();
  if (lanes > 1) {
    code_.line("for (int lanes = " + n(std::min<int64_t>(lanes, 32) / 2) +
               "; lanes > 0; lanes /= 2) r = " + folded("r", "ts::shuffle_xor(r, lanes)") + ";");
  }
  std::string total = "r";
  if (v.kind == OpKind::Mean) {
    std::string count = n(terms);
    int64_t exact = 1;
    std::string rest;
    for (const Extent& e : gone)
      if (e.exact())
        exact *= e.nominal;
      else
        rest += " * " + e.text();
    count = n(exact) + rest;
    total = "r / static_cast<" + type + ">(" + count + ")";
  }
  // The result's element of output `o`.
  const auto put = [&](const std::vector<Index>& of) {
    std::vector<Index> index;
    size_t next = 0;
    for (size_t i = 0; i < x.extents.size(); ++i)
      if (!reduced[i])
        index.push_back(of[next++]);
      else if (a.keepdims)
        index.push_back({});
    const std::string at = Nest::offset(index, m.strides).text;
    const std::string old = load(m, at, prelude_);
    code_.line(store(m, at, accumulates ? folded(old, total) : total, prelude_));
  };
  const std::string mapping = "reduced " + n(outputs) + " by " + n(lanes);
  if (warps == 1) {
    std::string who = inside;
    if (lanes > 1)
      who += std::string(who.empty() ? "" : " && ") + "ts::thread() % " + n(lanes) + " == 0";
    if (!who.empty()) code_.open("if (" + who + ")");
    put(of_output);
    if (!who.empty()) code_.close();
    code_.close();
    reads_touched("");
    writes(m.pointer, mapping);
    return finish();
  }
  code_.open("if (ts::lane() == 0" + (inside.empty() ? "" : " && " + inside) + ")");
  code_.line("ts::store_shared(" + parts + " + o * " + n(warps) + " + ts::warp() % " + n(warps) +
             ", r);");
  code_.close(2);
  reads_touched("");
  writes(parts, "");
  finish();
  begin("");
  open_each(outputs);
  const std::vector<Index> of_thread = indices(kept, "i");
  const std::string rows = guard(kept, of_thread);
  if (!rows.empty()) code_.open("if (" + rows + ")");
  code_.line(type + " r = " + start + ";");
  code_.line("for (int w = 0; w < " + n(warps) + "; ++w) r = " +
             folded("r", "ts::load_shared(" + parts + " + i * " + n(warps) + " + w)") + ";");
  put(of_thread);
  if (!rows.empty()) code_.close();
  code_.close();
  reads(parts, "");
  writes(m.pointer, mapping);
  finish();
}

std::string BlockEmitter::shape_text(const Value& v) const {
  std::string text = "[";
  for (const Extent& e : v.extents) text += (text.size() > 1 ? ", " : "") + n(e.nominal);
  return text + "]";
}

}  // namespace tessera
