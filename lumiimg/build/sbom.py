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
    from collections.abc import Hashable, Iterable, Iterator

    from lumiimg.image import RootFileSystem
    from lumiimg.resolve.lock import LockedSource

_STATUS = "/var/lib/dpkg/status"
_STATUS_LIMIT_BYTES = 64 << 20
_MAX_DISTRIBUTIONS = 20_000
_MAX_FOLDERS = 200_000
"""Folders that are looked into; an image of PyTorch and vLLM has 3,000 down to where its distributions are."""
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
    distributions, is_whole = _python(root)
    found = sorted({*_debian(root), *distributions, *_of_sources(sources)})
    system = _system(root)
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "lumiimg", "version": __version__}]}
    }
    if not is_whole:
        metadata["properties"] = [{"name": "lumiimg:incomplete", "value": "too many folders: not all were looked into"}]
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'lumiimg:sbom:{identity}')}",
        "version": 1,
        "metadata": metadata,
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


def _python(root: RootFileSystem) -> tuple[list[Component], bool]:
    """Return Python distributions, by the names of their metadata folders, and whether these are all.

    Where some are, the packages beside them are not entered: they are most of an image's files. A damaged image may
    have folders that are in themselves: each is looked into once. Source: PEP 376, PEP 427.
    """
    components: list[Component] = []
    folders = [(site, 0) for site in reversed(_SITES) if root.is_dir(site)]
    entered: set[Hashable] = set()
    while folders:
        folder, depth = folders.pop()
        if (identity := root.stat(folder).identity) in entered:
            continue
        entered.add(identity)
        if len(entered) > _MAX_FOLDERS or len(components) > _MAX_DISTRIBUTIONS:
            return components, False
        inside = [entry.name for entry in root.list_dir(folder) if entry.kind is FileKind.DIRECTORY]
        found = [match for name in inside if (match := _DIST_INFO.fullmatch(name))]
        components += [
            Component("pypi", match["name"], match["version"], f"{folder}/{match[0]}")
            for match in found[: _MAX_DISTRIBUTIONS + 1]
        ]
        if not found and depth < _MAX_DEPTH:
            folders += [(f"{folder}/{name}", depth + 1) for name in inside]
    return components, len(components) <= _MAX_DISTRIBUTIONS


def _of_sources(sources: Iterable[LockedSource]) -> Iterator[Component]:
    for source in sources:
        yield Component("source", source.name, source.version, source.location, source.sha256 or "")
