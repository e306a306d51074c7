# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
"""The six workloads as one would write them by hand in Triton: an expert's kernels to compare with.

Three kernels cover them. `_linear` is a matrix product with few rows, whose loop also gathers what
the workload fuses into it (the squares of a norm, a second weight, a low-rank product), optionally
split over the depth, as split-K; `_attention` is attention with a running maximum, split over the
keys as in FlashDecoding, with norms on the way in; `_ntrans` keeps rows in registers. Split parts
meet in a second kernel. The sizes of blocks are tuned by the caller, who picks of the choices; one
compiled kernel serves all batches.

TRITON_INTERPRET=1 runs them on the CPU, which is how they are tested.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Choice = dict[str, int]  # sizes of blocks, splits, warps, stages
LOG2_E: float = 1.4426950408889634


# --- few rows times a matrix ------------------------------------------------------------------


@triton.jit
def _finish(acc, other, squares, low, b, rows, cols, M, N, K, eps,
            NORM: tl.constexpr, GATED: tl.constexpr, RANK: tl.constexpr):  # fmt: skip
    """What follows the sums over the depth: f32 in, f32 out."""
    if NORM:
        acc = acc * tl.rsqrt(squares / K + eps)[:, None]
    if GATED:
        acc = acc * tl.sigmoid(acc) * other
    if RANK > 0:
        ranks = tl.arange(0, RANK)
        at = b + ranks[:, None] * N + cols[None, :]
        bt = tl.load(at, mask=cols[None, :] < N, other=0.0)
        acc += tl.dot(low.to(bt.dtype), bt)
    return acc


@triton.jit(do_not_specialize=["M"])
def _linear(x, gain, w, w2, a, b, out, parts, parts2, parts_squares, parts_low, M, N, K, eps,
            NORM: tl.constexpr, GAIN: tl.constexpr, GATED: tl.constexpr, RANK: tl.constexpr,
            BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    split = tl.program_id(1)
    rows = tl.program_id(2) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    other = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    low = tl.zeros((BM, RANK if RANK > 0 else 16), tl.float32)
    steps = tl.cdiv(K, BK * SPLIT)
    for step in range(steps):
        ks = (split * steps + step) * BK + tl.arange(0, BK)
        inside = (rows[:, None] < M) & (ks[None, :] < K)
        xt = tl.load(x + rows[:, None] * K + ks[None, :], mask=inside, other=0.0)
        weights = (ks[:, None] < K) & (cols[None, :] < N)
        at = ks[:, None] * N + cols[None, :]
        wt = tl.load(w + at, mask=weights, other=0.0)
        if NORM:
            wide = xt.to(tl.float32)
            squares += tl.sum(wide * wide, axis=1)
            if GAIN:
                g = tl.load(gain + ks, mask=ks < K, other=0.0).to(tl.float32)
                xt = (wide * g[None, :]).to(xt.dtype)
        acc = tl.dot(xt, wt, acc)
        if GATED:
            other = tl.dot(xt, tl.load(w2 + at, mask=weights, other=0.0), other)
        if RANK > 0:
            ranks = tl.arange(0, RANK)
            at_a = a + ks[:, None] * RANK + ranks[None, :]
            low = tl.dot(xt, tl.load(at_a, mask=ks[:, None] < K, other=0.0), low)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    at = rows[:, None] * N + cols[None, :]
    if SPLIT == 1:
        acc = _finish(acc, other, squares, low, b, rows, cols, M, N, K, eps, NORM, GATED, RANK)
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(parts + split * M * N + at, acc, mask=inside)
        if GATED:
            tl.store(parts2 + split * M * N + at, other, mask=inside)
        if NORM:  # the same in every column of blocks
            tl.store(parts_squares + split * M + rows, squares, mask=rows < M)
        if RANK > 0:
            ranks = tl.arange(0, RANK)
            at_low = parts_low + (split * M + rows[:, None]) * RANK + ranks[None, :]
            tl.store(at_low, low, mask=rows[:, None] < M)


@triton.jit(do_not_specialize=["M"])
def _linear_combine(b, out, parts, parts2, parts_squares, parts_low, M, N, K, eps,
                    NORM: tl.constexpr, GATED: tl.constexpr, RANK: tl.constexpr, BM: tl.constexpr,
                    BN: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    at = rows[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    other = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    low = tl.zeros((BM, RANK if RANK > 0 else 16), tl.float32)
    for split in range(SPLIT):
        acc += tl.load(parts + split * M * N + at, mask=inside, other=0.0)
        if GATED:
            other += tl.load(parts2 + split * M * N + at, mask=inside, other=0.0)
        if NORM:
            squares += tl.load(parts_squares + split * M + rows, mask=rows < M, other=0.0)
        if RANK > 0:
            ranks = tl.arange(0, RANK)
            at_low = parts_low + (split * M + rows[:, None]) * RANK + ranks[None, :]
            low += tl.load(at_low, mask=rows[:, None] < M, other=0.0)
    acc = _finish(acc, other, squares, low, b, rows, cols, M, N, K, eps, NORM, GATED, RANK)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


def linear(x: Any, w: Any, choice: Choice, *, gain: Any = None, eps: float | None = None,
           gate: Any = None, low_rank: tuple[Any, Any] | None = None) -> Any:  # fmt: skip
    """x (M, K) times w (K, N), with what is fused into it.

    eps: x is RMS-normalised first, by `gain` (K,) where given; gate (K, N): silu(x·w) ∘ (x·gate);
    low_rank: (a (K, r), b (r, N)) adds (x·a)·b, r a power of two from 16.
    """
    (m, k), n = x.shape, w.shape[1]
    bm, bn, bk, split = (choice[name] for name in ("BM", "BN", "BK", "SPLIT"))
    rank = low_rank[0].shape[1] if low_rank else 0
    flags = {"NORM": eps is not None, "GATED": gate is not None, "RANK": rank}
    out = x.new_empty((m, n))
    parts = [out] * 4
    if split > 1:
        shapes = (
            (split, m, n),
            (split, m, n) if gate is not None else (1,),
            (split, m) if eps is not None else (1,),
            (split, m, rank) if rank else (1,),
        )
        parts = [x.new_empty(shape, dtype=torch.float32) for shape in shapes]
    a, b = low_rank or (w, w)
    blocks = (triton.cdiv(n, bn), triton.cdiv(m, bm))
    launch = {"num_warps": choice["warps"], "num_stages": choice["stages"]}
    _linear[(blocks[0], split, blocks[1])](
        x, w if gain is None else gain, w, w if gate is None else gate, a, b, out, *parts,
        m, n, k, eps or 0.0, GAIN=gain is not None, BM=bm, BN=bn, BK=bk, SPLIT=split, **flags,
        **launch)  # fmt: skip
    if split > 1:
        _linear_combine[blocks](b, out, *parts, m, n, k, eps or 0.0, BM=bm, BN=bn, SPLIT=split,
                                **flags, num_warps=4)  # fmt: skip
    return out


# --- attention --------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["M"])
def _attention(q, k, v, out, parts, parts_max, parts_sum, M, L, k_head, k_key, k_dim,
               scale_log2, eps, NORM_Q: tl.constexpr, NORM_K: tl.constexpr, NORM_V: tl.constexpr,
               D: tl.constexpr, BM: tl.constexpr, BL: tl.constexpr,
               SPLIT: tl.constexpr):  # fmt: skip
    head = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    queries = tl.load(q + head * M * D + rows[:, None] * D + dims[None, :],
                      mask=rows[:, None] < M, other=0.0)  # fmt: skip
    if NORM_Q:
        wide_q = queries.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide_q * wide_q, axis=1) / D + eps)
        queries = (wide_q * scale[:, None]).to(queries.dtype)
    high = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    steps = tl.cdiv(L, BL * SPLIT)
    for step in range(steps):
        keys = (split * steps + step) * BL + tl.arange(0, BL)
        kt = tl.load(k + head * k_head + keys[None, :] * k_key + dims[:, None] * k_dim,
                     mask=keys[None, :] < L, other=0.0)  # fmt: skip
        scores = tl.dot(queries, kt) * scale_log2
        if NORM_K:
            wide_k = kt.to(tl.float32)
            scores = scores * tl.rsqrt(tl.sum(wide_k * wide_k, axis=0) / D + eps)[None, :]
        scores = tl.where(keys[None, :] < L, scores, float("-inf"))
        higher = tl.maximum(high, tl.max(scores, axis=1))
        # A part of the keys may be empty: no difference of infinities.
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(high - safe)
        total = total * shrink + tl.sum(p, axis=1)
        vt = tl.load(v + head * L * D + keys[:, None] * D + dims[None, :],
                     mask=keys[:, None] < L, other=0.0)  # fmt: skip
        if NORM_V:
            wide_v = vt.to(tl.float32)
            p = p * tl.rsqrt(tl.sum(wide_v * wide_v, axis=1) / D + eps)[None, :]
        acc = tl.dot(p.to(vt.dtype), vt, acc * shrink[:, None])
        high = higher
    inside = rows < M
    if SPLIT == 1:
        at = head * M * D + rows[:, None] * D + dims[None, :]
        acc = acc / total[:, None]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside[:, None])
    else:
        row = (head * M + rows) * SPLIT + split
        tl.store(parts + row[:, None] * D + dims[None, :], acc, mask=inside[:, None])
        tl.store(parts_max + row, high, mask=inside)
        tl.store(parts_sum + row, total, mask=inside)


@triton.jit
def _attention_combine(out, parts, parts_max, parts_sum, D: tl.constexpr, SPLIT: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLIT)
    dims = tl.arange(0, D)
    high = tl.load(parts_max + row * SPLIT + splits)
    weight = tl.exp2(high - tl.max(high, axis=0))
    total = tl.sum(weight * tl.load(parts_sum + row * SPLIT + splits), axis=0)
    values = tl.load(parts + (row * SPLIT + splits)[:, None] * D + dims[None, :])
    acc = tl.sum(values * weight[:, None], axis=0) / total
    tl.store(out + row * D + dims, acc.to(out.dtype.element_ty))


def attention(q: Any, k: Any, v: Any, choice: Choice, *, scale: float, keys_are_rows: bool,
              normalised: str = "", eps: float = 1e-6) -> Any:  # fmt: skip
    """softmax(scale · q kᵀ) v: q (H, M, D), v (H, L, D), k (H, L, D) or, in columns, (H, D, L).

    `normalised` names which of Q, K, V are RMS-normalised over D first.
    """
    (h, m, d), length = q.shape, v.shape[1]
    bm, bl, split = choice["BM"], choice["BL"], choice["SPLIT"]
    out = torch.empty_like(q)
    parts = [out] * 3
    if split > 1:
        shapes = ((h, m, split, d), (h, m, split), (h, m, split))
        parts = [q.new_empty(shape, dtype=torch.float32) for shape in shapes]
    k_key, k_dim = (d, 1) if keys_are_rows else (1, length)
    flags = {f"NORM_{name}": name in normalised for name in "QKV"}
    _attention[(triton.cdiv(m, bm), split, h)](
        q, k, v, out, *parts, m, length, d * length, k_key, k_dim, scale * LOG2_E, eps, D=d, BM=bm,
        BL=bl, SPLIT=split, **flags, num_warps=choice["warps"],
        num_stages=choice["stages"])  # fmt: skip
    if split > 1:
        _attention_combine[(h * m,)](out, *parts, D=d, SPLIT=split, num_warps=2)
    return out


# --- the normalised transformer's step --------------------------------------------------------


@triton.jit
def _ntrans(h, x, alpha, out, N, eps, FORM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BN)
    inside = cols < N
    at = row * N + cols
    hv = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
    xv = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    av = tl.load(alpha + at, mask=inside, other=0.0).to(tl.float32)
    if FORM == 1:  # the paper's: x + α rms(h − x)
        hv = hv - xv
    hv = hv * tl.rsqrt(tl.sum(hv * hv, axis=0) / N + eps)
    if FORM == 0:  # nGPT's: x + α (rms(h) − x)
        hv = hv - xv
    elif FORM == 2:  # Mirage's script: x + α (rms(h) + x)
        hv = hv + xv
    y = xv + av * hv
    y = y * tl.rsqrt(tl.sum(y * y, axis=0) / N + eps)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


NTRANS_FORMS = {"ntrans": 0, "ntrans_paper": 1, "ntrans_repo": 2}


def ntrans(h: Any, x: Any, alpha: Any, choice: Choice, *, form: int, eps: float = 1e-6) -> Any:
    """RMS(x + α·(…)) of rows (M, N); `form` as in NTRANS_FORMS."""
    m, n = x.shape
    out = torch.empty_like(x)
    _ntrans[(m,)](h, x, alpha, out, n, eps, FORM=form, BN=triton.next_power_of_2(n),
                  num_warps=choice["warps"])  # fmt: skip
    return out


# --- choices ----------------------------------------------------------------------------------


def linear_choices(m: int, n: int, k: int, multiprocessors: int) -> list[Choice]:
    """Sizes worth trying; some may not fit the device, which the caller finds out."""
    bm = min(128, max(16, triton.next_power_of_2(m)))
    some: list[Choice] = []
    for bn, bk, warps, stages in (
        (16, 256, 4, 4), (32, 128, 4, 4), (64, 64, 4, 5), (64, 128, 4, 3), (128, 64, 4, 4),
    ):  # fmt: skip
        blocks = triton.cdiv(n, bn) * triton.cdiv(m, bm)
        for split in _splits(blocks, k // bk, multiprocessors):
            some.append({"BM": bm, "BN": bn, "BK": bk, "SPLIT": split, "warps": warps,
                         "stages": stages})  # fmt: skip
    return some


def attention_choices(h: int, m: int, length: int, multiprocessors: int) -> list[Choice]:
    """As above."""
    some: list[Choice] = []
    padded = max(16, triton.next_power_of_2(m))
    for bm, bl, warps, stages in (
        (min(64, padded), 64, 4, 3), (min(64, padded), 128, 4, 2), (min(128, padded), 64, 8, 3),
        (min(128, padded), 128, 8, 2),
    ):  # fmt: skip
        blocks = triton.cdiv(m, bm) * h
        for split in _splits(blocks, length // bl, multiprocessors):
            some.append({"BM": bm, "BL": bl, "SPLIT": split, "warps": warps, "stages": stages})
    return [c for i, c in enumerate(some) if c not in some[:i]]


def _splits(blocks: int, most: int, multiprocessors: int) -> list[int]:
    """Powers of two with which blocks fill the multiprocessors about once, and about twice.

    `most` is how many steps there are to split.
    """
    once = triton.next_power_of_2(max(1, multiprocessors // blocks))
    return sorted({max(1, min(s, 1 << most.bit_length() >> 1, 64)) for s in (1, once, 2 * once)})


def ntrans_choices() -> list[Choice]:
    """Warps for a row."""
    return [{"warps": warps} for warps in (4, 8, 16)]
