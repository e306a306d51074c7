"""Compiled programs on PyTorch's tensors, and the weights that they have packed.

Memory is exchanged by address: nothing here is linked against libtorch.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from tessera import _core
from tessera.call_race import CallRace
from tessera.errors import UnsupportedError
from tessera.graph import Graph
from tessera.types import DTYPES, Array, Values

_MOST_SETS = 256  # of weights that one part is called with
_FROM_NAME = {name: getattr(torch, dtype.name) for name, dtype in DTYPES.items()}


def _is_row_major(tensor: torch.Tensor) -> bool:
    """Whether its memory is the numbers that programs take, without gaps."""
    return tensor.is_contiguous() and not tensor.is_neg()


def array_of(tensor: torch.Tensor) -> Array:
    """A NumPy view of a row-major tensor's memory, of another's copy; bf16 as words."""
    tensor = tensor.detach().resolve_neg().contiguous()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: Array = tensor.numpy()
    return array


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the elements of a tensor lie: address and bytes, gaps included."""
    if not tensor.numel():
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((n - 1) * step for n, step in steps)
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


Module = Any  # _core.Module, or of a device _core.CudaModule
Results = Any  # of a call as PyTorch has them: a tensor, or several, and numbers
Prepared = Any  # what a module has packed of weights
# That, the inputs with weights in their places, and their contents (None: frozen).
Ready = tuple[Prepared, list[Any], _core.Contents | None]


class RefusedError(UnsupportedError):
    """Values of which PyTorch is asked: it refuses them, or its choice is not known."""


class Packed:
    """Parameters at some addresses, and what programs have packed of them: each array once."""

    def __init__(self, tensors: list[torch.Tensor], versions: list[int]) -> None:
        self.tensors = [t.detach() for t in tensors]  # so that addresses are not used again
        self._arrays: dict[int, Array] = {}  # of these, by position
        self.versions = versions
        # What was packed, and the contents of what it was packed from (None: frozen).
        self._prepared: list[tuple[_core.PreparedWeights, _core.Contents | None]] = []
        self._lock = threading.Lock()

    def array(self, i: int) -> Array:
        """Of tensor i, which programs share; of one that is not row-major a copy of its own."""
        if not _is_row_major(self.tensors[i]):
            return array_of(self.tensors[i])
        return self._arrays.setdefault(i, array_of(self.tensors[i]))

    def memory(self) -> list[int]:
        """What it owns, once for each owner: memory by its identity."""
        at = [*range(len(self.tensors)), *list(self._arrays)]
        return [self.tensors[i].untyped_storage()._cdata for i in at]

    def is_left(self, ours: Counter[int]) -> bool:
        """Whether one of them lies elsewhere, or is gone: but for so many owners of `ours`, and the
        one that asks, nobody has its memory."""
        return any(torch._C._storage_Use_Count(held._cdata) == ours[held._cdata] + 1
                   for t in self.tensors for held in [t.untyped_storage()])  # fmt: skip

    def prepare(
        self, module: _core.Module, arrays: list[Array | None], contents: _core.Contents | None
    ) -> _core.PreparedWeights | None:
        """What a program needs, arrays that others have made among it; `contents`: of what it is
        made from."""
        with self._lock:
            if not module.weights:
                return None
            self._prepared = [(p, c) for p, c in self._prepared if c is None or c.same()]
            made = module.prepare(arrays, [p for p, _ in self._prepared])
            if made.bytes:
                self._prepared.append((made, contents))
            return made

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p, _ in self._prepared)


class Weights:
    """The parameters of a part. Layers that share their code have a set each."""

    _all: ClassVar[weakref.WeakSet[Weights]] = weakref.WeakSet()  # of all parts that there are

    def __init__(self, places: Sequence[int], frozen: bool) -> None:
        self.places = list(places)  # among the arguments
        self.frozen = frozen  # nobody writes to them but as PyTorch counts it
        self._sets: dict[tuple[Hashable, ...], Packed] = {}  # by address and strides
        self._lock = threading.Lock()
        self._all.add(self)

    def look(self, args: Values) -> Packed:
        """What is packed of these; anew where versions differ, and dead models' goes then."""
        tensors = [args[i] for i in self.places]
        at = tuple((t.data_ptr(), t.stride()) for t in tensors)
        versions = [-1 if t.is_inference() else t._version for t in tensors]
        found = self._sets.get(at)
        if found is None or found.versions != versions:
            everybody = list(self._all)
            ours = Counter(m for w in everybody for p in list(w._sets.values()) for m in p.memory())
            for weights in everybody:
                weights._drop_left(ours)
            with self._lock:
                self._sets.pop(at, None)
                for key in [*self._sets][: len(self._sets) - _MOST_SETS]:
                    del self._sets[key]
                found = self._sets[at] = Packed(tensors, versions)
        return found

    def _drop_left(self, ours: Counter[int]) -> None:
        with self._lock:
            for key in [k for k, p in self._sets.items() if p.is_left(ours)]:
                del self._sets[key]

    def forget(self) -> None:
        """All is packed again at the next call."""
        self._sets.clear()

    @property
    def bytes(self) -> int:
        """Memory of all that is packed."""
        return sum(p.bytes for p in list(self._sets.values()))


