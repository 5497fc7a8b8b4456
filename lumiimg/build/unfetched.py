"""Definitions that are written where there is no network: what has to be fetched elsewhere, and a script for that."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.build.builder import write_definitions
from lumiimg.build.fetch import sources_of
from lumiimg.definition.writer import write_chain, write_flat
from lumiimg.errors import MissingHereError
from lumiimg.files import replaced
from lumiimg.resolve.lock import Lock, LockedSource
from lumiimg.wording import engine_word

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
