"""Arguments that are Python's own numbers, and NumPy's scalars, answer as such while traced."""

from __future__ import annotations

import collections.abc
import numbers
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_blind_trust_numpy import KERNEL, X, quietly

import tessera as ts


def tried(f: Callable[[], Any], *errors: type[Exception]) -> int:
    try:
        f()
    except errors:
        return 2
    return 3


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "hasattr": lambda x, a: x * a * (2 if hasattr(a, "shape") else 3),
    "hasattr of a number": lambda x, a: x * a * (2 if hasattr(a, "is_integer") else 3),
    "getattr": lambda x, a: x * a * (2 if getattr(a, "dtype", None) is None else 3),
    "attribute": lambda x, a: x * a * tried(lambda: a.shape, AttributeError),
    "sized": lambda x, a: x * a * (2 if isinstance(a, collections.abc.Sized) else 3),
    "iterable": lambda x, a: x * a * (2 if isinstance(a, collections.abc.Iterable) else 3),
    "hashable": lambda x, a: x * a * (2 if isinstance(x, collections.abc.Hashable) else 3),
    "number": lambda x, a: x * a * (2 if isinstance(a, numbers.Number) else 3),
    "integer": lambda x, a: x * a * (2 if isinstance(a, (int, numbers.Integral)) else 3),
    "type": lambda x, a: x * a * (2 if type(a) is float else 3),
    "axes": lambda x, a: x * a * (np.ndim(a) + 1),
    "length": lambda x, a: x * a * tried(lambda: len(a), TypeError),
    "iter": lambda x, a: x * a * tried(lambda: iter(a), TypeError),
    "item": lambda x, a: x * a * tried(lambda: a[0], TypeError),
    "index": lambda x, a: x * a * tried(lambda: x[a], IndexError),
    "times list": lambda x, a: x * a * tried(lambda: a * [1.0, 2.0, 3.0], TypeError),
    "plus text": lambda x, a: x * a * tried(lambda: a + "text", TypeError),
    "and": lambda x, a: x * a * tried(lambda: a & 1, TypeError),
    "product": lambda x, a: x * a * tried(lambda: a @ x, TypeError, ValueError),
    "sized scalar": lambda x, a: x * a * (2 if isinstance(x.sum(), collections.abc.Sized) else 3),
    "length of scalar": lambda x, a: x * a * (2 if hasattr(x.sum(), "__len__") else 3),
    "scalar's length": lambda x, a: x * a * tried(lambda: x.sum().__len__(), AttributeError),
    "iter of scalar": lambda x, a: x * a * (2 if hasattr(x.sum(), "__iter__") else 3),
    "priority": lambda x, a: x * a * (2 if getattr(x, "__array_priority__", 0) > 1 else 3),
    "name": lambda x, a: x * a * tried(lambda: x.name, AttributeError),
    "sum of comparisons": lambda x, a: x * ((a > 2) + (a > 1)),
    "minus comparison": lambda x, a: x * -(a > 2),
    "inverted comparison": lambda x, a: x * (~(a > 2)),
    "comparison less comparison": lambda x, a: x * ((a >= 2) - (a == 3)),
    "comparison's type": lambda x, a: x * (2 if type(a < 3) is bool else 3),
    "comparison's attribute": lambda x, a: x * (2 if hasattr(a != 3, "dtype") else 3),
    "comparison of arrays": lambda x, a: x * (np.allclose(x, x) + np.allclose(x, x)) * a,
    "inverted comparison of arrays": lambda x, a: x * ~np.array_equal(x, x) * a,
    "comparison of arrays has": lambda x, a: x * a * (2 if hasattr(np.allclose(x, x), "T") else 3),
    "power": lambda x, a: x * a**2,
    "negative power": lambda x, a: x * (a - 1) ** -1,
    "root": lambda x, a: x * a**0.5,
    "of a power": lambda x, a: x * 2.0**a,
    "reciprocal": lambda x, a: x * (1 / a),
    "quotient": lambda x, a: x * (a / (a - 1)),
    "by zero": lambda x, a: x * tried(lambda: a / 0, ZeroDivisionError) * a,
    "remainder": lambda x, a: x * (5 % a),
    "remainder of zero": lambda x, a: x * tried(lambda: a % 0.0, ZeroDivisionError) * a,
    "floor": lambda x, a: x * (5 // (a - 2)),
    "divmod": lambda x, a: x * divmod(7.5, a)[1],
    "plus a large integer": lambda x, a: x * a * tried(lambda: a + 10**400, OverflowError),
    "key": lambda x, a: x * {2.0: 5, 3.0: 6, 4.0: 7}.get(a, 1),
    "member": lambda x, a: x * (a in {2.0, 4.0}),
    "key of NumPy's": lambda x, a: x * {21.0: 5}.get(x.sum(), 1) * a,
    "array as key": lambda x, a: x * a * tried(lambda: {}.get(x), TypeError),
    "text": lambda x, a: x * len(str(a)),
    "rounded": lambda x, a: x * round(a, 1),
    "full": lambda x, a: x * a * (2 if np.full(3, a).dtype == np.float64 else 3),
    "matched": lambda x, a: x * a * matched(x.sum()),
}


def matched(value: Any) -> int:
    match value:
        case collections.abc.Sized():
            return 2
    return 3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_pythons(name: str) -> None:
    function = FUNCTIONS[name]
    ours = ts.optimize(cache=False, **KERNEL)(function)

    def outcome(f: Callable[..., Any], a: float) -> Any:
        with np.errstate(all="ignore"):
            try:
                return np.asarray(quietly(f, X, a)).tolist()
            except Exception as error:
                return repr(error)

    for a in (2.0, 3.0, 4.0, 1e200, 0.0, 1.0, -1.0, 2.5, 3.0):
        assert str(outcome(ours, a)) == str(outcome(function, a)), a


def test_arithmetic_with_arrays_and_numbers_stays_one_program() -> None:
    def step(x: Any, rate: float) -> Any:
        y = x - (rate * 2 + 1) * x / rate + np.where(x > rate, x, rate) * -rate
        z = np.zeros(3)
        z[0] = rate
        return y + np.array([rate, 1.0, 2.0]) + sum([rate, abs(rate)]) + z

    ours = ts.optimize(cache=False, **KERNEL)(step)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for rate in (0.1, 0.2, 0.3, 0.4, -0.5):
            np.testing.assert_allclose(ours(X, rate), step(X, rate), rtol=1e-12)
    assert len(ours._known) == 2
