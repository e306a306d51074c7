"""The largest of an axis, by counting: programs do not sort."""

from __future__ import annotations

import numpy as np

from tessera.frontends.onnx.node import Node, Value, handles
from tessera.frontends.onnx.operators.elementwise import f
from tessera.frontends.onnx.operators.movement import along, axis_of, extent
from tessera.ops.derived import ranked

_LARGEST = 256  # elements of the axis: each is compared with each


@handles("TopK", written_out=True)
def top_k(node: Node) -> list[Value] | None:
    x = node.x(0)
    axis = axis_of(node, x.ndim, -1)
    n = extent(node, x, axis)
    if node.opset < 10:
        k = int(node.require_attr("k"))
    else:
        k = int(node.known(1, "the number of elements").reshape(-1)[0])
    if not 0 <= k <= n:
        raise node.bad(f"takes {k} of {n} elements")
    if k == 0 or n > _LARGEST or x.dtype == np.bool_:
        return None
    x = f("moveaxis")(x, axis, -1)
    index = ranked(x, k, bool(node.attr("largest", 1)))
    value = along(node, x, index, -1)
    return [f("moveaxis")(value, -1, axis), f("moveaxis")(index, -1, axis)]
