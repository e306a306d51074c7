"""What it takes for source to stand in for the function that it was made of.

Its parameters, and the structure and types of its results, which share memory only where the
original's do; and sizes: source is for all of them as a rule, but a rewrite may hold some (a mean
over 200 numbers is a sum times 0.005), so the original and the source are proved equal at others.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tessera import _core
from tessera.clock import Clock
from tessera.emit import Call, call_of, compile_source, emit
from tessera.errors import Error, UnsupportedError
from tessera.frontends.numpy import rounds_otherwise
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Leaf, Node, Spec, Traced, Tree, alike, parts, unflatten
from tessera.graph import Graph
from tessera.options import Options
from tessera.runner import order_of, sharing
from tessera.source import Program
from tessera.types import Arguments, Array, Function, Object, Record, Value, Values, dtype_name
from tessera.verification import verify_by

# Extents that take the place of the program's own, ascending with them, so that what is long stays
# long; all different, so that what does not belong together does not fit.
_SIZES = ((3, 5, 7, 9, 11, 13, 15, 17), (2, 4, 6, 10, 12, 14, 18, 20))
# And where those are too short for the program's windows: longer ones, and those of the program and
# a few more; beside the least that is claimed to do. With _SIZES it is 2.
_LONGER = ((13, 17, 19, 23, 29, 31, 37, 41), (12, 14, 18, 22, 26, 30, 34, 38))
_LONGEST = 512
_WIDE = 23  # in place of 1
_OTHERS = 24  # and up: for axes that need not be as long as others
_FEW = 8  # axes of one extent of which any two may belong together
_SECONDS = 2.0  # for one proof
# For all sizes: how many choices of extents show what depends on them, and of which.
_INSTANCES = 5
_UNLIKE = range(30, 230)


class DropIn:
    """Makes sources that are called as a function is, and return what it returns.

    `function` and its `traced` form may both be missing: a program of its own has its inputs for
    parameters and a tuple of its outputs for a result. Proofs raise OutOfTime when the clock's time
    is over.
    """

    def __init__(self, graph: Graph, function: Function | None, traced: Traced | None, name: str,
                 arrays: Values, clock: Clock | None = None) -> None:  # fmt: skip
        self.name = name
        self._clock = clock or Clock()
        self._traced = traced
        self._function = function if traced is not None else None
        self._call: Call | None = None
        self.unlike = ""  # why its sources are not called as the function is
        self._constants: dict[str, Array] = {}
        if self._function is not None and traced is not None:
            self._constants = Program(traced.graph, traced).constants
            try:
                self._call = call_of(self._function, traced, self._constants)
            except UnsupportedError as error:
                self.unlike = error.message
        self.arrays = arrays
        self.original = self._function or compile_source(emit(graph, name=name), name)
        self._results: list[Value] | None = None
        self._ways: dict[tuple[str, str], dict[str, list[int]]] = {}

    @property
    def given(self) -> int:
        """How many of the arrays are a call's own; the others come from outside."""
        return len(self.arrays) if self._traced is None else len(self._traced.arguments)

    def bind(self, arrays: Values) -> tuple[Arguments, Record]:
        """Arguments of the original's call with these arrays, which are in the inputs' order."""
        if self._traced is None or self._function is None:
            return tuple(arrays), {}
        args, kwargs = unflatten(self._traced.tree, arrays[: self.given])
        return args, dict(kwargs)

    def bind_source(self, arrays: Values) -> tuple[Arguments, Record]:
        """Those of its sources, which take arrays from outside as keyword arguments."""
        if self._call is None or self._traced is None:
            return tuple(arrays), {}
        args, kwargs = self.bind(arrays)
        names = list(self._traced.graph.input_types())
        outer = zip(names[self.given :], self._call.names[self.given :], arrays[self.given :],
                    strict=True)  # fmt: skip
        return args, kwargs | {name: a for told, name, a in outer if told not in self._constants}

    def source(self, graph: Graph, flavour: str = "numpy", **more: Value) -> str:
        """The source of a program that computes the same; `more` is for `emit`."""
        more |= self._results_as_original(graph, flavour)
        return emit(graph, flavour, name=self.name, call=self._call, constants=self._constants,
                    **more)  # fmt: skip

    def plain(self, graph: Graph, flavour: str = "numpy", **more: Value) -> str:
        """The same as a function of the program's inputs, which a process of a race can call."""
        more |= self._results_as_original(graph, flavour)
        return emit(graph, flavour, name=self.name, **more)

    def _results_as_original(self, graph: Graph, flavour: str) -> dict[str, list[int]]:
        if flavour == "jax":  # whose arrays cannot be written
            return {}
        key = (str(graph), flavour)
        if key not in self._ways:
            self._ways[key] = self._as_original(graph, flavour)
        return self._ways[key]

    # --- results
    def of_program(self, value: Value) -> list[Value]:
        """What the program computes of what the function returned, without its constants."""
        if self._traced is None:
            return list(parts(value))
        found: dict[int, Value] = {}
        _of_program(self._traced.results, value, found)
        return [found[n] for n in sorted(found)]

    def _as_original(self, graph: Graph, flavour: str) -> dict[str, list[int]]:
        """What `emit` is to do with outputs that are not as the original's.

        That share memory with an input or an earlier output, unlike the original's; under NumPy
        also arrays without axes in the place of its scalars, and the other way round.
        """
        flat = compile_source(emit(graph, name=self.name), self.name)
        inputs = [np.asarray(a) if isinstance(a, float) else a for a in self.arrays]
        with np.errstate(all="ignore"):
            if self._results is None:
                args, kwargs = self.bind(self.arrays)
                self._results = _arrays(self.of_program(self.original(*args, **kwargs)))
            found = _arrays(flat(*inputs))
        wanted = self._results
        if len(wanted) != len(found):  # a result that the original makes of no array
            return {"copies": [n for n, a in enumerate(found) if a.ndim]}
        ours, theirs = ({p[:2] for p in sharing(results, inputs)} for results in (found, wanted))
        shared = {n for n, _ in ours - theirs}
        for n, (a, w) in enumerate(zip(found, wanted, strict=True)):
            if not isinstance(a, np.ndarray):
                continue
            if w.flags.writeable > a.flags.writeable:
                shared.add(n)  # one number seen at many places
            if order_of(w) is None and order_of(a) is not None:
                shared.add(n)  # copies are row-major
        if flavour != "numpy":
            return {"copies": sorted(shared)}
        numbers = [isinstance(w, np.generic) for w in wanted]
        if self._function is None and self._traced is not None:
            numbers = [np.ndim(a) == 0 for a in found]
            numbers = [n and f != "array" for n, f in zip(numbers, self._traced.forms, strict=True)]
        scalars = [n for n, a in enumerate(found) if numbers[n] > isinstance(a, np.generic)]
        arrays = [n for n, a in enumerate(found) if numbers[n] < isinstance(a, np.generic)]
        copies = [n for n in sorted(shared) if n not in scalars]
        return {"copies": copies, "as_scalars": scalars, "as_arrays": arrays}

    # --- sizes
    def proved_at_other_sizes(self, graph: Graph, options: Options, **more: Value) -> int | None:
        """At how many other choices of extents the program's source equals the function.

        `more` is for `emit`.

        Where axes that the function does not need to be equally long are not, where those of extent
        1 are longer and others are 1, the source equals the function too, or raises. Extents of
        arrays from outside are kept. 0 says that it is not known for any, be it that the two differ
        there; None that there is no function.
        """
        if self._function is None:
            return None
        if not self._equal_with(_SIZES, graph, options, **more):
            return 0
        source = compile_source(self.source(graph, **more), self.name)
        specs = self._specs()
        others = itertools.chain(self._untied(specs), self._narrowed(specs))
        safe = all(self._safe_at(source, other, options) for other in others)
        return len(_SIZES) if safe else 0

    def least_extents(
        self, graph: Graph, options: Options, **more: Object
    ) -> tuple[dict[int, int], int] | None:
        """From where on the source equals the function, for each extent of the program.

        For arguments of which the same axes are equally long as here and only those that are of
        extent 1 here are so: `these_ties` of `emit` refuses others. Also the number of other
        choices of extents at which this was proved. None where it is not known.
        """
        if self._function is None:
            return None
        extents = self._extents()
        own = tuple(tuple(n * k + k + j for j, n in enumerate(extents)) for k in (1, 2))
        least = {"small": dict.fromkeys(extents, 2),
                 "longer": dict(zip(extents, _LONGER[1], strict=False)),
                 "own": {n: n for n in extents}}  # fmt: skip
        for which, choices in (("small", _SIZES), ("longer", _LONGER), ("own", own)):
            if which == "own" and max(extents, default=0) > _LONGEST:
                continue
            if any(n < m for n, m in least[which].items()):
                continue
            if self._equal_with(choices, graph, options, **more):
                return least[which], len(choices)
        return None

    def _given(self) -> list[Spec | float]:
        assert self._traced is not None
        return [
            a if isinstance(a, (Spec, float)) else Spec(dtype_name(a.dtype), a.shape)
            for a in self._traced.arguments
        ]

    def _specs(self) -> list[Spec]:
        return [s for s in self._given() if isinstance(s, Spec)]

    def _extents(self) -> list[int]:
        """Those of arguments that are longer than 1."""
        return _longer(self._specs())

    def _equal_with(
        self, choices: Sequence[Sequence[int]], graph: Graph, options: Options, **more: Value
    ) -> bool:
        """Whether source and function are equal with each of these in place of the extents."""
        if self._traced is None or self._call is None:
            return False
        extents = self._extents()
        fixed = {extent for array in self._traced.extra for extent in array.shape}
        if len(extents) > len(choices[0]) or fixed.intersection(extents):
            return False
        source = compile_source(self.source(graph, **more), self.name)
        for sizes in choices:
            other: Mapping[int, int] = dict(zip(extents, sizes, strict=False))
            if self._verdict_at(source, self._resized(other), options) != "equal":
                return False
        return True

    def proved_for_all_sizes(self, graph: Graph, **more: Value) -> str | None:
        """For which sizes at all: "A[N,M] B[M] with N >= 1, M >= 1"; None where that is not known.

        Said of the programs that function and source are at several unlike extents, in place of
        those of the arguments; extents that are equal stay so.
        """
        extents = self._extents()
        if self._traced is None or self._call is None or not extents:
            return None
        if {n for array in self._traced.extra for n in array.shape}.intersection(extents):
            return None
        source = compile_source(self.source(graph, **more), self.name)
        pairs = []
        try:
            for k in range(_INSTANCES):
                unlike = random.Random(k).sample(_UNLIKE, len(extents))
                own = dict(zip(extents, unlike, strict=True))
                pairs.append(self._traced_at(source, self._resized(own)))
        except Error:  # one of the two does not run there
            return None
        originals, made = zip(*pairs, strict=True)
        proved, what = _core.equal_for_all_sizes(
            [t.graph.core for t in originals], [t.graph.core for t in made]
        )
        return what if proved else None

    def _resized(self, other: Mapping[int, int]) -> list[Spec | float]:
        return [_sized(s, other) if isinstance(s, Spec) else s for s in self._given()]

    def needs_rank_guards(self, graph: Graph, options: Options, **more: Value) -> bool:
        """Whether the source takes arrays of other ranks, and computes other than the function.

        What the function or the source refuses is no matter.
        """
        if self._function is None or self._traced is None or self._call is None:
            return False
        source = compile_source(self.source(graph, **more), self.name)
        others = _other_ranks(self._specs())
        return not all(self._safe_at(source, other, options) for other in others)

    def _narrowed(self, specs: Sequence[Spec]) -> Iterator[list[Spec]]:
        """Each axis in turn of extent 1, which broadcasts where it did not before."""
        small = _small(specs)
        for k, spec in enumerate(small):
            for d, extent in enumerate(spec.shape):
                if extent != 1:
                    shape = (*spec.shape[:d], 1, *spec.shape[d + 1 :])
                    yield [*small[:k], dataclasses.replace(spec, shape=shape), *small[k + 1 :]]

    def _with_others(self, specs: Sequence[Spec | float]) -> list[Value]:
        """All inputs: these, the floats of the call where they are not among them, and arrays from
        outside."""
        assert self._traced is not None
        left = iter(specs)
        whole = len(specs) == len(self._traced.arguments)
        given = [
            a if isinstance(a, float) and not whole else next(left) for a in self._traced.arguments
        ]
        return [*given, *self._traced.extra]

    def _safe_at(self, source: Function, specs: Sequence[Spec], options: Options) -> bool:
        """Whether the source equals the function there, if both take such arguments.

        A function that is nowhere defined there (a variance of one number) is equal to anything.
        """
        verdict = self._verdict_at(source, specs, options)
        return verdict in ("equal", "refused") or "reason: undefined" in verdict

    def _untied(self, specs: Sequence[Spec]) -> Iterator[list[Spec]]:
        """Shapes that the function takes as well, though they look different.

        Axes that are as long as each other only here (a square matrix) have extents of their own,
        and an axis of extent 1 is longer.
        """
        small = enumerate(_small(specs))
        extents = {(k, d): int(n) for k, s in small for d, n in enumerate(s.shape)}

        def resized(found: Mapping[tuple[int, int], int]) -> list[Spec]:
            return [
                dataclasses.replace(s, shape=tuple(found[k, d] for d in range(len(s.shape))))
                for k, s in enumerate(specs)
            ]

        fresh = itertools.count(_OTHERS)
        untied = dict(extents)
        for axis, extent in extents.items():
            if extent <= 1 or list(untied.values()).count(untied[axis]) == 1:
                continue
            size = next(fresh)
            for together in _tied(axis, untied, specs):
                changed = untied | dict.fromkeys(together, size)
                if self._takes(resized(changed)):
                    untied = changed
                    break
        if untied != extents:
            yield resized(untied)
        for axis, extent in extents.items():
            if extent == 1:
                wider = [resized(untied | {axis: n}) for n in {*untied.values(), _WIDE} if n > 1]
                yield from [found for found in wider if self._takes(found)][:1]

    def _takes(self, specs: Sequence[Spec]) -> bool:
        """Whether the function can be called with these."""
        assert self._traced is not None
        try:
            trace_call(self.original, *self.bind(self._with_others(specs)))
        except Exception:  # its own, or that it cannot be traced
            return False
        return True

    def _traced_at(self, source: Function, specs: Sequence[Spec | float]) -> tuple[Traced, Traced]:
        arrays = self._with_others(specs)
        floats = any(isinstance(a, float) for a in arrays)
        original = trace_call(self.original, *self.bind(arrays), floats=floats)
        return original, trace_call(source, *self.bind_source(arrays), floats=floats)

    def same_bits(self, source: str, options: Options) -> bool:
        """Whether this very text is proved to compute the function's bits."""
        if self._function is None or self._traced is None:
            return False
        made = compile_source(source, self.name)
        return self._verdict_at(made, self._given(), options) == "equal"

    def _verdict_at(self, source: Function, specs: Sequence[Spec | float], options: Options) -> str:
        """The verdict's first lines; "refused" where one of the two does not run there."""
        self._clock.require()
        try:
            original, made = self._traced_at(source, specs)
            if not alike(original.results, made.results, lambda a, b: type(a) is type(b)):
                return "refuted"
            if options.level == "bitwise" and rounds_otherwise(original.calls | made.calls):
                return "unknown"
            budget = min(_SECONDS, self._clock.left())
            verdict = verify_by(options, original.graph, made.graph, budget)
        except Error:
            return "refused"
        return "equal" if verdict.equal else "\n".join(str(verdict).splitlines()[:2])


