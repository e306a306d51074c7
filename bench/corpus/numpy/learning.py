"""Programs of machine learning: losses, activations, layers, attention, metrics, optimisers."""

import numpy as np


def mse(y: "f32[1000]", t: "f32[1000]"):
    return np.mean(np.square(y - t))


def rmse(y: "f32[1000]", t: "f32[1000]"):
    return np.sqrt(np.mean((y - t) ** 2))


def mae(y: "f32[1000]", t: "f32[1000]"):
    return np.mean(np.abs(y - t))


def huber(y: "f32[1000]", t: "f32[1000]"):
    d = np.abs(y - t)
    return np.mean(np.where(d < 1, 0.5 * d**2, d - 0.5))


def log_cosh(y: "f64[1000]", t: "f64[1000]"):
    return np.sum(np.log(np.cosh(y - t)))


def hinge(scores: "f32[1000]", y: "f32[1000]"):
    return np.mean(np.maximum(0, 1 - y * scores))


def binary_cross_entropy(p: "f64[1000] in (0.01, 0.99)", y: "f64[1000] in [0, 1]"):
    return -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))


def bce_with_logits(z: "f64[1000]", y: "f64[1000] in [0, 1]"):
    return np.mean(np.maximum(z, 0) - z * y + np.log(1 + np.exp(-np.abs(z))))


def softmax(x: "f32[128,100]"):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def log_softmax(x: "f32[128,100]"):
    s = x - x.max(axis=1, keepdims=True)
    return s - np.log(np.exp(s).sum(axis=1, keepdims=True))


def naive_log_softmax(x: "f64[128,100]"):
    return np.log(np.exp(x) / np.sum(np.exp(x), axis=1, keepdims=True))


def cross_entropy(logits: "f64[64,10]", onehot: "f64[64,10] in [0, 1]"):
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return -np.mean(np.sum(onehot * np.log(p), axis=1))


def cross_entropy_labels(logits: "f64[64,10]", labels: "i64[64] in [0, 9]"):
    s = logits - logits.max(axis=1, keepdims=True)
    logp = s - np.log(np.sum(np.exp(s), axis=1, keepdims=True))
    return -np.mean(logp[np.arange(64), labels])


def softmax_gradient(p: "f64[64,10] in (0, 1)", g: "f64[64,10]"):
    return p * (g - np.sum(g * p, axis=1, keepdims=True))


def focal_loss(p: "f64[500] in (0.01, 0.99)", y: "f64[500] in [0, 1]"):
    pt = y * p + (1 - y) * (1 - p)
    return -np.mean((1 - pt) ** 2 * np.log(pt))


def dice_loss(p: "f32[64,64] in (0, 1)", t: "f32[64,64] in [0, 1]"):
    return 1 - (2 * np.sum(p * t) + 1) / (np.sum(p) + np.sum(t) + 1)


def triplet_loss(a: "f32[64,32]", p: "f32[64,32]", n: "f32[64,32]"):
    return np.mean(np.maximum(np.sum((a - p) ** 2, axis=1) - np.sum((a - n) ** 2, axis=1) + 0.2, 0))


def contrastive(z: "f64[32,16]", w: "f64[32,16]"):
    sim = z @ w.T / 0.1
    sim = sim - sim.max(axis=1, keepdims=True)
    return -np.mean(np.diag(sim) - np.log(np.exp(sim).sum(axis=1)))


def cosine_similarity(a: "f32[200,64]", b: "f32[200,64]"):
    return np.sum(a * b, axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def cosine_matrix(a: "f32[60,32]", b: "f32[50,32]"):
    na = a / np.sqrt(np.sum(a * a, axis=1, keepdims=True))
    nb = b / np.sqrt(np.sum(b * b, axis=1, keepdims=True))
    return na @ nb.T


def kl_gaussians(mu: "f64[64,16]", logvar: "f64[64,16]"):
    return -0.5 * np.sum(1 + logvar - mu**2 - np.exp(logvar), axis=1)


def relu(x: "f32[128,128]"):
    return np.maximum(x, 0)


def relu_by_mask(x: "f32[128,128]"):
    return x * (x > 0)


def leaky_relu(x: "f32[128,128]"):
    return np.where(x > 0, x, 0.01 * x)


def elu(x: "f32[128,128]"):
    return np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)


def sigmoid(x: "f32[128,128]"):
    return 1 / (1 + np.exp(-x))


def tanh_by_exp(x: "f32[128,128]"):
    return (np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x))


def softplus(x: "f32[128,128]"):
    return np.log(1 + np.exp(x))


def swish(x: "f32[128,128]"):
    return x * (1 / (1 + np.exp(-x)))


def gelu_tanh(x: "f32[128,128]"):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def mish(x: "f64[100,100]"):
    return x * np.tanh(np.log1p(np.exp(x)))


def batch_norm(x: "f32[64,128]", gamma: "f32[128]", beta: "f32[128]"):
    return gamma * (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5) + beta


def layer_norm(x: "f32[64,128]", gamma: "f32[128]", beta: "f32[128]"):
    mu = np.mean(x, axis=-1, keepdims=True)
    sigma = np.std(x, axis=-1, keepdims=True)
    return (x - mu) / (sigma + 1e-5) * gamma + beta


