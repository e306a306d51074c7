"""Nodes made of nodes: branches, loops, a model's own functions, and bodies that ONNX gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tessera import ops
from tessera.errors import BadInputError, Error, UnsupportedError
from tessera.extents import NeedsExtentError, Number
from tessera.frontends.onnx.node import Made, Node, Value
from tessera.frontends.onnx.opaque import Outside
from tessera.frontends.onnx.reader import describe, onnx_package
from tessera.tensor import Tensor
from tessera.types import Fields, Record, is_float

if TYPE_CHECKING:
    import onnx
    from onnx.defs import OpSchema

_MOST_STEPS = 1024  # of a loop, which is unrolled
_MOST_NESTING = 16  # function bodies and branches inside each other
_MOST_NODES = 1 << 17  # of all bodies, as often as they are written out


def branch(node: Node, scope: dict[str, Made]) -> Sequence[Made]:
    """The branch that a known condition says; of one that is computed both, and a choice."""
    graph = onnx_package().GraphProto
    branches = [node.require_attr(f"{name}_branch", graph) for name in ("else", "then")]
    condition = node.value(0)
    if isinstance(condition, Tensor) and condition.id not in node.importer.splats:
        first = len(node.graph.ops)
        try:
            made = [[node.importer.tensor(v) for v in _graph(node, b, scope) if v is not None]
                    for b in branches]  # fmt: skip
        except NeedsExtentError:
            raise
        except Error:
            made = [[], [node.x()]]
        same = [[(t.dtype, t.shape) for t in results] for results in made]
        if same[0] == same[1] and not any(_may_fail(node, r) for r in node.graph.ops[first:]):
            where, given = ops.function("where"), ops.function("reshape")(condition, [])
            return [where(given, a, b) for b, a in zip(*made, strict=True)]
        if node.importer.whole:
            return node.importer.opaque(node, scope)
    known = node.known(0, "the condition").reshape(-1)
    return _graph(node, branches[bool(known[0])], scope)


def _may_fail(node: Node, record: Record) -> bool:
    """Whether an index may be in range, or a divisor not 0, in its own branch only."""
    if record["op"] not in ("mod", "div"):
        return bool(record["op"] == "gather")
    x, by = (Tensor(node.graph, t) for t in record["inputs"])
    known = node.importer.splats.get(by.id)
    return not is_float(x.dtype) and (known is None or not known.all())


def scan(node: Node, scope: dict[str, Made]) -> Sequence[Made]:
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
    _require_steps(node, steps)
    rows: list[Sequence[Made]] = []
    for step in range(steps):
        parts = [ops.index.picked(x, axis, steps - 1 - step if backwards else step)
                 for x, axis, backwards in zip(scanned, axes, back, strict=True)]  # fmt: skip
        results = _graph(node, body, scope, [*state, *parts])
        rows.append(results[len(state) :])
        state = list(results[: len(state)])
    return [*state, *_stacked(node, rows, out_axes, out_back)]


def loop(node: Node, scope: dict[str, Made]) -> Sequence[Made]:
    """A Loop step by step, where it is known while importing when it ends."""
    body = node.require_attr("body", onnx_package().GraphProto)
    state = list(node.operands[2:])
    outputs = len(body.output) - 1 - len(state)
    if outputs < 0 or len(body.input) != 2 + len(state):
        raise node.bad("its body does not fit its operands")
    steps = int(node.known(0, "the number of steps").reshape(-1)[0]) if node.has(0) else None
    going = bool(node.known(1, "the condition").reshape(-1)[0]) if node.has(1) else True
    rows: list[Sequence[Made]] = []
    while going and (steps is None or len(rows) < steps):
        _require_steps(node, len(rows))
        given = [np.asarray(len(rows), np.int64), np.asarray(True), *state]
        results = _graph(node, body, scope, given)
        condition = _present(node, results[0])
        if not isinstance(condition, np.ndarray):
            if (known := node.importer.splats.get(node.importer.tensor(condition).id)) is None:
                return node.importer.opaque(node, scope)  # it ends when what it computes says so
            condition = known
        going = bool(condition.reshape(-1)[0])
        rows.append(results[1 + len(state) :])
        state = list(results[1 : 1 + len(state)])
    if not rows and outputs:
        return node.importer.opaque(node, scope)
    return [*state, *_stacked(node, rows, [0] * outputs, [0] * outputs)]


def _require_steps(node: Node, steps: Number) -> None:
    if not isinstance(steps, int) or steps > _MOST_STEPS:
        raise UnsupportedError(
            f"{describe(node.proto)} takes {steps} steps; up to {_MOST_STEPS}, known in "
            "advance, are supported",
            node.importer.where,
        )


def _present(node: Node, value: Made) -> Value | Outside:
    if value is None:
        raise node.bad("its body does not make all its results")
    return value


def _stacked(
    node: Node, rows: list[Sequence[Made]], axes: Sequence[int], back: Sequence[int]
) -> list[Value]:
    """The results of all steps, side by side; the last step's first where they go `back`."""
    results: list[Value] = []
    for parts, axis, backwards in zip(zip(*rows, strict=True), axes, back, strict=True):
        tensors = [node.importer.tensor(_present(node, p)) for p in parts]
        results.append(ops.shape.stack(tensors[::-1] if backwards else tensors, axis))
    return results


