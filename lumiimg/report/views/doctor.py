"""What `doctor` answers: what works on this machine, and in which ways it can build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.build.capabilities import CONTAINER, CapabilityTrial, was_seen
from lumiimg.findings import Remedy, Severity
from lumiimg.report.document import Document, Facts, Item, Section
from lumiimg.wording import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.build.disk_space import FreeSpace
    from lumiimg.build.doctor import DoctorResult
    from lumiimg.errors import MissingHereError
    from lumiimg.findings import Advice


def doctor_document(result: DoctorResult) -> Document:
    """Return what was tried, and what follows for each way to build."""
    ways = (
        Item(Severity.PROBLEM, f"{way}: {', '.join(against)}") if against else Item(Severity.OK, way)
        for way, against in result.strategies.items()
    )
    kept, temporary = result.room
    places = (
        ("cache", f"{result.cache} (LUMIIMG_CACHE): {_room(kept)}"),
        ("temporary", f"{temporary.folder}: {_room(temporary)}"),
    )
    engine = result.machine.engine
    severity, sentence = _answer(result.trials, result.strategies)
    return Document(
        command="doctor",
        subject="this machine",
        is_list=True,
        severity=severity,
        sentence=f"{sentence}: {engine.name} ({engine.path})",
        advice=result.advice,
        sections=(
            Section("What was tried", map(_trial, result.trials)),
            Section("Ways to build, the quickest first", ways, is_headed=True),
            Section("Room", (Facts(places),)),
        ),
    )


def no_engine_document(error: MissingHereError, advice: Advice) -> Document:
    """Return that nothing starts a container here, and what to do."""
    sentence = f"no way to build works here: {error}"
    return Document("doctor", "this machine", sentence, Severity.PROBLEM, advice)


def _answer(trials: Sequence[CapabilityTrial], faults: Mapping[str, Sequence[str]]) -> tuple[Severity, str]:
    usable = [way for way, against in faults.items() if not against]
    if not usable:
        return Severity.PROBLEM, "no way to build works here"
    if not was_seen(trials, CONTAINER):
        return Severity.UNKNOWN, "whether builds work here is not known, as no container was seen to start"
    lacking = "".join(f", {'no' if number else 'but no'} {name}" for number, name in enumerate(_lacking(trials)))
    return Severity.OK, f"builds here by {', '.join(usable)}{lacking}"


def _lacking(trials: Sequence[CapabilityTrial]) -> list[str]:
    return [trial.name for trial in trials if trial.remedy]


def _room(room: FreeSpace) -> str:
    kind = "of memory: it is a tmpfs, and counts against a job" if room.in_memory else "free"
    return f"{size(room.free_bytes)} {kind}"


def _trial(trial: CapabilityTrial) -> Item:
    severity = Severity.OK if trial.works else Severity.PROBLEM if trial.remedy else Severity.UNKNOWN
    text = f"{trial.name}: {trial.said}" if trial.said else trial.name
    return Item(severity, text, remedies=(Remedy(trial.remedy),) if trial.remedy else ())
