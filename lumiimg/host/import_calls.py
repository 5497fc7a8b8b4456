"""Count the file system calls of a Python start: `import torch` from a virtual environment or an image.

Counted with strace(1): nothing here is a time. docs/explanation/startup.md explains what is counted, and why the
program in an image and its engine are counted in separate runs.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lumiimg.core.decode import DecodeError, decode_json
from lumiimg.core.errors import BadInputError, ExitCode, MissingHereError, one_line
from lumiimg.core.files import open_regular, temporary_folder
from lumiimg.engine.engine import Engine, find_engine
from lumiimg.engine.failures import not_started
from lumiimg.engine.process import Completed, run, which
from lumiimg.engine.workspace import scratch_folder

MAX_TRACE_BYTES = 512 << 20
_MAX_LINE_BYTES = 64 << 10
_TIMEOUT_S = 900.0
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}(\.[A-Za-z_][A-Za-z0-9_]{0,99}){0,20}")
_STRACE = ("-ff", "-y", "-qq", "-s", "0", "-e", "signal=none", "-e", "trace=%file,getdents,getdents64")
_OPENS = frozenset({"open", "openat", "openat2", "creat", "execve", "execveat", "uselib"})
_LINE = re.compile(
    r"(\w+)\((.*)\) += (?:-?\d+|0x[0-9a-f]+)(?:<([^<>]*)>)?(?: (E[A-Z0-9]+) \([^()<>]*\))?\n?", re.DOTALL
)
_PATH = re.compile(r'(?:(?:-?\d+|AT_FDCWD)(?:<([^<>]*)>)?(?:, )?)?(?:"((?:[^"\\]|\\.)*)")?', re.DOTALL)
"""Start of the arguments: a descriptor with its path, a name, or a descriptor and a name below it."""
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
"""An octal byte, or a quote or backslash; letters for control characters stay letters."""
_MOUNT = re.compile(r"^(?:\S+ ){4}(\S+) .* - (\S+) ", re.MULTILINE)
"""Mount point and type of a file system, in a line of /proc/self/mountinfo (proc(5))."""
_NODE_FS_TYPES = """squashfs overlay fuse.squashfuse fuse.fuse-overlayfs rootfs proc sysfs tmpfs devtmpfs devpts cgroup
mqueue hugetlbfs"""
"""File system types, or their prefixes, that the image, its engine or the kernel serves."""
_BEGAN, _ANSWER, _WAITS = "@lumiimg-began", "@lumiimg-answer ", "@lumiimg-waits "
_SCRIPT = rf"""
import contextlib, importlib, json, os, sys, time
print("\n{_BEGAN}", flush=True)
module = importlib.import_module(sys.argv[1])
with open("/proc/self/mountinfo", errors="surrogateescape") as stream:
    mounts = stream.read()
print("\n{_ANSWER}" + json.dumps(dict(
    module_file=str(getattr(module, "__file__", None)), version=str(getattr(module, "__version__", "")),
    python=sys.version.split()[0], mounts=mounts)), flush=True)
with contextlib.suppress(ImportError):
    import ctypes
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
status = open("/proc/self/status")
print("\n{_WAITS}" + str(os.getpid()), flush=True)
for turn in range(1000):
    status.seek(0)
    if "TracerPid:\t0\n" not in status.read():
        os.execv(sys.executable, [sys.executable, "-c", "import " + sys.argv[1]])
    time.sleep(0.01)
"""
"""Imports once untraced: this shows whether the import works at all, where the module is, and what is mounted, and it
leaves behind the bytecode that a first import compiles. Then it lets any process trace it (PR_SET_PTRACER of prctl(2)),
waits until strace is attached, and becomes the program that is traced."""
_NO_PROGRAM = "/lumiimg-no-such-program"
_ENDED = re.compile(f"^FATAL.*{_NO_PROGRAM}", re.MULTILINE)
"""The engine's error in a container without that program: it has completed its start."""


class ImportSource(StrEnum):
    """Kind of place that modules are imported from."""

    VENV = "venv"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Counts:
    """File system calls of one process and its children on some files."""

    metadata: int = 0
    """All calls that a metadata server may have to answer: opens, stats, directory reads, readlinks and others."""
    opens: int = 0
    """Calls of open, and program starts."""
    failed: int = 0
    """Those of all calls that found nothing: mostly searches along sys.path and library paths."""


@dataclass(frozen=True, slots=True)
class ImportCost:
    """File system calls of one import."""

    path: str
    """Path of the virtual environment or image."""
    kind: ImportSource
    """Kind of place that modules are imported from."""
    module_file: str
    """The file that was imported."""
    version: str
    """Version of the module; empty where it has none."""
    python: str
    """Version of Python."""
    program: Counts
    """All calls of the program, on any file system."""
    shared: Counts | None
    """Calls of the program and the engine that reach the file system of `path`; null where that cannot be seen."""
    why_not: str | None = None
    """Why `shared` cannot be seen; null where it can."""


