"""Programs that are run inside the container, without a GPU: what they print, how they end, and where they come from.

`handshake` opens the plugin, initialises it and makes it listen; `rcclprobe` asks this image's RCCL. A load is believed
where the kernel shows the file mapped, not where a log says so.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.catalog.folders import shipped_layers
from lumiimg.core.access import BytesInMemory
from lumiimg.core.errors import MissingHereError, one_line
from lumiimg.core.files import read_beginning
from lumiimg.elf import Process, read_elf
from lumiimg.engine.engine import Engine, exec_words
from lumiimg.engine.failures import not_started
from lumiimg.engine.process import Completed, run, which
from lumiimg.fabric.path import part_of
from lumiimg.joblog import probe_event, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.registry import FindingDetails
    from lumiimg.fabric.path import Part
    from lumiimg.image import Image
    from lumiimg.joblog import Cause, LogReport

PROGRAMS = ("handshake", "rcclprobe")
ALL_REDUCE = "allreduce"
SIMULATION = "rcclsim"
"""A stand-in for HIP is in it: only for those who ask for a simulation."""
IN_IMAGE = "/opt/lumiimg/netprobe/bin"
MOUNTED = "/opt/lumiimg-probe"
"""Where a folder of this machine is mounted, if the programs are not in the image."""
_COMPILERS = ("cc", "gcc", "clang")
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/venv/bin")
_SHARED_SOURCE = "probe.h"
_COMPILE_TIMEOUT_S = 120.0
_GLIBC_FROM = "libc.so.6"
_MOST_BYTES = 64 << 20
"""Of a program of ours, compiled here."""
TIMEOUT_S = 120.0
"""Of one probe; a plugin's init that takes longer than this is a finding, not a wait."""
_START_S = 60.0
_EVENT_LIMIT = 5000
_DIGITS = 10
EVIDENCE_LINES = 6
NOISE = re.compile(r"CollNet|TUNER/|PROFILER/")
"""Lines of RCCL about plugins of other kinds."""
# Each of these keeps RCCL from saying what it does, or from getting as far as the plugin.
SILENCING = ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_COMM_ID", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY")
VERBOSE = {"NCCL_DEBUG": "INFO", "FI_LOG_LEVEL": "warn"}


