"""ONNX's backend tests. Here a quick part; TESSERA_ONNX=all runs every one in every mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from tessera.bench import onnx_nodes as nodes
from tessera.errors import UnsupportedError

SKIPS = nodes.read_skips(Path(nodes.__file__).with_name("onnx_skips.txt"))
QUICK = ["Conv", "ConvTranspose", "AveragePool", "MaxPool", "Resize", "Slice", "Pad", "Gather",
         "LayerNormalization", "Softmax", "Gemm", "Split", "LSTM", "ScatterND", "TopK",
         "GridSample"]  # fmt: skip
ALL = os.environ.get("TESSERA_ONNX") == "all"


@pytest.fixture(scope="module")
def cases() -> list[nodes.Case]:
    found = [*nodes.node_cases(None if ALL else QUICK), *nodes.model_cases()]
    return [c for c in found if c.core_types]


def run(cases: list[nodes.Case], mode: str) -> tuple[int, list[str]]:
    passed, failed = 0, []
    for case in cases:
        if nodes.skipped(SKIPS, case.name, mode):
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
    assert passed >= (1290 if ALL else 200)


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
        if not nodes.skipped(SKIPS, case.name, "interpreter"):
            continue
        with pytest.raises(UnsupportedError):
            nodes.run_case(case, "interpreter")


def test_a_wrong_result_fails() -> None:
    case = next(c for c in nodes.node_cases(["Softmax"]) if c.name == "test_softmax_axis_1")
    inputs, wanted = case.data[0]
    broken = nodes.Case(case.name, case.model, [(inputs, [wanted[0] + 1e-2])])
    with pytest.raises(AssertionError):
        nodes.run_case(broken, "interpreter")
    nodes.run_case(case, "interpreter")
