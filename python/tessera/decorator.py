"""`@tessera.optimize`: a function that is replaced by its optimised programs, one per call form.

The promise: results have the original's values (up to rounding), dtypes, shapes and order of axes
in memory, and a call raises only where the original raises. The first call of a form returns what
the original returns; tracing it has no effects (frontends/sandbox.py). Later ones do, too, until a
process in the background (background.py) has found, proved and raced its program. What cannot be
traced, or returns memory of its arguments, runs as the original, after one warning that says where
and why.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from tessera.background import Helper
from tessera.call_keys import (
    Key,
    NoConstantError,
    array_key,
    family_of,
    quick_key,
    shapes_of,
    static_key,
    without_floats,
)
from tessera.clock import Clock
from tessera.contest import is_noisy, kept, key_of
from tessera.cuda import Held, is_capturing, is_device_array, is_tensor_or_device_array, standing
from tessera.direct_calls import Slot, call_order, direct_call, errors_wanted, slots
from tessera.entries import Entry, Status
from tessera.errors import (
    BadInputError,
    CancelledError,
    Error,
    Location,
    ToolMissingError,
    UnsupportedError,
    UsageError,
)
from tessera.frontends.environment import Environment
from tessera.frontends.numpy import require_rounding
from tessera.frontends.trace import bind_arguments, definition, trace_call
from tessera.frontends.traced import Traced
from tessera.function_like import FunctionLike
from tessera.options import Options, is_gpu
from tessera.race_processes import LostError
from tessera.result import Result
from tessera.tuner import Tuner
from tessera.types import Arguments, Function, Record, Value, dtype_name, is_plain_dtype

_MOST_VARIANTS = 8  # programs of one call form that differ in constants only
# Of sizes that vary the first have programs, others when they came so often, so many at most.
_FIRST_SIZES, _OFTEN, _MOST_SIZES = 3, 16, 64
_NUMPY = "plain NumPy"
_missing: set[str] = set()  # what has to be installed, said once a process
_MANY_STEPS = 100
_RECORDING_S = 0.02  # seconds of a first call after which its recording stops
_TRACING = 0.2  # of the budget: a race calls the function some times more

OptimizeTraced = Callable[..., Result]


class Optimized(FunctionLike):
    """A function that is replaced by its optimised program, one per structure of arguments."""

    def __init__(self, function: Function, options: Options, optimize: OptimizeTraced) -> None:
        super().__init__(function, options, optimize)
        self._known: dict[Hashable, Entry] = {}
        self._variants: Counter[Hashable] = Counter()
        self._warned = False
        self._tuner = Tuner(self._forked)
        self._on_gpu = is_gpu(options.target)
        # Without a cache there is nothing to take from another process; arrays of a GPU are none
        # that the original takes.
        self._waits = (options.wait or os.environ.get("TESSERA_WAIT", "0") != "0"
                       or self._on_gpu or not options.cache)  # fmt: skip
        self._swap = threading.Lock()
        self._told: Value = None  # for _fall_back, from the background
        self._refused = ""  # the last such reason
        # By what calls are alike in but for their extents: those that have programs.
        self._sizes: dict[Hashable, set[Hashable]] = {}
        self._others: Counter[Hashable] = Counter()  # calls of some that have none

    def _forked(self) -> None:
        """In a process that was forked: the next call has its programs made there."""
        self._swap = threading.Lock()
        self.forget()

    def _call_slowly(self, args: Arguments, kwargs: Record) -> Value:
        """A call that none of the direct ones fits: python/bindings/call.cpp tries those first."""
        if self._on_gpu:
            held: Held = {}
            like = standing((args, kwargs), held, is_tensor_or_device_array)
            for _, value in held.values():
                if not is_device_array(value):
                    raise BadInputError(
                        f"a tensor is on {value.device}, and the program runs on a GPU "
                        f'(target="{self._options.target}"): give x.cuda()'
                    )
            if held:
                return self._call_on_device(args, kwargs, *like)
        if errors_wanted():
            return self._function(*args, **kwargs)
        entry = self._entry(args, kwargs)
        if self._told is not None:
            told, self._told = self._told, None
            self._fall_back(*told)
        if entry is None:
            return self._function(*args, **kwargs)
        if entry.result is not None and not entry.seen:
            start = time.perf_counter()
            value = self._function(*args, **kwargs)
            self._look_at(value, time.perf_counter() - start, entry, args, kwargs)
            return value
        if entry.direct is not None:
            value = entry.direct(*args, **kwargs)
            if value is not NotImplemented:
                return value
        if entry.result is None or entry.floats:  # with floats: a zero or infinite one
            return self._function(*args, **kwargs)
        try:
            value = entry.result(*args, **kwargs)
            self._settle(entry, args, kwargs)
            return value
        except MemoryError:  # what the search had no time to compile is compiled at the first call
            self._fall_back("there is not memory enough to run its program")
            entry.result = None
            return self._function(*args, **kwargs)

    def _look_at(
        self, value: Value, seconds: float, entry: Entry, args: Arguments, kwargs: Record
    ) -> None:
        """Compares the original's own results with what the program promises, once, and the seconds
        that it took: source of it may have raced in its place, which may be slower."""
        assert entry.result is not None
        entry.seen = True
        try:
            _, leaves = bind_arguments(self._function, args, kwargs)
            given = [a for _, a in leaves if isinstance(a, np.ndarray)]
            entry.result.returns_like(value, [*given, *entry.environment.arrays()])
            choice = entry.result.choice
            if seconds < choice.seconds.get(choice.runs, 0.0):
                entry.result.run_function()
            if not entry.result.compiled:
                raise UnsupportedError(_not_compiled(entry.result, self._options.budget))
        except Error as error:
            self._fall_back(error)
            entry.result = entry.direct = None
            self._run_original(entry, args, kwargs)
        else:
            if entry.direct is not None:
                entry.settled = False
                entry.direct = None
                self._settle(entry, args, kwargs)
        self._remember(entry)

    def _settle(self, entry: Entry, args: Arguments, kwargs: Record) -> None:
        """Makes the direct call of a program that its first call has compiled."""
        if entry.direct is None and entry.result is not None and not entry.settled:
            entry.settled = True
            order = call_order(self._function, args, kwargs)
            known = slots(args, kwargs, order, entry.floats, entry.result.extra_arrays())
            entry.direct = entry.result.direct_call(known, entry.environment)
            self._remember(entry)

    def _call_on_device(
        self, args: Arguments, kwargs: Record, like: Arguments, named: Record
    ) -> Value:
        """A call with tensors or a device's arrays, on PyTorch's current stream (cuda.py).

        `like`, `named`: the arguments with arrays of the same types instead. The function itself
        takes no such arrays as a rule, so that what does not fit the program is an error that
        says what would.
        """
        entry = self._entry(like, named)
        if entry is None or entry.result is None:
            return self._function(*args, **kwargs)
        return entry.result(*args, **kwargs)

    def result(self, *args: Value, **kwargs: Value) -> Result | None:
        """The Result for such arguments; None where plain NumPy is used."""
        if self._on_gpu:
            args, kwargs = standing((args, kwargs), {}, is_tensor_or_device_array)
        entry = self._entry(args, kwargs)
        if entry is not None and entry.pending:
            self.wait()
        return None if entry is None else entry.result

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is under way in the background, at most so many seconds; whether
        that is so. The next call of a form then runs its program (after the original, once)."""
        return self._tuner.wait(timeout)

    def status(self) -> list[Status]:
        """What runs now, by form of call, the latest last."""
        entries = {id(e): e for e in self._known.values() if not e.failed}
        known = [entry.status() for entry in entries.values()]
        refused = [Status("other calls", "original", self._refused, None)] if self._refused else []
        return known + [s for s in refused if all(k.why != s.why for k in known)]

    # --- which program
    def _entry(self, args: Arguments, kwargs: Record) -> Entry | None:
        key = self._key(args, kwargs)
        if key is None:
            return None
        loose = without_floats(key)
        for k in (key, loose) if loose != key else (key,):
            entry = self._known.get(k)
            if entry is None or entry.failed:
                continue
            if entry.final or entry.environment.unchanged():
                if entry.pending:
                    self._tuner.go_on()
                self._remember(entry)
                return entry
        if self._on_gpu and is_capturing():
            raise UsageError(
                f"{getattr(self._function, '__qualname__', self._function)}: nothing is optimised "
                "while a CUDA graph is captured; call once with such arguments before"
            )
        if key in self._known:
            before = self._known[key]
            entry = self._known[key] = self._prepare_again(before, args, kwargs)
            before.stale |= entry is not before
        elif self._is_rare(key):
            return None
        else:
            entry = self._new_entry(key, loose, args, kwargs)
        self._remember(entry)
        return entry

    def _is_rare(self, key: Key) -> bool:
        """Whether calls of these extents run the original (which takes no arrays of a GPU)."""
        family = family_of(key) if len(self._sizes) < _MOST_SIZES else _MOST_SIZES
        extents, sizes = shapes_of(key), self._sizes.setdefault(family, set())
        if extents in sizes or self._on_gpu:
            return False
        self._others[extents] += len(sizes) >= _FIRST_SIZES
        if len(sizes) >= _MOST_SIZES or 0 < self._others[extents] < _OFTEN:
            self._refused = f"further sizes have programs when they came {_OFTEN} times"
            if len(self._others) > _MOST_SIZES:
                self._others.clear()
            return True
        sizes.add(extents)
        return False

    def _new_entry(self, key: Key, loose: Key, args: Arguments, kwargs: Record) -> Entry:
        """A program for a new form; where only floats are new, one that takes them as arguments."""
        family = shapes_of(key)
        self._variants[family] += 1
        tried = self._known.get(loose)
        if loose != key and self._variants[family] > 1 and not (tried and tried.failed):
            entry = self._prepare(args, kwargs, True)
            if entry.result is not None or entry.pending:
                self._known[loose] = entry
                return entry
        if self._variants[family] > _MOST_VARIANTS:
            self._fall_back(
                f"it was called with {_MOST_VARIANTS} different sets of constants, each a program "
                "of its own; pass what varies as an array"
            )
            return Entry(Environment())
        self._known[key] = self._prepare(args, kwargs, False)
        return self._known[key]

    def _prepare_again(self, before: Entry, args: Arguments, kwargs: Record) -> Entry:
        """A program where something outside has changed: the same one, if it reads the same."""
        if before.changes >= _MOST_VARIANTS:
            self._fall_back("what it reads from outside changes from call to call; pass it as an "
                            "argument")  # fmt: skip
            with self._swap:
                before.final = before.stale = True
                before.result = before.direct = None
            return before
        if before.result is not None and before.seen:
            with contextlib.suppress(Error):
                environment = Environment()
                traced = trace_call(
                    self._function, args, kwargs, False, environment, _RECORDING_S,
                    Clock(_TRACING * self._options.budget),
                )  # fmt: skip
                if before.result.takes_over(traced):
                    before.environment, before.direct, before.settled = environment, None, False
                    self._settle(before, args, kwargs)
                    return before
        entry = self._prepare(args, kwargs, False)
        entry.changes = before.changes + 1
        return entry

    def _remember(self, entry: Entry) -> None:
        with self._swap:
            call = getattr(self._function, "__call__", None)  # noqa: B004
            code = getattr(self._function, "__code__", getattr(call, "__code__", None))
            # The order of any names counts, which the preferred program does not look at.
            named = code is None or code.co_flags & inspect.CO_VARKEYWORDS
            if entry.direct is not None and not named and (entry.seen or entry.result is None):
                self.prefer(entry.direct)

    def _key(self, args: Arguments, kwargs: Record) -> Key:
        """What decides which program fits; None, with a warning, for what none can."""
        parts = [quick_key(a) for a in args]
        parts += [quick_key(a) for a in kwargs.values()]
        if None not in parts:
            return (len(args), tuple(kwargs), *parts)
        try:
            tree, leaves = bind_arguments(self._function, args, kwargs)
            for name, value in leaves:
                if not isinstance(value, np.ndarray):
                    raise UnsupportedError(f"{name} is {value!r}, which reads like a type")
                if not is_plain_dtype(value.dtype):
                    dtype_name(value.dtype)  # says why
            key = (static_key(tree), tuple(array_key(value) for _, value in leaves))
            hash(key)
            return key
        except Error as error:
            self._fall_back(error)
        except NoConstantError as error:
            self._fall_back(
                f"an argument is a {error}, which is neither an array nor a plain constant; pass "
                "the arrays and numbers that it stands for"
            )
        except TypeError as error:
            self._fall_back(f"an argument cannot be compared with later ones: {error}")
        return None

    # --- making a program
    def _prepare(self, args: Arguments, kwargs: Record, floats: bool) -> Entry:
        entry = self._optimized(args, kwargs, floats)
        if entry.result is None and not floats:
            self._run_original(entry, args, kwargs)
        return entry

    def _run_original(self, entry: Entry, args: Arguments, kwargs: Record) -> None:
        """Has calls of this form run the original, without asking each time."""
        known = slots(args, kwargs, call_order(self._function, args, kwargs))
        entry.direct = direct_call(known, entry.environment)
        if entry.direct is not None:
            entry.direct.run_function(self._function, None, True)

    def _optimized(self, args: Arguments, kwargs: Record, floats: bool) -> Entry:
        entry = Entry(Environment(), floats=floats, form=_form(args, kwargs))
        clock = Clock(self._options.budget)
        with self._failures_of(entry):
            traced = trace_call(
                self._function, args, kwargs, floats, entry.environment, _RECORDING_S,
                Clock(_TRACING * self._options.budget),
            )  # fmt: skip
            require_rounding(traced.calls, self._options.level)
            order = call_order(self._function, args, kwargs)
            known = slots(args, kwargs, order, floats, traced.extra)
            if self._waits:
                made = self._optimize(self._function, traced, self._options, clock=clock)
                self._adopt(entry, known, made)
            else:
                entry.pending, entry.why = True, "its program is being made in the background"
                helper = Helper()
                job = self._made_elsewhere(entry, traced, known, helper)
                self._tuner.add(job, helper)
        return entry

    def _made_elsewhere(
        self, entry: Entry, traced: Traced, known: Sequence[Slot] | None, helper: Helper
    ) -> Callable[[Callable[[], bool]], None]:
        """The job of making a program in the background."""

        def job(stop: Callable[[], bool]) -> None:
            if not entry.stale:
                with self._failures_of(entry):
                    graph, options = traced.graph, self._options
                    arrays = [*traced.arguments, *traced.extra]
                    key = key_of(self._function, graph, arrays, options)
                    held = "" if options.refresh else kept(key, noisy=True)
                    ask = functools.partial(helper.optimise, graph, arrays, options, key)
                    record = json.loads(held) if held else {}
                    improved = bool(record.get("improved"))
                    if not held:
                        held, improved = ask()
                    plain = options.replace(refresh=False, resume=False)
                    result = self._optimize(
                        self._function, traced, plain, held=held, improved=improved, stop=stop
                    )
                    self._adopt(entry, known, result)
                    if record and is_noisy(record):  # for the next process
                        with contextlib.suppress(LostError):
                            ask()
            entry.pending = False

        return job

    def _adopt(self, entry: Entry, known: Sequence[Slot] | None, result: Result) -> None:
        """Has the entry's calls run a program, from the next one on."""
        if result.interpreted:
            why = result.details["original_failed"]
            if not result.details["no_compiler"]:
                raise UnsupportedError(f"it has no compiled code that is right ({why})")
            if result.choice.runs != "source":
                raise ToolMissingError(why)
            self._told = (ToolMissingError(why), "NumPy source")
        direct = result.direct_call(known, entry.environment)
        if entry.floats and direct is None:
            return
        with self._swap:
            if entry.stale:
                return
            entry.direct, entry.result = direct, result
            if entry.pending:  # the original stands for it
                self.forget()

    @contextlib.contextmanager
    def _failures_of(self, entry: Entry) -> Iterator[None]:
        """What goes wrong while its program is made is told, and the original runs."""
        why: object = None
        try:
            with warnings.catch_warnings() if self._waits else contextlib.nullcontext():
                if self._waits:
                    warnings.simplefilter("ignore", RuntimeWarning)  # one is enough: ours
                yield
            return
        except CancelledError:
            if entry.pending:  # the program ends
                return
            raise KeyboardInterrupt from None
        except LostError as error:
            why = f"the process that makes its program ended early: {error}"
        except MemoryError:
            why = "there is not memory enough to try it beside the original"
        except Error as error:
            if entry.floats:
                return
            why = error
        except Exception as error:  # a bug, which is no reason to fail where the original works
            why = f"{type(error).__name__}: {error} (please report this)"
        entry.why = why.message if isinstance(why, Error) else str(why)
        if not entry.pending:
            self._fall_back(why)
        else:  # the next call tells
            self._told = (why,)
            self.forget()

    def _fall_back(self, reason: object, on: str = _NUMPY) -> None:
        """Warns, once, that the original runs, or source, and names line and reason."""
        why = reason.message if isinstance(reason, Error) else str(reason)
        if on == _NUMPY:
            self._refused = why
        if self._warned or why in _missing:
            return
        self._warned = True
        if isinstance(reason, ToolMissingError):
            _missing.add(why)
        name = getattr(self._function, "__qualname__", repr(self._function))
        place: Location | None = getattr(reason, "location", None) or definition(self._function)
        level = 2  # the caller's line: outside of this file
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename in (__file__, contextlib.__file__):
            frame = frame.f_back
            level += 1
        text = f"tessera: {name} runs as {on}: {f'{place}: ' if place else ''}{why}"
        warnings.warn(text, RuntimeWarning, stacklevel=level - 1)


def _not_compiled(result: Result, budget: float) -> str:
    many = len(result.original.ops)
    loops = f"it has {many} steps; write loops over elements as array operations"
    return f"its budget of {budget:g} s ended before it was compiled; give a larger budget=" + (
        f", or: {loops}" if many > _MANY_STEPS else ""
    )


def _form(args: Arguments, kwargs: Record) -> str:
    """A call for a reader: "f32[64,256], axis=-1"."""

    def text(value: Value) -> str:
        if isinstance(value, np.ndarray):
            return str(value.dtype) + str([*value.shape]).replace(" ", "")
        return repr(value)[:40]

    return ", ".join([*map(text, args), *(f"{name}={text(v)}" for name, v in kwargs.items())])
