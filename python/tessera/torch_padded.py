"""Programs for sizes that are at least those of a call."""

from __future__ import annotations

import torch

from tessera.frontends.torch.padding import Padding
from tessera.torch_programs import Program, Raced, Results
from tessera.types import Values

Extents = list[tuple[Padding, int]]  # what is rounded up, and to what


class Padded(Raced):
    """A program for sizes that are at least those of a call."""

    def __init__(self, program: Program, extents: Extents) -> None:
        self.program = program
        self.extents = extents

    def __call__(self, args: Values) -> Results:
        return Fitted(self, args)(args)

    def fits(self, args: Values) -> bool:
        """Whether nothing is added."""
        return all(padding.size(args) == to for padding, to in self.extents)


class Fitted:
    """A padded program for calls with one set of extents: what is added and cut off is known."""

    def __init__(self, padded: Padded, args: Values) -> None:
        self._program = padded.program
        self._valid: list[torch.Tensor] = []  # which places exist, of each symbol
        added: dict[int, list[int]] = {}  # by argument: as constant_pad_nd takes it
        cuts: dict[int, list[tuple[int, int, int, int]]] = {}  # by result: axis, to, within, size
        sizes = {p.symbol: to for p, to in padded.extents}  # of the results so far
        for padding, to in padded.extents:
            size = sizes[padding.symbol] = padding.size(args)
            self._valid.append(torch.arange(to, device="cpu") < size)
            if size == to:
                continue
            for i, axes in padding.inputs.items():
                pads = added.setdefault(i, [0] * (2 * args[i].ndim))
                for a in axes:
                    pads[-2 * a - 1] = to - size
            for i, places in padding.results.items():
                for axis, within in places:
                    if not isinstance(within, int):  # another symbol is part of the axis
                        known = {s: sizes.get(s) or padding.size(args, s) for s in padding.places}
                        within = int(within.subs(known))
                    cuts.setdefault(i, []).append((axis, to, within, size))
        self._added, self._cuts = list(added.items()), list(cuts.items())

    def __call__(self, args: Values) -> Results:
        given = [*args, *self._valid]
        for i, pads in self._added:
            given[i] = torch.constant_pad_nd(given[i], pads)
        made = self._program(given)
        if not self._cuts:
            return made
        results = [made] if self._program.single else list(made)
        for i, cuts in self._cuts:
            result = results[i]
            for axis, to, within, size in cuts:
                if result.shape[axis] == to * within:
                    result = result.narrow(axis, 0, size * within)
                else:
                    parts = result.unflatten(axis, (-1, to, within))
                    result = parts.narrow(axis + 1, 0, size).flatten(axis, axis + 2)
            # Of its own, as PyTorch's is: in the same order, and no view of what is longer.
            order = self._program.results[i][2]
            own = torch.empty_permuted(result.shape, order, dtype=result.dtype, device="cpu")
            results[i] = own.copy_(result)
        return results[0] if self._program.single else tuple(results)
