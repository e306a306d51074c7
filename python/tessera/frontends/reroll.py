"""Loops over rows, which tracing unrolls, as one program over all rows.

`np.stack([x * r + (1 - r) * y for r in A])` is traced as one copy of the body per row. Where all
copies do the same to row k of some tensors, the body is applied once, with the rows as a new first
axis. Only a proposal: whoever uses the result has it proved equal like any other rewrite.
"""

from __future__ import annotations

from typing import Any

from tessera import _core
from tessera.graph import Graph

Record = dict[str, Any]
_REDUCTIONS = {"sum", "mean", "reduce_max", "reduce_min"}
_FEWEST = 3  # copies that are worth it
_POINTWISE = {
    word
    for line in (
        "neg abs sign sqr sqrt rsqrt exp log sin cos erf tanh sigmoid silu relu gelu gelu_tanh pow",
        "floor round log1p expm1 not cast add sub mul div power mod atan2 max min and or where",
        "eq ne lt le gt ge",
    )
    for word in line.split()
}


class _NotALoopError(Exception):
    """The copies differ in more than the row."""


class _Roller:
    def __init__(self, graph: Graph) -> None:
        self._source = graph.core
        self._made: dict[int, Record] = {r: op for op in graph.ops for r in op["results"]}
        self._core = _core.Graph(graph.core.name)
        self._place: dict[int, int] = {}
        self._rolled: dict[tuple[int, ...], int] = {}
        self.loops = 0

    def graph(self) -> Graph:
        for i in self._source.inputs:
            dtype, shape = self._source.type(i)
            weight = self._source.is_weight(self._source.inputs.index(i))
            self._place[i] = self._core.add_input(dtype, shape, self._source.tensor_name(i), weight)
        outputs = [self._copy(t) for t in self._source.outputs]  # may exchange the core
        self._core.set_outputs(outputs)
        return Graph.from_core(self._core)

    def _shape(self, tensor: int) -> list[Any]:
        return list(self._core.type(tensor)[1])

    def _add(self, op: str, inputs: list[int], attrs: Record) -> int:
        return int(self._core.add(op, inputs, attrs))

    # --- what stays as it is
    def _copy(self, tensor: int) -> int:
        todo = [tensor]
        while todo:  # not recursive: unrolled loops are deep
            current = todo[-1]
            if current in self._place:
                todo.pop()
                continue
            record = self._made[current]
            rolled = self._loop(current, record)
            if rolled is not None:
                self._place[current] = rolled
                continue
            missing = [i for i in record["inputs"] if i not in self._place]
            if missing:
                todo += missing
                continue
            inputs = [self._place[i] for i in record["inputs"]]
            self._place[current] = self._add(record["op"], inputs, record["attrs"])
        return self._place[tensor]

    # --- loops
    def _loop(self, tensor: int, record: Record) -> int | None:
        """A stack of copies of one body, or a concatenation of them along a new axis."""
        parts = list(record["inputs"])
        if record["op"] == "concat" and record["attrs"]["axis"] == 0:
            inner = [self._made[p] for p in parts]
            if any(r["op"] != "unsqueeze" or list(r["attrs"]["axes"]) != [0] for r in inner):
                return None
            parts = [r["inputs"][0] for r in inner]
        elif record["op"] != "stack" or record["attrs"]["axis"] != 0:
            return None
        if len(parts) < _FEWEST:
            return None
        mark = self._core.copy(), dict(self._place), dict(self._rolled)
        try:
            result = self._roll(tuple(parts))
        except (_NotALoopError, RecursionError, ValueError):
            self._core, self._place, self._rolled = mark
            return None
        self.loops += 1
        return result

    def _roll(self, copies: tuple[int, ...]) -> int:
        """The tensor whose row k is copy k."""
        if copies not in self._rolled:
            self._rolled[copies] = self._roll_new(copies)
        return self._rolled[copies]

    def _roll_new(self, copies: tuple[int, ...]) -> int:
        records = [self._made[c] for c in copies]
        first = records[0]
        op, attrs = first["op"], first["attrs"]
        if any(r["op"] != op or len(r["inputs"]) != len(first["inputs"]) for r in records):
            raise _NotALoopError
        if op == "squeeze" and (rows := self._rows(records)) is not None:
            return rows
        if any(r["attrs"] != attrs for r in records):
            raise _NotALoopError
        columns = list(zip(*(r["inputs"] for r in records), strict=True))
        inputs = []
        batched = []
        for column in columns:
            same = len(set(column)) == 1
            if same and column[0] not in self._place:
                self._place_invariant(column[0])
            inputs.append(self._place[column[0]] if same else self._roll(tuple(column)))
            batched.append(not same)
        if not any(batched):
            raise _NotALoopError
        rank = len(self._source.type(copies[0])[1])
        if op in _POINTWISE:
            wide = [
                self._aligned(t, rank) if b else t for t, b in zip(inputs, batched, strict=True)
            ]
            return self._add(op, wide, attrs)
        if op in _REDUCTIONS or op in ("unsqueeze", "squeeze"):
            return self._add(op, inputs, {**attrs, "axes": [a + 1 for a in attrs["axes"]]})
        if op == "matmul":
            ranks = [len(self._source.type(c[0])[1]) for c in columns]
            if ranks != [2, 2]:
                raise _NotALoopError
            return self._add(op, inputs, attrs)
        if op == "transpose":
            return self._add(op, inputs, {"perm": [0, *(p + 1 for p in attrs["perm"])]})
        if op == "reshape":
            return self._add(op, inputs, {"shape": [len(copies), *attrs["shape"]]})
        raise _NotALoopError

    def _place_invariant(self, tensor: int) -> None:
        """What all copies share, computed once."""
        record = self._made[tensor]
        for i in record["inputs"]:
            if i not in self._place:
                self._place_invariant(i)
        inputs = [self._place[i] for i in record["inputs"]]
        self._place[tensor] = self._add(record["op"], inputs, record["attrs"])

    def _aligned(self, tensor: int, rank: int) -> int:
        """Axes of extent 1 behind the rows, where the body broadcast a smaller operand."""
        shape = self._shape(tensor)
        missing = rank + 1 - len(shape)
        if missing <= 0:
            return tensor
        return self._add("unsqueeze", [tensor], {"axes": list(range(1, missing + 1))})

    def _rows(self, records: list[Record]) -> int | None:
        """Rows off, off + step, … of one tensor, as a slice of it."""
        axes = [list(r["attrs"]["axes"]) for r in records]
        slices = [self._made[r["inputs"][0]] for r in records]
        if any(a != [0] for a in axes) or any(s["op"] != "slice" for s in slices):
            return None
        (source, *others) = {s["inputs"][0] for s in slices}
        starts = [int(s["attrs"]["starts"][0]) for s in slices]
        step = starts[1] - starts[0]
        if others or step < 1 or starts != [starts[0] + k * step for k in range(len(starts))]:
            return None
        shape: list[Any] = list(self._source.type(source)[1])
        for s in slices:
            rest = s["attrs"]["starts"][1:], s["attrs"]["stops"][1:], s["attrs"]["steps"][1:]
            whole = [0] * (len(shape) - 1), shape[1:], [1] * (len(shape) - 1)
            if any(list(a) != list(b) for a, b in zip(rest, whole, strict=True)):
                return None
        if source not in self._place:
            self._place_invariant(source)
        if starts == list(range(shape[0])):
            return self._place[source]
        attrs = {
            "starts": [starts[0]] + [0] * (len(shape) - 1),
            "stops": [starts[-1] + 1, *shape[1:]],
            "steps": [step] + [1] * (len(shape) - 1),
        }
        return self._add("slice", [self._place[source]], attrs)


def reroll(graph: Graph) -> Graph:
    """The program with loops over rows as one computation on all rows; itself if it has none.

    >>> import numpy as np
    >>> from tessera import trace
    >>> g = trace(lambda A, x: np.stack([r * 2 + x for r in A]), "f32[50,4]", "f32[4]")
    >>> len(g.ops), len(reroll(g).ops)
    (204, 5)
    """
    roller = _Roller(graph)
    rolled = roller.graph()
    return rolled if roller.loops else graph
