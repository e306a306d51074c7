"""torch tensors as NumPy arrays of the same memory, and back; torch is never imported from here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tessera.errors import BadInputError


def torch_if_loaded() -> Any:
    """The module, if the program uses it."""
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor."""
    torch = torch_if_loaded()
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def from_tensor(tensor: Any) -> Any:
    """A NumPy array of the tensor's memory and strides; refused unless it is on the CPU."""
    if tensor.device.type != "cpu":
        raise BadInputError(
            f"a tensor is on {tensor.device}, and the program runs on the processor: call .cpu() "
            'first, or optimize with target="cuda"'
        )
    tensor = tensor.detach()
    if str(tensor.dtype) == "torch.bfloat16":
        import ml_dtypes

        return tensor.view(torch_if_loaded().int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_tensor(array: Any) -> Any:
    """A tensor that shares the array's memory."""
    torch = torch_if_loaded()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
