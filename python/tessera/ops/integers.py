"""Whole numbers divided, shifted and taken bit by bit, exactly as NumPy does, overflow included.

Programs know sums, products and floored remainders of integers, all modulo 2^bits, and casts; from
these everything here is made. Quotients come from f64 where that holds the integers (32 bits), else
an approximate one is corrected by its exact remainder.
"""

from __future__ import annotations

import numpy as np

from tessera.ops import pointwise as ops
from tessera.ops.operands import Operand, is_scalar, operand_dtype, promote
from tessera.tensor import Tensor, cast, unsupported
from tessera.types import is_float

_MOST_RUNS = 4  # of ones in a mask


def floor_divide(x: Operand, y: Operand) -> Tensor:
    """The greatest whole number not above x/y; of integers modulo 2^bits, and 0 where y is 0."""
    a, b = promote(np.floor_divide, x, y)
    if is_float(a.dtype):
        return ops.floor_divide_floats(x, y)
    if a.dtype == np.bool_:
        unsupported("floor division of truths is not supported; cast them to integers")
    if is_scalar(y):
        divisor = int(np.array(y).astype(a.dtype))
        if divisor in (0, 1, -1):
            return _multiply(a, divisor)
    else:
        zero = ops.equal(b, 0)
        b = ops.where(zero, b.dtype.type(1), b)
        return ops.where(zero, a.dtype.type(0), _quotient(a, b))
    return _quotient(a, b)


def trunc_divide(x: Operand, y: Operand) -> Tensor:
    """x/y rounded towards zero, modulo 2^bits; 0 where y is 0."""
    quotient = floor_divide(x, y)
    return ops.add(quotient, cast(_falls_short(x, y), quotient.dtype))


def trunc_remainder(x: Operand, y: Operand) -> Tensor:
    """What a quotient rounded towards zero leaves of x, with its sign; of floats too."""
    a, b = promote(np.fmod, x, y)
    if is_float(a.dtype):
        rest = ops.mod(ops.abs(a), ops.abs(b))
        return ops.where(ops.less(a, 0), ops.negative(rest), rest)
    return ops.subtract(ops.mod(a, b), ops.where(_falls_short(a, b), b, a.dtype.type(0)))


def _falls_short(x: Operand, y: Operand) -> Tensor:
    """Whether the floored quotient is one less than the truncated one."""
    a, b = promote(np.floor_divide, x, y)
    signs = ops.not_equal(ops.less(a, a.dtype.type(0)), ops.less(b, a.dtype.type(0)))
    return ops.logical_and(ops.not_equal(ops.mod(a, b), a.dtype.type(0)), signs)


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """Of divisors that are not 0."""
    if a.dtype.itemsize <= 4:
        # At least 2^-31 of itself away from the next whole number, and rounded by 2^-53.
        return cast(ops.floor(cast(a, np.float64) / cast(b, np.float64)), a.dtype)
    remainder = ops.mod(a, b)
    divisor = cast(b, np.float64)
    # Off by at most 2^12, and the cast of 2^63 by 2^64: it lacks a small multiple of b, exactly.
    dividend = ops.subtract(cast(a, np.float64), cast(remainder, np.float64))
    about = cast(ops.rint(ops.divide(dividend, divisor)), a.dtype)
    lacking = ops.subtract(ops.subtract(a, remainder), ops.multiply(about, b))
    return ops.add(about, cast(ops.rint(ops.divide(cast(lacking, np.float64), divisor)), a.dtype))


def left_shift(x: Operand, y: Operand) -> Tensor:
    """x · 2^y, modulo 2^bits, for a constant y."""
    a, count = _shift_count(x, y, np.left_shift)
    return ops.multiply(a, _constant(a, int(np.array(1).astype(a.dtype) << a.dtype.type(count))))


def right_shift(x: Operand, y: Operand) -> Tensor:
    """The greatest whole number not above x / 2^y, for a constant y."""
    a, count = _shift_count(x, y, np.right_shift)
    if count == 0:
        return a
    if a.dtype.itemsize <= 4:
        return cast(ops.floor(cast(a, np.float64) * 2.0**-count), a.dtype)
    if count == 63:
        return ops.where(ops.less(a, 0), a.dtype.type(-1), a.dtype.type(0))
    if count >= 11:  # what is left without its low bits fits f64
        return _without_low_bits(a, count)
    low = cast(ops.mod(a, a.dtype.type(1 << 32)), np.float64)
    high = ops.multiply(_without_low_bits(a, 32), a.dtype.type(1 << (32 - count)))
    return ops.add(high, cast(ops.floor(low * 2.0**-count), a.dtype))


