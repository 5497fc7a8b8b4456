"""The process of an image that uses the fabric, and the names by which its RCCL opens a plugin.

Without an RCCL that loads, it is a process that has nothing but the loader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf.loader import Process
from lumiimg.elf.system import libc_kind, loader_of
from lumiimg.fabric.names import LIBRCCL, part_of
from lumiimg.fabric.path import Part
from lumiimg.fabric.provider import PROVIDER_PATH
from lumiimg.fabric.rccl import PLUGIN_VARIABLE
from lumiimg.host.bind_trial import Demand
from lumiimg.host.container_view import variable_of
from lumiimg.host.job_process import JobProcess, begin, jobs_of
from lumiimg.host.rccl_variables import read_variables
from lumiimg.inventory.components import Inventory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.image import Image, RootFileSystem


def rccl_candidates(root: RootFileSystem, files: Sequence[str]) -> list[str]:
    """Return those of an inventory's `rccl_files` that are an RCCL."""
    return [file for file in files if part_of(file) is Part.RCCL and root.is_file(file)]


def job_of_library(root: RootFileSystem, settings: LoaderSettings, files: Sequence[str]) -> JobProcess:
    """Return the process of which nothing but its RCCL is known: the one on the loader's path, else the first."""
    candidates = rccl_candidates(root, files)
    named = _on_loader_path(root, settings) if candidates else None
    return JobProcess(named or next(iter(candidates), LIBRCCL[0]), is_program=False)


def _on_loader_path(root: RootFileSystem, settings: LoaderSettings) -> str | None:
    """Return what dlopen would give a program that asks for RCCL by name."""
    loader = loader_of(root)
    # The loader alone is the emptiest process: nothing called librccl is in it yet.
    program = Process(root, settings)
    if loader is None or program.start(loader).root is None:
        return None
    found = (program.dlopen(name).root for name in LIBRCCL)
    return next((each.path for each in found if each is not None), None)


def demand_without_rccl(root: RootFileSystem, provider_path: str | None) -> Demand | None:
    """Return the process that has nothing but the loader; None where the image has no loader that is modelled."""
    loader = loader_of(root) if libc_kind(root) == "glibc" else None
    return Demand(JobProcess(loader, is_program=False), (), provider_path=provider_path) if loader else None


def demands_of(image: Image, settings: LoaderSettings) -> Iterator[Demand]:
    """Yield the processes of an image as it is by itself, without any user's variables; none without a loader.

    Of several frameworks the one that counts is first. Raises BadInputError where the image cannot be read.
    """
    root, variables, contents = image.root, read_variables(image, {}), Inventory(image)
    found = False
    for job in jobs_of(image, {}).processes or (job_of_library(root, settings, contents.rccl_files),):
        if (rccl := begin(root, settings, job).rccl) is not None:
            library = contents.rccl_at(rccl.path)
            found = True
            named = library.names(variables.get(PLUGIN_VARIABLE))
            yield Demand(job, named, library.accepts, variables.get(PROVIDER_PATH))
    if not found and (alone := demand_without_rccl(root, variable_of(PROVIDER_PATH, image, {}))) is not None:
        yield alone
