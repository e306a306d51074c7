"""`tessera verify`: are two programs equal, and does a certificate still hold?"""

from __future__ import annotations

from pathlib import Path

import click

from tessera import _core
from tessera.cli import common
from tessera.files import read_text, require_folder, write_text
from tessera.options import require_threads
from tessera.types import Value
from tessera.verification import other_arrays
from tessera.verification import verify as verify_graphs

EXIT = {"equal": 0, "refuted": 1, "unknown": 2}


@click.command(epilog=common.SRC_HELP.replace("SRC is", "A and B are"))
@click.argument("a")
@click.argument("b")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=TYPE",
              help="Type of an argument of both, e.g. X=f32[16,1024].")  # fmt: skip
@common.level_option
@common.accept_option
@click.option("--seed", type=int, default=None, metavar="N", help="Seed; default: from the system.")
@click.option("--threads", type=int, default=0, metavar="N", help="Worker threads; 0 for all.")
@click.option("--second-opinion", is_flag=True,
              help="Also argue from the operators' laws, and by Z3 if installed.")  # fmt: skip
@click.option("--budget", type=float, default=None, metavar="SECONDS",
              help="Stop after this long, undecided; default: never.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Save the certificate.")
@click.option("--certificate", metavar="FILE", help="Replay this certificate instead.")
@common.json_option
def verify(a: str, b: str, shapes: tuple[str, ...], threads: int, output: str | None,
           certificate: str | None, as_json: bool, **values: Value) -> int:  # fmt: skip
    """Whether B computes what A does.

    \b
    Examples:
      tessera verify before.ug after.ug -o proof.cert     test and keep the certificate
      tessera verify before.ug after.ug --certificate proof.cert     replay it
      tessera verify model.py:slow model.py:fast --shape X=f32[16,1024]

    \b
    Exit code 0: equal, with a certificate. 1: refuted, with inputs at which they differ.
    2: unknown, with the reason (time spent and Ctrl-C among them); never a success.
    """
    if output:
        require_folder(output, a, b)
    require_threads(threads)
    first = common.read_program(a, shapes).graph
    second = common.read_program(b, shapes).graph
    console = common.stdout()
    if certificate:
        evidence = _core.Certificate.parse(read_text(Path(certificate)), certificate)
        ok, what = False, "it tells of tests, not of a proof; --accept tested takes these"
        if evidence.record()["proved"] or values["accept"] == "tested":
            ok, what = _core.recheck(evidence, first.core, second.core, threads)
        if why := other_arrays(first, second):
            ok, what = False, why
        if as_json:
            common.print_json({"holds": ok, "what": what})
        else:
            console.print(f"the certificate {'holds' if ok else 'does not hold'}: {what}",
                          markup=False)  # fmt: skip
        return 0 if ok else 1
    line = common.ProgressLine(not as_json)
    with line as shown:
        tell = line.step if shown else None
        verdict = verify_graphs(first, second, threads=threads, progress=tell, **values)
    if output and verdict.certificate is not None:
        write_text(Path(output), str(verdict.certificate))
    if as_json:
        evidence_record = verdict.certificate.record() if verdict.certificate is not None else None
        names = ("text", "reason", "second_opinion", "counterexample")
        common.print_json({"verdict": verdict.name, "certificate": evidence_record,
                           **{name: getattr(verdict, name) for name in names}})  # fmt: skip
    else:
        console.print(verdict.text.rstrip(), markup=False)
        if verdict.certificate is not None:
            console.print()
            console.print(common.error_table(verdict.certificate))
    return EXIT[verdict.name]
