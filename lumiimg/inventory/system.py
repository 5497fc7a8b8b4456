"""The operating system of an image or node: its name, its dpkg packages, and its ROCm, from all available evidence.

AMD's ROCm packages write `/opt/rocm/.info/version`, from 7.14 on below `core/`. Distributions do not, and neither does
everybody who copies ROCm into an image. A ROCm included in a Python wheel is separate from that of the image: the
driver must support both.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from lumiimg.core.access import read_or_empty
from lumiimg.image import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumiimg.fabric.rccl import Rccl
    from lumiimg.image import RootFileSystem

_STATUS = "/var/lib/dpkg/status"
_STATUS_LIMIT_BYTES = 64 << 20
_FIELD = re.compile(r"^(Package|Version|Status): (.*)$", re.MULTILINE)
_PLACES = ("/etc/os-release", "/usr/lib/os-release")
_LIMIT_BYTES = 64 << 10
_MAX_VALUE_CHARACTERS = 256
_ASSIGNMENT = re.compile(r"([A-Za-z0-9_]+)=([\"']?)(.*)\2")
_ESCAPED = re.compile(r"\\([\\$\"'`])")

ROCM_LIBRARY = re.compile(r"lib(?:rocm-core|amdhip64|hsa-runtime64|rccl)\.so(?:\.\d+)*")
"""Files that are evidence of a ROCm."""
NOTES = (".info/version", "core/.info/version")
"""AMD's version file, below `/opt/rocm`; the second path is that in rocm/dev-ubuntu-24.04:10.0.0-full."""
_NOTE_LIMIT_BYTES = 4096
_VERSION = re.compile(r"(?:\d+:)?(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)(?!\d)")
# AMD's rocm-core and rocm-core6.2.4; Debian's librocm-core1; before Debian had that, HIP, whose version is ROCm's.
_DPKG = (re.compile(r"rocm-core[\d.]*|librocm-core\d+"), re.compile(r"libamdhip64-\d+"))
# AMD's libraries end in the release number: librccl.so.1.0.60204. HIP's may end in its own build number.
_NUMBERED = re.compile(r"lib(?:rocm-core|rccl|hsa-runtime64)\.so\.\d+\.\d+\.(\d{1,2})(\d\d)(\d\d)")
_HIP = re.compile(r"libamdhip64\.so\.(\d{1,2}\.\d{1,2})\.\d+")
_RCCL = re.compile(r".*/librccl\.so[.\d]*")
_MAX_RCCLS = 4
_IN_WHEEL = re.compile(r"/(?:site|dist)-packages/")
_RUNTIME_LIBRARY = re.compile(r"/lib(?:amdhip64|rccl)\.so[.\d]*$")


def os_release(root: RootFileSystem) -> dict[str, str]:
    """Return the variables of os-release(5); empty if there is no such file. Values are cut to 256 characters."""
    texts = (read_or_empty(root, path, _LIMIT_BYTES).decode("utf-8", "replace") for path in _PLACES)
    lines = next(filter(None, texts), "").splitlines()
    found = filter(None, (_ASSIGNMENT.fullmatch(line.strip()) for line in lines))
    return {match[1]: _ESCAPED.sub(r"\1", match[3])[:_MAX_VALUE_CHARACTERS] for match in found}


def packages_of_dpkg(root: RootFileSystem) -> Iterator[tuple[str, str]]:
    """Yield (name, version) of each installed package of Debian and its derivatives. Source: deb-control(5).

    Raises OSError if there is no status file, ImageError if it is damaged or larger than any real one.
    """
    text = root.read_bytes(_STATUS, _STATUS_LIMIT_BYTES).decode("utf-8", "replace")
    for paragraph in text.split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= fields.keys():
            yield fields["Package"], fields["Version"]


def rocm_of(root: RootFileSystem, libraries: Sequence[str], rccl_at: Callable[[str], Rccl]) -> tuple[bool, str | None]:
    """Return (whether an image has its own ROCm, its version or None if not known).

    `libraries` are the paths in it that match `ROCM_LIBRARY`; `rccl_at` reads an RCCL. A version of two parts is a
    release with an unknown patch level.
    """
    own = [path for path in libraries if _IN_WHEEL.search(path) is None]
    version = next(_claimed_versions(root, own, rccl_at), None)
    return bool(own) or version is not None, version


def rocm_in_wheels(libraries: Sequence[str], rccl_at: Callable[[str], Rccl]) -> tuple[bool, str | None]:
    """Return the same for the ROCm included in Python wheels, such as AMD's `rocm-sdk-core`."""
    theirs = [path for path in libraries if _IN_WHEEL.search(path) and _RUNTIME_LIBRARY.search(path)]
    versions = [*_rccl_versions(theirs, rccl_at), *_hip_versions(theirs)]
    return bool(theirs), versions[0] if versions else None


def _claimed_versions(root: RootFileSystem, libraries: Sequence[str], rccl_at: Callable[[str], Rccl]) -> Iterator[str]:
    """Yield the version from each kind of evidence, the most reliable first; each is read only when requested."""
    for folder in dict.fromkeys(("/opt/rocm", *(path.rsplit("/", 2)[0] for path in libraries))):
        for note in NOTES:
            data = read_or_empty(root, f"{folder}/{note}", _NOTE_LIMIT_BYTES)
            yield from _versions(data.decode("utf-8", "replace"))
    packages: list[tuple[str, str]] = []
    with contextlib.suppress(OSError, ImageError):
        packages += packages_of_dpkg(root)
    core, hip = ([text for name, text in packages if pattern.fullmatch(name)] for pattern in _DPKG)
    yield from _versions(*core)
    numbers = filter(None, (_NUMBERED.fullmatch(path.rpartition("/")[2]) for path in libraries))
    yield from (".".join(str(int(number)) for number in match.groups()) for match in numbers)
    yield from _versions(*hip)
    yield from _rccl_versions(libraries, rccl_at)
    yield from _hip_versions(libraries)


def _versions(*texts: str) -> list[str]:
    return [match[1] for match in map(_VERSION.match, texts) if match]


def _hip_versions(libraries: Sequence[str]) -> list[str]:
    return [match[1] for match in (_HIP.fullmatch(path.rpartition("/")[2]) for path in libraries) if match]


def _rccl_versions(libraries: Sequence[str], rccl_at: Callable[[str], Rccl]) -> Iterator[str]:
    """Yield the ROCm version that RCCL was built with, or that of the only ROCm release with its version."""
    for path in [path for path in libraries if _RCCL.fullmatch(path)][:_MAX_RCCLS]:
        with contextlib.suppress(OSError, ImageError):
            rccl = rccl_at(path)
            release = rccl.generation.rocm if rccl.generation else ""
            yield from _versions(rccl.rocm or (release if _VERSION.fullmatch(release) else ""))
