"""Sites: facts about machines in `sites/<name>.toml` (docs/extend/site.md), and the choice of one if none is named."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct, field, structs

from lumiimg.catalog.catalogue import find_file
from lumiimg.catalog.drivers import SiteDriver
from lumiimg.catalog.folders import file_names, site_folders
from lumiimg.catalog.launch import (
    MeasuredVariable,
    ModuleName,
    SiteAdvice,
    SiteBinding,
    SiteModule,
    SiteMpi,
    SiteOption,
    SitePartition,
    SiteVariable,
)
from lumiimg.catalog.settings import read_settings
from lumiimg.core.decode import Positive, PositiveFloat, Text, matching, read_toml
from lumiimg.core.errors import BadInputError, shortened

DEFAULT = "lumi"
"""The site to make things for if none is named."""
_USUAL_GPUS = 8
"""GPUs per node, if the site does not say."""
SCHEDULERS = ("Slurm", "PBS")
"""Schedulers that job scripts can be written for."""
_Sign = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9_]{0,127}=.*", "a variable with its value, SLURM_CLUSTER_NAME=lumi,")
]
_Version = Annotated[str, matching(r"[0-9]{1,4}(\.[0-9]{1,5}){1,3}", "a version like 1.22.0")]
_Absolute = Annotated[str, matching(r"/.*", "an absolute path")]
_Scheduler = Annotated[str, matching("|".join(SCHEDULERS), f"one of {', '.join(SCHEDULERS)}")]
_Domain = Annotated[str, matching(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,9}", "a domain like hsn.cm.example.org")]
_Caches = Annotated[
    str,
    matching(
        r"/(?!.*\.\.)[A-Za-z0-9_+.$/-]+/[A-Za-z0-9_+.$-]*\$(SLURM_JOB_ID|PBS_JOBID)",
        "a folder of one job, /tmp/$USER-$SLURM_JOB_ID,",
    ),
]
_Scratch = Annotated[
    str,
    matching(
        r"/(?!.*\.\.)[A-Za-z0-9_+./-]*(?:\$(?:SLURM_JOB_ACCOUNT|USER)(?![A-Za-z0-9_])[A-Za-z0-9_+./-]*)*",
        "a folder of a user, /scratch/$SLURM_JOB_ACCOUNT/$USER,",
    ),
]


class SiteBind(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A path that is bound at the same place in containers, and why."""

    path: _Absolute
    """Path on the host, and in the container."""
    reason: Text
    """The reason."""
    source: Text | None = None
    """Source; None if it is that of the site."""


class SiteFabric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The host's side of the fast network."""

    slingshot: _Version | None = None
    """Release of the Slingshot host software; this and the next are None if not known."""
    libfabric: _Version | None = None
    """Version of libfabric on the nodes."""
    glibc: _Version | None = None
    """The newest version of the C library that the host's libfabric and libcxi require; None if not known."""
    source: Text
    """Where that comes from."""
    date: dt.date
    """When that was looked up, ISO 8601."""


