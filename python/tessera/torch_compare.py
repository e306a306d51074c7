"""Whether results are PyTorch's but for rounding: what the first run of a program is held to.

An element may be off by what rounding comes to in its row or column; where that fails, by what it
comes to for this element, which a graph in f64 tells (sums that cancel).
"""

from __future__ import annotations

import contextlib
import math

import torch
from torch.fx.node import Target

from tessera.frontends.torch.call import operator_name
from tessera.types import Arguments, Object, Record, Value, Values

_MANY = 16  # elements by which rounding is judged
_EPS = {torch.float64: 2e-16, torch.float32: 1.2e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}
_STEP = 2.0**-26  # of the differences that tell how operands move a result
_SAMPLES = 3
# A sum of n terms is the exact sum of terms that are each off by at most n roundings, by about the
# root of n as a rule (Higham, Accuracy and Stability, ch. 4; Higham and Mary 2019).
_ROUNDINGS = 64


def _units(dtype: torch.dtype) -> float:
    """What rounding may come to, relative to an element: 16-bit floats are rounded at other places
    than PyTorch's."""
    return (8 if dtype in (torch.float16, torch.bfloat16) else 2000) * _EPS[dtype]


def _form(value: torch.Tensor) -> str:
    """Dtype, shape, and the strides along which there is something."""
    strides = [s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1]
    return f"{value.dtype}{list(value.shape)} with strides {strides if value.numel() else []}"


def difference(got: torch.Tensor, want: torch.Tensor) -> str | None:
    """Where two results are further apart than rounding explains; None where they are not.

    Rounding of an element is measured against the largest of those with which it shares a row, or
    a column, whichever is less; few elements say nothing of what was added up to make one."""
    if not want.numel():
        return None
    if not want.is_floating_point():
        bad = int((got != want).sum())
        return f"{bad} of {want.numel()} elements" if bad else None
    finite = torch.isfinite(want)
    same = (got == want) | (torch.isnan(got) & torch.isnan(want))
    if not bool((finite | same).all()):
        return "another element is infinite or NaN"
    size = torch.where(finite, want.double().abs(), 0.0)
    wrong = torch.where(finite, (got.double() - want.double()).abs(), 0.0)
    around = size.amax()
    if want.ndim and want.shape[-1] >= _MANY:
        around = torch.minimum(around, size.amax(-1, keepdim=True))
    if want.ndim and want.numel() >= _MANY * want.shape[-1]:
        around = torch.minimum(around, size.reshape(-1, want.shape[-1]).amax(0))
    units = _units(want.dtype)
    loose = torch.get_float32_matmul_precision() != "highest"
    if loose and want.dtype is torch.float32 and want.device.type != "cpu":
        units = 20 * 2.0**-11  # we and PyTorch, told that both may, may round factors differently
    limit = units * around.clamp(min=1e-30)
    beyond = torch.where(torch.isnan(wrong), math.inf, wrong) > limit
    if not bool(beyond.any()):
        return None
    at = int((wrong / limit).nan_to_num(math.inf).argmax())
    return (f"by {float(wrong.flatten()[at]):.3g}, where "
            f"{float(limit.expand_as(wrong).flatten()[at]):.3g} is rounding")  # fmt: skip


def tells_nothing(got: Value, want: Value) -> bool:
    """Whether a row or a column of a result has cancelled to zeros in PyTorch's alone, which leaves
    no size to measure rounding by: other arguments may tell."""
    if not isinstance(want, torch.Tensor) or not want.is_floating_point() or not want.ndim:
        return False
    if got.shape != want.shape or not want.numel():
        return False
    ours, theirs = (x.reshape(-1, want.shape[-1]) for x in (got, want))
    return any(bool((ours.any(axis) & ~theirs.any(axis)).any()) for axis in (0, 1))


def same_bits(got: Value, want: Value) -> bool:
    """Whether two results have the same bits, NaN in the same places."""
    if not isinstance(want, torch.Tensor):
        return bool(got == want)
    if _form(got) != _form(want):
        return False
    if not want.is_floating_point():
        return bool(torch.equal(got, want))
    same = (got == want) & (torch.signbit(got) == torch.signbit(want))
    return bool((same | (torch.isnan(got) & torch.isnan(want))).all())


