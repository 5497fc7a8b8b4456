"""What is printed as JSON of images, machines and jobs, beyond a single value of a room.

Docstrings are the descriptions in the schema. Modules of rooms are imported for the types alone: printing one
kind loads no room that its command has no use for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lumiimg.check.static.host_fit import HostFit
    from lumiimg.findings import Advice
    from lumiimg.host.manifest import BindManifest, Variable

# -- images


@dataclass(frozen=True, slots=True)
class BoundImage:
    """The least list of binds and variables for an image on a machine, or why there is none."""

    of: HostFit
    decision: Literal["ok", "refused", "unknown"]
    """About the binds: `ok`, each library that is opened is found, in versions that fit."""
    manifest: BindManifest
    doubts: tuple[str, ...]
    """What stands, or may stand, against RCCL's using what is bound; then `explain` does not say `ok`."""

    @property
    def environment(self) -> dict[str, Variable]:
        """Variables to set for the container, by name."""
        return {variable.name: variable for variable in self.manifest.variables}


@dataclass(frozen=True, slots=True)
class GlibcVersions:
    """Versions of the C library."""

    image: str | None
    """The image's; null where it is not known."""
    host: str | None
    """The host's; null where it is not known, or there is no snapshot."""


@dataclass(frozen=True, slots=True)
class ExplainedImage:
    """What comes from where in the process of RCCL and its plugin, which versions meet, what margin is left."""

    of: HostFit
    advice: Advice
    """Why, and one command."""
    nearest: None = None
    """Always null: of a request, see explain-request."""

    @property
    def glibc(self) -> GlibcVersions:
        """Versions of the C library."""
        return GlibcVersions(self.of.glibc, self.of.host_glibc)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing and changes nothing."""
        return self.of.manifest.notes if self.of.manifest else ()
