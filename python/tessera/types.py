"""Element types and shapes: Tessera's names (`f32[16,1024]`) and NumPy's dtypes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from tessera.errors import BadInputError, UnsupportedError, WrongTypeError

Dim = int | str
Shape = tuple[Dim, ...]
Axes = int | Sequence[int] | None
Sides = int | Sequence[int]  # one number for all axes, or one each
DType = np.dtype[Any]
DTypeGiven = DTypeLike | None  # of NumPy's functions; None: their own choice
Array = np.ndarray[Any, DType]
Value = Any  # an array, a scalar, a tensor of a library, or what else a traced function has
Object = object  # any value at all: what takes one asks of which type it is
Values = Sequence[Value]  # as calls have them
Arguments = tuple[Value, ...]  # of a call, by position
Function = Callable[..., Value]
Record = dict[str, Any]  # plain data by name: an operator, what a process is told
Fields = Mapping[str, Any]  # the same, to be read
Attribute = int | float | str | Sequence[Dim] | tuple[str, Sequence[Dim]]  # of an operator

# By Tessera's name; NumPy's own, as in "float64", are those of other libraries as well.
DTYPES: dict[str, DType] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_FLOATS = frozenset(DTYPES[name] for name in ("f64", "f32", "f16", "bf16"))
_TYPE = re.compile(r"\s*([a-z]+[0-9]*)\s*\[([^\]]*)\]\s*")


def to_numpy(name: str) -> DType:
    """The NumPy dtype of a Tessera name.

    >>> to_numpy("f32")
    dtype('float32')
    """
    try:
        return DTYPES[name]
    except KeyError:
        raise BadInputError(f"unknown dtype '{name}'; Tessera has {' '.join(DTYPES)}") from None


def dtype_name(dtype: object) -> str:
    """Tessera's name of a dtype given as NumPy dtype, scalar type or name.

    >>> dtype_name(np.float32), dtype_name("bf16"), dtype_name("float64")
    ('f32', 'bf16', 'f64')
    """
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    try:
        numpy_dtype = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        raise BadInputError(f"unknown dtype {dtype!r}; Tessera has {' '.join(DTYPES)}") from None
    name = _NAMES.get(numpy_dtype) if is_plain_dtype(numpy_dtype) else None
    if name is None:
        raise UnsupportedError(
            f"dtype {numpy_dtype}{_more(numpy_dtype)} is not supported; Tessera has "
            f"{' '.join(DTYPES)}"
        )
    return name


def is_plain_dtype(dtype: DType) -> bool:
    """Whether it is all that compares equal to it."""
    return not _more(dtype)


def _more(dtype: DType) -> str:
    """What a dtype has that others lack which compare equal to it."""
    return " with metadata" if dtype.metadata else " of long long" if dtype.char in "qQ" else ""


def is_float(dtype: DType) -> bool:
    """Whether a dtype is one of f64, f32, f16, bf16."""
    return dtype in _FLOATS


def format_type(dtype: object, shape: Sequence[Dim]) -> str:
    """The text form of a type.

    >>> format_type(np.float32, (16, 1024))
    'f32[16,1024]'
    """
    return f"{dtype_name(dtype)}[{','.join(str(d) for d in shape)}]"


def require_plain(array: Array, *more: type) -> None:
    """Refuses arrays of classes to which operations mean something else, such as masked ones."""
    if type(array) not in (np.ndarray, *more):
        raise UnsupportedError(
            f"arrays of type {type(array).__name__} are not supported; pass a plain array"
        )


def require_array(array: Array, name: str, dtype: DType, shape: Shape) -> None:
    """Refuses what is no plain array of this type."""
    require_plain(array, np.memmap)
    given = str(_NAMES.get(array.dtype, array.dtype))
    require_type(name, dtype, shape, array.dtype == dtype, given, array.shape)


def require_type(
    name: str, dtype: object, shape: Shape, same_dtype: bool, kind: str, given: Sequence[Dim]
) -> None:
    """Refuses an array of another dtype, which is called `kind`, or another shape."""
    if not same_dtype or tuple(given) != shape:
        error = BadInputError if same_dtype else WrongTypeError
        had = ",".join(map(str, given))
        raise error(f"{name} must be {format_type(dtype, shape)}, not {kind}[{had}]")


def parse_type(text: str) -> tuple[str, Shape]:
    """Reads a type such as `f32[16,1024]`; a dimension may be a symbol.

    >>> parse_type("f32[N,1024]")
    ('f32', ('N', 1024))
    """
    match = _TYPE.fullmatch(text)
    if not match:
        raise BadInputError(
            f"'{text}' is not a type; write for example f32[16,1024], or f32[] for a scalar"
        )
    dims: list[Dim] = []
    body = match[2].strip()
    for part in (p.strip() for p in body.split(",")) if body else ():
        if part.isdecimal():
            dims.append(int(part))
        elif part.isidentifier():
            dims.append(part)
        else:
            raise BadInputError(f"'{part}' in '{text}' is neither an extent nor a symbol")
    to_numpy(match[1])
    shape = tuple(dims)
    check_shape(shape, f"'{text}'")
    return match[1], shape


class Interval(NamedTuple):
    """The values that an argument takes: from `low` to `high`, each included or not."""

    low: float = -math.inf
    high: float = math.inf
    with_low: bool = True
    with_high: bool = True

    def __str__(self) -> str:
        """
        >>> str(Interval(0, math.inf, False, False)), str(Interval(0, 1, True, False))
        ('> 0', 'in [0, 1)')
        """
        if self.high == math.inf and self.low > -math.inf:
            return f"{'>=' if self.with_low else '>'} {self.low:g}"
        ends = "[("[not self.with_low], "])"[not self.with_high]
        return f"in {ends[0]}{self.low:g}, {self.high:g}{ends[1]}"


EVERY = Interval()

_NUMBER = r"[-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|inf)"
_DOMAIN = re.compile(
    rf"\s*(?:(>=?)\s*({_NUMBER})|in\s*([\[(])\s*({_NUMBER})\s*,\s*({_NUMBER})\s*([\])]))\s*"
)


def parse_domain(text: str) -> Interval:
    """Reads what may follow a type: `> 0`, `>= 1`, `in [0, 1)`; nothing means every value.

    >>> parse_domain("in [0, 1)")
    Interval(low=0.0, high=1.0, with_low=True, with_high=False)
    """
    if not text.strip():
        return EVERY
    match = _DOMAIN.fullmatch(text)
    try:
        if match and match[1]:
            return Interval(float(match[2]), math.inf, match[1] == ">=", False)
        if match and float(match[4]) < float(match[5]):
            return Interval(float(match[4]), float(match[5]), match[3] == "[", match[6] == "]")
    except ValueError:
        pass
    raise BadInputError(
        f"'{text.strip()}' is not a domain; write for example > 0, >= 1 or in [0, 1)"
    )


def check_shape(shape: Sequence[Dim], where: str) -> None:
    """Refuses extents of zero or less: Tessera optimises programs on non-empty tensors."""
    for dim in shape:
        if isinstance(dim, int) and dim <= 0:
            raise BadInputError(
                f"{where} has shape ({', '.join(map(str, shape))}): every extent must be positive, "
                "an empty tensor has nothing to compute"
            )


# Memory that is valid for the time of a call, dtype and shape; row-major.
Memory = tuple[memoryview, str, tuple[int, ...]]


def array_of(memory: Memory) -> Array:
    """NumPy's view of some memory."""
    data, dtype, shape = memory
    return np.frombuffer(data, to_numpy(dtype)).reshape(shape)
