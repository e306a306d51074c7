// Kernels that are expressions of whole arrays, and sums of those, while all stays in the cache: no
// tiles, every sum in registers.
#include <algorithm>
#include <functional>

#include "backend/cpu/emit_kernel.h"
#include "backend/fmt.h"
#include "base/text.h"
#include "base/thread_pool.h"

namespace tessera {
namespace {

// Vectors of sums that a loop adds to: enough to hide the latency of additions.
constexpr int kSumsTogether = 8;
// Rows that are summed side by side; they share what is the same for all of them.
constexpr int kRowsTogether = 4;

// From this much on, threads share out one sum, in at least so many parts.
constexpr int64_t kLeastSharedBytes = 128 << 10, kSharedParts = 8;

class SumEmitter {
 public:
  SumEmitter(const WholeKernel& whole, const std::vector<DType>& dtypes, UnitContext& unit)
      : whole_(whole), dtypes_(dtypes), unit_(unit), kept_(whole.kept.size()),
        all_(kept_ + whole.summed.size()) {}

  std::optional<KernelText> run(const std::string& name) {
    if (kept_ > 1 || whole_.summed.empty()) return std::nullopt;
    type_ = compute_dtype(value(whole_.sums[0]).dtype);
    for (int sum : whole_.sums)
      if (compute_dtype(value(sum).dtype) != type_ ||
          compute_dtype(value(value(sum).inputs[0]).dtype) != type_)
        return std::nullopt;
    lanes_ = lanes_of(unit_.isa, type_);
    const bool along = contiguous(all_ - 1);
    if (!along && (kept_ == 0 || !contiguous(kept_ - 1))) return std::nullopt;
    KernelText out;
    const size_t operands = dtypes_.size() - whole_.results.size();
    const std::vector<Layout>& layouts = whole_.values.argument_layouts;
    if (along && kept_ == 0 && shared_out()) {
      open_function(code_, name + "_once", dtypes_, operands, layouts, "double");
      if (whole_.summed.back() < 2 * lanes_ || !sum_rows(0, 1)) return std::nullopt;
      code_.close();
      open_function(code_, name, dtypes_, operands, layouts, "double");
      add_parts();
      code_.close();
      out.first_units = units_;
      out.workspace_bytes = units_ * part_stride() * 8;
    } else {
      open_function(code_, name, dtypes_, operands, layouts);
      if (along ? !rows() : !columns()) return std::nullopt;
      code_.close();
      out.units = units_;
    }
    out.text = code_.text();
    return out;
  }

 private:
  const Value& value(int id) const { return whole_.values.values[size_t(id)]; }

  // Whether operands of the sums lie in memory along an axis, or do not vary with it.
  bool contiguous(size_t axis) const {
    std::vector<bool> term(whole_.values.values.size(), false);
    bool some = false;
    for (size_t i = term.size(); i-- > 0;) {
      const Value& v = whole_.values.values[i];
      for (int input : v.inputs) {
        const size_t to = size_t(input);
        term[to] = term[to] || term[i] || v.kind == OpKind::Sum;
      }
      if (!is_tile(v.kind) || !term[i]) continue;
      if (v.memory.strides[axis] != 0 && v.memory.strides[axis] != 1) return false;
      some |= v.memory.strides[axis] == 1;
    }
    return some;
  }

  // Whether threads had better share out the terms of all sums.
  bool shared_out() const {
    int64_t bytes = 0;
    for (const Value& v : whole_.values.values)
      if (is_tile(v.kind)) bytes += v.elements() * size_in_bytes(v.memory.storage);
    return bytes >= kLeastSharedBytes && whole_.summed[0] >= kSharedParts;
  }
  // Of what the parts leave in the workspace, in f64: parts do not write to each other's cache
  // line.
  int64_t part_stride() const { return ceil_div(int64_t(whole_.sums.size()), 8) * 8; }

  // The sums of all parts, and what follows from them.
  void add_parts() {
    for (size_t s = 0; s < whole_.sums.size(); ++s) {
      const std::string d = "d" + sum_name(s, 0);
      code_.line(fmt("double $0 = 0;", d));
      code_.line(fmt("for (long unit = 0; unit < $0; ++unit) $1 += workspace[unit * $2 + $3];",
                     units_, d, part_stride(), s));
    }
    save(0, [&](size_t s) { return fmt("($0)d$1", storage_type(type_), sum_name(s, 0)); });
  }

  std::string sum_name(size_t sum, int copy) const { return fmt("s$0_$1", sum, copy); }

