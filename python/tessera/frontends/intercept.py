"""What NumPy's protocols do not reach while a function is traced: np.array, np.zeros and relatives.

np.array and np.asarray look into their argument without asking it, and np.zeros has no argument to
ask. A traced function finds others in their place (see sandbox.py), which know Tensors.
"""

from __future__ import annotations

import functools

import numpy as np

from tessera.frontends.number import bare
from tessera.frontends.numpy import fresh
from tessera.ops.operands import iota, lift, numpy_dtype
from tessera.ops.shape import expand_dims, stack
from tessera.tensor import Builder, Tensor, cast, unsupported
from tessera.types import DTypeGiven, Function, Object, Sides, Value

_COPIES = {"array": True, "asarray": False, "asanyarray": False, "ascontiguousarray": False}
_OF_LISTS = ("sum", "mean", "prod", "max", "min", "std", "var", "any", "all", "cumsum", "diff")
_UNITS = ("eye", "identity")
_FILLED = {"zeros": 0, "ones": 1, "empty": 0}


def _holds_tensor(value: Object) -> bool:
    if isinstance(value, Tensor):
        return True
    return isinstance(value, (list, tuple)) and any(map(_holds_tensor, value))


def as_tensor(builder: Builder, value: Object) -> Tensor:
    """Nested lists of tensors and numbers as np.array joins them: every number with its dtype."""
    if isinstance(value, Tensor):
        return lift(builder, value, np.float64) if value.weak else value
    if isinstance(value, (list, tuple)):
        if not value:
            unsupported("an empty list among traced arrays")
        parts = [as_tensor(builder, v) for v in value]
        if len({p.shape for p in parts}) > 1:
            unsupported("np.array of rows of different shapes")
        return stack(parts, 0)
    array = np.asarray(value)
    return lift(builder, array[()] if array.ndim == 0 else array)


def _converter(original: Function, copies: bool) -> Function:
    def convert(*args: Object, **options: Object) -> Value:
        args, options = bare(args), bare(options)
        if not _holds_tensor([*args, *options.values()]):
            return original(*args, **options)
        copy, order = options.pop("copy", True if copies else None), options.pop("order", None)
        known = copy in (True, False, None) and order in (None, "C", "K")
        given = [*args, options.pop("dtype", None)]
        known &= len(args) in (1, 2) and _holds_tensor(args[0])
        if not known or any(v for k, v in options.items() if k != "subok"):
            unsupported(f"np.{original.__name__} with such arguments of traced arrays")
        object, dtype = given[:2]
        tensor = as_tensor(_builder(object), object)
        result = tensor if dtype is None else cast(tensor, numpy_dtype(dtype, tensor))
        if result.ndim == 0 and original.__name__ == "ascontiguousarray":
            result = expand_dims(result, 0)
        keeps = result is object and result.is_array
        if copy is not None and not copy and not keeps:
            unsupported(f"np.{original.__name__} with copy={copy}, where NumPy may raise an error")
        return result if keeps and not copy else fresh(result, array=True)

    return convert


def _of_list(original: Function) -> Function:
    """A function of one array that is given a list of traced ones: np.sum([a, b])."""

    @functools.wraps(original)
    def function(*args: Object, **options: Object) -> Value:
        args = bare(args)
        if args and isinstance(args[0], (list, tuple)) and _holds_tensor(args[0]):
            args = (as_tensor(_builder(args[0]), args[0]), *args[1:])
        return original(*args, **options)

    return function


def _builder(value: Value) -> Builder:
    if isinstance(value, Tensor):
        return value.builder
    return next(_builder(v) for v in value if _holds_tensor(v))


def _maker(builder: Builder, original: Function, value: int) -> Function:
    def make(shape: Sides, dtype: DTypeGiven = float, order: str = "C", **options: Object) -> Value:
        dims = _extents(shape)
        if options or dims is None:
            return original(shape, dtype, order, **options)
        target = numpy_dtype(float if dtype is None else dtype)
        return fresh(builder.const(value, target, dims), array=True)

    return make


def _counter(builder: Builder, original: Function) -> Function:
    """np.linspace: what it makes may be written to."""

    def make(*args: Object, **options: Object) -> Value:
        result = original(*args, **options)
        plain = type(result) is np.ndarray and result.size > 0 and result.dtype.kind == "f"
        return fresh(builder.constant_array(result), array=True) if plain else result

    return make


def _full_maker(builder: Builder, original: Function) -> Function:
    """np.full of a number."""

    def make(shape: Sides, fill_value: Value, dtype: DTypeGiven = None, **options: Value) -> Value:
        dims = _extents(shape)
        number = isinstance(fill_value, (bool, int, float, np.generic))
        if options or dims is None or not number:
            return original(shape, fill_value, dtype, **options)
        target = numpy_dtype(np.asarray(fill_value).dtype if dtype is None else dtype)
        value = np.asarray(fill_value).astype(target).item()
        return fresh(builder.const(value, target, dims), array=True)

    return make


def _extents(shape: Sides) -> list[int] | None:
    """A shape as a list; None where it is none, or has no elements."""
    dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    plain = all(isinstance(d, (int, np.integer)) and d > 0 for d in dims)
    return [int(d) for d in dims] if plain else None


def _unit_maker(builder: Builder, original: Function) -> Function:
    """np.eye(n) and np.identity(n), of which a traced array may pick rows: np.eye(n)[labels]."""

    def make(N: int, *args: Object, dtype: DTypeGiven = float, **options: Object) -> Value:
        integer = isinstance(N, (int, np.integer)) and N > 0
        if args or options or not integer:
            return original(N, *args, dtype=dtype, **options)
        sides = [iota(builder, axis, [int(N), int(N)]) for axis in (0, 1)]
        unit = cast(builder.emit("eq", sides), numpy_dtype(float if dtype is None else dtype))
        return fresh(unit)

    return make


def instead(builder: Builder, fills: bool) -> dict[int, Function]:
    """What takes the place of functions of numpy in a traced function, by their identity; with
    `fills` also of np.zeros and relatives, so that what it fills element by element is part of the
    program."""
    made: dict[str, Function] = {"empty": np.zeros, "empty_like": np.zeros_like}
    made |= {name: _converter(getattr(np, name), copies) for name, copies in _COPIES.items()}
    made |= {name: _of_list(getattr(np, name)) for name in _OF_LISTS}
    if fills:
        made |= {name: _maker(builder, getattr(np, name), v) for name, v in _FILLED.items()}
        made |= {name: _unit_maker(builder, getattr(np, name)) for name in _UNITS}
        made |= {"full": _full_maker(builder, np.full), "linspace": _counter(builder, np.linspace)}
    return {id(getattr(np, name)): function for name, function in made.items()}
