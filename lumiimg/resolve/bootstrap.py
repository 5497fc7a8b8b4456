"""Which of a base's bootstraps this machine can use."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import MissingHereError
from lumiimg.engine.process import which
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


def choose_bootstrap(base: Layer, mirrors: Mirrors, path: str | None) -> LockedBootstrap:
    """Return the first bootstrap of the base that this machine can use.

    Raises MissingHereError, which says what each one lacks.
    """
    lacking: list[str] = []
    for one in base.bootstraps:
        found = _bootstrap_here(one, base, mirrors, path)
        if isinstance(found, LockedBootstrap):
            return replace(found, because="; ".join([*lacking, f"so {found.because}"])) if lacking else found
        lacking.append(found)
    raise MissingHereError(f"{base.name} is not available here ({'; '.join(lacking)})")


def _bootstrap_here(one: Bootstrap, base: Layer, mirrors: Mirrors, path: str | None) -> LockedBootstrap | str:
    """Return a bootstrap as this machine can use it; else what it lacks."""
    if one.agent in {"docker", "oras"}:
        image = parse_reference(one.origin, mirrors)
        if one.agent == "oras":
            return LockedBootstrap(one.agent, one.origin, None, (), "a SIF from a registry", image)
        # The packages come by apt then; a mirror, where one is named, is for them.
        mirror_url = mirrors.named(one.mirror) if one.mirror else None
        return LockedBootstrap(one.agent, one.origin, mirror_url, base.include, "from a registry", image)
    if one.agent != "debootstrap":
        if not base.is_foreign and not Path(one.origin).is_file():
            return f"{one.origin} is not on this machine"
        return LockedBootstrap(one.agent, one.origin, None, (), "an image of yours")
    if debootstrap_at(path) is None:
        return "debootstrap: the program is not on PATH"
    name = one.mirror or "debian"
    named = mirrors.named(name)
    if (url := named or apt_mirror(name)) is None:
        return f"debootstrap: no mirror is known (--mirror {name}=URL)"
    where = "your setting" if named else "from this machine's apt sources"
    return LockedBootstrap(one.agent, one.origin, url, base.include, f"debootstrap is here, the mirror is {where}")


def debootstrap_at(path: str | None) -> str | None:
    """Return the program, on PATH or in /usr/sbin, which an ordinary user's PATH leaves out."""
    return which("debootstrap", f"{os.defpath if path is None else path}{_SBIN}")
