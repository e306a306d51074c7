"""Writes a Graph as a standard ONNX model, where every operator of it has a standard form."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from tessera.emit.node import number
from tessera.errors import UnsupportedError
from tessera.extents import Number, product, symbols_of, values_of
from tessera.frontends.handlers import Handlers
from tessera.frontends.onnx.composites import Composite, composites
from tessera.frontends.onnx.model_file import LEAST_OUTSIDE, Written
from tessera.frontends.onnx.node import SAME
from tessera.frontends.onnx.opaque import OpaqueNodes, renamed
from tessera.frontends.onnx.reader import onnx_package
from tessera.graph import Graph
from tessera.types import Array, Attribute, DType, DTypeGiven, Record, is_float, to_numpy

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

OPSET = 20  # what is written: old enough for common runtimes, new enough for Gelu


def inexpressible(graph: Graph) -> list[str]:
    """The operators that have no standard ONNX form, a line each; empty: `export` writes it all."""
    lines = []
    models = graph.opaque.models if isinstance(graph.opaque, OpaqueNodes) else {}
    for record in graph.ops:
        op = record["op"]
        if op == "opaque" and record["attrs"]["payload"] not in models:
            lines.append(f"opaque {record['attrs']['function']}: its node is not known")
        elif op == "kernel":
            names = [graph.core.tensor_name(t) or f"t{t}" for t in record["results"]]
            lines.append(f"kernel {', '.join(names)}: a fused kernel of Tessera's own")
        elif op not in ("input", "opaque", *_WRITERS):
            lines.append(f"{op}: ONNX has no such operator")
    return lines


def to_onnx(graph: Graph, outputs: Sequence[str] = ()) -> ModelProto:
    """The ModelProto of a program; weights become initialisers, names are kept.

    `outputs`: names for the results instead of `graph.output_names`, as many as there are.
    Raises UnsupportedError that lists what has no ONNX form.
    """
    return written(graph, outputs).whole()


def written(graph: Graph, outputs: Sequence[str] = ()) -> Written:
    """The same with the data of weights beside it, as it is in memory."""
    if missing := inexpressible(graph):
        raise UnsupportedError(
            "this program cannot be written as standard ONNX: " + "; ".join(missing)
        )
    writer = _Writer(graph, outputs)
    return Written(writer.run(), writer.arrays)


def export(graph: Graph, path: str | Path, *, external: bool = False) -> None:
    """Writes a program as an ONNX file, all or nothing; see `to_onnx`.

    Weights of more than 2 GB together, or where `external` asks for it those from 1 KiB, are
    written to PATH.data, as ONNX's external data.
    """
    written(graph).save(Path(path), external)


class _Writer:
    def __init__(self, graph: Graph, outputs: Sequence[str]) -> None:
        self.graph = graph
        self._wanted = list(outputs or graph.output_names)
        if len(self._wanted) != len(graph.core.outputs):
            self._wanted = [graph.core.tensor_name(t) or f"t{t}" for t in graph.core.outputs]
        self.onnx = onnx_package()
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.arrays: dict[str, Array] = {}  # initialisers' data that is not in the model
        self._models = graph.opaque.models if isinstance(graph.opaque, OpaqueNodes) else {}
        models = [*self._models.values(), *([graph.tail.model] if graph.tail else [])]
        newest = [o.version for m in models for o in m.opset_import if not o.domain]
        self.opsets: dict[str, int] = {"": max([OPSET, *newest])}
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._constants: dict[Hashable, str] = {}
        self._wholes = composites(graph)

    def run(self) -> ModelProto:
        helper, graph = self.onnx.helper, self.graph
        core = graph.core
        types = list(graph.input_types())
        inputs = []
        made: dict[int, str] = {}  # the first name wanted of a result
        for i, t in enumerate(core.outputs):
            if t in core.inputs and self._wanted[i] == core.tensor_name(t):
                continue  # the input itself
            self._wanted[i] = self._claim(self._wanted[i] + "_out" * (self._wanted[i] in types))
            made.setdefault(t, self._wanted[i])
        for name, t in zip(types, core.inputs, strict=True):
            self._names[t] = self._claim(name)
            if name in graph.weights:
                self.initializers.append(self._weight(self._names[t], graph.weights[name]))
            if name not in graph.weights or name in graph.defaults:
                inputs.append(self._value(t))
        for record in self._live():
            for t in record["results"]:
                self._names[t] = made.get(t) or self._claim(core.tensor_name(t) or f"t{t}")
            whole = self._wholes.get(record["results"][0])
            names = [self._names[t] for t in self._operands(record)]
            if whole is not None:
                self._composite(whole, names, self.result(record))
            elif record["op"] == "opaque":
                self._opaque(record, names)
            else:
                op, operands, *attrs = _WRITERS[record["op"]](self, record, names)
                self.add(op, operands, attrs[0] if attrs else {}, self.result(record))
        outputs = []
        seen: set[int] = set()
        for i, t in enumerate(core.outputs):
            name = self._wanted[i]
            if name != self._names[t] and (t in core.inputs or t in seen):
                self.nodes.append(helper.make_node("Identity", [self._names[t]], [name], name=name))
            seen.add(t)
            outputs.append(self._value(t, name))
        if (tail := graph.tail) is not None:
            names = [self._names[core.outputs[i]] for i in tail.takes]
            self._region(tail.model, names, [self._claim(n) for n in tail.makes.values()])
            del outputs[len(outputs) - tail.hidden :]
            for kind, (position, name) in zip(
                tail.model.graph.output, tail.makes.items(), strict=True
            ):
                outputs.insert(position, self.onnx.ValueInfoProto(name=name, type=kind.type))
        proto = helper.make_graph(self.nodes, graph.name, inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        model = helper.make_model(proto, opset_imports=opsets, producer_name="tessera")
        self._check_types()
        model.ir_version = max(9, helper.find_min_ir_version_for(list(model.opset_import), True))
        return model

    def _check_types(self) -> None:
        """Refuses what ONNX has for other element types only."""
        types = {name: self.graph.core.type(t)[0] for t, name in self._names.items()}
        for node in (n for n in self.nodes if not n.domain):
            formals = self.onnx.defs.get_schema(node.op_type, self.opsets[""]).inputs
            for i, name in enumerate(node.input):
                if name not in types:
                    continue
                code = self.code(to_numpy(types[name]))
                kind = self.onnx.TensorProto.DataType.Name(code).lower()
                if f"tensor({kind})" not in formals[min(i, len(formals) - 1)].types:
                    raise UnsupportedError(
                        "this program cannot be written as standard ONNX: there is no "
                        f"{node.op_type} of {kind} ('{node.name}')"
                    )

    def _operands(self, record: Record) -> Sequence[int]:
        whole = self._wholes.get(record["results"][0])
        return record["inputs"] if whole is None else whole.inputs

    def _live(self) -> list[Record]:
        """The records that outputs depend on, in order; what composites replace is not among."""
        wanted = set(self.graph.core.outputs)
        live = []
        for record in reversed(self.graph.ops):
            if record["op"] != "input" and wanted.intersection(record["results"]):
                wanted.update(self._operands(record))
                live.append(record)
        return live[::-1]

    def _composite(self, whole: Composite, names: Sequence[str], result: str) -> None:
        operands = list(names)
        if whole.ones is not None:
            dtype = self.dtype(whole.inputs[0])
            if np.prod(whole.ones, dtype=np.float64) <= 1 << 16:
                ones = self.constant(np.ones(whole.ones), dtype)
            else:
                one = self._tensor("value", np.ones([1], dtype))
                ones = self.add("ConstantOfShape", [self.constant(whole.ones)], {"value": one})
            operands.insert(1, ones)
        self.add(whole.op, operands, whole.attrs, result)

    # --- names and values
    def _claim(self, name: str) -> str:
        fresh, i = name, 1
        while fresh in self._taken:
            fresh, i = f"{name}_{i}", i + 1
        self._taken.add(fresh)
        return fresh

    def _value(self, t: int, name: str | None = None) -> ValueInfoProto:
        dtype, shape = self.graph.core.type(t)
        code = self.code(to_numpy(dtype))
        return self.onnx.helper.make_tensor_value_info(name or self._names[t], code, shape)

    def _weight(self, name: str, array: Array) -> TensorProto:
        if array.nbytes < LEAST_OUTSIDE:
            return self._tensor(name, array)
        self.arrays[name] = array
        code = self.code(array.dtype)
        return self.onnx.TensorProto(name=name, data_type=code, dims=array.shape)

    def _tensor(self, name: str, array: Array) -> TensorProto:
        data = np.ascontiguousarray(array).reshape(array.shape).tobytes()
        code = self.code(array.dtype)
        return self.onnx.helper.make_tensor(name, code, array.shape, data, raw=True)

    def dtype(self, t: int) -> DType:
        return to_numpy(self.graph.core.type(t)[0])

    def shape(self, t: int) -> list[Number]:
        return list(self.graph.core.type(t)[1])

    # --- nodes
    def add(
        self, op: str, inputs: Sequence[str], attrs: Record | None = None, result: str = ""
    ) -> str:
        """Appends a node and returns its result's name."""
        name = self._claim(result) if result and result not in self._names.values() else result
        name = name or self._claim(f"{op.lower()}_{len(self.nodes)}")
        made = self.onnx.helper.make_node(op, list(inputs), [name], name=name, **(attrs or {}))
        self.nodes.append(made)
        return name

    def constant(self, values: ArrayLike, dtype: DTypeGiven = np.int64) -> str:
        if symbols := symbols_of(values):
            raise UnsupportedError(
                f"ONNX needs numbers for {', '.join(sorted(symbols))}; bind them"
            )
        array = np.asarray(values, dtype)
        key = (array.tobytes(), array.dtype.str, array.shape)
        if key not in self._constants:
            self._constants[key] = self._claim(f"constant_{len(self._constants)}")
            self.initializers.append(self._tensor(self._constants[key], array))
        return self._constants[key]

    def result(self, record: Record) -> str:
        return self._names[record["results"][0]]

    def code(self, dtype: DType) -> int:
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def _opaque(self, record: Record, names: Sequence[str]) -> None:
        model = self._models[record["attrs"]["payload"]]
        self._region(model, names, [self._names[t] for t in record["results"]])

    def _region(self, model: ModelProto, operands: Sequence[str], results: Sequence[str]) -> None:
        """Writes the nodes of another model, in the operators' versions of this one."""
        model = _in_opset(model, self.opsets[""])
        graph = model.graph
        names = dict(zip((v.name for v in graph.input), operands, strict=True))
        names.update(zip((v.name for v in graph.output), results, strict=True))
        for tensor in graph.initializer:
            array = self.onnx.numpy_helper.to_array(tensor)
            names[tensor.name] = self.constant(array, array.dtype)
        for node in graph.node:
            for name in node.output:
                if name and name not in names:
                    names[name] = self._claim(f"{node.op_type.lower()}_{len(self.nodes)}")
            self.nodes.append(renamed(node, names))
            self.nodes[-1].name = next(n for n in self.nodes[-1].output if n)
        self.opsets.update((o.domain, o.version) for o in model.opset_import if o.domain)


