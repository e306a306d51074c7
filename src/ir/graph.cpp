#include "ir/graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/error.h"
#include "base/interruption.h"
#include "ir/extent.h"
#include "ir/hash.h"
#include "ir/infer.h"
#include "ir/written.h"

namespace tessera {

Graph Graph::block(std::vector<int64_t> grid, std::vector<int64_t> loops) {
  if (grid.empty() || grid.size() > kMaxGridDims)
    bad_input("a block graph has 1 to 3 grid dimensions, not " + std::to_string(grid.size()));
  if (loops.size() > kMaxLoops)
    bad_input("a block graph has at most 4 loops, not " + std::to_string(loops.size()));
  int64_t blocks = 1;
  for (int64_t n : grid) {
    if (n < 1 || n > (int64_t(1) << 31))
      bad_input("grid dimension " + std::to_string(n) + " is out of range");
    blocks *= n;
    if (blocks > (int64_t(1) << 40)) bad_input("too many blocks in the grid");
  }
  for (int64_t n : loops)
    if (n < 1 || n > (int64_t(1) << 40))
      bad_input("loop count " + std::to_string(n) + " is out of range");
  Graph g("", Level::Block);
  g.grid_ = std::move(grid);
  g.loops_ = std::move(loops);
  return g;
}

TensorId Graph::add_input(Type type, std::string name, bool weight) {
  interruption_point();
  check_type(type, name.empty() ? "input" : "input " + name);
  TensorId t(tensors_.size());
  Op op;
  op.kind = OpKind::Input;
  op.attrs = InputAttrs{weight};
  op.first_result = t;
  tensors_.push_back({std::move(type), OpId(ops_.size()), std::move(name)});
  ops_.push_back(std::move(op));
  inputs_.push_back(t);
  return t;
}

TensorId Graph::add_const(Rational value, Type type, std::string name) {
  return add(OpKind::Const, {}, ConstAttrs{value, std::move(type)}, std::move(name));
}

TensorId Graph::add(OpKind kind, std::vector<TensorId> inputs, Attrs attrs, std::string name) {
  const Op& op = this->op(add_op(kind, std::move(inputs), std::move(attrs), {std::move(name)}));
  CHECK(op.num_results == 1) << tessera::name(kind) << " has " << op.num_results << " results";
  return op.first_result;
}

OpId Graph::add_op(OpKind kind, std::vector<TensorId> inputs, Attrs attrs,
                   std::vector<std::string> result_names) {
  interruption_point();
  const OpInfo& row = info(kind);
  const std::string who = row.name;
  CHECK(!is_input(kind)) << "use add_input";
  if (is_kernel(kind) || is_thread(kind)) bad_input(who + " needs a body");
  if (std::holds_alternative<NoAttrs>(attrs)) attrs = row.default_attrs;
  if (attrs.index() != row.default_attrs.index())
    bad_input(who + ": attributes of another operator");
  if (!allowed_at(kind, level_))
    bad_input(who + " is not an operator of " + tessera::name(level_) + " graphs");
  if (int(inputs.size()) < row.min_arity ||
      (row.max_arity >= 0 && int(inputs.size()) > row.max_arity))
    bad_input(who + " takes " +
              (row.max_arity < 0 ? "at least " + std::to_string(row.min_arity)
                                 : std::to_string(row.min_arity)) +
              " operand" + (row.min_arity == 1 ? "" : "s") + ", not " +
              std::to_string(inputs.size()));
  Op op;
  op.kind = kind;
  op.attrs = std::move(attrs);
  op.inputs = std::move(inputs);
  return append(std::move(op), nullptr, result_names);
}

OpId Graph::append(Op op, const Graph* body, const std::vector<std::string>& names) {
  std::vector<Type> operands;
  for (TensorId t : op.inputs) {
    CHECK(t.index < tensors_.size())
        << tessera::name(op.kind) << ": operand " << t.index << " does not exist";
    operands.push_back(tensors_[t.index].type);
  }
  std::vector<Type> results = infer_types(op.kind, operands, op.attrs, *this, body);
  op.first_result = TensorId(tensors_.size());
  op.num_results = uint32_t(results.size());
  const OpId id(ops_.size());
  for (size_t i = 0; i < results.size(); i++)
    tensors_.push_back({std::move(results[i]), id, i < names.size() ? names[i] : std::string()});
  ops_.push_back(std::move(op));
  return id;
}

OpId Graph::add_graph_op(OpKind kind, std::vector<TensorId> inputs, Graph body,
                         std::vector<std::string> result_names) {
  const std::string who = tessera::name(kind);
  CHECK(is_kernel(kind) || is_thread(kind)) << who << " has no body";
  if (!allowed_at(kind, level_))
    bad_input(who + " is not an operator of " + tessera::name(level_) + " graphs");
  Level wanted = is_kernel(kind) ? Level::Block : Level::Thread;
  if (body.level() != wanted)
    bad_input(who + ": its body must be a " + std::string(tessera::name(wanted)) + " graph");
  Op op;
  op.kind = kind;
  op.inputs = std::move(inputs);
  op.body = BodyId(bodies_.size());
  const OpId id = append(std::move(op), &body, result_names);
  bodies_.push_back(std::move(body));
  return id;
}

void Graph::set_outputs(std::vector<TensorId> outputs) { outputs_ = std::move(outputs); }

bool Graph::is_weight(TensorId t) const {
  const Op& op = producer(t);
  return is_input(op.kind) && std::get<InputAttrs>(op.attrs).weight;
}

void Graph::set_weight(size_t input, bool weight) {
  CHECK(input < inputs_.size()) << "no input " << input;
  ops_[tensor(inputs_[input]).producer.index].attrs = InputAttrs{weight};
}

Graph::Mark Graph::mark() const {
  return {ops_.size(), tensors_.size(), inputs_.size(), outputs_.size(), bodies_.size()};
}

void Graph::rollback(const Mark& m) {
  CHECK(m.ops <= ops_.size() && m.tensors <= tensors_.size() && m.inputs <= inputs_.size() &&
        m.outputs <= outputs_.size() && m.bodies <= bodies_.size())
      << "rollback to a mark of the future";
  ops_.erase(ops_.begin() + long(m.ops), ops_.end());
  tensors_.erase(tensors_.begin() + long(m.tensors), tensors_.end());
  inputs_.resize(m.inputs);
  outputs_.resize(m.outputs);
  bodies_.erase(bodies_.begin() + long(m.bodies), bodies_.end());
}

bool operator==(const Graph& a, const Graph& b) {
  if (a.level() != b.level() || a.grid() != b.grid() || a.loops() != b.loops() ||
      a.inputs() != b.inputs() || a.outputs() != b.outputs() || a.ops().size() != b.ops().size() ||
      a.tensors().size() != b.tensors().size() || a.bodies().size() != b.bodies().size())
    return false;
  // Who wrote a kernel's code is part of it; other names are not.
  if (a.level() == Level::Block && a.name() != b.name() &&
      (read_written(a.name()) || read_written(b.name())))
    return false;
  for (size_t i = 0; i < a.tensors().size(); i++)
    if (!(a.tensors()[i].type == b.tensors()[i].type)) return false;
  for (size_t i = 0; i < a.ops().size(); i++) {
    const Op &x = a.ops()[i], &y = b.ops()[i];
    if (x.kind != y.kind || x.inputs != y.inputs || x.first_result != y.first_result ||
        x.num_results != y.num_results || x.body != y.body || !(x.attrs == y.attrs))
      return false;
  }
  return std::equal(a.bodies().begin(), a.bodies().end(), b.bodies().begin());
}

namespace {

struct Hasher {
  uint64_t h = 0x9e3779b97f4a7c15ull;
  void add(uint64_t x) {
    h ^= x + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h *= 0xbf58476d1ce4e5b9ull;
    h ^= h >> 29;
  }
  void add(const std::string& s) {
    add(s.size());
    for (unsigned char c : s) add(uint64_t(c));
  }
  void add(const Rational& r) {
    add(uint64_t(r.num()));
    add(uint64_t(r.den()));
    add(uint64_t(int64_t(r.exp2())));
  }
  void add(const Shape& s) {
    add(s.size());
    for (const Dim& d : s) {
      add(uint64_t(d.extent));
      add(d.symbol);
    }
  }
  void add(const Type& t) {
    add(uint64_t(t.dtype));
    add(t.shape);
  }
  template <class C> void add_all(const C& c) {
    add(uint64_t(c.size()));
    for (auto x : c) add(uint64_t(int64_t(x)));
  }
  void add(const std::vector<int>& v) { add_all(v); }
  void add(const std::vector<int64_t>& v) { add_all(v); }
  void add(const GridMap& v) { add_all(v); }
  void add(const LoopMap& v) { add_all(v); }
  void add(DType d) { add(uint64_t(d)); }
  void add(AccumKind k) { add(uint64_t(k)); }
  void add(bool b) { add(uint64_t(b)); }
  void add(int i) { add(uint64_t(int64_t(i))); }
  void add(int64_t i) { add(uint64_t(i)); }
  void add_attributes(const Op& op) {
    std::visit(
        [&](const auto& a) {
          a.fields(
              a, [&](const char*, const auto& v) { add(v); });
        },
        op.attrs);
  }
};

}  // namespace

uint64_t attributes_hash(const Op& op) {
  Hasher h;
  h.add_attributes(op);
  return h.h;
}

uint64_t structural_hash(const Graph& g) {
  Hasher h;
  h.add(uint64_t(g.level()));
  h.add(g.grid());
  h.add(g.loops());
  if (g.level() == Level::Block && read_written(g.name())) h.add(g.name());
  for (const Op& op : g.ops()) {
    h.add(uint64_t(op.kind));
    h.add_attributes(op);
    for (TensorId t : op.inputs) h.add(uint64_t(t.index));
    for (uint32_t i = 0; i < op.num_results; i++) h.add(g.type(op.result(i)));
    if (op.body.valid()) h.add(structural_hash(g.body(op)));
  }
  for (TensorId t : g.outputs()) h.add(uint64_t(t.index));
  return h.h;
}

std::vector<int> use_counts(const Graph& g) {
  std::vector<int> uses(g.tensors().size(), 0);
  for (const Op& op : g.ops())
    for (TensorId t : op.inputs) uses[t.index]++;
  for (TensorId t : g.outputs()) uses[t.index]++;
  return uses;
}

namespace {

// Of the same level and schedule, without any operator.
Graph empty_like(const Graph& g) {
  Graph out =
      g.level() == Level::Block ? Graph::block(g.grid(), g.loops()) : Graph(g.name(), g.level());
  out.set_name(g.name());
  return out;
}

}  // namespace

void copy_op(const Graph& from, const Op& op, Graph& to, std::vector<TensorId>& map,
             std::optional<Graph> body) {
  std::vector<TensorId> inputs = mapped(op.inputs, [&](TensorId t) { return map[t.index]; });
  std::vector<std::string> names;
  for (uint32_t r = 0; r < op.num_results; r++) names.push_back(from.tensor(op.result(r)).name);
  const TensorId first(to.tensors().size());
  if (is_input(op.kind))
    to.add_input(from.type(op.result()), names[0], from.is_weight(op.result()));
  else if (op.body.valid())
    to.add_graph_op(op.kind, inputs, body ? std::move(*body) : from.body(op), names);
  else
    to.add_op(op.kind, inputs, op.attrs, names);
  for (uint32_t r = 0; r < op.num_results; r++) map[op.result(r).index] = TensorId(first.index + r);
}

void copy_ops(const Graph& from, Graph& to, std::vector<TensorId>& map) {
  for (const Op& op : from.ops())
    if (!is_input(op.kind)) copy_op(from, op, to, map);
}

Graph rewritten(
    const Graph& g,
    const std::function<bool(const Op&, Graph& to, std::vector<TensorId>& map)>& replace) {
  Graph out = empty_like(g);
  std::vector<TensorId> map(g.tensors().size());
  for (const Op& op : g.ops())
    if (!replace(op, out, map)) copy_op(g, op, out, map);
  for (TensorId t : g.outputs()) out.add_output(map[t.index]);
  return out;
}

Graph map_kernels(const Graph& g, const std::function<Graph(const Op& kernel)>& rewrite) {
  return rewritten(
      g,
      [&](const Op& op, Graph& out, std::vector<TensorId>& to) {
        if (!is_kernel(op.kind)) return false;
        copy_op(g, op, out, to, rewrite(op));
        return true;
      });
}

Graph bind_symbols(const Graph& g, const std::vector<std::pair<std::string, int64_t>>& values) {
  const auto bind = [&](Shape& shape) {
    for (Dim& d : shape)
      if (d.symbolic()) d = SymbolicExtent(d).bound(values).dim();
  };
  return rewritten(g, [&](const Op& op, Graph& out, std::vector<TensorId>& to) {
    if (is_input(op.kind)) {
      Type type = g.type(op.result());
      bind(type.shape);
      to[op.result().index] =
          out.add_input(type, g.tensor(op.result()).name, g.is_weight(op.result()));
      return true;
    }
    Op bound = op;
    std::visit(
        [&](auto& a) {
          if constexpr (requires { a.type.shape; }) bind(a.type.shape);
          if constexpr (requires { a.shape; }) bind(a.shape);
          if constexpr (requires { a.results; })
            for (Type& t : a.results) bind(t.shape);
        },
        bound.attrs);
    copy_op(g, bound, out, to,
            op.body.valid() ? std::optional<Graph>(bind_symbols(g.body(op), values))
                            : std::nullopt);
    return true;
  });
}

Graph with_names_of(const Graph& like, Graph g) {
  g.set_name(like.name());
  if (g.inputs().size() != like.inputs().size()) return g;
  std::set<std::string> taken;
  for (TensorId t : like.inputs()) taken.insert(like.tensor(t).name);
  for (uint32_t t = 0; t < g.tensors().size(); t++)
    if (taken.count(g.tensors()[t].name)) g.set_tensor_name(TensorId(t), "");
  for (size_t i = 0; i < g.inputs().size(); i++)
    g.set_tensor_name(g.inputs()[i], like.tensor(like.inputs()[i]).name);
  return g;
}

std::vector<bool> live_ops(const Graph& g) {
  std::vector<bool> needed(g.tensors().size(), false), live(g.ops().size(), false);
  for (TensorId t : g.outputs()) needed[t.index] = true;
  for (size_t i = g.ops().size(); i-- > 0;) {
    const Op& op = g.ops()[i];
    live[i] = is_input(op.kind);
    for (uint32_t r = 0; r < op.num_results; r++) live[i] = live[i] || needed[op.result(r).index];
    for (TensorId t : op.inputs) needed[t.index] = needed[t.index] || live[i];
  }
  return live;
}

Graph without_dead_code(const Graph& g) {
  const std::vector<bool> live = live_ops(g);
  Graph out = empty_like(g);
  std::vector<TensorId> to(g.tensors().size());
  for (size_t i = 0; i < g.ops().size(); i++)
    if (live[i]) copy_op(g, g.ops()[i], out, to);
  for (TensorId t : g.outputs()) out.add_output(to[t.index]);
  return out;
}

Graph without_repeats(const Graph& g, bool commuted) {
  std::map<std::tuple<OpKind, std::vector<TensorId>, uint64_t>, const Op*> known;
  bool repeats = false;
  const Graph once = rewritten(g, [&](const Op& op, Graph&, std::vector<TensorId>& map) {
    if (is_input(op.kind) || op.num_results != 1 || op.body.valid() || is_opaque(op.kind))
      return false;
    std::vector<TensorId> inputs = mapped(op.inputs, [&](TensorId t) { return map[t.index]; });
    if (commuted && has(op.kind, algebra::Commutative)) std::ranges::sort(inputs);
    const Op& first = *known.try_emplace({op.kind, inputs, attributes_hash(op)}, &op).first->second;
    if (&first == &op || first.attrs != op.attrs || g.type(first.result()) != g.type(op.result()))
      return false;
    map[op.result().index] = map[first.result().index];
    return repeats = true;
  });
  return without_dead_code(repeats ? once : g);
}

}  // namespace tessera
