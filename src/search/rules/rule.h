// Rewrite rules as data: two NumPy-level expressions that are equal for all shapes their variables
// may have, with the conditions under which they are, and where they come from. Text form (one rule
// a block, rules/*.rules):
//
//   rule diagonal-of-product
//     A [m k], B [k m]
//     diagonal(A @ B) = sum(A * transpose(B), axis=-1)
//     holds for real, integer
//     learned from stenso/diag_dot
//     checked on 64 instances
//
// Shapes name extents, any from 1 on; a name stands for one extent. A leading "..." stands for any
// axes, which broadcast as NumPy's operators let them; "...s" for axes that are the same wherever
// that name stands. "c constant" declares a number; numbers made of such (c + 1, c*d) may stand on
// the right. Axes are counted from the end, as what leads may be anything. The other lines:
//   assumes B != 0     the left side is undefined elsewhere; it grows the domain (level bitwise:
//   refused) where A >= 0       must be known to be true: the sides differ elsewhere
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "search/synth/node.h"

namespace tessera::rules {

// Reduce: over all axes.
inline constexpr uint64_t kAllAxes = UINT64_MAX;

struct ShapePattern {
  std::optional<std::string> leading;  // name of the axes in front; "": any, different each time
  std::vector<std::string> dims;       // names; "1" is the extent 1
  friend bool operator==(const ShapePattern&, const ShapePattern&) = default;
};

struct Variable {
  std::string name;
  ShapePattern shape;
  bool boolean = false;
  friend bool operator==(const Variable&, const Variable&) = default;
};

// A number of a rule: literal, bound by a match, or made of earlier ones.
struct Constant {
  enum class Kind : uint8_t { Literal, Variable, Add, Sub, Mul, Div };
  Kind kind = Kind::Literal;
  Rational value;         // Literal
  std::string name = {};  // Variable
  uint32_t a = 0, b = 0;  // operands of the others, indices below their own
  friend bool operator==(const Constant&, const Constant&) = default;
};

struct Condition {
  enum class Kind : uint8_t { Positive, NonNegative, Nonzero };
  Kind kind = Kind::Positive;
  synth::ValueId value = 0;
  bool implied = false;  // wherever the left side is defined ("assumes")
};

// What the nodes mean beside synth/node.h, as ranks are open:
//   Leaf                attr is the index of a variable
//   Const, Pow          attr indexes `constants`; no operator has constants only
//   Reduce              bit i of the mask is axis −1−i of the operand; kAllAxes: all
//   Transpose           the last r axes only: attr is r | perm[i] << 4(i+1), result axis −r+i being
//                       operand axis −r+perm[i]
//   Unsqueeze, Squeeze  bit i of the mask is axis −1−i of the result, of the operand
//   Broadcast           attr indexes `shapes`
//   Stack               attr indexes `stacks`
struct Rule {
  struct Stack {
    std::vector<synth::ValueId> args;
    uint32_t axis = 0;  // the new one is axis −1−axis of the result
    friend bool operator==(const Stack&, const Stack&) = default;
  };
  std::string name;
  std::vector<Variable> variables;
  std::vector<synth::Node> nodes;  // of both sides and the conditions, operands before results
  std::vector<Constant> constants;
  std::vector<ShapePattern> shapes;
  std::vector<Stack> stacks;
  synth::ValueId left = 0, right = 0;
  std::vector<Condition> conditions;
  bool real = true, integer = false;  // element types it holds for; integers modulo 2^w
  std::string learned, checked;       // provenance, free text of one line each
  int line = 0;                       // in the file it was read from
};

inline constexpr size_t kMaxRuleNodes = 200;

using synth::add_unique;
synth::ValueId add_node(Rule&, const synth::Node&);
// The operands of a node, those of stacks too.
std::vector<synth::ValueId> operands(const Rule&, synth::ValueId);
// By node: whether it is `from`, or `from` is made of it.
std::vector<bool> reached(const Rule&, synth::ValueId from);
// A mask of axes counted from the front as one of axes counted from the end, and back.
uint64_t flipped(uint64_t mask, int rank);

// The value of a constant, given those of the rule's constants that are variables (by index; others
// are ignored). Nothing where it is not finite or out of reach of Rational.
std::optional<Rational> value(const Rule&, uint32_t constant,
                              const std::vector<std::optional<Rational>>& bound);

// Rules of a text. Throws Error(BadInput) with file:line:col on anything malformed.
std::vector<Rule> parse_rules(std::string_view text, const std::string& file);
// The block of one rule; parse_rules(print(r)) prints the same.
std::string print(const Rule&);
// One value as an expression of the rule's variables.
std::string print(const Rule&, synth::ValueId);

}  // namespace tessera::rules
