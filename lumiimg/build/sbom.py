"""What is in an image, as a bill of materials: packages of the system, Python distributions, sources that went in.

CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/. Read in the finished file system, not believed of the layers. What
is known to be missing is said in properties (`INCOMPLETE`): an empty list must not look like an image without packages.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from lumiimg import __version__
from lumiimg.image import ImageError
from lumiimg.inventory.system import packages_of_dpkg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.image import RootFileSystem
    from lumiimg.inventory.components import Inventory
    from lumiimg.resolve.lock import LockedSource

INCOMPLETE = "lumiimg:incomplete"
_NOT_READ = {
    "rpm": ("/usr/lib/sysimage/rpm", "/var/lib/rpm", "/usr/share/rpm"),
    "apk": ("/lib/apk/db", "/usr/lib/apk/db"),
}
"""Where other tools keep what they installed: rpm of SUSE and Fedora, an older one, rpm-ostree; apk before and since
the merge of /lib and /usr/lib."""


class Component(NamedTuple):
    """One thing that is in an image."""

    kind: str
    """`deb`, `pypi`, `source`."""
    name: str
    version: str
    where: str = ""
    sha256: str = ""


def bill(contents: Inventory, sources: Iterable[LockedSource], identity: str) -> bytes:
    """Return the bill of materials of an image; `identity` is what its number is made of."""
    root, system = contents.image.root, contents.os_release
    packages, no_packages = _debian(root)
    distributions, no_distributions = _python(contents)
    found = sorted({*packages, *distributions, *_of_sources(sources)})
    missing = [*no_packages, *_not_read(root), *no_distributions]
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
            {
                "type": "operating-system",
                "name": system.get("ID", "unknown"),
                "version": system.get("VERSION_ID", ""),
            },
            *map(_component, found),
        ],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _component(one: Component) -> dict[str, Any]:
    purl = {
        "deb": f"pkg:deb/{quote(one.name)}@{quote(one.version)}",
        "pypi": f"pkg:pypi/{quote(one.name)}@{quote(one.version)}",
        "source": f"pkg:generic/{quote(one.name)}?download_url={quote(one.where, safe='')}",
    }[one.kind]
    document: dict[str, Any] = {"type": "library", "name": one.name, "version": one.version, "purl": purl}
    if one.where:
        document["properties"] = [{"name": "lumiimg:where", "value": one.where}]
    if one.sha256:
        document["hashes"] = [{"alg": "SHA-256", "content": one.sha256}]
    return document


def _debian(root: RootFileSystem) -> tuple[list[Component], list[str]]:
    """Return installed packages, and what is missing."""
    try:
        return [Component("deb", *package) for package in packages_of_dpkg(root)], []
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


def _python(contents: Inventory) -> tuple[list[Component], list[str]]:
    """Return Python distributions, and what is missing."""
    try:
        found = [one for distributions in contents.distributions.values() for one in distributions.values()]
        is_whole, has_conda = contents.has_all_distributions, contents.has_conda
    except ImageError as error:
        return [], [f"Python distributions are not listed: {error.what}"]
    missing = [] if is_whole else ["too many Python distributions: not all are listed"]
    missing += ["packages of conda are not listed, but for Python distributions"] if has_conda else []
    return [Component("pypi", one.name, one.version, one.metadata) for one in found], missing


def _of_sources(sources: Iterable[LockedSource]) -> Iterator[Component]:
    for source in sources:
        yield Component("source", source.name, source.version, source.location, source.sha256 or "")
