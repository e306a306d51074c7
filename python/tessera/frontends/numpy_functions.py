"""NumPy's functions by what they mean on Tensors: most are tessera.ops' of the same names."""

from __future__ import annotations

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from tessera import ops
from tessera.ops.operands import Operand, lift, tensors
from tessera.tensor import Tensor, unsupported
from tessera.types import Axes, DTypeGiven, Function, Object, Sides, Value, Values, is_float

_SAME_NAME = """
    sum mean var std max min cumsum transpose swapaxes moveaxis reshape ravel expand_dims squeeze
    broadcast_to stack tile repeat split roll pad triu tril diagonal diag trace take where
    dot inner vdot outer tensordot all any prod diff gradient trapezoid cross kron convolve
    correlate polyval argmax argmin count_nonzero isclose allclose select nan_to_num nansum nanmean
    cov corrcoef flip rot90 round fix concatenate matrix_transpose
"""
_SAME_IN_LINALG = """
    multi_dot matrix_power cross tensordot vecdot norm matmul outer matrix_transpose
"""
FUNCTIONS: dict[Function, Function] = {
    getattr(module, name): ops.function(name)
    for module, names in ((np, _SAME_NAME), (np.linalg, _SAME_IN_LINALG))
    for name in names.split()
}


def identity(x: Tensor) -> Tensor:
    return x


def type_of(x: Object) -> Value:
    """What stands for a tensor where only types matter."""
    return (0.0 if x.weak else x.dtype) if isinstance(x, Tensor) else x


def _like(value: float) -> Function:
    def function(x: Tensor, dtype: DTypeGiven = None, shape: Sides | None = None) -> Tensor:
        dims = x.shape if shape is None else shape
        return x.builder.const(value, dtype or x.dtype, (dims,) if isinstance(dims, int) else dims)

    return function


def _full_like(
    x: Tensor, fill_value: Value, dtype: DTypeGiven = None, shape: Sides | None = None
) -> Tensor:
    if not ops.operands.is_scalar(fill_value):
        unsupported("np.full_like is supported with a scalar only")
    return _like(fill_value)(x, dtype, shape)  # type: ignore[no-any-return]


def _join(axis: int, lift_to: int) -> Function:
    """np.vstack and relatives: concatenate after adding axes to small operands."""

    def function(tensors: Values) -> Tensor:
        return ops.shape.concatenate([_at_least(lift_to, t) for t in tensors], axis)

    return function


def _beside(ndim: int) -> Function:
    """np.column_stack and np.dstack: what lacks the last of so many axes gets it."""

    def function(tensors: Values) -> Tensor:
        parts = [_at_least(ndim - 1, t) for t in tensors]
        parts = [ops.shape.expand_dims(t, ndim - 1) if np.ndim(t) < ndim else t for t in parts]
        return ops.shape.concatenate(parts, ndim - 1)

    return function


def _at_least(ndim: int, x: Value) -> Value:
    missing = ndim - np.ndim(x)
    if missing <= 0:
        return x
    if not isinstance(x, Tensor):
        return np.reshape(x, (1,) * missing + np.shape(x))
    return ops.shape.expand_dims(x, range(missing))


def _at_least_all(ndim: int) -> Function:
    def function(*tensors: Object) -> Value:
        results = [_at_least(ndim, t) for t in tensors]
        return results[0] if len(results) == 1 else tuple(results)

    return function


def _append(x: Operand, values: Operand, axis: int | None = None) -> Tensor:
    if axis is not None:
        return ops.shape.concatenate([x, values], axis)
    return ops.shape.concatenate([ops.shape.ravel(t) for t in tensors(x, values)])


def _broadcast_arrays(*tensors: Value) -> tuple[Tensor, ...]:
    builder = ops.operands.builder_of(*tensors)
    shape = np.broadcast_shapes(*[np.shape(t) for t in tensors])
    return tuple(ops.shape.broadcast_to(lift(builder, t), shape) for t in tensors)


def _meshgrid(*vectors: Object, indexing: str = "xy", sparse: bool = False) -> tuple[Tensor, ...]:
    builder = ops.operands.builder_of(*vectors)
    count = len(vectors)
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    shaped = []
    for vector, axis in zip(vectors, order, strict=True):
        dims = [1] * count
        dims[axis] = -1
        shaped.append(ops.shape.reshape(lift(builder, vector), dims))
    return tuple(shaped) if sparse else _broadcast_arrays(*shaped)


def _apply_along_axis(function: Function, axis: int, arr: Tensor) -> Tensor:
    moved = ops.shape.moveaxis(arr, axis, -1)
    lead = moved.shape[:-1]
    rows = ops.shape.reshape(moved, [-1, moved.shape[-1]])
    results = [function(row) for row in rows]
    if not all(isinstance(r, Tensor) for r in results):
        unsupported("np.apply_along_axis of a function that does not return an array")
    stacked = ops.shape.stack(results, 0)
    stacked = ops.shape.reshape(stacked, [*lead, *stacked.shape[1:]])
    return stacked if results[0].ndim == 0 else ops.shape.moveaxis(stacked, -1, axis)


def _split_along(axis: int) -> Function:
    return lambda x, sections: ops.index.split(x, sections, axis if np.ndim(x) > axis else 0)