class SiteBandwidth(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The bandwidth that a network test reaches on a healthy machine."""

    test: Text
    """Name of the program: `all_reduce_perf`."""
    nodes: Positive
    ranks: Positive
    from_bytes: Positive
    """Size of the message from which the network is saturated."""
    gb_s: PositiveFloat
    """Bus bandwidth, 1e9 bytes per second."""
    least_gb_s: PositiveFloat
    """Below this something is wrong."""
    remedy: tuple[str, ...] = ()
    """What to check in that case."""
    source: Text


class SiteIdentity(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Signs by which programs recognise the machine that they run on; one sign is enough."""

    variables: tuple[_Sign, ...] = ()
    """Variables that are set there, as NAME=VALUE."""
    nodes: tuple[str, ...] = ()
    """Names of its nodes, as shell patterns, if no other machine has such names."""
    source: Text
    """Where that comes from."""


class _SiteFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`sites/<name>.toml`."""

    title: Text
    """Title for users."""
    status: Literal["documented", "run"] | None = None
    """`documented`: from published documents; `run`: something ran there; null if it is not stated."""
    arch: Text | None = None
    """Architecture of its GPUs, as compilers name it: `gfx90a`; null if they are not AMD's."""
    vendor: Text | None = None
    """Vendor of its GPUs, if that is not AMD."""
    processors: Text | None = None
    """Architecture of its nodes' processors, as `uname -m` prints it; null if it is not known."""
    identity: SiteIdentity | None = None
    """Signs of the machine; null if nothing certain is known."""
    driver: SiteDriver | None = None
    """The GPU driver of the nodes; null if it is not known."""
    fabric: SiteFabric | None = None
    """The fast network; null if it is not known."""
    scheduler: _Scheduler | None = None
    """The scheduler: `Slurm`, `PBS`."""
    engine: Text | None = None
    """The container engine of the nodes."""
    proot_modules: tuple[ModuleName, ...] = ()
    """Modules that put proot on PATH, in load order."""
    binds: tuple[SiteBind, ...] = field(name="bind", default=())
    """File systems and devices to bind."""
    bandwidths: tuple[SiteBandwidth, ...] = field(name="bandwidth", default=())
    partitions: tuple[SitePartition, ...] = field(name="partition", default=())
    """Partitions with GPUs."""
    binding: SiteBinding | None = None
    mpi: SiteMpi | None = None
    caches: _Caches | None = None
    """A folder on each node for the caches of one job, as a shell reads it, absolute and with the job's number at its
    end: its jobs create it first, and remove it."""
    scratch: _Scratch | None = None
    """A folder of a user that is visible on all nodes and has space for models, as a shell of a job reads it."""
    variables: tuple[SiteVariable, ...] = field(name="environment", default=())
    """Variables that jobs should set."""
    modules: tuple[SiteModule, ...] = field(name="module", default=())
    """Modules that jobs should load."""
    options: tuple[SiteOption, ...] = field(name="option", default=())
    """Options of the scheduler that jobs should use."""
    domain: _Domain | None = None
    """Suffix of a node's short name with which ranks meet over the fast network; null: the name needs none."""
    measured: tuple[MeasuredVariable, ...] = ()
    """Variables that were tried there and had no effect, or a harmful one."""
    advice: tuple[SiteAdvice, ...] = ()
    """Further advice."""
    source: Text
    date: dt.date


class Site(_SiteFile, frozen=True, kw_only=True):
    """What is known about a machine."""

    name: str
    """Name, as for --site."""

    @property
    def kind(self) -> Literal["site"]:
        """Kind of entry."""
        return "site"

    @property
    def cores(self) -> tuple[tuple[int, ...], ...] | None:
        """Cores beside each GPU, in the order of the GPUs; null if they are not known."""
        return self._cores(sparing=False)

    @property
    def cores_sparing(self) -> tuple[tuple[int, ...], ...] | None:
        """The same without those left to helpers of the framework."""
        return self._cores(sparing=True)

    def _cores(self, *, sparing: bool) -> tuple[tuple[int, ...], ...] | None:
        binding = self.binding
        return tuple(binding.cores_near(gpu, sparing=sparing) for gpu in range(len(binding.near))) if binding else None

    @property
    def is_any(self) -> bool:
        """Whether it is not a particular machine, so that nothing is judged for it."""
        return self.driver is None and self.fabric is None and self.arch is None and self.vendor is None

    def is_cache(self, value: str) -> bool:
        """Return whether a path is below the folder for caches."""
        return self.caches is not None and value.startswith(f"{self.caches}/")


def read_site(path: Path) -> Site:
    """Read and validate a site. Raises DecodeError, which names the file and every wrong key."""
    return Site(name=path.stem, **structs.asdict(read_toml(path, _SiteFile)))


def site_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of all sites, sorted; a user's own replace those of the same name."""
    return file_names(site_folders(environment))


def find_site(name: str, environment: Mapping[str, str]) -> Site:
    """Return a site by its name, or by the path of its file.

    Raises UnknownNameError, or DecodeError if it is invalid.
    """
    return read_site(find_file("site", name, site_folders(environment)))


def submit_conditions(environment: Mapping[str, str]) -> str | None:
    """Return what a job needs to be submitted, as a condition; None if it can be submitted here, as it is."""
    lacks = [] if shutil.which("sbatch", path=environment.get("PATH")) else ["where jobs are submitted"]
    lacks += [] if environment.get("SBATCH_ACCOUNT") else ["with your project in SBATCH_ACCOUNT"]
    return ", ".join(lacks) or None


def sbatch_options(site: Site | None, environment: Mapping[str, str]) -> list[str]:
    """Return the options that request nodes with GPUs from Slurm, if no variable sets them: `-p dev-g …`."""
    gpus = len(site.binding.near) if site is not None and site.binding is not None else _USUAL_GPUS
    partitions = sorted(site.partitions if site is not None else (), key=lambda one: not one.debug)
    named = [f"-p {one.name}" for one in partitions[:1] if not environment.get("SBATCH_PARTITION")]
    return [*named, f"--gpus-per-node={gpus}"]


# -- choice of a site --


@dataclass(frozen=True, slots=True)
class ChosenSite:
    """A site that was not named on the command line, and why it was chosen."""

    name: str
    """A name, or the path of a file."""
    note: str
    """A sentence for the user: "site lumi, as SLURM_CLUSTER_NAME is lumi (--site NAME for another)"."""


def site_here(environment: Mapping[str, str], node: str, *, elsewhere: bool = False) -> ChosenSite | None:
    """Return the site in the settings, else the one whose machine this is; None if neither gives one.

    `node` is the name of the node in question; `elsewhere`: it is not the one that this runs on, so the variables here
    say nothing about it. Raises BadInputError if the settings are invalid, or name an unknown site.
    """
    settings = read_settings(environment)
    if settings.site is not None:
        if not settings.site.endswith(".toml") and settings.site not in (known := site_names(environment)):
            what = f"names a site {shortened(settings.site)!r}, which does not exist"
            raise BadInputError(what, where=settings.site_of, hint=f"known: {', '.join(known)}")
        return _site_that_shows(settings.site, f"as {settings.site_of} says")
    found = dict(_recognised_sites({} if elsewhere else environment, node, environment))
    if len(found) != 1:  # if there are several, none is certain
        return None
    [(name, sign)] = found.items()
    return _site_that_shows(name, f"as {sign}")


def target_site(environment: Mapping[str, str], node: str, *, elsewhere: bool = False) -> ChosenSite:
    """Return the site to make things for if none is named: as `site_here`, else LUMI. Raises as `site_here`."""
    found = site_here(environment, node, elsewhere=elsewhere)
    return found or ChosenSite(DEFAULT, f"no --site given: assuming {DEFAULT}")


def _site_that_shows(name: str, why: str) -> ChosenSite:
    return ChosenSite(name, f"site {name}, {why} (--site NAME for another)")


def _recognised_sites(signs: Mapping[str, str], node: str, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in site_names(environment):
        try:
            identity = find_site(name, environment).identity
        except BadInputError:  # a broken file of the user must not hide the others
            continue
        sign = _sign_of(identity, signs, node) if identity else None
        if sign is not None:
            yield name, sign


def _sign_of(identity: SiteIdentity, environment: Mapping[str, str], node: str) -> str | None:
    for variable in identity.variables:
        name, _, value = variable.partition("=")
        if environment.get(name) == value:
            return f"{name} is {value}"
    return f"this is {node}" if any(fnmatchcase(node, pattern) for pattern in identity.nodes) else None
