"""Calls whose values differ in kind from those of the first: compiled parts do as PyTorch does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import torch_backend  # noqa: E402

F = torch.nn.functional
OPTIONS = {"wait": True}
pytestmark = pytest.mark.usefixtures("fresh_torch")


def programs() -> int:
    return sum(len(p.programs) for r in torch_backend.REPORTS for p in r.parts)


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        made = function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))
    except (RuntimeError, IndexError) as error:
        return type(error)
    return list(made) if isinstance(made, (tuple, list)) else [made]


def alike(function: Callable[..., Any], first: tuple[Any, ...], *later: tuple[Any, ...]) -> None:
    """Compiled for `first`, which has to run as a program, the function does as in eager."""
    compiled = torch.compile(function, backend="tessera", options=OPTIONS)
    with torch.no_grad():
        compiled(*first)
        assert programs()
        for args in (first, *later, first):
            ours, theirs = outcome(compiled, args), outcome(function, args)
            if isinstance(ours, type) or isinstance(theirs, type):
                assert isinstance(ours, type) == isinstance(theirs, type)
                continue
            torch.testing.assert_close(ours, theirs, equal_nan=True)
            assert [o.stride() for o in ours] == [t.stride() for t in theirs]


# --- attention
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("added", [False, True])
def test_attention_to_nothing_is_zero(dtype: Any, added: bool) -> None:
    q, k, v = (torch.randn(2, 3, 8, 16).to(dtype).requires_grad_() for _ in range(3))
    some = torch.rand(2, 1, 8, 8) > 0.3
    some[..., 0] = True
    none = some.clone()
    none[0, 0, 2] = False
    masks = [torch.zeros(m.shape, dtype=dtype).masked_fill(~m, -math.inf) if added else m
             for m in (some, none, some)]  # fmt: skip

    def attend(mask: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    compiled = torch.compile(attend, backend="tessera", options=OPTIONS)
    for mask in (some if not added else masks[0], *masks):
        results = []
        for function in (compiled, attend):
            made = function(mask)
            results.append((made, *torch.autograd.grad(made.square().sum(), (q, k, v))))
        tolerance = 1e-5 if dtype.itemsize > 2 else 3e-2
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
    assert programs() == 2
    assert not results[0][0][0, :, 2].any() or mask is not masks[1]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1), (2, 3), (3, 0), (0, 4)])
def test_logarithms_of_sums_of_little_and_of_no_numbers(shape: tuple[int, ...]) -> None:
    def both(x: Any) -> Any:
        return torch.logsumexp(x, -1) * 2, torch.logsumexp(x, -1, keepdim=True) + 1

    compiled = torch.compile(both, backend="tessera", options=OPTIONS)
    x = torch.randn(shape)
    with torch.no_grad():
        for args in (x, x - math.inf, x + math.inf, x * math.nan, x * 1e30):
            for ours, theirs in zip(compiled(args), both(args), strict=True):
                torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize(("heads", "shared"), [(4, 2), (6, 3), (4, 1)])
@pytest.mark.parametrize("queries", [1, 5])
def test_heads_of_queries_share_keys(heads: int, shared: int, queries: int) -> None:
    q = torch.randn(2, heads, queries, 8).requires_grad_()
    k, v = (torch.randn(2, shared, 7, 8).requires_grad_() for _ in range(2))
    masks = {
        "none": None, "causal": None, "truths": torch.rand(2, 1, queries, 7) > 0.3,
        "of heads": torch.randn(2, heads, queries, 7), "of keys": torch.randn(1, 1, 1, 7),
        "of all": torch.randn(queries, 7),
    }  # fmt: skip
    for name, mask in masks.items():

        def attend(mask: Any, causal: bool = name == "causal") -> Any:
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)

        torch._dynamo.reset()
        compiled = torch.compile(attend, backend="tessera", options=OPTIONS)
        results = []
        for function in (compiled, attend):
            made = function(mask)
            results.append((made, *torch.autograd.grad(made.square().sum(), (q, k, v))))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        assert programs() == 2


def test_softmax_of_nothing_is_no_number() -> None:
    alike(lambda x: x.softmax(-1), (torch.randn(4, 8),), (torch.full((4, 8), -math.inf),))


# --- positions
TABLE = torch.arange(40.0).view(10, 4)
POSITIONAL: dict[str, Callable[..., Any]] = {
    "embedding": lambda w, i: F.embedding(i, w) * 2,
    "embedding, padding": lambda w, i: F.embedding(i, w, padding_idx=3) * 2,
    "index": lambda w, i: w[i] * 2,
    "index twice": lambda w, i: w[i, i % 4] * 2,
    "index_select": lambda w, i: w.index_select(0, i) * 2,
    "gather": lambda w, i: w.gather(0, i[None].expand(3, 4).contiguous()) * 2,
    "take": lambda w, i: torch.take(w, i + 30) * 2,
    "scatter": lambda w, i: w.scatter(0, i[None], 7.0) * 2,
    "scatter_add": lambda w, i: w.scatter_add(0, i[None], torch.ones(1, 4)) * 2,
    "scatter_reduce": lambda w, i: w.scatter_reduce(0, i[None], w[:1], "amax") * 2,
    "index_put": lambda w, i: w.index_put((i,), torch.ones(4, 4)) * 2,
    "index_add": lambda w, i: w.index_add(0, i, torch.ones(4, 4), alpha=3) * 2,
    "index_copy": lambda w, i: w.index_copy(0, i, torch.ones(4, 4)) * 2,
    "index_fill": lambda w, i: w.index_fill(0, i, 3.0) * 2,
    "index_reduce": lambda w, i: w.index_reduce(0, i, torch.ones(4, 4), "amax") * 2,
    "computed": lambda w, i: F.embedding(i * 2 - i, w) * 2,
    "cross_entropy": lambda w, i: F.cross_entropy(torch.cat([w, w, w], 1)[:4, :10], i),
    "nll_loss": lambda w, i: F.nll_loss(torch.cat([w, w, w], 1)[:4, :10], i),
}


@pytest.mark.parametrize("name", POSITIONAL)
def test_positions_that_pytorch_refuses_are_refused(name: str) -> None:
    first = torch.tensor([0, 1, 2, 9])
    bad = [torch.tensor([0, 1, 2, v]) for v in (10, -1, -11, 2**40)]
    alike(POSITIONAL[name], (TABLE, first), *((TABLE, i) for i in bad))


def test_narrow_positions_and_ignored_targets() -> None:
    narrow = torch.tensor([0, 1, 2, 9], dtype=torch.int32)
    alike(lambda w, i: F.embedding(i, w) * 2, (TABLE, narrow), (TABLE, narrow - 1))
    torch._dynamo.reset()
    targets = torch.tensor([0, 1, 2, 3])
    alike(F.cross_entropy, (TABLE[:4], targets), (TABLE[:4], torch.tensor([0, -100, 1, -100])))


def test_a_source_that_is_too_short_and_what_is_no_probability() -> None:
    few, many = (torch.arange(40).view(10, 4) < n for n in (4, 9))
    alike(lambda w, m: w.masked_scatter(m, torch.arange(5.0)) * 2, (TABLE, few), (TABLE, many))
    torch._dynamo.reset()
    p = torch.rand(8)
    alike(lambda p: F.binary_cross_entropy(p, p.detach() * 0.5), (p,), (p + 0.9,), (p * math.nan,))


class Cache(torch.nn.Module):  # type: ignore[misc]
    """Keys of the tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, 4, 3))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Any) -> Any:
        self.keys.index_copy_(2, self.at, x)
        self.at.add_(1)
        return self.keys * 2


