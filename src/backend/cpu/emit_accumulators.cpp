// What is added up, or kept, over the iterations of a kernel's loops.
#include "backend/cpu/emitter.h"

#include "backend/fmt.h"

namespace tessera {

std::string KernelEmitter::neutral(AccumKind kind, DType dtype) const {
  if (kind == AccumKind::Sum || kind == AccumKind::Concat) return "0";
  return kind == AccumKind::Max ? lowest(dtype) : highest(dtype);
}

void KernelEmitter::start_accumulator(int id) {
  const Value& v = value(id);
  const auto& a = std::get<AccumAttrs>(v.attrs);
  allocate_value(id);
  code_.line(fmt("// $0: accumulates ($1$2)", v.memory.pointer, name(a.kind),
                 v.kind == OpKind::AccumRescale ? ", rescaled" : ""));
  if (v.kind == OpKind::AccumRescale) {
    fill(v.memory, v.extents, "0");
    if (scales_of(id) != v.memory.pointer) return;
    const Value& m = value(v.inputs[1]);
    for (const char* part : {"m", "s", "p"})  // running maximum, old scale, new scale
      allocate(v.memory.pointer + part, v.memory.storage, m.elements());
    fill({v.memory.pointer + "m", v.memory.storage, contiguous_strides(m.shape())}, m.extents,
         neutral(AccumKind::Max, v.dtype));
    return;
  }
  if (a.kind == AccumKind::Concat) {
    for (const Extent& e : v.extents)
      if (!e.exact() && e.actual.rfind(fmt("n$0_", id), 0) == 0)
        code_.line(fmt("long $0 = 0;", e.actual));
    return;
  }
  fill(v.memory, v.extents, neutral(a.kind, v.dtype));
  touch(id);
}

void KernelEmitter::accumulate(int id) {
  const Value& v = value(id);
  const auto& a = std::get<AccumAttrs>(v.attrs);
  const int from = v.inputs[0];
  if (update_loops(v) != v.phase.varies || !a.loops.empty()) touch(id);
  if (fused_[size_t(from)] == id) {
    code_.line(fmt("// $0 += $1", v.memory.pointer, name(value(from).kind)));
    if (is_product(value(from).kind))
      product(from, v.memory, true);
    else
      reduce(from, v.memory, true);
    touch(id);
    return;
  }
  const std::vector<Extent>& extents = value(from).extents;
  if (v.kind == OpKind::AccumRescale) return rescale(id);
  code_.line(fmt("// $0 accumulates", v.memory.pointer));
  Nest loops = nest();
  const std::vector<Expr> index = all_loops(loops, extents);
  const std::string x = loops.element(from, index);
  std::string at = fmt("$0[$1", v.memory.pointer, Nest::offset(index, v.memory.strides));
  std::string statement;
  switch (a.kind) {
  case AccumKind::Sum: statement = fmt("$0] += $1;", at, x); break;
  case AccumKind::Max:
  case AccumKind::Min: {
    unit_.prelude.insert("t_max");
    const char* as = is_float(v.dtype) || v.dtype == DType::I64 ? "" : "(int)";
    statement =
        fmt("$0] = $1$2$0], $2$3);", at, a.kind == AccumKind::Max ? "t_max(" : "t_min(", as, x);
    break;
  }
  case AccumKind::Concat: {
    const size_t axis = size_t(a.axis);
    statement = fmt("$0 + l$1*$2] = $3;", at, a.loops[0],
                    extents[axis].nominal * v.memory.strides[axis], x);
    break;
  }
  }
  loops.statement(loops.depth() - 1, statement);
  emit(loops);
  if (a.kind == AccumKind::Concat && !v.extents[size_t(a.axis)].exact())
    code_.line(fmt("$0 += $1;", v.extents[size_t(a.axis)].actual, extents[size_t(a.axis)].text()));
  touch(id);
}

std::string KernelEmitter::scales_of(int id) const {
  return value(kernel_.same_scales(id, needed_)).memory.pointer;
}

void KernelEmitter::rescale(int id) {
  const Value& v = value(id);
  const Value& m = value(v.inputs[1]);
  const std::string p = v.memory.pointer, scales = scales_of(id);
  code_.line(fmt("// $0 accumulates, rescaled to the running maximum", p));
  unit_.prelude.insert("t_exp_down");
  unit_.prelude.insert("t_max");
  const std::vector<int64_t> strides = contiguous_strides(m.shape());
  const std::string type = compute_type(v.dtype);
  if (scaled_.insert(scales).second) {
    Nest loops = nest();
    const std::vector<Expr> index = all_loops(loops, m.extents);
    const std::string x = loops.element(v.inputs[1], index);
    const std::string at = fmt("[$0]", Nest::offset(index, strides));
    const int level = loops.depth() - 1;
    loops.statement(level, fmt("const $0 old = $1m$2, top = t_max(old, $3);", type, scales, at, x));
    loops.statement(level, fmt("$0m$1 = top;", scales, at));
    loops.statement(level,
                    fmt("$0s$1 = old == top ? ($2)1 : t_exp_down(old - top);", scales, at, type));
    loops.statement(level,
                    fmt("$0p$1 = $2 == top ? ($3)1 : t_exp_down($2 - top);", scales, at, x, type));
    emit(loops);
  }
  Nest loops = nest();
  const std::vector<Extent>& extents = value(v.inputs[0]).extents;
  const std::vector<Expr> index = all_loops(loops, extents);
  std::vector<Expr> narrow;
  const size_t skip = index.size() - m.extents.size();
  for (size_t i = 0; i < m.extents.size(); ++i)
    narrow.push_back(m.extents[i].nominal == 1 ? Expr() : index[skip + i]);
  const std::string x = loops.element(v.inputs[0], index);
  const std::string at = fmt("$0[$1]", p, Nest::offset(index, v.memory.strides));
  const std::string by = fmt("[$0]", Nest::offset(narrow, strides));
  loops.statement(loops.depth() - 1, fmt("$0 = $0 * $1s$2 + $3 * $1p$2;", at, scales, by, x));
  emit(loops);
  touch(id);
  for (const char* part : {"m", "s", "p"}) touch(scales + part);
}

}  // namespace tessera
