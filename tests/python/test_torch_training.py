"""Training by torch.compile(backend="tessera"): tables, scatterings, recurrent layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import torch_backend  # noqa: E402

F = torch.nn.functional

pytestmark = pytest.mark.usefixtures("fresh_torch")


class Model(torch.nn.Module):  # type: ignore[misc]
    """A language model in small: like GPT-2 (causal) or like BERT, with a tied table."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.words = torch.nn.Embedding(50, 16, padding_idx=None if causal else 0)
        self.places = torch.nn.Embedding(12, 16)
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(16) for _ in range(4)])
        self.qkv = torch.nn.ModuleList([torch.nn.Linear(16, 48) for _ in range(2)])
        self.out = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(2)])
        self.up = torch.nn.ModuleList([torch.nn.Linear(16, 64) for _ in range(2)])
        self.down = torch.nn.ModuleList([torch.nn.Linear(64, 16) for _ in range(2)])

    def forward(self, tokens: Any) -> Any:
        b, s = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(s))
        for i in range(2):
            h = self.norms[2 * i](x)
            q, k, v = (t.view(b, s, 2, 8).transpose(1, 2) for t in self.qkv[i](h).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + self.out[i](a.transpose(1, 2).reshape(b, s, 16))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x))))
        return F.cross_entropy((x @ self.words.weight.T).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("causal", [False, True])
def test_steps_of_gradient_descent_are_eagers(causal: bool) -> None:
    ours = Model(causal)
    theirs = copy.deepcopy(ours)
    compiled = torch.compile(ours, backend="tessera", options={"strict": True})
    steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    for _ in range(4):
        tokens = torch.randint(0, 50, (3, 9))
        tokens[:, 3] = tokens[:, 4]  # looked up several times
        losses = []
        for model, step in zip((compiled, theirs), steps, strict=True):
            step.zero_grad()
            losses.append(model(tokens))
            losses[-1].backward()
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)
        for step in steps:
            step.step()
    assert not any(r.eager for r in torch_backend.REPORTS)
    assert all(p is not None for r in torch_backend.REPORTS for q in r.parts for p in q.programs)


def same(function: Any, *args: Any) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tessera",
                             options={"check": False, "strict": True})  # fmt: skip
    torch.testing.assert_close(compiled(*args), function(*args), equal_nan=True)


def test_scatterings_write_what_pytorch_writes() -> None:
    x, index = torch.randn(4, 7), torch.tensor([[0, 3, 3], [2, 2, 2]])
    source = torch.randn(2, 3)
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for own in (True, False):
            same(lambda x, i, s, r=reduce, o=own: x.scatter_reduce(1, i, s, r, include_self=o),
                 x, index, source)  # fmt: skip
    rows, places = torch.randn(3, 7), torch.tensor([2, 0, 2])
    same(lambda x, i, s: x.index_add(0, i, s), x, places, rows)
    same(lambda x, i, s: x.index_put((i, i), s, accumulate=True), x, places, rows[:, 0])
    same(lambda x, i, s: torch.ops.aten.index_put(x, (None, i), s), x, torch.tensor([-1, 5]),
         x[:, :2])  # fmt: skip
    # What is infinite stays in its row.
    rows[1, 2] = torch.inf
    same(lambda x, i, s: x.index_add(0, i, s), x, places, rows)


def test_what_looks_at_whole_rows_keeps_pytorchs_places() -> None:
    x = torch.tensor([[1.0, 3, 3, -1], [float("nan"), 2, 5, 5]])
    for name in ("max", "min"):
        same(lambda x, n=name: tuple(getattr(x, n)(1)), x)
        same(lambda x, n=name: tuple(getattr(torch, "cum" + n)(x, 1)), x)
        same(lambda x, n=name: getattr(torch, "arg" + n)(x, 0), x)
    same(lambda x: torch.cumprod(x, 1), x)
    same(lambda x: x.as_strided((2, 2), (1, 4), 1), torch.randn(2, 4))


def test_a_column_of_results_is_no_row() -> None:
    same(lambda c, m, v: torch.addmv(c, m, v, beta=2), torch.randn(5), torch.randn(5, 3),
         torch.randn(3))  # fmt: skip


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_recurrent_layers_where_dynamo_traces_them(name: str) -> None:
    model = getattr(torch.nn, name)(8, 16, 2, batch_first=True, bidirectional=True)
    x = torch.randn(3, 5, 8)
    compiled = torch.compile(model, backend="tessera", options={"strict": True})
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    (report,) = torch_backend.REPORTS
    assert len(report.parts) == 1


