"""How emitted source is called: with the parameters, and the results, of the function it replaces.

What was a constant of the traced call (`axis=0`, a default) stays a parameter, and another value
of it is an error: the program was made for that one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from tessera.emit.layout import valid_name
from tessera.errors import UnsupportedError
from tessera.frontends.traced import Leaf, Node, Static, Traced, Tree, ends
from tessera.types import Array, Function, Object

LARGEST_CONSTANT = 1000  # elements of an array that is better spelled out than passed
# The text of a default, for signatures, which print its repr.
_Text = type("_Text", (str,), {"__repr__": str.__str__})
_NUMBERS = {bool, int, float, *(np.dtype(c).type for c in "?bhilBHILefd")}


@dataclass
class Call:
    """The head and the end of a function: what stands around the program's statements."""

    parameters: str = ""
    names: list[str] = field(default_factory=list)  # variables of the program's inputs, in order
    lines: list[str] = field(default_factory=list)  # that come first: guards, then unpacking
    results: Tree = field(default_factory=lambda: Static(None))
    floats: list[int] = field(default_factory=list)  # inputs for which callers pass Python floats
    twice: list[int] = field(default_factory=list)  # outputs that the result holds at many places

    @property
    def reserved(self) -> set[str]:
        """Names that no variable may take."""
        return set(self.names) | set(_identifiers(self.parameters))

    def returned(self, expressions: Sequence[str], spell: Callable[[Array], str]) -> str:
        """The expression of the function's result, given those of the program's outputs.

        `spell`: an array that the function makes of nothing, as an expression."""
        text = _result(self.results, expressions, spell)
        plain = isinstance(self.results, Node) and self.results.kind is tuple
        return text[1:-1] if plain and len(expressions) > 1 else text


def call_of(function: Function, traced: Traced, spelled: Collection[str] = ()) -> Call:
    """The call of the function that was traced.

    Arrays from outside of the function become keyword arguments without a default, save those of
    the names in `spelled`, which the source has itself. Raises UnsupportedError, which names what
    cannot be written.
    """
    try:
        return _Maker(function, traced, spelled).call
    except (TypeError, ValueError, UnsupportedError) as error:
        raise UnsupportedError(f"the original's call or result has no text: {error}") from None


class _Maker:
    def __init__(self, function: Function, traced: Traced, spelled: Collection[str]) -> None:
        self.call = Call(results=traced.results)
        self._guards: list[tuple[str, str]] = []  # a condition, and what the program was made for
        self._unpack: list[str] = []
        self._names: dict[int, str] = {}
        signature = inspect.signature(function)
        parameters = signature.parameters
        modules = {"np", "jnp", "jax", "torch", "ml_dtypes"}
        if also := sorted(modules.intersection(parameters)):
            raise UnsupportedError(f"its parameter {also[0]} has the name of a module")
        self._taken = set(parameters) | modules
        written = [self._parameter(p, tree) for p, tree in _bound(signature, traced.tree)]
        inputs = traced.graph.inputs
        for tensor in inputs[len(traced.arguments) :]:
            name = self._fresh(tensor.name)
            self._names[len(self._names)] = name
            if tensor.name not in spelled:
                place = sum(p.kind is not p.VAR_KEYWORD for p in written)
                written.insert(place, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY))
        self.call.names = [self._names[n] for n in range(len(inputs))]
        self.call.floats = [n for n, a in enumerate(traced.arguments) if isinstance(a, float)]
        self.call.parameters = str(inspect.Signature(written))[1:-1]
        for condition, made_for in self._guards:
            message = f"made for {made_for}; optimize again for other values"
            self.call.lines += [f"if {condition}:", f"    raise ValueError({_plain(message)})"]
        self.call.lines += self._unpack
        leaves = [end.index for end in ends(traced.results) if isinstance(end, Leaf)]
        self.call.twice = sorted({n for n in leaves if leaves.count(n) > 1})
        # Or it has no spelling.
        _result(traced.results, ["0"] * len(traced.graph.core.outputs), lambda a: "0")

    def _parameter(self, parameter: inspect.Parameter, tree: Tree) -> inspect.Parameter:
        name = parameter.name
        default = parameter.default
        if default is not parameter.empty:  # None: of an array
            default = _Text(_plain(default)) if _is_plain(default) else None
        if isinstance(tree, Leaf):
            self._names[tree.index] = name
        else:
            self._take_apart(name, tree)
        return parameter.replace(annotation=parameter.empty, default=default)

    def _take_apart(self, place: str, tree: Tree) -> None:
        """Guards of the constants in a structure, names for its arrays."""
        if isinstance(tree, Static):
            if not _is_plain(tree.value):
                raise UnsupportedError(f"{place} is {tree.value!r:.60}")
            value = _plain(tree.value)
            other = f"{place} != {value}"
            if tree.value is None or isinstance(tree.value, bool):
                other = f"{place} is not {value}"
            elif tree.value != tree.value:  # NaN
                other = f"{place} == {place}"
            elif isinstance(tree.value, float) and tree.value == 0:  # -0.0 is not 0.0
                other = f"str({place}) != '{tree.value}'"
            elif tree.value in (0, 1):  # nor is True 1
                other += f" or {place} is {bool(tree.value)}"
            self._guards.append((other, f"{place} = {value}"))
        elif isinstance(tree, Leaf):
            self._names[tree.index] = self._fresh(place)
            self._unpack.append(f"{self._names[tree.index]} = {place}")
        else:
            keys = tree.keys if tree.kind is dict else range(len(tree.children))
            n = len(keys)
            self._guards.append((f"len({place}) != {n}", f"{n} entries in {place}"))
            for key, child in zip(keys, tree.children, strict=True):
                if not _is_plain(key):
                    raise UnsupportedError(f"a key of {place} is {key!r:.60}")
                self._take_apart(f"{place}[{_plain(key)}]", child)

    def _fresh(self, place: str) -> str:
        wanted = "_".join(_identifiers(ascii(place)[1:-1])) or "x"
        name, n = wanted, 1
        while name in self._taken or not valid_name(name):
            n += 1
            name = f"{wanted}_{n}"
        self._taken.add(name)
        return name


