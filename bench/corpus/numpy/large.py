"""Large programs: pipelines of 30 to 300 operations, as they grow where steps are put together."""

import numpy as np


def _softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def _layer_norm(x, scale, shift):
    mu = np.mean(x, axis=-1, keepdims=True)
    var = np.mean((x - mu) ** 2, axis=-1, keepdims=True)
    return (x - mu) / np.sqrt(var + 1e-5) * scale + shift


def _zscore(x):
    return (x - np.mean(x, axis=0)) / np.std(x, axis=0)


def regression_diagnostics(
    X: "f64[200,12]", H: "f64[200,200]", y: "f64[200]", beta: "f64[12]", P: "f64[12,200]"
):
    fitted = X @ P @ y
    residuals = y - fitted
    leverage = np.diag(X @ P)
    rss = np.sum(residuals * residuals)
    tss = np.sum((y - np.mean(y)) ** 2)
    r2 = 1 - rss / tss
    n, p = X.shape
    adjusted = 1 - (1 - r2) * (n - 1) / (n - p - 1)
    s2 = rss / (n - p)
    standardized = residuals / np.sqrt(s2 * np.abs(1 - leverage))
    cook = standardized**2 / p * (leverage / np.abs(1 - leverage))
    smoothed = np.trace(H @ H)
    press = np.sum((residuals / (1 - leverage)) ** 2)
    offset = np.sum(X @ beta) / n
    return standardized, cook, adjusted, smoothed, press, offset


def portfolio_report(R: "f64[250,30]", w: "f64[30]", v: "f64[30]", rate: "f64[] > 0"):
    mu = np.sum(R, axis=0) / R.shape[0]
    centred = R - mu
    cov = centred.T @ centred / (R.shape[0] - 1)
    ret = np.sum(mu * w)
    risk = np.sqrt(np.sum(np.dot(np.dot(cov, w), w)))
    other = np.sqrt(np.dot(np.dot(cov, v), v))
    cross = np.sum(w * np.dot(cov, v))
    correlation = cross / (risk * other)
    sharpe = (ret - rate) / risk
    path = R @ w
    excess = path - np.mean(path)
    skew = np.mean(excess**3) / np.mean(excess**2) ** 1.5
    kurtosis = np.mean(excess**4) / np.mean(excess * excess) ** 2
    marginal = np.dot(cov, w) / risk
    contribution = w * marginal
    share = contribution / np.sum(contribution)
    diversification = np.sum(w * np.sqrt(np.diag(cov))) / risk
    spread = np.sum(R * w - R * v, axis=1)
    tracking = np.sqrt(np.mean((spread - np.mean(spread)) ** 2))
    growth = np.exp(np.log(rate) * 12)
    return sharpe, correlation, skew, kurtosis, share, diversification, tracking, growth


def transformer_block(
    x: "f32[24,32]", wq: "f32[32,32]", wk: "f32[32,32]", wv: "f32[32,32]", wo: "f32[32,32]",
    a: "f32[32]", b: "f32[32]", c: "f32[32]", d: "f32[32]", w1: "f32[32,64]", w2: "f32[64,32]",
):  # fmt: skip
    h = _layer_norm(x, a, b)
    q, k, v = h @ wq, h @ wk, h @ wv
    weights = _softmax(q @ k.T / np.sqrt(32.0))
    x = x + weights @ v @ wo
    h = _layer_norm(x, c, d)
    u = h @ w1
    u = u / (1 + np.exp(-u))
    x = x + u @ w2
    energy = np.sum(np.diag(x @ x.T))
    return x, energy


def two_transformer_blocks(
    x: "f32[16,24]", wq: "f32[2,24,24]", wk: "f32[2,24,24]", wv: "f32[2,24,24]",
    s: "f32[2,24]", t: "f32[2,24]", w1: "f32[2,24,48]", w2: "f32[2,48,24]",
):  # fmt: skip
    for i in range(2):
        h = _layer_norm(x, s[i], t[i])
        weights = _softmax((h @ wq[i]) @ (h @ wk[i]).T * 0.2041)
        x = x + weights @ (h @ wv[i])
        h = _layer_norm(x, s[i], t[i])
        u = np.maximum(h @ w1[i], 0)
        x = x + u @ w2[i]
    return x


