"""Programs against PyTorch's own operators, told by calls: on a clock of the test's."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from tessera import call_race, torch_backend, torch_parts  # noqa: E402
from tessera.errors import UnsupportedError  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0
        self.ours = 0  # what a call of the side that has to win takes

    def perf_counter_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(call_race, "time", clock)
    return clock


def race(clock: Clock, ours: list[int], theirs: list[int], counts: bool = True) -> list[str]:
    """Who ran which call, until it is decided; times are used in turn."""

    def side(name: str, times: list[int]) -> Any:
        left = iter(times)

        def run(*args: Any) -> str:
            clock.now += next(left)
            return name

        return run

    contest = call_race.CallRace()
    runs = side("ours", ours), side("theirs", theirs)
    ran: list[str] = []
    while contest.won is None and len(ran) < 36:
        ran.append(contest.run(*runs, [], counts))
    return [*ran, {True: "won", False: "lost", None: "open"}[contest.won]]


def test_turns_alternate_and_each_call_runs_one_side(clock: Clock) -> None:
    turns = (["ours"] * 3 + ["theirs"] * 3) * 6
    assert race(clock, [9] * 20, [10] * 20) == [*turns, "won"]


def test_who_is_far_ahead_needs_few_calls(clock: Clock) -> None:
    turns = (["ours"] * 3 + ["theirs"] * 3) * 2
    assert race(clock, [10] * 20, [90] * 20) == [*turns, "won"]
    assert race(clock, [90] * 20, [10] * 20) == [*turns, "lost"]


def test_first_calls_and_interruptions_do_not_tell(clock: Clock) -> None:
    noisy = [5000, 900, 800, 5000, 10, 10, 1, 700, 10, 1, 10, 10, 1, 10, 10, 1, 10, 10]
    assert race(clock, noisy, [11] * 20)[-1] == "won"
    assert race(clock, [12] * 20, noisy)[-1] == "lost"


def test_calls_beside_work_of_ours_do_not_count(clock: Clock) -> None:
    assert race(clock, [90] * 20, [10] * 20, counts=False)[-1] == "open"


def compiled(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, ours: int, layer: Any = None, **options: Any
) -> Any:
    """A model whose programs take `ours` (see Clock) and PyTorch's operators 10."""
    torch._dynamo.reset()
    plain = call_race.CallRace.run

    def run(self: Any, mine: Any, eager: Any, args: Any, counts: bool) -> Any:
        def timed(function: Any, ns: int) -> Any:
            def call(*given: Any) -> Any:
                clock.now += ns
                return function(*given)

            return call

        return plain(self, timed(mine, clock.ours), timed(eager, 10), args, counts)

    clock.ours = ours
    monkeypatch.setattr(call_race.CallRace, "run", run)
    layer = layer or torch.nn.Linear(8, 8)
    options = {"wait": True, "budget": 0, **options}
    return torch.compile(layer, backend="tessera", options=options), layer


@pytest.mark.parametrize(("ours", "kept"), [(5, True), (99, False)])
def test_the_slower_side_runs_no_more(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, ours: int, kept: bool
) -> None:
    model, layer = compiled(monkeypatch, clock, ours)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(40):
            torch.testing.assert_close(model(x), layer(x))
        (part,) = torch_backend.REPORTS[-1].parts
        assert bool(part.programs) == kept
        assert ("PyTorch's own operators 0" in part.reason) != kept
        layer.weight.mul_(2)
        torch.testing.assert_close(model(x), layer(x))
    told = torch_backend.explain(timed=False, patterns=False)
    assert ("is run by PyTorch" in told) != kept


@pytest.mark.parametrize("options", [{"race": False}, {"strict": True}])
def test_without_a_race_ours_stay(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, options: dict[str, bool]
) -> None:
    model, layer = compiled(monkeypatch, clock, 99, **options)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(40):
            torch.testing.assert_close(model(x), layer(x))
    (part,) = torch_backend.REPORTS[-1].parts
    assert part.programs


