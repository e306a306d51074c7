"""From operators to expressions: recognises what an array library has a better name for.

Everything here keeps the value of every tensor; sums of products become dot products, which adds
in another order (in f32 and f64 only).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np

from tessera.emit.node import Node, inserted_axes, number
from tessera.emit.tree import Tree
from tessera.types import Dim, DType, Record, Shape, Value, is_float

_COUNTABLE = 8  # elements of which the last is meant by its number, as in x[2] of three
_BLAS = (np.dtype(np.float32), np.dtype(np.float64))


def _spelled(
    formula: Callable[..., Node],
) -> Callable[[Lifter, int, Record], Node | None]:
    """What an operator is made of, unless the library has it: `formula` takes a maker of pointwise
    nodes and the operands."""

    def lift(self: Lifter, tensor: int, record: Record) -> Node | None:
        if record["op"] in self._native:
            return None
        dtype, shape = self._type(tensor)

        def make(op: str, *args: Node | float) -> Node:
            # Numbers are what is written, not their binary neighbours.
            nodes = [a if isinstance(a, Node) else self.literal(Fraction(repr(a)), dtype)
                     for a in args]  # fmt: skip
            return Node(op, tuple(nodes), np.dtype(bool) if op in ("eq", "ne") else dtype, shape)

        return formula(make, *self._operands(record["inputs"], shape))

    return lift


def _gelu(make: Callable[..., Node], x: Node) -> Node:
    half = make("mul", 0.5, x)
    return make("mul", half, make("add", 1, make("erf", make("mul", x, 0.5**0.5))))


def _gelu_tanh(make: Callable[..., Node], x: Node) -> Node:
    cubed = make("mul", 0.044715, make("mul", x, make("sqr", x)))
    inner = make("mul", (2 / np.pi) ** 0.5, make("add", x, cubed))
    return make("mul", make("mul", 0.5, x), make("add", 1, make("tanh", inner)))


def _mod(make: Callable[..., Node], x: Node, y: Node) -> Node:
    """Of integers it is 0 where y is, as x % 1 is, and an error in PyTorch."""
    if is_float(y.dtype) or _nonzero(y):
        return make("mod", x, y)
    return make("mod", x, 1 if y.is_literal else make("where", make("eq", y, 0), 1, y))


def _sign(make: Callable[..., Node], x: Node) -> Node:
    """PyTorch's of NaN is 0."""
    sign = make("sign", x)
    return make("where", make("ne", x, x), x, sign) if is_float(x.dtype) else sign


def _nonzero(node: Node) -> bool:
    """A number but 0, or what has one in the place of zeros: where(x == 0, 1, x)."""
    if node.op == "where" and node.args[0].op == "eq":
        x, zero = node.args[0].args
        if x is node.args[2] and zero.is_literal and zero.attrs["value"] == 0:
            node = node.args[1]
    return node.op in ("literal", "full") and node.attrs["value"] != 0


