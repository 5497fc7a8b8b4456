"""What to bind into one image on one machine, each line with its reason; or why it cannot be done."""

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
    """One file or folder of the host in the container."""

    source: str
    """On the host."""
    target: str
    """In the container."""
    reason: str
    """Why, a sentence."""
    chain: tuple[str, ...] = ()
    """Names from the program to this library, each needed by the one before."""
    read_only: bool = False
    """Whether it cannot be written in the container."""
    of_image: bool = False
    """Whether the source is a squashfs file, of which what it holds is bound."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable to set for the container."""

    name: str
    """Of it."""
    value: str
    """To set."""
    reason: str
    """Why, a sentence."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one attempt fails: the library, what it needs, and what there is."""

    attempt: str
    """What was tried: the libfabric of the image, or one of the host by its path."""
    library: str
    """Path of the library that cannot be loaded, and whose it is."""
    need: str
    """What it needs: a version, a name."""
    have: str
    """What there is instead."""
    chain: tuple[str, ...]
    """Names from the program to this library, each needed by the one before."""
    words: str
    """What shows it: ld.so's own words, where it would print any."""
    of_host: bool = False
    """Whether a library of the host is what cannot be loaded."""

    def __str__(self) -> str:
        return f"{' -> '.join(self.chain)} needs {self.need}; {self.have}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """One file of the process as it would be with the manifest."""

    object: LoadedObject
    host_path: str | None
    """Where it lies on the host; null for a file of the image."""

    @property
    def name(self) -> str:
        """The name that it was first asked for by."""
        return self.object.name

    @property
    def path(self) -> str:
        """Where it is in the container."""
        return self.object.path

    @property
    def soname(self) -> str:
        """The name by which others need it: its soname, else the one that it was asked for by."""
        return self.object.facts.soname or self.object.name

    @property
    def side(self) -> Side:
        """Whose file it is."""
        return Side.HOST if self.host_path else Side.IMAGE

    @property
    def title(self) -> str:
        """The library, and whose it is."""
        return f"{self.soname} ({self.side})"


@dataclass(frozen=True, slots=True)
class BindManifest:
    """What to bind into one image for one machine, or why nothing is; an image carries the one that it was built with.

    What is bound may be from a machine as it was: a job that binds by it says so.
    """

    fabric: Fabric
    """Where the fabric's libraries come from; `none`: no set of binds loads."""
    machine: str = ""
    """The node that it was made for, with its system; absent where none was looked at."""
    binds: tuple[Bind, ...] = ()
    """What is to be bound."""
    variables: tuple[Variable, ...] = ()
    """To set for the container."""
    refusals: tuple[Refusal, ...] = ()
    """Of the attempts that do not work, in the order in which they were made."""
    notes: tuple[str, ...] = ()
    """What is worth knowing and changes nothing: two copies of a library, what an engine must be allowed to do."""

    @property
    def libraries(self) -> dict[str, str]:
        """Path on the host of each library that is bound, by the name by which it is needed."""
        prefix = f"{HOST_LIB_DIR}/"
        return {bind.target.removeprefix(prefix): bind.source for bind in self.binds if bind.target.startswith(prefix)}


# -- beside it: what versions meet where the libraries of both sides need each other, and whose each file is --


@dataclass(frozen=True, slots=True)
class Margin:
    """Of one family of versions between two libraries: the newest that is needed, and the newest that is there."""

    library: Loaded
    """The one that needs."""
    provider: Loaded
    """The one that it is needed of."""
    family: str
    """`GLIBC`, `FABRIC`."""
    need: str
    """The newest version that is needed, without the family: `2.38`."""
    have: str
    """The newest one that is there."""

    @property
    def needed(self) -> str:
        """The newest that is needed: `GLIBC_2.34`."""
        return f"{self.family}_{self.need}"

    @property
    def offered(self) -> str:
        """The newest that is there: `GLIBC_2.38`."""
        return f"{self.family}_{self.have}"

    @property
    def minors(self) -> tuple[int, int] | None:
        """Minor versions of what is needed and of what is there; None where the major versions differ."""
        need, have = (*numbers_of(self.need), 0, 0), (*numbers_of(self.have), 0, 0)
        return (need[1], have[1]) if need[0] == have[0] else None

    @property
    def spare(self) -> float:
        """How many minor versions are left, infinite where the major versions differ."""
        return float("inf") if self.minors is None else self.minors[1] - self.minors[0]

    @property
    def sentence(self) -> str:
        """What the one needs, and what the other has."""
        return f"needs {self.needed} of {self.provider.title}, which has up to {self.offered}"

    @property
    def left(self) -> tuple[Severity, str]:
        """How many versions are left between what is needed and what is there, and how that is marked."""
        if self.minors is None:
            return Severity.INFO, ""
        if self.spare > 0:
            return Severity.OK, f"{count(int(self.spare), 'version')} left"
        return (Severity.PROBLEM, f"{int(-self.spare)} too few") if self.spare else (Severity.UNKNOWN, "no margin")


def margins_of(loaded: Sequence[Loaded]) -> Iterator[Margin]:
    """Yield what is needed and what is there where a library of one side needs versions of the other's, by family."""
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
    """Return the newest version that a library needs, by the needed library's name and the family of versions.

    What it would only like to have (a weak need) stops no load, and does not count.
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
    """Return, for each file of a path, whose it is.

    `loaded`: the process as it is modelled with what is bound. `running`: the path was seen in a process; then a file
    that the image does not have, or over which the user binds something, is the host's.
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
