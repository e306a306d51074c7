"""A compiled model sees every change of its parameters and buffers, however it was made."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import _core, torch_backend, torch_programs  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


class Model(torch.nn.Module):  # type: ignore[misc]
    """Products, a norm with statistics, a convolution's parameters, a buffer, a tied matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(32, 64)
        self.norm = torch.nn.BatchNorm1d(64)
        self.second = torch.nn.Linear(64, 32)
        self.tied = torch.nn.Linear(32, 64, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("mix", torch.randn(32, 32))

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.first(x)))
        y = self.second(y) @ (self.mix * 2)
        return self.tied(y)


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def by_data(model: Any) -> None:
    model.first.weight.data.mul_(3)


def by_numpy(model: Any) -> None:
    model.second.weight.detach().numpy()[:] = 1


def by_one_element(model: Any) -> None:
    model.second.weight.detach().numpy()[17, 5] += 40


def by_dlpack(model: Any) -> None:
    torch.from_dlpack(model.second.weight.detach()).neg_()
    torch.from_numpy(np.from_dlpack(model.first.weight.detach())).mul_(2)


def by_address(model: Any) -> None:
    weight = model.second.weight
    ctypes.memset(weight.data_ptr(), 0, weight.nbytes)


def by_storage(model: Any) -> None:
    storage = model.second.weight.untyped_storage()
    storage.copy_(torch.randn(32, 64).untyped_storage())


def by_set(model: Any) -> None:
    model.second.weight.data.set_(torch.randn(32, 64))


def by_other_data(model: Any) -> None:
    model.second.weight.data = torch.randn(32, 64)


def by_state(model: Any) -> None:
    model.load_state_dict({k: v + 0.5 for k, v in model.state_dict().items()})


def by_state_in_place(model: Any) -> None:
    for value in model.state_dict().values():  # detached aliases
        if value.is_floating_point():
            value.numpy()[...] += 0.5


def by_assigned_state(model: Any) -> None:
    state = {k: v + 0.5 for k, v in model.state_dict().items()}
    state["tied.weight"] = state["first.weight"]
    model.load_state_dict(state, assign=True)


def by_buffer(model: Any) -> None:
    model.mix.data.mul_(-2)


def by_statistics(model: Any) -> None:
    model.train()
    model.norm(torch.randn(16, 64) * 3 + 1)
    model.eval()


def by_statistics_data(model: Any) -> None:
    model.norm.running_mean.numpy()[:] = 2
    model.norm.running_var.data.fill_(9)


def by_tied(model: Any) -> None:
    model.tied.weight.data.add_(1)


def by_shared_storage(model: Any) -> None:
    whole = torch.randn(32 * 64 + 7)
    model.second.weight.data = whole[7:].view(32, 64)
    assert_seen(model)
    whole.numpy()[7:] *= -1


def by_transposed(model: Any) -> None:
    base = torch.randn(64, 32)
    model.second.weight.data = base.t()
    assert_seen(model)
    base.numpy()[3] += 10


def by_inference_mode(model: Any) -> None:
    with torch.inference_mode():
        model.second.weight.data.mul_(5)


def by_vector(model: Any) -> None:
    count = sum(p.numel() for p in model.parameters())
    torch.nn.utils.vector_to_parameters(torch.randn(count), model.parameters())


def by_swap(model: Any) -> None:
    gc.collect()  # PyTorch swaps no tensor that garbage refers to weakly
    torch.utils.swap_tensors(model.second.weight, torch.nn.Parameter(torch.randn(32, 64)))


def by_parametrization(model: Any) -> None:
    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, w: Any) -> Any:
            return w * 2

    torch.nn.utils.parametrize.register_parametrization(model.second, "weight", Twice())


def by_slice(model: Any) -> None:
    model.second.weight.data[3:5, ::2].mul_(-9)


def by_bits(model: Any) -> None:
    model.second.weight.data.view(torch.int32).bitwise_xor_(1 << 23)


