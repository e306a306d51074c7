"""Suites of programs for `tessera tune`, by name: those that the benches measure, as graphs.

stenso: the 33 NumPy programs. onnx-nodes: node tests of the installed onnx that are programs of
more than one operator, different ones once. outside: modules in the style of KernelBench, exported
by torch.export to ATen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from bench import onnx_nodes
from bench.corpus import programs
from tessera import _core
from tessera.errors import Error, UsageError
from tessera.frontends.onnx.model import Model
from tessera.frontends.trace import trace_call
from tessera.graph import Graph

Programs = Iterator[tuple[str, Graph]]
_FEWEST, _MOST = 2, 400  # operators of a node test that is worth tuning


def suite(name: str) -> Programs:
    """The programs of a suite; raises UsageError where there is none of that name."""
    if name not in SUITES:
        raise UsageError(f"there is no suite {name}; there are {', '.join(SUITES)}")
    return SUITES[name]()


def stenso() -> Programs:
    """The NumPy programs of STENSO's evaluation."""
    for program in programs("stenso"):
        yield program.name, trace_call(program.function, [], dict(program.specs)).graph


def onnx_node_tests() -> Programs:
    """Node tests that are programs for themselves: nothing left to onnxruntime."""
    seen = set()
    for case in onnx_nodes.node_cases():
        if not case.core_types:
            continue
        try:
            graph = Model(case.model, opaque=False).graph()
            static = all(
                isinstance(n, int) for _, shape in graph.input_types().values() for n in shape
            )
            graph.validate()
        except Error:
            continue
        own = graph.core.num_ops - len(graph.core.inputs)
        known = _core.program_hash(graph.core) if static else ""
        if static and graph.tail is None and _FEWEST <= own <= _MOST and known not in seen:
            seen.add(known)
            yield case.name.removeprefix("test_"), graph


def outside() -> Programs:
    """Modules that nobody tuned for (outside_programs.py)."""
    try:
        import torch
    except ImportError:
        raise UsageError("the suite outside needs torch: pip install torch") from None
    from bench.outside_programs import PROGRAMS

    torch.manual_seed(0)
    for program in PROGRAMS.values():
        module, args = program.make()
        try:
            yield program.name, exported(module, args, program.name)
        except Error:  # operators that are PyTorch's own
            continue


def exported(module: Any, args: tuple[Any, ...], name: str) -> Graph:
    """A module as a program of ATen's operators; parameters and buffers are its weights."""
    import torch

    from tessera.frontends.torch.call import dtype_of
    from tessera.frontends.torch.decompositions import decompositions
    from tessera.frontends.torch.importer import build

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.export.export(module, args).run_decompositions(decompositions())
    kinds = [spec.kind.name for spec in made.graph_signature.input_specs]
    inputs: list[Any] = []
    for node in made.graph_module.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        tensor = isinstance(value, torch.Tensor)
        inputs.append((dtype_of(value.dtype), list(value.shape)) if tensor else value)
    graph, _ = build(made.graph_module, inputs, [k != "USER_INPUT" for k in kinds], name)
    graph = graph.with_core(graph.core.without_dead_code())
    graph.validate()
    return graph


SUITES: dict[str, Callable[[], Programs]] = {
    "stenso": stenso,
    "onnx-nodes": onnx_node_tests,
    "outside": outside,
}
