// Reductions: of elements, each result by lanes side by side, and of what products hold in
// registers, along their rows.
#include <algorithm>

#include "backend/cuda/block_emitter.h"

namespace tessera {

class ReductionCode {
 public:
  ReductionCode(BlockEmitter& emitter, int id, int into)
      : e_(emitter), code_(emitter.code_), id_(id), into_(into), v_(emitter.value(id)),
        x_(emitter.value(v_.inputs[0])), m_(emitter.value(into).memory), sum_(is_sum(v_.kind)),
        keeps_(std::get<ReduceAttrs>(v_.attrs).keepdims), type_(compute_type(v_.dtype)) {
    const std::vector<int>& axes = std::get<ReduceAttrs>(v_.attrs).axes;
    for (size_t i = 0; i < x_.extents.size(); ++i) {
      reduced_.push_back(std::ranges::binary_search(axes, int(i)));
      (reduced_[i] ? gone_ : kept_).push_back(x_.extents[i]);
      (reduced_[i] ? terms_ : outputs_) *= x_.extents[i].nominal;
    }
    const bool narrow = v_.dtype != DType::I64;
    if (!is_float(v_.dtype))  // sums wrap around
      as_ = sum_ ? (narrow ? "(unsigned)" : "(unsigned long)") : (narrow ? "(int)" : "");
    if (sum_) return;
    const bool most = fold_of(v_.kind) == AccumKind::Max;
    e_.prelude_.insert("t_max");
    function_ = most ? "t_max" : "t_min";
    start_ = most ? lowest(v_.dtype, Dialect::Cuda) : highest(v_.dtype, Dialect::Cuda);
  }

  // Lanes side by side share a result; where there are few results, whole warps do, and meet in
  // shared memory.
  void of_elements() {
    int64_t lanes = 1;
    while (lanes < e_.threads_ && lanes < terms_ && outputs_ * lanes < e_.threads_) lanes *= 2;
    const int64_t warps = std::max<int64_t>(1, lanes / 32);  // that share a result
    begin(warps, " of " + n(terms_) + ", " + n(lanes) + " threads each");
    const std::vector<Expr> output = open_outputs(lanes);
    const Condition all =
        outputs_ % (e_.threads_ / lanes) == 0 ? Condition() : Condition("o < " + n(outputs_));
    const Condition inside = all && e_.guard(kept_, output);
    code_.line(type_ + " r = " + start_ + ";");
    code_.open_if(inside);
    fold_terms(output, lanes);
    code_.close_if(inside);
    if (lanes > 1)
      code_.line("for (int lanes = " + n(std::min<int64_t>(lanes, 32) / 2) +
                 "; lanes > 0; lanes /= 2) r = " + folded("r", "ts::shuffle_xor(r, lanes)") + ";");
    const std::string mapping = "reduced " + n(outputs_) + " by " + n(lanes);
    if (warps == 1) {
      const Condition who =
          inside && (lanes > 1 ? Condition("ts::thread() % " + n(lanes) + " == 0") : Condition());
      code_.open_if(who);
      put(output);
      code_.close_if(who);
    } else {
      code_.open_if(Condition("ts::lane() == 0") && inside);
      put_part("o", warps, "ts::warp() % " + n(warps));
      code_.close();
    }
    code_.close();
    e_.reads_touched("");
    finish(warps, mapping);
  }

