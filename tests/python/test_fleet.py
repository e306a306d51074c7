"""Campaigns: the same winners whoever works, and nothing wrong from whoever lies."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from fleet_programs import (
    QUICK,
    SEARCH,
    AnyOrder,
    Changing,
    Deaf,
    programs,
    run,
    winners,
)

from tessera import _core
from tessera.errors import UsageError
from tessera.fleet import tasks
from tessera.fleet.campaign import Campaign, bundle_size
from tessera.fleet.executors import LocalExecutor, ShardExecutor, make_executor
from tessera.fleet.locks import measuring, searching
from tessera.fleet.messages import Request, answer, proposals_of, read_answer, search_request
from tessera.fleet.plan import ProgramPlan
from tessera.fleet.progress import Outcome
from tessera.fleet.tasks import measure_task, search_task
from tessera.race_processes import LostError
from tessera.store.entry import Entry, RefusedError
from tessera.store.receive import Claim
from tessera.store.stores import FolderStore


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """What one process finds."""
    found = winners(run(tmp_path_factory.mktemp("alone"), LocalExecutor()).progress.outcomes)
    assert all(found.values())
    return found


def through(outcome: Outcome) -> bool:
    """Whether nothing but the load of the machine kept a program from being measured."""
    return not outcome.why or "noise" in outcome.why


def test_large_searches_are_cut_and_small_ones_are_not() -> None:
    cuts = {
        p.name: [SEARCH.cuts(part, "mugraph") for part in _core.parts(p.graph.core)]
        for p in programs()
    }
    assert max(cuts["long"]) > 1
    assert cuts["factor"] == [1]


def through_plan(plan: ProgramPlan) -> list[Request]:
    """All searches of a plan, done here."""
    steps = plan.run()
    asked = list[Request]()
    requests = next(steps)
    while requests[0].task == "search":
        asked += requests
        requests = steps.send({r.key: read_answer(r, search_task(r.text)) for r in requests})
    return asked


def test_bounds_come_from_earlier_waves_alone() -> None:
    [program] = programs("long")
    plan = ProgramPlan("long", program.graph, SEARCH)  # keeps two
    steps = plan.run()
    first = next(steps)
    costs = {"0 4": [5e-6, 1e-6], "1 4": [3e-6, 2e-6]}

    def answered(request: Request) -> Entry:
        mine = costs.get(request.entry["slice"], []) if request.entry["engine"] == "mugraph" else []
        found = [
            {"graph": str(program.graph).replace("long", f"g{c:.0e}".replace("-", "")), "cost": c,
             "origin": "mugraph", "derivation": ""} for c in mine
        ]  # fmt: skip
        return read_answer(request, answer(request.entry, found=json.dumps(found)))

    second = steps.send({r.key: answered(r) for r in reversed(first)})
    bounds = {r.entry["slice"]: float(r.entry["bound"]) for r in first + second
              if r.entry["engine"] == "mugraph"}  # fmt: skip
    assert bounds == {"0 4": 0.0, "1 4": 0.0, "2 4": 2e-6, "3 4": 2e-6}


def test_bounds_lose_no_winner() -> None:
    plan = ProgramPlan("long", programs("long")[0].graph, SEARCH)
    slices = [r for r in through_plan(plan)
              if r.entry["engine"] == "mugraph" and r.entry["slice"] != "0 1"]  # fmt: skip
    assert len(slices) == 4
    found = {}
    for request in slices:
        fields = {**request.entry.fields, "bound": "0.0"}
        free = Request.of("search", {k: v for k, v in fields.items() if k not in ("kind", "key")})
        for p in proposals_of(free.entry, read_answer(free, search_task(free.text))):
            found[p.told["graph"]] = p.cost
    best = sorted(found, key=lambda text: (found[text], text))[: SEARCH.keep]
    assert best == [w.told["graph"] for w in plan.winners if w.told["origin"] == "mugraph"]


def test_later_waves_prove_nothing_again() -> None:
    plan = ProgramPlan("long", programs("long")[0].graph, SEARCH)
    later = [r for r in through_plan(plan) if r.entry["slice"] in ("2 4", "3 4")]
    again = set[str]()
    for request in later:
        known = set(request.entry["tried"].split())
        assert not known & set(read_answer(request, search_task(request.text))["tried"].split())
        fields = {**request.entry.fields, "tried": ""}
        free = Request.of("search", {k: v for k, v in fields.items() if k not in ("kind", "key")})
        again |= known & set(read_answer(free, search_task(free.text))["tried"].split())
    assert again  # which they would if they were not told


def test_what_synthesis_leaves_is_given_kernels_too() -> None:
    [program] = programs("diagonal")
    assert _core.program_hash(_core.parts(program.graph.core)[0]) != _core.program_hash(
        program.graph.core
    )
    plan = ProgramPlan("diagonal", program.graph, dataclasses.replace(SEARCH, steps=5000))
    through_plan(plan)
    last = plan.winners[-1].told
    assert last["origin"] == "synth"
    assert " kernel " in last["graph"]
    assert " kernel " not in last["between"]
    assert _core.verify(program.graph.core, _core.parse(last["graph"]))["verdict"] == "equal"


@pytest.mark.parametrize("seed", [0, 1])
def test_any_order_of_answers_has_the_same_winners(
    tmp_path: Path, alone: dict[str, tuple[str, ...]], seed: int
) -> None:
    assert winners(run(tmp_path, AnyOrder(seed)).progress.outcomes) == alone


def test_two_processes_have_the_same_winners_also_if_one_is_killed(
    tmp_path: Path, alone: dict[str, tuple[str, ...]]
) -> None:
    executor = LocalExecutor(2)
    campaign = Campaign(programs(), SEARCH, FolderStore(tmp_path), executor)
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            time.sleep(0.01)
            if sum(campaign.progress.done.values()) >= 2:
                child = next(iter(executor._all))
                killed.append(child.pid)
                child._process.kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert winners(campaign.run()) == alone
    killer.join(5)
    assert killed
    assert len(campaign.progress.by_worker) >= 2


def test_what_is_lost_with_others_is_asked_for_alone(
    tmp_path: Path, alone: dict[str, tuple[str, ...]]
) -> None:
    sizes = list[int]()

    class Frail(LocalExecutor):
        def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
            large = sum(n > 1 for n in sizes)
            sizes.append(len(requests))
            if len(requests) == 1 or large > 1:
                return super().submit(task, requests)
            future: Future[list[str]] = Future()
            if large == 0:
                future.set_exception(MemoryError("none left"))
            else:
                future.set_result([])
            return future

    campaign = run(tmp_path, Frail())
    assert winners(campaign.progress.outcomes) == alone
    first, second, *_ = (n for n in sizes if n > 1)
    assert len(campaign.progress.lost) == first
    assert len(campaign.progress.refused) == second
    place = sizes.index(first)
    assert sizes[place + 1 :].count(1) >= first
    assert any(n > 1 for n in sizes[place + 2 :])  # those that never failed go together


def test_workers_answer_after_some_seconds(
    tmp_path: Path, alone: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "BUNDLE_S", 0.0)  # time for one task of each bundle
    campaign = run(tmp_path, LocalExecutor())
    assert winners(campaign.progress.outcomes) == alone
    assert not campaign.progress.lost
    assert not campaign.progress.refused


def test_bundles_shrink_at_the_end() -> None:
    assert bundle_size(1e-9, 1e6, 2) == 32
    assert bundle_size(0.1, 1e6, 2) == 10
    assert bundle_size(0.1, 40, 2) == 5
    assert bundle_size(0.1, -3, 2) == 1
    assert bundle_size(5.0, 1e6, 2) == 1


def test_what_was_done_is_not_done_again(tmp_path: Path) -> None:
    first = run(tmp_path, LocalExecutor(), QUICK, "factor", "norm")
    again = run(tmp_path, LocalExecutor(), QUICK, "factor", "norm")
    assert all(map(through, first.progress.outcomes))
    noisy = sum(bool(o.why) for o in first.progress.outcomes)
    assert sum(again.progress.done.values()) == noisy
    assert again.progress.kept == sum(first.progress.done.values()) - noisy
    assert noisy or again.progress.outcomes == first.progress.outcomes
    for key in (o.key for o in first.progress.outcomes if not o.why):
        entry = FolderStore(tmp_path).get(key)
        assert entry is not None
        Claim.of(entry)


def test_names_do_not_matter_to_searches(tmp_path: Path) -> None:
    run(tmp_path, LocalExecutor(), SEARCH, "factor")
    text = str(programs("factor")[0].graph).replace("X", "other").replace("factor", "same")
    renamed = programs("factor")[0]._replace(graph=type(programs("factor")[0].graph).parse(text))
    campaign = Campaign([renamed], SEARCH, FolderStore(tmp_path), LocalExecutor())
    campaign.run()
    assert campaign.progress.done["search"] == 0


# --- lies
_VAST = "graph f { X = input : f32[16,32] A = input : f32[32,24] B = input : f32[32,24] " \
    "P = matmul X, A Q = matmul X, B S = add P, Q U = reshape S {shape=[16,24,1]} " \
    "V = broadcast U {shape=[16,24,1073741824]} T = reduce_max V {axes=[2]} return T }"  # fmt: skip
_WRONG = "graph f { X = input : f32[16,32] A = input : f32[32,24] B = input : f32[32,24] " \
    "P = matmul X, A Q = matmul X, B S = sub P, Q return S }"  # fmt: skip


def changed(text: str, **fields: str) -> str:
    return Entry({**Entry.parse(text).fields, **fields}).text


def tell_wrong_program(task: str, request: str, answer: str) -> str:
    """One that is cheaper than any, of the right types."""
    if task != "search" or Entry.parse(answer)["engine"] != "synth":
        return answer
    lie = {"graph": _WRONG, "cost": 1e-12, "origin": "synth", "derivation": "trust me"}
    return changed(answer, found=json.dumps([lie]))


def tell_other_types(task: str, request: str, answer: str) -> str:
    if task != "search":
        return answer
    lie = {"graph": _WRONG.replace("24", "23"), "cost": 1e-12, "origin": "synth", "derivation": ""}
    return changed(answer, found=json.dumps([lie]))


def forge_certificate(task: str, request: str, answer: str) -> str:
    """A wrong program under another's certificate."""
    if task != "measure":
        return answer
    result = changed(Entry.parse(answer)["result"], graph=_WRONG, improved="yes")
    return changed(answer, result=result)


