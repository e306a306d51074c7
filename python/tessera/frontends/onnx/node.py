"""Nodes as what imports them sees them: `handles` registers a handler, which is given a `Node`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tessera.errors import BadInputError, Location, UnsupportedError
from tessera.extents import NeedsExtentError, Number
from tessera.frontends.handlers import Handlers
from tessera.frontends.onnx.opaque import Outside
from tessera.frontends.onnx.reader import describe, onnx_package
from tessera.tensor import Tensor
from tessera.types import Array, DType

if TYPE_CHECKING:
    from onnx import NodeProto

    from tessera.frontends.onnx.importer import Importer

Value = Tensor | Array
Made = Value | Outside | None
OfFirst = Callable[["Node", Tensor], "Value | Sequence[Value] | None"]
AttributeValue = Any  # a number, a text, a list of these, a TensorProto or a GraphProto

handles = Handlers()  # results of None mean "not in this form"
# Those whose program is so much longer that runtimes had rather see the node.
WRITTEN_OUT = handles.marked["written_out"]
# Those of which 16 bits hold the result, but not what is between: runtimes compute them in f32.
IN_F32 = handles.marked["in_f32"]
LARGEST_KNOWN = 1 << 24  # elements of an array computed while importing

# ONNX's names of the operators that programs have as they are.
SAME = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "sqrt": "Sqrt", "exp": "Exp", "log": "Log",
    "sin": "Sin", "cos": "Cos", "erf": "Erf", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "relu": "Relu", "floor": "Floor", "round": "Round", "not": "Not", "add": "Add", "sub": "Sub",
    "mul": "Mul", "and": "And", "or": "Or", "eq": "Equal", "lt": "Less", "le": "LessOrEqual",
    "gt": "Greater", "ge": "GreaterOrEqual", "where": "Where",
}  # fmt: skip


def handles_first(*op_types: str, **marks: bool) -> Callable[[OfFirst], OfFirst]:
    """The same for what is given the node's first operand, too, as a tensor of the program."""

    def register(handler: OfFirst) -> OfFirst:
        handles(*op_types, **marks)(lambda node: handler(node, node.x()))
        return handler

    return register


class NeedsValueError(UnsupportedError):
    """The shapes of a program depend on the values of some of its inputs."""

    def __init__(self, what: str, inputs: Sequence[str], where: Location) -> None:
        names = ", ".join(f"'{n}'" for n in inputs)
        super().__init__(
            f"{what} decides about shapes and comes from the input {names}: give its value, "
            "load(path, values={...}), or call the model (tessera.frontends.onnx.Model)",
            where,
        )
        self.inputs = tuple(inputs)


class Node:
    """One node with its operands, as handlers see it."""

    def __init__(self, importer: Importer, proto: NodeProto, operands: Sequence[Made]) -> None:
        self.importer = importer
        self.proto = proto
        self.operands = operands
        self.opset = importer.opset
        self.graph = importer.graph
        self._attributes = {a.name: a for a in proto.attribute}
        self.num_outputs = len(proto.output)

    def has(self, i: int) -> bool:
        return i < len(self.operands) and self.operands[i] is not None

    def wants(self, i: int) -> bool:
        """Whether the node's result number i is used."""
        return i < self.num_outputs and self.proto.output[i] in self.importer.used

    def value(self, i: int) -> Value:
        if not self.has(i):
            raise BadInputError(f"{describe(self.proto)} lacks its operand {i}")
        return self.operands[i]  # type: ignore[return-value]

    def x(self, i: int = 0) -> Tensor:
        """An operand as a tensor of the program."""
        return self.importer.tensor(self.value(i), self.name_of(i))

    def name_of(self, i: int) -> str:
        return str(self.proto.input[i]) if i < len(self.proto.input) else ""

    def all(self) -> list[Tensor]:
        return [self.x(i) for i in range(len(self.operands)) if self.has(i)]

    def shape(self, i: int = 0) -> tuple[Number, ...]:
        return tuple(self.value(i).shape)

    def dtype(self, i: int = 0) -> DType:
        return self.value(i).dtype

    def known(self, i: int, what: str) -> Array:
        """An operand that must be known while importing."""
        value = self.value(i)
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, Tensor) and (c := self.importer.splats.get(value.id)) is not None:
            return c
        if isinstance(value, Tensor) and (symbols := self.importer.counts.get(value.id)):
            raise NeedsExtentError(f"{what} follows from open extents", symbols)
        inputs = self.importer.origins.get(self.name_of(i), frozenset())
        text = f"{what} of {describe(self.proto)}"
        if inputs:
            raise NeedsValueError(text, sorted(inputs), self.importer.where)
        raise UnsupportedError(f"{text} is not known before the model runs", self.importer.where)

    def ints(self, i: int, what: str) -> list[int]:
        return [int(v) for v in self.numbers(i, what)]

    def numbers(self, i: int, what: str) -> list[Number]:
        """The same, of integers and Extents."""
        array = self.known(i, what)
        if array.dtype.kind not in "iuO" or array.ndim > 1 or array.size > 1 << 16:
            raise BadInputError(f"{what} of {describe(self.proto)} must be a list of integers")
        return list(array.reshape(-1).tolist())

    def has_attr(self, name: str) -> bool:
        return name in self._attributes

    def attr(self, name: str, default: AttributeValue = None) -> AttributeValue:
        """An attribute's value; strings decoded."""
        if name not in self._attributes:
            return default
        try:
            value = onnx_package().helper.get_attribute_value(self._attributes[name])
        except ValueError as error:
            raise BadInputError(f"{describe(self.proto)}: {error}") from None
        kind = type(default)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, (list, tuple)) or hasattr(value, "add"):
            value = list(value)
        fits = (
            default is None
            or (kind is float and isinstance(value, (int, float)))
            or isinstance(value, kind)
        )
        return value if fits else self._refuse(name, kind, value)

    def _refuse(self, name: str, kind: type, value: AttributeValue) -> NoReturn:
        raise BadInputError(
            f"{describe(self.proto)}: attribute {name} must be a {kind.__name__}, "
            f"not {type(value).__name__}"
        )

    def require_attr(self, name: str, kind: type = int) -> AttributeValue:
        """An attribute that has no default; `object` is any kind."""
        if name not in self._attributes:
            raise BadInputError(f"{describe(self.proto)} lacks the attribute {name}")
        value = self.attr(name)
        return value if isinstance(value, kind) else self._refuse(name, kind, value)

    def fits(self, count: float) -> None:
        """Refuses an array of so many elements, which would be made while importing."""
        if count > LARGEST_KNOWN:
            raise self.bad("a constant of it is too large to be computed while importing")

    def axis(self, axis: int, rank: int) -> int:
        """An axis as 0, 1, …; raises BadInputError for one that there is not."""
        if not -max(rank, 1) <= axis < max(rank, 1):
            raise self.bad(f"axis {axis} is out of range for {rank} axes")
        return int(axis) % max(rank, 1)

    def bad(self, message: str) -> BadInputError:
        return BadInputError(f"{describe(self.proto)}: {message}", self.importer.where)
