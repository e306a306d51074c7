"""How NumPy, JAX and PyTorch spell an expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from tessera.emit.node import Node, number
from tessera.errors import UnsupportedError
from tessera.types import Dim, DType, dtype_name, is_float

# Python's precedences, weakest first.
COMPARE, OR, XOR, AND, ADD, MUL, UNARY, POWER, ATOM = range(9)


@dataclass(frozen=True)
class Code:
    """Source of an expression, with the precedence of its outermost operator."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text where an operator of that precedence takes it as an operand."""
        return self.text if self.level >= level else f"({self.text})"

    @property
    def is_name(self) -> bool:
        return self.text.isidentifier()


_BINARY = {
    "add": ("+", ADD), "sub": ("-", ADD), "mul": ("*", MUL), "div": ("/", MUL),
    "mod": ("%", MUL), "floor_divide": ("//", MUL), "matmul": ("@", MUL),
    "and": ("&", AND), "or": ("|", OR),
    "eq": ("==", COMPARE), "ne": ("!=", COMPARE), "lt": ("<", COMPARE), "le": ("<=", COMPARE),
    "gt": (">", COMPARE), "ge": (">=", COMPARE),
}  # fmt: skip
_UFUNCS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "neg": "negative",
    "sqr": "square", "square": "square",
}  # fmt: skip
# What makes an array of its own, besides ufuncs: never a view of an operand.
_MAKERS = {"matmul", "dot", "dot_method", "tensordot", "vecdot", "where", "pow", "power", "stack",
           "concat"}  # fmt: skip
_ASSOCIATIVE = {"and", "or"}  # for + and * the grouping is kept: it decides the rounding
_NARROW_SUMS = {"i32", "i8", "u8", "bool"}  # dtypes that NumPy's sum widens


def extent_of(array: str, axis: int) -> str:
    """How the extent of an array's axis is asked for."""
    return f"{array}.shape[{axis}]" if axis else f"len({array})"


