"""Generated kernels under NVIDIA's compute-sanitizer, where it is there and knows the device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.conftest import seconds_left

ROOT = Path(__file__).resolve().parents[2]
REFUSALS = ("Device not supported", "not supported on this", "Unable to find injection library")


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("program", ["rmsnorm_linear", "attention", "lora", "softmax"])
def test_nothing_is_found(tool: str, program: str, real_gpu: None) -> None:
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(sanitizer, os.X_OK):
        pytest.skip("there is no compute-sanitizer")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m",
               "tests.gpu.running", f"examples/{program}.ug"]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                              timeout=min(120, seconds_left()), check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip(f"{tool} needs more time")
    output = done.stdout + done.stderr
    if any(refusal in output for refusal in REFUSALS):
        pytest.skip("compute-sanitizer does not know this device")
    assert done.returncode == 0, output[-4000:]
    assert "right" in output
