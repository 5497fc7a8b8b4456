"""Of `gpu/`: GPU code in files."""

from __future__ import annotations

import contextlib

from lumiimg.core.access import BytesInMemory
from lumiimg.gpu.components import kernel_file, read_kernel_file
from lumiimg.gpu.fat_file import read_file
from lumiimg.gpu.rule import fit_of_all, node_gpu
from lumiimg.gpu.source import GpuCodeError
from tests.fuzz.target import target

_PATHS = ("/l/rocblas/library/T_gfx90a-xnack-.hsaco", "/m/miopen/db/gfx90a68.kdb", "/x/k.co")


@target(
    "gpu-code",
    "gpu.fat_file.read_file",
    "gpu.bundle.read_bundles",
    "gpu.code_object.read_code_object",
    "gpu.target.parse_target",
    refuses=(GpuCodeError,),
    form="bytes",
)
def _file(data: bytes) -> str:
    found = read_file(BytesInMemory(data))
    fit_of_all(found, node_gpu("gfx90a"))
    return " ".join(str(target) for targets in found for target in targets)


@target("gpu-kernels", "gpu.components.read_kernel_file", refuses=(GpuCodeError,), form="bytes")
def _kernels(data: bytes) -> str:
    shown: list[object] = []
    name = data[:64].decode("utf-8", "surrogateescape")
    for path in (*_PATHS, f"/x/{name}.co", f"/miopen/{name}.kdb"):
        named = kernel_file(path)
        with contextlib.suppress(GpuCodeError):
            shown += read_kernel_file(BytesInMemory(data), path)
        if named and named.target:
            shown.append(named.target)
    return " ".join(map(str, shown))
