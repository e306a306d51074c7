"""Programs rewritten as source: equal, cheaper, and honest where nothing is gained."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_cli import tessera

from bench.corpus import FOLDER, programs
from bench.stenso import summaries
from tessera import _core
from tessera.clock import Clock
from tessera.drop_in import DropIn
from tessera.errors import UnsupportedError
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Spec, arguments
from tessera.graph import Graph
from tessera.options import Options
from tessera.rewrite import Rewrite, rewrite
from tessera.rewrite_arena import Arena, Contestant, fastest_first
from tessera.source import load_program, run_file
from tessera.verification import verify

Array = np.ndarray[Any, Any]


def rewritten(function: Any, *types: str, **options: Any) -> Rewrite:
    traced = trace_call(function, types, {})
    return rewrite(
        traced.graph,
        options=Options(budget=4, **options),
        function=function,
        traced=traced,
        name=function.__name__,
    )


def test_work_that_nobody_needs_is_left_out() -> None:
    def similarity(A: Array, B: Array) -> Array:
        return np.diag(A @ B)

    found = rewritten(similarity, "f64[240,180]", "f64[180,240]")
    assert found.improved
    assert found.certificate is not None
    assert "@" not in found.source
    rng = np.random.default_rng(3)
    A, B = rng.standard_normal((240, 180)), rng.standard_normal((180, 240))
    np.testing.assert_allclose(found.function()(A, B), similarity(A, B), rtol=1e-12)


def test_loops_over_rows_become_one_operation() -> None:
    def blend(frames: Array, a: Array) -> Array:
        return np.stack([f * a + (1.0 - a) * f * 0.5 for f in frames])

    found = rewritten(blend, "f32[40,64]", "f32[64]")
    assert found.improved
    assert "stack" not in found.source
    assert len(found.source.splitlines()) < 20  # of 40 rows
    rng = np.random.default_rng(3)
    frames, a = rng.random((40, 64), np.float32), rng.random(64, np.float32)
    np.testing.assert_allclose(found.function()(frames, a), blend(frames, a), rtol=1e-5)


def test_slices_that_are_the_whole_together() -> None:
    def change(y: Array) -> Any:
        return (y[1:] - y[:-1]).sum() * 0.5

    found = rewritten(change, "f64[900]")
    assert found.improved
    assert found.other_sizes  # the last element is y[-1], however many there are
    assert "y[-1]" in found.source
    assert "sum" not in found.source
    y = np.random.default_rng(3).standard_normal(50)
    np.testing.assert_allclose(found.function()(y), change(y), rtol=1e-12)


def last_row(x: Array, W: Array, b: Array) -> Any:
    return (x @ W + b)[:, -1]


def last_query(q: Array, k: Array, v: Array) -> Any:
    s = q @ k.swapaxes(-1, -2)
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True) @ v)[:, -1]


def some_rows(x: Array, W: Array, i: Array) -> Any:
    return np.tanh(x @ W)[i]


@pytest.mark.parametrize(
    ("function", "types", "instead"),
    [
        (last_row, ("f32[16,64,128]", "f32[128,256]", "f32[256]"), "x[:, -1:] @ W"),
        (last_query, ("f32[16,64,32]",) * 3, "q[:, -1"),
        (some_rows, ("f32[2000,128]", "f32[128,128]", "i64[16]"), "x[i] @ W"),
    ],
)
def test_less_is_computed_where_less_is_taken(
    function: Any, types: tuple[str, ...], instead: str
) -> None:
    found = rewritten(function, *types)
    assert found.improved
    assert instead in found.source
    rng = np.random.default_rng(3)
    shapes = [tuple(map(int, t[4:-1].split(","))) for t in types]
    arrays: list[Any] = [rng.random(shape, np.float32) for shape in shapes]
    if function is some_rows:
        arrays[2] = rng.integers(-16, 16, 16)
    np.testing.assert_allclose(found.function()(*arrays), function(*arrays), rtol=1e-4)
    if function is some_rows:
        with pytest.raises(IndexError):
            found.function()(*arrays[:2], np.array([2000]))


def test_exponentials_are_joined() -> None:
    def density(x: Array, y: Array) -> Any:
        return np.exp(x) * np.exp(y) / np.exp(x - 1)

    found = rewritten(density, "f64[200,150]", "f64[200,150]")
    assert found.improved
    code = [line for line in found.source.splitlines() if not line.lstrip().startswith("#")]
    assert "\n".join(code).count("np.exp(") == 1  # in place or not, whichever was faster
    x, y = np.full((200, 150), -800.0), np.full((200, 150), 600.0)  # exp(-800) is 0 in f64
    np.testing.assert_allclose(found.function()(x, y), np.exp(y + 1), rtol=1e-12)


def test_several_outputs_keep_their_order() -> None:
    def moments(x: Array, y: Array) -> tuple[Array, Array]:
        return np.sum(x * y * 2.0 + x * y, axis=0), x * y

    found = rewritten(moments, "f64[50,60]", "f64[50,60]")
    x, y = np.random.default_rng(3).standard_normal((2, 50, 60))
    for got, want in zip(found.function()(x, y), moments(x, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11)


def test_where_nothing_is_gained_the_program_stays() -> None:
    def add(x: Array, y: Array) -> Array:
        return x + y

    found = rewritten(add, "f32[64,64]", "f32[64,64]")
    assert not found.improved
    # Its own source and y + x would only differ by noise.
    assert [what for what, _ in found.contestants] == ["original"]
    assert found.certificate is None
    assert found.speedup == 1.0
    assert "return x + y" in found.source
    assert found.function() is add


SMALL = """import numpy as np

