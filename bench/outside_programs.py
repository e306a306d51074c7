"""Programs that nobody tuned for, in the style of KernelBench's levels 1 and 2 (Ouyang et al.,
2025), sizes reduced: single operators, short chains of them, and "gifts", of which algebra leaves
little. Each is a PyTorch module and its arguments."""

# mypy: disable-error-code="assignment"
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Chain(nn.Module):  # type: ignore[misc]
    """A function of modules and arguments."""

    def __init__(self, function: Callable[..., Any], *modules: Any) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, *args: Any) -> Any:
        return self.function(*self.parts, *args)


@dataclass(frozen=True)
class Program:
    """One case: `make` draws its module and arguments."""

    group: str
    name: str
    make: Callable[[], tuple[Any, tuple[Any, ...]]]


PROGRAMS: dict[str, Program] = {}


def add(group: str, name: str, function: Callable[..., Any], shapes: Any,
        *modules: Callable[[], Any]) -> None:  # fmt: skip
    """Modules are made anew, by their class; an argument is drawn by its shape or function."""

    def make() -> tuple[Any, tuple[Any, ...]]:
        args = tuple(s() if callable(s) else torch.randn(s) for s in shapes)
        return Chain(function, *(m() for m in modules)).eval(), args

    PROGRAMS[name] = Program(group, name, make)


def with_(kind: Any, *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: kind(*args, **options)


def call(m: Any, x: Any) -> Any:
    return m(x)


# --- level 1: products
for _name, _f, _shapes in (
    ("square", lambda a, b: a @ b, [(512, 512), (512, 512)]),
    ("tall", lambda a, b: a @ b, [(2048, 32), (32, 2048)]),
    ("batched", lambda a, b: a @ b, [(16, 128, 256), (16, 256, 64)]),
    ("matrix_vector", lambda a, b: a @ b, [(1024, 4096), (4096, 1)]),
    ("small_k", lambda a, b: a @ b, [(1024, 16), (16, 1024)]),
    ("irregular", lambda a, b: a @ b, [(811, 297), (297, 523)]),
    ("left_turned", lambda a, b: a.T @ b, [(512, 256), (512, 384)]),
    ("right_turned", lambda a, b: a @ b.T, [(256, 512), (384, 512)]),
    ("both_turned", lambda a, b: a.T @ b.T, [(512, 256), (384, 512)]),
    ("four_axes", lambda a, b: torch.einsum("bijl,lk->bijk", a, b), [(4, 16, 32, 64), (64, 48)]),
    ("diagonal", lambda a, b: torch.diag(a) @ b, [(512,), (512, 512)]),
    ("triangles", lambda a, b: torch.triu(torch.triu(a) @ torch.triu(b)), [(384, 384)] * 2),
):
    add("products", _name, _f, _shapes)
# --- level 1: one operator
for _name in ("relu", "sigmoid", "tanh", "gelu", "selu", "elu", "softplus", "hardtanh", "softsign",
              "leaky_relu", "silu", "hardsigmoid", "logsigmoid", "hardswish", "mish"):  # fmt: skip
    add("activations", _name, getattr(F, _name), [(64, 4096)])
_IMAGES = [(8, 32, 32, 32)]
for _name, _f, _shapes, _modules in (
    ("softmax", lambda x: F.softmax(x, 1), [(64, 4096)], []),
    ("log_softmax", lambda x: F.log_softmax(x, 1), [(64, 4096)], []),
    ("batch_norm", call, _IMAGES, [with_(nn.BatchNorm2d, 32)]),
    ("instance_norm", call, _IMAGES, [with_(nn.InstanceNorm2d, 32)]),
    ("group_norm", call, _IMAGES, [with_(nn.GroupNorm, 8, 32)]),
    ("layer_norm", call, [(8, 32, 16, 16)], [with_(nn.LayerNorm, (32, 16, 16))]),
    ("rms_norm", lambda x: x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-5), _IMAGES, []),
    ("frobenius", lambda x: x / torch.norm(x, p="fro"), _IMAGES, []),
    ("l1_norm", lambda x: x / x.abs().sum(1, keepdim=True), [(64, 4096)], []),
    ("l2_norm", lambda x: x / x.norm(p=2, dim=1, keepdim=True), [(64, 4096)], []),
):
    add("norms", _name, _f, _shapes, *_modules)
