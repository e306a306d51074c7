"""torch.compile(..., backend="tessera") with tensors on a GPU: on a stand-in for CUDA's driver.

PyTorch's tensors are the processor's, told to be a device's; their memory, while a program runs, is
that of the stand-in. Skipped where torch is not installed, as in CI.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from test_cuda import CUBLASLT, StandIn, stand_in  # noqa: E402, F401

from tessera import _core, torch_backend, torch_device, torch_parts  # noqa: E402
from tessera.errors import UnsupportedError, UsageError  # noqa: E402

F = torch.nn.functional
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.int64: "i64", torch.int32: "i32",
         torch.bool: "bool"}  # fmt: skip


class Memory(torch_device.Device):
    """The stand-in's first device."""

    kept: list[Any] = []  # noqa: RUF012
    in_capture = False

    def stream(self) -> int:
        return 0

    def capturing(self) -> bool:
        return Memory.in_capture

    def empty(self, size: Sequence[int], order: list[int], dtype: Any) -> Any:
        made = _core.DeviceArray(0, NAMES[dtype], list(size))
        self.kept.append(made)
        held = int(np.prod(size)) * torch.empty(0, dtype=dtype).element_size()
        memory = (ctypes.c_uint8 * held).from_address(made.address)
        strides = torch.empty_permuted(size, order).stride()
        return torch.frombuffer(memory, dtype=dtype).as_strided(size, strides)

    def given(self, tensor: Any) -> Any:
        made = self.empty(tensor.shape, [*range(tensor.ndim)], tensor.dtype)
        return made.copy_(tensor.detach())


