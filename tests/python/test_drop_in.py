"""Source that stands in for a function: its parameters, results, memory and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tessera.drop_in import DropIn
from tessera.emit import compile_source
from tessera.frontends.trace import trace, trace_call
from tessera.frontends.traced import arguments
from tessera.graph import Graph
from tessera.options import Options
from tessera.rewrite import rewrite

Array = np.ndarray[Any, Any]


def drop_in(function: Callable[..., Any], *args: Any, **kwargs: Any) -> DropIn:
    traced = trace_call(function, args, kwargs)
    arrays = arguments(traced.graph, traced, 1)
    return DropIn(traced.graph, function, traced, function.__name__, arrays)


def emitted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """A function's own program as source."""
    made = drop_in(function, *args, **kwargs)
    return compile_source(made.source(trace(function, *args, **kwargs)), function.__name__)


def test_parameters_and_results_are_the_functions() -> None:
    def layer(
        weights: Any, *rows: Array, scale: float = 2.0, mode: str = "a", **more: Array
    ) -> Any:
        y = weights["w"][0] @ rows[0] * scale
        return {"y": y, "rest": [(rows[1] + more["bias"],), 3]}

    made = emitted(layer, {"w": ["f64[3,4]"]}, "f64[4]", "f64[5]", bias="f64[5]")
    rng = np.random.default_rng(1)
    w, x, r, b = rng.random((3, 4)), rng.random(4), rng.random(5), rng.random(5)
    got, want = (f({"w": [w]}, x, r, bias=b) for f in (made, layer))
    assert list(got) == ["y", "rest"]
    assert got["rest"][1] == 3
    assert type(got["rest"][0]) is tuple
    np.testing.assert_allclose(got["y"], want["y"])
    np.testing.assert_array_equal(got["rest"][0][0], want["rest"][0][0])
    wrong: list[tuple[Any, list[Any], dict[str, Any]]] = [
        ({"w": [w]}, [x, r], {"bias": b, "scale": 3.0}),
        ({"w": [w]}, [x, r], {"bias": b, "mode": "b"}),
        ({"w": [w, w]}, [x, r], {"bias": b}),
        ({"w": [w]}, [x, r, r], {"bias": b}),
        ({"w": [w]}, [x, r], {"bias": b, "other": b}),
    ]
    for weights, rows, more in wrong:
        with pytest.raises(ValueError, match="optimize again for other values"):
            made(weights, *rows, **more)


def test_arrays_from_outside_become_keyword_arguments() -> None:
    table = np.random.default_rng(1).random(100)

    def weigh(x: Array) -> Array:
        return x * table

    made = emitted(weigh, "f64[100]")
    x = np.arange(100.0)
    np.testing.assert_array_equal(made(x, outer0=table), weigh(x))
    with pytest.raises(TypeError, match="outer0"):
        made(x)


class Pair(NamedTuple):
    a: Array
    b: Array


def test_results_without_a_spelling_come_as_a_tuple() -> None:
    def pair(x: Array) -> Pair:
        return Pair(x + 1, x * 2)

    first, second = emitted(pair, "f64[3]")(np.ones(3))
    np.testing.assert_array_equal(first, second)


def test_arrays_that_the_function_makes_of_nothing_are_in_its_results() -> None:
    def several(x: Array) -> Any:
        return np.sqrt(np.exp(x)), np.zeros((2, 3), np.float32), {"range": np.arange(4)}

    source = emitted(several, "f64[3]")
    for _ in range(2):
        ours, theirs = source(np.ones(3)), several(np.ones(3))
        assert isinstance(ours, tuple)
        pairs = [(ours[0], theirs[0]), (ours[1], theirs[1]), (ours[2]["range"], theirs[2]["range"])]
        for a, b in pairs:
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b)
        ours[1][0] = 7


