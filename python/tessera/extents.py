"""Integers that follow from the extents a program leaves open, as sums and products of symbols.

Such values are NumPy arrays of objects, whose elements are integers and `Extent`s, so that the
functions that fold known arrays fold these too. A question that symbols leave open (is batch·8
more than 64?) raises NeedsExtentError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from tessera.errors import Location, UnsupportedError
from tessera.types import Array

Number = Any  # int | Extent; a constant Extent is an int
_MOST_TERMS = 64  # of an extent
_MOST_ELEMENTS = 4096  # of an array of them


class NeedsExtentError(UnsupportedError):
    """What a program needs can be said only of numbers in place of these symbols."""

    def __init__(
        self, message: str, symbols: Iterable[str], location: Location | None = None
    ) -> None:
        super().__init__(message, location)
        self.symbols = tuple(sorted(set(symbols)))

    def told(self, what: str, location: Location) -> NeedsExtentError:
        """The same, saying what needs it and how to give it."""
        first = self.symbols[0]
        return NeedsExtentError(
            f"{what}{self.message}; give numbers for {', '.join(self.symbols)}: bind({first}=…), "
            f"--shape {first}=…, load(extents={{'{first}': …}}), or call the model",
            self.symbols,
            location,
        )


class Extent:
    """A sum of products of symbols, each of which stands for any number from 1.

    >>> n = Extent.of("batch*seq") * 12
    >>> str(n), str(n // Extent.of("seq")), n > 11
    ('batch*seq*12', 'batch*12', True)
    """

    __slots__ = ("terms",)

    def __init__(self, terms: dict[tuple[str, ...], int]) -> None:
        self.terms = terms  # coefficients by factors, which are sorted; none is 0

    @staticmethod
    def of(dim: int | str) -> Number:
        """The value of an extent of a program."""
        if not isinstance(dim, str):
            return int(dim)
        total: Number = 0
        for term in dim.replace("*-", "*~").replace("-", "+-").replace("~", "-").split("+"):
            product: Number = 1
            for factor in term.split("*"):
                number = factor.removeprefix("-").isdecimal()
                product = product * (int(factor) if number else Extent({(factor,): 1}))
            total = product + total
        return total

    @property
    def symbols(self) -> set[str]:
        return {s for factors in self.terms for s in factors}

    def __str__(self) -> str:
        text = "+".join(
            "*".join([*factors, *([str(c)] if c != 1 else [])])
            for factors, c in sorted(self.terms.items())
            if factors
        )
        constant = self.terms.get((), 0)
        return text + (f"{constant:+}" if constant else "")

    __repr__ = __str__

    def __hash__(self) -> int:
        return hash(str(self))

    # --- arithmetic
    def __add__(self, other: Number) -> Number:
        sums = Counter(self.terms)
        for factors, c in _terms(other).items():
            sums[factors] += c
        return _settled(sums)

    def __mul__(self, other: Number) -> Number:
        products: Counter[tuple[str, ...]] = Counter()
        for a, m in self.terms.items():
            for b, n in _terms(other).items():
                products[tuple(sorted(a + b))] += m * n
        return _settled(products)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Number:
        return self * -1

    def __sub__(self, other: Number) -> Number:
        return self + -1 * other

    def __rsub__(self, other: Number) -> Number:
        return -self + other

    def __floordiv__(self, other: Number) -> Number:
        return _divided(self, other)

    def __rfloordiv__(self, other: Number) -> Number:
        return _divided(other, self)

    def __mod__(self, other: Number) -> Number:
        return self - _divided(self, other) * other

    def __rmod__(self, other: Number) -> Number:
        return other - _divided(other, self) * self

    # --- what is so for all values of the symbols, or undecided
    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: object) -> bool:
        low, high = _bounds(self - other)
        return self._decided(low == high == 0, low > 0 or high < 0, "equal to", other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Number) -> bool:
        low, high = _bounds(self - other)
        return self._decided(high < 0, low >= 0, "less than", other)

    def __le__(self, other: Number) -> bool:
        low, high = _bounds(self - other)
        return self._decided(high <= 0, low > 0, "at most", other)

    def __gt__(self, other: Number) -> bool:
        return not self <= other

    def __ge__(self, other: Number) -> bool:
        return not self < other

    def _decided(self, yes: bool, no: bool, relation: str, other: object) -> bool:
        if not yes and not no:
            raise self._open(f"it asks whether {self} is {relation} {other}", other)
        return yes

    def _open(self, message: str, *others: object) -> NeedsExtentError:
        return NeedsExtentError(message, self.symbols.union(*map(symbols_of, others)))

    def __index__(self) -> int:
        raise self._open(f"it needs the number of {self}")

    __int__ = __float__ = __index__


def _terms(value: Number) -> dict[tuple[str, ...], int]:
    if isinstance(value, Extent):
        return value.terms
    return {(): int(value)} if value else {}


def _settled(terms: Counter[tuple[str, ...]]) -> Number:
    kept = {factors: c for factors, c in terms.items() if c}
    if len(kept) > _MOST_TERMS or any(len(f) > 16 or abs(c) >= 1 << 63 for f, c in kept.items()):
        raise NeedsExtentError("it computes much with extents", {s for t in kept for s in t})
    if not kept or set(kept) == {()}:
        return kept.get((), 0)
    return Extent(kept)


def _divided(a: Number, b: Number) -> Number:
    """The quotient where nothing is left over."""
    if not isinstance(a, Extent):
        a = Extent(_terms(a))
    rest, quotient, divisor = a, 0, _terms(b)
    if not divisor:
        raise ZeroDivisionError("an extent is divided by zero")
    lead = max(divisor, key=lambda t: (len(t), t))
    for _ in range(_MOST_TERMS):
        if not isinstance(rest, Extent):
            rest = Extent(_terms(rest))
        if not rest.terms:
            return quotient
        top = max(rest.terms, key=lambda t: (len(t), t))
        left = Counter(top)
        left.subtract(Counter(lead))
        if rest.terms[top] % divisor[lead] or min(left.values(), default=0) < 0:
            break
        part = Extent({tuple(sorted(left.elements())): rest.terms[top] // divisor[lead]})
        quotient = part + quotient
        rest = rest - part * b
    raise a._open(f"it divides {a} by {b}", b)


def _bounds(value: Number) -> tuple[float, float]:
    """Between which numbers a value lies when symbols are from 1."""
    if not isinstance(value, Extent):
        return value, value
    above: Number = 0  # in symbols that are from 0
    for factors, c in value.terms.items():
        product: Number = c
        for s in factors:
            product = Extent({(s,): 1, (): 1}) * product
        above = product + above
    rest = [c for factors, c in _terms(above).items() if factors]
    least = _terms(above).get((), 0)
    return (
        least if all(c > 0 for c in rest) else -np.inf,
        least if all(c < 0 for c in rest) else np.inf,
    )


def values_of(dims: Iterable[int | str]) -> Array:
    """A shape as an array of integers."""
    values = [Extent.of(d) for d in dims]
    return settled(np.array([*values, None], object)[:-1])


def settled(array: Array) -> Array:
    """An array without symbols as integers; one of small size, and of numbers within i64."""
    if array.dtype != object:
        return array
    if array.size > _MOST_ELEMENTS:
        raise NeedsExtentError(f"it computes {array.size} numbers with extents", symbols_of(array))
    integers = np.array([0 if isinstance(v, Extent) else v for v in array.reshape(-1)], np.int64)
    return array if symbols_of(array) else integers.reshape(array.shape)


def dims_of(values: Iterable[Number]) -> list[int | str]:
    """Extents of a program."""
    return [str(v) if isinstance(v, Extent) else int(v) for v in values]


def symbols_of(value: Any) -> set[str]:
    """The symbols in an array, a shape or a number."""
    if isinstance(value, Extent):
        return value.symbols
    if isinstance(value, str):
        return symbols_of(Extent.of(value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.reshape(-1).tolist()
    return set().union(*map(symbols_of, value)) if isinstance(value, (list, tuple)) else set()


def product(values: Iterable[Number]) -> Number:
    total: Number = 1
    for v in values:
        total = (v if isinstance(v, Extent) else int(v)) * total
    return total