def kalman_steps(
    F: "f64[6,6]", H: "f64[3,6]", Q: "f64[6,6]", K: "f64[6,3]", x: "f64[6]", P: "f64[6,6]",
    z: "f64[4,3]",
):  # fmt: skip
    for i in range(4):
        x = F @ x
        P = F @ P @ F.T + Q
        innovation = z[i] - H @ x
        x = x + K @ innovation
        P = P - K @ H @ P
    uncertainty = np.trace(P @ H.T @ H)
    return x, P, uncertainty


def vae_loss(
    x: "f32[64,80]", W1: "f32[80,40]", Wm: "f32[40,10]", Ws: "f32[40,10]", Wd: "f32[10,80]",
    noise: "f32[64,10]",
):  # fmt: skip
    h = np.tanh(x @ W1)
    mu, logvar = h @ Wm, h @ Ws
    z = mu + np.exp(0.5 * logvar) * noise
    logits = z @ Wd
    p = 1 / (1 + np.exp(-logits))
    reconstruction = np.sum((x - p) * (x - p), axis=1)
    kl = -0.5 * np.sum(1 + logvar - mu**2 - np.exp(logvar), axis=1)
    precision = np.exp(-logvar)
    whitened = np.sqrt(np.exp(logvar)) * precision
    gap = np.sum(np.log(np.exp(mu) * np.exp(logvar)))
    usage = np.sum(np.sum(z * z, axis=0))
    return np.mean(reconstruction + kl), np.mean(whitened), gap, usage


def contrastive_pipeline(
    A: "f32[48,64]", B: "f32[48,64]", W: "f32[64,32]", temperature: "f32[] > 0"
):
    a, b = A @ W, B @ W
    a = a / np.sqrt(np.sum(a * a, axis=1, keepdims=True))
    b = b / np.sqrt(np.sum(b * b, axis=1, keepdims=True))
    positives = np.diag(a @ b.T) / temperature
    logits = a @ b.T / temperature
    top = np.max(logits, axis=1, keepdims=True)
    lse = np.log(np.sum(np.exp(logits - top), axis=1)) + top[:, 0]
    loss = np.mean(lse - positives)
    alignment = np.mean(np.sum((a - b) ** 2, axis=1))
    uniformity = np.log(np.mean(np.exp(-2 * np.sum((a - b) ** 2, axis=1))))
    norm = np.sqrt(np.sum(a * a)) * np.sqrt(np.sum(a * a))
    return loss, alignment, uniformity, norm


def gaussian_mixture_step(X: "f64[150,3]", M: "f64[4,3]", V: "f64[4] > 0", pi: "f64[4] > 0"):
    d2 = np.stack([np.sum((X - M[k]) ** 2, axis=1) for k in range(4)])
    log_density = -0.5 * d2 / V[:, None] - 1.5 * np.log(2 * np.pi * V)[:, None]
    weighted = log_density + np.log(pi)[:, None]
    top = np.max(weighted, axis=0)
    total = np.log(np.sum(np.exp(weighted - top), axis=0)) + top
    resp = np.exp(weighted - total)
    counts = np.sum(resp, axis=1)
    means = resp @ X / counts[:, None]
    spread = np.sum(resp * d2, axis=1) / (3 * counts)
    scaled = np.exp(np.log(V) + np.log(pi))
    entropy = -np.sum(resp * np.log(resp + 1e-12)) / X.shape[0]
    return means, spread, counts / X.shape[0], np.mean(total), scaled, entropy


def heat_and_wave(
    u: "f64[64,64]", v: "f64[64,64]", k: "f64[64,64] > 0", A: "f64[64,64]", s: "f64[64]"
):
    alpha = np.exp(np.log(k))
    for _ in range(3):
        lap = A @ u + u @ A.T
        u = u + 0.01 * (alpha * lap)
        force = A @ v @ s
        v = v + 0.01 * (lap - 0.1 * v) + 0.001 * force[:, None]
    energy = np.sum(v * v) / 2 + np.sum(u * u) / 2
    dissipated = np.sum(np.diag(v @ u.T))
    total = np.sum(np.sum(alpha * u, axis=0), axis=0)
    return u, v, energy, dissipated, total


