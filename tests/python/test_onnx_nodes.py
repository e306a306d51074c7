"""ONNX's backend tests. Here a quick part; TESSERA_ONNX=all runs every one in every mode."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from bench import onnx_nodes as nodes
from tessera.errors import UnsupportedError
from tessera.frontends.onnx import Model

SKIPS = nodes.read_skips(Path(nodes.__file__).with_name("onnx_skips.txt"))
QUICK = ["Conv", "ConvTranspose", "AveragePool", "MaxPool", "Resize", "Slice", "Pad", "Gather",
         "LayerNormalization", "Softmax", "Gemm", "Split", "LSTM", "ScatterND", "TopK",
         "GridSample", "ReduceMax", "ReduceMin", "ReduceL2", "Trilu",
         "Reshape"]  # fmt: skip
ALL = os.environ.get("TESSERA_ONNX") == "all"


@pytest.fixture(scope="module")
def cases() -> list[nodes.Case]:
    found = [*nodes.node_cases(None if ALL else QUICK), *nodes.model_cases()]
    return [c for c in found if c.core_types]


def run(cases: list[nodes.Case], mode: str) -> tuple[int, list[str]]:
    passed, failed = 0, []
    for case in cases:
        if nodes.skipped(SKIPS, case.name):
            continue
        try:
            nodes.run_case(case, mode)
            passed += 1
        except Exception as error:
            failed.append(f"{case.name}: {type(error).__name__}: {error}")
    return passed, failed


def test_interpreted(cases: list[nodes.Case]) -> None:
    passed, failed = run(cases, "interpreter")
    assert not failed, "\n".join(failed)
    assert passed >= (1397 if ALL else 200)


@pytest.mark.parametrize("mode", ["compiled", "forced"])
def test_compiled(cases: list[nodes.Case], mode: str) -> None:
    some = cases
    if not ALL:
        wanted = {"test_Conv2d_groups", "test_basic_conv_with_padding", "test_softmax_axis_1",
                  "test_convtranspose_dilations", "test_MaxPool3d_stride_padding"}  # fmt: skip
        some = [
            c
            for c in cases
            if c.name in (wanted if mode == "compiled" else {"test_softmax_axis_1"})
        ]
        assert some
    passed, failed = run(some, mode)
    assert passed
    assert not failed, "\n".join(failed)


def test_each_line_of_the_list_is_needed(cases: list[nodes.Case]) -> None:
    """A skipped test that passes has to leave the list; a wrong result is never skipped."""
    for case in cases:
        if not nodes.skipped(SKIPS, case.name):
            continue
        with pytest.raises(UnsupportedError):
            nodes.run_case(case, "interpreter")


def test_a_run_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def fake(case: nodes.Case, mode: str) -> bool:
        ran.append(f"{case.name} {mode}")
        if case.name == "test_4":
            raise AssertionError("wrong")
        return mode == "forced" and case.name != "test_0"

    some = [nodes.Case(f"test_{i}", None, []) for i in range(5)]
    monkeypatch.setattr(nodes, "node_cases", lambda: some)
    monkeypatch.setattr(nodes, "model_cases", lambda: iter(()))
    monkeypatch.setattr(nodes.Case, "core_types", True)
    monkeypatch.setattr(nodes, "run_case", fake)
    monkeypatch.setattr(nodes, "_PER_ROW", 2)
    rows = list(nodes.run(False, lambda text: None))
    assert [r["tested"] for r in rows] == [2, 4, 5] * 3
    last = rows[2]
    assert (last["count"], last["passed"], last["failures"]) == (5, 4, ["test_4: wrong"])
    assert [r["rewritten"] for r in rows[2::3]] == [0, 0, 3]
    ran.clear()
    again = list(nodes.run(False, lambda text: None, [rows[2], rows[3]]))
    assert ran[0] == "test_2 compiled"
    assert [r["tested"] for r in again] == [4, 5, 2, 4, 5]
    assert again[1]["failures"] == ["test_4: wrong"]


def test_empty_results_are_the_models_not_the_programs() -> None:
    """Results without elements stand between those that a program computes."""
    onnx = pytest.importorskip("onnx")
    make = onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [make("Split", ["x", "s"], ["a", "b", "c"], axis=0), make("Exp", ["a"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [4, 3])],
        [onnx.helper.make_tensor_value_info(n, 1, None) for n in ("b", "y", "c")],
        [onnx.numpy_helper.from_array(np.array([3, 0, 1]), "s")],
    )
    model = Model(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    b, y, c = model(x)
    assert b.shape == (0, 3)
    np.testing.assert_allclose(y, np.exp(x[:3]), rtol=1e-6)
    np.testing.assert_array_equal(c, x[3:])
    with pytest.raises(UnsupportedError, match="call the model for its empty results"):
        model.graph()
    with pytest.raises(UnsupportedError, match="empty"):
        model.graph(shapes={"x": [4, 3]})


def test_a_wrong_result_fails() -> None:
    case = next(c for c in nodes.node_cases(["Softmax"]) if c.name == "test_softmax_axis_1")
    inputs, wanted = case.data[0]
    broken = nodes.Case(case.name, case.model, [(inputs, [wanted[0] + 1e-2])])
    with pytest.raises(AssertionError):
        nodes.run_case(broken, "interpreter")
    nodes.run_case(case, "interpreter")
