"""What a user's mistake raises: `Error` and one subclass per kind, each with its exit code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import ClassVar, NamedTuple


class Location(NamedTuple):
    """A place in a text; lines and columns count from 1, 0 means unknown."""

    file: str
    line: int = 0
    col: int = 0

    def __str__(self) -> str:
        parts = [self.file] if self.file else []
        parts += [str(n) for n in (self.line, self.col) if n]
        return ":".join(parts)


_watching = threading.local()


@contextlib.contextmanager
def watched() -> Iterator[list[Error]]:
    """All errors that are made in this thread meanwhile, also those that somebody handles."""
    before = getattr(_watching, "errors", None)
    _watching.errors = errors = list[Error]()
    try:
        yield errors
    finally:
        _watching.errors = before


class Error(Exception):
    """The base of everything that Tessera raises on purpose.

    `message` says what is wrong and what to do, `location` where, if a place is known.
    """

    exit_code: ClassVar[int] = 70  # unless a kind says otherwise
    kind: ClassVar[str] = "error"

    def __init__(self, message: str, location: Location | None = None) -> None:
        where = str(location) if location else ""
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.location = location
        if (errors := getattr(_watching, "errors", None)) is not None:
            errors.append(self)

    def __str__(self) -> str:
        return str(self.args[0])


class UsageError(Error, ValueError):
    """A wrong flag, option or call."""

    exit_code = 64
    kind = "usage"


class BadInputError(Error, ValueError):
    """A malformed or inconsistent program, file or array."""

    exit_code = 65
    kind = "bad input"


class WrongTypeError(BadInputError, TypeError):
    """An argument that is not an array, or one of other elements than the program's."""


class NotFoundError(Error, LookupError):
    """A name, file or entry that does not exist."""

    exit_code = 65
    kind = "not found"


class UnsupportedError(Error, NotImplementedError):
    """Legal input that Tessera does not handle (yet)."""

    exit_code = 65
    kind = "unsupported"


class ToolMissingError(Error, RuntimeError):
    """A compiler or library that has to be installed."""

    kind = "tool missing"


class IoError(Error, OSError):
    """The operating system refused: permissions, full disk."""

    kind = "input/output"


class CancelledError(Error):
    """The user interrupted before there was anything to return."""

    exit_code = 2
    kind = "cancelled"


class OutOfMemoryError(Error, MemoryError):
    """A device has not enough memory."""

    kind = "out of memory"


class DeviceError(Error, RuntimeError):
    """A GPU or its driver reports a failure; the message says whether the process can go on."""

    kind = "device"


class InternalError(Error):
    """Something that should work did not: a bug of Tessera, please report it."""

    kind = "internal"
