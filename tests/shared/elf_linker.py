"""A linker of small ELF files for x86-64, in place of gcc and ld; ld.so loads and runs its output."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from tests.shared.elf_source import ALLOC, THREAD, NotSimpleError, Unit, read_source, take_object

LOADER = "/lib64/ld-linux-x86-64.so.2"
_PAGE = 4096
_STATIC_AT = 0x400000
_GLOBAL, _WEAK = 1, 2
_ABSOLUTE, _GLOB_DAT, _JUMP_SLOT, _RELATIVE, _TPOFF = 1, 6, 7, 8, 18
_ISA_LEVELS = {"x86-64-baseline": 1, "x86-64-v2": 2, "x86-64-v3": 4, "x86-64-v4": 8}
_READ, _WRITE, _RUN = 4, 2, 1


# Options


@dataclass
class _Options:
    """The parsed options of ld."""

    soname: str | None = None
    search: list[str] = field(default_factory=list)
    search_tag: int = 29  # DT_RUNPATH
    marks: set[str] = field(default_factory=set)
    filters: list[tuple[int, str]] = field(default_factory=list)
    entry: str | None = None
    script: str = ""
    is_symbolic: bool = False
    is_shared: bool = False
    is_static: bool = False
    inputs: list[tuple[str, bytes]] = field(default_factory=list)
    """Libraries to link with: the soname (or path) and content of each."""
    objects: list[bytes] = field(default_factory=list)


_MARKS = {"nodefaultlib", "nodlopen", "execstack", "noexecstack", "lazy", "now", "pack-relative-relocs", *_ISA_LEVELS}
_WITHOUT_EFFECT = {
    "--no-as-needed",
    "-no-pie",
    "--unresolved-symbols=ignore-all",
    "-pie",
    "--no-warn-execstack",
    "-ftls-model=initial-exec",
}


def _options(words: Iterable[str | Path]) -> _Options:  # noqa: C901, PLR0912 - one option a case
    options = _Options()
    todo: list[str | Path] = []
    for word in words:
        todo += word[4:].split(",") if isinstance(word, str) and word.startswith("-Wl,") else [word]
    rest = iter(todo)
    for word in rest:
        if isinstance(word, Path):
            data = word.read_bytes()
            if word.suffix == ".o":
                options.objects.append(data)
            else:
                soname = _given_by(data)[0]
                options.inputs.append((str(word) if soname is None else soname, data))
            continue
        name, _, value = word.partition("=")
        match name:
            case "--version-script":
                options.script = Path(value or next(rest)).read_text()
            case "-soname":
                options.soname = str(next(rest))
            case "-rpath":
                options.search.append(str(next(rest)))
            case "--enable-new-dtags" | "--disable-new-dtags":
                options.search_tag = 29 if "enable" in word else 15
            case "-f":
                options.filters.append((0x7FFFFFFD, str(next(rest))))  # DT_AUXILIARY
            case "-z" if (mark := str(next(rest))) in _MARKS:
                options.marks.add(mark)
            case "-e":
                options.entry = str(next(rest))
            case "-Bsymbolic":
                options.is_symbolic = True
            case "-shared" | "-static":
                options.is_shared, options.is_static = word == "-shared", word == "-static"
            case "-lc":
                options.inputs.append(("libc.so.6", b""))
            case _ if word not in _WITHOUT_EFFECT:
                raise NotSimpleError(word)
    return options


@functools.lru_cache(maxsize=512)
def _given_by(data: bytes) -> tuple[str | None, dict[str, str | None]]:
    """Return the soname of a library, and the version of each symbol that it defines."""
    if not data:  # -lc: whichever libc is found at run time
        return None, {}
    elf: Any = ELFFile(io.BytesIO(data))
    dynamic = elf.get_section_by_name(".dynamic")
    soname = next((tag.soname for tag in dynamic.iter_tags("DT_SONAME")), None)
    names = {}
    if definitions := elf.get_section_by_name(".gnu.version_d"):
        names = {entry["vd_ndx"]: next(iter(aux)).name for entry, aux in definitions.iter_versions()}
    numbers = elf.get_section_by_name(".gnu.version")
    symbols: dict[str, str | None] = {}
    for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name:
            index = numbers.get_symbol(number)["ndx"] if numbers else 1
            symbols[symbol.name] = names.get(index & 0x7FFF) if isinstance(index, int) and index > 1 else None
    return soname, symbols


def _versions(script: str) -> tuple[dict[str, str], list[tuple[str, str]], bool]:
    """Return each name's version in a script, the versions with their parents, and whether other names are hidden."""
    of_name: dict[str, str] = {}
    versions: list[tuple[str, str]] = []
    for version, body, parent in re.findall(r"([\w.]*)\s*\{([^}]*)\}\s*([\w.]*)\s*;", script):
        versions += [(version, parent)] if version else []
        shown = body.partition("local:")[0].replace("global:", "")
        of_name |= dict.fromkeys(shown.replace(";", " ").split(), version)
    return of_name, versions, "local:" in script


