"""Checks of images without the command line."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.check.context import ImageInContext, open_for_check
from lumiimg.check.pipeline import check_image
from lumiimg.core.findings import Level
from lumiimg.image import FolderTree, Image, ImageKind, RootFileSystem
from lumiimg.image.description import SingularityDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.check.pipeline import CheckReport
    from lumiimg.host.snapshot import Snapshot


def checked(
    path: Path, environment: Mapping[str, str] | None = None, snapshot: Snapshot | None = None, **more: Any
) -> CheckReport:
    """Return the report of a static check of an image."""
    with open_for_check(path, environment, snapshot, **more) as context:
        return check_image(context, Level.STATIC)


def unread(path: Path, **more: Any) -> ImageInContext:
    """Return the context of an image that nothing has been read from."""
    root = RootFileSystem(FolderTree(Path(__file__).parent))
    image = Image(ImageKind.FOLDER, root, SingularityDescription(root), ExitStack())
    return ImageInContext(path, image, image, {}, **more)
