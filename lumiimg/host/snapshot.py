"""What one node offers to a container: a value, a root file system, and the file that `lumiimg host scan` writes.

The file is JSON, sorted and in ASCII: the same node gives the same bytes, `taken` aside. A key that is absent has its
default; an unknown key is ignored. `schema` counts up when a reader of the old one would be misled.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from lumiimg.core.decode import DecodeError, Sha256, decode, encode, matching, parse_json, read_whole
from lumiimg.core.errors import BadInputError, shortened
from lumiimg.core.files import unused, write_text
from lumiimg.elf import ElfFacts, SnapshotElf
from lumiimg.fabric.path import LIBCXI, LIBFABRIC, PROVIDER_FILE
from lumiimg.fabric.process import PROVIDER_PATH
from lumiimg.image import DirectoryEntry, FileKind, FileStat, ImageError, RootFileSystem

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_NO_BYTES = r"\ud800-\udc7f\udd00-\udfff"
"""Characters that no path has; `surrogateescape` makes others of bytes that are not UTF-8."""
_ABSOLUTE = rf"\A(?:/(?!\.{{1,2}}(?:/|\Z))[^/\0{_NO_BYTES}]{{1,255}})+\Z"
PathText = Annotated[str, matching(f"[^{_NO_BYTES}]*", "a text that a path can hold")]
AbsolutePath = Annotated[str, Meta(pattern=_ABSOLUTE, max_length=4095, description="an absolute path without dots")]


@dataclass(frozen=True, slots=True)
class OperatingSystem:
    """What /etc/os-release says; empty where it says nothing."""

    id: str
    """ID."""
    version: str
    """VERSION_ID."""
    name: str
    """PRETTY_NAME."""


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """One shared library of the host."""

    path: AbsolutePath
    """Real path on the host, without symlinks."""
    size_bytes: int
    """Of the file."""
    sha256: Sha256
    """Of the file, in hexadecimal."""
    facts: ElfFacts
    """What the ELF file says of itself."""
    net_symbols: tuple[str, ...] = ()
    """Of the exported names, those by which RCCL knows a net plugin; looked for in entries only."""


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """A library that the scan looked for and found, and what the host's loader makes of it."""

    role: str
    """`libfabric`, `libcxi`, `net-plugin`, … (`host/scan_facts.toml`)."""
    path: str
    """As found: a link, often."""
    how: str
    """What led to it: `LD_LIBRARY_PATH`, `ldconfig`, `known prefix …`, `asked for`."""
    closure: dict[PathText, PathText | None] = field(default_factory=dict)
    """Each name that it and its libraries need to the path that the host's loader serves; None where it has none."""
    errors: tuple[str, ...] = ()
    """Why the host itself cannot load it, in the loader's words."""

    @property
    def version(self) -> str | None:
        """That one of its folders names: `1.22.0` of /opt/cray/libfabric/1.22.0/lib64; the nearest counts."""
        return next((found[0] for part in self.path.split("/")[-2::-1] if (found := _VERSION.search(part))), None)