for _name, _kind, _shape, _args in (
    ("max_pool_1d", nn.MaxPool1d, (8, 32, 512), (4, 2, 1)),
    ("max_pool_2d", nn.MaxPool2d, (4, 32, 64, 64), (4, 2, 1)),
    ("max_pool_3d", nn.MaxPool3d, (2, 8, 16, 32, 32), (3, 2, 1)),
    ("avg_pool_1d", nn.AvgPool1d, (8, 32, 512), (4, 2, 1)),
    ("avg_pool_2d", nn.AvgPool2d, (4, 32, 64, 64), (3,)),
    ("avg_pool_3d", nn.AvgPool3d, (2, 8, 16, 32, 32), (3, 2, 1)),
):
    add("pooling", _name, call, [_shape], with_(_kind, *_args))
for _name, _f in (
    ("sum", lambda x: x.sum(1, keepdim=True)), ("mean", lambda x: x.mean(1)),
    ("max", lambda x: x.max(1)[0]), ("min", lambda x: x.min(1)[0]),
    ("argmax", lambda x: x.argmax(1)), ("argmin", lambda x: x.argmin(1)),
):  # fmt: skip
    add("reductions", _name, _f, [(16, 256, 256)])
for _name, _f, _shapes in (
    ("cumsum", lambda x: torch.cumsum(x, 1), [(64, 4096)]),
    ("cumprod", lambda x: torch.cumprod(x, 1), [(64, 4096)]),
    ("cumsum_back", lambda x: torch.cumsum(x.flip(1), 1).flip(1), [(64, 4096)]),
    ("cumsum_before", lambda x: torch.cumsum(
        torch.cat([torch.zeros_like(x[:, :1]), x], 1)[:, :-1], 1), [(64, 4096)]),
    ("cumsum_masked", lambda x, m: torch.cumsum(x * m, 1),
     [(64, 4096), lambda: torch.randn(64, 4096) > 0]),
):  # fmt: skip
    add("running", _name, _f, _shapes)
_TWO = [(64, 4096), (64, 4096)]
_ROWS = with_(lambda: torch.randn(64, 4096).softmax(1))
for _name, _f, _shapes in (
    ("mse", lambda a, b: ((a - b) ** 2).mean(), _TWO),
    ("cross_entropy", F.cross_entropy, [(512, 100), lambda: torch.randint(0, 100, (512,))]),
    ("huber", F.smooth_l1_loss, _TWO),
    ("kl", lambda a, b: F.kl_div(torch.log(a), b, reduction="batchmean"), [_ROWS, _ROWS]),
    ("cosine", lambda a, b: (1 - F.cosine_similarity(a, b, dim=1)).mean(), _TWO),
    ("hinge", lambda a, b: torch.clamp(1 - a * b, min=0).mean(),
     [(64, 4096), lambda: torch.randn(64, 1).sign()]),
    ("triplet", nn.TripletMarginLoss(margin=1.0), [(64, 4096)] * 3),
):  # fmt: skip
    add("losses", _name, _f, _shapes)
_IMAGE, _MAPS = (4, 16, 64, 64), (4, 32, 64, 64)
for _name, _shape, _module in (
    ("conv_1d", (8, 16, 512), with_(nn.Conv1d, 16, 32, 3, padding=1)),
    ("conv_2d", _IMAGE, with_(nn.Conv2d, 16, 32, 3)),
    ("conv_2d_oblong", (4, 16, 64, 32), with_(nn.Conv2d, 16, 32, (3, 5))),
    ("conv_3d", (2, 8, 16, 24, 24), with_(nn.Conv3d, 8, 16, 3)),
    ("depthwise", _MAPS, with_(nn.Conv2d, 32, 32, 3, groups=32, padding=1)),
    ("pointwise", _MAPS, with_(nn.Conv2d, 32, 64, 1)),
    ("dilated", _IMAGE, with_(nn.Conv2d, 16, 32, 3, dilation=2, padding=2)),
    ("strided", _IMAGE, with_(nn.Conv2d, 16, 32, 3, stride=2, padding=1)),
    ("first_layer", (4, 3, 112, 112), with_(nn.Conv2d, 3, 48, 11, stride=4, padding=2)),
):
    add("convolutions", _name, call, [_shape], _module)
add("convolutions", "separable", lambda a, b, x: b(a(x)), [_MAPS],
    with_(nn.Conv2d, 32, 32, 3, groups=32, padding=1), with_(nn.Conv2d, 32, 64, 1))  # fmt: skip