def rigid_body_steps(q: "f64[50,3]", p: "f64[50,3]", m: "f64[50] > 0", B: "f64[3,3]", f: "f64[3]"):
    for _ in range(4):
        v = p / m[:, None]
        kinetic = 0.5 * np.sum(m * np.sum(v * v, axis=1))
        centre = np.sum(m[:, None] * q, axis=0) / np.sum(m)
        r = q - centre
        pull = -r / (np.sum(r * r, axis=1) + 0.01)[:, None] ** 1.5
        drive = B @ B @ f
        p = p + 0.01 * (pull * m[:, None] * m[:, None] / m[:, None] + drive)
        q = q + 0.01 * p / m[:, None]
    momentum = np.sum(p, axis=0)
    inertia = np.sum(np.diag(q @ p.T))
    return q, p, kinetic, momentum, inertia


def spectral_features(S: "f64[100,65] > 0", f: "f64[65] > 0", W: "f64[65,20]"):
    power = S**2
    energy = np.sum(power, axis=1)
    centroid = np.sum(power * f, axis=1) / energy
    bandwidth = np.sqrt(np.sum(power * f * f, axis=1) / energy - centroid * centroid)
    flatness = np.exp(np.mean(np.log(power), axis=1)) / np.mean(power, axis=1)
    slope = np.sum(S * (f - np.mean(f)), axis=1) / np.sum((f - np.mean(f)) ** 2)
    bands = power @ W
    log_bands = np.log(bands * bands + 1e-9)
    loud = np.sum(bands * bands, axis=1)
    crest = np.max(S, axis=1) / np.sqrt(energy / 65)
    delta = np.stack([log_bands[i + 1] - log_bands[i] for i in range(8)])
    z = _zscore(log_bands)
    similarity = np.diag(z @ z.T) / 20
    decibel = 10 * np.log(np.exp(np.log(energy) * 2)) / np.log(10.0)
    return centroid, bandwidth, flatness, slope, loud, crest, delta, similarity, decibel


def filter_bank(x: "f64[256]", taps: "f64[8,5]", gain: "f64[8] > 0"):
    outputs = []
    for b in range(8):
        y = sum(taps[b, j] * x[j : 252 + j] for j in range(5))
        y = y * np.exp(np.log(gain[b]))
        outputs.append(y / np.sqrt(np.sum(y * y)))
    Y = np.stack(outputs)
    gram = Y @ Y.T
    total = np.trace(gram)
    mixed = np.sum(Y * gain[:, None], axis=0)
    return gram, total, mixed


def shading_pipeline(
    N: "f32[2000,3]", L: "f32[3]", V: "f32[2000,3]", M: "f32[3,3]", T: "f32[3,3]", c: "f32[3] > 0",
):  # fmt: skip
    n = N / np.sqrt(np.sum(N * N, axis=1, keepdims=True))
    light = M @ T @ L
    light = light / np.sqrt(np.sum(light * light))
    ndotl = np.sum(n * light, axis=1)
    diffuse = np.maximum(ndotl, 0)
    view = V / np.sqrt(np.sum(V * V, axis=1, keepdims=True))
    half = view + light
    half = half / np.sqrt(np.sum(half * half, axis=1, keepdims=True))
    specular = np.maximum(np.sum(n * half, axis=1), 0) ** 16
    fresnel = 0.04 + 0.96 * (1 - np.maximum(np.sum(view * half, axis=1), 0)) ** 5
    colour = c * diffuse[:, None] + (specular * fresnel)[:, None]
    exposed = colour * 2.0 + colour * 0.5
    mapped = exposed / (1 + exposed)
    gamma = np.exp(np.log(mapped + 1e-4) / 2.2)
    luminance = np.sum(gamma * np.sqrt(c) * np.sqrt(c), axis=1)
    return gamma, luminance


