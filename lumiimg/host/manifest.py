"""The binds for one image on one machine, each with its reason; or why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.findings import Severity
from lumiimg.core.text import count, numbers_of
from lumiimg.elf import facts_at
from lumiimg.engine.binds import binds_of
from lumiimg.fabric.path import HOST_LIB_DIR, Fabric, FabricPath, Origin, Side, newest_interface

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.elf import ElfFacts, LoadedObject
    from lumiimg.image import Image


@dataclass(frozen=True, slots=True)
class Bind:
    """One file or folder of the host that is bound into the container."""

    source: str
    """Path on the host."""
    target: str
    """Path in the container."""
    reason: str
    """Reason, as a sentence."""
    chain: tuple[str, ...] = ()
    """Names from the program to this library, each needed by the one before."""
    read_only: bool = False
    """Whether it is read-only in the container."""
    of_image: bool = False
    """Whether the source is a squashfs file whose contents are bound."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable to set for the container."""

    name: str
    """Name of the variable."""
    value: str
    """Value to set."""
    reason: str
    """Reason, as a sentence."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one attempt fails: the library, what it needs, and what there is."""

    attempt: str
    """What was tried: the libfabric of the image, or one of the host by its path."""
    library: str
    """Path or name of the library that cannot be loaded."""
    need: str
    """What it needs: a version, a name."""
    have: str
    """What is available instead."""
    chain: tuple[str, ...]
    """Names from the program to this library, each needed by the one before."""
    words: str
    """Evidence: ld.so's own words, where it would print any."""
    of_host: bool = False
    """Whether a library of the host is what cannot be loaded."""

    def __str__(self) -> str:
        return f"{' -> '.join(self.chain)} needs {self.need}; {self.have}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """One file in the process as it would be with the manifest."""

    object: LoadedObject
    host_path: str | None
    """Path on the host; null for a file of the image."""

    @property
    def name(self) -> str:
        """Name by which it was first requested."""
        return self.object.name

    @property
    def path(self) -> str:
        """Path in the container."""
        return self.object.path

    @property
    def soname(self) -> str:
        """Name by which others need it: its soname, else the name by which it was requested."""
        return self.object.facts.soname or self.object.name

    @property
    def side(self) -> Side:
        """Side that the file belongs to."""
        return Side.HOST if self.host_path else Side.IMAGE

    @property
    def title(self) -> str:
        """The library, with the side that it belongs to."""
        return f"{self.soname} ({self.side})"


@dataclass(frozen=True, slots=True)
class BindManifest:
    """The binds of one image for one machine, or why there are none; an image carries the manifest of its build.

    It may describe an earlier state of the machine: a job that uses its binds says so.
    """

    fabric: Fabric
    """Where the fabric's libraries come from; `none`: no set of binds loads."""
    machine: str = ""
    """Node that it was made for, with its system; absent where there was no snapshot of a node."""
    binds: tuple[Bind, ...] = ()
    """Files and folders to bind."""
    variables: tuple[Variable, ...] = ()
    """Variables to set for the container."""
    refusals: tuple[Refusal, ...] = ()
    """Why attempts fail, in the order in which these were made."""
    notes: tuple[str, ...] = ()
    """Remarks that change nothing: two copies of a library, what an engine must be allowed to do."""

    @property
    def libraries(self) -> dict[str, str]:
        """Host path of each bound library, by the name by which it is needed."""
        prefix = f"{HOST_LIB_DIR}/"
        return {bind.target.removeprefix(prefix): bind.source for bind in self.binds if bind.target.startswith(prefix)}


# -- versions where libraries of one side need those of the other, and the side of each file --


