"""What comes from a store, checked: each entry is refused with a reason, or tried.

An entry's program is proved, compiled, checked and raced here (the core does, as with its own
finds); rules and patterns are proved before they join the user's own. No code travels.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera import _core
from tessera.errors import CancelledError, Error
from tessera.files import Plain, read_text, write_text
from tessera.graph import Graph
from tessera.options import LEVELS, Options, users
from tessera.patterns import SUFFIX, add_pattern, check_pattern, read_pattern, read_patterns
from tessera.rules import add_to_user_rules, load_rules, rule_of
from tessera.store.entry import Entry, RefusedError
from tessera.store.ranking import Rank, Uses, described, rank_of, ranks
from tessera.store.stores import configured, local_store
from tessera.types import Fields, Record, format_type

_MOST_GROWTH, _MODEST = 16, 1 << 20  # of a graph's largest tensor; elements that never matter
_MOST_LINES, _MOST_CERTIFICATE = 4000, 1 << 22  # longer ones take too long to replay
_INTERRUPTED = "interrupted; what was received before is kept"
_NO_TIME = "there was no time to try it"
_KEPT = 3  # entries of a program that an optimisation tries
_AS_PROMISED = 0.8  # of a speed-up: less is worth a search
_FILE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_REFUSED = {"refuted": "it computes something else", "check failed": "its code computes something "
            "else", "not compiled": "it does not compile", "unknown": "no proof"}  # fmt: skip


@dataclass(frozen=True)
class Received(Plain):
    """What became of an entry.

    `fate`: "faster" (proved and faster here: it is among the local results now), "slower",
    "accepted" (a rule or pattern that joined the user's own), "known", "passed over", or "refused".
    """

    key: str
    name: str
    fate: str
    reason: str = ""
    recorded: float = 0.0  # how many times faster than the original it was said to be
    measured: float = 0.0  # the same, here; 0: not measured
    origin: str = ""  # "store: NAME", where it was raced

    def __str__(self) -> str:
        timed = f" {self.measured:.2f}x here, {self.recorded:.2f}x there" if self.measured else ""
        return f"{self.name}: {self.fate}{timed}" + (f": {self.reason}" if self.reason else "")


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """What goes wrong while one entry is looked at refuses it: missing memory, too."""
    try:
        yield
    except (RefusedError, CancelledError):
        raise
    except Error as error:
        raise RefusedError(error.message) from None
    except MemoryError:
        raise RefusedError("there is not memory enough to check it") from None


@dataclass(frozen=True)
class Claim:
    """An entry of a program, with its graphs read and found to be those that it speaks of."""

    entry: Entry
    original: _core.Graph
    graph: _core.Graph

    @property
    def replayed(self) -> bool:
        """Whether its certificate says something: those of other verifiers do not."""
        mine = f" verifier {_core.verifier_version} " in f" {self.entry['tools']} "
        return mine or not self.entry.improved

    @classmethod
    @refusing()
    def of(cls, entry: Entry, replay: bool = True) -> Claim:
        """Raises RefusedError where the entry contradicts itself. Without `replay` a certificate
        must be of these programs, and whether it holds is left to the proof that follows."""
        if entry["level"] not in LEVELS:
            raise RefusedError(f"there is no level {entry['level'][:40]!r}")
        original = program_of(entry["original"], "original")
        if _core.program_hash(original) != entry["program"]:
            raise RefusedError("the original is another program than the entry is about")
        graph = program_of(entry["graph"], "graph", original)
        if entry["between"]:
            program_of(entry["between"], "program between", original)
        if not entry.improved and _core.program_hash(graph) != entry["program"]:
            raise RefusedError("it says that nothing was found, and has another graph")
        claim = cls(entry, original, graph)
        if entry.improved and claim.replayed:
            claim.require_certificate(replay)
        return claim

    def require_certificate(self, replay: bool) -> None:
        """Refuses a certificate that is of other programs, of another level, or does not hold."""
        text = self.entry["certificate"]
        if not text:
            raise RefusedError("there is no certificate")
        if len(text) > _MOST_CERTIFICATE or text.count("\n") > _MOST_LINES:
            raise RefusedError("the certificate is too long to be replayed")
        try:
            certificate = _core.Certificate.parse(text)
        except Error as error:
            raise RefusedError(f"the certificate: {error}") from None
        if "\nbinding " in text:
            raise RefusedError("the certificate is of other sizes")
        for line in re.findall("^between (.*)", text, re.M):
            between = re.sub(r"\\(.)", lambda c: "\n" if c[1] == "n" else c[1], line)
            program_of(between, "program between", self.original)
        if not certificate.is_of(self.original, self.graph):
            raise RefusedError("the certificate is of other programs")
        record = certificate.record()
        if record["level"] != self.entry["level"]:
            raise RefusedError("the certificate is of another level")
        if not record["proved"] and " tested 1 " not in self.entry["options"]:
            raise RefusedError("the certificate says that the programs were tested, not proved")
        holds, what = True, ""
        if replay:
            holds, what = _core.recheck(certificate, self.original, self.graph)
        if not holds:
            raise RefusedError(f"the certificate does not hold: {what}")

    def proposal(self, store: str, of: _core.Graph | None = None) -> Record:
        """For the core, which believes nothing of it."""
        e = self.entry
        return {"of": str(Graph.from_core(of or self.original)), "graph": e["graph"],
                "origin": f"store: {store}", "derivation": e["derivation"],
                "between": e["between"]}  # fmt: skip


def program_of(text: str, what: str, original: _core.Graph | None = None) -> _core.Graph:
    """A program that somebody sent; RefusedError where it is none, or has other inputs or results
    than the original, or tensors that are far larger."""
    try:
        graph = _core.parse(text, f"<{what}>")
        graph.validate()
    except Error as error:
        raise RefusedError(f"the {what}: {error}") from None
    if original is not None:
        if interface(original) != interface(graph):
            raise RefusedError(f"the {what} has other inputs or results than the original")
        if _largest(graph) > _MOST_GROWTH * _largest(original) + _MODEST:
            raise RefusedError(f"the {what} has tensors far larger than those of the original")
    return graph


def _sound(entries: Iterable[Entry]) -> Iterator[Claim]:
    """Those that claim another program than the original, and do not contradict themselves, for
    the core to prove."""
    for entry in entries:
        if entry.improved:
            try:
                yield Claim.of(entry, replay=False)
            except RefusedError:
                Uses.default().add(entry.mark, entry.name, entry.number("speedup"), 0.0, False)


def _largest(graph: _core.Graph) -> int:
    """Elements of a program's largest tensor, of those inside kernels too."""
    types = re.findall(r"\w\[([\d,]+)\]", str(Graph.from_core(graph)))
    return max((math.prod(map(int, extents.split(","))) for extents in types), default=1)


def interface(graph: _core.Graph) -> tuple[list[str], list[str]]:
    """Types of a program's inputs, and which of them are weights; and of its results."""
    weight = {False: "", True: " weight"}
    ins = [format_type(*graph.type(t)) + weight[graph.is_weight(t)] for t in graph.inputs]
    return ins, [format_type(*graph.type(t)) for t in graph.outputs]


@refusing()
def proved(claim: Claim, options: Options) -> str:
    """Why a claim is not proved anew; empty where it is."""
    level, special = claim.entry["level"], claim.original.asks_for_nan
    record = _core.verify(claim.original, claim.graph, level, threads=options.threads,
                          budget=options.budget, special=special)  # fmt: skip
    return "" if record["verdict"] == "equal" else f"no proof: {record['text'].splitlines()[0]}"


# --- programs ------------------------------------------------------------------------------------


def receive(
    entries: Iterable[Entry], store: str = "", options: Options | None = None, top: int = 3
) -> Iterator[Received]:
    """Checks entries, and tries the `top` that promise most of each program: what is faster here
    becomes a local result, as if it had been found here. When the replay of a program's
    certificates has taken the budget, its other entries are passed over."""
    options = options or Options()
    groups: dict[tuple[str, str, bool], list[Claim]] = {}
    spent: Counter[str] = Counter()  # seconds, by program
    for entry in entries:
        if entry.kind in ("rule", "pattern"):
            yield _join(entry)
        elif entry.kind == "program":
            if spent[entry["program"]] > options.budget:
                yield _received(entry, "passed over", _NO_TIME)
                continue
            start = time.monotonic()
            try:
                claim = Claim.of(entry)
            except RefusedError as error:
                Uses.default().add(entry.mark, entry.name, entry.number("speedup"), 0.0, False)
                yield _received(entry, "refused", error.message)
                continue
            finally:
                spent[entry["program"]] += time.monotonic() - start  # type: ignore[assignment]
            special = " special 1 " in entry["options"]
            groups.setdefault((entry["program"], entry["level"], special), []).append(claim)
        else:
            yield _received(entry, "passed over", "it is the state of a campaign")
    for (_, level, special), claims in groups.items():
        yield from _race(claims, store, options.replace(level=level), special, top)


def _race(
    claims: Sequence[Claim], store: str, options: Options, special: bool, top: int
) -> Iterator[Received]:
    """The claims about one program against each other, the original, and what is known here."""
    known, original = ranks(), claims[0].original
    fields = {**options.fields(), "special": special or original.asks_for_nan,
              "only_proposals": True}  # fmt: skip
    graphs: dict[str, list[Claim]] = {}
    for claim in sorted(claims, key=lambda c: (-_worth(c.entry, known), c.entry.key)):
        if claim.entry.improved:
            graphs.setdefault(_core.program_hash(claim.graph), []).append(claim)
    tried = list(graphs.values())[:top]
    for same in list(graphs.values())[top:]:
        yield from (_received(c.entry, "passed over", "others promise more") for c in same)
    for claim in claims:
        if not claim.entry.improved:
            yield _received(claim.entry, *_nothing_found(claim, fields))
    if not tried:
        return
    here = local_store().list("program", claims[0].entry["program"])
    proposals = [same[0].proposal(store) for same in tried]
    proposals += [{**c.proposal("", original), "origin": c.entry["origin"]}
                  for c in _sound(here) if c.entry["level"] == options.level]  # fmt: skip
    try:
        with refusing():
            record = _core.optimize(original, {**fields, "refresh": True, "proposals": proposals})
    except RefusedError as error:
        why = f"the race failed: {error.message}"
        yield from (_received(c.entry, "passed over", why) for same in tried for c in same)
        return
    yield from told([c for same in tried for c in same], record)
    if record["interrupted"]:
        raise CancelledError(_INTERRUPTED)


def _nothing_found(claim: Claim, fields: Record) -> tuple[str, str]:
    """What becomes of an entry that says that a search found nothing: it spares the same search, if
    it was made with options of which only the budget may differ from those here."""
    budget = re.search(r" budget (\d+(?:\.\d+)?) ", claim.entry["options"])
    fields = {**fields, "budget": float(budget[1]) if budget else 1.0, "searched": True}
    if _core.entry_key(claim.original, fields)["key"] != claim.entry.key:
        return "passed over", "nothing was found there"
    try:
        with refusing():
            _core.optimize(claim.original, fields)
    except RefusedError as error:
        return "passed over", error.message
    return "accepted", "nothing is to be found with these options on this device"


def _worth(entry: Entry, known: dict[str, Rank]) -> float:
    return rank_of(entry, known).worth(entry.number("speedup"))


def told(claims: Iterable[Claim], record: Fields) -> Iterator[Received]:
    """What became of claims in an optimisation; it counts as a use of them."""
    in_order = sorted(record["candidates"], key=lambda c: bool(c["fate"] == "chosen"))
    fates = {_core.program_hash(c["graph"]): c for c in in_order}
    for claim in claims:
        entry, found = claim.entry, fates.get(_core.program_hash(claim.graph))
        recorded = entry.number("speedup")
        if found is None or found["fate"] == "proposed":
            yield _received(entry, "passed over", _NO_TIME)
            continue
        measured = float(found.get("speedup", 0.0))
        refused = _REFUSED.get(found["fate"], "")
        Uses.default().add(entry.mark, described(claim.original), recorded, measured, not refused)
        fate = "refused" if refused else "faster" if found["fate"] == "chosen" else "slower"
        reason = "; ".join([refused, *found["why"].splitlines()[:3]]) if refused else ""
        origin = str(found["origin"])
        yield Received(entry.key, entry.name, fate, reason, recorded, measured, origin)


def _received(entry: Entry, fate: str, reason: str) -> Received:
    return Received(entry.key, entry.name, fate, reason, entry.number("speedup"))


# --- rules and patterns --------------------------------------------------------------------------


def own_texts() -> Iterator[Entry]:
    """The user's own rules, and the patterns that searches learnt, as entries."""
    for rule in load_rules():
        if Path(rule.file).parent == users("rules"):
            yield Entry.of_text("rule", rule.name, rule.text)
    for pattern in read_patterns()[0]:
        own = Path(pattern.file).parent in (users("patterns"), users("learnt"))
        if own and not pattern.written():
            yield Entry.of_text("pattern", pattern.name, read_text(Path(pattern.file)))


def _join(entry: Entry) -> Received:
    """Adds a rule or a pattern to the user's own, where it holds."""
    known = load_rules() if entry.kind == "rule" else read_patterns()[0]
    if any(one.name == entry["name"] for one in known):
        return _received(entry, "known", f"there is a {entry.kind} of that name")
    try:
        with refusing():
            fault = _join_rule(entry) if entry.kind == "rule" else _join_pattern(entry)
    except RefusedError as error:
        fault = str(error)
    return _received(entry, *(("refused", fault) if fault else ("accepted", "it holds here")))


def _join_rule(entry: Entry) -> str:
    text = entry["text"] + "\n"
    found = _core.parse_rules(text, "<rule>")
    if [rule["name"] for rule in found] != [entry["name"]]:
        return "it is not one rule of that name"
    checked = _core.check_rules(text, "<rule>")[0]
    if checked["why"] == "cancelled":
        raise CancelledError(_INTERRUPTED)
    if not checked["holds"]:
        return f"it does not hold: {checked['why']}"
    add_to_user_rules([rule_of(found[0])])
    return ""


def _join_pattern(entry: Entry) -> str:
    if not _FILE_NAME.fullmatch(entry["name"]):
        return "its name is no file's"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (entry["name"] + SUFFIX)
        write_text(path, entry["text"] + "\n")
        pattern = read_pattern(path)
        if pattern.name != entry["name"]:
            return "it is a pattern of another name"
        if pattern.written():
            return "it has code that a person wrote"
        checked = check_pattern(path)
        if not checked.holds:
            return f"it does not hold: {checked.why}"
        add_pattern(path, users("learnt") if entry["name"].startswith("learnt-") else None)
    return ""


# --- optimisations that have no result of their own ----------------------------------------------


def optimize(
    program: _core.Graph,
    fields: Fields,
    progress: Callable[[Record], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Record:
    """`_core.optimize`, which looks into the stores of TESSERA_STORES where there is no local
    result.

    What the same search found on such a device, with the same tools and options, spares it, unless
    less comes of it here than was promised; what others found takes part in it. Times are not
    believed; that a finished search found nothing better is, where options and device are the same.
    """
    stores = configured()
    if not stores.stores or not fields["cache"] or fields["refresh"] or fields["resume"]:
        return _core.optimize(program, fields, progress, stop)
    here = _core.entry_key(program, fields)
    tuned = _core.entry_key(program, {**fields, "tune": True, "budget": 0.0})
    if any(os.path.exists(local_store().path(k["key"])) for k in (here, tuned)):
        return _core.optimize(program, fields, progress, stop)
    known, vain, promised = ranks(), False, 0.0
    keys = {here["key"], tuned["key"]}
    claims: list[Claim] = []
    proposals: list[Record] = []
    parts = {_core.program_hash(of): of for of in [program, *_core.parts(program)]}
    for number, (program_hash, of) in enumerate(parts.items()):
        if number and (claims or vain):
            break  # parts are for programs that nobody has as a whole
        found = list(stores.list("program", program_hash))
        names = {entry.key: name for name, entry in found}
        fit = [entry for _, entry in found if _keeps(entry, fields["level"])]
        fit.sort(key=lambda e: (e.key in keys, _alike(e, here), _worth(e, known)), reverse=True)
        best = list(itertools.islice(_sound(fit), _KEPT))
        claims += best
        proposals += [c.proposal(names[c.entry.key], of) for c in best]
        if not number:
            promised = max((c.entry.number("speedup") for c in best if c.entry.key in keys),
                           default=0.0)  # fmt: skip
            vain = any(e.key == here["key"] and not e.improved for e in fit)
    only = (promised > 0 or vain) and not fields["tune"]
    more = {"proposals": proposals, "only_proposals": only, "searched": only and vain}
    try:
        record = _core.optimize(program, {**fields, **more}, progress, stop)
    except (Error, MemoryError) as error:
        if isinstance(error, CancelledError) or not claims:
            raise
        text = f"tessera: what the stores have cannot be tried: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return _core.optimize(program, fields, progress, stop)
    stores_said = [r.json() for r in told(claims, record)]
    kept = record["improved"] and record["speedup"] >= _AS_PROMISED * promised
    if only and not (kept or vain or record["interrupted"]):
        again = {**fields, "proposals": proposals if record["improved"] else [], "refresh": True}
        record = _core.optimize(program, again, progress, stop)
    record["report"]["stores"] = stores_said
    return record


def _keeps(entry: Entry, level: str) -> bool:
    """Whether what an entry's level keeps is all that is asked for."""
    return entry["level"] in LEVELS and LEVELS.index(entry["level"]) <= LEVELS.index(level)


def _alike(entry: Entry, here: Fields) -> bool:
    """Whether it could be from here."""
    return all(entry[name] == here[name] for name in ("device", "tools"))
