"""The command line. Only `main` lives here, so that Ctrl-C is understood from the first moment:
everything slow to import (NumPy, the core) comes behind it.

Exit codes: 0 success, 1 a definite negative answer, 2 unknown or interrupted without an answer,
64 usage, 65 bad input (with its place), 70 a tool or file system failure, or an internal error.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    loading = signal.getsignal(signal.SIGINT) is signal.default_int_handler and (
        threading.current_thread() is threading.main_thread()
    )
    if loading:
        signal.signal(signal.SIGINT, _leave)
    from tessera.cli.app import run

    if loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run(list(sys.argv[1:] if arguments is None else arguments))


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """Ends the process on Ctrl-C while libraries load: they may catch an exception or turn it into
    one of another type, and half-loaded they cannot be unloaded in good order."""
    try:
        os.write(2, b"interrupted\n")
    finally:  # whatever became of stderr
        os._exit(2)
