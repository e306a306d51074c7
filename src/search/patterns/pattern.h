// A pattern of the warehouse: what an expert's kernel computes, where it may be used, and the
// kernel as a block graph with holes. All else (the +Graph, tests, the original to compare with) is
// derived from the meaning. Text form, one pattern a file (patterns/*.pattern, docs/patterns.md):
//
//   pattern t5layernorm
//     def {
//       x = input : f32[M,N]
//       ...
//       return y
//     }
//     numbers eps                 inputs of rank 0 that are constants of the program
//     prologue x                  pointwise producers of x are computed in the kernel
//     epilogue                    and so are pointwise consumers of the result
//     when N <= 65536, dtype in f32 f16 bf16
//     tune R = 1 4 16
//     kernel for cpu when M >= R grid[x=M/R] {
//       t = iter x {imap={x:0}}
//       ...
//     }
//     call cublaslt when M >= 64  the def's operators, computed by that library
//     call torch aten.layer_norm(x, [N], g, b, eps=eps)     an operator that PyTorch knows
//     code cpu for m = M {        a person's code, with load and store for holes (code.h)
//       …
//     }
//
// A kernel is a block graph whose arguments are def's inputs; `body [for …] [when …] { … }` is a
// program of several kernels and operators. In either symbols, tuned names and f32 stand for what
// they are bound to; a/b in grids and loops is rounded up. Reading a file executes nothing.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "search/patterns/loops.h"

namespace tessera::patterns {

using Values = std::map<std::string, int64_t>;  // by symbol or tuned name
std::string str(const Values&);                 // "K=64 M=32"

// A product of numbers and names, with / (rounded down) and % from left to right.
struct Term {
  struct Factor {
    char op = '*';  // '*', '/', '%'
    int64_t number = 0;
    std::string name;  // empty: the number
    friend bool operator==(const Factor&, const Factor&) = default;
  };
  std::vector<Factor> factors;
  std::optional<int64_t> value(const Values&) const;  // nothing on overflow, /0 or unknown names
  std::string str() const;
};

struct Condition {
  Term left, right;
  // "<=", "<", ">=", ">", "==", "!="; "layout" and "align" of an operand; empty: on the element
  // type
  std::string comparison;
  std::vector<DType> dtypes;  // one of these
  std::string operand;        // an input of the def
  // layout: it comes as the transpose, in its last two axes, of what is stored; else row by row.
  bool transposed = false;
  // align: its rows, of `left` elements, have a multiple of so many bytes, and so has its address.
  int64_t bytes = 0;
  // Of layouts it is asked in a place of a program; here they hold.
  bool holds(const Values&, DType) const;
  std::string str() const;
};

// In which language a person wrote a body: none (a block graph); C++ for a CPU; CUDA with the
// device functions, which the emulator runs; CUDA as NVIDIA's compiler takes it; the name of an
// operator of PyTorch; oneDNN, where only the def is said.
enum class Language { None, Cpp, Cuda, Raw, Torch, OneDnn };
const char* name(Language);

// Of a call: an input of the def, a number, a symbol, text in quotes, true, false, none, or a list.
struct CallArgument {
  std::string key;   // empty: by position
  std::string word;  // as in the file; empty: a list
  std::vector<CallArgument> list;
  std::string str() const;
};

struct Body {
  std::string target;  // "cpu", "cuda"; empty: any
  std::vector<Condition> when;
  // One kernel: text is "grid[…] loops[…] { … }", its arguments go without saying. Otherwise
  // statements.
  bool kernel = false;
  // "cublaslt", "cudnn", "packed", "onednn" (of convolutions): the def's own operators, which that
  // library computes.
  std::string library;
  std::string operator_name;  // of PyTorch: NAMESPACE.OP[.OVERLOAD]
  std::vector<CallArgument> arguments;
  std::string text;       // as in the file; of a call of PyTorch: operator and arguments
  int line = 0, col = 1;  // of its first character
  Language language = Language::None;
  std::vector<std::pair<std::string, Term>> units;  // what runs in parallel: its name, how many
  Term threads;                                     // of a CUDA block
  // Why a body in a language is not used, as long as nobody who knows of checks (backend/written.h)
  // has said that it may be.
  std::string unusable;
  bool written() const { return language != Language::None; }
  // It computes the def and nothing else: what would fill holes stays outside.
  bool called() const { return language == Language::Torch || language == Language::OneDnn; }
};

struct Pattern {
  std::string name, file;
  Graph def;             // symbolic, f32 for the element type, one output
  std::string def_text;  // statements, as in the file
  int def_line = 0;
  std::vector<std::string> numbers, prologues;  // of the inputs of def
  bool epilogue = false;
  std::vector<Condition> when;
  std::vector<std::pair<std::string, std::vector<int64_t>>> tune;
  std::vector<Body> bodies;
  std::string loops_text;  // empty: derived
  int loops_line = 0;
  // Key operations in their loops: of def, and of def with something in its holes.
  std::vector<LoopGraph> loops;
  std::vector<std::string> keys;  // all key operations, sorted

  std::optional<size_t> input(const std::string& name) const;
  bool is_number(size_t input) const;
  bool has_prologue(size_t input) const;
  std::vector<std::string> symbols() const;  // of def, in order of appearance
  Values
  example_values() const;  // the first setting, and sizes that are no multiples of each other
  std::string name_for_graph() const;  // letters, digits and _ only
};

// Throws Error(BadInput) with file:line:col on anything malformed. Bodies are parsed at an example
// size and must have def's interface.
Pattern parse_pattern(std::string_view text, const std::string& file);
// parse_pattern(print(p)) prints the same.
std::string print(const Pattern&);

// The same program with another element type in place of one.
Graph with_dtype(const Graph&, DType from, DType to);
// The meaning at given sizes and element type.
Graph bound_def(const Pattern&, const Values& symbols, DType);
// A body at given sizes, settings and element type; of one in a language, a kernel of whole tensors
// that means what the def does. Throws Error(BadInput) with its place in the file.
Graph bound_body(const Pattern&, const Body&, const Values& values, DType);
// All settings of what is tuned; one empty one where nothing is.
std::vector<Values> settings(const Pattern&);

}  // namespace tessera::patterns
