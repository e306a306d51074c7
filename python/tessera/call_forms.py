"""How a program is called: as a graph, with arrays, or as the function that it was traced from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.cuda import standing
from tessera.errors import BadInputError, UnsupportedError
from tessera.frontends.trace import bind_arguments
from tessera.frontends.traced import Leaf, Node, Static, Traced, Tree, alike, unflatten
from tessera.graph import Graph
from tessera.runner import order_of
from tessera.torch_arrays import from_tensor, is_tensor
from tessera.types import Array, Fields, Function, Object, Value, Values


class GraphCall:
    """Calling convention of a graph: arrays by position or by input name."""

    def __init__(self, graph: Graph) -> None:
        self.names = list(graph.input_types())
        self.weights, self.output_names = graph.weights, graph.output_names
        self.opaque = graph.opaque
        self._free = [name for name in self.names if name not in self.weights]
        self._single = len(graph.outputs) == 1

    def arrays(self, args: Values, kwargs: Fields) -> Values:
        if not kwargs and len(args) == len(self.names):
            return args
        given = dict(zip(self._free, args, strict=False))
        if len(args) > len(self._free):
            raise BadInputError(f"expected {len(self._free)} arrays, got {len(args)}")
        for name, value in kwargs.items():
            if name not in self.names:
                raise BadInputError(
                    f"there is no argument '{name}'; the program takes {', '.join(self.names)}"
                )
            if name in given:
                raise BadInputError(f"argument {name} is given twice")
            given[name] = value
        given = self.weights | given
        missing = [name for name in self.names if name not in given]
        if missing:
            raise BadInputError(f"missing argument {', '.join(missing)}")
        return [given[name] for name in self.names]

    def result(self, outputs: list[Array]) -> Value:
        return outputs[0] if self._single else tuple(outputs)


_SHARES = ("it returns memory of its arguments or of another result (a view), which is NumPy's own "
           "business; return a copy")  # fmt: skip
_Layout = tuple[tuple[int, ...] | None, bool]  # the order of axes in memory; writeable


class FunctionCall:
    """Calling convention of a traced function: its own arguments and results."""

    def __init__(self, function: Function, traced: Traced) -> None:
        self.names = list(traced.graph.input_types())
        self.function = function
        self.traced = traced
        positional, keyword = traced.tree.children if isinstance(traced.tree, Node) else ((), ())
        plain = not keyword.keys and all(isinstance(c, Leaf) for c in positional.children)
        self._plain = len(positional.children) if plain else -1
        self.orders: Sequence[_Layout | None] | None = None
        types = zip(traced.graph.outputs, traced.forms, strict=True)
        self._arrays = [t.shape != () or form == "array" for t, form in types]  # or scalars
        # One array is returned as it is.
        leaf = isinstance(traced.results, Leaf)
        self._single = leaf and self._arrays[0]
        self._plain_result = leaf and (traced.graph.outputs[0].shape != () or not self._single)

    @property
    def finish(self) -> Function | None:
        """What makes the function's results of a list of arrays; None where it returns just one."""
        return None if self._plain_result else self.result

    def of_source(self, values: Value) -> Value:
        """The function's results, of what emitted source returns."""
        if self.orders is not None:
            return self.result([*values] if isinstance(values, tuple) else [values])
        return unflatten(self.traced.results, values if isinstance(values, tuple) else (values,))

    def arrays(self, args: Values, kwargs: Fields) -> list[Value]:
        if not kwargs and len(args) == self._plain:
            for value in args:
                if type(value) is not np.ndarray:
                    break
            else:  # the common case, without a detour
                return [*args, *self.traced.extra]
        held: dict[int, tuple[Array, Value]] = {}
        args, kwargs = standing(tuple(args), held), standing(dict(kwargs), held)
        args = [from_tensor(a) if is_tensor(a) else a for a in args]
        kwargs = {name: from_tensor(a) if is_tensor(a) else a for name, a in kwargs.items()}
        tree, leaves = bind_arguments(self.function, tuple(args), kwargs)
        if not alike(tree, self.traced.tree, _same_argument):
            raise BadInputError(
                f"{self.traced.graph.name} was optimised for arguments of another structure or "
                "with other constants; optimise it again for these"
            )
        found = [value for _, value in leaves] + list(self.traced.extra)
        return [held[id(a)][1] if id(a) in held else a for a in found] if held else found

    def returns_like(self, value: Object, given: Sequence[Array]) -> None:
        """Learns the order of axes from what the original returned, given these arrays.

        Raises UnsupportedError where a program would return something else: memory of what was
        given, or memory that results share.
        """
        theirs: dict[int, Value] = {}
        _match(self.traced.results, value, theirs, self.traced.graph.name)
        outputs = self.traced.graph.outputs
        for n, tensor in enumerate(outputs):
            found = theirs.get(n)
            kind, own = np.ndarray if self._arrays[n] else np.generic, (tensor.dtype, tensor.shape)
            if not isinstance(found, kind) or (found.dtype, found.shape) != own:
                raise UnsupportedError(
                    f"its result is {type(found).__name__}, and as a program {tensor!r} (please "
                    "report this)"
                )
            others = [theirs[m] for m in range(n) if isinstance(theirs[m], np.ndarray)]
            if isinstance(found, np.ndarray) and any(
                np.may_share_memory(found, a) for a in (*given, *others)
            ):
                raise UnsupportedError(_SHARES)
        self._keep_order([_layout(theirs[n]) for n in range(len(outputs))])

    def takes_over(self, traced: Traced) -> bool:
        """Has calls pass other arrays from outside, where the results are of the same form."""
        # results that are the same array, or both constants
        same = traced.forms == self.traced.forms and alike(
            traced.results, self.traced.results,
            lambda a, b: (isinstance(a, Static) and isinstance(b, Static)) or a == b,
        )  # fmt: skip
        self.traced = traced if same else self.traced
        return same

    def _keep_order(self, orders: Sequence[_Layout | None]) -> None:
        """Has results lie in memory so, None for row-major and writeable."""
        self.orders = orders if any(o is not None for o in orders) else None
        if self.orders is not None:
            self._single = self._plain_result = False

    def result(self, outputs: list[Array]) -> Value:
        if self.orders is not None:
            pairs = zip(outputs, self.orders, strict=True)
            outputs = [a if o is None else _in_order(a, *o) for a, o in pairs]
        if self._single:
            return outputs[0]
        if outputs and not isinstance(outputs[0], np.ndarray):
            return unflatten(self.traced.results, outputs)
        kinds = zip(outputs, self._arrays, strict=True)
        return unflatten(self.traced.results, [a if keep else a[()] for a, keep in kinds])


