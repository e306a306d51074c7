"""What a trace gives: a program, and how a call's nested arguments and results hold its arrays."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tessera.errors import BadInputError, UnsupportedError
from tessera.frontends.constants import is_plain_container
from tessera.frontends.environment import Environment
from tessera.graph import Graph
from tessera.types import (
    EVERY,
    Arguments,
    Array,
    Interval,
    Object,
    Value,
    Values,
    dtype_name,
    parse_domain,
    parse_type,
    to_numpy,
)

TYPE_TEXT = re.compile(
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
        match = TYPE_TEXT.fullmatch(text)
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
            above = np.nextafter(dtype.type(low), dtype.type(high))
            values = np.where(values <= low, above, values)
        return np.asarray(values, dtype)


# --- nested arguments and results -------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """An array in a nested structure, by its position among all of them."""

    index: int


@dataclass(frozen=True)
class Static:
    """Anything else: a constant of the program; `anew`: each call makes one of its own."""

    value: Value
    anew: bool = False


@dataclass(frozen=True)
class Node:
    """A list, tuple, named tuple or dict; `keys` of a dict."""

    kind: type[Value]
    children: tuple[Any, ...]
    keys: Arguments = ()


Named = tuple[str, Value]
Tree = Leaf | Static | Node


def flatten(value: Value, name: str, leaves: list[Named], is_leaf: Callable[[Value], bool]) -> Tree:
    """Splits a nested structure into its arrays (appended to `leaves`) and its shape."""
    if is_leaf(value):
        leaves.append((name, value))
        return Leaf(len(leaves) - 1)
    if isinstance(value, (list, tuple, dict)) and not is_plain_container(value):
        raise UnsupportedError(
            f"{name} is a {type(value).__name__}, which may do more than a list, tuple or dict, or "
            "has keys that are no constants"
        )
    if isinstance(value, (list, tuple)):
        children = [flatten(v, f"{name}_{i}", leaves, is_leaf) for i, v in enumerate(value)]
        return Node(type(value), tuple(children))
    if isinstance(value, dict):
        children = [flatten(v, f"{name}_{k}", leaves, is_leaf) for k, v in value.items()]
        return Node(dict, tuple(children), tuple(value))
    return Static(value)


def unflatten(tree: Tree, leaves: Values, copies: dict[int, Value] | None = None) -> Value:
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


def ends(tree: Tree) -> Iterator[Leaf | Static]:
    """What the lists, tuples and dicts of a tree hold, however nested, one after the other."""
    if isinstance(tree, Node):
        for child in tree.children:
            yield from ends(child)
    else:
        yield tree


def alike(a: Tree, b: Tree, same: Callable[[Leaf | Static, Leaf | Static], bool]) -> bool:
    """Whether two trees have the same lists, tuples and dicts, and the `same` in their places."""
    if isinstance(a, Node) and isinstance(b, Node):
        return (
            (a.kind, a.keys, len(a.children)) == (b.kind, b.keys, len(b.children))
            and [*map(type, a.keys)] == [*map(type, b.keys)]
            and all(alike(x, y, same) for x, y in zip(a.children, b.children, strict=True))
        )
    return not isinstance(a, Node) and not isinstance(b, Node) and same(a, b)


def mapped(tree: Tree, change: Callable[[Leaf | Static], Tree]) -> Tree:
    """A tree with others in place of its ends."""
    if isinstance(tree, Node):
        return replace(tree, children=tuple(mapped(child, change) for child in tree.children))
    return change(tree)


def parts(value: Object) -> Iterator[Value]:
    """What lists, tuples and dicts hold, however nested, one after the other."""
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parts(part)
    else:
        yield value


@dataclass
class Traced:
    """A function as a program: how to call it with arrays and what to make of its results."""

    graph: Graph
    tree: Tree  # of (args, kwargs)
    arguments: list[Array | Spec]  # in the order of the graph's first inputs
    extra: list[Array]  # arrays from outside or made inside: the graph's last inputs
    results: Tree
    forms: list[str] = field(default_factory=list)  # of the graph's outputs, see tensor.Tensor
    environment: Environment = field(default_factory=Environment)
    check: Callable[[Values], bool] | None = None  # asked before the program runs
    calls: frozenset[str] = frozenset()  # NumPy's functions, methods and ufuncs that it called


def arguments(graph: Graph, traced: Traced | None, seed: int) -> list[Array]:
    """Random arrays for a program's inputs, in their domains; those of the example as they are."""
    rng = np.random.default_rng(seed)
    if traced is None:
        types = graph.input_types().values()
        return [Spec(dtype_name(dtype), shape).sample(rng) for dtype, shape in types]
    given = [a.sample(rng) if isinstance(a, Spec) else a for a in traced.arguments]
    return [*given, *traced.extra]
