"""The NumPy front end: NumPy's functions applied to Tensors append operators instead of computing.

`__array_ufunc__` and `__array_function__` of Tensor end here; numpy_functions.py maps names to
tessera.ops. What is not in the tables raises UnsupportedError at the user's line.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable

import numpy as np

from tessera import ops
from tessera.errors import UnsupportedError
from tessera.frontends.constants import is_numpys
from tessera.frontends.number import Number, bare
from tessera.frontends.numpy_functions import FUNCTIONS, clip, identity, ptp, type_of
from tessera.ops.operands import Operand, lift
from tessera.tensor import Tensor, unsupported
from tessera.types import Arguments, Fields, Function, Object, Record, Value, Values

# --- ufuncs -----------------------------------------------------------------------------------

_SAME_UFUNCS = """
    add subtract multiply divide negative maximum minimum sign sqrt square exp log sin cos tanh
    reciprocal equal not_equal less less_equal greater greater_equal logical_and logical_or
    logical_xor logical_not matmul power erf erfc vecdot log1p expm1 log2 log10 exp2 tan sinh cosh
    arctan arcsin arccos arctan2 hypot logaddexp floor ceil trunc rint remainder floor_divide
    left_shift right_shift isnan isfinite isinf heaviside fmax fmin
"""
UFUNCS: dict[str, Function] = {name: ops.function(name) for name in _SAME_UFUNCS.split()}
UFUNCS |= {
    "absolute": ops.pointwise.abs,
    "fabs": ops.pointwise.abs,
    "float_power": lambda x, y: ops.pointwise.pow(ops.pointwise.astype(x, "f64"), y),
    "positive": lambda x: x,
    "conjugate": lambda x: x,
    "bitwise_and": functools.partial(ops.integers.bitwise, "and"),
    "bitwise_or": functools.partial(ops.integers.bitwise, "or"),
    "bitwise_xor": functools.partial(ops.integers.bitwise, "xor"),
    "invert": functools.partial(ops.integers.bitwise, "not"),
    "deg2rad": lambda x: ops.pointwise.multiply(lift_like(np.deg2rad, x), np.pi / 180),
    "radians": lambda x: ops.pointwise.multiply(lift_like(np.radians, x), np.pi / 180),
    "rad2deg": lambda x: ops.pointwise.multiply(lift_like(np.rad2deg, x), 180 / np.pi),
    "degrees": lambda x: ops.pointwise.multiply(lift_like(np.degrees, x), 180 / np.pi),
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
    "multiply": ops.derived.prod,
    "maximum": ops.reduce.max,
    "minimum": ops.reduce.min,
    "logical_and": ops.reduce.all,
    "logical_or": ops.reduce.any,
}


def lift_like(ufunc: np.ufunc, x: Operand) -> Tensor:
    """An operand in the dtype that the ufunc computes in."""
    return ops.operands.promote(ufunc, x)[0]


def apply_ufunc(ufunc: np.ufunc, method: str, args: Values, kwargs: Fields) -> Value:
    """A ufunc called on Tensors: `np.add(x, y)`, `np.add.reduce(x)` and so on."""
    args, kwargs = bare(args), bare(kwargs)
    name = f"np.{ufunc.__name__}"
    _note(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", args)
    if method == "__call__" and any(map(_is_empty, args)):
        return ufunc(*map(_standing, args), **kwargs)
    options = {k: v for k, v in _options(name, kwargs).items() if v is not None}
    if (out := kwargs.get("out")) is not None:
        rest = {k: v for k, v in kwargs.items() if k != "out"}
        result = apply_ufunc(ufunc, method, args, rest)
        if method != "__call__":
            _require_same_dtype(name, out[0] if isinstance(out, tuple) else out, result)
        return _written(name, out[0] if isinstance(out, tuple) and len(out) == 1 else out, result)
    dtype = options.pop("dtype", None)
    if dtype is not None and method == "__call__" and ufunc.__name__ in _ARITHMETIC:
        builder, target = ops.operands.builder_of(*args), ops.operands.numpy_dtype(dtype)
        kinds = [np.result_type(type_of(x)) for x in args if type(x) is not int]
        if not all(np.can_cast(kind, target, "same_kind") for kind in kinds):
            unsupported(f"{name} with a dtype= that its operands are not cast to")
        args = [lift(builder, x, target) for x in args]
    if method == "__call__":
        function = UFUNCS.get(ufunc.__name__)
        if function is None or not is_numpys(ufunc):
            unsupported(f"{name} is not supported")
        if options:
            unsupported(f"{name} with {', '.join(options)} is not supported")
        result = function(*args)
    elif method == "reduce" and ufunc.__name__ in _REDUCE:
        axis = options.pop("axis", 0 if "axis" not in kwargs else None)
        keepdims = options.pop("keepdims", False)
        if options:
            unsupported(f"{name}.reduce with {', '.join(options)} is not supported")
        if dtype is not None and ufunc.__name__ == "add":
            return ops.reduce.sum(args[0], axis=axis, dtype=dtype, keepdims=keepdims)
        reduce = _REDUCE[ufunc.__name__]
        result = reduce(args[0], axis=axis, keepdims=keepdims)
    elif method == "accumulate" and ufunc.__name__ == "add":
        return ops.reduce.cumsum(args[0], axis=options.pop("axis", 0), dtype=dtype)
    elif method == "outer" and ufunc.__name__ in UFUNCS and ufunc.nin == 2:
        a, b = (lift(ops.operands.builder_of(*args), x) for x in args)
        result = UFUNCS[ufunc.__name__](ops.shape.expand_dims(a, range(a.ndim, a.ndim + b.ndim)), b)
    else:
        unsupported(f"{name}.{method} is not supported")
    if dtype is not None and result.dtype != ops.operands.numpy_dtype(dtype):
        unsupported(f"{name} with a dtype= that it would not compute in is not supported")
    return fresh(result)


def _is_empty(x: Object) -> bool:
    """Whether it is an array without elements, which is none of ours."""
    return type(x) is np.ndarray and x.size == 0


def _standing(x: Object) -> Value:
    """Zeros for a traced array: beside an empty operand its values count for nothing.

    A result has no elements either, or is a sum over none of them.
    """
    if not isinstance(x, Tensor):
        return x
    return 0.0 if x.weak else np.zeros(x.shape, x.dtype)


_ARITHMETIC = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "square"}


# --- memory: which results are new arrays, and which share another one's


def fresh(result: Object, array: bool = False) -> Value:
    """A result, or each of several, as an array of its own, which may be written to; without axes
    if `array`."""
    if isinstance(result, (list, tuple)):
        return type(result)([fresh(r, array) for r in result])
    if not isinstance(result, Tensor):
        return result
    copy = Tensor(result.builder, result.id)
    copy.views = []
    copy.form = "array" if array else "scalar"
    return copy


def view(result: Object, *sources: Object, array: bool = True) -> Value:
    """A result that shares the memory of the tensors among the arguments.

    Without axes it is an array only if `array`, otherwise a scalar.
    """
    if isinstance(result, (list, tuple)):
        return type(result)([view(r, *sources, array=array) for r in result])
    if not isinstance(result, Tensor):
        return result
    owners = [x for x in sources if isinstance(x, Tensor)]
    if any(result is x and x.is_array == (array or x.ndim > 0) for x in owners):
        return result
    result = Tensor(result.builder, result.id)
    if result.ndim == 0 and not array:
        return result
    result.form = "array"
    for x in owners:
        result.is_view_of(x)
    return result


def _written(name: str, target: Object, result: Object) -> Tensor:
    """out=: the result in the place of what was there."""
    if not isinstance(target, Tensor) or not isinstance(result, Tensor):
        unsupported(f"{name} with out= writes in place, which a traced program cannot express")
    return target.overwrite(result)


def _require_same_dtype(name: str, target: Object, result: Object) -> None:
    """Reductions compute in the dtype of out=."""
    if isinstance(target, Tensor) and isinstance(result, Tensor) and target.dtype != result.dtype:
        unsupported(f"{name} with out= of another dtype than its result's is not supported")


def _note(name: str, operands: Values) -> None:
    """Keeps in mind what was called."""
    for x in operands:
        if isinstance(x, Tensor):
            x.builder.calls.add(name)
        elif isinstance(x, (list, tuple)):
            _note(name, x)


# What is traced as the very operations that NumPy does, each rounded as NumPy does, or as one
# operator that stands for the function. Other functions have other formulas or orders in NumPy.
_SAME_ROUNDING = """
    add subtract multiply divide negative positive absolute fabs conjugate sqrt square reciprocal
    floor ceil trunc rint equal not_equal less less_equal greater greater_equal logical_and
    logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor invert isnan isfinite
    isinf transpose swapaxes moveaxis reshape ravel flatten expand_dims squeeze broadcast_to
    broadcast_arrays stack concatenate vstack hstack column_stack dstack atleast_1d atleast_2d
    append tile repeat split array_split hsplit vsplit roll pad triu tril diagonal diag take where
    copy astype flip fliplr flipud rot90 zeros_like ones_like full_like matrix_transpose
    permute_dims real conj shape ndim size result_type
    exp log sin cos tanh log1p expm1 arctan2 maximum minimum remainder sign sum add.reduce mean max
    min amax amin cumsum matmul any all
