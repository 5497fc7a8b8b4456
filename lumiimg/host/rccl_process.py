"""The process of an image that uses the fabric: its RCCL, the variables that it gets, and the plugin that it opens.

RCCL itself sets the variables in its own file that are not set yet (`fabric/rccl.py`). Without an RCCL that loads, the
process contains only the loader.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError, one_line
from lumiimg.core.findings import Remedy
from lumiimg.elf import Process, c_library_of, exported_at, wanted_at
from lumiimg.fabric.path import LIBRCCL, Part, part_of
from lumiimg.fabric.process import PROVIDER_PATH
from lumiimg.fabric.rccl import CONF, PLUGIN_VARIABLE, read_conf
from lumiimg.host.bind_trial import ProcessDemand
from lumiimg.host.container_view import TO_ENGINE, variable_of
from lumiimg.host.job_process import JobProcess, QuestionKind, begin
from lumiimg.host.jobs import jobs_of
from lumiimg.host.root_queries import names_in
from lumiimg.inventory.components import Inventory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.elf import LoaderConfig
    from lumiimg.host.job_process import Setting
    from lumiimg.image import Image, RootFileSystem


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables of an image as RCCL, its plugin and libfabric see them."""

    image: Image
    environment: Mapping[str, str]
    """The user's environment."""
    of_conf: Mapping[str, str] = field(default_factory=dict)
    """Variables that RCCL's own file sets where nothing else does."""
    unread: str | None = None
    """Why that file, which exists, could not be read."""
    job: JobProcess | None = None
    """Job whose own code runs last, and may set variables."""

    def get(self, name: str) -> str | None:
        own = self._set_by_job(name)
        value = own.value if own else variable_of(name, self.image, self.environment)
        return self.of_conf.get(name) if value is None else value

    def is_unsure(self, name: str) -> bool:
        """Whether the image's scripts decide a variable in a way that only a shell can evaluate."""
        return self.image.is_in_doubt(name) and not self._given_as(name) and not self._set_by_job(name)

    @property
    def code_not_followed(self) -> str | None:
        """First file of the job whose code may change variables, or where libraries and modules are found."""
        questions = self.job.questions if self.job else ()
        return next((each.file for each in questions if each.kind is QuestionKind.CODE), None)

    def shown(self, name: str) -> str:
        """Return `NAME=value` for a finding, and the file that sets it."""
        file = self._file_that_sets(name)
        return f"{name}={self.get(name)}" + (f" in {file}" if file else "")

    def without(self, name: str) -> Remedy:
        """Return how to remove a variable, by what sets it: a file of the image, the engine, the image, the user."""
        if file := self._file_that_sets(name):
            return Remedy(f"take {name} out of the image's {file}")
        given = self._given_as(name)
        if not given and self.image.environment.get(name) is not None:
            return Remedy(
                f"start the program with `env -u {name} …`: the image sets it, and `unset` outside does not reach it"
            )
        return Remedy(command=f"unset {' '.join(given or [name])}")

    def set_to(self, name: str, value: str) -> Remedy:
        """Return how to set a variable in the container, whatever sets it now."""
        if own := self._set_by_job(name):
            return Remedy(f"set {name}={value} in the image's {own.file}")
        return Remedy(command=f"export {next(iter(self._given_as(name)), f'SINGULARITYENV_{name}')}={value}")

    def _given_as(self, name: str) -> list[str]:
        """Return the variables that pass this one to the engine."""
        return [prefix + name for prefix in TO_ENGINE if prefix + name in self.environment]

    def _set_by_job(self, name: str) -> Setting | None:
        return next((each for each in reversed(self.job.sets) if each.name == name), None) if self.job else None

    def _file_that_sets(self, name: str) -> str | None:
        """Return the file of the image that sets a variable, where no script of its environment does."""
        own = self._set_by_job(name)
        if own is not None and own.value is not None:
            return own.file
        is_given = own is None and variable_of(name, self.image, self.environment) is not None
        return CONF if name in self.of_conf and not is_given else None


def read_variables(image: Image, environment: Mapping[str, str]) -> Variables:
    """Return the variables of RCCL's process; files in the user's home are not part of the image."""
    unread: str | None = None
    try:
        return Variables(image, environment, read_conf(image.root))
    except BadInputError as error:
        unread = one_line(str(error))
    except PermissionError:
        pass  # RCCL cannot read it either, and continues without it
    except OSError:  # RCCL cannot open it either, unless it is a link to a file that is bound
        with contextlib.suppress(OSError):
            target = image.root.readlink(CONF)
            unread = None if image.root.link_loop(CONF) else f"it is a link to {target}, which is not in the image"
    return Variables(image, environment, unread=unread)


