// ir/: a Graph as Python sees it; tensors are indices, operators plain records.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "base/error.h"
#include "bindings.h"
#include "ir/block.h"
#include "ir/special.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera::python {
namespace {

OpKind kind_from(const std::string& text) {
  auto kind = op_from_name(text);
  if (!kind) throw Error(ErrorKind::BadInput, "unknown operator '" + text + "'");
  return *kind;
}

Level level_from(const std::string& text) {
  for (Level level : {Level::Kernel, Level::Block, Level::Thread})
    if (text == name(level)) return level;
  throw Error(ErrorKind::BadInput, "a level is kernel, block or thread, not '" + text + "'");
}

TensorId tensor_from(const Graph& g, uint32_t index) {
  if (index >= g.tensors().size())
    throw Error(ErrorKind::BadInput, "no tensor " + std::to_string(index) + " in this graph");
  return TensorId(index);
}

std::vector<TensorId> tensors_from(const Graph& g, const std::vector<uint32_t>& indices) {
  return mapped(
      indices, [&](uint32_t index) { return tensor_from(g, index); });
}

std::vector<uint32_t> indices(const std::vector<TensorId>& ids) {
  return mapped(
      ids, [&](TensorId id) { return id.index; });
}

std::vector<uint32_t> results(const Op& op) {
  return mapped(
      op.num_results, [&](uint32_t i) { return op.result(i).index; });
}

nb::dict op_record(const Graph& g, const Op& op) {
  return dict_of("op", name(op.kind), "attrs", to_python(op.attrs), "inputs", indices(op.inputs),
                 "results", results(op), "body",
                 op.body.valid() ? nb::cast(g.body(op)) : nb::none());
}

const char* phase_name(const Phase& phase) {
  if (phase.varies) return "loop";
  return phase.folded ? "post" : "invariant";
}

std::vector<uint32_t> add_opaque(Graph& g, const std::vector<uint32_t>& inputs,
                                 const std::string& function, const std::string& payload,
                                 const nb::list& types, const std::vector<std::string>& names) {
  const nb::dict fields = dict_of("function", function, "payload", payload, "results", types);
  const Attrs attrs = attrs_from(OpKind::Opaque, fields);
  return results(g.op(g.add_op(OpKind::Opaque, tensors_from(g, inputs), attrs, names)));
}

// The table of operators: name, arity, levels; what documentation and tests iterate over.
nb::list operators() {
  return list_of(
      all_op_kinds(),
      [](OpKind kind) {
        std::vector<std::string> levels;
        for (Level level : {Level::Kernel, Level::Block, Level::Thread})
          if (allowed_at(kind, level)) levels.emplace_back(name(level));
        return dict_of("name", name(kind), "min_arity", info(kind).min_arity, "max_arity",
                       info(kind).max_arity, "levels", levels, "pointwise",
                       has(kind, algebra::Pointwise));
      });
}

}  // namespace

void bind_ir(nb::module_& m) {
  nb::class_<Graph>(m, "Graph")
      .def(
          "__init__",
          [](Graph* self, const std::string& name, const std::string& level) {
            new (self) Graph(name, level_from(level));
          },
          nb::arg("name") = "g", nb::arg("level") = "kernel")
      .def_static("block", &Graph::block, nb::arg("grid"), nb::arg("loops"))
      .def("copy", [](const Graph& g) { return Graph(g); })
      .def(
          "add_input",
          [](Graph& g, const std::string& dtype, nb::handle shape, const std::string& name,
             bool weight) { return g.add_input(type_from(dtype, shape), name, weight).index; },
          nb::arg("dtype"), nb::arg("shape"), nb::arg("name") = "", nb::arg("weight") = false)
      .def("is_weight", [](const Graph& g, uint32_t t) { return g.is_weight(tensor_from(g, t)); })
      .def("set_weight",
           [](Graph& g, size_t input, bool weight) {
             if (input >= g.inputs().size())
               throw Error(ErrorKind::BadInput, "no input " + std::to_string(input));
             g.set_weight(input, weight);
           })
      .def(
          "add",
          [](Graph& g, const std::string& op, const std::vector<uint32_t>& inputs,
             const nb::dict& attrs, const std::string& name) {
            OpKind kind = kind_from(op);
            return g.add(kind, tensors_from(g, inputs), attrs_from(kind, attrs), name).index;
          },
          nb::arg("op"), nb::arg("inputs"), nb::arg("attrs") = nb::dict(), nb::arg("name") = "")
      .def("add_opaque", &add_opaque, nb::arg("inputs"), nb::arg("function"), nb::arg("payload"),
           nb::arg("results"), nb::arg("names") = std::vector<std::string>())
      .def(
          "add_graph_op",
          [](Graph& g, const std::string& op, const std::vector<uint32_t>& inputs,
             const Graph& body, const std::vector<std::string>& names) {
            OpId id = g.add_graph_op(kind_from(op), tensors_from(g, inputs), body, names);
            return results(g.op(id));
          },
          nb::arg("op"), nb::arg("inputs"), nb::arg("body"),
          nb::arg("names") = std::vector<std::string>())
      .def("set_outputs",
           [](Graph& g, const std::vector<uint32_t>& outputs) {
             g.set_outputs(tensors_from(g, outputs));
           })
      .def("set_tensor_name",
           [](Graph& g, uint32_t t, const std::string& name) {
             g.set_tensor_name(tensor_from(g, t), name);
           })
      .def_prop_rw("name", &Graph::name, &Graph::set_name)
      .def_prop_ro("level", [](const Graph& g) { return name(g.level()); })
      .def_prop_ro("grid", [](const Graph& g) { return g.grid(); })
      .def_prop_ro("loops", [](const Graph& g) { return g.loops(); })
      .def_prop_ro("inputs", [](const Graph& g) { return indices(g.inputs()); })
      .def_prop_ro("outputs", [](const Graph& g) { return indices(g.outputs()); })
      .def_prop_ro("num_ops", [](const Graph& g) { return g.ops().size(); })
      .def("type", [](const Graph& g, uint32_t t) { return to_python(g.type(tensor_from(g, t))); })
      .def("tensor_name",
           [](const Graph& g, uint32_t t) { return g.tensor(tensor_from(g, t)).name; })
      .def("ops",
           [](const Graph& g) {
             return list_of(g.ops(), [&](const Op& op) { return op_record(g, op); });
           })
      .def("__str__", [](const Graph& g) { return print(g); })
      .def("__eq__",
           [](const Graph& g, nb::handle other) {
             return nb::isinstance<Graph>(other) && g == nb::cast<const Graph&>(other);
           })
      .def("__hash__", [](const Graph& g) { return structural_hash(g); })
      .def_prop_ro("asks_for_nan", [](const Graph& g) { return asks_for_nan(g); })
      .def("validate", [](const Graph& g) { validate(g); })
      .def("bind_symbols", &bind_symbols)
      .def("without_dead_code", [](const Graph& g) { return without_dead_code(g); })
      .def("phases", [](const Graph& g) { return list_of(phases(g), phase_name); })
      .def("block_bytes", [](const Graph& g) { return block_memory(g).peak(); });

  m.def(
      "parse",
      [](const std::string& text, const std::string& file) {
        Released release;
        return parse(text, file);
      },
      nb::arg("text"), nb::arg("file") = "<input>");
  m.def("operators", &operators);
}

}  // namespace tessera::python
