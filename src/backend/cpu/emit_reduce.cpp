// Reductions and running sums inside a kernel.
#include <algorithm>

#include "backend/cpu/emitter.h"
#include "backend/fmt.h"
#include "base/check.h"

namespace tessera {
namespace {

// Sums of more 32-bit terms than this are added up in parts, and the parts in f64: rounding errors
// then grow with the length of a part.
constexpr int64_t kLongSum = 4096;

}  // namespace

std::string KernelEmitter::fetch_ahead(int id, const std::vector<Index>& index) const {
  while (!value(id).in_memory) {
    const Value& v = value(id);
    if (!has(v.kind, algebra::Pointwise) || v.inputs.empty() ||
        std::ranges::any_of(v.inputs, [&](int i) { return i != v.inputs[0]; }))
      return "";
    id = v.inputs[0];
  }
  const Value& v = value(id);
  const size_t rank = v.extents.size();
  if (v.kind != OpKind::Iter || shared_.count(id) != 0 || copies_.count(id) != 0 || rank < 2 ||
      rank != index.size() || v.memory.panel > 0 || v.memory.strides[rank - 1] != 1 ||
      v.memory.strides[rank - 2] != v.extents[rank - 1].nominal)
    return "";
  return fmt("__builtin_prefetch($0 + $1 + $2, 0, 2);", v.memory.pointer,
             Nest::offset(index, v.memory.strides).text,
             kDenseAheadBytes / size_in_bytes(v.memory.storage));
}

void KernelEmitter::reduce(int id, const Memory& to, bool accumulate) {
  const Value& v = value(id);
  const int from = v.inputs[0];
  const Value& x = value(from);
  const auto& a = std::get<ReduceAttrs>(v.attrs);
  const size_t rank = x.extents.size();
  const bool real = is_float(v.dtype);
  const bool sum = is_sum(v.kind);
  const AccumKind fold = sum ? AccumKind::Sum : *fold_of(v.kind);
  const std::string start = neutral(fold, v.dtype);
  const std::string type = real || v.dtype == DType::I64 ? compute_type(v.dtype) : "int";
  const std::string pick = fold == AccumKind::Max ? "t_max" : "t_min";
  const std::string cast = real || v.dtype == DType::I64 ? "" : "(int)";
  if (!sum) unit_.prelude.insert("t_max");

  std::vector<bool> gone(rank, false);
  for (int axis : a.axes) gone[size_t(axis)] = true;
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
    count = fmt("($0)($1$2)", type, whole, count);
  }
  // The result element, in such memory, for an index of the operand.
  const auto result_at = [&](const Memory& memory, const std::vector<Index>& index) {
    std::vector<Index> kept;
    for (size_t i = 0; i < rank; ++i)
      if (!gone[i])
        kept.push_back(index[i]);
      else if (a.keepdims)
        kept.push_back({});
    return fmt("$0[$1]", memory.pointer, Nest::offset(kept, memory.strides).text);
  };