def answer_something_else(task: str, request: str, answer: str) -> str:
    if task != "search":
        return answer
    other = ProgramPlan("norm", programs("norm")[0].graph, SEARCH)
    return search_task(next(other.run())[0].text)


def damage(task: str, request: str, answer: str) -> str:
    return answer.replace("worker", "worked", 1)


def tell_program_that_fills_the_memory(task: str, request: str, answer: str) -> str:
    if task != "search":
        return answer
    lie = {"graph": _VAST, "cost": 1e-12, "origin": "synth", "derivation": ""}
    return changed(answer, found=json.dumps([lie]))


@pytest.mark.parametrize(
    "lie", [tell_wrong_program, tell_other_types, forge_certificate, answer_something_else, damage,
            tell_program_that_fills_the_memory]
)  # fmt: skip
def test_lies_are_refused_and_lose_nothing(tmp_path: Path, lie: object) -> None:
    honest = run(tmp_path / "honest", LocalExecutor(), QUICK, "factor")
    campaign = run(tmp_path / "lying", Changing(lie), QUICK, "factor")  # type: ignore[arg-type]
    progress = campaign.progress
    assert progress.refused
    [outcome] = progress.outcomes
    assert through(outcome)
    assert outcome.winners == honest.progress.outcomes[0].winners
    [original] = programs("factor")
    for entry in FolderStore(tmp_path / "lying").list("program"):
        claim = Claim.of(entry)
        assert _core.verify(original.graph.core, claim.graph)["verdict"] == "equal"


