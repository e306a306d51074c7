"""Where a rewrite is defined and its original is not: the conditions under which they are equal.

A rewrite may define more than its original, never less. exp(log x) is x where x > 0; what it is
elsewhere (NaN) is given up, and said.
"""

from __future__ import annotations

from fractions import Fraction

from tessera import _core
from tessera.emit import emit
from tessera.errors import Error
from tessera.frontends.trace import subprogram
from tessera.graph import Graph
from tessera.types import Fields

# Of the operand named by its position: what it has to be for the result to be finite.
_PARTIAL: dict[str, tuple[int, str]] = {
    "log": (0, "> 0"),
    "rsqrt": (0, "> 0"),
    "sqrt": (0, ">= 0"),
    "log1p": (0, "> -1"),
    "div": (1, "!= 0"),
    "mod": (1, "!= 0"),
    "power": (0, "> 0"),
}


def conditions(
    original: Graph, rewritten: Graph, certificate: _core.Certificate | None
) -> list[str]:
    """Conditions such as "x > 0" and "y != 0", in NumPy's terms; empty where the verifier saw that
    the rewrite is defined exactly where the original is."""
    if certificate is None or not certificate.record()["assumptions"]:
        return []
    kept = {key for key, _ in _keyed(rewritten)}
    found: dict[str, None] = {}
    for key, op in _keyed(original):
        partial = _PARTIAL.get(op["op"]) or _of_power(op)
        if partial is None or key in kept:
            continue
        at, relation = partial
        operand = op["inputs"][at]
        maker = _maker(original, operand)
        if relation == "!= 0" and maker is not None and maker["op"] == "sqrt":
            operand, relation = maker["inputs"][0], "> 0"
        if maker is not None and maker["op"] == "const":
            continue
        expression = _expression(original, operand)
        found[f"{expression} {relation}" if expression else f"{op['op']} is defined"] = None
    return list(found) or ["the original is finite"]


def ranges(original: Graph, rewritten: Graph) -> list[str]:
    """Products that only the rewrite divides by, which may overflow, or vanish, where the original
    does not: a / b / b is 1 where a and b are 1e-200, and a / (b * b) is not."""
    known = {key for key, _ in _keyed(original)}
    made = {r: key for key, op in _keyed(rewritten) for r in op["results"]}
    found: dict[str, None] = {}
    for key, op in _keyed(rewritten):
        if op["op"] != "div" or key in known or made[op["inputs"][1]] in known:
            continue
        maker = _maker(rewritten, op["inputs"][1])
        if maker is None or maker["op"] not in ("mul", "sqr") or not _of_floats(rewritten, op):
            continue
        if any(_constant(rewritten, i) for i in maker["inputs"]):
            continue
        text = _expression(rewritten, op["inputs"][1]) or "a product that is divided by"
        found[f"{text} neither overflows nor vanishes"] = None
    return list(found)


def numbers_only(original: Graph, rewritten: Graph) -> list[str]:
    """A choice by comparison that became a maximum, a minimum or an absolute value: comparisons
    with NaN are false, so that where(x > 0, x, 0) of NaN is 0, and maximum(x, 0) is NaN."""
    before, after = dict(_keyed(original)), dict(_keyed(rewritten))
    chosen = [op for key, op in before.items() if op["op"] == "where" and key not in after]
    extreme = ("max", "min", "relu", "abs", "reduce_max", "reduce_min")
    made = any(op["op"] in extreme and key not in before for key, op in after.items())
    lost = made and any(_of_floats(original, op) for op in chosen)
    return ["no compared number is NaN"] if lost else []


def _of_floats(graph: Graph, op: Fields) -> bool:
    return "f" in graph.core.type(op["results"][0])[0]


def _constant(graph: Graph, tensor: int) -> bool:
    maker = _maker(graph, tensor)
    if maker is not None and maker["op"] in ("broadcast", "cast", "reshape"):
        return _constant(graph, maker["inputs"][0])
    return maker is not None and maker["op"] == "const"


def _of_power(op: Fields) -> tuple[int, str] | None:
    if op["op"] != "pow":
        return None
    exponent = Fraction(str(op["attrs"]["exponent"]))
    if exponent.denominator == 1:
        return (0, "!= 0") if exponent < 0 else None
    return 0, "> 0" if exponent < 0 else ">= 0"


def _maker(graph: Graph, tensor: int) -> Fields | None:
    return next((op for op in graph.ops if tensor in op["results"]), None)


def _keyed(graph: Graph) -> list[tuple[str, Fields]]:
    """The operators, each with a text that is the same for the same operation on the same inputs of
    the program."""
    names: dict[int, str] = {}
    keyed: list[tuple[str, Fields]] = []
    inputs = 0
    for op in graph.ops:
        if op["op"] == "input":
            key = f"input{inputs}"
            inputs += 1
        else:
            key = f"{op['op']}({', '.join(names[i] for i in op['inputs'])}){op['attrs']}"
        for n, result in enumerate(op["results"]):
            names[result] = f"{hash(key):x}.{n}"
        keyed.append((key, op))
    return keyed


def _expression(graph: Graph, tensor: int) -> str:
    """A value as one NumPy expression; empty where it takes more than a line of moderate length."""
    longest = 60
    try:
        lines = emit(subprogram(graph, [tensor]), name="value").splitlines()
    except Error:
        return ""
    body = lines[next(i for i, line in enumerate(lines) if line.startswith("def ")) :]
    code = [line.strip() for line in body[1:] if line.startswith("    ")]
    code = [line for line in code if line and not line.startswith("#")]
    if len(code) != 1 or not code[0].startswith("return ") or len(code[0]) > longest:
        return ""
    text = code[0].removeprefix("return ").removesuffix(".copy()")
    simple = text.replace("_", "").replace(".", "").replace("(", "").replace(")", "").isalnum()
    return text if simple or text.count("(") == text.count(")") else ""
