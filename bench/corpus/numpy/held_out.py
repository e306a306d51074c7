"""Held out: programs that were written down before anybody looked at what Tessera makes of them.

Nothing in the search, the rules or the costs was tuned to them; only wrong answers, crashes and
searches that do not end are mended because of them. Statistics, physics, finance, geometry, losses
of machine learning, signals.
"""

import numpy as np

# --- statistics ---------------------------------------------------------------------------------


def pooled_variance(x: "f64[400]", y: "f64[300]"):
    sx = np.sum((x - np.mean(x)) ** 2)
    sy = np.sum((y - np.mean(y)) ** 2)
    return (sx + sy) / (x.size + y.size - 2)


def welch_t(x: "f64[400]", y: "f64[300]"):
    return (x.mean() - y.mean()) / np.sqrt(x.var(ddof=1) / x.size + y.var(ddof=1) / y.size)


def coefficient_of_variation(x: "f64[1000] > 0"):
    return np.std(x) / np.mean(x)


def standard_error(x: "f64[1000]"):
    return np.std(x, ddof=1) / np.sqrt(len(x))


def effective_sample_size(w: "f64[2000] > 0"):
    p = w / np.sum(w)
    return 1.0 / np.sum(p**2)


def cooks_distance(residual: "f64[500]", leverage: "f64[500] in [0.01,0.5]"):
    s2 = np.sum(residual**2) / (residual.size - 4)
    return residual**2 / (4 * s2) * leverage / (1 - leverage) ** 2


def double_centering(D: "f64[120,120]"):
    n = D.shape[0]
    H = np.eye(n) - np.ones((n, n)) / n
    return -0.5 * H @ D @ H


def gini_mean_difference(x: "f64[200]"):
    return np.sum(np.abs(x[:, None] - x[None, :])) / (x.size * (x.size - 1))


def intraclass_correlation(X: "f64[80,6]"):
    n, k = X.shape
    rows = X.mean(axis=1)
    between = k * np.sum((rows - X.mean()) ** 2) / (n - 1)
    within = np.sum((X - rows[:, None]) ** 2) / (n * (k - 1))
    return (between - within) / (between + (k - 1) * within)


def poisson_deviance(y: "f64[800] > 0", mu: "f64[800] > 0"):
    return 2 * np.sum(y * np.log(y / mu) - (y - mu))


def gamma_log_likelihood_gradient(x: "f64[800] > 0", shape: "f64[] > 0", scale: "f64[] > 0"):
    return np.sum(x / scale**2 - shape / scale)


def irls_weights(X: "f64[300,8]", beta: "f64[8]"):
    eta = X @ beta
    p = 1 / (1 + np.exp(-eta))
    return X.T @ (X * (p * (1 - p))[:, None])


# --- finance ------------------------------------------------------------------------------------


def log_returns(price: "f64[1500] > 0"):
    return np.log(price[1:] / price[:-1])


def realized_volatility(price: "f64[1500] > 0"):
    r = np.log(price[1:]) - np.log(price[:-1])
    return np.sqrt(np.sum(r**2) * 252 / (price.size - 1))


def sharpe_ratio(r: "f64[1000]", rf: "f64[]"):
    excess = r - rf
    return np.mean(excess) / np.std(excess) * np.sqrt(252)


def tracking_error(R: "f64[500,30]", w: "f64[30]", b: "f64[30]"):
    return np.std(R @ w - R @ b)


def marginal_risk(S: "f64[60,60]", w: "f64[60] > 0"):
    sigma = np.sqrt(np.abs(w @ S @ w))
    return w * (S @ w) / sigma


def bond_price(cash: "f64[60] > 0", t: "f64[60] > 0", y: "f64[] > 0"):
    return np.sum(cash * np.exp(-y * t))


def macaulay_duration(cash: "f64[60] > 0", t: "f64[60] > 0", y: "f64[] > 0"):
    pv = cash * np.exp(-y * t)
    return np.sum(t * pv) / np.sum(pv)


def forward_rates(r: "f64[40] > 0", t: "f64[40] > 0"):
    return (r[1:] * t[1:] - r[:-1] * t[:-1]) / (t[1:] - t[:-1])


def basket_payoff(paths: "f64[400,12] > 0", w: "f64[12] > 0", strike: "f64[] > 0"):
    return np.mean(np.maximum(np.sum(paths * w, axis=1) - strike, 0.0))