def test_a_full_cache_keeps_its_last_slot() -> None:
    ours, theirs = Cache(), Cache()
    compiled = torch.compile(ours, backend="tessera", options=OPTIONS)
    with torch.no_grad():
        for _ in range(6):
            x = (torch.randn(1, 2, 1, 3),)
            made, wanted = outcome(compiled, x), outcome(theirs, x)
            assert made is wanted or torch.equal(made[0], wanted[0])
            torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    assert made is IndexError
    assert programs()


def test_a_kept_program_refuses_positions_too(tmp_path: Path) -> None:
    options = {**OPTIONS, "cache_dir": str(tmp_path)}
    good, bad = torch.tensor([1, 9]), torch.tensor([1, 10])
    for _ in range(2):  # made, and read
        torch._dynamo.reset()
        compiled = torch.compile(lambda w, i: F.embedding(i, w) * 2, backend="tessera",
                                 options=options)  # fmt: skip
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(compiled(TABLE, good), TABLE[good] * 2)
            with pytest.raises(IndexError):
                compiled(TABLE, bad)
            torch.testing.assert_close(compiled(TABLE, good), TABLE[good] * 2)


# --- which of equal ones
@pytest.mark.parametrize("largest", [True, False])
def test_which_of_equal_elements_is_pytorchs(largest: bool) -> None:
    x, equal = torch.randn(6, 8), torch.randint(0, 3, (6, 8)).float()
    nan = x.clone()
    nan[:, 3:5] = math.nan
    later = (equal,), (torch.zeros(6, 8),), (nan,)
    alike(lambda x: x.topk(3, 1, largest=largest), (x,), *later)
    torch._dynamo.reset()
    alike(lambda x: x.sort(1, descending=largest), (x,), *later)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.topk(3, 1, largest=largest), backend="tessera",
                             options=OPTIONS)  # fmt: skip
    for y in (equal, x, x):  # a first call that no program takes does not keep one from others
        torch.testing.assert_close(list(compiled(y)), list(y.topk(3, 1, largest=largest)))
    assert programs()


