"""`tessera export`: a program as C to compile into another one."""

from __future__ import annotations

from pathlib import Path

import click

from tessera.cli import common
from tessera.errors import UsageError
from tessera.export import export_c
from tessera.files import told_of


@click.command(epilog=common.SRC_HELP)
@common.source_options
@click.option("--c", "as_c", is_flag=True, help="Plain C11: NAME.c, NAME.h and NAME.bin.")
@click.option("-o", "--output", metavar="DIR", default=".", help="Folder; made if missing.")
@click.option("--name", default="", help="Of the files; default: the program's name.")
@common.json_option
def export(
    src: str, shapes: tuple[str, ...], as_c: bool, output: str, name: str, as_json: bool
) -> int:
    """Write SRC as C11 that needs libc and libm alone, for use without Tessera.

    \b
    Examples:
      tessera export prog.py --c -o out
      tessera export model.onnx --c -o out --shape x=f32[1,3,224,224]
      cc -std=c11 -O3 -march=native -c out/prog.c

    \b
    NAME.h says how to call the one function of NAME.c: inputs, then results, then a pointer to
    the bytes of NAME.bin (weights and other data; mmap the file), then a workspace of
    NAME_WORKSPACE_BYTES bytes. It allocates nothing and returns 0, or 1 where an index is out of
    range. Extents are numbers: --shape gives those that are open.

    The program is exported as it is. To make it faster first:
    `tessera optimize prog.py -o fast.py`, then export fast.py.
    """
    if not as_c:
        raise UsageError("say what to export to: --c is C11")
    program = common.read_program(src, shapes)
    folder = Path(output)
    with told_of(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)
    found = export_c(program.graph, folder, data=program.data, name=name)
    if as_json:
        common.print_json({"program": program.graph.name, **found})
        return 0
    console = common.stdout()
    common.print_lines(f"wrote {path}" for path in found["files"])
    console.print(
        f"{found['function']}: {common.count(found['weights_bytes'])} bytes of weights, "
        f"{common.count(found['workspace_bytes'])} of workspace", markup=False
    )  # fmt: skip
    agreed = f"{common.count(found['compared'])} elements"
    if exactly := found["compared_exactly"]:
        agreed += f", {common.count(exactly)} in a finite field"
    checked = f"agree with the interpreter ({agreed})" if found["compared"] else "too much to run"
    console.print(f"loops: valid; {checked}", markup=False)
    return 0
