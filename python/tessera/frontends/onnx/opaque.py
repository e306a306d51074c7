"""What Tessera does not know of a model: kept as nodes, and run by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tessera.errors import BadInputError, ToolMissingError
from tessera.frontends.onnx.reader import onnx_package, shape_of
from tessera.options import package
from tessera.tensor import Tensor
from tessera.types import Array, Fields, Memory, array_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto
    from onnxruntime import InferenceSession

Typed = tuple[int, list[int]]  # an ONNX element type and extents


@dataclass(frozen=True, eq=False)
class Outside:
    """What no program holds: a string, a sequence, a result whose shape depends on values. Kept as
    the nodes that make it, by number, and what these read of the program."""

    name: str
    nodes: dict[int, NodeProto]
    reads: dict[str, Tensor | Array]
    why: str


def renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A node, and those of its subgraphs, with other names for its values."""
    result = onnx_package().NodeProto()
    result.CopyFrom(node)
    result.input[:] = [names.get(n, n) for n in node.input]
    result.output[:] = [names.get(n, n) for n in node.output]
    for attribute in result.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            inner = [renamed(n, names) for n in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
            for value in graph.output:
                value.name = names.get(value.name, value.name)
    return result


def region(
    results: Sequence[Outside], opsets: Sequence[OperatorSetIdProto]
) -> tuple[ModelProto, list[Tensor]]:
    """A model of the nodes that make values, and what it takes. Names are positions, so that equal
    regions are equal models."""
    onnx = onnx_package()
    nodes = dict(sorted((k, n) for r in results for k, n in r.nodes.items())).values()
    names: dict[str, str] = {"": ""}
    taken, declared, known = [], [], []
    for name, value in {k: v for r in results for k, v in r.reads.items()}.items():
        names[name] = short = f"x{len(names)}"
        if isinstance(value, np.ndarray):
            known.append(onnx.numpy_helper.from_array(value, short))
            continue
        code = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        declared.append(onnx.helper.make_tensor_value_info(short, code, list(value.shape)))
        taken.append(value)
    for name in [r.name for r in results] + [name for node in nodes for name in node.output]:
        names.setdefault(name, f"y{len(names)}")
    outputs = [onnx.ValueInfoProto(name=names[r.name]) for r in results]
    graph = onnx.helper.make_graph(
        [renamed(n, names) for n in nodes], "opaque", declared, outputs, known
    )
    model = onnx.helper.make_model(graph, opset_imports=opsets, producer_name="")
    model.ir_version = max(8, onnx.helper.find_min_ir_version_for(list(opsets), True))
    return model, taken


def static_types(model: ModelProto, stated: Sequence[ValueInfoProto | None]) -> list[Typed | None]:
    """What a model's results are, by ONNX's own inference or else as stated elsewhere; None where
    that is not known before it runs."""
    inferred = onnx_package().shape_inference.infer_shapes(model, data_prop=True)
    types: list[Typed | None] = []
    for values in zip(inferred.graph.output, stated, strict=True):
        known = [(v, shape) for v in values if v is not None and (shape := shape_of(v)) is not None]
        found = [
            (v.type.tensor_type.elem_type, [int(d) for d in shape])
            for v, shape in known
            if all(isinstance(d, int) and d >= 0 for d in shape)
        ]
        types.append(found[0] if found else None)
    return types


def types_by_runtime(model: ModelProto) -> list[Typed | None]:
    """The same by onnxruntime, which has operators of its own; nothing where it is not there or
    refuses the model, and will say so when it is to run."""
    try:
        session = OpaqueNodes({"": model})._session("", "")
    except Exception:
        return []
    codes = onnx_package().TensorProto.DataType
    types: list[Typed | None] = []
    for value in session.get_outputs():
        name = value.type.removeprefix("tensor(").removesuffix(")").upper()
        static = value.shape and all(isinstance(d, int) and d > 0 for d in value.shape)
        known = static and name in list(codes.keys())  # of an unknown rank it says [], too
        types.append((codes.Value(name), list(value.shape)) if known else None)
    return types


class OpaqueNodes:
    """The meaning of a program's opaque operators: single-node models, by payload.

    Those with a payload are known to compiled programs of this process from now on.
    """

    def __init__(self, models: Fields) -> None:
        self.models = dict(models)
        self._sessions: dict[tuple[str, int], InferenceSession] = {}
        _known.update((payload, self) for payload in self.models if payload)

    def __call__(self, function: str, payload: str, arrays: Sequence[Array]) -> list[Array]:
        """Results of one operator, as the interpreter has them: floats as f64, others as i64."""
        helper = onnx_package().helper
        declared = [v.type.tensor_type.elem_type for v in self.models[payload].graph.input]
        narrow = [
            np.asarray(array).astype(helper.tensor_dtype_to_np_dtype(code))
            for code, array in zip(declared, arrays, strict=True)
        ]
        return [
            a.astype(np.int64 if a.dtype.kind in "biu" else np.float64)
            for a in self.results(function, payload, narrow)
        ]

    def results(
        self, function: str, payload: str, arrays: Sequence[Array], threads: int = 0
    ) -> list[Array]:
        """The same of arrays as the node declares them; `threads` of onnxruntime, 0: its choice."""
        names = [v.name for v in self.models[payload].graph.input]
        try:
            session = self._session(function, payload, threads)
            made = session.run(None, dict(zip(names, arrays, strict=True)))
        except ToolMissingError:
            raise
        except Exception as error:
            raise BadInputError(f"{function}: onnxruntime refused: {error}") from None
        return [np.asarray(a) for a in made]

    def _session(self, function: str, payload: str, threads: int = 0) -> InferenceSession:
        key = (payload, threads)
        if key not in self._sessions:
            need = f"{function} is run by onnxruntime, which is not installed; "
            onnxruntime = package("onnxruntime", need + "pip install onnxruntime")
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            # Nothing is computed, nor taken into memory, before the program is run.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            if threads > 0:  # which nobody keeps from other work when the node is done
                options.intra_op_num_threads = threads
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self._sessions[key] = onnxruntime.InferenceSession(
                self.models[payload].SerializeToString(), options,
                providers=["CPUExecutionProvider"],
            )  # fmt: skip
        return self._sessions[key]


_known: dict[str, OpaqueNodes] = {}  # of the process, by payload


def node_call(
    function: str, payload: str
) -> Callable[[Sequence[Memory], Sequence[Memory], int], None]:
    """What computes an opaque operator of a compiled program (host_calls.py).

    Raises BadInputError where no model with this node was read by this process.
    """
    nodes = _known.get(payload)
    if nodes is None:
        raise BadInputError("the model that it is a node of has not been read by this process")

    def call(operands: Sequence[Memory], results: Sequence[Memory], threads: int) -> None:
        made = nodes.results(function, payload, [array_of(m) for m in operands], threads)
        for array, to in zip(made, map(array_of, results), strict=True):
            if (array.dtype, array.shape) != (to.dtype, to.shape):
                raise BadInputError(
                    f"{function}: a result is {array.dtype}{list(array.shape)}, not "
                    f"{to.dtype}{list(to.shape)} as the model says"
                )
            np.copyto(to, array)

    return call


@dataclass(frozen=True)
class Tail:
    """What a model computes behind its program: a model that takes results of the program (by
    position; the last `hidden` are for it alone) and makes results of the whole (by position, with
    their names)."""

    model: ModelProto
    takes: Sequence[int]
    makes: Mapping[int, str]
    hidden: int

    def run(self, results: Sequence[Array]) -> list[Array]:
        """All results of the whole, from those of the program."""
        feeds = {
            v.name: results[i] for v, i in zip(self.model.graph.input, self.takes, strict=True)
        }
        made = OpaqueNodes({"": self.model})._session("the end of the model", "").run(None, feeds)
        whole = list(results[: len(results) - self.hidden])
        for position, value in zip(self.makes, made, strict=True):
            whole.insert(position, value)
        return whole