@dataclass(frozen=True, slots=True)
class Nic:
    """One Slingshot NIC, as /sys/class/cxi/<device> describes it; None for what cannot be read."""

    device: str
    """`cxi0`."""
    speed_mbit_s: int | None = None
    """In Mbit/s."""
    link_is_up: bool | None = None
    """Whether the link is up."""
    chip: str | None = None
    """Cassini version: `1.1`, `2.0`."""
    firmware: str | None = None
    """`uc/qspi_blob_version`, as cxi_stat shows it."""
    driver: str | None = None
    """Revision that the cxi driver was built from."""
    pci: str | None = None
    """`0000:21:00.0`."""
    netdev: str | None = None
    """`hsn0`."""

    def __str__(self) -> str:
        """Return it with what is known of it: `cxi0 (hsn0, 200 Gb/s, up)`."""
        link = {True: "up", False: "down", None: None}[self.link_is_up]
        speed = f"{self.speed_mbit_s // 1000} Gb/s" if self.speed_mbit_s else None
        known = ", ".join(filter(None, (self.netdev, speed, link, self.firmware and f"firmware {self.firmware}")))
        return f"{self.device} ({known})" if known else self.device


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """The container engine of the node, and the settings of its administrator that decide about binds."""

    name: str
    """`Apptainer`, `SingularityCE`."""
    version: str
    """As it says itself."""
    configuration: str | None = None
    """The file that the settings are from."""
    settings: dict[str, str] | None = None
    """By their names in that file (`mount tmp`, `enable overlay`); None where it cannot be read."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a node offers to a container: the snapshot that --host takes."""

    schema: int
    """Number of this schema."""
    taken: str
    """UTC, ISO 8601."""
    tool: str
    """Version of lumiimg."""
    host: str
    """Node name without a domain."""
    architecture: str
    """As `uname -m`."""
    kernel: str
    """Release, as `uname -r`."""
    os: OperatingSystem
    """What /etc/os-release says; empty where it says nothing."""
    cpu: str | None
    """Model name."""
    intel: bool
    """Whether the CPU is one of Intel, which changes where the loader looks (`elf/glibc.py`)."""
    hwcaps: tuple[str, ...]
    """glibc-hwcaps levels of the CPU, best first."""
    glibc: Annotated[str, Meta(pattern=r"\A[0-9]{1,3}\.[0-9]{1,3}\Z", description="a version like 2.38")] | None
    """`2.38`."""
    library_path: PathText | None
    """LD_LIBRARY_PATH of the scan without what leads into somebody's own folders."""
    entries: Annotated[tuple[FoundLibrary, ...], Meta(max_length=4096, description="at most 4096 of them")]
    """In the order in which they count: of two with the same name the first one is what the loader would take."""
    libraries: tuple[HostLibrary, ...]
    """Every library of every closure once, sorted by path."""
    links: dict[AbsolutePath, PathText]
    """Each symlink on the way to a recorded library: where it is (no symlink in that) to its text."""
    directories: tuple[AbsolutePath, ...] = ()
    """Directories that a path leads through and back out of (`/a/b/../c`), if nothing recorded lies in them."""
    devices: tuple[str, ...] = ()
    """Device files of the NICs and GPUs."""
    nics: tuple[Nic, ...] = ()
    """Slingshot NICs."""
    gpu_driver: str | None = None
    """Version of amdgpu; None where no such module is loaded, or it does not say."""
    gpus: tuple[str, ...] = ()
    """GPUs of AMD, each as compilers name its processor: `gfx90a`."""
    engine: ContainerEngine | None = None
    """The container engine of the node; null where none is found."""
    gaps: tuple[str, ...] = ()
    """What could not be determined, and why: a line each."""

    @property
    def day(self) -> dt.date:
        """When it was taken."""
        return dt.date.fromisoformat(self.taken[:10])

    @property
    def engine_settings(self) -> Mapping[str, str]:
        """Settings of the engine's administrator, by their names; none where they are not known."""
        return (self.engine and self.engine.settings) or {}

    @property
    def gpu(self) -> str | None:
        """The processor of most of its GPUs; None where none was seen."""
        return max(sorted(set(self.gpus)), key=self.gpus.count, default=None)

    @property
    def machine(self) -> str:
        """The node with its system, for a person: `nid005001: SLES 15 SP6, glibc 2.38`."""
        system = ", ".join(filter(None, (self.os.name, self.glibc and f"glibc {self.glibc}")))
        return f"{self.host}: {system}" if system else self.host


# -- as a root file system --

MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine to what `uname -m` says."""
_MAX_WEIGHT = 1 << 28
"""Of all paths with all directories above them, in characters: what a tree of them may take."""


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A place in the recorded file system; the root has an empty path."""

    path: str
    kind: FileKind


