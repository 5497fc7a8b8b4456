"""What is in an image, as a bill of materials: packages of the system, Python distributions, sources that went in.

CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/. Read in the finished file system, not believed of the layers. What
is known to be missing is said in properties (`INCOMPLETE`): an empty list must not look like an image without packages.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any
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


def bill(contents: Inventory, sources: Iterable[LockedSource], identity: str) -> bytes:
    """Return the bill of materials of an image; `identity` is what its number is made of."""
    root, system, missing = contents.image.root, contents.os_release, list[str]()
    found = [*_of_dpkg(root, missing)]
    missing += (f"packages of {tool} are not listed" for tool in _NOT_READ if _has_database(root, tool))
    found += _of_python(contents, missing)
    found += (_component("generic", one.name, one.version, one.location, one.sha256) for one in sources)
    by_text = {(one["purl"], str(one)): one for one in found}
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "lumiimg", "version": __version__}]}
    }
    if missing:
        metadata["properties"] = [{"name": INCOMPLETE, "value": what} for what in missing]
    operating_system = {
        "type": "operating-system",
        "name": system.get("ID", "unknown"),
        "version": system.get("VERSION_ID", ""),
    }
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'lumiimg:sbom:{identity}')}",
        "version": 1,
        "metadata": metadata,
        "components": [operating_system, *(by_text[one] for one in sorted(by_text))],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _component(kind: str, name: str, version: str, where: str = "", sha256: str | None = None) -> dict[str, Any]:
    """Return one thing that is in an image; `kind` as in a package URL (https://github.com/package-url/purl-spec)."""
    of_source = f"?download_url={quote(where, safe='')}"
    purl = f"pkg:{kind}/{quote(name)}{of_source if kind == 'generic' else f'@{quote(version)}'}"
    document: dict[str, Any] = {"type": "library", "name": name, "version": version, "purl": purl}
    if where:
        document["properties"] = [{"name": "lumiimg:where", "value": where}]
    if sha256:
        document["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    return document


def _of_dpkg(root: RootFileSystem, missing: list[str]) -> Iterator[dict[str, Any]]:
    """Yield installed packages; say what is missing."""
    try:
        yield from (_component("deb", *package) for package in packages_of_dpkg(root))
    except OSError:
        return
    except ImageError:  # larger than any, or damaged
        missing.append("packages of dpkg are not listed: its status file cannot be read")


def _has_database(root: RootFileSystem, tool: str) -> bool:
    """Whether a tool has more in a folder than `.rpm.lock`, which is left by an rpm that was only asked something."""
    for folder in _NOT_READ[tool]:
        try:
            if any(not entry.name.startswith(".") for entry in root.list_dir(folder)):
                return True
        except OSError:
            continue
        except ImageError:
            return True  # damaged: nobody can tell
    return False


def _of_python(contents: Inventory, missing: list[str]) -> Iterator[dict[str, Any]]:
    """Yield Python distributions; say what is missing."""
    try:
        for distributions in contents.distributions.values():
            yield from (_component("pypi", one.name, one.version, one.metadata) for one in distributions.values())
    except ImageError as error:
        missing.append(f"Python distributions are not listed: {error.what}")
        return
    if not contents.has_all_distributions:
        missing.append("too many Python distributions: not all are listed")
    if contents.has_conda:
        missing.append("packages of conda are not listed, but for Python distributions")
