"""Packages of Debian and its descendants in an image, by dpkg's status file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.image.root import RootFileSystem

_STATUS = "/var/lib/dpkg/status"
_STATUS_LIMIT_BYTES = 64 << 20
_FIELD = re.compile(r"^(Package|Version|Status): (.*)$", re.MULTILINE)


def installed(root: RootFileSystem) -> Iterator[tuple[str, str]]:
    """Yield (name, version) of each installed package. Source: deb-control(5).

    Raises OSError where there is no status file, ImageError where it is damaged or larger than any.
    """
    text = root.read_bytes(_STATUS, _STATUS_LIMIT_BYTES).decode("utf-8", "replace")
    for paragraph in text.split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= fields.keys():
            yield fields["Package"], fields["Version"]
