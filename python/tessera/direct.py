"""Direct calls: how `_core.Call` recognises the arguments of a call (python/bindings/call.cpp)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera import _core
from tessera.frontends.trace import FLOAT_SCALARS, Array, Environment

Where = int | str  # of an argument: its position, or its name
Slot = tuple[str, Where | None, Any, Any, list[int], int]
_CONSTANTS = (bool, int, float, str, type(None))
_FIXED = tuple(np.dtype(c).type for c in "?bhilqBHILQefd")  # scalars whose value follows their head


def layout(value: Any) -> int:
    """0: row-major (and whatever is no array), 1: column-major, 2: neither."""
    if not isinstance(value, np.ndarray):
        return 0
    flags = value.flags
    return 2 if not flags.aligned else 0 if flags.c_contiguous else 1 if flags.f_contiguous else 2


def call_order(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Where] | None:
    """Where a call's arguments are, in the order of the program's inputs.

    None where an argument holds arrays inside a list, tuple or dict.
    """
    values: list[Any] = [*args, *kwargs.values()]
    if any(isinstance(v, (list, tuple, dict)) for v in values):
        return None
    slots: dict[str, Where] = {name: name for name in kwargs}
    try:
        bound = inspect.signature(function).bind(*range(len(args)), **slots)
    except (TypeError, ValueError):
        return None if kwargs else list(range(len(args)))
    return [*bound.args, *bound.kwargs.values()]


def slots(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
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
    for where in order:
        value = args[where] if isinstance(where, int) else kwargs[where]
        if type(value) is np.ndarray:
            found.append(_array(where, None, value))
        elif type(value) is float and floats:
            found.append(("float", where, None, None, [], 0))
        elif type(value) in _CONSTANTS:
            found.append(("constant", where, value, None, [], 0))
        elif type(value) in _FIXED:
            kind = "scalar" if floats and type(value) in FLOAT_SCALARS else "constant"
            found.append((kind, where, value, value.dtype, [], 0))
        else:
            return None
    if any(type(a) is not np.ndarray for a in extra):
        return None
    return found + [_array(None, a, a) for a in extra]


def _array(where: Where | None, fixed: Array | None, value: Array) -> Slot:
    return ("array", where, fixed, value.dtype, list(value.shape), layout(value))


def direct_call(known: Sequence[Slot] | None, environment: Environment | None) -> Any:
    """A call of arguments like these while nothing outside changes; None where there is none."""
    if known is None:
        return None
    guards: list[Any] | None = [] if environment is None else environment.guards()
    unchanged = environment.unchanged if environment is not None and guards is None else None
    try:
        return _core.Call(list(known), guards or [], unchanged)
    except ValueError:  # too many arrays, or a NumPy whose arrays look otherwise
        return None