def _layout(array: Object) -> _Layout | None:
    if not isinstance(array, np.ndarray):
        return None
    if any(n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides, strict=True)):
        raise UnsupportedError("its result repeats memory (np.broadcast_to); return a copy")
    order, writeable = order_of(array), array.flags.writeable
    return None if order is None and writeable else (order, writeable)


def _match(tree: Tree, value: Value, leaves: dict[int, Value], name: str) -> None:
    """Collects the leaves of a result by number; raises where its structure is another one."""
    if isinstance(tree, Leaf):
        first = leaves.setdefault(tree.index, value)
        if first is value or (isinstance(value, np.generic) and type(value) is type(first)):
            return
        if isinstance(value, np.ndarray) and np.may_share_memory(value, first):
            raise UnsupportedError(_SHARES)
    elif isinstance(tree, Static):
        arrays = isinstance(tree.value, np.ndarray)
        if type(value) is type(tree.value) and (arrays or repr(value) == repr(tree.value)):
            return
    elif type(value) is tree.kind and len(value) == len(tree.children):
        children = list(value.values()) if tree.kind is dict else value
        for child, part in zip(tree.children, children, strict=True):
            _match(child, part, leaves, name)
        return
    raise UnsupportedError(f"{name} returns another structure than its trace (please report this)")


def _in_order(array: Array, order: tuple[int, ...] | None, writeable: bool) -> Array:
    if order is not None and order_of(array) != order:
        array = np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    array.flags.writeable &= writeable
    return array


def _same_argument(a: Leaf | Static, b: Leaf | Static) -> bool:
    """Whether two arguments agree in everything but the values of arrays."""
    if not (isinstance(a, Static) and isinstance(b, Static)):
        return a == b
    if type(a.value) is not type(b.value):
        return False
    if isinstance(a.value, (float, np.generic)):  # nan is nan, -0.0 is not 0.0
        return repr(a.value) == repr(b.value)
    return bool(a.value is b.value or a.value == b.value)
