// Products of few rows with a large row-major matrix, by row kernels.

#include "backend/cpu/emitter.h"
#include "backend/cpu/row_kernels.h"
#include "backend/fmt.h"
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

// A product of few rows, all columns of the right operand at once or piece by piece.
class KernelEmitter::Rows {
 public:
  // `pairs`: of bf16 pairs, by dot products.
  Rows(KernelEmitter& emitter, const Matrices& p, bool pairs, bool accumulate)
      : emitter_(emitter), code_(emitter.code_), p_(p), m_(p.m.nominal), dtype_(p.to.storage),
        tile_(choose_tile(emitter.unit_.isa, dtype_, m_, p.n.nominal)),
        schedule_(row_schedule(tile_, m_)), serial_(emitter.names_++), pairs_(pairs),
        accumulate_(accumulate) {}

  void emit() {
    code_.line(fmt("const $0* const b = $1;", storage_type(p_.right.storage), p_.b));
    code_.line(fmt("$0* const c = $1;", storage_type(dtype_), p_.c));
    const std::string copied = left_operand();
    if (!accumulate_) clear();
    const int64_t whole = p_.n.nominal / tile_.columns() * tile_.columns();
    if (p_.n.exact() && whole <= schedule_.width) {
      code_.open("");
      all_rows(p_.right.storage, tile_, "b", p_.ldb, "c", num(whole));
      code_.close();
      if (whole < p_.n.nominal) code_.line(fmt("const long n = $0;", whole));
    } else {
      by_pieces(whole);
    }
    if (!p_.n.exact() || whole < p_.n.nominal) last_columns(whole);
    if (!copied.empty()) emitter_.touch(copied);
  }

 private:
  // Has `a` point to the left operand, whose rows' elements lie side by side and which lie no
  // multiple of the cache's period apart: itself, or a copy, whose name is returned.
  std::string left_operand() {
    const std::string type = storage_type(p_.left.storage);
    const int64_t bytes = size_in_bytes(p_.left.storage);
    const bool crowded = m_ > 1 && p_.ars * bytes >= kCrowdedBytes;
    ars_ = p_.ars;
    if (p_.acs == 1 && !crowded) {
      code_.line(fmt("const $0* const a = $1;", type, p_.a));
      return "";
    }
    const std::string rows = fmt("rows$0", serial_);
    const int64_t line = 64 / bytes;
    ars_ = (ceil_div(p_.k.nominal, line) | 1) * line;
    emitter_.allocate(rows, p_.left.storage, m_ * ars_);
    code_.open(fmt("for (long i = 0; i < $0; ++i)", m_));
    code_.line(fmt("const $0* const x = $1 + i*$2;", type, p_.a, p_.ars));
    code_.line("#pragma omp simd");
    code_.line(fmt("for (long j = 0; j < $0; ++j) $1[i*$2 + j] = x[j$3];", p_.k.text(), rows, ars_,
                   p_.acs == 1 ? "" : fmt("*$0", p_.acs)));
    code_.close();
    code_.line(fmt("const $0* const a = $1;", type, rows));
    return rows;
  }

  void clear() {
    const int64_t whole = ceil_div(p_.n.nominal, tile_.lanes) * tile_.lanes;
    code_.open(fmt("for (long i = 0; i < $0; ++i)", m_));
    code_.line("#pragma omp simd");
    code_.line(fmt("for (long j = 0; j < $0; ++j) c[i*$1 + j] = 0;", whole, p_.ldc));
    code_.close();
  }

  // All k against `width` columns at `b`, rows `ld` apart, of the type `storage`.
  void all_rows(DType storage, const RegisterTile& tile, const std::string& b, int64_t ld,
                const std::string& c, const std::string& width) {
    const std::string kernel =
        row_kernel(emitter_.unit_.shared, emitter_.unit_.isa, p_.left.storage, storage, m_, tile);
    code_.line("long k = 0;");
    for (int rows : {schedule_.rows, 4, 1})
      code_.line(fmt("for (; k + $0 <= $1; k += $0) ", rows, p_.k.text()) +
                 fmt("$0<$1, $2, $3, $4>(a + k, $5 + k*$2, $6, $7);", kernel, ars_, ld, p_.ldc,
                     rows, b, c, width));
  }

  // Pieces of the first `whole` columns, all that are whole tiles.
  void by_pieces(int64_t whole) {
    const std::string end = p_.n.exact() ? num(whole) : "whole";
    if (!p_.n.exact())
      code_.line(fmt("const long whole = $0 / $1 * $1;", p_.n.text(), tile_.columns()));
    code_.line("long n = 0;");
    code_.open(fmt("while (n < $0)", end));
    code_.line(fmt("const long width = $0 - n < $1 ? $0 - n : $1;", end, schedule_.width));
    all_rows(p_.right.storage, tile_, "b + n", p_.ldb, "c + n", "width");
    code_.line("n += width;");
    code_.close();
  }

  // From column n = `whole` on: whole vectors first, then the last columns, padded with zeros to
  // one more.
  void last_columns(int64_t whole) {
    RegisterTile narrow = tile_;
    narrow.vectors = 1;
    const bool vectors = !p_.n.exact() || (p_.n.nominal - whole) / tile_.lanes > 0;
    if (vectors) {
      code_.line(fmt("const long vectors = ($0 - n) / $1 * $1;", p_.n.text(), tile_.lanes));
      code_.open("");
      all_rows(p_.right.storage, narrow, "b + n", p_.ldb, "c + n", "vectors");
      code_.close();
    }
    const std::string at = vectors ? "n + vectors" : "n", tail = fmt("tail$0", serial_);
    const DType stored = p_.right.storage, padded = pairs_ ? DType::BF16 : dtype_;
    emitter_.allocate(tail, padded, tile_.lanes * p_.k.nominal);
    std::string element = fmt("from[i*$0 + j]", p_.ldb);
    if (stored != padded) {
      const std::string half = stored == DType::BF16 ? "bf16" : "f16";
      emitter_.unit_.prelude.insert("t_" + half);
      element = fmt("t_from_$0($1)", half, element);
    }
    code_.open(fmt("if ($0 < $1)", at, p_.n.text()));
    code_.line(fmt("const $0* const from = b + $1;", storage_type(stored), at));
    code_.line(fmt("const long w = $0 - ($1);", p_.n.text(), at));
    code_.open(fmt("for (long i = 0; i < $0; ++i)", p_.k.text()));
    code_.line(fmt("for (long j = 0; j < $0; ++j) $1[i*$0 + j] = j < w ? $2 : 0;", tile_.lanes,
                   tail, element));
    code_.close();
    all_rows(padded, narrow, tail, tile_.lanes, "c + " + at, num(tile_.lanes));
    code_.close();
    emitter_.touch(tail);
  }

  KernelEmitter& emitter_;
  Code& code_;
  const Matrices& p_;
  const int64_t m_;
  const DType dtype_;
  const RegisterTile tile_;
  const RowSchedule schedule_;
  const int serial_;
  const bool pairs_, accumulate_;
  int64_t ars_ = 0;
};

void KernelEmitter::by_rows(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const std::optional<Memory> pairs = pair_operand(v, a, b), right = row_operand(v, b);
  const std::optional<Memory> left = pairs ? pairs : view(a);
  CHECK(left && right) << "operands of a product by rows without memory";
  const Matrices p = open_product(a, b, v, *left, *right, to);
  Rows(*this, p, pairs.has_value(), accumulate).emit();
  close_product(p);
}

}  // namespace tessera
