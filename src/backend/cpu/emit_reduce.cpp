// Reductions and running sums inside a kernel.
#include <algorithm>

#include "backend/cpu/emitter.h"
#include "backend/fmt.h"

namespace tessera {
namespace {

// Sums of more 32-bit terms than this are added up in parts, and the parts in f64: rounding errors
// then grow with the length of a part.
constexpr int64_t kLongSum = 4096;

}  // namespace

std::string KernelEmitter::fetch_ahead(int id, const std::vector<Expr>& index) const {
  while (!value(id).in_memory) {
    const Value& v = value(id);
    if (!has(v.kind, algebra::Pointwise) || v.inputs.empty() ||
        std::ranges::any_of(v.inputs, [&](int i) { return i != v.inputs[0]; }))
      return "";
    id = v.inputs[0];
  }
  const Value& v = value(id);
  const size_t rank = v.extents.size();
  if (!is_operand(id) || shared_.count(id) != 0 || copies_.count(id) != 0 || rank < 2 ||
      rank != index.size() || v.memory.panel > 0 || v.memory.strides[rank - 1] != 1 ||
      v.memory.strides[rank - 2] != v.extents[rank - 1].nominal)
    return "";
  return fmt("__builtin_prefetch($0 + $1 + $2, 0, 2);", v.memory.pointer,
             Nest::offset(index, v.memory.strides),
             kDenseAheadBytes / size_in_bytes(v.memory.storage));
}

// A reduction as its loops see it.
struct KernelEmitter::Fold {
  Fold(const KernelEmitter& emitter, const Value& v, const Value& x)
      : extents(x.extents), from(v.inputs[0]), dtype(v.dtype),
        keeps(std::get<ReduceAttrs>(v.attrs).keepdims), gone(x.extents.size(), false) {
    const bool computed = real() || dtype == DType::I64;
    if (!is_sum(v.kind)) kind = *fold_of(v.kind);
    type = computed ? compute_type(dtype) : "int";
    cast = computed ? "" : "(int)";
    start = emitter.neutral(kind, dtype);
    for (int axis : std::get<ReduceAttrs>(v.attrs).axes) gone[size_t(axis)] = true;
    int64_t whole = 1;
    for (size_t i = 0; i < gone.size(); ++i) {
      if (!gone[i]) continue;
      terms *= extents[i].nominal;
      if (extents[i].exact())
        whole *= extents[i].nominal;
      else
        count += " * " + extents[i].text();
    }
    count = v.kind == OpKind::Mean ? fmt(" / ($0)($1$2)", type, whole, count) : "";
    inner = gone.size();
    for (size_t i = gone.size(); i-- > 0 && inner == gone.size();)
      if (extents[i].nominal != 1) inner = i;
  }

  bool sum() const { return kind == AccumKind::Sum; }
  bool real() const { return is_float(dtype); }
  // Loops over the axes that stay, or that go.
  void open(Nest& loops, std::vector<Expr>& index, bool going, size_t first_axes = 64) const {
    for (size_t i = 0; i < std::min(first_axes, gone.size()); ++i)
      if (gone[i] == going) index[i] = loops.loop(extents[i].expr());
  }
  // The result element, in such memory, for an index of the operand.
  std::string place(const Memory& memory, const std::vector<Expr>& index) const {
    std::vector<Expr> kept;
    for (size_t i = 0; i < gone.size(); ++i)
      if (!gone[i])
        kept.push_back(index[i]);
      else if (keeps)
        kept.emplace_back(0);
    return fmt("$0[$1]", memory.pointer, Nest::offset(kept, memory.strides));
  }
  std::string add(const std::string& at, const std::string& x) const {
    if (sum()) return fmt("$0 += $1;", at, x);
    const char* pick = kind == AccumKind::Max ? "t_max" : "t_min";
    return fmt("$0 = $1($2$0, $2$3);", at, pick, cast, x);
  }

