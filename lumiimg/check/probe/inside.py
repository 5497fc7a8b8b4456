"""Runs in the container, with the Python of the image: does what a job does up to its plugin, and reports the result.

Usage: python -c TEXT VARIABLES STEP…; VARIABLES: prefixes of the `NAME=` that are printed, STEP: `kind=value`.
Its lines are those of `probe.h`. It is self-contained, for Python 3.8 and newer, and imports only what ctypes does.
"""

from __future__ import annotations

import sys

sys.path[:] = filter(None, sys.path)  # in a job, the empty entry is the folder of its script

import ctypes
import os
import struct

ENTRY = b"ncclCommInitRank"
PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._:+-"
LONGEST = 16384
JMPREL, PLTRELSZ, RELA, RELASZ, SYMTAB, STRTAB, STRSZ = 23, 2, 7, 8, 6, 5, 10
PROCESS = ctypes.CDLL(None)
asked: list[tuple[str, str]] = []
imported: list[str] = []
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def say(topic: str, **values: object) -> None:
    def quoted(value: object) -> str:
        data = os.fsencode(str(value))[:LONGEST]
        return "".join(chr(byte) if byte in PLAIN else "%%%02X" % byte for byte in data)

    words = [key + "=" + quoted(value) for key, value in values.items()]
    os.write(1, ("\n" + " ".join(["@probe", topic, *words]) + "\n").encode())


def links() -> Iterator[tuple[int, int, str]]:
    """Yield (address, dynamic section, file) of the libraries, in load order (link.h, link_map)."""
    first = ctypes.c_size_t()
    PROCESS.dlinfo(ctypes.c_void_p(PROCESS._handle), 2, ctypes.byref(first))
    at = first.value
    while at:
        base, name, dynamic, at = struct.unpack("QQQQ", ctypes.string_at(at, 32))
        yield base, dynamic, os.path.realpath(os.fsdecode(ctypes.string_at(name))) if name else ""


def file_of(address: int | None) -> str:
    """Return the file to which an address belongs (dladdr(3), the first member of Dl_info)."""
    found = (ctypes.c_char_p * 4)()
    PROCESS.dladdr(ctypes.c_void_p(address), found)
    return os.path.realpath(os.fsdecode(found[0] or b""))


def found_by(*libraries: ctypes.CDLL) -> str:
    """Return the file in which dlsym finds the function, with the first handle that has it."""
    for library in libraries:
        function = getattr(library, ENTRY.decode(), None)
        if function is not None:
            return file_of(ctypes.cast(function, ctypes.c_void_p).value)
    return ""


def section(base: int, at: int) -> dict[int, int]:
    """Return the dynamic section of a library; its addresses are relocated unless the section is read-only."""
    found: dict[int, int] = {}
    while True:
        tag, value = struct.unpack("qQ", ctypes.string_at(at, 16))
        if tag == 0:
            return found
        if tag in (JMPREL, RELA, SYMTAB, STRTAB) and value < base:
            value += base
        found[tag], at = value, at + 16


def answering() -> Iterator[tuple[str, str]]:
    """Yield (library that calls the function, or has it, file that answers), from the contents of its relocations."""
    for base, dynamic, path in links():
        if not dynamic or not os.path.isfile(path):
            continue
        of = section(base, dynamic)
        strings = ctypes.string_at(of[STRTAB], of[STRSZ])
        if ENTRY + b"\0" not in strings:
            continue
        for start, size in ((JMPREL, PLTRELSZ), (RELA, RELASZ)):
            data = ctypes.string_at(of[start], of[size]) if start in of and size in of else b""
            for offset, info, _ in struct.iter_unpack("QQq", data):
                if info >> 32:
                    name, _, where = struct.unpack("IHH", ctypes.string_at(of[SYMTAB] + 24 * (info >> 32), 8))
                    if where == 0 and strings[name : name + len(ENTRY) + 1] == ENTRY + b"\0":
                        bound = file_of(struct.unpack("Q", ctypes.string_at(base + offset, 8))[0])
                        # bound at its first call, still to come: to a definition in the global scope, else in its own
                        yield path, found_by(PROCESS, opened(path)) if bound == path else bound
        if found_by(opened(path)) == path:
            yield path, path


def opened(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW)


def mapped() -> list[str]:
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        return sorted({line.split(None, 5)[5].strip() for line in maps if "/" in line})


def variables() -> dict[str, str]:
    """Return the environment as C has it; the loader's variables as at the start, when it read them."""
    with open("/proc/self/environ", "rb") as file:
        start = [word for word in file.read().split(b"\0") if word.startswith(b"LD_")]
    now, at = ctypes.POINTER(ctypes.c_char_p).in_dll(PROCESS, "environ"), 0
    while now[at]:
        word = now[at] or b""
        start += [] if word.startswith(b"LD_") else [word]
        at += 1
    return dict(os.fsdecode(word).partition("=")[::2] for word in reversed(start))


def report(read: str) -> None:
    say("python", version=sys.version.split()[0], program=sys.executable, path=os.pathsep.join(sys.path))
    for name in imported:
        say("module", name=name, file=os.path.realpath(getattr(sys.modules[name], "__file__", None) or os.devnull))
    for finder in sys.meta_path:
        kind = finder if isinstance(finder, type) else type(finder)
        say("finder", name=kind.__module__ + "." + kind.__qualname__)
    for name, value in variables().items():
        if (name + "=").startswith(tuple(read.split())):
            say("variable", name=name, value=value)
    for name, path in asked:
        say("asked", name=name, file=path)
    for user, path in dict.fromkeys(answering()):
        say("answers", user=user, file=path)
    there = set(mapped())
    for _, _, path in links():
        if path in there:
            say("loaded", path=path)
    say("ran")


def take(name: str) -> None:
    __import__(name)
    imported.append(name)


def take_if_there(name: str) -> None:
    try:
        take(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise


def unless_called(names: str) -> None:
    """Open a library if none answers the calls of what was imported."""
    if all(user == path for user, path in answering()):
        either(names)


def either(names: str) -> None:
    """Open the first of some libraries; `$NAME` is the one that a variable names, if it is set."""
    for name in names.split(":"):
        try:
            named = os.environ.get(name[1:]) if name.startswith("$") else name
            if named:
                library = ctypes.CDLL(named)
                asked.append((named, found_by(library)))
                return
        except OSError as error:
            refusal = error
            if name.startswith("$"):
                break
    raise refusal


def unique_id(path: str) -> None:
    before = mapped()
    if os.path.realpath(path) not in before:
        return  # another library answers
    ctypes.CDLL(path).ncclGetUniqueId(ctypes.create_string_buffer(1024))
    for file in mapped():
        if file not in before:
            say("opened", path=file)


STEPS: dict[str, Callable[[str], object]] = {
    "import": take,
    "try": take_if_there,
    "open": ctypes.CDLL,
    "either": either,
    "else": unless_called,
    "ran": report,
    "rccl": unique_id,
    "plugin": either,
}


def main() -> None:
    for step in [*sys.argv[2:]]:
        kind, _, value = step.partition("=")
        try:
            STEPS[kind](value or sys.argv[1])
        except BaseException as error:
            say("failed", step=step, error=type(error).__name__ + ": " + str(error))
            break
    for path in mapped():
        say("mapped", path=path)
    say("end", stage="process", code=0)
    os._exit(0)


if __name__ == "__main__":  # as `python -c`
    main()
