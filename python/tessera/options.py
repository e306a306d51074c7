"""Options of optimisation, in one frozen value."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tessera.cache_folder import cache_directory, is_own
from tessera.calibrate import calibrated_path
from tessera.errors import ToolMissingError, UsageError
from tessera.types import Record, Value

_HERE = Path(__file__).resolve().parent


def target_directory() -> str:
    """Where the machine descriptions are: beside the package, or in the source tree."""
    return str(shipped("targets") or "")


def shipped(name: str) -> Path | None:
    """A folder that ships ("targets", "rules", "patterns"): beside the package, or in the source
    tree."""
    folders = (_HERE / name, _HERE.parents[1] / name)
    return next((folder for folder in folders if folder.is_dir()), None)


def users(name: str) -> Path:
    """A folder of the user's own: "rules", "patterns", or "learnt", which has kernels that searches
    found and what they searched in vain."""
    return cache_directory() / name


def is_described(target: str) -> bool:
    """Whether there is a machine description of this name."""
    return (Path(target_directory()) / f"{target}.target").is_file()


def is_gpu(target: str) -> bool:
    """Whether this names a GPU."""
    if target == "cuda" or target.startswith("cuda:"):
        return True
    path = Path(target_directory()) / f"{target}.target" if is_described(target) else Path(target)
    return target != "cpu" and path.is_file() and "\nkind gpu" in path.read_text(errors="replace")


def rule_folders() -> list[str]:
    """Where rules are: those that ship, then the user's own."""
    return [str(shipped("rules") or ""), *_own(users("rules"))]


def _own(folder: Path, within_cache: bool = True) -> list[str]:
    """The folder, where nobody else can have put files there."""
    above = is_own(folder.parent, alone=within_cache)
    return [str(folder)] if above and is_own(folder) else []


def pattern_folders() -> list[str]:
    """Where experts' kernels are: shipped, of installed packages, the user's, the project's.

    Nothing of a package is imported for it; of two patterns with one name the later one stands.
    """
    return [
        str(shipped("patterns") or ""),
        *(str(folder) for folder in installed_patterns()),
        *_own(users("patterns")),
        *_own(Path(".tessera") / "patterns", within_cache=False),
        *registered_patterns,
    ]


def own_pattern_folders() -> list[str]:
    """Those with patterns that do not ship."""
    return [f for f in pattern_folders()[1:] if any(Path(f).glob("*.pattern"))]


# A folder of what this process registered (patterns.register), once there is anything.
registered_patterns: list[str] = []


def installed_patterns() -> list[Path]:
    """Folders that installed packages name: entry points `x = "package:folder"`, by name."""
    found = []
    for entry in sorted(entry_points(group="tessera.patterns"), key=lambda e: e.name):
        package, _, within = entry.value.partition(":")
        for folder in package_folders(package) if package.isidentifier() else ():
            path = (folder / (within or "patterns")).resolve()
            if path.is_relative_to(folder.resolve()):
                found.append(path)
    return found


def package_folders(name: str) -> list[Path]:
    """Where a package of Python is; nowhere if it is not installed."""
    spec = find_spec(name)
    return [Path(f) for f in (spec.submodule_search_locations or () if spec else ())]


def package(name: str, need: str) -> Value:
    """An optional package of Python; ToolMissingError says what needs it where it is missing."""
    try:
        return import_module(name)
    except ImportError:
        raise ToolMissingError(need) from None


def require_threads(threads: int) -> None:
    """Refuses numbers of threads that the core would not take."""
    if not isinstance(threads, int) or not 0 <= threads <= 1024:
        raise UsageError(f"threads must be a whole number from 0 (all) to 1024, not {threads}")


def require_seed(name: str, seed: int | None) -> None:
    """Refuses seeds that are not 64 bits."""
    if seed is not None and (not isinstance(seed, int) or not 0 <= seed < 2**64):
        raise UsageError(f"{name} must be a whole number from 0 to 2^64 - 1, not {seed}")


def require_budget(seconds: float | None) -> None:
    """Refuses budgets that are no time."""
    known = isinstance(seconds, (int, float)) and seconds > 0
    if seconds is not None and (not known or sys.float_info.max < seconds < math.inf):
        raise UsageError(f"the budget must be a positive number of seconds, not {seconds}")


Level = Literal["bitwise", "close", "fast"]
LEVELS: tuple[Level, ...] = ("bitwise", "close", "fast")


def require_level(level: str) -> None:
    """Refuses levels that there are not."""
    if level not in LEVELS:
        raise UsageError(f"a level is {', '.join(LEVELS)}, not {level!r}")


