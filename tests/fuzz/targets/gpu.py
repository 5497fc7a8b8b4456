"""Of `gpu/`: GPU code in files."""

from __future__ import annotations

import contextlib

from lumiimg.core.access import BytesInMemory
from lumiimg.gpu import GpuCodeError, fit, gpu_code_in, kernel_file, node_gpu
from tests.fuzz.target import target

_PATHS = ("/l/rocblas/library/T_gfx90a-xnack-.hsaco", "/m/miopen/db/gfx90a68.kdb", "/x/k.co")


@target(
    "gpu-code",
    "gpu.components.gpu_code_in",
    "gpu.code.read_file",
    "gpu.target.parse_target",
    refuses=(GpuCodeError,),
    form="bytes",
)
def _file(data: bytes) -> str:
    found = gpu_code_in(BytesInMemory(data), "/x.so")
    fit(found, node_gpu("gfx90a"))
    return " ".join(str(target) for targets in found for target in targets)


@target("gpu-kernels", "gpu.components.gpu_code_in", refuses=(GpuCodeError,), form="bytes")
def _kernels(data: bytes) -> str:
    shown: list[object] = []
    name = data[:64].decode("utf-8", "surrogateescape")
    for path in (*_PATHS, f"/x/{name}.co", f"/miopen/{name}.kdb"):
        named = kernel_file(path)
        with contextlib.suppress(GpuCodeError):
            shown += [target for found in gpu_code_in(BytesInMemory(data), path) for target in found]
        if named and named.target:
            shown.append(named.target)
    return " ".join(map(str, shown))
