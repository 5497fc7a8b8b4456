"""How often a start of Python asks file systems: `import torch` from a folder, a virtual environment, or an image.

Counted with strace(1), and so the same on any machine with the same files: nothing here is a time. Of a folder or a
virtual environment every call on a path below it reaches the file system that it is on. Of an image the calls of the
program are answered by the file system in the image, on the node; what reaches the one that the image is on is what
the engine asks of the image's file, and what the program asks of paths that are bound from the machine.

One strace that followed the engine, the program and the FUSE process that serves the image would wait for itself: it
reads names out of the program's memory, a page of which only the FUSE process that it has stopped can bring. So the
program is attached to from outside, and the engine is counted in a run of its own, without a program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from lumiimg.check.strace import TRACED, Call, Counts, count, read_traces
from lumiimg.engine.engine import Engine, find_engine
from lumiimg.engine.failures import not_started
from lumiimg.engine.process import Completed, run, which
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import BadInputError, ExitCode, MissingHereError, one_line
from lumiimg.files import temporary_folder
from lumiimg.host.codec import FormError, from_json

_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}(\.[A-Za-z_][A-Za-z0-9_]{0,99}){0,20}")
_TIMEOUT_S = 900.0
_STRACE = ("-ff", "-y", "-qq", "-s", "0", "-e", "signal=none", "-e", f"trace={TRACED}")
_BEGAN, _ANSWER, _WAITS = "@lumiimg-began", "@lumiimg-answer ", "@lumiimg-waits "
_NO_PROGRAM = "/lumiimg-no-such-program"
_NO_PYTHON = re.compile(r'^FATAL:.*"python3": executable file not found', re.MULTILINE)
"""Of Apptainer 1.4.5, and of Go's os/exec."""
_ENDED = re.compile(f"^FATAL.*{_NO_PROGRAM}", re.MULTILINE)
"""The engine in a container that has no such program: it came to its end."""
_IMAGE_TYPES = ("squashfs", "overlay", "fuse.squashfuse", "fuse.fuse-overlayfs")
_KERNEL_TYPES = ("proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "hugetlbfs", "rootfs")
# Imports once without a trace: whether it works at all, where it is, and what is mounted; that also leaves the bytecode
# behind that the first import of all compiles.
_ASK = """\
import importlib, json, os, sys, time
print("\\n{began}", flush=True)
module = importlib.import_module({module!r})
with open("/proc/self/mountinfo", errors="surrogateescape") as stream:
    mounts = stream.read()
print("\\n{answer}" + json.dumps({{
    "file": str(getattr(module, "__file__", None)), "version": str(getattr(module, "__version__", "")),
    "python": sys.version.split()[0], "program": sys.executable, "mounts": mounts}}), flush=True)
"""
# Then waits in the container until strace is there, and becomes the program that is traced.
_WAIT = """\
print("\\n{waits}" + str(os.getpid()), flush=True)
end = time.monotonic() + 10
while time.monotonic() < end:
    with open(f"/proc/{{os.getpid()}}/status") as status:
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
    """What one import asks."""

    path: str
    """Of the folder, virtual environment or image."""
    kind: ImportSource
    """What modules are imported from."""
    module_file: str
    """The file that was imported."""
    version: str
    """Of the module; empty where it does not say."""
    python: str
    """Its version."""
    program: Counts
    """All that the program asks, of whatever file system."""
    shared: Counts | None
    """What of it, and of the engine, reaches the file system that the place is on; null where that cannot be seen."""
    why_not: str | None = None
    """Why it cannot be seen; null where it can."""


@dataclass(frozen=True, slots=True)
class ImportBench:
    """What an import asks of file systems, in calls."""

    module: str
    """That was imported."""
    places: tuple[Startup, ...]
    """In the order of the command line."""

    @property
    def exit_code(self) -> ExitCode:
        """Good where it was seen what reaches each place."""
        return ExitCode.GOOD if all(place.shared for place in self.places) else ExitCode.UNDECIDED


@dataclass(frozen=True, slots=True)
class _Answer:
    """What Python says where the module is imported."""

    file: str
    version: str
    python: str
    program: str
    mounts: str


@dataclass(frozen=True, slots=True)
class _Bench:
    """What is measured, and with what."""

    path: Path
    module: str
    strace: str
    environment: Mapping[str, str]

    def run(self, words: Sequence[str | Path], on_line: Callable[[str], None] | None = None) -> Completed:
        """Run a program in `/`."""
        return run(words, env=self.environment, cwd=Path("/"), timeout_s=_TIMEOUT_S, on_line=on_line)

    def traced(self, words: Sequence[str | Path]) -> tuple[Completed, list[Call]]:
        """Run strace, with further options and a program."""
        with scratch_folder(temporary_folder(), "lumiimg-bench-") as folder:
            completed = self.run([self.strace, *_STRACE, "-o", folder / "trace", *words])
            return completed, read_traces(sorted(folder.glob("trace*")))


def kind_of(path: Path) -> ImportSource:
    """Return what a path is. Raises BadInputError for what modules cannot be imported from."""
    if path.is_dir():
        if (path / ".singularity.d").exists():
            raise BadInputError("is a sandbox", where=str(path), hint="name its site-packages folder, or build a SIF")
        return ImportSource.VENV if (path / "pyvenv.cfg").is_file() else ImportSource.FOLDER
    if not path.is_file():
        raise BadInputError("there is no such file or folder", where=str(path))
    return ImportSource.IMAGE


def measure(paths: Sequence[Path], module: str, environment: Mapping[str, str], python: str | None) -> ImportBench:
    """Count what an import asks, from places of any kind; `python` is the interpreter for folders.

    Raises BadInputError where the module cannot be imported there, MissingHereError without strace or an engine.
    """
    if not _MODULE.fullmatch(module):
        raise BadInputError("is not a valid module name", where=f"--module {module}")
    for path in paths:
        kind_of(path)  # before the first of them takes its time
    return ImportBench(module, tuple(_measured(path, module, environment, python) for path in paths))


def _measured(path: Path, module: str, environment: Mapping[str, str], python: str | None) -> Startup:
    kind = kind_of(path)
    strace = which("strace", environment.get("PATH"))
    if strace is None:
        raise MissingHereError("there is no strace here", hint="install it (`apt install strace`), or load its module")
    bench = _Bench(path.resolve(), module, strace, environment)
    if kind is ImportSource.IMAGE:
        answer, calls, shared, why_not = _of_image(bench, find_engine(environment))
    else:
        answer, calls, shared, why_not = *_of_folder(bench, kind, python or "python3"), None
    reaches = None if shared is None else count(shared)
    return Startup(str(bench.path), kind, answer.file, answer.version, answer.python, count(calls), reaches, why_not)


def _of_folder(bench: _Bench, kind: ImportSource, python: str) -> tuple[_Answer, list[Call], list[Call]]:
    """Return (what Python says there, all calls of the program, those that reach the folder)."""
    if kind is ImportSource.VENV:
        interpreter = bench.path / "bin" / "python"
    else:
        interpreter = Path(which(python, bench.environment.get("PATH")) or python).absolute()
        packages = ":".join(filter(None, (str(bench.path), bench.environment.get("PYTHONPATH"))))
        bench = replace(bench, environment={**bench.environment, "PYTHONPATH": packages})
    if not interpreter.is_file():
        raise MissingHereError(f"there is no {interpreter.name} here", hint="--python PROGRAM")
    answer = _answer(bench.run([interpreter, "-c", _ask(bench.module)]), bench)
    below = f"{bench.path}/"
    if not answer.file.startswith(below):
        found = one_line(answer.file)
        raise BadInputError(f"{bench.module} is not imported from there, but from {found}", where=str(bench.path))
    completed, calls = bench.traced([answer.program, "-c", f"import {bench.module}"])
    if not completed.ok or not calls:
        raise MissingHereError(f"strace cannot be used here: {one_line(completed.last_line)}")
    return answer, calls, [call for call in calls if f"{call.path}/".startswith(below)]


def _of_image(bench: _Bench, engine: Engine) -> tuple[_Answer, list[Call], list[Call] | None, str | None]:
    """Return the same of an image, and why those that reach it are not known."""
    start: list[str | Path] = [*engine.words, "exec", "--pwd", "/", bench.path]
    completed, calls, said = _followed([*start, "python3", "-c", _ask(bench.module, then=_WAIT)], bench)
    answer = _answer(completed, bench, engine)
    if not any(call.name == "execve" and call.error is None for call in calls):
        raise MissingHereError(
            f"strace cannot attach to a program in a container here: {one_line(said)}",
            hint="it may need kernel.yama.ptrace_scope = 0, or an engine that starts it in this PID namespace",
        )
    # no program is run in this container: see the head of this module
    completed, opening = bench.traced(["--seccomp-bpf", *start, _NO_PROGRAM])
    if not _ENDED.search(completed.output):
        why_not = "the engine cannot be traced, perhaps because it is set-user-id (APPTAINER_USERNS=1 helps)"
        return answer, calls, None, f"{why_not}: {one_line(completed.last_line)}"
    is_bound = _bound(answer.mounts)
    return answer, calls, [*_of_engine(opening, bench), *(call for call in calls if is_bound(call.path))], None


def _ask(module: str, then: str = "") -> str:
    return f"{_ASK}{then}".format(module=module, began=_BEGAN, answer=_ANSWER, waits=_WAITS)


def _answer(completed: Completed, bench: _Bench, engine: Engine | None = None) -> _Answer:
    """Return what Python said; in a container, if an `engine` started it.

    Raises BadInputError where the import failed, MissingHereError where Python did not even begin.
    """
    path, said = str(bench.path), one_line(completed.last_line)
    lines = completed.output.splitlines()
    answers = [line.removeprefix(_ANSWER) for line in lines if line.startswith(_ANSWER)]
    if not completed.ok and _BEGAN not in lines:
        if engine is None:
            raise MissingHereError(f"Python does not start there: {said}", where=path)
        if _NO_PYTHON.search(completed.output):
            raise BadInputError("there is no python3 in it", where=path)
        raise not_started(engine, completed.output, where=path)
    if not completed.ok or not answers:
        raise BadInputError(f"`import {bench.module}` fails there: {said}", where=path)
    try:
        return from_json(_Answer, answers[-1].encode("utf-8", "surrogateescape"))
    except FormError as error:
        raise BadInputError("the answer of Python there is not valid", where=path) from error


def _followed(argv: list[str | Path], bench: _Bench) -> tuple[Completed, list[Call], str]:
    """Run a program that says its number and waits for strace; return also its calls, once it was there, or why not."""
    traces: dict[str, Future[tuple[Completed, list[Call]]]] = {}
    with ThreadPoolExecutor(max_workers=1) as pool:

        def on_line(line: str) -> None:
            pid = line.removeprefix(_WAITS)
            if line.startswith(_WAITS) and re.fullmatch(r"[1-9]\d{0,9}", pid) and not traces:
                traces[f"/proc/{pid}/status"] = pool.submit(bench.traced, ["-p", pid])

        completed = bench.run(argv, on_line)
    if not traces:
        return completed, [], completed.last_line
    ((waiting, trace),) = traces.items()
    strace, calls = trace.result()
    return completed, [call for call in calls if call.path != waiting], strace.last_line


def _of_engine(calls: list[Call], bench: _Bench) -> list[Call]:
    """Return what the engine asks of the image's file, the folders above it and the home."""
    home = bench.environment.get("HOME", "/nowhere").rstrip("/") or "/nowhere"
    near = {str(bench.path), *map(str, bench.path.parents)} - {"/"}
    return [
        call
        for call in calls
        if call.path in near or f"{call.path}/".startswith(f"{home}/") or call.opened == str(bench.path)
    ]


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
        point = path.rstrip("/")
        while point and point not in types:
            point = point.rpartition("/")[0]
        kind = types.get(point, "")
        return kind not in {"", *_KERNEL_TYPES} and not kind.startswith(_IMAGE_TYPES)

    return is_bound
