"""The fabric path: RCCL → net plugin → libfabric → cxi provider → libcxi → NIC, and which files are which part of it.

There are two kinds of names. What a program gives to dlopen is exact (`LIBRCCL`, `PLUGIN_FILES`, `LIBFABRIC`).
What lies in an image or is mapped in a process may have a longer name (`part_of`), since a link leads to it, or
NCCL_NET_PLUGIN names it. `rccl.py` says which of the plugin's names one RCCL asks for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.core.findings import Level, Remedy, Severity
from lumiimg.core.text import numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Part(StrEnum):
    """A step of the path, in its order."""

    RCCL = "RCCL"
    PLUGIN = "net plugin"
    LIBFABRIC = "libfabric"
    PROVIDER = "cxi provider"
    LIBCXI = "libcxi"
    NIC = "Slingshot NIC"


LIBRCCL = ("librccl.so.1", "librccl.so")
"""What programs ask the loader for: by the soname, or as torch's wheels, which bring a file without a number."""
PLUGIN_FILES = ("librccl-net.so", "libnccl-net.so")
"""What an RCCL looks for without NCCL_NET_PLUGIN; which of them, its generation says (`rccl.toml`)."""
LAYER_PLUGINS = (*PLUGIN_FILES, "librccl-net-ofi.so", "libnccl-net-ofi.so")
"""What the layers of plugins install (layers/lib/plugin.sh)."""
LIBFABRIC, LIBCXI = "libfabric.so.1", "libcxi.so.1"
HOST_LIB_DIR = "/opt/lumiimg/host"
"""Where the host's libraries are put in the container: a folder that nothing else uses, in front of LD_LIBRARY_PATH."""
PROVIDER_FILE = "libcxi-fi.so"
"""The cxi provider where it is a file of its own (libfabric src/fabric.c, `ofi_load_dl_prov`)."""
NET_SYMBOL = "ncclNetPlugin_v"
"""In front of a version of the net API: a plugin exports such a symbol for each that it offers (NCCL nccl_net.h)."""

# auditwheel puts a part of the digest into the name of what it takes into a wheel
_RCCL = r"librccl(?:-[0-9a-f]{8})?\.so(?:\.\d+)*"
# NCCL_NET_PLUGIN=aws asks for librccl-net-aws.so, and a link may lead to a file with anything after `.so`; separate
# debugging information has the name of its library, and is none.
_PLUGIN = r"lib[nr]ccl-net[^/]*\.so[^/]*(?<!\.debug)"
_PARTS = {
    Part.RCCL: re.compile(_RCCL),
    Part.PLUGIN: re.compile(_PLUGIN),
    Part.LIBFABRIC: re.compile(r"libfabric\.so[^/]*"),
    Part.LIBCXI: re.compile(r"libcxi\.so[^/]*"),
}
RCCL_OR_PLUGIN = re.compile(f"{_RCCL}|{_PLUGIN}")
"""What to look for in an image (`RootFileSystem.find`)."""
_API = re.compile(rf"{NET_SYMBOL}(\d{{1,2}})")
_MAX_PLUGINS, _MAX_NAME_CHARS = 14, 254
"""Of the list in NCCL_NET_PLUGIN, the rest and longer names are left out (src/plugin/net.cc, from 2.27 on)."""
_THE_PROGRAM = "static_plugin"
"""Any beginning of it opens the program itself, where no plugin is (src/plugin/plugin_open.cc, from 2.26 on)."""
_INTERFACES = {Part.LIBFABRIC: "FABRIC_", Part.LIBCXI: "LIBCXI_"}


class PluginVariableRule(StrEnum):
    """What NCCL_NET_PLUGIN=X makes of the names that are given to dlopen (`rccl.toml`)."""

    SUFFIX = "suffix"
    NAME_THEN_SUFFIX = "name-then-suffix"
    NAME_OR_SUFFIX = "name-or-suffix"
    LIST = "list"
    LIST_OR_NONE = "list-or-none"

    @property
    def is_list(self) -> bool:
        """Whether it is one, so that nothing names nothing."""
        return self in {PluginVariableRule.LIST, PluginVariableRule.LIST_OR_NONE}


def part_of(file: str) -> Part | None:
    """Return the part of the path that a library is by the last part of its path; None for any other file."""
    name = file.rpartition("/")[2]
    return next((part for part, pattern in _PARTS.items() if pattern.fullmatch(name)), None)


def net_symbol(version: int) -> str:
    """Return the symbol by which a plugin offers a version of the net API."""
    return f"{NET_SYMBOL}{version}"


def net_api(symbols: Iterable[str]) -> tuple[int, ...]:
    """Return the versions of the net API that exported symbols offer, highest first."""
    return tuple(sorted((int(match[1]) for name in symbols if (match := _API.fullmatch(name))), reverse=True))


def newest_interface(file: str, versions: Iterable[str]) -> str | None:
    """Return the newest version of its own interface among those that a library defines: `FABRIC_1.7`."""
    prefix = _INTERFACES.get(part_of(file) or Part.NIC)
    own = [version for version in versions if prefix and version.startswith(prefix)]
    return max(own, key=numbers_of, default=None)


