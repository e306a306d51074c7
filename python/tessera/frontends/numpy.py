"""The NumPy front end: NumPy's functions applied to Tensors append operators instead of computing.

`__array_ufunc__` and `__array_function__` of Tensor end here; `functions` maps NumPy's names to
tessera.ops. What is not in the tables raises UnsupportedError at the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera import ops
from tessera.graph import Tensor, unsupported
from tessera.ops.operands import lift, operand_dtype

Function = Callable[..., Any]

# --- ufuncs -----------------------------------------------------------------------------------

_SAME_UFUNCS = """
    add subtract multiply divide negative maximum minimum sign sqrt square exp log sin cos tanh
    reciprocal equal not_equal less less_equal greater greater_equal logical_and logical_or
    logical_xor logical_not matmul power erf vecdot log1p expm1 log2 log10 exp2 tan sinh cosh
    arctan arcsin arccos arctan2 hypot logaddexp floor ceil trunc rint remainder floor_divide
"""
UFUNCS: dict[str, Function] = {name: ops.function(name) for name in _SAME_UFUNCS.split()}
UFUNCS |= {
    "absolute": ops.pointwise.abs,
    "fabs": ops.pointwise.abs,
    "float_power": lambda x, y: ops.pointwise.pow(lift_float(x), y),
    "positive": lambda x: x,
    "conjugate": lambda x: x,
    "bitwise_and": ops.pointwise.bitwise("and"),
    "bitwise_or": ops.pointwise.bitwise("or"),
    "bitwise_xor": ops.pointwise.bitwise("xor"),
    "invert": ops.pointwise.bitwise("not"),
    "isnan": lambda x: ops.pointwise.not_equal(x, x),
    "expit": ops.pointwise.sigmoid,  # scipy.special
    "matvec": lambda a, x: ops.shape.squeeze(
        ops.contract.matmul(a, ops.shape.expand_dims(x, -1)), -1
    ),
    "vecmat": lambda x, a: ops.shape.squeeze(
        ops.contract.matmul(ops.shape.expand_dims(x, -2), a), -2
    ),
}
_REDUCE: dict[str, Function] = {
    "add": ops.reduce.sum,
    "maximum": ops.reduce.max,
    "minimum": ops.reduce.min,
    "logical_and": ops.reduce.all,
    "logical_or": ops.reduce.any,
}


def lift_float(x: Tensor) -> Tensor:
    """What np.float_power computes in: f64."""
    return ops.pointwise.astype(x, "f64")


def apply_ufunc(
    ufunc: np.ufunc, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """A ufunc called on Tensors: `np.add(x, y)`, `np.add.reduce(x)` and so on."""
    name = f"np.{ufunc.__name__}"
    options = {k: v for k, v in kwargs.items() if v is not None and v is not np._NoValue}
    if "out" in options:
        unsupported(f"{name} with out= writes in place, which a traced program cannot express")
    dtype = options.pop("dtype", None)
    if options.pop("where", True) is not True:
        unsupported(f"{name} with where= is not supported; use np.where")
    for harmless in ("casting", "order", "subok"):
        options.pop(harmless, None)
    if method == "__call__":
        function = UFUNCS.get(ufunc.__name__)
        if function is None:
            unsupported(f"{name} is not supported")
        if options:
            unsupported(f"{name} with {', '.join(options)} is not supported")
        result = function(*args)
    elif method == "reduce" and ufunc.__name__ in _REDUCE:
        axis = options.pop("axis", 0 if "axis" not in kwargs else None)
        keepdims = options.pop("keepdims", False)
        if dtype is not None and ufunc.__name__ == "add":
            return ops.reduce.sum(args[0], axis=axis, dtype=dtype, keepdims=keepdims)
        if options:
            unsupported(f"{name}.reduce with {', '.join(options)} is not supported")
        reduce = _REDUCE[ufunc.__name__]
        result = reduce(args[0], axis=axis, keepdims=keepdims)
    elif method == "accumulate" and ufunc.__name__ == "add":
        return ops.reduce.cumsum(args[0], axis=options.pop("axis", 0), dtype=dtype)
    elif method == "outer" and ufunc.__name__ in UFUNCS and ufunc.nin == 2:
        a, b = (lift(ops.operands.builder_of(*args), x) for x in args)
        result = UFUNCS[ufunc.__name__](ops.shape.expand_dims(a, range(a.ndim, a.ndim + b.ndim)), b)
    else:
        unsupported(f"{name}.{method} is not supported")
    return result if dtype is None else ops.pointwise.astype(result, dtype)


# --- functions --------------------------------------------------------------------------------

_SAME_NAME = """
    sum mean var std cumsum transpose swapaxes moveaxis reshape ravel expand_dims squeeze
    broadcast_to stack tile repeat split roll pad triu tril diagonal diag trace take where
    dot inner vdot outer tensordot clip all any
