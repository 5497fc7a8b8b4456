"""The fabric path: RCCL → net plugin → libfabric → cxi provider → libcxi → NIC, and which files are which part of it.

There are two kinds of names. Those that a program passes to dlopen are exact (`LIBRCCL`, `PLUGIN_FILES`, `LIBFABRIC`).
A file in an image, or mapped in a process, may have a longer name (`part_of`), because a link leads to it, or
NCCL_NET_PLUGIN names it. `rccl.py` says which of the plugin's names a given RCCL tries.
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
"""Names that programs need or open: the soname, or as in torch's wheels, which include a file without a number."""
PLUGIN_FILES = ("librccl-net.so", "libnccl-net.so")
"""Names that an RCCL tries without NCCL_NET_PLUGIN; its generation decides which of them (`rccl.toml`)."""
LAYER_PLUGINS = (*PLUGIN_FILES, "librccl-net-ofi.so", "libnccl-net-ofi.so")
"""Files that the plugin layers install (layers/lib/plugin.sh)."""
LIBFABRIC, LIBCXI = "libfabric.so.1", "libcxi.so.1"
HOST_LIB_DIR = "/opt/lumiimg/host"
"""Folder for the host's libraries in the container: nothing else uses it, and LD_LIBRARY_PATH begins with it."""
PROVIDER_FILE = "libcxi-fi.so"
"""Name of the cxi provider where it is a separate file (libfabric src/fabric.c, `ofi_load_dl_prov`)."""
NET_SYMBOL = "ncclNetPlugin_v"
"""Precedes a version of the net API: a plugin exports such a symbol for each one that it offers (NCCL nccl_net.h)."""

# auditwheel adds a part of the digest to the name of a library that it copies into a wheel
_RCCL = r"librccl(?:-[0-9a-f]{8})?\.so(?:\.\d+)*"
# NCCL_NET_PLUGIN=aws stands for librccl-net-aws.so, and a link may lead to a file with anything after `.so`; a file
# with separate debug information has the name of its library, but is not a plugin.
_PLUGIN = r"lib[nr]ccl-net[^/]*\.so[^/]*(?<!\.debug)"
_PARTS = {
    Part.RCCL: re.compile(_RCCL),
    Part.PLUGIN: re.compile(_PLUGIN),
    Part.LIBFABRIC: re.compile(r"libfabric\.so[^/]*"),
    Part.LIBCXI: re.compile(r"libcxi\.so[^/]*"),
}
RCCL_OR_PLUGIN = re.compile(f"{_RCCL}|{_PLUGIN}")
"""Names of files to search for in an image (`RootFileSystem.find`)."""
_API = re.compile(rf"{NET_SYMBOL}(\d{{1,2}})")
_MAX_PLUGINS, _MAX_NAME_CHARS = 14, 254
"""Limits of the list in NCCL_NET_PLUGIN: more names, and longer ones, are ignored (src/plugin/net.cc, from 2.27 on)."""
_THE_PROGRAM = "static_plugin"
"""Any prefix of it opens the program itself, which has no plugin (src/plugin/plugin_open.cc, from 2.26 on)."""
_INTERFACES = {Part.LIBFABRIC: "FABRIC_", Part.LIBCXI: "LIBCXI_"}


class PluginVariableRule(StrEnum):
    """How NCCL_NET_PLUGIN=X changes the names that are passed to dlopen (`rccl.toml`)."""

    SUFFIX = "suffix"
    NAME_THEN_SUFFIX = "name-then-suffix"
    NAME_OR_SUFFIX = "name-or-suffix"
    LIST = "list"
    LIST_OR_NONE = "list-or-none"

    @property
    def is_list(self) -> bool:
        """Whether the value is a list, so that an empty value names no plugin."""
        return self in {PluginVariableRule.LIST, PluginVariableRule.LIST_OR_NONE}


