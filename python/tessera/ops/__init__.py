"""What each operator means on Tensor handles, with NumPy's names, dtype and axis rules.

The only place that knows these rules: the builder's methods, Python's operators and the NumPy
front end all come here. One module per kind of function; `function` finds one by name.
"""

from __future__ import annotations

from tessera.ops import contract, derived, index, integers, pointwise, reduce, shape
from tessera.types import Function

_ALIASES = {"slice": "slice_"}  # Python's own slice is needed where ours is defined


def function(name: str) -> Function:
    """The function of that name.

    >>> function("matmul").__module__
    'tessera.ops.contract'
    """
    name = _ALIASES.get(name, name)
    for module in (pointwise, reduce, shape, index, derived, contract, integers):
        if callable(found := getattr(module, name, None)):
            return found  # type: ignore[no-any-return]
    raise AttributeError(f"no tensor function is named {name}")