"""
FUNCTIONS: dict[Function, Function] = {
    getattr(np, name): ops.function(name) for name in _SAME_NAME.split()
}


def _identity(x: Tensor) -> Tensor:
    return x


def _like(value: float) -> Function:
    def function(x: Tensor, dtype: Any = None, shape: Any = None) -> Tensor:
        dims = x.shape if shape is None else shape
        return x.builder.const(value, dtype or x.dtype, (dims,) if isinstance(dims, int) else dims)

    return function


def _full_like(x: Tensor, fill_value: Any, dtype: Any = None, shape: Any = None) -> Tensor:
    if not ops.operands.is_scalar(fill_value):
        unsupported("np.full_like is supported with a scalar only")
    return _like(fill_value)(x, dtype, shape)  # type: ignore[no-any-return]


def _join(axis: int, lift_to: int) -> Function:
    """np.vstack and relatives: concatenate after adding axes to small operands."""

    def function(tensors: Sequence[Any]) -> Tensor:
        return ops.shape.concatenate([_at_least(lift_to, t) for t in tensors], axis)

    return function


def _hstack(tensors: Sequence[Any]) -> Tensor:
    parts = [_at_least(1, t) for t in tensors]
    return ops.shape.concatenate(parts, 0 if parts[0].ndim == 1 else 1)


def _column_stack(tensors: Sequence[Any]) -> Tensor:
    parts = [ops.shape.expand_dims(t, 1) if np.ndim(t) == 1 else t for t in tensors]
    return ops.shape.concatenate(parts, 1)


def _at_least(ndim: int, x: Any) -> Any:
    missing = ndim - np.ndim(x)
    if missing <= 0:
        return x
    if not isinstance(x, Tensor):
        return np.reshape(x, (1,) * missing + np.shape(x))
    return ops.shape.expand_dims(x, range(missing))


def _at_least_all(ndim: int) -> Function:
    def function(*tensors: Any) -> Any:
        results = [_at_least(ndim, t) for t in tensors]
        return results[0] if len(results) == 1 else tuple(results)

    return function


def _split_along(axis: int) -> Function:
    return lambda x, sections: ops.index.split(x, sections, axis if np.ndim(x) > axis else 0)


def _array_split(x: Tensor, sections: Any, axis: int = 0) -> list[Tensor]:
    if isinstance(sections, (int, np.integer)):
        big, rest = divmod(x.shape[axis], int(sections))
        sizes = [big + 1] * rest + [big] * (int(sections) - rest)
        sections = list(np.cumsum(sizes)[:-1])
    return ops.index.split(x, sections, axis)


def _average(x: Tensor, axis: Any = None, weights: Any = None, keepdims: bool = False) -> Tensor:
    if weights is None:
        return ops.reduce.mean(x, axis, keepdims=keepdims)
    if np.shape(weights) != x.shape:
        unsupported("np.average with weights of another shape is not supported")
    total = ops.reduce.sum(ops.pointwise.multiply(x, weights), axis, keepdims=keepdims)
    return ops.pointwise.divide(
        total, ops.reduce.sum(lift(x.builder, weights), axis, None, keepdims)
    )


def _ptp(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return ops.pointwise.subtract(
        ops.reduce.max(x, axis, keepdims), ops.reduce.min(x, axis, keepdims)
    )


def _permuted(x: Tensor, axes: Any = None) -> Tensor:
    return ops.shape.transpose(x, axes)


def _einsum(subscripts: str, *operands: Any, optimize: object = False) -> Tensor:
    return ops.contract.einsum(subscripts, *operands)


def _linalg_matmul(x: Any, y: Any) -> Tensor:
    return ops.contract.matmul(x, y)


def _last_axes(function: Function) -> Function:
    return lambda x, offset=0: function(x, offset, -2, -1)


def _variance(function: Function) -> Function:
    def variance(
        x: Any,
        axis: Any = None,
        dtype: Any = None,
        ddof: float = 0,
        keepdims: bool = False,
        correction: float | None = None,
    ) -> Any:
        return function(x, axis, dtype, ddof if correction is None else correction, keepdims)

    return variance


FUNCTIONS |= {
    np.max: ops.reduce.max,
    np.min: ops.reduce.min,
    np.amax: ops.reduce.max,
    np.amin: ops.reduce.min,
    np.var: _variance(ops.reduce.var),
    np.std: _variance(ops.reduce.std),
    np.concatenate: ops.shape.concatenate,
    np.vstack: _join(0, 2),
    np.hstack: _hstack,
    np.column_stack: _column_stack,
    np.atleast_1d: _at_least_all(1),
    np.atleast_2d: _at_least_all(2),
    np.hsplit: _split_along(1),
    np.vsplit: _split_along(0),
    np.array_split: _array_split,
    np.average: _average,
    np.ptp: _ptp,
    np.einsum: _einsum,
    np.linalg.norm: ops.reduce.norm,
    np.linalg.matmul: _linalg_matmul,
    np.linalg.outer: ops.contract.outer,
    np.linalg.trace: _last_axes(ops.index.trace),
    np.linalg.diagonal: _last_axes(ops.index.diagonal),
    np.linalg.matrix_transpose: ops.contract.matrix_transpose,
    np.matrix_transpose: ops.contract.matrix_transpose,
    np.permute_dims: _permuted,
    np.zeros_like: _like(0),
    np.ones_like: _like(1),
    np.empty_like: _like(0),
    np.full_like: _full_like,
    np.copy: _identity,
    np.real: _identity,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x, axis=None: x.size if axis is None else x.shape[axis],
    np.result_type: lambda *xs: np.result_type(
        *[d(0) if isinstance(d, type) else d for d in map(operand_dtype, xs)]
    ),
    np.can_cast: lambda x, to, casting="safe": np.can_cast(x.dtype, to, casting),
    np.iscomplexobj: lambda x: False,
}
# Arguments that change nothing for us, or only by values other than these.
_HARMLESS = {"order", "subok", "device", "copy", "casting"}


def _options(name: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments that matter, with those refused that write in place or change meaning."""
    if kwargs.get("out") is not None:
        unsupported(f"{name} with out= writes in place, which a traced program cannot express")
    if kwargs.get("where", True) not in (True, np._NoValue):
        unsupported(f"{name} with where= is not supported; use np.where")
    order = kwargs.get("order")
    if order == "F" and name.endswith(("reshape", "ravel", "flatten")):
        unsupported(f"{name} with order='F' is not supported")
    skipped = _HARMLESS | {"out", "where"}
    return {k: v for k, v in kwargs.items() if k not in skipped and v is not np._NoValue}


