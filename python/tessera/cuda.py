"""Programs on a CUDA device, and arrays that are handed over without a copy.

PyTorch tensors are taken as they are; other libraries' arrays by DLPack (`__dlpack__`, as CuPy and
JAX have it). Where an input is a tensor results are tensors; else they are arrays that speak DLPack
as well.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tessera import _core
from tessera.errors import BadInputError, NotFoundError, WrongTypeError
from tessera.options import package_folders
from tessera.runner import out_name, refuse_overlaps
from tessera.torch_arrays import is_tensor
from tessera.types import DTYPES, Array, Object, Value, Values, dtype_name, require_type, to_numpy

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 16  # bytes
_CUDA_DEVICES = (2, 13)  # DLPack: on a device, and managed memory
_MOST_WEIGHT_SETS = 4
_LEGACY_STREAM = 1  # DLPack: the default stream, which is 0 for the driver

_TORCH_DTYPES = {name: dtype.name for name, dtype in DTYPES.items()}


def library_folders() -> list[str]:
    """Where Python's packages have CUDA's libraries: nvidia/*/lib."""
    places = ("*/lib", "*/lib/x86_64")
    return [str(path) for folder in package_folders("nvidia") for within in places
            for path in sorted(folder.glob(within)) if path.is_dir()]  # fmt: skip


def find_libraries() -> None:
    """Has the core look for CUDA's libraries in Python's packages first."""
    _core.set_cuda_folders(library_folders())


# By identity: an array of a type, and the device's that it stands for.
Held = dict[int, tuple[Array, Value]]


def is_device_array(value: Value) -> bool:
    """Whether this is an array on a CUDA device."""
    if is_tensor(value):
        return bool(value.device.type == "cuda")
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return False
    return value.__dlpack_device__()[0] in _CUDA_DEVICES


def placeholder(value: Value) -> Array:
    """An array of the same type and no memory, for what only looks at types."""
    if is_tensor(value):
        known = {name: ours for ours, name in _TORCH_DTYPES.items()}
        name = str(value.dtype).removeprefix("torch.")
        if name not in known:
            raise WrongTypeError(f"tensors of {name} are not supported")
        return np.broadcast_to(np.zeros((), to_numpy(known[name])), tuple(value.shape))
    view = _core.ForeignArray(value.__dlpack__(stream=_LEGACY_STREAM))
    return np.broadcast_to(np.zeros((), to_numpy(view.dtype)), tuple(view.shape))


def standing(value: Value, held: Held, wanted: Callable[[Value], bool] = is_device_array) -> Value:
    """Arguments in which arrays of the same types stand for a device's, which `held` tells."""
    if type(value) in (tuple, list):
        return type(value)(standing(v, held, wanted) for v in value)
    if type(value) is dict:
        return {k: standing(v, held, wanted) for k, v in value.items()}
    if not wanted(value):
        return value
    array = placeholder(value)
    held[id(array)] = (array, value)
    return array


def is_tensor_or_device_array(value: Object) -> bool:
    """Whether this is an array that a program for a GPU takes, or is told to be elsewhere."""
    return is_tensor(value) or is_device_array(value)


def is_capturing() -> bool:
    """Whether PyTorch captures a CUDA graph on its current stream."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    asked = getattr(cuda, "is_current_stream_capturing", None)
    try:
        return asked is not None and bool(asked())
    except RuntimeError:  # a build of PyTorch without CUDA
        return False


def to_device(array: Object, device: int = 0) -> _core.DeviceArray:
    """A copy of a NumPy array on a device; for programs without PyTorch or CuPy."""
    array = np.ascontiguousarray(array)
    made = _core.DeviceArray(device, dtype_name(array.dtype), list(array.shape))
    made.write(array.tobytes())
    return made


def to_host(array: _core.DeviceArray) -> Array:
    """A copy of a device's array as a NumPy array; waits for what computes it."""
    dtype, shape = array.type
    return np.frombuffer(bytearray(array.read()), to_numpy(dtype)).reshape(shape)