@dataclass(frozen=True, slots=True)
class ProbePrograms:
    """Probe programs that can be run in the container."""

    folder: str
    """In the container; empty where there are none."""
    binds: tuple[tuple[str, str], ...]
    """Path of this machine, place in the container."""
    origin: str
    """Where they are from, for people."""

    def command(self, program: str) -> str:
        """Return the path of a program in the container."""
        return f"{self.folder}/{program}"


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """What one program in the container printed, and how it ended."""

    name: str
    """Of the probe."""
    exit_code: int
    """Of the program; negative: the number of the signal that ended it."""
    timed_out: bool
    """Whether it was ended because its time was over."""
    output: str
    events: tuple[dict[str, str], ...] = ()
    """Its own lines: the topic and the words of each, which are internal and may change at any time."""

    @property
    def is_simulation(self) -> bool:
        """Whether it ran on a stand-in for HIP."""
        return self.name == SIMULATION

    @property
    def is_hung(self) -> bool:
        """Whether its time was over, by our clock or its own."""
        return self.timed_out or self.has("timeout")

    @property
    def ending(self) -> str:
        """How it ended, for the end of a sentence."""
        return "ran out of time" if self.timed_out else f"ended with {self.exit_code}"

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that say something."""
        passing = ("@probe mapped", "INFO:", "WARNING:")  # the engine's own chatter
        lines = [line for line in self.output.splitlines() if line.strip() and not line.startswith(passing)]
        return tuple(lines[-EVIDENCE_LINES:])

    def has(self, topic: str) -> bool:
        """Whether there is an event of a topic."""
        return bool(self.all(topic))

    def first(self, topic: str) -> Mapping[str, str]:
        """Return the words of the first event of a topic; none where there is none."""
        return next(iter(self.all(topic)), {})

    def all(self, topic: str) -> list[dict[str, str]]:
        """Return the words of all events of a topic."""
        return [event for event in self.events if event["topic"] == topic]

    def number(self, topic: str, word: str) -> int | None:
        """Return a number of the first event of a topic, or None: a library may print such a line with anything."""
        text = self.first(topic).get(word, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None

    def mapped(self, part: Part) -> str | None:
        """Return the first mapped file that is this part of the fabric path by its name."""
        return next((v["path"] for v in self.all("mapped") if part_of(v.get("path", "")) is part), None)

    def read_log(self) -> LogReport:
        """Return what the log reader makes of the plugin's and the library's own lines."""
        return read_lines(self.name, self.output.splitlines())


@dataclass(frozen=True, slots=True)
class Container:
    """An image with everything that a probe needs to run in it.

    Every method raises MissingHereError if the container does not start.
    """

    engine: Engine
    image: Path
    environment: Mapping[str, str]
    programs: ProbePrograms
    """With all that is bound."""
    variables: tuple[tuple[str, str], ...] = ()
    """What the process of a job has set when its imports are done: all that runs in its stead has it, too."""

    def handshake(self, plugin: str, *, rccl: str | None, accepts: Sequence[int]) -> ProbeRun:
        """Open a plugin as this image's RCCL would, and take it as far as listening."""
        words = ["--rccl", rccl] if rccl is not None else []
        words += ["--accept", ",".join(map(str, accepts))] if accepts else []
        return self.ask("handshake", *words, plugin)

    def rccl_probe(self, rccl: str) -> ProbeRun:
        """Ask RCCL for a unique id: once per process, as a second call hangs after a failure."""
        return self.ask("rcclprobe", rccl)

    def ask(self, program: str, *words: str) -> ProbeRun:
        """Run one of our own programs, which end by themselves."""
        return self.run(program, [self.programs.command(program), "--timeout", str(int(TIMEOUT_S / 2)), *words])

    def run(self, name: str, argv: Sequence[str]) -> ProbeRun:
        """Run a program in the container; RCCL and libfabric say in it what they do."""
        unset = [word for variable in SILENCING for word in ("-u", variable)]
        setting = [f"{key}={value}" for key, value in (*self.variables, *VERBOSE.items())]
        argv = ["/usr/bin/env", *unset, *setting, *argv]
        completed = run(self.words(argv), env=self.environment, timeout_s=TIMEOUT_S)
        self.require_start(completed)
        return read_run(name, completed)

    def words(self, argv: Sequence[str], writable: Sequence[tuple[Path, str]] = ()) -> list[str | Path]:
        """Return what starts a program in the container, for a launcher."""
        return exec_words(self.engine, self.image, argv, binds=self.programs.binds, writable=writable)

    def require_start(self, completed: Completed) -> None:
        """Raise MissingHereError where what failed in it never began, as the engine starts none of that image.

        What engines end with says nothing: it is 255 for all that goes wrong, or 1, as of a program in the container.
        So one is started again, with a program that does not fail, where none of our own words came out of it.
        """
        if completed.ok or completed.timed_out or read_events(completed.output):
            return
        again = run(exec_words(self.engine, self.image, ["/usr/bin/env"]), env=self.environment, timeout_s=_START_S)
        if not again.ok and not again.timed_out:
            raise not_started(self.engine, completed.output, where=str(self.image))


def read_run(name: str, completed: Completed) -> ProbeRun:
    """Return what a probe printed; lines of libraries between its own are kept in `output`."""
    return ProbeRun(name, completed.exit_code, completed.timed_out, completed.output, read_events(completed.output))


def read_events(output: str) -> tuple[dict[str, str], ...]:
    """Return the probe's own lines among all others."""
    lines = islice(filter(None, map(probe_event, output.splitlines())), _EVENT_LIMIT)
    return tuple(
        {"topic": topic} | {key: one_line(words[key]) for key in words if key != "topic"} for topic, words in lines
    )


