"""data-apis' array-API test suite through the tracer and both executors.

`python -m bench.array_api SUITE [OUT]` runs the clone of github.com/data-apis/array-api-tests in
the folder SUITE (with its submodule; it wants pytest-json-report and ndindex) twice: on NumPy, and
on `xp`, which is NumPy whose every call of a function or operator of arrays is also traced,
interpreted and compiled, and raises where a result differs: in its type, dtype, shape, special
values, or by more than rounding. OUT gets the counts. EXAMPLES (20) are hypothesis' examples of
each test, COMPILED (12) the most programs of one function that are compiled; the others are
interpreted only.
"""

from __future__ import annotations

import atexit
import functools
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tessera import _core
from tessera.call_forms import FunctionCall
from tessera.errors import Error
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Traced
from tessera.machine import machine_description
from tessera.runner import Runner

_EXAMPLES = os.environ.get("EXAMPLES", "20")
_MOST_COMPILED = int(os.environ.get("COMPILED", "12"))
_OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_",
              "xor", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne"]  # fmt: skip
_UNDEFINED = {"empty_like"}  # of which only dtype and shape are known
COUNTS: Counter[str] = Counter()
FALLBACKS: Counter[str] = Counter()
DIFFERENCES: list[str] = []
RUNNERS: dict[str, dict[str, Runner]] = {}


class Array(np.ndarray[Any, Any]):
    """An array whose operators are checked."""


class Checked:
    """A module of NumPy whose functions are checked."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.__name__ = module.__name__

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, ModuleType):
            return Checked(value)
        if callable(value) and not isinstance(value, type):
            value = _checked(value, name)
        setattr(self, name, value)
        return value


def _checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _plain(args), _plain(kwargs)
        try:
            result: Any = function(*args, **kwargs)
        except Exception as error:
            compare(name, function, args, kwargs, error)
            raise
        compare(name, function, args, kwargs, result)
        return _watched(result)

    return called


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value.view(np.ndarray) if isinstance(value, Array) else value


def _watched(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_watched, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_watched, value))
    return value.view(Array) if type(value) is np.ndarray else value


def _operator(function: Callable[..., Any], name: str, reflected: bool) -> Callable[..., Any]:
    checked = _checked(function, name)
    if reflected:
        return lambda self, other: checked(other, self)
    return lambda self, *others: checked(self, *others)


for _name in _OPERATORS:
    _method = f"__{_name.strip('_')}__"
    setattr(Array, _method, _operator(getattr(operator, _name), _method, False))
    if _name in _OPERATORS[:13]:
        _other = f"__r{_name.strip('_')}__"
        setattr(Array, _other, _operator(getattr(operator, _name), _other, True))
for _name in ("neg", "pos", "abs", "invert", "getitem"):
    setattr(Array, f"__{_name}__", _operator(getattr(operator, _name), f"__{_name}__", False))


def compare(name: str, function: Callable[..., Any], args: Any, kwargs: Any, expected: Any) -> None:
    """Runs a call as a program and notes where it differs."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    COUNTS["calls"] += 1
    try:
        with np.errstate(all="ignore"):
            traced = trace_call(call, args, kwargs)
    except Error as error:
        if "none of its arguments is an array" in error.message:
            COUNTS["without arrays"] += 1  # nothing to optimise
            return
        COUNTS["fallbacks"] += 1
        FALLBACKS[f"{name}: {error.message.partition(';')[0]}"] += 1
        return
    arrays = [*traced.arguments, *traced.extra]
    if traced.check is not None and not traced.check(arrays):
        COUNTS["fallbacks"] += 1
        FALLBACKS[f"{name}: an index out of range"] += 1
        return
    COUNTS["traced"] += 1
    for executor, run in (("interpreter", traced.graph.run), ("compiled", _compiled(name, traced))):
        if run is None:
            continue
        COUNTS[executor] += 1
        if isinstance(expected, Exception):
            why = f"gives a result instead of {expected!r}"
        else:
            made = FunctionCall(call, traced).result(list(run(*arrays)))
            why = difference(made, expected, values=name not in _UNDEFINED)
        if why:
            text = f"{name}{args}{kwargs or ''}: {executor}: {why}"
            DIFFERENCES.append(text)
            raise AssertionError(text)


