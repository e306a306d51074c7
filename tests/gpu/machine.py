#!/usr/bin/env python3
"""Says what a machine lacks for `make gpu-test` and `make gpu-bench`; prints its GPU if nothing.

Needs only Python's standard library. Exit code 1 lists everything that is missing at once, 2 says
that there is no GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

# Module → how to get it; the packages of tools/requirements.txt, and what measures and tests.
MODULES = ("numpy", "click", "rich", "ml_dtypes", "nanobind", "torch", "pytest")
PROGRAMS = {"cmake": "cmake", "ninja": "ninja"}
TOOLKIT = Path("/usr/local/cuda/lib64")
REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = "packages"  # what tests/gpu/bundle.py brings along


def find_program(name: str) -> str | None:
    """A program beside this Python, or on the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def gpu() -> str:
    """The name of the first GPU; raises OSError where the driver or the GPU is missing."""
    library = os.environ.get("TESSERA_CUDA") or "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        raise OSError(f"no NVIDIA driver: {error}") from None
    result = driver.cuInit(0)
    count = ctypes.c_int()
    if result == 0:
        result = driver.cuDeviceGetCount(ctypes.byref(count))
    if result != 0 or count.value == 0:
        raise OSError(f"the NVIDIA driver finds no GPU (error {result})")
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 256, 0)
    return name.value.decode(errors="replace")


def brought() -> list[str]:
    """The folders of bundled packages that this Python lacks."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folders = []
    for module in MODULES:
        if importlib.util.find_spec(module) is None:
            for name in (module, f"{module}-{version}"):
                if (REPOSITORY / PACKAGES / name).is_dir():
                    folders.append(str(REPOSITORY / PACKAGES / name))
    return folders


def finds_nvrtc() -> bool:
    """Whether NVRTC is where Tessera looks for it: Python's packages, the system, a toolkit."""
    names = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
    patterns = ("nvidia/*/lib", "nvidia/*/lib/x86_64")
    folders = [f for p in sys.path for g in patterns for f in Path(p or ".").glob(g)]
    folders.append(TOOLKIT)
    places = [os.environ.get("TESSERA_NVRTC", ""), *(str(f / n) for f in folders for n in names)]
    if any(os.path.isfile(p) for p in places):
        return True
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def missing() -> list[str]:
    """What has to be there besides a GPU, one line each, with how to get it."""
    lines = []
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever starts this may have an older one
        lines.append(f"Python 3.11 or newer; this is {sys.version.split()[0]}: set PYTHON")
    modules = [m for m in MODULES if importlib.util.find_spec(m) is None]
    if modules:
        lines.append(
            f"Python's {', '.join(modules)}: {sys.executable} -m pip install {' '.join(modules)}\n"
            "      (without a package registry: bring what `make gpu-bundle` makes elsewhere)"
        )
    elif importlib.import_module("torch").version.cuda is None:
        lines.append("a torch that is built with CUDA: this Python's is not (https://pytorch.org)")
    if not finds_nvrtc():
        lines.append(f"NVRTC: {sys.executable} -m pip install nvidia-cuda-nvrtc, or a CUDA toolkit")
    for program, package in PROGRAMS.items():
        if find_program(program) is None:
            lines.append(f"{program}: pip install {package}, or the system's package")
    compilers = (os.environ.get("CXX") or "c++", "g++", "clang++")
    if not any(shutil.which(c) for c in compilers):
        lines.append("a C++20 compiler: apt-get install g++")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        lines.append("Python.h: apt-get install python3-dev")
    return lines


def main() -> int:
    try:
        name = gpu()
    except OSError as error:
        print(f"tessera: {error}.\n  This needs a machine with an NVIDIA GPU. Without one, the "
              "generated kernels are emulated and\n  compiled by `make test` and by `tessera bench "
              "mirage --target cuda --emulate`.", file=sys.stderr)  # fmt: skip
        return 2
    lines = missing()
    if lines:
        print("tessera: missing on this machine:", file=sys.stderr)
        for line in lines:
            print(f"    {line}", file=sys.stderr)
        return 1
    print(f"{name}; Python {sys.version.split()[0]} at {sys.executable}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--packages"]:
        print(os.pathsep.join(brought()))
        sys.exit(0)
    if len(sys.argv) == 3 and sys.argv[1] == "--program":
        print(find_program(sys.argv[2]) or "")
        sys.exit(0)
    sys.exit(main())