def geometric_brownian(s0: "f64[] > 0", mu: "f64[]", sigma: "f64[] > 0", z: "f64[1000]"):
    dt = 1 / 252
    return s0 * np.exp((mu - 0.5 * sigma**2) * dt) * np.exp(sigma * np.sqrt(dt) * z)


# --- physics ------------------------------------------------------------------------------------


def reduced_mass_energy(m1: "f64[500] > 0", m2: "f64[500] > 0", v: "f64[500,3]"):
    mu = m1 * m2 / (m1 + m2)
    return 0.5 * mu * np.sum(v * v, axis=1)


def dipole_moment(q: "f64[300]", r: "f64[300,3]"):
    return np.sum(q[:, None] * r, axis=0)


def quadrupole_tensor(q: "f64[100]", r: "f64[100,3]"):
    return sum(q[i] * (3 * np.outer(r[i], r[i]) - np.eye(3) * np.dot(r[i], r[i])) for i in range(8))


def magnetic_energy(mu: "f64[200,3]", B: "f64[3]"):
    return -np.sum(mu * B)


def poynting(E: "f64[300,3]", H: "f64[300,3]"):
    return np.stack(
        [
            E[:, 1] * H[:, 2] - E[:, 2] * H[:, 1],
            E[:, 2] * H[:, 0] - E[:, 0] * H[:, 2],
            E[:, 0] * H[:, 1] - E[:, 1] * H[:, 0],
        ],
        axis=1,
    )


def blackbody_ratio(nu: "f64[600] > 0", T: "f64[] > 0"):
    return nu**3 / (np.exp(nu / T) - 1) / (nu**2 * T)


def arrhenius_ratio(A: "f64[400] > 0", E: "f64[400] > 0", T1: "f64[] > 0", T2: "f64[] > 0"):
    return A * np.exp(-E / T1) / (A * np.exp(-E / T2))


def van_der_waals(n: "f64[500] > 0", V: "f64[500] in [20,40]", T: "f64[] > 0"):
    return n * 8.314 * T / (V - n * 0.03) - 1.35 * n**2 / V**2


def virial(r: "f64[400,3]", F: "f64[400,3]"):
    return np.trace(r.T @ F)


def remove_drift(v: "f64[400,3]", m: "f64[400] > 0"):
    return v - (m[:, None] * v).sum(axis=0) / m.sum()


def rms_displacement(r: "f64[400,3]", r0: "f64[400,3]"):
    return np.sqrt(np.mean(np.sum((r - r0) ** 2, axis=1)))


def schroedinger_step(psi: "f64[400]", V: "f64[400]", dt: "f64[]"):
    lap = np.roll(psi, 1) - 2 * psi + np.roll(psi, -1)
    return psi + dt * (0.5 * lap - V * psi)


def boltzmann_weights(E: "f64[300]", kT: "f64[] > 0"):
    w = np.exp(-(E - E.min()) / kT)
    return w / w.sum()


def chain_of_transfer_matrices(M: "f64[40,40]", v: "f64[40]"):
    return M @ M @ M @ M @ v


# --- geometry -----------------------------------------------------------------------------------


def closest_point_on_lines(p: "f64[300,3]", a: "f64[3]", d: "f64[3]"):
    t = np.sum((p - a) * d, axis=1) / np.sum(d * d)
    return a + t[:, None] * d


def polygon_area(x: "f64[500]", y: "f64[500]"):
    return 0.5 * np.abs(np.sum(x * np.roll(y, -1)) - np.sum(y * np.roll(x, -1)))


def mirror_points(p: "f64[300,3]", n: "f64[3]"):
    n = n / np.sqrt(np.sum(n**2))
    return p - 2 * np.sum(p * n, axis=1, keepdims=True) * n


def ellipsoid_test(p: "f64[300,3]", A: "f64[3,3]", c: "f64[3]"):
    d = p - c
    return np.diag(d @ A @ d.T)


def procrustes_error(X: "f64[200,3]", Y: "f64[200,3]", R: "f64[3,3]"):
    return np.trace((X @ R - Y).T @ (X @ R - Y))


def tetrahedron_volumes(a: "f64[200,3]", b: "f64[200,3]", c: "f64[200,3]"):
    return np.abs(np.sum(a * np.cross(b, c), axis=1)) / 6