def test_answers_that_there_is_no_memory_to_check_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [MemoryError("std::bad_alloc")]

    def read(request: Request, text: str) -> Entry:
        if left:
            raise left.pop()
        return read_answer(request, text)

    monkeypatch.setattr("tessera.fleet.campaign.read_answer", read)
    progress = run(tmp_path, LocalExecutor(), SEARCH, "factor").progress
    assert len(progress.refused) == 1
    assert "not memory enough" in progress.refused[0]
    assert not progress.outcomes[0].why


def test_wrong_answers_in_the_store_are_asked_for_again(tmp_path: Path) -> None:
    run(tmp_path, LocalExecutor(), SEARCH, "factor")
    store = FolderStore(tmp_path)
    entries = list(store.list())
    store.put(Entry({**entries[0].fields, "engine": "mugraph", "of": "0" * 64}))
    store.path(entries[1].key).write_text("nonsense")
    with pytest.warns(RuntimeWarning, match="passed over"):
        again = run(tmp_path, LocalExecutor(), SEARCH, "factor")
    assert sum(again.progress.done.values()) == 2


def test_slow_workers_are_not_waited_for(tmp_path: Path) -> None:
    impatient = dataclasses.replace(SEARCH, patience=0.3)
    campaign = run(tmp_path, Deaf(2), impatient, "factor")
    assert any("late" in line for line in campaign.progress.lost)
    assert not campaign.progress.outcomes[0].why