  void declare(int copies) {
    for (size_t s = 0; s < whole_.sums.size(); ++s)
      for (int c = 0; c < copies; ++c) {
        const std::string lanes = num(lanes_);
        code_.line(fmt("$0 $1[$2] __attribute__((aligned(64)));", storage_type(type_),
                       sum_name(s, c), lanes));
        code_.line(fmt("for (int l = 0; l < $0; ++l) $1[l] = 0;", lanes, sum_name(s, c)));
      }
  }

  // One `for` over all summed axes but the last; their indices.
  std::vector<Expr> open_outer(const Expr& first_from, const Expr& first_to) {
    std::vector<Expr> index;
    for (size_t i = 0; i + 1 < whole_.summed.size(); ++i) {
      const std::string k = "k" + num(int64_t(i));
      code_.open(fmt("for (long $0 = $1; $0 < $2; ++$0)", k, i == 0 ? first_from : Expr(0),
                     i == 0 ? first_to : Expr(whole_.summed[i])));
      index.push_back(Expr::variable(k, {0, whole_.summed[i] - 1}));
    }
    return index;
  }
  void close_outer() {
    for (size_t i = 0; i + 1 < whole_.summed.size(); ++i) code_.close();
  }

  // Adds terms at `from` + `first` vectors on, to the sums of `rows` rows or of `vectors` vectors.
  // With `end`, as many times as there are whole such steps before it.
  void add_vectors(const Expr& row, int rows, int vectors, const std::vector<Expr>& outer,
                   const Expr& from, const Expr& end) {
    Nest nest(whole_.values, unit_.prelude, touched_);
    const Expr i = nest.loop(end, from, vectors * lanes_);
    for (int copy = 0; copy < std::max(rows, vectors); ++copy) {
      std::vector<Expr> index;
      if (kept_ > 0) index.push_back(rows > 1 ? row + copy : row);
      index.insert(index.end(), outer.begin(), outer.end());
      // Of the first vector of several.
      index.push_back(rows > 1 || copy == 0
                          ? i
                          : i.within(whole_.summed.back() - copy * lanes_) + copy * lanes_);
      for (size_t s = 0; s < whole_.sums.size(); ++s)
        nest.statement(nest.depth() - 1, fmt("$0[lane] += $1;", sum_name(s, copy),
                                             nest.element(value(whole_.sums[s]).inputs[0], index)));
    }
    nest.set_lanes(int(lanes_));
    nest.emit(code_);
  }

  // The same for the last elements, less than a vector: to sums of their own, which need not be in
  // registers as whole vectors.
  void add_rest(const Expr& row, int rows, const std::vector<Expr>& outer, const Expr& from,
                const Expr& to) {
    Nest nest(whole_.values, unit_.prelude, touched_);
    const Expr lane = nest.loop(to - from);
    for (int r = 0; r < rows; ++r) {
      std::vector<Expr> index;
      if (kept_ > 0) index.push_back(rows > 1 ? row + r : row);
      index.insert(index.end(), outer.begin(), outer.end());
      index.push_back((from + lane).within(whole_.summed.back()));
      for (size_t s = 0; s < whole_.sums.size(); ++s)
        nest.statement(nest.depth() - 1, fmt("$0[$1] += $2;", sum_name(s, rest_ + r), lane,
                                             nest.element(value(whole_.sums[s]).inputs[0], index)));
    }
    nest.emit(code_);
  }

  // Adds the terms of `rows` rows at `row` with `copies` vectors at a time; n: how many, or -1.
  void add_terms(const Expr& row, int rows, int copies, const std::vector<Expr>& outer,
                 const Expr& from, const Expr& to, int64_t n) {
    const int64_t step = copies * lanes_;
    if (n >= 0) {
      const int64_t whole = n / lanes_ * lanes_, most = n / step * step;
      if (most > 0) add_vectors(row, rows, copies, outer, 0, most);
      if (whole > most) add_vectors(row, rows, int((whole - most) / lanes_), outer, most, whole);
      if (n > whole) add_rest(row, rows, outer, whole, n);
      return;
    }
    const auto down = [&](int64_t unit) { return fmt("$0 + ($1 - $0) / $2 * $2", from, to, unit); };
    code_.line(fmt("const long most = $0, whole = $1;", down(step), down(lanes_)));
    const Expr most = Expr::variable("most", to.range()),
               whole = Expr::variable("whole", to.range());
    add_vectors(row, rows, copies, outer, from, most);
    if (copies > 1) add_vectors(row, rows, 1, outer, most, whole);
    add_rest(row, rows, outer, whole, to);
  }

  // What follows from the sums of one row, whose totals have names.
  void save(const Expr& row, const std::function<std::string(size_t)>& total) {
    Nest nest(whole_.values, unit_.prelude, touched_);
    std::vector<Expr> index(all_);
    if (kept_ > 0) index[0] = row;
    for (size_t s = 0; s < whole_.sums.size(); ++s) nest.known(whole_.sums[s], index, total(s));
    store_results(nest, index);
    nest.emit(code_);
  }

