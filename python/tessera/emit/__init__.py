"""Programs as source that a person reads: NumPy, JAX or PyTorch."""

from __future__ import annotations

import linecache
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tessera.emit.call import LARGEST_CONSTANT, Call, call_of
from tessera.emit.dialects import SPELLINGS
from tessera.emit.idioms import IDIOMS, respelled
from tessera.emit.layout import Layout, valid_name, wrapped
from tessera.emit.lift import Lifter
from tessera.emit.node import Node
from tessera.emit.spell import Spelling, extent_of
from tessera.errors import UnsupportedError, UsageError
from tessera.graph import Graph
from tessera.types import Array, Dim, Function, Record, dtype_name

FLAVOURS = tuple(SPELLINGS)
_SMALL = 4  # numbers up to here stand for themselves


def emit(graph: Graph, flavour: str = "numpy", *, name: str = "", notes: Sequence[str] = (),
         constants: Mapping[str, Array] | None = None, call: Call | None = None,
         copies: Collection[int] = (), as_scalars: Collection[int] = (),
         as_arrays: Collection[int] = (), these_sizes: bool = False, these_ranks: bool = False,
         these_ties: Mapping[int, int] | None = None, read_sizes: str = "",
         these_dtypes: bool = False, idioms: Collection[str] = ()) -> str:  # fmt: skip
    """The source of a program of kernel-level operators, as one function of its inputs.

    `flavour` is "numpy", "jax" or "torch". `notes` become comments, for example what the program
    assumes (`A > 0`). `constants` are small arrays to be spelled out instead of passed, by input
    name. `call` is how the function is called, where it is to replace another one, and `copies`
    are the outputs that are copied, lest they share memory with an argument or with each other;
    of those without axes `as_scalars` are returned as NumPy's scalars, `as_arrays` as arrays;
    with `these_sizes` arguments of other shapes than the program's raise ValueError, with
    `these_ranks` those of other ranks, with `these_ties` also those of which other axes are
    equally long, or of extent 1, or shorter than it says by extent, with `these_dtypes` those of
    other dtypes, and masked ones (but under JAX, which makes other dtypes of them); with
    `read_sizes` numbers that are an extent of an argument are read from it (`len(x)`), of several
    that have it from the "first" or the "last". `idioms` are
    names of IDIOMS[flavour]: other spellings of the same program, of which some run faster;
    without any it is the plainest source. Raises UnsupportedError for fused kernels and operators
    without a spelling.

    >>> g = Graph("f")
    >>> x, w = g.input("x", (4, 8)), g.input("w", (8, 2))
    >>> y = g.output(g.sum(x @ w, axis=0) * 2.0)
    >>> print(emit(g))
    import numpy as np
    <BLANKLINE>
    <BLANKLINE>
    def f(x, w):
        # x: float32 (4, 8), w: float32 (8, 2)
        return (x @ w).sum(axis=0) * 2
    <BLANKLINE>
    """
    _require_known(flavour, idioms)
    constants = constants or {}
    extents = _Extents()
    spelling = SPELLINGS[flavour](extents)
    lifter = Lifter(graph, spelling.native)
    inputs = lifter.inputs()
    names = call.names if call else _argument_names(inputs, spelling.module)
    extents.read(inputs, names, read_sizes)
    spelling.sizes = extents.sizes
    reserved = call.reserved if call else set(names)
    said = dict(zip(inputs, names, strict=True))
    layout = Layout(spelling, said, reserved, reuse="reuse" in idioms)
    outputs = respelled(lifter.outputs(), idioms)
    for op, chosen in (("copy", copies), ("as_scalar", as_scalars), ("as_array", as_arrays)):
        outputs = [
            Node(op, (node,), node.dtype, node.shape) if n in chosen else node
            for n, node in enumerate(outputs)
        ]
    results = layout.returned(outputs, call.twice if call else ())
    comments = [*textwrap.wrap(_types(inputs, names), 92), *notes, *sorted(spelling.notes)]
    body = [f"# {comment}" for comment in comments] + (call.lines if call else [])
    own = [n for n, node in zip(names, inputs, strict=True) if node.name not in constants]
    if these_dtypes and flavour != "jax":
        body += _dtype_guards({a: n for a, n in said.items() if n in own and a.ndim}, spelling)
    if these_sizes:
        body += _guards(inputs, names, "shape", "shape")
    if these_ranks or these_ties is not None:
        body += _guards(inputs, names, "rank", "ndim")
    body += [] if these_ties is None else _tie_guards(inputs, names, these_ties)
    body += [f"{names[n]} = {spelling.array(names[n])}" for n in (call.floats if call else ())]
    body += layout.lines
    result = call.returned(results, lambda a: _array(a, spelling)) if call else ", ".join(results)
    long = len(results) > 1 and len(result) > 81 and result[0] not in "{[("
    body.append(f"return ({result})" if long else f"return {result}")
    spelled = [f"{n} = {_array(constants[node.name], spelling)}\n"
               for n, node in zip(names, inputs, strict=True) if n not in own]  # fmt: skip
    title = name or (graph.name if valid_name(graph.name) else "program")
    head = f"def {title}({call.parameters if call else ', '.join(own)}):\n"
    if re.search(r"\bnp\.", head + "\n".join(body)):  # of a constant of the call
        spelling.imports |= {"import numpy as np"}
    imports = sorted(spelling.imports | {spelling.header}, key=lambda x: (x.startswith("from"), x))
    above = "".join(spelled) + "\n" * (1 + bool(spelled))
    return "\n".join(imports) + "\n\n" + above + head + _indented(body)


