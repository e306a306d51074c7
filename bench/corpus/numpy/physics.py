"""Programs of physics and numerics: fields, particles, waves, integrators, finite differences."""

import numpy as np


def kinetic_energy(m: "f64[500] > 0", v: "f64[500,3]"):
    return np.sum(0.5 * m * np.sum(v**2, axis=1))


def momentum(m: "f64[500] > 0", v: "f64[500,3]"):
    return np.sum(m[:, None] * v, axis=0)


def centre_of_mass(m: "f64[500] > 0", r: "f64[500,3]"):
    return (m[:, np.newaxis] * r).sum(axis=0) / m.sum()


def angular_momentum(m: "f64[200] > 0", r: "f64[200,3]", v: "f64[200,3]"):
    return np.sum(np.cross(r, m[:, None] * v), axis=0)


def inertia_tensor(m: "f64[200] > 0", r: "f64[200,3]"):
    r2 = np.sum(r * r, axis=1)
    return np.sum(m * r2) * np.eye(3) - (m[:, None] * r).T @ r


def gravity_accelerations(m: "f64[60] > 0", r: "f64[60,3]"):
    d = r[None, :, :] - r[:, None, :]
    dist2 = np.sum(d**2, axis=-1) + 1e-3
    return np.sum(m[None, :, None] * d / dist2[:, :, None] ** 1.5, axis=1)


def potential_energy(m: "f64[60] > 0", r: "f64[60,3]"):
    d = np.sqrt(np.sum((r[:, None] - r[None, :]) ** 2, axis=-1) + 1e-2)
    return -0.5 * np.sum(np.outer(m, m) / d)


def lennard_jones(r: "f64[1000] > 0.5"):
    return 4 * ((1 / r) ** 12 - (1 / r) ** 6)


def coulomb_energy(q: "f64[40]", r: "f64[40,3]"):
    d = np.linalg.norm(r[:, None, :] - r[None, :, :], axis=-1) + np.eye(40)
    return 0.5 * np.sum(np.outer(q, q) / d * (1 - np.eye(40)))


def lorentz_force(q: "f64[]", E: "f64[100,3]", v: "f64[100,3]", B: "f64[100,3]"):
    return q * (E + np.cross(v, B))


def heat_step(u: "f64[100,100]"):
    lap = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    return u[1:-1, 1:-1] + 0.1 * lap


def heat_step_in_place(u: "f64[64,64]"):
    new = u.copy()
    new[1:-1, 1:-1] += 0.1 * (
        u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    )
    return new


def wave_step(u: "f64[200]", previous: "f64[200]"):
    return 2 * u - previous + 0.25 * (np.roll(u, 1) - 2 * u + np.roll(u, -1))


def laplacian_periodic(u: "f64[64,64]"):
    return (
        np.roll(u, 1, axis=0) + np.roll(u, -1, axis=0)
        + np.roll(u, 1, axis=1) + np.roll(u, -1, axis=1) - 4 * u
    )  # fmt: skip


def advection_upwind(u: "f64[500]", c: "f64[] in [0, 1)"):
    return u[1:] - c * (u[1:] - u[:-1])


def burgers_flux(u: "f64[500]"):
    f = u**2 / 2
    return (f[1:] - f[:-1]) / 0.01


def divergence(vx: "f64[64,64]", vy: "f64[64,64]"):
    return np.gradient(vx, axis=0) + np.gradient(vy, axis=1)


def curl_2d(vx: "f64[64,64]", vy: "f64[64,64]"):
    return np.gradient(vy, 0.1, axis=0) - np.gradient(vx, 0.1, axis=1)


def jacobi_iteration(u: "f64[50,50]", f: "f64[50,50]"):
    for _ in range(3):
        u = np.pad(
            0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - f[1:-1, 1:-1]), 1
        )
    return u


def euler_oscillator(x: "f64[100]", v: "f64[100]"):
    for _ in range(4):
        x, v = x + 0.01 * v, v - 0.01 * x
    return x, v


def rk4_pendulum(theta: "f64[100]", omega: "f64[100]"):
    def f(t, w):
        return w, -9.81 * np.sin(t)

    h = 0.01
    k1t, k1w = f(theta, omega)
    k2t, k2w = f(theta + h / 2 * k1t, omega + h / 2 * k1w)
    k3t, k3w = f(theta + h / 2 * k2t, omega + h / 2 * k2w)
    k4t, k4w = f(theta + h * k3t, omega + h * k3w)
    return theta + h / 6 * (k1t + 2 * k2t + 2 * k3t + k4t), omega + h / 6 * (
        k1w + 2 * k2w + 2 * k3w + k4w
    )


