"""GPU code in files: its targets, and the GPUs that accept it. Headers are read, never the code.

`gpu_code_in` reads a file (a program or library of the host, a bundle, a code object, a kernel file of a library), and
`fit` says whether a GPU, which `node_gpu` returns for its name, accepts what was found. The rest is about names: the
common name of a file with GPU code, and what it means for a job if its GPU accepts none of that.
"""

from lumiimg.gpu.components import (
    KernelFile,
    component_of,
    gpu_code_in,
    is_library,
    kernel_file,
    role_of,
)
from lumiimg.gpu.target import OVERRIDE, XNACK, GpuCodeError, GpuFit, GpuTarget, fit, node_gpu, overridden_processor

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
    "overridden_processor",
    "role_of",
]
