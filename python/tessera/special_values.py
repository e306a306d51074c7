"""Edges of floating point: inputs on which programs that compute the same numbers may still differ.

NaN, infinities, zeros of both signs, subnormal and largest numbers, a few or many among ordinary
ones. What is promised there is checked by running it: in which order a library adds is known to
nobody else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np

from tessera.frontends.traced import parts
from tessera.types import Array, DType, Function, Object, Values


def special_values(dtype: DType) -> Array:
    """NaN, both infinities, zeros, smallest subnormal and normal and largest numbers, ±1."""
    info = np.finfo(dtype)
    sizes = [0.0, info.smallest_subnormal, info.tiny, 1.0, info.max, np.inf]
    return np.array([*sizes, *[-x for x in sizes], np.nan], dtype)


def edge_inputs(samples: Values, rng: np.random.Generator) -> Iterator[list[Array]]:
    """Variants of ordinary arguments: floats among them become special, all others stay.

    Some elements are special, or all of one array are the same special number; half of the variants
    have finite numbers only, which do not end as NaN so soon.
    """
    for share in (0.003, 0.02, 0.3):
        for finite in (True, False):
            yield [_sprinkled(a, share, finite, rng) for a in samples]
    count = max((len(special_values(a.dtype)) for a in samples if _is_float(a)), default=0)
    for n in range(count):
        yield [
            np.full(np.shape(a), special_values(a.dtype)[(n + 5 * i * (n % 2)) % count])
            if _is_float(a)
            else a
            for i, a in enumerate(samples)
        ]


def _is_float(value: Object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _sprinkled(a: Array, share: float, finite: bool, rng: np.random.Generator) -> Array:
    if not _is_float(a):
        return a
    values = special_values(a.dtype)
    if finite:
        values = values[np.isfinite(values)]
    share = max(share, 1.5 / max(a.size, 1))
    picked = rng.choice(values, a.shape)
    return np.asarray(np.where(rng.random(a.shape) < share, picked, a), a.dtype)


def results(function: Function, *args: Object, **kwargs: Object) -> list[Array]:
    """All arrays among a function's results, in order; it gets copies of its arguments."""
    with np.errstate(all="ignore"):
        return [np.asarray(value) for value in parts(function(*args, **kwargs))]


def differing(a: Array, b: Array, bits: bool = False) -> int:
    """Elements of which one is NaN or infinite and the other not the same, or that differ where
    they are not floats, or `bits` are to be the same."""
    if a.dtype.kind != "f":
        return int((a != b).sum())
    special = bits | ~(np.isfinite(a) & np.isfinite(b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return int((special & ~same).sum())


def zeros_of_other_sign(a: Array, b: Array) -> int:
    """Elements that are zero in both, of different signs: their inverses differ."""
    if a.dtype.kind != "f":
        return 0
    return int(((a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))).sum())


def differs_at_edges(
    original: Function,
    rewritten: Function,
    samples: Values,
    seed: int = 0,
    rounds: int = 4,
    bits: bool = False,
) -> str:
    """How a rewrite's NaN, infinities and signs of zero (`bits`: all numbers) differ from the
    original's; empty where they do not.

    Both take arrays like `samples`. An input at which the original raises counts for nothing.
    """
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        for arrays in edge_inputs(samples, rng):
            try:
                expected = results(original, *map(copy.copy, arrays))
            except Exception:  # its own business
                continue
            for n, (a, b) in enumerate(zip(expected, results(rewritten, *arrays), strict=True)):
                where = f"of {a.size} elements of output {n + 1}"
                if (a.dtype, a.shape) != (b.dtype, b.shape):
                    return f"output {n + 1} is {b.dtype} {b.shape}, not {a.dtype} {a.shape}"
                if count := differing(a, b, bits):
                    what = "have other bits" if bits else "are NaN or infinite in one program only"
                    return f"{count} {where} {what}"
                if count := zeros_of_other_sign(a, b):
                    return f"{count} {where} are zeros of another sign"
    return ""
