"""An image opened for a check, as an engine shows it: what is wrong with it, or inside it, names the image."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lumiimg.catalog.settings import user_cache
from lumiimg.host.engine_mounts import as_run
from lumiimg.image import Image, ImageError, open_image, refuse_empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lumiimg.host.snapshot import Snapshot


@contextmanager
def opened(
    path: Path, environment: Mapping[str, str] | None = None, snapshot: Snapshot | None = None
) -> Iterator[Image]:
    """Open an image, as the engine of a host shows it to a user; what is wrong inside it names the image.

    Raises ImageError also for a folder that holds no root file system.
    """
    try:
        with open_image(path, user_cache) as image:
            refuse_empty(path, image)
            yield as_run(image, environment or {}, snapshot)
    except ImageError as error:
        if error.where is None or not error.where.startswith(str(path)):
            inside = f" (at {error.where})" if error.where else ""
            hint = error.hint or "fetch or build the image again"
            raise ImageError(f"{error.what}{inside}", where=str(path), hint=hint) from error
        raise
