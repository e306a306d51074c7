"""What compiled programs leave to this process: PyTorch's operators, and nodes of ONNX models.

The core calls `version`, `problem` and `run`, on the thread that called the program. Nothing is
imported before a program asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.errors import BadInputError, Error, ToolMissingError
from tessera.types import to_numpy

# Memory that is valid for the time of a call, dtype and shape; row-major.
Memory = tuple[memoryview, str, tuple[int, ...]]
_PACKAGES = {"onnx": "onnxruntime", "torch": "torch"}


def version(host: str) -> str:
    """What a host's results depend on, such as "torch 2.13.0"; empty where it is not installed."""
    package = _PACKAGES[host]
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def problem(host: str, text: str) -> str:
    """Why a host cannot compute `text`; empty where it can."""
    try:
        _call_of(host, text)
    except Error as error:
        return error.message
    return ""


def run(
    host: str, text: str, operands: Sequence[Memory], results: Sequence[Memory], threads: int
) -> None:
    """Computes `text` of the operands into the memory of the results, on at most `threads`."""
    _call_of(host, text)(operands, results, threads)


def _call_of(host: str, text: str) -> Callable[[Sequence[Memory], Sequence[Memory], int], None]:
    if host == "torch":
        return torch_call(text)
    from tessera.frontends.onnx.opaque import node_call

    return node_call(*text.split(" "))


def array_of(memory: Memory) -> np.ndarray[Any, Any]:
    """NumPy's view of some memory."""
    data, dtype, shape = memory
    return np.frombuffer(data, to_numpy(dtype)).reshape(shape)


_TORCH_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64",
    "i32": "int32", "i8": "int8", "u8": "uint8", "bool": "bool",
}  # fmt: skip


@functools.cache
def torch_call(text: str) -> TorchCall:
    """The call that a pattern's `call torch` has become; raises BadInputError, ToolMissingError."""
    call = json.loads(text)
    return TorchCall(call["op"], call["args"], call["kwargs"])


class TorchCall:
    """One registered operator of PyTorch with its arguments; {"operand": i} is the i-th tensor."""

    def __init__(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            import torch
        except ImportError:
            raise ToolMissingError(f"{name} is run by PyTorch, which is not installed") from None
        self.name, self.args, self.kwargs = name, args, kwargs
        self.operator = torch_operator(name)
        self.out = _out_variant(self.operator)
        self.known: set[Any] = set()  # types of operands of which the result's type was seen
        self.dtypes = {short: getattr(torch, long) for short, long in _TORCH_NAMES.items()}

    def __call__(
        self, operands: Sequence[Memory], results: Sequence[Memory], threads: int
    ) -> None:
        import torch

        tensors = [torch.frombuffer(m, dtype=self.dtypes[d]).view(s) for m, d, s in operands]
        (memory, dtype, shape), *_ = results
        result = torch.frombuffer(memory, dtype=self.dtypes[dtype]).view(shape)
        args = [_filled(a, tensors) for a in self.args]
        kwargs = {key: _filled(value, tensors) for key, value in self.kwargs.items()}
        types = (dtype, *((d, s) for _, d, s in operands))
        with _quietly(threads):
            try:
                if self.out is not None and types in self.known:
                    self.out(*args, **kwargs, out=result)
                    return
                made = self.operator(*args, **kwargs)
                if not isinstance(made, torch.Tensor):
                    raise BadInputError(f"torch's {self.name} gives no tensor")
                if made.dtype != result.dtype or made.shape != result.shape:
                    raise BadInputError(
                        f"torch's {self.name} gives {made.dtype}{list(made.shape)}, not "
                        f"{result.dtype}{list(result.shape)}"
                    )
                result.copy_(made)
                self.known.add(types)
            except Error:
                raise
            except Exception as error:
                told = str(error).strip().split("\n")[0]
                raise BadInputError(
                    f"torch's {self.name} failed: {type(error).__name__}: {told}"
                ) from None


def _filled(value: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(value, dict):
        return tensors[value["operand"]]
    return [_filled(v, tensors) for v in value] if isinstance(value, list) else value


def torch_operator(name: str) -> Any:
    """The registered operator NAMESPACE.OP[.OVERLOAD], a torch._ops.OpOverload.

    Raises BadInputError: there is none, it does not give just one tensor, it writes into its
    operands, or it draws random numbers.
    """
    import torch

    space, operator, *overload = name.split(".")
    packet = getattr(getattr(torch.ops, space), operator, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise BadInputError(
            f"torch has no operator {space}.{operator}; one of your own is there once the module "
            "that registers it is imported (`tessera patterns check --import MODULE`)"
        )
    wanted = overload[0] if overload else "default"
    if wanted not in packet.overloads():
        known = ", ".join(f"{space}.{operator}.{o}" for o in packet.overloads())
        raise BadInputError(f"torch's {space}.{operator} has no overload '{wanted}'; say {known}")
    found = getattr(packet, wanted)
    schema = found._schema
    if [str(r.type) for r in schema.returns] != ["Tensor"]:
        raise BadInputError(f"torch's {name} does not give just one tensor: {schema}")
    if schema.is_mutable:
        raise BadInputError(f"torch's {name} writes into its operands: {schema}")
    if torch.Tag.nondeterministic_seeded in found.tags:
        raise BadInputError(f"torch's {name} draws random numbers")
    return found


def _out_variant(operator: Any) -> Any:
    """The overload that writes the same result into memory that is there, if it has one."""
    packet, schema = operator.overloadpacket, operator._schema
    given = [(a.name, str(a.type)) for a in schema.arguments]
    for name in ("out", f"{schema.overload_name}_out"):
        if name in packet.overloads():
            found = getattr(packet, name)
            if [(a.name, str(a.type)) for a in found._schema.arguments] == [
                *given, ("out", "Tensor")
            ]:  # fmt: skip
                return found
    return None


@contextlib.contextmanager
def _quietly(threads: int) -> Iterator[None]:
    """No gradients, nobody who watches or converts operators, and so many threads of PyTorch's."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    before = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._len_torch_dispatch_stack() > 0:
            stack.enter_context(_disable_current_modes())
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if before != threads:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if before != threads:
                torch.set_num_threads(before)