# --- strides
VIEWS: dict[str, Callable[[Any], Any]] = {
    "chunk": lambda x: (x * 2).chunk(2, 1)[0],
    "chunks, used": lambda x: (lambda a, b: (a, b, a + b))(*(x * 2).chunk(2, 1)),
    "split": lambda x: (x * 2).split([3, 5], 1),
    "unbind": lambda x: (x * 2).unbind(1),
    "narrow": lambda x: (x * 2).narrow(1, 2, 3),
    "select": lambda x: (lambda y: (y.select(1, 2), y + 1))(x * 2),
    "view of a view": lambda x: (lambda y: (y.t()[1:], y + 1, y[::2]))((x * 2)[:, 1:5]),
    "diagonal": lambda x: (x * 2).diagonal(),
    "unfold": lambda x: (x * 2).unfold(1, 3, 2),
    "as_strided": lambda x: (x * 2).as_strided((3, 4), (8, 2)),
    "last": lambda x: (x * 2)[:, -1],
    "last of a view": lambda x: (x * 2).t()[1:3].t()[::2],
    "two of one": lambda x: (lambda y: (y[:, 0], y[:, :2]))(x * 2),
    "heads": lambda x: [t.view(6, 2, -1).transpose(0, 1) for t in (x * 2).chunk(2, -1)],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_fresh_results_have_eager_strides(name: str) -> None:
    x = torch.randn(6, 8)
    alike(VIEWS[name], (x,), (x * 2,))
    torch._dynamo.reset()
    alike(VIEWS[name], (torch.randn(6, 16)[:, ::2],))


def test_a_part_of_a_result_is_all_that_is_computed() -> None:
    with torch.no_grad():
        layer, x = torch.nn.Linear(64, 256), torch.randn(8, 64, 64)
        compiled = torch.compile(lambda x: layer(x)[:, -1], backend=torch_backend.tessera,
                                 options={"wait": True, "budget": 5})  # fmt: skip
        torch.testing.assert_close(compiled(x), layer(x)[:, -1])
        assert compiled(x).stride() == layer(x)[:, -1].stride()
    assert "f32[512, 256]" not in str(torch_backend.explain())


LAST = torch.channels_last
NORM = torch.nn.BatchNorm1d(16).eval()
LAID_OUT: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "norm of turned": (lambda x: NORM(x.transpose(1, 2)), torch.randn(2, 9, 16)),
    "norm of columns": (lambda x: NORM(x.t()), torch.randn(16, 5)),
    "norm of a batch": (lambda x: F.batch_norm(x.transpose(1, 2), None, None, training=True),
                        torch.randn(2, 9, 16)),
    "logsigmoid": (F.logsigmoid, torch.randn(2, 3, 4, 5).to(memory_format=LAST)),
    "roll": (lambda x: x.roll(1, 0), torch.randn(2, 3, 4, 5).to(memory_format=LAST)),
    "shuffle": (lambda x: F.channel_shuffle(x * 2, 2),
                torch.randn(2, 4, 4, 5).to(memory_format=LAST)),
    "pool": (lambda x: F.adaptive_avg_pool2d(x, (3, 3)),
             torch.randn(2, 3, 5, 5).to(memory_format=LAST)),
    "pool of a line": (lambda x: F.adaptive_avg_pool1d(x, 3), torch.randn(2, 5, 3).mT),
    "xlogy": (lambda x: torch.xlogy(x.abs(), torch.ones(5, 10).t()),
              torch.randn(10, 5, 5).transpose(0, 1)),
    "one channel": (lambda x: x * 2 + 1, torch.randn(2, 1, 4, 5).to(memory_format=LAST)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAID_OUT)
def test_results_lie_in_memory_as_eagers_do(name: str) -> None:
    function, x = LAID_OUT[name]
    alike(function, (x,))


@pytest.mark.parametrize("loss", [
    lambda x: F.mse_loss(x, torch.zeros(2, 4, 6, 6)), lambda x: F.glu(x, 1).sum(),
    lambda x: F.batch_norm(x.mT, None, None, training=True).square().sum(),
], ids=["mse", "glu", "norm"])  # fmt: skip
def test_gradients_lie_in_memory_as_eagers_do(loss: Callable[[Any], Any]) -> None:
    x = torch.randn(2, 4, 6, 6).to(memory_format=LAST).requires_grad_()
    (want,) = torch.autograd.grad(torch.compile(loss, backend="aot_eager")(x), x)
    ours = torch.compile(loss, backend="tessera", options=OPTIONS)
    for _ in range(3):
        (got,) = torch.autograd.grad(ours(x), x)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    assert programs()


def test_memory_with_gaps_is_left_to_pytorch() -> None:
    x = torch.randn(4, 6, 8)[:, :, ::2]
    compiled = torch.compile(lambda x: x.select_scatter(x[0], 0, 1), backend="tessera",
                             options=OPTIONS)  # fmt: skip
    assert {compiled(x).stride() for _ in range(3)} == {x.stride()}


# --- what PyTorch's own operators do
def test_bernoulli_draws_what_eager_draws() -> None:
    compiled = torch.compile(lambda p: torch.bernoulli(p) * 2, backend="tessera", options=OPTIONS)
    p, made = torch.rand(64), []
    for function in (compiled, compiled, lambda p: torch.bernoulli(p) * 2):
        torch.manual_seed(1)
        made.append(function(p))
    assert torch.equal(made[0], made[2])
    assert torch.equal(made[1], made[2])
    with pytest.raises(RuntimeError):
        compiled(p + 1)


@pytest.mark.parametrize("grad", [True, False])
def test_targets_out_of_range_are_refused_as_eager_does(grad: bool) -> None:
    def loss(x: Any, t: Any) -> Any:
        return F.cross_entropy(x, t) + F.cross_entropy(x, t, label_smoothing=0.1)

    compiled = torch.compile(loss, backend="tessera", options=OPTIONS)
    x, t = torch.randn(4, 5, requires_grad=grad), torch.tensor([0, 1, 2, 4])
    for _ in range(2):
        torch.testing.assert_close(compiled(x, t), loss(x, t))
        with pytest.raises(IndexError, match="Target 9 is out of bounds"):
            compiled(x, t * 0 + 9)
    assert programs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decimals", [1, 3, -1])
def test_rounding_to_decimals_has_eagers_bits(dtype: Any, decimals: int) -> None:
    x = (torch.randn(1000) * 20).to(dtype)
    compiled = torch.compile(lambda x: x.round(decimals=decimals), backend="tessera",
                             options=OPTIONS)  # fmt: skip
    for _ in range(2):
        assert torch.equal(compiled(x), x.round(decimals=decimals))
    assert programs()


def test_negated_views_are_inputs_and_weights() -> None:
    model = torch.nn.Linear(8, 8, bias=False).eval()
    model.weight = torch.nn.Parameter(torch._neg_view(torch.randn(8, 8)))
    compiled = torch.compile(model, backend="tessera", options=OPTIONS)
    x = torch._neg_view(torch.randn(4, 8))
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
            model.weight.data.mul_(2)
    assert programs()


# --- the ends of ranges
def test_hypot_neither_overflows_nor_underflows() -> None:
    ends = torch.tensor([0.0, 3.0, 1e-30, 3e38, 1e20, math.inf, -math.inf, math.nan])
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(ends, ends, indexing="ij"))
    alike(torch.hypot, (torch.rand(64), torch.rand(64)), (x, y))


