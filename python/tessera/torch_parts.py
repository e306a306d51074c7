"""One part of a PyTorch graph as compiled code: programs by shape, weights by version, no copies.

Memory is exchanged by address: nothing here is linked against libtorch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from tessera import _core
from tessera.errors import Error, UnsupportedError
from tessera.frontends.torch.fuse import fuse
from tessera.frontends.torch.importer import build, dtype_of

log = logging.getLogger("tessera.torch")
_MOST_PROGRAMS = 64  # of one part, one for each set of extents
_EPS = {torch.float64: 2e-16, torch.float32: 1.2e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}
_FROM_NAME = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip


def array_of(tensor: torch.Tensor) -> Any:
    """A NumPy view of a contiguous tensor's memory; bf16 as words."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()


class Program:
    """Compiled code for one set of extents."""

    def __init__(
        self, module: Any, inputs: Sequence[int], weights: Sequence[int],
        results: Sequence[Any], single: bool,
    ) -> None:  # fmt: skip
        self.module = module
        self.source: Any = None  # the program as imported, and with kernels
        self.graph: Any = None
        self._inputs = list(inputs)  # positions of tensors among the arguments
        self._weights = list(weights)  # those of them that keep their values
        self._free = [i for i in inputs if i not in set(weights)]
        self._place = {arg: at for at, arg in enumerate(inputs)}
        self._types = [(tuple(shape), _FROM_NAME[dtype]) for dtype, shape in module.output_types]
        self._results = list(results)
        self._single = single
        self._words = any(d == "bf16" for d, _ in (*module.input_types, *module.output_types))
        self._prepared: Any = None  # what was computed from the weights alone
        self._seen: list[tuple[int, int]] = []  # address and version of each weight
        self._arrays: list[Any] = [None] * len(self._inputs)
        self._held: list[Any] = []
        self._plain = all(isinstance(r, tuple) and r[2] == list(range(len(r[2])))
                          for r in results)  # fmt: skip

    def __call__(self, args: Sequence[Any]) -> Any:
        if self._weights:
            self._look_at_weights(args)
        arrays = list(self._arrays)  # calls from several threads do not share it
        for i in self._free:
            tensor = args[i]
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            arrays[self._place[i]] = array_of(tensor)
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in self._types]
        to = [array_of(t) for t in outputs]
        if self._words or not self.module.run_exactly(arrays, to, self._prepared):
            self.module.run(arrays, to, self._prepared)
        return self._made(outputs)

    @property
    def kernels(self) -> int:
        """Kernels that one call launches."""
        return int(self.module.plan_facts["run_tasks"])

    def _made(self, outputs: Sequence[torch.Tensor]) -> Any:
        """The results as PyTorch has them, from the program's own."""
        if self._plain:
            return outputs[0] if self._single else tuple(outputs)
        made = [self._result(r, outputs) for r in self._results]
        return made[0] if self._single else tuple(made)

    @staticmethod
    def _result(result: Any, outputs: Sequence[torch.Tensor]) -> Any:
        if not isinstance(result, tuple):
            return result
        _, at, order = result
        if order == list(range(len(order))):
            return outputs[at]
        return outputs[at].permute([order.index(i) for i in range(len(order))])

    def _look_at_weights(self, args: Sequence[Any]) -> None:
        """Prepares the weights again where one has another address or version than before."""
        seen = [(t.data_ptr(), -1 if t.is_inference() else t._version)
                for t in (args[i] for i in self._weights)]  # fmt: skip
        unknown = any(version == -1 for _, version in seen)
        if seen == self._seen and not unknown:
            return
        self._held = [args[i] for i in self._weights]  # so that addresses are not used again
        self._arrays, self._prepared = self._prepare(args)
        self._seen = seen

    def _prepare(self, args: Sequence[Any]) -> tuple[list[Any], Any]:
        """The weights as the module takes them, and what it computes from them."""
        given: list[Any] = [None] * len(self._inputs)
        for i in self._weights:
            given[self._place[i]] = array_of(args[i].contiguous())
        return given, self.module.prepare(given) if self.module.weights else None

    def refresh(self) -> None:
        """Prepares the weights again at the next call."""
        self._seen = []


