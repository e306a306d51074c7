"""Costs of operations: measured once for a library, kept, and used by the search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import tessera

from tessera import _core, costs
from tessera.errors import UsageError
from tessera.frontends.trace import trace_call
from tessera.options import Options
from tessera.rewrite import rewrite

SLOW_PRODUCTS = {"matrix_vector": [(1.0, 1e9)], "simple": [(1.0, 10.0)]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(costs, "busy", lambda: False)  # whatever else runs beside the tests
    costs._remembered.cache_clear()


def test_nothing_is_measured_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "busy", lambda: True)
    monkeypatch.setattr(costs, "calibrate", lambda flavour: pytest.fail("measured"))
    assert costs.measured("numpy") == {}


def test_every_kind_of_operation_is_measured() -> None:
    curves = costs.measure("numpy", sides=(4, 64))
    assert set(curves) == set(costs._PROGRAMS)
    for name, curve in curves.items():
        assert [work for work, _ in curve] == sorted({work for work, _ in curve}), name
        assert len(curve) == 2, name
        assert all(ns >= 0 for _, ns in curve), name
    graph = trace_call(np.sum, ("f32[4,4]",), {}).graph
    fields = {**Options().fields(), "engine": "synth", "cost": "times", "costs": curves}
    assert _core.search(graph.core, fields, None)["report"]["original_cost"] > 0


def test_costs_are_kept_and_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def measure(flavour: str, sides: Any = None) -> costs.Curves:
        runs.append(flavour)
        return {"simple": [(1.0, 2.0), (3.0, 4.0)]}

    monkeypatch.setattr(costs, "measure", measure)
    assert not costs.is_known("numpy")
    assert costs.measured("numpy") == {"simple": [(1.0, 2.0), (3.0, 4.0)]}
    costs._remembered.cache_clear()  # as in another process
    assert costs.measured("numpy") == {"simple": [(1.0, 2.0), (3.0, 4.0)]}
    assert runs == ["numpy"]
    assert costs.is_known("numpy")
    monkeypatch.setattr(costs, "_of", lambda flavour: (flavour, "another", costs._machine()))
    costs.measured("numpy")
    assert runs == ["numpy", "numpy"]


def test_damaged_costs_are_none() -> None:
    for damage in ("", "no JSON", "[]", "3", '{"simple": 3}', '{"simple": [["x", 1]]}'):
        _core.store_text(costs._key(costs._of("numpy")), damage)
        costs._remembered.cache_clear()
        assert not costs.is_known("numpy")


def test_pytorch_is_not_measured_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(flavour: str, sides: Any = None) -> costs.Curves:
        raise AssertionError(flavour)

    monkeypatch.setattr(costs, "measure", measure)
    assert costs.fields("measured", "torch") == {"cost": "fused", "costs": {}}
    assert costs.fields("flops", "numpy") == {"cost": "flops", "costs": {}}


def test_what_the_search_takes_depends_on_the_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def sums(A: Any, x: Any) -> Any:
        return np.sum(A * x, axis=1)

    traced = trace_call(sums, ("f32[60,50]", "f32[50]"), {})

    def first(fields: dict[str, Any]) -> str:
        options = {**Options().fields(), "engine": "synth", **fields}
        found = _core.search(traced.graph.core, options, None)["candidates"]
        return str(found[0]["graph"]) if found else ""

    assert "matmul" in first(
        {"cost": "times", "costs": {"matrix_vector": [(1.0, 1.0), (1e6, 2.0)]}}
    )
    assert "matmul" not in first({"cost": "times", "costs": SLOW_PRODUCTS})
    monkeypatch.setattr(costs, "measured", lambda flavour: SLOW_PRODUCTS)
    found = rewrite(traced.graph, options=Options(budget=1), function=sums, traced=traced)
    assert found.search["original_cost"] == pytest.approx(
        _core.search(
            traced.graph.core,
            {**Options().fields(), "engine": "synth", "costs": SLOW_PRODUCTS},
            None,
        )["report"]["original_cost"]
    )


def test_costs_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="flops"):
        Options(cost="guess")  # type: ignore[arg-type]
    graph = trace_call(np.sum, ("f32[4,4]",), {}).graph
    fields = {**Options().fields(), "engine": "synth"}
    with pytest.raises(UsageError, match="no kind of operation 'speed'"):
        _core.search(graph.core, {**fields, "costs": {"speed": [(1.0, 1.0)]}}, None)
    with pytest.raises(UsageError, match="not one of times, fused, flops"):
        _core.search(graph.core, {**fields, "cost": "wishes"}, None)


def test_flops_on_the_command_line(tmp_path: Path) -> None:
    source = tmp_path / "p.py"
    source.write_text(
        'import numpy as np\ndef f(A: "f32[10,20]", B: "f32[20,10]"):\n    return np.trace(A @ B)\n'
    )
    answer = tessera("search", str(source), "--engine", "synth", "--cost", "flops", "--json")
    record = json.loads(answer.stdout)
    assert record["original_cost"] == pytest.approx((2 * 10 * 20 * 10 + 10) * 1e-9, rel=1e-2)
    assert record["best_cost"] == pytest.approx(400e-9, rel=1e-2)
    assert tessera("search", str(source), "--cost", "wishes").returncode == 64
