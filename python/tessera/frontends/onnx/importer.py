"""Walks the nodes of an ONNX graph and builds a Graph.

Values that are known while walking (initialisers, shapes, what is computed from them) stay NumPy
arrays; they become constants or weights of the program only where an operator computes with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import BadInputError, Error, Location, UnsupportedError
from tessera.frontends.onnx.reader import (
    Array,
    array_of,
    describe,
    dtype_of,
    onnx_package,
    opset_of,
    shape_of,
)
from tessera.graph import Graph, Tensor
from tessera.types import dtype_name

Value = Tensor | Array
Handler = Callable[["Node"], "Value | Sequence[Value] | None"]

HANDLERS: dict[str, Handler] = {}
WRITTEN_OUT: set[str] = set()
_SMALL = 1024  # elements of an array that is part of an opaque node
_MOST_STEPS = 1024  # of a loop, which is unrolled
_MOST_NESTING = 16  # function bodies and branches inside each other
_LARGEST_KNOWN = 1 << 24  # elements of an array computed while importing


def handles(*op_types: str, written_out: bool = False) -> Callable[[Handler], Handler]:
    """Registers what imports nodes of these types; results of None mean "not in this form".

    `written_out`: the program is so much longer that runtimes had rather see the node.
    """

    def register(handler: Handler) -> Handler:
        for op_type in op_types:
            HANDLERS[op_type] = handler
        if written_out:
            WRITTEN_OUT.update(op_types)
        return handler

    return register


class NeedsValueError(UnsupportedError):
    """The shapes of a program depend on the values of some of its inputs."""

    def __init__(self, what: str, inputs: Sequence[str], where: Location) -> None:
        names = ", ".join(f"'{n}'" for n in inputs)
        super().__init__(
            f"{what} decides about shapes and comes from the input {names}: give its value, "
            "load(path, values={...}), or call the model (tessera.frontends.onnx.Model)",
            where,
        )
        self.inputs = tuple(inputs)


class Node:
    """One node with its operands, as handlers see it."""

    def __init__(self, importer: Importer, proto: Any, operands: Sequence[Value | None]) -> None:
        self.importer = importer
        self.proto = proto
        self.operands = operands
        self.opset = importer.opset
        self.graph = importer.graph
        self._attributes = {a.name: a for a in proto.attribute}
        self.num_outputs = len(proto.output)

    def has(self, i: int) -> bool:
        return i < len(self.operands) and self.operands[i] is not None

    def wants(self, i: int) -> bool:
        """Whether the node's result number i is used."""
        return i < self.num_outputs and self.proto.output[i] in self.importer.used

    def value(self, i: int) -> Value:
        if not self.has(i):
            raise BadInputError(f"{describe(self.proto)} lacks its operand {i}")
        return self.operands[i]  # type: ignore[return-value]

    def x(self, i: int = 0) -> Tensor:
        """An operand as a tensor of the program."""
        return self.importer.tensor(self.value(i), self.name_of(i))

    def name_of(self, i: int) -> str:
        return str(self.proto.input[i]) if i < len(self.proto.input) else ""

    def all(self) -> list[Tensor]:
        return [self.x(i) for i in range(len(self.operands)) if self.has(i)]

    def shape(self, i: int = 0) -> tuple[Any, ...]:
        return tuple(self.value(i).shape)

    def dtype(self, i: int = 0) -> np.dtype[Any]:
        return self.value(i).dtype

    def known(self, i: int, what: str) -> Array:
        """An operand that must be known while importing."""
        value = self.value(i)
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, Tensor) and (c := self.importer.splats.get(value.id)) is not None:
            return c
        inputs = self.importer.origins.get(self.name_of(i), frozenset())
        text = f"{what} of {describe(self.proto)}"
        if inputs:
            raise NeedsValueError(text, sorted(inputs), self.importer.where)
        raise UnsupportedError(f"{text} is not known before the model runs", self.importer.where)

    def ints(self, i: int, what: str) -> list[int]:
        array = self.known(i, what)
        if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > 1 << 16:
            raise BadInputError(f"{what} of {describe(self.proto)} must be a list of integers")
        return [int(v) for v in array.reshape(-1)]

    def has_attr(self, name: str) -> bool:
        return name in self._attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value; strings decoded."""
        if name not in self._attributes:
            return default
        try:
            value = onnx_package().helper.get_attribute_value(self._attributes[name])
        except ValueError as error:
            raise BadInputError(f"{describe(self.proto)}: {error}") from None
        kind = type(default)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, (list, tuple)) or hasattr(value, "add"):
            value = list(value)
        fits = (
            default is None
            or (kind is float and isinstance(value, (int, float)))
            or isinstance(value, kind)
        )
        if not fits:
            raise BadInputError(
                f"{describe(self.proto)}: attribute {name} must be a {kind.__name__}, "
                f"not {type(value).__name__}"
            )
        return value

    def require_attr(self, name: str, kind: type = int) -> Any:
        """An attribute that has no default; `object` is any kind."""
        if name not in self._attributes:
            raise BadInputError(f"{describe(self.proto)} lacks the attribute {name}")
        value = self.attr(name)
        if not isinstance(value, kind):
            raise BadInputError(
                f"{describe(self.proto)}: attribute {name} must be a {kind.__name__}, "
                f"not {type(value).__name__}"
            )
        return value

    def bad(self, message: str) -> BadInputError:
        return BadInputError(f"{describe(self.proto)}: {message}", self.importer.where)


class Importer:
    """Builds one Graph of one model, for given types and values of its inputs.

    `opaque`: what this module has no handler for becomes an opaque operator; else it is an error.
    `whole`: so do recurrent layers and the like, which kernels want written out and runtimes whole.
    `empty`: learns of the model's empty results by position, which are then none of the program's.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str = "<model>",
        folder: Path | None = None,
        shapes: Mapping[str, Sequence[int | str]] | None = None,
        extents: Mapping[str, int] | None = None,
        values: Mapping[str, Array] | None = None,
        opaque: bool = True,
        whole: bool = False,
        empty: dict[int, Array] | None = None,
    ) -> None:
        from tessera.frontends.onnx import operators  # registers the handlers

        del operators
        self.model = model
        self.where = Location(name)
        self.folder = folder
        self.opset = opset_of(model, self.where)
        self.graph = Graph(_identifier(model.graph.name))
        self.shapes = dict(shapes or {})
        self.extents = dict(extents or {})
        self.given = dict(values or {})
        self.allow_opaque = opaque
        self.whole = whole
        self.empty = empty
        self.opaque_nodes: dict[str, Any] = {}  # payload → single-node model
        self.notes: list[str] = []  # one line per opaque node
        self.origins: dict[str, frozenset[str]] = {}  # by value: inputs that it depends on
        self.splats: dict[int, Array] = {}
        self.used: set[str] = set()
        self._lifted: dict[int, tuple[Array, Tensor]] = {}  # by id of the array, which is kept
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._depth = 0
        self._inferred: dict[str, Any] | None = None

    # --- the graph
    def run(self) -> Graph:
        graph = self.model.graph
        values: dict[str, Value | None] = {}
        for tensor in graph.initializer:
            values[tensor.name] = array_of(tensor, self.folder, self.where)
        for sparse in graph.sparse_initializer:
            raise UnsupportedError(
                f"the initialiser '{sparse.values.name}' is sparse, which is not supported",
                self.where,
            )
        symbols: set[str] = set()
        for i, value in enumerate(graph.input):
            if value.name in values:
                continue
            if value.name in self.given:
                values[value.name] = np.asarray(self.given[value.name])
                continue
            values[value.name] = self._input(value, i, symbols)
            self.origins[value.name] = frozenset([value.name])
        for name in (*self.given, *self.shapes):
            if name not in values:
                raise BadInputError(f"the model has no input '{name}'", self.where)
        self.nodes(graph.node, values, {v.name for v in graph.output})
        for value in graph.output:
            result = values.get(value.name)
            if result is None:
                raise BadInputError(f"nothing makes the output '{value.name}'", self.where)
            if self.empty is not None and isinstance(result, np.ndarray) and result.size == 0:
                self.empty[len(self.empty) + len(self.graph.core.outputs)] = result
                continue
            tensor = self.tensor(result, value.name)
            self.graph.output_names.append(value.name)
            if tensor.is_input or tensor.id in self.graph.core.outputs:
                self.graph.output(tensor)
            else:
                self.graph.output(tensor, value.name)
        return self.graph

    def _input(self, value: Any, position: int, symbols: set[str]) -> Tensor:
        where = f"the input '{value.name}'"
        if not value.type.HasField("tensor_type"):
            raise UnsupportedError(f"{where} is not a tensor", self.where)
        dtype = dtype_of(value.type.tensor_type.elem_type, where, self.where)
        shape = self.shapes.get(value.name, shape_of(value))
        if shape is None:
            raise NeedsShapeError(value.name, self.where)
        dims: list[int | str] = []
        for axis, d in enumerate(shape):
            if isinstance(d, str) and d in self.extents:
                d = self.extents[d]
            if isinstance(d, str):
                d = _symbol(d) if d else f"{_symbol(value.name)}_{axis}"
                d = self.extents.get(d, d)
            dims.append(d)
        if len(dims) > 8:
            raise UnsupportedError(f"{where} has {len(dims)} axes; 8 are supported", self.where)
        try:
            return self.graph.input(value.name, dims, dtype)
        except Error as error:
            raise type(error)(error.message, self.where) from None

    def nodes(
        self, nodes: Sequence[Any], values: dict[str, Value | None], results: set[str]
    ) -> None:
        """Imports nodes in order; `values` learns of their results."""
        outer = self.used
        self.used = set(results)
        for node in nodes:
            self.used.update(_all_reads(node))
        for node in nodes:
            operands = [values.get(name) if name else None for name in node.input]
            for name, operand in zip(node.input, operands, strict=True):
                if name and operand is None:
                    raise BadInputError(
                        f"{describe(node)} reads '{name}', which has no value", self.where
                    )
            made = self._node(node, operands, values)
            if len(made) < len([n for n in node.output if n in self.used]):
                raise UnsupportedError(
                    f"{describe(node)}: only its first {len(made)} results are supported",
                    self.where,
                )
            origin = frozenset().union(*(self.origins.get(n, frozenset()) for n in node.input))
            for name, value in zip(node.output, made, strict=False):
                if not name:
                    continue
                values[name] = value
                self.origins[name] = origin
                if isinstance(value, Tensor) and not value.is_input and not value.name:
                    self.graph.core.set_tensor_name(value.id, name)
        self.used = outer

    def _node(
        self, proto: Any, operands: Sequence[Value | None], scope: dict[str, Value | None]
    ) -> Sequence[Value | None]:
        from tessera.frontends.onnx.fold import fold

        node = Node(self, proto, operands)
        try:
            if proto.domain in ("", "ai.onnx"):
                if proto.op_type == "If":
                    return self._branch(node, scope)
                if proto.op_type == "Scan" and self.opset >= 9:
                    return self._scan(node, scope)
                if proto.op_type == "Loop":
                    return self._loop(node, scope)
            function = self._functions.get((proto.domain, proto.op_type))
            if function is not None:
                return self._call(node, function)
            standard = proto.domain in ("", "ai.onnx")
            if standard and (folded := fold(node)) is not None:
                if any(f.size > _LARGEST_KNOWN for f in folded):
                    raise node.bad("its result is too large to be computed while importing")
                return folded
            if standard and self.whole and proto.op_type in WRITTEN_OUT:
                return self._opaque(node)
            handler = HANDLERS.get(proto.op_type) if standard else None
            made = handler(node) if handler else None
            if made is None and (body := self._schema_function(node)) is not None:
                return self._call(node, body)
            if made is None:
                return self._opaque(node)
            return made if isinstance(made, (list, tuple)) else [made]  # type: ignore[list-item]
        except NeedsValueError:
            raise
        except Error as error:
            if error.location is not None and error.location.file == self.where.file:
                raise
            message = error.message
            if describe(proto) not in message:
                message = f"{describe(proto)}: {message}"
            raise type(error)(message, self.where) from None
        except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError) as error:
            # Attributes and constants of a malformed node, met by NumPy or Python.
            raise BadInputError(f"{describe(proto)}: {error}", self.where) from None

    # --- nodes made of nodes
    def _branch(self, node: Node, scope: dict[str, Value | None]) -> Sequence[Value | None]:
        condition = node.known(0, "the condition")
        name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
        taken = node.require_attr(name, onnx_package().GraphProto)
        return self._inside(taken.node, taken.initializer, taken.output, dict(scope))

    def _scan(self, node: Node, scope: dict[str, Value | None]) -> Sequence[Value | None]:
        """A Scan step by step: how many there are is known."""
        body = node.require_attr("body", onnx_package().GraphProto)
        count = int(node.require_attr("num_scan_inputs"))
        state = list(node.operands[: len(node.operands) - count])
        scanned = [node.x(len(state) + i) for i in range(count)]
        outputs = len(body.output) - len(state)
        axes = [int(a) for a in node.attr("scan_input_axes", [0] * count)]
        back = [int(d) for d in node.attr("scan_input_directions", [0] * count)]
        out_axes = [int(a) for a in node.attr("scan_output_axes", [0] * outputs)]
        out_back = [int(d) for d in node.attr("scan_output_directions", [0] * outputs)]
        if not scanned or outputs < 0 or len(body.input) != len(node.operands):
            raise node.bad("its body does not fit its operands")
        steps = scanned[0].shape[axes[0]]
        self._require_steps(node, steps)
        made: list[list[Value]] = [[] for _ in range(outputs)]
        for step in range(steps):
            parts = []
            for x, axis, backwards in zip(scanned, axes, back, strict=True):
                at = steps - 1 - step if backwards else step
                lead = (slice(None),) * (axis % x.ndim)
                parts.append(x[(*lead, at)])
            values = dict(scope)
            values.update(zip((v.name for v in body.input), [*state, *parts], strict=True))
            results = self._inside(body.node, body.initializer, body.output, values)
            state = list(results[: len(state)])
            for into, result in zip(made, results[len(state) :], strict=True):
                into.append(self._present(node, result))
        return [*state, *self._stacked(made, out_axes, out_back)]

    def _loop(self, node: Node, scope: dict[str, Value | None]) -> Sequence[Value | None]:
        """A Loop step by step, where it is known while importing when it ends."""
        body = node.require_attr("body", onnx_package().GraphProto)
        state = list(node.operands[2:])
        outputs = len(body.output) - 1 - len(state)
        if outputs < 0 or len(body.input) != 2 + len(state):
            raise node.bad("its body does not fit its operands")
        steps = int(node.known(0, "the number of steps").reshape(-1)[0]) if node.has(0) else None
        going = bool(node.known(1, "the condition").reshape(-1)[0]) if node.has(1) else True
        made: list[list[Value]] = [[] for _ in range(outputs)]
        step = 0
        while going and (steps is None or step < steps):
            self._require_steps(node, step)
            values = dict(scope)
            given = [np.asarray(step, np.int64), np.asarray(True), *state]
            values.update(zip((v.name for v in body.input), given, strict=True))
            results = self._inside(body.node, body.initializer, body.output, values)
            condition = self._present(node, results[0])
            if not isinstance(condition, np.ndarray):
                if (known := self.splats.get(condition.id)) is None:
                    raise UnsupportedError(
                        f"{describe(node.proto)} ends when what it computes says so", self.where
                    )
                condition = known
            going = bool(condition.reshape(-1)[0])
            state = list(results[1 : 1 + len(state)])
            for into, result in zip(made, results[1 + len(state) :], strict=True):
                into.append(self._present(node, result))
            step += 1
        if step == 0 and outputs:
            raise UnsupportedError(f"{describe(node.proto)} takes no step", self.where)
        return [*state, *self._stacked(made, [0] * outputs, [0] * outputs)]

    def _require_steps(self, node: Node, steps: Any) -> None:
        if not isinstance(steps, int) or steps > _MOST_STEPS:
            raise UnsupportedError(
                f"{describe(node.proto)} takes {steps} steps; up to {_MOST_STEPS}, known in "
                "advance, are supported",
                self.where,
            )

    def _present(self, node: Node, value: Value | None) -> Value:
        if value is None:
            raise node.bad("its body does not make all its results")
        return value

    def _stacked(
        self, made: Sequence[list[Value]], axes: Sequence[int], backwards: Sequence[int]
    ) -> list[Value]:
        from tessera import ops

        results: list[Value] = []
        for parts, axis, back in zip(made, axes, backwards, strict=True):
            tensors = [self.tensor(p) for p in (reversed(parts) if back else parts)]
            results.append(ops.function("stack")(tensors, axis))
        return results

    def _call(self, node: Node, function: Any) -> Sequence[Value | None]:
        """A model's own function, or the body that ONNX itself gives for an operator."""
        values: dict[str, Value | None] = dict.fromkeys(function.input)
        values.update(zip(function.input, node.operands, strict=False))
        opsets = [o.version for o in function.opset_import if o.domain in ("", "ai.onnx")]
        outer, outer_origins = self.opset, self.origins
        self.opset = int(opsets[0]) if opsets else outer
        self.origins = {
            formal: outer_origins.get(actual, frozenset())
            for formal, actual in zip(function.input, node.proto.input, strict=False)
        }
        attributes = self._defaults(node.proto)
        attributes.update({a.name: a for a in function.attribute_proto})
        attributes.update({a.name: a for a in node.proto.attribute})
        body = [_with_attributes(n, attributes) for n in function.node]
        try:
            return self._inside(body, [], function.output, values)
        finally:
            self.opset, self.origins = outer, outer_origins

    def _defaults(self, proto: Any) -> dict[str, Any]:
        """Attributes that ONNX gives an operator where its node does not."""
        try:
            schema = onnx_package().defs.get_schema(proto.op_type, self.opset, proto.domain)
        except Exception:
            return {}
        defaults = {n: a.default_value for n, a in schema.attributes.items()}
        return {n: v for n, v in defaults.items() if v.type}

    def _inside(
        self,
        nodes: Sequence[Any],
        initializers: Sequence[Any],
        outputs: Sequence[Any],
        values: dict[str, Value | None],
    ) -> Sequence[Value | None]:
        if self._depth >= _MOST_NESTING:
            raise BadInputError("functions and branches are nested too deeply", self.where)
        self._depth += 1
        try:
            for tensor in initializers:
                values[tensor.name] = array_of(tensor, self.folder, self.where)
            names = [o if isinstance(o, str) else o.name for o in outputs]
            self.nodes(nodes, values, set(names))
            return [values.get(name) for name in names]
        finally:
            self._depth -= 1

    def _schema_function(self, node: Node) -> Any:
        """The body that ONNX gives for an operator that has no handler here."""
        onnx = onnx_package()
        proto = node.proto
        try:
            schema = onnx.defs.get_schema(proto.op_type, self.opset, proto.domain)
        except Exception:
            return None
        if schema.has_function:
            return schema.function_body
        if not schema.has_context_dependent_function:
            return None
        types = []
        for operand in node.operands:
            kind = onnx.TypeProto()
            if operand is not None:
                kind = onnx.helper.make_tensor_type_proto(
                    onnx.helper.np_dtype_to_tensor_dtype(operand.dtype), list(operand.shape)
                )
            types.append(kind.SerializeToString())
        try:
            body = schema.get_context_dependent_function(proto.SerializeToString(), types)
        except Exception:
            return None
        function = onnx.FunctionProto()
        function.ParseFromString(body)
        return function if function.node else None

    # --- operands
    def tensor(self, value: Value, name: str = "") -> Tensor:
        """A value as a tensor of the program: arrays become constants or weights."""
        if isinstance(value, Tensor):
            return value
        known = self._lifted.get(id(value))
        if known is not None:
            return known[1]
        if value.size == 0:
            raise UnsupportedError(
                f"'{name}' is empty, and a program's tensors are not; call the model for its "
                "empty results (tessera.frontends.onnx.Model)",
                self.where,
            )
        dtype_name(value.dtype)
        first = value.reshape(-1)[0]
        finite = value.dtype.kind not in "fV" or bool(np.isfinite(first.astype(np.float64)))
        if finite and (value.ndim == 0 or bool((value == first).all())):
            tensor = self.graph.const(
                first.item() if value.dtype.kind in "biu" else _exact(first),
                value.dtype,
                value.shape,
            )
            self.splats[tensor.id] = value
        else:
            tensor = self.weight(value, name)
        self._lifted[id(value)] = (value, tensor)
        return tensor

    def weight(self, value: Array, name: str = "") -> Tensor:
        """An array that comes with the program, as an input that keeps its values."""
        taken = self.graph.input_types()
        base = name = name or "constant"
        count = 0
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        tensor = self.graph.input(name, value.shape, value.dtype, weight=True)
        self.graph.weights[name] = np.ascontiguousarray(value).reshape(value.shape)
        return tensor

    # --- what has no handler
    def _opaque(self, node: Node) -> Sequence[Value | None]:
        proto = node.proto
        operator = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
        why = "not known to Tessera"
        if proto.op_type in HANDLERS and operator == proto.op_type:
            whole = self.whole and proto.op_type in WRITTEN_OUT
            why = "kept whole" if whole else "not supported in this form"
        text = f"{describe(proto)}: the operator {operator} (opset {self.opset}) is {why}"
        if not self.allow_opaque:
            raise UnsupportedError(text, self.where)
        # Small arrays that are known belong to the node: they may decide about its shapes.
        inputs: list[Value | None] = []
        for value, name in zip(node.operands, proto.input, strict=True):
            keep = value is None or (isinstance(value, np.ndarray) and value.size <= _SMALL)
            inputs.append(value if keep or value is None else self.tensor(value, name))
        model = self._single(proto, inputs)
        types = self._result_types(proto, model)
        if types is None:
            raise UnsupportedError(
                f"{text}, and the types of its results are not known before it runs", self.where
            )
        payload = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()[:16]
        self.opaque_nodes[payload] = model
        self.notes.append(f"{text}; it is left as it is and run by onnxruntime")
        ids = self.graph.core.add_opaque(
            [t.id for t in inputs if isinstance(t, Tensor)],
            f"onnx.{proto.op_type}",
            payload,
            types,
            list(proto.output),
        )
        return [Tensor(self.graph, i) for i in ids]

    def _single(self, proto: Any, inputs: Sequence[Value | None]) -> Any:
        """A model of one node; names are positions, so that equal nodes are equal models."""
        onnx = onnx_package()
        node = onnx.NodeProto()
        node.CopyFrom(proto)
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            raise UnsupportedError(
                f"{describe(proto)} has a subgraph, which is not supported", self.where
            )
        node.name = ""
        declared, known = [], []
        for i, t in enumerate(inputs):
            node.input[i] = "" if t is None else f"x{i}"
            if isinstance(t, np.ndarray):
                known.append(onnx.numpy_helper.from_array(t, f"x{i}"))
            elif t is not None:
                code = onnx.helper.np_dtype_to_tensor_dtype(t.dtype)
                declared.append(onnx.helper.make_tensor_value_info(f"x{i}", code, list(t.shape)))
        outputs = []
        for i, name in enumerate(proto.output):
            node.output[i] = f"y{i}" if name else ""
            if name:
                outputs.append(onnx.ValueInfoProto(name=f"y{i}"))
        graph = onnx.helper.make_graph([node], "opaque", declared, outputs, known)
        model = onnx.helper.make_model(graph, opset_imports=self.model.opset_import)
        model.ir_version = min(model.ir_version, 10)
        model.producer_name = ""
        return model

    def _result_types(self, proto: Any, model: Any) -> list[tuple[str, list[int]]] | None:
        onnx = onnx_package()
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception as error:
            raise BadInputError(f"{describe(proto)}: {error}", self.where) from None
        declared = self._declared()
        types = []
        for value, name in zip(inferred.graph.output, [n for n in proto.output if n], strict=True):
            known = [
                (c, shape)
                for c in (value, declared.get(name))
                if c is not None and (shape := shape_of(c)) is not None
            ]
            static = [(c, [d for d in shape if isinstance(d, int) and d > 0]) for c, shape in known]
            fits = [
                s for s, (_, shape) in zip(static, known, strict=True) if len(s[1]) == len(shape)
            ]
            if not fits:
                return None
            candidate, dims = fits[0]
            elem = candidate.type.tensor_type.elem_type
            types.append((dtype_name(dtype_of(elem, f"'{name}'", self.where)), dims))
        return types

    def _declared(self) -> dict[str, Any]:
        """Types the model states for its values."""
        if self._inferred is None:
            graph = self.model.graph
            self._inferred = {v.name: v for v in [*graph.value_info, *graph.output]}
        return self._inferred


