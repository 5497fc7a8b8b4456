"""Bases that are files or folders of this machine, and what runs on it to make one: no image is trusted with either."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lumiimg.build.keys import stamp
from lumiimg.catalog.layers import SHA256
from lumiimg.definition.writer import with_origin
from lumiimg.errors import BadInputError, LumiimgError
from lumiimg.fetch.mirrors import Mirrors, apt_mirror
from lumiimg.files import file_sha256, read_beginning, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumiimg.definition.definition import Definition
    from lumiimg.resolve.lock import Lock


def base_digest(origin: Path, cache: Path, tell: Callable[[str], None]) -> str | None:
    """Return the sha256 of a file, None of a folder. A file is read once, and again when it was touched.

    `tell` is called when it is read. Raises BadInputError if it cannot be, or is changed meanwhile.
    """
    if not origin.is_file():
        return None
    seen = stamp(origin)
    note = cache / "bases" / seen
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = read_beginning(note, 65, follow=False).decode("ascii")
        if SHA256.fullmatch(known):
            return known
    tell(f"reading {origin}, for its digest")
    digest = file_sha256(origin)
    if stamp(origin) != seen:
        raise BadInputError("was changed while it was read", where=str(origin))
    with contextlib.suppress(OSError, LumiimgError):  # it is read again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, digest)
    return digest


def lock_base(lock: Lock, cache: Path, tell: Callable[[str], None]) -> Lock:
    """Return the lock with the digest of a base that is a file. Raises as `base_digest`."""
    bootstrap = lock.bootstrap
    if not lock.base.layer.is_foreign or bootstrap.image is not None or bootstrap.sha256:
        return lock
    return replace(lock, bootstrap=replace(bootstrap, sha256=base_digest(Path(bootstrap.origin), cache, tell)))


def give_base(
    chain: Sequence[Definition], given: Path | None, image: Path, cache: Path, tell: Callable[[str], None]
) -> tuple[Definition, ...]:
    """Return the definitions of an image, the first on the file or folder that a person gave for its base.

    Raises BadInputError where one is given and none is needed, or the other way round, or it is another file.
    """
    first, *others = chain
    if first.origin is None:
        if given is not None:
            raise BadInputError(f"--base: {image} was not built on a file", hint="leave it out")
        return tuple(chain)
    wanted = first.origin_sha256
    if given is None:
        what = f"sha256 {wanted}" if wanted else "its digest is not known"
        raise BadInputError(
            f"was built on {first.origin} ({what}), which is not in it",
            where=str(image),
            hint="name that file or folder: --base FILE",
        )
    if not given.is_file() and not given.is_dir():
        raise BadInputError(
            "is not a file or folder", where=str(given), hint="--base names what the image was built on"
        )
    actual = base_digest(given, cache, tell)
    if wanted is None:
        tell(f"whether {given} has changed since is not known: the image records no digest of its base")
    elif actual != wanted:
        found = f"its sha256 is {actual}" if actual else "it is a folder"
        raise BadInputError(f"is not the base of {image}: {found}, not {wanted}", where=str(given))
    return (with_origin(first, given.absolute(), actual), *others)


def check_mirror(chain: Sequence[Definition], mirrors: Mirrors) -> None:
    """Raise BadInputError for a base by debootstrap from an address that nobody here has named.

    debootstrap runs on this machine what the packages bring along, and checks signatures only with keys that are here.
    """
    mirror = chain[0].sections.header.mirror_url
    if mirror is None:
        return
    archive = urlsplit(mirror).path.rstrip("/").rpartition("/")[2] or "debian"
    if mirror not in {*mirrors.table.values(), apt_mirror(archive)}:
        raise BadInputError(
            f"its base is from {mirror}, which is not a mirror of this machine",
            where=f"{chain[0].name}.def",
            hint=f"if you trust it: --mirror {archive}={mirror}",
        )