def camera_chain(
    P: "f64[500,4]", W: "f64[4,4]", C: "f64[4,4]", K: "f64[4,4]", o: "f64[4]", d: "f64[500] > 0",
):  # fmt: skip
    clip = ((P @ W.T) @ C.T) @ K.T
    origin = K @ C @ W @ o
    ndc = clip / clip[:, 3:4]
    x, y, z = ndc[:, 0], ndc[:, 1], ndc[:, 2]
    r2 = x * x + y * y
    radial = 1 + 0.1 * r2 + 0.01 * r2 * r2 + 0.001 * (r2 * r2 * r2)
    u = x * radial + 2 * 0.01 * x * y + 0.02 * (r2 + 2 * x**2)
    v = y * radial + 2 * 0.02 * x * y + 0.01 * (r2 + 2 * y**2)
    depth = z / (d * d / d)
    error = np.sqrt((u - x) ** 2 + (v - y) ** 2)
    spread = np.sum(u * u + v * v) / 500 - (np.sum(u) / 500) ** 2 - (np.sum(v) / 500) ** 2
    return u, v, depth, error, spread, origin


def lstm_cell_steps(
    x: "f32[3,8,16]", h: "f32[8,20]", c: "f32[8,20]", Wi: "f32[16,20]", Wf: "f32[16,20]",
    Wo: "f32[16,20]", Wg: "f32[16,20]", Ui: "f32[20,20]", Uf: "f32[20,20]", Uo: "f32[20,20]",
    Ug: "f32[20,20]",
):  # fmt: skip
    for t in range(3):
        i = 1 / (1 + np.exp(-(x[t] @ Wi + h @ Ui)))
        f = 1 / (1 + np.exp(-(x[t] @ Wf + h @ Uf)))
        o = 1 / (1 + np.exp(-(x[t] @ Wo + h @ Uo)))
        g = np.tanh(x[t] @ Wg + h @ Ug)
        c = f * c + i * g
        h = o * np.tanh(c)
    return h, c, np.trace(h @ h.T)


def information_measures(P: "f64[30,40] > 0", Q: "f64[30,40] > 0", C: "f64[40,30]"):
    p = P / np.sum(P)
    q = Q / np.sum(Q)
    px, py = np.sum(p, axis=1), np.sum(p, axis=0)
    joint = -np.sum(p * np.log(p))
    hx, hy = -np.sum(px * np.log(px)), -np.sum(py * np.log(py))
    mutual = np.sum(p * np.log(p / np.outer(px, py)))
    kl = np.sum(p * (np.log(p) - np.log(q)))
    reverse = np.sum(q * np.log(q / p))
    m = 0.5 * (p + q)
    js = 0.5 * np.sum(p * np.log(p / m)) + 0.5 * np.sum(q * np.log(q / m))
    bhattacharyya = -np.log(np.sum(np.sqrt(p) * np.sqrt(q)))
    hellinger = np.sqrt(1 - np.sum(np.sqrt(p * q)))
    chi2 = np.sum((p - q) ** 2 / q)
    perplexity = np.exp(joint) * np.exp(-joint) * np.exp(joint)
    cost = np.trace(p @ C)
    return mutual, hx, hy, kl + reverse, js, bhattacharyya, hellinger, chi2, perplexity, cost


def hypothesis_tests(x: "f64[400]", y: "f64[400]", G: "f64[6,50]"):
    nx, ny = len(x), len(y)
    mx, my = np.sum(x) / nx, np.sum(y) / ny
    vx = np.sum((x - mx) ** 2) / (nx - 1)
    vy = np.sum((y - my) ** 2) / (ny - 1)
    welch = (mx - my) / np.sqrt(vx / nx + vy / ny)
    pooled = np.sqrt(((nx - 1) * vx + (ny - 1) * vy) / (nx + ny - 2))
    student = (mx - my) / (pooled * np.sqrt(1 / nx + 1 / ny))
    cohen = (mx - my) / pooled
    freedom = (vx / nx + vy / ny) ** 2 / ((vx / nx) ** 2 / (nx - 1) + (vy / ny) ** 2 / (ny - 1))
    f_ratio = vx / vy
    grand = np.mean(G)
    between = np.sum(50 * (np.mean(G, axis=1) - grand) ** 2) / 5
    within = np.sum((G - np.mean(G, axis=1, keepdims=True)) ** 2) / (6 * 49)
    anova = between / within
    r = np.sum((x - mx) * (y - my)) / np.sqrt(np.sum((x - mx) ** 2) * np.sum((y - my) ** 2))
    t_of_r = r * np.sqrt((nx - 2) / (1 - r * r))
    fisher = 0.5 * np.log((1 + r) / (1 - r))
    return welch, student, cohen, freedom, f_ratio, anova, t_of_r, fisher


