"""Direct calls: how `_core.Call` recognises the arguments of a call (python/bindings/call.cpp)."""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Sequence

import numpy as np

from tessera import _core
from tessera.frontends.environment import Environment
from tessera.frontends.trace import FLOAT_SCALARS
from tessera.types import Arguments, Array, Fields, Function, Object, Value, Values

# Of an argument: its position, or its name; of an entry of a list, tuple or dict: the container's
# number, its index or key, and whether it is a key.
Where = int | str | tuple[int, Value, bool]
Slot = Arguments  # kind, where, value, dtype, shape, layout and, of arrays, strides
_CONSTANTS = (bool, int, float, str, type(None))
_FIXED = tuple(np.dtype(c).type for c in "?bhilqBHILQefd")  # scalars whose value follows their head


class _Filters(list[Value]):
    """The filters of warnings that were found harmless; calls look whether they are as they were
    without running Python code."""

    same: Value = None


_WARNED_OF = ("divide by zero", "overflow", "underflow", "invalid value")
_filters = _Filters()


def quiet_now() -> None:
    """Notes that NumPy reports floating-point errors in no way that programs do not."""
    _filters[:] = warnings.filters
    _Filters.same = property(warnings.filters.__eq__)  # of the list, which may be another one
    _core.Dispatch.quiet_now()


@functools.cache
def _warnings() -> list[str]:
    """What NumPy warns of in computing, by any of its functions."""
    names = [n for n, f in vars(np).items() if isinstance(f, np.ufunc)]
    names += [f"scalar {n}" for n in ("add", "subtract", "multiply", "divide", "power", "negative")]
    places = ["", *(f" in {n}" for n in (*names, "cast", "dot", "reduce", "det", "norm"))]
    return [f"{what} encountered{place}" for what in _WARNED_OF for place in places]


def errors_wanted() -> bool:
    """Whether NumPy is to raise or report floating-point errors, which only the original does."""
    if any(how not in ("ignore", "warn") for how in np.geterr().values()):
        return True
    for action, message, category, module, line in warnings.filters:
        if issubclass(RuntimeWarning, category):
            if action == "error" and (message is None or any(map(message.match, _warnings()))):
                return True
            if message is None and module is None and line == 0:
                break
    quiet_now()
    return False


def layout(value: Object) -> int:
    """0: row-major (and whatever is no array), 1: column-major, 2: neither."""
    if not isinstance(value, np.ndarray):
        return 0
    flags = value.flags
    return 2 if not flags.aligned else 0 if flags.c_contiguous else 1 if flags.f_contiguous else 2


def call_order(function: Function, args: Arguments, kwargs: Fields) -> list[Where] | None:
    """Where a call's arguments are, in the order of the program's inputs; None if unknown."""
    slots: dict[str, Where] = {name: name for name in kwargs}
    try:
        bound = inspect.signature(function).bind(*range(len(args)), **slots)
    except (TypeError, ValueError):
        return None if kwargs else list(range(len(args)))
    return [*bound.args, *bound.kwargs.values()]


def slots(
    args: Values,
    kwargs: Fields,
    order: Sequence[Where] | None,
    floats: bool = False,
    extra: Sequence[Array] = (),
) -> list[Slot] | None:
    """What such arguments look like; None where some are neither plain arrays nor constants.

    `floats`: floats are inputs of the program too; `extra`: its last inputs, which stay.
    """
    if order is None:
        return None
    found: list[Slot] = []
    containers = itertools.count()

    def add(where: Where, value: Value) -> bool:
        kind: type = type(value)
        if kind is np.ndarray:
            found.append(_array(where, None, value))
        elif kind is float and floats:
            found.append(("float", where, None, None, [], 0))
        elif kind in _CONSTANTS:
            found.append(("constant", where, value, None, [], 0))
        elif kind in _FIXED:
            name = "scalar" if floats and kind in FLOAT_SCALARS else "constant"
            found.append((name, where, value, value.dtype, [], 0))
        elif kind in (dict, list) or issubclass(kind, tuple):
            number = next(containers)
            found.append(("container", where, kind, None, [len(value)], 0))
            named = kind is dict
            entries = value.items() if kind is dict else enumerate(value)
            return all(
                (not named or type(k) in _CONSTANTS) and add((number, k, named), v)
                for k, v in entries
            )
        else:
            return False
        return True

    if not all(add(w, args[w] if isinstance(w, int) else kwargs[str(w)]) for w in order):
        return None
    if any(type(a) is not np.ndarray for a in extra):
        return None
    return found + [_array(None, a, a) for a in extra]


def _array(where: Where | None, fixed: Array | None, value: Array) -> Slot:
    how = layout(value)
    strides = list(value.strides) if how == 2 else []
    return ("array", where, fixed, value.dtype, list(value.shape), how, strides)


def direct_call(known: Sequence[Slot] | None, environment: Environment | None) -> _core.Call | None:
    """A call of arguments like these while nothing outside changes; None where there is none.

    Without an environment, as in races, nothing else is asked either: not how errors are reported.
    """
    if known is None:
        return None
    guards: list[Arguments] = []
    if environment is not None:
        empty = [(entries, None) for entries in environment.empty()]
        guards = [(_filters, "same", True), *environment.guards(), *empty]
    unchanged = (
        environment.unchanged if environment is not None and environment.needs_more else None
    )
    try:
        return _core.Call(list(known), guards, unchanged)
    except ValueError:  # too many arrays, or a NumPy whose arrays look otherwise
        return None
