"""What compiled programs leave to this process: PyTorch's operators, and nodes of ONNX models.

The core calls `version`, `problem` and `run`, and nothing is imported before a program asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Sequence

from tessera.errors import BadInputError, Error
from tessera.frontends.onnx.opaque import node_call
from tessera.options import package
from tessera.types import Fields, Memory, Object, Value, Values, to_numpy


def version(host: str) -> str:
    """What a host's results depend on, such as "torch 2.13.0"; empty where it is not installed."""
    package = "onnxruntime" if host == "onnx" else host
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
    return node_call(*text.split(" "))


@functools.cache
def torch_call(text: str) -> TorchCall:
    """The call that a pattern's `call torch` has become; raises BadInputError, ToolMissingError."""
    return TorchCall(**json.loads(text))


class TorchCall:
    """One registered operator of PyTorch with its arguments; {"operand": i} is the i-th tensor."""

    def __init__(self, op: str, args: Values, kwargs: Fields) -> None:
        self.name, self.args, self.kwargs = op, args, kwargs
        self.operator = torch_operator(op)

    def __call__(self, operands: Sequence[Memory], results: Sequence[Memory], threads: int) -> None:
        tensors = [_tensor_of(m) for m in operands]
        result = _tensor_of(results[0])
        args = [_filled(a, tensors) for a in self.args]
        kwargs = {key: _filled(value, tensors) for key, value in self.kwargs.items()}
        with _quietly(threads):
            try:
                made = self.operator(*args, **kwargs)
            except Exception as error:
                told = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0]
                raise BadInputError(f"torch's {self.name} failed: {told}") from None
            if made.dtype != result.dtype or made.shape != result.shape:
                raise BadInputError(
                    f"torch's {self.name} gives {made.dtype}{list(made.shape)}, not "
                    f"{result.dtype}{list(result.shape)}"
                )
            result.copy_(made)


def _tensor_of(memory: Memory) -> Value:
    import torch

    dtype = getattr(torch, to_numpy(memory[1]).name)
    return torch.frombuffer(memory[0], dtype=dtype).view(memory[2])


def _filled(value: Object, tensors: Values) -> Value:
    if isinstance(value, dict):
        return tensors[value["operand"]]
    return [_filled(v, tensors) for v in value] if isinstance(value, list) else value


def torch_operator(name: str) -> Value:
    """The registered operator NAMESPACE.OP[.OVERLOAD], a torch._ops.OpOverload.

    Raises BadInputError: there is none, it does not give just one tensor, it writes into its
    operands, or it draws random numbers; ToolMissingError without PyTorch.
    """
    torch = package("torch", f"{name} is run by PyTorch, which is not installed")
    space, operator, wanted = f"{name}.default".split(".")[:3]
    packet = getattr(getattr(torch.ops, space), operator, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise BadInputError(
            f"torch has no operator {space}.{operator}; one of your own is there once the module "
            "that registers it is imported (`tessera patterns check --import MODULE`)"
        )
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