def part_of(file: str) -> Part | None:
    """Return the part of the fabric path that a library is, by its file name; None for any other file."""
    name = file.rpartition("/")[2]
    return next((part for part, pattern in _PARTS.items() if pattern.fullmatch(name)), None)


def net_symbol(version: int) -> str:
    """Return the symbol by which a plugin offers a version of the net API."""
    return f"{NET_SYMBOL}{version}"


def net_api(symbols: Iterable[str]) -> tuple[int, ...]:
    """Return the versions of the net API that exported symbols offer, highest first."""
    return tuple(sorted((int(match[1]) for name in symbols if (match := _API.fullmatch(name))), reverse=True))


def newest_interface(file: str, versions: Iterable[str]) -> str | None:
    """Return the newest version that a library defines of its own interface: `FABRIC_1.7`."""
    prefix = _INTERFACES.get(part_of(file) or Part.NIC)
    own = [version for version in versions if prefix and version.startswith(prefix)]
    return max(own, key=numbers_of, default=None)


def names_by_variable(value: str, stems: tuple[str, ...], naming: PluginVariableRule) -> tuple[str, ...]:
    """Return the names that RCCL passes to dlopen when NCCL_NET_PLUGIN is `value`; `stems` precede a suffix."""
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
"""Text of a step after a broken one."""


class Fabric(StrEnum):
    """Where the libraries of the fast network come from: libfabric with the cxi provider, and libcxi."""

    HOST = "host"
    """They are bound from the machine when the image runs."""
    BUNDLED = "bundled"
    """The image has its own, and needs no library of the machine."""
    NONE = "none"
    """There are none: no machine is named, it has none, or neither way loads."""


@dataclass(frozen=True, slots=True)
class FabricPath:
    """The files of the path and facts from them; None where these are not known."""

    rccl: str | None = None
    """Path, in the image, of the RCCL that a program loads."""
    rccl_version: str | None = None
    """Version according to its own bytes: `2.22.3`."""
    plugin_files: tuple[str, ...] = ()
    """Names that this RCCL passes to dlopen."""
    named_by: str | None = None
    """Value of NCCL_NET_PLUGIN, where it is set."""
    accepts: tuple[int, ...] = ()
    """Versions of the net API that this RCCL accepts, in its order."""
    plugin: str | None = None
    """Path, in the image, of the net plugin that RCCL opens."""
    plugin_api: int | None = None
    """Version of the net API that both use."""
    libfabric: str | None = None
    """Path of the libfabric that the plugin loads."""
    libcxi: str | None = None
    """Path of the libcxi in that process."""
    provider: str | None = None
    """Provider of libfabric: `cxi`."""

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
    """Side that a file belongs to."""

    IMAGE = "image"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one file of the path comes from."""

    side: Side
    host_path: str | None = None
    """Path of the file on the host; None where it is the image's, or not known."""
    offers: str | None = None
    """The newest version of its own interface that the file defines: `FABRIC_1.7`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the path, and its evidence."""

    part: Part
    """Part of the path that the step is about."""
    severity: Severity
    """What is known about it: `ok`, there is evidence for it; `problem`, the path is broken at it; else `unknown`."""
    why: str
    """The evidence, or why there is none."""
    level: Level | None = None
    """Level of the evidence; None where there is none."""
    file: str | None = None
    """Path in the container, or on the host where the file is known to come from there."""
    side: Side | None = None
    """Side that the file belongs to; None where that is not known."""
    version: str | None = None
    """Version according to the file itself; None where it has none."""
    interface: str | None = None
    """`net API v8`, `FABRIC_1.7`."""
    remedy: tuple[Remedy, ...] = ()
    """What to do where it is broken."""
    name: str | None = None
    """Name of the step on another fabric; None where it has the name of its part."""

    @property
    def title(self) -> str:
        """Name of the step."""
        return self.name or self.part.value


def path_sentence(steps: Sequence[Step]) -> str:
    """Return the conclusion from the steps of a path, as a sentence."""
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
