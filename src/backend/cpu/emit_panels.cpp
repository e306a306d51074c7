// Products whose right operand lies in panels: memory is read in the order in which it lies there.
#include <algorithm>
#include <limits>
#include <set>

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
  Memory m{fmt("v$0p$1$2", tile.iter, tile.k, tile.n), v.dtype, {}};
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
  if (part_ == KernelPart::Once) return;
  int64_t bytes = 0;
  for (const auto& [tile, shape] : packed_) {
    const Value& v = value(tile.iter);
    const auto& imap = std::get<IterAttrs>(v.attrs).imap;
    int64_t sharing = 1;
    for (size_t d = kernel_.grid.size(); d-- > 0 && (imap[d] < 0 || kernel_.grid[d] == 1);)
      sharing *= kernel_.grid[d];
    if (sharing == 1) continue;
    int64_t own = packed_elements(tile) * size_in_bytes(v.dtype);
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
    code_.line(fmt("$0<$1, $2, $3>($4, $5, $6, $7);", pack_kernel(unit_.shared, to.storage, turned),
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
  const std::string element = fmt("x[j$0]", acs == 1 ? "" : "*" + num(acs));
  const std::string at = fmt("$0[i*$1 + ", rows.name, rows.pitch);
  code_.open(fmt("for (long i = 0; i < $0; ++i)", m.text()));
  code_.line(fmt("const $0* const x = $1 + i*$2;", storage_type(from.storage), pointer,
                 from.strides[rank - 2]));
  code_.line("#pragma omp simd");
  code_.open(fmt("for (long j = 0; j < $0; ++j)", k.text()));
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
  if (bf16) code_.line(fmt("$0$1] = 0;", at, k.text()));
  if (split) code_.line(fmt("$0$1 + $2] = 0;", at, rows.low, k.text()));
  code_.close();
  return rows;
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
  code_.open(fmt("if (n < $0)", n.text()));
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

void KernelEmitter::last_rows(const Extent& m, int64_t tile,
                              const std::function<void(int64_t rows)>& call) {
  if (m.last > 0) {
    for (int64_t rows : std::set<int64_t>{m.nominal % tile, m.last % tile}) {
      if (rows == 0) continue;
      code_.open(fmt("if (m + $0 == $1)", rows, m.text()));
      call(rows);
      code_.close();
    }
    return;
  }
  for (int64_t rows = tile - 1; rows > 0; rows /= 2) {
    code_.open(fmt("for (; m + $0 <= $1; m += $0)", rows, m.text()));
    call(rows);
    code_.close();
  }
}

class KernelEmitter::Strips {
 public:
  // `next`: what the kernel packs later, where it does that, which is asked for meanwhile; panels
  // are asked for ahead, from memory, where `fetches`.
  Strips(KernelEmitter& emitter, const Matrices& p, const PanelShape& shape, bool accumulate,
         bool fetches, const NextTile& next)
      : emitter_(emitter), code_(emitter.code_), p_(p), tile_(shape.tile), group_(shape.group),
        plain_(p.right.storage == p.to.storage), accumulate_(accumulate), next_(next) {
    // Blocks end where groups do. Where many passes of rows share a block, longer ones save time.
    const int bytes = size_in_bytes(p.right.storage);
    const int64_t passes = ceil_div(p.m.nominal, tile_.rows);
    const int64_t block_bytes = plain_ && passes >= kManyPasses ? 2 * kBlockBytes : kBlockBytes;
    block_ = std::max<int64_t>(block_bytes / (tile_.columns() * bytes), 16) / 2 * 2;
    blocks_ = p.k.nominal > block_;
    // Every pass of rows over a block fetches its share of the block that far ahead.
    ahead_ = std::max(kAheadBytes, block_bytes);
    if (!next_.begin.empty()) {
      // A fetch for every kFetchSteps of a pass, piece by piece of what lies in order, and the next
      // lines of these in the next pass; more pieces than that are shared out over several passes.
      const int64_t width = tile_.columns(), depth = at_a_time();
      rounds_ = ceil_div(next_.turned ? width : depth, std::max<int64_t>(1, depth / kFetchSteps));
      const int64_t lines = ceil_div((next_.turned ? depth : width) * bytes, 64) * rounds_;
      share_ = ceil_div(lines, std::min(lines, passes));
      fetching_ = ceil_div(lines, share_);
      return;
    }
    if (!fetches) return;
    steps_ = plain_ ? kFetchSteps : 1;
    const int64_t lines = ceil_div(tile_.columns() * bytes * group_, 64) * steps_;
    share_ = ceil_div(lines, std::min(lines, passes));
    fetching_ = ceil_div(lines, share_);
  }

  void emit() {
    code_.line(fmt("$0a = $1;", left_type(), p_.a));
    code_.line(fmt("$0b = $1;", right_type(), p_.b));
    code_.line(fmt("$0* const c = $1;", storage_type(p_.to.storage), p_.c));
    emitter_.each_panel(
        p_.n, tile_, [&](int64_t vectors, const std::string& column) { strip(vectors, column); });
  }

 private:
  std::string left_type() const { return fmt("const $0* const ", storage_type(p_.left.storage)); }
  std::string right_type() const { return fmt("const $0* const ", storage_type(p_.right.storage)); }
  std::string depth() const { return blocks_ ? "kk" : p_.k.text(); }
  int64_t at_a_time() const { return blocks_ ? block_ : p_.k.nominal; }

  // Where pass number `pass` fetches `lines` lines of each piece.
  std::string next_pieces(const std::string& pass, int64_t lines) const {
    const int64_t words = lines * 64 / size_in_bytes(p_.right.storage);
    std::string piece = !blocks_ ? "0" : next_.turned ? fmt("kb / $0", kFetchSteps) : "kb";
    if (rounds_ == 1) return fmt("nk + $0*$1 + ($2)*$3", piece, next_.pitch, pass, words);
    piece += fmt(" + ($0) % $1*$2", pass, rounds_, at_a_time() / kFetchSteps);
    return fmt("nk + ($0)*$1 + ($2) / $3*$4", piece, next_.pitch, pass, rounds_, words);
  }

  // `pass` is an expression where `row` is one.
  void call(int64_t rows, int64_t vectors, const std::string& row, const std::string& pass,
            int64_t fetched) {
    const RegisterTile t{int(rows), int(vectors), tile_.lanes};
    const auto from = [&](const std::string& pointer, int64_t stride) {
      return row == "0" ? pointer : fmt("$0 + $1*$2", pointer, row, stride);
    };
    std::string f = "0";
    const int64_t line = 64 / size_in_bytes(p_.right.storage);
    const int64_t apart = next_.begin.empty() ? fetched * line : next_.pitch;
    if (fetched > 0 && !next_.begin.empty()) {
      f = next_pieces(pass, fetched);
    } else if (fetched > 0) {
      f = fmt("(const char*)bk + $0", ahead_);
      if (pass != "0")
        f += fmt(row == "m" ? " + $0/$1*$2*($3)" : " + $0/$1*$2*$3", depth(), group_ * steps_,
                 fetched * 64, pass);
    }
    if (plain_) f = fmt("(const $0*)($1)", storage_type(p_.right.storage), f);
    code_.line(fmt(plain_ ? "$0<$1, 1, $2, $3, $4, $5, $6>" : "$0<$1, $2, $3, $4, $5>",
                   plain_ ? tile_kernel(emitter_.unit_.shared, p_.to.storage, t)
                          : panel_kernel(emitter_.unit_.shared, emitter_.unit_.isa, p_.left.storage,
                                         p_.right.storage, t),
                   p_.ars, tile_.columns(), p_.ldc, accumulate_ || blocks_, fetched, apart) +
               fmt("($0, bk, $1, $2, $3);", from("ak", p_.ars), from("ck", p_.ldc), f, depth()));
  }

  // The passes of whole tiles, up to row `full` (which is `known`, or -1): those before `fetching_`
  // fetch.
  void passes_to(const std::string& full, int64_t known, int64_t vectors) {
    const int64_t rows = tile_.rows, stop = fetching_ * rows;
    if (fetching_ > 0) {
      const bool all = known >= 0 && known <= stop;
      if (known == rows || (known >= stop && fetching_ == 1)) {
        call(rows, vectors, "0", "0", share_);
      } else {
        code_.open(fmt("for (long m = 0; m + $0 <= $1; m += $0)", rows,
                       fmt(all          ? "$0"
                           : known >= 0 ? "$1"
                                        : "($0 < $1 ? $0 : $1)",
                           full, stop)));
        call(rows, vectors, "m", fmt("m/$0", rows), share_);
        code_.close();
      }
      if (all) return;
    }
    if (known >= 0 && known - rows == stop) return call(rows, vectors, num(stop), "0", 0);
    code_.open(fmt("for (long m = $0; m + $1 <= $2; m += $1)", stop, rows, full));
    call(rows, vectors, "m", "0", 0);
    code_.close();
  }

  void all_rows(int64_t vectors) {
    const Extent& m = p_.m;
    if (!m.exact()) {
      passes_to(m.text(), -1, vectors);
      code_.line(fmt("long m = $0 / $1 * $1;", m.text(), tile_.rows));
      return emitter_.last_rows(m, tile_.rows,
                                [&](int64_t rows) { call(rows, vectors, "m", "0", 0); });
    }
    const int64_t pass = m.nominal / tile_.rows, full = pass * tile_.rows, rest = m.nominal - full;
    if (full > 0) passes_to(num(full), full, vectors);
    if (rest > 0) call(rest, vectors, num(full), num(pass), pass < fetching_ ? share_ : 0);
  }

  // `vectors` vectors of the panel that begins with column j.
  void strip(int64_t vectors, const std::string& j) {
    const std::string k = p_.k.text();
    const std::string b = j == "0" ? "b" : fmt("b + $0*$1", j, p_.right.panel_pitch);
    code_.line(fmt("$0* const ck = c + $1;", storage_type(p_.to.storage), j));
    if (!next_.begin.empty())
      code_.line(
          fmt("$0nk = $1 + $2*$3;", right_type(), next_.begin, j, next_.turned ? next_.pitch : 1));
    if (!blocks_) {
      code_.line(left_type() + "ak = a;");
      code_.line(fmt("$0bk = $1;", right_type(), b));
      return all_rows(vectors);
    }
    if (!accumulate_) {
      code_.open(fmt("for (long i = 0; i < $0; ++i)", p_.m.text()));
      code_.line(
          fmt("for (long j = 0; j < $0; ++j) ck[i*$1 + j] = 0;", vectors * tile_.lanes, p_.ldc));
      code_.close();
    }
    code_.open(fmt("for (long kb = 0; kb < $0; kb += $1)", k, block_));
    code_.line(fmt("const long kk = $0 - kb < $1 ? $0 - kb : $1;", k, block_));
    code_.line(left_type() + "ak = a + kb;");
    code_.line(fmt("$0bk = $1 + kb*$2;", right_type(), b, tile_.columns()));
    all_rows(vectors);
    code_.close();
  }

  KernelEmitter& emitter_;
  Code& code_;
  const Matrices& p_;
  const RegisterTile tile_;
  const int64_t group_;
  const bool plain_, accumulate_;
  const NextTile next_;
  int64_t block_, ahead_;  // rows of a block of k; bytes
  bool blocks_;            // there are several
  // Groups that share lines; lines that a pass fetches, and how many passes do.
  int64_t steps_ = 1, share_ = 0, fetching_ = 0;
  int64_t rounds_ = 1;  // passes that fetch the same lines, of other pieces
};

KernelEmitter::NextTile KernelEmitter::next_tile(int b, const Matrices& p) const {
  const std::optional<RightOperand> tile = right_operand(kernel_, b);
  if (!packed_operand(b) || p.right.storage != p.to.storage) return {};
  const Value& v = value(tile->iter);
  const Memory from = kernel_.argument_memory(v.argument, "v" + num(tile->iter));
  const auto step = [&](int axis) {
    return v.extents[size_t(axis)].nominal * from.strides[size_t(axis)];
  };
  NextTile next{from.pointer, from.strides[size_t(tile->k)]};
  next.turned = next.pitch == 1;
  if (next.turned) next.pitch = from.strides[size_t(tile->n)];
  // What the loop reads next, or after its last iteration the next block, of the next columns.
  std::vector<size_t> loops;
  for (size_t l = 0; l < kernel_.loops.size(); ++l)
    if ((v.phase.varies >> l & 1) != 0 && kernel_.loops[l] > 1) loops.push_back(l);
  if (loops.size() != 1)
    next.begin += fmt(" + $0", step(loops.empty() ? tile->n : tile->k));
  else
    next.begin += fmt(" + (l$0 + 1 < $1 ? $2 : $3 - l$0*$2)", loops[0], kernel_.loops[loops[0]],
                      step(tile->k), step(tile->n));
  return next;
}

void KernelEmitter::panels(int a, int b, const Value& v, const Memory& to, bool accumulate) {
  const std::optional<Memory> left = view(a), right = panel_operand(b);
  CHECK(left && right && left_of_panel(a, *right)) << "operands of a product by panels";
  Matrices p = open_product(a, b, v, *left, *right, to);
  const Extent &m = p.m, &n = p.n, &k = p.k;
  const std::optional<PanelShape> shape =
      panel_shape(unit_.isa, to.storage, right->storage, m.nominal, n.nominal);
  CHECK(shape && shape->tile.columns() == right->panel) << "panels of another width than the tile";
  const std::optional<StreamTile> few =
      stream_tile(unit_.isa, to.storage, right->storage, m.nominal, n.nominal);
  const bool tiles = !few && unit_.isa == CpuIsa::Amx && right->storage == DType::BF16;
  const bool widen = few && left->storage != to.storage;
  const bool split = tiles && left->storage == DType::F32;
  const bool odd = tiles && (!k.exact() || k.nominal % 2 != 0);  // needs a zero at the end
  LeftRows rows;
  if (p.acs != 1 || split || odd || widen) {
    const DType storage = tiles ? DType::BF16 : few ? to.storage : left->storage;
    rows = left_rows(value(a), *left, p.a, storage, split);
    p.a = rows.name;
    p.ars = rows.pitch;
  }
  if (few)
    streams(p, *few, accumulate);
  else if (tiles)
    code_.line(fmt("$0<$1, $2, $3, $4, $5, $6>", amx_kernel(unit_.shared), p.ars, p.ldc,
                   right->panel_pitch, rows.low, accumulate, packed_operand(b) ? 0 : kAheadBytes) +
               fmt("($0, $1, $2, $3, $4, $5);", p.a, p.b, p.c, m.text(), n.text(), k.text()));
  else
    Strips(*this, p, *shape, accumulate, !packed_operand(b), next_tile(b, p)).emit();
  if (!rows.name.empty()) touch(rows.name);
  close_product(p);
}

void KernelEmitter::streams(const Matrices& p, const StreamTile& tile, bool accumulate) {
  const auto call = [&](int64_t rows, int64_t vectors, const std::string& j) {
    StreamTile t = tile;
    t.tile.rows = int(rows);
    t.tile.vectors = int(vectors);
    const bool first = j == "0";
    code_.line(fmt("$0<$1, $2, $3, $4>",
                   stream_kernel(unit_.shared, unit_.isa, p.to.storage, p.right.storage, t), p.ars,
                   tile.tile.columns(), p.ldc, accumulate) +
               fmt("($0, $1$2, $3$4, $5);", p.a, p.b,
                   first ? "" : fmt(" + $0*$1", j, p.right.panel_pitch), p.c,
                   first ? "" : " + " + j, p.k.text()));
  };
  each_panel(p.n, tile.tile, [&](int64_t vectors, const std::string& j) {
    if (p.m.exact()) return call(p.m.nominal, vectors, j);
    for (int64_t rows = 1; rows <= p.m.nominal; ++rows) {
      code_.open(fmt("if ($0 == $1)", p.m.text(), rows));
      call(rows, vectors, j);
      code_.close();
    }
  });
}

}  // namespace tessera
