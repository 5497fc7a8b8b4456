"""Whether the loaded libraries define the symbol versions that others need.

glibc `elf/dl-version.c`: every need of every object is compared, by name, with the definitions of the library that was
loaded for it, before any code of it runs. A name that is defined says nothing about the symbols behind it. The library
is the one that was asked for by the name in the need, or has the soname that some object asked for; a soname that
nobody asked for finds nothing (`find_needed`, `_dl_name_match_p`), and ld.so stops at an assertion.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from lumiimg.elf.glibc import since
from lumiimg.elf.objects import LoadedObject, LoadResult, MissingVersion
from lumiimg.elf.refusals import FIRST_MINOR_WITH_RELR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lumiimg.elf.facts import ElfFacts

_LIBC_PREFIX = "libc.so."
_RELR_VERSION = "GLIBC_ABI_DT_RELR"


def check_versions(
    objects: Iterable[LoadedObject],
    provider_of: Callable[[str], LoadedObject | None],
    glibc_minor: int | None,
    result: LoadResult,
    *,
    warns: bool,
) -> None:
    """Add what the loader finds wrong with the versions of some objects, in its words; `warns`: with its warnings."""
    definitions_of = cache(lambda provider: frozenset(provider.facts.version_definitions))
    for loaded in objects:
        for need in loaded.facts.version_needs:
            provider = provider_of(need.file)
            if provider is None:
                if need.file not in result.missing_names:
                    # the name was taken from DT_NEEDED after the link, as `patchelf --remove-needed` does
                    what = f"needs versions of {need.file}, which it does not need: ld.so stops at an assertion"
                    result.errors.append(f"{loaded.path}: {what}")
                continue
            defined, by = definitions_of(provider), f"(required by {loaded.path})"
            if need.name in defined:
                continue
            if not defined:
                words = f"no version information available {by}"
            elif need.weak:
                words = f"weak version `{need.name}' not found {by}"
            else:
                missing = MissingVersion(provider.path, need.name, loaded.path)
                result.missing_versions.append(missing)
                result.errors.append(str(missing))
                continue
            if warns:
                result.warnings.append(f"{provider.path}: {words}")
        if _lacks_relr(loaded.facts, glibc_minor):
            result.errors.append(f"{loaded.path}: DT_RELR without {_RELR_VERSION} dependency")


def _lacks_relr(facts: ElfFacts, glibc_minor: int | None) -> bool:
    """Whether a file has DT_RELR and was not linked to ask for a C library that knows it."""
    if not facts.has_relr or not since(glibc_minor, FIRST_MINOR_WITH_RELR):
        return False
    needs_libc = any(name.startswith(_LIBC_PREFIX) for name in facts.needed)
    return bool(facts.version_needs) and needs_libc and all(need.name != _RELR_VERSION for need in facts.version_needs)
