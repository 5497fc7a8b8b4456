"""Which of a base's bootstraps this machine can use."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.errors import MissingHereError
from lumiimg.resolve.mirrors import Mirrors, apt_mirror

if TYPE_CHECKING:
    from lumiimg.catalog.layers import Bootstrap, Layer

DOCKER_HUB = "docker.io"


@dataclass(frozen=True, slots=True)
class LockedBootstrap:
    """A bootstrap with its addresses settled."""

    agent: str
    origin: str
    mirror_url: str | None
    include: tuple[str, ...]
    because: str
    """Why this one, for the plan."""
    plain_http: bool = False
    """Whether the registry is to be talked to without TLS, because the user's mirror says `http://`."""


def choose_bootstrap(base: Layer, mirrors: Mirrors, path: str | None) -> LockedBootstrap:
    """Return the first bootstrap of the base that this machine can use.

    Raises MissingHereError, which says what each one lacks.
    """
    lacking = []
    for bootstrap in base.bootstraps:
        match bootstrap.agent:
            case "debootstrap":
                mirror = _debootstrap_mirror(bootstrap, mirrors)
                if shutil.which("debootstrap", path=_with_sbin(path)) is None:
                    lacking.append("debootstrap: the program is not on PATH")
                elif mirror is None:
                    lacking.append(f"debootstrap: no mirror is known (--mirror {bootstrap.mirror}=URL)")
                else:
                    url, where = mirror
                    because = f"debootstrap is here, the mirror is {where}"
                    return LockedBootstrap("debootstrap", bootstrap.origin, url, base.include, because)
            case _:
                image, plain_http = _image_reference(bootstrap.origin, mirrors)
                # The packages come by apt then; a mirror, where one is named, is for them.
                mirror_url = mirrors.named(bootstrap.mirror) if bootstrap.mirror else None
                because = "; ".join([*lacking, "so from a registry"]) if lacking else "from a registry"
                return LockedBootstrap("docker", image, mirror_url, base.include, because, plain_http)
    raise MissingHereError(f"{base.name} cannot be had here ({'; '.join(lacking)})")


def _debootstrap_mirror(bootstrap: Bootstrap, mirrors: Mirrors) -> tuple[str, str] | None:
    name = bootstrap.mirror or "debian"
    named = mirrors.named(name)
    if named is not None:
        return named, "your setting"
    found = apt_mirror(name)
    return None if found is None else (found, "from this machine's apt sources")


def _image_reference(reference: str, mirrors: Mirrors) -> tuple[str, bool]:
    """Return the reference at the mirror of its registry, and whether that is plain http."""
    registry, slash, rest = reference.partition("/")
    if not slash or not ({".", ":"} & set(registry) or registry == "localhost"):
        registry, rest = DOCKER_HUB, reference if slash else f"library/{reference}"
    target = mirrors.table.get(registry)
    if target is None:
        return f"{registry}/{rest}", False
    host = target.removeprefix("http://").removeprefix("https://").rstrip("/")
    return f"{host}/{rest}", target.startswith("http://")


def _with_sbin(path: str | None) -> str:
    # debootstrap lies in /usr/sbin, which an ordinary user's PATH leaves out; the engine calls it from there.
    return f"{path or ''}:/usr/sbin:/sbin"