def verlet(r: "f64[100,3]", v: "f64[100,3]", a: "f64[100,3]"):
    dt = 0.005
    r_new = r + v * dt + 0.5 * a * dt**2
    a_new = -r_new
    return r_new, v + 0.5 * (a + a_new) * dt


def lorenz_step(s: "f64[200,3]"):
    x, y, z = s[:, 0], s[:, 1], s[:, 2]
    return s + 0.01 * np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], axis=1)


def planck_law(nu: "f64[500] > 0.1"):
    return nu**3 / np.expm1(nu)


def fermi_dirac(e: "f64[500]"):
    return 1 / (np.exp((e - 0.5) / 0.1) + 1)


def boltzmann_average(e: "f64[300]", a: "f64[300]"):
    w = np.exp(-e)
    return np.sum(w * a) / np.sum(w)


def partition_free_energy(e: "f64[300]"):
    return -np.log(np.sum(np.exp(-e)))


def ising_energy(s: "f64[40,40]"):
    return -np.sum(s * np.roll(s, 1, axis=0)) - np.sum(s * np.roll(s, 1, axis=1))


def expectation_value(psi: "f64[80]", H: "f64[80,80]"):
    return (psi @ H @ psi) / (psi @ psi)


def commutator(A: "f64[40,40]", B: "f64[40,40]"):
    return A @ B - B @ A


def trace_of_product(rho: "f64[60,60]", O: "f64[60,60]"):
    return np.trace(rho @ O)


def density_matrix_purity(rho: "f64[60,60]"):
    return np.trace(np.dot(rho, rho))


def strain_energy(e: "f64[100,3,3]"):
    return 0.5 * 1.3 * np.trace(e, axis1=1, axis2=2) ** 2 + 0.8 * np.einsum("nij,nij->n", e, e)


def von_mises(s: "f64[100,3,3]"):
    mean = np.trace(s, axis1=1, axis2=2)[:, None, None] / 3
    dev = s - mean * np.eye(3)
    return np.sqrt(1.5 * np.sum(dev * dev, axis=(1, 2)))


def reynolds_stress(u: "f64[500,3]"):
    f = u - u.mean(axis=0)
    return np.einsum("ti,tj->ij", f, f) / len(u)


def relativistic_gamma(v: "f64[500] in (-0.9, 0.9)"):
    return 1 / np.sqrt(1 - v**2)


def doppler(beta: "f64[500] in (-0.9, 0.9)"):
    return np.sqrt((1 + beta) / (1 - beta))


def snell(theta: "f64[300] in (0, 0.5)"):
    return np.arcsin(np.sin(theta) / 1.5)


def polar_to_cartesian(r: "f64[300] > 0", phi: "f64[300]"):
    return np.stack((r * np.cos(phi), r * np.sin(phi)), axis=-1)


def cartesian_to_polar(p: "f64[300,2]"):
    return np.hypot(p[:, 0], p[:, 1]), np.arctan2(p[:, 1], p[:, 0])


def trapezoid_integral(y: "f64[1000]"):
    return np.trapezoid(y, dx=0.01)


def simpson_integral(y: "f64[1001]"):
    return 0.01 / 3 * (y[0] + 4 * np.sum(y[1:-1:2]) + 2 * np.sum(y[2:-1:2]) + y[-1])


def newton_sqrt(a: "f64[1000] > 0.1"):
    x = a
    for _ in range(5):
        x = 0.5 * (x + a / x)
    return x


def horner(x: "f64[1000]"):
    return 1 + x * (2 + x * (3 + x * (4 + x * 5)))


def naive_polynomial(x: "f64[1000]"):
    return 1 + 2 * x + 3 * x**2 + 4 * x**3 + 5 * x**4


def thomas_forward(a: "f64[20] > 3", d: "f64[20]"):
    c = [1 / a[0]]
    g = [d[0] / a[0]]
    for i in range(1, 20):
        m = a[i] - c[i - 1]
        c.append(1 / m)
        g.append((d[i] - g[i - 1]) / m)
    return np.array(g)


def bisect(x: "f64[]"):
    low, high = 0.0, 2.0
    while high - low > 1e-6:
        mid = (low + high) / 2
        if mid * mid < x:
            low = mid
        else:
            high = mid
    return x * 0 + low


def spectrum(x: "f64[256]"):
    return np.abs(np.fft.rfft(x)) ** 2


def ground_state(H: "f64[20,20]"):
    return np.linalg.eigh(H + H.T)[0][0]
