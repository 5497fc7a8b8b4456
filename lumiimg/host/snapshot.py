"""What one node offers to a container: as a value, a root file system, and the file that `lumiimg host scan` writes.

The file is sorted ASCII JSON: the same node gives the same bytes, except for `taken`. An absent key has its default; an
unknown key is ignored. `schema` is incremented when a reader of the old one would be misled.
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
from lumiimg.core.files import free_name, write_text
from lumiimg.elf import ElfFacts, SnapshotElf
from lumiimg.fabric.path import LIBCXI, LIBFABRIC, PROVIDER_FILE
from lumiimg.fabric.process import PROVIDER_PATH
from lumiimg.image import DirectoryEntry, FileKind, FileStat, ImageError, RootFileSystem

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_NO_BYTES = r"\ud800-\udc7f\udd00-\udfff"
"""Characters that no path contains; `surrogateescape` turns bytes that are not UTF-8 into others."""
_ABSOLUTE = rf"\A(?:/(?!\.{{1,2}}(?:/|\Z))[^/\0{_NO_BYTES}]{{1,255}})+\Z"
PathText = Annotated[str, matching(f"[^{_NO_BYTES}]*", "a text that a path can contain")]
AbsolutePath = Annotated[str, Meta(pattern=_ABSOLUTE, max_length=4095, description="an absolute path without dots")]


@dataclass(frozen=True, slots=True)
class OperatingSystem:
    """Values of /etc/os-release; empty where it has none."""

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
    """Size of the file."""
    sha256: Sha256
    """Digest of the file, in hexadecimal."""
    facts: ElfFacts
    """Facts from the ELF file."""
    net_symbols: tuple[str, ...] = ()
    """Exported symbols by which RCCL recognizes a net plugin; searched in entries only."""


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """A library that the scan looked for and found, and what the host's loader finds for it."""

    role: str
    """`libfabric`, `libcxi`, `net-plugin`, … (`host/scan_facts.toml`)."""
    path: str
    """Path as found: often a link."""
    how: str
    """How it was found: `LD_LIBRARY_PATH`, `ldconfig`, `known prefix …`, `asked for`."""
    closure: dict[PathText, PathText | None] = field(default_factory=dict)
    """Path that the host's loader finds for each name that it and its libraries need; None where it finds none."""
    errors: tuple[str, ...] = ()
    """Why the host itself cannot load it, in the loader's words."""

    @property
    def version(self) -> str | None:
        """Version in the name of the nearest folder that has one: `1.22.0` of /opt/cray/libfabric/1.22.0/lib64."""
        return next((found[0] for part in self.path.split("/")[-2::-1] if (found := _VERSION.search(part))), None)


@dataclass(frozen=True, slots=True)
class Nic:
    """One Slingshot NIC, as /sys/class/cxi/<device> describes it; None for what cannot be read."""

    device: str
    """`cxi0`."""
    speed_mbit_s: int | None = None
    """Speed in Mbit/s."""
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
        """Return the device with its known properties: `cxi0 (hsn0, 200 Gb/s, up)`."""
        link = {True: "up", False: "down", None: None}[self.link_is_up]
        speed = f"{self.speed_mbit_s // 1000} Gb/s" if self.speed_mbit_s else None
        known = ", ".join(filter(None, (self.netdev, speed, link, self.firmware and f"firmware {self.firmware}")))
        return f"{self.device} ({known})" if known else self.device


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """The container engine of the node, with the administrator's settings that affect binds."""

    name: str
    """`Apptainer`, `SingularityCE`."""
    version: str
    """Version that it reports."""
    configuration: str | None = None
    """File that the settings come from."""
    settings: dict[str, str] | None = None
    """Settings by their names in that file (`mount tmp`, `enable overlay`); None where it cannot be read."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a node offers to a container: the snapshot that --host takes."""

    schema: int
    """Number of this schema."""
    taken: str
    """Time of the scan: UTC, ISO 8601."""
    tool: str
    """Version of lumiimg."""
    host: str
    """Node name without a domain."""
    architecture: str
    """Architecture, as in `uname -m`."""
    kernel: str
    """Kernel release, as in `uname -r`."""
    os: OperatingSystem
    """Values of /etc/os-release; empty where it has none."""
    cpu: str | None
    """Model name of the CPU."""
    intel: bool
    """Whether it is an Intel CPU, which changes where the loader searches (`elf/glibc.py`)."""
    hwcaps: tuple[str, ...]
    """glibc-hwcaps levels of the CPU, best first."""
    glibc: Annotated[str, Meta(pattern=r"\A[0-9]{1,3}\.[0-9]{1,3}\Z", description="a version like 2.38")] | None
    """Version of glibc: `2.38`."""
    library_path: PathText | None
    """LD_LIBRARY_PATH of the scan, without personal and relative folders."""
    entries: Annotated[tuple[FoundLibrary, ...], Meta(max_length=4096, description="at most 4096 of them")]
    """Libraries found, in order of precedence: of two with the same name, the loader would use the first."""
    libraries: tuple[HostLibrary, ...]
    """Every library of every closure once, sorted by path."""
    links: dict[AbsolutePath, PathText]
    """Target of each symlink on the way to a recorded library, by its path (which has no symlink in it)."""
    directories: tuple[AbsolutePath, ...] = ()
    """Directories that a path enters and leaves again (`/a/b/../c`), if nothing recorded is in them."""
    devices: tuple[str, ...] = ()
    """Device files of the NICs and GPUs."""
    nics: tuple[Nic, ...] = ()
    """Slingshot NICs."""
    gpu_driver: str | None = None
    """Version of amdgpu; None where that module is not loaded, or does not report one."""
    gpus: tuple[str, ...] = ()
    """AMD GPUs, each by the name of its processor in compilers: `gfx90a`."""
    engine: ContainerEngine | None = None
    """The container engine of the node; null where none is found."""
    gaps: tuple[str, ...] = ()
    """What could not be determined, and why; one line each."""

    @property
    def day(self) -> dt.date:
        """Day of the scan."""
        return dt.date.fromisoformat(self.taken[:10])

    @property
    def engine_settings(self) -> Mapping[str, str]:
        """The administrator's settings of the engine, by name; empty where they are not known."""
        return (self.engine and self.engine.settings) or {}

    @property
    def gpu(self) -> str | None:
        """Processor of most of its GPUs; None where no GPU was seen."""
        return max(sorted(set(self.gpus)), key=self.gpus.count, default=None)

    @property
    def machine(self) -> str:
        """The node with its system, for messages: `nid005001: SLES 15 SP6, glibc 2.38`."""
        system = ", ".join(filter(None, (self.os.name, self.glibc and f"glibc {self.glibc}")))
        return f"{self.host}: {system}" if system else self.host


