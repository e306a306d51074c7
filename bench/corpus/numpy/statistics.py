"""Programs of statistics: moments, distances, regressions, tests, kernels, information."""

import numpy as np


def standardize(X: "f64[500,40]"):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def min_max_scale(X: "f32[500,40]"):
    low, high = X.min(axis=0), X.max(axis=0)
    return (X - low) / (high - low)


def sample_variance(x: "f64[2000]"):
    return np.sum((x - np.mean(x)) ** 2) / (len(x) - 1)


def variance_two_moments(x: "f64[2000]"):
    return np.mean(x**2) - np.mean(x) ** 2


def covariance_outer(X: "f64[300,20]"):
    n = X.shape[0]
    mu = X.mean(axis=0)
    return sum(np.outer(x - mu, x - mu) for x in X[:50]) / (n - 1)


def covariance_matrix(X: "f64[300,40]"):
    centred = X - X.mean(axis=0, keepdims=True)
    return centred.T @ centred / (X.shape[0] - 1)


def correlation(x: "f64[1000]", y: "f64[1000]"):
    dx, dy = x - x.mean(), y - y.mean()
    return np.sum(dx * dy) / np.sqrt(np.sum(dx**2) * np.sum(dy**2))


def correlation_matrix(X: "f64[200,30]"):
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    return Z.T @ Z / X.shape[0]


def weighted_mean(x: "f64[1000]", w: "f64[1000] > 0"):
    return np.sum(x * w) / np.sum(w)


def weighted_variance(x: "f64[1000]", w: "f64[1000] > 0"):
    mu = np.average(x, weights=w)
    return np.average((x - mu) ** 2, weights=w)


def z_scores_abs_max(x: "f32[1000]"):
    return np.max(np.abs((x - np.mean(x)) / np.std(x)))


def skewness(x: "f64[1000]"):
    d = x - x.mean()
    return np.mean(d**3) / np.mean(d**2) ** 1.5


def kurtosis(x: "f64[1000]"):
    d = x - np.mean(x)
    return np.mean(np.power(d, 4)) / np.power(np.mean(np.power(d, 2)), 2) - 3


def euclidean_distances(X: "f64[100,16]", Y: "f64[80,16]"):
    return np.sqrt(((X[:, None, :] - Y[None, :, :]) ** 2).sum(axis=-1))


def squared_distances_by_rows(X: "f64[60,16]", y: "f64[16]"):
    return np.array([np.sum((row - y) ** 2) for row in X])


def manhattan_distances(X: "f32[60,16]", Y: "f32[50,16]"):
    return np.abs(X[:, None] - Y[None]).sum(axis=2)


def mahalanobis(X: "f64[200,12]", mu: "f64[12]", precision: "f64[12,12]"):
    d = X - mu
    return np.sqrt(np.abs(np.diag(d @ precision @ d.T)))


def quadratic_forms(X: "f64[200,12]", A: "f64[12,12]"):
    return np.diagonal(X @ A @ X.T)


def rbf_kernel(X: "f64[100,8]", Y: "f64[90,8]"):
    sq = np.sum(X**2, axis=1)[:, None] + np.sum(Y**2, axis=1)[None, :] - 2 * X @ Y.T
    return np.exp(-0.5 * sq)


def polynomial_kernel(X: "f64[100,8]"):
    return (1.0 + X @ X.T) ** 3


def laplace_kernel(X: "f32[50,8]"):
    return np.exp(-np.abs(X[:, None, :] - X[None, :, :]).sum(axis=2) / 4.0)


def gaussian_log_likelihood(x: "f64[1000]", mu: "f64[]", sigma: "f64[] > 0.1"):
    return np.sum(-0.5 * np.log(2 * np.pi) - np.log(sigma) - (x - mu) ** 2 / (2 * sigma**2))


def gaussian_density(x: "f64[1000]"):
    return 1 / np.sqrt(2 * np.pi) * np.exp(-np.power(x, 2) / 2)