def apply_function(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A NumPy function called on Tensors."""
    name = f"{function.__module__.replace('numpy', 'np', 1)}.{function.__name__}"
    ours = FUNCTIONS.get(function)
    if ours is None:
        unsupported(f"{name} is not supported")
    return _checked(name, ours, args, _options(name, kwargs))


def _checked(name: str, function: Function, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Calls one of our functions; a parameter that it lacks is unsupported, not a bug."""
    import inspect

    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError as error:
        unsupported(f"{name}: {error}; this parameter is not supported")
    return function(*args, **options)


# --- attributes and methods of ndarray ----------------------------------------------------------


def _reshape_method(x: Tensor, *shape: Any) -> Tensor:
    return ops.shape.reshape(x, shape[0] if len(shape) == 1 else shape)


def _transpose_method(x: Tensor, *axes: Any) -> Tensor:
    flat = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return ops.shape.transpose(x, flat or None)


def _clip_method(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return ops.pointwise.clip(x, min, max)


_SAME_METHODS = """
    sum mean max min all any cumsum ravel squeeze swapaxes take repeat diagonal trace astype
    dot
"""
_METHODS: dict[str, Function] = {name: ops.function(name) for name in _SAME_METHODS.split()} | {
    "var": FUNCTIONS[np.var],
    "std": FUNCTIONS[np.std],
    "ptp": _ptp,
    "clip": _clip_method,
    "reshape": _reshape_method,
    "transpose": _transpose_method,
    "flatten": ops.shape.ravel,
    "copy": _identity,
    "conj": _identity,
    "conjugate": _identity,
    "view": lambda x, *args: unsupported("view() reinterprets memory, which a program cannot"),
}
_ATTRIBUTES: dict[str, Function] = {
    "T": lambda x: ops.shape.transpose(x),
    "mT": ops.contract.matrix_transpose,
    "real": lambda x: x,
}


def array_attribute(x: Tensor, name: str) -> Any:
    """An attribute or method that ndarray has, for a Tensor."""
    if name in _ATTRIBUTES:
        return _ATTRIBUTES[name](x)
    if name in _METHODS:

        def method(*args: Any, **kwargs: Any) -> Any:
            options = _options(f"ndarray.{name}", kwargs)
            return _checked(f"ndarray.{name}", _METHODS[name], (x, *args), options)

        return method
    if not name.startswith("_") and hasattr(np.ndarray, name):
        unsupported(f"ndarray.{name} is not supported")
    raise AttributeError(f"'Tensor' object has no attribute {name!r}")
