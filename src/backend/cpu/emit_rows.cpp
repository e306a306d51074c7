// Products of few rows with a large row-major matrix, by row kernels.

#include "backend/cpu/emitter.h"
#include "base/check.h"
#include "base/text.h"

namespace tessera {
namespace {

// Rows of the left operand this far apart, or any multiple, would share few sets of the cache.
constexpr int64_t kCrowdedBytes = 1024;
// Rows from this length on are read whole, if they lie side by side, as memory likes it.
constexpr int64_t kLongRowBytes = 512;

}  // namespace

std::optional<Memory> KernelEmitter::row_operand(const Value& v, int id) const {
  if (!tiled_product(v)) return std::nullopt;
  const Extent& m = v.extents[v.extents.size() - 2];
  const DType dtype = compute_dtype(v.dtype);
  if (!m.exact() || m.nominal > kMostKernelRows) return std::nullopt;
  const RegisterTile tile = choose_tile(unit_.isa, dtype, m.nominal, v.extents.back().nominal);
  if (v.extents.back().nominal < tile.columns()) return std::nullopt;
  // A conversion to the type of the sums is done on the way.
  int source = id;
  if (const Value& y = value(id);
      y.kind == OpKind::Cast && !y.in_memory && compute_dtype(y.dtype) == dtype)
    source = y.inputs[0];
  const std::optional<Memory> rows = view(source);
  while (!value(source).in_memory && !value(source).inputs.empty())
    source = value(source).inputs[0];
  if (!rows || !is_load(value(source).kind) || rows->panel > 0 || rows->strides.back() != 1)
    return std::nullopt;
  const Memory& memory = *rows;
  if (!row_kernel_reads(unit_.isa, dtype, memory.storage)) return std::nullopt;
  const int64_t pitch = memory.strides[memory.strides.size() - 2];
  // Rows far apart, or one long piece of memory; a converting kernel is better than a copy anyhow.
  const int64_t pitch_bytes = pitch * size_in_bytes(dtype);
  const bool in_one_piece = pitch == v.extents.back().nominal && pitch_bytes >= kLongRowBytes;
  if (pitch_bytes < kCrowdedBytes && !in_one_piece && memory.storage == dtype) return std::nullopt;
  return memory;
}

std::optional<Memory> KernelEmitter::pair_operand(const Value& v, int a, int b) const {
  if (compute_dtype(v.dtype) != DType::F32 || !has_bf16_dot(unit_.isa)) return std::nullopt;
  const std::optional<Memory> right = row_operand(v, b);
  if (!right || right->storage != DType::BF16) return std::nullopt;
  const Value* x = &value(a);
  if (x->kind == OpKind::Cast && !x->in_memory) a = x->inputs[0];
  const std::optional<Memory> left = view(a);
  if (!left || left->storage != DType::BF16) return std::nullopt;
  return left;
}

void KernelEmitter::by_rows(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const std::optional<Memory> pairs = pair_operand(v, a, b), right = row_operand(v, b);
  const std::optional<Memory> left = pairs ? pairs : view(a);
  CHECK(left && right) << "operands of a product by rows without memory";
  const bool dot = pairs.has_value();
  const Value &x = value(a), &y = value(b);
  const size_t rank = v.extents.size(), x_rank = x.extents.size(), y_rank = y.extents.size();
  const int64_t m = v.extents[rank - 2].nominal;
  const Extent& n = v.extents[rank - 1];
  const Extent& k = x.extents.back().exact() ? y.extents[y_rank - 2] : x.extents.back();
  const DType dtype = to.storage;
  const std::string type = storage_type(dtype), from = storage_type(right->storage);
  const RegisterTile tile = choose_tile(unit_.isa, dtype, m, n.nominal);
  const int64_t columns = tile.columns();
  const RowSchedule schedule = row_schedule(tile, m);
  const int64_t ldb = right->strides[y_rank - 2], ldc = to.strides[rank - 2];
  const std::string serial = num(names_++);

  code_.open("");
  std::string pa = left->pointer, pb = right->pointer, pc = to.pointer;
  int opened = open_leading(v, {{pa, x, *left}, {pb, y, *right}, {pc, v, to}});
  code_.line("const " + from + "* const b = " + pb + ";");
  code_.line(type + "* const c = " + pc + ";");

  // The left operand with its rows side by side but not a multiple of the cache's period apart.
  const std::string left_type = storage_type(left->storage);
  int64_t ars = left->strides[x_rank - 2];
  const int64_t acs = left->strides[x_rank - 1];
  const int64_t left_bytes = size_in_bytes(left->storage), row_bytes = ars * left_bytes;
  std::string rows_of_a;
  if (acs != 1 || (m > 1 && row_bytes >= kCrowdedBytes)) {
    rows_of_a = "rows" + serial;
    const int64_t line = 64 / left_bytes;
    const int64_t pitch = (ceil_div(k.nominal, line) | 1) * line;
    allocate(rows_of_a, left->storage, m * pitch);
    code_.open("for (long i = 0; i < " + num(m) + "; ++i)");
    code_.line("const " + left_type + "* const x = " + pa + " + i*" + num(ars) + ";");
    code_.line("#pragma omp simd");
    code_.line("for (long j = 0; j < " + k.text() + "; ++j) " + rows_of_a + "[i*" + num(pitch) +
               " + j] = x[j" + (acs == 1 ? "" : "*" + num(acs)) + "];");
    code_.close();
    pa = rows_of_a;
    ars = pitch;
  }
  code_.line("const " + left_type + "* const a = " + pa + ";");
  if (!accumulate) {
    code_.open("for (long i = 0; i < " + num(m) + "; ++i)");
    const int64_t whole = ceil_div(n.nominal, tile.lanes) * tile.lanes;
    code_.line("#pragma omp simd");
    code_.line("for (long j = 0; j < " + num(whole) + "; ++j) c[i*" + num(ldc) + " + j] = 0;");
    code_.close();
  }

  // All k against `width` columns of b, of the type `storage`.
  const auto all_rows = [&](DType storage, const RegisterTile& t, const std::string& bp, int64_t ld,
                            const std::string& cp, const std::string& width) {
    const std::string kernel = unit_.row_kernels.use(unit_.isa, left->storage, storage, m, t);
    const auto steps = [&](int rows) {
      code_.line("for (; k + " + num(rows) + " <= " + k.text() + "; k += " + num(rows) + ") " +
                 kernel + "<" + num(ars) + ", " + num(ld) + ", " + num(ldc) + ", " + num(rows) +
                 ">(a + k, " + bp + " + k*" + num(ld) + ", " + cp + ", " + width + ");");
    };
    code_.line("long k = 0;");
    for (int rows : {schedule.rows, 4, 1}) steps(rows);
  };

  const int64_t whole = n.nominal / columns * columns;
  if (n.exact() && whole <= schedule.width) {
    code_.open("");
    all_rows(right->storage, tile, "b", ldb, "c", num(whole));
    code_.close();
    if (whole < n.nominal) code_.line("const long n = " + num(whole) + ";");
  } else {
    const std::string end = n.exact() ? num(whole) : "whole";
    if (!n.exact())
      code_.line("const long whole = " + n.text() + " / " + num(columns) + " * " + num(columns) +
                 ";");
    code_.line("long n = 0;");
    code_.open("while (n < " + end + ")");
    const std::string width = num(schedule.width);
    code_.line("const long width = " + end + " - n < " + width + " ? " + end + " - n : " + width +
               ";");
    all_rows(right->storage, tile, "b + n", ldb, "c + n", "width");
    code_.line("n += width;");
    code_.close();
  }
  if (!n.exact() || whole < n.nominal) {
    // Whole vectors first; then the last columns, padded with zeros to one more.
    RegisterTile narrow = tile;
    narrow.vectors = 1;
    const std::string lanes = num(tile.lanes);
    const int64_t vectors = (n.nominal - whole) / tile.lanes;
    if (!n.exact() || vectors > 0) {
      code_.line("const long vectors = (" + n.text() + " - n) / " + lanes + " * " + lanes + ";");
      code_.open("");
      all_rows(right->storage, narrow, "b + n", ldb, "c + n", "vectors");
      code_.close();
    }
    const std::string at = !n.exact() || vectors > 0 ? "n + vectors" : "n";
    const std::string tail = "tail" + serial;
    const DType tail_dtype = dot ? DType::BF16 : dtype;
    allocate(tail, tail_dtype, tile.lanes * k.nominal);
    std::string element = "from[i*" + num(ldb) + " + j]";
    if (right->storage != tail_dtype) {
      const std::string half = right->storage == DType::BF16 ? "bf16" : "f16";
      unit_.prelude.insert("t_" + half);
      element = "t_from_" + half + "(" + element + ")";
    }
    code_.open("if (" + at + " < " + n.text() + ")");
    code_.line("const " + from + "* const from = b + " + at + ";");
    code_.line("const long w = " + n.text() + " - (" + at + ");");
    code_.open("for (long i = 0; i < " + k.text() + "; ++i)");
    code_.line("for (long j = 0; j < " + lanes + "; ++j) " + tail + "[i*" + lanes +
               " + j] = j < w ? " + element + " : 0;");
    code_.close();
    all_rows(tail_dtype, narrow, tail, tile.lanes, "c + " + at, lanes);
    code_.close();
    touch(tail);
  }
  if (!rows_of_a.empty()) touch(rows_of_a);
  touch({left->pointer, right->pointer, to.pointer});
  code_.close(opened + 1);
}

}  // namespace tessera
