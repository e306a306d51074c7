"""The process that holds the GPU: prepares all contestants of a case and times them in turns.

One process for all, unlike on the CPU: there are no pools of threads to fight, and turns can be
short. It may be lost (an illegal access ends a CUDA context for good, a compiler may hang); race.py
then starts another without whoever was to blame. Started as `python -m
bench.cuda.worker THREADS`.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.cuda.device import Device, Replay, Tensors
from bench.cuda.peers import Peer
from bench.cuda.sampling import Entrant, interleave
from bench.worker import die_with_parent, result_facts, serve
from bench.workloads import Workload, choose

Facts = dict[str, Any]
# A graph must compute what the same program computed outside of one, up to the order of its sums.
_SAME = 4.0


class Server:
    """The contestants of one case."""

    def __init__(self, threads: int, make_device: Callable[[], Device] = Device) -> None:
        self.threads = threads
        self._make_device = make_device
        self._device: Device | None = None
        self.clear()

    @property
    def device(self) -> Device:
        """The GPU; raises where there is none."""
        if self._device is None:
            self._device = self._make_device()
        return self._device

    def clear(self) -> Facts:
        """Forgets the case."""
        self.peers: dict[str, Peer] = {}
        self.errors: dict[str, float] = {}
        self.workload: Workload | None = None
        self.tensors: Tensors = []
        self.exact: Any = None
        gc.collect()
        if self._device is not None:
            self._device.release()
        return {}

    def describe(self) -> Facts:
        """What the GPU is."""
        return self.device.description()

    def load(self, case: str, batch: int, dtype: str) -> Facts:
        """Draws the arguments of a case and computes its exact result."""
        self.clear()
        (self.workload,) = choose(case if "@" in case else f"{case}@")
        self.batch, self.dtype = batch, dtype
        self.tensors = self.device.arguments(self.workload, batch, dtype, seed=0)
        self.exact = self.device.exact(self.workload, self.tensors)
        size = self.tensors[0].element_size()
        return {"bytes": sum(t.numel() * size for t in (*self.tensors, self.exact))}

    def prepare(self, name: str, options: Facts) -> Facts:
        """Makes a contestant and checks its result."""
        assert self.workload is not None
        start = time.perf_counter()
        facts: Facts = {}
        if name == "ours":
            peer, facts = self._ours(options)
        else:
            from bench.cuda import peers

            peer = peers.make(name, self.workload, self.tensors, self.device)
        result = self.device.run(peer.program, peer.arrange(self.tensors))
        self.errors[name] = self._error(result)
        self.peers[name] = peer
        return {
            "prepare_s": time.perf_counter() - start,
            "error": self.errors[name],
            "chosen": peer.facts,
            "facts": facts,
        }

    def measure(self, cold: bool, budget_s: float) -> Facts:
        """Times everybody, and what the device can do, in turns; names who cannot be captured."""
        assert self.workload is not None
        device = self.device
        sets = [self.tensors]
        if cold:
            sets = device.sets(self.workload, self.batch, self.dtype, self.tensors)
        failed: dict[str, str] = {}
        entrants: dict[str, Entrant] = {}
        for name, peer in self.peers.items():
            try:
                entrants[name] = self._entrant(name, peer, sets)
            except Exception as error:
                if not device.alive():
                    raise
                failed[name] = _reason(error)
        entrants["probe_copy"], copied = device.copy()
        entrants["probe_matmul"], flops = device.matmul(self.dtype)
        entrants["probe_launch"] = device.launch()
        timings = interleave(entrants, budget_s)
        return {
            "medians": {n: t.median_s for n, t in timings.items()},
            "spreads": {n: t.spread for n, t in timings.items()},
            "samples": min(t.samples for t in timings.values()),
            "sets": len(sets),
            "copied": copied,
            "flops": flops,
            "left_out": failed,
        }

    def _entrant(self, name: str, peer: Peer, sets: list[Tensors]) -> Entrant:
        """A contestant captured in a graph whose result is still right."""
        arranged = [peer.arrange(tensors) for tensors in sets]
        replay: Replay = self.device.capture(peer.program, arranged[:1])
        replay.seconds(1)
        error = self._error(replay.results[0])
        if not error <= _SAME * max(self.errors[name], 1e-7):
            raise RuntimeError(
                f"its CUDA graph computes something else: error {error:.2e}, outside of a graph"
                f" {self.errors[name]:.2e}"
            )
        if len(sets) > 1:
            return self.device.cold(peer.program, arranged)
        return self.device.warm(peer.program, arranged[0])

    def _ours(self, fields: Facts) -> tuple[Peer, Facts]:
        from tessera.api import superoptimize
        from tessera.options import Options

        assert self.workload is not None
        fields = fields | {
            "disable": tuple(fields.get("disable", ())),
            "threads": self.threads,
            "freeze": True,  # weights are arranged beforehand, for everybody
        }
        graph = self.workload.graph(self.batch, self.dtype)
        result = superoptimize(graph, options=Options(**fields))
        return ours(result), result_facts(result)

    def _error(self, result: Any) -> float:
        """Largest difference from the exact result, relative to its largest element."""
        if tuple(result.shape) != tuple(self.exact.shape):
            raise ValueError(f"a result of shape {tuple(result.shape)}")
        difference = (result.double() - self.exact).abs().max().item()
        if difference != difference:
            raise ValueError("a result that is not a number")
        return float(difference / max(self.exact.abs().max().item(), 1e-300))


def ours(result: Any) -> Peer:
    """An optimised program; weights are folded and packed beforehand for each set of arguments.

    A Result keeps what it prepared for a few sets only, and a captured graph goes on using it: so
    each set has a runner of its own, which lives as long as the set.
    """

    def arrange(tensors: Tensors) -> list[Any]:
        runner = result.runner()
        runner(tensors)  # prepares, which cannot be done while a graph is captured
        return [runner, *tensors]

    return Peer(lambda runner, *tensors: runner(tensors)[0], arrange)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def main() -> None:
    die_with_parent()
    run(Server(int(sys.argv[1])))


def run(server: Server) -> None:
    """Serves orders until there are none."""
    serve(
        {
            "clear": server.clear,
            "describe": server.describe,
            "load": server.load,
            "prepare": server.prepare,
            "measure": server.measure,
        }
    )


if __name__ == "__main__":
    main()
