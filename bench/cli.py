"""`tessera bench`: measured tables, one JSON row per case."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import strftime
from typing import Any

import click
from rich.table import Table

from bench import mirage, models, outside, plus, stenso, stenso_ablate, suites
from bench import peers as peer_module
from bench.cuda import peers as cuda_peers
from bench.cuda import suite as cuda_suite
from tessera.cli import common
from tessera.errors import BadInputError, Location, UsageError
from tessera.files import read_text, require_folder, to_json
from tessera.machine import machine_description


@click.command()
@click.argument("suite", type=click.Choice(suites.SUITES))
@click.option(
    "--case",
    metavar="NAME",
    help="Only this case, e.g. gqa@decode1k; gqa@ without, gqa with variants.",
)
@click.option("--batch", type=int, metavar="B", help="Only this batch size.")
@click.option(
    "--dtype", "dtypes", metavar="A,B", help="Of f32,bf16, with --target cuda of f16,bf16."
)
@click.option("--quick", is_flag=True, help="Few small cases and little time: a smoke test.")
@click.option(
    "--peers",
    "peer_names",
    metavar="A,B",
    help=f"Of {','.join(peer_module.NAMES)}, with --target cuda of {','.join(cuda_peers.NAMES)};"
    " default: those installed.",
)
@click.option(
    "--json",
    "output",
    metavar="OUT",
    help="Write the rows there, each as soon as it is known; - for the terminal.",
)
@click.option(
    "--ablate",
    is_flag=True,
    help="Without peers. mirage: how much slower without each decision of the plan; models: without"
    " each engine; pet: mutants by kind, depth and rounds; stenso: bottom-up, top-down, both,"
    " without bounds.",
)
@click.option("--resume", is_flag=True, help="Keep the rows of OUT and measure only the others.")
@click.option("--case-limit", type=float, default=420, show_default=True, metavar="SECONDS",
              help="Time for one case; whoever is not ready by then is left out.")  # fmt: skip
@click.option("--emulate", is_flag=True,
              help="mirage with --target cuda, without a GPU: kernels run in the emulator at"
              " reduced sizes, and are compiled for sm_80, sm_90a and sm_100a.")  # fmt: skip
@click.option("--stop-after", type=float, metavar="SECONDS",
              help="With --target cuda: begin no case after that; --resume goes on.")  # fmt: skip
@click.option("--dry-run", is_flag=True,
              help="With --stop-after: only tell which cases would be measured, and how long each"
              " may take.")  # fmt: skip
@common.search_options
def bench(
    suite: str,
    case: str | None,
    batch: int | None,
    dtypes: str | None,
    quick: bool,
    peer_names: str | None,
    output: str | None,
    ablate: bool,
    resume: bool,
    case_limit: float,
    emulate: bool,
    stop_after: float | None,
    dry_run: bool,
    **values: Any,
) -> int:
    """Measure a suite side by side with its peers, medians of interleaved runs.

    \b
    Suites:
      mirage    Mirage's workloads end to end: f32 and bf16, one and all threads, warm and cold
                caches, against the peers and the limits of the machine; hours in full;
                with --target cuda on a GPU, warm and cold L2, CUDA graphs of all contestants
      models    whole models of the four papers (llama3, chameleon, ngpt, llama_lora, bert, gpt2,
                t5, vit, resnet18, inception …; --case: one, MODEL@decode, or a group: mirage,
                plus, pet, table2 of BERT's subgraphs) through torch.compile, against eager,
                Inductor, onnxruntime and OpenVINO as far as installed; --ablate: against itself
                without each engine; needs torch and transformers
      onnx      ONNX's backend tests of core types: interpreted, compiled, and compiled with a
                rewrite forced; minutes in full, of which half a one goes to making them
      outside   programs that nobody tuned for, in the style of KernelBench (--case: one, or a
                group), through torch.compile against eager, with --peers inductor also against it;
                processor time of one thread; needs torch
      pet       whole models (ResNet-18, CSRNet, Inception-v3, BERT, R3D-18) and operators of PET's
                Table 3 (--case, --batch)
                against onnxruntime, PyTorch, torch.compile and OpenVINO, as far as installed;
                needs torch
      plus      transformers (bert, albert, gpt2, t5, vit, llama, qwen; --case, --batch) through
                torch.compile, against eager, Inductor and onnxruntime; bert@lengths: lengths
                64 to 256 in one process; needs torch and transformers
      search    the search alone: states, pruning, time; limits, one thread, each rule off in turn
      stenso    NumPy programs rewritten as source and as kernels, against themselves in NumPy,
                JAX and PyTorch; NAME@small and NAME@large at other sizes, statistics: the corpus
      verify    the verifier against injected faults and known-equal pairs
    \b
    Examples:
      tessera bench mirage --quick
      tessera bench mirage --case gqa@decode1k --dtype f32 --threads 2
      tessera bench mirage --json mirage.json --resume      go on where it was stopped
      tessera bench mirage --ablate --case rmsnorm --batch 8
      tessera bench pet --ablate --case dilated
      tessera bench mirage --target cuda --stop-after 500 --json cuda.json
      tessera bench mirage --target cuda --emulate --quick
      tessera bench search --quick
      tessera bench verify --json -
    """
    if ablate and suite not in ("mirage", "models", "pet", "stenso"):
        raise UsageError("--ablate goes with the suites mirage, models, pet and stenso")
    options = common.options_from(**values)
    on_gpu = options.target.startswith("cuda")
    if ablate and on_gpu and suite != "mirage":
        raise UsageError("--ablate of kernels for a GPU goes with the suite mirage")
    if (emulate or stop_after is not None) and not (on_gpu and suite == "mirage"):
        raise UsageError("--emulate and --stop-after go with the suite mirage and --target cuda")
    if dry_run and stop_after is None:
        raise UsageError("--dry-run goes with --stop-after: it tells how that time is shared")
    err = common.stderr()

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            err.print(text, style="dim", markup=False)

    if output not in (None, "-"):
        require_folder(Path(str(output)))
    known = _known_rows(output) if resume else []
    settings = suites.Settings(
        options,
        case,
        quick,
        _peers(suite, on_gpu, peer_names),
        tell,
        batch,
        _dtypes(dtypes, on_gpu),
        case_limit,
        ablate,
        emulate,
        stop_after,
        tuple(peer_names.split(",")) if peer_names is not None else None,
        tuple(known),
    )
    if dry_run:
        for label, seconds in cuda_suite.schedule(suites.mirage_plan(settings)):
            click.echo(f"{seconds:6.0f} s  {label}" if seconds else f"  later   {label}")
        return 0
    rows = known

    def keep() -> None:
        if output not in (None, "-"):
            text = to_json(rows + summaries(suite, rows), indent=1)
            common.write_output(str(output), text + "\n")

    try:
        for row in suites.run(suite, settings):
            row |= {"date": strftime("%Y-%m-%d"), "machine": machine_description()}
            rows = replaced(rows, row)
            if output != "-":
                show(row)
            keep()
    except KeyboardInterrupt:
        err.print("interrupted; these are the rows so far")
    for summary in summaries(suite, rows):
        if output != "-":
            show(summary)
    if output == "-":
        common.print_json(rows + summaries(suite, rows))
    keep()
    return 0 if rows else 2


def _peers(suite: str, on_gpu: bool, names: str | None) -> tuple[str, ...]:
    if suite in ("models", "pet", "outside"):  # have peers of their own
        names = None
    return tuple((cuda_peers if on_gpu else peer_module).choose(names))


def _dtypes(text: str | None, on_gpu: bool) -> tuple[str, ...]:
    allowed = cuda_suite.DTYPES if on_gpu else mirage.DTYPES
    chosen = allowed if text is None else tuple(text.split(","))
    for dtype in chosen:
        if dtype not in allowed:
            raise UsageError(f"--dtype: '{dtype}' is not one of {', '.join(allowed)}")
    return chosen


def _known_rows(output: str | None) -> list[dict[str, Any]]:
    if output in (None, "-"):
        raise UsageError("--resume goes with --json OUT")
    path = Path(str(output))
    if not path.exists():
        return []
    try:
        rows = json.loads(read_text(path))
    except ValueError as error:
        raise BadInputError(f"not JSON: {error}", Location(str(path))) from None
    return [r for r in rows if r.get("case") != "geomean"]


def replaced(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with a new one, in place of an earlier one of the same case."""
    if row["suite"] == "stenso":
        return [r for r in rows if stenso.key(r) != stenso.key(row)] + [row]
    if row["suite"] == "models":
        return [r for r in rows if models.key(r) != models.key(row)] + [row]
    if row["suite"] == "plus":
        return [r for r in rows if plus.key(r) != plus.key(row)] + [row]
    if row["suite"] in ("onnx", "outside"):
        return [r for r in rows if r["case"] != row["case"]] + [row]
    if row["suite"] != "mirage":
        return [*rows, row]
    return [r for r in rows if mirage.key(r) != mirage.key(row)] + [row]


def summaries(suite: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that sum up the others."""
    if suite == "stenso":
        return stenso.summaries(rows) + stenso_ablate.summaries(rows)
    if suite == "plus":
        return plus.summaries(rows)
    if suite == "models":
        return models.summaries(rows)
    if suite == "outside":
        return outside.summaries(rows)
    raced = suite == "mirage" and not any("ablation" in r or "compiled_for" in r for r in rows)
    return mirage.summaries(rows) if raced else []


def show(row: dict[str, Any]) -> None:
    """One row, for a reader."""
    table = Table(box=None, show_header=False, pad_edge=False, title=_title(row),
                  title_justify="left")  # fmt: skip
    skip = {"suite", "case", "machine", "target", "dtype", "kinds", "failures", "batch", "threads",
            "cache", "gpu", "facts", "date"}  # fmt: skip
    for key, value in row.items():
        if key in skip or value is None:
            continue
        if isinstance(value, float):
            text = _number(value)
        elif isinstance(value, dict):
            text = ", ".join(
                f"{k} {_number(v)}" if isinstance(v, float) else f"{k} {v}"
                for k, v in value.items()
            )
        else:
            text = str(value)
        table.add_row(key, text)
    for failure in row.get("failures", [])[:1]:
        table.add_row("first failure", failure)
    common.stdout().print(table)


def _number(x: float) -> str:
    return f"{x:,.0f}" if 1000 <= abs(x) < 1e9 else f"{x:.4g}"


def _title(row: dict[str, Any]) -> str:
    batch = f" B={row['batch']}" if "batch" in row else ""
    threads = f"{row['threads']} thread(s)" if row.get("threads") else ""
    cache = f"{row['cache']} caches" if row.get("cache") else ""
    kind = " ".join(str(row[k]) for k in ("framework", "output") if row.get(k))
    return ", ".join(x for x in (row["case"] + batch, row.get("dtype"), kind, threads, cache) if x)
