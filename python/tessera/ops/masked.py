"""Elements picked by a mask, `x[x > 0]`: how many they are depends on values, their sum does not.

A Masked stands for them while a function is traced. Functions of single elements apply to all of
`x`; reductions leave out what the mask does (`np.where(mask, x, 0).sum()`); what would have to know
their number or their places is refused.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tessera.ops import pointwise, reduce
from tessera.ops.operands import Operand, is_scalar, lift
from tessera.tensor import Tensor, is_stored_back, unsupported
from tessera.types import Axes, DType, DTypeGiven, Fields, Function, Object, Value, Values

_WHY = (
    "indexing by a mask gives a shape that depends on values; of x[mask] sums, means, counts and "
    "functions of single elements can be traced, else use np.where"
)


def _in_place_operator(ufunc: np.ufunc) -> Function:
    """`x[mask] += y`, which goes on as `x[mask] = this`; written to otherwise, it may be shared."""

    def operator(self: Masked, other: Object) -> Value:
        if not is_stored_back():
            unsupported("this writes in place to what a mask picked; write y = y + x, not y += x")
        return ufunc(self, other)

    return operator


class Masked(NDArrayOperatorsMixin):
    """The elements of `x` where `mask`, which has its shape, is true."""

    __iadd__, __isub__ = _in_place_operator(np.add), _in_place_operator(np.subtract)
    __imul__, __itruediv__ = _in_place_operator(np.multiply), _in_place_operator(np.true_divide)
    __ipow__ = _in_place_operator(np.power)

    def __init__(self, x: Tensor, mask: Tensor) -> None:
        # Handles of its own: what the mask picked stays when the arrays are written to.
        self.x, self.mask = Tensor(x.builder, x.id), Tensor(mask.builder, mask.id)

    @property
    def ndim(self) -> int:
        return 1

    @property
    def dtype(self) -> DType:
        return self.x.dtype

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Value, **kwargs: Value) -> Value:
        if method == "reduce" and ufunc is np.add and kwargs.get("axis", 0) in (0, None):
            rest = {k: v for k, v in kwargs.items() if k != "axis" and v is not None}
            return self.sum(**rest)
        masked = [a for a in args if isinstance(a, Masked)]
        alike = all(a.mask.id == self.mask.id and a.x.shape == self.x.shape for a in masked)
        single = all(isinstance(a, Masked) or is_scalar(a) or _is_number(a) for a in args)
        if method != "__call__" or kwargs or ufunc.signature or not alike or not single:
            unsupported(_WHY)
        values = [a.x if isinstance(a, Masked) else a for a in args]
        return Masked(self.x.builder.apply_ufunc(ufunc, method, values, {}), self.mask)

    def __array_function__(
        self, function: Function, types: object, args: Values, kwargs: Fields
    ) -> Value:
        ours = _FUNCTIONS.get(function)
        if ours is None or not args or args[0] is not self:
            unsupported(_WHY)
        return ours(self, *args[1:], **{k: v for k, v in kwargs.items() if v is not np._NoValue})

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        unsupported(_WHY)

    __array__ = __len__ = __iter__ = __getitem__ = __bool__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        unsupported(_WHY)

    def or_else(self, value: Operand) -> Tensor:
        """`x` where the mask is true, else a number of `x`'s dtype."""
        return pointwise.where(self.mask, self.x, lift(self.x.builder, value, self.x.dtype))

    def count(self) -> Tensor:
        """How many elements these are."""
        return reduce.sum(self.mask)

    def sum(self, axis: Axes = None, dtype: DTypeGiven = None, **options: Object) -> Tensor:
        _plain(axis, options)
        return reduce.sum(self.or_else(0), dtype=dtype)

    def mean(self, axis: Axes = None, dtype: DTypeGiven = None, **options: Object) -> Tensor:
        """Sum by count: NaN where there is no element, as NumPy's."""
        _plain(axis, options)
        if self.x.dtype == np.float16:
            unsupported("the mean of float16 elements picked by a mask")
        wide = self.x.dtype if self.x.dtype.kind == "f" else np.dtype(np.float64)
        total = reduce.sum(self.or_else(0), dtype=dtype or wide)
        return pointwise.divide(total, pointwise.astype(self.count(), total.dtype))

    def any(self, axis: Axes = None, **options: Object) -> Tensor:
        _plain(axis, options)
        return reduce.any(pointwise.logical_and(self.mask, self.x))

    def all(self, axis: Axes = None, **options: Object) -> Tensor:
        _plain(axis, options)
        return reduce.all(pointwise.logical_or(pointwise.logical_not(self.mask), self.x))

    def astype(self, dtype: DTypeGiven) -> Masked:
        return Masked(pointwise.astype(self.x, dtype), self.mask)

    def copy(self) -> Masked:
        return self


def _plain(axis: Axes, options: Fields) -> None:
    if axis not in (None, 0, -1) or any(v is not None for v in options.values()):
        unsupported(_WHY)


def _is_number(value: Operand) -> bool:
    return isinstance(value, Tensor) and value.shape == ()


_FUNCTIONS: dict[Function, Function] = {
    np.sum: Masked.sum,
    np.mean: Masked.mean,
    np.any: Masked.any,
    np.all: Masked.all,
    np.count_nonzero: lambda m: reduce.sum(
        pointwise.logical_and(m.mask, pointwise.not_equal(m.x, 0))
    ),
}