def by_strides(model: Any) -> None:
    weight = model.second.weight.data
    weight.set_(weight.untyped_storage(), 0, (32, 64), (1, 32))


def by_resizing(model: Any) -> None:
    model.second.weight.data.resize_(64, 32).mul_(2)
    model.second.weight.data.resize_(32, 64)


def by_foreach(model: Any) -> None:
    torch._foreach_mul_([p.data for p in model.parameters()], 1.5)


def by_memoryview(model: Any) -> None:
    view: Any = memoryview(model.second.weight.detach().numpy())
    view[1, 2] = 55.0


def by_optimizer(**kwargs: Any) -> Callable[[Any], None]:
    def step(model: Any) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **kwargs)
        model(torch.randn(8, 32)).square().sum().backward()
        optimizer.step()

    return step


CHANGES: dict[str, Callable[[Any], None]] = {
    **{name[3:]: f for name, f in list(globals().items()) if name.startswith("by_")},
    "optimizer": by_optimizer(),
    "fused optimizer": by_optimizer(fused=True),
    "foreach optimizer": by_optimizer(foreach=True),
}
COMPILED: dict[int, Any] = {}


def assert_seen(model: Any) -> None:
    x = torch.randn(8, 32)
    with torch.no_grad():
        for _ in range(3):
            close(COMPILED[id(model)](x), model(x))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    torch.manual_seed(3)
    model = Model().eval()
    COMPILED[id(model)] = torch.compile(model, backend="tessera")
    assert_seen(model)
    for _ in range(2):
        CHANGES[change](model)
        assert_seen(model)
    parts = [p for r in torch_backend.REPORTS for p in r.parts]
    assert any(p.weights.bytes for p in parts)  # or nothing was tried


def test_other_layers_and_inference_tensors() -> None:
    """One graph with several sets of weights; tensors without a version."""
    with torch.inference_mode():
        layers = [torch.nn.Linear(32, 32) for _ in range(3)]
        compiled = torch.compile(lambda layer, x: torch.tanh(layer(x)), backend="tessera")
        for round_ in range(3):
            for layer in layers:
                layer.weight[round_] = round_ + 0.5
                layer.bias.numpy()[:] = round_
                x = torch.randn(600, 32)
                close(compiled(layer, x), torch.tanh(layer(x)))


def test_frozen_weights_are_not_looked_at(monkeypatch: Any) -> None:
    looked: list[Any] = []
    contents = _core.Contents

    def looking(ranges: Any) -> Any:
        looked.append(ranges)
        return contents(ranges)

    monkeypatch.setattr(_core, "Contents", looking)
    model, x = torch.nn.Linear(32, 32), torch.randn(600, 32)
    with torch.no_grad():
        frozen = torch.compile(model, backend="tessera", options={"freeze": True})
        before = frozen(x)
        model.weight.data.mul_(3)
        close(frozen(x), before)  # the promise was broken
        torch_backend.refresh()
        close(frozen(x), model(x))
        model.weight.mul_(3)  # and what PyTorch counts is seen
        close(frozen(x), model(x))
        assert not looked
        torch._dynamo.reset()
        torch.compile(model, backend="tessera")(x)
        assert looked


@pytest.mark.parametrize("processes", [1, 2])  # the second reads what the first kept
def test_models_are_freed(processes: int, tmp_path: Path) -> None:
    gc.collect()
    others = list(torch_programs.Weights._all)  # of other tests
    for _ in range(processes + 1):
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU())
        options = {"wait": True, "cache_dir": str(tmp_path)}
        with torch.no_grad():
            for rows in (4, 4, 9, 9):  # two graphs of the same weights
                torch.compile(model, backend="tessera", options=options, dynamic=False)(
                    torch.randn(rows, 32)
                )
        made = set(torch_programs.Weights._all) - set(others)
        packed = [w for w in made for _ in w._sets]
        assert len(packed) == 2  # not those of models before
        weight = weakref.ref(model[0].weight)
        del model
        gc.collect()
        assert weight() is None
        if processes == 2:
            torch._dynamo.reset()
