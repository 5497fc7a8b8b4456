"""Whether a command that is proposed does something: it is planned as it would be when it is typed."""

from __future__ import annotations

import os
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.catalog.site_choice import site_to_make_for
from lumiimg.errors import LumiimgError
from lumiimg.resolve.request_options import RequestOptions, request_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.resolve.image_base import ForeignBase


def is_refused(words: Sequence[str]) -> bool:
    """Whether `lumiimg adapt` or `build` with these words refuses at once, or finds nothing to do.

    False where that is not known: the image is not here, or the request has packages of the user's own.
    """
    is_adapt = words[1] == "adapt"
    options = _options_in(["--base", *words[2:]] if is_adapt else words[2:])
    base = options.base or ""
    is_image = is_adapt or "/" in base
    # a name that cannot be printed no build takes: the command names the image at least
    if options.given("recipe", "requirements") or not base.isprintable() or (is_image and not Path(base).exists()):
        return False
    try:
        return _comes_to_nothing(options, _image(base) if is_image else None, is_adapt=is_adapt)
    except (LumiimgError, OSError):
        return True


def _options_in(words: Sequence[str]) -> RequestOptions:
    """Return what the options among words ask for; `-o` and others that are not of a request are left out."""
    said: dict[str, list[str]] = defaultdict(list)
    for option, value in zip(words[::2], words[1::2], strict=False):
        said[option].append(value)
    last = {option: values[-1] for option, values in said.items()}
    return RequestOptions(
        base=last.get("--base"),
        recipe=last.get("--recipe"),
        add=tuple(said["--add"]),
        requirements=(*said["-r"], *said["--requirements"]),
        arg=tuple(said["--arg"]),
        source=tuple(said["--source"]),
        layers=tuple(map(Path, said["--layers"])),
        fabric=last.get("--fabric", "auto"),
        site=last.get("--site"),
        host=Path(last["--host"]) if "--host" in last else None,
    )


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
def _comes_to_nothing(options: RequestOptions, image: _SeenImage | None, *, is_adapt: bool) -> bool:
    from lumiimg.catalog.catalogue import open_catalogue  # all of this is for an image that lacks something
    from lumiimg.host.snapshot_file import read_snapshot
    from lumiimg.resolve.decide import decide
    from lumiimg.resolve.network.mirrors import Mirrors
    from lumiimg.resolve.observed_node import site_seen
    from lumiimg.resolve.plan import Ground

    def chosen() -> str:
        node = read_snapshot(options.host).host if options.host else os.uname().nodename
        return site_to_make_for(os.environ, node, elsewhere=options.host is not None).name

    catalogue = open_catalogue(os.environ, list(options.layers))
    request = request_of(options, catalogue, chosen, ())
    site = site_seen(request.site, request.host, os.environ)
    images = {request.base: _read(image, str(request.site))} if image is not None else {}
    plan = decide(request, Ground(catalogue, Mirrors({}), os.environ.get("PATH"), site, images=images))
    return plan.refused or (is_adapt and plan.lock is not None and not plan.lock.layers)
