"""Write definition files or a Dockerfile with the files that they need; without a network, also a script that fetches
what is missing.
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.build.keys import sources_of
from lumiimg.build.provenance import FOLDER, PLAN_OF_DOCKERFILE, carried_files
from lumiimg.core.errors import BadInputError, MissingHereError
from lumiimg.core.files import atomic_file, make_folder, open_regular
from lumiimg.definition.definition import StagedFile
from lumiimg.definition.docker.writer import IN_IMAGE, PLATFORM, write_dockerfile
from lumiimg.engine.engine import engine_word
from lumiimg.resolve.lock import LockedSource
from lumiimg.resolve.lock_file import to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from lumiimg.definition.definition import Definition
    from lumiimg.definition.docker.writer import DockerContext
    from lumiimg.fetch.store import Store
    from lumiimg.resolve.lock import Lock

DOCKERFILE = "Dockerfile"
FETCH = "fetch.sh"
_HEAD = """\
#!/bin/sh
# Written by lumiimg, which could not reach these sources: run it to fetch and verify them before you build from here.
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
    """The definition files or the Dockerfile that were written."""

    folder: Path
    """The folder that contains them."""
    definitions: tuple[Definition, ...]
    """The chain in order, then one that contains all of it; empty for a Dockerfile."""
    dockerfile: Path | None
    """The Dockerfile; null if definition files were written."""
    fetch: Path | None
    """The script that fetches, elsewhere, the sources that could not be reached here; null if none is missing."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands to run in the folder: one that builds each definition, or those for the Dockerfile in sequence."""
        if self.dockerfile is not None:
            return (
                f"docker build --platform {PLATFORM} --tag image .",
                "docker save --output image.tar image",
                f"{engine_word()} build image.sif docker-archive:image.tar",
            )
        return tuple(_command(one, "image" if one is self.definitions[-1] else one.name) for one in self.definitions)


def _command(definition: Definition, image: str) -> str:
    options = "--fakeroot --no-https" if definition.plain_http else "--fakeroot"
    return f"{engine_word()} build {options} {image}.sif {definition.name}.def"


def write_with_sources(
    definitions: Sequence[Definition], folder: Path, store: Store, on_line: Callable[[str], None]
) -> WrittenDefinitions:
    """Write definitions with their files, and a script that fetches the sources that cannot be fetched here.

    Nothing is written until every other source is there. Raises FailedError if one is refused or does not match its
    digest, and the errors of `write_definitions`.
    """
    archives = _archives(definitions, store, on_line)
    write_definitions(definitions, folder, archives)
    files = [file for definition in definitions for file in definition.files]
    return WrittenDefinitions(folder, tuple(definitions), None, _write_fetch(files, folder, archives))


def write_docker_context(
    lock: Lock, chain: Sequence[Definition], folder: Path, store: Store, on_line: Callable[[str], None]
) -> WrittenDefinitions:
    """Write a Dockerfile with its files and the image's record; raises as `write_dockerfile`, `write_with_sources`.

    Also raises BadInputError for files of another stack in the folders that the Dockerfile copies whole.
    """
    context = write_dockerfile(lock, chain)
    own = f"{IN_IMAGE}/{FOLDER}"
    carried = [StagedFile(f"{own}/{path}", origin) for path, origin in carried_files(lock).items()]
    texts = {**context.scripts, f"{own}/{PLAN_OF_DOCKERFILE}": to_record(lock).decode(), DOCKERFILE: context.text}
    _refuse_foreign_files(folder, {*texts, *(file.path for file in (*context.files, *carried))})
    archives = _archives(chain, store, on_line)
    write_files((*context.files, *carried), folder, archives)
    for path, text in texts.items():
        _write(folder, path, text)
    _open_to_all(folder / IN_IMAGE, context)
    return WrittenDefinitions(folder, (), folder / DOCKERFILE, _write_fetch(context.files, folder, archives))


def _refuse_foreign_files(folder: Path, ours: Collection[str]) -> None:
    """Raise BadInputError for foreign files that the image or its scripts would get besides those written for it."""
    for top in (folder / IN_IMAGE, folder / "files"):
        for path in (top, *top.rglob("*")):
            if path.is_symlink() or (path.is_file() and str(path.relative_to(folder)) not in ours):
                hint = f"remove {IN_IMAGE} and files in {folder}, or name a new folder"
                raise BadInputError("is not part of this stack, and would end up in it", where=str(path), hint=hint)


def _archives(
    definitions: Sequence[Definition], store: Store, on_line: Callable[[str], None]
) -> Mapping[LockedSource, Path]:
    """Return the sources of definitions: all of them, or, without a network, those already fetched."""
    wanted = [one for definition in definitions for one in sources_of(definition)]
    try:
        return store.sources(wanted, on_line)
    except MissingHereError:
        if any(one.is_commit and not store.has(one) for one in wanted):
            raise  # a script could not make the same tar of a commit
        return store.sources(filter(store.has, wanted), on_line)


def _write_fetch(files: Iterable[StagedFile], folder: Path, archives: Mapping[LockedSource, Path]) -> Path | None:
    """Write the script that fetches the sources without an archive; return its path, or None if there are none."""
    missing = [
        f"get {source.sha256} {shlex.quote(source.location)} {shlex.quote(path)}\n"
        for path, source in {file.path: file.origin for file in files}.items()
        if isinstance(source, LockedSource) and source not in archives
    ]
    if missing:
        _write(folder, FETCH, _HEAD + "".join(missing))
    return folder / FETCH if missing else None


def write_definitions(definitions: Sequence[Definition], folder: Path, archives: Mapping[LockedSource, Path]) -> None:
    """Write definition files and the files that they need, except sources without an archive, into `folder`.

    Raises BadInputError if the folder cannot be created.
    """
    for definition in definitions:
        _write(folder, f"{definition.name}.def", definition.text)
        write_files(definition.files, folder, archives)


def write_files(files: Iterable[StagedFile], folder: Path, archives: Mapping[LockedSource, Path]) -> None:
    """Write files of layers; raises as `write_definitions`."""
    for file in files:
        origin = archives.get(file.origin) if isinstance(file.origin, LockedSource) else file.origin
        if origin is None:
            continue
        above, _, name = file.path.rpartition("/")
        with open_regular(origin) as source, atomic_file(_folder(folder, above) / name) as copy:
            shutil.copyfileobj(source, copy)
            os.fchmod(copy.fileno(), 0o644)


def _write(folder: Path, path: str, text: str) -> None:
    above, _, name = path.rpartition("/")
    with atomic_file(_folder(folder, above) / name) as file:
        file.write(text.encode())


def _open_to_all(root: Path, context: DockerContext) -> None:
    """Give files that are copied into an image the permissions for there, whatever the user's umask."""
    scripts = {root.parent / path for path in context.scripts}
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path in scripts else 0o644)


def _folder(folder: Path, below: str = "") -> Path:
    try:
        return make_folder(folder, below)
    except OSError as error:
        raise BadInputError(f"cannot be created: {error.strerror}", where=str(error.filename or folder)) from error