def test_lengths_share_a_race(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    model, layer = compiled(monkeypatch, clock, 99, dynamic="wait")
    with torch.no_grad():
        torch._dynamo.mark_dynamic(x := torch.randn(17, 8), 0)
        model(x)
        for n in 4 * list(range(17, 33)):
            x = torch.randn(n, 8)
            torch.testing.assert_close(model(x), layer(x))
    (part,) = torch_backend.REPORTS[-1].parts
    assert not part.programs


class Means(torch.nn.Module):  # type: ignore[misc]
    """Products of which only the means are wanted: one vector of weights would do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(128, 256)

    def forward(self, x: Any) -> Any:
        return self.layer(x).mean(1)


def searched(model: Any, x: Any) -> Any:
    """Calls a model until what is found in the background is in its place; its only part."""
    for _ in range(40):
        model(x)
    assert torch_backend.wait(60)
    (part,) = torch_backend.REPORTS[-1].parts
    return part


@pytest.mark.parametrize("found", [5, 99])
def test_what_is_called_often_is_searched_for_something_faster(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, found: int
) -> None:
    model, layer = compiled(monkeypatch, clock, 5, Means(), budget=None)
    x = torch.randn(64, 128)
    with torch.no_grad():
        part = searched(model, x)
        (program,) = part.programs
        assert "L(x W) = x L(W)" in program.found
        clock.ours = found
        for _ in range(40):
            torch.testing.assert_close(model(x), layer(x))
        assert bool(part.programs[0].found) == (found == 5)
        layer.layer.weight.mul_(2)
        torch.testing.assert_close(model(x), layer(x))
    told = torch_backend.explain(timed=False, patterns=False)
    assert ("L(x W) = x L(W)" in told) == (found == 5)


class Branches(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, *branches: torch.nn.Module) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(branches)

    def forward(self, x: Any) -> Any:
        return sum(branch(x) for branch in self.branches)


def norm(channels: int) -> torch.nn.Module:
    layer = torch.nn.BatchNorm2d(channels)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean):
            tensor.normal_()
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        Branches(*(torch.nn.Conv2d(16, 16, 3) for _ in range(3))),
        torch.nn.Sequential(torch.nn.Conv2d(16, 64, 3), norm(64), torch.nn.Conv2d(64, 8, 1)),
        torch.nn.Sequential(
            torch.nn.Conv2d(16, 64, 1), norm(64), torch.nn.Conv2d(64, 8, 3, padding=1)
        ),
    ],
    ids=["sum", "before", "behind"],
)
def test_convolutions_with_norms_and_sums_between_them_are_one(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, layer: torch.nn.Module
) -> None:
    model, layer = compiled(monkeypatch, clock, 5, layer.eval(), budget=None)
    x = torch.randn(2, 16, 20, 20)
    with torch.no_grad():
        part = searched(model, x)
        assert part.programs[0].found
        told = torch_backend.explain(timed=False, patterns=False)
        assert told.count(" × conv ") == told.count("1 × conv ") == 1, told
        for _ in range(2):
            exact = copy.deepcopy(layer).double()(x.double())
            torch.testing.assert_close(model(x).double(), exact, rtol=1e-4, atol=1e-4)
            for parameter in layer.parameters():
                parameter.mul_(2)


class Corner(torch.nn.Module):  # type: ignore[misc]
    """A convolution of which a corner is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.layer(x)[:, :4, :4, 8:12])


