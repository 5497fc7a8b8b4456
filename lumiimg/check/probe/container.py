"""Programs that run inside the container, without a GPU: what they print, and how they end.

`handshake` opens the plugin, initialises it and makes it listen; `rcclprobe` tests this image's RCCL. A library counts
as loaded if the kernel shows the file mapped, not because a log says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_line
from lumiimg.engine.engine import Engine, exec_words
from lumiimg.engine.failures import not_started
from lumiimg.engine.process import Completed, run
from lumiimg.fabric.path import part_of
from lumiimg.joblog import probe_event, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lumiimg.check.registry import FindingDetails
    from lumiimg.fabric.path import Part
    from lumiimg.joblog import Cause, LogReport

PROGRAMS = ("handshake", "rcclprobe")
ALL_REDUCE = "allreduce"
SIMULATION = "rcclsim"
"""A program with a stand-in for HIP, for those who request a simulation."""
IN_IMAGE = "/opt/lumiimg/netprobe/bin"
TIMEOUT_S = 120.0
"""Time limit of one probe; a plugin's init that takes longer than this is a finding, not a wait."""
_START_S = 60.0
_EVENT_LIMIT = 5000
_DIGITS = 10
EVIDENCE_LINES = 6
NOISE = re.compile(r"CollNet|TUNER/|PROFILER/")
"""RCCL's lines about plugins of other kinds."""
# Each of these keeps RCCL from logging what it does, or from reaching the plugin.
SILENCING = ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_COMM_ID", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY")
VERBOSE = {"NCCL_DEBUG": "INFO", "FI_LOG_LEVEL": "warn"}


@dataclass(frozen=True, slots=True)
class ProbePrograms:
    """Probe programs that can be run in the container."""

    folder: str
    """Their folder in the container; empty if there are none."""
    binds: tuple[tuple[str, str], ...]
    """Pairs of a path on this machine and its place in the container."""
    origin: str
    """Where they come from, in words."""

    def command(self, program: str) -> str:
        """Return the path of a program in the container."""
        return f"{self.folder}/{program}"


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """What one program in the container printed, and how it ended."""

    name: str
    """Name of the probe."""
    exit_code: int
    """Exit code of the program; if negative, the number of the signal that ended it."""
    timed_out: bool
    """Whether it was ended because it ran out of time."""
    output: str
    events: tuple[dict[str, str], ...] = ()
    """Its own lines: topic and words of each, which are internal and may change at any time."""

    @property
    def is_simulation(self) -> bool:
        """Whether it ran on a stand-in for HIP."""
        return self.name == SIMULATION

    @property
    def is_hung(self) -> bool:
        """Whether it timed out, by our clock or its own."""
        return self.timed_out or self.has("timeout")

    @property
    def ending(self) -> str:
        """How it ended, for the end of a sentence."""
        return "ran out of time" if self.timed_out else f"ended with {self.exit_code}"

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines with content."""
        passing = ("@probe mapped", "INFO:", "WARNING:")  # the engine's own chatter
        lines = [line for line in self.output.splitlines() if line.strip() and not line.startswith(passing)]
        return tuple(lines[-EVIDENCE_LINES:])

    def has(self, topic: str) -> bool:
        """Return whether there is an event of a topic."""
        return bool(self.all(topic))

    def first(self, topic: str) -> Mapping[str, str]:
        """Return the words of the first event of a topic; empty if there is none."""
        return next(iter(self.all(topic)), {})

    def all(self, topic: str) -> list[dict[str, str]]:
        """Return the words of all events of a topic."""
        return [event for event in self.events if event["topic"] == topic]

    def number(self, topic: str, word: str) -> int | None:
        """Return a number from the first event of a topic, or None: a library may print anything in such a line."""
        text = self.first(topic).get(word, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None

    def mapped(self, part: Part) -> str | None:
        """Return the first mapped file whose name is that of this part of the fabric path."""
        return next((v["path"] for v in self.all("mapped") if part_of(v.get("path", "")) is part), None)

    def read_log(self) -> LogReport:
        """Return the log reader's report on the lines of the plugin and of the library."""
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
    """The probe programs, with everything that is bound."""
    variables: tuple[tuple[str, str], ...] = ()
    """Variables that the process of a job has set after its imports: programs that run in its place get them too."""

    def handshake(self, plugin: str, *, rccl: str | None, accepts: Sequence[int]) -> ProbeRun:
        """Open a plugin as this image's RCCL would, and make it listen."""
        words = ["--rccl", rccl] if rccl is not None else []
        words += ["--accept", ",".join(map(str, accepts))] if accepts else []
        return self.ask("handshake", *words, plugin)

    def rccl_probe(self, rccl: str) -> ProbeRun:
        """Ask RCCL for a unique id: once per process, as a second call hangs after a failure."""
        return self.ask("rcclprobe", rccl)

    def ask(self, program: str, *words: str) -> ProbeRun:
        """Run one of our own programs, which stop by themselves."""
        return self.run(program, [self.programs.command(program), "--timeout", str(int(TIMEOUT_S / 2)), *words])

    def run(self, name: str, argv: Sequence[str]) -> ProbeRun:
        """Run a program in the container, in which RCCL and libfabric log what they do."""
        unset = [word for variable in SILENCING for word in ("-u", variable)]
        setting = [f"{key}={value}" for key, value in (*self.variables, *VERBOSE.items())]
        argv = ["/usr/bin/env", *unset, *setting, *argv]
        completed = run(self.words(argv), env=self.environment, timeout_s=TIMEOUT_S)
        self.require_start(completed)
        return read_run(name, completed)

    def words(self, argv: Sequence[str], writable: Sequence[tuple[Path, str]] = ()) -> list[str | Path]:
        """Return the command that starts a program in the container, for a launcher."""
        return exec_words(self.engine, self.image, argv, binds=self.programs.binds, writable=writable)

    def require_start(self, completed: Completed) -> None:
        """Raise MissingHereError if a failed program never started, because the engine does not start the image.

        An engine's exit code says nothing: it is 255 for any failure, or 1, like that of a program in the container.
        So if the output has none of our own words, the container is started again with a program that does not fail.
        """
        if completed.ok or completed.timed_out or read_events(completed.output):
            return
        again = run(exec_words(self.engine, self.image, ["/usr/bin/env"]), env=self.environment, timeout_s=_START_S)
        if not again.ok and not again.timed_out:
            raise not_started(self.engine, completed.output, where=str(self.image))


def read_run(name: str, completed: Completed) -> ProbeRun:
    """Return the result of a probe; `output` has the lines of libraries between its own."""
    return ProbeRun(name, completed.exit_code, completed.timed_out, completed.output, read_events(completed.output))


def read_events(output: str) -> tuple[dict[str, str], ...]:
    """Return the probe's own lines, without all others."""
    lines = islice(filter(None, map(probe_event, output.splitlines())), _EVENT_LIMIT)
    return tuple(
        {"topic": topic} | {key: one_line(words[key]) for key in words if key != "topic"} for topic, words in lines
    )


def cause_details(causes: tuple[Cause, ...], *, evidence: Iterable[str]) -> FindingDetails:
    """Return the evidence, and the cause, remedy and source of the first cause, if the knowledge base has one."""
    lines = tuple(dict.fromkeys(evidence))[-EVIDENCE_LINES:]
    if not causes:
        return {"evidence": lines}
    first = causes[0]
    return {"evidence": lines, "cause": first.summary, "remedy": first.remedy, "source": first.source}