# The file


class _Strings:
    def __init__(self) -> None:
        self.data = bytearray(1)
        self._known: dict[bytes, int] = {b"": 0}

    def add(self, text: str) -> int:
        encoded = text.encode("utf-8", "surrogateescape")
        if encoded not in self._known:
            self._known[encoded] = len(self.data)
            self.data += encoded + b"\0"
        return self._known[encoded]


def _hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def _gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def link(
    arguments: Sequence[str | Path], source: str, *, with_build_id: bool, compiled: Callable[[str], bytes] | None = None
) -> bytes:
    """Return the linked file; `arguments` are those of gcc or ld. `compiled` compiles C that is not simple.

    Raises NotSimpleError for such C without `compiled`, and for an unknown option.
    """
    options = _options(arguments)
    if options.is_static:
        return _static()
    words = [word for word in arguments if isinstance(word, str) and "version-script" not in word]
    key = (source, with_build_id, options.script, *words, *options.objects, *options.inputs)
    if key not in _LINKED:
        try:
            unit, objects = read_source(source), options.objects
        except NotSimpleError:
            if compiled is None:
                raise
            unit, objects = Unit(), [*options.objects, compiled(source)]
        for data in objects:
            take_object(unit, data)
        _LINKED[key] = _Linker(options, unit, with_build_id=with_build_id).file()
    return _LINKED[key]


def _static() -> bytes:
    """Return a program that ends at once, without an interpreter."""
    code = b"\x31\xff\xb8\x3c\0\0\0\x0f\x05"  # exit(0)
    size = 64 + 56 + len(code)
    load = struct.pack("<IIQQQQQQ", 1, _READ | _RUN, 0, _STATIC_AT, _STATIC_AT, size, size, _PAGE)
    head = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, _STATIC_AT + 120, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return b"\x7fELF\2\1\1" + bytes(9) + head + load + code


_LINKED: dict[tuple[object, ...], bytes] = {}
"""Linked files by all that decides their content; most tests link the same libraries."""


