"""`@tessera.optimize` cannot be told from the function: descriptors, arguments of every kind,
scalars, writes that are hidden, imports. See test_blind_trust_numpy.py."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from quick import QUICK, UNSEARCHED
from test_blind_trust_numpy import quietly
from test_decorator import same

import tessera as ts
from tessera.errors import Error
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import unflatten

X = np.random.default_rng(1).uniform(-2, 2, (4, 6))
KERNEL = {**QUICK, "disable": (*UNSEARCHED, "numpy"), "wait": True, "cache": False}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """A result, or the type of the exception."""
    try:
        return quietly(function, *args)
    except Exception as error:
        return type(error).__name__


# --- in a class body ----------------------------------------------------------------------------


class Scaled:
    factor = 2.0

    def __call__(self, x: Any) -> Any:
        return np.exp(x) * self.factor

    def method(self, x: Any) -> Any:
        return np.exp(x) * 3


class Descriptor:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return functools.partial(self.function, instance)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def decorated(decorate: Callable[..., Any]) -> tuple[type, type]:
    """A class of everything that may be decorated, and one that is derived from it."""

    class Base:
        w = np.ones(6)
        static = decorate(staticmethod(lambda x: np.exp(x) * Base.w))
        inner_static = staticmethod(decorate(lambda x: np.exp(x) * Base.w))
        of_class = decorate(classmethod(lambda cls, x: np.exp(x) * cls.w))
        inner_of_class: Any = classmethod(decorate(lambda cls, x: np.exp(x) * cls.w))
        method = decorate(lambda self, x: np.exp(x) * self.w)
        instance = decorate(Scaled())
        ufunc = decorate(np.exp)
        partial = decorate(functools.partial(lambda x, k: np.exp(x) * k, k=2.0))
        bound = decorate(Scaled().method)
        kind = decorate(np.float64)
        vectorised = decorate(np.vectorize(lambda v: v * 2.0))
        numpys = decorate(np.sum)
        descriptor = decorate(Descriptor(lambda self, x: x * self.w))

    class Derived(Base):
        w = np.full(6, 3.0)

    return Base, Derived


@pytest.mark.parametrize("name", [n for n in vars(decorated(lambda f: f)[0]) if n[0] not in "_w"])
def test_in_a_class_it_is_what_the_function_is(name: str) -> None:
    for theirs, ours in zip(decorated(lambda f: f), decorated(ts.optimize(**KERNEL)), strict=True):
        for owners in ((theirs, ours), (theirs(), ours())):
            for _ in range(3):
                expected, found = (outcome(_called, owner, name) for owner in owners)
                same(found, expected)


def _called(owner: Any, name: str) -> Any:
    return getattr(owner, name)(X)


# --- arguments ----------------------------------------------------------------------------------

CALLS = """
    np.add(x,1,dtype=np.int64)                     np.add(whole,2.5,dtype=np.int64)
    np.add(x,1,dtype=np.float32)                   np.multiply(whole,2,dtype=np.float32)
    np.sum(x,dtype=np.int64)                       np.cumsum(x,dtype=np.int64)
    np.subtract(narrow,x,dtype=np.float32)         np.maximum(x,whole,dtype=np.int32)
    np.add.reduce(x,axis=None,out=np.array(x[0,0]))
    np.add(x,1,casting="no",dtype=np.float32)      np.add(x,whole,casting="no")
    np.exp(x,casting="nonsense")                   np.exp(x,order="X")
    np.exp(x,order="F")                            np.exp(x,subok=False)
    np.exp(x,where=x>0,out=x*0)                    np.exp(x,where=None,out=x*0)
    np.exp(x,signature="f->f")                     np.add.reduce(x,0,None,None,True)
    np.add.reduce(x,initial=3)                     np.multiply(x,2,out=x*1,casting="no")
    x.astype(np.float32,casting="no")              x.astype(np.int64,casting="safe")
    x.astype(np.int64,"K","safe")                  x.astype(np.float32,subok=False)
    np.concatenate([x,whole],casting="no")         np.stack([x,whole],casting="no")
    np.vstack([x,whole],casting="no")              np.einsum("ij,ij->i",x,whole,casting="no")
    np.einsum("ij->i",x,casting="safe")            np.can_cast(x,np.int8,casting="unsafe")
    np.can_cast(x,np.int8)                         np.clip(x,0,1,casting="no")
    np.max(x,0,None,True)                          np.min(x,0,None,True,9.0)
    x.max(0,None,True)                             np.nansum(x,0,np.float32)
    np.nanmean(x,0,np.float32)                     np.average(x,0,np.ones(4),True)
    np.gradient(x,2.0,1.0)                         np.var(x,0,None,None,1)
    x.std(0,None,None,1,True)                      np.zeros_like(x,None,"C")
    np.full_like(x,2,None,"K",True,(3,))           np.zeros_like(x,device="gpu")
    np.reshape(x,(6,4),copy=False)                 np.copy(x,order="X")
    np.array(x,copy=False)                         np.asarray(x,None,"C")
    np.asarray(a=x)                                np.array(x,np.float32,copy=False)
    np.pad(x,1,constant_values=-0.0)               np.result_type(x,np.float32)
    np.result_type(narrow,float)                   np.result_type(narrow,1.0)
    np.result_type(narrow,"f8",np.int8)            np.result_type(narrow.sum(),bool)
    np.promote_types(narrow.dtype,int)             np.can_cast(narrow.sum(),np.float16)
    np.min_scalar_type(x)                          np.common_type(x,narrow)
    np.issubdtype(np.result_type(narrow,np.float16),np.floating)
