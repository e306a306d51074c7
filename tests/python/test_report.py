"""The report: one page that stands alone, from a result or from the record of a run."""

import copy
import html.parser
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.cli import main
from tessera.report import charts, page, record
from tessera.report.charts import Axis, search_chart
from tessera.report.drawing import drawing
from tessera.report.record import _RIVALS, rivals, work

ROOT = Path(__file__).resolve().parents[2]
VOID = {"meta", "br"}


class Balance(html.parser.HTMLParser):
    """Collects ids and links, and notices tags that are never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        if tag == "a":
            self.links.append(given.get("href") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse(text: str) -> Balance:
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def result() -> ts.Result:
    return ts.superoptimize(ts.load(ROOT / "examples/attention.ug"), budget=10, cache=False)


@pytest.fixture(scope="module")
def recorded(result: ts.Result) -> dict[str, Any]:
    return record(result, 20.0)


@pytest.fixture
def run(recorded: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(recorded)


def test_page_is_whole_and_alone(result: ts.Result, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result.report(path)
    text = path.read_text()
    found = parse(text)
    assert {link.removeprefix("#") for link in found.links} <= found.ids | {""}
    assert not re.search(r"""(src|href)=["'](?!#)|https?://|@import|url\(""", text)
    if result.improved:
        assert "after the loop" in text or "once per block" in text or "block" in text
        assert str(result.certificate).splitlines()[0] in text
    assert text.count('class="kernel"') == str(result.graph).count(" = kernel ")
    for name in ("Q", "K", "V"):
        assert f">{name}</span>" in text


SURE = """graph sure {  // a product of which only the sum is wanted
  x = input : f32[256,256]
  w = input : f32[256,256]
  y = matmul x, w
  z = sum y {axes=[0,1]}
  return z
}"""


def test_record_is_plain_data(tmp_path: Path) -> None:
    result = ts.superoptimize(ts.Graph.parse(SURE), budget=5, cache=False)
    path = tmp_path / "run.json"
    result.report(path)
    data = json.loads(path.read_text())
    out = tmp_path / "from.html"
    assert main(["report", str(path), "-o", str(out)]) == 0
    parse(out.read_text())
    assert data["errors"]["rows"][0]["result"] < 1e-5
    assert data["errors"]["rows"][0]["original"] < 1e-5
    for row in data["errors"]["rows"]:
        assert (row["original"] > 0) == (row["original_mean"] > 0)
        assert row["original_mean"] <= row["original"]
        assert row["result_mean"] <= row["result"]
    assert any(row["result_mean"] > 0 for row in data["errors"]["rows"])
    assert data["timeline"][-1]["stage"] == "done"
    assert data["limits"]["flops_s"] > 1e9
    with pytest.raises(ts.Error, match="must end in"):
        result.report(tmp_path / "page.pdf")


def test_times_add_up_to_the_run(run: dict[str, Any]) -> None:
    stages = sum(run[key] for key, _ in charts._STAGES)
    assert 0 < stages <= run["total_s"]
    strip = charts.time_strip(run)
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', strip)]
    assert len(widths) == len(charts._STAGES) + 1
    assert abs(sum(widths) - 640) < 2 * len(widths)
    assert "the rest" in strip


def test_the_certificate_is_told_in_sentences(run: dict[str, Any]) -> None:
    if not run["improved"]:
        pytest.skip("the original was kept on this machine")
    text = page(run)
    facts = text[text.index('<table class="facts">') :]
    folded = facts.index("<details>")
    for sentence in ("equal means", "it is", "compared were", "wrong with a chance of"):
        assert sentence in facts[:folded]
    assert "as accurate as the original" in facts[:folded]
    assert "draw field=" in facts[folded:]
    assert "draw field=" not in facts[:folded]


def test_libraries_that_are_installed_run_beside_it(run: dict[str, Any]) -> None:
    told = run["rivals"]
    wanted = {"Tessera's kernels", "NumPy"}
    wanted |= {who for name, who in _RIVALS.items() if importlib.util.find_spec(name)}
    assert set(told) == wanted
    assert all(us > 0 for us in told.values())
    text = page(run)
    assert "by libraries, in one race" in text
    assert text.count('<div class="bar-row">') >= len(told)


def test_a_gpus_kernels_do_not_race_on_the_processor(
    result: ts.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ts.Result, "on_gpu", property(lambda _: True))
    assert rivals(result, 1.0) == {}


def test_a_report_that_is_interrupted_tells_the_result(
    result: ts.Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["tessera.report.record"], "rivals", interrupted)
    result.report(tmp_path / "r.json")
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["speedup"] == result.speedup
    assert told["rivals"] == {}


def test_what_users_write_is_text_not_markup(run: dict[str, Any]) -> None:
    data = run
    data["program"] = "<script>alert(1)</script>"
    data["candidates"][0]["why"] = "<b>&"
    data["programs"]["before"]["ops"][0]["results"][0]["name"] = "<i>"
    text = page(data)
    parse(text)
    assert "<script>alert" not in text
    assert "&lt;b&gt;&amp;" in text


