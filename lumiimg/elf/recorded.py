"""A library of which only the facts are at hand, not the bytes: one of another machine, out of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.elf.reader import ElfError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from lumiimg.elf.facts import ElfFacts


@dataclass(frozen=True, slots=True)
class RecordedElf:
    """An open file for the loader model; whoever wants its bytes gets an ElfError."""

    facts: ElfFacts
    size: int
    """In bytes."""
    identity: Hashable
    net_symbols: tuple[str, ...] = ()
    """Of its exported symbols, those by which RCCL knows a net plugin: nothing else is recorded of them."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Raise ElfError."""
        raise ElfError(f"only the facts of this file are recorded, not the {size} bytes at {offset}")

    def close(self) -> None:
        """Nothing is held."""
