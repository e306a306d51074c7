"""Programs as nested boxes: kernel ⊃ block ⊃ thread, with shapes and maps."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

Data = Mapping[str, Any]
_GRID, _LOOPS = "xyz", "ijkl"
_KINDS = {
    "memory": "input iter save const iota opaque",
    "product": "matmul concat_matmul",
    "reduction": "sum mean reduce_max reduce_min accum accum_rescale cumsum",
    "movement": "transpose reshape broadcast unsqueeze squeeze repeat concat stack slice pad triu "
    "tril gather cast",
}
KIND = {op: kind for kind, ops in _KINDS.items() for op in ops.split()}  # else "pointwise"


def program(graph: Data, title: str) -> str:
    """A kernel graph: one box per operator or kernel, in order."""
    parts = []
    run: list[str] = []
    for n, op in enumerate(graph["ops"]):
        if op["body"] is None:
            run.append(_line(op, "p"))
            continue
        if run:
            parts.append(f'<div class="ops">{"".join(run)}</div>')
            run = []
        parts.append(_kernel(op, f"p{n}"))
    if run:
        parts.append(f'<div class="ops">{"".join(run)}</div>')
    outputs = ", ".join(map(escape, graph["outputs"]))
    return (
        f'<div class="graph" data-scope><h3>{escape(title)} '
        f"<small>{escape(graph['name'])}</small></h3>"
        f'{"".join(parts)}<p class="returns">returns <b>{outputs}</b></p></div>'
    )


def _kernel(op: Data, scope: str) -> str:
    body = op["body"]
    grid = " ".join(f"{_GRID[i]}={n}" for i, n in enumerate(body["grid"]))
    loops = " ".join(f"{_LOOPS[i]}={n}" for i, n in enumerate(body["loops"]))
    arguments = ", ".join(_value(t, "p") for t in op["inputs"])
    results = ", ".join(f"{_value(r, 'p')}<i>{escape(r['type'])}</i>" for r in op["results"])
    blocks = 1
    for n in body["grid"]:
        blocks *= n
    # The body's own inputs repeat the arguments; an `iter` says what is taken of them.
    ops = [o for o in body["ops"] if o["op"] != "input"]
    outer = dict(zip([o["results"][0]["id"] for o in body["ops"] if o["op"] == "input"],
                     op["inputs"], strict=False))  # fmt: skip
    arguments_of = {o["results"][0]["id"]: o["results"][0]["type"] for o in body["ops"]
                    if o["op"] == "input"}  # fmt: skip
    phases: list[tuple[str, str, list[str]]] = [
        ("invariant", "once per block", []),
        ("loop", f"loop {loops}: every iteration", []),
        ("post", "after the loop" if body["loops"] else "", []),
    ]
    index = {name: i for i, (name, _, _) in enumerate(phases)}
    looping = bool(body["loops"])
    for o in ops:
        phase = o["results"][0]["phase"] or "invariant"
        if o["op"] in ("accum", "accum_rescale"):
            phase = "loop"  # it folds there, though its value is known afterwards
        if not looping:
            phase = "invariant"
        html = _thread(o, scope) if o["body"] is not None else _line(o, scope, arguments_of, outer)
        phases[index.get(phase, 0)][2].append(html)
    inner = ""
    for name, label, lines in phases:
        if lines:
            heading = label if looping else ""
            inner += (
                f'<div class="phase {name}">'
                + (f"<h5>{escape(heading)}</h5>" if heading else "")
                + f'<div class="ops">{"".join(lines)}</div></div>'
            )
    size = body["block_bytes"]
    memory = f" · {size / 1024:,.0f} KB a block" if size else ""
    return (
        f'<details class="kernel" open><summary><b>kernel</b> {results}'
        f"<small>reads {arguments}</small></summary>"
        f'<div class="block"><h4>block <small>grid {escape(grid)} = {blocks} blocks'
        f"{memory}</small></h4>{inner}</div></details>"
    )


def _thread(op: Data, scope: str) -> str:
    lines = "".join(_line(o, scope + "t") for o in op["body"]["ops"] if o["op"] != "input")
    results = ", ".join(f"{_value(r, scope)}<i>{escape(r['type'])}</i>" for r in op["results"])
    return (
        f'<div class="thread"><h5>thread: {results} stays in registers</h5>'
        f'<div class="ops">{lines}</div></div>'
    )


def _line(
    op: Data,
    scope: str,
    arguments: Mapping[int, str] | None = None,
    outer: Mapping[int, Data] | None = None,
) -> str:
    """One operator: result ← operator operands attributes, and the result's type."""
    kind = KIND.get(op["op"], "pointwise")
    results = ", ".join(_value(r, scope) for r in op["results"])
    types = ", ".join(escape(r["type"]) for r in op["results"])
    operands = " ".join(_value(t, scope) for t in op["inputs"])
    if op["op"] == "iter" and arguments is not None and outer is not None:
        operands = _value(outer[op["inputs"][0]["id"]], "p")  # the kernel's argument itself
        source = arguments.get(op["inputs"][0]["id"], "")
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


def _value(tensor: Data, scope: str) -> str:
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


def _attributes(op: Data) -> str:
    attrs = dict(op["attrs"])
    if op["op"] in ("const", "iota"):
        attrs.pop("type", None)
    if op["op"] == "const":
        return str(attrs.get("value", ""))
    if op["op"] == "input":
        return "weight" if attrs.get("weight") else ""
    shown = []
    for key, value in attrs.items():
        if key == "keepdims" or value in (-1, [], None):
            continue
        if key == "loops":
            shown.append("over " + ",".join(_LOOPS[i] for i in value))
        elif key == "kind":
            if value != "sum":
                shown.append(str(value))
        elif key == "axes":
            shown.append("axis " + ",".join(map(str, value)))
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            shown.append(f"{key} {text}")
    return " ".join(shown)
