"""Nothing that comes from a store is believed: 10,000 corruptions, forgeries, and lies."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_entries import PAIRS, entry, program, resealed

import tessera as ts
from tessera import Graph, _core
from tessera.errors import Error
from tessera.options import shipped, users
from tessera.rules import load_rules
from tessera.store import receive as receiving
from tessera.store.entry import Entry, RefusedError
from tessera.store.ranking import Uses
from tessera.store.receive import Claim, own_texts, receive
from tessera.store.stores import FolderStore, local_store

OTHER_TOOLS = "result 11 verifier 1 codegen 6"  # whose certificates say nothing here


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    """A store that optimisations look into."""
    (tmp_path / "team").mkdir()
    monkeypatch.setenv("TESSERA_STORES", str(tmp_path / "team"))
    return FolderStore(tmp_path / "team")


def wrong_graphs(rng: random.Random) -> Iterator[str]:
    """Programs that read, and compute something else than both of PAIRS."""
    bodies = ("t = exp x : f32[8,4]", "t = relu x : f32[8,4]", "t = neg x : f32[8,4]")
    while True:
        c = rng.choice([0, 1, 3, 2.0001, 1e-30, rng.random()])
        scaled = f"c = const {{value={c}}} : f32[]\n t = mul x, c : f32[8,4]"
        yield program(rng.choice([*bodies, scaled]))


def flipped(rng: random.Random, good: Entry) -> bytes:
    data = bytearray(good.text.encode())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def truncated(rng: random.Random, good: Entry) -> bytes:
    data = good.text.encode()
    return data[: rng.randrange(len(data))]


def swapped_lines(rng: random.Random, good: Entry) -> bytes:
    lines = good.text.splitlines()
    a, b = rng.sample(range(len(lines)), 2)
    if lines[a] == lines[b]:
        lines[a] += " "
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join([*lines, ""]).encode()


def swapped_fields(rng: random.Random, good: Entry) -> bytes:
    """Sealed anew: two fields have each other's values, or one has that of another entry."""
    a, b = rng.sample([n for n in good.fields if n not in ("derivation", "origin", "rank")], 2)
    values = {a: good[b], b: good[a]}
    if rng.random() < 0.3:
        values = {a: entry("square" if good["graph"] == entry()["graph"] else "twice")[a]}
    changed = Entry({**good.fields, **values})
    return (changed if rng.random() < 0.5 else resealed(changed)).text.encode()


def another_graph(rng: random.Random, good: Entry) -> bytes:
    """Sealed anew, with a graph that computes something else, and all that fits it."""
    changes = {"graph": next(wrong_graphs(rng))}
    lines = good["certificate"].splitlines()
    match rng.randrange(5):
        case 0:  # a sound certificate of it, which is of another original
            wrong = Graph.parse(changes["graph"])
            changes["certificate"] = str(ts.verify(wrong, wrong).certificate)
        case 1:  # one that says to be of it
            wrong = Graph.parse(changes["graph"])
            own = str(ts.verify(wrong, wrong).certificate).splitlines()
            changes["certificate"] = "\n".join([lines[0], lines[1], own[2], *lines[3:]])
        case 2:
            changes["improved"] = "no"
        case 3:
            changes["certificate"] = ""
    return resealed(good, **changes).text.encode()


def another_certificate(rng: random.Random, good: Entry) -> bytes:
    text = good["certificate"]
    at = rng.randrange(len(text))
    text = text[:at] + rng.choice("0123456789abcdef =\n") + text[at + 1 :]
    return resealed(good, certificate=text).text.encode()


def another_place(rng: random.Random, good: Entry) -> bytes:
    """Another device, level, tools or options, with the old key: all that is wrong is the key."""
    name = rng.choice(["device", "level", "tools", "options", "program"])
    return resealed(good, **{name: good[name] + "0", "key": good.key}).text.encode()


def lie(rng: random.Random, good: Entry) -> bytes:
    """Numbers that are none, or too good."""
    name = rng.choice(["speedup", "seconds", "original_s", "spread"])
    value = rng.choice(["nan", "inf", "-1", "1e400", "fast", "1e9"])
    return resealed(good, **{name: value}).text.encode()


CORRUPTIONS = [
    (flipped, 4000), (truncated, 1500), (swapped_lines, 1000), (swapped_fields, 1000),
    (another_graph, 1000), (another_certificate, 700), (another_place, 500), (lie, 300),
]  # fmt: skip