  // Rows are folded by each thread, then by the lanes that share them, and, where several warps
  // do, in shared memory.
  void of_registers() {
    const int product = e_.units_of_.at(e_.held_for_.at(id_)[0]);
    const BlockEmitter::Units& u = e_.units_.at(product);
    const int64_t rows = x_.extents[x_.extents.size() - 2].nominal;
    const int64_t parts = u.swapped ? u.row_units * 4 : u.column_units;
    begin(parts, " of rows in registers");
    e_.open_matrices(product);
    const auto [row, column] = e_.places_in_registers(u);
    const std::vector<Expr> index = e_.index_in(x_, row, column);
    const Condition inside = e_.within(u, x_, nullptr, row, column);
    const int outer = u.swapped ? open_columns(u) : open_rows(u);
    code_.line(type_ + " r = " + start_ + ";");
    const int inner = u.swapped ? open_rows(u) : open_columns(u);
    code_.open_if(inside);
    Nest loops = e_.nest_over(id_, u, index);
    const std::string x = loops.element(v_.inputs[0], index);
    loops.statement(-1, "r = " + folded("r", x) + ";");
    loops.emit(code_);
    code_.close_if(inside);
    code_.close(inner);
    for (int lanes : u.swapped ? std::vector<int>{4, 8, 16} : std::vector<int>{1, 2})
      code_.line("r = " + folded("r", "ts::shuffle_xor(r, " + n(lanes) + ")") + ";");
    code_.open_if(Condition(u.swapped ? "ts::lane() / 4 == 0" : "ts::lane() % 4 == 0") &&
                  e_.within(u, x_, nullptr, row, std::nullopt));
    if (parts == 1)
      put({index.begin(), index.end() - 1});
    else
      put_part("(" + std::string(u.batch > 1 ? "matrix * " + n(rows) + " + " : "") + row.text() +
                   ")",
               parts,
               u.swapped ? (u.row_units > 1 ? "row / 16 + " : "") + std::string("ts::warp() % 4")
                         : "u % " + n(u.column_units));
    code_.close(1 + outer);
    code_.close(2);
    e_.reads_held(id_);
    finish(parts, "");
  }

 private:
  static std::string n(int64_t x) { return std::to_string(x); }
  std::string folded(const std::string& p, const std::string& q) const {
    if (sum_) return as_ + p + " + " + as_ + q;
    return function_ + "(" + as_ + p + ", " + as_ + q + ")";
  }
  // What warps or units that share results have of them.
  std::string partial() const { return m_.pointer + "p"; }

  // The step that folds; where `parts` are to be put together, finish() adds one that does.
  void begin(int64_t parts, const std::string& how) {
    const bool accumulates = into_ != id_;
    if (!accumulates) e_.buffer(m_.pointer, m_.storage, e_.memory_elements(into_));
    if (parts > 1) e_.buffer(partial(), compute_dtype(v_.dtype), outputs_ * parts);
    e_.begin(m_.pointer + (accumulates ? " folds " : " " + e_.shape_text(v_) + ": ") +
             name(v_.kind) + how);
  }
  void finish(int64_t parts, const std::string& mapping) {
    e_.writes(parts == 1 ? m_.pointer : partial(), parts == 1 ? mapping : "");
    e_.finish();
    if (parts == 1) return;
    e_.begin("");
    e_.open_each(outputs_);
    const std::vector<Expr> output = e_.indices(kept_, Expr::variable("i", {0, outputs_ - 1}));
    const Condition inside = e_.guard(kept_, output);
    code_.open_if(inside);
    code_.line(type_ + " r = " + start_ + ";");
    code_.line("for (int w = 0; w < " + n(parts) + "; ++w) r = " +
               folded("r", "ts::load_shared(" + partial() + " + i * " + n(parts) + " + w)") + ";");
    put(output);
    code_.close_if(inside);
    code_.close();
    e_.reads(partial(), "");
    e_.writes(m_.pointer, mapping);
    e_.finish();
  }

  // Stores `r`, the result's element that has `output` as its place among the axes that are kept.
  void put(const std::vector<Expr>& output) {
    std::vector<Expr> index;
    size_t next = 0;
    for (bool gone : reduced_)
      if (!gone)
        index.push_back(output[next++]);
      else if (keeps_)
        index.emplace_back(0);
    const Expr at = Nest::offset(index, m_.strides);
    const std::string total = v_.kind == OpKind::Mean ? mean() : "r";
    code_.line(store(m_, at, into_ != id_ ? folded(load(m_, at, e_.prelude_), total) : total,
                     e_.prelude_));
  }
  std::string mean() const {
    int64_t exact = 1;
    std::string rest;
    for (const Extent& e : gone_)
      if (e.exact())
        exact *= e.nominal;
      else
        rest += " * " + e.text();
    return "r / static_cast<" + type_ + ">(" + n(exact) + rest + ")";
  }
  void put_part(const std::string& output, int64_t parts, const std::string& part) {
    code_.line("ts::store_shared(" + partial() + " + " + output + " * " + n(parts) + " + " + part +
               ", r);");
  }

