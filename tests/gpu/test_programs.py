"""Programs searched, compiled and run on the device, against the interpreter in f64."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import tessera as ts
from bench import _bench
from bench.cuda.emulate import reduced
from bench.workloads import PAPER, REAL, WORKLOADS
from gpu.conftest import seconds_left
from gpu.running import check, difference, on_device
from tessera.cuda import to_device, to_host
from tessera.errors import UnsupportedError

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*ROOT.glob("examples/*.ug"), *ROOT.glob("tests/corpus/*.ug")])
CASES = [(name, dtype) for name in (*PAPER, *REAL) for dtype in ("f16", "bf16")]
CHUNKS = 8


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_program(file: Path) -> None:
    check(ts.load(str(file)), budget=10)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_workload_at_reduced_sizes(name: str, dtype: str) -> None:
    workload = WORKLOADS[name]
    for batch in workload.batches_on("cuda")[:2]:
        small = reduced(workload, batch)
        graph, arrays = small.graph(1, dtype), small.arrays(1, dtype)
        result = ts.superoptimize(graph, target="cuda", budget=10, cache=False)
        wrong = difference(graph, arrays, on_device(result, arrays))
        assert not wrong, f"{wrong}\n{result.graph}\n{result.kernel_source}"


@pytest.mark.parametrize("name", [*PAPER, *REAL])
def test_workload_at_full_size(name: str, real_gpu: None) -> None:
    workload = WORKLOADS[name]
    batch = workload.batches_on("cuda")[0]
    graph, arrays = workload.graph(batch, "f16"), workload.arrays(batch, "f16")
    result = ts.superoptimize(graph, target="cuda", budget=10, cache=False)
    for _ in range(3):  # a race need not show at once
        found = to_host(result(*[to_device(a) for a in arrays])).astype(float)
        exact = workload.exact(arrays)
        assert abs(found - exact).max() <= 64 * 2**-11 * abs(exact).max()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs(chunk: int) -> None:
    """As many as fit into a minute."""
    end = time.monotonic() + min(60, seconds_left() / 2)
    compared = 0
    for seed in range(chunk, 100_000, CHUNKS):
        if time.monotonic() > end and compared:
            break
        dtype = ("f32", "f16", "bf16")[seed % 3]
        core = _bench.random_program(seed, dtype, 0.5, 37 if seed % 4 == 0 else 9)
        try:
            check(ts.Graph.from_core(core), budget=3, seed=seed)
            compared += 1
        except UnsupportedError:
            continue
    assert compared