def _require_known(flavour: str, idioms: Collection[str]) -> None:
    if flavour not in SPELLINGS:
        raise UsageError(f"there is no flavour '{flavour}'; choose one of {', '.join(FLAVOURS)}")
    for idiom in idioms:
        if idiom not in IDIOMS[flavour]:
            known = ", ".join(IDIOMS[flavour])
            raise UsageError(f"there is no idiom '{idiom}' of {flavour}; choose from {known}")


class _Extents:
    """How extents are written: those that arguments have may be read from them."""

    def __init__(self) -> None:
        self.sizes: dict[int, str] = {}
        self._symbols: dict[str, str] = {}

    def read(self, inputs: Sequence[Node], names: Sequence[str], sizes: str) -> None:
        """`sizes`: "" for numbers as they are, else of which of several arguments they are."""
        for node, argument in zip(inputs, names, strict=True):
            for axis, extent in enumerate(node.shape):
                if isinstance(extent, str):
                    self._symbols.setdefault(extent, f"{argument}.shape[{axis}]")
                elif sizes and extent > _SMALL:
                    text = extent_of(argument, axis)
                    self.sizes[extent] = text if sizes == "last" else self.sizes.get(extent, text)
        for extent, text in list(self.sizes.items()):  # as in an unbiased variance
            self.sizes.setdefault(extent - 1, f"({text} - 1)")

    def __call__(self, extent: Dim) -> str:
        if isinstance(extent, int):
            return self.sizes.get(extent, str(extent))
        text = re.sub(r"[A-Za-z_][\w.]*", lambda name: self._symbols[name[0]], extent)
        return text if extent in self._symbols else f"({text})"  # batch*seq


def _indented(body: Sequence[str]) -> str:
    """A function's body, long lines wrapped, but for comments and texts."""
    parts = (part for line in body
             for part in ([line] if line.lstrip()[0] in '#"' else wrapped(line)))  # fmt: skip
    return "".join(f"    {part}\n" for part in parts)


def _argument_names(inputs: Sequence[Node], module: str) -> list[str]:
    names: list[str] = []
    for n, node in enumerate(inputs):
        name = node.name
        if not valid_name(name) or name in (module, *names):
            name = f"{name}_" if valid_name(f"{name}_") and f"{name}_" not in names else f"arg{n}"
        names.append(name)
    return names


def _dtype_guards(arrays: Mapping[Node, str], spelling: Spelling) -> list[str]:
    """What refuses arrays of other dtypes, and masked ones."""
    lines: list[str] = []
    for node, name in arrays.items():
        test, made_for = f"{name}.dtype != {spelling.dtype(node.dtype)}", node.dtype.name
        if spelling.flavour == "numpy":
            test, made_for = f'{test} or hasattr({name}, "mask")', f"{made_for}, not masked"
        message = f"made for {name} of {made_for}; optimize again for others"
        lines += [f"if {test}:", f'    raise ValueError("{message}")']
    return lines


