// What happens to products while they are in registers: they are scaled, activated, reduced along
// their rows and stored by the threads that hold them, instead of through shared memory.
#include <algorithm>

#include "backend/cuda/block_emitter.h"

namespace tessera {
namespace {

// Registers of a thread that sums may take together, those kept for later steps included.
constexpr int kMostHeld = 160;

bool same_extents(const Value& a, const Value& b) {
  if (a.extents.size() != b.extents.size()) return false;
  for (size_t i = 0; i < a.extents.size(); ++i)
    if (a.extents[i].nominal != b.extents[i].nominal) return false;
  return true;
}

}  // namespace

// Rows and columns that the threads of a product hold, those beyond its end included.
std::pair<int64_t, int64_t> BlockEmitter::covered(const Units& u) const {
  const int64_t rows = u.row_units * (u.wide ? 64 : u.rows * (u.tensor_cores ? 16 : 1)),
                columns = u.column_units * u.columns * (u.tensor_cores ? 8 : 1);
  return u.swapped ? std::pair{columns, rows} : std::pair{rows, columns};
}

// The steps that use what `holder`, a product or its sum, holds; nothing if one of them needs it in
// memory.
std::optional<std::set<int>> BlockEmitter::fragment_steps(int holder, const Units& u,
                                                          int into) const {
  const Value& h = value(holder);
  const size_t rank = h.extents.size();
  std::set<int> steps, seen;
  std::vector<int> open = {holder};
  while (!open.empty()) {
    const int x = open.back();
    open.pop_back();
    for (int user : users_[size_t(x)]) {
      if (!needed_[size_t(user)] || !seen.insert(user).second) continue;
      const Value& v = value(user);
      if (user == into && x == holder) continue;
      if (is_reduction(v.kind)) {
        const auto& axes = std::get<ReduceAttrs>(v.attrs).axes;
        const bool rows = axes.size() == 1 && size_t(axes[0]) + 1 == rank;
        if (!rows || v.kind == OpKind::Mean) return std::nullopt;
        steps.insert(user);
        continue;
      }
      if (!same_extents(v, h)) return std::nullopt;
      if (is_store(v.kind)) {
        steps.insert(user);
      } else if (!has(v.kind, algebra::Pointwise)) {
        return std::nullopt;
      } else if (home(user) == Home::Inline) {
        open.push_back(user);
      } else {
        const auto [rows, columns] = covered(u);
        if (stored(user, rank - 2) > rows || stored(user, rank - 1) > columns) return std::nullopt;
        steps.insert(user);
      }
    }
  }
  return steps;
}

void BlockEmitter::choose_fragments() {
  const int count = int(kernel_.values.size());
  int held = 0;
  for (const auto& [product, u] : units_)
    if (u.registers) held += u.slots * u.numbers();
  for (int product = 0; product < count; ++product) {
    const auto at = units_.find(product);
    if (at == units_.end() || !at->second.tensor_cores) continue;
    Units& u = at->second;
    const bool sum = fused_[size_t(product)] >= 0;
    const int holder = sum ? fused_[size_t(product)] : product;
    if (operand_[size_t(holder)] || home(holder) != Home::Shared) continue;
    const int numbers = u.slots * u.numbers();
    if (sum ? !u.registers : held + numbers > kMostHeld) continue;
    const std::optional<std::set<int>> steps = fragment_steps(holder, u);
    if (!steps) continue;
    // Products that meet in a step must be held alike.
    const auto alike = [&](int other) {
      const Units& o = units_.at(other);
      return o.wide == u.wide && o.swapped == u.swapped && o.rows == u.rows &&
             o.columns == u.columns && o.row_units == u.row_units &&
             o.column_units == u.column_units && o.batch == u.batch;
    };
    if (std::ranges::any_of(*steps, [&](int s) {
          const auto found = held_for_.find(s);
          return found != held_for_.end() && !alike(units_of_.at(found->second[0]));
        }))
      continue;
    if (!sum) {
      held += numbers;
      u.registers = true;
    }
    home_[size_t(holder)] = Home::Fragment;
    value(holder).in_memory = false;
    units_of_[holder] = product;
    for (int s : *steps) held_for_[s].push_back(holder);
  }
}

// Two products of fragments, the second of which multiplies what is computed from the first element
// by element, are given to warps row by row, so that it can stay where it is: where there are rows
// for all warps and registers for whole rows.
void BlockEmitter::align_rows() {
  constexpr int kMostColumns = 16;  // fragments
  const auto row_by_row = [&](int product) -> std::optional<Units> {
    const auto at = units_.find(product);
    const Value& v = value(product);
    if (at == units_.end() || !at->second.tensor_cores || at->second.wide) return std::nullopt;
    Units u = at->second;
    const size_t rank = v.extents.size();
    u.rows = 1;
    u.row_units = ceil_div(v.extents[rank - 2].nominal, 16);
    u.columns = int(2 * ceil_div(v.extents[rank - 1].nominal, 16));
    u.column_units = 1;
    u.slots = int(ceil_div(u.units(), u.workers));
    if (u.columns > kMostColumns || u.units() < u.workers) return std::nullopt;
    return u;
  };
  for (int next = 0; next < int(kernel_.values.size()); ++next) {
    if (!needed_[size_t(next)] || value(next).kind != OpKind::Matmul) continue;
    const int operand = value(next).inputs[0];
    if (home(operand) != Home::Shared || !has(value(operand).kind, algebra::Pointwise)) continue;
    // The product that the operand is made of.
    int from = -1;
    std::vector<int> open = value(operand).inputs;
    while (!open.empty()) {
      const int x = open.back();
      open.pop_back();
      if (!same_extents(value(x), value(operand))) continue;
      if (is_product(value(x).kind)) from = x;
      if (home(x) == Home::Inline && has(value(x).kind, algebra::Pointwise))
        open.insert(open.end(), value(x).inputs.begin(), value(x).inputs.end());
    }
    if (from < 0 || fused_[size_t(from)] >= 0) continue;
    const std::optional<Units> first = row_by_row(from), second = row_by_row(next);
    if (!first || !second || !kept_as_rows(operand, *first, next, *second)) continue;
    const int sums = second->slots * second->numbers();
    if (2 * first->slots * first->numbers() + sums > kMostHeld) continue;
    units_[from] = *first;
    const bool registers = units_.at(next).registers;
    units_[next] = *second;
    units_[next].registers = registers && sums <= kMostHeld;
  }
}

// Whether product `next`, of units `o`, may take its left operand from the registers that `u` says
// who holds: each warp (or four) has whole rows, and computes the same rows of the result.
bool BlockEmitter::kept_as_rows(int id, const Units& u, int next, const Units& o) const {
  const Value &v = value(next), &x = value(id);
  if (v.kind != OpKind::Matmul || v.inputs[0] != id || v.inputs[1] == id ||
      v.phase.varies != x.phase.varies)
    return false;
  for (size_t i = 0; i + 2 < v.extents.size(); ++i)
    if (x.extents.size() != v.extents.size() || x.extents[i].nominal != v.extents[i].nominal)
      return false;
  return o.tensor_cores && o.tf32 == u.tf32 && o.wide == u.wide && !o.swapped && !u.swapped &&
         o.rows == u.rows && o.row_units == u.row_units && o.batch == u.batch &&
         o.slots == u.slots && o.workers == u.workers && o.column_units == 1 && u.column_units == 1;
}

// Probabilities of attention (FlashAttention-2, §3.3): what is computed from a product's fragments
// and is another's left operand stays in registers, where no one needs it elsewhere.
void BlockEmitter::keep_operands() {
  int held = 0;
  for (const auto& [product, u] : units_)
    if (u.registers) held += u.slots * u.numbers();
  for (int id = 0; id < int(kernel_.values.size()); ++id) {
    const auto found = held_for_.find(id);
    if (found == held_for_.end() || !operand_[size_t(id)] || home(id) != Home::Shared) continue;
    const int product = units_of_.at(found->second[0]);
    const Units u = units_.at(product);
    const auto next = std::ranges::find_if(users_[size_t(id)], [&](int user) {
      return needed_[size_t(user)] && is_product(value(user).kind);
    });
    if (next == users_[size_t(id)].end() || units_.count(*next) == 0 ||
        !kept_as_rows(id, u, *next, units_.at(*next)))
      continue;
    const int numbers = u.slots * u.numbers();
    const std::optional<std::set<int>> steps = fragment_steps(id, u, *next);
    if (!steps || held + numbers > kMostHeld) continue;
    held += numbers;
    home_[size_t(id)] = Home::Fragment;
    value(id).in_memory = false;
    units_of_[id] = product;
    for (int s : *steps) held_for_[s].push_back(id);
  }
}

Expr BlockEmitter::first_row(const Units& u) const {
  const auto [rows, columns] = covered(u);
  const Expr row = Expr::variable("row", {0, (u.swapped ? columns : rows) - 1});
  return u.wide ? row + Expr::variable("ts::warp()", {0, threads_ / 32 - 1}) % 4 * 16
                : row + Expr::variable("i", {0, u.rows - 1}) * 16;
}

std::pair<Expr, Expr> BlockEmitter::places_in_registers(const Units& u) const {
  const auto [rows, columns] = covered(u);
  const Expr y = Expr::variable("y", {0, (u.swapped ? columns : rows) - 1}),
             x = Expr::variable("x", {0, (u.swapped ? rows : columns) - 2}),
             in_pair = x + Expr::variable("e", {0, 1});
  return u.swapped ? std::pair(in_pair, y) : std::pair(y, in_pair);
}

Expr BlockEmitter::row_of_fragment(const Units& u) const {
  return first_row(u) + lane() / 4 + Expr::variable("h", {0, 1}) * 8;
}

// The number of a holder that belongs to those loops' variables.
std::string BlockEmitter::held_number(int holder, const Units& u) const {
  return "r" + n(holder) + "[s]" + (u.wide ? "[4 * j + 2 * h + e]" : "[i][j][2 * h + e]");
}

// The index, in a matrix of `v`, of what those loops have; along an axis of 1 it does not matter.
std::vector<Expr> BlockEmitter::index_in(const Value& v, const Expr& row,
                                         const Expr& column) const {
  std::vector<Expr> index = leading_;
  for (const Expr& i : {row, column}) {
    const int64_t extent = v.extents[index.size()].nominal;
    index.push_back(extent == 1 ? 0 : i.within(extent));
  }
  return index;
}

// Expressions over what `step` finds in registers.
Nest BlockEmitter::nest_over(int step, const Units& u, const std::vector<Expr>& index) {
  Nest loops = nest();
  for (int holder : held_for_.at(step)) loops.known(holder, index, held_number(holder, u));
  return loops;
}

void BlockEmitter::reads_held(int step) {
  for (int holder : held_for_.at(step)) holds(holder, false);
  reads_touched("");
}

// What keeps an element within the values `v` and `also`, and within the matrix.
Condition BlockEmitter::within(const Units& u, const Value& v, const Value* also,
                               const std::optional<Expr>& row,
                               const std::optional<Expr>& column) const {
  const auto [rows, columns] = covered(u);
  const size_t rank = v.extents.size();
  std::vector<std::string> seen;
  Condition inside;
  const auto add = [&](const Expr& i, const Expr& extent) {
    const Condition more(i.text() + " < " + extent.text());
    if (std::ranges::find(seen, more.text()) != seen.end()) return;
    seen.push_back(more.text());
    inside = inside && more;
  };
  for (size_t axis = 0; axis < rank; ++axis) {
    const bool last = axis + 1 == rank, matrix = axis + 2 >= rank;
    const std::optional<Expr> i = !matrix ? std::optional(leading_[axis]) : last ? column : row;
    if (!i) continue;
    const int64_t all = last ? columns : rows;
    if (matrix && all > v.extents[axis].nominal) add(*i, v.extents[axis].nominal);
    for (const Value* of : {&v, also})
      if (of != nullptr && !of->extents[axis].exact()) add(*i, of->extents[axis].expr());
  }
  return inside;
}

// Registers of a left operand: rows `i` of the unit, columns k…k+15. Of f32 columns k…k+7 in the
// order k, k+2, k+4, k+6, k+1, …, in which the fragment of a product holds them.
std::string BlockEmitter::rows_in_registers(int operand, const Units& u, const std::string& i,
                                            const std::string& k) const {
  std::string all;
  for (int r = 0; r < 4 && u.tf32; ++r)
    all += (r == 0 ? "" : ", ") + ("ts::to_tf32(r" + n(operand)) + "[s][" + i + "][" + k +
           " / 8][" + n(r % 2 * 2 + r / 2) + "])";
  for (int r = 0; r < 4 && !u.tf32; ++r) {
    const std::string j = k + " / 8" + (r < 2 ? "" : " + 1"), e = n(r % 2 * 2);
    const auto number = [&](const std::string& e) {
      return "r" + n(operand) + "[s]" +
             (u.wide ? "[4 * (" + j + ") + " + e + "]" : "[" + i + "][" + j + "][" + e + "]");
    };
    all += (r == 0 ? "" : ", ") +
           ("ts::pair_of<" + std::string(storage_type(value(operand).dtype, Dialect::Cuda))) +
           ">(" + number(e) + ", " + number(n(r % 2 * 2 + 1)) + ")";
  }
  return all;
}

void BlockEmitter::unrolled(const char* index, int64_t count) {
  const std::string i = index;
  code_.line("#pragma unroll");
  code_.open("for (int " + i + " = 0; " + i + " < " + n(count) + "; ++" + i + ")");
}

// What another product takes as its left operand, computed where the numbers are that it is made
// of; zero where it ends.
void BlockEmitter::hold_operand(int id) {
  const Value& v = value(id);
  const int product = units_of_.at(id);
  const Units& u = units_.at(product);
  begin("r" + n(id) + " " + shape_text(v) + ": " + name(v.kind) + ", stays in registers");
  code_.line(std::string(compute_type(v.dtype)) + " r" + n(id) + sums_shape(u) + ";");
  open_matrices(product);
  if (!u.wide) unrolled("i", u.rows);
  unrolled("j", u.columns);
  unrolled("h", 2);
  unrolled("e", 2);
  code_.line("const int y = " + row_of_fragment(u).text() +
             ", x = column + 8 * j + ts::lane() % 4 * 2 + e;");
  const auto [rows, columns] = covered(u);
  const Expr y = Expr::variable("y", {0, rows - 1}), c = Expr::variable("x", {0, columns - 1});
  const std::vector<Expr> index = index_in(v, y, c);
  const Condition inside = within(u, v, nullptr, y, c);
  const std::string number = held_number(id, u);
  if (!inside.always()) code_.line(number + " = 0;");
  code_.open_if(inside);
  Nest loops = nest_over(id, u, index);
  const std::string x = element(loops, id, index);
  loops.statement(-1, number + " = " + x + ";");
  loops.emit(code_);
  code_.close_if(inside);
  for (int i = u.wide ? 3 : 4; i > 0; --i) code_.close();
  code_.close(2);
  reads_held(id);
  holds(id, true);
  finish();
}

// Result or operand `id`, computed and stored number by number, or two neighbours of a row at once.
void BlockEmitter::store_held(int id) {
  if (as_matrices_.count(id) != 0) return store_as_matrices(id);
  const Value& v = value(id);
  const bool save = v.kind == OpKind::Save;
  const int product = units_of_.at(held_for_.at(id)[0]);
  const Units& u = units_.at(product);
  Memory m = v.memory;
  if (save) {
    begin("result " + n(v.argument - kernel_.operands) + ", from registers");
    m = open_result(id);
  } else {
    buffer(m.pointer, m.storage, memory_elements(id));
    begin(m.pointer + " " + shape_text(v) + ": " + name(v.kind) + ", from registers");
  }
  const Value* const also = save ? &value(v.inputs[0]) : nullptr;
  const size_t rank = v.extents.size();
  const bool pairs =
      !u.swapped && v.extents.back().nominal % 2 == 0 && v.extents.back().exact() &&
      (also == nullptr || also->extents.back().exact()) &&
      m.aligned >= 2 * size_in_bytes(m.storage) && m.strides.back() == 1 &&
      std::all_of(m.strides.begin(), m.strides.end() - 1, [](int64_t s) { return s % 2 == 0; });
  open_matrices(product);
  if (!u.wide) unrolled("i", u.rows);
  unrolled("j", u.columns);
  unrolled("h", 2);
  code_.line("const int y = " + row_of_fragment(u).text() +
             ", x = column + 8 * j + ts::lane() % 4 * 2;");
  const auto [row, column] = places_in_registers(u);
  const std::vector<Expr> index = index_in(v, row, column);
  // An operand is zero in what fills it up; beyond that there is no memory.
  const bool zeros = !save && operand_[size_t(id)];
  Value bounds = v;
  if (zeros)
    for (size_t axis = 0; axis < rank; ++axis) {
      bounds.extents[axis].nominal = stored(id, axis);
      bounds.extents[axis].actual.clear();
    }
  // Where a row or column of one is filled up, its zeros have places of their own.
  std::vector<Expr> place = index;
  if (zeros && stored(id, rank - 2) > 1) place[rank - 2] = row;
  if (zeros && stored(id, rank - 1) > 1) place[rank - 1] = column;
  const Expr x0 = Expr::variable("x", column.range());  // of a pair
  const Condition outer =
      zeros ? within(u, bounds, nullptr, row, pairs ? x0 : column) : Condition();
  const Condition inside = within(u, v, also, row, pairs ? std::nullopt : std::optional(column)),
                  beyond = pairs ? within(u, v, also, std::nullopt, x0) : Condition();
  Nest loops = nest_over(id, u, index);
  if (pairs) {
    const Condition all = inside && beyond;
    code_.open_if(outer);
    code_.line(std::string(compute_type(save ? also->dtype : v.dtype)) + " z[2]" +
               std::string(all.always() ? "" : " = {}") + ";");
    code_.open_if(all);
    unrolled("e", 2);
    const std::string x = save ? loops.element(v.inputs[0], index) : element(loops, id, index);
    loops.statement(-1, "z[e] = " + x + ";");
    loops.emit(code_);
    code_.close();
    if (!all.always() && zeros) code_.close();
    std::vector<Expr> first = place;
    if (!first.back().is(0)) first.back() = x0;
    code_.line(std::string(save ? "ts::store_global(" : "ts::store_shared(") +
               element_address(m, Nest::offset(first, m.strides)) + ", z);");
    if (!all.always() && !zeros) code_.close();
    code_.close_if(outer);
  } else {
    unrolled("e", 2);
    code_.open_if(outer);
    code_.open_if(inside);
    const std::string x = save ? loops.element(v.inputs[0], index) : element(loops, id, index);
    const Expr at = Nest::offset(place, m.strides);
    loops.statement(-1, store(m, at, x, prelude_));
    loops.emit(code_);
    if (!inside.always()) code_.close(zeros ? " else {" : "");
    if (zeros && !inside.always()) {
      code_.set_indent(code_.indent() + 1);
      code_.line(store(m, at, "0", prelude_));
      code_.close();
    }
    code_.close_if(outer);
    code_.close();
  }
  for (int i = u.wide ? 2 : 3; i > 0; --i) code_.close();
  code_.close(2);
  if (save) code_.close();
  reads_held(id);
  if (!save) writes(m.pointer, "");
  finish();
}

}  // namespace tessera