  const std::vector<Extent>& extents;  // of the operand
  int from;
  DType dtype;
  AccumKind kind = AccumKind::Sum;
  bool keeps;
  std::vector<bool> gone;         // axes of the operand
  size_t inner = 0;               // the innermost axis that is not 1
  int64_t terms = 1;              // of a result
  std::string type, cast, start;  // of what is folded; to it; where it begins
  std::string count;              // the division of a mean
};

void KernelEmitter::reduce(int id, const Memory& to, bool accumulate) {
  const Value& v = value(id);
  const Fold fold(*this, v, value(v.inputs[0]));
  if (!fold.sum()) unit_.prelude.insert("t_max");
  const size_t inner = fold.inner;
  if (inner == fold.gone.size() || fold.gone[inner] || fold.extents[inner].nominal < 4)
    reduce_along(fold, to, accumulate);
  else
    reduce_across(fold, v, to, accumulate);
}

// One result element at a time; the innermost loop runs along the reduction.
void KernelEmitter::reduce_along(const Fold& fold, const Memory& to, bool accumulate) {
  const bool sum = fold.sum(), real = fold.real(), wide = fold.dtype == DType::F64;
  std::vector<Expr> index(fold.gone.size());
  Nest loops = nest();
  fold.open(loops, index, false);
  const int outside = loops.depth() - 1;
  const bool in_parts = sum && fold.type == "float" && fold.terms > kLongSum;
  int part = outside;  // the loop whose body adds up one part
  for (size_t i = 0; i < index.size(); ++i) {
    if (!fold.gone[i]) continue;
    const Expr n = fold.extents[i].expr();
    if (in_parts && i == fold.inner) {
      const Expr c = loops.loop((n + (kLongSum - 1)) / kLongSum);
      part = loops.depth() - 1;
      index[i] = loops.loop(least((c + 1) * kLongSum, n), c * kLongSum);
    } else {
      index[i] = loops.loop(n);
    }
  }
  const int inside = loops.depth() - 1;
  // Long rows: every lane of a vector has a sum of its own, and those are combined at the end.
  const int lanes = real && inside > part ? row_lanes(fold.extents[fold.inner], fold.dtype) : 0;
  const std::string by_lane = lanes > 0 ? "[lane]" : "";
  const auto variable = [&](int level, const std::string& type, const char* name,
                            const std::string& from) {
    if (lanes == 0) return loops.statement(level, fmt("$0 $1 = $2;", type, name, from));
    loops.statement(level, fmt("$0 $1[$2] __attribute__((aligned(64)));", type, name, lanes));
    loops.statement(level, fmt("for (int l = 0; l < $0; ++l) $1[l] = $2;", lanes, name, from));
  };
  const bool most = fold.kind == AccumKind::Max;
  std::string s = "s";
  if (lanes > 0) {
    unit_.prelude.insert("t_lanes");
    s = fmt("t_lanes<$0>(s)", sum ? "t_add" : most ? "t_most" : "t_fewest");
  }
  if (in_parts) {
    loops.statement(outside, "double total = 0;");
    loops.after(part, fmt("total += $0;", s));
    s = fold.count.empty() ? "(float)total" : "total";
  }
  variable(part, fold.type, "s", fold.start);
  if (!sum && real) variable(outside, wide ? "long" : "int", "undefined", "0");
  const std::string e = loops.element(fold.from, index);
  std::string clauses = "reduction(+ : s)";
  if (sum) {
    loops.statement(inside, fmt("s$0 += $1;", by_lane, e));
  } else {
    loops.statement(inside, fmt("s$0 = $1 $2 s$0 ? $1 : s$0;", by_lane, e, most ? ">" : "<"));
    clauses = most ? "reduction(max : s)" : "reduction(min : s)";
    if (real) {
      loops.statement(inside, fmt("undefined$0 |= $1 != $1;", by_lane, e));
      clauses += " reduction(| : undefined)";
    }
  }
  if (lanes > 0) {
    loops.set_lanes(lanes);
    if (const std::string ahead = fetch_ahead(fold.from, index); !ahead.empty())
      loops.around_vectors("// Dense rows of an operand: later ones are on their way.", ahead);
  } else if (inside > part && !(sum && kernel_.rounds && fold.terms < 8)) {  // NumPy's begin with 8
    loops.set_simd(clauses);
  } else {
    loops.no_simd();
  }
  s += fold.count;
  if (!sum && real)
    s = fmt("($0 ? __builtin_nan$1(\"\") : $2)", lanes > 0 ? "t_any(undefined)" : "undefined",
            wide ? "" : "f", s);
  const std::string at = fold.place(to, index);
  loops.after(outside, accumulate ? fold.add(at, s) : fmt("$0 = $1;", at, s));
  emit(loops);
}

// Whole rows of results at a time: the innermost loop runs across them.
void KernelEmitter::reduce_across(const Fold& fold, const Value& v, const Memory& to,
                                  bool accumulate) {
  std::vector<Expr> index(fold.gone.size());
  Memory into = to;
  const bool wide = fold.sum() && fold.type == "float" && fold.terms > kLongSum;
  // Tiles are summed by themselves: terms added to the sum of all before them would lose digits.
  const bool apart = wide || (fold.sum() && accumulate && fold.real());
  if (apart) {
    into.pointer = fmt("$0d$1", to.pointer, names_++);
    if (wide) into.storage = DType::F64;
    allocate(into.pointer, into.storage, buffer_elements(v));
  }
  const auto each_result = [&](const auto& statement) {
    Nest loops = nest();
    fold.open(loops, index, false);
    loops.statement(loops.depth() - 1, statement());
    emit(loops);
  };
  if (!accumulate || apart)
    each_result([&] { return fmt("$0 = $1;", fold.place(into, index), fold.start); });
  Nest loops = nest();
  fold.open(loops, index, false, fold.inner);
  fold.open(loops, index, true);
  index[fold.inner] = loops.loop(fold.extents[fold.inner].expr());
  for (size_t i = fold.inner + 1; i < index.size(); ++i) index[i] = 0;
  const std::string e = loops.element(fold.from, index);
  loops.statement(loops.depth() - 1, fold.add(fold.place(into, index), e));
  emit(loops);
  if (!fold.count.empty() || apart)
    each_result([&] {
      return fmt("$0 $1 $2$3;", fold.place(to, index), accumulate ? "+=" : "=",
                 fold.place(into, index), fold.count);
    });
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
                                   std::vector<Expr> index, int lanes, bool whole) {
  const Value& v = value(sum);
  const auto& a = std::get<ReduceAttrs>(v.attrs);
  allocate_value(sum);
  summed_.insert(sum);
  code_.line(fmt("// $0: sum", v.memory.pointer));
  std::vector<Expr> kept;
  for (size_t i = 0; i < index.size(); ++i)
    if (!std::ranges::binary_search(a.axes, int(i)))
      kept.push_back(index[i]);
    else if (a.keepdims)
      kept.emplace_back(0);
  const std::string s = "s" + std::to_string(names_++);
  const int inside = loops.depth() - 1;
  const std::string type = compute_type(v.dtype);
  const std::string at = fmt("$0[$1]", v.memory.pointer, Nest::offset(kept, v.memory.strides));
  if (lanes == 0) {
    loops.statement(inside - 1, fmt("$0 $1 = 0;", type, s));
    loops.statement(inside, fmt("$0 += $1;", s, x));
    loops.after(inside - 1, fmt("$0 = $1;", at, s));
    return fmt(" reduction(+ : $0)", s);
  }
  unit_.prelude.insert("t_lanes");
  const std::string n = std::to_string(lanes);
  if (whole) {
    loops.statement(inside - 1, fmt("t_floats $0 = {};", s));
    loops.after(inside - 1, fmt("float $0l[$1] __attribute__((aligned(64)));", s, n));
    loops.after(inside - 1, fmt("*(t_floats*)$0l = $0;", s));
    loops.after(inside - 1, fmt("$0 = t_lanes<t_add>($1l);", at, s));
    return fmt(" $0 += *(const t_floats*)out;", s);
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
  std::vector<Expr> index(v.extents.size());
  for (size_t i = 0; i < axis; ++i) index[i] = loops.loop(v.extents[i].expr());
  const int outside = loops.depth() - 1;
  for (size_t i = axis; i < v.extents.size(); ++i) index[i] = loops.loop(v.extents[i].expr());
  const int inside = loops.depth() - 1;
  const std::string x = loops.element(v.inputs[0], index);
  const std::string at = fmt("$0[$1]", v.memory.pointer, Nest::offset(index, v.memory.strides));
  const DType memory = v.memory.storage;
  const bool in_place = memory == DType::F32 || memory == DType::F64 || is_integer(memory);
  if (last && in_place && v.memory.strides[axis] == 1) {
    unit_.prelude.insert("t_running");
    std::vector<Expr> row = index;
    row[axis] = 0;
    loops.statement(inside, fmt("$0 = $1;", at, x));
    loops.after(outside,
                fmt("t_running<$0>(&$1[$2], $3);", is_integer(memory) ? "long" : "double",
                    v.memory.pointer, Nest::offset(row, v.memory.strides), v.extents[axis].text()));
  } else if (last) {
    loops.no_simd();
    loops.statement(outside, std::string(storage_type(running)) + " s = 0;");
    loops.statement(inside, fmt("s += $0;", x));
    loops.statement(inside, fmt("$0 = ($1)s;", at, type));
  } else {
    const int64_t row = v.memory.strides[axis];
    allocate(sums, running, row);
    std::vector<Expr> within = index;
    for (size_t i = 0; i <= axis; ++i) within[i] = 0;
    const std::string s = fmt("$0[$1]", sums, Nest::offset(within, v.memory.strides));
    loops.statement(outside, fmt("for (long j = 0; j < $0; ++j) $1[j] = 0;", row, sums));
    loops.statement(inside, fmt("$0 += $1;", s, x));
    loops.statement(inside, fmt("$0 = ($1)$2;", at, type, s));
  }
  emit(loops);
  if (!last) touch(sums);
  touch(id);
}

}  // namespace tessera
