"""Compiles the benchmark's Triton kernels for a GPU that need not be there.

`python -m tests.python.triton_compile [ARCH]` prints one line per kernel: its flags and the shared
memory it takes. Triton's interpreter accepts what its compiler does not.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench.cuda import triton_kernels as kernels

FLOATS = ("eps", "scale_log2")
PARTS = ("parts", "parts2", "parts_squares", "parts_low", "parts_max", "parts_sum")
NUMBERS = ("M", "N", "K", "L", "k_head", "k_key", "k_dim")


def compiled(kernel: Any, dtype: str, arch: int, warps: int = 4, **constants: Any) -> int:
    """Bytes of shared memory of a kernel for arguments of 16 bits."""
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in FLOATS:
            signature[name] = "fp32"
        elif name in NUMBERS:
            signature[name] = "i32"
        else:
            signature[name] = "*fp32" if name in PARTS else f"*{dtype}"
    places = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel, signature=signature, constexprs={places[n]: v for n, v in constants.items()},
        attrs={places[n]: [["tt.divisibility", 16]] for n, kind in signature.items()
               if kind.startswith("*") or n in ("N", "K", "L")})  # fmt: skip
    options = {"num_warps": warps, "num_stages": 3}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return int(made.metadata.shared)


def main(arch: int) -> None:
    for split in (1, 4):
        for norm, gain, gated, rank in ((True, True, False, 0), (False, False, True, 0),
                                        (False, False, False, 16)):  # fmt: skip
            flags = {"NORM": norm, "GATED": gated, "RANK": rank, "BM": 16, "BN": 32, "SPLIT": split}
            shared = compiled(kernels._linear, "bf16", arch, GAIN=gain, BK=128, **flags)
            print("linear", flags, shared)
            if split > 1:
                print("combine", compiled(kernels._linear_combine, "bf16", arch, **flags))
        for normalised in ("", "QK", "QV"):
            flags = {f"NORM_{n}": n in normalised for n in "QKV"}
            shared = compiled(
                kernels._attention, "fp16", arch, D=128, BM=16, BL=64, SPLIT=split, **flags
            )
            print("attention", flags, shared)
    print("combine", compiled(kernels._attention_combine, "bf16", arch, D=128, SPLIT=16))
    for form in kernels.NTRANS_FORMS.values():
        print("ntrans", compiled(kernels._ntrans, "bf16", arch, FORM=form, BN=4096))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
