"""`torch.compile(..., options={"level": "bitwise"})`: PyTorch's own bits, or PyTorch itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tessera import torch_backend  # noqa: E402
from tessera.special_values import edge_inputs  # noqa: E402
from tessera.torch_compare import same_bits  # noqa: E402


def fused(x: Any, y: Any) -> Any:
    return torch.where(x > y, x * y + x * 0.3, (x - y).abs() / 3).t()


def partly(x: Any, y: Any) -> Any:
    return torch.exp(x * y + y).sum(1) / (x * y + 1)[:, 0]


def decomposed(x: Any, y: Any) -> Any:
    return torch.addcmul(x, x, y, value=0.3) + torch.lerp(x, y, 0.7) + torch.add(x, y, alpha=3)


def rooted(x: Any, y: Any) -> Any:
    return (x - y).abs().sqrt() / 3 + x  # MKL rounds some roots to the other side


@pytest.mark.parametrize("function", [fused, partly, decomposed, rooted])
def test_bits_are_pytorchs(function: Callable[..., Any], caplog: Any) -> None:
    torch._dynamo.reset()
    with caplog.at_level(logging.WARNING, "tessera.torch"):
        compiled = torch.compile(function, backend="tessera", options={"level": "bitwise"})
        rng = np.random.default_rng(2)
        plain = [rng.standard_normal((16, 24)).astype("f4") * 100 for _ in range(2)]
        for arrays in [plain, *edge_inputs(plain, rng)]:
            given = [torch.from_numpy(a) for a in arrays]
            with torch.no_grad():
                assert same_bits(compiled(*given), function(*given))
    (report,) = torch_backend.REPORTS
    if function is fused:
        assert not report.eager
        assert [p.reason for p in report.parts] == [""]
    else:
        assert "level bitwise: its bits are PyTorch's own" in caplog.text
    if function is partly:
        assert report.parts


def test_other_words_are_refused() -> None:
    with pytest.raises(Exception, match="a level is bitwise, close, fast"):
        torch.compile(fused, backend="tessera", options={"level": "exact"})(
            torch.ones(2, 2), torch.ones(2, 2)
        )


def zeroed(x: Any, y: Any) -> Any:
    z = torch.where(torch.isnan(x), 0.0, x)
    return z * 2 + z * y


def angle(x: Any, y: Any) -> Any:
    return torch.atan2(x * 0.0, y) * 2 + torch.arcsin(torch.tanh(x))


@pytest.mark.parametrize("function", [zeroed, angle])
def test_what_asks_for_nan_or_signs_of_zero_gets_them(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tessera", options={"budget": 4, "wait": True})
    rng = np.random.default_rng(3)
    x, y = (torch.from_numpy(rng.standard_normal((16, 24)).astype("f4")) for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, y), function(x, y))
        x[3, 4], x[5], y[6] = float("nan"), -0.0, -1.0
        torch.testing.assert_close(compiled(x, y), function(x, y), equal_nan=True)
