"""ELF files for the tests of the loader model, and the real loader as its oracle."""

from __future__ import annotations

import hashlib
import lzma
import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elftools.elf.elffile import ELFFile

from lumiimg.elf import LoaderConfig, cpu_levels
from tests.shared.elf_linker import LOADER as LOADER  # noqa: PLC0414 - the interpreter of these files
from tests.shared.elf_linker import link
from tests.shared.made import made
from tests.shared.programs import needs

if TYPE_CHECKING:
    from lumiimg.elf import LoadResult


_OBJECTS = Path(__file__).parents[1] / "fixtures/elf/objects"
"""Objects that gcc compiled, by digest of their C source; with LUMIIMG_SHIP=1, tests add what they compile."""
_COMPILER = ("gcc", "-c", "-O1", "-fPIC", "-fno-plt", "-fno-builtin", "-fno-stack-protector", "-fcf-protection=none")
_WITHOUT = ("-ftls-model=initial-exec", "-fno-asynchronous-unwind-tables", "-fno-ident")


def gcc(output: Path, *arguments: str | Path, source: str) -> Path:
    """Link as gcc does; the compiler runs only for C that our own linker cannot read."""
    return _written(output, link(arguments, source, with_build_id=True, compiled=_compiled))


def _compiled(source: str) -> bytes:
    shipped = _OBJECTS / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}.o.xz"
    if shipped.exists():
        return lzma.decompress(shipped.read_bytes())
    words = (*_COMPILER, *_WITHOUT, "-x", "c", "-")

    def make(target: Path) -> None:
        subprocess.run([*words, "-o", target], input=source.encode(), check=True)

    data = made(("gcc", "--version"), [source, *words], make)
    if "LUMIIMG_SHIP" in os.environ:
        shipped.parent.mkdir(exist_ok=True)
        shipped.write_bytes(lzma.compress(data))
    return data


def _written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o755)
    return path


def library(path: Path, *arguments: str | Path, source: str = "") -> Path:
    """Link a shared library; its soname is its file name unless the arguments say otherwise."""
    own = [] if any(str(a).startswith("-Wl,-soname") for a in arguments) else [f"-Wl,-soname,{path.name}"]
    return gcc(path, "-shared", *own, *arguments, source=source or f"int f_{path.stem.replace('.', '_')};")


def program(path: Path, *arguments: str | Path, source: str = "void start(void) {}") -> Path:
    return gcc(path, "-Wl,-e,start", "-Wl,--unresolved-symbols=ignore-all", *arguments, source=source)


@dataclass(frozen=True)
class Trace:
    """The output of `LD_TRACE_LOADED_OBJECTS=1 ld.so FILE`, in order; the name of the loader itself is its path."""

    found: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    words: frozenset[str]
    """The lines on standard error, without the program name that precedes them."""
    is_static: bool
    """Whether it printed `statically linked` and listed nothing."""
    is_fatal: bool
    """Whether it gave up with an error while loading."""
    crashed: bool = False


def read_trace(path: str, out: str, err: str, *, crashed: bool = False) -> Trace:
    found: list[tuple[str, str]] = []
    missing: list[str] = []
    for line in filter(None, map(str.strip, out.splitlines())):
        name, arrow, rest = line.partition(" => ")
        if name.startswith("linux-vdso") or line == "statically linked":
            continue
        if rest == "not found":
            missing.append(name)
            continue
        where = (rest if arrow else name).rpartition(" (0x")[0]
        found.append((name if arrow and "/ld-linux" not in where else where, where))
    words = set[str]()
    fatal = False
    for line in err.splitlines():
        before, gave_up, after = line.partition(": error while loading shared libraries: ")
        fatal |= bool(gave_up)
        words.add(after if gave_up else line.removeprefix(f"{path}: "))
        assert not gave_up or before
    return Trace(tuple(found), tuple(missing), frozenset(words), "statically linked" in out, fatal, crashed)


def trace(path: Path | str, environment: dict[str, str] | None = None, *, cwd: Path | None = None) -> Trace:
    """Return what the loader of this machine prints about a file."""
    if not Path(LOADER).exists():
        needs(LOADER)
    done = subprocess.run(
        [LOADER, path],
        capture_output=True,
        check=False,
        cwd=cwd,
        env={"LD_TRACE_LOADED_OBJECTS": "1", "LC_ALL": "C", **(environment or {})},
    )
    out, err = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    return read_trace(str(path), out, err, crashed=done.returncode < 0)


def assert_same(outcome: LoadResult, real: Trace) -> None:
    """Assert that model and loader agree on names, paths and order, missing libraries, and every error and warning."""
    lost = ("cannot open shared object file", "wrong ELF class")
    # a trace continues after a missing library, and ends before the CPU is compared
    of_model = {word for word in outcome.errors if not any(part in word for part in (*lost, "CPU ISA level"))}
    if real.is_fatal:
        assert real.words <= set(outcome.errors), (real.words, outcome.errors)
        return
    assert not real.crashed, "ld.so crashed"
    assertion = [word for word in real.words if word.startswith("Inconsistency detected by ld.so")]
    if assertion:
        assert any("assertion" in word for word in outcome.errors), (assertion, outcome.errors)
        return
    if not real.is_static:
        listed = tuple(
            (each.path if "/ld-linux" in each.path else each.name, each.path) for each in outcome.objects[1:]
        )
        assert listed == real.found, (listed, real.found)
        missing = tuple(missing.name for missing in outcome.missing)
        assert missing == real.missing, (missing, real.missing)
    assert of_model | set(outcome.warnings) == real.words, (of_model | set(outcome.warnings)) ^ real.words


