"""Archives of GPU code beside the files that it belongs to, as TheRock packs ROCm and PyTorch for each GPU apart.

    "KPAK", version u32 (1), offset of the contents u64; code; contents, in MessagePack to the end of the file:
    {"toc": {"lib/librocblas.so.5": {"gfx90a": {…}}}, …}

A file whose code is elsewhere has {"kernel_name": its key in `toc`, "kpack_search_paths": paths from its folder, with
@GFXARCH@ for the GPU} in section `.rocm_kpack_ref`. Sources: ROCm/TheRock docs/rfcs/RFC0008-Multi-Arch-Packaging.md,
rocm-kpack python/rocm_kpack/kpack.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lumiimg.gpu.source import ByteRanges, GpuCodeError, read_exactly
from lumiimg.gpu.target import GpuTarget, parse_target

KPACK = b"KPAK"
ANY_GPU = "@GFXARCH@"
_HEADER = struct.Struct("<4sIQ")
_MAX_CONTENTS_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class KpackReference:
    """Where the GPU code of a file is."""

    name: str
    """What the archives call the file."""
    paths: tuple[str, ...]
    """From the file's folder; ANY_GPU stands for the GPU."""


def read_kpack(source: ByteRanges) -> Mapping[str, tuple[GpuTarget, ...]]:
    """Return what an archive has code for, by the name of the file that it belongs to. Raises GpuCodeError."""
    magic, version, offset = _HEADER.unpack(read_exactly(source, 0, _HEADER.size, "an archive of GPU code"))
    if magic != KPACK or version != 1:
        raise GpuCodeError(f"not an archive of GPU code of version 1: begins with {magic!r}, version {version}")
    if not _HEADER.size <= offset < source.size or source.size - offset > _MAX_CONTENTS_BYTES:
        raise GpuCodeError(f"an archive of GPU code whose contents are at {offset} of {source.size} bytes")
    toc = _decoded(source.read_at(offset, source.size - offset), "the contents of an archive of GPU code").get("toc")
    if not isinstance(toc, dict) or not all(isinstance(by_gpu, dict) for by_gpu in toc.values()):
        raise GpuCodeError("an archive of GPU code without a table of it")
    return {
        str(name): tuple(sorted((parse_target(str(gpu)) for gpu in by_gpu), key=str)) for name, by_gpu in toc.items()
    }


def read_reference(data: bytes) -> KpackReference:
    """Return what a file says of where its code is. Raises GpuCodeError."""
    found = _decoded(data.rstrip(b"\0"), "where GPU code is")
    name, paths = found.get("kernel_name"), found.get("kpack_search_paths")
    if not isinstance(name, str) or not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise GpuCodeError("does not say where its GPU code is")
    return KpackReference(name, tuple(paths))


def _decoded(data: bytes, what: str) -> dict[str, Any]:
    import msgspec  # an import of milliseconds, for what few files have

    try:
        return msgspec.msgpack.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise GpuCodeError(f"{what}: {error}") from error
