"""Real ELF files for the tests of the loader model, and the real loader to ask about them."""

from __future__ import annotations

import atexit
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.elf.hwcaps import levels_of_cpu
from lumiimg.elf.rules import LoaderSettings
from tests.shared.programs import needs

if TYPE_CHECKING:
    from lumiimg.elf.objects import LoadOutcome

LOADER = "/lib64/ld-linux-x86-64.so.2"


_MADE: dict[tuple[object, ...], bytes] = {}


def gcc(output: Path, *arguments: str | Path, source: str) -> Path:
    """Compile and link. Of the same source, arguments and files it comes to the same bytes, and gcc is asked once."""
    needs("gcc")
    output.parent.mkdir(parents=True, exist_ok=True)
    made_of = (source, *(word.read_bytes() if isinstance(word, Path) else word for word in arguments))
    if made_of in _MADE:
        output.write_bytes(_MADE[made_of])
        output.chmod(0o755)
        return output
    subprocess.run(
        [
            "gcc",
            "-x",
            "c",
            "-",
            "-x",
            "none",
            "-nostdlib",
            "-fno-builtin",
            "-fPIC",
            "-Wl,--no-as-needed",
            "-o",
            output,
            *arguments,
        ],
        input=source.encode(),
        check=True,
    )
    _MADE[made_of] = output.read_bytes()
    return output


def library(path: Path, *arguments: str | Path, source: str = "") -> Path:
    """Link a shared library; its soname is its file name unless the arguments say otherwise."""
    own = [] if any(str(a).startswith("-Wl,-soname") for a in arguments) else [f"-Wl,-soname,{path.name}"]
    return gcc(path, "-shared", *own, *arguments, source=source or f"int f_{path.stem.replace('.', '_')};")


def program(path: Path, *arguments: str | Path, source: str = "void start(void) {}") -> Path:
    return gcc(path, "-Wl,-e,start", "-Wl,--unresolved-symbols=ignore-all", *arguments, source=source)


def rpath(*directories: str | Path) -> tuple[str, str]:
    return "-Wl,--disable-new-dtags", f"-Wl,-rpath,{':'.join(map(str, directories))}"


def runpath(*directories: str | Path) -> tuple[str, str]:
    return "-Wl,--enable-new-dtags", f"-Wl,-rpath,{':'.join(map(str, directories))}"


@dataclass(frozen=True)
class Answer:
    """What ldd says: it runs the loader in this way."""

    printed: dict[str, str | None]
    errors: str


def ask_loader(path: Path, environment: dict[str, str] | None = None, *, cwd: Path | None = None) -> Answer:
    if not Path(LOADER).exists():
        needs(LOADER)
    done = subprocess.run(
        [LOADER, path],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={"LD_TRACE_LOADED_OBJECTS": "1", **(environment or {})},
    )
    printed: dict[str, str | None] = {}
    for line in done.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        found = rest if arrow else name
        found = found.rpartition(" (0x")[0] or found
        if name.startswith("linux-vdso"):
            continue
        printed[name if arrow else found] = None if found == "not found" else found
    return Answer(printed, done.stderr)


@dataclass(frozen=True)
class Trace:
    """What `LD_TRACE_LOADED_OBJECTS=1 ld.so FILE` says, in its order; the loader's own line has its path as its name."""

    found: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    words: frozenset[str]
    """What is on standard error, without the name of the program in front."""
    is_static: bool
    """It said `statically linked` and listed nothing."""
    is_fatal: bool
    """It gave up before it listed anything."""
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
    """Ask the loader of this machine."""
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


def assert_same(outcome: LoadOutcome, real: Trace) -> None:
    """The model must say what the loader says: names, paths and order, what is missing, every word of trouble."""
    lost = ("cannot open shared object file", "wrong ELF class")
    # a trace goes on without a library that is not there, and ends before the CPU is compared
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


