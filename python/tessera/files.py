"""Files: errors name the file, and nothing half-written is left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import BadInputError, Error, IoError, Location, NotFoundError
from tessera.types import Object, Record, Value


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    where = Location(str(path))
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError("no such file", where) from None
    except IsADirectoryError:
        raise BadInputError("this is a folder, a file is needed", where) from None
    except UnicodeDecodeError as error:
        raise BadInputError(f"not UTF-8 text (byte {error.start})", where) from None
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where) from None


def read_stdin() -> str:
    """The UTF-8 text that standard input holds."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"not UTF-8 text (byte {error.start})", Location("<stdin>")) from None


def io_error(path: Path, error: OSError, doing: str = "written") -> Error:
    """What to raise when the operating system refuses a write."""
    return IoError(
        f"cannot be {doing}: {error.strerror or error}; choose another place or make room",
        Location(str(path)),
    )


@contextlib.contextmanager
def told_of(path: Path, doing: str) -> Iterator[None]:
    """Raises what says so where the operating system refuses to have something done to a file."""
    try:
        yield
    except OSError as error:
        raise io_error(path, error, doing) from None


def require_folder(file: str | Path, *sources: str) -> None:
    """Refuses a file to be written later whose folder is missing or closed to us, or that is one of
    the `sources` ("prog.py:f") it is made from: before the work, not after it."""
    path = Path(file)
    folder = path.parent
    where = Location(str(file))
    for source in sources:
        read = Path(source.partition(":")[0] if ".py:" in source else source)
        if path.exists() and read.exists() and path.samefile(read):
            raise BadInputError("this would overwrite what it is made from; choose another", where)
    if not folder.is_dir():
        raise IoError(f"cannot be written: there is no folder {folder}; create it first", where)
    if path.is_dir() or str(file).endswith(os.sep):
        raise BadInputError("this is a folder, a file is needed", where)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise IoError(f"the folder {folder} cannot be written to; choose another place", where)


def write_files(files: Mapping[Path, Iterable[bytes | memoryview]]) -> None:
    """Writes files from their parts (bytes), all or nothing: each to a neighbour first, then all
    renamed over their targets (what links lead to), in order."""
    files = {path.resolve(): parts for path, parts in files.items()}
    remove: list[Path] = []
    path = Path()
    try:
        for path, parts in files.items():
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            remove.append(Path(name))
            with open(handle, "wb") as f:
                f.writelines(parts)
                f.flush()
                os.fsync(handle)
        umask = os.umask(0)
        os.umask(umask)
        for path, temporary in zip(files, tuple(remove), strict=True):
            temporary.chmod(0o666 & ~umask)
            fresh = not path.exists()
            temporary.replace(path)
            if fresh:
                remove.append(path)
        remove.clear()
    except OSError as error:
        raise io_error(path, error) from None
    finally:
        for temporary in remove:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file all or nothing; what is no file (a pipe, a device) as it is."""
    if path.exists() and not path.is_file():
        with told_of(path, "written"):
            path.write_text(text, encoding="utf-8")
    else:
        write_files({path: [text.encode("utf-8")]})


@dataclass(frozen=True)
class Plain:
    """A record that `to_json` can write."""

    def json(self) -> Record:
        """Plain data, as `--json` prints it."""
        return dataclasses.asdict(self)


def to_json(data: Object, indent: int | None = 2) -> str:
    """Strict JSON: infinities and NaN, which it lacks, become strings.

    >>> to_json({"worst": float("inf")}, indent=None)
    '{"worst": "inf"}'
    """
    return json.dumps(_finite(data), indent=indent, default=_plain, allow_nan=False)


def _finite(value: Object) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _plain(value: Object) -> Value:
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (set, tuple)):
        return list(value)
    return str(value)
