"""One part of a PyTorch graph as compiled code: programs by shape, made behind calls, checked."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import threading
import time
import timeit
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule
from torch.fx.node import Argument

from tessera import _core
from tessera.api import search_only, superoptimize
from tessera.background import Helper
from tessera.call_race import CallRace
from tessera.errors import BadInputError, Error, UnsupportedError
from tessera.frontends.torch.call import dtype_of, memory_order
from tessera.frontends.torch.importer import build
from tessera.frontends.torch.padding import Padding, bucket
from tessera.frontends.torch.places import paddings
from tessera.frontends.torch.sizes import sizes_of
from tessera.graph import Graph
from tessera.race_processes import LostError
from tessera.result import Result
from tessera.torch_cache import KeptPart, LaterGraph, cache_in, digest, origin, own_key
from tessera.torch_compare import as_told, disagreement, same_bits, tells_nothing
from tessera.torch_device import Device, DeviceProgram, device_code
from tessera.torch_experts import choose, recall
from tessera.torch_programs import Program, RefusedError, Results, Weights
from tessera.tuner import Tuner
from tessera.types import Function, Values

if TYPE_CHECKING:
    from tessera.torch_backend import Settings
from tessera.torch_padded import Extents, Fitted, Padded

log = logging.getLogger("tessera.torch")
_MOST_PROGRAMS = 64  # of one part, one for each set of extents
_MOST_WAITING = 8  # programs to be made; who is not among them asks again
_TRIES = 3  # where weights may have changed in between
_OFTEN = 32  # calls after which extents get a program without rounding
_MOST_COUNTED = 4096

Key = Any  # the extents of calls that one program serves
_SEARCH_S = 30.0  # for a program that is called often
BEHIND = Tuner()  # makes programs while PyTorch runs
LATER = Tuner(alone=False)  # searches for faster ones, at low priority


class Part(torch.nn.Module):  # type: ignore[misc]
    """A part of a graph: compiled for the extents it meets, PyTorch's own operators elsewhere.

    Sizes that may be rounded up (padding.py) get a program for each of a few; extents that return
    often one of their own.
    """

    eager: GraphModule

    def __init__(
        self, graph: GraphModule | LaterGraph, weights: Sequence[bool], settings: Settings,
        name: str, device: Device | None = None, kept: KeptPart | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        object.__setattr__(self, "eager", graph)
        self.plain: Callable[..., Results] = graph.__call__  # as the user wrote it, where known
        self._settings = settings
        self._bits = settings.level == "bitwise"  # PyTorch's own are asked for
        self._device = device  # torch_device.Device; None: the processor
        self.name = name
        self._kept = kept  # of another process
        self._lossy: list[str] = []  # ways of computing that lost too many digits here
        self._own = ""  # patterns that do not ship: their key, as of the newest program
        # Takes a KeptPart's facts, once PyTorch agrees.
        self.keep: Callable[..., None] | None = None
        self._flags = list(weights)
        self.weights = Weights([i for i, flag in enumerate(weights) if flag], settings.freeze)
        self._programs: dict[Key, Program | Padded | None] = {}  # None: left to PyTorch
        # By the extents of calls: what runs, and the program that it is of.
        self._routes: dict[Key, tuple[Function | None, Program | Padded | None]] = {}
        self._calls: dict[Key, int] = {}  # with extents that have no program of their own
        self._pending: set[Key] = set()
        self._tries: dict[Key, int] = {}  # that failed
        self._lock = threading.Lock()
        self._clock = itertools.count(1)
        self.compile_s = 0.0
        self.reason = ""  # why PyTorch runs it, where it does
        self.searched = ""  # what came of a search, where it is not what runs
        # Arguments whose sizes a program of the first call knows nothing of.
        self._dynamic: list[int] = []
        self.paddings: list[Padding] = []
        self._single = False
        self._stop: Callable[[], bool] | None = None  # of work in the background
        if kept is None:
            placeholders = graph.graph.find_nodes(op="placeholder")
            self._dynamic = [i for i, n in enumerate(placeholders) if not all(
                isinstance(d, int) for d in sizes_of(n.meta.get("val")))]  # fmt: skip
            self.paddings = paddings(graph) if self._dynamic and device is None else []
            (output,) = graph.graph.find_nodes(op="output")
            self._single = not isinstance(output.args[0], (list, tuple))

    def forward(self, *args: Argument) -> Results:
        key = self._key(args) if self._dynamic else None
        try:
            run, program = self._routes[key]
        except KeyError:
            return self._first(key, args)
        if run is None or program is None:
            return self.plain(*args)
        if self._dynamic:
            program.used = next(self._clock)
            if key not in self._programs:
                self._count(key, args)
        if program.race is not None and program.race.won is None:
            return self._race(program, program.race, run, args)
        return self._run(run, args)

    def _run(self, run: Function, args: Values) -> Results:
        try:
            return run(args)
        except (RefusedError, BadInputError) as error:
            # The latter of a dtype that PyTorch's own forward saved and ours does not.
            if self._settings.strict and isinstance(error, BadInputError):
                raise
            return self.plain(*args)  # and raises, as PyTorch does

    def _race(
        self, program: Program | Padded, race: CallRace, run: Function, args: Values
    ) -> Results:  # fmt: skip
        """A call that the program or what was there before runs; who is slower runs no others."""
        before = race.before
        other: Function = self.plain if before is None else lambda *a: self._run(before, a)
        if program.compared:
            made = race.run(lambda a: self._run(run, a), other, args, not BEHIND.jobs)
        else:  # of what a search found the first
            program.compared = True
            try:
                return self._compare(program, args)
            except UnsupportedError as error:
                log.warning("tessera: what a search found for %s: %s", self.name, error.message)
                made, race.won, race.figures = other(*args), False, "wrong values"
        if race.won is None:
            return made
        with self._lock:
            names = [n for n, p in self._programs.items() if p is program]
            if not names or program.decided:
                return made
            program.decided, race.before = True, None
            if race.won is False:
                log.info("tessera: %s takes %s", self.name, race.figures)
                if before is None:
                    self.reason = f"{self.name} takes {race.figures}"
                else:
                    self._programs[names[0]] = before
                    self.searched = f"what a search found takes {race.figures}"
                self._routes = {}
            else:
                self.reason = ""
            if before is not None or not self.programs:
                self.weights.forget()  # what the other side has packed
        if self._settings.searches and isinstance(program, Program) and not program.found:
            self._search(names[0], program.source)
        return made

    def _search(self, name: Key, graph: Graph) -> None:
        """Has a faster program searched for by a process of its own, and raced by further calls."""
        if LATER.jobs >= _MOST_WAITING:
            return
        helper, options = Helper(), self._settings.options(_SEARCH_S)
        folder, alive = self._settings.cache_dir, weakref.ref(self)

        def job(stop: Callable[[], bool]) -> None:
            if alive() is None:
                return
            try:
                improved = helper.optimise(graph, [], options, None, folder)[1]
                if (part := alive()) is None or stop():
                    return
                part.searched = "a search found nothing faster"
                if improved:
                    with cache_in(folder):
                        part._challenge(name, graph, search_only(graph, options, stop))
            except (Error, LostError, OSError, MemoryError) as error:
                log.info("tessera: a search failed: %s", error)

        LATER.add(job, helper)

    def _challenge(self, name: Key, graph: Graph, result: Result) -> None:
        """Has calls race a program that was found with the one that runs, or with PyTorch."""
        program = self._programs.get(name)
        if not result.improved or not isinstance(program, Program) or program.source is not graph:
            return
        found = program.with_code(result._module, result.graph)
        steps = result.details["simplified"].splitlines()
        for c in result.candidates:
            lines = c.derivation.splitlines() if c.fate == "chosen" else []
            steps += [f"{c.origin}: {t}" for t in lines if t not in steps and "<-" not in t]
        found.found = "\n".join(steps) or "a fused kernel"
        found.compared, found.used = False, next(self._clock)
        found.race = CallRace(None if program.lost else program)
        with self._lock:
            self._programs[name] = found
            self._routes = {}

    def _key(self, args: Values) -> Key:
        return tuple(a.shape if isinstance(a, torch.Tensor) else a
                     for a in (args[i] for i in self._dynamic))  # fmt: skip

    @property
    def kernels(self) -> int:
        """Kernels that one run launches, by the newest program; of PyTorch's own: operators."""
        made = self.programs
        if made:
            return made[-1].kernels
        return sum(n.op == "call_function" for n in self.eager.graph.nodes)

    @property
    def programs(self) -> list[Program]:
        return [p.program if isinstance(p, Padded) else p for p in list(self._programs.values())
                if p is not None and not p.lost]  # fmt: skip

    @property
    def settled(self) -> bool:
        """Whether there are programs, and calls have told which are faster than PyTorch."""
        made = list(self._programs.values())
        raced = all(p is None or p.race is None or p.race.won is not None for p in made)
        return bool(made) and raced and not self._pending

    def refresh(self) -> None:
        self.weights.forget()

    # --- another set of extents
    def _rounded(self, args: Values) -> tuple[Key, Extents]:
        """What the program of rounded sizes is known by, and the sizes."""
        extents = [(p, bucket(p.size(args), p.most)) for p in self.paddings]
        return ("rounded", self._fixed(args), tuple(n for _, n in extents)), extents

    def _fixed(self, args: Values) -> Key:
        """The extents of a call but for those that are rounded up."""
        longer: set[tuple[int, int | None]] = {
            (i, a) for p in self.paddings for i, axes in p.inputs.items() for a in axes
        }
        longer |= {(i, None) for p in self.paddings for i in p.numbers}
        return tuple(tuple(d for a, d in enumerate(x.shape) if (i, a) not in longer)
                     if isinstance(x, torch.Tensor) else None if (i, None) in longer else x
                     for i, x in ((i, args[i]) for i in self._dynamic))  # fmt: skip

    def _first(self, key: Key, args: Values) -> Results:
        """A call with extents that no call had yet."""
        if self._device is not None and self._device.capturing():
            return self.plain(*args)  # nothing is compiled or compared in a capture
        own: tuple[Key, Extents] = (key, [])
        name, extents = self._rounded(args) if self.paddings else own
        if self._settings.dynamic == "exact":
            name, extents = own
        if name not in self._programs:
            if name in self._pending or not self._waits():
                self._behind(name, args, extents)
                near = self._near(name)
                return self.plain(*args) if near is None else self._run(near, args)
            if (expected := self._make(name, args, extents)) is not None:
                return expected
            if name not in self._programs:
                return self.plain(*args)
        if self._programs[name] is None and extents:  # it did not work
            self.paddings = []
            del self._programs[name]
            return self._first(key, args)
        program = self._programs[name]
        run = Fitted(program, args) if isinstance(program, Padded) else program
        self._routes[key] = None if program is None or program.lost else run, program
        return self.forward(*args)

    def _waits(self) -> bool:
        """Whether a call with new extents waits for its program."""
        if self._device is not None:
            return True
        if self._programs:
            return bool(self._settings.dynamic == "wait")
        return self._settings.waits or self._kept is not None or bool(own_key())

    def _near(self, name: Key) -> Padded | None:
        """The smallest program of larger sizes, of which at most half is in vain."""
        if name is None or name[:1] != ("rounded",):
            return None
        _, fixed, sizes = name
        found = [(math.prod(other[2]), p) for other, p in list(self._programs.items())
                 if isinstance(p, Padded) and other[1] == fixed
                 and all(a <= b <= 2 * a
                         for a, b in zip(sizes, other[2], strict=True))]  # fmt: skip
        return min(found, key=lambda x: x[0])[1] if found else None

    def _count(self, key: Key, args: Values) -> None:
        """Extents that return often are worth a program of their own."""
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] == _OFTEN and self._settings.dynamic == "background":
            program = self._routes[key][1]
            if isinstance(program, Padded) and not program.fits(args):
                self._behind(key, args, [])

    def _behind(self, name: Key, args: Values, extents: Extents) -> None:
        """Has a program made by the thread that makes them, one after the other."""
        with self._lock:
            if name in self._pending or BEHIND.jobs >= _MOST_WAITING:
                return
            self._pending.add(name)
        kept, alive = set(self.weights.places), weakref.ref(self)
        copies = [a.clone() if isinstance(a, torch.Tensor) and i not in kept else a
                  for i, a in enumerate(args)]  # fmt: skip

        def job(stop: Callable[[], bool]) -> None:
            if (part := alive()) is not None:
                part._make(name, copies, extents, stop)

        BEHIND.add(job)

    def _make(
        self, name: Key, args: Values, extents: Extents, stop: Callable[[], bool] | None = None,
    ) -> Results:  # fmt: skip
        """Compiles a program and checks it; PyTorch's own results where there was a check."""
        expected = None
        self._stop = stop
        program: Program | Padded | None
        try:
            program = kept = self._as_kept(args)
            if program is None:
                program, expected = self._agreeing(args, extents)
            elif self._settings.check:
                expected = self._compare(program, args)
            if expected is not None and kept is None:
                self._write(program)
        except Exception as error:
            self._tries[name] = self._tries.get(name, 0) + 1
            again = stop is not None or isinstance(error, RefusedError)
            if again and ((stop is not None and stop()) or self._tries[name] < _TRIES):
                self._pending.discard(name)  # weights may be others next time
                return None
            del self._tries[name]
            program, expected = None, None
            why = error.message if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            if extents:
                log.info("tessera: %s has programs for its own sizes alone: %s", self.name, why)
            else:
                if self._settings.strict:
                    raise
                self.reason = why
                log.warning("tessera: %s runs in eager: %s", self.name, why)
        with self._lock:
            if len(self._programs) >= _MOST_PROGRAMS:
                oldest = min(self._programs, key=lambda n: getattr(self._programs[n], "used", 0))
                del self._programs[oldest]
            if program is not None:
                program.used = next(self._clock)
                if self._device is None and self._settings.race and not self._settings.strict:
                    program.race = CallRace()
            self._programs[name] = program
            self._routes = {}
            self._pending.discard(name)
            if len(self._calls) > _MOST_COUNTED:
                self._calls.clear()
        return expected

    def _agreeing(self, args: Values, extents: Extents) -> tuple[Program | Padded, Results]:
        """A program, and PyTorch's own results, with which its agree, where they are looked at.
        Where Winograd's tiles lose too many digits of an image, smaller ones are taken, or none."""
        expected, orders = None, []
        if looked_at := self._settings.check or self._bits:
            with torch.no_grad():
                expected = self.eager(*args)
            orders = [memory_order(r) for r in ([expected] if self._single else expected)]
        for fewer in ("plan:large-transforms", "plan:transforms", ""):
            program = self._compile(args, extents, orders)
            try:
                return program, self._compare(program, args, expected) if looked_at else None
            except RefusedError:
                raise
            except UnsupportedError:
                inner = program.program if isinstance(program, Padded) else program
                windows = any(op["op"] == "conv" for op in inner.compiled.ops)
                if not fewer or self._bits or self._device is not None or not windows:
                    raise
            self._leave_out([fewer])
        raise AssertionError("the last one returns or raises")

    def _leave_out(self, ways: Sequence[str]) -> None:
        """Has no code computed in these ways any longer, now and in programs that are found."""
        self._lossy += ways
        self._settings = dataclasses.replace(
            self._settings, disable=(*self._settings.disable, *ways)
        )

    def _as_kept(self, args: Values) -> Program | None:
        """The program that another process kept, where it still becomes the code that it became."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        compiled = Graph.parse(kept.compiled)
        self._leave_out(kept.lossy)
        with cache_in(self._settings.cache_dir):
            module = self._code(compiled)
        if digest(module.source) != kept.code:
            return None
        tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        program = Program(module, tensors, self.weights, kept.results, self._single)
        program.source, program.compiled = Graph.parse(kept.program), compiled
        return program

    def _write(self, program: Program | Padded) -> None:
        if self.keep is None or not isinstance(program, Program):
            return
        with cache_in(self._settings.cache_dir), contextlib.suppress(Error):  # no room
            self.keep(weights=self._flags, program=str(program.source), lossy=self._lossy,
                      compiled=str(program.compiled), results=program.results,
                      code=digest(program.module.source), origin=origin() + self._own)  # fmt: skip

    def _compile(self, args: Values, extents: Extents, orders: Values) -> Program | Padded:
        start = time.perf_counter()
        inputs = [(dtype_of(a.dtype), list(a.shape)) if isinstance(a, torch.Tensor) else a
                  for a in args]  # fmt: skip
        for padding, to in extents:
            for i, number in padding.lengthened(args, {p.symbol: n for p, n in extents}).items():
                inputs[i] = number
            for i, axes in padding.inputs.items():
                for a in axes:
                    inputs[i][1][a] = to
        graph, results = build(self.eager, inputs, self._flags, self.name, extents, orders)
        tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        tensors += range(len(args), len(args) + len(extents))
        if not graph.core.outputs:
            raise UnsupportedError("it computes nothing but sizes")
        graph = graph.with_core(graph.core.without_dead_code())
        graph.validate()
        if self._device is not None:
            with cache_in(self._settings.cache_dir):
                found, code = device_code(graph, self._device, self._settings)
            self.compile_s += time.perf_counter() - start
            program: Program = DeviceProgram(code, self._device, tensors, self.weights, results,
                                             self._single)  # fmt: skip
            program.source, program.compiled = graph, found
            return program

        def made_of(found: Graph, module: _core.Module | None = None) -> Program | Padded:
            module = self._code(found) if module is None else module
            program = Program(module, tensors, self.weights, results, self._single)
            program.source, program.compiled = graph, found
            return Padded(program, extents) if extents else program

        with cache_in(self._settings.cache_dir):
            made = [made_of(graph)]
            self._own = "" if self._settings.budget or self._bits else own_key()
            if self._settings.budget:
                made += [made_of(*found) for found in self._optimize(graph)]
            elif self._own:
                made = [self._with_experts(graph, made[0], made_of, args)]
        if os.environ.get("TESSERA_DEBUG", "0") != "0":
            log.info("tessera: %s\n%s", self.name, graph)
        if len(made) > 1:
            made.sort(key=lambda p: _seconds(p, args))
            self.weights.forget()
        self.compile_s += time.perf_counter() - start
        return made[0]

    def _code(self, graph: Graph) -> _core.Module:
        graph = Graph.parse(str(graph))  # as another process does: names of values are in the code
        return _core.compile(
            graph.core, {d for d in self._settings.disable if d.startswith("plan:")},
            exact=self._bits, stop=self._stop, compared=not self._settings.freeze,
        )  # fmt: skip

    def _optimize(self, graph: Graph) -> list[tuple[Graph, _core.Module]]:
        """The fastest program that a search of the given budget finds and proves, if any."""
        result = superoptimize(graph, options=self._settings.options(self._settings.budget or 0))
        return [(result.graph, result._module)] if result._module is not None else []

    def _with_experts(
        self, graph: Graph, ours: Program | Padded, made_of: Callable[[Graph], Program | Padded],
        args: Values,
    ) -> Program | Padded:  # fmt: skip
        """Ours, or a program with kernels of own patterns that is faster."""

        def seconds(found: Graph | None) -> float:
            program = ours if found is None else made_of(found)
            if found is not None:
                self._compare(program, args)
            return _seconds(program, args)

        choice = recall(graph, self._own)
        if choice is None:
            choice = choose(graph, self._own, self.name, self._settings.threads, seconds)
            self.weights.forget()
        return made_of(Graph.parse(choice.program)) if choice.program else ours

    def _compare(self, program: Program | Padded, args: Values, known: Results = None) -> Results:
        """PyTorch's own results, with which a program's agree. Raises UnsupportedError."""
        with torch.no_grad():
            expected = self.eager(*args) if known is None else known
            made = program(args)
            ours, theirs = ([r] if self._single else list(r) for r in (made, expected))
            if any(getattr(a, "dtype", 0) != getattr(b, "dtype", 0)
                   for a, b in zip(ours, theirs, strict=True)):  # fmt: skip
                theirs = as_told(theirs, self.eager)
                expected = theirs[0] if self._single else tuple(theirs)
            if self._bits and not all(map(same_bits, ours, theirs)):
                raise UnsupportedError("level bitwise: its results have other bits than PyTorch's")
            if (why := disagreement(ours, theirs, self.eager, args)) is not None:
                again = any(map(tells_nothing, ours, theirs))
                raise (RefusedError if again else UnsupportedError)(why)
        return expected


def _seconds(program: Program | Padded, args: Values) -> float:
    """The least time of a few calls."""
    return min(timeit.repeat(lambda: program(args), number=1, repeat=6)[1:])
