"""A reader of simple C, and of objects compiled by gcc, which returns what the tests' linker puts into a file.

`_FORMS` lists what it can read. Other C raises `NotSimpleError` and needs the compiler (`elf_builder`).
"""

from __future__ import annotations

import ast
import io
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from elftools.elf.elffile import ELFFile

OBJECT, FUNCTION, THREAD = 1, 2, 6
"""Kinds of symbols."""
ALLOC = 2


class NotSimpleError(Exception):
    """C, or an option of the linker, that is unsupported here."""


@dataclass
class Definition:
    section: str
    offset: int
    size: int
    kind: int
    is_hidden: bool = False


@dataclass
class Unit:
    """What a source defines and references, by section; `fixups` are (section, offset, kind, name)."""

    sections: dict[str, bytearray] = field(
        default_factory=lambda: {".text": bytearray(), ".rodata": bytearray(), ".data": bytearray()}
    )
    aligns: dict[str, int] = field(default_factory=dict)
    defined: dict[str, Definition] = field(default_factory=dict)
    weak: set[str] = field(default_factory=set)
    threads: set[str] = field(default_factory=set)
    """Undefined thread-local names."""
    fixups: list[tuple[str, int, str, str]] = field(default_factory=list)
    tls_bytes: int = 0
    tls_align: int = 1

    def data(self, name: str, content: bytes, section: str = ".data", *, hidden: bool = False) -> None:
        at = self.place(section, content, 8)
        self.defined[name] = Definition(section, at, len(content), OBJECT, hidden)

    def thread_local(self, size: int, align: int) -> int:
        start = -(-self.tls_bytes // align) * align
        self.tls_bytes, self.tls_align = start + size, max(align, self.tls_align)
        return start

    def function(self, name: str, *parts: bytes | tuple[str, str]) -> None:
        """Add code; a part (kind, name) becomes 4 bytes, later filled in with the name's address relative to them."""
        code = self.sections[".text"]
        start = self.place(".text", b"", 16)
        for part in parts:
            if isinstance(part, tuple):
                self.fixups.append((".text", len(code), *part))
                code += bytes(4)
            else:
                code += part
        self.defined[name] = Definition(".text", start, len(code) - start, FUNCTION)

    def place(self, section: str, content: bytes, align: int) -> int:
        data = self.sections.setdefault(section, bytearray())
        data += bytes(-len(data) % align)
        at = len(data)
        data += content
        return at


_STRINGS = r'(?P<text>(?:"(?:[^"\\]|\\.)*"\s*)+)'
_TYPE = r"(?:const )?(?:int|void|char) ?\*? ?"
_WEAK_MARK = r"(?P<weak> __attribute__\(\(weak\)\))?"
_FORMS = {
    "nothing": r'asm\("\.section [^;]*;',
    "bytes": r"__attribute__\(\((?P<marks>[^;]*?)\)\) (?:static )?const unsigned char "
    r"(?P<name>\w+)\[\] = \{(?P<numbers>[\d, ]*)\};",
    "text": rf"const char (?P<name>\w+)\[\] = {_STRINGS};",
    "undefined_thread": r"extern __thread int (?P<name>\w+);",
    "thread": r"__thread char (?P<name>\w+)\[(?P<size>\d+)\](?: __attribute__\(\(aligned\((?P<align>\d+)\)\)\))?;",
    "declared": rf"(?:extern {_TYPE}(?P<name>\w+)|{_TYPE}\w+)(?:\((?:void)?\)){_WEAK_MARK};",
    "declared_data": rf"extern int (?P<name>\w+){_WEAK_MARK};",
    "function": rf"{_TYPE}(?P<name>\w+)\((?:void)?\) \{{ ?(?P<body>[^}}]*?) ?\}}",
    "number": r"(?P<hidden>static |__attribute__\(\(visibility\(\"hidden\"\)\)\) ?)?int (?P<name>\w+)(?: = (?P<value>\d+))?;",
    "pointer": r"int \*(?P<name>\w+) = &(?P<of>\w+);",
    "code_pointer": r"int \(\*(?P<name>\w+)\)\(void\) = (?P<of>\w+);",
    "pointers": r"int \*(?P<name>\w+)\[\d+\] = \{(?P<all>&\w+(?:, &\w+)*)\};",
}
_SCANNER = re.compile("|".join(f"(?P<{form}>{re.sub(r'[?]P<', f'?P<{form}_', text)})" for form, text in _FORMS.items()))
_RETURN = b"\xc3"


def read_source(source: str) -> Unit:
    unit = Unit()
    at = 0
    while at < len(source):
        if source[at].isspace():
            at += 1
            continue
        found = _SCANNER.match(source, at)
        if found is None:
            raise NotSimpleError(source[at : at + 80])
        form = next(form for form in _FORMS if found[form] is not None)
        words = {key.removeprefix(f"{form}_"): value for key, value in found.groupdict().items()}
        _take(unit, form, {key: words[key] for key in re.findall(r"[?]P<(\w+)>", _FORMS[form])})
        at = found.end()
    return unit


def _take(unit: Unit, form: str, words: dict[str, str]) -> None:
    match form:
        case "bytes":
            section = re.search(r'section\("([^"]*)"\)', words["marks"])
            align = re.search(r"aligned\((\d+)\)", words["marks"])
            name = section[1] if section else ".rodata"
            unit.aligns[name] = int(align[1]) if align else 1
            unit.data(words["name"], bytes(map(int, words["numbers"].split(","))), name, hidden=True)
        case "text":
            unit.data(words["name"], _bytes(words["text"]), ".rodata")
        case "undefined_thread":
            unit.threads.add(words["name"])
        case "thread":
            size = int(words["size"])
            start = unit.thread_local(size, int(words["align"] or 1))
            unit.defined[words["name"]] = Definition(".tbss", start, size, THREAD)
        case "declared" | "declared_data" if words["weak"]:
            unit.weak.add(words["name"])
        case "function":
            unit.function(words["name"], *_code(unit, words["body"]))
        case "number":
            unit.data(words["name"], struct.pack("<i", int(words["value"] or 0)), hidden=bool(words["hidden"]))
        case "pointer" | "code_pointer" | "pointers":
            names = [words["of"]] if "of" in words else words["all"].replace("&", "").split(", ")
            unit.data(words["name"], bytes(8 * len(names)))
            start = unit.defined[words["name"]].offset
            unit.fixups += [(".data", start + 8 * number, "address", name) for number, name in enumerate(names)]


def _bytes(strings: str) -> bytes:
    parts = re.findall(r'"(?:[^"\\]|\\.)*"', strings)
    return b"".join(ast.literal_eval(f"b{part}") for part in parts) + b"\0"


def _code(unit: Unit, body: str) -> Sequence[bytes | tuple[str, str]]:  # noqa: PLR0911 - one form a line
    if not body:
        return (_RETURN,)
    if found := re.fullmatch(r"return (\d+);", body):
        return b"\xb8", struct.pack("<I", int(found[1])), _RETURN
    if found := re.fullmatch(_STRINGS.join((r"return ", ";")), body):
        name = f" {len(unit.defined)}"  # not a valid name in C
        unit.data(name, _bytes(found["text"]), ".rodata", hidden=True)
        return b"\x48\x8d\x05", ("here", name), _RETURN
    if found := re.fullmatch(r"(?:return )?(\w+)\(\);", body):
        return b"\xe9", ("call", found[1])
    if found := re.fullmatch(r"return (\w+)\(\) \+ (\w+);", body):
        return b"\x50\xe8", ("call", found[1]), b"\x48\x8b\x15", ("table", found[2]), b"\x03\x02\x59", _RETURN
    if found := re.fullmatch(r"return &(\w+);", body):
        return b"\x48\x8b\x05", ("table", found[1]), _RETURN
    if found := re.fullmatch(r"return (\w+);", body):
        name = found[1]
        if name in unit.threads:
            return b"\x48\x8b\x05", ("table", name), b"\x64\x8b\0", _RETURN
        if name in unit.defined and unit.defined[name].kind == THREAD:
            return b"\x64\x48\x8b\x04\x25\0\0\0\0\x48\x03\x05", ("table", name), _RETURN
        return b"\x48\x8b\x05", ("table", name), b"\x8b\0", _RETURN
    if found := re.fullmatch(r"return (\w+) \? \1\(\) : 0;", body):
        start = b"\x48\x8b\x05", ("table", found[1]), b"\x48\x85\xc0\x74\x05\xe9", ("call", found[1])
        return *start, b"\x31\xc0", _RETURN
    raise NotSimpleError(body)


_OF_THREAD, _GOTTPOFF, _GOTPCRELX = 0x400, 22, 41
_KINDS = {1: "address", 2: "here", 4: "call", 9: "table", _GOTTPOFF: "table", _GOTPCRELX: "table", 42: "table"}


def take_object(unit: Unit, data: bytes) -> None:
    """Add an object that gcc compiled; with -fPIC and -fno-plt, it has only the relocations in `_KINDS`."""
    elf: Any = ELFFile(io.BytesIO(data))
    places: dict[int, tuple[str, int]] = {}
    for number, section in enumerate(elf.iter_sections()):
        flags = section["sh_flags"]
        if flags & ALLOC and section["sh_type"] in {"SHT_PROGBITS", "SHT_NOBITS"}:
            if flags & _OF_THREAD:
                places[number] = ".tbss", unit.thread_local(section["sh_size"], section["sh_addralign"])
            else:
                name = ".text" if flags & 4 else ".data" if flags & 1 else ".rodata"
                places[number] = name, unit.place(name, section.data(), 16)
    symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
    for symbol in symbols:
        if symbol["st_shndx"] in places and symbol["st_info"]["bind"] in {"STB_GLOBAL", "STB_WEAK"}:
            name, start = places[symbol["st_shndx"]]
            of_kind = {".text": FUNCTION, ".tbss": THREAD}.get(name, OBJECT)
            hidden = symbol["st_other"]["visibility"] == "STV_HIDDEN"
            unit.defined[symbol.name] = Definition(name, start + symbol["st_value"], symbol["st_size"], of_kind, hidden)
        elif symbol["st_info"]["bind"] == "STB_WEAK":
            unit.weak.add(symbol.name)
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_RELA" or section["sh_info"] not in places:
            continue
        name, start = places[section["sh_info"]]
        for entry in section.iter_relocations():
            symbol = symbols[entry["r_info_sym"]]
            kind, at = _KINDS[entry["r_info_type"]], start + entry["r_offset"]
            if entry["r_info_type"] == _GOTPCRELX and _calls(unit.sections[name], at):
                kind = "call"
            target = symbol.name
            if entry["r_info_type"] == _GOTTPOFF and symbol["st_shndx"] == "SHN_UNDEF":
                unit.threads.add(target)
            is_inside = (
                kind == "address" and entry["r_addend"]
            )  # `name + 1`: an address within a symbol, which no other library can define
            if symbol["st_shndx"] in places and (symbol["st_info"]["bind"] == "STB_LOCAL" or is_inside):
                of, first = places[symbol["st_shndx"]]
                target = f" {len(unit.defined)}"
                kind, before = (kind, 0) if kind == "address" else ("here", 4)
                offset = first + symbol["st_value"] + entry["r_addend"] + before
                unit.defined[target] = Definition(of, offset, 0, OBJECT, is_hidden=True)
            unit.fixups.append((name, at, kind, target))


def _calls(code: bytearray, at: int) -> bool:
    """Turn a call through the GOT at `at` into one through the PLT, which ld.so resolves at the first call.

    That is what gcc emits without -fno-plt; source: psABI of x86-64, B.2, "Optimize GOTPCRELX relocations".
    """
    if code[at - 2 : at] != b"\xff\x15":
        return False
    code[at - 2 : at] = b"\x67\xe8"
    return True