@dataclass(frozen=True)
class Options:
    """What to optimise for, how long, and how strictly.

    - target: this machine ("cpu"), its GPU ("cuda", "cuda:1"), a GPU of an architecture
      ("cuda:sm_90a"), or a description: a name such as cpu-avx2 or h100, or a path.
    - budget: seconds of wall time for everything. threads: 0: TESSERA_THREADS, or all processors.
    - seed: of search and measurement. verify_seed: None: from the system; certificates record it.
    - accept: "proved": equal on every branch. "tested": also what was tried on both sides of every
      decision without a difference, and is not proved; its certificate states no error.
    - level: "bitwise": the original's bits, NaN where it is NaN. "close": as accurate wherever that
      is finite and accurate. "fast": as accurate at inputs of ordinary magnitudes.
    - tune: time more candidates, and other tiles of the fastest. wait: first calls of @ts.optimize
      wait for their programs. tf32: GPUs may round factors of f32 products to 10 bits of fraction.
    - max_block_ops: operators of a block graph as Mirage counts; None: no limit.
    - disable: engines, "learnt" (what earlier searches found), "engine:RULE" for one pruning rule,
      "plan:layout" (schedule, memory, weights), "library": no calls of cuBLASLt, cuDNN and oneDNN,
      and "numpy": kernels run even where NumPy is faster.
    - settings: numbers inside the engines, "mutate.depth=5"; a wrong name tells which there are.
    - cache: remember results, and unfinished searches, between runs. refresh: search again all the
      same. resume: go on where a search with the same options (but the budget) was interrupted.
    - weights: inputs, by name, that keep their values as a rule: folded and packed once for these
      values, which each call looks at (about 25 us a MB on two cores).
    - freeze: nobody writes to weights: no call looks at them again (Result.refresh() tells of
      changes); on a GPU nothing is kept of weights without it.
    - cost: what synthesis minimises: times of operations, "measured" on this machine for the
      library that runs the result (costs.py), or "flops", as STENSO's first estimator does.
    """

    target: str = "cpu"
    budget: float = 30.0
    threads: int = 0
    seed: int = 0
    verify_seed: int | None = None
    accept: Literal["proved", "tested"] = "proved"
    level: Level = "close"
    tune: bool = False
    wait: bool = False
    tf32: bool = False
    max_block_ops: int | None = None
    disable: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    cache: bool = True
    refresh: bool = False
    resume: bool = False
    weights: tuple[str, ...] = ()
    freeze: bool = False
    cost: Literal["measured", "flops"] = "measured"

    def __post_init__(self) -> None:
        require_budget(self.budget)
        for name in ("weights", "disable", "settings"):
            if isinstance(given := getattr(self, name), str):
                raise UsageError(f'{name}: a tuple of texts: {name}=("{given}",)')
        if self.tune not in (True, False):
            raise UsageError(f"tune is True or False, not {self.tune!r}")
        require_level(self.level)
        for name, ways in (("accept", ("proved", "tested")), ("cost", ("measured", "flops"))):
            if (given := getattr(self, name)) not in ways:
                raise UsageError(f'{name} is "{ways[0]}" or "{ways[1]}", not {given!r}')
        if self.resume and not self.cache:
            raise UsageError("resume needs the cache: unfinished searches are kept there")
        require_threads(self.threads)
        require_seed("seed", self.seed)
        require_seed("verify_seed", self.verify_seed)
        if self.max_block_ops is not None and self.max_block_ops < 1:
            raise UsageError(f"max_block_ops must be positive, not {self.max_block_ops}")
        if not isinstance(self.target, str):
            raise UsageError(f"a target is a name or a path, not {self.target!r}")
        known = self.target.startswith("cpu") or self.target == "cuda" or Path(self.target).suffix
        if not (known or self.target.startswith("cuda:") or is_described(self.target)):
            raise UsageError(
                f"target '{self.target}' is not supported yet; use cpu, cpu-avx2, cpu-avx512, "
                "cuda (the GPU of this machine), an architecture such as cuda:sm_90a, a GPU that "
                "there is a description of (h200, …), or a description file"
            )

    def replace(self, **changes: Value) -> Options:
        """These options with some changed."""
        known = {f.name for f in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                hint = '; level="bitwise" keeps bits' if name == "strict" else ""
                raise UsageError(
                    f"there is no option '{name}'{hint}; options are {', '.join(sorted(known))}"
                )
        return dataclasses.replace(self, **changes)

    def fields(self) -> Record:
        """What the core is given."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["budget"] = float(self.budget)
        fields["disable"] = set(self.disable) - {"numpy"}
        fields["accept_tested"] = fields.pop("accept") == "tested"
        fields["cost"] = "flops" if self.cost == "flops" else "times"
        # Part of the program (api.py), and of calls.
        del fields["weights"], fields["freeze"], fields["wait"]
        fields["target_directory"] = target_directory()
        fields["rule_folders"] = rule_folders()
        fields["pattern_folders"] = pattern_folders()
        measured = calibrated_path()
        if self.target == "cpu" and is_own(measured.parent, alone=True) and measured.exists():
            fields["target"] = str(measured)
        return fields