def _in_opset(model: ModelProto, version: int) -> ModelProto:
    """A model of opaque nodes whose operators mean the same in another, later version."""
    onnx = onnx_package()
    own = next(o.version for o in model.opset_import if not o.domain)
    standard = [n.op_type for n in model.graph.node if not n.domain]
    try:
        schemas = [[onnx.defs.get_schema(op, v) for v in (own, version)] for op in standard]
        if all(a.since_version == b.since_version for a, b in schemas):
            return model
        typed = onnx.shape_inference.infer_shapes(model)
        model = onnx.version_converter.convert_version(typed, version)
    except Exception as error:
        text = f"{', '.join(standard)} of opset {own} cannot be written in {version}: {error}"
        raise UnsupportedError(text) from None
    return model


# What an operator's last node is, the others being written already: its name, operands and, where
# there are any, attributes.
Made = tuple[str, Sequence[str]] | tuple[str, Sequence[str], Record]
Writer = Callable[[_Writer, Record, Sequence[str]], Made]
_WRITERS = Handlers()


def _plain(onnx_op: str, **attrs: Attribute) -> Writer:
    return lambda w, r, x: (onnx_op, x, attrs)


for _op, _name in (SAME | {"div": "Div", "gelu": "Gelu", "power": "Pow", "max": "Max",
                           "min": "Min", "matmul": "MatMul"}).items():  # fmt: skip
    _WRITERS[_op] = _plain(_name)
