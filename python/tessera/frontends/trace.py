"""Tracing: runs a NumPy function once on Tensors and keeps what it did as a Graph.

A program must not depend on anything but its arguments, so the function is traced twice. Arrays
from outside are recognised by their memory, which is the same both times, and become arguments;
arrays that the function makes itself must have equal values both times, and become constants.
"""

from __future__ import annotations

import copy
import dis
import inspect
import operator
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tessera import _core
from tessera.errors import BadInputError, Error, Location, UnsupportedError
from tessera.graph import _NUMPY, _PACKAGE, Graph, Tensor
from tessera.ops.masked import Masked
from tessera.ops.operands import cast
from tessera.types import (
    EVERY,
    Interval,
    check_shape,
    dtype_name,
    parse_domain,
    parse_type,
    to_numpy,
)

Array = np.ndarray[Any, np.dtype[Any]]
_TYPE_TEXT = re.compile(
    r"\s*(?:f64|f32|f16|bf16|i64|i32|i8|u8|bool)\s*\[[^\]]*\](\s*(?:in\b|>).*|\s*)"
)


@dataclass(frozen=True)
class Spec:
    """The type of an argument, where there is no example array: `Spec.parse("f32[16,1024]")`.

    The values that it takes may follow: "f32[8] > 0", "f64[8] in [0, 1)".
    """

    dtype: str
    shape: tuple[int | str, ...]
    domain: Interval = EVERY

    @classmethod
    def parse(cls, text: str) -> Spec:
        match = _TYPE_TEXT.fullmatch(text)
        domain = match[1] if match else ""
        return cls(*parse_type(text[: len(text) - len(domain)]), parse_domain(domain))

    def sample(self, rng: np.random.Generator) -> Array:
        """Random values of this type and domain: standard normal where nothing is said."""
        if any(isinstance(d, str) for d in self.shape):
            raise BadInputError(f"{self} has symbolic extents, which have no values")
        dtype, shape = to_numpy(self.dtype), [int(d) for d in self.shape]
        low, high, with_low, with_high = self.domain
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(dtype)
        if dtype.kind in "iu":
            first = 0 if low == -np.inf else int(np.floor(low)) + (not with_low or low % 1 > 0)
            end = (
                first + 8 if high == np.inf else int(np.ceil(high)) + (with_high and high % 1 == 0)
            )
            return rng.integers(first, end, shape).astype(dtype)
        if low == -np.inf:
            values = rng.standard_normal(shape) if high == np.inf else high - rng.random(shape)
        elif high == np.inf:
            values = low + rng.gamma(2.0, 0.5, shape)
        else:
            values = low + (high - low) * rng.random(shape)
        values = np.asarray(values, dtype)
        if not with_low and low > -np.inf:
            values = np.where(
                values <= low, np.nextafter(dtype.type(low), dtype.type(high)), values
            )
        return np.asarray(values, dtype)


# --- nested arguments and results -------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """An array in a nested structure, by its position among all of them."""

    index: int


@dataclass(frozen=True)
class Static:
    """Anything else: a constant of the program; `anew`: each call makes one of its own."""

    value: Any
    anew: bool = False


@dataclass(frozen=True)
class Node:
    """A list, tuple, named tuple or dict; `keys` of a dict."""

    kind: type
    children: tuple[Any, ...]
    keys: tuple[Any, ...] = ()


Tree = Leaf | Static | Node


def flatten(
    value: Any, name: str, leaves: list[tuple[str, Any]], is_leaf: Callable[[Any], bool]
) -> Tree:
    """Splits a nested structure into its arrays (appended to `leaves`) and its shape."""
    if is_leaf(value):
        leaves.append((name, value))
        return Leaf(len(leaves) - 1)
    if isinstance(value, (list, tuple)):
        children = [flatten(v, f"{name}_{i}", leaves, is_leaf) for i, v in enumerate(value)]
        return Node(type(value), tuple(children))
    if isinstance(value, dict):
        children = [flatten(v, f"{name}_{k}", leaves, is_leaf) for k, v in value.items()]
        return Node(dict, tuple(children), tuple(value))
    return Static(value)