def _bound(signature: inspect.Signature, tree: Tree) -> list[tuple[inspect.Parameter, Tree]]:
    """Parameters with what the traced call bound to each, or their default."""
    positional, keyword = tree.children  # type: ignore[union-attr]
    named = dict(zip(keyword.keys, keyword.children, strict=True))
    given = signature.bind(*positional.children, **named).arguments
    result: list[tuple[inspect.Parameter, Tree]] = []
    for p in signature.parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            result.append((p, Node(tuple, given.get(p.name, ()))))
        elif p.kind is p.VAR_KEYWORD:
            rest = given.get(p.name, {})
            result.append((p, Node(dict, tuple(rest.values()), tuple(rest))))
        else:
            result.append((p, given.get(p.name, Static(p.default))))
    return result


def _is_plain(value: Object) -> bool:
    """Whether the text of a value is the value, and a comparison of it one bool."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(_is_plain, value))
    if isinstance(value, slice):
        return all(type(v) is int or v is None for v in (value.start, value.stop, value.step))
    kind = value if isinstance(value, type) else type(value)
    return kind in _NUMBERS or value is None or value is ... or type(value) is str


def _plain(value: Object) -> str:
    if type(value) is str:
        free = value.isprintable() and '"' not in value and "\\" not in value
        return f'"{value}"' if free else repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))}{',' * (len(value) == 1)})"
    if isinstance(value, type):
        return value.__name__ if value in (bool, int, float) else f"np.{value.__name__}"
    return re.sub(r"\b(inf|nan)\b", r"np.\1", repr(value))


def _result(tree: Tree, expressions: Sequence[str], spell: Callable[[Array], str]) -> str:
    if isinstance(tree, Leaf):
        return expressions[tree.index]
    if isinstance(tree, Static):
        value = tree.value
        if tree.anew and isinstance(value, np.ndarray) and value.dtype.char in "?bBildef":
            return spell(value)
        if not _is_plain(tree.value):
            raise UnsupportedError(f"it returns {tree.value!r:.60}")
        return _plain(tree.value)
    children = [_result(child, expressions, spell) for child in tree.children]
    if tree.kind is dict:
        if not all(map(_is_plain, tree.keys)):
            raise UnsupportedError(f"it returns a dict of {tree.keys!r:.60}")
        pairs = zip(tree.keys, children, strict=True)
        return f"{{{', '.join(f'{_plain(key)}: {child}' for key, child in pairs)}}}"
    if tree.kind is list:
        return f"[{', '.join(children)}]"
    if tree.kind is tuple:
        return f"({', '.join(children)}{',' * (len(children) == 1)})"
    raise UnsupportedError(f"it returns a {tree.kind.__name__}, a class of its own")


def _identifiers(text: str) -> list[str]:
    words = "".join(c if f"_{c}".isidentifier() else " " for c in text).split()
    return [w for w in words if w != "_"]