class Part(torch.nn.Module):  # type: ignore[misc]
    """A part of a graph: compiled for the extents it meets, PyTorch's own operators elsewhere."""

    def __init__(
        self, graph: Any, weights: Sequence[bool], settings: Any, name: str, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        object.__setattr__(self, "eager", graph)
        self._weights = list(weights)
        self._settings = settings
        self._device = device  # torch_device.Device; None: the processor
        self.name = name
        self._programs: dict[Any, Program | None] = {}  # None: left to PyTorch
        self._pending: set[Any] = set()
        self._lock = threading.Lock()
        self.compile_s = 0.0
        self.reason = ""  # why PyTorch runs it, where it does
        # Sizes of which a program of the first call knows nothing.
        self._dynamic = any(_is_symbolic(n.meta.get("val"))
                            for n in graph.graph.find_nodes(op="placeholder"))  # fmt: skip
        (output,) = graph.graph.find_nodes(op="output")
        self._single = not isinstance(output.args[0], (list, tuple))

    def forward(self, *args: Any) -> Any:
        key = self._key(args) if self._dynamic else None
        try:
            program = self._programs[key]
        except KeyError:
            return self._first(key, args)
        return self.eager(*args) if program is None else program(args)

    @staticmethod
    def _key(args: Sequence[Any]) -> Any:
        return tuple(a.shape if isinstance(a, torch.Tensor) else a for a in args)

    @property
    def kernels(self) -> int:
        """Kernels that one run launches, by the newest program; of PyTorch's own: operators."""
        made = [p for p in self._programs.values() if p is not None]
        if made:
            return made[-1].kernels
        return sum(n.op == "call_function" for n in self.eager.graph.nodes)

    @property
    def programs(self) -> list[Program]:
        return [p for p in self._programs.values() if p is not None]

    def refresh(self) -> None:
        for program in self.programs:
            program.refresh()

    # --- another set of extents
    def _first(self, key: Any, args: Sequence[Any]) -> Any:
        if self._device is not None and self._device.capturing():
            return self.eager(*args)  # nothing is compiled or compared in a capture
        if self._programs and self._settings.dynamic == "background" and self._device is None:
            with self._lock:
                if key not in self._pending:
                    self._pending.add(key)
                    copies = [a.clone() if isinstance(a, torch.Tensor) and not w else a
                              for a, w in zip(args, self._weights, strict=True)]  # fmt: skip
                    threading.Thread(target=self._make, args=(key, copies), daemon=True).start()
            return self.eager(*args)
        expected = self._make(key, args)
        program = self._programs[key]
        if program is None:
            return self.eager(*args)
        return program(args) if expected is None else expected

    def _make(self, key: Any, args: Sequence[Any]) -> Any:
        """Compiles a program and checks it; PyTorch's own results where there was a check."""
        expected = None
        try:
            program = self._compile(args)
            if self._settings.check:
                with torch.no_grad():
                    expected = self.eager(*args)
                    self._compare(program(args), expected)
        except Exception as error:
            program, expected = None, None
            if self._settings.strict:
                raise
            why = error.message if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            self.reason = why
            log.warning("tessera: %s runs in eager: %s", self.name, why)
        with self._lock:
            while len(self._programs) >= _MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = program
            self._pending.discard(key)
        return expected

    def _compile(self, args: Sequence[Any]) -> Program:
        from tessera.torch_backend import cache_in

        start = time.perf_counter()
        inputs = [(dtype_of(a.dtype), list(a.shape)) if isinstance(a, torch.Tensor) else a
                  for a in args]  # fmt: skip
        graph, results = build(self.eager, inputs, self._weights, self.name)
        tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        weights = [i for i in tensors if self._weights[i]]
        if not graph.core.outputs:
            raise UnsupportedError("it computes nothing but sizes")
        graph.validate()
        program: Program
        if self._device is not None:
            from tessera.torch_device import DeviceProgram, device_code

            with cache_in(self._settings.cache_dir):
                found, code = device_code(graph, self._device, self._settings)
            self.compile_s += time.perf_counter() - start
            program = DeviceProgram(code, self._device, tensors, weights, results, self._single)
            program.source, program.graph = graph, found
            return program
        with cache_in(self._settings.cache_dir):
            module = self._optimize(graph) if self._settings.budget else None
            fused = graph
            if module is None:
                fused, module = self._build(graph)
        if os.environ.get("TESSERA_DEBUG", "0") != "0":
            log.info("tessera: %s\n%s", self.name, graph)
        self.compile_s += time.perf_counter() - start
        program = Program(module, tensors, weights, results, self._single)
        program.source, program.graph = graph, fused
        return program

    def _build(self, graph: Any) -> tuple[Any, _core.Module]:
        """Compiles the program with its regions as kernels; as it is, where that cannot be."""
        try:
            fused = fuse(graph)
            return fused, _core.compile(fused.core)
        except Exception as error:  # a slower program is no reason to fail
            level = logging.INFO if isinstance(error, Error) else logging.WARNING
            log.log(level, "tessera: %s is not fused: %s: %s", self.name, type(error).__name__,
                    error)  # fmt: skip
            return graph, _core.compile(graph.core)

    def _optimize(self, graph: Any) -> Any:
        """The fastest program that a search of the given budget finds and proves."""
        from tessera.api import superoptimize

        result = superoptimize(graph, budget=self._settings.budget, threads=self._settings.threads)
        return result._module

    def _compare(self, ours: Any, theirs: Any) -> None:
        pairs = [(ours, theirs)] if self._single else list(zip(ours, theirs, strict=True))
        for at, (got, want) in enumerate(pairs):
            if not isinstance(want, torch.Tensor):
                continue
            if got.shape != want.shape or got.dtype != want.dtype:
                raise UnsupportedError(
                    f"result {at} is {got.dtype}{list(got.shape)}, not {want.dtype}"
                    f"{list(want.shape)}"
                )
            if (why := _difference(got, want)) is not None:
                raise UnsupportedError(f"result {at} differs from PyTorch's: {why}")


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(d, int) for d in value.shape)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _difference(got: torch.Tensor, want: torch.Tensor) -> str | None:
    """Where two results are further apart than rounding explains; None where they are not.

    Rounding is measured against the largest element: 2000 units of the dtype's precision, of 16-bit
    floats 8 (they are rounded at other places than PyTorch's). Where factors of f32 may be rounded
    to tf32, 20 units of that."""
    if not want.is_floating_point():
        bad = int((got != want).sum())
        return f"{bad} of {want.numel()} elements" if bad else None
    finite = torch.isfinite(want)
    same = (got == want) | (torch.isnan(got) & torch.isnan(want))
    if not bool((finite | same).all()):
        return "another element is infinite or NaN"
    if not bool(finite.any()):
        return None
    g, w = got[finite].double(), want[finite].double()
    units = 8 if want.dtype in (torch.float16, torch.bfloat16) else 2000
    eps = _EPS[want.dtype]
    if want.dtype is torch.float32 and want.device.type != "cpu":
        # PyTorch and we may round factors differently where it was told that both may (tf32).
        eps = eps if torch.get_float32_matmul_precision() == "highest" else 2.0**-11 / 100
    limit = units * eps * max(float(w.abs().max()), 1e-30)
    worst = float((g - w).abs().max())
    return None if worst <= limit else f"by {worst:.3g}, where {limit:.3g} is rounding"
