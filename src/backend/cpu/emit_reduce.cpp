// Reductions and running sums inside a kernel.
#include <algorithm>

#include "backend/cpu/emitter.h"
#include "base/check.h"

namespace tessera {
namespace {

// Sums of more 32-bit terms than this are added up in parts, and the parts in f64: rounding errors
// then grow with the length of a part.
constexpr int64_t kLongSum = 4096;

}  // namespace

void KernelEmitter::reduce(int id, const Memory& to, bool accumulate) {
  const Value& v = value(id);
  const int from = v.inputs[0];
  const Value& x = value(from);
  const auto& a = std::get<ReduceAttrs>(v.attrs);
  const size_t rank = x.extents.size();
  const bool real = is_float(v.dtype);
  const bool sum = v.kind == OpKind::Sum || v.kind == OpKind::Mean;
  const AccumKind fold = sum                           ? AccumKind::Sum
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
      if (x.extents[i].exact())
        whole *= x.extents[i].nominal;
      else
        count += " * " + x.extents[i].text();
    }
    count = "(" + type + ")(" + std::to_string(whole) + count + ")";
  }
  // Offset of the result element for an index of the operand.
  const auto target = [&](const std::vector<Index>& index) {
    std::vector<Index> kept;
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i])
        kept.push_back(index[i]);
      else if (a.keepdims)
        kept.push_back({});
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
    int64_t terms = 1;
    for (size_t i = 0; i < rank; ++i) terms *= gone[i] ? x.extents[i].nominal : 1;
    const bool in_parts = sum && type == "float" && terms > kLongSum;
    int part = outside;  // the loop whose body adds up one part
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i]) continue;
      const std::string n = x.extents[i].text();
      if (in_parts && i == inner) {
        const std::string step = std::to_string(kLongSum);
        const std::string c = loops.loop("(" + n + " + " + step + " - 1) / " + step).text;
        part = loops.depth() - 1;
        const std::string to = "(" + c + " + 1)*" + step;
        index[i] = loops.loop("(" + to + " < " + n + " ? " + to + " : " + n + ")", c + "*" + step);
      } else {
        index[i] = loops.loop(n);
      }
    }
    const int inside = loops.depth() - 1;
    if (in_parts) {
      loops.statement(outside, "double total = 0;");
      loops.after(part, "total += s;");
    }
    loops.statement(part, type + " s = " + start + ";");
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
    if (inside > part) {
      loops.set_simd(clauses);
    } else {
      loops.no_simd();
    }
    std::string s = in_parts ? "(float)total" : "s";
    if (!count.empty()) s = (in_parts ? "total" : "s") + (" / " + count);
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
  int64_t terms = 1;
  for (size_t i = 0; i < rank; ++i) terms *= gone[i] ? x.extents[i].nominal : 1;
  Memory into = to;
  const bool wide = sum && type == "float" && terms > kLongSum;
  if (wide) {
    into.pointer = to.pointer + "d" + std::to_string(names_++);
    into.storage = DType::F64;
    allocate(into.pointer, DType::F64, buffer_elements(v));
  }
  const auto result_at = [&](const Memory& memory) {
    std::vector<Index> kept;
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i])
        kept.push_back(index[i]);
      else if (a.keepdims)
        kept.push_back({});
    }
    return memory.pointer + "[" + Nest::offset(kept, memory.strides).text + "]";
  };
  if (!accumulate || wide) {
    Nest clear = nest();
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i]) index[i] = clear.loop(x.extents[i].text());
    }
    clear.statement(clear.depth() - 1, result_at(into) + " = " + start + ";");
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
  const std::string at = result_at(into);
  const int level = loops.depth() - 1;
  if (sum) {
    loops.statement(level, at + " += " + e + ";");
  } else {
    loops.statement(level, at + " = " + pick + "(" + cast + at + ", " + cast + e + ");");
  }
  emit(loops);
  if (!count.empty() || wide) {
    Nest finish = nest();
    for (size_t i = 0; i < rank; ++i) {
      if (!gone[i]) index[i] = finish.loop(x.extents[i].text());
    }
    finish.statement(finish.depth() - 1, result_at(to) + (accumulate ? " += " : " = ") +
                                             result_at(into) +
                                             (count.empty() ? "" : " / " + count) + ";");
    emit(finish);
  }
  if (wide) touch(into.pointer);
}

void KernelEmitter::cumsum(int id) {
  const Value& v = value(id);
  const size_t axis = static_cast<size_t>(std::get<AxisAttrs>(v.attrs).axis);
  const bool last = std::all_of(v.extents.begin() + static_cast<long>(axis) + 1, v.extents.end(),
                                [](const Extent& e) { return e.nominal == 1; });
  // Running sums are kept in f64: as running sums in f32 they would drift.
  const std::string type = compute_type(v.dtype);
  const DType running = v.memory.storage == DType::F32 ? DType::F64 : v.memory.storage;
  const std::string sums = v.memory.pointer + "r";
  Nest loops = nest();
  std::vector<Index> index(v.extents.size());
  for (size_t i = 0; i < axis; ++i) index[i] = loops.loop(v.extents[i].text());
  const int outside = loops.depth() - 1;
  for (size_t i = axis; i < v.extents.size(); ++i) index[i] = loops.loop(v.extents[i].text());
  const int inside = loops.depth() - 1;
  const std::string x = loops.element(v.inputs[0], index);
  const std::string at = v.memory.pointer + "[" + Nest::offset(index, v.memory.strides).text + "]";
  if (last) {
    loops.no_simd();
    loops.statement(outside, std::string(storage_type(running)) + " s = 0;");
    loops.statement(inside, "s += " + x + ";");
    loops.statement(inside, at + " = (" + type + ")s;");
  } else {
    const int64_t row = v.memory.strides[axis];
    allocate(sums, running, row);
    std::vector<Index> within = index;
    for (size_t i = 0; i <= axis; ++i) within[i] = {};
    const std::string s = sums + "[" + Nest::offset(within, v.memory.strides).text + "]";
    loops.statement(outside,
                    "for (long j = 0; j < " + std::to_string(row) + "; ++j) " + sums + "[j] = 0;");
    loops.statement(inside, s + " += " + x + ";");
    loops.statement(inside, at + " = (" + type + ")" + s + ";");
  }
  emit(loops);
  if (!last) touch(sums);
  touch(id);
}

}  // namespace tessera