def test_ten_thousand_corruptions(tmp_path: Path) -> None:
    rng = random.Random(1)
    good = [entry(name) for name in PAIRS]
    for sound in good:
        Claim.of(Entry.parse(sound.text))
    fates: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for corrupt, count in CORRUPTIONS:
        for _ in range(count):
            honest = rng.choice(good)
            data = honest.text.encode()
            while data == honest.text.encode():  # the same character again
                data = corrupt(rng, honest)
            try:
                claim = Claim.of(Entry.parse(data.decode()))
            except UnicodeDecodeError:
                fates["refused"] += 1
                continue
            except RefusedError as error:
                fates["refused"] += 1
                reasons[re.sub(r"^<entry>:\d+: |: .*|'.*?'", "", error.message)] += 1
                continue
            # What is left claims nothing that is wrong, but for how fast it is.
            fates[f"harmless {corrupt.__name__}"] += 1
            assert corrupt in (another_certificate, lie, swapped_fields), data.decode()
            assert claim.entry["program"] in {e["program"] for e in good}
            pair = Graph.from_core(claim.original), Graph.from_core(claim.graph)
            assert ts.verify(*pair).equal
    assert sum(fates.values()) == 10_000
    assert fates["refused"] > 9_000, fates
    assert len(reasons) >= 15, reasons


def test_whoever_avoids_the_certificate_meets_the_proof() -> None:
    """Entries of other tools are proposals: no certificate is asked for, and the core decides."""
    rng = random.Random(2)
    graphs = wrong_graphs(rng)
    zero = program("c = const {value=0} : f32[]\n t = mul x, c : f32[8,4]")
    lies = [
        resealed(entry(), graph=graph, tools=OTHER_TOOLS, speedup=str(9 + n), derivation=str(n))
        for n, graph in enumerate([zero, *(next(graphs) for _ in range(8))])
    ]
    for told in lies:
        Claim.of(told.checked())
    fates = Counter(r.fate for r in receive(lies, "there", top=len(lies)))
    assert set(fates) <= {"refused", "slower"}, fates
    original = Graph.parse(entry()["original"])
    for kept in local_store().list():
        assert ts.verify(original, Graph.parse(kept["graph"])).equal
    result = ts.superoptimize(original, budget=2)
    assert ts.verify(original, result.graph).equal


SLOW = """graph rows {
  X = input : f32[96,256]
  W = input : f32[256,96]
  P = matmul X, W : f32[96,96]
  D = reshape P {shape=[9216]} : f32[9216]
  O = slice D {starts=[0], stops=[9216], steps=[97]} : f32[96]
  return O
}"""
FAST = """graph rows {
  X = input : f32[96,256]
  W = input : f32[256,96]
  T = transpose W {perm=[1,0]} : f32[96,256]
  M = mul X, T : f32[96,256]
  O = sum M {axes=[1]} : f32[96]
  return O
}"""
WRONG = FAST.replace("mul X, T", "add X, T")


PART = """graph product {
  X = input : f32[96,256]
  W = input : f32[256,96]
  A = transpose X {perm=[1,0]} : f32[256,96]
  B = transpose W {perm=[1,0]} : f32[96,256]
  C = matmul B, A : f32[96,96]
  P = transpose C {perm=[1,0]} : f32[96,96]
  return P
}"""


def rows(found: str, /, **changes: str) -> Entry:
    """An entry about SLOW, of this device: of a search with the default options that found nothing,
    or of a tuned program, which serves all budgets."""
    a, b = Graph.parse(SLOW), Graph.parse(found)
    tuned = {} if changes.get("improved") == "no" else {"tune": True, "budget": 0.0}
    made = _core.entry_key(a.core, {**ts.Options().fields(), **tuned})
    proof = str(ts.verify(a, b).certificate or "none")
    fields = {**entry().fields, **made, "original": str(a), "graph": str(b), "certificate": proof,
              "speedup": "1.1"}  # fmt: skip
    return resealed(Entry(fields), **changes)


def test_what_is_sound_and_faster_becomes_a_result_of_ones_own() -> None:
    (found,) = receive([rows(FAST)], "there")
    assert (found.fate, found.recorded) == ("faster", 1.1)
    assert found.measured > 1
    (kept,) = local_store().list()
    assert kept["origin"] == "store: there"
    assert _core.program_hash(_core.parse(kept["graph"])) == _core.program_hash(_core.parse(FAST))
    result = ts.superoptimize(Graph.parse(SLOW))
    assert result.improved
    assert result.details["from_cache"]


