"""Walks the nodes of an ONNX graph and builds a Graph.

Values that are known while walking (initialisers, shapes, what is computed from them) stay NumPy
arrays; they become constants or weights of the program only where an operator computes with them.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tessera import ops
from tessera.errors import BadInputError, Error, Location, UnsupportedError
from tessera.extents import NeedsExtentError, dims_of, symbols_of
from tessera.frontends.onnx import operators  # noqa: F401 (registers the handlers)
from tessera.frontends.onnx.bodies import NESTED, call, schema_function, schema_of
from tessera.frontends.onnx.fold import fold
from tessera.frontends.onnx.node import (
    IN_F32,
    LARGEST_KNOWN,
    WRITTEN_OUT,
    Made,
    NeedsValueError,
    Node,
    Value,
    handles,
)
from tessera.frontends.onnx.opaque import (
    Outside,
    Tail,
    Typed,
    region,
    renamed,
    static_types,
    types_by_runtime,
)
from tessera.frontends.onnx.reader import (
    array_of,
    defaults_of,
    dense_of,
    describe,
    dtype_of,
    onnx_package,
    opset_of,
    reads,
    shape_of,
    widened,
)
from tessera.graph import Graph
from tessera.ops.operands import wide
from tessera.tensor import Tensor, cast
from tessera.types import Array, DType, Record, dtype_name, is_float

if TYPE_CHECKING:
    import onnx

# Results without elements, all results, which are used, their model, what it takes, the types.
Alone = tuple[
    list[Made], list[Outside], list[int], "onnx.ModelProto", list[Tensor], list[Typed | None]
]
_SMALL = 1024  # elements of an array that is part of an opaque node


class Importer:
    """Builds one Graph of one model, for given types and values of its inputs.

    `opaque`: what this module has no handler for becomes an opaque operator; else it is an error.
    `whole`: so do recurrent layers and the like, which kernels want written out and runtimes whole.
    `empty`: learns of the model's empty results by position, which are then none of the program's.
    `tail`: what no program holds may be a result, computed behind the program (`Graph.tail`).
    """

    def __init__(self, model: onnx.ModelProto, *, name: str = "<model>", folder: Path | None = None,
                 shapes: Mapping[str, Sequence[int | str]] | None = None,
                 extents: Mapping[str, int] | None = None,
                 values: Mapping[str, Array] | None = None, opaque: bool = True,
                 whole: bool = False, empty: dict[int, Array] | None = None,
                 tail: bool = False) -> None:  # fmt: skip
        self.model = model
        self.where = Location(name)
        self.folder = folder
        self.opset = opset_of(model, self.where)
        self.graph = Graph(re.sub("[^A-Za-z0-9]", "_", model.graph.name) or "model")
        self.shapes = dict(shapes or {})
        self.extents = dict(extents or {})
        self.given = dict(values or {})
        self.allow_opaque = opaque
        self.whole = whole
        self.empty = empty
        self.tail = tail
        graph = model.graph
        self._declared = {v.name: v for v in [*graph.value_info, *graph.output]}
        self.opaque_nodes: Record = {}  # payload → single-node model
        self.notes: list[str] = []  # one line per opaque node
        self.origins: dict[str, frozenset[str]] = {}  # by value: inputs that it depends on
        self.splats: dict[int, Array] = {}
        self.counts: dict[int, set[str]] = {}  # tensors that follow from these symbols alone
        self.used: set[str] = set()
        self._lifted: dict[int, tuple[Array, Tensor]] = {}  # by id of the array, which is kept
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.depth = self.expanded = 0
        self._open: dict[str, None] = {}  # names of extents that the model leaves open, in order
        self._numbered = 0  # nodes outside of the program

    # --- the graph
    def run(self) -> Graph:
        graph = self.model.graph
        values: dict[str, Made] = {}
        for tensor in graph.initializer:
            values[tensor.name] = self.initial(tensor)
        for sparse in graph.sparse_initializer:
            values[sparse.values.name] = dense_of(sparse, self.folder, self.where)
        defaults = defaults_of(self.model) if self.empty is None else []  # which a call knows
        for value in graph.input:
            initial = values.get(value.name)
            if value.name in self.given:
                values[value.name] = np.asarray(self.given[value.name])
                continue
            if initial is None or value.name in self.shapes:
                values[value.name] = self._input(value)
            elif value.name in defaults and isinstance(initial, np.ndarray) and initial.size:
                values[value.name] = self.weight(initial, value.name)
                self.graph.defaults.add(value.name)
            else:
                continue
            self.origins[value.name] = frozenset([value.name])
        for name in (*self.given, *self.shapes):
            if name not in values:
                raise BadInputError(f"the model has no input '{name}'", self.where)
        for name in self.extents:
            if name not in self._open:
                known = f"those it has are {', '.join(self._open)}" if self._open else "it has none"
                raise BadInputError(f"the model has no open extent '{name}'; {known}", self.where)
        self.nodes(graph.node, values, {v.name for v in graph.output})
        behind: dict[int, Outside] = {}
        for position, value in enumerate(graph.output):
            result = values.get(value.name)
            if result is None:
                raise BadInputError(f"nothing makes the output '{value.name}'", self.where)
            if self.empty is not None and isinstance(result, np.ndarray) and result.size == 0:
                self.empty[position] = result
                continue
            if isinstance(result, Outside) and self.tail:
                behind[position] = result
                continue
            tensor = self.tensor(result, value.name)
            self.graph.output_names.append(value.name)
            named = tensor.is_input or tensor.id in self.graph.core.outputs
            self.graph.output(tensor, "" if named else value.name)
        if behind:
            self._behind(behind)
        return self.graph

    def _behind(self, results: Mapping[int, Outside]) -> None:
        """Makes results that no program holds the program's tail."""
        model, taken = region(list(results.values()), self._opsets())
        core = self.graph.core
        shown = len(core.outputs)
        for t in taken:
            if t.id not in core.outputs:
                self.graph.output(t)
                self.graph.output_names.append(core.tensor_name(t.id) or f"t{t.id}")
        outputs = [self.model.graph.output[i] for i in results]
        names = [o.name for o in outputs]
        model = onnx_package().shape_inference.infer_shapes(model)
        for made, stated in zip(model.graph.output, outputs, strict=True):
            if stated.HasField("type"):
                made.type.CopyFrom(stated.type)
        takes = [core.outputs.index(t.id) for t in taken]
        hidden = len(core.outputs) - shown
        self.graph.tail = Tail(model, takes, dict(zip(results, names, strict=True)), hidden)

    def _input(self, value: onnx.ValueInfoProto) -> Tensor:
        where = f"the input '{value.name}'"
        if not value.type.HasField("tensor_type"):
            raise UnsupportedError(f"{where} is not a tensor", self.where)
        kind = value.type.tensor_type.elem_type
        if kind in widened() and not self.whole and self._only_cast(value.name):
            kind = onnx_package().TensorProto.INT32
        dtype = dtype_of(kind, where, self.where)
        shape = self.shapes.get(value.name, shape_of(value))
        if shape is None:
            raise UnsupportedError(
                f"the model does not state the shape of {where}: "
                f"load(path, shapes={{'{value.name}': [...]}})",
                self.where,
            )
        dims: list[int | str] = []
        for axis, d in enumerate(shape):
            if isinstance(d, str):
                names = [d, _symbol(d) if d else f"{_symbol(value.name)}_{axis}"]
                self._open.update(dict.fromkeys(n for n in names if n))
                d = next((self.extents[n] for n in names if n in self.extents), names[1])
            dims.append(d)
        if len(dims) > 8:
            raise UnsupportedError(f"{where} has {len(dims)} axes; 8 are supported", self.where)
        try:
            return self.graph.input(value.name, dims, dtype)
        except Error as error:
            raise type(error)(error.message, self.where) from None

    def _only_cast(self, name: str) -> bool:
        """Whether a value's elements are read by conversions only: a wider type has them all."""
        readers = [n for n in self.model.graph.node if name in reads(n)]
        results = [o.name for o in self.model.graph.output]
        return name not in results and all(n.op_type == "Cast" and not n.domain for n in readers)

    def nodes(
        self, nodes: Sequence[onnx.NodeProto], values: dict[str, Made], results: set[str]
    ) -> None:
        """Imports nodes in order; `values` learns of their results."""
        self.used = set(results)
        for node in nodes:
            self.used.update(reads(node))
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
            tensors = [o for o in operands if isinstance(o, Tensor) and o.id not in self.splats]
            counts = [
                symbols_of(o) | self.counts.get(getattr(o, "id", -1), set()) for o in operands
            ]
            if symbols := all(t.id in self.counts for t in tensors) and set().union(*counts):
                self.counts.update((t.id, symbols) for t in made if isinstance(t, Tensor))
            origin = frozenset().union(*(self.origins.get(n, frozenset()) for n in reads(node)))
            for name, value in zip(node.output, made, strict=False):
                if not name:
                    continue
                values[name] = value
                self.origins[name] = origin
                if isinstance(value, Tensor) and not value.is_input and not value.name:
                    self.graph.core.set_tensor_name(value.id, name)

    def _node(
        self, proto: onnx.NodeProto, operands: Sequence[Made], scope: dict[str, Made]
    ) -> Sequence[Made]:
        node = Node(self, proto, operands)
        try:
            if proto.domain in ("", "ai.onnx"):
                nested = NESTED.get(proto.op_type)
                if nested is not None and (proto.op_type != "Scan" or self.opset >= 9):
                    return nested(node, scope)
            schema = schema_of(node)
            if schema is not None and len(proto.input) > schema.max_input:
                raise node.bad(f"takes {schema.max_input} operands, not {len(proto.input)}")
            function = self._functions.get((proto.domain, proto.op_type, proto.overload))
            if function is not None:
                return call(node, function)
            if any(isinstance(o, Outside) for o in operands):
                return self.opaque(node, scope)
            standard = proto.domain in ("", "ai.onnx")
            empty = any(isinstance(o, np.ndarray) and o.size == 0 for o in operands)
            if empty and (nothing := self._of_nothing(node, scope)) is not None:
                return nothing
            handler = handles.get(proto.op_type) if standard else None
            bodied = handler is None and schema is not None and schema.has_function
            made = None
            try:
                if standard and (folded := fold(node)) is not None:
                    node.fits(max([0, *(f.size for f in folded)]))
                    return folded
                if not (standard and self.whole and proto.op_type in WRITTEN_OUT):
                    in_f32 = bodied or proto.op_type in IN_F32
                    meant, narrow = self._widened(node) if in_f32 else (node, None)
                    made = handler(meant) if handler else None
                    if made is None and (body := schema_function(meant)) is not None:
                        made = call(meant, body)
            except Error as error:
                # Of 9 axes the core says that they are malformed; bodies that ONNX gives may not
                # work (AffineGrid's with one image).
                lacks = isinstance(error, UnsupportedError) or "exceeds the limit" in error.message
                asks = isinstance(error, (NeedsValueError, NeedsExtentError))
                if asks or not self.allow_opaque or not (lacks or bodied):
                    raise
            if made is None:
                return self.opaque(node, scope)
            results = made if isinstance(made, (list, tuple)) else [made]
            return [
                cast(v, narrow) if narrow and isinstance(v, Tensor) and v.dtype == np.float32 else v
                for v in results
            ]
        except NeedsValueError:
            raise
        except (
            Error,
            ValueError,  # the rest: attributes and constants, met by NumPy or Python
            TypeError,
            IndexError,
            OverflowError,
            ZeroDivisionError,
            MemoryError,
        ) as error:
            raise self._met(proto, operands, error) from None

    def _widened(self, node: Node) -> tuple[Node, DType | None]:
        """The node with its 16-bit floats in f32, and the dtype that they had."""
        narrow = {
            i: o.dtype
            for i, o in enumerate(node.operands)
            if isinstance(o, (Tensor, np.ndarray)) and is_float(o.dtype) and o.dtype.itemsize == 2
        }
        operands = [wide(node.x(i)) if i in narrow else o for i, o in enumerate(node.operands)]
        return Node(self, node.proto, operands), next(iter(narrow.values()), None)

    def _met(self, proto: onnx.NodeProto, operands: Sequence[Made], error: Exception) -> Error:
        """What an exception in a node says of the model."""
        kind: type[Error] = BadInputError
        message, what = str(error), describe(proto)
        if isinstance(error, Error):
            if error.location is not None and error.location.file == self.where.file:
                return error
            kind, message = type(error), error.message
        shapes = [o.shape for o in operands if isinstance(o, Tensor)]
        if symbols := set().union(*(symbols_of(o) for o in [*operands, *shapes])):
            # It may be well with numbers.
            needs = error if isinstance(error, NeedsExtentError) else None
            return (needs or NeedsExtentError(message, symbols)).told(f"{what}: ", self.where)
        return kind(message if what in message else f"{what}: {message}", self.where)

    # --- operands
    def tensor(self, value: Value | Outside, name: str = "") -> Tensor:
        """A value as a tensor of the program: arrays become constants or weights."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, np.ndarray) and value.dtype == object:
            return self._counted(value)
        if isinstance(value, Outside):
            raise UnsupportedError(
                f"{value.why}, and no program holds '{name}', what it makes; call the model "
                "(tessera.frontends.onnx.Model), or write one (tessera optimize … -o)",
                self.where,
            )
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
        plain = value.dtype.kind not in "fV" or bool(np.isfinite(first.astype(np.float64)))
        plain &= str(first) != "-0.0"  # which a program's constants are not
        if plain and value.tobytes() == first.tobytes() * value.size:
            number = first.item() if value.dtype.kind in "biu" else float(first)
            tensor = self.graph.const(number, value.dtype, value.shape)
            self.splats[tensor.id] = value
        else:
            tensor = self.weight(value, name)
        self._lifted[id(value)] = (value, tensor)
        return tensor

    def _counted(self, value: Array) -> Tensor:
        """Integers that follow from open extents, each as how many ones there are."""
        numbers = [
            ops.function("sum")(self.graph.const(1, np.int64, [d]))
            if isinstance(d, str)
            else self.graph.const(d, np.int64)
            for d in dims_of(value.reshape(-1))
        ]
        return ops.shape.reshape(ops.shape.stack(numbers, 0), value.shape)

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
    def initial(self, tensor: onnx.TensorProto) -> Value | Outside:
        """An initialiser's value; one of a type that programs lack is outside of them."""
        try:
            return array_of(tensor, self.folder, self.where)
        except UnsupportedError as error:
            onnx = onnx_package()
            if not self.allow_opaque or tensor.data_location == onnx.TensorProto.EXTERNAL:
                raise
            node = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
            return self._outside(node, {}, error.message)[0]

    def _outside(
        self, proto: onnx.NodeProto, given: Mapping[str, Value | Outside], why: str
    ) -> list[Outside]:
        """The results of a node as values outside of the program."""
        number = self._numbered = self._numbered + 1
        # Large arrays are the program's. By id: what is read is kept by what reads it.
        held = {
            n: self.tensor(v, n) if isinstance(v, np.ndarray) and v.size > _SMALL else v
            for n, v in given.items()
        }
        names = {n: v.name if isinstance(v, Outside) else f"v{id(v)}" for n, v in held.items()}
        inputs = {names[n]: v for n, v in held.items() if not isinstance(v, Outside)}
        nodes: dict[int, onnx.NodeProto] = {}
        for value in held.values():
            if isinstance(value, Outside):
                nodes.update(value.nodes)
                inputs.update(value.reads)
        made = [f"r{number}_{i}" if n else "" for i, n in enumerate(proto.output)]
        nodes[number] = renamed(proto, names | dict(zip(proto.output, made, strict=True)))
        nodes[number].name = ""
        return [Outside(name, nodes, inputs, why) for name in made]

    def _alone(self, node: Node, scope: Mapping[str, Made], why: str) -> Alone:
        """A node with what is outside that it reads, as a model of its own."""
        given = {n: v for n in reads(node.proto) if (v := scope.get(n)) is not None}
        for value in given.values():
            if symbols := symbols_of(value):
                raise NeedsExtentError("it is left to onnxruntime", symbols)
        made = self._outside(node.proto, given, why)
        wanted = [i for i, n in enumerate(node.proto.output) if n in self.used]
        model, taken = region([made[i] for i in wanted], self._opsets())
        stated = [self._declared.get(node.proto.output[i]) for i in wanted]
        try:
            types = static_types(model, stated)
        except Exception as error:
            raise node.bad(str(error)) from None
        results: list[Made] = [None] * len(made)
        for i, t in zip(wanted, types, strict=True):
            if t is not None and 0 in t[1]:
                results[i] = np.empty(t[1], onnx_package().helper.tensor_dtype_to_np_dtype(t[0]))
        return results, made, wanted, model, taken, types

    def _opsets(self) -> list[onnx.OperatorSetIdProto]:
        others = [o for o in self.model.opset_import if o.domain not in ("", "ai.onnx")]
        return [*others, onnx_package().helper.make_opsetid("", self.opset)]

    def opaque(self, node: Node, scope: Mapping[str, Made]) -> Sequence[Made]:
        """A node left to onnxruntime: an operator of the program, together with what is outside
        that it reads; or outside itself."""
        proto = node.proto
        operator = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
        why = "not known to Tessera"
        if proto.op_type in handles and operator == proto.op_type:
            whole = self.whole and proto.op_type in WRITTEN_OUT
            why = "kept whole" if whole else "not supported in this form"
        if any(isinstance(o, Outside) for o in node.operands):
            why = "left with what it reads"
        text = f"{describe(proto)}: the operator {operator} (opset {self.opset}) is {why}"
        if not self.allow_opaque:
            raise UnsupportedError(text, self.where)
        results, made, wanted, model, taken, types = self._alone(node, scope, text)
        if all(results[i] is not None for i in wanted):  # none where nobody reads it
            return results
        if symbols := set().union(*(symbols_of(t.shape) for t in taken)):
            raise NeedsExtentError("", symbols).told(f"{text}, and needs known extents", self.where)
        if None in types:
            types = types_by_runtime(model) or types
        try:
            held = [t for t in types if t and 0 not in t[1] and len(t[1]) <= 8]
            kinds = [(dtype_name(dtype_of(code, "")), shape) for code, shape in held]
        except UnsupportedError:
            kinds = []
        if len(kinds) < len(types):
            for i in wanted:
                results[i] = made[i]
            return results
        payload = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()[:16]
        self.opaque_nodes[payload] = model
        self.notes.append(f"{text}; it is left as it is and run by onnxruntime")
        function, operands = f"onnx.{proto.op_type}", [t.id for t in taken]
        names = [proto.output[i] for i in wanted]
        ids = self.graph.core.add_opaque(operands, function, payload, kinds, names)
        for i, t in zip(wanted, ids, strict=True):
            results[i] = Tensor(self.graph, t)
        return results

    def _of_nothing(self, node: Node, scope: Mapping[str, Made]) -> Sequence[Made] | None:
        """Results of a node that reads an empty array: empty ones, or where all that it reads is
        known, what ONNX's own evaluator says. None: neither."""
        results, _, wanted, model, taken, types = self._alone(node, scope, "")
        if all(results[i] is not None for i in wanted):
            return results
        for i, operand in enumerate(node.operands):  # shapes, axes; a Concat leaves out the empty
            integers = isinstance(operand, Tensor) and operand.dtype.kind == "i"
            if integers and node.proto.op_type != "Concat":
                node.known(i, "an operand")
        small = all(t is not None and np.prod(t[1], dtype=float) < LARGEST_KNOWN for t in types)
        if taken or not small:
            return None
        from onnx.reference import ReferenceEvaluator

        try:
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                found = ReferenceEvaluator(model).run(None, {})
        except Exception:  # its handler says what is wrong
            return None
        for i, array in zip(wanted, found, strict=True):
            results[i] = np.asarray(array)
        return results


def _symbol(name: str) -> str:
    text = re.sub("[^A-Za-z0-9]", "_", name)
    return text if text[:1].isalpha() else f"d{text}"
