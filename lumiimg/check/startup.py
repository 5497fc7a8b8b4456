"""What a start of Python asks of file systems: `import torch` from a folder, a virtual environment, or an image.

Counted with strace(1), and so the same on any machine with the same files: nothing here is a time. Of a folder or a
virtual environment every call on a path below it reaches the file system that it is on. Of an image the calls of the
program are answered by the file system in the image, on the node; what reaches the one that the image is on is what
the engine does with the image's file, what the image's file system reads of it, and what the program asks of paths
that are bound from the machine.

One strace that followed the engine, the program and the FUSE process that serves the image would wait for itself: it
reads names out of the program's memory, a page of which only the FUSE process that it has stopped can bring. So the
program is attached to from outside, and what the engine does is counted in runs of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lumiimg.check.strace import TRACED, Call, CallKind, Counts, count, read_trace
from lumiimg.engine.engine import Engine, find_engine
from lumiimg.engine.failures import not_started
from lumiimg.engine.process import Completed, run, which
from lumiimg.errors import BadInputError, MissingHereError, one_line

MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}(\.[A-Za-z_][A-Za-z0-9_]{0,99}){0,20}")
_TIMEOUT_S = 900.0
_STRACE = ("-f", "-y", "-qq", "-s", "0", "-e", "signal=none")
_READS = "pread64,preadv,preadv2"
_ANSWER = "@lumiimg "
_BEGAN = "@lumiimg-began"
_NO_PROGRAM = "/lumiimg-no-such-program"
_NO_PYTHON = re.compile(r'^FATAL:.*"python3": executable file not found', re.MULTILINE)
"""Of Apptainer 1.4.5, and of Go's os/exec."""
_IMAGE_TYPES = ("squashfs", "overlay", "fuse.squashfuse", "fuse.fuse-overlayfs")
_KERNEL_TYPES = ("proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "hugetlbfs", "rootfs")
# Once without a trace: whether it works at all, where it is, and what is mounted; it also leaves the bytecode behind
# that the first import of all compiles.
_ASK = """\
import importlib, json, sys
print("\\n{began}", flush=True)
module = importlib.import_module({module!r})
with open("/proc/self/mountinfo", errors="surrogateescape") as stream:
    mounts = stream.read()
print("\\n{answer}" + json.dumps({{
    "file": getattr(module, "__file__", None), "version": str(getattr(module, "__version__", "")),
    "python": sys.version.split()[0], "program": sys.executable, "mounts": mounts}}))
"""
# Waits in the container until strace is there, and becomes the program that is traced.
_WAIT = """\
import os, sys, time
print("\\n{answer}" + str(os.getpid()), flush=True)
end = time.monotonic() + 10
while time.monotonic() < end:
    with open("/proc/self/status") as status:
        if "TracerPid:\\t0\\n" not in status.read():
            os.execv(sys.executable, [sys.executable, "-c", "import {module}"])
    time.sleep(0.01)
"""


class ImportSource(StrEnum):
    """What modules are imported from."""

    FOLDER = "folder"
    VENV = "venv"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Startup:
    """The cost of one import."""

    path: str
    place: ImportSource
    module_file: str
    version: str
    python: str
    program: Counts
    """All that the program asks, of whatever file system."""
    shared: Counts | None
    """What of it, and of the engine, reaches the file system that the place is on; None where that cannot be seen."""
    why_not: str | None = None
    """Why it cannot."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What Python says where the module is imported."""

    file: str
    version: str
    python: str
    program: str
    mounts: str


def kind_of(path: Path) -> ImportSource:
    """Return what a path is. Raises BadInputError for what modules cannot be imported from."""
    if path.is_dir():
        if (path / ".singularity.d").exists():
            raise BadInputError("is a sandbox", where=str(path), hint="name its site-packages folder, or build a SIF")
        return ImportSource.VENV if (path / "pyvenv.cfg").is_file() else ImportSource.FOLDER
    if not path.is_file():
        raise BadInputError("there is no such file or folder", where=str(path))
    return ImportSource.IMAGE


def measure(path: Path, module: str, environment: Mapping[str, str], python: str | None = None) -> Startup:
    """Count what an import asks, from a place of any kind; `python` is the interpreter for folders.

    Raises BadInputError where the module cannot be imported there, MissingHereError without strace or an engine.
    """
    place = kind_of(path)
    strace = which("strace", environment.get("PATH"))
    if strace is None:
        raise MissingHereError("there is no strace here", hint="install it (`apt install strace`), or load its module")
    path = path.resolve()
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-") as folder:
        tracer = _Tracer(strace, Path(folder), module)
        if place is ImportSource.IMAGE:
            return _of_image(path, tracer, find_engine(environment), environment)
        return _of_folder(path, place, tracer, environment, python)


@dataclass(frozen=True, slots=True)
class _Tracer:
    """The program strace, and where it writes."""

    strace: str
    folder: Path
    module: str

    def calls(self, what: str, argv: list[str | Path], environment: Mapping[str, str]) -> tuple[Completed, list[Call]]:
        """Run a program that is traced from its start."""
        file = self.folder / "trace"
        file.unlink(missing_ok=True)
        completed = run([*self._words(what, file), *argv], env=environment, cwd=Path("/"), timeout_s=_TIMEOUT_S)
        return completed, read_trace(file) if file.exists() else []

    def _words(self, what: str, file: Path) -> list[str | Path]:
        return [self.strace, *_STRACE, "-e", f"trace={what}", "-o", file]

    def attach(self, pid: str, environment: Mapping[str, str]) -> Completed:
        """Follow a process until it ends."""
        words = [*self._words(TRACED, self.folder / "attached"), "-p", pid]
        return run(words, env=environment, timeout_s=_TIMEOUT_S)

    @property
    def attached(self) -> list[Call]:
        """What the process did that was attached to, once it was the program."""
        file = self.folder / "attached"
        calls = read_trace(file) if file.exists() else []
        return list(itertools.dropwhile(lambda call: call.name != "execve" or call.error is not None, calls))

    @property
    def program(self) -> list[str | Path]:
        """The arguments of the interpreter."""
        return ["-c", f"import {self.module}"]


def _of_folder(
    path: Path, place: ImportSource, tracer: _Tracer, environment: Mapping[str, str], python: str | None
) -> Startup:
    child = dict(environment)
    if place is ImportSource.VENV:
        interpreter = str(path / "bin" / "python")
    else:
        interpreter = which(python or "python3", environment.get("PATH")) or ""
        child["PYTHONPATH"] = ":".join(filter(None, (str(path), environment.get("PYTHONPATH"))))
    if not Path(interpreter).is_file():
        raise MissingHereError(f"there is no {python or interpreter or 'python3'} here", hint="--python PROGRAM")
    asked = _ask([interpreter], tracer, child, path)
    if not asked.file.startswith(f"{path}/"):
        found = one_line(asked.file)
        raise BadInputError(f"{tracer.module} is not imported from there, but from {found}", where=str(path))
    completed, calls = tracer.calls(TRACED, [asked.program, *tracer.program], child)
    if not completed.ok or not calls:
        raise MissingHereError(f"strace cannot be used here: {one_line(completed.last_line)}")
    below = f"{path}/"
    shared = count(calls, lambda name: name == str(path) or name.startswith(below))
    return _startup(path, place, asked, count(calls, lambda _: True), shared)


def _of_image(path: Path, tracer: _Tracer, engine: Engine, environment: Mapping[str, str]) -> Startup:
    start: list[str | Path] = [*engine.words, "exec", "--pwd", "/", path]
    asked = _ask([*start, "python3"], tracer, environment, path, engine)
    wait = _WAIT.format(answer=_ANSWER, module=tracer.module)
    said = _follow([*start, "python3", "-c", wait], tracer, environment)
    calls = tracer.attached
    if not calls:
        raise MissingHereError(
            f"strace cannot attach to a program in a container here: {one_line(said)}",
            hint="it may need kernel.yama.ptrace_scope = 0, or an engine that starts it in this PID namespace",
        )
    bound = _bound(asked.mounts)
    shared, why_not = _of_engine(path, start, tracer, environment)
    if shared is not None:
        shared += count(calls, bound)
    return _startup(path, ImportSource.IMAGE, asked, count(calls, lambda _: True), shared, why_not)


def _startup(
    path: Path, place: ImportSource, asked: _Asked, program: Counts, shared: Counts | None, why_not: str | None = None
) -> Startup:
    return Startup(str(path), place, asked.file, asked.version, asked.python, program, shared, why_not)


def _ask(
    argv: list[str | Path], tracer: _Tracer, environment: Mapping[str, str], path: Path, engine: Engine | None = None
) -> _Asked:
    """Import once, untraced; in a container, if an `engine` starts it.

    Raises BadInputError where that fails, MissingHereError where Python did not even begin.
    """
    code = _ASK.format(module=tracer.module, answer=_ANSWER, began=_BEGAN)
    completed = run([*argv, "-c", code], env=environment, cwd=Path("/"), timeout_s=_TIMEOUT_S)
    lines = completed.output.splitlines()
    answers = [line for line in lines if line.startswith(_ANSWER)]
    if not completed.ok and _BEGAN not in lines:
        if engine is None:
            raise MissingHereError(f"Python does not start there: {one_line(completed.last_line)}", where=str(path))
        if _NO_PYTHON.search(completed.output):
            raise BadInputError("there is no python3 in it", where=str(path))
        raise not_started(engine, completed.output, where=str(path))
    if not completed.ok or not answers:
        raise BadInputError(f"`import {tracer.module}` fails there: {one_line(completed.last_line)}", where=str(path))
    try:
        answer = json.loads(answers[-1].removeprefix(_ANSWER))
        return _Asked(**{name: str(answer[name]) for name in _Asked.__match_args__})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInputError("the answer of Python there is not valid", where=str(path)) from error


def _follow(argv: list[str | Path], tracer: _Tracer, environment: Mapping[str, str]) -> str:
    """Run a program that says its number and waits for the strace that this attaches; return what that complains of."""
    followed: list[Future[Completed]] = []
    with ThreadPoolExecutor(max_workers=1) as pool:

        def on_line(line: str) -> None:
            pid = line.removeprefix(_ANSWER)
            if line.startswith(_ANSWER) and re.fullmatch(r"[1-9]\d{0,9}", pid) and not followed:
                followed.append(pool.submit(tracer.attach, pid, environment))

        completed = run(argv, env=environment, timeout_s=_TIMEOUT_S, on_line=on_line)
    return (followed[0].result() if followed else completed).last_line


def _of_engine(
    path: Path, start: list[str | Path], tracer: _Tracer, environment: Mapping[str, str]
) -> tuple[Counts | None, str]:
    """Return what the engine asks of the image's file, the folders above it and the home, and reads of the image."""
    home = environment.get("HOME", "/nowhere").rstrip("/") or "/nowhere"
    near = {str(path), *map(str, path.parents)} - {"/"}

    def is_shared(name: str) -> bool:
        return name in near or name == home or name.startswith(f"{home}/")

    # no program is run in this container: see the head of this module
    _, opening = tracer.calls("%file", ["--seccomp-bpf", *start, _NO_PROGRAM], environment)
    completed, reading = tracer.calls(_READS, ["--seccomp-bpf", *start, "python3", *tracer.program], environment)
    on_image = [call for call in opening if is_shared(call.path) or call.opened == str(path)]
    if not completed.ok or not any(call.kind is CallKind.OPEN for call in on_image):
        words = one_line(completed.last_line)
        return (
            None,
            f"the engine cannot be traced, perhaps because it is set-user-id (APPTAINER_USERNS=1 helps): {words}",
        )
    of_image = count(reading, lambda name: name == str(path))
    if not of_image.reads:
        return None, "the kernel itself reads the image here, which no trace of a process shows"
    return count(on_image, lambda _: True) + of_image, ""


def _bound(mounts: str) -> Callable[[str], bool]:
    """Return whether a path in the container is on a file system of the machine, by its mounts (proc(5))."""
    types: dict[str, str] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > 4 and after:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            types[point.rstrip("/")] = after.split(" ")[0]

    def is_bound(path: str) -> bool:
        point = os.path.normpath(path).rstrip("/")
        while point and point not in types:
            point = point.rpartition("/")[0]
        kind = types.get(point, "")
        return not kind.startswith(_IMAGE_TYPES) and kind not in _KERNEL_TYPES and kind != ""

    return is_bound
