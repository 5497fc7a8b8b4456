"""A node's libfabric for a compiler: its headers and the library itself, in an archive that a build can stage.

What is linked with the host's own library asks at run time for what that library has, whatever the distribution of the
image packages. A copy serves every engine and every way to build, and it can be removed again; a mount that is there
while `%post` runs cannot be asked of all of them.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.engine.workspace import written_by_rename
from lumiimg.errors import BadInputError, MissingHereError
from lumiimg.fabric.names import LIBCXI, LIBFABRIC
from lumiimg.host.scan import fabric_entry
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import RootFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.host.snapshot import HostLibrary, Snapshot

TOP_FOLDER = "libfabric"
"""Of the archive: `libfabric/include/rdma/…`, `libfabric/lib/libfabric.so.1`."""
_MAX_HEADERS = 400
_MAX_HEADER_BYTES = 2 << 20
_MAX_PARENTS = 4
_VERSION = re.compile(r"^#define[ \t]+FI_(MAJOR|MINOR|REVISION)_VERSION[ \t]+(\d{1,6})\b", re.MULTILINE)
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class NodeFabric:
    """What a node's libfabric and libcxi are, as a snapshot has them."""

    library: HostLibrary
    glibc: str
    """The newest version of the C library that one of the two asks for: `2.38`."""


def fabric_of(snapshot: Snapshot, where: str) -> NodeFabric:
    """Return the libfabric that the node uses with Slingshot; `where` names the snapshot in messages.

    Raises BadInputError where it has none.
    """
    entry = fabric_entry(snapshot)
    host = RootFileSystem(SnapshotTree(snapshot))
    library = snapshot.library(host.resolve(entry.path)) if entry else None
    if entry is None or library is None:
        raise BadInputError(
            "has no libfabric that loads with libcxi: no node of a Slingshot network, or its module was not loaded",
            where=where,
            hint="on a compute node, with the module of libfabric loaded: lumiimg host scan -o host.json",
        )
    libcxi = entry.closure.get(LIBCXI)
    both = (library, snapshot.library(host.resolve(libcxi)) if libcxi else None)
    needs = [need.name for each in both if each for need in each.facts.version_needs]
    versions = [(int(match[1]), int(match[2])) for name in needs if (match := _GLIBC.fullmatch(name))]
    return NodeFabric(library, ".".join(map(str, max(versions, default=(2, 2)))))


def headers_beside(library: HostLibrary, root: Path = Path("/")) -> Path:
    """Return the folder `include` that belongs to a library, by the `rdma/fabric.h` in it.

    Raises MissingHereError where the library is not on this machine, or has no headers.
    """
    path = root / library.path.lstrip("/")
    if not path.is_file():
        raise MissingHereError(
            f"{library.path} of the node is not on this machine",
            hint="pack it there: lumiimg host scan --libfabric host-libfabric.tar; then here "
            "--source host-libfabric=host-libfabric.tar",
        )
    for parent in list(path.parents)[1 : 1 + _MAX_PARENTS]:
        if (parent / "include/rdma/fabric.h").is_file():
            return parent / "include"
    raise MissingHereError(
        f"there are no headers (include/rdma/fabric.h) above {library.path}",
        hint="install them (libfabric-devel), or use --fabric bundled",
    )


def write_archive(library: HostLibrary, target: Path, root: Path = Path("/")) -> str:
    """Write the node's libfabric and its headers as a tar, the same bytes for the same files; return its version.

    Raises MissingHereError as `headers_beside`, BadInputError where the library here is not that of the snapshot.
    """
    include = headers_beside(library, root)
    data = (root / library.path.lstrip("/")).read_bytes()
    if hashlib.sha256(data).hexdigest() != library.sha256:
        raise BadInputError(
            "is another file here than on the node of the snapshot",
            where=library.path,
            hint="take the snapshot again: lumiimg host scan -o host.json",
        )
    files = {f"include/{name}": text for name, text in _headers(include)}
    version = _version(files["include/rdma/fabric.h"].decode("utf-8", "replace"), include)
    files[f"lib/{LIBFABRIC}"] = data
    _refuse_other_file(target)
    with written_by_rename(target) as partial:
        _pack(files, partial)
    return version


def _refuse_other_file(target: Path) -> None:
    """Raise BadInputError where there is a file that is not such an archive: somebody would miss it."""
    if not target.is_file():
        return
    try:
        with tarfile.open(target, "r:") as archive:
            first = archive.next()
    except (tarfile.TarError, OSError, EOFError):
        first = None
    if first is None or not first.name.startswith(f"{TOP_FOLDER}/"):
        raise BadInputError("exists already, and is not an archive of libfabric", where=str(target))


def _headers(include: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the headers of libfabric, by their names below `include`. Raises BadInputError for far too many."""
    paths = sorted(path for path in (include / "rdma").rglob("*.h") if path.is_file())
    if len(paths) > _MAX_HEADERS:
        raise BadInputError(f"has {len(paths)} headers, which libfabric never had", where=str(include / "rdma"))
    for path in paths:
        if path.stat().st_size > _MAX_HEADER_BYTES:
            raise BadInputError("is larger than any header", where=str(path))
        yield path.relative_to(include).as_posix(), path.read_bytes()


def _version(header: str, include: Path) -> str:
    """Return `1.22.0` out of rdma/fabric.h; REVISION is there since libfabric 1.9."""
    found = dict(_VERSION.findall(header))
    if not {"MAJOR", "MINOR"} <= found.keys():
        raise BadInputError("does not say which libfabric it is of", where=str(include / "rdma/fabric.h"))
    return ".".join((found["MAJOR"], found["MINOR"], found.get("REVISION", "0")))


def _pack(files: Mapping[str, bytes], target: Path) -> None:
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{TOP_FOLDER}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo(f"{TOP_FOLDER}/lib/libfabric.so")
        link.type, link.linkname = tarfile.SYMTYPE, LIBFABRIC
        archive.addfile(link)