_SMALL, _VOLUME = (4, 32, 32, 32), (2, 16, 8, 16, 16)
for _name, _shape, _module in (
    ("t1d", (8, 32, 256), with_(nn.ConvTranspose1d, 32, 16, 3)),
    ("t1d_strided_dilated", (8, 32, 128),
     with_(nn.ConvTranspose1d, 32, 16, 3, stride=2, padding=1, dilation=2)),
    ("t2d", _SMALL, with_(nn.ConvTranspose2d, 32, 16, 3)),
    ("t2d_strided", _SMALL, with_(nn.ConvTranspose2d, 32, 16, 3, 2, 1, 1)),
    ("t2d_oblong", (4, 32, 16, 32), with_(nn.ConvTranspose2d, 32, 16, (3, 5))),
    ("t2d_groups", _SMALL, with_(nn.ConvTranspose2d, 32, 32, 3, stride=2, groups=4)),
    ("t2d_dilated", _SMALL, with_(nn.ConvTranspose2d, 32, 16, 3, dilation=2)),
    ("t3d", _VOLUME, with_(nn.ConvTranspose3d, 16, 8, 3)),
    ("t3d_strided", _VOLUME, with_(nn.ConvTranspose3d, 16, 8, 3, 2, 1, 1)),
    ("t2d_generator", (4, 64, 16, 16), with_(nn.ConvTranspose2d, 64, 32, 4, 2, 1)),
):  # fmt: skip
    add("transposed", _name, call, [_shape], _module)
