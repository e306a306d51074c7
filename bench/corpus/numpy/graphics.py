"""Programs of graphics and vision: transforms, shading, colour, filters, geometry."""

import numpy as np


def normalize_vectors(v: "f32[1000,3]"):
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def normalize_by_power(v: "f32[1000,3]"):
    return v / np.power(np.sum(np.power(v, 2), axis=1, keepdims=True), 0.5)


def lambert(n: "f32[1000,3]", light: "f32[3]", albedo: "f32[1000,3] in [0, 1)"):
    return albedo * np.maximum(np.sum(n * light, axis=1), 0)[:, None]


def phong(n: "f32[1000,3]", view: "f32[3]", light: "f32[3]"):
    ndotl = n @ light
    r = 2 * ndotl[:, None] * n - light
    return 0.1 + 0.6 * np.maximum(ndotl, 0) + 0.3 * np.maximum(r @ view, 0) ** 16


def reflect(d: "f32[1000,3]", n: "f32[1000,3]"):
    return d - 2 * np.sum(d * n, axis=1, keepdims=True) * n


def refract_cosine(d: "f32[1000,3]", n: "f32[1000,3]"):
    c = np.sum(d * n, axis=-1)
    return np.sqrt(np.maximum(1 - 0.49 * (1 - c * c), 0))


def face_normals(a: "f32[500,3]", b: "f32[500,3]", c: "f32[500,3]"):
    n = np.cross(b - a, c - a)
    return n / np.sqrt((n**2).sum(-1))[:, None]


def triangle_areas(a: "f64[500,3]", b: "f64[500,3]", c: "f64[500,3]"):
    return 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1)


def triangle_normal_of_mesh(vertices: "f32[100,3]", faces: "i64[200,3] in [0, 99]"):
    a, b, c = vertices[faces[:, 0]], vertices[faces[:, 1]], vertices[faces[:, 2]]
    return np.cross(b - a, c - a)


def barycentric(p: "f64[500,2]"):
    a, b, c = np.array([0.0, 0.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0])
    v0, v1, v2 = b - a, c - a, p - a
    d00, d01, d11 = v0 @ v0, v0 @ v1, v1 @ v1
    d20, d21 = v2 @ v0, v2 @ v1
    denominator = d00 * d11 - d01 * d01
    v = (d11 * d20 - d01 * d21) / denominator
    w = (d00 * d21 - d01 * d20) / denominator
    return np.stack([1 - v - w, v, w], axis=1)


def rotate_2d(points: "f64[1000,2]", angle: "f64[]"):
    c, s = np.cos(angle), np.sin(angle)
    R = np.array([[c, -s], [s, c]])
    return points @ R.T


def rotation_chain(p: "f64[500,3]", A: "f64[3,3]", B: "f64[3,3]", C: "f64[3,3]"):
    return np.array([A @ (B @ (C @ q)) for q in p[:40]])


def rodrigues(v: "f64[300,3]", k: "f64[3]"):
    c, s = np.cos(0.3), np.sin(0.3)
    return v * c + np.cross(k, v) * s + np.outer(v @ k, k) * (1 - c)


def quaternion_multiply(q: "f64[300,4]", r: "f64[300,4]"):
    w0, x0, y0, z0 = q.T
    w1, x1, y1, z1 = r.T
    return np.stack(
        [
            w0 * w1 - x0 * x1 - y0 * y1 - z0 * z1,
            w0 * x1 + x0 * w1 + y0 * z1 - z0 * y1,
            w0 * y1 - x0 * z1 + y0 * w1 + z0 * x1,
            w0 * z1 + x0 * y1 - y0 * x1 + z0 * w1,
        ],
        axis=-1,
    )


def homogeneous_transform(p: "f32[1000,3]", M: "f32[4,4]"):
    h = np.hstack([p, np.ones((len(p), 1), dtype=p.dtype)]) @ M.T
    return h[:, :3] / h[:, 3:]


def pinhole_projection(p: "f64[1000,3] > 1", f: "f64[2]", c: "f64[2]"):
    return f * p[:, :2] / p[:, 2:] + c


def luminance(image: "f32[120,160,3] in [0, 1)"):
    return 0.2126 * image[..., 0] + 0.7152 * image[..., 1] + 0.0722 * image[..., 2]


def luminance_dot(image: "f32[120,160,3] in [0, 1)"):
    return np.dot(image, np.array([0.2126, 0.7152, 0.0722], dtype=np.float32))


def sepia(image: "f32[100,100,3] in [0, 1)", M: "f32[3,3]"):
    return np.clip(np.einsum("hwc,dc->hwd", image, M), 0, 1)


def gamma_correct(image: "f32[100,100,3] in (0, 1)"):
    return np.power(image, 1 / 2.2)


def srgb_to_linear(c: "f32[10000] in (0, 1)"):
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def alpha_blend(
    fg: "f32[100,100,3] in [0, 1)", bg: "f32[100,100,3] in [0, 1)", a: "f32[100,100,1] in [0, 1)"
):
    return a * fg + (1 - a) * bg