_WRITERS["gelu_tanh"] = _plain("Gelu", approximate="tanh")


def _like(w: _Writer, record: Record, value: ArrayLike) -> str:
    return w.constant(value, w.dtype(record["results"][0]))


def _attribute(w: _Writer, record: Record, key: str) -> Array:
    """A number among the attributes, in the result's type; of whole numbers every digit."""
    value, dtype = number(record["attrs"][key]), w.dtype(record["results"][0])
    return np.asarray(float(value) if is_float(dtype) else int(value)).astype(dtype)


def _reduction(onnx_op: str) -> Writer:
    return lambda w, r, x: (
        onnx_op, [x[0], w.constant(r["attrs"]["axes"])], {"keepdims": int(r["attrs"]["keepdims"])}
    )  # fmt: skip


_WRITERS |= {
    "sqr": lambda w, r, x: ("Mul", [x[0], x[0]]),
    "rsqrt": lambda w, r, x: ("Reciprocal", [w.add("Sqrt", x)]),
    "silu": lambda w, r, x: ("Mul", [x[0], w.add("Sigmoid", x)]),
    "expm1": lambda w, r, x: (  # (exp(x) + 1)·tanh(x/2), in which nothing cancels
        "Mul", [w.add("Add", [w.add("Exp", x), _like(w, r, 1)]),
                w.add("Tanh", [w.add("Mul", [x[0], _like(w, r, 0.5)])])]),
    "ne": lambda w, r, x: ("Not", [w.add("Equal", x)]),
    "pow": lambda w, r, x: ("Pow", [x[0], _like(w, r, _attribute(w, r, "exponent"))]),
    "cast": lambda w, r, x: ("Cast", x, {"to": w.code(w.dtype(r["results"][0]))}),
    "repeat": lambda w, r, x: ("Tile", [x[0], w.constant(r["attrs"]["repeats"])]),
    "concat": lambda w, r, x: ("Concat", x, {"axis": r["attrs"]["axis"]}),
    "cumsum": lambda w, r, x: ("CumSum", [x[0], w.constant(r["attrs"]["axis"])]),
    "transpose": lambda w, r, x: ("Transpose", x, {"perm": r["attrs"]["perm"]}),
    "reshape": lambda w, r, x: ("Reshape", [x[0], _target(w, r)]),
    "unsqueeze": lambda w, r, x: ("Unsqueeze", [x[0], w.constant(r["attrs"]["axes"])]),
    "squeeze": lambda w, r, x: ("Squeeze", [x[0], w.constant(r["attrs"]["axes"])]),
    "triu": lambda w, r, x: ("Trilu", [x[0], w.constant(r["attrs"]["k"])], {"upper": 1}),
    "tril": lambda w, r, x: ("Trilu", [x[0], w.constant(r["attrs"]["k"])], {"upper": 0}),
    "gather": lambda w, r, x: ("Gather", x, {"axis": r["attrs"]["axis"]}),
    "sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "reduce_max": _reduction("ReduceMax"),
    "reduce_min": _reduction("ReduceMin"),
    "stack": lambda w, r, x: (
        "Concat", [w.add("Unsqueeze", [v, w.constant([r["attrs"]["axis"]])]) for v in x], r["attrs"]
    ),
    "concat_matmul": lambda w, r, x: ("Add", [w.add("MatMul", x[i::2]) for i in range(2)]),
}  # fmt: skip


