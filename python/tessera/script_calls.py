"""What a script's own calls say of its functions: their arguments, seen while it runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

from tessera.frontends.traced import Spec
from tessera.tensor import Tensor
from tessera.types import Function, Object, Record, Value, dtype_name


class Seen(BaseException):
    """Ends a script: all that was asked of it is known."""


class OwnCalls:
    """The arguments that functions of a file are first called with, arrays as their types."""

    def __init__(self, path: Path) -> None:
        self._files = (str(path), str(path.absolute()))
        self._seen: dict[tuple[str, int], Record] = {}
        self._awaited: CodeType | None = None

    def of(self, function: Function) -> Record:
        """Those of a function by name; none where it was not called."""
        code = getattr(function, "__code__", None)
        return self._seen.get(_place(code), {}) if code else {}

    @contextlib.contextmanager
    def watch(self, awaited: Function | None = None) -> Iterator[None]:
        """Sees the calls that are made in this thread meanwhile; the first of `awaited` ends it,
        before anything of it runs."""
        self._awaited = getattr(awaited, "__code__", None)
        before = sys.gettrace()
        if before is None:  # else a debugger's
            sys.settrace(self._see)
        try:
            yield
        except Seen:
            pass
        finally:
            sys.settrace(before)

    def _see(self, frame: FrameType, event: str, _: Object) -> None:
        code = frame.f_code
        if event != "call" or code.co_filename not in self._files or _place(code) in self._seen:
            return
        if any(isinstance(x, Tensor) for x in frame.f_locals.values()):
            return  # a trace, of a function that @ts.optimize decorates
        self._seen[_place(code)] = {name: _type(x) for name, x in frame.f_locals.items()}
        if self._awaited is not None and _place(code) == _place(self._awaited):
            raise Seen


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _type(value: Object) -> Value:
    if type(value) is not np.ndarray:
        return value
    with contextlib.suppress(Exception):  # of a dtype that is not ours: said by who uses it
        return Spec(dtype_name(value.dtype), value.shape)
    return value
