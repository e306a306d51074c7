"""Operators of ONNX that a program writes out: Softmax, LogSoftmax, LayerNormalization and Atan.

Runtimes have fast kernels for them and do not find them again in their parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.emit.node import number
from tessera.graph import Graph
from tessera.types import Dim, Record


@dataclass(frozen=True)
class Composite:
    """A node that computes a tensor from others; `ones`: it also takes a scale of ones, of that
    shape, as its second operand."""

    op: str
    inputs: tuple[int, ...]
    attrs: Record
    ones: tuple[int, ...] | None = None


def composites(graph: Graph) -> dict[int, Composite]:
    """By the tensor that the whole operator computes."""
    found = _Finder(graph)
    finders = (found.softmax, found.log_softmax, found.layer_norm, found.arctan)
    wholes = ((r["results"][0], find(r)) for r in found.records for find in finders)
    return {t: whole for t, whole in wholes if whole is not None}


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.core = graph.core
        self.records = [r for r in graph.ops if r["op"] != "input"]
        self._makers = {t: r for r in self.records for t in r["results"]}

    def shape(self, t: int) -> list[Dim]:
        return list(self.core.type(t)[1])

    def made(self, t: int, *ops: str) -> Record | None:
        """The record that makes a tensor, if it is one of these operators."""
        record = self._makers.get(t)
        return record if record is not None and record["op"] in ops else None

    def reduced(self, t: int, op: str, of: int) -> list[int] | None:
        """The axes over which a tensor is `op` of another, kept as axes of one."""
        record = self.made(t, op)
        if record is None or record["inputs"][0] != of or not record["attrs"]["keepdims"]:
            return None
        return list(record["attrs"]["axes"])

    def shifted(self, t: int) -> tuple[int, list[int] | None]:
        """x and the axes for x - max(x); the tensor itself and None for any other."""
        record = self.made(t, "sub")
        if record is not None:
            axes = self.reduced(record["inputs"][1], "reduce_max", record["inputs"][0])
            if axes is not None:
                return record["inputs"][0], axes
        return t, None

    def softmax(self, record: Record) -> Composite | None:
        """exp(x - max x) / sum exp(x - max x), the maximum subtracted or not."""
        if record["op"] != "div":
            return None
        e = self.made(record["inputs"][0], "exp")
        if e is None:
            return None
        axes = self.reduced(record["inputs"][1], "sum", record["inputs"][0])
        return self._along(e["inputs"][0], axes, "Softmax")

    def log_softmax(self, record: Record) -> Composite | None:
        """x - max x - log(sum exp(x - max x)), likewise."""
        log = self.made(record["inputs"][1], "log") if record["op"] == "sub" else None
        total = self.made(log["inputs"][0], "sum") if log is not None else None
        e = self.made(total["inputs"][0], "exp") if total is not None else None
        if total is None or e is None or e["inputs"][0] != record["inputs"][0]:
            return None
        axes = self.reduced(total["results"][0], "sum", e["results"][0])
        return self._along(e["inputs"][0], axes, "LogSoftmax")

    def _along(self, t: int, axes: list[int] | None, op: str) -> Composite | None:
        x, shifted = self.shifted(t)
        if axes is None or len(axes) != 1:
            return None
        return Composite(op, (x if shifted == axes else t,), {"axis": axes[0]})

    def arctan(self, record: Record) -> Composite | None:
        """arctan2(x, 1)."""
        one = self.made(record["inputs"][1], "const") if record["op"] == "atan2" else None
        if one is None or number(one["attrs"]["value"]) != 1 or self.shape(one["results"][0]):
            return None
        return Composite("Atan", tuple(record["inputs"][:1]), {})

    def layer_norm(self, record: Record) -> Composite | None:
        """(x - mean x) / sqrt(var x + eps), times a scale, plus a bias, as far as it goes."""
        plain = self._normalised(record)
        if plain is not None:
            return plain
        if record["op"] not in ("mul", "add"):
            return None
        for product, other in (record["inputs"], record["inputs"][::-1]):
            inner = self._makers.get(product)
            if inner is None:
                continue
            scales = record["op"] == "mul"
            whole = self._normalised(inner) if scales else self.layer_norm(inner)
            if whole is None or len(whole.inputs) != (1 if scales else 2):
                continue
            like = list(whole.ones or ()) if scales else self.shape(whole.inputs[1])
            if self.shape(other) == like:
                return Composite(whole.op, (*whole.inputs, other), whole.attrs)
        return None

    def _normalised(self, record: Record) -> Composite | None:
        if (root := {"mul": "rsqrt", "div": "sqrt"}.get(record["op"])) is None:
            return None
        orders = [record["inputs"], record["inputs"][::-1]]
        for difference, scale in orders if root == "rsqrt" else orders[:1]:
            variance = self.made(scale, root)
            centred = self.made(difference, "sub")
            if variance is None or centred is None:
                continue
            x = centred["inputs"][0]
            axes = self.reduced(centred["inputs"][1], "mean", x)
            rank = len(self.shape(x))
            if not axes or sorted(axes) != list(range(rank - len(axes), rank)):
                continue
            eps = self._variance_of(variance["inputs"][0], difference, axes)
            trailing = tuple(d for d in self.shape(x)[min(axes) :] if isinstance(d, int))
            if eps is not None and len(trailing) == len(axes):
                attrs = {"axis": min(axes) - rank, "epsilon": eps}
                return Composite("LayerNormalization", (x,), attrs, trailing)
        return None

    def _variance_of(self, t: int, difference: int, axes: list[int]) -> float | None:
        """eps, where the tensor is mean(difference²) + eps."""
        total = self.made(t, "add")
        if total is None:
            return None
        for mean, eps in (total["inputs"], total["inputs"][::-1]):
            constant = self.made(eps, "const")
            square = self.made(mean, "mean")
            inner = self.made(square["inputs"][0], "sqr", "mul") if square is not None else None
            if constant is None or inner is None or set(inner["inputs"]) != {difference}:
                continue
            if self.reduced(mean, "mean", inner["results"][0]) == axes:
                return float(number(constant["attrs"]["value"]))
        return None
