"""What optimisation hands back: `Result`, something to call, with its evidence."""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from tessera import _core
from tessera.call_forms import FunctionCall, GraphCall
from tessera.candidate import Candidate
from tessera.contest import Choice, Key, choose
from tessera.cuda import DeviceRunner, Elsewhere
from tessera.direct_calls import Slot, direct_call, slots
from tessera.emit import compile_source
from tessera.errors import UnsupportedError, UsageError
from tessera.files import to_json, write_text
from tessera.frontends.environment import Environment
from tessera.frontends.traced import Traced, arguments, unflatten
from tessera.graph import Graph
from tessera.options import Level, Options
from tessera.race import Entrant
from tessera.runner import Runner, given_outputs
from tessera.special_values import differs_at_edges
from tessera.types import Array, Fields, Function, Object, Record, Value, Values, dtype_name

# Of the option `disable`: all that looks for other programs.
ENGINES = ("synth", "mugraph", "patterns", "mutate", "cover", "fold")
# Of the core's report what `json` tells as it is.
_TOLD = """target device not_measured model threads too_noisy search_s verify_s compile_s check_s
    total_s subprograms cover from_cache""".split()  # noqa: SIM905


class Result:
    """An optimised program: call it like the original; see why it is equal and how fast it is."""

    def __init__(self, record: Fields, call: GraphCall | FunctionCall) -> None:
        self.original = Graph.from_core(record["original"])
        self.graph = Graph.from_core(record["graph"])
        if isinstance(call, GraphCall):
            self.original.weights = self.graph.weights = call.weights
            self.original.output_names = self.graph.output_names = call.output_names
            self.original.opaque = self.graph.opaque = call.opaque
        self.improved: bool = record["improved"]
        # Over the original as plain compilation makes it, fused operators included.
        self.speedup: float = record["speedup"]
        self.candidates = [Candidate.of(c) for c in record["candidates"]]
        self.details: Record = record["report"]
        self.timeline: list[Record] = record.get("timeline", [])  # the run as it went
        self.interrupted: bool = record["interrupted"]
        self.original_us: float = record["original_s"] * 1e6
        self.original_least_us: float = record["original_least_s"] * 1e6  # 0: remembered
        self.original_spread: float = record["original_spread"]
        self.measured_us: float = record["seconds"] * 1e6
        # Evidence that the program equals the original; None where it is the original.
        self.certificate: _core.Certificate | None = record["certificate"]
        self._module: _core.Module | None = record["module"]
        self._call = call
        self.choice = Choice("kernel")  # what runs
        self._direct: _core.Call | None = None
        self._source: Function | None = None
        self._run: Callable[..., list[Array]]
        # The code of a program for a GPU, with its module where the device is here.
        self.device_code: _core.CudaCode | None = record.get("cuda")
        self._target: str = record.get("requested", "cpu")
        self._level: Level = record.get("level", "close")
        self._frozen: bool = record.get("freeze", False)
        # Decisions of the compiler that stay off if code is made later, too.
        self._plan_off = [n for n in record.get("disable", ()) if n.startswith("plan:")]
        if self._module is not None or self.device_code is not None:
            self._run = self.runner()
        elif self.details["unfinished"]:
            self._run = self._compile_original
        else:
            self._run = self._interpret
            if isinstance(call, GraphCall):
                self.warn_of_no_code()

    def runner(self) -> Callable[..., list[Value]]:
        """What runs the program, apart from this result: runner(arrays) → its results, in order.

        It has prepared weights of its own, and keeps what it prepared for the sets it saw last; a
        CUDA graph that was captured from its calls needs it to stay alive.
        """
        if self._module is not None:
            return Runner(self._module, self._call.names, self._frozen)
        if self.device_code is None:
            return self._run
        if self.device_code.module is not None:
            return DeviceRunner(self.device_code.module, self._call.names, self._frozen)
        return Elsewhere(self.device_code.arch, self.details["not_measured"])

    def warn_of_no_code(self) -> None:
        """Tells what calls run instead of kernels, if there are none."""
        if not self.interpreted:
            return
        runs = {"kernel": "are interpreted", "function": "run the function itself"}
        warnings.warn(
            f"{self.original.name}: there are no kernels ({self.details['original_failed']}); "
            f"calls {runs.get(self.choice.runs, 'run NumPy source')}",
            RuntimeWarning,
            stacklevel=3,
        )

    def __call__(self, *args: Object, out: Object = None, **kwargs: Object) -> Value:
        """Runs the optimised program on arrays, by position or by name.

        `out`: an array (of several results a tuple, in the order of the program's outputs) to write
        to and return instead of new ones: NumPy arrays or CPU tensors of exactly the results'
        types, contiguous. One may be an argument's own memory where the plan proves that safe;
        any other overlap is refused. A program with an argument called `out` takes it for that.
        """
        if out is not None:
            if "out" in self._call.names:
                kwargs["out"] = out
            else:
                self._run(self._call.arrays(args, kwargs), out)
                return out
        if self._direct is not None:
            value = self._direct(*args, **kwargs)
            if value is not NotImplemented:
                return value
        arrays = self._call.arrays(args, kwargs)
        if not self._inside(arrays):
            return self._call.function(*args, **kwargs)  # type: ignore[union-attr]
        if (
            self.choice.runs != "kernel"
            and isinstance(self._call, FunctionCall)
            and (not isinstance(self._run, Runner) or self._run.fits(arrays))
        ):
            if self._source is None:
                return self._call.function(*args, **kwargs)
            return self._call.of_source(self._source(*arrays))
        return self._call.result(self._run(arrays))

    def hold_contest(
        self, options: Options, seconds: float = math.inf, held: str = "", key: Key | None = None
    ) -> None:
        """Has the kernels, NumPy source and the function itself race, and runs who wins.

        `seconds` are left for a search. `held`, `key`: see contest.choose."""
        if self.on_gpu or not isinstance(self._call, FunctionCall):
            return
        if not self.compiled or (self.interpreted and not self.details["no_compiler"]):
            self.choice = Choice("function")  # meanwhile, or for good
            return
        traced, call = self._call.traced, self._call
        arrays = arguments(traced.graph, traced, options.seed)
        bitwise = options.level == "bitwise" and not self.interpreted
        if bitwise and (why := self._other_bits(arrays, options.seed)):
            self.graph, self.improved, self.certificate = self.original, False, None
            self.details["original_failed"] = f"level bitwise: {why}"
            self._run, self.choice = self._interpret, Choice("function")
            return
        args, kwargs = unflatten(traced.tree, arrays)
        floats = any(isinstance(a, (float, np.generic)) for a in traced.arguments)
        places = slots(args, kwargs, [*range(len(args)), *kwargs], floats, traced.extra)

        def kernel() -> Callable[[], Value]:
            direct = self.direct_call(places, None)
            if direct is not None:
                return functools.partial(direct, *args, **kwargs)
            return lambda: call.result(self._run(arrays))

        def as_call(function: Function, as_given: bool) -> Callable[[], Value]:
            direct = direct_call(places, None)
            if direct is not None:
                direct.run_function(function, self._finish_source(as_given), as_given)
                return functools.partial(direct, *args, **kwargs)
            if as_given:
                return functools.partial(function, *args, **kwargs)
            return lambda: call.of_source(function(*arrays))

        entrant = None if self.interpreted else self.as_entrant(kernel())
        self.choice = choose(
            call.function, traced, arrays, entrant, as_call, options, seconds, held, key
        )
        if self.choice.graph is not None:
            self._source = compile_source(self.choice.source, self.choice.name)
            self.graph = self.choice.graph
            self.certificate = self.choice.certificate
        self._direct = self.direct_call(places, None)

    @property
    def on_gpu(self) -> bool:
        """Whether calls run on a GPU, here or elsewhere."""
        return isinstance(self._run, (DeviceRunner, Elsewhere))

    def as_entrant(self, run: Callable[[], Value] | None = None) -> Entrant:
        """Its kernels in a race: in a process of their own, or called by `run` in this one."""
        text = {"graph": str(self.graph), "disable": self._plan_off,
                "exact": self._level == "bitwise"}  # fmt: skip
        return Entrant(run, f"tessera:{self.details['threads']}", text)

    def _other_bits(self, arrays: Values, seed: int) -> str:
        """Where the kernels' results have other bits than the function's own; empty: nowhere."""
        call = cast(FunctionCall, self._call)
        given = len(arrays) - len(call.traced.extra)

        def function(*varied: Object) -> Value:
            args, kwargs = unflatten(call.traced.tree, [*varied, *arrays[given:]])
            return call.function(*args, **kwargs)

        def kernels(*varied: Object) -> Value:
            return call.result(self._run([*varied, *arrays[given:]]))

        return differs_at_edges(function, kernels, arrays[:given], seed, bits=True)

    def _finish_source(self, as_given: bool) -> Function | None:
        call = self._call
        if as_given or not isinstance(call, FunctionCall) or call.finish is None:
            return None
        return call.of_source

    def direct_call(
        self, known: Sequence[Slot] | None, environment: Environment | None
    ) -> _core.Call | None:
        """What runs for arguments like these, without detours; None where there is none."""
        call, run = self._call, self._run
        if not isinstance(call, FunctionCall) or not (isinstance(run, Runner) or self.interpreted):
            return None
        direct = direct_call(known, environment)
        if direct is None or known is None:
            return None
        if self.choice.runs == "function":
            direct.run_function(call.function, None, True)
        elif call.traced.check is not None:
            direct.run_function(self._run_checked, None, False)
        elif self._source is not None:
            direct.run_function(self._source, self._finish_source(False), False)
        else:
            packed = all(slot[5] == 0 for slot in known)
            seconds = self.measured_us * 1e-6
            if not (packed and isinstance(run, Runner) and run.aim(direct, call.finish, seconds)):
                direct.run_function(lambda *arrays: call.result(self._run(arrays)), None, False)
        return direct

    def extra_arrays(self) -> list[Array]:
        """What a traced function takes from outside, behind its arguments."""
        return self._call.traced.extra if isinstance(self._call, FunctionCall) else []

    def _inside(self, arrays: Values) -> bool:
        """Whether no index is out of bounds; the function itself knows what to raise."""
        check = self._call.traced.check if isinstance(self._call, FunctionCall) else None
        return check is None or isinstance(self._run, DeviceRunner) or check(arrays)

    def _run_checked(self, *arrays: Object) -> Value:
        call = cast(FunctionCall, self._call)
        if not self._inside(arrays):
            args, kwargs = unflatten(call.traced.tree, arrays)
            return call.function(*args, **kwargs)
        if self._source is not None:
            return call.of_source(self._source(*arrays))
        return call.result(self._run(arrays))

    def returns_like(self, value: Object, given: Sequence[Array]) -> None:
        """Learns the order of axes from what the original returned; see FunctionCall."""
        assert isinstance(self._call, FunctionCall)
        self._call.returns_like(value, given)

    def run_function(self) -> None:
        """Has calls run the function itself, which is faster than was thought."""
        self.choice.runs = "function"
        self._source = self._direct = None

    def takes_over(self, traced: Traced) -> bool:
        """Has the program run with other arrays from outside, where it is the same for them."""
        call = self._call
        same = traced.graph == self.original
        return isinstance(call, FunctionCall) and same and call.takes_over(traced)

    def refresh(self) -> None:
        """Computes again what was kept from weights, after the caller changed frozen ones.

        What depends on weights alone (`Graph.input(..., weight=True)`, option `weights`) is folded
        and packed once for their values, which each call looks at. With the option `freeze` none
        does: they are known by identity.
        """
        if isinstance(self._run, (Runner, DeviceRunner)):
            self._run.refresh()

    def __reduce__(self) -> Value:
        raise TypeError(
            "a Result holds machine code of this process and cannot be pickled; save the program "
            'with result.save("k.ug"), or pickle result.graph'
        )

    def run_arrays(self, arrays: Values, out: Values | None = None) -> list[Array]:
        """Runs on the arrays of the program's inputs, in order; all outputs as a list."""
        return self._run(arrays, out)

    def _compile_original(self, arrays: Values, out: Object = None) -> list[Array]:
        """The first call of a program whose compiled code the budget left no time for."""
        self.hold_contest(self._finish_compiling())
        return self._run(arrays, out)

    def _finish_compiling(self) -> Options:
        """Compiles and checks the original, however long that takes; with these options."""
        options = Options(
            target=self._target,
            budget=1e6,
            disable=(*ENGINES, *self._plan_off),
            level=self._level,
            cache=False,
            threads=self.details["threads"],
        )
        fields = {**options.fields(), "special": self.original.asks_for_nan}
        record = _core.optimize(self.original.core, fields)
        self._module, self.device_code = record["module"], record["cuda"]
        if self._module is not None or self.device_code is not None:
            self._run = self.runner()
        elif record["interrupted"]:
            raise KeyboardInterrupt
        else:
            self.details["original_failed"] = record["report"]["original_failed"]
            self._run = self._interpret
            self.warn_of_no_code()
        return options

    def _interpret(self, arrays: Values, out: Object = None) -> list[Array]:
        types = self.original.input_types().values()
        results = self.original.run(
            *(np.asanyarray(array, dtype) for array, (dtype, _) in zip(arrays, types, strict=True))
        )
        if out is None:
            return results
        given = given_outputs(out, [(r.dtype, r.shape) for r in results])
        for to, result in zip(given, results, strict=True):
            to[...] = result
        return given

    @property
    def compiled(self) -> bool:
        """Whether the budget left time for compiling."""
        return self._run != self._compile_original

    @property
    def interpreted(self) -> bool:
        """Whether calls are interpreted, because the original has no code that passed its check."""
        return self._run == self._interpret

    @property
    def source(self) -> str:
        """What runs: NumPy where source of it was faster than kernels, else the generated C++.

        Empty where calls are interpreted.
        """
        return self.choice.source or self.kernel_source

    @property
    def kernel_source(self) -> str:
        """The generated C++ or CUDA; empty where calls are interpreted."""
        if self.device_code is not None:
            return self.device_code.source
        return self._module.source if self._module is not None else ""

    @property
    def kernels(self) -> list[Record]:
        """Grid, threads, registers and shared memory of each kernel of a program for a GPU.

        One whose asynchronous products the compiler makes wait has its reason as `serialized`.
        What a library does instead has `library`, its name, and `call`, what it is asked for.
        """
        return self.device_code.kernels if self.device_code is not None else []

    @property
    def weights(self) -> list[str]:
        """Names of the inputs that keep their values from call to call."""
        core = self.original.core
        return [t.name for t in self.original.inputs if core.is_weight(t.id)]

    @property
    def prepared_bytes(self) -> int:
        """Memory that folded and packed weights take, per set of arrays."""
        module = self._module if self.device_code is None else self.device_code.module
        return module.prepared_bytes if module is not None else 0

    @property
    def plan(self) -> str:
        """Buffers and order of the kernels, as text; empty where calls are interpreted."""
        return self._module.plan if self._module is not None else ""

    def save(self, path: str | Path) -> None:
        """Writes the program (`.ug`, with its certificate as comments) or its source.

        Source is `.cpp`, or `.cu` of a program for a GPU, which nvcc compiles by itself.
        """
        path = Path(path)
        sources = (".cpp", ".cc", ".c") if self.device_code is None else (".cu", ".cuh")
        if path.suffix == ".ug":
            lines = [] if self.certificate is None else str(self.certificate).splitlines()
            text = "".join(f"// {line}".rstrip() + "\n" for line in lines)
            write_text(path, text + str(self.graph))
        elif path.suffix in sources:
            if self._run == self._compile_original:
                self._finish_compiling()
            if not self.kernel_source:
                why = self.details["original_failed"]
                raise UnsupportedError(
                    f"save: there is no code for '{path}' ({why}); a .ug holds the program"
                )
            if self._module is not None and (calls := self._module.host_calls):
                raise UnsupportedError(
                    f"save: '{path}' would lack what this process computes for the program: "
                    f"{', '.join(dict.fromkeys(calls))}; a .ug holds the program"
                )
            write_text(path, self.kernel_source)
        else:
            raise UsageError(f"save: '{path}' must end in .ug (program) or {sources[0]} (source)")

    def report(self, path: str | Path, seconds: float = 20.0) -> None:
        """Writes one HTML page about this optimisation; it needs neither network nor other files.

        For `.json` it writes the page's data, from which `tessera report` makes the page. Installed
        libraries are timed beside the result for so many seconds at most.
        """
        from tessera.report import page, record  # which write ONNX models, too

        path = Path(path)
        if path.suffix not in (".html", ".htm", ".json"):
            raise UsageError(f"report: '{path}' must end in .html (page) or .json (its data)")
        data = record(self, seconds)
        write_text(path, to_json(data) + "\n" if path.suffix == ".json" else page(data))

    def json(self) -> Record:
        """Everything measured and proved, as plain data."""
        searches = self.details["searches"]
        pruned: Counter[str] = Counter()
        for search in searches:
            pruned.update(search["pruned"])
        counts = ("values", "edges", "graphs", "tilings", "states")
        total = {key: sum(s[key] for s in searches) for key in counts}
        return {
            "program": self.original.name,
            **{name: self.details[name] for name in _TOLD},
            "shape": {n: list(s) for n, (_, s) in self.original.input_types().items()},
            "dtype": {n: dtype_name(d) for n, (d, _) in self.original.input_types().items()},
            "bodies": list(self.details["bodies"]),
            "kernels": self.kernels,
            "verdict": "equal" if self.improved else "original",
            "improved": self.improved,
            "speedup": self.speedup,
            "original_us": self.original_us or None,  # kept, with no time left to measure it
            "original_least_us": self.original_least_us or None,
            "original_spread": self.original_spread if self.original_least_us else None,
            "ours_us": self.measured_us or None,
            "choice": self.choice.json(),
            "tune_s": self.details["measure_s"],
            "stop": [s["stop"] for s in searches],
            **total,
            "pruned": dict(pruned),
            "weights": self.weights,
            "prepared_bytes": self.prepared_bytes,
            "interrupted": self.interrupted,
            "candidates": [c.json() for c in self.candidates],
            "certificate": str(self.certificate) if self.certificate is not None else None,
            "graph": str(self.graph),
        }

    def __repr__(self) -> str:
        kernels = sum(op["op"] == "kernel" for op in self.graph.ops)
        state = f"{self.speedup:.2f}x, {kernels} kernel(s)" if self.improved else "original kept"
        if self.choice.runs != "kernel":
            state = f"{self.choice.runs} under NumPy"
        return f"<Result {self.original.name}: {state}>"
