// What is added up, or kept, over the iterations of a block's loops.

#include "backend/cuda/block_emitter.h"

namespace tessera {

void BlockEmitter::fill(const std::string& pointer, const Value& shape, const Memory& memory,
                        const std::string& x) {
  std::vector<Extent> extents = shape.extents;
  for (Extent& e : extents) e.actual.clear();
  const std::vector<Expr> index = each(extents);
  code_.line(store(memory, Nest::offset(index, memory.strides), x, prelude_));
  code_.close();
  writes(pointer, mapping_of(extents));
}

// The running maximum of a rescaling accumulator, its scales and how they lie in memory.
Memory BlockEmitter::scale_memory(int id, const char* part) const {
  const Value& m = value(value(id).inputs[1]);
  const std::vector<int64_t> strides = contiguous_strides(m.shape());
  Memory memory{scales_of(id) + part, compute_dtype(value(id).dtype), strides};
  memory.space = Space::Shared;
  return memory;
}

void BlockEmitter::start_accumulator(int id) {
  const Value& v = value(id);
  const auto& a = std::get<AccumAttrs>(v.attrs);
  const Memory& m = v.memory;
  const int from = v.inputs[0];
  const std::string type = storage_type(m.storage, Dialect::Cuda);
  const bool rescaled = v.kind == OpKind::AccumRescale;
  if (rescaled && scales_of(id) == m.pointer) {
    const Value& maxima = value(v.inputs[1]);
    for (const char* part : {"m", "s", "p"})
      buffer(m.pointer + part, compute_dtype(v.dtype), maxima.elements());
    begin(m.pointer + "m: the running maximum");
    fill(m.pointer + "m", maxima, scale_memory(id, "m"),
         lowest(compute_dtype(v.dtype), Dialect::Cuda));
    finish();
  }
  const auto u = units_.find(from);
  if (fused_[size_t(from)] == id && u != units_.end() && u->second.registers) {
    begin(m.pointer + " " + shape_text(v) + ": sums in registers");
    const Units& x = u->second;
    code_.line(std::string(compute_type(v.dtype)) + " r" + n(id) + sums_shape(x) + " = {};");
    holds(id, true);
    return finish();
  }
  buffer(m.pointer, m.storage, memory_elements(id));
  begin(m.pointer + " " + shape_text(v) + ": accumulates (" + name(a.kind) +
        (rescaled ? ", rescaled)" : ")"));
  if (a.kind == AccumKind::Concat) {
    const Extent& whole = v.extents[size_t(a.axis)];
    if (!whole.exact()) code_.line("int " + whole.actual + " = 0;");
    return finish();
  }
  const std::string x = rescaled || a.kind == AccumKind::Sum ? "0"
                        : a.kind == AccumKind::Max           ? lowest(v.dtype, Dialect::Cuda)
                                                             : highest(v.dtype, Dialect::Cuda);
  if (fragment_[size_t(id)]) {  // what fills it up is zero as well
    Value whole = v;
    for (size_t axis = 0; axis < v.extents.size(); ++axis)
      whole.extents[axis].nominal = stored(id, axis);
    fill(m.pointer, whole, m, "0");
    step_.accesses.back().mapping.clear();
    if (x != "0") {
      finish();
      begin("");
    }
  }
  if (!fragment_[size_t(id)] || x != "0") fill(m.pointer, v, m, x);
  finish();
}

void BlockEmitter::accumulate(int id) {
  const Value& v = value(id);
  const auto& a = std::get<AccumAttrs>(v.attrs);
  const int from = v.inputs[0];
  if (v.kind == OpKind::AccumRescale) scales(id);
  if (fused_[size_t(from)] == id && is_product(value(from).kind)) return product(from, id);
  if (fused_[size_t(from)] == id) return reduce(from, id);
  const std::vector<Extent>& extents = value(from).extents;
  const Memory& m = v.memory;
  begin(m.pointer + " accumulates");
  const std::vector<Expr> index = each(extents);
  const Condition inside = guard(extents, index);
  code_.open_if(inside);
  Nest loops = nest();
  const std::string x = loops.element(from, index);
  Expr at = Nest::offset(index, m.strides);
  std::string mapping = mapping_of(extents);
  if (a.kind == AccumKind::Concat) {
    const size_t axis = size_t(a.axis);
    at += Expr::variable("l" + n(a.loops[0]), {0, kernel_.loops[size_t(a.loops[0])] - 1}) *
          (extents[axis].nominal * m.strides[axis]);
    mapping = "";
    loops.statement(-1, store(m, at, x, prelude_));
  } else {
    const std::string old = load(m, at, prelude_);
    std::string sum = old + " + " + x;
    if (v.kind == OpKind::AccumRescale) {
      sum = old + " * " + factor(id, "s", index) + " + " + x + " * " + factor(id, "p", index);
      for (const char* part : {"s", "p"}) reads(scales_of(id) + part, "");
    } else if (a.kind != AccumKind::Sum) {
      prelude_.insert("t_max");
      const char* as = is_float(v.dtype) || v.dtype == DType::I64 ? "" : "(int)";
      sum = std::string(a.kind == AccumKind::Max ? "t_max(" : "t_min(") + as + old + ", " + as + x +
            ")";
    }
    loops.statement(-1, store(m, at, sum, prelude_));
  }
  loops.emit(code_);
  code_.close_if(inside);
  code_.close();
  if (a.kind == AccumKind::Concat) {
    const Extent& whole = v.extents[size_t(a.axis)];
    if (!whole.exact()) code_.line(whole.actual + " += " + extents[size_t(a.axis)].text() + ";");
  }
  reads_touched(mapping, {from});
  writes(m.pointer, fragment_[size_t(id)] ? "" : mapping);
  finish();
}

void BlockEmitter::finish_accumulator(int id) {
  if (home(id) == Home::Fragment) return;
  const int from = value(id).inputs[0];
  const auto u = units_.find(from);
  if (fused_[size_t(from)] == id && u != units_.end() && u->second.registers) spill(id);
}

std::string BlockEmitter::scales_of(int id) const {
  return "v" + n(kernel_.same_scales(id, needed_));
}

// Old sums are scaled by s = e^(old maximum - new), new terms by p = e^(theirs - new).
void BlockEmitter::scales(int id) {
  const Value& v = value(id);
  const std::string p = scales_of(id);
  if (!scaled_.insert(p).second) return;
  prelude_.insert("t_max");
  const std::string down = is_sixteen(v.dtype) ? "t_exp_down16" : "t_exp_down";
  prelude_.insert(down);
  const std::vector<Extent>& extents = value(v.inputs[1]).extents;
  const std::string type = compute_type(v.dtype);
  begin(p + ": new maximum and scales");
  const std::vector<Expr> index = each(extents);
  const Condition inside = guard(extents, index);
  code_.open_if(inside);
  Nest loops = nest();
  const std::string x = loops.element(v.inputs[1], index);
  const Memory maximum = scale_memory(id, "m");
  const Expr at = Nest::offset(index, maximum.strides);
  loops.statement(-1, "const " + type + " old = " + load(maximum, at, prelude_) +
                          ", top = t_max(old, " + x + ");");
  loops.statement(-1, store(maximum, at, "top", prelude_));
  const auto scale = [&](const std::string& from) {
    return from + " == top ? static_cast<" + type + ">(1) : " + down + "(" + from + " - top)";
  };
  loops.statement(-1, store(scale_memory(id, "s"), at, scale("old"), prelude_));
  loops.statement(-1, store(scale_memory(id, "p"), at, scale(x), prelude_));
  loops.emit(code_);
  code_.close_if(inside);
  code_.close();
  const std::string mapping = mapping_of(extents);
  reads_touched(mapping, {v.inputs[1]});
  for (const char* part : {"m", "s", "p"}) writes(p + part, mapping);
  finish();
}

std::string BlockEmitter::factor(int id, const char* part, const std::vector<Expr>& index) {
  const Value& m = value(value(id).inputs[1]);
  std::vector<Expr> narrow;
  const size_t skip = index.size() - m.extents.size();
  for (size_t i = 0; i < m.extents.size(); ++i)
    narrow.push_back(m.extents[i].nominal == 1 ? Expr() : index[skip + i]);
  const Memory memory = scale_memory(id, part);
  return load(memory, Nest::offset(narrow, memory.strides), prelude_);
}

}  // namespace tessera
