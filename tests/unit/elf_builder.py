"""Real ELF files for the tests of the loader model, and the real loader to ask about them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.tools import needs

LOADER = "/lib64/ld-linux-x86-64.so.2"


def gcc(output: Path, *arguments: str | Path, source: str) -> Path:
    needs("gcc")
    output.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["gcc", "-x", "c", "-", "-x", "none", "-nostdlib", "-fPIC", "-Wl,--no-as-needed", "-o", output, *arguments],
        input=source.encode(),
        check=True,
    )
    return output


def library(path: Path, *arguments: str | Path, source: str = "") -> Path:
    """Link a shared library; its soname is its file name unless the arguments say otherwise."""
    own = [] if any(str(a).startswith("-Wl,-soname") for a in arguments) else [f"-Wl,-soname,{path.name}"]
    return gcc(path, "-shared", *own, *arguments, source=source or f"int f_{path.stem.replace('.', '_')};")


def program(path: Path, *arguments: str | Path, source: str = "void start(void) {}") -> Path:
    return gcc(path, "-Wl,-e,start", "-Wl,--unresolved-symbols=ignore-all", *arguments, source=source)


def rpath(*directories: str | Path) -> tuple[str, str]:
    return "-Wl,--disable-new-dtags", f"-Wl,-rpath,{':'.join(map(str, directories))}"


def runpath(*directories: str | Path) -> tuple[str, str]:
    return "-Wl,--enable-new-dtags", f"-Wl,-rpath,{':'.join(map(str, directories))}"


@dataclass(frozen=True)
class Answer:
    """What ldd says: it runs the loader in this way."""

    printed: dict[str, str | None]
    errors: str


def ask_loader(path: Path, environment: dict[str, str] | None = None, *, cwd: Path | None = None) -> Answer:
    if not Path(LOADER).exists():
        needs(LOADER)
    done = subprocess.run(
        [LOADER, path],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={"LD_TRACE_LOADED_OBJECTS": "1", **(environment or {})},
    )
    printed: dict[str, str | None] = {}
    for line in done.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        found = rest if arrow else name
        found = found.rpartition(" (0x")[0] or found
        if name.startswith("linux-vdso"):
            continue
        printed[name if arrow else found] = None if found == "not found" else found
    return Answer(printed, done.stderr)
