"""Nodes whose operands are all known, computed while importing: the arithmetic of shapes.

Only what models use to compute shapes and indices is here; anything else stays in the program,
where what depends on weights alone is computed once per set of weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tessera.errors import BadInputError
from tessera.extents import Extent, NeedsExtentError, Number, settled, symbols_of
from tessera.frontends.onnx.node import Node
from tessera.frontends.onnx.reader import array_of, dense_of, dtype_of, onnx_package
from tessera.types import Array, Function, Values

_LARGEST = 1 << 16  # elements: more is data, not a shape
_MOST_FLOATS = 16  # floats are data: only single numbers are computed while importing
# Of these, operands from this one on are numbers, not what follows from open extents.
_STATIC = {
    "ConstantOfShape": 0, "CumSum": 0, "NonZero": 0, "Sqrt": 0, "Floor": 0, "Ceil": 0,
    "Pow": 0, "And": 0, "Or": 0, "Not": 0, "Gather": 1, "Reshape": 1, "Expand": 1, "Tile": 1,
    "Slice": 1, "Split": 1, "Scatter": 1, "ScatterElements": 1, "ScatterND": 1, "Flatten": 1,
}  # fmt: skip
_FREE = {"Constant", "ConstantOfShape", "Cast"}


def fold(node: Node) -> list[Array] | None:
    """The results of a node as arrays, or None where it is to be part of the program."""
    operands = [o for o in node.operands if o is not None]
    kind = node.proto.op_type
    known = [o for o in operands if isinstance(o, np.ndarray)]
    function = _FOLDS.get(kind) if len(known) == len(operands) else None
    if function is None or any(o.dtype.kind == "V" for o in known):
        return None
    if kind in _STATIC and any(o.dtype == object for o in known[_STATIC[kind] :]):
        return None
    if kind not in _FREE and any(
        o.size > (_MOST_FLOATS if o.dtype.kind == "f" else _LARGEST) for o in known
    ):
        return None
    with np.errstate(all="ignore"):
        result = function(node, *operands)
    if result is None:
        return None
    results = result if isinstance(result, list) else [result]
    return [settled(np.asarray(r)) for r in results]


def constant(node: Node) -> Array:
    """The value of a Constant node in any of its spellings."""
    if node.has_attr("value"):
        tensor = node.require_attr("value", onnx_package().TensorProto)
        return array_of(tensor, node.importer.folder, node.importer.where)
    if node.has_attr("sparse_value"):
        sparse = node.require_attr("sparse_value", onnx_package().SparseTensorProto)
        return dense_of(sparse, node.importer.folder, node.importer.where)
    for kind, dtype in (("float", np.float32), ("int", np.int64)):
        for name in (f"value_{kind}", f"value_{kind}s"):
            if node.has_attr(name):
                return np.asarray(node.attr(name), dtype)
    raise BadInputError("a constant without a value that is supported")


def constant_of_shape(node: Node, shape: Sequence[int]) -> Array:
    value = constant(node) if node.has_attr("value") else np.float32(0)
    count = math.prod(shape)
    if count < 0 or count > 1 << 24:
        raise BadInputError(f"a constant of shape {list(shape)} is too large")
    return np.full(shape, np.asarray(value).reshape(-1)[0])


def _reshape(node: Node, x: Array, shape: Array) -> Array:
    target = [int(d) for d in shape]
    if not node.attr("allowzero", 0):
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    return x.reshape(target)


def axes_operand(node: Node) -> list[int] | None:
    """Axes given as an attribute (before opset 13) or as the second operand."""
    if node.has_attr("axes"):
        return [int(a) for a in node.attr("axes")]
    return node.ints(1, "the list of axes") if node.has(1) else None


def _squeeze(node: Node, x: Array, *rest: Array) -> Array:
    axes = axes_operand(node)
    return np.squeeze(x, None if axes is None else tuple(axes))


def slice_parameters(node: Node, dims: Values) -> list[tuple[int, Number, Number, int]]:
    """(axis, start, stop, step) of a Slice, clamped; with a negative step, stop may be -1.

    A stop that is an Extent is taken to be inside of an axis: beyond it a program asks for elements
    that are not there.
    """
    rank = len(dims)
    if node.has_attr("starts"):
        starts, stops = list(node.attr("starts")), list(node.require_attr("ends", list))
        axes = list(node.attr("axes", list(range(len(starts)))))
        steps = [1] * len(starts)
    else:
        starts, stops = node.numbers(1, "the starts"), node.numbers(2, "the ends")
        axes = node.ints(3, "the axes") if node.has(3) else list(range(len(starts)))
        steps = node.ints(4, "the steps") if node.has(4) else [1] * len(starts)
    if not len(starts) == len(stops) == len(axes) == len(steps):
        raise node.bad("starts, ends, axes and steps differ in length")
    result = []
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        if not -rank <= axis < rank or step == 0:
            raise node.bad(f"axis {axis} with step {step} of {rank} axes")
        axis %= rank
        n = Extent.of(dims[axis])
        if not any(isinstance(v, Extent) for v in (n, start, stop)):
            result.append((axis, *slice(start, stop, step).indices(n)))
            continue
        if step < 0:
            raise NeedsExtentError("it walks backwards", symbols_of([n, start, stop]))
        start, stop = (n + v if v < 0 else v for v in (start, stop))
        clamps = not isinstance(stop, Extent) or isinstance(n, Extent)
        stop = n if isinstance(stop, int) and stop >= 1 << 31 else min(stop, n) if clamps else stop
        if start < 0 or stop <= start:
            raise node.bad("it takes no elements")
        if str((start, stop, step)) != str((0, n, 1)):
            result.append((axis, start, stop, step))
    return result


def _slice(node: Node, x: Array, *rest: Array) -> Array:
    key = [slice(None)] * x.ndim
    for axis, start, stop, step in slice_parameters(node, x.shape):
        key[axis] = slice(start, stop if stop >= 0 else None, step)
    return x[tuple(key)]


def _div(node: Node, x: Array, y: Array) -> Array:
    if object in (x.dtype, y.dtype):
        return np.asarray(np.floor_divide(x, y))
    if x.dtype.kind not in "iu":
        return x / y
    if (y == 0).any():
        raise BadInputError("an integer is divided by zero")
    whole = np.abs(x) // np.abs(y)
    return np.asarray(whole * np.sign(x) * np.sign(y), x.dtype)


def _power(node: Node, x: Array, y: Array) -> Array | None:
    if x.dtype.kind != "f" and (y.dtype.kind == "f" or (y < 0).any()):
        return None
    return np.asarray(np.power(x, y), x.dtype)


def _reduce(function: Function) -> Callable[..., Array]:
    def run(node: Node, x: Array, *rest: Array) -> Array:
        axes = axes_operand(node)
        if not axes:
            if axes is not None and node.attr("noop_with_empty_axes", 0):
                return x
            axes = list(range(x.ndim))
        result = function(x, axis=tuple(axes), keepdims=bool(node.attr("keepdims", 1)))
        return np.asarray(result, x.dtype)

    return run


def _cast(node: Node, x: Array) -> Array | None:
    to = dtype_of(node.require_attr("to"), "the result of a Cast", node.importer.where)
    if x.dtype == object:
        return x if to == np.int64 else None
    return None if x.dtype.kind == "f" and to.kind in "iu" and x.size > _LARGEST else x.astype(to)


def _tile(node: Node, x: Array, repeats: Array) -> Array | None:
    return np.tile(x, repeats) if np.prod(repeats, dtype=float) * x.size <= _LARGEST else None


def _expand(node: Node, x: Array, shape: Array) -> Array | None:
    target = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
    return np.broadcast_to(x, target) if np.prod(target, dtype=np.float64) <= 1 << 20 else None


def _cumsum(node: Node, x: Array, axis: Array) -> Array:
    along = int(axis.reshape(-1)[0])
    backwards = bool(node.attr("reverse", 0))
    y = np.flip(x, along) if backwards else x
    total = np.cumsum(y, axis=along, dtype=x.dtype)
    total = total - y if node.attr("exclusive", 0) else total
    return np.flip(total, along) if backwards else total


def _places(index: Array, extent: int) -> Array:
    if index.size and not -extent <= index.min() <= index.max() < extent:
        raise BadInputError(f"an index is out of range for an extent of {extent}")
    return index


def scatter_elements(dims: Sequence[int], index: Array, axis: int) -> Array:
    """Where each element of ScatterElements' result comes from: from the data or, counted after
    them, from the updates."""
    source = np.arange(int(np.prod(dims))).reshape(dims)
    at: list[Array] = list(np.indices(index.shape, sparse=True))
    at[axis] = _places(index, dims[axis])
    source[tuple(at)] = source.size + np.arange(index.size).reshape(index.shape)
    return source


def scatter_nd(dims: Sequence[int], index: Array) -> Array:
    """The same of ScatterND's result."""
    source = np.arange(int(np.prod(dims))).reshape(dims)
    depth = index.shape[-1]
    at = tuple(_places(index[..., k], dims[k]) for k in range(depth))
    shape = [*index.shape[:-1], *dims[depth:]]
    source[at] = source.size + np.arange(int(np.prod(shape))).reshape(shape)
    return source