"""


@pytest.mark.parametrize("call", re.split(r"\s{2,}", CALLS.strip()))
def test_calls_mean_what_they_mean_in_numpy_or_are_not_traced(call: str) -> None:
    space: dict[str, Any] = {"np": np}
    exec(
        "def f(x):\n    narrow, whole = x.astype(np.float32), (x * 10).astype(np.int64)\n"
        f"    try: y = {call}\n    except (TypeError, ValueError): return x * 3\n"
        "    if isinstance(y, tuple): return x * len(y)\n"
        "    return y * 1 if isinstance(y, (np.ndarray, np.generic)) else x * len(str(y))",
        space,
    )
    expected = quietly(space["f"], X)
    with contextlib.suppress(Error):
        traced = trace_call(space["f"], (X,), {})
        found = unflatten(traced.results, traced.graph.run(X, *traced.extra))
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected)


def test_types_among_arguments_are_types() -> None:
    def f(x: Any) -> Any:
        floats = np.issubdtype(np.result_type(x, np.float32), np.floating)
        return np.exp(x) * (1.0 if floats and np.result_type(x, float) == np.float64 else 100.0)

    assert ts.optimize(**KERNEL)(f).result(X) is not None
    same(trace_call(f, (X,), {}).graph.run(X)[0], f(X))


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_borders_are_not_multiplied(name: str, mode: str) -> None:
    def f(x: Any, k: Any) -> Any:
        return getattr(np, name)(x, k, mode)

    for length in (1, 2, 3, 6):
        x, k = np.arange(1.0, 7), np.arange(1.0, length + 1)
        ours = ts.optimize(**KERNEL)(f)
        for where in (x, k):
            for value in (np.nan, np.inf, 2.0):
                for at in range(len(where)):
                    before, where[at] = where[at], value
                    expected = f(x, k)
                    finite = np.isfinite(expected)
                    for result in (
                        quietly(ours, x, k),
                        trace_call(f, (x, k), {}).graph.run(x, k)[0],
                    ):
                        np.testing.assert_allclose(result[finite], expected[finite])
                    where[at] = before


def test_few_factors_are_multiplied_in_numpys_order() -> None:
    x = np.array([1e200, 1e-200] * 4)
    for shape, axis in (((8,), None), ((4, 2), None), ((8, 1), 0), ((1, 8), -1)):
        graph = trace_call(lambda x, axis=axis: np.prod(x, axis), (x.reshape(shape),), {}).graph
        same(graph.run(x.reshape(shape))[0], np.asarray(np.prod(x.reshape(shape), axis)))


# --- scalars ------------------------------------------------------------------------------------

SCALARS = """
    s[...]=1.0; s[()]=2; np.add(s,1,out=s); s+=1; s.fill(3); s.sort(); s.setflags(write=False)
    np.copyto(s,3); s.put(0,1); s.resize(3); s.shape=(1,); y.shape=(24,); s.real=3; y.real=3
    y.flat=3; y.dtype=np.int64; s.dot(y); s.partition(0); s.is_integer(); s.mT; len(s); s[0]=1
    y[0,0].fill(2); y[0,0][...]=4; y[0,0]+=1; np.exp(s,out=s); np.sum(y,out=s); y.sum(out=s)
    np.add.at(s,(),1); np.fill_diagonal(s,1); s.byteswap(True); z[...]=5; z+=1; z.fill(4)
    q=np.asarray(y,copy=True);q[0]=7; q=np.array(y,copy=None);q[0]=7; q=np.array(s);q[...]=7
    q=y.astype(float,copy=0);q[0]=7
