"""Reads ONNX files without trusting them: what is malformed is a BadInputError naming the file.

External data is read only from files inside the model's own folder; nothing is executed.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tessera.errors import BadInputError, Error, Location, NotFoundError, UnsupportedError
from tessera.options import package
from tessera.types import Array, DType, dtype_name

if TYPE_CHECKING:
    import onnx

LARGEST_FILE = 1 << 31  # bytes: protobuf's own limit for one message
LARGEST_TENSOR = 1 << 36  # bytes of one initialiser
LARGEST_DENSE = 1 << 24  # elements of a sparse one
MOST_NODES = 1 << 20
OLDEST_OPSET = 6
_DOMAINS = ("", "ai.onnx")


@functools.cache
def onnx_package() -> ModuleType:
    """The package onnx, which is optional."""
    onnx: ModuleType = package(
        "onnx", "ONNX models need the package onnx; pip install 'tessera-opt[onnx]'"
    )
    return onnx


def read_model(path: Path) -> onnx.ModelProto:
    """The ModelProto of a file, checked as far as the importer relies on it."""
    where = Location(str(path))
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise BadInputError(
                f"{size} bytes are more than a protobuf message may have; keep large weights as "
                "external data",
                where,
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError("no such file", where) from None
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where) from None
    return parse_model(data, str(path))


def parse_model(data: bytes, name: str = "<model>") -> onnx.ModelProto:
    """The ModelProto of a file's bytes."""
    onnx = onnx_package()
    where = Location(name)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf raises its own kinds
        raise BadInputError(f"not an ONNX model: {error}", where) from None
    if not model.HasField("graph"):
        raise BadInputError("not an ONNX model: there is no graph in it", where)
    opset_of(model, where)
    try:
        if not all(isinstance(text, str) for text in _texts(model.graph)):
            raise BadInputError("a name in it is not valid UTF-8", where)
        _check_graph(model, where)
    except RecursionError:
        raise BadInputError("its subgraphs are nested too deeply", where) from None
    return model


def _texts(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    """Names of a graph and its subgraphs; protobuf gives bytes where they are not UTF-8."""
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
    sparse = [t for s in graph.sparse_initializer for t in (s.values, s.indices)]
    for tensor in (*graph.initializer, *sparse):
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _texts(inner)


def opset_of(model: onnx.ModelProto, where: Location) -> int:
    """The version of ONNX's own operators that a model is written in."""
    versions = [o.version for o in model.opset_import if o.domain in _DOMAINS]
    if not versions and model.opset_import:
        return int(onnx_package().defs.onnx_opset_version())  # operators of other domains only
    if not versions:
        raise BadInputError("the model does not say which opset it is written in", where)
    version = int(max(versions))
    newest = onnx_package().defs.onnx_opset_version()
    if not OLDEST_OPSET <= version <= newest:
        raise UnsupportedError(
            f"opset {version} is not supported, only {OLDEST_OPSET} to {newest} with this version "
            "of the package onnx; onnx.version_converter changes a model's opset",
            where,
        )
    return version


def _check_graph(model: onnx.ModelProto, where: Location) -> None:
    """Names: every operand is made before it is read, and nothing is made twice."""
    graph = model.graph
    if len(graph.node) > MOST_NODES:
        raise BadInputError(f"{len(graph.node)} nodes are more than {MOST_NODES}", where)
    known = {v.name for v in graph.input}
    for tensor in [*graph.initializer, *(s.values for s in graph.sparse_initializer)]:
        known.add(tensor.name)
    made = {name for node in graph.node for name in node.output if name}
    for node in graph.node:
        for name in reads(node):
            if name in known:
                continue
            why = ", which is neither an input, an initialiser nor another node's result"
            if name in made:
                why = " before it is made: the nodes are not in order, or form a cycle"
            raise BadInputError(f"{describe(node)} reads '{name}'{why}", where)
        for name in node.output:
            if name and name in known:
                raise BadInputError(f"{describe(node)} makes '{name}', which exists already", where)
            known.add(name)
    if not graph.output:
        raise BadInputError("the graph has no output", where)
    for value in graph.output:
        if value.name not in known:
            raise BadInputError(f"nothing makes the output '{value.name}'", where)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names a node takes from outside, those that its subgraphs do or return included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            inner = {"", *(v.name for v in graph.input)} | {t.name for t in graph.initializer}
            for n in graph.node:
                inner.update(n.output)
            for n in graph.node:
                yield from (name for name in reads(n) if name not in inner)
            yield from (o.name for o in graph.output if o.name not in inner)


def describe(node: onnx.NodeProto) -> str:
    """How messages name a node."""
    name = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} node '{name}'"


