"""Which of a base's bootstraps this machine can use."""

from __future__ import annotations

import os
from dataclasses import dataclass
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


def choose_bootstrap(base: Layer, mirrors: Mirrors, path: str | None) -> LockedBootstrap:
    """Return the first bootstrap of the base that this machine can use.

    Raises MissingHereError, which says what each one lacks.
    """
    lacking = []
    for bootstrap in base.bootstraps:
        match bootstrap.agent:
            case "debootstrap":
                mirror = _debootstrap_mirror(bootstrap, mirrors)
                if debootstrap_at(path) is None:
                    lacking.append("debootstrap: the program is not on PATH")
                elif mirror is None:
                    lacking.append(f"debootstrap: no mirror is known (--mirror {bootstrap.mirror}=URL)")
                else:
                    url, where = mirror
                    because = f"debootstrap is here, the mirror is {where}"
                    return LockedBootstrap("debootstrap", bootstrap.origin, url, base.include, because)
            case "docker":
                image = parse_reference(bootstrap.origin, mirrors)
                # The packages come by apt then; a mirror, where one is named, is for them.
                mirror_url = mirrors.named(bootstrap.mirror) if bootstrap.mirror else None
                because = "; ".join([*lacking, "so from a registry"]) if lacking else "from a registry"
                return LockedBootstrap("docker", bootstrap.origin, mirror_url, base.include, because, image)
            case "oras":
                image = parse_reference(bootstrap.origin, mirrors)
                return LockedBootstrap("oras", bootstrap.origin, None, (), "a SIF from a registry", image)
            case "localimage" if not base.is_foreign and not Path(bootstrap.origin).is_file():
                lacking.append(f"{bootstrap.origin} is not on this machine")
            case agent:
                return LockedBootstrap(agent, bootstrap.origin, None, (), "an image of yours")
    raise MissingHereError(f"{base.name} is not available here ({'; '.join(lacking)})")


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
