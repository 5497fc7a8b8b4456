"""A root folder with a few programs of this machine; it starts in milliseconds, where a distribution takes seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_PROGRAMS = ("bash", "dash", "cat", "env", "find", "getconf", "grep", "head", "id", "ls", "mkdir", "readlink", "rm", "setsid", "sleep", "touch", "tr")  # fmt: skip
_FOLDERS = ("dev", "etc", "home", "opt", "proc", "root", "sys", "tmp", "usr", "var/tmp", ".singularity.d/env")


def small_root(root: Path) -> Path:
    """Copy programs of this machine and their libraries into a new folder that serves as an image; return it."""
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    (root / "bin").mkdir()
    for name in _PROGRAMS:
        program = Path(os.path.realpath(shutil.which(name) or pytest.fail(name)))
        shutil.copy(program, root / "bin" / name)
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
        for library in (word for word in needed if word.startswith("/")):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            if not (root / library[1:]).exists():
                shutil.copy(library, root / library[1:])
    (root / "bin/sh").symlink_to("dash")
    (root / "usr/bin").symlink_to("../bin")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    return root