class Lifter(Tree):
    """One graph's tensors as expressions, with an array library's names."""

    _lift_rsqrt = _spelled(lambda make, x: make("div", 1, make("sqrt", x)))
    _lift_sigmoid = _spelled(
        lambda make, x: make("div", 1, make("add", 1, make("exp", make("neg", x))))
    )
    _lift_silu = _spelled(
        lambda make, x: make("div", x, make("add", 1, make("exp", make("neg", x))))
    )
    _lift_relu = _spelled(lambda make, x: make("max", x, 0))
    _lift_gelu = _spelled(_gelu)
    _lift_gelu_tanh = _spelled(_gelu_tanh)
    _lift_mod = _spelled(_mod)
    _lift_sign = _spelled(_sign)

    # --- all and any, which tracing computes as minimum and maximum of integers
    def _lift_ne(self, tensor: int, record: Record) -> Node | None:
        reduced, zero = record["inputs"]
        if self._op(reduced) not in ("reduce_min", "reduce_max") or not self._is_zero(zero):
            return None
        reduction = self._made[reduced]
        bits = self._source(reduction["inputs"][0], "cast")
        if bits is None or self._type(bits)[0] != np.bool_ or not self._alone(reduced):
            return None
        op = "all" if reduction["op"] == "reduce_min" else "any"
        return Node(op, (self._array(self.node(bits)),), *self._type(tensor), reduction["attrs"])

    def _is_zero(self, tensor: int) -> bool:
        record = self._made[tensor]
        return record["op"] == "const" and number(record["attrs"]["value"]) == 0

    # --- reductions
    def _lift_sum(self, tensor: int, record: Record) -> Node | None:
        (source,) = record["inputs"]
        axes, keepdims = record["attrs"]["axes"], record["attrs"]["keepdims"]
        dtype, shape = self._type(tensor)
        node = self.node(source)
        whole = tuple(range(node.ndim))
        kept = dtype in (*_BLAS, np.dtype(np.int64))  # dtypes that np.trace does not widen
        if node.op == "diagonal" and node.ndim == 1 and not keepdims and kept:
            return Node("trace", node.args, dtype, shape, node.attrs)
        if "dot" not in self._native or keepdims or dtype not in _BLAS:
            return None
        if not self._alone(source) or node.op not in ("mul", "sqr"):
            return None
        a, b = node.args if node.op == "mul" else (node.args[0], node.args[0])
        if a.is_literal or b.is_literal or not a.shape == b.shape == node.shape:
            return None
        if tuple(axes) == whole:
            if node.ndim == 1:
                return Node("dot", (a, b), dtype, shape)
            if a.op == b.op == "transpose" and a.attrs == b.attrs:
                a, b = a.args[0], b.args[0]
            return Node("vdot", (a, b), dtype, shape)
        if list(axes) == [node.ndim - 1]:
            return Node("vecdot", (a, b), dtype, shape)
        if node.ndim == 2 and "transpose" in (a.op, b.op):  # one is read across either way
            return Node("vecdot", (self._flipped(a), self._flipped(b)), dtype, shape)
        if node.ndim == 2:
            return Node("einsum", (a, b), dtype, shape, {"subscripts": "ij,ij->j"})
        return None

    @staticmethod
    def _flipped(matrix: Node) -> Node:
        """The transpose of a matrix, which a transpose is already."""
        if matrix.op == "transpose":
            return matrix.args[0]
        return Node("transpose", (matrix,), matrix.dtype, matrix.shape[::-1], {"perm": [1, 0]})

    # --- contractions
    def _lift_matmul(self, tensor: int, record: Record) -> Node:
        dtype, shape = self._type(tensor)
        thinner = [len(self._shape(i)) < len(self._shape(self._made[i]["inputs"][0]))
                   for i in record["inputs"] if self._op(i) == "reshape"]  # fmt: skip
        if any(thinner) and (node := self._tensordot(tensor, tensor)) is not None:
            return node
        a, b = (self._array(self.node(i)) for i in record["inputs"])
        if "dot" in self._native and a.ndim > 2 and b.ndim == 2 and a.shape[-2] != 1:
            # NumPy multiplies matrix by matrix, one after the other; this is one product.
            return Node("tensordot", (a, b), dtype, shape, {"axes": ([a.ndim - 1], [0])})
        return Node("matmul", (a, b), dtype, shape)

    def _lift_concat_matmul(self, tensor: int, record: Record) -> Node:
        dtype, shape = self._type(tensor)
        w, x, y, z = (self._array(self.node(i)) for i in record["inputs"])
        products = (Node("matmul", (w, y), dtype, shape), Node("matmul", (x, z), dtype, shape))
        return Node("add", products, dtype, shape)

    def _vector_product(self, product: int, axes: list[int], shape: Shape) -> Node | None:
        """A matmul whose axes of extent 1, added for vectors, are dropped again."""
        if self._op(product) != "matmul":
            return None
        left, right = self._made[product]["inputs"]
        ndim = len(self._shape(product))
        vector_left = self._lone_vector(left, 0) if ndim - 2 in axes else None
        vector_right = self._lone_vector(right, 1) if ndim - 1 in axes else None
        dropped = [ndim - 2] * (vector_left is not None) + [ndim - 1] * (vector_right is not None)
        if sorted(axes) != dropped:
            return None
        a = self.node(left if vector_left is None else vector_left)
        b = self.node(right if vector_right is None else vector_right)
        return Node("dot" if max(a.ndim, b.ndim) <= 2 else "matmul", (a, b), a.dtype, shape)

    def _lone_vector(self, tensor: int, axis: int) -> int | None:
        """The vector that a matrix of one row (axis 0) or column (axis 1) was made from."""
        if self._op(tensor) not in ("unsqueeze", "reshape"):
            return None
        (source,) = self._made[tensor]["inputs"]
        shape = self._shape(source)
        if len(shape) != 1 or self._shape(tensor) != ((1, *shape) if axis == 0 else (*shape, 1)):
            return None
        return int(source)

    def _tensordot(self, tensor: int, product: int) -> Node | None:
        """reshape(matmul of matrices that are transposed and reshaped operands)."""
        alone = tensor == product or self._alone(product)
        if self._op(product) != "matmul" or len(self._shape(product)) != 2 or not alone:
            return None
        (a, perm_a), (b, perm_b) = map(self._unfolded, self._made[product]["inputs"])
        rows, cols = self._shape(product)
        shape_a = tuple(self._shape(a)[i] for i in perm_a)
        shape_b = tuple(self._shape(b)[i] for i in perm_b)
        dtype, shape = self._type(tensor)
        if any(isinstance(d, str) for d in (*shape_a, *shape_b)):
            return None
        for i in range(len(shape_a) + 1):
            j = len(shape_a) - i
            if (
                shape_a[i:] == shape_b[:j]
                and shape_a[:i] + shape_b[j:] == shape
                and prod(shape_a[:i]) == rows
                and prod(shape_b[j:]) == cols
            ):
                axes = (list(perm_a[i:]), list(perm_b[:j]))
                return Node("tensordot", (self.node(a), self.node(b)), dtype, shape, {"axes": axes})
        return None

    def _unfolded(self, tensor: int) -> tuple[int, list[int]]:
        """The operand behind a reshape and a transpose, and the order of its axes."""
        if (source := self._source(tensor, "reshape")) is not None:
            tensor = source
        if (source := self._source(tensor, "transpose")) is not None:
            return source, list(self._made[tensor]["attrs"]["perm"])
        return tensor, list(range(len(self._shape(tensor))))

    # --- movement
    def _uniform(self, tensor: int, record: Record) -> Node | None:
        """What is moved where all its elements are one number."""
        x = self.node(record["inputs"][0])
        if x.is_literal or x.op == "full":
            return Node("full", (), *self._type(tensor), x.attrs)
        return None

    _lift_transpose = _lift_broadcast = _uniform

    def _lift_squeeze(self, tensor: int, record: Record) -> Node:
        (source,) = record["inputs"]
        axes = [int(a) for a in record["attrs"]["axes"]]
        return self._without_axes(source, axes, self._shape(tensor))

    def _without_axes(self, source: int, axes: list[int], shape: Shape) -> Node:
        if (product := self._vector_product(source, axes, shape)) is not None:
            return product
        x = self._array(self.node(source))
        slices = x.op == "index" and not any(isinstance(i, list) for i in x.attrs["items"])
        items: list[Value] = list(x.attrs["items"]) if slices else [slice(None)] * x.ndim
        base = x.args[0] if slices else x
        kept = [n for n, item in enumerate(items) if not isinstance(item, int)]
        for axis in sorted(axes, reverse=True):
            item = items[kept[axis]]
            if item is None:
                del items[kept[axis]]
            else:
                place = item.start or 0
                extent = base.shape[sum(i is not None for i in items[: kept[axis]])]
                last = isinstance(extent, int) and place == extent - 1 >= _COUNTABLE
                items[kept[axis]] = -1 if last else place
        return _index(base, items, x.dtype, shape)

    def _lift_unsqueeze(self, tensor: int, record: Record) -> Node:
        x, axes = self.node(record["inputs"][0]), [int(a) for a in record["attrs"]["axes"]]
        return self._uniform(tensor, record) or _with_axes(x, axes, self._shape(tensor))

    def _lift_cast(self, tensor: int, record: Record) -> Node | None:
        """The unit matrix, true where the row is the column; x // y."""
        (equal,) = record["inputs"]
        dtype, shape = self._type(tensor)
        if (quotient := self._source(equal, "floor")) is not None:
            return self._floor_divide(quotient, dtype, shape)
        if self._op(equal) != "eq" or len(shape) != 2 or shape[0] != shape[1]:
            return None
        sides = self._made[equal]["inputs"]
        if any(self._op(i) != "iota" or self._shape(i) != shape for i in sides):
            return None
        axes = {int(self._made[i]["attrs"]["axis"]) for i in sides}
        return Node("eye", (), dtype, shape) if axes == {0, 1} else None

    def _floor_divide(self, quotient: int, dtype: DType, shape: Shape) -> Node | None:
        """x // y of integers of at most 32 bits, which tracing computes in f64; no y is 0."""
        narrow = dtype.kind in "iu" and dtype.itemsize < 8
        if self._op(quotient) != "div" or self._type(quotient)[0] != np.float64 or not narrow:
            return None
        sides = [self._source(i, "cast") for i in self._made[quotient]["inputs"]]
        integers = [i for i in sides if i is not None and self._type(i)[0] == dtype]
        args = self._operands(integers, shape)
        whole = len(args) == 2 and _nonzero(args[1])
        return Node("floor_divide", tuple(args), dtype, shape) if whole else None

    def _lift_reshape(self, tensor: int, record: Record) -> Node | None:
        (source,) = record["inputs"]
        dtype, shape = self._type(tensor)
        if (node := self._tensordot(tensor, source)) is not None:
            return node
        if (node := self._diagonal_matrix(tensor, source)) is not None:
            return node
        before = self._shape(source)
        wide = self._source(source, "broadcast")
        if wide is not None and (node := self._repeated(wide, before, dtype, shape)) is not None:
            return node
        x = self.node(source)
        if x.op == "full":
            return Node("full", (), dtype, shape, x.attrs)
        if (axes := inserted_axes(before, shape)) is not None:
            return _with_axes(self._array(x), axes, shape)
        if (axes := inserted_axes(shape, before)) is not None:
            return self._without_axes(source, axes, shape)
        return None

    def _repeated(self, wide: int, stretched: Shape, dtype: DType, shape: Shape) -> Node | None:
        """np.repeat: a new axis, stretched, then folded into the one before it."""
        if self._op(wide) not in ("unsqueeze", "reshape"):
            return None
        (source,) = self._made[wide]["inputs"]
        before = self._shape(source)
        axes = inserted_axes(before, self._shape(wide))
        if axes is None or len(axes) != 1 or axes[0] == 0:
            return None
        (axis,) = axes
        count = stretched[axis]
        if isinstance(count, str) or any(isinstance(d, str) for d in before):
            return None
        repeated = (*before[: axis - 1], before[axis - 1] * count, *before[axis:])
        if shape != repeated or stretched != (*before[:axis], count, *before[axis:]):
            return None
        attrs = {"repeats": count, "axis": axis - 1}
        return Node("repeat_each", (self._array(self.node(source)),), dtype, shape, attrs)

    def _diagonal_matrix(self, tensor: int, source: int) -> Node | None:
        """np.diag of a vector, which tracing builds by padding and slicing."""
        dtype, shape = self._type(tensor)
        rows = self._source(source, "slice")
        wide = None if rows is None else self._source(rows, "reshape")
        if wide is None or self._op(wide) != "pad" or len(shape) != 2 or shape[0] != shape[1]:
            return None
        n, pad = shape[0], self._made[wide]["attrs"]
        (column,) = self._made[wide]["inputs"]
        sides = [list(pad["low"]), list(pad["high"]), number(pad["value"])]
        vector = self._lone_vector(column, 1)
        if sides != [[0, 0], [0, n], 0] or vector is None or self._shape(vector) != (n,):
            return None
        return Node("diag", (self._array(self.node(vector)),), dtype, shape)

    def _lift_slice(self, tensor: int, record: Record) -> Node:
        (source,) = record["inputs"]
        attrs = record["attrs"]
        dtype, shape = self._type(tensor)
        if (node := self._diagonal(source, attrs, dtype, shape)) is not None:
            return node
        columns = (attrs["starts"], attrs["stops"], attrs["steps"], self._shape(source))
        items = [_bounds(*b) for b in zip(*columns, strict=True)]
        return _index(self._array(self.node(source)), items, dtype, shape)

    def _diagonal(self, flat: int, attrs: Record, dtype: DType, shape: Shape) -> Node | None:
        """Every (columns + 1)-th element of a flattened matrix."""
        matrix = self._source(flat, "reshape")
        if matrix is None or len(self._shape(matrix)) != len(self._shape(flat)) + 1:
            return None
        *lead, rows, cols = self._shape(matrix)
        *lead_flat, both = self._shape(flat)
        if isinstance(rows, str) or isinstance(cols, str) or isinstance(both, str):
            return None
        start, stop, step = (int(attrs[k][-1]) for k in ("starts", "stops", "steps"))
        if lead_flat != lead or list(shape[:-1]) != lead or rows * cols != both:
            return None
        offset = start if start < cols else -(start // cols)
        if step != cols + 1 or (offset < 0 and start % cols):
            return None
        count = min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols)
        if shape[-1] != count or stop <= start:
            return None
        return Node("diagonal", (self._array(self.node(matrix)),), dtype, shape, {"k": offset})

    def _lift_concat(self, tensor: int, record: Record) -> Node | None:
        """Parts that got their axis for this only: a stack."""
        axis = int(record["attrs"]["axis"])
        made = [self._made[i] for i in record["inputs"]]
        if any(m["op"] != "unsqueeze" or list(m["attrs"]["axes"]) != [axis] for m in made):
            return None
        parts = [self._array(self.node(m["inputs"][0])) for m in made]
        return Node("stack", tuple(parts), *self._type(tensor), {"axis": axis})

    # --- indices
    def _lift_stack(self, tensor: int, record: Record) -> Node | None:
        """x[:, [4, 0]]: single places of one array, side by side where they were."""
        axis = int(record["attrs"]["axis"])
        parts = [self.node(i) for i in record["inputs"]]
        base = parts[0].args[0] if parts[0].op == "index" else None
        if base is None or axis >= base.ndim:
            return None
        whole = [slice(None)] * base.ndim
        places = []
        for part in parts:
            place = part.attrs["items"][axis] if part.op == "index" else None
            if not isinstance(place, int) or part.args[0] is not base:
                return None
            if list(part.attrs["items"]) != [*whole[:axis], place, *whole[axis + 1 :]]:
                return None
            places.append(place % int(base.shape[axis]))  # not from the end
        items = [*whole[:axis], places, *whole[axis + 1 :]]
        return Node("index", (base,), *self._type(tensor), {"items": items})

    def _lift_gather(self, tensor: int, record: Record) -> Node:
        data, index = record["inputs"]
        axis = record["attrs"]["axis"]
        dtype, shape = self._type(tensor)
        x = self._array(self.node(data))
        if (reversed_ := self._reversed(index, self._shape(data)[axis])) is not None:
            items = [slice(None)] * axis + [reversed_] + [slice(None)] * (x.ndim - axis - 1)
            return _index(x, items, dtype, shape)
        indices = self._array(self.node(index))
        return Node("take", (x, indices), dtype, shape, {"axis": axis})

    def _reversed(self, index: int, extent: Dim) -> slice | None:
        """x[::-1]: the indices extent − 1, extent − 2, …, 0."""
        if self._op(index) != "sub":
            return None
        last, counted = self._made[index]["inputs"]
        if self._op(counted) != "iota" or self._op(last) != "const":
            return None
        whole = self._shape(counted) == (extent,)
        value = number(self._made[last]["attrs"]["value"])
        return slice(None, None, -1) if whole and value + 1 == extent else None


