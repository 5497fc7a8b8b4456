"""The files of an image without an engine: one read-only root file system over a SIF, a squashfs file or a folder."""

from lumiimg.image.image import Image, ImageKind, open_image, open_stack, refuse_empty, refuse_not_runnable, stacked
from lumiimg.image.root import RootFileSystem
from lumiimg.image.tree import FileKind, FileStat, ImageError

__all__ = [
    "FileKind",
    "FileStat",
    "Image",
    "ImageError",
    "ImageKind",
    "RootFileSystem",
    "open_image",
    "open_stack",
    "refuse_empty",
    "refuse_not_runnable",
    "stacked",
]