def test_results_share_no_memory_unless_the_originals_do() -> None:
    def same(x: Array, y: Array) -> tuple[Array, ...]:
        return np.exp(np.log(x)), x * y, x * y, y.T, np.zeros((4, 3)) + np.sum(x)

    found = rewrite(
        trace(same, "f64[3,3] > 0", "f64[3,3]"),
        function=same,
        traced=trace_call(same, ["f64[3,3] > 0", "f64[3,3]"], {}),
        options=Options(budget=4),
        name="same",
    )
    x, y = np.random.default_rng(1).random((2, 3, 3)) + 1
    results = found.function()(x, y)
    assert not any(np.shares_memory(r, x) for r in results)
    assert [np.shares_memory(r, y) for r in results] == [False, False, False, True, False]
    assert not any(np.shares_memory(a, b) for n, a in enumerate(results) for b in results[n + 1 :])
    assert all(r.flags.writeable for r in results)


def test_programs_that_hold_for_other_sizes_say_so() -> None:
    def centred(x: Array, w: Array) -> Any:
        return (x - x.mean(axis=0)) @ w

    program = trace(centred, "f64[40,12]", "f64[12,5]")
    assert drop_in(centred, "f64[40,12]", "f64[12,5]").proved_at_other_sizes(program, Options())


def test_programs_that_hold_a_size_refuse_others() -> None:
    def total(x: Array) -> Any:
        return x.mean(axis=0)

    def of_forty(x: Array) -> Any:
        return x.sum(axis=0) * 0.025

    made = drop_in(total, "f64[40,12]")
    program = trace(of_forty, "f64[40,12]")
    assert made.proved_at_other_sizes(program, Options()) == 0
    guarded = compile_source(made.source(program, these_sizes=True), "total")
    x = np.random.default_rng(1).random((40, 12))
    np.testing.assert_allclose(guarded(x), total(x))
    with pytest.raises(ValueError, match=r"made for x of shape \(40, 12\)"):
        guarded(x[:20])


def test_rewrites_of_square_matrices_hold_for_all_of_them() -> None:
    def diagonal(a: Array, b: Array) -> Any:
        return np.diag(a @ b) * 1

    def products(a: Array, b: Array) -> Any:
        return (a * b.T).sum(axis=1)

    made = drop_in(diagonal, "f64[12,12]", "f64[12,12]")
    program = trace(products, "f64[12,12]", "f64[12,12]")
    assert made.proved_at_other_sizes(program, Options()) == 0  # with 1 by n it is another
    least = made.least_extents(program, Options())
    assert least == ({12: 2}, 2)
    source = compile_source(made.source(program, these_ties=least[0]), "diagonal")
    for n in (2, 12, 30):
        a, b = np.random.default_rng(n).random((2, n, n))
        np.testing.assert_allclose(source(a, b), diagonal(a, b))
    for shapes in (((1, 3), (3, 4)), ((1, 1), (1, 1)), ((3, 4), (4, 3))):
        with pytest.raises(ValueError, match=r"made for a of shape \(n, n\), b of shape \(n, n\)"):
            source(*map(np.ones, shapes))
    with pytest.raises(ValueError, match="made for a of rank 2"):
        source(np.ones((2, 3, 3)), np.ones((2, 3, 3)))
    wrong = trace(lambda a, b: (a * b).sum(axis=1), "f64[12,12]", "f64[12,12]")
    assert made.least_extents(wrong, Options()) is None


def test_rewrites_of_windows_hold_from_some_length_on() -> None:
    def edges(x: Array, w: Array) -> Any:
        return (x[2:] - x[1:-1]) - (x[1:-1] - x[:-2]) + w

    def curvature(x: Array, w: Array) -> Any:
        return x[2:] - 2 * x[1:-1] + x[:-2] + w

    made = drop_in(edges, "f64[40]", "f64[1]")
    program = trace(curvature, "f64[40]", "f64[1]")
    least = made.least_extents(program, Options())
    assert least == ({40: 12}, 2)
    source = compile_source(made.source(program, these_ties=least[0]), "edges")
    for n in (12, 40, 77):
        x = np.random.default_rng(n).random(n)
        np.testing.assert_allclose(source(x, x[:1]), edges(x, x[:1]))
    with pytest.raises(ValueError, match="n at least 12"):
        source(np.ones(11), np.ones(1))
    with pytest.raises(ValueError, match=r"made for x of shape \(n,\), w of shape \(1,\)"):
        source(np.ones(40), np.ones(38))

    def window(x: Array) -> Any:
        return np.sum(x[50:150] ** 2) / 100

    made = drop_in(window, "f64[200]")
    assert made.least_extents(trace(window, "f64[200]"), Options()) == ({200: 200}, 2)
    fixed = trace(lambda x: np.sum(x[50:150] ** 2) / len(x) * 2, "f64[200]")
    assert made.least_extents(fixed, Options(), read_sizes="first") is None


