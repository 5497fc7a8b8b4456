"""What versions meet where a library of the host and one of the image need each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.findings import Severity
from lumiimg.core.text import count, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.elf import ElfFacts
    from lumiimg.host.manifest import Loaded


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
    def crosses(self) -> bool:
        """Whether one side is the host's and the other the image's."""
        return self.library.side is not self.provider.side

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
    """Yield, for each pair of libraries and each family of versions between them, what is needed and what is there."""
    providers: dict[str, Loaded] = {}
    for item in loaded:
        providers.setdefault(item.name, item)
        providers.setdefault(item.soname, item)
    for item in loaded:
        for (file, family), number in newest_needs(item.object.facts).items():
            if (provider := providers.get(file)) is not None:
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
