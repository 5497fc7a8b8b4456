"""What versions meet where a library of the host and one of the image need each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.elf.versions import numbers_of
from lumiimg.findings import Severity
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.elf.facts import ElfFacts
    from lumiimg.fabric.path import Side
    from lumiimg.host.manifest import Loaded


@dataclass(frozen=True, slots=True)
class Margin:
    """Of one family of versions between two libraries: the newest that is needed, and the newest that is there."""

    library: str
    """Name of the one that needs."""
    library_of: Side
    """Whose that is."""
    provider: str
    """Name of the one that it is needed of."""
    provider_of: Side
    """Whose that is."""
    family: str
    """`GLIBC`, `FABRIC`."""
    need: str
    """The newest version that is needed, without the family: `2.38`."""
    have: str
    """The newest one that is there; empty where that library was not seen."""

    @property
    def needed(self) -> str:
        """The newest that is needed: `GLIBC_2.34`."""
        return f"{self.family}_{self.need}"

    @property
    def offered(self) -> str:
        """The newest that is there: `GLIBC_2.38`."""
        return f"{self.family}_{self.have}"

    @property
    def library_side(self) -> str:
        """The one that needs, and whose it is."""
        return f"{self.library} ({self.library_of})"

    @property
    def provider_side(self) -> str:
        """The one that it is needed of, and whose that is."""
        return f"{self.provider} ({self.provider_of})"

    @property
    def crosses(self) -> bool:
        """Whether one side is the host's and the other the image's."""
        return self.library_of is not self.provider_of

    @property
    def minors(self) -> tuple[int, int] | None:
        """Minor versions of what is needed and of what is there; None where the major versions differ."""
        need, have = (*numbers_of(self.need), 0, 0), (*numbers_of(self.have), 0, 0)
        return (need[1], have[1]) if need[0] == have[0] else None

    @property
    def sentence(self) -> str:
        """What the one needs, and what the other has."""
        return f"needs {self.needed} of {self.provider_side}, which has up to {self.offered}"

    @property
    def left(self) -> tuple[Severity, str]:
        """How many versions are left between what is needed and what is there, and how that is marked."""
        if self.minors is None:
            return Severity.INFO, ""
        need, have = self.minors
        if need < have:
            return Severity.OK, f"{count(have - need, 'version')} left"
        return (Severity.UNKNOWN, "no margin") if need == have else (Severity.PROBLEM, f"{need - have} too few")

    @property
    def spare(self) -> float:
        """How many minor versions are left, infinite where the major versions differ: for sorting."""
        return float("inf") if self.minors is None else self.minors[1] - self.minors[0]


def margins_of(loaded: Sequence[Loaded]) -> Iterator[Margin]:
    """Yield, for each pair of libraries and each family of versions between them, what is needed and what is there."""
    providers: dict[str, Loaded] = {}
    for item in loaded:
        for name in (item.object.name, item.object.facts.soname):
            if name:
                providers.setdefault(name, item)
    for item in loaded:
        for (file, family), number in newest_needs(item.object.facts).items():
            provider = providers.get(file)
            if provider is None:
                continue
            defined = [name.rpartition("_") for name in provider.object.facts.version_definitions]
            newest = max((n for f, _, n in defined if f == family), key=numbers_of, default="")
            if newest:
                yield Margin(
                    library=item.soname,
                    library_of=item.side,
                    provider=file,
                    provider_of=provider.side,
                    family=family,
                    need=number,
                    have=newest,
                )


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
