"""Parts of PyTorch graphs whose tensors are on a CUDA device.

Arrays stay where they are: kernels and libraries' calls go to PyTorch's current stream of the
device, results are PyTorch's tensors there, and nothing is waited for after a program's first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tessera import _core
from tessera.api import superoptimize
from tessera.cuda import find_libraries
from tessera.errors import UnsupportedError
from tessera.frontends.torch.importer import Output
from tessera.graph import Graph
from tessera.result import ENGINES
from tessera.torch_programs import Packed, Program, Ready, Results, Weights
from tessera.types import Values

if TYPE_CHECKING:
    from tessera.torch_backend import Settings

_ALIGNMENT = 16  # bytes, of arguments of kernels
_COMPILE_S = 3600.0  # where nothing is searched: an end that compiling does not reach


class Device:
    """A CUDA device as PyTorch has it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"cuda:{index}"

    def stream(self) -> int:
        """PyTorch's current stream, as the driver knows it."""
        return int(torch.cuda.current_stream(self.index).cuda_stream)

    def capturing(self) -> bool:
        """Whether that stream is being captured in a CUDA graph."""
        return bool(torch.cuda.is_current_stream_capturing())

    def empty(self, size: Sequence[int], order: list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_permuted(size, order, dtype=dtype, device=self.name)

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as kernels take it, row-major at a multiple of 16 bytes; perhaps a copy."""
        tensor = tensor.detach().resolve_neg().resolve_conj().contiguous()
        return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()

    def problem(self) -> str:
        """Why nothing can be run there; "" where something can."""
        find_libraries()
        machine = _core.cuda_machine()
        for fact in ("driver_problem", "nvrtc_problem"):
            if machine[fact]:
                return str(machine[fact])
        if all(d["ordinal"] != self.index for d in machine["devices"]):
            return f"the driver has no device {self.index}"
        return ""


def place_of(tensor: torch.Tensor) -> str:
    """Where a tensor is: "cpu", "cuda:0", "meta", …"""
    if tensor.device.type != "cuda":
        return str(tensor.device)
    index = tensor.device.index
    return f"cuda:{torch.cuda.current_device() if index is None else index}"


def place_of_graph(tensors: Values, wanted: str) -> tuple[Device | None, str]:
    """The device that a graph's programs are for, None for the processor; and why there can be
    none ("" where there can).

    `wanted`: "auto" takes the one CUDA device that tensors are on; "cpu" and "cuda" only those."""
    places = {place_of(t) for t in tensors if isinstance(t, torch.Tensor)}
    elsewhere = sorted(places - {"cpu"})
    if not elsewhere:
        return None, "its tensors are on the processor" if wanted == "cuda" else ""
    text = f"a graph has tensors on {', '.join(elsewhere)}"
    if wanted.startswith("cpu"):
        return None, f"{text}, and its programs are to run on the processor"
    if len(elsewhere) > 1:
        return None, f"{text}, and a program runs on one device"
    if not elsewhere[0].startswith("cuda:"):
        return None, f"{text}, and programs run on the processor and on CUDA devices"
    device = Device(int(elsewhere[0].removeprefix("cuda:")))
    problem = device.problem()
    return (None, f"{text}: {problem}") if problem else (device, "")


def may_round_factors() -> bool:
    """Whether PyTorch was told that products of f32 may round their factors to tf32."""
    return bool(torch.get_float32_matmul_precision() != "highest")


class DeviceProgram(Program):
    """Compiled code for one set of extents, loaded on a device."""

    def __init__(
        self, code: _core.CudaCode, device: Device, inputs: Sequence[int], weights: Weights,
        results: Sequence[Output], single: bool,
    ) -> None:  # fmt: skip
        super().__init__(code.module, inputs, weights, results, single)
        self.code = code
        self._device = device

    @property
    def graph(self) -> Graph:
        return self.compiled

    @property
    def kernels(self) -> int:
        return len(self.code.kernels)

    def __call__(self, args: Values) -> Results:
        prepared, weights = self._weighted(args)
        addresses = [0 if t is None else t.data_ptr() for t in weights]
        given = [self._device.given(args[i]) for i in self._free]  # kept until they are launched
        for i, tensor in zip(self._free, given, strict=True):
            addresses[self._place[i]] = tensor.data_ptr()
        outputs = [self._device.empty(*form) for form in self._forms]
        to = outputs + [self._device.empty((), [], torch.int32)] * self._checked
        self.module.run(addresses, [t.data_ptr() for t in to], prepared, self._device.stream())
        if self._checked:
            torch._assert_async(to[-1])  # on the device, as PyTorch's own kernels do
        return self._made(outputs)

    def _prepare(self, args: Values, packed: Packed) -> Ready:
        given: list[torch.Tensor | None] = [None] * len(self._inputs)
        for i, tensor in zip(self._weights.places, packed.tensors, strict=True):
            given[self._place[i]] = self._device.given(tensor)  # a copy, where kernels need one
        # Arrays are not shared between programs as the processor's are: modules have their own.
        if not self.module.weights:
            return None, given, None
        addresses = [0 if t is None else t.data_ptr() for t in given]
        return self.module.prepare(addresses, self._device.stream()), given, None


def device_code(graph: Graph, device: Device, settings: Settings) -> tuple[Graph, _core.CudaCode]:
    """The program (after a search, where the settings have a budget) and its code on the device."""
    result = superoptimize(
        graph, target=device.name, budget=settings.budget or _COMPILE_S, threads=settings.threads,
        disable=() if settings.budget else ENGINES, tf32=may_round_factors(),
    )  # fmt: skip
    code = result.device_code
    if code is None or code.module is None:
        raise UnsupportedError(f"there is no code for {device.name}: "
                               f"{result.details['not_measured']}")  # fmt: skip
    return result.graph, code