  size_t inner = rank;  // innermost axis that is not 1
  for (size_t i = rank; i-- > 0 && inner == rank;)
    if (x.extents[i].nominal != 1) inner = i;
  std::vector<Index> index(rank);
  const bool along = inner == rank || gone[inner] || x.extents[inner].nominal < 4;
  if (along) {
    // One result element at a time; the innermost loop runs along the reduction.
    Nest loops = nest();
    for (size_t i = 0; i < rank; ++i)
      if (!gone[i]) index[i] = loops.loop(x.extents[i].text());
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
        const std::string c = loops.loop(fmt("($0 + $1 - 1) / $1", n, step)).text;
        part = loops.depth() - 1;
        const std::string to = fmt("($0 + 1)*$1", c, step);
        index[i] = loops.loop(fmt("($0 < $1 ? $0 : $1)", to, n), c + "*" + step);
      } else {
        index[i] = loops.loop(n);
      }
    }
    const int inside = loops.depth() - 1;
    // Long rows: every lane of a vector has a sum of its own, and those are combined at the end.
    const int lanes = real && inside > part ? row_lanes(x.extents[inner], v.dtype) : 0;
    const std::string by_lane = lanes > 0 ? "[lane]" : "",
                      count_of = "[" + std::to_string(lanes) + "]";
    const auto variable = [&](int level, const std::string& of_type, const std::string& name,
                              const std::string& from_value) {
      if (lanes == 0) return loops.statement(level, fmt("$0 $1 = $2;", of_type, name, from_value));
      loops.statement(level, fmt("$0 $1$2 __attribute__((aligned(64)));", of_type, name, count_of));
      loops.statement(level,
                      fmt("for (int l = 0; l < $0; ++l) $1[l] = $2;", lanes, name, from_value));
    };
    const std::string mark = v.dtype == DType::F64 ? "long" : "int";
    std::string combined = "s";
    if (lanes > 0) {
      unit_.prelude.insert("t_lanes");
      combined = sum                      ? "t_lanes<t_add>(s)"
                 : fold == AccumKind::Max ? "t_lanes<t_most>(s)"
                                          : "t_lanes<t_fewest>(s)";
    }
    if (in_parts) {
      loops.statement(outside, "double total = 0;");
      loops.after(part, "total += " + combined + ";");
    }
    variable(part, type, "s", start);
    if (!sum && real) variable(outside, mark, "undefined", "0");
    const std::string e = loops.element(from, index);
    std::string clauses;
    if (sum) {
      loops.statement(inside, fmt("s$0 += $1;", by_lane, e));
      clauses = "reduction(+ : s)";
    } else {
      const std::string op = fold == AccumKind::Max ? " > " : " < ";
      const std::string best = "s" + by_lane;
      loops.statement(inside, fmt("$0 = $1$2$0 ? $1 : $0;", best, e, op));
      clauses = fold == AccumKind::Max ? "reduction(max : s)" : "reduction(min : s)";
      if (real) {
        loops.statement(inside, fmt("undefined$0 |= $1 != $1;", by_lane, e));
        clauses += " reduction(| : undefined)";
      }
    }
    if (lanes > 0) {
      loops.set_lanes(lanes);
      if (const std::string ahead = fetch_ahead(from, index); !ahead.empty())
        loops.around_vectors("// Dense rows of an operand: later ones are on their way.", ahead);
    } else if (inside > part && !(sum && kernel_.rounds && terms < 8)) {  // NumPy's begin with 8
      loops.set_simd(clauses);
    } else {
      loops.no_simd();
    }
    std::string s = in_parts ? "(float)total" : combined;
    if (!count.empty()) s = (in_parts ? "total" : combined) + (" / " + count);
    if (!sum && real) {
      s = fmt("$0$1 : $2)", lanes > 0 ? "(t_any(undefined) ? " : "(undefined ? ",
              v.dtype == DType::F64 ? "__builtin_nan(\"\")" : "__builtin_nanf(\"\")", s);
    }
    const std::string at = result_at(to, index);
    if (!accumulate)
      loops.after(outside, fmt("$0 = $1;", at, s));
    else if (sum)
      loops.after(outside, fmt("$0 += $1;", at, s));
    else
      loops.after(outside, fmt("$0 = $1($2$0, $2$3);", at, pick, cast, s));
    emit(loops);
    return;
  }
  // Whole rows of results at a time: the innermost loop runs across them.
  int64_t terms = 1;
  for (size_t i = 0; i < rank; ++i) terms *= gone[i] ? x.extents[i].nominal : 1;
  Memory into = to;
  const bool wide = sum && type == "float" && terms > kLongSum;
  // Tiles are summed by themselves: terms added to the sum of all before them would lose digits.
  const bool apart = wide || (sum && accumulate && is_float(v.dtype));
  if (apart) {
    into.pointer = to.pointer + "d" + std::to_string(names_++);
    if (wide) into.storage = DType::F64;
    allocate(into.pointer, into.storage, buffer_elements(v));
  }
  if (!accumulate || apart) {
    Nest clear = nest();
    for (size_t i = 0; i < rank; ++i)
      if (!gone[i]) index[i] = clear.loop(x.extents[i].text());
    clear.statement(clear.depth() - 1, fmt("$0 = $1;", result_at(into, index), start));
    emit(clear);
  }
  Nest loops = nest();
  for (size_t i = 0; i < inner; ++i)
    if (!gone[i]) index[i] = loops.loop(x.extents[i].text());
  for (size_t i = 0; i < rank; ++i)
    if (gone[i]) index[i] = loops.loop(x.extents[i].text());
  index[inner] = loops.loop(x.extents[inner].text());
  for (size_t i = inner + 1; i < rank; ++i) index[i] = {};
  const std::string e = loops.element(from, index);
  const std::string at = result_at(into, index);
  const int level = loops.depth() - 1;
  if (sum)
    loops.statement(level, fmt("$0 += $1;", at, e));
  else
    loops.statement(level, fmt("$0 = $1($2$0, $2$3);", at, pick, cast, e));
  emit(loops);
  if (!count.empty() || apart) {
    Nest finish = nest();
    for (size_t i = 0; i < rank; ++i)
      if (!gone[i]) index[i] = finish.loop(x.extents[i].text());
    finish.statement(finish.depth() - 1,
                     fmt("$0$1$2$3;", result_at(to, index), accumulate ? " += " : " = ",
                         result_at(into, index), count.empty() ? "" : " / " + count));
    emit(finish);
  }
  if (apart) touch(into.pointer);
}

