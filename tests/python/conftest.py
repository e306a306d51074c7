"""Tests keep their cache to themselves and never touch the user's; none is skipped in silence."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["TESSERA_WAIT"] = "1"  # programs are what tests are about; test_background.py unsets it


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache folder for the whole run and all its processes: nothing is compiled twice."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_CACHE_DIR", str(folder))
        yield folder


def reasons_of_skips(reports: list[Any]) -> Counter[str]:
    """How many tests were skipped, by the reasons given; "" for none."""
    reasons: Counter[str] = Counter()
    for report in reports:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ").removeprefix("Skipped").strip()
        reasons["" if reason == "unconditional skip" else reason] += 1
    return reasons


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    reporter.ensure_newline()
    reasons = reasons_of_skips(reporter.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        reporter.write_line(f"skipped {count}: {reason or 'NO REASON GIVEN'}")
    if "" in reasons and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def fresh_torch(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """PyTorch with a seed, nothing compiled before or after, and ours in every call: a race on
    calls would leave half of them to PyTorch."""
    torch: Any = pytest.importorskip("torch")
    if request.path.stem != "test_torch_race":
        monkeypatch.setattr("tessera.torch_parts.CallRace", lambda: None)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
