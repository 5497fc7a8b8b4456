"""Which object a symbol is bound to: symbols that no object in scope defines, or that an unintended one defines.

Also whether the parts of the C library in a process come from one build. They share data whose layout is private to a
build, under one version name in all builds (GLIBC_PRIVATE): its definition proves nothing. Tried with the libraries of
glibc 2.31, 2.36, 2.41 and 2.43: with a different ld.so or libc.so.6, processes ended at startup, crashed or hung (`ls`
ran with 2.41 and 2.43 mixed); with a different libm, libdl or librt, some did. With two builds of 2.36, none ended.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError, one_line
from lumiimg.elf.glibc import facts_at
from lumiimg.elf.lookup import defines, reference_to
from lumiimg.elf.symbols import WantedSymbol, defined_symbols, exported_symbols, undefined_symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from lumiimg.elf.facts import ElfFacts
    from lumiimg.elf.loader import Process
    from lumiimg.elf.lookup import Reference
    from lumiimg.elf.objects import LoadedObject

_MAX_WANTED_CHARS = 64 << 20
_LIBC = "libc.so.6"
_PARTS = re.compile(
    r"ld-linux[a-z0-9-]*\.so\.[0-9]|lib(?:c|m)\.so\.6|lib(?:pthread|BrokenLocale)\.so\.[0-9]"
    r"|lib(?:dl|util|resolv|nss_(?:compat|db|dns|files|hesiod))\.so\.2|lib(?:anl|mvec|nsl|rt|thread_db)\.so\.1"
)
_PRIVATE = "GLIBC_PRIVATE"
_NUMBERED = re.compile(r"-2\.([0-9]{1,3})\.so$")
_DEFINITION = re.compile(r"GLIBC_2\.([0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class UndefinedSymbol:
    """A symbol that an object needs and that no object defines."""

    loaded: LoadedObject
    symbol: WantedSymbol

    def __str__(self) -> str:
        return f"{self.loaded.path}: undefined symbol: {self.symbol}"


@dataclass(frozen=True, slots=True)
class UndefinedSymbols:
    """The undefined symbols of some objects."""

    found: tuple[UndefinedSymbol, ...] = ()
    is_sure: bool = True
    """False if a library from a snapshot may define them: its symbols are not recorded."""
    unread: str | None = None
    """Reason why the symbols could not be read."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Error messages that the loader would print."""
        return tuple(map(str, self.found))


def find_undefined(
    process: Process, objects: Sequence[LoadedObject], lazy: Collection[LoadedObject] = ()
) -> UndefinedSymbols:
    """Return the symbols of some objects of a process that no object in their scope defines, one load after the other.

    For objects in `lazy`, only symbols looked up at load time count. Libraries from a snapshot have their version
    definitions recorded, but not their symbols: a symbol that requires one of these versions is assumed to exist.
    """
    loads: dict[LoadedObject, list[LoadedObject]] = {}
    for loaded in objects:
        loads.setdefault(loaded.load_root, []).append(loaded)
    found: list[UndefinedSymbol] = []
    is_sure = True
    try:
        for of_load in loads.values():
            lacking, is_recorded = _undefined_in_load(process, of_load, lazy)
            found += lacking
            is_sure &= not is_recorded
    except (OSError, BadInputError) as error:
        return UndefinedSymbols((), is_sure=False, unread=one_line(str(error)))
    return UndefinedSymbols(tuple(found), is_sure=is_sure)


