"""What code does that a trace could not follow: read from its instructions, before it runs."""

from __future__ import annotations

import builtins
import dis
import functools
from types import CodeType, ModuleType

import numpy as np

from tessera.frontends.constants import NOTHING
from tessera.frontends.number import Number
from tessera.tensor import Tensor
from tessera.types import Fields, Value

# What a stand-in has otherwise.
REFUSED_ATTRIBUTES = {
    "tofile", "dump", "ctypes", "flags", "setflags", "readonly", "__array_interface__", "__dict__",
    "f_locals", "__class__", "__doc__", "__annotations__", "__module__", "__qualname__",
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def refused_code(code: CodeType) -> str:
    """What code does that no stand-in can see; "" if nothing."""
    for i in dis.get_instructions(code):
        if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM") and (
            i.argval in REFUSED_ATTRIBUTES or _is_stand_ins(i.argval)
        ):
            return f"uses the attribute {i.argval}, which programs cannot follow"
        if i.opname == "MATCH_CLASS":
            return "matches classes, which stand-ins may not be of"
    return next(filter(None, map(refused_code, _inner(code))), "")


@functools.lru_cache(maxsize=4096)
def handles_exceptions(code: CodeType) -> bool:
    """Whether it, or what it defines, may go on after one: try, with, finalizers."""
    handler = any(i.opname == "PUSH_EXC_INFO" for i in dis.get_instructions(code))
    return handler or "__del__" in code.co_names or any(map(handles_exceptions, _inner(code)))


def _is_stand_ins(name: str) -> bool:
    """Whether it is a special method, which an array's stand-in may have and a number not."""
    return name.startswith("__") and name != "__init__" and name in {*vars(Tensor), *vars(Number)}


def _inner(code: CodeType) -> list[CodeType]:
    return [c for c in code.co_consts if isinstance(c, CodeType)]


@functools.lru_cache(maxsize=4096)
def _compared(code: CodeType) -> tuple[tuple[str, ...] | None, ...]:
    """What `is` compares with: names as in `a.b`, none for constants, None for all else."""
    found: list[tuple[str, ...] | None] = []
    names: tuple[str, ...] | None = None  # of what was loaded last
    for i in dis.get_instructions(code):
        if i.opname == "IS_OP":
            found.append(names)
        elif i.opname == "LOAD_CONST":
            names = ()
        elif i.opname == "LOAD_GLOBAL":
            names = (i.argval,)
        elif i.opname == "LOAD_ATTR":
            names = (*names, i.argval) if names else None
        elif i.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL"):
            names = None
    return (*found, *(n for c in _inner(code) for n in _compared(c)))


def confuses_objects(code: CodeType, scope: Fields) -> str:
    """Whether it asks which of two objects something is, where stand-ins may answer otherwise:
    arrays and containers. None, classes and other constants can be told."""
    for names in _compared(code):
        value: Value = None
        if names is None:
            value = NOTHING
        elif names:
            value = scope.get(names[0], vars(builtins).get(names[0], NOTHING))
            for name in names[1:]:
                inside = isinstance(value, (ModuleType, type))
                value = vars(value).get(name, NOTHING) if inside else NOTHING
        if value is NOTHING or isinstance(value, (np.ndarray, list, dict, set, tuple)):
            return "asks whether two variables are one object, of which programs know nothing"
    return ""
