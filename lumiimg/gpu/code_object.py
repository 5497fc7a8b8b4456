"""A code object: an ELF file for one GPU, which says in its header for which (LLVM `AMDGPUUsage.rst`, "ELF Header").

7  e_ident[EI_OSABI]: 64 is AMD's HSA; 8 e_ident[EI_ABIVERSION]: version of the code object
18 e_machine: 224 is EM_AMDGPU; 48 e_flags
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.gpu.source import GpuCodeError, read_exactly
from lumiimg.gpu.target import GpuTarget, target_of_flags

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess

HEADER_BYTES = 64
_CLASS_AND_ORDER = b"\x7fELF\2\1\1"
_HSA = 64
_EM_AMDGPU = 224


def is_code_object(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of a code object."""
    return head.startswith(_CLASS_AND_ORDER) and int.from_bytes(head[18:20], "little") == _EM_AMDGPU


def read_code_object(source: RandomAccess, at: int = 0) -> GpuTarget:
    """Return what a code object is for. Raises GpuCodeError for anything else."""
    head = read_exactly(source, at, HEADER_BYTES, "a code object")
    if not is_code_object(head) or head[7] != _HSA:
        raise GpuCodeError(f"not a code object for AMD's HSA: begins with {head[:8]!r}")
    return target_of_flags(int.from_bytes(head[48:52], "little"), head[8])
