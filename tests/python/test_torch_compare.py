"""What the first run of a program is held to: PyTorch's results but for rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import torch_backend, torch_compare, torch_parts  # noqa: E402
from tessera.errors import UnsupportedError  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(0)


def test_rounding_is_measured_where_it_happens() -> None:
    want = torch.full((20, 16), 1e3)
    want[2] = 1e-3
    wrong = want.clone()
    wrong[2, 3] += 1e-4
    assert torch_compare.difference(want.clone(), want) is None
    assert "by 0.0001" in str(torch_compare.difference(wrong, want))
    want[:, 5], wrong = 1e-3, want.clone()
    wrong[:, 5] = 1.2e-3  # a column
    wrong[2] = want[2]
    assert torch_compare.difference(wrong, want) is not None
    alone = torch.full((1, 32), 1.0)
    alone[0, 3] = 1e-6  # a sum that cancels, in a single row
    assert torch_compare.difference(alone + 1e-6, alone) is None


def test_sums_that_cancel_are_no_difference() -> None:
    def model(x: Any) -> Any:
        return (x * 1e6 + 1).sum(-1) - (x * 1e6).sum(-1)

    x = torch.randn(8, 300)
    exact = (torch_compare.in_f64(torch.fx.symbolic_trace(model), [x]) or [None])[0]
    want = model(x)
    got = exact.float()
    assert torch_compare.difference(got, want) is not None
    assert torch_compare.closer(got, want, exact)
    assert not torch_compare.closer(got + 100, want, exact)


def key_bias(queries: Any, keys: Any, bias: Any) -> Any:
    """The gradient of a bias of all keys by a loss of their scores' softmax, which is 0."""
    scores = queries @ (keys + bias).T
    p = torch.softmax(scores, -1)
    by_p = torch.sin(torch.arange(p.numel(), dtype=p.dtype)).view(p.shape)
    by_scores = p * (by_p - (p * by_p).sum(-1, keepdim=True))
    return (by_scores.T @ queries).sum(0)


def test_a_gradient_that_is_zero_is_off_by_what_was_summed() -> None:
    args = [torch.randn(128, 32), torch.randn(128, 32), torch.randn(32)]
    graph = torch.fx.symbolic_trace(key_bias)
    want = key_bias(*args)
    assert want.abs().max() < 1e-5  # nothing but rounding
    got = torch.zeros_like(want)
    got[::2] = 10 * want.abs().max()  # further from 0 than PyTorch's
    assert torch_compare.difference(got, want) is not None
    assert torch_compare.disagreement([got], [want], graph, args) is None
    # A term that is missing is not rounding.
    (by_keys,) = torch_compare.in_f64(torch.fx.symbolic_trace(
        lambda q, k, b: torch.softmax(q @ (k + b).T, -1)), args) or [None]  # fmt: skip
    by_p = torch.sin(torch.arange(by_keys.numel(), dtype=torch.double)).view(by_keys.shape)
    terms = (by_keys * (by_p - (by_keys * by_p).sum(-1, keepdim=True))).T @ args[0].double()
    missing = (terms.sum(0) - terms[5]).float()
    assert "rounding" in str(torch_compare.disagreement([missing], [want], graph, args))


def test_jumps_are_no_rounding() -> None:
    def steps(x: Any, y: Any) -> Any:
        return torch.floor(x) - torch.sign(x - y) + 1e-3 * y

    x = torch.arange(32.0)  # on the edges, for any change of the operands
    args = [x, x.clone()]
    graph = torch.fx.symbolic_trace(steps)
    want = steps(*args)
    assert torch_compare.disagreement([want], [want], graph, args) is None
    wrong = want.clone()
    wrong[7] += 1
    assert torch_compare.disagreement([wrong], [want], graph, args) is not None
    moved = torch_compare.movements(graph, args, torch_compare.in_f64(graph, args) or [])
    assert moved is not None
    assert moved[0].max() < 1e3  # a jump of 1 would be 2**26


def test_what_follows_from_16_bit_floats_is_rounded_as_they_are() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    args = [torch.ones(n, 8, dtype=torch.bfloat16) for n in (4, 8)]
    graph = make_fx(lambda x, y: (x @ y).float(), tracing_mode="fake")(*args)
    want = graph(*args)  # exact
    assert torch_compare.disagreement([want * (1 + 2.0**-8)], [want], graph, args) is None
    assert torch_compare.disagreement([want * 1.5], [want], graph, args) is not None


def test_a_graph_in_f64_leaves_what_another_thread_traces_alone() -> None:
    """PyTorch notes the nodes of a graph being traced in a global of the process."""
    from torch.fx import traceback

    graph = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    with traceback.preserve_node_meta():
        traceback.current_meta = before = {"in_grad_fn": 1}
        seen: list[Any] = []

        def look(x: Any) -> Any:
            seen.append(traceback.current_meta)
            return x

        for node in list(graph.graph.nodes):
            node.meta["val"] = None  # as traced graphs have
            if node.op == "call_function" and node.target is torch.relu:
                node.target = look
        assert torch_compare.in_f64(graph, [torch.ones(3)]) is not None
        assert seen == [before]
        traceback.current_meta = {}


def test_transforms_that_lose_too_many_digits_are_left_out(
    monkeypatch: Any, tmp_path: Path
) -> None:
    """Winograd's tiles of 4×4 results, then those of 2×2; another process knows of it."""
    compare, seen = torch_parts.Part._compare, []

    def strict(part: Any, program: Any, *args: Any) -> Any:
        seen.append(program.module.source)
        if "plan:transforms" not in part._settings.disable:
            raise UnsupportedError("too few digits")
        return compare(part, program, *args)

    monkeypatch.setattr(torch_parts.Part, "_compare", strict)
    model, x = torch.nn.Conv2d(128, 128, 3, padding=1).eval(), torch.randn(1, 128, 28, 28)
    for sources in (3, 4):
        torch._dynamo.reset()
        options = {"wait": True, "cache_dir": str(tmp_path)}
        compiled = torch.compile(model, backend="tessera", options=options)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
        ((part,),) = (r.parts for r in torch_backend.REPORTS)
        assert not part.reason
        assert len(seen) == sources
    assert len(set(seen)) == 3
    assert seen[2] == seen[3]


def test_what_cancels_to_zeros_tells_nothing() -> None:
    got, want = torch.full((4, 8), 1e-6), torch.zeros(4, 8)
    assert torch_compare.tells_nothing(got, want)
    assert not torch_compare.tells_nothing(want, want)
    want[:, 0] = 1.0
    assert torch_compare.tells_nothing(got, want)  # the other columns
    assert not torch_compare.tells_nothing(got, want + 1)
    assert not torch_compare.tells_nothing(want.to(torch.int64), want.to(torch.int64))