def test_axes_that_are_equally_long_by_chance_are_told_apart() -> None:
    def row_means(x: Array) -> Any:
        return x.mean(axis=1)

    def over_columns(x: Array) -> Any:
        return x.sum(axis=1) / len(x)

    made = drop_in(row_means, "f64[40,40]")
    own, wrong = (trace(f, "f64[40,40]") for f in (row_means, over_columns))
    assert made.proved_at_other_sizes(own, Options())
    assert made.proved_at_other_sizes(wrong, Options(), read_sizes="first") == 0


def test_axes_that_must_be_equally_long_stay_so() -> None:
    def rows_of_sum(a: Array, b: Array, c: Array) -> Any:
        return (a + b + c).sum(axis=1)

    def product(a: Array, b: Array) -> Any:
        return a @ b

    types = ["f64[40,40]"] * 3
    made = drop_in(rows_of_sum, *types)
    assert made.proved_at_other_sizes(trace(rows_of_sum, *types), Options())
    made = drop_in(product, *types[:2])
    assert made.proved_at_other_sizes(trace(product, *types[:2]), Options())


def test_axes_of_one_are_not_taken_for_granted() -> None:
    def weighted(x: Array, w: Array) -> Any:
        return (x * w).sum(axis=0)

    def first_column(x: Array, w: Array) -> Any:
        return w[:, 0] @ x

    types = "f64[40,12]", "f64[40,1]"
    made = drop_in(weighted, *types)
    assert made.proved_at_other_sizes(trace(weighted, *types), Options())
    assert made.proved_at_other_sizes(trace(first_column, *types), Options()) == 0


def test_functions_that_look_at_sizes_hold_for_their_own() -> None:
    def by_size(x: Array) -> Array:
        return x + 1 if x.shape[0] > 30 else x * 2

    program = trace(by_size, "f64[40]")
    assert drop_in(by_size, "f64[40]").proved_at_other_sizes(program, Options()) == 0


def test_matrices_that_the_function_makes_are_in_the_source() -> None:
    def centre(k: Array) -> Any:
        n = len(k)
        return (np.eye(n) - np.ones((n, n)) / n) @ k

    made = drop_in(centre, "f64[9,4]")
    source = made.source(trace(centre, "f64[9,4]"))
    assert "np.eye(9" in source
    assert " - 0.1" in source
    k = np.random.default_rng(1).random((9, 4))
    np.testing.assert_allclose(compile_source(source, "centre")(k), centre(k))


def test_sizes_are_read_from_the_arguments() -> None:
    def spread(x: Array) -> Any:
        return ((x - x.sum(axis=0) / len(x)) ** 2).sum(axis=0) / (len(x) - 1)

    made = drop_in(spread, "f64[40,12]")
    program = trace(spread, "f64[40,12]")
    assert made.proved_at_other_sizes(program, Options()) == 0
    assert made.proved_at_other_sizes(program, Options(), read_sizes="first")
    source = made.source(program, read_sizes="first")
    assert "/ len(x)" in source
    assert "/ (len(x) - 1)" in source
    x = np.random.default_rng(1).random((7, 3))
    np.testing.assert_allclose(compile_source(source, "spread")(x), spread(x))


