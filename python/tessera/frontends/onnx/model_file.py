"""A model that was written: in one file, or in two where protobuf has no room for its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tessera.errors import BadInputError
from tessera.files import write_files
from tessera.frontends.onnx.reader import onnx_package
from tessera.types import Array, Values

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

MOST_INSIDE = 2_000_000_000  # bytes of arrays; a protobuf message has less than 2 GiB
LEAST_OUTSIDE = 1024  # bytes of an array
_ALIGNED = 4096  # bytes, at which arrays begin, so that they can be mapped


def session_of(model: str | bytes, threads: int = 0) -> InferenceSession:
    """A model, or its file, in onnxruntime, on so many threads (0: its choice)."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # classes of its own, which nothing else shares
        raise BadInputError(f"onnxruntime refuses the model: {str(error)[:300]}") from None


def differs(ours: Values, theirs: Values, terms: int, share: float = 0.0) -> str:
    """How results differ by more than rounding of so many terms, or than by a
    share of the largest value; empty where they do not."""
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        where = f"output {n + 1}" if len(theirs) > 1 else "the output"
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{where} is {a.dtype} {a.shape} instead of {b.dtype} {b.shape}"
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"{where} differs"
            continue
        known = np.isfinite(b)
        if not np.array_equal(a[~known], b[~known], equal_nan=True):
            return f"{where} has other infinities or NaN"
        off = np.abs(np.subtract(a[known], b[known], dtype=np.float64)).max(initial=0.0)
        size = np.abs(b[known].astype(np.float64)).max(initial=0.0)
        rounding = 64 * float(np.finfo(b.dtype).eps) * max(1, terms) ** 0.5
        if not off <= max(share, rounding) * max(size, 1e-30):
            return f"{where} is off by {off:.3g}, its largest value is {size:.3g}"
    return ""


@dataclass(frozen=True)
class Written:
    """`proto`: the model, without the data of the initialisers that `arrays` has by name.
    `as_read`: its file, where the model is one as it was."""

    proto: ModelProto
    arrays: Mapping[str, Array]
    as_read: bytes | None = None

    def __eq__(self, other: object) -> bool:
        """Whether the models are the same, to the last bit."""
        return (
            isinstance(other, Written)
            and self.proto == other.proto
            and self.arrays.keys() == other.arrays.keys()
            and all(a is (b := other.arrays[n]) or np.array_equal(a, b)
                    for n, a in self.arrays.items())
        )  # fmt: skip

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_large(self) -> bool:
        """Whether its arrays need a file of their own."""
        return sum(a.nbytes for a in self.arrays.values()) > MOST_INSIDE

    def whole(self) -> ModelProto:
        """The ModelProto with all its data."""
        model = onnx_package().ModelProto()
        model.CopyFrom(self.proto)
        for tensor in model.graph.initializer:
            if tensor.name in self.arrays:
                tensor.raw_data = self.arrays[tensor.name].tobytes()
        return model

    def bytes(self) -> bytes:
        """The model as one file."""
        return self.whole().SerializeToString() if self.as_read is None else self.as_read

    def save(self, path: Path, external: bool = False) -> None:
        """Writes the model, all or nothing; its arrays to PATH.data where they are large, or
        `external` asks for it."""
        if not self.arrays or not (external or self.is_large):
            write_files({path: [self.bytes()]})
            return
        beside = path.with_name(f"{path.name}.data")
        model = onnx_package().ModelProto()
        model.CopyFrom(self.proto)
        at = 0
        for tensor in model.graph.initializer:
            if tensor.name not in self.arrays:
                continue
            size = self.arrays[tensor.name].nbytes
            tensor.data_location = tensor.EXTERNAL
            for key, value in (("location", beside.name), ("offset", at), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            at += size + -size % _ALIGNED
        write_files({beside: self._data(), path: [model.SerializeToString()]})

    def _data(self) -> Iterator[memoryview]:
        """The file of arrays, in the order of the initialisers."""
        for tensor in self.proto.graph.initializer:
            if (array := self.arrays.get(tensor.name)) is not None:
                yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                yield memoryview(bytes(-array.nbytes % _ALIGNED))
