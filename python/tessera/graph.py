"""Programs and their builder: `Graph` and its block graphs.

NumPy's functions mean on their tensors what frontends/numpy.py says, so one set of rules serves
the builder and traced functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera import _core, ops
from tessera.errors import BadInputError, Error, UnsupportedError, UsageError
from tessera.files import write_text
from tessera.frontends import numpy as frontend
from tessera.tensor import Builder, Tensor, bad_input, user_location
from tessera.types import (
    Arguments,
    Array,
    Dim,
    DType,
    Function,
    Object,
    Record,
    Shape,
    Value,
    Values,
    check_shape,
    dtype_name,
    format_type,
    is_float,
    require_array,
)


class _NumpyBuilder(Builder):
    """A builder on whose tensors NumPy's functions append operators."""

    if TYPE_CHECKING:  # the methods of _FUNCTIONS

        def __getattr__(self, name: str) -> Function: ...

    apply_ufunc = staticmethod(frontend.apply_ufunc)
    apply_function = staticmethod(frontend.apply_function)
    array_attribute = staticmethod(frontend.array_attribute)
    item = staticmethod(frontend.item)
    with_item = staticmethod(frontend.with_item)


# The functions that every builder offers as methods, for code that prefers g.exp(x) to np.exp(x);
# their meaning is in ops/.
_FUNCTIONS = """
    abs add all any arccos arcsin arctan arctan2 astype broadcast_to ceil clip concat_matmul
    concatenate cos cosh cumsum diag diagonal div divide dot einsum equal erf erfc exp exp2
    expand_dims expm1 floor floor_divide gelu gelu_tanh greater greater_equal inner less
    less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or matmul max
    maximum mean min minimum mod moveaxis mul multiply negative norm not_equal outer pad pow
    ravel relu remainder repeat reshape rint round rsqrt sigmoid sign silu sin sinh slice split
    sqr sqrt square squeeze stack std sub subtract sum swapaxes take tan tanh tensordot tile
    trace transpose tril triu trunc var where
"""
for _name in _FUNCTIONS.split():
    setattr(_NumpyBuilder, _name, staticmethod(ops.function(_name)))


