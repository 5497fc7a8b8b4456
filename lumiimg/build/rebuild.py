"""An image built again from itself: its plan, and the layers that it carries, which may be a stranger's.

Nothing of them runs, or is read, out here: they are data until `build --locked` and a container.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from msgspec import structs

from lumiimg.build.provenance import FOLDER, LAYERS, read_plan
from lumiimg.catalog.catalogue import Catalogue
from lumiimg.core.decode import FILE_LIMIT_BYTES
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.image import FileKind, RootFileSystem, open_image
from lumiimg.resolve.base_digest import digest_of_file
from lumiimg.resolve.image_base import LOCAL_AGENTS
from lumiimg.resolve.lock import STAGED_FILE, Lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.fetch.store import Store
    from lumiimg.resolve.lock_file import LockFile

_FILES_LIMIT_BYTES = 512 << 20
"""Of all files of all layers."""
_MAX_FILES = 5_000
_CARRIED = f"/{FOLDER}/{LAYERS}"


def read_carried(image: Path, scratch: Path) -> tuple[LockFile, Catalogue]:
    """Return the plan of an image, and its layers, whose files are put into `scratch`; other files stay where they are.

    Any file may say so: what is there is checked by `lock_of`, and its scripts are code of whoever made the image.

    Raises BadInputError for an image that does not carry them, or carries more than lumiimg writes.
    """
    with open_image(image) as opened:
        plan = read_plan(image)
        if plan is None:
            hint = "only images built by lumiimg carry it; layers added by other tools are not recorded"
            raise BadInputError("does not say how it was built", where=str(image), hint=hint)
        left_bytes = _FILES_LIMIT_BYTES
        for number, entry in enumerate(opened.root.walk(_CARRIED) if opened.root.is_dir(_CARRIED) else ()):
            if number >= _MAX_FILES:
                raise BadInputError(f"holds more than {_MAX_FILES} files and folders", where=_CARRIED)
            place = PurePosixPath(entry.path.removeprefix(f"{_CARRIED}/"))  # elsewhere, if a link led there
            is_plain = len(place.parts) == 3 and all(map(STAGED_FILE.fullmatch, place.parts))
            if entry.kind is FileKind.FILE and is_plain:
                limit_bytes = FILE_LIMIT_BYTES if place.name == "layer.toml" else left_bytes
                left_bytes -= _copy(opened.root, entry.path, scratch / place, min(limit_bytes, left_bytes))
    return plan, Catalogue(tuple(sorted(scratch.glob("*"))), ())


def _copy(root: RootFileSystem, path: str, target: Path, limit_bytes: int) -> int:
    """Write a file of an image to a folder here; return its size."""
    try:
        data = root.read_bytes(path, limit_bytes)
    except OSError as error:
        raise BadInputError(f"cannot be read in the image: {error.strerror}", where=path) from error
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror}", where=str(target)) from error
    return len(data)


def with_base(plan: LockFile, given: Path | None, image: Path, cache: Path, tell: Callable[[str], None]) -> LockFile:
    """Return the plan of an image on the file or folder that a person gave for its base.

    Raises BadInputError where one is given and none is needed, or the other way round, or it is another file.
    """
    base = plan.base
    if base.image is None or base.agent not in LOCAL_AGENTS:
        if given is not None:
            raise BadInputError(f"--base: {image} was not built on a file", hint="leave it out")
        return plan
    wanted, hint = base.image.sha256, "name what the image was built on: --base FILE"
    if given is None:
        what = f"sha256 {wanted}" if wanted else "its digest is not known"
        raise BadInputError(f"was built on {base.origin} ({what}), which is not in it", where=str(image), hint=hint)
    if not given.is_file() and not given.is_dir():
        raise BadInputError("is not a file or folder", where=str(given), hint=hint)
    actual = digest_of_file(given, cache, tell)
    if wanted is None:
        tell(f"whether {given} has changed since is not known: the image records no digest of its base")
    elif actual != wanted:
        found = f"its sha256 is {actual}" if actual else "it is a folder"
        raise BadInputError(f"is not the base of {image}: {found}, not {wanted}", where=str(given))
    origin = str(given.absolute())
    base = structs.replace(base, origin=origin, image=structs.replace(base.image, sha256=actual))
    return structs.replace(plan, base=base, request=structs.replace(plan.request, base=origin))


def refuse_files(lock: Lock, store: Store, carried: Path) -> None:
    """Raise BadInputError for a file of the machine that built an image, which `carried` layers too may name.

    A source counts where it is kept here already.
    """
    if lock.base.layer.folder.is_relative_to(carried) and lock.bootstrap.agent in LOCAL_AGENTS:
        hint = "put that layer into a folder of yours: --layers DIR"
        raise BadInputError(f"its layer {lock.base.name} names the file {lock.bootstrap.origin[:200]}", hint=hint)
    for source in (one for layer in lock.stack for one in layer.sources):
        if source.is_local and not store.has(source):
            raise BadInputError(
                f"{source.name} was {source.location[:200]} of the machine that built the image "
                f"(sha256 {source.sha256})",
                hint="the image does not carry it; build it again by `lumiimg build` with that --source",
            )
