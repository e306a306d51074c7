"""Programs on the device, compared with the interpreter in f64.

`python -m tests.gpu.running FILE.ug` does so once, for a tool that looks over its shoulder.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import tessera as ts
from tessera import _core
from tessera.cuda import to_device, to_host
from tessera.types import to_numpy

Array = np.ndarray[Any, np.dtype[Any]]
EPS = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


def random_arrays(graph: ts.Graph, seed: int) -> list[Array]:
    """Arguments: normal floats, small whole numbers."""
    rng = np.random.default_rng(seed)
    arrays = []
    for tensor in graph.core.inputs:
        dtype, shape = graph.core.type(tensor)
        extents = [int(d) for d in shape]
        floats = rng.standard_normal(extents) if dtype in EPS else rng.integers(0, 5, extents)
        arrays.append(np.asarray(floats).astype(to_numpy(dtype)))
    return arrays


def on_device(result: ts.Result, arrays: list[Array]) -> list[Array]:
    """The results of one call, on the host."""
    results = result(*[to_device(a) for a in arrays])
    several = results if isinstance(results, (tuple, list)) else [results]
    return [to_host(r) for r in several]


def difference(graph: ts.Graph, arrays: list[Array], results: list[Array]) -> str:
    """What is wrong with results; empty if nothing is.

    A result may be four times as far from the exact one as the interpreter in the same dtypes is,
    and 64 roundings of its largest element.
    """
    arrays = [a.astype(np.float64) if a.dtype.name == "bfloat16" else a for a in arrays]
    exact = _core.evaluate(graph.core, arrays, exact=True)
    native = _core.evaluate(graph.core, arrays)
    for tensor, result, right, plain in zip(
        graph.core.outputs, results, exact, native, strict=True
    ):
        dtype = graph.core.type(tensor)[0]
        if result.shape != right.shape:
            return f"shape {result.shape} instead of {right.shape}"
        if dtype not in EPS:
            if not np.array_equal(result.astype(right.dtype), right):
                return f"{np.count_nonzero(result != right)} wrong elements of {right.size}"
            continue
        finite = np.isfinite(right) & np.isfinite(plain)
        if not finite.any():
            continue
        largest = np.abs(right[finite]).max(initial=0.0)
        allowed = 4 * np.abs(plain - right)[finite].max(initial=0.0) + 64 * EPS[dtype] * largest
        error = np.abs(result.astype(np.float64) - right)[finite].max(initial=0.0)
        if not error <= allowed:
            return f"{error:.3g} from f64 where {allowed:.3g} is allowed ({dtype})"
    return ""


def check(graph: ts.Graph, budget: float, seed: int = 0) -> ts.Result:
    """Optimises for the device, runs, compares; raises AssertionError with the source."""
    result = ts.superoptimize(graph, target="cuda", budget=budget, cache=False)
    arrays = random_arrays(graph, seed)
    wrong = difference(graph, arrays, on_device(result, arrays))
    assert not wrong, f"{wrong}\n{graph}\n{result.graph}\n{result.kernel_source}"
    return result


if __name__ == "__main__":
    from tessera.cuda import find_libraries

    find_libraries()
    check(ts.load(sys.argv[1]), budget=10)
    print("right")
