"""Containers made directly with kernel namespaces, started as lumiimg starts them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lumiimg.engine.namespaces import PROGRAM
from tests.shared.programs import needs, patient

STRATEGIES = {
    "build": ("--fakeroot", "--writable", "--no-home", "--cleanenv", "--pid", "--pwd", "/"),
    "test": ("--fakeroot", "--no-home", "--cleanenv", "--pid", "--pwd", "/"),
    "probe": (),
}
"""Options of the engine, by the purpose of the start."""


def start(
    image: Path,
    *argv: str,
    way: str = "probe",
    env: dict[str, str] | None = None,
    within: Sequence[str] = (),
    more: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program in a container; `within` is a command prefix that starts the engine itself."""
    return subprocess.run(
        [*within, *PROGRAM, "exec", *STRATEGIES[way], *more, image, *argv],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
        stdin=subprocess.DEVNULL,
    )


def squashed(folder: Path) -> Path:
    """Return a squashfs file of a folder."""
    needs("mksquashfs")
    file = folder.with_suffix(".squashfs")
    subprocess.run(["mksquashfs", folder, file, "-quiet", "-no-progress", "-all-root"], check=True, capture_output=True)
    return file
