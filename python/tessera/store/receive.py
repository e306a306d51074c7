"""What comes from a store, checked: each entry is refused with a reason, or tried.

An entry's program is proved, compiled, checked and raced here (the core does, as with its own
finds); rules and patterns are proved before they join the user's own. No code travels.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera import _core
from tessera.errors import Error
from tessera.files import Plain, read_text, write_text
from tessera.graph import Graph
from tessera.options import LEVELS, Options, users
from tessera.patterns import SUFFIX, add_pattern, check_pattern, read_pattern, read_patterns
from tessera.rules import add_to_user_rules, load_rules, rule_of
from tessera.store.entry import Entry, RefusedError
from tessera.store.ranking import Rank, Uses, described, rank_of, ranks
from tessera.store.stores import configured, local_store
from tessera.types import Fields, Record, format_type

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


@dataclass(frozen=True)
class Claim:
    """An entry of a program, with its graphs read and found to be those that it speaks of."""

    entry: Entry
    original: _core.Graph
    graph: _core.Graph

    @classmethod
    def of(cls, entry: Entry) -> Claim:
        """Raises RefusedError where the entry contradicts itself."""
        if entry["level"] not in LEVELS:
            raise RefusedError(f"there is no level {entry['level'][:40]!r}")
        original, graph = _graph(entry, "original"), _graph(entry, "graph")
        if _core.program_hash(original) != entry["program"]:
            raise RefusedError("the original is another program than the entry is about")
        if interface(original) != interface(graph):
            raise RefusedError("the graph has other inputs or results than the original")
        if not entry.improved and _core.program_hash(graph) != entry["program"]:
            raise RefusedError("it says that nothing was found, and has another graph")
        claim = cls(entry, original, graph)
        if entry.improved and f" verifier {_core.verifier_version} " in f" {entry['tools']} ":
            claim.require_certificate()  # those of other verifiers say nothing here
        return claim

    def require_certificate(self) -> None:
        """Refuses a certificate that is of other programs, of another level, or does not hold."""
        text = self.entry["certificate"]
        if not text:
            raise RefusedError("there is no certificate")
        try:
            certificate = _core.Certificate.parse(text)
        except Error as error:
            raise RefusedError(f"the certificate: {error}") from None
        if not certificate.is_of(self.original, self.graph):
            raise RefusedError("the certificate is of other programs")
        if certificate.record()["level"] != self.entry["level"]:
            raise RefusedError("the certificate is of another level")
        holds, what = _core.recheck(certificate, self.original, self.graph)
        if not holds:
            raise RefusedError(f"the certificate does not hold: {what}")

    def proposal(self, store: str, of: _core.Graph | None = None) -> Record:
        """For the core, which believes nothing of it."""
        e = self.entry
        return {"of": text_of(of or self.original), "graph": text_of(self.graph),
                "origin": f"store: {store}", "derivation": e["derivation"],
                "between": e["between"]}  # fmt: skip


def _graph(entry: Entry, field: str) -> _core.Graph:
    try:
        graph = _core.parse(entry[field], f"<{field}>")
        graph.validate()
    except Error as error:
        raise RefusedError(f"the {field}: {error}") from None
    return graph


def _sound(entries: Iterable[Entry]) -> Iterator[Claim]:
    """Those that claim another program than the original, and do not contradict themselves."""
    for entry in entries:
        if entry.improved:
            try:
                yield Claim.of(entry)
            except RefusedError:
                Uses.default().add(entry.key, entry.name, entry.number("speedup"), 0.0, False)


def text_of(graph: _core.Graph) -> str:
    """The program as text."""
    return str(Graph.from_core(graph))


def interface(graph: _core.Graph) -> tuple[list[str], list[str]]:
    """Types of a program's inputs and results."""
    ins, outs = ([format_type(*graph.type(t)) for t in ts] for ts in (graph.inputs, graph.outputs))
    return ins, outs


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
    becomes a local result, as if it had been found here."""
    options = options or Options()
    groups: dict[tuple[str, str, bool], list[Claim]] = {}
    for entry in entries:
        if entry.kind == "rule":
            yield _receive_rule(entry)
        elif entry.kind == "pattern":
            yield _receive_pattern(entry)
        elif entry.kind == "program":
            try:
                claim = Claim.of(entry)
            except RefusedError as error:
                Uses.default().add(entry.key, entry.name, entry.number("speedup"), 0.0, False)
                yield _received(entry, "refused", error.message)
                continue
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
    known = ranks()
    original = claims[0].original
    tried = [c for c in claims if c.entry.improved]
    tried.sort(key=lambda c: (-rank_of(c.entry, known).worth(c.entry.number("speedup")),
                              c.entry.key))  # fmt: skip
    for claim in [c for c in claims if not c.entry.improved] + tried[top:]:
        why = "others promise more" if claim.entry.improved else "nothing was found there"
        yield _received(claim.entry, "passed over", why)
    tried = tried[:top]
    if not tried:
        return
    fields = {**options.fields(), "special": special or original.asks_for_nan, "refresh": True,
              "only_proposals": True, "proposals": [c.proposal(store) for c in tried]}  # fmt: skip
    here = local_store().list("program", claims[0].entry["program"])
    fields["proposals"] += [{**c.proposal("", original), "origin": c.entry["origin"]}
                            for c in _sound(here) if c.entry["level"] == options.level]  # fmt: skip
    record = _core.optimize(original, fields)
    yield from told(tried, record)


def told(claims: Iterable[Claim], record: Fields) -> Iterator[Received]:
    """What became of claims in an optimisation; it counts as a use of them."""
    in_order = sorted(record["candidates"], key=lambda c: bool(c["fate"] == "chosen"))
    fates = {_core.program_hash(c["graph"]): c for c in in_order}
    for claim in claims:
        entry, found = claim.entry, fates.get(_core.program_hash(claim.graph))
        recorded = entry.number("speedup")
        if found is None or found["fate"] == "proposed":
            yield _received(entry, "passed over", "there was no time to try it")
            continue
        measured = float(found.get("speedup", 0.0))
        refused = _REFUSED.get(found["fate"], "")
        Uses.default().add(entry.key, described(claim.original), recorded, measured, not refused)
        fate = "refused" if refused else "faster" if found["fate"] == "chosen" else "slower"
        reason = "; ".join([refused, *found["why"].splitlines()[:3]]) if refused else ""
        yield Received(entry.key, entry.name, fate, reason, recorded, measured)


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


def _receive_rule(entry: Entry) -> Received:
    text = entry["text"] + "\n"
    try:
        found = _core.parse_rules(text, "<rule>")
        if len(found) != 1 or found[0]["name"] != entry["name"]:
            return _received(entry, "refused", "it is not one rule of that name")
        if any(rule.name == entry["name"] for rule in load_rules()):
            return _received(entry, "known", "there is a rule of that name")
        checked = _core.check_rules(text, "<rule>")[0]
        if not checked["holds"]:
            return _received(entry, "refused", f"it does not hold: {checked['why']}")
    except Error as error:
        return _received(entry, "refused", str(error))
    add_to_user_rules([rule_of(found[0])])
    return _received(entry, "accepted", "it holds here")


def _receive_pattern(entry: Entry) -> Received:
    if not _FILE_NAME.fullmatch(entry["name"]):
        return _received(entry, "refused", "its name is no file's")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (entry["name"] + SUFFIX)
        write_text(path, entry["text"] + "\n")
        try:
            pattern = read_pattern(path)
            if pattern.name != entry["name"]:
                return _received(entry, "refused", "it is a pattern of another name")
            if pattern.written():
                return _received(entry, "refused", "it has code that a person wrote")
            if any(p.name == pattern.name for p in read_patterns()[0]):
                return _received(entry, "known", "there is a pattern of that name")
            checked = check_pattern(path)
            if not checked.holds:
                return _received(entry, "refused", f"it does not hold: {checked.why}")
        except Error as error:
            return _received(entry, "refused", str(error))
        add_pattern(path, users("learnt") if entry["name"].startswith("learnt-") else None)
    return _received(entry, "accepted", "it holds here")


# --- optimisations that have no result of their own ----------------------------------------------


def optimize(
    program: _core.Graph,
    fields: Fields,
    progress: Callable[[Record], None] | None = None,
    stop: Callable[[], bool] | None = None,
    top: int = 3,
) -> Record:
    """`_core.optimize`, which looks into the stores of TESSERA_STORES where there is no local
    result.

    What was found with these tools on this device spares the search, unless nothing of it holds;
    what others found takes part in it. Times are not believed; that nothing was found is, where the
    options and the device are the same.
    """
    stores, claims = configured(), []
    if not stores.stores or not fields["cache"] or fields["refresh"] or fields["resume"]:
        return _core.optimize(program, fields, progress, stop)
    here = _core.entry_key(program, fields)
    tuned = _core.entry_key(program, {**fields, "tune": True, "budget": 0.0})
    if any(local_store().path(k["key"]).exists() for k in (here, tuned)):
        return _core.optimize(program, fields, progress, stop)
    proposals: list[Record] = []
    known, vain, near = ranks(), False, False
    for of in [program, *_core.parts(program)]:
        found = list(stores.named("program", _core.program_hash(of)))
        vain = vain or any(e.key == here["key"] and not e.improved for _, e in found)
        names = {e.key: name for name, e in found}
        fit = list(_sound(e for _, e in found if _keeps(e, fields["level"])))
        fit.sort(key=lambda c: _order(c, here, known), reverse=True)
        near = near or (of is program and any(_order(c, here, known)[0] for c in fit))
        claims += fit[:top]
        proposals += [c.proposal(names[c.entry.key], of) for c in fit[:top]]
        if fit or vain:
            break  # its parts are for programs that nobody has as a whole
    more = {
        "proposals": proposals,
        "only_proposals": (near or vain) and not fields["tune"],
        "searched": vain,
    }
    record = _core.optimize(program, {**fields, **more}, progress, stop)
    record["report"]["stores"] = [r.json() for r in told(claims, record)]
    if near and not (record["improved"] or vain or record["interrupted"]):
        return _core.optimize(program, fields, progress, stop)
    return record


def _keeps(entry: Entry, level: str) -> bool:
    """Whether what an entry's level keeps is all that is asked for."""
    return entry["level"] in LEVELS and LEVELS.index(entry["level"]) <= LEVELS.index(level)


def _order(claim: Claim, here: Fields, known: dict[str, Rank]) -> tuple[bool, float]:
    """Whether it is from here, as it were, and what can be expected of it."""
    entry = claim.entry
    same = all(entry[name] == here[name] for name in ("device", "tools"))
    return same, rank_of(entry, known).worth(entry.number("speedup"))
