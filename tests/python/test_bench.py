"""The benchmarks' own machinery: programs, processes that race, rows, summaries."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import mirage, stenso, workloads
from bench.race import Late, Process, Race
from bench.workloads import FAMILIES, WORKLOADS, Kit, choose
from tessera import race
from tessera.cli import main
from tessera.errors import UsageError
from tessera.options import Options


def test_six_families_with_their_variants() -> None:
    assert FAMILIES == ("rmsnorm", "gatedmlp", "lora", "gqa", "qknorm", "ntrans")
    assert WORKLOADS["gqa"].at(8) == {"Q": (16, 256, 64), "K": (16, 64, 4096), "V": (16, 4096, 64)}
    assert WORKLOADS["gatedmlp@llama"].at(16)["W2"] == (4096, 14336)
    assert [w.name for w in choose("gqa@decode8k")] == ["gqa@decode8k"]
    assert len(choose("ntrans")) == 5
    assert [w.name for w in choose("ntrans@")] == ["ntrans"]
    assert len(choose(None)) == len(WORKLOADS)
    with pytest.raises(UsageError, match="is not one of"):
        choose("resnet")


@pytest.mark.parametrize("name", list(WORKLOADS))
@pytest.mark.parametrize("dtype", mirage.DTYPES)
def test_every_program_builds(name: str, dtype: str) -> None:
    workload = WORKLOADS[name]
    for batch in workload.batches:
        graph = workload.graph(batch, dtype)
        graph.validate()
        assert graph.core.type(graph.core.outputs[0])[0] == dtype
    assert (mirage.matmul_flops(workload, 1) == 0) == (workload.family == "ntrans")


def test_programs_mean_what_they_say() -> None:
    """Against formulas written down independently."""
    rng = np.random.default_rng(3)
    q, k, v = rng.standard_normal((3, 2, 5, 7))
    scores = np.einsum("bqd,bkd->bqk", q, k)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = np.einsum("bqk,bkd->bqd", weights, v)
    kit = Kit()
    kt = np.swapaxes(k, 1, 2)
    np.testing.assert_allclose(workloads.gqa(kit, q, kt, v), expected)
    np.testing.assert_allclose(workloads.gqa_nomax(kit, q, kt, v), expected)
    unscaled = workloads.gqa_decode(kit, q * math.sqrt(128), k, v)
    np.testing.assert_allclose(unscaled, expected)

    def unit(x: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    np.testing.assert_allclose(
        workloads.qknorm(kit, q, kt, v), workloads.gqa(kit, unit(q), np.swapaxes(unit(k), 1, 2), v)
    )
    np.testing.assert_allclose(workloads.ntrans(kit, q, k, v), unit(k + v * (unit(q) - k)))
    np.testing.assert_allclose(workloads.ntrans_paper(kit, q, k, v), unit(k + v * unit(q - k)))
    np.testing.assert_allclose(workloads.ntrans_repo(kit, q, k, v), unit(k + v * (unit(q) + k)))


def test_whoever_is_late_is_stopped() -> None:
    with Race(1) as race:
        race.load(WORKLOADS["ntrans"], 1, "f32")
        assert "no answer" in race.prepare("numpy", {}, 0)["failed"]
        assert "failed" not in race.prepare("numpy", {}, 600)  # in a new process
        done = race.run(0.1, False, time.monotonic() + 60)
        assert set(done["medians"]) == {"numpy"}
        assert done["medians"]["numpy"] > 0


def test_a_dead_process_is_noticed() -> None:
    process = Process(1)
    process.kill()
    with pytest.raises(Late, match="died"):
        process.ask(5, do="clear")
    process.close()


def row(case: str, speedup: float, **more: Any) -> dict[str, Any]:
    return {"suite": "mirage", "case": case, "batch": 1, "dtype": "f32", "threads": 2,
            "cache": "warm", "speedup_vs_best": speedup, "verdict": "equal", "target": "cpu",
            **more}  # fmt: skip


def test_means_are_per_workload_first() -> None:
    rows = [row("gqa", 4.0), row("gqa@decode1k", 1.0), row("lora", 0.5), row("ntrans", 2.0)]
    (summary,) = mirage.summaries(rows)
    assert summary["per_workload"] == pytest.approx({"lora": 0.5, "gqa": 2.0, "ntrans": 2.0})
    assert summary["speedup_vs_best"] == pytest.approx(2 ** (1 / 3))
    assert summary["below_1"] == {"lora B=1": 0.5}
    both = mirage.summaries([*rows, row("lora", 2.0, cache="cold")])
    assert len(both) == 3  # warm, cold, all


def test_rows_are_written_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    arguments = ["bench", "mirage", "--case", "ntrans@repo", "--batch", "1", "--dtype", "f32",
                 "--quick", "--threads", "1", "--peers", "numpy", "--json", str(out)]  # fmt: skip
    assert main(arguments) == 0
    first, summary = json.loads(out.read_text())
    assert summary["case"] == "geomean"
    assert (first["case"], first["batch"], first["threads"]) == ("ntrans@repo", 1, 1)
    assert first["max_rel_err"] < 1e-5
    assert first["peers"]["numpy"] > 0
    assert first["limit_us"] > 0
    assert first["shape"] == {"H": [8, 4096], "X": [8, 4096], "alpha": [8, 4096]}

    def no_race(*_: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(Race, "load", no_race)
    assert main([*arguments, "--resume"]) == 0
    assert json.loads(out.read_text())[0] == first
    assert main(["bench", "mirage", "--resume"]) == 64
    out.write_text("[")
    assert main([*arguments, "--resume"]) == 65
    assert "not JSON" in capsys.readouterr().err


def test_plan_of_cases() -> None:
    plan = mirage.Plan(Options(threads=1), case="gqa@decode8k")
    assert [(w.name, b) for w, b in plan.cases()] == [("gqa@decode8k", 1), ("gqa@decode8k", 8)]
    assert plan.threads() == [1]
    assert len(mirage.Plan(Options(), quick=True).cases()) == 6


def test_a_disturbed_race_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time that other work spread by its half is said, and left out of the mean."""
    quiet = race.Race([race.Times(1e-9, 1e-9), race.Times(1e-9, 1e-9, ratio=3.0)])
    monkeypatch.setattr(stenso, "decide", lambda *_: quiet)
    runs: list[Any] = [lambda: None, lambda: None]
    assert stenso._undisturbed(runs, 0.1) == ([1e-9, 1e-9], [1.0, 3.0], {})
    loud = race.Race([race.Times(1.0, 1.0, 9.0), race.Times(1.0, 1.0, ratio=900.0)], True)
    monkeypatch.setattr(stenso, "decide", lambda *_: loud)
    *_, said = stenso._undisturbed(runs, 0.1)
    assert said == {"disturbed": True}
    row = {"case": "a", "framework": "numpy", "output": "kernel", "speedup_vs_original": 2.0}
    (summary,) = stenso.summaries([row, row | {"case": "b", "speedup_vs_original": 900.0} | said])
    assert summary["cases"] == 1
    assert summary["speedup_vs_original"] == pytest.approx(2.0)
