"""Whether the loaded libraries define the symbol versions that others need.

glibc `elf/dl-version.c`: every need of every object is compared, by name, with the definitions of the library that was
loaded for it, before any code of it runs. A name that is defined says nothing about the symbols behind it. The library
is the one that was asked for by the name in the need, or has the soname that some object asked for; a soname that
nobody asked for finds nothing (`find_needed`, `_dl_name_match_p`), and ld.so stops at an assertion.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.elf.objects import MissingVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lumiimg.elf.objects import LoadedObject
    from lumiimg.elf.versions import VersionNeed

_LIBC_PREFIX = "libc.so."
_RELR_VERSION = "GLIBC_ABI_DT_RELR"
_FIRST_MINOR_WITH_RELR = 36
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,5}")


class VersionCheck:
    """The version check over some objects, and its findings in the loader's words."""

    def __init__(
        self, provider_of: Callable[[str], LoadedObject | None], missing: Collection[str], glibc_minor: int | None
    ) -> None:
        self._provider_of = provider_of
        self._missing = missing
        self._glibc_minor = glibc_minor
        self._definitions: dict[LoadedObject, frozenset[str]] = {}
        self.missing_versions: list[MissingVersion] = []
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def run(self, objects: Sequence[LoadedObject]) -> None:
        """Check every object; the findings are kept in the attributes."""
        for loaded in objects:
            by_file: dict[str, list[VersionNeed]] = {}
            for need in loaded.facts.version_needs:
                by_file.setdefault(need.file, []).append(need)
            for file, needs in by_file.items():
                self._check(loaded, file, needs)
            self._check_relr(loaded)

    def _check(self, loaded: LoadedObject, file: str, needs: Iterable[VersionNeed]) -> None:
        provider = self._provider_of(file)
        if provider is None:
            if file in self._missing:
                return
            # the name was taken from DT_NEEDED after the link, as `patchelf --remove-needed` does
            self.errors.append(
                f"{loaded.path}: needs versions of {file}, which it does not need: ld.so stops at an assertion"
            )
            return
        definitions = self._definitions.get(provider)
        if definitions is None:
            definitions = self._definitions[provider] = frozenset(provider.facts.version_definitions)
        if not definitions:
            self.warnings.append(f"{provider.path}: no version information available (required by {loaded.path})")
            return
        for need in needs:
            if need.name in definitions:
                continue
            if need.weak:
                self.warnings.append(
                    f"{provider.path}: weak version `{need.name}' not found (required by {loaded.path})"
                )
            else:
                missing = MissingVersion(provider.path, need.name, loaded.path)
                self.missing_versions.append(missing)
                self.errors.append(str(missing))

    def _check_relr(self, loaded: LoadedObject) -> None:
        """Refuse DT_RELR in a file that was not linked to ask for a C library that knows it."""
        facts = loaded.facts
        if not facts.has_relr or (self._glibc_minor or _FIRST_MINOR_WITH_RELR) < _FIRST_MINOR_WITH_RELR:
            return
        needs_libc = any(name.startswith(_LIBC_PREFIX) for name in facts.needed)
        if facts.version_needs and needs_libc and _RELR_VERSION not in {need.name for need in facts.version_needs}:
            self.errors.append(f"{loaded.path}: DT_RELR without {_RELR_VERSION} dependency")


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the dotted number at the end of a version's name, GLIBC_2.38 or 2.38; nothing where there is none."""
    number = version.rpartition("_")[2]
    return tuple(map(int, number.split("."))) if _NUMBER.fullmatch(number) else ()
