// Matrix products inside a kernel: register-tiled where rows are long enough, plain loops
// otherwise.
#include <algorithm>
#include <functional>

#include "backend/cpu/emitter.h"
#include "backend/fmt.h"
#include "base/check.h"

namespace tessera {
namespace {

// The row pitch from which columns are so far apart that a strip is copied while it is first used.
constexpr int64_t kFarApartBytes = 1024;
// Rows of such a strip that all panels work on before the next ones. They are fetched meanwhile;
// more would fall into the same few sets of the cache and evict each other.
constexpr int64_t kRowsOfManyPanels = 48, kRowsOfOnePanel = 128;

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
  const std::string k_text = k_left.exact() ? k_right.text() : k_left.text();
  const auto operand = [&](int id, std::vector<Index> index, const Index& row,
                           const Index& column) {
    const Value& x = value(id);
    std::vector<Index> at;
    const size_t skip = rank - x.extents.size();
    for (size_t i = 0; i + 2 < x.extents.size(); ++i)
      at.push_back(x.extents[i].nominal == 1 ? Index{} : index[skip + i]);
    at.push_back(row);
    at.push_back(column);
    return at;
  };
  const std::string type =
      is_float(v.dtype) || v.dtype == DType::I64 ? compute_type(v.dtype) : "int";
  const bool across = v.extents[rank - 1].nominal >= 4;
  std::vector<Index> index;
  if (across && !accumulate) {
    Nest clear = nest();
    index = all_loops(clear, v.extents);
    clear.statement(clear.depth() - 1,
                    fmt("$0[$1] = 0;", to.pointer, Nest::offset(index, to.strides).text));
    emit(clear);
  }
  Nest loops = nest();
  index.clear();
  for (size_t i = 0; i + 1 < rank; ++i) index.push_back(loops.loop(v.extents[i].text()));
  Index k, column;
  int outside = 0;
  if (across) {
    k = loops.loop(k_text);
    column = loops.loop(v.extents[rank - 1].text());
  } else {
    column = loops.loop(v.extents[rank - 1].text());
    outside = loops.depth() - 1;
    k = loops.loop(k_text);
  }
  index.push_back(column);
  const int inside = loops.depth() - 1;
  const std::string at = fmt("$0[$1]", to.pointer, Nest::offset(index, to.strides).text);
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

void KernelEmitter::tiled(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const std::optional<Memory> left = view(a), right = view(b);
  CHECK(left && right) << "operands of a tiled product without memory";
  const Value &x = value(a), &y = value(b);
  const size_t rank = v.extents.size(), x_rank = x.extents.size(), y_rank = y.extents.size();
  const Extent &m = v.extents[rank - 2], &n = v.extents[rank - 1];
  const Extent& k = x.extents.back().exact() ? y.extents[y_rank - 2] : x.extents.back();
  const DType dtype = to.storage;
  const std::string type = storage_type(dtype);
  const RegisterTile tile = choose_tile(unit_.isa, dtype, m.nominal, n.nominal);
  const int64_t columns = tile.columns();
  const int64_t ldb = right->strides[y_rank - 2], ldc = to.strides[rank - 2];
  const auto num = [](int64_t i) { return std::to_string(i); };
  const std::string serial = num(names_++);

  // Loops over the leading axes; operands with extent 1 there are shared.
  code_.open("");
  std::string pa = left->pointer, pb = right->pointer, pc = to.pointer;
  int opened = open_leading(v, {{pa, x, *left}, {pb, y, *right}, {pc, v, to}});
  code_.line(fmt("const $0* const a = $1;", type, pa));
  code_.line(fmt("const $0* const b = $1;", type, pb));
  code_.line(fmt("$0* const c = $1;", type, pc));

  // While one strip of a matrix outside the cache is used, the next one is fetched: the strip to
  // the right, or at the end of the row the same columns of the next iteration's rows. The fetches
  // are shared out over all panels of rows, so that none has to wait for memory.
  const bool fetch = is_load(y.kind) && copies_.count(b) == 0;
  const int64_t lines = ceil_div(columns * size_in_bytes(dtype), 64);
  const int64_t panels = ceil_div(m.nominal, tile.rows);
  const bool far_apart = ldb * size_in_bytes(dtype) >= kFarApartBytes && ldb != columns;
  const bool pack = far_apart && panels > 1;
  int64_t at_a_time = panels > 1 ? kRowsOfManyPanels : kRowsOfOnePanel;
  // Parts of the same size; a little over one part is not worth a second one.
  at_a_time = ceil_div(k.nominal, std::max<int64_t>(1, (k.nominal + at_a_time / 2) / at_a_time));
  std::string packed = "0";
  if (pack) {
    packed = "strip" + serial;
    allocate(packed, dtype, columns * std::min(at_a_time, k.nominal));
  }
  const bool in_parts = far_apart && (pack || fetch) && k.nominal > at_a_time;
  bool adds = accumulate;
  std::string depth = k.text();
  // One call: `rows` rows from row m, a tile of `vectors` vectors.
  // It fetches `fetched` lines per row from line `line` of the next strip on.
  const auto call = [&](int64_t rows, int64_t vectors, const std::string& from, int64_t ld,
                        bool packs, int64_t line, int64_t fetched, const std::string& bp,
                        const std::string& cp) {
    RegisterTile t = tile;
    t.rows = int(rows);
    t.vectors = int(vectors);
    const std::string row = from == "0" ? "" : from + "*";
    const auto at = [&](const std::string& p, int64_t stride) {
      return from == "0" ? p : fmt("$0 + $1$2", p, row, stride);
    };
    code_.line(
        unit_.micro_kernels.use(dtype, t) + "<" + num(left->strides[x_rank - 2]) + ", " +
        num(left->strides[x_rank - 1]) + ", " + num(ld) + ", " + num(ldc) + ", " +
        (adds ? "1" : "0") + ", " + (packs ? "1" : "0") + ", " + num(fetched > 0 ? ldb : 0) + ", " +
        num(fetched) + ">(" + at(depth == "kk" ? "ak" : "a", left->strides[x_rank - 2]) + ", " +
        bp + ", " + (packs ? packed : "0") + ", " +
        (fetched > 0 ? "next" + (line > 0 ? " + " + num(line * 64 / size_in_bytes(dtype)) : "")
                     : "0") +
        ", " + at(cp, ldc) + ", " + depth + ");");
  };
  // All rows against one strip of columns.
  const auto rows = [&](int64_t vectors, int64_t ld, bool packs, bool fetches,
                        const std::string& bp, const std::string& cp) {
    const std::string r = num(tile.rows);
    if (!m.exact()) {
      // All whole tiles from row m on, then the last rows by halves.
      const auto to_end = [&](int64_t pitch, const std::string& source) {
        code_.open(fmt("for (; m + $0 <= $1; m += $0)", r, m.text()));
        call(tile.rows, vectors, "m", pitch, false, 0, 0, source, cp);
        code_.close();
        for (int64_t part = tile.rows / 2; part > 0; part /= 2) {
          code_.open(fmt("for (; m + $0 <= $1; m += $0)", part, m.text()));
          call(part, vectors, "m", pitch, false, 0, 0, source, cp);
          code_.close();
        }
      };
      code_.line("long m = 0;");
      if (!packs) return to_end(ld, bp);
      code_.open(fmt("if (m + $0 <= $1)", r, m.text()));
      call(tile.rows, vectors, "m", ld, true, 0, 0, bp, cp);
      code_.line("m += " + r + ";");
      const int64_t share = fetches ? ceil_div(lines, std::max<int64_t>(1, panels - 2)) : 0;
      for (int64_t line = 0; fetches && line < lines; line += share) {
        code_.open(fmt("if (m + $0 <= $1)", r, m.text()));
        call(tile.rows, vectors, "m", vectors * tile.lanes, false, line,
             std::min(share, lines - line), packed, cp);
        code_.line("m += " + r + ";");
        code_.close();
      }
      to_end(vectors * tile.lanes, packed);
      code_.close();
      code_.open("else");
      to_end(ld, bp);
      code_.close();
      return;
    }
    const int64_t full = m.nominal / tile.rows, rest = m.nominal % tile.rows;
    // The first calls fetch, a share of the lines each, or one of them packs.
    int64_t first = 0, line = 0;
    const int64_t share = fetches ? ceil_div(lines, std::min(lines, full)) : 0;
    std::string source = bp;
    int64_t pitch = ld;
    while (first < full && (line < (fetches ? lines : 0) || (first == 0 && packs))) {
      const int64_t fetched = fetches ? std::min(share, lines - line) : 0;
      call(tile.rows, vectors, first == 0 ? "0" : num(first * tile.rows), pitch,
           packs && first == 0, line, fetched, source, cp);
      if (packs && first == 0) source = packed, pitch = vectors * tile.lanes;
      line += fetched;
      ++first;
    }
    if (full - first == 1) {
      call(tile.rows, vectors, num(first * tile.rows), pitch, false, 0, 0, source, cp);
    } else if (full > first) {
      code_.open(fmt("for (long m = $0; m < $1; m += $2)", first * tile.rows, full * tile.rows, r));
      call(tile.rows, vectors, "m", pitch, false, 0, 0, source, cp);
      code_.close();
    }
    if (rest > 0) call(rest, vectors, num(full * tile.rows), pitch, false, 0, 0, source, cp);
  };

  // Parts of the right operand's rows, kk from row kb on, for `width` columns of the result at
  // `cp`.
  const auto by_parts = [&](const std::string& width, const std::string& cp,
                            const std::function<void()>& part) {
    if (!accumulate) {
      code_.open("for (long i = 0; i < " + m.text() + "; ++i)");
      code_.line(fmt("for (long j = 0; j < $0; ++j) ($1)[i*$2 + j] = 0;", width, cp, ldc));
      code_.close();
    }
    const std::string step = num(at_a_time);
    code_.open(fmt("for (long kb = 0; kb < $0; kb += $1)", k.text(), step));
    const bool even = k.exact() && k.nominal % at_a_time == 0;
    code_.line("const long kk = " +
               (even ? step : fmt("$0 - kb < $1 ? $0 - kb : $1", k.text(), step)) + ";");
    const int64_t acs = left->strides[x_rank - 1];
    code_.line(fmt("const $0* const ak = a + kb$1;", type, acs == 1 ? "" : "*" + num(acs)));
    depth = "kk";
    adds = true;
    part();
    depth = k.text();
    adds = accumulate;
    code_.close();
  };

  // One whole strip; `following` is where the strip to be read after it begins.
  const auto strip = [&](const std::string& bp, const std::string& cp,
                         const std::string& following) {
    if (!in_parts) {
      if (fetch) code_.line(fmt("const $0* const next = $1;", type, following));
      rows(tile.vectors, ldb, pack, fetch, bp, cp);
      return;
    }
    by_parts(num(columns), cp, [&] {
      if (fetch)
        code_.line(fmt("const $0* const next = kb + $1 < $2 ? $3 + (kb + $1)*$4 : $5;", type,
                       at_a_time, k.text(), bp, ldb, following));
      rows(tile.vectors, ldb, pack, fetch, bp + " + kb*" + num(ldb), cp);
    });
  };

  // The last columns, w of them from column n on, padded with zeros to whole vectors.
  const auto rest = [&](int64_t usual) {  // columns, of all blocks but perhaps the last
    const bool parts = k.nominal > at_a_time;
    const std::string tail = "tail" + serial, lanes = num(tile.lanes);
    const std::string vectors = fmt("(w + $0) / $1", tile.lanes - 1, lanes);
    const int64_t most = n.exact() ? ceil_div(usual, tile.lanes) : tile.vectors;
    allocate(tail, dtype, most * tile.lanes * (parts ? at_a_time : k.nominal));
    const auto part = [&] {
      const std::string from = parts ? "(kb + i)*" : "i*", pitch = num(most * tile.lanes);
      code_.open("for (long i = 0; i < " + depth + "; ++i)");
      code_.line(fmt("for (long j = 0; j < $0; ++j) $1[i*$0 + j] = j < w ? b[$2$3 + n + j] : 0;",
                     pitch, tail, from, ldb));
      code_.close();
      if (usual > 0) {
        code_.open(fmt("if ($0 == $1)", vectors, ceil_div(usual, tile.lanes)));
        rows(ceil_div(usual, tile.lanes), most * tile.lanes, false, false, tail, "c + n");
        code_.close();
      }
      if (n.exact()) return;
      code_.open(fmt("$0for (long j = 0; j < w; j += $1)", usual > 0 ? "else " : "", lanes));
      rows(1, most * tile.lanes, false, false, tail + " + j", "c + n + j");
      code_.close();
    };
    code_.open("if (n < " + n.text() + ")");
    code_.line("const long w = " + n.text() + " - n;");
    if (parts)
      by_parts(vectors + " * " + lanes, "c + n", part);
    else
      part();
    code_.close();
    touch(tail);
  };

  // Column n of the right operand, n a multiple of the tile's columns.
  const std::string b_next = "b + n + " + num(columns);
  const int64_t whole = n.nominal / columns * columns;
  if (n.exact() && n.nominal == columns) {
    strip("b", "c", fmt("b + $0*$1", k.text(), ldb));
  } else {
    code_.line("long n = 0;");
    if (whole > 0) {
      code_.open(fmt("for (; n + $0 <= $1; n += $0)", columns, n.text()));
      strip("b + n", "c + n",
            fmt("n + $0 <= $1 ? $2 : b + $3*$4", 2 * columns, n.text(), b_next, k.text(), ldb));
      code_.close();
    }
    const int64_t left_over = n.nominal - whole;
    if (n.exact() && left_over > 0 && left_over % tile.lanes == 0) {
      code_.open("");
      rows(left_over / tile.lanes, ldb, false, false, "b + n", "c + n");
      code_.close();
    } else if (!n.exact() || left_over > 0) {
      rest(left_over);
    }
  }
  if (pack) touch(packed);
  touch({left->pointer, right->pointer, to.pointer});
  code_.close(opened + 1);
}

}  // namespace tessera
