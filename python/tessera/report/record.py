"""Everything worth telling about a Result, as plain data that a file can hold."""

from __future__ import annotations

import importlib.util
import time
import timeit
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tessera import _core
from tessera.emit import FLAVOURS, emit
from tessera.errors import Error
from tessera.frontends.onnx.export import inexpressible
from tessera.frontends.traced import arguments
from tessera.graph import Graph
from tessera.machine import machine_description
from tessera.options import Options
from tessera.race import Entrant, decide
from tessera.report.boxes import KIND
from tessera.types import Object, Record, Value, format_type, to_numpy

if TYPE_CHECKING:
    from tessera.result import Result

FORMAT = "tessera-run-1"
_RIVALS = {"numpy": "NumPy", "onnxruntime": "onnxruntime", "torch": "PyTorch, compiled"}
_MOST_OPERATORS = 500  # of programs that others run, too


def record(result: Result, seconds: float) -> Record:
    """The result's `json()`, with programs, errors against f64, limits, source, and other
    libraries' times, which may take so many seconds."""
    others: dict[str, float] = {}
    reach: Record = {}
    try:
        others = rivals(result, seconds)
        reach = {} if result.interpreted else limits(result)
    except KeyboardInterrupt:  # what was found is told all the same
        pass
    return {
        "format": FORMAT,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        **result.json(),
        "programs": {"before": describe(result.original), "after": describe(result.graph)},
        "work": {"before": work(result.original), "after": work(result.graph)},
        "timeline": result.timeline,
        "errors": errors(result),
        "rivals": others,
        "limits": reach,
        "source": result.source,
        "plan": result.plan,
        "machine": machine_description(),
        "target_text": _core.resolve_target(Options(target="cpu").fields()),
    }


def describe(graph: Graph) -> Record:
    """A program as nested records: per operator its name, operands, results with types, body."""
    return {"name": graph.name, "text": str(graph), **_graph(graph.core)}


def _graph(core: _core.Graph) -> Record:
    names: dict[int, str] = {}

    def name(t: int) -> str:
        return names.setdefault(t, core.tensor_name(t) or f"t{t}")

    phases = core.phases() if core.level == "block" else []
    ops = []
    for op in core.ops():
        results = [
            {"id": t, "name": name(t), "type": format_type(*core.type(t)),
             "phase": phases[t] if phases else ""}
            for t in op["results"]
        ]  # fmt: skip
        ops.append(
            {
                "op": op["op"],
                "attrs": {k: _plain(v) for k, v in op["attrs"].items()},
                "inputs": [{"id": t, "name": name(t)} for t in op["inputs"]],
                "results": results,
                "body": _graph(op["body"]) if op["body"] is not None else None,
            }
        )
    return {
        "level": core.level,
        "grid": core.grid,
        "loops": core.loops,
        "ops": ops,
        "outputs": [name(t) for t in core.outputs],
        "block_bytes": core.block_bytes() if core.level == "block" else 0,
    }


def _plain(value: Object) -> Value:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (int, float, str, bool)) else str(value)


def work(graph: Graph) -> dict[str, float]:
    """FLOP and bytes: every kernel reads its arguments once and writes its results once."""
    total = {"flops": 0.0, "bytes": 0.0, "kernels": 0}

    def size(core: _core.Graph, t: int) -> float:
        return float(np.prod([int(d) for d in core.type(t)[1]], initial=1.0))

    def nbytes(core: _core.Graph, t: int) -> float:
        return size(core, t) * to_numpy(core.type(t)[0]).itemsize

    def arithmetic(core: _core.Graph, op: Record) -> float:
        out = sum(size(core, t) for t in op["results"])
        kind = op["op"]
        if kind == "matmul":
            return 2.0 * out * float(core.type(op["inputs"][0])[1][-1])
        if kind in ("sum", "mean", "reduce_max", "reduce_min", "accum"):
            return size(core, op["inputs"][0])
        return 0.0 if KIND.get(kind) in ("memory", "movement") else out

    def block(core: _core.Graph, times: float) -> float:
        """Loop values once per iteration, others once per block."""
        phases = core.phases()
        iterations = float(np.prod(core.loops, initial=1.0))
        flops = 0.0
        for op in core.ops():
            if op["body"] is not None:
                continue
            loop = any(phases[t] == "loop" for t in [*op["results"], *op["inputs"]])
            flops += arithmetic(core, op) * times * (iterations if loop else 1.0)
        return flops

    core = graph.core
    for op in core.ops():
        if op["op"] in ("input", "const", "iota", "reshape", "squeeze", "unsqueeze"):
            continue
        if (body := op["body"]) is not None:
            total["flops"] += block(body, float(np.prod(body.grid, initial=1.0)))
        else:
            total["flops"] += arithmetic(core, op)
        total["kernels"] += 1
        consts = {t for o in core.ops() if o["op"] == "const" for t in o["results"]}
        total["bytes"] += sum(nbytes(core, t) for t in {*op["inputs"], *op["results"]} - consts)
    return total


_ERRORS = {"original": "spec_error", "original_mean": "spec_mean", "result": "candidate_error",
           "result_mean": "candidate_mean"}  # fmt: skip


def errors(result: Result) -> Record:
    """Largest and mean errors of original and result against f64 (of f64, against long double), by
    kind of input, as the certificate has them."""
    gate = [] if result.certificate is None else result.certificate.record()["gate"]
    return {"rows": [
        {"family": row["family"], **{name: row[key] for name, key in _ERRORS.items()}}
        for row in gate if row["elements"]  # inf and NaN are compared, not measured
    ]}  # fmt: skip


def rivals(result: Result, seconds: float) -> dict[str, float]:
    """Microseconds of a call of the program, by libraries that are installed, in one race with the
    result, their starts included; empty where there is no telling."""
    program = result.original
    left_out = result.on_gpu or result.interpreted or program.tail is not None
    if left_out or len(program.ops) > _MOST_OPERATORS:
        return {}
    entrants = {"Tessera's kernels": result.as_entrant()}
    for library, who in _RIVALS.items():
        text = {"graph": str(program)}
        if importlib.util.find_spec(library) is None:
            continue
        try:
            if library in FLAVOURS:
                text = {"source": emit(program, library, name="program"), "name": "program"}
            elif inexpressible(program):
                continue
        except Error:  # operators without a spelling there
            continue
        entrants[who] = Entrant(None, library, text)
    try:
        arrays = arguments(program, None, 0)
        race = decide(list(entrants.values()), 1.0, arrays, 0.5, seconds)
    except Error:
        return {}
    told = zip(entrants, race.times, strict=True)
    return {who: times.median * 1e6 for who, times in told if times is not None}


def limits(result: Result) -> Record:
    """Bandwidth and multiply-add rate of this machine, probed now."""
    dtype = next((str(d) for d in result.json()["dtype"].values() if d in ("f32", "bf16")), "f32")
    megabytes = 256

    def best(run: Callable[[], None], repeats: int) -> float:
        return min(timeit.repeat(run, number=1, repeat=repeats))

    large, small = _core.LimitProbe(megabytes << 20), _core.LimitProbe(4 << 20)
    rounds = 100_000
    small.read()
    return {
        "dram_bytes_s": (megabytes << 20) / best(large.read, 8),
        "cache_bytes_s": (4 << 20) / best(small.read, 200),
        "flops_s": rounds * small.flops(dtype) / best(lambda: small.fma(rounds, dtype), 60),
        "dtype": dtype,
    }