"""


@pytest.mark.parametrize("statement", re.split(r"; |\n +", SCALARS.strip()))
def test_scalars_are_written_to_as_in_numpy(statement: str) -> None:
    space: dict[str, Any] = {"np": np}
    exec(
        "def f(x):\n    s, y = x.sum(), np.exp(x)\n    z = np.array(s)\n"
        f"    try: {statement}; k = 1\n    except Exception: k = 3\n"
        "    return y * (s + z) * k",
        space,
    )
    ours = ts.optimize(**KERNEL)(space["f"])
    for _ in range(2):
        same(quietly(ours, X / 9), space["f"](X / 9))


# --- writes that are hidden ---------------------------------------------------------------------

HIDDEN = {
    "swallowed": """
        try: w[0] += 1
        except Exception: pass""",
    "same contents": """
        try: w[:] = w.tolist()
        except ValueError: k = 5""",
    "values of arguments": """
        try: w[:] = x[0, 0]
        except ValueError: pass""",
    "finally": """
        try: w.fill(w[0] + 1)
        finally: return np.exp(x) * float(w[0])""",
    "exit": """
        class S:
            def __enter__(self): pass
            def __exit__(self, *a): return True
        with S(): w[0] += 1""",
    "helper": """
        def h():
            try: w[0] += 1
            except ValueError: return 7
            return 2
        k = h()""",
    "undone": """
        try: w[0] += 1; k = float(v[0]); w[0] -= 1
        except ValueError: k = float(v[0])""",
    "require": """
        z = np.require(w, None, ["W"]); z[0] += 1""",
    "readonly": """
        if not w.data.readonly: w[0] += 1""",
    "form": """
        w.shape = (1, 3)""",
    "plain": """
        w[0] += 1""",
    "empty": """
        try: e[...] = 1.0; k = 3
        except ValueError: k = 4""",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_writes_happen_once_a_call(name: str) -> None:
    def observed(decorate: Callable[..., Any]) -> list[Any]:
        w = np.zeros(3)
        space: dict[str, Any] = {"np": np, "w": w, "v": w[:1], "e": np.zeros(0)}
        body = HIDDEN[name] + "\n        return np.exp(x) * (k if w.sum() < 1e9 else 1.0)"
        exec("if True:\n    def f(x):\n        k = 2.0" + body, space)
        called = decorate(space["f"])
        return [(outcome(called, X), w.tolist(), w.shape) for _ in range(4)]

    for ours, theirs in zip(observed(ts.optimize(**KERNEL)), observed(lambda f: f), strict=True):
        same(ours, theirs)


# --- imports ------------------------------------------------------------------------------------


def _plain() -> Any:
    import settings_of_test  # type: ignore[import-not-found]

    return settings_of_test.k


def _dotted() -> Any:
    import settings_of_test.part  # type: ignore[import-not-found]

    return settings_of_test.part.k


def _renamed() -> Any:
    import settings_of_test.part as part

    return part.k


def _part() -> Any:
    from settings_of_test import part

    return part.k


def _name() -> Any:
    from settings_of_test.part import k

    return k


def _handled() -> Any:
    try:
        import settings_of_test
    except ImportError:
        return 100.0
    return settings_of_test.k


def _absent() -> Any:
    from numpy import settings_of_test  # type: ignore[attr-defined]

    return settings_of_test.k


@pytest.mark.parametrize(
    "read",
    [
        _plain, _dotted, _renamed, _part, _name, _handled, _absent,
        lambda: importlib.import_module("settings_of_test").k,
        lambda: __import__("settings_of_test").k,
        lambda: __import__("settings_of_test.part", fromlist=["k"]).k,
        lambda: sys.modules["settings_of_test"].k,
    ],
)  # fmt: skip
def test_modules_that_are_replaced(
    read: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(k: float) -> None:
        whole, part = types.ModuleType("settings_of_test"), types.ModuleType("part")
        whole.k = part.k = k  # type: ignore[attr-defined]
        whole.part = part  # type: ignore[attr-defined]
        for name, module in (("", whole), (".part", part)):
            monkeypatch.setitem(sys.modules, "settings_of_test" + name, module)
        monkeypatch.setitem(sys.modules, "numpy.settings_of_test", whole)

    def f(x: Any) -> Any:
        return np.exp(x) * read()

    ours = ts.optimize(**KERNEL)(f)
    for k in (2.0, 5.0, "deleted", 7.0, None, 3.0):
        if isinstance(k, float):
            replace(k)
        elif k is None:
            monkeypatch.setitem(sys.modules, "settings_of_test", None)
        else:
            monkeypatch.delitem(sys.modules, "settings_of_test")
        for _ in range(2):
            same(outcome(ours, X), outcome(f, X))
