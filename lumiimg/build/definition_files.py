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
from lumiimg.definition.writer import write_chain, write_flat
from lumiimg.engine.engine import engine_word
from lumiimg.resolve.lock import Lock, LockedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
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


def write_from_lock(lock: Lock, folder: Path, store: Store, on_line: Callable[[str], None]) -> WrittenDefinitions:
    """Write the definitions of a lock, step by step and as one, with what they need beside them.

    Raises as `unreachable` and `write_definitions`.
    """
    definitions = (*write_chain(lock), write_flat(lock))
    missing = unreachable(definitions, store, on_line)
    write_definitions(definitions, folder, store, on_line, missing)
    return WrittenDefinitions(folder, definitions, write_fetch(definitions, missing, folder) if missing else None)


def write_definitions(
    definitions: Sequence[Definition],
    folder: Path,
    store: Store,
    on_line: Callable[[str], None],
    without: Collection[LockedSource] = (),
) -> None:
    """Write definition files and what they need beside them into `folder`; nothing before every source is there.

    Those of `without` are left out. Raises FailedError if another cannot be had, BadInputError if the folder cannot be.
    """
    wanted = (one for definition in definitions for one in sources_of(definition) if one not in without)
    archives = store.sources(wanted, on_line)
    for definition in definitions:
        with replaced(_folder(folder) / f"{definition.name}.def") as text:
            text.write(definition.text.encode())
        for file in definition.files:
            if file.origin in without:
                continue
            above, _, name = file.path.rpartition("/")
            origin = archives[file.origin] if isinstance(file.origin, LockedSource) else file.origin
            with open_regular(origin) as source, replaced(_folder(folder, above) / name) as copy:
                shutil.copyfileobj(source, copy)
                os.fchmod(copy.fileno(), 0o644)


def _folder(folder: Path, below: str = "") -> Path:
    try:
        return make_folder(folder, below)
    except OSError as error:
        raise BadInputError(f"cannot be made: {error.strerror}", where=str(error.filename or folder)) from error


def unreachable(
    definitions: Sequence[Definition], store: Store, on_line: Callable[[str], None]
) -> frozenset[LockedSource]:
    """Return the sources that are not here where the network is not either; what can be had is fetched.

    Raises FailedError for a source that is refused, or is another than its digest says.
    """
    wanted = [one for definition in definitions for one in sources_of(definition)]
    try:
        store.sources(wanted, on_line)
    except MissingHereError:
        return frozenset(one for one in wanted if not store.has(one))
    return frozenset()


def write_fetch(definitions: Sequence[Definition], missing: Collection[LockedSource], folder: Path) -> Path:
    """Write the script that fetches what is missing to where the definitions look for it; return its path."""
    files = {file.path: file.origin for definition in definitions for file in definition.files}
    lines = [
        f"get {source.sha256} {shlex.quote(source.location)} {shlex.quote(path)}\n"
        for path, source in files.items()
        if isinstance(source, LockedSource) and source in missing
    ]
    script = folder / FETCH
    with replaced(script) as file:
        file.write((_HEAD + "".join(lines)).encode())
    return script
