"""Symbols of the objects of a process: what nothing defines where the loader looks, or another than is meant."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError, one_line
from lumiimg.elf.facts import defined_symbols, exported_symbols, undefined_symbols
from lumiimg.elf.files import RecordedElf
from lumiimg.elf.scopes import root_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lumiimg.core.access import RandomAccess
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject
    from lumiimg.elf.reader import FileSystem
    from lumiimg.elf.symbols import WantedSymbol

_MAX_WANTED_CHARS = 64 << 20


@dataclass(frozen=True, slots=True)
class UndefinedSymbol:
    """A symbol that an object needs, and that nothing defines."""

    loaded: LoadedObject
    symbol: WantedSymbol

    def __str__(self) -> str:
        return f"{self.loaded.path}: undefined symbol: {self.symbol}"


@dataclass(frozen=True, slots=True)
class UndefinedSymbols:
    """Those of some objects."""

    found: tuple[UndefinedSymbol, ...] = ()
    is_sure: bool = True
    """False where a library out of a snapshot may define them: its symbols are not recorded."""
    unread: str | None = None
    """Why they cannot be looked for."""

    @property
    def lines(self) -> tuple[str, ...]:
        """What the loader would say."""
        return tuple(map(str, self.found))


def undefined_in(
    fs: FileSystem, process: Process, objects: Sequence[LoadedObject], lazy: Collection[LoadedObject] = ()
) -> UndefinedSymbols:
    """Look for the symbols of some objects of a process, in the objects that one load brought after the other.

    `lazy`: of these, what is looked up at the load alone. The symbols of libraries out of a snapshot are not recorded,
    the versions that they define are: a symbol that asks for one of those is taken to be there.
    """
    loads: dict[LoadedObject, list[LoadedObject]] = {}
    for loaded in objects:
        loads.setdefault(root_of(loaded), []).append(loaded)
    found: list[UndefinedSymbol] = []
    is_sure = True
    try:
        for of_load in loads.values():
            lacking, is_recorded = _of_load(fs, process, of_load, lazy)
            found += lacking
            is_sure &= not is_recorded
    except (OSError, BadInputError) as error:
        return UndefinedSymbols((), is_sure=False, unread=one_line(str(error)))
    return UndefinedSymbols(tuple(found), is_sure=is_sure)


def interposed(
    fs: FileSystem, process: Process, user: LoadedObject, provider: LoadedObject, prefix: str
) -> tuple[LoadedObject, str] | None:
    """Return the library that a function is taken from which one in a process asks another for, and its name.

    It is one that is looked at before (ld.so(8), LD_PRELOAD; dlopen(3), RTLD_GLOBAL). Those count that the other has,
    and those that begin with `prefix`; where the symbols of one of the two are not recorded, these alone. Raises
    OSError, BadInputError.
    """
    before = [*itertools.takewhile(lambda each: each is not provider, process.scopes.of(user))]
    with contextlib.ExitStack() as opened:
        files = {
            each: opened.enter_context(contextlib.closing(fs.open(process.settings.absolute(each.path))))
            for each in (user, provider, *before)
        }
        asking, asked = files[user], files[provider]
        wanted: set[WantedSymbol] | None = None
        if not isinstance(asking, RecordedElf) and not isinstance(asked, RecordedElf):
            asks = undefined_symbols(asking)
            wanted = {*defined_symbols(asked, asks), *(each for each in asks if each.name.startswith(prefix))}
        for each in before:
            file = files[each]
            if each is user or isinstance(file, RecordedElf):
                continue
            found = exported_symbols(file, prefix) if wanted is None else _names_of(file, wanted)
            if found:
                return each, min(found)
    return None


def _names_of(file: RandomAccess, wanted: set[WantedSymbol]) -> set[str]:
    return {symbol.name for symbol in defined_symbols(file, wanted)}


def _of_load(
    fs: FileSystem, process: Process, objects: Sequence[LoadedObject], lazy: Collection[LoadedObject]
) -> tuple[list[UndefinedSymbol], bool]:
    """Return (those of the objects of one load, whether a library that may define them is one out of a snapshot).

    Of one library after the other: no more is kept than what the objects want.
    """
    wanted: dict[LoadedObject, frozenset[WantedSymbol]] = {}
    size_chars = 0
    for loaded in objects:
        file = fs.open(process.settings.absolute(loaded.path))
        if not isinstance(file, RecordedElf):
            with contextlib.closing(file):
                wanted[loaded] = undefined_symbols(file, lazily=loaded in lazy)
            size_chars += sum(len(symbol.name) for symbol in wanted[loaded])
            if size_chars > _MAX_WANTED_CHARS:
                raise BadInputError("its undefined symbols are more than are read", where=loaded.path)
    left = {symbol for symbols in wanted.values() for symbol in symbols}
    recorded: set[str] = set()
    is_recorded = False
    for loaded in _nearest_first(process, objects):
        if not left:
            break
        file = fs.open(process.settings.absolute(loaded.path))
        if isinstance(file, RecordedElf):
            is_recorded = True
            recorded.update(loaded.facts.version_definitions)
            continue
        with contextlib.closing(file):
            # what it copies, it defines, and looks for elsewhere
            left -= defined_symbols(file, left) - wanted.get(loaded, frozenset())
    lacking = [
        UndefinedSymbol(loaded, symbol)
        for loaded, symbols in wanted.items()
        for symbol in sorted(symbols & left, key=str)
        if symbol.version not in recorded
    ]
    return lacking, is_recorded


def _nearest_first(process: Process, objects: Sequence[LoadedObject]) -> dict[LoadedObject, None]:
    """Return where the symbols of one load are looked up, what these need first: the tables of others are large."""
    needed = (process.find(name) for loaded in objects for name in loaded.facts.needed)
    scope = process.scopes.of(objects[0])
    visible = {*scope}
    return dict.fromkeys([*objects, *(each for each in needed if each in visible), *scope])
