"""`tessera bench` in a clone of the repository; elsewhere, where to find it.

Benchmarks, their peers and the campaigns against the verifier live in the repository's `bench/` and
are not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tessera.errors import UsageError

_ROOT = Path(__file__).resolve().parents[3]


@click.command("bench", short_help="Benchmarks; in a clone of the repository.",
               context_settings={"ignore_unknown_options": True,
                                 "help_option_names": []})  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _elsewhere(arguments: tuple[str, ...]) -> int:
    raise UsageError(
        "benchmarks are not part of the installed package: clone Tessera's repository, run "
        "`make core` there, and then `.venv/bin/tessera bench " + " ".join(arguments) + "`"
    )


def in_clone(module: str) -> bool:
    """Whether there is a module of the repository's bench/; it can be imported then."""
    if not (_ROOT / "bench" / module).is_file():
        return False
    if str(_ROOT) not in sys.path:
        sys.path.append(str(_ROOT))
    return True


def _command() -> click.Command:
    if not in_clone("cli.py"):
        return _elsewhere
    from bench.cli import bench as command

    return command


bench = _command()
