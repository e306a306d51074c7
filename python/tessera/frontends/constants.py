"""Which values a trace may use as they are: they cannot change, and asking them runs no code."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from types import FunctionType

import numpy as np

from tessera.types import Object, Record, Value

CONSTANTS = (
    bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range,
)  # fmt: skip
NOTHING: Value = object()
_MAKERS = ("enum", "collections", "namedtuple")  # modules whose code classes have without asking


def is_constant(value: Value) -> bool:
    """Not of a class derived from these, which may have attributes; not a row of a structured
    array, which is a view."""
    kind = type(value)
    if kind is slice:
        return all(map(is_constant, (value.start, value.stop, value.step)))
    if isinstance(value, np.generic):
        return kind.__module__ == "numpy" and not isinstance(value, np.void)
    if isinstance(value, enum.Enum):
        return is_plain_enum(kind)
    return kind in CONSTANTS or isinstance(value, np.dtype)


def is_key(value: Object) -> bool:
    """Whether it may be an entry's key."""
    return is_constant(value) or (type(value) is tuple and all(map(is_key, value)))


def is_plain_enum(kind: type) -> bool:
    """Whether its members are names of constants and nothing else."""
    if type(kind) is not enum.EnumMeta:
        return False
    members: Record = dict(kind.__members__)
    own = [c for c in kind.__mro__ if c.__module__ not in ("enum", "builtins")]
    return all(_has_only(c, members) for c in own) and all(
        is_key(m._value_) and all(n.startswith("_") for n in vars(m)) for m in members.values()
    )


def is_plain_named_tuple(kind: type) -> bool:
    """Whether collections or typing made it, without methods."""
    fields = getattr(kind, "_fields", None)
    made = issubclass(kind, tuple) and type(kind) is type and "__new__" in vars(kind)
    return made and type(fields) is tuple and _has_only(kind, fields)


def is_plain_container(value: Value) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(is_key, value))
    return kind in (list, tuple) or (issubclass(kind, tuple) and is_plain_named_tuple(kind))


def _has_only(kind: type, names: Collection[str]) -> bool:
    """Whether a class has these names, and others and code only as `enum` and `collections` make
    them."""
    return all(n in names or n.startswith("_") for n in vars(kind)) and all(
        str(f.__globals__.get("__name__")).partition("_")[0] in _MAKERS for f in _code_of(kind)
    )


def _code_of(kind: type) -> Iterator[FunctionType]:
    for value in vars(kind).values():
        found = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if type(found) is FunctionType:
            yield found


def found(kind: type, name: str) -> Value:
    """What the classes of an object have by a name."""
    for c in kind.__mro__:
        if c is not object and name in vars(c):
            return vars(c)[name]
    return object.__getattribute__ if name == "__getattribute__" else NOTHING
