"""What an image says of itself: architecture, labels, environment."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from lumiimg.image.environment import source
from lumiimg.image.shell import Shell
from lumiimg.image.sif import DataType, Sif
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.image.host_files import HostFile
    from lumiimg.image.root import RootFileSystem

_METADATA_NAME = "inspect-metadata.json"
_ENVIRONMENT_FOLDER = "/.singularity.d/env"
_LABELS = "/.singularity.d/labels.json"
_MAX_METADATA_BYTES = 16 << 20
_MAX_TEXT_BYTES = 1 << 20
_MAX_SCRIPTS = 1000
_SCRIPTS_OF_THE_ENGINE = frozenset(("94-appsbase.sh", "95-apps.sh", "99-base.sh", "99-runtimevars.sh"))
"""Written by the engine, not by whoever built the image: they deal with the run."""
_CUSTOM = "90-environment.sh"
_FROM_DOCKER = frozenset(("10-docker2singularity.sh", "10-docker.sh"))


class SingularityDescription:
    """What Singularity and Apptainer write: into a SIF, and under `/.singularity.d` in any root file system."""

    def __init__(
        self,
        root: RootFileSystem,
        sif: Sif | None = None,
        source: HostFile | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """`source` is the file of the SIF, `warnings` what is unsure about its partitions."""
        self._warnings = warnings
        self._root = root
        self._source = source
        self._sif = sif
        self._unread: dict[str, str] = {}
        """Path → why it is not read."""
        self._metadata = self._read_metadata()

    @property
    def architecture(self) -> str | None:
        """As Go calls it (`amd64`); None where the image names none."""
        return self._sif.architecture if self._sif else None

    @cached_property
    def labels(self) -> dict[str, str]:
        """Its labels; empty without any."""
        labels = self._metadata.get("labels")
        if not isinstance(labels, dict):
            labels = _json_object(self._text(_LABELS) or "{}")
        return {str(key): str(value) for key, value in labels.items()}

    @cached_property
    def _shell(self) -> Shell:
        """What a shell has after the environment scripts."""
        shell = Shell()
        for path, text in self._scripts():
            name = path.rpartition("/")[2]
            if name == _CUSTOM:
                shell.set_default_path()
            source(text, path, shell)
            if name in _FROM_DOCKER:
                shell.complete_path()
        return shell

    @property
    def environment(self) -> dict[str, str]:
        return self._shell.environment

    @property
    def doubts(self) -> dict[str, str]:
        """The variables of which only a shell knows the value, each with the statement that makes it so."""
        return self._shell.doubts

    @property
    def lost(self) -> str:
        return self._shell.lost

    def _scripts(self) -> Iterator[tuple[str, str]]:
        """Yield (path, text) of the scripts that engines source, in their order."""
        names: list[str] = []
        with suppress(OSError):
            names += (entry.name for entry in self._root.list_dir(_ENVIRONMENT_FOLDER))
        own = [name for name in names if name.endswith(".sh") and name not in _SCRIPTS_OF_THE_ENGINE]
        if len(own) > _MAX_SCRIPTS:
            self._unread[_ENVIRONMENT_FOLDER] = f"{len(own)} scripts, of which {_MAX_SCRIPTS} are read"
        for path in (f"{_ENVIRONMENT_FOLDER}/{name}" for name in islice(own, _MAX_SCRIPTS)):
            text = self._text(path)
            if text is not None:
                yield path, text

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the image is not seen."""
        found = [*self._warnings]
        if self.lost:
            found.append(f"{self.lost}: what the script sets from here on is not known, nor what it did set")
        _ = self.labels  # if they are too long, that is in `_unread` then
        return (*found, *(f"{path}: {reason}" for path, reason in self._unread.items()))

    def _read_metadata(self) -> dict[str, Any]:
        item = self._sif.first(DataType.JSON, _METADATA_NAME) if self._sif else None
        if item is None or self._source is None or item.size_bytes > _MAX_METADATA_BYTES:
            return {}
        text = self._source.read_exactly(item.offset, item.size_bytes).rstrip(b"\0").decode("utf-8", "surrogateescape")
        data = _json_object(text).get("data")
        attributes = data.get("attributes") if isinstance(data, dict) else None
        return attributes if isinstance(attributes, dict) else {}

    def _text(self, path: str) -> str | None:
        try:
            return self._root.read_bytes(path, _MAX_TEXT_BYTES).decode("utf-8", "surrogateescape")
        except OSError:
            return None
        except ImageError as error:
            self._unread[path] = f"not read: {error.what}"
            return None


def _json_object(text: str) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else: metadata is no reason not to read an image."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
