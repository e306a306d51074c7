"""Sizes that change from call to call: rounded up where that is the same, packed weights shared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import torch_backend, torch_parts, torch_rest  # noqa: E402
from tessera.frontends.torch.padding import bucket  # noqa: E402

F = torch.nn.functional

pytestmark = pytest.mark.usefixtures("fresh_torch")


def parts() -> list[Any]:
    return [p for r in torch_backend.REPORTS for p in r.parts]


def programs() -> int:
    return sum(len(p.programs) for p in parts())


def at_lengths(model: Any, lengths: tuple[int, ...], batch: int = 2, **options: Any) -> Any:
    # Unchecked: the comparison of first runs would hide what is wrong.
    compiled = torch.compile(model, backend="tessera", dynamic=True,
                             options={"dynamic": "wait", "check": False, **options})  # fmt: skip
    with torch.no_grad():
        for length in lengths:
            for _ in range(2):
                x = torch.rand(batch, length, 16) + 0.1
                got, want = compiled(x), model(x)
                torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
                assert got.stride() == want.stride()
    return compiled


def attend(x: Any, keys: Any = torch.cos, **kwargs: Any) -> Any:
    heads = x.view(x.shape[0], x.shape[1], 2, 8).transpose(1, 2)
    # Of an added place the logarithm is -inf, and the cosine 1.
    made = F.scaled_dot_product_attention(heads, keys(heads), heads.log(), **kwargs)
    return made.transpose(1, 2).reshape(x.shape)


SAME: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: F.layer_norm(F.gelu(x) + x, (16,)),
    "attention": attend,
    "causal": lambda x: attend(x, is_causal=True),
    "a mask of truths": lambda x: attend(x, attn_mask=x[0, None, :, 0] > 0.2),
    "a mask that is added": lambda x: attend(x, torch.log, attn_mask=x[0, None, :, 0].log()),
    "scores": lambda x: torch.softmax(x.log() @ x.transpose(1, 2), -1) @ x.log(),
    "positions": lambda x: x + torch.arange(x.shape[1])[:, None],
    "the first": lambda x: x[:, 0] * 2,
    "beside the one before": lambda x: (x - torch.cat([x[:, :1] - 1, x], 1)[:, :-1]).exp(),
    "differences": lambda x: x * torch.diff(x, prepend=x[:, :1], dim=1).cumsum(1),
    "by position": lambda x: x[torch.arange(2)[:, None], torch.arange(x.shape[1]) + 0] * 2,
    "one axis of two": lambda x: (x.reshape(-1, 16) @ torch.ones(16, 3)).exp(),
}


@pytest.mark.parametrize("name", SAME)
def test_lengths_of_a_bucket_share_a_program(name: str) -> None:
    at_lengths(SAME[name], (19, 17, 20))
    assert programs() == 1


def test_masks_of_added_keys_choose_no_scores() -> None:
    at_lengths(attend, (19,))
    ((program,),) = (p.programs for p in parts())
    chosen = [line for line in str(program.source).splitlines() if " = where " in line]
    assert chosen
    assert not [line for line in chosen if line.endswith("20,20]")]


ELSE: dict[str, Callable[[Any], Any]] = {
    "a mean": lambda x: x.mean(1) * 2,
    "the size itself": lambda x: x * x.shape[1],
    "the last": lambda x: x[:, -1] * 2,
    "from the end": lambda x: x + torch.arange(x.shape[1], 0, -1)[:, None],
    "turned round": lambda x: x.flip(1) * 2,
    "one more": lambda x: torch.softmax(torch.cat([x[:, :1], x], 1).transpose(1, 2), -1)[:, :, :9],
    "followed by one": lambda x: (torch.cat([x, x[:, :1]], 1).exp()[:, 1:] + x).exp(),
    "by position from the end": lambda x: x[torch.arange(2)[:, None], torch.arange(5) - 5] * 2,
    "two as one": lambda x: torch.cat([x, x], 1).exp(),
    "a norm along it": lambda x: x.transpose(1, 2) / x.transpose(1, 2).var(-1, keepdim=True),
}


@pytest.mark.parametrize("name", ELSE)
def test_what_depends_on_the_size_is_not_rounded(name: str) -> None:
    at_lengths(ELSE[name], (19, 17, 20))
    assert max(len(p.programs) for p in parts()) == 3


def test_a_table_bounds_the_positions_looked_up_in_it() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(18, 16)

        def forward(self, x: Any) -> Any:
            return x + self.table(torch.arange(x.shape[1]) + 1)

    at_lengths(Model().eval(), (9, 16, 17))
    assert {max(n[2]) for p in parts() for n in p._programs} == {10, 16, 17}


def test_batches_and_lengths_are_rounded_at_once() -> None:
    def model(x: Any) -> Any:
        return (attend(x).reshape(-1, 16) @ torch.ones(16, 16)).exp().view(x.shape)

    compiled = at_lengths(model, (18, 20), batch=17)
    with torch.no_grad():
        x = torch.rand(19, 18, 16) + 0.1
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-5, atol=2e-5)
    assert programs() == 1


def test_buckets_add_a_quarter_at_most() -> None:
    for n in range(1, 3000):
        assert n <= bucket(n) <= n * 1.25
    assert len({bucket(n) for n in range(64, 257)}) == 9
    assert bucket(500, 500) == 500


def test_packed_weights_are_shared_by_the_programs_of_all_lengths() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.GELU(), torch.nn.Linear(256, 16))
    # Without, products pack them in each call, and nothing is kept.
    compiled = at_lengths(model, (64,), freeze=True)
    (part,) = parts()
    first = part.weights.bytes
    assert first >= 2 * 16 * 256 * 4
    with torch.no_grad():
        for length in (100, 200):
            compiled(torch.rand(2, length, 16))
    assert parts() == [part]
    assert len(part.programs) == 3
    assert part.weights.bytes < first + 1000
    with torch.no_grad():
        model[2].weight.mul_(2)
        for length in (64, 100, 200):
            x = torch.rand(2, length, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=2e-5, atol=2e-5)


class Decoder(torch.nn.Module):  # type: ignore[misc]
    """Attention that appends to what it is given of earlier calls."""

    def __init__(self) -> None:
        super().__init__()
        self.made = torch.nn.Linear(16, 32)
        self.last = torch.nn.Linear(16, 16)

    def forward(self, x: Any, keys: Any, values: Any) -> Any:
        q, k, v, _ = self.made(x).view(1, 1, 4, 8).split(1, -2)
        keys, values = torch.cat([keys, k], -2), torch.cat([values, v], -2)
        a = F.scaled_dot_product_attention(q, keys, values)
        return self.last(torch.cat([a, a], -1).flatten(1)).relu(), keys, values


def test_what_grows_with_each_call_is_left_to_pytorch() -> None:
    model, threads = Decoder(), torch.get_num_threads()
    compiled = torch.compile(model, backend="tessera", dynamic=True, options={"race": False})
    with torch.no_grad():
        got = want = (None, torch.empty(1, 1, 0, 8), torch.empty(1, 1, 0, 8))
        for _ in range(12):
            x = torch.randn(1, 16)
            got, want = compiled(x, *got[1:]), model(x, *want[1:])
            torch.testing.assert_close(got, want)
            torch_backend.wait()
    assert torch.get_num_threads() == threads
    grows = [r for r in torch_backend.REPORTS if "its size is another one" in str(r.eager)]
    assert grows
    assert all(len(p.programs) == 1 for r in grows for p in r.parts)


def test_small_operators_between_parts_have_one_thread() -> None:
    openmp = torch_rest.openmp()
    if openmp is None:
        pytest.skip("PyTorch has no OpenMP")
    before, seen = openmp.omp_get_max_threads(), []

    def see(x: Any) -> Any:
        seen.append(openmp.omp_get_max_threads())
        return 1 // int(x[0, 0])

    openmp.omp_set_num_threads(3)
    try:
        torch_rest.Alone(see)(torch.ones(4, 4))
        torch_rest.Alone(see)(torch.ones(2048, 2048))
        with pytest.raises(ZeroDivisionError):
            torch_rest.Alone(see)(torch.zeros(1, 1))
        assert openmp.omp_get_max_threads() == 3
    finally:
        openmp.omp_set_num_threads(before)
    assert seen == [1, 3, 1]


def test_numbers_that_change_are_left_to_pytorch() -> None:
    def step(x: Any, n: int, kept: Any) -> Any:
        y = (x.cos() + 1).exp() @ x.T
        return torch.relu(y + n).sum(), torch.cat([kept, y[:1]])[-4:]

    compiled = torch.compile(step, backend="tessera", dynamic=True, options={"race": False})
    with torch.no_grad():
        kept = torch.zeros(4, 6)
        for n in range(3, 9):
            x = torch.rand(6, 8)
            got, want = compiled(x, n, kept), step(x, n, kept)
            torch.testing.assert_close(got, want)
            torch_backend.wait()
    assert max(len(p.programs) for p in parts()) == 1


def test_nothing_that_is_joined_with_something_is_nothing() -> None:
    def join(x: Any) -> Any:
        y = x.exp()
        return torch.cat([torch.tensor([]), y], -1) * 2, torch.cat([y[:, :0], y + 1, y[:, 4:]], 1)

    compiled = torch.compile(join, backend="tessera", options={"strict": True})
    with torch.no_grad():
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), join(x))
    assert len(parts()) == 1  # nothing between is left to PyTorch


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


def test_extents_that_return_often_get_a_program_of_their_own(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch_parts, "_OFTEN", 3)
    model = SAME["rows"]
    compiled = at_lengths(model, (19,), dynamic="background")
    x = torch.rand(2, 19, 16)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        wait_for(lambda: programs() == 2)
        torch.testing.assert_close(compiled(x), model(x))
        x = torch.rand(2, 30, 16)  # another bucket, which is made while others run
        makers: list[Any] = []
        make = torch_parts.Part._make
        monkeypatch.setattr(
            torch_parts.Part, "_make",
            lambda *a: makers.append(threading.current_thread()) or make(*a),  # type: ignore[func-returns-value]
        )  # fmt: skip
        torch.testing.assert_close(compiled(x), model(x))
        wait_for(lambda: programs() == 3)
        assert threading.main_thread() not in makers
        torch.testing.assert_close(compiled(x), model(x))


def test_programs_that_were_not_run_for_long_are_dropped(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch_parts, "_MOST_PROGRAMS", 2)
    compiled = at_lengths(SAME["rows"], (20, 24, 20, 32))
    assert {n[2] for n in parts()[0]._programs} == {(2, 20), (2, 32)}
    with torch.no_grad():
        x = torch.rand(2, 24, 16)
        torch.testing.assert_close(compiled(x), SAME["rows"](x))