class Spelling:
    """NumPy's spelling; the other libraries differ in what their subclasses say."""

    flavour: ClassVar[str] = "numpy"
    module: ClassVar[str] = "np"
    header: ClassVar[str] = "import numpy as np"
    wide: ClassVar[frozenset[str]] = frozenset()  # what else numbers of 64 bits need
    native: ClassVar[frozenset[str]] = frozenset({"mod", "sign", "dot"})
    axis: ClassVar[str] = "axis"
    keepdims: ClassVar[str] = "keepdims"
    functions: ClassVar[dict[str, str]] = {
        "max": "maximum", "min": "minimum", "abs": "abs", "round": "rint", "atan2": "arctan2",
    }  # fmt: skip
    reductions: ClassVar[dict[str, str]] = {"reduce_max": "max", "reduce_min": "min"}
    # Of what is spelled alike whatever its operands are: {0}, {1}, …, {all} of them; {x} the first,
    # which a method is called of; {m} the module.
    forms: ClassVar[dict[str, str]] = {
        "copy": "{x}.copy()", "as_scalar": "{x}[()]",
        "as_array": "{m}.asarray({0})", "cast": "{x}.astype({dtype})", "where": "{m}.where({all})",
        "vdot": "{m}.vdot({all})", "vecdot": "{m}.vecdot({all})", "diag": "{m}.diag({0})",
        "dot_method": "{x}.dot({1})", "einsum": '{m}.einsum("{attrs[subscripts]}", {all})',
        "broadcast": "{m}.broadcast_to({0}, {shape})", "eye": "{m}.eye({length}, dtype={dtype})",
    }  # fmt: skip

    def __init__(self, dims: Callable[[Dim], str]) -> None:
        self.dim = dims  # how an extent is written
        self.sizes: dict[int, str] = {}  # how numbers are written that are extents
        self.imports: set[str] = set()
        self.notes: set[str] = set()  # comments on the source

    # --- pieces
    def dtype(self, dtype: DType) -> str:
        if dtype_name(dtype) == "bf16":
            self.imports.add("import ml_dtypes")
            return "ml_dtypes.bfloat16"
        return f"{self.module}.bool_" if dtype == np.bool_ else f"{self.module}.{dtype.name}"

    def typed(self, dtype: DType) -> str:
        """The dtype as the last argument of what makes an array."""
        return self.dtype(dtype)

    def number(self, value: Fraction | float, dtype: DType) -> str:
        """A literal that has this value in this dtype."""
        if dtype == np.bool_:
            return str(bool(value))
        if isinstance(value, Fraction) and not is_float(dtype):
            least = -(1 << 8 * dtype.itemsize - 1) if dtype.kind == "i" else 0
            return str((int(value) - least) % (1 << 8 * dtype.itemsize) + least)  # integers wrap
        if isinstance(value, Fraction):
            if value.denominator == 1 and abs(value) < 10**6:
                return str(value.numerator)
            return repr(float(value))
        return f"{'-' * (value < 0)}{self.module}.{'nan' if value != value else 'inf'}"

    def scalar(self, text: str, dtype: DType) -> Code:
        """A number beside arrays; of Python's those of ml_dtypes take but integers as their own."""
        if not text.lstrip("-").isdigit() and self.dtype(dtype) == "ml_dtypes.bfloat16":
            text = f"ml_dtypes.bfloat16({text})"
        return Code(text, UNARY if text.startswith("-") else ATOM)

    def shape(self, shape: Sequence[Dim]) -> str:
        dims = [self.dim(d) for d in shape]
        return f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"

    def call(self, function: str, *args: str) -> Code:
        return Code(f"{self.module}.{function}({', '.join(a for a in args if a)})")

    def method(self, x: Code, name: str, *args: str) -> Code:
        return Code(f"{x.at(ATOM)}.{name}({', '.join(a for a in args if a)})")

    def array(self, text: str) -> str:
        """A Python float as an array, which has methods and is of float64 for all operators."""
        function = "as_tensor" if self.flavour == "torch" else "asarray"
        return f"{self.module}.{function}({text}, dtype={self.module}.float64)"

    def axes(self, node: Node) -> tuple[str, str]:
        """The axis and keepdims arguments of a reduction."""
        axes = [int(a) for a in node.attrs["axes"]]
        axis = ""
        kept = self.flavour == "torch" and node.attrs["keepdims"]
        if len(axes) != node.args[0].ndim or not axes or kept:
            axis = f"{self.axis}={axes[0] if len(axes) == 1 else tuple(axes)}"
        return axis, f"{self.keepdims}=True" if node.attrs["keepdims"] else ""

    def places(self, indices: Sequence[int]) -> str:
        """Constant positions in an index."""
        return str(indices)

    # --- expressions
    def spell(self, node: Node, args: Sequence[Code]) -> Code:
        """The source of a node, given that of its operands."""
        if node.op in _BINARY:
            return self._binary(node, *args)
        if node.op in self.forms:
            return self._formed(node, self.forms[node.op], *args)
        method: Callable[..., Code] | None = getattr(self, f"_{node.op}", None)
        if method is not None:
            return method(node, *args)
        return self._function(node, *args)

    def _formed(self, node: Node, form: str, *args: Code) -> Code:
        texts = [a.text for a in args]
        first = args[0].at(ATOM) if args else ""
        named = {"m": self.module, "x": first, "all": ", ".join(texts), "attrs": node.attrs}
        if "{dtype}" in form:
            named["dtype"] = self.dtype(node.dtype)
        if "{shape}" in form:
            named["shape"] = self.shape(node.shape)
        if "{length}" in form:
            named["length"] = self.dim(node.shape[0])
        if form.startswith("jax."):
            self.imports.add("import jax")
        return Code(form.format(*texts, **named))

    def _binary(self, node: Node, x: Code, y: Code) -> Code:
        sign, level = _BINARY[node.op]
        if node.op == "div" and not is_float(node.dtype):
            raise UnsupportedError(f"the division of integers has no spelling in {self.module}")
        grouped = level if node.op in _ASSOCIATIVE else level + 1
        left = x.at(level + 1 if level == COMPARE else level)
        right = y.at(grouped)
        least = node.dtype.kind == "i" and right == str(np.iinfo(node.dtype).min)
        if node.op == "add" and node.args[1].is_literal and right.startswith("-") and not least:
            sign, right = "-", right[1:]
        code = Code(f"{left} {sign} {right}", level)
        if node.op == "matmul":
            return self._matrix_dtype(node, code)
        return code

    # --- results in the place of operands
    def ufunc(self, node: Node) -> str | None:
        """NumPy's ufunc that computes a node of floats elementwise; None where there is none."""
        if node.dtype.kind != "f":
            return None
        name = _UFUNCS.get(node.op) or self.functions.get(node.op, node.op)
        return name if isinstance(getattr(np, name, None), np.ufunc) else None

    def makes_array(self, node: Node) -> bool:
        """Whether computing the node makes an array that nobody else holds."""
        two = node.op == "einsum" and len(node.args) > 1  # of one operand it may be a view
        return node.op in _MAKERS or two or self.ufunc(node) is not None

    def written_over(self, node: Node, ufunc: str, place: int, args: Sequence[str]) -> str:
        """The statement that writes a node over its operand args[place], a name."""
        commutes = node.op in ("add", "mul")
        if node.op in ("add", "sub", "mul", "div") and (place == 0 or commutes):
            return f"{args[place]} {_BINARY[node.op][0]}= {args[1 - place]}"
        return f"{self.module}.{ufunc}({', '.join(args)}, out={args[place]})"

    def _matrix_dtype(self, node: Node, code: Code) -> Code:
        """NumPy's products of bf16 are f32."""
        wide = dtype_name(node.dtype) == "bf16"
        return self._formed(node, self.forms["cast"], code) if wide else code

    def _function(self, node: Node, *args: Code) -> Code:
        name = self.functions.get(node.op, node.op)
        if node.op not in self.functions and not isinstance(getattr(np, name, None), np.ufunc):
            raise UnsupportedError(f"operator '{node.op}' has no spelling in {self.module}")
        return self.call(name, *(a.text for a in args))

    def _literal(self, node: Node) -> Code:
        value = node.attrs["value"]
        if isinstance(value, Fraction) and value.numerator in self.sizes and value.denominator == 1:
            return Code(self.sizes[value.numerator])
        if isinstance(value, Fraction) and abs(value.numerator) == 1:
            count = self.sizes.get(value.denominator)
            if count is not None and node.dtype.kind == "f":
                return Code(f"{value.numerator} / {count}", MUL)
        return self.scalar(self.number(node.attrs["value"], node.dtype), node.dtype)

    def _full(self, node: Node) -> Code:
        value = self.number(node.attrs["value"], node.dtype)
        if node.shape == ():
            return Code(f"{self.dtype(node.dtype)}({value})")
        shape, dtype = self.shape(node.shape), self.typed(node.dtype)
        if value in ("0", "1") and self.flavour != "torch":
            return self.call("zeros" if value == "0" else "ones", shape, dtype)
        return self.call("full", shape, value, dtype)

    def _iota(self, node: Node) -> Code:
        axis = int(node.attrs["axis"])
        code = self.call("arange", self.dim(node.shape[axis]), f"dtype={self.dtype(node.dtype)}")
        if node.ndim == 1:
            return code
        items = [":" if a == axis else "None" for a in range(node.ndim)]
        code = Code(f"{code.text}[{', '.join(items)}]")
        if all(d == 1 for a, d in enumerate(node.shape) if a != axis):
            return code
        return self.call("broadcast_to", code.text, self.shape(node.shape))

    def _prefixed(self, node: Node, x: Code) -> Code:
        return Code(f"{'-' if node.op == 'neg' else '~'}{x.at(UNARY)}", UNARY)

    _neg = _not = _prefixed

    def _sqr(self, node: Node, x: Code) -> Code:
        return Code(f"{x.text} * {x.text}", MUL) if x.is_name else self.call("square", x.text)

    def _pow(self, node: Node, x: Code) -> Code:
        power = Fraction(node.attrs["exponent"])
        if power == -1:
            return Code(f"1 / {x.at(UNARY)}", MUL)
        text = str(power.numerator) if power.denominator == 1 else repr(float(power))
        text = self.scalar(text, node.dtype).text
        return Code(f"{x.at(POWER + 1)}{'**' if x.is_name else ' ** '}{text}", POWER)

    def _power(self, node: Node, x: Code, y: Code) -> Code:
        return Code(f"{x.at(POWER + 1)} ** {y.at(UNARY)}", POWER)

    def _special(self, node: Node, x: Code) -> Code:
        self.imports.add(f"from scipy.special import {node.op}")
        code = Code(f"{node.op}({x.text})")  # of two-byte numbers SciPy returns wider ones
        return code if node.dtype.itemsize > 2 else self._formed(node, self.forms["cast"], code)

    _erf = _erfc = _special

    # --- reductions
    def _reduction(self, node: Node, x: Code) -> Code:
        name = self.reductions.get(node.op, node.op)
        return self.method(x, name, *self.axes(node), self._sum_dtype(node))

    def _sum_dtype(self, node: Node) -> str:
        narrow = node.op in ("sum", "cumsum") and dtype_name(node.dtype) in _NARROW_SUMS
        return f"dtype={self.dtype(node.dtype)}" if narrow else ""

    _sum = _mean = _reduce_max = _reduce_min = _all = _any = _reduction

    def _cumsum(self, node: Node, x: Code) -> Code:
        axis = f"{self.axis}={node.attrs['axis']}"
        return self.call("cumsum", x.text, axis, self._sum_dtype(node))

    # --- contractions
    def _dot(self, node: Node, a: Code, b: Code) -> Code:
        if node.dtype.kind != "f":  # not one that BLAS knows
            return self._binary(Node("matmul", (), node.dtype, node.shape), a, b)
        return self.call("dot", a.text, b.text)

    def _ones(self, node: Node, x: Code) -> Code:
        """As many as x has along an axis: for arguments of all sizes."""
        return self.call("ones", self._extent(x, node.attrs["axis"]), self.typed(node.dtype))

    def _count(self, node: Node, x: Code) -> Code:
        axes = sorted(int(a) for a in node.attrs["axes"])
        if len(axes) == node.args[0].ndim and len(axes) > 1:
            return Code(f"{x.at(ATOM)}.size")
        factors = [self._extent(x, a) for a in axes]
        return Code(" * ".join(factors) or "1", MUL if len(factors) > 1 else ATOM)

    def _extent(self, x: Code, axis: int) -> str:
        return extent_of(x.at(ATOM) if axis else x.text, axis)

    def _ufunc_reduce(self, node: Node, x: Code) -> Code:
        axis, keepdims = self.axes(node)
        if node.args[0].ndim == 1 or not axis:
            axis = "axis=None" if node.args[0].ndim > 1 else ""
        return self.call(f"{node.attrs['ufunc']}.reduce", x.text, axis, keepdims)

    def _tensordot(self, node: Node, a: Code, b: Code) -> Code:
        left, right = node.attrs["axes"]
        count = len(left)
        ndim = node.args[0].ndim
        torch = self.flavour == "torch"
        axes = str((left, right))
        if count == 1 and not torch:
            axes = f"({left[0]}, {right[0]})"
        if left == list(range(ndim - count, ndim)) and right == list(range(count)):
            axes = str(count)
        keyword = "dims" if torch else "axes"
        return self._matrix_dtype(node, self.call("tensordot", a.text, b.text, f"{keyword}={axes}"))

    # --- movement
    def _transpose(self, node: Node, x: Code) -> Code:
        perm = [int(a) for a in node.attrs["perm"]]
        if perm == list(range(len(perm)))[::-1] and (len(perm) == 2 or self.flavour != "torch"):
            return Code(f"{x.at(ATOM)}.T")
        moved = [a for a, b in enumerate(perm) if a != b]
        if len(moved) == 2:
            return self.method(x, "swapaxes", *map(str, moved))
        name = "permute" if self.flavour == "torch" else "transpose"
        return self.method(x, name, *map(str, perm))

    def _reshape(self, node: Node, x: Code) -> Code:
        dims = ["-1"] if node.ndim == 1 else [self.dim(d) for d in node.shape]
        return self.method(x, "reshape", *(dims or ["()"]))

    def _repeat(self, node: Node, x: Code) -> Code:
        repeats = tuple(int(r) for r in node.attrs["repeats"])
        return self.call("tile", x.text, str(repeats))

    def _repeat_each(self, node: Node, x: Code) -> Code:
        axis = f"{self.axis}={node.attrs['axis']}"
        name = "repeat_interleave" if self.flavour == "torch" else "repeat"
        return self.call(name, x.text, str(node.attrs["repeats"]), axis)

    def _joined(self, node: Node, *args: Code) -> Code:
        function = "concatenate" if node.op == "concat" else "stack"
        axis = int(node.attrs["axis"])
        parts = f"[{', '.join(a.text for a in args)}]"
        return self.call(function, parts, f"{self.axis}={axis}" if axis else "")

    _concat = _stack = _joined

    def _index(self, node: Node, x: Code) -> Code:
        items = list(node.attrs["items"])
        while items and items[-1] == slice(None):
            items.pop()
        texts = [self.places(i) if isinstance(i, list) else _item(i) for i in items]
        lead = next((n for n, t in enumerate(texts) if t != ":"), 0)
        if lead > 1 and len(items) == len(node.attrs["items"]):
            texts = ["...", *texts[lead:]]
        return Code(f"{x.at(ATOM)}[{', '.join(texts)}]") if texts else x

    def _take(self, node: Node, x: Code, index: Code) -> Code:
        axis = int(node.attrs["axis"])
        lead = ["..."] if 2 <= axis == node.args[0].ndim - 1 else [":"] * axis
        return Code(f"{x.at(ATOM)}[{', '.join([*lead, index.text])}]")

    pads: ClassVar[tuple[str, str]] = ("pad", "constant_values")  # the function, and its filler

    def _pad(self, node: Node, x: Code) -> Code:
        widths = list(zip(map(int, node.attrs["low"]), map(int, node.attrs["high"]), strict=True))
        value = self.number(number(node.attrs["value"]), node.dtype)
        function, filler = self.pads
        return self.call(function, x.text, self._widths(widths),
                         "" if value == "0" else f"{filler}={value}")  # fmt: skip

    def _widths(self, pairs: Sequence[tuple[int, int]]) -> str:
        return f"({', '.join(map(str, pairs))}{',' if len(pairs) == 1 else ''})"

    def _of_diagonal(self, node: Node, x: Code) -> Code:
        k = int(node.attrs["k"])
        return self.call(node.op, x.text, str(k) if k else "")

    _triu = _tril = _trace = _of_diagonal

    def _diagonal(self, node: Node, x: Code) -> Code:
        k = node.attrs["k"]
        if node.ndim == 1:
            return self.method(x, "diagonal", str(k) if k else "")
        return self.call("diagonal", x.text, str(k), "-2", "-1")


def _item(item: slice | int | None) -> str:
    if not isinstance(item, slice):
        return str(item)
    start, stop, step = ("" if v is None else str(v) for v in (item.start, item.stop, item.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"
