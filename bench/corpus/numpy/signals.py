"""Programs of signal processing and time series: filters, windows, modulation, features."""

import numpy as np


def energy(x: "f64[2000]"):
    return np.sum(np.abs(x) ** 2)


def rms(x: "f64[2000]"):
    return np.sqrt(np.mean(np.square(x)))


def power_db(x: "f64[1000]"):
    return 10 * np.log10(np.mean(x**2))


def snr(signal: "f64[1000]", noise: "f64[1000]"):
    return 20 * np.log10(np.sqrt(np.mean(signal**2)) / np.sqrt(np.mean(noise**2)))


def crest_factor(x: "f64[1000]"):
    return np.max(np.abs(x)) / np.sqrt(np.mean(x * x))


def zero_crossings(x: "f64[1000]"):
    return np.sum(np.abs(np.diff(np.sign(x)))) / 2


def remove_offset(x: "f64[1000]"):
    return x - np.mean(x)


def detrend(x: "f64[500]"):
    t = np.arange(500)
    tc = t - t.mean()
    slope = np.sum(tc * (x - x.mean())) / np.sum(tc * tc)
    return x - x.mean() - slope * tc


def hann_window(x: "f64[512]"):
    n = np.arange(512)
    return x * (0.5 - 0.5 * np.cos(2 * np.pi * n / 511))


def fir_filter(x: "f64[1000]", h: "f64[5]"):
    return np.convolve(x, h, mode="valid")


def fir_by_slices(x: "f64[1000]", h: "f64[4]"):
    return h[0] * x[3:] + h[1] * x[2:-1] + h[2] * x[1:-2] + h[3] * x[:-3]


def pre_emphasis(x: "f64[1000]"):
    return np.append(x[0], x[1:] - 0.97 * x[:-1])


def iir_one_pole(x: "f64[60]"):
    y = np.zeros_like(x)
    y[0] = x[0]
    for n in range(1, len(x)):
        y[n] = 0.9 * y[n - 1] + 0.1 * x[n]
    return y


def cross_correlation(x: "f64[200]", y: "f64[20]"):
    return np.correlate(x, y, mode="valid")


def dft_matrix(x: "f64[64]"):
    n = np.arange(64)
    angle = -2 * np.pi * n[:, None] * n / 64
    return np.cos(angle) @ x, np.sin(angle) @ x


def power_by_dft(x: "f64[64]", C: "f64[64,64]", S: "f64[64,64]"):
    return (C @ x) ** 2 + (S @ x) ** 2


def frames(x: "f64[128]"):
    return np.stack([x[i : i + 32] for i in range(0, 97, 16)])


def frame_energies(x: "f64[128]"):
    return np.array([np.sum(x[i : i + 32] ** 2) for i in range(0, 97, 16)])


def spectral_centroid(m: "f64[257] > 0"):
    f = np.linspace(0, 8000, 257)
    return np.sum(f * m) / np.sum(m)


def spectral_flatness(p: "f64[257] > 0"):
    return np.exp(np.mean(np.log(p))) / np.mean(p)


def spectral_flux(S: "f64[50,129] > 0"):
    return np.sum(np.maximum(S[1:] - S[:-1], 0) ** 2, axis=1)


def mel_log(S: "f64[50,129] > 0", M: "f64[129,40] > 0"):
    return np.log(S @ M + 1e-10)


def dct_features(L: "f64[50,40]", D: "f64[40,13]"):
    return L @ D


def amplitude_modulation(x: "f64[1000]", t: "f64[1000]"):
    return (1 + 0.5 * x) * np.cos(2 * np.pi * 100 * t)


def envelope_demodulate(i: "f64[1000]", q: "f64[1000]"):
    return np.sqrt(i**2 + q**2)


def phase(i: "f64[1000]", q: "f64[1000]"):
    return np.arctan2(q, i)


def mix_down(x: "f64[1000]", t: "f64[1000]"):
    return x * np.cos(t) * np.cos(t) + x * np.sin(t) * np.sin(t)


def mu_law(x: "f64[1000] in (-1, 1)"):
    return np.sign(x) * np.log(1 + 255 * np.abs(x)) / np.log(1 + 255)


def quantize(x: "f64[1000] in (-1, 1)"):
    return np.round(x * 127) / 127


def clip_soft(x: "f64[1000]"):
    return np.tanh(3 * x) / np.tanh(3.0)


def interleave(a: "f64[500]", b: "f64[500]"):
    return np.stack([a, b], axis=1).reshape(-1)


def decimate(x: "f64[1000]"):
    return x.reshape(-1, 4).mean(axis=1)


def polyphase(x: "f64[400]", h: "f64[8,50]"):
    return np.sum(x.reshape(8, 50) * h, axis=0)


def upsample_zero(x: "f64[300]"):
    return np.stack([x, np.zeros_like(x)], axis=-1).ravel()


def reverse_time(x: "f64[500]"):
    return x[::-1] + x


def haar_step(x: "f64[512]"):
    even, odd = x[::2], x[1::2]
    return np.concatenate([(even + odd) / np.sqrt(2), (even - odd) / np.sqrt(2)])


def haar_inverse(a: "f64[256]", d: "f64[256]"):
    return np.column_stack([(a + d) / np.sqrt(2), (a - d) / np.sqrt(2)]).ravel()


def teager_energy(x: "f64[1000]"):
    return x[1:-1] ** 2 - x[:-2] * x[2:]


def beamform(x: "f64[8,500]", w: "f64[8]"):
    return np.sum(w[:, None] * x, axis=0)


def array_covariance(x: "f64[8,500]"):
    return np.mean([np.outer(s, s) for s in x.T[:20]], axis=0)


def capon_power(a: "f64[30,8]", R: "f64[8,8]"):
    return 1 / np.abs(np.diag(a @ R @ a.T))


def kalman_predict(x: "f64[4]", P: "f64[4,4]", F: "f64[4,4]", Q: "f64[4,4]"):
    return F @ x, F @ P @ F.T + Q


def kalman_gain_scalar(P: "f64[4,4]", h: "f64[4]"):
    return P @ h / (h @ P @ h + 1.0)


def lms_update(w: "f64[16]", x: "f64[16]", d: "f64[]"):
    e = d - np.dot(w, x)
    return w + 2 * 0.01 * e * x


def levinson_dot(r: "f64[20]", a: "f64[20]"):
    return np.sum(a * r[::-1])


def goertzel(x: "f64[40]"):
    s1 = s2 = 0.0
    for v in x:
        s1, s2 = v + 1.8 * s1 - s2, s1
    return s1**2 + s2**2 - 1.8 * s1 * s2


def sample_and_hold(x: "f64[100]"):
    return np.repeat(x[::4], 4)


def noise_gate(x: "f64[1000]"):
    y = x.copy()
    y[np.abs(y) < 0.1] = 0
    return y


def peaks(x: "f64[500]"):
    return (x[1:-1] > x[:-2]) & (x[1:-1] > x[2:])


def fft_convolve(x: "f64[128]", h: "f64[128]"):
    return np.fft.irfft(np.fft.rfft(x) * np.fft.rfft(h))
