"""The digest of a base, noted in the cache: of a file until it is touched, of a tag until a build is to be fresh."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.layers import SHA256
from lumiimg.core.errors import BadInputError, LumiimgError, RefusedError
from lumiimg.core.files import file_sha256, read_beginning, write_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.fetch.reference import ImageReference
    from lumiimg.resolve.lock import Lock

_NOTES = "bases"


def digest_of_file(origin: Path, cache: Path, tell: Callable[[str], None]) -> str | None:
    """Return the sha256 of a file, None of a folder. A file is read once, and again when it was touched.

    `tell` is called when it is read. Raises BadInputError if it cannot be, or is changed meanwhile.
    """
    if not origin.is_file():
        return None
    seen = stamp(origin)
    if (known := _noted(cache, seen)) is not None:
        return known
    tell(f"reading {origin}, for its digest")
    digest = file_sha256(origin)
    if stamp(origin) != seen:
        raise BadInputError("was changed while it was read", where=str(origin))
    _note(cache, seen, digest)
    return digest


def refuse_other_base(lock: Lock, cache: Path, tell: Callable[[str], None]) -> None:
    """Raise RefusedError where the base is another file than was locked; of a folder there is no digest."""
    origin, sha256 = lock.bootstrap.origin, lock.bootstrap.sha256
    if sha256 and (actual := digest_of_file(Path(origin), cache, tell)) != sha256:
        found = f"its sha256 is {actual[:12]}…" if actual else "there is no such file"
        raise RefusedError(
            f"the base {origin} is not the one that was locked: {found}, not {sha256[:12]}…",
            hint="if the new one is meant, name the whole request: lumiimg lock --base … --add …",
        )


def known_digest(image: ImageReference, cache: Path) -> str | None:
    """Return the digest that an image of a registry had when it was last asked for; None where it never was."""
    known = _noted(cache, _name_of(image))
    return known and f"sha256:{known}"


def note_digest(image: ImageReference, digest: str, cache: Path) -> None:
    """Note the digest of an image of a registry: the next build is on the same one, without a question to a server."""
    _note(cache, _name_of(image), digest.removeprefix("sha256:"))


def _name_of(image: ImageReference) -> str:
    return hashlib.sha256(f"{image} {image.insecure}".encode()).hexdigest()


def _noted(cache: Path, name: str) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = read_beginning(cache / _NOTES / name, 65, follow=False).decode("ascii")
        if SHA256.fullmatch(known):
            return known
    return None


def _note(cache: Path, name: str, digest: str) -> None:
    note = cache / _NOTES / name
    with contextlib.suppress(OSError, LumiimgError):  # it is looked up again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, digest)


def stamp(origin: Path) -> str:
    """Return what shows whether a file, or anything in a folder, was touched since: the kernel's own time of change.

    Raises BadInputError if it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        below = ((folder, name) for folder, folders, files in os.walk(origin) for name in (*folders, *files))
        for path in (str(origin), *sorted(f"{folder}/{name}" for folder, name in below)):
            seen = os.lstat(path) if path != str(origin) else origin.stat()
            line = f"{path.removeprefix(str(origin))}\0{seen.st_ino} {seen.st_mode} {seen.st_size}"
            digest.update(f"{line} {seen.st_mtime_ns} {seen.st_ctime_ns}\n".encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(error.filename)) from error
    return digest.hexdigest()
