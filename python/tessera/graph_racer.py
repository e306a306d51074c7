"""One process of a race that is given graphs: compiled kernels, or models in onnxruntime."""

from __future__ import annotations

import functools

from tessera import _core
from tessera.frameworks import Run
from tessera.frontends.onnx.export import written
from tessera.graph import Graph
from tessera.racer import Racer, serve
from tessera.runner import Runner
from tessera.types import Record, Values


class GraphRacer(Racer):
    """Runs programs that are told as text."""

    def _prepared(self, order: Record) -> Run:
        graph = Graph.parse(order["graph"])
        if self._library == "onnxruntime":
            return _session(graph, self._arrays, self._threads == "one")
        module = _core.compile(graph.core, set(order["disable"]), order["exact"])
        return functools.partial(Runner(module, list(graph.input_types())), list(self._arrays))


def _session(graph: Graph, arrays: Values, single: bool) -> Run:
    """The program written as a model, in onnxruntime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = int(single)  # 0: its choice
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        written(graph).bytes(), settings, providers=["CPUExecutionProvider"]
    )
    return functools.partial(session.run, None, dict(zip(graph.input_types(), arrays, strict=True)))


def main(library: str, threads: str) -> None:
    """The process."""
    serve(GraphRacer(library, threads).answer)
