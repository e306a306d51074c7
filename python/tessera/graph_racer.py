"""One process of a race that is given graphs: compiled kernels, or models in onnxruntime."""

from __future__ import annotations

import functools

from tessera import _core
from tessera.frameworks import Run
from tessera.frontends.onnx.export import written
from tessera.frontends.onnx.model_file import session_of
from tessera.graph import Graph
from tessera.racer import Racer, serve
from tessera.runner import Runner
from tessera.types import Record


class GraphRacer(Racer):
    """Runs programs that are told as text."""

    def _prepared(self, order: Record) -> Run:
        graph = Graph.parse(order["graph"])
        if self._library == "onnxruntime":
            session = session_of(written(graph).bytes(), int(self._threads == "one"))
            feed = dict(zip(graph.input_types(), self._arrays, strict=True))
            return functools.partial(session.run, None, feed)
        module = _core.compile(graph.core, set(order["disable"]), order["exact"])
        return functools.partial(Runner(module, list(graph.input_types())), list(self._arrays))


def main(library: str, threads: str) -> None:
    """The process."""
    serve(GraphRacer(library, threads).answer)