def neural_ode_rk4(y: "f32[32,16]", W1: "f32[16,32]", W2: "f32[32,16]", b: "f32[32]"):
    def f(s):
        return np.tanh(s @ W1 + b) @ W2

    h = 0.05
    for _ in range(3):
        k1 = f(y)
        k2 = f(y + h / 2 * k1)
        k3 = f(y + h / 2 * k2)
        k4 = f(y + h * k3)
        y = y + h / 6 * k1 + h / 3 * k2 + h / 3 * k3 + h / 6 * k4
    return y, np.sum(y * y, axis=1)


def high_rank_statistics(
    T: "f64[3,4,5,2,3,4]", w: "f64[4]", u: "f64[3]", s: "f64[3,4,5,2,3,4] > 0", A: "f64[40,50]",
    B: "f64[50,40]", z: "f64[40]",
):  # fmt: skip
    scaled = T * w * 2.0 + T * w
    centred = scaled - np.mean(scaled, axis=-1, keepdims=True)
    variance = np.sum(centred * centred, axis=-1) / 4
    spread = np.sqrt(variance) * np.sqrt(variance)
    back = np.exp(np.log(s))
    mixed = np.sum(back * w, axis=-1)
    by_row = np.sum(mixed * u, axis=-1)
    total = np.sum(np.sum(by_row, axis=0), axis=0)
    agreement = np.diag(A @ B)
    projected = A @ B @ z
    balance = np.sum(projected * agreement) / np.sum(agreement * agreement)
    return spread, total, balance, variance


def many_sensors(
    a: "f64[30]", b: "f64[31]", c: "f64[32]", d: "f64[33]", e: "f64[34]", f: "f64[35]",
    g: "f64[36]", h: "f64[37]", i: "f64[38]", j: "f64[39]", M: "f64[30,31]", N: "f64[31,32]",
    O: "f64[32,33]",
):  # fmt: skip
    sums = []
    for x in (a, b, c, d, e, f, g, h, i, j):
        mu = np.sum(x) / len(x)
        var = np.sum(x * x) / len(x) - mu * mu
        sums.append(mu / np.sqrt(np.abs(var) + 1.0))
    level = np.stack(sums)
    chain = M @ N @ O @ d
    score = np.sum(level * 3.0 + level * level / level)
    return level, chain, score


def diffusion_training_step(
    x: "f32[32,48]", eps: "f32[32,48]", t: "f32[32] in (0, 1)", W1: "f32[48,64]", W2: "f32[64,48]",
    E: "f32[1,64]", labels: "f32[32,48]",
):  # fmt: skip
    alpha = np.exp(-0.1 * t - 9.95 * t**2)
    noisy = np.sqrt(alpha)[:, None] * x + np.sqrt(1 - alpha)[:, None] * eps
    h = noisy @ W1 + t[:, None] * E
    h = h * (1 / (1 + np.exp(-h)))
    predicted = h @ W2
    error = predicted - eps
    loss = np.mean(np.sum(error * error, axis=1))
    snr = alpha / (1 - alpha)
    weight = np.exp(np.log(snr))
    weighted = np.mean(weight * np.sum(error**2, axis=1))
    clean = (noisy - np.sqrt(1 - alpha)[:, None] * predicted) / np.sqrt(alpha)[:, None]
    drift = np.mean((clean - x) ** 2)
    agreement = np.sum(np.diag(clean @ labels.T))
    gradient = 2 * error / 32
    dW2 = h.T @ gradient
    norm = np.sqrt(np.sum(dW2 * dW2) + np.sum(gradient * gradient))
    return loss, weighted, drift, agreement, dW2 / norm, norm


