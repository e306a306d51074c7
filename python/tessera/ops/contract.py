"""Contractions: matmul and everything NumPy derives from it, down to einsum."""

from __future__ import annotations

import string
from collections.abc import Sequence
from math import prod

import numpy as np

from tessera.extents import dims_of, product, values_of
from tessera.ops.index import diagonal
from tessera.ops.operands import Operand, axis_of, promote, static_shape, tensors
from tessera.ops.pointwise import multiply
from tessera.ops.reduce import sum as reduce_sum
from tessera.ops.shape import expand_dims, reshape, squeeze, swapaxes, transpose
from tessera.tensor import Tensor, bad_input, unsupported
from tessera.types import Dim


def matmul(x: Operand, y: Operand) -> Tensor:
    """The product over the last axis of x and the second to last of y; leading axes broadcast."""
    a, b = promote(np.matmul, x, y)
    if a.ndim == 0 or b.ndim == 0:
        bad_input("matmul: an operand has no axes; use * for scalars")
    left = expand_dims(a, 0) if a.ndim == 1 else a
    right = expand_dims(b, 1) if b.ndim == 1 else b
    result = a.builder.emit("matmul", [left, right])
    drop = ([result.ndim - 2] if a.ndim == 1 else []) + ([result.ndim - 1] if b.ndim == 1 else [])
    return squeeze(result, drop) if drop else result