def test_another_device_proposes_and_is_not_believed() -> None:
    """The wrong program promises most and is faster, too."""
    there = [rows(WRONG, device="a better one", tools=OTHER_TOOLS, speedup="50"),
             rows(FAST, device="another one", tools=OTHER_TOOLS, speedup="40")]  # fmt: skip
    wrong, right = sorted(receive(there, "there"), key=lambda r: -r.recorded)
    assert wrong.fate == "refused"
    assert "computes something else" in wrong.reason
    assert right.fate == "faster"
    assert right.measured < 40
    regrets = {row["key"]: row for row in Uses.default().recent()}
    assert regrets[there[0].mark]["replayed"] is False
    assert regrets[there[1].mark]["measured"] == right.measured


def test_top_bounds_what_is_tried() -> None:
    graphs = [WRONG, FAST, FAST.replace("mul X, T", "mul T, X"), SLOW, FAST]
    many = [rows(graph, device=str(n), tools=OTHER_TOOLS, speedup=str(9 - n))
            for n, graph in enumerate(graphs)]  # fmt: skip
    fates = [r.fate for r in sorted(receive(many, "there", top=2), key=lambda r: -r.recorded)]
    assert fates == ["refused", "faster", "passed over", "passed over", "faster"]


def test_that_nothing_is_to_be_found_spares_the_search() -> None:
    vain = rows(SLOW, improved="no", certificate="none", speedup="1")
    other = resealed(vain, device="another one")
    slower = resealed(vain, options=vain["options"].replace("seed 0", "seed 1"))
    fates = [r.fate for r in receive([vain, other, slower])]
    assert fates == ["accepted", "passed over", "passed over"]
    result = ts.superoptimize(Graph.parse(SLOW))
    assert not result.improved
    assert result.details["from_cache"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"graph": WRONG}, "certificate is of other programs"),
        ({"certificate": ""}, "no certificate"),
        ({"level": "bitwise"}, "another level"),
        ({"level": "exact"}, "no level"),
        ({"original": FAST}, "another program"),
        ({"program": "0" * 64}, "another program"),
        ({"graph": "graph g {"}, "the graph: "),
        ({"graph": program("t = add x, x : f32[8,4]")}, "other inputs or results"),
        ({"improved": "no"}, "nothing was found"),
    ],
)
def test_reasons(changes: dict[str, str], reason: str) -> None:
    (found,) = receive([rows(FAST, **changes)])
    assert found.fate == "refused"
    assert reason in found.reason
    assert list(local_store().list()) == []


def large(copies: int) -> str:
    """The same values, by way of a large tensor."""
    shape = f"[8,4,{copies}]"
    return program(
        f"y = reshape x {{shape=[8,4,1]}} : f32[8,4,1]\n"
        f" z = broadcast y {{shape={shape}}} : f32{shape}\n"
        " m = mean z {axes=[2]} : f32[8,4]\n t = add m, m : f32[8,4]"
    )


def test_what_would_fill_the_memory_is_refused() -> None:
    there = [
        entry(graph=large(n), tools=OTHER_TOOLS, device=str(n)) for n in (1 << 40, 10, 1 << 32)
    ]
    fates = {r.key: r for r in receive(there)}
    assert fates[there[0].key].fate == "refused"
    assert "too many elements" in fates[there[0].key].reason
    assert fates[there[1].key].fate in ("slower", "faster")
    assert fates[there[2].key].fate == "refused"
    assert "far larger" in fates[there[2].key].reason


def grown(text: str, between: str) -> str:
    """A certificate by way of a program."""
    return text + "between " + between.replace("\n", "\\n") + "\n"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"certificate": grown(entry()["certificate"], large(1 << 30))}, "between has tensors far"),
        ({"between": large(1 << 30)}, "program between has tensors far larger"),
        ({"certificate": entry()["certificate"] + "draw field=terms\n" * 5000}, "too long"),
        ({"certificate": entry()["certificate"] + "note " + "n" * (1 << 22)}, "too long"),
        ({"certificate": entry()["certificate"] + "binding N=1000000\n"}, "other sizes"),
    ],
)
def test_certificates_that_take_hours_or_the_memory_are_not_replayed(
    changes: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "recheck", lambda *_: pytest.fail("replayed"))
    with pytest.raises(RefusedError, match=reason):
        Claim.of(entry(**changes))


@pytest.mark.parametrize("text", ["1_0", " 2", "\uff12", "+2", "2 ", "0x2"])
def test_numbers_are_plain(text: str) -> None:
    with pytest.raises(RefusedError, match="no number"):
        entry(speedup=text).checked()


