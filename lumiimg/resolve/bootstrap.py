"""Where a base comes from on this machine, and its digest.

A digest is recorded in the cache: of a file until it is modified, of a tag until a fresh build is requested.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.layers import SHA256
from lumiimg.core.errors import BadInputError, LumiimgError, MissingHereError, RefusedError
from lumiimg.core.files import file_sha256, read_beginning, write_text
from lumiimg.engine.process import which
from lumiimg.fetch.mirrors import Mirrors, apt_mirror
from lumiimg.fetch.registry import ImageReference, parse_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.catalog.layers import Bootstrap, Layer

_SBIN = ":/usr/sbin:/sbin"
_NOTES, _SIZE = "bases", ".size"


@dataclass(frozen=True, slots=True)
class LockedBootstrap:
    """A bootstrap with its addresses resolved."""

    agent: str
    """Bootstrap agent of the definition file: `docker`, `localimage`, `debootstrap`, …"""
    origin: str
    """Image or release, in the form that the agent reads."""
    because: str
    """Why this source was chosen."""
    mirror_url: str | None = None
    """Address of the mirror, for agents that need one."""
    include: tuple[str, ...] = ()
    image: ImageReference | None = None
    """Its location in a registry, or in the mirror of one."""
    sha256: str | None = None
    """Digest of the file that it starts from, if that was locked."""

    @property
    def is_open(self) -> bool:
        """Whether the reference may mean another image tomorrow: a tag whose digest was not looked up."""
        return self.image is not None and self.image.digest is None

    @property
    def is_mirrored(self) -> bool:
        """Whether a mirror is used in place of the registry in its name."""
        return self.image is not None and parse_reference(self.origin, Mirrors({})).registry != self.image.registry

    def refuse_other_file(self, cache: Path, on_notice: Callable[[str], None]) -> None:
        """Raise RefusedError if it would start from another file than was locked; a folder has no digest."""
        if self.sha256 and (actual := digest_of_file(Path(self.origin), cache, on_notice)) != self.sha256:
            found = f"its sha256 is {actual[:12]}…" if actual else "there is no such file"
            raise RefusedError(
                f"the base {self.origin} is not the one that was locked: {found}, not {self.sha256[:12]}…",
                hint="to use the new one, give the whole request, as for `lumiimg build`",
            )


def choose_bootstrap(base: Layer, mirrors: Mirrors, path: str | None) -> LockedBootstrap:
    """Return the first bootstrap of the base that this machine can use. Raises MissingHereError."""
    lacking: list[str] = []
    for one in base.bootstraps:
        found = _bootstrap_here(one, base, mirrors, path)
        if isinstance(found, LockedBootstrap):
            return replace(found, because="; ".join([*lacking, f"so {found.because}"])) if lacking else found
        lacking.append(found)
    raise MissingHereError(f"{base.name} is not available here ({'; '.join(lacking)})")


def in_registry(base: Layer, mirrors: Mirrors) -> LockedBootstrap | None:
    """Return the first bootstrap of the base that is an image in a registry; None if there is none."""
    found = (_bootstrap_here(one, base, mirrors, None) for one in base.bootstraps if one.agent == "docker")
    return next((one for one in found if isinstance(one, LockedBootstrap)), None)


def _bootstrap_here(one: Bootstrap, base: Layer, mirrors: Mirrors, path: str | None) -> LockedBootstrap | str:
    """Return a bootstrap that this machine can use; else what the machine lacks for it."""
    if one.agent == "docker":
        # Packages then come through apt; if a mirror is named, it is for them.
        mirror_url, image = mirrors.named(one.mirror) if one.mirror else None, parse_reference(one.origin, mirrors)
        return LockedBootstrap(one.agent, one.origin, "from a registry", mirror_url, base.include, image)
    if one.agent != "debootstrap":
        if not base.is_foreign and not Path(one.origin).is_file():
            return f"{one.origin} is not on this machine"
        return LockedBootstrap(one.agent, one.origin, "an image of yours")
    if debootstrap_at(path) is None:
        return "debootstrap: the program is not on PATH"
    name = one.mirror or "debian"
    named = mirrors.named(name)
    if (url := named or apt_mirror(name)) is None:
        return f"debootstrap: no mirror is known (--mirror {name}=URL)"
    where = "the one you named" if named else "from this machine's apt sources"
    because = f"debootstrap is available, the mirror is {where}"
    return LockedBootstrap(one.agent, one.origin, because, url, base.include)


def debootstrap_at(path: str | None) -> str | None:
    """Return the path of debootstrap: on PATH, or in /usr/sbin, which is not on an ordinary user's PATH."""
    return which("debootstrap", f"{os.defpath if path is None else path}{_SBIN}")


# -- digests --


def digest_of_file(origin: Path, cache: Path, on_notice: Callable[[str], None]) -> str | None:
    """Return the sha256 of a file, None for a folder. A file is read again only after it was modified.

    `on_notice` is called before it is read. Raises BadInputError if it cannot be read, or changes meanwhile.
    """
    if not origin.is_file():
        return None
    seen = file_stamp(origin)
    if (known := _noted(cache, seen)) is not None:
        return known
    on_notice(f"reading {origin} to compute its digest")
    digest = file_sha256(origin)
    if file_stamp(origin) != seen:
        raise BadInputError("was changed while it was read", where=str(origin))
    _note(cache, seen, digest)
    return digest


def known_digest(image: ImageReference, cache: Path) -> str | None:
    """Return the digest that an image of a registry had when last looked up; None if it never was."""
    known = _noted(cache, _name_of(image))
    return known and f"sha256:{known}"


def note_digest(image: ImageReference, digest: str, cache: Path, size_bytes: int) -> None:
    """Record the digest of an image of a registry: the next build uses the same image without asking a server.

    `size_bytes` is its download size, by its manifest.
    """
    _note(cache, _name_of(image), digest.removeprefix("sha256:"))
    _note(cache, _name_of(replace(image, digest=digest)) + _SIZE, f"{size_bytes}")


def known_size(image: ImageReference, cache: Path) -> int | None:
    """Return the download size of an image of a registry; None if its manifest was never fetched."""
    digest = image.digest or known_digest(image, cache)
    with contextlib.suppress(OSError, ValueError):
        note = cache / _NOTES / f"{_name_of(replace(image, digest=digest))}{_SIZE}"
        return max(0, int(read_beginning(note, 20, follow=False)))
    return None


def _name_of(image: ImageReference) -> str:
    return hashlib.sha256(f"{image} {image.insecure}".encode()).hexdigest()


def _noted(cache: Path, name: str) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = read_beginning(cache / _NOTES / name, 65, follow=False).decode("ascii")
        if SHA256.fullmatch(known):
            return known
    return None


def _note(cache: Path, name: str, text: str) -> None:
    note = cache / _NOTES / name
    with contextlib.suppress(OSError, LumiimgError):  # it is looked up again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, text)


def file_stamp(origin: Path) -> str:
    """Return a value that changes when a file, or anything in a folder, is modified. Raises BadInputError."""
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
