// Matrix products inside a kernel: register-tiled where rows are long enough, plain loops
// otherwise.
#include <algorithm>
#include <functional>

#include "backend/cpu/emitter.h"
#include "backend/fmt.h"
#include "base/check.h"
#include "base/text.h"

namespace tessera {
namespace {

// Rows of the last columns that are copied at a time, where they fill no tile.
constexpr int64_t kRowsOfTail = 128;

}  // namespace

void KernelEmitter::product(int id, const Memory& to, bool accumulate) {
  const Value& v = value(id);
  if (dots_.count(id) != 0) return dots(v.inputs[0], v.inputs[1], v, to, accumulate);
  // (W‖X)(Y;Z) = W·Y + X·Z
  const size_t terms = v.inputs.size() / 2;
  for (size_t i = 0; i < terms; ++i) {
    const int a = v.inputs[i], b = v.inputs[i + terms];
    const bool adds = accumulate || i > 0;
    if (!tiled_product(v))
      generic(a, b, v, to, adds);
    else if (panel_operand(b))
      panels(a, b, v, to, adds);
    else if (row_operand(v, b))
      by_rows(a, b, v, to, adds);
    else
      tiled(a, b, v, to, adds);
  }
}

void KernelEmitter::generic(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const size_t rank = v.extents.size();
  const Extent& k_left = value(a).extents.back();
  const Extent& k_right = value(b).extents[value(b).extents.size() - 2];
  const Expr depth = (k_left.exact() ? k_right : k_left).expr();
  const auto operand = [&](int id, std::vector<Expr> index, const Expr& row, const Expr& column) {
    const Value& x = value(id);
    std::vector<Expr> at;
    const size_t skip = rank - x.extents.size();
    for (size_t i = 0; i + 2 < x.extents.size(); ++i)
      at.push_back(x.extents[i].nominal == 1 ? Expr() : index[skip + i]);
    at.push_back(row);
    at.push_back(column);
    return at;
  };
  const std::string type =
      is_float(v.dtype) || v.dtype == DType::I64 ? compute_type(v.dtype) : "int";
  const bool across = v.extents[rank - 1].nominal >= 4;
  std::vector<Expr> index;
  if (across && !accumulate) {
    Nest clear = nest();
    index = all_loops(clear, v.extents);
    clear.statement(clear.depth() - 1,
                    fmt("$0[$1] = 0;", to.pointer, Nest::offset(index, to.strides)));
    emit(clear);
  }
  Nest loops = nest();
  index.clear();
  for (size_t i = 0; i + 1 < rank; ++i) index.push_back(loops.loop(v.extents[i].expr()));
  Expr k, column;
  int outside = 0;
  if (across) {
    k = loops.loop(depth);
    column = loops.loop(v.extents[rank - 1].expr());
  } else {
    column = loops.loop(v.extents[rank - 1].expr());
    outside = loops.depth() - 1;
    k = loops.loop(depth);
  }
  index.push_back(column);
  const int inside = loops.depth() - 1;
  const std::string at = fmt("$0[$1]", to.pointer, Nest::offset(index, to.strides));
  if (!across) loops.statement(outside, type + " s = 0;");
  const std::string x = loops.element(a, operand(a, index, index[rank - 2], k));
  const std::string y = loops.element(b, operand(b, index, k, column));
  if (across) {
    loops.statement(inside, fmt("$0 += $1 * $2;", at, x, y));
  } else {
    loops.statement(inside, fmt("s += $0 * $1;", x, y));
    loops.after(outside, at + (accumulate ? " += s;" : " = s;"));
    if (inside > outside)
      loops.set_simd("reduction(+ : s)");
    else
      loops.no_simd();
  }
  emit(loops);
}

KernelEmitter::Matrices KernelEmitter::open_product(int a, int b, const Value& v,
                                                    const Memory& left, const Memory& right,
                                                    const Memory& to) {
  const Value &x = value(a), &y = value(b);
  const size_t rank = v.extents.size(), x_rank = x.extents.size(), y_rank = y.extents.size();
  Matrices p{left,
             right,
             to,
             v.extents[rank - 2],
             v.extents[rank - 1],
             x.extents.back().exact() ? y.extents[y_rank - 2] : x.extents.back(),
             left.strides[x_rank - 2],
             left.strides[x_rank - 1],
             right.strides[y_rank - 2],
             to.strides[rank - 2],
             left.pointer,
             right.pointer,
             to.pointer,
             1};
  code_.open("");
  p.opened += open_leading(v, {{p.a, x, p.left}, {p.b, y, p.right}, {p.c, v, p.to}});
  return p;
}

void KernelEmitter::close_product(const Matrices& p) {
  touch({p.left.pointer, p.right.pointer, p.to.pointer});
  code_.close(p.opened);
}

// A product by register tiles, strip by strip of the right operand's columns, which lie near each
// other: others are packed, or read by rows.
class KernelEmitter::Tiled {
 public:
  // `fetch`: the right operand is outside the cache.
  Tiled(KernelEmitter& emitter, const Matrices& p, bool fetch, bool accumulate)
      : emitter_(emitter), code_(emitter.code_), p_(p), dtype_(p.to.storage),
        type_(storage_type(dtype_)), serial_(emitter.names_++),
        tile_(choose_tile(emitter.unit_.isa, dtype_, p.m.nominal, p.n.nominal)),
        columns_(tile_.columns()), lines_(ceil_div(columns_ * size_in_bytes(dtype_), 64)),
        fetch_(fetch), accumulate_(accumulate) {}

