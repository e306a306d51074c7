"""Tracing: runs a NumPy function once on Tensors and keeps what it did as a Graph.

What runs is a copy that reads copies of what is outside (frontends/sandbox.py), so that tracing has
no effects. Arrays from outside become arguments of the program, arrays that the function makes
itself become constants.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tessera import _core
from tessera.clock import Clock, Interrupted
from tessera.emit import compile_source, emit
from tessera.errors import BadInputError, Error, Location, UnsupportedError, watched
from tessera.frontends.constants import CONSTANTS
from tessera.frontends.environment import Environment, is_same
from tessera.frontends.intercept import instead
from tessera.frontends.number import Number, is_stand_in
from tessera.frontends.sandbox import Sandbox
from tessera.frontends.traced import (
    TYPE_TEXT,
    Leaf,
    Named,
    Node,
    Spec,
    Static,
    Traced,
    Tree,
    alike,
    ends,
    flatten,
    mapped,
    unflatten,
)
from tessera.frontends.tracing_graph import TracingGraph
from tessera.graph import Graph
from tessera.ops.index import are_inside
from tessera.ops.masked import Masked
from tessera.tensor import _NUMPY, _PACKAGE, Tensor
from tessera.types import Fields, Function, Object, Record, Values, require_plain


def _is_array(value: Object) -> bool:
    if isinstance(value, np.ndarray):
        require_plain(value)
        return True
    is_type = isinstance(value, str) and TYPE_TEXT.fullmatch(value) is not None
    return is_type or isinstance(value, Spec)


# Of these dtypes scalars of NumPy can be arguments of a program.
FLOAT_SCALARS = (np.float64, np.float32, np.float16)


def _is_array_or_float(value: Object) -> bool:
    return type(value) in (float, *FLOAT_SCALARS) or _is_array(value)


# --- tracing ----------------------------------------------------------------------------------


def bind_arguments(
    function: Function, args: Values, kwargs: Fields, floats: bool = False
) -> tuple[Tree, list[Named]]:
    """The arguments of a call as a tree over named arrays; `floats`: and over numbers that are."""
    is_leaf = _is_array_or_float if floats else _is_array
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins without a signature
        names = [f"arg{i}" for i in range(len(args))]
    else:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadInputError(f"{_name(function)}: {error}", definition(function)) from None
        args, kwargs = bound.args, bound.kwargs
        names = []
        for p in signature.parameters.values():
            if p.kind is p.VAR_POSITIONAL:
                names += [f"{p.name}_{i}" for i in range(len(args) - len(names))]
            elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                names.append(p.name)
        names = names[: len(args)]
    leaves: list[Named] = []
    positional = [flatten(v, n, leaves, is_leaf) for n, v in zip(names, args, strict=True)]
    keyword = [flatten(v, n, leaves, is_leaf) for n, v in kwargs.items()]
    tree = Node(tuple, (Node(tuple, tuple(positional)), Node(dict, tuple(keyword), tuple(kwargs))))
    return tree, leaves


def _name(function: Function) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() and name.isascii() else "program"


def definition(function: Function) -> Location | None:
    """Where a function is defined, if Python knows."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Location(code.co_filename, code.co_firstlineno) if code else None


def _refused(function: Function, what: str) -> UnsupportedError:
    """That a function is or does what no program can."""
    return UnsupportedError(f"{_name(function)} {what}", definition(function))


def _input_names(names: Sequence[str]) -> list[str]:
    """Names that the text format accepts, all different."""
    result: list[str] = []
    for i, name in enumerate(names):
        clean = re.sub(r"[^A-Za-z0-9_]", "_", name)
        if not re.match(r"[A-Za-z_]", clean) or clean in result:
            clean = f"arg{i}"
        result.append(clean)
    return result