@pytest.mark.parametrize("text", ["\ud800", "\x1b[31m", "\r", "\0", "\x9b"])
def test_control_characters_are_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="control characters"):
        entry(origin=text).checked()
    with pytest.raises(RefusedError, match="control characters"):
        Entry.parse(entry().text + text)


def test_memory_that_is_not_there_refuses_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _core.recheck

    def recheck(certificate: _core.Certificate, *programs: Any) -> tuple[bool, str]:
        if "twice" in str(certificate):
            raise MemoryError
        return real(certificate, *programs)

    monkeypatch.setattr(_core, "recheck", recheck)
    fates = {r.name: r for r in receive([entry("twice"), entry("square")])}
    assert fates["twice"].reason == "there is not memory enough to check it"
    assert fates["square"].fate in ("slower", "faster")


def test_replays_end_with_the_budget_of_their_program(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def recheck(*_: object) -> tuple[bool, str]:
        now[0] += 20
        return False, "a lie"

    monkeypatch.setattr(_core, "recheck", recheck)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lies = [entry(name, device=str(n)) for n in range(3) for name in PAIRS]
    found = list(receive(lies, options=ts.Options(budget=30)))
    assert [(r.name, r.fate) for r in found] == [
        *[(name, "refused") for _ in range(2) for name in PAIRS],
        *[(name, "passed over") for name in PAIRS],
    ]


def test_a_race_that_fails_leaves_the_original(
    team: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _core.optimize

    def failing(program: _core.Graph, fields: dict[str, Any], *rest: Any) -> dict[str, Any]:
        if fields.get("proposals"):
            raise Error("out of memory")
        return real(program, fields, *rest)

    monkeypatch.setattr(_core, "optimize", failing)
    (received,) = receive([rows(FAST)])
    assert received.fate == "passed over"
    assert "out of memory" in received.reason
    team.put(rows(FAST))
    with pytest.warns(RuntimeWarning, match="cannot be tried: out of memory"):
        assert optimized().candidates


# --- optimisations that look into stores -------------------------------------------------------


def optimized(**options: Any) -> ts.Result:
    return ts.superoptimize(Graph.parse(SLOW.replace("X", "Q")), budget=5, **options)


def test_a_miss_looks_into_the_stores(team: FolderStore) -> None:
    team.put(rows(FAST))
    result = optimized()
    assert result.improved
    chosen = [c for c in result.candidates if c.fate == "chosen"]
    assert [c.origin for c in chosen] == [f"store: {team.name}"]
    assert len(result.candidates) == 1  # nobody searched
    assert result.details["stores"][0]["fate"] == "faster"
    team.delete(rows(FAST).key)
    again = optimized()
    assert again.details["from_cache"]
    assert again.improved


def test_other_devices_take_part_in_the_search(team: FolderStore) -> None:
    team.put(rows(FAST, device="another one", tools=OTHER_TOOLS))
    team.put(rows(WRONG, device="a worse one", tools=OTHER_TOOLS, speedup="30"))
    result = optimized()
    fates = {c.fate for c in result.candidates if c.origin == f"store: {team.name}"}
    assert "refuted" in fates
    assert ts.verify(result.original, result.graph)


def test_lies_cost_time_only(team: FolderStore) -> None:
    """One is from here, as it were, with a certificate that says to be of a wrong program."""
    here = rows(FAST)
    wrong = Graph.parse(WRONG)
    of_wrong = str(ts.verify(wrong, wrong).certificate).splitlines()[2]
    forged = here["certificate"].splitlines()
    forged[2] = of_wrong
    team.put(resealed(here, graph=WRONG, certificate="\n".join(forged)))
    team.put(rows(WRONG, tools=OTHER_TOOLS, speedup="1e6"))
    result = optimized()
    assert ts.verify(result.original, result.graph)
    assert {r["fate"] for r in result.details["stores"]} == {"refused"}
    origins = {c.origin for c in result.candidates}
    assert origins  # somebody searched
    assert "store" not in "".join(origins)


def test_that_nothing_was_found_here_is_believed_of_the_same_options_only(
    team: FolderStore,
) -> None:
    vain = rows(SLOW, improved="no", certificate="", speedup="1")
    team.put(vain)
    assert ts.superoptimize(Graph.parse(SLOW)).candidates == []
    found = optimized()  # another budget
    assert found.candidates


def test_what_spares_the_search(team: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    real = _core.optimize

    def watched(program: _core.Graph, fields: dict[str, Any], *rest: Any) -> dict[str, Any]:
        asked.append(fields)
        return real(program, {**fields, "cache": False}, *rest)

    monkeypatch.setattr(_core, "optimize", watched)
    optimized()
    elsewhere = rows(FAST, device="another one", speedup="30")
    team.put(elsewhere)
    optimized()
    team.put(rows(FAST))
    part = _core.parts(_core.parse(SLOW))[0]
    found = {"original": str(Graph.from_core(part)), "graph": PART, "tools": OTHER_TOOLS}
    team.put(resealed(entry(), program=_core.program_hash(part), **found))
    optimized()
    optimized(tune=True)
    assert [(f["only_proposals"], len(f["proposals"])) for f in asked] == [
        (False, 0), (False, 1), (True, 2), (False, 2),
    ]  # fmt: skip
    asked.clear()
    monkeypatch.setattr(receiving, "_KEPT", 1)
    optimized()
    assert len(asked[0]["proposals"]) == 1  # the one from here, although it promises less
    assert asked[0]["only_proposals"]


@pytest.mark.parametrize(
    ("has", "asked", "fits"),
    [("bitwise", "close", True), ("fast", "close", False), ("close", "close", True)],
)
def test_stricter_levels_serve_looser_ones(
    team: FolderStore, has: str, asked: str, fits: bool
) -> None:
    team.put(rows(FAST, level=has, tools=OTHER_TOOLS))
    assert any("store" in c.origin for c in optimized(level=asked).candidates) == fits


def test_parts_serve_programs_that_nobody_has(team: FolderStore) -> None:
    rest = "Q = reshape P {shape=[32,288]} : f32[32,288]\n  E = exp Q : f32[32,288]\n  return E"
    whole = _core.parse(SLOW.split("D =")[0] + rest + "\n}")
    (part,) = _core.parts(whole)
    found = {"original": str(Graph.from_core(part)), "graph": PART, "tools": OTHER_TOOLS}
    team.put(resealed(entry(), program=_core.program_hash(part), **found))
    result = ts.superoptimize(Graph.from_core(whole), budget=3)
    (tried,) = result.details["stores"]
    assert tried["fate"] in ("slower", "faster")
    assert f"store: {team.name}" in {c.origin for c in result.candidates}


def test_refresh_and_no_cache_ask_nobody(
    team: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(receiving, "_sound", fail)
    team.put(rows(FAST))
    assert optimized(refresh=True).candidates
    assert optimized(cache=False).candidates


# --- rules and patterns ------------------------------------------------------------------------

RULE = """rule mine
  A [...s]
  A + A = 2 * A
  holds for real, integer
"""


def test_rules_join_where_they_hold() -> None:
    good = Entry.of_text("rule", "mine", RULE)
    wrong = Entry.of_text("rule", "other", RULE.replace("mine", "other").replace("2 *", "3 *"))
    named = Entry.of_text("rule", "ours", RULE)
    broken = Entry.of_text("rule", "broken", "rule broken\n  nothing")
    fates = [r.fate for r in receive([good, wrong, named, broken, good])]
    assert fates == ["accepted", "refused", "refused", "refused", "known"]
    assert "mine" in {rule.name for rule in load_rules()}
    assert [e.name for e in own_texts() if e.kind == "rule"] == ["mine"]
    assert next(own_texts()).kind == "rule"


def shipped_pattern() -> str:
    path = shipped("patterns")
    assert path is not None
    return (path / "rmsnorm.pattern").read_text()


def test_patterns_join_where_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    text = shipped_pattern().replace("pattern rmsnorm\n", "pattern learnt-rms\n")
    text = re.sub(r"^  code .*?^  }\n", "", text, flags=re.S | re.M)
    good = Entry.of_text("pattern", "learnt-rms", text)
    wrong = Entry.of_text("pattern", "learnt-two", text.replace("learnt-rms", "learnt-two")
                          .replace("sqr", "exp", 1))  # fmt: skip
    with pytest.raises(RefusedError, match="its name"):
        Entry.of_text("pattern", "../rms", text)
    named = Entry.of_text("pattern", "learnt-three", text)
    fates = {r.name: r for r in receive([good, wrong, named])}
    assert [r.fate for r in fates.values()] == ["accepted", *["refused"] * 2], fates
    assert [p.name for p in users("learnt").iterdir()] == ["learnt-rms.pattern"]
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [e.name for e in own_texts()] == ["learnt-rms"]
    assert [r.fate for r in receive([good])] == ["known"]


def test_patterns_with_code_are_refused() -> None:
    text = shipped_pattern().replace("pattern rmsnorm\n", "pattern learnt-rms\n")
    (found,) = receive([Entry.of_text("pattern", "learnt-rms", text)])
    assert found.fate == "refused"
    assert "code" in found.reason
