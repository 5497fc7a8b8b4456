"""Whether a command that is proposed does something: it is planned as it would be when it is typed."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.catalog.site_choice import site_to_make_for
from lumiimg.errors import LumiimgError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.resolve.image_base import ForeignBase

_UNJUDGED = frozenset({"--recipe", "--requirements", "-r"})


def is_refused(words: Sequence[str]) -> bool:
    """Whether `lumiimg adapt` or `build` with these words refuses at once, or finds nothing to do.

    False where that is not known: the image is not here, or the request has packages of the user's own.
    """
    is_adapt = words[1] == "adapt"
    options = ["--base", *words[2:]] if is_adapt else words[2:]
    pairs = tuple(zip(options[::2], options[1::2], strict=False))
    named = dict(pairs)
    base = named.get("--base", "")
    is_image = is_adapt or "/" in base
    # a name that cannot be printed no build takes: the command names the image at least
    if _UNJUDGED & named.keys() or not base.isprintable() or (is_image and not Path(base).exists()):
        return False
    try:
        return _comes_to_nothing(pairs, _image(base) if is_image else None, is_adapt=is_adapt)
    except (LumiimgError, OSError):
        return True


class _SeenImage(NamedTuple):
    """An image as it was when it was looked at."""

    base: str
    folder: str
    inode: int
    changed_ns: int


def _image(base: str) -> _SeenImage:
    seen = Path(base).stat()
    return _SeenImage(base, str(Path.cwd()), seen.st_ino, seen.st_mtime_ns)


@cache
def _read(image: _SeenImage, site: str) -> ForeignBase:
    """Return what an image has, once: to read it takes as long as to check it."""
    from lumiimg.catalog.sites import find_site
    from lumiimg.resolve.image_base import read_foreign

    return read_foreign(image.base, lambda _: Path(image.base), find_site(site, os.environ))


@cache
def _comes_to_nothing(pairs: tuple[tuple[str, str], ...], image: _SeenImage | None, *, is_adapt: bool) -> bool:
    from lumiimg.catalog.catalogue import open_catalogue  # all of this is for an image that lacks something
    from lumiimg.catalog.sites import find_site
    from lumiimg.fabric.path import Fabric
    from lumiimg.host.snapshot_file import read_snapshot
    from lumiimg.resolve.decide import decide
    from lumiimg.resolve.network.mirrors import Mirrors
    from lumiimg.resolve.observed_node import seen
    from lumiimg.resolve.plan import Ground
    from lumiimg.resolve.request import Request

    def every(option: str) -> list[str]:
        return [value for name, value in pairs if name == option]

    def split(option: str) -> list[tuple[str, str]]:
        return [(name, value) for name, _, value in (text.partition("=") for text in every(option))]

    named = dict(pairs)
    base, host = named["--base"], named.get("--host")
    snapshot = read_snapshot(Path(host)) if host is not None else None
    node = snapshot.host if snapshot is not None else os.uname().nodename
    chosen = named.get("--site") or site_to_make_for(os.environ, node, elsewhere=snapshot is not None).name
    site = find_site(chosen, os.environ)
    if snapshot is not None:
        site = seen(site, snapshot, str(host))
    request = Request(
        base=base,
        add=tuple(every("--add")),
        arguments={(name.rpartition(".")[0], name.rpartition(".")[2]): value for name, value in split("--arg")},
        fabric=Fabric(named["--fabric"]) if named.get("--fabric", "auto") != "auto" else None,
        sources=dict(split("--source")),
        site=chosen,
        host=Path(host) if host is not None else None,
        layers=tuple(map(Path, every("--layers"))),
    )
    images = {base: _read(image, chosen)} if image is not None else {}
    catalogue = open_catalogue(os.environ, list(request.layers))
    plan = decide(request, Ground(catalogue, Mirrors({}), os.environ.get("PATH"), site, images=images))
    return plan.refused or (is_adapt and plan.lock is not None and not plan.lock.layers)
