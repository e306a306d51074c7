"""Levels: `bitwise` gives NumPy's and PyTorch's own bits, and what each level accepts and says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import _core
from tessera.cli.app import run
from tessera.frontends.numpy import rounds_otherwise
from tessera.frontends.trace import trace_call
from tessera.options import LEVELS, Options
from tessera.rewrite import rewrite
from tessera.special_values import edge_inputs, results

Array = np.ndarray[Any, np.dtype[Any]]
# Kernels run, without a search.
KERNELS = Options(
    level="bitwise",
    disable=("numpy", "synth", "mugraph", "patterns", "mutate", "cover", "fold", "learnt"),
)
RNG = np.random.default_rng(5)


def made(dtype: str = "f4", *shape: int) -> Array:
    """Numbers of several magnitudes, with some zeros of both signs."""
    x = RNG.standard_normal(shape or (7, 33)) * 10.0 ** RNG.integers(-3, 4, shape or (7, 33))
    x[RNG.random(x.shape) < 0.05] = -0.0
    return x.astype(dtype)


def same_bits(a: Array, b: Array) -> bool:
    """NaN as NaN, all else bit for bit."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    integers = f"i{a.dtype.itemsize}"
    bits = np.ascontiguousarray(a).view(integers) == np.ascontiguousarray(b).view(integers)
    return bool((bits | (np.isnan(a) & np.isnan(b))).all())


def blend(x: Array, y: Array, z: Array) -> Any:
    return x * y + z * np.float32(0.3)  # what FMA would round once


def stencil(x: Array) -> Any:
    return (x[1:-1] + x[:-2] * 0.25 + x[2:] * 0.25) / 3


def signs(x: Array, y: Array) -> Any:
    return np.where(x > y, x + 0, -y), np.abs(-x) * 1


def hypotenuse(x: Array, y: Array) -> Any:
    return np.sqrt(x * x + y * y) / (1 + x * x)


def polynomial(x: Array) -> Any:
    return ((0.1 * x - 0.7) * x + 0.3) * x - 1e-3


def integers(n: Array, x: Array) -> Any:
    return n * 3 - 7, n / 3 + x


# Compiled, since every operation rounds by itself.
COMPILED: list[tuple[Callable[..., Any], list[Array]]] = [
    (blend, [made(), made(), made()]),
    (blend, [made("f8"), made("f8"), made("f8")]),
    (stencil, [made("f8", 50)]),
    (signs, [made(), made()]),
    (hypotenuse, [made(), made()]),
    (polynomial, [made()]),
    (integers, [RNG.integers(-99, 99, (5, 9)), made("f8", 5, 9)]),
]


@pytest.mark.parametrize("n", range(len(COMPILED)))
def test_compiled_code_has_numpys_bits(n: int) -> None:
    function, arrays = COMPILED[n]
    fast = ts.optimize(options=KERNELS)(function)
    fast(*arrays)
    result = fast.result(*arrays)
    assert result is not None
    assert not result.interpreted
    assert result.kernel_source
    for varied in [arrays, *edge_inputs(arrays, np.random.default_rng(n))]:
        for a, b in zip(results(fast, *varied), results(function, *varied), strict=True):
            assert same_bits(a, b), function.__name__


# Of these an order of additions, a library's function or its choice among zeros decides: as they
# are. The second: what says so.
ORIGINAL: list[tuple[Callable[..., Any], list[Array], str]] = [
    (lambda x: x.sum(0), [made()], "'sum'"),
    (lambda x: x.mean(1) * 2, [made()], "'mean'"),
    (lambda x, y: x @ y + 1, [made("f4", 5, 7), made("f4", 7, 5)], "'matmul'"),
    (lambda x: np.exp(x) * 2 + np.exp(x), [made()], "'exp'"),
    (lambda x: np.maximum(x, 0), [made()], "'max'"),
    (lambda x, y: x * y + x, [made("f2"), made("f2")], "f16"),
    (lambda x: x.astype(np.int32), [RNG.random(9) * 100], "'cast'"),
    (lambda x: np.hypot(x, 2 * x), [made()], "hypot"),
    (lambda x: x**3 - x, [made()], "power"),
    (lambda x: np.prod(x[:, :4], axis=1), [made()], "prod"),
    (lambda x: np.deg2rad(x), [made()], "deg2rad"),
]


