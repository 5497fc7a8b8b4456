"""What is printed of jobs, modules and tests."""

from __future__ import annotations

from pathlib import Path

from msgspec import field

from lumiimg.cluster.job.plan import JobOption, SettingScope
from lumiimg.cluster.module.plan import When
from lumiimg.fabric.path import Fabric
from lumiimg.report.outputs.fabric import Bound
from lumiimg.report.outputs.shape import Output, Shape


class JobShape(Shape):
    """What the scheduler is asked for."""

    nodes: int
    """Of the job."""
    gpus: int
    """Of each node, that the program uses."""
    partition: str | None
    """Null: the scheduler chooses."""
    because: str
    """Why this partition; empty where the scheduler chooses."""
    account: str | None
    """Null: none was named."""
    time_s: int
    """Limit, in seconds."""
    whole_nodes: bool
    """Whether the job has its nodes for itself."""


class Rank(Shape):
    """One rank of a node."""

    local_rank: int
    """On its node, from 0."""
    group: int
    """Number of the group of cores."""
    cores: tuple[int, ...]
    """Numbers of the kernel."""
    mask: str
    """Of these, in hexadecimal, as wide as the node."""


class Binding(Shape):
    """To which cores ranks are bound."""

    because: str
    """Why they are bound, or not."""
    ranks: tuple[Rank, ...]
    """Empty where ranks are not bound."""


class JobVariable(Shape):
    """A variable of the job."""

    name: str
    """Of it."""
    value: str
    """As a shell reads it."""
    scope: SettingScope
    """Where it gets its value."""
    because: str
    """Why."""
    source: str
    """Where that is from."""


class JobBind(Bound):
    """One file or folder of the host in the container of a job."""

    read_only: bool
    """Whether it cannot be written in the container."""


class Job(Output):
    """A job script with its arithmetic."""

    printed_by = "lumiimg job IMAGE … --json -- COMMAND"

    image: str
    """As it was named."""
    site: str
    """As for --site."""
    shape: JobShape
    """What the scheduler is asked for."""
    framework: str
    """As for --framework."""
    launch: str
    """What starts the ranks: `srun`, `torchrun`, `ray`, `mpiexec`."""
    ranks: int = field(name="ranks_per_node")
    """Whoever starts them."""
    command: tuple[str, ...]
    """That the job runs, word by word."""
    binding: Binding
    """To which cores ranks are bound."""
    mpi: JobOption | None
    """How the launcher speaks with MPI; null where it is not said."""
    settings: tuple[JobVariable, ...] = field(name="environment")
    """In the order in which they are set."""
    binds: tuple[JobBind, ...]
    """What is bound."""
    notes: tuple[str, ...]
    """What whoever submits it should know."""
    script: str
    """The script."""


class ModuleFiles(Shape):
    """What was written."""

    lmod: Path
    """Module file for Lmod."""
    tcl: Path
    """Module file for Tcl modules."""
    wrappers: Path
    """Folder of the wrappers."""


class ModuleVariable(Shape):
    """A variable that jobs on the site want."""

    name: str
    """Of it."""
    value: str
    """As a shell reads it."""
    when: When = field(name="set_by")
    """Who sets it."""
    left_out: str | None
    """Why nobody does; null where somebody does."""
    because: str
    """Why it is wanted."""
    source: str
    """Where that is from."""


class Module(Output):
    """The module that was written, with all that it sets."""

    printed_by = "lumiimg module IMAGE -o DIR --json"

    full_name: str = field(name="module")
    """`NAME/VERSION`."""
    image: Path
    """Absolute path."""
    title: str
    """For a person."""
    use: Path
    """For `module use`."""
    files: ModuleFiles
    """What was written."""
    wrappers: dict[str, str]
    """Path in the image, by the wrapper's name."""
    commands: tuple[str, ...]
    """Names to type once the module is loaded."""
    fabric: Fabric | None
    """Where the fabric's libraries come from; null without a snapshot."""
    binds: tuple[Bound, ...]
    """What is bound."""
    container_environment: dict[str, str]
    """Variables that are set in the container for the binds."""
    job_variables: tuple[ModuleVariable, ...] = field(name="environment")
    """Variables that jobs on the site want."""
    origin: tuple[str, ...]
    """What the module was made from: image, snapshot, site."""
    notes: tuple[str, ...]
    """What it does not do."""


class Venv(Output):
    """The environment over an image that was made."""

    printed_by = "lumiimg venv IMAGE -o FILE --json"

    path: Path
    """Absolute path of the file, or of the folder."""
    image: str
    """Absolute path of the image."""
    image_mark: str | None
    """Short name of the image's content, as it is in the environment; null for a folder."""
    python: str
    """Of the image: `3.12`."""
    torch: str | None
    """Of the image, which stays; null where it has none."""
    requirements: tuple[str, ...]
    """That were asked for, as in PEP 508."""
    packages: dict[str, str]
    """Versions of what was put in, by name."""