def _run(function: Function, tree: Tree, leaves: Sequence[Named], environment: Environment,
         fills: bool, frozen: bool, seconds: float,
         clock: Clock) -> tuple[TracingGraph, Tree, Sandbox]:  # fmt: skip
    graph = TracingGraph(_name(function), seconds, clock)
    tensors: list[Tensor | Number] = []
    for name, (_, value) in zip(_input_names([n for n, _ in leaves]), leaves, strict=True):
        if type(value) is float:
            tensor = graph.input(name, (), np.float64)
            tensor.weak = True
        else:
            tensor = graph.input(name, value.shape, value.dtype)
        if isinstance(value, (float, np.generic)):
            tensor.form = "scalar"
        tensors.append(Number(tensor) if tensor.weak else tensor)
    sandbox = Sandbox(environment, graph.outer, frozen, instead(graph, fills))

    def admitted(end: Leaf | Static) -> Tree:  # what is neither an array nor a constant: classes
        return Static(sandbox.admit(end.value, "an argument")) if type(end) is Static else end

    tree = mapped(tree, admitted)
    args, kwargs = unflatten(tree, tensors)
    try:
        with watched() as refused:
            traced = sandbox.admit(function, _name(function))
            result = clock.run(lambda: traced(*args, **kwargs))
        if refused:  # and the function went on: it has handlers for exceptions
            raise refused[0]
        _require_same_arguments(tree, tensors, (args, kwargs), function)
    except Interrupted:
        raise UnsupportedError(
            "tracing it took its share of the budget; give a larger budget=", definition(function)
        ) from None
    except Error:
        raise
    except RecursionError:
        never = "tracing it never ends: it calls itself"
        raise UnsupportedError(never, definition(function)) from None
    except Exception as error:
        raise BadInputError(
            f"tracing {_name(function)} failed: {type(error).__name__}: {error}", _origin(error)
        ) from error
    if changed := sandbox.changed():
        raise UnsupportedError(
            f"it changes {changed}, which lives outside of it", definition(function)
        )
    if sandbox.was_frozen and sandbox.handles:  # frozen arrays raise an error when written to
        raise _refused(function, "handles exceptions, which may hide writes to arrays from outside")
    known = {id(v) for v in sandbox.stand_ins()} | set(_containers((args, kwargs)))
    _require_new(result, known, function)
    graph.handles |= {id(copy): array for array, copy in environment.contents}
    return graph, _results(graph, result, function, tree), sandbox


def _containers(value: Object) -> Iterator[int]:
    """Identities of the lists, tuples and dicts in one, itself included."""
    if isinstance(value, (list, tuple, dict)):
        yield id(value)
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers(part)


def _require_new(value: Object, known: set[int], function: Function) -> None:
    """Refuses results whose lists, dicts and sets are known already, each call's are others."""
    if isinstance(value, (list, dict, set)):
        if id(value) in known:
            what = f"a {type(value).__name__} that is not new, or twice; return a copy"
            raise _refused(function, f"returns {what}")
        known.add(id(value))
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            _require_new(part, known, function)


def _results(graph: TracingGraph, result: Object, function: Function, arguments: Tree) -> Tree:
    """Makes what a function returns the graph's outputs."""
    outputs: list[Named] = []
    if isinstance(result, Iterator):
        raise _refused(function, "is a generator; return a list or tuple")

    def is_leaf(value: Object) -> bool:
        if isinstance(value, Masked):
            what = "what a mask picks, whose shape depends on values; use np.where"
            raise _refused(function, f"returns {what}")
        if type(value) is Number:
            raise _refused(function, f"returns a Python {value.__class__.__name__}")
        return isinstance(value, Tensor) and id(value) not in graph.handles

    def checked(end: Leaf | Static) -> Tree:
        """Of an array from outside itself, of one that the function made marked so."""
        if isinstance(end, Leaf):
            return end
        if id(end.value) in graph.handles:
            return Static(graph.handles[id(end.value)])
        members = end.value if isinstance(end.value, (set, frozenset)) else [end.value]
        if not isinstance(end.value, type) and not all(isinstance(v, _RETURNED) for v in members):
            kind = type(end.value).__name__
            what = f"a {kind}; return arrays, or tuples, lists and dicts of them"
            raise _refused(function, f"returns {what}")
        return replace(end, anew=isinstance(end.value, (set, np.ndarray)))

    results = _merged(flatten(result, "out", outputs, is_leaf), [t for _, t in outputs])
    tensors = list({id(t): t for _, t in outputs}.values())
    results = mapped(results, checked)
    if not tensors:
        why = f"{_name(function)} returns no array that depends on its arguments"
        raise BadInputError(_no_arrays(function, arguments) or why, definition(function))
    constants = [end for end in ends(results) if isinstance(end, Static)]
    if any(c.anew and getattr(c.value, "base", None) is not None and c.value.size
           for c in constants):  # fmt: skip
        what = "a view of an array that does not depend on its arguments"
        raise _refused(function, f"returns {what}")
    for tensor in tensors:
        graph.output(tensor)
    graph.forms = [tensor.form for tensor in tensors]
    return results


