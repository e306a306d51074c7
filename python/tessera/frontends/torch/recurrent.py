"""Recurrent layers that PyTorch calls oneDNN for, step by step."""

from __future__ import annotations

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import Call, cast, emit, f, handles, wide
from tessera.tensor import Tensor
from tessera.types import Object

_MOST_STEPS = 64  # of longer sequences oneDNN's loop is better than code that grows with them
_LSTM = 2  # ideep's number


@handles("aten.mkldnn_rnn_layer.default")
def lstm_layer(
    call: Call, x: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor, h: Tensor, cell: Tensor,
    reverse: bool, lengths: Tensor | None, mode: int, *more: Object,
) -> list[Tensor | None]:  # fmt: skip
    """One layer of an LSTM in one direction: x [T,B,I], weights [4H,I] and [4H,H] of the gates i,
    f, g and o, biases [4H]; states before and after [1,B,H], results [T,B,H]."""
    _hidden, layers, has_biases, both, batch_first, train = more
    steps = x.shape[0]
    if mode != _LSTM or lengths or layers != 1 or both or batch_first or train:
        raise UnsupportedError("other than one layer of an LSTM in one direction")
    if steps > _MOST_STEPS:
        raise UnsupportedError(f"of more than {_MOST_STEPS} steps, which would be written out")
    gates = wide(emit("matmul", x, f("transpose")(w)))
    if has_biases:
        gates = gates + wide(b) + wide(c)
    turned = f("transpose")(u)
    state, memory = h[0], wide(cell[0])
    size = memory.shape[1]
    made: list[Tensor] = []
    for t in reversed(range(steps)) if reverse else range(steps):
        sums = gates[t] + wide(emit("matmul", state, turned))
        i, g, n, o = (sums[:, k * size : (k + 1) * size] for k in range(4))
        memory = emit("sigmoid", g) * memory + emit("sigmoid", i) * emit("tanh", n)
        state = cast(emit("sigmoid", o) * emit("tanh", memory), call.dtype)
        made.append(state)
    if reverse:
        made.reverse()
    last = f("expand_dims")(state, 0), f("expand_dims")(cast(memory, call.dtype), 0)
    return [f("stack")(made, 0), *last, None]
