"""Whether the libfabric of a process can use Slingshot: by a cxi provider built into it, or in a file of its own.

The built-in one links libcxi (libfabric prov/cxi/configure.m4). A provider in a file is `libcxi-fi.so`, looked for in
FI_PROVIDER_PATH and in the folder `libfabric` beside the library (libfabric src/fabric.c, fabric(7)).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.elf.loader import Process
    from lumiimg.image import RootFileSystem

LIBFABRIC, LIBCXI = "libfabric.so.1", "libcxi.so.1"
PROVIDER_FILE = "libcxi-fi.so"
PROVIDER_PATH = "FI_PROVIDER_PATH"


def cxi_provider(process: Process, root: RootFileSystem, provider_path: str | None) -> str | None:
    """Return the file that has the cxi provider and loads in this process; None where there is none.

    `provider_path` is FI_PROVIDER_PATH. A provider in a file is opened, as libfabric would: the process has it then.
    """
    libfabric = process.find(LIBFABRIC)
    if libfabric is None:
        return None
    if LIBCXI in libfabric.facts.needed:
        return libfabric.path if process.find(LIBCXI) is not None else None
    for folder in _folders(libfabric.path, provider_path):
        path = f"{folder}/{PROVIDER_FILE}"
        if root.is_file(path) and process.dlopen(path, libfabric).ok:
            return path
    return None


def _folders(libfabric: str, provider_path: str | None) -> Iterator[str]:
    # `@` and `+` in front of an element say how to go on, not where to look
    yield from (part.lstrip("@+").rstrip("/") for part in (provider_path or "").split(":") if part.startswith("/"))
    yield f"{libfabric.rpartition('/')[0]}/libfabric"
