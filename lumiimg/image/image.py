"""An image, whatever it is made of, opened by its content: SIF, squashfs file or folder."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from lumiimg.image.environment import Environment
from lumiimg.image.folder import FolderTree
from lumiimg.image.root import RootFileSystem
from lumiimg.image.sif import MAGIC as SIF_MAGIC
from lumiimg.image.sif import MAGIC_OFFSET as SIF_MAGIC_OFFSET
from lumiimg.image.sif import DataObject, DataType, Sif, read_sif
from lumiimg.image.source import ByteSource
from lumiimg.image.squashfs.superblock import MAGIC as SQUASHFS_MAGIC
from lumiimg.image.squashfs.tree import SquashfsTree
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from pathlib import Path

_METADATA_NAME = "inspect-metadata.json"
_ENVIRONMENT_FOLDER = "/.singularity.d/env"
_LABELS = "/.singularity.d/labels.json"
_DEFINITION = "/.singularity.d/Singularity"
_MAX_METADATA_BYTES = 16 << 20
_MAX_SCRIPT_BYTES = 1 << 20
# written by the engine, not by whoever built the image: they deal with the run, by conditions
_SCRIPTS_OF_THE_ENGINE = ("94-appsbase.sh", "95-apps.sh", "99-base.sh", "99-runtimevars.sh")
_MOUNTED_BY_ENGINES = ("/proc", "/sys", "/dev")


class ImageKind(StrEnum):
    """What an image is made of."""

    SIF = "sif"
    SQUASHFS = "squashfs"
    FOLDER = "folder"


class Image:
    """One open image; a context manager."""

    def __init__(
        self,
        kind: ImageKind,
        root: RootFileSystem,
        *,
        source: ByteSource | None = None,
        sif: Sif | None = None,
    ) -> None:
        self.kind = kind
        self.root = root
        self._source = source
        self._sif = sif
        self._metadata = self._read_metadata()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing of the image can be read afterwards."""
        if self._source is not None:
            self._source.close()

    @property
    def architecture(self) -> str | None:
        """Return the architecture that the image names, as Go calls it (`amd64`); None where it names none."""
        return self._sif.architecture if self._sif else None

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels of the image; empty without any."""
        labels = self._metadata.get("labels")
        if not isinstance(labels, dict):
            labels = _json_object(self._text(_LABELS) or "{}")
        return {str(key): str(value) for key, value in labels.items()}

    @cached_property
    def definition(self) -> str | None:
        """The definition file that the image was built from."""
        item = self._sif.first(DataType.DEFINITION) if self._sif else None
        text = self._object_text(item) if item else None
        return text or self._text(_DEFINITION)

    @property
    def environment(self) -> dict[str, str]:
        """What the environment scripts of the image export."""
        return self._environment.result()

    @cached_property
    def _environment(self) -> Environment:
        environment = Environment()
        for path, text in self._scripts():
            environment.read(text, path)
        return environment

    def _scripts(self) -> list[tuple[str, str]]:
        try:
            names = [entry.name for entry in self.root.list_dir(_ENVIRONMENT_FOLDER)]
        except OSError:
            recorded = self._metadata.get("environment")
            scripts = recorded if isinstance(recorded, dict) else {}
            return sorted((str(path), str(text)) for path, text in scripts.items())
        paths = [f"{_ENVIRONMENT_FOLDER}/{name}" for name in names if name.endswith(".sh")]
        own = [path for path in paths if not path.endswith(_SCRIPTS_OF_THE_ENGINE)]
        return [(path, text) for path in own if (text := self._text(path)) is not None]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what of the image is not seen through this object."""
        found: list[str] = []
        overlays = self._sif.overlays() if self._sif else ()
        if overlays:
            numbers = ", ".join(str(item.identifier) for item in overlays)
            found.append(f"overlay partition {numbers} is not read: what it adds or changes is not seen")
        return (*found, *self._environment.warnings)

    def _read_metadata(self) -> dict[str, Any]:
        item = self._sif.first(DataType.JSON, _METADATA_NAME) if self._sif else None
        if item is None:
            return {}
        data = _json_object(self._object_text(item)).get("data")
        attributes = data.get("attributes") if isinstance(data, dict) else None
        return attributes if isinstance(attributes, dict) else {}

    def _object_text(self, item: DataObject) -> str:
        if self._source is None or item.size_bytes > _MAX_METADATA_BYTES:
            return ""
        data = self._source.read_at(item.offset, item.size_bytes)
        return data.rstrip(b"\0").decode("utf-8", "surrogateescape")

    def _text(self, path: str) -> str | None:
        try:
            return self.root.read_bytes(path, _MAX_SCRIPT_BYTES).decode("utf-8", "surrogateescape")
        except OSError:
            return None


def _json_object(text: str) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else: metadata is no reason not to read an image."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def open_image(path: Path) -> Image:
    """Open an image by what it is, not by its name. Raises ImageError."""
    if path.is_dir():
        return Image(ImageKind.FOLDER, RootFileSystem(FolderTree(path), hidden=_MOUNTED_BY_ENGINES))
    if path.exists() and not path.is_file():
        raise ImageError("neither a file nor a folder", where=str(path))
    source = ByteSource.open(path)
    try:
        return _open_file(source)
    except BaseException:
        source.close()
        raise


def _open_file(source: ByteSource) -> Image:
    head = source.read_at(0, min(source.size, SIF_MAGIC_OFFSET + len(SIF_MAGIC)))
    if head[SIF_MAGIC_OFFSET:] == SIF_MAGIC:
        sif = read_sif(source)
        partition = sif.root_partition(source.name)
        content = source.slice(partition.offset, partition.size_bytes)
        return Image(ImageKind.SIF, RootFileSystem(SquashfsTree(content)), source=source, sif=sif)
    if head.startswith(SQUASHFS_MAGIC):
        return Image(ImageKind.SQUASHFS, RootFileSystem(SquashfsTree(source)), source=source)
    what = "an empty file" if not head else "neither a SIF nor a squashfs file"
    raise ImageError(what, where=source.name, hint="give a .sif, a squashfs file or a sandbox folder")