@pytest.mark.parametrize("n", range(len(ORIGINAL)))
def test_what_is_the_librarys_own_runs_as_it_is(n: int) -> None:
    function, arrays, why = ORIGINAL[n]
    fast = ts.optimize(level="bitwise", budget=1)(function)
    with pytest.warns(RuntimeWarning, match=f"level bitwise.*{why}"):
        fast(*arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for varied in [arrays, *edge_inputs(arrays, np.random.default_rng(n))]:
            for a, b in zip(results(fast, *varied), results(function, *varied), strict=True):
                assert same_bits(a, b)


def test_superoptimize_runs_the_function_itself() -> None:
    x = made()
    with pytest.warns(RuntimeWarning, match="level bitwise: 'sum'"):
        result = ts.superoptimize(lambda x: x.sum(1), x, level="bitwise", budget=1)
    assert not result.improved
    assert same_bits(result(x), x.sum(1))


def test_code_of_other_bits_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the generator contracted all the same: the comparison with the function tells."""
    monkeypatch.setattr(
        Options, "fields", lambda self, given=Options.fields: {**given(self), "level": "close"}
    )
    fast = ts.optimize(options=KERNELS, cache=False)(blend)
    arrays = [made("f4", 40, 64) for _ in range(3)]
    with pytest.warns(RuntimeWarning, match="have other bits"):
        fast(*arrays)
    assert same_bits(fast(*arrays), blend(*arrays))


def twice(x: Array) -> Any:
    return np.exp(x) * 2 + np.exp(x) / 2


def test_source_is_rewritten_where_its_calls_keep_the_bits() -> None:
    graph = ts.trace(twice, "f64[200,300]")
    b = ts.trace(lambda x: np.exp(x) * 2.5, "f64[200,300]")
    assert ts.verify(graph, b)
    assert not ts.verify(graph, b, level="bitwise")
    assert ts.verify(graph, ts.trace(lambda x: (e := np.exp(x)) / 2 + (e + e), "f64[200,300]"),
                     level="bitwise")  # fmt: skip
    assert rounds_otherwise({"add", "exp"}) == ""
    assert rounds_otherwise({"add", "var"}) == "var"


PAIRS: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
    (lambda x, y, z: x * y + x * z, lambda x, y, z: x * (y + z), "close fast"),
    (lambda x, y, z: x + y, lambda x, y, z: y + x, "bitwise close fast"),
    (lambda x, y, z: (x + y) + z, lambda x, y, z: x + (y + z), "close fast"),
    (lambda x, y, z: (x - y).sum(1), lambda x, y, z: (-y + x).sum(1), "bitwise close fast"),
    (lambda x, y, z: x.sum(1) + y.sum(1), lambda x, y, z: (x + y).sum(1), "close fast"),
    (
        lambda x, y, z: (
            np.exp(x - x.max(1, keepdims=True))
            / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
        ),
        lambda x, y, z: np.exp(x) / np.exp(x).sum(1, keepdims=True),
        "fast",
    ),
    (lambda x, y, z: x * y, lambda x, y, z: x * z, ""),
]


@pytest.mark.parametrize("n", range(len(PAIRS)))
def test_what_each_level_accepts(n: int) -> None:
    first, second, accepted = PAIRS[n]
    a, b = (ts.trace(f, *["f32[6,9]"] * 3) for f in (first, second))
    for level in LEVELS:
        verdict = ts.verify(a, b, level=level, seed=3)
        assert verdict.equal == (level in accepted.split()), (level, verdict.text)
        if verdict.certificate is not None:
            record = verdict.certificate.record()
            assert record["level"] == level
            assert f"level {level}: {record['level_means']}" in str(verdict.certificate)
            assert _core.recheck(verdict.certificate, a.core, b.core)[0]


def test_other_words_are_refused() -> None:
    g = ts.trace(lambda x: x + 1, "f32[3]")
    with pytest.raises(ts.Error, match="a level is bitwise, close, fast, not 'exact'"):
        ts.verify(g, g, level="exact")  # type: ignore[arg-type]
    with pytest.raises(ts.Error, match=r"no option 'strict'; level=\"bitwise\" keeps bits"):
        ts.optimize(strict=True)


def test_rewriting_source_at_bitwise_is_proved_as_text() -> None:
    def shared(x: Array) -> Any:
        return np.exp(x) + np.sqrt(np.exp(x))

    traced = trace_call(shared, ["f64[64,64]"], {})
    found = rewrite(traced.graph, function=shared, traced=traced,
                    options=Options(budget=2, level="bitwise", cache=False))  # fmt: skip
    x = made("f8", 64, 64)
    with np.errstate(all="ignore"):
        assert same_bits(found.function()(x), shared(x)), found.source


def test_certificates_of_tests_are_no_proofs(tmp_path: Path) -> None:
    """They are taken where that is asked for."""
    a = ts.trace(lambda x: np.where(x > 0, np.sin(x), 0), "f32[8]")
    b = ts.trace(lambda x: np.sin(np.maximum(x, 0)), "f32[8]")
    verdict = ts.verify(a, b, accept="tested")
    assert verdict.certificate is not None
    assert not verdict.certificate.record()["proved"]
    for graph, name in ((a, "a.ug"), (b, "b.ug")):
        graph.save(tmp_path / name)
    (tmp_path / "t.cert").write_text(str(verdict.certificate))
    command = ["verify", *(str(tmp_path / n) for n in ("a.ug", "b.ug")),
               "--certificate", str(tmp_path / "t.cert")]  # fmt: skip
    assert run(command) == 1
    assert run([*command, "--accept", "tested"]) == 0