def _no_arrays(function: Function, arguments: Tree) -> str:
    """What a call's arguments are, where none is an array; empty where one is."""

    def kind(tree: Tree) -> str:
        name = (tree.kind if isinstance(tree, Node) else type(tree.value)).__name__  # type: ignore[union-attr]
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

    assert isinstance(arguments, Node)
    if any(isinstance(end, Leaf) for end in ends(arguments)):
        return ""
    positional, keyword = arguments.children
    kinds = [*map(kind, positional.children), *map(kind, keyword.children)]
    if not kinds:
        return f"{_name(function)} has no arguments here, and reads no array from outside"
    return (
        f"none of its arguments is an array (it is called with {' and '.join(kinds)}), and all "
        "else is a constant of a program; pass NumPy arrays (np.asarray)"
    )


def _merged(tree: Tree, tensors: Sequence[Tensor]) -> Tree:
    """A tree whose leaves count the different objects: what is returned twice is one array."""
    place = {key: n for n, key in enumerate(dict.fromkeys(map(id, tensors)))}
    return mapped(
        tree, lambda end: Leaf(place[id(tensors[end.index])]) if isinstance(end, Leaf) else end
    )


_RETURNED = (
    bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray, np.dtype, slice,
    range, type(Ellipsis),
)  # fmt: skip


def _require_same_arguments(tree: Tree, tensors: Values, given: Object, function: Function) -> None:
    """Refuses functions that append to a list or set an entry among their arguments."""
    leaves: list[Named] = []
    after = flatten(given, "", leaves, is_stand_in)
    kept = len(leaves) == len(tensors) and all(
        v is t for (_, v), t in zip(leaves, tensors, strict=True)
    )
    if not kept or not alike(after, tree, _same_end):
        raise _refused(function, "changes a list or dict among its arguments")


