"""Which library makes the communicators of a process: whoever answers `ncclCommInitRank`, whatever its name is.

libtorch_hip.so and JAX's plugin are linked with it: their call is bound by the loader's scopes, so that a library which
is preloaded, or was opened for all before, answers in place of the RCCL that they need. vLLM asks dlsym of what it has
opened. An RCCL that is linked into libtorch_hip.so answers there, and its strings are in that file.
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

INIT = "ncclCommInitRank"
_FUNCTIONS = "nccl"
"""With what the names of RCCL's functions begin."""
_OF_TORCH = ("libtorch_hip.so", "libtorch_cuda.so")


def linked_with(process: Process, opened: LoadedObject) -> tuple[LoadedObject | None, LoadedObject | None]:
    """Return (the object that answers the call, the caller): the program, a library that it opened, or what those need.

    Where nothing there names the function, or the symbols cannot be read, it is the RCCL that is known by its name, and
    nobody calls it.
    """
    below = [*process.scopes.list_of(opened)]
    by_name = rccl_in(process)
    try:
        found = {each: reference for each in below if (reference := reference_of(process, each, INIT)) is not None}
        # torch may have an RCCL in itself
        torch = next((each for each in below if each.path.rpartition("/")[2] in _OF_TORCH), None)
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


def asked_of(process: Process, handle: LoadedObject) -> tuple[LoadedObject, None]:
    """Return what dlsym gives for a library that was opened, or is the only one that is known: at worst that one."""
    try:
        return dlsym(process, handle, INIT) or handle, None
    except (OSError, BadInputError):
        return handle, None


def is_alone(process: Process, root: RootFileSystem, rccl: LoadedObject, caller: LoadedObject | None) -> bool:
    """Whether all calls of RCCL, its own and those of who calls it, come to one, though the process has another."""

    def offered(loaded: LoadedObject) -> frozenset[str]:
        return exported_at(root, process.config.absolute(loaded.path), _FUNCTIONS)

    if caller is not None:
        called = {name for name in wanted_at(root, process.config.absolute(caller.path)) if name.startswith(_FUNCTIONS)}
        if called - offered(rccl):
            return False
    before = (takewhile(lambda each: each is not rccl, process.scopes.of(user)) for user in (caller or rccl, rccl))
    return not any(map(offered, chain.from_iterable(before)))


def rccl_in(process: Process) -> LoadedObject | None:
    """Return the RCCL of a process by its name: the one that programs find, else one under a name of its own."""
    found = next(filter(None, map(process.find, LIBRCCL)), None)
    return found or next((loaded for loaded in process.objects if part_of(loaded.path) is Part.RCCL), None)