def rccl_candidates(root: RootFileSystem, files: Sequence[str]) -> list[str]:
    """Return those of an inventory's `rccl_files` that are an RCCL."""
    return [file for file in files if part_of(file) is Part.RCCL and root.is_file(file)]


def job_of_library(root: RootFileSystem, settings: LoaderConfig, files: Sequence[str]) -> JobProcess:
    """Return a process of which only the RCCL is known: the one on the loader's search path, else the first."""
    candidates = rccl_candidates(root, files)
    named = _on_loader_path(root, settings) if candidates else None
    return JobProcess(named or next(iter(candidates), LIBRCCL[0]), is_program=False)


def _on_loader_path(root: RootFileSystem, settings: LoaderConfig) -> str | None:
    """Return what dlopen would find for a program that opens RCCL by name."""
    loader = c_library_of(root).loader
    # A process with only the loader is the emptiest one: it does not contain a librccl yet.
    program = Process(root, settings)
    if loader is None or program.start(loader).root is None:
        return None
    found = (program.dlopen(name).root for name in LIBRCCL)
    return next((each.path for each in found if each is not None), None)


def demand_without_rccl(root: RootFileSystem, provider_path: str | None) -> ProcessDemand | None:
    """Return a process that contains only the loader; None where the image has no loader that is modelled."""
    loader = c_library_of(root).loader
    return ProcessDemand(JobProcess(loader, is_program=False), (), provider_path=provider_path) if loader else None


def demands_of(image: Image, settings: LoaderConfig) -> Iterator[ProcessDemand]:
    """Yield the processes of an image, without variables of a user; none without a loader.

    The decisive one of several frameworks comes first. Raises BadInputError where the image cannot be read.
    """
    root, variables, contents = image.root, read_variables(image, {}), Inventory(image)
    found = False
    for job in jobs_of(image, {}).processes or (job_of_library(root, settings, contents.rccl_files),):
        if (rccl := begin(root, settings, job).rccl) is not None:
            library, own = contents.rccl_at(rccl.path), replace(variables, job=job)
            found = True
            named = library.names(own.get(PLUGIN_VARIABLE))
            yield ProcessDemand(job, named, library.accepts, own.get(PROVIDER_PATH))
    if not found and (alone := demand_without_rccl(root, variable_of(PROVIDER_PATH, image, {}))) is not None:
        yield alone


# -- two MPIs in one process: mpi4py and the framework of a job, imported in either order --

_LIBMPI = re.compile(r"libmpi\.so\.(?:12|40)")


@dataclass(frozen=True, slots=True)
class MpiClash:
    """Two MPI libraries with one soname: the process uses the one that was loaded first."""

    module: str
    """Path of mpi4py's extension module."""
    files: tuple[str, ...]
    errors: Mapping[str, tuple[str, ...]]
    """Errors of the loader, by what is imported first; only for orders that fail."""


def mpi_clash(root: RootFileSystem, settings: LoaderConfig, job: JobProcess, packages: str) -> MpiClash | None:
    """Return the clash that makes importing mpi4py and a job's framework fail in some order; None without one."""
    names = (name for name in names_in(root, f"{packages}/mpi4py") if name.startswith("MPI.") and name.endswith(".so"))
    module = next((f"{packages}/mpi4py/{name}" for name in names), None)
    if module is None or not job.opens:
        return None
    orders = {"mpi4py": (module, *job.opens), str(job.framework): (*job.opens, module)}
    processes: dict[str, Process] = {}
    errors: dict[str, list[str]] = {}
    libraries: dict[str, str] = {}
    for first, paths in orders.items():
        process = processes[first] = Process(root, settings)
        errors[first] = list(process.start(job.program).errors)
        for path in paths:
            errors[first] += process.dlopen(path).errors
        of_mpi = [loaded.path for loaded in process.objects if _LIBMPI.fullmatch(loaded.path.rpartition("/")[2])]
        if len(of_mpi) != 1:
            return None
        [libraries[first]] = of_mpi
    offered = {path: exported_at(root, path) for path in libraries.values()}
    every = frozenset[str]().union(*offered.values())
    for first, process in processes.items():
        absent = every - offered[libraries[first]]
        users = [each.path for each in process.objects if any(map(_LIBMPI.fullmatch, each.facts.needed))]
        lacking = {path: absent & wanted_at(root, path) for path in users} if absent else {}
        errors[first] += [f"{path}: undefined symbol: {min(names)}" for path, names in lacking.items() if names]
    ending = {first: tuple(lines) for first, lines in errors.items() if lines}
    return MpiClash(module, tuple(sorted(offered)), ending) if len(offered) > 1 and ending else None