"""


def rounds_otherwise(calls: Iterable[str]) -> str:
    """One of these calls that NumPy is not known to compute as traced, bit for bit; empty: none."""
    return min(set(calls) - set(_SAME_ROUNDING.split()), default="")


def require_rounding(calls: Iterable[str], level: str) -> None:
    """Refuses, at level "bitwise", calls that NumPy is not known to compute as traced."""
    if level == "bitwise" and (other := rounds_otherwise(calls)):
        raise UnsupportedError(
            f"level bitwise: np.{other} is not known to compute what it is traced as, bit for bit"
        )


# --- functions --------------------------------------------------------------------------------


# Values of arguments that change nothing here; others do what no program does.
_HARMLESS: dict[str, Arguments] = {
    "order": (None, "C", "K"), "subok": (True, False), "device": (None, "cpu"), "where": (True,),
    "copy": (True, False), "casting": ("same_kind",),
}  # fmt: skip
_HARMLESS_OF: dict[str, dict[str, Arguments]] = {
    "astype": {"casting": ("unsafe",)}, "einsum": {"casting": ("safe",)},
    "reshape": {"order": (None, "C"), "copy": (None, True)}, "ravel": {"order": ("C",)},
    "flatten": {"order": ("C",)},
}  # fmt: skip


@functools.cache
def _parameters(function: Function | None) -> tuple[inspect.Parameter, ...]:
    """None of C functions, which have them in the same places."""
    try:
        return tuple(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()


def _options(name: str, kwargs: Fields, function: Function | None = None) -> Record:
    """Keyword arguments that matter, with those refused that change what no program can; those
    that `function` has are its own matter."""
    own = [p.name for p in _parameters(function)]
    harmless = _HARMLESS | _HARMLESS_OF.get(name.rpartition(".")[2], {})
    matter = {}
    for option, value in kwargs.items():
        if value is np._NoValue or (option == "out" and option not in own):
            continue
        if option in own or option not in harmless:
            matter[option] = value
        elif not any(type(value) is type(v) and value == v for v in harmless[option]):
            given = repr(value) if isinstance(value, str) else ""
            instead = "; use np.where" if option == "where" else ""
            unsupported(f"{name} with {option}={given} is not supported{instead}")
    return matter


def _by_name(
    function: Function | None, ours: Function, args: Values, kwargs: Fields
) -> tuple[Values, Record]:
    """The arguments with those by name that NumPy has in other places: np.max(x, 0, out)."""
    theirs, own = _parameters(function), _parameters(ours)
    if not theirs or any(p.kind is p.VAR_POSITIONAL for p in (*own, *theirs)):
        return args, dict(kwargs)
    at = 2
    while at < min(len(own), len(theirs)) and own[at].name == theirs[at].name:
        at += 1
    moved = [p.name for p in theirs[at:] if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > at + len(moved):
        unsupported(f"np.{ours.__name__} with so many arguments")
    return args[:at], {**dict(zip(moved, args[at:], strict=False)), **kwargs}


def apply_function(function: Function, args: Values, kwargs: Fields) -> Value:
    """A NumPy function called on Tensors."""
    args, kwargs = bare(args), bare(kwargs)
    name = f"{function.__module__.replace('numpy', 'np', 1)}.{function.__name__}"
    _note(function.__name__, (*args, *kwargs.values()))
    if function in _PRODUCTS and any(map(_is_empty, args)):
        return function(*map(_standing, args), **kwargs)
    ours = FUNCTIONS.get(function)
    if ours is None:
        unsupported(f"{name} is not supported")
    args, named = _by_name(function, ours, args, kwargs)
    if (out := named.pop("out", None)) is not None:
        result = apply_function(function, args, named)
        _require_same_dtype(name, out, result)
        return _written(name, out, result)
    result = _checked(name, ours, args, _options(name, named, ours))
    scalar = any(isinstance(x, Tensor) and not x.is_array for x in args[:1])
    array = function in _ARRAYS or (function in _AS_ARGUMENT and not scalar)
    if function in _VIEWS:
        return view(result, *args, array=array)
    made = fresh(result, array)
    if function in (np.allclose, np.array_equal) and isinstance(made, Tensor):
        made.form = "bool"
        return Number(made)
    return made


_PRODUCTS = {np.dot, np.inner, np.outer, np.tensordot, np.vdot, np.einsum}
_VIEWS = {
    np.transpose, np.swapaxes, np.moveaxis, np.reshape, np.ravel, np.expand_dims, np.squeeze,
    np.broadcast_to, np.split, np.hsplit, np.vsplit, np.array_split, np.diagonal, np.diag, np.real,
    np.atleast_1d, np.atleast_2d, np.flip, np.fliplr, np.flipud, np.rot90, np.einsum,
    np.broadcast_arrays, np.permute_dims, np.matrix_transpose, np.linalg.matrix_transpose,
    np.linalg.diagonal, np.meshgrid,
}  # fmt: skip


# Of whose results those without axes are arrays too, and where they are what the argument is.
_ARRAYS = {
    np.where, np.select, np.tensordot, np.linalg.tensordot, np.cov, np.copy, np.zeros_like,
    np.ones_like, np.empty_like, np.full_like, np.broadcast_to, np.broadcast_arrays, np.reshape,
    np.roll, np.apply_along_axis, np.cross, np.linalg.cross,
}  # fmt: skip
_AS_ARGUMENT = {np.transpose, np.permute_dims, np.squeeze, np.moveaxis, np.swapaxes, np.real}


def _checked(name: str, function: Function, args: Values, options: Fields) -> Value:
    """Calls one of our functions; a parameter that it lacks is unsupported, not a bug."""
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError as error:
        unsupported(f"{name}: {error}; this parameter is not supported")
    return function(*args, **options)


# --- attributes and methods of ndarray ----------------------------------------------------------


def _transpose_method(x: Tensor, *axes: Value) -> Tensor:
    flat = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return ops.shape.transpose(x, flat or None)


_SAME_METHODS = """
    sum mean var std max min all any cumsum ravel squeeze swapaxes take repeat diagonal trace astype
    dot prod argmax argmin round
