"""GPU code in files: its targets, and the GPUs that take it. Heads are read, never the code.

`gpu_code_in` reads a file (a program or library of the host, a bundle, a code object, a kernel file of a library), and
`fit` says whether a GPU, which `node_gpu` makes of its name, takes what it found. The rest is about names: what people
call a file with GPU code, and what follows for a job where its GPU takes none of it.
"""

from lumiimg.gpu.components import (
    KernelFile,
    component_of,
    gpu_code_in,
    is_library,
    kernel_file,
    role_of,
)
from lumiimg.gpu.target import OVERRIDE, XNACK, GpuCodeError, GpuFit, GpuTarget, fit, node_gpu, taken_for

__all__ = [
    "OVERRIDE",
    "XNACK",
    "GpuCodeError",
    "GpuFit",
    "GpuTarget",
    "KernelFile",
    "component_of",
    "fit",
    "gpu_code_in",
    "is_library",
    "kernel_file",
    "node_gpu",
    "role_of",
    "taken_for",
]
