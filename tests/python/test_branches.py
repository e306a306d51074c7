"""Proofs that see every branch: equal pairs are proved, unequal ones never are.

Each pair is two NumPy functions and the types of their arguments. Those of `UNEQUAL` differ
somewhere, however rarely: behind a threshold, a conjunction, a tie, in one row, at a pole, in one
count of bools, or where a number wraps, is absorbed or underflows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts

Function = Callable[..., Any]
Pairs = dict[str, tuple[Function, Function, tuple[str, ...]]]
EQUAL: Pairs = {}
UNEQUAL: Pairs = {}
V, M, ROW = "f32[7]", "f32[5,6]", "f32[40]"


def equal(name: str, f: Function, g: Function, *types: str) -> None:
    EQUAL[name] = (f, g, types)


def unequal(name: str, f: Function, g: Function, *types: str) -> None:
    UNEQUAL[name] = (f, g, types)


# --- decisions of floats
equal("relu by where", lambda x: np.where(x > 0, x, 0), lambda x: np.maximum(x, 0), V)
equal("at ties too", lambda x: np.where(x >= 0, x, 0), lambda x: np.maximum(0, x), V)
equal("not less", lambda x, y: np.where(~(x < y), x, 3 * y),
      lambda x, y: np.where(x >= y, x, y * 3), V, V)  # fmt: skip
equal("sides moved", lambda x, y: np.where(x - 2 > y, x, y), lambda x, y: np.where(x > y + 2, x, y),
      V, V)  # fmt: skip
equal("all of a row", lambda x, y: np.where(np.all(x[1:] >= x[:-1]), y, -y),
      lambda x, y: y * np.where(np.all(x[1:] >= x[:-1]), 1, -1).astype(np.float32),
      ROW, V)  # fmt: skip
equal("clip either way", lambda x: np.minimum(np.maximum(x, -2), 3),
      lambda x: np.maximum(np.minimum(x, 3), -2), V)  # fmt: skip
equal("one implies the other", lambda x, y: np.where(x > 3, np.where(x > 2, y, 0), 2 * y),
      lambda x, y: np.where(x > 3, y, 2 * y), V, V)  # fmt: skip
equal("absorption law", lambda a, b, y: np.where((a > 0) | ((a > 0) & (b > 0)), y, 0),
      lambda a, b, y: np.where(a > 0, y, 0), V, V, V)  # fmt: skip
equal("max and min", lambda x, y: np.maximum(x, y) * np.minimum(x, y), lambda x, y: x * y, V, V)
equal("sign by abs", lambda x: np.abs(x) * np.sign(x), lambda x: x * 1, V)
equal("tie of equals", lambda x, y: np.where(x == y, x, y), lambda x, y: y * 1, V, V)
equal("shifted maximum", lambda x: np.exp(x - x.max(1, keepdims=True)).sum(1),
      lambda x: np.exp(x + (-x).min(1, keepdims=True)).sum(1), M)  # fmt: skip
unequal("threshold", lambda x: np.where(x > 1e7, 0, x), lambda x: x * 1, V)
unequal("window", lambda x: np.where((x > 1000.25) & (x < 1000.5), 0, x), lambda x: x * 1, V)
unequal("point", lambda x: np.where(x == 0.3125, 0, x), lambda x: x * 1, V)
unequal("two points", lambda x, y, z: np.where((x == y) & (3 * y == z + 2.5), 0, x),
        lambda x, y, z: x * 1, V, V, V)  # fmt: skip
unequal("three points", lambda x, y, z: np.where((x == y) & (y == z) & (z == 5.5), 0, x),
        lambda x, y, z: x * 1, V, V, V)  # fmt: skip
unequal("strict and not", lambda x, y: np.where(x * y < 2.5, x, -x),
        lambda x, y: np.where(x * y <= 2.5, x, -x), V, V)  # fmt: skip
unequal("product of zeros", lambda x, y: np.where(x * y == 0, x, 0), lambda x, y: 0 * x, V, V)
unequal("increasing row", lambda x, y: np.where(np.all(x[1:] > x[:-1]), y, 0),
        lambda x, y: y * 0, ROW, V)  # fmt: skip
unequal("one sign of forty", lambda x: np.prod(np.abs(x)),
        lambda x: np.prod(np.abs(x[1:])) * x[0], ROW)  # fmt: skip
unequal("one row", lambda x: np.where((np.arange(5)[:, None] == 3) & (x > 50), 0, x),
        lambda x: x * 1, M)  # fmt: skip
unequal("equal in one row", lambda x, y: np.where((x == y).all(1)[:, None], 1, x),
        lambda x, y: x * 1, M, M)  # fmt: skip
unequal("clip dropped", lambda x, w: np.clip(x @ w, -1e8, 1e8), lambda x, w: x @ w, M, "f32[6,4]")
unequal("median of wrong three", lambda a, b, c: np.minimum(np.maximum(a, b), c),
        lambda a, b, c: np.maximum(np.minimum(a, c), b), V, V, V)  # fmt: skip
unequal("sign at zero", np.sign, lambda x: np.where(x >= 0, 1, -1).astype(np.float32), V)
# --- poles
equal("the same pole", lambda x, y: x / y - 1, lambda x, y: -x / -y - 1, V, V)
unequal("a sum that overflows", lambda x, y: x / y + 1, lambda x, y: (x + y) / y, V, V)
equal("no pole", lambda x: 2 / (1 + np.exp(-x)), lambda x: 2 * (1 / (np.exp(-x) + 1)), V)
unequal("a new pole", lambda x, y: x * 1, lambda x, y: x * (y - 1234.5) / (y - 1234.5), V, V)
unequal("a pole behind a threshold", lambda x, y: x * 1,
        lambda x, y: x * np.maximum(1e6 - y, 0) / np.maximum(1e6 - y, 0), V, V)  # fmt: skip
unequal("guarded", lambda x, m: np.where(m == 0, 0, x / m), lambda x, m: x / m, V, V)
unequal("another fallback", lambda x, m: np.where(m == 0, 0, x / m),
        lambda x, m: np.where(m == 0, 1, x / m), V, V)  # fmt: skip
unequal("empty mask", lambda x, m: (x * m).sum(1) / np.maximum(m.sum(1), 1),
        lambda x, m: (x * m).sum(1) / m.sum(1), M, "bool[5,6]")  # fmt: skip
unequal("guarded sum", lambda x: np.where(np.exp(x).sum() > 0, np.exp(x) / np.exp(x).sum(), 0),
        lambda x: np.exp(x) / np.exp(x).sum(), V)  # fmt: skip
unequal("root of a square", lambda x: np.sqrt(x * x), lambda x: np.sqrt(x) * np.sqrt(x), V)
# --- made by rounding
unequal("absorbed", lambda x, y: np.where(x + 1 == x, y, 0), lambda x, y: y * 0, V, V)
unequal("underflow of a square", lambda x, y: np.where((x * x <= 0) & (x > 0), y, 0),
        lambda x, y: y * 0, V, V)  # fmt: skip
unequal("underflow of exp", lambda x, y: np.where(np.exp(x) > 0, y, 0), lambda x, y: y * 1, V, V)
# --- bools and integers
B, I8, I64 = "bool[64,64]", "i8[9]", "i64[16]"
equal("count of complements", lambda m: (~m).sum(1), lambda m: 64 - m.sum(1), B)
equal("none", lambda m: ~m.any(1), lambda m: (~m).all(1), B)
equal("de Morgan", lambda m, n: ~(m & n), lambda m, n: ~m | ~n, B, B)
equal("impossible count", lambda m: np.minimum(m.sum(1), 64), lambda m: m.sum(1), B)
equal("ring of integers", lambda x, y: (x + y) * (x - y), lambda x, y: x * x - y * y, I64, I64)
equal("whole numbers above", lambda x: np.where(x > 3, x, 0), lambda x: np.where(x >= 4, x, 0), I64)
unequal("rare count", lambda m: np.maximum(m.sum(1) - 60, 0), lambda m: m.sum(1) * 0, B)
unequal("saturated count", lambda m: np.minimum(m.sum(1), 60), lambda m: m.sum(1), B)
unequal("all true", lambda m: m.all(1), lambda m: m.any(1) & False, B)
unequal("none true", lambda m: m.any(1), lambda m: m.any(1) | True, B)
unequal("dropped factor", lambda m: (m.sum(1) >= 60).astype(np.float32) * 2,
        lambda m: (m.sum(1) >= 60).astype(np.float32), B)  # fmt: skip
unequal("narrow range", lambda x: np.where((3 * x > 1000003) & (3 * x < 1000007), 0, x),
        lambda x: x * 1, I64)  # fmt: skip
unequal("one value", lambda x: np.where(x == 123456789, 0, x), lambda x: x * 1, I64)
unequal("wraps", lambda x: np.where(x + 1 > x, x, 0), lambda x: x * 1, "i32[9]")
unequal("widened too late", lambda x, y: (x * y).astype(np.int32),
        lambda x, y: x.astype(np.int32) * y.astype(np.int32), I8, I8)  # fmt: skip
unequal("saturated product", lambda x, w: np.clip(x.astype(np.int32) @ w.astype(np.int32), -(10**6),
        10**6), lambda x, w: x.astype(np.int32) @ w.astype(np.int32),
        "i8[8,128]", "i8[128,8]")  # fmt: skip
unequal("remainder", lambda x: x % 1000, lambda x: np.where(x >= 0, x % 1000, 0), I64)


def verdict(f: Function, g: Function, types: tuple[str, ...], **options: Any) -> ts.Verdict:
    return ts.verify(ts.trace(f, *types), ts.trace(g, *types), threads=1, **options)


@pytest.mark.parametrize("name", EQUAL)
def test_equal_pairs_are_proved(name: str) -> None:
    f, g, types = EQUAL[name]
    for v in (verdict(f, g, types), verdict(g, f, types)):
        assert v.name == "equal", v.text
        assert v.certificate is not None
        assert v.certificate.record()["proved"]


@pytest.mark.parametrize("name", UNEQUAL)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_unequal_pairs_are_not_proved(name: str, dtype: str) -> None:
    f, g, types = UNEQUAL[name]
    types = tuple(t.replace("f32", dtype) for t in types)
    for seed in range(5):
        v = verdict(f, g, types, seed=seed)
        assert v.name != "equal", v.text
    # What holds of a program holds of itself.
    assert verdict(f, f, types).name == "equal"
    assert verdict(g, g, types).name == "equal"


def test_tested_is_not_proved() -> None:
    """Equal where it was tried is said only when asked for, and without an error bound."""

    def f(x: Any) -> Any:
        return np.where(x > 0, np.sin(x), 0)

    def g(x: Any) -> Any:
        return np.sin(np.maximum(x, 0))

    plain = verdict(f, g, (V,))
    assert plain.name == "unknown"
    assert plain.reason.startswith("branch")
    tested = verdict(f, g, (V,), accept="tested")
    assert tested.name == "equal"
    assert tested.certificate is not None
    record = tested.certificate.record()
    assert not record["proved"]
    assert record["error_log2"] == 0
    assert record["basis"].startswith("tested")


def test_an_untaken_branch_is_named() -> None:
    v = verdict(lambda x: np.where(x * x == 77.3, 0, x), lambda x: x * 1, (V,), accept="tested")
    assert v.name == "unknown"
    assert "branch never taken" in v.text
    assert "eq" in v.text