def test_floats_that_callers_pass_are_of_float64() -> None:
    def scaled(x: Array, s: float) -> Any:
        return x * s + np.exp(x) * s * s

    for dtype in (np.float32, np.float64):
        x = np.linspace(-1, 1, 40, dtype=dtype)
        traced = trace_call(scaled, [x, 0.3], {}, floats=True)
        made = DropIn(traced.graph, scaled, traced, "scaled", arguments(traced.graph, traced, 1))
        assert made.proved_at_other_sizes(traced.graph, Options())
        result = compile_source(made.source(traced.graph), "scaled")(x, 0.3)
        assert result.dtype == dtype
        np.testing.assert_allclose(result, scaled(x, 0.3), rtol=1e-6)


def test_results_without_axes_are_scalars_where_the_originals_are() -> None:
    def several(x: Array, y: Array) -> tuple[Any, ...]:
        total = np.asarray(np.sum(x))
        return total, np.sum(x), np.squeeze(x[:1]), y.reshape(())[()], y.reshape(()), x * 2

    x, y = np.arange(4.0), np.ones((1, 1))
    made = emitted(several, "f64[4]", "f64[1,1]")
    got, want = made(x, y), several(x, y)
    assert {type(r) for r in want} == {np.ndarray, np.float64}
    assert [type(r) for r in got] == [type(r) for r in want]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_ranks_are_refused_where_they_would_be_wrong() -> None:
    def weighted(a: Array, x: Array) -> Any:
        return (a * x).sum(axis=1)

    def product(a: Array, x: Array) -> Any:
        return a @ x

    made = drop_in(weighted, "f64[40,12]", "f64[12]")
    program = trace(product, "f64[40,12]", "f64[12]")
    assert made.needs_rank_guards(program, Options())
    source = compile_source(made.source(program, these_ranks=True), "weighted")
    a, x = np.ones((3, 3)), np.ones((3, 1))
    assert weighted(a, x).shape == (3,)
    with pytest.raises(ValueError, match="made for x of rank 1"):
        source(a, x)
    assert not drop_in(product, "f64[40,12]", "f64[12]").needs_rank_guards(program, Options())


def test_axes_that_shrink_to_one_are_not_taken_for_equal() -> None:
    def first(x: Array, y: Array) -> Any:
        return x * 0 + y

    def second(x: Array, y: Array) -> Any:
        return y + 0 * y

    made = drop_in(first, "f64[40,12]", "f64[40,12]")
    program = trace(second, "f64[40,12]", "f64[40,12]")
    assert made.proved_at_other_sizes(program, Options()) == 0
    same = trace(first, "f64[40,12]", "f64[40,12]")
    assert made.proved_at_other_sizes(same, Options())


def test_of_equal_sizes_the_right_one_is_read() -> None:
    def means(x: Array) -> Any:
        return x.mean(axis=1)

    def sums(x: Array) -> Any:
        return x.sum(axis=1) / 60

    made = drop_in(means, "f64[60,60]")
    program = trace(sums, "f64[60,60]")
    assert made.proved_at_other_sizes(program, Options()) == 0
    assert made.proved_at_other_sizes(program, Options(), read_sizes="first") == 0
    assert made.proved_at_other_sizes(program, Options(), read_sizes="last")


def test_arrays_that_a_function_makes_are_in_its_source() -> None:
    def shifted(x: Array, y: Array) -> Any:
        return x // y + np.sin(np.arange(4.0))

    made = emitted(shifted, "f64[4]", "f64[4]")
    x, y = np.arange(4.0) - 1, np.array([2.0, -3.0, 0.5, 1.0])
    np.testing.assert_array_equal(made(x, y), shifted(x, y))


def test_programs_of_one_result_return_it_alone() -> None:
    graph = "graph f {{ x = input : f32[4,2] y = {} return y }}"
    for operator, source in (
        ("sum x {axes=[0,1]}", "x.sum()"),
        ("sum x {axes=[0,1], keepdims=true}", "x.sum(keepdims=True)"),
        ("add x, x", "x + x"),
    ):
        program = Graph.parse(graph.format(operator))
        made = DropIn(program, None, None, "f", arguments(program, None, 1))
        assert made.source(program).endswith(f"return {source}\n")
