"""What a process in the container sees: the image's files with the binds over them, and the variables that reach it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from lumiimg.elf.hwcaps import ZEN3
from lumiimg.elf.rules import LoaderSettings
from lumiimg.errors import BadInputError
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import FileKind, ImageKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image, RootFileSystem
    from lumiimg.image.mounts import Mounted

ENGINE_LIBRARIES = "/.singularity.d/libs"
"""The engine puts this folder behind whatever LD_LIBRARY_PATH the image has (99-base.sh)."""
PRIVATE = "/opt/lumiimg/host"
"""Where the host's libraries are put in the container: a folder that nothing else uses, in front of LD_LIBRARY_PATH."""
_ENGINE_FOLDER = "/.singularity.d"
TO_ENGINE = ("APPTAINERENV_", "SINGULARITYENV_")
"""In front of a variable that the engine is to set in the container."""
_KERNEL = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?!\d)")
_FLAGS, _VALUES = frozenset({"ro", "rw"}), ("id=", "image-src=")
_UNESCAPED = {",": re.compile(r"(?<!\\),"), ":": re.compile(r"(?<!\\):")}


@dataclass(frozen=True, slots=True)
class BindSpec:
    """One `--bind`: what of the host is put where."""

    source: str
    target: str

    def __str__(self) -> str:
        escaped = [re.sub(r"([,:])", r"\\\1", path) for path in (self.source, self.target)]
        return escaped[0] if self.source == self.target else ":".join(escaped)


@dataclass(frozen=True, slots=True)
class LoaderMachine:
    """What of a node decides where the loader looks, and what it takes; without arguments, that of LUMI's nodes."""

    levels: tuple[str, ...] = ZEN3
    """glibc-hwcaps names of the CPU, best first."""
    intel: bool = False
    kernel: str = ""
    """As `uname -r`; empty for one that is newer than any file asks for."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Return that of a node."""
        return cls(snapshot.hwcaps, snapshot.intel, snapshot.kernel)

    @property
    def linux(self) -> tuple[int, int, int] | None:
        """The kernel's version as the loader compares it."""
        found = _KERNEL.match(self.kernel)
        return (int(found[1]), int(found[2]), int(found[3])) if found else None


@dataclass(frozen=True, slots=True)
class ContainerView:
    """An image as a process in it has it."""

    image: Image
    root: RootFileSystem
    settings: LoaderSettings
    doubts: tuple[str, ...] = ()
    """What of it is not known."""


def parse_binds(text: str) -> tuple[BindSpec, ...]:
    r"""Read `SRC[:DST[:OPTIONS]]`, several with commas, as engines take them (`\:` and `\,` are no separators).

    Rules: apptainer `pkg/runtime/engine/apptainer/config/bind.go` ParseBindPath, singularity `pkg/util/bind/bind.go`.

    Raises BadInputError for what engines refuse, and for `image-src=`, which binds a part of another image.
    """
    parts: list[str] = []
    for part in _UNESCAPED[","].split(text):
        is_option = part in _FLAGS or part.startswith(_VALUES)
        if is_option and parts and _UNESCAPED[":"].search(parts[-1]):
            parts[-1] += f",{part}"  # of the bind before it, which has a target: without one, it is a source
        elif part:
            parts.append(part)
    return tuple(_parse_bind(part, text) for part in parts)


def _parse_bind(part: str, text: str) -> BindSpec:
    source, *rest = (re.sub(r"\\([,:])", r"\1", field) for field in _UNESCAPED[":"].split(part))
    if len(rest) > 2:
        raise BadInputError("more than SRC:DST:OPTIONS", where=f"--bind {text}")
    if len(rest) == 2 and "image-src=" in rest[1]:
        raise BadInputError("binds out of another image are not read", where=f"--bind {text}", hint="give that image")
    if not source:
        raise BadInputError("no source", where=f"--bind {text}", hint="SRC[:DST]")
    source = os.path.abspath(source)  # noqa: PTH100 - text; its symlinks are the business of the root it is looked up in
    target = rest[0] if rest and rest[0] else source
    if not target.startswith("/"):
        raise BadInputError("the target is not an absolute path", where=f"--bind {text}")
    return BindSpec(source, target)


def binds_of(environment: Mapping[str, str]) -> Iterator[tuple[str, tuple[BindSpec, ...]]]:
    """Yield the variables that the engine takes binds from, each with its own."""
    for name in ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH"):
        try:
            yield name, parse_binds(environment.get(name, ""))
        except BadInputError:
            continue  # the engine refuses it, and says so


def variable_of(name: str, image: Image, environment: Mapping[str, str]) -> str | None:
    """Return a variable as it is in the container: what the engine is told, else the image's, else the user's own.

    One that the image sets to nothing takes the user's own away, too (apptainer
    `internal/pkg/util/fs/files/action_script.sh`, restore_env). The user's LD_LIBRARY_PATH is the one that does not get
    in (`internal/pkg/util/env/clean.go`).
    """
    for prefix in TO_ENGINE:
        if prefix + name in environment:
            return environment[prefix + name]
    of_user = environment.get(name) if name != "LD_LIBRARY_PATH" else None
    if name not in image.environment:
        return of_user
    return image.environment[name] or (None if of_user is not None else "")


def told_to_engine(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of somebody who starts the engine with `--env K=V` for each variable."""
    return {TO_ENGINE[0] + name: value for name, value in variables.items()}


def see_inside(
    image: Image,
    environment: Mapping[str, str],
    *,
    binds: Sequence[BindSpec] = (),
    host: RootFileSystem | None = None,
    cwd: str = "/",
    machine: LoaderMachine = LoaderMachine(),
) -> ContainerView:
    """Return an image as a process in it has it; `host` is where binds come from.

    What engines mount without being told (home, /tmp, the current folder) is not counted.

    Raises BadInputError for a bind whose source is not on the host, or whose target cannot be.
    """
    mounts: list[tuple[str, Mounted]] = []
    doubts: list[str] = []
    for bind in binds:
        if host is None:
            raise BadInputError("a bind, and no host to take it from", where=f"--bind {bind}")
        try:
            source = host.source(bind.source)
        except OSError as error:
            raise BadInputError(
                f"{bind.source} cannot be bound: {error.strerror}",
                where=f"--bind {bind}",
                hint="no engine starts with it; with --host, `lumiimg host scan --include PATH` records more",
            ) from error
        if isinstance(source.tree, SnapshotTree) and source.node.kind is FileKind.DIRECTORY:
            doubts.append(f"of {bind.source} only the files that the snapshot records are seen")
        mounts.append((bind.target, source))
    try:
        root = image.root.mounted(mounts) if mounts else image.root
    except OSError as error:
        raise BadInputError(f"cannot be a target in this image: {error.strerror}", where=error.filename) from error
    preload = variable_of("LD_PRELOAD", image, environment)
    settings = LoaderSettings(
        library_path=library_path_of(image, environment),
        preload=(preload,) if preload else (),
        cwd=cwd,
        hwcaps=machine.levels,
        intel=machine.intel,
        linux=machine.linux,
    )
    return ContainerView(image, root, settings, tuple(doubts))


def library_path_of(image: Image, environment: Mapping[str, str]) -> str | None:
    """Return LD_LIBRARY_PATH as a process in the container has it; None where it has none."""
    path = variable_of("LD_LIBRARY_PATH", image, environment)
    if image.kind is ImageKind.FOLDER and not image.root.exists(_ENGINE_FOLDER):
        return path  # a root file system that no engine made: nothing is put behind it
    return f"{path}:{ENGINE_LIBRARIES}" if path else ENGINE_LIBRARIES
