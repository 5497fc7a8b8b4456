"""The metadata of an image: architecture, labels, environment."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.image.environment import source
from lumiimg.image.shell import DEFAULT_PATH, Shell
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.image.root import RootFileSystem

_ENVIRONMENT_FOLDER = "/.singularity.d/env"
_LABELS = "/.singularity.d/labels.json"
_MAX_TEXT_BYTES = 1 << 20
_MAX_SCRIPTS = 1000
_APP_SCRIPTS = frozenset(("94-appsbase.sh", "95-apps.sh"))
_RUNTIME_SCRIPTS = frozenset(("99-base.sh", "99-runtimevars.sh"))
"""Scripts that, as engines write them, set what the engine sets itself: `container_view` models that."""
_SCIF = re.compile(r"^(?:SCIF_APP[\w.-]+=[\w./-]*|export(?: SCIF_APP[\w.-]+)+)$", re.MULTILINE)
"""Assignments of app locations: app names may contain a dash, which a shell complains about and skips."""
_LIBRARIES = "/.singularity.d/libs"
_CUSTOM = "90-environment.sh"
_DOCKER_SCRIPTS = frozenset(("10-docker2singularity.sh", "10-docker.sh"))


class SingularityDescription:
    """Metadata that Singularity and Apptainer write into a SIF, and under `/.singularity.d` in any root file system."""

    def __init__(
        self, root: RootFileSystem, architecture: str | None = None, metadata: bytes = b"", warnings: Sequence[str] = ()
    ) -> None:
        """Take a root; `metadata` is that of a SIF, `warnings` are the uncertainties about its partitions."""
        self.architecture = architecture
        """Architecture by its Go name (`amd64`); None if the image does not name one."""
        self._root = root
        self._metadata = metadata
        self._warnings = warnings
        self._unread: dict[str, str] = {}
        """Reason by path for what was not read."""

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels of the image; empty if it has none."""
        labels = _json_or_none(self._metadata.rstrip(b"\0").decode("utf-8", "surrogateescape"))
        for key in ("data", "attributes", "labels"):
            labels = labels.get(key) if isinstance(labels, dict) else None
        if not isinstance(labels, dict):
            labels = _json_or_none(self._text(_LABELS, self._root) or "")
        return {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}

    @cached_property
    def _shell(self) -> Shell:
        """State of the shell after the environment scripts."""
        shell = Shell(self._root)
        for path, text in self._scripts():
            name = path.rpartition("/")[2]
            if name == _CUSTOM:
                shell.set_default_path()
            if not (name in _RUNTIME_SCRIPTS and _is_of_engine(text, path)):
                source(_SCIF.sub("", text) if name in _APP_SCRIPTS else text, path, shell)
            if name in _DOCKER_SCRIPTS:
                shell.complete_path()
        return shell

    @property
    def environment(self) -> dict[str, str]:
        return self._shell.environment

    @property
    def doubts(self) -> dict[str, str]:
        """Variables whose value only a shell can know, each with the statement that causes the doubt."""
        return self._shell.doubts

    @property
    def lost(self) -> str:
        return self._shell.lost

    def _scripts(self) -> Iterator[tuple[str, str]]:
        """Yield (path, text) of the scripts that engines source and users may read, in their order."""
        names, users = list[str](), self._root.for_users()
        with suppress(OSError):
            names += (entry.name for entry in users.list_dir(_ENVIRONMENT_FOLDER))
        own = [name for name in names if name.endswith(".sh")]
        if len(own) > _MAX_SCRIPTS:
            self._unread[_ENVIRONMENT_FOLDER] = f"{len(own)} scripts, of which only the first {_MAX_SCRIPTS} are read"
        for path in (f"{_ENVIRONMENT_FOLDER}/{name}" for name in islice(own, _MAX_SCRIPTS)):
            text = self._text(path, users)
            if text is not None:
                yield path, text

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the parts of the image that were not read."""
        found = [*self._warnings]
        if self.lost:
            found.append(f"{self.lost}: the variables that the script sets are not known")
        _ = self.labels  # reading them adds to `_unread` if they are too long
        return (*found, *(f"{path}: {reason}" for path, reason in self._unread.items()))

    def _text(self, path: str, root: RootFileSystem) -> str | None:
        try:
            return root.read_bytes(path, _MAX_TEXT_BYTES).decode("utf-8", "surrogateescape")
        except OSError:
            return None
        except ImageError as error:
            self._unread[path] = f"not read: {error.what}"
            return None


def _is_of_engine(text: str, path: str) -> bool:
    """Return whether a script does only what the engine's own script does."""
    shell = Shell()
    shell.set_default_path()
    before = {"PATH": DEFAULT_PATH}
    source(text, path, shell)
    libraries = before | {"LD_LIBRARY_PATH": _LIBRARIES}
    return not shell.lost and not shell.doubts and shell.environment in ({}, before, libraries)


def _json_or_none(text: str) -> object:
    """Return the parsed JSON; None for anything else: damaged metadata must not prevent reading an image."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
