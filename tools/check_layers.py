#!/usr/bin/env python3
"""Hold every #include of src/ against the chain of folders: each may use only what stands left.

    base < solve < ir < eval < {verify, cost} < {search, plan} < backend < driver

Siblings in braces never see each other, nor do the engines in search/ or the back ends. The
public header (include/tessera) belongs to the driver. And no two types of one namespace have one
name: the linker would take the functions of one for those of the other. Exit code 1 lists the
offending lines.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

CHAIN: list[set[str]] = [
    {"base"},
    {"solve"},
    {"ir"},
    {"eval"},
    {"verify", "cost"},
    {"search", "plan"},
    {"backend"},
    {"driver"},
]
LEVEL = {folder: level for level, folders in enumerate(CHAIN) for folder in folders}
# Subfolders that may use their parent folder but neither each other nor be used by the parent.
ISLANDS = {"search": {"mugraph", "synth", "mutate", "patterns"}}
# What an island opens to one neighbour: rules are made of synthesis' nodes and run in its e-graph.
BRIDGES = {"search": {("rules", "synth")}}
# Subfolders that never see each other, though the parent may gather them.
RIVALS = {"backend": {"cpu", "cuda"}}
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
        return None if mine == "driver" else "only driver may include the public header"
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


def main(argv: list[str]) -> int:
    src = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[1] / "src"
    found = [*offences(src), *namesakes(src)]
    for line in found:
        print(line)
    print(f"check_layers: {len(found)} offences" if found else "check_layers: the chain holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