def names_by_variable(value: str, stems: tuple[str, ...], naming: PluginVariableRule) -> tuple[str, ...]:
    """Return what RCCL gives to dlopen when NCCL_NET_PLUGIN is `value`; `stems` are put in front of a suffix."""
    words = [value]
    if naming.is_list:
        is_none = naming is PluginVariableRule.LIST_OR_NONE and value.lower() == "none"
        words = [word for word in value.split(",") if word and len(word) <= _MAX_NAME_CHARS and not is_none]
    names: list[str] = []
    for word in words[:_MAX_PLUGINS]:
        suffixed = [f"{stem}-{word}.so" for stem in stems]
        if naming is PluginVariableRule.SUFFIX:
            names += suffixed
        elif naming is PluginVariableRule.NAME_THEN_SUFFIX:
            names += [word, *suffixed]
        elif "/" in word or (word.startswith("lib") and word.endswith(".so")):
            names.append(word)
        elif not _THE_PROGRAM.startswith(word.lower()):
            names += [word, *suffixed]
    return tuple(dict.fromkeys(names))


NOT_REACHED = "not reached: the path ends before it"
"""The text of a step behind a broken one."""


class Fabric(StrEnum):
    """Where the libraries of the fast network come from: libfabric with the cxi provider, and libcxi."""

    HOST = "host"
    """They are bound from the machine when the image runs."""
    BUNDLED = "bundled"
    """The image has its own, and needs no library of the machine."""
    NONE = "none"
    """From nowhere: no machine is named, it has none, or neither way loads."""


@dataclass(frozen=True, slots=True)
class FabricPath:
    """The files of the path and what they say; None where that is not known."""

    rccl: str | None = None
    """Path of the RCCL that a program gets, in the image."""
    rccl_version: str | None = None
    """As its own bytes say: `2.22.3`."""
    plugin_files: tuple[str, ...] = ()
    """Names that this RCCL gives to dlopen."""
    named_by: str | None = None
    """NCCL_NET_PLUGIN, where it is set."""
    accepts: tuple[int, ...] = ()
    """Versions of the net API that this RCCL takes, in its order."""
    plugin: str | None = None
    """Path of the net plugin that RCCL opens, in the image."""
    plugin_api: int | None = None
    """Version of the net API that both speak."""
    libfabric: str | None = None
    """Path of the libfabric that the plugin gets."""
    libcxi: str | None = None
    """Path of the libcxi in that process."""
    provider: str | None = None
    """Of libfabric: `cxi`."""

    @property
    def line(self) -> str:
        """The path in one line."""
        api = f" (API v{self.plugin_api})" if self.plugin_api else ""
        parts = [
            f"RCCL {self.rccl_version or '?'}" if self.rccl else "no RCCL",
            f"{self.plugin}{api}" if self.plugin else "no plugin",
        ]
        if self.plugin:
            parts += [self.libfabric or "libfabric: none in the image", f"provider {self.provider or 'not known yet'}"]
        return " -> ".join(parts)


class Side(StrEnum):
    """Whose file it is."""

    IMAGE = "image"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one file of the path comes from."""

    side: Side
    host_path: str | None = None
    """Where the file lies on the host; None where it is the image's, or not known."""
    offers: str | None = None
    """The newest version of its own interface that the file defines: `FABRIC_1.7`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the path, and its evidence."""

    part: Part
    """Which step it is."""
    severity: Severity
    """What is known of it: `ok`, there is evidence for it; `problem`, the path ends in front of it; else `unknown`."""
    why: str
    """The evidence, or why there is none."""
    level: Level | None = None
    """Level of the evidence; None where there is none."""
    file: str | None = None
    """The path in the container; on the host where the file is known to come from there."""
    side: Side | None = None
    """Whose file it is; None where that is not known."""
    version: str | None = None
    """Of the file, as it says itself; None where it does not."""
    interface: str | None = None
    """`net API v8`, `FABRIC_1.7`."""
    remedy: tuple[Remedy, ...] = ()
    """What to do where it is broken."""
    name: str | None = None
    """What the step of another fabric is called; None where it has the name of its part."""

    @property
    def title(self) -> str:
        """What the step is called."""
        return self.name or self.part.value


def path_sentence(steps: Sequence[Step]) -> str:
    """Return what the steps of a path come to, for a person."""
    broken = [step for step in steps if step.severity is Severity.PROBLEM]
    unknown = [step.title for step in steps if step.severity is Severity.UNKNOWN]
    if len(unknown) == len(steps):
        return "No step of the path was seen."
    if broken:
        return f"The path is broken at {broken[0].title}, step {list(steps).index(broken[0]) + 1} of {len(steps)}."
    if unknown:
        return f"No step is known to be broken; not known: {', '.join(unknown)}."
    level = min((step.level for step in steps if step.level), key=list(Level).index, default=Level.STATIC)
    return f"Every step holds, each with evidence of at least level {level.value}."