class SnapshotTree:
    """The recorded files of one snapshot. Raises ImageError where their paths are not those of one tree."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._libraries = {library.path: library for library in snapshot.libraries}
        self._links = snapshot.links
        self._names: dict[str, dict[str, FileKind]] = {"": {}}
        self._weight = 0
        for library in snapshot.libraries:
            self._place(library.path, FileKind.FILE)
        for path in self._links:
            self._place(path, FileKind.SYMLINK)
        for path in snapshot.directories:
            self._place(path, FileKind.DIRECTORY)
        self.root = SnapshotNode("", FileKind.DIRECTORY)

    def _place(self, path: str, kind: FileKind) -> None:
        while path:
            above, _, name = path.rpartition("/")
            names = self._names.setdefault(above, {})
            if kind is FileKind.DIRECTORY and names.get(name) is kind:
                return
            self._weight += len(path)
            if name in names or self._weight > _MAX_WEIGHT:
                what = "is recorded twice, lies below a file, or exceeds the limit"
                raise ImageError(what, where=shortened(path))
            names[name] = kind
            if kind is FileKind.DIRECTORY:
                self._names.setdefault(path, {})
            path, kind = above, FileKind.DIRECTORY

    def child(self, directory: SnapshotNode, name: str) -> SnapshotNode | None:
        """Return what a name in a directory stands for."""
        kind = self._names[directory.path].get(name)
        return None if kind is None else SnapshotNode(f"{directory.path}/{name}", kind)

    def entries(self, directory: SnapshotNode) -> Iterator[DirectoryEntry]:
        """Yield the names in a directory."""
        for name, kind in self._names[directory.path].items():
            yield DirectoryEntry(name, kind)

    def link_target(self, link: SnapshotNode) -> str:
        """Return the text of a symlink."""
        return self._links[link.path]

    def stat(self, node: SnapshotNode) -> FileStat:
        """Return an inode's attributes; owner, time and permissions are those that a system's libraries have."""
        size = self._libraries[node.path].size_bytes if node.kind is FileKind.FILE else 0
        return FileStat(node.kind, 0o755, 0, 0, size, 0, 1, self.directory_identity(node))

    def xattrs(self, node: SnapshotNode) -> None:
        """Return None: a snapshot has none."""

    def directory_identity(self, directory: SnapshotNode) -> tuple[str, str]:
        """Return what distinguishes a directory from all others."""
        return ("recorded", directory.path)

    def open(self, node: SnapshotNode) -> SnapshotElf:
        library = self._libraries[node.path]
        return SnapshotElf(library.facts, library.size_bytes, ("recorded", library.path), library.net_symbols)


class HostFiles:
    """The recorded files of a node: as a root file system, and each library by any path that leads to it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.root = RootFileSystem(SnapshotTree(snapshot))
        self._libraries = {library.path: library for library in snapshot.libraries}
        self._entries = snapshot.entries

    def library(self, path: str | None) -> HostLibrary | None:
        """Return the library at a path, perhaps of a link; None where none is recorded."""
        return self._libraries.get(self.root.resolve(path)) if path and self.root.is_file(path) else None

    def fabrics(self) -> Iterator[tuple[FoundLibrary, FoundLibrary | None]]:
        """Yield each libfabric that leads to Slingshot, with its cxi provider where that is a file of its own.

        As a rule the provider is a part of libfabric, which needs libcxi then. A file is in a folder that
        FI_PROVIDER_PATH names, or in the one beside libfabric.
        """
        files = [each for each in self._entries if each.path.endswith(f"/{PROVIDER_FILE}")]
        for entry in (each for each in self._entries if each.role == "libfabric"):
            provider_path = f"{self.root.resolve(entry.path).rpartition('/')[0]}/libfabric/{PROVIDER_FILE}"
            here = [
                file for file in files if PROVIDER_PATH in file.how or self.root.resolve(file.path) == provider_path
            ]
            if LIBCXI in entry.closure:
                yield entry, None
            elif here:
                yield entry, here[0]

    @property
    def fabric(self) -> FoundLibrary | None:
        """The libfabric that the host itself would use with Slingshot: one that loads here, and libcxi with it."""
        for libfabric, provider in self.fabrics():
            user = provider or libfabric
            # libfabric opens its providers: alone, one need not find the libfabric that it belongs to
            errors = [error for error in user.errors if provider is None or not error.startswith(f"{LIBFABRIC}: ")]
            if user.closure.get(LIBCXI) and not errors and not libfabric.errors:
                return libfabric
        return None


# -- as a file --

SCHEMA = 1
MAX_FILE_BYTES = 16 << 20


def scan_command() -> str:
    """Return what records a node, and replaces no snapshot that is there: `drift` may need it."""
    return f"lumiimg host scan -o {unused('host.json')}"


def snapshot_text(snapshot: Snapshot) -> str:
    """Return the text of a snapshot's file."""
    return json.dumps(encode(snapshot), indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot; whoever reads meanwhile sees the old file or the new one, never a part.

    Raises BadInputError if the name is that of something other than a file, FailedError if it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise BadInputError("is not a file", where=str(path), hint="`-o -` writes to standard output")
    write_text(path, snapshot_text(snapshot))


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file. Raises DecodeError, whatever the bytes."""
    where, hint = str(path), f"take a new one on a compute node: {scan_command()}"
    data = parse_json(read_whole(path, MAX_FILE_BYTES, hint=hint), where=where, hint=hint)
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int or schema < 1 or "groups" in data:  # groups: a report of `check --nodes`
        raise DecodeError("is not a host snapshot", where=where, hint=hint)
    if schema > SCHEMA:
        what = f"was written by a newer lumiimg (schema {schema}, this one reads {SCHEMA})"
        raise DecodeError(what, where=where, hint="update lumiimg, or take the snapshot again with this one")
    snapshot = decode(data, Snapshot, where=where, hint=hint)
    if fault := next(_faults(snapshot), None):
        raise DecodeError(fault, where=where, hint=hint)
    return snapshot


def _faults(snapshot: Snapshot) -> Iterator[str]:
    """Yield what the types allow and no scan writes; what comes later relies on all before it."""
    try:
        dt.date.fromisoformat(snapshot.taken[:10])
    except ValueError:
        yield "key 'taken' should be a time like 2026-01-24T10:00:00Z"
    try:
        files = HostFiles(snapshot)
    except ImageError as error:
        yield str(error)
        return
    for index, entry in enumerate(snapshot.entries):
        if files.library(entry.path) is None:
            yield f"key 'entries[{index}].path' leads to no recorded library"
