// Single values of a kernel: where each is computed, and in whose memory.
#include "backend/cpu/emitter.h"
#include "backend/fmt.h"

#include <algorithm>
#include <functional>

namespace tessera {

void KernelEmitter::compute(int id) {
  const Value& v = value(id);
  if (is_operand(id) && shared_.count(id) != 0) return workspace_pointer(id);
  if (is_operand(id)) {
    tile(id);
    pack_tile(id);
    if (copies_.count(id) != 0) copy_tile(id);
    return;
  }
  if (is_store(v.kind)) return save(id);
  if (is_accumulator(v.kind)) return accumulate(id);
  if (!v.in_memory) return;  // computed where it is used
  if (summed_.erase(id) > 0) return;
  if (const std::optional<int> operand = dying_operand(id)) {
    code_.line(fmt("// $0 is written over $1", v.memory.pointer, value(*operand).memory.pointer));
    kernel_.values[size_t(id)].memory = value(*operand).memory;
  } else {
    allocate_value(id);
  }
  const char* kind = name(v.kind);
  code_.line(fmt("// $0: $1", v.memory.pointer, kind));
  if (is_product(v.kind)) return product(id, v.memory, false);
  if (is_reduction(v.kind)) return reduce(id, v.memory, false);
  if (is_scan(v.kind)) return cumsum(id);
  if (transpose(id) || concatenate(id)) return;
  Nest loops = nest();
  const std::vector<Expr> index = all_loops(loops, v.extents);
  const std::string x = elementwise(loops, id, index);
  const std::vector<int> sums = sums_along(id);
  size_t inner = v.extents.size();  // the axis of the innermost loop
  while (inner > 0 && v.extents[inner - 1].nominal == 1) --inner;
  const int lanes = inner == 0 ? 0 : row_lanes(v.extents[inner - 1], v.dtype);
  const Expr at = Nest::offset(index, v.memory.strides);
  // Rounded, and added up, by the vector.
  const bool rounds = lanes > 0 && v.memory.storage == DType::BF16 && panels_take_bf16(unit_.isa);
  std::string clauses, whole = fmt("t_round_bf16($0 + $1, out, count);", v.memory.pointer, at);
  if (!rounds)
    loops.statement(loops.depth() - 1, store(v.memory, at, x, unit_.prelude));
  else
    loops.statement(loops.depth() - 1, fmt("out[lane] = $0;", x));
  for (int sum : sums) (rounds ? whole : clauses) += row_sum(loops, sum, x, index, lanes, rounds);
  if (rounds) {
    unit_.prelude.insert("t_round_bf16");
    loops.around_vectors("float out[16] __attribute__((aligned(64))) = {};", whole);
  }
  if (lanes > 0 && (rounds || !sums.empty()))
    loops.set_lanes(lanes);
  else if (!sums.empty())
    loops.set_simd(clauses);
  emit(loops);
  touch(id);
  for (int sum : sums) touch(sum);
}

bool KernelEmitter::transpose(int id) {
  const Value& v = value(id);
  if (v.kind != OpKind::Transpose || size_in_bytes(v.memory.storage) == 1) return false;
  const std::optional<Memory> from = view(v.inputs[0]);
  if (!from || from->storage != v.memory.storage) return false;
  // Strides of the operand along the result's axes; the innermost one must be far apart and some
  // other contiguous.
  const std::vector<int64_t> strides = turned_strides(v, from->strides);
  const size_t last = strides.size() - 1;
  size_t row = last;
  for (size_t i = 0; i < last; ++i)
    if (strides[i] == 1 && v.extents[i].nominal >= 8) row = i;
  if (row == last || strides[last] == 1 || v.extents[last].nominal < 8) return false;
  unit_.prelude.insert("t_transpose");
  Nest loops = nest();
  std::vector<Expr> index(v.extents.size());
  for (size_t i = 0; i < last; ++i)
    if (i != row) index[i] = loops.loop(v.extents[i].expr());
  loops.no_simd();
  touched_.push_back(v.inputs[0]);
  for (int through = v.inputs[0]; !value(through).in_memory;) {
    through = value(through).inputs[0];
    touched_.push_back(through);
  }
  loops.statement(loops.depth() - 1,
                  fmt("t_transpose<$0>($1 + $2, $3, $4 + $5, $6, $7, $8);",
                      storage_type(from->storage), from->pointer, Nest::offset(index, strides),
                      strides[last], v.memory.pointer, Nest::offset(index, v.memory.strides),
                      v.memory.strides[row], v.extents[row].text(), v.extents[last].text()));
  emit(loops);
  touch(id);
  return true;
}

bool KernelEmitter::concatenate(int id) {
  const Value& v = value(id);
  if (v.kind != OpKind::Concat) return false;
  const size_t axis = size_t(std::get<AxisAttrs>(v.attrs).axis);
  int64_t start = 0;
  for (int input : v.inputs) {
    Nest loops = nest();
    std::vector<Extent> extents = v.extents;
    extents[axis] = value(input).extents[axis];
    const std::vector<Expr> index = all_loops(loops, extents);
    const Expr at = Nest::offset(index, v.memory.strides) + start * v.memory.strides[axis];
    const std::string x = loops.element(input, index);
    loops.statement(loops.depth() - 1, store(v.memory, at, x, unit_.prelude));
    emit(loops);
    start += extents[axis].nominal;
  }
  touch(id);
  return true;
}

std::string KernelEmitter::elementwise(Nest& loops, int id, const std::vector<Expr>& index) {
  // The value itself counts as virtual while it is computed.
  kernel_.values[size_t(id)].in_memory = false;
  const std::string x = loops.element(id, index);
  kernel_.values[size_t(id)].in_memory = true;
  return x;
}

std::optional<int> KernelEmitter::dying_operand(int id) const {
  const Value& v = value(id);
  // Only where no loop computes either of them a second time.
  const unsigned every_loop = (1u << kernel_.loops.size()) - 1;
  const bool pointwise = has(v.kind, algebra::Pointwise);
  if (!pointwise || v.phase.varies != every_loop || region_loops_ != every_loop ||
      shared_.count(id) != 0)
    return std::nullopt;
  const auto same_extents = [&](const Value& x) {
    return std::equal(x.extents.begin(), x.extents.end(), v.extents.begin(), v.extents.end(),
                      [](const Extent& a, const Extent& b) { return a.text() == b.text(); });
  };
  // What is read at the index that is written, and what is read elsewhere too.
  std::set<int> here, elsewhere;
  const std::function<void(int, bool)> walk = [&](int i, bool aligned) {
    const Value& x = value(i);
    aligned = aligned && same_extents(x);
    if (x.in_memory) {
      (aligned ? here : elsewhere).insert(i);
      return;
    }
    for (int input : x.inputs) walk(input, aligned && has(x.kind, algebra::Pointwise));
  };
  for (int input : v.inputs) walk(input, true);
  const std::function<bool(int)> read_later = [&](int i) {
    const std::vector<int>& users = users_[size_t(i)];
    return std::ranges::any_of(users, [&](int user) {
      const Value& u = value(user);
      if (!needed_[size_t(user)] || user == id) return false;
      const int fused = fused_[size_t(user)];
      if (fused >= 0) return computed_.count(fused) == 0;
      if (u.in_memory || is_store(u.kind)) return computed_.count(user) == 0;
      return read_later(user);
    });
  };
  for (int i : here) {
    const Value& x = value(i);
    const bool own =
        !is_operand(i) && !is_accumulator(x.kind) && shared_.count(i) == 0 && fused_[size_t(i)] < 0;
    if (own && elsewhere.count(i) == 0 && x.phase == v.phase &&
        x.memory.storage == v.memory.storage && x.memory.panel == 0 && !read_later(i))
      return i;
  }
  return std::nullopt;
}

}  // namespace tessera
