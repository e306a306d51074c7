"""Operands of tensor functions: promotion by NumPy's rules, constants, conversion, axes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from tessera.errors import Error
from tessera.tensor import Builder, Tensor, bad_input, cast, unsupported, user_location
from tessera.types import (
    Attribute,
    Axes,
    Dim,
    DType,
    DTypeGiven,
    Object,
    dtype_name,
    is_float,
    to_numpy,
)

Operand = Object  # Tensor, Python or NumPy scalar, array or nested list


_WIDER = {
    np.dtype(narrow): np.dtype(wide) for narrow, wide in (("i2", "i4"), ("u2", "i4"), ("u4", "i8"))
}


def builder_of(*operands: object) -> Builder:
    """The graph that the tensors among the operands belong to."""
    for x in operands:
        for y in x if isinstance(x, (list, tuple)) else (x,):
            if isinstance(y, Tensor):
                return y.builder
    bad_input("this needs at least one tensor of a graph among its operands")


def is_scalar(x: object) -> bool:
    """A Python or NumPy scalar, which joins a computation as a constant."""
    if isinstance(x, (Tensor, np.void)):
        return False
    return isinstance(x, (bool, int, float, np.generic))


def operand_dtype(x: Operand) -> DType | type:
    """What NumPy's promotion sees: a dtype, or a Python type for the weak scalars."""
    if isinstance(x, Tensor) and x.weak:
        return float
    if isinstance(x, (Tensor, np.ndarray, np.generic)):
        return x.dtype
    if isinstance(x, bool):
        return np.dtype(np.bool_)
    if isinstance(x, (int, float)):
        return type(x)
    if isinstance(x, complex):
        unsupported("complex numbers are not supported")
    if x is None or isinstance(x, (str, bytes, dict)):
        bad_input(f"{x!r} is not an operand of an array operation")
    return np.asarray(x).dtype


def lift(builder: Builder, x: Operand, dtype: DTypeGiven = None) -> Tensor:
    """An operand as a tensor of `builder`, converted to `dtype` if one is given."""
    if isinstance(x, Tensor):
        tensor = x
    elif isinstance(x, (bool, int, float)):
        return builder.const(x, dtype if dtype is not None else np.asarray(x).dtype)
    elif isinstance(x, np.generic):
        # Converted here, where it keeps its rounding: np.float32(0.1) is not 0.1 in f64.
        kind: DType = np.dtype(dtype or x.dtype)
        return builder.const(x if dtype is None else kind.type(x), kind)
    elif isinstance(x, (list, tuple)) and any(isinstance(y, Tensor) for y in x):
        tensor = emit("stack", *common(*x), axis=0)
    else:
        tensor = builder.constant_array(np.asarray(x))
    return tensor if dtype is None else cast(tensor, dtype)


def tensors(*operands: Operand) -> list[Tensor]:
    """The operands as tensors of their graph, with their own dtypes."""
    builder = builder_of(*operands)
    return [lift(builder, x) for x in operands]


def emit(op: str, *inputs: Tensor, **attrs: Attribute) -> Tensor:
    """One operator of the core, by its text name."""
    return inputs[0].builder.emit(op, list(inputs), attrs)


def reduced(op: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """A reduction by an operator of the core; over no axes nothing is done."""
    return emit(op, x, axes=list(axes), keepdims=keepdims) if axes else x


def wide(x: Tensor) -> Tensor:
    """16-bit floats are reduced and normalised in f32."""
    return cast(x, np.float32) if is_float(x.dtype) and x.dtype.itemsize == 2 else x


def iota(builder: Builder, axis: int, shape: Sequence[Dim], dtype: str = "i64") -> Tensor:
    """0, 1, 2, … along one axis of a shape, the same along the others."""
    return builder.emit("iota", [], {"axis": axis, "type": (dtype, list(shape))})


def row_major(places: Sequence[Tensor], extents: Sequence[int]) -> Tensor:
    """Positions along axes of these extents as one, counted row by row; all are i64."""
    linear = places[0]
    for place, n in zip(places[1:], extents[1:], strict=True):
        linear = emit("add", emit("mul", linear, linear.builder.const(n, "i64")), place)
    return linear


def promote(ufunc: np.ufunc, *operands: Operand) -> list[Tensor]:
    """The operands as tensors of the dtypes of the loop that NumPy would choose."""
    builder = builder_of(*operands)
    dtypes = [operand_dtype(x) for x in operands]
    strong = {d for d in dtypes if isinstance(d, np.dtype)}
    if not builder.numpy_dtypes and len(strong) == 1 and is_float(next(iter(strong))):
        loop = [next(iter(strong))] * len(operands)
    else:
        try:
            loop = list(ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout)))
        except TypeError as error:
            bad_input(f"{ufunc.__name__}: {error}")
        if loop[-1] == np.bool_:  # comparisons may widen further than NumPy does
            loop = [_WIDER.get(d, d) for d in loop]
    return [lift(builder, x, d) for x, d in zip(operands, loop, strict=False)]


def result_type(*operands: Operand) -> DType:
    """NumPy's common dtype of the operands."""
    kinds = map(operand_dtype, operands)
    return np.result_type(*[k(0) if isinstance(k, type) else k for k in kinds])


def common(*operands: Operand) -> list[Tensor]:
    """The operands as tensors of NumPy's common result dtype (concatenate, where)."""
    builder, dtype = builder_of(*operands), result_type(*operands)
    return [lift(builder, x, dtype) for x in operands]


def axis_of(axis: int, ndim: int) -> int:
    try:
        return int(normalize_axis_index(axis, ndim))
    except np.exceptions.AxisError as error:
        bad_input(str(error))


def axes_of(axis: Axes, ndim: int) -> list[int]:
    if axis is None:
        return list(range(ndim))
    try:
        return sorted(normalize_axis_tuple(axis, ndim))
    except (np.exceptions.AxisError, ValueError) as error:
        bad_input(str(error))


def static_shape(x: Tensor, what: str) -> tuple[int, ...]:
    if any(isinstance(d, str) for d in x.shape):
        unsupported(f"{what} needs known extents, not {x!r}; bind its symbols first")
    return x.shape


def numpy_dtype(dtype: object, x: Tensor | None = None) -> DType:
    """The NumPy dtype of any spelling of a supported dtype.

    `x`: what takes it; in a traced function "i8" is NumPy's (of eight bytes), not Tessera's.
    """
    if isinstance(dtype, str) and x is not None and x.builder.numpy_dtypes:
        with contextlib.suppress(TypeError):
            dtype = np.dtype(dtype)
    try:
        return to_numpy(dtype_name(dtype))
    except Error as error:
        raise type(error)(error.message, user_location()) from None