@dataclass(frozen=True, slots=True)
class ImportBench:
    """File system calls of an import, from each place."""

    module: str
    """Module that was imported."""
    places: tuple[ImportCost, ...]
    """Results in the order of the command line."""

    @property
    def exit_code(self) -> ExitCode:
        """Good if the calls that reach each place were seen."""
        return ExitCode.GOOD if all(place.shared for place in self.places) else ExitCode.UNDECIDED


@dataclass(frozen=True, slots=True)
class Call:
    """One system call of a process that looks for a file."""

    name: str
    path: str
    """Absolute path: the opened file for an open, else the path in the call."""
    error: str | None = None
    """`ENOENT`."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer of the Python that imports the module."""

    module_file: str
    version: str
    python: str
    mounts: str


@dataclass(frozen=True, slots=True)
class _Bench:
    """What is measured, and how."""

    path: Path
    module: str
    strace: str
    environment: Mapping[str, str]

    def run(self, words: Sequence[str | Path], on_line: Callable[[str], None] | None = None) -> Completed:
        """Run a program in `/`."""
        return run(words, env=self.environment, cwd=Path("/"), timeout_s=_TIMEOUT_S, on_line=on_line)

    def trace(self, words: Sequence[str | Path]) -> tuple[Completed, list[Call]]:
        """Run strace with more options and a program, and return its calls."""
        with scratch_folder(temporary_folder(), "lumiimg-bench-") as folder:
            completed = self.run([self.strace, *_STRACE, "-o", folder / "trace", *words])
            return completed, read_traces(sorted(folder.glob("trace*")))


def measure(paths: Sequence[Path], module: str, environment: Mapping[str, str]) -> ImportBench:
    """Count the file system calls of an import from virtual environments and images.

    Raises BadInputError where the module cannot be imported there, MissingHereError without strace or an engine.
    """
    if not _MODULE.fullmatch(module):
        raise BadInputError("is not a valid module name", where=f"--module {module}")
    kinds = [_kind_of(path) for path in paths]  # checked before the first slow measurement
    strace = which("strace", environment.get("PATH"))
    if strace is None:
        raise MissingHereError("strace is not on PATH", hint="install it (`apt install strace`), or load its module")
    benches = (_Bench(path.resolve(), module, strace, environment) for path in paths)
    return ImportBench(module, tuple(map(_startup, benches, kinds)))


def _startup(bench: _Bench, kind: ImportSource) -> ImportCost:
    if kind is ImportSource.IMAGE:
        answer, calls, reaches, why_not = _from_image(bench, find_engine(bench.environment))
    else:
        answer, calls, reaches, why_not = *_from_venv(bench), None
    of_module = (answer.module_file, answer.version, answer.python)
    shared = None if reaches is None else count(reaches)
    return ImportCost(str(bench.path), kind, *of_module, count(calls), shared, why_not)


def _kind_of(path: Path) -> ImportSource:
    if (path / "pyvenv.cfg").is_file() and (path / "bin/python").is_file():
        return ImportSource.VENV
    if not path.exists():
        raise BadInputError("no such file or folder", where=str(path))
    if not path.is_file():
        raise BadInputError("is neither an image file nor a virtual environment", where=str(path))
    return ImportSource.IMAGE


def _from_venv(bench: _Bench) -> tuple[_Answer, list[Call], list[Call]]:
    """Return (Python's answer, all calls of the program, those that reach the environment)."""
    answer, calls = _trace_import(bench, [bench.path / "bin" / "python"])
    below = f"{bench.path}/"
    if not answer.module_file.startswith(below):
        what = f"{bench.module} is imported from elsewhere: {one_line(answer.module_file)}"
        raise BadInputError(what, where=str(bench.path))
    return answer, calls, [call for call in calls if f"{call.path}/".startswith(below)]


def _from_image(bench: _Bench, engine: Engine) -> tuple[_Answer, list[Call], list[Call] | None, str | None]:
    """Return the same for an image, and why the calls that reach it are not known."""
    start: list[str | Path] = [*engine.words, "exec", "--pwd", "/", bench.path]
    answer, calls = _trace_import(bench, [*start, "python3"], engine)
    # no program is run in this container: see docs/explanation/startup.md
    completed, opening = bench.trace(["--seccomp-bpf", *start, _NO_PROGRAM])
    if not _ENDED.search(completed.output):
        why_not = "the engine cannot be traced, perhaps because it is set-user-id (APPTAINER_USERNS=1 helps)"
        return answer, calls, None, f"{why_not}: {one_line(completed.last_line)}"
    near = {str(bench.path), *map(str, bench.path.parents)} - {"/"}
    home = bench.environment.get("HOME", "/nowhere").rstrip("/") + "/"
    reaches = [call for call in opening if call.path in near or f"{call.path}/".startswith(home)]
    is_bound = _bound_path_test(answer.mounts)
    return answer, calls, reaches + [call for call in calls if is_bound(call.path)], None


