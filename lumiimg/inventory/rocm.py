"""Which ROCm an image has, by what there is: AMD's note, records of packages, names of libraries, what RCCL says.

AMD's packages leave a note in `/opt/rocm/.info/version`, from 7.14 on below `core/`. Distributions do not, nor does
everybody who copies a ROCm into an image. What a Python wheel brings along is another ROCm than the image's: the driver
has to serve both.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from lumiimg.elf.system import read_what_is_there
from lumiimg.image.tree import ImageError
from lumiimg.inventory.system import RPM_FOLDERS, packages_of_dpkg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumiimg.fabric.rccl import Rccl
    from lumiimg.image import RootFileSystem

LIBRARY = re.compile(r"lib(?:rocm-core|amdhip64|hsa-runtime64|rccl)\.so(?:\.\d+)*")
"""Files that show a ROCm."""
NOTES = (".info/version", "core/.info/version")
"""Where AMD's note lies below `/opt/rocm`; the second is that of rocm/dev-ubuntu-24.04:10.0.0-full."""
_NOTE_LIMIT_BYTES = 4096
_VERSION = re.compile(r"(?:\d+:)?(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)(?!\d)")
# AMD's rocm-core and rocm-core6.2.4; Debian's librocm-core1; before it had that, the version of HIP, which is ROCm's.
_DPKG = (re.compile(r"rocm-core[\d.]*|librocm-core\d+"), re.compile(r"libamdhip64-\d+"))
_RPM = tuple(f"{folder}/{file}" for folder in RPM_FOLDERS for file in ("rpmdb.sqlite", "Packages.db", "Packages"))
# How the data of a header begin in each of rpm's databases: the table of languages (`C`), the name, the version (tags
# 100, 1000 and 1001; rpm 4.20 run with sqlite and with ndb). Fedora has rocm-hip and rocm-runtime.
_RPM_HEADER = re.compile(rb"\0C\0rocm-(?:core[\d.]*|hip|runtime)\0(\d{1,2}\.\d{1,2}\.\d{1,2})(?=[.\0])")
_RPM_LIMIT_BYTES, _CHUNK_BYTES, _OVERLAP_BYTES = 256 << 20, 1 << 20, 256
# AMD's libraries end in the number of the release: librccl.so.1.0.60204. HIP's may end in a build of its own.
_NUMBERED = re.compile(r"lib(?:rocm-core|rccl|hsa-runtime64)\.so\.\d+\.\d+\.(\d{1,2})(\d\d)(\d\d)")
_HIP = re.compile(r"libamdhip64\.so\.(\d{1,2}\.\d{1,2})\.\d+")
_RCCL = re.compile(r".*/librccl\.so[.\d]*")
_MOST_RCCLS = 4
_OF_WHEELS = re.compile(r"/(?:site|dist)-packages/")
_RUNS = re.compile(r"/lib(?:amdhip64|rccl)\.so[.\d]*$")


def rocm_of(root: RootFileSystem, libraries: Sequence[str], rccl_at: Callable[[str], Rccl]) -> tuple[bool, str | None]:
    """Return (whether an image has a ROCm of its own, its version where anything says it).

    `libraries` are the paths in it that `LIBRARY` fits; `rccl_at` reads an RCCL. A version of two parts is a release
    whose patches nobody names.
    """
    own = [path for path in libraries if _OF_WHEELS.search(path) is None]
    version = next(_said(root, own, rccl_at), None)
    return bool(own) or version is not None, version


def rocm_in_wheels(libraries: Sequence[str], rccl_at: Callable[[str], Rccl]) -> tuple[bool, str | None]:
    """Return the same of the ROCm that Python wheels bring along, as AMD's `rocm-sdk-core` does."""
    theirs = [path for path in libraries if _OF_WHEELS.search(path) and _RUNS.search(path)]
    names = [path.rpartition("/")[2] for path in theirs]
    said = (*_of_rccl(theirs, rccl_at), *_of_names(_HIP, names))
    return bool(theirs), next(iter(said), None)


def _said(root: RootFileSystem, libraries: Sequence[str], rccl_at: Callable[[str], Rccl]) -> Iterator[str]:
    """Yield what each kind of evidence says, the surest first; what nobody asks for is not read."""
    for folder in dict.fromkeys(("/opt/rocm", *(path.rsplit("/", 2)[0] for path in libraries))):
        for note in NOTES:
            data = read_what_is_there(root, f"{folder}/{note}", _NOTE_LIMIT_BYTES)
            yield from _versions(data.decode("utf-8", "replace"))
    packages: list[tuple[str, str]] = []
    with contextlib.suppress(OSError, ImageError):
        packages += packages_of_dpkg(root)
    names = [path.rpartition("/")[2] for path in libraries]
    core, hip = ([text for name, text in packages if pattern.fullmatch(name)] for pattern in _DPKG)
    yield from _versions(*core)
    yield from _of_rpm(root)
    yield from (".".join(str(int(n)) for n in match.groups()) for match in map(_NUMBERED.fullmatch, names) if match)
    yield from _versions(*hip)
    yield from _of_rccl(libraries, rccl_at)
    yield from _of_names(_HIP, names)


def _of_names(pattern: re.Pattern[str], names: Sequence[str]) -> Iterator[str]:
    yield from (match[1] for match in map(pattern.fullmatch, names) if match)


def _versions(*texts: str) -> list[str]:
    return [match[1] for match in map(_VERSION.match, texts) if match]


def _of_rpm(root: RootFileSystem) -> Iterator[str]:
    """Yield the version of ROCm's packages in a database of rpm: the newest, as updates leave older records behind."""
    for path in _RPM:
        with contextlib.suppress(OSError, ImageError), contextlib.closing(root.open(path)) as file:
            found: set[bytes] = set()
            for start in range(0, min(file.size, _RPM_LIMIT_BYTES), _CHUNK_BYTES):
                found.update(_RPM_HEADER.findall(file.read_at(start, _CHUNK_BYTES + _OVERLAP_BYTES)))
            if found:
                yield max(found, key=lambda version: tuple(map(int, version.split(b".")))).decode()


def _of_rccl(libraries: Sequence[str], rccl_at: Callable[[str], Rccl]) -> Iterator[str]:
    """Yield the ROCm that RCCL says it was built with, or the one release that its version came with."""
    for path in [path for path in libraries if _RCCL.fullmatch(path)][:_MOST_RCCLS]:
        with contextlib.suppress(OSError, ImageError):
            rccl = rccl_at(path)
            release = rccl.generation.rocm if rccl.generation else ""
            yield from _versions(rccl.rocm or (release if _VERSION.fullmatch(release) else ""))
