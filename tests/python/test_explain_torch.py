"""`tessera explain` of a file with a PyTorch model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera.cli.app import run as command_line  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(torch.nn.functional.gelu(self.up(x)))
"""
INPUTS = "example_inputs = (torch.randn(8, 16),)\n"


@pytest.mark.parametrize(("text", "name", "message"), [
    (MODEL + INPUTS + "model = Net()\n", "", None),
    (MODEL + INPUTS, ":Net", None),
    (MODEL + "def example_inputs():\n    return {'x': torch.randn(8, 16)}\n", ":Net", None),
    (MODEL + INPUTS, "", "Write model = Net(...)"),
    (MODEL, ":Net", "example_inputs is missing"),
    (MODEL + "example_inputs = torch.randn(8, 17)\n", ":Net", "does not run with example_inputs"),
    (MODEL + INPUTS + "def model():\n    return 1 / 0\n", "", "model() failed: ZeroDivisionError"),
])  # fmt: skip
def test_explain_of_a_file(
    text: str, name: str, message: str | None, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "net.py"
    path.write_text(text)
    code = command_line(["explain", f"{path}{name}"])
    told = capsys.readouterr()
    if message is not None:
        assert code == 65
        assert message in told.err.replace("\n", " ")
        return
    assert code == 0
    assert "Net: " in told.out
    assert "1 kernels a call" in told.out or "2 kernels a call" in told.out
    assert "µs" in told.out
    assert "layernorm" in told.out  # an expert's pattern