def _bounds(start: int, stop: int, step: int, extent: Value) -> slice:
    """A slice as people write it: without what is the default, and from the end where near it."""
    last: int | None = stop
    if stop == extent:
        last = None
    elif step == 1 and extent - stop <= 2 < stop - start:
        last = stop - extent
    if stop == extent and extent - start <= 2 and start >= _COUNTABLE:
        start -= extent
    return slice(start or None, last, None if step == 1 else step)


def _index(base: Node, items: list[Value], dtype: DType, shape: Shape) -> Node:
    if base.op == "index" and not any(isinstance(i, list) for i in base.attrs["items"]):
        merged = _merged(base.attrs["items"], items)
        if merged is not None:
            return Node("index", base.args, dtype, shape, {"items": merged})
    return Node("index", (base,), dtype, shape, {"items": items})


def _merged(inner: list[Value], outer: list[Value]) -> list[Value] | None:
    """One index for two, where the outer one only adds to axes that the inner one keeps whole."""
    result: list[Value] = []
    rest = list(outer)
    for item in inner:
        if isinstance(item, int):
            result.append(item)
            continue
        while rest and rest[0] is None:
            result.append(rest.pop(0))
        follow = rest.pop(0)
        if item == slice(None):
            result.append(follow)
        elif follow == slice(None):
            result.append(item)
        else:
            return None
    return result + rest


def _with_axes(x: Node, axes: list[int], shape: Shape) -> Node:
    """New axes of extent 1 at these positions of the result."""
    items: list[Value] = [slice(None)] * x.ndim
    for axis in sorted(axes):
        items.insert(axis, None)
    return _index(x, items, x.dtype, shape)
