"""Definition files on disk, with what they need beside them; without a network, a script that fetches the rest."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.build.keys import sources_of
from lumiimg.core.errors import BadInputError, MissingHereError
from lumiimg.core.files import make_folder, open_regular, replaced
from lumiimg.engine.engine import engine_word
from lumiimg.resolve.lock import LockedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lumiimg.definition.definition import Definition
    from lumiimg.fetch.store import Store

FETCH = "fetch.sh"
_HEAD = """\
#!/bin/sh
# Written by lumiimg where these could not be reached: fetch them, each verified, before anything is built from here.
set -e
cd "$(dirname "$0")"
get() {
    if [ ! -e "$3" ]; then
        mkdir -p "$(dirname "$3")"
        curl -fLo "$3.partial" "$2"
        echo "$1  $3.partial" | sha256sum --check --quiet
        mv "$3.partial" "$3"
    fi
}
"""


@dataclass(frozen=True, slots=True)
class WrittenDefinitions:
    """Which definition files were written."""

    folder: Path
    """Where they are."""
    definitions: tuple[Definition, ...]
    """The chain in order, then one that does it all."""
    fetch: Path | None
    """The script that gets, elsewhere, the sources that could not be reached from here; null where all are there."""

    @property
    def commands(self) -> tuple[str, ...]:
        """A command for each definition, that builds from it in the folder."""
        return tuple(_command(one, "image" if one is self.definitions[-1] else one.name) for one in self.definitions)


def _command(definition: Definition, image: str) -> str:
    options = "--fakeroot --no-https" if definition.plain_http else "--fakeroot"
    return f"{engine_word()} build {options} {image}.sif {definition.name}.def"


def write_with_sources(
    definitions: Sequence[Definition], folder: Path, store: Store, on_line: Callable[[str], None]
) -> WrittenDefinitions:
    """Write definitions, with what they need beside them, and a script that gets sources that cannot be had from here.

    Nothing is written before every other source is there. Raises FailedError for one that is refused, or is another
    than its digest says; as `write_definitions`.
    """
    wanted = [one for definition in definitions for one in sources_of(definition)]
    try:
        archives = store.sources(wanted, on_line)
    except MissingHereError:
        archives = store.sources(filter(store.has, wanted), on_line)
    write_definitions(definitions, folder, archives)
    files = {file.path: file.origin for definition in definitions for file in definition.files}
    missing = [
        f"get {source.sha256} {shlex.quote(source.location)} {shlex.quote(path)}\n"
        for path, source in files.items()
        if isinstance(source, LockedSource) and source not in archives
    ]
    if missing:
        with replaced(folder / FETCH) as script:
            script.write((_HEAD + "".join(missing)).encode())
    return WrittenDefinitions(folder, tuple(definitions), folder / FETCH if missing else None)


def write_definitions(definitions: Sequence[Definition], folder: Path, archives: Mapping[LockedSource, Path]) -> None:
    """Write definition files and what they need beside them into `folder`, but sources of which there is no archive.

    Raises BadInputError if the folder cannot be made.
    """
    for definition in definitions:
        with replaced(_folder(folder) / f"{definition.name}.def") as text:
            text.write(definition.text.encode())
        for file in definition.files:
            origin = archives.get(file.origin) if isinstance(file.origin, LockedSource) else file.origin
            if origin is None:
                continue
            above, _, name = file.path.rpartition("/")
            with open_regular(origin) as source, replaced(_folder(folder, above) / name) as copy:
                shutil.copyfileobj(source, copy)
                os.fchmod(copy.fileno(), 0o644)


def _folder(folder: Path, below: str = "") -> Path:
    try:
        return make_folder(folder, below)
    except OSError as error:
        raise BadInputError(f"cannot be made: {error.strerror}", where=str(error.filename or folder)) from error
