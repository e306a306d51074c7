"""The graph builder in Mirage's manner: `import tessera.mirage as mi`, and a script moves over.

The names are those of Mirage's Python interface (OSDI'25); what they build is an ordinary
`tessera.Graph`, so everything else works on it too. docs/mirage.md shows a script before and after.

>>> graph = new_kernel_graph()
>>> X = graph.new_input(dims=(4, 64), dtype=float32)
>>> W = graph.new_input(dims=(64, 32), dtype=float32)
>>> graph.mark_output(graph.matmul(graph.rms_norm(X, normalized_shape=(64,)), W))
>>> fast = graph.superoptimize(budget=5)
>>> (O,) = fast(inputs=[np.ones((4, 64), np.float32), np.ones((64, 32), np.float32)])
>>> O.shape
(4, 32)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from tessera.api import superoptimize
from tessera.errors import BadInputError, UsageError
from tessera.graph import Block, Graph
from tessera.options import Options
from tessera.result import Result
from tessera.tensor import Tensor, bad_input, user_location
from tessera.torch_arrays import from_tensor, is_tensor, to_tensor
from tessera.types import Object, Value, Values

float16, bfloat16, float32 = "f16", "bf16", "f32"

# What Mirage's superoptimize takes to steer or to cache its search; ours needs none of it.
_NOT_NEEDED = frozenset(
    (
        "imaps", "omaps", "griddims", "blockdims", "fmaps", "franges", "verbose", "config",
        "warmup_iters", "profile_iters", "previous_checkpoint", "save_codes",
        "is_formal_verified", "use_graph_dataset", "use_cached_graphs", "use_symbolic_search",
        "use_auto_tuner",
    )
)  # fmt: skip


def _operator(name: str) -> Callable[..., Tensor]:
    """An operator that is called otherwise here."""
    return lambda self, *operands: self._call(name, *operands)


class _Ops:
    """The operators that kernel graphs and block graphs share."""

    builder: Graph | Block

    matmul, add, sub, pow = map(_operator, ("matmul", "add", "subtract", "pow"))
    mul, div, clamp = map(_operator, ("multiply", "divide", "clip"))
    exp, silu, gelu, relu = map(_operator, ("exp", "silu", "gelu", "relu"))
    sqrt, square = map(_operator, ("sqrt", "square"))

    def reduction(self, A: Tensor, dim: int) -> Tensor:
        """The sum along one axis, which stays with extent 1."""
        return self._call("sum", A, axis=dim, keepdims=True)

    def rms_norm(
        self, A: Tensor, normalized_shape: Sequence[int] | None = None, eps: float = 0.0
    ) -> Tensor:
        """x / sqrt(mean(x²) + eps) over the last axis; Mirage has no eps."""
        if normalized_shape is not None and tuple(normalized_shape) != A.shape[-1:]:
            bad_input(
                f"rms_norm normalises the last axis of {A!r}; normalized_shape is "
                f"{tuple(normalized_shape)}"
            )
        mean = self._call("mean", A * A, axis=-1, keepdims=True)
        return self._call("divide", A, self._call("sqrt", mean + eps if eps else mean))

    def _call(self, name: str, *args: Object, **kwargs: Object) -> Tensor:
        result: Tensor = getattr(self.builder, name)(*args, **kwargs)
        return result


class KernelGraph(_Ops):
    """Mirage's KNGraph: a tensor program under construction."""

    def __init__(self, name: str = "graph") -> None:
        self.graph = Graph(name)
        self.builder = self.graph

    def new_input(
        self,
        dims: Sequence[int],
        strides: Sequence[int] | None = None,
        dtype: object = float16,
        name: str = "",
        weight: bool = False,
    ) -> Tensor:
        """The next argument. A `weight` keeps its values from call to call (not in Mirage)."""
        dims = tuple(dims)
        packed = tuple(int(np.prod(dims[i + 1 :])) for i in range(len(dims)))
        if strides is not None and tuple(strides) != packed:
            raise UsageError(
                f"new_input: arrays are row-major here, so leave out strides={tuple(strides)} and "
                "transpose in the program or pass np.ascontiguousarray(x)",
                user_location(),
            )
        name = name or f"in{len(self.graph.inputs)}"
        return self.graph.input(name, dims, dtype, weight=weight)

    def mark_output(self, A: Tensor, strides: Sequence[int] | None = None) -> None:
        self.graph.output(A)

    def customized(self, inputs: Sequence[Tensor], bgraph: BlockGraph) -> list[Tensor]:
        """Appends a kernel written by hand."""
        return bgraph.close(self.graph, inputs)

    def superoptimize(
        self, *, backend: str = "cpu", options: Options | None = None, **overrides: Value
    ) -> Optimized:
        """Searches, proves, compiles, measures; options are those of `tessera.Options`.

        Arguments that only steer Mirage's own search are accepted and do nothing.
        """
        ignored = sorted(_NOT_NEEDED & set(overrides))
        if ignored:
            warnings.warn(
                f"superoptimize: {', '.join(ignored)} not needed here and ignored", stacklevel=2
            )
        if backend != "cpu":
            raise UsageError(
                f"superoptimize: there is no backend '{backend}' yet, only cpu", user_location()
            )
        kept = {k: v for k, v in overrides.items() if k not in _NOT_NEEDED}
        return Optimized(superoptimize(self.graph, options=options, **kept))

    def __call__(self, inputs: Values) -> list[Value]:
        """Runs the program as it stands, by the reference interpreter."""
        return _run(lambda arrays: self.graph.run(*arrays), inputs)


