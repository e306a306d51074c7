"""`tessera store`: what each verb does, tells, and returns; ranking, and what goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from store_entries import entry, many, resealed

from tessera import _core
from tessera.cache_folder import make_own
from tessera.cli import main
from tessera.errors import IoError
from tessera.options import users
from tessera.store.entry import Entry, RefusedError, newer
from tessera.store.ranking import Rank, Uses, count_named, rank_of, ranks, to_drop
from tessera.store.receive import receive
from tessera.store.stores import FolderStore, local_store, open_store


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def team(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "team")


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, Any]:
    code = main(["store", *args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = main(["store", *args])
    return code, capsys.readouterr().out


def forged() -> Any:
    return resealed(entry(), graph=entry("square")["graph"])


def test_push_pull_list_show(team: FolderStore, capsys: pytest.CaptureFixture[str]) -> None:
    for e in many(4):
        local_store().put(e)
    assert text(capsys, "push", team.name) == (0, "4 entries: 4 copied\n")
    assert text(capsys, "push", team.name) == (0, "4 entries: 4 known\n")
    assert local_store().get(many(1)[0].key) == team.get(many(1)[0].key)
    code, listed = as_json(capsys, "list", team.name)
    assert code == 0
    assert [e["name"] for e in listed["entries"]].count("twice") == 2
    assert main(["store", "list", team.name, "--kind", "rule"]) == 0
    assert capsys.readouterr().out == "0 entries\n"
    key = listed["entries"][0]["key"]
    found = team.get(key)
    assert found is not None
    assert text(capsys, "show", key[:20], team.name) == (0, found.text)
    assert main(["store", "show", "xyz", team.name]) == 65
    assert "no entries begin with 'xyz'" in capsys.readouterr().err
    for e in many(4):
        local_store().delete(e.key)
    code, pulled = as_json(capsys, "pull", team.name, "--top", "1", "--budget", "5")
    assert code == 0
    fates = [e["fate"] for e in pulled["entries"]]
    assert len(fates) == 4
    assert set(fates) <= {"faster", "slower"}  # those of one program have the same graph
    code, told = text(capsys, "list", team.name)
    assert "2.00x" in told


def test_what_is_pushed_names_no_places(
    team: FolderStore, capsys: pytest.CaptureFixture[str]
) -> None:
    local_store().put(entry(origin="store: /home/me/secret"))
    assert main(["store", "push", team.name]) == 0
    (shared,) = team.list()
    assert shared["origin"] == "store"
    assert "secret" not in shared.text
    capsys.readouterr()


def test_pull_refuses_with_reasons(team: FolderStore, capsys: pytest.CaptureFixture[str]) -> None:
    team.put(forged())
    team.path("a" * 64).parent.mkdir()
    team.path("a" * 64).write_text("nothing")
    code, told = text(capsys, "pull", team.name)
    assert code == 1
    assert "certificate is of other programs" in told
    assert "aaaaaaaaaaaa : refused: " in told
    assert "2 entries: 2 refused" in told
    assert list(local_store().list()) == []


def test_verify(team: FolderStore, capsys: pytest.CaptureFixture[str]) -> None:
    for e in many(3):
        team.put(e)
    assert text(capsys, "verify", team.name) == (0, "3 entries: 3 sound\n")
    assert text(capsys, "verify", team.name, "--prove") == (0, "3 entries: 3 sound\n")
    wrong = resealed(forged(), tools="result 1 verifier 1 codegen 1")
    team.put(wrong)
    assert text(capsys, "verify", team.name)[0] == 0  # nothing contradicts it
    code, told = as_json(capsys, "verify", team.name, "--prove")
    assert code == 1
    assert told["counts"] == {"sound": 3, "refused": 1}
    assert [e["key"] for e in told["entries"] if e["fate"] == "refused"] == [wrong.key]


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_merge_does_not_depend_on_the_order(
    tmp_path: Path, order: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, made, count in (("a", "2026-03-01", 2), ("b", "2026-02-01", 3)):
        for e in many(count):
            FolderStore(tmp_path / name).put(resealed(e, key=e.key, made=made))
    FolderStore(tmp_path / "a").put(forged())
    into = f"sqlite:{tmp_path / 'c'}"
    code, told = as_json(capsys, "merge", *(str(tmp_path / name) for name in order), into)
    assert code == 1
    assert told["counts"]["refused"] == 1
    _, listed = as_json(capsys, "list", into)
    assert sorted(e["made"] for e in listed["entries"]) == [
        "2026-02-01", "2026-03-01", "2026-03-01",
    ]  # fmt: skip


def test_rank_counts_uses_regret_and_flips() -> None:
    e = entry()
    for measured, replayed, program in ((2.0, True, "a"), (1.0, True, "b"), (0.0, False, "b")):
        Uses.default().add(e.mark, program, 4.0, measured, replayed)
    rank = rank_of(e, ranks())
    assert (rank.uses, rank.flips, rank.sizes) == (3, 1, 2)
    assert rank.regret == pytest.approx(1.5)  # 4x became 2x, and none
    assert rank.gain == pytest.approx(1 / 3)
    assert rank.fidelity == pytest.approx(2 / 3)
    assert Rank().worth(4.0) > Rank().worth(2.0) > Rank().worth(0.5) == 0
    assert rank.worth(4.0) < Rank().worth(4.0)


def test_a_forgery_does_not_displace_what_it_imitates(team: FolderStore) -> None:
    genuine = resealed(entry(), made="2026-03-01")
    forged = resealed(genuine, graph=genuine["original"], improved="no", made="2026-04-01")
    assert forged.key == genuine.key
    assert newer(forged, genuine) == newer(genuine, forged) == genuine
    team.put(genuine)
    team.put(resealed(forged, tools="result 999 verifier 999 codegen 999"))
    Uses.default().add(forged.mark, "p", 9.0, 0.0, False)
    assert to_drop(team.list(), 10) == []
    for changes in ({"made": "9999-12-31"}, {"made": "soon"}, {"tools": "result " + "9" * 5000}):
        with pytest.raises(RefusedError):
            resealed(genuine, **changes).checked()
    (weights,) = receive([resealed(entry(), graph=genuine["graph"].replace(
        "input", "input {weight=true}"))])  # fmt: skip
    assert weights.fate == "refused"
    assert "other inputs" in weights.reason


def test_own_rules_and_patterns_are_used_where_derivations_name_them() -> None:
    make_own(users("rules"))
    make_own(users("learnt"))
    (users("rules") / "learnt.rules").write_text("rule mine\n  A [m]\n  A = A\n")
    (users("learnt") / "learnt-x.pattern").write_text("")
    derivation = "a  =  b  [rule mine]  (2 us -> 1 us)\nc  =  d  [rule shipped-one]\n"
    program = _core.parse(entry()["original"])
    count_named(program, derivation + "pattern learnt-x at %2 (matmul) with M=60\n", 4.0)
    count_named(program, "pattern learnt-y at %2", 4.0)
    found = ranks()
    assert set(found) == {"mine", "learnt-x"}
    assert rank_of(Entry.of_text("rule", "mine", "rule mine"), found).gain == 2
    assert {row["program"] for row in Uses.default().recent()} == {"twice f32[8,4]"}


def test_gc_drops_the_damaged_the_refuted_the_old_and_the_worst(
    team: FolderStore, capsys: pytest.CaptureFixture[str]
) -> None:
    good, liar, *rest = [
        resealed(e, device=str(n), speedup=str(2 + n)) for n, e in enumerate(many(5))
    ]
    old = resealed(good, tools="result 2 verifier 1 codegen 1", made="2026-01-01")
    for e in (good, liar, old, *rest):
        team.put(e)
    team.path("a" * 64).parent.mkdir(exist_ok=True)
    team.path("a" * 64).write_text("nothing")
    Uses.default().add(liar.mark, "p", 9.0, 0.0, False)
    Uses.default().add(good.mark, "p", 2.0, 8.0, True)
    with pytest.warns(RuntimeWarning, match="passed over"):
        dropped = {e.key: why for e, why in to_drop(team.list(), 3)}
    assert set(dropped) == {liar.key, old.key, rest[0].key}
    assert "newer tools" in dropped[old.key]
    code, told = as_json(capsys, "gc", team.name, "--keep", "3", "--dry-run")
    assert code == 0
    assert len(told["entries"]) == 4
    assert len(list(team.list())) == 6
    code, out = text(capsys, "gc", team.name, "--keep", "3")
    assert "never what it says" in out
    assert "4 entries: 4 dropped" in out
    assert {e.key for e in team.list()} == {good.key, rest[1].key, rest[2].key}
    assert list(team.damaged()) == []


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--help"]) == 0
    told = capsys.readouterr().out
    for word in ("TESSERA_STORES", "sqlite:FILE", "redis://", "s3://", "push", "merge"):
        assert word in told


def test_gc_passes_over_a_folder_that_is_called_like_an_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = FolderStore(tmp_path / "team")
    store.path("00" + "a" * 62).mkdir(parents=True)
    store.path("00" + "b" * 62).write_text("nonsense")
    code, told = text(capsys, "gc", str(tmp_path / "team"))
    assert code == 0
    assert "1 dropped, 1 passed over" in told
    assert not store.path("00" + "b" * 62).exists()


def test_a_server_that_is_not_there_is_an_error() -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
    with pytest.raises(IoError, match="the store http"):
        list(open_store("http://127.0.0.1:9/x").list())
