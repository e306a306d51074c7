"""`out=`: results in memory of the caller's, checked before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import _core
from tessera.call_forms import GraphCall
from tessera.errors import BadInputError, WrongTypeError
from tessera.result import Result
from tessera.runner import Runner

RNG = np.random.default_rng(11)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


@pytest.fixture(scope="module")
def softmax() -> Result:
    def program(x: Any) -> Any:
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    return ts.superoptimize(program, "f32[12,33]", budget=2, cache=False)


@pytest.fixture(scope="module")
def pair() -> Result:
    def program(X: Any) -> Any:
        return np.exp(X), X.sum(axis=1)

    g = ts.trace(program, "f32[6,8]")
    return ts.superoptimize(g, budget=2, cache=False)


def test_one_result(softmax: Result) -> None:
    x = random(12, 33)
    out = np.full((12, 33), np.nan, np.float32)
    assert softmax(x, out=out) is out
    np.testing.assert_array_equal(out, softmax(x))
    part = np.full((14, 33), np.nan, np.float32)
    softmax(x, out=part[1:13])
    np.testing.assert_array_equal(part[1:13], out)
    assert np.isnan(part[[0, 13]]).all()
    (again,) = softmax.run_arrays([x], [out])
    assert again is out


def test_several_results(pair: Result) -> None:
    x = random(6, 8)
    want = pair(x)
    out = tuple(np.zeros_like(y) for y in want)
    assert pair(X=x, out=out) is out
    for got, expected in zip(out, want, strict=True):
        np.testing.assert_array_equal(got, expected)
    both = np.zeros(48 + 6, np.float32)
    with pytest.raises(BadInputError, match=r"out\[1\] and out\[0\] share memory"):
        pair(x, out=(both[:48].reshape(6, 8), both[42:48]))
    with pytest.raises(BadInputError, match="2 arrays, one per result, not 1"):
        pair(x, out=out[0])


def test_what_does_not_fit(softmax: Result) -> None:
    x = random(12, 33)
    before = x.copy()
    read_only = np.zeros((12, 33), np.float32)
    read_only.flags.writeable = False
    for wrong, error, words in (
        ([[1.0]], WrongTypeError, "out must be a NumPy array or a torch tensor, not list"),
        (np.zeros((12, 33)), WrongTypeError, r"must be f32\[12,33\], not f64\[12,33\]"),
        (np.zeros((33, 12), np.float32), BadInputError, r"not f32\[33,12\]"),
        (np.zeros((33, 12), np.float32).T, BadInputError, "contiguous"),
        (read_only, BadInputError, "read-only"),
        (x, BadInputError, "out shares memory with argument x"),
    ):
        with pytest.raises(error, match=words):
            softmax(x, out=wrong)
    assert issubclass(WrongTypeError, TypeError)
    assert issubclass(BadInputError, ValueError)
    np.testing.assert_array_equal(x, before)


def test_over_an_argument_where_that_is_safe() -> None:
    g = ts.Graph("ratio")
    x, y = g.input("X", (40, 50)), g.input("Y", (40, 50))
    g.output(x / (y * y + 1))
    runner = Runner(_core.compile(g.core), GraphCall(g).names)
    a, b = random(40, 50), random(40, 50)
    (want,) = runner([a, b])
    module = _core.compile(g.core)
    safe = [i for i in range(2) if module.may_overwrite(i, 0)]
    assert safe
    for i in range(2):
        arrays = [a.copy(), b.copy()]
        if i in safe:
            runner(arrays, arrays[i])
            np.testing.assert_array_equal(arrays[i], want)
        else:
            with pytest.raises(BadInputError, match="shares memory with argument"):
                runner(arrays, arrays[i])
    # Nor where a kernel reads other rows than it writes.
    mean = ts.Graph("mean")
    z = mean.input("X", (40, 50))
    mean.output(z * z + z.sum(axis=0) * z)
    other = Runner(_core.compile(mean.core), GraphCall(mean).names)
    (want,) = other([a])
    own = a.copy()
    if _core.compile(mean.core).may_overwrite(0, 0):
        other([own], own)
        np.testing.assert_array_equal(own, want)
    else:
        with pytest.raises(BadInputError, match="shares memory with argument"):
            other([own], own)
    # Shifted by a row it is never safe.
    long = np.zeros((41, 50), np.float32)
    with pytest.raises(BadInputError, match="shares memory"):
        runner([long[:40], b], long[1:])
    with pytest.raises(BadInputError, match="shares memory"):
        runner([a, long[:40]], long[1:])


def test_bf16_and_torch(softmax: Result) -> None:
    g = ts.trace(np.tanh, "bf16[5,7]")
    runner = Runner(_core.compile(g.core), list(g.input_types()))
    x = random(5, 7).astype(ts.types.to_numpy("bf16"))
    out = np.zeros_like(x)
    assert runner([x], out)[0] is out
    np.testing.assert_array_equal(out, runner([x])[0])
    torch = pytest.importorskip("torch")
    rows = torch.randn(12, 33)
    written = torch.zeros(12, 33)
    assert softmax(rows, out=written) is written
    torch.testing.assert_close(written, torch.softmax(rows, -1))
    words = torch.zeros(5, 7, dtype=torch.bfloat16)
    runner([torch.ones(5, 7, dtype=torch.bfloat16)], words)
    assert (words > 0.7).all()
    with pytest.raises(BadInputError, match="requires a gradient"):
        softmax(rows, out=torch.zeros(12, 33, requires_grad=True))


def test_an_argument_called_out_is_an_argument() -> None:
    result = ts.superoptimize(lambda out, x: out + 2 * x, "f32[3]", "f32[3]", budget=1, cache=False)
    one = np.ones(3, np.float32)
    np.testing.assert_array_equal(result(x=one, out=one), [3, 3, 3])
    np.testing.assert_array_equal(one, [1, 1, 1])
