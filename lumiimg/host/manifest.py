"""What to bind into one image on one machine, each line with its reason; or why it cannot be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.fabric.names import HOST_LIB_DIR
from lumiimg.fabric.path import Fabric, Side

if TYPE_CHECKING:
    from lumiimg.elf import LoadedObject


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
