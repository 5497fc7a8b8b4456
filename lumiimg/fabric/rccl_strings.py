"""What an RCCL library says of itself, read from its bytes: version, plugin file names, accepted net API.

The names that it gives to dlopen and dlsym stand in its read-only data, next to its version. They are better evidence
than any table of releases: vendors patch them (ROCm 7.1 changed the file name, and back).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumiimg.elf.reader import Reader

# Device code makes a librccl hundreds of megabytes large; the strings stand in front of it.
_SCAN_LIMIT_BYTES = 96 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_OVERLAP_BYTES = 512
_VERSION = re.compile(rb"[RN]CCL version[ :]+(2\.\d{1,2}\.\d{1,2})[+ \-\x00\n]")
# Without look-behind, which costs three times as much; the byte in front is looked at afterwards.
_PLUGIN_FILE = re.compile(rb"lib[nr]ccl-net\.so(?=\x00)")
_SYMBOL = re.compile(rb"ncclNetPlugin_v(\d{1,2})(?=\x00)")


@dataclass(frozen=True, slots=True)
class RcclStrings:
    """What was found; empty where nothing was."""

    version: str | None
    plugin_files: tuple[str, ...]
    accepts: tuple[int, ...]
    """Versions of the net API, highest first."""


def read_rccl(reader: Reader) -> RcclStrings:
    """Scan the library's bytes for the strings that matter; stops soon after all kinds have been seen."""
    versions: list[str] = []
    files: set[str] = set()
    symbols: set[int] = set()
    enough = False
    tail = b""
    for offset in range(0, min(reader.size, _SCAN_LIMIT_BYTES), _CHUNK_BYTES):
        data = tail + reader.read_at(offset, _CHUNK_BYTES)
        versions += [match.decode() for match in _VERSION.findall(data)]
        files.update(match[0].decode() for match in _whole(_PLUGIN_FILE, data))
        symbols.update(int(match[1]) for match in _whole(_SYMBOL, data))
        if enough:
            break  # one more chunk was read: the strings lie side by side
        enough = bool(versions and symbols)
        tail = data[-_OVERLAP_BYTES:]
    return RcclStrings(
        version=versions[0] if versions else None,
        plugin_files=tuple(sorted(files)),
        accepts=tuple(sorted(symbols, reverse=True)),
    )


def _whole(pattern: re.Pattern[bytes], data: bytes) -> list[re.Match[bytes]]:
    """Return the matches that are whole C strings, not the end of a longer one."""
    return [match for match in pattern.finditer(data) if data[match.start() - 1 : match.start()] == b"\0"]
