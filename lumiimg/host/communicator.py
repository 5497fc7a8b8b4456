"""Find the library that creates a process's communicators: the one that answers `ncclCommInitRank`, whatever its name.

libtorch_hip.so and JAX's plugin are linked with RCCL, and the loader's scopes bind their call: a library that is
preloaded, or was opened earlier with RTLD_GLOBAL, answers in place of the RCCL that they need. vLLM calls dlsym on the
library that it opened. An RCCL linked into libtorch_hip.so answers from there, and its strings are in that file.
Sources: torch/csrc/distributed/c10d/NCCLUtils.cpp; vllm/distributed/device_communicators/pynccl_wrapper.py.
"""

from __future__ import annotations

from itertools import chain, takewhile
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf import definer_of, dlsym, exported_at, reference_of, wanted_at
from lumiimg.fabric.path import LIBRCCL, Part, part_of
from lumiimg.fabric.rccl import read_rccl

if TYPE_CHECKING:
    from lumiimg.elf import LoadedObject, Process
    from lumiimg.image import RootFileSystem

INIT_CALL = "ncclCommInitRank"
_PREFIX = "nccl"
"""Prefix of RCCL's function names."""
_TORCH_LIBRARIES = ("libtorch_hip.so", "libtorch_cuda.so")


def rccl_by_linking(process: Process, opened: LoadedObject) -> tuple[LoadedObject | None, LoadedObject | None]:
    """Return (the object that answers the call, its caller); the caller is `opened` or a library that it needs.

    If no caller is found, or symbols cannot be read, these are the RCCL known by its name and None; (None, None) for a
    torch that neither references the function nor contains an RCCL.
    """
    below = [*process.scopes.local_scope_of(opened)]
    by_name = rccl_in(process)
    try:
        found = {each: reference for each in below if (reference := reference_of(process, each, INIT_CALL)) is not None}
        # an RCCL may be linked into torch
        torch = next((each for each in below if each.path.rpartition("/")[2] in _TORCH_LIBRARIES), None)
        caller = next((each for each, reference in found.items() if not reference.is_defined), torch)
        if caller is None or caller.is_recorded:
            return by_name, None
        if caller in found:
            recorded = by_name if by_name and by_name.is_recorded else None
            return definer_of(process, caller, found[caller]) or recorded, caller
        with process.open(caller) as file:
            is_inside = read_rccl(file).version is not None
    except (OSError, BadInputError):
        return by_name, None
    return (caller, caller) if is_inside else (None, None)


def rccl_by_dlsym(process: Process, handle: LoadedObject) -> tuple[LoadedObject, None]:
    """Return (the object that dlsym finds in an opened library, else that library; None: no caller is known)."""
    try:
        return dlsym(process, handle, INIT_CALL) or handle, None
    except (OSError, BadInputError):
        return handle, None


def is_only_rccl(process: Process, root: RootFileSystem, rccl: LoadedObject, caller: LoadedObject | None) -> bool:
    """Whether all RCCL calls, its own and its caller's, reach this RCCL although the process has another one."""

    def exported_names(loaded: LoadedObject) -> frozenset[str]:
        return exported_at(root, process.config.absolute(loaded.path), _PREFIX)

    if caller is not None:
        called = {name for name in wanted_at(root, process.config.absolute(caller.path)) if name.startswith(_PREFIX)}
        if called - exported_names(rccl):
            return False
    before = (takewhile(lambda each: each is not rccl, process.scopes.of(user)) for user in (caller or rccl, rccl))
    return not any(map(exported_names, chain.from_iterable(before)))


def rccl_in(process: Process) -> LoadedObject | None:
    """Return the RCCL of a process by its name: the one that programs ask for, else one under another name."""
    found = next(filter(None, map(process.find, LIBRCCL)), None)
    return found or next((loaded for loaded in process.objects if part_of(loaded.path) is Part.RCCL), None)
