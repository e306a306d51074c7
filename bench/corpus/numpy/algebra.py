"""Programs of linear algebra, as they are written before anybody thinks of speed."""

import numpy as np


def chain_vector(A: "f64[100,100]", B: "f64[100,100]", v: "f64[100]"):
    return A @ B @ v


def chain_three(A: "f64[100,10]", B: "f64[10,100]", C: "f64[100,10]"):
    return A @ B @ C


def distribute(A: "f64[80,80]", B: "f64[80,80]", C: "f64[80,80]"):
    return A @ B + A @ C


def row_sums_of_product(A: "f64[100,80]", B: "f64[80,90]"):
    return np.sum(A @ B, axis=1)


def total_of_product(A: "f64[100,80]", B: "f64[80,90]"):
    return np.sum(np.dot(A, B))


def sum_of_outer(x: "f64[200]", y: "f64[150]"):
    return np.outer(x, y).sum()


def outer_times_vector(x: "f64[200]", y: "f64[150]", z: "f64[150]"):
    return np.outer(x, y) @ z


def frobenius_squared(A: "f64[80,60]"):
    return np.trace(A.T @ A)


def frobenius_inner(A: "f64[80,60]", B: "f64[80,60]"):
    return np.trace(A @ B.T)


def diagonal_scaling(A: "f64[80,80]", d: "f64[80]"):
    return A @ np.diag(d)


def diagonal_scaling_left(A: "f64[80,80]", d: "f64[80]"):
    return np.diag(d) @ A


def similarity_diagonal(A: "f64[60,60]", d: "f64[60]"):
    return A @ np.diag(d) @ A.T


def double_transpose_product(A: "f64[60,40]", B: "f64[40,50]"):
    return (B.T @ A.T).T


def identity_product(A: "f64[60,60]"):
    return A @ np.eye(60)


def ones_product(A: "f64[60,80]"):
    return A @ np.ones(80)


def centering_matrix(X: "f64[60,20]"):
    H = np.eye(60) - np.ones((60, 60)) / 60
    return H @ X


def householder_apply(v: "f64[100]", A: "f64[100,80]"):
    return (np.eye(100) - 2 * np.outer(v, v) / (v @ v)) @ A


def projection(u: "f64[200]", v: "f64[200]"):
    return np.dot(u, v) / np.dot(v, v) * v


def gram_schmidt_two(a: "f64[200]", b: "f64[200]"):
    q1 = a / np.sqrt(a @ a)
    r = b - (q1 @ b) * q1
    return q1, r / np.sqrt(r @ r)


def power_iteration(A: "f64[60,60]", v: "f64[60]"):
    for _ in range(4):
        w = A @ v
        v = w / np.linalg.norm(w)
    return v


def rayleigh_quotient(A: "f64[80,80]", x: "f64[80]"):
    return x.T @ A @ x / (x.T @ x)


def bilinear_forms(X: "f64[50,30]", A: "f64[30,20]", Y: "f64[50,20]"):
    return np.array([x @ A @ y for x, y in zip(X, Y)])


def batched_outer(X: "f64[50,10]", Y: "f64[50,12]"):
    return np.stack([np.outer(x, y) for x, y in zip(X, Y)])


def sum_of_batched_outer(X: "f64[50,10]", Y: "f64[50,12]"):
    return np.sum([np.outer(x, y) for x, y in zip(X, Y)], axis=0)


def rank_one_update(A: "f64[80,80]", u: "f64[80]", v: "f64[80]", x: "f64[80]"):
    return (A + np.outer(u, v)) @ x


def kronecker_apply(A: "f64[8,8]", B: "f64[8,8]", x: "f64[64]"):
    return np.kron(A, B) @ x


def symmetric_part(A: "f64[80,80]"):
    return 0.5 * A + 0.5 * A.T


def antisymmetric_norm(A: "f64[80,80]"):
    return np.sum((A - A.T) ** 2)


def polynomial_of_matrix(A: "f64[50,50]", x: "f64[50]"):
    return (A @ A @ A + 2 * A @ A + 3 * A) @ x


def neumann_series(A: "f64[40,40] in (-0.01, 0.01)", b: "f64[40]"):
    return b + A @ b + A @ (A @ b) + A @ (A @ (A @ b))


def tensor_contract(T: "f64[10,12,14]", u: "f64[12]", v: "f64[14]"):
    return np.einsum("ijk,j,k->i", T, u, v)


def tensor_mode_product(T: "f64[10,12,14]", M: "f64[12,5]"):
    return np.transpose(np.tensordot(T, M, axes=([1], [0])), (0, 2, 1))


def batched_matvec(A: "f64[50,10,12]", x: "f64[50,12]"):
    return (A * x[:, None, :]).sum(axis=-1)


def batched_trace(A: "f64[50,8,8]", B: "f64[50,8,8]"):
    return np.trace(A @ B, axis1=1, axis2=2)


def columns_normalized(A: "f64[80,40]"):
    return A / np.sqrt(np.sum(A * A, axis=0))


def degree_normalized(A: "f64[60,60] > 0"):
    d = np.sum(A, axis=1)
    return np.diag(1 / np.sqrt(d)) @ A @ np.diag(1 / np.sqrt(d))


def graph_laplacian(A: "f64[60,60] > 0"):
    return np.diag(A.sum(axis=1)) - A


def laplacian_quadratic(A: "f64[60,60] > 0", x: "f64[60]"):
    return 0.5 * np.sum(A * (x[:, None] - x[None, :]) ** 2)


def page_rank_step(P: "f64[60,60] > 0", r: "f64[60] > 0"):
    return 0.85 * (P / P.sum(axis=0)) @ r + 0.15 / 60


def lower_times_vector(A: "f64[80,80]", x: "f64[80]"):
    return np.tril(A) @ x


def prefix_sums(x: "f64[100]"):
    return np.tril(np.ones((100, 100))) @ x


def condition_scaled(A: "f64[50,50]"):
    scale = np.max(np.abs(A), axis=1)
    return A / scale[:, np.newaxis], scale


def conjugate_gradient_step(A: "f64[60,60]", x: "f64[60]", r: "f64[60]", p: "f64[60]"):
    Ap = A @ p
    alpha = (r @ r) / (p @ Ap)
    r_new = r - alpha * Ap
    return x + alpha * p, r_new, r_new + (r_new @ r_new) / (r @ r) * p


def jacobi_solver_step(A: "f64[60,60]", x: "f64[60]", b: "f64[60]"):
    d = np.diag(A) + 70
    return (b - (A - np.diag(np.diag(A))) @ x) / d


def integer_matrix(A: "i64[30,30] in [0, 9]", B: "i64[30,30] in [0, 9]"):
    return A @ B + B @ A - 2 * A


def bit_counts(x: "i32[500] in [0, 255]"):
    return np.sum((x[:, None] // 2 ** np.arange(8)) % 2, axis=1)


def solve_system(A: "f64[20,20]", b: "f64[20]"):
    return np.linalg.solve(A + 30 * np.eye(20), b)