def lerp_rows(A: "f32[100,64]", x: "f32[64]", y: "f32[64]"):
    out = np.empty_like(A)
    for i in range(len(A)):
        out[i] = A[i] * x + (1 - A[i]) * y
    return out


def over_layers(layers: "f32[5,64,64] in [0, 1)", alphas: "f32[5,64,64] in [0, 1)"):
    out = np.zeros_like(layers[0])
    for colour, a in zip(layers, alphas):
        out = colour * a + out * (1 - a)
    return out


def contrast(image: "f32[100,100] in [0, 1)"):
    m = image.mean()
    return np.clip((image - m) * 1.5 + m, 0.0, 1.0)


def invert_u8(image: "u8[100,100] in [0, 255]"):
    return 255 - image


def brightness_u8(image: "u8[100,100] in [0, 255]"):
    return np.clip(image.astype(np.int32) + 40, 0, 255).astype(np.uint8)


def threshold(image: "f32[100,100] in [0, 1)"):
    return (image > 0.5).astype(np.float32)


def box_blur(image: "f32[100,100] in [0, 1)"):
    p = np.pad(image, 1, mode="edge")
    return sum(p[i : i + 100, j : j + 100] for i in range(3) for j in range(3)) / 9


def sobel(image: "f32[64,64] in [0, 1)"):
    gx = image[:-2, 2:] + 2 * image[1:-1, 2:] + image[2:, 2:]
    gx = gx - image[:-2, :-2] - 2 * image[1:-1, :-2] - image[2:, :-2]
    gy = image[2:, :-2] + 2 * image[2:, 1:-1] + image[2:, 2:]
    gy = gy - image[:-2, :-2] - 2 * image[:-2, 1:-1] - image[:-2, 2:]
    return np.sqrt(gx**2 + gy**2)


def separable_blur(image: "f32[64,64] in [0, 1)"):
    k = np.array([0.25, 0.5, 0.25], dtype=np.float32)
    rows = k[0] * image[:-2] + k[1] * image[1:-1] + k[2] * image[2:]
    return k[0] * rows[:, :-2] + k[1] * rows[:, 1:-1] + k[2] * rows[:, 2:]


def unsharp(image: "f32[64,64] in [0, 1)"):
    blur = (
        np.roll(image, 1, 0) + np.roll(image, -1, 0) + np.roll(image, 1, 1) + np.roll(image, -1, 1)
    ) / 4
    return image + 0.5 * (image - blur)


def downsample(image: "f32[100,100] in [0, 1)"):
    return image.reshape(50, 2, 50, 2).mean(axis=(1, 3))


def upsample(image: "f32[50,50] in [0, 1)"):
    return np.repeat(np.repeat(image, 2, axis=0), 2, axis=1)


def flip_and_average(image: "f32[64,64] in [0, 1)"):
    return (image + image[:, ::-1]) / 2


def psnr(a: "f32[100,100] in [0, 1)", b: "f32[100,100] in [0, 1)"):
    return 10 * np.log10(1.0 / np.mean((a - b) ** 2))


def ssim_global(a: "f64[100,100] in [0, 1)", b: "f64[100,100] in [0, 1)"):
    ma, mb = a.mean(), b.mean()
    va, vb = ((a - ma) ** 2).mean(), ((b - mb) ** 2).mean()
    cov = ((a - ma) * (b - mb)).mean()
    return ((2 * ma * mb + 1e-4) * (2 * cov + 9e-4)) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))


def bilinear(t: "f32[1000] in [0, 1)", u: "f32[1000] in [0, 1)", c: "f32[4,1000]"):
    return (1 - t) * (1 - u) * c[0] + t * (1 - u) * c[1] + (1 - t) * u * c[2] + t * u * c[3]


def smoothstep(x: "f32[1000]"):
    t = np.clip(x, 0, 1)
    return t * t * (3 - 2 * t)


def bezier(p: "f64[4,2]", t: "f64[200] in [0, 1)"):
    t = t[:, None]
    return (
        (1 - t) ** 3 * p[0] + 3 * (1 - t) ** 2 * t * p[1] + 3 * (1 - t) * t**2 * p[2] + t**3 * p[3]
    )


def sphere_intersect(o: "f32[1000,3]", d: "f32[1000,3]"):
    a = np.sum(d * d, axis=1)
    b = 2 * np.sum(o * d, axis=1)
    c = np.sum(o * o, axis=1) - 1
    disc = b * b - 4 * a * c
    return np.where(disc > 0, (-b - np.sqrt(np.maximum(disc, 0))) / (2 * a), np.inf)


def plane_distances(p: "f32[1000,3]", n: "f32[3]", d: "f32[]"):
    return np.abs(np.sum(p * n, axis=1) - d) / np.sqrt(np.sum(n * n))


def bounding_box(p: "f32[1000,3]"):
    return {
        "low": p.min(axis=0),
        "high": p.max(axis=0),
        "centre": (p.min(axis=0) + p.max(axis=0)) / 2,
    }


def hue_branch(rgb: "f32[3] in [0, 1)"):
    return rgb[0] - rgb[1] if rgb[0] > rgb[1] else rgb[1] - rgb[0]


def draw_in_place(image: "f32[64,64]"):
    image[10:20, 10:20] = 1
    return image