def test_an_original_that_is_kept_has_a_page_too() -> None:
    g = ts.Graph("plain")
    g.output(g.transpose(g.input("x", (8, 4))))
    kept = ts.superoptimize(g, budget=2)
    text = page(record(kept, 1.0))
    parse(text)
    assert "nothing faster was found" in text


def test_programs_are_drawn_as_graphs(run: dict[str, Any]) -> None:
    for graph in run["programs"].values():
        svg = drawing(graph)
        parse(svg)
        ops = [op for op in graph["ops"] if op["op"] != "const"]
        assert svg.count('class="node') == len(ops)
        made = {r["id"] for op in ops for r in op["results"]}
        edges = {(t["id"], op["results"][0]["id"]) for op in ops for t in op["inputs"]}
        assert svg.count('class="edge"') == len([e for e in edges if e[0] in made])
        boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="(\d+)" height="(\d+)"', svg)
        for n, (x, y, w, h) in enumerate(tuple(map(float, b)) for b in boxes):
            for u, v, ww, hh in (tuple(map(float, b)) for b in boxes[:n]):
                assert x + w <= u or u + ww <= x or y + h <= v or v + hh <= y
    many = {"name": "m", "ops": run["programs"]["before"]["ops"] * 20}
    assert drawing(many) == ""


def test_the_best_so_far_cannot_rise(result: ts.Result) -> None:
    costs = [9e-6, 4e-6, 7e-6, 2e-6]
    seen = [{"t": n / 10, "search": {"best_cost": c}} for n, c in enumerate(costs)]
    svg = search_chart({"timeline": seen, "search_s": 1.0})
    (points,) = re.findall(r'points="([^"]*)"', svg)
    heights = [float(p.split(",")[1]) for p in points.split()]
    assert heights == sorted(heights)  # downwards on the page
    assert len(set(heights)) == 3


def test_a_contest_shows_who_could_have_run(run: dict[str, Any]) -> None:
    choice = {"kernel_us": 10.0, "function_us": 40.0, "runs": "kernel"}
    text = page(run | {"choice": choice})
    times = text.split("Times of a call</h2>")[1].split("</section>")[0]
    assert "your function" in times
    assert "width:100.0%" in times
    assert "width:25.0%" in times
    assert "40 µs" in times


def test_work_counts_what_moves() -> None:
    g = ts.Graph("g")
    x, w = g.input("x", (16, 32)), g.input("w", (32, 8))
    g.output(g.exp(x @ w))
    counted = work(g)
    assert counted["flops"] == 2 * 16 * 32 * 8 + 16 * 8
    assert counted["bytes"] == 4 * (16 * 32 + 32 * 8 + 16 * 8) + 4 * 2 * 16 * 8
    assert counted["kernels"] == 2


@pytest.mark.parametrize("values", [[3.0], [1e-9, 1e9], [40.0, 41.0], []])
def test_axes_have_ticks(values: list[float]) -> None:
    axis = Axis(values, 0, 100)
    assert 1 <= len(axis.ticks()) <= 25
    assert all(0 <= axis(t) <= 100 for t in axis.ticks())


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "run.json"
    bad.write_text("{}")
    assert main(["report", str(bad), "-o", str(tmp_path / "x.html")]) == 65
    assert "not the record of a run" in capsys.readouterr().err
    bad.write_text("{")
    assert main(["report", str(bad), "-o", str(tmp_path / "x.html")]) == 65
    assert main(["report", str(bad), "-o", str(tmp_path / "no/where/x.html")]) == 70
    assert "no folder" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_draws_it(result: ts.Result, tmp_path: Path, width: int, theme: str) -> None:
    path, shot = tmp_path / "page.html", tmp_path / "page.png"
    result.report(path)
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
                 "--virtual-time-budget=2000"]  # fmt: skip
    done = subprocess.run(
        ["chromium", *arguments, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
         f"file://{path}?theme={theme}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert f'data-theme="{theme}"' in done.stdout  # the script ran
    subprocess.run(
        ["chromium", *arguments, f"--user-data-dir={tmp_path / 'profile'}",
         f"--screenshot={shot}", f"file://{path}?theme={theme}"],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    print(f"screenshot: {shot}")
    assert shot.read_bytes()[:4] == b"\x89PNG"
    assert shot.stat().st_size > 20_000
    assert np.isfinite(result.speedup)


def test_what_was_not_measured_is_no_number(
    result: ts.Result, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = run | {"original_us": None, "ours_us": None, "improved": False}
    text = page(data)
    parse(text)
    assert text.count("not measured") == 2
    assert result.json()["original_us"] > 0
    monkeypatch.setattr(result, "original_us", 0.0)
    monkeypatch.setattr(result, "measured_us", 0.0)
    assert result.json()["original_us"] is None
    assert result.json()["ours_us"] is None