def concat_matmul(w: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """(W‖X)(Y;Z) = W·Y + X·Z (Mirage §8.1)."""
    return w.builder.emit("concat_matmul", [w, x, y, z])


def dot(x: Operand, y: Operand) -> Tensor:
    """np.dot: the last axis of x against the second to last of y, without broadcasting."""
    a, b = tensors(x, y)
    if a.ndim == 0 or b.ndim == 0:
        return multiply(x, y)
    if b.ndim <= 2:
        return matmul(a, b)
    return tensordot(a, b, ([a.ndim - 1], [b.ndim - 2]))


def inner(x: Operand, y: Operand) -> Tensor:
    """The last axes contracted."""
    a, b = tensors(x, y)
    if a.ndim == 0 or b.ndim == 0:
        return multiply(x, y)
    return tensordot(a, b, ([a.ndim - 1], [b.ndim - 1]))


def vdot(x: Operand, y: Operand) -> Tensor:
    """The inner product of the flattened tensors."""
    return inner(*(reshape(t, -1) for t in tensors(x, y)))


def outer(x: Operand, y: Operand) -> Tensor:
    """Every product of an element of x with one of y, both flattened."""
    a, b = (reshape(t, -1) for t in tensors(x, y))
    return multiply(expand_dims(a, 1), expand_dims(b, 0))


def tensordot(
    x: Operand, y: Operand, axes: int | Sequence[int] | Sequence[Sequence[int]] = 2
) -> Tensor:
    """Axes of x contracted with axes of y; the free ones of x come first."""
    a, b = tensors(x, y)
    if isinstance(axes, (int, np.integer)):
        left, right = list(range(a.ndim - int(axes), a.ndim)), list(range(int(axes)))
    else:
        first, second = axes
        left = [first] if isinstance(first, int) else list(first)
        right = [second] if isinstance(second, int) else list(second)
    left, right = [axis_of(i, a.ndim) for i in left], [axis_of(i, b.ndim) for i in right]
    sa, sb = static_shape(a, "tensordot"), static_shape(b, "tensordot")
    if [sa[i] for i in left] != [sb[i] for i in right]:
        bad_input(f"tensordot: the contracted axes of {a!r} and {b!r} have different extents")
    free_a = [i for i in range(a.ndim) if i not in left]
    free_b = [i for i in range(b.ndim) if i not in right]
    k = prod(sa[i] for i in left)
    matrix_a = reshape(transpose(a, free_a + left), [prod(sa[i] for i in free_a), k])
    matrix_b = reshape(transpose(b, right + free_b), [k, prod(sb[i] for i in free_b)])
    return reshape(matmul(matrix_a, matrix_b), [sa[i] for i in free_a] + [sb[i] for i in free_b])


def vecdot(x: Operand, y: Operand, axis: int = -1) -> Tensor:
    """Inner products along one axis, other axes broadcast."""
    return reduce_sum(multiply(x, y), axis)


def einsum(subscripts: str, *operands: Operand) -> Tensor:
    """np.einsum with a subscript string; contracts the operands from left to right."""
    if not isinstance(subscripts, str):
        unsupported("np.einsum is supported with a subscript string only")
    values = tensors(*operands)
    named = _without_ellipsis(subscripts.replace(" ", ""), [v.ndim for v in values])
    terms, output = _parse(named)
    extents: dict[str, Dim] = {}
    for n, (term, value) in enumerate(zip(terms, values, strict=True)):
        if len(term) != value.ndim:
            bad_input(f"einsum: operand {n} has {value.ndim} axes, but subscripts '{term}'")
        for letter, extent in zip(term, value.shape, strict=True):
            known = extents.setdefault(letter, extent)
            if known == 1:
                extents[letter] = extent
            elif extent not in (1, known):
                bad_input(f"einsum: '{letter}' has extents {known} and {extent}")
    term, value = _reduce_term(terms[0], values[0], output, terms[1:])
    for n in range(1, len(values)):
        later = terms[n + 1 :]
        next_term, next_value = _reduce_term(terms[n], values[n], output, [*later, term])
        term, value = _pair(term, value, next_term, next_value, output, later)
        term, value = _reduce_term(term, value, output, later)
    return transpose(value, [term.index(c) for c in output])


def _without_ellipsis(subscripts: str, ndims: Sequence[int]) -> str:
    """`...` replaced by letters that are not used, the same for all operands."""
    left, arrow, output = subscripts.partition("->")
    terms = left.split(",")
    if len(terms) != len(ndims):
        bad_input(f"einsum: '{subscripts}' names {len(terms)} operands, {len(ndims)} were given")
    if "..." not in subscripts:
        return subscripts
    free = [c for c in string.ascii_letters if c not in subscripts]
    extra = [n - len(t.replace("...", "")) for t, n in zip(terms, ndims, strict=True)]
    most = max(e for t, e in zip(terms, extra, strict=True) if "..." in t)
    letters = free[:most]
    known = ("".join(letters[most - e :]) for e in extra)
    named = [t.replace("...", new) for t, new in zip(terms, known, strict=True)]
    if not arrow:
        once = [c for c in sorted(set(left) - set(".,")) if left.count(c) == 1]
        return f"{','.join(named)}->{''.join(letters + once)}"
    return f"{','.join(named)}->{output.replace('...', ''.join(letters))}"


def _parse(subscripts: str) -> tuple[list[str], str]:
    left, arrow, output = subscripts.partition("->")
    terms = left.split(",")
    letters = "".join(terms)
    if not arrow:
        output = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if not (letters + output).isalpha() and letters + output:
        bad_input(f"einsum: '{subscripts}' may contain only letters, ',' and '->'")
    for c in output:
        if output.count(c) > 1 or c not in letters:
            bad_input(f"einsum: output subscript '{c}' must appear once, and in an operand")
    return terms, output


def _reduce_term(term: str, value: Tensor, output: str, others: list[str]) -> tuple[str, Tensor]:
    """Takes diagonals of repeated letters, then sums letters that nothing else needs."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i = term.index(c)
            j = term.index(c, i + 1)
            value = diagonal(value, 0, i, j)
            term = "".join(d for n, d in enumerate(term) if n not in (i, j)) + c
    needed = set(output).union(*others) if others else set(output)
    axes = [i for i, c in enumerate(term) if c not in needed]
    if axes:
        value = reduce_sum(value, axes, dtype=value.dtype)
        term = "".join(c for c in term if c in needed)
    return term, value


def _pair(
    term_a: str, a: Tensor, term_b: str, b: Tensor, output: str, later: list[str]
) -> tuple[str, Tensor]:
    """One contraction: batch letters are kept by both, summed letters go into one matmul."""
    kept = set(output).union(*later) if later else set(output)
    shared = [c for c in term_a if c in term_b]
    batch = [c for c in shared if c in kept]
    summed = [c for c in shared if c not in kept]
    free_a = [c for c in term_a if c not in shared]
    free_b = [c for c in term_b if c not in shared]
    order_a, order_b = batch + free_a + summed, batch + summed + free_b
    a = transpose(a, [term_a.index(c) for c in order_a])
    b = transpose(b, [term_b.index(c) for c in order_b])
    sizes_a = dict(zip(order_a, a.shape, strict=True))
    sizes_b = dict(zip(order_b, b.shape, strict=True))
    result = batch + free_a + free_b
    if not summed:
        a = expand_dims(a, range(len(order_a), len(result)))
        b = expand_dims(b, range(len(batch), len(batch) + len(free_a)))
        return "".join(result), multiply(a, b)
    if any(sizes_a[c] != sizes_b[c] for c in summed):
        unsupported("np.einsum that broadcasts a summed axis of extent 1 is not supported")
    rows, k, columns = dims_of(
        product(values_of(sizes[c] for c in letters))
        for sizes, letters in ((sizes_a, free_a), (sizes_a, summed), (sizes_b, free_b))
    )
    ma = reshape(a, [*[sizes_a[c] for c in batch], rows, k])
    mb = reshape(b, [*[sizes_b[c] for c in batch], k, columns])
    lead = [sizes_b[c] if sizes_a[c] == 1 else sizes_a[c] for c in batch]
    shape = lead + [sizes_a[c] for c in free_a] + [sizes_b[c] for c in free_b]
    return "".join(result), reshape(matmul(ma, mb), shape)


def matrix_transpose(x: Operand) -> Tensor:
    """The last two axes exchanged."""
    return swapaxes(x, -1, -2)
