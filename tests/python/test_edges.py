"""What level bitwise promises where numbers end, and what the default promises within a domain."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.corpus import programs
from tessera import _core
from tessera.call_forms import GraphCall
from tessera.frontends.trace import trace_call
from tessera.graph import Graph
from tessera.options import Options
from tessera.rewrite import rewrite
from tessera.runner import Runner
from tessera.special_values import differs_at_edges, edge_inputs, special_values

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.domains import check, smaller

# The whole corpus takes minutes: python -m bench.domains
SAMPLE = [
    *[p for p in programs("stenso") if p.name in ("synth_8", "log_exp_2", "scalar_sum")],
    *[p for p in programs("algebra") if p.name in ("sum_of_outer", "distribute")],
    *list(programs("statistics"))[3:4],
]


@pytest.mark.parametrize("program", SAMPLE, ids=lambda p: f"{p.group}.{p.name}")
def test_rewrites_are_as_defined_and_as_accurate_as_originals(program: object) -> None:
    small = smaller(program)  # type: ignore[arg-type]
    for report in check(small, bitwise=True, most=2, seeds=1):
        assert not report.special, report.source
        assert not report.zeros, report.source
    for report in check(small, bitwise=False, most=2, seeds=1):
        assert not report.undefined, report.source
        assert {f: r for f, r in report.accuracy.items() if r > 3} == {}, report.source


def test_edges_are_told_apart() -> None:
    x = np.linspace(0.5, 2, 60, dtype=np.float32).reshape(6, 10)

    def plain(a: Any, b: Any) -> Any:
        return a * b + a * b

    assert differs_at_edges(plain, lambda a, b: 2 * (a * b), [x, x]) == ""
    assert "in one program only" in differs_at_edges(plain, lambda a, b: (a + a) * b, [x, x])
    assert "in one program only" in differs_at_edges(
        np.exp, lambda a: np.exp(a / 2) ** 2 + 0 * a, [x]
    )
    assert "in one program only" in differs_at_edges(lambda a: a * a / a, lambda a: a, [x])
    assert "in one program only" in differs_at_edges(lambda a: a > 1, lambda a: ~(a <= 1), [x])
    assert "zeros of another sign" in differs_at_edges(lambda a: 0 + a, lambda a: a.copy(), [x])
    assert differs_at_edges(lambda a: a * 1, lambda a: a.copy(), [x]) == ""


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_edge_inputs_hold_every_special_value(dtype: type) -> None:
    sample = [np.ones((4, 5), dtype), np.arange(3)]
    seen = np.concatenate([np.ravel(a) for a, _ in edge_inputs(sample, np.random.default_rng(0))])
    assert seen.dtype == dtype
    for value in special_values(np.dtype(dtype)):
        assert (np.isnan(seen) if np.isnan(value) else seen == value).any(), value
    assert np.signbit(seen[seen == 0]).any()
    assert all(b is sample[1] for _, b in edge_inputs(sample, np.random.default_rng(0)))


DOMAINS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "exp_log": (lambda x: np.exp(np.log(x)), ["x > 0"]),
    "product_quotient": (lambda x, y: x * y / y, ["y != 0"]),
    "roots": (lambda x: np.sqrt(x) * np.sqrt(x), ["x >= 0"]),
    "over_root": (lambda x: x / np.sqrt(x), ["x > 0"]),
    "sum_quotient": (lambda x, y: (x + y) * (x * x) / (x + y), ["x + y != 0"]),
    "everywhere": (lambda x: x * 2 + x * 2, []),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_conditions_are_reported_and_bitwise_keeps_the_domain(name: str) -> None:
    function, expected = DOMAINS[name]
    types = ["f64[120,120] > 0"] * function.__code__.co_argcount
    traced = trace_call(function, types, {})
    loose = rewrite(traced.graph, traced=traced, function=function, name=name)
    assert loose.improved, loose.rejected
    assert loose.conditions == expected
    assert loose.json()["conditions"] == loose.conditions
    for condition in expected:
        assert f"    # equal where {condition}; elsewhere" in loose.source
    bitwise = rewrite(
        traced.graph, traced=traced, function=function, name=name, options=Options(level="bitwise")
    )
    assert bitwise.conditions == []
    assert differs_at_edges(function, bitwise.function(), [np.ones((120, 120))] * len(types)) == ""


def test_narrower_ranges_and_nan_are_told() -> None:
    from tessera.conditions import numbers_only, ranges
    from tessera.frontends.trace import trace

    def of(function: Any) -> Any:
        return trace(function, *["f64[5]"] * function.__code__.co_argcount)

    twice = of(lambda a, b: a / b / b)
    assert ranges(twice, of(lambda a, b: a / (b * b))) == ["b * b neither overflows nor vanishes"]
    assert ranges(twice, of(lambda a, b: a / b / b * 1)) == []
    assert ranges(twice, of(lambda a, b: a / (2 * b))) == []  # by a constant
    own = of(lambda a, b: a / (a * b) + b)
    assert ranges(own, of(lambda a, b: b + a / (a * b))) == []  # the original divides by it too
    chosen = of(lambda x: np.where(x > 0, x, 0))
    assert numbers_only(chosen, of(lambda x: np.maximum(x, 0))) == ["no compared number is NaN"]
    assert numbers_only(chosen, chosen) == []
    assert numbers_only(of(lambda x: x + x), of(lambda x: np.maximum(x, x) * 2)) == []
    x = np.array([1.0, -2.0, np.nan])
    function = lambda x: np.where(x > 0, x, 0)  # noqa: E731
    traced = trace_call(function, ["f64[3000]"], {})
    bitwise = rewrite(
        traced.graph, function=function, traced=traced, options=Options(level="bitwise")
    )
    assert bitwise.conditions == []
    assert bitwise.function()(np.resize(x, 3000))[2] == 0


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_nan_is_kept_by_whoever_runs_it(dtype: str) -> None:
    """NumPy's maxima and minima of NaN are NaN: so are the interpreter's and those of kernels."""
    text = (
        f"graph g {{\n  X = input : {dtype}[5,37]\n  Y = input : {dtype}[5,37]\n"
        "  r = relu X\n  a = max X, Y\n  b = min X, Y\n  c = reduce_max X {axes=[1]}\n"
        "  d = reduce_min X {axes=[0]}\n  return r, a, b, c, d\n}\n"
    )
    graph = Graph.from_core(_core.parse(text))
    x = np.random.default_rng(1).standard_normal((2, 5, 37)).astype(graph.input_types()["X"][0])
    x[0, 0, 0] = x[0, 3, 36] = x[1, 2, 5] = np.nan
    x[0, 1, 1] = -np.inf
    wanted = [np.maximum(x[0], 0), np.maximum(x[0], x[1]), np.minimum(x[0], x[1]),
              x[0].max(axis=1), x[0].min(axis=0)]  # fmt: skip
    runner = Runner(_core.compile(graph.core), GraphCall(graph).names)
    for found in (graph.run(x[0], x[1]), runner([x[0], x[1]])):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
