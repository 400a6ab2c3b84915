"""Requirements of compiling at run time, for GPUs: Triton builds a small C module for each kernel."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def missing_for_triton() -> str:
    """The thing that Triton lacks here, and how to get it; "" where it has all."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]  # as Triton looks for one
    if not any(map(shutil.which, compilers)):
        return f"a C compiler ({' or '.join(compilers)}): install gcc, or name another in CC"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python.h: install python3-dev (Debian) or python3-devel (Red Hat)"
    return ""
