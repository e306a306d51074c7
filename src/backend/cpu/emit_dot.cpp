// Matrix products inside a kernel whose right operand lies along the contracted axis and whose left
// one has few rows.

#include "backend/cpu/emitter.h"
#include "backend/fmt.h"
#include "base/check.h"
#include "base/text.h"

namespace tessera {
bool KernelEmitter::dot_product(const Value& v) const {
  if (v.kind != OpKind::Matmul || compute_dtype(v.dtype) != DType::F32) return false;
  const std::optional<Memory> right = view(v.inputs[1]);
  if (!right || copies_.count(v.inputs[1]) != 0) return false;
  const size_t r = right->strides.size();
  const int64_t lanes = lanes_of(unit_.isa, DType::F32);
  const Value& y = value(v.inputs[1]);
  return right->strides[r - 2] == 1 && right->strides[r - 1] != 1 &&
         (right->storage == DType::F32 || right->storage == DType::BF16) &&
         y.extents[r - 2].nominal >= lanes && v.extents.back().nominal >= lanes &&
         v.extents[v.extents.size() - 2].nominal <= most_dot_rows(right->storage);
}

void KernelEmitter::dots(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const std::optional<Memory> left = view(a), right = view(b);
  CHECK(left && right) << "operands of dot products without memory";
  const Matrices p = open_product(a, b, v, *left, *right, to);
  const Extent &m = p.m, &n = p.n, &k = p.k;
  const int64_t ars = p.ars, ldb = right->strides.back(), ldc = p.ldc;
  const int64_t lanes = lanes_of(unit_.isa, DType::F32);
  if (right->storage == DType::BF16) unit_.prelude.insert("t_bf16");
  code_.line(fmt("const float* const a = $0;", p.a));
  code_.line(fmt("const $0* const b = $1;", storage_type(right->storage), p.b));
  code_.line(fmt("float* const c = $0;", p.c));

  // What comes next in memory is asked for where rows follow each other densely, but rows that are
  // long enough for the processor to see them coming.
  int through = b;
  while (!value(through).in_memory) through = value(through).inputs[0];
  const bool outside = is_operand(through) && shared_.count(through) == 0;
  const int64_t elements = kDenseAheadBytes / size_in_bytes(right->storage);
  const int64_t ahead = outside && ldb == k.nominal && ldb < elements ? elements : 0;
  const auto at = [](const std::string& p, const std::string& offset) {
    return offset == "0" ? p : fmt("$0 + $1", p, offset);
  };
  const auto call = [&](const std::string& row, int rows, int64_t prefetch) {
    const std::string f = fmt(
        "$0<$1, $2, $3, $4, $5>($6", dot_kernel(unit_.shared, unit_.isa, right->storage, rows), ars,
        ldb, ldc, accumulate, prefetch, at("a", row == "0" ? row : fmt("$0*$1", row, ars)));
    const int64_t columns = lanes / rows;
    const auto tile = [&](const std::string& column) {
      code_.line(fmt("$0, b + $1*$2, $3, $4);", f, column, ldb,
                     at("c", row == "0" ? column : fmt("$0*$1 + $2", row, ldc, column)), k.text()));
    };
    if (columns == lanes) return tile("n");
    code_.open(fmt("for (long j = n; j < n + $0; j += $1)", lanes, columns));
    tile("j");
    code_.close();
  };
  code_.line("long n = 0;");
  code_.open(fmt("for (; n + $0 <= $1; n += $0)", lanes, n.text()));
  if (m.exact()) {
    int64_t row = 0;
    for (int rows : kDotRows)
      for (; rows <= lanes && row + rows <= m.nominal; row += rows)
        call(num(row), rows, row == 0 ? ahead : 0);
  } else {
    code_.open(fmt("for (long m = 0; m < $0; ++m)", m.text()));
    call("m", 1, ahead);
    code_.close();
  }
  code_.close();
  if (!n.exact() || n.nominal % lanes != 0) {
    code_.open(fmt("for (; n < $0; ++n)", n.text()));
    code_.line(fmt("for (long m = 0; m < $0; ++m) c[m*$1 + n] $2$3(a + m*$4, b + n*$5, $6);",
                   m.text(), ldc, accumulate ? "+= " : "= ",
                   single_dot(unit_.shared, unit_.isa, right->storage), ars, ldb, k.text()));
    code_.close();
  }
  close_product(p);
}

}  // namespace tessera
