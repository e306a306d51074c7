"""`tessera bench mirage --target cuda --emulate`: the workloads' kernels without a GPU.

A row per case, batch and dtype. The program that the search prefers for the architecture is emitted
at reduced sizes, run in the emulator, which finds races and wrong accesses, and compared with f64;
at full size it is compiled for each architecture. `registers`, `spills` (bytes of a thread) and
`smem_bytes` (of a block) are the most of any kernel, per architecture; `serialized` says whose
asynchronous products the compiler makes wait, and why. Nothing is timed.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from bench.cuda.suite import cases
from bench.mirage import Plan, key
from bench.workloads import Workload
from tessera import _core
from tessera.cuda import find_libraries, library_folders
from tessera.errors import Error
from tessera.graph import Graph
from tessera.options import Options, target_directory
from tessera.types import to_numpy

Row = dict[str, Any]
ARCHS = ("sm_80", "sm_90a", "sm_100a")
Choose = Callable[[Graph, str, Options], Graph]  # the program for an architecture


def reduced(workload: Workload, batch: int) -> Workload:
    """The workload with every extent above 64 far smaller, and equal ones still equal.

    >>> from bench.workloads import WORKLOADS
    >>> reduced(WORKLOADS["gatedmlp@llama"], 8).shapes["W1"]
    (416, 544)
    """
    shapes = {name: tuple(_less(extent) for extent in shape)
              for name, shape in workload.at(batch).items()}  # fmt: skip
    return dataclasses.replace(workload, shapes=shapes)


def _less(extent: int) -> int:
    """Multiples of 32 that grow as the logarithm: 128 → 96, 1024 → 288, 4096 → 416."""
    return extent if extent <= 64 else 32 * round(2 * math.log2(extent / 64) + 1)


def run(plan: Plan, choose: Choose | None = None) -> Iterator[Row]:
    """All rows, as they are known; those in `plan.done` are left out."""
    find_libraries()
    for workload, batch, dtype in cases(plan):
        row: Row = {
            "suite": "mirage",
            "case": workload.name,
            "batch": batch,
            "shape": {name: list(shape) for name, shape in workload.at(batch).items()},
            "dtype": dtype,
            "target": plan.options.target,
            "cache": "emulated",
        }
        if key(row) in plan.done:
            continue
        plan.tell(f"{workload.name} B={batch} {dtype}: emulating and compiling")
        yield row | _case(workload, batch, dtype, plan.options, choose or chosen)


def chosen(graph: Graph, arch: str, options: Options) -> Graph:
    """What the model of an architecture prefers, of what passes the field filter."""
    found = _core.search(graph.core, options.replace(target=f"cuda:{arch}").fields())
    if found["interrupted"]:
        raise KeyboardInterrupt
    from bench import _bench  # which `make bench-core` builds

    candidates = [c["graph"] for c in found["candidates"]]
    passed = _bench.filter(graph.core, candidates, threads=options.threads)
    best = next((c for c, ok in zip(candidates, passed, strict=True) if ok), graph.core)
    return Graph.from_core(best)


def compiled(graph: Graph, arch: str, disable: Iterable[str] = ()) -> list[Row]:
    """What the compiler makes of each kernel of a program."""
    from bench import _bench

    _bench.set_cuda_folders(library_folders())
    return _bench.cuda_compiled(graph.core, f"cuda:{arch}", target_directory(), {*disable})


def _case(workload: Workload, batch: int, dtype: str, options: Options, choose: Choose) -> Row:
    facts: Row = {"compiled_for": [], "registers": {}, "spills": {}, "smem_bytes": {},
                  "kernels": {}, "serialized": [], "arch_failures": {}}  # fmt: skip
    small = reduced(workload, batch)
    facts["emulated_shape"] = {name: list(shape) for name, shape in small.shapes.items()}
    errors = []
    start = time.perf_counter()
    for arch in ARCHS:
        try:
            kernels = compiled(choose(workload.graph(batch, dtype), arch, options), arch)
            facts["compiled_for"].append(arch)
            facts["kernels"][arch] = len(kernels)
            for name, key in (("registers", "registers"), ("spills", "spilled_bytes"),
                              ("smem_bytes", "smem_bytes")):  # fmt: skip
                facts[name][arch] = max(k[key] for k in kernels)
            facts["serialized"] += [f"{arch}: {w}" for k in kernels if (w := k["serialized"])]
        except Error as error:
            facts["arch_failures"][arch] = f"compile: {_first_line(error)}"
        try:
            errors.append(_emulate(small, dtype, arch, options, choose))
        except Error as error:
            facts["arch_failures"].setdefault(arch, f"emulate: {_first_line(error)}")
    if errors:
        facts["max_rel_err"] = max(errors)
    facts["verdict"] = "failed" if facts["arch_failures"] else "equal"
    facts["seconds"] = time.perf_counter() - start
    return facts


def _emulate(small: Workload, dtype: str, arch: str, options: Options,
             choose: Choose) -> float:  # fmt: skip
    """Largest difference from f64, relative to the largest element; raises a kernel's fault."""
    graph = choose(small.graph(1, dtype), arch, options).core
    arrays = small.arrays(1, dtype)
    shapes = [tuple(int(d) for d in graph.type(t)[1]) for t in graph.outputs]
    outputs = [np.empty(shape, to_numpy(dtype)) for shape in shapes]
    fault = _core.cuda_emulated(graph, arrays, outputs, f"cuda:{arch}", target_directory())
    if fault is not None:
        raise Error(fault)
    exact = small.exact(arrays)
    difference = float(np.abs(outputs[0].astype(np.float64) - exact).max())
    error = difference / float(np.abs(exact).max())
    if not error < 0.1:
        raise Error(f"its result is {error:.2g} away from f64")
    return error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300]
