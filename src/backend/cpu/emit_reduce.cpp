// Reductions and running sums inside a kernel.
#include <algorithm>

#include "backend/cpu/emitter.h"
#include "base/check.h"

namespace tessera {

void KernelEmitter::reduce(int id, const Memory& to, bool accumulate) {
  const Value& v = value(id);
  const int from = v.inputs[0];
  const Value& x = value(from);
  const auto& a = std::get<ReduceAttrs>(v.attrs);
  const size_t rank = x.extents.size();
  const bool real = is_float(v.dtype);
  const bool sum = v.kind == OpKind::Sum || v.kind == OpKind::Mean;
  const AccumKind fold = sum                             ? AccumKind::Sum
                         : v.kind == OpKind::ReduceMax ? AccumKind::Max
                                                       : AccumKind::Min;
  const std::string start = neutral(fold, v.dtype);
  const std::string type = real || v.dtype == DType::I64 ? compute_type(v.dtype) : "int";
  const std::string pick = fold == AccumKind::Max ? "t_max" : "t_min";
  const std::string cast = real || v.dtype == DType::I64 ? "" : "(int)";
  if (!sum) unit_.prelude.insert("t_max");

  std::vector<bool> gone(rank, false);
  for (int axis : a.axes) gone[static_cast<size_t>(axis)] = true;
  // Number of elements that a mean divides by.
  std::string count;
  if (v.kind == OpKind::Mean) {
    int64_t whole = 1;
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i]) continue;
      if (x.extents[i].exact()) whole *= x.extents[i].nominal;
      else count += " * " + x.extents[i].text();
    }
    count = "(" + type + ")(" + std::to_string(whole) + count + ")";
  }
  // Offset of the result element for an index of the operand.
  const auto target = [&](const std::vector<Index>& index) {
    std::vector<Index> kept;
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i]) kept.push_back(index[i]);
      else if (a.keepdims) kept.push_back({});
    }
    return to.pointer + "[" + Nest::offset(kept, to.strides).text + "]";
  };

  size_t inner = rank;  // innermost axis that is not 1
  for (size_t i = rank; i-- > 0 && inner == rank;) {
    if (x.extents[i].nominal != 1) inner = i;
  }
  std::vector<Index> index(rank);
  const bool along = inner == rank || gone[inner] || x.extents[inner].nominal < 4;
  if (along) {
    // One result element at a time; the innermost loop runs along the reduction.
    Nest loops = nest();
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i]) index[i] = loops.loop(x.extents[i].text());
    }
    const int outside = loops.depth() - 1;
    for (size_t i = 0; i < rank; ++i) {
      if (gone[i]) index[i] = loops.loop(x.extents[i].text());
    }
    const int inside = loops.depth() - 1;
    loops.statement(outside, type + " s = " + start + ";");
    if (!sum && real) loops.statement(outside, "int undefined = 0;");
    const std::string e = loops.element(from, index);
    std::string clauses;
    if (sum) {
      loops.statement(inside, "s += " + e + ";");
      clauses = "reduction(+ : s)";
    } else {
      const std::string op = fold == AccumKind::Max ? " > " : " < ";
      loops.statement(inside, "s = " + e + op + "s ? " + e + " : s;");
      clauses = fold == AccumKind::Max ? "reduction(max : s)" : "reduction(min : s)";
      if (real) {
        loops.statement(inside, "undefined |= " + e + " != " + e + ";");
        clauses += " reduction(| : undefined)";
      }
    }
    if (inside > outside) {
      loops.set_simd(clauses);
    } else {
      loops.no_simd();
    }
    std::string s = "s";
    if (!count.empty()) s = "s / " + count;
    if (!sum && real) {
      s = std::string("(undefined ? ") +
          (v.dtype == DType::F64 ? "__builtin_nan(\"\")" : "__builtin_nanf(\"\")") + " : s)";
    }
    const std::string at = target(index);
    if (!accumulate) {
      loops.after(outside, at + " = " + s + ";");
    } else if (sum) {
      loops.after(outside, at + " += " + s + ";");
    } else {
      loops.after(outside, at + " = " + pick + "(" + cast + at + ", " + cast + s + ");");
    }
    emit(loops);
    return;
  }
  // Whole rows of results at a time: the innermost loop runs across them.
  if (!accumulate) {
    Nest clear = nest();
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i]) index[i] = clear.loop(x.extents[i].text());
    }
    clear.statement(clear.depth() - 1, target(index) + " = " + start + ";");
    emit(clear);
  }
  Nest loops = nest();
  for (size_t i = 0; i < inner; ++i) {
    if (!gone[i]) index[i] = loops.loop(x.extents[i].text());
  }
  for (size_t i = 0; i < rank; ++i) {
    if (gone[i]) index[i] = loops.loop(x.extents[i].text());
  }
  index[inner] = loops.loop(x.extents[inner].text());
  for (size_t i = inner + 1; i < rank; ++i) index[i] = {};
  const std::string e = loops.element(from, index);
  const std::string at = target(index);
  const int level = loops.depth() - 1;
  if (sum) {
    loops.statement(level, at + " += " + e + ";");
  } else {
    loops.statement(level, at + " = " + pick + "(" + cast + at + ", " + cast + e + ");");
  }
  emit(loops);
  if (!count.empty()) {
    Nest scale = nest();
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i]) index[i] = scale.loop(x.extents[i].text());
    }
    const std::string result = target(index);
    scale.statement(scale.depth() - 1, result + " = " + result + " / " + count + ";");
    emit(scale);
  }
}

void KernelEmitter::cumsum(int id) {
  const Value& v = value(id);
  const size_t axis = static_cast<size_t>(std::get<AxisAttrs>(v.attrs).axis);
  const bool last = std::all_of(v.extents.begin() + static_cast<long>(axis) + 1, v.extents.end(),
                                [](const Extent& e) { return e.nominal == 1; });
  Nest loops = nest();
  std::vector<Index> index(v.extents.size());
  for (size_t i = 0; i < axis; ++i) index[i] = loops.loop(v.extents[i].text());
  const int outside = loops.depth() - 1;
  for (size_t i = axis; i < v.extents.size(); ++i) index[i] = loops.loop(v.extents[i].text());
  const int inside = loops.depth() - 1;
  const std::string x = loops.element(v.inputs[0], index);
  const std::string at = Nest::offset(index, v.memory.strides).text;
  if (last) {
    loops.no_simd();
    loops.statement(outside, std::string(compute_type(v.dtype)) + " s = 0;");
    loops.statement(inside, "s += " + x + ";");
    loops.statement(inside, v.memory.pointer + "[" + at + "] = s;");
  } else {
    const std::string before = v.memory.pointer + "[" + at + " - " + std::to_string(v.memory.strides[axis]) + "]";
    const std::string zero = "(" + std::string(compute_type(v.dtype)) + ")0";
    loops.statement(inside, v.memory.pointer + "[" + at + "] = (" + index[axis].text + " > 0 ? " +
                                before + " : " + zero + ") + " + x + ";");
  }
  emit(loops);
  touch(id);
}

}  // namespace tessera
