"""Calls of a model with arrays of some types: compiled, or by onnxruntime where that is faster."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tessera import _core
from tessera.call_race import CallRace
from tessera.errors import Error
from tessera.frontends.onnx.model_file import differs
from tessera.graph import Graph
from tessera.runner import Runner
from tessera.tensor import Tensor, cast
from tessera.types import Array

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

log = logging.getLogger("tessera.onnx")
_STEPS = 0.02  # of the largest value: some steps of 8 bits, which round to the other side


class Calls:
    """The first call compiles, and compares results with onnxruntime's; where these are alike,
    further ones are a race, whose slower side runs no more."""

    def __init__(self, name: str, quantised: bool) -> None:
        self._name, self._quantised = name, quantised
        self._runner: Runner | None = None
        self._given: list[Array | None] = []  # weights in their places among the inputs
        self._checks = False  # its last result tells whether all that is looked up is there
        self._interpreted = False
        self._session: InferenceSession | None = None
        self.race: CallRace | None = None

    def run(self, graph: Graph, arrays: list[Array]) -> list[Array]:
        """The program's results, by code where that can be made."""
        if self._runner is None and not self._interpreted:
            try:
                module = _core.compile(_checked(graph).core)
                self._checks = len(module.output_types) > len(graph.outputs)
                names = list(graph.input_types())
                self._given = [graph.weights.get(n) for n in names]
                self._runner = Runner(module, names, frozen=True)
            except Error as error:
                log.warning("tessera: %s is interpreted: %s", self._name, error.message)
                self._interpreted = True
        if self._runner is None:
            return graph.run(*arrays)
        free = iter(arrays)
        made = self._runner([next(free) if a is None else a for a in self._given])
        if self._checks and not made.pop():
            return graph.run(*arrays)  # and raises what it says of it
        return made

    def __call__(
        self, given: Mapping[str, Array], ours: Callable[[], list[Array]],
        peer: Callable[[], InferenceSession | None],
    ) -> list[Array]:  # fmt: skip
        """The model's results; `ours` computes them by `run`."""
        if self.race is None:
            made = ours()
            self.race = CallRace(other="onnxruntime")
            self._session = peer()
            try:
                terms, share = max(a.size for a in given.values()), _STEPS * self._quantised
                why = differs(made, self._theirs(given), terms, share)
            except Exception as error:  # what it refuses is no race
                why = f"{type(error).__name__}: {error}"
            self.race.won = True if why else None
            return made
        if self.race.won:
            return ours()
        try:
            if self.race.won is False:
                return self._theirs(given)
            raced: list[Array] = self.race.run(
                lambda _: ours(), lambda: self._theirs(given), (), True
            )
        except Exception:  # of onnxruntime's own kinds
            return ours()
        if self.race.won is not None:
            log.info("tessera: %s takes %s", self._name, self.race.figures)
            if self.race.won:
                self._session = None
            else:
                self._runner = None
        return raced

    def _theirs(self, given: Mapping[str, Array]) -> list[Array]:
        if self._session is None:
            raise Error("there is no onnxruntime")
        return [np.asarray(a) for a in self._session.run(None, dict(given))]


def _checked(graph: Graph) -> Graph:
    """The program with one more result, an i32: not 0 where all positions that it looks up exist.

    Code clamps others, and the interpreter refuses them.
    """
    checked = Graph.parse(str(graph))
    flags = []
    for op in checked.ops:
        if op["op"] != "gather":
            continue
        table, index = (Tensor(checked, i) for i in op["inputs"])
        extent, known = table.shape[op["attrs"]["axis"]], graph.weights.get(index.name)
        if known is not None and -extent <= known.min() <= known.max() < extent:
            continue
        least, most = (checked.const(n, index.dtype) for n in (-extent, extent))
        inside = checked.emit("and", [checked.emit("ge", [index, least]),
                                      checked.emit("lt", [index, most])])  # fmt: skip
        flags.append(cast(inside, np.int32))
    if flags:
        lowest = [checked.emit("reduce_min", [f], {"axes": list(range(f.ndim))}) if f.ndim else f
                  for f in flags]  # fmt: skip
        checked.output(functools.reduce(lambda a, b: checked.emit("min", [a, b]), lowest))
    return checked