"""
_METHODS: dict[str, Function] = {name: ops.function(name) for name in _SAME_METHODS.split()} | {
    "ptp": ptp,
    "clip": clip,
    "reshape": lambda x, *shape: ops.shape.reshape(x, shape[0] if len(shape) == 1 else shape),
    "transpose": _transpose_method,
    "flatten": ops.shape.ravel,
    "copy": identity,
    "conj": identity,
    "conjugate": identity,
    "view": lambda x, *args: unsupported("view() reinterprets memory, which a program cannot"),
}
_VIEW_METHODS = {"reshape", "ravel", "squeeze", "swapaxes", "transpose", "diagonal", "conj",
                 "conjugate"}  # fmt: skip
_METHODS_OF_ARRAYS = {"squeeze", "swapaxes", "transpose", "astype", "copy"}  # not of scalars
_ATTRIBUTES: dict[str, Function] = {
    "T": ops.shape.transpose,
    "mT": ops.contract.matrix_transpose,
    "real": identity,
}


def item(x: Tensor, key: Object) -> Tensor:
    """x[key]."""
    picked = ops.index.getitem(x, key)
    if not isinstance(picked, Tensor):
        return picked  # by a mask: ops/masked.py
    dots = key is Ellipsis or (isinstance(key, tuple) and any(k is Ellipsis for k in key))
    result: Tensor = view(picked, x, array=dots)
    return result


def with_item(x: Tensor, key: Object, value: Object) -> Tensor:
    """x with x[key] = value done."""
    return ops.index.setitem(x, key, bare(value))


def array_attribute(x: Tensor, name: str) -> Value:
    """An attribute or method that ndarray has, or NumPy's scalar, for a Tensor."""
    kind = np.ndarray if x.is_array or not x.builder.numpy_dtypes else x.dtype.type
    if not hasattr(kind, name):
        raise AttributeError(f"'{kind.__name__}' object has no attribute {name!r}")
    if name in _ATTRIBUTES:
        return view(_ATTRIBUTES[name](x), x, array=x.is_array)
    if name in _METHODS:

        def method(*args: Object, **kwargs: Object) -> Value:
            ours = _METHODS[name]
            given, kwargs = _by_name(getattr(np, name, None), ours, (x, *bare(args)), bare(kwargs))
            x.builder.calls.add(name)
            if (out := kwargs.pop("out", None)) is not None:
                return _written(f"ndarray.{name}", out, method(*given[1:], **kwargs))
            options = _options(f"ndarray.{name}", kwargs, ours)
            result = _checked(f"ndarray.{name}", ours, given, options)
            shares = name in _VIEW_METHODS or kwargs.get("copy") is False
            array = name == "reshape" or (x.is_array and name in _METHODS_OF_ARRAYS)
            return view(result, x, array=array) if shares else fresh(result, array)

        return method
    if not name.startswith("_"):
        unsupported(f"ndarray.{name} is not supported")
    raise AttributeError(f"'Tensor' object has no attribute {name!r}")
