"""torch tensors as NumPy arrays of the same memory, and back; torch is never imported from here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from tessera.errors import BadInputError
from tessera.types import Array, Object

if TYPE_CHECKING:
    import torch


def is_tensor(value: Object) -> bool:
    """Whether this is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def from_tensor(tensor: torch.Tensor) -> Array:
    """A NumPy array of the tensor's memory and strides; refused unless it is on the CPU."""
    if tensor.device.type != "cpu":
        raise BadInputError(
            f"a tensor is on {tensor.device}, and the program runs on the processor: call .cpu() "
            'first, or optimize with target="cuda"'
        )
    tensor = tensor.detach()
    if str(tensor.dtype) == "torch.bfloat16":
        import ml_dtypes

        words: Array = tensor.view(sys.modules["torch"].int16).numpy()
        return words.view(ml_dtypes.bfloat16)
    array: Array = tensor.numpy()
    return array


def to_tensor(array: Array) -> torch.Tensor:
    """A tensor that shares the array's memory."""
    torch = sys.modules["torch"]
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