  void emit() {
    code_.line(fmt("const $0* const a = $1;", type_, p_.a));
    code_.line(fmt("const $0* const b = $1;", type_, p_.b));
    code_.line(fmt("$0* const c = $1;", type_, p_.c));
    // Column n of the right operand, n a multiple of the tile's columns.
    const Extent& n = p_.n;
    const std::string below = fmt("b + $0*$1", p_.k.text(), p_.ldb);
    if (n.exact() && n.nominal == columns_) return whole_strip("b", "c", below);
    code_.line("long n = 0;");
    const int64_t whole = n.nominal / columns_ * columns_, left_over = n.nominal - whole;
    if (whole > 0) {
      code_.open(fmt("for (; n + $0 <= $1; n += $0)", columns_, n.text()));
      whole_strip("b + n", "c + n",
                  fmt("n + $0 <= $1 ? b + n + $2 : $3", 2 * columns_, n.text(), columns_, below));
      code_.close();
    }
    if (n.exact() && left_over > 0 && left_over % tile_.lanes == 0) {
      code_.open("");
      all_rows({left_over / tile_.lanes, p_.ldb, "b + n", "c + n"}, false);
      code_.close();
    } else if (!n.exact() || left_over > 0) {
      last_columns(left_over);
    }
  }

 private:
  // Columns of the right operand at `b`, in rows `ld` apart, and of the result at `c`.
  struct Strip {
    int64_t vectors, ld;
    std::string b, c;
  };

  // `rows` rows from row `from`, which may fetch `fetched` lines per row from line `line` of the
  // next strip on.
  void call(int64_t rows, const std::string& from, const Strip& s, int64_t line = 0,
            int64_t fetched = 0) {
    const RegisterTile t{int(rows), int(s.vectors), tile_.lanes};
    const auto at = [&](const std::string& p, int64_t stride) {
      return from == "0" ? p : fmt("$0 + $1*$2", p, from, stride);
    };
    std::string next = "0";
    if (fetched > 0) next = line > 0 ? fmt("next + $0", line * 64 / size_in_bytes(dtype_)) : "next";
    code_.line(fmt("$0<$1, $2, $3, $4, $5, $6, $7>", micro_kernel(emitter_.unit_.shared, dtype_, t),
                   p_.ars, p_.acs, s.ld, p_.ldc, accumulate_ || in_part_, fetched > 0 ? p_.ldb : 0,
                   fetched) +
               fmt("($0, $1, $2, $3, $4);", at(in_part_ ? "ak" : "a", p_.ars), s.b, next,
                   at(s.c, p_.ldc), depth()));
  }
  std::string depth() const { return in_part_ ? "kk" : p_.k.text(); }

  // All rows against one strip. While one strip of a matrix outside the cache is used, the next one
  // is fetched: the strip to the right, or at the end of the row the same columns of the next
  // iteration's rows. The fetches are shared out over all panels of rows, so that none has to wait
  // for memory.
  void all_rows(const Strip& s, bool fetches) {
    if (!p_.m.exact()) {
      code_.line("long m = 0;");
      code_.open(fmt("for (; m + $0 <= $1; m += $0)", tile_.rows, p_.m.text()));
      call(tile_.rows, "m", s);
      code_.close();
      return emitter_.last_rows(p_.m, tile_.rows, [&](int64_t rows) { call(rows, "m", s); });
    }
    const int64_t full = p_.m.nominal / tile_.rows, rest = p_.m.nominal % tile_.rows;
    // The first calls fetch, a share of the lines each.
    int64_t first = 0;
    const int64_t share = fetches ? ceil_div(lines_, std::min(lines_, full)) : 0;
    for (int64_t line = 0; fetches && line < lines_; line += share)
      call(tile_.rows, num(first++ * tile_.rows), s, line, std::min(share, lines_ - line));
    if (full - first == 1) {
      call(tile_.rows, num(first * tile_.rows), s);
    } else if (full > first) {
      code_.open(fmt("for (long m = $0; m < $1; m += $2)", first * tile_.rows, full * tile_.rows,
                     tile_.rows));
      call(tile_.rows, "m", s);
      code_.close();
    }
    if (rest > 0) call(rest, num(full * tile_.rows), s);
  }

