"""The GPU as the benchmark sees it: arguments in its memory, programs in CUDA graphs, events.

All contestants are timed alike: some calls are captured in one CUDA graph, and replays of it are
timed by events, so that nobody pays for Python and everybody for launches on the device. A cold run
goes through sets of arguments that together exceed the L2 cache; results are kept until the end of
a graph, so that each call writes to memory of its own there too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from bench.cuda.sampling import Entrant, replays_of, rotations
from bench.workloads import Workload
from tessera.errors import UnsupportedError

Program = Callable[..., Any]
Tensors = list[Any]
_SPIN_CYCLES = 200_000  # about 0.1 ms: the host has queued everything before the clock starts


def driver_version() -> str | None:
    """The driver's version as nvidia-smi says it."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.split("\n")[0].strip() or None


class Device:
    """The first GPU, through torch."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError:
            raise UnsupportedError(
                "no PyTorch: bench --target cuda measures on a GPU through PyTorch with CUDA"
                " (pip install torch)"
            ) from None
        if not torch.cuda.is_available():
            raise UnsupportedError(
                "no CUDA device: bench --target cuda measures on a GPU through PyTorch with CUDA;"
                " --emulate needs neither"
            )
        self.torch = torch
        self.properties = torch.cuda.get_device_properties(0)
        self.cache_bytes = int(self.properties.L2_cache_size)
        self.stream = torch.cuda.Stream()

    def description(self) -> dict[str, Any]:
        """What the figures were measured on."""
        p = self.properties
        return {
            "device": p.name,
            "arch": f"sm_{p.major}{p.minor}",
            "multiprocessors": p.multi_processor_count,
            "memory_gb": round(p.total_memory / 1e9, 1),
            "l2_mb": round(self.cache_bytes / 1e6, 1),
            "driver": driver_version(),
            "cuda": self.torch.version.cuda,
            "torch": self.torch.__version__,
        }

    def arguments(self, workload: Workload, batch: int, dtype: str, seed: int) -> Tensors:
        """Random arguments in the device's memory, distributed as Workload.arrays says."""
        torch = self.torch
        kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
        generator = torch.Generator("cuda").manual_seed(seed)
        return [
            (torch.randn(shape, generator=generator, device="cuda")
             * workload.deviation(name, shape)).to(kind)
            for name, shape in workload.at(batch).items()
        ]  # fmt: skip

    def sets(self, workload: Workload, batch: int, dtype: str, first: Tensors) -> list[Tensors]:
        """Enough sets of arguments for cold runs; the first is given."""
        size = sum(t.numel() * t.element_size() for t in first)
        free, _ = self.torch.cuda.mem_get_info()
        count = rotations(size, self.cache_bytes, free)
        return [first] + [self.arguments(workload, batch, dtype, seed) for seed in range(1, count)]

    def exact(self, workload: Workload, tensors: Tensors) -> Any:
        """The result in f64, computed on the device."""
        from bench.peers import torch_kit

        with self.torch.no_grad():
            return workload.program(torch_kit(), *[t.double() for t in tensors])

    def run(self, program: Program, tensors: Tensors) -> Any:
        """One call outside of any graph; what goes wrong on the device is raised here."""
        with self.torch.no_grad():
            result = program(*tensors)
        self.torch.cuda.synchronize()
        return result

    def alive(self) -> bool:
        """Whether the context can be used: a failed capture leaves it so, an illegal access not."""
        try:
            self.torch.cuda.synchronize()
            return bool((self.torch.ones(1, device="cuda") + 1).item() == 2)
        except RuntimeError:
            return False

    def release(self) -> None:
        """Gives memory of dead tensors back, so that our own allocations find it."""
        self.torch.cuda.empty_cache()

    def capture(self, program: Program, sets: Sequence[Tensors]) -> Replay:
        """One CUDA graph that runs the program on each set in turn."""
        torch = self.torch
        with torch.no_grad():
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                for tensors in sets[:2] if len(sets) > 1 else [*sets, *sets]:
                    program(*tensors)  # libraries choose algorithms and take workspaces
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads (of compilers) may do what they like meanwhile.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                results = [program(*tensors) for tensors in sets]
        return Replay(self, graph, results, (program, list(sets)))

    def warm(self, program: Program, tensors: Tensors) -> Entrant:
        """The program on the same arguments again and again."""
        once = self.capture(program, [tensors])
        once.seconds(2)
        calls = min(100, replays_of(once.seconds(3) / 3))
        if calls == 1:
            return Entrant(once.seconds)
        return Entrant(self.capture(program, [tensors] * calls).seconds, calls)

    def cold(self, program: Program, sets: Sequence[Tensors]) -> Entrant:
        """The program on arguments that are not in the L2 cache."""
        return Entrant(self.capture(program, sets).seconds, len(sets))

    def once(self, program: Program, tensors: Tensors) -> float:
        """Seconds of a call in a graph, roughly: to choose between variants of a program."""
        entrant = self.warm(program, tensors)
        return min(entrant.seconds(2) / 2 for _ in range(3)) / entrant.calls

    # --- what the device can do ---------------------------------------------------------------

    def copy(self) -> tuple[Entrant, int]:
        """A copy far larger than the cache, and how many bytes it reads and writes."""
        torch = self.torch
        size = max(1 << 30, 8 * self.cache_bytes)
        free, _ = torch.cuda.mem_get_info()
        size = min(size, free // 4)
        source = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return self.warm(lambda a, b: b.copy_(a), [source, target]), 2 * size

    def matmul(self, dtype: str) -> tuple[Entrant, float]:
        """A large matrix product of the library's, on random data, and its operations."""
        torch = self.torch
        kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
        n = 8192
        a, b = (torch.randn(n, n, device="cuda").to(kind) for _ in range(2))
        out = torch.empty_like(a)
        return self.warm(lambda x, y: torch.mm(x, y, out=out), [a, b]), 2.0 * n**3

    def launch(self) -> Entrant:
        """The least that a kernel can do, in a graph of many."""
        one = self.torch.zeros(1, device="cuda")
        return Entrant(self.capture(lambda x: x.add_(1), [[one]] * 100).seconds, 100)


class Replay:
    """A captured graph, and what it reads: PyTorch gives memory of dead tensors back to the device
    whenever it begins to capture another."""

    def __init__(self, device: Device, graph: Any, results: list[Any], reads: Any) -> None:
        self._device = device
        self._graph = graph
        self.results = results
        self._reads = reads

    def seconds(self, times: int) -> float:
        """How long so many replays take on the device."""
        torch = self._device.torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._device.stream):
            torch.cuda._sleep(_SPIN_CYCLES)
            start.record()
            for _ in range(times):
                self._graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3
