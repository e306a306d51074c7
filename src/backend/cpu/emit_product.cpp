// Matrix products inside a kernel: register-tiled where rows are long enough, plain loops
// otherwise.

#include "backend/cpu/emitter.h"
#include "backend/fmt.h"
#include "base/check.h"
#include "base/text.h"

namespace tessera {
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
  Tiled(KernelEmitter& emitter, const Matrices& p, bool accumulate)
      : emitter_(emitter), code_(emitter.code_), p_(p), dtype_(p.to.storage),
        tile_(choose_tile(emitter.unit_.isa, dtype_, p.m.nominal, p.n.nominal)),
        accumulate_(accumulate) {}

  void emit() {
    code_.line(fmt("const $0* const a = $1;", storage_type(dtype_), p_.a));
    code_.line(fmt("const $0* const b = $1;", storage_type(dtype_), p_.b));
    code_.line(fmt("$0* const c = $1;", storage_type(dtype_), p_.c));
    const int64_t columns = tile_.columns(), left_over = p_.n.nominal % columns;
    code_.line("long n = 0;");
    if (p_.n.nominal >= columns) {
      code_.open(fmt("for (; n + $0 <= $1; n += $0)", columns, p_.n.text()));
      all_rows({tile_.vectors, p_.ldb, "b + n", "c + n"});
      code_.close();
    }
    if (!p_.n.exact() || left_over % tile_.lanes != 0) return last_columns(left_over);
    if (left_over == 0) return;
    code_.open("");
    all_rows({left_over / tile_.lanes, p_.ldb, "b + n", "c + n"});
    code_.close();
  }

 private:
  // Columns of the right operand at `b`, in rows `ld` apart, and of the result at `c`.
  struct Strip {
    int64_t vectors, ld;
    std::string b, c;
  };

  // `rows` rows from row m on.
  void call(int64_t rows, const Strip& s) {
    const RegisterTile t{int(rows), int(s.vectors), tile_.lanes};
    code_.line(fmt("$0<$1, $2, $3, $4, $5, 0, 0>", tile_kernel(emitter_.unit_.shared, dtype_, t),
                   p_.ars, p_.acs, s.ld, p_.ldc, accumulate_) +
               fmt("(a + m*$0, $1, $2 + m*$3, 0, $4);", p_.ars, s.b, s.c, p_.ldc, p_.k.text()));
  }

  void all_rows(const Strip& s) {
    const Extent& m = p_.m;
    code_.line("long m = 0;");
    code_.line(fmt("for (; m + $0 <= $1; m += $0)", tile_.rows, m.text()));
    call(tile_.rows, s);
    if (!m.exact()) return emitter_.last_rows(m, tile_.rows, [&](int64_t rows) { call(rows, s); });
    if (const int64_t rest = m.nominal % tile_.rows; rest > 0) call(rest, s);
  }

  // The last columns, w of them from column n on, padded with zeros to whole vectors. `usual`: how
  // many there are, of all blocks but perhaps the last.
  void last_columns(int64_t usual) {
    const Extent& n = p_.n;
    const std::string tail = fmt("tail$0", emitter_.names_++);
    const std::string vectors = fmt("(w + $0) / $1", tile_.lanes - 1, tile_.lanes);
    const int64_t few = ceil_div(usual, tile_.lanes), most = n.exact() ? few : tile_.vectors;
    const int64_t pitch = most * tile_.lanes;
    emitter_.allocate(tail, dtype_, pitch * p_.k.nominal);
    code_.open(fmt("if (n < $0)", n.text()));
    code_.line(fmt("const long w = $0 - n;", n.text()));
    code_.open(fmt("for (long i = 0; i < $0; ++i)", p_.k.text()));
    code_.line(fmt("for (long j = 0; j < $0; ++j) $1[i*$0 + j] = j < w ? b[i*$2 + n + j] : 0;",
                   pitch, tail, p_.ldb));
    code_.close();
    if (usual > 0) {
      code_.open(fmt("if ($0 == $1)", vectors, few));
      all_rows({few, pitch, tail, "c + n"});
      code_.close();
    }
    if (!n.exact()) {
      code_.open(fmt("$0for (long j = 0; j < w; j += $1)", usual > 0 ? "else " : "", tile_.lanes));
      all_rows({1, pitch, tail + " + j", "c + n + j"});
      code_.close();
    }
    code_.close();
    emitter_.touch(tail);
  }

  KernelEmitter& emitter_;
  Code& code_;
  const Matrices& p_;
  const DType dtype_;
  const RegisterTile tile_;
  const bool accumulate_;
};

void KernelEmitter::tiled(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const std::optional<Memory> left = view(a), right = view(b);
  CHECK(left && right) << "operands of a tiled product without memory";
  const Matrices p = open_product(a, b, v, *left, *right, to);
  Tiled(*this, p, accumulate).emit();
  close_product(p);
}

}  // namespace tessera
