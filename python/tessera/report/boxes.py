"""Programs as nested boxes: kernel ⊃ block ⊃ thread, with shapes and maps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from html import escape

from tessera.types import Fields

_GRID, _LOOPS = "xyz", "ijkl"
_KINDS = {
    "memory": "input iter save const iota opaque",
    "product": "matmul concat_matmul",
    "reduction": "sum mean reduce_max reduce_min accum accum_rescale cumsum",
    "movement": "transpose reshape broadcast unsqueeze squeeze repeat concat stack slice pad triu "
    "tril gather cast",
}
KIND = {op: kind for kind, ops in _KINDS.items() for op in ops.split()}  # else "pointwise"


def program(graph: Fields, title: str) -> str:
    """A kernel graph: one box per operator or kernel, in order."""
    parts = []
    numbered = enumerate(graph["ops"])
    for plain, run in itertools.groupby(numbered, lambda item: item[1]["body"] is None):
        if plain:
            parts.append(f'<div class="ops">{"".join(_line(op, "p") for _, op in run)}</div>')
        else:
            parts += [_kernel(op, f"p{n}") for n, op in run]
    outputs = ", ".join(map(escape, graph["outputs"]))
    return (
        f'<div class="graph" data-scope><h3>{escape(title)} '
        f"<small>{escape(graph['name'])}</small></h3>"
        f'{"".join(parts)}<p class="returns">returns <b>{outputs}</b></p></div>'
    )


def _kernel(op: Fields, scope: str) -> str:
    body = op["body"]
    grid = " ".join(f"{_GRID[i]}={n}" for i, n in enumerate(body["grid"]))
    loops = " ".join(f"{_LOOPS[i]}={n}" for i, n in enumerate(body["loops"]))
    arguments = ", ".join(_value(t, "p") for t in op["inputs"])
    # The body's own inputs repeat the arguments; an `iter` says what is taken of them.
    ops = [o for o in body["ops"] if o["op"] != "input"]
    own = [o["results"][0] for o in body["ops"] if o["op"] == "input"]
    taken = {t["id"]: (t["type"], given) for t, given in zip(own, op["inputs"], strict=False)}
    labels = {
        "invariant": "once per block",
        "loop": f"loop {loops}: every iteration",
        "post": "after the loop",
    }
    phases: dict[str, list[str]] = {name: [] for name in labels}
    looping = bool(body["loops"])
    for o in ops:
        phase = o["results"][0]["phase"] or "invariant"
        if o["op"] in ("accum", "accum_rescale"):
            phase = "loop"  # it folds there, though its value is known afterwards
        if not looping:
            phase = "invariant"
        html = _thread(o, scope) if o["body"] is not None else _line(o, scope, taken)
        phases[phase if phase in phases else "invariant"].append(html)
    inner = ""
    for name, lines in phases.items():
        if lines:
            heading = f"<h5>{escape(labels[name])}</h5>" if looping else ""
            ops_html = f'<div class="ops">{"".join(lines)}</div>'
            inner += f'<div class="phase {name}">{heading}{ops_html}</div>'
    size = body["block_bytes"]
    blocks = math.prod(body["grid"])
    memory = f" · {size / 1024:,.0f} KB a block" if size else ""
    return (
        f'<details class="kernel" open><summary><b>kernel</b> {_typed(op, "p")}'
        f"<small>reads {arguments}</small></summary>"
        f'<div class="block"><h4>block <small>grid {escape(grid)} = {blocks} blocks'
        f"{memory}</small></h4>{inner}</div></details>"
    )


def _thread(op: Fields, scope: str) -> str:
    lines = "".join(_line(o, scope + "t") for o in op["body"]["ops"] if o["op"] != "input")
    return (
        f'<div class="thread"><h5>thread: {_typed(op, scope)} stays in registers</h5>'
        f'<div class="ops">{lines}</div></div>'
    )


def _typed(op: Fields, scope: str) -> str:
    return ", ".join(f"{_value(r, scope)}<i>{escape(r['type'])}</i>" for r in op["results"])


def _line(op: Fields, scope: str, taken: Mapping[int, tuple[str, Fields]] | None = None) -> str:
    """One operator: result ← operator operands attributes, and the result's type; `taken`: the
    types of a kernel's inputs, and the arguments that they are."""
    kind = KIND.get(op["op"], "pointwise")
    results = ", ".join(_value(r, scope) for r in op["results"])
    types = ", ".join(escape(r["type"]) for r in op["results"])
    operands = " ".join(_value(t, scope) for t in op["inputs"])
    if op["op"] == "iter" and taken is not None:
        source, argument = taken[op["inputs"][0]["id"]]
        operands = _value(argument, "p")  # the kernel's argument itself
        detail = _tiles(source, op["attrs"].get("imap", []), op["attrs"].get("fmap", []))
    elif op["op"] == "save":
        dtype, shape = op["attrs"].get("type", ["", []])
        whole = f"{dtype}[{','.join(map(str, shape))}]"
        detail = "→ " + _tiles(whole, op["attrs"].get("omap", []), op["attrs"].get("fmap", []))
    else:
        detail = escape(_attributes(op))
    return (
        f'<div class="op k-{kind}"><span class="res">{results}</span>'
        f'<span class="name">{escape(op["op"])}</span><span class="args">{operands} '
        f'<em>{detail}</em></span><span class="type">{types}</span></div>'
    )


def _value(tensor: Fields, scope: str) -> str:
    name = escape(str(tensor["name"]))
    return f'<span class="v" data-v="{scope}:{tensor["id"]}">{name}</span>'


def _tiles(type_text: str, grid: list[int], loops: list[int]) -> str:
    """A shape with what splits each axis: f32[16,1024/i,4096/x]."""
    dtype, _, dims = type_text.rstrip("]").partition("[")
    axes = [d for d in dims.split(",") if d]
    for letters, axis_map in ((_GRID, grid), (_LOOPS, loops)):
        for letter, axis in zip(letters, axis_map, strict=False):
            if 0 <= axis < len(axes):
                axes[axis] += f"<b>/{letter}</b>"
    return f"{escape(dtype)}[{','.join(axes)}]"


def _attributes(op: Fields) -> str:
    attrs = op["attrs"]
    if op["op"] == "const":
        return str(attrs.get("value", ""))
    if op["op"] == "input":
        return "weight" if attrs.get("weight") else ""
    shown = []
    for key, value in attrs.items():
        silent = key == "keepdims" or (op["op"], key) == ("iota", "type")
        if silent or value in (-1, [], None) or (key, value) == ("kind", "sum"):
            continue
        if key == "loops":
            shown.append("over " + ",".join(_LOOPS[i] for i in value))
        elif key == "kind":
            shown.append(str(value))
        elif key == "axes":
            shown.append("axis " + ",".join(map(str, value)))
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            shown.append(f"{key} {text}")
    return " ".join(shown)
