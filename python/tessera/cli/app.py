"""The verbs of the command line, one per arrow of the pipeline, and what their failures print."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from io import TextIOWrapper

import click

from tessera._core import version
from tessera.cli.benchmarks import bench
from tessera.cli.cache import cache
from tessera.cli.common import show_error, stderr
from tessera.cli.demo import demo
from tessera.cli.doctor import doctor
from tessera.cli.explain import explain
from tessera.cli.export import export
from tessera.cli.optimize import emit, optimize, search
from tessera.cli.patterns import patterns
from tessera.cli.report import report
from tessera.cli.rules import rules
from tessera.cli.store import store
from tessera.cli.tune import tune_command
from tessera.cli.verify import verify
from tessera.errors import Error, told_of_memory

EXIT_UNKNOWN, EXIT_USAGE, EXIT_INTERNAL = 2, 64, 70


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  tessera optimize examples/rmsnorm.py            make it faster, prove it, measure it
  tessera optimize stats.py -o fast.py            NumPy in, NumPy with less work out
  tessera explain stats.py                        how it got there, step by step
  tessera search prog.ug --json                   candidates and counters of the search
  tessera verify before.ug after.ug               are two programs equal?
  tessera emit prog.ug                            the generated C++
  tessera export prog.py --c -o out               C11 to compile into anything
  tessera report examples/softmax.ug -o page.html  the whole story of one run, for a browser
  tessera tune kernels/ --executor dask           many programs, on a cluster
  tessera rules list matmul                       what it has learnt about matrix products
  tessera patterns check mine.pattern             is this kernel what it says it computes?
  tessera store pull s3://team/tessera            what others found, proved and raced here
  tessera doctor                                  is this machine ready?
\b
Exit codes: 0 success · 1 definite no · 2 unknown · 64 usage · 65 bad input · 70 environment or bug
""",
)
@click.version_option(version, prog_name="tessera")
def cli() -> None:
    """Superoptimize tensor programs: search for faster ones, prove them equal, run them."""


_COMMANDS = (
    demo, optimize, search, explain, verify, emit, export, tune_command, report, bench, patterns,
    rules, store, doctor, cache,
)  # fmt: skip
for command in _COMMANDS:
    cli.add_command(command)


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code."""
    warnings.showwarning = lambda message, *_, **__: stderr().print(
        f"warning: {message}", markup=False
    )
    for name in ("stdout", "stderr"):  # None where the caller closed it (`>&-`)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), TextIOWrapper):  # of ASCII, it may be
            stream.reconfigure(errors="replace")
    try:
        # Standalone mode would choose exit codes of its own.
        with told_of_memory():
            code = cli.main(args=list(arguments), prog_name="tessera", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.UsageError as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        stderr().print("interrupted")
        return EXIT_UNKNOWN
    except Error as error:
        show_error(error, "--json" in arguments)
        if error.exit_code == EXIT_INTERNAL and os.environ.get("TESSERA_DEBUG", "0") != "0":
            traceback.print_exc()
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away: nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit:
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):  # so click tells the same
            return 0
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        stderr().print(f"{place}error: {error.strerror or error}", markup=False)
        return EXIT_INTERNAL
    except Exception:
        stderr().print("[bold red]internal error[/]; please report it with this text:")
        traceback.print_exc()
        return EXIT_INTERNAL