def climate_indices(T: "f64[120,20,30]", W: "f64[20,30] > 0", lat: "f64[20]"):
    area = W / np.sum(W)
    series = np.sum(np.sum(T * area, axis=2), axis=1)
    anomaly = series - np.mean(series)
    trend = np.sum(anomaly * (np.arange(120.0) - 59.5)) / np.sum((np.arange(120.0) - 59.5) ** 2)
    climatology = np.mean(T, axis=0)
    deviation = T - climatology
    variance = np.mean(deviation * deviation, axis=0)
    scaled = np.sqrt(variance) * np.sqrt(variance) * area
    total = np.sum(scaled)
    seasonal = np.stack([np.mean(T[m::12], axis=0) for m in range(12)])
    cycle = np.sum(np.sum(seasonal * area, axis=2), axis=1)
    amplitude = np.max(cycle) - np.min(cycle)
    gradient = np.sum(np.sum(climatology, axis=1) * lat) / 30
    weights = np.exp(np.log(W) * 2) / W
    zonal = np.mean(weights * climatology, axis=1)
    memory = np.sum(anomaly[1:] * anomaly[:-1]) / np.sum(anomaly * anomaly)
    return trend, total, amplitude, gradient, zonal, memory


def recommender_epoch(
    U: "f32[60,16]", V: "f32[80,16]", R: "f32[60,80]", bu: "f32[60]", bv: "f32[80]",
    probe: "f32[80]",
):  # fmt: skip
    scores = U @ V.T + bu[:, None] + bv
    error = R - scores
    loss = np.sum(error * error) + 0.1 * (np.sum(U * U) + np.sum(V * V))
    gu = -2 * (error @ V) + 0.2 * U
    gv = -2 * (error.T @ U) + 0.2 * V
    nu, nv = U - 0.001 * gu, V - 0.001 * gv
    step = np.sqrt(np.sum(gu * gu) + np.sum(gv * gv))
    drift = np.trace((nu - U) @ (nu - U).T)
    popularity = U @ V.T @ probe
    baseline = np.mean(scores, axis=1) - np.mean(scores)
    calibrated = np.exp(np.log(np.abs(popularity) + 1.0) * 3.0)
    norms = np.sqrt(np.diag(U @ U.T))
    return nu, nv, loss, step, drift, baseline, calibrated, norms


def monte_carlo_payoffs(
    Z: "f64[12,500]", s0: "f64[] > 0", sigma: "f64[] > 0", rate: "f64[]", strikes: "f64[7] > 0",
    D: "f64[500,7]",
):  # fmt: skip
    dt = 1.0 / 12
    logs = np.log(s0) + np.zeros(500)
    running = np.zeros(500)
    for i in range(12):
        logs = logs + (rate - sigma**2 / 2) * dt + sigma * np.sqrt(dt) * Z[i]
        running = running + np.exp(logs)
    final = np.exp(logs)
    average = running / 12
    discount = np.exp(-rate)
    calls = np.stack([discount * np.mean(np.maximum(final - strikes[k], 0)) for k in range(7)])
    asian = np.stack([discount * np.mean(np.maximum(average - strikes[k], 0)) for k in range(7)])
    forward = np.exp(np.log(s0) + rate)
    control = calls - np.mean(final) + forward
    hedge = np.diag(D.T @ D)
    return calls, asian, control, hedge


def image_quality(X: "f64[64,64] > 0", Y: "f64[64,64] > 0", G: "f64[64,64]", row: "f64[64]"):
    mx, my = G @ X @ G.T, G @ Y @ G.T
    sx = G @ (X * X) @ G.T - mx * mx
    sy = G @ (Y * Y) @ G.T - my * my
    sxy = G @ (X * Y) @ G.T - mx * my
    luminance = (2 * mx * my + 0.01) / (mx**2 + my**2 + 0.01)
    structure = (2 * sxy + 0.03) / (np.abs(sx) + np.abs(sy) + 0.03)
    ssim = np.mean(luminance * structure)
    mse = np.mean((X - Y) * (X - Y))
    psnr = -10 * np.log(mse) / np.log(10.0)
    log_error = np.mean(np.abs(np.log(X) - np.log(Y)))
    blurred = X @ G @ row
    contrast = np.std(X) / np.mean(X)
    ratio = np.sum(X * Y) / (np.sqrt(np.sum(X * X)) * np.sqrt(np.sum(Y * Y)))
    sharp = np.trace(X.T @ (X - mx))
    tone = np.exp(np.log(X) * 0.5) * np.sqrt(X)
    return ssim, psnr, log_error, blurred, contrast, ratio, sharp, tone
