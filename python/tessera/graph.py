"""Programs and their builder: `Graph`, its block graphs, and `Tensor` handles with NumPy's manners.

A Tensor knows shape and dtype but holds no data. NumPy functions accept it (frontends/numpy.py),
so one set of rules serves the builder and traced functions.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tessera import _core
from tessera.errors import BadInputError, Error, Location, UnsupportedError, UsageError
from tessera.types import Dim, Shape, check_shape, dtype_name, format_type, is_float, to_numpy

if TYPE_CHECKING:
    from types import FrameType, TracebackType

Scalar = bool | int | float | np.generic
_PACKAGE = str(Path(__file__).parent)
_NUMPY = str(Path(np.__file__).parent)


def user_location() -> Location | None:
    """The line of the user's own source that is being executed, outside Tessera and NumPy."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_PACKAGE, _NUMPY, "<frozen", "<__array_function__")):
            return Location(file, frame.f_lineno)
        frame = frame.f_back
    return None


def unsupported(message: str) -> NoReturn:
    """Raises UnsupportedError at the user's line."""
    raise UnsupportedError(message, user_location())


def bad_input(message: str) -> NoReturn:
    """Raises BadInputError at the user's line."""
    raise BadInputError(message, user_location())


def _operator(
    ufunc: Callable[..., Any],
) -> tuple[Callable[[Tensor, Any], Tensor], Callable[[Tensor, Any], Tensor]]:
    """A Python operator and its reflection, as NumPy has them on arrays."""

    def forward(self: Tensor, other: Any) -> Tensor:
        return ufunc(self, other)  # type: ignore[no-any-return]

    def reflected(self: Tensor, other: Any) -> Tensor:
        return ufunc(other, self)  # type: ignore[no-any-return]

    return forward, reflected


