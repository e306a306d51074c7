"""The suite outside: what it sums up, and that its programs are what they say."""

from __future__ import annotations

from typing import Any

import pytest

from bench import outside, page_tables


def row(name: str, group: str, speedup: float, own: bool) -> dict[str, Any]:
    return {"suite": "outside", "case": name, "group": group, "speedup": speedup, "own": own,
            "us": {"eager": 10 * speedup, "tessera": 10.0}}  # fmt: skip


ROWS = [row("a", "x", 4.0, True), row("b", "x", 1.0, False), row("c", "y", 0.5, False),
        {"suite": "outside", "case": "d", "group": "y", "failed": "no answer"}]  # fmt: skip


def test_groups_have_means_and_losses() -> None:
    sums = {r["group"]: r for r in outside.summaries(ROWS)}
    assert list(sums) == ["x", "y", "all", "own programs alone"]
    assert sums["x"]["speedup"] == pytest.approx(2)
    assert [sums["all"][k] for k in ("count", "own", "least", "below_0.97")] == [3, 1, 0.5, 1]


def test_the_page_shows_losses() -> None:
    lines = page_tables.outside([*ROWS, *outside.summaries(ROWS)])
    assert [line for line in lines if "`c`" in line] == ["| `c` | 5.00 | 10.0 | 0.50 | PyTorch |"]
    assert not [line for line in lines if "`a`" in line]


def test_turns_time_everybody() -> None:
    ran: list[str] = []
    times = outside.turns({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")})
    assert set(times) == set(ran) == {"a", "b"}
    assert len(times["a"]) == len(times["b"])


def test_every_program_runs() -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    from bench.outside_programs import PROGRAMS

    assert len(PROGRAMS) > 100
    for program in list(PROGRAMS.values())[::7]:
        module, args = program.make()
        with torch.no_grad():
            assert torch.isfinite(module(*args).double()).all(), program.name
