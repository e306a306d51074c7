"""Which C++ compiler makes kernels, where the system has none."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil

from tessera.cache_folder import cache_directory, is_own
from tessera.errors import Error
from tessera.files import write_text
from tessera.options import package_folders


def find_compiler() -> None:
    """Has the core take ziglang's clang (`pip install tessera-opt[jit]`: 411 MB) where there is
    none: a script in the cache, since the core starts programs without options. Its first use takes
    9 s."""
    if os.environ.get("TESSERA_CXX") or any(map(shutil.which, ("c++", "g++", "clang++"))):
        return
    for folder in package_folders("ziglang"):
        with contextlib.suppress(OSError, Error):  # a folder that cannot be written
            (cache := cache_directory()).mkdir(mode=0o700, parents=True, exist_ok=True)
            script = cache / "zig-c++"
            text = f'#!/bin/sh\nexec {shlex.quote(str(folder / "zig"))} cc "$@"\n'
            if is_own(cache, alone=True):
                if not os.access(script, os.X_OK) or script.read_text() != text:
                    write_text(script, text)
                    script.chmod(0o700)
                os.environ["TESSERA_CXX"] = str(script)