def _unary_operator(ufunc: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """The same of one operand."""

    def operator(self: Tensor) -> Tensor:
        return ufunc(self)  # type: ignore[no-any-return]

    return operator


def _in_place_operator(ufunc: Callable[..., Any]) -> Callable[[Tensor, Any], Tensor]:
    """`x += y`: of an array the memory is written, a scalar is replaced."""

    def operator(self: Tensor, other: Any) -> Tensor:
        result: Tensor = ufunc(self, other)
        if self.builder.numpy_dtypes and not self.is_array:
            return result
        if self.root is not None and is_stored_back():
            return result  # y[k] += v, which goes on as y[k] = this
        return self.overwrite(result)

    return operator


def is_stored_back() -> bool:
    """Whether the traced function's current instruction is that of `y[k] += v`."""
    frame = sys._getframe(2)
    following = False
    for instruction in dis.get_instructions(frame.f_code):
        if following and not instruction.opname.startswith(("SWAP", "ROT", "CACHE")):
            return instruction.opname in ("STORE_SUBSCR", "STORE_SLICE")
        following = following or instruction.offset == frame.f_lasti
    return False


class Tensor:
    """A value of a graph under construction: shape and dtype, no data.

    `weak`: stands for a Python float (f64 of no axes), which takes the dtype of what it meets; a
    traced function has it as a Number (frontends/number.py).
    `views`: of an array that the traced function made itself, those that share its memory; it may
    be written to while none of them is alive. None for arguments and for views.
    `form`: what NumPy has here if there are no axes: a "scalar", an "array", or Python's "bool".
    """

    __slots__ = ("__weakref__", "builder", "form", "id", "root", "views", "weak")
    __array_priority__ = 1000

    def __init__(self, builder: Builder, id: int) -> None:
        self.builder = builder
        self.id = id
        self.weak = False
        self.form = "scalar"
        self.views: list[weakref.ref[Tensor]] | None = None
        self.root: Tensor | None = None  # whose memory this shares; None: unknown, or its own

    # --- facts
    @property
    def is_input(self) -> bool:
        """Whether it is an argument of the program."""
        return self.id in self.builder.core.inputs

    @property
    def is_array(self) -> bool:
        """Whether NumPy has an array here, and not a scalar."""
        return self.ndim > 0 or self.form == "array"

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What a traced function's `isinstance` sees: the type that NumPy would have here."""
        if not self.builder.numpy_dtypes:
            return Tensor
        if self.weak:
            return float
        if self.form == "bool" and self.ndim == 0:
            return bool
        return np.ndarray if self.is_array else self.dtype.type

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.builder.core.type(self.id)[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return to_numpy(self.builder.core.type(self.id)[0])

    @property
    def name(self) -> str:
        if self._is_asked():
            raise AttributeError("'numpy.ndarray' object has no attribute 'name'")
        return self.builder.core.tensor_name(self.id)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def _is_asked(self) -> bool:
        """Whether a traced function calls the caller."""
        caller = sys._getframe(2).f_code.co_filename
        return self.builder.numpy_dtypes and not caller.startswith((_PACKAGE, _NUMPY))

    def __hash__(self) -> int:
        if self._is_asked():
            if self.is_array:
                raise TypeError("unhashable type: 'numpy.ndarray'")
            self._needs_values()
        return object.__hash__(self)

    def __repr__(self) -> str:
        if self._is_asked():
            self._needs_values()
        name = f"{self.name}: " if self.name else ""
        return f"<Tensor {name}{format_type(self.dtype, self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # --- what needs data that is not there
    def __bool__(self) -> bool:
        unsupported(
            "this branches on the value of an array, but a program is traced for all values at "
            "once; use np.where(condition, a, b) instead of if, while, and, or, not"
        )

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        unsupported(
            "this needs the values of a traced array, where only shape and dtype are known; to "
            "pick from an array of outside, write np.take(table, x, axis=0) instead of table[x]"
        )

    def _needs_values(self, *args: object) -> Any:
        unsupported("this needs the value of a traced array, where only shape and dtype are known")

    __float__ = __int__ = __complex__ = __index__ = __round__ = __trunc__ = _needs_values
    __divmod__ = __rdivmod__ = __floor__ = __ceil__ = __contains__ = __delitem__ = _needs_values
    __str__ = __format__ = __bytes__ = __copy__ = __deepcopy__ = __reduce_ex__ = _needs_values
    item = tolist = tobytes = _needs_values

    # --- writing, which gives the name of the array another value
    def is_view_of(self, other: Tensor) -> None:
        """Notes that this shares memory with another tensor."""
        root = other if other.root is None else other.root
        self.root = root
        if root.views is not None:
            root.views = [r for r in root.views if r() is not None] + [weakref.ref(self)]

    def overwrite(self, value: Tensor) -> Tensor:
        """Takes another value of the same shape, converted as NumPy's in-place operators do."""
        if self.views is None or any(r() is not None for r in self.views):
            self._in_place()
        if value.shape != self.shape or not np.can_cast(value.dtype, self.dtype, "same_kind"):
            self._in_place()
        from tessera.ops.operands import cast

        self.id = cast(value, self.dtype).id
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        from tessera.frontends.number import bare
        from tessera.ops.index import setitem

        if self.views is None:
            self._in_place()
        self.overwrite(setitem(self, key, bare(value)))

    def fill(self, value: Any) -> None:
        self[...] = value

    def _in_place(self, *args: object) -> Any:
        unsupported(
            "this writes into an array in place that is an argument or that others share, which a "
            "traced program cannot express; write x = x + y instead of x += y, and np.where or "
            "np.concatenate for parts"
        )

    sort = _in_place
    __iadd__, __isub__ = _in_place_operator(np.add), _in_place_operator(np.subtract)
    __imul__, __itruediv__ = _in_place_operator(np.multiply), _in_place_operator(np.true_divide)
    __imatmul__, __ipow__ = _in_place_operator(np.matmul), _in_place_operator(np.power)
    __ifloordiv__, __imod__ = _in_place_operator(np.floor_divide), _in_place_operator(np.remainder)
    __iand__, __ior__ = _in_place_operator(np.bitwise_and), _in_place_operator(np.bitwise_or)
    __ixor__ = _in_place_operator(np.bitwise_xor)

    # --- NumPy's protocols
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **kwargs: Any) -> Any:
        from tessera.frontends import numpy as frontend

        return frontend.apply_ufunc(ufunc, method, args, kwargs)

    def __array_function__(
        self, function: Callable[..., Any], types: object, args: Any, kwargs: Any
    ) -> Any:
        from tessera.frontends import numpy as frontend

        return frontend.apply_function(function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        from tessera.frontends import numpy as frontend

        return frontend.array_attribute(self, name)

    # --- Python's operators are NumPy's ufuncs
    __add__, __radd__ = _operator(np.add)
    __sub__, __rsub__ = _operator(np.subtract)
    __mul__, __rmul__ = _operator(np.multiply)
    __truediv__, __rtruediv__ = _operator(np.true_divide)
    __floordiv__, __rfloordiv__ = _operator(np.floor_divide)
    __mod__, __rmod__ = _operator(np.remainder)
    __matmul__, __rmatmul__ = _operator(np.matmul)
    __pow__, __rpow__ = _operator(np.power)
    __and__, __rand__ = _operator(np.bitwise_and)
    __or__, __ror__ = _operator(np.bitwise_or)
    __xor__, __rxor__ = _operator(np.bitwise_xor)
    __lshift__, __rlshift__ = _operator(np.left_shift)
    __rshift__, __rrshift__ = _operator(np.right_shift)
    __lt__, __gt__ = _operator(np.less)[0], _operator(np.greater)[0]
    __le__, __ge__ = _operator(np.less_equal)[0], _operator(np.greater_equal)[0]
    __eq__ = _operator(np.equal)[0]  # type: ignore[assignment]
    __ne__ = _operator(np.not_equal)[0]  # type: ignore[assignment]

    __neg__, __pos__ = _unary_operator(np.negative), _unary_operator(np.positive)
    __abs__, __invert__ = _unary_operator(np.absolute), _unary_operator(np.invert)

    def __getitem__(self, key: Any) -> Tensor:
        from tessera.frontends.numpy import view
        from tessera.ops.index import getitem

        result = getitem(self, key)
        if not isinstance(result, Tensor):
            return result  # picked by a mask: ops/masked.py
        dots = key is Ellipsis or (isinstance(key, tuple) and any(k is Ellipsis for k in key))
        picked: Tensor = view(result, self, array=dots)
        return picked


class Builder:
    """What kernel and block graphs have in common: appending checked operators."""

    def __init__(self, core: _core.Graph) -> None:
        self.core = core
        # NumPy's exact result dtypes (its bf16 matmul yields f32); else floats stay as they are.
        self.numpy_dtypes = False
        self.calls: set[str] = set()  # NumPy's functions, methods and ufuncs that were applied
        # How tensors were made, where that is kept (while tracing): operator, operands, attributes.
        # Tensors that are used as indices, and the extents of the axes that they index.
        self.indices: list[tuple[int, Any]] = []
        self.made: dict[int, tuple[str, tuple[Tensor, ...], Mapping[str, Any]]] = {}

    def emit(
        self,
        op: str,
        inputs: Sequence[Tensor] = (),
        attrs: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> Tensor:
        """Appends one operator of the core by its text name; errors name the user's line."""
        for t in inputs:
            if t.builder is not self:
                bad_input(f"{op}: {t!r} belongs to another graph")
        try:
            return Tensor(self, self.core.add(op, [t.id for t in inputs], attrs or {}, name))
        except Error as error:
            raise self._located(error) from None

    @staticmethod
    def _located(error: Error) -> Error:
        if error.location is not None:
            return error
        return type(error)(error.message, user_location())

    def const(self, value: Scalar, dtype: object = "f32", shape: Sequence[Dim] = ()) -> Tensor:
        """A tensor whose elements all have one value, kept exactly (0.1 is 1/10)."""
        name = dtype_name(dtype)
        target = to_numpy(name)
        exact: bool | int | float | str
        if target == np.bool_:
            exact = int(bool(value))
        elif target.kind in "iu":
            exact = int(value)
            bounds = np.iinfo(target)
            if exact != value or not bounds.min <= exact <= bounds.max:
                bad_input(f"the constant {value} does not fit {name}")
        elif isinstance(value, np.floating) and not isinstance(value, np.float64):
            exact = str(value)  # shortest text that rounds to it: what the user wrote
        elif isinstance(value, (int, np.integer)):
            exact = int(value) if abs(int(value)) < 2**62 else float(value)
        else:
            exact = float(value)
        return self.emit("const", [], {"value": exact, "type": (name, list(shape))})

    def constant_array(self, array: np.ndarray[Any, Any]) -> Tensor:
        """An array among the operands; tracing turns it into an argument (frontends/numpy.py)."""
        if array.ndim == 0:
            return self.const(array.item(), array.dtype)
        bad_input("an array of values cannot be part of a program: declare it as an input")


def _function(name: str) -> Callable[..., Any]:
    def method(self: Builder, *args: Any, **kwargs: Any) -> Any:
        from tessera import ops

        return ops.function(name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"`{name}`, as in NumPy where NumPy has it."
    return method


# The functions that every builder offers as methods, for code that prefers g.exp(x) to np.exp(x);
# their meaning is in ops.py.
_FUNCTIONS = """
    abs add all any arccos arcsin arctan arctan2 astype broadcast_to ceil clip concat_matmul
    concatenate cos cosh cumsum diag diagonal div divide dot einsum equal erf exp exp2
    expand_dims expm1 floor floor_divide gelu gelu_tanh greater greater_equal inner less
    less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or matmul max
    maximum mean min minimum mod moveaxis mul multiply negative norm not_equal outer pad pow
    ravel relu remainder repeat reshape rint round rsqrt sigmoid sign silu sin sinh slice split
    sqr sqrt square squeeze stack std sub subtract sum swapaxes take tan tanh tensordot tile
    trace transpose tril triu trunc var where
"""
for _name in _FUNCTIONS.split():
    setattr(Builder, _name, _function(_name))


class Graph(Builder):
    """A tensor program; build it by hand, trace it from NumPy, or read it from `.ug` text.

    >>> g = Graph("scaled_product")
    >>> x = g.input("X", (16, 1024), "f32")
    >>> w = g.input("W", (1024, 64), "f32")
    >>> y = g.output((x @ w) * 0.5)
    >>> y.shape
    (16, 64)
    """

    if TYPE_CHECKING:  # the methods of FUNCTIONS

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def __init__(self, name: str = "g") -> None:
        super().__init__(_core.Graph(name))
        self._init_values()

    def _init_values(self) -> None:
        # Inputs whose values come with the program (a model's initialisers), by name.
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.defaults: set[str] = set()  # of them, those that a model's callers may replace
        # Of a model: what its results are called, which may be inputs or the same one twice.
        self.output_names: list[str] = []
        # What gives opaque operators a meaning: (function, payload, arrays) → arrays.
        self.opaque: Callable[[str, str, list[Any]], list[Any]] | None = None
        # What an ONNX model computes behind its program, see frontends.onnx.opaque.Tail.
        self.tail: Any = None
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
        graph.defaults = set(self.defaults)
        graph.keeps_nan = self.keeps_nan
        return graph

    @classmethod
    def parse(cls, text: str, file: str = "<input>") -> Graph:
        """Reads the `.ug` text format; errors are BadInputError with file:line:col."""
        return cls.from_core(_core.parse(text, file))

    # --- building
    def input(
        self,
        name: str,
        shape: Sequence[Dim] | int,
        dtype: object = "f32",
        *,
        weight: bool = False,
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
        return Block(
            self,
            inputs,
            [grid] if isinstance(grid, int) else list(grid),
            [loops] if isinstance(loops, int) else list(loops),
        )

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
    def ops(self) -> list[dict[str, Any]]:
        """The operators as plain records: op, attrs, inputs, results, body."""
        return self.core.ops()

    def input_types(self) -> dict[str, tuple[np.dtype[Any], tuple[Any, ...]]]:
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph.parse, (str(self), self.name)  # pickled as text

    def validate(self) -> None:
        """Checks the whole program; raises BadInputError naming the operator and the rule."""
        self.core.validate()

    def run(self, *arrays: Any, exact: bool = False) -> list[np.ndarray[Any, np.dtype[Any]]]:
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
            array = np.asarray(array)
            if array.dtype != dtype or array.shape != shape:
                raise BadInputError(
                    f"argument {name} must be {format_type(dtype, shape)}, not "
                    f"{array.dtype}[{','.join(map(str, array.shape))}]"
                )
            wide = np.float64 if is_float(dtype) else np.int64
            inputs.append(np.asarray(array, wide, order="C"))  # ascontiguousarray adds an axis
        outputs = _core.evaluate(self.core, inputs, exact, self.opaque)
        if exact:
            return outputs
        with np.errstate(over="ignore", invalid="ignore"):
            return [
                np.asarray(a).astype(t.dtype) for a, t in zip(outputs, self.outputs, strict=True)
            ]

    def with_weights(self, arrays: Sequence[Any]) -> Sequence[Any]:
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
        from tessera.files import write_text

        write_text(Path(path), str(self))


class Block(Builder):
    """A block graph under construction (Mirage §2): what one block of the grid computes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

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
        self,
        tensor: Tensor,
        imap: Sequence[int | None] = (),
        fmap: Sequence[int | None] = (),
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
        attrs: dict[str, Any] = {"kind": kind, "loops": self._loops(loops)}
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
        dims: list[Any] = list(tensor.shape)
        if shape is not None:
            dims = list(shape)
        else:
            for axes, parts in ((omap, self.core.grid), (fmap, self.core.loops)):
                for axis, n in zip(axes, parts, strict=False):
                    if axis is not None and axis >= 0:
                        if axis >= len(dims) or isinstance(dims[axis], str):
                            bad_input(f"save: axis {axis} of {tensor!r} cannot be split")
                        dims[axis] *= n
        attrs = {
            "omap": _map(omap),
            "fmap": _map(fmap),
            "type": (dtype_name(tensor.dtype), dims),
        }
        self._saved.append((self.emit("save", [tensor], attrs), name))

    @property
    def outputs(self) -> list[Tensor]:
        """The kernel's results in the enclosing graph, after the `with` block."""
        if self._results is None:
            raise UsageError("a kernel's outputs exist after its `with` block", user_location())
        return self._results

    def __enter__(self) -> Block:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        self.core.set_outputs([t.id for t, _ in self._saved])
        try:
            ids = self._parent.core.add_graph_op(
                "kernel",
                [t.id for t in self._arguments],
                self.core,
                [name for _, name in self._saved],
            )
        except Error as failed:
            raise self._located(failed) from None
        self._results = [Tensor(self._parent, i) for i in ids]


def _map(axes: Sequence[int | None]) -> list[int]:
    return [-1 if axis is None else axis for axis in axes]