class Graph(_NumpyBuilder):
    """A tensor program; build it by hand, trace it from NumPy, or read it from `.ug` text.

    >>> g = Graph("scaled_product")
    >>> x = g.input("X", (16, 1024), "f32")
    >>> w = g.input("W", (1024, 64), "f32")
    >>> y = g.output((x @ w) * 0.5)
    >>> y.shape
    (16, 64)
    """

    def __init__(self, name: str = "g") -> None:
        super().__init__(_core.Graph(name))
        self._init_values()

    def _init_values(self) -> None:
        # Inputs whose values come with the program (a model's initialisers), by name.
        self.weights: dict[str, Array] = {}
        self.defaults: set[str] = set()  # of them, those that a model's callers may replace
        self.arrays: dict[str, Array] = {}  # that a function took from outside or made, likewise
        # Of a model: what its results are called, which may be inputs or the same one twice.
        self.output_names: list[str] = []
        # What gives opaque operators a meaning: (function, payload, arrays) → arrays.
        self.opaque: Callable[[str, str, list[Value]], list[Value]] | None = None
        # What an ONNX model computes behind its program, see frontends.onnx.opaque.Tail.
        self.tail: Value = None
        self.notes: list[str] = []  # what a front end has to say, a line each
        self.keeps_nan = False  # beside what the program itself asks for
        # Makes the program for given extents where that of a front end depends on them.
        self.rebind: Callable[[dict[str, int]], Graph] | None = None

    @property
    def asks_for_nan(self) -> bool:
        """Whether NaN, infinities or signs of zero are answers, which rewriting must keep."""
        return self.keeps_nan or self.core.asks_for_nan

    @classmethod
    def from_core(cls, core: _core.Graph) -> Graph:
        """Wraps a graph of the core without copying it."""
        graph = cls.__new__(cls)
        Builder.__init__(graph, core)
        graph._init_values()
        return graph

    def with_core(self, core: _core.Graph) -> Graph:
        """Another program of the same inputs, with the values that come with this one."""
        graph = Graph.from_core(core)
        graph.weights, graph.opaque, graph.tail = dict(self.weights), self.opaque, self.tail
        graph.notes, graph.output_names = list(self.notes), list(self.output_names)
        graph.defaults, graph.arrays = set(self.defaults), dict(self.arrays)
        graph.keeps_nan = self.keeps_nan
        return graph

    @classmethod
    def parse(cls, text: str, file: str = "<input>") -> Graph:
        """Reads the `.ug` text format; errors are BadInputError with file:line:col."""
        return cls.from_core(_core.parse(text, file))

    # --- building
    def input(
        self, name: str, shape: Sequence[Dim] | int, dtype: object = "f32", *, weight: bool = False
    ) -> Tensor:
        """Declares the program's next argument; an extent may be a symbol such as "N".

        A `weight` keeps its values from call to call: what depends on weights alone is computed
        and packed once per set of arrays, which the caller then does not change.
        """
        dims: Shape = (shape,) if isinstance(shape, int) else tuple(shape)
        where = f"input {name}"
        try:
            check_shape(dims, where)
            known = dtype_name(dtype)
            if any(self.core.tensor_name(i) == name for i in self.core.inputs):
                raise BadInputError(f"{where} is declared twice")
            tensor = Tensor(self, self.core.add_input(known, list(dims), name, weight))
            tensor.form = "array"
            return tensor
        except UnsupportedError as error:
            raise UnsupportedError(f"{where}: {error.message}", user_location()) from None
        except Error as error:
            raise self._located(error) from None

    def output(self, tensor: Tensor, name: str = "") -> Tensor:
        """Makes a tensor the program's next result."""
        if not isinstance(tensor, Tensor) or tensor.builder is not self:
            bad_input(f"output: {tensor!r} is not a tensor of this graph")
        if name:
            self.core.set_tensor_name(tensor.id, name)
        self.rebind = None  # it is another program now
        self.core.set_outputs([*self.core.outputs, tensor.id])
        return tensor

    def kernel(
        self, inputs: Sequence[Tensor], grid: Sequence[int] | int, loops: Sequence[int] | int = ()
    ) -> Block:
        """Opens a block graph; leaving the `with` block appends it as one kernel.

        >>> g = Graph("double")
        >>> x = g.input("X", (64, 32), "f32")
        >>> with g.kernel([x], grid=4) as k:
        ...     k.save(k.iter(x, imap=[0]) * 2.0, omap=[0])
        >>> g.output(k.outputs[0]).shape
        (64, 32)
        """
        sizes = ([n] if isinstance(n, int) else list(n) for n in (grid, loops))
        return Block(self, inputs, *sizes)

    # --- reading
    @property
    def name(self) -> str:
        return self.core.name

    @property
    def inputs(self) -> list[Tensor]:
        return [Tensor(self, i) for i in self.core.inputs]

    @property
    def outputs(self) -> list[Tensor]:
        return [Tensor(self, i) for i in self.core.outputs]

    @property
    def ops(self) -> list[Record]:
        """The operators as plain records: op, attrs, inputs, results, body."""
        return self.core.ops()

    def input_types(self) -> dict[str, tuple[DType, tuple[Any, ...]]]:
        """Name, dtype and shape of every argument, in order."""
        return {t.name or f"arg{i}": (t.dtype, t.shape) for i, t in enumerate(self.inputs)}

    def __str__(self) -> str:
        return str(self.core)

    def __repr__(self) -> str:
        args = ", ".join(f"{n}: {format_type(d, s)}" for n, (d, s) in self.input_types().items())
        return f"<Graph {self.name}({args}), {self.core.num_ops} operators>"

    def __eq__(self, other: object) -> bool:
        """Same structure: operators, attributes, types and outputs; names do not matter."""
        return isinstance(other, Graph) and self.core == other.core

    def __hash__(self) -> int:
        return hash(self.core)

    def __reduce__(self) -> Arguments:
        return Graph.parse, (str(self), self.name)  # pickled as text

    def validate(self) -> None:
        """Checks the whole program; raises BadInputError naming the operator and the rule."""
        self.core.validate()

    def run(self, *arrays: Object, exact: bool = False) -> list[Array]:
        """Interprets the program: in its own dtypes, or with `exact` all floats in f64.

        >>> g = Graph("double")
        >>> y = g.output(g.input("x", (3,)) * 2.0)
        >>> g.run(np.arange(3, dtype=np.float32))
        [array([0., 2., 4.], dtype=float32)]
        """
        types = list(self.input_types().items())
        given, arrays = len(arrays), tuple(self.with_weights(arrays))
        if len(arrays) != len(types):
            raise BadInputError(f"expected {len(types) - len(self.weights)} arrays, got {given}")
        inputs = []
        for array, (name, (dtype, shape)) in zip(arrays, types, strict=True):
            array = np.asanyarray(array)
            require_array(array, f"argument {name}", dtype, shape)
            wide = np.float64 if is_float(dtype) else np.int64
            inputs.append(np.asarray(array, wide, order="C"))  # ascontiguousarray adds an axis
        outputs = _core.evaluate(self.core, inputs, exact, self.opaque)
        if exact:
            return outputs
        with np.errstate(over="ignore", invalid="ignore"):
            return [
                np.asarray(a).astype(t.dtype) for a, t in zip(outputs, self.outputs, strict=True)
            ]

    def with_weights(self, arrays: Values) -> Values:
        """Arrays for all inputs: the given ones, and in between the weights that are known."""
        names = list(self.input_types()) if self.weights else []
        if not self.weights or len(arrays) != len(names) - len(self.weights):
            return arrays
        given = iter(arrays)
        return [self.weights[n] if n in self.weights else next(given) for n in names]

    def bind(self, **extents: int) -> Graph:
        """The program with symbols replaced by extents: `g.bind(N=128)`; of a model, as it is
        loaded with them."""
        if self.rebind is not None:
            return self.rebind(extents)
        return self.with_core(self.core.bind_symbols(list(extents.items())))

    def save(self, path: str | Path) -> None:
        """Writes the `.ug` text, all or nothing."""
        write_text(Path(path), str(self))


