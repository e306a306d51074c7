"""Where programs come from: `.ug` files, Python files with a function or graph, ONNX models.

A Python file is a program that the user asks to run. Its function's argument types come from, in
this order: `--shape NAME=TYPE`; `example_inputs` in the file (a dict, or a function that returns
one, of arrays or types); annotations such as `X: "f32[16,1024]"`; STENSO's `arg_ranks`; the first
call that the file makes when it runs, as a module or as a script.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from tessera.emit import LARGEST_CONSTANT
from tessera.errors import (
    BadInputError,
    Error,
    Location,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from tessera.extents import symbols_of
from tessera.files import read_stdin, read_text
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Spec, Traced
from tessera.frontends.traced import arguments as random_arguments
from tessera.graph import Graph
from tessera.script_calls import OwnCalls, Seen
from tessera.types import Array, Fields, Function, Object, Record, Value, parse_type


@dataclass
class Program:
    """A program and, if it came from Python, the function behind it with its argument types."""

    graph: Graph
    traced: Traced | None = None
    function: Function | None = None

    @property
    def constants(self) -> dict[str, Array]:
        """Small arrays that the function makes itself, by the name of the input they became."""
        return {
            n: a
            for n, a in self.data.items()
            if n.startswith("inner") and a.size <= LARGEST_CONSTANT
        }

    @property
    def data(self) -> dict[str, Array]:
        """All arrays that the function makes or finds outside, by the name of their input."""
        if self.traced is None:
            return {}
        names = list(self.graph.input_types())[len(self.traced.arguments) :]
        return dict(zip(names, self.traced.extra, strict=True))


def load(path: str | Path) -> Graph:
    """Reads a program from a `.ug` or `.onnx` file, or from `file.py` or `file.py:name`.

    The initialisers of an ONNX model become the program's weights; frontends.onnx.load takes
    shapes and values of its inputs.
    """
    return load_program(str(path), {}).graph


def load_program(source: str, shapes: Mapping[str, str], whole: bool = False) -> Program:
    """Reads SRC of the command line; `shapes` gives types to arguments by name; `whole` is
    frontends.onnx.load's."""
    if source == "-":
        return Program(_with_extents(Graph.parse(read_stdin(), "<stdin>"), shapes))
    path, _, name = source.partition(":") if ".py:" in source else (source, "", "")
    suffix = Path(path).suffix
    if not Path(path).exists():
        raise NotFoundError("no such file", Location(path))
    if suffix == ".ug":
        return Program(_with_extents(Graph.parse(read_text(Path(path)), path), shapes))
    if suffix == ".py":
        return _load_python(Path(path), name, shapes)
    if suffix == ".onnx":
        return Program(_load_onnx(path, shapes, whole))
    raise UsageError(f"'{path}' is neither .py, .onnx nor .ug, so its format is not known")


def _load_onnx(path: str, given: Mapping[str, str], whole: bool) -> Graph:
    """`given`: extents of symbols (N=8) and types of inputs (x=f32[1,3,224,224])."""
    from tessera.frontends.onnx import load as load_onnx

    extents = {name: int(text) for name, text in given.items() if text.isdecimal()}
    shapes = {name: parse_type(text)[1] for name, text in given.items() if not text.isdecimal()}
    return load_onnx(path, shapes=shapes, extents=extents, whole=whole)


def _with_extents(graph: Graph, shapes: Mapping[str, str]) -> Graph:
    """Binds symbols by `N=128`; input types of a text program are its own business."""
    extents = {}
    symbols = sorted(symbols_of([dims for _, dims in graph.input_types().values()]))
    for name, text in shapes.items():
        if not text.isdecimal():
            raise UsageError(
                f"--shape {name}={text}: a .ug program has its types in the file; "
                "only symbols can be given, for example --shape N=128"
            )
        if name not in symbols:
            known = f"its symbols are {', '.join(symbols)}" if symbols else "it has no symbols"
            raise UsageError(f"--shape {name}={text}: there is no '{name}' in the program; {known}")
        extents[name] = int(text)
    return graph.bind(**extents) if extents else graph


