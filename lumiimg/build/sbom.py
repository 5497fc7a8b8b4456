"""What is in an image, as a bill of materials: packages of the system, Python distributions, sources that went in.

CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/. Read in the finished file system, not believed of the layers. What
is known to be missing is said in properties (`INCOMPLETE`): an empty list must not look like an image without packages.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from lumiimg import __version__
from lumiimg.image import FileKind, ImageError, RootFileSystem
from lumiimg.image.dpkg import installed

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from lumiimg.resolve.lock import LockedSource

INCOMPLETE = "lumiimg:incomplete"
_NOT_READ = {
    "rpm": ("/usr/lib/sysimage/rpm", "/var/lib/rpm", "/usr/share/rpm"),
    "apk": ("/lib/apk/db", "/usr/lib/apk/db"),
}
"""Where other tools keep what they installed: rpm (`%_dbpath`) of SUSE and Fedora, of older ones, of rpm-ostree; apk
before and since the merge of /lib and /usr/lib."""
_CONDA = "conda-meta"
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
    packages, no_packages = _debian(root)
    distributions, no_distributions = _python(root)
    found = sorted({*packages, *distributions, *_of_sources(sources)})
    missing = [*no_packages, *_not_read(root), *no_distributions]
    system = _system(root)
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "lumiimg", "version": __version__}]}
    }
    if missing:
        metadata["properties"] = [{"name": INCOMPLETE, "value": what} for what in missing]
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


def _debian(root: RootFileSystem) -> tuple[list[Component], list[str]]:
    """Return installed packages, and what is missing."""
    try:
        return [Component("deb", *package) for package in installed(root)], []
    except OSError:
        return [], []
    except ImageError:  # larger than any, or damaged
        return [], ["packages of dpkg are not listed: its status file cannot be read"]


def _not_read(root: RootFileSystem) -> list[str]:
    """Return whose packages are in the image, and not in the bill: of tools whose databases are not read."""
    return [
        f"packages of {tool} are not listed"
        for tool, folders in _NOT_READ.items()
        if any(_has_files(root, folder) for folder in folders)
    ]


def _has_files(root: RootFileSystem, folder: str) -> bool:
    """Whether there is more in a folder than `.rpm.lock`, which is left by an rpm that was only asked something."""
    try:
        return any(not entry.name.startswith(".") for entry in root.list_dir(folder))
    except OSError:
        return False
    except ImageError:
        return True  # damaged: nobody can tell


def _python(root: RootFileSystem) -> tuple[list[Component], list[str]]:
    """Return Python distributions, by the names of their metadata folders, and what is missing.

    Where some are, the packages beside them are not entered: they are most of an image's files. A damaged image may
    have folders that are in themselves: each is looked into once. Source: PEP 376, PEP 427.
    """
    components: list[Component] = []
    missing: list[str] = []
    has_conda = False
    folders = [(site, 0) for site in reversed(_SITES) if root.is_dir(site)]
    entered: set[Hashable] = set()
    while folders and len(entered) <= _MAX_FOLDERS and len(components) <= _MAX_DISTRIBUTIONS:
        folder, depth = folders.pop()
        if (identity := root.stat(folder).identity) in entered:
            continue
        entered.add(identity)
        inside = [entry.name for entry in root.list_dir(folder) if entry.kind is FileKind.DIRECTORY]
        has_conda = has_conda or _CONDA in inside
        found = [match for name in inside if (match := _DIST_INFO.fullmatch(name))]
        components += [
            Component("pypi", match["name"], match["version"], f"{folder}/{match[0]}")
            for match in found[: _MAX_DISTRIBUTIONS + 1]
        ]
        if not found and depth < _MAX_DEPTH:
            folders += [(f"{folder}/{name}", depth + 1) for name in inside]
    if len(entered) > _MAX_FOLDERS or len(components) > _MAX_DISTRIBUTIONS:
        missing.append("too many folders: not all were searched")
    if has_conda:
        missing.append("packages of conda are not listed, but for Python distributions")
    return components, missing


def _of_sources(sources: Iterable[LockedSource]) -> Iterator[Component]:
    for source in sources:
        yield Component("source", source.name, source.version, source.location, source.sha256 or "")