def explained(causes: tuple[Cause, ...], *, evidence: Iterable[str]) -> FindingDetails:
    """Return evidence, and cause, remedy and source of the first cause, if the knowledge base has one."""
    lines = tuple(dict.fromkeys(evidence))[-EVIDENCE_LINES:]
    if not causes:
        return {"evidence": lines}
    first = causes[0]
    return {"evidence": lines, "cause": first.summary, "remedy": first.remedy, "source": first.source}


# -- where the programs come from --


def find_or_compile(
    engine: Engine, context: ImageInContext, environment: Mapping[str, str], scratch: Path, programs: Sequence[str]
) -> ProbePrograms:
    """Return the programs, all of the same origin: an image whose netprobe layer is older has not all of them.

    What is compiled goes to `scratch`. `environment` is the engine's. Raises MissingHereError if there are none that
    can be relied on: a probe that cannot start, for its C library, would look like a plugin that cannot.
    """
    root, binds = context.image.root, ((str(scratch), MOUNTED),)
    if all(root.is_file(f"{IN_IMAGE}/{program}") for program in programs):
        return ProbePrograms(IN_IMAGE, (), "from the image's netprobe layer")
    sources = shipped_layers() / "netprobe"
    for name in (_SHARED_SOURCE, *(f"{program}.c" for program in programs)):
        shutil.copyfile(sources / name, scratch / name)
    for compiler in filter(root.is_file, (f"{folder}/{name}" for folder in _FOLDERS for name in _COMPILERS)):
        argv = ["/bin/sh", "-c", _compile_script(compiler, MOUNTED, programs)]
        words = exec_words(engine, context.path, argv, writable=((scratch, MOUNTED),))
        if run(words, env=environment, timeout_s=_COMPILE_TIMEOUT_S).ok:
            return ProbePrograms(MOUNTED, binds, "compiled by the image's own compiler")
    _compile_here(context.image, environment, scratch, programs)
    return ProbePrograms(MOUNTED, binds, "compiled on this machine; the image's C library has all that they need")


def _compile_here(image: Image, environment: Mapping[str, str], scratch: Path, programs: Sequence[str]) -> None:
    compiler = next((found for name in _COMPILERS if (found := which(name, environment.get("PATH")))), None)
    if compiler is None:
        raise MissingHereError(
            "no probe programs: the image has neither the netprobe layer nor a C compiler, nor has this machine one",
            hint="add the layer (`lumiimg build … --add netprobe`), or install gcc here",
        )
    argv = ["/bin/sh", "-c", _compile_script(compiler, ".", programs)]
    done = run(argv, env=environment, cwd=scratch, timeout_s=_COMPILE_TIMEOUT_S)
    if not done.ok:
        raise MissingHereError(f"the compiler of this machine failed on the probes: {done.last_line}")
    missing = _missing_versions(image, [scratch / program for program in programs])
    if missing:
        raise MissingHereError(
            f"the probes that this machine compiles need {missing[-1]}, which the image's C library does not have",
            hint="add the netprobe layer to the image: `lumiimg build … --add netprobe`",
        )


def _compile_script(compiler: str, folder: str, programs: Sequence[str]) -> str:
    # All names are our own, without blanks; -ldl for glibc before 2.34; -rdynamic as the stand-in in rcclsim needs it.
    return " && ".join(
        f"'{compiler}' -std=c11 -O1 -rdynamic -o {folder}/{program} {folder}/{program}.c -ldl" for program in programs
    )


def _missing_versions(image: Image, programs: list[Path]) -> list[str]:
    """Return the versions of the C library that the programs need and the image does not define."""
    needed: set[str] = set()
    defined: set[str] = set()
    for program in programs:
        facts = read_elf(BytesInMemory(read_beginning(program, _MOST_BYTES)))
        needed.update(need.name for need in facts.version_needs if need.file == _GLIBC_FROM)
        if facts.interpreter and not defined:
            process = Process(image.root)
            process.start(facts.interpreter)
            libc = process.dlopen(_GLIBC_FROM).root if process.objects else None
            defined.update(libc.facts.version_definitions if libc else ())
    return sorted(needed - defined)