# --- level 2: chains
_CONV, _BIAS = with_(nn.Conv2d, 16, 32, 3), (32, 1, 1)
add("conv_chains", "conv_relu_bias", lambda m, x, b: F.relu(m(x)) + b, [_IMAGE, _BIAS], _CONV)
add(
    "conv_chains",
    "conv_tanh_scale_bias_pool",
    lambda m, x, b: F.max_pool2d(torch.tanh(m(x)) * 2 + b, 2),
    [_IMAGE, _BIAS],
    _CONV,
)
add(
    "conv_chains",
    "conv_norm_tanh_hardswish_lse",
    lambda m, g, x: torch.logsumexp(m(x) + F.hardswish(torch.tanh(g(m(x)))), 1, keepdim=True),
    [_IMAGE],
    _CONV,
    with_(nn.GroupNorm, 8, 32),
)
add("conv_chains", "conv_mish_mish", lambda m, x: F.mish(F.mish(m(x) - 0.5 - 0.2)), [_IMAGE], _CONV)
add(
    "conv_chains",
    "conv3d_min_softmax",
    lambda m, x: F.softmax(m(x).min(2)[0], 1),
    [(2, 8, 16, 24, 24)],
    with_(nn.Conv3d, 8, 16, 3),
)
add(
    "conv_chains",
    "conv_norm_scale",
    lambda m, n, x: n(m(x)) * 2,
    [_IMAGE],
    _CONV,
    with_(nn.BatchNorm2d, 32),
)
add(
    "conv_chains",
    "conv_pool_sigmoid_sum",
    lambda m, x: torch.sigmoid(F.avg_pool2d(m(x), 4)).sum((1, 2, 3)),
    [_IMAGE],
    _CONV,
)
_LINEAR, _X = with_(nn.Linear, 512, 512), (128, 512)
add("product_chains", "scale_leaky", lambda m, x: F.leaky_relu(m(x) * 2, 0.1), [_X], _LINEAR)
add(
    "product_chains",
    "silu_clamp_tanh_clamp",
    lambda m, x: torch.clamp(torch.tanh(torch.clamp(F.silu(m(x)) / 2, -1, 1)), -1, 1),
    [_X],
    _LINEAR,
)
add(
    "product_chains",
    "norm_hardtanh",
    lambda m, g, x: F.hardtanh(g(m(x))),
    [_X],
    _LINEAR,
    with_(nn.GroupNorm, 8, 512),
)
add(
    "product_chains",
    "batch_norm_gelu_relu",
    lambda m, g, x: F.relu(F.gelu(g(m(x)))),
    [_X],
    _LINEAR,
    with_(nn.BatchNorm1d, 512),
)
add("product_chains", "softmax_of_product", lambda m, x: F.softmax(m(x), 1), [_X], _LINEAR)
add(
    "product_chains",
    "norm_residual_product",
    lambda m, x, y: (F.instance_norm(m(x)[:, None, None, :])[:, 0, 0] + y) * y,
    [_X, _X],
    _LINEAR,
)
add(
    "product_chains",
    "sigmoid_product_lse",
    lambda m, n, x: torch.logsumexp(n(torch.sigmoid(m(x))), 1),
    [_X],
    _LINEAR,
    with_(nn.Linear, 512, 256),
)
_UP, _CHANNEL = with_(nn.ConvTranspose2d, 32, 16, 4, stride=2, padding=1), (16, 1, 1)
_UP3 = with_(nn.ConvTranspose3d, 16, 8, 4, stride=2, padding=1)
add(
    "transposed_chains",
    "bias_clamp_scale_clamp",
    lambda m, x, b: torch.clamp(torch.clamp(m(x) + b, 0, 1) * 2, 0, 1) / 2,
    [_SMALL, _CHANNEL],
    _UP,
)
add(
    "transposed_chains",
    "softmax_bias_sigmoid",
    lambda m, x, b: torch.sigmoid((F.softmax(m(x), 1) + b) * 2),
    [_SMALL, _CHANNEL],
    _UP,
)
add(
    "transposed_chains",
    "pool_hardtanh_mean_tanh",
    lambda m, x: torch.tanh(F.hardtanh(F.max_pool2d(m(x), 2)).mean((2, 3), keepdim=True)),
    [_SMALL],
    _UP,
)
add(
    "transposed_chains",
    "gelu_norm",
    lambda m, g, x: g(F.gelu(m(x))),
    [_SMALL],
    _UP,
    with_(nn.GroupNorm, 4, 16),
)
add(
    "transposed_chains",
    "scale_avg_pool",
    lambda m, x: F.avg_pool3d(m(x) * 0.5, 2) + 1,
    [_VOLUME],
    _UP3,
)
add(
    "transposed_chains",
    "layer_norm_gelu",
    lambda m, n, x: F.gelu(n(m(x))),
    [_VOLUME],
    _UP3,
    with_(nn.LayerNorm, 32),
)
add(
    "transposed_chains",
    "norm_tanh_pool_norm",
    lambda m, n, g, x: g(F.max_pool2d(torch.tanh(n(m(x))), 2)),
    [_SMALL],
    _UP,
    with_(nn.BatchNorm2d, 16),
    with_(nn.GroupNorm, 4, 16),
)
add(
    "transposed_chains",
    "min_sum_gelu",
    lambda m, x, b: F.gelu(m(x).min(1, keepdim=True)[0].sum(2, keepdim=True)) + b,
    [_SMALL, _CHANNEL],
    _UP,
)
# --- gifts: most of the work is not needed
add("gifts", "product_then_mean", lambda m, x: m(x).mean(1), [_X], _LINEAR)
add(
    "gifts",
    "product_then_sum_max",
    lambda m, x: m(x).sum(1, keepdim=True).max(1, keepdim=True)[0],
    [_X],
    _LINEAR,
)
add(
    "gifts",
    "product_mean_lse_residual",
    lambda m, x: F.gelu(torch.logsumexp((m(x) - 0.5).mean(1, keepdim=True), 1, keepdim=True)) + x,
    [_X],
    _LINEAR,
)
add(
    "gifts",
    "maximum_minus_its_mean",
    lambda m, x: F.gelu((y := m(x).max(1, keepdim=True)[0]) - y.mean(1, keepdim=True)),
    [_X],
    _LINEAR,
)
add(
    "gifts",
    "low_rank",
    lambda u, d, x: d(u(x)),
    [_X],
    with_(nn.Linear, 512, 2048, bias=False),
    with_(nn.Linear, 2048, 512, bias=False),
)
add("gifts", "product_then_pool", lambda m, x: F.avg_pool1d(m(x)[:, None], 16)[:, 0], [_X], _LINEAR)
add(
    "gifts",
    "clamps_that_fold",
    lambda m, x: torch.clamp(torch.relu(torch.clamp(m(x), -1, 1)), 0, 1),
    [_X],
    _LINEAR,
)
add(
    "gifts",
    "transposed_then_mean",
    lambda m, x, b: (
        torch.logsumexp(m(x).mean((2, 3), keepdim=True) + b, 1, keepdim=True).sum((2, 3)) * 10
    ),
    [_SMALL, _CHANNEL],
    _UP,
)
add(
    "gifts",
    "shift_that_norm_cancels",
    lambda m, n, x: n(m(x) + 3.0),
    [_IMAGE],
    _CONV,
    lambda: nn.InstanceNorm2d(32),
)