def dtype_of(elem_type: int, what: str, where: Location | None = None) -> DType:
    """The NumPy dtype of an ONNX element type, if Tessera has it."""
    onnx = onnx_package()
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(elem_type)
        dtype_name(dtype)
    except (KeyError, ValueError, Error):
        names = onnx.TensorProto.DataType
        name = names.Name(elem_type) if elem_type in names.values() else str(elem_type)
        raise UnsupportedError(
            f"{what} has elements of type {name.lower()}; Tessera has double, float, float16, "
            "bfloat16, int64, int32, int8, uint8 and bool",
            where,
        ) from None
    result: DType = np.dtype(dtype)
    return result


def array_of(tensor: onnx.TensorProto, folder: Path | None, where: Location | None = None) -> Array:
    """The values of a TensorProto; external data lies in `folder` (None: there is none)."""
    onnx = onnx_package()
    what = f"the tensor '{tensor.name}'"
    dtype = dtype_of(tensor.data_type, what, where)
    dims = [int(d) for d in tensor.dims]
    if any(d < 0 for d in dims):
        raise BadInputError(f"{what} has a negative extent in {dims}", where)
    size = math.prod(dims) * dtype.itemsize
    if size > LARGEST_TENSOR:
        raise BadInputError(f"{what} would have {size} bytes", where)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        data = _external(tensor, folder, size, what, where)
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(dims)
    stored = len(tensor.raw_data) or max(
        len(getattr(tensor, field)) * dtype.itemsize
        for field in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
    )
    if stored != size:
        raise BadInputError(
            f"{what} holds {stored} bytes where its shape {dims} needs {size}", where
        )
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor)).astype(dtype, copy=False)
    except Exception as error:
        raise BadInputError(f"{what} cannot be read: {error}", where) from None


def dense_of(sparse: onnx.SparseTensorProto, folder: Path | None, where: Location | None) -> Array:
    """The values of a SparseTensorProto as an array of up to LARGEST_DENSE elements."""
    what = f"the sparse tensor '{sparse.values.name}'"
    dims = [int(d) for d in sparse.dims]
    if any(d < 1 for d in dims) or np.prod(dims, dtype=float) > LARGEST_DENSE:
        raise BadInputError(f"{what} of shape {dims} is too large to be written out", where)
    values, at = (array_of(t, folder, where) for t in (sparse.values, sparse.indices))
    coordinates = at.reshape(-1, 1) if at.ndim == 1 else at
    limits = [int(np.prod(dims))] if at.ndim == 1 else dims
    if (
        at.dtype != np.int64
        or values.ndim != 1
        or coordinates.shape != (values.size, len(limits))
        or ((coordinates < 0) | (coordinates >= limits)).any()
    ):
        raise BadInputError(f"{what} has indices that do not fit its shape {dims}", where)
    dense = np.zeros(dims, values.dtype)
    places = at if at.ndim == 1 else np.ravel_multi_index(tuple(at.T), dims)
    dense.reshape(-1)[places] = values
    return dense


def widened() -> dict[int, DType]:
    """Element types that a program holds as i32, where it only converts them."""
    kinds = onnx_package().TensorProto
    return {kinds.UINT16: np.dtype(np.uint16), kinds.INT16: np.dtype(np.int16)}


def _external(
    tensor: onnx.TensorProto, folder: Path | None, size: int, what: str, where: Location | None
) -> bytes:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise BadInputError(f"{what} is external data, but the model is not a file", where)
    root = folder.resolve()
    path = Path(os.path.normpath(root / location))
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        resolved = None
    inside = not Path(location).is_absolute() and path.is_relative_to(root)
    if not location or not inside or (resolved and not resolved.is_relative_to(root)):
        raise BadInputError(
            f"{what} names '{location}' as its data, which is not inside the model's folder", where
        )
    if resolved is None or not resolved.is_file():
        raise BadInputError(f"{what} needs the file '{location}', which is not there", where)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError:
        raise BadInputError(f"{what}: its data has an offset that is no number", where) from None
    if offset < 0 or length != size or offset + length > resolved.stat().st_size:
        raise BadInputError(
            f"{what} needs {size} bytes at {offset} of '{location}', which says {length} and has "
            f"{resolved.stat().st_size}",
            where,
        )
    with resolved.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        raise BadInputError(f"'{location}' ended early", where)
    return data


def defaults_of(model: onnx.ModelProto) -> list[str]:
    """Initialisers that a caller may replace, being inputs too; before IR 4 all had to be."""
    known = {t.name for t in model.graph.initializer}
    return [v.name for v in model.graph.input if v.name in known and model.ir_version >= 4]


def shape_of(value: onnx.ValueInfoProto) -> Sequence[int | str] | None:
    """The declared shape of a ValueInfoProto: extents, names, "" where nothing is said; or None."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return [
        int(d.dim_value) if d.HasField("dim_value") else str(d.dim_param) for d in kind.shape.dim
    ]
