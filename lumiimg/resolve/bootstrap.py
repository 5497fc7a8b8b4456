"""Which of a base's bootstraps this machine can use."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.engine.process import which
from lumiimg.errors import MissingHereError
from lumiimg.fetch.mirrors import Mirrors, apt_mirror
from lumiimg.fetch.reference import ImageReference, parse_reference

if TYPE_CHECKING:
    from lumiimg.catalog.layers import Bootstrap, Layer


_SBIN = ":/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class LockedBootstrap:
    """A bootstrap with its addresses settled."""

    agent: str
    """Of the definition file: `docker`, `localimage`, `debootstrap`, …"""
    origin: str
    """Image or release, as the agent takes it."""
    mirror_url: str | None
    """Address of the mirror, for agents that want one; else null."""
    include: tuple[str, ...]
    because: str
    """Why it comes from there."""
    image: ImageReference | None = None
    """Where it is in a registry, or in the mirror of one."""
    sha256: str | None = None
    """Of a file that it starts from, where it was locked."""

    @property
    def is_open(self) -> bool:
        """Whether the reference may mean another image tomorrow: a tag whose digest was not looked up."""
        return self.image is not None and self.image.digest is None

    @property
    def is_mirrored(self) -> bool:
        """Whether the mirror of a registry is asked, in the place of the one that its name has."""
        return self.image is not None and parse_reference(self.origin, Mirrors({})).registry != self.image.registry


def choose_bootstrap(
    base: Layer, mirrors: Mirrors, path: str | None, locked: Bootstrap | None = None
) -> LockedBootstrap:
    """Return the first bootstrap of the base that this machine can use; of a lock, the one that was `locked`.

    Raises MissingHereError, which says what each one lacks.
    """
    lacking: list[str] = []
    for one in base.bootstraps:
        if locked is not None and (one.agent, one.origin) != (locked.agent, locked.origin):
            continue
        found = _bootstrap_here(one, base, mirrors, path)
        if isinstance(found, LockedBootstrap):
            because = "; ".join([*lacking, f"so {found.because}"]) if lacking else found.because
            return replace(found, because="by the lock" if locked else because)
        lacking.append(found)
    raise MissingHereError(f"{base.name} is not available here ({'; '.join(lacking)})")


def _bootstrap_here(one: Bootstrap, base: Layer, mirrors: Mirrors, path: str | None) -> LockedBootstrap | str:
    """Return a bootstrap as this machine can use it; else what it lacks."""
    if one.agent == "debootstrap":
        mirror = _debootstrap_mirror(one, mirrors)
        if debootstrap_at(path) is None:
            return "debootstrap: the program is not on PATH"
        if mirror is None:
            return f"debootstrap: no mirror is known (--mirror {one.mirror}=URL)"
        url, where = mirror
        return LockedBootstrap(one.agent, one.origin, url, base.include, f"debootstrap is here, the mirror is {where}")
    if one.agent == "docker":
        image = parse_reference(one.origin, mirrors)
        # The packages come by apt then; a mirror, where one is named, is for them.
        mirror_url = mirrors.named(one.mirror) if one.mirror else None
        return LockedBootstrap(one.agent, one.origin, mirror_url, base.include, "from a registry", image)
    if one.agent == "oras":
        image = parse_reference(one.origin, mirrors)
        return LockedBootstrap(one.agent, one.origin, None, (), "a SIF from a registry", image)
    if not base.is_foreign and not Path(one.origin).is_file():
        return f"{one.origin} is not on this machine"
    return LockedBootstrap(one.agent, one.origin, None, (), "an image of yours")


def _debootstrap_mirror(bootstrap: Bootstrap, mirrors: Mirrors) -> tuple[str, str] | None:
    name = bootstrap.mirror or "debian"
    named = mirrors.named(name)
    if named is not None:
        return named, "your setting"
    found = apt_mirror(name)
    return None if found is None else (found, "from this machine's apt sources")


def debootstrap_at(path: str | None) -> str | None:
    """Return the program, on PATH or in /usr/sbin, which an ordinary user's PATH leaves out."""
    return which("debootstrap", f"{os.defpath if path is None else path}{_SBIN}")