def _without_low_bits(a: Tensor, count: int) -> Tensor:
    whole = ops.subtract(a, ops.mod(a, _constant(a, 1 << count)))
    return cast(cast(whole, np.float64) * 2.0**-count, a.dtype)


def _shift_count(x: Operand, y: Operand, ufunc: np.ufunc) -> tuple[Tensor, int]:
    a, _ = promote(ufunc, x, y)
    if not is_scalar(y):
        unsupported("shifts are supported by constants only")
    count = int(y)  # type: ignore[call-overload]
    if not 0 <= count < 8 * a.dtype.itemsize:
        unsupported(f"a shift of {a.dtype} by {count}")
    return a, count


def bitwise(name: str, *operands: Operand) -> Tensor:
    """&, |, ^ and ~ of truths, and of integers ~x, and x & c, x | c, x ^ c for constants c with at
    most four runs of ones, or of zeros."""
    if all(operand_dtype(x) == np.dtype(np.bool_) for x in operands):
        return ops.LOGICAL[name](*operands)
    ufunc = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}
    if name == "not":
        (t,) = promote(np.invert, *operands)
        return ops.subtract(t.dtype.type(-1 if t.dtype.kind == "i" else np.iinfo(t.dtype).max), t)
    x, mask = operands if isinstance(operands[0], Tensor) else operands[::-1]
    a, _ = promote(ufunc[name], x, mask)
    if not isinstance(x, Tensor) or not is_scalar(mask) or a.dtype.kind not in "iu":
        unsupported("of integers &, | and ^ are supported with constants only")
    c = int(np.array(mask).astype(a.dtype))
    common = _masked(a, c)
    if name == "and":
        return common
    either = ops.subtract(ops.add(a, _constant(a, c)), common)
    return either if name == "or" else ops.subtract(either, common)


def _masked(a: Tensor, c: int) -> Tensor:
    """a & c: of every run of ones from bit l to bit h what is below 2^h without what is below
    2^l."""
    bits = 8 * a.dtype.itemsize
    ones, other = _runs(c, bits), _runs(~c, bits)
    if len(ones) > len(other):
        return ops.subtract(a, _masked(a, ~c & (2**bits - 1)))
    if len(ones) > _MOST_RUNS:
        unsupported(f"&, | and ^ with {c}, whose ones are in more than {_MOST_RUNS} places")
    result: Tensor | None = None
    for low, high in ones:
        part = _below(a, high, bits)
        if low > 0:
            part = ops.subtract(part, _below(a, low, bits))
        result = part if result is None else ops.add(result, part)
    return _multiply(a, 0) if result is None else result


def _runs(c: int, bits: int) -> list[tuple[int, int]]:
    """From which bit to which c has ones."""
    text = format(c & (2**bits - 1), f"0{bits}b")[::-1] + "0"
    edges = [n for n in range(bits + 1) if text[n] != (text[n - 1] if n else "0")]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _below(a: Tensor, bit: int, bits: int) -> Tensor:
    """a modulo 2^bit, as a number of the dtype."""
    if bit == bits:
        return a
    if bit == bits - 1 and a.dtype.kind == "i":  # no number of the dtype is 2^bit
        least = np.iinfo(a.dtype).min
        return ops.where(ops.less(a, 0), ops.subtract(a, _constant(a, least)), a)
    return ops.mod(a, _constant(a, 1 << bit))


def _constant(a: Tensor, value: int) -> Operand:
    """A number of a's dtype; programs hold constants of at most 62 bits."""
    if abs(value) < 1 << 61:
        return a.dtype.type(value)
    high = a.builder.const(value >> 32, a.dtype)
    return ops.add(ops.multiply(high, a.dtype.type(1 << 32)), a.dtype.type(value & (2**32 - 1)))


def _multiply(a: Tensor, factor: int) -> Tensor:
    return a if factor == 1 else ops.multiply(a, a.dtype.type(factor))