def unflatten(tree: Tree, leaves: Sequence[Any], copies: dict[int, Any] | None = None) -> Any:
    """The inverse of `flatten`; `copies`: of constants made anew, by what they are copies of."""
    if isinstance(tree, Leaf):
        return leaves[tree.index]
    copies = {} if copies is None else copies
    if isinstance(tree, Static):
        return copy.deepcopy(tree.value, copies) if tree.anew else tree.value
    children = [unflatten(child, leaves, copies) for child in tree.children]
    if tree.kind is dict:
        return dict(zip(tree.keys, children, strict=True))
    if hasattr(tree.kind, "_fields"):
        return tree.kind(*children)
    return tree.kind(children)


def _is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray and not isinstance(value, np.memmap):
            raise UnsupportedError(
                f"arguments of type {type(value).__name__} are not supported; pass a plain array"
            )
        return True
    return isinstance(value, Spec) or (
        isinstance(value, str) and _TYPE_TEXT.fullmatch(value) is not None
    )


# Of these dtypes scalars of NumPy can be arguments of a program.
FLOAT_SCALARS = (np.float64, np.float32, np.float16)


def _is_array_or_float(value: Any) -> bool:
    return type(value) in (float, *FLOAT_SCALARS) or _is_array(value)


# --- what a function can reach ----------------------------------------------------------------