@pytest.mark.parametrize(("deaf", "why"), [(1, ""), (1000, "no answer")])
def test_workers_that_never_answer_do_not_hold_up_measuring(
    tmp_path: Path, deaf: int, why: str
) -> None:
    impatient = dataclasses.replace(QUICK, patience=0.3)
    campaign = Campaign(programs("factor"), impatient, FolderStore(tmp_path), Deaf(deaf))
    runs = threading.Thread(target=campaign.run, daemon=True)
    runs.start()
    runs.join(60)
    assert not runs.is_alive()
    assert why in campaign.progress.outcomes[0].why
    assert campaign.progress.done["measure"] or why


def test_a_process_that_hangs_is_ended_with_its_locks(tmp_path: Path) -> None:
    executor = LocalExecutor(2)
    request = next(ProgramPlan("factor", programs("factor")[0].graph, SEARCH).run())[0]
    try:
        assert len(executor.submit("search", [request.text]).result(60)) == 1
        [hung] = [child.pid for child in executor._all]
        os.kill(hung, signal.SIGSTOP)
        executor.limit_s = 0.2
        assert isinstance(executor.submit("search", [request.text]).exception(60), LostError)
        assert not Path(f"/proc/{hung}").exists()
    finally:
        executor.close()


def test_tasks_for_others_are_refused(tmp_path: Path) -> None:
    plan = ProgramPlan("factor", programs("factor")[0].graph, QUICK)
    steps = plan.run()
    search = next(steps)[0]
    with pytest.raises(RefusedError, match="this worker has"):
        search_task(changed(search.text, tools="result 0 verifier 0"))
    run(tmp_path, LocalExecutor(), QUICK, "factor")
    measured = next(e for e in FolderStore(tmp_path).list() if e["task"] == "measure")
    race = plan._race("measure", [])
    assert measured["of"] == race.entry["of"]
    with pytest.raises(RefusedError, match="this machine is"):
        measure_task(changed(race.text, device="an abacus"))


def test_short_searches_race_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered as a search of a moment has the race's whole budget."""
    monkeypatch.setattr(tasks, "_WEAK_S", 1e-6)
    plan = ProgramPlan("factor", programs("factor")[0].graph, QUICK)
    through_plan(plan)
    answered = Entry.parse(measure_task(plan._race("measure", []).text))
    assert not answered["failed"] or "noise" in answered["failed"]


