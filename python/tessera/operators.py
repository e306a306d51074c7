"""Operators of one's own: functions of numbers that Tessera does not know, from Python alone.

>>> import numpy as np, tessera as ts
>>> bump = ts.operator("bump", "x / (1 + x*x*x*x)", law="odd")
>>> bump(np.array([-1.0, 2.0]))
array([-0.5       ,  0.11764706])
"""

from __future__ import annotations

import re

import numpy as np

from tessera.errors import BadInputError, WrongTypeError
from tessera.graph import Graph
from tessera.ops.operands import Operand, emit, promote
from tessera.tensor import Tensor
from tessera.types import Value


class Operator:
    """What `operator` makes: called with arrays it computes; called in a function that Tessera
    traces it becomes the operator `custom`, which is fused with what surrounds it."""

    def __init__(self, name: str, value: str, law: str) -> None:
        if not all(isinstance(text, str) for text in (name, value, law)):
            raise BadInputError("an operator's name, value and law are texts")
        self.name, self.value, self.law = name, value, law
        self.arity = 2 if re.search(r"\by\b", value) else 1
        self(*[np.float64(0)] * self.arity)  # tells what is wrong with it

    def __repr__(self) -> str:
        return f"<operator {self.name}({'x, y' if self.arity == 2 else 'x'}) = {self.value}>"

    def __call__(self, *operands: Operand) -> Value:
        """Shapes as NumPy broadcasts them; dtypes as of `np.exp`, of two operands `np.arctan2`."""
        if len(operands) != self.arity:
            raise WrongTypeError(f"{self!r} takes {self.arity}, not {len(operands)}")
        if any(type(x).__module__.partition(".")[0] == "torch" for x in operands):
            raise WrongTypeError(f"{self!r} takes NumPy's arrays, not PyTorch's tensors")
        ufunc = np.exp if self.arity == 1 else np.arctan2
        if any(isinstance(x, Tensor) for x in operands):
            given = {"name": self.name, "value": self.value, "law": self.law}
            return emit("custom", *promote(ufunc, *operands), **given)
        dtypes = [type(x) if type(x) in (int, float) else np.asarray(x).dtype for x in operands]
        dtype = ufunc.resolve_dtypes((*dtypes, None))[-1]
        arrays = np.broadcast_arrays(*(np.asarray(x, dtype) for x in operands))
        if arrays[0].size == 0:
            return arrays[0].copy()
        graph = Graph(self.name)
        graph.output(self(*(graph.input(f"x{i}", a.shape, dtype) for i, a in enumerate(arrays))))
        return graph.run(*arrays)[0][()]


def operator(name: str, value: str, law: str = "") -> Operator:
    """A function of each element of an array, or of two that broadcast (Mirage, §7).

    `value`: C, in double, of `x` or of `x` and `y`: numbers, `+ - * /`, comparisons, `c ? a : b`
    and functions of <math.h>; its result is rounded to the array's dtype.
    `law`: "odd", "even", or of two "commutative"; tried on numbers of all sizes at once. Proofs
    take it for granted and know nothing else of the function: equal operands have equal values.
    Raises BadInputError for what is no such expression, and for a law that does not hold.
    """
    return Operator(name, value, law)
