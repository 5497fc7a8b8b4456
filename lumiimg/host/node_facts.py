"""Facts about a node from /etc, /proc, /sys and /dev, and its container engine; and what else a scan looks for."""

from __future__ import annotations

import datetime as dt
import re
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from lumiimg.core.decode import decode
from lumiimg.core.errors import MissingHereError
from lumiimg.core.toml import package_toml
from lumiimg.elf import cpu_levels
from lumiimg.engine.engine import EngineKind, container_engines
from lumiimg.host.root_queries import by_version, matches, names_in, read_text, read_word
from lumiimg.host.snapshot import ContainerEngine, Nic, OperatingSystem
from lumiimg.inventory.system import os_release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lumiimg.image import RootFileSystem

_GPU_NODES = "/sys/class/kfd/kfd/topology/nodes/*/properties"
_GFX_VERSION = re.compile(r"^gfx_target_version ([0-9]{1,7})$", re.MULTILINE)


def operating_system(root: RootFileSystem) -> OperatingSystem:
    """Return what os-release(5) says."""
    values = os_release(root)
    name = values.get("PRETTY_NAME") or values.get("NAME", "")
    return OperatingSystem(values.get("ID", ""), values.get("VERSION_ID", ""), name)


def cpu(root: RootFileSystem) -> tuple[str | None, bool, tuple[str, ...]]:
    """Return (model name, whether it is an Intel CPU, glibc-hwcaps levels, best first) from proc_cpuinfo(5)."""
    values: dict[str, str] = {}
    for line in (read_text(root, "/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    levels = cpu_levels(values.get("flags", "").split())
    return values.get("model name") or None, values.get("vendor_id") == "GenuineIntel", levels


def devices(root: RootFileSystem) -> tuple[str, ...]:
    """Return the device files of the fabric and the GPUs."""
    return tuple(path for pattern in scan_facts().devices for path in matches(root, pattern))


def nics(root: RootFileSystem) -> tuple[Nic, ...]:
    """Return the Slingshot NICs, from what cxi_stat of HPE's libcxi reads, but without addresses and numbers."""
    netdevs: dict[str, str] = {}
    for name in names_in(root, "/sys/class/net"):
        device = f"/sys/class/net/{name}/device"
        if root.exists(device):
            netdevs[root.resolve(device).rpartition("/")[2]] = name
    found = []
    for path in matches(root, "/sys/class/cxi/cxi[0-9]*"):
        device = f"{path}/device"
        uevent = read_text(root, f"{device}/uevent") or ""
        pci = next((line.partition("=")[2] for line in uevent.splitlines() if line.startswith("PCI_SLOT_NAME=")), None)
        speed = read_word(root, f"{device}/properties/speed") or ""
        link = read_word(root, f"{device}/properties/link")
        found.append(
            Nic(
                device=path.rpartition("/")[2],
                speed_mbit_s=int(speed) if re.fullmatch(r"[1-9][0-9]{0,9}", speed) else None,
                link_is_up=None if link is None else link == "1",
                chip=read_word(root, f"{device}/properties/cassini_version"),
                firmware=read_word(root, f"{device}/uc/qspi_blob_version"),
                driver=read_word(root, f"{device}/properties/driver_rev"),
                pci=pci,
                netdev=netdevs.get(pci) if pci else None,
            )
        )
    return tuple(found)


def gpus(root: RootFileSystem) -> tuple[str, ...]:
    """Return the processor of each AMD GPU, as the kernel driver describes it to the runtime (ROCr, topology.c).

    `gfx_target_version` is 0 for a CPU, and 90010 for a gfx90a: two digits each for minor and stepping.
    """
    found = []
    for path in sorted(matches(root, _GPU_NODES), key=by_version):  # by number: 10 comes after 9
        version = _GFX_VERSION.search(read_text(root, path) or "")
        if version and int(version[1]):
            major, minor, stepping = int(version[1]) // 10000, int(version[1]) // 100 % 100, int(version[1]) % 100
            found.append(f"gfx{major}{minor:x}{stepping:x}")
    return tuple(found)


def container_engine(
    root: RootFileSystem, environment: Mapping[str, str], is_private: Callable[[str], bool]
) -> ContainerEngine | None:
    """Return the engine of this machine with the settings that affect binds; None where no engine responds."""
    try:
        engine = next(container_engines(environment))
    except MissingHereError:
        return None
    name = "apptainer" if engine.kind is EngineKind.APPTAINER else "singularity"
    prefix = str(engine.path.resolve().parent.parent)
    places = [pattern.format(name=name, prefix=prefix) for pattern in scan_facts().engine_files]
    # the installation's own file counts: one under /etc may be left over from another
    for path in reversed(places) if prefix != "/usr" else places:
        text = read_text(root, path)
        if text is not None and not is_private(path):
            return ContainerEngine(engine.family, engine.version, path, engine_settings(text))
    return ContainerEngine(engine.family, engine.version)


def engine_settings(text: str) -> dict[str, str]:
    """Return the relevant settings of an apptainer.conf or singularity.conf; repeated ones are joined by commas."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        name = key.strip()
        if equals and name in scan_facts().engine_settings:
            settings[name] = ", ".join(filter(None, (settings.get(name), value.strip())))
    return settings


# -- what is looked for, and where sites put it --


class Role(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the fabric path that a host may offer."""

    name: str
    files: tuple[str, ...]
    """File names; a `*` stands for anything."""
    source: str
    date: dt.date
    prefixes: tuple[str, ...] = ()
    """Folders; a `*` stands for one name."""
    wanted_by: str | None = None
    """Role without which this one is useless."""
    beside: str | None = None
    """Name of a folder to search, next to each entry of `wanted_by`."""
    variable: str | None = None
    """Variable that names more folders."""


class ScanFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of `scan_facts.toml`."""

    role: tuple[Role, ...]
    own_folders: tuple[str, ...]
    """Folders whose contents belong to a person."""
    devices: tuple[str, ...]
    engine_settings: tuple[str, ...]
    engine_files: tuple[str, ...]
    """Configuration files; `{name}` is the engine's name, `{prefix}` its installation prefix."""
    source: str
    date: dt.date


@cache
def scan_facts() -> ScanFacts:
    return decode(package_toml(__package__, "scan_facts.toml"), ScanFacts)
