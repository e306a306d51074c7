#!/usr/bin/env python3
"""Hold every #include of src/, and every import of python/tessera, against a chain of layers: each
may use only what stands left.

    base < solve < ir < eval < kernel < {verify, cost} < {search, plan} < backend < driver

Siblings in braces never see each other, nor do the engines in search/ or the back ends. The
public headers (include/tessera) are the driver's, and include the standard library and each other
alone: nothing else is installed. And no two types of one namespace have one
name: the linker would take the functions of one for those of the other.

Modules of a layer of Python may use each other, but not in circles. Imports of the package inside
functions are for what few need and is slow, or optional, and are counted. Exit code 1 lists the
offending lines.
"""

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CHAIN = ["base", "solve", "ir", "eval", "kernel", "verify cost", "search plan", "backend", "driver"]
LEVEL = {folder: i for i, layer in enumerate(CHAIN) for folder in layer.split()}
# Subfolders that may use their parent folder but neither each other nor be used by the parent.
ISLANDS = {"search": {"mugraph", "synth", "mutate", "patterns"}}
# What an island opens to one neighbour: rules are made of synthesis' nodes and run in its e-graph.
BRIDGES = {"search": {("rules", "synth")}}
# Subfolders that never see each other, though the parent may gather them.
RIVALS = {"backend": {"cpu", "cuda"}}
# Modules of python/tessera, or packages with all that is in them but stands elsewhere.
PYTHON_CHAIN = [
    "_core errors clock files types extents machine cache_folder options compilers "
    "calibrate frameworks",
    "tensor",
    "ops",
    "frontends.constants frontends.code frontends.environment frontends.number frontends.sandbox "
    "frontends.numpy frontends.numpy_functions "
    "frontends.intercept",
    "graph",
    "emit frontends verification runner call_race cuda torch_arrays special_values direct_calls "
    "script_calls operators",
    "frontends.onnx frontends.torch",
    "host_calls racer graph_racer race_processes race costs source patterns pattern_authoring "
    "rules store conditions drop_in rewrite rewrite_arena frontends.onnx.rewrite torch_compare "
    "torch_cache torch_experts",
    "report contest export call_forms call_keys function_like candidate result background tuner "
    "entries decorator api background_process mirage",
    "torch_programs torch_device torch_padded torch_parts torch_explain torch_support torch_rest"
    " torch_whole torch_backend",
    "fleet",
    "cli __main__",
]
PYTHON_LEVEL = {name: i for i, layer in enumerate(PYTHON_CHAIN) for name in layer.split()}
MOST_IMPORTS_IN_FUNCTIONS = 6  # it only goes down
SOURCES = {".h", ".cpp", ".def", ".inc"}
NAMESPACE = re.compile(r"^namespace ([\w:]*) ?\{")
TYPE = re.compile(r"^(?:struct|class) (\w+)(?: final)?(?: :.*)? \{")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_and_sub(path: Path) -> tuple[str, str]:
    """`search/mugraph/x.h` → ("search", "mugraph"); `ir/op.h` → ("ir", "")."""
    parts = path.parts
    return parts[0], parts[1] if len(parts) > 2 else ""


def offence(source: Path, included: str, quoted: bool) -> str | None:
    """Why `source` (relative to src/) may not include `included`; None when it may."""
    mine, my_sub = folder_and_sub(source)
    target = Path(included)
    if target.parts[0] == "tessera":
        return None if mine == "driver" else "only driver may include a public header"
    if not quoted:
        return None  # the standard library or the system
    if ".." in target.parts or len(target.parts) < 2:
        return "include by full path from src/, as in ir/graph.h"
    theirs, their_sub = folder_and_sub(target)
    if theirs not in LEVEL:
        return f"'{theirs}' is not a folder of the chain"
    if LEVEL[theirs] > LEVEL[mine]:
        return f"'{theirs}' stands above '{mine}'"
    if theirs != mine:
        same_level = LEVEL[theirs] == LEVEL[mine]
        return f"'{mine}' and '{theirs}' are siblings" if same_level else None
    if my_sub == their_sub:
        return None
    islands = ISLANDS.get(mine, set())
    if their_sub in islands and (my_sub, their_sub) not in BRIDGES.get(mine, set()):
        return f"'{mine}/{their_sub}' is closed to '{mine}/{my_sub}'"
    rivals = RIVALS.get(mine, set())
    if my_sub in rivals and their_sub in rivals:
        return f"'{mine}/{my_sub}' and '{mine}/{their_sub}' are siblings"
    return None


