"""The files of an image without an engine: one read-only root file system over a SIF, a squashfs file or a folder."""

from lumiimg.image.folder import FolderNode, FolderTree
from lumiimg.image.image import (
    Image,
    ImageKind,
    open_image,
    open_squashfs,
    open_stack,
    refuse_empty,
    refuse_not_runnable,
)
from lumiimg.image.mounts import Mount
from lumiimg.image.overlay import OF_OVERLAYS, OverlayNode, OverlayTree
from lumiimg.image.root import RootFileSystem
from lumiimg.image.tree import Device, DirectoryEntry, FileKind, FileStat, ImageError, NoImageError

__all__ = [
    "OF_OVERLAYS",
    "Device",
    "DirectoryEntry",
    "FileKind",
    "FileStat",
    "FolderNode",
    "FolderTree",
    "Image",
    "ImageError",
    "ImageKind",
    "Mount",
    "NoImageError",
    "OverlayNode",
    "OverlayTree",
    "RootFileSystem",
    "open_image",
    "open_squashfs",
    "open_stack",
    "refuse_empty",
    "refuse_not_runnable",
]
