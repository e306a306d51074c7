"""The graph that a traced function builds: arrays met on the way become arguments or constants."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence

import numpy as np

from tessera.clock import Clock
from tessera.graph import Graph
from tessera.ops.operands import iota
from tessera.ops.shape import broadcast_to
from tessera.tensor import Tensor, cast, unsupported
from tessera.types import Array, Dim, Fields, Value, check_shape, dtype_name, to_numpy


class TracingGraph(Graph):
    """A graph that turns arrays met on the way into further arguments."""

    def __init__(self, name: str, seconds: float, clock: Clock) -> None:
        super().__init__(name)
        self._clock = clock
        self.numpy_dtypes = True
        self._until = time.thread_time() + seconds
        self.captured: list[Array] = []  # from outside, or made inside
        self.forms: list[str] = []  # of the outputs, see Tensor
        self.handles: dict[int, Array] = {}  # arrays from outside by the identity of their tensors
        self._tensors: dict[Hashable, Tensor] = {}
        self._known: dict[str, Tensor] = {}

    def emit(
        self, op: str, inputs: Sequence[Tensor] = (), attrs: Fields | None = None, name: str = ""
    ) -> Tensor:
        """Appends an operator unless the same one is already there."""
        key = f"{op} {[t.id for t in inputs]} {attrs}"
        if key not in self._known:
            late = time.thread_time() > self._until or not self._clock.left()
            if len(self._known) > _RECORDED and late:
                unsupported(
                    f"it has more than {len(self._known)} steps, which take too long to record; "
                    "write loops over elements as array operations"
                )
            self._known[key] = super().emit(op, inputs, attrs, name)
            # Handles of our own: those of the function die, and may be written to.
            operands = tuple(Tensor(self, t.id) for t in inputs)
            self.made[self._known[key].id] = (op, operands, attrs or {})
        return self._known[key]

    def const(self, value: Value, dtype: object = "f32", shape: Sequence[Dim] = ()) -> Tensor:
        """A constant; -0.0, which rewriting would take for 0, is data instead."""
        if isinstance(value, (float, np.floating)):
            self.keeps_nan |= not math.isfinite(value)
            kind = to_numpy(dtype_name(dtype))
            if value == 0 and math.copysign(1, value) < 0 and kind.kind == "f":
                self.keeps_nan = True
                if kind not in self._tensors:
                    self._tensors[kind] = self._data(np.array(value, kind))
                zero = self._tensors[kind]
                return broadcast_to(zero, shape) if shape else zero
        return super().const(value, dtype, shape)

    def outer(self, array: Array) -> Tensor:
        """An array from outside, as one more argument."""
        tensor = self.input(f"outer{len(self.captured)}", array.shape, array.dtype)
        self.captured.append(array)
        self.handles[id(tensor)] = array
        return tensor

    def constant_array(self, array: Array) -> Tensor:
        """An array that the function has made, as it is now."""
        dtype_name(array.dtype)
        check_shape(array.shape, "an array used by the program")
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._tensors:
            self._tensors[key] = self._fixed(array.copy())
        return self._tensors[key]

    def _fixed(self, array: Array) -> Tensor:
        """An array that the function makes itself: a splat, a count, a triangle, a diagonal on a
        ground (`np.eye(n) - 1 / n`), else data."""
        first = array.reshape(-1)[0]
        if array.tobytes() == first.tobytes() * array.size:
            return self.const(first, array.dtype, array.shape)
        # 0, 1, 2, … along one axis each.
        counted: Sequence[Array] = np.indices(array.shape, sparse=True)
        for axis, places in enumerate(counted):
            if np.array_equal(array, np.broadcast_to(places, array.shape)):
                return iota(self, axis, array.shape, dtype_name(array.dtype))
        if array.ndim == 2 and array.shape[0] == array.shape[1]:
            rows, columns = counted
            for op, compare in (("eq", np.equal), ("ge", np.greater_equal), ("le", np.less_equal)):
                if np.array_equal(array, compare(rows, columns)):
                    return cast(self._places_compared(op, array.shape), array.dtype)
            if len(array) > 1 and _is_diagonal_and_rest(array):
                return self._diagonal_and_rest(array)
        return self._data(array)

    def _data(self, array: Array) -> Tensor:
        self.captured.append(array)
        return self.input(f"inner{len(self.captured) - 1}", array.shape, array.dtype)

    def _diagonal_and_rest(self, array: Array) -> Tensor:
        """As a multiple of the unit matrix and a number, where that gives the same values."""
        diagonal, rest = array[0, :2]
        unit = self._places_compared("eq", array.shape)
        if array.dtype.kind in "iuf":
            with np.errstate(all="ignore"):
                span = array.dtype.type(diagonal - rest)
                exact = array.dtype.type(span + rest) == diagonal
            if exact:
                matrix = cast(unit, array.dtype)
                if span != 1:
                    matrix = self.emit("mul", [matrix, self.const(span, array.dtype)])
                return self.emit("add", [matrix, self.const(rest, array.dtype)])
        values = [self.const(v, array.dtype) for v in (diagonal, rest)]
        return self.emit("where", [unit, *values])

    def _places_compared(self, op: str, shape: tuple[int, ...]) -> Tensor:
        """Rows with columns."""
        return self.emit(op, [iota(self, axis, shape) for axis in (0, 1)])


def _is_diagonal_and_rest(array: Array) -> bool:
    """Whether a square array has one value on its diagonal and one elsewhere, both finite."""
    expected = np.full_like(array, array[0, 1])
    np.fill_diagonal(expected, array[0, 0])
    finite = array.dtype.kind in "biu" or bool(np.isfinite(array[0, :2]).all())
    return finite and np.array_equal(array, expected)


_RECORDED = 500  # operators that are recorded whatever time they take
