"""A whole image: for every ELF file in it, the loader model and the real ld.so in the container say the same."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.elf.files import Files
from lumiimg.elf.loader import Process
from lumiimg.errors import BadInputError
from lumiimg.image import open_image
from lumiimg.image.tree import FileKind
from tests.shared.elf_builder import LOADER, Trace, assert_same, read_trace, settings_here
from tests.shared.elf_oracles import assert_facts_of_pyelftools

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine
    from lumiimg.image.root import RootFileSystem

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/opt")
_MARK = "@@ "


def _script(environment: dict[str, str]) -> str:
    """Return a loop that asks about each file on standard input; only the loader gets the variables."""
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


_ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu/perl:;/lib64/::/nowhere:$ORIGIN"},
    {"LD_PRELOAD": "libm.so.6:libnowhere.so /usr/lib/none.so libgcc_s.so.1"},
)
_ENOUGH = 1000


def elf_files(root: RootFileSystem) -> list[str]:
    """Return the files that the loader of this image is for."""
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
    """Ask the loader of the image about all of them in one container."""
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


@pytest.mark.parametrize("environment", _ENVIRONMENTS, ids=["plain", "library-path", "preload"])
def test_every_file_of_an_image(engine: Engine, demo: Path, environment: dict[str, str]) -> None:
    with open_image(demo) as image:
        files = elf_files(image.root)
        assert len(files) * len(_ENVIRONMENTS) > _ENOUGH
        real = ask_in_container(engine, demo, files, environment)
        shared = Files(image.root)
        different: list[str] = []
        for file in files:
            if real[file].crashed or (real[file].is_static and environment):
                continue  # ld.so itself falls over programs that are linked to its own addresses
            outcome = Process(image.root, settings_here(environment, Path("/")), files=shared).start(file)
            try:
                assert_same(outcome, real[file])
            except AssertionError as error:
                different.append(f"{file}: {error}")
    assert not different, f"{len(different)} of {len(files)}\n" + "\n".join(different[:20])


def test_facts_of_every_file_of_an_image_are_those_of_pyelftools(demo: Path) -> None:
    with open_image(demo) as image:
        files = elf_files(image.root)
        assert len(files) * 2 > _ENOUGH
        for path in files:
            content = image.root.read_bytes(path, 1 << 30)
            if len(content) < 8 << 20:  # the peer takes minutes for the symbols of the largest
                assert_facts_of_pyelftools(content)