@dataclass(frozen=True)
class _View:
    """An array's memory, and what keeps it."""

    address: int
    bytes: int
    owner: Value


@dataclass(frozen=True)
class _WeightSet:
    prepared: _core.CudaWeights
    given: list[Value]  # kept, so that their identities cannot be used again
    address: tuple[int, ...]


class DeviceRunner:
    """A module loaded on a device, on arrays: checks them, allocates results, launches.

    Work goes to PyTorch's current stream where an input is a tensor, else to the default stream.
    """

    def __init__(
        self, module: _core.CudaModule, names: Sequence[str], frozen: bool = False
    ) -> None:
        self._module = module
        self._device = module.device
        self._where = module.device_name
        types = zip(names, module.input_types, strict=True)
        self._inputs = [(name, dtype, tuple(shape)) for name, (dtype, shape) in types]
        self._outputs = [(dtype, tuple(shape)) for dtype, shape in module.output_types]
        # Contents on a device are not looked at; without a promise each run prepares its own.
        self._weights = tuple(module.weights) if frozen else ()
        self._sets: dict[tuple[int, ...], _WeightSet] = {}
        self._told: set[str] = set()

    def __call__(self, arrays: Values, out: Object = None) -> list[Value]:
        if len(arrays) != len(self._inputs):
            raise BadInputError(f"expected {len(self._inputs)} arrays, got {len(arrays)}")
        given = [] if out is None else list(out) if isinstance(out, (tuple, list)) else [out]
        torch = sys.modules["torch"] if any(is_tensor(a) for a in (*arrays, *given)) else None
        stream = int(torch.cuda.current_stream(self._device).cuda_stream) if torch else 0
        inputs = [
            self._view(array, name, dtype, shape, stream, True)
            for array, (name, dtype, shape) in zip(arrays, self._inputs, strict=True)
        ]
        addresses = [view.address for view in inputs]
        prepared = None
        if self._weights:
            prepared = self._weight_set(arrays, inputs, addresses, stream)
        if out is None:
            given = [self._new(torch, dtype, shape) for dtype, shape in self._outputs]
        elif len(given) != len(self._outputs):
            raise BadInputError(
                f"out must hold {len(self._outputs)} arrays, one per result, not {len(given)}"
            )
        outputs = [
            self._view(array, out_name(i, len(given)), dtype, shape, stream, False)
            for i, (array, (dtype, shape)) in enumerate(zip(given, self._outputs, strict=True))
        ]
        if out is not None:
            read = [(v.address, v.bytes) for v in inputs]
            written = [(v.address, v.bytes) for v in outputs]
            names = [name for name, _, _ in self._inputs]
            refuse_overlaps(read, written, names, self._module.may_overwrite)
        self._module.run(addresses, [view.address for view in outputs], prepared, stream)
        return given

    def refresh(self) -> None:
        """Forgets what was computed from weights: the next call does it again."""
        self._sets.clear()

    def _new(self, torch: ModuleType | None, dtype: str, shape: tuple[int, ...]) -> Value:
        if torch is None:
            return _core.DeviceArray(self._device, dtype, list(shape))
        kind = getattr(torch, _TORCH_DTYPES[dtype])
        return torch.empty(shape, dtype=kind, device=f"cuda:{self._device}")

    def _view(
        self, value: Object, name: str, dtype: str, shape: tuple[int, ...], stream: int,
        read: bool,
    ) -> _View:  # fmt: skip
        """The memory of an argument; refused where it is not what the program takes."""
        if is_tensor(value):
            view = self._tensor_view(value, name, dtype, shape, read)
        elif isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            kind = BadInputError if isinstance(value, np.ndarray) else WrongTypeError
            raise kind(
                f"argument {name} is {_article(value)}; the program runs on {self._where}: give "
                f"a tensor there (torch.from_numpy(x).cuda({self._device})), or "
                "tessera.cuda.to_device(x)"
            )
        else:
            view = self._foreign_view(value, name, dtype, shape, stream)
        if view.address % _ALIGNMENT and view.bytes:
            raise BadInputError(
                f"argument {name} begins at an address that is no multiple of {_ALIGNMENT} bytes "
                "(a part of another array?); give it memory of its own, as x.clone() does"
            )
        return view

    def _tensor_view(
        self, tensor: torch.Tensor, name: str, dtype: str, shape: tuple[int, ...], read: bool
    ) -> _View:
        if tensor.device.type != "cuda" or tensor.device.index != self._device:
            raise BadInputError(
                f"argument {name} is on {tensor.device}; the program runs on {self._where}: give "
                f"{name}.to('cuda:{self._device}')"
            )
        kind = str(tensor.dtype).removeprefix("torch.")
        same = kind == _TORCH_DTYPES[dtype]
        require_type(f"argument {name}", dtype, shape, same, kind, tensor.shape)
        if str(tensor.layout) != "torch.strided":
            raise BadInputError(f"argument {name} is sparse ({tensor.layout}); give a dense tensor")
        if tensor.requires_grad and (not read or sys.modules["torch"].is_grad_enabled()):
            raise BadInputError(
                f"{name} requires a gradient, which the program does not compute; give "
                f"{name}.detach(), or call under torch.no_grad()"
            )
        if tensor.is_neg():  # a view of numbers whose signs are still to be changed
            tensor = tensor.resolve_neg()
        if not tensor.is_contiguous():
            if not read:
                raise BadInputError(
                    f"{name} must be contiguous (C order), but has gaps or another order"
                )
            self._tell_copy(name)
            tensor = tensor.contiguous()
        return _View(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)

    def _foreign_view(
        self, value: Value, name: str, dtype: str, shape: tuple[int, ...], stream: int
    ) -> _View:
        kind, device = value.__dlpack_device__()
        if kind not in _CUDA_DEVICES or device != self._device:
            place = f"cuda:{device}" if kind in _CUDA_DEVICES else "not on a CUDA device"
            raise BadInputError(
                f"argument {name} is {'on ' if kind in _CUDA_DEVICES else ''}{place}; the program "
                f"runs on {self._where}"
            )
        array = _core.ForeignArray(value.__dlpack__(stream=stream or _LEGACY_STREAM))
        same = array.dtype == dtype
        require_type(f"argument {name}", dtype, shape, same, array.dtype, array.shape)
        if not array.contiguous:
            raise BadInputError(
                f"argument {name} is not contiguous (C order); give it in memory of its own"
            )
        size = math.prod(shape) * to_numpy(dtype).itemsize
        return _View(array.address, size, array)

    def _tell_copy(self, name: str) -> None:
        if name in self._told:
            return
        self._told.add(name)
        warnings.warn(
            f"tessera: argument {name} is not contiguous and is copied in every call; give "
            f"{name}.contiguous()",
            RuntimeWarning,
            stacklevel=5,
        )

    def _weight_set(
        self, arrays: Values, inputs: Sequence[_View], addresses: list[int], stream: int
    ) -> _core.CudaWeights:
        """What was prepared from these weights, by the arrays' identity or memory."""
        key = tuple(id(arrays[i]) for i in self._weights)
        if (known := self._sets.get(key)) is not None:
            return known.prepared
        address = tuple(addresses[i] for i in self._weights)
        for known in self._sets.values():
            if known.address == address:
                return known.prepared
        while len(self._sets) >= _MOST_WEIGHT_SETS:
            del self._sets[next(iter(self._sets))]
        prepared = self._module.prepare(addresses, stream)
        kept = [arrays[i] for i in self._weights] + [inputs[i].owner for i in self._weights]
        self._sets[key] = _WeightSet(prepared, kept, address)
        return prepared


class Elsewhere:
    """Stands for a program whose device is not here: says so when it is called."""

    def __init__(self, arch: str, reason: str) -> None:
        self._message = (
            f"the program is for a GPU ({arch}) that is not here: {reason}; result.save('k.cu') "
            "writes its kernels"
        )

    def __call__(self, arrays: Values, out: Object = None) -> list[Value]:
        raise NotFoundError(self._message)


def _article(value: Object) -> str:
    return "a NumPy array" if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"
