// Bodies that a person writes in C++ or CUDA: a closed grammar of tokens, checked and translated
// without ever being compiled here. Names are those of the def and of a fixed list of functions, or
// declared in the body; there are no pointers, strings, macros or calls of anything else, so all
// that a text can reach is its operands, its result and arrays of its own.
//
//   load(x, m, j)        the element of an input of the def, with what fills its prologue
//   store(y, m, j, v)    the result's element, through what fills the epilogue
//   vload(x, m, j[, v])  `lanes` elements along the last axis as a vec; beyond the end v, or 0
//   vstore(y, m, j, v)   the same way back; what is beyond the end is not written
#pragma once
#include <string>
#include <vector>

#include "ir/written.h"
#include "search/patterns/pattern.h"

namespace tessera::patterns {

// Throws Error(BadInput) with file:line:col at the first token that is not allowed.
void check_code(const Pattern&, const Body&);

// A body's text at given sizes.
struct CodeText {
  std::string text;  // for a compiler: declared names begin with b_, holes with h_
  std::vector<std::string> functions;                  // of the list, by their names in the body
  std::vector<std::string> loads;                      // inputs of the def that it reads
  bool vectors = false;                                // whether vec is used
  int64_t shared_bytes = 0;                            // of a CUDA block
  std::vector<std::pair<std::string, int64_t>> units;  // as variables of the text
  int64_t threads = 1;
};
// `numbers`: literals for the def's numbers. `real`: the type that elements are computed in.
CodeText expand_code(const Pattern&, const Body&, const Values& values,
                     const std::map<std::string, std::string>& numbers, const std::string& real);

// The call of an operator of PyTorch at given sizes, as JSON: {"op": "aten.add.Tensor", "args":
// [{"operand": 0}, 2], "kwargs": {}}. Operands are numbered in the order of the def's inputs with
// axes; `numbers`: of all its inputs.
std::string call_text(const Pattern&, const Body&, const Values& values,
                      const std::vector<Rational>& numbers);

// The kernel of whole tensors that means what the def does and names the body as its source.
Graph written_body(const Pattern&, const Body&, const Values& values, DType);
// What of a written kernel's block graph the def is: with its inputs, or constants where it has
// numbers, in the order of the def. Comparable with what written_body is made of.
Graph meaning_of(const Graph& block, const WrittenKernel&);
Graph meaning_of(const Pattern&, const Values& symbols, DType,
                 const std::vector<Rational>& numbers);

// SHA-256 of all that decides what a body is: its text, the def, holes, guards, settings.
std::string source_of(const Pattern&, const Body&);
// The pattern with that body alone, as it is recorded: source_of is of this text.
std::string recorded_text(const Pattern&, const Body&);

}  // namespace tessera::patterns