# -- as a root file system --

MACHINES = {62: "x86_64", 183: "aarch64"}
"""What `uname -m` prints, by e_machine."""
_MAX_WEIGHT = 1 << 28
"""Limit on the size of a tree: the characters of all paths and of all directories above them."""


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A place in the recorded file system; the root has an empty path."""

    path: str
    kind: FileKind


class SnapshotTree:
    """The recorded files of one snapshot. Raises ImageError where their paths do not form one tree."""

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
        """Return the node of a name in a directory; None where it has no such name."""
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
        """Return an inode's attributes; owner, time and permissions are those usual for system libraries."""
        size = self._libraries[node.path].size_bytes if node.kind is FileKind.FILE else 0
        return FileStat(node.kind, 0o755, 0, 0, size, 0, 1, self.directory_identity(node))

    def xattrs(self, node: SnapshotNode) -> None:
        """Return None: a snapshot has none."""

    def directory_identity(self, directory: SnapshotNode) -> tuple[str, str]:
        """Return a key that distinguishes a directory from all others."""
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
        """Return the library at a path, which may be a link; None where none is recorded."""
        return self._libraries.get(self.root.resolve(path)) if path and self.root.is_file(path) else None

    def fabrics(self) -> Iterator[tuple[FoundLibrary, FoundLibrary | None]]:
        """Yield each libfabric that reaches Slingshot, with its cxi provider where that is a separate file.

        Usually the provider is part of libfabric, which then needs libcxi. A separate file is in a folder that
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
        """The libfabric that the host itself would use with Slingshot: one that loads here together with libcxi."""
        for libfabric, provider in self.fabrics():
            user = provider or libfabric
            # libfabric opens its providers: on its own, a provider need not find its libfabric
            errors = [error for error in user.errors if provider is None or not error.startswith(f"{LIBFABRIC}: ")]
            if user.closure.get(LIBCXI) and not errors and not libfabric.errors:
                return libfabric
        return None


# -- as a file --

SCHEMA = 1
MAX_FILE_BYTES = 16 << 20


def scan_command() -> str:
    """Return the command that records a node without replacing an existing snapshot: `drift` may need that."""
    return f"lumiimg host scan -o {free_name('host.json')}"


def snapshot_text(snapshot: Snapshot) -> str:
    """Return the text of a snapshot's file."""
    return json.dumps(encode(snapshot), indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot; a concurrent reader sees the old file or the new one, never a part.

    Raises BadInputError if the path is something other than a file, FailedError if it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise BadInputError("is not a file", where=str(path), hint="`-o -` writes to standard output")
    write_text(path, snapshot_text(snapshot))


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file. Raises only DecodeError, whatever the bytes."""
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
    """Yield faults that the types allow and no scan writes; each check relies on all before it."""
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
