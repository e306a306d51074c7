"""An entry of a store: one text that describes itself, sealed, and read with distrust."""

from __future__ import annotations

import datetime
import functools
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tessera import _core
from tessera.errors import BadInputError, Error
from tessera.types import Record

# What each kind of entry has at least.
_FIELDS = {
    "program": "program level device tools options made original_s seconds speedup improved origin"
    " original graph",
    "proposals": "",
    "rule": "name text",
    "pattern": "name text",
}
KINDS = tuple(_FIELDS)
_NUMBERS = ("original_s", "original_spread", "seconds", "spread", "speedup")
_KEY = re.compile(r"[0-9a-f]{64}")
_TOOLS = re.compile(r"result \d{1,6} verifier \d{1,6} codegen \d{1,6}", re.ASCII)
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NO_TEXT = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, surrogates
_NAME = re.compile(r"[\w.-]{1,100}")
# Whose SHA-256 is the key. Kinds that are not here have keys that only their makers can tell.
_KEYED = {
    "program": ("program", "level", "device", "tools", "options"),
    "rule": ("kind", "text"),
    "pattern": ("kind", "text"),
}
MOST_BYTES = 1 << 26  # of an entry


class RefusedError(BadInputError, kind="refused", exit_code=1):
    """An entry that is not what it says; the message is the reason."""


@dataclass(frozen=True)
class Entry:
    """Named texts: `kind`, `key` and what the kind has besides. `checked` tells the sound ones."""

    fields: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Entry:
        """Reads an entry; raises RefusedError where it is damaged, or not what it says."""
        if len(text) > MOST_BYTES:
            raise RefusedError(f"the entry is larger than {MOST_BYTES >> 20} MiB")
        if _NO_TEXT.search(text):
            raise RefusedError("the entry has control characters")
        try:
            return cls(_core.read_entry(text)).checked()
        except RefusedError:
            raise
        except Error as error:
            raise RefusedError(str(error)) from None

    @classmethod
    def of_text(cls, kind: str, name: str, text: str) -> Entry:
        """A rule or a pattern as an entry."""
        entry = cls({"kind": kind, "key": "", "name": name, "text": text.rstrip("\n")})
        return cls({**entry.fields, "key": entry.own_key()}).checked()

    def checked(self) -> Entry:
        """This entry; raises RefusedError where a field is missing or none of its kind, or the key
        is that of something else."""
        if _NO_TEXT.search("".join([*self.fields, *self.fields.values()])):
            raise RefusedError("a field has control characters")
        if self.kind not in KINDS:
            raise RefusedError(f"there is no kind of entry '{self.kind[:40]}'")
        for name in ("key", *_FIELDS[self.kind].split()):
            if name not in self.fields:
                raise RefusedError(f"the field '{name}' is missing")
        if not is_key(self.key):
            raise RefusedError(f"the key is no SHA-256: {self.key[:80]!r}")
        for name in _NUMBERS:
            self.number(name)
        if self.kind == "program":
            self._require_provenance()
        elif self["name"] and self.kind in _KEYED and not _NAME.fullmatch(self["name"]):
            raise RefusedError("its name is none")
        if self.key != self.own_key():
            raise RefusedError("the key belongs to something else than this entry says")
        return self

    def _require_provenance(self) -> None:
        if not _TOOLS.fullmatch(self["tools"]):
            raise RefusedError(f"these are no tools: {self['tools'][:40]!r}")
        try:
            made = datetime.date.fromisoformat(self["made"])
        except ValueError:
            raise RefusedError(f"this is no date: {self['made'][:40]!r}") from None
        if made > datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1):
            raise RefusedError(f"it was made in the future, on {made}")

    @property
    def mark(self) -> str:
        """Of what it says about its key: another entry with the same key has another."""
        said = self["graph"] + "\n" + self["text"]
        return f"{self.key[:32]}-{hashlib.sha256(said.encode()).hexdigest()[:32]}"

    def own_key(self) -> str:
        """The key that follows from what the entry says."""
        if self.kind not in _KEYED:
            return self.key
        said = "".join(f"{name} {self[name]}\n" for name in _KEYED[self.kind])
        return hashlib.sha256(said.encode()).hexdigest()

    def __getitem__(self, name: str) -> str:
        """A field; empty where there is none."""
        return self.fields.get(name, "")

    @functools.cached_property
    def text(self) -> str:
        """The entry as stores keep it."""
        return _core.write_entry(dict(self.fields))

    @property
    def key(self) -> str:
        return self["key"]

    @property
    def kind(self) -> str:
        return self["kind"]

    @property
    def name(self) -> str:
        """What readers call it: a rule's or pattern's name, or a program's."""
        found = re.match(r"\s*graph ([\w.]+)", self["original"])
        return self["name"] or (found[1] if found else "")

    @property
    def improved(self) -> bool:
        """Whether it has another program than the original."""
        return self["improved"] == "yes"

    def number(self, name: str) -> float:
        """A field that is a number from 0 on; 0 where there is none."""
        text = self[name] or "0"
        value = float(text) if _NUMBER.fullmatch(text) else math.inf
        if not math.isfinite(value):
            raise RefusedError(f"'{name}' is no number from 0 on: {self[name][:40]!r}")
        return value

    def json(self) -> Record:
        """Plain data, as `--json` prints it."""
        return dict(self.fields)


def is_key(text: str) -> bool:
    """Whether a text is a key."""
    return _KEY.fullmatch(text) is not None


def newer(a: Entry, b: Entry) -> Entry:
    """Of two entries with one key the one that stays, in whatever order they come: one that has
    found something before one that has not."""
    return max(a, b, key=lambda e: (e.improved, e["made"], e.text))
