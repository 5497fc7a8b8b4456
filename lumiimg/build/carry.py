"""Layers of a cache in one file, to be carried to another machine."""

from __future__ import annotations

import json
import shutil
import tarfile
from typing import TYPE_CHECKING

from lumiimg.build.cache import NAMES, Key
from lumiimg.engine.workspace import scratch_folder, written_by_rename
from lumiimg.errors import BadInputError, FailedError
from lumiimg.resolve.lock import file_sha256

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.cache import Entry, LayerCache

_MEMBERS = ("key.json", "entry.json", *NAMES)
_DOCUMENT_LIMIT_BYTES = 64 << 20


def write_archive(cache: LayerCache, target: Path, wanted: Sequence[str]) -> list[Entry]:
    """Write entries into a tar: all, or those whose layer or key is wanted; return them.

    Raises BadInputError for a name that nothing has.
    """
    entries = list(cache.entries())
    chosen = [
        entry
        for entry in entries
        if not wanted or any(name in entry.layers or (len(name) >= 6 and entry.key.startswith(name)) for name in wanted)
    ]
    for name in wanted:
        if not any(name in entry.layers or entry.key.startswith(name) for entry in chosen):
            raise BadInputError(f"the cache has no {name!r}", hint="lumiimg cache ls")
    with written_by_rename(target) as partial, tarfile.open(partial, "w") as archive:
        for entry in chosen:
            for name in ("key.json", "entry.json", entry.data.name):
                archive.add(entry.data.with_name(name), f"{entry.key}/{name}", recursive=False)
    return chosen


def read_archive(cache: LayerCache, source: Path) -> list[Entry]:
    """Take the entries of such a tar into the cache, each only if it is what it says; return them.

    Raises BadInputError for a file that is none, FailedError where an entry is not what its name says.
    """
    if source.exists() and not source.is_file():  # a FIFO would be waited for
        raise BadInputError("is not a file", where=str(source))
    taken: list[Entry] = []
    try:
        with tarfile.open(source) as archive, scratch_folder(cache.root / "work") as folder:
            current = ""
            parts: dict[str, Path] = {}
            for member in archive:
                key, _, name = member.name.partition("/")
                if not member.isfile() or name not in _MEMBERS or not _is_key(key):
                    raise BadInputError(
                        f"holds {member.name[:80]!r}", where=str(source), hint="is it of `lumiimg cache export`?"
                    )
                if key != current:
                    current, parts = key, {}
                place = folder / f"{key[:12]}-{name}"
                with place.open("wb") as file:
                    shutil.copyfileobj(archive.extractfile(member), file)  # type: ignore[arg-type]  # it is a file
                parts[name] = place
                if len(parts) == 3:
                    taken.append(_take(cache, key, parts))
    except tarfile.TarError as error:
        raise BadInputError("is no archive of layers", where=str(source), hint="lumiimg cache export FILE") from error
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(source)) from error
    return taken


def _is_key(name: str) -> bool:
    return len(name) == 64 and all(c in "0123456789abcdef" for c in name)


def _take(cache: LayerCache, name: str, parts: dict[str, Path]) -> Entry:
    try:
        documents = [
            json.loads(parts[part].read_bytes()[:_DOCUMENT_LIMIT_BYTES]) for part in ("key.json", "entry.json")
        ]
        key, entry = Key(documents[0]), documents[1]
        data = next(path for part, path in parts.items() if part.startswith("data."))
        whole = key.digest == name and entry["sha256"] == file_sha256(data)
        layers, seconds = tuple(map(str, entry["layers"])), float(entry["seconds"])
    except (ValueError, KeyError, TypeError, StopIteration, AttributeError) as error:
        raise FailedError("an entry is damaged", where=name[:12], hint="export it again") from error
    if not whole:
        raise FailedError("an entry is not what its name says", where=name[:12], hint="export it again")
    if (there := cache.find(key)) is not None:
        return there
    return cache.keep(key, None, data, layers=layers, seconds=seconds)
