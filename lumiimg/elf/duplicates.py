"""Libraries that are in one process more than once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.elf.objects import LoadedObject


def second_copies(objects: Iterable[LoadedObject]) -> dict[str, tuple[str, ...]]:
    """Return the paths of each library that is there twice, by its name without `.so` and what follows.

    The loader tells libraries apart by their SONAME, so two majors (libjson-c.so.3 and .so.5) do not collide by name;
    a symbol without a version is still bound to the first of them that has it (glibc `elf/dl-lookup.c:do_lookup_x`).
    """
    by_stem: dict[str, list[str]] = {}
    for loaded in objects:
        by_stem.setdefault(loaded.path.rpartition("/")[2].partition(".so")[0], []).append(loaded.path)
    return {stem: tuple(paths) for stem, paths in by_stem.items() if len(paths) > 1}