SCALE = 1.0


def helper(x):
    return x + SCALE


def add(x: "f64[64]", y: "f64[64]"):
    return helper(x) + y  # as it was


other = lambda x: x + 1
"""


def kept(file: Path, name: str) -> Rewrite:
    """What `optimize` makes of a function in which there is nothing to gain."""
    program = load_program(f"{file}:{name}", {"x": "f64[64]"})
    found = rewrite(program.graph, function=program.function, traced=program.traced)
    assert found.kept is program.function
    return found


def test_what_is_kept_is_saved_as_a_copy_of_its_file(tmp_path: Path) -> None:
    file, copy = tmp_path / "s.py", tmp_path / "there" / "fast.py"
    copy.parent.mkdir()
    file.write_bytes(SMALL.replace("\n", "\r\n").encode())
    found = kept(file, "add")
    assert "# as it was" in found.source
    assert json.loads(json.dumps(found.json()))["kept"]
    assert found.save(copy) == f"saved {copy}, a copy of {file}"
    assert copy.read_bytes() == file.read_bytes()
    assert run_file(copy)["add"](1.0, 2.0) == 4.0
    assert found.save(file) == f"nothing saved: {file} is the original"


def test_what_no_file_holds_is_not_saved(tmp_path: Path) -> None:
    file, copy = tmp_path / "s.py", tmp_path / "fast.py"
    file.write_text(SMALL)
    assert "no file has it" in kept(file, "other").save(copy)
    scope: dict[str, Any] = {}
    exec(SMALL, scope)
    traced = trace_call(scope["add"], ("f64[64]", "f64[64]"), {})
    found = rewrite(traced.graph, function=scope["add"], traced=traced)
    assert (found.source, found.function()) == ("", scope["add"])
    assert "nothing saved, use the original: no file has it" in found.save(copy)
    assert not copy.exists()


@pytest.mark.parametrize("line", ["import near", "from near.own import a", "DATA = __file__"])
def test_what_needs_its_neighbours_is_not_saved_elsewhere(line: str, tmp_path: Path) -> None:
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "__init__.py").touch()
    (tmp_path / "near" / "own.py").write_text("a = 1\n")
    file, copy = tmp_path / "s.py", tmp_path / "there" / "fast.py"
    copy.parent.mkdir()
    file.write_text(f"{line}\n{SMALL}")
    found = kept(file, "add")
    assert found.save(copy).endswith(f"{file} needs what lies beside it")
    assert not copy.exists()
    assert found.save(tmp_path / "beside.py").endswith(f"a copy of {file}")


def test_a_package_keeps_its_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "__init__.py").write_text("ONE = 1\n")
    (tmp_path / "packed" / "inner.py").write_text(f"from . import ONE\n{SMALL}")
    monkeypatch.syspath_prepend(str(tmp_path))
    add = importlib.import_module("packed.inner").add
    traced = trace_call(add, ("f64[64]", "f64[64]"), {})
    found = rewrite(traced.graph, function=add, traced=traced)
    assert "needs what lies beside it" in found.save(tmp_path / "fast.py")
    assert not (tmp_path / "fast.py").exists()


def test_translations_say_what_they_are(tmp_path: Path) -> None:
    def top(x: Array) -> Any:
        return np.argmax(np.exp(x))

    traced = trace_call(top, ("f64[64]",), {})
    options = Options(budget=2, level="bitwise")
    found = rewrite(traced.graph, options=options, function=top, traced=traced, translate=True)
    assert found.kept is None
    assert found.translation in found.source
    assert "a translation" in found.translation
    assert "may have other bits" in found.translation


def test_improved_source_is_for_the_dtypes_that_it_was_proved_for() -> None:
    def mse(x: Array, y: Array) -> Any:
        return np.mean(np.diag(np.outer(x - y, x - y)))

    found = rewritten(mse, "f64[200]", "f64[200]")
    assert found.improved
    made, x, y = found.function(), np.arange(200.0), np.ones(200)
    np.testing.assert_allclose(made(x, y), mse(x, y))
    for other in (y.astype(np.uint8), y.astype(np.float32), y.astype(">f8")):
        with pytest.raises(ValueError, match="made for y of float64"):
            made(x, other)
    with pytest.raises(ValueError, match="made for x of float64, not masked"):
        made(np.ma.array(x, mask=x > 3), y)
    traced = trace_call(made, ("f64[200]", "f64[200]"), {})  # as `tessera export` does
    assert verify(traced.graph, found.original).equal


def test_source_of_another_call_is_not_saved(tmp_path: Path) -> None:
    class Moments(NamedTuple):
        mean: Any
        total: Any

    def moments(x: Array) -> Moments:
        return Moments(np.diag(x @ x.T), np.sum(x @ x.T))

    found = rewritten(moments, "f64[100,60]")
    assert found.improved
    assert "# the original's call or result has no text: it returns a Moments" in found.source
    with pytest.raises(UnsupportedError, match=r"moments is not saved: .* a Moments"):
        found.save(tmp_path / "fast.py")
    assert not (tmp_path / "fast.py").exists()


def arena(function: Any, *types: str) -> Arena:
    traced = trace_call(function, types, {})
    drop_in = DropIn(traced.graph, function, traced, "f", arguments(traced.graph, traced, 0))
    return Arena([(traced.graph, drop_in.source(traced.graph), "")], "numpy", drop_in, Clock())


def test_idioms_are_raced_with_the_program() -> None:
    def sums(x: Array) -> Any:
        return np.sqrt(x + 1.0) * np.sum(x, axis=0)

    ring = arena(sums, "f32[100,100]")
    assert ring.finalists(0.05, 1e-9) == [ring.original]  # none is anywhere near
    final = ring.finalists(0.05, np.inf)
    assert final[0] is ring.original
    assert {c.source for c in final} >= {c.source for c in ring.others}
    for c in final:
        assert ring.differs(c) == ""
        assert not c.idioms or c.source != ring.others[0].source


def test_sources_that_compute_something_else_are_noticed() -> None:
    def total(x: Array) -> Any:
        return np.sum(x, axis=0)

    ring = arena(total, "f32[50,20]")
    graph = ring.original.graph
    right = ring.original.run()

    def why(result: Any) -> str:
        return ring.differs(Contestant(lambda: result, graph, ""))

    assert why(right) == ""
    assert why(right * (1 + 1e-6)) == ""  # another order
    assert "off by" in why(right * (1 + 1e-3))
    assert "float64" in why(right.astype(np.float64))
    assert "(1, 20)" in why(right[None])
    assert "not finite" in why(np.where(np.arange(20) == 3, np.nan, right))


def test_alike_times_go_to_the_plainest_source() -> None:
    graph = arena(lambda x: x + 1.0, "f32[4]").original.graph

    def spelled(*idioms: str) -> Contestant:
        return Contestant(lambda: None, graph, "", "", idioms)

    contestants = [spelled(), spelled("square", "reuse"), spelled(), spelled("reuse"), spelled()]
    assert fastest_first(contestants, [9.0, 1.0, 1.015, 1.01, 1.2]) == [2, 3, 1, 4]


PROGRAM = """
import numpy as np