def _trace_import(bench: _Bench, python: list[str | Path], engine: Engine | None = None) -> tuple[_Answer, list[Call]]:
    """Return Python's answer about the module, and all calls of a program that imports it; `engine` may start it."""
    traces: list[Future[tuple[Completed, list[Call]]]] = []
    with ThreadPoolExecutor(max_workers=1) as pool:

        def on_line(line: str) -> None:
            pid = line.removeprefix(_WAITS)
            if line.startswith(_WAITS) and re.fullmatch(r"[1-9]\d{0,9}", pid) and not traces:
                traces.append(pool.submit(bench.trace, ["-p", pid]))

        completed = bench.run([*python, "-c", _SCRIPT, bench.module], on_line)
    answer = _answer(completed, bench, engine)
    attached, calls = traces[0].result() if traces else (completed, [])
    if not any(call.name == "execve" and call.error is None for call in calls):
        raise MissingHereError(
            f"strace cannot attach to Python there: {one_line(attached.last_line)}",
            where=str(bench.path),
            hint="it may need kernel.yama.ptrace_scope = 0, or an engine that starts it in this PID namespace",
        )
    return answer, calls


def _answer(completed: Completed, bench: _Bench, engine: Engine | None = None) -> _Answer:
    """Return Python's answer; it ran in a container if an `engine` is given.

    Raises BadInputError where the import failed, MissingHereError where Python did not even start.
    """
    path, lines, last_line = str(bench.path), completed.output.splitlines(), one_line(completed.last_line)
    if _BEGAN not in lines and not completed.ok:
        if engine is not None:
            raise not_started(engine, completed.output, where=path)
        raise MissingHereError(f"Python does not start there: {last_line}", where=path)
    answers = [line.removeprefix(_ANSWER) for line in lines if line.startswith(_ANSWER)]
    if not completed.ok or not answers:
        raise BadInputError(f"`import {bench.module}` fails there: {last_line}", where=path)
    try:
        return decode_json(answers[-1].encode("utf-8", "surrogateescape"), _Answer)
    except DecodeError as error:
        raise BadInputError("Python's answer there is not valid", where=path) from error


def _bound_path_test(mounts: str) -> Callable[[str], bool]:
    """Return a test for paths in the container that are on a file system of the machine, by its mounts."""
    types = {_unescaped(point).rstrip("/"): kind for point, kind in _MOUNT.findall(mounts)}

    def is_bound(path: str) -> bool:
        point = path.rstrip("/")
        while point and point not in types:
            point = point.rpartition("/")[0]
        return bool(point) and not types[point].startswith(tuple(_NODE_FS_TYPES.split()))

    return is_bound


def count(calls: Iterable[Call]) -> Counts:
    """Return the number of calls, in total and by kind."""
    calls = list(calls)
    opens = sum(call.name in _OPENS for call in calls)
    return Counts(len(calls), opens, sum(call.error in {"ENOENT", "ENOTDIR"} for call in calls))


def read_traces(files: Iterable[Path]) -> list[Call]:
    """Return the calls in output files of strace. Raises BadInputError where these are larger than any import's."""
    calls, total = [], 0
    for file in files:
        with open_regular(file) as stream:
            while line := stream.readline(_MAX_LINE_BYTES):
                total += len(line)
                if total > MAX_TRACE_BYTES:
                    raise BadInputError(f"strace wrote more than {MAX_TRACE_BYTES} bytes", where=str(file))
                if (call := parse(line.decode("utf-8", "surrogateescape"))) is not None:
                    calls.append(call)
    return calls


def parse(line: str) -> Call | None:
    """Return the call in a line; None for other lines, unfinished calls, and calls on an open file."""
    match = _LINE.fullmatch(line)
    if match is None or match[1] in {"getcwd", "fchdir"}:
        return None
    name, arguments, opened, error = match.groups()
    found = _PATH.match(arguments)
    folder, below = found.groups() if found else (None, None)
    if not below and not (folder and name.startswith("getdents")):
        return None
    path = os.path.join(_unescaped(folder or "/"), _unescaped(below or ""))  # noqa: PTH118
    path = os.path.normpath(_unescaped(opened) if opened else path)
    return Call(name, path, error) if path.startswith("/") else None  # pipes and sockets have names without a slash


def _unescaped(text: str) -> str:
    escaped = text.encode("utf-8", "surrogateescape")
    plain = _ESCAPE.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)) if match[1] else match[2], escaped)
    return plain.decode("utf-8", "surrogateescape")