def settings_here(environment: dict[str, str], cwd: Path | None = None) -> LoaderSettings:
    """What the loader of this machine gets: its CPU, and the environment of a question."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    return LoaderSettings(
        library_path=environment.get("LD_LIBRARY_PATH"),
        preload=(environment["LD_PRELOAD"],) if "LD_PRELOAD" in environment else (),
        cwd=str(cwd or Path.cwd()),
        hwcaps=levels_of_cpu(flags),
        intel="GenuineIntel" in cpuinfo,
    )


_OBJECTS: dict[str, Path] = {}


def compiled(source: str) -> Path:
    """Return an object file, made once."""
    if source not in _OBJECTS:
        needs("gcc", "ld")
        folder = tempfile.TemporaryDirectory(prefix="lumiimg-elf-")  # for as long as the tests run
        atexit.register(folder.cleanup)
        path = Path(folder.name) / "o.o"
        subprocess.run(
            ["gcc", "-x", "c", "-", "-c", "-fPIC", "-ftls-model=initial-exec", "-o", path],
            input=source.encode(),
            check=True,
        )
        _OBJECTS[source] = path
    return _OBJECTS[source]


def so(path: Path, *arguments: str | Path, source: str = "int f;", soname: str | None = None) -> Path:
    """Link a shared library with ld alone, which takes a tenth of the time of gcc."""
    return _linked(path, "-shared", "-soname", path.name if soname is None else soname, *arguments, source=source)


def exe(path: Path, *arguments: str | Path, source: str = "void start(void) {}") -> Path:
    return _linked(
        path,
        "-pie",
        "-dynamic-linker",
        LOADER,
        "-e",
        "start",
        "--unresolved-symbols=ignore-all",
        *arguments,
        source=source,
    )


def _linked(path: Path, *arguments: str | Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["ld", "-z", "noexecstack", "--no-as-needed", "-o", path, compiled(source), *arguments],
        check=True,
        capture_output=True,
    )
    return path


def old_rpath(*directories: str | Path) -> tuple[str, str, str]:
    return "--disable-new-dtags", "-rpath", ":".join(map(str, directories))


def new_runpath(*directories: str | Path) -> tuple[str, str, str]:
    return "--enable-new-dtags", "-rpath", ":".join(map(str, directories))


NOTES = 'asm(".section .note.dlopen,\\"a\\",@note\\n.previous");'
"""C source that makes the section of the notes in a file."""


def note_source(owner: bytes, kind: int, description: bytes, section: str) -> str:
    """Return C source that puts a note into the file, as the macro of systemd does it; behind NOTES."""
    data = struct.pack("<III", len(owner), len(description), kind) + owner + description
    data += bytes(-len(data) % 4)
    numbers = ",".join(map(str, data))
    return f'__attribute__((used, aligned(4), section("{section}"))) static const unsigned char n{len(data)}[] = {{{numbers}}};\n'


def shared_object(names: int, name_bytes: int) -> bytes:
    """Return a library whose symbols have names that are the ends of one long string."""
    strings = b"\0" + b"a" * name_bytes + b"\0"
    hash_table = struct.pack("<II", 1, names + 1) + bytes(4 * (names + 2))
    symbols = bytes(24) + b"".join(struct.pack("<IBBHQQ", 1 + n, 0x12, 0, 1, 0x1000, 0) for n in range(names))
    dynamic_at = 64 + 3 * 56
    hash_at = dynamic_at + 6 * 16
    symbols_at = (hash_at + len(hash_table) + 7) & -8
    strings_at = symbols_at + len(symbols)
    end = strings_at + len(strings)
    entries = ((4, hash_at), (5, strings_at), (6, symbols_at), (10, len(strings)), (11, 24), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    segments = ((1, 5, 0, 0, 0, end, end, 4096), (2, 6, *[dynamic_at] * 3, *[len(dynamic)] * 2, 8))
    stack = (0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    data = head + b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in (*segments, stack)) + dynamic + hash_table
    return data.ljust(symbols_at, b"\0") + symbols + strings


def patched(path: Path, at: int, value: bytes) -> Path:
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    path.write_bytes(data)
    return path


def program_headers(data: bytes) -> list[tuple[int, int]]:
    """Return (place, type) of every program header."""
    count = int.from_bytes(data[56:58], "little")
    return [(64 + 56 * i, int.from_bytes(data[64 + 56 * i : 68 + 56 * i], "little")) for i in range(count)]


def header_at(path: Path, kind: int) -> int:
    return next(at for at, found in program_headers(path.read_bytes()) if found == kind)


def entry_at(path: Path, tag: int) -> int:
    """Return the place of the first dynamic entry with a tag."""
    data = path.read_bytes()
    header = header_at(path, 2)
    at = int.from_bytes(data[header + 8 : header + 16], "little")
    while int.from_bytes(data[at : at + 8], "little") != tag:
        assert data[at : at + 8] != bytes(8)
        at += 16
    return at


def with_versions(path: Path, *versions: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    script = path.with_suffix(".map")
    script.write_text("".join(f"{name} {{ global: g_{name}; }};\n" for name in versions))
    source = "".join(f"int g_{name}(void) {{ return 0; }}\n" for name in versions)
    return so(path, "--version-script", script, source=source)


def loader_cache(
    entries: list[tuple[str, str, int]], *, hwcaps: tuple[str, ...] = (), flags: int = 0x303, endian: int = 2
) -> bytes:
    """Write a cache in the new format; entries are (name, path, hwcap)."""
    texts = b""
    base = 48 + 24 * len(entries)
    offsets: dict[str, int] = {}
    for text in [text for name, path, _ in entries for text in (name, path)] + list(hwcaps):
        if text not in offsets:
            offsets[text] = base + len(texts)
            texts += text.encode() + b"\0"
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