def _undefined_in_load(
    process: Process, objects: Sequence[LoadedObject], lazy: Collection[LoadedObject]
) -> tuple[list[UndefinedSymbol], bool]:
    """Return (undefined symbols of the objects of one load, whether a library from a snapshot may define them).

    Libraries are read one after the other, so that only the wanted symbols are in memory.
    """
    wanted: dict[LoadedObject, frozenset[WantedSymbol]] = {}
    size_chars = 0
    for loaded in objects:
        if loaded.is_recorded:
            continue
        with process.open(loaded) as file:
            wanted[loaded] = undefined_symbols(file, lazily=loaded in lazy)
        size_chars += sum(len(symbol.name) for symbol in wanted[loaded])
        if size_chars > _MAX_WANTED_CHARS:
            raise BadInputError("it has more undefined symbols than lumiimg reads", where=loaded.path)
    left = {symbol for symbols in wanted.values() for symbol in symbols}
    recorded: set[str] = set()
    is_recorded = False
    for loaded in _nearest_first(process, objects):
        if not left:
            break
        if loaded.is_recorded:
            is_recorded = True
            recorded.update(loaded.facts.version_definitions)
            continue
        with process.open(loaded) as file:
            # a copied symbol is defined in this file and looked up in others
            left -= defined_symbols(file, left) - wanted.get(loaded, frozenset())
    lacking = [
        UndefinedSymbol(loaded, symbol)
        for loaded, symbols in wanted.items()
        for symbol in sorted(symbols & left, key=str)
        if symbol.version not in recorded
    ]
    return lacking, is_recorded


def _nearest_first(process: Process, objects: Sequence[LoadedObject]) -> dict[LoadedObject, None]:
    """Return the scope of one load, with the directly needed libraries first: the tables of the others are large."""
    needed = (process.find(name) for loaded in objects for name in loaded.facts.needed)
    scope = process.scopes.of(objects[0])
    visible = {*scope}
    return dict.fromkeys([*objects, *(each for each in needed if each in visible), *scope])


def reference_of(process: Process, user: LoadedObject, name: str) -> Reference | None:
    """Return how an object refers to a symbol; None if it does not, or if its symbols are not recorded.

    Raises OSError, BadInputError.
    """
    if user.is_recorded:
        return None
    with process.open(user) as file:
        return reference_to(file, name)


def definer_of(process: Process, user: LoadedObject, reference: Reference) -> LoadedObject | None:
    """Return the object that a reference of `user` is bound to (glibc `elf/dl-lookup.c`, _dl_lookup_symbol_x).

    The current scopes apply; a reference bound before a library was opened with RTLD_GLOBAL does not search that
    library. STB_GNU_UNIQUE is treated as STB_GLOBAL. Raises OSError, BadInputError.
    """
    if reference.is_bound:
        return user
    return _first_definer(process, process.scopes.of(user), reference.wanted, by_dlsym=False)


def dlsym(process: Process, handle: LoadedObject, name: str) -> LoadedObject | None:
    """Return the object in which `dlsym(handle, name)` finds a symbol: that of the handle, or one that it needs.

    The program's handle searches the global scope (dlsym(3); glibc `elf/dl-sym.c`). Raises OSError, BadInputError.
    """
    scopes = process.scopes
    seen = scopes.of(handle) if handle is process.objects[0] else scopes.local_scope_of(handle)
    return _first_definer(process, seen, WantedSymbol(name, None), by_dlsym=True)


def _first_definer(
    process: Process, objects: Iterable[LoadedObject], wanted: WantedSymbol, *, by_dlsym: bool
) -> LoadedObject | None:
    for each in objects:
        with process.open(each) as file:
            if defines(file, wanted, by_dlsym=by_dlsym):
                return each
    return None


def find_interposer(
    process: Process, user: LoadedObject, provider: LoadedObject, prefix: str
) -> tuple[LoadedObject, str] | None:
    """Return the library that interposes a function which `user` expects from `provider`, and the function's name.

    It comes earlier in the scope (ld.so(8), LD_PRELOAD; dlopen(3), RTLD_GLOBAL). Functions count if `provider` defines
    them, or if they begin with `prefix`; if the symbols of one of the two are not recorded, only the latter count.
    Raises OSError, BadInputError.
    """
    wanted: set[WantedSymbol] | None = None
    if not user.is_recorded and not provider.is_recorded:
        with process.open(user) as asking, process.open(provider) as asked:
            asks = undefined_symbols(asking)
            wanted = {*defined_symbols(asked, asks), *(each for each in asks if each.name.startswith(prefix))}
    for each in itertools.takewhile(lambda each: each is not provider, process.scopes.of(user)):
        if each is user or each.is_recorded:
            continue
        with process.open(each) as file:
            if wanted is None:
                found = exported_symbols(file, prefix)
            else:
                found = frozenset(name for name, _ in defined_symbols(file, wanted))
        if found:
            return each, min(found)
    return None


