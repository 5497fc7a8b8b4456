"""Which file and which symbol belongs to which part of the fabric path, by its name: the one place that knows.

Two kinds of names are kept apart. What a program gives to dlopen is exact (`LIBRCCL`, `PLUGIN_FILES`, `LIBFABRIC`).
What lies in an image or is mapped in a process may have a longer name (`part_of`), since a link leads to it, or
NCCL_NET_PLUGIN names it. `rccl.py` says which of the plugin's names one RCCL asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from lumiimg.core.text import numbers_of
from lumiimg.fabric.path import Part

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
