"""What decides which program fits a call: its arguments as nested tuples of types and constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.direct_calls import layout
from tessera.frontends.constants import is_constant
from tessera.frontends.trace import FLOAT_SCALARS
from tessera.frontends.traced import Node, Static, Tree
from tessera.types import Array, Value, is_plain_dtype

Key = Any  # what decides which program fits: nested tuples of types and constants


class NoConstantError(TypeError):
    """The type of an argument that is no constant."""


def quick_key(value: Value) -> Key:
    """The key of an argument that is a plain array or constant; None for others."""
    kind = type(value)
    if kind is np.ndarray and is_plain_dtype(value.dtype):
        return array_key(value)
    if kind is float:
        return (float, repr(value))  # -0.0 is not 0.0
    if issubclass(kind, np.generic):
        return (kind, value.tobytes())
    if kind in (int, bool, type(None)):
        return (kind, value)
    return None


def array_key(array: Array) -> Key:
    how = layout(array)
    return (array.shape, array.dtype, how if how < 2 else array.strides)


def without_floats(key: Key) -> Key:
    """A key in which all floats are alike."""
    if type(key) is not tuple:
        return key
    if len(key) == 2 and any(key[0] is kind for kind in (float, *FLOAT_SCALARS)):
        return key[:1]
    return tuple(map(without_floats, key))


def shapes_of(key: Key) -> Key:
    """A key without any constants."""
    if not isinstance(key[0], int):
        return key[1]
    return tuple(k[:1] if type(k) is tuple and k and isinstance(k[0], type) else k for k in key)


def family_of(key: Key) -> Key:
    """A key without extents, names, order and numbers of arguments or of what containers hold, and
    without constants but for their types."""
    if type(key) is not tuple:
        return key if isinstance(key, type) else None
    if len(key) == 3 and isinstance(key[1], np.dtype):
        return len(key[0]), key[1]
    if len(key) == 2 and isinstance(key[0], type):
        return key[0]
    return frozenset(map(family_of, key))


def static_key(tree: Tree) -> Key:
    """A hashable key of an argument tree; 1, 1.0 and True stay different."""
    if isinstance(tree, Node):
        keys = tuple((type(k), k) for k in tree.keys)
        return (tree.kind, keys, tuple(static_key(c) for c in tree.children))
    if isinstance(tree, Static):
        if not is_constant(tree.value) and not isinstance(tree.value, type):
            raise NoConstantError(type(tree.value).__name__)
        # -0.0 is not 0.0, nor are ranges of the same numbers or dtypes of other metadata the same.
        by_text = isinstance(tree.value, (float, complex, slice, range, np.dtype, np.generic))
        value = repr(tree.value) if by_text else tree.value
        return (type(tree.value), value)
    return tree
