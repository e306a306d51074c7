"""The command line. Only `main` lives here, so that Ctrl-C is understood from the first moment:
everything slow to import (NumPy, the core) comes behind it.

Exit codes: 0 success, 1 a definite negative answer, 2 unknown or interrupted without an answer,
64 usage, 65 bad input (with its place), 70 a tool or file system failure, or an internal error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    try:
        from tessera.cli.app import run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.stderr.flush()
        os._exit(2)  # half-loaded libraries cannot be unloaded in good order
    return run(list(sys.argv[1:] if arguments is None else arguments))