class Environment:
    """What a function and its helpers read from outside, as it was.

    Module and closure variables, and through them: entries of dicts and lists, and those attributes
    of objects, classes and modules whose names the function mentions. `unchanged()` is what makes
    it safe to reuse a trace.
    """

    _PLAIN: tuple[type, ...] = (
        bool,
        int,
        float,
        str,
        bytes,
        type(None),
        np.generic,
        np.ndarray,
        tuple,
        FunctionType,
    )
    _MOST = 10_000  # entries of containers; beyond, a program would spend its time comparing

    def __init__(self, function: Callable[..., Any]) -> None:
        self._variables: list[tuple[Mapping[str, Any], str, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._entries = 0
        self._seen: set[tuple[int, int]] = set()
        self._mentioned: list[set[str]] = []  # kept, so that identities stay theirs
        self._collect(function)

    def _collect(self, function: Callable[..., Any]) -> None:
        function = inspect.unwrap(function)
        if isinstance(function, MethodType) and isinstance(function.__func__, FunctionType):
            self._mentioned.append(_names(function.__func__.__code__))
            self._inside(function.__self__, self._mentioned[-1])
            function = function.__func__
        if (
            not isinstance(function, FunctionType)
            or (id(function), 0) in self._seen
            or len(self._seen) > 1000
            or (function.__module__ or "").partition(".")[0] in ("numpy", "tessera")
        ):
            return
        self._seen.add((id(function), 0))
        names = _names(function.__code__)
        self._mentioned.append(names)
        for name in _names(function.__code__, globals_only=True):
            if name in function.__globals__:
                self._variable(function.__globals__, name, names)
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._cells.append((cell, value))
            self._inside(value, names)

    def _variable(self, scope: Mapping[str, Any], name: str, names: set[str]) -> None:
        value = scope[name]
        self._variables.append((scope, name, value))
        self._inside(value, names)

    def _inside(self, value: Any, names: set[str]) -> None:
        """What can be reached through a value."""
        if isinstance(value, FunctionType):
            self._collect(value)
            return
        if isinstance(value, self._PLAIN) and not isinstance(value, tuple):
            return
        # Another function may mention other attributes of the same object.
        if (id(value), id(names)) in self._seen or self._entries > self._MOST:
            return
        self._seen.add((id(value), id(names)))
        if isinstance(value, dict):
            self._entries += len(value)
            self._dicts.append((value, dict(value)))
            for child in list(value.values()):
                self._inside(child, names)
        elif isinstance(value, (list, tuple)):
            self._entries += len(value)
            if isinstance(value, list):
                self._lists.append((value, list(value)))
            for child in value:
                self._inside(child, names)
        else:
            self._attributes(value, names)

    def _attributes(self, value: Any, names: set[str]) -> None:
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] in ("numpy", "tessera"):
                return
            scopes: list[Mapping[str, Any]] = [vars(value)]
        elif isinstance(value, type):
            scopes = [vars(c) for c in value.__mro__ if c is not object]
        else:
            scopes = [vars(c) for c in type(value).__mro__ if c.__module__ != "builtins"]
            if hasattr(value, "__dict__"):
                # First, because it shadows the class; and new entries count.
                scopes.insert(0, vars(value))
                self._dicts.append((vars(value), dict(vars(value))))
        for scope in scopes:
            for name in names:
                if name in scope:
                    self._variable(scope, name, names)

    def values(self) -> Iterator[Any]:
        """Everything recorded."""
        yield from (value for _, _, value in self._variables)
        yield from (value for _, value in self._cells)
        for _, entries in self._dicts:
            yield from entries.values()
        for _, items in self._lists:
            yield from items

    def unchanged(self) -> bool:
        """Whether everything is still the same object."""
        for scope, name, value in self._variables:
            if scope.get(name) is not value:
                return False
        for cell, value in self._cells:
            if cell.cell_contents is not value:
                return False
        for entries, before in self._dicts:
            if not _same_entries(entries, before):
                return False
        return not self._lists or all(_same_items(now, before) for now, before in self._lists)

    def guards(self) -> list[tuple[Any, str | None, Any]] | None:
        """As data, (dict, name, value) and (cell, None, value); None where that is not all.

        >>> Environment(lambda x: x).guards()
        []
        """
        scopes = [scope for scope, _, _ in self._variables]
        if self._dicts or self._lists or not all(type(scope) is dict for scope in scopes):
            return None
        return [*self._variables, *((cell, None, value) for cell, value in self._cells)]

    def arrays(self) -> list[Array]:
        """The arrays among what is recorded."""
        return [v for v in self.values() if isinstance(v, np.ndarray)]

    def restore(self) -> str:
        """Puts back what is no longer as it was; returns what that is, "" if nothing."""
        changed = ""
        for scope, name, value in self._variables:
            if scope.get(name) is not value and isinstance(scope, dict):
                changed = f"the variable {name}"
                scope[name] = value
        for cell, value in self._cells:
            if cell.cell_contents is not value:
                changed = "a variable of an enclosing function"
                cell.cell_contents = value
        for entries, before in self._dicts:
            if not _same_entries(entries, before):
                changed = "a dict or an attribute"
                entries.clear()
                entries.update(before)
        for items, former in self._lists:
            if not _same_items(items, former):
                changed = "a list"
                items[:] = former
        return changed


def _same_entries(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return len(now) == len(before) and all(now.get(k) is v for k, v in before.items())


def _same_items(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _names(code: CodeType, globals_only: bool = False) -> set[str]:
    """The variables that code mentions, and the attributes unless `globals_only`."""
    names = set(code.co_names)
    if globals_only:  # x.T does not mention a variable T
        ways = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
        names = {i.argval for i in dis.get_instructions(code) if i.opname in ways}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant, globals_only)
    return names


# --- tracing ----------------------------------------------------------------------------------


class _TracingGraph(Graph):
    """A graph that turns arrays met on the way into further arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.numpy_dtypes = True
        self.captured: list[Array] = []
        self.forms: list[str] = []  # of the outputs, see Tensor
        self.constants: dict[int, Array] = {}  # position in `captured` → values known to be fixed
        self._tensors: dict[Any, Tensor] = {}
        self._known: dict[str, Tensor] = {}

    def emit(
        self,
        op: str,
        inputs: Sequence[Tensor] = (),
        attrs: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> Tensor:
        """Appends an operator unless the same one is already there."""
        key = f"{op} {[t.id for t in inputs]} {attrs}"
        if key not in self._known:
            self._known[key] = super().emit(op, inputs, attrs, name)
            # Handles of our own: those of the function die, and may be written to.
            operands = tuple(Tensor(self, t.id) for t in inputs)
            self.made[self._known[key].id] = (op, operands, attrs or {})
        return self._known[key]

    def constant_array(self, array: Array) -> Tensor:
        dtype_name(array.dtype)
        check_shape(array.shape, "an array used by the program")
        key = (_address(array), array.shape, array.strides, array.dtype)
        if key not in self._tensors:
            n = len(self.captured)
            fixed = self.constants.get(n)
            self.captured.append(array)
            if fixed is not None and fixed.shape == array.shape and fixed.dtype == array.dtype:
                self._tensors[key] = self._fixed(array, n)
            else:
                self._tensors[key] = self.input(f"outer{n}", array.shape, array.dtype)
        return self._tensors[key]

    def _fixed(self, array: Array, n: int) -> Tensor:
        """An array that the function makes itself: a splat, a count, a triangle, a diagonal on a
        ground (`np.eye(n) - 1 / n`), else data."""
        first = array.reshape(-1)[0]
        if array.dtype == object:
            return self.input(f"inner{n}", array.shape, array.dtype)
        if np.all(array == first):
            return self.const(first, array.dtype, array.shape)
        for axis in range(array.ndim):
            if np.array_equal(array, _counted(array.shape, axis)):
                return self._count(array.shape, axis, array.dtype)
        if array.ndim == 2 and array.shape[0] == array.shape[1]:
            rows, columns = (_counted(array.shape, axis) for axis in (0, 1))
            for op, compare in (("eq", np.equal), ("ge", np.greater_equal), ("le", np.less_equal)):
                if np.array_equal(array, compare(rows, columns)):
                    sides = [self._count(array.shape, axis, np.dtype(np.int64)) for axis in (0, 1)]
                    return cast(self.emit(op, sides), array.dtype)
            if len(array) > 1 and _is_diagonal_and_rest(array):
                return self._diagonal_and_rest(array[0, 0], array[0, 1], array)
        return self.input(f"inner{n}", array.shape, array.dtype)

    def _diagonal_and_rest(self, diagonal: Any, rest: Any, array: Array) -> Tensor:
        """As a multiple of the unit matrix and a number, where that gives the same values."""
        sides = [self._count(array.shape, axis, np.dtype(np.int64)) for axis in (0, 1)]
        unit = self.emit("eq", sides)
        if array.dtype.kind in "iuf":
            with np.errstate(all="ignore"):
                span = array.dtype.type(diagonal - rest)
                exact = array.dtype.type(span + rest) == diagonal
            if exact:
                matrix = cast(unit, array.dtype)
                if span != 1:
                    matrix = self.emit("mul", [matrix, self.const(span, array.dtype)])
                return self.emit("add", [matrix, self.const(rest, array.dtype)])
        values = [self.const(v, array.dtype) for v in (diagonal, rest)]
        return self.emit("where", [unit, *values])

    def _count(self, shape: tuple[int, ...], axis: int, dtype: np.dtype[Any]) -> Tensor:
        attrs = {"axis": axis, "type": (dtype_name(dtype), list(shape))}
        return self.emit("iota", [], attrs)


def _counted(shape: tuple[int, ...], axis: int) -> Array:
    """0, 1, 2, … along one axis, the same along the others."""
    lead = [1] * len(shape)
    lead[axis] = -1
    return np.broadcast_to(np.arange(shape[axis]).reshape(lead), shape)


def _is_diagonal_and_rest(array: Array) -> bool:
    """Whether a square array has one value on its diagonal and one elsewhere, both finite."""
    expected = np.full_like(array, array[0, 1])
    np.fill_diagonal(expected, array[0, 0])
    finite = array.dtype.kind in "biu" or bool(np.isfinite(array[0, :2]).all())
    return finite and np.array_equal(array, expected)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


@dataclass
class Traced:
    """A function as a program: how to call it with arrays and what to make of its results."""

    graph: Graph
    tree: Tree  # of (args, kwargs)
    arguments: list[Array | Spec]  # in the order of the graph's first inputs
    extra: list[Array]  # arrays from outside or made inside: the graph's last inputs
    results: Tree
    outer: list[Array] = field(default_factory=list)  # those of `extra` that live outside
    forms: list[str] = field(default_factory=list)  # of the graph's outputs, see graph.Tensor

    def untracked(self, environment: Environment) -> list[Array]:
        """Outside arrays that no recorded variable holds, so that a change would go unseen."""
        held = {_address(v) for v in environment.values() if isinstance(v, np.ndarray)}
        held |= {_address(_root(v)) for v in environment.values() if isinstance(v, np.ndarray)}
        return [a for a in self.outer if _address(a) not in held and _address(_root(a)) not in held]


def _root(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def bind_arguments(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    floats: bool = False,
) -> tuple[Tree, list[tuple[str, Any]]]:
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
    leaves: list[tuple[str, Any]] = []
    positional = [flatten(v, n, leaves, is_leaf) for n, v in zip(names, args, strict=True)]
    keyword = [flatten(v, n, leaves, is_leaf) for n, v in kwargs.items()]
    tree = Node(tuple, (Node(tuple, tuple(positional)), Node(dict, tuple(keyword), tuple(kwargs))))
    return tree, leaves


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() and name.isascii() else "program"


def definition(function: Callable[..., Any]) -> Location | None:
    """Where a function is defined, if Python knows."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Location(code.co_filename, code.co_firstlineno) if code else None


def _input_names(names: Sequence[str]) -> list[str]:
    """Names that the text format accepts, all different."""
    result: list[str] = []
    for i, name in enumerate(names):
        clean = re.sub(r"[^A-Za-z0-9_]", "_", name)
        if not re.match(r"[A-Za-z_]", clean) or clean in result:
            clean = f"arg{i}"
        result.append(clean)
    return result


def _run(
    function: Callable[..., Any],
    tree: Tree,
    leaves: Sequence[tuple[str, Any]],
    constants: dict[int, Array],
    fills: bool = False,
) -> tuple[_TracingGraph, Tree]:
    from tessera.frontends.intercept import intercept

    graph = _TracingGraph(_name(function))
    graph.constants = constants
    tensors = []
    for name, (_, value) in zip(_input_names([n for n, _ in leaves]), leaves, strict=True):
        if type(value) is float:
            tensors.append(graph.input(name, (), np.float64))
            tensors[-1].weak = True
        else:
            tensors.append(graph.input(name, value.shape, value.dtype))
        if isinstance(value, (float, np.generic)):
            tensors[-1].form = "scalar"
    args, kwargs = unflatten(tree, tensors)
    try:
        with intercept(graph, fills):
            result = function(*args, **kwargs)
        _require_same_arguments(tree, tensors, (args, kwargs), function)
    except Error:
        raise
    except Exception as error:
        raise BadInputError(
            f"tracing {_name(function)} failed: {type(error).__name__}: {error}", _origin(error)
        ) from error
    outputs: list[tuple[str, Any]] = []
    if isinstance(result, Iterator):
        raise UnsupportedError(
            f"{_name(function)} is a generator; return a list or tuple", definition(function)
        )

    def is_leaf(value: Any) -> bool:
        if isinstance(value, Masked):
            raise UnsupportedError(
                f"{_name(function)} returns what a mask picks, whose shape depends on values; use "
                "np.where",
                definition(function),
            )
        return isinstance(value, Tensor)

    results = flatten(result, "out", outputs, is_leaf)
    if not outputs:
        raise BadInputError(
            f"{_name(function)} returns no array that depends on its arguments",
            definition(function),
        )
    for _, tensor in outputs:
        if tensor.weak:
            raise UnsupportedError(
                f"{_name(function)} returns a Python float", definition(function)
            )
        if tensor.form == "bool" and tensor.shape == ():
            raise UnsupportedError(f"{_name(function)} returns a Python bool", definition(function))
        graph.output(tensor)
    graph.forms = [tensor.form for _, tensor in outputs]
    return graph, results


def _require_same_arguments(
    tree: Tree, tensors: Sequence[Tensor], given: Any, function: Callable[..., Any]
) -> None:
    """Refuses functions that append to a list or set an entry among their arguments."""
    leaves: list[tuple[str, Any]] = []
    after = flatten(given, "", leaves, lambda v: isinstance(v, Tensor))
    kept = len(leaves) == len(tensors) and all(
        v is t for (_, v), t in zip(leaves, tensors, strict=True)
    )
    if not kept or not _same_static(after, tree):
        raise UnsupportedError(
            f"{_name(function)} changes a list or dict among its arguments", definition(function)
        )


def _origin(error: BaseException) -> Location | None:
    """The innermost line outside Tessera and NumPy that an exception passed through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((_PACKAGE, _NUMPY, "<__array_function__")):
            return Location(frame.filename, frame.lineno or 0)
    return None


# How it ends when a function writes traced values to a real array.
_FILLS = ("needs the value", "setting an array element", "with out= writes in place")


def trace_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    floats: bool = False,
) -> Traced:
    """Traces one call; see the top of the file.

    With `floats`, Python floats are arguments too, of type f64[]: they take part in promotion like
    Python scalars do. So are NumPy's scalars of floats, with their dtypes.
    """
    tree, leaves = bind_arguments(function, args, kwargs, floats)
    leaves = [(n, Spec.parse(v) if isinstance(v, str) else v) for n, v in leaves]
    fills = False
    try:
        first, first_results = _run(function, tree, leaves, {})
    except Error as error:
        if not any(text in error.message for text in _FILLS):
            raise
        fills = True  # perhaps it writes to an array that it makes: see frontends/intercept.py
        try:
            first, first_results = _run(function, tree, leaves, {}, fills)
        except Error:
            raise error from None
    second, second_results = _run(function, tree, leaves, {}, fills)
    constants: dict[int, Array] = {}
    same = first == second and len(first.captured) == len(second.captured)
    for n, (a, b) in enumerate(zip(first.captured, second.captured, strict=False)):
        if _address(a) != _address(b):
            same = same and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            constants[n] = b
    if not same or not _same_static(first_results, second_results):
        raise UnsupportedError(
            f"{_name(function)} does something different each time it runs (random numbers, "
            "counters?), so it is not a function of its arguments",
            definition(function),
        )
    graph, results = second, second_results
    if constants:
        graph, results = _run(function, tree, leaves, constants, fills)
    results = _marked(first_results, results)
    arrays = [value for _, value in leaves]
    extra = []
    outer = []
    for tensor in graph.inputs[len(arrays) :]:
        n = int(tensor.name.removeprefix("outer").removeprefix("inner"))
        extra.append(graph.captured[n] if n not in constants else constants[n])
        if n not in constants:
            outer.append(graph.captured[n])
    plain = _without_dead_operators(graph)
    return Traced(plain, tree, arrays, extra, results, outer, graph.forms)


def _without_dead_operators(graph: Graph) -> Graph:
    """The program without what no result needs."""
    return subprogram(graph, graph.core.outputs)


def subprogram(graph: Graph, outputs: Sequence[int]) -> Graph:
    """The program of some of a program's values (by tensor id), with the same inputs."""
    ops, core = graph.ops, graph.core
    needed = set(outputs)
    for op in reversed(ops):
        if op["op"] == "input" or needed.intersection(op["results"]):
            needed.update(op["inputs"], op["results"])
    complete = list(outputs) == list(core.outputs)
    if complete and all(r in needed for op in ops for r in op["results"]):
        return Graph.from_core(core)
    pruned = _core.Graph(core.name)
    place: dict[int, int] = {}
    for op in ops:
        (result,) = op["results"]
        name = core.tensor_name(result)
        if op["op"] == "input":
            dtype, shape = core.type(result)
            place[result] = pruned.add_input(dtype, shape, name)
        elif result in needed:
            place[result] = pruned.add(
                op["op"], [place[i] for i in op["inputs"]], op["attrs"], name
            )
    pruned.set_outputs([place[t] for t in outputs])
    return Graph.from_core(pruned)


def _same_static(a: Tree, b: Tree) -> bool:
    if isinstance(a, Node) and isinstance(b, Node):
        return (a.kind, a.keys, len(a.children)) == (b.kind, b.keys, len(b.children)) and all(
            _same_static(x, y) for x, y in zip(a.children, b.children, strict=True)
        )
    if isinstance(a, Static) and isinstance(b, Static):
        if a.value is b.value:
            return True
        try:
            return type(a.value) is type(b.value) and bool(np.all(np.equal(a.value, b.value)))
        except TypeError:  # not comparable: objects made anew each time
            return False
    return a == b


def _marked(other: Tree, results: Tree) -> Tree:
    """Results whose constants are marked that another run of the function made anew."""
    if isinstance(results, Node) and isinstance(other, Node):
        pairs = zip(other.children, results.children, strict=True)
        return replace(results, children=tuple(_marked(a, b) for a, b in pairs))
    if isinstance(results, Static) and isinstance(other, Static):
        return replace(results, anew=results.value is not other.value)
    return results


def trace(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """The program that a NumPy function computes for arguments of these shapes and dtypes.

    Arguments are arrays or types such as "f32[16,1024]"; numbers and strings are constants.
    Arrays that the function takes from outside become further arguments, named outer0, outer1, ….

    >>> def f(x, y):
    ...     return np.exp(x) @ y
    >>> trace(f, "f32[4,8]", "f32[8,2]")
    <Graph f(x: f32[4,8], y: f32[8,2]), 4 operators>
    """
    return trace_call(function, args, kwargs).graph


__all__ = ["Environment", "Spec", "Traced", "trace", "trace_call"]
