"""The 33 programs of STENSO's evaluation (CGO 2026, Table I and §7), at its sizes.

Rewritten here from their definitions: 200 in every dimension where an argument has rank 2 or more,
else 1000, f32, values in [0, 1); arguments whose best rewrite needs it are positive.
"""

import numpy as np


# --- from GitHub
def diag_dot(A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    return np.diagonal(np.dot(A, B)) * 1


def elem_square(A: "f32[200,200] in [0, 1)"):
    return np.power(A, 2)


def log_exp_1(A: "f32[200,200] in (0, 1)", B: "f32[200,200] in (0, 1)"):
    return np.exp(np.log(A + B))


def log_exp_2(A: "f32[200,200] in (0, 1)", B: "f32[200,200] in (0, 1)"):
    return np.exp(np.log(A) - np.log(B))


def mat_vec_prod(A: "f32[200,200] in [0, 1)", x: "f32[200] in [0, 1)"):
    return np.sum(A * x, axis=1)


def dot_trans_1(A: "f32[200,200] in [0, 1)", x: "f32[200] in [0, 1)"):
    return np.dot(A.T, x.T)


def scalar_sum(A: "f32[200,200] in [0, 1)", x: "f32[200] in [0, 1)"):
    return np.sum(A * x, axis=0)


def vec_lerp(A: "f32[200,200] in [0, 1)", x: "f32[200] in [0, 1)", y: "f32[200] in [0, 1)"):
    return np.stack([x * r + (1.0 - r) * y for r in A], axis=0)


def euclidian_dist(A: "f32[1000] in [0, 1)"):
    return np.sum(np.power(A, 2), axis=-1)


def common_factor(
    A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)", C: "f32[200,200] in [0, 1)"
):
    return A * B + C * B


def inner_prod(a: "f32[1000] in [0, 1)", b: "f32[1000] in [0, 1)"):
    return np.sum(a * b)


def scale_dot(A: "f32[] in [0, 1)", B: "f32[200,200] in [0, 1)", C: "f32[200,200] in [0, 1)"):
    return A * B @ C


def reshape_dot(A: "f32[200,200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    r, q, p = A.shape
    return np.reshape(np.reshape(A, (r, q, 1, p)) @ B, (r, q, p))


def power_neg(A: "f32[200,200] in (0, 1)"):
    return np.power(A, -1)


def dot_trans_2(A: "f32[200,200] in [0, 1)"):
    return A.T.T


def reorder_dot(A: "f32[200,200] in [0, 1)", x: "f32[200] in [0, 1)"):
    return x.T @ A @ x


def trace_dot(A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    return np.trace(A @ B.T)


def sum_stack(
    A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)", C: "f32[200,200] in [0, 1)"
):
    return np.sum(np.stack([A, B, C], axis=0), axis=0)


def sum_sum(A: "f32[200,200] in [0, 1)"):
    return np.sum(np.sum(A, axis=0), axis=0)


def sum_diag_dot(A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    return np.sum(np.diag(np.dot(A, B)))


def max_stack(A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    return np.max(np.stack([A, B], axis=0), axis=0)


# --- synthetic
def synth_1(A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    return (A * B) + 3 * (A * B)


def synth_2(A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    return A + B - A - A + B * B - B


def synth_3(A: "f32[200,200] in (0, 1)", B: "f32[200,200] in (0, 1)"):
    return (A + B) / np.sqrt(A + B)


def synth_4(A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    return A + A + B - A - A - B * B


def synth_5(A: "f32[200,200] in (0, 1)", B: "f32[200,200] in [0, 1)"):
    return np.power(np.sqrt(A), 4) + 2 * B


def synth_6(A: "f32[200,200] in (0, 1)"):
    return np.power(np.sqrt(A) + np.sqrt(A), 2)


def synth_7(A: "f32[200,200] in (0, 1)"):
    return np.power(A, 6) / np.power(A, 4)


def synth_8(A: "f32[200,200] in [0, 1)", B: "f32[200,200] in [0, 1)"):
    return A * B + A * B


def synth_9(A: "f32[200,200] in [0, 1)", x: "f32[200] in [0, 1)"):
    return np.sum(np.sum(A * x, axis=0))


def synth_10(A: "f32[200,200] in [0, 1)"):
    return np.stack([r * 2 for r in A], axis=0)


def synth_11(A: "f32[200,200] in [0, 1)"):
    return A * A * A * A * A


def synth_12(A: "f32[200,200] in [0, 1)"):
    return A + A + A + A + A