class Block(_NumpyBuilder):
    """A block graph under construction (Mirage §2): what one block of the grid computes."""

    def __init__(
        self, parent: Graph, inputs: Sequence[Tensor], grid: list[int], loops: list[int]
    ) -> None:
        try:
            super().__init__(_core.Graph.block(grid, loops))
        except Error as error:
            raise self._located(error) from None
        self._parent = parent
        self._saved: list[tuple[Tensor, str]] = []
        self._results: list[Tensor] | None = None
        self._inner: dict[int, Tensor] = {}
        self._arguments: list[Tensor] = []
        for t in inputs:
            self.add_argument(t)

    def add_argument(self, tensor: Tensor) -> None:
        """Makes a tensor of the enclosing graph one more argument of the kernel."""
        if tensor.builder is not self._parent:
            bad_input(f"kernel: {tensor!r} is not a tensor of the enclosing graph")
        if tensor.id not in self._inner:
            self._arguments.append(tensor)
            dtype, shape = self._parent.core.type(tensor.id)
            self._inner[tensor.id] = Tensor(self, self.core.add_input(dtype, shape, tensor.name))

    def iter(
        self, tensor: Tensor, imap: Sequence[int | None] = (), fmap: Sequence[int | None] = ()
    ) -> Tensor:
        """The tile of an argument: per grid dimension and loop the axis it splits, or None."""
        inner = self._inner.get(tensor.id) if tensor.builder is self._parent else None
        if inner is None:
            bad_input(f"iter: {tensor!r} is not among the kernel's inputs")
        return self.emit("iter", [inner], {"imap": _map(imap), "fmap": _map(fmap)}, tensor.name)

    def accum(
        self,
        tensor: Tensor,
        kind: str = "sum",
        loops: Sequence[int] | None = None,
        axis: int | None = None,
    ) -> Tensor:
        """Folds a loop value over iterations: sum, max, min, or concat along `axis`."""
        attrs: Record = {"kind": kind, "loops": self._loops(loops)}
        if axis is not None:
            attrs["axis"] = axis
        return self.emit("accum", [tensor], attrs)

    def accum_rescale(
        self, value: Tensor, exponent: Tensor, loops: Sequence[int] | None = None
    ) -> Tensor:
        """Σᵢ vᵢ·exp(mᵢ − maxⱼ mⱼ), the accumulator of online softmax."""
        return self.emit("accum_rescale", [value, exponent], {"loops": self._loops(loops)})

    def _loops(self, loops: Sequence[int] | None) -> list[int]:
        return list(range(len(self.core.loops))) if loops is None else list(loops)

    def save(
        self,
        tensor: Tensor,
        omap: Sequence[int | None] = (),
        fmap: Sequence[int | None] = (),
        shape: Sequence[Dim] | None = None,
        name: str = "",
    ) -> None:
        """Writes a tile to the kernel's next result; its shape is given or follows from `omap`."""
        dims: list[Dim] = list(tensor.shape)
        if shape is not None:
            dims = list(shape)
        else:
            for axes, parts in ((omap, self.core.grid), (fmap, self.core.loops)):
                for axis, n in zip(axes, parts, strict=False):
                    if axis is not None and axis >= 0:
                        if axis >= len(dims) or isinstance(dims[axis], str):
                            bad_input(f"save: axis {axis} of {tensor!r} cannot be split")
                        dims[axis] *= n
        attrs = {"omap": _map(omap), "fmap": _map(fmap), "type": (dtype_name(tensor.dtype), dims)}
        self._saved.append((self.emit("save", [tensor], attrs), name))

    @property
    def outputs(self) -> list[Tensor]:
        """The kernel's results in the enclosing graph, after the `with` block."""
        if self._results is None:
            raise UsageError("a kernel's outputs exist after its `with` block", user_location())
        return self._results

    def __enter__(self) -> Block:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Object) -> None:
        if kind is not None:
            return
        self.core.set_outputs([t.id for t, _ in self._saved])
        arguments, names = [t.id for t in self._arguments], [name for _, name in self._saved]
        try:
            ids = self._parent.core.add_graph_op("kernel", arguments, self.core, names)
        except Error as failed:
            raise self._located(failed) from None
        self._results = [Tensor(self._parent, i) for i in ids]


def _map(axes: Sequence[int | None]) -> list[int]:
    return [-1 if axis is None else axis for axis in axes]
