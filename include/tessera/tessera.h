// The public C++ API of Tessera. It needs nothing but the standard library; the text format of
// programs is told in docs/ug.md, and examples/cpp has a program that uses all of this.
//
//   const tessera::Graph program = tessera::Graph::parse(text);
//   const tessera::Result result = tessera::optimize(program);
//   result.function().run({{a, {512, 384}}, {b, {384, 8}}}, {{y, {512, 8}}});
//   std::cout << result.graph().text() << result.certificate().text();
//
// Handles are cheap to copy, never change, and may be used by several threads at once. What a
// caller can cause is thrown as Error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Inline, since the core has types of its own by some of these names.
namespace tessera {
inline namespace api {

enum class ErrorKind {
  Usage,        // a wrong option or call
  BadInput,     // a malformed or inconsistent program, file or array
  NotFound,     // a name or file that does not exist
  Unsupported,  // legal input that Tessera does not handle
  ToolMissing,  // a compiler or library has to be installed
  Io,           // the operating system refused: permissions, a full disk, …
  Cancelled,    // Options::cancel was set, or the budget ended
  OutOfMemory,  // of a GPU
  Device,       // a GPU or its driver reports a failure
  Internal,     // a bug of Tessera
};

// what() is "file:line:column: message", or the message where no place is known.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
  ErrorKind kind = ErrorKind::Internal;
  std::string message, file;
  int line = 0, column = 0;  // from 1; 0: not known
};

enum class DType : std::uint8_t { F64, F32, F16, BF16, I64, I32, I8, U8, Bool };

struct Type {
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;  // extents; 0 where a symbol stands for one
  friend bool operator==(const Type&, const Type&) = default;
};

// The DType of elements in memory. Those that are not listed are given by pointer and Type.
constexpr DType dtype_of(const double*) { return DType::F64; }
constexpr DType dtype_of(const float*) { return DType::F32; }
constexpr DType dtype_of(const std::int64_t*) { return DType::I64; }
constexpr DType dtype_of(const std::int32_t*) { return DType::I32; }
constexpr DType dtype_of(const std::int8_t*) { return DType::I8; }
constexpr DType dtype_of(const std::uint8_t*) { return DType::U8; }
constexpr DType dtype_of(const bool*) { return DType::Bool; }
// Throws Error(BadInput) unless the shape has so many elements.
void require_elements(std::size_t elements, const std::vector<std::int64_t>& shape);

// A tensor in memory of the caller's, which is borrowed: contiguous and row-major; F16 and BF16 are
// words of 16 bits, Bool bytes of 0 and 1. Made of a pointer, or of a std::vector, std::array or
// std::span with as many elements as the shape says.
template <class Pointer> struct Array {
  Pointer data;
  Type type;
  Array(Pointer data, Type type) : data(data), type(std::move(type)) {}
  template <class Range>
  requires requires(Range& r) { std::data(r), std::size(r); }
  Array(Range&& values, std::vector<std::int64_t> shape)
      : data(std::data(values)), type{dtype_of(std::data(values)), std::move(shape)} {
    require_elements(std::size(values), type.shape);
  }
};
using Input = Array<const void*>;
using Output = Array<void*>;

// What all handles are: a value of the core's, shared by copies. Only the library makes one.
template <class Impl> class Handle {
 protected:
  friend struct Access;
  explicit Handle(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// A tensor program.
class Graph : public Handle<struct GraphImpl> {
 public:
  using Handle::Handle;
  // Throws Error(BadInput) with the place of what is malformed; `file` is its name there.
  static Graph parse(std::string_view text, const std::string& file = "<input>");
  std::string text() const;  // parse(g.text()) is the same program
  std::vector<Type> inputs() const, outputs() const;
  // With sizes for symbols such as N. Throws Error(BadInput) where shapes stop fitting.
  Graph with_sizes(const std::vector<std::pair<std::string, std::int64_t>>& sizes) const;
  // Runs the interpreter, slowly: what compiled code is compared with. Throws like Function::run.
  void interpret(const std::vector<Input>& inputs, const std::vector<Output>& outputs) const;
};

struct Options {
  // Seconds of wall time for everything; a verdict that takes longer is unknown.
  double budget_seconds = 30;
  // How near numbers stay to the original's: "bitwise", "close", "fast" (docs/verifier.md).
  std::string level = "close";
  bool accept_tested = false;  // also what was tried on all sides of its decisions, and not proved
  int threads = 0;             // 0: as many as there are processors
  std::uint64_t seed = 0;      // of search and measurement
  bool use_cache = true;       // of results, which are proved and checked again
  // "cpu"; "cuda": the GPU of this machine; "cuda:sm_90a"; or a description by name or path.
  std::string target = "cpu", target_folder;
  std::vector<std::string> rule_folders, pattern_folders;  // docs/rules.md, docs/patterns.md
  const std::atomic<bool>* cancel = nullptr;  // once set: the best so far, or an unknown verdict
  // Called by optimize() now and then, from one thread at a time.
  std::function<void(const std::string& stage, double best_speedup)> progress;
};

// Evidence that two programs are equal, which can be kept and replayed.
class Certificate : public Handle<struct CertificateImpl> {
 public:
  using Handle::Handle;
  static Certificate parse(std::string_view text);  // throws Error(BadInput)
  std::string text() const;
  bool proved() const;            // false: only tested, see Options::accept_tested
  double error_log2() const;      // log2 of the probability that unequal programs pass; -1000: none
  std::string all_sizes() const;  // where equality holds for all sizes; empty: at given ones only
  // Replays all draws on these programs, and a new one. Empty, or what is wrong.
  std::string recheck(const Graph& original, const Graph& rewrite) const;
};

// Equal, refuted by inputs at which the programs were run and differ, or unknown, which is no yes.
class Verdict : public Handle<struct VerdictImpl> {
 public:
  using Handle::Handle;
  bool equal() const, refuted() const;
  std::string text() const;         // "equal", "refuted" or "unknown", then the evidence
  Certificate certificate() const;  // throws Error(Usage) unless equal()
};
// Throws Error(Usage) at unknown options.
Verdict verify(const Graph& original, const Graph& rewrite, const Options& options = {});

// What a Function computed of one set of weights. Valid while their memory keeps its values.
class Weights : public Handle<struct WeightsImpl> {
  using Handle::Handle;
};

// Compiled code that agrees with the interpreter: of a rewrite that is proved equal, or of the
// original. Only a Result has one.
class Function : public Handle<struct FunctionImpl> {
 public:
  using Handle::Handle;
  std::string source() const;  // C++ or CUDA
  // Arrays in the order of the graph's inputs and outputs, which overlap nowhere. Of a GPU: there,
  // at multiples of 16 bytes, in the order of `stream` (a CUstream; null: the default one), without
  // waiting for the end. Throws Error: BadInput where number, dtypes or shapes differ, Unsupported
  // where the device is not here, OutOfMemory, Device. `weights`: of this function.
  void run(const std::vector<Input>& inputs, const std::vector<Output>& outputs,
           const Weights* weights = nullptr, void* stream = nullptr) const;
  // What depends on inputs marked {weight=true} alone, once; only these are read. Throws like run.
  Weights prepare(const std::vector<Input>& inputs, void* stream = nullptr) const;
};

class Result : public Handle<struct ResultImpl> {
 public:
  using Handle::Handle;
  bool improved() const;            // false: nothing faster was proved; the original is kept
  Graph graph() const;              // what function() computes
  Certificate certificate() const;  // throws Error(Usage) unless improved()
  // Throws Error(Unsupported) where there is no checked code of the original either, and why: the
  // budget ended before, say.
  Function function() const;
  // Medians of the seconds of one call, measured side by side; 0: not measured.
  double original_seconds() const, seconds() const;
  double speedup() const;  // the original's time over that of function()
};
// Searches programs equal to a static one, compiles, races, proves and checks them. Throws Error:
// BadInput, Unsupported (symbols: see with_sizes), ToolMissing (a C++ compiler), Usage.
Result optimize(const Graph& program, const Options& options = {});

}  // namespace api
}  // namespace tessera