def _origin(error: BaseException) -> Location | None:
    """The innermost line outside Tessera and NumPy that an exception passed through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((_PACKAGE, _NUMPY, "<__array_function__")):
            return Location(frame.filename, frame.lineno or 0)
    return None


class IndexCheck:
    """Whether the indices that a traced program gathers at are within their axes."""

    def __init__(self, graph: Graph, extents: Sequence[int]) -> None:
        # A program of the same arguments that computes the indices.
        self._indices = compile_source(emit(graph, name="indices"), "indices")
        self._extents = extents

    def __call__(self, arrays: Values) -> bool:
        with np.errstate(all="ignore"):
            found = self._indices(*arrays)
        found = found if isinstance(found, tuple) else (found,)
        return all(are_inside(np.asarray(i), n) for i, n in zip(found, self._extents, strict=True))


# How it ends when a function writes traced values to a real array.
_FILLS = ("needs the value", "setting an array element", "with out= writes in place")


def trace_call(function: Function, args: Values, kwargs: Fields, floats: bool = False,
               environment: Environment | None = None, seconds: float = math.inf,
               clock: Clock | None = None) -> Traced:  # fmt: skip
    """Traces one call; see the top of the file.

    With `floats`, Python floats are arguments too, of type f64[]: they take part in promotion like
    Python scalars do. So are NumPy's scalars of floats, with their dtypes. `environment` is filled
    with what was read, also where the trace fails. Recording stops after `seconds` of this thread,
    or when the clock's time is over, and a few hundred steps.
    """
    clock = clock or Clock()
    tree, leaves = bind_arguments(function, args, kwargs, floats)
    leaves = [(n, Spec.parse(v) if isinstance(v, str) else v) for n, v in leaves]
    environment = Environment() if environment is None else environment
    failed: Error | None = None
    # Perhaps it writes to an array that it makes (see frontends/intercept.py), or asks for values
    # of small arrays from outside.
    for fills, frozen in ((False, False), (True, False), (True, True)):
        if failed is not None and not (
            environment.arrays() if frozen else any(t in failed.message for t in _FILLS)
        ):
            continue
        attempt = Environment()
        try:
            graph, results, sandbox = _run(
                function, tree, leaves, attempt, fills, frozen, seconds, clock
            )
            if frozen and not sandbox.was_frozen:
                continue
            break
        except Error as error:
            failed = failed or error
        finally:
            environment.become(attempt)
    else:
        assert failed is not None
        raise failed
    core = graph.core
    used = {i for op in graph.ops if op["op"] != "input" for i in op["inputs"]}
    used.update(core.outputs)
    mine = list(core.inputs[: len(leaves)])
    others = [t for t in graph.inputs[len(leaves) :] if t.id in used]
    extra = [graph.captured[int(t.name[5:])] for t in others]  # of "outer2" or "inner3"
    environment.passed = {id(a) for a in extra}
    inputs = [*mine, *(t.id for t in others)]
    bounds = {(i, n): None for i, n in graph.indices if graph.made.get(i, ("",))[0] != "iota"}
    check = None
    if bounds:
        indices = subprogram(graph, [i for i, _ in bounds], inputs)
        check = IndexCheck(indices, [n for _, n in bounds])
    plain = subprogram(graph, core.outputs, inputs)
    plain.keeps_nan = graph.keeps_nan
    plain.arrays = dict(zip((t.name for t in others), extra, strict=True))
    if (rounded := graph.calls & {"log2", "log10", "exp2"}) and any(map(_jumps, plain.ops)):
        raise UnsupportedError(
            f"np.{min(rounded)} is exact at powers, and what is computed instead not, so that "
            "floors, casts to integers and comparisons of it would be others"
        )
    given = [v for _, v in leaves]
    return Traced(
        plain, tree, given, extra, results, graph.forms, environment, check,
        frozenset(graph.calls),
    )  # fmt: skip


def _jumps(op: Record) -> bool:
    """Whether it decides something."""
    kind = op["op"]
    whole = kind == "cast" and op["attrs"]["dtype"][0] in "iub"
    return whole or kind in ("floor", "round", "sign", "mod", "lt", "le", "gt", "ge", "eq", "ne")


def subprogram(graph: Graph, outputs: Sequence[int], inputs: Sequence[int] | None = None) -> Graph:
    """The program of some of a program's values, of all its inputs or those given, by tensor id."""
    ops, core = graph.ops, graph.core
    needed = {*outputs, *(core.inputs if inputs is None else inputs)}
    for op in reversed(ops):
        if needed.intersection(op["results"]):
            needed.update(op["inputs"], op["results"])
    complete = list(outputs) == list(core.outputs)
    if complete and all(r in needed for op in ops for r in op["results"]):
        return Graph.from_core(core)
    pruned = _core.Graph(core.name)
    place: dict[int, int] = {}
    for op in ops:
        (result,) = op["results"]
        name = core.tensor_name(result)
        if result not in needed:
            continue
        if op["op"] == "input":
            dtype, shape = core.type(result)
            place[result] = pruned.add_input(dtype, shape, name)
        else:
            operands = [place[i] for i in op["inputs"]]
            place[result] = pruned.add(op["op"], operands, op["attrs"], name)
    pruned.set_outputs([place[t] for t in outputs])
    return Graph.from_core(pruned)


def _same_end(a: Leaf | Static, b: Leaf | Static) -> bool:
    if isinstance(a, Static) and isinstance(b, Static):
        if is_same(a.value, b.value) or type(a.value) in CONSTANTS:
            return is_same(a.value, b.value)
        try:
            return type(a.value) is type(b.value) and bool(np.all(np.equal(a.value, b.value)))
        except TypeError:  # not comparable: objects made anew each time
            return False
    return a == b


def trace(function: Function, *args: Object, **kwargs: Object) -> Graph:
    """The program that a NumPy function computes for arguments of these shapes and dtypes.

    Arguments are arrays or types such as "f32[16,1024]"; numbers and strings are constants.
    Arrays that the function takes from outside become further arguments, named outer0, outer1, ….

    >>> def f(x, y):
    ...     return np.exp(x) @ y
    >>> trace(f, "f32[4,8]", "f32[8,2]")
    <Graph f(x: f32[4,8], y: f32[8,2]), 4 operators>
    """
    return trace_call(function, args, kwargs).graph
