"""The system of an image, or of a node: what it is called, and its packages by dpkg's status file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.elf.system import read_what_is_there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.image import RootFileSystem

RPM_FOLDERS = ("/usr/lib/sysimage/rpm", "/var/lib/rpm", "/usr/share/rpm")
"""Where rpm has its database (`%_dbpath`): of SUSE and Fedora, of older ones, of rpm-ostree."""
_STATUS = "/var/lib/dpkg/status"
_STATUS_LIMIT_BYTES = 64 << 20
_FIELD = re.compile(r"^(Package|Version|Status): (.*)$", re.MULTILINE)
_PLACES = ("/etc/os-release", "/usr/lib/os-release")
_LIMIT_BYTES = 64 << 10
_LONGEST_VALUE = 256
_ASSIGNMENT = re.compile(r"([A-Za-z0-9_]+)=([\"']?)(.*)\2")
_ESCAPED = re.compile(r"\\([\\$\"'`])")


def os_release(root: RootFileSystem) -> dict[str, str]:
    """Return what os-release(5) says; nothing where there is none. Values of more than 256 characters are cut."""
    texts = (read_what_is_there(root, path, _LIMIT_BYTES).decode("utf-8", "replace") for path in _PLACES)
    lines = next(filter(None, texts), "").splitlines()
    found = filter(None, (_ASSIGNMENT.fullmatch(line.strip()) for line in lines))
    return {match[1]: _ESCAPED.sub(r"\1", match[3])[:_LONGEST_VALUE] for match in found}


def packages_of_dpkg(root: RootFileSystem) -> Iterator[tuple[str, str]]:
    """Yield (name, version) of each installed package of Debian and its descendants. Source: deb-control(5).

    Raises OSError where there is no status file, ImageError where it is damaged or larger than any.
    """
    text = root.read_bytes(_STATUS, _STATUS_LIMIT_BYTES).decode("utf-8", "replace")
    for paragraph in text.split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= fields.keys():
            yield fields["Package"], fields["Version"]