def test_programs_that_cannot_be_tuned_are_told(tmp_path: Path) -> None:
    text = "graph open { X = input : f32[N,4] Y = exp X return Y }"
    graph = type(programs("factor")[0].graph).parse(text)
    named = programs("factor")[0]._replace(name="open", graph=graph)
    campaign = Campaign([named], SEARCH, FolderStore(tmp_path), LocalExecutor())
    [outcome] = campaign.run()
    assert "symbolic" in outcome.why


# --- shards
def test_shards_together_find_what_one_process_finds(
    tmp_path: Path, alone: dict[str, tuple[str, ...]]
) -> None:
    found: dict[str, list[Outcome]] = {}
    campaigns = [
        Campaign(programs(), SEARCH, FolderStore(tmp_path), ShardExecutor(shard))
        for shard in ("1/2", "2/2")
    ]

    def work(index: int) -> None:
        found[str(index)] = campaigns[index].run()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners(found["0"]) == winners(found["1"]) == alone
    counts = [sum(c.progress.done.values()) for c in campaigns]
    assert all(counts)
    assert sum(counts) == len(list(FolderStore(tmp_path).list()))


def test_a_shard_whose_others_never_come_does_all(
    tmp_path: Path, alone: dict[str, tuple[str, ...]]
) -> None:
    hasty = dataclasses.replace(SEARCH, wait=0.0)
    campaign = run(tmp_path, ShardExecutor("1/2"), hasty, "factor")
    assert winners(campaign.progress.outcomes) == {"factor": alone["factor"]}


def test_executors_are_chosen_by_name() -> None:
    for name, address, shard, match in (
        ("local", "tls://h:1", "", "--address"),
        ("dask", "", "1/2", "--shard"),
        ("shard", "", "3/2", "1/8"),
    ):
        with pytest.raises(UsageError, match=match):
            make_executor(name, address, 1, shard)
    assert isinstance(make_executor("shard", "", 1, "2/3"), ShardExecutor)


# --- locks
def test_measuring_is_alone_and_has_the_next_turn() -> None:
    events: list[str] = []
    searches, may_end = threading.Event(), threading.Event()

    def search(name: str, begun: threading.Event, end: threading.Event) -> None:
        with searching():
            events.append(f"{name} begins")
            begun.set()
            end.wait(10)
            events.append(f"{name} ends")

    def measure() -> None:
        with measuring():
            events.append("measures")
            time.sleep(0.1)
            events.append("has measured")

    at_once = threading.Event()
    at_once.set()
    first = threading.Thread(target=search, args=("first", searches, may_end))
    beside = threading.Thread(target=search, args=("beside", threading.Event(), at_once))
    first.start()
    searches.wait(10)
    beside.start()  # searches share
    beside.join(10)
    assert events == ["first begins", "beside begins", "beside ends"]
    measurer = threading.Thread(target=measure)
    measurer.start()
    time.sleep(0.2)
    later = threading.Thread(target=search, args=("later", threading.Event(), at_once))
    later.start()
    time.sleep(0.2)
    assert events[3:] == []  # it waits for the first, and the later one for it
    may_end.set()
    for thread in (first, measurer, later):
        thread.join(10)
    assert events[3:] == [
        "first ends", "measures", "has measured", "later begins", "later ends",
    ]  # fmt: skip


def test_what_is_asked_for_does_not_depend_on_names() -> None:
    """Or what is found, which is text, would depend on whose program asked first."""
    first = "graph a {\n  x = input : f32[4]\n  y = exp x\n  return y\n}"
    other = "graph b {\n  u = input : f32[4]\n  v = exp u\n  return v\n}"
    asked = [search_request(_core.parse(t), {"engine": "synth"}) for t in (first, other)]
    assert asked[0] == asked[1]
