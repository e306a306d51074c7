"""Pooling of PyTorch, and other operators that have programs since networks use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

from tessera import torch_backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


def same(function: Callable[..., Any], *inputs: Any) -> None:
    """All of it is ours, and what PyTorch computes."""
    options = {"strict": True, "check": False}
    compiled = torch.compile(function, backend="tessera", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), function(*inputs), equal_nan=True)


# Size, stride, padding, dilation, ceil_mode.
WINDOWS = [((3, 2), (2, 1), (1, 0), (1, 2), False), (3, 2, 1, 1, True), (2, 3, 0, 1, True)]


@pytest.mark.parametrize("window", WINDOWS)
def test_maxima(window: tuple[Any, ...]) -> None:
    x = torch.randint(-3, 4, (2, 3, 9, 8)).float()
    x[0, 0, 0, 0] = float("nan")
    x[1, 1] = -float("inf")
    same(lambda t: F.max_pool2d(t, *window), x)
    same(lambda t: F.max_pool2d(t, *window), x[0])


def test_three_axes() -> None:
    x = torch.randn(2, 3, 5, 6, 7)
    same(lambda t: F.max_pool3d(t, 3, 2, 1), x)
    same(lambda t: F.adaptive_avg_pool3d(t, (3, 4, 5)), x)


@pytest.mark.parametrize("include", [True, False])
def test_means_at_borders(include: bool) -> None:
    same(lambda t: F.avg_pool2d(t, 3, 2, 1, True, include), torch.randn(2, 3, 9, 8))


def test_gradients_of_means() -> None:
    x = torch.randn(2, 3, 9, 8)
    leaves = [x.clone().requires_grad_() for _ in range(2)]

    def mean(t: Any) -> Any:
        return F.avg_pool2d(t, 2)

    compiled = torch.compile(mean, backend="tessera", options={"strict": True})
    for run, leaf in zip((mean, compiled), leaves, strict=True):
        run(leaf).square().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


def test_maxima_of_variable_windows() -> None:
    same(lambda t: F.adaptive_max_pool2d(t, (3, 4)), torch.randn(2, 3, 7, 9))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layer_norms_of_short_floats(dtype: str) -> None:
    norm = torch.nn.LayerNorm(64).to(getattr(torch, dtype))
    same(norm, torch.randn(8, 64, dtype=getattr(torch, dtype)))


def test_elements_in_the_order_of_a_mask() -> None:
    mask = torch.rand(3, 1, 7) < 0.4
    same(lambda x, m, s: x.masked_scatter(m, s), torch.randn(3, 5, 7), mask, torch.randn(105))


def test_bilinear_forms() -> None:
    same(F.bilinear, torch.randn(4, 3, 8), torch.randn(4, 3, 6), torch.randn(5, 8, 6))


def test_images_at_places_of_a_grid() -> None:
    same(
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        torch.randn(2, 3, 6, 7),
        torch.randn(2, 4, 5, 2),
    )


def test_an_order_that_is_not_stable_is_left_to_pytorch_alone() -> None:
    def routed(x: Any) -> Any:
        experts = torch.relu(x).argmax(-1) % 4
        order = torch.sort(experts)[1]
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel())
        return torch.exp(x[order])[back]

    x = torch.randn(128, 64)
    compiled = torch.compile(routed, backend="tessera")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), routed(x))
    (report,) = torch_backend.REPORTS
    assert list(report.eager) == ["sort"]
    assert not any(None in part._programs.values() for part in report.parts)


def test_views_for_others_are_not_copied() -> None:
    def model(x: Any) -> Any:
        y = torch.exp(x)
        return torch.lgamma(y.transpose(1, 2)).sum() + y

    compiled = torch.compile(model, backend="tessera")
    with torch.no_grad():
        x = torch.randn(4, 64, 32)
        torch.testing.assert_close(compiled(x), model(x))
    (report,) = torch_backend.REPORTS
    assert not any("transpose" in str(p.source) for q in report.parts for p in q.programs)
