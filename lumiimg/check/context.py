"""An image opened for a check, with all that it is looked at beside: each fact of it is read once, for every level."""

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
from lumiimg.host.container_view import TO_ENGINE, ContainerView, loader_on, read_by, variable_of, view_of_container
from lumiimg.host.engine_rules import as_run
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
    """An image, the machine that it is to run on, and what a user does with it."""

    path: Path
    """The file or folder that it is read from."""
    plain: Image
    """As the engine of the host shows it to a user."""
    image: Image
    """The same, with the files of `venv` over it."""
    environment: Mapping[str, str]
    """The user's: variables of it reach the container."""
    snapshot: Snapshot | None = None
    """Whose libraries may be bound."""
    site: Site | None = None
    """Whose GPU is to take the image's code, and whose bandwidths count, on GPUs."""
    program: str | None = None
    """What jobs start, by its path or name; None for the Python on the image's PATH."""
    venv: Venv | None = None
    """A Python environment that jobs bind, whose programs come first."""
    machine: tuple[str, ...] = ()
    """The options that name the machine, for commands that are proposed."""
    built_with: tuple[str, ...] = ()
    """The options that the image was built with, for the same."""
    address: str | None = None
    """Of a registry or of a Docker engine, from where it was fetched; null for a file."""
    seen: tuple[JobProcess, ...] = ()
    """The processes of jobs as one was seen, instead of what the files say that they start."""
    inventories: dict[Image, Inventory] = field(default_factory=dict, repr=False)
    started: dict[object, JobProcesses] = field(default_factory=dict, repr=False)
    """What jobs start, by all that it depends on."""

    @property
    def title(self) -> str:
        """The image as it was named."""
        return self.address or str(self.path)

    @property
    def name(self) -> str:
        """The image as a command names it."""
        return as_operand(self.title)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a command that looks at the image as this check does."""
        of_program = ("--program", self.program) if self.program is not None else ()
        return (*self.machine, *of_program, *(("--venv", str(self.venv.path)) if self.venv is not None else ()))

    @property
    def options_there(self) -> tuple[str, ...]:
        """The same without the snapshot: a level that sees the node asks it, and not another one's binds."""
        return tuple(word for before, word in pairwise(("", *self.options)) if word != "--host" and before != "--host")

    @cached_property
    def read_by_engine(self) -> dict[str, str]:
        """What of the user's environment the engine of the host reads."""
        engine = self.snapshot.engine if self.snapshot else None
        return read_by(engine.name if engine else None, self.environment)

    @cached_property
    def inside(self) -> ContainerView:
        """The image as a process in it has it."""
        return view_of_container(self.image, self.read_by_engine, loader_on(self.snapshot))

    def variable(self, name: str) -> str | None:
        """Return a variable as it is in the container."""
        return variable_of(name, self.image, self.read_by_engine)

    @cached_property
    def variables(self) -> Variables:
        """The variables of RCCL's process."""
        return read_variables(self.image, self.read_by_engine)

    @property
    def given(self) -> frozenset[str]:
        """Variables of a script on which nothing hangs: PATH, where jobs start a program by its path."""
        return frozenset({"PATH"} if "/" in (self.program or "") else ())

    @cached_property
    def jobs(self) -> JobProcesses:
        """What its jobs start, by which an RCCL is loaded; contexts share it that differ in the node alone."""
        if self.seen:
            return JobProcesses(self.seen)
        key = (self.image, self.program, *sorted(self.read_by_engine.items()))
        if key not in self.started:
            self.started[key] = jobs_of(self.image, self.read_by_engine, self.program)
        return self.started[key]

    def as_seen(self, jobs: tuple[JobProcess, ...], variables: Mapping[str, str | None]) -> ImageInContext:
        """Return it with the process that was seen and the variables of its start; None: it had none."""
        image = self.image.as_seen(variables)
        own = {prefix + name for name in variables for prefix in ("", *TO_ENGINE)}
        environment = {name: value for name, value in self.environment.items() if name not in own}
        inventories = {**self.inventories, image: self.contents}
        return replace(self, image=image, environment=environment, seen=jobs, inventories=inventories)

    @property
    def contents(self) -> Inventory:
        """The software that is in it."""
        return self.contents_of(self.image)

    def contents_of(self, image: Image) -> Inventory:
        """Return the software of `image` or `plain`; what was read of it, contexts share that are made of this one."""
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
    """Open an image, as the engine of a host shows it to a user; what is wrong inside it names the image.

    Raises ImageError also for a folder that holds no root file system.
    """
    environment = environment or {}
    try:
        with open_image(path, user_cache) as image:
            refuse_empty(path, image)
            plain = as_run(image, environment, snapshot)
            with with_venv(plain, venv) as whole:
                yield ImageInContext(
                    path, plain, whole, environment, snapshot, site, program, venv, machine, built_with, address
                )
    except ImageError as error:
        if address:
            from lumiimg.fetch.pull import drop_damaged  # HTTP, which no file needs

            drop_damaged(path)
        if address or error.where is None or not error.where.startswith(str(path)):
            inside = f" (at {error.where})" if error.where else ""
            hint = error.hint or "fetch or build the image again"
            raise ImageError(f"{error.what}{inside}", where=address or str(path), hint=hint) from error
        raise
