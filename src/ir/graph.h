// A Graph is a tensor program at one level, as a value: append-only arrays indexed by strong ids.
// Building is checked (arity, level, shapes); search undoes with mark() and rollback().
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/op.h"

namespace tessera {

struct Tensor {
  Type type;  // in a block graph: the nominal (largest) tile
  OpId producer;
  std::string name;  // may be empty; the printer then makes one up
};

class Graph {
 public:
  explicit Graph(std::string name = "g", Level level = Level::Kernel)
      : name_(std::move(name)), level_(level) {}
  // A block graph: 1–3 grid dimensions (number of blocks), 0–4 loops (number of iterations),
  // outermost first.
  static Graph block(std::vector<int64_t> grid, std::vector<int64_t> loops);
  static Graph thread() { return Graph("", Level::Thread); }

  // --- building. All throw Error(BadInput) naming the operator and what is wrong.
  TensorId add_input(Type type, std::string name = "", bool weight = false);
  TensorId add_const(Rational value, Type type, std::string name = "");
  // Appends an operator with one result, whose type is inferred (ir/infer.h).
  TensorId add(OpKind kind, std::vector<TensorId> inputs, Attrs attrs = NoAttrs{},
               std::string name = "");
  // Appends any operator; `body` goes with kernel and thread. Attributes must be the kind's own
  // alternative, or NoAttrs to take its defaults.
  OpId add_op(OpKind kind, std::vector<TensorId> inputs, Attrs attrs = NoAttrs{},
              std::vector<std::string> result_names = {});
  OpId add_graph_op(OpKind kind, std::vector<TensorId> inputs, Graph body,
                    std::vector<std::string> result_names = {});
  void set_outputs(std::vector<TensorId> outputs);
  void add_output(TensorId t) { outputs_.push_back(t); }
  void set_name(std::string name) { name_ = std::move(name); }
  void set_tensor_name(TensorId t, std::string name) { tensors_[t.index].name = std::move(name); }

  // --- reading
  const std::string& name() const { return name_; }
  Level level() const { return level_; }
  const std::vector<int64_t>& grid() const { return grid_; }
  const std::vector<int64_t>& loops() const { return loops_; }
  const std::vector<Op>& ops() const { return ops_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<TensorId>& inputs() const { return inputs_; }
  const std::vector<TensorId>& outputs() const { return outputs_; }
  const std::vector<Graph>& bodies() const { return bodies_; }
  const Op& op(OpId id) const { return ops_[id.index]; }
  const Tensor& tensor(TensorId id) const { return tensors_[id.index]; }
  const Type& type(TensorId id) const { return tensors_[id.index].type; }
  const Op& producer(TensorId id) const { return op(tensor(id).producer); }
  const Graph& body(const Op& op) const { return bodies_[op.body.index]; }
  template <class A> const A& attrs(const Op& op) const { return std::get<A>(op.attrs); }
  int64_t num_blocks() const { return product_of(grid_); }
  // Whether `t` is an input that holds the same values in every call.
  bool is_weight(TensorId t) const;
  // Says so, or not, of the graph's input number `input`.
  void set_weight(size_t input, bool weight);

  // --- undo
  struct Mark {
    size_t ops, tensors, inputs, outputs, bodies;
  };
  Mark mark() const;
  void rollback(const Mark&);

 private:
  OpId append(Op op, const Graph* body, const std::vector<std::string>& names);

  std::string name_;
  Level level_;
  std::vector<int64_t> grid_, loops_;
  std::vector<Op> ops_;
  std::vector<Tensor> tensors_;
  std::vector<TensorId> inputs_, outputs_;
  std::vector<Graph> bodies_;
};

// Same structure: operators, attributes, types, bodies, outputs. Names do not matter.
bool operator==(const Graph&, const Graph&);
// A stable hash of the structure (same for equal graphs, in every process).
uint64_t structural_hash(const Graph&);
// The number of uses of each tensor as an operand or output.
std::vector<int> use_counts(const Graph&);
// Replaces symbols by extents and infers all types again; throws where shapes stop fitting.
Graph bind_symbols(const Graph&, const std::vector<std::pair<std::string, int64_t>>& values);
// Appends an operator of `from`, with its names and attributes, to `to`: `map` says what the
// tensors of `from` have become, and learns of the results. An input stays a weight if it is one.
void copy_op(const Graph& from, const Op& op, Graph& to, std::vector<TensorId>& map,
             std::optional<Graph> body = std::nullopt);
// The same of all operators of `from` but its inputs.
void copy_ops(const Graph& from, Graph& to, std::vector<TensorId>& map);
// A copy in which `replace` appends something else for the operators of which it returns true, and
// says in `map` what their results have become.
Graph rewritten(
    const Graph&,
    const std::function<bool(const Op&, Graph& to, std::vector<TensorId>& map)>& replace);
// A copy of a kernel graph in which every kernel has the body that `rewrite` makes for it.
Graph map_kernels(const Graph&, const std::function<Graph(const Op& kernel)>& rewrite);
// The same program with the name and the inputs' names of `like`, where it has as many of them.
Graph with_names_of(const Graph& like, Graph g);
// Which operators are inputs, or some output needs.
std::vector<bool> live_ops(const Graph&);
// A copy of those alone.
Graph without_dead_code(const Graph&);
// The same without operators that compute what an earlier one does, `commuted`: with operands in
// another order too, which may change a zero's sign or a NaN.
Graph without_repeats(const Graph&, bool commuted = false);

}  // namespace tessera
