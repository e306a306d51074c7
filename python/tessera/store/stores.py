"""Places that keep entries: a folder, SQLite, Redis, what fsspec opens, and a union of several.

None is trusted, or needed: what is damaged there is passed over with a warning.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tessera.cache_folder import cache_directory, make_own, warn_once
from tessera.errors import BadInputError, Error, IoError, NotFoundError
from tessera.files import told_of, write_text
from tessera.options import package, shipped
from tessera.store.entry import MOST_BYTES, Entry, RefusedError, is_key
from tessera.types import Value

SUFFIX = ".entry"
_TOGETHER = 256  # entries that are asked for at once of a store far away


class Store:
    """Entries by their keys, over texts by key: what keeps those says how it does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._warned = False
        self._seen: dict[str, tuple[str, str]] = {}  # kind and program, which keys stand for

    def _keys(self, program: str | None) -> Iterable[str]:
        """What may be a key; those of a program are enough, where it is known which they are."""
        raise NotImplementedError

    def _read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Their texts, as far as there are any."""
        raise NotImplementedError

    def _write(self, entry: Entry) -> None:
        raise NotImplementedError

    def _remove(self, key: str) -> None:
        raise NotImplementedError

    def get(self, key: str) -> Entry | None:
        """The entry of a key; None where there is none that is sound."""
        if not is_key(key):
            raise BadInputError(f"{key!r} is no key of an entry")
        for _, found in self._entries([key]):
            if isinstance(found, Entry):
                return found
            self._warn(key, found)
        return None

    def put(self, entry: Entry) -> None:
        """Keeps an entry, in place of another with its key."""
        entry.checked()
        with self._told():
            self._write(entry)

    def delete(self, key: str) -> None:
        """Forgets what there is of a key, damaged or not."""
        with self._told():
            self._remove(key)

    def list(self, kind: str | None = None, program: str | None = None) -> Iterator[Entry]:
        """All sound entries, or those of a kind or of the program with this hash, by key."""
        with self._told():
            keys = sorted(filter(is_key, self._keys(program)))

        def fits(seen: tuple[str, str]) -> bool:
            return kind in (None, seen[0]) and program in (None, seen[1])

        wanted = [key for key in keys if key not in self._seen or fits(self._seen[key])]
        for key, found in self._entries(wanted):
            if isinstance(found, Entry):
                self._seen[key] = (found.kind, found["program"])
                if fits(self._seen[key]):
                    yield found
            else:
                self._warn(key, found)

    def damaged(self) -> Iterator[tuple[str, str]]:
        """Keys of what is no sound entry, with what is wrong."""
        with self._told():
            keys = sorted(filter(is_key, self._keys(None)))
        for key, found in self._entries(keys):
            if not isinstance(found, Entry):
                yield key, found

    def _entries(self, keys: Sequence[str]) -> Iterator[tuple[str, Entry | str]]:
        """Entries, or why there is none."""
        with self._told():
            for key, data in self._read(keys):
                if data is not None:
                    yield key, _sound(key, data)

    def _warn(self, key: str, why: str) -> None:
        if not self._warned:
            self._warned = True
            text = f"tessera: passed over in the store {self.name}: {key[:12]}…: {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong there is of any type; it becomes one that says which store it is."""
        try:
            yield
        except Error:
            raise
        except Exception as error:
            raise IoError(f"the store {self.name}: {str(error) or type(error).__name__}") from None


def _sound(key: str, data: bytes) -> Entry | str:
    try:
        if len(data) > MOST_BYTES:
            return f"it is larger than {MOST_BYTES >> 20} MiB"
        entry = Entry.parse(data.decode())
    except UnicodeDecodeError as error:
        return f"not UTF-8 text (byte {error.start})"
    except RefusedError as error:
        return error.message
    return entry if entry.key == key else "it is kept under another key than its own"


