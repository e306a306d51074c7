"""A worker of the GPU benchmark whose device is this processor: torch on the CPU, wall clocks.

`python -m tests.python.cuda_stand_in THREADS` serves as bench.cuda.worker does. "Graphs"
are lists of calls. Everything but the CUDA calls themselves is the benchmark's own code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.cuda.device import Device, Program, Tensors
from bench.cuda.peers import Peer
from bench.cuda.sampling import Entrant
from bench.cuda.worker import Server, run
from bench.worker import die_with_parent
from bench.workloads import Workload


class StandIn(Device):
    """The benchmark's device in host memory."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.cache_bytes = 1 << 20
        self.properties = type("Properties", (), {"multi_processor_count": 4})

    def description(self) -> dict[str, Any]:
        return {"device": "stand-in", "arch": "none", "torch": self.torch.__version__}

    def arguments(self, workload: Workload, batch: int, dtype: str, seed: int) -> Tensors:
        kind = {"f16": self.torch.float16, "bf16": self.torch.bfloat16}[dtype]
        arrays = workload.arrays(batch, "f32", seed)
        return [self.torch.from_numpy(a).to(kind) for a in arrays]

    def sets(self, workload: Workload, batch: int, dtype: str, first: Tensors) -> list[Tensors]:
        return [first] + [self.arguments(workload, batch, dtype, seed) for seed in (1, 2)]

    def run(self, program: Program, tensors: Tensors) -> Any:
        with self.torch.no_grad():
            return program(*tensors)

    def alive(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def capture(self, program: Program, sets: Sequence[Tensors]) -> Any:
        return Calls(self, program, sets)

    def copy(self) -> tuple[Entrant, int]:
        source = self.torch.zeros(1 << 22, dtype=self.torch.uint8)
        target = self.torch.empty_like(source)
        return Entrant(Calls(self, lambda a, b: b.copy_(a), [[source, target]]).seconds), 2 << 22

    def matmul(self, dtype: str) -> tuple[Entrant, float]:
        a = self.torch.randn(128, 128)
        return Entrant(Calls(self, self.torch.mm, [[a, a]]).seconds), 2.0 * 128**3

    def launch(self) -> Entrant:
        one = self.torch.zeros(1)
        return Entrant(Calls(self, lambda x: x.add_(1), [[one]]).seconds)


class Calls:
    """What stands for a captured graph."""

    def __init__(self, device: StandIn, program: Program, sets: Sequence[Tensors]) -> None:
        self.device, self.program, self.sets = device, program, sets
        self.results = [device.run(program, tensors) for tensors in sets]

    def seconds(self, times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            self.results = [self.device.run(self.program, tensors) for tensors in self.sets]
        return time.perf_counter() - start


class StandInServer(Server):
    """Ours runs on the CPU."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads, StandIn)

    def _ours(self, fields: dict[str, Any]) -> tuple[Peer, dict[str, Any]]:
        peer, facts = super()._ours(fields | {"target": "cpu", "budget": 5.0})
        torch = self.device.torch

        def program(*arranged: Any) -> Any:
            return torch.from_numpy(peer.program(*arranged))

        return Peer(program, lambda tensors: peer.arrange([t.numpy() for t in tensors])), facts


if __name__ == "__main__":
    die_with_parent()
    run(StandInServer(int(sys.argv[1])))
