"""Patterns from Python: insert and remove kernels while a process runs (PluS, ATC'25, §5).

Both of the paper's ways: a PyTorch module (or a traced program) with code, from which the +Graph is
derived; and an explicit +Graph with a template. Code is a block graph, whose placeholders are
`iter`, computations its operators, and write-backs `save`; or C++ and CUDA, where they are `load`,
statements, and `store`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tessera import _core
from tessera.cache_folder import make_own
from tessera.errors import BadInputError, NotFoundError
from tessera.files import write_text
from tessera.frontends.torch.call import dtype_of
from tessera.frontends.torch.importer import build
from tessera.graph import Graph
from tessera.options import registered_patterns, users
from tessera.patterns import SUFFIX, Pattern, check_pattern, read_pattern
from tessera.types import Values

if TYPE_CHECKING:
    from torch.nn import Module

_folder: tempfile.TemporaryDirectory[str] | None = None


def register(name: str, meaning: str | Graph | Module, *, kernel: str = "", body: str = "",
             call: str = "", code: Mapping[str, str] | None = None, example: Values = (),
             sizes: Mapping[str, int] | None = None, loops: str = "", numbers: Sequence[str] = (),
             prologue: Sequence[str] = (), epilogue: bool = False, when: str = "",
             tune: Mapping[str, Sequence[int]] | None = None,
             scope: Literal["process", "user", "project"] = "process",
             check: bool = True) -> Pattern:  # fmt: skip
    """Adds a kernel to the warehouse, proved first; a pattern of this name is replaced.

    `meaning` is what it computes: statements of the text format with symbols for sizes; a Graph; or
    a torch.nn.Module, which is exported with the arguments `example`. Of the last two, `sizes` say
    which extents are symbols (`{"M": 48, "N": 512}`), and parameters come before arguments among
    the inputs, under their names (dots become underscores). How it is computed is one of `kernel`
    (`grid[x=M/16] { … }`), `body` (statements) and `call` (torch OP, onednn, cublaslt, cudnn,
    packed), or `code`, or both: texts by target, {"cpu": "for m = M { … }", "cuda": "for m = M
    threads 128 { … }"} ("cuda raw" for CUDA that only NVIDIA's compiler takes). `loops` is an
    explicit +Graph; without it the meaning's is derived. See docs/patterns.md for all of these.

    `scope`: for this process, or kept for this user or this folder's project. Raises BadInputError
    where the file would be malformed or the kernel is not the meaning; code is not proved but run
    against it, and with check=False it is not used.
    """
    ways = sum(map(bool, (kernel, body, call)))
    if ways > 1 or (ways == 0 and not code):
        raise BadInputError(
            "one of kernel, body and call, or code, says how the pattern is computed"
        )
    for target in code or ():
        if target not in ("cpu", "cuda", "cuda raw"):
            raise BadInputError(f"code is for cpu, cuda or cuda raw, not for {target!r}")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", name):
        raise BadInputError(f"{name!r} is no name: letters, digits, '_', '-' and '.' are")
    lines = [f"pattern {name}", "  def {", _statements(meaning, example, sizes or {}), "  }"]
    lines += [f"  numbers {', '.join(numbers)}"] if numbers else []
    lines += [f"  prologue {', '.join(prologue)}"] if prologue else []
    lines += ["  epilogue"] if epilogue else []
    lines += [f"  when {when}"] if when else []
    lines += [f"  loops {{\n{loops.strip(chr(10))}\n  }}"] if loops else []
    lines += [f"  tune {n} = {' '.join(map(str, v))}" for n, v in (tune or {}).items()]
    lines += [f"  kernel {kernel.strip()}"] if kernel else []
    lines += [f"  body {{\n{body}\n  }}"] if body else []
    lines += [f"  call {call}"] if call else []
    lines += [f"  code {target} {written.strip()}" for target, written in (code or {}).items()]
    text = "\n".join(lines) + "\n"
    with tempfile.TemporaryDirectory() as made:
        draft = Path(made) / (name + SUFFIX)
        write_text(draft, text)
        read_pattern(draft)
        if check and not (found := check_pattern(draft)).holds:
            raise BadInputError(f"pattern {name}: {found.why}")
    path = _scope(scope) / (name + SUFFIX)
    make_own(path.parent)
    write_text(path, text)
    return read_pattern(path)


def unregister(name: str, *, scope: Literal["process", "user", "project"] = "process") -> None:
    """Removes what `register` added; NotFoundError if there is none of this name."""
    path = _scope(scope) / (name + SUFFIX)
    if not path.exists():
        raise NotFoundError(f"no pattern '{name}' was registered for this {scope}")
    path.unlink()


def _scope(scope: str) -> Path:
    global _folder
    if scope == "user":
        return users("patterns")
    if scope == "project":
        return Path(".tessera") / "patterns"
    if scope != "process":
        raise BadInputError(f"scope is process, user or project, not {scope!r}")
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="tessera-patterns-")
        registered_patterns.append(_folder.name)
    return Path(_folder.name)


def _statements(meaning: str | Graph | Module, example: Values, sizes: Mapping[str, int]) -> str:
    if isinstance(meaning, str):
        return meaning.strip("\n")
    if isinstance(meaning, Graph):
        graph, names = meaning, [value.name for value in meaning.inputs]
    else:
        graph, names = _exported(meaning, example)
    symbols = {int(extent): symbol for symbol, extent in sizes.items()}
    if len(symbols) < len(sizes):
        raise BadInputError("sizes: two symbols have one extent; take an example that tells them")
    names = [re.sub(r"\W", "_", name) for name in names]
    text = _core.pattern_meaning(graph.core, names, symbols)
    if text is None:
        raise BadInputError(
            "the program has no def with these symbols: it needs one result and one element type, "
            "and operators or constants tie some of the sizes; leave those out of `sizes`"
        )
    return text.rstrip("\n")


def _exported(module: Module, example: Values) -> tuple[Graph, list[str]]:
    """The program of a torch.nn.Module and its inputs' names: parameters, then arguments."""
    try:
        import torch
    except ImportError:
        raise BadInputError("a meaning is text, a Graph or a torch.nn.Module") from None
    from tessera.frontends.torch.decompositions import decompositions

    if not isinstance(module, torch.nn.Module):
        raise BadInputError(f"a meaning is text, a Graph or a torch.nn.Module, not {module!r}")
    program = torch.export.export(module.eval(), tuple(example))
    program = program.run_decompositions(decompositions())
    lifted = (
        program.graph_signature.inputs_to_parameters | program.graph_signature.inputs_to_buffers
    )
    inputs, names = [], []
    for node in program.graph_module.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            inputs.append((dtype_of(value.dtype), tuple(map(int, value.shape))))
            names.append(lifted.get(node.name, node.name))
    graph, _ = build(program.graph_module, inputs, [False] * len(inputs), "module")
    return graph, names
