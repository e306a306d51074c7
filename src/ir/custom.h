// Operators that users state: functions of one number or two, given as C computes them in double,
// with a law that they obey (Mirage §7: a float meaning, one in finite fields, and axioms). In
// fields, and to the second opinion, they are unknown functions of which the law alone is known.
#pragma once

#include <string>
#include <vector>

#include "ir/op.h"

namespace tessera {

enum class Law { None, Odd, Even, Commutative };

class CustomFunction {
 public:
  // Throws Error(BadInput) where the text is no expression in x and y, numbers, + - * / and
  // comparisons, `c ? a : b` and functions of <math.h>, or where numbers of many sizes show that it
  // does not obey its law.
  explicit CustomFunction(const CustomAttrs& attrs);
  int arity() const { return arity_; }
  Law law() const { return law_; }
  uint64_t key() const { return key_; }  // of its text and its law
  // Whether it is a number at all numbers: without quotients and functions that are not.
  bool is_total() const;
  template <class T> T operator()(T x, T y) const;
  // C text of its value at operands that are doubles. `prefix` stands before functions' names.
  std::string text(const std::vector<std::string>& operands, const std::string& prefix) const;

 private:
  friend class CustomParser;
  struct Step {  // in postfix order
    enum Kind { Number, Argument, Minus, Binary, Choice, Call } kind;
    int takes = 0, which = 0;  // which argument, operator or function
    double number = 0;
  };
  template <class V, class F> V folded(F f) const;

  std::vector<Step> steps_;
  int arity_ = 1;
  Law law_ = Law::None;
  uint64_t key_ = 0;
};

// Read once in a process.
const CustomFunction& custom_function(const CustomAttrs& attrs);

}  // namespace tessera
