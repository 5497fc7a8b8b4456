"""What an RCCL does with a net plugin: which names it gives to dlopen, and which net API it takes.

The names stand in the library's read-only data, next to its version. They are better evidence than any table of
releases: vendors patch them (ROCm 7.1 changed the file name, and back). What the bytes do not say, such as the order of
the names and what NCCL_NET_PLUGIN means, is in a table of the generations (`rccl.toml`, rule 3).
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
"""RCCL sets the variables of this file that are not set yet, be it to nothing (src/misc/param.cc, `initEnv`; up to
ROCm 5.1 the name was that of NCCL, `/etc/nccl.conf`). RCCL 2.13.4 and 2.27.7 were run on such files."""
_STEMS = ("librccl-net",)
"""In front of a suffix, where the bytes do not say."""
_FIRST_WITH_NAMED_CONF = Version("2.23")
_CONF_LIMIT_BYTES = 1 << 20
_CONF_FIELD_BYTES = 1023
# Device code makes a librccl hundreds of megabytes large; the strings stand in front of it.
_SCAN_LIMIT_BYTES = 96 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_OVERLAP_BYTES = 512
_VERSION = re.compile(rb"[RN]CCL version[ :]+(2\.\d{1,2}\.\d{1,2})[+ \-\x00\n]")
# From 2.21 on it prints the build of ROCm (src/init.cc, showVersion); before, HIP's version is a part of its own.
_ROCM = re.compile(rb"ROCm version *: (\d{1,2}\.\d{1,2}\.\d{1,2})|RCCL version 2\.[\d.]+\+hip(\d{1,2}\.\d{1,2})")
# Without look-behind, which costs three times as much; the byte in front is looked at afterwards.
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
    """File names that are looked for when NCCL_NET_PLUGIN is not set."""
    naming: PluginVariableRule
    unique_id_loads_plugin: bool
    """Whether ncclGetUniqueId opens the plugin on a machine without a GPU."""
    basis: str


class RcclTable(Struct, frozen=True):
    """What `rccl.toml` has."""

    source: str
    date: dt.date
    remedy_for_old_api: str
    """What to do about a plugin whose API an RCCL does not take."""
    generation: tuple[Generation, ...]
    """The oldest first."""


@dataclass(frozen=True, slots=True)
class Rccl:
    """One RCCL library, by what its bytes say; empty where they say nothing."""

    version: str | None = None
    plugin_files: tuple[str, ...] = ()
    """Names that it has for a plugin, sorted."""
    plugin_stems: tuple[str, ...] = ()
    """What it puts in front of a suffix, sorted: RCCL 2.27.7 looks for libnccl-net.so, and for librccl-net-X.so."""
    net_api: tuple[int, ...] = ()
    """Versions of the net API that it looks for, highest first."""
    rocm: str | None = None
    """The ROCm that it was built with: `7.2.4`; of older ones the version of HIP, which is ROCm's: `6.2`."""

    @property
    def generation(self) -> Generation | None:
        """The row of the table that this library belongs to; None where its version is not known or not listed."""
        return generation_of(self.version) if self.version else None

    @property
    def accepts(self) -> tuple[int, ...]:
        """Versions of the net API that it takes, in its order; of the table where the bytes do not say."""
        return self.net_api or (self.generation.accepts if self.generation else ())

    def names(self, variable: str | None) -> tuple[str, ...]:
        """Return what it gives to dlopen, in its order; `variable` is NCCL_NET_PLUGIN.

        Empty where neither the bytes nor the table say, and where the variable keeps it from any (`opens_none`).
        """
        if variable is not None and self.generation is None:
            return ()
        if variable is not None and self.generation is not None and (variable or self.generation.naming.is_list):
            return names_by_variable(variable, self.plugin_stems or _STEMS, self.generation.naming)
        # all names stand in the bytes; in which order they are tried, only the table says
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
    """Return the generation of an RCCL version ("2.13.4"), or None for one that the table does not reach."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        return None
    return next((entry for entry in reversed(rccl_table().generation) if entry.since <= wanted), None)


def version_of_code(code: int) -> str:
    """Return the dotted form of what ncclGetVersion gives: 21304 is 2.13.4 (10000 a major from 2.9 on, nccl.h)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def read_rccl(reader: RandomAccess) -> Rccl:
    """Scan the library's bytes for the strings that matter; stops soon after all kinds have been seen."""
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
            # whole C strings alone, not the end of a longer one
            starts = (match for match in pattern.finditer(data) if data[match.start() - 1 : match.start()] == b"\0")
            texts.update(match[1].decode() for match in starts)
        if enough:
            break  # one more chunk was read: the strings lie side by side
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
    """Return what RCCL's own file sets, where nothing else does.

    Raises OSError where the file is not there, and BadInputError where it cannot be read.
    """
    of_conf: dict[str, str] = {}
    for line in root.read_bytes(CONF, _CONF_LIMIT_BYTES).split(b"\n"):
        name, equals, value = line.partition(b"\0")[0].partition(b"=")
        if equals:  # blanks count, and the first line that sets a variable
            words = (part[:_CONF_FIELD_BYTES].decode("utf-8", "replace") for part in (name, value))
            of_conf.setdefault(*words)
    return of_conf
