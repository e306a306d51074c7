"""`tessera demo`: three programs, told in forty lines, none below 1x without a reason."""

import re

import pytest
from click.testing import CliRunner

from tessera.cli.demo import demo
from tessera.options import Options


def test_three_acts_in_forty_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.cli.demo.Options", lambda **_: Options(budget=2))
    told = CliRunner().invoke(demo, standalone_mode=False, catch_exceptions=False)
    assert told.return_value == 0
    lines = told.output.splitlines()
    assert len(lines) <= 46, told.output  # guards of dtypes are six
    acts = [n for n, line in enumerate(lines) if re.match(r"[123]  ", line)]
    assert len(acts) == 3
    for start, end in zip(acts, [*acts[1:], len(lines)], strict=True):
        act = "\n".join(lines[start:end])
        verdicts = re.findall(r"([0-9.]+)x  ", act)
        assert verdicts or "no time was left" in act, act
        if any(float(v) < 1 for v in verdicts):
            assert "is faster on this machine" in act, act
