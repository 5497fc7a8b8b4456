"""An image, opened by its content: a SIF, squashfs file, folder, OCI layout, or OCI or Docker archive."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack, closing, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from lumiimg.core.errors import MissingHereError
from lumiimg.core.files import is_named_as_data
from lumiimg.core.text import as_operand, shell_quote, size
from lumiimg.image.description import SingularityDescription
from lumiimg.image.host_files import FolderTree, HostFile
from lumiimg.image.oci import tar
from lumiimg.image.oci.layers import open_layers
from lumiimg.image.oci.layout import is_oci_layout, read_docker_archive, read_oci_layout
from lumiimg.image.oci.tree import LayeredTree
from lumiimg.image.overlay import OverlayTree
from lumiimg.image.root import RootFileSystem
from lumiimg.image.shell import DEFAULT_PATH
from lumiimg.image.sif import Sif, is_sif, parse_sif, squashfs_ranges
from lumiimg.image.squashfs.format import MAGIC as SQUASHFS_MAGIC
from lumiimg.image.squashfs.tree import SquashfsTree
from lumiimg.image.tree import FileKind, ImageError, NoImageError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lumiimg.image.mounts import Mount
    from lumiimg.image.oci.layers import Cache
    from lumiimg.image.oci.layout import Config

# A few megabytes can unpack to terabytes of zeros. Images of real software are packed to a half or a fifth; the first
# gigabyte cannot fill a disk.
_ALWAYS_ALLOWED_BYTES = 1 << 30
_MAX_RATIO = 100
_NAME_BYTES = 4096
"""Minimum disk space of each name: millions of empty files fill a disk, too."""
_SPARE_BYTES = 256 << 20
"""Space left free on the disk."""
_MAX_METADATA_BYTES = 16 << 20
_MOUNTED_BY_ENGINES = ("/proc", "/sys", "/dev")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}
"""Compression formats by their first two bytes."""


class ImageKind(StrEnum):
    """Format of an image."""

    SIF = "sif"
    SQUASHFS = "squashfs"
    FOLDER = "folder"
    OCI_LAYOUT = "oci-layout"
    OCI_ARCHIVE = "oci-archive"
    DOCKER_ARCHIVE = "docker-archive"


class Image:
    """One open image, usable as a context manager."""

    def __init__(
        self,
        kind: ImageKind,
        root: RootFileSystem,
        description: SingularityDescription | Config,
        resources: ExitStack,
    ) -> None:
        """Take the parts of an image; it takes over `resources`, the files that it is read from, and closes them."""
        self.kind = kind
        self.root = root
        """Files of the image with the mounts over them, with the rights of the user that it is opened for."""
        self.unmounted = root
        """All files of the image itself."""
        self.mounts: tuple[Mount, ...] = ()
        """Certain and possible mounts over the files; `root` shows only the certain ones."""
        self.description = description
        """Metadata of the image."""
        self._first = ""
        self._variables: Mapping[str, str | None] | None = None
        self._resources = resources.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the image; nothing can be read from it afterwards."""
        self._resources.close()

    @property
    def layers(self) -> tuple[RootFileSystem, ...]:
        """File systems that the image consists of, the lowest first."""
        tree = self.unmounted.tree
        return tuple(map(RootFileSystem, tree.layers)) if isinstance(tree, OverlayTree) else (self.unmounted,)

    def mounted(self, mounts: Iterable[Mount], *, first: str = "") -> Image:
        """Return this image with other trees mounted over it, and `first` in front of its PATH.

        The original image still owns the open file. Raises OSError for a target at which no engine mounts.
        """
        over = tuple(mounts)
        return self._with(self.root.mounted(mount for mount in over if mount.is_sure), over, first)

    def for_users(self) -> Image:
        """Return this image as non-root users see it (`RootFileSystem.for_users`); the original owns the open file."""
        return self._with(self.root.for_users())

    def _with(self, root: RootFileSystem, mounts: tuple[Mount, ...] = (), first: str = "") -> Image:
        image = Image(self.kind, root, self.description, ExitStack())
        image.unmounted, image.mounts, image._first = self.unmounted, (*self.mounts, *mounts), first or self._first
        image._variables = self._variables
        return image

    def with_variables(self, variables: Mapping[str, str | None]) -> Image:
        """Return this image with the variables that a process in it had, None for those it lacked; none is in doubt."""
        image = self._with(self.root)
        image._variables = variables  # noqa: SLF001
        return image

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the environment scripts of the image export, or that its OCI config sets."""
        environment, seen = self.description.environment, self._variables or {}
        if self._first:
            environment = environment | {"PATH": f"{self._first}:{environment.get('PATH', DEFAULT_PATH)}"}
        inherited = {name: value for name, value in environment.items() if name not in seen}
        return inherited | {name: value for name, value in seen.items() if value is not None}

    @property
    def doubts(self) -> Mapping[str, str]:
        """Variables whose value only a shell can know, each with the statement that causes the doubt."""
        return self.description.doubts if self._variables is None else {}

    def is_in_doubt(self, name: str) -> bool:
        """Return whether only a shell can know the value of a variable, or whether it has one."""
        return self._variables is None and (name in self.description.doubts or bool(self.description.lost))


def open_image(path: Path, cache: Cache | None = None) -> Image:
    """Open an image by its content, not by its name. Raises ImageError.

    The layers of OCI and Docker images are read completely once, to find and verify their files. Compressed layers are
    unpacked into a cache and reused from there; without a cache, into a temporary file. Raises MissingHereError if
    there is not enough space.
    """
    with ExitStack() as opened:
        if path.is_dir():
            return _open_folder(path, opened, cache)
        if not os.path.lexists(path):
            raise NoImageError(f"cannot be opened: {os.strerror(errno.ENOENT)}", where=str(path))
        if path.exists() and not path.is_file():
            raise ImageError("neither a file nor a folder", where=str(path))
        return _open_file(opened.enter_context(closing(HostFile.from_image(path))), opened, cache)


def open_stack(paths: Sequence[Path]) -> Image:
    """Open an image with squashfs files layered over it, the lowest first. Raises ImageError."""
    with ExitStack() as opened:
        base = opened.enter_context(open_image(paths[0]))
        above = opened.enter_context(open_squashfs(paths[1:]))
        root = RootFileSystem(OverlayTree([*(layer.tree for layer in base.layers), *above.layers]))
        return Image(base.kind, root, SingularityDescription(root), opened)


@contextmanager
def open_squashfs(paths: Sequence[Path]) -> Iterator[OverlayTree]:
    """Yield the file systems of SIFs and squashfs files as one overlay, the lowest first. Raises ImageError."""
    with ExitStack() as opened:
        trees: list[SquashfsTree] = []
        for path in paths:
            source = opened.enter_context(closing(HostFile.from_image(path)))
            trees += [SquashfsTree(source.slice(*part)) for part in squashfs_ranges(path)]
        yield OverlayTree(trees)


def refuse_empty(path: Path, image: Image) -> None:
    """Raise ImageError for an image without a root file system: an empty or unreadable folder."""
    if not any(image.root.exists(name) for name in ("/etc", "/usr", "/lib", "/opt")):
        raise ImageError("holds no root file system", where=str(path), hint="check that it is a readable image")


def require_room(path: Path, folder: Path, cache: Cache | None = None) -> None:
    """Raise if an image would take too much space unpacked into a folder; holes and files hidden by its overlays count.

    Raises ImageError for more than real software needs, MissingHereError for more than is free on the disk. `cache` is
    as in open_image.
    """
    if path.is_dir():
        return  # it is copied as it is
    max_bytes = _ALWAYS_ALLOWED_BYTES + _MAX_RATIO * path.stat().st_size
    needed_bytes = 0
    counted: set[Hashable] = set()
    with open_image(path, cache) as image:
        for root, (_, seen) in ((each, found) for each in image.layers for found in each.stats()):
            needed_bytes += _NAME_BYTES
            if seen.kind is FileKind.FILE and (root, seen.identity) not in counted:
                needed_bytes += seen.size_bytes
                if seen.links > 1:
                    counted.add((root, seen.identity))
            if needed_bytes > max_bytes:
                what = f"unpacks to more than {_MAX_RATIO} times its size"
                raise ImageError(what, where=str(path), hint="if that is intended, unpack it and give the folder")
    there = next(one for one in (folder, *folder.parents) if one.is_dir())
    free_bytes = shutil.disk_usage(there).free
    if needed_bytes + _SPARE_BYTES > free_bytes:
        raise MissingHereError(
            f"unpacks to {size(needed_bytes)}, but only {size(free_bytes)} are free in {there}",
            where=str(path),
            hint="set LUMIIMG_CACHE and TMPDIR to folders on other disks",
        )


def _open_folder(path: Path, opened: ExitStack, cache: Cache | None) -> Image:
    root = RootFileSystem(FolderTree(path), hidden=_MOUNTED_BY_ENGINES)
    if is_oci_layout(root):
        return _layered(ImageKind.OCI_LAYOUT, root, str(path), opened, cache)
    return Image(ImageKind.FOLDER, root, SingularityDescription(root), opened)


def _open_file(source: HostFile, opened: ExitStack, cache: Cache | None) -> Image:
    head = source.read_exactly(0, min(source.size, tar.BLOCK_BYTES))
    if is_sif(head):
        sif = parse_sif(source)
        tree, warnings = _sif_tree(sif, source)
        root = RootFileSystem(tree)
        metadata = sif.json(source, "inspect-metadata.json", _MAX_METADATA_BYTES)
        return Image(ImageKind.SIF, root, SingularityDescription(root, sif.architecture, metadata, warnings), opened)
    if head.startswith(SQUASHFS_MAGIC):
        root = RootFileSystem(SquashfsTree(source))
        return Image(ImageKind.SQUASHFS, root, SingularityDescription(root), opened)
    if head[tar.MAGIC_OFFSET :].startswith(tar.MAGIC):
        files = RootFileSystem(LayeredTree([source], source.name))
        kind = ImageKind.OCI_ARCHIVE if is_oci_layout(files) else ImageKind.DOCKER_ARCHIVE
        return _layered(kind, files, source.name, opened, cache)
    if head[:2] in _COMPRESSED:
        hint = "unpack it first: only uncompressed image archives can be read"
        raise ImageError(f"a file compressed with {_COMPRESSED[head[:2]]}", where=source.name, hint=hint)
    what = "an empty file" if not head else "neither a SIF nor a squashfs file, nor an OCI or Docker archive"
    hint = "give a .sif, a squashfs file, a sandbox folder or an archive"
    if head and b"\0" not in head and not is_named_as_data(source.name):
        hint += f"; the output of a job: lumiimg log {shell_quote(as_operand(source.name))}"
    raise ImageError(what, where=source.name, hint=hint)


def _sif_tree(sif: Sif, source: HostFile) -> tuple[SquashfsTree | OverlayTree, list[str]]:
    """Return (the root file system with the overlays that engines mount over it, warnings about it)."""
    overlays = [item for item in sif.overlays() if item.is_squashfs]
    partitions = [sif.root_partition(), *overlays]
    layers = [SquashfsTree(source.slice(item.offset, item.size_bytes)) for item in partitions]
    unread = (item.identifier for item in sif.overlays() if not item.is_squashfs)
    warnings = [f"overlay partition {number} has an unsupported format: its changes are ignored" for number in unread]
    # measured: a mount by root honours only trusted.overlay.opaque, one in a user namespace neither of the two names
    warnings += [
        f"overlay partition {item.identifier} has opaque folders, which not all engines honour: hidden files may show"
        for item, layer in zip(overlays, layers[1:], strict=True)
        if layer.has_opaque()
    ]
    return (OverlayTree(layers) if overlays else layers[0]), warnings


def _layered(kind: ImageKind, files: RootFileSystem, where: str, opened: ExitStack, cache: Cache | None) -> Image:
    read = read_docker_archive if kind is ImageKind.DOCKER_ARCHIVE else read_oci_layout
    config, layers = read(files, where)
    tree = LayeredTree(open_layers(layers, cache, opened), where)
    return Image(kind, RootFileSystem(tree), config, opened)