class NeedsShapeError(UnsupportedError):
    """The model does not say how many axes an input has."""

    def __init__(self, name: str, where: Location) -> None:
        super().__init__(
            f"the model does not state the shape of the input '{name}': "
            f"load(path, shapes={{'{name}': [...]}})",
            where,
        )
        self.name = name


def _exact(x: Any) -> Any:
    """A float as the value it has in its own dtype, not as its shortest decimal text."""
    return float(x)


def _symbol(name: str) -> str:
    text = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
    return text if text[:1].isalpha() else f"d{text}"


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name) or "model"


def _all_reads(node: Any) -> list[str]:
    names = [n for n in node.input if n]
    for attribute in node.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            for inner in graph.node:
                names += _all_reads(inner)
            names += [o.name for o in graph.output]
    return names


def _with_attributes(node: Any, attributes: Mapping[str, Any]) -> Any:
    """A node of a function body with the call's attributes in place of references to them."""
    onnx = onnx_package()
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            copy = result.attribute.add()
            copy.CopyFrom(a)
            if copy.HasField("g"):
                inner = [_with_attributes(n, attributes) for n in copy.g.node]
                del copy.g.node[:]
                copy.g.node.extend(inner)
        elif a.ref_attr_name in attributes:
            copy = result.attribute.add()
            copy.CopyFrom(attributes[a.ref_attr_name])
            copy.name = a.name
    return result