def run_file(path: Path, name: str = "") -> Record:
    """Runs a Python file as a module (of a name) and returns its names; errors name its line."""
    text = read_text(path)  # existence, permissions and encoding, with our messages
    if "\0" in text:  # of which Python before 3.11.4 says ValueError
        raise BadInputError("not valid Python: it holds a NUL character", Location(str(path)))
    spec = importlib.util.spec_from_file_location(name or f"_tessera_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with _own_surroundings(path.resolve().parent), _numpy_for_jax(text, path):
            sys.modules[spec.name] = module
            if name:
                sys.argv[:] = [str(path)]
            spec.loader.exec_module(module)
    except (Error, KeyboardInterrupt, Seen):
        raise
    except SyntaxError as error:
        where = Location(error.filename or str(path), error.lineno or 0, error.offset or 0)
        raise BadInputError(f"not valid Python: {error.msg}", where) from None
    except BaseException as error:  # SystemExit, and whatever a file makes of its own
        files = (str(path), str(path.absolute()))
        own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
        where = Location(str(path), own[-1].lineno or 0 if own else 0)
        raise BadInputError(f"running it failed: {type(error).__name__}: {error}", where) from error
    return vars(module)


@contextmanager
def _own_surroundings(folder: Path) -> Iterator[None]:
    """Lets a file import its neighbours, and undoes what it does to the process it runs in.

    What it prints goes to standard error: standard output is ours, `--json` above all.
    """
    before = list(sys.path), list(sys.argv), sys.stdout, sys.stderr, sys.stdin
    main = sys.modules["__main__"]
    limit = sys.getrecursionlimit()
    here = os.getcwd()
    sys.path.insert(0, str(folder))
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        sys.path[:], sys.argv[:], sys.stdout, sys.stderr, sys.stdin = before
        sys.setrecursionlimit(limit)
        os.chdir(here)


@contextmanager
def _numpy_for_jax(text: str, path: Path) -> Iterator[None]:
    """STENSO's programs import jax.numpy, whose functions mean here what NumPy's do."""
    if not re.search(r"^arg_ranks\b", text, re.MULTILINE) or "jax" not in text:
        yield
        return
    names = ("jax", "jax.numpy")
    before = {n: sys.modules.pop(n, None) for n in names}
    stand_in = ModuleType("jax")
    stand_in.numpy = np  # type: ignore[attr-defined]
    sys.modules.update({"jax": stand_in, "jax.numpy": np})
    try:
        yield
    except (ImportError, AttributeError) as error:
        if "jax" not in str(error):
            raise
        raise BadInputError(
            f"{error}: of jax, a file with arg_ranks is given jax.numpy only (NumPy in its place); "
            "write the kernel with jax.numpy's functions, or drop arg_ranks and install jax",
            Location(str(path)),
        ) from error
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def _stenso_types(path: Path, ranks: Object, parameters: Sequence[str]) -> dict[str, str]:
    """The types of STENSO's evaluation: f32, 200 in every dimension, or 1000 if all are vectors."""
    if (
        not isinstance(ranks, (list, tuple))
        or len(ranks) != len(parameters)
        or not all(isinstance(r, int) and 0 <= r <= 8 for r in ranks)
    ):
        raise BadInputError(
            f"arg_ranks must be a list of {len(parameters)} ranks, one per argument of the kernel "
            f"({', '.join(parameters)}), not {ranks!r}",
            Location(str(path)),
        )
    extent = 200 if max(ranks, default=0) >= 2 else 1000
    types = (f"f32[{','.join([str(extent)] * rank)}]" for rank in ranks)
    return dict(zip(parameters, types, strict=True))


def _load_python(path: Path, name: str, shapes: Mapping[str, str]) -> Program:
    calls = OwnCalls(path)
    with calls.watch():
        names = run_file(path)
    target = _choose(path, names, name)
    if isinstance(target, Graph):
        return Program(_with_extents(target, shapes))
    function = inspect.unwrap(target)
    arguments = _argument_types(path, names, function, shapes, calls)
    traced = trace_call(function, (), arguments)
    return Program(traced.graph, traced, function)


def _choose(path: Path, names: Fields, name: str) -> Value:
    if name:
        if name not in names:
            raise NotFoundError(f"there is no '{name}' in this file", Location(str(path)))
        if not isinstance(names[name], Graph) and not callable(names[name]):
            raise BadInputError(f"'{name}' is neither a function nor a Graph", Location(str(path)))
        return names[name]
    candidates = _candidates(path, names)
    if len(candidates) > 1:
        choice = ", ".join(f"{path}:{c}" for c in candidates)
        raise UsageError(f"{path} defines several programs; name one of {choice}")
    return names[candidates[0]]


def programs_in(path: Path) -> list[str]:
    """Names of the programs that a file of Python defines, of which `load_program` takes one."""
    with OwnCalls(path).watch():
        return _candidates(path, run_file(path))


def _candidates(path: Path, names: Fields) -> list[str]:
    """Graphs, or else decorated functions, or else functions."""
    module = f"_tessera_{path.stem}"
    graphs = [n for n, v in names.items() if isinstance(v, Graph)]
    marked = [n for n, v in names.items() if getattr(v, "is_tessera_function", False)]
    own = [n for n, v in names.items() if inspect.isfunction(v) and v.__module__ == module]
    functions = [n for n in own if not n.startswith("_") and n != "example_inputs"]
    for candidates in (graphs, marked, functions):
        if candidates:
            return candidates
    raise BadInputError("there is neither a function nor a Graph in this file", Location(str(path)))


def _seen(path: Path, function: Function, calls: OwnCalls) -> tuple[Record, str]:
    """The arguments of the file's first call of a function, or why there are none."""
    if (seen := calls.of(function)) or "__main__" not in read_text(path):
        return seen, "" if seen else "the file does not call it"
    try:
        with calls.watch(awaited=function):
            run_file(path, "__main__")
    except Error as error:
        return {}, f"as a script the file fails: {error.message}"
    return calls.of(function), "the file does not call it, nor as a script without arguments"


def _argument_types(
    path: Path, names: Fields, function: Function, shapes: Mapping[str, str], calls: OwnCalls
) -> Record:
    parameters = dict(inspect.signature(function).parameters)
    for given in shapes:
        if given not in parameters:
            raise UsageError(
                f"--shape {given}=…: {function.__name__} has no parameter '{given}', "
                f"only {', '.join(parameters)}"
            )
    examples = names.get("example_inputs", {})
    if callable(examples):
        examples = examples()
    if not isinstance(examples, Mapping):
        raise BadInputError(
            "example_inputs must be a dict from parameter names to arrays or types",
            Location(str(path)),
        )
    ranks = names.get("arg_ranks")
    stenso = {} if ranks is None else _stenso_types(path, ranks, list(parameters))
    line = getattr(function, "__code__", None)
    where = Location(str(path), line.co_firstlineno if line else 0)
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {name: p for name, p in parameters.items() if p.kind not in rest}
    known: Record = {}
    for name, parameter in parameters.items():
        value = shapes.get(name, examples.get(name))
        if value is None and isinstance(parameter.annotation, str) and "[" in parameter.annotation:
            value = parameter.annotation.strip("'\"")
            if not value[:1].islower() or "." in value:
                value = None
        if (value := stenso.get(name) if value is None else value) is not None:
            known[name] = value
    required = [name for name, p in parameters.items() if p.default is p.empty]
    if any(name not in known for name in required):
        seen, why = _seen(path, function, calls)
        for name, parameter in parameters.items():
            if name not in known and name in seen and seen[name] is not parameter.default:
                if isinstance(seen[name], str):
                    raise UnsupportedError(f"{name} of {function.__name__} is text", where)
                known[name] = seen[name]
        if missing := [name for name in required if name not in known]:
            raise BadInputError(
                f"the type of argument {missing[0]} of {function.__name__} is not known; pass "
                f"--shape {missing[0]}=f32[16,1024], annotate it as {missing[0]}: "
                '"f32[16,1024]", or define example_inputs or arg_ranks in the file'
                f" ({why})",
                where,
            )
    if any(parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY for name in known):
        raise UnsupportedError(f"{function.__name__} has positional-only parameters", where)
    return {n: Spec.parse(v) if isinstance(v, str) else v for n, v in known.items()}


def example_arrays(graph: Graph, seed: int = 0) -> list[Array]:
    """Random arguments for a program: standard normal floats, small integers."""
    for name, (_, shape) in graph.input_types().items():
        if any(isinstance(d, str) for d in shape):
            raise BadInputError(
                f"argument {name} has symbolic extents; give them, for example --shape N=128"
            )
    return random_arguments(graph, None, seed)
