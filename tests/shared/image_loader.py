"""A comparison of the loader model with an image's own ld.so in a container, for every ELF file of the image."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf import ElfCache, Process
from lumiimg.image import FileKind, open_image
from tests.shared.elf_builder import LOADER, Trace, assert_same, read_trace, settings_here

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine
    from lumiimg.image.root import RootFileSystem

_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/opt")
_MARK = "@@ "


def _script(environment: dict[str, str]) -> str:
    """Return a loop that traces each file named on standard input; only the loader gets the variables."""
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"""
        cd /
        unset LD_LIBRARY_PATH LD_PRELOAD
        while IFS= read -r file; do
            echo "{_MARK}$file"
            echo "{_MARK}$file" >&2
            LD_TRACE_LOADED_OBJECTS=1 {assignments} {LOADER} "$file" </dev/null
        done
    """


def elf_files(root: RootFileSystem) -> list[str]:
    """Return the ELF files that the loader of this image can load."""
    found: list[str] = []
    for folder in filter(root.is_dir, _FOLDERS):
        for path, kind in root.walk(folder):
            if kind is not FileKind.FILE or "\n" in path:
                continue
            try:
                file = root.open(path)
            except (OSError, BadInputError):
                continue
            head = file.read_at(0, 20)
            file.close()
            if head[:5] == b"\x7fELF\2" and head[18:20] == b"\x3e\0":
                found.append(path)
    return found


def ask_in_container(engine: Engine, image: Path, files: list[str], environment: dict[str, str]) -> dict[str, Trace]:
    """Return the image's own loader's trace of each file; all run in one container."""
    done = subprocess.run(
        [engine.path, "exec", "--cleanenv", image, "/bin/sh", "-c", _script(environment)],
        input=os.fsencode("".join(f"{file}\n" for file in files)),
        capture_output=True,
        check=False,
    )
    out, err = (_parts(os.fsdecode(text)) for text in (done.stdout, done.stderr))
    return {file: read_trace(file, out[file], err[file], crashed="Segmentation fault" in err[file]) for file in files}


def _parts(text: str) -> dict[str, str]:
    parts = (part.partition("\n") for part in f"\n{text}".split(f"\n{_MARK}")[1:])
    return {file: answer for file, _, answer in parts}


def assert_all_as_the_loader(engine: Engine, place: Path, environment: dict[str, str], enough: int) -> None:
    """Assert that the model and the image's own loader agree on every file of the image."""
    with open_image(place) as image:
        files = elf_files(image.root)
        assert len(files) > enough
        real = ask_in_container(engine, place, files, environment)
        shared = ElfCache(image.root)
        different: list[str] = []
        for file in files:
            if real[file].crashed or (real[file].is_static and environment):
                continue  # ld.so itself crashes on programs that are linked to its own addresses
            outcome = Process(image.root, settings_here(environment, Path("/")), cache=shared).start(file)
            try:
                assert_same(outcome, real[file])
            except AssertionError as error:
                different.append(f"{file}: {error}")
    assert not different, f"{len(different)} of {len(files)}\n" + "\n".join(different[:20])
