"""The archives that layers are built from: real ones where the package index has them, else stand-ins.

A stand-in asks for what the real project asks for (`standin/archives.toml` has its source), is built by the same commands,
and leaves the files that the layer looks for; what it compiles is empty.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import MissingHereError

if TYPE_CHECKING:
    from lumiimg.resolve.lock import LockedLayer, LockedSource
    from tools.rehearsal.index import PackageIndex

FOLDER = Path(__file__).parent / "standin"
SDISTS = {
    "deepspeed": "deepspeed",
    "flash-attention": "flash-attn",
    "mpi4py": "mpi4py",
    "xformers": "xformers",
}
"""Projects whose source distribution is what the archive is, by the source's name."""
STAND_INS = tomllib.loads((FOLDER / "archives.toml").read_text(encoding="utf-8"))


_PLUGIN = Path(__file__).parents[2] / "tests/engine/standin"
"""The stand-in net plugin of the engine tests."""


class Archives:
    """Made when they are asked for, and stored in a folder."""

    def __init__(self, index: PackageIndex, folder: Path) -> None:
        self._index = index
        self._folder = folder
        self._one = threading.Lock()

    def of(self, layer: LockedLayer, source: LockedSource) -> Path:
        """Return the archive of a source. Raises MissingHereError for one that nothing is known of."""
        own = layer.arguments.get("LIBFABRIC_VERSION" if source.name == "libfabric" else "VERSION", "")
        version = (layer.release.version if layer.release else "") or own
        with self._one:
            if source.name not in SDISTS.keys() | STAND_INS.keys() and not source.name.startswith("aws-ofi-"):
                raise MissingHereError(f"no stand-in for the archive of {source.name}")
            if source.name in SDISTS:
                found = self._sdist(SDISTS[source.name], version)
                # under the name of GitHub's archive it would have to have that one's digest
                target = self._folder / f"sdist-{found.name}"
                if not target.exists():
                    target.hardlink_to(found)
                return target
            target = self._folder / f"stand-in-{source.name}-{version or '0'}.tar.gz"
            if not target.exists():
                self._write(target, source.name, version)
            return target

    def sdist(self, layer: LockedLayer, source: LockedSource) -> Path | None:
        """Return the source distribution that a source is, or that its stand-in is made of; None: it has none."""
        whole = [name for name, within in STAND_INS.get(source.name, {}).get("sdist", {}).items() if not within]
        project = SDISTS.get(source.name) or next(iter(whole), None)
        if project is None or layer.release is None:
            return None
        with self._one:
            return self._sdist(project, layer.release.version)

    def _sdist(self, project: str, version: str) -> Path:
        return self._index.file(project, f"-{version}.tar.gz")

    def _write(self, target: Path, name: str, version: str) -> None:
        if name.startswith("aws-ofi-"):
            files = {path.name: path.read_bytes() for path in _PLUGIN.iterdir()}
            if name == "aws-ofi-rccl":
                files["old-abi"] = b""
            target.write_bytes(packed(name, files))
            return
        files = {path: data.replace(b"@VERSION@", version.encode()) for path, data in _own(name).items()}
        for project, within in STAND_INS[name].get("sdist", {}).items():
            real = archive_files(self._sdist(project, version))
            files = {f"{within}{path}": data for path, data in real.items()} | files
        for ending, within in STAND_INS[name].get("wheel", {}).items():
            project = ending.partition("-")[0]
            wheel = self._index.file(project, ending.partition("-")[2])
            files = {f"{within}{path}": data for path, data in _of_wheel(wheel).items()} | files
        target.write_bytes(packed(f"{name}-{version or '0'}", files))


def _own(name: str) -> dict[str, bytes]:
    """Return the files of a stand-in as they lie here, by path."""
    folder = FOLDER / "archives" / name
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def packed(top: str, files: Mapping[str, bytes]) -> bytes:
    """Return a `.tar.gz` of files below a top folder, the same bytes each time; scripts can be run."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size = len(data)
            member.mode = 0o755 if data[:2] == b"#!" or data[:4] == b"\x7fELF" else 0o644
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(out.getvalue(), 1, mtime=0)


def archive_files(archive: Path) -> dict[str, bytes]:
    """Return the files of a `.tar.gz` by path below its top folder."""
    found = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            stream = opened.extractfile(member)
            if stream is not None:
                found[member.name.partition("/")[2]] = stream.read()
    return found


def _of_wheel(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/")}
