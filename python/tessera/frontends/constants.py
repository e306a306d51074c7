"""Which values a trace may use as they are: they cannot change, and asking them runs no code that
has effects."""

from __future__ import annotations

import enum
import operator
import sys
from collections.abc import Collection, Iterator
from types import BuiltinFunctionType, FunctionType

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


# --- functions and classes

PURE = {
    "numpy", "math", "cmath", "operator", "_operator", "functools", "_functools", "itertools",
    "ml_dtypes", "tessera", "typing", "numbers", "collections", "_collections",
}  # fmt: skip
_BUILTINS = """
    abs all any ascii bin bool bytes callable chr classmethod complex dict divmod enumerate filter
    float format frozenset getattr hasattr hex int isinstance issubclass iter len list map max min
    next object oct ord pow property range repr reversed round set setattr delattr slice sorted
    staticmethod str sum tuple zip __build_class__ NotImplemented Ellipsis __debug__ True False None
"""
_IMPURE_NUMPY = """
    save savez savez_compressed savetxt load loadtxt genfromtxt fromfile fromregex memmap seterr
    seterrcall geterr geterrcall setbufsize getbufsize set_printoptions get_printoptions
    printoptions may_share_memory shares_memory show_config show_runtime info datetime64 require
"""
_REFUSED = {id(getattr(np, n)) for n in _IMPURE_NUMPY.split() if hasattr(np, n)} | {
    # memory outside of an array, files, which of two objects it is, names of attributes
    id(f) for f in (np.lib.stride_tricks.as_strided, np.lib.format.open_memmap, operator.is_,
                    operator.is_not, operator.attrgetter, operator.methodcaller)
}  # fmt: skip


def _is_pure(value: Object) -> bool:
    module = getattr(value, "__module__", None)
    if type(value) is FunctionType:  # functools.wraps copies the other
        module = value.__globals__.get("__name__")
    if module is None and isinstance(value, BuiltinFunctionType):
        module = getattr(value.__self__, "__name__", None)
    return (
        isinstance(module, str)
        and module.partition(".")[0] in PURE
        and not module.startswith(("numpy.random", "numpy.testing"))
        and id(value) not in _REFUSED
    )


_PLAIN_CALLS = (type, BuiltinFunctionType, type(np.sum), operator.itemgetter)


def is_known(value: Object) -> bool:
    """Whether it is a function or class of NumPy or plain Python, and none that holds others'."""
    if type(value) is FunctionType:
        return _is_pure(value) and value.__closure__ is None
    return isinstance(value, _PLAIN_CALLS) and _is_pure(value)


def is_numpys(ufunc: np.ufunc) -> bool:
    """Whether it is NumPy's or SciPy's own, and not one that somebody has made and named so."""
    found = (getattr(sys.modules.get(m), ufunc.__name__, None) for m in ("numpy", "scipy.special"))
    return any(f is ufunc for f in found)


def is_optimized(value: Object) -> bool:
    return bool(getattr(type(value), "is_tessera_function", False))


def is_harmless(name: str, value: Object) -> bool:
    """Whether it is Python's own, which nobody has put there, and has no effects."""
    exception = isinstance(value, type) and issubclass(value, BaseException)
    own = getattr(value, "__module__", "builtins") == "builtins"
    return own and (exception or name in _BUILTINS.split())


def is_plain_class(value: Object) -> bool:
    """Whether calling it does nothing but make a value: builtins' plain types, named tuples."""
    return isinstance(value, type) and (
        value in (*CONSTANTS, slice)
        or is_plain_named_tuple(value)
        or is_harmless(value.__name__, value)
    )