class BlockGraph(_Ops):
    """Mirage's TBGraph: what one block of the grid computes, with at most one loop."""

    def __init__(
        self,
        grid_dim: Sequence[int],
        block_dim: Sequence[int] | None = None,
        forloop_range: int = 1,
        reduction_dimx: int = 1,
    ) -> None:
        del block_dim, reduction_dimx  # threads of a GPU block are the back end's business
        grid = [int(n) for n in grid_dim]
        while len(grid) > 1 and grid[-1] == 1:
            grid.pop()
        self._grid, self._range = grid, forloop_range
        self._block: Block | None = None
        self._inputs: list[Tensor] = []

    @property
    def builder(self) -> Block:  # type: ignore[override]
        if self._block is None:
            raise UsageError("declare the block's inputs first: new_input(…)", user_location())
        return self._block

    def new_input(self, dtensor: Tensor, input_map: Sequence[int], forloop_dim: int = -1) -> Tensor:
        """The tile of a tensor: the axis that each grid dimension splits, and the loop."""
        if self._block is None:
            parent = dtensor.builder
            if not isinstance(parent, Graph):
                bad_input(f"new_input: {dtensor!r} is not a tensor of a kernel graph")
            loops = [self._range] if self._range > 1 else []
            self._block = Block(parent, [], self._grid, loops)
        self._block.add_argument(dtensor)
        self._inputs.append(dtensor)
        fmap = [forloop_dim] if self._range > 1 else []
        return self._block.iter(dtensor, imap=self._map(input_map), fmap=fmap)

    def new_output(self, stensor: Tensor, output_map: Sequence[int], forloop_dim: int = -1) -> None:
        """Writes a tile into the kernel's next result."""
        fmap = [forloop_dim] if self._range > 1 else []
        self.builder.save(stensor, omap=self._map(output_map), fmap=fmap)

    def forloop_accum(self, A: Tensor, acc: str | None = None) -> Tensor:
        """Folds a value over the loop: None adds tiles, "sum" also its last axis, "mean", "rms"."""
        if self._range == 1:
            bad_input("forloop_accum needs a loop: forloop_range > 1")
        block = self.builder
        if acc is None:
            return block.accum(A)
        count = int(A.shape[-1]) * self._range
        if acc == "sum":
            return block.accum(self.reduction(A, A.ndim - 1))
        if acc == "mean":
            return self._call("divide", block.accum(self.reduction(A, A.ndim - 1)), count)
        if acc == "rms":
            squares = block.accum(self.reduction(self.square(A), A.ndim - 1))
            return self.sqrt(self._call("divide", squares, count))
        raise UsageError(f"forloop_accum: '{acc}' is not None, sum, mean or rms", user_location())

    def _map(self, axes: Sequence[int]) -> list[int]:
        return [int(a) for a in axes][: len(self._grid)]

    def close(self, parent: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Appends the kernel to its graph."""
        block = self.builder
        if {t.id for t in inputs} != {t.id for t in self._inputs}:
            raise BadInputError(
                "customized: the inputs given are not those that the block graph declared",
                user_location(),
            )
        with block:
            pass
        return block.outputs


class Optimized:
    """What `superoptimize` returns: call it with `inputs=[…]`, get the outputs as a list."""

    def __init__(self, result: Result) -> None:
        self.result = result  # certificate, source, candidates, report, …

    def __call__(self, inputs: Values, **unused: Object) -> list[Value]:
        """NumPy arrays give NumPy arrays, torch tensors (on the CPU) torch tensors."""

        def run(arrays: Values) -> list[Value]:
            outputs = self.result(*arrays)
            return list(outputs) if isinstance(outputs, tuple) else [outputs]

        return _run(run, inputs)

    def __repr__(self) -> str:
        return repr(self.result)


def _run(function: Callable[[Values], list[Value]], inputs: Values) -> list[Value]:
    if not any(is_tensor(x) for x in inputs):
        return function(inputs)
    arrays = [from_tensor(x.contiguous()) if is_tensor(x) else x for x in inputs]
    return [to_tensor(y) for y in function(arrays)]


# An empty program, and an empty block graph for `graph.customized([inputs], block_graph)`.
new_kernel_graph, new_threadblock_graph = KernelGraph, BlockGraph

__all__ = [
    "BlockGraph", "KernelGraph", "Optimized", "bfloat16", "float16", "float32",
    "new_kernel_graph", "new_threadblock_graph",
]  # fmt: skip
