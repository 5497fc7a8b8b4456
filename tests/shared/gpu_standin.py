"""The stand-ins for libamdhip64 and librccl (tests/engine/standin_gpu/README.md), compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "engine/standin_gpu"


def standin_libraries(folder: Path) -> tuple[Path, Path]:
    """Compile both; return libamdhip64 and librccl, which finds it beside itself."""
    hip, rccl = folder / "libamdhip64.so.5", folder / "librccl.so.1"
    compiler = ["gcc", "-std=c11", "-O3", "-fPIC", "-shared", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*compiler, f"-Wl,-soname,{hip.name}", "-o", hip, SOURCES / "hip.c"], check=True)
    subprocess.run([*compiler, f"-Wl,-soname,{rccl.name}", "-o", rccl, SOURCES / "rccl.c", hip], check=True)
    return hip, rccl