@pytest.fixture
def on_device(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:  # noqa: F811
    monkeypatch.setattr(torch_device, "place_of", lambda _: "cuda:0")
    monkeypatch.setattr(torch_device, "Device", Memory)
    compare: Any = torch_parts.disagreement  # type: ignore[attr-defined]
    required: Any = torch._assert_async

    # As PyTorch's own operators would.
    def waiting(*args: Any) -> Any:
        stand_in.synchronize(0)
        return compare(*args)

    def asserted(*args: Any) -> Any:
        stand_in.synchronize(0)
        return required(*args)

    monkeypatch.setattr(torch, "_assert_async", asserted)
    monkeypatch.setattr(torch_parts, "disagreement", waiting)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield stand_in
    torch._dynamo.reset()
    Memory.kept.clear()


class Layer(torch.nn.Module):  # type: ignore[misc]
    """Products with bias and activation, and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(32, 64)
        self.down = torch.nn.Linear(64, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.down(F.relu(self.up(x))))


def close(stand_in: StandIn, got: Any, want: Any) -> None:  # noqa: F811
    stand_in.synchronize(0)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_module_runs_on_the_device(on_device: StandIn) -> None:
    model, x = Layer().eval(), torch.randn(4, 32)
    with torch.no_grad():
        want = model(x)
        compiled = torch.compile(model, backend="tessera", options={"strict": True})
        close(on_device, compiled(x), want)
        (report,) = torch_backend.REPORTS
        (part,) = report.parts
        assert not report.eager
        assert isinstance(part.programs[0], torch_device.DeviceProgram)
        launches = on_device.calls("cuLaunchKernel")
        waits = on_device.calls("cuStreamSynchronize")
        again = compiled(2 * x)
        assert on_device.calls("cuLaunchKernel") > launches
        assert on_device.calls("cuStreamSynchronize") == waits
        close(on_device, again, model(2 * x))
        assert part.kernels >= 1
        assert f"{part.kernels} kernels" in str(torch_backend.explain())
        # An in-place change of a weight is noticed.
        model.up.bias.add_(1)
        close(on_device, compiled(x), model(x))


def test_results_keep_their_order_in_memory(on_device: StandIn) -> None:
    def model(x: Any) -> Any:
        return x.exp() * 2, x.sum(1), (x + 1).movedim(0, 2).contiguous()

    compiled = torch.compile(model, backend="tessera", options={"strict": True})
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
            for got, want in zip(compiled(x), model(x), strict=True):
                close(on_device, got, want)
                assert got.stride() == want.stride()


def test_nothing_is_compiled_in_a_capture(
    on_device: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Memory, "in_capture", True)
    compiled = torch.compile(lambda x: (x * 2).exp(), backend="tessera")
    x = torch.randn(4, 32)
    close(on_device, compiled(x), (x * 2).exp())
    assert all(not p.programs for r in torch_backend.REPORTS for p in r.parts)
    monkeypatch.setattr(Memory, "in_capture", False)
    close(on_device, compiled(x), (x * 2).exp())
    assert all(p.programs for r in torch_backend.REPORTS for p in r.parts)


def test_lengths_get_programs_of_their_own(on_device: StandIn) -> None:
    compiled = torch.compile(lambda x: x.tanh() + 1, backend="tessera", dynamic=True)
    for n in (8, 12):
        x = torch.randn(n, 32)
        close(on_device, compiled(x), x.tanh() + 1)
    assert sum(len(p.programs) for r in torch_backend.REPORTS for p in r.parts) == 2


def test_tf32_is_pytorchs_choice(on_device: StandIn) -> None:
    assert not torch_device.may_round_factors()
    _core.use_cublaslt(str(CUBLASLT))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert torch_device.may_round_factors()
        a, b = torch.randn(16, 32), torch.randn(32, 16)
        compiled = torch.compile(torch.matmul, backend="tessera", options={"strict": True})
        got = compiled(a, b)
        on_device.synchronize(0)
        torch.testing.assert_close(got, a @ b, rtol=2e-2, atol=2e-2)
        program: Any = torch_backend.REPORTS[0].parts[0].programs[0]
        assert [k["call"] for k in program.code.kernels] == ["matmul f32 1x16x16x32 tf32"]
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_device_that_cannot_be_used_is_told(
    on_device: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    on_device.library.stand_in_version(11000)
    _core.use_cuda_driver("/nowhere/libcuda.so")
    x = torch.randn(4)
    with caplog.at_level(logging.WARNING, "tessera.torch"):
        assert torch.equal(torch.compile(lambda x: x * 2, backend="tessera")(x), x * 2)
    assert any("tensors on cuda:0: " in r.message and "left to eager" in r.message
               for r in caplog.records)  # fmt: skip
    strict = torch.compile(lambda x: x * 3, backend="tessera", options={"strict": True})
    with pytest.raises(Exception, match=r"with strict: a graph has tensors on cuda:0: "):
        strict(x)


def test_places_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    place = torch_device.place_of_graph
    x, meta = torch.empty(2), torch.empty(2, device="meta")
    assert place([x, 3], "auto") == (None, "")
    assert "on meta, and programs run on" in place([x, meta], "auto")[1]
    assert "are on the processor" in place([x], "cuda")[1]
    monkeypatch.setattr(torch_device, "place_of", lambda t: "cuda:0" if t is x else "cuda:1")
    assert "runs on one device" in place([x, meta], "auto")[1]
    assert "are to run on the processor" in place([x], "cpu")[1]
    with pytest.raises(UsageError, match="target 'cuda:1' is none of auto"):
        torch_backend.Settings(target="cuda:1")


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_attention_as_pytorch_calls_it_on_gpus(kind: str) -> None:
    """The operators that PyTorch makes of attention there, imported and interpreted."""
    from tessera.frontends.torch.importer import build

    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    mask = torch.randn(1, 2, 8, 8)
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(n) for n in "qkv"]
    inputs, bias = [q, k, v], None
    if kind != "flash":
        nodes.append(graph.placeholder("mask"))
        inputs.append(mask)
        bias = mask
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention").default
    args = (*nodes[:3], 0.0, True) if kind == "flash" else (*nodes, False, 0.0, False)
    called = graph.call_function(operator, args, {"scale": 0.3})
    called.meta["val"] = (q, torch.empty(1, 2, 8))
    first = graph.call_function(__import__("operator").getitem, (called, 0))
    first.meta["val"] = q
    graph.output((first,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    given = [("f32", list(x.shape)) for x in inputs], [False] * len(inputs), "attention"
    program, _ = build(module, *given)
    want = F.scaled_dot_product_attention(q, k, v, bias, is_causal=kind == "flash", scale=0.3)
    (got,) = program.run(*(x.numpy() for x in inputs))
    np.testing.assert_allclose(got, want.numpy(),
                               rtol=1e-4, atol=1e-4)  # fmt: skip
    called.args = (*args[:3], 0.5, True) if kind == "flash" else (*args[:5], 0.5, False)
    with pytest.raises(UnsupportedError, match="dropout is random"):
        build(module, *given)
