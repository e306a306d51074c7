"""Results without axes: an array where NumPy has an array, a scalar where it has a scalar."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from quick import QUICK

import tessera as ts
from tessera.call_forms import FunctionCall
from tessera.errors import UnsupportedError
from tessera.frontends.trace import trace_call

Array = np.ndarray[Any, Any]
V = np.linspace(-1.0, 2.0, 6)
M = np.outer(V, V) + 1.0
Z = np.array(2.5)

RESULTS: dict[str, Callable[[Array, Array], Any]] = {
    "tensordot": lambda x, z: np.tensordot(x, x, axes=1),
    "where": lambda x, z: np.where(x.sum() > 0, x.max(), x.min()),
    "where of numbers": lambda x, z: np.where(x.any(), 1.0, 2.0),
    "a function of where": lambda x, z: np.exp(np.where(x.sum() > 0, x.max(), 1.0)),
    "select": lambda x, z: np.select([x.sum() > 9, x.max() > 1], [x.max(), x.min()], 0.5),
    "array": lambda x, z: np.array(x.sum()),
    "asarray": lambda x, z: np.asarray(x.sum()),
    "asarray, then a sum": lambda x, z: np.asarray(x.sum()) + 1,
    "cov": lambda x, z: np.cov(x),
    "cov of one row": lambda x, z: np.cov(x[None]),
    "corrcoef": lambda x, z: np.corrcoef(x),
    "copy": lambda x, z: (np.copy(x.sum()), x.sum().copy(), z.copy()),
    "likes": lambda x, z: (np.ones_like(x.sum()) * z, np.zeros_like(z), np.full_like(z, 3)),
    "along": lambda x, z: np.apply_along_axis(np.sum, 0, x),
    "cross": lambda x, z: np.cross(x[:3], x[3:])[0],
    "dots": lambda x, z: (x[2], x[2, ...], x.sum()[...], z[...], z[()]),
    "shapes": lambda x, z: (x[:1].squeeze(), np.squeeze(x.sum()), x[:1].reshape(()), z.reshape(())),
    "turned": lambda x, z: (z.T, x.sum().T, np.transpose(z), np.transpose(x.sum())),
    "kinds": lambda x, z: (z.astype(np.float32), x.sum().astype(np.float32)),
    "broadcast": lambda x, z: (np.broadcast_to(x.sum(), ()), np.broadcast_to(z, ())),
    "rounded": lambda x, z: (np.round(z), np.round(x.sum()), np.clip(z, 0, 1)),
    "the argument": lambda x, z: (z, z * 2, z.real, +z),
    "one argument": lambda x, z: z,
    "reductions": lambda x, z: [x.sum(), np.dot(x, x), x @ x, np.einsum("i,i->", x, x), x.argmax()],
}


@pytest.mark.parametrize("what", RESULTS)
def test_results_without_axes_have_numpys_type(what: str) -> None:
    function = RESULTS[what]
    traced = trace_call(function, (V, Z), {})
    call = FunctionCall(function, traced)
    outputs = [np.asarray(a) for a in traced.graph.run(*call.arrays((V, Z), {}))]
    got = call.result(outputs) if call.finish or len(outputs) > 1 else outputs[0][()]
    want = function(V, Z)
    pairs = zip(got, want, strict=True) if isinstance(want, (tuple, list)) else [(got, want)]
    for a, b in pairs:
        assert (type(a), a.dtype, a.shape) == (type(b), b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_kernels_return_arrays_without_axes() -> None:
    def both(x: Array) -> Any:
        return np.tensordot(x, x, axes=1)

    made = ts.optimize(cache=False, **QUICK)(both)
    for _ in range(2):  # the second call takes the direct way
        result = made(V)
        assert (type(result), result.shape, result.dtype) == (np.ndarray, (), np.dtype(np.float64))
        np.testing.assert_allclose(result, both(V), rtol=1e-12)


def test_an_array_without_axes_is_written_to_where_a_scalar_is_replaced() -> None:
    def shared(x: Array) -> Any:
        total = np.array(x.sum())
        other = total
        total += 1
        return other * 2, total * 3

    def scalar(x: Array) -> Any:
        total = x.sum()
        other = total
        total += 1
        return other * 2, total * 3

    def positive(x: Array) -> Any:
        y = x * 2
        other = +y
        other += 1
        return y, other

    for function in (shared, scalar):
        found = trace_call(function, (V,), {}).graph.run(V)
        np.testing.assert_allclose(found, function(V))
    for a, b in zip(trace_call(positive, (V,), {}).graph.run(V), positive(V), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_python_bool_is_no_scalar_of_numpy() -> None:
    with pytest.raises(UnsupportedError, match="Python bool"):
        trace_call(lambda x: np.allclose(x, 1), (V,), {})


def test_rows_of_the_unit_matrix_are_picked_by_labels() -> None:
    labels = np.array([2, 0, -1, 3])

    def one_hot(y: Array, x: Array) -> Any:
        return np.eye(4)[y] * x, np.identity(4, dtype=np.int32)[y]

    x = np.arange(4.0)
    graph = trace_call(one_hot, (labels, x), {}).graph
    for a, b in zip(graph.run(labels, x), one_hot(labels, x), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_clip_takes_its_older_names_and_cov_two_sides() -> None:
    def several(x: Array, m: Array) -> Any:
        return np.clip(x, a_min=-0.5, a_max=None), np.cov(x, x * x), np.cov(m, m + 1, rowvar=False)

    for a, b in zip(trace_call(several, (V, M), {}).graph.run(V, M), several(V, M), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_what_a_mask_picks_is_changed_in_place_only_where_it_is_stored_back() -> None:
    def scaled(x: Array, mask: Array) -> Any:
        y = x.copy()
        y[~mask] *= 2
        y[mask] += 1
        return y

    def apart(x: Array, mask: Array) -> Any:
        part = x[mask]
        other = part
        part *= 2
        return other.sum()

    mask = V > 0
    np.testing.assert_array_equal(
        trace_call(scaled, (V, mask), {}).graph.run(V, mask)[0], scaled(V, mask)
    )
    with pytest.raises(UnsupportedError, match="in place"):
        trace_call(apart, (V, mask), {})


def test_isclose_takes_a_number() -> None:
    def close(x: Array) -> Any:
        return np.isclose(x, 2), np.isclose(x, np.inf), np.isclose(2.0, x)

    x = np.array([2.0, 2.00001, 3.0, np.inf, np.nan, -np.inf])
    for a, b in zip(trace_call(close, (x,), {}).graph.run(x), close(x), strict=True):
        np.testing.assert_array_equal(a, b)


class _Layer:
    def __init__(self) -> None:
        self.weight = M

    def forward(self, x: Array) -> Any:
        return x @ self.weight


def test_a_bound_methods_own_object_is_watched() -> None:
    layer = _Layer()
    environment = trace_call(layer.forward, (V,), {}).environment
    assert any(a is M for a in environment.arrays())
    assert environment.unchanged()
    layer.weight = M * 2
    assert not environment.unchanged()

    made = ts.optimize(cache=False, **QUICK)(layer.forward)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        np.testing.assert_allclose(made(V), V @ layer.weight)
        layer.weight = M * 3
        np.testing.assert_allclose(made(V), V @ layer.weight)


def test_a_candidate_that_cannot_be_run_is_no_error() -> None:
    def picked(a: Array, at: Array) -> Any:
        return a[np.arange(3), at]

    at = np.array([2, 0, 1])
    made = ts.optimize(cache=False, **QUICK)(picked)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        np.testing.assert_array_equal(made(M, at), picked(M, at))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64])
def test_scalars_of_numpy_are_arguments_or_constants(kind: type) -> None:
    """What varies is one program's argument where it is a float; calls go straight to it."""

    def f(x: Array, s: Any) -> Any:
        return x * s + s, s * s

    x = np.linspace(0, 1, 50, dtype=np.float32)
    optimised = ts.optimize(budget=20)(f)  # not all of it is used
    values = [kind(v) for v in (2, 3, 0, -1, 2)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for value in values * 3 if kind is not np.int64 else values:
            ours, theirs = optimised(x, value), f(x, value)
            for a, b in zip(ours, theirs, strict=True):
                assert (type(a), a.dtype) == (type(b), b.dtype)
                np.testing.assert_allclose(a, b, rtol=1e-3)
        assert optimised.number_of_calls() == (2 if kind is not np.int64 else 4)
        optimised._call_slowly = None  # type: ignore[method-assign,assignment]
        optimised(x, values[1])
