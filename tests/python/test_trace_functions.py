"""More of NumPy under the tracer: derived functions, indexing, writes to own arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_trace import X, array, check

import tessera as ts
from tessera import trace
from tessera.errors import UnsupportedError

SQUARE = (6, 6)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "prod": lambda x: np.prod(x, axis=1),
    "prod keepdims": lambda x: x.prod(axis=(0, 1), keepdims=True),
    "multiply.reduce": lambda x: np.multiply.reduce(x, axis=0),
    "diff": lambda x: np.diff(x, axis=0),
    "diff 2": lambda x: np.diff(x, n=2),
    "cross": lambda x: np.cross(x[:, :3], x[:, 3:6]),
    "cross axis": lambda x: np.cross(x[:3], x[1:4], axis=0),
    "kron": lambda x: np.kron(x[:2, :3], x[:3, :2]),
    "kron vectors": lambda x: np.kron(x[0], x[:, 0]),
    "multi_dot": lambda x: np.linalg.multi_dot([x, x.T, x]),
    "matrix_power": lambda x: np.linalg.matrix_power(x[:5, :5], 5),
    "convolve": lambda x: np.convolve(x[0], x[1, :3]),
    "convolve same": lambda x: np.convolve(x[0], x[1, :4], "same"),
    "convolve valid": lambda x: np.convolve(x[1, :3], x[0], "valid"),
    "correlate": lambda x: np.correlate(x[0], x[1, :3]),
    "correlate full": lambda x: np.correlate(x[0], x[1, :4], mode="full"),
    "correlate same": lambda x: np.correlate(x[0], x[1, :3], "same"),
    "polyval": lambda x: np.polyval([1.5, -2, 3], x),
    "polyval traced": lambda x: np.polyval(x[0], x[1] * 0.1),
    "argmax": lambda x: np.argmax(x, axis=1),
    "argmin": lambda x: x.argmin(axis=0, keepdims=True),
    "argmax flat": lambda x: x.argmax(),
    "count_nonzero": lambda x: np.count_nonzero(x > 0, axis=0),
    "isclose": lambda x: np.isclose(x, x + 1e-7),
    "allclose": lambda x: np.stack([np.allclose(x, x + 1), np.allclose(x, x)]),
    "select": lambda x: np.select([x > 1, x > 0], [x, x * 2], default=-1),
    "flip": lambda x: np.flip(x),
    "flip axis": lambda x: np.flip(x, axis=1),
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "rot90": np.rot90,
    "rot90 2": lambda x: np.rot90(x, 2),
    "rot90 -1": lambda x: np.rot90(x, -1),
    "dstack": lambda x: np.dstack([x, x]),
    "append": lambda x: np.append(x, x[0]),
    "append axis": lambda x: np.append(x, x[:1], axis=0),
    "meshgrid": lambda x: np.meshgrid(x[0], x[:, 0]),
    "meshgrid ij": lambda x: np.meshgrid(x[0], x[:, 0], indexing="ij"),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, x[0]),
    "apply_along_axis": lambda x: np.apply_along_axis(lambda r: r - r.max(), 1, x),
    "apply_along_axis 0": lambda x: np.apply_along_axis(lambda r: r.sum(), 0, x),
    "roll axes": lambda x: np.roll(x, (1, -2), axis=(0, 1)),
    "initial": lambda x: np.max(x, axis=1, initial=0),
    "pad edge": lambda x: np.pad(x, ((1, 2), (0, 1)), mode="edge"),
    "pad wrap": lambda x: np.pad(x, 2, mode="wrap"),
    "pad reflect": lambda x: np.pad(x, ((2, 3), (1, 0)), mode="reflect"),
    "pad symmetric": lambda x: np.pad(x, 3, mode="symmetric"),
    "norm 1": lambda x: np.linalg.norm(x, 1, axis=1),
    "norm inf": lambda x: np.linalg.norm(x, np.inf, axis=0),
    "einsum ellipsis": lambda x: np.einsum("...i,...i->...", x, x),
    "einsum ellipsis implicit": lambda x: np.einsum("...j,jk", x, x.T),
    "ufunc dtype": lambda x: np.add(x, x, dtype=np.float64),
    "fmax": lambda x: np.fmax(x, 0),
    "index pairs": lambda x: x[[0, 2, -1], [1, 1, 3]],
    "index pairs inside": lambda x: x.reshape(5, 7, 1).T[:, [3, 1], np.array([0, -2])],
    "index outer pair": lambda x: x[np.array([[0], [2]]), np.array([1, -3])],
    "index int and array": lambda x: x[2, [0, 3]],
    "index list then slice": lambda x: x[[3, 1], 1:4],
    "negative step": lambda x: x[::-1, ::-2],
    "negative step bounds": lambda x: x[4:0:-2, -2:1:-1],
    "np.array of rows": lambda x: np.array([row * 2 for row in x]),
    "np.array of scalars": lambda x: np.array([row.sum() for row in x]),
    "np.array of numbers": lambda x: np.array([[x[0, 0], 1.5], [2, x[1, 1]]]),
    "asarray dtype": lambda x: np.asarray(x, dtype=np.float64) * 2,
    "zip": lambda x: np.stack([a * b for a, b in zip(x[1:], x[:-1], strict=True)]),
    "enumerate": lambda x: sum(i * row for i, row in enumerate(x)),
    "reversed": lambda x: np.stack(list(reversed(x))),
}
FLOATS: dict[str, Callable[[Any], Any]] = {
    "nansum": lambda x: np.nansum(np.where(x > 1, np.nan, x), axis=0),
    "nanmean": lambda x: np.nanmean(np.where(x > 1.5, np.nan, x), axis=0),
    "nan_to_num": lambda x: np.nan_to_num(np.where(x > 1, np.inf, np.where(x > 0, np.nan, x))),
    "argmax nan": lambda x: np.argmax(np.where(x > 1, np.nan, x), axis=1),
    "isfinite": lambda x: np.isfinite(np.log(x)),
    "isinf": lambda x: np.isinf(np.log(np.maximum(x, 0))),
    "heaviside": lambda x: np.heaviside(np.round(x), 0.5),
    "gradient": lambda x: np.gradient(x),
    "gradient axis": lambda x: np.gradient(x, 0.5, axis=1),
    "trapezoid": lambda x: np.trapezoid(x, dx=0.1, axis=0),
    "trapezoid x": lambda x: np.trapezoid(x, np.linspace(0, 1, 7) ** 2),
    "cov": lambda x: np.cov(x),
    "cov columns": lambda x: np.cov(x, rowvar=False, ddof=0),
    "cov vector": lambda x: np.cov(x[0]),
    "corrcoef": lambda x: np.corrcoef(x),
    "deg2rad": np.deg2rad,
    "arctan": np.arctan,
    "log1p": lambda x: np.log1p(np.abs(x)),
    "power arrays": lambda x: np.abs(x) ** x,
    "mod": lambda x: x % 0.75,
    "round": lambda x: np.round(x, 1),
    "logsumexp": lambda x: np.logaddexp.outer(x[0], x[1]),
}


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, dtype: str) -> None:
    check(FUNCTIONS[name], array(X, dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", FLOATS)
def test_float_function(name: str, dtype: str) -> None:
    check(FLOATS[name], array(X, dtype))


# --- writing to arrays of one's own


def accumulate(x: Any) -> Any:
    total = np.zeros_like(x[0])
    for row in x:
        total += row * 2
    total /= len(x)
    return total


def recurrence(x: Any) -> Any:
    y = x.copy()
    for i in range(1, len(y)):
        y[i] = 0.5 * y[i - 1] + y[i]
    return y


def filled(x: Any) -> Any:
    out = np.zeros((x.shape[0], 2))
    for i in range(x.shape[0]):
        out[i, 0] = x[i].sum()
        out[i, 1] = x[i].max()
    return out


def masked(x: Any) -> Any:
    y = x * 2
    y[y < 0] = 0
    y[1:3, 2:] = x[1:3, 2:]
    y[..., 0] -= 1
    return y


def into_out(x: Any) -> Any:
    y = np.exp(x)
    np.multiply(y, 2, out=y)
    np.sum(x, axis=0, out=y[0]) if False else None
    return y


def summed_windows(x: Any) -> Any:
    out = np.zeros((x.shape[0] - 1, x.shape[1]))
    for i in range(2):
        out += x[i, 0] * x[i : i + x.shape[0] - 1]
    return out


def filled_with(x: Any) -> Any:
    best = np.full(x.shape[1:], -np.inf)
    for row in x:
        np.maximum(best, row, out=best)
    count = np.full(x.shape[1], 2)
    count[1:] *= 3
    return best, count + 0 * x[0]


def same_name(x: Any) -> Any:
    y = x + 1
    z = y
    y += 1
    return y + z, z


def scalars(x: Any) -> Any:
    s = x.sum()
    t = s
    s += 1
    return s, t


@pytest.mark.parametrize(
    "function",
    [
        accumulate,
        recurrence,
        filled,
        masked,
        into_out,
        summed_windows,
        filled_with,
        same_name,
        scalars,
    ],
)
def test_own_arrays_may_be_written(function: Callable[..., Any]) -> None:
    x = array(X, "f8")
    before = x.copy()
    check(function, x)
    np.testing.assert_array_equal(x, before)


def through_view(x: Any) -> Any:
    y = x * 2
    row = y[0]
    y += 1
    return row


def through_view_of_view(x: Any) -> Any:
    y = x * 2
    part = y.T[1:]
    y[0] = 0
    return part


def into_view(x: Any) -> Any:
    y = x * 2
    y[0] += 1
    row = y[1]
    row += 1
    return y


def no_copy(x: Any) -> Any:
    y = x.astype(x.dtype, copy=False)
    y += 1
    return y


def as_it_is(x: Any) -> Any:
    y = np.asarray(x)
    y[0] = 0
    return y


def of_integers(x: Any) -> Any:
    y = x.astype(np.int32)
    y += 0.5
    return y


@pytest.mark.parametrize(
    "function", [through_view, through_view_of_view, into_view, no_copy, as_it_is, of_integers]
)
def test_shared_memory_is_not_written(function: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match="in place"):
        trace(function, "f8".replace("f8", "f64[5,7]"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(7)[:, None] * np.ones((1, 7), int),
        lambda: np.arange(7.0),
        lambda: np.eye(7, dtype=np.float32),
        lambda: np.tri(7),
        lambda: np.triu(np.ones((7, 7), bool)),
        lambda: np.full((7, 7), 2.5),
        lambda: np.eye(7) - np.ones((7, 7)) / 7,
        lambda: 3 * np.eye(7, dtype=np.int32) + 1,
    ],
)
def test_regular_constants_are_operators(make: Callable[[], Any]) -> None:
    graph = trace(lambda x: x * make(), "f32[7,7]")
    assert len(graph.inputs) == 1
    check(lambda x: x * make(), array((7, 7)))


def test_intercepted_functions_are_put_back() -> None:
    functions = np.array, np.asarray, np.zeros, np.full
    trace(filled, "f64[3,4]")
    with pytest.raises(UnsupportedError):
        trace(lambda x: float(np.array([x.sum()])[0]), "f64[3]")
    assert (np.array, np.asarray, np.zeros, np.full) == functions


def test_flips_are_undone() -> None:
    g = trace(lambda x: x[::-1][::-1] * 1, "f64[7]")
    h = trace(lambda x: x * 1, "f64[7]")
    assert ts.verify(g, h)
    assert ts.verify(trace(lambda x: x[::-1].sum(), "f64[7]"), trace(np.sum, "f64[7]"))
