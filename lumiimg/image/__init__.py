"""The files of an image, without an engine: one read-only root over a SIF, a squashfs, OCI layers or a folder.

`sif` reads and writes the SIF structures around a file system, `squashfs.format` defines the records of a squashfs.
"""

from lumiimg.image.host_files import FolderNode, FolderTree
from lumiimg.image.image import Image, ImageKind, open_image, open_squashfs, open_stack, refuse_empty, require_room
from lumiimg.image.mounts import Mount
from lumiimg.image.root import Obstacle, RootFileSystem
from lumiimg.image.shell import DEFAULT_PATH
from lumiimg.image.tree import READ, SEARCH, DirectoryEntry, FileKind, FileStat, ImageError, NoImageError

__all__ = [
    "DEFAULT_PATH",
    "READ",
    "SEARCH",
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
    "Obstacle",
    "RootFileSystem",
    "open_image",
    "open_squashfs",
    "open_stack",
    "refuse_empty",
    "require_room",
]
