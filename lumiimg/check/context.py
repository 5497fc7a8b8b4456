"""An image opened for a check, with the machine, job and user that it is checked for; every fact is read only once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.settings import user_cache
from lumiimg.core.text import as_operand
from lumiimg.host.container_view import TO_ENGINE, ContainerView, engine_env, loader_on, variable_of, view_of_container
from lumiimg.host.engine_rules import with_engine_mounts
from lumiimg.host.jobs import JobProcesses, jobs_of
from lumiimg.host.rccl_process import Variables, read_variables
from lumiimg.image import Image, ImageError, open_image, refuse_empty
from lumiimg.inventory.components import Inventory
from lumiimg.resolve.venv import Venv, with_venv

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.host.job_process import JobProcess
    from lumiimg.host.snapshot import Snapshot


@dataclass(frozen=True)
class ImageInContext:
    """An image, the machine that it is to run on, and how its user runs it."""

    path: Path
    """The file or folder that it is read from."""
    plain: Image
    """The image as the host's engine presents it to a user."""
    image: Image
    """The same image, overlaid with the files of `venv`."""
    environment: Mapping[str, str]
    """The user's environment, variables of which reach the container."""
    snapshot: Snapshot | None = None
    """The host whose libraries may be bound."""
    site: Site | None = None
    """The site whose GPU must accept the image's code, and whose bandwidths are the reference for runs on GPUs."""
    program: str | None = None
    """The program that jobs start, by path or name; None for the Python on the image's PATH."""
    venv: Venv | None = None
    """A Python environment that jobs bind, whose programs come first on PATH."""
    machine: tuple[str, ...] = ()
    """The options that name the machine, for suggested commands."""
    built_with: tuple[str, ...] = ()
    """The options that the image was built with, for suggested commands."""
    address: str | None = None
    """Address in a registry or Docker engine from which it was fetched; null for a file."""
    seen: tuple[JobProcess, ...] = ()
    """The processes of jobs based on one that was seen, in place of those that the files predict."""
    inventories: dict[Image, Inventory] = field(default_factory=dict, repr=False)
    started: dict[object, JobProcesses] = field(default_factory=dict, repr=False)
    """Cache of the processes that jobs start, by everything that they depend on."""

    @property
    def title(self) -> str:
        """The image as the user named it."""
        return self.address or str(self.path)

    @property
    def name(self) -> str:
        """The image as an operand of a command."""
        return as_operand(self.title)

    @property
    def options(self) -> tuple[str, ...]:
        """The options that make a command examine the image as this check does."""
        of_program = ("--program", self.program) if self.program is not None else ()
        return (*self.machine, *of_program, *(("--venv", str(self.venv.path)) if self.venv is not None else ()))

    @property
    def options_there(self) -> tuple[str, ...]:
        """The same without the snapshot: a level that runs on the node uses that node, not the binds of another one."""
        return tuple(word for before, word in pairwise(("", *self.options)) if word != "--host" and before != "--host")

    @cached_property
    def read_by_engine(self) -> dict[str, str]:
        """The variables of the user's environment that the host's engine reads."""
        engine = self.snapshot.engine if self.snapshot else None
        return engine_env(engine.name if engine else None, self.environment)

    @cached_property
    def inside(self) -> ContainerView:
        """The image as a process inside it sees it."""
        return view_of_container(self.image, self.read_by_engine, loader_on(self.snapshot))

    def variable(self, name: str) -> str | None:
        """Return the value of a variable in the container."""
        return variable_of(name, self.image, self.read_by_engine)

    @cached_property
    def variables(self) -> Variables:
        """The variables of RCCL's process."""
        return read_variables(self.image, self.read_by_engine)

    @property
    def given(self) -> frozenset[str]:
        """Variables that a script may set without effect: PATH, if jobs start a program by its path."""
        return frozenset({"PATH"} if "/" in (self.program or "") else ())

    @cached_property
    def jobs(self) -> JobProcesses:
        """The processes that its jobs start, which load an RCCL; shared by contexts that differ only in the node."""
        if self.seen:
            return JobProcesses(self.seen)
        key = (self.image, self.program, *sorted(self.read_by_engine.items()))
        if key not in self.started:
            self.started[key] = jobs_of(self.image, self.read_by_engine, self.program)
        return self.started[key]

    def as_seen(self, jobs: tuple[JobProcess, ...], variables: Mapping[str, str | None]) -> ImageInContext:
        """Return the context with the process that was seen and its variables at the start; None: not set."""
        image = self.image.with_variables(variables)
        own = {prefix + name for name in variables for prefix in ("", *TO_ENGINE)}
        environment = {name: value for name, value in self.environment.items() if name not in own}
        inventories = {**self.inventories, image: self.contents}
        return replace(self, image=image, environment=environment, seen=jobs, inventories=inventories)

    @property
    def contents(self) -> Inventory:
        """The software in the image."""
        return self.contents_of(self.image)

    def contents_of(self, image: Image) -> Inventory:
        """Return the software in `image` or `plain`; contexts derived from this one share what was read."""
        return self.inventories.setdefault(image, Inventory(image))


@contextmanager
def open_for_check(
    path: Path,
    environment: Mapping[str, str] | None = None,
    snapshot: Snapshot | None = None,
    site: Site | None = None,
    *,
    program: str | None = None,
    venv: Venv | None = None,
    machine: tuple[str, ...] = (),
    built_with: tuple[str, ...] = (),
    address: str | None = None,
) -> Iterator[ImageInContext]:
    """Open an image as a host's engine presents it to a user; errors inside it name the image.

    Raises ImageError, also for a folder without a root file system.
    """
    environment = environment or {}
    try:
        with open_image(path, user_cache) as image:
            refuse_empty(path, image)
            plain = with_engine_mounts(image, environment, snapshot, site)
            with with_venv(plain, venv) as whole:
                yield ImageInContext(
                    path, plain, whole, environment, snapshot, site, program, venv, machine, built_with, address
                )
    except ImageError as error:
        if address:
            from lumiimg.fetch.pull import drop_damaged  # imports HTTP, which files do not need

            drop_damaged(path)
        if address or error.where is None or not error.where.startswith(str(path)):
            inside = f" (at {error.where})" if error.where else ""
            hint = error.hint or "fetch or build the image again"
            raise ImageError(f"{error.what}{inside}", where=address or str(path), hint=hint) from error
        raise
