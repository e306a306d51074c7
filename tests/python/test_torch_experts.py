"""Experts' own patterns in torch.compile without options: tried, proved, raced, remembered."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import _core, torch_backend, torch_parts  # noqa: E402
from tessera.errors import UnsupportedError  # noqa: E402
from tessera.torch_cache import own_key  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

QUICK = """pattern quickgelu-rows
  def {
    x = input : f32[M,N]
    a = input : f32[]
    t = mul x, a
    s = sigmoid t
    y = mul x, s
    r = sum y {axes=[1], keepdims=true}
    return r
  }
  numbers a
  prologue x
  kernel grid[x=M/4] {
    u = iter x {imap={x:0}}
    c = iter a
    t = mul u, c
    s = sigmoid t
    y = mul u, s
    q = sum y {axes=[1], keepdims=true}
    r = save q {omap={x:0}} : f32[M,1]
    return r
  }
"""
LIE = QUICK.replace("c = iter a\n    t = mul u, c\n    s = sigmoid t",
                    "c = iter a\n    t = mul u, c\n    s = sigmoid u")  # fmt: skip


def quick(x: Any) -> Any:
    return (x * torch.sigmoid(1.702 * x)).sum(-1, keepdim=True)


def twice(x: Any) -> Any:
    """Two kernels of one tensor, which differ in a number alone."""
    other = (x * torch.sigmoid(0.5 * x)).sum(-1, keepdim=True)
    return quick(x) + torch.tanh(other.transpose(0, 1))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder with room for patterns, and a cache of its own; patterns win every race."""
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    fast(monkeypatch, True)
    folder = tmp_path / ".tessera" / "patterns"
    folder.mkdir(parents=True)
    return folder


def fast(monkeypatch: Any, wins: bool) -> None:
    """Races that programs with fewer blocks, those of the pattern, win or lose."""

    def seconds(program: Any, _: Any) -> float:
        return 2.0 - len(blocks(program)) / 2 if wins else 1.0 + len(blocks(program))

    monkeypatch.setattr(torch_parts, "_seconds", seconds)


def blocks(program: Any) -> list[int]:
    """Of kernels with the pattern's rows (4): how many."""
    return [o["body"].grid[0] for o in program.graph.ops if o["body"] and o["body"].grid[0] == 16]


def compiled(function: Any = quick) -> tuple[Any, str]:
    """What a new start of a process runs, and what is told of it."""
    torch._dynamo.reset()
    run, x = torch.compile(function, backend="tessera"), torch.randn(64, 256)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), function(x), rtol=1e-4, atol=1e-4)
    (part,) = torch_backend.REPORTS[-1].parts
    return part.programs[-1], torch_backend.explain(timed=False, patterns=False)


def searches(monkeypatch: Any) -> list[Any]:
    """Counts searches for places."""
    real, made = _core.search, []

    def search(*args: Any) -> Any:
        made.append(args)
        return real(*args)

    monkeypatch.setattr(_core, "search", search)
    return made


@pytest.mark.parametrize("function", [quick, twice])
def test_a_project_s_pattern_is_used_until_it_is_removed(
    function: Any, project: Path, monkeypatch: Any
) -> None:
    searched = searches(monkeypatch)
    program, told = compiled(function)
    assert not blocks(program)
    assert "own pattern" not in told
    assert not searched  # without own patterns nothing is looked for
    (project / "quick.pattern").write_text(QUICK)
    for _ in range(2):  # the second start remembers
        program, told = compiled(function)
        assert blocks(program) == [16] * (1 if function is quick else 2)
        assert "own pattern used: pattern quickgelu-rows at" in told
        assert len(searched) == 1
    (project / "quick.pattern").unlink()
    program, told = compiled(function)
    assert not blocks(program)
    assert "own pattern" not in told


def test_a_pattern_that_loses_is_told_and_not_used(project: Path, monkeypatch: Any) -> None:
    fast(monkeypatch, False)
    searched = searches(monkeypatch)
    (project / "quick.pattern").write_text(QUICK)
    for _ in range(2):
        program, told = compiled()
        assert not blocks(program)
        assert "own pattern not used: pattern quickgelu-rows at" in told
        assert "2000000 µs, without 1000000" in told
    assert len(searched) == 1


def test_a_changed_pattern_is_tried_again(project: Path, monkeypatch: Any) -> None:
    searched = searches(monkeypatch)
    (project / "quick.pattern").write_text(QUICK)
    assert blocks(compiled()[0])
    (project / "quick.pattern").write_text(QUICK.replace("grid[x=M/4]", "grid[x=M/8]"))
    program, _ = compiled()
    assert len(searched) == 2
    assert not blocks(program)


def test_a_pattern_that_computes_something_else_is_refused(project: Path, caplog: Any) -> None:
    (project / "quick.pattern").write_text(LIE)
    with caplog.at_level(logging.WARNING, "tessera.torch"):
        program, told = compiled()
    assert not blocks(program)
    assert "own pattern not used: quickgelu-rows at" in told
    assert "refuted: r[" in told
    assert any("refuted" in r.message for r in caplog.records)


def test_a_wrong_result_is_refused_before_the_race(project: Path, monkeypatch: Any) -> None:
    """As code that was checked at other sizes could have."""
    real = torch_parts.Part._compare

    def compare(self: Any, program: Any, *args: Any) -> Any:
        if blocks(program):
            raise UnsupportedError("it is wrong")
        return real(self, program, *args)

    monkeypatch.setattr(torch_parts.Part, "_compare", compare)
    (project / "quick.pattern").write_text(QUICK)
    program, told = compiled()
    assert not blocks(program)
    assert "refused: it is wrong" in told


def test_time_that_ran_out_is_logged(project: Path, monkeypatch: Any, caplog: Any) -> None:
    from tessera import torch_experts

    monkeypatch.setattr(torch_experts, "SECONDS", 1e-6)
    (project / "quick.pattern").write_text(QUICK)
    with caplog.at_level(logging.WARNING, "tessera.torch"):
        program, _ = compiled()
    assert not blocks(program)
    assert [r.message for r in caplog.records if "not tried everywhere" in r.message]


def test_the_key_is_that_of_all_patterns_that_do_not_ship(project: Path) -> None:
    assert own_key() == ""
    (project / "quick.pattern").write_text(QUICK)
    first = own_key()
    (project / "quick.pattern").write_text(LIE)
    assert "" != own_key() != first
    (project / "quick.pattern").write_text("nonsense")  # no reason to fail
    assert own_key() not in ("", first)
    assert blocks(compiled()[0]) == []


def test_a_pattern_of_an_installed_wheel_is_tried(
    tmp_path: Path, project: Path, monkeypatch: Any
) -> None:
    """By its entry point, and without its package being imported."""
    site = tmp_path / "site"
    package = site / "kernels_of_theirs"
    (package / "patterns").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "patterns" / "quick.pattern").write_text(QUICK)
    info = site / "kernels_of_theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels-of-theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[tessera.patterns]\nquick = kernels_of_theirs:patterns\n"
    )
    assert not blocks(compiled()[0])
    monkeypatch.syspath_prepend(str(site))
    program, told = compiled()
    assert blocks(program)
    assert "own pattern used: pattern quickgelu-rows at" in told
    (package / "patterns" / "quick.pattern").unlink()
    assert not blocks(compiled()[0])