  void store_results(Nest& nest, const std::vector<Expr>& index) {
    for (const auto& [id, argument] : whole_.results) {
      const std::string x = nest.element(id, index);
      const Memory to{"a" + num(argument), dtypes_[size_t(argument)],
                      std::vector<int64_t>(kept_, 1)};
      const Expr at = kept_ > 0 ? index[0] : 0;
      nest.statement(nest.depth() - 1, store(to, at, x, unit_.prelude));
    }
  }

  // How many vectors of `n` elements to add at a time: as leaves the fewest to themselves.
  int vectors_together(int64_t n) const {
    const int64_t vectors = n / lanes_;
    int best = kSumsTogether;
    if (vectors >= 8 * kSumsTogether) return best;
    for (int c = kSumsTogether; c >= kSumsTogether / 2; --c)
      if (vectors % c < vectors % best) best = c;
    return int(std::min<int64_t>(best, vectors));
  }

  // All sums of `rows` rows at `row`.
  bool sum_rows(const Expr& row, int rows) {
    const int copies = rows > 1 ? 1 : vectors_together(whole_.summed.back());
    // Sums of more 32-bit terms than this per lane are added up in parts, and the parts in f64:
    // rounding errors then grow with the length of a part.
    const int64_t most = type_ == DType::F32 ? kMostTermsOfLane * lanes_ * copies : INT64_MAX;
    const int64_t terms = product_of(whole_.summed), first = whole_.summed[0];
    const bool flat = whole_.summed.size() == 1;
    int64_t part = terms <= most ? first : most / (terms / first);
    if (part < 1) return false;
    const bool shared = kept_ == 0 && shared_out();
    if (shared) {
      const int64_t unit = flat ? copies * lanes_ : 1;
      part = std::min(part, ceil_div(ceil_div(first, kSharedParts), unit) * unit);
      units_ = ceil_div(first, part);
    }
    const bool parts = part < first;
    if (shared && !parts) return false;
    unit_.prelude.insert("t_lanes");
    code_.open("");
    if (parts) {
      for (size_t s = 0; !shared && s < whole_.sums.size(); ++s)
        for (int r = 0; r < rows; ++r) code_.line(fmt("double d$0 = 0;", sum_name(s, r)));
      if (shared) {
        code_.open("for (long unit = begin; unit < end; ++unit)");
        code_.line(fmt("const long part = unit * $0;", part));
      } else {
        code_.open(fmt("for (long part = 0; part < $0; part += $1)", first, part));
      }
      code_.line(fmt("const long stop = part + $0 < $1 ? part + $0 : $1;", part, first));
    }
    const Expr from = parts ? Expr::variable("part", {0, first}) : 0,
               to = parts ? Expr::variable("stop", {0, first}) : first;
    rest_ = std::max(rows, copies);
    const int64_t n = flat && parts ? -1 : whole_.summed.back();
    const bool rest = n < 0 || n % lanes_ != 0;
    declare(rest_ + (rest ? rows : 0));
    const std::vector<Expr> outer = open_outer(from, to);
    add_terms(row, rows, copies, outer, flat ? from : 0, flat ? to : Expr(n), n);
    close_outer();
    for (size_t s = 0; s < whole_.sums.size(); ++s) {
      for (int r = 0; rest && r < rows; ++r)
        code_.line(fmt("for (int l = 0; l < $0; ++l) $1[l] += $2[l];", lanes_, sum_name(s, r),
                       sum_name(s, rest_ + r)));
      for (int c = copies; c-- > 1;)  // in pairs
        code_.line(fmt("for (int l = 0; l < $0; ++l) $1[l] += $2[l];", lanes_,
                       sum_name(s, (c - 1) / 2), sum_name(s, c)));
      for (int r = 0; r < rows; ++r) {
        const std::string total = fmt("t_lanes<t_add>($0)", sum_name(s, r));
        if (shared)
          code_.line(fmt("workspace[unit * $0 + $1] = $2;", part_stride(), s, total));
        else if (parts)
          code_.line(fmt("d$0 += $1;", sum_name(s, r), total));
        else
          code_.line(fmt("const $0 d$1 = $2;", storage_type(type_), sum_name(s, r), total));
      }
    }
    if (parts) code_.close();
    for (int r = 0; !shared && r < rows; ++r) {
      save(
          rows > 1 ? row + r : row,
          [&](size_t s) { return std::string(parts ? "(float)d" : "d") + sum_name(s, r); });
    }
    code_.close();
    return true;
  }

