"""A cache in build/ for the output of slow tools, keyed by the input and the tool's version."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.shared.programs import needs

_FOLDER = Path(__file__).parents[2] / "build/test-made"


@functools.cache
def _version(tool: Sequence[str]) -> bytes:
    needs(tool[0])
    return subprocess.run(tool, capture_output=True, check=False).stdout


def made(tool: tuple[str, ...], made_of: Iterable[str | bytes], make: Callable[[Path], object]) -> bytes:
    """Return what `make` writes into a file. `tool` prints its version; `made_of` is all other input.

    Nothing is stored if the input contains the path of a temporary folder, which is different in the next run.
    """
    parts = [part.encode() if isinstance(part, str) else part for part in made_of]
    digest = hashlib.sha256()
    for part in (_version(tool), *parts):
        digest.update(len(part).to_bytes(8, "little") + part)
    kept = _FOLDER / digest.hexdigest()
    if kept.exists():
        return kept.read_bytes()
    with tempfile.TemporaryDirectory(prefix="lumiimg-made-") as folder:
        target = Path(folder) / "made"
        make(target)
        content = target.read_bytes()
    temporary = os.fsencode(tempfile.gettempdir()) + b"/"
    if not any(temporary in part for part in parts if len(part) < 1 << 16):
        _FOLDER.mkdir(parents=True, exist_ok=True)
        own = kept.with_suffix(f".{os.getpid()}")  # other workers may be writing the same file
        own.write_bytes(content)
        own.replace(kept)
    return content
