// Products whose right operand lies in panels: memory is read in the order in which it lies there.
#include <algorithm>
#include <limits>

#include "backend/cpu/emitter.h"
#include "backend/fmt.h"
#include "base/check.h"
#include "base/text.h"

namespace tessera {
namespace {

// How far ahead panels are asked for, in the order in which they lie in memory: near enough to be
// still in the second-level cache when it is their turn, far enough for memory to deliver.
constexpr int64_t kAheadBytes = 16384;
// What several passes of rows read of a panel before they go on. Sums of blocks are added up at the
// end, which keeps the rounding errors of long sums small.
constexpr int64_t kBlockBytes = 16384;
constexpr int64_t kManyPasses = 8;

// Packed tiles that a function keeps for the blocks that follow.
constexpr int64_t kMostKeptBytes = int64_t{3} << 19;

}  // namespace

std::optional<Memory> KernelEmitter::panel_operand(int id) const {
  std::optional<Memory> memory = view(id);
  if (memory && memory->panel > 0) return memory;
  const std::optional<RightOperand> tile = right_operand(kernel_, id);
  if (!tile || packed_.count(*tile) == 0) return std::nullopt;
  const Memory packed = packed_memory(*tile);
  return view_of(id, &packed);
}

bool KernelEmitter::packed_operand(int id) const {
  const std::optional<RightOperand> tile = right_operand(kernel_, id);
  return tile && packed_.count(*tile) != 0;
}

Memory KernelEmitter::packed_memory(const RightOperand& tile) const {
  const PanelShape& shape = packed_.at(tile);
  const Value& v = value(tile.iter);
  const size_t k = size_t(tile.k), n = size_t(tile.n);
  // Names tell apart tiles that are packed in two ways.
  Memory m{fmt("v$0p$1$2", tile.iter, tile.k, tile.n), DType::BF16, {}};
  m.panel = shape.tile.columns();
  // An odd number of lines from panel to panel, so that they lie in different sets of the cache.
  const int64_t pairs = ceil_div(v.extents[k].nominal, shape.group) | 1;
  m.panel_pitch = pairs * shape.group;
  m.strides.assign(v.extents.size(), 1);
  m.strides[k] = m.panel;
  int64_t below = m.panel_pitch * ceil_div(v.extents[n].nominal, m.panel) * m.panel;
  for (size_t axis = v.extents.size(); axis-- > 0;) {
    if (axis == k || axis == n) continue;
    m.strides[axis] = below;
    below *= v.extents[axis].nominal;
  }
  return m;
}

int64_t KernelEmitter::packed_elements(const RightOperand& tile) const {
  const Value& v = value(tile.iter);
  const Memory m = packed_memory(tile);
  int64_t n = m.panel_pitch * ceil_div(v.extents[size_t(tile.n)].nominal, m.panel) * m.panel;
  for (size_t axis = 0; axis < v.extents.size(); ++axis)
    if (int(axis) != tile.k && int(axis) != tile.n) n *= v.extents[axis].nominal;
  return n;
}

void KernelEmitter::keep_packed() {
  if (part_ == Part::Once) return;
  int64_t bytes = 0;
  for (const auto& [tile, shape] : packed_) {
    const Value& v = value(tile.iter);
    const auto& imap = std::get<IterAttrs>(v.attrs).imap;
    int64_t sharing = 1;
    for (size_t d = kernel_.grid.size(); d-- > 0 && (imap[d] < 0 || kernel_.grid[d] == 1);)
      sharing *= kernel_.grid[d];
    if (sharing == 1) continue;
    int64_t own = packed_elements(tile) * size_in_bytes(DType::BF16);
    for (size_t l = 0; l < kernel_.loops.size(); ++l)
      if ((v.phase.varies >> l & 1) != 0) own *= kernel_.loops[l];
    if (bytes + own > kMostKeptBytes) continue;
    bytes += own;
    kept_[tile] = sharing;
  }
}

int64_t KernelEmitter::blocks_together() const {
  int64_t most = 1;
  for (const auto& [tile, sharing] : kept_) most = std::max(most, sharing);
  return most;
}

void KernelEmitter::pack_tile(int id) {
  const Value& v = value(id);
  for (const auto& [tile, shape] : packed_) {
    if (tile.iter != id) continue;
    const Memory to = packed_memory(tile);
    const Memory from = kernel_.argument_memory(v.argument, "v" + num(id));
    const size_t k = size_t(tile.k), n = size_t(tile.n);
    int64_t elements = packed_elements(tile);
    const auto kept = kept_.find(tile);
    const std::string type = storage_type(to.storage);
    code_.line(
        fmt("// $0: $1 in panels of $2 by $3", to.pointer, from.pointer, to.panel, shape.group));
    if (kept == kept_.end()) {
      allocate(to.pointer, to.storage, elements);
      code_.open("");
    } else {
      // All iterations' tiles, for as long as the function runs.
      std::string offset;
      for (size_t l = kernel_.loops.size(); l-- > 0;) {
        if ((v.phase.varies >> l & 1) == 0) continue;
        offset += fmt(" + l$0*$1", l, elements);
        elements *= kernel_.loops[l];
      }
      allocate(to.pointer + "s", to.storage, elements);
      Buffer& all = buffers_[buffer_of_.at(to.pointer + "s")];
      all.birth = 0;
      all.death = std::numeric_limits<int>::max();
      code_.line(fmt("$0* const $1 = $1s$2;", type, to.pointer, offset));
      code_.open(fmt("if ($0of != block / $1)", to.pointer, kept->second));
    }
    std::string source = from.pointer, target = to.pointer;
    int opened = 0;
    for (size_t axis = 0; axis < v.extents.size(); ++axis) {
      if (axis == k || axis == n || v.extents[axis].nominal == 1) continue;
      const std::string q = "q" + num(int64_t(axis));
      code_.open(fmt("for (long $0 = 0; $0 < $1; ++$0)", q, v.extents[axis].text()));
      ++opened;
      source += fmt(" + $0*$1", q, from.strides[axis]);
      target += fmt(" + $0*$1", q, to.strides[axis]);
    }
    const bool turned = from.strides[n] != 1;
    if (turned) unit_.prelude.insert("t_transpose");
    code_.line(fmt("$0<$1, $2, $3>($4, $5, $6, $7);", unit_.panel_kernels.use_pack(turned),
                   from.strides[turned ? n : k], to.panel_pitch, to.panel, source, target,
                   v.extents[k].text(), v.extents[n].text()));
    while (opened-- > 0) code_.close();
    code_.close();
    touch(to.pointer);
  }
}

bool KernelEmitter::left_of_panel(int id, const Memory& right) const {
  const std::optional<Memory> left = view(id);
  if (!left) return false;
  if (left->storage == compute_dtype(right.storage)) return true;
  return left->storage == DType::BF16 && right.storage == DType::BF16 &&
         panels_take_bf16(unit_.isa);
}

int KernelEmitter::open_leading(const Value& v, std::initializer_list<Leading> operands) {
  const size_t rank = v.extents.size();
  int opened = 0;
  for (size_t i = 0; i + 2 < rank; ++i) {
    if (v.extents[i].nominal == 1) continue;
    const std::string q = "q" + num(int64_t(i));
    code_.open(fmt("for (long $0 = 0; $0 < $1; ++$0)", q, v.extents[i].text()));
    ++opened;
    for (const Leading& o : operands) {
      const size_t r = o.value.extents.size();
      if (i + r < rank || o.value.extents[i + r - rank].nominal == 1) continue;
      o.pointer += fmt(" + $0*$1", q, o.memory.strides[i + r - rank]);
    }
  }
  return opened;
}

KernelEmitter::LeftRows KernelEmitter::left_rows(const Value& x, const Memory& from,
                                                 const std::string& pointer, DType storage,
                                                 bool split) {
  const size_t rank = x.extents.size();
  const Extent &m = x.extents[rank - 2], &k = x.extents[rank - 1];
  const bool bf16 = storage == DType::BF16;
  const int64_t line = 64 / size_in_bytes(storage);
  LeftRows rows;
  rows.name = "rows" + num(names_++);
  rows.pitch = (ceil_div(k.nominal + 1, line) | 1) * line;  // in different sets of the cache
  rows.low = split ? m.nominal * rows.pitch : 0;
  allocate(rows.name, storage, m.nominal * rows.pitch * (split ? 2 : 1));
  const int64_t acs = from.strides[rank - 1];
  const std::string element = "x[j" + (acs == 1 ? "" : "*" + num(acs)) + "]";
  const std::string at = fmt("$0[i*$1 + ", rows.name, rows.pitch);
  code_.open("for (long i = 0; i < " + m.text() + "; ++i)");
  code_.line(fmt("const $0* const x = $1 + i*$2;", storage_type(from.storage), pointer,
                 from.strides[rank - 2]));
  code_.line("#pragma omp simd");
  code_.open("for (long j = 0; j < " + k.text() + "; ++j)");
  if (split) {
    unit_.prelude.insert("t_split");
    code_.line(fmt("$0j] = t_high($1);", at, element));
    code_.line(fmt("$0$1 + j] = t_low($2);", at, rows.low, element));
  } else if (from.storage == DType::BF16 && !bf16) {
    unit_.prelude.insert("t_bf16");
    code_.line(fmt("$0j] = t_from_bf16($1);", at, element));
  } else {
    code_.line(fmt("$0j] = $1;", at, element));
  }
  code_.close();
  if (bf16) code_.line(at + k.text() + "] = 0;");
  if (split) code_.line(fmt("$0$1 + $2] = 0;", at, rows.low, k.text()));
  code_.close();
  return rows;
}

void KernelEmitter::panels(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const std::optional<Memory> left = view(a), right = panel_operand(b);
  CHECK(left && right && left_of_panel(a, *right)) << "operands of a product by panels";
  const Value &x = value(a), &y = value(b);
  const size_t rank = v.extents.size(), x_rank = x.extents.size(), y_rank = y.extents.size();
  const Extent &m = v.extents[rank - 2], &n = v.extents[rank - 1];
  const Extent& k = x.extents.back().exact() ? y.extents[y_rank - 2] : x.extents.back();
  const std::optional<PanelShape> shape =
      panel_shape(unit_.isa, to.storage, right->storage, m.nominal, n.nominal);
  CHECK(shape && shape->tile.columns() == right->panel) << "panels of another width than the tile";
  PanelOperands p{
      *left, *right, to, left->pointer, right->pointer, to.pointer, left->strides[x_rank - 2]};

  code_.open("");
  int opened = open_leading(v, {{p.a, x, *left}, {p.b, y, *right}, {p.c, v, to}});
  const std::optional<StreamTile> few =
      stream_tile(unit_.isa, to.storage, right->storage, m.nominal, n.nominal);
  const bool tiles = !few && unit_.isa == CpuIsa::Amx && right->storage == DType::BF16;
  const bool widen = few && left->storage != to.storage;
  const bool split = tiles && left->storage == DType::F32;
  const bool odd = tiles && (!k.exact() || k.nominal % 2 != 0);  // needs a zero at the end
  LeftRows rows;
  if (left->strides[x_rank - 1] != 1 || split || odd || widen) {
    const DType storage = tiles ? DType::BF16 : few ? to.storage : left->storage;
    rows = left_rows(x, *left, p.a, storage, split);
    p.a = rows.name;
    p.ars = rows.pitch;
  }
  if (few) {
    streams(v, p, k, *few, accumulate);
  } else if (tiles) {
    code_.line(unit_.panel_kernels.use_tiles() + "<" + num(p.ars) + ", " +
               num(to.strides[rank - 2]) + ", " + num(right->panel_pitch) + ", " + num(rows.low) +
               ", " + (accumulate ? "1" : "0") + ", " + num(packed_operand(b) ? 0 : kAheadBytes) +
               ">(" + p.a + ", " + p.b + ", " + p.c + ", " + m.text() + ", " + n.text() + ", " +
               k.text() + ");");
  } else {
    strips(v, p, k, *shape, accumulate, !packed_operand(b));
  }
  if (!rows.name.empty()) touch(rows.name);
  touch({left->pointer, right->pointer, to.pointer});
  code_.close(opened + 1);
}

void KernelEmitter::streams(const Value& v, const PanelOperands& p, const Extent& k,
                            const StreamTile& tile, bool accumulate) {
  const size_t rank = v.extents.size();
  const Extent &m = v.extents[rank - 2], &n = v.extents[rank - 1];
  const int64_t columns = tile.tile.columns();
  const auto call = [&](int64_t rows, int64_t vectors, const std::string& j) {
    StreamTile t = tile;
    t.tile.rows = int(rows);
    t.tile.vectors = int(vectors);
    const bool first = j == "0";
    code_.line(unit_.stream_kernels.use(unit_.isa, p.to.storage, p.right.storage, t) + "<" +
               num(p.ars) + ", " + num(columns) + ", " + num(p.to.strides[rank - 2]) + ", " +
               (accumulate ? "1" : "0") + ">(" + p.a + ", " + p.b +
               (first ? "" : fmt(" + $0*$1", j, p.right.panel_pitch)) + ", " + p.c +
               (first ? "" : " + " + j) + ", " + k.text() + ");");
  };
  const auto panel = [&](int64_t vectors, const std::string& j) {
    if (m.exact()) return call(m.nominal, vectors, j);
    for (int64_t rows = 1; rows <= m.nominal; ++rows) {
      code_.open(fmt("if ($0 == $1)", m.text(), rows));
      call(rows, vectors, j);
      code_.close();
    }
  };
  each_panel(n, tile.tile, panel);
}

void KernelEmitter::each_panel(
    const Extent& n, const RegisterTile& tile,
    const std::function<void(int64_t vectors, const std::string& column)>& panel) {
  const int64_t columns = tile.columns(), rest = n.nominal % columns;
  if (n.exact() && n.nominal <= columns) return panel(ceil_div(n.nominal, tile.lanes), "0");
  code_.line("long n = 0;");
  if (n.nominal >= columns) {
    code_.open(fmt("for (; n + $0 <= $1; n += $0)", columns, n.text()));
    panel(tile.vectors, "n");
    code_.close();
  }
  if (n.exact() && rest == 0) return;
  // The last panel is filled up with zeros, and rows of the result have room for whole vectors: a
  // shorter tile for all those of a panel, unless it ends in the last panel of a whole tile.
  code_.open("if (n < " + n.text() + ")");
  const bool first = !n.exact() && n.nominal >= columns;
  if (first) {
    if (rest > 0) code_.open(fmt("if (n + $0 <= $1)", columns, n.nominal));
    panel(tile.vectors, "n");
    if (rest > 0) code_.close();
  }
  if (rest > 0) {
    code_.open(first ? "else" : "");
    panel(ceil_div(rest, tile.lanes), "n");
    code_.close();
  }
  code_.close();
}

void KernelEmitter::strips(const Value& v, const PanelOperands& p, const Extent& k,
                           const PanelShape& shape, bool accumulate, bool fetches) {
  const size_t rank = v.extents.size();
  const Extent &m = v.extents[rank - 2], &n = v.extents[rank - 1];
  const RegisterTile& tile = shape.tile;
  const int64_t columns = tile.columns(), ldc = p.to.strides[rank - 2];
  const int bytes = size_in_bytes(p.right.storage);
  const bool plain = p.right.storage == p.to.storage;
  const std::string left_type = std::string("const ") + storage_type(p.left.storage) + "* const ";
  const std::string right_type = std::string("const ") + storage_type(p.right.storage) + "* const ";
  code_.line(fmt("$0a = $1;", left_type, p.a));
  code_.line(fmt("$0b = $1;", right_type, p.b));
  code_.line(fmt("$0* const c = $1;", storage_type(p.to.storage), p.c));
  // Blocks end where groups do. Where many passes of rows share a block, longer ones save time.
  const int64_t passes = ceil_div(m.nominal, tile.rows);
  const int64_t block_bytes = plain && passes >= kManyPasses ? 2 * kBlockBytes : kBlockBytes;
  const int64_t block = std::max<int64_t>(block_bytes / (columns * bytes), 16) / 2 * 2;
  const bool blocks = k.nominal > block;
  const std::string depth = blocks ? "kk" : k.text();
  // Every pass of rows over a block fetches its share of the block that far ahead.
  const int64_t ahead = std::max(kAheadBytes, block_bytes);
  const int64_t lines = ceil_div(columns * bytes * shape.group, 64);  // of a group of rows
  const int64_t steps = plain ? kFetchSteps : 1;                      // groups that share lines
  const int64_t share = fetches ? ceil_div(lines * steps, std::min(lines * steps, passes)) : 0;
  const int64_t fetching = fetches ? ceil_div(lines * steps, share) : 0;

  // `pass` is an expression where `row` is one.
  const auto call = [&](int64_t rows, int64_t vectors, const std::string& row,
                        const std::string& pass, int64_t fetched) {
    RegisterTile t = tile;
    t.rows = int(rows);
    t.vectors = int(vectors);
    const auto from = [&](const std::string& pointer, int64_t stride) {
      return row == "0" ? pointer : fmt("$0 + $1*$2", pointer, row, stride);
    };
    std::string f = "0";
    if (fetched > 0) {
      f = "(const char*)bk + " + num(ahead);
      if (pass != "0")
        f += fmt(" + $0/$1*$2*$3", depth, shape.group * steps, fetched * 64,
                 row == "m" ? "(" + pass + ")" : pass);
    }
    const std::string operands = from("ak", p.ars) + ", bk, ", result = from("ck", ldc);
    const std::string adds = accumulate || blocks ? "1" : "0";
    if (plain) {
      const std::string type = storage_type(p.right.storage);
      code_.line(unit_.micro_kernels.use_steady(p.to.storage, t) + "<" + num(p.ars) + ", " +
                 num(columns) + ", " + num(ldc) + ", " + adds + ", " + num(fetched) + ">(" +
                 operands + result + ", (const " + type + "*)(" + f + "), " + depth + ");");
    } else {
      code_.line(fmt("$0<$1, $2, $3, $4, $5>($6$7, $8, $9);",
                     unit_.panel_kernels.use(unit_.isa, p.left.storage, p.right.storage, t), p.ars,
                     columns, ldc, adds, fetched, operands, result, f, depth));
    }
  };
  const auto rows = [&](int64_t vectors) {
    const std::string r = num(tile.rows);
    // The passes before `fetching` fetch, then the others of whole tiles, up to row `full`.
    const auto passes_to = [&](const std::string& full, int64_t known) {
      std::string first = "0";
      if (fetching > 0) {
        const int64_t stop = fetching * tile.rows;
        const bool all = known >= 0 && known <= stop;
        if (known == tile.rows || (known >= stop && fetching == 1)) {
          call(tile.rows, vectors, "0", "0", share);
        } else {
          code_.open(fmt("for (long m = 0; m + $0 <= $1; m += $0)", r,
                         all          ? full
                         : known >= 0 ? num(stop)
                                      : fmt("($0 < $1 ? $0 : $1)", full, stop)));
          call(tile.rows, vectors, "m", "m/" + r, share);
          code_.close();
        }
        if (all) return;
        first = num(stop);
      }
      if (known >= 0 && known - tile.rows == std::stoll(first))
        return call(tile.rows, vectors, first, "0", 0);
      code_.open(fmt("for (long m = $0; m + $1 <= $2; m += $1)", first, r, full));
      call(tile.rows, vectors, "m", "0", 0);
      code_.close();
    };
    if (!m.exact()) {
      passes_to(m.text(), -1);
      // The last rows by halves.
      code_.line(fmt("long m = $0 / $1 * $1;", m.text(), r));
      for (int64_t part = tile.rows - 1; part > 0; part /= 2) {
        code_.open(fmt("for (; m + $0 <= $1; m += $0)", part, m.text()));
        call(part, vectors, "m", "0", 0);
        code_.close();
      }
      return;
    }
    const int64_t full = m.nominal / tile.rows * tile.rows, rest = m.nominal - full;
    if (full > 0) passes_to(num(full), full);
    if (rest > 0) {
      const int64_t pass = full / tile.rows;
      call(rest, vectors, num(full), num(pass), pass < fetching ? share : 0);
    }
  };
  // `vectors` vectors of the panel that begins with column j.
  const auto strip = [&](int64_t vectors, const std::string& j) {
    const std::string pb = j == "0" ? "b" : fmt("b + $0*$1", j, p.right.panel_pitch);
    code_.line(fmt("$0* const ck = c + $1;", storage_type(p.to.storage), j));
    if (!blocks) {
      code_.line(left_type + "ak = a;");
      code_.line(fmt("$0bk = $1;", right_type, pb));
      return rows(vectors);
    }
    if (!accumulate) {
      code_.open("for (long i = 0; i < " + m.text() + "; ++i)");
      code_.line(fmt("for (long j = 0; j < $0; ++j) ck[i*$1 + j] = 0;", vectors * tile.lanes, ldc));
      code_.close();
    }
    const std::string step = num(block);
    code_.open(fmt("for (long kb = 0; kb < $0; kb += $1)", k.text(), step));
    code_.line(fmt("const long kk = $0 - kb < $1 ? $0 - kb : $1;", k.text(), step));
    code_.line(left_type + "ak = a + kb;");
    code_.line(fmt("$0bk = $1 + kb*$2;", right_type, pb, columns));
    rows(vectors);
    code_.close();
  };
  each_panel(n, tile, strip);
}

}  // namespace tessera