class _Linker:
    def __init__(self, options: _Options, unit: Unit, *, with_build_id: bool) -> None:
        self.options, self.unit, self.with_build_id = options, unit, with_build_id
        self.strings = _Strings()
        self.needed: dict[str, dict[str, str | None]] = {}
        for name, data in options.inputs:
            self.needed.setdefault(name, _given_by(data)[1])
        self.of_name, self.versions, hides = _versions(options.script)
        exported = [
            name
            for name, definition in unit.defined.items()
            if options.is_shared and not definition.is_hidden and (name in self.of_name or not hides)
        ]
        used = {name for _, _, _, name in unit.fixups}
        undefined = [name for name in sorted(used) if name not in unit.defined]
        self.symbols = ["", *undefined, *exported]
        self.first_defined = 1 + len(undefined)
        own = {name for name in unit.defined if options.is_symbolic or name not in exported}
        self.is_own = own.__contains__
        calls = [name for _, _, kind, name in unit.fixups if kind == "call" and not self.is_own(name)]
        self.calls = list(dict.fromkeys(calls))
        self.table = list(dict.fromkeys(name for _, _, kind, name in unit.fixups if kind == "table"))
        self.address: dict[str, int] = {}
        """Start of each section."""

    def file(self) -> bytes:
        flags = self._marks()
        fixed = self._fixed_sections()
        code = bytearray(16 * (len(self.calls) + 1) if self.calls else 0)
        writable: dict[str, bytearray] = {
            ".dynamic": bytearray(16 * self._dynamic_count(flags)),
            ".got": bytearray(8 * len(self.table)),
            ".got.plt": bytearray(8 * (3 + len(self.calls)) if self.calls else 0),
            ".data": self.unit.sections[".data"],
        }
        rest = {name: data for name, data in self.unit.sections.items() if name != ".data"}
        relocations, packed = self._relocation_sizes()
        readable = {**fixed, ".rela.dyn": relocations, ".relr.dyn": packed, ".plt": code, **rest}
        readable[".rela.plt"] = bytearray(24 * len(self.calls))
        readable = {name: data for name, data in readable.items() if data}
        writable = {name: data for name, data in writable.items() if data}
        headers = 64 + 56 * self._header_count(readable)
        at = headers
        for name, data in readable.items():
            at += -at % self.unit.aligns.get(name, 16 if name in {".text", ".plt"} else 8)
            self.address[name] = at
            at += len(data)
        read_end = at
        at += -at % _PAGE  # so that a file that is cut off lacks at least a page, as with files of gcc
        write_start = at
        for name, data in writable.items():
            at += -at % 8
            self.address[name] = at
            at += len(data)
        end = at
        self._fill(readable, writable)
        readable[".dynsym"][:] = self._symbol_table()
        writable[".dynamic"][:] = self._dynamic(readable, flags)
        if self.with_build_id:
            parts = [bytes(data) for data in (*readable.values(), *writable.values())]
            readable[".note.gnu.build-id"][16:] = hashlib.sha1(b"".join(parts)).digest()  # noqa: S324
        image = bytearray(end)
        for name, data in (*readable.items(), *writable.items()):
            image[self.address[name] : self.address[name] + len(data)] = data
        image[64:headers] = self._program_headers(readable, writable, read_end, write_start, end)
        table, names = self._section_headers(readable, writable, len(image))
        entry = self.options.entry
        start = self._address_of(entry) if entry else 0
        at = len(image) + len(names)
        count = len(table) // 64
        places = (start, 64, at + -at % 8, 0, 64, 56, (headers - 64) // 56, 64, count, count - 1)
        image[:64] = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, *places)
        return bytes(image + names + bytes(-at % 8) + table)

    # sections whose content does not depend on addresses

    def _fixed_sections(self) -> dict[str, bytearray]:
        is_program = not self.options.is_shared
        needs, definitions, numbers = self._version_sections()
        found = {
            ".interp": bytearray(f"{LOADER}\0".encode() if is_program else b""),
            ".note.gnu.build-id": bytearray(struct.pack("<III4s", 4, 20, 3, b"GNU\0") + bytes(20)),
            ".note.gnu.property": self._property(),
            ".gnu.hash": self._hash_table(),
            ".dynsym": bytearray(24 * len(self.symbols)),
            ".gnu.version": numbers,
            ".gnu.version_d": definitions,
            ".gnu.version_r": needs,
        }
        if not self.with_build_id:
            del found[".note.gnu.build-id"]
        for text in (*self.needed, *self.symbols, *(name for _, name in self.options.filters)):
            self.strings.add(text)
        self.strings.add(self.options.soname or "")
        self.strings.add(":".join(self.options.search))
        return found | {".dynstr": self.strings.data}

    def _property(self) -> bytearray:
        level = next((_ISA_LEVELS[mark] for mark in self.options.marks if mark in _ISA_LEVELS), None)
        if level is None:
            return bytearray()
        return bytearray(struct.pack("<III4sIIII", 4, 16, 5, b"GNU\0", 0xC0008002, 4, level, 0))

    def _hash_table(self) -> bytearray:
        """Return a table with one bucket for all defined symbols; an empty bucket if there are none."""
        defined = self.symbols[self.first_defined :]
        first = self.first_defined if defined else 1
        values = [_gnu_hash(name) & ~1 for name in defined]
        values[-1:] = [value | 1 for value in values[-1:]]
        head = struct.pack("<IIIIQI", 1, first, 1, 6, 0xFFFFFFFFFFFFFFFF, first if defined else 0)
        return bytearray(head + struct.pack(f"<{len(values)}I", *values))

    def _version_sections(self) -> tuple[bytearray, bytearray, bytearray]:
        """Return Verneed, Verdef, and the version index of each symbol; all empty without versions."""
        number_of: dict[str, int] = {version: number for number, (version, _) in enumerate(self.versions, 2)}
        wanted: dict[str, dict[str, int]] = {}
        numbers = [0]
        count = max(number_of.values(), default=1)
        for name in self.symbols[1 : self.first_defined]:
            file, version = next(((f, given[name]) for f, given in self.needed.items() if name in given), ("", None))
            if version is None:
                numbers.append(1 if file else 0)
                continue
            of_file = wanted.setdefault(file, {})
            if version not in of_file:
                count += 1
                of_file[version] = count
            numbers.append(of_file[version])
        numbers += [number_of.get(self.of_name.get(name, ""), 1) for name in self.symbols[self.first_defined :]]
        if not wanted and not self.versions:
            return bytearray(), bytearray(), bytearray()
        needs = bytearray()
        for left, (file, of_file) in zip(range(len(wanted) - 1, -1, -1), wanted.items(), strict=True):
            size = 16 + 16 * len(of_file)
            needs += struct.pack("<HHIII", 1, len(of_file), self.strings.add(file), 16, size if left else 0)
            for more, (version, number) in zip(range(len(of_file) - 1, -1, -1), of_file.items(), strict=True):
                entry = (_hash(version), 0, number, self.strings.add(version), 16 if more else 0)
                needs += struct.pack("<IHHII", *entry)
        definitions = bytearray()
        base = (self.options.soname or "", "")
        for number, (version, parent) in enumerate((base, *self.versions) if self.versions else (), 1):
            names = [version, parent] if parent else [version]
            following = 20 + 8 * len(names) if number <= len(self.versions) else 0
            head = (1, number == 1, number, len(names), _hash(version), 20, following)
            definitions += struct.pack("<HHHHIII", *head)
            for place, name in enumerate(names):
                definitions += struct.pack("<II", self.strings.add(name), 8 if place + 1 < len(names) else 0)
        return needs, definitions, bytearray(struct.pack(f"<{len(numbers)}H", *numbers))

    # content that depends on addresses

    def _address_of(self, name: str) -> int:
        definition = self.unit.defined[name]
        return self.address[definition.section] + definition.offset

    def _symbol_table(self) -> bytes:
        table = bytearray(24)
        for name in self.symbols[1 : self.first_defined]:
            bind = _WEAK if name in self.unit.weak else _GLOBAL
            kind = THREAD if name in self.unit.threads else 0
            table += struct.pack("<IBBHQQ", self.strings.add(name), bind << 4 | kind, 0, 0, 0, 0)
        for name in self.symbols[self.first_defined :]:
            found = self.unit.defined[name]
            value = found.offset if found.kind == THREAD else self._address_of(name)
            table += struct.pack("<IBBHQQ", self.strings.add(name), _GLOBAL << 4 | found.kind, 0, 1, value, found.size)
        return bytes(table)

    def _entries(self) -> Iterable[tuple[str, int, str, int]]:
        """Yield each relocation except those of calls: section, offset, name, kind."""
        for section, offset, kind, name in self.unit.fixups:
            if kind == "address":
                yield section, offset, name, _RELATIVE if self.is_own(name) else _ABSOLUTE
        for number, name in enumerate(self.table):
            found = self.unit.defined.get(name)
            if name in self.unit.threads or (found and found.kind == THREAD):
                yield ".got", 8 * number, name, _TPOFF
            else:
                yield ".got", 8 * number, name, _RELATIVE if self.is_own(name) else _GLOB_DAT

    def _relocation_sizes(self) -> tuple[bytearray, bytearray]:
        kinds = [kind for *_, kind in self._entries()]
        packed = kinds.count(_RELATIVE) if "pack-relative-relocs" in self.options.marks else 0
        return bytearray(24 * (len(kinds) - packed)), bytearray(8 * packed)

    def _relocations(self, entries: Iterable[tuple[int, int, int, int]]) -> bytearray:
        return bytearray(b"".join(struct.pack("<QIIq", at, kind, symbol, more) for at, kind, symbol, more in entries))

    def _fill(self, readable: dict[str, bytearray], writable: dict[str, bytearray]) -> None:
        """Fill in all relocations and references to other addresses."""
        packed: list[int] = []
        plain: list[tuple[int, int, int, int]] = []
        for section, offset, name, kind in self._entries():
            at = self.address[section] + offset
            if kind != _RELATIVE:
                is_own = self.is_own(name) or (kind == _TPOFF and name in self.unit.defined)
                more = self.unit.defined[name].offset if is_own and kind == _TPOFF else 0
                plain.append((at, kind, 0 if is_own else self.symbols.index(name), more))
            elif ".relr.dyn" in readable:
                packed.append(at)
                struct.pack_into("<Q", writable[section], offset, self._address_of(name))
            else:
                plain.append((at, kind, 0, self._address_of(name)))
        if plain:
            readable[".rela.dyn"][:] = self._relocations(plain)
        if packed:
            readable[".relr.dyn"][:] = struct.pack(f"<{len(packed)}Q", *packed)
        if self.calls:
            self._fill_calls(readable, writable)
        for section, offset, how, name in self.unit.fixups:
            if how == "address":
                continue
            if how == "call" and not self.is_own(name):
                target = self.address[".plt"] + 16 * (1 + self.calls.index(name))
            elif how == "table":
                target = self.address[".got"] + 8 * self.table.index(name)
            else:
                target = self._address_of(name)
            struct.pack_into("<i", readable[section], offset, target - self.address[section] - offset - 4)

    def _fill_calls(self, readable: dict[str, bytearray], writable: dict[str, bytearray]) -> None:
        plt, got = self.address[".plt"], self.address[".got.plt"]
        code = struct.pack("<HiHi4s", 0x35FF, got + 8 - plt - 6, 0x25FF, got + 16 - plt - 12, b"\x0f\x1f\x40\0")
        slots = [self.address[".dynamic"], 0, 0]
        for number in range(len(self.calls)):
            at, slot = plt + 16 * (1 + number), got + 8 * (3 + number)
            code += struct.pack("<HiBiBi", 0x25FF, slot - at - 6, 0x68, number, 0xE9, plt - at - 16)
            slots.append(at + 6)
        readable[".plt"][:] = code
        writable[".got.plt"][:] = struct.pack(f"<{len(slots)}Q", *slots)
        jumps = [(got + 8 * (3 + n), _JUMP_SLOT, self.symbols.index(name), 0) for n, name in enumerate(self.calls)]
        readable[".rela.plt"][:] = self._relocations(jumps)

    def _marks(self) -> tuple[int, int]:
        """Return DT_FLAGS and DT_FLAGS_1."""
        marks = self.options.marks
        is_static = any(kind == _TPOFF for *_, kind in self._entries())
        flags = 8 * ("now" in marks) | 0x10 * is_static | 2 * self.options.is_symbolic
        more = ("now" in marks) | 0x800 * ("nodefaultlib" in marks) | 0x40 * ("nodlopen" in marks)
        return flags, more | (0 if self.options.is_shared else 0x8000000)

    def _dynamic(self, readable: dict[str, bytearray], flags: tuple[int, int]) -> bytes:
        size = {name: len(data) for name, data in readable.items()}
        entries = [(1, self.strings.add(name)) for name in self.needed]
        if self.options.soname is not None:
            entries.append((14, self.strings.add(self.options.soname)))
        if self.options.search:
            entries.append((self.options.search_tag, self.strings.add(":".join(self.options.search))))
        entries += [(tag, self.strings.add(name)) for tag, name in self.options.filters]
        where = self.address.get
        rows: list[tuple[str, list[tuple[int, int | None]]]] = [
            (".gnu.hash", [(0x6FFFFEF5, where(".gnu.hash"))]),
            (".dynstr", [(5, where(".dynstr")), (10, size.get(".dynstr"))]),
            (".dynsym", [(6, where(".dynsym")), (11, 24)]),
            (".rela.plt", [(3, where(".got.plt")), (2, size.get(".rela.plt")), (20, 7), (23, where(".rela.plt"))]),
            (".rela.dyn", [(7, where(".rela.dyn")), (8, size.get(".rela.dyn")), (9, 24)]),
            (".relr.dyn", [(36, where(".relr.dyn")), (35, size.get(".relr.dyn")), (37, 8)]),
            (".gnu.version", [(0x6FFFFFF0, where(".gnu.version"))]),
            (".gnu.version_d", [(0x6FFFFFFC, where(".gnu.version_d")), (0x6FFFFFFD, len(self.versions) + 1)]),
            (".gnu.version_r", [(0x6FFFFFFE, where(".gnu.version_r")), (0x6FFFFFFF, self._files_with_versions())]),
        ]
        entries += [(tag, value or 0) for name, pairs in rows if name in readable for tag, value in pairs]
        entries += [(tag, value) for tag, value in zip((30, 0x6FFFFFFB), flags, strict=True) if value]
        return b"".join(struct.pack("<QQ", *entry) for entry in (*entries, (0, 0)))

    def _files_with_versions(self) -> int:
        names = self.symbols[1 : self.first_defined]
        firsts = [next((file for file, given in self.needed.items() if name in given), "") for name in names]
        return len({file for name, file in zip(names, firsts, strict=True) if file and self.needed[file][name]})

    def _dynamic_count(self, flags: tuple[int, int]) -> int:
        sizes = self._relocation_sizes()
        has_versions = bool(self.versions or self._files_with_versions())
        count = len(self.needed) + (self.options.soname is not None) + bool(self.options.search)
        count += len(self.options.filters) + 1 + 2 + 2 + 4 * bool(self.calls)
        count += 3 * bool(sizes[0]) + 3 * bool(sizes[1]) + has_versions + 2 * bool(self.versions)
        return count + 2 * bool(self._files_with_versions()) + sum(map(bool, flags)) + 1

    # headers

    def _header_count(self, readable: dict[str, bytearray]) -> int:
        notes = sum(name.startswith(".note") for name in readable)
        more = (".note.gnu.property" in readable) + bool(self.unit.tls_bytes)
        return 4 + notes + more + 2 * (not self.options.is_shared)

    def _program_headers(
        self, readable: dict[str, bytearray], writable: dict[str, bytearray], read_end: int, write_start: int, end: int
    ) -> bytes:
        def of(kind: int, flags: int, name: str, align: int) -> tuple[int, ...]:
            size = len(writable[name] if name in writable else readable[name])
            at = self.address[name]
            return kind, flags, at, at, at, size, size, align

        rows: list[tuple[int, ...]] = []
        if not self.options.is_shared:
            size = 56 * self._header_count(readable)
            rows += [(6, _READ, 64, 64, 64, size, size, 8), of(3, _READ, ".interp", 1)]
        at = write_start
        rows += [
            (1, _READ | _RUN, 0, 0, 0, read_end, read_end, _PAGE),
            (1, _READ | _WRITE, write_start, at, at, end - write_start, end - write_start, _PAGE),
            of(2, _READ | _WRITE, ".dynamic", 8),
        ]
        rows += [of(4, _READ, name, 8 if "property" in name else 4) for name in readable if name.startswith(".note")]
        if ".note.gnu.property" in readable:
            rows.append(of(0x6474E553, _READ, ".note.gnu.property", 8))
        if self.unit.tls_bytes:
            align = self.unit.tls_align
            at = -(-end // align) * align
            rows.append((7, _READ, at, at, at, 0, self.unit.tls_bytes, align))
        stack = _READ | _WRITE | _RUN * ("execstack" in self.options.marks)
        rows.append((0x6474E551, stack, 0, 0, 0, 0, 0, 16))
        return b"".join(struct.pack("<IIQQQQQQ", *row) for row in rows)

    def _section_headers(
        self, readable: dict[str, bytearray], writable: dict[str, bytearray], start: int
    ) -> tuple[bytes, bytes]:
        kinds = {
            ".dynsym": 11,
            ".dynstr": 3,
            ".dynamic": 6,
            ".gnu.hash": 0x6FFFFFF6,
            ".rela.dyn": 4,
            ".rela.plt": 4,
        }
        kinds |= {".gnu.version": 0x6FFFFFFF, ".gnu.version_d": 0x6FFFFFFD, ".gnu.version_r": 0x6FFFFFFE}
        entry = {".dynsym": 24, ".dynamic": 16, ".gnu.version": 2, ".rela.dyn": 24, ".rela.plt": 24}
        names = [*readable, *writable]
        of_strings, of_symbols = names.index(".dynstr") + 1, names.index(".dynsym") + 1
        links = {
            ".gnu.version": of_symbols,
            ".gnu.hash": of_symbols,
            ".rela.dyn": of_symbols,
            ".rela.plt": of_symbols,
        }
        links |= dict.fromkeys((".dynsym", ".dynamic", ".gnu.version_d", ".gnu.version_r"), of_strings)
        counts = {".dynsym": 1, ".gnu.version_d": len(self.versions) + 1, ".gnu.version_r": self._files_with_versions()}
        texts = _Strings()
        table = bytearray(64)
        for name in names:
            data = readable[name] if name in readable else writable[name]
            kind = 7 if name.startswith(".note") else kinds.get(name, 1)
            place = (ALLOC, self.address[name], self.address[name], len(data), links.get(name, 0))
            more = counts.get(name, 0), 4 if kind == 7 else 8, entry.get(name, 0)
            table += struct.pack("<IIQQQQIIQQ", texts.add(name), kind, *place, *more)
        own = texts.add(".shstrtab")
        table += struct.pack("<IIQQQQIIQQ", own, 3, 0, 0, start, len(texts.data), 0, 0, 1, 0)
        return bytes(table), bytes(texts.data)
