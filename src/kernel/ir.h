// Kernels as typed loops over buffers: what stands between a graph and the text of its code. A
// Function is a value that is checked (validate.h), run (interpret.h) and printed (print_c.h); no
// node holds text of a language.
//
//   function   name, buffers, statements
//   buffer     name, dtype, elements, space (argument, weights, workspace, stack), alignment
//   statement  { … }                                  a block: what computes one value, says a note
//              for kind variable in [0, extent) { … }    kind: serial, parallel, vector
//              if condition { … } else { … }
//              let variable = scalar                     never changes
//              index variable in [least, most] = scalar  elsewhere the function ends with an error
//              local buffer                              a stack buffer begins, with no values yet
//              buffer[expr] = scalar
//              buffer[expr] by= scalar                   by: sum, max, min
//   scalar     literal | variable | (expr) | buffer[expr] | operator(scalar, …)
//              condition ? scalar : scalar               what is not chosen is not looked at
//   expr, condition                                      whole numbers, see expr.h
//
// Operators are the pointwise ones of ir/ops.def, with the meaning that eval/pointwise.h gives
// them; every scalar has a dtype, and integers wrap to theirs. Loops count up by one. Iterations of
// parallel and vector loops do not depend on one another: the order they run in means nothing. A
// loop's variable has the range of its extent, a stack buffer lives from `local` to the end of the
// statements around it. Buffers of 16-bit floats hold them rounded; scalars of such types are
// floats that operators need not round.
#pragma once
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ir/op.h"
#include "kernel/expr.h"

namespace tessera::kernel {

struct Scalar;
struct Statement;
using Body = std::vector<Statement>;

enum class Space : uint8_t { Argument, Weights, Workspace, Stack };
const char* name(Space space);
struct Buffer {
  std::string name;
  DType dtype = DType::F32;
  int64_t elements = 1;
  Space space = Space::Argument;
  bool written = false;    // of arguments: a result
  int64_t offset = 0;      // bytes, in the weights or the workspace
  int64_t alignment = 64;  // bytes that the first element's address is a multiple of
};

// --- scalars
struct Literal {
  Rational value;
};
struct Variable {
  std::string name;
};
struct Load {
  int buffer = -1;
  Expr offset;
};
struct Apply {
  OpKind kind = OpKind::Add;
  Attrs attrs;
  std::vector<Scalar> operands;
};
struct Select {
  Condition when;
  std::vector<Scalar> of;  // what holds then, and what otherwise
};
using ScalarNode = std::variant<Literal, Variable, Expr, Load, Apply, Select>;
struct Scalar {
  DType dtype = DType::F32;
  std::shared_ptr<const ScalarNode> node;
};
Scalar make(DType dtype, ScalarNode node);
Scalar literal(DType dtype, const Rational& value);
// An operator's result has the dtype of its first value, that of a comparison is bool.
Scalar apply(OpKind kind, std::vector<Scalar> operands, Attrs attrs = NoAttrs{});
Scalar cast(const Scalar& x, DType dtype);

// --- statements
struct Block {
  std::string note;  // for readers
  Body body;
};
enum class LoopKind : uint8_t { Serial, Parallel, Vector };
const char* name(LoopKind kind);
struct Loop {
  LoopKind kind = LoopKind::Serial;
  std::string variable;
  Expr extent;
  Body body;
};
struct If {
  Condition when;
  Body then, otherwise;
};
struct Let {
  std::string name;
  Scalar value;
};
struct Index {
  std::string name;
  Range range;
  Scalar value;
};
struct Local {
  int buffer = -1;
};
struct Store {
  int buffer = -1;
  Expr offset;
  Scalar value;
};
struct Accumulate {
  int buffer = -1;
  Expr offset;
  AccumKind fold = AccumKind::Sum;
  Scalar value;
};
struct Statement {
  std::variant<Block, Loop, If, Let, Index, Local, Store, Accumulate> is;
};

struct Function {
  std::string name;
  std::vector<Buffer> buffers;
  Body body;
  // Bytes from the first buffer of a space to the end of its last.
  int64_t bytes(Space space) const;
};

// For a reader: the grammar above, in lines.
std::string text(const Function& function);
std::string text(const Function& function, const Scalar& scalar);

// Calls by the type of an alternative.
template <class... F> struct Cases : F... { using F::operator()...; };
template <class... F> Cases(F...) -> Cases<F...>;

}  // namespace tessera::kernel