def energy(A: "f32[400,400]", x: "f32[400]"):
    return np.sum(A * x, axis=0) + np.sum(A, axis=0) * x
"""


def test_from_the_command_line(tmp_path: Path) -> None:
    source = tmp_path / "physics.py"
    source.write_text(PROGRAM)
    out = tmp_path / "fast.py"
    answer = tessera("optimize", str(source), "-o", str(out), "--budget", "4")
    assert answer.returncode == 0, answer.stderr
    assert "def energy(A, x):" in out.read_text()
    answer = tessera("optimize", str(source), "--emit", "numpy", "--json", "--budget", "4")
    record = json.loads(answer.stdout)
    assert record["emit"] == "numpy"
    assert record["improved"]
    assert record["certificate"]
    assert record["search_s"] > 0
    answer = tessera("optimize", str(source), "--emit", "numpy", "-o", str(tmp_path / "x.ug"))
    assert answer.returncode == 64
    assert "OUT.py" in answer.stderr
    answer = tessera("search", str(source), "--engine", "synth")
    assert answer.returncode == 0, answer.stderr
    assert "candidates" in answer.stdout


def test_explanations(tmp_path: Path) -> None:
    source = tmp_path / "physics.py"
    source.write_text(PROGRAM)
    answer = tessera("explain", str(source), "--budget", "4")
    assert answer.returncode == 0, answer.stderr
    assert "1. " in answer.stdout
    assert "us -> " in answer.stdout
    assert "proved equal" in answer.stdout
    record = json.loads(tessera("explain", str(source), "--json", "--budget", "4").stdout)
    assert record["steps"]
    assert "computed once" in record["steps"][0][0]


@pytest.mark.parametrize("file", ["stenso", "stenso_numpy"])
def test_the_best_known_rewrites_compute_what_the_programs_do(file: str) -> None:
    known = run_file(FOLDER / "best_known" / f"{file}.py")
    for program in programs("stenso"):
        if program.name not in known:
            assert file == "stenso_numpy", program.name
            continue
        sizes = {200: 7, 1000: 11}
        specs = [
            dataclasses.replace(s, shape=tuple(sizes[int(d)] for d in s.shape))
            for s in program.specs.values()
        ]
        rng = np.random.default_rng(5)
        arrays = [s.sample(rng) for s in specs]
        expected = np.asarray(program.function(*arrays))
        found = np.asarray(known[program.name](*arrays))
        assert found.shape == expected.shape, program.name
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6, err_msg=program.name)


def test_the_bench_reports_every_case(tmp_path: Path) -> None:
    out = tmp_path / "stenso.json"
    answer = tessera(
        "bench", "stenso", "--case", "elem_square@small", "--quick", "--json", str(out)
    )
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(out.read_text())
    kinds = {(r["case"], r["output"]) for r in rows}
    assert ("elem_square@small", "source") in kinds
    assert ("elem_square@small", "kernel") in kinds
    assert all(r["speedup_vs_original"] > 0 for r in rows)
    row = next(r for r in rows if r["case"] == "elem_square@small" and r["output"] == "source")
    assert row["peers"]["best_known"] > 0
    assert row["peers"]["numpy_means"] > 0
    assert row["bottom_up_s"] > 0
    assert row["paper_synthesis"] == "well under 200 s"
    ratio = row["speedup_vs_original"] / row["best_known_vs_original"]
    assert abs(row["speedup_vs_best_known"] / ratio - 1) < 1e-9
    # Other work may disturb the race here, and sums leave such rows out.
    assert (("geomean", "source") in kinds) == (not row.get("disturbed"))
    sums = summaries([{k: v for k, v in row.items() if k != "disturbed"}])
    total = next(r for r in sums if r["case"] == "geomean" and r["output"] == "source")
    assert summaries([row | {"disturbed": True}]) == []
    assert total["as_good_as_best_known"] + len(total["worse_than_best_known"]) == 1
    answer = tessera("bench", "stenso", "--case", "no_such_program")
    assert answer.returncode == 64


def test_what_the_search_has_proved_is_equal_and_cheaper() -> None:
    """Of winsorize the cheapest candidates need proofs by cases, which may end unproved."""
    program = next(p for p in programs("statistics") if p.name == "winsorize")
    traced = trace_call(program.function, [], dict(program.specs))
    fields = {**Options(budget=5).fields(), "engine": "synth"}
    proved = _core.search(traced.graph.core, {**fields, "proved": True}, None)
    found = Graph.from_core(proved["candidates"][0]["graph"])
    assert verify(traced.graph, found).equal
    assert proved["candidates"][0]["model_s"] < proved["report"]["original_cost"]


def test_dicts_keep_their_order_under_jax() -> None:
    pytest.importorskip("jax")

    def named(x: Any) -> dict[str, Any]:
        return {"total": np.sum(x + x), "part": (x * 3.0) / 3.0}

    traced = trace_call(named, (), {"x": Spec.parse("f32[40,30]")})
    found = rewrite(traced.graph, "jax", function=named, traced=traced)
    made = found.function()(np.ones((40, 30), np.float32))
    assert list(made) == ["total", "part"]
    assert made["part"].shape == (40, 30)
