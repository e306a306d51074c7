"""The libraries that run emitted source: NumPy itself, jax.jit and torch.compile."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tessera.types import Function, Object, Record, Value, Values

Run = Callable[[], Value]


class NumPy:
    """Called as it is."""

    @staticmethod
    def arguments(arrays: Values) -> list[Value]:
        """The arrays as this library takes them."""
        return list(arrays)

    @staticmethod
    def run(function: Function, args: Values, kwargs: Record) -> Run:
        """A call without arguments, whose end is the end of the computation."""
        # All are called alike: an empty ** alone costs 40 ns.
        return functools.partial(function, *args, **kwargs)

    @staticmethod
    def prepare(single: bool = True) -> None:
        """Settings for timing in a process of its own, with a `single` thread or all."""


class Jax:
    """Compiled by jax.jit; a run ends when the result is there."""

    @staticmethod
    def arguments(arrays: Values) -> list[Value]:
        import jax

        if any(np.asarray(a).dtype.itemsize == 8 for a in arrays):  # f64 and i64
            jax.config.update("jax_enable_x64", True)
        return [jax.numpy.asarray(a) for a in arrays]

    @staticmethod
    def run(function: Function, args: Values, kwargs: Record) -> Run:
        import jax

        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays = [leaves[n] for n in places]

        def call(*arrays: Object) -> Value:
            given = dict(zip(places, arrays, strict=True))
            args, kwargs = tree.unflatten([given.get(n, leaf) for n, leaf in enumerate(leaves)])
            return in_order(function(*args, **kwargs))

        compiled = jax.jit(call)
        return lambda: jax.block_until_ready(compiled(*arrays))

    @staticmethod
    def prepare(single: bool = True) -> None:
        """Runs on the thread that calls: handing over to another one and back is 50 us of noise."""
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)


class Torch:
    """Compiled by torch.compile."""

    @staticmethod
    def arguments(arrays: Values) -> list[Value]:
        import torch

        return [torch.from_numpy(np.array(a)) for a in arrays]

    @staticmethod
    def run(function: Function, args: Values, kwargs: Record) -> Run:
        import torch

        return functools.partial(torch.compile(function, dynamic=False), *args, **kwargs)

    @staticmethod
    def prepare(single: bool = True) -> None:
        """No gradients; where `single`, the barriers of threads do not count (6 ms under load)."""
        import torch

        if single:
            torch.set_num_threads(1)
        torch.set_grad_enabled(False)


def in_order(value: Object) -> Value:
    """A result with lists in place of dicts, whose keys jax.jit would sort.

    >>> in_order({"b": 1, "a": (2, {"d": 3, "c": 4})})
    [1, [2, [3, 4]]]
    """
    if isinstance(value, dict):
        value = list(value.values())
    return [in_order(v) for v in value] if isinstance(value, (list, tuple)) else value


FRAMEWORKS: dict[str, type[NumPy] | type[Jax] | type[Torch]] = {
    "numpy": NumPy, "jax": Jax, "torch": Torch,
}  # fmt: skip
