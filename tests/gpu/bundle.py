#!/usr/bin/env python3
"""Packs the tracked tree and the Python packages that a GPU machine may lack into one archive.

Usage: tests/gpu/bundle.py [FILE]. For machines that reach no package registry: unpack FILE there
(default build/tessera-gpu.tar.gz), then `make gpu-test` or `make gpu-bench` in its folder. Packages
are those of this Python and lie in packages/NAME, in packages/NAME-3.11 where they hold machine
code; tests/gpu/machine.py takes those that the machine has not.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.machine import MODULES, PACKAGES, REPOSITORY

FOLDER = "tessera-gpu"


def needed(package: str) -> dict[str, metadata.Distribution]:
    """A package and, of what it requires, all that is installed here and no package of its own."""
    found: dict[str, metadata.Distribution] = {}
    names = [package]
    while names:
        name = names.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for other systems, or an extra
        if name in found:
            continue
        found[name] = distribution
        for line in distribution.requires or []:
            match = re.match(r"[\w.-]+", line)
            if match and "extra ==" not in line and match.group() not in MODULES:
                names.append(match.group())
    return found


def add_package(archive: tarfile.TarFile, package: str) -> int:
    """Adds the package in a folder of its own; returns the number of files."""
    distributions = needed(package)
    if package not in distributions:
        raise SystemExit(f"tessera: this Python has no {package}: run `make build` first")
    files = [
        f for d in distributions.values() for f in d.files or []
        if ".." not in f.parts and "tests" not in f.parts and f.suffix != ".pyc"
    ]  # fmt: skip
    native = any(f.suffix == ".so" for f in files)
    version = f"-{sys.version_info[0]}.{sys.version_info[1]}" if native else ""
    for f in files:
        archive.add(f.locate(), f"{FOLDER}/{PACKAGES}/{package}{version}/{f}")
    return len(files)


def main() -> int:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "build" / "tessera-gpu.tar.gz")
    out.parent.mkdir(parents=True, exist_ok=True)
    tree = out.with_suffix(".tree")
    subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", f"--prefix={FOLDER}/", "-o", str(tree.resolve()),
         "--format=tar", "HEAD"], check=True,
    )  # fmt: skip
    with tarfile.open(out, "w:gz", compresslevel=6) as archive, tarfile.open(tree) as tracked:
        for member in tracked:
            archive.addfile(member, tracked.extractfile(member) if member.isfile() else None)
        for module in MODULES:
            if module != "torch":  # whoever has a GPU and Python has it
                add_package(archive, module)
    tree.unlink()
    print(f"{out}: {out.stat().st_size / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
