"""The inputs: `tests/corpus/TARGET.zip` contains those that reach code, `tests/corpus/TARGET/…` the finds by name."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "corpus"
_DATE = (1980, 1, 1, 0, 0, 0)


def inputs(name: str) -> list[bytes]:
    """Return the inputs of a target, finds first."""
    return [*finds(name).values(), *_packed(name)]


def finds(name: str) -> dict[str, bytes]:
    """Return the inputs that once revealed a fault, by the name of the fault."""
    return {path.name: path.read_bytes() for path in sorted((FOLDER / name).glob("*"))}


def keep_find(name: str, what: str, data: bytes) -> Path:
    """Write an input that reveals a fault into the corpus; a person should give it a better name."""
    path = FOLDER / name / f"new-{what}-{digest(data)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def pack(name: str, inputs: Iterable[bytes]) -> Path:
    """Write the inputs that are not finds, in a fixed order and with fixed dates."""
    path = FOLDER / f"{name}.zip"
    FOLDER.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for data in sorted(set(inputs), key=lambda data: (len(data), data)):
            entry = zipfile.ZipInfo(digest(data), _DATE)
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return path


def digest(data: bytes) -> str:
    """Return a short name for an input."""
    return hashlib.sha256(data).hexdigest()[:12]


def _packed(name: str) -> list[bytes]:
    path = FOLDER / f"{name}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(entry) for entry in archive.infolist()]
