"""Tuning: other tiles of the fastest, remembered; and jobs in the background."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import UsageError
from tessera.tuner import Tuner

ROOT = Path(__file__).resolve().parents[2]


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(folder))


def test_tuning_is_remembered_for_all(own_cache: None) -> None:
    graph = ts.load(ROOT / "examples/layernorm_linear.ug")
    tuned = ts.superoptimize(graph, tune=True, budget=20)
    assert tuned.details["tuned"]
    assert not tuned.details["from_cache"]
    varied = [c for c in tuned.candidates if c.origin.endswith("+tiles")]
    assert varied, "no tiles were varied"
    assert any(c.measured_us for c in varied)
    assert len({str(c.graph) for c in tuned.candidates}) > 16
    if not tuned.improved:  # a busy machine
        return
    again = ts.superoptimize(graph, budget=5)
    assert again.details["from_cache"]
    assert again.details["tuned"]
    assert again.graph == tuned.graph
    assert again.certificate is not None


def test_a_program_that_ends_is_not_held_up(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(
        "import numpy as np, tessera as ts\n"
        "f = ts.optimize(budget=3600)(lambda x: np.exp(x) / np.sum(np.exp(x)))\n"
        "print(f(np.zeros((64, 64), np.float32)).sum())\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=600, check=True,
        env={"TESSERA_CACHE_DIR": str(tmp_path / "c"), "PYTHONPATH": str(ROOT / "python"),
             "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stderr == ""
    assert float(done.stdout) == pytest.approx(1)


def test_jobs_take_turns_and_can_be_stopped() -> None:
    tuner, order = Tuner(), []
    running = threading.Event()

    def long(stop: Any) -> None:
        running.set()
        while not stop():
            time.sleep(0.01)
        order.append("long")

    tuner.add(long)
    tuner.add(lambda stop: order.append("never"))
    assert running.wait(10)
    assert not tuner.wait(0.05)
    tuner.stop()
    assert order == ["long"]
    assert tuner.wait(0)

    other = Tuner()
    other.add(lambda stop: order.remove("not there"))  # which the others outlive
    other.add(lambda stop: order.append("next"))
    assert other.wait(10)
    assert order == ["long", "next"]


def test_only_what_tune_knows() -> None:
    with pytest.raises(UsageError, match="tune is True"):
        ts.Options(tune="later")  # type: ignore[arg-type]
