// Where the values of a block live, and how products are given to warps and threads.
#include <algorithm>

#include "backend/cuda/block_emitter.h"
#include "cost/block_values.h"

namespace tessera {
BlockEmitter::BlockEmitter(const KernelValues& kernel, const EmitLimits& limits,
                           std::set<std::string>& prelude)
    : kernel_(kernel), limits_(limits), prelude_(prelude) {
  choose_threads();
  copy_operands();
  users_ = kernel_.users();
  const size_t count = kernel_.values.size();
  needed_.assign(count, false);
  home_.assign(count, Home::None);
  fused_.assign(count, -1);
  for (size_t i = count; i-- > 0;) {
    const Value& v = kernel_.values[i];
    if (is_store(v.kind)) needed_[i] = true;
    if (!needed_[i]) continue;
    for (int input : v.inputs) needed_[size_t(input)] = true;
  }
  decide();
  align_rows();
  choose_fragments();
  keep_operands();
  choose_boxes();
  plan_layouts();
}

void BlockEmitter::choose_threads() {
  int64_t most = 0;
  for (size_t i = 0; i < kernel_.values.size(); ++i) {
    const Value& v = kernel_.values[i];
    const int64_t elements = v.elements();
    most = std::max(most, is_product(v.kind) ? 2 * elements : elements);
  }
  threads_ = limits_.threads > 0 ? limits_.threads : most > 16384 ? 256 : 128;
}

std::vector<BlockEmitter::Pair> BlockEmitter::pairs(const Value& v) const {
  if (v.kind == OpKind::Matmul) return {{v.inputs[0], v.inputs[1]}};
  return {{v.inputs[0], v.inputs[2]}, {v.inputs[1], v.inputs[3]}};
}

bool BlockEmitter::tensor_cores(const Value& v) const {
  return is_product(v.kind) && (is_sixteen(v.dtype) || (v.dtype == DType::F32 && limits_.tf32));
}

BlockEmitter::Units BlockEmitter::units(const Value& v, bool accumulates) const {
  if (const std::optional<Units> wide = wide_units(v, accumulates)) return *wide;
  Units u;
  u.tensor_cores = tensor_cores(v);
  u.tf32 = u.tensor_cores && v.dtype == DType::F32;
  const size_t rank = v.extents.size();
  for (size_t i = 0; i + 2 < rank; ++i) u.batch *= v.extents[i].nominal;
  const int64_t m = ceil_div(v.extents[rank - 2].nominal, u.tensor_cores ? 16 : 1);
  // Two fragments for every 16 columns: so much is filled with zeros where the result is an
  // operand.
  const int64_t columns =
      u.tensor_cores ? 2 * ceil_div(v.extents[rank - 1].nominal, 16) : v.extents[rank - 1].nominal;
  u.workers = u.tensor_cores ? threads_ / 32 : threads_;
  const int most = u.tensor_cores ? 16 : 32;  // fragments, or numbers, of a unit
  double best = 0;
  for (int r = 1; r <= 8; r *= 2)
    for (int c = 1; c <= 8; c *= 2) {
      if (r * c > most || (r > 1 && r >= 2 * m) || (c > 1 && c >= 2 * columns)) continue;
      const int64_t row_units = ceil_div(m, r), column_units = ceil_div(columns, c);
      const double rounds = double(ceil_div(row_units * column_units * u.batch, u.workers));
      const double cost = rounds * (r * c + 0.6 * (r + (u.tensor_cores ? 0.5 : 1) * c));
      if (best != 0 && cost >= best) continue;
      best = cost;
      u.rows = r, u.columns = c;
      u.row_units = row_units, u.column_units = column_units;
      u.slots = int(rounds);
    }
  u.registers = accumulates && u.slots * u.numbers() <= kMostSums;
  return u;
}

std::optional<Memory> BlockEmitter::view(int id) const {
  const Value& v = value(id);
  if (home(id) == Home::Tile || home(id) == Home::Shared) return v.memory;
  if (home(id) != Home::Inline) return std::nullopt;
  if (!turns_axes(v.kind)) return std::nullopt;
  std::optional<Memory> m = view(v.inputs[0]);
  if (m) m->strides = turned_strides(v, m->strides);
  return m;
}

// Gives a value memory of its own; how it lies there is decided for all together (plan_layouts). An
// operand of tensor cores has rows and columns of whole fragments, filled up with zeros.
void BlockEmitter::place_shared(int id, bool operand) {
  Value& v = value(id);
  v.in_memory = true;
  v.memory.pointer = "v" + n(id);
  v.memory.space = Space::Shared;
  v.memory.storage = operand || home(id) == Home::Tile ? v.dtype : compute_dtype(v.dtype);
}

int BlockEmitter::work_inline(int id) const {
  if (home(id) != Home::Inline) return 0;
  const Value& v = value(id);
  int sum = element_work(v.kind);
  for (int input : v.inputs) sum += work_inline(input);
  return sum;
}

int64_t BlockEmitter::stored(int id, size_t axis) const {
  const Value& v = value(id);
  const int64_t nominal = v.extents[axis].nominal;
  return fragment_[size_t(id)] && axis + 2 >= v.extents.size() ? ceil_div(nominal, 16) * 16
                                                               : nominal;
}

// Views of a product's operand down to what has memory of its own.
int BlockEmitter::operand_source(int input, bool tensor_cores) const {
  for (int at = input;;) {
    const Value& x = value(at);
    const size_t rank = x.extents.size();
    const bool through = turns_axes(x.kind);
    if (!through) return at;
    const Value& y = value(x.inputs[0]);
    if (y.extents.size() < 2) return at;
    // Only where the innermost axis of the memory stays one of the two that count.
    const int last = int(y.extents.size()) - 1;
    if (x.kind == OpKind::Transpose) {
      const auto& perm = std::get<PermAttrs>(x.attrs).perm;
      const int right = perm[rank - 1], left = perm[rank - 2];
      if (right != last && left != last) return at;
      // Rows of fragments are those of the memory.
      if (tensor_cores && (right == last ? left : right) != last - 1) return at;
    } else {
      const size_t r = x.kind == OpKind::Unsqueeze ? rank : y.extents.size();
      for (int a : std::get<AxesAttrs>(x.attrs).axes)
        if (size_t(a) + 2 >= r) return at;
    }
    at = x.inputs[0];
  }
}

// Operands that are added up first are copied: to 16 bits for tensor cores, and with zeros where a
// tile ends early.
void BlockEmitter::copy_operands() {
  std::map<int, int> copy_of;
  for (const Value& v : kernel_.values) {
    if (!is_product(v.kind)) continue;
    for (int input : v.inputs) {
      const int source = operand_source(input, tensor_cores(v));
      const OpKind kind = value(source).kind;
      if ((is_accumulator(kind) && tensor_cores(v)) || is_reduction(kind) || is_scan(kind))
        copy_of[source] = -1;
    }
  }
  if (copy_of.empty()) return;
  std::vector<Value> values;
  std::vector<int> to, plain;  // what a value has become, for products and for others
  for (size_t i = 0; i < kernel_.values.size(); ++i) {
    Value v = kernel_.values[i];
    // Views are copied along, one of the sum and one of its copy.
    const bool product = is_product(v.kind);
    for (int& input : v.inputs) input = product ? to[size_t(input)] : plain[size_t(input)];
    const bool view = turns_axes(v.kind);
    values.push_back(v);
    plain.push_back(int(values.size()) - 1);
    to.push_back(plain.back());
    if (view &&
        to[size_t(kernel_.values[i].inputs[0])] != plain[size_t(kernel_.values[i].inputs[0])]) {
      v.inputs[0] = to[size_t(kernel_.values[i].inputs[0])];
      values.push_back(v);
      to.back() = int(values.size()) - 1;
    }
    if (copy_of.count(int(i)) == 0) continue;
    Value copy = v;
    copy.kind = OpKind::Cast;
    copy.attrs = CastAttrs{v.dtype};
    copy.inputs = {plain.back()};
    copy.in_memory = false;
    values.push_back(copy);
    to.back() = int(values.size()) - 1;
  }
  kernel_.values = std::move(values);
}

void BlockEmitter::decide() {
  const int count = int(kernel_.values.size());
  // What products read, through views; what tensor cores read is kept in 16 bits.
  operand_.assign(size_t(count), false);
  fragment_.assign(size_t(count), false);
  for (int i = 0; i < count; ++i) {
    const Value& v = value(i);
    if (!needed_[size_t(i)] || !is_product(v.kind)) continue;
    for (int input : v.inputs) {
      const int at = operand_source(input, tensor_cores(v));
      operand_[size_t(at)] = true;
      if (tensor_cores(v)) fragment_[size_t(at)] = true;
    }
  }
  const auto uses = [&](int id) {
    return sum_of<int>(users_[size_t(id)], [&](int user) { return needed_[size_t(user)] ? 1 : 0; });
  };
  // Products and reductions that are added to an accumulator and have no other use.
  for (int i = 0; i < count; ++i) {
    const Value& v = value(i);
    if (!needed_[size_t(i)] || !is_accumulator(v.kind)) continue;
    const int from = v.inputs[0];
    const Value& x = value(from);
    const AccumKind kind = std::get<AccumAttrs>(v.attrs).kind;
    if (uses(from) != 1 || x.phase.varies != update_loops(v) || v.kind != OpKind::Accum) {
      const bool rescaled = v.kind == OpKind::AccumRescale && is_product(x.kind) &&
                            uses(from) == 1 && x.phase.varies == update_loops(v);
      if (!rescaled) continue;
      const Units u = units(x, true);
      if (!u.registers) continue;
      fused_[size_t(from)] = i;
      units_[from] = u;
      continue;
    }
    if (is_product(x.kind) && kind == AccumKind::Sum) {
      fused_[size_t(from)] = i;
      units_[from] = units(x, true);
    } else if (is_reduction(x.kind) && fold_of(x.kind) == kind) {
      fused_[size_t(from)] = i;
    }
  }
  for (int i = 0; i < count; ++i) {
    Value& v = value(i);
    if (!needed_[size_t(i)]) continue;
    Home& h = home_[size_t(i)];
    if (is_store(v.kind)) {
      h = Home::Stored;
    } else if (is_load(v.kind)) {
      // Tiles that are read once go past shared memory.
      h = operand_[size_t(i)] || uses(i) > 1 ? Home::Tile : Home::Direct;
      if (h == Home::Direct) {
        v.in_memory = true;
        v.memory = kernel_.argument_memory(v.argument, "v" + n(i));
        v.memory.space = Space::Global;
        v.memory.aligned = piece_bytes(i);
        continue;
      }
      place_shared(i, fragment_[size_t(i)]);
    } else if (is_accumulator(v.kind) || is_product(v.kind) || is_reduction(v.kind) ||
               is_scan(v.kind) || operand_[size_t(i)]) {
      h = Home::Shared;
      if (fused_[size_t(i)] >= 0) {
        h = Home::None;
        continue;
      }
      if (is_product(v.kind)) units_.try_emplace(i, units(v, false));
      place_shared(i, fragment_[size_t(i)]);
    } else {
      h = Home::Inline;
      const bool leaf = is_literal(v.kind);
      if (leaf) continue;
      bool repeated = uses(i) > 1, outside = false;
      for (int user : users_[size_t(i)]) {
        if (!needed_[size_t(user)]) continue;
        repeated = repeated || value(user).elements() > v.elements();
        outside = outside || (update_loops(value(user)) & ~v.phase.varies) != 0;
      }
      if (kept_in_memory(work_inline(i), repeated, outside)) {
        h = Home::Shared;
        place_shared(i, false);
      }
    }
  }
}

}  // namespace tessera
