"""Calls that go past the interpreter: python/bindings/call.cpp, tessera/direct_calls.py."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from quick import QUICK

import tessera as ts
from tessera import _core
from tessera.direct_calls import slots
from tessera.frontends.environment import Environment


class Layer(NamedTuple):
    w: Any
    b: Any


X = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)
W = np.random.default_rng(6).standard_normal((6, 6)).astype(np.float32)
B = np.arange(6, dtype=np.float32)


def net(x: Any, p: Any, k: float = 0.5) -> Any:
    for layer in p["layers"]:
        x = x @ layer.w * p.get("scale", 2) + layer.b * k
    return {"y": x, "first": next(iter(p))}


def parameters(**changes: Any) -> dict[str, Any]:
    return {"scale": 2, "layers": [Layer(W, B), Layer(W.T.copy(), B)], **changes}


def test_nested_arguments_are_recognised_without_python() -> None:
    f = ts.optimize(budget=8)(net)
    for _ in range(2):
        np.testing.assert_allclose(f(X, parameters())["y"], net(X, parameters())["y"], rtol=1e-5)
    f._call_slowly = None  # type: ignore[assignment, method-assign]  # nothing asks it any more
    np.testing.assert_allclose(f(-X, parameters())["y"], net(-X, parameters())["y"], rtol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        parameters(scale=3),
        parameters(scale=2.0),  # neither an int
        parameters(scale=np.float32(2)),
        parameters(layers=(Layer(W, B), Layer(W, B))),
        parameters(layers=[Layer(W, B)]),
        parameters(layers=[Layer(W, B), Layer(W.T, B)]),  # column-major
        parameters(layers=[Layer(W, B), Layer(W.astype(np.float64), B)]),
        parameters(more=1),
        {"layers": parameters()["layers"], "scale": 2},  # in another order
        {"Scale": 2, "layers": parameters()["layers"]},
    ],
)
def test_other_structures_have_other_programs(other: dict[str, Any]) -> None:
    f = ts.optimize(budget=8)(net)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for given in (parameters(), other, other, parameters()):
            ours, theirs = f(X, given), net(X, given)
            assert ours["first"] == theirs["first"]
            assert ours["y"].dtype == theirs["y"].dtype
            np.testing.assert_allclose(ours["y"], theirs["y"], rtol=1e-5)


def test_arrays_of_a_list_live_as_long_as_the_call() -> None:
    arrays: list[Any] = [np.ones(1 << 18)]

    def unchanged() -> bool:
        arrays.clear()
        return True

    places = slots((arrays,), {}, [0])
    assert places is not None
    call = _core.Call(places, [], unchanged)
    call.run_function(lambda a: np.full(1 << 18, 7.0) + a, None, False)
    assert (call(arrays) == 8).all()
    assert not arrays
    assert call(arrays) is NotImplemented  # it is empty now


def test_more_arrays_and_results_than_a_function_usually_has() -> None:
    def f(*xs: Any) -> Any:
        return tuple(sum(xs[i::4]) for i in range(4)) + tuple(x * 2 for x in xs[8::9])

    given = [np.full(3, float(i)) for i in range(40)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for count in (23, 40, 5):
            ours = ts.optimize(**QUICK)(f)
            for call in range(3):
                for a, b in zip(ours(*given[:count]), f(*given[:count]), strict=True):
                    np.testing.assert_array_equal(a, b)
                if call == 1:
                    ours._call_slowly = None  # type: ignore[assignment, method-assign]


def test_floats_among_nested_arguments_may_vary() -> None:
    def step(p: Any, g: Any) -> Any:
        return {n: w - p["rate"] * g[n] for n, w in p["w"].items()}

    f = ts.optimize(budget=8)(step)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for n, rate in enumerate((0.5, 0.25, 0.125, -3.0, 7.5)):
            given = {"rate": rate, "w": {"a": W, "b": B}}, {"a": W * 2, "b": B + 1}
            for ours, theirs in zip(f(*given).values(), step(*given).values(), strict=True):
                assert ours.dtype == theirs.dtype
                np.testing.assert_allclose(ours, theirs, rtol=1e-6)
            if n == 2:
                f._call_slowly = None  # type: ignore[assignment, method-assign]
    assert len(f._known) == 2


def helper(x: Any) -> Any:
    return x * 2.0


def test_attributes_that_may_come_are_looked_at_without_python() -> None:
    f = ts.optimize(budget=8)(lambda x: helper(x) + 1.0)
    for _ in range(2):
        assert f(X)[0, 0] == X[0, 0] * 2 + 1
    f._call_slowly = None  # type: ignore[assignment, method-assign]  # nothing asks it any more
    assert f(X)[0, 0] == X[0, 0] * 2 + 1
    helper.note = "new"  # type: ignore[attr-defined]
    try:
        with pytest.raises(TypeError):
            f(X)
    finally:
        del helper.note  # type: ignore[attr-defined]
    assert f(X)[0, 0] == X[0, 0] * 2 + 1
    environment = Environment()
    environment.watch({})
    assert not environment.needs_more
    environment.watch({"a": 1})
    assert environment.needs_more