def rms_norm(x: "f32[64,128]", w: "f32[128]"):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * w


def linear(x: "f32[64,128]", W: "f32[32,128]", b: "f32[32]"):
    return x @ W.T + b


def linear_by_rows(X: "f32[40,64]", W: "f32[16,64]", b: "f32[16]"):
    return np.stack([np.dot(W, x) + b for x in X])


def mlp(x: "f32[32,64]", W1: "f32[64,128]", b1: "f32[128]", W2: "f32[128,10]", b2: "f32[10]"):
    h = np.maximum(0, x @ W1 + b1)
    return h @ W2 + b2


def lora(x: "f32[32,128]", W: "f32[128,128]", A: "f32[128,4]", B: "f32[4,128]"):
    return x @ (W + A @ B)


def low_rank_chain(A: "f32[128,4]", B: "f32[4,128]", x: "f32[128]"):
    return A @ B @ x


def attention(Q: "f32[64,32]", K: "f32[64,32]", V: "f32[64,32]"):
    s = Q @ K.T / np.sqrt(Q.shape[-1])
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return (p / p.sum(axis=-1, keepdims=True)) @ V


def causal_attention(Q: "f32[32,16]", K: "f32[32,16]", V: "f32[32,16]"):
    s = Q @ K.T / 4
    mask = np.tril(np.ones((32, 32), dtype=bool))
    s = np.where(mask, s, -1e9)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ V


def multi_head_scores(Q: "f32[4,32,16]", K: "f32[4,32,16]"):
    return np.einsum("hid,hjd->hij", Q, K) * 0.25


def linear_attention(Q: "f32[128,16] > 0", K: "f32[128,16] > 0", V: "f32[128,16]"):
    return (Q @ K.T) @ V


def rotary(x: "f32[64,32]", cos: "f32[64,16]", sin: "f32[64,16]"):
    a, b = x[:, :16], x[:, 16:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=1)


def positional_encoding(x: "f64[50,32]"):
    position = np.arange(50)[:, None]
    rate = np.exp(np.arange(0, 32, 2) * (-np.log(10000.0) / 32))
    return x + np.concatenate([np.sin(position * rate), np.cos(position * rate)], axis=1)


def lstm_cell(x: "f32[16]", h: "f32[16]", c: "f32[16]", W: "f32[64,32]", b: "f32[64]"):
    z = W @ np.concatenate([x, h]) + b
    i, f, g, o = np.split(z, 4)
    c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    return np.tanh(c) / (1 + np.exp(-o)), c


def rnn(xs: "f32[12,8]", Wx: "f32[16,8]", Wh: "f32[16,16]"):
    h = np.zeros(16, dtype=np.float32)
    for x in xs:
        h = np.tanh(Wx @ x + Wh @ h)
    return h


def sgd_momentum(w: "f32[1000]", v: "f32[1000]", g: "f32[1000]"):
    v = 0.9 * v + g
    return w - 0.01 * v, v


def adam(w: "f32[1000]", g: "f32[1000]", m: "f32[1000]", v: "f32[1000] > 0"):
    m = 0.9 * m + (1 - 0.9) * g
    v = 0.999 * v + (1 - 0.999) * g * g
    return w - 1e-3 * (m / (1 - 0.9)) / (np.sqrt(v / (1 - 0.999)) + 1e-8), m, v


def gradient_clip(g: "f32[1000]"):
    return g * np.minimum(1.0, 1.0 / (np.linalg.norm(g) + 1e-6))


def l2_penalty(W: "f32[100,100]"):
    return 0.5 * 0.01 * np.sum(W**2)


def accuracy(logits: "f32[200,10]", labels: "i64[200] in [0, 9]"):
    return np.mean(np.argmax(logits, axis=1) == labels)


def one_hot(labels: "i64[200] in [0, 9]"):
    return (labels[:, None] == np.arange(10)).astype(np.float32)


def confusion_counts(p: "bool[500]", t: "bool[500]"):
    return np.sum(p & t), np.sum(p & ~t), np.sum(~p & t), np.sum(~p & ~t)


def f1_score(p: "f32[500] in [0, 1]", t: "f32[500] in [0, 1]"):
    tp = np.sum(p * t)
    precision, recall = tp / np.sum(p), tp / np.sum(t)
    return 2 * precision * recall / (precision + recall)


def kmeans_assign(X: "f64[200,8]", C: "f64[5,8]"):
    return np.argmin(((X[:, None, :] - C[None]) ** 2).sum(axis=2), axis=1)


def kmeans_update(X: "f64[200,8]", R: "f64[200,5] > 0"):
    return (R.T @ X) / R.sum(axis=0)[:, None]


def embedding_lookup(E: "f32[50,16]", ids: "i64[30] in [0, 49]"):
    return E[ids] * 4


def mean_pool(h: "f32[8,20,16]", mask: "f32[8,20] in [0, 1]"):
    return (h * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)


def dropout(x: "f32[100]"):
    return x * (np.random.rand(100) > 0.5) * 2


def early_stop(loss: "f32[10]"):
    best = loss[0]
    for value in loss:
        if value < best:
            best = value
    return best


def top_k(x: "f32[100]"):
    return np.sort(x)[-5:]
