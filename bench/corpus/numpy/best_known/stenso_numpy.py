"""The same by all of NumPy's own means, where they differ: what a person who measures writes."""

import numpy as np


def diag_dot(A, B):
    return np.einsum("ij,ji->i", A, B)


def elem_square(A):
    return np.square(A)


def mat_vec_prod(A, x):
    return A @ x


def dot_trans_1(A, x):
    return x @ A


def scalar_sum(A, x):
    return (np.ones(A.shape[0], A.dtype) @ A) * x


def vec_lerp(A, x, y):
    t = A * (x - y)
    return np.add(t, y, out=t)


def common_factor(A, B, C):
    t = A + C
    return np.multiply(t, B, out=t)


def scale_dot(A, B, C):
    t = B @ C
    return np.multiply(t, A, out=t)


def reshape_dot(A, B):
    return (A.reshape(-1, A.shape[2]) @ B).reshape(A.shape[0], A.shape[1], B.shape[1])


def power_neg(A):
    return np.reciprocal(A)


def reorder_dot(A, x):
    return np.dot(x @ A, x)


def trace_dot(A, B):
    return np.vdot(A, B)


def sum_stack(A, B, C):
    t = A + B
    return np.add(t, C, out=t)


def sum_diag_dot(A, B):
    return np.einsum("ij,ji->", A, B)


def synth_1(A, B):
    t = A * B
    return np.multiply(t, 4, out=t)


def synth_2(A, B):
    t = B * B
    return np.subtract(t, A, out=t)


def synth_3(A, B):
    t = A + B
    return np.sqrt(t, out=t)


def synth_4(A, B):
    t = 1 - B
    return np.multiply(t, B, out=t)


def synth_5(A, B):
    t = A * A
    return np.add(t, B + B, out=t)


def synth_8(A, B):
    t = A * B
    return np.add(t, t, out=t)


def synth_9(A, x):
    return np.sum(A @ x)


def synth_10(A):
    return A + A


def synth_11(A):
    t = A * A
    np.multiply(t, t, out=t)
    return np.multiply(t, A, out=t)
