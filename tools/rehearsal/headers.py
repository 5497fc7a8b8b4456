"""Real headers for a try of a compile: those of torch out of its wheel, CUDA's runtime as its own wheels have it.

torch's wheels have up to 900 MB, and their headers lie side by side: they are asked for as one range of bytes.
"""

from __future__ import annotations

import io
import re
import threading
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import requests

from lumiimg.core.errors import FailedError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from tools.rehearsal.index import PackageIndex

_LIMIT_S = 300
_READ_BYTES = 1 << 16
"""Of a directory of a wheel at once."""
_CUDA = {
    "nvidia-cuda-runtime-cu12": ("12.8.90", "nvidia/cuda_runtime/include/"),
    "nvidia-cublas-cu12": ("12.8.4.1", "nvidia/cublas/include/"),
    "nvidia-cusparse-cu12": ("12.5.8.93", "nvidia/cusparse/include/"),
    "nvidia-cusolver-cu12": ("11.7.3.90", "nvidia/cusolver/include/"),
    "nvidia-cuda-nvcc-cu12": ("12.8.93", "nvidia/cuda_nvcc/include/"),
}
"""What torch's own headers include of CUDA: by project the version that torch 2.10 requires, and the folder of its headers."""


class Headers:
    """Of the package index, stored in a folder."""

    def __init__(self, index: PackageIndex, folder: Path) -> None:
        self._index = index
        self._folder = folder
        self._one = threading.Lock()

    def torch(self, version: str) -> Path:
        """Return the folder of torch's headers of a release, `2.10.0`. Raises FailedError where the index has no such."""
        pattern = re.compile(rf"torch-{re.escape(version)}-cp3\d+-cp3\d+-manylinux\w+x86_64\.whl")
        return self._part("torch", pattern, "torch/include/", f"torch-{version}")

    def cuda(self) -> list[Path]:
        """Return the folders of CUDA's headers, which stand in for HIP's. Raises FailedError."""
        return [
            self._part(
                project, re.compile(rf"\w+-{re.escape(version)}-py3-none-manylinux\w+x86_64\.whl"), within, project
            )
            for project, (version, within) in _CUDA.items()
        ]

    def _part(self, project: str, pattern: re.Pattern[str], within: str, name: str) -> Path:
        target = self._folder / name
        with self._one:
            if not target.is_dir():
                url, size = self._index.wheel(project, pattern)
                part = target.with_name(f"{name}.part")
                _unpack(RangeReader(url, size), within, part)
                part.rename(target)
        return target


class RangeReader(io.RawIOBase):
    """A file behind an address, of which only the bytes that are read are asked for."""

    def __init__(self, url: str, size_bytes: int) -> None:
        super().__init__()
        self._url = url
        self._size_bytes = size_bytes
        self._at = 0
        self._held_at, self._held = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        into = memoryview(buffer)
        end = min(self._at + len(into), self._size_bytes)
        if end <= self._at:
            return 0
        held = self._at - self._held_at
        is_held = held >= 0 and end - self._held_at <= len(self._held)
        data = self._held[held : held + end - self._at] if is_held else self._span(self._at, end)
        into[: len(data)] = data
        self._at = end
        return len(data)

    def hold(self, first: int, end: int) -> None:
        """Ask for the bytes from one place up to another at once; what is read of them later is taken from here."""
        self._held_at, self._held = first, self._span(first, min(end, self._size_bytes))

    def _span(self, first: int, end: int) -> bytes:
        answer = requests.get(self._url, headers={"Range": f"bytes={first}-{end - 1}"}, timeout=_LIMIT_S)
        if answer.status_code != requests.codes.partial_content or len(answer.content) != end - first:
            raise FailedError(f"{self._url} gives no range of bytes")
        return answer.content


def _unpack(reader: RangeReader, within: str, folder: Path) -> None:
    """Unpack what lies in a folder of a wheel."""
    with zipfile.ZipFile(io.BufferedReader(reader, _READ_BYTES)) as wheel:
        members = [one for one in wheel.infolist() if one.filename.startswith(within) and not one.is_dir()]
        if not members:
            raise FailedError(f"the wheel has no {within}")
        end = max(one.header_offset + one.compress_size for one in members) + _READ_BYTES
        reader.hold(min(one.header_offset for one in members), end)
        for member in members:
            path = folder / PurePosixPath(member.filename).relative_to(within)
            if ".." in path.parts:
                raise FailedError(f"the wheel has {member.filename}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wheel.read(member))
