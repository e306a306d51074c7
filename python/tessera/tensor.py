"""Handles of values under construction, `Tensor`, and what makes them, `Builder`.

A Tensor knows shape and dtype but holds no data. NumPy functions and Python's operators accept it;
what they mean its builder says (graph.py).
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Union

import numpy as np

from tessera import _core
from tessera.errors import BadInputError, Error, Location, UnsupportedError
from tessera.types import (
    Array,
    Dim,
    DType,
    DTypeGiven,
    Fields,
    Function,
    Object,
    Value,
    Values,
    dtype_name,
    format_type,
    to_numpy,
)

if TYPE_CHECKING:
    from types import FrameType

Scalar = bool | int | float | np.generic
_PACKAGE = str(Path(__file__).parent)
_NUMPY = str(Path(np.__file__).parent)


def user_location() -> Location | None:
    """The line of the user's own source that is being executed, outside Tessera and NumPy."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_PACKAGE, _NUMPY, "<frozen", "<__array_function__")):
            return Location(file, frame.f_lineno)
        frame = frame.f_back
    return None


def unsupported(message: str) -> NoReturn:
    """Raises UnsupportedError at the user's line."""
    raise UnsupportedError(message, user_location())


def bad_input(message: str) -> NoReturn:
    """Raises BadInputError at the user's line."""
    raise BadInputError(message, user_location())


Term = Union["Tensor", float]  # an operand of what computes each element on its own
Binary = Callable[["Tensor", Value], "Tensor"]


def _operator(ufunc: np.ufunc) -> tuple[Binary, Binary]:
    """A Python operator and its reflection, as NumPy has them on arrays."""
    return lambda x, y: ufunc(x, y), lambda x, y: ufunc(y, x)


def _unary_operator(ufunc: np.ufunc) -> Callable[[Tensor], Tensor]:
    """The same of one operand."""
    return lambda x: ufunc(x)


def _in_place_operator(ufunc: np.ufunc) -> Binary:
    """`x += y`: of an array the memory is written, a scalar is replaced."""

    def operator(self: Tensor, other: Object) -> Tensor:
        result: Tensor = ufunc(self, other)
        if self.builder.numpy_dtypes and not self.is_array:
            return result
        if self.root is not None and is_stored_back():
            return result  # y[k] += v, which goes on as y[k] = this
        return self.overwrite(result)

    return operator


def is_stored_back() -> bool:
    """Whether the traced function's current instruction is that of `y[k] += v`."""
    frame = sys._getframe(2)
    following = False
    for instruction in dis.get_instructions(frame.f_code):
        if following and not instruction.opname.startswith(("SWAP", "ROT", "CACHE")):
            return instruction.opname in ("STORE_SUBSCR", "STORE_SLICE")
        following = following or instruction.offset == frame.f_lasti
    return False


