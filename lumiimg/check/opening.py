"""An image opened for a check: what is wrong with it, or inside it, names the image."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lumiimg.image import ImageError, open_image, refuse_empty

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.image import Image


@contextmanager
def opened(path: Path) -> Iterator[Image]:
    """Open an image; what is wrong inside it names the image.

    Raises ImageError also for a folder that holds no root file system.
    """
    try:
        with open_image(path) as image:
            refuse_empty(path, image)
            yield image
    except ImageError as error:
        if error.where is None or not error.where.startswith(str(path)):
            inside = f" (at {error.where})" if error.where else ""
            hint = error.hint or "fetch or build the image again"
            raise ImageError(f"{error.what}{inside}", where=str(path), hint=hint) from error
        raise
