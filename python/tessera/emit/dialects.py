"""JAX and PyTorch: what they spell otherwise than NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import ml_dtypes
import numpy as np

from tessera.emit.node import Node
from tessera.emit.spell import MUL, Code, Spelling
from tessera.types import DType, dtype_name, is_float


class _Fused(Spelling):
    """What a compiler fuses, so that products are summed as they are written."""

    native = frozenset({"rsqrt", "sigmoid", "silu", "relu", "gelu", "gelu_tanh", "erf", "erfc"})

    def dtype(self, dtype: DType) -> str:
        bf16 = dtype_name(dtype) == "bf16"
        return f"{self.module}.bfloat16" if bf16 else super().dtype(dtype)

    def _matrix_dtype(self, node: Node, code: Code) -> Code:
        return code

    def _dot(self, node: Node, a: Code, b: Code) -> Code:
        return Code(f"{a.at(MUL)} @ {b.at(MUL + 1)}", MUL)


class JaxSpelling(_Fused):
    """jax.numpy, which XLA fuses."""

    flavour = "jax"
    module = "jnp"
    header = "import jax.numpy as jnp"
    wide = frozenset({"import jax", 'jax.config.update("jax_enable_x64", True)'})
    native = _Fused.native | {"mod", "sign"}
    forms = Spelling.forms | {
        "rsqrt": "jax.lax.rsqrt({0})", "erf": "jax.scipy.special.erf({0})",
        "erfc": "jax.scipy.special.erfc({0})",
        "gelu": "jax.nn.gelu({0}, approximate=False)", "sigmoid": "jax.nn.sigmoid({0})",
        "gelu_tanh": "jax.nn.gelu({0}, approximate=True)", "silu": "jax.nn.silu({0})",
        "relu": "jax.nn.relu({0})",
    }  # fmt: skip

    def _formed(self, node: Node, form: str, *args: Code) -> Code:
        """JAX casts floats to the nearest integer of a type, NumPy to the low bits of an i32."""
        if node.op == "cast" and is_float(node.args[0].dtype) and node.dtype.kind in "iu":
            bits = max(32, 8 * node.dtype.itemsize)
            self.notes.add(f"JAX casts floats beyond int{bits} to its ends and NaN to 0")
            form = form if node.dtype.itemsize > 1 else form.replace("(", "(jnp.int32).astype(")
        return super()._formed(node, form, *args)

    def places(self, indices: Sequence[int]) -> str:
        return f"jnp.array({indices})"


class TorchSpelling(_Fused):
    """PyTorch, which its compiler fuses."""

    flavour = "torch"
    module = "torch"
    header = "import torch"
    axis = "dim"
    keepdims = "keepdim"
    functions = Spelling.functions | {f: f for f in ("rsqrt", "sigmoid", "relu", "round")}
    reductions: ClassVar[dict[str, str]] = {"reduce_max": "amax", "reduce_min": "amin"}
    forms = Spelling.forms | {
        "copy": "{x}.clone()", "cast": "{x}.to({dtype})", "erf": "torch.erf({0})",
        "erfc": "torch.erfc({0})",
        "silu": "torch.nn.functional.silu({0})", "gelu": "torch.nn.functional.gelu({0})",
        "gelu_tanh": 'torch.nn.functional.gelu({0}, approximate="tanh")',
    }  # fmt: skip

    def dtype(self, dtype: DType) -> str:
        return "torch.bool" if dtype == np.bool_ else super().dtype(dtype)

    def number(self, value: Fraction | float, dtype: DType) -> str:
        """PyTorch refuses what is beyond a dtype's range, and only rounds to its ends."""
        if isinstance(value, Fraction) and is_float(dtype):
            most = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
            with np.errstate(over="ignore"):
                rounded = float(np.float64(value).astype(dtype))
            if abs(rounded) >= most:
                value = Fraction(rounded) if abs(rounded) == most else rounded
        return super().number(value, dtype)

    def _function(self, node: Node, *args: Code) -> Code:
        """PyTorch's functions take no numbers."""
        tensors = [self._tensor(code.text, node.dtype) if a.is_literal else code
                   for a, code in zip(node.args, args, strict=True)]  # fmt: skip
        return super()._function(node, *tensors)

    def typed(self, dtype: DType) -> str:
        return f"dtype={self.dtype(dtype)}"

    def _tensor(self, text: str, dtype: DType) -> Code:
        return self.call("tensor", text, self.typed(dtype))

    def _full(self, node: Node) -> Code:
        value = self.number(node.attrs["value"], node.dtype)
        return super()._full(node) if node.shape else self._tensor(value, node.dtype)

    def _max(self, node: Node, x: Code, y: Code) -> Code:
        bound = "min" if node.op == "max" else "max"  # a literal is the other side's bound
        for literal, other, text in zip(node.args, (y, x), (x, y), strict=True):
            if literal.is_literal and is_float(node.dtype):
                return self.call("clamp", other.text, f"{bound}={text.text}")
        return self._function(node, x, y)

    _min = _max

    def _trace(self, node: Node, x: Code) -> Code:
        if node.attrs["k"] == 0:
            return self.call("trace", x.text)
        return self.method(self.method(x, "diagonal", str(node.attrs["k"])), "sum")

    def _index(self, node: Node, x: Code) -> Code:
        items = list(node.attrs["items"])
        axes = []
        kept = 0
        for n, item in enumerate(items):  # PyTorch has no negative steps
            if isinstance(item, slice) and item.step == -1:
                axes.append(kept)
                items[n] = slice(None)
            kept += not isinstance(item, int)
        code = super()._index(Node("index", (), node.dtype, node.shape, {"items": items}), x)
        return self.call("flip", code.text, f"dims={tuple(axes)}") if axes else code

    pads = ("nn.functional.pad", "value")

    def _widths(self, pairs: Sequence[tuple[int, int]]) -> str:
        return str([n for pair in reversed(pairs) for n in pair])


SPELLINGS: dict[str, type[Spelling]] = {
    s.flavour: s for s in (Spelling, JaxSpelling, TorchSpelling)
}