def angle_cosines(u: "f64[300,3]", v: "f64[300,3]"):
    nu = np.linalg.norm(u, axis=1)
    nv = np.linalg.norm(v, axis=1)
    return np.sum(u * v, axis=1) / (nu * nv)


def centroid_size(p: "f64[400,2]"):
    return np.sqrt(np.sum((p - np.mean(p, axis=0)) ** 2))


def affine_of_points(A: "f64[3,3]", t: "f64[3]", p: "f64[300,3]"):
    return np.stack([A @ q + t for q in p[:32]])


# --- losses and layers --------------------------------------------------------------------------


def tversky_loss(p: "f32[2000] in [0,1]", t: "f32[2000] in [0,1]"):
    tp = np.sum(p * t)
    fp = np.sum(p * (1 - t))
    fn = np.sum((1 - p) * t)
    return 1 - tp / (tp + 0.3 * fp + 0.7 * fn)


def quantile_loss(y: "f32[1000]", f: "f32[1000]"):
    e = y - f
    return np.mean(np.maximum(0.9 * e, (0.9 - 1) * e))


def info_nce(Q: "f32[64,32]", K: "f32[64,32]"):
    S = Q @ K.T / 0.07
    return np.mean(np.log(np.sum(np.exp(S - S.max(axis=1, keepdims=True)), axis=1)))


def label_smoothing(logp: "f32[128,10]", y: "f32[128,10]"):
    q = y * (1 - 0.1) + 0.1 / 10
    return -np.mean(np.sum(q * logp, axis=1))


def symmetric_kl(p: "f32[1000] > 0", q: "f32[1000] > 0"):
    return np.sum(p * np.log(p / q)) + np.sum(q * np.log(q / p))


def elbo_gaussian(mu: "f32[128,16]", log_var: "f32[128,16]"):
    return -0.5 * np.sum(1 + log_var - mu**2 - np.exp(log_var))


def gram_style_loss(F: "f32[32,400]", G: "f32[32,400]"):
    return np.mean((F @ F.T - G @ G.T) ** 2)


def squared_relu_gate(x: "f32[128,64]", g: "f32[128,64]"):
    return np.where(g > 0, g * g, 0.0) * x


def weight_decay_step(w: "f32[256,64]", g: "f32[256,64]", lr: "f32[]", wd: "f32[]"):
    return w - lr * (g + wd * w)


def attention_one_query(q: "f32[32]", K: "f32[200,32]", V: "f32[200,32]"):
    s = np.sum(K * q, axis=1) / np.sqrt(32)
    p = np.exp(s) / np.sum(np.exp(s))
    return np.sum(p[:, None] * V, axis=0)


def ema_of_weights(w: "f32[256,64]", e: "f32[256,64]"):
    return 0.99 * e + (1 - 0.99) * w


# --- signals ------------------------------------------------------------------------------------


def energy_of_difference(x: "f32[2000]", y: "f32[2000]"):
    return np.sum(x * x) - 2 * np.sum(x * y) + np.sum(y * y)


def normalised_correlation(x: "f32[2000]", y: "f32[2000]"):
    return np.dot(x, y) / (np.sqrt(np.dot(x, x)) * np.sqrt(np.dot(y, y)))


def goertzel_power(x: "f64[256]", c: "f64[256]", s: "f64[256]"):
    return (np.sum(x * c) ** 2 + np.sum(x * s) ** 2) / x.size


def complex_gain(re: "f32[1000]", im: "f32[1000]", gr: "f32[]", gi: "f32[]"):
    return re * gr - im * gi, re * gi + im * gr


def second_difference(x: "f64[1000]"):
    return (x[2:] - x[1:-1]) - (x[1:-1] - x[:-2])


def windowed_frames_power(F: "f32[64,256]", w: "f32[256]"):
    return np.mean((F * w) ** 2, axis=1)


def soft_limit(x: "f32[2000]", t: "f32[] > 0"):
    return np.where(np.abs(x) < t, x, t * np.sign(x))


def spatial_filter(W: "f32[16,8]", X: "f32[8,500]"):
    return np.sum((W @ X) * (W @ X), axis=1) / X.shape[1]


def db_to_ratio(a: "f64[800]", b: "f64[800]"):
    return 10 ** (a / 20) / 10 ** (b / 20)
