"""What is in an image, as a bill of materials: packages of the system, Python distributions, sources that went in.

CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/. Read in the finished file system, not believed of the layers.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from lumiimg import __version__
from lumiimg.image import FileKind, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.image import RootFileSystem
    from lumiimg.resolve.lock import LockedSource

_STATUS = "/var/lib/dpkg/status"
_STATUS_LIMIT_BYTES = 64 << 20
_MAX_DISTRIBUTIONS = 20_000
_MAX_DEPTH = 8
_DIST_INFO = re.compile(r"(?P<name>[^/]+)-(?P<version>[^/-]+)\.dist-info")
_SITES = ("/usr/lib", "/usr/local/lib", "/opt", "/usr/lib64")


class Component(NamedTuple):
    """One thing that is in an image."""

    kind: str
    """`deb`, `pypi`, `source`."""
    name: str
    version: str
    where: str = ""
    sha256: str = ""


def bill(root: RootFileSystem, sources: Iterable[LockedSource], identity: str) -> bytes:
    """Return the bill of materials of a file system; `identity` is what the image's number is made of."""
    found = sorted({*_debian(root), *_python(root), *_of_sources(sources)})
    system = _system(root)
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'lumiimg:sbom:{identity}')}",
        "version": 1,
        "metadata": {"tools": {"components": [{"type": "application", "name": "lumiimg", "version": __version__}]}},
        "components": [
            {"type": "operating-system", "name": system[0], "version": system[1]},
            *map(_component, found),
        ],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _component(one: Component) -> dict[str, Any]:
    purl = {
        "deb": f"pkg:deb/{quote(one.name)}@{quote(one.version)}",
        "pypi": f"pkg:pypi/{quote(one.name.lower().replace('_', '-'))}@{quote(one.version)}",
        "source": f"pkg:generic/{quote(one.name)}?download_url={quote(one.where, safe='')}",
    }[one.kind]
    document: dict[str, Any] = {"type": "library", "name": one.name, "version": one.version, "purl": purl}
    if one.where:
        document["properties"] = [{"name": "lumiimg:where", "value": one.where}]
    if one.sha256:
        document["hashes"] = [{"alg": "SHA-256", "content": one.sha256}]
    return document


def _system(root: RootFileSystem) -> tuple[str, str]:
    try:
        text = root.read_bytes("/etc/os-release", 1 << 16).decode("utf-8", "replace")
    except (OSError, ImageError):
        return "unknown", ""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return values.get("ID", "unknown").strip('"'), values.get("VERSION_ID", "").strip('"')


def _debian(root: RootFileSystem) -> Iterator[Component]:
    """Yield installed packages. Source: dpkg's status file, deb-control(5)."""
    try:
        text = root.read_bytes(_STATUS, _STATUS_LIMIT_BYTES).decode("utf-8", "replace")
    except (OSError, ImageError):
        return
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= fields.keys():
            yield Component("deb", fields["Package"], fields["Version"])


def _python(root: RootFileSystem) -> Iterator[Component]:
    """Yield Python distributions, by the names of their metadata folders. Source: PEP 376, PEP 427.

    Where some are, the packages beside them are not entered: they are most of an image's files.
    """
    folders = [(site, 0) for site in _SITES if root.is_dir(site)]
    count = 0
    while folders:
        folder, depth = folders.pop()
        inside = [entry.name for entry in root.list_dir(folder) if entry.kind is FileKind.DIRECTORY]
        found = [match for name in inside if (match := _DIST_INFO.fullmatch(name))]
        for match in found:
            yield Component("pypi", match["name"], match["version"], f"{folder}/{match[0]}")
        count += len(found)
        if count > _MAX_DISTRIBUTIONS:
            return
        if not found and depth < _MAX_DEPTH:
            folders += [(f"{folder}/{name}", depth + 1) for name in inside]


def _of_sources(sources: Iterable[LockedSource]) -> Iterator[Component]:
    for source in sources:
        yield Component("source", source.name, source.version, source.location, source.sha256 or "")