def _scatter(node: Node, x: Array, index: Array, updates: Array) -> Array | None:
    if node.attr("reduction", "none") != "none":
        return None
    if node.proto.op_type == "ScatterND":
        source = scatter_nd(x.shape, index)
    else:
        source = scatter_elements(x.shape, index, int(node.attr("axis", 0)))
    return np.concatenate([x.reshape(-1), updates.reshape(-1)])[source]


def _plain(function: Function) -> Callable[..., Array]:
    return lambda node, *operands: function(*operands)


def split_sizes(node: Node, n: int) -> list[int]:
    """The lengths of a Split's results along its axis of extent `n`."""
    if node.has_attr("split"):
        sizes = [int(s) for s in node.attr("split")]
    elif node.has(1):
        sizes = node.ints(1, "the sizes")
    else:
        count = int(node.attr("num_outputs", node.num_outputs))
        each = -(-n // count)
        sizes = [max(0, min(each, n - i * each)) for i in range(count)]
    if sum(sizes) != n or any(s < 0 for s in sizes):
        raise node.bad(f"sizes {sizes} do not add up to an axis of {n}")
    return sizes


def _split(node: Node, x: Array, *rest: Array) -> list[Array]:
    axis = node.attr("axis", 0)
    return np.split(x, np.cumsum(split_sizes(node, x.shape[axis]))[:-1], axis)


# Operators that are functions of NumPy.
_NUMPYS: dict[str, Function] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.absolute,
    "Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt, "Equal": np.equal, "Less": np.less,
    "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not, "Where": np.where,
}  # fmt: skip
_FOLDS: dict[str, Function] = {
    "Constant": constant,
    "ConstantOfShape": lambda node, shape: constant_of_shape(node, [int(d) for d in shape]),
    "Cast": _cast,
    "Reshape": _reshape,
    "Unsqueeze": lambda node, x, *_: np.expand_dims(x, tuple(axes_operand(node) or ())),
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Gather": lambda node, x, i: np.take(x, i, axis=node.attr("axis", 0)),
    "Concat": lambda node, *xs: np.concatenate(xs, axis=node.require_attr("axis")),
    "Split": _split,
    "CumSum": _cumsum,
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scatter),
    "Transpose": lambda node, x: np.transpose(x, node.attr("perm")),
    "Expand": _expand,
    "Tile": _tile,
    "Div": _div,
    "Pow": _power,
    "Min": lambda node, *xs: np.minimum.reduce(np.broadcast_arrays(*xs)),
    "Max": lambda node, *xs: np.maximum.reduce(np.broadcast_arrays(*xs)),
    "Mod": lambda node, x, y: (np.fmod if node.attr("fmod", 0) else np.mod)(x, y),
    **{name: _plain(function) for name, function in _NUMPYS.items()},
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "NonZero": _plain(lambda x: np.array(np.nonzero(x), np.int64)),
    "Flatten": lambda node, x: x.reshape(
        int(np.prod(x.shape[: node.attr("axis", 1)], dtype=np.int64)), -1
    ),
}
