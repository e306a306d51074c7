"""A model as a whole: read once, turned into a Graph for given types and values of its inputs."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tessera import _core
from tessera.errors import BadInputError, OutOfMemoryError
from tessera.extents import NeedsExtentError, symbols_of
from tessera.frontends.onnx.calls import Calls
from tessera.frontends.onnx.importer import Importer
from tessera.frontends.onnx.model_file import session_of
from tessera.frontends.onnx.node import NeedsValueError
from tessera.frontends.onnx.opaque import OpaqueNodes
from tessera.frontends.onnx.reader import defaults_of, parse_model, read_model, widened
from tessera.graph import Graph
from tessera.types import Array, Object, Record, Value

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession


_MOST_PROGRAMS = 32  # that are kept: of shapes, and of values that decide about the program


def load(
    path: str | Path,
    *,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    extents: Mapping[str, int] | None = None,
    values: Mapping[str, Array] | None = None,
    whole: bool = False,
) -> Graph:
    """The program of an ONNX file; initialisers become its weights (`Graph.weights`).

    Extents the model leaves open are symbols, also where it computes shapes with them; `bind` gives
    some of them numbers, and so does `extents` (then nothing is asked of symbols: where a model
    needs more than sums and products of them, `load` gives an OpenModel, to be bound before it is
    anything else). `shapes` replaces an input's shape. `values` fixes inputs that decide about
    shapes: they are no inputs of the program then. `whole` leaves recurrent layers, scattering,
    sampling and TopK as nodes, for a program that becomes a model again. Raises BadInputError (a
    malformed file), UnsupportedError (what has no meaning here) with the file and the node.
    """
    return Model(path, whole=whole).graph(shapes=shapes, extents=extents, values=values)


class OpenModel(Graph):
    """A model that computes what only numbers in place of its open extents decide: `bind` gives
    the program, and whatever else asks for it raises the NeedsExtentError that says why."""

    def __init__(self, error: NeedsExtentError) -> None:
        self.error = error
        self._init_values()

    def __getattr__(self, name: str) -> Value:  # above all `core`, which it lacks
        raise AttributeError(name) if name.startswith("_") else self.error

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.error.message}>"


class Model:
    """An ONNX model to call: programs are made for the shapes (and shape-deciding values) of calls.

    `source`: a file, the bytes of one, or a ModelProto. `opaque=False`: nothing is left to
    onnxruntime, and an operator that Tessera does not know is an error. `whole`: see `load`.
    """

    def __init__(
        self, source: str | Path | bytes | ModelProto, *, opaque: bool = True, whole: bool = False
    ) -> None:
        self.path: Path | None = None
        self.name = "<model>"
        if isinstance(source, (str, Path)):
            self.name, self.path = str(source), Path(source).resolve()
            self.proto = read_model(Path(source))
        elif isinstance(source, bytes):
            self.proto = parse_model(source)
        else:
            self.proto = parse_model(source.SerializeToString())
        self.opaque, self.whole = opaque, whole
        known = {t.name for t in self.proto.graph.initializer}
        self.inputs = [v.name for v in self.proto.graph.input if v.name not in known]
        self.defaults = defaults_of(self.proto)  # inputs that calls may leave out
        self.outputs = [v.name for v in self.proto.graph.output]
        self._declared = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
                          for v in self.proto.graph.input
                          if v.type.tensor_type.HasField("shape")}  # 0: any  # fmt: skip
        kinds = {v.name: v.type.tensor_type.elem_type for v in self.proto.graph.input}
        self._narrow = {n: widened()[k] for n, k in kinds.items() if k in widened()}
        self._deciding: set[str] = set()
        self._programs: dict[Hashable, tuple[Graph, list[str]]] = {}
        self._empty: dict[int, dict[int, Array]] = {}  # by program, which is kept: by position
        self._calls: dict[int, Calls] = {}  # by program
        self._quantised = any("Quantize" in n.op_type for n in self.proto.graph.node)
        self._session: InferenceSession | None = None

    def __getstate__(self) -> Record:
        """What copies take: they compile on their own."""
        return self.__dict__ | {"_programs": {}, "_empty": {}, "_calls": {}, "_session": None}

    def graph(
        self,
        *,
        shapes: Mapping[str, Sequence[int | str]] | None = None,
        extents: Mapping[str, int] | None = None,
        values: Mapping[str, Array] | None = None,
    ) -> Graph:
        """The program; see `load`."""
        given = dict(extents or {})
        try:
            tail = self.whole and self.opaque
            graph = self._graph(shapes=shapes, extents=given, values=values, tail=tail)
        except NeedsExtentError as error:
            graph = OpenModel(error)
        if isinstance(graph, OpenModel) or symbols_of([s for _, s in graph.input_types().values()]):
            graph.rebind = lambda more: self.graph(
                shapes=shapes, extents=given | more, values=values
            )
        return graph

    def _graph(self, **given: Value) -> Graph:
        """The program of an Importer that is `given` these besides the model."""
        importer = Importer(
            self.proto, name=self.name, opaque=self.opaque, whole=self.whole,
            folder=self.path.parent if self.path else None, **given,
        )  # fmt: skip
        graph = importer.run()
        if importer.opaque_nodes:
            graph.opaque = OpaqueNodes(importer.opaque_nodes)
        graph.notes = importer.notes
        return graph

    def program(self, arrays: Mapping[str, Array]) -> tuple[Graph, list[str]]:
        """The program for arrays by input name, and which of them it takes, in order.

        Of the model's results those that are not empty: `run` puts them all together.
        """
        for name in arrays:
            if name not in (*self.inputs, *self.defaults):
                raise BadInputError(f"{self.name}: the model has no input '{name}'")
        while True:
            key, values = self._key(arrays)
            if key in self._programs:
                return self._programs[key]
            shapes = {n: list(a.shape) for n, a in arrays.items() if n not in values}
            try:
                empty: dict[int, Array] = {}
                graph = self._graph(shapes=shapes, values=values, empty=empty, tail=self.opaque)
            except NeedsValueError as need:
                fresh = [n for n in need.inputs if n not in self._deciding]
                if not fresh:
                    raise
                self._deciding.update(fresh)
                continue
            declared = [v.name for v in self.proto.graph.input]
            taken = [n for n in declared if n in arrays and n not in values]
            if len(self._programs) >= _MOST_PROGRAMS:
                oldest, _ = self._programs.pop(next(iter(self._programs)))
                self._empty.pop(id(oldest))
                self._calls.pop(id(oldest), None)
            self._programs[key] = (graph, taken)
            self._empty[id(graph)] = empty
            return graph, taken

    def _key(self, arrays: Mapping[str, Array]) -> tuple[Hashable, dict[str, Array]]:
        """Of a program: the arrays' types, and those whose values decide about it."""
        values = {n: a for n, a in sorted(arrays.items()) if n in self._deciding or a.size == 0}
        types = tuple((n, a.dtype.str, a.shape) for n, a in sorted(arrays.items()))
        return (types, tuple(a.tobytes() for a in values.values())), values

    def _given(self, arrays: Sequence[Object], named: Mapping[str, Object]) -> dict[str, Array]:
        """A call's arrays by the model's inputs. Raises BadInputError where they do not fit."""
        if len(arrays) > len(self.inputs):
            raise BadInputError(f"{self.name} takes {len(self.inputs)} arrays, not {len(arrays)}")
        placed = dict(zip(self.inputs, arrays, strict=False))
        if twice := placed.keys() & named.keys():
            raise BadInputError(f"argument {min(twice)} is given twice")
        given = {n: np.asarray(a) for n, a in (placed | dict(named)).items()}
        if missing := [n for n in self.inputs if n not in given and n not in self.defaults]:
            raise BadInputError(f"missing argument {', '.join(missing)}")
        for name, dims in self._declared.items():
            shape = given[name].shape if name in given else dims
            if len(shape) != len(dims) or any(d not in (n, 0) for d, n in zip(dims, shape)):  # noqa: B905
                wanted = ",".join(str(d or "?") for d in dims)
                raise BadInputError(f"argument {name} must have the shape [{wanted}] that the "
                                    f"model declares, not {list(shape)}")  # fmt: skip
        return given

    def run(
        self, arrays: Mapping[str, Array], runs: Callable[[Graph, list[Array]], list[Array]]
    ) -> list[Array]:
        """The model's results at arrays by input name, its program run by `runs`."""
        arrays = {n: self._widened(n, a) for n, a in arrays.items()}
        return self._results(*self.program(arrays), arrays, runs)

    def _results(
        self, graph: Graph, taken: list[str], arrays: Mapping[str, Array],
        runs: Callable[[Graph, list[Array]], list[Array]],
    ) -> list[Array]:  # fmt: skip
        try:
            results = runs(graph, [arrays[n] for n in taken]) if graph.core.outputs else []
        except MemoryError as error:
            raise OutOfMemoryError(f"{self.name}: {error}") from None
        if graph.tail is not None:
            results = graph.tail.run(results)
        for position, value in self._empty[id(graph)].items():
            results.insert(position, value)
        return results

    def _widened(self, name: str, array: Array) -> Array:
        """An array of 16-bit integers as the program takes it."""
        want = self._narrow.get(name)
        if want is not None and array.dtype != want:
            raise BadInputError(f"argument {name} must be {want}, not {array.dtype}")
        return array if want is None else array.astype(np.int32)

    def __call__(self, *arrays: Object, **named: Object) -> list[Array]:
        """The model's results at arrays by position or name; initialisers that are inputs as well
        can be replaced, by name.

        The first call with other shapes compiles a program (or interprets it, where there is no
        compiler). Where onnxruntime is installed and its results agree, calls race: the slower side
        runs no more, nor does what would be one program too many. Raises BadInputError where
        arrays do not fit what the model declares.
        """
        given = self._given(arrays, named)
        wide = {n: self._widened(n, a) for n, a in given.items()}
        if len(self._programs) >= _MOST_PROGRAMS and self._key(wide)[0] not in self._programs:
            peer = self._peer()
            if peer is not None:
                with contextlib.suppress(Exception):  # what it refuses, ours says
                    return [np.asarray(a) for a in peer.run(None, given)]
        graph, taken = self.program(wide)
        calls = self._calls.get(id(graph))
        if calls is None:
            calls = self._calls[id(graph)] = Calls(self.name, self._quantised)
        return calls(given, lambda: self._results(graph, taken, wide, calls.run), self._peer)

    def _peer(self) -> InferenceSession | None:
        """The model in onnxruntime, where that is installed and takes it."""
        if self._session is None and self.opaque and importlib.util.find_spec("onnxruntime"):
            with contextlib.suppress(Exception):  # it is one more way to compute it, no more
                whole = str(self.path) if self.path else self.proto.SerializeToString()
                self._session = session_of(whole, _core.default_threads())
        return self._session