def _guards(inputs: Sequence[Node], names: Sequence[str], what: str, attribute: str) -> list[str]:
    """What refuses arrays of another rank, or of another shape where that is of numbers."""
    lines: list[str] = []
    for node, name in zip(inputs, names, strict=True):
        own = getattr(node, attribute)
        if node.ndim and (what == "rank" or all(isinstance(d, int) for d in node.shape)):
            message = f"made for {name} of {what} {own}; optimize again for others"
            lines += [f"if {name}.{attribute} != {own}:", f'    raise ValueError("{message}")']
    return lines


def _tie_guards(
    inputs: Sequence[Node], names: Sequence[str], least: Mapping[int, int]
) -> list[str]:
    """What refuses arguments of which other axes are equally long, or too short."""
    axes: dict[int, list[str]] = {}
    letters: dict[int, str] = {}
    shapes = []
    for name, node in zip(names, inputs, strict=True):
        if not node.ndim:
            continue
        for axis, extent in enumerate(int(e) for e in node.shape):
            axes.setdefault(extent, []).append(extent_of(name, axis))
            if extent > 1 and len(letters) < len(_LETTERS):
                letters.setdefault(extent, _LETTERS[len(letters)])
        shape = ", ".join(letters.get(int(e), str(e)) for e in node.shape)
        shapes.append(f"{name} of shape ({shape}{',' if node.ndim == 1 else ''})")
    lines = []
    for extent, texts in axes.items():
        low = least.get(extent)
        test = f"{texts[0]} != {extent}" if low is None else f"{texts[0]} < {low}"
        if len(texts) > 1:
            bound = f"== {extent}" if low is None else f">= {low}"
            test = f"not {' == '.join(texts)} {bound}"
        message = f"made for {', '.join(shapes)}"
        if low is not None:
            message += f", {letters.get(extent, extent)} at least {low}"
        message += "; optimize again for others"
        lines += [f"if {test}:", "    raise ValueError("]
        parts = textwrap.wrap(message, 76, break_long_words=False)
        parts = [p + " " for p in parts[:-1]] + parts[-1:]
        lines += [f'        "{part}"' for part in parts]
        lines += ["    )"]
    return lines


_LONGEST = 4096  # elements of an array that source spells out
_LETTERS = "nmkpqrst"  # for extents, in messages


def _types(inputs: Sequence[Node], names: Sequence[str]) -> str:
    return ", ".join(
        f"{name}: {node.dtype.name}" + (f" {node.shape}" if node.ndim else "").replace("'", "")
        for node, name in zip(inputs, names, strict=True)
    )


def _array(array: Array, spelling: Spelling) -> str:
    first = array.reshape(-1)[:1]
    uniform = bool(np.all(array == first) and np.all(np.signbit(array) == np.signbit(first)))
    if array.size > _LONGEST and not uniform:
        raise UnsupportedError(
            f"a constant of {array.size} elements is too long for source; pass it as an argument"
        )
    if dtype_name(array.dtype) == "bf16":
        raise UnsupportedError("constants of bfloat16 have no spelling")
    dtype = spelling.dtype(array.dtype)
    if uniform and array.size > 8:
        value = str(first[0].item()).replace("inf", f"{spelling.module}.inf")
        return f"{spelling.module}.full({tuple(array.shape)}, {value}, dtype={dtype})"
    function = "tensor" if spelling.flavour == "torch" else "array"
    values = repr(array.tolist()).replace("nan", f"{spelling.module}.nan")
    values = values.replace("inf", f"{spelling.module}.inf")
    return f"{spelling.module}.{function}({values}, dtype={dtype})"


def compile_source(source: str, name: str) -> Function:
    """Runs emitted source and returns the function `name`; its lines show up in tracebacks."""
    file = f"<tessera {name} {hash(source) & 0xFFFFFFFF:08x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: Record = {"__name__": file}
    exec(compile(source, file, "exec"), scope)
    function: Function = scope[name]
    return function


__all__ = ["FLAVOURS", "IDIOMS", "LARGEST_CONSTANT", "Call", "call_of", "compile_source", "emit",
           "valid_name"]  # fmt: skip