class Rows(torch.nn.Module):  # type: ignore[misc]
    """A layer of which a few rows are wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.register_buffer("rows", torch.tensor([3, -1, 0, 700]))

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.layer(x))[self.rows]


@pytest.mark.parametrize(
    ("made", "shape", "instead"),
    [(Corner, (2, 8, 32, 32), "f32[2,8,5,6]"), (Rows, (900, 64), "f32[4,64]")],
)
def test_less_is_computed_where_less_is_taken(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, made: Any, shape: Any, instead: str
) -> None:
    model, layer = compiled(monkeypatch, clock, 5, made(), budget=None)
    x = torch.randn(*shape)
    with torch.no_grad():
        part = searched(model, x)
        (program,) = part.programs
        assert "parts are taken of operands" in program.found
        assert instead in str(program.compiled)  # what it takes of its input
        torch.testing.assert_close(model(x), layer(x), rtol=1e-4, atol=1e-5)


def test_what_a_search_found_is_compared_first(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    model, layer = compiled(monkeypatch, clock, 5, Means(), budget=None)
    x = torch.randn(64, 128)
    with torch.no_grad():
        part = searched(model, x)
        found = part.programs[0]
        assert found.found

        def differs(*_: Any) -> None:
            raise UnsupportedError("another element")

        monkeypatch.setattr(torch_parts.Part, "_compare", differs)
        torch.testing.assert_close(model(x), layer(x))
        assert part.programs[0] is not found
        assert "wrong values" in part.searched


def test_searches_for_models_that_are_gone_do_not_begin(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(torch_parts.LATER, "add", lambda job, _: jobs.append(job))
    monkeypatch.setattr("tessera.background.Helper.optimise", lambda *_: pytest.fail("a search"))
    model, layer = compiled(monkeypatch, clock, 5, Means(), budget=None)
    weight = weakref.ref(layer.layer.weight)
    with torch.no_grad():
        for _ in range(40):
            model(torch.randn(64, 128))
    assert len(jobs) == 1
    del model, layer
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None
    jobs[0](lambda: False)


def test_without_a_budget_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(torch_parts.Part, "_search", lambda *_: pytest.fail("a search"))
    for options in ({"budget": 0}, {"budget": None, "race": False}):
        model, _ = compiled(monkeypatch, clock, 5, **options)
        with torch.no_grad():
            for _ in range(40):
                model(torch.randn(3, 8))


@pytest.mark.parametrize("slow", [True, False])
def test_a_graph_with_operators_of_pytorchs_is_raced_whole(clock: Clock, slow: bool) -> None:
    """Once its parts are settled: what is slower than the graph as it was written runs no more."""
    from tessera.torch_explain import Report
    from tessera.torch_whole import Whole

    class Settled:
        settled, _dynamic = False, ()

    ran: list[str] = []

    def side(name: str, ns: int) -> Any:
        def run(*args: Any) -> str:
            clock.now += ns
            ran.append(name)
            return name

        return run

    part: Any = Settled()
    report = Report(2, [part], {"lgamma": "there is no program"})
    whole = Whole(side("ours", 20 if slow else 5), side("theirs", 10), report)
    for _ in range(5):
        whole(1.0)
    assert ran == ["ours"] * 5
    part.settled = True
    for _ in range(60):
        whole(1.0)
    assert ran[-9:] == ["theirs" if slow else "ours"] * 9
    assert bool(report.lost) == slow


def test_what_is_left_to_pytorch_between_parts_is_told() -> None:
    def far(*args: Any) -> Any:
        return torch.lgamma(torch.relu(args[0]) * 2) + 1

    with torch.no_grad():
        compiled = torch.compile(far, backend="tessera", options={"wait": True})
        x = torch.rand(64, 64) + 1
        for _ in range(40):
            assert torch.allclose(compiled(x), far(x))
    (report,) = torch_backend.REPORTS
    assert set(report.eager) == {"lgamma"}


def test_graphs_of_several_parts_or_that_write_are_raced_whole() -> None:
    from tessera.torch_whole import Whole

    def pooled(x: Any) -> Any:  # of which a view is no part
        return torch.nn.functional.max_pool1d(torch.relu(x), 3)

    def step(cache: Any, at: Any, x: Any) -> Any:
        cache.index_copy_(1, at, x)
        return torch.relu(cache).sum(1)

    made: list[Whole] = []
    real = Whole.__init__

    def noted(self: Whole, *args: Any) -> None:
        made.append(self)
        real(self, *args)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(Whole, "__init__", noted)
        for function, args in ((pooled, [torch.randn(2, 4, 30)]),
                               (step, [torch.randn(2, 9, 4), torch.tensor([3]),
                                       torch.randn(2, 1, 4)])):  # fmt: skip
            compiled = torch.compile(function, backend="tessera", options={"wait": True})
            for _ in range(60):
                copies = [a.clone() for a in args]
                want = function(*copies)
                torch.testing.assert_close(compiled(*args), want)
                torch.testing.assert_close(args, copies)
    assert len(made) == 2
    assert all(race.won is not None for whole in made for race in whole._races.values())