@_WRITERS("log1p")
def _log1p(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    """log(u) of u = 1 + x, and (x − (u − 1))/u for what that sum has rounded away."""
    one = _like(w, r, 1)
    u = w.add("Add", [x[0], one])
    log, held = w.add("Log", [u]), w.add("Sub", [u, one])
    rest = w.add("Div", [w.add("Sub", [x[0], held]), u])
    return "Where", [w.add("Equal", [held, x[0]]), log, w.add("Add", [log, rest])]


@_WRITERS("mod")
def _mod(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    if not is_float(w.dtype(r["inputs"][0])):
        return "Mod", x
    rest = w.add("Mod", x, {"fmod": 1})  # of floats it has the dividend's sign, ours the divisor's
    signs = w.add("Mul", [w.add("Sign", [v]) for v in (rest, x[1])])
    other = w.add("Less", [signs, _like(w, r, 0)])
    return "Where", [other, w.add("Add", [rest, x[1]]), rest]


@_WRITERS("atan2")
def _atan2(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    """The angle of the magnitudes, in the quadrant that the signs say."""
    y, z = (w.add("Abs", [v]) for v in x)
    # 0 of two zeros, 1 of two infinities
    ratio = w.add("Where", [w.add("Equal", [y, z]), w.add("Sign", [y]), w.add("Div", [y, z])])
    angle = w.add("Atan", [ratio])
    signed = [w.add("Add", [v, w.add("Reciprocal", [v])]) for v in x]  # no zero, the sign kept
    below, behind = (w.add("Less", [v, _like(w, r, 0)]) for v in signed)
    angle = w.add("Where", [behind, w.add("Sub", [_like(w, r, np.pi), angle]), angle])
    turn = w.add("Where", [below, _like(w, r, -1), _like(w, r, 1)])
    return "Mul", [turn, angle]  # onnxruntime's Where makes 0 of -0


@_WRITERS("const")
def _const(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    t = r["results"][0]
    dims = w.shape(t)
    scalar = w._tensor("value", _attribute(w, r, "value").reshape([1] if dims else []))
    if dims:
        return "ConstantOfShape", [w.constant(dims)], {"value": scalar}
    return "Constant", [], {"value": scalar}


@_WRITERS("iota")
def _iota(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    t, axis = r["results"][0], r["attrs"]["axis"]
    dims = w.shape(t)
    line = w.add("Range", [w.constant(0), w.constant(dims[axis]), w.constant(1)])
    line = w.add("Reshape", [line, w.constant([-1 if a == axis else 1 for a in range(len(dims))])])
    if w.dtype(t) != np.int64:
        line = w.add("Cast", [line], {"to": w.code(w.dtype(t))})
    return "Expand", [line, w.constant(dims)]


@_WRITERS("conv", "conv_transpose")
def _conv(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    a = r["attrs"]
    attrs = {"strides": a["strides"], "dilations": a["dilations"], "group": a["groups"]}
    low, high = list(a["low"]), list(a["high"])
    if r["op"] == "conv":
        return "Conv", x, {**attrs, "pads": low + high}
    extra = [max(0, -h) for h in high]
    if any(v < 0 for v in low) or any(e >= s for e, s in zip(extra, a["strides"], strict=True)):
        # zeros around, which ONNX's attributes cannot say
        before, behind = [max(0, -v) for v in low], extra
        name = w.add("ConvTranspose", x, {**attrs, "pads": [max(0, v) for v in low + high]})
        return "Pad", [name, w.constant([0, 0, *before, 0, 0, *behind])]
    pads = low + [max(0, h) for h in high]
    return "ConvTranspose", x, {**attrs, "pads": pads, "output_padding": extra}


@_WRITERS("pool_max", "pool_sum")
def _pool(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    a = r["attrs"]
    t = r["inputs"][0]
    dims, n = w.shape(t), len(a["size"])
    lead = dims[: len(dims) - n]
    attrs = {
        "kernel_shape": a["size"], "strides": a["strides"], "dilations": a["dilations"],
        "pads": [*a["low"], *a["high"]],
    }  # fmt: skip
    direct = len(lead) == 2
    source = x[0]
    if not direct:
        flat = [1, product(values_of(lead)), *dims[len(lead) :]]
        source = w.add("Reshape", [source, w.constant(flat)])
    if any(p >= s for p, s in zip([*a["low"], *a["high"]], 2 * a["size"], strict=True)):
        raise UnsupportedError(f"{r['op']}: ONNX has no padding as wide as the window")
    pooled: Made = ("MaxPool", [source], attrs)
    if r["op"] == "pool_sum":
        source = w.add("AveragePool", [source], {**attrs, "count_include_pad": 1})
        pooled = ("Mul", [source, _like(w, r, float(np.prod(a["size"])))])
    if direct:
        return pooled
    return "Reshape", [w.add(*pooled), w.constant(w.shape(r["results"][0]))]


def _target(w: _Writer, r: Record) -> str:
    """A shape as an operand; one extent may be a symbol."""
    dims = r["attrs"]["shape"]
    symbols = [d for d in dims if isinstance(d, str)]
    if len(symbols) > 1:
        raise UnsupportedError(f"{r['op']} to {dims}: ONNX can leave one extent open; bind symbols")
    return w.constant([-1 if isinstance(d, str) else d for d in dims])


@_WRITERS("broadcast")
def _broadcast(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    dims = [1 if isinstance(d, str) else d for d in r["attrs"]["shape"]]
    have = w.shape(r["inputs"][0])
    for d, h in zip(reversed(r["attrs"]["shape"]), reversed(have), strict=False):
        if isinstance(d, str) and h != d:
            raise UnsupportedError(f"broadcast to {d}: ONNX needs the extent; bind symbols")
    return "Expand", [x[0], w.constant(dims)]


@_WRITERS("slice")
def _slice(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    a = r["attrs"]
    dims = w.shape(r["inputs"][0])
    axes = [i for i, d in enumerate(dims) if not isinstance(d, str)]
    starts, stops, steps = ([a[key][i] for i in axes] for key in ("starts", "stops", "steps"))
    return "Slice", [x[0], *(w.constant(c) for c in (starts, stops, axes, steps))]


@_WRITERS("pad")
def _pad(w: _Writer, r: Record, x: Sequence[str]) -> Made:
    pads = w.constant([*r["attrs"]["low"], *r["attrs"]["high"]])
    return "Pad", [x[0], pads, _like(w, r, _attribute(w, r, "value"))]