def _results(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    (output,) = graph.graph.find_nodes(op="output")
    made = output.args[0]
    return list(made) if isinstance(made, (list, tuple)) else [made]


def as_told(values: Values, graph: torch.fx.GraphModule) -> list[Value]:
    """Results of PyTorch's in the dtypes that the graph says: statistics of LayerNorm are f32 where
    its weights are, whatever PyTorch says of them."""
    told = [n.meta.get("val") if hasattr(n, "meta") else None for n in _results(graph)]
    return [v.to(t.dtype) if isinstance(t, torch.Tensor) else v
            for v, t in zip(values, told, strict=True)]  # fmt: skip


def disagreement(
    ours: Values, theirs: Values, graph: torch.fx.GraphModule, args: Values
) -> str | None:
    """Which result of a graph of ATen operators is not PyTorch's, and by how much; None: none is.

    Where the results alone do not explain a difference, both are held against the graph in f64."""
    exact: list[Value] | None = None
    moved: list[Value] | None = None
    for at, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(want, torch.Tensor):
            continue
        if (have := _form(got)) != (wanted := _form(want)):
            return f"result {at} is {have}, not {wanted}"
        if (why := difference(got, want)) is None or _is_anything(_results(graph)[at]):
            continue
        if want.dtype in _EPS and want.dtype != torch.float64:
            exact = exact or in_f64(graph, args)
            if exact is not None and closer(got, want, exact[at]):
                continue
            moved = moved or (exact and movements(graph, args, exact))
            rounded = _coarsest(graph, want.dtype)
            if exact and moved and closer(got, want, exact[at], moved[at], rounded):
                continue
        return f"result {at} differs from PyTorch's: {why}"
    return None


def _is_anything(node: torch.fx.Node) -> bool:
    """Whether a result is an empty tensor, which may have any values."""
    return hasattr(node, "target") and operator_name(node.target).startswith("aten.empty")


def _coarsest(graph: torch.fx.GraphModule, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the floats of a graph that are rounded most; `dtype`: of its result."""
    values = [n.meta.get("val") for n in graph.graph.nodes]
    found = {v.dtype for v in values if isinstance(v, torch.Tensor)} & set(_EPS)
    return max({dtype, *found}, key=lambda d: _EPS[d])


def closer(
    got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor, moved: torch.Tensor | None = None,
    rounded: torch.dtype | None = None,
) -> bool:  # fmt: skip
    """Whether `got` is no further from the exact result than `want`, where it is furthest in the
    row, by four times, or than rounding of the exact element, or of the operands (`movements`) to
    the dtype `rounded`."""
    if exact.shape != want.shape or not bool(torch.isfinite(exact).all()):
        return False
    ours, theirs = (got.double() - exact).abs(), (want.double() - exact).abs()
    if theirs.ndim:
        theirs = theirs.amax(-1, keepdim=True)
    limit = 4 * theirs + _units(want.dtype) * exact.abs()
    if moved is not None:
        rounded = rounded or want.dtype
        limit += min(_ROUNDINGS * _EPS[rounded], _units(rounded)) * moved
    return bool((ours <= limit).all())


class _Wide(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a graph with floats of 64 bits; operands off by `step`, relative, up or down at
    random (the same for all steps)."""

    def __init__(self, graph: torch.fx.GraphModule, step: float = 0.0, seed: int = 0) -> None:
        super().__init__(graph)
        self._step = step
        self._random = torch.Generator().manual_seed(seed)

    def run_node(self, node: torch.fx.Node) -> Value:
        made = super().run_node(node)
        if not self._step or node.op == "output":
            return made
        return torch.fx.node.map_aggregate(made, self._off)

    def _set_current_node(self, node: torch.fx.Node) -> contextlib.AbstractContextManager[None]:
        """What a graph being traced by another thread notes its own nodes in is left alone."""
        return contextlib.nullcontext()

    def call_function(self, target: Target, args: Arguments, kwargs: Record) -> Value:
        args, kwargs = torch.fx.node.map_aggregate((args, kwargs), _wide)
        return super().call_function(target, args, kwargs)

    def _off(self, value: Object) -> Value:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        up = torch.randint(0, 2, value.shape, generator=self._random)
        up = up.to(value.device, torch.float64)  # sums of 32 bits would lose the step
        return value.double() * (1 + self._step * (2 * up - 1))


def _wide(value: Object) -> Value:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def in_f64(
    graph: torch.fx.GraphModule, args: Values, step: float = 0.0, seed: int = 0
) -> list[Value] | None:  # fmt: skip
    """The graph's results with floats of 64 bits throughout, all operands off by `step`; None where
    that cannot be."""
    try:
        with torch.no_grad():
            made = _Wide(graph, step, seed).run(*map(_wide, args))
    except Exception:  # an operator that there is not for such floats
        return None
    return [_wide(r) for r in (made if isinstance(made, (list, tuple)) else [made])]


def movements(graph: torch.fx.GraphModule, args: Values, exact: Values) -> list[Value] | None:
    """How far the results move, per relative change of every operand of every operator (Monte Carlo
    arithmetic; Parker 1997): the most of some samples. Elements that jump count as if they did not
    move: twice the change has to move them twice as far."""
    most = [torch.zeros_like(e) if isinstance(e, torch.Tensor) and e.is_floating_point() else None
            for e in exact]  # fmt: skip
    for seed in range(_SAMPLES):
        once, twice = (in_f64(graph, args, n * _STEP, seed) for n in (1, 2))
        if once is None or twice is None:
            return None
        for found, at, a, b in zip(most, exact, once, twice, strict=True):
            if found is not None:
                by, further = a - at, b - at
                linear = (further - 2 * by).abs() <= by.abs() / 2
                torch.maximum(found, torch.where(linear, by.abs() / _STEP, 0.0), out=found)
    return most
