"""Programs that try to make `@tessera.optimize` lie (hostile_programs.py): each is the function.

Every program runs from its start twice, decorated and not, while what it reads changes between
calls; results, their types, memory and order, and what it leaves behind must be the same.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hostile_programs import programs
from quick import QUICK, UNSEARCHED
from random_numpy import difference
from random_state import sourced

import tessera as ts

CHANGES = 4


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """NumPy's, Python's and the process's own state as it was, afterwards."""
    owners: list[tuple[Any, str]] = [(np, "exp"), (math, "sqrt"), (builtins, "max")]
    before = [getattr(*owner) for owner in owners]
    arguments, variable = list(sys.argv), os.environ.pop("HOSTILE", None)
    random, options = np.random.get_state(), np.get_printoptions()
    try:
        with np.errstate(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            setattr(*owner, value)
        np.random.set_state(random)
        np.set_printoptions(**options)
        sys.argv[:] = arguments
        os.environ.pop("HOSTILE", None)
        if variable is not None:
            os.environ["HOSTILE"] = variable


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The parts of a value, with what they are parts of."""
    if isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inner = [leaf for k, v in items for leaf in leaves(v, f"{path}[{k!r}]")]
        return [(f"{path}:{type(value).__name__}", value), *inner]
    return [(f"{path}:{type(value).__name__}", value)]


def outcome(scope: dict[str, Any], f: Callable[..., Any]) -> list[tuple[str, Any]]:
    """What a call returns, shares and leaves behind, and what writing to its results does."""
    given = scope["given"]()
    call = scope.get("call", lambda f: f(*given))
    try:
        result = call(f)
    except Exception as error:
        return [("raises", repr(error)), *leaves(scope["state"](), "state")]
    mine = [scope[n] for n in ("w", "v", "buf", "items", "d", "xs", "rec") if n in scope]
    known = leaves([*given, *mine])
    parts = leaves(result, "result")
    found: list[tuple[str, Any]] = []
    for path, part in parts:
        if isinstance(part, np.ndarray):
            found.append((f"{path} in memory", (part.strides, part.flags.writeable)))
            found.append((path, part.copy()))
        elif not isinstance(part, (list, tuple, dict)):
            found.append((path, part))
        else:
            found.append((path, list(part) if isinstance(part, dict) else len(part)))
    held = [p for p in (*known, *parts) if isinstance(p[1], (np.ndarray, list, dict))]
    found.append(("the same", [(a[0], b[0]) for a in held for b in parts if a[1] is b[1]]))
    arrays = [p for p in held if isinstance(p[1], np.ndarray)]
    shared = [(a, b) for a, x in arrays for b, y in arrays if np.may_share_memory(x, y)]
    found.append(("shared", shared))
    found += [(p, a.copy()) for p, a in arrays]
    return [*found, *leaves(scope["state"](), "state")]


def history(text: str, decorate: Callable[..., Any]) -> list[Any]:
    """What all calls do, from a program's start."""
    module = sys.modules["hostile"] = types.ModuleType("hostile")  # where dataclasses look
    scope = vars(module)
    with restored():
        exec(text, scope)
        f = decorate(scope["f"])
        if isinstance(f, type(scope["f"])) or hasattr(f, "is_tessera_function"):
            scope["f"] = f  # as a decorator has it
        calls = []
        for n in range(-1, CHANGES):
            if n >= 0:
                scope["change"](n)
            calls += [outcome(scope, f) for _ in range(3)]
    return calls


def wrong(ours: list[Any], theirs: list[Any]) -> str:
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if [p for p, _ in a] != [p for p, _ in b]:
            return f"call {n}: {a} instead of {b}"
        for (path, x), (_, y) in zip(a, b, strict=True):
            if isinstance(y, (np.ndarray, np.generic)):
                why = differs(x, y)
            else:
                why = "" if repr(x) == repr(y) else f"{x!r} instead of {y!r}"
            if why:
                return f"call {n}, {path}: {why}"
    return ""


def differs(x: Any, y: Any) -> str:
    """Values up to a little rounding; NaN and the signs of zeros are values."""
    a, b = np.asarray(x), np.asarray(y)
    x, y = (v.view(np.ndarray) if isinstance(v, np.ndarray) else v for v in (x, y))
    if why := difference(x, y) if b.dtype.kind in "biuf" else "":
        return why
    if b.dtype.kind != "f":
        return "" if (a.dtype, a.tolist()) == (b.dtype, b.tolist()) else f"{a!r} instead of {b!r}"
    zeros = (b != 0) | (np.signbit(a) == np.signbit(b))
    same = (np.isnan(a) == np.isnan(b)) & (np.isinf(a) == np.isinf(b)) & zeros
    return "" if same.all() else f"{a!r} instead of {b!r}"


@pytest.mark.parametrize("name", programs())
def test_program(name: str) -> None:
    text = programs()[name]
    expected = history(text, lambda f: f)
    assert not wrong(history(text, sourced), expected)


# --- decorated where a program cannot be: in classes, and for kernels -----------------------------


class Decorated:
    rate = 2.0
    k = np.full(3, 2.0)

    @classmethod
    @ts.optimize(cache=False, **QUICK)
    def of_class(cls, x: Any) -> Any:
        return x * cls.rate * cls.k

    @staticmethod
    @ts.optimize(cache=False, **QUICK)
    def static(x: Any) -> Any:
        return x * Decorated.rate

    @ts.optimize(cache=False, **QUICK)
    def of_object(self, x: Any) -> Any:
        return x * self.rate * self.k

    @ts.optimize(cache=False, **QUICK)
    def by_class(self, x: Any) -> Any:
        return x * type(self).rate + self.__class__.k

    @property
    @ts.optimize(cache=False, **QUICK)
    def value(self) -> Any:
        return self.k * self.rate


class Derived(Decorated):
    rate = 3.0


@pytest.mark.parametrize("name", ["of_class", "static", "of_object", "by_class"])
def test_methods(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, objects = np.arange(3.0), (Decorated(), Derived())
    plain = vars(Decorated)[name]
    plain = getattr(plain, "__func__", plain).__wrapped__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rate in (2.0, 5.0, 7.0):
            monkeypatch.setattr(Decorated, "rate", rate)
            monkeypatch.setattr(Decorated, "k", np.full(3, rate))
            for thing in (*objects, *objects, *objects):
                owner = {"of_class": [type(thing)], "static": []}.get(name, [thing])
                np.testing.assert_array_equal(getattr(thing, name)(x), plain(*owner, x))
                np.testing.assert_array_equal(thing.value, thing.k * thing.rate)


def test_functions_of_numpy_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels, which do not ask NumPy at each call as source does."""
    ours = ts.optimize(budget=60, cache=False, disable=(*UNSEARCHED, "numpy"))(
        lambda x: np.exp(-x) + 1
    )
    x = np.arange(3.0)
    for _ in range(3):
        np.testing.assert_allclose(ours(x), np.exp(-x) + 1)
    assert ours.result(x) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.setattr(np, "exp", lambda x: x * 5)
        np.testing.assert_allclose(ours(x), x * -5 + 1)


def test_the_comparison_sees_a_lie() -> None:
    """A decorator that keeps the first answer is found out by most programs with state."""

    def stale(f: Callable[..., Any]) -> Callable[..., Any]:
        kept: list[Any] = []

        def g(*args: Any, **kwargs: Any) -> Any:
            if not kept:
                kept.append(f(*args, **kwargs))
            return kept[0]

        return g

    texts = [t for t in programs().values() if "\ndef change" in t.partition("scale = 2.0")[2]]
    seen = [bool(wrong(history(t, stale), history(t, lambda f: f))) for t in texts[::10]]
    assert sum(seen) > 0.9 * len(seen) > 10