  // The sums run along memory: some rows at a time, every lane with sums of its own.
  bool rows() {
    if (whole_.summed.back() < 2 * lanes_) return false;
    if (kept_ == 0) return sum_rows(0, 1);
    const int64_t n = whole_.kept[0];
    const bool together = n >= kRowsTogether;
    const int64_t step = together ? kRowsTogether : 1;
    units_ = ceil_div(n, step);
    code_.line(fmt("const long hi = end * $0 < $1 ? end * $0 : $1;", step, n));
    code_.line(fmt("long row = begin * $0;", step));
    bool fits = true;
    if (together) {
      code_.open(fmt("for (; row + $0 <= hi; row += $0)", step));
      fits = sum_rows(Expr::variable("row", {0, n - step}), kRowsTogether);
      code_.close();
    }
    if (together && n % step == 0) return fits;
    code_.open("for (; row < hi; ++row)");
    fits = fits && sum_rows(Expr::variable("row", {0, n - 1}), 1);
    code_.close();
    return fits;
  }

  // They run across memory: a strip of columns at a time, whose sums are in registers.
  bool columns() {
    const int64_t n = whole_.kept[0];
    if (n < lanes_ || product_of(whole_.summed) > kMostTermsOfLane * 16) return false;
    const int64_t vectors = ceil_div(n, lanes_);
    const int64_t sums = int64_t(whole_.sums.size());
    int64_t width = std::max<int64_t>(1, kSumsTogether / sums);
    width = std::min(
        width, ceil_div(vectors, std::max<int64_t>(ceil_div(vectors, width), default_threads())));
    // The last strip's last vector is whole.
    while (n - (ceil_div(n, width * lanes_) - 1) * width * lanes_ < lanes_) ++width;
    units_ = ceil_div(n, width * lanes_);
    code_.open("for (long unit = begin; unit < end; ++unit)");
    const std::string step = num(width * lanes_);
    code_.line(fmt("const long lo = unit * $0;", step));
    code_.line(fmt("const long last = (lo + $0 < $1 ? lo + $0 : $1) - $2;", step, n, lanes_));
    const int copies = int(width);
    for (int c = 0; c < copies; ++c) {
      const std::string at = "lo + " + num(c * lanes_);
      code_.line(fmt("const long b$0 = $1 < last ? $1 : last;", c, at));
    }
    declare(copies);
    std::vector<Expr> index(1);
    for (size_t i = 0; i < whole_.summed.size(); ++i) {
      const std::string k = "k" + num(int64_t(i));
      code_.open(fmt("for (long $0 = 0; $0 < $1; ++$0)", k, whole_.summed[i]));
      index.push_back(Expr::variable(k, {0, whole_.summed[i] - 1}));
    }
    const auto in_strip = [&](const Expr& lane, int c) {
      index[0] = Expr::variable(fmt("b$0", c), {0, n - lanes_}) + lane;
    };
    {
      Nest nest(whole_.values, unit_.prelude, touched_);
      const Expr lane = nest.loop(lanes_);
      for (int c = 0; c < copies; ++c) {
        in_strip(lane, c);
        for (size_t s = 0; s < whole_.sums.size(); ++s)
          nest.statement(nest.depth() - 1,
                         fmt("$0[$1] += $2;", sum_name(s, c), lane,
                             nest.element(value(whole_.sums[s]).inputs[0], index)));
      }
      nest.emit(code_);
    }
    for (size_t i = 0; i < whole_.summed.size(); ++i) code_.close();
    std::fill(index.begin() + 1, index.end(), Expr());
    for (int c = 0; c < copies; ++c) {
      Nest nest(whole_.values, unit_.prelude, touched_);
      const Expr lane = nest.loop(lanes_);
      in_strip(lane, c);
      for (size_t s = 0; s < whole_.sums.size(); ++s)
        nest.known(whole_.sums[s], index, fmt("$0[$1]", sum_name(s, c), lane));
      store_results(nest, index);
      nest.emit(code_);
    }
    code_.close();
    return true;
  }

  static constexpr int64_t kMostTermsOfLane = 256;

  const WholeKernel& whole_;
  const std::vector<DType>& dtypes_;
  UnitContext& unit_;
  size_t kept_, all_;
  DType type_ = DType::F32;
  int64_t lanes_ = 0, units_ = 1;
  int rest_ = 0;  // the first of the sums of less than a vector
  Code code_;
  std::vector<int> touched_;
};

}  // namespace

std::optional<KernelText> emit_whole(const std::string& name, const WholeKernel& whole,
                                     const std::vector<DType>& argument_dtypes, UnitContext& unit) {
  if (!whole.sums.empty()) return SumEmitter(whole, argument_dtypes, unit).run(name);
  const size_t operands = argument_dtypes.size() - whole.results.size();
  return emit_map(name, whole.values, whole.kept, whole.results, argument_dtypes, operands, unit);
}

}  // namespace tessera