def _array_split(x: Tensor, sections: Value, axis: int = 0) -> list[Tensor]:
    if isinstance(sections, (int, np.integer)):
        big, rest = divmod(x.shape[axis], int(sections))
        sizes = [big + 1] * rest + [big] * (int(sections) - rest)
        sections = list(np.cumsum(sizes)[:-1])
    return ops.index.split(x, sections, axis)


def _average(x: Tensor, axis: Axes = None, weights: Value = None, keepdims: bool = False) -> Tensor:
    if weights is None:
        return ops.reduce.mean(x, axis, keepdims=keepdims)
    weights = lift(x.builder, weights)
    least = [] if is_float(x.dtype) else [np.float64]
    dtype = np.result_type(x.dtype, weights.dtype, *least)
    x, weights = (ops.pointwise.astype(a, dtype) for a in (x, weights))
    if weights.shape != x.shape:
        axes = list(range(x.ndim)) if axis is None else list(normalize_axis_tuple(axis, x.ndim))
        if weights.shape != tuple(x.shape[a] for a in axes):
            unsupported("np.average wants weights of the array's shape, or of that of its axes")
        weights = ops.shape.transpose(weights, np.argsort(axes).tolist())
        weights = ops.shape.reshape(weights, [n if a in axes else 1 for a, n in enumerate(x.shape)])
    total = ops.reduce.sum(ops.pointwise.multiply(x, weights), axis, keepdims=keepdims)
    scale = ops.reduce.sum(weights, axis, None, keepdims)
    # Where NumPy raises an error, the original does: calls check that these are 0.
    zeros = ops.pointwise.astype(ops.pointwise.equal(scale, 0), "i64")
    x.builder.indices.append((zeros.id, 1))
    return ops.pointwise.divide(total, scale)


def _nan_to_num(
    x: Operand, copy: bool = True, nan: float = 0.0, posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:  # fmt: skip
    if copy is not True:
        unsupported("np.nan_to_num with copy=False writes to its argument")
    return ops.derived.nan_to_num(x, nan, posinf, neginf)


def _cross(
    x: Operand, y: Operand, axisa: int = -1, axisb: int = -1, axisc: int = -1,
    axis: int | None = None,
) -> Tensor:  # fmt: skip
    if not axisa == axisb == axisc:
        unsupported("np.cross is supported with axis= only")
    return ops.derived.cross(x, y, axisa if axis is None else axis)


def ptp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    highest, lowest = ops.reduce.max(x, axis, keepdims), ops.reduce.min(x, axis, keepdims)
    return ops.pointwise.subtract(highest, lowest)


def clip(
    x: Operand, a_min: Operand = None, a_max: Operand = None, *, min: Operand = None,
    max: Operand = None,
) -> Tensor:  # fmt: skip
    return ops.pointwise.clip(x, a_min if min is None else min, a_max if max is None else max)


def _last_axes(function: Function) -> Function:
    return lambda x, offset=0: function(x, offset, -2, -1)


FUNCTIONS |= {
    np.amax: ops.reduce.max,
    np.amin: ops.reduce.min,
    np.vstack: _join(0, 2),
    np.hstack: lambda tensors: _join(0 if np.ndim(tensors[0]) < 2 else 1, 1)(tensors),
    np.column_stack: _beside(2),
    np.atleast_1d: _at_least_all(1),
    np.atleast_2d: _at_least_all(2),
    np.dstack: _beside(3),
    np.append: _append,
    np.broadcast_arrays: _broadcast_arrays,
    np.meshgrid: _meshgrid,
    np.apply_along_axis: _apply_along_axis,
    np.fliplr: lambda x: ops.index.flip(x, 1),
    np.flipud: lambda x: ops.index.flip(x, 0),
    np.around: ops.pointwise.round,
    np.array_equal: lambda x, y: (
        np.shape(x) == np.shape(y) and ops.reduce.all(ops.pointwise.equal(x, y))
    ),
    np.nan_to_num: _nan_to_num,
    np.cross: _cross,
    np.linalg.vector_norm: lambda x, axis=None, keepdims=False, ord=2: ops.reduce.norm(
        ops.shape.ravel(x) if axis is None else x, ord, 0 if axis is None else axis, keepdims
    ),
    np.hsplit: _split_along(1),
    np.vsplit: _split_along(0),
    np.array_split: _array_split,
    np.average: _average,
    np.clip: clip,
    np.ptp: ptp,
    np.einsum: lambda subscripts, *operands, optimize=False: ops.contract.einsum(
        subscripts, *operands
    ),
    np.linalg.trace: _last_axes(ops.index.trace),
    np.linalg.diagonal: _last_axes(ops.index.diagonal),
    np.permute_dims: ops.shape.transpose,
    np.zeros_like: _like(0),
    np.ones_like: _like(1),
    np.empty_like: _like(0),
    np.full_like: _full_like,
    np.copy: identity,
    np.real: identity,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x, axis=None: x.size if axis is None else x.shape[axis],
    np.result_type: lambda *xs: np.result_type(*(type_of(x) for x in xs)),
    np.can_cast: lambda x, to, casting="safe": np.can_cast(x.dtype, to, casting),
    np.iscomplexobj: lambda x: False,
}
