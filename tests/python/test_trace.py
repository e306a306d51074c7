"""Traced NumPy functions, interpreted, give what NumPy gives: values, shapes and dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import trace
from tessera.errors import BadInputError, Error, UnsupportedError
from tessera.frontends.environment import Environment
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import unflatten

Array = np.ndarray[Any, np.dtype[Any]]
TOLERANCE = {
    np.dtype(np.float64): 1e-12,
    np.dtype(np.float32): 2e-5,
    np.dtype(np.float16): 2e-2,
    np.dtype(ml_dtypes.bfloat16): 6e-2,
}


def array(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed + 7 * len(shape))
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -5, 6, shape).astype(dtype)
    return rng.uniform(-2, 2, shape).astype(dtype)


def compare(ours: Any, theirs: Any, inputs: float = 0) -> None:
    """`inputs` is the tolerance of the least exact argument."""
    if isinstance(theirs, (tuple, list)):
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            compare(a, b, inputs)
        return
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            compare(ours[key], theirs[key], inputs)
        return
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    tolerance = TOLERANCE.get(theirs.dtype, 0)
    tolerance = max(tolerance, inputs) if tolerance else 0
    scale = np.abs(theirs.astype(np.float64)).max() if tolerance else 0
    np.testing.assert_allclose(
        ours.astype(np.float64) if tolerance else ours,
        theirs.astype(np.float64) if tolerance else theirs,
        rtol=tolerance,
        atol=tolerance * max(1.0, scale) if np.isfinite(scale) else tolerance,
        equal_nan=True,
    )


def check(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with np.errstate(all="ignore"):
        theirs = function(*args, **kwargs)
    traced = trace_call(function, args, kwargs)
    traced.graph.validate()
    outputs = traced.graph.run(*traced.arguments, *traced.extra)
    least = max(TOLERANCE.get(np.asarray(a).dtype, 0) for a in traced.arguments)
    compare(unflatten(traced.results, outputs), theirs, least)


X = (5, 7)
POSITIVE = np.abs(array(X)) + 0.5

UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "pos": lambda x: +x,
    "abs": abs,
    "np.abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "exp": np.exp,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "add scalar": lambda x: x + 1.5,
    "radd scalar": lambda x: 2 + x,
    "sub scalar": lambda x: x - 1,
    "rsub scalar": lambda x: 1 - x,
    "mul scalar": lambda x: 3 * x,
    "div scalar": lambda x: x / 4,
    "float32 scalar": lambda x: x * np.float32(0.1),
    "float64 scalar": lambda x: x * np.float64(0.1),
    "int scalar": lambda x: x + np.int32(3),
    "power 2": lambda x: x**2,
    "power 3": lambda x: x**3,
    "np.power 4": lambda x: np.power(x, 4),
    "greater": lambda x: x > 0,
    "less_equal": lambda x: x <= 0.5,
    "equal": lambda x: x == x,
    "not_equal": lambda x: x != 0,
    "logical_not": lambda x: ~(x > 0),
    "mask and": lambda x: (x > 0) & (x < 1),
    "mask or": lambda x: np.logical_or(x < 0, x > 1),
    "mask xor": lambda x: (x > 0) ^ (x > 1),
    "isnan": np.isnan,
    "where scalar": lambda x: np.where(x > 0, x, 0.0),
    "maximum scalar": lambda x: np.maximum(x, 0),
    "minimum": lambda x: np.minimum(x, 1),
    "clip": lambda x: np.clip(x, -1, 1),
    "clip method": lambda x: x.clip(0, None),
    "sum": np.sum,
    "sum axis": lambda x: x.sum(axis=0),
    "sum axes keepdims": lambda x: np.sum(x, axis=(0, 1), keepdims=True),
    "sum dtype": lambda x: x.sum(axis=1, dtype=np.float64),
    "mean": lambda x: x.mean(axis=-1),
    "np.mean keepdims": lambda x: np.mean(x, axis=1, keepdims=True),
    "max": lambda x: x.max(axis=1),
    "np.amin": lambda x: np.amin(x, axis=0, keepdims=True),
    "ptp": lambda x: np.ptp(x, axis=1),
    "any": lambda x: np.any(x > 1.5, axis=0),
    "all": lambda x: (x > -3).all(),
    "cumsum": lambda x: np.cumsum(x, axis=1),
    "cumsum flat": lambda x: x.cumsum(),
    "add.reduce": lambda x: np.add.reduce(x),
    "maximum.reduce": lambda x: np.maximum.reduce(x, axis=1),
    "add.accumulate": lambda x: np.add.accumulate(x, axis=0),
    "T": lambda x: x.T,
    "transpose": lambda x: np.transpose(x, (1, 0)),
    "swapaxes": lambda x: np.swapaxes(x, 0, -1),
    "moveaxis": lambda x: np.moveaxis(x[:, :, None], 2, 0),
    "reshape": lambda x: x.reshape(7, 5),
    "reshape -1": lambda x: np.reshape(x, (-1, 1)),
    "ravel": np.ravel,
    "flatten": lambda x: x.flatten(),
    "expand_dims": lambda x: np.expand_dims(x, (0, 2)),
    "squeeze": lambda x: np.squeeze(x[:, :1]),
    "broadcast_to": lambda x: np.broadcast_to(x, (3, 5, 7)),
    "concatenate": lambda x: np.concatenate([x, x[:2]], axis=0),
    "concatenate None": lambda x: np.concatenate([x, x], axis=None),
    "stack": lambda x: np.stack([x, x], axis=-1),
    "vstack": lambda x: np.vstack([x, x[0]]),
    "hstack": lambda x: np.hstack([x, x]),
    "column_stack": lambda x: np.column_stack([x[:, 0], x]),
    "tile": lambda x: np.tile(x, (2, 1, 3)),
    "repeat": lambda x: np.repeat(x, 2, axis=1),
    "split": lambda x: np.split(x, [2, 3], axis=1),
    "array_split": lambda x: np.array_split(x, 3, axis=1),
    "roll": lambda x: np.roll(x, 2, axis=1),
    "roll flat": lambda x: np.roll(x, -3),
    "pad": lambda x: np.pad(x, ((1, 0), (0, 2))),
    "pad value": lambda x: np.pad(x, 1, constant_values=3),
    "triu": np.triu,
    "tril k": lambda x: np.tril(x, -1),
    "diag of matrix": np.diag,
    "diag k": lambda x: np.diag(x, 2),
    "diag of vector": lambda x: np.diag(x[0]),
    "diag of vector k": lambda x: np.diag(x[0], -1),
    "diagonal": lambda x: x.diagonal(1),
    "trace": np.trace,
    "index int": lambda x: x[2],
    "index negative": lambda x: x[-1, -2],
    "slice": lambda x: x[1:4, ::3],
    "slice negative": lambda x: x[-3:, :-1],
    "index None": lambda x: x[:, None, 1],
    "index ellipsis": lambda x: x[..., 0],
    "take": lambda x: np.take(x, [0, -1, 3], axis=1),
    "fancy": lambda x: x[:, [1, 1, 6]],
    "zeros_like": np.zeros_like,
    "full_like": lambda x: np.full_like(x, 2),
    "ones inside": lambda x: x + np.ones((5, 1), x.dtype),
    "arange inside": lambda x: x * np.arange(7),
    "eye inside": lambda x: x @ np.eye(7, dtype=x.dtype),
    "iterate": lambda x: [row.sum() for row in x],
    "outer": lambda x: np.outer(x[0], x[1]),
    "inner": lambda x: np.inner(x, x),
    "vdot": lambda x: np.vdot(x, x),
    "dot vector": lambda x: np.dot(x[0], x[1]),
    "multiply.outer": lambda x: np.multiply.outer(x[0], x[1]),
    "tensordot": lambda x: np.tensordot(x, x, axes=([0], [0])),
    "astype": lambda x: x.astype(np.float64),
    "astype int": lambda x: x.astype(np.int32),
    "astype bool": lambda x: x.astype(bool),
    "len and shape": lambda x: x * len(x) / x.shape[1] + x.ndim,
    "dict out": lambda x: {"a": x + 1, "b": (x, [x * 2])},
    "split unpack": lambda x: np.add(*np.split(x[:, :6], 2, axis=1)),
}
FLOAT_ONLY: dict[str, Callable[[Any], Any]] = {
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "log": lambda x: np.log(np.abs(x) + 1),
    "reciprocal": lambda x: np.reciprocal(x * x + 1),
    "power half": lambda x: (x * x) ** 0.5,
    "power negative": lambda x: (x * x + 1) ** -1.5,
    "var": lambda x: x.var(axis=1),
    "std ddof": lambda x: np.std(x, axis=0, ddof=1, keepdims=True),
    "var correction": lambda x: np.var(x, axis=0, correction=1),
    "average": lambda x: np.average(x, axis=0),
    "average weights": lambda x: np.average(x, axis=0, weights=np.arange(1.0, len(x) + 1)),
    "average columns": lambda x: np.average(x, axis=1, weights=x[0], keepdims=True),
    "average transposed": lambda x: np.average(x, axis=(1, 0), weights=x.T),
    "norm": lambda x: np.linalg.norm(x),
    "norm axis": lambda x: np.linalg.norm(x, axis=1, keepdims=True),
    "softmax": lambda x: (
        np.exp(x - x.max(-1, keepdims=True))
        / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "layernorm": lambda x: (
        (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    ),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("name", UNARY)
def test_function(name: str, dtype: str) -> None:
    check(UNARY[name], array(X, dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", FLOAT_ONLY)
def test_float_function(name: str, dtype: Any) -> None:
    check(FLOAT_ONLY[name], array(X, dtype))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / (y * y + 1),
    "maximum": np.maximum,
    "less": lambda x, y: x < y,
    "where": lambda x, y: np.where(x < y, x, y),
    "concatenate": lambda x, y: np.concatenate([x, y]),
}
DTYPES = ["f8", "f4", "f2", ml_dtypes.bfloat16, "i8", "i4", "i1", "u1", "?"]


@pytest.mark.parametrize("right", DTYPES, ids=str)
@pytest.mark.parametrize("left", DTYPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_promotion_is_that_of_numpy(name: str, left: Any, right: Any) -> None:
    x, y = array((4, 3), left), array((4, 3), right, seed=1)
    try:
        with np.errstate(all="ignore"):
            result = BINARY[name](x, y)
    except TypeError:  # NumPy refuses (bool - bool, some custom dtypes): so must we
        with pytest.raises(Error):
            trace(BINARY[name], x, y)
        return
    if np.dtype(result.dtype) not in {np.dtype(d) for d in DTYPES}:
        with pytest.raises(UnsupportedError, match="is not supported"):
            trace(BINARY[name], x, y)
        return
    check(BINARY[name], x, y)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((6, 1, 3, 4), (2, 4, 5)),
        ((1, 1), (1, 1)),
    ],
)
@pytest.mark.parametrize("function", [np.matmul, np.dot], ids=["matmul", "dot"])
def test_matmul_shapes(function: Any, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(lambda x, y: function(x, y), array(a, "f8"), array(b, "f8", 1))


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,jk->ik", "ij,jk", "ij,kj->ik", "ij->ji", "ii->i", "ii", "ij->", "ij->j",
        "bij,bjk->bik", "bhid,bhjd->bhij", "i,j->ij", "i,i->", "ij,ij->ij", "ij,jk,kl->il",
        "ijk,k->ij", "abc,cd->abd", "ij,j->i", "ij,k->ijk", "bij,bjk->ikb",
    ],
)  # fmt: skip
def test_einsum(subscripts: str) -> None:
    sizes = dict(zip("abcdhijkl", (2, 3, 4, 5, 2, 3, 4, 5, 6), strict=True))
    if "ii" in subscripts:
        sizes["i"] = 4
    operands = subscripts.split("->")[0].split(",")
    arrays = [array(tuple(sizes[c] for c in o), "f8", n) for n, o in enumerate(operands)]
    check(lambda *xs: np.einsum(subscripts, *xs), *arrays)


def rmsnorm_linear(X: Any, G: Any, W: Any) -> Any:
    return (X * G / np.sqrt(np.mean(X * X, axis=-1, keepdims=True) + 1e-6)) @ W


def attention(Q: Any, K: Any, V: Any, scale: float = 0.125) -> Any:
    scores = Q @ K.swapaxes(-1, -2) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ V


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_whole_programs(dtype: str) -> None:
    check(rmsnorm_linear, array((3, 11), dtype), array((11,), dtype, 1), array((11, 5), dtype, 2))
    q, k, v = (array((2, 6, 4), dtype, n) for n in range(3))
    check(attention, q, k, v)
    check(attention, q, k, V=v, scale=2)


def test_constants_stay_as_written() -> None:
    text = str(trace(lambda x: x * np.float32(0.1) + 1e-6, "f32[4]"))
    assert "value=0.1}" in text
    assert "value=1e-06}" in text


def test_arguments_may_be_nested() -> None:
    def f(xs: list[Any], options: dict[str, Any], *, flag: bool = False) -> Any:
        total = xs[0] + xs[1]
        return total * options["scale"] if flag else total @ options["w"]

    x, w = array((3, 4)), array((4, 2))
    check(f, [x, x], {"w": w, "scale": 2.0})
    check(f, [x, x], {"w": w, "scale": 2.0}, flag=True)
    names = list(trace(f, [x, x], {"w": w, "scale": 2.0}).input_types())
    assert names == ["xs_0", "xs_1", "options_w"]


OUTSIDE = np.arange(12, dtype=np.float32).reshape(4, 3)


def uses_outside(x: Any) -> Any:
    return x @ OUTSIDE + OUTSIDE.T[0, 0]


def test_arrays_from_outside_become_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    x = array((2, 4))
    check(uses_outside, x)
    traced = trace_call(uses_outside, (x,), {})
    environment = traced.environment
    assert any(a is OUTSIDE for a in traced.extra)
    assert environment.unchanged()
    monkeypatch.setitem(uses_outside.__globals__, "OUTSIDE", OUTSIDE + 1)
    assert not environment.unchanged()


def test_arrays_that_nothing_holds_are_refused() -> None:
    class Model:
        weight = np.ones((4, 4), np.float32) * 3

    model, hidden = Model(), iter([np.ones((4, 4), np.float32)] * 2)

    def f(x: Any) -> Any:
        return x @ model.weight

    def g(x: Any) -> Any:
        return x @ next(hidden)

    x = array((2, 4))
    assert any(a is Model.weight for a in trace_call(f, (x,), {}).extra)
    with pytest.raises(UnsupportedError, match="it uses hidden, a list_iterator from outside"):
        trace_call(g, (x,), {})
    assert len(list(hidden)) == 2


class Settings:
    scale = 2.0

    def __init__(self) -> None:
        self.eps = 0.5
        self.inner = {"shift": [1.0, 3.0]}


def test_changes_behind_variables_are_seen() -> None:
    settings, table = Settings(), {"gain": 4.0}

    def helper(x: Any) -> Any:
        return x * settings.inner["shift"][1]

    def f(x: Any) -> Any:
        return helper(x) * settings.scale + settings.eps * table["gain"] + table.get("extra", 0.0)

    def read() -> Environment:
        return trace_call(f, (np.ones(3),), {}).environment

    before = read()
    assert before.unchanged()

    def changed() -> bool:
        nonlocal before
        seen = not before.unchanged()
        before = read()
        assert before.unchanged()
        return seen

    settings.eps = 0.25
    assert changed()
    settings.inner["shift"][1] = 5.0
    assert changed()
    settings.inner["shift"].append(7.0)
    assert changed()
    table["gain"] = 1.0
    assert changed()
    table["extra"] = 1.0
    assert changed()
    Settings.scale = 3.0
    try:
        assert changed()
        settings.scale = 9.0  # now the instance shadows the class
        assert changed()
    finally:
        Settings.scale = 2.0


def test_a_changed_entry_is_a_new_program() -> None:
    import tessera as ts

    table = {"gain": 2.0}
    f = ts.optimize(budget=3)(lambda x: np.exp(x * table["gain"]) + 1)
    x = array((4, 8))
    np.testing.assert_allclose(f(x), np.exp(x * 2) + 1, rtol=1e-5)
    table["gain"] = 0.5
    np.testing.assert_allclose(f(x), np.exp(x * np.float32(0.5)) + 1, rtol=1e-5)


def test_randomness_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        trace(lambda x: x + np.random.rand(3), "f32[3]")


def branch(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return -x


def in_place(x: Any) -> Any:
    x += 1
    return x


def assign(x: Any) -> Any:
    x[0] = 1
    return x


def fails(x: Any) -> Any:
    raise RuntimeError("no way")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (branch, "branches on the value"),
        (in_place, "in place"),
        (assign, "in place"),
        (lambda x: np.linalg.svd(x), r"np\.linalg\.svd is not supported"),
        (lambda x: np.sort(x), r"np\.sort is not supported"),
        (lambda x: x.argsort(), r"ndarray\.argsort is not supported"),
        (lambda x: np.add(x, x, out=x), "in place"),
        (lambda x: np.add(x, x, where=x > 0), "where="),
        (lambda x: np.sum(x, initial=3), "initial"),
        (lambda x: math.sqrt(x[0, 0]), "value of a traced array"),
        (lambda x: x[x > 0], "mask"),
        (lambda x: x.astype("i4") ** x.astype("i4"), "powers that are not constant"),
        (lambda x: np.arcsinh(x), r"np\.arcsinh is not supported"),
        (lambda x: x * 1j, "complex"),
        (lambda x: np.pad(x, 1, mode="linear_ramp"), "mode="),
        (lambda x: x.reshape(2, 6, order="F"), "order="),
        (lambda x: list(range(x)), "value of a traced array"),
    ],
)
def test_unsupported_names_line_and_reason(function: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        trace(function, "f32[4,3]")
    place = caught.value.location
    assert place is not None
    assert Path(place.file).name == "test_trace.py"
    assert place.line >= function.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (lambda x: x @ x, ("f32[4,3]",), "matmul: inner dimensions differ"),
        (lambda x, y: x + y, ("f32[4,3]", "f32[4]"), "add"),
        (lambda x: np.concatenate([x, x[0]]), ("f32[4,3]",), "concat"),
        (fails, ("f32[4]",), "RuntimeError: no way"),
        (lambda x: 3, ("f32[4]",), "returns no array"),
        (lambda x: x, (), "missing a required argument"),
        (lambda x: x, (np.zeros((0, 3)),), "every extent must be positive"),
        (lambda x: x, ("f32[4,0]",), "every extent must be positive"),
        (lambda x: x[5:], ("f32[4]",), "returns no array that depends on its arguments"),
        (lambda x: x.sum(axis=3), ("f32[4]",), "out of bounds"),
    ],
)
def test_mistakes(function: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        trace(function, *arguments)


@pytest.mark.parametrize("dtype", [np.complex64, np.int16, np.uint32, object, "U3"])
def test_dtypes_that_do_not_exist_here(dtype: Any) -> None:
    with pytest.raises(UnsupportedError, match="input x"):
        trace(lambda x: x, np.zeros(3, dtype))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_indexing_like_numpy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    items: list[Any] = []
    for extent in shape:
        items.append(
            data.draw(
                st.one_of(
                    st.integers(-extent, extent - 1),
                    st.builds(
                        slice,
                        st.one_of(st.none(), st.integers(-7, 7)),
                        st.one_of(st.none(), st.integers(-7, 7)),
                        st.one_of(st.none(), st.integers(1, 4)),
                    ),
                )
            )
        )
        if data.draw(st.booleans()):
            items.append(None)
    cut = data.draw(st.integers(0, len(items)))
    key = (*items[:cut], ...) if data.draw(st.booleans()) else tuple(items)
    expected = x[key]
    if expected.size == 0:
        with pytest.raises(BadInputError):
            trace(lambda a: a[key], x)
    else:
        check(lambda a: a[key] + 0.0, x)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from(["sum", "mean", "max", "min", "var"]),
    st.booleans(),
    st.data(),
)
def test_reductions_like_numpy(
    shape: list[int], name: str, keepdims: bool, data: st.DataObject
) -> None:
    axes = data.draw(
        st.one_of(
            st.none(),
            st.integers(-len(shape), len(shape) - 1),
            st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1).map(tuple),
        )
    )
    x = array(tuple(shape), "f8")
    check(lambda a: getattr(np, name)(a, axis=axes, keepdims=keepdims), x)
