"""ONNX's own backend tests: which of them Tessera computes, in which mode.

The tests are those of the installed package onnx: the node tests, which it makes when asked (half a
minute), and the models converted from PyTorch that it carries. A test of
`skips.txt` is not run; every line there says why.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tessera import _core
from tessera.call_forms import GraphCall
from tessera.errors import UnsupportedError
from tessera.frontends.onnx.model import Model
from tessera.graph import Graph
from tessera.options import Options
from tessera.runner import Runner

Array = np.ndarray[Any, Any]
MODES = ("interpreter", "compiled", "forced")
_PER_ROW = 50  # tests, after which a row is told
CORE_TYPES = frozenset(np.dtype(t) for t in ("f4", "i8", "i4", "?"))


@dataclass(frozen=True)
class Case:
    """One test: a model with inputs and the results to expect."""

    name: str
    model: Any
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def ops(self) -> set[str]:
        return {n.op_type for n in self.model.graph.node}

    @property
    def core_types(self) -> bool:
        """Only tensors of f32, i64, i32 and bool go in and come out."""
        values = [*self.model.graph.input, *self.model.graph.output]
        return all(
            v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in (1, 6, 7, 9)
            for v in values
        )


def node_cases(op_types: Sequence[str] | None = None) -> list[Case]:
    """The node tests of the installed onnx, all or those of some operators."""
    import onnx.backend.test.case.node

    node: Any = onnx.backend.test.case.node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if op_types is None:
            made = node.collect_testcases()
        else:
            import importlib

            made = []
            for op in op_types:
                node._TargetOpType = op
                importlib.import_module(f"onnx.backend.test.case.node.{op.lower()}")
            made = [c for c in node._NodeTestCases if any(c.model.graph.node)]
    return [Case(c.name, c.model, c.data_sets or [], c.rtol, c.atol) for c in made]


def model_cases() -> Iterator[Case]:
    """The converted models that the package carries as files."""
    import onnx
    from onnx import numpy_helper

    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        for folder in sorted((root / kind).glob("test_*")):
            if not (folder / "model.onnx").is_file():
                continue
            model = onnx.load(str(folder / "model.onnx"))
            data = []
            for one in sorted(folder.glob("test_data_set_*")):
                sides = []
                for side in ("input", "output"):
                    arrays: list[Any] = []
                    for i in range(len(list(one.glob(f"{side}_*.pb")))):
                        tensor = onnx.TensorProto()
                        tensor.ParseFromString((one / f"{side}_{i}.pb").read_bytes())
                        try:
                            arrays.append(numpy_helper.to_array(tensor))
                        except Exception:  # sequences and the like
                            arrays.append(None)
                    sides.append(arrays)
                data.append((sides[0], sides[1]))
            yield Case(folder.name, model, data)


def run_case(case: Case, mode: str) -> bool:
    """Runs a test in a mode; raises Error, or AssertionError where a result is wrong.

    True where a rewrite was forced on a program of it.
    """
    model = Model(case.model, opaque=False)
    rewritten = False

    def run(graph: Graph, taken: Sequence[Array]) -> list[Array]:
        nonlocal rewritten
        program = forced(graph) if mode == "forced" else graph
        rewritten |= program is not graph
        return run_graph(program, taken, mode)

    for inputs, wanted in case.data:
        arrays = {}
        for name, value in zip((v.name for v in case.model.graph.input), inputs, strict=False):
            if not isinstance(value, (np.ndarray, np.generic)):
                raise UnsupportedError(f"the input '{name}' is not a tensor")
            arrays[name] = np.asarray(value)
        arrays = {n: a for n, a in arrays.items() if n in model.inputs}
        compare(case, model.run(arrays, run), wanted)
    return rewritten


def run_graph(graph: Graph, arrays: Sequence[Array], mode: str) -> list[Array]:
    if mode == "interpreter":
        return graph.run(*arrays)
    runner = Runner(_core.compile(graph.core), GraphCall(graph).names)
    return runner(graph.with_weights(list(arrays)))


def forced(graph: Graph) -> Graph:
    """Of each engine, on what the one before it made, the best rewrite that it proposes and the
    verifier accepts, whatever it costs; the graph itself where there is none.

    An engine has a second, and its first four candidates five seconds each to be proved.
    """
    for engine in ("synth", "mutate", "patterns", "mugraph"):
        fields = Options(budget=1.0, threads=1, cache=False).fields() | {"engine": engine}
        try:
            found = _core.search(graph.core, fields)["candidates"]
        except UnsupportedError:
            continue
        for candidate in found[:4]:
            core = candidate["graph"]
            if core == graph.core:
                continue
            if _core.verify(graph.core, core, budget=5.0)["verdict"] == "equal":
                graph = graph.with_core(core)
                break
    return graph


def compare(case: Case, got: Sequence[Array], wanted: Sequence[Any]) -> None:
    assert len(got) == len(wanted), f"{len(got)} results, not {len(wanted)}"
    for a, b in zip(got, wanted, strict=True):
        b = np.asarray(b)
        assert a.dtype == b.dtype, f"dtype {a.dtype}, not {b.dtype}"
        assert a.shape == b.shape, f"shape {a.shape}, not {b.shape}"
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), case.rtol, case.atol
            )


@dataclass(frozen=True)
class Skip:
    """A line of the list: tests by pattern, and why."""

    pattern: re.Pattern[str]
    reason: str


def read_skips(path: Path) -> list[Skip]:
    """Lines of `pattern : reason`."""
    skips = []
    for line in path.read_text().splitlines():
        text = line.split("#", 1)[0].strip()
        pattern, _, reason = text.partition(" : ")
        if text and not reason.strip():
            raise ValueError(f"{path}: '{text}' gives no reason")
        if text:
            skips.append(Skip(re.compile(pattern), reason.strip()))
    return skips


def skipped(skips: Sequence[Skip], name: str) -> str | None:
    return next((s.reason for s in skips if s.pattern.fullmatch(name)), None)


def run(
    quick: bool, tell: Callable[[str], None], known: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """The rows of `tessera bench onnx`: how many tests pass in each mode, and which do not.

    A mode's row comes again after every few tests, with those so far; `known` rows go on there.
    """
    skips = read_skips(Path(__file__).with_name("onnx_skips.txt"))
    cases = [c for c in (*node_cases(), *model_cases()) if c.core_types]
    for mode in MODES:
        some = (
            cases[:: (1 if mode == "interpreter" else 10 if mode == "compiled" else 50)]
            if quick
            else cases
        )
        row: dict[str, Any] = {
            "suite": "onnx", "case": mode, "count": len(some), "tested": 0, "passed": 0,
            "skipped": 0, "rewritten": 0, "failures": [], "seconds": 0.0,
        }  # fmt: skip
        row |= next((r for r in known if r["case"] == mode and r["count"] == len(some)), {})
        while row["tested"] < len(some):
            first, start = row["tested"], time.perf_counter()
            for number, case in enumerate(some[first : first + _PER_ROW], first + 1):
                if skipped(skips, case.name) is not None:
                    row["skipped"] += 1
                    continue
                tell(f"{mode} {number}/{len(some)}: {case.name}")
                try:
                    row["rewritten"] += run_case(case, mode)
                    row["passed"] += 1
                except Exception as error:
                    row["failures"] = [*row["failures"], f"{case.name}: {error}"]
            row["tested"] = min(first + _PER_ROW, len(some))
            row["seconds"] += time.perf_counter() - start
            yield dict(row)
