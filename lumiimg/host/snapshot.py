"""What one node offers to a container, as a value; `host/snapshot_file.py` writes and reads it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from lumiimg.core.decode import Sha256, matching
from lumiimg.elf import ElfFacts  # noqa: TC001 - `decode` reads the types of the fields

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
