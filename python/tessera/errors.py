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

    def __init_subclass__(cls, kind: str = "", exit_code: int = 0) -> None:
        cls.kind = kind or cls.kind
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, message: str, location: Location | None = None) -> None:
        where = str(location) if location else ""
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.location = location
        if (errors := getattr(_watching, "errors", None)) is not None:
            errors.append(self)

    def __str__(self) -> str:
        return str(self.args[0])


class UsageError(Error, ValueError, kind="usage", exit_code=64):
    """A wrong flag, option or call."""


class BadInputError(Error, ValueError, kind="bad input", exit_code=65):
    """A malformed or inconsistent program, file or array."""


class WrongTypeError(BadInputError, TypeError):
    """An argument that is not an array, or one of other elements than the program's."""


class NotFoundError(Error, LookupError, kind="not found", exit_code=65):
    """A name, file or entry that does not exist."""


class UnsupportedError(Error, NotImplementedError, kind="unsupported", exit_code=65):
    """Legal input that Tessera does not handle (yet)."""


class ToolMissingError(Error, RuntimeError, kind="tool missing"):
    """A compiler or library that has to be installed."""


class IoError(Error, OSError, kind="input/output"):
    """The operating system refused: permissions, full disk."""


class CancelledError(Error, kind="cancelled", exit_code=2):
    """The user interrupted before there was anything to return."""


class OutOfMemoryError(Error, MemoryError, kind="out of memory"):
    """A device, or this machine, has not enough memory."""


class DeviceError(Error, RuntimeError, kind="device"):
    """A GPU or its driver reports a failure; the message says whether the process can go on."""


@contextlib.contextmanager
def told_of_memory() -> Iterator[None]:
    """A MemoryError of Python's becomes one that says what to do."""
    try:
        yield
    except MemoryError as error:
        why = "out of memory: the program is too large for this machine"
        raise error if isinstance(error, Error) else OutOfMemoryError(why) from None


class InternalError(Error, kind="internal"):
    """Something that should work did not: a bug of Tessera, please report it."""
