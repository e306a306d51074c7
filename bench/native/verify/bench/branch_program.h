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
struct BranchValue {
  Branch* in = nullptr;
  TensorId t;
};
BranchValue operator+(BranchValue a, BranchValue b);
BranchValue operator-(BranchValue a, BranchValue b);
BranchValue operator*(BranchValue a, BranchValue b);
BranchValue operator/(BranchValue a, BranchValue b);
BranchValue operator-(BranchValue a);
BranchValue operator<(BranchValue a, BranchValue b);
BranchValue operator<=(BranchValue a, BranchValue b);
BranchValue operator>(BranchValue a, BranchValue b);
BranchValue operator>=(BranchValue a, BranchValue b);
BranchValue operator==(BranchValue a, BranchValue b);
BranchValue operator!=(BranchValue a, BranchValue b);
BranchValue operator&(BranchValue a, BranchValue b);
BranchValue operator|(BranchValue a, BranchValue b);
BranchValue operator!(BranchValue a);
// With a constant of the other operand's type.
BranchValue operator+(BranchValue a, double b);
BranchValue operator-(BranchValue a, double b);
BranchValue operator*(BranchValue a, double b);
BranchValue operator<(BranchValue a, double b);
BranchValue operator<=(BranchValue a, double b);
BranchValue operator>(BranchValue a, double b);
BranchValue operator>=(BranchValue a, double b);
BranchValue operator==(BranchValue a, double b);
BranchValue operator!=(BranchValue a, double b);
BranchValue max(BranchValue a, BranchValue b);
BranchValue min(BranchValue a, BranchValue b);
BranchValue max(BranchValue a, double b);
BranchValue min(BranchValue a, double b);
BranchValue where(BranchValue c, BranchValue a, BranchValue b);
BranchValue apply(OpKind kind, BranchValue a, Attrs attrs = NoAttrs{});
BranchValue cast(BranchValue a, DType dtype);

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
  const BranchValue value;  // what the program computes there
  int64_t at;               // an element of it

  Graph& graph() { return g_; }
  const Type& type() const { return type_; }
  const Type& type(BranchValue v) const { return g_.type(v.t); }
  bool real() const { return is_float(type_.dtype); }
  int64_t size() const { return num_elements(type_.shape); }
  int64_t row() const { return type_.shape.empty() ? 0 : at / columns() % rows(); }
  int64_t rows() const;     // extent of the last axis but one
  int64_t columns() const;  // and of the last
  int64_t column() const { return at % columns(); }

  // A new input of this type, and one that may be an input of the program.
  BranchValue input(Type type);
  BranchValue operand();
  BranchValue constant(double x) { return constant(x, type_.dtype); }
  BranchValue constant(double x, DType dtype);
  BranchValue iota(int axis_from_end, DType dtype = DType::I64);
  // Numbers that the dtype holds exactly: with a fraction (of floats), and far from ordinary ones.
  double fraction();
  double far();
  double representable(double x) const;
  // Another value than the program's at this place.
  BranchValue other();
  // One form chooses it where a condition holds, the second never does.
  BranchValue only_where(BranchValue condition) {
    return changed ? value : where(condition, other(), value);
  }
  // The two forms choose it under different conditions.
  BranchValue choose(BranchValue condition, BranchValue changed_condition) {
    return where(changed ? changed_condition : condition, other(), value);
  }
  BranchValue pick(BranchValue first, BranchValue second) { return changed ? second : first; }
  // All elements along the last axis, as one of a kept axis.
  BranchValue all(BranchValue c), any(BranchValue c), count(BranchValue c);
  // Inputs at which the forms differ: of the element `at`, of another one, or of all.
  void show(BranchValue input, double x) { show(input, at, x); }
  void show(BranchValue input, int64_t element, double x);
  void show_all(BranchValue input, double x);

 private:
  Graph& g_;
  Type type_;
  std::vector<TensorId> given_;
  Witness* witness_;
  std::optional<BranchValue> other_;
};

struct BranchKind {
  enum Domain { Reals, Integers, Any };
  const char* name;
  Domain domain;
  BranchValue (*make)(Branch&);
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