@dataclass(frozen=True, slots=True)
class Margin:
    """The newest needed and the newest available version of one family, between two libraries."""

    library: Loaded
    """Library that needs the version."""
    provider: Loaded
    """Library that should define the version."""
    family: str
    """`GLIBC`, `FABRIC`."""
    need: str
    """Newest needed version, without the family: `2.38`."""
    have: str
    """Newest available version."""

    @property
    def needed(self) -> str:
        """Newest needed version: `GLIBC_2.34`."""
        return f"{self.family}_{self.need}"

    @property
    def offered(self) -> str:
        """Newest available version: `GLIBC_2.38`."""
        return f"{self.family}_{self.have}"

    @property
    def minors(self) -> tuple[int, int] | None:
        """Needed and available minor version; None where the major versions differ."""
        need, have = (*numbers_of(self.need), 0, 0), (*numbers_of(self.have), 0, 0)
        return (need[1], have[1]) if need[0] == have[0] else None

    @property
    def spare(self) -> float:
        """Number of minor versions to spare; infinite where the major versions differ."""
        return float("inf") if self.minors is None else self.minors[1] - self.minors[0]

    @property
    def sentence(self) -> str:
        """What one library needs, and what the other has."""
        return f"needs {self.needed} of {self.provider.title}, which has up to {self.offered}"

    @property
    def left(self) -> tuple[Severity, str]:
        """How the margin is marked, and the number of versions to spare, in words."""
        if self.minors is None:
            return Severity.INFO, ""
        if self.spare > 0:
            return Severity.OK, f"{count(int(self.spare), 'version')} left"
        return (Severity.PROBLEM, f"{int(-self.spare)} too few") if self.spare else (Severity.UNKNOWN, "no margin")


def margins_of(loaded: Sequence[Loaded]) -> Iterator[Margin]:
    """Yield the margin of each version family that a library of one side needs from a library of the other."""
    providers: dict[str, Loaded] = {}
    for item in loaded:
        providers.setdefault(item.name, item)
        providers.setdefault(item.soname, item)
    for item in loaded:
        for (file, family), number in newest_needs(item.object.facts).items():
            if (provider := providers.get(file)) is not None and provider.side is not item.side:
                defined = (name.rpartition("_") for name in provider.object.facts.version_definitions)
                newest = max((n for of, _, n in defined if of == family), key=numbers_of, default=None)
                if newest:
                    yield Margin(item, provider, family, number, newest)


def newest_needs(facts: ElfFacts) -> dict[tuple[str, str], str]:
    """Return the newest version that a library needs, by the needed library's name and the version family.

    A weak need does not stop a load, and does not count.
    """
    needs: dict[tuple[str, str], str] = {}
    for need in facts.version_needs:
        family, _, number = need.name.rpartition("_")
        key = (need.file, family)
        if not need.weak and numbers_of(number) > numbers_of(needs.get(key, "")):
            needs[key] = number
    return needs


def origins(
    path: FabricPath, image: Image, environment: Mapping[str, str], loaded: Iterable[Loaded] = (), *, running: bool
) -> dict[str, Origin]:
    """Return the origin of each file of a fabric path.

    `loaded`: the process modelled with the binds. `running`: the path was seen in a process; then a file that the image
    does not have, or that a bind of the user covers, is the host's.
    """
    modelled = {item.path: item for item in loaded}
    bound = tuple(f"{bind.target.rstrip('/')}/" for _, each in binds_of(environment) for bind in each)
    found: dict[str, Origin] = {}
    for file in filter(None, (path.rccl, path.plugin, path.libfabric, path.libcxi)):
        if (item := modelled.get(file)) is not None:
            newest = newest_interface(file, item.object.facts.version_definitions)
            found[file] = Origin(item.side, item.host_path, newest)
        elif file.startswith(f"{HOST_LIB_DIR}/") or (running and f"{file}/".startswith(bound)):
            found[file] = Origin(Side.HOST)
        elif image.root.is_file(file):
            facts = facts_at(image.root, file)
            found[file] = Origin(Side.IMAGE, offers=newest_interface(file, facts.version_definitions if facts else ()))
        else:
            found[file] = Origin(Side.HOST)
    return found
