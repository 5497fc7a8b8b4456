"""Whether a library that is dlopened still finds room in the static TLS block.

What is there at the start is counted exactly, and some surplus is added. A library that reaches its thread-local data
by a fixed offset (DF_STATIC_TLS) must have its block in that surplus; others get theirs from malloc, at no limit.

glibc: `_dl_determine_tlsoffset` in `elf/dl-tls.c`, `_dl_try_allocate_static_tls` in `elf/dl-reloc.c`, for machines with
the thread pointer behind the blocks (x86). The surplus is 1664 bytes in every version from 2.26 to 2.43, with the
tunables `glibc.rtld.nns` and `glibc.rtld.optional_static_tls` as they are. Since 2.41 the block has the rseq area too.

The block is that of the library that *defines* the data. Which one a DF_STATIC_TLS library without TLS of its own
means, only a symbol lookup would tell: nothing is said of it. Neither are the blocks of TLS descriptors counted, which
take of the same surplus where the loader finds room for them (2.32 and newer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf.facts import DF_STATIC_TLS, ElfFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.elf.objects import LoadedObject

SURPLUS_BYTES = 1664
_TCB_ALIGN = 64
_RSEQ_BYTES = 32
_FIRST_MINOR_WITH_RSEQ_BLOCK = 41
_MACHINES = (3, 62)


class StaticTls:
    """The static TLS block of one process."""

    def __init__(self, machine: int, at_start: Iterable[LoadedObject], glibc_minor: int | None) -> None:
        self._is_known = machine in _MACHINES
        self._align = _TCB_ALIGN
        self._used = 0
        free_top = free_bottom = 0
        for facts in (loaded.facts for loaded in at_start):
            if not facts.tls_size_bytes:
                continue
            align = facts.tls_align or 1
            first_byte = -facts.tls_skew_bytes & (align - 1)
            self._align = max(self._align, align)
            # a small block may fit into the gap that the alignment of an earlier one left
            if free_bottom - free_top >= facts.tls_size_bytes:
                offset = _up(free_top + facts.tls_size_bytes - first_byte, align) + first_byte
                if offset <= free_bottom:
                    free_top = offset
                    continue
            offset = _up(self._used + facts.tls_size_bytes - first_byte, align) + first_byte
            if offset > self._used + facts.tls_size_bytes + (free_bottom - free_top):
                free_top, free_bottom = self._used, offset - facts.tls_size_bytes
            self._used = offset
        if glibc_minor is None or glibc_minor >= _FIRST_MINOR_WITH_RSEQ_BLOCK:
            self._used = _up(self._used, _RSEQ_BYTES) + _RSEQ_BYTES
        self._size = _up(self._used + SURPLUS_BYTES, self._align)

    @property
    def free_bytes(self) -> int:
        """What is left for libraries that are dlopened."""
        return self._size - self._used

    def take(self, facts: ElfFacts) -> bool:
        """Take the block of a library that is dlopened; False where there is no room for it."""
        if not self._is_known or not facts.flags & DF_STATIC_TLS or not facts.tls_size_bytes:
            return True
        align = facts.tls_align or 1
        block = facts.tls_size_bytes + facts.tls_skew_bytes
        if align > self._align or self.free_bytes < block:
            return False
        free = self.free_bytes
        self._used += free - (free - block) // align * align - facts.tls_skew_bytes
        return True


def _up(value: int, align: int) -> int:
    return -(-value // align) * align