def _compiled(name: str, traced: Traced) -> Callable[..., Any] | None:
    known = RUNNERS.setdefault(name, {})
    text = str(traced.graph)
    if text not in known:
        if len(known) >= _MOST_COMPILED:
            return None
        known[text] = Runner(_core.compile(traced.graph.core), list(traced.graph.input_types()))
    return lambda *arrays: known[text](arrays)


def difference(ours: Any, theirs: Any, values: bool = True) -> str:
    """Why two results are not the same; empty where they are. `values` count."""
    if type(ours) is not type(theirs):
        return f"{type(ours).__name__} instead of {type(theirs).__name__}"
    if isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{len(ours)} results instead of {len(theirs)}"
        return next(filter(None, map(difference, ours, theirs)), "")
    a, b = np.asarray(ours), np.asarray(theirs)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
    if not values:
        return ""
    if b.dtype.kind != "f":
        return "" if np.array_equal(a, b) else f"{a} instead of {b}"
    eps, tiny = np.finfo(b.dtype).eps, np.finfo(b.dtype).tiny
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(b[np.isfinite(b)]), initial=0)
        near = np.isclose(a, b, rtol=64 * eps, atol=64 * eps * largest + tiny, equal_nan=True)
        special = np.isfinite(a) == np.isfinite(b)
        zeros = (b != 0) | (a != 0) | (np.signbit(a) == np.signbit(b))
    return "" if (near & special & zeros).all() else f"{a} instead of {b}"


xp = Checked(np)


# --- the suite ----------------------------------------------------------------------------------


def _start(suite: Path, module: str, rest: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Runs the suite on a module; its report comes to a folder, its output to standard error."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "array_api_tests", "-q", "--disable-deadline",
         "--hypothesis-derandomize", f"--max-examples={_EXAMPLES}", "-p", "no:cacheprovider",
         "-p", "no:xdist", "--tb=no", "--json-report",
         "--json-report-omit", "collectors", "keywords", "log", "streams", "warnings",
         f"--json-report-file={folder / 'report.json'}", *rest],
        cwd=suite, stdout=sys.stderr,
        env={**os.environ, "ARRAY_API_TESTS_MODULE": module,
             "TESSERA_ARRAY_API_COUNTS": str(folder / "counts.json")},
    )  # fmt: skip


def _outcomes(folder: Path) -> dict[str, str]:
    """What became of each test."""
    tests = json.loads((folder / "report.json").read_text())["tests"]
    return {t["nodeid"]: t["outcome"] for t in tests}


def _keep_counts() -> None:
    counts = {**COUNTS, "differences": len(DIFFERENCES),
              "fallbacks_by_reason": dict(FALLBACKS.most_common()),
              "first_differences": DIFFERENCES[:50]}  # fmt: skip
    Path(os.environ["TESSERA_ARRAY_API_COUNTS"]).write_text(json.dumps(counts))


def main() -> int:
    suite, start = Path(sys.argv[1]).resolve(), time.perf_counter()
    rest = sys.argv[3:]
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        folders = (Path(a), Path(b))
        modules = ("numpy", "exec('from bench.array_api import xp')")
        for run in [_start(suite, m, rest, f) for m, f in zip(modules, folders, strict=True)]:
            run.wait()
        theirs, ours = map(_outcomes, folders)
        row = json.loads((folders[1] / "counts.json").read_text())
    failed = {t for t, outcome in theirs.items() if outcome == "failed"}
    own = sorted(t for t, outcome in ours.items() if outcome == "failed" and t not in failed)
    row = {
        "suite": "array-api-tests", "examples": int(_EXAMPLES),
        "tests": len(ours), "passed": sum(o == "passed" for o in ours.values()),
        "failed_under_numpy_itself": len(failed), "failed_here_only": own, **row,
        "date": time.strftime("%Y-%m-%d"), "seconds": round(time.perf_counter() - start, 1),
        "machine": machine_description(),
    }  # fmt: skip
    text = json.dumps([row], indent=1) + "\n"
    Path(sys.argv[2]).write_text(text) if len(sys.argv) > 2 else print(text)
    return int(bool(own or row["differences"]))


if "TESSERA_ARRAY_API_COUNTS" in os.environ and __name__ != "__main__":
    atexit.register(_keep_counts)

if __name__ == "__main__":
    sys.exit(main())