def _longer(specs: Sequence[Spec]) -> list[int]:
    """Their extents that are longer than 1, each once, ascending."""
    return sorted({int(n) for s in specs for n in s.shape if int(n) > 1})


def _sized(spec: Spec, sizes: Mapping[int, int]) -> Spec:
    """With others in place of some extents."""
    return dataclasses.replace(spec, shape=tuple(sizes.get(int(n), int(n)) for n in spec.shape))


def _small(specs: Sequence[Spec]) -> list[Spec]:
    """The same at small extents."""
    sizes = dict(zip(_longer(specs), _SIZES[0], strict=False))
    return [_sized(s, sizes) for s in specs]


def _other_ranks(specs: Sequence[Spec]) -> Iterator[list[Spec]]:
    """One argument, or all, with an axis more, or one argument with an axis less."""
    small = _small(specs)
    yield [dataclasses.replace(s, shape=(2, *s.shape)) for s in small]
    for k, spec in enumerate(small):
        for shape in ((2, *spec.shape), (*spec.shape, 1), (*spec.shape, 2), spec.shape[1:]):
            if len(shape) != len(spec.shape):
                yield [*small[:k], dataclasses.replace(spec, shape=shape), *small[k + 1 :]]


def _tied(
    axis: tuple[int, int], extents: Mapping[tuple[int, int], int], specs: Sequence[Spec]
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Sets of axes that may have to be as long as this one: not all that are, the least first."""
    alike = [a for a in extents if extents[a] == extents[axis]]
    from_end = {a: len(specs[a[0]].shape) - a[1] for a in alike}
    found: list[tuple[tuple[int, int], ...]] = [(axis,)]
    if len(alike) <= _FEW:
        found += [(axis, a) for a in alike if a != axis]
    found.append(tuple(a for a in alike if from_end[a] == from_end[axis]))
    found.append(tuple(a for a in alike if a[1] == axis[1]))
    return (axes for axes in found if len(axes) < len(alike))


def _arrays(value: Object) -> list[Value]:
    """The arrays of a result, one after the other, NumPy's scalars among them."""
    return [v for v in parts(value) if isinstance(v, (np.ndarray, np.generic))]


def _of_program(tree: Tree, value: Value, found: dict[int, Value]) -> None:
    if isinstance(tree, Leaf):
        found.setdefault(tree.index, value)
    elif isinstance(tree, Node):
        values = [value[k] for k in tree.keys] if tree.kind is dict else value
        for child, part in zip(tree.children, values, strict=True):
            _of_program(child, part, found)