class Tensor:
    """A value of a graph under construction: shape and dtype, no data.

    `weak`: stands for a Python float (f64 of no axes), which takes the dtype of what it meets; a
    traced function has it as a Number (frontends/number.py).
    `views`: of an array that the traced function made itself, those that share its memory; it may
    be written to while none of them is alive. None for arguments and for views.
    `form`: what NumPy has here if there are no axes: a "scalar", an "array", or Python's "bool".
    """

    __slots__ = ("__weakref__", "builder", "form", "id", "root", "views", "weak")
    __array_priority__ = 1000

    def __init__(self, builder: Builder, id: int) -> None:
        self.builder = builder
        self.id = id
        self.weak = False
        self.form = "scalar"
        self.views: list[weakref.ref[Tensor]] | None = None
        self.root: Tensor | None = None  # whose memory this shares; None: unknown, or its own

    # --- facts
    @property
    def is_input(self) -> bool:
        """Whether it is an argument of the program."""
        return self.id in self.builder.core.inputs

    @property
    def is_array(self) -> bool:
        """Whether NumPy has an array here, and not a scalar."""
        return self.ndim > 0 or self.form == "array"

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What a traced function's `isinstance` sees: the type that NumPy would have here."""
        if not self.builder.numpy_dtypes:
            return Tensor
        if self.weak:
            return float
        if self.form == "bool" and self.ndim == 0:
            return bool
        return np.ndarray if self.is_array else self.dtype.type

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.builder.core.type(self.id)[1])

    @property
    def dtype(self) -> DType:
        return to_numpy(self.builder.core.type(self.id)[0])

    @property
    def name(self) -> str:
        if self._is_asked():
            raise AttributeError("'numpy.ndarray' object has no attribute 'name'")
        return self.builder.core.tensor_name(self.id)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def _is_asked(self) -> bool:
        """Whether a traced function calls the caller."""
        caller = sys._getframe(2).f_code.co_filename
        return self.builder.numpy_dtypes and not caller.startswith((_PACKAGE, _NUMPY))

    def __hash__(self) -> int:
        if self._is_asked():
            if self.is_array:
                raise TypeError("unhashable type: 'numpy.ndarray'")
            self._needs_values()
        return object.__hash__(self)

    def __repr__(self) -> str:
        if self._is_asked():
            self._needs_values()
        name = f"{self.name}: " if self.name else ""
        return f"<Tensor {name}{format_type(self.dtype, self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # --- what needs data that is not there
    def __bool__(self) -> bool:
        unsupported(
            "this branches on the value of an array, but a program is traced for all values at "
            "once; use np.where(condition, a, b) instead of if, while, and, or, not"
        )

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        unsupported(
            "this needs the values of a traced array, where only shape and dtype are known; to "
            "pick from an array of outside, write np.take(table, x, axis=0) instead of table[x]"
        )

    def _needs_values(self, *args: object) -> NoReturn:
        unsupported("this needs the value of a traced array, where only shape and dtype are known")

    __float__ = __int__ = __complex__ = __index__ = __round__ = __trunc__ = _needs_values
    __divmod__ = __rdivmod__ = __floor__ = __ceil__ = __contains__ = __delitem__ = _needs_values
    __str__ = __format__ = __bytes__ = __copy__ = __deepcopy__ = __reduce_ex__ = _needs_values
    item = tolist = tobytes = _needs_values

    # --- writing, which gives the name of the array another value
    def is_view_of(self, other: Tensor) -> None:
        """Notes that this shares memory with another tensor."""
        root = other if other.root is None else other.root
        self.root = root
        if root.views is not None:
            root.views = [r for r in root.views if r() is not None] + [weakref.ref(self)]

    def overwrite(self, value: Tensor) -> Tensor:
        """Takes another value of the same shape, converted as NumPy's in-place operators do."""
        scalar = self.builder.numpy_dtypes and not self.is_array
        if scalar or self.views is None or any(r() is not None for r in self.views):
            self._in_place()
        if value.shape != self.shape or not np.can_cast(value.dtype, self.dtype, "same_kind"):
            self._in_place()
        self.id = cast(value, self.dtype).id
        return self

    def __setitem__(self, key: Object, value: Object) -> None:
        if self.views is None:
            self._in_place()
        self.overwrite(self.builder.with_item(self, key, value))

    def fill(self, value: Object) -> None:
        self[...] = value

    def _in_place(self, *args: object) -> NoReturn:
        unsupported(
            "this writes into an array in place that is an argument or that others share, or into "
            "a scalar, which a traced program cannot express; write x = x + y instead of x += y, "
            "and np.where or np.concatenate for parts"
        )

    sort = _in_place
    __iadd__, __isub__ = _in_place_operator(np.add), _in_place_operator(np.subtract)
    __imul__, __itruediv__ = _in_place_operator(np.multiply), _in_place_operator(np.true_divide)
    __imatmul__, __ipow__ = _in_place_operator(np.matmul), _in_place_operator(np.power)
    __ifloordiv__, __imod__ = _in_place_operator(np.floor_divide), _in_place_operator(np.remainder)
    __iand__, __ior__ = _in_place_operator(np.bitwise_and), _in_place_operator(np.bitwise_or)
    __ixor__ = _in_place_operator(np.bitwise_xor)

    # --- NumPy's protocols
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Value, **kwargs: Value) -> Value:
        return self.builder.apply_ufunc(ufunc, method, args, kwargs)

    def __array_function__(
        self, function: Function, types: object, args: Values, kwargs: Fields
    ) -> Value:
        return self.builder.apply_function(function, args, kwargs)

    def __getattr__(self, name: str) -> Value:
        return self.builder.array_attribute(self, name)

    # --- Python's operators are NumPy's ufuncs
    __add__, __radd__ = _operator(np.add)
    __sub__, __rsub__ = _operator(np.subtract)
    __mul__, __rmul__ = _operator(np.multiply)
    __truediv__, __rtruediv__ = _operator(np.true_divide)
    __floordiv__, __rfloordiv__ = _operator(np.floor_divide)
    __mod__, __rmod__ = _operator(np.remainder)
    __matmul__, __rmatmul__ = _operator(np.matmul)
    __pow__, __rpow__ = _operator(np.power)
    __and__, __rand__ = _operator(np.bitwise_and)
    __or__, __ror__ = _operator(np.bitwise_or)
    __xor__, __rxor__ = _operator(np.bitwise_xor)
    __lshift__, __rlshift__ = _operator(np.left_shift)
    __rshift__, __rrshift__ = _operator(np.right_shift)
    __lt__, __gt__ = _operator(np.less)[0], _operator(np.greater)[0]
    __le__, __ge__ = _operator(np.less_equal)[0], _operator(np.greater_equal)[0]
    __eq__ = _operator(np.equal)[0]  # type: ignore[assignment]
    __ne__ = _operator(np.not_equal)[0]  # type: ignore[assignment]

    __neg__, __pos__ = _unary_operator(np.negative), _unary_operator(np.positive)
    __abs__, __invert__ = _unary_operator(np.absolute), _unary_operator(np.invert)

    def __getitem__(self, key: Object) -> Tensor:
        return self.builder.item(self, key)