@pytest.mark.parametrize("name", ["sinh", "cosh", "asinh", "acosh", "atanh"])
def test_hyperbolic_functions_at_the_ends(name: str) -> None:
    ends = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.9999, -0.9999, 1e-30, 3e38, -3e38, 1e20, -1e20,
                         89.0, -89.0, math.inf, -math.inf, math.nan])  # fmt: skip
    function = getattr(torch, name)
    first = torch.rand(16) * 0.9 + (name == "acosh")
    alike(function, (first,))
    compiled = torch.compile(function, backend="tessera", options=OPTIONS)
    compiled(first)
    torch.testing.assert_close(compiled(ends), function(ends.double()).float(), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_the_least_integer_is_divided(dtype: Any) -> None:
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    ends = torch.tensor([least, least + 1, -7, 0, 7, most - 1, most], dtype=dtype)
    first = torch.arange(7, dtype=dtype)
    alike(lambda x: (torch.div(x, 3, rounding_mode="trunc"), torch.fmod(x, -7),
                     torch.div(x, least, rounding_mode="trunc")), (first,), (ends,))  # fmt: skip


@pytest.mark.parametrize("signed", [
    lambda x: torch.where(x > 0, x, -0.0), lambda x: x.masked_fill(x > 0, -0.0),
    lambda x: torch.relu(x) * -0.0, lambda x: torch.full_like(x, -0.0) * 2,
    lambda x: F.pad(x, (1, 1), value=-0.0), lambda x: x * torch.tensor(-0.0),
])  # fmt: skip
def test_the_sign_of_a_constant_zero(signed: Callable[..., Any]) -> None:
    x = torch.ones(3, 4)
    alike(lambda x: 1 / (signed(torch.exp(x) - 1)), (x,), (-x,), (0 * x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of", [
    lambda x, dt: x - x.to(dt).float(), lambda x, dt: (x * 70000).to(dt).float() * 2,
    lambda x, dt: x.to(dt).float() == x, lambda x, dt: x.to(dt) == (x * 1.0001).to(dt),
    lambda x, dt: (x * 100).to(dt).int(), lambda x, dt: torch.floor(x.to(dt) * 100),
    lambda x, dt: x - x.to(dt).float() - (x - x.to(dt).float()).to(dt).float(),
])  # fmt: skip
def test_sixteen_bits_are_rounded_where_that_shows(of: Callable[..., Any], dtype: Any) -> None:
    x = torch.randn(32, 33)
    compiled = torch.compile(lambda x: of(x, dtype), backend="tessera", options=OPTIONS)
    for _ in range(2):
        assert torch.equal(compiled(x), of(x, dtype))
    assert programs()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of", [
    lambda x: x * 70000.0, lambda x: x * 1.1111111, lambda x: (x * 1) >= 0.1,
    lambda x: (x * 1) / 0.3, lambda x: torch.floor((x + 0.1) * 10), lambda x: (x - 0.2) // 0.3,
    lambda x: (x - x) / ((x - x).abs() + 1e-8), lambda x: (100 * x @ x).int(),
    lambda x: (x @ x).float() - x.float() @ x.float(), lambda x: (x @ x) == (x @ x + 1),
])  # fmt: skip
def test_numbers_and_products_in_sixteen_bits(of: Callable[..., Any], dtype: Any) -> None:
    x = (torch.randint(-20, 20, (32, 32)) / 8).to(dtype)
    compiled = torch.compile(of, backend="tessera", options=OPTIONS)
    compiled(torch.ones(32, 32, dtype=dtype))
    torch.testing.assert_close(compiled(x), of(x), rtol=0, atol=0, equal_nan=True)
    assert programs()


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 4e-15), (torch.float32, 1e-6)])
def test_erfc_keeps_its_digits_far_from_zero(dtype: Any, rtol: float) -> None:
    ends = torch.tensor([0.0, -0.0, 26.5, 30, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([torch.linspace(-7, 9, 257), ends]).to(dtype)
    compiled = torch.compile(lambda x: torch.erfc(x) * 2, backend="tessera", options=OPTIONS)
    for _ in range(3):  # the first results are PyTorch's
        torch.testing.assert_close(
            compiled(x), torch.erfc(x) * 2, rtol=rtol, atol=0, equal_nan=True
        )
    assert programs()


def test_running_products_are_taken_in_order() -> None:
    compiled = torch.compile(lambda x: x.cumprod(0), backend="tessera", options=OPTIONS)
    compiled(torch.rand(4, 9) + 0.5)
    for row in ([0.0, 1e20, 1e20, 1e20], [1e-30, 1e20, 1e20, 1e-20]):
        x = torch.tensor(row)[:, None].repeat(1, 9)
        assert torch.allclose(compiled(x), x.cumprod(0), rtol=1e-6)
    assert programs() == 1


def test_variances_far_from_zero_keep_their_digits() -> None:
    compiled = torch.compile(lambda x: x.var(1), backend="tessera", options=OPTIONS)
    x = torch.randn(3, 1000) * 0.01 + 5000
    assert torch.allclose(compiled(x), x.double().var(1).float(), rtol=1e-5)
    assert torch.allclose(compiled(x), x.double().var(1).float(), rtol=1e-5)
    assert programs() == 1


def test_dropout_draws_as_pytorch_does() -> None:
    def of(backend: str) -> tuple[list[float], float]:
        compiled = torch.compile(lambda x: F.dropout(x, 0.5) * 2, backend=backend)
        torch.manual_seed(0)
        return compiled(torch.ones(32)).tolist(), torch.rand(1).item()

    assert of("tessera") == of("aot_eager")


def test_results_are_of_the_arguments_device_whatever_is_the_default() -> None:
    x = torch.randn(4, 16)
    compiled = torch.compile(lambda a: torch.tanh(a) * 2, backend="tessera", options=OPTIONS)
    with torch.device("meta"):
        y = compiled(x)
    torch.testing.assert_close(y, torch.tanh(x) * 2)


def test_ones_on_a_diagonal_are_made_here() -> None:
    """PyTorch's decomposition counts rows in 16 bits without a sign, which its `arange` refuses."""
    alike(lambda x: x @ torch.eye(300, 5) + torch.eye(5), (torch.randn(5, 300),))
