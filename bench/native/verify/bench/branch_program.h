// Programs with a branch planted in a random one, in two forms: the faults of branch_faults.cpp
// differ at inputs that they name, the laws of branch_laws.cpp nowhere.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "eval/ndarray.h"
#include "ir/graph.h"

namespace tessera {

class Branch;

// A tensor under construction; operators are those of the graph, comparisons among them.
struct Value {
  Branch* in = nullptr;
  TensorId t;
};
Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator-(Value a);
Value operator<(Value a, Value b);
Value operator<=(Value a, Value b);
Value operator>(Value a, Value b);
Value operator>=(Value a, Value b);
Value operator==(Value a, Value b);
Value operator!=(Value a, Value b);
Value operator&(Value a, Value b);
Value operator|(Value a, Value b);
Value operator!(Value a);
// With a constant of the other operand's type.
Value operator+(Value a, double b);
Value operator-(Value a, double b);
Value operator*(Value a, double b);
Value operator<(Value a, double b);
Value operator<=(Value a, double b);
Value operator>(Value a, double b);
Value operator>=(Value a, double b);
Value operator==(Value a, double b);
Value operator!=(Value a, double b);
Value max(Value a, Value b);
Value min(Value a, Value b);
Value max(Value a, double b);
Value min(Value a, double b);
Value where(Value c, Value a, Value b);
Value apply(OpKind kind, Value a, Attrs attrs = NoAttrs{});
Value cast(Value a, DType dtype);

// Thrown by a kind that has no place here.
struct NoPlace {};

// Where a kind builds its branch: around one value of a random program, in one of two forms.
class Branch {
 public:
  using Witness = std::map<uint32_t, std::map<int64_t, double>>;  // input number, element

  Branch(Graph& g, TensorId value, const std::vector<TensorId>& given, uint64_t seed, bool changed,
         Witness* witness);

  const bool changed;  // the second form
  Rng rng;
  const Value value;  // what the program computes there
  int64_t at;         // an element of it

  Graph& graph() { return g_; }
  const Type& type() const { return type_; }
  const Type& type(Value v) const { return g_.type(v.t); }
  bool real() const { return is_float(type_.dtype); }
  int64_t size() const { return num_elements(type_.shape); }
  int64_t row() const { return type_.shape.empty() ? 0 : at / columns() % rows(); }
  int64_t rows() const;     // extent of the last axis but one
  int64_t columns() const;  // and of the last
  int64_t column() const { return at % columns(); }

  // A new input of this type, and one that may be an input of the program.
  Value input(Type type);
  Value operand();
  Value constant(double x) { return constant(x, type_.dtype); }
  Value constant(double x, DType dtype);
  Value iota(int axis_from_end, DType dtype = DType::I64);
  // Numbers that the dtype holds exactly: with a fraction (of floats), and far from ordinary ones.
  double fraction();
  double far();
  double representable(double x) const;
  // Another value than the program's at this place.
  Value other();
  // One form chooses it where a condition holds, the second never does.
  Value only_where(Value condition) { return changed ? value : where(condition, other(), value); }
  // The two forms choose it under different conditions.
  Value choose(Value condition, Value changed_condition) {
    return where(changed ? changed_condition : condition, other(), value);
  }
  Value pick(Value first, Value second) { return changed ? second : first; }
  // All elements along the last axis, as one of a kept axis.
  Value all(Value c), any(Value c), count(Value c);
  // Inputs at which the forms differ: of the element `at`, of another one, or of all.
  void show(Value input, double x) { show(input, at, x); }
  void show(Value input, int64_t element, double x);
  void show_all(Value input, double x);

 private:
  Graph& g_;
  Type type_;
  std::vector<TensorId> given_;
  Witness* witness_;
  std::optional<Value> other_;
};

struct BranchKind {
  enum Domain { Reals, Integers, Any };
  const char* name;
  Domain domain;
  Value (*make)(Branch&);
  // Of faults: rounding makes the difference. Of laws: one decision implies another.
  bool special = false;
};
const std::vector<BranchKind>& branch_faults();
const std::vector<BranchKind>& branch_laws();

struct BranchPair {
  Graph spec, changed;
};
// The kind's two forms in a random program.
std::optional<BranchPair> branch_law(const BranchKind& kind, uint64_t seed);

// Two forms that differ clearly in the interpreter, at inputs that the kind names; nothing if
// what follows hides the difference.
struct BranchFault {
  BranchPair pair;
  bool harmless = false;  // no difference shows
};
std::optional<BranchFault> branch_fault(const BranchKind& kind, uint64_t seed);

}  // namespace tessera
