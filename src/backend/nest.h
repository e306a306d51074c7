// One loop nest of generated code: loops over index variables, statements placed in the outermost
// loop they can stand in, and element expressions that pull values through pointwise and
// data-movement operators down to memory.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "backend/values.h"
#include "ir/axis_reads.h"

namespace tessera {

// Lines of C++ with indentation.
class Code {
 public:
  void line(const std::string& text);
  void open(const std::string& text);  // "text {"
  void close(const std::string& after = "");
  void close(int levels);
  // The same around what is under a condition, nothing where it always holds; and what holds
  // otherwise.
  void open_if(const Condition& condition);
  void close_if(const Condition& condition);
  void otherwise();
  const std::string& text() const { return text_; }
  int indent() const { return indent_; }
  void set_indent(int indent) { indent_ = indent; }
  void append(const std::string& text) { text_ += text; }

 private:
  std::string text_;
  int indent_ = 0;
};

// What code is generated: C++ without headers, or CUDA with the device functions.
enum class Dialect { Cpp, Cuda };

// The type that elements are computed in, and the one they are stored in.
const char* compute_type(DType dtype);
const char* storage_type(DType dtype, Dialect dialect = Dialect::Cpp);
// f32 for 16-bit floats, the dtype itself otherwise: how block-level values are kept.
DType compute_dtype(DType dtype);
std::string literal(const Rational& value, DType dtype, Dialect dialect = Dialect::Cpp);
// The smallest (or largest) value of a type: where a maximum (minimum) over nothing begins.
std::string lowest(DType dtype, Dialect dialect = Dialect::Cpp);
std::string highest(DType dtype, Dialect dialect = Dialect::Cpp);

// The expression of an element; `level` is the loop of the nest it varies with, -1 for none.
struct Scalar {
  std::string text;
  int level = -1;
};

class Nest {
 public:
  // `touch` hears of every value whose memory is read. `prelude` collects function names.
  Nest(const KernelValues& kernel, std::set<std::string>& prelude, std::vector<int>& touched,
       Dialect dialect = Dialect::Cpp)
      : kernel_(kernel), prelude_(prelude), touched_(touched), dialect_(dialect), statements_(1),
        after_(1) {
    vectorise_ = dialect == Dialect::Cpp;
  }

  // Adds an innermost loop over [from, to) and returns its index. Loops of extent 1 vanish.
  Expr loop(const Expr& to, const Expr& from = 0, int64_t step = 1);
  int depth() const { return int(loops_.size()); }
  // Clauses of `#pragma omp simd` for the innermost loop, such as "reduction(+:s)".
  void set_simd(const std::string& clauses) { simd_ = clauses, vectorise_ = true; }
  void no_simd() { vectorise_ = false; }
  // Runs the innermost loop in whole vectors of `lanes` elements; its statements may use the index
  // `lane`, so that each lane has a sum of its own. A loop with a step takes several vectors at a
  // time, which its statements name, and leaves what is not a whole step.
  void set_lanes(int lanes) { lanes_ = lanes; }
  // Statements around each such vector; in the second one the index is that of lane 0 and `count`
  // the number of lanes.
  void around_vectors(const std::string& before, const std::string& after) {
    before_vector_ = before, after_vector_ = after;
  }

  // Expression for the element of value `id` at `index`, one entry per axis, all within its
  // extents.
  std::string element(int id, const std::vector<Expr>& index);
  // The same, with what loop it varies with.
  Scalar scalar(int id, const std::vector<Expr>& index);
  // Adds a statement inside loop `level` (-1: before all loops), after what it was given so far.
  void statement(int level, const std::string& text);
  // The same, after the loops inside `level`.
  void after(int level, const std::string& text);
  // Elements of value `id` at exactly `index` are in the variable `name` already.
  void known(int id, const std::vector<Expr>& index, const std::string& name);
  // An address offset: sum of index times stride.
  static Expr offset(const std::vector<Expr>& index, const std::vector<int64_t>& strides);

  void emit(Code& code) const;
  // Iterations of the innermost loop that the compiler is to take together.
  void unroll(int count) { unroll_ = count; }

 private:
  struct Loop {
    std::string variable;
    Expr from, to;
    int64_t step = 1;
  };
  void emit_lanes(Code& code, const Loop& loop, const std::vector<std::string>& body) const;
  // An index that is declared, in the loop it varies with.
  Expr declared(const Expr& index);
  Scalar named(const char* type, const std::string& expression, int level);
  Scalar load(const Value& value, const std::vector<Expr>& index);
  std::string rounded(const std::string& x, DType as);
  bool is_held(int id) const;
  bool rounds_each() const;
  Scalar pointwise(const Value& value, const std::vector<Expr>& index);
  std::string expression(const Value& value, const std::vector<Scalar>& operands);
  bool by_function(DType dtype) const {  // are products made
    return kernel_.rounds && is_float(dtype) && dialect_ == Dialect::Cuda;
  }
  std::string product(DType dtype, const std::string& a, const std::string& b) const;
  std::string power(DType dtype, const std::string& x, int64_t n) const;
  std::string power(const Value& value, const std::string& x);
  std::string cast(const Value& value, std::string x);
  // Whether a value is x - m with m a maximum that x is part of.
  bool below_maximum(int id) const;
  const Value& operand(const Value& value, size_t i) const {
    return kernel_.values[size_t(value.inputs[i])];
  }
  Scalar movement(int id, const Value& value, const std::vector<Expr>& index);
  std::vector<Expr> read_axes(const Value& value, const std::vector<AxisRead>& reads,
                              const std::vector<Expr>& index) const;
  Scalar padded(const Value& value, const std::vector<Expr>& index);
  Scalar piece(const Value& value, const std::vector<Expr>& index);
  Scalar reshape(const Value& value, const std::vector<Expr>& index);

  std::string builtin(const std::string& function) const;
  const char* index_type() const { return dialect_ == Dialect::Cpp ? "long" : "int"; }
  std::string constant(const Rational& value, DType dtype) const {
    return literal(value, dtype, dialect_);
  }

  const KernelValues& kernel_;
  std::set<std::string>& prelude_;
  std::vector<int>& touched_;
  Dialect dialect_;
  std::map<std::string, std::string> given_;  // elements known from elsewhere
  std::map<std::string, Scalar> made_;        // elements computed so far
  std::vector<Loop> loops_;
  std::vector<std::vector<std::string>> statements_;  // [level + 1]
  std::vector<std::vector<std::string>> after_;       // [level + 1]
  std::map<std::string, Scalar> known_;
  int names_ = 0;
  bool vectorise_ = true;
  int unroll_ = 1;
  int lanes_ = 0;
  std::string before_vector_, after_vector_;
  std::string simd_;
};

// "pointer + offset", where in memory the element at an offset is.
std::string element_address(const Memory& memory, const Expr& offset);
// The expression that reads pointer[offset] as compute type.
std::string load(const Memory& memory, const Expr& offset, std::set<std::string>& prelude);
// "store `value` (of compute type) at pointer[offset]" as one statement.
std::string store(const Memory& memory, const Expr& offset, const std::string& value,
                  std::set<std::string>& prelude);

}  // namespace tessera