def mixture_density(x: "f64[1000]", w: "f64[5] > 0", mu: "f64[5]", s: "f64[5] > 0.1"):
    z = (x[:, None] - mu) / s
    return np.sum(w * np.exp(-0.5 * z * z) / (s * np.sqrt(2 * np.pi)), axis=1)


def entropy(p: "f64[200] > 0"):
    q = p / np.sum(p)
    return -np.sum(q * np.log(q))


def kl_divergence(p: "f64[200] > 0", q: "f64[200] > 0"):
    p = p / p.sum()
    q = q / q.sum()
    return np.sum(p * (np.log(p) - np.log(q)))


def jensen_shannon(p: "f64[200] > 0", q: "f64[200] > 0"):
    m = (p + q) / 2
    return np.sum(p * np.log(p / m)) / 2 + np.sum(q * np.log(q / m)) / 2


def chi_square(observed: "f64[30,20] > 0"):
    rows = observed.sum(axis=1)
    cols = observed.sum(axis=0)
    expected = np.outer(rows, cols) / observed.sum()
    return np.sum((observed - expected) ** 2 / expected)


def geometric_mean(x: "f64[1000] > 0"):
    return np.exp(np.mean(np.log(x)))


def harmonic_mean(x: "f64[1000] > 0"):
    return len(x) / np.sum(1.0 / x)


def log_odds(p: "f64[1000] in (0.01, 0.99)"):
    return np.log(p / (1 - p))


def normal_equations_matrix(X: "f64[300,20]", y: "f64[300]"):
    return X.T @ X, X.T @ y


def ridge_gradient(X: "f64[300,20]", y: "f64[300]", w: "f64[20]"):
    return 2 * X.T @ (X @ w - y) / len(y) + 2 * 0.1 * w


def residual_sum(X: "f64[300,20]", y: "f64[300]", w: "f64[20]"):
    r = y - X @ w
    return r.T @ r


def r_squared(y: "f64[500]", fit: "f64[500]"):
    return 1 - np.sum((y - fit) ** 2) / np.sum((y - np.mean(y)) ** 2)


def leverages(X: "f64[100,8]", inverse: "f64[8,8]"):
    return np.diag(X @ inverse @ X.T)


def autocovariance(x: "f64[600]"):
    d = x - x.mean()
    return np.array([np.mean(d[k:] * d[: len(d) - k]) for k in range(8)])


def exponential_average(x: "f64[40]"):
    level = x[0]
    levels = [level]
    for value in x[1:]:
        level = 0.3 * value + (1 - 0.3) * level
        levels.append(level)
    return np.array(levels)


def moving_average(x: "f64[1000]"):
    c = np.cumsum(x)
    return (c[10:] - c[:-10]) / 10


def t_statistic(x: "f64[400]", y: "f64[300]"):
    se = np.sqrt(np.var(x, ddof=1) / len(x) + np.var(y, ddof=1) / len(y))
    return (np.mean(x) - np.mean(y)) / se


def f_statistic(groups: "f64[6,50]"):
    means = groups.mean(axis=1)
    between = 50 * np.sum((means - groups.mean()) ** 2) / 5
    within = np.sum((groups - means[:, None]) ** 2) / (6 * 49)
    return between / within


def lag_differences(x: "f64[1000] > 0"):
    return np.diff(np.log(x))


def drawdown(prices: "f64[50] > 0"):
    peak = prices[0]
    worst = prices[0] * 0
    for p in prices:
        peak = np.maximum(peak, p)
        worst = np.maximum(worst, (peak - p) / peak)
    return worst


def portfolio_variance(w: "f64[30]", S: "f64[30,30]"):
    return sum(w[i] * w[j] * S[i, j] for i in range(6) for j in range(6))


def outlier_mask(x: "f64[1000]"):
    return np.abs(x - x.mean()) > 3 * x.std()


def winsorize(x: "f64[1000]"):
    return np.where(x < -2, -2, np.where(x > 2, 2, x))


def median_filter_free(x: "f64[1000]"):
    return np.median(x)


def bootstrap_mean(x: "f64[100]"):
    return np.mean(x[np.random.randint(0, len(x), 100)])