std::vector<int> KernelEmitter::sums_along(int id) const {
  const Value& v = value(id);
  std::vector<int> found;
  size_t inner = v.extents.size();
  for (size_t i = v.extents.size(); i-- > 0 && inner == v.extents.size();)
    if (v.extents[i].nominal != 1) inner = i;
  // Where both are at home, the sum is next to come anyway.
  if (inner == v.extents.size() || v.phase.varies != region_loops_ || !is_float(v.dtype) ||
      v.extents[inner].nominal < 4 || v.extents[inner].nominal > kLongSum)
    return found;
  for (int user : users_[size_t(id)]) {
    const Value& u = value(user);
    if (u.kind != OpKind::Sum || !needed_[size_t(user)] || fused_[size_t(user)] >= 0 ||
        shared_.count(user) != 0 || !(u.phase == v.phase))
      continue;
    const auto& axes = std::get<ReduceAttrs>(u.attrs).axes;
    const bool along = std::ranges::binary_search(axes, int(inner));
    const bool only = std::ranges::all_of(
        axes, [&](int axis) { return axis == int(inner) || v.extents[size_t(axis)].nominal == 1; });
    if (along && only) found.push_back(user);
  }
  return found;
}

std::string KernelEmitter::row_sum(Nest& loops, int sum, const std::string& x,
                                   std::vector<Index> index, int lanes, bool whole) {
  const Value& v = value(sum);
  const auto& a = std::get<ReduceAttrs>(v.attrs);
  allocate_value(sum);
  summed_.insert(sum);
  code_.line("// " + v.memory.pointer + ": sum");
  std::vector<Index> kept;
  for (size_t i = 0; i < index.size(); ++i)
    if (!std::ranges::binary_search(a.axes, int(i)))
      kept.push_back(index[i]);
    else if (a.keepdims)
      kept.push_back({});
  const std::string s = "s" + std::to_string(names_++);
  const int inside = loops.depth() - 1;
  const std::string type = compute_type(v.dtype);
  const std::string at = fmt("$0[$1]", v.memory.pointer, Nest::offset(kept, v.memory.strides).text);
  if (lanes == 0) {
    loops.statement(inside - 1, fmt("$0 $1 = 0;", type, s));
    loops.statement(inside, fmt("$0 += $1;", s, x));
    loops.after(inside - 1, fmt("$0 = $1;", at, s));
    return " reduction(+ : " + s + ")";
  }
  unit_.prelude.insert("t_lanes");
  const std::string n = std::to_string(lanes);
  if (whole) {
    loops.statement(inside - 1, "t_floats " + s + " = {};");
    loops.after(inside - 1, fmt("float $0l[$1] __attribute__((aligned(64)));", s, n));
    loops.after(inside - 1, fmt("*(t_floats*)$0l = $0;", s));
    loops.after(inside - 1, fmt("$0 = t_lanes<t_add>($1l);", at, s));
    return " " + s + " += *(const t_floats*)out;";
  }
  loops.statement(inside - 1, fmt("$0 $1[$2] __attribute__((aligned(64)));", type, s, n));
  loops.statement(inside - 1, fmt("for (int l = 0; l < $0; ++l) $1[l] = 0;", n, s));
  loops.statement(inside, fmt("$0[lane] += $1;", s, x));
  loops.after(inside - 1, fmt("$0 = t_lanes<t_add>($1);", at, s));
  return "";
}

int KernelEmitter::row_lanes(const Extent& along, DType dtype) const {
  const DType compute = compute_dtype(dtype);
  if (compute != DType::F32 && compute != DType::F64) return 0;
  const int lanes = lanes_of(unit_.isa, compute);
  return along.nominal >= 2 * lanes ? lanes : 0;
}

void KernelEmitter::cumsum(int id) {
  const Value& v = value(id);
  const size_t axis = size_t(std::get<AxisAttrs>(v.attrs).axis);
  const bool last = std::all_of(v.extents.begin() + long(axis) + 1, v.extents.end(),
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
  const std::string at =
      fmt("$0[$1]", v.memory.pointer, Nest::offset(index, v.memory.strides).text);
  if (last) {
    loops.no_simd();
    loops.statement(outside, std::string(storage_type(running)) + " s = 0;");
    loops.statement(inside, "s += " + x + ";");
    loops.statement(inside, fmt("$0 = ($1)s;", at, type));
  } else {
    const int64_t row = v.memory.strides[axis];
    allocate(sums, running, row);
    std::vector<Index> within = index;
    for (size_t i = 0; i <= axis; ++i) within[i] = {};
    const std::string s = fmt("$0[$1]", sums, Nest::offset(within, v.memory.strides).text);
    loops.statement(outside, fmt("for (long j = 0; j < $0; ++j) $1[j] = 0;", row, sums));
    loops.statement(inside, fmt("$0 += $1;", s, x));
    loops.statement(inside, fmt("$0 = ($1)$2;", at, type, s));
  }
  emit(loops);
  if (!last) touch(sums);
  touch(id);
}

}  // namespace tessera
