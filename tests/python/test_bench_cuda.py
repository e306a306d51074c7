"""The GPU benchmark's machinery without a GPU: statistics, plans, rows, lost processes."""

import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench import mirage, suites
from bench.cuda import emulate, peers, suite
from bench.cuda.race import Race
from bench.cuda.sampling import Entrant, interleave, replays_of, rotations, summarise
from bench.workloads import CONVOLUTIONS, PAPER, REAL, WORKLOADS, choose
from tessera import _core
from tessera.cli import main
from tessera.cli.app import cli
from tessera.errors import UnsupportedError, UsageError
from tessera.options import Options

ROOT = Path(__file__).resolve().parents[2]

# --- sampling ---------------------------------------------------------------------------------


class Clock:
    """Time that passes only when somebody runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def program(self, once: Callable[[], float], calls: int = 1) -> Entrant:
        def seconds(times: int) -> float:
            taken = sum(once() for _ in range(times)) * calls
            self.now += taken
            return taken

        return Entrant(seconds, calls)


def test_medians_and_percentiles() -> None:
    timing = summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    assert timing.median_s == 3.0
    assert timing.low_s == pytest.approx(1.4)
    assert timing.high_s == pytest.approx(61.6)
    assert timing.spread == pytest.approx((61.6 - 1.4) / 3)
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


def test_turns_find_medians_in_noise() -> None:
    clock, dice = Clock(), random.Random(1)

    def program(once_s: float, calls: int = 1) -> Entrant:
        """Every tenth sample is disturbed."""

        def seconds(times: int) -> float:
            noise = 11.0 if dice.random() < 0.1 else 1 + 0.02 * dice.random()
            clock.now += once_s * noise * times * calls
            return once_s * noise * times * calls

        return Entrant(seconds, calls)

    timings = interleave({"a": program(2e-6, calls=50), "b": program(3e-6)}, 0.05, clock=clock)
    assert timings["a"].median_s == pytest.approx(2e-6, rel=0.03)
    assert timings["b"].median_s == pytest.approx(3e-6, rel=0.03)
    assert timings["a"].samples == timings["b"].samples > 7


def test_a_slow_start_does_not_count() -> None:
    clock = Clock()
    first = iter([1.0] * 3)  # one to see how long it takes, and two turns to settle
    entrant = Entrant(lambda times: next(first, 1e-3 * times))
    assert interleave({"a": entrant}, 0.0, clock=clock)["a"].high_s == pytest.approx(1e-3)


def test_everybody_gets_the_least_number_of_turns_in_changing_orders() -> None:
    clock, seen = Clock(), []

    def entrant(name: str) -> Entrant:
        return clock.program(lambda: seen.append(name) or 1.0)  # type: ignore[func-returns-value]

    timings = interleave({n: entrant(n) for n in "abc"}, 0.0, min_turns=9, clock=clock)
    assert [t.samples for t in timings.values()] == [9, 9, 9]
    turns = ["".join(seen[i : i + 3]) for i in range(3, len(seen), 3)]
    assert all(sorted(t) == ["a", "b", "c"] for t in turns)
    assert len(set(turns)) > 3


def test_samples_last_long_enough() -> None:
    assert replays_of(1e-6) == 400
    assert replays_of(1e-3) == replays_of(10.0) == 1
    assert replays_of(0.0) == 1000


def test_cold_runs_overflow_the_cache() -> None:
    assert rotations(50 << 20, 50 << 20, 80 << 30) == 3
    assert rotations(1 << 20, 50 << 20, 80 << 30) == 150
    assert rotations(1000, 50 << 20, 80 << 30) == 512  # graphs of more calls take long to make
    assert rotations(1 << 30, 50 << 20, 80 << 30) == 2
    assert rotations(1 << 20, 50 << 20, 20 << 20) == 10  # half of what is free


# --- which cases, and in which order ----------------------------------------------------------


def plan(**changes: Any) -> mirage.Plan:
    fields: dict[str, Any] = {"options": Options(target="cuda"), "dtypes": suite.DTYPES,
                              "peers": ("torch", "triton"), **changes}  # fmt: skip
    return mirage.Plan(**fields)


def test_a_stopped_run_has_something_of_everything() -> None:
    cases = [(w.name, b, d) for w, b, d in suite.cases(plan())]
    assert len(cases) == len(set(cases))
    assert {c[0] for c in cases[:14]} == set(PAPER)
    assert {c[2] for c in cases[:14]} == {"f16"}
    assert {c[0] for c in cases[14:44]} == set(REAL)
    assert {c[0] for c in cases[44:46]} == set(CONVOLUTIONS)
    assert {c[2] for c in cases[46:60]} == {"bf16"}
    assert {(n, d) for n, _, d in cases} >= {(w, d) for w in WORKLOADS for d in suite.DTYPES}
    assert set(PAPER) | set(REAL) <= set(WORKLOADS)


def test_cases_of_a_gpu_and_of_a_cpu() -> None:
    chosen = suite.cases(plan(case="gqa@qwen1k", batch=8))
    assert [(w.name, b, d) for w, b, d in chosen] == [
        ("gqa@qwen1k", 8, "f16"), ("gqa@qwen1k", 8, "bf16")
    ]  # fmt: skip
    # 4 heads of 1,024 keys and values of 128 numbers, two bytes each: 2.1 MB.
    q, k, v = (WORKLOADS["gqa@qwen1k"].at(1)[n] for n in "QKV")
    assert (q, k, v) == ((1, 4, 8, 128), (1, 4, 1024, 128), (1, 4, 1024, 128))
    with pytest.raises(UsageError, match="batch"):
        suite.cases(plan(case="lora", batch=7))
    with pytest.raises(UsageError, match="measured on a CPU"):
        mirage.Plan(Options(), case="gqa@qwen1k").cases()


def test_convolutions_are_convolutions() -> None:
    """The program, its exact result and its work, against sums written out."""
    small = dataclasses.replace(CONVOLUTIONS["conv@resnet"],
                                shapes={"X": ("B", 3, 5, 4), "W": (2, 3, 3, 3)})  # fmt: skip
    x, w = small.arrays(2)
    padded = np.zeros((2, 3, 7, 6))
    padded[:, :, 1:-1, 1:-1] = x
    want = np.zeros((2, 2, 5, 4))
    for b, o, y, z in np.ndindex(*want.shape):
        want[b, o, y, z] = max(0.0, (padded[b, :, y : y + 3, z : z + 3] * w[o]).sum())
    np.testing.assert_allclose(small.exact([x, w]), want, rtol=1e-6, atol=1e-6)
    (ours,) = small.graph(2).run(x, w)
    np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-5)
    assert mirage.matmul_flops(small, 2) == 2 * 2 * 2 * 5 * 4 * 27
    assert not any(peers.applies(n, small) for n in ("cublaslt", "sdpa_flash", "triton"))
    assert {r.name for r in choose("conv")} == set(CONVOLUTIONS)


# --- rows -------------------------------------------------------------------------------------

GPU = {"device": "a GPU of the tests", "arch": "sm_90"}


class FakeRace(Race):
    """Answers of a worker that was never started."""

    def __init__(
        self,
        failing: dict[str, str] | None = None,
        left_out: Any = None,
        clock: Clock | None = None,
        takes: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.failing, self.left_out = failing or {}, left_out or {}
        self.clock, self.takes = clock or Clock(), takes or {}
        self.asked: list[str] = []

    def _ask(self, limit_s: float, **order: Any) -> dict[str, Any]:
        assert limit_s > 0
        name = str(order.get("name", order["do"]))
        self.asked.append(name)
        self.clock.now += min(self.takes.get(name, 0.0), limit_s)
        if self.takes.get(name, 0.0) > limit_s:
            return {"failed": f"no answer within {limit_s:.0f} s"}
        if name in self.failing:
            return {"failed": self.failing[name]}
        if order["do"] == "describe":
            return GPU
        if order["do"] == "load":
            return {"bytes": 3_000_000}
        if order["do"] == "prepare":
            names = ("rank", "error", "fitted_rank", "fitted_error")
            model: dict[str, Any] = dict.fromkeys(names, 0.9)
            model |= {"programs": len(self.asked), "used": False, "scales": {}}
            facts = {"verdict": "equal", "search_s": 0.1, "model": model} if name == "ours" else {}
            chosen = "BM=16" if name == "triton" else None
            return {"error": 1e-3, "chosen": chosen, "facts": facts}
        medians = {"torch": 4e-6, "triton": 3e-6, "ours": 2e-6, "probe_copy": 1e-3,
                   "probe_matmul": 1e-3, "probe_launch": 1e-6}  # fmt: skip
        kept = {n: m for n, m in medians.items() if n in self.ready or n.startswith("probe")}
        kept = {n: m for n, m in kept.items() if n not in self.left_out}
        return {"medians": kept, "spreads": dict.fromkeys(kept, 0.01), "samples": 9,
                "sets": 50 if order["cold"] else 1, "copied": 3 * 10**9, "flops": 10**12,
                "left_out": self.left_out}  # fmt: skip


def rows_of(race: FakeRace, **changes: Any) -> list[dict[str, Any]]:
    fields = {"case": "ntrans@", "batch": 1, "dtypes": ("f16",), **changes}
    return list(suite.run(plan(**fields), lambda: race))


def test_a_row_holds_the_limits_of_the_same_run() -> None:
    warm, cold = rows_of(FakeRace())
    assert (warm["cache"], cold["cache"], cold["sets"]) == ("warm", "cold", 50)
    assert warm["copy_gb_s"] == pytest.approx(3000)
    assert warm["matmul_tflop_s"] == pytest.approx(1000)
    assert (warm["limit_us"], warm["limit_by"]) == (pytest.approx(1.0), "memory")
    assert warm["of_limit"] == pytest.approx(0.5)
    assert warm["gb_s"] == pytest.approx(1500)
    assert (warm["best_peer"], warm["speedup_vs_best"]) == ("triton", pytest.approx(1.5))
    assert warm["peers"] == pytest.approx({"torch": 4.0, "triton": 3.0})
    assert (warm["verdict"], warm["gpu"], warm["target"]) == ("equal", GPU, "cuda")
    assert warm["peer_chosen"] == {"triton": "BM=16"}
    (gqa, _) = rows_of(FakeRace(), case="gqa@")  # 2 · 2 · 2 · 256 · 64 · 4096 operations
    assert gqa["limit_us"] == pytest.approx(max(1.0, gqa["flops"] / 1e15 * 1e6))
    assert gqa["flops"] == 4 * 2 * 256 * 64 * 4096


def test_who_fails_is_named_and_the_rest_measured() -> None:
    (warm, _) = rows_of(FakeRace({"triton": "OutOfResources: shared memory"}))
    assert warm["peer_failures"] == {"triton": "OutOfResources: shared memory"}
    assert (warm["best_peer"], warm["speedup_vs_best"]) == ("torch", pytest.approx(2.0))
    (warm, _) = rows_of(FakeRace(left_out={"torch": "RuntimeError: not in a graph"}))
    assert warm["peer_failures"] == {"torch": "RuntimeError: not in a graph"}
    (warm, _) = rows_of(FakeRace({"ours": "UnsupportedError: no kernel"}))
    assert "ours_us" not in warm
    assert warm["failure"] == "UnsupportedError: no kernel"
    assert warm["verdict"] == "failed"
    assert warm["peers"]  # what others need is known all the same
    (warm, _) = rows_of(FakeRace({"load": "out of memory"}))
    assert warm["verdict"] == "failed: out of memory"
    (warm,) = rows_of(FakeRace({"measure": "CUDA error: an illegal memory access"}))
    assert "illegal" in warm["verdict"]


def test_no_gpu_is_said_plainly() -> None:
    with pytest.raises(UnsupportedError, match=r"^no CUDA device"):
        rows_of(FakeRace({"describe": "UnsupportedError: no CUDA device: install one"}))


def test_the_process_is_started_again_without_the_guilty() -> None:
    race = FakeRace({"triton": "RuntimeError: CUDA error: an illegal memory access"})
    rows = rows_of(race)
    assert race.asked[:7] == ["describe", "load", "ours", "torch", "triton", "load", "ours"]
    assert race.asked[7] == "torch"
    assert rows[0]["peers"] == pytest.approx({"torch": 4.0})
    assert "illegal" in rows[0]["peer_failures"]["triton"]


def test_time_is_up_between_cases() -> None:
    told: list[str] = []
    race = FakeRace()
    rows = rows_of(race, case="ntrans", batch=None, stop_after_s=-1.0, tell=told.append)
    assert race.asked == ["describe"]
    assert "left for --resume" in told[-1]
    assert {r["verdict"] for r in rows} == {suite.LEFT_OUT}
    labels = {(r["case"], r["batch"]) for r in rows}
    assert labels == {(w.name, b) for w, b, _ in suite.cases(plan(case="ntrans"))}
    # Whoever has no time left is said to have had none.
    warm, _ = rows_of(FakeRace(), case_limit_s=0.0)
    assert warm["peer_failures"] == {"torch": "no time left", "triton": "no time left"}
    assert warm["speedup_vs_best"] is None


def test_a_brief_share_has_peers_first() -> None:
    race = FakeRace()
    warm = rows_of(race, peers=("torch", "triton"), stop_after_s=500.0)[0]
    assert race.asked[:4] == ["describe", "load", "torch", "ours"]
    assert warm["peers"] == pytest.approx({"torch": 4.0})
    assert warm["peer_failures"] == {"triton": "no time left"}


def test_all_cases_are_seen_in_brief_before_any_in_full() -> None:
    limited = plan(peers=("torch", "cublaslt", "triton"), stop_after_s=500.0)
    found = suite.steps(limited)
    every = [c for c in suite.cases(limited) if c[0].name in (*PAPER, *REAL, *CONVOLUTIONS)]
    assert [(s.case[0].name, *s.case[1:]) for s in found if s.brief] == [
        (w.name, b, d) for w, b, d in sorted(every, key=lambda c: c[2] == "bf16")
    ]
    assert all(s.brief for s in found[: len(every)])
    assert not any(s.brief for s in found[len(every) :])
    first = [s.case for s in found[len(every) :] if s.tier == 0]
    assert {(w.name in PAPER, d) for w, _, d in first} == {(True, "f16")}
    # Nothing more is to be known where no peer compiles, and without a limit nothing is in brief.
    ready = suite.steps(plan(peers=("torch",), stop_after_s=500.0))
    assert all(s.brief for s in ready if s.tier < 9)
    assert not any(s.brief for s in suite.steps(plan()))


# What people have measured: a search and its kernels, libraries at once, compilers long.
USUAL = {"describe": 4, "load": 0.2, "ours": 2.5, "torch": 0.2, "cublaslt": 0.2, "triton": 14.0,
         "inductor": 30.0, "sdpa_flash": 0.1, "sdpa_cudnn": 0.3, "measure": 0.9}  # fmt: skip
MOST = ("torch", "cublaslt", "sdpa_flash", "sdpa_cudnn", "inductor", "triton")


def limited_run(
    seconds: float, takes: dict[str, float], known: list[dict[str, Any]] | None = None
) -> tuple[list[dict[str, Any]], float]:
    """The rows that a run of so many seconds leaves behind, and how long it took."""
    clock = Clock()
    settings = suites.Settings(
        Options(target="cuda"), peers=MOST, dtypes=suite.DTYPES, stop_after_s=seconds,
        known=tuple(known or ()),
    )  # fmt: skip
    rows = list(known or ())
    race = FakeRace(clock=clock, takes=takes)
    for row in suite.run(suites.mirage_plan(settings), lambda: race, clock):
        rows = [r for r in rows if mirage.key(r) != mirage.key(row)] + [row]
    return rows, clock.now


def test_ten_minutes_tell_something_of_everything() -> None:
    rows, took = limited_run(525.0, USUAL)
    assert took < 525 + 20
    every = {(w.name, b, d) for w, b, d in suite.cases(plan()) if w.name in PAPER + REAL}
    assert {d for _, _, d in every} == {"f16", "bf16"}

    def measured(rows: list[dict[str, Any]], cache: str) -> set[tuple[str, int, str]]:
        return {
            (r["case"], r["batch"], r["dtype"])
            for r in rows
            if r["cache"] == cache and r.get("speedup_vs_best")
        }

    assert measured(rows, "warm") == measured(rows, "cold") >= every
    others = {(w.name, b, d) for w, b, d in suite.cases(plan())} - measured(rows, "cold")
    left_out = {(r["case"], r["batch"], r["dtype"]) for r in rows if r["verdict"] == suite.LEFT_OUT}
    assert left_out == others
    # What is left goes on there: peers that compile, first those of the paper's shapes.
    again, _ = limited_run(525.0, USUAL, rows)
    full = [r for r in again if "triton" in r.get("peers", {})]
    assert len(full) >= 14  # rows: two of a case
    assert {r["case"] for r in full} <= set(PAPER)
    assert measured(again, "cold") >= every
    # A machine that is twice as slow has seen one dtype, the paper's shapes first.
    slow, _ = limited_run(525.0, {name: 2 * s for name, s in USUAL.items()})
    assert measured(slow, "cold") >= {c for c in every if c[2] == "f16"}


def test_a_run_of_slow_searches_ends_in_time() -> None:
    rows, took = limited_run(500.0, USUAL | {"ours": 200.0, "torch": 30.0})
    assert took < 500 + suite._OURS_S + 2
    assert {r["verdict"] for r in rows} >= {suite.LEFT_OUT}
    failed = [r for r in rows if "failure" in r]
    assert failed
    assert all("no answer within 45 s" in r["failure"] for r in failed)


def test_what_is_known_outlives_a_lost_process() -> None:
    """A case that fails in full keeps its row in brief."""
    clock = Clock()

    class Fickle(FakeRace):
        def _ask(self, limit_s: float, **order: Any) -> dict[str, Any]:
            if order["do"] == "measure" and "triton" in self.ready:
                return {"failed": "CUDA error: an illegal memory access"}
            return super()._ask(limit_s, **order)

    rows = list(suite.run(plan(case="ntrans@", batch=1, dtypes=("f16",), stop_after_s=200.0),
                          lambda: Fickle(clock=clock, takes=USUAL), clock))  # fmt: skip
    assert [r["cache"] for r in rows] == ["warm", "cold"]
    assert all(r["ours_us"] and r["peer_failures"] == {"triton": suite.NO_TIME} for r in rows)


def test_time_is_shared_by_importance() -> None:
    shared = plan(case=None, batch=None, dtypes=("f16", "bf16"), stop_after_s=525.0)
    told = suite.schedule(shared)
    todo = suite.steps(shared)
    assert [label for label, _ in told] == [step.label for step in todo]
    first = [seconds for (_, seconds), step in zip(told, todo, strict=True) if step.tier == -2]
    # All in brief get as much, and more than what the run has is never given away.
    assert all(seconds == pytest.approx(525 / len(first)) for seconds in first)
    assert sum(seconds for _, seconds in told) < 525 + 60
    assert told[-1][1] == 0
    # Time that is left over goes to those after.
    rest = [step for step in todo if not step.brief]
    assert suite.share(shared, rest, 1e4) > suite.share(shared, rest, 1e3) > 60
    assert suite.share(shared, rest, 1e9) == shared.case_limit_s


def test_the_plan_is_told_without_a_gpu() -> None:
    asked = ["bench", "mirage", "--target", "cuda", "--stop-after", "500", "--dry-run"]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split()[1] == "s"
    assert lines[-1].startswith("  later ")
    with pytest.raises(UsageError, match="--dry-run goes with --stop-after"):
        CliRunner().invoke(cli, [*asked[:4], "--dry-run"], catch_exceptions=False)


def test_rows_sum_up_and_resume() -> None:
    rows = rows_of(FakeRace(), case=None, batch=None)
    assert len(rows) == 2 * len(suite.cases(plan(dtypes=("f16",))))
    summaries = mirage.summaries(rows)
    assert [s["cache"] for s in summaries] == ["warm", "cold", None]
    assert summaries[0]["speedup_vs_best"] == pytest.approx(1.5)
    assert summaries[0]["model"] == max((r["model"] for r in rows), key=lambda m: m["programs"])
    assert (summaries[0]["lacking_peers"], summaries[0]["not_measured"]) == (0, {})
    lacking = {**rows[0], "case": "x", "peer_failures": {"triton": suite.NO_TIME}}
    missing = [{**rows[0], "batch": 99, "ours_us": None, "verdict": v, "speedup_vs_best": None}
               for v in (suite.LEFT_OUT,)]  # fmt: skip
    (more, *_) = mirage.summaries([*rows, lacking, *missing])
    assert more["lacking_peers"] == 1
    assert more["not_measured"] == {f"{rows[0]['case']} B=99": suite.LEFT_OUT}
    done = frozenset(mirage.key(r) for r in rows)
    again = FakeRace()
    assert list(suite.run(plan(dtypes=("f16",), done=done), lambda: again)) == []
    assert again.asked == ["describe"]
    # What another GPU did says nothing about this one.
    other = [{**r, "gpu": {"device": "another"}} for r in rows[:2]]
    assert len(mirage.summaries([*other, *rows[:2]])) == 4
    (first, _) = rows_of(FakeRace(), done=frozenset(mirage.key(r) for r in other), case="rmsnorm@")
    assert first["gpu"] == GPU


def test_what_failed_is_tried_again_at_the_end() -> None:
    rows = rows_of(FakeRace({"ours": "UnsupportedError: no"}), case="rmsnorm@")
    assert not any(suites._is_complete(r) for r in rows)
    assert not suites._is_complete({"ours_us": 1.0, "peer_failures": {"triton": suite.NO_TIME}})
    assert suites._is_complete({"ours_us": 1.0, "peer_failures": {"triton": "out of memory"}})
    # What only lacks peers is no failure; what was not reached is nothing at all.
    lacking = {**rows[0], "case": "lora", "ours_us": 1.0, "peer_failures": {"a": suite.NO_TIME}}
    known = [*rows, lacking, {**rows[0], "case": "gqa", "verdict": suite.LEFT_OUT}]
    found = suites.mirage_plan(suites.Settings(Options(target="cuda"), known=tuple(known)))
    assert ([k[0] for k in found.partial], found.done) == (["lora"], frozenset())
    assert {k[0] for k in found.tried} == {"rmsnorm"}
    tried = found.tried
    again = rows_of(FakeRace(), case="rmsnorm", batch=None, tried=tried)
    assert [(r["case"], r["batch"]) for r in again[-2:]] == [("rmsnorm", 1)] * 2


# --- from the command line --------------------------------------------------------------------


def test_wrong_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "mirage", "--emulate"]) == 64
    assert main(["bench", "search", "--target", "cuda", "--stop-after", "9"]) == 64
    assert main(["bench", "pet", "--target", "cuda", "--ablate"]) == 64
    assert main(["bench", "mirage", "--target", "cuda", "--dtype", "f32"]) == 64
    assert main(["bench", "mirage", "--target", "cuda", "--peers", "numpy"]) == 64
    assert "sdpa_flash" in capsys.readouterr().err


def test_without_a_gpu_the_bench_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    out = tmp_path / "cuda.json"
    assert main(["bench", "mirage", "--target", "cuda", "--quick", "--json", str(out)]) not in (
        0,
        70,
    )
    error = capsys.readouterr().err
    assert "PyTorch with CUDA" in error
    assert not out.exists() or json.loads(out.read_text()) == []


# --- the worker, on a device that is this processor -------------------------------------------


def test_a_case_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("bench.cuda.race.WORKER", "tests.python.cuda_stand_in")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    out = tmp_path / "cuda.json"
    arguments = ["bench", "mirage", "--target", "cuda", "--case", "ntrans@repo", "--batch", "1",
                 "--dtype", "f16", "--peers", "torch,sdpa_flash,cublaslt", "--json",
                 str(out)]  # fmt: skip
    assert main(arguments) == 0
    warm, cold, *means = json.loads(out.read_text())
    assert (warm["cache"], cold["cache"], cold["sets"]) == ("warm", "cold", 3)
    assert list(warm["peers"]) == ["torch"]  # the others have nothing of their own to say
    assert warm["max_rel_err"] < 4e-3
    assert warm["ours_us"] > 0
    assert warm["gpu"]["device"] == "stand-in"
    assert [m["case"] for m in means] == ["geomean"] * 3


# --- without a GPU: the emulator and the compiler ---------------------------------------------

SMALL = ["bench", "mirage", "--target", "cuda", "--emulate", "--case", "ntrans@decode",
         "--batch", "1", "--dtype", "f16", "--json", "-"]  # fmt: skip


def test_reduced_sizes_keep_what_is_equal_equal() -> None:
    for workload in (*WORKLOADS.values(), *CONVOLUTIONS.values()):
        for batch in workload.batches_on("cuda"):
            full, small = workload.at(batch), emulate.reduced(workload, batch).at(1)
            pairs = {(a, b) for n in full for a, b in zip(full[n], small[n], strict=True)}
            assert all(b <= a and b <= 640 for a, b in pairs)
            assert len({a for a, _ in pairs}) == len(pairs)  # one extent becomes one
            emulate.reduced(workload, batch).graph(1).validate()


def test_a_row_of_the_emulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emulate, "ARCHS", ("sm_90a",))
    assert main(SMALL) == 0
    (row,) = json.loads(capsys.readouterr().out)
    if "nvidia-cuda-nvrtc" in row["arch_failures"].get("sm_90a", ""):
        pytest.skip("needs NVRTC (pip install nvidia-cuda-nvrtc)")
    assert row["verdict"] == "equal", row["arch_failures"]
    assert row["compiled_for"] == ["sm_90a"]
    assert 8 < row["registers"]["sm_90a"] <= 255
    assert row["spills"] == {"sm_90a": 0}
    assert row["serialized"] == []
    assert 0 <= row["smem_bytes"]["sm_90a"] <= 227 << 10
    assert 0 < row["max_rel_err"] < 4e-3
    assert row["shape"]["X"] == [1, 4096]
    assert row["emulated_shape"]["X"] == [1, 416]


def test_a_fault_in_the_emulator_fails_the_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emulate, "ARCHS", ("sm_90a",))
    kernel = {"registers": 32, "spilled_bytes": 0, "smem_bytes": 0, "serialized": "bad luck"}
    monkeypatch.setattr(emulate, "compiled", lambda *_: [kernel])
    program = WORKLOADS["ntrans@repo"].program
    wrong = dataclasses.replace(WORKLOADS["ntrans@decode"], program=program)
    other = emulate.reduced(wrong, 1).graph(1, "f16")
    choose = emulate.chosen
    monkeypatch.setattr(emulate, "chosen", lambda _, *rest: choose(other, *rest))
    assert main(SMALL) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["verdict"] == "failed"
    assert row["serialized"] == ["sm_90a: bad luck"]
    monkeypatch.setattr(_core, "cuda_emulated", lambda *_: "a race, k.cu:7")
    assert main(SMALL[:-2]) == 0
    assert "a race, k.cu:7" in capsys.readouterr().out
    assert main(SMALL) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["arch_failures"]["sm_90a"].endswith("a race, k.cu:7")


def test_who_cannot_be_captured_is_left_out_alone() -> None:
    pytest.importorskip("torch")
    from cuda_stand_in import StandInServer

    from bench.cuda.peers import Peer

    server = StandInServer(1)
    server.load("ntrans@repo", 1, "f16")
    server.prepare("torch", {})
    calls: list[int] = []

    def fickle(*tensors: Any) -> Any:
        """Right at first; in the graph, something else."""
        calls.append(1)
        return server.peers["torch"].program(*tensors) * (1 if len(calls) < 2 else 2)

    def refusing(*tensors: Any) -> Any:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    server.errors |= {"fickle": server._error(fickle(*server.tensors)), "refusing": 0.0}
    server.peers |= {"fickle": Peer(fickle), "refusing": Peer(refusing)}
    answer = server.measure(cold=False, budget_s=0.01)
    assert set(answer["left_out"]) == {"fickle", "refusing"}
    assert "computes something else" in answer["left_out"]["fickle"]
    assert answer["medians"]["torch"] > 0


def test_the_table_shows_what_was_learnt(tmp_path: Path) -> None:
    model = {"programs": 40, "rank": 0.81, "error": 0.3, "fitted_rank": 0.93, "fitted_error": 0.1,
             "used": True, "scales": {"launch": 1.25, "memory": 0.9}}  # fmt: skip
    rows = rows_of(FakeRace())
    rows[0]["gpu"] = rows[1]["gpu"] = {**GPU, "driver": "580.1", "torch": "2.9"}
    rows[1]["model"] = model
    (tmp_path / "cuda.json").write_text(json.dumps(rows))
    printed = subprocess.run(
        [sys.executable, ROOT / "bench/table.py", tmp_path / "cuda.json"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "a GPU of the tests, driver 580.1, torch 2.9" in printed
    assert "40 programs: rank correlation 0.81, error 30%; fitted 0.93 and 10% (used)" in printed
    assert "    scale launch 1.25\n    scale memory 0.9\n" in printed
