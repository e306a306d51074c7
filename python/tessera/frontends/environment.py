"""What a trace read from outside of its arguments, and whether it is still as it was."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from tessera.frontends.constants import CONSTANTS, NOTHING
from tessera.types import Arguments, Array, DType, Fields, Object, Record, Value, is_plain_dtype

Guard = Arguments  # (scope, name, value), or (scope, name) where there was nothing
Form = tuple[tuple[int, ...], DType, bool, tuple[int, ...]]
_WIDEST = 1 << 16  # bytes from the first to the last element of an array whose values are kept


class Environment:
    """What a trace read from outside, as it was: as long as it is `unchanged`, the trace holds."""

    def __init__(self) -> None:
        self._guards: dict[tuple[int, str], Guard] = {}
        self._containers: list[tuple[Value, Value]] = []
        self._arrays: list[tuple[Array, Form]] = []
        self.contents: list[tuple[Array, Array]] = []
        self._printing: Fields | None = None  # how NumPy makes text of such arrays
        self.passed: set[int] = set()  # identities of arrays that each call passes, and looks at

    def become(self, other: Environment) -> None:
        """Takes what another has recorded."""
        vars(self).update(vars(other))

    def guard(self, scope: Object, name: str, value: Object = NOTHING) -> None:
        """Of a dict the entry, of others the attribute; no value: there was none."""
        entry = (scope, name) if value is NOTHING else (scope, name, value)
        self._guards.setdefault((id(scope), name), entry)

    def watch(self, value: Value) -> None:
        """A container whose entries must stay the same objects, or an array its form."""
        if isinstance(value, np.ndarray):
            self._arrays.append((value, _form(value)))
        else:
            self._containers.append((value, value.copy()))

    def watch_content(self, array: Array, copy: Array) -> None:
        self.contents.append((array, copy))
        self._printing = np.get_printoptions()

    def arrays(self) -> list[Array]:
        """The arrays among what was read."""
        return [array for array, _ in (*self._arrays, *self.contents)]

    def unchanged(self) -> bool:
        """Whether everything is still as it was."""
        return (
            all(is_same(_now(*g[:2]), g[2] if len(g) > 2 else NOTHING) for g in self.guards())
            and all(_same_entries(now, before) for now, before in self._containers)
            and all(_form(array) == form for array, form in self._arrays)
            and self.same_contents()
            and (not self.contents or np.get_printoptions() == self._printing)
        )

    def same_contents(self) -> bool:
        """Whether the arrays of `watch_content` are as their copies."""
        return all(
            _form(now) == _form(copy) and now.tobytes() == copy.tobytes()
            for now, copy in self.contents
        )

    def guards(self) -> list[Guard]:
        """(scope, name, value), or (scope, name) where there was nothing; see `guard`."""
        return list(self._guards.values())

    def empty(self) -> list[Record]:
        """Dicts that must stay empty: the attributes of most functions."""
        return [now for now, before in self._containers if type(now) is dict and not before]

    @property
    def needs_more(self) -> bool:
        """Whether guards, empty dicts, and the forms of arrays that a call looks at are not all."""
        apart = any(id(array) not in self.passed for array, _ in self._arrays)
        return bool(len(self._containers) > len(self.empty()) or self.contents or apart)


def _form(array: Array) -> Form:
    return (array.shape, array.dtype, is_plain_dtype(array.dtype), array.strides)


def _now(scope: Object, name: str) -> Value:
    if type(scope) is dict:
        return scope.get(name, NOTHING)
    try:
        return getattr(scope, name, NOTHING)
    except ValueError:  # an empty cell
        return NOTHING


def _same_entries(now: Value, before: Value) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, (dict, MappingProxyType)):
        pairs = zip(now.items(), before.items(), strict=True)
        return all(is_same(k, j) and is_same(v, w) for (k, v), (j, w) in pairs)
    if isinstance(now, list):
        return all(map(is_same, now, before))
    return list(now) == list(before)  # sets, which have an order too


def is_same(now: Object, before: Object) -> bool:
    """Whether it is the same object, or a plain constant of the same value; -0.0 is not 0.0."""
    if now is before:
        return True
    return type(now) is type(before) and type(now) in CONSTANTS and repr(now) == repr(before)


def frozen_copy(array: Array) -> Array | None:
    """A copy that cannot be written to, laid out in memory like the array; None where it is too
    wide."""
    if array.dtype.hasobject:
        return None
    copy = array.copy(order="K")
    if array.base is not None:
        low, high = np.lib.array_utils.byte_bounds(array)
        if high - low > _WIDEST:
            return None
        start = array.__array_interface__["data"][0] - low
        copy = np.ndarray(array.shape, array.dtype, np.empty(high - low, np.uint8), start,
                          array.strides)  # fmt: skip
        copy[...] = array
    copy.flags.writeable = False
    return copy