def is_glibc_part(facts: ElfFacts) -> bool:
    """Return whether a library is part of the C library: no such part can be replaced on its own."""
    return (
        _PRIVATE in facts.version_definitions
        or any(need.name == _PRIVATE for need in facts.version_needs)
        or _PARTS.fullmatch(facts.soname or "") is not None
    )


@dataclass(frozen=True, slots=True)
class GlibcMismatch:
    """Parts of two C library builds in one process."""

    part: str
    """Path of the part that does not come from the build of libc.so.6."""
    evidence: tuple[str, ...]
    """Evidence for both."""
    is_fatal: bool
    """Whether ld.so has a different version: nearly every process ends at startup, crashes or hangs."""


def glibc_mismatch(process: Process) -> GlibcMismatch | None:
    """Return a C library part of a process from a different build than its libc.so.6; None without evidence."""
    libc, loader, of_loader = process.find(_LIBC), process.loader.path, process.loader.banner
    if libc is None or libc is process.objects[0]:  # a lone libc.so.6, such as in a compiler's sysroot: nobody runs it
        return None
    own = process.files.banner(process.config.absolute(libc.path))
    of_libc = f"{libc.path}: {own or 'a host file'}"
    if own is not None and of_loader is not None and of_loader != own:
        return GlibcMismatch(loader, (f"{loader}: {of_loader}", of_libc), is_fatal=own.minor != of_loader.minor)
    minor = own.minor if own else None
    for part in process.objects:
        if (
            part is not libc
            and _PARTS.fullmatch(part.facts.soname or "")
            and (why := _mismatch_evidence(process, part, libc, minor))
        ):
            return GlibcMismatch(part.path, (f"{part.path}: {why}", of_libc), is_fatal=part.path == loader)
    return None


def _mismatch_evidence(process: Process, part: LoadedObject, libc: LoadedObject, minor: int | None) -> str | None:
    """Return the evidence that a part is from a different build than libc.so.6 of glibc 2.`minor`; None without any."""
    try:
        real, of_libc = process.files.resolve(part.path), process.files.resolve(libc.path)
    except (OSError, BadInputError):
        return None
    if part.is_recorded != libc.is_recorded:
        return "one is from the host, the other from the image"
    numbered = _NUMBERED.search(real)
    if numbered is not None and minor is not None and int(numbered[1]) != minor:
        return f"{real} is from glibc 2.{numbered[1]}"
    defined = [int(match[1]) for name in part.facts.version_definitions if (match := _DEFINITION.fullmatch(name))]
    if minor is not None and max(defined, default=0) > minor:
        return f"it defines GLIBC_2.{max(defined)}"
    # in some distributions the loader has its own folder, and CPU-specific variants are in a folder below the others
    folder, own = of_libc.rpartition("/")[0], real.rpartition("/")[0]
    if (part.facts.soname or "").startswith("ld-") or f"{own}/".startswith(f"{folder}/"):
        return None
    parts = ((f"{folder}/{part.facts.soname}", part.facts), (f"{own}/{_LIBC}", libc.facts))
    for path, facts in parts:  # the same file exists beside the other part, so this is only a copy of the same build
        other = facts_at(process.files.fs, path)
        if other is not None and other.build_id is not None and other.build_id == facts.build_id:
            return None
    return f"it is in {own}"
