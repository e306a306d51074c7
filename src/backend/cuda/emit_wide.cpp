// What only Hopper has: products of four warps (wgmma) whose operands lie in swizzled boxes, and
// tiles that the asynchronous proxy brings as boxes (TMA), told to barriers in shared memory.

#include "backend/cuda/block_emitter.h"
#include "base/check.h"

namespace tessera {
namespace {

constexpr int64_t kMostBox = 256;  // rows or columns of a box

// Columns that four warps multiply at once; wgmma has all multiples of 8.
bool has_width(int64_t n) { return n % 16 == 0 && n <= 256; }

// The widest boxes of swizzled rows that make up so many columns.
int box_width(int64_t columns) { return columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16; }

}  // namespace

// One side has 64 rows at once, the other 8 to 256 columns: where few rows meet many columns, the
// transposed product is computed. Nothing where neither side is made of 64s, or where an operand
// would have to be divided within a box.
std::optional<BlockEmitter::Units> BlockEmitter::wide_units(const Value& v, bool accumulates,
                                                            std::string* why) const {
  const auto refused = [&](const std::string& reason) {
    if (why != nullptr) *why = "not by four warps: " + reason;
    return std::nullopt;
  };
  if (!limits_.arch.wide_products() || !tensor_cores(v) || v.dtype == DType::F32)
    return std::nullopt;
  const size_t rank = v.extents.size();
  Units u;
  u.tensor_cores = u.wide = true;
  u.workers = threads_ / 128;
  int64_t rows = v.extents[rank - 2].nominal, columns = v.extents[rank - 1].nominal;
  if (rows % 64 != 0) {
    std::swap(rows, columns);
    u.swapped = true;
  }
  if (rows % 64 != 0)
    return refused("neither " + n(columns) + " rows nor " + n(rows) + " columns are made of 64s");
  columns = ceil_div(columns, 16) * 16;  // as operands are filled up
  for (size_t i = 0; i + 2 < rank; ++i) u.batch *= v.extents[i].nominal;
  u.row_units = rows / 64;
  int64_t width = columns;
  const auto worth = [&] {
    return !has_width(width) || u.row_units * u.batch * (columns / width) < u.workers;
  };
  while (worth() && width % 128 == 0) width /= 2;
  if (!has_width(width) && columns % 64 == 0) width = 64;
  if (!has_width(width)) return refused("they have no width of " + n(width) + " columns");
  u.column_units = columns / width;
  u.columns = int(width / 8);
  u.slots = int(ceil_div(u.units(), u.workers));
  u.registers = accumulates && u.slots * u.numbers() <= kMostSums;
  return u;
}

// --- boxes ---------------------------------------------------------------------------------------

// Elements from row to row of an operand whose leading axes are merged into rows; nothing where
// it has no such rows, as slices of inner axes have not.
std::optional<int64_t> BlockEmitter::row_pitch(int id) const {
  const std::vector<int64_t>& whole = kernel_.argument_extents[size_t(value(id).argument)];
  const std::vector<int64_t> pitch = kernel_.argument_pitch(value(id).argument);
  if (whole.size() < 2 || pitch.back() != 1) return std::nullopt;
  size_t last = whole.size() - 2;
  for (size_t axis = last + 1; axis-- > 0;)
    if (whole[axis] != 1) {
      last = axis;
      break;
    }
  if (pitch[last] == 0) return std::nullopt;  // an empty array
  for (size_t axis = 0; axis < last; ++axis)
    if (whole[axis] != 1 && pitch[axis] % pitch[last] != 0) return std::nullopt;
  return pitch[last];
}

int64_t BlockEmitter::rows_of_map(int id) const {
  const std::vector<int64_t>& whole = kernel_.argument_extents[size_t(value(id).argument)];
  const std::vector<int64_t> pitch = kernel_.argument_pitch(value(id).argument);
  int64_t last = 0;
  for (size_t axis = 0; axis + 1 < whole.size(); ++axis) last += (whole[axis] - 1) * pitch[axis];
  return last / *row_pitch(id) + 1;
}

// Whether a tile's boxes show what the tile does, and zeros beyond.
bool BlockEmitter::boxes_fit(int id) const {
  const Value& v = value(id);
  const std::vector<int64_t>& whole = kernel_.argument_extents[size_t(v.argument)];
  const size_t rank = whole.size();
  const int64_t size = size_in_bytes(v.dtype);
  const auto pitch = row_pitch(id);
  if (!pitch || v.phase.varies == 0 || *pitch * size % 16 != 0 ||
      kernel_.argument_offset(v.argument) * size % 16 != 0)
    return false;
  int64_t matrices = 1;
  for (size_t axis = 0; axis + 2 < rank; ++axis) matrices *= whole[axis];
  for (size_t axis = 0; axis < rank; ++axis) {
    const std::vector<KernelValues::Split> parts = kernel_.splits(v, axis);
    // What a box sees beyond its tile is nothing only beyond the array.
    for (size_t k = 0; k + 1 < parts.size(); ++k)
      if (parts[k].size % parts[k + 1].size != 0) return false;
    if (stored(id, axis) != v.extents[axis].nominal && v.extents[axis].nominal < whole[axis])
      return false;
    const bool merged = axis + 1 < rank && matrices > 1;
    if (merged && (!v.extents[axis].exact() || stored(id, axis) != v.extents[axis].nominal))
      return false;
  }
  return rows_of_map(id) <= 0x7fffffff && whole.back() <= 0x7fffffff;
}

void BlockEmitter::choose_boxes() {
  const int count = int(kernel_.values.size());
  box_width_.assign(size_t(count), 0);
  if (!limits_.arch.wide_products()) return;
  for (int i = 0; i < count; ++i) {
    const auto u = units_.find(i);
    if (u == units_.end() || !u->second.wide) continue;
    for (int input : value(i).inputs) {
      const int at = operand_source(input, true);
      box_width_[size_t(at)] = box_width(stored(at, value(at).extents.size() - 1));
    }
  }
  for (int i = 0; i < count; ++i) {
    const Value& v = value(i);
    if (home(i) != Home::Tile || !fragment_[size_t(i)] || v.dtype == DType::F32 || !boxes_fit(i))
      continue;
    const size_t rank = v.extents.size();
    box_width_[size_t(i)] = box_width(stored(i, rank - 1));
    Boxes b;
    int64_t chunks = 1;
    const int64_t rows = stored(i, rank - 2);
    while (rows % chunks != 0 || rows / chunks > kMostBox) ++chunks;
    b.rows = int(rows / chunks);
    b.map = int(maps_.size());
    TensorMapSpec spec;
    spec.argument = v.argument;
    spec.element_bytes = size_in_bytes(v.dtype);
    const std::vector<int64_t>& whole = kernel_.argument_extents[size_t(v.argument)];
    spec.rows = rows_of_map(i);
    spec.columns = whole.back();
    spec.offset = kernel_.argument_offset(v.argument);
    spec.pitch = *row_pitch(i);
    spec.box_rows = b.rows;
    spec.box_columns = box_width_[size_t(i)];
    spec.swizzled = true;
    maps_.push_back(spec);
    boxes_[i] = b;
  }
}

void BlockEmitter::box_layout(int id) {
  Value& v = value(id);
  Memory& m = v.memory;
  const size_t rank = v.extents.size();
  std::vector<int64_t> extents = mapped(rank, [&](size_t axis) { return stored(id, axis); });
  m.strides = contiguous_strides(extents);
  m.swizzle_shift = 3;
  m.swizzle_mask = box_width_[size_t(id)] - 8;
  m.box_rows = int(extents[rank - 2]);
  m.box_columns = int(extents[rank - 1]);
  planned_elements_[size_t(id)] = ceil_div(product_of(extents), 512) * 512;
}

// Asks for the boxes of a tile, which go to `to`, and says to barrier `full` how many bytes they
// are.
void BlockEmitter::copy_boxes(int id, const std::string& full, Code& code) const {
  const Value& v = value(id);
  const Boxes& boxes = boxes_.at(id);
  const size_t rank = v.extents.size();
  int64_t bytes = size_in_bytes(v.dtype);
  for (size_t axis = 0; axis < rank; ++axis) bytes *= stored(id, axis);
  code.line("ts::Barrier* const full = " + full + ";");
  code.line("ts::expect_bytes(full, " + n(bytes) + ");");
  // Where the tile begins: column, and row of the array whose leading axes are merged into rows.
  std::string column = "0", row;
  const std::vector<int64_t> pitch = kernel_.argument_pitch(v.argument);
  const auto rows_of = [&, row = *row_pitch(id)](size_t axis) { return pitch[axis] / row; };
  int64_t matrices = 1;
  for (size_t axis = rank; axis-- > 0;) {
    std::string begin;
    if (v.extents[axis].exact())
      for (const KernelValues::Split& s : kernel_.splits(v, axis))
        begin += (begin.empty() ? "" : " + ") + s.variable + " * " + n(s.size);
    else
      begin = "b" + n(id) + "_" + n(int64_t(axis));
    if (axis + 1 == rank) {
      if (!begin.empty()) column = begin;
      continue;
    }
    if (!begin.empty())
      row = (rows_of(axis) == 1 ? begin : "(" + begin + ") * " + n(rows_of(axis))) +
            (row.empty() ? "" : " + " + row);
    if (axis + 2 < rank) matrices *= v.extents[axis].nominal;
  }
  if (row.empty()) row = "0";
  const int64_t rows = stored(id, rank - 2), columns = stored(id, rank - 1);
  const int width = box_width_[size_t(id)];
  std::string to = "to", x = column, y = row;
  const auto each = [&](const char* i, int64_t count, int64_t by) {
    if (count == 1) return;
    code.open("for (int " + std::string(i) + " = 0; " + i + " < " + n(count) + "; ++" + i + ")");
    to += " + " + std::string(i) + " * " + n(by);
  };
  // Leading axes of the tile one matrix after the other.
  std::vector<int64_t> leading;
  int opened = 0;
  int64_t elements = rows * columns * matrices;
  for (size_t axis = 0; axis + 2 < rank; ++axis) {
    const int64_t extent = v.extents[axis].nominal;
    elements /= extent;
    if (extent == 1) continue;
    const std::string i = "i" + n(int64_t(axis));
    each(i.c_str(), extent, elements);
    y += " + " + i + " * " + n(rows_of(axis));
    ++opened;
  }
  const int64_t chunks = rows / boxes.rows, blocks = columns / width;
  each("c", blocks, rows * width);
  if (blocks > 1) x += (x == "0" ? " + c * " : " + c * ") + n(width), ++opened;
  each("r", chunks, int64_t{boxes.rows} * width);
  if (chunks > 1) y += " + r * " + n(boxes.rows), ++opened;
  code.line("ts::copy_tile(" + to + ", m" + n(boxes.map) + ", " + x + ", " + y + ", full);");
  for (; opened > 0; --opened) code.close();
}

// --- products ------------------------------------------------------------------------------------

void BlockEmitter::wide_fragments(int id, const Units& u, const std::string& sums) {
  const Value& v = value(id);
  const std::string type = storage_type(v.dtype, Dialect::Cuda);
  int number = 0;
  struct Operands {
    std::string a, b;
    bool a_transposed, b_transposed;
    int64_t depth;
    bool in_registers;
  };
  std::vector<Operands> all;
  for (const Pair& pair : pairs(v)) {
    const auto tile = [&](int operand, bool left) {
      const std::optional<Memory> m = view(operand);
      CHECK(m && m->box_rows > 0) << "an operand of four warps does not lie in boxes";
      const bool rows_in_memory = m->strides.back() == 1;  // else columns
      const bool transposed = left != rows_in_memory;
      const Expr offset = matrix_of(operand, *m);
      const std::string name = (left ? "left" : "right") + n(number);
      code_.line("const ts::WideTile<" + type + ", " + n(m->box_rows) + ", " +
                 n(m->swizzle_mask + 8) + ", " + (transposed ? "true" : "false") + "> " + name +
                 "{" + m->pointer + (offset.is(0) ? "" : " + " + offset.text()) + "};");
      return std::pair{name, transposed};
    };
    const int64_t depth = ceil_div(value(pair.left).extents.back().nominal, 16) * 16;
    if (home(pair.left) == Home::Fragment) {
      const std::string rows = "rows" + n(number);
      code_.line("unsigned " + rows + "[" + n(depth / 16) + "][4];");
      code_.line("#pragma unroll");
      code_.open("for (int k = 0; k < " + n(depth) + "; k += 16)");
      code_.line("const unsigned now[4] = {" + rows_in_registers(pair.left, u, "", "k") + "};");
      code_.line("for (int r = 0; r < 4; ++r) " + rows + "[k / 16][r] = now[r];");
      code_.close();
      const auto right = tile(pair.right, false);
      all.push_back({rows, right.first, false, right.second, depth, true});
      ++number;
      continue;
    }
    const auto left = tile(pair.left, true), right = tile(pair.right, false);
    const auto &a = u.swapped ? right : left, &b = u.swapped ? left : right;
    all.push_back({a.first, b.first, a.second, b.second, depth, false});
    ++number;
  }
  code_.line("ts::begin_products(" + sums + ");");
  for (const Operands& o : all) {
    code_.line("#pragma unroll");
    code_.open("for (int k = 0; k < " + n(o.depth) + "; k += 16)");
    code_.line("ts::multiply_add_wide<" + (o.in_registers ? "" : n(int(o.a_transposed)) + ", ") +
               n(int(o.b_transposed)) + ">(" + sums + ", " + o.a +
               (o.in_registers ? "[k / 16], " : ".at(row, k), ") + o.b + ".at(column, k), " + type +
               "{}, true);");
    code_.close();
  }
  code_.line("ts::commit_products();");
  code_.line("ts::wait_products<0>(" + sums + ");");
  for (const Operands& o : all)
    if (o.in_registers) code_.line("ts::keep(" + o.a + ");");
}

// --- matrices from registers ---------------------------------------------------------------------

// An operand of 16 bits that is computed from a product's fragments: two neighbours are rounded
// into a register, as mma holds them, and 16 rows of 16 columns stored at once (stmatrix;
// transposed where the transposed product was computed).
void BlockEmitter::store_as_matrices(int id) {
  const Value& v = value(id);
  const Memory& m = v.memory;
  const int product = units_of_.at(held_for_.at(id)[0]);
  const Units& u = units_.at(product);
  const size_t rank = v.extents.size();
  CHECK(m.strides.back() == 1 && m.strides[rank - 2] % 8 == 0) << "no rows of matrices";
  buffer(m.pointer, m.storage, memory_elements(id));
  begin(m.pointer + " " + shape_text(v) + ": " + name(v.kind) + ", from registers, as matrices");
  open_matrices(product);
  const int across = u.columns % 2 == 0 ? 2 : 1;
  if (!u.wide) unrolled("i", u.rows);
  code_.line("#pragma unroll");
  code_.open("for (int j0 = 0; j0 < " + n(u.columns) + "; j0 += " + n(across) + ")");
  code_.line("const int top = row + " + std::string(u.wide ? "ts::warp() % 4 * 16" : "16 * i") +
             ", left = column + 8 * j0;");
  // Whole matrices lie in the memory or beyond it, for all lanes alike.
  const auto [rows, columns] = covered(u);
  const Expr top = Expr::variable("top", {0, (u.swapped ? columns : rows) - 1}),
             left = Expr::variable("left", {0, (u.swapped ? rows : columns) - 1});
  const Condition inside = (u.swapped ? left : top) < Expr(stored(id, rank - 2)) &&
                           (u.swapped ? top : left) < Expr(stored(id, rank - 1));
  code_.open(inside.always() ? "" : "if (" + inside.text() + ")");
  code_.line("unsigned parts[" + n(2 * across) + "];");
  unrolled("q", across);
  unrolled("h", 2);
  code_.line("const int j = j0 + q, y = " + row_of_fragment(u).text() +
             ", x = left + 8 * q + ts::lane() % 4 * 2;");
  const auto [row, column] = places_in_registers(u);
  const std::vector<Expr> index = index_in(v, row, column);
  code_.line(std::string(compute_type(v.dtype)) + " z[2] = {};");
  unrolled("e", 2);
  const Condition real = within(u, v, nullptr, row, column);
  code_.open_if(real);
  Nest loops = nest_over(id, u, index);
  const std::string x = element(loops, id, index);
  loops.statement(-1, "z[e] = " + x + ";");
  loops.emit(code_);
  code_.close_if(real);
  code_.close();
  code_.line("parts[2 * q + h] = ts::pair_of<" +
             std::string(storage_type(m.storage, Dialect::Cuda)) + ">(z[0], z[1]);");
  code_.close(2);
  const Expr second = across == 2 ? left + lane() / 16 * 8 : left;
  std::vector<Expr> place = leading_;
  place.push_back(u.swapped ? second + lane() % 8 : top + lane() % 16);
  place.push_back(u.swapped ? top + lane() / 8 % 2 * 8 : second);
  code_.line(std::string("ts::store_matrices") + (u.swapped ? "_transposed" : "") + "(" +
             element_address(m, Nest::offset(place, m.strides)) + ", parts);");
  for (int i = u.wide ? 2 : 3; i > 0; --i) code_.close();
  code_.close(2);
  reads_held(id);
  writes(m.pointer, "");
  finish();
}

}  // namespace tessera
