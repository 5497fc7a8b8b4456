"""How an RCCL handles a net plugin: which names it passes to dlopen, and which net API it accepts.

The names are in the library's read-only data, next to its version. They are better evidence than any table of releases:
vendors patch them (ROCm 7.1 changed the file name, later ones changed it back). What the bytes do not show, such as the
order of the names and the meaning of NCCL_NET_PLUGIN, is in a table of the generations (`rccl.toml`, rule 3).
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct
from packaging.version import InvalidVersion, Version

from lumiimg.core.decode import decode
from lumiimg.core.toml import package_toml
from lumiimg.fabric.path import NET_SYMBOL, PLUGIN_FILES, PluginVariableRule, names_by_variable

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess
    from lumiimg.image import RootFileSystem

PLUGIN_VARIABLE = "NCCL_NET_PLUGIN"
CONF = "/etc/rccl.conf"
"""RCCL sets the variables of this file that are not set yet, not even to an empty value (src/misc/param.cc, `initEnv`;
up to ROCm 5.1 it had NCCL's name, `/etc/nccl.conf`). RCCL 2.13.4 and 2.27.7 were run on such files."""
_STEMS = ("librccl-net",)
"""Stems before a suffix, where the bytes do not show any."""
_FIRST_WITH_NAMED_CONF = Version("2.23")
_CONF_LIMIT_BYTES = 1 << 20
_CONF_FIELD_BYTES = 1023
# Device code makes a librccl hundreds of megabytes large; the strings precede it.
_SCAN_LIMIT_BYTES = 96 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_OVERLAP_BYTES = 512
_VERSION = re.compile(rb"[RN]CCL version[ :]+(2\.\d{1,2}\.\d{1,2})[+ \-\x00\n]")
# From 2.21 on it prints the build of ROCm (src/init.cc, showVersion); before, its own version includes that of HIP.
_ROCM = re.compile(rb"ROCm version *: (\d{1,2}\.\d{1,2}\.\d{1,2})|RCCL version 2\.[\d.]+\+hip(\d{1,2}\.\d{1,2})")
# Without a look-behind, which takes three times as long; the preceding byte is checked afterwards.
_PLUGIN_FILE = re.compile(b"(%b)(?=\x00)" % "|".join(map(re.escape, PLUGIN_FILES)).encode())
_STEM = re.compile(rb"(lib[nr]ccl-net)(?=\x00|-%s\.so\x00)")
_SYMBOL = re.compile(rb"%b(\d{1,2})(?=\x00)" % NET_SYMBOL.encode())


class Generation(Struct, frozen=True):
    """A range of RCCL versions that treat plugins alike (`rccl.toml`)."""

    since: Version
    rocm: str
    accepts: tuple[int, ...]
    """Versions of the net API, in the order in which they are tried."""
    files: tuple[str, ...]
    """File names that are tried when NCCL_NET_PLUGIN is not set."""
    naming: PluginVariableRule
    unique_id_loads_plugin: bool
    """Whether ncclGetUniqueId opens the plugin on a machine without a GPU."""
    basis: str


class RcclTable(Struct, frozen=True):
    """Contents of `rccl.toml`."""

    source: str
    date: dt.date
    remedy_for_old_api: str
    """What to do about a plugin whose API an RCCL does not accept."""
    generation: tuple[Generation, ...]
    """Generations, the oldest first."""


@dataclass(frozen=True, slots=True)
class Rccl:
    """One RCCL library, as its bytes show it; a value is empty where they do not show it."""

    version: str | None = None
    plugin_files: tuple[str, ...] = ()
    """Plugin file names in its bytes, sorted."""
    plugin_stems: tuple[str, ...] = ()
    """Stems that it puts before a suffix, sorted: RCCL 2.27.7 tries libnccl-net.so, and librccl-net-X.so."""
    net_api: tuple[int, ...] = ()
    """Versions of the net API that it looks for, highest first."""
    rocm: str | None = None
    """Version of the ROCm that it was built with: `7.2.4`; in older ones that of HIP, which is ROCm's: `6.2`."""

    @property
    def generation(self) -> Generation | None:
        """The row of the table that this library belongs to; None where its version is not known or not listed."""
        return generation_of(self.version) if self.version else None

    @property
    def accepts(self) -> tuple[int, ...]:
        """Versions of the net API that it accepts, in its order; from the table where the bytes do not show them."""
        return self.net_api or (self.generation.accepts if self.generation else ())

    def names(self, variable: str | None) -> tuple[str, ...]:
        """Return the names that it passes to dlopen, in its order; `variable` is NCCL_NET_PLUGIN.

        Empty where neither the bytes nor the table show any, and where the variable disables plugins (`opens_none`).
        """
        if variable is not None and self.generation is None:
            return ()
        if variable is not None and self.generation is not None and (variable or self.generation.naming.is_list):
            return names_by_variable(variable, self.plugin_stems or _STEMS, self.generation.naming)
        # all names are in the bytes; only the table has the order in which they are tried
        known = self.generation.files if self.generation else ()
        return tuple(sorted(self.plugin_files, key=lambda f: known.index(f) if f in known else len(known))) or known

    @property
    def reads_named_conf(self) -> bool:
        """Whether it reads the file that NCCL_CONF_FILE names; one of unknown version may."""
        return self.version is None or Version(self.version) >= _FIRST_WITH_NAMED_CONF

    def opens_none(self, variable: str | None) -> bool:
        """Whether NCCL_NET_PLUGIN keeps it from opening any plugin."""
        return self.generation is not None and not self.names(variable)


@cache
def rccl_table() -> RcclTable:
    """Return the generations of RCCL (rccl.toml)."""
    return decode(package_toml(__package__, "rccl.toml"), RcclTable)


def generation_of(version: str) -> Generation | None:
    """Return the generation of an RCCL version ("2.13.4"), or None for one that the table does not cover."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        return None
    return next((entry for entry in reversed(rccl_table().generation) if entry.since <= wanted), None)


def version_of_code(code: int) -> str:
    """Return the dotted form of a number from ncclGetVersion: 21304 is 2.13.4 (10000 per major from 2.9 on, nccl.h)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def read_rccl(reader: RandomAccess) -> Rccl:
    """Return what a library's bytes show; the scan stops soon after a version and a net API symbol were found."""
    found: dict[re.Pattern[bytes], set[str]] = {each: set() for each in (_PLUGIN_FILE, _STEM, _SYMBOL)}
    versions: list[str] = []
    rocm: list[str] = []
    enough = False
    tail = b""
    for offset in range(0, min(reader.size, _SCAN_LIMIT_BYTES), _CHUNK_BYTES):
        data = tail + reader.read_at(offset, _CHUNK_BYTES)
        versions += [match[1].decode() for match in _VERSION.finditer(data)]
        rocm += [(match[1] or match[2]).decode() for match in _ROCM.finditer(data)]
        for pattern, texts in found.items():
            # only whole C strings, not the end of a longer one
            starts = (match for match in pattern.finditer(data) if data[match.start() - 1 : match.start()] == b"\0")
            texts.update(match[1].decode() for match in starts)
        if enough:
            break  # one more chunk was read: the strings are next to each other
        enough = bool(versions and found[_SYMBOL])
        tail = data[-_OVERLAP_BYTES:]
    return Rccl(
        version=next(iter(versions), None),
        plugin_files=tuple(sorted(found[_PLUGIN_FILE])),
        plugin_stems=tuple(sorted(found[_STEM])),
        net_api=tuple(sorted(map(int, found[_SYMBOL]), reverse=True)),
        rocm=next(iter(rocm), None),
    )


def read_conf(root: RootFileSystem) -> dict[str, str]:
    """Return the variables that RCCL's own file sets where nothing else does.

    Raises OSError where the file cannot be opened, and BadInputError where it cannot be read.
    """
    of_conf: dict[str, str] = {}
    for line in root.read_bytes(CONF, _CONF_LIMIT_BYTES).split(b"\n"):
        name, equals, value = line.partition(b"\0")[0].partition(b"=")
        if equals:  # spaces count, and the first line that sets a variable
            words = (part[:_CONF_FIELD_BYTES].decode("utf-8", "replace") for part in (name, value))
            of_conf.setdefault(*words)
    return of_conf