def settings_here(environment: dict[str, str], cwd: Path | None = None) -> LoaderConfig:
    """Return the configuration of the loader on this machine: its CPU, and the given environment."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    return LoaderConfig(
        library_path=environment.get("LD_LIBRARY_PATH"),
        preload=(environment["LD_PRELOAD"],) if "LD_PRELOAD" in environment else (),
        cwd=str(cwd or Path.cwd()),
        hwcaps=cpu_levels(flags),
        intel="GenuineIntel" in cpuinfo,
    )


def so(path: Path, *arguments: str | Path, source: str = "int f;", soname: str | None = None) -> Path:
    """Link a shared library; arguments are those of ld."""
    words = ("-shared", "-soname", path.name if soname is None else soname, *arguments)
    return _written(path, link(words, source, with_build_id=False))


def exe(path: Path, *arguments: str | Path, source: str = "void start(void) {}") -> Path:
    return _written(path, link(("-pie", "-e", "start", *arguments), source, with_build_id=False))


def rpath(*directories: str | Path) -> tuple[str, str, str]:
    return "--disable-new-dtags", "-rpath", ":".join(map(str, directories))


def runpath(*directories: str | Path) -> tuple[str, str, str]:
    return "--enable-new-dtags", "-rpath", ":".join(map(str, directories))


def patched(path: Path, at: int, value: bytes) -> Path:
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    path.write_bytes(data)
    return path


def program_headers(data: bytes) -> list[tuple[int, int]]:
    """Return (offset, type) of every program header."""
    count = int.from_bytes(data[56:58], "little")
    return [(64 + 56 * i, int.from_bytes(data[64 + 56 * i : 68 + 56 * i], "little")) for i in range(count)]


def header_at(path: Path, kind: int) -> int:
    return next(at for at, found in program_headers(path.read_bytes()) if found == kind)


def entry_at(path: Path, tag: int) -> int:
    """Return the offset of the first dynamic entry with a tag."""
    data = path.read_bytes()
    header = header_at(path, 2)
    at = int.from_bytes(data[header + 8 : header + 16], "little")
    while int.from_bytes(data[at : at + 8], "little") != tag:
        assert data[at : at + 8] != bytes(8)
        at += 16
    return at


def with_symbol(path: Path, name: str, *, hides_version: bool = False, **fields: int) -> Path:
    """Change `binding`, `visibility` or `kind` of a symbol; `hides_version` turns `name@@V` into `name@V`."""
    with path.open("rb") as file:
        elf: Any = ELFFile(file)
        table, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        number = next(number for number, symbol in enumerate(table.iter_symbols()) if symbol.name == name)
        at = table["sh_offset"] + 24 * number
        of_version = versions["sh_offset"] + 2 * number if versions else 0
    info, other = path.read_bytes()[at + 4 : at + 6]
    info = fields.get("binding", info >> 4) << 4 | fields.get("kind", info & 15)
    patched(path, at + 4, bytes([info, fields.get("visibility", other)]))
    return patched(path, of_version + 1, b"\x80") if hides_version else path


def with_versions(path: Path, *versions: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    script = path.with_suffix(".map")
    script.write_text("".join(f"{name} {{ global: g_{name}; }};\n" for name in versions))
    source = "".join(f"int g_{name}(void) {{ return 0; }}\n" for name in versions)
    return so(path, "--version-script", script, source=source)


def loader_cache(
    entries: list[tuple[str, str, int]], *, hwcaps: tuple[str, ...] = (), flags: int = 0x303, endian: int = 2
) -> bytes:
    """Return an ld.so.cache in the new format; entries are (name, path, hwcap)."""
    texts = b""
    base = 48 + 24 * len(entries)
    offsets: dict[str, int] = {}
    for text in [text for name, path, _ in entries for text in (name, path)] + list(hwcaps):
        if text not in offsets:
            offsets[text] = base + len(texts)
            texts += os.fsencode(text) + b"\0"
    table = b"".join(struct.pack("<iIIIQ", flags, offsets[n], offsets[p], 0, hwcap) for n, p, hwcap in entries)
    texts += bytes(-(base + len(texts)) % 4)
    generator = b"ldconfig (GNU libc) stable release version 2.31"
    at = base + len(texts)
    names = b"".join(struct.pack("<I", offsets[name]) for name in hwcaps)
    body = at + 8 + 32
    extension = struct.pack(
        "<IIIIIIIIII", 0xEAA42174, 2, 0, 0, body, len(generator), 1, 0, body + len(generator), len(names)
    )
    head = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries), len(texts), endian, at)
    return head + table + texts + extension + generator + names
