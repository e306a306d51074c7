"""Recurrent layers, step by step: the products with the input are one for all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tessera.frontends.onnx.node import Node, Value, handles
from tessera.frontends.onnx.operators.elementwise import ACTIVATIONS, emit, f, number
from tessera.frontends.onnx.operators.movement import counts, extent
from tessera.tensor import Tensor

_MOST_STEPS = 64  # longer sequences stay one opaque node, which does not grow with their length

Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS = {name.lower(): how for name, how in ACTIVATIONS.items()} | {
    "affine": (lambda x, a, b: x * a + b, None, None),
    "scaledtanh": (lambda x, a, b: f("tanh")(x * b) * a, None, None),
}


def _activation(
    node: Node, name: str, alpha: Iterator[float], beta: Iterator[float]
) -> Activation | None:
    """A function by its ONNX name; those with parameters take the next ones of the lists. None
    where it lacks some that ONNX states no default for."""
    key = name.lower()
    if key in ("sigmoid", "tanh", "relu"):
        return f(key)
    if key not in _ACTIVATIONS:
        raise node.bad(f"the activation '{name}' is not known")
    function, a, b = _ACTIVATIONS[key]
    if key not in ("softsign", "softplus"):
        a = next(alpha, a)
    if key in ("affine", "scaledtanh", "hardsigmoid"):
        b = next(beta, b)
    if a is None or b is None:
        return None
    return lambda x: function(x, number(x, a), number(x, b))


@dataclass(frozen=True)
class Direction:
    """One direction's weights: input [T, B, G·H] already multiplied and with its biases, recurrent
    weights [H, G·H], the recurrent bias of the last gate [H] (kept apart for a GRU), peepholes."""

    projected: Tensor
    recurrent: Tensor
    last_bias: Tensor | None
    peepholes: list[Tensor]
    activations: list[Activation]
    clip: float | None

    def act(self, i: int, x: Tensor) -> Tensor:
        if self.clip is not None:
            x = emit("max", number(x, -self.clip), emit("min", number(x, self.clip), x))
        return self.activations[i](x)


def _gates(x: Tensor, count: int) -> list[Tensor]:
    size = int(x.shape[-1]) // count
    return [x[..., i * size : (i + 1) * size] for i in range(count)]


def _rnn(d: Direction, x: Tensor, state: list[Tensor], _: Node) -> list[Tensor]:
    return [d.act(0, x + emit("matmul", state[0], d.recurrent))]


def _gru(d: Direction, x: Tensor, state: list[Tensor], node: Node) -> list[Tensor]:
    (h,) = state
    size = int(h.shape[-1])
    gates = emit("matmul", h, d.recurrent[:, : 2 * size])
    update, reset = (d.act(0, g) for g in _gates(x[..., : 2 * size] + gates, 2))
    weights = d.recurrent[:, 2 * size :]
    late = bool(node.attr("linear_before_reset", 0))
    inner = emit("matmul", h if late else reset * h, weights)
    inner = inner if d.last_bias is None else inner + d.last_bias
    inner = reset * inner if late else inner
    candidate = d.act(1, x[..., 2 * size :] + inner)
    return [(number(h, 1) - update) * candidate + update * h]


def _lstm(d: Direction, x: Tensor, state: list[Tensor], node: Node) -> list[Tensor]:
    h, c = state
    i, o, forget, cell = _gates(x + emit("matmul", h, d.recurrent), 4)
    if d.peepholes:
        i, forget = i + d.peepholes[0] * c, forget + d.peepholes[2] * c
    i = d.act(0, i)
    kept = number(i, 1) - i if node.attr("input_forget", 0) else d.act(0, forget)
    c = kept * c + i * d.act(1, cell)
    if d.peepholes:
        o = o + d.peepholes[1] * c
    return [d.act(0, o) * d.act(2, c), c]


# By operator: gates, states, the step, the functions it has by default.
_LAYERS = {
    "RNN": (1, 1, _rnn, ["Tanh"]),
    "GRU": (3, 1, _gru, ["Sigmoid", "Tanh"]),
    "LSTM": (4, 2, _lstm, ["Sigmoid", "Tanh", "Tanh"]),
}


@handles("RNN", "GRU", "LSTM", written_out=True)
def recurrent(node: Node) -> list[Value] | None:
    gates, states, step, defaults = _LAYERS[node.proto.op_type]
    batchwise = bool(node.attr("layout", 0))
    x = node.x(0)
    if x.ndim != 3:
        raise node.bad("its input must have three axes")
    if batchwise:
        x = f("moveaxis")(x, 1, 0)
    steps, batch = extent(node, x, 0), x.shape[1]
    if steps > _MOST_STEPS:
        return None
    way = node.attr("direction", "forward")
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(way)
    if ways is None:
        raise node.bad(f"the direction '{way}' is not known")
    size = extent(node, node.x(2), 2)
    for i in (1, 2):
        if node.shape(i)[:2] != (len(ways), gates * size):
            raise node.bad(f"weights of shape {node.shape(i)} do not fit {gates} gates of {size}")
    lengths = node.value(4) if node.has(4) else np.asarray(steps)
    whole = isinstance(lengths, np.ndarray) and (lengths == steps).all()
    length = None if whole else f("expand_dims")(counts(node, 4, steps), 1)
    names = node.attr("activations", defaults * len(ways))
    names = [n.decode() if isinstance(n, bytes) else n for n in names]
    if len(names) != len(defaults) * len(ways) or not all(isinstance(n, str) for n in names):
        raise node.bad(f"needs the names of {len(defaults)} activations for each direction")
    parameters = [iter(node.attr(f"activation_{p}", [])) for p in ("alpha", "beta")]
    functions = [_activation(node, n, *parameters) for n in names]
    # Runtimes differ in whether a clipped gate has its peephole yet.
    if None in functions or (node.has(7) and node.has_attr("clip")):
        return None

    def initial(n: int, i: int) -> Tensor:
        if not node.has(i):
            return f("broadcast_to")(x.builder.const(0, x.dtype), [batch, size])
        return node.x(i)[:, n] if batchwise else node.x(i)[n]

    results: list[list[Tensor]] = []  # by step, of each direction
    last: list[list[Tensor]] = []  # by state
    for n, backwards in enumerate(ways):
        mine = [a for a in functions[n * len(defaults) : (n + 1) * len(defaults)] if a is not None]
        d = _direction(node, x, n, gates, size, mine)
        state = [initial(n, 5 + s) for s in range(states)]
        made: list[Tensor] = []
        for t in range(steps):
            at = steps - 1 - t if backwards else t
            new = step(d, d.projected[at], state, node)
            shown = new[0]
            if length is not None:
                alive = emit("lt", length.builder.const(at, length.dtype), length)
                new = [emit("where", alive, a, b) for a, b in zip(new, state, strict=True)]
                shown = emit("where", alive, shown, number(shown, 0))
            state = new
            made.append(shown)
        results.append(made[::-1] if backwards else made)
        last.append(state)
    # [T, directions, B, H] and [directions, B, H]; batch first where asked for.
    by_way = [f("stack")(made, 1 if batchwise else 0) for made in results]
    every = f("stack")(by_way, 2 if batchwise else 1)
    ends = [f("stack")([way[s] for way in last], 1 if batchwise else 0) for s in range(states)]
    return [every, *ends]


def _direction(
    node: Node, x: Tensor, n: int, gates: int, size: int, functions: list[Activation]
) -> Direction:
    projected = emit("matmul", x, f("transpose")(node.x(1)[n]))
    last = None
    if node.has(3):
        bias = node.x(3)[n]
        ours, theirs = bias[: gates * size], bias[gates * size :]
        if gates == 3:  # a GRU multiplies the last recurrent bias by its reset gate
            last = theirs[2 * size :]
            ours = f("concatenate")([ours[: 2 * size] + theirs[: 2 * size], ours[2 * size :]], 0)
        else:
            ours = ours + theirs
        projected = projected + ours
    peepholes = _gates(node.x(7)[n], 3) if node.has(7) else []
    clip = float(node.attr("clip")) if node.has_attr("clip") else None
    weights = f("transpose")(node.x(2)[n])
    return Direction(projected, weights, last, peepholes, functions, clip)