class Raced:
    """What calls of a part run, perhaps by turns with what ran before."""

    used = 0  # the number of the part's call that it ran last
    race: CallRace | None = None  # against PyTorch's own operators, or `race.before`
    compared, decided = True, False  # with PyTorch; who runs

    @property
    def lost(self) -> bool:
        return self.race is not None and self.race.won is False


class Program(Raced):
    """Compiled code for one set of extents."""

    source: Graph  # the program as imported
    compiled: Graph  # what was compiled

    def __init__(
        self, module: Module, inputs: Sequence[int], weights: Weights,
        results: Values, single: bool,
    ) -> None:  # fmt: skip
        self.module = module
        self.found = ""  # by a search: what it did
        self._inputs = list(inputs)  # positions of tensors among the arguments
        self._weights = weights  # of those that keep their values
        self._free = [i for i in inputs if i not in set(weights.places)]
        self._place = {arg: at for at, arg in enumerate(inputs)}
        made = module.output_types
        orders = [r[2] for r in results if isinstance(r, tuple)]  # of axes, as they lie in memory
        self._forms = [([shape[order.index(a)] for a in range(len(shape))], order, _FROM_NAME[d])
                       for order, (d, shape) in zip(orders, made, strict=False)]  # fmt: skip
        self._turned = orders if any(o != sorted(o) for o in orders) else None
        self._checked = len(made) > len(orders)  # what operators require of values
        self.results = list(results)
        self.single = single
        self._words = any(d == "bf16" for d, _ in (*module.input_types, *module.output_types))
        # What is packed of weights, and their own arrays among the inputs, by Packed.
        self._ready: weakref.WeakKeyDictionary[Packed, Ready] = weakref.WeakKeyDictionary()

    def __call__(self, args: Values) -> Results:
        prepared, arrays = self._weighted(args)
        for i in self._free:
            arrays[self._place[i]] = array_of(args[i])
        # No views: PyTorch refuses to write to what a function returned as one.
        outputs = [torch.empty_permuted(size, order, dtype=dtype, device="cpu")
                   for size, order, dtype in self._forms]  # fmt: skip
        rows = map(torch.permute, outputs, self._turned) if self._turned else outputs
        to = [array_of(t) for t in rows]
        if self._checked:
            to.append(np.empty((), np.int32))
        if self._words or not self.module.run_exactly(arrays, to, prepared):
            self.module.run(arrays, to, prepared)
        if self._checked and not to[-1]:
            raise RefusedError("PyTorch refuses a value, or its choice is not known")
        return self._made(outputs)

    def with_code(self, module: Module, compiled: Graph) -> Program:
        """The same program as other code."""
        made = Program(module, self._inputs, self._weights, self.results, self.single)
        made.source, made.compiled = self.source, compiled
        return made

    @property
    def graph(self) -> Graph:
        """The program as it was compiled, with kernels."""
        return Graph.from_core(self.module.graph)

    @property
    def kernels(self) -> int:
        """Kernels that one call launches."""
        return int(self.module.plan_facts["run_tasks"])

    def _made(self, outputs: Sequence[torch.Tensor]) -> Results:
        """The results: what the program made, and numbers."""
        made = [outputs[r[1]] if isinstance(r, tuple) else r for r in self.results]
        return made[0] if self.single else tuple(made)

    def _weighted(self, args: Values) -> tuple[Prepared, list[Any]]:
        """What is packed of the weights, and a list of inputs with these filled in."""
        if not self._weights.places:
            return None, [None] * len(self._inputs)
        packed = self._weights.look(args)
        ready = self._ready.get(packed)
        # Versions tell of most changes at no cost. `.data`, NumPy, DLPack, fused optimizers and
        # running statistics are written without another version: their contents tell.
        if ready is None or (ready[2] is not None and not ready[2].same()):
            ready = self._ready[packed] = self._prepare(args, packed)
        return ready[0], list(ready[1])  # calls from several threads do not share it

    def _prepare(self, args: Values, packed: Packed) -> Ready:
        given: list[Array | None] = [None] * len(self._inputs)
        kept = set(self.module.weights)  # whose values are kept in another form
        kept |= {self._place[i] for i in self._weights.places if not _is_row_major(args[i])}
        frozen = self._weights.frozen or not kept
        ranges = [_extent(args[self._inputs[at]]) for at in sorted(kept)]
        contents = None if frozen else _core.Contents(ranges)
        for k, i in enumerate(self._weights.places):
            given[self._place[i]] = packed.array(k)
        return packed.prepare(self.module, given, contents), given, contents
