"""A Python and a torch in the root of an image, with only what the loader model reads."""

from __future__ import annotations

from pathlib import Path

from tests.shared.elf_builder import library, program, runpath
from tests.shared.fabric_builder import RCCL

SITE = "lib/python3.12/site-packages"
CALLS_RCCL = "int ncclCommInitRank(void); int all_reduce(void) { return ncclCommInitRank(); }"
FIRST_MODULES = ("os.py", "site.py", "encodings/__init__.py", "encodings/aliases.py", "encodings/utf_8.py")
"""Files by which a Python recognizes its standard library, and without which it does not start."""

TORCH = """\
import ctypes
def _load_global_deps():
    ctypes.CDLL(__file__ + '/../lib/libtorch_global_deps.so', mode=ctypes.RTLD_GLOBAL)
_load_global_deps()
from torch._C import *
"""
"""The beginning of torch/__init__.py."""


def environment(root: Path, **variables: str) -> None:
    script = root / ".singularity.d/env/90-environment.sh"
    script.write_text("".join(f"export {name}='{value}'\n" for name, value in variables.items()))


def python(root: Path, prefix: str, *arguments: str | Path) -> Path:
    """Add an interpreter with the library files without which it does not start; return its path."""
    for name in FIRST_MODULES:
        file = root / prefix / "lib/python3.12" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    path = root / prefix / "bin/python3.12"
    program(path, root / "lib64/libc.so.6", *arguments)
    for name in ("python", "python3"):
        path.with_name(name).symlink_to(path.name)
    return path


def venv(root: Path, prefix: str, home: str) -> None:
    (root / prefix / "bin").mkdir(parents=True)
    (root / prefix / "bin/python").symlink_to(f"{home}/bin/python3.12")
    (root / prefix / "pyvenv.cfg").write_text(f"home = {home}/bin\nversion = 3.12.1\n")
    (root / prefix / SITE).mkdir(parents=True)


def torch(root: Path, prefix: str, *, rccl: str = "librccl.so", version: str = "") -> Path:
    """Add a torch that includes an RCCL, as wheels do; return the RCCL."""
    package = root / prefix / SITE / "torch"
    own = library(package / "lib" / rccl, source=RCCL.replace("2.20.5", version or "2.20.5"))
    hip = library(package / "lib/libtorch_hip.so", *runpath("$ORIGIN"), own, source=CALLS_RCCL)
    library(package / "lib/libtorch_global_deps.so", source="int nothing;")
    library(package / "_C.cpython-312-x86_64-linux-gnu.so", *runpath("$ORIGIN/lib"), hip, source="int PyInit__C;")
    (package / "__init__.py").write_text(TORCH)
    return own