def public_offences(include: Path) -> Iterator[str]:
    """Every include of a public header that users do not have, as `file:line: reason`."""
    for path in sorted(include.rglob("*.h")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            # The standard library's have no suffix.
            if found and (found[1] == '"' or "." in found[2]) and not (include / found[2]).exists():
                yield f"{path}:{number}: {line.strip()}: a public header includes what is installed"


def offences(src: Path) -> Iterator[str]:
    """Every forbidden include below `src`, as `file:line: reason`."""
    for path in sorted(p for p in src.rglob("*") if p.suffix in SOURCES):
        relative = path.relative_to(src)
        if len(relative.parts) < 2 or relative.parts[0] not in LEVEL:
            yield f"{path}:1: outside the folders of the chain"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if (found := INCLUDE.match(line)) and (
                reason := offence(relative, found[2], found[1] == '"')
            ):
                yield f"{path}:{number}: {line.strip()}: {reason}"


def types(text: str) -> Iterator[tuple[str, int]]:
    """Types that a file defines outside of others and of anonymous namespaces, with their lines."""
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if opened := NAMESPACE.match(line):
            names.append(opened[1])
        elif names and line.startswith("}  // ") and "namespace" in line:
            names.pop()
        elif (made := TYPE.match(line)) and "" not in names:
            yield "::".join([*names, made[1]]), number


def namesakes(src: Path) -> Iterator[str]:
    """Every type of a name that another file has given to one already, as `file:line: reason`."""
    first: dict[str, str] = {}
    for path in sorted(p for p in src.rglob("*") if p.suffix in SOURCES):
        for name, number in types(path.read_text()):
            here = f"{path}:{number}"
            if first.setdefault(name, here) != here:
                yield f"{here}: there is a {name} in {first[name]} already"


def layer_of(module: str) -> int:
    """The place in the chain of a module, or of the package that it is in; -1 where it has none."""
    while module and module not in PYTHON_LEVEL:
        module = module.rpartition(".")[0]
    return PYTHON_LEVEL.get(module, -1)


def imports(package: Path) -> Iterator[tuple[str, str, str, bool]]:
    """What a package's modules import of it, but for type checkers' eyes: file:line, the module,
    what it takes, and whether that is inside a function."""
    names = {
        p: ".".join(p.relative_to(package).with_suffix("").parts) for p in package.rglob("*.py")
    }
    files = {name.removesuffix("__init__").rstrip("."): path for path, name in names.items()}

    def walk(node: ast.AST, module: str, inside: bool) -> Iterator[tuple[str, str, str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import | ast.ImportFrom):
                base = f"{child.module}." if isinstance(child, ast.ImportFrom) else ""
                for whole in (f"{base}{alias.name}" for alias in child.names):
                    root, _, taken = whole.partition(".")
                    while taken and taken not in files and taken not in PYTHON_LEVEL:
                        taken = taken.rpartition(".")[0]  # of what is in a module
                    if root == package.name:
                        yield f"{files[module]}:{child.lineno}", module, taken, inside
            yield from walk(child, module, inside or isinstance(child, ast.FunctionDef))

    for module, path in sorted(files.items()):
        yield from walk(ast.parse(path.read_text()), module, False)


def python_offences(package: Path) -> Iterator[str]:
    """Every import from a higher layer or in a circle, and those inside functions if too many."""
    uses: dict[str, set[str]] = {}
    inside = set()
    for place, module, taken, in_function in imports(package):
        if in_function:
            inside.add(place)
            continue
        uses.setdefault(module, set()).add(taken)
        if layer_of(taken) > layer_of(module) >= 0:
            yield f"{place}: '{taken}' stands above '{module}'"
        if module and layer_of(module) < 0:
            yield f"{place}: '{module}' has no layer"
    if len(inside) > MOST_IMPORTS_IN_FUNCTIONS:
        for place in sorted(inside):
            yield f"{place}: inside a function; at most {MOST_IMPORTS_IN_FUNCTIONS} may be"
    try:
        graphlib.TopologicalSorter(uses).prepare()
    except graphlib.CycleError as error:
        yield f"{package}: a circle: {' → '.join(error.args[1][::-1])}"


def main(argv: list[str]) -> int:
    root = Path(__file__).resolve().parents[1]
    src, package = map(Path, argv[1:]) if argv[1:] else (root / "src", root / "python" / "tessera")
    found = [*offences(src), *namesakes(src), *python_offences(package)]
    found += public_offences(src.parent / "include")
    for line in found:
        print(line)
    print(f"check_layers: {len(found)} offences" if found else "check_layers: the chain holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