class FolderStore(Store):
    """A file for each entry, `ab/abcd….entry`, which a rename puts there: fit for git."""

    def __init__(self, folder: Path, flat: bool = False) -> None:
        super().__init__(str(folder))
        self.place, self._flat = folder, flat

    def path(self, key: str) -> Path:
        """Where an entry is."""
        return (self.place if self._flat else self.place / key[:2]) / (key + SUFFIX)

    def _keys(self, program: str | None) -> Iterator[str]:
        for path in self.place.glob(f"*{SUFFIX}" if self._flat else f"[0-9a-f][0-9a-f]/*{SUFFIX}"):
            if path == self.path(path.stem) and not path.parent.is_symlink():
                yield path.stem

    def _read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        for key in keys:
            try:
                # A pipe would keep us waiting.
                with open(os.open(self.path(key), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                    data = file.read(MOST_BYTES + 1)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                data = b""  # as good as damaged
            yield key, data

    def _write(self, entry: Entry) -> None:
        path = self.path(entry.key)
        if not path.parent.is_dir():
            with told_of(path, "written"):
                if self._flat:
                    make_own(path.parent)
                path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, entry.text)

    def _remove(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)


class SqliteStore(Store):
    """A table in a file of SQLite."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:{path}")
        self.place = path

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(self.place, timeout=60)) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS entries"
                       "(key TEXT PRIMARY KEY, program TEXT, text BLOB)")  # fmt: skip
            db.execute("CREATE INDEX IF NOT EXISTS programs ON entries(program)")
            yield db

    def _keys(self, program: str | None) -> list[str]:
        if not self.place.exists():
            return []
        where, values = ("", ()) if program is None else (" WHERE program = ?", (program,))
        with self._open() as db:
            return [str(key) for (key,) in db.execute(f"SELECT key FROM entries{where}", values)]

    def _read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        query = f"SELECT substr(CAST(text AS BLOB), 1, {MOST_BYTES + 1}) FROM entries WHERE key = ?"
        for key in keys if self.place.exists() else ():
            with self._open() as db:
                row = db.execute(query, (key,)).fetchone()
            yield key, row[0] if row else None

    def _write(self, entry: Entry) -> None:
        row = (entry.key, entry["program"], entry.text.encode())
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", row)

    def _remove(self, key: str) -> None:
        with self._open() as db:
            db.execute("DELETE FROM entries WHERE key = ?", (key,))


class FsspecStore(Store):
    """The files of a folder store in whatever fsspec opens: S3 and its like, memory, SFTP, …"""

    def __init__(self, url: str) -> None:
        super().__init__(_without_password(url))
        with self._told():
            self._fs, self._root = _package("fsspec").url_to_fs(url)

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key[:2]}/{key}{SUFFIX}"

    def _keys(self, program: str | None) -> list[str]:
        self._fs.invalidate_cache()  # others write there, too
        try:
            self._fs.ls(self._root)  # `find` leaves out what cannot be reached
            files = self._fs.find(self._root)
        except FileNotFoundError:
            return []
        return [f.rpartition("/")[2].removesuffix(SUFFIX) for f in files if f.endswith(SUFFIX)]

    def _read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        for start in range(0, len(keys), _TOGETHER):
            paths = {self._path(key): key for key in keys[start : start + _TOGETHER]}
            ends = [MOST_BYTES + 1] * len(paths)
            found = self._fs.cat_ranges(list(paths), [0] * len(paths), ends, on_error="return")
            for key, data in zip(paths.values(), found, strict=True):
                if isinstance(data, Exception) and not isinstance(data, FileNotFoundError):
                    raise data
                yield key, data if isinstance(data, bytes) else None

    def _write(self, entry: Entry) -> None:
        path = self._path(entry.key)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(path, entry.text.encode())

    def _remove(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))


class RedisStore(Store):
    """Entries as strings of Redis, and for each program the set of its keys."""

    _PREFIX = "tessera:entry:"

    def __init__(self, url: str) -> None:
        super().__init__(_without_password(url))
        number = urlsplit(url).path.strip("/") or "0"
        if not (number.isdecimal() or url.startswith("unix:")):
            raise BadInputError(f"the store {self.name}: a database of Redis is a number, as in /0")
        self._redis: Value = _package("redis").Redis.from_url(url, socket_connect_timeout=5)

    def _keys(self, program: str | None) -> Iterator[str]:
        found = (self._redis.scan_iter(match=f"{self._PREFIX}*", count=1000) if program is None
                 else self._redis.smembers(f"tessera:program:{program}"))  # fmt: skip
        return (key.decode(errors="replace").removeprefix(self._PREFIX) for key in found)

    def _read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        for key in keys:
            try:
                data = self._redis.getrange(self._PREFIX + key, 0, MOST_BYTES) or None
            except _package("redis").ResponseError:
                data = b""  # no string: as good as damaged
            yield key, data

    def _write(self, entry: Entry) -> None:
        with self._redis.pipeline() as together:
            together.set(self._PREFIX + entry.key, entry.text.encode())
            if entry["program"]:
                together.sadd(f"tessera:program:{entry['program']}", entry.key)
            together.execute()

    def _remove(self, key: str) -> None:
        self._redis.delete(self._PREFIX + key)


class Union:
    """Several stores in order: of two entries with one key the first stands."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = stores

    def list(self, kind: str | None = None, program: str | None = None
             ) -> Iterator[tuple[str, Entry]]:  # fmt: skip
        """Entries with the names of the stores that they are from; a store that cannot be reached
        is passed over with a warning."""
        known: set[str] = set()
        for store in self.stores:
            try:
                for entry in store.list(kind, program):
                    if entry.key not in known:
                        known.add(entry.key)
                        yield store.name, entry
            except Error as error:
                warnings.warn(f"tessera: passed over: {error}", RuntimeWarning, stacklevel=3)


def open_store(where: str) -> Store:
    """The store at a path or URL: a folder, `sqlite:FILE`, `redis://…`, or what fsspec opens."""
    scheme, _, rest = where.partition(":")
    named = "://" not in where and Path(where).suffix in (".sqlite", ".db")
    if scheme == "sqlite" or named:
        return SqliteStore(Path(rest if scheme == "sqlite" else where))
    if scheme in ("redis", "rediss", "unix"):
        return RedisStore(where)
    if scheme == "file":
        return FolderStore(Path(rest.removeprefix("//")).expanduser())
    if "://" in where:
        return FsspecStore(where)
    if not where:
        raise BadInputError("a store is a folder, sqlite:FILE, redis://HOST, or a URL")
    return FolderStore(Path(where).expanduser())


def existing_store(where: str) -> Store:
    """The same; NotFoundError where a store of this machine is not there."""
    found = open_store(where)
    if isinstance(found, (FolderStore, SqliteStore)) and not os.path.exists(found.place):
        raise NotFoundError(f"the store {found.name} is not there")
    return found


_opened = functools.cache(existing_store)  # stores remember what they have read


def local_store() -> FolderStore:
    """What optimisations here have left: the core writes it."""
    return FolderStore(cache_directory() / "results", flat=True)


def configured() -> Union:
    """The stores of TESSERA_STORES, in order, then the shipped one."""
    stores, places = list[Store](), _split(os.environ.get("TESSERA_STORES", ""))
    if folder := shipped("data/store"):
        places.append(str(folder))
    for place in places:
        try:
            stores.append(_opened(place))
        except Error as error:
            warn_once(f"tessera: passed over: {error}")
    return Union(stores)


def _split(value: str) -> list[str]:
    """`path:path` as in PATH; where one is a URL, commas stand between them."""
    url = re.search(r"[,]|://|^(sqlite|file):", value)
    return [part.strip() for part in value.split("," if url else os.pathsep) if part.strip()]


def _without_password(url: str) -> str:
    user = urlsplit(url).netloc.rpartition("@")[0]
    return url.replace(f"{user}@", "", 1) if user else url


def _package(name: str) -> Value:
    return package(name, f"this store needs {name}: pip install 'tessera-opt[store]'")
