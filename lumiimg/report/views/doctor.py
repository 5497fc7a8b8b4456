"""Answer of `doctor`: what this machine can do, and in which ways it can build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.build.doctor import NO_WAY
from lumiimg.core.findings import Remedy, Severity
from lumiimg.core.text import size
from lumiimg.report.document import Document, Item, Section, facts_section, severity_of

if TYPE_CHECKING:
    from lumiimg.build.build_host import CapabilityTrial
    from lumiimg.build.doctor import DoctorResult
    from lumiimg.core.errors import MissingHereError
    from lumiimg.core.findings import Advice
    from lumiimg.engine.room import FreeSpace

_WAYS = {"overlay": "--strategy overlay, layers on overlays", "sandbox": "--strategy sandbox, all in one folder"}


def doctor_document(result: DoctorResult) -> Document:
    """Return what was tried, and the consequences for each way to build."""
    ways = (
        Item(Severity.PROBLEM if against else Severity.OK, ": ".join(filter(None, (_WAYS[way], ", ".join(against)))))
        for way, against in result.strategies.items()
    )
    kept, temporary = result.room
    places = (
        ("cache", f"{result.cache} (LUMIIMG_CACHE): {_room(kept)}"),
        ("temporary", f"{temporary.folder}: {_room(temporary)}"),
    )
    engine = result.machine.engine
    return Document(
        "doctor",
        "this machine",
        f"{result.sentence}: {engine.name} ({engine.path})",
        severity_of(result.exit_code),
        result.advice,
        sections=(
            Section("What was tried", map(_trial, result.trials)),
            Section("Ways to build, the fastest first", ways, is_headed=True),
            facts_section("Room", places),
        ),
        is_list=True,
    )


def no_engine_document(error: MissingHereError, advice: Advice) -> Document:
    """Return the answer that nothing here can start a container, and what to do."""
    return Document("doctor", "this machine", f"{NO_WAY}: {error}", Severity.PROBLEM, advice)


def _room(room: FreeSpace) -> str:
    kind = "of memory: it is a tmpfs, whose files count as memory of a job" if room.in_memory else "free"
    quota = "" if room.quota_bytes is None else f"; your quota leaves {size(room.quota_bytes)}"
    return f"{size(room.free_bytes)} {kind}{quota}{f'; {room.note}' if room.note else ''}"


def _trial(trial: CapabilityTrial) -> Item:
    text = f"{trial.name}: {trial.said}" if trial.said else trial.name
    return Item(trial.severity, text, remedies=(Remedy(trial.remedy),) if trial.remedy else ())