  // Opens a block, or a loop, in which this thread is one of `lanes` that have the same result.
  std::vector<Expr> open_outputs(int64_t lanes) {
    const int64_t at_once = e_.threads_ / lanes;
    const bool once = outputs_ <= at_once;
    code_.open(once ? ""
                    : "for (int first = 0; first < " + n(outputs_) + "; first += " + n(at_once) +
                          ")");
    code_.line("const int o = " + std::string(once ? "" : "first + ") +
               (lanes == 1 ? "ts::thread()" : "ts::thread() / " + n(lanes)) + ";");
    return e_.indices(kept_, Expr::variable("o", {0, std::max(outputs_, at_once) - 1}));
  }

  // Folds each of so many terms of an output into `r`.
  void fold_terms(const std::vector<Expr>& output, int64_t lanes) {
    Nest loops = e_.nest();
    const Expr from = Expr::variable("ts::thread()", {0, e_.threads_ - 1}) % lanes;
    const bool one = gone_.size() == 1;
    const Expr along = loops.loop(one ? gone_[0].expr() : terms_, from, lanes);
    std::vector<Expr> index;
    int64_t below = terms_;
    size_t next = 0;
    Condition within;
    for (size_t i = 0; i < x_.extents.size(); ++i) {
      const Extent& extent = x_.extents[i];
      if (!reduced_[i] || one) {
        index.push_back(reduced_[i] ? along : output[next++]);
        continue;
      }
      below /= extent.nominal;
      index.push_back(along / below % extent.nominal);
      if (!extent.exact()) within = within && index.back() < extent.expr();
    }
    const int inner = loops.depth() - 1;
    if (!within.always()) loops.statement(inner, "if (!(" + within.text() + ")) continue;");
    const std::string x = loops.element(v_.inputs[0], index);
    loops.statement(inner, "r = " + folded("r", x) + ";");
    // Many loads from global memory on their way at once, not one after the other.
    if (terms_ >= 4 * lanes && std::ranges::any_of(e_.touched_, [&](int t) {
          return e_.home(t) == BlockEmitter::Home::Direct;
        }))
      loops.unroll(8);
    loops.emit(code_);
  }

  // Loops over the rows, or the columns, that a thread has of a unit: how many were opened.
  int open_rows(const BlockEmitter::Units& u) {
    if (!u.wide) e_.unrolled("i", u.rows);
    e_.unrolled("h", 2);
    code_.line("const int y = " + e_.row_of_fragment(u).text() + ";");
    return u.wide ? 1 : 2;
  }
  int open_columns(const BlockEmitter::Units& u) {
    e_.unrolled("j", u.columns);
    code_.line("const int x = column + 8 * j + ts::lane() % 4 * 2;");
    e_.unrolled("e", 2);
    return 2;
  }

  BlockEmitter& e_;
  Code& code_;
  const int id_, into_;
  const Value &v_, &x_;
  const Memory& m_;
  const bool sum_, keeps_;
  const std::string type_;
  std::vector<bool> reduced_;  // by axis of the operand
  std::vector<Extent> kept_, gone_;
  int64_t outputs_ = 1, terms_ = 1;
  std::string as_, function_, start_ = "0";
};

void BlockEmitter::reduce(int id, int into) {
  ReductionCode code(*this, id, into);
  if (held_for_.count(id) != 0)
    code.of_registers();
  else
    code.of_elements();
}

}  // namespace tessera
