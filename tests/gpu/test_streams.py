"""PyTorch's streams, CUDA graphs and memory, which a stand-in for the driver cannot show."""

from __future__ import annotations

from typing import Any

import tessera as ts
from bench.workloads import WORKLOADS, Workload

WORKLOAD: Workload = WORKLOADS["ntrans"]


def prepared(torch: Any) -> tuple[ts.Result, list[Any]]:
    """A program, and arguments on the device."""
    result = ts.superoptimize(WORKLOAD.graph(1, "f16"), target="cuda", budget=10)
    tensors = [torch.from_numpy(a).cuda() for a in WORKLOAD.arrays(1, "f16")]
    result(*tensors)
    return result, tensors


def close(found: Any, tensors: list[Any]) -> bool:
    exact = WORKLOAD.exact([t.cpu().numpy() for t in tensors])
    error = abs(found.double().cpu().numpy() - exact).max()
    return bool(error <= 16 * 2**-11 * abs(exact).max())


def test_work_waits_for_the_stream_it_is_given_to(torch: Any) -> None:
    result, tensors = prepared(torch)
    stream, other = torch.cuda.Stream(), [t * 0 for t in tensors]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # whoever does not wait reads zeros
        for zero, tensor in zip(other, tensors, strict=True):
            zero.copy_(tensor)
        found = result(*other)
    stream.synchronize()
    assert close(found, tensors)


def test_a_captured_call_sees_new_arguments(torch: Any) -> None:
    result, tensors = prepared(torch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = result(*tensors)
    for _ in range(3):
        for tensor in tensors:
            tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        torch.cuda.synchronize()
        assert close(found, tensors)


def test_calls_leave_no_memory_behind(torch: Any) -> None:
    result, tensors = prepared(torch)
    torch.cuda.synchronize()
    before, _ = torch.cuda.mem_get_info()
    for _ in range(200):
        result(*tensors)
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 32 << 20


def test_two_streams_at_once(torch: Any) -> None:
    """Intermediate memory is not shared between streams."""
    result, tensors = prepared(torch)
    others = [t.flip(-1).contiguous() for t in tensors]
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(2)], []
    for _ in range(20):
        for stream, given in zip(streams, (tensors, others), strict=True):
            with torch.cuda.stream(stream):
                found.append((result(*given), given))
    torch.cuda.synchronize()
    assert all(close(f, given) for f, given in found)
