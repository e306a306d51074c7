// Matrix products: by tensor cores, a warp to a unit of fragments, or by plain multiply-adds, a
// thread to a unit of numbers.

#include "backend/cuda/block_emitter.h"
#include "base/check.h"

namespace tessera {

// Of the sums of one unit.
std::string BlockEmitter::unit_shape(const Units& u) const {
  if (u.wide) return "[" + n(u.numbers()) + "]";
  return "[" + n(u.rows) + "][" + n(u.columns) + "]" + (u.tensor_cores ? "[4]" : "");
}

std::string BlockEmitter::sums_shape(const Units& u) const {
  return "[" + n(u.slots) + "]" + unit_shape(u);
}

// The indices of the leading axes of a unit's matrix.
void BlockEmitter::know_matrix(int product) {
  const Value& v = value(product);
  std::vector<Extent> leading(v.extents.begin(), v.extents.end() - 2);
  for (Extent& e : leading) e.actual.clear();
  leading_ = indices(leading, Expr::variable("matrix", {0, elements_of(leading) - 1}));
}

// For each unit of the worker: its first row and column, and which of the matrices it is of.
void BlockEmitter::open_units(const Units& u) {
  const int row = u.wide           ? 64
                  : u.tensor_cores ? 16 * u.rows
                                   : 1,
            column = u.tensor_cores ? 8 * u.columns : 1;
  const std::string worker = u.wide           ? "ts::warp() / 4"
                             : u.tensor_cores ? "ts::warp()"
                                              : "ts::thread()";
  if (u.slots > 1) {
    if (u.registers) code_.line("#pragma unroll");
    code_.open("for (int s = 0; s < " + n(u.slots) + "; ++s)");
  } else {
    code_.open("");
    code_.line("const int s = 0;");
  }
  code_.line("const int u = " + worker + (u.slots > 1 ? " + s * " + n(u.workers) : "") + ";");
  code_.open(int64_t(u.slots) * u.workers == u.units() ? "" : "if (u < " + n(u.units()) + ")");
  const Expr unit = Expr::variable("u", {0, u.units() - 1});
  code_.line("const int column = " + (unit % u.column_units * column).text() +
             ", row = " + (unit / u.column_units % u.row_units * row).text() + ";");
  if (u.batch > 1)
    code_.line("const int matrix = " + (unit / (u.row_units * u.column_units)).text() + ";");
}

void BlockEmitter::open_matrices(int product) {
  open_units(units_.at(product));
  know_matrix(product);
}

void BlockEmitter::product(int id, int into) {
  const Units u = units_.at(id);
  const Value& v = value(id);
  const Memory& m = value(into).memory;
  if (!u.registers && into == id) buffer(m.pointer, m.storage, memory_elements(into));
  std::string refused;
  if (!u.wide) wide_units(v, false, &refused);
  begin("v" + n(into) + " " + shape_text(v) + (into == id ? ": " : " += ") + name(v.kind) + ", " +
        (u.wide ? "64×" + n(8 * u.columns) + " by four warps" + (u.swapped ? ", transposed" : "")
         : u.tensor_cores ? "fragments of 16×8, " + n(u.rows) + "×" + n(u.columns) + " a warp" +
                                (u.tf32 ? ", factors rounded to tf32" : "")
                          : n(u.rows) + "×" + n(u.columns) + " a thread") +
        (refused.empty() ? "" : "; " + refused));
  if (into == id && home(id) == Home::Fragment)
    code_.line(std::string(compute_type(v.dtype)) + " r" + n(id) + sums_shape(u) + " = {};");
  open_units(u);
  const std::string sums =
      u.registers && value(into).kind != OpKind::AccumRescale ? "r" + n(into) + "[s]" : "d";
  if (sums == "d") code_.line(std::string(compute_type(v.dtype)) + " d" + unit_shape(u) + " = {};");
  know_matrix(id);
  int number = 0;
  if (u.wide) wide_fragments(id, u, sums);
  for (const Pair& pair : pairs(v)) {
    if (u.wide) continue;
    if (u.tensor_cores)
      fragments(id, pair, u, sums, number++);
    else
      scalars(id, pair, u, sums);
  }
  if (u.registers && sums == "d")
    rescale_sums(id, into, u);
  else if (!u.registers)
    store_sums(id, into, u, sums, into != id);
  code_.close(2);
  for (const Pair& pair : pairs(v))
    for (int operand : {pair.left, pair.right})
      if (home(operand) == Home::Fragment)
        holds(operand, false);
      else
        reads(view(operand)->pointer, "", u.wide);
  if (u.registers)
    holds(into, true);
  else
    writes(m.pointer, into == id ? "" : "units of " + m.pointer);
  if (value(into).kind == OpKind::AccumRescale)
    for (const char* part : {"s", "p"}) reads(scales_of(into) + part, "");
  finish();
}

// Pointer to the operand's matrix that belongs to the unit's.
Expr BlockEmitter::matrix_of(int operand, const Memory& m) const {
  const Value& x = value(operand);
  const size_t axes = x.extents.size() - 2, skip = leading_.size() - axes;
  std::vector<Expr> index;
  std::vector<int64_t> strides;
  for (size_t i = 0; i < axes; ++i) {
    index.push_back(x.extents[i].nominal == 1 ? Expr() : leading_[skip + i]);
    strides.push_back(m.strides[i]);
  }
  return Nest::offset(index, strides);
}

void BlockEmitter::fragments(int id, const Pair& pair, const Units& u, const std::string& sums,
                             int number) {
  const Value& v = value(id);
  const std::string type = storage_type(v.dtype, Dialect::Cuda);
  const auto tile = [&](int operand, const char* side) {
    const std::optional<Memory> m = view(operand);
    CHECK(m) << "an operand of a product has no memory";
    const int64_t row = m->strides[m->strides.size() - 2], column = m->strides.back();
    const bool transposed = column != 1;
    CHECK(!transposed || row == 1 || u.tf32) << "an operand of tensor cores lies across";
    const Expr offset = matrix_of(operand, *m);
    const std::string matrix = m->pointer + (offset.is(0) ? "" : " + " + offset.text());
    if (u.tf32) {
      code_.line("const ts::Tile32<" + n(row) + ", " + n(column) + ", " + n(m->swizzle_shift) +
                 ", " + n(m->swizzle_mask) + "> " + side + n(number) + "{" + matrix + "};");
      return;
    }
    const bool blocks = m->box_columns > m->swizzle_mask + 8;
    code_.line("const ts::Tile<" + type + ", " + n(transposed ? column : row) + ", " +
               n(m->swizzle_shift) + ", " + n(m->swizzle_mask) + ", " +
               (transposed ? "true" : "false") + (blocks ? ", " + n(m->box_rows) : "") + "> " +
               side + n(number) + "{" + matrix + "};");
  };
  const bool kept = home(pair.left) == Home::Fragment;
  if (!kept) tile(pair.left, "left");
  tile(pair.right, "right");
  const Value& x = value(pair.left);
  const size_t rank = v.extents.size();
  const int64_t step = u.tf32 ? 8 : 16, depth = ceil_div(x.extents.back().nominal, step) * step;
  const int64_t rows = ceil_div(v.extents[rank - 2].nominal, 16) * 16,
                columns = ceil_div(v.extents[rank - 1].nominal, 16) * 16;
  const bool more_rows = u.row_units * u.rows * 16 > rows,
             more_columns = u.column_units * u.columns * 8 > columns;
  if (kept && depth > step) code_.line("#pragma unroll");
  if (depth > step)
    code_.open("for (int k = 0; k < " + n(depth) + "; k += " + n(step) + ")");
  else
    code_.open("");
  if (depth == step) code_.line("const int k = 0;");
  code_.line("unsigned a[" + n(u.rows) + "][4], b[" + n(u.columns) + "][2];");
  const std::string row = "row + 16 * i", column = "column + 8 * j";
  unrolled("i", u.rows);
  if (kept) {
    code_.line("const unsigned rows[4] = {" + rows_in_registers(pair.left, u, "i", "k") + "};");
    code_.line("for (int r = 0; r < 4; ++r) a[i][r] = rows[r];");
  } else {
    code_.line("left" + n(number) + ".left(a[i], " +
               (more_rows ? "ts::least(" + row + ", " + n(rows - 16) + ")" : row) + ", k);");
  }
  code_.close();
  unrolled("j", u.columns);
  code_.line("right" + n(number) + (kept && u.tf32 ? ".right_in_pairs" : ".right") + "(b[j], k, " +
             (more_columns ? "ts::least(" + column + ", " + n(columns - 8) + ")" : column) + ");");
  code_.close();
  unrolled("i", u.rows);
  unrolled("j", u.columns);
  code_.line("ts::multiply_add(" + sums + "[i][j], a[i], b[j], " + (u.tf32 ? "ts::tf32" : type) +
             "{});");
  code_.close(3);
}

void BlockEmitter::scalars(int id, const Pair& pair, const Units& u, const std::string& sums) {
  const Value& v = value(id);
  const size_t rank = v.extents.size();
  const std::optional<Memory> left = view(pair.left), right = view(pair.right);
  CHECK(left && right) << "an operand of a product has no memory";
  const Value &x = value(pair.left), &y = value(pair.right);
  const Extent& k = x.extents.back().exact() ? y.extents[y.extents.size() - 2] : x.extents.back();
  const std::string type = compute_type(v.dtype);
  const int64_t rows = v.extents[rank - 2].nominal, columns = v.extents[rank - 1].nominal;
  code_.open("for (int k = 0; k < " + k.text() + "; ++k)");
  code_.line(type + " a[" + n(u.rows) + "], b[" + n(u.columns) + "];");
  // Neighbouring threads have neighbouring rows and columns, those of one thread lie apart.
  const auto along = [&](const char* first, const char* i, int64_t step, int count,
                         int64_t extent) {
    const Expr at = Expr::variable(first, {0, step - 1}) + Expr::variable(i, {0, count - 1}) * step;
    return least(at, extent - 1);
  };
  const auto element = [&](int operand, const Memory& m, const Expr& row, const Expr& column) {
    return load(m,
                matrix_of(operand, m) +
                    Nest::offset({row, column}, {m.strides.end() - 2, m.strides.end()}),
                prelude_);
  };
  const Expr depth = Expr::variable("k", {0, k.nominal - 1});
  unrolled("i", u.rows);
  code_.line("a[i] = " +
             element(pair.left, *left, along("row", "i", u.row_units, u.rows, rows), depth) + ";");
  code_.close();
  unrolled("j", u.columns);
  code_.line(
      "b[j] = " +
      element(pair.right, *right, depth, along("column", "j", u.column_units, u.columns, columns)) +
      ";");
  code_.close();
  unrolled("i", u.rows);
  unrolled("j", u.columns);
  code_.line(sums + "[i][j] += a[i] * b[j];");
  code_.close(3);
}

// Runs `inside` for every number of the unit that lies in the matrix: its name, its indices.
void BlockEmitter::each_sum(
    int id, const Units& u, const std::string& sums, bool padded,
    const std::function<void(const std::string&, const std::vector<Expr>&)>& inside) {
  const Value& v = value(id);
  const size_t rank = v.extents.size();
  int64_t rows = v.extents[rank - 2].nominal, columns = v.extents[rank - 1].nominal;
  if (padded) rows = ceil_div(rows, 16) * 16, columns = ceil_div(columns, 16) * 16;
  if (u.swapped) std::swap(rows, columns);
  if (!u.wide) unrolled("i", u.rows);
  unrolled("j", u.columns);
  std::string number = sums + "[i][j]";
  if (u.tensor_cores) {
    unrolled("e", 4);
    const Expr e = Expr::variable("e", {0, 3});
    code_.line("const int y = " + (first_row(u) + lane() / 4 + e / 2 * 8).text() +
               ", x = column + 8 * j + ts::lane() % 4 * 2 + e % 2;");
    number = u.wide ? sums + "[4 * j + e]" : number + "[e]";
  } else {
    code_.line("const int y = row + i * " + n(u.row_units) + ", x = column + j * " +
               n(u.column_units) + ";");
  }
  auto [covered_rows, covered_columns] = covered(u);
  if (u.swapped) std::swap(covered_rows, covered_columns);
  const Expr y = Expr::variable("y", {0, covered_rows - 1}),
             x = Expr::variable("x", {0, covered_columns - 1});
  const Condition within = y < Expr(rows) && x < Expr(columns);
  code_.open_if(within);
  std::vector<Expr> index = leading_;
  index.push_back(u.swapped ? x.within(columns) : y.within(rows));
  index.push_back(u.swapped ? y.within(rows) : x.within(columns));
  inside(number, index);
  code_.close_if(within);
  if (u.tensor_cores) code_.close();
  if (!u.wide) code_.close();
  code_.close();
}

void BlockEmitter::store_sums(int id, int into, const Units& u, const std::string& sums,
                              bool accumulates) {
  const Memory& m = value(into).memory;
  each_sum(id, u, sums, fragment_[size_t(into)],
           [&](const std::string& number, const std::vector<Expr>& index) {
             const Expr at = Nest::offset(index, m.strides);
             std::string x = number;
             Condition only;
             if (accumulates && value(into).kind == OpKind::AccumRescale)
               x = load(m, at, prelude_) + " * " + factor(into, "s", index) + " + " + number +
                   " * " + factor(into, "p", index),
               only = guard(value(id).extents, index);
             else if (accumulates)
               x = load(m, at, prelude_) + " + " + number;
             code_.line((only.always() ? "" : "if (" + only.text() + ") ") +
                        store(m, at, x, prelude_));
           });
}

void BlockEmitter::rescale_sums(int id, int into, const Units& u) {
  each_sum(
      id, u, "d", false,
      [&](const std::string& number, const std::vector<Expr>& index) {
        const std::string sum = "r" + n(into) + "[s]" + number.substr(1);
        // Rows beyond the end of a shorter tile have no scales.
        const Condition inside = guard(value(id).extents, index);
        code_.line((inside.always() ? "" : "if (" + inside.text() + ") ") + sum + " = " + sum +
                   " * " + factor(into, "s", index) + " + " + number + " * " +
                   factor(into, "p", index) + ";");
      });
}

// Sums leave the registers for shared memory, where any thread finds them.
void BlockEmitter::spill(int accumulator) {
  const int from = value(accumulator).inputs[0];
  const Units& u = units_.at(from);
  const Memory& m = value(accumulator).memory;
  buffer(m.pointer, m.storage, memory_elements(accumulator));
  begin(m.pointer + ": from registers");
  open_matrices(from);
  store_sums(from, accumulator, u, "r" + n(accumulator) + "[s]", false);
  code_.close(2);
  holds(accumulator, false);
  writes(m.pointer, "");
  finish();
}

}  // namespace tessera
