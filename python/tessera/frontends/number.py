"""A Python number of which a trace knows the type only: an argument, or a bool that NumPy makes.

Python's own arithmetic is not NumPy's: its comparisons count (`True + True` is 2), and it raises
where NumPy makes infinities. What is the same for all values is recorded, all else is refused, and
the number is a constant of the program (decorator.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from tessera.tensor import Tensor, unsupported
from tessera.types import Fields, Function, Object, Record, Value, Values


class Number:
    """To a traced function a float or bool; `tensor` stands for it beside arrays."""

    __slots__ = ("_tessera",)

    def __init__(self, tensor: Tensor) -> None:
        self._tessera = tensor

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._tessera.__class__

    def __getattr__(self, name: str) -> NoReturn:
        kind = self.__class__
        if not hasattr(kind, name):
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
        self._refuse()

    def _refuse(self, *args: Object, **kwargs: Object) -> NoReturn:
        unsupported(
            f"this needs the value of a Python {self.__class__.__name__}, of which programs take "
            "+, -, *, division by an argument or a constant, and what NumPy does with arrays"
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Value, **kwargs: Value) -> Value:
        return self._tessera.__array_ufunc__(ufunc, method, *args, **kwargs)

    def __array_function__(
        self, function: Function, types: Sequence[type], args: Values, kwargs: Fields
    ) -> Value:
        if set(types) == {Number} and function not in (np.shape, np.ndim, np.stack):
            self._refuse()  # many make other things of numbers than of NumPy's scalars
        return self._tessera.__array_function__(function, types, args, kwargs)


for _name, _value in {**vars(float), **vars(bool), **vars(int), "__array__": int}.items():
    if callable(_value) and _name not in ("__new__", "__getattribute__"):
        setattr(Number, _name, Number._refuse)


def _operator(ufunc: np.ufunc) -> tuple[Function, Function]:
    """One of Python's operators and its reflection."""
    return lambda x, y: _combined(ufunc, x, y, y), lambda y, x: _combined(ufunc, x, y, x)


def _combined(ufunc: np.ufunc, x: Value, y: Value, other: Value) -> Value:
    if type(other) not in (Number, float, int, bool) and hasattr(type(other), "__array_ufunc__"):
        return ufunc(x, y)  # an array, or a scalar of NumPy
    floats = all(
        v._tessera.weak if type(v) is Number else type(v) in (float, int, bool) and _is_tame(v)
        for v in (x, y)
    )
    divides = ufunc in (np.true_divide, np.floor_divide, np.remainder)
    # A program is not called with floats that are zero or infinite (python/bindings/call.cpp).
    divisible = divides and (y._tessera.is_input if type(y) is Number else y != 0)
    if not floats or not (divisible or ufunc in (np.add, np.subtract, np.multiply)):
        (x if type(x) is Number else y)._refuse()
    return _weak(ufunc(bare(x), bare(y)))


def _is_tame(value: float) -> bool:
    """Whether it is as good as a finite float."""
    return math.isfinite(value) if type(value) is float else abs(value) < 1 << 53


def _weak(tensor: Tensor) -> Number:
    tensor.weak = True
    return Number(tensor)


def _unary(ufunc: np.ufunc) -> Callable[[Number], Number]:
    return lambda x: _weak(ufunc(x._tessera)) if x._tessera.weak else x._refuse()


_BINARY: Record = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal,
}  # fmt: skip
_UNARY: Record = {"neg": np.negative, "pos": np.positive, "abs": np.absolute}
for _name, _value in _BINARY.items():
    for _side, _function in zip(("", "r"), _operator(_value), strict=True):
        setattr(Number, f"__{_side}{_name}__", _function)
for _name, _value in _UNARY.items():
    setattr(Number, f"__{_name}__", _unary(_value))


def bare(value: Value) -> Value:
    """A value with the tensors of the numbers in it, and in its lists, tuples and dicts."""
    if type(value) is Number:
        return value._tessera
    if type(value) in (list, tuple):
        return type(value)(map(bare, value))
    return {k: bare(v) for k, v in value.items()} if type(value) is dict else value


def is_stand_in(value: Object) -> bool:
    """Whether it is not what it says that it is."""
    return type(value) in (Tensor, Number)