@pytest.mark.parametrize("options", [{}, {"race": False}, {"check": False}])
def test_statistics_of_norms_in_either_dtype(options: dict[str, bool]) -> None:
    """PyTorch's norms of bf16 save f32 statistics where its graph says bf16, as ours do."""
    norm = torch.nn.LayerNorm(32)
    compiled = torch.compile(norm, backend="tessera", options={"wait": True, **options})
    for _ in range(4):
        x = torch.randn(3, 4, 32, dtype=torch.bfloat16, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x).float().square().sum().backward()
        norm(y).float().square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("grad", [True, False])
def test_chains_draw_random_numbers_in_their_order(grad: bool) -> None:
    """Of parts that could be computed together, but for what is drawn between them."""

    def chains(e: Any, d: Any, w: Any) -> Any:
        for _ in range(2):
            e = torch.nn.functional.dropout(torch.relu(e @ w), 0.3, True)
        for _ in range(2):
            d = torch.nn.functional.dropout(torch.tanh(d @ w), 0.3, True)
        return (d @ e.transpose(-1, -2)).softmax(-1) @ e

    e, d, w = torch.randn(8, 16), torch.randn(8, 16), torch.randn(16, 16, requires_grad=grad)
    compiled = torch.compile(chains, backend="tessera", options={"wait": True})
    with torch.set_grad_enabled(grad):
        for seed in range(3):
            torch.manual_seed(seed)
            want = chains(e, d, w)
            torch.manual_seed(seed)
            torch.testing.assert_close(compiled(e, d, w), want, rtol=1e-4, atol=1e-5)
    assert all(len(r.parts) > 1 for r in torch_backend.REPORTS)


WINDOWS = torch.ones(8, 3, 3, 3)
# By what once made a view of the result: its order in memory, a longer buffer, a reshape.
IN_PLACE = {
    "channels_last": lambda x: F.conv2d(x.to(memory_format=torch.channels_last), WINDOWS),
    "transposed": lambda x: F.gelu(x.flatten(1).T),
    "lengths": lambda x: F.gelu(x).square(),
    "lengths within": lambda x: F.gelu(x.flatten(1).T),
    "reshaped": lambda x: (x * 2).transpose(0, 1).reshape(-1),
    "matrices": lambda x: torch.matmul(x, x[0, 0].T),
}


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("name", IN_PLACE)
def test_results_are_written_to_in_place(name: str, wait: bool) -> None:
    """Which PyTorch refuses of views that a function returned."""
    compiled = torch.compile(IN_PLACE[name], backend="tessera", options={"wait": wait},
                             dynamic=name.startswith("lengths") or None)  # fmt: skip
    for grad in (True, False):
        for n in (9, 9, 9, 11, 9) if name.startswith("lengths") else (9, 9, 9):
            x = torch.randn(n, 3, 6, 6, requires_grad=grad)
            with torch.set_grad_enabled(grad):
                y, want = compiled(x), IN_PLACE[name](x)
            torch_backend.wait()
            assert not y._is_view()
            assert y.untyped_storage().nbytes() == y.nbytes
            assert y.stride() == want.stride()
            y.add_(torch.ones((), requires_grad=True)).relu_().sum().backward()
            torch.testing.assert_close(y, (want + 1).relu(), rtol=1e-4, atol=1e-5)
            y.detach_()
    assert any(p.programs for r in torch_backend.REPORTS for p in r.parts)


class Turned(torch.nn.Module):  # type: ignore[misc]
    """Something between two layers whose gradient PyTorch lays out otherwise than it traces."""

    def __init__(self, between: str) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.between = torch.nn.BatchNorm1d(8) if between == "norm" else torch.nn.LogSigmoid()

    def forward(self, x: Any) -> Any:
        return self.last(self.between(self.first(x).transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("between", ["norm", "logsigmoid"])
def test_gradients_are_viewed_however_they_lie(between: str, train: bool) -> None:
    torch.manual_seed(0)
    model = Turned(between).train(train)
    compiled = torch.compile(copy.deepcopy(model), backend="tessera", options={"wait": True})
    for _ in range(2):
        x = torch.randn(2, 5, 8)
        for m in (model, compiled):
            m.zero_grad()
            m(x).square().sum().backward()
        for ours, theirs in zip(compiled.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
