"""Writes the tables of the README and the docs from bench/results: `python -m bench.page`.

Between `<!-- from bench/results/NAME.json -->` and `<!-- end -->` everything is made here; rows
that do not say when they were measured have the date that the mark names. What stands outside is
written by hand. `--check` writes nothing and fails where a page is not what the results give.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import page_tables as tables
from bench import picture
from bench.page_tables import Row

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
COMMAND = "python -m bench.page"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = "<!-- from bench/results"
_BLOCK = re.compile(
    MARK + r"(?:/([\w-]+)\.json)?(?:, ([\d-]{10}))? -->\n(.*?)<!-- end -->", re.DOTALL
)
TABLES: dict[str, Callable[[list[Row]], list[str]]] = {
    "avx2-pet": tables.models,
    "cuda": tables.workloads,
    "first_call": tables.first_calls,
    "mirage": tables.workloads,
    "models": tables.whole_models,
    "outside": tables.outside,
    "pet": tables.models,
    "plus": tables.transformers,
    "search": tables.searches,
    "stenso": tables.numpy_programs,
    "verify": tables.verifier,
    "zen5-pet": tables.models,
    "zen5-plus": tables.transformers,
}
_KEPT: dict[str, Callable[[Row], bool]] = {
    "models": lambda row: "phase" in row,
    "pet": lambda row: not row.get("disabled"),  # what the back end's parts are worth
    "plus": lambda row: "peers" in row,
    "search": lambda row: (  # the whole search of each workload
        "@" not in row["case"]
        and row["threads"] > 1
        and row["max_block_ops"] is None
        and row["without"] is None
    ),
}
_ISA = {"amx": "AVX-512 and AMX", "avx512": "AVX-512", "avx2": "AVX2"}


def load(name: str) -> list[Row]:
    """The rows of a file of results that a page shows."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    if isinstance(found, dict):  # measured together: what all rows have in common stands once
        found = [{k: found[k] for k in ("date", "machine")} | row for row in found["rows"]]
    kept = _KEPT.get(name.rpartition("-")[2])
    return [row for row in found if kept is None or kept(row)]


def measured(rows: list[Row], date: str) -> str:
    """When and on what the rows were measured; `date` is that of rows which do not say."""
    rows = [row for row in rows if "machine" in row]
    days = sorted({row.get("date") or date for row in rows})
    if not days[0]:
        raise ValueError(f"the mark must say when: {MARK}/NAME.json, YYYY-MM-DD -->")
    loads = sorted(float(row["machine"]["load"]) for row in rows)
    places = " and ".join(dict.fromkeys(_place(row) for row in rows))
    return f"Measured on {_range(days)} on {places}; load {_range(loads)}."


def _range(ordered: list[Any]) -> str:
    return " to ".join(dict.fromkeys(str(x) for x in (ordered[0], ordered[-1])))


def _place(row: Row) -> str:
    machine, gpu = row["machine"], row.get("gpu")
    processor = machine["processor"].replace("(R)", "").removesuffix(" Processor")
    text = f"{machine['cpus']} cores of {processor} with {_ISA[machine['isa']]}"
    if not gpu:
        return text
    versions = f"driver {gpu['driver']}, CUDA {gpu['cuda']}, PyTorch {gpu['torch']}"
    return f"{gpu['device']} ({versions}) beside {text}"


def block(name: str, date: str) -> list[str]:
    """What the results say of one file, or, without a name, the README's rows of several."""
    if not name:
        return tables.selected(load)
    if name not in TABLES:
        raise ValueError(f"{MARK}/{name}.json: there is no such table in bench/page.py")
    rows = load(name)
    return [measured(rows, date), "", *TABLES[name](rows)]


def filled(text: str) -> str:
    """A page with its blocks as the results give them."""
    if text.count(MARK) != len(_BLOCK.findall(text)):
        raise ValueError(f"a mark '{MARK} …' has no '<!-- end -->', or is misspelt")

    def fill(found: re.Match[str]) -> str:
        head = found[0].partition("\n")[0]
        return "\n".join([head, "", *block(found[1] or "", found[2] or ""), "", "<!-- end -->"])

    return _BLOCK.sub(fill, text)


def differences(page: Path) -> list[str]:
    """Lines of a page that are not what the results give, and those which would be."""
    old = page.read_text()
    lines = difflib.unified_diff(old.splitlines(), filled(old).splitlines(), lineterm="", n=0)
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    differs = False
    for page in PAGES:
        if lines := differences(page):
            differs = True
            print(page.relative_to(ROOT), *lines, sep="\n")
            if not check:
                page.write_text(filled(page.read_text()))
    if not check:
        picture.PICTURE.write_text(picture.svg(picture.rows(PAGES[0].read_text())))
    elif differs:
        sys.exit(f"The pages differ from bench/results: run `{COMMAND}`")


if __name__ == "__main__":
    main()
