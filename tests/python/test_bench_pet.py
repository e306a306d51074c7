"""The suite pet: its cases, its turns, and its models where PyTorch is there."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import pet, pet_models
from tessera.errors import UsageError
from tessera.options import Options


def test_cases_are_models_and_batches() -> None:
    everything = pet.cases(None, None, quick=False)
    assert {n for n, _ in everything} == set(pet_models.MODELS)
    assert {b for _, b in everything} == {1, 16}
    assert pet.cases("bert", 4, quick=False) == [("bert", 4)]
    assert pet.cases(None, None, quick=True) == [("csrnet14", 1)]
    with pytest.raises(UsageError, match="'vgg' is not one of bert, bert_paper, csrnet14"):
        pet.cases("vgg", None, quick=False)


def test_turns_rotate() -> None:
    order: list[str] = []

    class Fake:
        def ask(self, limit_s: float, do: str, name: str) -> dict[str, float]:
            order.append(name)
            return {"seconds": 0.001 * (1 + len(order))}

    processes: dict[str, Any] = {"a": Fake(), "b": Fake()}
    times = pet._take_turns(processes, 0)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert times == {"a": [0.002, 0.005, 0.006], "b": [0.003, 0.004, 0.007]}
    assert pet._take_turns({}, 0) == {}


def test_rows_that_are_known_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    raced: list[tuple[int, list[str]]] = []

    def race(name: str, batch: int, threads: int, *rest: Any) -> dict[str, Any]:
        raced.append((threads, rest[-1]))
        return {"case": name, "batch": batch, "threads": threads}

    monkeypatch.setattr(pet, "_race", race)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(pet, "_write", lambda *rest: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})

    def rows(known: set[Any], **options: Any) -> list[dict[str, Any]]:
        off = Options(**options)
        return list(pet.run(off, "csrnet14", 1, False, lambda text: None, 1, ["torch"], known))

    both = rows(set())
    assert [r["threads"] for r in both] == [1, 2]
    assert raced == [(1, ["torch"]), (2, ["torch"])]
    assert [r["threads"] for r in rows({pet.key(both[0])})] == [2]
    assert rows({pet.key(r) for r in both}) == []
    # What was switched off makes a row of its own.
    off = rows({pet.key(r) for r in both}, disable=("plan:transforms",))
    assert [r["disabled"] for r in off] == [["plan:transforms"]] * 2
    with pytest.raises(UsageError, match="'tvm' is not one of ort"):
        list(pet.run(Options(), "csrnet14", 1, False, lambda text: None, 1, ["tvm"]))


def test_rewrites_alone_are_told_for_every_choice_of_transforms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = {
        "tessera": 2.0,
        "tessera-norewrite": 3.0,
        "tessera:common": 2.0,
        "tessera-norewrite:common": 5.0,
        "tessera-norewrite:none": 7.0,
        "ort": 4.0,
    }

    class Fake:
        def __init__(self, threads: int, module: str) -> None:
            pass

        def ask(self, limit_s: float, do: str, name: str, **rest: Any) -> dict[str, Any]:
            if do == "time":
                return {"seconds": seconds[name]}
            failed = {} if name in seconds else {"failed": "no such"}
            return {"error": 0.0, "facts": {"verdict": name, "tune_s": 1.0}} | failed

        def close(self) -> None:
            pass

    monkeypatch.setattr(pet, "Process", Fake)
    row = pet._race("csrnet14", 1, 1, Options(), "", lambda text: None, 0, 1,
                    list(pet.TRANSFORMS), ["ort"])  # fmt: skip
    assert row["verdict"] == "tessera"
    assert row["peers"] == {"ort": 4e6}
    assert row["speedup_vs_best"] == 2
    assert row["original_us"] == 3e6
    alone = row["rewrites_alone"]
    assert alone["all"] == {"original_us": 3e6, "ours_us": 2e6, "ratio": 1.5}
    assert alone["common"]["ratio"] == 2.5
    assert alone["common"]["verdict"] == "tessera:common"
    assert "none" not in alone
    assert row["notes"] == {"tessera:none": "no such"}


def test_models_are_the_same_each_time_and_mean_the_same_as_onnx(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from tessera.frontends.onnx import load

    first, again = pet_models.build("csrnet14"), pet_models.build("csrnet14")
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)
    )
    pet_models.export("csrnet14", 1, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    x = pet_models.example("csrnet14", 1)
    with torch.no_grad():
        wanted = first(x).numpy()
    got = graph.run(*graph.with_weights([x.numpy()]))[0]
    np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())


def test_operators_have_the_shapes_of_the_papers_table() -> None:
    torch = pytest.importorskip("torch")
    shapes = {
        "table3_conv": (2, 64, 38, 38),
        "table3_dilated": (2, 256, 14, 14),
        "table3_parallel": (2, 704, 18, 18),
        "table3_matmul": (2, 3 * 512, 768),
    }
    for name, shape in shapes.items():
        with torch.no_grad():
            assert pet_models.build(name)(pet_models.example(name, 2)).shape == shape