def _settable(name: str) -> property:
    """An attribute that NumPy lets one set."""
    known = vars(Tensor).get(name)
    return property(known.fget if known else lambda x: x.__getattr__(name), Tensor._in_place)


for _name in ("shape", "dtype", "strides", "real", "imag", "flat", "data"):
    setattr(Tensor, _name, _settable(_name))


def cast(x: Tensor, dtype: DTypeGiven) -> Tensor:
    """`x` converted to a dtype; itself if it has it already."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if dtype == np.bool_:
        return x.builder.emit("ne", [x, x.builder.const(0, x.dtype)])
    return x.builder.emit("cast", [x], {"dtype": dtype_name(dtype)})


class Builder:
    """What kernel and block graphs have in common: appending checked operators."""

    # What NumPy's protocols, attributes and indexing mean on its tensors: frontends/numpy.py.
    apply_ufunc: Callable[[np.ufunc, str, Values, Fields], Value]
    apply_function: Callable[[Function, Values, Fields], Value]
    array_attribute: Callable[[Tensor, str], Value]
    item: Callable[[Tensor, Value], Tensor]
    with_item: Callable[[Tensor, Value, Value], Tensor]

    def __init__(self, core: _core.Graph) -> None:
        self.core = core
        # NumPy's exact result dtypes (its bf16 matmul yields f32); else floats stay as they are.
        self.numpy_dtypes = False
        self.calls: set[str] = set()  # NumPy's functions, methods and ufuncs that were applied
        # How tensors were made, where that is kept (while tracing): operator, operands, attributes.
        # Tensors that are used as indices, and the extents of the axes that they index.
        self.indices: list[tuple[int, Any]] = []
        self.made: dict[int, tuple[str, tuple[Tensor, ...], Fields]] = {}

    def emit(
        self, op: str, inputs: Sequence[Tensor] = (), attrs: Fields | None = None, name: str = ""
    ) -> Tensor:
        """Appends one operator of the core by its text name; errors name the user's line."""
        for t in inputs:
            if t.builder is not self:
                bad_input(f"{op}: {t!r} belongs to another graph")
        try:
            return Tensor(self, self.core.add(op, [t.id for t in inputs], attrs or {}, name))
        except Error as error:
            raise self._located(error) from None

    @staticmethod
    def _located(error: Error) -> Error:
        if error.location is not None:
            return error
        return type(error)(error.message, user_location())

    def const(self, value: Scalar, dtype: object = "f32", shape: Sequence[Dim] = ()) -> Tensor:
        """A tensor whose elements all have one value, kept exactly (0.1 is 1/10)."""
        name = dtype_name(dtype)
        target = to_numpy(name)
        exact: bool | int | float | str
        if target == np.bool_:
            exact = int(bool(value))
        elif target.kind in "iu":
            exact = int(value)
            bounds = np.iinfo(target)
            if exact != value or not bounds.min <= exact <= bounds.max:
                bad_input(f"the constant {value} does not fit {name}")
        elif isinstance(value, np.floating) and not isinstance(value, np.float64):
            exact = str(value)  # shortest text that rounds to it: what the user wrote
        elif isinstance(value, (int, np.integer)):
            exact = int(value) if abs(int(value)) < 2**62 else float(value)
        else:
            exact = float(value)
        return self.emit("const", [], {"value": exact, "type": (name, list(shape))})

    def constant_array(self, array: Array) -> Tensor:
        """An array among the operands; tracing turns it into an argument (frontends/numpy.py)."""
        if array.ndim == 0:
            return self.const(array.item(), array.dtype)
        bad_input("an array of values cannot be part of a program: declare it as an input")
