"""What is said of a model's linear subprograms: tried, equal, proven, gained, chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from tessera.cli import main  # noqa: E402


@pytest.fixture
def film(tmp_path: Path) -> str:
    """Two layers of windows along frames, which become images."""
    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal((16, 16, 3, 1, 1)) * 0.1).astype(np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1, 0, 0, 1, 0, 0]),
        helper.make_node("Relu", ["c0"], ["r"]),
        helper.make_node("Conv", ["r", "w1"], ["y"], pads=[1, 0, 0, 1, 0, 0]),
    ]
    values = [helper.make_tensor_value_info(n, 1, [1, 16, 4, 12, 12]) for n in "xy"]
    graph = helper.make_graph(
        nodes, "film", values[:1], values[1:],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )  # fmt: skip
    path = tmp_path / "film.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return str(path)


def test_each_subprogram_is_told(film: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--budget", "20", "--no-cache", "--threads", "1"]
    assert main(["optimize", film, *flags, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    (one,) = told["subprograms"]
    assert one["times"] == 2
    assert min(one["tried"], one["mutants"], one["rounds"]) > 0
    first = one["alternatives"][0]
    assert {"round", "model_s", "measured_s", "proven", "why_not", "chosen"} <= first.keys()
    assert any("conv" in a["derivation"] for a in one["alternatives"])
    assert one["verdict"] in ("chosen", "not kept") or one["verdict"].startswith(
        ("no gain", "not ")
    )
    assert told["cover"] is None or told["cover"]["solver"]
    assert main(["explain", film, "--budget", "20"]) == 0
    text = capsys.readouterr().out
    assert "linear subprograms:\n  2x " in text
    assert "operators tried in" in text
    assert "round 1, modelled" in text


def test_steps_are_switched_off_by_name(film: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--budget", "8", "--no-cache", "--threads", "1", "--json"]
    off = [f"mutate:{s}" for s in ("rearrange", "windows", "matmul", "bundles")]
    assert main(["optimize", film, *flags, *(f for s in off for f in ("--disable", s))]) == 0
    (one,) = json.loads(capsys.readouterr().out)["subprograms"]
    assert one["alternatives"] == []
    assert main(["optimize", film, *flags, "--disable", "mutate"]) == 0
    assert json.loads(capsys.readouterr().out)["subprograms"] == []
    assert main(["optimize", film, *flags, "--disable", "mutate:magic"]) == 64
    assert "no step mutate:magic" in capsys.readouterr().err