  // `following` is where the strip to be read after it begins.
  void whole_strip(const std::string& b, const std::string& c, const std::string& following) {
    if (fetch_) code_.line(fmt("const $0* const next = $1;", type_, following));
    all_rows({tile_.vectors, p_.ldb, b, c}, fetch_);
  }

  // Parts of the right operand's rows, kk from row kb on, for `width` columns of the result at `c`.
  void by_parts(const std::string& width, const std::string& c, const std::function<void()>& part) {
    const std::string k = p_.k.text();
    if (!accumulate_) {
      code_.open(fmt("for (long i = 0; i < $0; ++i)", p_.m.text()));
      code_.line(fmt("for (long j = 0; j < $0; ++j) ($1)[i*$2 + j] = 0;", width, c, p_.ldc));
      code_.close();
    }
    code_.open(fmt("for (long kb = 0; kb < $0; kb += $1)", k, kRowsOfTail));
    code_.line(fmt("const long kk = $0 - kb < $1 ? $0 - kb : $1;", k, kRowsOfTail));
    code_.line(fmt("const $0* const ak = a + kb$1;", type_, p_.acs == 1 ? "" : "*" + num(p_.acs)));
    in_part_ = true;
    part();
    in_part_ = false;
    code_.close();
  }

  // The last columns, w of them from column n on, padded with zeros to whole vectors. `usual`: how
  // many there are, of all blocks but perhaps the last.
  void last_columns(int64_t usual) {
    const Extent& n = p_.n;
    const bool parts = p_.k.nominal > kRowsOfTail;
    const std::string tail = fmt("tail$0", serial_);
    const std::string vectors = fmt("(w + $0) / $1", tile_.lanes - 1, tile_.lanes);
    const int64_t few = ceil_div(usual, tile_.lanes), most = n.exact() ? few : tile_.vectors;
    const int64_t pitch = most * tile_.lanes;
    emitter_.allocate(tail, dtype_, pitch * (parts ? kRowsOfTail : p_.k.nominal));
    const auto part = [&] {
      code_.open(fmt("for (long i = 0; i < $0; ++i)", depth()));
      code_.line(fmt("for (long j = 0; j < $0; ++j) $1[i*$0 + j] = j < w ? b[$2*$3 + n + j] : 0;",
                     pitch, tail, parts ? "(kb + i)" : "i", p_.ldb));
      code_.close();
      if (usual > 0) {
        code_.open(fmt("if ($0 == $1)", vectors, few));
        all_rows({few, pitch, tail, "c + n"}, false);
        code_.close();
      }
      if (n.exact()) return;
      code_.open(fmt("$0for (long j = 0; j < w; j += $1)", usual > 0 ? "else " : "", tile_.lanes));
      all_rows({1, pitch, tail + " + j", "c + n + j"}, false);
      code_.close();
    };
    code_.open(fmt("if (n < $0)", n.text()));
    code_.line(fmt("const long w = $0 - n;", n.text()));
    if (parts)
      by_parts(fmt("$0 * $1", vectors, tile_.lanes), "c + n", part);
    else
      part();
    code_.close();
    emitter_.touch(tail);
  }

  KernelEmitter& emitter_;
  Code& code_;
  const Matrices& p_;
  const DType dtype_;
  const std::string type_;
  const int serial_;
  const RegisterTile tile_;
  const int64_t columns_, lines_;  // of a strip; lines of a row of it
  const bool fetch_, accumulate_;
  bool in_part_ = false;
};

void KernelEmitter::tiled(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const std::optional<Memory> left = view(a), right = view(b);
  CHECK(left && right) << "operands of a tiled product without memory";
  const Matrices p = open_product(a, b, v, *left, *right, to);
  Tiled(*this, p, is_operand(b) && copies_.count(b) == 0, accumulate).emit();
  close_product(p);
}

}  // namespace tessera