def call(node: Node, function: onnx.FunctionProto) -> Sequence[Made]:
    """A model's own function, or the body that ONNX itself gives for an operator."""
    values: dict[str, Made] = dict.fromkeys(function.input)
    values.update(zip(function.input, node.operands, strict=False))
    opsets = [o.version for o in function.opset_import if o.domain in ("", "ai.onnx")]
    outer, outer_origins = node.importer.opset, node.importer.origins
    node.importer.opset = int(opsets[0]) if opsets else outer
    named = zip(function.input, node.proto.input, strict=False)
    node.importer.origins = {ours: outer_origins.get(theirs, frozenset()) for ours, theirs in named}
    attributes = _defaults(node)
    attributes.update({a.name: a for a in function.attribute_proto})
    attributes.update({a.name: a for a in node.proto.attribute})
    body = [_with_attributes(n, attributes) for n in function.node]
    for inner in body:  # an operand that the call leaves out is one that they lack
        inner.input[:] = ["" if values.get(i, i) is None else i for i in inner.input]
    try:
        return _inside(node, body, [], function.output, values)
    finally:
        node.importer.opset, node.importer.origins = outer, outer_origins


def schema_of(node: Node) -> OpSchema | None:
    """What ONNX says of an operator; None of one that it does not know."""
    try:
        return onnx_package().defs.get_schema(
            node.proto.op_type, node.importer.opset, node.proto.domain
        )
    except Exception:
        return None


def _defaults(node: Node) -> Record:
    """Attributes that ONNX gives an operator where its node does not."""
    schema = schema_of(node)
    attributes = schema.attributes.items() if schema is not None else ()
    defaults = {n: a.default_value for n, a in attributes}
    return {n: v for n, v in defaults.items() if v.type}


def _graph(
    node: Node, graph: onnx.GraphProto, scope: dict[str, Made], given: Sequence[Made] = ()
) -> Sequence[Made]:
    """What a subgraph makes of the values given for its inputs, beside those of a scope."""
    values = scope | dict(zip((v.name for v in graph.input), given, strict=False))
    return _inside(node, graph.node, graph.initializer, graph.output, values)


def _inside(
    node: Node,
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    values: dict[str, Made],
) -> Sequence[Made]:
    outer = node.importer.used
    node.importer.expanded += len(nodes)
    if node.importer.depth >= _MOST_NESTING or node.importer.expanded > _MOST_NODES:
        text = f"functions and branches are nested too deeply, or make over {_MOST_NODES} nodes"
        raise BadInputError(text, node.importer.where)
    node.importer.depth += 1
    try:
        for tensor in initializers:
            values[tensor.name] = node.importer.initial(tensor)
        names = [o if isinstance(o, str) else o.name for o in outputs]
        node.importer.nodes(nodes, values, set(names))
        return [values.get(name) for name in names]
    finally:
        node.importer.depth -= 1
        node.importer.used = outer


def schema_function(node: Node) -> onnx.FunctionProto | None:
    """The body that ONNX gives for an operator that has no handler here."""
    onnx = onnx_package()
    proto = node.proto
    schema = schema_of(node)
    if schema is None:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    types = []
    for operand in node.operands:
        kind = onnx.TypeProto()
        if isinstance(operand, (Tensor, np.ndarray)):
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


def _with_attributes(node: onnx.NodeProto, attributes: Fields) -> onnx.NodeProto:
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


# By operator; they are given the values that are known where the node stands, too.
NESTED: dict[str, Callable[[Node, dict[str, Made]], Sequence[Made]]] = {
    "If": branch, "Scan": scan, "Loop": loop,
}  # fmt: skip
